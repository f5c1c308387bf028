//! md's write-intent bitmap: which regions may differ between members. Pure.
//!
//! A superblock of 256 bytes, then one bit for each region, least significant bit of
//! each byte first, on every member at the same place (`bitmap_offset`):
//!
//! ```text
//!    0  magic            4   "bitm"
//!    4  version          4   4 (3: host-endian bits, 5: cluster, 6: lockless: not served)
//!    8  uuid            16   the array
//!   24  events           8   at least the superblock's, else md takes every bit for set
//!   32  events_cleared   8   bits tell everything that a member of this count misses
//!   40  sync_size        8   sectors that the bits cover
//!   48  state            4   bit 1: stale, every bit counts as set; bit 2: write error
//!   52  chunksize        4   bytes for each bit
//!   56  daemon_sleep     4   seconds until bits are cleared
//!   60  write_behind     4
//!   64  sectors_reserved 4
//!   68  nodes            4
//!   72  cluster_name    64
//!  136  zero           120
//!  256  bits
//! ```
//!
//! The bits cover the members' data areas, except for RAID 10, where they cover the
//! array ([`MapUnit`]).
//!
//! The degraded-write map of the private area ([`super::private::SectionKind`]) has the
//! same form, so that one machinery serves both.
//!
//! **`events`.** md raises it with every update of the superblocks, just before them, in
//! the same 512 bytes that hold the first bits. We would have to do that beside the data
//! cores, which write those bits. md asks only that it is not less than the superblock's
//! count, so we write it once, [`EVENTS_AHEAD`] ahead, while nobody else writes.

use super::{Level, SECTOR_BYTES};
use std::mem::size_of;
use std::ops::Range;
use thiserror::Error;
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The superblock's size: bits begin behind it.
pub const SUPERBLOCK_BYTES: usize = 256;
/// What is written at a time: the block of a bitmap.
pub const BLOCK_BYTES: usize = 4096;
/// Larger bitmaps are not read.
pub const MAX_BITMAP_BYTES: u64 = 64 << 20;
/// How far `events` is written ahead of the superblocks' count: more than any array
/// updates its superblocks in one run.
pub const EVENTS_AHEAD: u64 = 1 << 32;
/// How much of [`EVENTS_AHEAD`] must be left at a start.
pub const EVENTS_MARGIN: u64 = 1 << 31;
const MAGIC: u32 = 0x6d74_6962;
const VERSION: u32 = 4;
/// Bits are cleared this many seconds after the last write, by default.
const DAEMON_SLEEP_SECONDS: u32 = 5;
/// No bit stands for less, nor (by our choice) for more.
const OUR_REGION_BYTES: Range<u64> = 1 << 20..64 << 20;

bitflags::bitflags! {
    /// `state`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct BitmapState: u32 {
        /// The bits are out of date: each counts as set.
        const STALE = 1 << 1;
        /// A write of the bitmap failed.
        const WRITE_ERROR = 1 << 2;
    }
}

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
struct Raw {
    magic: U32,
    version: U32,
    uuid: [u8; 16],
    events: U64,
    events_cleared: U64,
    sync_size: U64,
    state: U32,
    chunksize: U32,
    daemon_sleep: U32,
    write_behind: U32,
    sectors_reserved: U32,
    nodes: U32,
    cluster_name: [u8; 64],
    pad: [u8; 120],
}

const _: () = assert!(size_of::<Raw>() == SUPERBLOCK_BYTES);

/// What a bit's position counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MapUnit {
    /// Bytes of every member's data area: RAID 1, 5, 6.
    Component,
    /// Bytes of the array: RAID 10.
    Array,
}

impl MapUnit {
    /// A level's.
    #[must_use]
    pub fn of(level: Level) -> Self {
        if level == Level::Raid10 { Self::Array } else { Self::Component }
    }
}

