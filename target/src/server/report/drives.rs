//! Drives: what they are, what is on them, who has them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Severity;

/// Schema of [`Drives`].
pub const DRIVES: &str = "raidfabric.drives/1";

/// The drives of this host.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Drives {
    /// [`DRIVES`].
    pub schema: String,
    /// In the order of their kernel names; files that were named come last.
    pub drives: Vec<DriveReport>,
}

/// One drive, or a part of one.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct DriveReport {
    /// As it was found or named.
    pub path: String,
    /// Its name under `/dev/disk/by-id`, which does not move.
    pub by_id: Option<String>,
    /// The kernel's name for it.
    pub kernel_name: Option<String>,
    /// The drive that it is a partition of.
    pub partition_of: Option<String>,
    /// Its serial number.
    pub serial: Option<String>,
    /// Its model.
    pub model: Option<String>,
    /// Its size; null, like all that follows, if it cannot be read.
    pub size_bytes: Option<u64>,
    /// What offsets and lengths must be multiples of.
    pub block_size_bytes: Option<u32>,
    /// What it writes without reading it first.
    pub physical_block_bytes: Option<u32>,
    /// Whether what it has acknowledged may be lost with the power until a flush.
    pub has_volatile_cache: Option<bool>,
    /// Whether it has platters.
    pub is_rotational: Option<bool>,
    /// What is on it.
    pub holds: Option<Holds>,
    /// Who has it; null if nobody is seen to.
    pub held_by: Option<HeldBy>,
    /// Why it cannot be read.
    pub problem: Option<String>,
}

/// What is on a drive.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Holds {
    /// What kind of thing.
    pub kind: HoldsKind,
    /// In words.
    pub text: String,
    /// Where its signature is, or the first byte that is not zero.
    pub offset_bytes: Option<u64>,
    /// What it is to an array.
    pub member: Option<ArrayMember>,
}

/// Kinds of things on a drive.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldsKind {
    /// Nothing: first and last MiB are zero.
    Nothing,
    /// A part of an md array.
    Member,
    /// Something known that is no array of ours: a file system, a partition table.
    Foreign,
    /// Something unknown.
    Unknown,
}

/// What a drive says that it is to an array.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ArrayMember {
    /// The array.
    pub uuid: Uuid,
    /// Its name, with its home host.
    pub name: String,
    /// Its level.
    pub level: String,
    /// How many slots it has.
    pub slots: u32,
    /// What the drive is to it.
    pub role: DriveRole,
    /// Its slot.
    pub slot: Option<u16>,
    /// Its event count.
    pub events: u64,
}

/// What a drive is to an array.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DriveRole {
    /// It has a slot.
    Member,
    /// It waits for one.
    Spare,
    /// It has failed.
    Failed,
    /// It is a journal.
    Journal,
}

/// Who has a drive.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct HeldBy {
    /// `md`, `device_mapper`, `block_device`, `mount`, `swap`, `loop`, `process`, `unknown`.
    pub kind: String,
    /// In words.
    pub text: String,
    /// The process.
    pub pid: Option<u32>,
    /// How to make it let go.
    pub cure: String,
}

impl Drives {
    /// The list.
    pub fn new(drives: Vec<DriveReport>) -> Self {
        Self { schema: DRIVES.into(), drives }
    }

    /// A drive that cannot be read is a warning.
    pub fn severity(&self) -> Severity {
        match self.drives.iter().any(|drive| drive.problem.is_some()) {
            true => Severity::Warning,
            false => Severity::Ok,
        }
    }
}

impl DriveReport {
    /// The name that does not move, if it has one.
    pub fn name(&self) -> &str {
        self.by_id.as_deref().unwrap_or(&self.path)
    }
}
