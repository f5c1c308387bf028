//! What is on a drive: Linux md's superblock, version 1.2, and our private area.
//!
//! * [`superblock`]: md's superblock as bytes and as values, and what of md's
//!   many possibilities this version serves.
//! * [`private`]: the header of the area before the data that is ours alone.
//! * [`layout`]: where all of that lies on a member of a given size.
//! * [`bitmap`] and [`bad_blocks`]: md's write-intent bitmap and bad-block log.
//! * [`record`]: what the metadata become when the array's state changes, write by write.
//! * [`take_over`]: what a start writes of bitmaps and logs that are not there or not whole.
//! * [`ppl`] and [`write_log`]: the logs that close the write hole of RAID 5 and RAID 6, and
//!   [`checks`]: what both say of the data that is being written.
//!
//! Everything here is pure: bytes in, values out, and back. Reading and writing
//! drives is done by [`crate::device`] and [`crate::assemble`].

pub mod bad_blocks;
pub mod bitmap;
pub mod checks;
pub mod layout;
pub mod ppl;
pub mod private;
pub mod record;
pub mod superblock;
pub mod take_over;
pub mod write_log;

/// md counts in sectors of this many bytes, whatever the drive's block size.
pub const SECTOR_BYTES: u64 = 512;

/// Seconds since 1970-01-01 UTC, as superblocks carry them (40 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The bits that hold seconds; the rest are microseconds or zero.
    const SECONDS_MASK: u64 = (1 << 40) - 1;

    /// Now, by the system's clock (a clock before 1970 reads as 0).
    #[must_use]
    pub fn now() -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self(since.map_or(0, |d| d.as_secs()) & Self::SECONDS_MASK)
    }
}

/// The arrangement of data over members, by md's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// Striping without redundancy.
    Raid0,
    /// Every member a copy.
    Raid1,
    /// Block parity in stripes.
    Raid5,
    /// Two parities.
    Raid6,
    /// Striped pairs: each chunk on two neighbouring members.
    Raid10,
}

impl Level {
    /// md's number for the level.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            Self::Raid0 => 0,
            Self::Raid1 => 1,
            Self::Raid5 => 5,
            Self::Raid6 => 6,
            Self::Raid10 => 10,
        }
    }

    /// The level with that number, if it is one of ours.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Raid0),
            1 => Some(Self::Raid1),
            5 => Some(Self::Raid5),
            6 => Some(Self::Raid6),
            10 => Some(Self::Raid10),
            _ => None,
        }
    }

    /// Whether a member's loss loses no data, and hence whether copies can disagree.
    #[must_use]
    pub fn is_redundant(self) -> bool {
        self != Self::Raid0
    }
}

/// How an array is made consistent after a crash, by md's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// There is nothing that could be inconsistent: RAID 0.
    None,
    /// Everything is resynced.
    Resync,
    /// The regions that the write-intent bitmap names are resynced.
    Bitmap,
    /// A log is replayed: md's partial parity log for RAID 5, our write log for RAID 6.
    Ppl,
}

impl Consistency {
    /// What a new array of a level has if nothing else is asked for.
    #[must_use]
    pub fn default_of(level: Level) -> Self {
        match level {
            Level::Raid0 => Self::None,
            Level::Raid1 | Level::Raid10 => Self::Bitmap,
            Level::Raid5 | Level::Raid6 => Self::Ppl,
        }
    }

    /// Whether a level can have it.
    #[must_use]
    pub fn is_for(self, level: Level) -> bool {
        match self {
            Self::None => level == Level::Raid0,
            Self::Resync | Self::Bitmap => level.is_redundant(),
            Self::Ppl => matches!(level, Level::Raid5 | Level::Raid6),
        }
    }
}

impl std::fmt::Display for Consistency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Resync => "resync",
            Self::Bitmap => "bitmap",
            Self::Ppl => "ppl",
        })
    }
}

impl From<Level> for crate::geometry::Level {
    fn from(level: Level) -> Self {
        match level {
            Level::Raid0 => Self::Raid0,
            Level::Raid1 => Self::Raid1,
            Level::Raid10 => Self::Raid10,
            Level::Raid5 => Self::Raid5,
            Level::Raid6 => Self::Raid6,
        }
    }
}

impl From<crate::geometry::Level> for Level {
    fn from(level: crate::geometry::Level) -> Self {
        match level {
            crate::geometry::Level::Raid0 => Self::Raid0,
            crate::geometry::Level::Raid1 => Self::Raid1,
            crate::geometry::Level::Raid10 => Self::Raid10,
            crate::geometry::Level::Raid5 => Self::Raid5,
            crate::geometry::Level::Raid6 => Self::Raid6,
        }
    }
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RAID {}", self.number())
    }
}
