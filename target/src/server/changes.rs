//! Members come and go while an array runs: `fail`, `remove`, `add`.
//!
//! One change of an array at a time ([`ServedArray::changing`]). Whatever has to be durable is so
//! when a change is answered: it waits until the keeper has recorded it.
//!
//! **Adding.** The drive is opened for ourselves and gets a superblock that makes it a spare; each
//! core gets a handle on it; only then the array is told, which has it rebuilt from then on. An
//! error on the way takes all of that back.
//!
//! **Late operations.** A drive that did not answer in time may still write what it was asked to. It
//! does not come back before every such request has ended, or it would get old data over new.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use raidfabric_raid::array::{Array, ArrayError, BadRange, IntentPlaces, MemberFault, MemberState};
use raidfabric_raid::assemble::{AddError, Examined, examine};
use raidfabric_raid::device::{DeviceError, Holder, Intent, OpenDevice, Patience, open_patiently};
use raidfabric_raid::metadata::superblock::Role;

use super::arrays::{Handle, member_plan};
use super::cores::Cores;
use super::inspect;
use super::patient::PatientDevice;
use super::report::{Done, Refusal};
use super::served::{Label, ServedArray};
use crate::config::format_bytes;
use crate::runtime::TimeLimit;
use crate::volume::MemberDrive;

/// How long a change may take to be recorded before whoever asked is told that it is not.
const RECORD_PATIENCE: Duration = Duration::from_secs(60);
/// How long udev, or a command that has just ended, is waited for.
const OPEN_PATIENCE: Duration = Duration::from_secs(1);

/// A drive that is to come in.
pub(super) struct Newcomer {
    medium: OpenDevice,
    examined: Examined,
}

impl Newcomer {
    /// Takes a drive and reads what it holds. Blocking.
    ///
    /// # Errors
    /// It cannot be had, or read.
    pub(super) fn open(path: &Path) -> Result<Self, Refusal> {
        let patience = Patience { limit: OPEN_PATIENCE, notify: &mut |_| {} };
        let medium = open_patiently(path, Intent::Own, patience).map_err(|error| {
            let own = std::process::id();
            match error {
                DeviceError::Busy { holder: Holder::Process { pid, .. }, .. } if pid == own => {
                    Refusal::conflict(format!(
                        "{}: it is in use by this daemon already; a member that has failed is let \
                         go of by `raidfabric array remove`",
                        path.display()
                    ))
                }
                DeviceError::NotFound { .. } => Refusal::not_found(error),
                error => Refusal::conflict(error),
            }
        })?;
        let examined = examine(&medium).map_err(Refusal::failed)?;
        Ok(Self { medium, examined })
    }

    /// The slot that it had in the array.
    fn own_slot(&self, array: &ServedArray) -> Option<usize> {
        let superblock = self.examined.superblock()?;
        let is_ours = superblock.array_uuid() == array.uuid();
        match superblock.own_role() {
            Role::Active(slot) if is_ours => Some(usize::from(slot)),
            _ => None,
        }
    }

    /// Whether it is, or was, a member of this array.
    fn is_of(&self, array: &ServedArray) -> bool {
        self.examined.superblock().is_some_and(|one| one.array_uuid() == array.uuid())
    }

    /// What it is called.
    pub(super) fn name(&self) -> String {
        self.medium.identity().to_string()
    }
}

impl ServedArray {
    /// The slot that a person means: by its number, or by its drive's path or serial number.
    pub(super) fn find_slot(&self, member: &str) -> Result<usize, Refusal> {
        let slots = self.shared.geometry().members();
        if let Ok(slot) = member.parse::<usize>() {
            return (slot < slots).then_some(slot).ok_or_else(|| {
                Refusal::not_found(format!(
                    "array {} has no slot {slot}; it has 0 to {}",
                    self.name(),
                    slots.saturating_sub(1)
                ))
            });
        }
        let named = |slot: &usize| {
            self.label(*slot).is_some_and(|label| inspect::is_named(&label.identity, member))
        };
        let found: Vec<usize> = (0..slots).filter(named).collect();
        match found[..] {
            [slot] => Ok(slot),
            [] => Err(Refusal::not_found(format!(
                "{member} is no member of array {}; `raidfabric status {}` lists them",
                self.name(),
                self.name()
            ))),
            _ => Err(Refusal::invalid(format!(
                "{member} names several members; give the slot of the one that is meant"
            ))),
        }
    }

    pub(super) fn state_of(&self, slot: usize) -> MemberState {
        self.shared.member_states().get(slot).copied().unwrap_or(MemberState::Missing)
    }

