//! What examined drives are together. Pure: it reads no drive and writes none.
//!
//! **Who is believed.** The highest event count rules, in whatever order the drives are
//! given. A member counts if it is at most one event behind (md's margin), the newest
//! superblock's role table gives it the slot that it claims, and it does not itself record
//! the newest drive as failed. Where several are newest, that has to hold for each of them. Two that record each other as failed have diverged, and nothing is
//! put together from them.

use super::create::{CreatePlan, NewArray, plan_create};
use super::error::{AssembleError, CreateError};
use super::examine::Examined;
use crate::device::signature::Contents;
use crate::geometry as engine;
use crate::metadata::private::PrivateArea;
use crate::metadata::superblock::{Geometry, IN_SYNC, Role, Summary, Superblock};
use crate::metadata::{Level, SECTOR_BYTES};
use uuid::Uuid;

/// What the configuration says about an array; everything that is None may be anything.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// Its identity.
    pub uuid: Option<Uuid>,
    /// Its level.
    pub level: Option<Level>,
    /// Its chunk (not compared for RAID 1).
    pub chunk_bytes: Option<u64>,
    /// The names that the drives last had, by slot, to name what is missing.
    pub last_known: Vec<(u16, String)>,
}

/// What an array is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayInfo {
    /// Its identity.
    pub uuid: Uuid,
    /// Its name, with the home host if it has one.
    pub set_name: String,
    /// Its shape.
    pub geometry: Geometry,
    /// The event count.
    pub events: u64,
    /// Up to where the copies agree, in bytes of the array; None: everywhere.
    pub resync_from_bytes: Option<u64>,
    /// The block size that md gave the array, in bytes; 0 if none.
    pub md_block_bytes: u32,
}

impl ArrayInfo {
    /// The size of the array.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.geometry.array_bytes()
    }

    /// The shape as the engine has it.
    ///
    /// # Errors
    /// If it is one that the engine does not have.
    pub fn engine_geometry(&self) -> Result<engine::Geometry, engine::GeometryError> {
        let Geometry { level, members, chunk_bytes, component_bytes } = self.geometry;
        let none = engine::GeometryError::Component { component_bytes };
        let chunk_bytes = u32::try_from(chunk_bytes).map_err(|_| none)?;
        engine::Geometry::new(level.into(), members, chunk_bytes, component_bytes)
    }

    /// The name without the home host.
    #[must_use]
    pub fn short_name(&self) -> &str {
        self.set_name.split_once(':').map_or(&self.set_name, |(_, short)| short)
    }
}

/// Which drive is which member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssemblyPlan {
    /// What the array is.
    pub info: ArrayInfo,
    /// For each slot, the drive's index in the list that was examined.
    pub order: Vec<usize>,
    /// Drives that carry the array's UUID and are not needed: spares, failed members.
    pub unused: Vec<usize>,
}

/// What to do with the drives of a configured array.
#[derive(Debug, Clone)]
pub enum Decision {
    /// They are the array.
    Assemble(AssemblyPlan),
    /// They are blank.
    Create(CreatePlan),
}

/// Whether the drives are the configured array, or are to become it.
///
/// # Errors
/// Names the drive that is in the way, and what to do.
pub fn decide(
    drives: &[Examined],
    expected: &Expected,
    new: &NewArray,
) -> Result<Decision, CreateError> {
    check_apart(drives)?;
    let is_free = |d: &Examined| d.contents == Contents::Blank || d.is_unfinished();
    if !drives.iter().all(is_free) {
        return Ok(Decision::Assemble(plan_assemble(drives, expected)?));
    }
    // What was left unfinished on some drives may be whole all the same.
    match plan_assemble(drives, expected) {
        Ok(plan) => Ok(Decision::Assemble(plan)),
        Err(error @ AssembleError::Unexpected { .. }) => Err(error.into()),
        // A configured UUID means an array that exists, so its drives are elsewhere.
        Err(error) if expected.uuid.is_some() => Err(error.into()),
        Err(_) => Ok(Decision::Create(plan_create(drives, new)?)),
    }
}

/// That no drive is there twice.
pub(super) fn check_apart(drives: &[Examined]) -> Result<(), AssembleError> {
    for (i, drive) in drives.iter().enumerate() {
        let again = |d: &&Examined| d.kind.is_some() && d.kind == drive.kind;
        if let Some(second) = drives.iter().skip(i + 1).find(again) {
            return Err(AssembleError::SameDrive {
                first: drive.name.clone(),
                second: second.name.clone(),
            });
        }
    }
    Ok(())
}

/// A drive of the array, in the list's order.
struct Candidate<'a> {
    index: usize,
    drive: &'a Examined,
    superblock: &'a Superblock,
}