/// Why a bitmap is not believed: every region counts as dirty then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BitmapError {
    /// Nothing there.
    #[error("no write-intent bitmap is where the superblock says")]
    NoMagic,
    /// Host-endian, cluster, lockless, or later.
    #[error("the write-intent bitmap has version {0}, which is not served")]
    Version(u32),
    /// Another array's.
    #[error("the write-intent bitmap belongs to another array")]
    OtherArray,
    /// Sizes that contradict the array's.
    #[error("the write-intent bitmap does not fit the array: {0}")]
    Size(&'static str),
    /// It could not be read.
    #[error("the write-intent bitmap cannot be read")]
    Unreadable,
}

/// The superblock of a bitmap: every byte that it had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BitmapSuperblock {
    raw: Raw,
}

/// From what a new bitmap is made.
#[derive(Debug, Clone, Copy)]
pub struct NewBitmap {
    /// The array.
    pub array_uuid: Uuid,
    /// What the bits cover, in bytes.
    pub covered_bytes: u64,
    /// What one bit stands for, in bytes: a power of two from 512 to 2^31.
    pub region_bytes: u32,
    /// `events` and `events_cleared`.
    pub events: u64,
}

impl BitmapSuperblock {
    /// From the first bytes of a bitmap.
    ///
    /// # Errors
    /// If they are not a bitmap that this version reads, or not this array's.
    pub fn parse(bytes: &[u8], array_uuid: Uuid) -> Result<Self, BitmapError> {
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| BitmapError::NoMagic)?;
        if raw.magic.get() != MAGIC {
            return Err(BitmapError::NoMagic);
        }
        if raw.version.get() != VERSION {
            return Err(BitmapError::Version(raw.version.get()));
        }
        if raw.uuid != array_uuid.into_bytes() {
            return Err(BitmapError::OtherArray);
        }
        if !raw.chunksize.get().is_power_of_two() || raw.chunksize.get() < 512 {
            return Err(BitmapError::Size("what a bit stands for"));
        }
        let superblock = Self { raw };
        if superblock.covered_bytes() == 0 || superblock.bitmap_bytes() > MAX_BITMAP_BYTES {
            return Err(BitmapError::Size("what the bits cover"));
        }
        Ok(superblock)
    }

    /// A new bitmap's.
    #[must_use]
    pub fn create(new: &NewBitmap) -> Self {
        let mut raw = Raw::new_zeroed();
        raw.magic = MAGIC.into();
        raw.version = VERSION.into();
        raw.uuid = new.array_uuid.into_bytes();
        raw.events = new.events.into();
        raw.events_cleared = new.events.into();
        raw.sync_size = (new.covered_bytes / SECTOR_BYTES).into();
        raw.chunksize = new.region_bytes.into();
        raw.daemon_sleep = DAEMON_SLEEP_SECONDS.into();
        Self { raw }
    }

    /// The bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; SUPERBLOCK_BYTES] {
        zerocopy::transmute!(self.raw)
    }

    /// md's count of updates: see the file's head.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.raw.events.get()
    }

    /// With another one.
    #[must_use]
    pub fn with_events(mut self, events: u64) -> Self {
        self.raw.events = events.into();
        self
    }

    /// The bits tell everything that members of at least this event count miss.
    #[must_use]
    pub fn events_cleared(&self) -> u64 {
        self.raw.events_cleared.get()
    }

    /// With another one.
    #[must_use]
    pub fn with_events_cleared(mut self, events: u64) -> Self {
        self.raw.events_cleared = events.into();
        self
    }

    /// Whether the bits mean anything.
    #[must_use]
    pub fn state(&self) -> BitmapState {
        BitmapState::from_bits_truncate(self.raw.state.get())
    }

    /// With another state; unknown bits stay.
    #[must_use]
    pub fn with_state(mut self, state: BitmapState) -> Self {
        let others = self.raw.state.get() & !BitmapState::all().bits();
        self.raw.state = (others | state.bits()).into();
        self
    }

    /// What the bits cover, in bytes.
    #[must_use]
    pub fn covered_bytes(&self) -> u64 {
        self.raw.sync_size.get().saturating_mul(SECTOR_BYTES)
    }

    /// What one bit stands for, in bytes.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        u64::from(self.raw.chunksize.get())
    }

    /// The number of bits.
    #[must_use]
    pub fn regions(&self) -> u64 {
        self.covered_bytes().div_ceil(self.region_bytes().max(1))
    }

    /// How long after the last write a bit is cleared, in seconds.
    #[must_use]
    pub fn daemon_sleep_seconds(&self) -> u32 {
        self.raw.daemon_sleep.get()
    }

    /// The size of superblock and bits, in whole blocks.
    #[must_use]
    pub fn bitmap_bytes(&self) -> u64 {
        bitmap_bytes(self.regions())
    }
}

