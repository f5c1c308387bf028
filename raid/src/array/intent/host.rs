//! The array as the write intent sees it, and what others may ask of its write intent.

use super::super::error::ArrayError;
use super::super::membership::{MemberState, Wanted};
use super::super::reserve::Reserve;
use super::super::shared::Shared;
use super::super::{Array, Timer};
use super::{IntentPlaces, Members};
use crate::buffer::{Buffer, SharedBuffer};
use crate::drive::{Drive, DriveError};
use crate::metadata::bitmap::RegionMap;

impl<D: Drive> Members for Array<D> {
    fn slots(&self) -> usize {
        self.geometry().members()
    }

    fn is_writable(&self, slot: usize) -> bool {
        self.writable().contains(slot)
    }

    fn is_degraded(&self) -> bool {
        self.map().in_sync.len() < self.geometry().members()
    }

    async fn write(
        &self,
        slot: usize,
        offset_bytes: u64,
        data: SharedBuffer,
    ) -> Result<(), DriveError> {
        self.write_outside(slot, offset_bytes, data).await.map_err(|failed| failed.error)
    }

    async fn flush(&self, slot: usize) -> Result<(), DriveError> {
        self.flush_member(slot).await.map_err(|failed| failed.error)
    }

    async fn settled(&self) -> Result<(), ArrayError> {
        self.shared.settled().await
    }

    fn became_dirty(&self) {
        self.shared.became_dirty();
    }

    fn allocate(&self, len: usize) -> Option<Buffer> {
        self.pool.allocate(len)
    }

    fn reserve(&self) -> &Reserve {
        &self.intent_reserve
    }
}

impl<D: Drive> Array<D> {
    /// Clears the write-intent bits of regions that have been idle for some seconds. Run it on one
    /// core. Ends after [`Shared::stop_intent`]; must not be dropped before.
    pub async fn keep_intent(&self, timer: &impl Timer) {
        self.shared.intent.keep(self, timer).await;
    }

    /// Clears the write-intent bits of all regions that are not being written, if no member is
    /// missing: for a clean stop, when no write is under way any more and before the superblocks
    /// say "clean". Must not be dropped before it ends.
    pub async fn clear_intent(&self) {
        self.shared.intent.clear_idle(self).await;
    }

    /// Prepares the drive in a slot, which every core has ([`Self::set_drive`]), for
    /// [`Shared::add_member`]: what it must hold of the write intent is written to it, and kept up
    /// to date from now on; what it held of an earlier time is void. Must not be dropped before it
    /// ends.
    ///
    /// # Errors
    /// If it does not write.
    pub async fn admit_drive(&self, slot: usize, places: IntentPlaces) -> Result<(), ArrayError> {
        self.shared.intent.admit(self, slot, places).await
    }

    /// To be called before it is recorded that all members are in sync again. Must not be dropped
    /// before it ends.
    ///
    /// # Errors
    /// If a member has no space, or the array cannot go on without one that failed.
    pub async fn before_in_sync(&self) -> Result<(), ArrayError> {
        self.shared.intent.before_in_sync(self).await
    }
}

impl Shared {
    /// Lets [`Array::keep_intent`] end.
    pub fn stop_intent(&self) {
        self.intent.stop();
    }

    /// What was recorded ([`Shared::recorded`]) has this event count in the superblocks; to be
    /// called before that.
    pub fn recorded_events(&self, wanted: &Wanted, events: u64) {
        let is_degraded = wanted.members.iter().any(|state| *state != MemberState::InSync);
        self.intent.note_events(events, is_degraded);
    }

    /// What a member misses that left when the superblocks had this event count, and that takes all
    /// writes again; nothing if that is not known, and it misses all.
    pub fn missed_since(&self, events: u64) -> Option<RegionMap> {
        self.intent.missed_since(events)
    }
}
