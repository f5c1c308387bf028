//! Where the bytes of an array are on its members: pure arithmetic, no state.
//!
//! The mapping is Linux md's, bit for bit, so that either can serve what the other wrote:
//! * **RAID 0**: chunk `c` is on member `c mod n`, in its row `c / n`.
//! * **RAID 1**: every member holds every byte, at the same offset.
//! * **RAID 10** (near layout, two copies): write down every chunk twice and deal the result out
//!   row by row: copy `k` (0 or 1) of chunk `c` is at place `2c + k`, which is member
//!   `(2c + k) mod n`, row `(2c + k) / n`. With an odd number of members the two copies of a chunk
//!   may be in different rows; they are always on different members.
//! * **RAID 5 and 6** (left-symmetric): see the [rows](Role).
//!
//! Offsets on members are relative to the start of the data area. All members contribute the same
//! component size, rounded down to whole chunks.
//!
//! A *stripe* is the smallest run of chunks after which the pattern of members repeats (in RAID 10
//! with an odd number of members that is two rows); in RAID 5 and 6 it is one row. A *shard* is a
//! run of whole stripes of at least 1 MiB (RAID 1: exactly 1 MiB); each shard belongs to one core,
//! its *owner*, in turn.

mod rows;
#[cfg(test)]
mod rows_tests;
#[cfg(test)]
mod tests;

pub use rows::{InRow, Role};

use std::fmt;
use std::ops::Range;

/// Smallest length of a shard.
pub const MIN_SHARD_BYTES: u64 = 1 << 20;

/// Smallest chunk.
pub const MIN_CHUNK_BYTES: u32 = 4 << 10;

/// Largest chunk.
pub const MAX_CHUNK_BYTES: u32 = 1 << 20;

/// Most members of an array without parity.
pub const MAX_MEMBERS: usize = 256;

/// Most members of an array with parity.
pub const MAX_PARITY_MEMBERS: usize = 64;

/// The size of the unit in which md counts; a RAID 1 component is rounded down to it.
const SECTOR_BYTES: u64 = 512;

/// How an array spreads data over its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Striping without redundancy.
    Raid0,
    /// Every member is a full copy.
    Raid1,
    /// Two copies of every chunk, md's near layout.
    Raid10,
    /// One parity chunk in every row, left-symmetric.
    Raid5,
    /// Two parity chunks in every row, left-symmetric.
    Raid6,
}

impl Level {
    /// Parity chunks in a row: 0, 1 or 2.
    pub fn parities(self) -> usize {
        match self {
            Self::Raid0 | Self::Raid1 | Self::Raid10 => 0,
            Self::Raid5 => 1,
            Self::Raid6 => 2,
        }
    }

    /// The least number of members of an array of this level.
    pub fn min_members(self) -> usize {
        match self {
            Self::Raid0 | Self::Raid1 => 1,
            Self::Raid10 => 2,
            Self::Raid5 => 3,
            Self::Raid6 => 4,
        }
    }

    /// The greatest number of members of an array of this level.
    pub fn max_members(self) -> usize {
        if self.parities() > 0 { MAX_PARITY_MEMBERS } else { MAX_MEMBERS }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raid0 => "raid0",
            Self::Raid1 => "raid1",
            Self::Raid10 => "raid10",
            Self::Raid5 => "raid5",
            Self::Raid6 => "raid6",
        })
    }
}

/// Why there is no such array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Too few or too many members for the level.
    #[error(
        "a {level} array has {min} to {max} members, not {members}",
        min = level.min_members(),
        max = level.max_members()
    )]
    Members {
        /// The level asked for.
        level: Level,
        /// The number asked for.
        members: usize,
    },
    /// The chunk is not a power of two from 4 KiB to 1 MiB.
    #[error("a chunk is a power of two from 4 KiB to 1 MiB, not {chunk_bytes} bytes")]
    Chunk {
        /// The size asked for.
        chunk_bytes: u32,
    },
    /// RAID 1 has no chunks.
    #[error("a raid1 array has no chunks: leave the chunk size out")]
    ChunkOnMirror,
    /// Not even one chunk fits on a member, or the array would be larger than 2^63 bytes.
    #[error("members of {component_bytes} bytes are too small or too large for an array")]
    Component {
        /// The size of each member's data area.
        component_bytes: u64,
    },
}

/// The shape of an array. See the file's head for the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    level: Level,
    members: u64,
    copies: u64,
    /// Places for data (copies included) in a row: the members without the parities.
    width: u64,
    /// Zero for RAID 1.
    chunk_bytes: u64,
    /// What data is dealt out in: the chunk, or md's sector for RAID 1.
    unit_bytes: u64,
    /// Bytes that are on one member before the next one's turn. The chunk, or the whole component
    /// where all members in use are full copies and the mapping is the identity.
    run_bytes: u64,
    component_bytes: u64,
    capacity_bytes: u64,
    shard_bytes: u64,
}

