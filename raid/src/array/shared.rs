//! What all cores and the control plane know of one array: its shape, whether it may be written,
//! how far its copies agree, and what went wrong.
//!
//! **Writing.** Before the first write after a clean stop the members' superblocks must say
//! "active"; the control plane does that when the [`Keeper`] asks. The states:
//! ```text
//!   Clean ──first write──▶ Requested ──set_active──▶ Active
//!     ▲                        │
//!     └──────fail_active───────┘          any ──fail──▶ Failed,  any but Failed ──stop_writes──▶ Stopped
//! ```
//! A write counts itself on its core *before* it looks at the state, and the one who stops writes
//! changes the state *before* it looks at the counts, all sequentially consistent: so when
//! [`Shared::writes_in_flight`] is 0 after [`Shared::stop_writes`], no write is under way and none
//! will be, and the superblocks may be marked clean after a flush.
//!
//! **Agreement of copies.** Below the *resync position* all copies are equal except for writes
//! under way; from there on only the first copy counts. The position advances as the resync
//! passes, and falls when a write has left copies unequal ([`Shared::require_resync`]).
//!
//! Nothing here does I/O or knows the time. Locks are held for a few instructions and only where
//! something rare happens; requests in the normal state touch atomics of their own core only.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use super::error::{ArrayError, WriteFailure};
use super::flush::SharedFlush;
use super::progress::{Progress, ResyncProgress, Stall};
use crate::drive::DriveError;
use crate::geometry::Geometry;

/// The resync position of an array whose copies agree everywhere.
pub const IN_SYNC: u64 = u64::MAX;

/// Makes an array's state durable; implemented by the control plane. Calls come from data cores,
/// return at once, and are rare.
pub trait Keeper: Send + Sync {
    /// Make "active" durable in the superblock of every member, then call [`Shared::set_active`],
    /// or [`Shared::fail_active`] if a member cannot take it.
    fn request_active(&self);

    /// Record that all copies agree below `position_bytes` of the array ([`IN_SYNC`]: everywhere).
    /// All members have been flushed since. What is recorded counts only if the array is stopped
    /// cleanly: after a crash the writes under way may have left copies unequal anywhere.
    fn checkpoint_resync(&self, position_bytes: u64);
}

/// The keeper of arrays without superblocks (memory members): nothing outlives the process.
/// Such arrays are made with [`Settings::active`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NoKeeper;

impl Keeper for NoKeeper {
    fn request_active(&self) {}
    fn checkpoint_resync(&self, _position_bytes: u64) {}
}

/// From what the shared part of an array is made.
pub struct Settings {
    /// The array's number in this process, for calls between cores: unique and small.
    pub service: u16,
    /// The array's UUID.
    pub uuid: [u8; 16],
    /// Its shape.
    pub geometry: Geometry,
    /// Where each member's data area begins on its drive, by slot.
    pub data_offsets_bytes: Vec<u64>,
    /// Number of data cores.
    pub cores: usize,
    /// Whether the superblocks already say "active".
    pub active: bool,
    /// Below this all copies agree; [`IN_SYNC`] if everywhere. Ignored for levels without copies.
    pub resync_position_bytes: u64,
    /// Makes state durable.
    pub keeper: Arc<dyn Keeper>,
}

/// Whether the array may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WriteState {
    /// The superblocks say "clean"; nothing has been written since.
    Clean = 0,
    /// The keeper was asked to mark the superblocks active.
    Requested = 1,
    /// The superblocks say "active".
    Active = 2,
    /// A write or flush failed. Final.
    Failed = 3,
    /// Writes are not taken any more, because the array is being stopped.
    Stopped = 4,
}

impl WriteState {
    fn from_raw(raw: u8) -> Self {
        match raw {
            0 => Self::Clean,
            1 => Self::Requested,
            2 => Self::Active,
            4 => Self::Stopped,
            _ => Self::Failed,
        }
    }
}

