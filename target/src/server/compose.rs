//! Arrays over arrays: from leaves that are open to the array that stripes over them.
//!
//! Its superblocks are where md has them: at the beginning of what each leaf holds. They say which
//! leaf has which slot, whatever order the configuration has them in, and are written when it is
//! created and not again: what happens to drives is recorded by the leaves.
//!
//! 1. [`check`] refuses before anything is written, by a look at the leaves.
//! 2. [`open`] takes the leaves once they are open, and creates the array or puts it together.
//!
//! Leaves that exist while another one does not are left alone unless they are blank inside, as a
//! creation leaves them that was cut short.

use std::sync::PoisonError;

use raidfabric_raid::assemble::{
    self, ArrayHandle, AssemblyPlan, CreateError, Decision, Examined, Expected, Nested,
    NestedError, NewArray, examine_medium,
};
use raidfabric_raid::device::signature::Contents;
use raidfabric_raid::device::{Medium, advice};
use raidfabric_raid::geometry::{self, Geometry};
use raidfabric_raid::metadata::{self, layout};
use uuid::Uuid;

use super::arrays::{MEMORY_NAMESPACE, OpenArray, Outlook, Prospect, engine_geometry};
use super::error::ArrayStartError;
use super::patient::PatientDevice;
use super::state::{Record, StateDirectory};
use crate::config::{Array, Config, Level};
use crate::core::Below;

/// An array over arrays that is ours.
pub struct OpenComposed {
    /// Its name in the configuration.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its level, as the configuration has it.
    pub level: Level,
    /// How it stripes over its leaves.
    pub geometry: Geometry,
    /// Its leaves, by slot.
    pub leaves: Vec<LeafPlace>,
    /// Whether it has just been created.
    pub created: bool,
}

/// A leaf's part in an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafPlace {
    /// Its index among the arrays over drives.
    pub array: usize,
    /// Its name.
    pub name: String,
    /// Where in it the data begins.
    pub data_offset_bytes: u64,
}

/// Where each array of the configuration is: among those over drives, or those over arrays, both in
/// the order of the configuration.
pub fn places(config: &Config) -> Vec<Below> {
    let (mut arrays, mut composed) = (0.., 0..);
    let place = |array: &Array| match array.is_composed() {
        true => composed.next().map(Below::Composed),
        false => arrays.next().map(Below::Array),
    };
    config.arrays.iter().filter_map(place).collect()
}

/// The arrays over drives that an array is over, by their indices among those.
fn leaves_of(config: &Config, array: &Array) -> Vec<usize> {
    let places = places(config);
    let index = |leaf: &usize| match places.get(*leaf) {
        Some(Below::Array(index)) => Some(*index),
        _ => None,
    };
    array.leaves.iter().filter_map(index).collect()
}

fn nested_error(array: &Array, leaf: &str, source: NestedError) -> ArrayStartError {
    let what = format!("array {leaf} below cannot be read: {source}");
    ArrayStartError::Below { array: array.name.clone(), what }
}

/// What a leaf is before it is opened.
#[derive(Debug)]
pub enum Leaf {
    /// In memory.
    Memory,
    /// It does not exist yet.
    New,
    /// It exists, and holds this; nothing if that cannot be read yet.
    Holds(Option<Box<Examined>>),
}

impl Leaf {
    /// By drives that are ours.
    pub fn of(prospect: &Prospect) -> Self {
        match prospect.is_memory() {
            true => Self::Memory,
            false if prospect.plan().is_none() => Self::New,
            false => Self::Holds(prospect.peek().map(Box::new)),
        }
    }

    /// By a look at drives.
    pub fn by(outlook: Outlook) -> Self {
        match outlook {
            Outlook::Memory => Self::Memory,
            Outlook::Blank => Self::New,
            Outlook::Exists(_, found) => Self::Holds(found),
        }
    }
}

/// What becomes of an array over leaves.
#[derive(Debug)]
pub enum Fate {
    /// It is in memory.
    Memory,
    /// It exists.
    Exists(Box<AssemblyPlan>),
    /// It is created.
    Create,
    /// What its leaves hold cannot be told before they are open.
    Unknown,
}

