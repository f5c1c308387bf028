//! md's superblock, version 1.2, as values.
//!
//! [`Superblock::parse`] takes the 4096 bytes at [`SUPERBLOCK_OFFSET_BYTES`] and
//! believes them only as the kernel's md would: magic, version, checksum, zero
//! padding, its own place. A [`Superblock`] keeps every byte it was parsed from, so
//! that a rewrite changes nothing but what it is meant to.
//!
//! Parsing accepts whatever md can express. Whether *this version* serves it is a
//! question of its own, [`Superblock::geometry`], whose refusal names what is in the
//! way: nothing is misread as something simpler.
//!
//! Invariant: a `Superblock` value always has a right checksum, `max_dev` within
//! bounds and zero padding.

mod raw;
mod served;
mod state;
mod summary;
#[cfg(test)]
mod tests;

use super::{Level, SECTOR_BYTES, Timestamp};
pub use raw::SUPERBLOCK_BYTES;
use raw::{MAGIC, MAX_ROLES, Raw};
use served::LEFT_SYMMETRIC;
pub use served::{Geometry, NotServed};
pub(crate) use state::{Own, State};
use std::ops::Range;
pub use summary::{MdUuid, Summary};
use thiserror::Error;
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

/// Where a version 1.2 superblock lies on every drive.
pub const SUPERBLOCK_OFFSET_BYTES: u64 = 4096;

/// `resync_offset` of an array whose copies agree everywhere (md's `MaxSector`).
pub const IN_SYNC: u64 = u64::MAX;

/// Event counts from here on are not served: they could not be raised for ever. No array gets there
/// by running.
const EVENTS_END: u64 = 1 << 63;

/// The most devices that we write or serve: their roles end with the superblock's
/// first 512 bytes, so that an update, whose other bytes stay what they were, is
/// torn by no drive.
pub const MAX_DEVICES: usize = 128;

bitflags::bitflags! {
    /// `feature_map`, by md's names.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Features: u32 {
        /// An internal write-intent bitmap is at `bitmap_offset`.
        const BITMAP_OFFSET = 1;
        /// The member is being rebuilt: in sync only below `recovery_offset`.
        const RECOVERY_OFFSET = 2;
        /// A reshape is under way.
        const RESHAPE_ACTIVE = 4;
        /// The bad-block log has entries.
        const BAD_BLOCKS = 8;
        /// The member is taking another's place.
        const REPLACEMENT = 16;
        /// A reshape that goes backwards.
        const RESHAPE_BACKWARDS = 32;
        /// `new_offset` counts.
        const NEW_OFFSET = 64;
        /// A recovery is guided by the bitmap.
        const RECOVERY_BITMAP = 128;
        /// Several hosts share the array.
        const CLUSTERED = 256;
        /// Writes go through a journal device.
        const JOURNAL = 512;
        /// Partial parity log.
        const PPL = 1024;
        /// Partial parity log, several entries.
        const MULTIPLE_PPLS = 2048;
        /// RAID 0: `layout` says how members of unequal size are striped.
        const RAID0_LAYOUT = 4096;
    }
}

/// RAID 10's `layout`, field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raid10Layout {
    /// Copies on neighbouring members: bits 0 to 7.
    pub near_copies: u8,
    /// Copies far away on the member: bits 8 to 15.
    pub far_copies: u8,
    /// Far copies lie in the next stripe instead: bit 16.
    pub offset: bool,
    /// Everything above (far sets).
    pub other_bits: u32,
}

impl Raid10Layout {
    /// Two copies, next to each other: md's default, and what we serve.
    pub const NEAR_2: Self = Self { near_copies: 2, far_copies: 1, offset: false, other_bits: 0 };

    /// From the superblock's field.
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        let [near_copies, far_copies, flags, top] = bits.to_le_bytes();
        let offset = flags & 1 != 0;
        Self {
            near_copies,
            far_copies,
            offset,
            other_bits: u32::from_le_bytes([0, 0, flags & !1, top]),
        }
    }

    /// As the superblock's field.
    #[must_use]
    pub fn to_bits(self) -> u32 {
        let low = [self.near_copies, self.far_copies, u8::from(self.offset), 0];
        u32::from_le_bytes(low) | self.other_bits
    }
}

/// What a device is in an array: an entry of the role table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Holds this slot's data.
    Active(u16),
    /// Waits for a member to fail.
    Spare,
    /// Failed, or never there.
    Faulty,
    /// A journal device.
    Journal,
}

