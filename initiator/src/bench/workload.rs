//! What a run does, and whether that makes sense.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use crate::{Error, Namespace, Options};

/// The most units whose generations are remembered for verification (64 bits each in memory,
/// with the flags).
const VERIFIED_UNITS_MAX: u64 = 1 << 26;

/// In which order a connection goes through the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Uniformly random, aligned to the operation's size.
    Random,
    /// One after the other, each connection in its own part.
    Sequential,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Where the controller listens.
    pub address: SocketAddr,
    /// SUBNQN.
    pub subnqn: String,
    /// NSID.
    pub nsid: u32,
    /// Identity, digests, SQ flow control, timeouts.
    pub options: Options,
    /// Order.
    pub access: Access,
    /// Percentage of reads, 0 to 100; the others are writes.
    pub read_percent: u8,
    /// Bytes of one operation, a multiple of the logical block size.
    pub io_bytes: u32,
    /// Operations outstanding on each connection.
    pub queue_depth: u16,
    /// Connections (I/O queues), at least one for each worker.
    pub connections: u16,
    /// Threads.
    pub workers: u16,
    /// How long is measured.
    pub duration: Duration,
    /// How long load is put on before that.
    pub warm_up: Duration,
    /// The part of the volume that is used, from its start, in bytes; `None` for all.
    pub span_bytes: Option<u64>,
    /// Writes carry LBA and generation; reads, and everything written at the end, are checked.
    pub verify: bool,
    /// The volume's data may be destroyed. Without it nothing is written.
    pub destroy_data: bool,
    /// Cores for the workers, in turn; empty for no pinning.
    pub cpus: Vec<usize>,
    /// How long a worker looks for answers before it sleeps.
    pub spin: Duration,
    /// Start of the random numbers.
    pub seed: u64,
}

impl Workload {
    /// 4 KiB random reads at depth 32 over one connection for 10 s.
    pub fn new(address: SocketAddr, subnqn: impl Into<String>) -> Self {
        Self {
            address,
            subnqn: subnqn.into(),
            nsid: 1,
            options: Options::default(),
            access: Access::Random,
            read_percent: 100,
            io_bytes: 4096,
            queue_depth: 32,
            connections: 1,
            workers: 1,
            duration: Duration::from_secs(10),
            warm_up: Duration::from_secs(1),
            span_bytes: None,
            verify: false,
            destroy_data: false,
            cpus: Vec::new(),
            spin: Duration::from_micros(100),
            seed: 1,
        }
    }

    /// Whether the run writes.
    pub fn writes(&self) -> bool {
        self.read_percent < 100 || self.verify
    }

    /// Checks what can be known before connecting.
    ///
    /// # Errors
    /// What does not make sense, and what would.
    pub(super) fn check(&self) -> Result<(), Error> {
        let refuse = |text: &str| Err(Error::Invalid(text.into()));
        if self.writes() && !self.destroy_data {
            return refuse("this run writes: say that the volume's data may be destroyed");
        }
        if self.read_percent > 100 {
            return refuse("the percentage of reads is 0 to 100");
        }
        if self.queue_depth == 0 || self.workers == 0 {
            return refuse("queue depth and workers are at least 1");
        }
        if self.connections < self.workers {
            return refuse("each worker needs a connection: use at least as many connections");
        }
        if self.duration.is_zero() {
            return refuse("the duration is 0");
        }
        Ok(())
    }

    /// Operations that fit into the volume, or into the part that is used.
    ///
    /// # Errors
    /// An operation that this namespace cannot do, or too few places for the connections.
    pub(super) fn units(&self, namespace: &Namespace) -> Result<u64, Error> {
        let (io, block) = (self.io_bytes, namespace.block_bytes);
        if io == 0 || !io.is_multiple_of(block) {
            return Err(Error::Invalid(format!(
                "{io} bytes are not whole logical blocks of {block} bytes"
            )));
        }
        if io / block > 1 << 16 {
            return Err(Error::Invalid(format!(
                "{io} bytes are more than the 65536 blocks of one command"
            )));
        }
        if let Some(most) = namespace.max_transfer_bytes
            && u64::from(io) > most
        {
            return Err(Error::Unsupported(format!(
                "{io} bytes: this controller transfers at most {most} bytes per command"
            )));
        }
        let size = namespace.size_bytes();
        let span = self.span_bytes.unwrap_or(size).min(size);
        let units = span / u64::from(io);
        if units < u64::from(self.connections) {
            return Err(Error::Invalid(format!(
                "a span of {span} bytes has {units} places for reads or writes of {io} bytes, and \
                 each connection ({} of them) needs one: make the span larger, the block size \
                 smaller, or the connections fewer",
                self.connections
            )));
        }
        if self.verify && units > VERIFIED_UNITS_MAX {
            let most = VERIFIED_UNITS_MAX * u64::from(io);
            return Err(Error::Invalid(format!(
                "verifying {span} bytes takes too much memory: limit the span to {most} bytes"
            )));
        }
        Ok(units)
    }
}

/// What a run is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Connecting.
    Connecting,
    /// Writing known contents.
    Filling,
    /// Load without measuring.
    Warming,
    /// Measuring.
    Measuring,
    /// Reading back what was written.
    Checking,
}

/// How far a run is; given to the caller several times a second.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// What it is at; workers may differ for a moment.
    pub phase: Phase,
    /// Since the phase began.
    pub elapsed: Duration,
    /// How long the phase lasts, where that is known.
    pub total: Option<Duration>,
    /// Operations since the run began.
    pub operations: u64,
    /// Bytes moved since the run began.
    pub bytes: u64,
}
