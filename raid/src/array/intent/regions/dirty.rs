//! What may be inconsistent, and what a member that comes back misses.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use super::super::blocks::Image;
use super::{BitmapState, DIRTY, MapUnit, Mode, Regions, TOUCHED};
use crate::metadata::bitmap::RegionMap;

impl Regions {
    /// Whether any region of the range is dirty.
    pub(in crate::array::intent) fn is_dirty(&self, range: &Range<u64>) -> bool {
        // Dirty regions are known before anything is served, and new ones are made by writes that
        // fail, which say so before they leave the range's lock.
        self.dirty.load(Ordering::SeqCst) > 0
            && self
                .words_of(&self.regions_of(range))
                .iter()
                .any(|word| word.load(Ordering::SeqCst) & DIRTY != 0)
    }

    /// Whether any region is dirty.
    pub(in crate::array::intent) fn has_dirty(&self) -> bool {
        self.dirty.load(Ordering::SeqCst) > 0
    }

    /// Counts how often regions were marked as dirty.
    pub(in crate::array::intent) fn dirty_marks(&self) -> u64 {
        *self.marks()
    }

    fn marks(&self) -> MutexGuard<'_, u64> {
        self.dirty_marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn mark_dirty(&self, regions: &Range<u64>) {
        let mut marks = self.marks();
        *marks += 1;
        for word in self.words_of(regions) {
            if word.fetch_or(DIRTY, Ordering::SeqCst) & DIRTY == 0 {
                self.dirty.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// The range of the array that a region is about, in whole rows.
    fn array_range(&self, region: u64) -> Range<u64> {
        let start = region << self.region_shift;
        let capacity = self.geometry.capacity_bytes();
        let end = (region + 1) << self.region_shift;
        let is_identity =
            self.unit == MapUnit::Array || self.geometry.copies() == self.geometry.members();
        if is_identity {
            return start.min(capacity)..end.min(capacity);
        }
        let row = |offset| self.geometry.row_of_component(offset);
        let end = self.geometry.row_range(row(end - 1)).end;
        self.geometry.row_range(row(start)).start.min(capacity)..end.min(capacity)
    }

    /// The ranges of the array that dirty regions are about, in ascending order; they may overlap.
    pub(in crate::array::intent) fn dirty_ranges(&self) -> Vec<Range<u64>> {
        if !self.has_dirty() {
            return Vec::new();
        }
        let dirty = self.words.iter().enumerate();
        let dirty = dirty.filter(|(_, word)| word.load(Ordering::SeqCst) & DIRTY != 0);
        dirty.map(|(region, _)| self.array_range(region as u64)).collect()
    }

    /// Regions that are wholly within the range are not dirty any more. False, and nothing changes,
    /// if any region was marked since [`Self::dirty_marks`] was `marks`.
    pub(in crate::array::intent) fn made_consistent(&self, range: &Range<u64>, marks: u64) -> bool {
        let now = self.marks();
        if *now != marks {
            return false;
        }
        for region in self.regions_of(range) {
            let whole = self.array_range(region);
            let Some(word) = self.words.get(region as usize) else { continue };
            let within = range.start <= whole.start && whole.end <= range.end;
            if within && word.fetch_and(!DIRTY, Ordering::SeqCst) & DIRTY != 0 {
                word.fetch_or(TOUCHED, Ordering::SeqCst);
                self.dirty.fetch_sub(1, Ordering::SeqCst);
            }
        }
        drop(now);
        self.keeper.has_work();
        true
    }

    /// The ranges of the array that a map's regions are about, in ascending order.
    pub(in crate::array::intent) fn array_ranges(&self, map: &RegionMap) -> Vec<Range<u64>> {
        let regions = (0..map.regions()).filter(|&region| map.contains(region));
        regions.map(|region| self.array_range(region)).collect()
    }

    /// The regions that a member misses which left when the superblocks had this event count;
    /// nothing if that is not known.
    pub(in crate::array::intent) fn missed_since(&self, events: u64) -> Option<RegionMap> {
        let superblock = *self.superblock();
        let is_known = self.mode() == Mode::Durable
            && !superblock.state().contains(BitmapState::STALE)
            && events >= superblock.events_cleared();
        is_known.then(|| self.set_regions())
    }

    /// The regions whose bits are set.
    fn set_regions(&self) -> RegionMap {
        let superblock = *self.superblock();
        let (covered, region) = (superblock.covered_bytes(), superblock.region_bytes());
        let mut map = RegionMap::empty(self.unit, covered, region);
        for region in 0..self.words.len() as u64 {
            for (index, bits) in Self::bits_of(&(region..region + 1)) {
                let is_set =
                    |image: &Image, bit: u64| image[bit as usize / 8] >> (bit % 8) & 1 == 1;
                if bits.clone().any(|bit| self.blocks[index].look(|image| is_set(image, bit))) {
                    map.insert(region);
                }
            }
        }
        map
    }

    /// The superblocks of all members in use have this event count, and say whether all members
    /// are in sync.
    pub(in crate::array::intent) fn note_events(&self, events: u64, is_degraded: bool) {
        self.events.store(events, Ordering::SeqCst);
        if is_degraded {
            return;
        }
        self.healthy_events.store(events, Ordering::SeqCst);
        if self.mode() == Mode::Off {
            // From now on there is a state that a later map can begin with.
            self.set_mode(Mode::Memory);
            self.keeper.has_work();
        }
    }
}