impl Role {
    const SPARE: u16 = 0xffff;
    const FAULTY: u16 = 0xfffe;
    const JOURNAL: u16 = 0xfffd;

    fn from_bits(bits: u16) -> Self {
        match bits {
            Self::SPARE => Self::Spare,
            Self::FAULTY => Self::Faulty,
            Self::JOURNAL => Self::Journal,
            slot => Self::Active(slot),
        }
    }

    fn to_bits(self) -> u16 {
        match self {
            Self::Active(slot) => slot,
            Self::Spare => Self::SPARE,
            Self::Faulty => Self::FAULTY,
            Self::Journal => Self::JOURNAL,
        }
    }
}

/// Why bytes are not a superblock that md would believe.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseError {
    /// Nothing of md's is there.
    #[error("no md superblock (the magic number is not there)")]
    NoMagic,
    /// Another major version.
    #[error("an md superblock of version {0}, which is not known")]
    Version(u32),
    /// The magic is there, the rest is damaged.
    #[error(
        "the md superblock is damaged: its checksum is {found:#010x} and should be {expected:#010x}"
    )]
    Checksum {
        /// What is stored.
        found: u32,
        /// What the bytes give.
        expected: u32,
    },
    /// More roles than a superblock can hold.
    #[error("the md superblock is damaged: it claims roles for {0} devices")]
    MaxDev(u32),
    /// A copy of a superblock that belongs elsewhere.
    #[error("the md superblock says that it lies at sector {0}, so it is a stray copy")]
    Misplaced(u64),
    /// A newer md, whose meaning of these bytes is not known.
    #[error(
        "the md superblock has bytes set that this version must leave zero; a newer md wrote it"
    )]
    Padding,
}

/// What a new member has between its superblock and its bad-block log, in bytes of the drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewIntent {
    /// Nothing.
    None,
    /// A write-intent bitmap that begins here.
    Bitmap(u64),
    /// A partial parity log: less than 32 MiB, not more than 16 MiB behind the superblock.
    Ppl(Range<u64>),
}

/// What a new member's superblock is made of.
#[derive(Debug, Clone)]
pub struct NewSuperblock<'a> {
    /// The array's identity.
    pub array_uuid: Uuid,
    /// `homehost:name`, at most 31 bytes (what is more is cut).
    pub set_name: &'a str,
    /// The array's shape.
    pub geometry: Geometry,
    /// The slot, which is also the device number.
    pub slot: u16,
    /// The member's own identity.
    pub device_uuid: Uuid,
    /// Where its data begins, in bytes on the drive.
    pub data_offset_bytes: u64,
    /// The bad-block log's place, in bytes on the drive (it has 4 KiB).
    pub bad_block_log_offset_bytes: u64,
    /// What is kept between superblock and bad-block log.
    pub intent: NewIntent,
    /// Whether the copies agree from the start.
    pub in_sync: bool,
    /// The time of creation.
    pub created: Timestamp,
}

/// One member's superblock: believed, and with every byte it had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    raw: Box<Raw>,
}

