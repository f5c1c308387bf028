//! What the members' metadata become when the array's state changes: what is on the drives and what
//! is wanted in, the writes to make out. Pure; the order is the point: each write is durable before
//! the next is begun, and a crash between any two leaves a set that is assembled right.
//!
//! **Who is written.** The members that are in sync or being rebuilt in what is wanted. A member
//! that has failed is never written: what its superblock says is the past.
//!
//! **Events.** The count that all superblocks carry says how new each is. Members one behind the
//! highest still count as in sync (md's margin: a crash between two members leaves that); two
//! behind has missed something. So a change that must reject whoever has not taken it raises the
//! count by two, in two rounds: in the first, all members get one event more and keep the state
//! they have (the change is *announced*); in the second, all get another, and the new state. In one
//! round of two events a crash in its middle would reject a good member. Two events are needed when
//! * a member is lost: it must be rejected when it comes back, and it has the count of before;
//! * "active", "clean" or the resync's position change: an older image of a member (a backup, half
//!   of a mirror) put in the member's place has the count of before, and lacks what was written.
//!
//! Everything else is said by the member concerned about itself (the position of its rebuild, its
//! bad blocks) or adds a member that is not believed in anything yet: one event is enough, and
//! says only that superblocks changed.
//!
//! Before any change the members that are behind are brought to the newest state, so that no crash
//! ever leaves a difference of two among those that are good.
//!
//! **Within a round** the members in sync come first, those being rebuilt next, and those that get
//! their role last: so the newest is never one that the others have not heard of. A drive that waits
//! for its role already says that it is rebuilt up to nothing, because md, when a member is one event
//! behind, takes its role from the newest and only that from the member itself.
//!
//! **Per member** the header of the private area that goes with the new superblock is durable
//! before the superblock is written ([`super::private`]); new bad blocks are in the log before the
//! superblock says that the log counts, and old ones are taken out last ([`super::bad_blocks`]).
//!
//! **Active and clean.** `resync_offset` is what md makes of it: 0 while the array may be written
//! to, and, when it is clean, the position up to which copies agree, or [`IN_SYNC`]. RAID 0 has no
//! copies and keeps what it has; its event count rises all the same. Up to where an active array's
//! copies agree stands in the private header.

use super::bad_blocks::{BadBlockError, Log};
use super::private::{Copy, Header, PrivateArea, header_offset_bytes};
use super::superblock::{Geometry, Own, Role, SUPERBLOCK_OFFSET_BYTES, State, Superblock};
use super::{Level, Timestamp};
use crate::array::{BadRange, MemberState, Wanted};
use crate::mutation::mutation;
use thiserror::Error;

/// A member's metadata, as it is on the drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// md's superblock.
    pub superblock: Superblock,
    /// Our private area.
    pub private: PrivateArea,
    /// md's bad-block log, if the superblock says that it counts.
    pub bad_blocks: Option<Log>,
}

/// A write to one member, to be durable before the next one is begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataWrite {
    /// The member's slot.
    pub member: usize,
    /// Where, in bytes on the drive.
    pub offset_bytes: u64,
    /// What.
    pub bytes: Box<[u8; 4096]>,
    /// What the member's metadata is once this is durable.
    pub(super) effect: Effect,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing yet: the header awaits its superblock.
    Header,
    /// A header for the superblock that is there.
    NewHeader(Header, Copy),
    /// The new state, with the header that was written before it.
    Superblock(Superblock, Option<(Header, Copy)>),
    /// What the bad-block log holds now.
    BadBlocks(Log),
    /// Nothing that the replica tells: a bitmap, a log, a map.
    Other,
}

/// A member that cannot take what is wanted of it: it has to be failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("slot {slot}: {reason}")]
pub struct CannotRecord {
    /// Its slot.
    pub slot: usize,
    /// Why.
    pub reason: CannotRecordReason,
}

/// Why a member cannot take what is wanted of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CannotRecordReason {
    /// Bad blocks, and no log for them.
    #[error("it has bad blocks, and no log to record them in")]
    NoLog,
    /// More bad blocks than its log holds.
    #[error(transparent)]
    BadBlocks(#[from] BadBlockError),
    /// All device numbers are taken.
    #[error("it has no device number in the array")]
    NoNumber,
}

/// What is recorded now.
#[derive(Debug, Clone, Copy)]
pub struct Before<'a> {
    /// The drive in each slot, with or without a role: as it is.
    pub replicas: &'a [Option<Replica>],
    /// Whether the superblocks were last made to say "active" (which 0 alone does not tell).
    pub active: bool,
    /// The array's shape.
    pub geometry: &'a Geometry,
}