/// What becomes of an array, by a look at its leaves, which are in the order of the configuration.
/// `anew`: what is remembered of it does not count, as all of it is made anew.
///
/// # Errors
/// [`ArrayStartError`]: it can neither be put together nor created.
pub fn check(
    array: &Array,
    names: &[&str],
    leaves: &[&Leaf],
    state: Option<&StateDirectory>,
    anew: bool,
) -> Result<Fate, ArrayStartError> {
    let is_memory = |leaf: &&Leaf| matches!(leaf, Leaf::Memory);
    if leaves.iter().all(is_memory) {
        return Ok(Fate::Memory);
    }
    let record = remembered(array, state)?.filter(|_| !anew);
    let is_new = |leaf: &&Leaf| matches!(leaf, Leaf::New);
    if !leaves.iter().any(is_new) {
        let found = leaves.iter().map(|leaf| match leaf {
            Leaf::Holds(Some(found)) => Some((**found).clone()),
            _ => None,
        });
        let Some(found) = found.collect::<Option<Vec<_>>>() else { return Ok(Fate::Unknown) };
        return Ok(match decide(array, &found, record.as_ref(), None, state)? {
            Decision::Assemble(plan) => Fate::Exists(plan),
            Decision::Create(_) => Fate::Create,
        });
    }
    refuse_new(array, record, state)?;
    for (name, leaf) in names.iter().zip(leaves) {
        let held = match leaf {
            Leaf::New | Leaf::Memory => continue,
            Leaf::Holds(Some(found)) if is_free(found) => continue,
            Leaf::Holds(Some(found)) => found.contents.to_string(),
            Leaf::Holds(None) => "something that cannot be read yet".to_owned(),
        };
        let missing: Vec<_> = names
            .iter()
            .zip(leaves)
            .filter(|(_, leaf)| is_new(leaf))
            .map(|(name, _)| *name)
            .collect();
        let what = format!(
            "array {name} below holds {held}, and the drives of {} are blank, so that it cannot be \
             put together. Bring the drives of {}",
            missing.join(", "),
            missing.join(", ")
        );
        return Err(ArrayStartError::Below { array: array.name.clone(), what });
    }
    Ok(Fate::Create)
}

fn is_free(found: &Examined) -> bool {
    found.contents == Contents::Blank || found.is_unfinished()
}

fn remembered(
    array: &Array,
    state: Option<&StateDirectory>,
) -> Result<Option<Record>, ArrayStartError> {
    Ok(state.map(|state| state.record(&array.name)).transpose()?.flatten())
}

/// An array that exists, or existed, is not created anew.
fn refuse_new(
    array: &Array,
    record: Option<Record>,
    state: Option<&StateDirectory>,
) -> Result<(), ArrayStartError> {
    let name = array.name.clone();
    if let Some(uuid) = array.uuid {
        return Err(ArrayStartError::HasUuid { array: name, uuid });
    }
    match record.zip(state) {
        Some((record, state)) => Err(ArrayStartError::Existed {
            record: state.path_of(&name),
            array: name,
            uuid: record.uuid,
        }),
        None => Ok(()),
    }
}

