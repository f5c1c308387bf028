//! md's partial parity log (PPL), which closes RAID 5's write hole: its units as bytes and as
//! values. Pure.
//!
//! Each member has an area for the log of the rows whose parity it holds. In it lie *units*, one
//! behind the other: a header of 4096 bytes, and the partial parity of the header's entries in
//! their order. An entry says that a write is under way to some consecutive data chunks of a row,
//! at the same offsets in each, and its partial parity is the exclusive or of the row's *other*
//! data chunks there: with it and the chunks that were being written, parity is made right
//! whatever of the write has happened.
//!
//! ```text
//!    0  reserved     512   0xff; or of ours, with checks:
//!         0  magic        8   "raidfppl"
//!         8  version      2   1
//!        10  zero         6
//!        16  checks   62×8    new 4, old 4: of the entry of that index
//!  512  signature      4   crc32c of the array's UUID
//!  516  zero           4
//!  520  generation     8   counts units; the highest counts
//!  528  entries        4   how many
//!  532  checksum       4   crc32c of all 4096 bytes with this field zero
//!  536  entries  148×24    data_sector 8, pp_size 4, data_size 4, parity_disk 4, checksum 4
//! ```
//!
//! **Which unit counts.** A reader begins at the start of the area and goes from unit to unit as
//! long as headers are whole, of this array, and newer than the one before; the last of them is
//! the one that counts, and no other. So a unit may only be written when all that the one before
//! it covers is safely on the members; and the first header of the area is never overwritten by us
//! while the array is in use, so that a torn unit never makes the whole log unreadable.
//!
//! **What we put into the reserved bytes.** What the chunks of an entry hold before and after the
//! write ([`Checks`]). The kernel and mdadm fill these bytes with ones and look at none of them, but
//! the header's checksum covers them. A header of ours has therefore no more entries than there is
//! room for there.
//!
//! An entry's partial parity has the length of what is written of each chunk, and none is needed
//! for a write of whole rows. md's kernel writes those two kinds only; entries that other programs
//! may make (a range of the array that is cut anywhere, with one chunk of partial parity) are read
//! as well: [`Entry::stripes`].

use crate::geometry::Geometry;
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use std::mem::{offset_of, size_of};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::SECTOR_BYTES;
use super::checks::Checks;

/// The size of a header.
pub const HEADER_BYTES: usize = 4096;
/// The most entries of a unit, as md has it.
pub const MAX_ENTRIES: usize = 148;
/// The most entries of a unit that we write.
pub const MAX_OWN_ENTRIES: usize = 62;
/// The most partial parity that md puts into a unit where an area has several.
pub const MAX_DATA_BYTES: usize = 128 << 10;
const RESERVED_BYTES: usize = 512;
const MAGIC: [u8; 8] = *b"raidfppl";
const VERSION: u16 = 1;

/// What is in the reserved bytes of headers of ours (`reserved` of `struct ppl_header` in Linux's
/// md_p.h, which md does not look at; docs/on-disk-format.md).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawChecks {
    magic: [u8; 8],
    version: U16,
    zero: [u8; 6],
    checks: [[U32; 2]; MAX_OWN_ENTRIES],
}

/// `struct ppl_header_entry` of Linux's md_p.h.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    data_sector: U64,
    pp_size: U32,
    data_size: U32,
    parity_disk: U32,
    checksum: U32,
}

/// `struct ppl_header` of Linux's md_p.h.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    reserved: [u8; RESERVED_BYTES],
    signature: U32,
    zero: U32,
    generation: U64,
    entries_count: U32,
    checksum: U32,
    entries: [RawEntry; MAX_ENTRIES],
    rest: [u8; 8],
}

const _: () = {
    assert!(size_of::<RawChecks>() == RESERVED_BYTES);
    assert!(size_of::<RawEntry>() == 24);
    assert!(size_of::<RawHeader>() == HEADER_BYTES);
    assert!(offset_of!(RawHeader, signature) == 512);
    assert!(offset_of!(RawHeader, generation) == 520);
    assert!(offset_of!(RawHeader, entries) == 536);
};

/// What marks the headers of an array.
#[must_use]
pub fn signature(array_uuid: [u8; 16]) -> u32 {
    crc32c(&array_uuid)
}

/// CRC-32C, as md computes it for partial parity.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The 32-bit algorithms give their value in the low half.
    u32::try_from(crc_fast::checksum(Crc32Iscsi, bytes) & 0xffff_ffff).unwrap_or(0)
}

