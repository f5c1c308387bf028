//! The RAID 6 write log, in a section of the private area: its units as bytes and as values. Pure.
//!
//! md has no log for RAID 6. Ours works as its PPL does for RAID 5: before a write to some of a
//! row's data chunks is submitted, the partial P of the *other* data chunks is durable on the
//! row's P member, and their partial Q on its Q member. Whichever two members are lost then, what
//! is left tells all chunks that were not being written, and makes both parities right.
//!
//! The section has a *mark* in its first 4096 bytes, a unit without entries, and behind it *places*
//! for units, all of the same size. Units are numbered over the whole array: unit `n` is in place
//! `n mod places` of each member that it concerns, and of no other. Unlike md's log, several are
//! live at once: each says which is the oldest that is ([`Unit::live_from`]), and what is older
//! than the newest statement of that kind on any member is void.
//!
//! ```text
//!    0  magic          8   "raid6log"
//!    8  crc32c         4   of header and data, with this field zero
//!   12  version        2   2
//!   14  entry_bytes    2   32
//!   16  array_uuid    16
//!   32  generation     8   the unit's number
//!   40  live_from      8   all units before this one are done with
//!   48  data_bytes     4   what follows the header
//!   52  entry_count    4
//!   56  slot           4   of the member that it is on
//!   60  zero          68
//!  128  entries  124×32    row 8, within 4, len 4, first 2, count 2, parity 1, zero 3, new 4, old 4
//! ```
//! An entry's parity says whether its data are a partial P or a partial Q (`len` bytes of it), or
//! that there are none, because all data chunks of the row were being written. `new` and `old` are
//! its [`Checks`]. Version 1 had none, and is read as well.

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use std::mem::{offset_of, size_of};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checks::Checks;

/// The size of a header, and of the mark.
pub const HEADER_BYTES: usize = 4096;
/// The most entries of a unit.
pub const MAX_ENTRIES: usize = 124;
/// The largest place.
const MAX_PLACE_BYTES: u64 = 128 << 10;
/// The most places that are used.
const MAX_PLACES: u64 = 8;
/// The smallest place: a header, and partial parity of 4096 bytes.
const MIN_PLACE_BYTES: u64 = 8 << 10;
const MAGIC: [u8; 8] = *b"raid6log";
const VERSION: u16 = 2;
/// Its entries have no checks.
const VERSION_WITHOUT_CHECKS: u16 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    row: U64,
    within: U32,
    len: U32,
    first: U16,
    count: U16,
    parity: u8,
    zero: [u8; 3],
    checks: [U32; 2],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    crc32c: U32,
    version: U16,
    entry_bytes: U16,
    array_uuid: [u8; 16],
    generation: U64,
    live_from: U64,
    data_bytes: U32,
    entry_count: U32,
    slot: U32,
    zero: [u8; 68],
    entries: [RawEntry; MAX_ENTRIES],
}

const _: () = {
    assert!(size_of::<RawEntry>() == 32);
    assert!(size_of::<RawHeader>() == HEADER_BYTES);
    assert!(offset_of!(RawHeader, generation) == 32);
    assert!(offset_of!(RawHeader, slot) == 56);
    assert!(offset_of!(RawHeader, entries) == 128);
};

/// Where units are in a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    count: u64,
    place_bytes: u64,
}

impl Places {
    /// The places in a section of `section_bytes`; nothing if it is too small for two.
    #[must_use]
    pub fn new(section_bytes: u64) -> Option<Self> {
        let room = section_bytes.checked_sub(HEADER_BYTES as u64)?;
        let place_bytes = (room / 4).clamp(MIN_PLACE_BYTES, MAX_PLACE_BYTES);
        let place_bytes = place_bytes - place_bytes % HEADER_BYTES as u64;
        let count = room.checked_div(place_bytes)?.min(MAX_PLACES);
        (place_bytes >= MIN_PLACE_BYTES && count >= 2).then_some(Self { count, place_bytes })
    }

    /// How many there are.
    #[must_use]
    pub fn count(self) -> u64 {
        self.count
    }

    /// Where the unit of this number begins in the section.
    #[must_use]
    pub fn offset_bytes(self, generation: u64) -> u64 {
        HEADER_BYTES as u64 + generation % self.count * self.place_bytes
    }

    /// The most data in a unit.
    #[must_use]
    pub fn data_bytes(self) -> usize {
        usize::try_from(self.place_bytes).unwrap_or(usize::MAX) - HEADER_BYTES
    }
}

/// Which partial parity an entry comes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parity {
    /// None: all data chunks of the row were being written.
    None,
    /// The exclusive or of the data chunks that were not.
    P,
    /// Their weighted sum.
    Q,
}

/// A write that a unit covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The row.
    pub row: u64,
    /// Where in the chunks the write begins.
    pub within_bytes: u32,
    /// What is written of each chunk.
    pub len_bytes: u32,
    /// Index of the first data chunk that is written.
    pub first: u16,
    /// How many are.
    pub count: u16,
    /// What the entry's data are.
    pub parity: Parity,
    /// What is known of the chunks' contents.
    pub checks: Checks,
}

impl Entry {
    /// Length of the entry's data.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        if self.parity == Parity::None { 0 } else { self.len_bytes as usize }
    }
}

