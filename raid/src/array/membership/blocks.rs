//! What is wrong with single blocks of members: bad blocks, which are noted durably, and read errors,
//! which are counted.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::error::ArrayError;
use super::super::shared::Shared;
use super::super::slots::SlotSet;
use super::{BadBlocks, BadRange, MemberFault, MemberState};
use crate::mutation::mutation;

/// Read errors count against a member for this long.
const READ_ERROR_WINDOW: Duration = Duration::from_secs(3600);

/// Bad blocks and read errors.
impl Shared {
    /// A member's bad blocks.
    pub fn bad_blocks(&self, slot: usize) -> Vec<BadRange> {
        let rare = self.rare();
        rare.membership.bad_blocks.get(slot).map_or_else(Vec::new, |list| list.ranges().to_vec())
    }

    /// Ranges of members' data areas hold nothing to be believed from now on: all of them, in one
    /// version.
    ///
    /// # Errors
    /// [`ArrayError::BadBlocksFull`] if one of the lists has no room for its part; then nothing has
    /// changed.
    pub(in crate::array) fn add_bad_blocks(
        &self,
        ranges: impl IntoIterator<Item = (usize, Range<u64>)>,
    ) -> Result<(), ArrayError> {
        if mutation!("forget-bad-block") {
            return Ok(());
        }
        let mut rare = self.rare();
        let mut lists = rare.membership.bad_blocks.clone();
        let mut grown = SlotSet::EMPTY;
        for (slot, range) in ranges {
            if lists.get_mut(slot).is_some_and(|list| list.add(range)) {
                grown.insert(slot);
            }
        }
        if let Some(slot) = grown.iter().find(|&slot| self.has_too_many(&lists[slot])) {
            return Err(ArrayError::BadBlocksFull { slot });
        }
        if !grown.is_empty() {
            rare.membership.bad_blocks = lists;
            self.map_changed(rare);
        }
        Ok(())
    }

    /// The same of one that has been written wrong already, as a part of the array that begins at
    /// `offset_bytes`. A member whose list has no room for it is out; if it is being rebuilt, its
    /// rebuild goes back to there instead.
    pub(in crate::array) fn must_add_bad_blocks(
        &self,
        slot: usize,
        range: Range<u64>,
        offset_bytes: u64,
    ) {
        if self.add_bad_blocks([(slot, range.clone())]).is_ok() {
            return;
        }
        let mut rare = self.rare();
        let membership = &mut rare.membership;
        if membership.members.get(slot) == Some(&MemberState::Rebuilding) {
            membership.rebuild_from = membership.rebuild_from.min(offset_bytes);
            self.hot.rebuild_position.fetch_min(offset_bytes, Ordering::AcqRel);
            rare.recovery.rebuild_anew();
            self.map_changed(rare);
            return;
        }
        // Should the array fail with it, it is not computed from all the same.
        if let Some(list) = membership.bad_blocks.get_mut(slot) {
            list.add(range);
        }
        drop(rare);
        self.fail_member(slot, MemberFault::BadBlocksFull);
    }

    fn has_too_many(&self, list: &BadBlocks) -> bool {
        list.entries() > u64::from(self.bad_block_limit)
    }

    /// A range of a member's data area was written, durably, and holds what it should. False if that
    /// cannot be noted, because what is left of an entry would be two, for which there is no room.
    pub(in crate::array) fn clear_bad_blocks(&self, slot: usize, range: Range<u64>) -> bool {
        let mut rare = self.rare();
        let Some(list) = rare.membership.bad_blocks.get_mut(slot) else { return true };
        let mut cleared = list.clone();
        if !cleared.remove(range) {
            return true;
        }
        if cleared.entries() > list.entries() && self.has_too_many(&cleared) {
            return false;
        }
        *list = cleared;
        self.map_changed(rare);
        true
    }

    /// Counts a read error of a member that is otherwise good; at the limit it is failed.
    pub(in crate::array) fn count_read_error(&self, slot: usize, now: Duration) {
        let mut rare = self.rare();
        let Some(errors) = rare.membership.read_errors.get_mut(slot) else { return };
        while errors.front().is_some_and(|&at| at + READ_ERROR_WINDOW < now) {
            errors.pop_front();
        }
        errors.push_back(now);
        let count = errors.len() as u32;
        if count >= self.read_error_limit {
            errors.clear();
            drop(rare);
            self.fail_member(slot, MemberFault::ReadErrors(count));
        }
    }
}
