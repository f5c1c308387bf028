//! The initiator against a small target over loopback: every command, every way to move data,
//! and what each mistake of a controller becomes.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use common::{Knobs, NGUID, NQN, UUID, start};
use raidfabric_initiator::queue::{Data, Queue};
use raidfabric_initiator::{Controller, Error, Host, Options, raw};
use raidfabric_protocol::nvme::feature::FeatureId;
use raidfabric_protocol::nvme::io::IoCommand;
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::nvme::status::{CommandSpecific, Generic};
use raidfabric_protocol::tcp::pdu::PduType;
use raidfabric_protocol::tcp::{Digests, FatalErrorStatus, PduAlignment};

fn pattern(seed: u8, bytes: usize) -> Bytes {
    (0..bytes).map(|i| (i as u8).wrapping_mul(7) ^ (i >> 8) as u8 ^ seed).collect()
}

fn quick() -> Options {
    Options { timeout: Duration::from_secs(5), ..Options::default() }
}

/// Every size, from one block to beyond each limit, in both directions.
async fn write_and_read(knobs: Knobs, options: Options) {
    let (address, shared) = start(knobs).await;
    let controller = Controller::connect(address, NQN, &options).await.unwrap();
    let volume = controller.volume(1, 16).await.unwrap();
    for (seed, blocks) in [1u32, 2, 7, 8, 9, 16, 17, 64, 128, 129, 512, 2048].iter().enumerate() {
        let data = pattern(seed as u8, *blocks as usize * 512);
        volume.write(3, data.clone()).await.unwrap();
        assert!(volume.read(3, *blocks).await.unwrap() == data, "{blocks} blocks");
        assert!(shared.data.lock().unwrap()[3 * 512..][..data.len()] == data[..]);
    }
    volume.write_durably(0, pattern(1, 4096)).await.unwrap();
    volume.flush().await.unwrap();
}

#[tokio::test]
async fn data_moves_with_every_digest_and_alignment() {
    for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
        for (hpda, cpda) in [(0, 0), (15, 0), (0, 31), (7, 3)] {
            let digests = Digests { header, data };
            let cpda = PduAlignment::from_wire(cpda).unwrap();
            let hpda = PduAlignment::from_wire(hpda).unwrap();
            let knobs = Knobs { cpda, ..Knobs::default() };
            write_and_read(knobs, Options { digests, hpda, ..quick() }).await;
        }
    }
}

#[tokio::test]
async fn data_moves_in_many_small_pdus() {
    let knobs = Knobs {
        in_capsule_bytes: 0,
        max_h2c_data_bytes: 4096,
        r2t_bytes: 10_000,
        c2h_bytes: 1000,
        ..Knobs::default()
    };
    write_and_read(knobs, Options { digests: Digests { header: true, data: true }, ..quick() })
        .await;
}

#[tokio::test]
async fn a_controller_describes_itself() {
    let (address, shared) = start(Knobs::default()).await;
    let host = Host::builder().nqn("nqn.2026-11.io.example:host").build().unwrap();
    let options = Options { host, ..quick() };
    let controller = Controller::connect(address, NQN, &options).await.unwrap();
    let other = Controller::connect(address, NQN, &options).await.unwrap();
    assert_ne!(controller.cntlid(), other.cntlid());
    assert_eq!(controller.namespaces().await.unwrap(), [1]);
    let namespace = controller.namespace(1).await.unwrap();
    assert_eq!((namespace.block_bytes, namespace.blocks), (512, 32 * 1024));
    assert_eq!(namespace.size_bytes(), 16 << 20);
    assert_eq!(namespace.nguid, NGUID);
    assert_eq!(*namespace.uuid.unwrap().as_bytes(), UUID);
    assert_eq!(namespace.max_transfer_bytes, Some(1 << 20));
    assert!(matches!(controller.namespace(2).await, Err(Error::Unsupported(_))));
    assert_eq!(controller.smart_log().await.unwrap()[..], [7; 512]);
    assert_eq!(controller.get_feature(FeatureId::KeepAliveTimer, 0).await.unwrap().0, 15_000);
    assert_eq!(controller.set_number_of_queues(100).await.unwrap(), 8);
    controller.keep_alive().await.unwrap();
    assert_eq!(shared.keep_alives.load(Ordering::SeqCst), 1);
    let unknown = controller.log_page(0x99, 0, 0, 64, false).await.unwrap_err();
    assert_eq!(unknown.status(), Some(CommandSpecific::InvalidLogPage.into()));
    assert!(unknown.to_string().starts_with("Get Log Page: "), "{unknown}");
    controller.shutdown().await.unwrap();
}