/// What a unit's header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The array.
    pub array_uuid: [u8; 16],
    /// Its number.
    pub generation: u64,
    /// The oldest unit, of any member, that was not done with when this was written.
    pub live_from: u64,
    /// Slot of the member that it is for.
    pub slot: u32,
    /// What it covers; [`MAX_ENTRIES`] at most.
    pub entries: Vec<Entry>,
}

/// Why bytes are not a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UnitError {
    /// Nothing of this kind is there.
    #[error("there is no unit")]
    NoMagic,
    /// Damaged, or torn while it was written.
    #[error("the unit is torn or damaged")]
    Checksum,
    /// From a later program.
    #[error("the unit has version {0}, which a later raidfabric wrote")]
    Version(u16),
    /// Its own fields contradict each other.
    #[error("the unit is inconsistent: {0}")]
    Inconsistent(&'static str),
}

impl Unit {
    /// Length of the data behind a header, from the header's bytes alone, which are not checked.
    #[must_use]
    pub fn data_bytes(header: &[u8; HEADER_BYTES]) -> Option<usize> {
        let raw = RawHeader::ref_from_bytes(header).ok()?;
        (raw.magic == MAGIC).then_some(usize::try_from(raw.data_bytes.get()).ok()?)
    }

    /// From the bytes of header and data, and nothing behind them.
    ///
    /// # Errors
    /// If they are none.
    pub fn parse(bytes: &[u8]) -> Result<Self, UnitError> {
        let (raw, data) = RawHeader::read_from_prefix(bytes).map_err(|_| UnitError::NoMagic)?;
        if raw.magic != MAGIC {
            return Err(UnitError::NoMagic);
        }
        if crc(&raw, data) != raw.crc32c.get() {
            return Err(UnitError::Checksum);
        }
        let version = raw.version.get();
        if !(VERSION_WITHOUT_CHECKS..=VERSION).contains(&version) {
            return Err(UnitError::Version(version));
        }
        if usize::from(raw.entry_bytes.get()) != size_of::<RawEntry>() {
            return Err(UnitError::Inconsistent("the size of an entry"));
        }
        let count = usize::try_from(raw.entry_count.get()).unwrap_or(usize::MAX);
        let entries = raw
            .entries
            .get(..count)
            .ok_or(UnitError::Inconsistent("more entries than there is room for"))?;
        let entries = entries.iter().map(|entry| parse_entry(entry, version));
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        if entries.iter().map(Entry::data_bytes).sum::<usize>() != data.len() {
            return Err(UnitError::Inconsistent("the length of the data"));
        }
        Ok(Self {
            array_uuid: raw.array_uuid,
            generation: raw.generation.get(),
            live_from: raw.live_from.get(),
            slot: raw.slot.get(),
            entries,
        })
    }

    /// A unit without entries, as its mark or to void what came before.
    #[must_use]
    pub fn mark(array_uuid: [u8; 16], generation: u64, slot: u32) -> Self {
        Self { array_uuid, generation, live_from: generation, slot, entries: Vec::new() }
    }

    /// Puts the header into the first [`HEADER_BYTES`] of `bytes`, behind which the data are
    /// already, and nothing else.
    ///
    /// # Panics
    /// If `bytes` have no room for a header.
    pub fn put(&self, bytes: &mut [u8]) {
        let (header, data) = bytes.split_at_mut(HEADER_BYTES);
        let mut raw = RawHeader::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION.into();
        raw.entry_bytes = U16::new(size_of::<RawEntry>() as u16);
        raw.array_uuid = self.array_uuid;
        raw.generation = self.generation.into();
        raw.live_from = self.live_from.into();
        raw.data_bytes = U32::new(u32::try_from(data.len()).unwrap_or(u32::MAX));
        raw.entry_count = U32::new(self.entries.len().min(MAX_ENTRIES) as u32);
        raw.slot = self.slot.into();
        for (raw, entry) in raw.entries.iter_mut().zip(&self.entries) {
            raw.row = entry.row.into();
            raw.within = entry.within_bytes.into();
            raw.len = entry.len_bytes.into();
            raw.first = entry.first.into();
            raw.count = entry.count.into();
            raw.parity = match entry.parity {
                Parity::None => 0,
                Parity::P => 1,
                Parity::Q => 2,
            };
            raw.checks = entry.checks.to_raw().map(U32::new);
        }
        raw.crc32c = crc(&raw, data).into();
        header.copy_from_slice(raw.as_bytes());
    }
}

fn parse_entry(raw: &RawEntry, version: u16) -> Result<Entry, UnitError> {
    Ok(Entry {
        row: raw.row.get(),
        within_bytes: raw.within.get(),
        len_bytes: raw.len.get(),
        first: raw.first.get(),
        count: raw.count.get(),
        parity: match raw.parity {
            0 => Parity::None,
            1 => Parity::P,
            2 => Parity::Q,
            _ => return Err(UnitError::Inconsistent("a kind of parity that does not exist")),
        },
        checks: match version {
            VERSION_WITHOUT_CHECKS => Checks::NONE,
            _ => Checks::from_raw(raw.checks.map(U32::get)),
        },
    })
}

fn crc(raw: &RawHeader, data: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(Crc32Iscsi);
    let unsigned = RawHeader { crc32c: U32::ZERO, ..*raw };
    digest.update(unsigned.as_bytes());
    digest.update(data);
    u32::try_from(digest.finalize() & 0xffff_ffff).unwrap_or(0)
}

#[cfg(test)]
#[path = "write_log_tests.rs"]
mod tests;
