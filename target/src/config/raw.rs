//! The configuration file as it is written: one struct per mapping, names and
//! texts as the operator gave them.
//!
//! These structs are the single source of three things: what `serde_yaml` reads,
//! the JSON Schema that `raidfabric schema` prints for editors, and (through that
//! schema) the list of known keys and kinds that `structure` checks. Sizes,
//! durations and addresses stay text here, so that `check` can judge all of them
//! and report every mistake of a file at once.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const LISTEN_EXAMPLE: [&str; 2] = ["192.0.2.10:4420", "[::1]:4420"];
const DISCOVERY_EXAMPLE: [&str; 1] = ["192.0.2.10:8009"];
const SPARES_EXAMPLE: [&str; 1] = ["/dev/disk/by-id/nvme-spare-*"];
const MEMBERS_EXAMPLE: [&str; 2] = ["/dev/disk/by-id/nvme-A", "/dev/disk/by-id/nvme-B"];

/// Configuration of raidfabric: which drives form which arrays, which hosts may
/// use them, and where they are served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "a raidfabric configuration")]
pub(super) struct File {
    /// The RAID arrays.
    pub(super) arrays: Vec<Array>,
    /// The NVM subsystems: what hosts connect to.
    pub(super) subsystems: Vec<Subsystem>,
    /// Addresses where the subsystems are served, as ADDRESS:PORT. NVMe/TCP's
    /// usual port is 4420. Discovery is answered here, too.
    #[schemars(example = LISTEN_EXAMPLE)]
    pub(super) listen: Vec<String>,
    /// Further addresses that answer discovery only. Its usual port is 8009.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(example = DISCOVERY_EXAMPLE)]
    pub(super) discovery: Vec<String>,
    /// Which cores serve data: `auto` takes those of the affinity mask and the
    /// control group, and leaves one to the system where there are more than two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cores: Option<Cores>,
    /// Directory for what the daemon must remember about its arrays
    /// (/var/lib/raidfabric).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) state_dir: Option<String>,
    /// How long a core that just saw work looks for more before it sleeps, 1us to
    /// 10ms, or `off` (50us).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) busy_poll: Option<Time>,
    /// How long a host may leave its replies unread, or what it owes unsent, before
    /// it is disconnected, 1s to 1h (30s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reply_timeout: Option<Time>,
    /// Memory budgets of each data core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<Memory>,
    /// Commands that a host may have outstanding on one queue, 15 to 65535 (1023).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) queue_depth: Option<u64>,
    /// I/O queues that one controller may have, 1 to 128 (64).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) io_queues: Option<u64>,
    /// Write data that a command may carry with it, a multiple of 4KiB up to 64KiB
    /// (16KiB). Larger writes are asked for by the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) in_capsule: Option<Size>,
    /// Largest read or write of one command, a power of two from 1MiB to 32MiB
    /// (1MiB).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) max_transfer: Option<Size>,
    /// How each data core's io_uring is set up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ring: Option<Ring>,
    /// How commands such as `raidfabric status` reach the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) control: Option<Control>,
}

/// One RAID array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "an array")]
pub(super) struct Array {
    /// Name of the array: up to 32 of A-Z, a-z, 0-9, `.`, `_` and `-`. It is
    /// written to the drives, too.
    pub(super) name: String,
    /// RAID level.
    pub(super) level: Level,
    /// Chunk size, a power of two from 4KiB to 1MiB (64KiB; 512KiB for an array over
    /// arrays). Not for raid1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) chunk: Option<Size>,
    /// The members: absolute paths or patterns of block devices (best:
    /// /dev/disk/by-id/…) or regular files; or `memory:SIZE`, which keeps nothing
    /// and is for tests and benchmarks. Or `array:NAME`, other arrays of this file,
    /// for raid0, raid50, raid60 and raid100.
    #[schemars(example = MEMBERS_EXAMPLE)]
    pub(super) members: Vec<String>,
    /// UUID of the array that the members must hold. Once the array is created,
    /// it is found by this wherever its drives appear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) uuid: Option<String>,
    /// How an array is made consistent after a crash; chosen when it is created
    /// (bitmap for raid1 and raid10, ppl for raid5 and raid6). Not for raid0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) consistency: Option<Consistency>,
    /// Drives that take the place of a member that fails: absolute paths or
    /// patterns. A spare must be blank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(example = SPARES_EXAMPLE)]
    pub(super) spares: Vec<String>,
    /// How long missing members are waited for at the start before the array
    /// starts without them, 0s to 1day (30s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) degraded_wait: Option<Time>,
    /// How long a drive may take for one request before it has failed, 1s to 10m
    /// (30s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) member_timeout: Option<Time>,
    /// How long commands wait for drives to come back when more are gone than the
    /// level tolerates, 1s to 1h, or `off` (off).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) hold: Option<Time>,
    /// How long nothing is written before the superblocks say `clean`, 100ms to 1h
    /// (5s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) safe_mode_delay: Option<Time>,
    /// Read errors of a member within an hour, answered from redundancy, until the
    /// member has failed, 1 to 1000000 (20).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) read_error_limit: Option<u64>,
    /// How fast resync, rebuild and check go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) resync: Option<Resync>,
}

