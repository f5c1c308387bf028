//! Drives that come into a running array and leave it.
//!
//! **Adding.** A drive gets its superblock first, as a spare that says that nothing of it has been
//! rebuilt, then bitmap, log and map, and its role with the next [`ArrayHandle::record`] that wants
//! it rebuilt. A crash anywhere leaves a spare, which can be added again. It gets a device number of
//! its own even if it was a member before, so that no older superblock can take it for what it was.
//!
//! What md wrote into the bitmap of other members in the meantime is read from one of them: while
//! members are missing, bits are only ever set. Whoever keeps the bits at run time writes all of
//! them to a member that becomes writable.

use super::error::{AddError, UpdateError};
use super::examine::Examined;
use super::handle::{ArrayHandle, Member};
use crate::array::MemberState;
use crate::device::Medium;
use crate::device::signature::Contents;
use crate::metadata::Consistency;
use crate::metadata::bitmap::{Bitmap, BitmapSuperblock, MapUnit, RegionMap};
use crate::metadata::private::{Copy, Header, PrivateArea, SectionKind, superblock_hash};
use crate::metadata::record::{CannotRecordReason, Replica, member_writes};
use crate::metadata::superblock::{Role, Superblock};
use crate::metadata::take_over::Kept;
use std::io;
use std::ops::Range;
use uuid::Uuid;

impl<M: Medium> ArrayHandle<M> {
    /// Takes a drive into a slot that has no member. It becomes one when [`Self::record`] is asked
    /// to have it rebuilt. `drive` is what was found on it: it has to be blank, or of this array
    /// and no member, unless `overwrite`.
    ///
    /// # Errors
    /// Says why not; then the array is unchanged, and the drive a spare at most.
    pub fn add(
        &mut self,
        slot: usize,
        medium: M,
        drive: &Examined,
        overwrite: bool,
    ) -> Result<(), AddError> {
        let is_member = |state: Option<&MemberState>| {
            matches!(state, None | Some(MemberState::InSync | MemberState::Rebuilding))
        };
        if self.member(slot).is_some() || is_member(self.recorded().members.get(slot)) {
            return Err(AddError::SlotTaken(slot));
        }
        let ours = drive.superblock().filter(|s| s.array_uuid() == self.info().uuid);
        if drive.contents != Contents::Blank
            && !drive.is_unfinished()
            && ours.is_none()
            && !overwrite
        {
            let contents = drive.contents.to_string();
            return Err(AddError::NotBlank { name: medium.name(), contents });
        }
        let like = self.member_in_sync().ok_or(AddError::NoMember)?;
        let component_bytes = self.info().geometry.component_bytes;
        let needed_bytes = like.data_offset_bytes().saturating_add(component_bytes);
        let (name, size_bytes) = (medium.name(), medium.size_bytes());
        if size_bytes < needed_bytes {
            return Err(AddError::TooSmall { name, size_bytes, needed_bytes });
        }
        let like = like.replica().clone();
        // Several may be added before the first of them has its role.
        let given: Vec<u32> =
            self.members.iter().map(|member| member.superblock().device_number()).collect();
        let number = like.superblock.roles().free_number(self.info().geometry.members, &given);
        let reason = CannotRecordReason::NoNumber;
        let number = number.ok_or(UpdateError::Cannot { slot, name, reason })?;
        let device_uuid = ours.map_or_else(Uuid::new_v4, Superblock::device_uuid);
        let superblock = like.superblock.for_new_member(number, device_uuid);
        let header = new_header(&like, drive, &superblock);
        let private = PrivateArea::Absent;
        let replica = Replica { superblock: superblock.clone(), private, bad_blocks: None };
        let mut member = Member::new(slot, medium, replica, Kept::default());
        member.after_device = self.recorded().devices.get(slot).copied();
        for write in member_writes(header, superblock, slot) {
            super::handle::apply(&mut member, &write)?;
        }
        self.read_common()?;
        let index = self.members.partition_point(|other| other.slot() < slot);
        self.members.insert(index, member);
        if let Err(error) = self.take_over_member(index) {
            self.members.remove(index);
            return Err(error.into());
        }
        Ok(())
    }

    /// Gives back the drive of a slot whose member has failed, or was never one.
    pub fn remove(&mut self, slot: usize) -> Option<M> {
        let state = self.recorded().members.get(slot);
        if matches!(state, Some(MemberState::InSync | MemberState::Rebuilding)) {
            return None;
        }
        let index = self.members.iter().position(|member| member.slot() == slot)?;
        Some(self.members.remove(index).into_medium())
    }

    /// Puts another handle on the same drive in place of the one in a slot: the drive was gone and is
    /// back. Gives the old handle back, or the new one if what is on the drive is not what the member
    /// in that slot was last given: then it is not that drive, or it was used elsewhere meanwhile.
    ///
    /// # Errors
    /// The medium that is not the member's.
    pub fn reopen(&mut self, slot: usize, medium: M, drive: &Examined) -> Result<M, M> {
        let is_it = |member: &Member<M>| {
            member.slot() == slot && drive.superblock() == Some(member.superblock())
        };
        match self.members.iter_mut().find(|member| is_it(member)) {
            Some(member) => Ok(member.replace_medium(medium)),
            None => Err(medium),
        }
    }

