//! Connect: who gets a queue, and what the others are told.

use raidfabric_initiator::raw::Connection;
use raidfabric_initiator::{Controller, Host, Options};
use raidfabric_protocol::fabrics::command::{ConnectResponse, FabricsCommand};
use raidfabric_protocol::fabrics::nqn::DISCOVERY_NQN;
use raidfabric_protocol::fabrics::{ConnectData, InvalidParameter, Property};
use raidfabric_protocol::nvme::admin::AdminCommand;
use raidfabric_protocol::nvme::cqe::Cqe;
use raidfabric_protocol::nvme::sgl::Sgl;
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::nvme::status::{CommandSpecific, Generic, Status};
use raidfabric_tests::host::{
    BOTH, Login, NONE, RawHost, completion, open, options, read_sqe, soon,
};
use raidfabric_tests::setup::{NQN, Setup, Target};
use zerocopy::IntoBytes;

const FRIEND: &str = "nqn.2014-08.org.example:friend";
const CLOSED: &str = "nqn.2026-11.io.raidfabric:closed";

fn target() -> Target {
    Setup::memory("raid1", 2, 4)
        .memory_array("b", "raid0", 2, 4)
        .subsystem(&format!(
            "{{ nqn: \"{CLOSED}\", hosts: [\"{FRIEND}\"], namespaces: [{{ nsid: 1, array: b }}] }}"
        ))
        .start()
}

/// A Connect with something changed, on a connection of its own.
struct Attempt {
    connection: Connection,
}

impl Attempt {
    async fn new(target: &Target) -> Self {
        Self { connection: open(target.address, NONE, Default::default()).await }
    }

    async fn send(&mut self, sqe: &Sqe, data: &[u8]) -> Cqe {
        self.connection.send_command(sqe, data).await.unwrap();
        completion(&mut self.connection).await.unwrap()
    }

    async fn refused(&mut self, login: &Login, parameter: InvalidParameter) {
        let cqe = login.send(&mut self.connection).await.unwrap();
        assert_eq!(cqe.status(), CommandSpecific::ConnectInvalidParameters.into(), "{parameter:?}");
        assert_eq!(cqe.dw0.get(), parameter.result(), "{parameter:?}");
    }

    async fn refused_data(
        &mut self,
        change: impl FnOnce(&mut ConnectData),
        parameter: InvalidParameter,
    ) {
        let login = Login::default();
        let mut data = login.data();
        change(&mut data);
        let cqe = self.send(&login.sqe(), data.as_bytes()).await;
        assert_eq!(cqe.status(), CommandSpecific::ConnectInvalidParameters.into(), "{parameter:?}");
        assert_eq!(cqe.dw0.get(), parameter.result(), "{parameter:?}");
    }

    /// After all refusals a Connect as it should be is accepted on the same connection.
    async fn accepted(mut self, login: &Login) -> (Connection, u16) {
        let cqe = login.send(&mut self.connection).await.unwrap();
        assert_eq!(cqe.status(), Status::SUCCESS);
        (self.connection, ConnectResponse::from_raw(cqe.dw0.get()).cntlid())
    }
}

