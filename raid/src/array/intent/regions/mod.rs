//! Maps of regions: md's write-intent bitmap, and the degraded-write map of arrays with a log.
//!
//! **In memory** each region has one atomic word: how many writes to it are under way, and flags.
//! A write counts itself there before it looks at the flags. If the region's bit is on all members
//! that is all it does: no lock, no allocation. If not, it sets the bit in the image of its block
//! and waits until that is written ([`super::blocks`]). Idle regions lose their bits again ([`clear`]).
//!
//! **The degraded-write map** is the same with two states. While all members are in sync nothing of
//! it is on the members (its superblock there says *stale*); in memory a region is *recent* from a
//! write until the flush that follows it, since a member that fails may lose what it has in its
//! cache. When a member is gone the map is written with what is recent or under way, then its
//! superblock, with the event count that all members had; from then on bits are durable before
//! their regions are written. A write that was under way when the member failed is in the map
//! before it is acknowledged.

mod clear;
mod dirty;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::error::ArrayError;
use super::super::reserve::Claim;
use super::blocks::{Block, Image, Turn};
use super::layout::{RegionsKind, RegionsLayout};
use super::members::{Members, Memory, write_all, write_new};
use crate::buffer::SharedBuffer;
use crate::geometry::Geometry;
use crate::metadata::bitmap::{
    BLOCK_BYTES, BitmapState, BitmapSuperblock, MapUnit, SUPERBLOCK_BYTES,
};
use crate::mutation::mutation;
use clear::Keeper;

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
            geometry: *geometry,
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
            keeper: Keeper::with_work(),
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
            let is_missed = self.mode() != Mode::Off && members.is_degraded() && !is_durable;
            if is_missed && !mutation!("forget-write-beside-failure") {
                result = Box::pin(self.make_durable(members, &regions)).await;
            }
        }
        if !agree {
            self.mark_dirty(&regions);
            members.became_dirty();
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
        if self.kind == RegionsKind::DegradedMap && mutation!("no-degraded-map") {
            return Ok(());
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
        let (data, claim) = to_buffer(members, image).await?;
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
        let most = if mutation!("bitmap-on-one-member") { 1 } else { usize::MAX };
        let result = write_all(members, writes.take(most)).await;
        drop(data);
        drop(claim);
        result
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
            let result = match to_buffer(members, &image).await {
                Ok((data, claim)) => {
                    let within = index as u64 * BLOCK_BYTES as u64;
                    let result = write_new(members, slot, offset_bytes + within, data).await;
                    drop(claim);
                    result
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

/// An image as it is written; the claim, if there is one, is to be kept until that has ended.
async fn to_buffer<'a>(
    members: &'a impl Members,
    image: &Image,
) -> Result<(SharedBuffer, Option<Claim<'a>>), ArrayError> {
    let Memory { mut buffers, claim } = Memory::take(members, &[BLOCK_BYTES as u32]).await?;
    let mut buffer = buffers.pop().ok_or(ArrayError::NotReady)?;
    buffer.copy_from_slice(image);
    Ok((buffer.freeze(), claim))
}
