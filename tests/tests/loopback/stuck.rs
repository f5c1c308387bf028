//! Hosts that stop in the middle. Whatever state each is stuck in, all others go on at once; after
//! the reply timeout the stuck ones are gone, and nothing of them stays.

use std::time::{Duration, Instant};

use raidfabric::config::memory::{TRANSFER_MINIMUM_BYTES, WORKERS_PER_CORE};
use raidfabric_initiator::raw::Connection;
use raidfabric_initiator::{Controller, Volume};
use raidfabric_protocol::nvme::admin::{AdminCommand, GetLogPage};
use raidfabric_protocol::nvme::sgl::Sgl;
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::tcp::PduAlignment;
use raidfabric_protocol::tcp::pdu::PduType;
use raidfabric_protocol::tcp::rules::H2cDataFields;
use raidfabric_tests::data::pattern;
use raidfabric_tests::host::{
    Login, NONE, RawHost, inline_sqe, open, options, read_sqe, soon, volume, write_sqe,
};
use raidfabric_tests::setup::{NQN, Setup, Target};

/// What one command of an undisturbed host may take while others are stuck. On an idle machine it
/// is under a millisecond; the processors of a test run are shared.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Little memory, and yet enough for the minimum of each of these hosts.
pub(crate) fn tight() -> String {
    let transfer = 4 * 40 * TRANSFER_MINIMUM_BYTES;
    format!("memory: {{ capsule: 2MiB, transfer: {transfer} }}")
}

/// One data core with little memory, whose hosts have `timeout` for their part.
fn target(timeout: &str) -> Target {
    Setup::memory("raid10", 4, 4)
        .cores(1)
        .setting(&tight())
        .setting(&format!("reply_timeout: {timeout}"))
        .start()
}

/// A connection that is stuck, with what keeps it from being anything else.
pub(crate) struct Stuck {
    connection: Connection,
    _host: Option<RawHost>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    Silent,
    HalfInitialized,
    Initialized,
    UnreadReads,
    UnreadLogs,
    UnsentData,
    HalfSentData,
    HalfCapsule,
}

pub(crate) const STATES: [State; 8] = [
    State::Silent,
    State::HalfInitialized,
    State::Initialized,
    State::UnreadReads,
    State::UnreadLogs,
    State::UnsentData,
    State::HalfSentData,
    State::HalfCapsule,
];

