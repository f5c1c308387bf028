//! A running array's metadata: who its members are, and what their superblocks say.
//!
//! Synchronous; called from one thread at a time. Every change is durable on every
//! member when the call returns, or an error names the member that could not take it: that
//! member has failed, and what is wanted is another thing then. After an error the change is
//! not in force; some members may have it all the same, which the next start, and the next
//! change, take into account ([`crate::metadata::record`]).
//!
//! The way of a start: [`ArrayHandle::assemble`], [`ArrayHandle::take_over`],
//! [`ArrayHandle::replay`], [`ArrayHandle::intent_layout`], and only then may data cores use the
//! members.

use super::error::UpdateError;
use super::examine::Examined;
use super::plan::{ArrayInfo, AssemblyPlan};
use crate::array::{BadRange, IN_SYNC, MemberState, Wanted};
use crate::device::Medium;
use crate::metadata::bitmap::RegionMap;
use crate::metadata::record::{Before, MetadataWrite, Replica, plan_record};
use crate::metadata::superblock::Superblock;
use crate::metadata::take_over::{Common, Kept, plan_take_over};
use crate::metadata::{Level, Timestamp};
use crate::mutation::mutation;

/// A drive in a slot of a running array.
#[derive(Debug, Clone)]
pub struct Member<M> {
    slot: usize,
    medium: M,
    pub(super) replica: Replica,
    /// What was found of logs and maps; after [`ArrayHandle::take_over`] nothing is missing.
    pub(super) kept: Kept,
    /// For a drive that was added: the number of the drive that was wanted in its slot until then.
    pub(super) after_device: Option<u64>,
}

impl<M: Medium> Member<M> {
    pub(super) fn new(slot: usize, medium: M, replica: Replica, kept: Kept) -> Self {
        Self { slot, medium, replica, kept, after_device: None }
    }

    /// Its slot.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// The drive.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Where its data begins, in bytes on the drive.
    pub fn data_offset_bytes(&self) -> u64 {
        self.replica.superblock.data_offset_bytes()
    }

    /// Its superblock as it is on the drive.
    pub fn superblock(&self) -> &Superblock {
        &self.replica.superblock
    }

    /// Its metadata as it is on the drive.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    pub(super) fn replace_medium(&mut self, medium: M) -> M {
        std::mem::replace(&mut self.medium, medium)
    }

    pub(super) fn into_medium(self) -> M {
        self.medium
    }
}

/// What [`ArrayHandle::record`] has made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The event count of all members now.
    pub events: u64,
    /// A member was lost by it: before the change is acknowledged, whoever remembers the array
    /// ([`super::Expected::known_events`]) has to remember this count.
    pub lost_member: bool,
}

/// An array whose drives are ours.
#[derive(Debug, Clone)]
pub struct ArrayHandle<M> {
    info: ArrayInfo,
    /// The drives by slot; a slot may be empty.
    pub(super) members: Vec<Member<M>>,
    /// What the superblocks say, as far as they say it.
    recorded: Wanted,
    pub(super) common: Common,
    taken_over: bool,
    /// The logs have not been replayed yet.
    awaits_replay: bool,
    /// Regions that a crash has left inconsistent, as far as they are not known to be repaired.
    dirty: Option<RegionMap>,
}

impl<M: Medium> ArrayHandle<M> {
    pub(super) fn new(
        info: ArrayInfo,
        members: Vec<Member<M>>,
        recorded: Wanted,
        common: Common,
    ) -> Self {
        Self {
            info,
            members,
            recorded,
            common,
            taken_over: false,
            awaits_replay: false,
            dirty: None,
        }
    }

    /// Takes the drives of a plan: `drives` and `media` in the order that was examined.
    /// Nothing is written. Also returns the media that the array does not need.
    ///
    /// An array that was not stopped cleanly counts as clean up to where its resync has
    /// to begin; "active" is recorded before the first write as always.
    pub fn assemble(plan: &AssemblyPlan, drives: &[Examined], media: Vec<M>) -> (Self, Vec<M>) {
        let mut media: Vec<Option<M>> = media.into_iter().map(Some).collect();
        let members = plan.slots.iter().enumerate().filter_map(|(slot, in_slot)| {
            let index = in_slot.drive?;
            let medium = media.get_mut(index)?.take()?;
            let drive = drives.get(index)?;
            Some(Member::new(slot, medium, drive.replica()?, drive.kept.clone()))
        });
        let members = members.collect();
        let common =
            Common { bitmap: plan.bitmap.clone(), degraded_map: plan.degraded_map.clone() };
        let recorded = Wanted {
            version: 0,
            active: false,
            members: plan.members(),
            rebuild_from: plan.rebuild_from_bytes,
            resync_from: plan.info.resync_from_bytes.unwrap_or(IN_SYNC),
            bad_blocks: plan.slots.iter().map(|slot| slot.bad_blocks.clone()).collect(),
            devices: (0..).take(plan.slots.len()).collect(),
        };
        let mut handle = Self::new(plan.info.clone(), members, recorded, common);
        (handle.awaits_replay, handle.dirty) = (plan.replay, plan.dirty.clone());
        (handle, media.into_iter().flatten().collect())
    }

