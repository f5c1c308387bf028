//! How far the copies of an array agree (or its parity can be trusted).
//!
//! Below the *resync position* all copies are equal except for writes under way; from there on
//! they may differ until the resync has passed, or until a read or write on the owner has made the
//! blocks concerned equal. The position advances as the resync passes, and falls when a write has
//! left copies unequal ([`Shared::require_resync`]).

use std::sync::atomic::Ordering;

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

    /// Whether all copies agree everywhere, and parity is right; or the level has neither. What was
    /// being written when the array stopped counts until it has been made consistent.
    pub fn is_in_sync(&self) -> bool {
        self.resync_position_bytes() == IN_SYNC && !self.intent.has_dirty()
    }

    /// Something at or above `offset_bytes` has left copies unequal: from there on the first copy
    /// alone counts until a resync has passed again.
    pub(super) fn require_resync(&self, offset_bytes: u64) {
        if offset_bytes == IN_SYNC || !can_differ(&self.geometry) {
            return;
        }
        let mut rare = self.rare();
        rare.recovery.required(offset_bytes);
        self.hot.resync_position.fetch_min(offset_bytes, Ordering::AcqRel);
        // Reads under way that took any copy are done again, on the owner.
        self.refresh_map(&mut rare.membership);
        Self::wake_all(rare);
    }
    /// The write intent has regions that are dirty and were not.
    pub(super) fn became_dirty(&self) {
        let mut rare = self.rare();
        self.refresh_map(&mut rare.membership);
        Self::wake_all(rare);
    }
}
