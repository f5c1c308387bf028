//! Reading what a drive holds, once, before anything is decided.

use super::error::AssembleError;
use crate::device::signature::{self, Contents};
use crate::device::{Kind, Medium, OpenDevice};
use crate::metadata::bad_blocks::{BadBlockError, LOG_BYTES, Log};
use crate::metadata::bitmap::{BLOCK_BYTES, Bitmap, BitmapError, BitmapSuperblock, MapUnit};
use crate::metadata::private::{
    Copy, HEADER_BYTES, Header, HeaderError, PrivateArea, SectionKind, header_offset_bytes,
};
use crate::metadata::record::Replica;
use crate::metadata::superblock::{Geometry, Superblock};
use crate::metadata::take_over::Kept;
use crate::metadata::{ppl, write_log};
use std::io;
use std::ops::Range;

/// What was found on a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examined {
    /// What to call it.
    pub name: String,
    /// What tells whether two are one; None for drives that are neither files nor block
    /// devices (tests).
    pub kind: Option<Kind>,
    /// Its size.
    pub size_bytes: u64,
    /// What it holds.
    pub contents: Contents,
    /// The private area's state, for an md member.
    pub private: PrivateArea,
    /// A private header that is whole and cannot be read by this version.
    pub newer_header: Option<HeaderError>,
    /// md's bad-block log, if the superblock says that it counts.
    pub bad_blocks: Option<Result<Log, BadBlockError>>,
    /// The write-intent bitmap, if the superblock says that there is one.
    pub bitmap: Option<Result<Bitmap, BitmapError>>,
    /// What is there and whole of logs and maps; the bitmap only if its bits count.
    pub kept: Kept,
}

impl Examined {
    /// The member's metadata, as they are on the drive; None if it is no md member.
    #[must_use]
    pub fn replica(&self) -> Option<Replica> {
        let bad_blocks = self.bad_blocks.as_ref().and_then(|log| log.as_ref().ok()).cloned();
        Some(Replica {
            superblock: self.superblock()?.clone(),
            private: self.private.clone(),
            bad_blocks,
        })
    }

    /// The superblock, if it is an md member.
    #[must_use]
    pub fn superblock(&self) -> Option<&Superblock> {
        match &self.contents {
            Contents::Md(superblock) => Some(superblock),
            _ => None,
        }
    }

    /// Whether everything agreed, in an array of this size, when its superblock was written, but for
    /// what was being written then.
    pub(super) fn was_synced(&self, array_bytes: u64) -> bool {
        self.private.believed().is_some_and(|header| header.synced_bytes >= array_bytes)
    }

    /// Whether it was left by a creation of ours that a crash cut short (and perhaps
    /// only on other drives): no data can be on it.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        let never_ran = self.superblock().is_some_and(|s| s.events() == 0);
        // The header is that of this superblock; whether it fits to the last byte does not matter,
        // since the power may have failed while the superblock was written.
        never_ran && self.private.header().is_some()
    }
}

/// Examines a drive (and asks `blkid` about it, where that is installed).
///
/// # Errors
/// If the drive cannot be read.
pub fn examine(device: &OpenDevice) -> Result<Examined, AssembleError> {
    let contents = signature::probe(device);
    finish(device, contents, Some(device.identity().kind))
}

/// Examines any medium by its bytes.
///
/// # Errors
/// If it cannot be read.
pub fn examine_medium(medium: &impl Medium) -> Result<Examined, AssembleError> {
    finish(medium, signature::probe_medium(medium), None)
}

fn finish(
    medium: &impl Medium,
    contents: io::Result<Contents>,
    kind: Option<Kind>,
) -> Result<Examined, AssembleError> {
    let unreadable = |source| AssembleError::Unreadable { name: medium.name(), source };
    let contents = contents.map_err(unreadable)?;
    let mut examined = Examined {
        name: medium.name(),
        kind,
        size_bytes: medium.size_bytes(),
        contents,
        private: PrivateArea::Absent,
        newer_header: None,
        bad_blocks: None,
        bitmap: None,
        kept: Kept::default(),
    };
    if let Contents::Md(superblock) = &examined.contents {
        let mut copies = [Err(HeaderError::NoMagic), Err(HeaderError::NoMagic)];
        for (found, copy) in copies.iter_mut().zip(Copy::ALL) {
            *found = read_header(medium, superblock, copy).map_err(unreadable)?;
        }
        let newer = copies.iter().find_map(|c| match c {
            Err(error @ HeaderError::Version(_)) => Some(error.clone()),
            _ => None,
        });
        examined.private = PrivateArea::judge(superblock, copies);
        examined.newer_header = newer;
        if let Ok(geometry) = superblock.geometry() {
            let superblock = superblock.clone();
            examined.read_rest(medium, &superblock, &geometry).map_err(unreadable)?;
        }
    }
    Ok(examined)
}

