//! From configured arrays to open ones: look at everything first, then create or assemble.
//!
//! 1. [`Prospect::look`] opens and reads the drives of one array and decides what they are. Nothing
//!    is written, so that a fault in any array leaves all of them as they were.
//! 2. [`Prospect::take`] creates the array or puts it together.
//!
//! An array that has existed is never created anew: neither one whose UUID is configured, nor one
//! that the state directory remembers. What the operator names may be (see [`super::overwrite`]).

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use raidfabric_raid::array::{BadRange, IntentLayout, MemberState, Wanted};
use raidfabric_raid::assemble::{
    self, ArrayHandle, ArrayInfo, AssemblyPlan, CreateError, Decision, Description, Examined,
    Expected, NewArray, NotMember, ReplayFailure, UpdateError, examine,
};
use raidfabric_raid::device::{
    Identity, Intent, Medium, OpenDevice, Patience, advice, open, open_patiently,
};
use raidfabric_raid::geometry::{self, Geometry};
use raidfabric_raid::memory::MemoryDrive;
use raidfabric_raid::metadata;
use raidfabric_raid::metadata::superblock::{self, Role};
use uuid::Uuid;

use super::error::ArrayStartError;
use super::patient::PatientDevice;
use super::state::{Record, StateDirectory};
use super::strays::{with_moved_members, without_blank};
use crate::config::drives::{Drives, Listed};
use crate::config::{Array, Consistency, Level};
use crate::core::MemberPlan;
use crate::runtime::{DriveFacts, TimeLimit};

/// How long a drive is waited for whose last owner was killed with requests in the kernel.
const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(30);

/// Of an array that is not over drives.
const NO_DRIVES: &Listed = &Listed { present: Vec::new(), absent: Vec::new() };

/// The namespace of names in which memory arrays have their UUIDs.
pub(super) const MEMORY_NAMESPACE: Uuid =
    Uuid::from_u128(0x6f1c_2f0a_63d7_4c0e_9a1b_7261_6964_6661);

/// A configured array whose drives have been looked at.
pub struct Prospect {
    name: String,
    kind: Kind,
    accepted: Accepted,
    /// How long a drive may take for a request.
    member_timeout: Duration,
}

enum Kind {
    Memory(Geometry, Vec<MemoryDrive>),
    Drives(Survey),
}

/// The superblocks of an array.
pub type Handle = Arc<Mutex<ArrayHandle<PatientDevice>>>;

/// An array that is ours.
pub struct OpenArray {
    /// Its name in the configuration.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its shape.
    pub geometry: Geometry,
    /// How it is made consistent after a crash.
    pub consistency: Consistency,
    /// What each slot is.
    pub members: Vec<MemberState>,
    /// Where each member's data begins, by slot; 0 for a slot without a drive.
    pub data_offsets_bytes: Vec<u64>,
    /// Up to where its copies agree; `u64::MAX` for everywhere.
    pub resync_position_bytes: u64,
    /// Where the rebuild of members goes on.
    pub rebuild_from_bytes: Option<u64>,
    /// What cannot be read, by slot.
    pub bad_blocks: Vec<Vec<BadRange>>,
    /// Whether it has just been created.
    pub created: bool,
    /// Whether its redundancy has never been whole.
    pub is_building: bool,
    /// The names of its drives by slot, when they were last there; may be empty.
    pub last_known: Vec<String>,
    /// Where its write intent is.
    pub intent: IntentLayout,
    /// Its superblocks; `None` in memory.
    pub handle: Option<Handle>,
    memory: Vec<MemoryDrive>,
    /// How long each member's drive is waited for, and what it owes; by slot, none in memory.
    pub(super) time_limits: Vec<TimeLimit>,
}

/// What an operator has accepted for a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// That members are missing which may be newer.
    pub run: bool,
    /// That what was being written to stripes without all their members may be wrong.
    pub force: bool,
    /// That all but the history of this drive is lost.
    pub winner: Option<String>,
}

impl Accepted {
    /// Whether anything is.
    pub fn is_something(&self) -> bool {
        *self != Self::default()
    }
}

