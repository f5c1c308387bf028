//! Reading what a drive holds, once, before anything is decided.

use super::error::AssembleError;
use crate::device::signature::{self, Contents};
use crate::device::{Kind, Medium, OpenDevice};
use crate::metadata::private::{
    Copy, HEADER_BYTES, Header, HeaderError, PrivateArea, header_offset_bytes,
};
use crate::metadata::superblock::Superblock;
use std::io;

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
}

impl Examined {
    /// The superblock, if it is an md member.
    #[must_use]
    pub fn superblock(&self) -> Option<&Superblock> {
        match &self.contents {
            Contents::Md(superblock) => Some(superblock),
            _ => None,
        }
    }

    /// Whether it was left by a creation of ours that a crash cut short (and perhaps
    /// only on other drives): no data can be on it.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        let never_ran = self.superblock().is_some_and(|s| s.events() == 0);
        never_ran && matches!(self.private, PrivateArea::Believed { .. })
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
    }
    Ok(examined)
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