#[tokio::test]
async fn admin_connects_that_are_refused() {
    let target = target();
    let mut attempt = Attempt::new(&target).await;
    let login = Login::default();
    let named = |subnqn: &str| Login { subnqn: subnqn.into(), ..Login::default() };
    for unknown in
        ["nqn.2026-11.io.raidfabric:nobody", "x", "", &NQN.to_uppercase(), &NQN[..NQN.len() - 1]]
    {
        attempt.refused(&named(unknown), InvalidParameter::SubNqn).await;
    }
    attempt.refused_data(|data| data.subnqn.fill(b'n'), InvalidParameter::SubNqn).await;
    attempt.refused_data(|data| data.hostnqn.fill(b'n'), InvalidParameter::HostNqn).await;
    attempt.refused_data(|data| data.hostnqn.fill(0), InvalidParameter::HostNqn).await;
    for cntlid in [0, 1, 7, 0xFFEF, 0xFFFE] {
        attempt.refused(&Login { cntlid, ..login.clone() }, InvalidParameter::CntlId).await;
    }
    for sqsize in [0, 4096, u16::MAX] {
        attempt.refused(&Login { sqsize, ..login.clone() }, InvalidParameter::SqSize).await;
    }
    // A host that the subsystem does not name.
    let cqe = named(CLOSED).send(&mut attempt.connection).await.unwrap();
    assert_eq!(cqe.status(), CommandSpecific::ConnectInvalidHost.into());
    // Record format, length of the data, no data at all.
    let mut sqe = login.sqe();
    sqe.cdw10 = 1.into();
    let cqe = attempt.send(&sqe, login.data().as_bytes()).await;
    assert_eq!(cqe.status(), CommandSpecific::ConnectIncompatibleFormat.into());
    let data = login.data();
    let short = Sqe { dptr: Sgl::in_capsule(0, 1020), ..login.sqe() };
    let cqe = attempt.send(&short, &data.as_bytes()[..1020]).await;
    assert_eq!(cqe.status(), Generic::DataSglLengthInvalid.into());
    assert!(!attempt.send(&login.sqe(), &[]).await.status().is_success());
    // Only then what is right.
    let friend = Login { host: Host::builder().nqn(FRIEND).build().unwrap(), ..named(CLOSED) };
    let (mut connection, first) = attempt.accepted(&friend).await;
    let cqe = login.send(&mut connection).await.unwrap();
    assert_eq!(cqe.status(), Generic::CommandSequenceError.into(), "a second Connect");
    let (_kept, second) = Attempt::new(&target).await.accepted(&login).await;
    assert_ne!(first, second);
    drop((connection, _kept));
    target.settle_and_stop().await;
}

#[tokio::test]
async fn nothing_comes_before_connect() {
    let target = target();
    let mut attempt = Attempt::new(&target).await;
    let get =
        FabricsCommand::PropertyGet { offset: Property::Cap.raw(), size: Property::Cap.size() };
    let early = [
        AdminCommand::KeepAlive.to_sqe(1),
        AdminCommand::Identify(Default::default()).to_sqe(2),
        AdminCommand::AsyncEventRequest.to_sqe(3),
        get.to_sqe(4),
        FabricsCommand::Disconnect { recfmt: 0 }.to_sqe(5),
        read_sqe(6, 0, 1),
        Sqe::new(0xEE, 7),
    ];
    for sqe in early {
        let cqe = attempt.send(&sqe, &[]).await;
        assert_eq!(cqe.cid, sqe.cid);
        assert_eq!(cqe.status(), Generic::CommandSequenceError.into());
    }
    let (connection, _) = attempt.accepted(&Login::default()).await;
    drop(connection);
    target.settle_and_stop().await;
}

