//! A new array on blank drives: planning it, and writing it all or not at all
//! (see [`super`]).

use super::error::{AssembleError, CreateError, UpdateError};
use super::examine::Examined;
use super::handle::{ArrayHandle, Member};
use super::plan::{ArrayInfo, check_apart};
use crate::array::{IN_SYNC, MemberState, Wanted};
use crate::device::Medium;
use crate::device::signature::{BLANK_BYTES, Contents};
use crate::metadata::bitmap::{
    Bitmap, BitmapState, BitmapSuperblock, MapUnit, NewBitmap, RegionMap, region_bytes_for,
};
use crate::metadata::layout::{
    BAD_BLOCK_LOG_OFFSET_BYTES, BITMAP_BYTES, BITMAP_OFFSET_BYTES, Placement,
    degraded_map_region_bytes, place, sections,
};
use crate::metadata::private::{Copy, Header, PrivateArea, SectionKind, superblock_hash};
use crate::metadata::record::{Replica, member_writes, plan_first_event};
use crate::metadata::superblock::{
    Geometry, MAX_DEVICES, NewIntent, NewSuperblock, SUPERBLOCK_OFFSET_BYTES, Summary, Superblock,
};
use crate::metadata::take_over::{Common, Kept};
use crate::metadata::{Consistency, Level, Timestamp};
use uuid::Uuid;

/// What is zeroed at a time.
const ZEROS_BYTES: usize = 256 << 10;

/// An array that is wanted.
#[derive(Debug, Clone)]
pub struct NewArray {
    /// Its name.
    pub name: String,
    /// The host that it belongs to, which stands before the name as `host:name`.
    pub homehost: Option<String>,
    /// Its level.
    pub level: Level,
    /// Its chunk, a power of two from 4 KiB to 1 MiB (ignored for RAID 1).
    pub chunk_bytes: u64,
    /// Its identity; None: a random one.
    pub uuid: Option<Uuid>,
    /// How it is made consistent after a crash; None: as is usual for its level.
    pub consistency: Option<Consistency>,
    /// Take what is on the drives as agreeing, which the operator knows.
    pub assume_clean: bool,
}

impl NewArray {
    /// The name as the superblock has it: with the host if both fit, as mdadm does.
    fn set_name(&self) -> String {
        match &self.homehost {
            Some(host) if !self.name.contains(':') && host.len() + 1 + self.name.len() < 32 => {
                format!("{host}:{}", self.name)
            }
            _ => self.name.clone(),
        }
    }
}

/// Everything about a new array that is decided before the first byte is written.
#[derive(Debug, Clone)]
pub struct CreatePlan {
    /// Its identity.
    pub uuid: Uuid,
    /// Its name as the superblock has it.
    pub set_name: String,
    /// Its shape.
    pub geometry: Geometry,
    /// How it is made consistent after a crash.
    pub consistency: Consistency,
    /// Whether what is on the drives is taken as agreeing.
    pub assume_clean: bool,
    /// Whether what the array holds has to begin and end with zeros, as a blank drive does: another
    /// array is to be created on it.
    pub blank_ends: bool,
    /// Where things lie on each member.
    pub placement: Placement,
    /// The members' identities, by slot.
    pub device_uuids: Vec<Uuid>,
    /// The time.
    pub created: Timestamp,
}

/// Plans an array over drives, which become slots 0, 1, 2 … in this order.
///
/// # Errors
/// If any drive is not blank (what an interrupted creation left counts as blank), or the
/// shape is not possible.
pub fn plan_create(drives: &[Examined], new: &NewArray) -> Result<CreatePlan, CreateError> {
    check_apart(drives)?;
    check_shape(drives.len(), new)?;
    for drive in drives {
        check_free(drive)?;
    }
    let smallest = drives.iter().min_by_key(|d| d.size_bytes).ok_or(AssembleError::NoDrives)?;
    let placement = place(smallest.size_bytes)
        .map_err(|reason| CreateError::Placement { name: smallest.name.clone(), reason })?;
    let chunk_bytes = if new.level == Level::Raid1 { 0 } else { new.chunk_bytes };
    Ok(CreatePlan {
        uuid: new.uuid.unwrap_or_else(Uuid::new_v4),
        set_name: new.set_name(),
        geometry: Geometry {
            level: new.level,
            members: drives.len(),
            chunk_bytes,
            component_bytes: placement.component_bytes,
        },
        consistency: new.consistency.unwrap_or(Consistency::default_of(new.level)),
        assume_clean: new.assume_clean,
        blank_ends: false,
        placement,
        device_uuids: drives.iter().map(|_| Uuid::new_v4()).collect(),
        created: Timestamp::now(),
    })
}

