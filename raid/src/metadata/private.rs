//! The header of the private area: what we keep on a member beyond what md's
//! superblock has room for, and when it may be believed.
//!
//! Two copies, each 4096 bytes, at fixed distances before the data
//! ([`super::layout`]). The bytes of one copy, little endian:
//!
//! ```text
//!    0  magic              8   "raidfabr"
//!    8  crc32c             4   of all 4096 bytes with this field zero
//!   12  version            2   1
//!   14  section_bytes      2   32
//!   16  array_uuid        16   as in the superblock
//!   32  device_uuid       16   as in the superblock
//!   48  generation         8   of this header; the higher of two believable copies counts
//!   56  data_offset        8   in bytes, as in the superblock
//!   64  private_bytes      8   the area is [data_offset − private_bytes, data_offset)
//!   72  section_count      4
//!   76  zero               4
//!   80  superblock_sha256 32   of all 4096 bytes of the superblock
//!  112  synced_bytes       8   while the superblock says "active": copies agree, or parity is right,
//!                             below this offset of the array, but for what was being written
//!  120  zero             136
//!  256  sections     120×32   kind 4, flags 4, offset 8 (in the area), length 8, zero 8
//! ```
//!
//! **Believed only if the superblock is the one we wrote.** md knows nothing of this
//! area: when it runs the array, logs, maps and checksums here go stale. It also may
//! repeat event counts, so they prove nothing; a hash of the whole superblock does.
//! A copy counts if its CRC is right, it names this array, this member and this data
//! offset, and its hash is that of the superblock that is on the drive.
//!
//! **Why an update is atomic.** For every superblock that is about to be written, the
//! header that goes with it is written first, over the copy that is *not* believed now,
//! durably. Before the superblock arrives, the old copy matches the old superblock; after
//! it, the new matches the new. A torn header has a wrong CRC and is no copy at all.

use super::layout::{HEADER_BEFORE_DATA_BYTES, HEADERS_BYTES};
use super::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::mutation::mutation;
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use sha2::{Digest, Sha256};
use std::mem::{offset_of, size_of};
use std::ops::Range;
use thiserror::Error;
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The size of one copy.
pub const HEADER_BYTES: usize = 4096;
const MAGIC: [u8; 8] = *b"raidfabr";
const VERSION: u16 = 1;
/// The most sections.
pub const MAX_SECTIONS: usize = 120;
/// A section begins at a multiple of this within the area.
const SECTION_ALIGNMENT_BYTES: u64 = 4096;

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
struct RawSection {
    kind: U32,
    flags: U32,
    offset_bytes: U64,
    len_bytes: U64,
    zero: U64,
}

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    crc32c: U32,
    version: U16,
    section_bytes: U16,
    array_uuid: [u8; 16],
    device_uuid: [u8; 16],
    generation: U64,
    data_offset_bytes: U64,
    private_bytes: U64,
    section_count: U32,
    zero: U32,
    superblock_sha256: [u8; 32],
    synced_bytes: U64,
    zero_2: [u8; 136],
    sections: [RawSection; MAX_SECTIONS],
}

const _: () = {
    assert!(size_of::<RawSection>() == 32);
    assert!(size_of::<RawHeader>() == HEADER_BYTES);
    assert!(offset_of!(RawHeader, array_uuid) == 16);
    assert!(offset_of!(RawHeader, generation) == 48);
    assert!(offset_of!(RawHeader, superblock_sha256) == 80);
    assert!(offset_of!(RawHeader, sections) == 256);
};

bitflags::bitflags! {
    /// A section's flags.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SectionFlags: u32 {
        /// A program that does not know the kind must not serve the array.
        const MUST_UNDERSTAND = 1;
    }
}

/// What a section holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SectionKind {
    /// Partial parities of RAID 6 writes under way.
    WriteLog,
    /// Which regions were written while members were missing.
    DegradedWriteMap,
    /// Persistent reservations of hosts.
    Reservations,
    /// The volumes on the array.
    VolumeTable,
    /// A checksum for each block of the data.
    Checksums,
    /// A kind of a later version.
    Other(u32),
}