    /// Which regions a drive misses that was the member of `slot` and is not any more; None if that
    /// is not known, so that it misses everything.
    ///
    /// # Errors
    /// If a member cannot be read.
    pub fn missed_by(
        &mut self,
        slot: usize,
        drive: &Examined,
    ) -> Result<Option<RegionMap>, UpdateError> {
        let Some(superblock) = drive.superblock() else { return Ok(None) };
        if superblock.array_uuid() != self.info().uuid || superblock.recovery_sectors().is_some() {
            return Ok(None);
        }
        let was_here =
            superblock.own_role() == u16::try_from(slot).map_or(Role::Faulty, Role::Active);
        let in_sync = |member: &&Member<M>| self.is_in_sync(member.slot());
        // It may have been used alone.
        let agrees =
            self.members.iter().filter(in_sync).all(|member| {
                superblock.role_of(member.superblock().device_number()) != Role::Faulty
            });
        // A bitmap has the bits of what was never synced set; a degraded-write map tells what was
        // written, and not what was synced without this one.
        let was_synced = self.info().consistency == Consistency::Bitmap
            || drive.was_synced(self.info().size_bytes());
        if !was_here || !agrees || !was_synced || matches!(drive.bad_blocks, Some(Err(_))) {
            return Ok(None);
        }
        self.read_common()?;
        let map = self.common.bitmap.as_ref().or(self.common.degraded_map.as_ref());
        let map = map.filter(|map| map.tells_since(superblock.events()));
        Ok(map.map(|map| map.regions.clone()))
    }

    fn is_in_sync(&self, slot: usize) -> bool {
        self.recorded().members.get(slot) == Some(&MemberState::InSync)
    }

    fn member_in_sync(&self) -> Option<&Member<M>> {
        self.member_in_sync_with(&self.recorded().members)
    }

    /// The newest member that is in sync, and shall be.
    fn member_in_sync_with(&self, wanted: &[MemberState]) -> Option<&Member<M>> {
        let stays = |slot| wanted.get(slot) == Some(&MemberState::InSync) && self.is_in_sync(slot);
        let in_sync = self.members.iter().filter(|member| stays(member.slot()));
        in_sync.max_by_key(|member| member.superblock().events())
    }

    /// Reads the bitmap and the degraded-write map as they are now.
    fn read_common(&mut self) -> Result<(), UpdateError> {
        let failed = |(slot, name, source)| UpdateError::Read { slot, name, source };
        let states = self.recorded().members.clone();
        let bitmap = self.bitmap_now(&states).map_err(failed)?;
        let map = self.read_map(&states, |replica| {
            replica.private.believed().and_then(|h| h.place(SectionKind::DegradedWriteMap))
        });
        let map = map.map_err(failed)?;
        self.common.bitmap = bitmap.or(self.common.bitmap.take());
        self.common.degraded_map = map.or(self.common.degraded_map.take());
        Ok(())
    }

    /// The write-intent bitmap as it is on the newest member that is in sync and shall be: one that
    /// has failed since the superblocks were last written is not asked.
    pub(super) fn bitmap_now(
        &self,
        wanted: &[MemberState],
    ) -> Result<Option<Bitmap>, (usize, String, io::Error)> {
        self.read_map(wanted, |replica| replica.superblock.bitmap_place())
    }

    fn read_map(
        &self,
        wanted: &[MemberState],
        place: impl FnOnce(&Replica) -> Option<Range<u64>>,
    ) -> Result<Option<Bitmap>, (usize, String, io::Error)> {
        let Some(member) = self.member_in_sync_with(wanted) else { return Ok(None) };
        let Some(place) = place(member.replica()) else { return Ok(None) };
        let uuid = self.info().uuid;
        let bytes = read_bitmap(member.medium(), &place, uuid)
            .map_err(|source| (member.slot(), member.medium().name(), source))?;
        let unit = MapUnit::of(self.info().geometry.level);
        let covered = self.info().geometry.mapped_bytes();
        Ok(bytes.and_then(|bytes| Bitmap::parse(&bytes, uuid, unit, covered).ok()))
    }
}

/// The bytes of a bitmap, if one is there.
fn read_bitmap(
    medium: &impl Medium,
    place: &Range<u64>,
    array_uuid: Uuid,
) -> io::Result<Option<Vec<u8>>> {
    let mut first = [0; 4096];
    medium.read_at(place.start, &mut first)?;
    let Ok(head) = BitmapSuperblock::parse(&first, array_uuid) else { return Ok(None) };
    if head.bitmap_bytes() > place.end - place.start {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(head.bitmap_bytes()).unwrap_or(0)];
    medium.read_at(place.start, &mut bytes)?;
    Ok(Some(bytes))
}

/// A private header like that of another member; None if the array has no private areas.
fn new_header(like: &Replica, drive: &Examined, superblock: &Superblock) -> Option<(Header, Copy)> {
    let theirs = like.private.header()?;
    // If the drive has been a member, its header counts on.
    let (generation, copy) = match &drive.private {
        PrivateArea::Void { last, copy } | PrivateArea::Believed { header: last, copy }
            if last.device_uuid == superblock.device_uuid() =>
        {
            (last.generation + 1, copy.other())
        }
        _ => (1, Copy::First),
    };
    let header = Header {
        device_uuid: superblock.device_uuid(),
        generation,
        superblock_hash: superblock_hash(superblock),
        synced_bytes: 0,
        ..theirs.clone()
    };
    Some((header, copy))
}
