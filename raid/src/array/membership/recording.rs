//! What the superblocks shall say, and the waiting until they do.
//!
//! Whoever depends on a change being durable waits for the version that has it. Nothing is written
//! here: that is the [`Keeper`](super::Keeper)'s.

use std::sync::atomic::Ordering;

use super::super::error::{ArrayError, WriteFailure};
use super::super::shared::{Shared, WriteState};
use super::{MemberFault, Wanted};
use crate::drive::DriveError;
use crate::mutation::mutation;

/// What the superblocks shall say.
impl Shared {
    /// What the superblocks shall say now.
    pub fn wanted(&self) -> Wanted {
        self.rare().membership.wanted()
    }

    /// A version has been made durable on all members that are in sync or being rebuilt in it.
    pub fn recorded(&self, version: u64) {
        let rare = self.rare();
        self.hot.recorded.fetch_max(version, Ordering::AcqRel);
        let membership = &rare.membership;
        if membership.active && version >= membership.active_since {
            self.change_state(WriteState::Requested, WriteState::Active);
        }
        Self::wake_all(rare);
    }

    /// A member could not take what was wanted. It fails; if only space was lacking below it, then
    /// those fail who wait for the record, and who comes later has it tried again.
    pub fn record_failed(&self, slot: usize, error: DriveError) {
        if error != DriveError::NoSpace {
            self.member_flush(slot).fail(error);
            self.fail_member(slot, MemberFault::Superblock(error));
            return;
        }
        let mut rare = self.rare();
        rare.membership.failed_records += 1;
        rare.membership.without_space = slot;
        self.change_state(WriteState::Requested, WriteState::Clean);
        Self::wake_all(rare);
    }

    /// The newest version that is recorded.
    pub fn recorded_version(&self) -> u64 {
        self.hot.recorded.load(Ordering::Acquire)
    }

    /// Waits until `version` is recorded.
    ///
    /// # Errors
    /// If the array has failed, or a superblock finds no space.
    pub async fn wait_recorded(&self, version: u64) -> Result<(), ArrayError> {
        let failures = self.rare().membership.failed_records;
        self.keeper.wake();
        self.wait_for(|rare| match () {
            () if rare.membership.has_failed() => {
                Some(Err(ArrayError::WriteFailed(WriteFailure::ArrayFailed)))
            }
            () if self.recorded_version() >= version => Some(Ok(())),
            () if rare.membership.failed_records > failures => {
                Some(Err(rare.membership.unrecorded()))
            }
            () => None,
        })
        .await
    }

    /// Waits until every change of the map made so far is durable. Every redundant write calls this
    /// after its members' completions and before it is acknowledged.
    ///
    /// # Errors
    /// If the array has failed, or a superblock finds no space.
    pub(in crate::array) async fn settled(&self) -> Result<(), ArrayError> {
        if mutation!("acknowledge-before-settled") {
            return Ok(());
        }
        let needed = self.hot.map_version.load(Ordering::Acquire);
        if self.recorded_version() >= needed && self.write_state() != WriteState::Failed {
            return Ok(());
        }
        self.wait_recorded(needed).await
    }

    /// Has it recorded that copies agree below `position_bytes`
    /// ([`IN_SYNC`](super::super::IN_SYNC): everywhere). All members have been flushed since that was
    /// so.
    pub(in crate::array) fn checkpoint_resync(&self, position_bytes: u64) {
        let mut rare = self.rare();
        rare.membership.resync_from = position_bytes;
        self.want(rare);
    }

    /// To be called by whoever else flushes a member (the writer of its superblock) and is told
    /// that the flush failed: what was written before may be lost, and the kernel says so once
    /// only. No later flush of this member is believed; it has failed.
    pub fn fail_flush(&self, slot: usize, error: DriveError) {
        if slot >= self.geometry.members() {
            return;
        }
        self.member_counters(slot).flushes.fetch_add(1, Ordering::Relaxed);
        self.member_flush(slot).fail(error);
        self.fail_member(slot, MemberFault::Flush(error));
    }
}
