//! Maps of regions: md's write-intent bitmap, and the degraded-write map of arrays with a log.
//!
//! **In memory** each region has one atomic word: how many writes to it are under way, and flags.
//! A write counts itself there before it looks at the flags. If the region's bit is on all members
//! that is all it does: no lock, no allocation. If not, it sets the bit in the image of its block
//! and waits until that is written ([`super::blocks`]).
//!
//! **Clearing.** [`Regions::keep`] runs on one core and looks at all set bits every few seconds:
//! 1. a region without writes under way that was written since the last look only loses its mark
//!    *touched*;
//! 2. one that still has no mark at the next look has been idle for that long. All members are
//!    flushed, so that what was written there is durable everywhere;
//! 3. a member that has left before knows that what it misses has a bit: `events_cleared` is
//!    raised to the superblocks' present event count, and durable;
//! 4. regions that are still idle and unmarked cease to be *durable*, the bits leave the image, and
//!    it is written. From then on a write to them sets the bit anew, behind that write.
//!
//! No bit is cleared while any member is not in sync: the bits are what it misses. Nor is the bit
//! of a *dirty* region, whose copies may differ, until it has been made consistent.
//!
//! **The degraded-write map** is the same with two states. While all members are in sync nothing of
//! it is on the members (its superblock there says *stale*); in memory a region is *recent* from a
//! write until the flush that follows it, since a member that fails may lose what it has in its
//! cache. When a member is gone the map is written with what is recent or under way, then its
//! superblock, with the event count that all members had; from then on bits are durable before
//! their regions are written. A write that was under way when the member failed is in the map
//! before it is acknowledged.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::{Either, select};

use super::super::Timer;
use super::super::error::ArrayError;
use super::blocks::{Block, Image, Turn};
use super::layout::{RegionsKind, RegionsLayout};
use super::members::{Members, flush_all, write_all, write_new};
use crate::buffer::SharedBuffer;
use crate::geometry::Geometry;
use crate::metadata::bitmap::{
    BLOCK_BYTES, BitmapState, BitmapSuperblock, MapUnit, RegionMap, SUPERBLOCK_BYTES,
};
use crate::mutation::mutation;

/// The region's bit is on all members that take writes.
const DURABLE: u32 = 1 << 31;
/// It was written since the last look.
const TOUCHED: u32 = 1 << 30;
/// Its copies may differ, or its parity be wrong.
const DIRTY: u32 = 1 << 29;
/// It was written since the last flush (degraded-write map).
const RECENT: u32 = 1 << 28;
/// Writes under way.
const COUNT: u32 = RECENT - 1;

const BITS_PER_BLOCK: u64 = BLOCK_BYTES as u64 * 8;
const FIRST_BIT: u64 = SUPERBLOCK_BYTES as u64 * 8;
const NOWHERE: u64 = u64::MAX;

/// Whether bits must be on the members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Mode {
    /// Before their regions are written.
    Durable = 0,
    /// Not now, since no member misses anything.
    Memory = 1,
    /// Not at all: a member is missing, and nobody has kept a map since. The superblock on the
    /// members says *stale*.
    Off = 2,
}

/// See the file's head.
pub(super) struct Regions {
    kind: RegionsKind,
    unit: MapUnit,
    geometry: Geometry,
    region_shift: u32,
    words: Box<[AtomicU32]>,
    blocks: Box<[Block]>,
    superblock: Mutex<BitmapSuperblock>,
    /// Where the first block is on each member's drive, by slot.
    offsets_bytes: Box<[AtomicU64]>,
    /// Members that are written though they do not take writes yet, by slot.
    joining: Box<[AtomicBool]>,
    mode: AtomicU8,
    /// Regions that are dirty.
    dirty: AtomicU64,
    /// How often regions were marked as dirty; held while marks come and go.
    dirty_marks: Mutex<u64>,
    /// The superblocks' event count, and the last one at which all members were in sync.
    events: AtomicU64,
    healthy_events: AtomicU64,
    keeper: Keeper,
}

