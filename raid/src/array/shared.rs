//! What all cores and the control plane know of one array: its shape, whether it may be written,
//! and what is counted. The rest of it: the members' states and what has to be recorded of them
//! (`membership`), and how far copies agree (`agreement`).
//!
//! **Writing.** Before the first write after a clean stop the members' superblocks must say
//! "active"; the control plane does that when the [`Keeper`] is woken. The states:
//! ```text
//!   Clean ──first write──▶ Requested ──recorded──▶ Active
//!     ▲                        │                      │
//!     ├─────record_failed──────┘                      │
//!     └──────────────────────try_clean────────────────┘
//!   any ──more members lost than the level tolerates──▶ Failed
//!   any but Failed ──stop_writes──▶ Stopped
//! ```
//! A write counts itself on its core *before* it looks at the state, and the one who stops writes
//! changes the state *before* it looks at the counts, all sequentially consistent: so when
//! [`Shared::writes_in_flight`] is 0 after [`Shared::stop_writes`], no write is under way and none
//! will be, and the superblocks may be marked clean after a flush. [`Shared::try_clean`] does the
//! same and goes back if a write is under way.
//!
//! Nothing here does I/O or knows the time. Locks are held for a few instructions and only where
//! something rare happens; requests in the normal state touch atomics of their own core only, and
//! read one line that all cores share and hardly anybody writes.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::agreement::{self, IN_SYNC};
use super::bad_blocks::BadRange;
use super::error::{ArrayError, WriteFailure};
use super::flush::SharedFlush;
use super::intent::{Intent, IntentLayout};
use super::membership::{Keeper, MemberState, Membership};
use super::recovery::{Control, Limits};
use super::stripe::{StripeCounters, StripeStatistics};
use crate::geometry::Geometry;
use crate::mutation::mutation;

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
    /// Below this all copies agree, or parity can be trusted; [`IN_SYNC`] if everywhere. Ignored
    /// for levels without redundancy.
    pub resync_position_bytes: u64,
    /// The members' states by slot, as the superblocks say; nothing: all are in sync.
    pub members: Vec<MemberState>,
    /// Where the rebuild of the members that are being rebuilt goes on.
    pub rebuild_from: Option<u64>,
    /// The members' bad blocks by slot; nothing: none has any.
    pub bad_blocks: Vec<Vec<BadRange>>,
    /// Read errors of a member within an hour at which it is failed; at least 1.
    pub read_error_limit: u32,
    /// Entries that a member's list of bad blocks may have, one for each 256 KiB of a range.
    pub bad_block_limit: u32,
    /// Where the write intent is kept.
    pub intent: IntentLayout,
    /// Makes state durable.
    pub keeper: Arc<dyn Keeper>,
}

impl Settings {
    /// Read errors of a member within an hour at which it is failed, unless said otherwise.
    pub const READ_ERROR_LIMIT: u32 = 20;

    /// Entries that a member's list of bad blocks may have, unless said otherwise: as many as md's
    /// log of 4 KiB has room for, but for a reserve.
    pub const BAD_BLOCK_LIMIT: u32 = super::bad_blocks::MAX_ENTRIES;

    /// The settings of an array on one core that is active, in sync and complete, which nobody
    /// keeps the state of, and whose data areas begin where the drives do.
    pub fn new(geometry: Geometry) -> Self {
        Self {
            service: 0,
            uuid: [0; 16],
            geometry,
            data_offsets_bytes: vec![0; geometry.members()],
            cores: 1,
            active: true,
            resync_position_bytes: IN_SYNC,
            members: Vec::new(),
            rebuild_from: None,
            bad_blocks: Vec::new(),
            read_error_limit: Self::READ_ERROR_LIMIT,
            bad_block_limit: Self::BAD_BLOCK_LIMIT,
            intent: IntentLayout::NONE,
            keeper: Arc::new(super::membership::NoKeeper),
        }
    }
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
    /// More members are lost than the level tolerates: it takes no more writes.
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
}

/// What a core counts; written by that core only, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct CoreCounters {
    reads: AtomicU64,
    writes_begun: AtomicU64,
    writes_ended: AtomicU64,
    stripes: StripeCounters,
}