/// What to write, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The writes; each is durable before the next is begun.
    pub writes: Vec<MetadataWrite>,
    /// Whether a member is lost by it. Who remembers how new the array was when it last lost one
    /// does so when all is written and before it counts as recorded.
    pub loses_member: bool,
}

/// The writes that bring what is on the drives to what is wanted; none if that is so already.
///
/// # Errors
/// Names a member that cannot take it; nothing need be written then.
pub fn plan_record(
    before: &Before<'_>,
    wanted: &Wanted,
    now: Timestamp,
) -> Result<Plan, CannotRecord> {
    let mut planner = Planner::new(before, wanted);
    let Some(newest) = planner.newest() else { return Ok(Plan::default()) };
    planner.level(&newest);
    let next = planner.next_state(&newest);
    planner.add_bad_blocks()?;
    let loses_member = (0..=u16::MAX)
        .take(wanted.members.len())
        .any(|slot| newest.roles.holders(slot).any(|n| next.roles.role(n) != Role::Active(slot)));
    let two = loses_member && !mutation!("one-event-for-failure")
        || before.active != wanted.active
        || newest.resync_offset != next.resync_offset;
    let mut newest = newest;
    if loses_member && planner.any_is_finished() {
        // Before anybody says that a member is lost, those say that they are complete without which
        // the rest would not be.
        newest = State { events: newest.events + 1, updated: now, ..newest };
        planner.round(&newest, Round::Finished);
    }
    if two {
        let events = newest.events + 1;
        planner.round(&State { events, updated: now, ..newest.clone() }, Round::Announced);
        planner.round(&State { events: events + 1, updated: now, ..next }, Round::Final);
    } else if planner.differs(&newest, &next) {
        planner.round(&State { events: newest.events + 1, updated: now, ..next }, Round::Final);
    } else if wanted.active {
        planner.renew_headers();
    }
    planner.drop_bad_blocks();
    Ok(Plan { writes: planner.writes, loses_member })
}

/// The writes that end a creation: one event more on each member, and nothing else.
pub(crate) fn plan_first_event(
    replicas: &[Option<Replica>],
    geometry: &Geometry,
    synced_bytes: u64,
    now: Timestamp,
) -> Vec<MetadataWrite> {
    let wanted = Wanted {
        version: 0,
        active: false,
        members: vec![MemberState::InSync; replicas.len()],
        rebuild_from: None,
        resync_from: synced_bytes,
        bad_blocks: Vec::new(),
        devices: Vec::new(),
    };
    let before = Before { replicas, active: false, geometry };
    let mut planner = Planner::new(&before, &wanted);
    if let Some(state) = planner.newest() {
        let state = State { events: state.events + 1, updated: now, ..state };
        planner.round(&state, Round::Final);
    }
    planner.writes
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// One event more, nothing else.
    Announced,
    /// The same, but members that have been rebuilt are complete.
    Finished,
    /// What is wanted.
    Final,
}

struct Planner<'a> {
    before: &'a Before<'a>,
    wanted: &'a Wanted,
    /// As the writes so far leave them.
    replicas: Vec<Option<Replica>>,
    /// The slots that are written, those that get their role last.
    slots: Vec<usize>,
    writes: Vec<MetadataWrite>,
}

/// Whether a drive already is the member in `slot` (complete or not).
fn has_role(replica: &Replica, slot: usize) -> bool {
    matches!(replica.superblock.own_role(), Role::Active(own) if usize::from(own) == slot)
}

impl<'a> Planner<'a> {
    fn new(before: &'a Before<'a>, wanted: &'a Wanted) -> Self {
        let is_written = |slot: &usize| {
            // A drive without a role may be in sync: it had little to be rebuilt, or a crash came
            // between the others' superblocks and its own.
            let is_wanted = matches!(
                wanted.members.get(*slot),
                Some(MemberState::InSync | MemberState::Rebuilding)
            );
            is_wanted && matches!(before.replicas.get(*slot), Some(Some(_)))
        };
        let mut slots: Vec<usize> = (0..before.replicas.len()).filter(is_written).collect();
        let replicas = before.replicas.to_vec();
        slots.sort_by_key(|slot| {
            let replica = replicas.get(*slot).and_then(Option::as_ref);
            let is_new = !replica.is_some_and(|r| has_role(r, *slot));
            let rebuilding = replica.is_some_and(|r| r.superblock.recovery_sectors().is_some());
            (is_new, rebuilding)
        });
        Self { before, wanted, replicas, slots, writes: Vec::new() }
    }

