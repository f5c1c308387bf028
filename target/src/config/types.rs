//! The configuration after validation: what the rest of the daemon works with.
//!
//! Everything here is in base units (bytes, [`Duration`], socket addresses) and
//! has already been checked against everything that can be known without
//! touching a drive: names are unique, references resolve, sizes are aligned.
//! Nothing here knows YAML; the text form lives in `raw`, the checks in `check`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use uuid::Uuid;

/// One configuration file, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The RAID arrays; never empty, names unique.
    pub arrays: Vec<Array>,
    /// The NVM subsystems; never empty, NQNs unique.
    pub subsystems: Vec<Subsystem>,
    /// Where NVM subsystems (and discovery, too) are reached; never empty, unique.
    pub listen: Vec<SocketAddr>,
    /// Further addresses that answer as discovery subsystem only; may be empty.
    pub discovery: Vec<SocketAddr>,
    /// Which cores serve data.
    pub cores: CoreSelection,
    /// Where the daemon keeps what must outlive it.
    pub state_dir: PathBuf,
    /// How long a data core that just saw work looks for more before it sleeps;
    /// `None` means that it sleeps at once.
    pub busy_poll: Option<Duration>,
    /// How long a host may leave its replies unread, or what it owes unsent, before
    /// it is disconnected.
    pub reply_timeout: Duration,
    /// Memory budgets of each data core.
    pub memory: Memory,
    /// What hosts are told they may ask for.
    pub limits: Limits,
    /// How each data core's io_uring is set up.
    pub ring: Ring,
    /// The Unix socket through which commands reach the daemon; `None` for none.
    pub control_socket: Option<PathBuf>,
}

impl Config {
    /// The array that is over the one at an index, if there is one.
    pub fn over(&self, index: usize) -> Option<&Array> {
        self.arrays.iter().find(|array| array.leaves.contains(&index))
    }
}

/// An array of `arrays:`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// Name; goes into the md superblocks, too. At most 32 bytes.
    pub name: String,
    /// RAID level.
    pub level: Level,
    /// Chunk size: a power of two, 4 KiB to 1 MiB; 0 for RAID 1, which has none.
    pub chunk_bytes: u64,
    /// The members, in the order of the file. Globs are not expanded yet. None if it is over arrays.
    pub members: Vec<Member>,
    /// The arrays that it is over, as indices in [`Config::arrays`], in the order of the file; none
    /// if it is over drives.
    pub leaves: Vec<usize>,
    /// Set if the array must be the one with this UUID.
    pub uuid: Option<Uuid>,
    /// How a new array is made consistent after a crash; of one that exists the drives
    /// tell it.
    pub consistency: Consistency,
    /// Whether the file says so, or it is the level's default.
    pub consistency_is_given: bool,
    /// Drives that may take a failed member's place; [`Member::Memory`] is none of them.
    pub spares: Vec<Member>,
    /// How long missing members are waited for before the array starts without them.
    pub degraded_wait: Duration,
    /// How long a drive may take for one request before it has failed.
    pub member_timeout: Duration,
    /// How long commands wait when more members are gone than the level tolerates; zero
    /// for not at all.
    pub hold: Duration,
    /// How long nothing is written before the superblocks say "clean".
    pub safe_mode_delay: Duration,
    /// Read errors of a member within an hour that fail it.
    pub read_error_limit: u32,
    /// Rates of resync, rebuild and check.
    pub resync: ResyncRates,
}

/// How an array is made consistent after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// There is nothing to be made consistent: RAID 0.
    None,
    /// All of it is resynced.
    Resync,
    /// The regions that a bitmap names are resynced.
    Bitmap,
    /// A log of partial parity is replayed.
    Ppl,
}

impl Consistency {
    /// What a new array has unless the file says otherwise.
    pub fn default_of(level: Level) -> Self {
        match level {
            Level::Raid0 | Level::Raid50 | Level::Raid60 | Level::Raid100 => Self::None,
            Level::Raid1 | Level::Raid10 => Self::Bitmap,
            Level::Raid5 | Level::Raid6 => Self::Ppl,
        }
    }

    /// The word that the configuration file uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Resync => "resync",
            Self::Bitmap => "bitmap",
            Self::Ppl => "ppl",
        }
    }
}

impl std::fmt::Display for Consistency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How fast resync, rebuild and check go, in bytes a second of each member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResyncRates {
    /// What they have even while hosts are busy.
    pub min_bytes: u64,
    /// What they never exceed; 0 for no limit.
    pub max_bytes: u64,
}

impl Array {
    /// Whether this array's members are memory, so that it keeps nothing.
    pub fn is_memory(&self) -> bool {
        self.members.iter().any(|member| matches!(member, Member::Memory { .. }))
    }

    /// Whether this array is over other arrays.
    pub fn is_composed(&self) -> bool {
        !self.leaves.is_empty()
    }
}