impl Examined {
    /// Reads what the superblock and the private header point to.
    fn read_rest(
        &mut self,
        medium: &impl Medium,
        superblock: &Superblock,
        geometry: &Geometry,
    ) -> io::Result<()> {
        if let Some(place) = superblock.bad_block_place().filter(|_| superblock.has_bad_blocks()) {
            let mut bytes = [0; LOG_BYTES];
            medium.read_at(place.start, &mut bytes)?;
            self.bad_blocks = Some(Log::parse(&bytes, superblock.bad_block_shift()));
        }
        if let Some(place) = superblock.bitmap_place() {
            let bitmap = read_bitmap(medium, superblock, geometry, &place)?;
            let counts = |bitmap: &&Bitmap| bitmap.counts_at(superblock.events());
            self.kept.bitmap = bitmap.as_ref().ok().filter(counts).cloned();
            self.bitmap = Some(bitmap);
        }
        let array_uuid = superblock.array_uuid().into_bytes();
        if let Some(place) = superblock.ppl_place() {
            let header = ppl::Header::parse(&*read_block(medium, place.start)?);
            let ours = |header: ppl::Header| header.signature == ppl::signature(array_uuid);
            self.kept.ppl = header.is_ok_and(ours);
        }
        let Some(header) = self.private.believed() else { return Ok(()) };
        if let Some(place) = header.place(SectionKind::WriteLog) {
            let mark = write_log::Unit::parse(&read_block(medium, place.start)?[..]);
            self.kept.write_log = mark.is_ok_and(|mark| mark.array_uuid == array_uuid);
        }
        if let Some(place) = header.place(SectionKind::DegradedWriteMap) {
            self.kept.degraded_map = read_bitmap(medium, superblock, geometry, &place)?.ok();
        }
        Ok(())
    }
}

fn read_block(medium: &impl Medium, offset_bytes: u64) -> io::Result<Box<[u8; BLOCK_BYTES]>> {
    let mut block = Box::new([0; BLOCK_BYTES]);
    medium.read_at(offset_bytes, &mut block[..])?;
    Ok(block)
}

fn read_bitmap(
    medium: &impl Medium,
    superblock: &Superblock,
    geometry: &Geometry,
    place: &Range<u64>,
) -> io::Result<Result<Bitmap, BitmapError>> {
    let first = read_block(medium, place.start)?;
    let uuid = superblock.array_uuid();
    let head = match BitmapSuperblock::parse(&first[..], uuid) {
        Ok(head) => head,
        Err(error) => return Ok(Err(error)),
    };
    let end = place.start.saturating_add(head.bitmap_bytes());
    if end > place.end || end > medium.size_bytes() {
        return Ok(Err(BitmapError::Size("it does not fit before the data")));
    }
    let mut bytes = vec![0; usize::try_from(head.bitmap_bytes()).unwrap_or(0)];
    medium.read_at(place.start, &mut bytes)?;
    let unit = MapUnit::of(geometry.level);
    Ok(Bitmap::parse(&bytes, uuid, unit, geometry.mapped_bytes()))
}

fn read_header(
    medium: &impl Medium,
    superblock: &Superblock,
    copy: Copy,
) -> io::Result<Result<Header, HeaderError>> {
    let offset = header_offset_bytes(superblock.data_offset_bytes(), copy);
    let Some(offset) = offset.filter(|o| o.saturating_add(4096) <= medium.size_bytes()) else {
        return Ok(Err(HeaderError::NoMagic));
    };
    let mut bytes = [0; HEADER_BYTES];
    medium.read_at(offset, &mut bytes)?;
    Ok(Header::parse(&bytes))
}
