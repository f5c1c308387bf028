//! One core's use of its slots: its copy of the member map, views of ranges, and the operations on
//! members with their consequences for the map.

use std::cell::Ref;
use std::ops::Range;
use std::rc::Rc;

use super::agreement;
use super::member::{Member, MemberError};
use super::membership::{MapCopy, MemberFault};
use super::slots::SlotSet;
use super::{Array, SetupError};
use crate::buffer::{Buffer, SharedBuffer};
use crate::drive::{Drive, DriveError, ReadFailure};
use crate::geometry::Place;
use crate::mutation::mutation;

/// Which members can be used for a range of the array. Taken under the range's lock it stays true
/// until the epoch changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Slots whose part of the range holds what it should, as far as `agrees`.
    pub readable: SlotSet,
    /// Slots that every write must reach.
    pub writable: SlotSet,
    /// Whether the copies of the range are equal, or its parity is right.
    pub agrees: bool,
    /// The epoch in which this was so.
    pub(super) epoch: u64,
}

impl MapCopy {
    /// Whether a place on a member holds what it should, for a range of the array that ends before
    /// the rebuild position or not.
    fn is_readable(&self, slot: usize, place: &Range<u64>, is_rebuilt: bool) -> bool {
        let is_good = self.in_sync.contains(slot) && !self.suspect.contains(slot)
            || (is_rebuilt || mutation!("read-rebuilding-member"))
                && self.rebuilding.contains(slot);
        is_good
            && !(self.with_bad_blocks.contains(slot)
                && !mutation!("read-bad-block")
                && self.bad_blocks.get(slot).is_some_and(|bad| bad.overlaps(place)))
    }
}

