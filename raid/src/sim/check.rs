//! Whether copies are equal and parity is right, by the drives' images and plain arithmetic.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use super::disk::Disk;
use super::image::SECTOR_BYTES;
use super::value::{decode, show};
use crate::geometry::{Extent, Geometry};

/// Where a slot's data is.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) disk: Rc<RefCell<Disk>>,
    pub(crate) data_offset_bytes: u64,
}

/// The members' bytes, by slot; None for one that does not count.
pub(crate) struct Images<'a> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) places: &'a [Option<Place>],
    /// What survives a power cut now, rather than what reads see.
    pub(crate) surviving: bool,
}

/// What is compared at once.
const PIECE_BYTES: u64 = 16 << 10;

impl Images<'_> {
    /// The bytes of a member, if it counts; short ones if they are all the same.
    fn bytes(&self, slot: usize, offset: u64, into: &mut [u8]) -> Option<Bytes> {
        let place = self.places[slot].as_ref()?;
        let disk = place.disk.borrow();
        let image = if self.surviving { disk.surviving() } else { disk.visible() };
        let offset = (place.data_offset_bytes + offset) as usize;
        if let Some(byte) = image.unwritten_byte(offset, into.len()) {
            return Some(Bytes::All(byte));
        }
        image.read(offset, into);
        Some(Bytes::Read)
    }

    /// Whether all copies of a range of the array that there are agree.
    ///
    /// # Errors
    /// Says where they do not.
    pub(crate) fn check(&self, range: Range<u64>) -> Result<(), String> {
        if self.geometry.level().parities() > 0 {
            let rows = self.geometry.row_of(range.start)..self.geometry.rows();
            let is_within = |row: &u64| self.geometry.row_range(*row).end <= range.end;
            return rows.take_while(is_within).try_for_each(|row| self.check_row(row));
        }
        let mut position = range.start;
        while position < range.end {
            let len = PIECE_BYTES.min(range.end - position);
            for extent in self.geometry.extents(position, len) {
                self.check_extent(position, &extent)?;
            }
            position += len;
        }
        Ok(())
    }

    fn check_extent(&self, position: u64, extent: &Extent) -> Result<(), String> {
        let len = extent.len_bytes as usize;
        let mut buffers = [[0; PIECE_BYTES as usize]; 2];
        let mut first: Option<(usize, Bytes)> = None;
        for copy in 0..extent.copies {
            let place = extent.place(copy);
            let buffer = &mut buffers[usize::from(first.is_some())][..len];
            let Some(found) = self.bytes(place.slot, place.offset_bytes, buffer) else { continue };
            let Some((other, expected)) = first else {
                if let Bytes::All(byte) = found {
                    buffer.fill(byte);
                }
                first = Some((place.slot, found));
                continue;
            };
            match (expected, found) {
                (Bytes::All(expected), Bytes::All(found)) if expected == found => continue,
                (_, Bytes::All(byte)) => buffer.fill(byte),
                _ => (),
            }
            let [expected, found] = &buffers;
            if expected[..len] == found[..len] {
                continue;
            }
            let at = (0..len).find(|&at| expected[at] != found[at]).unwrap_or(0) as u64;
            let sector = (position + extent.position_bytes + at) / SECTOR_BYTES as u64;
            let what = |bytes: &[u8; PIECE_BYTES as usize]| {
                let from = at as usize / SECTOR_BYTES * SECTOR_BYTES;
                show(decode(sector as usize, &bytes[from..from + SECTOR_BYTES]))
            };
            let when = if self.surviving { "what survives a power cut of " } else { "" };
            return Err(format!(
                "{when}sector {sector} is {} on member {other} and {} on member {}",
                what(expected),
                what(found),
                place.slot
            ));
        }
        Ok(())
    }
}

/// Parity.
impl Images<'_> {
    /// Whether the parity of a row is right, if all its members are there.
    fn check_row(&self, row: u64) -> Result<(), String> {
        let geometry = self.geometry;
        let chunk = geometry.chunk_bytes().unwrap_or(0);
        let mut at = 0;
        while at < chunk {
            let len = PIECE_BYTES.min(chunk - at);
            self.check_part_of_row(row, at, len as usize)?;
            at += len;
        }
        Ok(())
    }

    fn check_part_of_row(&self, row: u64, at: u64, len: usize) -> Result<(), String> {
        let geometry = self.geometry;
        let offset = geometry.row_component_offset(row) + at;
        let data = geometry.members() - geometry.level().parities();
        let mut buffer = [0; PIECE_BYTES as usize];
        let (mut p, mut q) = ([0u64; PIECE_BYTES as usize / 8], [0u64; PIECE_BYTES as usize / 8]);
        let (p, q) = (&mut p[..len / 8], &mut q[..len / 8]);
        let mut has_data = false;
        // From the last chunk to the first: Horner's rule for the sum of g^i times chunk i.
        for index in (0..data).rev() {
            let slot = geometry.data_slot(row, index);
            let Some(found) = self.bytes(slot, offset, &mut buffer[..len]) else { return Ok(()) };
            match found {
                Bytes::All(0) => {
                    if has_data {
                        q.iter_mut().for_each(|q| *q = times_two(*q));
                    }
                    continue;
                }
                Bytes::All(byte) => buffer[..len].fill(byte),
                Bytes::Read => (),
            }
            has_data = true;
            for ((p, q), word) in p.iter_mut().zip(q.iter_mut()).zip(words(&buffer[..len])) {
                *p ^= word;
                *q = times_two(*q) ^ word;
            }
        }
        self.compare(row, at, geometry.parity_slot(row), p, "P")?;
        match geometry.q_slot(row) {
            Some(slot) => self.compare(row, at, slot, q, "Q"),
            None => Ok(()),
        }
    }

    fn compare(
        &self,
        row: u64,
        at: u64,
        slot: usize,
        expected: &[u64],
        what: &str,
    ) -> Result<(), String> {
        let mut buffer = [0; PIECE_BYTES as usize];
        let buffer = &mut buffer[..expected.len() * 8];
        let offset = self.geometry.row_component_offset(row) + at;
        let Some(found) = self.bytes(slot, offset, buffer) else { return Ok(()) };
        if let Bytes::All(byte) = found {
            buffer.fill(byte);
        }
        let wrong = words(buffer).zip(expected).position(|(found, expected)| found != *expected);
        let Some(wrong) = wrong else { return Ok(()) };
        let when = if self.surviving { "in what survives a power cut, " } else { "" };
        Err(format!(
            "{when}{what} of row {row} is wrong at {} of member {slot}'s chunk",
            at + wrong as u64 * 8
        ))
    }
}

/// Each byte of a word times two in the field of RAID 6 (polynomial 0x11d).
fn times_two(word: u64) -> u64 {
    let high = (word >> 7) & 0x0101_0101_0101_0101;
    ((word & 0x7f7f_7f7f_7f7f_7f7f) << 1) ^ (high * 0x1d)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// What was found.
#[derive(Clone, Copy)]
enum Bytes {
    /// Nothing but this byte.
    All(u8),
    /// What is in the buffer.
    Read,
}
