//! The write intent of an array that is about to be served: replaying its logs, and telling the data
//! cores where everything is.
//!
//! **Replay.** While logs have to be replayed the superblocks keep saying "active": who finds them
//! after another crash replays again. Blocks that cannot be known are recorded as bad first; then
//! parity is written and the logs are emptied ([`crate::replay`]).

use super::error::UpdateError;
use super::handle::ArrayHandle;
use crate::array::{
    BadRange, IN_SYNC, IntentLayout, IntentPlaces, LogKind, LogLayout, LogPlace, MemberState,
    RegionsKind, RegionsLayout, Wanted,
};
use crate::device::Medium;
use crate::geometry::GeometryError;
use crate::metadata::bitmap::RegionMap;
use crate::metadata::private::SectionKind;
use crate::metadata::{Consistency, Level};
use crate::mutation::mutation;
use crate::replay;
use std::io;
use std::ops::Range;
use thiserror::Error;

/// What a replay has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replayed {
    /// Writes that were under way, by parts of rows.
    pub parts: usize,
    /// Blocks that are bad now, because a missing member's blocks were being written.
    pub bad_bytes: u64,
    /// The number of the next unit that may be written to a log.
    pub next_generation: u64,
}

/// Why a replay did not get through.
#[derive(Debug, Error)]
pub enum ReplayFailure {
    /// A member failed: without it, the set can be assembled anew.
    #[error(transparent)]
    Member(#[from] replay::ReplayError),
    /// A superblock could not be written.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// A log is damaged, and a member missing.
    #[error(
        "the log of a member cannot be read and another member is missing: blocks of that one may \
         be wrong where others of the same stripe were being written. Plug the missing drive in; \
         or accept that with `--force`"
    )]
    Incomplete,
    /// No shape that the engine has.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
}

impl<M: Medium> ArrayHandle<M> {
    /// Which log the array keeps.
    #[must_use]
    pub fn log_kind(&self) -> Option<LogKind> {
        match (self.info().consistency, self.info().geometry.level) {
            (Consistency::Ppl, Level::Raid6) => Some(LogKind::WriteLog),
            (Consistency::Ppl, _) => Some(LogKind::Ppl),
            _ => None,
        }
    }

    /// Replays and empties the logs, if the array has any: at every start, after
    /// [`Self::take_over`] and before [`Self::intent_layout`]. `block_bytes`: what the array is read
    /// and written in. `force`: take parity as right where a log cannot be read and a member is
    /// missing.
    ///
    /// # Errors
    /// Names the member that failed. It may be called again; nothing is lost.
    pub fn replay(&mut self, block_bytes: u32, force: bool) -> Result<Replayed, ReplayFailure> {
        if !self.has_taken_over() {
            self.take_over()?;
        }
        let nothing = Replayed { parts: 0, bad_bytes: 0, next_generation: 1 };
        let Some(kind) = self.log_kind() else { return Ok(nothing) };
        let geometry = self.info().engine_geometry()?;
        let is_dirty = self.awaits_replay() && !mutation!("skip-replay");
        let bad = self.bad_ranges();
        let (plan, is_degraded) = {
            let members = self.replay_members(&bad);
            let input = self.replay_input(&geometry, kind, block_bytes, is_dirty, &members);
            let in_sync = |slot| self.recorded().members.get(slot) == Some(&MemberState::InSync);
            (replay::plan(&input), !(0..members.len()).all(in_sync))
        };
        if is_dirty && !plan.is_complete {
            if is_degraded && !force {
                return Err(ReplayFailure::Incomplete);
            }
            if !is_degraded {
                self.sync_from(0);
            }
        }
        if !plan.bad.is_empty() {
            let mut wanted = Wanted { active: true, ..self.recorded().clone() };
            for piece in &plan.bad {
                if let Some(list) = wanted.bad_blocks.get_mut(piece.slot) {
                    let Range { start, end } = piece.range;
                    list.push(BadRange { start_bytes: start, end_bytes: end });
                }
            }
            self.record(&wanted)?;
        }
        let members = self.replay_members(&bad);
        let input = self.replay_input(&geometry, kind, block_bytes, is_dirty, &members);
        replay::apply(&input, &plan)?;
        self.replay_is_done();
        let bad_bytes = plan.bad.iter().map(|piece| piece.range.end - piece.range.start).sum();
        Ok(Replayed { parts: plan.replayed, bad_bytes, next_generation: plan.next_generation() })
    }

    /// By slot.
    fn bad_ranges(&self) -> Vec<Vec<Range<u64>>> {
        let range = |bad: &BadRange| bad.start_bytes..bad.end_bytes;
        self.recorded().bad_blocks.iter().map(|list| list.iter().map(range).collect()).collect()
    }

