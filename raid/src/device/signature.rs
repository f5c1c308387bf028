//! What a drive holds: nothing, an md member, or something of somebody else's.
//!
//! **The rule that decides** whether a drive may be taken without asking: its first and
//! its last MiB are all zero, and `blkid`, where it is installed, knows nothing on it
//! either. The table of signatures below only gives what is there a *name*: an unknown
//! format is refused just as surely, as "not blank".

use super::{Medium, OpenDevice};
use crate::metadata::superblock::{
    ParseError, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET_BYTES, Superblock,
};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What must be zero at either end of a blank drive.
pub const BLANK_BYTES: u64 = MIB;

const ZEROS: [u8; 4096] = [0; 4096];

/// How long `blkid` may take.
const BLKID_LIMIT: Duration = Duration::from_secs(10);

/// What a drive holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contents {
    /// Nothing that anybody would miss, by the rule above.
    Blank,
    /// A member of an md array with a version 1.2 superblock that is whole.
    Md(Box<Superblock>),
    /// Something known.
    Foreign {
        /// What, in words.
        what: String,
        /// Where its signature is, in bytes.
        offset_bytes: u64,
    },
    /// Something unknown.
    NotBlank {
        /// The first byte that is not zero.
        offset_bytes: u64,
    },
}

impl std::fmt::Display for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Blank => write!(f, "nothing (first and last MiB are zero)"),
            Self::Md(superblock) => {
                write!(f, "{}", crate::metadata::superblock::Summary::from(&**superblock))
            }
            Self::Foreign { what, offset_bytes } => write!(f, "{what} (at byte {offset_bytes})"),
            Self::NotBlank { offset_bytes } => {
                write!(f, "data of an unknown kind (byte {offset_bytes} is not zero)")
            }
        }
    }
}

/// What is on a drive, `blkid` asked as well.
///
/// # Errors
/// The drive's.
pub fn probe(device: &OpenDevice) -> io::Result<Contents> {
    let contents = probe_medium(device)?;
    if contents == Contents::Blank
        && let Some(what) = ask_blkid("blkid".as_ref(), device.path(), BLKID_LIMIT)
    {
        return Ok(Contents::Foreign { what: format!("{what}, says blkid"), offset_bytes: 0 });
    }
    Ok(contents)
}

/// What is on a drive, by its bytes alone.
///
/// # Errors
/// The drive's.
pub fn probe_medium(medium: &impl Medium) -> io::Result<Contents> {
    let ends = Ends::read(medium)?;
    match md_1_2(&ends) {
        Some(Ok(superblock)) => return Ok(Contents::Md(Box::new(superblock))),
        Some(Err(error)) => {
            let offset_bytes = SUPERBLOCK_OFFSET_BYTES;
            return Ok(Contents::Foreign { what: error.to_string(), offset_bytes });
        }
        None => {}
    }
    for magic in MAGICS {
        if let Some(offset_bytes) = magic.find(&ends) {
            return Ok(Contents::Foreign { what: magic.what.to_owned(), offset_bytes });
        }
    }
    for deep in DEEP_MAGICS {
        if deep.find(medium)? {
            let offset_bytes = deep.offset_bytes;
            return Ok(Contents::Foreign { what: deep.what.to_owned(), offset_bytes });
        }
    }
    Ok(match ends.first_non_zero() {
        Some(offset_bytes) => Contents::NotBlank { offset_bytes },
        None => Contents::Blank,
    })
}

fn md_1_2(ends: &Ends) -> Option<Result<Superblock, ParseError>> {
    let bytes = ends.get(SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_BYTES)?.first_chunk()?;
    match Superblock::parse(bytes) {
        Err(ParseError::NoMagic) => None,
        other => Some(other),
    }
}

/// The first and the last MiB (which overlap on a small drive).
struct Ends {
    size_bytes: u64,
    first: Vec<u8>,
    last: Vec<u8>,
    last_at: u64,
}

impl Ends {
    fn read(medium: &impl Medium) -> io::Result<Self> {
        let size_bytes = medium.size_bytes();
        let len = size_bytes.min(BLANK_BYTES);
        let last_at = size_bytes - len;
        let mut first = vec![0; usize::try_from(len).unwrap_or(0)];
        let mut last = vec![0; first.len()];
        medium.read_at(0, &mut first)?;
        medium.read_at(last_at, &mut last)?;
        Ok(Self { size_bytes, first, last, last_at })
    }