/// Puts an array together from drives in any order.
///
/// # Errors
/// Names what is missing, foreign, too old or not served.
pub fn plan_assemble(
    drives: &[Examined],
    expected: &Expected,
) -> Result<AssemblyPlan, AssembleError> {
    check_apart(drives)?;
    let candidates = candidates(drives, expected)?;
    for candidate in &candidates {
        candidate.check_served()?;
    }
    let newest = newest(&candidates)?;
    check_same_array(&candidates, newest)?;
    check_diverged(&candidates)?;
    let geometry = newest.geometry()?;
    let (order, unusable) = fill_slots(&candidates, newest, &geometry)?;
    let missing: Vec<_> = (0u16..)
        .zip(&order)
        .filter(|(_, candidate)| candidate.is_none())
        .map(|(slot, _)| (slot, last_known(expected, slot)))
        .collect();
    if !missing.is_empty() {
        return Err(incomplete(&candidates, newest, &geometry, missing, &unusable));
    }
    let order: Vec<&Candidate<'_>> = order.into_iter().flatten().collect();
    for member in &order {
        member.check_fits(&geometry)?;
    }
    let info = describe(&order, newest, geometry);
    check_expected(&info, expected)?;
    Ok(AssemblyPlan {
        info,
        order: order.iter().map(|c| c.index).collect(),
        unused: unusable.iter().map(|c| c.index).collect(),
    })
}

/// The drives with a superblock, all of one array; anything else among them is refused.
fn candidates<'a>(
    drives: &'a [Examined],
    expected: &Expected,
) -> Result<Vec<Candidate<'a>>, AssembleError> {
    if drives.is_empty() {
        return Err(AssembleError::NoDrives);
    }
    let foreign =
        |d: &&Examined| matches!(d.contents, Contents::Foreign { .. } | Contents::NotBlank { .. });
    if let Some(drive) = drives.iter().find(foreign) {
        return Err(AssembleError::Foreign {
            name: drive.name.clone(),
            contents: drive.contents.to_string(),
        });
    }
    let candidates: Vec<_> = drives
        .iter()
        .enumerate()
        .filter_map(|(index, drive)| {
            Some(Candidate { index, drive, superblock: drive.superblock()? })
        })
        .collect();
    let names = |wanted: fn(&Examined) -> bool| -> Vec<String> {
        drives.iter().filter(|d| wanted(d)).map(|d| d.name.clone()).collect()
    };
    let Some(first) = candidates.first() else {
        return Err(match expected.uuid {
            Some(uuid) => AssembleError::NotFound(uuid),
            None => AssembleError::AllBlank(names(|_| true)),
        });
    };
    let array = expected.uuid.unwrap_or_else(|| first.superblock.array_uuid());
    if let Some(other) = candidates.iter().find(|c| c.superblock.array_uuid() != array) {
        return Err(AssembleError::OtherArray {
            name: other.drive.name.clone(),
            found: Box::new(Summary::from(other.superblock)),
            expected: array,
        });
    }
    let blank = names(|d| d.contents == Contents::Blank);
    if !blank.is_empty() && !drives.iter().any(Examined::is_unfinished) {
        let members = names(|d| d.contents != Contents::Blank);
        return Err(AssembleError::PartlyBlank { blank, members, array });
    }
    Ok(candidates)
}

impl Candidate<'_> {
    fn name(&self) -> String {
        self.drive.name.clone()
    }

    fn geometry(&self) -> Result<Geometry, AssembleError> {
        self.superblock.geometry().map_err(|reason| AssembleError::NotServed {
            name: self.name(),
            summary: Box::new(Summary::from(self.superblock)),
            reason,
        })
    }

    fn check_served(&self) -> Result<(), AssembleError> {
        if let Some(reason) = self.drive.newer_header.clone() {
            return Err(AssembleError::NewerHeader { name: self.name(), reason });
        }
        if let PrivateArea::Believed { header, .. } = &self.drive.private
            && let Some(section) = header.unknown_section()
        {
            return Err(AssembleError::NewerSection { name: self.name(), section });
        }
        self.geometry().map(|_| ())
    }

    fn is_active(&self) -> bool {
        matches!(self.superblock.own_role(), Role::Active(_))
    }

    /// What this drive makes of another.
    fn deems_failed(&self, other: &Candidate<'_>) -> bool {
        self.superblock.role_of(other.superblock.device_number()) == Role::Faulty
    }

    fn check_fits(&self, geometry: &Geometry) -> Result<(), AssembleError> {
        let needed_bytes =
            self.superblock.data_offset_bytes().saturating_add(geometry.component_bytes);
        if needed_bytes <= self.drive.size_bytes {
            return Ok(());
        }
        Err(AssembleError::TooSmall {
            name: self.name(),
            size_bytes: self.drive.size_bytes,
            needed_bytes,
        })
    }
}

/// The drive whose superblock rules. Spares do not count, as with md.
fn newest<'a, 'b>(candidates: &'a [Candidate<'b>]) -> Result<&'a Candidate<'b>, AssembleError> {
    let mut newest: Option<&Candidate<'_>> = None;
    for candidate in candidates.iter().filter(|c| c.is_active()) {
        if newest.is_none_or(|n| candidate.superblock.events() > n.superblock.events()) {
            newest = Some(candidate);
        }
    }
    // Only spares and failed drives: every slot is missing.
    newest.or(candidates.first()).ok_or(AssembleError::NoDrives)
}

