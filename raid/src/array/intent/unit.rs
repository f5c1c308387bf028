//! Records as the bytes of a unit. Pure.

use super::layout::LogKind;
use super::log::{Record, part_of};
use crate::buffer::{Buffer, SharedBuffer};
use crate::geometry::Geometry;
use crate::metadata::{ppl, write_log};

/// Whose partial parity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    P,
    Q,
}

impl Record {
    /// The partial parity; none for a write of all data chunks.
    fn parity(&self, part: Part) -> Option<&SharedBuffer> {
        match part {
            Part::P => self.log.p.as_ref(),
            Part::Q => self.log.q.as_ref(),
        }
    }

    fn parity_bytes(&self, part: Part) -> usize {
        self.parity(part).map_or(0, |parity| parity.len())
    }
}

/// Whether one more record fits into a unit, whose data are `data_bytes` at most on each member.
pub(super) fn fits(kind: LogKind, records: &[Record], record: &Record, data_bytes: usize) -> bool {
    let max_entries = match kind {
        LogKind::Ppl => ppl::MAX_OWN_ENTRIES,
        LogKind::WriteLog => write_log::MAX_ENTRIES,
    };
    let fits_on = |slot: usize| {
        let all = records.iter().chain(std::iter::once(record));
        let parts = all.filter_map(|record| Some((record, part_of(record, slot)?)));
        let (mut entries, mut bytes) = (0, 0);
        for (record, part) in parts {
            entries += 1;
            bytes += record.parity_bytes(part);
        }
        entries <= max_entries && bytes <= data_bytes
    };
    [record.p_slot, record.q_slot].into_iter().flatten().all(fits_on)
}

/// The length of the unit that a member gets of these records.
pub(super) fn unit_bytes(records: &[Record], slot: usize) -> usize {
    let parts = records.iter().filter_map(|record| Some((record, part_of(record, slot)?)));
    ppl::HEADER_BYTES + parts.map(|(record, part)| record.parity_bytes(part)).sum::<usize>()
}

/// Puts the partial parities of `parts` behind a header of 4096 bytes.
fn put_data<'a>(unit: &mut [u8], parts: impl Iterator<Item = (&'a Record, Part)>) {
    let mut at = ppl::HEADER_BYTES;
    for (record, part) in parts {
        if let Some(parity) = record.parity(part) {
            unit[at..at + parity.len()].copy_from_slice(parity);
            at += parity.len();
        }
    }
}

/// A unit of md's PPL, put into a buffer of its length ([`unit_bytes`]). `marks`: signature and
/// generation.
pub(super) fn ppl(
    mut unit: Buffer,
    geometry: &Geometry,
    marks: (u32, u64),
    records: &[Record],
) -> Option<SharedBuffer> {
    put_data(&mut unit, records.iter().map(|record| (record, Part::P)));
    let entry = |record: &Record| {
        let log = &record.log;
        let place = (log.within_bytes, log.len_bytes);
        let parity = log.p.as_ref().map(|parity| &parity[..]);
        ppl::Entry::new(geometry, log.row, (log.first, log.count), place, parity, log.checks)
    };
    let entries: Vec<_> = records.iter().map(entry).collect();
    let header = unit.first_chunk_mut::<{ ppl::HEADER_BYTES }>()?;
    ppl::put(header, marks.0, marks.1, &entries);
    Some(unit.freeze())
}

/// What a unit of the write log says of itself.
pub(super) struct WriteLogHeader {
    pub(super) array_uuid: [u8; 16],
    pub(super) generation: u64,
    pub(super) live_from: u64,
    pub(super) slot: usize,
}

/// A member's unit of the write log, put into a buffer of its length ([`unit_bytes`]).
pub(super) fn write_log(
    mut unit: Buffer,
    header: &WriteLogHeader,
    records: &[Record],
) -> SharedBuffer {
    let parts = records.iter().filter_map(|record| Some((record, part_of(record, header.slot)?)));
    put_data(&mut unit, parts.clone());
    let entry = |(record, part): (&Record, Part)| {
        let log = &record.log;
        write_log::Entry {
            row: log.row,
            within_bytes: u32::try_from(log.within_bytes).unwrap_or(u32::MAX),
            len_bytes: log.len_bytes,
            first: u16::try_from(log.first).unwrap_or(u16::MAX),
            count: u16::try_from(log.count).unwrap_or(u16::MAX),
            parity: match (record.parity(part), part) {
                (None, _) => write_log::Parity::None,
                (Some(_), Part::P) => write_log::Parity::P,
                (Some(_), Part::Q) => write_log::Parity::Q,
            },
            checks: log.checks,
        }
    };
    let header = write_log::Unit {
        array_uuid: header.array_uuid,
        generation: header.generation,
        live_from: header.live_from,
        slot: u32::try_from(header.slot).unwrap_or(u32::MAX),
        entries: parts.map(entry).collect(),
    };
    header.put(&mut unit);
    unit.freeze()
}
