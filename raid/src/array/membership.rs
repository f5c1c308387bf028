//! The members' states, and what has to be made durable of them.
//!
//! **The map.** [`Membership`] is the authority on each slot's [`MemberState`] and bad blocks.
//! Every change counts the *epoch* up, one word that all cores read; each core keeps a copy of the
//! map ([`MapCopy`]) and takes a new one when the epoch differs. The epoch has changed before any
//! write that depends on the change is acknowledged, and a read compares it again when it
//! completes: so a read that used a member which has missed an acknowledged write always notices,
//! and no core need confirm anything.
//!
//! **Recording.** What the superblocks shall say is a [`Wanted`], numbered by its *version*. The
//! [`Keeper`] is woken when it changes, writes one version at a time to all members that are in it,
//! and says [`Shared::recorded`]. Whoever depends on something being durable waits until a version
//! that has it is recorded; writes do so in [`Shared::settled`], which costs two loads when nothing
//! is outstanding.
//!
//! **Failures.** A member that fails is out at once, and the host's commands go on as soon as that
//! is durable. One that the level cannot lose is not recorded as failed, since nothing is won by
//! it: the array *fails* instead. It takes no more writes then, and reads go on where they can.

mod blocks;
mod recording;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::bad_blocks::{BadBlocks, BadRange};
use super::error::ArrayError;
use super::shared::{Rare, Settings, Shared, WriteState};
use super::slots::SlotSet;
use crate::drive::DriveError;
use crate::geometry::Geometry;
use crate::mutation::mutation;

/// Makes an array's state durable; implemented by the control plane.
pub trait Keeper: Send + Sync {
    /// [`Shared::wanted`] differs from what is recorded. Called from data cores, also with nothing
    /// new; returns at once.
    fn wake(&self);

    /// Whether anything outlives the process. If not, all that is wanted counts as recorded.
    fn records(&self) -> bool {
        true
    }
}

/// The keeper of arrays without superblocks (memory members): nothing outlives the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoKeeper;

impl Keeper for NoKeeper {
    fn wake(&self) {}

    fn records(&self) -> bool {
        false
    }
}

/// What a slot's member is to the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// It holds all that it should.
    InSync,
    /// It gets all writes, but holds what it should only below the rebuild position.
    Rebuilding,
    /// It has failed; its drive is not used any more.
    Failed,
    /// There is no member.
    Missing,
}

/// Why a member is failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberFault {
    /// It did not write.
    #[error("it did not write: {0}")]
    Write(DriveError),
    /// It did not flush: what it had acknowledged may be lost.
    #[error("it did not flush, written data may be lost: {0}")]
    Flush(DriveError),
    /// It did not answer a read in time, or is gone.
    #[error("it cannot be reached: {0}")]
    Unreachable(DriveError),
    /// Its superblock could not be written.
    #[error("its superblock could not be written: {0}")]
    Superblock(DriveError),
    /// It had too many read errors within an hour.
    #[error("it had {0} read errors within an hour")]
    ReadErrors(u32),
    /// Its list of bad blocks is full.
    #[error("its list of bad blocks is full")]
    BadBlocksFull,
    /// The operator said so.
    #[error("it was failed by the operator")]
    Operator,
}

impl MemberFault {
    /// Whether the member may lack writes that it had acknowledged. One that was only pulled may so,
    /// too, but nothing of it can be read before it is back, and then a flush tells of it
    /// ([`Shared::mend`]).
    fn loses_writes(self) -> bool {
        matches!(self, Self::Flush(_) | Self::Superblock(_)) && !self.is_gone()
    }

    /// Whether the drive was not there any more.
    pub fn is_gone(self) -> bool {
        matches!(
            self,
            Self::Write(DriveError::Gone)
                | Self::Flush(DriveError::Gone)
                | Self::Unreachable(DriveError::Gone)
                | Self::Superblock(DriveError::Gone)
        )
    }

    /// Whether an array that cannot do without the member has failed with it. Otherwise it stays,
    /// for want of a better one.
    fn is_fatal(self) -> bool {
        !matches!(self, Self::ReadErrors(_) | Self::Operator)
    }
}