    /// Bytes that lie whole in one of the ends.
    fn get(&self, offset_bytes: u64, len: usize) -> Option<&[u8]> {
        let within = |part: &'_ [u8], begin: u64| -> Option<(usize, usize)> {
            let from = usize::try_from(offset_bytes.checked_sub(begin)?).ok()?;
            let to = from.checked_add(len)?;
            (to <= part.len()).then_some((from, to))
        };
        if let Some((from, to)) = within(&self.first, 0) {
            return self.first.get(from..to);
        }
        let (from, to) = within(&self.last, self.last_at)?;
        self.last.get(from..to)
    }

    fn first_non_zero(&self) -> Option<u64> {
        let position = |bytes: &[u8]| {
            // Whole blocks are compared at once; the byte is looked for in one of them.
            let block = bytes.chunks(ZEROS.len()).position(|c| Some(c) != ZEROS.get(..c.len()))?;
            let from = block * ZEROS.len();
            Some(from + bytes.get(from..)?.iter().position(|b| *b != 0)?)
        };
        position(&self.first)
            .map(|p| p as u64)
            .or_else(|| Some(position(&self.last)? as u64 + self.last_at))
    }
}

/// Where a signature is looked for.
enum Place {
    /// So many bytes from the beginning.
    Start(u64),
    /// At the beginning plus each multiple of a step, up to a limit (inclusive).
    Steps { from: u64, step: u64, to: u64 },
    /// So many bytes from the end.
    End(u64),
    /// In the last aligned unit: the size rounded down to `align`, less `before`.
    AlignedEnd { align: u64, before: u64 },
    /// ZFS: in each of the four 256 KiB labels, after 128 KiB, one per KiB.
    ZfsLabels,
}

struct Magic {
    what: &'static str,
    place: Place,
    bytes: &'static [u8],
}

impl Magic {
    fn find(&self, ends: &Ends) -> Option<u64> {
        self.candidates(ends.size_bytes)
            .into_iter()
            .find(|at| ends.get(*at, self.bytes.len()) == Some(self.bytes))
    }

    fn candidates(&self, size: u64) -> Vec<u64> {
        match self.place {
            Place::Start(at) => vec![at],
            Place::Steps { from, step, to } => {
                (0..).map(|i| from + i * step).take_while(|at| *at <= to).collect()
            }
            Place::End(before) => size.checked_sub(before).into_iter().collect(),
            Place::AlignedEnd { align, before } => {
                (size - size % align).checked_sub(before).into_iter().collect()
            }
            Place::ZfsLabels => {
                let end = size - size % (256 * KIB);
                let labels = [
                    Some(0),
                    Some(256 * KIB),
                    end.checked_sub(512 * KIB),
                    end.checked_sub(256 * KIB),
                ];
                let slots = |label: u64| (0..128).map(move |i| label + 128 * KIB + i * KIB);
                labels.into_iter().flatten().flat_map(slots).collect()
            }
        }
    }
}

const fn magic(what: &'static str, place: Place, bytes: &'static [u8]) -> Magic {
    Magic { what, place, bytes }
}

use Place::{AlignedEnd, End, Start, Steps, ZfsLabels};

