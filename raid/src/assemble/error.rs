//! Why drives are not an array, or not a new one, and what to do then.

use crate::metadata::layout::PlacementError;
use crate::metadata::private::{HeaderError, Section};
use crate::metadata::record::CannotRecordReason;
use crate::metadata::superblock::{MdUuid, NotServed, Summary};
use crate::metadata::{Consistency, Level};
use std::io;
use thiserror::Error;
use uuid::Uuid;

/// Lists for people: `a, b and c`.
fn list(names: &[String]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn slots(missing: &[(u16, Option<String>)]) -> String {
    let one = |(slot, name): &(u16, Option<String>)| match name {
        Some(name) => format!("slot {slot} (last seen as {name})"),
        None => format!("slot {slot}"),
    };
    list(&missing.iter().map(one).collect::<Vec<_>>())
}

fn rejected(drives: &[(String, NotMember)]) -> String {
    drives
        .iter()
        .map(|(name, reason)| format!(" {name} cannot take their place: {reason}."))
        .collect()
}

/// What to do about an incomplete set.
fn cure(can_run: bool, is_behind: bool) -> &'static str {
    match (can_run, is_behind) {
        (false, _) => "Plug the missing drives in; without them the data is not complete",
        (true, true) => {
            "Plug the missing drives in: this array is known to have gone on without the drives that \
             are here. `--run` starts it all the same, and loses what was written since"
        }
        (true, false) => {
            "Plug the missing drives in. If they are lost, `--run` starts the array without them; \
             should they have been used since without those that are here, what was written then \
             is lost"
        }
    }
}

/// Why a drive that carries the array's UUID is no member of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NotMember {
    /// It waits for its turn.
    #[error("it is a spare")]
    Spare,
    /// The array went on without it.
    #[error("it is out of date, {events} events behind")]
    Behind {
        /// By how many events.
        events: u64,
    },
    /// The newest superblock, or its own, says so.
    #[error("it is recorded as failed")]
    Failed,
    /// It went on without the array.
    #[error("it records those that are in sync as failed, and was used without them")]
    Diverged,
    /// Nobody knows which of its blocks are bad.
    #[error("its bad-block log cannot be read")]
    BadBlockLog,
}