/// What made the array fail: the first one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A member failed that the level could not lose.
    #[error("member {slot} failed, without which the data is incomplete: {fault}")]
    Member {
        /// Its slot.
        slot: usize,
        /// What was wrong with it.
        fault: MemberFault,
    },
    /// Too few members were there from the start.
    #[error("too few members are there")]
    Incomplete,
    /// A request was dropped while its writes or its flush were under way, so their end is unknown.
    #[error("a write or flush was abandoned while under way")]
    Abandoned,
}

/// What the superblocks shall say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Counts up with every change.
    pub version: u64,
    /// Whether data may be written. Before this goes from true to false in the superblocks, all
    /// members must be flushed.
    pub active: bool,
    /// The members' states by slot.
    pub members: Vec<MemberState>,
    /// Where a rebuild goes on after a restart, if a member is being rebuilt. All members have been
    /// flushed since it got there.
    pub rebuild_from: Option<u64>,
    /// Below this, copies agree or parity is right; [`IN_SYNC`](super::IN_SYNC) if everywhere. All
    /// members have been flushed since it got there. After an unclean stop it counts for nothing
    /// unless the write intent says what was being written.
    pub resync_from: u64,
    /// The members' bad blocks by slot.
    pub bad_blocks: Vec<Vec<BadRange>>,
    /// By slot: a number for the drive in it, another one for every new drive.
    pub devices: Vec<u64>,
}

/// What commands do that cannot be done because the array has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    /// They fail.
    Off,
    /// They wait.
    Waiting,
    /// They have waited long enough, and may be repeated by the host.
    Over,
}

/// Whether something has to be done again when drives are back, because members did not do it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Parking {
    /// No: the array has not failed.
    NotNeeded,
    /// Yes, and it is counted: the array does not work again before that.
    Parked,
    /// The array has failed for good.
    InVain,
}

/// A core's copy of the map.
#[derive(Debug, Default)]
pub(super) struct MapCopy {
    pub(super) epoch: u64,
    pub(super) in_sync: SlotSet,
    pub(super) rebuilding: SlotSet,
    /// They may lack writes, but the level cannot lose them: nothing is read from them.
    pub(super) suspect: SlotSet,
    /// Those that have bad blocks.
    pub(super) with_bad_blocks: SlotSet,
    pub(super) bad_blocks: Box<[BadBlocks]>,
}

/// The members' states; see the file's head.
pub(super) struct Membership {
    members: Vec<MemberState>,
    faults: Vec<Option<MemberFault>>,
    bad_blocks: Vec<BadBlocks>,
    devices: Vec<u64>,
    next_device: u64,
    suspect: SlotSet,
    /// Those without which the array has failed.
    needed: SlotSet,
    /// The array has failed in a way that no drive's return mends.
    is_final: bool,
    /// What has to be done again before the array works again.
    parked: u64,
    /// All drives are back, and that is being done.
    is_mending: bool,
    is_stopped: bool,
    /// When each member had its latest read errors.
    read_errors: Vec<VecDeque<Duration>>,
    failure: Option<Failure>,
    hold: Hold,
    map: Arc<MapCopy>,
    version: u64,
    active: bool,
    /// The version in which "active" was wanted.
    active_since: u64,
    /// The version in which "clean" was wanted.
    clean_since: u64,
    resync_from: u64,
    rebuild_from: u64,
    /// How often a version could not be recorded for lack of space, and below which member.
    failed_records: u64,
    without_space: usize,
}