impl Geometry {
    /// The shape of an array of `members` with data areas of `component_bytes` each, which are
    /// rounded down to whole chunks. `chunk_bytes` is a power of two from 4 KiB to 1 MiB; for
    /// RAID 1 it is 0.
    ///
    /// # Errors
    /// Names what is out of range.
    pub fn new(
        level: Level,
        members: usize,
        chunk_bytes: u32,
        component_bytes: u64,
    ) -> Result<Self, GeometryError> {
        if !(level.min_members()..=level.max_members()).contains(&members) {
            return Err(GeometryError::Members { level, members });
        }
        if level == Level::Raid1 {
            if chunk_bytes != 0 {
                return Err(GeometryError::ChunkOnMirror);
            }
        } else if !chunk_bytes.is_power_of_two()
            || !(MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&chunk_bytes)
        {
            return Err(GeometryError::Chunk { chunk_bytes });
        }
        let size_error = GeometryError::Component { component_bytes };
        let width = (members - level.parities()) as u64;
        let members = members as u64;
        let unit_bytes = if chunk_bytes == 0 { SECTOR_BYTES } else { u64::from(chunk_bytes) };
        let units = component_bytes / unit_bytes;
        let component_bytes = units * unit_bytes;
        let (copies, array_units) = match level {
            Level::Raid0 | Level::Raid5 | Level::Raid6 => (1, units.checked_mul(width)),
            Level::Raid1 => (members, Some(units)),
            Level::Raid10 => (2, units.checked_mul(members).map(|places| places / 2)),
        };
        let capacity_bytes = array_units
            .and_then(|units| units.checked_mul(unit_bytes))
            .filter(|&bytes| bytes > 0 && bytes < 1 << 63)
            .ok_or(size_error)?;
        let stripe_bytes = stripe_bytes(level, width, unit_bytes);
        let shard_bytes = match level {
            Level::Raid1 => MIN_SHARD_BYTES,
            _ => MIN_SHARD_BYTES.div_ceil(stripe_bytes) * stripe_bytes,
        };
        let run_bytes = if members == copies { component_bytes } else { unit_bytes };
        let chunk_bytes = u64::from(chunk_bytes);
        Ok(Self {
            level,
            members,
            copies,
            width,
            chunk_bytes,
            unit_bytes,
            run_bytes,
            component_bytes,
            capacity_bytes,
            shard_bytes,
        })
    }

    /// The level.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Number of members.
    pub fn members(&self) -> usize {
        self.members as usize
    }

    /// Copies of every byte: 1 for RAID 0, 5 and 6, 2 for RAID 10, the number of members for
    /// RAID 1.
    pub fn copies(&self) -> usize {
        self.copies as usize
    }

    /// Whether the level keeps copies or parity, so that writes need an owner. A RAID 1 of a
    /// single member counts as redundant all the same: members may be added to it.
    pub fn is_redundant(&self) -> bool {
        self.level != Level::Raid0
    }

    /// The chunk size; none for RAID 1.
    pub fn chunk_bytes(&self) -> Option<u64> {
        (self.chunk_bytes > 0).then_some(self.chunk_bytes)
    }

    /// Size of each member's data area that is in use.
    pub fn component_bytes(&self) -> u64 {
        self.component_bytes
    }

    /// Usable size of the array.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Data in one stripe; for RAID 1, md's unit of 512 bytes.
    pub fn stripe_bytes(&self) -> u64 {
        stripe_bytes(self.level, self.width, self.unit_bytes)
    }

    /// Length of a shard (the last one may be shorter).
    pub fn shard_bytes(&self) -> u64 {
        self.shard_bytes
    }

    /// Number of shards.
    pub fn shard_count(&self) -> u64 {
        self.capacity_bytes.div_ceil(self.shard_bytes)
    }

    /// The shard that holds the byte at `offset_bytes`.
    pub fn shard_of(&self, offset_bytes: u64) -> u64 {
        offset_bytes / self.shard_bytes
    }

    /// The byte range of a shard, within the capacity.
    pub fn shard_range(&self, shard: u64) -> Range<u64> {
        let start = shard.saturating_mul(self.shard_bytes).min(self.capacity_bytes);
        start..start.saturating_add(self.shard_bytes).min(self.capacity_bytes)
    }

    /// The core that owns a shard, of `cores` (at least one).
    pub fn owner(&self, shard: u64, cores: usize) -> usize {
        (shard % cores.max(1) as u64) as usize
    }

    /// The part of `offset_bytes .. offset_bytes + len_bytes` in the shard where it begins: its
    /// length and the shard.
    pub fn first_shard(&self, offset_bytes: u64, len_bytes: u64) -> (u64, u64) {
        let shard = self.shard_of(offset_bytes);
        let left = self.shard_bytes - offset_bytes % self.shard_bytes;
        (left.min(len_bytes), shard)
    }

    /// Whether the range is within the array.
    pub fn contains(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        offset_bytes.checked_add(len_bytes).is_some_and(|end| end <= self.capacity_bytes)
    }

