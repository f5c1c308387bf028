//! What comes and goes for long: connections by the hundreds, hosts that die under load, and a
//! target with nothing to do. The process is measured, so these tests run one at a time in it.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use raidfabric_initiator::{Controller, Options};
use raidfabric_tests::data::{Random, pattern};
use raidfabric_tests::host::{BOTH, NONE, RawHost, options, read_sqe, soon, volume, write_sqe};
use raidfabric_tests::setup::{NQN, Setup, Target};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a test while no other one runs.
fn alone(test: impl Future<Output = ()>) {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// Processor time that the target's threads have used.
fn target_time() -> Duration {
    let mut nanoseconds = 0u64;
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.starts_with("raidfabric-") {
            let times = fs::read_to_string(task.path().join("schedstat")).unwrap();
            nanoseconds += times.split_whitespace().next().unwrap().parse::<u64>().unwrap();
        }
    }
    Duration::from_nanos(nanoseconds)
}

async fn one_session(target: &Target, turn: u64) {
    let options = Options {
        digests: if turn.is_multiple_of(2) { NONE } else { BOTH },
        disable_sq_flow_control: turn.is_multiple_of(3),
        ..options()
    };
    let controller = Controller::connect(target.address, NQN, &options).await.unwrap();
    let volume = controller.volume(1, 16).await.unwrap();
    let blocks = 1 + turn % 64;
    let data = pattern(turn, blocks as usize * 4096);
    volume.write(turn % 100, data.clone()).await.unwrap();
    assert!(volume.read(turn % 100, blocks as u32).await.unwrap() == data);
    match turn % 4 {
        0 => controller.shutdown().await.unwrap(),
        1 => volume.queue().disconnect().await.unwrap(),
        2 => {
            let raw = RawHost::connect(target.address, options.digests).await;
            let io = raw.io(1, 16).await;
            io.reset().unwrap();
            raw.admin.reset().unwrap();
        }
        _ => {}
    }
}

/// As many descriptors and bytes after 200 sessions as after 60.
#[test]
fn two_hundred_sessions_leave_nothing() {
    alone(two_hundred_sessions_leave_nothing_alone());
}

async fn two_hundred_sessions_leave_nothing_alone() {
    let target = Setup::memory("raid10", 4, 4).start();
    for turn in 0..60 {
        one_session(&target, turn).await;
    }
    target.settled().await;
    let before = (descriptors(), resident());
    for turn in 60..200 {
        one_session(&target, turn).await;
    }
    target.settled().await;
    let after = (descriptors(), resident());
    assert_eq!(before.0, after.0, "descriptors");
    let grown = after.1.saturating_sub(before.1);
    println!("resident: {} KiB, and {} KiB more after 140 sessions", before.1 >> 10, grown >> 10);
    assert!(grown < 3 << 20, "{grown} bytes more after 140 sessions");
    target.settle_and_stop().await;
}

/// 64 connections at depth 64, of which some are killed at random, again and again.
#[test]
fn many_connections_with_random_kills() {
    alone(many_connections_with_random_kills_alone());
}