impl Superblock {
    /// From the 4096 bytes at [`SUPERBLOCK_OFFSET_BYTES`].
    ///
    /// # Errors
    /// What the kernel's md, too, would not believe.
    pub fn parse(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Self, ParseError> {
        let mut raw = Box::new(Raw::new_zeroed());
        raw.as_mut_bytes().copy_from_slice(bytes);
        if raw.magic.get() != MAGIC {
            return Err(ParseError::NoMagic);
        }
        if raw.major_version.get() != 1 {
            return Err(ParseError::Version(raw.major_version.get()));
        }
        let expected = raw.checksum().ok_or(ParseError::MaxDev(raw.max_dev.get()))?;
        if raw.sb_csum.get() != expected {
            return Err(ParseError::Checksum { found: raw.sb_csum.get(), expected });
        }
        if raw.super_offset.get() != SUPERBLOCK_OFFSET_BYTES / SECTOR_BYTES {
            return Err(ParseError::Misplaced(raw.super_offset.get()));
        }
        if raw.pad0.get() != 0 || raw.pad3 != [0; 28] {
            return Err(ParseError::Padding);
        }
        Ok(Self { raw })
    }

    /// A new member's superblock, at event count 0: an array that never ran.
    #[must_use]
    pub fn create(new: &NewSuperblock<'_>) -> Self {
        let mut raw = Box::new(Raw::new_zeroed());
        let sectors = |bytes: u64| U64::new(bytes / SECTOR_BYTES);
        let geometry = &new.geometry;
        raw.magic = MAGIC.into();
        raw.major_version = 1.into();
        raw.set_uuid = new.array_uuid.into_bytes();
        let name = cut(new.set_name, raw.set_name.len() - 1);
        for (to, from) in raw.set_name.iter_mut().zip(name) {
            *to = *from;
        }
        raw.ctime = new.created.0.into();
        raw.utime = new.created.0.into();
        raw.level = geometry.level.number().into();
        // RAID 0 is written as mdadm does since Linux 5.4: with its layout named,
        // although members of equal size have but one zone; `size` is not used.
        match geometry.level {
            Level::Raid0 => {
                raw.layout = 1.into();
                raw.feature_map = Features::RAID0_LAYOUT.bits().into();
            }
            Level::Raid1 => {}
            Level::Raid10 => raw.layout = Raid10Layout::NEAR_2.to_bits().into(),
            Level::Raid5 | Level::Raid6 => raw.layout = LEFT_SYMMETRIC.into(),
        }
        if geometry.level.is_redundant() {
            raw.size = sectors(geometry.component_bytes);
        }
        raw.chunksize = U32::new((geometry.chunk_bytes / SECTOR_BYTES) as u32);
        raw.raid_disks = U32::new(geometry.members as u32);
        raw.data_offset = sectors(new.data_offset_bytes);
        raw.data_size = sectors(geometry.component_bytes);
        raw.super_offset = sectors(SUPERBLOCK_OFFSET_BYTES);
        raw.dev_number = U32::new(u32::from(new.slot));
        raw.device_uuid = new.device_uuid.into_bytes();
        let behind = |offset: u64| offset.saturating_sub(SUPERBLOCK_OFFSET_BYTES) / SECTOR_BYTES;
        match &new.intent {
            NewIntent::None => {}
            NewIntent::Bitmap(begin) => {
                raw.feature_map = (raw.feature_map.get() | Features::BITMAP_OFFSET.bits()).into();
                raw.bitmap_offset = u32::try_from(behind(*begin)).unwrap_or(0).into();
            }
            NewIntent::Ppl(place) => {
                // Several units in the area: kernels that know of one only, at its beginning, would
                // replay nothing. They know this feature not, and refuse the array.
                let several = Features::MULTIPLE_PPLS.bits();
                raw.feature_map = (raw.feature_map.get() | several).into();
                let offset = u16::try_from(behind(place.start)).unwrap_or(0);
                let sectors = (place.end - place.start) / SECTOR_BYTES;
                let size = u32::try_from(sectors).unwrap_or(0);
                raw.bitmap_offset = (u32::from(offset) | size << 16).into();
            }
        }
        raw.bblog_size = 8.into();
        let log = new.bad_block_log_offset_bytes.saturating_sub(SUPERBLOCK_OFFSET_BYTES);
        raw.bblog_offset = i32::try_from(log / SECTOR_BYTES).unwrap_or(0).into();
        raw.resync_offset = if new.in_sync { IN_SYNC } else { 0 }.into();
        raw.max_dev = U32::new(MAX_DEVICES as u32);
        // The table ends with the first 512 bytes. What lies behind it means nothing and
        // stays zero: nothing but that one sector is ever written with anything else.
        for (number, role) in (0u16..).zip(raw.dev_roles.iter_mut().take(MAX_DEVICES)) {
            let used = usize::from(number) < geometry.members;
            *role = if used { Role::Active(number) } else { Role::Spare }.to_bits().into();
        }
        let mut new = Self { raw };
        new.seal();
        new
    }

    /// The bytes for the drive, at [`SUPERBLOCK_OFFSET_BYTES`].
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; SUPERBLOCK_BYTES] {
        zerocopy::transmute_ref!(&*self.raw)
    }

    /// The array's identity.
    #[must_use]
    pub fn array_uuid(&self) -> Uuid {
        Uuid::from_bytes(self.raw.set_uuid)
    }

    /// The member's own identity.
    #[must_use]
    pub fn device_uuid(&self) -> Uuid {
        Uuid::from_bytes(self.raw.device_uuid)
    }