impl Membership {
    pub(super) fn new(settings: &Settings) -> Self {
        let count = settings.geometry.members();
        let mut members = settings.members.clone();
        members.resize(
            count,
            if members.is_empty() { MemberState::InSync } else { MemberState::Missing },
        );
        let mut bad_blocks: Vec<_> =
            settings.bad_blocks.iter().map(|ranges| BadBlocks::new(ranges)).collect();
        bad_blocks.resize_with(count, BadBlocks::default);
        let mut membership = Self {
            members,
            faults: vec![None; count],
            bad_blocks,
            devices: (0..count as u64).collect(),
            next_device: count as u64,
            suspect: SlotSet::EMPTY,
            needed: SlotSet::EMPTY,
            is_final: false,
            parked: 0,
            is_mending: false,
            is_stopped: false,
            read_errors: vec![VecDeque::new(); count],
            failure: None,
            hold: Hold::Off,
            map: Arc::default(),
            version: 0,
            active: settings.active,
            active_since: 0,
            clean_since: 0,
            resync_from: settings.resync_position_bytes,
            rebuild_from: settings.rebuild_from.unwrap_or(0),
            failed_records: 0,
            without_space: 0,
        };
        membership.map = membership.copy_map(1);
        if !is_complete(&settings.geometry, membership.map.in_sync) {
            membership.failure = Some(Failure::Incomplete);
            membership.is_final = true;
        }
        membership
    }

    fn copy_map(&self, epoch: u64) -> Arc<MapCopy> {
        let with = |state| {
            let all = self.members.iter().enumerate();
            all.filter(|&(_, &other)| other == state).map(|(slot, _)| slot).collect()
        };
        let bad = self.bad_blocks.iter().enumerate().filter(|(_, list)| !list.is_empty());
        Arc::new(MapCopy {
            epoch,
            in_sync: with(MemberState::InSync),
            rebuilding: with(MemberState::Rebuilding),
            suspect: self.suspect,
            with_bad_blocks: bad.map(|(slot, _)| slot).collect(),
            bad_blocks: self.bad_blocks.clone().into_boxed_slice(),
        })
    }

    pub(super) fn map_now(&self) -> &MapCopy {
        &self.map
    }

    /// Members that were being rebuilt hold all that they should. False if there are none.
    pub(super) fn rebuilt(&mut self) -> bool {
        let rebuilding = self.map.rebuilding;
        for slot in rebuilding.iter() {
            self.members[slot] = MemberState::InSync;
        }
        !rebuilding.is_empty()
    }

    pub(super) fn set_rebuild_from(&mut self, position_bytes: u64) {
        self.rebuild_from = position_bytes;
    }

    pub(super) fn is_degraded(&self) -> bool {
        self.map.in_sync.len() < self.members.len()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    pub(super) fn is_wanted_active(&self) -> bool {
        self.active
    }

    pub(super) fn want_active(&mut self) {
        self.active = true;
        self.active_since = self.version + 1;
    }

    pub(super) fn has_parked(&self) -> bool {
        self.parked > 0
    }

    pub(super) fn want_clean(&mut self, resync_position: u64) {
        self.active = false;
        self.clean_since = self.version + 1;
        self.resync_from = resync_position;
    }

    pub(super) fn failed_records(&self) -> u64 {
        self.failed_records
    }

    /// Why the newest version could not be recorded.
    pub(super) fn unrecorded(&self) -> ArrayError {
        ArrayError::NoSpace { slot: self.without_space }
    }

    /// The array is being stopped: nobody waits for it any more.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        if self.hold == Hold::Waiting {
            self.hold = Hold::Over;
        }
    }

    fn wanted(&self) -> Wanted {
        let is_rebuilding = self.members.contains(&MemberState::Rebuilding);
        Wanted {
            version: self.version,
            active: self.active,
            members: self.members.clone(),
            rebuild_from: is_rebuilding.then_some(self.rebuild_from),
            resync_from: self.resync_from,
            bad_blocks: if mutation!("bad-blocks-in-memory-only") {
                vec![Vec::new(); self.bad_blocks.len()]
            } else {
                self.bad_blocks.iter().map(|list| list.ranges().to_vec()).collect()
            },
            devices: self.devices.clone(),
        }
    }
}

/// Whether the data is complete on these members alone.
fn is_complete(geometry: &Geometry, in_sync: SlotSet) -> bool {
    geometry.survives(|slot| !in_sync.contains(slot))
}

/// The members' states.
impl Shared {
    /// The members' states by slot.
    pub fn member_states(&self) -> Vec<MemberState> {
        self.rare().membership.members.clone()
    }

    /// Why the member in `slot` failed, if it did.
    pub fn member_fault(&self, slot: usize) -> Option<MemberFault> {
        self.rare().membership.faults.get(slot).copied().flatten()
    }