/// Whether what leaves hold is the array, or blank.
fn decide(
    array: &Array,
    found: &[Examined],
    record: Option<&Record>,
    homehost: Option<String>,
    state: Option<&StateDirectory>,
) -> Result<Decision, ArrayStartError> {
    let known = record.map(|record| record.uuid);
    let carries = |uuid: &Uuid| {
        let mut members = found.iter().filter_map(Examined::superblock);
        members.any(|superblock| superblock.array_uuid() == *uuid)
    };
    let expected = Expected {
        uuid: array.uuid.or(known.filter(carries)),
        level: Some(metadata::Level::Raid0),
        chunk_bytes: Some(array.chunk_bytes),
        last_known: (0..).zip(record.iter().flat_map(|record| record.members.clone())).collect(),
        ..Expected::default()
    };
    let failed = |source: CreateError| ArrayStartError::Drives {
        array: array.name.clone(),
        source: Box::new(source),
    };
    let decision = assemble::decide(found, &expected, &new(array, homehost)).map_err(failed)?;
    match (&decision, record.zip(state)) {
        (Decision::Create(_), _) => refuse_new(array, record.cloned(), state)?,
        (Decision::Assemble(plan), Some((record, state)))
            if plan.info.uuid != record.uuid && array.uuid.is_none() =>
        {
            let names: Vec<_> = found.iter().map(|one| one.name.as_str()).collect();
            return Err(ArrayStartError::Other {
                array: array.name.clone(),
                drives: names.join(", "),
                found: plan.info.uuid,
                uuid: record.uuid,
                record: state.path_of(&array.name),
            });
        }
        _ => {}
    }
    Ok(decision)
}

/// The array that is created if the leaves are blank.
fn new(array: &Array, homehost: Option<String>) -> NewArray {
    NewArray {
        name: array.name.clone(),
        homehost,
        level: metadata::Level::Raid0,
        chunk_bytes: array.chunk_bytes,
        uuid: None,
        consistency: Some(metadata::Consistency::None),
        assume_clean: false,
    }
}

/// What becomes of each array over arrays of a configuration, by its leaves' drives, and how large
/// each array is or will be: `u64::MAX` where that is not known yet. In the order of the
/// configuration; nothing is written.
///
/// # Errors
/// [`ArrayStartError`].
pub fn check_all(
    config: &Config,
    prospects: &[Prospect],
    state: Option<&StateDirectory>,
) -> Result<Vec<u64>, ArrayStartError> {
    let places = places(config);
    let mut capacities = Vec::new();
    for (array, place) in config.arrays.iter().zip(&places) {
        let capacity_bytes = match place {
            Below::Array(index) => match prospects.get(*index) {
                Some(prospect) => prospect.capacity_bytes()?,
                None => continue,
            },
            Below::Composed(_) => {
                let leaves: Vec<_> = leaves_of(config, array)
                    .into_iter()
                    .filter_map(|index| prospects.get(index))
                    .collect();
                let names: Vec<_> = leaves.iter().map(|leaf| leaf.name()).collect();
                let held: Vec<_> = leaves.iter().map(|leaf| Leaf::of(leaf)).collect();
                let held: Vec<_> = held.iter().collect();
                match check(array, &names, &held, state, false)? {
                    Fate::Exists(plan) => {
                        engine_geometry(&array.name, &plan.info.geometry)?.capacity_bytes()
                    }
                    Fate::Unknown => u64::MAX,
                    fate @ (Fate::Memory | Fate::Create) => {
                        let sizes = leaves.iter().map(|leaf| leaf.capacity_bytes());
                        let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
                        capacity(array, &sizes, matches!(fate, Fate::Memory))?
                    }
                }
            }
        };
        capacities.push(capacity_bytes);
    }
    Ok(capacities)
}

/// How large an array will be over new leaves of these sizes.
fn capacity(array: &Array, sizes: &[u64], is_memory: bool) -> Result<u64, ArrayStartError> {
    let smallest = sizes.iter().copied().min().unwrap_or(0);
    let component = match is_memory {
        true => smallest,
        false => {
            let placed = layout::place(smallest - smallest % 4096);
            placed
                .map_err(|error| ArrayStartError::Below {
                    array: array.name.clone(),
                    what: format!("the smallest of the arrays below cannot be a part: {error}"),
                })?
                .component_bytes
        }
    };
    shape(array, sizes.len(), component).map(|geometry| geometry.capacity_bytes())
}

fn shape(array: &Array, leaves: usize, component: u64) -> Result<Geometry, ArrayStartError> {
    let chunk = u32::try_from(array.chunk_bytes).unwrap_or(u32::MAX);
    Geometry::new(geometry::Level::Raid0, leaves, chunk, component)
        .map_err(|source| ArrayStartError::Geometry { array: array.name.clone(), source })
}