fn check_shape(members: usize, new: &NewArray) -> Result<(), CreateError> {
    let level = new.level;
    let min = match level {
        Level::Raid0 => 1,
        Level::Raid1 | Level::Raid10 => 2,
        Level::Raid5 => 3,
        Level::Raid6 => 4,
    };
    if let Some(consistency) = new.consistency
        && !consistency.is_for(level)
    {
        return Err(CreateError::Consistency(level, consistency));
    }
    if !(min..=MAX_DEVICES).contains(&members) {
        return Err(CreateError::MemberCount { level, min, max: MAX_DEVICES, found: members });
    }
    let chunk = new.chunk_bytes;
    let possible = chunk.is_power_of_two() && (4096..=1 << 20).contains(&chunk);
    if level != Level::Raid1 && !possible {
        return Err(CreateError::Chunk(chunk));
    }
    Ok(())
}

fn check_free(drive: &Examined) -> Result<(), CreateError> {
    match &drive.contents {
        Contents::Blank => Ok(()),
        Contents::Md(_) if drive.is_unfinished() => Ok(()),
        Contents::Md(superblock) => Err(CreateError::IsMember {
            name: drive.name.clone(),
            found: Box::new(Summary::from(&**superblock)),
        }),
        other => {
            Err(AssembleError::Foreign { name: drive.name.clone(), contents: other.to_string() }
                .into())
        }
    }
}

/// Creates the array; `media` in the order of the drives that were planned with.
///
/// Members that can be zeroed with a guarantee are, and if all can, copies agree from the start, and
/// parity is right (that of zeros is zero); otherwise they have to be synced.
///
/// # Errors
/// The drive that failed; there is no array then, and the drives count as blank.
pub fn create<M: Medium>(plan: &CreatePlan, media: Vec<M>) -> Result<ArrayHandle<M>, CreateError> {
    if media.len() != plan.geometry.members {
        let (level, found) = (plan.geometry.level, media.len());
        let expected = plan.geometry.members;
        return Err(CreateError::MemberCount { level, min: expected, max: expected, found });
    }
    let mut zeroed = true;
    for medium in &media {
        zeroed &= medium
            .zero_cheaply(plan.placement.data_offset_bytes, plan.placement.component_bytes)
            .map_err(|e| failed(medium, "zeroing its data", e))?;
    }
    if plan.blank_ends && !zeroed {
        clear_ends(plan, &media)?;
    }
    // What an earlier creation has left would not fit to the headers that come now, and would not be
    // known as unfinished any more if this one is cut short, too.
    for medium in &media {
        medium
            .write_durable(SUPERBLOCK_OFFSET_BYTES, &[0; 4096])
            .map_err(|e| failed(medium, "clearing its superblock", e))?;
    }
    let in_sync = zeroed || plan.assume_clean || !plan.geometry.level.is_redundant();
    let synced_bytes = if in_sync { IN_SYNC } else { 0 };
    let mut handle = write_superblocks(plan, media, synced_bytes)?;
    // Now the drives are those of a creation that never ended, whatever else is on them.
    handle.take_over().map_err(|error| match error {
        UpdateError::Write { name, source, .. } => {
            CreateError::Write { name, doing: "writing its write intent", source }
        }
        other => other.into(),
    })?;
    let replicas: Vec<_> = handle.members.iter().map(|m| Some(m.replica.clone())).collect();
    for write in plan_first_event(&replicas, &plan.geometry, synced_bytes, plan.created) {
        if let Some(member) = handle.members.get_mut(write.member) {
            super::handle::apply(member, &write)?;
        }
    }
    handle.refresh_events();
    Ok(handle)
}

/// Zeroes the rows of the first and the last MiB, parity and copies included.
fn clear_ends<M: Medium>(plan: &CreatePlan, media: &[M]) -> Result<(), CreateError> {
    let (geometry, data) = (&plan.geometry, plan.placement.data_offset_bytes);
    let end = geometry.component_bytes;
    // A byte of the array is on no member further in than in the array.
    let first = 0..BLANK_BYTES.min(end);
    let last = geometry.to_component(geometry.array_bytes().saturating_sub(BLANK_BYTES))..end;
    let zeros = vec![0; ZEROS_BYTES];
    for medium in media {
        for range in [first.clone(), last.clone()] {
            for at in range.clone().step_by(ZEROS_BYTES) {
                // Components are whole MiB, and chunks whole blocks.
                let len = (range.end - at).min(ZEROS_BYTES as u64) as usize;
                let written = medium.write_durable(data + at, zeros.get(..len).unwrap_or(&zeros));
                written.map_err(|e| failed(medium, "zeroing its data", e))?;
            }
        }
    }
    Ok(())
}

fn failed(medium: &impl Medium, doing: &'static str, source: std::io::Error) -> CreateError {
    CreateError::Write { name: medium.name(), doing, source }
}