    /// Why the array failed, if it did.
    pub fn failure(&self) -> Option<Failure> {
        self.rare().membership.failure
    }

    /// Counts the changes of the members' states, of bad blocks, and falls of the resync position.
    pub fn epoch(&self) -> u64 {
        self.hot.epoch.load(Ordering::Acquire)
    }

    pub(super) fn map(&self) -> Arc<MapCopy> {
        Arc::clone(&self.rare().membership.map)
    }

    /// The member cannot be used any more. If the level can do without it, it is out from now on
    /// and commands go on. Otherwise the array has failed, unless the member can be used after all
    /// (it had too many read errors; the operator wants it out). Says whether it is out; does
    /// nothing if it was already.
    pub fn fail_member(&self, slot: usize, fault: MemberFault) -> bool {
        let mut rare = self.rare();
        let membership = &mut rare.membership;
        let state = membership.members.get(slot).copied();
        let can_lose = match state {
            Some(MemberState::InSync) => {
                let mut rest = membership.map.in_sync.without(membership.suspect);
                rest.remove(slot);
                is_complete(&self.geometry, rest)
            }
            Some(MemberState::Rebuilding) => true,
            Some(_) => return true,
            None => return false,
        };
        if !can_lose {
            // What a drive that has gone is asked later says nothing of it any more.
            let has_gone = membership.needed.contains(slot)
                && membership.faults[slot].is_some_and(MemberFault::is_gone);
            if fault.is_fatal() && !has_gone {
                if fault.loses_writes() {
                    membership.suspect.insert(slot);
                }
                membership.needed.insert(slot);
                membership.faults[slot] = Some(fault);
                self.fail_locked(rare, Failure::Member { slot, fault });
            }
            return false;
        }
        membership.members[slot] = MemberState::Failed;
        membership.faults[slot] = Some(fault);
        self.map_changed(rare);
        true
    }

    /// The array has failed for good: from now on no write and no flush succeeds.
    pub(super) fn fail(&self, failure: Failure) {
        let mut rare = self.rare();
        rare.membership.is_final = true;
        self.fail_locked(rare, failure);
    }

    /// The drive of a member without which the array has failed is back in its slot, on every
    /// core, and all operations on the old handles have ended. When the last of them is back the
    /// array works again, and commands that were held are tried again; an array with parity first
    /// repeats what the failure has cut short ([`Array::resume`](super::Array::resume)).
    /// `cache_was_lost`: the drive has a volatile cache and may have been without power; then one
    /// flush on each core fails, to say so.
    ///
    /// False, and nothing changes, if [`Self::can_mend`] says no.
    pub fn mend(&self, slot: usize, cache_was_lost: bool) -> bool {
        let mut rare = self.rare();
        if !self.can_be_mended(&rare.membership, slot, cache_was_lost) {
            return false;
        }
        let membership = &mut rare.membership;
        self.forget_drive(slot);
        membership.needed.remove(slot);
        membership.faults[slot] = None;
        if cache_was_lost {
            self.lost_caches.fetch_add(1, Ordering::SeqCst);
        }
        if membership.needed.is_empty() {
            membership.is_mending = membership.parked > 0;
            if !membership.is_mending {
                self.works_again(membership);
            }
        }
        self.refresh_map(membership);
        // What was wanted while it was away could not be recorded.
        if membership.version > self.recorded_version() && self.keeper.records() {
            self.keeper.wake();
        }
        Self::wake_all(rare);
        true
    }

    /// Whether the array can go on with the drive of a member that it needs; to be asked before the
    /// drive is put into its slot, since what is in a slot is read.
    ///
    /// No, if the member has lost what it had acknowledged for sure. No, if a level with parity has
    /// been written and the drive's cache is lost: whatever was written since its last flush may
    /// be missing from it, by blocks, and parity that has to stand in for other members fits
    /// nothing there. That is known only to the log on the drives, which the next assembly replays.
    pub fn can_mend(&self, slot: usize, cache_was_lost: bool) -> bool {
        self.can_be_mended(&self.rare().membership, slot, cache_was_lost)
    }