/// Creates an array on its leaves, or puts it together; `arrays` are those over drives. `anew`: as
/// for [`check`].
///
/// # Errors
/// [`ArrayStartError`]; it says what has been written.
pub fn open(
    config: &Config,
    array: &Array,
    arrays: &mut [&mut OpenArray],
    homehost: Option<String>,
    state: Option<&StateDirectory>,
    anew: bool,
) -> Result<OpenComposed, ArrayStartError> {
    let places: Vec<usize> = leaves_of(config, array);
    if arrays.iter().all(|leaf| leaf.handle.is_none()) {
        return in_memory(array, arrays, &places);
    }
    let (nested, found) = look_into(array, arrays)?;
    let record = remembered(array, state)?.filter(|_| !anew);
    let decision = decide(array, &found, record.as_ref(), homehost, state)?;
    let created = matches!(decision, Decision::Create(_));
    let made = match decision {
        Decision::Create(plan) => {
            refuse_degraded(array, &nested)?;
            let leaves: Vec<usize> = (0..nested.len()).collect();
            assemble::create(&plan, nested).map(|handle| (handle, leaves))
        }
        Decision::Assemble(plan) => put_together(&plan, &found, nested),
    };
    let (handle, leaves) = made.map_err(|source| ArrayStartError::Drives {
        array: array.name.clone(),
        source: Box::new(source),
    })?;
    let info = handle.info().clone();
    let offsets: Vec<u64> =
        handle.members().iter().map(assemble::Member::data_offset_bytes).collect();
    for (nested, leaf) in handle.into_media().into_iter().zip(&leaves) {
        let Some(leaf) = arrays.get_mut(*leaf) else { continue };
        let closed = nested.close().map_err(|error| ArrayStartError::Below {
            array: array.name.clone(),
            what: format!("array {} below did not take its superblock: {error}", leaf.name),
        })?;
        if closed {
            leaf.ready_again()?;
        }
    }
    let leaf_place = |(leaf, data_offset_bytes): (&usize, u64)| {
        let (array, name) = (*places.get(*leaf)?, arrays.get(*leaf)?.name.clone());
        Some(LeafPlace { array, name, data_offset_bytes })
    };
    let composed = OpenComposed {
        name: array.name.clone(),
        uuid: info.uuid,
        level: array.level,
        geometry: engine_geometry(&array.name, &info.geometry)?,
        leaves: leaves.iter().zip(offsets).filter_map(leaf_place).collect(),
        created,
    };
    settle(&composed, state)?;
    Ok(composed)
}

/// The leaves as drives, and what is on them.
fn look_into(
    array: &Array,
    leaves: &[&mut OpenArray],
) -> Result<(Vec<Nested<PatientDevice>>, Vec<Examined>), ArrayStartError> {
    let look = |leaf: &&mut OpenArray| {
        let failed = |error| nested_error(array, &leaf.name, error);
        let nested = leaf.nested().map_err(failed)?;
        let found = examine_medium(&nested).map_err(|error| failed(error.into()))?;
        Ok((nested, found))
    };
    leaves.iter().map(look).collect()
}

/// A new array begins on leaves that have all their members.
fn refuse_degraded(array: &Array, leaves: &[Nested<PatientDevice>]) -> Result<(), ArrayStartError> {
    let Some(leaf) = leaves.iter().find(|leaf| leaf.is_degraded()) else { return Ok(()) };
    let what = format!(
        "{} below is degraded, and nothing is created on it: bring its drives, or put others in, \
         and wait until it is whole",
        leaf.name()
    );
    Err(ArrayStartError::Below { array: array.name.clone(), what })
}

/// Remembers an array that is ours, and advises on what could take it away at the next boot.
fn settle(array: &OpenComposed, state: Option<&StateDirectory>) -> Result<(), ArrayStartError> {
    if let Some(state) = state {
        let members = array.leaves.iter().map(|leaf| format!("array:{}", leaf.name)).collect();
        state.remember(&array.name, &Record::new(array.uuid, members, None))?;
    }
    if let Some(advice) = advice::assembly_advice(array.uuid) {
        tracing::warn!(array = array.name, "{advice}");
    }
    Ok(())
}