/// What every request looks at; on cache lines of its own, because it hardly ever changes.
#[repr(align(128))]
pub(super) struct Hot {
    /// Counts the changes of the member map, of bad blocks, and falls of the resync position.
    pub(super) epoch: AtomicU64,
    /// The newest version that a write depends on, see [`Shared::settled`].
    pub(super) map_version: AtomicU64,
    /// The newest version that is recorded.
    pub(super) recorded: AtomicU64,
    pub(super) resync_position: AtomicU64,
    /// Below this, members that are being rebuilt hold what they should.
    pub(super) rebuild_position: AtomicU64,
    /// How often the array has worked again after it had failed.
    pub(super) mends: AtomicU64,
    pub(super) state: AtomicU8,
}

/// See the file's head. One per array, behind an `Arc`.
pub struct Shared {
    service: u16,
    uuid: [u8; 16],
    pub(super) geometry: Geometry,
    data_offsets_bytes: Box<[u64]>,
    pub(super) keeper: Arc<dyn Keeper>,
    pub(super) hot: Hot,
    pub(super) intent: Intent,
    cores: Box<[CoreCounters]>,
    members: Box<[MemberCounters]>,
    /// By slot; a new one with every new drive.
    flushes: Box<[Mutex<Arc<SharedFlush>>]>,
    /// Reads that another copy answered after a read error.
    reads_from_other_copies: AtomicU64,
    /// How often a drive came back whose cache may be lost.
    pub(super) lost_caches: AtomicU64,
    pub(super) read_error_limit: u32,
    pub(super) bad_block_limit: u32,
    pub(super) limits: Limits,
    rare: Mutex<Rare>,
}

