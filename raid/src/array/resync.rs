//! Making all copies equal to the first: after an unclean stop, and for a new array.
//!
//! One core runs [`Array::resync`], which walks the array in steps. In a step it has the owners of
//! the next few shards copy the first copy over the others, piece by piece, each under the lock of
//! its range; when all are done the position advances. Until then reads of the step's range take
//! the first copy, so nobody notices.
//!
//! * If a write leaves copies unequal while a step is under way, the step is done again
//!   (`Shared::end_resync_step`), from where the write was if that is lower.
//! * Before a position is given to the [`Keeper`](super::Keeper) all members are flushed; the
//!   position is the one from before the flush.
//! * A block that the first copy cannot read is taken from another copy, and written to all. Nobody
//!   can have read another value before, because reads of what need not agree make it so. A block
//!   that no copy can read is recorded as bad on all: it stays an error until it is written.
//! * While the host is busy, one shard at a time is copied and then the resync rests for as long
//!   as three times that took, but never so long that it falls below its guaranteed rate.
//! * Lack of space below a member, or of memory, makes it wait and try again.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{join_all, select};

use super::agreement::IN_SYNC;
use super::error::ArrayError;
use super::fan::fan_out;
use super::member::Member;
use super::progress::Stall;
use super::timer::Timer;
use super::write::{Armed, Outcome, Work};
use super::{Array, Done};
use crate::buffer::SharedBuffer;
use crate::drive::Drive;
use crate::geometry::{Extent, Place};

/// What is copied under one lock.
const PIECE_BYTES: u64 = 256 << 10;

/// Shards that are copied at once while the host is idle.
const SHARDS_AT_ONCE: usize = 8;

/// How long the host counts as busy after a request.
const BUSY_FOR: Duration = Duration::from_millis(100);

/// How long to wait before trying again without space.
const SPACE_RETRY: Duration = Duration::from_secs(5);

/// How long to wait before trying again without memory.
const MEMORY_RETRY: Duration = Duration::from_millis(10);

/// Knows whether the host is busy.
struct HostWatch {
    operations: u64,
    last_seen: Option<Duration>,
}

impl HostWatch {
    /// Whether there were requests lately, given their number so far.
    fn handle_count(&mut self, now: Duration, operations: u64) -> bool {
        if operations != self.operations {
            self.operations = operations;
            self.last_seen = Some(now);
        }
        self.last_seen.is_some_and(|seen| seen + BUSY_FOR > now)
    }
}

/// How long to rest after `bytes` took `took`. Rates are in bytes per second; a maximum of 0 means
/// none.
fn rest(took: Duration, bytes: u64, busy: bool, min_rate: u64, max_rate: u64) -> Duration {
    let time_at = |rate: u64| Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
    let mut rest = Duration::ZERO;
    if busy {
        rest = (3 * took).min(time_at(min_rate).saturating_sub(took));
    }
    if max_rate > 0 {
        rest = rest.max(time_at(max_rate).saturating_sub(took));
    }
    rest
}

impl<D: Drive> Array<D> {
    /// Keeps the copies of the array equal: resyncs whenever that is needed, and waits otherwise.
    /// Run it on one core. Ends when the array fails or after
    /// [`Shared::stop_resync`](super::Shared::stop_resync); must not be dropped while it resyncs.
    pub async fn resync(&self, timer: &impl Timer) {
        while self.shared.resync_needed().await {
            self.shared.resync_started(timer.now());
            self.resync_pass(timer).await;
        }
    }

    /// One pass to the end, or until it has to stop.
    async fn resync_pass(&self, timer: &impl Timer) {
        let capacity_bytes = self.shared.geometry().capacity_bytes();
        let mut host = HostWatch { operations: self.shared.host_operations(), last_seen: None };
        let mut checkpoint = self.shared.resync_position_bytes();
        while !self.shared.must_resync_stop() {
            let position = self.shared.begin_resync_step();
            if position >= capacity_bytes {
                if self.finish_resync(position).await {
                    return;
                }
                continue;
            }
            let started = timer.now();
            let busy = host.handle_count(started, self.shared.host_operations());
            let (result, end) = self.resync_step(position, busy).await;
            let now = timer.now();
            let pause = match result {
                Ok(()) => {
                    if self.shared.end_resync_step(position, end) {
                        self.shared.resync_did(now, end - position);
                    }
                    let (min, max) = (&self.shared.resync_min_rate, &self.shared.resync_max_rate);
                    let (min, max) = (min.load(Ordering::Relaxed), max.load(Ordering::Relaxed));
                    rest(now.saturating_sub(started), end - position, busy, min, max)
                }
                Err(ArrayError::NoSpace { slot }) => {
                    self.shared.resync_stalls(Stall::NoSpace { slot });
                    SPACE_RETRY
                }
                Err(ArrayError::NotReady) => {
                    self.shared.resync_stalls(Stall::NoMemory);
                    MEMORY_RETRY
                }
                Err(_) if self.shared.must_resync_stop() => return,
                // A core has stopped serving; the resync will be stopped as well.
                Err(_) => MEMORY_RETRY,
            };
            let position = self.shared.resync_position_bytes();
            let interval = self.shared.checkpoint_interval.load(Ordering::Relaxed);
            if position.saturating_sub(checkpoint) >= interval {
                if !self.checkpoint(position).await {
                    return;
                }
                checkpoint = position;
            }
            checkpoint = checkpoint.min(position);
            if !pause.is_zero() {
                // A stop does not wait for the end of a rest.
                select(pin!(timer.sleep(pause)), pin!(self.shared.resync_stop())).await;
            }
        }
        // Stopped in between: what has been done need not be done again.
        self.checkpoint(self.shared.resync_position_bytes()).await;
    }

