//! Long tasks on levels with copies: what a shard's owner does of them, piece by piece, each under
//! the lock of its range.
//!
//! * **Resync**, where copies need not agree: the first copy that can be read counts and is written
//!   over all others. Nobody can have read another value before, because reads of what need not
//!   agree make it so. While copies turn out to be equal they are compared first, and only what
//!   differs is written. A block that no copy can read is bad on all of them from then on: an
//!   error until it is written.
//! * **Rebuild**: a good copy is written to the members that lack it, and over other good copies
//!   that turn out not to be readable. A block that no copy can read is bad on the new members.
//!   Where copies need not agree, a rebuild makes them so as a resync does.
//! * **Check**: all copies are read and compared. What differs is read once more before it counts.
//!   A repair writes the first copy over the others. What one copy cannot read is written there
//!   from another, in any mode.
//!
//! What cannot be done in one go, for read errors, bad blocks or lack of memory, is done in halves,
//! down to single blocks.

use std::cell::Cell;

use futures_util::future::join_all;

use super::control::Mismatch;
use super::plan::CheckMode;
use super::{Chore, Lost, MIN_PIECE_BYTES, PIECE_BYTES, differing_runs, is_zero};
use crate::array::error::ArrayError;
use crate::array::slots::SlotSet;
use crate::array::write::{Armed, Outcome};
use crate::array::{Array, Done};
use crate::buffer::{Buffer, SharedBuffer};
use crate::drive::Drive;
use crate::geometry::{Extent, Place};

/// Whether it is worth comparing before writing: one thing for arrays that crashed, another for
/// new ones. Learns from what it finds.
#[derive(Debug)]
pub(in crate::array) struct Likeness {
    /// Up when copies are found to be equal, twice down when not; compared while above 0.
    score: Cell<u8>,
    /// Pieces that were not compared since.
    skipped: Cell<u8>,
}

impl Likeness {
    const START: u8 = 4;
    const MOST: u8 = 32;
    /// Every so many pieces one is compared in any case.
    const PROBE: u8 = 16;

    pub(in crate::array) fn new() -> Self {
        Self { score: Cell::new(Self::START), skipped: Cell::new(0) }
    }

    /// Whether to compare the next piece.
    fn poll(&self) -> bool {
        if self.score.get() > 0 {
            return true;
        }
        self.skipped.set((self.skipped.get() + 1) % Self::PROBE);
        self.skipped.get() == 0
    }

    /// A piece was compared.
    fn handle(&self, is_equal: bool) {
        let score = self.score.get();
        self.score.set(if is_equal {
            (score + 1).min(Self::MOST)
        } else {
            score.saturating_sub(2)
        });
    }
}

/// To which copies one is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    /// All others.
    Others,
    /// Those on members that are being rebuilt.
    Rebuilding,
}