/// The one who clears bits.
#[derive(Default)]
struct Keeper {
    /// There are bits to look at.
    has_work: AtomicBool,
    is_stopped: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Keeper {
    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let waker = self.waker().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn has_work(&self) {
        if !self.has_work.load(Ordering::SeqCst) && !self.has_work.swap(true, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Waits for work: true; or for the end: false. Or only for the end.
    async fn work_or_stop(&self, only_stop: bool) -> bool {
        poll_fn(|cx| {
            // First of all, so that nothing that comes now is missed.
            *self.waker() = Some(cx.waker().clone());
            if self.is_stopped.load(Ordering::SeqCst) {
                Poll::Ready(false)
            } else if self.has_work.load(Ordering::SeqCst) && !only_stop {
                Poll::Ready(true)
            } else {
                Poll::Pending
            }
        })
        .await
    }
}

impl Regions {
    /// From what was found at assembly. `is_degraded`: whether a member is not in sync.
    pub(super) fn new(geometry: &Geometry, layout: &RegionsLayout, is_degraded: bool) -> Self {
        let (set, superblock) = (&layout.set, layout.superblock);
        let is_stale = superblock.state().contains(BitmapState::STALE);
        let mode = match layout.kind {
            RegionsKind::Bitmap => Mode::Durable,
            RegionsKind::DegradedMap if !is_degraded => Mode::Memory,
            RegionsKind::DegradedMap if is_stale => Mode::Off,
            RegionsKind::DegradedMap => Mode::Durable,
        };
        let mut image = set.clone();
        // Of the same shape, or else the assembly has made a mistake that must not lose bits.
        if image.union(&layout.dirty).is_err() {
            image.fill();
        }
        let is_durable = layout.on_all_members && image == *set;
        let word = |region| {
            // What was written before this start may be in a member's cache.
            let mut word = if layout.kind == RegionsKind::DegradedMap { RECENT } else { 0 };
            if image.contains(region) {
                word |= TOUCHED | if is_durable { DURABLE } else { 0 };
            }
            word | if layout.dirty.contains(region) { DIRTY } else { 0 }
        };
        let blocks = superblock.bitmap_bytes() / BLOCK_BYTES as u64;
        let block = |index| Block::new(image.block(&superblock, index), is_durable);
        let offset = |slot: usize| layout.offsets_bytes.get(slot).copied().flatten();
        let slots = 0..geometry.members();
        Self {
            kind: layout.kind,
            unit: set.unit(),
            geometry: geometry.clone(),
            region_shift: set.region_bytes().trailing_zeros(),
            words: (0..set.regions()).map(|region| AtomicU32::new(word(region))).collect(),
            blocks: (0..blocks).map(block).collect(),
            superblock: Mutex::new(superblock),
            offsets_bytes: slots
                .clone()
                .map(|slot| AtomicU64::new(offset(slot).unwrap_or(NOWHERE)))
                .collect(),
            joining: slots.map(|_| AtomicBool::new(false)).collect(),
            mode: AtomicU8::new(mode as u8),
            dirty: AtomicU64::new(layout.dirty.len()),
            dirty_marks: Mutex::new(0),
            events: AtomicU64::new(layout.events),
            healthy_events: AtomicU64::new(layout.events),
            keeper: Keeper { has_work: AtomicBool::new(true), ..Keeper::default() },
        }
    }

    fn mode(&self) -> Mode {
        match self.mode.load(Ordering::SeqCst) {
            0 => Mode::Durable,
            1 => Mode::Memory,
            _ => Mode::Off,
        }
    }

    fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
    }

    /// What it is for.
    pub(super) fn kind(&self) -> RegionsKind {
        self.kind
    }

    /// The regions that a range of the array touches, on any member.
    fn regions_of(&self, range: &Range<u64>) -> Range<u64> {
        let covered = match self.unit {
            MapUnit::Array => range.clone(),
            MapUnit::Component => {
                self.geometry.component_span(range.start, range.end - range.start)
            }
        };
        if covered.is_empty() {
            return 0..0;
        }
        let end = ((covered.end - 1) >> self.region_shift) + 1;
        covered.start >> self.region_shift..end.min(self.words.len() as u64)
    }

    fn words_of(&self, regions: &Range<u64>) -> &[AtomicU32] {
        self.words.get(regions.start as usize..regions.end as usize).unwrap_or_default()
    }

    /// The parts of a range of regions in each block: the block's number, and which of its bits.
    fn bits_of(regions: &Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> + use<> {
        let Range { start, end } = FIRST_BIT + regions.start..FIRST_BIT + regions.end;
        (start / BITS_PER_BLOCK..end.div_ceil(BITS_PER_BLOCK)).map(move |block| {
            let first = block * BITS_PER_BLOCK;
            let to = end.min(first + BITS_PER_BLOCK) - first;
            (block as usize, start.max(first) - first..to)
        })
    }

    /// The region of a bit of a block; none for bits of the superblock or beyond the end.
    fn region_of(&self, block: usize, bit: u64) -> Option<u64> {
        let region = (block as u64 * BITS_PER_BLOCK + bit).checked_sub(FIRST_BIT)?;
        (region < self.words.len() as u64).then_some(region)
    }
}

/// Writing.
impl Regions {
    /// See [`super::Intent::begin`]; the regions are to be given back to [`Self::end`].
    pub(super) async fn begin(
        &self,
        members: &impl Members,
        range: &Range<u64>,
    ) -> Result<Range<u64>, ArrayError> {
        let regions = self.regions_of(range);
        let mut is_durable = true;
        for word in self.words_of(&regions) {
            is_durable &= word.fetch_add(1, Ordering::SeqCst) & DURABLE != 0;
        }
        let must_wait = match self.mode() {
            Mode::Durable => !is_durable,
            Mode::Memory => members.is_degraded(),
            Mode::Off => false,
        };
        if !must_wait || mutation!("write-before-bitmap-bit") {
            return Ok(regions);
        }
        match Box::pin(self.make_durable(members, &regions)).await {
            Ok(()) => Ok(regions),
            Err(error) => {
                self.leave(&regions);
                Err(error)
            }
        }
    }

    /// See [`super::Intent::end`].
    pub(super) async fn end(
        &self,
        members: &impl Members,
        regions: Range<u64>,
        agree: bool,
    ) -> Result<(), ArrayError> {
        let mut result = Ok(());
        if self.kind == RegionsKind::DegradedMap {
            let words = self.words_of(&regions);
            words.iter().for_each(|word| {
                word.fetch_or(RECENT, Ordering::SeqCst);
            });
            // A member may have failed under the write, and have missed it.
            let is_durable = self.mode() == Mode::Durable
                && words.iter().all(|word| word.load(Ordering::SeqCst) & DURABLE != 0);
            if self.mode() != Mode::Off && members.is_degraded() && !is_durable {
                result = Box::pin(self.make_durable(members, &regions)).await;
            }
        }
        if !agree {
            self.mark_dirty(&regions);
        }
        self.leave(&regions);
        result
    }

    fn leave(&self, regions: &Range<u64>) {
        for word in self.words_of(regions) {
            // The mark is never taken away while the count is not zero.
            if word.load(Ordering::SeqCst) & TOUCHED == 0 {
                word.fetch_or(TOUCHED, Ordering::SeqCst);
            }
            word.fetch_sub(1, Ordering::SeqCst);
        }
        if self.mode() == Mode::Memory {
            self.keeper.has_work();
        }
    }

    /// Gets the bits of regions, which are counted as being written, onto all members.
    async fn make_durable(
        &self,
        members: &impl Members,
        regions: &Range<u64>,
    ) -> Result<(), ArrayError> {
        if self.mode() == Mode::Memory {
            self.activate(members).await?;
        }
        for (index, bits) in Self::bits_of(regions) {
            let Some(block) = self.blocks.get(index) else { continue };
            let version = block.change(|image| {
                let mut changed = false;
                for bit in bits {
                    let (byte, mask) = (&mut image[bit as usize / 8], 1 << (bit % 8));
                    changed |= *byte & mask == 0;
                    *byte |= mask;
                }
                changed
            });
            self.write(members, index, version).await?;
        }
        self.keeper.has_work();
        Ok(())
    }

    /// Has a block's image on all members if it is not there.
    async fn write_outstanding(
        &self,
        members: &impl Members,
        index: usize,
    ) -> Result<(), ArrayError> {
        match self.blocks.get(index).and_then(Block::outstanding) {
            Some(version) => self.write(members, index, version).await,
            None => Ok(()),
        }
    }

    /// Has a block's image of that version on all members.
    async fn write(
        &self,
        members: &impl Members,
        index: usize,
        version: u64,
    ) -> Result<(), ArrayError> {
        let Some(block) = self.blocks.get(index) else { return Ok(()) };
        match block.turn(Some(version)).await? {
            None => Ok(()),
            Some(turn) => self.write_in_turn(members, index, turn).await,
        }
    }

    async fn write_in_turn(
        &self,
        members: &impl Members,
        index: usize,
        turn: Turn<'_>,
    ) -> Result<(), ArrayError> {
        let (image, version) = turn.image();
        let result = self.write_image(members, index, &image).await;
        if result.is_ok() {
            self.now_durable(index, &image);
        }
        turn.end(result.is_ok().then_some(version));
        result
    }

    /// Writes an image of a block to all members that take writes, or are about to.
    async fn write_image(
        &self,
        members: &impl Members,
        index: usize,
        image: &Image,
    ) -> Result<(), ArrayError> {
        let data = to_buffer(members, image)?;
        let within = index as u64 * BLOCK_BYTES as u64;
        let writes = (0..members.slots()).filter_map(|slot| {
            let is_writable = members.is_writable(slot);
            if is_writable {
                self.joining[slot].store(false, Ordering::SeqCst);
            }
            let offset = self.offsets_bytes[slot].load(Ordering::SeqCst);
            let is_concerned = is_writable || self.joining[slot].load(Ordering::SeqCst);
            (is_concerned && offset != NOWHERE).then(|| (slot, offset + within, data.clone()))
        });
        write_all(members, writes).await
    }

    /// All bits of an image are on all members.
    fn now_durable(&self, index: usize, image: &Image) {
        let set = image.iter().enumerate().filter(|(_, byte)| **byte != 0);
        let bits = set.flat_map(|(at, &byte)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| at as u64 * 8 + bit)
        });
        for region in bits.filter_map(|bit| self.region_of(index, bit)) {
            let word = &self.words[region as usize];
            if word.load(Ordering::SeqCst) & DURABLE == 0 {
                word.fetch_or(DURABLE, Ordering::SeqCst);
            }
        }
    }

    /// Brings the degraded-write map onto the members: see the file's head.
    async fn activate(&self, members: &impl Members) -> Result<(), ArrayError> {
        // The first block's turn is held throughout, so that one core does this for all.
        let Some(turn) = self.blocks.first() else { return Ok(()) };
        let Some(turn) = turn.turn(None).await? else { return Ok(()) };
        if self.mode() != Mode::Memory {
            turn.end(None);
            return Ok(());
        }
        let result = self.activate_in_turn(members, &turn).await;
        turn.end(result.as_ref().ok().copied());
        result.map(|_| ())
    }

    async fn activate_in_turn(
        &self,
        members: &impl Members,
        turn: &Turn<'_>,
    ) -> Result<u64, ArrayError> {
        for word in &self.words {
            word.fetch_and(!DURABLE, Ordering::SeqCst);
        }
        for (index, block) in self.blocks.iter().enumerate() {
            block.change(|image| {
                let bits = if index == 0 { &mut image[SUPERBLOCK_BYTES..] } else { &mut image[..] };
                bits.fill(0);
                true
            });
        }
        for (region, word) in self.words.iter().enumerate() {
            if word.load(Ordering::SeqCst) & (RECENT | COUNT) != 0 {
                let region = region as u64;
                for (index, bits) in Self::bits_of(&(region..region + 1)) {
                    self.blocks[index].change(|image| {
                        bits.for_each(|bit| image[bit as usize / 8] |= 1 << (bit % 8));
                        true
                    });
                }
            }
        }
        for index in 1..self.blocks.len() {
            self.write_outstanding(members, index).await?;
        }
        // The bits are there, so that the superblock may say that they count.
        let events = self.healthy_events.load(Ordering::SeqCst);
        let superblock = self.change_superblock(|superblock| {
            let state = superblock.state() - BitmapState::STALE;
            superblock.with_state(state).with_events_cleared(events)
        });
        let (mut image, version) = turn.image();
        image[..SUPERBLOCK_BYTES].copy_from_slice(&superblock.to_bytes());
        self.write_image(members, 0, &image).await?;
        self.now_durable(0, &image);
        self.set_mode(Mode::Durable);
        Ok(version)
    }

    fn superblock(&self) -> MutexGuard<'_, BitmapSuperblock> {
        self.superblock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the superblock, also in the first block's image, and returns it.
    fn change_superblock(
        &self,
        change: impl FnOnce(BitmapSuperblock) -> BitmapSuperblock,
    ) -> BitmapSuperblock {
        let mut superblock = self.superblock();
        *superblock = change(*superblock);
        if let Some(block) = self.blocks.first() {
            block.change(|image| {
                image[..SUPERBLOCK_BYTES].copy_from_slice(&superblock.to_bytes());
                true
            });
        }
        *superblock
    }
}

/// What may be inconsistent, and what a member misses.
impl Regions {
    /// Whether any region of the range is dirty.
    pub(super) fn is_dirty(&self, range: &Range<u64>) -> bool {
        // Dirty regions are known before anything is served, and new ones are made by writes that
        // fail, which say so before they leave the range's lock.
        self.dirty.load(Ordering::SeqCst) > 0
            && self
                .words_of(&self.regions_of(range))
                .iter()
                .any(|word| word.load(Ordering::SeqCst) & DIRTY != 0)
    }

