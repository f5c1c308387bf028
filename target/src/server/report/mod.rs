//! What the daemon tells of itself and of its arrays: the same values for people (the command line
//! makes text of them), for scripts (`--output json`), and on the control socket.
//!
//! Every answer names its schema. Within a version of it keys keep their names and meanings; new
//! ones may come. Numbers are in base units, and the unit is part of the name.

pub mod drives;
pub mod examination;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Schema of [`Status`].
pub const STATUS: &str = "raidfabric.status/1";
/// Schema of [`Done`].
pub const DONE: &str = "raidfabric.done/1";
/// Schema of [`Refusal`].
pub const ERROR: &str = "raidfabric.error/1";

/// All that is served, or, without a daemon, all that is on drives.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Status {
    /// [`STATUS`].
    pub schema: String,
    /// Who says so; null if the drives were read directly, as no daemon runs.
    pub daemon: Option<Daemon>,
    /// The arrays, in the order of the configuration.
    pub arrays: Vec<ArrayStatus>,
    /// What hosts connect to.
    pub exports: Vec<Export>,
}

/// A daemon.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Daemon {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// For how long it has run.
    pub uptime_seconds: u64,
    /// TCP connections of hosts.
    pub connections: u64,
    /// Controllers of hosts.
    pub controllers: u64,
    /// Commands under way.
    pub commands: u64,
    /// Data memory in use.
    pub buffer_bytes: u64,
}

/// How an array is, from best to worst.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrayState {
    /// All members are there, and redundancy is whole.
    Healthy,
    /// Redundancy is made good after a crash.
    Resyncing,
    /// New: redundancy is being built for the first time.
    Building,
    /// A member is being rebuilt.
    Rebuilding,
    /// Members are missing, and no more than the level tolerates.
    Degraded,
    /// Not served yet: members are missing, and are waited for.
    Waiting,
    /// Not served: stopped by an operator, or no daemon runs.
    Stopped,
    /// Writes or reads fail, or it cannot start.
    Failed,
}

impl ArrayState {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Resyncing => "resyncing",
            Self::Building => "building",
            Self::Rebuilding => "rebuilding",
            Self::Degraded => "degraded",
            Self::Waiting => "waiting",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// What an exit code is made of.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing is wrong.
    Ok,
    /// Something should be done, or is being done; data is served.
    Warning,
    /// Data is not served.
    Failed,
}

impl Severity {
    /// The exit code of `status`, `examine` and `drive list`.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Warning => 1,
            Self::Failed => 2,
        }
    }
}

/// One array.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ArrayStatus {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// `raid0`, `raid1`, `raid5`, `raid6`, `raid10`; over arrays `raid50`, `raid60`, `raid100` or
    /// `raid0`.
    pub level: String,
    /// Its chunk; 0 for RAID 1.
    pub chunk_bytes: u64,
    /// Its size.
    pub size_bytes: u64,
    /// How it is made consistent after a crash: `none`, `resync`, `bitmap`, `ppl`.
    pub consistency: String,
    /// How it is.
    pub state: ArrayState,
    /// How bad that is.
    pub severity: Severity,
    /// What is wrong, the worst first.
    pub problems: Vec<Problem>,
    /// What is being done in the background.
    pub tasks: Vec<Task>,
    /// How many more members it can lose without losing data.
    pub redundancy_remaining: u64,
    /// Members by slot.
    pub members: Vec<MemberStatus>,
    /// Drives that may take a failed member's place.
    pub spares: Vec<Spare>,
    /// What the last check or repair since the start has found.
    pub last_check: Option<CheckResult>,
}

/// What a check or repair has found.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct CheckResult {
    /// Whether it was a repair.
    pub is_repair: bool,
    /// Whether it got to the end.
    pub is_complete: bool,
    /// What did not agree, of each copy or chunk.
    pub mismatch_bytes: u64,
    /// Of that, what was repaired.
    pub repaired_bytes: u64,
    /// What could not be read from a member, and was written anew there.
    pub rewritten_bytes: u64,
    /// What could not be read, nor had from elsewhere.
    pub unreadable_bytes: u64,
    /// What could not be compared.
    pub uncompared_bytes: u64,
    /// The first places that did not agree, at most 100.
    pub places: Vec<MismatchPlace>,
}

/// A place where copies, or data and parity, did not agree.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct MismatchPlace {
    /// Offset in the array.
    pub offset_bytes: u64,
    /// How much.
    pub len_bytes: u64,
    /// The member that was wrong, where that can be told.
    pub slot: Option<usize>,
    /// Whether it was repaired.
    pub is_repaired: bool,
}

/// Something that is wrong, and the cure.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// What.
    pub what: String,
    /// What to do; null if nothing has to be done.
    pub cure: Option<String>,
}

/// What a task does.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// The first sync of a new array.
    Build,
    /// Making redundancy good after a crash.
    Resync,
    /// Filling a member that was put in.
    Rebuild,
    /// Comparing.
    Check,
    /// Comparing, and mending what differs.
    Repair,
}