#[tokio::test]
async fn discovery_lists_subsystems() {
    let (address, _) = start(Knobs::default()).await;
    let entries = Controller::discover(address, &quick()).await.unwrap();
    assert_eq!(entries.len(), 6);
    for (entry, port) in entries.iter().zip(1..) {
        assert_eq!(entry.portid.get(), port);
        assert_eq!(entry.subsystem_nqn(), Ok(NQN));
        assert_eq!(entry.address(), "127.0.0.1");
        assert_eq!(entry.service(), address.port().to_string());
    }
}

#[tokio::test]
async fn zeroes_and_deallocation() {
    let (address, shared) = start(Knobs::default()).await;
    let controller = Controller::connect(address, NQN, &quick()).await.unwrap();
    let volume = controller.volume(1, 4).await.unwrap();
    volume.write(0, pattern(9, 64 * 512)).await.unwrap();
    volume.write_zeroes(2, 3, true).await.unwrap();
    volume.deallocate(&[(10, 2), (20, 1)]).await.unwrap();
    let data = shared.data.lock().unwrap().clone();
    for block in 0..64 {
        let zero = [2, 3, 4, 10, 11, 20].contains(&block);
        let bytes = &data[block * 512..][..512];
        assert_eq!(bytes.iter().all(|byte| *byte == 0), zero, "block {block}");
    }
    // What an entry cannot express is refused here, what the volume has not by the controller.
    assert!(matches!(volume.read(0, 0).await, Err(Error::Invalid(_))));
    assert!(matches!(volume.read(0, 65_537).await, Err(Error::Invalid(_))));
    assert!(matches!(volume.write(0, pattern(0, 100)).await, Err(Error::Invalid(_))));
    assert!(matches!(volume.deallocate(&[]).await, Err(Error::Invalid(_))));
    let beyond = volume.read(32 * 1024 - 1, 2).await.unwrap_err();
    assert_eq!(beyond.status(), Some(Generic::LbaOutOfRange.into()));
    volume.read(32 * 1024 - 1, 1).await.unwrap();
}

