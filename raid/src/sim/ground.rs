//! The ground truth: what has really been done to the members of a running array, by which it is
//! judged whether an error that the engine answers has a cause.
//!
//! A slot is *out* if the array was assembled without it or its rebuild had not ended, or if
//! anything happened to its drive for which a member may fail. That is never taken back while the
//! array runs, but for a rebuild that ends.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::check::Place;
use super::faults::Faults;
use super::image::SECTOR_BYTES;
use crate::array::{BadRange, MemberFault, MemberState, Settings, Shared};

/// See the file's head.
pub(crate) struct Ground {
    pub(crate) shared: Arc<Shared>,
    pub(crate) faults: Rc<Faults>,
    /// By slot.
    pub(crate) places: RefCell<Vec<Option<Place>>>,
    /// Read errors at which a member may be failed.
    pub(crate) read_error_limit: u64,
    /// Entries that a member's list of bad blocks may have.
    pub(crate) bad_block_limit: u32,
    /// The slots that were not in sync at some moment, and why, as the engine had it.
    pub(crate) out: RefCell<Vec<bool>>,
    /// Those that were at any time, though they may have been rebuilt since.
    pub(crate) ever_out: RefCell<Vec<bool>>,
    /// By number of drive: it was in the array, and lacks a write that was acknowledged.
    pub(crate) stale: Rc<RefCell<Vec<bool>>>,
    pub(crate) epoch: Cell<u64>,
    /// The members' bad blocks, as they were last seen.
    pub(crate) bad_blocks: RefCell<Vec<Vec<BadRange>>>,
    /// A drive came that has some.
    pub(crate) brings_bad_blocks: Cell<bool>,
    /// All that were seen.
    pub(crate) ever_bad: RefCell<Vec<Vec<BadRange>>>,
}

impl fmt::Debug for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let out: Vec<_> = self.slots().filter(|&slot| self.is_out(slot)).collect();
        let hits: Vec<_> =
            self.slots().map(|slot| self.disk(slot).map(|d| self.faults.hits(d))).collect();
        write!(f, "slots out: {out:?}, done to their drives: {hits:?}")
    }
}

impl Ground {
    fn slots(&self) -> Range<usize> {
        0..self.shared.geometry().members()
    }

    /// The number of the drive in a slot.
    pub(crate) fn disk(&self, slot: usize) -> Option<usize> {
        self.places.borrow()[slot].as_ref().map(|place| place.disk.borrow().name)
    }

    fn has_cause_to_fail(&self, slot: usize) -> bool {
        // Parity that is wrong must be noted; with so little room for that it may not fit.
        let has_little_room = self.bad_block_limit < Settings::BAD_BLOCK_LIMIT
            && self.shared.member_fault(slot) == Some(MemberFault::BadBlocksFull);
        has_little_room
            || self.disk(slot).is_none_or(|disk| {
                let hits = self.faults.hits(disk);
                hits.fatal > 0 || hits.reads >= self.read_error_limit
            })
    }

    fn is_out(&self, slot: usize) -> bool {
        self.out.borrow()[slot] || self.has_cause_to_fail(slot)
    }

    /// Looks at the members' states, whenever they have changed: no member fails without a cause.
    pub(crate) fn watch(&self) {
        let epoch = self.shared.epoch();
        if self.epoch.replace(epoch) == epoch {
            return;
        }
        let wanted = self.shared.wanted();
        let mut bad_blocks = self.bad_blocks.borrow_mut();
        let has_read_errors = |slot| self.disk(slot).is_some_and(|d| self.faults.hits(d).reads > 0);
        if wanted.bad_blocks != *bad_blocks {
            let len = |bad: &BadRange| bad.end_bytes - bad.start_bytes;
            let count = |all: &[Vec<BadRange>]| all.iter().flatten().map(len).sum::<u64>();
            // What a row has lost with a member is recorded on its parity.
            let has_parity = self.shared.geometry().parities() > 0;
            // And a member that is filled takes over what another has lost.
            let has_cause = self.brings_bad_blocks.get()
                || self.slots().any(|slot| {
                    has_read_errors(slot)
                        || has_parity && self.is_out(slot)
                        || !bad_blocks[slot].is_empty()
                });
            let are_more = count(&wanted.bad_blocks) > count(&bad_blocks);
            assert!(!are_more || has_cause, "bad blocks without a cause: {wanted:?}");
            for (ever, now) in self.ever_bad.borrow_mut().iter_mut().zip(&wanted.bad_blocks) {
                ever.extend(now);
            }
            bad_blocks.clone_from(&wanted.bad_blocks);
        }
        for (slot, state) in wanted.members.iter().enumerate() {
            if *state == MemberState::InSync {
                // It was so before, or its rebuild has ended.
                let was_out = std::mem::take(&mut self.out.borrow_mut()[slot]);
                if let (true, Some(disk)) = (was_out, self.disk(slot)) {
                    self.stale.borrow_mut()[disk] = false;
                }
                continue;
            }
            let known = self.out.borrow()[slot];
            assert!(
                known || self.has_cause_to_fail(slot),
                "member {slot} is {state:?} without a cause: {self:?}"
            );
            self.out.borrow_mut()[slot] = true;
            self.ever_out.borrow_mut()[slot] = true;
        }
    }