/// Ordered so that what lies deeper (a file system) comes after what contains it only
/// where both can be there; a partition table is looked for after file systems, whose
/// boot sectors carry its magic too.
#[rustfmt::skip]
const MAGICS: &[Magic] = &[
    magic("an md member (superblock version 1.1)", Start(0), &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]),
    magic("an md member (superblock version 1.0)", AlignedEnd { align: 4 * KIB, before: 8 * KIB }, &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]),
    magic("an md member (superblock version 0.90)", AlignedEnd { align: 64 * KIB, before: 64 * KIB }, &[0xfc, 0x4e, 0x2b, 0xa9]),
    magic("an md member (superblock version 0.90, big-endian)", AlignedEnd { align: 64 * KIB, before: 64 * KIB }, &[0xa9, 0x2b, 0x4e, 0xfc]),
    magic("an Intel RST/VROC (IMSM) RAID member", End(1024), b"Intel Raid ISM Cfg Sig. "),
    magic("an Intel RST/VROC (IMSM) RAID member", End(8192), b"Intel Raid ISM Cfg Sig. "),
    magic("a DDF RAID member", End(512), &[0xde, 0x11, 0xde, 0x11]),
    magic("a DDF RAID member", End(4096), &[0xde, 0x11, 0xde, 0x11]),
    magic("a DDF RAID member", End(128 * KIB + 512), &[0xde, 0x11, 0xde, 0x11]),
    magic("an AMD/Promise RAID member", End(63 * 512), b"Promise Technology, Inc."),
    magic("a LUKS encrypted volume", Start(0), b"LUKS\xba\xbe"),
    magic("a LUKS2 encrypted volume (its second header)", Steps { from: 16 * KIB, step: 16 * KIB, to: 512 * KIB }, b"SKUL\xba\xbe"),
    magic("a BitLocker volume", Start(3), b"-FVE-FS-"),
    magic("an LVM2 physical volume", Start(24), b"LVM2 001"),
    magic("an LVM2 physical volume", Start(512 + 24), b"LVM2 001"),
    magic("an LVM2 physical volume", Start(1024 + 24), b"LVM2 001"),
    magic("an LVM2 physical volume", Start(1536 + 24), b"LVM2 001"),
    magic("a ZFS pool member", ZfsLabels, &[0x0c, 0xb1, 0xba, 0x00, 0, 0, 0, 0]),
    magic("a ZFS pool member (big-endian)", ZfsLabels, &[0, 0, 0, 0, 0x00, 0xba, 0xb1, 0x0c]),
    magic("a btrfs file system", Start(64 * KIB + 0x40), b"_BHRfS_M"),
    magic("an XFS file system", Start(0), b"XFSB"),
    magic("a bcachefs member", Start(4 * KIB + 24), &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef]),
    magic("a bcache or bcachefs member", Start(4 * KIB + 24), &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81]),
    magic("an F2FS file system", Start(KIB), &[0x10, 0x20, 0xf5, 0xf2]),
    magic("an APFS container", Start(32), b"NXSB"),
    magic("a Stratis pool member", Start(512 + 4), b"!Stra0tis\x86\xff\x02^\x41rh"),
    magic("a VDO volume", Start(0), b"dmvdo001"),
    magic("a Ceph BlueStore device", Start(0), b"bluestore block device"),
    magic("a dm-verity volume", Start(0), b"verity\0\0"),
    magic("a dm-integrity volume", Start(0), b"integrt\0"),
    magic("an erofs file system", Start(KIB), &[0xe2, 0xe1, 0xf5, 0xe0]),
    magic("a squashfs image", Start(0), b"hsqs"),
    magic("a cramfs image", Start(0), &[0x45, 0x3d, 0xcd, 0x28]),
    magic("an ISO 9660 image", Start(32 * KIB + 1), b"CD001"),
    magic("a UDF file system", Steps { from: 32 * KIB + 1, step: 2 * KIB, to: 64 * KIB }, b"NSR0"),
    magic("a GFS2 file system", Start(64 * KIB), &[0x01, 0x16, 0x19, 0x70]),
    magic("an OCFS2 file system", Steps { from: KIB, step: KIB, to: 8 * KIB }, b"OCFSV2"),
    magic("a ReiserFS file system", Start(64 * KIB + 52), b"ReIsEr"),
    magic("a JFS file system", Start(32 * KIB), b"JFS1"),
    magic("a NILFS2 file system", Start(KIB + 6), &[0x34, 0x34]),
    magic("an HFS+ file system", Start(KIB), b"H+\0\x04"),
    magic("an HFSX file system", Start(KIB), b"HX\0\x05"),
    magic("swap space", Start(4 * KIB - 10), b"SWAPSPACE2"),
    magic("swap space", Start(8 * KIB - 10), b"SWAPSPACE2"),
    magic("swap space", Start(16 * KIB - 10), b"SWAPSPACE2"),
    magic("swap space", Start(64 * KIB - 10), b"SWAPSPACE2"),
    magic("a hibernation image", Start(4 * KIB - 10), b"S1SUSPEND"),
    magic("DRBD metadata", AlignedEnd { align: 4 * KIB, before: 4 * KIB - 60 }, &[0x83, 0x74, 0x02, 0x6b]),
    magic("DRBD metadata", AlignedEnd { align: 4 * KIB, before: 4 * KIB - 60 }, &[0x83, 0x74, 0x02, 0x6c]),
    magic("DRBD metadata", AlignedEnd { align: 4 * KIB, before: 4 * KIB - 60 }, &[0x83, 0x74, 0x02, 0x6d]),
    magic("an NTFS file system", Start(3), b"NTFS    "),
    magic("an exFAT file system", Start(3), b"EXFAT   "),
    magic("a FAT file system", Start(54), b"FAT12   "),
    magic("a FAT file system", Start(54), b"FAT16   "),
    magic("a FAT file system", Start(82), b"FAT32   "),
    magic("an ext2, ext3 or ext4 file system", Start(KIB + 56), &[0x53, 0xef]),
    magic("a GPT partition table", Start(512), b"EFI PART"),
    magic("a GPT partition table", Start(4 * KIB), b"EFI PART"),
    magic("a GPT partition table (the copy at the end)", End(512), b"EFI PART"),
    magic("a GPT partition table (the copy at the end)", End(4 * KIB), b"EFI PART"),
    magic("an MBR partition table or boot sector", Start(510), &[0x55, 0xaa]),
];