/// Opens drives of an array for ourselves, waiting so long for a predecessor that was killed.
///
/// # Errors
/// [`ArrayStartError::Device`].
pub(super) fn own_drives(
    array: &str,
    paths: &[PathBuf],
    limit: Duration,
) -> Result<Vec<OpenDevice>, ArrayStartError> {
    let device = |source| ArrayStartError::Device { array: array.to_owned(), source };
    let mut media = Vec::with_capacity(paths.len());
    for path in paths {
        let mut notify = |text: &str| tracing::warn!(array, "{text}");
        let patience = Patience { limit, notify: &mut notify };
        let medium = open_patiently(path, Intent::Own, patience).map_err(device)?;
        if let Some(warning) = medium.identity().warning() {
            tracing::warn!(array, "{warning}");
        }
        media.push(medium);
    }
    Ok(media)
}

/// Opens drives only to look at them, whoever has them.
fn look_at_drives(array: &str, paths: &[PathBuf]) -> Result<Vec<OpenDevice>, ArrayStartError> {
    let device = |source| ArrayStartError::Device { array: array.to_owned(), source };
    paths.iter().map(|path| open(path, Intent::Examine).map_err(device)).collect()
}

/// That every member that the file names is there.
pub(super) fn all_present(array: &str, listed: &Listed) -> Result<(), ArrayStartError> {
    if listed.absent.is_empty() {
        return Ok(());
    }
    let absent: Vec<_> = listed.absent.iter().map(ToString::to_string).collect();
    Err(ArrayStartError::Absent { array: array.to_owned(), absent: absent.join("; ") })
}

/// Reads what drives hold.
///
/// # Errors
/// [`ArrayStartError::Drives`].
pub(super) fn examine_all(
    array: &str,
    media: &[OpenDevice],
) -> Result<Vec<Examined>, ArrayStartError> {
    let failed = |source: assemble::AssembleError| ArrayStartError::Drives {
        array: array.to_owned(),
        source: Box::new(source.into()),
    };
    media.iter().map(|medium| examine(medium).map_err(failed)).collect()
}

/// The array that is created if the drives are blank.
pub(super) fn new_array(array: &Array, homehost: Option<String>) -> NewArray {
    NewArray {
        name: array.name.clone(),
        homehost,
        level: metadata_level(array.level),
        chunk_bytes: array.chunk_bytes,
        uuid: None,
        consistency: Some(match array.consistency {
            Consistency::None => metadata::Consistency::None,
            Consistency::Resync => metadata::Consistency::Resync,
            Consistency::Bitmap => metadata::Consistency::Bitmap,
            Consistency::Ppl => metadata::Consistency::Ppl,
        }),
        assume_clean: false,
    }
}

/// Drives that were examined, and what they are together.
struct Survey {
    media: Vec<OpenDevice>,
    examined: Vec<Examined>,
    decision: Decision,
}

impl Survey {
    /// `open` opens the drives.
    fn new(
        array: &Array,
        listed: &Listed,
        homehost: Option<String>,
        state: Option<&StateDirectory>,
        accepted: &Accepted,
        open: impl FnOnce(&[PathBuf]) -> Result<Vec<OpenDevice>, ArrayStartError>,
    ) -> Result<Self, ArrayStartError> {
        let name = &array.name;
        let record = state.map(|state| state.record(name)).transpose()?.flatten();
        let known = array.uuid.or(record.as_ref().map(|record| record.uuid));
        let remembered = record.as_ref().map_or(&[][..], |record| &record.members);
        let media = open(&with_moved_members(&listed.present, known, remembered))?;
        let examined = examine_all(name, &media)?;
        let (media, examined) = without_blank(name, known, media, examined);
        // Which array is meant, if drives of several are listed: the configured one, or the one that
        // is remembered, and not whatever the first drive of the list has.
        let carries = |uuid: &Uuid| {
            let mut members = examined.iter().filter_map(Examined::superblock);
            members.any(|superblock| superblock.array_uuid() == *uuid)
        };
        let expected = Expected {
            uuid: array.uuid.or(known.filter(carries)),
            level: Some(metadata_level(array.level)),
            chunk_bytes: (array.chunk_bytes > 0).then_some(array.chunk_bytes),
            last_known: record
                .iter()
                .flat_map(|record| (0..).zip(record.members.iter().cloned()))
                .filter(|(_, name)| !name.is_empty())
                .collect(),
            known_events: record.as_ref().and_then(|record| record.events),
            run: accepted.run,
            force: accepted.force,
            winner: accepted.winner.clone(),
        };
        let decision =
            assemble::decide(&examined, &expected, &new_array(array, homehost)).map_err(
                |source| ArrayStartError::Drives { array: name.clone(), source: Box::new(source) },
            )?;
        if matches!(decision, Decision::Create(_)) {
            all_present(name, listed)?;
        }
        let Some((record, state)) = record.zip(state) else {
            return Ok(Self { media, examined, decision });
        };
        let (array_name, path, uuid) = (name.clone(), state.path_of(name), record.uuid);
        match &decision {
            Decision::Create(_) => {
                Err(ArrayStartError::Existed { array: array_name, uuid, record: path })
            }
            Decision::Assemble(plan) if plan.info.uuid != uuid && array.uuid.is_none() => {
                let names = examined.iter().map(|drive| drive.name.as_str());
                Err(ArrayStartError::Other {
                    array: array_name,
                    drives: names.collect::<Vec<_>>().join(", "),
                    found: plan.info.uuid,
                    uuid,
                    record: path,
                })
            }
            Decision::Assemble(_) => Ok(Self { media, examined, decision }),
        }
    }
}

