//! md's version-1 superblock as it lies on the drive: 4096 bytes, little endian.
//!
//! Field names are those of Linux's `include/uapi/linux/raid/md_p.h`
//! (`struct mdp_superblock_1`). Nothing is interpreted here.

use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `magic`.
pub(super) const MAGIC: u32 = 0xa92b_4efc;
/// What md reserves for a superblock.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// The entries of `dev_roles` that fit.
pub(super) const MAX_ROLES: usize = (SUPERBLOCK_BYTES - 256) / 2;

/// The superblock's bytes, with names.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub(super) struct Raw {
    // Constant array information: 128 bytes.
    pub(super) magic: U32,
    pub(super) major_version: U32,
    pub(super) feature_map: U32,
    pub(super) pad0: U32,
    pub(super) set_uuid: [u8; 16],
    pub(super) set_name: [u8; 32],
    /// Seconds in the low 40 bits.
    pub(super) ctime: U64,
    pub(super) level: I32,
    pub(super) layout: U32,
    /// What every member contributes, in sectors (0 for RAID 0: see `data_size`).
    pub(super) size: U64,
    /// In sectors.
    pub(super) chunksize: U32,
    pub(super) raid_disks: U32,
    /// Sectors after the superblock, signed; with PPL, offset and size (16 bits each).
    pub(super) bitmap_offset: U32,
    pub(super) new_level: I32,
    pub(super) reshape_position: U64,
    pub(super) delta_disks: I32,
    pub(super) new_layout: U32,
    pub(super) new_chunk: U32,
    pub(super) new_offset: I32,

    // Constant information about this member: 64 bytes.
    /// The data's first sector on the drive.
    pub(super) data_offset: U64,
    /// Sectors of the drive that can hold data.
    pub(super) data_size: U64,
    /// The superblock's own first sector.
    pub(super) super_offset: U64,
    /// Or `journal_tail`.
    pub(super) recovery_offset: U64,
    /// The index into `dev_roles`.
    pub(super) dev_number: U32,
    pub(super) cnt_corrected_read: U32,
    pub(super) device_uuid: [u8; 16],
    pub(super) devflags: u8,
    pub(super) bblog_shift: u8,
    /// In sectors.
    pub(super) bblog_size: U16,
    /// Sectors after the superblock, signed.
    pub(super) bblog_offset: I32,

    // The array's state: 64 bytes.
    pub(super) utime: U64,
    pub(super) events: U64,
    /// In sectors; all ones: in sync.
    pub(super) resync_offset: U64,
    pub(super) sb_csum: U32,
    pub(super) max_dev: U32,
    /// Written by Linux 6.19 and later, zero before; in bytes.
    pub(super) logical_block_size: U32,
    pub(super) pad3: [u8; 28],

    /// Role by device number.
    pub(super) dev_roles: [U16; MAX_ROLES],
}

const _: () = {
    assert!(size_of::<Raw>() == SUPERBLOCK_BYTES);
    assert!(offset_of!(Raw, set_uuid) == 16);
    assert!(offset_of!(Raw, ctime) == 64);
    assert!(offset_of!(Raw, size) == 80);
    assert!(offset_of!(Raw, bitmap_offset) == 96);
    assert!(offset_of!(Raw, reshape_position) == 104);
    assert!(offset_of!(Raw, new_offset) == 124);
    assert!(offset_of!(Raw, data_offset) == 128);
    assert!(offset_of!(Raw, recovery_offset) == 152);
    assert!(offset_of!(Raw, device_uuid) == 168);
    assert!(offset_of!(Raw, bblog_offset) == 188);
    assert!(offset_of!(Raw, utime) == 192);
    assert!(offset_of!(Raw, resync_offset) == 208);
    assert!(offset_of!(Raw, sb_csum) == 216);
    assert!(offset_of!(Raw, logical_block_size) == 224);
    assert!(offset_of!(Raw, dev_roles) == 256);
};

impl Raw {
    /// md's checksum: the 32-bit words up to the last used role, summed in 64 bits
    /// with `sb_csum` taken as zero, the carry added once; an odd role at the end
    /// counts as a 16-bit word. None if `max_dev` is more than fits.
    pub(super) fn checksum(&self) -> Option<u32> {
        let max_dev = usize::try_from(self.max_dev.get()).ok().filter(|n| *n <= MAX_ROLES)?;
        let used = self.as_bytes().get(..256 + 2 * max_dev)?;
        let mut sum = 0u64;
        let mut words = used.chunks_exact(4);
        for word in &mut words {
            sum += u64::from(U32::read_from_bytes(word).map_or(0, U32::get));
        }
        if let Ok(half) = U16::read_from_bytes(words.remainder()) {
            sum += u64::from(half.get());
        }
        sum -= u64::from(self.sb_csum.get());
        // The carry is added once and without a further carry, as md does.
        #[allow(clippy::cast_possible_truncation)]
        let folded = (sum as u32).wrapping_add((sum >> 32) as u32);
        Some(folded)
    }
}
