//! A new array on blank drives: planning it, and writing it all or not at all
//! (see [`super`]).

use super::error::{AssembleError, CreateError};
use super::examine::Examined;
use super::handle::{ArrayHandle, Member};
use super::plan::{ArrayInfo, check_apart};
use crate::device::Medium;
use crate::device::signature::Contents;
use crate::metadata::layout::{BAD_BLOCK_LOG_OFFSET_BYTES, Placement, place};
use crate::metadata::private::{Copy, Header, PrivateArea, superblock_hash};
use crate::metadata::superblock::{
    Geometry, IN_SYNC, MAX_DEVICES, NewSuperblock, Summary, Superblock,
};
use crate::metadata::update::{Change, Replica, member_writes};
use crate::metadata::{Level, Timestamp};
use uuid::Uuid;

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
        Level::Raid5 | Level::Raid6 => return Err(CreateError::NotServed(level)),
    };
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
/// Members that can be zeroed with a guarantee are, and if all can, the copies of RAID 1
/// and 10 agree from the start; otherwise they have to be synced.
///
/// # Errors
/// The drive that failed; there is no array then, and the drives count as blank.
pub fn create<M: Medium>(plan: &CreatePlan, media: Vec<M>) -> Result<ArrayHandle<M>, CreateError> {
    let fail = |medium: &M, doing: &'static str, source| CreateError::Write {
        name: medium.name(),
        doing,
        source,
    };
    if media.len() != plan.geometry.members {
        let (level, found) = (plan.geometry.level, media.len());
        let expected = plan.geometry.members;
        return Err(CreateError::MemberCount { level, min: expected, max: expected, found });
    }
    let mut zeroed = true;
    for medium in &media {
        zeroed &= medium
            .zero_cheaply(plan.placement.data_offset_bytes, plan.placement.component_bytes)
            .map_err(|e| fail(medium, "zeroing its data", e))?;
    }
    let in_sync = zeroed || !plan.geometry.level.is_redundant();
    let mut members = Vec::with_capacity(media.len());
    let mut superblock_writes = Vec::with_capacity(media.len());
    for (slot, (medium, device_uuid)) in media.into_iter().zip(&plan.device_uuids).enumerate() {
        let (superblock, header) = first_metadata(plan, slot, *device_uuid, in_sync);
        let mut replica = Replica { superblock: superblock.clone(), private: PrivateArea::Absent };
        for write in member_writes(Some((header, Copy::First)), superblock, slot) {
            if write.is_superblock() {
                write.apply(&mut replica);
                superblock_writes.push(write);
            } else {
                medium
                    .write_durable(write.offset_bytes, &*write.bytes)
                    .map_err(|e| fail(&medium, "writing its private header", e))?;
            }
        }
        members.push(Member::new(medium, replica));
    }
    for (member, write) in members.iter().zip(&superblock_writes) {
        let medium = member.medium();
        medium
            .write_durable(write.offset_bytes, &*write.bytes)
            .map_err(|e| fail(medium, "writing its superblock", e))?;
    }
    let resync_offset = if in_sync { IN_SYNC } else { 0 };
    let info = ArrayInfo {
        uuid: plan.uuid,
        set_name: plan.set_name.clone(),
        geometry: plan.geometry,
        events: 0,
        resync_from_bytes: (!in_sync).then_some(0),
        md_block_bytes: 0,
    };
    let mut handle = ArrayHandle::new(info, members, resync_offset);
    handle.change(Change::Clean { resync_offset }, plan.created)?;
    Ok(handle)
}

/// A member's first superblock, and the header that goes with it.
fn first_metadata(
    plan: &CreatePlan,
    slot: usize,
    device_uuid: Uuid,
    in_sync: bool,
) -> (Superblock, Header) {
    let superblock = Superblock::create(&NewSuperblock {
        array_uuid: plan.uuid,
        set_name: &plan.set_name,
        geometry: plan.geometry,
        // At most `MAX_DEVICES`.
        slot: u16::try_from(slot).unwrap_or(u16::MAX),
        device_uuid,
        data_offset_bytes: plan.placement.data_offset_bytes,
        bad_block_log_offset_bytes: BAD_BLOCK_LOG_OFFSET_BYTES,
        in_sync,
        created: plan.created,
    });
    let header = Header {
        array_uuid: plan.uuid,
        device_uuid,
        generation: 1,
        data_offset_bytes: plan.placement.data_offset_bytes,
        private_bytes: plan.placement.private_bytes,
        superblock_hash: superblock_hash(&superblock),
        sections: Vec::new(),
    };
    (superblock, header)
}
