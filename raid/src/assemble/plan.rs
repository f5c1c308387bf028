//! What examined drives are together, and in which state. Pure: it reads no drive and writes none.
//!
//! Who is believed is [`super::standing`]'s part. Here is decided what that means:
//!
//! * **Incomplete sets.** A set with members missing starts by itself only if the newest superblock
//!   records exactly those as gone, or if who remembers the array's event count at its last loss of
//!   a member ([`Expected::known_events`]) shows that the set is not behind: then the members that
//!   are there have everything, and those that are missing can only be older. Otherwise a member
//!   that is not here may have gone on without these; the operator can take that risk
//!   ([`Expected::run`]). No set starts that lacks data.
//! * **After a crash.** What may be inconsistent is told by the bitmap, or by the logs, or it is
//!   everything. RAID 5 and 6 with a member missing and no log are refused, unless the operator
//!   takes the risk ([`Expected::force`]): a stripe that was being written may give another
//!   chunk's data wrong.
//! * **Left over.** Drives that were members and are not say why, and which regions they miss, if
//!   that is known.

use super::create::{CreatePlan, NewArray, plan_create};
use super::error::{AssembleError, CreateError, NotMember};
use super::examine::Examined;
use super::standing::{Candidate, Standing};
use crate::array::{BadRange, MemberState};
use crate::device::signature::Contents;
use crate::geometry as engine;
use crate::metadata::bitmap::{Bitmap, RegionMap};
use crate::metadata::private::SectionKind;
use crate::metadata::superblock::{Features, Geometry, Role, Summary};
use crate::metadata::{Consistency, Level};
use crate::mutation::mutation;
use std::ops::Range;
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
    /// The event count that this array is known to have had when it last lost a member.
    pub known_events: Option<u64>,
    /// Start although members are missing that may be newer.
    pub run: bool,
    /// Start although what a crash left of stripes without all their members is not known.
    pub force: bool,
    /// The name of the drive that counts, if drives have diverged.
    pub winner: Option<String>,
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
    /// How it is made consistent after a crash.
    pub consistency: Consistency,
    /// The event count.
    pub events: u64,
    /// From where on copies, or parity, may not agree, up to the end, in bytes of the array; None:
    /// nowhere, but for [`AssemblyPlan::dirty`].
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

/// What is in a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotPlan {
    /// The drive's index in the list that was examined; None for an empty slot.
    pub drive: Option<usize>,
    /// What it is.
    pub state: MemberState,
    /// Its bad blocks.
    pub bad_blocks: Vec<BadRange>,
    /// Where its write-intent bitmap begins, up to where it may reach, in bytes of the drive.
    pub bitmap: Option<Range<u64>>,
    /// Where its log lies: md's PPL, or for RAID 6 the write log.
    pub log: Option<Range<u64>>,
    /// Where its degraded-write map lies.
    pub degraded_map: Option<Range<u64>>,
}

/// A drive that carries the array's UUID and has no slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOver {
    /// Its index in the list that was examined.
    pub drive: usize,
    /// The slot that it had, if it had one.
    pub slot: Option<u16>,
    /// Why it is no member.
    pub reason: NotMember,
    /// The regions that it misses, if they are known: in that slot, everything else of it is right.
    pub misses: Option<RegionMap>,
}

/// Which drive is which member, and what is to be done before and while they are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssemblyPlan {
    /// What the array is.
    pub info: ArrayInfo,
    /// What is in each slot.
    pub slots: Vec<SlotPlan>,
    /// The drives that are not needed.
    pub left_over: Vec<LeftOver>,
    /// Up to where the members that are being rebuilt are complete, in bytes of the array.
    pub rebuild_from_bytes: Option<u64>,
    /// Regions that a crash may have left inconsistent, those behind
    /// [`ArrayInfo::resync_from_bytes`] among them.
    pub dirty: Option<RegionMap>,
    /// The members' bitmap, all bits of all members, if they have one: its superblock, and all set
    /// if it did not count.
    pub bitmap: Option<Bitmap>,
    /// The members' degraded-write map: the same.
    pub degraded_map: Option<Bitmap>,
    /// Whether a log has to be replayed before anything is read.
    pub replay: bool,
    /// Whether the array was not stopped cleanly (or never synced, which looks the same).
    pub was_active: bool,
    /// What the operator's word has overruled, for the log.
    pub risks: Vec<&'static str>,
}

impl AssemblyPlan {
    /// For each slot, the drive's index in the list that was examined.
    #[must_use]
    pub fn order(&self) -> Vec<Option<usize>> {
        self.slots.iter().map(|slot| slot.drive).collect()
    }