    fn can_be_mended(&self, membership: &Membership, slot: usize, cache_was_lost: bool) -> bool {
        // All members were flushed before this was recorded, and nothing is written after.
        let is_clean = self.recorded_version() >= membership.clean_since
            && !(membership.active && self.recorded_version() >= membership.active_since)
            && membership.parked == 0
            && membership.resync_from == super::IN_SYNC
            && !self.intent.has_dirty();
        let is_harmless = !cache_was_lost || self.geometry.parities() == 0 || is_clean;
        membership.needed.contains(slot)
            && !membership.suspect.contains(slot)
            && !membership.is_final
            && is_harmless
    }

    /// All that was missing is there.
    fn works_again(&self, membership: &mut Membership) {
        membership.failure = None;
        membership.is_mending = false;
        self.hot.mends.fetch_add(1, Ordering::SeqCst);
        let is_active = membership.active && self.recorded_version() >= membership.active_since;
        let state = match is_active {
            _ if membership.is_stopped => WriteState::Stopped,
            true => WriteState::Active,
            false => WriteState::Clean,
        };
        self.hot.state.store(state as u8, Ordering::SeqCst);
    }

    /// How often the array has worked again after it had failed.
    pub(super) fn mends(&self) -> u64 {
        self.hot.mends.load(Ordering::SeqCst)
    }

    /// Something did not reach all members in use. Says whether it has to be kept and done again when
    /// their drives are back; it is counted then, until [`Self::unpark`]. Whatever a drive says that
    /// is being pulled: so it does not matter what this one said.
    pub(super) fn park(&self) -> Parking {
        let mut rare = self.rare();
        let membership = &mut rare.membership;
        if membership.failure.is_none() {
            Parking::NotNeeded
        } else if membership.is_final || membership.is_stopped {
            Parking::InVain
        } else {
            membership.parked += 1;
            Parking::Parked
        }
    }

    /// So many of what was parked has been done.
    pub(super) fn unpark(&self, jobs: u64) {
        let mut rare = self.rare();
        let membership = &mut rare.membership;
        membership.parked = membership.parked.saturating_sub(jobs);
        if membership.is_mending && membership.parked == 0 {
            self.works_again(membership);
            self.refresh_map(membership);
        }
        Self::wake_all(rare);
    }

    /// Waits until all drives are back while something is parked, and `has_some` says that some of
    /// it is here.
    pub(super) async fn wait_until_mending(&self, has_some: impl Fn() -> bool) {
        self.wait_for(|rare| (rare.membership.is_mending && has_some()).then_some(())).await;
    }

    /// Has everybody look again for whom they wait.
    pub(super) fn look_again(&self) {
        Self::wake_all(self.rare());
    }

    fn fail_locked(&self, mut rare: MutexGuard<'_, Rare>, failure: Failure) {
        self.hot.state.store(WriteState::Failed as u8, Ordering::SeqCst);
        rare.membership.failure.get_or_insert(failure);
        rare.membership.is_mending = false;
        // A member may lack what it has acknowledged: if "clean" is not recorded yet, it must not be.
        let is_clean = self.recorded_version() >= rare.membership.clean_since;
        rare.membership.active |= !is_clean && !mutation!("clean-after-failure");
        self.refresh_map(&mut rare.membership);
        Self::wake_all(rare);
    }

    /// The map has changed in a way that must be durable before a write is acknowledged.
    pub(super) fn map_changed(&self, mut rare: MutexGuard<'_, Rare>) {
        // In this order: who sees the new epoch sees that there is something to wait for.
        self.hot.map_version.store(rare.membership.version + 1, Ordering::Release);
        self.refresh_map(&mut rare.membership);
        self.want(rare);
    }

    /// Something that reads rely on has changed: the next epoch.
    pub(super) fn refresh_map(&self, membership: &mut Membership) {
        let epoch = membership.map.epoch + 1;
        membership.map = membership.copy_map(epoch);
        if !mutation!("same-epoch") {
            self.hot.epoch.store(epoch, Ordering::SeqCst);
        }
    }