fn check_same_array(
    candidates: &[Candidate<'_>],
    newest: &Candidate<'_>,
) -> Result<(), AssembleError> {
    for candidate in candidates {
        if !candidate.superblock.same_array(newest.superblock) {
            return Err(AssembleError::Disagree { name: candidate.name(), other: newest.name() });
        }
        let (found, expected) = (candidate.geometry()?, newest.geometry()?);
        if found != expected {
            return Err(AssembleError::UnequalRaid0 {
                name: candidate.name(),
                found_bytes: found.component_bytes,
                expected_bytes: expected.component_bytes,
            });
        }
    }
    Ok(())
}

fn check_diverged(candidates: &[Candidate<'_>]) -> Result<(), AssembleError> {
    let active: Vec<_> = candidates.iter().filter(|c| c.is_active()).collect();
    for (i, first) in active.iter().enumerate() {
        for second in active.iter().skip(i + 1) {
            if first.deems_failed(second) && second.deems_failed(first) {
                return Err(AssembleError::Diverged { first: first.name(), second: second.name() });
            }
        }
    }
    Ok(())
}

type Slots<'a, 'b> = Vec<Option<&'a Candidate<'b>>>;

/// Each slot's drive, and the drives that have none.
fn fill_slots<'a, 'b>(
    candidates: &'a [Candidate<'b>],
    newest: &Candidate<'b>,
    geometry: &Geometry,
) -> Result<(Slots<'a, 'b>, Vec<&'a Candidate<'b>>), AssembleError> {
    let mut slots: Slots<'_, '_> = vec![None; geometry.members];
    let mut rest = Vec::new();
    let events = newest.superblock.events();
    let is_newest = |c: &&Candidate<'_>| c.is_active() && c.superblock.events() == events;
    let newest: Vec<_> = candidates.iter().filter(is_newest).collect();
    for candidate in candidates {
        let superblock = candidate.superblock;
        let role = superblock.own_role();
        let current = superblock.events().saturating_add(1) >= events;
        let agrees = newest.iter().all(|newest| {
            newest.superblock.role_of(superblock.device_number()) == role
                && !candidate.deems_failed(newest)
        });
        let place = match role {
            Role::Active(slot) if current && agrees => slots.get_mut(usize::from(slot)),
            _ => None,
        };
        match (place, role) {
            (Some(Some(first)), Role::Active(slot)) => {
                return Err(AssembleError::DuplicateSlot {
                    slot,
                    first: first.name(),
                    second: candidate.name(),
                });
            }
            (Some(place), _) => *place = Some(candidate),
            (None, _) => rest.push(candidate),
        }
    }
    Ok((slots, rest))
}

fn last_known(expected: &Expected, slot: u16) -> Option<String> {
    expected.last_known.iter().find(|(s, _)| *s == slot).map(|(_, name)| name.clone())
}

fn incomplete(
    candidates: &[Candidate<'_>],
    newest: &Candidate<'_>,
    geometry: &Geometry,
    missing: Vec<(u16, Option<String>)>,
    unusable: &[&Candidate<'_>],
) -> AssembleError {
    let array = newest.superblock.array_uuid();
    if candidates.iter().all(|c| c.drive.is_unfinished()) {
        let present = candidates.len();
        return AssembleError::Unfinished { array, present, members: geometry.members };
    }
    AssembleError::Incomplete {
        array,
        name: newest.superblock.short_name(),
        members: geometry.members,
        missing,
        unusable: unusable.iter().map(|c| c.name()).collect(),
    }
}

fn describe(order: &[&Candidate<'_>], newest: &Candidate<'_>, geometry: Geometry) -> ArrayInfo {
    let superblock = newest.superblock;
    // Members at the same event count agree; should they not, the least is safe.
    let resync_offset = order
        .iter()
        .filter(|c| c.superblock.events() == superblock.events())
        .map(|c| c.superblock.resync_offset())
        .min()
        .unwrap_or(0);
    let resync_from_bytes = resync_offset.saturating_mul(SECTOR_BYTES);
    let in_sync = !geometry.level.is_redundant()
        || resync_offset == IN_SYNC
        || resync_from_bytes >= geometry.array_bytes();
    ArrayInfo {
        uuid: superblock.array_uuid(),
        set_name: superblock.set_name(),
        geometry,
        events: superblock.events(),
        resync_from_bytes: (!in_sync).then_some(resync_from_bytes),
        md_block_bytes: superblock.logical_block_size_bytes(),
    }
}

fn check_expected(info: &ArrayInfo, expected: &Expected) -> Result<(), AssembleError> {
    let unexpected = |what, found: String, wanted: String| {
        let name = info.short_name().to_owned();
        Err(AssembleError::Unexpected { name, what, found, expected: wanted })
    };
    if let Some(level) = expected.level
        && level != info.geometry.level
    {
        return unexpected("level", info.geometry.level.to_string(), level.to_string());
    }
    let chunk_bytes = info.geometry.chunk_bytes;
    if let Some(wanted) = expected.chunk_bytes
        && info.geometry.level != Level::Raid1
        && wanted != chunk_bytes
    {
        let size = |bytes: u64| format!("{} KiB", bytes / 1024);
        return unexpected("chunk", size(chunk_bytes), size(wanted));
    }
    Ok(())
}
