//! What all cores and the control plane share of an array's long tasks: what is asked for, what is
//! under way, how far it is, and what a check has found.
//!
//! * The *rebuild position* belongs to the members that are being rebuilt. Each that comes sets it
//!   back to 0 and begins a new *series*; what an older one has done does not count for the new
//!   member.
//! * The *resync position* advances only after all members have been flushed, and over what no
//!   write has left unequal since the walk over it began ([`Shared::require_resync`] remembers the
//!   lowest such place).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::plan::{CheckMode, Needs, Task};
use super::progress::{Limit, Progress};
use super::window::Ranges;
use crate::array::agreement::IN_SYNC;
use crate::array::shared::{Rare, Shared};

/// Places of mismatches that are remembered.
const MAX_PLACES: usize = 100;

/// How fast long tasks go, in bytes of the array, and how often their positions are recorded.
pub(in crate::array) struct Limits {
    min_rate: AtomicU64,
    max_rate: AtomicU64,
    checkpoint_interval: AtomicU64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            min_rate: AtomicU64::new(32 << 20),
            max_rate: AtomicU64::new(0),
            checkpoint_interval: AtomicU64::new(1 << 30),
        }
    }
}

impl Limits {
    pub(super) fn rates(&self) -> super::pace::Rates {
        super::pace::Rates {
            min: self.min_rate.load(Ordering::Relaxed),
            max: self.max_rate.load(Ordering::Relaxed),
        }
    }

    pub(super) fn checkpoint_interval(&self) -> u64 {
        self.checkpoint_interval.load(Ordering::Relaxed)
    }
}

/// What an array is doing besides serving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RecoveryState {
    /// Nothing.
    #[default]
    Idle,
    /// Making copies equal, or parity right: a new array, or after an unclean stop.
    Resync,
    /// Filling members that came.
    Rebuild,
    /// Comparing copies, or data and parity.
    Check,
    /// The same, and repairing what differs.
    Repair,
}

impl From<Option<Task>> for RecoveryState {
    fn from(task: Option<Task>) -> Self {
        match task {
            None => Self::Idle,
            Some(Task::Rebuild) => Self::Rebuild,
            Some(Task::Resync) => Self::Resync,
            Some(Task::Check(CheckMode::Check)) => Self::Check,
            Some(Task::Check(CheckMode::Repair | CheckMode::RepairAll)) => Self::Repair,
        }
    }
}

/// How far the long task under way is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryStatus {
    /// What it is.
    pub state: RecoveryState,
    /// It does not go on before [`Shared::resume`].
    pub is_paused: bool,
    /// It is done below this offset of the array.
    pub position_bytes: u64,
    /// Where it ends.
    pub total_bytes: u64,
    /// What is left of it. That is less than what is behind the position if it is known to be
    /// needed in places only.
    pub left_bytes: u64,
    /// Rate over the last ten seconds of work, in bytes of the array; 0 until there is something to
    /// measure.
    pub bytes_per_second: u64,
    /// When it will be done at that rate; unknown in the first ten seconds, and while it does not
    /// get on.
    pub eta: Option<Duration>,
    /// What holds it back.
    pub limited_by: Option<Limit>,
    /// For how long this process has worked on it, without pauses.
    pub worked: Duration,
}

/// A place where copies, or data and parity, do not agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset in the array: of the block itself on levels with copies; of the row whose chunks do
    /// not fit together on levels with parity.
    pub offset_bytes: u64,
    /// Offset in the members' data areas, or in that of the first copy.
    pub component_offset_bytes: u64,
    /// How much of each copy or chunk is concerned.
    pub len_bytes: u64,
    /// The member whose data is wrong, where that can be told: RAID 6, a single chunk.
    pub slot: Option<usize>,
    /// Whether it was repaired.
    pub repaired: bool,
}

/// What the check under way, or the last one, has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Whether it is still wanted: under way, paused, or waiting for something more urgent.
    pub is_wanted: bool,
    /// Whether the last one got to the end.
    pub is_complete: bool,
    /// What it does; none if there has not been any.
    pub mode: Option<CheckMode>,
    /// Sectors of 512 bytes that do not agree.
    pub mismatch_sectors: u64,
    /// Of these, those that were repaired.
    pub repaired_sectors: u64,
    /// Sectors that could not be read from a member, and were rewritten there.
    pub rewritten_sectors: u64,
    /// Sectors that could not be read, and not be had from elsewhere.
    pub unreadable_sectors: u64,
    /// Of members' data areas that could not be compared, because members are missing or what is
    /// there is not known to agree.
    pub uncompared_bytes: u64,
    /// The first mismatches, at most 100.
    pub places: Vec<Mismatch>,
}