    /// Waits until what is wanted now is recorded.
    async fn until_recorded(&self) -> Result<(), Refusal> {
        let version = self.shared.wanted().version;
        let waiting = self.shared.wait_recorded(version);
        match tokio::time::timeout(RECORD_PATIENCE, waiting).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error @ ArrayError::NoSpace { .. })) => Err(Refusal::failed(format!(
                "it is so, and not recorded yet: {error}; make room below the member"
            ))),
            Ok(Err(error)) => Err(Refusal::failed(format!("the array has failed: {error}"))),
            Err(_) => Err(Refusal::failed(format!(
                "it is so, and not recorded after {} s; the daemon's log says why",
                RECORD_PATIENCE.as_secs()
            ))),
        }
    }

    /// Takes a member out of use.
    pub(super) async fn fail(&self, member: &str) -> Result<Done, Refusal> {
        let _changing = self.changing.lock().await;
        let slot = self.find_slot(member)?;
        match self.state_of(slot) {
            MemberState::InSync | MemberState::Rebuilding => {}
            MemberState::Failed => {
                return Err(Refusal::conflict(format!("slot {slot} has failed already")));
            }
            MemberState::Missing => {
                return Err(Refusal::conflict(format!("slot {slot} has no drive")));
            }
        }
        if !self.shared.fail_member(slot, MemberFault::Operator) {
            return Err(Refusal::conflict(format!(
                "array {} would be lost without slot {slot}, so it goes on with it; wait until it \
                 is whole (raidfabric wait {} --for healthy)",
                self.name(),
                self.name()
            )));
        }
        self.until_recorded().await?;
        Ok(Done::new(format!("slot {slot} of array {} has failed, as you say", self.name())).next(
            format!("raidfabric array remove {} {slot}, and then pull its drive", self.name()),
        ))
    }

    /// Lets go of the drive of a member that has failed.
    pub(super) async fn remove(&self, cores: &Cores, member: &str) -> Result<Done, Refusal> {
        let _changing = self.changing.lock().await;
        let slot = self.find_slot(member)?;
        let label = self.label(slot).map(|label| label.to_string());
        match self.state_of(slot) {
            MemberState::Failed => {}
            MemberState::InSync | MemberState::Rebuilding => {
                return Err(Refusal::conflict(format!(
                    "slot {slot} is in use; `raidfabric array fail {} {slot}` takes it out of use",
                    self.name()
                )));
            }
            MemberState::Missing => {
                return Err(Refusal::conflict(format!("slot {slot} has no drive")));
            }
        }
        let late = self.vacate(cores, slot).await?;
        let drive = label.unwrap_or_else(|| "its drive".to_owned());
        let message = format!("slot {slot} of array {} is empty, and {drive} is free", self.name());
        Ok(match late {
            0 => Done::new(message),
            late => Done::new(format!(
                "{message} as soon as the {late} requests have ended that it has not answered"
            )),
        })
    }

    /// Empties a slot whose member has failed; returns how many requests its drive has not answered.
    async fn vacate(&self, cores: &Cores, slot: usize) -> Result<usize, Refusal> {
        let label = self.label(slot);
        self.shared.remove_member(slot);
        self.until_recorded().await?;
        cores.each(self.index, |_| move |array| array.take_drive(slot)).await;
        if let Some(handle) = self.handle() {
            let handle = Arc::clone(handle);
            let remove = move || {
                let mut handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
                drop(handle.remove(slot));
            };
            // Closing a drive may wait for it.
            let _ = tokio::task::spawn_blocking(remove).await;
        }
        self.forget_label(slot);
        Ok(label.map_or(0, |label| label.limit.late.count()))
    }

    /// Puts a drive in.
    pub(super) async fn add(
        &self,
        cores: &Cores,
        drive: PathBuf,
        slot: Option<usize>,
    ) -> Result<Done, Refusal> {
        let _changing = self.changing.lock().await;
        self.let_go_of(cores, &drive, slot).await?;
        let newcomer = blocking(move || Newcomer::open(&drive)).await?;
        let name = newcomer.name();
        let added = self.take_in(cores, newcomer, slot).await?;
        let what = match added.misses_bytes {
            None => "it is filled whole".to_owned(),
            Some(bytes) => format!("it gets the {} that it missed", format_bytes(bytes)),
        };
        let array = self.name();
        Ok(Done::new(format!("{name} is slot {} of array {array} now; {what}", added.slot))
            .next(format!("raidfabric wait {array} --for rebuilt")))
    }

    /// Finishes writes, marks the array clean, and takes no more.
    pub(super) async fn stop(&self, _cores: &Cores) -> Result<Done, Refusal> {
        let _changing = self.changing.lock().await;
        self.set_stopped();
        self.shared.stop_writes();
        let deadline = tokio::time::Instant::now() + RECORD_PATIENCE;
        while self.shared.writes_in_flight() > 0 {
            if tokio::time::Instant::now() > deadline {
                return Err(Refusal::failed("it takes no more writes, and some do not end"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.shared.try_clean();
        self.until_recorded().await?;
        Ok(Done::new(format!("array {} is stopped, and marked clean", self.name())))
    }

    /// Compares everything, and with `repair` makes equal what differs.
    pub(super) fn check(&self, repair: bool) -> Result<Done, Refusal> {
        let name = self.name();
        let word = if repair { "repair" } else { "check" };
        if self.shared.geometry().tolerance() == 0 {
            return Err(Refusal::conflict(format!(
                "array {name} has no redundancy, so that there is nothing to compare"
            )));
        }
        if !self.shared.start_check(repair) {
            return Err(Refusal::conflict(format!(
                "array {name} is being checked already; raidfabric status {name} tells how far it is"
            )));
        }
        let how = match (repair, self.shared.geometry().parities()) {
            (false, _) => "nothing is changed, but what cannot be read is written anew",
            (true, 0) => "where copies differ the one on the lowest slot is taken",
            (true, 1) => "where parity does not fit it is computed from the data",
            (true, _) => "a single wrong block of a stripe is found out and corrected",
        };
        Ok(Done::new(format!("the {word} of array {name} has begun: {how}"))
            .next(format!("raidfabric wait {name} --for idle")))
    }

    /// Ends a check.
    pub(super) fn cancel(&self) -> Result<Done, Refusal> {
        match self.shared.stop_check() {
            true => Ok(Done::new(format!("the check of array {} ends", self.name()))),
            false => Err(Refusal::conflict(format!("array {} is not being checked", self.name()))),
        }
    }

    /// If the drive is a failed member that we still have, lets go of it first.
    async fn let_go_of(
        &self,
        cores: &Cores,
        drive: &Path,
        slot: Option<usize>,
    ) -> Result<(), Refusal> {
        let is_it = |slot: &usize| {
            let text = drive.to_string_lossy();
            self.label(*slot).is_some_and(|label| inspect::is_named(&label.identity, &text))
        };
        let slots = 0..self.shared.geometry().members();
        let Some(held) = slots.into_iter().find(is_it) else { return Ok(()) };
        match self.state_of(held) {
            MemberState::Failed if slot.is_none_or(|slot| slot == held) => {
                self.vacate(cores, held).await?;
                Ok(())
            }
            MemberState::InSync | MemberState::Rebuilding => Err(Refusal::conflict(format!(
                "{} is slot {held} of the array, and in use",
                drive.display()
            ))),
            _ => Ok(()),
        }
    }

    /// The slot for a newcomer: the one that is asked for, its own, the first empty one, the first
    /// that has failed.
    fn place_for(&self, newcomer: &Newcomer, wanted: Option<usize>) -> Result<usize, Refusal> {
        let states = self.shared.member_states();
        let is_free = |slot: usize| {
            matches!(states.get(slot), Some(MemberState::Missing | MemberState::Failed))
        };
        if let Some(slot) = wanted {
            return is_free(slot).then_some(slot).ok_or_else(|| match slot < states.len() {
                true => Refusal::conflict(format!(
                    "slot {slot} is in use; `raidfabric array fail {} {slot}` takes it out of use",
                    self.name()
                )),
                false => Refusal::not_found(format!("there is no slot {slot}")),
            });
        }
        let with = |state| states.iter().position(|other| *other == state);
        let own = newcomer.own_slot(self).filter(|slot| is_free(*slot));
        own.or_else(|| with(MemberState::Missing)).or_else(|| with(MemberState::Failed)).ok_or_else(
            || {
                Refusal::conflict(format!(
                    "array {} has a member in every slot; a spare is named in the configuration \
                     (`spares`)",
                    self.name()
                ))
            },
        )
    }

    /// Makes a newcomer a member. The array is changed by nobody else meanwhile.
    pub(super) async fn take_in(
        &self,
        cores: &Cores,
        newcomer: Newcomer,
        wanted: Option<usize>,
    ) -> Result<Added, Refusal> {
        let Some(handle) = self.handle() else {
            return Err(Refusal::conflict("members in memory have no drives that could be added"));
        };
        if self.shared.failure().is_some() {
            return Err(Refusal::conflict(
                "the array has failed: there is nothing that a new drive could be filled from",
            ));
        }
        let late = self.owed_operations();
        if late > 0 && newcomer.is_of(self) {
            return Err(Refusal::conflict(format!(
                "{}: {late} requests to a former member have not ended, and if it is this one they \
                 could overwrite newer data later; wait, or pull the drive and put it back",
                newcomer.name()
            )));
        }
        let slot = self.place_for(&newcomer, wanted)?;
        if self.state_of(slot) == MemberState::Failed {
            self.vacate(cores, slot).await?;
        }
        let prepared = {
            let (handle, timeout) = (Arc::clone(handle), self.conduct.member_timeout);
            blocking(move || prepare(&handle, slot, newcomer, timeout)).await?
        };
        if let Err(refusal) = self.hand_out(cores, slot, &prepared).await {
            self.take_back(cores, slot).await;
            return Err(refusal);
        }
        self.learn_label(slot, prepared.label.clone());
        if !self.begin_rebuild(slot, prepared.returning.as_ref()) {
            self.take_back(cores, slot).await;
            return Err(Refusal::conflict(format!("slot {slot} is not empty any more")));
        }
        self.until_recorded().await?;
        let misses_bytes = prepared.returning.map(|returning| returning.misses_bytes);
        Ok(Added { slot, misses_bytes })
    }

    /// Tells the array that a slot has a drive. False if the slot is not empty any more.
    fn begin_rebuild(&self, slot: usize, returning: Option<&Returning>) -> bool {
        match returning {
            None => self.shared.add_member(slot),
            Some(known) => self.shared.readd_member(slot, known.events, &known.bad_blocks),
        }
    }

    /// Gives each core a handle on a slot's new drive, and has it prepared.
    async fn hand_out(
        &self,
        cores: &Cores,
        slot: usize,
        prepared: &Prepared,
    ) -> Result<(), Refusal> {
        self.set_drive(cores, slot, prepared).await?;
        let places = prepared.places;
        let admit = move |array: Rc<Array<MemberDrive>>| async move {
            array.admit_drive(slot, places).await
        };
        match cores.first(self.index, admit).await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(Refusal::failed(format!(
                "what the drive must hold of the write intent could not be written to it: {error}"
            ))),
            None => Err(Refusal::failed("the daemon is stopping")),
        }
    }

    /// Gives each core a handle on a slot's new drive.
    async fn set_drive(
        &self,
        cores: &Cores,
        slot: usize,
        prepared: &Prepared,
    ) -> Result<(), Refusal> {
        let Some(handle) = self.handle() else { return Ok(()) };
        let plans: Result<Vec<_>, _> = {
            let handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
            let member = handle.member(slot);
            let limit = &prepared.label.limit;
            let plan = || member.map(|member| member_plan(member, limit)).transpose();
            (0..cores.count()).map(|_| plan()).collect()
        };
        let mut plans = plans
            .map_err(|error| Refusal::failed(format!("cannot duplicate a descriptor: {error}")))?;
        let data_offset_bytes = prepared.data_offset_bytes;
        let set = |core: usize| {
            let plan = plans.get_mut(core).and_then(Option::take);
            move |array: &Array<MemberDrive>| match plan {
                Some(plan) => array.set_drive(slot, plan.open(), data_offset_bytes),
                None => Ok(()),
            }
        };
        let answers = cores.each(self.index, set).await;
        for answer in answers {
            answer
                .map_err(|error| Refusal::conflict(format!("the drive does not fit: {error}")))?;
        }
        Ok(())
    }

    /// Takes the drive again without which the array has failed.
    pub(super) async fn mend(
        &self,
        cores: &Cores,
        drive: PathBuf,
        slot: usize,
    ) -> Result<Done, Refusal> {
        let _changing = self.changing.lock().await;
        let Some(handle) = self.handle() else {
            return Err(Refusal::conflict("members in memory do not come back"));
        };
        let late = self.label(slot).map_or(0, |label| label.limit.late.count());
        if late > 0 {
            return Err(Refusal::conflict(format!(
                "{late} requests to slot {slot} have not ended, and could overwrite newer data later"
            )));
        }
        let newcomer = blocking(move || Newcomer::open(&drive)).await?;
        let name = newcomer.name();
        let cache_was_lost = newcomer.medium.has_volatile_cache();
        // Before it is in its place: what is there is read.
        if !self.shared.can_mend(slot, cache_was_lost) {
            let why = match self.shared.can_mend(slot, false) {
                true => "what it had in its cache may be lost, and with it what parity stands for",
                false => "it has lost what it had acknowledged, or the array failed in another way",
            };
            return Err(Refusal::conflict(format!(
                "{name} is back, but array {} cannot go on with it as it was: {why}. Restart the \
                 daemon, which assembles the array anew",
                self.name()
            )));
        }
        let prepared = {
            let (handle, timeout) = (Arc::clone(handle), self.conduct.member_timeout);
            blocking(move || reopen(&handle, slot, newcomer, timeout)).await?
        };
        self.set_drive(cores, slot, &prepared).await?;
        self.learn_label(slot, prepared.label.clone());
        if !self.shared.mend(slot, cache_was_lost) {
            return Err(Refusal::conflict(format!(
                "{name} is back in slot {slot}, but the array has failed in another way meanwhile; \
                 restart the daemon, which assembles it anew"
            )));
        }
        Ok(Done::new(format!("{name} is back in slot {slot} of array {}", self.name())))
    }

    /// Undoes what was done for a drive that did not become a member.
    async fn take_back(&self, cores: &Cores, slot: usize) {
        cores.each(self.index, |_| move |array| array.take_drive(slot)).await;
        if let Some(handle) = self.handle() {
            let handle = Arc::clone(handle);
            let remove = move || {
                let mut handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
                drop(handle.remove(slot));
            };
            let _ = tokio::task::spawn_blocking(remove).await;
        }
        self.forget_label(slot);
    }
}

/// A member that came in.
pub(super) struct Added {
    pub(super) slot: usize,
    /// What it missed, if that is known.
    pub(super) misses_bytes: Option<u64>,
}

/// A drive that is a spare of the array by now.
struct Prepared {
    label: Label,
    data_offset_bytes: u64,
    /// Where the write intent is on it.
    places: IntentPlaces,
    /// What is known of it, if it was this slot's member and what it misses is known.
    returning: Option<Returning>,
}

/// A former member of which it is known what it misses.
struct Returning {
    /// The event count that its superblock had.
    events: u64,
    bad_blocks: Vec<BadRange>,
    misses_bytes: u64,
}

/// Writes a superblock to a newcomer that makes it a spare. Blocking.
fn prepare(
    handle: &Handle,
    slot: usize,
    newcomer: Newcomer,
    timeout: Duration,
) -> Result<Prepared, Refusal> {
    let Newcomer { medium, examined } = newcomer;
    let identity = medium.identity().clone();
    let mut handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
    let component_bytes = handle.info().geometry.component_bytes;
    let misses = handle.missed_by(slot, &examined).map_err(Refusal::failed)?;
    let returning = misses.zip(examined.superblock()).map(|(misses, superblock)| Returning {
        events: superblock.events(),
        bad_blocks: match &examined.bad_blocks {
            Some(Ok(log)) => log.ranges(superblock.data_offset_bytes(), component_bytes),
            _ => Vec::new(),
        },
        misses_bytes: misses.len().saturating_mul(misses.region_bytes()),
    });
    let medium = PatientDevice::new(medium, timeout);
    handle.add(slot, medium, &examined, false).map_err(|error| match error {
        AddError::NotBlank { .. } | AddError::TooSmall { .. } | AddError::SlotTaken(_) => {
            Refusal::conflict(error)
        }
        error => Refusal::failed(error),
    })?;
    let data_offset_bytes = handle.member(slot).map_or(0, |member| member.data_offset_bytes());
    let label = Label { identity, limit: TimeLimit { timeout, ..TimeLimit::default() } };
    let places = handle.intent_places(slot);
    Ok(Prepared { label, data_offset_bytes, places, returning })
}

/// Puts a new handle on a member's drive in place of the old one. Blocking.
fn reopen(
    handle: &Handle,
    slot: usize,
    newcomer: Newcomer,
    timeout: Duration,
) -> Result<Prepared, Refusal> {
    let Newcomer { medium, examined } = newcomer;
    let identity = medium.identity().clone();
    let mut handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
    let medium = PatientDevice::new(medium, timeout);
    handle.reopen(slot, medium, &examined).map_err(|medium| {
        Refusal::conflict(format!(
            "{}: its superblock is not what slot {slot} was last given; it is another drive, or was \
             used elsewhere meanwhile",
            medium.identity()
        ))
    })?;
    let data_offset_bytes = handle.member(slot).map_or(0, |member| member.data_offset_bytes());
    let label = Label { identity, limit: TimeLimit { timeout, ..TimeLimit::default() } };
    let places = handle.intent_places(slot);
    Ok(Prepared { label, data_offset_bytes, places, returning: None })
}

/// Does what blocks where that does not matter.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Refusal::failed(format!("that ended with a fault of raidfabric: {error}")))
    })
}