async fn many_connections_with_random_kills_alone() {
    let target = Setup::memory("raid10", 4, 8).start();
    let (controller, innocent) = volume(target.address, 16).await;
    let descriptors_before = descriptors();
    let watcher = {
        let innocent = innocent.clone();
        tokio::spawn(async move {
            let mut worst = Duration::ZERO;
            for turn in 0u64..150 {
                let start = Instant::now();
                let data = pattern(turn, 4 * 4096);
                innocent.write(4000, data.clone()).await.unwrap();
                assert!(innocent.read(4000, 4).await.unwrap() == data);
                worst = worst.max(start.elapsed());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            worst
        })
    };
    let mut random = Random::new(16);
    for round in 0..3 {
        let mut connections = Vec::new();
        let mut hosts = Vec::new();
        for _ in 0..8 {
            let host = RawHost::connect(target.address, random.choose(&[NONE, BOTH])).await;
            for qid in 1..=8 {
                connections.push(host.io(qid, 65).await);
            }
            hosts.push(host);
        }
        for connection in &mut connections {
            let mut burst = Vec::new();
            for cid in 0..64 {
                let blocks = random.choose(&[1u32, 8, 64]);
                let lba = random.below(3000);
                let sqe = match random.below(3) {
                    0 => write_sqe(cid, lba, blocks),
                    _ => read_sqe(cid, lba, blocks),
                };
                burst.extend(connection.command_bytes(&sqe, &[]));
            }
            // Parts of it arrive before the kill.
            let length = random.below(burst.len() as u64 + 1) as usize;
            let _ =
                tokio::time::timeout(Duration::from_millis(100), connection.send(&burst[..length]))
                    .await;
        }
        while !connections.is_empty() {
            let at = random.below(connections.len() as u64) as usize;
            let mut connection = connections.swap_remove(at);
            if random.below(4) == 0 {
                let limit = Duration::from_millis(1);
                let _ = tokio::time::timeout(limit, connection.receive()).await;
            }
            if random.below(2) == 0 {
                connection.reset().unwrap();
            }
        }
        drop(hosts);
        let alone =
            |in_use: &raidfabric::server::InUse| in_use.connections == 2 && in_use.controllers == 1;
        target.settled_at(&format!("round {round}"), alone).await;
    }
    let worst = soon("the innocent host", watcher).await.unwrap();
    println!("an innocent write and read took at most {worst:?}");
    assert!(worst < Duration::from_secs(3), "an innocent host had to wait {worst:?}");
    let start = Instant::now();
    while descriptors() != descriptors_before && start.elapsed() < Duration::from_secs(5) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(descriptors(), descriptors_before, "descriptors");
    drop((controller, innocent));
    target.settle_and_stop().await;
}

/// How many bytes a host is asked for that sends none of them: what it can get of the memory.
async fn asked_for(target: &Target) -> u64 {
    let host = RawHost::connect(target.address, NONE).await;
    let mut io = host.io(1, 65).await;
    for cid in 0..64 {
        io.send_command(&write_sqe(cid, 0, 256), &[]).await.unwrap();
    }
    let mut bytes = 0;
    let quiet = Duration::from_millis(300);
    while let Ok(pdu) = tokio::time::timeout(quiet, io.receive()).await {
        bytes += u64::from(pdu.unwrap().r2t().unwrap().r2tl.get());
    }
    bytes
}

/// Hosts that die while memory is short, and others wait for it, leave all of it to those who come.
#[test]
fn killed_hosts_give_all_memory_back() {
    alone(killed_hosts_give_all_memory_back_alone());
}

async fn killed_hosts_give_all_memory_back_alone() {
    let setup = Setup::memory("raid10", 4, 8).cores(1);
    let target = setup.setting("memory: { capsule: 1MiB, transfer: 8MiB }").start();
    let before = asked_for(&target).await;
    assert!(before >= 3 << 20, "{before} bytes");
    target.settled().await;
    let mut random = Random::new(5);
    for round in 0..6 {
        let (mut hosts, mut queues) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let host = RawHost::connect(target.address, random.choose(&[NONE, BOTH])).await;
            for qid in 1..=2 {
                let mut io = host.io(qid, 65).await;
                let mut burst = Vec::new();
                for cid in 0..64 {
                    let blocks = random.choose(&[1u32, 16, 17, 256]);
                    let sqe = match random.below(2) {
                        0 => write_sqe(cid, random.below(3000), blocks),
                        _ => read_sqe(cid, random.below(3000), blocks),
                    };
                    burst.extend(io.command_bytes(&sqe, &[]));
                }
                io.send(&burst).await.unwrap();
                queues.push(io);
            }
            hosts.push(host);
        }
        tokio::time::sleep(Duration::from_millis(random.below(30))).await;
        while !queues.is_empty() {
            let at = random.below(queues.len() as u64) as usize;
            let queue = queues.swap_remove(at);
            if random.below(2) == 0 {
                queue.reset().unwrap();
            }
            if random.below(3) == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        drop(hosts);
        target.settled().await;
        let after = asked_for(&target).await;
        assert_eq!(before, after, "round {round}: memory is lost");
        target.settled().await;
    }
    target.stop();
}

/// Hosts that are stuck cost no time either.
#[test]
fn stuck_hosts_cost_no_time() {
    alone(stuck_hosts_cost_no_time_alone());
}

async fn stuck_hosts_cost_no_time_alone() {
    let setup = Setup::memory("raid10", 4, 8).cores(1).busy_poll();
    let target = setup.setting("memory: { capsule: 1MiB, transfer: 8MiB }").start();
    let host = RawHost::connect(target.address, NONE).await;
    let mut queues = Vec::new();
    for qid in 1..=4 {
        let mut io = host.io(qid, 65).await;
        for cid in 0..64 {
            let sqe = if qid % 2 == 0 { read_sqe(cid, 0, 256) } else { write_sqe(cid, 0, 256) };
            io.send_command(&sqe, &[]).await.unwrap();
        }
        queues.push(io);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = target_time();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let used = target_time() - before;
    println!("a target with stuck hosts used {used:?} in 2 s");
    assert!(used < Duration::from_millis(20), "more than 1 % of a core: {used:?} in 2 s");
    drop((queues, host));
    target.settle_and_stop().await;
}

/// A connected host that does nothing costs nothing, with busy polling as it is by default.
#[test]
fn an_idle_target_does_not_work() {
    alone(an_idle_target_does_not_work_alone());
}

async fn an_idle_target_does_not_work_alone() {
    let target = Setup::memory("raid10", 4, 4).busy_poll().start();
    let (controller, volume) = volume(target.address, 16).await;
    volume.read(0, 1).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = target_time();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let used = target_time() - before;
    println!("an idle target used {used:?} in 3 s");
    assert!(used < Duration::from_millis(30), "more than 1 % of a core: {used:?} in 3 s");
    drop((controller, volume));
    target.settle_and_stop().await;
}

/// A target without traffic holds no more memory than it must, and a start takes no time.
#[test]
fn a_start_is_quick() {
    alone(a_start_is_quick_alone());
}

async fn a_start_is_quick_alone() {
    let start = Instant::now();
    let target = Setup::memory("raid10", 4, 64).start();
    let (controller, volume) = volume(target.address, 16).await;
    volume.read(0, 1).await.unwrap();
    let took = start.elapsed();
    println!("from start to first read: {took:?}");
    assert!(took < Duration::from_secs(2), "{took:?} (0.5 s on an idle machine)");
    drop((controller, volume));
    target.settle_and_stop().await;
}