/// What made the array fail: the first one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A member did not write.
    #[error("member {slot} did not write: {error}")]
    Write {
        /// Its slot.
        slot: usize,
        /// What it said.
        error: DriveError,
    },
    /// A member did not flush: what it had acknowledged may be lost.
    #[error("member {slot} did not flush, written data may be lost: {error}")]
    Flush {
        /// Its slot.
        slot: usize,
        /// What it said.
        error: DriveError,
    },
    /// A request was dropped while its writes or its flush were under way, so their end is unknown.
    #[error("a write or flush was abandoned while under way")]
    Abandoned,
}

/// What happened to one member, counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberErrors {
    /// Reads that failed.
    pub reads: u64,
    /// Writes and zeroing that failed, without those for lack of space.
    pub writes: u64,
    /// Flushes that failed.
    pub flushes: u64,
    /// Writes that found no space below the member.
    pub no_space: u64,
}

#[derive(Default)]
pub(super) struct MemberCounters {
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) no_space: AtomicU64,
    /// It did not write or flush, so that it may lack what other copies have.
    suspect: AtomicBool,
}

/// What a core counts; written by that core only, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct CoreCounters {
    reads: AtomicU64,
    writes_begun: AtomicU64,
    writes_ended: AtomicU64,
}

/// See the file's head. One per array, behind an `Arc`.
pub struct Shared {
    service: u16,
    uuid: [u8; 16],
    geometry: Geometry,
    data_offsets_bytes: Box<[u64]>,
    keeper: Arc<dyn Keeper>,
    state: AtomicU8,
    resync_position: AtomicU64,
    cores: Box<[CoreCounters]>,
    members: Box<[MemberCounters]>,
    /// Whether any member is suspect: asked by every read.
    has_suspects: AtomicBool,
    flushes: Box<[SharedFlush]>,
    /// Reads that another copy answered after a read error.
    reads_from_other_copies: AtomicU64,
    pub(super) resync_min_rate: AtomicU64,
    pub(super) resync_max_rate: AtomicU64,
    pub(super) checkpoint_interval: AtomicU64,
    rare: Mutex<Rare>,
}

/// State that changes rarely.
struct Rare {
    failure: Option<Failure>,
    /// How often [`Shared::fail_active`] was called.
    failed_activations: u64,
    /// The lowest offset that [`Shared::require_resync`] named since the resync began its present
    /// step.
    resync_required_from: u64,
    resync_stopped: bool,
    progress: Progress,
    /// Everybody who waits for anything here to change.
    wakers: Vec<Waker>,
}

/// The right to submit writes: they are counted as under way until it is dropped.
#[must_use]
pub(super) struct WritePermit<'a> {
    counters: &'a CoreCounters,
}

