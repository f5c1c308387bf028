//! Where everything lies on a member. Pure arithmetic.
//!
//! What a member that we create looks like, byte by byte (not to scale; `data_offset`
//! is the same on all members, and stands in md's superblock):
//!
//! ```text
//!            0 ┌──────────────────────────────────────────────────────────┐
//!              │ not used: left as it is found (zero)                     │ 4 KiB
//!        4 KiB ├──────────────────────────────────────────────────────────┤
//!              │ md superblock, version 1.2                               │ 4 KiB
//!        8 KiB ├──────────────────────────────────────────────────────────┤
//!              │ space for md's write-intent bitmap, or for its PPL       │ 1 MiB
//! 1 MiB+ 8 KiB ├──────────────────────────────────────────────────────────┤
//!              │ md's bad-block log                                       │ 4 KiB
//! 1 MiB+12 KiB ├──────────────────────────────────────────────────────────┤
//!              │ not used                                                 │
//!        2 MiB ├──────────────────────────────────────────────────────────┤ ─┐
//!              │ sections of the private area                             │  │
//!              │ (write log, maps, reservations, volumes, checksums)      │  │
//! data_offset  │                                                          │  │ private
//!    − 128 KiB ├──────────────────────────────────────────────────────────┤  │ area
//!              │ private header, copy 1                    4 KiB of 64    │  │
//!    −  64 KiB ├──────────────────────────────────────────────────────────┤  │
//!              │ private header, copy 0                    4 KiB of 64    │  │
//!  data_offset ├──────────────────────────────────────────────────────────┤ ─┘
//!              │ data: `component_bytes`, a multiple of 1 MiB             │
//!              ├──────────────────────────────────────────────────────────┤
//!              │ not used: less than 1 MiB                                │
//!  end of drive └──────────────────────────────────────────────────────────┘
//! ```
//!
//! **How large the private area is.** `size` being the smallest member's size:
//! `64 MiB + size / 1024` (four bytes for each 4 KiB, for checksums, and the logs), but
//! never more than `size / 16`, so that small members keep most of their space; rounded
//! up to 1 MiB. From 1041 MiB on the first rule applies. A member has at least 16 MiB.
//!
//! The two headers are 64 KiB apart so that a drive that rewrites a larger unit than
//! its block does not touch both at once.

use super::bitmap::{BLOCK_BYTES, bitmap_bytes, region_bytes_for};
use super::private::{Section, SectionFlags, SectionKind};
use super::superblock::{Geometry, SUPERBLOCK_OFFSET_BYTES};
use super::{Consistency, Level};
use thiserror::Error;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The space between superblock and bad-block log, where md puts a bitmap or a PPL
/// (which takes 1 MiB).
pub const BITMAP_OFFSET_BYTES: u64 = SUPERBLOCK_OFFSET_BYTES + 4 * KIB;
/// Its size.
pub const BITMAP_BYTES: u64 = MIB;
/// md's bad-block log: 4 KiB.
pub const BAD_BLOCK_LOG_OFFSET_BYTES: u64 = BITMAP_OFFSET_BYTES + BITMAP_BYTES;
/// Where the private area begins.
pub const PRIVATE_OFFSET_BYTES: u64 = 2 * MIB;
/// How far before `data_offset` each copy of the private header begins.
pub const HEADER_BEFORE_DATA_BYTES: [u64; 2] = [64 * KIB, 128 * KIB];
/// What the headers take of the private area's end.
pub const HEADERS_BYTES: u64 = 128 * KIB;
/// Data begins and ends at multiples of this.
pub const DATA_ALIGNMENT_BYTES: u64 = MIB;
/// Smaller drives cannot be members.
pub const MIN_MEMBER_BYTES: u64 = 16 * MIB;
/// The write log has no more than this.
const WRITE_LOG_MAX_BYTES: u64 = 16 * MIB;
/// Larger drives than any: nothing overflows below it.
pub const MAX_MEMBER_BYTES: u64 = 1 << 60;

const _: () = assert!(BAD_BLOCK_LOG_OFFSET_BYTES + 4 * KIB <= PRIVATE_OFFSET_BYTES);

/// Where things lie on every member of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Where the data begins.
    pub data_offset_bytes: u64,
    /// How much of it each member holds.
    pub component_bytes: u64,
    /// The size of the private area, which ends at `data_offset_bytes`.
    pub private_bytes: u64,
}

/// Why a drive cannot be a member.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// Less than [`MIN_MEMBER_BYTES`].
    #[error("it has {0} bytes, and a member needs at least 16 MiB")]
    TooSmall(u64),
    /// More than [`MAX_MEMBER_BYTES`].
    #[error("it has {0} bytes, more than a member can have")]
    TooLarge(u64),
}

/// The placement for an array whose smallest member has `smallest_bytes`.
///
/// # Errors
/// If that is too small or absurdly large.
pub fn place(smallest_bytes: u64) -> Result<Placement, PlacementError> {
    if smallest_bytes < MIN_MEMBER_BYTES {
        return Err(PlacementError::TooSmall(smallest_bytes));
    }
    if smallest_bytes > MAX_MEMBER_BYTES {
        return Err(PlacementError::TooLarge(smallest_bytes));
    }
    let wanted = (64 * MIB + smallest_bytes / 1024).min(smallest_bytes / 16);
    let private_bytes = wanted.next_multiple_of(MIB);
    let data_offset_bytes = PRIVATE_OFFSET_BYTES + private_bytes;
    let rest = smallest_bytes - data_offset_bytes;
    let component_bytes = rest - rest % DATA_ALIGNMENT_BYTES;
    Ok(Placement { data_offset_bytes, component_bytes, private_bytes })
}