/// What superblock and bits for so many regions take, in whole blocks.
#[must_use]
pub fn bitmap_bytes(regions: u64) -> u64 {
    (regions.div_ceil(8) + SUPERBLOCK_BYTES as u64).next_multiple_of(BLOCK_BYTES as u64)
}

/// What one bit stands for in a bitmap that we make over `covered_bytes`, with at most
/// `room_bytes` for it: a 4096th, but no less than 1 MiB and no more than 64 MiB (md's
/// default), unless there is no room.
#[must_use]
pub fn region_bytes_for(covered_bytes: u64, room_bytes: u64) -> u32 {
    let Range { start: least, end: most } = OUR_REGION_BYTES;
    let mut region = (covered_bytes / 4096).clamp(least, most).next_power_of_two().min(most);
    while bitmap_bytes(covered_bytes.div_ceil(region)) > room_bytes && region < 1 << 31 {
        region *= 2;
    }
    u32::try_from(region).unwrap_or(1 << 31)
}

/// A set of regions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionMap {
    unit: MapUnit,
    covered_bytes: u64,
    region_bytes: u64,
    words: Vec<u64>,
}

impl RegionMap {
    /// No regions. `region_bytes` is at least 1.
    #[must_use]
    pub fn empty(unit: MapUnit, covered_bytes: u64, region_bytes: u64) -> Self {
        let region_bytes = region_bytes.max(1);
        let words = covered_bytes.div_ceil(region_bytes).div_ceil(64);
        let words = vec![0; usize::try_from(words).unwrap_or(0)];
        Self { unit, covered_bytes, region_bytes, words }
    }

    /// What positions count.
    #[must_use]
    pub fn unit(&self) -> MapUnit {
        self.unit
    }

    /// What one region is, in bytes.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// What the map covers, in bytes.
    #[must_use]
    pub fn covered_bytes(&self) -> u64 {
        self.covered_bytes
    }

    /// The number of regions.
    #[must_use]
    pub fn regions(&self) -> u64 {
        self.covered_bytes.div_ceil(self.region_bytes)
    }

    /// Whether a region is in the set.
    #[must_use]
    pub fn contains(&self, region: u64) -> bool {
        let word = usize::try_from(region / 64).ok().and_then(|w| self.words.get(w));
        word.is_some_and(|word| word >> (region % 64) & 1 == 1)
    }

    /// Puts a region into the set; nothing beyond the end.
    pub fn insert(&mut self, region: u64) {
        if region < self.regions()
            && let Some(word) =
                usize::try_from(region / 64).ok().and_then(|w| self.words.get_mut(w))
        {
            *word |= 1 << (region % 64);
        }
    }

    /// Takes a region out of the set.
    pub fn remove(&mut self, region: u64) {
        if let Some(word) = usize::try_from(region / 64).ok().and_then(|w| self.words.get_mut(w)) {
            *word &= !(1 << (region % 64));
        }
    }