impl SectionKind {
    fn from_bits(bits: u32) -> Self {
        match bits {
            1 => Self::WriteLog,
            2 => Self::DegradedWriteMap,
            3 => Self::Reservations,
            4 => Self::VolumeTable,
            5 => Self::Checksums,
            other => Self::Other(other),
        }
    }

    fn to_bits(self) -> u32 {
        match self {
            Self::WriteLog => 1,
            Self::DegradedWriteMap => 2,
            Self::Reservations => 3,
            Self::VolumeTable => 4,
            Self::Checksums => 5,
            Self::Other(bits) => bits,
        }
    }
}

/// A part of the private area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// What it holds.
    pub kind: SectionKind,
    /// How others must treat it.
    pub flags: SectionFlags,
    /// Where it begins, from the beginning of the area (a multiple of 4096).
    pub offset_bytes: u64,
    /// Its size.
    pub len_bytes: u64,
}

/// One copy's contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The array.
    pub array_uuid: Uuid,
    /// The member.
    pub device_uuid: Uuid,
    /// Counts this header's updates.
    pub generation: u64,
    /// Where the data begins on the member.
    pub data_offset_bytes: u64,
    /// The size of the area that ends there.
    pub private_bytes: u64,
    /// SHA-256 of the superblock that this header goes with.
    pub superblock_hash: [u8; 32],
    /// Copies agree, or parity is right, below this offset of the array (`u64::MAX`: everywhere),
    /// but for what was being written. md has no room for that in the superblock of an array that
    /// is active; it means something only where a log tells what was being written.
    pub synced_bytes: u64,
    /// What the area holds.
    pub sections: Vec<Section>,
}

/// Why 4096 bytes are not a header.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// Nothing of ours is there.
    #[error("no private header")]
    NoMagic,
    /// Damaged, or torn while it was written.
    #[error("the private header is damaged")]
    Checksum,
    /// From a later program.
    #[error("the private header has version {0}, which a later raidfabric wrote")]
    Version(u16),
    /// Its own fields contradict each other.
    #[error("the private header is inconsistent: {0}")]
    Inconsistent(&'static str),
}

/// SHA-256 of a superblock as it lies on the drive.
#[must_use]
pub fn superblock_hash(superblock: &Superblock) -> [u8; 32] {
    let bytes: &[u8; SUPERBLOCK_BYTES] = superblock.as_bytes();
    Sha256::digest(bytes).into()
}

/// Where the copies lie on a member whose data begins at `data_offset_bytes`; None if
/// there is no room before it.
#[must_use]
pub fn header_offset_bytes(data_offset_bytes: u64, copy: Copy) -> Option<u64> {
    let [first, second] = HEADER_BEFORE_DATA_BYTES;
    let before = if copy == Copy::First { first } else { second };
    let offset = data_offset_bytes.checked_sub(before)?;
    (offset >= super::layout::BAD_BLOCK_LOG_OFFSET_BYTES + 4096).then_some(offset)
}

/// Which of the two copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copy {
    /// 64 KiB before the data.
    First,
    /// 128 KiB before the data.
    Second,
}

impl Copy {
    /// Both.
    pub const ALL: [Self; 2] = [Self::First, Self::Second];

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        if self == Self::First { Self::Second } else { Self::First }
    }
}