/// Why drives do not form an array that can be served.
#[derive(Debug, Error)]
pub enum AssembleError {
    /// An empty list.
    #[error("no drives were given")]
    NoDrives,
    /// A drive failed to be read.
    #[error("{name}: reading its metadata failed: {source}; see the kernel's log (dmesg)")]
    Unreadable {
        /// The drive.
        name: String,
        /// Its error.
        source: io::Error,
    },
    /// A drive twice.
    #[error("{first} and {second} are the same drive; list it once")]
    SameDrive {
        /// One name.
        first: String,
        /// Another.
        second: String,
    },
    /// Not ours, not md's.
    #[error(
        "{name} holds {contents}, so it is not touched; take it out of the list, or, if that may \
         be destroyed, name it in `raidfabric array create FILE --overwrite DRIVE`"
    )]
    Foreign {
        /// The drive.
        name: String,
        /// What it holds, in words.
        contents: String,
    },
    /// Blank drives among members.
    #[error(
        "{blank} {are} blank, but {members} {belong} to array {uuid}; find the drives that are \
         missing, or, to start anew, name the others in `raidfabric array create FILE --overwrite \
         DRIVE`: nothing is created over half an array",
        blank = list(.blank), are = if .blank.len() == 1 { "is" } else { "are" },
        members = list(.members), belong = if .members.len() == 1 { "belongs" } else { "belong" },
        uuid = MdUuid(*.array)
    )]
    PartlyBlank {
        /// The blank ones.
        blank: Vec<String>,
        /// The others.
        members: Vec<String>,
        /// The array of the others.
        array: Uuid,
    },
    /// A member of another array.
    #[error(
        "{name} is {found}, and not of array {expected}; take it out of the list, or, if that \
         array is no longer needed, name it in `raidfabric array create FILE --overwrite DRIVE`",
        expected = MdUuid(*.expected)
    )]
    OtherArray {
        /// The drive.
        name: String,
        /// What it says that it is.
        found: Box<Summary>,
        /// The array that was meant.
        expected: Uuid,
    },
    /// No drive carries the UUID that was asked for.
    #[error(
        "none of the drives belongs to array {uuid}; check that its drives are plugged in, and the \
         uuid (for a new array, leave it out)",
        uuid = MdUuid(*.0)
    )]
    NotFound(Uuid),
    /// md can, we cannot.
    #[error("{name} is {summary}: {reason}; use mdadm for this array")]
    NotServed {
        /// The drive.
        name: String,
        /// What it says that it is.
        summary: Box<Summary>,
        /// What is in the way.
        reason: NotServed,
    },
    /// RAID 0 in zones.
    #[error(
        "{name} contributes {found_bytes} bytes and another member {expected_bytes}: RAID 0 over \
         members of unequal size is not served; use mdadm for this array"
    )]
    UnequalRaid0 {
        /// A drive.
        name: String,
        /// Its data's size.
        found_bytes: u64,
        /// The first member's.
        expected_bytes: u64,
    },
    /// Members that disagree on what cannot differ.
    #[error(
        "{name} and {other} carry the same array UUID but describe different arrays; one of them \
         is from another time or another machine: take it out"
    )]
    Disagree {
        /// A drive.
        name: String,
        /// Another.
        other: String,
    },
    /// Two drives for one place.
    #[error(
        "{first} and {second} both are slot {slot}; one is a copy of the other (dd, snapshot): \
         take the copy out, or the array could be put together from both"
    )]
    DuplicateSlot {
        /// The slot.
        slot: u16,
        /// A drive.
        first: String,
        /// Another.
        second: String,
    },
    /// Two halves that went on without each other.
    #[error(
        "{first} and {second} each record the other as failed: both were used alone since, and \
         hold different data. Decide which to keep, and name it as the winner, or take the other \
         out"
    )]
    Diverged {
        /// A drive.
        first: String,
        /// Another.
        second: String,
    },
    /// Members are missing.
    #[error(
        "array {name} ({uuid}) is incomplete: {missing} of {members} missing.{unusable} {cure}",
        uuid = MdUuid(*.array), missing = slots(.missing), unusable = rejected(.unusable),
        cure = cure(*.can_run, *.is_behind)
    )]
    Incomplete {
        /// The array.
        array: Uuid,
        /// Its name.
        name: String,
        /// The number of slots.
        members: usize,
        /// The slots without a member, each with the name its drive last had, if that is known.
        missing: Vec<(u16, Option<String>)>,
        /// Drives that carry the array's UUID and cannot be used, and why.
        unusable: Vec<(String, NotMember)>,
        /// What is here holds all data: it can be started at the operator's risk.
        can_run: bool,
        /// The array is known to have lost members since these drives were last in it.
        is_behind: bool,
    },
    /// Parity that cannot be relied on, and nothing else to take its place.
    #[error(
        "array {name} ({uuid}) was not stopped cleanly and lacks a member, and with consistency \
         {consistency} what was being written then is not known: blocks of the missing member may \
         be wrong where others of the same stripe were written. Plug the missing drive in; or \
         accept that with `--force`", uuid = MdUuid(*.array)
    )]
    DirtyDegraded {
        /// The array.
        array: Uuid,
        /// Its name.
        name: String,
        /// How it is made consistent.
        consistency: Consistency,
    },
    /// A creation that was cut short: no array, and no data.
    #[error(
        "the creation of array {uuid} was interrupted: only {present} of {members} members were \
         written. There is no data on it; create it again", uuid = MdUuid(*.array)
    )]
    Unfinished {
        /// The array that was to be.
        array: Uuid,
        /// Members with a superblock.
        present: usize,
        /// The number of slots.
        members: usize,
    },
    /// A drive that has shrunk.
    #[error(
        "{name} has {size_bytes} bytes, but its data ends at byte {needed_bytes}; it is a \
         truncated copy, or the wrong drive"
    )]
    TooSmall {
        /// The drive.
        name: String,
        /// What it has.
        size_bytes: u64,
        /// What it would need.
        needed_bytes: u64,
    },
    /// A later program's work.
    #[error("{name}: {reason}; use that version or a later one")]
    NewerHeader {
        /// The drive.
        name: String,
        /// What is not understood.
        reason: HeaderError,
    },
    /// A later program's work.
    #[error(
        "{name}: its private area has a section of unknown kind {kind:?} that must be understood; \
         a later raidfabric made it: use that version or a later one", kind = .section.kind
    )]
    NewerSection {
        /// The drive.
        name: String,
        /// What is not understood.
        section: Section,
    },
    /// The configuration describes another array.
    #[error(
        "array {name} has {what} {found} on its drives, but the configuration says {expected}; \
         correct the configuration: a created array does not change"
    )]
    Unexpected {
        /// The array's name.
        name: String,
        /// Which property.
        what: &'static str,
        /// As created.
        found: String,
        /// As configured.
        expected: String,
    },
    /// Blank drives where an array was to be found.
    #[error(
        "{drives} {hold} no array; name its drives, or create one",
        drives = list(.0), hold = if .0.len() == 1 { "holds" } else { "hold" }
    )]
    AllBlank(Vec<String>),
}