    /// Puts every region into the set.
    pub fn fill(&mut self) {
        self.words.fill(u64::MAX);
        let beyond = self.regions() % 64;
        if let Some(last) = self.words.last_mut()
            && beyond > 0
        {
            *last = (1 << beyond) - 1;
        }
    }

    /// The number of regions in the set.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether no region is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Puts everything into the set that is in the other one, of the same shape.
    ///
    /// # Errors
    /// If the shapes differ; the set is unchanged.
    pub fn union(&mut self, other: &Self) -> Result<(), BitmapError> {
        let same = (self.unit, self.covered_bytes, self.region_bytes)
            == (other.unit, other.covered_bytes, other.region_bytes);
        if !same {
            return Err(BitmapError::Size("members' bitmaps differ"));
        }
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
        Ok(())
    }

    /// Takes out what ends at or before `position_bytes`.
    pub fn forget_below(&mut self, position_bytes: u64) {
        for region in 0..(position_bytes / self.region_bytes).min(self.regions()) {
            self.remove(region);
        }
    }

    /// Where the regions begin that are in the set, every one of them, up to the end;
    /// the end if the last is not.
    #[must_use]
    pub fn solid_from_bytes(&self) -> u64 {
        let mut first = self.regions();
        while first > 0 && self.contains(first - 1) {
            first -= 1;
        }
        first.saturating_mul(self.region_bytes).min(self.covered_bytes)
    }

    /// What the regions in the set cover, in bytes of the map's unit: sorted and joined.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for region in (0..self.regions()).filter(|r| self.contains(*r)) {
            let start = region * self.region_bytes;
            let end = start.saturating_add(self.region_bytes).min(self.covered_bytes);
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        ranges
    }

    /// From the bytes behind a bitmap's superblock; what is missing counts as set.
    #[must_use]
    pub fn from_bits(superblock: &BitmapSuperblock, unit: MapUnit, bits: &[u8]) -> Self {
        let mut map = Self::empty(unit, superblock.covered_bytes(), superblock.region_bytes());
        map.fill();
        let (whole, rest) = bits.as_chunks::<8>();
        let mut last = [0xff; 8];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        for (word, bytes) in map.words.iter_mut().zip(whole.iter().chain([&last])) {
            *word &= u64::from_le_bytes(*bytes);
        }
        map
    }

    /// Block number `index` of the bitmap on the drive, superblock and all.
    #[must_use]
    pub fn block(&self, superblock: &BitmapSuperblock, index: u64) -> Box<[u8; BLOCK_BYTES]> {
        let mut block = Box::new([0; BLOCK_BYTES]);
        let begin = usize::try_from(index).unwrap_or(usize::MAX).saturating_mul(BLOCK_BYTES);
        let bits = self.words.iter().flat_map(|word| word.to_le_bytes());
        let all = superblock.to_bytes().into_iter().chain(bits);
        block.iter_mut().zip(all.skip(begin)).for_each(|(to, from)| *to = from);
        block
    }
}

/// A bitmap as it was found on a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bitmap {
    /// Its superblock.
    pub superblock: BitmapSuperblock,
    /// Its bits.
    pub regions: RegionMap,
}

impl Bitmap {
    /// From all its bytes (what is missing counts as set).
    ///
    /// # Errors
    /// If it is not believed.
    pub fn parse(
        bytes: &[u8],
        array_uuid: Uuid,
        unit: MapUnit,
        covered_bytes: u64,
    ) -> Result<Self, BitmapError> {
        let superblock = BitmapSuperblock::parse(bytes, array_uuid)?;
        if superblock.covered_bytes() != covered_bytes {
            return Err(BitmapError::Size("what the bits cover"));
        }
        let bits = bytes.get(SUPERBLOCK_BYTES..).unwrap_or_default();
        let regions = RegionMap::from_bits(&superblock, unit, bits);
        Ok(Self { superblock, regions })
    }

