//! The per-core runtime: the one place that knows how a data core waits and talks to the kernel.
//!
//! A data core is a pinned thread that runs a tokio-uring executor. Everything above this module
//! sees sockets, drives, doorbells and `spawn`; nothing above it sees a ring, so that the ring's
//! implementation can be replaced here and only here.
//!
//! Invariants: every operation owns its buffers and its descriptor until the kernel has completed
//! it, also when the future that waits for it is dropped. Submissions are handed to the kernel
//! together, when the core has nothing more to run.
//!
//! What does not live here: protocol, RAID, policy.

#[cfg(test)]
mod tests;

mod awake;
mod doorbell;
mod drive;
mod late;
mod op;
mod socket;

use std::future::Future;
use std::io;
use std::time::{Duration, Instant};

pub use awake::Awake;
pub use doorbell::Doorbell;
pub use drive::{DriveFacts, UringDrive};
pub use late::{LateOperations, MEMBER_TIMEOUT, TimeLimit, Watch};
pub use socket::{Batch, Socket};

/// How a data core's runtime is set up.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// The processor the thread is pinned to; `None` leaves it to the scheduler.
    pub cpu: Option<usize>,
    /// Entries of the submission queue; a fuller batch is submitted in parts.
    pub ring_entries: u32,
    /// Completions wait until the core enters the kernel anyway, instead of interrupting it
    /// (IORING_SETUP_COOP_TASKRUN, Linux 5.19).
    pub coop_taskrun: bool,
    /// How long a core that just saw work looks for more before it sleeps.
    pub busy_poll: Option<Duration>,
}

impl Default for CoreOptions {
    fn default() -> Self {
        Self { cpu: None, ring_entries: 1024, coop_taskrun: true, busy_poll: None }
    }
}

/// Why a data core could not start.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The kernel or a sandbox refuses io_uring.
    #[error(
        "io_uring is not available here ({source}). {}",
        io_uring_cure(source.raw_os_error())
    )]
    Ring {
        /// What io_uring_setup(2) answered.
        source: io::Error,
    },
    /// The thread could not be pinned.
    #[error("cannot pin a data core to CPU {cpu}: {source}; choose another list for `cores`")]
    Pin {
        /// The processor asked for.
        cpu: usize,
        /// What sched_setaffinity(2) answered.
        source: io::Error,
    },
}

/// What to do about a refused io_uring, by the error the kernel gave.
fn io_uring_cure(errno: Option<i32>) -> &'static str {
    match errno {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => {
            "In a container: its seccomp profile blocks io_uring, as the default profiles of \
             Docker, containerd and Podman do; run it with \
             `--security-opt seccomp=deploy/seccomp.json`. On the host: `sysctl \
             kernel.io_uring_disabled` must print 0 (set it with `sysctl -w \
             kernel.io_uring_disabled=0`)"
        }
        Some(libc::ENOMEM) => {
            "The limit of locked memory is too small: raise it (`ulimit -l unlimited`, \
             `LimitMEMLOCK=infinity` in a systemd unit, `ulimits: memlock` in a compose file)"
        }
        Some(libc::EINVAL) => {
            "The kernel is too old: 5.19 or newer is needed, or 5.15 with `ring: { coop_taskrun: \
             false }`"
        }
        _ => "See io_uring_setup(2)",
    }
}

/// Whether this process may use io_uring as `cores` data cores will: sets rings of their size up,
/// all at once, and drops them.
///
/// # Errors
/// [`RuntimeError::Ring`], with the cure in its text.
pub fn preflight(cores: usize, ring_entries: u32, coop_taskrun: bool) -> Result<(), RuntimeError> {
    let ring = |_| builder(ring_entries, coop_taskrun).build(ring_entries);
    let rings: io::Result<Vec<io_uring::IoUring>> = (0..cores).map(ring).collect();
    rings.map(drop).map_err(|source| RuntimeError::Ring { source })
}

fn builder(ring_entries: u32, coop_taskrun: bool) -> io_uring::Builder {
    let mut ring = tokio_uring::uring_builder();
    ring.setup_cqsize(ring_entries.saturating_mul(4).min(32_768));
    if coop_taskrun {
        ring.setup_coop_taskrun();
    }
    ring
}

/// Runs `main` on this thread as a data core until it ends.
///
/// # Errors
/// [`RuntimeError`] when the thread cannot be pinned or the ring cannot be made; nothing ran then.
pub fn run<F: Future>(
    options: &CoreOptions,
    main: impl FnOnce() -> F,
) -> Result<F::Output, RuntimeError> {
    if let Some(cpu) = options.cpu {
        pin(cpu).map_err(|source| RuntimeError::Pin { cpu, source })?;
    }
    let runtime = tokio_uring::Runtime::new(
        tokio_uring::builder()
            .entries(options.ring_entries)
            .uring_builder(&builder(options.ring_entries, options.coop_taskrun)),
    )
    .map_err(|source| RuntimeError::Ring { source })?;
    Ok(runtime.block_on(async { main().await }))
}

/// Pins the calling thread to one processor.
fn pin(cpu: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Starts a long-lived task on this data core.
pub fn spawn(task: impl Future<Output = ()> + 'static) {
    drop(tokio_uring::spawn(task));
}

/// The clock of this process, for code that takes time as a parameter.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// The clock of this process: all of them show the same time, so that what one thread notes
    /// can be read on another.
    pub fn new() -> Self {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        Self { start: *START.get_or_init(Instant::now) }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl raidfabric_raid::array::Timer for Clock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> {
        tokio::time::sleep(time)
    }
}
