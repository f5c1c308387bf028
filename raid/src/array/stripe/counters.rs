//! What a core counts of the writes to parity levels.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one core alone counts up and others may read.
#[derive(Debug, Default)]
pub(in crate::array) struct Counter(AtomicU64);

impl Counter {
    pub(in crate::array) fn add(&self, count: u64) {
        // Only this core writes it, so it need not be one atomic step.
        self.0.store(self.0.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One core's counters.
#[derive(Debug, Default)]
pub(in crate::array) struct StripeCounters {
    pub(super) passes: Counter,
    pub(super) full_row_writes: Counter,
    pub(super) read_modify_writes: Counter,
    pub(super) reconstruct_writes: Counter,
    pub(super) merged_writes: Counter,
    pub(super) degraded_reads: Counter,
    pub(super) parts_repaired: Counter,
}

/// What has been done to the rows of an array of a parity level since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StripeStatistics {
    /// Passes over rows: each writes what one or several writes of hosts bring to a row.
    pub passes: u64,
    /// Passes that wrote a whole row, without reading anything.
    pub full_row_writes: u64,
    /// Parts of rows written with the help of old data and old parity.
    pub read_modify_writes: u64,
    /// Parts of rows written with the help of the data that did not change.
    pub reconstruct_writes: u64,
    /// Writes that came along in another one's pass.
    pub merged_writes: u64,
    /// Parts of rows that were read by computing them from others.
    pub degraded_reads: u64,
    /// Chunks, or parts of them, that could not be read and were written again with what they
    /// should hold.
    pub parts_repaired: u64,
}

impl StripeStatistics {
    /// The sum over all cores.
    pub(in crate::array) fn of<'a>(cores: impl Iterator<Item = &'a StripeCounters>) -> Self {
        cores.fold(Self::default(), |sum, core| Self {
            passes: sum.passes + core.passes.get(),
            full_row_writes: sum.full_row_writes + core.full_row_writes.get(),
            read_modify_writes: sum.read_modify_writes + core.read_modify_writes.get(),
            reconstruct_writes: sum.reconstruct_writes + core.reconstruct_writes.get(),
            merged_writes: sum.merged_writes + core.merged_writes.get(),
            degraded_reads: sum.degraded_reads + core.degraded_reads.get(),
            parts_repaired: sum.parts_repaired + core.parts_repaired.get(),
        })
    }
}