    /// All its bytes, in blocks.
    #[must_use]
    pub fn blocks(&self) -> Vec<Box<[u8; BLOCK_BYTES]>> {
        let count = self.superblock.bitmap_bytes() / BLOCK_BYTES as u64;
        (0..count).map(|index| self.regions.block(&self.superblock, index)).collect()
    }

    /// Whether its bits tell everything that a member misses which left with this event count.
    #[must_use]
    pub fn tells_since(&self, events: u64) -> bool {
        !self.superblock.state().contains(BitmapState::STALE)
            && events >= self.superblock.events_cleared()
    }

    /// Whether its bits tell everything that may differ, in an array whose superblocks
    /// have this event count; md's rule.
    #[must_use]
    pub fn counts_at(&self, events: u64) -> bool {
        !self.superblock.state().contains(BitmapState::STALE) && self.superblock.events() >= events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const UUID: Uuid = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);

    fn example() -> BitmapSuperblock {
        let covered_bytes = 100 * MIB + 512;
        let new = NewBitmap { array_uuid: UUID, covered_bytes, region_bytes: 1 << 20, events: 7 };
        BitmapSuperblock::create(&new)
    }

    #[test]
    fn a_new_superblock_byte_by_byte() {
        let bytes = example().with_events(9).to_bytes();
        assert_eq!(bytes[..8], *b"bitm\x04\0\0\0");
        assert_eq!(bytes[8..24], *UUID.as_bytes());
        assert_eq!(bytes[24..32], 9u64.to_le_bytes());
        assert_eq!(bytes[32..40], 7u64.to_le_bytes());
        assert_eq!(bytes[40..48], (204_801u64).to_le_bytes());
        assert_eq!(bytes[48..60], [0, 0, 0, 0, 0, 0, 16, 0, 5, 0, 0, 0]);
        assert_eq!(bytes[60..], [0; 196]);
        let again = BitmapSuperblock::parse(&bytes, UUID).unwrap();
        assert_eq!((again.regions(), again.bitmap_bytes()), (101, 4096));
    }

    #[test]
    fn refuses_what_is_not_this_arrays() {
        let change = |at: usize, bytes: &[u8]| {
            let mut all = example().to_bytes();
            all[at..at + bytes.len()].copy_from_slice(bytes);
            BitmapSuperblock::parse(&all, UUID).map(|_| ())
        };
        assert_eq!(change(0, b"x"), Err(BitmapError::NoMagic));
        for version in [3u32, 5, 6] {
            assert_eq!(change(4, &version.to_le_bytes()), Err(BitmapError::Version(version)));
        }
        assert_eq!(change(8, &[1]), Err(BitmapError::OtherArray));
        for chunk in [0u32, 256, 3 << 20] {
            assert!(matches!(change(52, &chunk.to_le_bytes()), Err(BitmapError::Size(_))));
        }
        for size in [0u64, u64::MAX] {
            assert!(matches!(change(40, &size.to_le_bytes()), Err(BitmapError::Size(_))));
        }
        assert_eq!(BitmapSuperblock::parse(&[0; 8], UUID), Err(BitmapError::NoMagic));
        let whole = example().to_bytes();
        let other = Bitmap::parse(&whole, UUID, MapUnit::Component, 99 * MIB);
        assert!(matches!(other, Err(BitmapError::Size(_))));
    }

    #[test]
    fn stale_or_old_bits_do_not_count() {
        let superblock = example();
        let regions = RegionMap::from_bits(&superblock, MapUnit::Component, &[0; 4096]);
        let counts = |superblock: BitmapSuperblock| {
            Bitmap { superblock, regions: regions.clone() }.counts_at(7)
        };
        assert!(counts(superblock));
        assert!(!counts(superblock.with_events(6)));
        assert!(!counts(superblock.with_state(BitmapState::STALE)));
    }