impl TaskKind {
    /// Whether it makes redundancy good.
    pub fn is_sync(self) -> bool {
        matches!(self, Self::Build | Self::Resync)
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::Resync => "resync",
            Self::Rebuild => "rebuild",
            Self::Check => "check",
            Self::Repair => "repair",
        }
    }
}

/// Something that goes on in the background.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Task {
    /// What it does.
    pub kind: TaskKind,
    /// The member that it is about, if it is about one.
    pub slot: Option<usize>,
    /// How far it is.
    pub position_bytes: u64,
    /// Where it ends.
    pub end_bytes: u64,
    /// What is left: less than from the position to the end if it is only needed in places.
    pub left_bytes: u64,
    /// How fast it is now; null until that is known.
    pub bytes_per_second: Option<u64>,
    /// How long it takes yet; null while that is not known.
    pub seconds_left: Option<u64>,
    /// What keeps it from going faster.
    pub limited_by: Option<String>,
    /// Bytes that differed; of checks and repairs.
    pub mismatch_bytes: Option<u64>,
}

/// What a member is to its array.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberCondition {
    /// It has what it should have.
    InSync,
    /// It is being filled.
    Rebuilding,
    /// It is not used any more.
    Failed,
    /// There is no drive.
    Missing,
}

impl MemberCondition {
    /// The words for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InSync => "in sync",
            Self::Rebuilding => "rebuilding",
            Self::Failed => "failed",
            Self::Missing => "missing",
        }
    }
}

/// One member.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct MemberStatus {
    /// Its place.
    pub slot: usize,
    /// Its drive, by a name that does not move if there is one, or `array:NAME`; null if none is there
    /// and none is remembered.
    pub drive: Option<String>,
    /// The drive's serial number.
    pub serial: Option<String>,
    /// What it is.
    pub state: MemberCondition,
    /// Why it is not in sync.
    pub why: Option<String>,
    /// Reads that failed, since the start.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Flushes that failed.
    pub flush_errors: u64,
    /// Writes that found no space below the member.
    pub no_space_errors: u64,
    /// Ranges that cannot be read.
    pub bad_blocks: u64,
    /// How warm it is.
    pub temperature_kelvin: Option<u16>,
}

/// A drive that may take a failed member's place.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Spare {
    /// Its name.
    pub drive: String,
    /// Its serial number.
    pub serial: Option<String>,
    /// Whether it could be taken now.
    pub is_ready: bool,
    /// Why it could not.
    pub why: Option<String>,
}

/// A subsystem.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Export {
    /// Its name.
    pub nqn: String,
    /// Where it is reached.
    pub addresses: Vec<SocketAddr>,
    /// Hosts that are connected now, by NQN.
    pub connected_hosts: Vec<String>,
    /// Its namespaces.
    pub namespaces: Vec<ExportedNamespace>,
}

/// A namespace.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ExportedNamespace {
    /// Its number.
    pub nsid: u32,
    /// The array that it is on.
    pub array: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its blocks.
    pub block_size_bytes: u32,
}

impl Status {
    /// How bad the worst of it is.
    pub fn severity(&self) -> Severity {
        self.arrays.iter().map(|array| array.severity).max().unwrap_or(Severity::Ok)
    }
}

/// A command that was carried out.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Done {
    /// [`DONE`].
    pub schema: String,
    /// What was done, in a sentence.
    pub message: String,
    /// What to do or to look at next.
    pub next: Option<String>,
}

impl Done {
    /// Says what was done.
    pub fn new(message: impl Into<String>) -> Self {
        Self { schema: DONE.into(), message: message.into(), next: None }
    }

    /// And what is next.
    #[must_use]
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }
}

/// The kinds of refusals.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// What was named is not there.
    NotFound,
    /// The request makes no sense.
    Invalid,
    /// It could be, but not now. Nothing was touched.
    Conflict,
    /// Nothing is served yet; ask again.
    Starting,
    /// It was tried and failed.
    Failed,
}

/// A command that was not carried out.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// [`ERROR`].
    pub schema: String,
    /// What kind it is.
    pub kind: RefusalKind,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Refusal {
    fn new(kind: RefusalKind, message: impl std::fmt::Display) -> Self {
        Self { schema: ERROR.into(), kind, message: message.to_string() }
    }

    /// What was named is not there.
    pub fn not_found(message: impl std::fmt::Display) -> Self {
        Self::new(RefusalKind::NotFound, message)
    }

    /// The request makes no sense.
    pub fn invalid(message: impl std::fmt::Display) -> Self {
        Self::new(RefusalKind::Invalid, message)
    }

    /// It could be, but not now. Nothing was touched.
    pub fn conflict(message: impl std::fmt::Display) -> Self {
        Self::new(RefusalKind::Conflict, message)
    }

    /// Nothing is served yet; ask again.
    pub fn starting() -> Self {
        Self::new(RefusalKind::Starting, "the daemon is just starting; ask again in a moment")
    }

    /// It was tried and failed.
    pub fn failed(message: impl std::fmt::Display) -> Self {
        Self::new(RefusalKind::Failed, message)
    }
}
