//! How far the copies of an array agree (or its parity can be trusted), and the resync's progress.
//!
//! Below the *resync position* all copies are equal except for writes under way; from there on
//! they may differ until the resync has passed, or until a read or write on the owner has made the
//! blocks concerned equal. The position advances as the resync passes, and falls when a write has
//! left copies unequal ([`Shared::require_resync`]).

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::progress::{ResyncProgress, Stall};
use super::shared::Shared;
use crate::geometry::Geometry;

/// The resync position of an array whose copies agree everywhere.
pub const IN_SYNC: u64 = u64::MAX;

/// Whether an array of this shape can have copies that differ, or wrong parity.
pub(super) fn can_differ(geometry: &Geometry) -> bool {
    geometry.copies() > 1 || geometry.parities() > 0
}

/// Agreement of the copies.
impl Shared {
    /// Below this offset all copies agree; [`IN_SYNC`] if they do everywhere.
    pub fn resync_position_bytes(&self) -> u64 {
        self.hot.resync_position.load(Ordering::Acquire)
    }

    /// Whether all copies agree everywhere, or the level has only one.
    pub fn is_in_sync(&self) -> bool {
        self.resync_position_bytes() == IN_SYNC
    }

    /// Something at or above `offset_bytes` has left copies unequal: from there on the first copy
    /// alone counts until a resync has passed again.
    pub(super) fn require_resync(&self, offset_bytes: u64) {
        if offset_bytes == IN_SYNC || !can_differ(&self.geometry) {
            return;
        }
        let mut rare = self.rare();
        rare.resync_required_from = rare.resync_required_from.min(offset_bytes);
        self.hot.resync_position.fetch_min(offset_bytes, Ordering::AcqRel);
        // Reads under way that took any copy are done again, on the owner.
        self.refresh_map(&mut rare.membership);
        Self::wake_all(rare);
    }

    /// Begins a step of the resync at the present position, and returns it.
    pub(super) fn begin_resync_step(&self) -> u64 {
        self.rare().resync_required_from = IN_SYNC;
        self.resync_position_bytes()
    }

    /// Ends the step that began at `from`: everything up to `to` agrees now, unless a write has
    /// left copies unequal meanwhile; then the position stays (or has fallen), and the answer is
    /// false.
    pub(super) fn end_resync_step(&self, from: u64, to: u64) -> bool {
        let rare = self.rare();
        let undisturbed = rare.resync_required_from >= to;
        if undisturbed {
            let exchanged = self.hot.resync_position.compare_exchange(
                from,
                to,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            debug_assert!(exchanged.is_ok(), "the position moved without a reason");
            Self::wake_all(rare);
        }
        undisturbed
    }

    /// Waits until a resync is needed: true; or until it has to stop: false.
    pub(super) async fn resync_needed(&self) -> bool {
        self.wait_for(|rare| match () {
            () if rare.resync_stopped || rare.membership.has_failed() => Some(false),
            () if !self.is_in_sync() => Some(true),
            () => None,
        })
        .await
    }

    /// Waits until all copies agree (true), or the array has failed or the resync was stopped.
    pub async fn wait_in_sync(&self) -> bool {
        self.wait_for(|rare| match () {
            () if self.is_in_sync() => Some(true),
            () if rare.resync_stopped || rare.membership.has_failed() => Some(false),
            () => None,
        })
        .await
    }

    /// Lets the resync end at its next step, with a last checkpoint.
    pub fn stop_resync(&self) {
        let mut rare = self.rare();
        rare.resync_stopped = true;
        Self::wake_all(rare);
    }

    /// Waits until the resync has to stop.
    pub(super) async fn resync_stop(&self) {
        self.wait_for(|rare| (rare.resync_stopped || rare.membership.has_failed()).then_some(()))
            .await;
    }

    pub(super) fn must_resync_stop(&self) -> bool {
        let rare = self.rare();
        rare.resync_stopped || rare.membership.has_failed()
    }

    /// Sets how fast a resync goes: at least `min_bytes_per_second` while the host is busy, and at
    /// most `max_bytes_per_second` at any time (none: as fast as it can).
    pub fn set_resync_rates(&self, min_bytes_per_second: u64, max_bytes_per_second: Option<u64>) {
        self.resync_min_rate.store(min_bytes_per_second.max(1), Ordering::Relaxed);
        self.resync_max_rate.store(max_bytes_per_second.unwrap_or(0), Ordering::Relaxed);
    }

    /// Sets how much is synced between two checkpoints.
    pub fn set_checkpoint_interval(&self, bytes: u64) {
        self.checkpoint_interval.store(bytes.max(1), Ordering::Relaxed);
    }

    /// How far the resync is, if one is under way. `now` is on the clock that the resync was given.
    pub fn resync_progress(&self, now: Duration) -> Option<ResyncProgress> {
        let position = self.resync_position_bytes();
        if position == IN_SYNC {
            return None;
        }
        Some(self.rare().progress.report(now, position, self.geometry.capacity_bytes()))
    }

    pub(super) fn resync_started(&self, now: Duration) {
        self.rare().progress.start(now, self.resync_position_bytes());
    }

    pub(super) fn resync_did(&self, now: Duration, bytes: u64) {
        self.rare().progress.add(now, bytes);
    }

    pub(super) fn resync_stalls(&self, stall: Stall) {
        self.rare().progress.stall(stall);
    }

    /// Resyncs that have been completed since the start.
    pub fn resyncs_completed(&self) -> u64 {
        self.rare().progress.completed()
    }

    pub(super) fn resync_completed(&self) {
        self.rare().progress.complete();
    }
}
