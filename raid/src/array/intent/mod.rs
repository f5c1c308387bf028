//! What is written down before data is: so that a crash leaves known what may be inconsistent.
//!
//! Two mechanisms, either of which an array may have, both durable *before* the writes they cover
//! are submitted:
//! * [`regions`]: one bit for each region of the array, set while the region is being written. As
//!   md's bitmap it bounds the resync after a crash, and the rebuild of a member that comes back.
//!   As the degraded-write map it does only the latter, for arrays with a log.
//! * [`log`]: for parity levels, what is needed to make parity right whatever of a write has
//!   happened, and whichever members are lost along with the crash. It is used up by
//!   [`crate::replay`] at the next start.
//!
//! The way of a redundant write through here: [`Intent::begin`] for its range; on arrays with a log
//! [`Intent::log`] for each part of a row, just before that is submitted, and [`Intent::logged_end`]
//! when all members concerned have completed it; [`Intent::end`] for the range, before the answer.
//!
//! **Nothing here is cancelled.** The futures must run to completion once polled, as those of the
//! array's writes: what they submitted would otherwise land on newer bits. If one is dropped all
//! the same, nothing is written down any more and every write fails.

mod layout;
mod members;

use std::ops::Range;

pub use layout::{IntentLayout, LogKind, LogLayout, LogPlace, RegionsKind, RegionsLayout};
pub(in crate::array) use members::Members;

use super::error::ArrayError;
use crate::buffer::SharedBuffer;
use crate::geometry::Geometry;

/// The write intent of one array; all cores share it.
pub(in crate::array) struct Intent {
    geometry: Geometry,
}

/// The right to write to a range whose intent is durable; used up by [`Intent::end`].
#[must_use]
pub(in crate::array) struct IntentToken {
    range: Range<u64>,
}

/// A write to a part of a row, as it is logged.
pub(in crate::array) struct LogRecord {
    /// The row.
    pub(in crate::array) row: u64,
    /// Where in the chunks it begins.
    pub(in crate::array) within_bytes: u64,
    /// What is written of each chunk.
    pub(in crate::array) len_bytes: u32,
    /// Index of the first data chunk that is written.
    pub(in crate::array) first: usize,
    /// How many data chunks are: consecutive ones, all that are written there, those on missing
    /// members too.
    pub(in crate::array) count: usize,
    /// The exclusive or of the row's other data chunks there, `len_bytes` long. None if there are
    /// no others, or no member for P.
    pub(in crate::array) p: Option<SharedBuffer>,
    /// Their sum with Q's coefficients (RAID 6); none if there are no others, or no member for Q.
    pub(in crate::array) q: Option<SharedBuffer>,
}

/// The right to submit a write that is logged; used up by [`Intent::logged_end`].
#[must_use]
pub(in crate::array) struct LogToken(());

impl Intent {
    /// An array's, from where it is kept.
    pub(in crate::array) fn new(geometry: &Geometry, _layout: &IntentLayout) -> Self {
        Self { geometry: geometry.clone() }
    }

    /// Whether a crash may have left the range's copies unequal, or its parity wrong, and that has
    /// not been repaired yet.
    pub(in crate::array) fn is_dirty(&self, _range: &Range<u64>) -> bool {
        false
    }

    /// Makes it durable that the range is about to be written. If a member fails meanwhile, that
    /// is durable, too; the caller looks at the members again anyway.
    ///
    /// # Errors
    /// If it cannot be made durable; nothing may be written then.
    pub(in crate::array) async fn begin(
        &self,
        _members: &impl Members,
        range: Range<u64>,
    ) -> Result<IntentToken, ArrayError> {
        Ok(IntentToken { range })
    }

    /// All that was submitted under the token has ended, on all members that took part, and what
    /// failed is recorded. `agree` says whether the members hold the same everywhere in the range:
    /// false if something was left half done.
    ///
    /// # Errors
    /// If what a member has missed cannot be made known; the write may not be acknowledged then.
    pub(in crate::array) async fn end(
        &self,
        _members: &impl Members,
        token: IntentToken,
        _agree: bool,
    ) -> Result<(), ArrayError> {
        let IntentToken { range } = token;
        debug_assert!(range.end <= self.geometry.capacity_bytes());
        Ok(())
    }

    /// Whether parts of rows have to be logged before they are written.
    pub(in crate::array) fn has_log(&self) -> bool {
        false
    }

    /// The longest part of a chunk that one record can be for, unless all data chunks are written.
    pub(in crate::array) fn max_record_bytes(&self) -> usize {
        usize::MAX
    }

    /// Makes a record durable on the row's parity members that take writes; for each of them it
    /// has the partial parity. Without a log there is nothing to do.
    ///
    /// # Errors
    /// If it cannot be made durable; nothing may be written then.
    pub(in crate::array) async fn log(
        &self,
        _members: &impl Members,
        _record: LogRecord,
    ) -> Result<LogToken, ArrayError> {
        Ok(LogToken(()))
    }

    /// All that was submitted under the token has completed on all members, or those have failed;
    /// or nothing was submitted.
    pub(in crate::array) fn logged_end(&self, token: LogToken) {
        let LogToken(()) = token;
    }
}