/// Sends until the target takes no more.
async fn flood(connection: &mut Connection, bytes: &[u8], times: usize) {
    for _ in 0..times {
        let sent = tokio::time::timeout(Duration::from_millis(50), connection.send(bytes)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}

pub(crate) async fn stuck(target: &Target, state: State) -> Stuck {
    let address = target.address;
    let alone = |connection| Stuck { connection, _host: None };
    match state {
        State::Silent => alone(Connection::connect(address).await.unwrap()),
        State::HalfInitialized => {
            let mut connection = Connection::connect(address).await.unwrap();
            connection.send(&[0, 0, 128, 0, 128]).await.unwrap();
            alone(connection)
        }
        State::Initialized => alone(open(address, NONE, PduAlignment::NONE).await),
        State::UnreadLogs => {
            let mut host = RawHost::connect(address, NONE).await;
            let command = GetLogPage { lid: 5, numd: (1 << 18) - 1, ..GetLogPage::default() };
            let sqe = Sqe {
                dptr: Sgl::transport(1 << 20),
                ..AdminCommand::GetLogPage(command).to_sqe(1)
            };
            let bytes = host.admin.command_bytes(&sqe, &[]);
            flood(&mut host.admin, &bytes, 30).await;
            let admin = Connection::connect(address).await.unwrap();
            let connection = std::mem::replace(&mut host.admin, admin);
            Stuck { connection, _host: None }
        }
        State::UnreadReads | State::UnsentData | State::HalfSentData | State::HalfCapsule => {
            let host = RawHost::connect(address, NONE).await;
            let mut io = host.io(1, 64).await;
            for cid in 0..63 {
                let sqe = match state {
                    State::UnreadReads => read_sqe(cid, 0, 256),
                    _ => write_sqe(cid, 0, 256),
                };
                if matches!(state, State::HalfCapsule) {
                    break;
                }
                io.send_command(&sqe, &[]).await.unwrap();
            }
            if matches!(state, State::HalfSentData) {
                let pdu = soon("R2T", io.receive()).await.unwrap();
                let r2t = pdu.r2t().unwrap();
                let fields = H2cDataFields {
                    cccid: r2t.cccid.get(),
                    ttag: r2t.ttag.get(),
                    datao: 0,
                    datal: r2t.r2tl.get(),
                    last: true,
                };
                let bytes = io.data_bytes(&fields, &vec![0; r2t.r2tl.get() as usize]);
                io.send(&bytes[..bytes.len() / 2]).await.unwrap();
            }
            if matches!(state, State::HalfCapsule) {
                let bytes = io.command_bytes(&inline_sqe(1, 0, 4), &[0; 4 * 4096]);
                io.send(&bytes[..bytes.len() / 2]).await.unwrap();
            }
            Stuck { connection: io, _host: Some(host) }
        }
    }
}

/// A host that does everything, none of which may take long.
async fn at_once(controller: &Controller, volume: &Volume, seed: u64, what: &str) {
    for blocks in [1usize, 4, 16, 256] {
        let data = pattern(seed, blocks * 4096);
        let start = Instant::now();
        soon(what, volume.write(512, data.clone())).await.unwrap();
        let written = start.elapsed();
        let found = soon(what, volume.read(512, blocks as u32)).await.unwrap();
        let both = start.elapsed();
        assert!(found == data, "{what}");
        assert!(both < AT_ONCE, "{what}: {blocks} blocks: written {written:?}, read {both:?}");
    }
    let start = Instant::now();
    soon(what, controller.keep_alive()).await.unwrap();
    soon(what, controller.smart_log()).await.unwrap();
    assert!(start.elapsed() < AT_ONCE, "{what}: admin commands {:?}", start.elapsed());
}

/// Commands of 1 MiB work with little memory, from several hosts at a time.
#[tokio::test]
async fn large_commands_with_little_memory() {
    let target = target("30s");
    let (mut tasks, mut controllers) = (Vec::new(), Vec::new());
    for host in 0..4u64 {
        let (controller, volume) = volume(target.address, 8).await;
        for slot in 0..4u64 {
            let volume = volume.clone();
            let number = host * 4 + slot;
            tasks.push(tokio::spawn(async move {
                let lba = number % 8 * 256;
                for turn in 0..3 {
                    let data = pattern(number * 100 + turn, 1 << 20);
                    if number < 8 {
                        volume.write(lba, data.clone()).await.unwrap();
                        assert!(volume.read(lba, 256).await.unwrap() == data);
                    } else {
                        volume.read(lba, 256).await.unwrap();
                    }
                }
            }));
        }
        controllers.push(controller);
    }
    for controller in &controllers {
        controller.keep_alive().await.unwrap();
    }
    for task in tasks {
        soon("large commands", task).await.unwrap();
    }
    drop(controllers);
    target.settle_and_stop().await;
}

/// One after the other, and then all at a time.
#[tokio::test]
async fn stuck_hosts_stop_nobody_else() {
    let target = target("60s");
    let controller = Controller::connect(target.address, NQN, &options()).await.unwrap();
    let volume = controller.volume(1, 8).await.unwrap();
    let mut all = Vec::new();
    for (seed, state) in STATES.into_iter().enumerate() {
        for _ in 0..2 {
            all.push(stuck(&target, state).await);
        }
        at_once(&controller, &volume, seed as u64, &format!("{state:?}")).await;
        // A host that comes now is served, too.
        let (late, other) = raidfabric_tests::host::volume(target.address, 4).await;
        at_once(&late, &other, 100 + seed as u64, &format!("late, {state:?}")).await;
    }
    drop((controller, volume));
    drop(all);
    target.settle_and_stop().await;
}

/// Each is closed once its time is over, by which what it held is free again.
#[tokio::test]
async fn stuck_hosts_are_closed_after_the_reply_timeout() {
    let target = target("1s");
    let controller = Controller::connect(target.address, NQN, &options()).await.unwrap();
    let volume = controller.volume(1, 8).await.unwrap();
    let mut ends = Vec::new();
    let begun = Instant::now();
    for state in STATES {
        let Stuck { mut connection, _host } = stuck(&target, state).await;
        ends.push(tokio::spawn(async move {
            // Not to be read before it is closed: then what is in the socket counts as taken.
            let limit = Duration::from_secs(4);
            let reads = !matches!(state, State::UnreadReads | State::UnreadLogs);
            let closed = if reads {
                tokio::time::timeout(limit, connection.receive_end()).await.is_ok()
            } else {
                tokio::time::sleep(limit).await;
                let rest = tokio::time::timeout(limit, connection.receive_end()).await;
                rest.is_ok()
            };
            assert!(closed, "{state:?}: still open after {:?}", begun.elapsed());
            drop(_host);
        }));
    }
    let mut failures = Vec::new();
    for end in ends {
        at_once(&controller, &volume, 3, "beside stuck hosts").await;
        if let Err(failure) = end.await {
            failures.push(failure.into_panic().downcast_ref::<String>().cloned());
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    let mine = |in_use: &raidfabric::server::InUse| {
        in_use.connections == 2 && in_use.commands == 0 && in_use.memory_bytes == 0
    };
    target.settled_at("stuck hosts", mine).await;
    at_once(&controller, &volume, 9, "after stuck hosts").await;
    drop((controller, volume));
    target.settle_and_stop().await;
}

/// Data that dribbles in blocks nobody, and is not taken for a stuck host.
#[tokio::test]
async fn a_dribbling_host_is_served() {
    let target = target("1s");
    let controller = Controller::connect(target.address, NQN, &options()).await.unwrap();
    let volume = controller.volume(1, 8).await.unwrap();
    let host = RawHost::connect(target.address, NONE).await;
    let mut io = host.io(1, 16).await;
    io.send_command(&write_sqe(1, 0, 8), &[]).await.unwrap();
    let r2t = soon("R2T", io.receive()).await.unwrap().r2t().unwrap();
    let content = pattern(11, 8 * 4096);
    let fields =
        H2cDataFields { cccid: 1, ttag: r2t.ttag.get(), datao: 0, datal: 8 * 4096, last: true };
    let bytes = io.data_bytes(&fields, &content);
    let (slow, rest) = bytes.split_at(300);
    for (turn, byte) in slow.iter().enumerate() {
        io.send(&[*byte]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        if turn % 50 == 0 {
            at_once(&controller, &volume, turn as u64, "beside a dribbling host").await;
        }
    }
    io.send(rest).await.unwrap();
    let pdu = soon("completion", io.receive()).await.unwrap();
    assert_eq!(pdu.pdu_type(), Some(PduType::CapsuleResp));
    assert!(pdu.response().unwrap().status().is_success());
    assert!(volume.read(0, 8).await.unwrap() == content);
    drop((io, host, controller, volume));
    target.settle_and_stop().await;
}

/// A queue that is idle for longer than the reply timeout is no stuck one.
#[tokio::test]
async fn idle_hosts_stay() {
    let target = target("1s");
    let (controller, volume) = volume(target.address, 8).await;
    volume.write(0, pattern(1, 4096)).await.unwrap();
    let login = Login { kato_ms: 0, ..Login::default() };
    let raw = RawHost::connect_with(target.address, NONE, PduAlignment::NONE, login).await;
    let mut io = raw.io(1, 8).await;
    tokio::time::sleep(Duration::from_millis(3500)).await;
    assert!(volume.read(0, 1).await.unwrap() == pattern(1, 4096));
    io.send_command(&read_sqe(1, 0, 1), &[]).await.unwrap();
    let (_, data) = soon("data", io.receive_response()).await.unwrap();
    assert!(data == pattern(1, 4096));
    drop((controller, volume, raw, io));
    target.settle_and_stop().await;
}

/// More commands wait for their hosts than a core works on at a time: others still work.
#[tokio::test]
async fn many_waiting_commands_leave_workers_for_others() {
    let target = Setup::memory("raid0", 2, 4).cores(1).setting("reply_timeout: 60s").start();
    let (controller, volume) = volume(target.address, 8).await;
    let mut hosts = Vec::new();
    for _ in 0..2 {
        let host = RawHost::connect(target.address, NONE).await;
        let mut queues = Vec::new();
        for qid in 1..=5 {
            let mut io = host.io(qid, 1023).await;
            let mut bytes = Vec::new();
            for cid in 0..1000 {
                bytes.extend(io.command_bytes(&write_sqe(cid, 0, 8), &[]));
            }
            io.send(&bytes).await.unwrap();
            queues.push(io);
        }
        hosts.push((host, queues));
    }
    let much = |in_use: &raidfabric::server::InUse| in_use.commands >= 10_000;
    const { assert!(WORKERS_PER_CORE < 10_000) };
    target.settled_at("10,000 commands", much).await;
    at_once(&controller, &volume, 5, "beside 10,000 commands that wait").await;
    drop((hosts, controller, volume));
    target.settle_and_stop().await;
}
