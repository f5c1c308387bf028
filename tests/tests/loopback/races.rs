//! Ends that come in the middle: resets, shutdowns, stops and lost connections while commands are
//! under way.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use raidfabric::config::memory::TRANSFER_MINIMUM_BYTES;
use raidfabric_initiator::raw::Connection;
use raidfabric_initiator::{Controller, Options};
use raidfabric_protocol::fabrics::{FabricsCommand, Property, PropertySize};
use raidfabric_protocol::nvme::io::IoCommand;
use raidfabric_protocol::nvme::registers::{Cc, Csts, ShutdownNotification, ShutdownStatus};
use raidfabric_protocol::nvme::sgl::Sgl;
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::nvme::status::{Generic, Status};
use raidfabric_protocol::tcp::PduAlignment;
use raidfabric_protocol::tcp::pdu::PduType;
use raidfabric_protocol::tcp::rules::H2cDataFields;
use raidfabric_tests::data::{Random, pattern};
use raidfabric_tests::host::{
    BOTH, NONE, RawHost, completion, inline_sqe, open, options, range, read_sqe, soon, volume,
    write_sqe,
};
use raidfabric_tests::setup::{NQN, Setup};

use crate::stuck::{STATES, stuck, tight};

fn disabled() -> Cc {
    Cc::default().with_iosqes(6).with_iocqes(4)
}

/// A queue with commands in every stage of a write: asked for, half sent, waiting for memory.
async fn busy_queue(host: &RawHost, qid: u16) -> Connection {
    let mut io = host.io(qid, 64).await;
    for cid in 0..40 {
        io.send_command(&write_sqe(cid, 0, 256), &[]).await.unwrap();
    }
    let r2t = soon("R2T", io.receive()).await.unwrap().r2t().unwrap();
    let length = r2t.r2tl.get();
    let fields = H2cDataFields {
        cccid: r2t.cccid.get(),
        ttag: r2t.ttag.get(),
        datao: r2t.r2to.get(),
        datal: length,
        last: true,
    };
    let bytes = io.data_bytes(&fields, &vec![0xEE; length as usize]);
    io.send(&bytes[..bytes.len() / 2]).await.unwrap();
    io
}

/// Writes whose data has not come whole are not done, a reset does not wait for their hosts, and
/// what comes after it is not overtaken by what was before.
#[tokio::test]
async fn a_reset_in_the_middle_of_writes() {
    let target = Setup::memory("raid10", 4, 8).setting("memory: { transfer: 8MiB }").start();
    let (controller, volume) = volume(target.address, 8).await;
    for turn in 0..6 {
        let content = pattern(turn, 256 * 4096);
        volume.write(0, content.clone()).await.unwrap();
        let mut host =
            RawHost::connect(target.address, if turn % 2 == 0 { NONE } else { BOTH }).await;
        let mut queues = Vec::new();
        for qid in 1..=3 {
            queues.push(busy_queue(&host, qid).await);
        }
        let start = Instant::now();
        assert!(host.set_cc(disabled()).await.status().is_success());
        assert!(start.elapsed() < Duration::from_secs(3), "reset took {:?}", start.elapsed());
        host.enable().await;
        // Queue 1 can be had at once, and is empty.
        let mut io = host.io(1, 64).await;
        io.send_command(&read_sqe(1, 0, 256), &[]).await.unwrap();
        let (_, found) = soon("data", io.receive_response()).await.unwrap();
        assert!(found == content, "a write without all its data was done");
        drop((queues, io, host));
    }
    drop((controller, volume));
    target.settle_and_stop().await;
}

/// A shutdown ends although hosts owe data.
#[tokio::test]
async fn a_shutdown_in_the_middle_of_writes() {
    let target = Setup::memory("raid1", 2, 8).start();
    let mut host = RawHost::connect(target.address, NONE).await;
    let mut queues = Vec::new();
    for qid in 1..=3 {
        queues.push(busy_queue(&host, qid).await);
    }
    let start = Instant::now();
    let normal = ShutdownNotification::Normal.raw();
    let cc = disabled().with_en(true).with_shn(normal);
    assert!(host.set_cc(cc).await.status().is_success());
    loop {
        let get =
            FabricsCommand::PropertyGet { offset: Property::Csts.raw(), size: PropertySize::Four };
        host.admin.send_command(&get.to_sqe(8), &[]).await.unwrap();
        let csts = Csts::from_raw(completion(&mut host.admin).await.unwrap().dw0.get());
        if csts.shst() == ShutdownStatus::Complete.raw() {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(3), "the shutdown does not end");
    }
    drop((host, queues));
    target.settle_and_stop().await;
}