    /// Syncs from `position` to the end of its shard, or of several shards, and returns how far.
    async fn resync_step(&self, position: u64, busy: bool) -> (Done, u64) {
        let geometry = self.shared.geometry();
        let first = geometry.shard_of(position);
        let count = if busy { 1 } else { SHARDS_AT_ONCE as u64 };
        let mut end = position;
        let works = (first..geometry.shard_count()).take(count as usize).map(|shard| {
            let range = geometry.shard_range(shard);
            let offset_bytes = range.start.max(position);
            end = range.end;
            let len_bytes = range.end - offset_bytes;
            self.on_owner(shard, Work::Sync { offset_bytes, len_bytes })
        });
        let works: Vec<_> = works.collect();
        let answers = join_all(works).await;
        (answers.into_iter().fold(Ok(()), |all, answer| all.and(answer.result)), end)
    }

    /// Flushes all members and has the position recorded; false if that failed.
    async fn checkpoint(&self, position: u64) -> bool {
        if self.flush_once().await.is_err() {
            return false;
        }
        // A write may have left copies unequal below it during the flush.
        let position = position.min(self.shared.resync_position_bytes());
        self.shared.checkpoint_resync(position);
        true
    }

    /// Ends the pass: true if that is done, one way or the other.
    async fn finish_resync(&self, position: u64) -> bool {
        if self.flush_once().await.is_err() {
            return true;
        }
        if !self.shared.end_resync_step(position, IN_SYNC) {
            return false;
        }
        self.shared.resync_completed();
        self.shared.checkpoint_resync(IN_SYNC);
        true
    }

    /// Makes the copies of a range within a shard equal, on its owner, piece by piece.
    pub(super) async fn sync_shard(&self, offset_bytes: u64, len_bytes: u64) -> Done {
        let shard = self.shared.geometry().shard_of(offset_bytes);
        let end = offset_bytes + len_bytes;
        let mut at = offset_bytes;
        while at < end {
            let len = PIECE_BYTES.min(end - at);
            let lock = self.locks.enter(shard, at..at + len);
            lock.held().await;
            self.check_not_failed()?;
            let armed = Armed::new(&self.shared, at);
            let result = self.copy_first_copy(at, len).await;
            armed.disarm();
            drop(lock);
            result?;
            at += len;
        }
        Ok(())
    }

    /// Copies the first copy of a range over the others; the range is held.
    pub(super) async fn copy_first_copy(&self, offset_bytes: u64, len_bytes: u64) -> Done {
        let most = PIECE_BYTES.min(self.pool.max_block_bytes() as u64);
        let end = offset_bytes + len_bytes;
        let mut at = offset_bytes;
        while at < end {
            let extent = self.shared.geometry().extents(at, most.min(end - at)).next();
            let Some(extent) = extent else { break };
            self.copy_extent(at, &extent).await?;
            at += extent.len_bytes;
        }
        Ok(())
    }

    async fn copy_extent(&self, offset_bytes: u64, extent: &Extent) -> Done {
        let end_bytes = offset_bytes + extent.len_bytes;
        let is_readable = |place: &Place| self.is_readable(*place, extent.len_bytes, end_bytes);
        let first = (0..extent.copies).map(|copy| extent.place(copy)).find(is_readable);
        if extent.copies == 1 {
            return Ok(());
        }
        let Some(source) = first else {
            return self.copy_block_by_block(offset_bytes, extent).await;
        };
        let buffer = self.pool.allocate(extent.len_bytes as usize).ok_or(ArrayError::NotReady)?;
        let Ok(buffer) = self.read_member(source, buffer).await else {
            return self.copy_block_by_block(offset_bytes, extent).await;
        };
        // It may have lost writes that it had acknowledged.
        if !is_readable(&source) {
            return self.copy_block_by_block(offset_bytes, extent).await;
        }
        self.copy_to_others(extent, source, buffer.freeze()).await
    }

