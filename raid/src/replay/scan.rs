//! Finding what was under way in the members' logs.

use std::ops::Range;

use super::solve::RowPart;
use super::{Input, Renew};
use crate::array::{LogKind, LogPlace};
use crate::device::Medium;
use crate::geometry::Geometry;
use crate::metadata::checks::Checks;
use crate::metadata::ppl;
use crate::metadata::write_log::{self, Parity, Places, Unit};

/// What the logs say.
pub(super) struct Found {
    /// Parts of rows that were being written; no two overlap.
    pub(super) parts: Vec<RowPart>,
    /// Whether every member in use has a log that is whole.
    pub(super) is_complete: bool,
    /// By slot: what is to be done to empty it.
    pub(super) renew: Vec<Renew>,
    /// The highest number of any unit.
    pub(super) newest: Option<u64>,
}

/// Reads a range of a log; false if that cannot be read.
pub(crate) type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> bool;

pub(super) fn scan<M: Medium>(input: &Input<'_, M>) -> Found {
    match input.kind {
        LogKind::Ppl => scan_ppls(input),
        LogKind::WriteLog => scan_write_logs(input),
    }
}

/// A member's log.
struct MemberLog<'a, M> {
    medium: &'a M,
    place: LogPlace,
}

impl<'a, M: Medium> MemberLog<'a, M> {
    /// The one that a member has, if it does.
    fn of(input: &Input<'a, M>, slot: usize) -> Option<Self> {
        let member = input.members.get(slot)?.as_ref()?;
        Some(Self { medium: member.medium, place: member.log? })
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> bool {
        let end = at.checked_add(bytes.len() as u64);
        end.is_some_and(|end| end <= self.place.len_bytes)
            && self.medium.read_at(self.place.offset_bytes + at, bytes).is_ok()
    }
}

fn scan_ppls<M: Medium>(input: &Input<'_, M>) -> Found {
    let mut found = Found { parts: Vec::new(), is_complete: true, renew: Vec::new(), newest: None };
    let signature = ppl::signature(input.array_uuid);
    for slot in 0..input.geometry.members() {
        let is_in_use = input.members.get(slot).is_some_and(Option::is_some);
        let Some(log) = MemberLog::of(input, slot) else {
            found.is_complete &= !is_in_use;
            found.renew.push(Renew::Keep);
            continue;
        };
        let read = |at: u64, bytes: &mut [u8]| log.read(at, bytes);
        let Some(newest) = newest_ppl(&read, log.place.len_bytes, signature) else {
            found.is_complete = false;
            found.renew.push(Renew::Whole);
            continue;
        };
        found.newest = found.newest.max(Some(newest.header.generation));
        let is_empty = newest.offset_bytes == 0 && newest.header.entries.is_empty();
        found.renew.push(if is_empty { Renew::Keep } else { Renew::Mark });
        let first = found.parts.len();
        for part in ppl_parts(input.geometry, slot, &newest, &read) {
            add_uncovered(&mut found.parts, first, part);
        }
    }
    found
}

/// The unit of a PPL that counts.
pub(crate) struct NewestPpl {
    /// Its header.
    pub(crate) header: ppl::Header,
    /// Where it begins.
    pub(crate) offset_bytes: u64,
}

/// Finds the unit that counts, as md does; none if there is no log, or it cannot be read.
pub(crate) fn newest_ppl(read: Read<'_>, len_bytes: u64, signature: u32) -> Option<NewestPpl> {
    let mut newest: Option<NewestPpl> = None;
    let mut at = 0;
    while at + ppl::HEADER_BYTES as u64 <= len_bytes {
        let mut bytes = [0; ppl::HEADER_BYTES];
        if !read(at, &mut bytes) {
            // As md: what is behind it may be newer, and nothing can be said.
            return None;
        }
        let Ok(header) = ppl::Header::parse(&bytes) else { break };
        let is_older =
            newest.as_ref().is_some_and(|newest| newest.header.generation > header.generation);
        if header.signature != signature || is_older {
            break;
        }
        let next = at + header.unit_bytes();
        newest = Some(NewestPpl { header, offset_bytes: at });
        at = next;
    }
    newest
}

/// The parts of rows that a unit is about, the last entry first. An entry whose partial parity is
/// not whole was torn: none of its writes was submitted.
fn ppl_parts(geometry: &Geometry, slot: usize, unit: &NewestPpl, read: Read<'_>) -> Vec<RowPart> {
    let mut parts = Vec::new();
    let mut at = unit.offset_bytes + ppl::HEADER_BYTES as u64;
    for entry in &unit.header.entries {
        let mut parity = vec![0; entry.parity_bytes.min(ppl::MAX_DATA_BYTES as u32 * 8) as usize];
        let is_whole = read(at, &mut parity)
            && parity.len() == entry.parity_bytes as usize
            && ppl::crc32c(&parity) == entry.checksum;
        at += u64::from(entry.parity_bytes);
        let stripes = entry.stripes(geometry).unwrap_or_default();
        // They are of all that the entry is about.
        let is_one = matches!(&stripes[..], [stripe]
            if stripe.len_bytes * stripe.count as u64 == u64::from(entry.data_bytes));
        let checks = if is_one { entry.checks } else { Checks::NONE };
        if !is_whole || entry.parity_slot as usize != slot {
            continue;
        }
        parts.extend(stripes.into_iter().map(|stripe| {
            RowPart {
                row: stripe.row,
                within_bytes: stripe.within_bytes,
                len_bytes: stripe.len_bytes,
                modified: stripe.first..stripe.first + stripe.count,
                p: match stripe.parity_offset {
                    None => Some(vec![0; stripe.len_bytes as usize]),
                    Some(from) => parity
                        .get(from as usize..(from + stripe.len_bytes) as usize)
                        .map(<[u8]>::to_vec),
                },
                q: None,
                checks,
            }
        }));
    }
    parts.reverse();
    parts
}

/// A unit of a write log, and its data.
pub(crate) struct FoundUnit {
    /// What its header says.
    pub(crate) unit: Unit,
    /// Its data, those of all entries in a row.
    pub(crate) data: Vec<u8>,
}

/// All whole units of a member's write log; none if there is no log.
pub(crate) fn write_log_units(
    read: Read<'_>,
    len_bytes: u64,
    array_uuid: [u8; 16],
    slot: usize,
) -> Option<Vec<FoundUnit>> {
    let places = Places::new(len_bytes)?;
    let unit_at = |at: u64, most: usize| {
        let mut header = [0; write_log::HEADER_BYTES];
        if !read(at, &mut header) {
            return None;
        }
        let data = Unit::data_bytes(&header).filter(|data| *data <= most)?;
        let mut bytes = vec![0; write_log::HEADER_BYTES + data];
        if !read(at, &mut bytes) {
            return None;
        }
        let unit = Unit::parse(&bytes).ok()?;
        let is_ours = unit.array_uuid == array_uuid && unit.slot as usize == slot;
        is_ours.then(|| FoundUnit { unit, data: bytes.split_off(write_log::HEADER_BYTES) })
    };
    let mark = unit_at(0, 0)?;
    let units = (0..places.count()).map(|place| places.offset_bytes(place));
    let units = units.filter_map(|at| unit_at(at, places.data_bytes()));
    Some(std::iter::once(mark).chain(units).collect())
}

/// What is live of the units of all members: those that are not older than the newest statement of
/// what is done with.
pub(crate) fn live_from(units: &[FoundUnit]) -> u64 {
    units.iter().map(|found| found.unit.live_from).max().unwrap_or(0)
}

/// The units that a newer one shows to be done with: whoever logs a record waits until the units that
/// have one for any of the same part of a row are complete and flushed.
pub(crate) fn superseded(units: &[FoundUnit]) -> Vec<u64> {
    let overlap = |a: &write_log::Entry, b: &write_log::Entry| {
        let end =
            |entry: &write_log::Entry| u64::from(entry.within_bytes) + u64::from(entry.len_bytes);
        a.row == b.row && u64::from(a.within_bytes) < end(b) && u64::from(b.within_bytes) < end(a)
    };
    let is_done = |unit: &Unit| {
        let newer = units.iter().filter(|other| other.unit.generation > unit.generation);
        let mut newer = newer.flat_map(|other| &other.unit.entries);
        newer.any(|newer| unit.entries.iter().any(|entry| overlap(entry, newer)))
    };
    let done = units.iter().filter(|found| is_done(&found.unit));
    done.map(|found| found.unit.generation).collect()
}

/// An entry of a write log, of one member.
struct Logged {
    generation: u64,
    entry: write_log::Entry,
    data: Vec<u8>,
}

fn scan_write_logs<M: Medium>(input: &Input<'_, M>) -> Found {
    let mut found = Found { parts: Vec::new(), is_complete: true, renew: Vec::new(), newest: None };
    let mut units = Vec::new();
    let mut has_log = vec![false; input.geometry.members()];
    for (slot, has_log) in has_log.iter_mut().enumerate() {
        let is_in_use = input.members.get(slot).is_some_and(Option::is_some);
        let Some(log) = MemberLog::of(input, slot) else {
            found.is_complete &= !is_in_use;
            found.renew.push(Renew::Keep);
            continue;
        };
        let read = |at: u64, bytes: &mut [u8]| log.read(at, bytes);
        match write_log_units(&read, log.place.len_bytes, input.array_uuid, slot) {
            None => {
                found.is_complete = false;
                found.renew.push(Renew::Whole);
            }
            Some(of_member) => {
                // One that is being rebuilt may have come while the write was under way: that it
                // has no record proves nothing.
                let member = input.members.get(slot).and_then(Option::as_ref);
                *has_log = member.is_some_and(|m| m.readable_below_bytes == u64::MAX);
                let mark = of_member.iter().map(|found| found.unit.generation).max();
                let is_empty = of_member.first().is_some_and(|first| {
                    Some(first.unit.generation) == mark && first.unit.live_from >= mark.unwrap_or(0)
                });
                found.renew.push(if is_empty { Renew::Keep } else { Renew::Mark });
                found.newest = found.newest.max(mark);
                units.extend(of_member);
            }
        }
    }
    let live_from = live_from(&units);
    units.retain(|found| found.unit.generation >= live_from);
    let superseded = superseded(&units);
    units.retain(|found| !superseded.contains(&found.unit.generation));
    let mut logged: Vec<_> = units.iter().flat_map(entries_of).collect();
    // The newest first, and the records of P and Q together.
    let key = |l: &Logged| (l.entry.row, l.entry.within_bytes, l.entry.len_bytes, l.entry.first);
    logged.sort_by_key(|logged| (std::cmp::Reverse(logged.generation), key(logged)));
    for record in logged.chunk_by(|a, b| a.generation == b.generation && key(a) == key(b)) {
        if let Some(part) = write_log_part(input, &has_log, record) {
            add_uncovered(&mut found.parts, 0, part);
        }
    }
    found
}

/// The entries of a unit with their data.
fn entries_of(found: &FoundUnit) -> Vec<Logged> {
    let mut at = 0;
    let entry = |entry: &write_log::Entry| {
        let from = at;
        at += entry.data_bytes();
        let data = found.data.get(from..at).unwrap_or_default().to_vec();
        Logged { generation: found.unit.generation, entry: *entry, data }
    };
    found.unit.entries.iter().map(entry).collect()
}

/// What the entries of one record, on one or two members, say together; nothing if they do not fit
/// the array, or the record did not become durable on all members that it was for.
fn write_log_part<M: Medium>(
    input: &Input<'_, M>,
    has_log: &[bool],
    record: &[Logged],
) -> Option<RowPart> {
    let geometry = input.geometry;
    let first = record.first()?;
    let entry = &first.entry;
    let modified = usize::from(entry.first)..usize::from(entry.first) + usize::from(entry.count);
    let (within, len) = (u64::from(entry.within_bytes), u64::from(entry.len_bytes));
    let fits = entry.row < geometry.rows()
        && within + len <= geometry.chunk_bytes()?
        && len > 0
        && !modified.is_empty()
        && modified.end <= geometry.data_chunks();
    if !fits {
        return None;
    }
    let slots = [Some(geometry.parity_slot(entry.row)), geometry.q_slot(entry.row)];
    let is_whole = modified.len() == geometry.data_chunks();
    let data = |parity: Parity| {
        let found = record.iter().find(|logged| logged.entry.parity == parity);
        found.map(|logged| logged.data.clone())
    };
    let (p, q) = if is_whole {
        // Two entries of the same kind, unless a member is not there.
        let zeros = vec![0; len as usize];
        let on = slots.into_iter().flatten().filter(|&slot| has_log[slot]).count();
        if record.len() < on {
            return None;
        }
        (Some(zeros.clone()), Some(zeros))
    } else {
        (data(Parity::P), data(Parity::Q))
    };
    let is_durable = |slot: Option<usize>, parity: &Option<Vec<u8>>| {
        slot.is_none_or(|slot| !has_log[slot] || parity.is_some())
    };
    (is_durable(slots[0], &p) && is_durable(slots[1], &q)).then_some(RowPart {
        row: entry.row,
        within_bytes: within,
        len_bytes: len,
        modified,
        p,
        q,
        checks: entry.checks,
    })
}

/// Adds those parts of `part` that none of `parts[first..]` covers: they are newer.
fn add_uncovered(parts: &mut Vec<RowPart>, first: usize, part: RowPart) {
    let whole = part.within_bytes..part.within_bytes + part.len_bytes;
    let mut uncovered: Vec<Range<u64>> = vec![whole];
    for newer in parts[first..].iter().filter(|newer| newer.row == part.row) {
        let (from, to) = (newer.within_bytes, newer.within_bytes + newer.len_bytes);
        uncovered = uncovered
            .into_iter()
            .flat_map(|range| [range.start..range.end.min(from), range.start.max(to)..range.end])
            .filter(|range| range.start < range.end)
            .collect();
    }
    parts.extend(uncovered.into_iter().map(|range| part.cut(&range)));
}
