//! What of md's many possibilities this version serves, and what an array's shape is then.
//!
//! [`Superblock::geometry`] names what is in the way, so that nothing is misread as something
//! simpler. Positions are converted here: md counts a resync in sectors of the array for RAID 1
//! and 10, of the members for RAID 5 and 6, and a rebuild in sectors of the members; we count both
//! in bytes of the array, rounded down, so that a position never claims too much.

use super::{
    EVENTS_END, Features, IN_SYNC, MAX_DEVICES, Raid10Layout, SUPERBLOCK_OFFSET_BYTES, Superblock,
};
use crate::metadata::bad_blocks::LOG_BYTES;
use crate::metadata::{Level, SECTOR_BYTES};
use std::ops::Range;
use thiserror::Error;

/// RAID 5 and 6's layout that we serve: left-symmetric, md's default.
pub(super) const LEFT_SYMMETRIC: u32 = 2;
/// The unit of bitmaps and logs: each is written in whole blocks.
const BLOCK_SECTORS: u64 = 8;

/// Something that md can do and this version does not serve.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotServed {
    /// RAID 5 or 6 in another arrangement.
    #[error("{0} in layout {1} is not served (only left-symmetric)")]
    ParityLayout(Level, u32),
    /// Another level.
    #[error("md level {0} is not served")]
    Level(i32),
    /// RAID 10 in another arrangement.
    #[error(
        "RAID 10 with {near} near and {far} far copies{how} is not served (only near=2)",
        near = .0.near_copies, far = .0.far_copies,
        how = if .0.offset { " in the offset layout" } else { "" }
    )]
    Raid10Layout(Raid10Layout),
    /// RAID 0 in an arrangement that is not known.
    #[error("RAID 0 layout {0} is not known")]
    Raid0Layout(u32),
    /// Nonsense or out of range.
    #[error("a chunk of {0} bytes is not served (a power of two from 4 KiB to 1 MiB is)")]
    Chunk(u64),
    /// Nonsense or out of range.
    #[error("an array of {0} members is not served ({level} has {min} to {MAX_DEVICES})",
        level = .1, min = .2)]
    MemberCount(u32, Level, usize),
    /// More device numbers than fit into the part that is written atomically.
    #[error("a role table of {0} devices is not served (at most {MAX_DEVICES})")]
    RoleTable(u32),
    /// A reshape is under way.
    #[error("a reshape is under way; let md finish it first")]
    Reshape,
    /// `new_offset` without a reshape, or a rebuild by bitmap.
    #[error("the move of the data to a new offset is under way; let md finish it first")]
    NewOffset,
    /// A bitmap where it cannot be written apart from everything else.
    #[error(
        "its write-intent bitmap lies where it is not served; on the assembled array, \
         `mdadm --grow --bitmap=none` and then `--bitmap=internal` move it"
    )]
    BitmapPlace,
    /// A feature of levels with redundancy on RAID 0.
    #[error("it has {0}, which RAID 0 cannot have")]
    NotOnRaid0(&'static str),
    /// Bad blocks are recorded where they cannot be read.
    #[error("its bad-block log lies where it is not served")]
    BadBlockPlace,
    /// A member is being replaced.
    #[error("the member is a replacement under way; let md finish it first")]
    Replacement,
    /// A cluster's array.
    #[error("it is shared by a cluster")]
    Clustered,
    /// An external journal.
    #[error("it has a journal device")]
    Journal,
    /// PPL on a level that cannot have it, or beside a bitmap.
    #[error("it has a partial parity log, which belongs to RAID 5 without a bitmap")]
    Ppl,
    /// A PPL where it cannot be written.
    #[error("its partial parity log lies where it is not served")]
    PplPlace,
    /// Something that is newer than this program.
    #[error("it uses md features that are not known (feature bits {0:#x})")]
    UnknownFeatures(u32),
    /// Damaged, or made to do harm.
    #[error("its event count, {0}, cannot be true")]
    Events(u64),
    /// Sizes that contradict each other.
    #[error("its sizes contradict each other: {0}")]
    Sizes(&'static str),
}

/// How an array lays its data over its members: what is the same on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// The arrangement.
    pub level: Level,
    /// Slots, 1 to [`MAX_DEVICES`].
    pub members: usize,
    /// The unit of striping; 0 for RAID 1.
    pub chunk_bytes: u64,
    /// What every member contributes, from its data offset on (whole chunks).
    pub component_bytes: u64,
}