/// State that changes rarely.
pub(super) struct Rare {
    pub(super) membership: Membership,
    pub(super) recovery: Control,
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
        let membership = Membership::new(&settings);
        let Settings { geometry, active, .. } = settings;
        let position = settings.resync_position_bytes;
        let in_sync = !agreement::can_differ(&geometry) || position >= geometry.capacity_bytes();
        let state = match active {
            _ if membership.has_failed() => WriteState::Failed,
            true => WriteState::Active,
            false => WriteState::Clean,
        };
        let flush = |_| Mutex::new(Arc::new(SharedFlush::new()));
        let is_degraded = membership.is_degraded();
        let intent = Intent::new(&geometry, &settings.intent, is_degraded);
        Arc::new(Self {
            service: settings.service,
            uuid: settings.uuid,
            geometry,
            data_offsets_bytes: settings.data_offsets_bytes.into_boxed_slice(),
            keeper: settings.keeper,
            hot: Hot {
                epoch: AtomicU64::new(1),
                map_version: AtomicU64::new(0),
                recorded: AtomicU64::new(0),
                resync_position: AtomicU64::new(if in_sync { IN_SYNC } else { position }),
                rebuild_position: AtomicU64::new(settings.rebuild_from.unwrap_or(0)),
                mends: AtomicU64::new(0),
                state: AtomicU8::new(state as u8),
            },
            intent,
            cores: (0..settings.cores).map(|_| CoreCounters::default()).collect(),
            members: (0..geometry.members()).map(|_| MemberCounters::default()).collect(),
            flushes: (0..geometry.members()).map(flush).collect(),
            reads_from_other_copies: AtomicU64::new(0),
            lost_caches: AtomicU64::new(0),
            read_error_limit: settings.read_error_limit.max(1),
            bad_block_limit: settings.bad_block_limit,
            limits: Limits::default(),
            rare: Mutex::new(Rare { membership, recovery: Control::default(), wakers: Vec::new() }),
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

    pub(super) fn rare(&self) -> MutexGuard<'_, Rare> {
        // Every change under this lock is complete at any point where it could panic.
        self.rare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake_all(mut rare: MutexGuard<'_, Rare>) {
        let wakers = std::mem::take(&mut rare.wakers);
        drop(rare);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until `check` has an answer; it is asked again whenever something changed.
    pub(super) async fn wait_for<T>(&self, mut check: impl FnMut(&Rare) -> Option<T>) -> T {
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
        WriteState::from_raw(self.hot.state.load(Ordering::SeqCst))
    }

    /// Takes no more writes: they get [`ArrayError::NotReady`]. When [`Self::writes_in_flight`]
    /// is 0 afterwards, [`Self::try_clean`] has the superblocks marked clean, unless the array
    /// failed.
    pub fn stop_writes(&self) {
        let mut rare = self.rare();
        for from in [WriteState::Clean, WriteState::Requested, WriteState::Active] {
            self.change_state(from, WriteState::Stopped);
        }
        rare.membership.stop();
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

    /// Writes, on all cores, that have begun since the start, those of background work included:
    /// while this stays the same nothing is written.
    pub fn writes_begun(&self) -> u64 {
        self.cores.iter().map(|core| core.writes_begun.load(Ordering::Relaxed)).sum()
    }

    /// Has the superblocks marked clean if nothing is being written: from a pause (safe mode), or
    /// for good after [`Self::stop_writes`]. False if a write is under way, the array has failed,
    /// or it is clean already. The keeper calls this; whoever records the result flushes all
    /// members first.
    pub fn try_clean(&self) -> bool {
        // Writes that find the array clean wait for this lock before they do anything.
        let mut rare = self.rare();
        if rare.membership.has_parked() {
            // What a failure has cut short is to the next start what a crash has.
            return false;
        }
        let state = self.write_state();
        let may = match state {
            WriteState::Active => self.change_state(WriteState::Active, WriteState::Clean),
            WriteState::Stopped => rare.membership.is_wanted_active(),
            _ => false,
        };
        if may && self.writes_in_flight() > 0 && !mutation!("clean-beside-write") {
            if state == WriteState::Active {
                self.change_state(WriteState::Clean, WriteState::Active);
            }
            return false;
        }
        if may {
            let position = self.resync_position_bytes();
            rare.membership.want_clean(position);
            self.want(rare);
        }
        may
    }

    pub(super) fn change_state(&self, from: WriteState, to: WriteState) -> bool {
        let state = &self.hot.state;
        state.compare_exchange(from as u8, to as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The right to write, once the array is active.
    pub(super) async fn begin_write(&self, core: usize) -> Result<WritePermit<'_>, ArrayError> {
        loop {
            let permit = self.count_write(core);
            if self.write_state() == WriteState::Active || mutation!("write-before-active") {
                return Ok(permit);
            }
            drop(permit);
            self.wait_until_active().await?;
        }
    }

    /// The right to make copies agree above the resync position, for which the superblocks need
    /// not say "active": nothing is believed there after a crash either. None if the array takes
    /// no more writes.
    pub(super) fn begin_sync(&self, core: usize) -> Option<WritePermit<'_>> {
        let permit = self.count_write(core);
        let may = !matches!(self.write_state(), WriteState::Failed | WriteState::Stopped);
        may.then_some(permit)
    }

    pub(super) fn count_write(&self, core: usize) -> WritePermit<'_> {
        let counters = &self.cores[core];
        counters.writes_begun.fetch_add(1, Ordering::SeqCst);
        WritePermit { counters }
    }

    async fn wait_until_active(&self) -> Result<(), ArrayError> {
        let failures = {
            let mut rare = self.rare();
            let failures = rare.membership.failed_records();
            if self.change_state(WriteState::Clean, WriteState::Requested) {
                rare.membership.want_active();
                self.want(rare);
            }
            failures
        };
        self.wait_for(|rare| match self.write_state() {
            WriteState::Active => Some(Ok(())),
            WriteState::Failed => Some(Err(ArrayError::WriteFailed(WriteFailure::ArrayFailed))),
            WriteState::Stopped => Some(Err(ArrayError::NotReady)),
            _ if rare.membership.failed_records() > failures => {
                Some(Err(rare.membership.unrecorded()))
            }
            // Clean again: a pause or a failed record came before this one began to wait.
            WriteState::Clean => Some(Ok(())),
            WriteState::Requested => None,
        })
        .await
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

    /// The sequence of flushes of the drive that is in the slot now.
    pub(super) fn member_flush(&self, slot: usize) -> Arc<SharedFlush> {
        Arc::clone(&self.flushes[slot].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Another drive comes into the slot: what became of the old one's flushes and errors is not
    /// the new one's.
    pub(super) fn forget_drive(&self, slot: usize) {
        *self.flushes[slot].lock().unwrap_or_else(PoisonError::into_inner) =
            Arc::new(SharedFlush::new());
        let MemberCounters { reads, writes, flushes, no_space } = &self.members[slot];
        for counter in [reads, writes, flushes, no_space] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Reads that another copy answered after a read error.
    pub fn reads_from_other_copies(&self) -> u64 {
        self.reads_from_other_copies.load(Ordering::Relaxed)
    }

    pub(super) fn count_read_from_other_copy(&self) {
        self.reads_from_other_copies.fetch_add(1, Ordering::Relaxed);
    }

    /// What has been done to the rows of a parity level, on all cores.
    pub fn stripe_statistics(&self) -> StripeStatistics {
        StripeStatistics::of(self.cores.iter().map(|core| &core.stripes))
    }

    pub(super) fn stripe_counters(&self, core: usize) -> &StripeCounters {
        &self.cores[core].stripes
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
