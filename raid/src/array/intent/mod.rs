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
//! **Memory.** What is written down goes to memory that all commands share, or to a reserve of the
//! core's. Who waits for the reserve holds none of it, and whoever holds some only waits for drives:
//! so a wait for it ends.
//!
//! **Nothing here is cancelled.** The futures must run to completion once polled, as those of the
//! array's writes: what they submitted would otherwise land on newer bits. If one is dropped all
//! the same, nothing is written down any more and every write fails.

mod blocks;
mod host;
mod layout;
mod log;
mod members;
mod regions;
#[cfg(test)]
mod test_members;
mod unit;

use std::io;
use std::ops::Range;

pub use layout::{
    IntentLayout, IntentPlaces, LogKind, LogLayout, LogPlace, RegionsKind, RegionsLayout,
};
use log::{Log, UnitToken};
pub(in crate::array) use members::Members;
use regions::Regions;

use super::Timer;
use super::error::ArrayError;
use super::reserve::Reserve;
use crate::buffer::SharedBuffer;
use crate::geometry::Geometry;
use crate::metadata::bitmap::RegionMap;
use crate::metadata::checks::Checks;

/// The largest buffer that anything here needs.
const MAX_BUFFER_BYTES: usize = 128 << 10;

/// Memory of a core for it, for when what commands share is used up: so much that the units of a
/// record of RAID 6 find room beside two that drives that hang have not given back.
pub(in crate::array) const RESERVE_BYTES: usize = 4 * MAX_BUFFER_BYTES;

/// Memory of its own for the write intent, on one core.
///
/// # Errors
/// If there is none.
pub(in crate::array) fn new_reserve() -> io::Result<Reserve> {
    Reserve::new(RESERVE_BYTES, MAX_BUFFER_BYTES)
}

/// The write intent of one array; all cores share it.
pub(in crate::array) struct Intent {
    regions: Option<Regions>,
    log: Option<Log>,
}

/// The right to write to a range whose intent is durable; used up by [`Intent::end`].
#[must_use]
pub(in crate::array) struct IntentToken {
    regions: Range<u64>,
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
    /// What is known of the written chunks' contents.
    pub(in crate::array) checks: Checks,
}

/// The right to submit a write that is logged; used up by [`Intent::logged_end`].
#[must_use]
pub(in crate::array) struct LogToken(Option<UnitToken>);

/// Writing.
impl Intent {
    /// An array's, from where it is kept. `is_degraded`: whether a member is not in sync.
    pub(in crate::array) fn new(
        geometry: &Geometry,
        layout: &IntentLayout,
        is_degraded: bool,
    ) -> Self {
        let regions = layout.regions.as_ref();
        Self {
            regions: regions.map(|layout| Regions::new(geometry, layout, is_degraded)),
            log: layout.log.as_ref().map(|layout| Log::new(geometry, layout)),
        }
    }

    /// Makes it durable that the range is about to be written. If a member fails meanwhile, that
    /// is durable, too; the caller looks at the members again anyway.
    ///
    /// # Errors
    /// If it cannot be made durable; nothing may be written then.
    pub(in crate::array) async fn begin(
        &self,
        members: &impl Members,
        range: Range<u64>,
    ) -> Result<IntentToken, ArrayError> {
        let regions = match &self.regions {
            Some(regions) => regions.begin(members, &range).await?,
            None => 0..0,
        };
        Ok(IntentToken { regions })
    }

    /// All that was submitted under the token has ended, on all members that took part, and what
    /// failed is recorded. `agree` says whether the members hold the same everywhere in the range:
    /// false if something was left half done. Then, where there is a bitmap, the range is dirty
    /// from now on ([`Self::is_dirty`]).
    ///
    /// # Errors
    /// If what a member has missed cannot be made known; the write may not be acknowledged then.
    pub(in crate::array) async fn end(
        &self,
        members: &impl Members,
        token: IntentToken,
        agree: bool,
    ) -> Result<(), ArrayError> {
        match &self.regions {
            Some(regions) => regions.end(members, token.regions, agree).await,
            None => Ok(()),
        }
    }

    /// Whether parts of rows have to be logged before they are written.
    pub(in crate::array) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// The longest part of a chunk that one record can be for, unless all data chunks are written.
    pub(in crate::array) fn max_record_bytes(&self) -> usize {
        self.log.as_ref().map_or(usize::MAX, Log::max_record_bytes)
    }

    /// Makes a record durable on the row's parity members that take writes; for each of them it
    /// has the partial parity. Without a log there is nothing to do.
    ///
    /// At most one record is under way for any part of a row.
    ///
    /// # Errors
    /// If it cannot be made durable; nothing may be written then.
    pub(in crate::array) async fn log(
        &self,
        members: &impl Members,
        record: LogRecord,
    ) -> Result<LogToken, ArrayError> {
        match &self.log {
            Some(log) => Ok(LogToken(log.log(members, record).await?)),
            None => Ok(LogToken(None)),
        }
    }

