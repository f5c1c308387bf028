//! The discovery log as one host sees it through one address.
//!
//! It lists what that host can use from where it is: subsystems that allow it,
//! at addresses of the family it came by. An address of this machine alone
//! (127.0.0.1, ::1) is told only to hosts on this machine, and a wildcard
//! address is told as the address that the host has reached already.
use super::subsystem::{Discovery, Listener};
use raidfabric_protocol::fabrics::command::CNTLID_DYNAMIC;
use raidfabric_protocol::fabrics::discovery::*;
use raidfabric_protocol::fabrics::nqn;
use std::net::{IpAddr, SocketAddr};
use zerocopy::IntoBytes;

/// The log page for host `host_nqn`, which is connected to the local address `via`.
pub fn log(discovery: &Discovery, host_nqn: &str, via: SocketAddr) -> Vec<u8> {
    let entries = entries(discovery, host_nqn, via);
    let header = LogHeader {
        genctr: discovery.generation.into(),
        numrec: (entries.len() as u64).into(),
        ..LogHeader::default()
    };
    let mut log = Vec::with_capacity((1 + entries.len()) * RECORD_BYTES);
    log.extend_from_slice(header.as_bytes());
    for entry in &entries {
        log.extend_from_slice(entry.as_bytes());
    }
    log
}

/// The entries of the log page.
pub(super) fn entries(discovery: &Discovery, host_nqn: &str, via: SocketAddr) -> Vec<LogEntry> {
    let via = via.ip().to_canonical();
    let mut entries = Vec::new();
    // Through a wildcard address the log differs from one address to the next, and
    // then the entries do not all lead to the same information.
    let all =
        discovery.listeners.iter().chain(discovery.subsystems.iter().flat_map(|s| &s.listeners));
    let same_everywhere = all.into_iter().all(|it| !it.address.ip().is_unspecified());
    let own = EntryFlags::default()
        .with_explicit_persistence(true)
        .with_duplicate_information(same_everywhere);
    for listener in &discovery.listeners {
        let admin_entries = discovery.limits.max_admin_queue_entries;
        let kind = SubsystemType::CurrentDiscovery;
        entries.extend(entry(kind, nqn::DISCOVERY_NQN, listener, via, admin_entries, own));
    }
    for subsystem in &discovery.subsystems {
        if !subsystem.hosts.allows(host_nqn) {
            continue;
        }
        for listener in &subsystem.listeners {
            let admin_entries = subsystem.max_admin_queue_entries;
            let flags = EntryFlags::default();
            let kind = SubsystemType::Nvm;
            entries.extend(entry(kind, &subsystem.nqn, listener, via, admin_entries, flags));
        }
    }
    entries
}

/// The entry for one listener; `None` if the host cannot use it.
fn entry(
    kind: SubsystemType,
    subsystem_nqn: &str,
    listener: &Listener,
    via: IpAddr,
    admin_entries: u16,
    eflags: EntryFlags,
) -> Option<LogEntry> {
    let address = reachable(listener.address.ip(), via)?;
    let mut entry = LogEntry {
        trtype: TransportType::Tcp.raw(),
        adrfam: match address {
            IpAddr::V4(_) => AddressFamily::Ipv4.raw(),
            IpAddr::V6(_) => AddressFamily::Ipv6.raw(),
        },
        subtype: kind.raw(),
        treq: TransportRequirements::default()
            .with_secure_channel(SECURE_CHANNEL_NOT_REQUIRED)
            .with_disable_sq_flow_control(true),
        portid: listener.port_id.into(),
        cntlid: CNTLID_DYNAMIC.into(),
        asqsz: admin_entries.into(),
        eflags,
        subnqn: nqn::to_field(subsystem_nqn).ok()?,
        ..LogEntry::default()
    };
    if let Some(security) = entry.tsas.first_mut() {
        *security = SecurityType::None.raw();
    }
    put_text(&mut entry.trsvcid, &listener.address.port().to_string())?;
    put_text(&mut entry.traddr, &address.to_string())?;
    Some(entry)
}