impl Survey {
    /// What the array holds, if it exists and that can be read. Nothing is written.
    fn peek(&self) -> Option<Examined> {
        let Decision::Assemble(plan) = &self.decision else { return None };
        assemble::peek(plan, &self.examined, &self.media).ok()
    }
}

/// What a configured array is, by a look at its drives.
pub enum Outlook {
    /// In memory: there is nothing to create.
    Memory,
    /// It exists; and what is at the beginning of what it holds, if that can be read.
    Exists(Box<ArrayInfo>, Option<Box<Examined>>),
    /// Its drives are blank.
    Blank,
}

impl Outlook {
    /// Looks at the drives of an array, read-only, also while somebody has them.
    ///
    /// # Errors
    /// [`ArrayStartError`]: they are neither the array nor all blank.
    pub fn look(
        array: &Array,
        drives: &Drives,
        state: Option<&StateDirectory>,
    ) -> Result<Self, ArrayStartError> {
        let Drives::Paths(listed) = drives else { return Ok(Self::Memory) };
        let open = |paths: &[PathBuf]| look_at_drives(&array.name, paths);
        let survey = Survey::new(array, listed, None, state, &Accepted::default(), open)?;
        let found = survey.peek();
        Ok(match survey.decision {
            Decision::Assemble(plan) => Self::Exists(Box::new(plan.info), found.map(Box::new)),
            Decision::Create(_) => Self::Blank,
        })
    }
}

impl Prospect {
    /// Opens and examines the drives of an array and decides what to do with them.
    ///
    /// # Errors
    /// [`ArrayStartError`]; nothing has been written.
    pub fn look(
        array: &Array,
        drives: &Drives,
        homehost: Option<String>,
        state: Option<&StateDirectory>,
        accepted: &Accepted,
    ) -> Result<Self, ArrayStartError> {
        let (name, member_timeout) = (array.name.clone(), array.member_timeout);
        let listed = match drives {
            Drives::Memory(sizes) => {
                let geometry = memory_geometry(array, sizes)?;
                let drives = sizes.iter().map(|&size| MemoryDrive::new(size)).collect();
                let kind = Kind::Memory(geometry, drives);
                let accepted = Accepted::default();
                return Ok(Self { name, kind, accepted, member_timeout });
            }
            Drives::Paths(listed) => listed,
            // Its leaves are looked at, one by one.
            Drives::Arrays(_) => NO_DRIVES,
        };
        let open = |paths: &[PathBuf]| own_drives(&name, paths, PREDECESSOR_PATIENCE);
        let survey = Survey::new(array, listed, homehost, state, accepted, open)?;
        let (kind, accepted) = (Kind::Drives(survey), accepted.clone());
        Ok(Self { name, kind, accepted, member_timeout })
    }

    /// If it is created: whether what is on its drives is taken as agreeing.
    #[must_use]
    pub fn assume_clean(mut self, assume_clean: bool) -> Self {
        if let Kind::Drives(Survey { decision: Decision::Create(plan), .. }) = &mut self.kind {
            plan.assume_clean = assume_clean;
        }
        self
    }

    /// If it is created: another array will be created on it.
    #[must_use]
    pub fn below(mut self) -> Self {
        if let Kind::Drives(Survey { decision: Decision::Create(plan), .. }) = &mut self.kind {
            plan.blank_ends = true;
        }
        self
    }

    /// The array's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its members are memory.
    pub fn is_memory(&self) -> bool {
        matches!(self.kind, Kind::Memory(..))
    }