/// What one bit of the degraded-write map stands for, in bytes of what the map covers.
#[must_use]
pub fn degraded_map_region_bytes(geometry: &Geometry, private_bytes: u64) -> u32 {
    let room = private_bytes.saturating_sub(HEADERS_BYTES) / 4;
    let room = (room - room % BLOCK_BYTES as u64).min(BITMAP_BYTES);
    region_bytes_for(geometry.mapped_bytes(), room)
}

/// The sections of an array's private area:
/// * a degraded-write map, unless a write-intent bitmap does its work, as large as it need be;
/// * for RAID 6 with a log, the write log: half of what is left, up to 16 MiB.
///
/// None on RAID 0, where md can write data without a trace.
#[must_use]
pub fn sections(geometry: &Geometry, consistency: Consistency, private_bytes: u64) -> Vec<Section> {
    let flags = SectionFlags::empty();
    let mut sections = Vec::new();
    if !geometry.level.is_redundant() {
        return sections;
    }
    let mut begin = 0;
    if consistency != Consistency::Bitmap {
        let region_bytes = u64::from(degraded_map_region_bytes(geometry, private_bytes));
        let len_bytes = bitmap_bytes(geometry.mapped_bytes().div_ceil(region_bytes));
        sections.push(Section {
            kind: SectionKind::DegradedWriteMap,
            flags,
            offset_bytes: 0,
            len_bytes,
        });
        begin = len_bytes.next_multiple_of(64 * KIB);
    }
    if consistency == Consistency::Ppl && geometry.level == Level::Raid6 {
        let room = private_bytes.saturating_sub(HEADERS_BYTES).saturating_sub(begin);
        let len_bytes = (room / 2).min(WRITE_LOG_MAX_BYTES);
        let len_bytes = len_bytes - len_bytes % (64 * KIB);
        sections.push(Section {
            kind: SectionKind::WriteLog,
            flags,
            offset_bytes: begin,
            len_bytes,
        });
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sections_by_level() {
        let at = |level, consistency, size: u64| {
            let p = place(size).unwrap();
            let members = 4;
            let component_bytes = p.component_bytes;
            let geometry = Geometry { level, members, chunk_bytes: 65536, component_bytes };
            let sections = sections(&geometry, consistency, p.private_bytes);
            sections.iter().map(|s| (s.kind, s.offset_bytes, s.len_bytes)).collect::<Vec<_>>()
        };
        let map = |len| (SectionKind::DegradedWriteMap, 0, len);
        let log = |len| (SectionKind::WriteLog, 64 * KIB, len);
        assert_eq!(at(Level::Raid0, Consistency::None, 16 * MIB), []);
        assert_eq!(at(Level::Raid1, Consistency::Bitmap, 16 * MIB), []);
        assert_eq!(at(Level::Raid10, Consistency::Resync, 16 * MIB), [map(4096)]);
        assert_eq!(at(Level::Raid5, Consistency::Ppl, 1 << 40), [map(4096)]);
        assert_eq!(at(Level::Raid6, Consistency::Ppl, 16 * MIB), [map(4096), log(384 * KIB)]);
        assert_eq!(at(Level::Raid6, Consistency::Ppl, 1 << 40), [map(4096), log(16 * MIB)]);
        assert_eq!(at(Level::Raid6, Consistency::Bitmap, 1 << 40), []);
    }

    #[test]
    fn places_by_size() {
        let at =
            |size: u64| place(size).map(|p| (p.data_offset_bytes / MIB, p.component_bytes / MIB));
        assert_eq!(at(16 * MIB), Ok((3, 13)));
        assert_eq!(at(64 * MIB), Ok((6, 58)));
        assert_eq!(at(1024 * MIB), Ok((66, 958)));
        assert_eq!(at(1041 * MIB), Ok((68, 973)));
        // 1 TiB: 64 MiB, and 1 GiB for checksums.
        assert_eq!(at(1 << 40), Ok((2 + 64 + 1024, (1 << 20) - 1090)));
        assert_eq!(at(16 * MIB - 1), Err(PlacementError::TooSmall(16 * MIB - 1)));
        assert_eq!(at(MAX_MEMBER_BYTES + 1), Err(PlacementError::TooLarge(MAX_MEMBER_BYTES + 1)));
    }

    proptest! {
        #[test]
        fn nothing_overlaps(size in MIN_MEMBER_BYTES..=MAX_MEMBER_BYTES) {
            let p = place(size).unwrap();
            prop_assert_eq!(p.data_offset_bytes % DATA_ALIGNMENT_BYTES, 0);
            prop_assert_eq!(p.component_bytes % DATA_ALIGNMENT_BYTES, 0);
            prop_assert!(p.component_bytes > 0);
            prop_assert!(p.data_offset_bytes + p.component_bytes <= size);
            prop_assert!(size - p.data_offset_bytes - p.component_bytes < DATA_ALIGNMENT_BYTES);
            prop_assert!(p.data_offset_bytes - p.private_bytes >= PRIVATE_OFFSET_BYTES);
            prop_assert!(p.private_bytes > HEADERS_BYTES);
            // Never more than a sixteenth, but for the rounding.
            prop_assert!(p.private_bytes <= size / 16 + MIB);
            // Room for four bytes per 4 KiB of data once the other rule applies.
            if size >= 1041 * MIB {
                prop_assert!(p.private_bytes - HEADERS_BYTES > p.component_bytes / 1024);
            }
        }
    }
}
