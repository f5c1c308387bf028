//! The load generator against a small target in another thread.

#![allow(clippy::unwrap_used)]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::{Knobs, NQN, Shared, start};
use raidfabric_initiator::bench::{Access, Phase, Workload, run, sweep};
use raidfabric_initiator::{Error, Options};
use raidfabric_protocol::tcp::Digests;

/// Starts a target on a runtime of its own, which ends with the test process.
fn target(knobs: Knobs) -> (SocketAddr, Arc<Shared>) {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            sender.send(start(knobs).await).unwrap();
            std::future::pending::<()>().await;
        });
    });
    receiver.recv().unwrap()
}

fn short(address: SocketAddr) -> Workload {
    Workload {
        duration: Duration::from_millis(150),
        warm_up: Duration::from_millis(20),
        ..Workload::new(address, NQN)
    }
}

#[test]
fn random_reads_are_measured() {
    let (address, shared) = target(Knobs::default());
    let workload = Workload {
        connections: 3,
        workers: 2,
        queue_depth: 8,
        duration: Duration::from_millis(600),
        ..short(address)
    };
    let mut phases = Vec::new();
    let report = run(&workload, &mut |progress| phases.push(progress.phase)).unwrap();
    assert_eq!(report.schema, "raidfabric.bench/1");
    assert!(report.read.operations > 100, "{report:?}");
    assert_eq!(report.write.operations, 0);
    assert_eq!(report.total, report.read);
    assert_eq!(report.read.bytes, report.read.operations * 4096);
    let latency = report.read.latency_ns;
    assert!(latency.min > 0 && latency.min <= latency.p50 && latency.p50 <= latency.p99);
    assert!(latency.p99 <= latency.p99_9 && latency.p99_9 <= latency.max);
    assert!(latency.mean >= latency.min as f64 && latency.mean <= latency.max as f64);
    // Little's law: what is under way is the depth.
    let under_way = report.read.iops * latency.mean / 1e9;
    assert!((8.0..=40.0).contains(&under_way), "{under_way} of 24 under way");
    assert!(phases.is_sorted() && phases.contains(&Phase::Measuring), "{phases:?}");
    assert!(report.verification.is_none());
    assert_eq!(shared.flushes.load(Ordering::SeqCst), 0);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["access"], "random");
    assert!(json["total"]["latency_ns"]["p99_9"].is_u64());
}

