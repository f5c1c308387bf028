//! Makes the arrays' state durable for the data cores.
//!
//! Level-triggered: a data core that changed something rings ([`Bell`]), and the control plane
//! compares what is wanted with what is recorded until they are the same. Superblocks are written on
//! the blocking pool, one version of an array after the other.
//!
//! **The order.** A version that loses a member is durable in the superblocks of all others, then in
//! the state directory, and only then the array hears of it ([`Shared::recorded`]), which lets the
//! writes go on that the lost member missed. Where the state directory cannot take it the record
//! there is removed instead, as it would call the lost member good; while not even that can be
//! done, the array waits.
//!
//! **Safe mode.** After a pause in writing the superblocks say "clean" again, so that a crash from
//! then on costs nothing. [`Shared::try_clean`] lets no write slip in between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use raidfabric_raid::array::{Keeper, MemberFault, Shared, Wanted};
use raidfabric_raid::assemble::{ArrayHandle, UpdateError};
use raidfabric_raid::device::{Medium, OpenDevice};
use raidfabric_raid::drive::DriveError;
use tokio::sync::Notify;
use uuid::Uuid;

use super::state::{Record, StateDirectory, StateError};

/// How long it takes to try again what could not be recorded for reasons that are none of a
/// member's.
const RETRY: Duration = Duration::from_secs(1);
/// How often a pause in writing is looked for, within the delay after which the array is clean.
const LOOKS_PER_DELAY: u32 = 4;

/// Rung by data cores when something else is wanted.
#[derive(Default)]
pub struct Bell(Notify);

impl Keeper for Bell {
    fn wake(&self) {
        self.0.notify_one();
    }
}

/// What writes down the state of one array. Blocking.
pub struct Recorder<M> {
    name: String,
    uuid: Uuid,
    shared: Arc<Shared>,
    handle: Arc<Mutex<ArrayHandle<M>>>,
    state: Option<StateDirectory>,
    /// Told to the log, once for each trouble.
    is_in_trouble: AtomicBool,
    /// A loss is in the superblocks, and not yet in the state directory.
    owes_note: AtomicBool,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// All that is wanted is recorded.
    Done,
    /// Something else is wanted now.
    Again,
    /// It cannot be recorded now; whoever rings next has it tried again.
    Refused,
    /// It cannot be recorded now, and has to be tried again in a while.
    Later,
}

impl<M: Medium> Recorder<M> {
    /// For an array whose superblocks are in `handle`.
    pub fn new(
        name: String,
        shared: Arc<Shared>,
        handle: Arc<Mutex<ArrayHandle<M>>>,
        state: Option<StateDirectory>,
    ) -> Self {
        let uuid = Uuid::from_bytes(shared.uuid());
        let (is_in_trouble, owes_note) = Default::default();
        Self { name, uuid, shared, handle, state, is_in_trouble, owes_note }
    }

    /// Records what is wanted now, if it is not recorded.
    pub fn turn(&self) -> Turn {
        let wanted = self.shared.wanted();
        if wanted.version <= self.shared.recorded_version() {
            return Turn::Done;
        }
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded = match handle.record(&wanted) {
            Ok(recorded) => recorded,
            Err(error) => {
                drop(handle);
                return self.believe(&error);
            }
        };
        let names: Vec<_> = handle.members().iter().map(|member| member.medium().name()).collect();
        drop(handle);
        self.owes_note.fetch_or(recorded.lost_member, Ordering::Relaxed);
        if self.owes_note.load(Ordering::Relaxed)
            && let Err(error) = self.note(recorded.events, names)
        {
            self.complain("writes wait: the loss of a member is not noted", &error);
            return Turn::Later;
        }
        self.owes_note.store(false, Ordering::Relaxed);
        self.tell(&wanted);
        self.shared.recorded(wanted.version);
        Turn::Again
    }