    /// What it holds at its own beginning, if it exists and that can be read. Nothing is written.
    pub fn peek(&self) -> Option<Examined> {
        match &self.kind {
            Kind::Memory(..) => None,
            Kind::Drives(survey) => survey.peek(),
        }
    }

    /// The size that the array has, or will have once it is created.
    ///
    /// # Errors
    /// [`ArrayStartError`]: its shape is not possible.
    pub fn capacity_bytes(&self) -> Result<u64, ArrayStartError> {
        let on_disk = match &self.kind {
            Kind::Memory(geometry, _) => return Ok(geometry.capacity_bytes()),
            Kind::Drives(survey) => match &survey.decision {
                Decision::Create(plan) => plan.geometry,
                Decision::Assemble(plan) => plan.info.geometry,
            },
        };
        Ok(engine_geometry(&self.name, &on_disk)?.capacity_bytes())
    }

    /// Drives that went another way than the winner that an operator has named, and whose history is
    /// given up for it.
    pub fn losers(&self) -> Vec<Description> {
        let Kind::Drives(Survey { media, examined, decision: Decision::Assemble(plan) }) =
            &self.kind
        else {
            return Vec::new();
        };
        let lost = plan.left_over.iter().filter(|left| left.reason == NotMember::Diverged);
        let describe = |left: &assemble::LeftOver| {
            let medium = media.get(left.drive)?;
            Some(Description {
                identity: medium.identity().clone(),
                size_bytes: Medium::size_bytes(medium),
                contents: examined.get(left.drive)?.contents.clone(),
            })
        };
        lost.filter_map(describe).collect()
    }

    /// Writes down what an operator has decided, so that the array starts by itself from now on.
    ///
    /// # Errors
    /// [`ArrayStartError`]; it says what has been written.
    pub fn decide(self, state: Option<&StateDirectory>) -> Result<OpenArray, ArrayStartError> {
        let losers: Vec<PathBuf> = self.losers().into_iter().map(|one| one.identity.path).collect();
        let is_dirty = self.plan().is_some_and(|plan| plan.dirty.is_some());
        let member_timeout = self.member_timeout;
        let array = self.take(state)?;
        let Some(handle) = &array.handle else { return Ok(array) };
        let name = &array.name;
        let failed = |source: CreateError| ArrayStartError::Drives {
            array: name.clone(),
            source: Box::new(source),
        };
        let mut handle = handle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // What the bitmap has to be believed for is only looked up in an array that was active.
        let wanted = Wanted { active: is_dirty, ..handle.recorded().clone() };
        let recorded = handle.record(&wanted).map_err(|error| failed(error.into()))?;
        // A loser becomes a spare: it has no history any more that could be taken for the array's.
        for medium in own_drives(name, &losers, Duration::ZERO)? {
            let examined = examine(&medium).map_err(|error| failed(error.into()))?;
            let free = |slot: &usize| handle.member(*slot).is_none();
            let Some(slot) = (0..array.geometry.members()).find(free) else { break };
            let drive = medium.identity().to_string();
            let medium = PatientDevice::new(medium, member_timeout);
            handle.add(slot, medium, &examined, true).map_err(|source| ArrayStartError::Add {
                array: name.clone(),
                drive,
                source,
            })?;
        }
        drop(handle);
        if let Some(state) = state {
            let record = Record::new(array.uuid, array.member_names(), Some(recorded.events));
            state.remember(name, &record)?;
        }
        Ok(array)
    }

    /// The blocks of each drive, with its name.
    pub fn drive_blocks(&self) -> Vec<(String, u32)> {
        match &self.kind {
            Kind::Memory(..) => Vec::new(),
            Kind::Drives(survey) => survey
                .media
                .iter()
                .map(|medium| (medium.identity().name(), medium.logical_block_bytes()))
                .collect(),
        }
    }

    /// Creates the array on its blank drives, or puts it together.
    ///
    /// # Errors
    /// [`ArrayStartError`]; it says what has been written.
    pub fn take(self, state: Option<&StateDirectory>) -> Result<OpenArray, ArrayStartError> {
        let Self { name, kind, accepted, member_timeout } = self;
        let Survey { media, examined, decision } = match kind {
            Kind::Memory(geometry, memory) => return Ok(memory_array(name, geometry, memory)),
            Kind::Drives(survey) => survey,
        };
        let failed =
            |source| ArrayStartError::Drives { array: name.clone(), source: Box::new(source) };
        let patient = |medium| PatientDevice::new(medium, member_timeout);
        let media = media.into_iter().map(patient).collect();
        match decision {
            Decision::Create(plan) => {
                let handle = assemble::create(&plan, media).map_err(failed)?;
                settle(from_handle(name, handle, true, &accepted)?, state)
            }
            Decision::Assemble(plan) => {
                let handle = put_together(&name, &plan, &examined, media).map_err(failed)?;
                settle(from_handle(name, handle, false, &accepted)?, state)
            }
        }
    }