impl<D: Drive> Array<D> {
    /// This core's copy of the map, brought up to date.
    pub(super) fn map(&self) -> Ref<'_, MapCopy> {
        self.look();
        Ref::map(self.map.borrow(), |map| &**map)
    }

    /// Looks whether the members have changed, and ends the waiting for those that are out. Every
    /// request does; on a core that has none, call it now and then.
    pub fn look(&self) {
        if self.map.borrow().epoch == self.shared.epoch() {
            return;
        }
        let new = self.shared.map();
        let used = new.in_sync.or(new.rebuilding);
        let old = self.map.replace(new);
        for slot in old.in_sync.or(old.rebuilding).without(used).iter() {
            if let Some(member) = self.member(slot) {
                member.give_up();
            }
        }
    }

    /// What can be used of the members for a range of the array.
    pub fn view(&self, range: Range<u64>) -> View {
        let map = self.map();
        let is_rebuilt = range.end <= self.shared.rebuild_position_bytes();
        let geometry = self.shared.geometry();
        let is_readable = |&slot: &usize| {
            let place = geometry.member_range(slot, range.start, range.end - range.start);
            map.is_readable(slot, &place, is_rebuilt)
        };
        let writable = map.in_sync.or(map.rebuilding);
        View {
            readable: writable.iter().filter(is_readable).collect(),
            writable,
            agrees: self.agrees(&range),
            epoch: map.epoch,
        }
    }

    /// Whether a view is as good as a new one.
    pub fn is_current(&self, view: &View) -> bool {
        view.epoch == self.shared.epoch()
    }

    /// Whether the copies of a range are equal, or its parity is right.
    pub(super) fn agrees(&self, range: &Range<u64>) -> bool {
        range.end <= self.shared.resync_position_bytes() && !self.shared.intent.is_dirty(range)
    }

    /// Whether a place of `len_bytes` can be read, of a range of the array that ends at
    /// `end_bytes`.
    pub(super) fn is_readable(&self, place: Place, len_bytes: u64, end_bytes: u64) -> bool {
        let is_rebuilt = end_bytes <= self.shared.rebuild_position_bytes();
        let range = place.offset_bytes..place.offset_bytes + len_bytes;
        self.map().is_readable(place.slot, &range, is_rebuilt)
    }

    /// The member in a slot, if this core has a drive there.
    pub(super) fn member(&self, slot: usize) -> Option<Rc<Member<D>>> {
        self.members.get(slot)?.borrow().clone()
    }

    /// Gives an empty slot a drive, whose data area begins at `data_offset_bytes`. Done on every
    /// core, before [`Shared::add_member`](super::Shared::add_member).
    ///
    /// # Errors
    /// If the drive does not fit.
    pub fn set_drive(
        &self,
        slot: usize,
        drive: D,
        data_offset_bytes: u64,
    ) -> Result<(), SetupError> {
        let place = self.members.get(slot).ok_or(SetupError::NoDataOffset { slot })?;
        Self::check_drive(&self.shared, slot, &drive, data_offset_bytes)?;
        let block_bytes = drive.block_size_bytes();
        if block_bytes > self.block_bytes {
            let array_bytes = self.block_bytes;
            return Err(SetupError::BlockSize { slot, block_bytes, array_bytes });
        }
        let always_fua = !self.has_volatile_cache;
        let member = Rc::new(Member::new(drive, slot, data_offset_bytes, always_fua));
        *place.borrow_mut() = Some(member);
        Ok(())
    }

    /// Takes the drive out of a slot whose member is failed or missing. Its handle is dropped when
    /// the last operation on it has ended.
    pub fn take_drive(&self, slot: usize) {
        let map = self.map();
        if !map.in_sync.or(map.rebuilding).contains(slot)
            && let Some(place) = self.members.get(slot)
        {
            *place.borrow_mut() = None;
        }
    }

    /// Operations on the drive in a slot, of all cores, that have timed out and not ended below.
    pub fn late_operations(&self, slot: usize) -> usize {
        self.member(slot).map_or(0, |member| member.late_operations())
    }

    /// Reads from a member. A drive that is gone or does not answer has failed.
    pub(super) async fn read_member(
        &self,
        place: Place,
        buffer: Buffer,
    ) -> Result<Buffer, ReadFailure> {
        let Some(member) = self.member(place.slot) else {
            return Err(ReadFailure::new(DriveError::Gone, buffer));
        };
        let under_way = member.begin_read(place.offset_bytes, buffer.len());
        let (drive, offset_bytes) = member.drive_at(place.offset_bytes);
        let result = drive.read(offset_bytes, buffer).await;
        drop(under_way);
        if let Err(failure) = &result {
            self.not_read(place.slot, &member, failure.error);
        }
        result
    }

    /// A member did not read. If it is gone or does not answer it has failed.
    pub(super) fn not_read(&self, slot: usize, member: &Rc<Member<D>>, error: DriveError) {
        member.read_failed(&self.shared, error);
        if matches!(error, DriveError::Gone | DriveError::TimedOut) {
            self.fail(slot, member, MemberFault::Unreachable(error));
        }
    }

    /// Writes to a member. One that cannot has failed; what was bad there is good again.
    pub(super) async fn write_member(
        &self,
        place: Place,
        data: SharedBuffer,
        fua: bool,
    ) -> Result<(), MemberError> {
        let end_bytes = place.offset_bytes + data.len() as u64;
        let Some(member) = self.member(place.slot) else {
            return Err(MemberError { slot: place.slot, error: DriveError::Gone });
        };
        let (drive, offset_bytes) = member.drive_at(place.offset_bytes);
        // What counts as good from then on must still be there after a power cut.
        let fua = fua
            || self.is_bad(place.slot, &(place.offset_bytes..end_bytes))
                && !mutation!("clear-bad-block-before-it-is-durable");
        let result = drive.write(offset_bytes, data, member.needs_fua(fua)).await;
        let result = result.map_err(|error| member.write_failed(&self.shared, error));
        self.written(&member, place.slot, place.offset_bytes..end_bytes, result)
    }

    /// Zeroes a member's range, as [`Self::write_member`]; `Unsupported` is no failure.
    pub(super) async fn zero_member(
        &self,
        place: Place,
        len_bytes: u64,
        deallocate: bool,
    ) -> Result<(), MemberError> {
        let Place { slot, offset_bytes } = place;
        let Some(member) = self.member(slot) else {
            return Err(MemberError { slot, error: DriveError::Gone });
        };
        let mut result = member.zero(&self.shared, offset_bytes, len_bytes, deallocate).await;
        if result.is_ok() && self.is_bad(slot, &(offset_bytes..offset_bytes + len_bytes)) {
            result = self.flush_member(slot).await;
        }
        self.written(&member, slot, offset_bytes..offset_bytes + len_bytes, result)
    }

    /// Writes durably to a member's drive, outside of its data area. A member that cannot has
    /// failed, but for lack of space.
    pub(super) async fn write_outside(
        &self,
        slot: usize,
        drive_offset_bytes: u64,
        data: SharedBuffer,
    ) -> Result<(), MemberError> {
        let Some(member) = self.member(slot) else {
            return Err(MemberError { slot, error: DriveError::Gone });
        };
        let result = member.write_outside(&self.shared, drive_offset_bytes, data).await;
        if let Err(MemberError { error, .. }) = result
            && error != DriveError::NoSpace
        {
            self.fail(slot, &member, MemberFault::Write(error));
        }
        result
    }

    /// Flushes a member. One that cannot has failed.
    pub(super) async fn flush_member(&self, slot: usize) -> Result<(), MemberError> {
        let Some(member) = self.member(slot) else {
            return Err(MemberError { slot, error: DriveError::Gone });
        };
        let result = member.flush(&self.shared).await;
        if let Err(MemberError { error, .. }) = result {
            self.fail(slot, &member, MemberFault::Flush(error));
        }
        result
    }

    fn written(
        &self,
        member: &Rc<Member<D>>,
        slot: usize,
        range: Range<u64>,
        result: Result<(), MemberError>,
    ) -> Result<(), MemberError> {
        match result {
            Ok(()) if self.map().with_bad_blocks.contains(slot) && self.is_in(slot, member) => {
                if !self.shared.clear_bad_blocks(slot, range) {
                    return Err(MemberError { slot, error: DriveError::NoSpace });
                }
            }
            Ok(())
            | Err(MemberError { error: DriveError::NoSpace | DriveError::Unsupported, .. }) => {}
            Err(_) if mutation!("keep-member-after-failed-write") => {}
            Err(MemberError { error, .. }) => self.fail(slot, member, MemberFault::Write(error)),
        }
        result
    }

    /// Whether a part of a member's range is bad.
    fn is_bad(&self, slot: usize, range: &Range<u64>) -> bool {
        let map = self.map();
        map.with_bad_blocks.contains(slot)
            && map.bad_blocks.get(slot).is_some_and(|bad| bad.overlaps(range))
    }

    /// Fails a member, unless another drive has taken its place meanwhile.
    fn fail(&self, slot: usize, member: &Rc<Member<D>>, fault: MemberFault) {
        if self.is_in(slot, member) {
            self.shared.fail_member(slot, fault);
            self.look();
        }
    }

    fn is_in(&self, slot: usize, member: &Rc<Member<D>>) -> bool {
        self.member(slot).is_some_and(|now| Rc::ptr_eq(&now, member))
    }

    /// Whether the level has something to answer from when a member cannot be read.
    pub(super) fn has_redundancy(&self) -> bool {
        agreement::can_differ(self.shared.geometry())
    }
}