#[test]
fn nothing_is_written_without_leave() {
    let (address, shared) = target(Knobs::default());
    for workload in [
        Workload { read_percent: 0, ..short(address) },
        Workload { read_percent: 99, ..short(address) },
        Workload { verify: true, ..short(address) },
    ] {
        let error = run(&workload, &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("destroyed"), "{error}");
    }
    assert_eq!(shared.connections.load(Ordering::SeqCst), 0);
    // Reading needs no leave, and leaves the data alone.
    run(&Workload { access: Access::Sequential, ..short(address) }, &mut |_| {}).unwrap();
    assert!(shared.data.lock().unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn written_data_is_verified() {
    for (read_percent, io_bytes, access) in [
        (0, 4096, Access::Random),
        (0, 512, Access::Sequential),
        (50, 4096, Access::Random),
        (100, 64 * 1024, Access::Random),
        (30, 256 * 1024, Access::Sequential),
    ] {
        let (address, _) = target(Knobs::default());
        let options = Options {
            digests: Digests { header: true, data: true },
            disable_sq_flow_control: true,
            ..Options::default()
        };
        let workload = Workload {
            read_percent,
            io_bytes,
            access,
            options,
            verify: true,
            destroy_data: true,
            connections: 2,
            workers: 1,
            queue_depth: 8,
            span_bytes: Some(8 << 20),
            ..short(address)
        };
        let report = run(&workload, &mut |_| {}).unwrap();
        let seen = report.verification.unwrap();
        let places = (8 << 20) / u64::from(io_bytes);
        assert!(seen.checked_places > 0 && seen.checked_places <= places, "{report:?}");
        if read_percent > 0 {
            assert_eq!(seen.checked_places, places, "everything was filled");
            assert!(seen.checked_reads >= report.read.operations, "{report:?}");
        }
        assert_eq!(report.write.operations > 0, read_percent < 100);
        assert!(report.sq_flow_control_disabled && report.header_digest && report.data_digest);
    }
}

/// A target that stores something else than it was given is found, and named by its place.
#[test]
fn damage_is_found() {
    let (address, _) = target(Knobs { damage_writes: usize::MAX, ..Knobs::default() });
    let workload = Workload {
        read_percent: 0,
        verify: true,
        destroy_data: true,
        span_bytes: Some(4096),
        queue_depth: 1,
        ..short(address)
    };
    let (clean, _) = target(Knobs::default());
    run(&Workload { address: clean, ..workload.clone() }, &mut |_| {}).unwrap();
    let error = run(&workload, &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Verification(_)), "{error}");
    assert!(error.to_string().contains("LBA 0"), "{error}");
}

/// A failing worker ends the run at once, not at its planned end.
#[test]
fn a_failure_ends_the_run() {
    let (address, shared) = target(Knobs { short_reads_by: 4, ..Knobs::default() });
    let workload = Workload {
        connections: 2,
        workers: 2,
        duration: Duration::from_secs(60),
        ..short(address)
    };
    let begin = std::time::Instant::now();
    let error = run(&workload, &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::ShortData { .. } | Error::Closed), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(20));
    for _ in 0..100 {
        if shared.connections.load(Ordering::SeqCst) == 0 {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("connections are left open");
}

#[test]
fn impossible_workloads_are_refused_with_the_reason() {
    let (address, _) = target(Knobs::default());
    for (workload, reason) in [
        (Workload { io_bytes: 1000, ..short(address) }, "whole logical blocks"),
        (Workload { io_bytes: 2 << 20, ..short(address) }, "at most 1048576 bytes"),
        (Workload { queue_depth: 0, ..short(address) }, "at least 1"),
        (Workload { workers: 2, ..short(address) }, "needs a connection"),
        (Workload { connections: 9, ..short(address) }, "grants 8"),
        (Workload { queue_depth: 128, ..short(address) }, "hold 127 commands"),
        (Workload { span_bytes: Some(4095), ..short(address) }, "has 0 places"),
        (Workload { cpus: vec![1023], ..short(address) }, "core 1023"),
        (Workload { nsid: 2, ..short(address) }, "not active"),
    ] {
        let error = run(&workload, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(reason), "{reason}: {error}");
    }
}

#[test]
fn a_worker_can_be_pinned() {
    let (address, _) = target(Knobs::default());
    let report = run(&Workload { cpus: vec![0], ..short(address) }, &mut |_| {}).unwrap();
    assert!(report.read.operations > 0);
}

#[test]
fn a_sweep_is_a_whole_table() {
    let (address, _) = target(Knobs::default());
    let workload = Workload {
        duration: Duration::from_millis(10),
        warm_up: Duration::from_millis(2),
        ..Workload::new(address, NQN)
    };
    let mut runs = Vec::new();
    let table = sweep(&workload, &mut |number, total, _| {
        assert_eq!(total, 40);
        runs.push(number);
    })
    .unwrap();
    assert!(runs.is_sorted());
    assert_eq!(table.rows.len(), 40);
    for row in &table.rows {
        // The target's queues hold 127 commands.
        assert_eq!(row.report.is_some(), row.queue_depth < 128, "{row:?}");
        assert_eq!(row.skipped.is_some(), row.queue_depth >= 128);
    }
    // On a busy machine a single run of 10 ms may see no answer; not all of them.
    let measured = table.rows.iter().filter_map(|row| row.report.as_ref());
    assert!(measured.filter(|report| report.read.operations > 0).count() > 14);
    assert_eq!(serde_json::to_value(&table).unwrap()["schema"], "raidfabric.bench-sweep/1");
}