    fn replay_input<'a>(
        &self,
        geometry: &'a crate::geometry::Geometry,
        kind: LogKind,
        block_bytes: u32,
        is_dirty: bool,
        members: &'a [Option<replay::Member<'a, M>>],
    ) -> replay::Input<'a, M> {
        let array_uuid = self.info().uuid.into_bytes();
        replay::Input { geometry, array_uuid, kind, block_bytes, is_dirty, members }
    }

    fn replay_members<'a>(
        &'a self,
        bad: &'a [Vec<Range<u64>>],
    ) -> Vec<Option<replay::Member<'a, M>>> {
        let member = |slot: usize| {
            let state = self.recorded().members.get(slot)?;
            let readable_below_bytes = match state {
                MemberState::InSync => u64::MAX,
                MemberState::Rebuilding => {
                    let position = self.recorded().rebuild_from.unwrap_or(0);
                    self.info().geometry.to_component(position)
                }
                MemberState::Failed | MemberState::Missing => return None,
            };
            let member = self.member(slot)?;
            Some(replay::Member {
                medium: member.medium(),
                data_offset_bytes: member.data_offset_bytes(),
                log: self.log_place(slot),
                readable_below_bytes,
                bad: bad.get(slot).map_or(&[], Vec::as_slice),
            })
        };
        (0..self.info().geometry.members).map(member).collect()
    }

    fn log_place(&self, slot: usize) -> Option<LogPlace> {
        let replica = self.member(slot)?.replica();
        let place = match self.log_kind()? {
            LogKind::Ppl => replica.superblock.ppl_place(),
            LogKind::WriteLog => replica.private.believed()?.place(SectionKind::WriteLog),
        }?;
        Some(LogPlace { offset_bytes: place.start, len_bytes: place.end - place.start })
    }

    fn regions_offset(&self, slot: usize) -> Option<u64> {
        let replica = self.member(slot)?.replica();
        let place = match self.info().consistency {
            Consistency::Bitmap => replica.superblock.bitmap_place(),
            _ => replica.private.believed()?.place(SectionKind::DegradedWriteMap),
        };
        place.map(|place| place.start)
    }

    /// Where the write intent is on the drive of a slot that was added.
    #[must_use]
    pub fn intent_places(&self, slot: usize) -> IntentPlaces {
        IntentPlaces { regions_offset_bytes: self.regions_offset(slot), log: self.log_place(slot) }
    }

    /// Where the array's write intent is kept, and what it says: for the engine, after
    /// [`Self::replay`], whose number of the next unit this takes.
    ///
    /// # Errors
    /// If bitmaps or logs have to be made first, and a member does not take that.
    pub fn intent_layout(&mut self, next_generation: u64) -> Result<IntentLayout, UpdateError> {
        if !self.has_taken_over() {
            self.take_over()?;
        }
        let slots = || 0..self.info().geometry.members;
        let log = self.log_kind().map(|kind| LogLayout {
            kind,
            array_uuid: self.info().uuid.into_bytes(),
            places: slots().map(|slot| self.log_place(slot)).collect(),
            next_generation,
        });
        let (kind, map) = match self.info().consistency {
            Consistency::Bitmap => (RegionsKind::Bitmap, self.common.bitmap.as_ref()),
            _ => (RegionsKind::DegradedMap, self.common.degraded_map.as_ref()),
        };
        let offsets_bytes: Vec<_> = slots().map(|slot| self.regions_offset(slot)).collect();
        let regions =
            map.filter(|_| offsets_bytes.iter().any(Option::is_some)).map(|map| RegionsLayout {
                kind,
                superblock: map.superblock,
                set: map.regions.clone(),
                dirty: self.dirty_regions(kind, &map.regions),
                offsets_bytes,
                events: self.info().events,
                on_all_members: true,
            });
        Ok(IntentLayout { regions, log })
    }

    /// Everything that may differ: what a crash left so, and what was never synced.
    fn dirty_regions(&self, kind: RegionsKind, set: &RegionMap) -> RegionMap {
        let none = RegionMap::empty(set.unit(), set.covered_bytes(), set.region_bytes());
        if kind == RegionsKind::DegradedMap || mutation!("ignore-dirty-bits") {
            return none;
        }
        let mut dirty = self.dirty().cloned().unwrap_or(none);
        let position = self.recorded().resync_from;
        if position != IN_SYNC {
            let geometry = &self.info().geometry;
            let from = match geometry.level {
                Level::Raid10 => position,
                _ => geometry.to_component(position),
            };
            for region in from / set.region_bytes()..set.regions() {
                dirty.insert(region);
            }
        }
        dirty
    }

    /// The lowest position in the array that a crash has left inconsistent and that is not known to
    /// have been repaired: until then no superblock may say that everything agrees.
    ///
    /// Whoever keeps the bitmap clears the bits of such regions only when they agree.
    pub(super) fn first_dirty(
        &mut self,
        wanted: &[MemberState],
    ) -> Result<Option<u64>, UpdateError> {
        if self.dirty().is_none() {
            return Ok(None);
        }
        let now = self.bitmap_now(wanted).map_err(
            |(slot, name, source): (usize, String, io::Error)| UpdateError::Read {
                slot,
                name,
                source,
            },
        )?;
        let geometry = self.info().geometry;
        let Some(dirty) = self.dirty_mut() else { return Ok(None) };
        if let Some(now) = now {
            for region in 0..dirty.regions() {
                if !now.regions.contains(region) {
                    dirty.remove(region);
                }
            }
        }
        let first = dirty.ranges().first().map(|range| range.start);
        Ok(first.map(|start| match geometry.level {
            Level::Raid10 => start,
            _ => geometry.from_component(start),
        }))
    }
}