    /// The array's name, with its home host if it has one (`host:name`). Bytes that
    /// are not UTF-8 are replaced.
    #[must_use]
    pub fn set_name(&self) -> String {
        let name = self.raw.set_name.split(|b| *b == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    /// The name without the home host.
    #[must_use]
    pub fn short_name(&self) -> String {
        let name = self.set_name();
        name.split_once(':').map(|(_, short)| short.to_owned()).unwrap_or(name)
    }

    /// md's level number, which may be one that we do not know.
    #[must_use]
    pub fn level_number(&self) -> i32 {
        self.raw.level.get()
    }

    /// The features that are known, and the bits that are not.
    #[must_use]
    pub fn features(&self) -> (Features, u32) {
        let bits = self.raw.feature_map.get();
        (Features::from_bits_truncate(bits), bits & !Features::all().bits())
    }

    /// The number of slots.
    #[must_use]
    pub fn member_count(&self) -> u32 {
        self.raw.raid_disks.get()
    }

    /// How often the superblocks have been updated: the highest rules.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.raw.events.get()
    }

    /// When the array was created.
    #[must_use]
    pub fn created(&self) -> Timestamp {
        Timestamp(self.raw.ctime.get() & Timestamp::SECONDS_MASK)
    }

    /// When the superblock was last written.
    #[must_use]
    pub fn updated(&self) -> Timestamp {
        Timestamp(self.raw.utime.get() & Timestamp::SECONDS_MASK)
    }

    /// Up to where the copies agree, in sectors: [`IN_SYNC`], or a position in the
    /// array (RAID 1, 10) or in the members (RAID 5, 6). 0 also means "was written to
    /// and not stopped".
    #[must_use]
    pub fn resync_offset(&self) -> u64 {
        self.raw.resync_offset.get()
    }

    /// Where this member's data begins, in bytes on the drive; the sum with the
    /// component's size may exceed the drive, which the caller checks.
    #[must_use]
    pub fn data_offset_bytes(&self) -> u64 {
        self.raw.data_offset.get().saturating_mul(SECTOR_BYTES)
    }

    /// The device number: the index into the role table.
    #[must_use]
    pub fn device_number(&self) -> u32 {
        self.raw.dev_number.get()
    }

    /// The size of the role table.
    #[must_use]
    pub fn role_count(&self) -> u32 {
        self.raw.max_dev.get()
    }

    /// The logical block size that md gave the array, in bytes; 0 before Linux 6.19.
    #[must_use]
    pub fn logical_block_size_bytes(&self) -> u32 {
        self.raw.logical_block_size.get()
    }

    /// The role that this superblock gives to a device number (one beyond the table
    /// has failed, as for md).
    #[must_use]
    pub fn role_of(&self, device_number: u32) -> Role {
        let known = device_number < self.raw.max_dev.get();
        let index = usize::try_from(device_number).unwrap_or(usize::MAX);
        match self.raw.dev_roles.get(index) {
            Some(role) if known => Role::from_bits(role.get()),
            _ => Role::Faulty,
        }
    }

    /// The role that it gives to its own drive.
    #[must_use]
    pub fn own_role(&self) -> Role {
        self.role_of(self.device_number())
    }

    /// Whether another member's superblock describes the same array in the same
    /// shape (the state, the time and what is each member's own may differ).
    #[must_use]
    pub fn same_array(&self, other: &Self) -> bool {
        let (a, b) = (&self.raw, &other.raw);
        a.set_uuid == b.set_uuid
            && a.level == b.level
            && a.layout == b.layout
            && a.chunksize == b.chunksize
            && a.raid_disks == b.raid_disks
            && a.size == b.size
    }

    /// With other bytes at `offset`, and a right checksum all the same.
    #[cfg(test)]
    pub(crate) fn patched(&self, offset: usize, bytes: &[u8]) -> Self {
        let mut new = self.clone();
        new.raw.as_mut_bytes()[offset..offset + bytes.len()].copy_from_slice(bytes);
        new.seal();
        new
    }

    fn seal(&mut self) {
        // `max_dev` is in bounds by this type's invariant.
        if let Some(sum) = self.raw.checksum() {
            self.raw.sb_csum = sum.into();
        }
    }
}

/// The longest beginning of `text` of at most `max` bytes that is whole characters.
fn cut(text: &str, max: usize) -> &[u8] {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.as_bytes().get(..end).unwrap_or_default()
}

const _: () = assert!(MAX_DEVICES <= MAX_ROLES && size_of::<U16>() * MAX_DEVICES + 256 == 512);
