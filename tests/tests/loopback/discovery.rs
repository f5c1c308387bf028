//! What a host finds, and where.

use std::net::SocketAddr;

use raidfabric_initiator::{Controller, Host, Options};
use raidfabric_protocol::fabrics::InvalidParameter;
use raidfabric_protocol::fabrics::discovery::{LogEntry, SubsystemType};
use raidfabric_protocol::fabrics::nqn::DISCOVERY_NQN;
use raidfabric_protocol::nvme::identify::{Cns, ControllerType, IdentifyController};
use raidfabric_protocol::nvme::status::{CommandSpecific, Generic};
use raidfabric_tests::host::options;
use raidfabric_tests::setup::{NQN, Setup, Target};
use zerocopy::FromBytes;

const OTHER: &str = "nqn.2026-11.io.raidfabric:other";
const FRIEND: &str = "nqn.2014-08.org.example:friend";

fn target() -> Target {
    Setup::memory("raid0", 2, 4)
        .memory_array("b", "raid1", 2, 4)
        .subsystem(&format!(
            "{{ nqn: \"{OTHER}\", hosts: [\"{FRIEND}\"], namespaces: [{{ nsid: 5, array: b }}] }}"
        ))
        .listen("listen: [\"127.0.0.1:0\", \"[::1]:0\"]\ndiscovery: [\"127.0.0.1:0\"]")
        .start()
}

fn friend() -> Options {
    Options { host: Host::builder().nqn(FRIEND).build().unwrap(), ..options() }
}

fn socket(entry: &LogEntry) -> SocketAddr {
    let ip: std::net::IpAddr = entry.address().parse().unwrap();
    SocketAddr::new(ip, entry.service().parse().unwrap())
}

fn names(entries: &[LogEntry]) -> Vec<(u8, String)> {
    let mut names: Vec<_> = entries
        .iter()
        .map(|entry| (entry.subtype, entry.subsystem_nqn().unwrap().to_owned()))
        .collect();
    names.sort();
    names
}

/// The address that serves discovery only: the one of its own entries where no volume is.
fn discovery_address(entries: &[LogEntry]) -> SocketAddr {
    let volumes: Vec<_> =
        entries.iter().filter(|e| e.subtype == SubsystemType::Nvm.raw()).map(socket).collect();
    entries.iter().map(socket).find(|at| !volumes.contains(at)).unwrap()
}

#[tokio::test]
async fn both_ports_tell_each_host_what_it_may_use() {
    let target = target();
    let known = Controller::discover(target.address, &friend()).await.unwrap();
    let discovery = discovery_address(&known);
    assert_ne!(discovery, target.address);
    let own = SubsystemType::CurrentDiscovery.raw();
    let nvm = SubsystemType::Nvm.raw();
    for address in [target.address, discovery] {
        let stranger = Controller::discover(address, &options()).await.unwrap();
        let entries = names(&stranger);
        assert!(entries.contains(&(nvm, NQN.into())), "{entries:?}");
        assert!(entries.contains(&(own, DISCOVERY_NQN.into())), "{entries:?}");
        assert!(!entries.iter().any(|(_, name)| name == OTHER), "not for a stranger: {entries:?}");
        let entries = names(&Controller::discover(address, &friend()).await.unwrap());
        assert!(entries.contains(&(nvm, OTHER.into())), "{entries:?}");
        assert!(entries.contains(&(nvm, NQN.into())), "{entries:?}");
    }
    // What is listed can be used, with the name under which it is listed.
    for entry in known.iter().filter(|entry| entry.subtype == nvm) {
        let name = entry.subsystem_nqn().unwrap();
        let controller = Controller::connect(socket(entry), name, &friend()).await.unwrap();
        assert_eq!(controller.namespaces().await.unwrap(), [if name == OTHER { 5 } else { 1 }]);
    }
    target.settle_and_stop().await;
}

/// Over IPv6 a host is told addresses of its own family.
#[tokio::test]
async fn each_family_has_its_addresses() {
    let target = target();
    let v6 = target.server().addresses()[1];
    assert!(v6.is_ipv6());
    let entries = Controller::discover(v6, &options()).await.unwrap();
    assert!(!entries.is_empty());
    assert!(entries.iter().all(|entry| socket(entry).is_ipv6() && entry.adrfam == 2));
    assert!(entries.iter().any(|entry| socket(entry) == v6));
    let entries = Controller::discover(target.address, &options()).await.unwrap();
    assert!(entries.iter().all(|entry| socket(entry).is_ipv4() && entry.adrfam == 1));
    target.settle_and_stop().await;
}

#[tokio::test]
async fn the_discovery_port_serves_discovery_only() {
    let target = target();
    let known = Controller::discover(target.address, &options()).await.unwrap();
    let discovery = discovery_address(&known);
    let refused = Controller::connect(discovery, NQN, &options()).await.unwrap_err();
    assert_eq!(refused.status(), Some(InvalidParameter::SubNqn.status()));
    let controller = Controller::connect(discovery, DISCOVERY_NQN, &options()).await.unwrap();
    let page = controller.identify(Cns::Controller, 0).await.unwrap();
    let identity = IdentifyController::read_from_bytes(&page).unwrap();
    assert_eq!(identity.cntrltype, ControllerType::Discovery.raw());
    assert!(identity.subnqn.starts_with(DISCOVERY_NQN.as_bytes()));
    let refused = controller.identify(Cns::ActiveNamespaces, 0).await.unwrap_err();
    assert_eq!(refused.status(), Some(Generic::InvalidField.into()));
    let refused = controller.log_page(0x02, 0, 0, 512, false).await.unwrap_err();
    assert_eq!(refused.status(), Some(CommandSpecific::InvalidLogPage.into()));
    // It has no I/O queues.
    assert!(controller.set_number_of_queues(1).await.is_err());
    controller.keep_alive().await.unwrap();
    // The log in pieces is the log.
    let whole = controller.log_page(0x70, 0, 0, 3 * 1024, false).await.unwrap();
    for (offset, length) in [(0u64, 4u32), (4, 12), (1020, 8), (1024, 1024), (2044, 516)] {
        let part = controller.log_page(0x70, 0, offset, length, false).await.unwrap();
        let start = offset as usize;
        assert_eq!(part, whole[start..start + length as usize], "{length} at {offset}");
    }
    controller.shutdown().await.unwrap();
    target.settle_and_stop().await;
}