    /// Whether any region is dirty.
    pub(super) fn has_dirty(&self) -> bool {
        self.dirty.load(Ordering::SeqCst) > 0
    }

    /// Counts how often regions were marked as dirty.
    pub(super) fn dirty_marks(&self) -> u64 {
        *self.marks()
    }

    fn marks(&self) -> MutexGuard<'_, u64> {
        self.dirty_marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark_dirty(&self, regions: &Range<u64>) {
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
    pub(super) fn dirty_ranges(&self) -> Vec<Range<u64>> {
        if !self.has_dirty() {
            return Vec::new();
        }
        let dirty = self.words.iter().enumerate();
        let dirty = dirty.filter(|(_, word)| word.load(Ordering::SeqCst) & DIRTY != 0);
        dirty.map(|(region, _)| self.array_range(region as u64)).collect()
    }

    /// Regions that are wholly within the range are not dirty any more. False, and nothing changes,
    /// if any region was marked since [`Self::dirty_marks`] was `marks`.
    pub(super) fn made_consistent(&self, range: &Range<u64>, marks: u64) -> bool {
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
    pub(super) fn array_ranges(&self, map: &RegionMap) -> Vec<Range<u64>> {
        let regions = (0..map.regions()).filter(|&region| map.contains(region));
        regions.map(|region| self.array_range(region)).collect()
    }

    /// The regions that a member misses which left when the superblocks had this event count;
    /// nothing if that is not known.
    pub(super) fn missed_since(&self, events: u64) -> Option<RegionMap> {
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
    pub(super) fn note_events(&self, events: u64, is_degraded: bool) {
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

/// Members that come.
impl Regions {
    /// Writes everything to a member that is about to take writes, and all changes from now on.
    pub(super) async fn admit(
        &self,
        members: &impl Members,
        slot: usize,
        offset_bytes: u64,
    ) -> Result<(), ArrayError> {
        let (Some(offset), Some(joining)) = (self.offsets_bytes.get(slot), self.joining.get(slot))
        else {
            return Ok(());
        };
        offset.store(offset_bytes, Ordering::SeqCst);
        joining.store(true, Ordering::SeqCst);
        for (index, block) in self.blocks.iter().enumerate() {
            let Some(turn) = block.turn(None).await? else { continue };
            let (image, _) = turn.image();
            let result = match to_buffer(members, &image) {
                Ok(data) => {
                    let within = index as u64 * BLOCK_BYTES as u64;
                    write_new(members, slot, offset_bytes + within, data).await
                }
                Err(error) => Err(error),
            };
            turn.end(None);
            if result.is_err() {
                joining.store(false, Ordering::SeqCst);
                return result;
            }
        }
        Ok(())
    }

    /// All members are about to be in sync: the degraded-write map must not count any more, before
    /// that is recorded.
    pub(super) async fn before_in_sync(&self, members: &impl Members) -> Result<(), ArrayError> {
        if self.kind == RegionsKind::Bitmap || self.mode() != Mode::Durable {
            return Ok(());
        }
        self.change_superblock(|superblock| {
            superblock.with_state(superblock.state() | BitmapState::STALE)
        });
        self.set_mode(Mode::Off);
        self.write_outstanding(members, 0).await
    }
}

/// Clearing.
impl Regions {
    /// Lets [`Self::keep`] end.
    pub(super) fn stop(&self) {
        self.keeper.is_stopped.store(true, Ordering::SeqCst);
        self.keeper.wake();
    }

    /// Clears bits, as in the file's head, until [`Self::stop`]. On one core only.
    pub(super) async fn keep(&self, members: &impl Members, timer: &impl Timer) {
        let seconds = self.superblock().daemon_sleep_seconds().clamp(1, 3600);
        let interval = Duration::from_secs(u64::from(seconds));
        for index in 0..self.blocks.len() {
            // Who has to have the bits durable tries again, and is told what is wrong.
            let _ = self.write_outstanding(members, index).await;
        }
        while self.keeper.work_or_stop(false).await {
            let sleep = pin!(timer.sleep(interval));
            let stop = pin!(self.keeper.work_or_stop(true));
            if let Either::Right(_) = select(sleep, stop).await {
                return;
            }
            self.keeper.has_work.store(false, Ordering::SeqCst);
            if self.look(members, false).await {
                self.keeper.has_work.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Clears all bits that may be cleared, without waiting for regions to become idle: for a clean
    /// stop, when no writes are under way any more.
    pub(super) async fn clear_idle(&self, members: &impl Members) {
        self.look(members, true).await;
    }

    /// One look at all bits. Says whether there is anything left to look at.
    async fn look(&self, members: &impl Members, at_once: bool) -> bool {
        if members.is_degraded() && !mutation!("clear-bit-while-degraded") {
            return true;
        }
        if self.kind == RegionsKind::DegradedMap && self.mode() != Mode::Memory {
            // It begins when the superblocks say that all members are in sync.
            return false;
        }
        let (candidates, is_work_left) = self.find_idle(at_once);
        if candidates.is_empty() {
            return is_work_left;
        }
        if !mutation!("clear-bit-without-flush") {
            flush_all(members).await;
        }
        if members.is_degraded() && !mutation!("clear-bit-while-degraded") {
            return true;
        }
        if self.mode() == Mode::Memory {
            self.forget_recent(&candidates);
        } else {
            // What could not be cleared, for whatever reason, stays set.
            let _ = self.clear(members, &candidates).await;
        }
        true
    }

    /// Regions that have been idle since the last look, in order, and whether there are others.
    fn find_idle(&self, at_once: bool) -> (Vec<u64>, bool) {
        let in_memory = self.mode() == Mode::Memory;
        let (mut idle, mut others) = (Vec::new(), false);
        for (region, word) in self.words.iter().enumerate() {
            let value = word.load(Ordering::SeqCst);
            let is_set = if in_memory { value & RECENT != 0 } else { value & DURABLE != 0 };
            if !is_set && value & (TOUCHED | COUNT) == 0 {
                continue;
            }
            if value & COUNT != 0 || value & DIRTY != 0 {
                // A dirty region comes up again when it has been made consistent.
                others |= value & COUNT != 0;
                continue;
            }
            let unmarked = value & !TOUCHED;
            if value & TOUCHED != 0 {
                let taken = word
                    .compare_exchange(value, unmarked, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok();
                if !at_once || !taken {
                    others = true;
                    continue;
                }
            }
            if is_set {
                idle.push(region as u64);
            }
        }
        (idle, others)
    }

    fn forget_recent(&self, regions: &[u64]) {
        for &region in regions {
            // Nothing has begun since before the flush, or the word is another one.
            let word = &self.words[region as usize];
            let value = word.load(Ordering::SeqCst);
            if value & (TOUCHED | COUNT) == 0 {
                let without = value & !RECENT;
                let _ = word.compare_exchange(value, without, Ordering::SeqCst, Ordering::SeqCst);
            }
        }
    }

    /// Clears the bits of regions that were idle before the last flush.
    async fn clear(&self, members: &impl Members, regions: &[u64]) -> Result<(), ArrayError> {
        let events = self.events.load(Ordering::SeqCst);
        if self.superblock().events_cleared() < events {
            self.change_superblock(|superblock| superblock.with_events_cleared(events));
            self.write_outstanding(members, 0).await?;
        }
        let block_of = |region: &u64| ((FIRST_BIT + region) / BITS_PER_BLOCK) as usize;
        for regions in regions.chunk_by(|a, b| block_of(a) == block_of(b)) {
            let Some(index) = regions.first().map(block_of) else { continue };
            let Some(turn) = self.blocks[index].turn(None).await? else { continue };
            if members.is_degraded() && !mutation!("clear-bit-while-degraded") {
                turn.end(None);
                return Ok(());
            }
            self.blocks[index].change(|image| {
                let mut changed = false;
                for region in regions.iter().filter(|&&region| self.cease_to_be_durable(region)) {
                    let bit = (FIRST_BIT + region) % BITS_PER_BLOCK;
                    image[bit as usize / 8] &= !(1 << (bit % 8));
                    changed = true;
                }
                changed
            });
            self.write_in_turn(members, index, turn).await?;
        }
        Ok(())
    }

    /// Takes the flag from a region that is idle. From then on a write to it waits for a write of
    /// the bit, which is behind the one that clears it.
    fn cease_to_be_durable(&self, region: u64) -> bool {
        let word = &self.words[region as usize];
        let value = word.load(Ordering::SeqCst);
        value & DURABLE != 0
            && value & (TOUCHED | DIRTY | COUNT) == 0
            && word
                .compare_exchange(value, value & !DURABLE, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
    }
}

fn to_buffer(members: &impl Members, image: &Image) -> Result<SharedBuffer, ArrayError> {
    let mut buffer = members.allocate(BLOCK_BYTES).ok_or(ArrayError::NotReady)?;
    buffer.copy_from_slice(image);
    Ok(buffer.freeze())
}