/// See the file's head. Part of what rarely changes.
#[derive(Debug)]
pub(in crate::array) struct Control {
    is_stopped: bool,
    is_paused: bool,
    /// The lowest offset that [`Shared::require_resync`] named since the present walk began.
    required_from: u64,
    /// Counts the members that came to be rebuilt.
    series: u64,
    /// What the members that are being rebuilt lack.
    lacking: Ranges,
    /// The same without the last one that came.
    lacking_before: Ranges,
    check: Option<CheckMode>,
    /// Counts the checks that were asked for.
    check_number: u64,
    check_position: u64,
    report: CheckReport,
    task: Option<Task>,
    position: u64,
    left: u64,
    progress: Progress,
    resyncs_completed: u64,
    rebuilds_completed: u64,
}

impl Default for Control {
    fn default() -> Self {
        Self {
            is_stopped: false,
            is_paused: false,
            required_from: IN_SYNC,
            series: 0,
            lacking: Ranges::All,
            lacking_before: Ranges::All,
            check: None,
            check_number: 0,
            check_position: 0,
            report: CheckReport::default(),
            task: None,
            position: 0,
            left: 0,
            progress: Progress::default(),
            resyncs_completed: 0,
            rebuilds_completed: 0,
        }
    }
}

impl Control {
    /// Something at or above `offset_bytes` has left copies unequal.
    pub(in crate::array) fn required(&mut self, offset_bytes: u64) {
        self.required_from = self.required_from.min(offset_bytes);
    }

    /// A member came that lacks everything, for all that is known. `is_first`: no other is being
    /// rebuilt.
    pub(in crate::array) fn member_came(&mut self, is_first: bool) {
        self.series += 1;
        let before = std::mem::replace(&mut self.lacking, Ranges::All);
        self.lacking_before = if is_first { Ranges::Some(Vec::new()) } else { before };
    }

    /// The number of the members that came so far.
    pub(in crate::array) fn series(&self) -> u64 {
        self.series
    }

    /// What has been rebuilt does not count any more behind some place.
    pub(in crate::array) fn rebuild_anew(&mut self) {
        self.series += 1;
    }

    /// The last member that came, of that number, lacks only these ranges of the array.
    pub(in crate::array) fn member_lacks(&mut self, series: u64, lacks: Vec<Range<u64>>) {
        if self.series == series {
            let before = std::mem::replace(&mut self.lacking_before, Ranges::All);
            self.lacking = before.or(Ranges::from_list(lacks));
            // A rebuild that has begun with everything begins anew.
            self.series += 1;
        }
    }
}

/// What the control plane asks for.
impl Shared {
    /// Has the array read and compared, and with `repair` put right
    /// ([`CheckMode::Repair`]). False if a check is wanted already, or the level has nothing to
    /// compare.
    pub fn start_check(&self, repair: bool) -> bool {
        self.start_check_as(if repair { CheckMode::Repair } else { CheckMode::Check })
    }

    /// The same, with a choice of what is repaired.
    pub fn start_check_as(&self, mode: CheckMode) -> bool {
        let mut rare = self.rare();
        let control = &mut rare.recovery;
        if control.check.is_some() || !self.geometry.is_redundant() {
            return false;
        }
        control.check = Some(mode);
        control.check_number += 1;
        control.check_position = 0;
        control.report =
            CheckReport { is_wanted: true, mode: Some(mode), ..CheckReport::default() };
        Self::wake_all(rare);
        true
    }

    /// Ends the check where it is. False if there is none.
    pub fn stop_check(&self) -> bool {
        let mut rare = self.rare();
        let was_wanted = rare.recovery.check.take().is_some();
        rare.recovery.report.is_wanted = false;
        Self::wake_all(rare);
        was_wanted
    }

    /// Lets long tasks rest, whichever they are, until [`Self::resume`].
    pub fn pause(&self) {
        self.set_paused(true);
    }