/// A stop ends, clean, whatever state hosts are in.
#[tokio::test]
async fn a_stop_with_stuck_hosts() {
    for cores in [1, 2] {
        let target = Setup::memory("raid10", 4, 4)
            .cores(cores)
            .setting(&tight())
            .setting("reply_timeout: 60s")
            .start();
        let mut all = Vec::new();
        for state in STATES {
            for _ in 0..2 {
                all.push(stuck(&target, state).await);
            }
        }
        let start = Instant::now();
        target.stop();
        assert!(start.elapsed() < Duration::from_secs(5), "the stop took {:?}", start.elapsed());
        drop(all);
    }
}

/// A stop under load, again and again: each command has its end, with data or with the connection.
#[tokio::test]
async fn a_stop_under_load() {
    for turn in 0..5u64 {
        let target = Setup::memory("raid10", 4, 8).start();
        let address = target.address;
        let mut tasks = Vec::new();
        for host in 0..4 {
            let digests = if host % 2 == 0 { NONE } else { BOTH };
            let options = Options { digests, ..options() };
            let controller = Controller::connect(address, NQN, &options).await.unwrap();
            let volume = controller.volume(1, 32).await.unwrap();
            for slot in 0..16u64 {
                let volume = volume.clone();
                tasks.push(tokio::spawn(async move {
                    let mut random = Random::new(turn * 1000 + slot);
                    let mut done = 0u64;
                    loop {
                        let blocks = 1 + random.below(64);
                        let lba = random.below(4000 - blocks);
                        let outcome = match random.below(2) {
                            0 => volume.write(lba, random.bytes(blocks as usize * 4096)).await,
                            _ => volume.read(lba, blocks as u32).await.map(|_| ()),
                        };
                        match outcome {
                            Ok(()) => done += 1,
                            Err(error) if error.is_connection_lost() => return done,
                            Err(error) => panic!("{error}"),
                        }
                    }
                }));
            }
            tasks.push(tokio::spawn(async move {
                let _ = controller.async_event().await;
                0
            }));
        }
        tokio::time::sleep(Duration::from_millis(50 + 40 * turn)).await;
        let stopping = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            target.stop();
            start.elapsed()
        });
        let took = soon("the stop", stopping).await.unwrap();
        assert!(took < Duration::from_secs(5), "the stop took {took:?}");
        let mut done = 0;
        for task in tasks {
            done += soon("a host", task).await.unwrap();
        }
        assert!(done > 0);
    }
}

/// I/O queues that connect while their association ends, or is reset, on another core: none
/// outlives it.
#[tokio::test]
async fn io_connects_while_the_association_ends() {
    let target = Setup::memory("raid0", 2, 4).start();
    for turn in 0..60u16 {
        let mut host = RawHost::connect(target.address, NONE).await;
        let mut queues = Vec::new();
        for qid in 1..=4 {
            let mut queue = open(target.address, NONE, PduAlignment::NONE).await;
            let login = host.io_login(qid, 16);
            queue
                .send_command(&login.sqe(), zerocopy::IntoBytes::as_bytes(&login.data()))
                .await
                .unwrap();
            queues.push(queue);
        }
        if turn % 2 == 0 {
            host.admin.reset().unwrap();
            for mut queue in queues {
                // Refused or ended, never left alone: the connection is closed if it was taken in.
                let refused = match soon("the outcome", queue.receive()).await {
                    Ok(pdu) => !pdu.response().unwrap().status().is_success(),
                    Err(_) => continue,
                };
                if !refused {
                    soon("the end", queue.receive_end()).await.unwrap();
                }
            }
        } else {
            assert!(host.set_cc(disabled()).await.status().is_success());
            for queue in &mut queues {
                if let Ok(pdu) = soon("the outcome", queue.receive()).await
                    && pdu.response().unwrap().status().is_success()
                {
                    soon("the end", queue.receive_end()).await.unwrap();
                }
            }
        }
    }
    target.settle_and_stop().await;
}