    /// Notes the events of an array that has lost a member.
    fn note(&self, events: u64, names: Vec<String>) -> Result<(), StateError> {
        let Some(state) = &self.state else { return Ok(()) };
        let Err(error) = state.remember(&self.name, &Record::new(self.uuid, names, Some(events)))
        else {
            return Ok(());
        };
        state.forget(&self.name)?;
        tracing::error!(
            array = self.name, %error,
            "the loss of a member is not noted in the state directory, whose record is removed: \
             until it can be written the array does not start without all its members"
        );
        Ok(())
    }

    /// A member could not take it: it has failed. Lack of space below a file is no such failure.
    fn believe(&self, error: &UpdateError) -> Turn {
        self.complain("the array's state is not recorded", error);
        let slot = error.slot();
        match error {
            UpdateError::Cannot { .. } => {
                self.shared.fail_member(slot, MemberFault::BadBlocksFull);
            }
            UpdateError::Write { source, .. }
            | UpdateError::Read { source, .. }
            | UpdateError::Flush { source, .. } => {
                let errno = source.raw_os_error().unwrap_or(libc::EIO);
                match (DriveError::from_errno(errno), error) {
                    (DriveError::NoSpace, _) => {
                        self.shared.record_failed(slot, DriveError::NoSpace);
                        return Turn::Refused;
                    }
                    // It is told once only that what was written before is lost.
                    (failure, UpdateError::Flush { .. }) => self.shared.fail_flush(slot, failure),
                    (failure, _) => self.shared.record_failed(slot, failure),
                }
            }
        }
        // An array that has failed with it wants nothing else: it would be tried for ever.
        if self.shared.failure().is_some() { Turn::Refused } else { Turn::Again }
    }

    /// Says it once, until something is recorded again.
    fn complain(&self, what: &str, error: &dyn std::fmt::Display) {
        if !self.is_in_trouble.swap(true, Ordering::Relaxed) {
            tracing::error!(array = self.name, %error, "{what}");
        }
    }

    fn tell(&self, wanted: &Wanted) {
        self.is_in_trouble.store(false, Ordering::Relaxed);
        tracing::debug!(
            array = self.name,
            version = wanted.version,
            active = wanted.active,
            members = ?wanted.members,
            "recorded"
        );
    }

    /// Records until nothing is left, or something is in the way.
    pub fn settle(&self) -> Turn {
        loop {
            match self.turn() {
                Turn::Again => {}
                end => return end,
            }
        }
    }
}

/// Records what an array wants whenever it rings, and has it marked clean after a pause in writing,
/// for ever.
pub async fn keep(bell: Arc<Bell>, recorder: Arc<Recorder<OpenDevice>>, safe_mode_delay: Duration) {
    let shared = Arc::clone(&recorder.shared);
    let mut pause = Pause::new(safe_mode_delay, shared.writes_begun(), Instant::now());
    let mut looks = tokio::time::interval((safe_mode_delay / LOOKS_PER_DELAY).max(RETRY / 40));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = bell.0.notified() => {}
            _ = looks.tick() => {
                if pause.is_over(shared.writes_begun(), Instant::now()) {
                    // Rings if there is something to be recorded.
                    shared.try_clean();
                }
                continue;
            }
        }
        let recorder = Arc::clone(&recorder);
        match tokio::task::spawn_blocking(move || recorder.settle()).await {
            Ok(Turn::Later) => {
                tokio::time::sleep(RETRY).await;
                bell.wake();
            }
            Ok(_) => {}
            // The runtime is going away, or the drive's driver panicked under us.
            Err(_) => return,
        }
    }
}

/// Finds pauses in writing. Time comes in as a parameter.
struct Pause {
    delay: Duration,
    writes: u64,
    since: Instant,
}

impl Pause {
    fn new(delay: Duration, writes: u64, now: Instant) -> Self {
        Self { delay, writes, since: now }
    }

    /// Whether no write has begun for the delay.
    fn is_over(&mut self, writes: u64, now: Instant) -> bool {
        if writes != self.writes {
            (self.writes, self.since) = (writes, now);
        }
        now.saturating_duration_since(self.since) >= self.delay
    }
}