    /// The extents of a range that is within the array, in order: each is one piece of the range
    /// that is contiguous on every member holding a copy.
    pub fn extents(&self, offset_bytes: u64, len_bytes: u64) -> Extents<'_> {
        debug_assert!(self.contains(offset_bytes, len_bytes));
        Extents {
            geometry: self,
            next_bytes: offset_bytes,
            left_bytes: len_bytes,
            position_bytes: 0,
        }
    }

    /// How many extents [`Self::extents`] yields.
    pub fn extent_count(&self, offset_bytes: u64, len_bytes: u64) -> u64 {
        if len_bytes == 0 {
            return 0;
        }
        (offset_bytes + len_bytes - 1) / self.run_bytes - offset_bytes / self.run_bytes + 1
    }

    /// What of a range within the array is on the member in `slot`, as a range of its data area.
    /// It is always one contiguous range: only the first and the last chunk can be partial, and
    /// the chunks of a member follow each other on it. In RAID 5 and 6 it begins and ends with
    /// data, and what parity chunks are between is part of it.
    pub fn member_range(&self, slot: usize, offset_bytes: u64, len_bytes: u64) -> Range<u64> {
        let slot = slot as u64;
        if len_bytes == 0 || slot >= self.members {
            return 0..0;
        }
        if self.members == self.copies {
            return offset_bytes..offset_bytes + len_bytes;
        }
        let end_bytes = offset_bytes + len_bytes;
        if self.parities() > 0 {
            return self.member_data_range(slot as usize, offset_bytes, end_bytes);
        }
        // Places (chunk copies dealt out row by row) of the range's first and last chunk.
        let first_place = offset_bytes / self.run_bytes * self.copies;
        let last_place = (end_bytes - 1) / self.run_bytes * self.copies + self.copies - 1;
        // First row at or after the first place, last row at or before the last one, in this slot.
        let first_row = (first_place + self.members - 1 - slot) / self.members;
        let rows_end = (last_place + self.members - slot) / self.members;
        if first_row >= rows_end {
            return 0..0;
        }
        let chunk_of = |row: u64| (row * self.members + slot) / self.copies;
        let skipped = offset_bytes.saturating_sub(chunk_of(first_row) * self.run_bytes);
        let missing = ((chunk_of(rows_end - 1) + 1) * self.run_bytes).saturating_sub(end_bytes);
        first_row * self.run_bytes + skipped..rows_end * self.run_bytes - missing
    }
}

/// Data after which the pattern of members repeats.
fn stripe_bytes(level: Level, width: u64, unit_bytes: u64) -> u64 {
    match level {
        Level::Raid1 => unit_bytes,
        Level::Raid10 if width.is_multiple_of(2) => width / 2 * unit_bytes,
        Level::Raid0 | Level::Raid10 | Level::Raid5 | Level::Raid6 => width * unit_bytes,
    }
}

/// Bytes on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The member's slot.
    pub slot: usize,
    /// Offset in the member's data area.
    pub offset_bytes: u64,
}

/// A piece of a range that is contiguous on each of the members that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where in the range (and in its buffer) the piece begins.
    pub position_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
    /// Number of copies.
    pub copies: usize,
    first: Place,
    members: u64,
    run_bytes: u64,
}

impl Extent {
    /// Where copy number `copy` is; `copy` is below `copies`.
    pub fn place(&self, copy: usize) -> Place {
        let slot = (self.first.slot + copy) as u64;
        if slot < self.members {
            Place { slot: slot as usize, offset_bytes: self.first.offset_bytes }
        } else {
            // The copies went on into the next row.
            Place {
                slot: (slot - self.members) as usize,
                offset_bytes: self.first.offset_bytes + self.run_bytes,
            }
        }
    }
}

/// Iterator over the extents of a range.
#[derive(Clone, Debug)]
pub struct Extents<'a> {
    geometry: &'a Geometry,
    next_bytes: u64,
    left_bytes: u64,
    position_bytes: u64,
}

impl Iterator for Extents<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        if self.left_bytes == 0 {
            return None;
        }
        let Geometry { members, copies, width, run_bytes, .. } = *self.geometry;
        let run = self.next_bytes / run_bytes;
        let within = self.next_bytes % run_bytes;
        let len_bytes = self.left_bytes.min(run_bytes - within);
        let place = run * copies;
        let (row, in_row) = (place / width, place % width);
        let slot = if width == members {
            in_row as usize
        } else {
            self.geometry.data_slot(row, in_row as usize)
        };
        let extent = Extent {
            position_bytes: self.position_bytes,
            len_bytes,
            copies: copies as usize,
            first: Place { slot, offset_bytes: row * run_bytes + within },
            members,
            run_bytes,
        };
        self.next_bytes += len_bytes;
        self.position_bytes += len_bytes;
        self.left_bytes -= len_bytes;
        Some(extent)
    }
}