    /// Lets long tasks go on.
    pub fn resume(&self) {
        self.set_paused(false);
    }

    fn set_paused(&self, is_paused: bool) {
        let mut rare = self.rare();
        rare.recovery.is_paused = is_paused;
        Self::wake_all(rare);
    }

    /// Lets the array's long tasks end at their next step, with a last checkpoint.
    pub fn stop_resync(&self) {
        let mut rare = self.rare();
        rare.recovery.is_stopped = true;
        Self::wake_all(rare);
    }

    /// Sets how fast long tasks go, in bytes of each member: at least `min_bytes_per_second` while
    /// the host is busy, and at most `max_bytes_per_second` at any time (none: as fast as they
    /// can).
    pub fn set_resync_rates(&self, min_bytes_per_second: u64, max_bytes_per_second: Option<u64>) {
        let min = self.array_rate(min_bytes_per_second);
        let max = max_bytes_per_second.map_or(0, |max| self.array_rate(max));
        self.limits.min_rate.store(min, Ordering::Relaxed);
        self.limits.max_rate.store(max, Ordering::Relaxed);
    }

    /// How fast the position advances if each member is read or written at that rate; at least 1.
    fn array_rate(&self, bytes_per_second: u64) -> u64 {
        let (capacity, component) =
            (self.geometry.capacity_bytes(), self.geometry.component_bytes());
        let rate =
            u128::from(bytes_per_second) * u128::from(capacity) / u128::from(component.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX).max(1)
    }

    /// Sets how much is done between two checkpoints.
    pub fn set_checkpoint_interval(&self, bytes: u64) {
        self.limits.checkpoint_interval.store(bytes.max(1), Ordering::Relaxed);
    }

    /// What the array is doing besides serving. `now` is on the clock that
    /// [`Array::recover`](crate::array::Array::recover) was given.
    pub fn recovery_status(&self, now: Duration) -> RecoveryStatus {
        let rare = self.rare();
        let control = &rare.recovery;
        // What waits to begin, or to go on, is told as well.
        let task = self.needs(&rare).next();
        if task.is_none() {
            return RecoveryStatus { is_paused: control.is_paused, ..RecoveryStatus::default() };
        }
        let total_bytes = self.geometry.capacity_bytes();
        let mut status = RecoveryStatus {
            state: task.into(),
            is_paused: control.is_paused,
            total_bytes,
            ..RecoveryStatus::default()
        };
        if control.task != task {
            (status.position_bytes, status.left_bytes) = self.waiting_at(control, task);
        } else {
            status.position_bytes = control.position.min(total_bytes);
            status.left_bytes = control.left;
            status.bytes_per_second = control.progress.rate(now);
            status.limited_by = control.progress.limit();
            status.worked = control.progress.worked(now);
            if !control.is_paused {
                status.eta = control.progress.eta(now, control.left);
            }
        }
        status
    }

    /// Where a task begins that nobody works on yet, and how much there is to do.
    fn waiting_at(&self, control: &Control, task: Option<Task>) -> (u64, u64) {
        let end = self.geometry.capacity_bytes();
        match task {
            Some(Task::Rebuild) => {
                let position = self.rebuild_position_bytes();
                (position, control.lacking.bytes_from(position, end))
            }
            Some(Task::Resync) if !self.intent.has_dirty() => {
                let position = self.resync_position_bytes().min(end);
                (position, end - position)
            }
            Some(Task::Resync) => {
                (0, Ranges::from_list(self.intent.dirty_ranges()).bytes_from(0, end))
            }
            Some(Task::Check(_)) => {
                (control.check_position, end.saturating_sub(control.check_position))
            }
            None => (0, 0),
        }
    }

    /// What the check under way, or the last one, has found.
    pub fn check_report(&self) -> CheckReport {
        self.rare().recovery.report.clone()
    }

    /// Resyncs that have been completed since the start.
    pub fn resyncs_completed(&self) -> u64 {
        self.rare().recovery.resyncs_completed
    }

    /// Rebuilds that have been completed since the start.
    pub fn rebuilds_completed(&self) -> u64 {
        self.rare().recovery.rebuilds_completed
    }