impl<D: Drive> Array<D> {
    /// An owner's part of a long task on a level with copies.
    pub(super) async fn recover_mirrors(
        &self,
        chore: Chore,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Done {
        let shard = self.shared.geometry().shard_of(offset_bytes);
        let end = offset_bytes + len_bytes;
        let mut at = offset_bytes;
        while at < end {
            let len = PIECE_BYTES.min(end - at);
            let lock = self.locks.enter(shard, at..at + len);
            lock.held().await;
            self.check_not_failed()?;
            let armed = Armed::new(&self.shared, at);
            let lost = Lost::default();
            let mut result = self.recover_range(chore, at, len, &lost).await;
            if result.is_ok() {
                result = self.note_lost(lost).await;
            }
            armed.disarm();
            drop(lock);
            result?;
            at += len;
        }
        Ok(())
    }

    /// Copies the first copy of a range over the others; the range is held.
    pub(in crate::array) async fn copy_first_copy(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Done {
        let end = offset_bytes + len_bytes;
        let mut at = offset_bytes;
        while at < end {
            let len = PIECE_BYTES.min(end - at);
            let lost = Lost::default();
            for extent in self.shared.geometry().extents(at, len) {
                let offset_bytes = at + extent.position_bytes;
                self.copy_extent(offset_bytes, &extent, To::Others, &lost).await?;
            }
            self.note_lost(lost).await?;
            at += len;
        }
        Ok(())
    }

    /// All extents of a range at once; the range is held.
    async fn recover_range(
        &self,
        chore: Chore,
        offset_bytes: u64,
        len_bytes: u64,
        lost: &Lost,
    ) -> Done {
        let extents = self.shared.geometry().extents(offset_bytes, len_bytes);
        let works = extents.map(|extent| async move {
            let at = offset_bytes + extent.position_bytes;
            let agrees = self.agrees(&(at..at + extent.len_bytes));
            match chore {
                Chore::Sync if agrees => Ok(()),
                Chore::Sync => self.copy_extent(at, &extent, To::Others, lost).await,
                Chore::Rebuild if !self.has_rebuilding_copy(&extent) => Ok(()),
                Chore::Rebuild if agrees => {
                    self.copy_extent(at, &extent, To::Rebuilding, lost).await
                }
                Chore::Rebuild => self.copy_extent(at, &extent, To::Others, lost).await,
                Chore::Check(mode) if agrees => self.check_extent(at, &extent, mode).await,
                Chore::Check(_) => {
                    self.shared.found(|report| {
                        report.uncompared_bytes += extent.len_bytes * extent.copies as u64;
                    });
                    Ok(())
                }
            }
        });
        join_all(works).await.into_iter().fold(Ok(()), Result::and)
    }

    fn has_rebuilding_copy(&self, extent: &Extent) -> bool {
        let rebuilding = self.map().rebuilding;
        (0..extent.copies).any(|copy| rebuilding.contains(extent.place(copy).slot))
    }

    /// Memory for long tasks: a part of it is left to what hosts wait for.
    pub(super) fn task_buffer(&self, len_bytes: u64) -> Option<Buffer> {
        let (used, all) = (self.pool.in_use_bytes(), self.pool.budget_bytes());
        let fits = used as u64 + len_bytes <= all as u64 / 4 * 3;
        fits.then(|| self.pool.allocate(len_bytes as usize)).flatten()
    }

    /// Whether a range that could not be done in one go can be done in halves.
    pub(super) fn can_halve(&self, len_bytes: u64) -> bool {
        len_bytes > u64::from(self.block_bytes)
    }

    /// Where to cut a range in two.
    pub(super) fn half(&self, len_bytes: u64) -> u64 {
        let block = u64::from(self.block_bytes);
        (len_bytes / block).div_ceil(2) * block
    }

    /// The extents of both halves of one.
    fn halves(&self, offset_bytes: u64, extent: &Extent) -> impl Iterator<Item = (u64, Extent)> {
        let half = self.half(extent.len_bytes);
        let parts = [(offset_bytes, half), (offset_bytes + half, extent.len_bytes - half)];
        let geometry = self.shared.geometry();
        parts.into_iter().flat_map(move |(at, len)| {
            geometry.extents(at, len).map(move |extent| (at + extent.position_bytes, extent))
        })
    }

    /// Writes the first copy of an extent that can be read to others; the range is held.
    async fn copy_extent(&self, offset_bytes: u64, extent: &Extent, to: To, lost: &Lost) -> Done {
        if extent.copies == 1 {
            return Ok(());
        }
        let (len, end_bytes) = (extent.len_bytes, offset_bytes + extent.len_bytes);
        let is_readable = |place: &Place| self.is_readable(*place, len, end_bytes);
        let mut unreadable = SlotSet::EMPTY;
        for place in self.sources(offset_bytes, extent, to) {
            if !is_readable(&place) {
                continue;
            }
            let Some(buffer) = self.task_buffer(len) else {
                if len <= MIN_PIECE_BYTES {
                    return Err(ArrayError::NotReady);
                }
                break;
            };
            match self.read_member(place, buffer).await {
                // Otherwise it may have lost writes that it had acknowledged.
                Ok(read) if is_readable(&place) => {
                    return self.spread(extent, place, read.freeze(), unreadable, to).await;
                }
                Err(_) if is_readable(&place) => {
                    unreadable.insert(place.slot);
                    if self.can_halve(len) {
                        break;
                    }
                }
                _ => {}
            }
        }
        self.check_not_failed()?;
        if self.can_halve(len) {
            for (at, half) in self.halves(offset_bytes, extent) {
                Box::pin(self.copy_extent(at, &half, to, lost)).await?;
            }
            return Ok(());
        }
        self.lose_block(extent, to, lost);
        Ok(())
    }

    /// The copies of an extent in the order in which they are tried.
    fn sources(
        &self,
        offset_bytes: u64,
        extent: &Extent,
        to: To,
    ) -> impl Iterator<Item = Place> + use<D> {
        // Where copies need not agree it is always the first one; elsewhere the least busy one.
        let best = match to {
            To::Others => None,
            To::Rebuilding => self.choose(offset_bytes, extent),
        };
        let rebuilding = self.map().rebuilding;
        let extent = *extent;
        let others = (0..extent.copies).map(move |copy| extent.place(copy));
        let others = others.filter(move |&place| Some(place) != best);
        // What a member got in an earlier walk is not read from it again.
        let is_source = move |place: &Place| to == To::Others || !rebuilding.contains(place.slot);
        best.into_iter().chain(others).filter(is_source)
    }

    /// Writes what was read from one copy of an extent to others, and to those that could not be
    /// read.
    async fn spread(
        &self,
        extent: &Extent,
        source: Place,
        data: SharedBuffer,
        unreadable: SlotSet,
        to: To,
    ) -> Done {
        let now = self.timer.now();
        unreadable.iter().for_each(|slot| self.shared.count_read_error(slot, now));
        let (writable, rebuilding, in_sync) = {
            let map = self.map();
            (self.writable(), map.rebuilding, map.in_sync)
        };
        let is_target = |place: &Place| {
            let is_meant = match to {
                To::Others => true,
                To::Rebuilding => {
                    rebuilding.contains(place.slot) || unreadable.contains(place.slot)
                }
            };
            *place != source && is_meant && writable.contains(place.slot)
        };
        let compares = to == To::Others && self.likeness.poll();
        let (is_zero, data) = (is_zero(&data), &data);
        let writes = (0..extent.copies).map(|copy| extent.place(copy)).filter(is_target);
        let writes = writes.map(|place| async move {
            let may_equal =
                compares && in_sync.contains(place.slot) && !unreadable.contains(place.slot);
            if may_equal && self.equals(place, data).await {
                return Ok(());
            }
            self.write_or_zero(place, data.clone(), is_zero).await
        });
        let mut outcome = Outcome::default();
        join_all(writes).await.into_iter().for_each(|result| outcome.add(result));
        self.recovered(&outcome).await
    }

    /// What became of a task's writes: members that failed are out, durably.
    pub(super) async fn recovered(&self, outcome: &Outcome) -> Done {
        self.settled(None).await?;
        match outcome.no_space() {
            Some(slot) => Err(ArrayError::NoSpace { slot }),
            None => Ok(()),
        }
    }

    /// Whether a copy is known to be equal to `data`.
    async fn equals(&self, place: Place, data: &SharedBuffer) -> bool {
        let len = data.len() as u64;
        let range = place.offset_bytes..place.offset_bytes + len;
        if self.map().bad_blocks.get(place.slot).is_some_and(|bad| bad.overlaps(&range)) {
            return false;
        }
        let Some(buffer) = self.task_buffer(len) else { return false };
        let is_equal = self.read_member(place, buffer).await.is_ok_and(|read| read[..] == data[..]);
        self.likeness.handle(is_equal);
        is_equal
    }

    /// Writes data, or what is as good.
    pub(super) async fn write_or_zero(
        &self,
        place: Place,
        data: SharedBuffer,
        is_zero: bool,
    ) -> Result<(), crate::array::member::MemberError> {
        if is_zero {
            let zeroed = self.zero_member(place, data.len() as u64, true).await;
            if !self.member(place.slot).is_some_and(|member| member.cannot_zero()) {
                return zeroed;
            }
        }
        self.write_member(place, data, false).await
    }

    /// No copy of a block can be read: it is bad where it should have been written.
    fn lose_block(&self, block: &Extent, to: To, lost: &Lost) {
        let (writable, rebuilding) = (self.writable(), self.map().rebuilding);
        let concerned = match to {
            To::Others => writable,
            To::Rebuilding => writable.and(rebuilding),
        };
        for place in (0..block.copies).map(|copy| block.place(copy)) {
            if concerned.contains(place.slot) {
                lost.add(place.slot, place.offset_bytes..place.offset_bytes + block.len_bytes);
            }
        }
    }
}

/// The check.
impl<D: Drive> Array<D> {
    /// Compares the copies of an extent; the range is held.
    async fn check_extent(&self, offset_bytes: u64, extent: &Extent, mode: CheckMode) -> Done {
        if extent.copies == 1 {
            return Ok(());
        }
        let len = extent.len_bytes;
        let readable = self.readable_copies(offset_bytes, extent);
        let Some(first) = self.read_copies(extent, readable).await else {
            if len <= MIN_PIECE_BYTES {
                return Err(ArrayError::NotReady);
            }
            return self.check_halves(offset_bytes, extent, mode).await;
        };
        let errors =
            self.readable_copies(offset_bytes, extent).and(readable).without(first.slots());
        // They concern blocks; a member that is out, all of them.
        let wrong = errors.or(self.bad_copies(extent));
        if !wrong.is_empty() && self.can_halve(len) {
            return self.check_halves(offset_bytes, extent, mode).await;
        }
        self.shared.found(|report| {
            let missing = extent.copies - first.slots().or(wrong).len();
            report.uncompared_bytes += len * missing as u64;
        });
        if !wrong.is_empty() {
            let now = self.timer.now();
            errors.iter().for_each(|slot| self.shared.count_read_error(slot, now));
            self.rewrite_unreadable(extent, &first, wrong).await?;
        }
        if first.are_equal() {
            return Ok(());
        }
        // Once more, before it counts.
        let Some(again) = self.read_copies(extent, first.slots()).await else {
            return Err(ArrayError::NotReady);
        };
        self.copies_differ(offset_bytes, extent, mode, again).await
    }

    async fn check_halves(&self, offset_bytes: u64, extent: &Extent, mode: CheckMode) -> Done {
        for (at, half) in self.halves(offset_bytes, extent) {
            Box::pin(self.check_extent(at, &half, mode)).await?;
        }
        Ok(())
    }

    fn readable_copies(&self, offset_bytes: u64, extent: &Extent) -> SlotSet {
        let end_bytes = offset_bytes + extent.len_bytes;
        let places = (0..extent.copies).map(|copy| extent.place(copy));
        let readable = places.filter(|&place| self.is_readable(place, extent.len_bytes, end_bytes));
        readable.map(|place| place.slot).collect()
    }

    /// The members in use that have bad blocks in their copy of an extent.
    fn bad_copies(&self, extent: &Extent) -> SlotSet {
        let map = self.map();
        let places = (0..extent.copies).map(|copy| extent.place(copy));
        let bad = places.filter(|place| {
            let range = place.offset_bytes..place.offset_bytes + extent.len_bytes;
            map.in_sync.contains(place.slot)
                && map.with_bad_blocks.contains(place.slot)
                && map.bad_blocks.get(place.slot).is_some_and(|bad| bad.overlaps(&range))
        });
        bad.map(|place| place.slot).collect()
    }

    /// Reads copies of an extent; those that cannot be read are left out. None without memory.
    async fn read_copies(&self, extent: &Extent, slots: SlotSet) -> Option<Copies> {
        let places = (0..extent.copies).map(|copy| extent.place(copy));
        let places = places.filter(|place| slots.contains(place.slot));
        let with_buffer = |place| Some((place, self.task_buffer(extent.len_bytes)?));
        let reads = places.map(with_buffer).collect::<Option<Vec<_>>>()?;
        let reads = reads.into_iter().map(|(place, buffer)| async move {
            let read = self.read_member(place, buffer).await.ok()?;
            Some((place, read.freeze()))
        });
        Some(Copies(join_all(reads).await.into_iter().flatten().collect()))
    }

    /// Copies could not be read: they get what the first one says.
    async fn rewrite_unreadable(&self, block: &Extent, good: &Copies, errors: SlotSet) -> Done {
        let sectors = block.len_bytes / 512;
        let Some((_, data)) = good.0.first() else {
            self.shared.found(|report| report.unreadable_sectors += sectors);
            return Ok(());
        };
        let mut outcome = Outcome::default();
        for place in (0..block.copies).map(|copy| block.place(copy)) {
            if errors.contains(place.slot) && self.writable().contains(place.slot) {
                let result = self.write_member(place, data.clone(), false).await;
                if result.is_ok() {
                    self.shared.found(|report| report.rewritten_sectors += sectors);
                }
                outcome.add(result);
            }
        }
        self.recovered(&outcome).await
    }

    /// Copies differed when they were read before, and now they are these.
    async fn copies_differ(
        &self,
        offset_bytes: u64,
        extent: &Extent,
        mode: CheckMode,
        copies: Copies,
    ) -> Done {
        let Some((first, data)) = copies.0.first() else { return Ok(()) };
        let block = self.block_bytes as usize;
        let differs = |range: std::ops::Range<usize>| {
            copies.0.iter().any(|(_, copy)| copy[range.clone()] != data[range.clone()])
        };
        let mut outcome = Outcome::default();
        for run in differing_runs(extent.len_bytes as usize, block, differs) {
            let mut repaired = mode != CheckMode::Check;
            if repaired {
                let good = data.slice(run.clone());
                for (place, _) in &copies.0[1..] {
                    let offset_bytes = place.offset_bytes + run.start as u64;
                    let place = Place { offset_bytes, ..*place };
                    if !self.writable().contains(place.slot) {
                        continue;
                    }
                    let result = self.write_member(place, good.clone(), false).await;
                    repaired &= result.is_ok();
                    outcome.add(result);
                }
            }
            let mismatch = Mismatch {
                offset_bytes: offset_bytes + run.start as u64,
                component_offset_bytes: first.offset_bytes + run.start as u64,
                len_bytes: (run.end - run.start) as u64,
                slot: None,
                repaired,
            };
            self.shared.found(|report| report.add(mismatch));
        }
        self.recovered(&outcome).await
    }
}

/// Copies of an extent, as they were read.
struct Copies(Vec<(Place, SharedBuffer)>);

impl Copies {
    fn slots(&self) -> SlotSet {
        self.0.iter().map(|(place, _)| place.slot).collect()
    }

    fn are_equal(&self) -> bool {
        self.0.windows(2).all(|two| two[0].1[..] == two[1].1[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_are_alike_are_compared_and_others_hardly() {
        let likeness = Likeness::new();
        let mut compared = 0;
        for _ in 0..1000 {
            if likeness.poll() {
                likeness.handle(false);
                compared += 1;
            }
        }
        assert!((60..70).contains(&compared), "{compared}");
        // When they turn out to be alike after all, that is noticed.
        let mut compared = 0;
        for _ in 0..1000 {
            if likeness.poll() {
                likeness.handle(true);
                compared += 1;
            }
        }
        assert!(compared > 980, "{compared}");
        // And one that differs now and then does not matter.
        for piece in 0..1000 {
            assert!(likeness.poll(), "{piece}");
            likeness.handle(piece % 10 > 0);
        }
    }
}