/// A write that a unit covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First sector of the array that is written.
    pub data_sector: u64,
    /// Length of its partial parity; 0 if all data chunks of the row are written.
    pub parity_bytes: u32,
    /// Length of the data, over all chunks.
    pub data_bytes: u32,
    /// Slot of the member with the row's parity.
    pub parity_slot: u32,
    /// crc32c of the partial parity.
    pub checksum: u32,
    /// What is known of the chunks' contents.
    pub checks: Checks,
}

/// What an entry says of a part of a row: these chunks were being written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// The row.
    pub row: u64,
    /// Where in the chunks it begins.
    pub within_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
    /// Index of the first data chunk that was being written.
    pub first: usize,
    /// How many were.
    pub count: usize,
    /// Where in the entry's partial parity that of this part begins; nothing for a whole row.
    pub parity_offset: Option<u64>,
}

impl Entry {
    /// The entry for a write of `count` data chunks from index `first` on, at the same place in
    /// each, with the partial parity `parity` (nothing if that is all data chunks of the row).
    #[must_use]
    pub fn new(
        geometry: &Geometry,
        row: u64,
        (first, count): (usize, usize),
        (within_bytes, len_bytes): (u64, u32),
        parity: Option<&[u8]>,
        checks: Checks,
    ) -> Self {
        let position = geometry.offset_of(row, first, within_bytes);
        let parity = parity.unwrap_or_default();
        Self {
            data_sector: position / SECTOR_BYTES,
            parity_bytes: u32::try_from(parity.len()).unwrap_or(u32::MAX),
            data_bytes: len_bytes.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX)),
            parity_slot: u32::try_from(geometry.parity_slot(row)).unwrap_or(u32::MAX),
            checksum: crc32c(parity),
            checks,
        }
    }

    /// The parts of rows that the entry covers; nothing if it does not fit the array.
    ///
    /// What is written is a range of the array's chunks in their order: from the first sector, for
    /// each chunk that is concerned, as much as there is partial parity. Where that reaches beyond
    /// the end of a chunk, the parts before and after are parts of their own.
    #[must_use]
    pub fn stripes(&self, geometry: &Geometry) -> Option<Vec<Stripe>> {
        let chunk = geometry.chunk_bytes()?;
        let all = geometry.data_chunks() as u64;
        let start = self.data_sector.checked_mul(SECTOR_BYTES)?;
        let (parity, data) = (u64::from(self.parity_bytes), u64::from(self.data_bytes));
        let in_sectors = parity.is_multiple_of(SECTOR_BYTES) && data.is_multiple_of(SECTOR_BYTES);
        if data == 0 || !in_sectors || parity > chunk {
            return None;
        }
        // As md reads it: how much of each chunk, of how many, and where the data ends.
        let (chunks, strip, end) = match parity {
            0 => (all, data / all, start.checked_add((all - 1) * chunk + data / all)?),
            _ if parity < chunk => {
                let chunks = data / parity;
                let end = start.checked_add(chunks.checked_sub(1)?.checked_mul(chunk)? + parity)?;
                (chunks, parity, end)
            }
            _ => (all, chunk, start.checked_add(data)?),
        };
        let is_whole = match parity {
            0 => data == all * strip,
            _ if parity < chunk => data == chunks * parity,
            _ => true,
        };
        let row_bytes = geometry.row_data_bytes();
        let in_one_row = end <= geometry.capacity_bytes()
            && start / row_bytes == (end - 1) / row_bytes
            && chunks <= all
            && strip <= chunk;
        if !is_whole
            || !in_one_row
            || geometry.parity_slot(start / row_bytes) as u64 != u64::from(self.parity_slot)
        {
            return None;
        }
        // Where the set of chunks that are concerned changes: at the ends of chunks and of the data.
        let to_chunk_end = chunk - start % chunk;
        let to_data_end = (end - start) % chunk;
        let mut cuts = vec![0, to_chunk_end.min(strip), to_data_end.min(strip), strip];
        cuts.sort_unstable();
        cuts.dedup();
        let stripe = |from: u64, to: u64| {
            let position = start + from;
            let reached = (0..chunks).take_while(|n| position + n * chunk < end).count();
            let place = geometry.in_row(position);
            (reached > 0 && place.index + reached <= geometry.data_chunks()).then_some(Stripe {
                row: place.row,
                within_bytes: place.within_bytes,
                len_bytes: to - from,
                first: place.index,
                count: reached,
                parity_offset: (parity > 0).then_some(from),
            })
        };
        let parts = cuts.windows(2).map(|cut| (cut[0], cut[1]));
        // Parts that no chunk's data reaches are gaps between two ends, which nothing is known of.
        Some(parts.filter_map(|(from, to)| stripe(from, to)).collect())
    }
}