    fn replica(&self, slot: usize) -> Option<&Replica> {
        self.replicas.get(slot)?.as_ref()
    }

    fn push(&mut self, write: MetadataWrite) {
        if let Some(Some(replica)) = self.replicas.get_mut(write.member) {
            write.apply(replica);
        }
        self.writes.push(write);
    }

    /// The newest state among the members that are written.
    fn newest(&self) -> Option<State> {
        let written = self.slots.iter().filter_map(|slot| Some((slot, self.replica(*slot)?)));
        let newest = written.max_by_key(|(slot, replica)| {
            // Drives without a role are asked only if there is nobody else.
            (has_role(replica, **slot), replica.superblock.events(), std::cmp::Reverse(**slot))
        })?;
        Some(newest.1.superblock.state())
    }

    /// Brings the members that are behind to the newest state.
    fn level(&mut self, newest: &State) {
        for slot in self.slots.clone() {
            let Some(replica) = self.replica(slot) else { continue };
            if replica.superblock.events() < newest.events {
                let own = replica.superblock.own();
                let synced = synced_bytes(replica).min(self.wanted.resync_from);
                self.write_member(slot, newest, own, synced);
            }
        }
    }

    fn next_state(&self, newest: &State) -> State {
        let mut roles = newest.roles.clone();
        for (slot, number) in (0..=u16::MAX).zip(self.numbers()) {
            for holder in newest.roles.holders(slot) {
                roles.set(holder, Role::Faulty);
            }
            if let Some(number) = number {
                roles.set(number, Role::Active(slot));
            }
        }
        let geometry = self.before.geometry;
        let resync_offset = match geometry.level {
            Level::Raid0 => newest.resync_offset,
            _ if self.wanted.active => 0,
            _ => geometry.resync_sectors(self.wanted.resync_from),
        };
        State { resync_offset, roles, ..newest.clone() }
    }

    /// For each slot the device number of its member.
    fn numbers(&self) -> Vec<Option<u32>> {
        let number = |slot| {
            let replica = self.slots.contains(&slot).then(|| self.replica(slot))??;
            Some(replica.superblock.device_number())
        };
        (0..self.wanted.members.len()).map(number).collect()
    }

    fn own(&self, slot: usize) -> Own {
        let rebuilding = self.wanted.members.get(slot) == Some(&MemberState::Rebuilding);
        let position = self.wanted.rebuild_from.unwrap_or(0);
        Own {
            recovery_sectors: rebuilding.then(|| self.before.geometry.recovery_sectors(position)),
            has_bad_blocks: !self.bad_blocks(slot).is_empty(),
        }
    }

    /// Whether a member has been rebuilt, and its superblock does not say so yet.
    fn is_finished(&self, slot: usize) -> bool {
        let was_rebuilding = |replica: &Replica| {
            has_role(replica, slot) && replica.superblock.recovery_sectors().is_some()
        };
        self.replica(slot).is_some_and(was_rebuilding) && self.own(slot).recovery_sectors.is_none()
    }

    fn any_is_finished(&self) -> bool {
        self.slots.iter().any(|&slot| self.is_finished(slot))
    }