    /// The drives that take writes now.
    pub(crate) fn writable(&self) -> Vec<usize> {
        let states = self.shared.member_states();
        let takes_writes =
            |slot: &usize| matches!(states[*slot], MemberState::InSync | MemberState::Rebuilding);
        self.slots().filter(takes_writes).filter_map(|slot| self.disk(slot)).collect()
    }

    /// A write has been acknowledged, and these drives took writes when it was asked for: whoever
    /// did not then and does not now does not have it.
    pub(crate) fn note_acknowledged(&self, asked: &[usize]) {
        let now = self.writable();
        if asked.len() == self.stale.borrow().len() && now.len() == asked.len() {
            return;
        }
        for (disk, is_stale) in self.stale.borrow_mut().iter_mut().enumerate() {
            *is_stale |= !asked.contains(&disk) && !now.contains(&disk);
        }
    }

    /// Whether some read has failed.
    pub(crate) fn had_read_errors(&self) -> bool {
        let mut disks = self.slots().filter_map(|slot| self.disk(slot));
        disks.any(|disk| self.faults.hits(disk).reads > 0)
    }

    /// Whether more members may be lost than the level tolerates, for some part of the array.
    pub(crate) fn may_fail_writes(&self) -> bool {
        let capacity = self.shared.geometry().capacity_bytes() as usize / SECTOR_BYTES;
        self.exceeds_tolerance(&(0..capacity), |slot, _| self.is_out(slot))
    }

    /// Whether an operation of any drive timed out and may still be carried out.
    pub(crate) fn has_late_operations(&self) -> bool {
        self.places.borrow().iter().flatten().any(|place| place.disk.borrow().late > 0)
    }

    /// Whether some member may be out.
    pub(crate) fn is_degraded(&self) -> bool {
        self.slots().any(|slot| self.is_out(slot))
    }

    /// Whether a write may have found no space.
    pub(crate) fn had_no_space(&self) -> bool {
        self.faults.no_space() > 0
    }

    /// Whether the list of bad blocks of a member may be so full that an entry cannot become two, as
    /// it has to when the middle of it is written.
    pub(crate) fn may_lack_room(&self, slot: usize) -> bool {
        self.shared.bad_blocks(slot).len() as u64 >= u64::from(self.bad_block_limit)
    }

    /// Whether some of these sectors may be unreadable.
    pub(crate) fn may_be_unreadable(&self, at: &Range<usize>) -> bool {
        let end_bytes = (at.end * SECTOR_BYTES) as u64;
        if self.shared.failure().is_some() && end_bytes > self.shared.resync_position_bytes() {
            // Copies may differ there, and cannot be made equal any more.
            return true;
        }
        let bad = self.ever_bad.borrow();
        self.exceeds_tolerance(at, |slot, range| {
            let meets = |bad: &BadRange| bad.start_bytes < range.end && range.start < bad.end_bytes;
            self.is_out(slot)
                || self.ever_out.borrow()[slot]
                || self.disk(slot).is_some_and(|disk| self.faults.hits(disk).reads > 0)
                || bad[slot].iter().any(meets)
        })
    }

    /// Whether for some part of a range of sectors more places are out than may be.
    fn exceeds_tolerance(
        &self,
        at: &Range<usize>,
        is_out: impl Fn(usize, Range<u64>) -> bool,
    ) -> bool {
        let geometry = self.shared.geometry();
        let (start, len) = ((at.start * SECTOR_BYTES) as u64, (at.len() * SECTOR_BYTES) as u64);
        let parities = geometry.level().parities();
        if parities > 0 {
            let rows = geometry.row_of(start)..geometry.row_of(start + len.max(1) - 1) + 1;
            let from = geometry.row_component_offset(rows.start);
            let place = from..geometry.row_component_offset(rows.end);
            return self.slots().filter(|&slot| is_out(slot, place.clone())).count() > parities;
        }
        geometry.extents(start, len).any(|extent| {
            (0..extent.copies).all(|copy| {
                let place = extent.place(copy);
                is_out(place.slot, place.offset_bytes..place.offset_bytes + extent.len_bytes)
            })
        })
    }
}