/// Hundreds of callers share a queue of 8: all get their own data.
#[tokio::test]
async fn many_callers_share_a_queue() {
    let (address, _) = start(Knobs::default()).await;
    let controller = Controller::connect(address, NQN, &quick()).await.unwrap();
    let volume = controller.volume(1, 8).await.unwrap();
    let mut tasks = Vec::new();
    for caller in 0..300u64 {
        let volume = volume.clone();
        tasks.push(tokio::spawn(async move {
            let blocks = 1 + (caller % 40) as u32;
            let data = pattern(caller as u8, blocks as usize * 512);
            volume.write(caller * 64, data.clone()).await.unwrap();
            assert!(volume.read(caller * 64, blocks).await.unwrap() == data);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn success_comes_only_without_flow_control() {
    for (ask, grant) in [(false, true), (true, false), (true, true)] {
        let knobs = Knobs { grant_no_flow_control: grant, ..Knobs::default() };
        let (address, shared) = start(knobs).await;
        let options = Options { disable_sq_flow_control: ask, ..quick() };
        let controller = Controller::connect(address, NQN, &options).await.unwrap();
        let volume = controller.volume(1, 4).await.unwrap();
        assert_eq!(volume.queue().is_sq_flow_control_disabled(), ask && grant);
        let before = shared.successes.load(Ordering::SeqCst);
        volume.read(0, 8).await.unwrap();
        let by_success = shared.successes.load(Ordering::SeqCst) - before;
        assert_eq!(by_success, usize::from(ask && grant));
    }
}

#[tokio::test]
async fn events_arrive() {
    let (address, shared) = start(Knobs::default()).await;
    let controller = Controller::connect(address, NQN, &quick()).await.unwrap();
    let event = controller.async_event();
    let send = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let senders = std::mem::take(&mut *shared.events.lock().unwrap());
        senders.iter().for_each(|sender| {
            let _ = sender.send(0x04_00_02);
        });
    };
    let (event, ()) = tokio::join!(event, send);
    let event = event.unwrap();
    assert_eq!((event.kind(), event.information(), event.log()), (2, 0, 4));
}

#[tokio::test]
async fn keep_alives_go_out_by_themselves() {
    let (address, shared) = start(Knobs::default()).await;
    let options = Options { keep_alive: Duration::from_millis(40), ..quick() };
    let controller = Controller::connect(address, NQN, &options).await.unwrap();
    let sent = || shared.keep_alives.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(sent() >= 4, "{} keep-alives in 300 ms", sent());
    drop(controller);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let before = sent();
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(sent(), before, "keep-alives after the end");
    assert_eq!(shared.connections.load(Ordering::SeqCst), 0, "the connection is left open");
}

#[tokio::test]
async fn refusals_are_named() {
    let (address, _) = start(Knobs { mqes: 31, queues: 1, ..Knobs::default() }).await;
    let options = quick();
    let error = Controller::connect(address, "nqn.2026-11.io.example:none", &options).await;
    let error = error.unwrap_err();
    assert_eq!(error.status(), Some(CommandSpecific::ConnectInvalidParameters.into()));
    assert!(error.to_string().starts_with("Connect: "), "{error}");
    let controller = Controller::connect(address, NQN, &options).await.unwrap();
    let error = controller.io_queue(32).await.unwrap_err();
    assert!(error.to_string().contains("hold 31 commands"), "{error}");
    let first = controller.io_queue(31).await.unwrap();
    assert_eq!((first.qid(), first.depth()), (1, 31));
    let error = controller.io_queue(1).await.unwrap_err();
    assert!(error.to_string().contains("grants 1"), "{error}");
    first.disconnect().await.unwrap();
    // Nobody listens there.
    let nobody = "127.0.0.1:1".parse().unwrap();
    let error = Controller::connect(nobody, NQN, &options).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }) && error.is_connection_lost());
}

#[tokio::test]
async fn refused_digests_are_an_error() {
    let knobs = Knobs { digests: Digests { header: true, data: false }, ..Knobs::default() };
    let (address, _) = start(knobs).await;
    let options = Options { digests: Digests { header: true, data: true }, ..quick() };
    let error = Controller::connect(address, NQN, &options).await.unwrap_err();
    assert!(matches!(error, Error::DigestRefused("data")), "{error}");
}

#[tokio::test]
async fn a_controller_that_makes_no_sense_is_refused() {
    let (address, _) = start(Knobs { wrong_cntlid: true, ..Knobs::default() }).await;
    let error = Controller::connect(address, NQN, &quick()).await.unwrap_err();
    assert!(error.to_string().contains("CNTLID"), "{error}");
    let (address, _) = start(Knobs { never_ready: true, ..Knobs::default() }).await;
    let error = Controller::connect(address, NQN, &quick()).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { what: "CSTS.RDY", .. }), "{error}");
}

#[tokio::test]
async fn damaged_and_short_reads_are_found() {
    let options = Options { digests: Digests { header: false, data: true }, ..quick() };
    let (address, _) = start(Knobs { damage_reads: 1, ..Knobs::default() }).await;
    let controller = Controller::connect(address, NQN, &options).await.unwrap();
    let volume = controller.volume(1, 4).await.unwrap();
    let error = volume.read(0, 8).await.unwrap_err();
    assert!(matches!(error, Error::DataDigest { command: "Read" }), "{error}");
    volume.read(0, 8).await.unwrap();

    let (address, _) = start(Knobs { short_reads_by: 4, ..Knobs::default() }).await;
    let controller = Controller::connect(address, NQN, &quick()).await.unwrap();
    let volume = controller.volume(1, 4).await.unwrap();
    let error = volume.read(0, 1).await.unwrap_err();
    assert!(
        matches!(error, Error::ShortData { received_bytes: 508, expected_bytes: 512, .. }),
        "{error}"
    );
}