/// Why an array cannot be created.
#[derive(Debug, Error)]
pub enum CreateError {
    /// A drive is not blank, or drives are one.
    #[error(transparent)]
    Drives(#[from] AssembleError),
    /// Too few or too many drives.
    #[error("{level} needs {min} to {max} drives, not {found}")]
    MemberCount {
        /// The level.
        level: Level,
        /// At least.
        min: usize,
        /// At most.
        max: usize,
        /// As given.
        found: usize,
    },
    /// Nonsense or out of range.
    #[error("a chunk of {0} bytes is not possible; a power of two from 4 KiB to 1 MiB is")]
    Chunk(u64),
    /// A policy that the level cannot have.
    #[error("{0} cannot have consistency {1}")]
    Consistency(Level, Consistency),
    /// A level that is recognised only.
    #[error("{0} cannot be served by this version")]
    NotServed(Level),
    /// A drive is too small.
    #[error("{name}: {reason}")]
    Placement {
        /// The drive.
        name: String,
        /// Why.
        reason: PlacementError,
    },
    /// A member of a running or finished array.
    #[error(
        "{name} is {found}, so nothing is created on it; serve that array, or, if it is no longer \
         needed, name the drive in `raidfabric array create FILE --overwrite DRIVE`"
    )]
    IsMember {
        /// The drive.
        name: String,
        /// What it is.
        found: Box<Summary>,
    },
    /// A drive failed.
    #[error(
        "{name}: {doing} failed: {source}; nothing has been created (the drives count as blank). \
         See the kernel's log (dmesg), replace the drive or take it out, and create again"
    )]
    Write {
        /// The drive.
        name: String,
        /// What was being done.
        doing: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The last step failed: the array exists.
    #[error("the array was created, but then: {0}")]
    Update(#[from] UpdateError),
}

/// Why a change of the array's state did not become durable.
#[derive(Debug, Error)]
pub enum UpdateError {
    /// A member could not be written.
    #[error(
        "slot {slot}, {name}: writing its {what} failed: {source}; see the kernel's log (dmesg)"
    )]
    Write {
        /// The slot.
        slot: usize,
        /// The drive.
        name: String,
        /// Superblock or header.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// A member could not be read.
    #[error("slot {slot}, {name}: reading its write intent failed: {source}; see the kernel's log")]
    Read {
        /// The slot.
        slot: usize,
        /// The drive.
        name: String,
        /// Its error.
        source: io::Error,
    },
    /// A member has no room for what it would have to say.
    #[error("slot {slot}, {name}: {reason}; the member has to be replaced")]
    Cannot {
        /// The slot.
        slot: usize,
        /// The drive.
        name: String,
        /// Why.
        reason: CannotRecordReason,
    },
    /// A member could not be flushed; what it has not confirmed may be lost.
    #[error(
        "slot {slot}, {name}: flushing it failed: {source}; what was written to it since the last \
         flush may be lost, so the array is not marked clean"
    )]
    Flush {
        /// The slot.
        slot: usize,
        /// The drive.
        name: String,
        /// Its error.
        source: io::Error,
    },
}

impl UpdateError {
    /// The slot whose drive failed.
    #[must_use]
    pub fn slot(&self) -> usize {
        match self {
            Self::Write { slot, .. }
            | Self::Read { slot, .. }
            | Self::Flush { slot, .. }
            | Self::Cannot { slot, .. } => *slot,
        }
    }
}

/// Why a drive cannot be added to an array.
#[derive(Debug, Error)]
pub enum AddError {
    /// There is no such slot, or it has a member.
    #[error("slot {0} is not free")]
    SlotTaken(usize),
    /// It holds something.
    #[error("{name} holds {contents}; name it with `--overwrite` if that may be destroyed")]
    NotBlank {
        /// The drive.
        name: String,
        /// What it holds, in words.
        contents: String,
    },
    /// Too small.
    #[error("{name} has {size_bytes} bytes, and a member of this array needs {needed_bytes}")]
    TooSmall {
        /// The drive.
        name: String,
        /// What it has.
        size_bytes: u64,
        /// What it would need.
        needed_bytes: u64,
    },
    /// No member is there to be like.
    #[error("the array has no member in sync")]
    NoMember,
    /// A write failed, or a member could not be read.
    #[error(transparent)]
    Update(#[from] UpdateError),
}