    /// The slots whose drives are missing although no superblock says that they are lost: they may
    /// be late.
    pub fn awaited(&self) -> Vec<usize> {
        let Kind::Drives(Survey { examined, decision: Decision::Assemble(plan), .. }) = &self.kind
        else {
            return Vec::new();
        };
        let present = plan.slots.iter().filter_map(|slot| examined.get(slot.drive?)?.superblock());
        let Some(newest) = present.max_by_key(|superblock| superblock.events()) else {
            return Vec::new();
        };
        let is_claimed = |slot: usize| {
            let claims = |number| newest.role_of(number);
            let role = u16::try_from(slot).map_or(Role::Faulty, Role::Active);
            (0..newest.role_count()).any(|number| claims(number) == role)
        };
        let slots = plan.slots.iter().enumerate();
        let missing = slots.filter(|(_, slot)| slot.drive.is_none()).map(|(slot, _)| slot);
        missing.filter(|slot| is_claimed(*slot)).collect()
    }

    /// What it is, if it exists.
    pub fn plan(&self) -> Option<&AssemblyPlan> {
        match &self.kind {
            Kind::Drives(Survey { decision: Decision::Assemble(plan), .. }) => Some(plan),
            _ => None,
        }
    }
}

/// Puts an array together from its drives, and makes them ready to be used.
fn put_together(
    name: &str,
    plan: &AssemblyPlan,
    examined: &[Examined],
    media: Vec<PatientDevice>,
) -> Result<ArrayHandle<PatientDevice>, CreateError> {
    for risk in &plan.risks {
        tracing::warn!(array = name, "as you accept: {risk}");
    }
    let (mut handle, unused) = ArrayHandle::assemble(plan, examined, media);
    for left in &plan.left_over {
        if let Some(drive) = examined.get(left.drive) {
            let drive = &drive.name;
            tracing::warn!(array = name, drive, "it is no member of the array: {}", left.reason);
        }
    }
    drop(unused);
    handle.take_over()?;
    Ok(handle)
}

/// Remembers an array that is ours, and advises on what could take it away at the next boot.
pub(super) fn settle(
    mut array: OpenArray,
    state: Option<&StateDirectory>,
) -> Result<OpenArray, ArrayStartError> {
    if let Some(state) = state {
        let events = array.events().map(|events| remembered_events(state, &array, events));
        let known = state.record(&array.name)?.filter(|known| known.uuid == array.uuid);
        let was_building = array.created || known.as_ref().is_some_and(|known| known.is_building);
        array.last_known = known.map(|known| known.members).unwrap_or_default();
        array.is_building = was_building && array.resync_position_bytes != u64::MAX;
        let record = Record {
            is_building: array.is_building,
            ..Record::new(array.uuid, array.member_names(), events)
        };
        state.remember(&array.name, &record)?;
    }
    if let Some(advice) = advice::assembly_advice(array.uuid) {
        tracing::warn!(array = array.name, "{advice}");
    }
    Ok(array)
}

/// The event count to be remembered of an array that starts with `events`. With a member missing or
/// being rebuilt it is the one that all others have, which no lost member has: the loss may have been
/// recorded in the superblocks right before a power cut, and never been noted. Otherwise what is
/// remembered stays, as no member has been lost since; or else it is one less than now, which no lost
/// member has, and every member does that a crash left one behind.
fn remembered_events(state: &StateDirectory, array: &OpenArray, events: u64) -> u64 {
    if array.members.iter().any(|member| *member != MemberState::InSync) {
        return array.common_events().unwrap_or(events);
    }
    let known = state.record(&array.name).ok().flatten();
    let known = known.filter(|known| known.uuid == array.uuid).and_then(|known| known.events);
    known.filter(|known| *known <= events).unwrap_or_else(|| events.saturating_sub(1))
}