    /// All that was submitted under the token has completed on all members, or those have failed
    /// and that is recorded; or nothing was submitted.
    pub(in crate::array) fn logged_end(&self, token: LogToken) {
        if let (Some(log), Some(token)) = (&self.log, token.0) {
            log.end(token);
        }
    }
}

/// What may be inconsistent, and what a member misses. All of it is known only where there is a map
/// of regions.
impl Intent {
    /// Whether a crash, or a write that was left half done, may have left the range's copies
    /// unequal, or its parity wrong, and that has not been repaired yet.
    pub(in crate::array) fn is_dirty(&self, range: &Range<u64>) -> bool {
        self.regions.as_ref().is_some_and(|regions| regions.is_dirty(range))
    }

    /// Whether there is any such range.
    pub(in crate::array) fn has_dirty(&self) -> bool {
        self.regions.as_ref().is_some_and(Regions::has_dirty)
    }

    /// All dirty ranges of the array, in ascending order; they may overlap.
    pub(in crate::array) fn dirty_ranges(&self) -> Vec<Range<u64>> {
        self.regions.as_ref().map_or_else(Vec::new, Regions::dirty_ranges)
    }

    /// Counts how often anything has become dirty since the start.
    pub(in crate::array) fn dirty_marks(&self) -> u64 {
        self.regions.as_ref().map_or(0, Regions::dirty_marks)
    }

    /// The range has been made consistent on all members, by work that began when
    /// [`Self::dirty_marks`] was `marks`. Regions that are wholly in it are not dirty any more.
    /// False, and nothing changes, if anything has become dirty since.
    pub(in crate::array) fn made_consistent(&self, range: &Range<u64>, marks: u64) -> bool {
        self.regions.as_ref().is_none_or(|regions| regions.made_consistent(range, marks))
    }

    /// What a member misses that left when the superblocks had this event count; nothing if that
    /// is not known, and it misses all. Only what is written before the call counts, so the member
    /// takes all writes already.
    pub(in crate::array) fn missed_since(&self, events: u64) -> Option<RegionMap> {
        self.regions.as_ref()?.missed_since(events)
    }

    /// The same as ranges of the array, in ascending order.
    pub(in crate::array) fn missed_ranges_since(&self, events: u64) -> Option<Vec<Range<u64>>> {
        let regions = self.regions.as_ref()?;
        Some(regions.array_ranges(&regions.missed_since(events)?))
    }

    /// The superblocks of all members in use have this event count now, and say whether all
    /// members are in sync.
    pub(in crate::array) fn note_events(&self, events: u64, is_degraded: bool) {
        if let Some(regions) = &self.regions {
            regions.note_events(events, is_degraded);
        }
    }
}

/// Members that come, and the work that is done beside the writes.
impl Intent {
    /// Prepares a member that is about to take writes: what it must hold is written, and kept up
    /// to date from now on; what it held of an earlier time is void. `places` says where on its
    /// drive that is.
    ///
    /// # Errors
    /// If it does not write. The member must not take writes then.
    pub(in crate::array) async fn admit(
        &self,
        members: &impl Members,
        slot: usize,
        places: IntentPlaces,
    ) -> Result<(), ArrayError> {
        if let (Some(log), Some(place)) = (&self.log, places.log) {
            log.admit(members, slot, place).await?;
        }
        if let (Some(regions), Some(offset_bytes)) = (&self.regions, places.regions_offset_bytes) {
            regions.admit(members, slot, offset_bytes).await?;
        }
        Ok(())
    }

    /// All members are about to be in sync; to be called before the superblocks say so.
    ///
    /// # Errors
    /// If it cannot be made durable that nothing is missed by anybody any more.
    pub(in crate::array) async fn before_in_sync(
        &self,
        members: &impl Members,
    ) -> Result<(), ArrayError> {
        match &self.regions {
            Some(regions) => regions.before_in_sync(members).await,
            None => Ok(()),
        }
    }

    /// Clears bits of regions that have been idle for some seconds; on one core. Ends after
    /// [`Self::stop`], and must not be dropped before.
    pub(in crate::array) async fn keep(&self, members: &impl Members, timer: &impl Timer) {
        if let Some(regions) = &self.regions {
            regions.keep(members, timer).await;
        }
    }

    /// Lets [`Self::keep`] end.
    pub(in crate::array) fn stop(&self) {
        if let Some(regions) = &self.regions {
            regions.stop();
        }
    }

    /// Clears the bits of all regions that are not being written, if no member is missing: for a
    /// clean stop, before the superblocks say "clean".
    pub(in crate::array) async fn clear_idle(&self, members: &impl Members) {
        if let Some(regions) = &self.regions {
            regions.clear_idle(members).await;
        }
    }
}