/// How an array is made consistent after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Consistency {
    /// All of it is resynced.
    Resync,
    /// A bitmap on the members says which regions are resynced.
    Bitmap,
    /// A log of partial parity is replayed. For raid5 and raid6.
    Ppl,
}

/// How fast resync, rebuild and check go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "resync rates")]
pub(super) struct Resync {
    /// Bytes a second of each member that it has even while hosts are busy
    /// (32MiB).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) min: Option<Size>,
    /// Bytes a second of each member that it never exceeds (no limit).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) max: Option<Size>,
}

/// How commands reach the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "control settings")]
pub(super) struct Control {
    /// The Unix socket's absolute path, or `off` (control.sock in `state_dir`; none
    /// where all arrays are in memory).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) socket: Option<String>,
}

/// RAID levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// Striping, no redundancy.
    Raid0,
    /// Every member holds everything.
    Raid1,
    /// Rotating parity: one member may fail.
    Raid5,
    /// Double rotating parity: two members may fail.
    Raid6,
    /// Striped mirrors, two copies.
    Raid10,
    /// Striping over arrays of level raid5.
    Raid50,
    /// Striping over arrays of level raid6.
    Raid60,
    /// Striping over arrays of level raid10.
    Raid100,
}

/// One NVM subsystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "a subsystem")]
pub(super) struct Subsystem {
    /// Its NVMe Qualified Name.
    #[schemars(example = "nqn.2026-11.io.raidfabric:fast")]
    pub(super) nqn: String,
    /// NQNs of the hosts that may connect, or `any`.
    pub(super) hosts: Hosts,
    /// Serial number: up to 20 printable ASCII characters (derived from the
    /// array's UUID).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) serial: Option<String>,
    /// Its namespaces.
    pub(super) namespaces: Vec<Namespace>,
}

/// Who may connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(title = "`any` or a list of host NQNs")]
pub(super) enum Hosts {
    /// Whoever reaches the target.
    Word(AnyWord),
    /// These hosts.
    List(Vec<String>),
}

/// The word `any`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum AnyWord {
    /// Whoever reaches the target.
    Any,
}

/// One namespace of a subsystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "a namespace")]
pub(super) struct Namespace {
    /// Namespace identifier, 1 to 1024.
    pub(super) nsid: u64,
    /// Name of the array that holds it.
    pub(super) array: String,
    /// Logical block size, 512 or 4096 (4096).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) block_size: Option<Size>,
    /// Where it begins in the array, a multiple of 4KiB (0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) offset: Option<Size>,
    /// Its size, a multiple of 4KiB (the rest of the array).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) size: Option<Size>,
}

/// Which cores serve data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(title = "`auto` or a list of core numbers")]
pub(super) enum Cores {
    /// Chosen at start.
    Word(AutoWord),
    /// These cores.
    List(Vec<u64>),
}

/// The word `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum AutoWord {
    /// Chosen at start.
    Auto,
}

/// Memory budgets of each data core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "memory budgets")]
pub(super) struct Memory {
    /// For data that arrives within commands (32MiB).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) capsule: Option<Size>,
    /// For data of reads and of larger writes (128MiB).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) transfer: Option<Size>,
}

/// How each data core's io_uring is set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "ring settings")]
pub(super) struct Ring {
    /// Submission queue entries, a power of two from 64 to 32768 (1024).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) entries: Option<u64>,
    /// Let completions wait until the core looks for them (true).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) coop_taskrun: Option<bool>,
}

/// A size, as bytes or as text with a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(title = "a size such as 64KiB or 65536")]
pub(super) enum Size {
    /// Bytes.
    Bytes(u64),
    /// Text with a unit: `64KiB`.
    Text(String),
}

/// A duration with a unit, or `off`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(title = "a duration such as 50us or 5s")]
pub(super) struct Time(pub(super) String);

/// The JSON Schema (draft-07) of the file, for editors.
pub(super) fn schema() -> serde_json::Value {
    schemars::generate::SchemaSettings::draft07()
        .into_generator()
        .into_root_schema_for::<File>()
        .to_value()
}