/// Signatures further in than the ends that are read anyway.
struct DeepMagic {
    what: &'static str,
    offset_bytes: u64,
    bytes: &'static [u8],
}

const DEEP_MAGICS: &[DeepMagic] = &[
    DeepMagic { what: "a VMFS volume member", offset_bytes: MIB, bytes: &[0x0d, 0xd0, 0x01, 0xc0] },
    DeepMagic {
        what: "a VMFS file system",
        offset_bytes: 2 * MIB,
        bytes: &[0x5e, 0xf1, 0xab, 0x2f],
    },
    DeepMagic {
        what: "a btrfs file system (its second superblock)",
        offset_bytes: 64 * MIB + 0x40,
        bytes: b"_BHRfS_M",
    },
];

impl DeepMagic {
    fn find(&self, medium: &impl Medium) -> io::Result<bool> {
        let len = self.bytes.len();
        if self.offset_bytes + len as u64 > medium.size_bytes() {
            return Ok(false);
        }
        let mut found = vec![0; len];
        medium.read_at(self.offset_bytes, &mut found)?;
        Ok(found == self.bytes)
    }
}

/// Where a drive carries signatures that are further in than the ends: offsets of 4096-byte blocks.
///
/// # Errors
/// The drive's.
pub(crate) fn deep_blocks(medium: &impl Medium) -> io::Result<Vec<u64>> {
    let mut blocks = Vec::new();
    for deep in DEEP_MAGICS {
        if deep.find(medium)? {
            blocks.push(deep.offset_bytes - deep.offset_bytes % 4096);
        }
    }
    Ok(blocks)
}

/// The type that `blkid -p` sees on a drive; None if it sees nothing, is not there, or
/// does not answer in time (then the rule of zeros decides alone).
fn ask_blkid(program: &Path, path: &Path, limit: Duration) -> Option<String> {
    let mut command = Command::new(program);
    command.args(["-p", "-o", "export"]).arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            tracing::debug!(%error, "blkid is not available");
            return None;
        }
    };
    let end = Instant::now() + limit;
    // What it prints for one device fits into a pipe, so it can end before it is read.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            _ => break None,
        }
    };
    let Some(status) = status else {
        tracing::warn!(path = %path.display(), "blkid did not answer in time and was ended");
        child.kill().ok();
        child.wait().ok();
        return None;
    };
    let mut text = String::new();
    io::Read::read_to_string(child.stdout.as_mut()?, &mut text).ok()?;
    // 2: nothing found; 8: several things at once, which is not nothing.
    match status.code() {
        Some(0) => {
            let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
            let what = value("TYPE=").or_else(|| value("PTTYPE="))?;
            Some(format!("something of type {what}"))
        }
        Some(8) => Some("several signatures at once".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
#[path = "signature_tests.rs"]
mod tests;