impl Header {
    /// From one copy's bytes.
    ///
    /// # Errors
    /// If they are not a header that this version reads.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, HeaderError> {
        let mut raw = RawHeader::read_from_bytes(bytes).map_err(|_| HeaderError::NoMagic)?;
        if raw.magic != MAGIC {
            return Err(HeaderError::NoMagic);
        }
        let crc = std::mem::take(&mut raw.crc32c);
        if crc32c(raw.as_bytes()) != crc.get() {
            return Err(HeaderError::Checksum);
        }
        if raw.version.get() != VERSION {
            return Err(HeaderError::Version(raw.version.get()));
        }
        if usize::from(raw.section_bytes.get()) != size_of::<RawSection>() {
            return Err(HeaderError::Inconsistent("the size of a section entry"));
        }
        let header = Self {
            array_uuid: Uuid::from_bytes(raw.array_uuid),
            device_uuid: Uuid::from_bytes(raw.device_uuid),
            generation: raw.generation.get(),
            data_offset_bytes: raw.data_offset_bytes.get(),
            private_bytes: raw.private_bytes.get(),
            superblock_hash: raw.superblock_sha256,
            synced_bytes: raw.synced_bytes.get(),
            sections: Self::parse_sections(&raw)?,
        };
        header.check()?;
        Ok(header)
    }

    fn parse_sections(raw: &RawHeader) -> Result<Vec<Section>, HeaderError> {
        let count = usize::try_from(raw.section_count.get()).unwrap_or(usize::MAX);
        let sections = raw
            .sections
            .get(..count)
            .ok_or(HeaderError::Inconsistent("more sections than there is room for"))?;
        let section = |raw: &RawSection| Section {
            kind: SectionKind::from_bits(raw.kind.get()),
            flags: SectionFlags::from_bits_retain(raw.flags.get()),
            offset_bytes: raw.offset_bytes.get(),
            len_bytes: raw.len_bytes.get(),
        };
        Ok(sections.iter().map(section).collect())
    }

    /// That the area lies before the data, and each section in the area, apart from
    /// the others and from the headers.
    fn check(&self) -> Result<(), HeaderError> {
        let begin = self.data_offset_bytes.checked_sub(self.private_bytes);
        if begin.is_none_or(|begin| begin < super::layout::PRIVATE_OFFSET_BYTES) {
            return Err(HeaderError::Inconsistent("the area does not lie before the data"));
        }
        let Some(room) = self.private_bytes.checked_sub(HEADERS_BYTES) else {
            return Err(HeaderError::Inconsistent("the area has no room for its headers"));
        };
        let mut places: Vec<_> =
            self.sections.iter().map(|s| (s.offset_bytes, s.len_bytes)).collect();
        places.sort_unstable();
        let mut free_from = 0;
        for (offset, len) in places {
            let end = offset.checked_add(len).filter(|end| *end <= room);
            let Some(end) = end else {
                return Err(HeaderError::Inconsistent("a section is not within the area"));
            };
            if offset % SECTION_ALIGNMENT_BYTES != 0 || len == 0 || offset < free_from {
                return Err(HeaderError::Inconsistent("sections overlap or are not aligned"));
            }
            free_from = end;
        }
        Ok(())
    }

    /// The bytes of a copy. Sections beyond [`MAX_SECTIONS`] cannot be.
    #[must_use]
    pub fn to_bytes(&self) -> Box<[u8; HEADER_BYTES]> {
        let mut raw = RawHeader::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION.into();
        raw.section_bytes = U16::new(size_of::<RawSection>() as u16);
        raw.array_uuid = self.array_uuid.into_bytes();
        raw.device_uuid = self.device_uuid.into_bytes();
        raw.generation = self.generation.into();
        raw.data_offset_bytes = self.data_offset_bytes.into();
        raw.private_bytes = self.private_bytes.into();
        raw.section_count = U32::new(self.sections.len().min(MAX_SECTIONS) as u32);
        raw.superblock_sha256 = self.superblock_hash;
        raw.synced_bytes = self.synced_bytes.into();
        for (raw, section) in raw.sections.iter_mut().zip(&self.sections) {
            raw.kind = section.kind.to_bits().into();
            raw.flags = section.flags.bits().into();
            raw.offset_bytes = section.offset_bytes.into();
            raw.len_bytes = section.len_bytes.into();
        }
        raw.crc32c = crc32c(raw.as_bytes()).into();
        let mut bytes = Box::new([0; HEADER_BYTES]);
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The first section that this version must know in order to serve the array, and
    /// does not.
    #[must_use]
    pub fn unknown_section(&self) -> Option<Section> {
        let unknown = |s: &&Section| {
            matches!(s.kind, SectionKind::Other(_))
                && s.flags.contains(SectionFlags::MUST_UNDERSTAND)
        };
        self.sections.iter().find(unknown).copied()
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    // The 32-bit algorithms give their value in the low half.
    u32::try_from(crc_fast::checksum(Crc32Iscsi, bytes) & 0xffff_ffff).unwrap_or(0)
}

/// What is known of a member's private area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrivateArea {
    /// There is none: md made the member, or both headers are lost.
    Absent,
    /// There is one, but somebody else has written the superblock since: its logs are
    /// void, its maps read as "all", its checksums as "unknown".
    Void {
        /// The newest header that is whole; the next is written over the other copy.
        last: Header,
        /// Where it lies.
        copy: Copy,
    },
    /// What it says counts.
    Believed {
        /// The header.
        header: Header,
        /// Where it lies.
        copy: Copy,
    },
}