/// A unit's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// What marks the array: [`signature`].
    pub signature: u32,
    /// Counts units.
    pub generation: u64,
    /// What it covers; [`MAX_ENTRIES`] at most.
    pub entries: Vec<Entry>,
}

/// Why 4096 bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// There never was one, or it is torn or damaged.
    #[error("there is no whole header")]
    Checksum,
    /// It says that it has more entries than fit.
    #[error("the header says it has {0} entries, and at most 148 fit")]
    TooManyEntries(u32),
}

impl Header {
    /// A header without entries.
    #[must_use]
    pub fn empty(signature: u32, generation: u64) -> Self {
        Self { signature, generation, entries: Vec::new() }
    }

    /// From its bytes.
    ///
    /// # Errors
    /// If they are none.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, HeaderError> {
        let mut raw = RawHeader::read_from_bytes(bytes).map_err(|_| HeaderError::Checksum)?;
        let checksum = std::mem::take(&mut raw.checksum);
        if crc32c(raw.as_bytes()) != checksum.get() {
            return Err(HeaderError::Checksum);
        }
        let count = raw.entries_count.get();
        let entries = usize::try_from(count).ok().and_then(|count| raw.entries.get(..count));
        let checks = RawChecks::read_from_bytes(&raw.reserved).ok();
        let checks = checks.filter(|own| own.magic == MAGIC && own.version.get() == VERSION);
        let checks_of = |index: usize| {
            let raw = checks.as_ref().and_then(|own| own.checks.get(index));
            raw.map_or(Checks::NONE, |raw| Checks::from_raw(raw.map(U32::get)))
        };
        let entry = |(index, raw): (usize, &RawEntry)| Entry {
            data_sector: raw.data_sector.get(),
            parity_bytes: raw.pp_size.get(),
            data_bytes: raw.data_size.get(),
            parity_slot: raw.parity_disk.get(),
            checksum: raw.checksum.get(),
            checks: checks_of(index),
        };
        let entries = entries.ok_or(HeaderError::TooManyEntries(count))?;
        Ok(Self {
            signature: raw.signature.get(),
            generation: raw.generation.get(),
            entries: entries.iter().enumerate().map(entry).collect(),
        })
    }

    /// Puts its bytes into `bytes`. Entries beyond [`MAX_ENTRIES`] cannot be, and those beyond
    /// [`MAX_OWN_ENTRIES`] have no checks.
    pub fn put(&self, bytes: &mut [u8; HEADER_BYTES]) {
        put(bytes, self.signature, self.generation, &self.entries);
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Box<[u8; HEADER_BYTES]> {
        let mut bytes = Box::new([0; HEADER_BYTES]);
        self.put(&mut bytes);
        bytes
    }

    /// Length of the whole unit.
    #[must_use]
    pub fn unit_bytes(&self) -> u64 {
        let parity = self.entries.iter().map(|entry| u64::from(entry.parity_bytes)).sum::<u64>();
        HEADER_BYTES as u64 + parity
    }
}

/// The reserved bytes: as md has them, if there is nothing to say.
fn reserved(entries: &[Entry]) -> [u8; RESERVED_BYTES] {
    let mut reserved = [0xff; RESERVED_BYTES];
    if entries.iter().any(|entry| !entry.checks.is_none())
        && let Ok(own) = RawChecks::mut_from_bytes(&mut reserved)
    {
        own.magic = MAGIC;
        own.version = VERSION.into();
        own.zero = [0; 6];
        for (raw, entry) in own.checks.iter_mut().zip(entries) {
            *raw = entry.checks.to_raw().map(U32::new);
        }
    }
    reserved
}

/// Puts a header's bytes into `bytes`.
pub fn put(bytes: &mut [u8; HEADER_BYTES], signature: u32, generation: u64, entries: &[Entry]) {
    let mut raw = RawHeader::new_zeroed();
    raw.reserved = reserved(entries);
    raw.signature = signature.into();
    raw.generation = generation.into();
    raw.entries_count = U32::new(entries.len().min(MAX_ENTRIES) as u32);
    for (raw, entry) in raw.entries.iter_mut().zip(entries) {
        raw.data_sector = entry.data_sector.into();
        raw.pp_size = entry.parity_bytes.into();
        raw.data_size = entry.data_bytes.into();
        raw.parity_disk = entry.parity_slot.into();
        raw.checksum = entry.checksum.into();
    }
    raw.checksum = crc32c(raw.as_bytes()).into();
    bytes.copy_from_slice(raw.as_bytes());
}

#[cfg(test)]
#[path = "ppl_tests.rs"]
mod tests;