/// RAID levels that the file may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// Striping without redundancy.
    Raid0,
    /// Every member holds everything.
    Raid1,
    /// Rotating parity.
    Raid5,
    /// Double rotating parity.
    Raid6,
    /// Striped mirrors: md's "near" layout with two copies.
    Raid10,
    /// RAID 0 over arrays of level 5.
    Raid50,
    /// RAID 0 over arrays of level 6.
    Raid60,
    /// RAID 0 over arrays of level 10.
    Raid100,
}

impl Level {
    /// The word that the configuration file uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Raid0 => "raid0",
            Level::Raid1 => "raid1",
            Level::Raid5 => "raid5",
            Level::Raid6 => "raid6",
            Level::Raid10 => "raid10",
            Level::Raid50 => "raid50",
            Level::Raid60 => "raid60",
            Level::Raid100 => "raid100",
        }
    }

    /// The fewest members that the level can have.
    pub fn min_members(self) -> usize {
        match self {
            Level::Raid0 | Level::Raid1 | Level::Raid10 => 2,
            Level::Raid50 | Level::Raid60 | Level::Raid100 => 2,
            Level::Raid5 => 3,
            Level::Raid6 => 4,
        }
    }

    /// The level of the arrays that it is over, if it can only be over arrays.
    pub fn leaf(self) -> Option<Level> {
        match self {
            Level::Raid50 => Some(Level::Raid5),
            Level::Raid60 => Some(Level::Raid6),
            Level::Raid100 => Some(Level::Raid10),
            Level::Raid0 | Level::Raid1 | Level::Raid5 | Level::Raid6 | Level::Raid10 => None,
        }
    }

    /// The level of an array that stripes over arrays of this level.
    pub fn striped(self) -> Level {
        let levels = [Level::Raid50, Level::Raid60, Level::Raid100];
        levels.into_iter().find(|level| level.leaf() == Some(self)).unwrap_or(Level::Raid0)
    }
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One entry of an array's `members:`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member {
    /// A block device or a regular file, by an absolute path.
    Path(PathBuf),
    /// An absolute pattern for such paths, with `*`, `?` or `[…]` in it.
    Glob(String),
    /// Memory, for tests and benchmarks; nothing in it outlives the daemon.
    Memory {
        /// Size of this member; a multiple of 1 MiB.
        size_bytes: u64,
    },
}

/// An NVM subsystem of `subsystems:`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subsystem {
    /// NVMe Qualified Name: valid, at most 223 bytes, not the discovery NQN.
    pub nqn: String,
    /// Who may connect.
    pub hosts: Hosts,
    /// Serial number for Identify, at most 20 printable ASCII characters; if
    /// absent it is derived from the array's UUID.
    pub serial: Option<String>,
    /// The namespaces; never empty, NSIDs unique.
    pub namespaces: Vec<Namespace>,
}

/// Who may connect to a subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hosts {
    /// Whoever reaches it.
    Any,
    /// Only hosts with one of these NQNs (compared byte by byte).
    Only(Vec<String>),
}

impl Hosts {
    /// Whether the host with this NQN may connect.
    pub fn allows(&self, host_nqn: &str) -> bool {
        match self {
            Hosts::Any => true,
            Hosts::Only(nqns) => nqns.iter().any(|nqn| nqn == host_nqn),
        }
    }
}

/// A namespace of a subsystem: a range of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Namespace identifier, 1 to 1024.
    pub nsid: u32,
    /// Index of its array in [`Config::arrays`].
    pub array: usize,
    /// Logical block size: 512 or 4096.
    pub block_size_bytes: u32,
    /// Where it begins in the array; a multiple of 4096.
    pub offset_bytes: u64,
    /// Its size, a multiple of 4096; `None` means up to the array's end.
    pub size_bytes: Option<u64>,
}

/// Which cores serve data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoreSelection {
    /// Those of the affinity mask and the control group, less one for the system
    /// where there are more than two.
    Auto,
    /// Exactly these; not empty, no duplicates.
    List(Vec<usize>),
}

/// Memory budgets of one data core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// For data that arrived within capsules; never held while waiting for a host.
    pub capsule_bytes: u64,
    /// For data of reads and of writes that the target asks for (R2T).
    pub transfer_bytes: u64,
}

/// What hosts are told they may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Commands a host may have outstanding on one queue: 15 to 65,535.
    pub queue_depth: u32,
    /// I/O queues one controller may have: 1 to 128.
    pub io_queues: u16,
    /// Write data that a command capsule of an I/O queue may carry: a multiple of
    /// 4096 up to 64 KiB; 0 means none.
    pub in_capsule_bytes: u32,
    /// Data of one command (MDTS): a power of two, 1 MiB to 32 MiB.
    pub max_transfer_bytes: u32,
}

/// How each data core's io_uring is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// Submission queue entries: a power of two, 64 to 32768.
    pub entries: u32,
    /// Ask the kernel for IORING_SETUP_COOP_TASKRUN (completions do not
    /// interrupt the core).
    pub coop_taskrun: bool,
}