/// Hosts whose connections are cut in the middle of writes over several chunks of a mirror: each
/// block is then the last acknowledged version or one that was sent after it, no block is torn, and
/// every copy says the same.
#[tokio::test]
async fn hosts_cut_off_in_the_middle_of_writes() {
    const REGIONS: u64 = 24;
    const BLOCKS: u64 = 40;
    let content = |region: u64, version: u64| -> Vec<u8> {
        let block = |n: u64| match version {
            0 => vec![0; 4096],
            _ => pattern(version << 32 | region << 16 | n, 4096).to_vec(),
        };
        (0..BLOCKS).flat_map(block).collect()
    };
    let target = Setup::memory("raid10", 4, 8).start();
    // For each region, the newest version that was sent, and that was acknowledged.
    let known = Rc::new(RefCell::new(vec![(0u64, 0u64); REGIONS as usize]));
    for round in 0..6u64 {
        let local = tokio::task::LocalSet::new();
        let (mut controllers, mut volumes) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let (controller, volume) = volume(target.address, 16).await;
            controllers.push(controller);
            volumes.push(volume);
        }
        for region in 0..REGIONS {
            let (volume, known) = (volumes[region as usize % 4].clone(), Rc::clone(&known));
            local.spawn_local(async move {
                loop {
                    let version = known.borrow()[region as usize].0 + 1;
                    known.borrow_mut()[region as usize].0 = version;
                    let data = content(region, version).into();
                    if volume.write(region * 41, data).await.is_err() {
                        return;
                    }
                    known.borrow_mut()[region as usize].1 = version;
                }
            });
        }
        local.run_until(tokio::time::sleep(Duration::from_millis(150 + 17 * round))).await;
        drop((local, volumes, controllers));
        target.settled().await;
        let (controller, volume) = volume(target.address, 16).await;
        for region in 0..REGIONS {
            let (sent, acknowledged) = known.borrow()[region as usize];
            let candidates: Vec<_> =
                (acknowledged..=sent).map(|version| content(region, version)).collect();
            let first = volume.read(region * 41, BLOCKS as u32).await.unwrap();
            for (n, block) in first.chunks(4096).enumerate() {
                let whole = candidates.iter().any(|all| &all[n * 4096..][..4096] == block);
                assert!(whole, "round {round}: block {n} of region {region} is torn or old");
            }
            let again = (0..6).map(|_| volume.read(region * 41, BLOCKS as u32));
            for found in futures_of(again).await {
                assert!(found.unwrap() == first, "round {round}: region {region}: copies differ");
            }
        }
        drop((controller, volume));
    }
    assert!(known.borrow().iter().all(|(_, acknowledged)| *acknowledged > 0), "all were written");
    target.settle_and_stop().await;
}