    /// Something else is wanted: numbers it and wakes the keeper.
    pub(super) fn want(&self, mut rare: MutexGuard<'_, Rare>) {
        rare.membership.version += 1;
        let version = rare.membership.version;
        Self::wake_all(rare);
        if self.keeper.records() {
            self.keeper.wake();
        } else {
            self.recorded(version);
        }
    }

    /// A drive is in an empty slot, on every core: from now on it gets all writes, and is read
    /// below the rebuild position, which is 0 now. False if the slot is not empty.
    pub fn add_member(&self, slot: usize) -> bool {
        self.admit(slot, &[])
    }

    /// The same with a drive that was a member before, until the superblocks had that event count,
    /// and has bad blocks of its own. It is rebuilt only where it misses something, if that is
    /// known.
    pub fn readd_member(&self, slot: usize, events: u64, bad_blocks: &[BadRange]) -> bool {
        if !self.admit(slot, bad_blocks) {
            return false;
        }
        let series = self.rare().recovery.series();
        // Asked only now: whatever is written without it has its bit by now.
        let lacks = self.intent.missed_ranges_since(events);
        if let Some(lacks) = if mutation!("readd-as-it-is") { Some(Vec::new()) } else { lacks } {
            let mut rare = self.rare();
            rare.recovery.member_lacks(series, lacks);
            Self::wake_all(rare);
        }
        true
    }

    fn admit(&self, slot: usize, bad_blocks: &[BadRange]) -> bool {
        let mut rare = self.rare();
        let membership = &mut rare.membership;
        let is_first = membership.map.rebuilding.is_empty();
        if membership.members.get(slot) != Some(&MemberState::Missing) {
            return false;
        }
        self.forget_drive(slot);
        membership.members[slot] = MemberState::Rebuilding;
        membership.faults[slot] = None;
        membership.bad_blocks[slot] = BadBlocks::new(bad_blocks);
        membership.read_errors[slot].clear();
        membership.devices[slot] = membership.next_device;
        membership.next_device += 1;
        membership.rebuild_from = 0;
        rare.recovery.member_came(is_first);
        self.hot.rebuild_position.store(0, Ordering::Release);
        self.map_changed(rare);
        true
    }

    /// The failed member's slot is empty from now on. False if the member has not failed.
    pub fn remove_member(&self, slot: usize) -> bool {
        let mut rare = self.rare();
        let membership = &mut rare.membership;
        if membership.members.get(slot) != Some(&MemberState::Failed) {
            return false;
        }
        membership.members[slot] = MemberState::Missing;
        membership.bad_blocks[slot] = BadBlocks::default();
        self.map_changed(rare);
        true
    }

    /// Below this offset of the array, members that are being rebuilt hold what they should.
    pub fn rebuild_position_bytes(&self) -> u64 {
        self.hot.rebuild_position.load(Ordering::Acquire)
    }

    /// Whether a member is missing, failed, or being rebuilt.
    pub fn is_degraded(&self) -> bool {
        self.rare().membership.map.in_sync.len() < self.geometry.members()
    }

    /// While true, commands that cannot be done because the array has failed wait. When it becomes
    /// false again they get [`ArrayError::NotReady`], then and later.
    pub fn set_hold(&self, hold: bool) {
        let mut rare = self.rare();
        let membership = &mut rare.membership;
        membership.hold = match (hold, membership.hold) {
            (true, _) => Hold::Waiting,
            (false, Hold::Off) => Hold::Off,
            (false, _) => Hold::Over,
        };
        Self::wake_all(rare);
    }

    /// What a command does that failed with `error`: to be tried again (`Ok`) if the array had
    /// failed and was mended meanwhile.
    pub(super) async fn held(&self, error: ArrayError) -> Result<(), ArrayError> {
        self.wait_for(|rare| match (rare.membership.failure, rare.membership.hold) {
            (None, _) => Some(Ok(())),
            (Some(_), Hold::Off) => Some(Err(error)),
            (Some(_), Hold::Waiting) => None,
            (Some(_), Hold::Over) => Some(Err(ArrayError::NotReady)),
        })
        .await
    }
}