    /// Waits until all copies agree (true), or the array has failed or its tasks were stopped.
    pub async fn wait_in_sync(&self) -> bool {
        self.wait_for(|rare| match () {
            () if !self.needs(rare).resync => Some(true),
            () if rare.recovery.is_stopped || rare.membership.has_failed() => Some(false),
            () => None,
        })
        .await
    }
}

/// What the core that runs the tasks asks and says.
impl Shared {
    fn needs(&self, rare: &Rare) -> Needs {
        let map = rare.membership.map_now();
        Needs {
            rebuild: !map.rebuilding.is_empty(),
            resync: !self.is_in_sync(),
            check: rare.recovery.check,
            is_degraded: map.in_sync.len() < self.geometry.members(),
            has_parity: self.geometry.parities() > 0,
            has_failed: rare.membership.has_failed(),
        }
    }

    /// Waits until there is something to do; none: until the tasks were stopped.
    pub(super) async fn next_task(&self) -> Option<Task> {
        self.wait_for(|rare| match () {
            () if rare.recovery.is_stopped => Some(None),
            () if rare.recovery.is_paused => None,
            () => self.needs(rare).next().map(Some),
        })
        .await
    }

    /// Whether that task is still the one to work on.
    pub(super) fn is_next(&self, task: Task) -> bool {
        self.is_next_in(&self.rare(), task)
    }

    fn is_next_in(&self, rare: &Rare, task: Task) -> bool {
        let control = &rare.recovery;
        !control.is_stopped && !control.is_paused && self.needs(rare).next() == Some(task)
    }

    /// Waits until that task is not the one to work on any more.
    pub(super) async fn not_next(&self, task: Task) {
        self.wait_for(|rare| (!self.is_next_in(rare, task)).then_some(())).await;
    }

    /// Whether the tasks were stopped.
    #[cfg(test)]
    pub(in crate::array) fn must_resync_stop(&self) -> bool {
        self.rare().recovery.is_stopped
    }

    /// Work on a task begins, or goes on.
    pub(super) fn task_began(&self, task: Task, now: Duration, position: u64, left: u64) {
        let mut rare = self.rare();
        let control = &mut rare.recovery;
        if control.task == Some(task) {
            control.progress.go_on(now);
        } else {
            control.progress.start(now);
        }
        control.task = Some(task);
        (control.position, control.left) = (position, left);
    }

    /// The task has got on.
    pub(super) fn task_did(&self, now: Duration, bytes: u64, position: u64, left: u64) {
        let mut rare = self.rare();
        let control = &mut rare.recovery;
        control.progress.add(now, bytes);
        (control.position, control.left) = (position, left);
    }

    /// What holds the task back while it gets on.
    pub(super) fn task_limited(&self, limit: Limit) {
        self.rare().recovery.progress.limited(limit);
    }

    /// The task does not get on for now.
    pub(super) fn task_halted(&self, now: Duration, limit: Option<Limit>) {
        self.rare().recovery.progress.halt(now, limit);
    }

    /// Nobody works on the task any more, perhaps because it is over.
    pub(super) fn task_left(&self, task: Task, now: Duration) {
        let mut rare = self.rare();
        if self.is_next_in(&rare, task) {
            return;
        }
        let needs = self.needs(&rare);
        let is_wanted = match task {
            Task::Rebuild => needs.rebuild,
            Task::Resync => needs.resync,
            Task::Check(mode) => needs.check == Some(mode),
        };
        rare.recovery.progress.halt(now, None);
        if !is_wanted {
            rare.recovery.task = None;
        }
    }
}

/// The resync.
impl Shared {
    /// A walk that is to make copies agree begins.
    pub(super) fn begin_resync_walk(&self) -> u64 {
        self.rare().recovery.required_from = IN_SYNC;
        self.resync_position_bytes()
    }

    /// Whether everything before `to` has stayed as the walk left it.
    pub(super) fn is_resync_undisturbed(&self, to: u64) -> bool {
        self.rare().recovery.required_from >= to
    }

