//! A running array's metadata: who its members are, and what their superblocks say.
//!
//! Synchronous; called from one thread at a time. Every change is durable on every
//! member when the call returns, or an error names the member that could not take it.
//! After an error the change is not in force; some members may have it all the same,
//! which the next start, and the next change, take into account
//! ([`crate::metadata::update`]).

use super::error::UpdateError;
use super::examine::Examined;
use super::plan::{ArrayInfo, AssemblyPlan};
use crate::device::Medium;
use crate::metadata::superblock::{IN_SYNC, Superblock};
use crate::metadata::update::{Change, Replica, plan_change, resync_sectors};
use crate::metadata::{Level, SECTOR_BYTES, Timestamp};

/// A member of a running array.
#[derive(Debug)]
pub struct Member<M> {
    medium: M,
    replica: Replica,
}

impl<M: Medium> Member<M> {
    pub(super) fn new(medium: M, replica: Replica) -> Self {
        Self { medium, replica }
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
}

/// An array whose drives are ours.
#[derive(Debug)]
pub struct ArrayHandle<M> {
    info: ArrayInfo,
    members: Vec<Member<M>>,
    /// Whether the superblocks say that it may be being written to.
    active: bool,
    /// Up to where the copies agree: sectors of the array, or [`IN_SYNC`]. While the
    /// array is active this is in memory only.
    position_sectors: u64,
}

impl<M: Medium> ArrayHandle<M> {
    pub(super) fn new(info: ArrayInfo, members: Vec<Member<M>>, position_sectors: u64) -> Self {
        Self { info, members, active: false, position_sectors }
    }

    /// Takes the drives of a plan: `drives` and `media` in the order that was examined.
    /// Nothing is written. Also returns the media that the array does not need.
    ///
    /// An array that was not stopped cleanly counts as clean up to where its resync has
    /// to begin; [`Self::mark_active`] comes before the first write as always.
    pub fn assemble(plan: &AssemblyPlan, drives: &[Examined], media: Vec<M>) -> (Self, Vec<M>) {
        let mut media: Vec<Option<M>> = media.into_iter().map(Some).collect();
        let members = plan.order.iter().filter_map(|index| {
            let medium = media.get_mut(*index)?.take()?;
            let drive = drives.get(*index)?;
            let superblock = drive.superblock()?.clone();
            Some(Member::new(medium, Replica { superblock, private: drive.private.clone() }))
        });
        let members = members.collect();
        let info = plan.info.clone();
        let position = info.resync_from_bytes.map_or(IN_SYNC, |bytes| bytes / SECTOR_BYTES);
        (Self::new(info, members, position), media.into_iter().flatten().collect())
    }

    /// What the array is (as it was found or created).
    pub fn info(&self) -> &ArrayInfo {
        &self.info
    }

    /// The members in slot order.
    pub fn members(&self) -> &[Member<M>] {
        &self.members
    }

    /// Whether the superblocks say "active".
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Up to where the copies agree, in bytes of the array; None: everywhere.
    pub fn resync_from_bytes(&self) -> Option<u64> {
        (self.position_sectors != IN_SYNC).then(|| self.position_sectors * SECTOR_BYTES)
    }

    /// Makes "active" durable, before the first write after clean is submitted.
    ///
    /// # Errors
    /// Names the member; the array must not be written to.
    pub fn mark_active(&mut self) -> Result<(), UpdateError> {
        if self.active {
            return Ok(());
        }
        self.change_state(Change::Active)?;
        self.active = true;
        Ok(())
    }

    /// Makes "clean" durable, once no write is under way. Flushes every member first.
    ///
    /// # Errors
    /// Names the member; the array counts as active still.
    pub fn mark_clean(&mut self) -> Result<(), UpdateError> {
        if !self.active {
            return Ok(());
        }
        self.flush()?;
        self.change_state(Change::Clean { resync_offset: self.position_sectors })?;
        self.active = false;
        Ok(())
    }

    /// Notes up to where the copies agree, in bytes of the array (`u64::MAX`, or anything
    /// from its end on: everywhere). Flushes every member first.
    ///
    /// On a clean array the position is durable when this returns. An active one must be
    /// resynced whole after a crash anyway, since any of its writes may be half done: its
    /// superblocks keep saying so, and the position goes into them with "clean".
    ///
    /// # Errors
    /// Names the member; the position is not noted.
    pub fn checkpoint_resync(&mut self, position_bytes: u64) -> Result<(), UpdateError> {
        let position = resync_sectors(position_bytes, self.info.size_bytes());
        if position == self.position_sectors || self.info.geometry.level == Level::Raid0 {
            return Ok(());
        }
        self.flush()?;
        if !self.active {
            self.change_state(Change::Clean { resync_offset: position })?;
        }
        self.position_sectors = position;
        Ok(())
    }

    /// Gives the drives back, in slot order. Whatever the superblocks say stays.
    pub fn into_media(self) -> Vec<M> {
        self.members.into_iter().map(|m| m.medium).collect()
    }

    fn flush(&self) -> Result<(), UpdateError> {
        for (slot, member) in self.members.iter().enumerate() {
            let name = || member.medium.name();
            member.medium.flush().map_err(|source| UpdateError::Flush {
                slot,
                name: name(),
                source,
            })?;
        }
        Ok(())
    }

    /// Makes a new state durable, two events after the present one: what is left of a member
    /// from before (an image of it) is too old then to be taken for the member.
    fn change_state(&mut self, change: Change) -> Result<(), UpdateError> {
        let now = Timestamp::now();
        self.change(Change::Announced, now)?;
        self.change(change, now)
    }

    pub(super) fn change(&mut self, change: Change, now: Timestamp) -> Result<(), UpdateError> {
        let replicas: Vec<_> = self.members.iter().map(|m| m.replica.clone()).collect();
        for write in plan_change(&replicas, self.info.geometry.level, change, now) {
            let Some(member) = self.members.get_mut(write.member) else { continue };
            let what = if write.is_superblock() { "superblock" } else { "private header" };
            member.medium.write_durable(write.offset_bytes, &*write.bytes).map_err(|source| {
                UpdateError::Write { slot: write.member, name: member.medium.name(), what, source }
            })?;
            write.apply(&mut member.replica);
        }
        if let Some(member) = self.members.first() {
            self.info.events = member.superblock().events();
        }
        Ok(())
    }
}
