//! How much memory the daemon can come to use, as a formula.
//!
//! Nothing on the data path allocates beyond the budgets below, so that the sum is a
//! bound and not an estimate. `check` prints it with the numbers filled in. A
//! connection is admitted only if the minimum it is guaranteed still fits in its
//! core's budgets; that is what bounds the number of connections.

use raidfabric_raid::array;

use super::types::{Config, Level};
use super::units::format_bytes;

/// Received bytes that a connection may hold before they are consumed.
pub const RECEIVE_BUFFER_BYTES: u64 = 64 << 10;
/// Headers and replies that a connection may have waiting to be sent.
pub const SEND_BUFFER_BYTES: u64 = 128 << 10;
/// What of the transfer budget each connection is guaranteed: a longer command of a connection
/// that gets no more goes through it in pieces.
pub const TRANSFER_MINIMUM_BYTES: u64 = 128 << 10;
/// State of one command that waits, in the tables and queues of its connection.
pub const COMMAND_SLOT_BYTES: u64 = 512;
/// Commands that one core works on at a time; further ones wait.
pub const WORKERS_PER_CORE: u64 = 4096;
/// State of one command that is being worked on.
pub const WORKER_BYTES: u64 = 6144;
/// What of each core is for work that is not done for a host: resyncs, rebuilds, zeros.
pub const BACKGROUND_BYTES: u64 = 8 << 20;
/// The program itself, its threads' stacks, the control plane, and the kernel's rings
/// that are charged to it.
pub const BASE_BYTES: u64 = 32 << 20;
/// Inline data that every admin queue must be able to take, whatever `in_capsule`
/// says (8 KiB, as hosts assume).
pub const ADMIN_CAPSULE_BYTES: u64 = 8 << 10;

/// The terms of the bound, all in bytes except the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// Data cores.
    pub cores: u64,
    /// Capsule budget of each core.
    pub capsule_bytes: u64,
    /// Transfer budget of each core.
    pub transfer_bytes: u64,
    /// What of the capsule budget each connection is guaranteed.
    pub capsule_minimum_bytes: u64,
    /// What of the transfer budget each connection is guaranteed.
    pub transfer_minimum_bytes: u64,
    /// Connections that one core admits.
    pub connections_per_core: u64,
    /// What each connection holds beside the budgets.
    pub connection_bytes: u64,
    /// What the arrays have on each core for themselves, their resyncs and rebuilds included.
    pub arrays_bytes: u64,
    /// Members in memory, for tests and benchmarks.
    pub memory_members_bytes: u64,
}

impl Bound {
    /// The bound of a configuration on this many data cores.
    pub fn new(config: &Config, cores: usize) -> Bound {
        let capsule_minimum_bytes = Bound::capsule_block_bytes(config);
        let transfer_minimum_bytes = TRANSFER_MINIMUM_BYTES;
        let (capsule_bytes, transfer_bytes) =
            (config.memory.capsule_bytes, config.memory.transfer_bytes);
        let members = config.arrays.iter().flat_map(|array| &array.members);
        let over_drives = config.arrays.iter().filter(|array| !array.is_composed());
        let of_array = |array: &super::Array| {
            array::memory_bytes(matches!(array.level, Level::Raid5 | Level::Raid6))
        };
        Bound {
            cores: cores as u64,
            capsule_bytes,
            transfer_bytes,
            capsule_minimum_bytes,
            transfer_minimum_bytes,
            connections_per_core: (capsule_bytes / capsule_minimum_bytes)
                .min(transfer_bytes / transfer_minimum_bytes),
            connection_bytes: RECEIVE_BUFFER_BYTES
                + SEND_BUFFER_BYTES
                + COMMAND_SLOT_BYTES * (u64::from(config.limits.queue_depth) + 1),
            arrays_bytes: over_drives.map(of_array).fold(BACKGROUND_BYTES, u64::saturating_add),
            memory_members_bytes: members
                .map(|member| match member {
                    super::Member::Memory { size_bytes } => *size_bytes,
                    _ => 0,
                })
                .fold(0, u64::saturating_add),
        }
    }

    /// The size of the blocks in which capsule memory is handed out.
    pub fn capsule_block_bytes(config: &Config) -> u64 {
        u64::from(config.limits.in_capsule_bytes).max(ADMIN_CAPSULE_BYTES).next_power_of_two()
    }

    /// The sum.
    pub fn total_bytes(&self) -> u64 {
        let per_connection = self.connections_per_core.saturating_mul(self.connection_bytes);
        let workers = WORKERS_PER_CORE * WORKER_BYTES;
        let per_core = self.capsule_bytes + self.transfer_bytes + workers + self.arrays_bytes;
        self.cores
            .saturating_mul(per_core.saturating_add(per_connection))
            .saturating_add(BASE_BYTES)
            .saturating_add(self.memory_members_bytes)
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = format_bytes;
        writeln!(f, "memory: at most {}", size(self.total_bytes()))?;
        writeln!(
            f,
            "  = cores × (capsule + transfer + workers + arrays + connections × per connection) + base{}",
            if self.memory_members_bytes > 0 { " + members in memory" } else { "" }
        )?;
        write!(
            f,
            "  = {} × ({} + {} + {} + {} + {} × {}) + {}",
            self.cores,
            size(self.capsule_bytes),
            size(self.transfer_bytes),
            size(WORKERS_PER_CORE * WORKER_BYTES),
            size(self.arrays_bytes),
            self.connections_per_core,
            size(self.connection_bytes),
            size(BASE_BYTES),
        )?;
        if self.memory_members_bytes > 0 {
            write!(f, " + {}", size(self.memory_members_bytes))?;
        }
        write!(
            f,
            "\n  connections per core = the fewer of capsule / {} and transfer / {}",
            size(self.capsule_minimum_bytes),
            size(self.transfer_minimum_bytes),
        )
    }
}