impl Geometry {
    /// The size of the array.
    #[must_use]
    pub fn array_bytes(&self) -> u64 {
        let members = self.members as u64;
        match self.level {
            Level::Raid1 => self.component_bytes,
            Level::Raid0 => self.component_bytes * members,
            Level::Raid5 => self.component_bytes * members.saturating_sub(1),
            Level::Raid6 => self.component_bytes * members.saturating_sub(2),
            // Whole chunks: with an odd number of members the last may have no pair.
            Level::Raid10 => {
                let chunks = self.component_bytes / self.chunk_bytes.max(1);
                chunks * members / 2 * self.chunk_bytes
            }
        }
    }

    /// What a row of chunks holds besides parity; RAID 5 and 6 only.
    fn row_bytes(&self) -> u64 {
        let parities = if self.level == Level::Raid6 { 2 } else { 1 };
        self.chunk_bytes * (self.members as u64).saturating_sub(parities)
    }

    /// A position in the array as the place on each member below which everything belongs to
    /// what is before the position.
    #[must_use]
    pub fn to_component(&self, position_bytes: u64) -> u64 {
        let members = self.members as u64;
        let chunk = self.chunk_bytes.max(1);
        let rows = match self.level {
            Level::Raid1 => return position_bytes,
            Level::Raid0 => position_bytes / chunk / members.max(1),
            Level::Raid5 | Level::Raid6 => position_bytes / self.row_bytes().max(1),
            Level::Raid10 => position_bytes / chunk * 2 / members.max(1),
        };
        rows * chunk
    }

    /// The position in the array below which nothing lies beyond that place on any member.
    #[must_use]
    pub fn from_component(&self, component_bytes: u64) -> u64 {
        let members = self.members as u64;
        let chunk = self.chunk_bytes.max(1);
        let rows = component_bytes / chunk;
        match self.level {
            Level::Raid1 => component_bytes,
            Level::Raid0 => rows.saturating_mul(members * chunk),
            Level::Raid5 | Level::Raid6 => rows.saturating_mul(self.row_bytes()),
            Level::Raid10 => (rows.saturating_mul(members) / 2).saturating_mul(chunk),
        }
    }

    /// md's `resync_offset` for copies (or parity) that agree below `position_bytes` of the
    /// array: [`IN_SYNC`] from its end on.
    #[must_use]
    pub fn resync_sectors(&self, position_bytes: u64) -> u64 {
        if position_bytes >= self.array_bytes() {
            return IN_SYNC;
        }
        match self.level {
            Level::Raid5 | Level::Raid6 => self.to_component(position_bytes) / SECTOR_BYTES,
            _ => position_bytes / SECTOR_BYTES,
        }
    }

    /// The position in the array that md's `resync_offset` means; None: everything agrees.
    #[must_use]
    pub fn resync_bytes(&self, sectors: u64) -> Option<u64> {
        let bytes = sectors.saturating_mul(SECTOR_BYTES);
        let position = match self.level {
            Level::Raid0 => return None,
            Level::Raid5 | Level::Raid6 => self.from_component(bytes),
            _ => bytes,
        };
        (sectors != IN_SYNC && position < self.array_bytes()).then_some(position)
    }

    /// md's `recovery_offset` for a member that is rebuilt below `position_bytes` of the array.
    #[must_use]
    pub fn recovery_sectors(&self, position_bytes: u64) -> u64 {
        // The last row of a RAID 10 over an odd number of members may be half in use.
        if position_bytes >= self.array_bytes() {
            return self.component_bytes / SECTOR_BYTES;
        }
        self.to_component(position_bytes).min(self.component_bytes) / SECTOR_BYTES
    }

    /// The position in the array that md's `recovery_offset` means.
    #[must_use]
    pub fn recovery_bytes(&self, sectors: u64) -> u64 {
        let component = sectors.saturating_mul(SECTOR_BYTES).min(self.component_bytes);
        self.from_component(component).min(self.array_bytes())
    }

    /// What a write-intent bitmap covers: the array for RAID 10, else each member's data.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        match self.level {
            Level::Raid10 => self.array_bytes(),
            _ => self.component_bytes,
        }
    }

    /// The fewest members of a level (md allows one for RAID 0 and 1, and so do we
    /// when reading).
    #[must_use]
    pub fn min_members(level: Level) -> usize {
        match level {
            Level::Raid0 | Level::Raid1 => 1,
            Level::Raid10 => 2,
            Level::Raid5 => 3,
            Level::Raid6 => 4,
        }
    }
}