    /// The walk has made everything from `from`, the resync position, to `to` agree, and all members
    /// have been flushed since. False, and nothing changes, if a write has left copies unequal there
    /// meanwhile; or if a level with parity has lost a member, without which it cannot be told what
    /// is right.
    pub(super) fn advance_resync(&self, from: u64, to: u64) -> bool {
        let mut rare = self.rare();
        let needs = self.needs(&rare);
        let is_sure = rare.recovery.required_from >= to && !(needs.has_parity && needs.is_degraded);
        let is_done = is_sure
            && self
                .hot
                .resync_position
                .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
        if is_done && to == IN_SYNC {
            rare.recovery.resyncs_completed += 1;
        }
        if is_done {
            Self::wake_all(rare);
        }
        is_done
    }

    /// Dirty regions within these ranges agree now, if no write has left copies unequal meanwhile:
    /// `marks` is what [`Intent::dirty_marks`](crate::array::intent::Intent::dirty_marks) said when
    /// the walk over them began. False if one has.
    pub(super) fn dirty_made_consistent(&self, range: Range<u64>, marks: u64) -> bool {
        let rare = self.rare();
        let needs = self.needs(&rare);
        let is_sure = rare.recovery.required_from >= range.end
            && !(needs.has_parity && needs.is_degraded)
            && self.intent.made_consistent(&range, marks);
        Self::wake_all(rare);
        is_sure
    }

    /// The walk over dirty regions has got to its end.
    pub(super) fn dirty_ended(&self) {
        let mut rare = self.rare();
        if !self.needs(&rare).resync {
            rare.recovery.resyncs_completed += 1;
        }
    }
}

/// The rebuild.
impl Shared {
    /// What a walk that rebuilds has to do: its series, where it begins, and what the members lack.
    pub(super) fn begin_rebuild_walk(&self) -> (u64, u64, Ranges) {
        let rare = self.rare();
        let control = &rare.recovery;
        (control.series, self.rebuild_position_bytes(), control.lacking.clone())
    }

    /// The walk of that series has got on to `to`. False, and nothing changes, if another member
    /// has come since it began.
    pub(super) fn advance_rebuild(&self, series: u64, to: u64) -> bool {
        let rare = self.rare();
        let is_same = rare.recovery.series == series;
        if is_same {
            self.hot.rebuild_position.store(to, Ordering::Release);
        }
        is_same
    }

    /// Has the position recorded. All members were flushed since it got there.
    pub(super) fn checkpoint_rebuild_of(&self, series: u64, position_bytes: u64) {
        let mut rare = self.rare();
        if rare.recovery.series == series {
            rare.membership.set_rebuild_from(position_bytes);
            self.want(rare);
        }
    }

    /// The walk of that series has got to the end, and all members were flushed since: those that
    /// were rebuilt are in sync. False if another member has come meanwhile.
    pub(super) fn end_rebuild(&self, series: u64) -> bool {
        let mut rare = self.rare();
        if rare.recovery.series != series {
            return false;
        }
        if rare.membership.rebuilt() {
            rare.recovery.rebuilds_completed += 1;
            rare.recovery.lacking = Ranges::All;
            self.map_changed(rare);
        }
        true
    }
}

/// The check.
impl Shared {
    /// The number of the check that is wanted, and where it goes on.
    pub(super) fn begin_check_walk(&self) -> (u64, u64) {
        let rare = self.rare();
        (rare.recovery.check_number, rare.recovery.check_position)
    }

    /// The check of that number has got on to `to`. False if another one is wanted meanwhile.
    pub(super) fn advance_check(&self, number: u64, to: u64) -> bool {
        let mut rare = self.rare();
        let is_same = rare.recovery.check_number == number;
        if is_same {
            rare.recovery.check_position = to;
        }
        is_same
    }

    /// The check of that number has got to the end.
    pub(super) fn end_check(&self, number: u64) {
        let mut rare = self.rare();
        let control = &mut rare.recovery;
        if control.check_number == number && control.check.take().is_some() {
            control.report.is_wanted = false;
            control.report.is_complete = true;
        }
        Self::wake_all(rare);
    }

    /// Something was found.
    pub(super) fn found(&self, change: impl FnOnce(&mut CheckReport)) {
        change(&mut self.rare().recovery.report);
    }
}

impl CheckReport {
    pub(super) fn add(&mut self, mismatch: Mismatch) {
        let sectors = mismatch.len_bytes / 512;
        self.mismatch_sectors += sectors;
        if mismatch.repaired {
            self.repaired_sectors += sectors;
        }
        if self.places.len() < MAX_PLACES {
            self.places.push(mismatch);
        }
    }
}
