//! An array that is served: what the control plane keeps of it beside what the cores share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use raidfabric_raid::array::Shared;
use raidfabric_raid::device::Identity;
use uuid::Uuid;

use super::arrays::{Handle, OpenArray};
use super::keeper::Recorder;
use super::patient::PatientDevice;
use super::strays::remembered_files;
use super::temperature;
use crate::association::Registry;
use crate::config;
use crate::config::drives::Drives;
use crate::runtime::{LateOperations, TimeLimit};

/// What is known of the drive in a slot.
#[derive(Clone, Debug)]
pub(super) struct Label {
    pub(super) identity: Identity,
    /// How long it is waited for, and what it owes.
    pub(super) limit: TimeLimit,
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.identity.fmt(f)
    }
}

/// See the file's head.
pub(super) struct ServedArray {
    /// Its place in the configuration, and on the cores.
    pub(super) index: usize,
    /// Its drives, as they were at the start.
    pub(super) open: OpenArray,
    /// Its state.
    pub(super) shared: Arc<Shared>,
    /// What it does when something goes wrong.
    pub(super) conduct: config::Array,
    /// The files that the configuration names; block devices are found without being named.
    listed: Vec<PathBuf>,
    /// Writes its state down; none in memory.
    pub(super) recorder: Option<Arc<Recorder<PatientDevice>>>,
    /// Held by whoever changes its members.
    pub(super) changing: tokio::sync::Mutex<()>,
    labels: Mutex<Vec<Option<Label>>>,
    /// What drives owe that were let go of.
    owed: Mutex<Vec<LateOperations>>,
    is_stopped: AtomicBool,
    is_building: AtomicBool,
    /// Hears of changes of health.
    registry: Mutex<Weak<Registry>>,
}

impl ServedArray {
    pub(super) fn new(
        index: usize,
        open: OpenArray,
        shared: Arc<Shared>,
        conduct: config::Array,
        drives: &Drives,
        recorder: Option<Arc<Recorder<PatientDevice>>>,
    ) -> Self {
        let label = |(identity, limit): (Option<Identity>, &TimeLimit)| {
            identity.map(|identity| Label { identity, limit: limit.clone() })
        };
        let labels: Vec<_> = match open.handle {
            Some(_) => open.identities().into_iter().zip(&open.time_limits).map(label).collect(),
            None => vec![None; open.geometry.members()],
        };
        let listed = match drives {
            Drives::Memory(_) | Drives::Arrays(_) => Vec::new(),
            Drives::Paths(listed) => {
                let absent = listed.absent.iter().map(|absent| PathBuf::from(&absent.name));
                listed.present.iter().cloned().chain(absent).collect()
            }
        };
        Self {
            index,
            labels: Mutex::new(labels),
            owed: Mutex::default(),
            is_building: AtomicBool::new(open.is_building),
            open,
            shared,
            conduct,
            listed,
            recorder,
            changing: tokio::sync::Mutex::default(),
            is_stopped: AtomicBool::new(false),
            registry: Mutex::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.open.name
    }

    pub(super) fn uuid(&self) -> Uuid {
        self.open.uuid
    }

    /// Its superblocks; none in memory.
    pub(super) fn handle(&self) -> Option<&Handle> {
        self.open.handle.as_ref()
    }

    /// Files where a member may appear again.
    pub(super) fn known_files(&self) -> Vec<PathBuf> {
        let listed = self.listed.iter().filter(|path| path.is_file()).cloned();
        listed.chain(remembered_files(&self.open.last_known)).collect()
    }

    /// What is said of the drive in a slot: where it is, or was seen last.
    pub(super) fn drive_name(&self, slot: usize) -> Option<String> {
        let label = self.label(slot).map(|label| label.identity.name());
        let known = || self.open.last_known.get(slot).filter(|name| !name.is_empty()).cloned();
        label.or_else(known)
    }

    fn labels(&self) -> MutexGuard<'_, Vec<Option<Label>>> {
        // Every change is one assignment.
        self.labels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The drive in a slot.
    pub(super) fn label(&self, slot: usize) -> Option<Label> {
        self.labels().get(slot).cloned().flatten()
    }

    pub(super) fn learn_label(&self, slot: usize, new: Label) {
        if let Some(label) = self.labels().get_mut(slot) {
            *label = Some(new);
        }
    }

    pub(super) fn forget_label(&self, slot: usize) {
        let forgotten = self.labels().get_mut(slot).and_then(Option::take);
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        owed.extend(forgotten.map(|label| label.limit.late));
        owed.retain(|late| late.count() > 0);
    }

    /// Requests to drives that were let go of which have not ended: any of them may still write.
    pub(super) fn owed_operations(&self) -> usize {
        let owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        owed.iter().map(LateOperations::count).sum()
    }

    /// How warm the drive in a slot is.
    pub(super) fn temperature_kelvin(&self, slot: usize) -> Option<u16> {
        temperature::of_drive(self.label(slot)?.identity.kernel_name.as_deref()?)
    }

    /// The temperature of its warmest drive in kelvin; 0 if none has a sensor.
    pub(super) fn warmest_kelvin(&self) -> u16 {
        let slots = 0..self.shared.geometry().members();
        slots.filter_map(|slot| self.temperature_kelvin(slot)).max().unwrap_or(0)
    }

    /// Whether an operator has stopped it.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    pub(super) fn set_stopped(&self) {
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Whether its redundancy has never been whole.
    pub(super) fn is_building(&self) -> bool {
        self.is_building.load(Ordering::Relaxed)
    }

    /// Its redundancy is whole for the first time. Blocking.
    pub(super) fn set_built(&self) {
        self.is_building.store(false, Ordering::Relaxed);
        if let Some(recorder) = &self.recorder {
            recorder.note_built();
        }
    }

    /// Who is told when its health changes.
    pub(super) fn tell(&self, registry: &Arc<Registry>) {
        *self.registry.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(registry);
    }

    /// Has hosts told that the health of what they use may have changed.
    pub(super) fn report_health(&self) {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        if let Some(registry) = registry {
            registry.health_may_have_changed();
        }
    }
}