/// The private headers, then the superblocks.
fn write_superblocks<M: Medium>(
    plan: &CreatePlan,
    media: Vec<M>,
    synced_bytes: u64,
) -> Result<ArrayHandle<M>, CreateError> {
    let mut members = Vec::with_capacity(media.len());
    let mut superblock_writes = Vec::with_capacity(media.len());
    for (slot, (medium, device_uuid)) in media.into_iter().zip(&plan.device_uuids).enumerate() {
        let (superblock, header) = first_metadata(plan, slot, *device_uuid, synced_bytes);
        let private = PrivateArea::Absent;
        let mut replica = Replica { superblock: superblock.clone(), private, bad_blocks: None };
        for write in member_writes(Some((header, Copy::First)), superblock, slot) {
            if write.is_superblock() {
                write.apply(&mut replica);
                superblock_writes.push(write);
            } else {
                medium
                    .write_durable(write.offset_bytes, &*write.bytes)
                    .map_err(|e| failed(&medium, "writing its private header", e))?;
            }
        }
        members.push(Member::new(slot, medium, replica, Kept::default()));
    }
    for (member, write) in members.iter().zip(&superblock_writes) {
        let medium = member.medium();
        medium
            .write_durable(write.offset_bytes, &*write.bytes)
            .map_err(|e| failed(medium, "writing its superblock", e))?;
    }
    let info = ArrayInfo {
        uuid: plan.uuid,
        set_name: plan.set_name.clone(),
        geometry: plan.geometry,
        consistency: plan.consistency,
        events: 0,
        resync_from_bytes: (synced_bytes != IN_SYNC).then_some(synced_bytes),
        md_block_bytes: 0,
    };
    let count = plan.geometry.members;
    let recorded = Wanted {
        version: 0,
        active: false,
        members: vec![MemberState::InSync; count],
        rebuild_from: None,
        resync_from: synced_bytes,
        bad_blocks: vec![Vec::new(); count],
        devices: (0..).take(count).collect(),
    };
    Ok(ArrayHandle::new(info, members, recorded, first_maps(plan, synced_bytes)))
}

/// The bitmap: nothing differs, or everything may; and the degraded-write map: nobody misses
/// anything.
fn first_maps(plan: &CreatePlan, synced_bytes: u64) -> Common {
    let geometry = &plan.geometry;
    let covered_bytes = geometry.mapped_bytes();
    let map = |region_bytes| {
        let new = NewBitmap { array_uuid: plan.uuid, covered_bytes, region_bytes, events: 0 };
        let superblock = BitmapSuperblock::create(&new);
        let unit = MapUnit::of(geometry.level);
        let regions = RegionMap::empty(unit, superblock.covered_bytes(), superblock.region_bytes());
        Bitmap { superblock, regions }
    };
    let mut common = Common::default();
    if plan.consistency == Consistency::Bitmap {
        let mut bitmap = map(region_bytes_for(covered_bytes, BITMAP_BYTES));
        if synced_bytes == 0 {
            bitmap.regions.fill();
        }
        common.bitmap = Some(bitmap);
    }
    let sections = sections(geometry, plan.consistency, plan.placement.private_bytes);
    if sections.iter().any(|s| s.kind == SectionKind::DegradedWriteMap) {
        let mut map = map(degraded_map_region_bytes(geometry, plan.placement.private_bytes));
        map.superblock = map.superblock.with_state(BitmapState::STALE);
        common.degraded_map = Some(map);
    }
    common
}

/// A member's first superblock, and the header that goes with it.
fn first_metadata(
    plan: &CreatePlan,
    slot: usize,
    device_uuid: Uuid,
    synced_bytes: u64,
) -> (Superblock, Header) {
    let intent = match (plan.consistency, plan.geometry.level) {
        (Consistency::Bitmap, _) => NewIntent::Bitmap(BITMAP_OFFSET_BYTES),
        (Consistency::Ppl, Level::Raid5) => {
            NewIntent::Ppl(BITMAP_OFFSET_BYTES..BITMAP_OFFSET_BYTES + BITMAP_BYTES)
        }
        _ => NewIntent::None,
    };
    let superblock = Superblock::create(&NewSuperblock {
        array_uuid: plan.uuid,
        set_name: &plan.set_name,
        geometry: plan.geometry,
        // At most `MAX_DEVICES`.
        slot: u16::try_from(slot).unwrap_or(u16::MAX),
        device_uuid,
        data_offset_bytes: plan.placement.data_offset_bytes,
        bad_block_log_offset_bytes: BAD_BLOCK_LOG_OFFSET_BYTES,
        intent,
        in_sync: synced_bytes == IN_SYNC,
        created: plan.created,
    });
    let header = Header {
        array_uuid: plan.uuid,
        device_uuid,
        generation: 1,
        data_offset_bytes: plan.placement.data_offset_bytes,
        private_bytes: plan.placement.private_bytes,
        superblock_hash: superblock_hash(&superblock),
        synced_bytes,
        sections: sections(&plan.geometry, plan.consistency, plan.placement.private_bytes),
    };
    (superblock, header)
}
