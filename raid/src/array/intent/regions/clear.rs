//! Clearing the bits of regions that are idle.
//!
//! [`Regions::keep`] runs on one core and looks at all set bits every few seconds:
//! 1. a region without writes under way that was written since the last look only loses its mark
//!    *touched*;
//! 2. one that still has no mark at the next look has been idle for that long. All members are
//!    flushed, so that what was written there is durable everywhere;
//! 3. a member that has left before knows that what it misses has a bit: `events_cleared` is
//!    raised to the superblocks' present event count, and durable;
//! 4. regions that are still idle and unmarked cease to be *durable*, the bits leave the image, and
//!    it is written. From then on a write to them sets the bit anew, behind that write.
//!
//! No bit is cleared while any member is not in sync: the bits are what it misses. Nor is the bit
//! of a *dirty* region, whose copies may differ, until it has been made consistent.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::{Either, select};

use super::super::super::Timer;
use super::super::layout::RegionsKind;
use super::super::members::{Members, flush_all};
use super::{BITS_PER_BLOCK, COUNT, DIRTY, DURABLE, FIRST_BIT, Mode, RECENT, Regions, TOUCHED};
use crate::array::ArrayError;
use crate::mutation::mutation;

/// The one who clears bits.
#[derive(Default)]
pub(super) struct Keeper {
    /// There are bits to look at.
    has_work: AtomicBool,
    is_stopped: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Keeper {
    /// Who has work already.
    pub(super) fn with_work() -> Self {
        Self { has_work: AtomicBool::new(true), ..Self::default() }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let waker = self.waker().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// There is work.
    pub(super) fn has_work(&self) {
        if !self.has_work.load(Ordering::SeqCst) && !self.has_work.swap(true, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Waits for work: true; or for the end: false. Or only for the end.
    async fn work_or_stop(&self, only_stop: bool) -> bool {
        poll_fn(|cx| {
            // First of all, so that nothing that comes now is missed.
            *self.waker() = Some(cx.waker().clone());
            if self.is_stopped.load(Ordering::SeqCst) {
                Poll::Ready(false)
            } else if self.has_work.load(Ordering::SeqCst) && !only_stop {
                Poll::Ready(true)
            } else {
                Poll::Pending
            }
        })
        .await
    }
}

/// Clearing.
impl Regions {
    /// Lets [`Self::keep`] end.
    pub(in crate::array::intent) fn stop(&self) {
        self.keeper.is_stopped.store(true, Ordering::SeqCst);
        self.keeper.wake();
    }

    /// Clears bits, as in the file's head, until [`Self::stop`]. On one core only.
    pub(in crate::array::intent) async fn keep(&self, members: &impl Members, timer: &impl Timer) {
        let seconds = self.superblock().daemon_sleep_seconds().clamp(1, 3600);
        let interval = Duration::from_secs(u64::from(seconds));
        for index in 0..self.blocks.len() {
            // Who has to have the bits durable tries again, and is told what is wrong.
            let _ = self.write_outstanding(members, index).await;
        }
        while self.keeper.work_or_stop(false).await {
            let sleep = pin!(timer.sleep(interval));
            let stop = pin!(self.keeper.work_or_stop(true));
            if let Either::Right(_) = select(sleep, stop).await {
                return;
            }
            self.keeper.has_work.store(false, Ordering::SeqCst);
            if self.look(members, false).await {
                self.keeper.has_work.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Clears all bits that may be cleared, without waiting for regions to become idle: for a clean
    /// stop, when no writes are under way any more.
    pub(in crate::array::intent) async fn clear_idle(&self, members: &impl Members) {
        self.look(members, true).await;
    }

    /// One look at all bits. Says whether there is anything left to look at.
    async fn look(&self, members: &impl Members, at_once: bool) -> bool {
        if members.is_degraded() && !mutation!("clear-bit-while-degraded") {
            return true;
        }
        if self.kind == RegionsKind::DegradedMap && self.mode() != Mode::Memory {
            // It begins when the superblocks say that all members are in sync.
            return false;
        }
        let (candidates, is_work_left) = self.find_idle(at_once);
        if candidates.is_empty() {
            return is_work_left;
        }
        if !mutation!("clear-bit-without-flush") {
            flush_all(members).await;
        }
        if members.is_degraded() && !mutation!("clear-bit-while-degraded") {
            return true;
        }
        if self.mode() == Mode::Memory {
            self.forget_recent(&candidates);
        } else {
            // What could not be cleared, for whatever reason, stays set.
            let _ = self.clear(members, &candidates).await;
        }
        true
    }

    /// Regions that have been idle since the last look, in order, and whether there are others.
    fn find_idle(&self, at_once: bool) -> (Vec<u64>, bool) {
        let in_memory = self.mode() == Mode::Memory;
        let (mut idle, mut others) = (Vec::new(), false);
        for (region, word) in self.words.iter().enumerate() {
            let value = word.load(Ordering::SeqCst);
            let is_set = if in_memory { value & RECENT != 0 } else { value & DURABLE != 0 };
            if !is_set && value & (TOUCHED | COUNT) == 0 {
                continue;
            }
            if value & COUNT != 0 || value & DIRTY != 0 {
                // A dirty region comes up again when it has been made consistent.
                others |= value & COUNT != 0;
                continue;
            }
            let unmarked = value & !TOUCHED;
            if value & TOUCHED != 0 {
                let taken = word
                    .compare_exchange(value, unmarked, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok();
                if !at_once || !taken {
                    others = true;
                    continue;
                }
            }
            if is_set {
                idle.push(region as u64);
            }
        }
        (idle, others)
    }

    fn forget_recent(&self, regions: &[u64]) {
        for &region in regions {
            // Nothing has begun since before the flush, or the word is another one.
            let word = &self.words[region as usize];
            let value = word.load(Ordering::SeqCst);
            if value & (TOUCHED | COUNT) == 0 {
                let without = value & !RECENT;
                let _ = word.compare_exchange(value, without, Ordering::SeqCst, Ordering::SeqCst);
            }
        }
    }

    /// Clears the bits of regions that were idle before the last flush.
    async fn clear(&self, members: &impl Members, regions: &[u64]) -> Result<(), ArrayError> {
        let events = self.events.load(Ordering::SeqCst);
        if self.superblock().events_cleared() < events {
            self.change_superblock(|superblock| superblock.with_events_cleared(events));
            self.write_outstanding(members, 0).await?;
        }
        let block_of = |region: &u64| ((FIRST_BIT + region) / BITS_PER_BLOCK) as usize;
        for regions in regions.chunk_by(|a, b| block_of(a) == block_of(b)) {
            let Some(index) = regions.first().map(block_of) else { continue };
            let Some(turn) = self.blocks[index].turn(None).await? else { continue };
            if members.is_degraded() && !mutation!("clear-bit-while-degraded") {
                turn.end(None);
                return Ok(());
            }
            self.blocks[index].change(|image| {
                let mut changed = false;
                for region in regions.iter().filter(|&&region| self.cease_to_be_durable(region)) {
                    let bit = (FIRST_BIT + region) % BITS_PER_BLOCK;
                    image[bit as usize / 8] &= !(1 << (bit % 8));
                    changed = true;
                }
                changed
            });
            self.write_in_turn(members, index, turn).await?;
        }
        Ok(())
    }

    /// Takes the flag from a region that is idle. From then on a write to it waits for a write of
    /// the bit, which is behind the one that clears it.
    fn cease_to_be_durable(&self, region: u64) -> bool {
        let word = &self.words[region as usize];
        let value = word.load(Ordering::SeqCst);
        value & DURABLE != 0
            && value & (TOUCHED | DIRTY | COUNT) == 0
            && word
                .compare_exchange(value, value & !DURABLE, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
    }
}