    fn bad_blocks(&self, slot: usize) -> &'a [BadRange] {
        self.wanted.bad_blocks.get(slot).map_or(&[], Vec::as_slice)
    }

    fn differs(&self, newest: &State, next: &State) -> bool {
        let own_differs = |slot: &usize| {
            self.replica(*slot).is_some_and(|r| r.superblock.own() != self.own(*slot))
        };
        newest.roles != next.roles || self.slots.iter().any(own_differs)
    }

    /// Puts what is bad into the logs, before the superblocks.
    fn add_bad_blocks(&mut self) -> Result<(), CannotRecord> {
        for slot in self.slots.clone() {
            let ranges = self.bad_blocks(slot).to_vec();
            let Some(replica) = self.replica(slot) else { continue };
            if ranges.is_empty() {
                continue;
            }
            let cannot = |reason: BadBlockError| CannotRecord { slot, reason: reason.into() };
            let superblock = &replica.superblock;
            let is_new = replica.bad_blocks.is_none();
            let mut log = match &replica.bad_blocks {
                Some(log) => log.clone(),
                None => Log::empty(superblock.bad_block_shift()).map_err(cannot)?,
            };
            let offset_bytes = superblock.data_offset_bytes();
            if log.with(&ranges, offset_bytes) == Err(BadBlockError::Full) {
                let less = log.without_unneeded(&ranges, offset_bytes);
                if less != log {
                    // There is a place, as something is in it.
                    let _ = self.write_log(slot, less.clone());
                    log = less;
                }
            }
            let next = log.with(&ranges, offset_bytes).map_err(cannot)?;
            // What a log holds that does not count is not known.
            if next != log || is_new {
                self.write_log(slot, next)
                    .ok_or(CannotRecord { slot, reason: CannotRecordReason::NoLog })?;
            }
        }
        Ok(())
    }

    /// Takes out of the logs what is no longer bad, after everything else.
    fn drop_bad_blocks(&mut self) {
        for slot in self.slots.clone() {
            let Some(replica) = self.replica(slot) else { continue };
            let Some(log) = &replica.bad_blocks else { continue };
            let offset_bytes = replica.superblock.data_offset_bytes();
            let next = log.without_others(self.bad_blocks(slot), offset_bytes);
            if next != *log {
                // There is a place, or the log would not have been read.
                let _ = self.write_log(slot, next);
            }
        }
    }

    fn write_log(&mut self, slot: usize, log: Log) -> Option<()> {
        let place = self.replica(slot)?.superblock.bad_block_place()?;
        self.push(MetadataWrite {
            member: slot,
            offset_bytes: place.start,
            bytes: log.to_bytes(),
            effect: Effect::BadBlocks(log),
        });
        Some(())
    }

    fn round(&mut self, state: &State, round: Round) {
        for slot in self.slots.clone() {
            let Some(replica) = self.replica(slot) else { continue };
            let (own, synced) = match round {
                Round::Announced => {
                    let synced = synced_bytes(replica).min(self.wanted.resync_from);
                    (replica.superblock.own(), synced)
                }
                Round::Finished => {
                    let synced = synced_bytes(replica).min(self.wanted.resync_from);
                    let is_finished = self.is_finished(slot);
                    (if is_finished { self.own(slot) } else { replica.superblock.own() }, synced)
                }
                Round::Final => (self.own(slot), self.wanted.resync_from),
            };
            self.write_member(slot, state, own, synced);
        }
    }

    fn write_member(&mut self, slot: usize, state: &State, own: Own, synced: u64) {
        let Some(replica) = self.replica(slot) else { return };
        let superblock = replica.superblock.with_state(state, own);
        let header = replica.private.header_for(&superblock, synced);
        for write in member_writes(header, superblock, slot) {
            self.push(write);
        }
    }

    /// While an array is active, how far its copies agree stands in the headers alone.
    fn renew_headers(&mut self) {
        for slot in self.slots.clone() {
            let Some(replica) = self.replica(slot) else { continue };
            let synced = self.wanted.resync_from;
            if replica.private.believed().is_none_or(|header| header.synced_bytes == synced) {
                continue;
            }
            let superblock = &replica.superblock;
            let Some((header, copy)) = replica.private.header_for(superblock, synced) else {
                continue;
            };
            let place = header_offset_bytes(superblock.data_offset_bytes(), copy);
            let Some(offset_bytes) = place else { continue };
            self.push(MetadataWrite {
                member: slot,
                offset_bytes,
                bytes: header.to_bytes(),
                effect: Effect::NewHeader(header, copy),
            });
        }
    }
}

/// Up to where the private header says that copies agree.
fn synced_bytes(replica: &Replica) -> u64 {
    replica.private.believed().map_or(0, |header| header.synced_bytes)
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
    /// Whether this is a superblock, or else something that goes before or after one.
    #[must_use]
    pub fn is_superblock(&self) -> bool {
        matches!(self.effect, Effect::Superblock(..))
    }

    /// What is written, in words.
    #[must_use]
    pub fn what(&self) -> &'static str {
        match self.effect {
            Effect::Superblock(..) => "superblock",
            Effect::Header | Effect::NewHeader(..) => "private header",
            Effect::BadBlocks(_) => "bad-block log",
            Effect::Other => "write intent",
        }
    }

    /// Notes in the member's replica that this write is durable.
    pub fn apply(&self, replica: &mut Replica) {
        match &self.effect {
            Effect::Header | Effect::Other => {}
            Effect::NewHeader(header, copy) => {
                replica.private = PrivateArea::Believed { header: header.clone(), copy: *copy };
            }
            Effect::Superblock(superblock, header) => {
                replica.superblock = superblock.clone();
                replica.private = match header {
                    Some((header, copy)) => {
                        PrivateArea::Believed { header: header.clone(), copy: *copy }
                    }
                    None => PrivateArea::Absent,
                };
                if !superblock.has_bad_blocks() {
                    replica.bad_blocks = None;
                }
            }
            Effect::BadBlocks(log) => replica.bad_blocks = Some(log.clone()),
        }
    }
}