impl PrivateArea {
    /// What the two copies ([`Copy::First`], then [`Copy::Second`]) are worth beside
    /// the superblock.
    #[must_use]
    pub fn judge(superblock: &Superblock, copies: [Result<Header, HeaderError>; 2]) -> Self {
        let hash = superblock_hash(superblock);
        let ours = |header: &Header| {
            header.array_uuid == superblock.array_uuid()
                && header.device_uuid == superblock.device_uuid()
                && header.data_offset_bytes == superblock.data_offset_bytes()
        };
        let mut whole: Vec<(Header, Copy)> = copies
            .into_iter()
            .zip(Copy::ALL)
            .filter_map(|(header, copy)| Some((header.ok()?, copy)))
            .filter(|(header, _)| ours(header))
            .collect();
        whole.sort_by_key(|(header, _)| header.generation);
        let matching = whole.iter().rposition(|(header, _)| {
            header.superblock_hash == hash || mutation!("believe-any-private-header")
        });
        match matching {
            Some(index) => {
                let (header, copy) = whole.swap_remove(index);
                Self::Believed { header, copy }
            }
            None => match whole.pop() {
                Some((last, copy)) => Self::Void { last, copy },
                None => Self::Absent,
            },
        }
    }

    /// The header that must be durable before `next` may be written, and where; None
    /// for a member without a private area.
    #[must_use]
    pub fn header_for(&self, next: &Superblock, synced_bytes: u64) -> Option<(Header, Copy)> {
        let (last, copy, sections) = match self {
            Self::Absent => return None,
            // Whatever the sections hold is void.
            Self::Void { last, copy } => (last, *copy, Vec::new()),
            Self::Believed { header, copy } => (header, *copy, header.sections.clone()),
        };
        let header = Header {
            generation: last.generation + 1,
            superblock_hash: superblock_hash(next),
            synced_bytes,
            sections,
            ..last.clone()
        };
        Some((header, copy.other()))
    }

    /// The header that makes a void area count again, with the same sections, for the superblock
    /// that is there; to be written when everything in them has been made anew.
    #[must_use]
    pub fn restored(&self, superblock: &Superblock) -> Option<(Header, Copy)> {
        let Self::Void { last, copy } = self else { return None };
        let header = Header {
            generation: last.generation + 1,
            superblock_hash: superblock_hash(superblock),
            synced_bytes: 0,
            ..last.clone()
        };
        Some((header, copy.other()))
    }

    /// The header, if what it says counts.
    #[must_use]
    pub fn believed(&self) -> Option<&Header> {
        match self {
            Self::Believed { header, .. } => Some(header),
            Self::Void { .. } | Self::Absent => None,
        }
    }

    /// The header, whether or not it counts: it says where things are.
    #[must_use]
    pub fn header(&self) -> Option<&Header> {
        match self {
            Self::Believed { header, .. } | Self::Void { last: header, .. } => Some(header),
            Self::Absent => None,
        }
    }
}

impl Header {
    /// Where the section of a kind lies, in bytes of the drive.
    #[must_use]
    pub fn place(&self, kind: SectionKind) -> Option<Range<u64>> {
        let section = self.sections.iter().find(|s| s.kind == kind)?;
        let begin = self.data_offset_bytes.checked_sub(self.private_bytes)? + section.offset_bytes;
        Some(begin..begin + section.len_bytes)
    }
}

#[cfg(test)]
#[path = "private_tests.rs"]
mod tests;