    /// The members' states by slot.
    #[must_use]
    pub fn members(&self) -> Vec<MemberState> {
        self.slots.iter().map(|slot| slot.state).collect()
    }
}

/// What to do with the drives of a configured array.
#[derive(Debug, Clone)]
pub enum Decision {
    /// They are the array.
    Assemble(Box<AssemblyPlan>),
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
        return Ok(Decision::Assemble(Box::new(plan_assemble(drives, expected)?)));
    }
    // What was left unfinished on some drives may be whole all the same.
    match plan_assemble(drives, expected) {
        Ok(plan) => Ok(Decision::Assemble(Box::new(plan))),
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

/// Puts an array together from drives in any order.
///
/// # Errors
/// Names what is missing, foreign, too old or not served, and what to do.
pub fn plan_assemble(
    drives: &[Examined],
    expected: &Expected,
) -> Result<AssemblyPlan, AssembleError> {
    check_apart(drives)?;
    let candidates = candidates(drives, expected)?;
    let standing = Standing::judge(&candidates, expected.winner.as_deref())?;
    let mut risks = Vec::new();
    check_complete(&candidates, &standing, expected, &mut risks)?;
    let consistency = consistency(&standing);
    let agreement = agreement(&standing, consistency, expected, &mut risks)?;
    let superblock = standing.newest.superblock;
    let info = ArrayInfo {
        uuid: superblock.array_uuid(),
        set_name: superblock.set_name(),
        geometry: standing.geometry,
        consistency,
        events: superblock.events(),
        resync_from_bytes: agreement.resync_from_bytes,
        md_block_bytes: superblock.logical_block_size_bytes(),
    };
    check_expected(&info, expected)?;
    let bitmap = (consistency == Consistency::Bitmap).then(|| super::keep::bitmap(&standing));
    let bitmap = bitmap.flatten();
    let degraded_map = super::keep::degraded_map(&standing);
    let left_over = left_over(&standing, bitmap.as_ref(), degraded_map.as_ref());
    Ok(AssemblyPlan {
        info,
        slots: (0..standing.slots.len())
            .map(|slot| slot_plan(&standing, slot, consistency))
            .collect(),
        left_over,
        rebuild_from_bytes: rebuild_from(&standing),
        dirty: agreement.dirty,
        bitmap,
        degraded_map,
        replay: agreement.replay,
        was_active: superblock.resync_offset() == 0,
        risks,
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

/// How the array is made consistent after a crash: what its members have a place for.
fn consistency(standing: &Standing<'_>) -> Consistency {
    let superblock = standing.newest.superblock;
    let (features, _) = superblock.features();
    let mut headers = standing.slots.iter().flatten().map(|c| c.drive.private.header());
    let has_log = |header: Option<&crate::metadata::private::Header>| {
        header.is_some_and(|header| header.place(SectionKind::WriteLog).is_some())
    };
    match standing.geometry.level {
        Level::Raid0 => Consistency::None,
        _ if features.contains(Features::BITMAP_OFFSET) => Consistency::Bitmap,
        Level::Raid5 if features.intersects(Features::PPL | Features::MULTIPLE_PPLS) => {
            Consistency::Ppl
        }
        Level::Raid6 if headers.all(has_log) => Consistency::Ppl,
        _ => Consistency::Resync,
    }
}

fn in_sync<'s, 'a>(standing: &'s Standing<'a>) -> impl Iterator<Item = &'s Candidate<'a>> {
    standing.slots.iter().flatten().filter(|c| !c.is_rebuilding())
}

/// That what is there is enough, and known to be new enough.
fn check_complete(
    candidates: &[Candidate<'_>],
    standing: &Standing<'_>,
    expected: &Expected,
    risks: &mut Vec<&'static str>,
) -> Result<(), AssembleError> {
    let slots = || (0u16..).zip(&standing.slots);
    let is_ready = |c: &Option<Candidate<'_>>| c.as_ref().is_some_and(|c| !c.is_rebuilding());
    let ready: Vec<bool> = standing.slots.iter().map(is_ready).collect();
    let is_enough = is_enough(&standing.geometry, &ready);
    let missing: Vec<u16> = slots().filter(|(_, c)| c.is_none()).map(|(slot, _)| slot).collect();
    let unexplained = missing.iter().any(|slot| !standing.is_recorded_gone(usize::from(*slot)));
    let events = standing.newest.events();
    let is_known = expected.known_events.is_some_and(|known| events >= known);
    // Who remembers more has seen other members go on without these.
    let is_behind = expected.known_events.is_some_and(|known| events < known);
    let is_behind = is_behind && !mutation!("ignore-state-record");
    let unexplained = unexplained && !mutation!("start-without-missing-members");
    let is_believed = !is_behind && (!unexplained || is_known);
    if is_enough && (is_believed || expected.run) {
        if !is_believed {
            risks.push("members are missing that may be newer than those that are here");
        }
        return Ok(());
    }
    if candidates.iter().all(|c| c.drive.is_unfinished()) {
        return Err(AssembleError::Unfinished {
            array: standing.newest.superblock.array_uuid(),
            present: candidates.len(),
            members: standing.geometry.members,
        });
    }
    let unready = slots().filter(|(_, c)| !is_ready(c)).map(|(slot, _)| slot);
    let lacking: Vec<u16> = if is_enough { missing } else { unready.collect() };
    Err(AssembleError::Incomplete {
        array: standing.newest.superblock.array_uuid(),
        name: standing.newest.superblock.short_name(),
        members: standing.geometry.members,
        missing: lacking.into_iter().map(|slot| (slot, last_known(expected, slot))).collect(),
        unusable: standing.rest.iter().map(|(c, reason)| (c.name(), *reason)).collect(),
        can_run: is_enough,
        is_behind,
    })
}

/// Whether the members that are complete hold all data.
fn is_enough(geometry: &Geometry, ready: &[bool]) -> bool {
    let missing = ready.iter().filter(|ready| !**ready).count();
    match geometry.level {
        Level::Raid0 => missing == 0,
        Level::Raid1 => missing < ready.len(),
        Level::Raid5 => missing <= 1,
        Level::Raid6 => missing <= 2,
        // The copies of a chunk are on neighbours; with an even number always on the same two.
        Level::Raid10 if ready.len().is_multiple_of(2) => {
            ready.chunks(2).all(|pair| pair.contains(&true))
        }
        Level::Raid10 => {
            let next = ready.iter().cycle().skip(1);
            ready.iter().zip(next).all(|(first, second)| *first || *second)
        }
    }
}

/// What agrees, and what has to be done about the rest.
#[derive(Debug, Default)]
struct Agreement {
    resync_from_bytes: Option<u64>,
    dirty: Option<RegionMap>,
    replay: bool,
}

fn agreement(
    standing: &Standing<'_>,
    consistency: Consistency,
    expected: &Expected,
    risks: &mut Vec<&'static str>,
) -> Result<Agreement, AssembleError> {
    let geometry = &standing.geometry;
    let newest = in_sync(standing).filter(|c| c.events() == standing.newest.events());
    // Members at the same event count agree; should they not, the least is safe.
    let offset = newest.map(|c| c.superblock.resync_offset()).min();
    let offset = offset.unwrap_or_else(|| standing.newest.superblock.resync_offset());
    let Some(position) = geometry.resync_bytes(offset) else { return Ok(Agreement::default()) };
    let is_degraded = in_sync(standing).count() < geometry.members;
    let mut agreement = Agreement { resync_from_bytes: Some(position), ..Agreement::default() };
    match consistency {
        Consistency::Bitmap => {
            if let Some(bitmap) = super::keep::counting_bitmap(standing) {
                let is_by_component = geometry.level != Level::Raid10;
                let from = if is_by_component { geometry.to_component(position) } else { position };
                agreement = by_bitmap(geometry, bitmap.regions, from);
            }
        }
        Consistency::Ppl if position == 0 && has_logs(standing) => {
            agreement.replay = true;
            agreement.resync_from_bytes = synced_before(standing, is_degraded);
        }
        _ => {}
    }
    let is_clean = agreement.resync_from_bytes.is_none() && agreement.dirty.is_none();
    if is_degraded && !is_clean && matches!(geometry.level, Level::Raid5 | Level::Raid6) {
        if !expected.force {
            return Err(AssembleError::DirtyDegraded {
                array: standing.newest.superblock.array_uuid(),
                name: standing.newest.superblock.short_name(),
                consistency,
            });
        }
        risks.push("parity is taken as right although the array was being written when it stopped");
        agreement.resync_from_bytes = None;
        agreement.dirty = None;
    }
    Ok(agreement)
}

/// The regions that are set; and where those begin that reach up to the end, so that a first sync
/// goes on where it was.
fn by_bitmap(geometry: &Geometry, mut regions: RegionMap, from_bytes: u64) -> Agreement {
    regions.forget_below(from_bytes);
    let solid = regions.solid_from_bytes();
    let mut agreement = Agreement::default();
    if solid < regions.covered_bytes() {
        agreement.resync_from_bytes = Some(match geometry.level {
            Level::Raid10 => solid,
            _ => geometry.from_component(solid),
        });
    }
    agreement.dirty = (!regions.is_empty()).then_some(regions);
    agreement
}

/// Whether the logs of all members that are complete tell what was being written.
fn has_logs(standing: &Standing<'_>) -> bool {
    let has_log = |c: &Candidate<'_>| match standing.geometry.level {
        // md's own: whoever ran the array kept it.
        Level::Raid5 => true,
        _ => c.drive.private.believed().is_some(),
    };
    in_sync(standing).all(has_log)
}

/// Up to where parity was right before what was being written when the array stopped; None:
/// everywhere.
fn synced_before(standing: &Standing<'_>, is_degraded: bool) -> Option<u64> {
    let areas = || in_sync(standing).map(|c| &c.drive.private);
    let synced = areas().map(|area| area.believed().map_or(0, |header| header.synced_bytes)).min();
    let is_mds = areas().all(|area| area.header().is_none());
    match synced {
        Some(synced) if synced >= standing.geometry.array_bytes() => None,
        // md does not say; like md, an array that has lost a member counts as synced before.
        _ if is_mds && is_degraded => None,
        synced => Some(synced.unwrap_or(0)),
    }
}

fn rebuild_from(standing: &Standing<'_>) -> Option<u64> {
    let rebuilding =
        standing.slots.iter().flatten().filter_map(|c| c.superblock.recovery_sectors());
    rebuilding.map(|sectors| standing.geometry.recovery_bytes(sectors)).min()
}

fn slot_plan(standing: &Standing<'_>, slot: usize, consistency: Consistency) -> SlotPlan {
    let Some(Some(candidate)) = standing.slots.get(slot) else {
        return SlotPlan {
            drive: None,
            state: MemberState::Missing,
            bad_blocks: Vec::new(),
            bitmap: None,
            log: None,
            degraded_map: None,
        };
    };
    let superblock = candidate.superblock;
    let header = candidate.drive.private.header();
    let place = |kind| header.and_then(|header| header.place(kind));
    let log = match (consistency, standing.geometry.level) {
        (Consistency::Ppl, Level::Raid6) => place(SectionKind::WriteLog),
        (Consistency::Ppl, _) => superblock.ppl_place(),
        _ => None,
    };
    let data = superblock.data_offset_bytes();
    let bad_blocks = match &candidate.drive.bad_blocks {
        Some(Ok(bad)) => bad.ranges(data, standing.geometry.component_bytes),
        _ => Vec::new(),
    };
    SlotPlan {
        drive: Some(candidate.index),
        state: if candidate.is_rebuilding() {
            MemberState::Rebuilding
        } else {
            MemberState::InSync
        },
        bad_blocks,
        bitmap: superblock.bitmap_place(),
        log,
        degraded_map: place(SectionKind::DegradedWriteMap),
    }
}

/// The drives without a slot, and what each of them misses.
fn left_over(
    standing: &Standing<'_>,
    bitmap: Option<&Bitmap>,
    degraded_map: Option<&Bitmap>,
) -> Vec<LeftOver> {
    let describe = |(candidate, reason): &(Candidate<'_>, NotMember)| {
        let slot = match candidate.superblock.own_role() {
            Role::Active(slot) => Some(slot),
            _ => None,
        };
        let was_complete = slot.is_some() && !candidate.is_rebuilding();
        let is_of_this_history = !matches!(reason, NotMember::Diverged | NotMember::BadBlockLog)
            && in_sync(standing).all(|member| !candidate.deems_failed(member));
        // What was synced without it, its map does not tell.
        let was_synced = candidate.drive.was_synced(standing.geometry.array_bytes());
        let known = bitmap.or(degraded_map.filter(|_| was_synced)).filter(|map| {
            // The count that a member has when it is lost is that of its last superblock.
            was_complete && is_of_this_history && map.tells_since(candidate.superblock.events())
        });
        let slot_is_free =
            |slot: &u16| standing.slots.get(usize::from(*slot)).is_some_and(Option::is_none);
        let misses = known.filter(|_| slot.as_ref().is_some_and(slot_is_free));
        LeftOver {
            drive: candidate.index,
            slot,
            reason: *reason,
            misses: misses.map(|map| map.regions.clone()),
        }
    };
    standing.rest.iter().map(describe).collect()
}

fn last_known(expected: &Expected, slot: u16) -> Option<String> {
    expected.last_known.iter().find(|(s, _)| *s == slot).map(|(_, name)| name.clone())
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