    /// What the array is (as it was found or created, but for its event count).
    pub fn info(&self) -> &ArrayInfo {
        &self.info
    }

    /// The drives that are there, by slot.
    pub fn members(&self) -> &[Member<M>] {
        &self.members
    }

    /// The drive in a slot.
    pub fn member(&self, slot: usize) -> Option<&Member<M>> {
        self.members.iter().find(|member| member.slot == slot)
    }

    /// What was last recorded, or found.
    pub fn recorded(&self) -> &Wanted {
        &self.recorded
    }

    /// Whether the superblocks say "active".
    pub fn is_active(&self) -> bool {
        self.recorded.active
    }

    /// Up to where the copies agree, in bytes of the array; None: everywhere.
    pub fn resync_from_bytes(&self) -> Option<u64> {
        let position = self.recorded.resync_from;
        (position < self.info.size_bytes()).then_some(position)
    }

    /// Gives members the bitmaps, logs and maps that they lack. To be called once, after logs have
    /// been replayed and before anybody else writes to the members; [`Self::record`] does it
    /// otherwise.
    ///
    /// # Errors
    /// Names the member that failed; it may be called again.
    pub fn take_over(&mut self) -> Result<(), UpdateError> {
        let events = self.members.iter().map(|member| member.replica.superblock.events());
        self.common.raise_events(events.max().unwrap_or(0));
        for index in 0..self.members.len() {
            self.take_over_member(index)?;
        }
        self.taken_over = true;
        Ok(())
    }

    pub(super) fn take_over_member(&mut self, index: usize) -> Result<(), UpdateError> {
        let Some(member) = self.members.get_mut(index) else { return Ok(()) };
        let writes = plan_take_over(member.slot, &member.replica, &member.kept, &self.common);
        for write in writes {
            apply(member, &write)?;
        }
        member.kept = Kept {
            bitmap: self.common.bitmap.clone(),
            ppl: true,
            write_log: true,
            degraded_map: self.common.degraded_map.clone(),
        };
        Ok(())
    }

    /// Makes what is wanted durable on the members that are in sync or being rebuilt in it. Flushes
    /// them before they say "clean".
    ///
    /// # Errors
    /// Names the member that failed; nothing of what is wanted counts then.
    pub fn record(&mut self, wanted: &Wanted) -> Result<Recorded, UpdateError> {
        if !self.taken_over {
            self.take_over()?;
        }
        let wanted = self.without_older_drives(wanted);
        let said = self.sayable(&wanted)?;
        if self.recorded.active && !wanted.active && !mutation!("clean-without-flush") {
            self.flush(&wanted)?;
        }
        let mut replicas = vec![None; self.info.geometry.members];
        for member in &self.members {
            if let Some(place) = replicas.get_mut(member.slot) {
                *place = Some(member.replica.clone());
            }
        }
        let geometry = self.info.geometry;
        let before =
            Before { replicas: &replicas, active: self.recorded.active, geometry: &geometry };
        let plan = plan_record(&before, &said, Timestamp::now()).map_err(|cannot| {
            let name = self.member(cannot.slot).map_or_else(String::new, |m| m.medium.name());
            UpdateError::Cannot { slot: cannot.slot, name, reason: cannot.reason }
        })?;
        for write in &plan.writes {
            if let Some(member) = self.members.iter_mut().find(|m| m.slot == write.member) {
                apply(member, write)?;
            }
        }
        for member in &mut self.members {
            let state = wanted.members.get(member.slot);
            if matches!(state, Some(MemberState::Rebuilding | MemberState::InSync)) {
                member.after_device = None;
            }
        }
        self.refresh_events();
        self.recorded = wanted;
        Ok(Recorded { events: self.info.events, lost_member: plan.loses_member })
    }

    /// What the superblocks may say of what is wanted, as long as what a crash has left is not
    /// repaired: "active" until the logs are replayed, and no position behind a dirty region.
    fn sayable(&mut self, wanted: &Wanted) -> Result<Wanted, UpdateError> {
        let mut said = Wanted { active: wanted.active || self.awaits_replay, ..wanted.clone() };
        if !said.active
            && let Some(first) = self.first_dirty(&wanted.members)?
        {
            said.resync_from = said.resync_from.min(first);
        }
        Ok(said)
    }

    pub(super) fn has_taken_over(&self) -> bool {
        self.taken_over
    }

