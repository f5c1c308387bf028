//! What the superblocks become when the array's state changes: old state and event in,
//! the writes to make out. Pure; the order is the point.
//!
//! **Events.** Every change raises the event count by one on every member. Members one
//! behind the highest still count as in sync (md's margin: a crash between two members
//! leaves that), so before a change the members that are behind are first brought to the
//! newest state. Thus no crash ever leaves a difference of two, which would reject a
//! member.
//!
//! What must be rejected is an older image of a member (a backup put in its place). So a
//! change of state is two changes: [`Change::Announced`], which raises the count alone,
//! and, when that is durable on all members, the change itself. A member of before is two
//! behind then, for md too.
//!
//! **Active and clean.** `resync_offset` is what md makes of it: 0 while the array may be
//! written to (after a crash everything is resynced), and, when it is clean, the position
//! up to which the copies agree, or [`IN_SYNC`]. RAID 0 has no copies and keeps what it
//! has; its event count rises all the same.
//!
//! **Per member** the header of the private area that goes with the new superblock is
//! durable before the superblock is written ([`super::private`]).

use super::private::{Copy, Header, PrivateArea, header_offset_bytes};
use super::superblock::{IN_SYNC, SUPERBLOCK_OFFSET_BYTES, State, Superblock};
use super::{Level, Timestamp};

/// A member's metadata, as it is on the drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// md's superblock.
    pub superblock: Superblock,
    /// Our private area.
    pub private: PrivateArea,
}

/// What happened to the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Another change comes next; the state stays what it is.
    Announced,
    /// The first write after clean is about to be submitted.
    Active,
    /// All writes have completed and been flushed.
    Clean {
        /// Up to where the copies agree: sectors of the array, or [`IN_SYNC`].
        resync_offset: u64,
    },
}

/// A write to one member, to be durable before the next one is begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataWrite {
    /// The member's index among the replicas.
    pub member: usize,
    /// Where, in bytes on the drive.
    pub offset_bytes: u64,
    /// What.
    pub bytes: Box<[u8; 4096]>,
    /// What the member's metadata is once this is durable.
    effect: Effect,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Effect {
    /// Nothing yet: the header awaits its superblock.
    Header,
    /// The new state, with the header that was written before it.
    Superblock(Superblock, Option<(Header, Copy)>),
}

/// The writes that a change takes, in order.
///
/// `replicas` are all members of one array; none may be more than one event behind the
/// newest (assembly has made sure).
#[must_use]
pub fn plan_change(
    replicas: &[Replica],
    level: Level,
    change: Change,
    now: Timestamp,
) -> Vec<MetadataWrite> {
    let Some(newest) = replicas.iter().max_by_key(|r| r.superblock.events()) else {
        return Vec::new();
    };
    let newest = &newest.superblock;
    let mut writes = Vec::new();
    let mut levelled = replicas.to_vec();
    let same = State {
        events: newest.events(),
        updated: newest.updated(),
        resync_offset: newest.resync_offset(),
    };
    for (member, replica) in levelled.iter_mut().enumerate() {
        if replica.superblock.events() < newest.events() {
            for write in plan_member(replica, member, newest, same) {
                write.apply(replica);
                writes.push(write);
            }
        }
    }
    let resync_offset = match (level, change) {
        (Level::Raid0, _) | (_, Change::Announced) => newest.resync_offset(),
        (_, Change::Active) => 0,
        (_, Change::Clean { resync_offset }) => resync_offset,
    };
    let next = State { events: newest.events() + 1, updated: now, resync_offset };
    for (member, replica) in levelled.iter().enumerate() {
        writes.extend(plan_member(replica, member, newest, next));
    }
    writes
}

/// The two writes that bring one member to a new state.
fn plan_member(
    replica: &Replica,
    member: usize,
    newest: &Superblock,
    state: State,
) -> Vec<MetadataWrite> {
    let superblock = replica.superblock.with_state(newest, state);
    member_writes(replica.private.header_for(&superblock), superblock, member)
}

/// A header, if there is one, and the superblock that it goes with.
pub(crate) fn member_writes(
    header: Option<(Header, Copy)>,
    superblock: Superblock,
    member: usize,
) -> Vec<MetadataWrite> {
    let mut writes = Vec::with_capacity(2);
    // A header is only ever read from, or planned for, a place that exists.
    let header = header.and_then(|(header, copy)| {
        let offset_bytes = header_offset_bytes(superblock.data_offset_bytes(), copy)?;
        Some((offset_bytes, header, copy))
    });
    if let Some((offset_bytes, header, _)) = &header {
        let bytes = header.to_bytes();
        writes.push(MetadataWrite {
            member,
            offset_bytes: *offset_bytes,
            bytes,
            effect: Effect::Header,
        });
    }
    let bytes = Box::new(*superblock.as_bytes());
    let header = header.map(|(_, header, copy)| (header, copy));
    writes.push(MetadataWrite {
        member,
        offset_bytes: SUPERBLOCK_OFFSET_BYTES,
        bytes,
        effect: Effect::Superblock(superblock, header),
    });
    writes
}

impl MetadataWrite {
    /// Whether this is a superblock, or else the header that goes before one.
    #[must_use]
    pub fn is_superblock(&self) -> bool {
        matches!(self.effect, Effect::Superblock(..))
    }

    /// Notes in the member's replica that this write is durable.
    pub fn apply(&self, replica: &mut Replica) {
        let Effect::Superblock(superblock, header) = &self.effect else { return };
        replica.superblock = superblock.clone();
        replica.private = match header {
            Some((header, copy)) => PrivateArea::Believed { header: header.clone(), copy: *copy },
            None => PrivateArea::Absent,
        };
    }
}

/// The position that goes into a clean superblock: whole sectors of `position_bytes`,
/// where `u64::MAX` and anything from the array's end on means in sync.
#[must_use]
pub fn resync_sectors(position_bytes: u64, array_bytes: u64) -> u64 {
    if position_bytes >= array_bytes { IN_SYNC } else { position_bytes / super::SECTOR_BYTES }
}
