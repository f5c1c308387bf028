//! The control plane of a simulated boot: the real keeper of superblocks, whose operations take
//! their time; safe mode; and the record in the state directory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::disk::{Disk, Model};
use super::drive::SimDrive;
use super::faults::{Faults, Kind};
use super::keeper::Records;
use super::medium::{SimMedium, Step, StepKind, Tape};
use super::world::World;
use crate::array::{IN_SYNC, MemberFault, MemberState, Shared, Wanted};
use crate::assemble::{ArrayHandle, Recorded, UpdateError};
use crate::drive::{Drive, DriveError};
use crate::mutation::mutation;

/// What is true of the array's members, as far as it was made durable before anybody relied on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Truth {
    /// The drives that were in sync when the superblocks were last recorded whole.
    pub(crate) in_sync: Vec<usize>,
    /// The drives that were being rebuilt then.
    pub(crate) rebuilding: Vec<usize>,
    /// The superblocks have been written since the array was created.
    pub(crate) is_recorded: bool,
    /// All parity was right when they were written last, but for what was being written.
    pub(crate) is_synced: bool,
    /// The superblocks said "active".
    pub(crate) active: bool,
    /// The event count that the state directory tells.
    pub(crate) known_events: Option<u64>,
    /// The array was started once although a member was away that was in sync.
    pub(crate) started_without: bool,
    /// The array was started once by an operator who took a risk.
    pub(crate) took_risk: bool,
}

/// All drives that there are.
#[derive(Default)]
pub(crate) struct Drives(pub(crate) Vec<Rc<RefCell<Disk>>>);

impl Drives {
    /// The drive of this number.
    pub(crate) fn get(&self, number: usize) -> Rc<RefCell<Disk>> {
        Rc::clone(&self.0[number])
    }

    /// One more; answers its number.
    pub(crate) fn add(&mut self, model: Model) -> usize {
        let number = self.0.len();
        self.0.push(Rc::new(RefCell::new(Disk::new(number, model))));
        number
    }
}

/// Writes the superblocks.
pub(crate) struct Control {
    pub(crate) handle: RefCell<ArrayHandle<SimMedium>>,
    pub(crate) tape: Rc<Tape>,
    pub(crate) drives: Rc<RefCell<Drives>>,
    pub(crate) faults: Rc<Faults>,
    pub(crate) world: Rc<World>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) truth: Rc<RefCell<Truth>>,
    /// By slot: the drive's number.
    pub(crate) slots: Rc<RefCell<Vec<Option<usize>>>>,
    /// Somebody is at the handle.
    pub(crate) is_busy: Cell<bool>,
}

impl Control {
    /// Waits until nobody is at the handle, and is there then.
    pub(crate) async fn wait(&self) {
        while self.is_busy.replace(true) {
            self.world.sleep_ns(50_000).await;
        }
    }

    /// Has the handle do something, whose operations are done one by one in the world.
    pub(crate) async fn perform<T, E>(
        &self,
        what: impl Fn(&mut ArrayHandle<SimMedium>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.wait().await;
        let mut trial = self.handle.borrow().clone();
        self.tape.record();
        let expected = what(&mut trial);
        let mut done = Vec::new();
        for step in self.tape.take() {
            let result = self.step(&step).await;
            let failed = result.is_err();
            done.push((step, result));
            if failed {
                break;
            }
        }
        if expected.is_ok() && done.iter().all(|(_, result)| result.is_ok()) {
            *self.handle.borrow_mut() = trial;
            self.is_busy.set(false);
            return expected;
        }
        self.tape.play(done);
        let result = what(&mut self.handle.borrow_mut());
        self.tape.stop();
        self.is_busy.set(false);
        result
    }

    async fn step(&self, step: &Step) -> Result<(), i32> {
        let drive = SimDrive {
            world: Rc::clone(&self.world),
            disk: self.drives.borrow().get(step.disk),
            faults: Rc::clone(&self.faults),
        };
        let result = match &step.what {
            StepKind::Read(_) => return Ok(()),
            StepKind::Write { offset_bytes, data } => {
                // Metadata may be torn at every sector.
                drive.change(Kind::Write, *offset_bytes, Rc::clone(data), true, 512).await
            }
            StepKind::Flush => drive.flush().await,
        };
        result.map_err(|error| match error {
            DriveError::NoSpace => 28,
            DriveError::Gone => 19,
            DriveError::TimedOut => 110,
            _ => 5,
        })
    }

    fn failed(&self, error: &UpdateError) {
        let slot = error.slot();
        let drive_error = match error {
            UpdateError::Write { source, .. }
            | UpdateError::Read { source, .. }
            | UpdateError::Flush { source, .. } => {
                DriveError::from_errno(source.raw_os_error().unwrap_or(5))
            }
            UpdateError::Cannot { .. } => DriveError::Io { errno: 5 },
        };
        self.world.trace(|| format!("keeper: {error}"));
        match error {
            UpdateError::Flush { .. } => self.shared.fail_flush(slot, drive_error),
            UpdateError::Cannot { .. } => {
                self.shared.fail_member(slot, MemberFault::Superblock(drive_error));
            }
            _ => self.shared.record_failed(slot, drive_error),
        }
    }

    /// Drives that are to be rebuilt may be recorded from now on.
    fn announce(&self, wanted: &Wanted) {
        let slots = self.slots.borrow();
        let members = wanted.members.iter().zip(slots.iter());
        let to_come = members.filter(|(state, _)| **state == MemberState::Rebuilding);
        self.truth.borrow_mut().rebuilding.extend(to_come.filter_map(|(_, disk)| *disk));
    }

    /// What is recorded is true now.
    fn note(&self, wanted: &Wanted, recorded: Recorded) {
        let mut truth = self.truth.borrow_mut();
        let slots = self.slots.borrow();
        let with = |wanted_state| {
            let members = wanted.members.iter().zip(slots.iter());
            let fit = members.filter(|(state, _)| **state == wanted_state);
            fit.filter_map(|(_, disk)| *disk).collect()
        };
        truth.in_sync = with(MemberState::InSync);
        truth.rebuilding = with(MemberState::Rebuilding);
        (truth.active, truth.is_recorded) = (wanted.active, true);
        truth.is_synced = wanted.resync_from == IN_SYNC;
        if recorded.lost_member && !mutation!("no-state-record") {
            truth.known_events = Some(recorded.events);
        }
    }
}

impl Records for Rc<Control> {
    async fn record(&self, wanted: &Wanted) -> bool {
        self.announce(wanted);
        match self.perform(|handle| handle.record(wanted)).await {
            Ok(recorded) => {
                if recorded.lost_member {
                    self.world.sleep_ns(1 + self.world.below(200_000)).await;
                }
                self.note(wanted, recorded);
                self.shared.recorded_events(wanted, recorded.events);
                true
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }
}