/// A controller that breaks the protocol: everybody who waits learns it, and it is told.
#[tokio::test]
async fn protocol_faults_reach_every_caller() {
    let (address, _) = start(Knobs { stray_r2t_on_flush: true, ..Knobs::default() }).await;
    let controller = Controller::connect(address, NQN, &quick()).await.unwrap();
    let volume = controller.volume(1, 4).await.unwrap();
    let (one, two) = tokio::join!(volume.flush(), volume.flush());
    for error in [one.unwrap_err(), two.unwrap_err(), volume.read(0, 1).await.unwrap_err()] {
        assert!(error.is_connection_lost(), "{error}");
    }
    // The admin queue is another connection.
    controller.keep_alive().await.unwrap();

    let (address, _) = start(Knobs { close_on_flush: true, ..Knobs::default() }).await;
    let controller = Controller::connect(address, NQN, &quick()).await.unwrap();
    let volume = controller.volume(1, 4).await.unwrap();
    let error = volume.flush().await.unwrap_err();
    assert!(matches!(error, Error::Closed | Error::Io(_)), "{error}");
}

/// The engine without a task: a queue kept full, completions in batches, buffers reused.
#[tokio::test]
async fn the_engine_keeps_a_queue_full() {
    const COMMANDS: u64 = 2000;
    let (address, _) = start(Knobs::default()).await;
    let options = Options { disable_sq_flow_control: true, ..quick() };
    let controller = Controller::connect(address, NQN, &options).await.unwrap();
    let volume = controller.volume(1, 1).await.unwrap();
    volume.write(0, pattern(5, 64 * 4096)).await.unwrap();
    let expected = pattern(5, 64 * 4096);
    let mut queue: Queue = controller.engine(32).await.unwrap();
    let mut buffers: Vec<BytesMut> = (0..32).map(|_| BytesMut::zeroed(4096)).collect();
    let mut completions = Vec::new();
    let (mut submitted, mut completed) = (0, 0);
    while completed < COMMANDS {
        while submitted < COMMANDS && queue.free_slots() > 0 {
            let Some(buffer) = buffers.pop() else { break };
            let sqe = read_sqe(submitted % 64 * 8);
            queue.submit(sqe, Data::Read(buffer), submitted).unwrap();
            submitted += 1;
        }
        queue.turn(&mut completions).await.unwrap();
        for completion in completions.drain(..) {
            completion.check("Read").unwrap();
            let Data::Read(buffer) = completion.data else { unreachable!() };
            let start = (completion.token % 64) as usize * 4096;
            assert!(buffer[..] == expected[start..start + 4096]);
            buffers.push(buffer);
            completed += 1;
        }
    }
    assert_eq!((queue.outstanding(), buffers.len()), (0, 32));
    let full = (0..33).map(|n| queue.submit(read_sqe(0), Data::Discard(4096), n));
    assert_eq!(full.filter(Result::is_err).count(), 1, "one command too many is refused");
}

fn read_sqe(slba: u64) -> Sqe {
    let range = raidfabric_protocol::nvme::io::BlockRange {
        nsid: 1,
        slba,
        blocks: 8,
        fua: false,
        limited_retry: false,
        prinfo: Default::default(),
        storage_tag_check: false,
    };
    IoCommand::Read(range).to_sqe(0)
}

/// Raw mode: a test may be as hostile as it likes, and sees what it gets.
#[tokio::test]
async fn raw_connections_see_everything() {
    let (address, _) = start(Knobs::default()).await;
    let mut raw = raw::Connection::connect(address).await.unwrap();
    let digests = Digests { header: true, data: true };
    let response = raw.initialize(digests, PduAlignment::from_wire(15).unwrap()).await.unwrap();
    assert_eq!(response.dgst.digests(), digests);
    // A command before Connect reaches the target as a command.
    raw.send_command(&Sqe::new(0x02, 77), &[]).await.unwrap();
    let pdu = raw.receive().await.unwrap();
    assert_eq!(pdu.pdu_type(), Some(PduType::CapsuleResp));
    assert!(pdu.digests_match());
    assert_eq!(pdu.response().unwrap().cid.get(), 77);
    // A damaged header ends the connection with the right status.
    let mut damaged = raw.command_bytes(&Sqe::new(0x02, 78), &[1; 64]);
    damaged[20] ^= 1;
    raw.send(&damaged).await.unwrap();
    let termination = raw.receive_termination().await.unwrap();
    assert_eq!(termination.fes, FatalErrorStatus::HeaderDigestError.wire());
    let received = u32::from_le_bytes(damaged[72..76].try_into().unwrap());
    assert_eq!(termination.fei, received);
    assert_eq!(raw.receive_end().await.unwrap(), []);
    let raw = raw::Connection::connect(address).await.unwrap();
    raw.reset().unwrap();
}