    #[test]
    fn bits_are_where_md_puts_them() {
        let superblock = example();
        let mut map = RegionMap::empty(MapUnit::Component, superblock.covered_bytes(), MIB);
        map.insert(0);
        map.insert(9);
        map.insert(100);
        map.insert(101);
        let block = map.block(&superblock, 0);
        assert_eq!(block[..256], superblock.to_bytes());
        assert_eq!((block[256], block[257], block[268]), (1, 2, 16));
        assert_eq!(map.len(), 3, "nothing beyond the end");
        assert_eq!(map.ranges(), [0..MIB, 9 * MIB..10 * MIB, 100 * MIB..100 * MIB + 512]);
        let found = RegionMap::from_bits(&superblock, MapUnit::Component, &block[256..]);
        assert_eq!(found, map);
        let short = RegionMap::from_bits(&superblock, MapUnit::Component, &block[256..258]);
        assert_eq!(short.len(), 2 + 101 - 16, "what is not there counts as set");
    }

    #[test]
    fn sizes_of_a_region_by_size_of_an_array() {
        assert_eq!(region_bytes_for(13 * MIB, MIB), 1 << 20);
        assert_eq!(region_bytes_for(8 << 30, MIB), 2 << 20);
        assert_eq!(region_bytes_for(1 << 40, MIB), 64 << 20);
        assert_eq!(region_bytes_for(1 << 49, MIB), 128 << 20, "as there is no more room");
        for shift in 20..54 {
            let region = u64::from(region_bytes_for(1 << shift, MIB));
            assert!(bitmap_bytes((1u64 << shift).div_ceil(region)) <= MIB);
        }
    }

    proptest! {
        #[test]
        fn sets_are_sets(regions in proptest::collection::btree_set(0u64..130, 0..60), below in 0u64..140) {
            let mut map = RegionMap::empty(MapUnit::Array, 129 * MIB + 5, MIB);
            regions.iter().for_each(|r| map.insert(*r));
            prop_assert_eq!(map.len(), regions.len() as u64);
            let new = NewBitmap { array_uuid: UUID, covered_bytes: map.covered_bytes() / 512 * 512,
                region_bytes: 1 << 20, events: 1 };
            let superblock = BitmapSuperblock::create(&new);
            let bitmap = Bitmap { superblock, regions: map.clone() };
            let bytes: Vec<u8> = bitmap.blocks().iter().flat_map(|b| b.to_vec()).collect();
            let again = Bitmap::parse(&bytes, UUID, MapUnit::Array, superblock.covered_bytes()).unwrap();
            for region in 0..129 {
                prop_assert_eq!(again.regions.contains(region), regions.contains(&region));
            }
            let solid = map.solid_from_bytes().div_ceil(MIB);
            prop_assert!((solid..130).all(|r| regions.contains(&r)));
            prop_assert!(solid == 0 || !regions.contains(&(solid - 1)));
            map.forget_below(below * MIB);
            prop_assert!((0..130).all(|r| map.contains(r) == (regions.contains(&r) && r >= below)));
            let mut other = RegionMap::empty(MapUnit::Array, 129 * MIB + 5, MIB);
            other.fill();
            prop_assert_eq!(other.len(), 130);
            other.union(&map).unwrap();
            prop_assert!(other.union(&RegionMap::empty(MapUnit::Array, MIB, MIB)).is_err());
        }

        #[test]
        fn nothing_makes_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), magic: bool) {
            if magic && bytes.len() > 24 {
                bytes[..8].copy_from_slice(b"bitm\x04\0\0\0");
                bytes[8..24].copy_from_slice(UUID.as_bytes());
            }
            if let Ok(superblock) = BitmapSuperblock::parse(&bytes, UUID) {
                let covered = superblock.covered_bytes();
                let bitmap = Bitmap::parse(&bytes, UUID, MapUnit::Component, covered).unwrap();
                let _ = (bitmap.regions.len(), bitmap.counts_at(5));
            }
        }
    }
}