    pub(super) fn awaits_replay(&self) -> bool {
        self.awaits_replay
    }

    pub(super) fn replay_is_done(&mut self) {
        self.awaits_replay = false;
    }

    pub(super) fn dirty(&self) -> Option<&RegionMap> {
        self.dirty.as_ref()
    }

    pub(super) fn dirty_mut(&mut self) -> Option<&mut RegionMap> {
        self.dirty = self.dirty.take().filter(|dirty| !dirty.is_empty());
        self.dirty.as_mut()
    }

    /// From here on, nothing is known to agree.
    pub(super) fn sync_from(&mut self, position_bytes: u64) {
        self.recorded.resync_from = self.recorded.resync_from.min(position_bytes);
    }

    pub(super) fn refresh_events(&mut self) {
        let events = self.members.iter().map(|m| m.replica.superblock.events()).max();
        self.info.events = events.unwrap_or(self.info.events);
    }

    /// What is wanted of a drive that is not the one in the slot any more is wanted of nobody.
    fn without_older_drives(&self, wanted: &Wanted) -> Wanted {
        let mut wanted = wanted.clone();
        for member in &self.members {
            let device = wanted.devices.get(member.slot);
            if let Some(state) = wanted.members.get_mut(member.slot)
                && member.after_device.is_some()
                && member.after_device.as_ref() == device
            {
                *state = MemberState::Failed;
            }
        }
        wanted
    }

    fn flush(&self, wanted: &Wanted) -> Result<(), UpdateError> {
        for member in &self.members {
            let state = wanted.members.get(member.slot);
            if !matches!(state, Some(MemberState::InSync | MemberState::Rebuilding)) {
                continue;
            }
            member.medium.flush().map_err(|source| UpdateError::Flush {
                slot: member.slot,
                name: member.medium.name(),
                source,
            })?;
        }
        Ok(())
    }

    /// Gives the drives back, in slot order. Whatever the superblocks say stays.
    pub fn into_media(self) -> Vec<M> {
        self.members.into_iter().map(Member::into_medium).collect()
    }
}

/// For who has no engine to say what is wanted.
impl<M: Medium> ArrayHandle<M> {
    /// Makes "active" durable, before the first write after clean is submitted.
    ///
    /// # Errors
    /// Names the member; the array must not be written to.
    pub fn mark_active(&mut self) -> Result<(), UpdateError> {
        let wanted = Wanted { active: true, ..self.recorded.clone() };
        if self.recorded.active { Ok(()) } else { self.record(&wanted).map(drop) }
    }

    /// Makes "clean" durable, once no write is under way. Flushes every member first.
    ///
    /// # Errors
    /// Names the member; the array counts as active still.
    pub fn mark_clean(&mut self) -> Result<(), UpdateError> {
        let wanted = Wanted { active: false, ..self.recorded.clone() };
        if self.recorded.active { self.record(&wanted).map(drop) } else { Ok(()) }
    }

    /// Notes up to where the copies agree, in bytes of the array (`u64::MAX`, or anything
    /// from its end on: everywhere). Flushes every member first.
    ///
    /// # Errors
    /// Names the member; the position is not noted.
    pub fn checkpoint_resync(&mut self, position_bytes: u64) -> Result<(), UpdateError> {
        let geometry = self.info.geometry;
        // What the superblock can say.
        let sectors = geometry.resync_sectors(position_bytes);
        let resync_from = geometry.resync_bytes(sectors).unwrap_or(IN_SYNC);
        if resync_from == self.recorded.resync_from || geometry.level == Level::Raid0 {
            return Ok(());
        }
        let wanted = Wanted { resync_from, ..self.recorded.clone() };
        self.flush(&wanted)?;
        self.record(&wanted).map(drop)
    }

    /// Notes a member's bad blocks, sorted ranges of its data.
    ///
    /// # Errors
    /// Names the member; they are not noted.
    pub fn record_bad_blocks(
        &mut self,
        slot: usize,
        bad_blocks: Vec<BadRange>,
    ) -> Result<(), UpdateError> {
        let mut wanted = self.recorded.clone();
        if let Some(list) = wanted.bad_blocks.get_mut(slot) {
            *list = bad_blocks;
        }
        self.record(&wanted).map(drop)
    }
}

/// Makes one write durable.
pub(super) fn apply<M: Medium>(
    member: &mut Member<M>,
    write: &MetadataWrite,
) -> Result<(), UpdateError> {
    member.medium.write_durable(write.offset_bytes, &*write.bytes).map_err(|source| {
        UpdateError::Write {
            slot: member.slot,
            name: member.medium.name(),
            what: write.what(),
            source,
        }
    })?;
    write.apply(&mut member.replica);
    Ok(())
}