    /// Writes what was read from one copy of an extent over all others.
    async fn copy_to_others(&self, extent: &Extent, source: Place, data: SharedBuffer) -> Done {
        let is_zero = is_zero(&data);
        let writable = self.writable();
        let mut outcome = Outcome::default();
        let others = (0..extent.copies)
            .map(|copy| extent.place(copy))
            .filter(|place| *place != source && writable.contains(place.slot));
        let writes = others.map(|place| {
            let data = data.clone();
            async move {
                if is_zero {
                    let zeroed = self.zero_member(place, data.len() as u64, true).await;
                    let cannot = |member: &Member<D>| member.cannot_zero();
                    if !self.member(place.slot).is_some_and(|member| cannot(&member)) {
                        return zeroed;
                    }
                }
                self.write_member(place, data, false).await
            }
        });
        fan_out(extent.copies - 1, writes, |result| outcome.add(result)).await;
        match outcome.no_space() {
            Some(slot) => Err(ArrayError::NoSpace { slot }),
            None => self.settled(None).await,
        }
    }

    /// The same where the first copy could not be read in one go: each block comes from the first
    /// copy that can be read, and goes to all others. A block that none can read is bad on all of
    /// them: they may differ there.
    async fn copy_block_by_block(&self, offset_bytes: u64, extent: &Extent) -> Done {
        let block_bytes = u64::from(self.block_bytes);
        let geometry = self.shared.geometry();
        for at in (offset_bytes..offset_bytes + extent.len_bytes).step_by(block_bytes as usize) {
            let Some(block) = geometry.extents(at, block_bytes).next() else { break };
            let mut source = None;
            for place in (0..block.copies).map(|copy| block.place(copy)) {
                let buffer =
                    self.pool.allocate(block_bytes as usize).ok_or(ArrayError::NotReady)?;
                let is_readable = || self.is_readable(place, block_bytes, at + block_bytes);
                if !is_readable() {
                    continue;
                }
                if let Ok(read) = self.read_member(place, buffer).await
                    && is_readable()
                {
                    source = Some((place, read.freeze()));
                    break;
                }
            }
            match source {
                Some((source, data)) => self.copy_to_others(&block, source, data).await?,
                None => {
                    let writable = self.writable();
                    let places = (0..block.copies).map(|copy| block.place(copy));
                    for place in places.filter(|place| writable.contains(place.slot)) {
                        let bad = place.offset_bytes..place.offset_bytes + block_bytes;
                        self.shared.add_bad_blocks(place.slot, bad);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether all bytes are zero.
fn is_zero(data: &[u8]) -> bool {
    // In lines of 64 bytes without a branch inside, which the compiler vectorises.
    data.chunks(64).all(|line| line.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_are_long_while_the_host_is_busy_but_not_too_long() {
        let (ms, mib) = (Duration::from_millis, 1 << 20);
        // Idle and unlimited: no rest.
        assert_eq!(rest(ms(10), 8 * mib, false, mib, 0), ms(0));
        // Busy: three times as long as the work.
        assert_eq!(rest(ms(10), mib, true, mib, 0), ms(30));
        // But a MiB a second is guaranteed.
        assert_eq!(rest(ms(400), mib, true, mib, 0), ms(600));
        assert_eq!(rest(ms(1500), mib, true, mib, 0), ms(0));
        // The maximum holds busy or idle.
        assert_eq!(rest(ms(10), 8 * mib, false, mib, 16 * mib), ms(490));
        assert_eq!(rest(ms(10), mib, true, mib, 2 * mib), ms(490));
    }

    #[test]
    fn the_host_is_busy_for_a_while_after_a_request() {
        let mut host = HostWatch { operations: 7, last_seen: None };
        let ms = Duration::from_millis;
        assert!(!host.handle_count(ms(0), 7));
        assert!(host.handle_count(ms(10), 8));
        assert!(host.handle_count(ms(100), 8));
        assert!(!host.handle_count(ms(110), 8));
        assert!(host.handle_count(ms(120), 9));
    }

    #[test]
    fn zeros_are_recognised_to_the_last_byte() {
        for len in [1, 63, 64, 65, 4096] {
            let mut data = vec![0; len];
            assert!(is_zero(&data));
            data[len - 1] = 1;
            assert!(!is_zero(&data));
        }
        assert!(is_zero(&[]));
    }
}