/// An array whose superblocks are there, and for each slot the index of its leaf.
fn put_together(
    plan: &AssemblyPlan,
    found: &[Examined],
    nested: Vec<Nested<PatientDevice>>,
) -> Result<(ArrayHandle<Nested<PatientDevice>>, Vec<usize>), CreateError> {
    let (mut handle, _) = ArrayHandle::assemble(plan, found, nested);
    if found.iter().any(Examined::is_unfinished) {
        // Its creation was cut short at the very end; from now on it is one that has run.
        handle.mark_active()?;
        handle.mark_clean()?;
    }
    Ok((handle, plan.order().into_iter().flatten().collect()))
}

fn in_memory(
    array: &Array,
    arrays: &[&mut OpenArray],
    places: &[usize],
) -> Result<OpenComposed, ArrayStartError> {
    let sizes = arrays.iter().map(|leaf| leaf.geometry.capacity_bytes());
    let smallest = sizes.min().unwrap_or(0);
    let leaf = |(leaf, place): (&&mut OpenArray, &usize)| LeafPlace {
        array: *place,
        name: leaf.name.clone(),
        data_offset_bytes: 0,
    };
    Ok(OpenComposed {
        name: array.name.clone(),
        uuid: Uuid::new_v5(&MEMORY_NAMESPACE, array.name.as_bytes()),
        level: array.level,
        geometry: shape(array, arrays.len(), smallest)?,
        leaves: arrays.iter().zip(places).map(leaf).collect(),
        created: true,
    })
}

/// Opens all arrays over arrays of a configuration; `arrays` are all those over drives.
///
/// # Errors
/// [`ArrayStartError`]; it says what has been written.
pub fn open_all(
    config: &Config,
    arrays: &mut [OpenArray],
    homehost: Option<&str>,
    state: Option<&StateDirectory>,
) -> Result<Vec<OpenComposed>, ArrayStartError> {
    let composed = config.arrays.iter().filter(|array| array.is_composed());
    let open_one = |array: &Array| {
        let wanted = leaves_of(config, array);
        let mut leaves: Vec<(usize, &mut OpenArray)> =
            arrays.iter_mut().enumerate().filter(|(index, _)| wanted.contains(index)).collect();
        leaves.sort_by_key(|(index, _)| wanted.iter().position(|one| one == index));
        let mut leaves: Vec<_> = leaves.into_iter().map(|(_, leaf)| leaf).collect();
        open(config, array, &mut leaves, homehost.map(str::to_owned), state, false)
    };
    composed.map(open_one).collect()
}

impl OpenArray {
    /// It as the drive of another array.
    fn nested(&self) -> Result<Nested<PatientDevice>, NestedError> {
        match &self.handle {
            Some(handle) => Nested::open(std::sync::Arc::clone(handle), self.intent.clone()),
            // Either all leaves are in memory or none, as the configuration says.
            None => Err(NestedError::Memory(std::io::ErrorKind::Unsupported.into())),
        }
    }

    /// After it was written to as a drive: its logs are emptied, and its write intent is looked up
    /// anew.
    fn ready_again(&mut self) -> Result<(), ArrayStartError> {
        let Some(handle) = &self.handle else { return Ok(()) };
        let mut handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
        self.intent = super::arrays::ready_intent(&self.name, &mut handle, &Default::default())?;
        Ok(())
    }
}

/// What to call an array over arrays and its leaves in the log.
pub fn announce(array: &OpenComposed) {
    let did = if array.created { "created" } else { "assembled" };
    let size = crate::config::format_bytes(array.geometry.capacity_bytes());
    let over: Vec<_> = array.leaves.iter().map(|leaf| leaf.name.as_str()).collect();
    let (level, over) = (array.level, over.join(", "));
    let (array, uuid) = (&array.name, array.uuid);
    tracing::info!(array, %uuid, size, %level, over, "array {did}");
}