fn metadata_level(level: Level) -> metadata::Level {
    match level {
        Level::Raid0 | Level::Raid50 | Level::Raid60 | Level::Raid100 => metadata::Level::Raid0,
        Level::Raid1 => metadata::Level::Raid1,
        Level::Raid5 => metadata::Level::Raid5,
        Level::Raid6 => metadata::Level::Raid6,
        Level::Raid10 => metadata::Level::Raid10,
    }
}

pub(super) fn engine_geometry(
    name: &str,
    on_disk: &superblock::Geometry,
) -> Result<Geometry, ArrayStartError> {
    let level = geometry::Level::from(on_disk.level);
    let chunk = u32::try_from(on_disk.chunk_bytes).unwrap_or(u32::MAX);
    Geometry::new(level, on_disk.members, chunk, on_disk.component_bytes)
        .map_err(|source| ArrayStartError::Geometry { array: name.to_owned(), source })
}

pub(super) fn from_handle(
    name: String,
    mut handle: ArrayHandle<PatientDevice>,
    created: bool,
    accepted: &Accepted,
) -> Result<OpenArray, ArrayStartError> {
    let geometry = engine_geometry(&name, &handle.info().geometry)?;
    let intent = ready_intent(&name, &mut handle, accepted)?;
    let recorded = handle.recorded();
    let offset = |slot| handle.member(slot).map_or(0, assemble::Member::data_offset_bytes);
    Ok(OpenArray {
        uuid: handle.info().uuid,
        geometry,
        consistency: match handle.info().consistency {
            metadata::Consistency::None => Consistency::None,
            metadata::Consistency::Resync => Consistency::Resync,
            metadata::Consistency::Bitmap => Consistency::Bitmap,
            metadata::Consistency::Ppl => Consistency::Ppl,
        },
        members: recorded.members.clone(),
        data_offsets_bytes: (0..geometry.members()).map(offset).collect(),
        resync_position_bytes: handle.resync_from_bytes().unwrap_or(u64::MAX),
        rebuild_from_bytes: recorded.rebuild_from,
        bad_blocks: recorded.bad_blocks.clone(),
        created,
        is_building: false,
        last_known: Vec::new(),
        intent,
        time_limits: (0..geometry.members()).map(|_| TimeLimit::default()).collect(),
        handle: Some(Arc::new(Mutex::new(handle))),
        memory: Vec::new(),
        name,
    })
}

/// Has what was being written when the array stopped made good by its logs, and finds the write
/// intent.
pub(super) fn ready_intent(
    name: &str,
    handle: &mut ArrayHandle<PatientDevice>,
    accepted: &Accepted,
) -> Result<IntentLayout, ArrayStartError> {
    let blocks = handle.members().iter().map(|member| member.medium().logical_block_bytes());
    let block_bytes = blocks.max().unwrap_or(512);
    let failed = |source: ReplayFailure| ArrayStartError::Replay {
        array: name.to_owned(),
        source: Box::new(source),
    };
    let replayed = handle.replay(block_bytes, accepted.force).map_err(failed)?;
    if replayed.parts > 0 {
        tracing::warn!(
            array = name,
            writes = replayed.parts,
            bad_bytes = replayed.bad_bytes,
            "not stopped cleanly: parity was made good where it was being written"
        );
    }
    if replayed.bad_bytes > 0 {
        tracing::error!(
            array = name,
            "blocks of a missing member were being written together with others: {} cannot be read \
             until they are written again",
            crate::config::format_bytes(replayed.bad_bytes)
        );
    }
    record_losses(handle).map_err(|error| failed(error.into()))?;
    let layout = handle.intent_layout(replayed.next_generation);
    layout.map_err(|error| failed(error.into()))
}

/// Has it recorded that members are missing, if the superblocks do not say so yet: before anybody
/// writes, and also before anybody reads, as what is read of copies that differ has to be what is
/// read when a missing one is back after a crash.
fn record_losses<M: Medium>(handle: &mut ArrayHandle<M>) -> Result<(), UpdateError> {
    let recorded = handle.recorded().clone();
    if recorded.members.contains(&MemberState::Missing) {
        handle.record(&recorded)?;
    }
    Ok(())
}

fn memory_geometry(array: &Array, sizes: &[u64]) -> Result<Geometry, ArrayStartError> {
    let smallest = sizes.iter().copied().min().unwrap_or(0);
    let on_disk = superblock::Geometry {
        level: metadata_level(array.level),
        members: sizes.len(),
        chunk_bytes: array.chunk_bytes,
        component_bytes: smallest,
    };
    engine_geometry(&array.name, &on_disk)
}

