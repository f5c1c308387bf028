//! What drives say about the arrays that they belong to, whether anybody serves them or not.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Severity;

/// Schema of [`Examination`].
pub const EXAMINATION: &str = "raidfabric.examination/1";

/// The arrays that drives belong to.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Examination {
    /// [`EXAMINATION`].
    pub schema: String,
    /// One for each UUID that was found.
    pub arrays: Vec<ExaminedArray>,
}

/// What an array would be if it were started now.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outlook {
    /// Whole.
    Complete,
    /// It starts without some of its members.
    Degraded,
    /// It does not start by itself; the operator can accept what that risks.
    NeedsDecision,
    /// It does not start.
    Unusable,
}

impl Outlook {
    /// Whether it starts by itself.
    pub fn starts(self) -> bool {
        matches!(self, Self::Complete | Self::Degraded)
    }

    /// How bad that is.
    pub fn severity(self) -> Severity {
        match self {
            Self::Complete => Severity::Ok,
            Self::Degraded => Severity::Warning,
            Self::NeedsDecision | Self::Unusable => Severity::Failed,
        }
    }
}

/// An array, by its members' superblocks.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ExaminedArray {
    /// Its UUID.
    pub uuid: Uuid,
    /// Its name, with the home host if it has one.
    pub name: String,
    /// Its level.
    pub level: String,
    /// Its slots.
    pub slots: u32,
    /// Its chunk; 0 for RAID 1; null if this version does not know the array's shape.
    pub chunk_bytes: Option<u64>,
    /// Its size.
    pub size_bytes: Option<u64>,
    /// How it is made consistent after a crash.
    pub consistency: Option<String>,
    /// What it would be if it were started now.
    pub outlook: Outlook,
    /// Why it is not complete, and what to do.
    pub problem: Option<String>,
    /// Whether it was stopped cleanly; null if it cannot be started.
    pub is_clean: Option<bool>,
    /// The highest event count.
    pub events: u64,
    /// From where on its copies or parity have to be made good, in bytes of the array; null if
    /// nowhere.
    pub resync_from_bytes: Option<u64>,
    /// Bytes of regions that have to be made good beside that, by the bitmap.
    pub dirty_bytes: u64,
    /// Whether a log has to be replayed.
    pub needs_replay: bool,
    /// Drives that carry its UUID; members by slot first.
    pub drives: Vec<ExaminedDrive>,
    /// The lines of a configuration that serves it; null if this version does not.
    pub yaml: Option<String>,
}

/// A drive of an array.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ExaminedDrive {
    /// Its name.
    pub drive: String,
    /// Its serial number.
    pub serial: Option<String>,
    /// Its slot, by its own word.
    pub slot: Option<u16>,
    /// What it would be if the array were started now: `in sync`, `rebuilding`, or why it is no
    /// member.
    pub state: String,
    /// Its event count.
    pub events: u64,
    /// When its superblock was last written, in seconds since 1970.
    pub updated_seconds: u64,
    /// Where its data begins.
    pub data_offset_bytes: u64,
    /// Ranges that cannot be read.
    pub bad_blocks: u64,
    /// Who has it.
    pub held_by: Option<String>,
}

impl Examination {
    /// The list.
    pub fn new(arrays: Vec<ExaminedArray>) -> Self {
        Self { schema: EXAMINATION.into(), arrays }
    }

    /// The worst of it.
    pub fn severity(&self) -> Severity {
        let all = self.arrays.iter().map(|array| array.outlook.severity());
        all.max().unwrap_or(Severity::Ok)
    }
}
