//! Where an array's write intent is kept on its members, and what was found there.

use crate::metadata::bitmap::{BitmapSuperblock, RegionMap};

/// Where the write intent of an array is kept. Made at assembly.
#[derive(Clone, Debug, Default)]
pub struct IntentLayout {
    /// Which regions are being written, on all members: md's bitmap, or the map of what was
    /// written while members were missing.
    pub regions: Option<RegionsLayout>,
    /// The log of writes under way to parity levels.
    pub log: Option<LogLayout>,
}

impl IntentLayout {
    /// Nowhere: after an unclean stop the whole array is made consistent again.
    pub const NONE: Self = Self { regions: None, log: None };
}

/// What a map of regions is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionsKind {
    /// md's write-intent bitmap: a region's bit is durable before the region is written.
    Bitmap,
    /// The map of what was written while members were missing: kept only then.
    DegradedMap,
}

/// A map of regions.
#[derive(Clone, Debug)]
pub struct RegionsLayout {
    /// What it is for.
    pub kind: RegionsKind,
    /// Its superblock, as it is on all members.
    pub superblock: BitmapSuperblock,
    /// The regions whose bits are set on the members.
    pub set: RegionMap,
    /// The regions whose copies may differ, or whose parity may be wrong, since an unclean stop.
    /// Their bits are set, too.
    pub dirty: RegionMap,
    /// Where its first block begins on each member's drive, by slot; none for a slot whose member
    /// is not known yet.
    pub offsets_bytes: Vec<Option<u64>>,
    /// The superblocks' event count at the start.
    pub events: u64,
    /// Whether every member that takes writes holds exactly `superblock` and `set` there. If not,
    /// they are written before anything else.
    pub on_all_members: bool,
}

/// Which log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// md's partial parity log: RAID 5.
    Ppl,
    /// The write log in the private area: RAID 6.
    WriteLog,
}

/// A member's place for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPlace {
    /// Where it begins on the drive.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
}

/// A log of writes under way, as [`crate::replay`] leaves it: empty.
#[derive(Clone, Debug)]
pub struct LogLayout {
    /// Which log.
    pub kind: LogKind,
    /// The array's UUID.
    pub array_uuid: [u8; 16],
    /// Each member's place, by slot; none for a slot whose member is not known yet.
    pub places: Vec<Option<LogPlace>>,
    /// The number of the next unit: higher than all that are on any member.
    pub next_generation: u64,
}

/// Where on a new member's drive the write intent is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntentPlaces {
    /// Where the first block of the map of regions begins.
    pub regions_offset_bytes: Option<u64>,
    /// Where the log is.
    pub log: Option<LogPlace>,
}