fn memory_array(name: String, geometry: Geometry, memory: Vec<MemoryDrive>) -> OpenArray {
    OpenArray {
        // The same after a restart, as hosts that stay connected expect of it.
        uuid: Uuid::new_v5(&MEMORY_NAMESPACE, name.as_bytes()),
        geometry,
        consistency: match geometry.level() {
            geometry::Level::Raid0 => Consistency::None,
            _ => Consistency::Resync,
        },
        members: vec![MemberState::InSync; memory.len()],
        data_offsets_bytes: vec![0; memory.len()],
        resync_position_bytes: u64::MAX,
        rebuild_from_bytes: None,
        bad_blocks: vec![Vec::new(); memory.len()],
        created: true,
        is_building: false,
        last_known: Vec::new(),
        intent: IntentLayout::NONE,
        time_limits: Vec::new(),
        handle: None,
        memory,
        name,
    }
}

impl OpenArray {
    /// Handles on the members for one core: duplicates of the descriptors that own the drives.
    ///
    /// # Errors
    /// [`ArrayStartError::Descriptors`].
    pub fn member_plans(&self) -> Result<Vec<Option<MemberPlan>>, ArrayStartError> {
        let Some(handle) = &self.handle else {
            return Ok(self.memory.iter().cloned().map(MemberPlan::Memory).map(Some).collect());
        };
        let handle = handle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let plan = |(slot, limit)| {
            handle.member(slot).map(|member| member_plan(member, limit)).transpose()
        };
        let limits = self.time_limits.iter().enumerate();
        let plans = limits.map(plan).collect::<std::io::Result<_>>();
        plans.map_err(|source| ArrayStartError::Descriptors { array: self.name.clone(), source })
    }

    /// The drives by slot; nothing in memory.
    pub fn identities(&self) -> Vec<Option<Identity>> {
        let slots = 0..self.geometry.members();
        let Some(handle) = &self.handle else { return slots.map(|_| None).collect() };
        let handle = handle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let identity = |slot| Some(handle.member(slot)?.medium().identity().clone());
        slots.map(identity).collect()
    }

    /// The members' names by slot, with their serial numbers, for people; none in memory.
    pub fn drive_names(&self) -> Vec<String> {
        self.identities().into_iter().flatten().map(|identity| identity.to_string()).collect()
    }

    /// The event count of its superblocks; none in memory.
    fn events(&self) -> Option<u64> {
        let handle = self.handle.as_ref()?;
        let handle = handle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Some(handle.info().events)
    }

    /// The event count that all members in sync have; none in memory.
    fn common_events(&self) -> Option<u64> {
        let handle = self.handle.as_ref()?;
        let handle = handle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let in_sync = |slot: usize| self.members.get(slot) == Some(&MemberState::InSync);
        let members = handle.members().iter().filter(|member| in_sync(member.slot()));
        members.map(|member| member.superblock().events()).min()
    }

    /// The members' names by slot, as they are remembered: those of empty slots stay what they
    /// were.
    pub fn member_names(&self) -> Vec<String> {
        let name = |(slot, identity): (usize, Option<Identity>)| match identity {
            Some(identity) => identity.name(),
            None => self.last_known.get(slot).cloned().unwrap_or_default(),
        };
        self.identities().into_iter().enumerate().map(name).collect()
    }

    /// Whether acknowledged writes may be in a volatile cache until a flush.
    pub fn has_volatile_cache(&self) -> bool {
        self.handle.as_ref().is_some_and(|handle| {
            let handle = handle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            handle.members().iter().any(|member| member.medium().has_volatile_cache())
        })
    }
}

/// A handle on a member's drive for one core: a duplicate of the descriptor that owns the drive.
pub(super) fn member_plan(
    member: &assemble::Member<PatientDevice>,
    limit: &TimeLimit,
) -> std::io::Result<MemberPlan> {
    let medium = member.medium();
    let fd: OwnedFd = medium.descriptors().io.try_clone()?;
    let facts = DriveFacts {
        size_bytes: Medium::size_bytes(medium),
        block_size_bytes: medium.logical_block_bytes(),
        has_volatile_cache: medium.has_volatile_cache(),
    };
    Ok(MemberPlan::Uring(fd, facts, limit.clone()))
}
