//! What a run measured, for people and for machines (`raidfabric.bench/1`).

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::workload::{Access, Workload};

/// Longest latency told apart, in nanoseconds; longer ones count as this.
const LATENCY_MAX_NS: u64 = 600_000_000_000;

/// Operations and latencies of one direction on one worker.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    histogram: Histogram<u64>,
}

impl Tally {
    pub(super) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3);
        // INVARIANT: the bounds are constants of this file, and valid.
        Self { histogram: histogram.expect("the bounds are constants, and valid") }
    }

    pub(super) fn record(&mut self, latency: Duration) {
        self.histogram.saturating_record(latency.as_nanos().min(u128::from(u64::MAX)) as u64);
    }

    pub(super) fn add(&mut self, other: &Self) {
        // Same bounds on both sides: nothing can be out of range.
        let _ = self.histogram.add(&other.histogram);
    }
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Shortest.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p99_9: u64,
    /// Longest.
    pub max: u64,
}

/// Reads, writes, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Side {
    /// Operations that ended while measuring.
    pub operations: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Operations per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Latencies.
    pub latency_ns: Latency,
}

impl Side {
    pub(super) fn new(tally: &Tally, io_bytes: u32, seconds: f64) -> Self {
        let histogram = &tally.histogram;
        let operations = histogram.len();
        if operations == 0 {
            return Self::default();
        }
        let bytes = operations * u64::from(io_bytes);
        Self {
            operations,
            bytes,
            iops: operations as f64 / seconds,
            bytes_per_second: bytes as f64 / seconds,
            latency_ns: Latency {
                mean: histogram.mean(),
                min: histogram.min(),
                p50: histogram.value_at_quantile(0.5),
                p90: histogram.value_at_quantile(0.9),
                p99: histogram.value_at_quantile(0.99),
                p99_9: histogram.value_at_quantile(0.999),
                max: histogram.max(),
            },
        }
    }
}

/// What verification looked at. A difference is an error, not a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Reads under load whose contents were checked.
    pub checked_reads: u64,
    /// Places read back at the end.
    pub checked_places: u64,
}

/// A run's result. Units are base units; times are in nanoseconds or seconds, as named.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `raidfabric.bench/1`.
    pub schema: &'static str,
    /// Where the controller listens.
    pub address: String,
    /// SUBNQN.
    pub subnqn: String,
    /// NSID.
    pub nsid: u32,
    /// Logical block size in bytes.
    pub block_bytes: u32,
    /// Order.
    pub access: Access,
    /// Percentage of reads.
    pub read_percent: u8,
    /// Bytes of one operation.
    pub io_bytes: u32,
    /// Operations outstanding on each connection.
    pub queue_depth: u16,
    /// Connections.
    pub connections: u16,
    /// Threads.
    pub workers: u16,
    /// Header digests were used.
    pub header_digest: bool,
    /// Data digests were used.
    pub data_digest: bool,
    /// SQ flow control was off on the I/O queues.
    pub sq_flow_control_disabled: bool,
    /// How long was measured.
    pub seconds: f64,
    /// Reads and writes together.
    pub total: Side,
    /// Reads.
    pub read: Side,
    /// Writes.
    pub write: Side,
    /// Verification, if asked for.
    pub verification: Option<Verification>,
}

impl Report {
    pub(super) fn new(
        workload: &Workload,
        block_bytes: u32,
        sq_flow_control_disabled: bool,
        read: &Tally,
        write: &Tally,
        verification: Verification,
    ) -> Self {
        let seconds = workload.duration.as_secs_f64();
        let mut total = read.clone();
        total.add(write);
        let side = |tally: &Tally| Side::new(tally, workload.io_bytes, seconds);
        Self {
            schema: "raidfabric.bench/1",
            address: workload.address.to_string(),
            subnqn: workload.subnqn.clone(),
            nsid: workload.nsid,
            block_bytes,
            access: workload.access,
            read_percent: workload.read_percent,
            io_bytes: workload.io_bytes,
            queue_depth: workload.queue_depth,
            connections: workload.connections,
            workers: workload.workers,
            header_digest: workload.options.digests.header,
            data_digest: workload.options.digests.data,
            sq_flow_control_disabled,
            seconds,
            total: side(&total),
            read: side(read),
            write: side(write),
            verification: workload.verify.then_some(verification),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_from_latencies() {
        let mut tally = Tally::new();
        for micros in 1..=1000 {
            tally.record(Duration::from_micros(micros));
        }
        tally.record(Duration::from_secs(10_000));
        let side = Side::new(&tally, 4096, 2.0);
        assert_eq!((side.operations, side.bytes), (1001, 1001 * 4096));
        assert_eq!(side.iops, 500.5);
        assert_eq!(side.bytes_per_second, 500.5 * 4096.0);
        let near = |found: u64, expected: u64| found.abs_diff(expected) <= expected / 500;
        assert!(near(side.latency_ns.p50, 501_000), "{side:?}");
        assert!(near(side.latency_ns.p99, 991_000), "{side:?}");
        assert!(near(side.latency_ns.max, LATENCY_MAX_NS), "{side:?}");
        assert_eq!(Side::new(&Tally::new(), 4096, 2.0), Side::default());
    }
}