impl Superblock {
    /// The shape of the array, if this version serves such a thing.
    ///
    /// # Errors
    /// Names what is not served.
    pub fn geometry(&self) -> Result<Geometry, NotServed> {
        let level = Level::from_number(self.level_number())
            .ok_or_else(|| NotServed::Level(self.level_number()))?;
        self.check_features(level)?;
        if self.events() >= EVENTS_END {
            return Err(NotServed::Events(self.events()));
        }
        if self.raw.max_dev.get() as usize > MAX_DEVICES {
            return Err(NotServed::RoleTable(self.raw.max_dev.get()));
        }
        let layout = self.raw.layout.get();
        match level {
            Level::Raid0 => {
                // 0 (not said), 1 and 2 differ only for members of unequal size.
                if layout > 2 {
                    return Err(NotServed::Raid0Layout(layout));
                }
            }
            Level::Raid10 => {
                let layout = Raid10Layout::from_bits(layout);
                if layout != Raid10Layout::NEAR_2 {
                    return Err(NotServed::Raid10Layout(layout));
                }
            }
            Level::Raid5 | Level::Raid6 => {
                if layout != LEFT_SYMMETRIC {
                    return Err(NotServed::ParityLayout(level, layout));
                }
            }
            // md ignores RAID 1's.
            Level::Raid1 => {}
        }
        let members = self.member_count() as usize;
        let min = Geometry::min_members(level);
        if members < min || members > MAX_DEVICES {
            return Err(NotServed::MemberCount(self.member_count(), level, min));
        }
        let chunk_bytes = self.served_chunk(level)?;
        let component_bytes = self.component_bytes(level, chunk_bytes)?;
        Ok(Geometry { level, members, chunk_bytes, component_bytes })
    }

    fn check_features(&self, level: Level) -> Result<(), NotServed> {
        let (features, unknown) = self.features();
        if unknown != 0 {
            return Err(NotServed::UnknownFeatures(unknown));
        }
        let refused = [
            (Features::RESHAPE_ACTIVE | Features::RESHAPE_BACKWARDS, NotServed::Reshape),
            (Features::NEW_OFFSET, NotServed::NewOffset),
            (Features::JOURNAL, NotServed::Journal),
            (Features::CLUSTERED, NotServed::Clustered),
            (Features::REPLACEMENT, NotServed::Replacement),
        ];
        for (mask, reason) in refused {
            if features.intersects(mask) {
                return Err(reason);
            }
        }
        if features.contains(Features::RAID0_LAYOUT) && level.is_redundant() {
            return Err(NotServed::UnknownFeatures(Features::RAID0_LAYOUT.bits()));
        }
        self.check_redundancy_features(level, features)
    }

    fn check_redundancy_features(&self, level: Level, found: Features) -> Result<(), NotServed> {
        let ppl = found & (Features::PPL | Features::MULTIPLE_PPLS);
        if level == Level::Raid0 {
            let never = [
                (Features::BITMAP_OFFSET, "a write-intent bitmap"),
                (Features::RECOVERY_OFFSET | Features::RECOVERY_BITMAP, "a rebuild under way"),
                (Features::BAD_BLOCKS, "bad blocks"),
            ];
            if let Some((_, what)) = never.into_iter().find(|(mask, _)| found.intersects(*mask)) {
                return Err(NotServed::NotOnRaid0(what));
            }
        }
        if !ppl.is_empty() {
            // As md: one kind of log, and nothing else beside it.
            let alone = ppl.bits().is_power_of_two() && !found.contains(Features::BITMAP_OFFSET);
            if level != Level::Raid5 || !alone {
                return Err(NotServed::Ppl);
            }
            self.ppl_place().ok_or(NotServed::PplPlace)?;
        }
        if found.contains(Features::BITMAP_OFFSET) {
            self.bitmap_place().ok_or(NotServed::BitmapPlace)?;
        }
        if found.contains(Features::BAD_BLOCKS) {
            self.bad_block_place().ok_or(NotServed::BadBlockPlace)?;
        }
        Ok(())
    }