impl Drop for WritePermit<'_> {
    fn drop(&mut self) {
        self.counters.writes_ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Shared {
    /// The shared part of an array.
    pub fn new(settings: Settings) -> Arc<Self> {
        let Settings { geometry, active, .. } = settings;
        let position = settings.resync_position_bytes;
        let in_sync = geometry.copies() == 1 || position >= geometry.capacity_bytes();
        let state = if active { WriteState::Active } else { WriteState::Clean };
        Arc::new(Self {
            service: settings.service,
            uuid: settings.uuid,
            geometry,
            data_offsets_bytes: settings.data_offsets_bytes.into_boxed_slice(),
            keeper: settings.keeper,
            state: AtomicU8::new(state as u8),
            resync_position: AtomicU64::new(if in_sync { IN_SYNC } else { position }),
            cores: (0..settings.cores).map(|_| CoreCounters::default()).collect(),
            members: (0..geometry.members()).map(|_| MemberCounters::default()).collect(),
            flushes: (0..geometry.members()).map(|_| SharedFlush::new()).collect(),
            has_suspects: AtomicBool::new(false),
            reads_from_other_copies: AtomicU64::new(0),
            resync_min_rate: AtomicU64::new(32 << 20),
            resync_max_rate: AtomicU64::new(0),
            checkpoint_interval: AtomicU64::new(1 << 30),
            rare: Mutex::new(Rare {
                failure: None,
                failed_activations: 0,
                resync_required_from: IN_SYNC,
                resync_stopped: false,
                progress: Progress::default(),
                wakers: Vec::new(),
            }),
        })
    }

    /// The array's number for calls between cores.
    pub fn service(&self) -> u16 {
        self.service
    }

    /// The array's UUID.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The array's shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Number of data cores it was made for.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Where the data area of the member in `slot` begins on its drive.
    pub(super) fn data_offset_bytes(&self, slot: usize) -> Option<u64> {
        self.data_offsets_bytes.get(slot).copied()
    }

    pub(super) fn keeper(&self) -> &dyn Keeper {
        &*self.keeper
    }

    fn rare(&self) -> MutexGuard<'_, Rare> {
        // Every change under this lock is complete at any point where it could panic.
        self.rare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_all(mut rare: MutexGuard<'_, Rare>) {
        let wakers = std::mem::take(&mut rare.wakers);
        drop(rare);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until `check` has an answer; it is asked again whenever something changed.
    async fn wait_for<T>(&self, mut check: impl FnMut(&Rare) -> Option<T>) -> T {
        poll_fn(|cx| {
            let mut rare = self.rare();
            match check(&rare) {
                Some(answer) => Poll::Ready(answer),
                None => {
                    if !rare.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                        rare.wakers.push(cx.waker().clone());
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// Writing: the states of the file's head.
impl Shared {
    /// Whether the array may be written.
    pub fn write_state(&self) -> WriteState {
        WriteState::from_raw(self.state.load(Ordering::SeqCst))
    }

    /// Why the array failed, if it did.
    pub fn failure(&self) -> Option<Failure> {
        self.rare().failure
    }

    /// The superblocks of all members say "active".
    pub fn set_active(&self) {
        let rare = self.rare();
        self.change_state(WriteState::Requested, WriteState::Active);
        Self::wake_all(rare);
    }

    /// The superblocks could not be marked active: the writes that wait fail. The next write asks
    /// again.
    pub fn fail_active(&self) {
        let mut rare = self.rare();
        rare.failed_activations += 1;
        self.change_state(WriteState::Requested, WriteState::Clean);
        Self::wake_all(rare);
    }

    /// Takes no more writes: they get [`ArrayError::NotReady`]. When [`Self::writes_in_flight`]
    /// is 0 afterwards, the superblocks may be marked clean after a flush, unless the array failed.
    pub fn stop_writes(&self) {
        let rare = self.rare();
        for from in [WriteState::Clean, WriteState::Requested, WriteState::Active] {
            self.change_state(from, WriteState::Stopped);
        }
        Self::wake_all(rare);
    }

    /// Writes, on all cores, that have begun and not ended.
    pub fn writes_in_flight(&self) -> u64 {
        // Ended before begun: a write that ends in between is still counted as under way, and one
        // that begins and ends in between cannot hide another.
        let ended: u64 = self.cores.iter().map(|c| c.writes_ended.load(Ordering::SeqCst)).sum();
        let begun: u64 = self.cores.iter().map(|c| c.writes_begun.load(Ordering::SeqCst)).sum();
        begun - ended
    }

    /// The array has failed: from now on no write and no flush succeeds.
    pub(super) fn fail(&self, failure: Failure) {
        let mut rare = self.rare();
        if let Failure::Write { slot, .. } | Failure::Flush { slot, .. } = failure
            && let Some(counters) = self.members.get(slot)
        {
            counters.suspect.store(true, Ordering::SeqCst);
            self.has_suspects.store(true, Ordering::SeqCst);
        }
        self.state.store(WriteState::Failed as u8, Ordering::SeqCst);
        rare.failure.get_or_insert(failure);
        Self::wake_all(rare);
    }

    /// Whether any member failed a write or a flush, and may lack what it acknowledged.
    pub(super) fn has_suspects(&self) -> bool {
        self.has_suspects.load(Ordering::Acquire)
    }

    /// Whether the member in `slot` did.
    pub(super) fn is_suspect(&self, slot: usize) -> bool {
        self.members.get(slot).is_some_and(|member| member.suspect.load(Ordering::Acquire))
    }

    /// To be called by whoever else flushes a member (the writer of its superblock) and is told
    /// that the flush failed: what was written before may be lost, and the kernel says so once
    /// only. No later flush of this member is believed; the array has failed.
    pub fn fail_flush(&self, slot: usize, error: DriveError) {
        let (Some(flush), Some(counters)) = (self.flushes.get(slot), self.members.get(slot)) else {
            return;
        };
        counters.flushes.fetch_add(1, Ordering::Relaxed);
        flush.fail(error);
        self.fail(Failure::Flush { slot, error });
    }

    fn change_state(&self, from: WriteState, to: WriteState) -> bool {
        self.state
            .compare_exchange(from as u8, to as u8, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// The right to write, once the array is active.
    pub(super) async fn begin_write(&self, core: usize) -> Result<WritePermit<'_>, ArrayError> {
        loop {
            let counters = &self.cores[core];
            counters.writes_begun.fetch_add(1, Ordering::SeqCst);
            let permit = WritePermit { counters };
            if self.write_state() == WriteState::Active {
                return Ok(permit);
            }
            drop(permit);
            self.wait_until_active().await?;
        }
    }

    async fn wait_until_active(&self) -> Result<(), ArrayError> {
        // In one step, so that a failure counted later is that of this or a later request.
        let (failures, is_mine) = {
            let rare = self.rare();
            let is_mine = self.change_state(WriteState::Clean, WriteState::Requested);
            (rare.failed_activations, is_mine)
        };
        if is_mine {
            self.keeper.request_active();
        }
        self.wait_for(|rare| match self.write_state() {
            _ if rare.failed_activations > failures => {
                Some(Err(ArrayError::WriteFailed(WriteFailure::NotActivated)))
            }
            WriteState::Active => Some(Ok(())),
            WriteState::Failed => Some(Err(ArrayError::WriteFailed(WriteFailure::ArrayFailed))),
            WriteState::Stopped => Some(Err(ArrayError::NotReady)),
            // Clean: an activation failed before this one began to wait; ask again.
            WriteState::Clean => Some(Ok(())),
            WriteState::Requested => None,
        })
        .await
    }
}

/// Agreement of the copies.
impl Shared {
    /// Below this offset all copies agree; [`IN_SYNC`] if they do everywhere.
    pub fn resync_position_bytes(&self) -> u64 {
        self.resync_position.load(Ordering::Acquire)
    }

    /// Whether all copies agree everywhere, or the level has only one.
    pub fn is_in_sync(&self) -> bool {
        self.resync_position_bytes() == IN_SYNC
    }

    /// Something at or above `offset_bytes` has left copies unequal: from there on the first copy
    /// alone counts until a resync has passed again.
    pub(super) fn require_resync(&self, offset_bytes: u64) {
        if self.geometry.copies() == 1 {
            return;
        }
        let mut rare = self.rare();
        rare.resync_required_from = rare.resync_required_from.min(offset_bytes);
        self.resync_position.fetch_min(offset_bytes, Ordering::AcqRel);
        Self::wake_all(rare);
    }

    /// Begins a step of the resync at the present position, and returns it.
    pub(super) fn begin_resync_step(&self) -> u64 {
        self.rare().resync_required_from = IN_SYNC;
        self.resync_position_bytes()
    }

    /// Ends the step that began at `from`: everything up to `to` agrees now, unless a write has
    /// left copies unequal meanwhile; then the position stays (or has fallen), and the answer is
    /// false.
    pub(super) fn end_resync_step(&self, from: u64, to: u64) -> bool {
        let rare = self.rare();
        let undisturbed = rare.resync_required_from >= to;
        if undisturbed {
            let exchanged = self.resync_position.compare_exchange(
                from,
                to,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            debug_assert!(exchanged.is_ok(), "the position moved without a reason");
            Self::wake_all(rare);
        }
        undisturbed
    }

    /// Waits until a resync is needed: true; or until it has to stop: false.
    pub(super) async fn resync_needed(&self) -> bool {
        self.wait_for(|rare| match () {
            () if rare.resync_stopped || rare.failure.is_some() => Some(false),
            () if !self.is_in_sync() => Some(true),
            () => None,
        })
        .await
    }

    /// Waits until all copies agree (true), or the array has failed or the resync was stopped.
    pub async fn wait_in_sync(&self) -> bool {
        self.wait_for(|rare| match () {
            () if self.is_in_sync() => Some(true),
            () if rare.resync_stopped || rare.failure.is_some() => Some(false),
            () => None,
        })
        .await
    }

    /// Lets the resync end at its next step, with a last checkpoint.
    pub fn stop_resync(&self) {
        let mut rare = self.rare();
        rare.resync_stopped = true;
        Self::wake_all(rare);
    }

    /// Waits until the resync has to stop.
    pub(super) async fn resync_stop(&self) {
        self.wait_for(|rare| (rare.resync_stopped || rare.failure.is_some()).then_some(())).await;
    }

    pub(super) fn must_resync_stop(&self) -> bool {
        let rare = self.rare();
        rare.resync_stopped || rare.failure.is_some()
    }

    /// Sets how fast a resync goes: at least `min_bytes_per_second` while the host is busy, and at
    /// most `max_bytes_per_second` at any time (none: as fast as it can).
    pub fn set_resync_rates(&self, min_bytes_per_second: u64, max_bytes_per_second: Option<u64>) {
        self.resync_min_rate.store(min_bytes_per_second.max(1), Ordering::Relaxed);
        self.resync_max_rate.store(max_bytes_per_second.unwrap_or(0), Ordering::Relaxed);
    }

    /// Sets how much is synced between two checkpoints.
    pub fn set_checkpoint_interval(&self, bytes: u64) {
        self.checkpoint_interval.store(bytes.max(1), Ordering::Relaxed);
    }

    /// How far the resync is, if one is under way. `now` is on the clock that the resync was given.
    pub fn resync_progress(&self, now: Duration) -> Option<ResyncProgress> {
        let position = self.resync_position_bytes();
        if position == IN_SYNC {
            return None;
        }
        Some(self.rare().progress.report(now, position, self.geometry.capacity_bytes()))
    }

    pub(super) fn resync_started(&self, now: Duration) {
        self.rare().progress.start(now, self.resync_position_bytes());
    }

    pub(super) fn resync_did(&self, now: Duration, bytes: u64) {
        self.rare().progress.add(now, bytes);
    }

    pub(super) fn resync_stalls(&self, stall: Stall) {
        self.rare().progress.stall(stall);
    }

    /// Resyncs that have been completed since the start.
    pub fn resyncs_completed(&self) -> u64 {
        self.rare().progress.completed()
    }

    pub(super) fn resync_completed(&self) {
        self.rare().progress.complete();
    }
}

/// Counters.
impl Shared {
    /// What happened to the member in `slot`; nothing for a slot that does not exist.
    pub fn member_errors(&self, slot: usize) -> MemberErrors {
        self.members.get(slot).map_or_else(MemberErrors::default, |counters| MemberErrors {
            reads: counters.reads.load(Ordering::Relaxed),
            writes: counters.writes.load(Ordering::Relaxed),
            flushes: counters.flushes.load(Ordering::Relaxed),
            no_space: counters.no_space.load(Ordering::Relaxed),
        })
    }

    pub(super) fn member_counters(&self, slot: usize) -> &MemberCounters {
        &self.members[slot]
    }

    pub(super) fn member_flush(&self, slot: usize) -> &SharedFlush {
        &self.flushes[slot]
    }

    /// Reads that another copy answered after a read error.
    pub fn reads_from_other_copies(&self) -> u64 {
        self.reads_from_other_copies.load(Ordering::Relaxed)
    }

    pub(super) fn count_read_from_other_copy(&self) {
        self.reads_from_other_copies.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_read(&self, core: usize) {
        // Only this core writes it, so it need not be one atomic step.
        let reads = &self.cores[core].reads;
        reads.store(reads.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Reads and writes of hosts that have begun, on all cores.
    pub fn host_operations(&self) -> u64 {
        let count = |core: &CoreCounters| {
            core.reads.load(Ordering::Relaxed) + core.writes_begun.load(Ordering::Relaxed)
        };
        self.cores.iter().map(count).sum()
    }
}