#[tokio::test]
async fn io_connects_that_are_refused() {
    let target = target();
    let host = RawHost::connect(target.address, NONE).await;
    let good = host.io_login(1, 64);
    let mut attempt = Attempt::new(&target).await;
    let other = Host::random();
    attempt
        .refused(&Login { host: other.clone(), ..good.clone() }, InvalidParameter::HostNqn)
        .await;
    let mut data = good.data();
    data.hostid = *other.id().as_bytes();
    let cqe = attempt.send(&good.sqe(), data.as_bytes()).await;
    assert_eq!(cqe.status(), CommandSpecific::ConnectInvalidParameters.into());
    assert_eq!(cqe.dw0.get(), InvalidParameter::HostId.result());
    for cntlid in [host.cntlid + 1, 0, 0xFFFF] {
        attempt.refused(&Login { cntlid, ..good.clone() }, InvalidParameter::CntlId).await;
    }
    attempt
        .refused(&Login { subnqn: CLOSED.into(), ..good.clone() }, InvalidParameter::CntlId)
        .await;
    for qid in [65, 1000, u16::MAX] {
        attempt.refused(&Login { qid, ..good.clone() }, InvalidParameter::Qid).await;
    }
    for sqsize in [0, 1023, u16::MAX] {
        attempt.refused(&Login { sqsize, ..good.clone() }, InvalidParameter::SqSize).await;
    }
    let (mut first, _) = attempt.accepted(&good).await;
    let mut again = Attempt::new(&target).await;
    let cqe = good.send(&mut again.connection).await.unwrap();
    assert_eq!(cqe.status(), Generic::CommandSequenceError.into(), "queue 1 is in use");
    let cqe = good.send(&mut first).await.unwrap();
    assert_eq!(cqe.status(), Generic::CommandSequenceError.into(), "a second Connect");
    let (second, _) = again.accepted(&Login { qid: 2, ..good.clone() }).await;
    // An admin queue's commands are none of an I/O queue's.
    let get =
        FabricsCommand::PropertyGet { offset: Property::Csts.raw(), size: Property::Csts.size() };
    first.send_command(&get.to_sqe(1), &[]).await.unwrap();
    assert_eq!(completion(&mut first).await.unwrap().status(), Generic::InvalidOpcode.into());
    first.send_command(&FabricsCommand::Disconnect { recfmt: 1 }.to_sqe(1), &[]).await.unwrap();
    let cqe = completion(&mut first).await.unwrap();
    assert_eq!(cqe.status(), CommandSpecific::ConnectIncompatibleFormat.into());
    first.send_command(&FabricsCommand::Disconnect { recfmt: 0 }.to_sqe(1), &[]).await.unwrap();
    assert!(completion(&mut first).await.unwrap().status().is_success());
    assert!(soon("the end", first.receive_end()).await.unwrap().is_empty());
    drop((second, host));
    target.settle_and_stop().await;
}

#[tokio::test]
async fn discovery_controllers_have_no_io_queues() {
    let target = target();
    let login = Login { subnqn: DISCOVERY_NQN.into(), ..Login::default() };
    let host = RawHost::connect_with(target.address, NONE, Default::default(), login).await;
    let mut attempt = Attempt::new(&target).await;
    attempt.refused(&host.io_login(1, 32), InvalidParameter::Qid).await;
    drop((host, attempt));
    target.settle_and_stop().await;
}

/// A host that lost its connection and comes back at once gets a controller, again and again, and
/// none that another has.
#[tokio::test]
async fn reconnecting_at_once_after_a_reset() {
    let target = target();
    let host = Host::random();
    let options = Options { host, digests: BOTH, ..options() };
    let mut seen = Vec::new();
    for _ in 0..20 {
        let login = Login { host: options.host.clone(), ..Login::default() };
        let raw = RawHost::connect_with(target.address, BOTH, Default::default(), login).await;
        let queue = raw.io(1, 32).await;
        let controller = Controller::connect(target.address, NQN, &options).await.unwrap();
        assert_ne!(controller.cntlid(), raw.cntlid);
        let volume = controller.volume(1, 8).await.unwrap();
        queue.reset().unwrap();
        raw.admin.reset().unwrap();
        volume.read(0, 1).await.unwrap();
        seen.push(controller.cntlid());
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 20, "an identifier just freed is not the next one: {seen:?}");
    target.settle_and_stop().await;
}

/// The names of hosts are compared byte by byte, and need not be UUIDs.
#[tokio::test]
async fn any_legal_host_name() {
    let target = target();
    for name in [
        "nqn.2014-08.com.vmware:nvme:esx-01",
        "nqn.1988-11.com.dell:x",
        &format!("nqn.2014-08.org.x:{}", "y".repeat(205)),
    ] {
        let host = Host::builder().nqn(name).build().unwrap();
        let options = Options { host, ..options() };
        let controller = Controller::connect(target.address, NQN, &options).await.unwrap();
        let volume = controller.volume(1, 4).await.unwrap();
        volume.read(0, 1).await.unwrap();
        let refused = Controller::connect(target.address, CLOSED, &options).await.unwrap_err();
        assert_eq!(refused.status(), Some(CommandSpecific::ConnectInvalidHost.into()));
    }
    target.settle_and_stop().await;
}