    fn served_chunk(&self, level: Level) -> Result<u64, NotServed> {
        let chunk_bytes = u64::from(self.raw.chunksize.get()) * SECTOR_BYTES;
        if level == Level::Raid1 {
            // md may store one and ignores it.
            return Ok(0);
        }
        let served = chunk_bytes.is_power_of_two() && (4096..=1 << 20).contains(&chunk_bytes);
        if served { Ok(chunk_bytes) } else { Err(NotServed::Chunk(chunk_bytes)) }
    }

    fn component_bytes(&self, level: Level, chunk_bytes: u64) -> Result<u64, NotServed> {
        let data_size = self.raw.data_size.get();
        // RAID 0 stripes over what each member has; the others over what all have.
        let sectors = if level == Level::Raid0 { data_size } else { self.raw.size.get() };
        if sectors > data_size {
            return Err(NotServed::Sizes("the component is larger than the space for data"));
        }
        let end = self.raw.data_offset.get().checked_add(data_size);
        if end.is_none_or(|end| end > u64::MAX / SECTOR_BYTES) {
            return Err(NotServed::Sizes("the data ends beyond any drive"));
        }
        if self.raw.data_offset.get() < (SUPERBLOCK_OFFSET_BYTES + 4096) / SECTOR_BYTES {
            return Err(NotServed::Sizes("the data begins within the superblock"));
        }
        let bytes = sectors * SECTOR_BYTES;
        let bytes = if chunk_bytes == 0 { bytes } else { bytes - bytes % chunk_bytes };
        let total = bytes.checked_mul(u64::from(self.member_count()));
        if bytes == 0 || total.is_none() {
            return Err(NotServed::Sizes("the array is empty or larger than any"));
        }
        Ok(bytes)
    }

    /// Bytes of the drive from `offset` sectors behind the superblock on, if they are whole blocks
    /// between the superblock and the data. Without a length: all the room there is.
    fn place_before_data(&self, offset: i64, sectors: Option<u64>) -> Option<Range<u64>> {
        let block_bytes = BLOCK_SECTORS * SECTOR_BYTES;
        let offset = u64::try_from(offset).ok()?.checked_mul(SECTOR_BYTES)?;
        let begin = SUPERBLOCK_OFFSET_BYTES.checked_add(offset)?;
        let data = self.data_offset_bytes();
        let end = match sectors {
            Some(sectors) => begin.checked_add(sectors.checked_mul(SECTOR_BYTES)?)?,
            None => data - data % block_bytes,
        };
        let whole = begin.is_multiple_of(block_bytes) && end.is_multiple_of(block_bytes);
        let apart = begin >= SUPERBLOCK_OFFSET_BYTES + block_bytes && end <= data;
        (whole && apart && begin < end).then_some(begin..end)
    }

    /// Where the write-intent bitmap begins, up to where it may reach, in bytes of the drive; None
    /// if there is none, or not where it can be served.
    #[must_use]
    pub fn bitmap_place(&self) -> Option<Range<u64>> {
        if !self.features().0.contains(Features::BITMAP_OFFSET) {
            return None;
        }
        // Signed, as md has it.
        let offset = i64::from(self.raw.bitmap_offset.get().cast_signed());
        let place = self.place_before_data(offset, None)?;
        let log = self.bad_block_place();
        let end = log.filter(|log| log.start >= place.start).map_or(place.end, |log| log.start);
        (place.start < end).then_some(place.start..end)
    }

    /// Where the partial parity log lies, in bytes of the drive.
    #[must_use]
    pub fn ppl_place(&self) -> Option<Range<u64>> {
        if !self.features().0.intersects(Features::PPL | Features::MULTIPLE_PPLS) {
            return None;
        }
        // Offset (signed) and size share the field.
        let [o0, o1, s0, s1] = self.raw.bitmap_offset.get().to_le_bytes();
        let offset = i64::from(i16::from_le_bytes([o0, o1]));
        let place =
            self.place_before_data(offset, Some(u64::from(u16::from_le_bytes([s0, s1]))))?;
        // A header, and something to log.
        (place.end - place.start >= 2 * BLOCK_SECTORS * SECTOR_BYTES).then_some(place)
    }

    /// Where the bad-block log lies, in bytes of the drive; None if there is none that is served.
    #[must_use]
    pub fn bad_block_place(&self) -> Option<Range<u64>> {
        let sectors = u64::from(self.raw.bblog_size.get());
        if self.raw.bblog_offset.get() == 0 || sectors != LOG_BYTES as u64 / SECTOR_BYTES {
            return None;
        }
        self.place_before_data(i64::from(self.raw.bblog_offset.get()), Some(sectors))
    }
}