/// The outcomes of futures that are under way at the same time.
async fn futures_of<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.map(Box::pin).collect();
    let mut outcomes = Vec::new();
    std::future::poll_fn(|context| {
        pending.retain_mut(|future| match future.as_mut().poll(context) {
            std::task::Poll::Ready(outcome) => {
                outcomes.push(outcome);
                false
            }
            std::task::Poll::Pending => true,
        });
        if pending.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    outcomes
}

/// A queue that its host has disconnected can be connected again at once, also while commands were
/// under way.
#[tokio::test]
async fn a_queue_is_disconnected_and_connected_again() {
    let target = Setup::memory("raid1", 2, 4).start();
    let host = RawHost::connect(target.address, NONE).await;
    for turn in 0..30u16 {
        let mut io = host.io(1, 32).await;
        let reads = turn % 5;
        for cid in 0..reads {
            io.send_command(&read_sqe(cid, 0, 64), &[]).await.unwrap();
        }
        let leave = FabricsCommand::Disconnect { recfmt: 0 };
        io.send_command(&leave.to_sqe(31), &[]).await.unwrap();
        for _ in 0..reads {
            assert_eq!(soon("data", io.receive_response()).await.unwrap().1.len(), 64 * 4096);
        }
        let cqe = completion(&mut io).await.unwrap();
        assert_eq!((cqe.cid.get(), cqe.status()), (31, Status::SUCCESS));
        // The next turn comes while this connection is still there.
        if turn % 2 == 0 {
            assert!(soon("the end", io.receive_end()).await.unwrap().is_empty());
        }
    }
    drop(host);
    target.settle_and_stop().await;
}

/// More connections than there is memory for: the surplus is turned away, the others go on, and
/// later there is room again.
#[tokio::test]
async fn more_connections_than_memory() {
    let transfer = 64 * TRANSFER_MINIMUM_BYTES;
    let target = Setup::memory("raid0", 2, 4)
        .cores(1)
        .setting(&format!("memory: {{ capsule: 1MiB, transfer: {transfer} }}"))
        .start();
    let (controller, volume) = volume(target.address, 8).await;
    for _ in 0..2 {
        let mut accepted = Vec::new();
        let mut refused = 0;
        for _ in 0..120 {
            let mut connection = Connection::connect(target.address).await.unwrap();
            match soon("ICResp", connection.initialize(NONE, PduAlignment::NONE)).await {
                Ok(_) => accepted.push(connection),
                Err(_) => refused += 1,
            }
        }
        assert!(refused >= 50, "{refused} refused");
        assert!(accepted.len() >= 60 - 2, "{} accepted", accepted.len());
        volume.write(7, pattern(3, 1 << 20)).await.unwrap();
        assert!(volume.read(7, 256).await.unwrap() == pattern(3, 1 << 20));
        drop(accepted);
        target.settled_at("they left", |in_use| in_use.connections == 2).await;
    }
    drop((controller, volume));
    target.settle_and_stop().await;
}

/// While a core is saturated with I/O its admin queues are served.
#[tokio::test]
async fn admin_commands_are_served_under_load() {
    let target = Setup::memory("raid0", 2, 8).cores(1).start();
    let mut tasks = Vec::new();
    let mut controllers = Vec::new();
    let stop = std::rc::Rc::new(std::cell::Cell::new(false));
    let local = tokio::task::LocalSet::new();
    for _ in 0..4 {
        let (controller, volume) = volume(target.address, 128).await;
        for slot in 0..32u64 {
            let (volume, stop) = (volume.clone(), std::rc::Rc::clone(&stop));
            tasks.push(local.spawn_local(async move {
                while !stop.get() {
                    volume.read(slot * 64, 16).await.unwrap();
                }
            }));
        }
        controllers.push(controller);
    }
    let measured = async {
        let mut worst = Duration::ZERO;
        for turn in 0..40 {
            let start = Instant::now();
            controllers[turn % 4].keep_alive().await.unwrap();
            worst = worst.max(start.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.set(true);
        worst
    };
    let worst = soon("keep-alives", local.run_until(measured)).await;
    soon("the reads", local).await;
    // The host's own share of a processor is in it; the target's is under 100 ms.
    assert!(worst < Duration::from_secs(2), "a keep-alive took {worst:?}");
    drop((tasks, controllers));
    target.settle_and_stop().await;
}

/// Odd but legal: in-capsule data at an offset, data with a command that has none, a queue of two
/// entries, and fused commands, which are not.
#[tokio::test]
async fn odd_commands() {
    let target = Setup::memory("raid1", 2, 4).start();
    let host = RawHost::connect(target.address, BOTH).await;
    let mut io = host.io(1, 2).await;
    let content = pattern(1, 3 * 4096);
    let sqe = Sqe { dptr: Sgl::in_capsule(4096, 2 * 4096), ..write_sqe(1, 3, 2) };
    io.send_command(&sqe, &content).await.unwrap();
    assert!(completion(&mut io).await.unwrap().status().is_success());
    io.send_command(&read_sqe(2, 3, 2), &content[..4096]).await.unwrap();
    let (_, found) = soon("data", io.receive_response()).await.unwrap();
    assert!(found == content[4096..], "the data at the offset");
    let flush = IoCommand::Flush { nsid: 1 }.to_sqe(3);
    io.send_command(&flush, &content[..512]).await.unwrap();
    assert!(completion(&mut io).await.unwrap().status().is_success());
    let bad: [(Sqe, Generic); 4] = [
        (
            Sqe { dptr: Sgl::in_capsule(8193, 4096), ..write_sqe(4, 0, 1) },
            Generic::DataSglLengthInvalid,
        ),
        (
            Sqe { dptr: Sgl::in_capsule(u64::MAX, 4096), ..write_sqe(4, 0, 1) },
            Generic::SglOffsetInvalid,
        ),
        (
            Sqe { dptr: Sgl::in_capsule(12289, 4096), ..write_sqe(4, 0, 1) },
            Generic::SglOffsetInvalid,
        ),
        (
            Sqe { dptr: Sgl::in_capsule(0, 4096), ..read_sqe(4, 0, 1) },
            Generic::SglDescriptorTypeInvalid,
        ),
    ];
    for (sqe, expected) in bad {
        io.send_command(&sqe, &content).await.unwrap();
        let cqe = completion(&mut io).await.unwrap();
        assert_eq!(cqe.status(), expected.into());
    }
    for fuse in 1..4 {
        let sqe = inline_sqe(5, 0, 1);
        let sqe = Sqe { flags: sqe.flags.with_fuse(fuse), ..sqe };
        io.send_command(&sqe, &content[..4096]).await.unwrap();
        let refused: Status = Generic::InvalidField.into();
        assert_eq!(completion(&mut io).await.unwrap().status(), refused, "FUSE {fuse}");
    }
    let untouched = range(0, 1);
    let sqe = Sqe { dptr: Sgl::transport(4096), ..IoCommand::Read(untouched).to_sqe(6) };
    io.send_command(&sqe, &[]).await.unwrap();
    let pdu = soon("data", io.receive()).await.unwrap();
    assert_eq!(pdu.pdu_type(), Some(PduType::C2hData));
    assert!(pdu.payload().iter().all(|byte| *byte == 0));
    drop((io, host));
    target.settle_and_stop().await;
}