/// The address under which a host that reached `via` reaches a listener bound to `bound`.
fn reachable(bound: IpAddr, via: IpAddr) -> Option<IpAddr> {
    let address = match bound {
        // A wildcard IPv6 socket takes IPv4, too.
        IpAddr::V6(v6) if v6.is_unspecified() => via,
        bound if bound.is_unspecified() && bound.is_ipv4() == via.is_ipv4() => via,
        bound => bound.to_canonical(),
    };
    let same_family = address.is_ipv4() == via.is_ipv4();
    let reachable = !address.is_loopback() || via.is_loopback();
    (same_family && reachable && !address.is_unspecified()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::super::subsystem::{Advertised, Hosts, Limits};
    use super::*;
    use zerocopy::FromBytes;

    const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host";

    fn listener(port_id: u16, address: &str) -> Listener {
        Listener { port_id, address: address.parse().unwrap() }
    }

    fn discovery() -> Discovery {
        let advertised = |nqn: &str, hosts: Hosts, listeners: &[Listener]| Advertised {
            nqn: nqn.into(),
            hosts,
            listeners: listeners.to_vec(),
            max_admin_queue_entries: 128,
        };
        let listen = [listener(1, "192.0.2.10:4420"), listener(2, "[2001:db8::1]:4420")];
        Discovery {
            serial: "d".into(),
            limits: Limits::default(),
            generation: 7,
            listeners: vec![listener(3, "192.0.2.10:8009")],
            subsystems: vec![
                advertised("nqn.2026-11.io.x:open", Hosts::Any, &listen),
                advertised("nqn.2026-11.io.x:mine", Hosts::Only([HOST.to_owned()].into()), &listen),
                advertised("nqn.2026-11.io.x:others", Hosts::Only([].into()), &listen),
            ],
        }
    }

    fn summary(discovery: &Discovery, via: &str) -> Vec<(u8, String, String)> {
        entries(discovery, HOST, via.parse().unwrap())
            .iter()
            .map(|e| {
                let name = e.subsystem_nqn().unwrap().rsplit(':').next().unwrap().to_owned();
                (e.subtype, name, format!("{} {}", e.address(), e.service()))
            })
            .collect()
    }

    #[test]
    fn golden_log() {
        let log = log(&discovery(), HOST, "192.0.2.10:8009".parse().unwrap());
        assert_eq!(log.len(), 4 * 1024);
        let (header, rest) = LogHeader::read_from_prefix(&log).unwrap();
        assert_eq!((header.genctr.get(), header.numrec.get(), header.recfmt.get()), (7, 3, 0));
        let (own, rest) = LogEntry::read_from_prefix(rest).unwrap();
        assert_eq!((own.trtype, own.adrfam, own.subtype), (3, 1, 3));
        assert_eq!(own.subsystem_nqn(), Ok(nqn::DISCOVERY_NQN));
        assert_eq!((own.eflags.raw(), own.cntlid.get(), own.asqsz.get()), (3, 0xFFFF, 128));
        assert_eq!((own.portid.get(), own.service()), (3, "8009".to_owned()));
        let (nvm, _) = LogEntry::read_from_prefix(rest).unwrap();
        assert_eq!((nvm.trtype, nvm.adrfam, nvm.subtype), (3, 1, 2));
        assert_eq!((nvm.address(), nvm.service()), ("192.0.2.10".into(), "4420".into()));
        assert_eq!((nvm.portid.get(), nvm.cntlid.get()), (1, 0xFFFF));
        assert_eq!((nvm.eflags.raw(), nvm.treq.raw(), nvm.tsas), (0, 6, [0; 256]));
    }

    #[test]
    fn only_what_the_host_may_use_at_addresses_of_its_family() {
        let v4 = summary(&discovery(), "192.0.2.10:8009");
        let names: Vec<_> = v4.iter().map(|(subtype, name, _)| (*subtype, &name[..])).collect();
        assert_eq!(names, [(3, nqn::DISCOVERY_NQN), (2, "open"), (2, "mine")]);
        let v6 = summary(&discovery(), "[2001:db8::1]:4420");
        let at = "2001:db8::1 4420".to_owned();
        assert_eq!(v6, [(2, "open".into(), at.clone()), (2, "mine".into(), at)]);
    }

    #[test]
    fn an_ipv4_host_on_a_dual_stack_socket_gets_ipv4() {
        let mapped = summary(&discovery(), "[::ffff:192.0.2.10]:8009");
        assert_eq!(mapped, summary(&discovery(), "192.0.2.10:8009"));
    }

    #[test]
    fn wildcards_become_the_address_that_was_reached() {
        let mut discovery = discovery();
        discovery.listeners = vec![listener(3, "0.0.0.0:8009")];
        discovery.subsystems.truncate(1);
        discovery.subsystems[0].listeners = vec![listener(1, "[::]:4420")];
        let seen: Vec<_> =
            summary(&discovery, "198.51.100.7:8009").into_iter().map(|(.., at)| at).collect();
        assert_eq!(seen, ["198.51.100.7 8009", "198.51.100.7 4420"]);
        let seen: Vec<_> =
            summary(&discovery, "[2001:db8::9]:8009").into_iter().map(|(.., at)| at).collect();
        assert_eq!(seen, ["2001:db8::9 4420"]);
        let own = &entries(&discovery, HOST, "198.51.100.7:8009".parse().unwrap())[0];
        assert_eq!(own.eflags, EntryFlags::default().with_explicit_persistence(true));
    }

    #[test]
    fn loopback_addresses_are_for_this_machine_only() {
        let mut discovery = discovery();
        discovery.listeners = vec![listener(3, "127.0.0.1:8009")];
        discovery.subsystems.truncate(1);
        discovery.subsystems[0].listeners =
            vec![listener(1, "127.0.0.1:4420"), listener(2, "192.0.2.10:4420")];
        assert_eq!(summary(&discovery, "127.0.0.1:8009").len(), 3);
        let remote = summary(&discovery, "192.0.2.10:8009");
        assert_eq!(remote, [(2, "open".into(), "192.0.2.10 4420".into())]);
    }
}
