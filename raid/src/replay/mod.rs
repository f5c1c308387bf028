//! What the logs of writes under way are for: after an unclean stop, before the array is served,
//! the parity of every part of a row that was being written is made right.
//!
//! 1. [`plan`] reads the members' logs ([`scan`]), finds what was being written, reads the chunks
//!    concerned and decides ([`solve`]): which parity is to be written, and which cannot be known.
//!    It changes nothing.
//! 2. The caller makes [`Plan::bad`] durable in the superblocks, before anything else: parity that
//!    cannot be known, because a member is missing whose blocks were being written together with
//!    others of their row, and what is there of that is neither all nor nothing. Those blocks read as
//!    an error until they are written again. All others are safe: what the log has of them does not
//!    depend on what of the writes has happened.
//! 3. [`apply`] writes the parity, flushes the members, and empties the logs.
//!
//! After a crash at any point all of it is done again, with the same result: what is decided
//! depends on data chunks and the log, which the replay does not change, and on parity only where
//! that is left as it is (of P and Q perhaps one, which the other is made to fit).
//!
//! Logs are emptied at every start, also after a clean stop: [`apply`] then has nothing else to do.
//!
//! What is not known: which of the writes have happened. A block that was being written has its
//! old or its new contents afterwards.

pub(crate) mod scan;
mod solve;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;

use thiserror::Error;

use crate::array::{LogKind, LogPlace};
use crate::device::Medium;
use crate::geometry::Geometry;
use crate::metadata::{ppl, write_log};
use solve::{RowPart, Verdict};

/// What is zeroed at a time.
const ZERO_BYTES: u64 = 64 << 10;

/// A member that is in use: in sync, or being rebuilt.
pub struct Member<'a, M> {
    /// Its drive.
    pub medium: &'a M,
    /// Where its data area begins.
    pub data_offset_bytes: u64,
    /// Where its log is; none if it cannot be believed, or was never written.
    pub log: Option<LogPlace>,
    /// Its data area holds what it should below this offset (`u64::MAX`: everywhere).
    pub readable_below_bytes: u64,
    /// Ranges of its data area that hold nothing to be believed.
    pub bad: &'a [Range<u64>],
}

/// An array whose logs are to be replayed.
pub struct Input<'a, M> {
    /// Its shape: RAID 5 or 6.
    pub geometry: &'a Geometry,
    /// Its UUID.
    pub array_uuid: [u8; 16],
    /// Its log.
    pub kind: LogKind,
    /// The unit in which the array is read and written: its members' largest block.
    pub block_bytes: u32,
    /// Whether it was stopped uncleanly. If not, the logs are only emptied.
    pub is_dirty: bool,
    /// The members in use, by slot.
    pub members: &'a [Option<Member<'a, M>>],
}

/// A part of a member's data area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The member's slot.
    pub slot: usize,
    /// Range of its data area, in bytes.
    pub range: Range<u64>,
}

/// What is to be done.
#[derive(Debug)]
pub struct Plan {
    /// Parity that cannot be known: to be recorded as bad blocks *before* [`apply`]. Disjoint and
    /// in order for each slot.
    pub bad: Vec<Piece>,
    /// Whether the log of every member in use is whole. If not, and the array was stopped
    /// uncleanly, any parity may be wrong all the same.
    pub is_complete: bool,
    /// Writes that were under way, by parts of rows.
    pub replayed: usize,
    /// The parity to write.
    fixes: Vec<(Piece, Vec<u8>)>,
    /// By slot: whether its log must be written anew.
    renew: Vec<Renew>,
    /// The number of the marks that empty the logs.
    generation: u64,
}

/// What has to be done to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renew {
    /// It is empty.
    Keep,
    /// A mark makes it empty.
    Mark,
    /// There is no saying what is in it.
    Whole,
}

impl Plan {
    /// The number of the first unit that may be written after [`apply`]: for
    /// [`crate::array::LogLayout`].
    #[must_use]
    pub fn next_generation(&self) -> u64 {
        self.generation + 1
    }

    /// The parity that [`apply`] will write.
    pub fn fixes(&self) -> impl Iterator<Item = &Piece> {
        self.fixes.iter().map(|(piece, _)| piece)
    }
}

/// Why a replay did not get through: the member has failed. Without it a new plan can be made.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// A member did not write.
    #[error("member {slot} did not take the repaired parity, or a new log: {source}")]
    Write {
        /// Its slot.
        slot: usize,
        /// What its drive said.
        source: io::Error,
    },
    /// A member did not flush.
    #[error("member {slot} did not flush the repaired parity: {source}")]
    Flush {
        /// Its slot.
        slot: usize,
        /// What its drive said.
        source: io::Error,
    },
}

/// Reads the logs and what they are about, and decides. Changes nothing. A member whose log cannot
/// be read counts as one without; chunks that cannot be read, as missing.
#[must_use]
pub fn plan<M: Medium>(input: &Input<'_, M>) -> Plan {
    let found = scan::scan(input);
    let mut plan = Plan {
        bad: Vec::new(),
        is_complete: found.is_complete,
        replayed: 0,
        fixes: Vec::new(),
        renew: found.renew,
        generation: found.newest.map_or(1, |newest| newest.saturating_add(1)),
    };
    if !input.is_dirty {
        return plan;
    }
    for part in &found.parts {
        plan.replayed += 1;
        decide(input, part, &mut plan);
    }
    join(&mut plan.bad);
    plan
}

/// Decides about a part of a row, block by block, and adds what is to be done to the plan.
fn decide<M: Medium>(input: &Input<'_, M>, part: &RowPart, plan: &mut Plan) {
    let start = input.geometry.row_component_offset(part.row) + part.within_bytes;
    let chunks = Chunks::read(input, part.row, start, part.len_bytes);
    let p_slot = input.geometry.parity_slot(part.row);
    let slots = [Some(p_slot), input.geometry.q_slot(part.row)];
    let here = |slot: usize| input.members.get(slot).is_some_and(Option::is_some);
    let ranges = block_ranges(start, part.len_bytes, u64::from(input.block_bytes).max(1));
    let data: Vec<_> = ranges.iter().map(|range| chunks.data(range)).collect();
    let blocks: Vec<_> = ranges
        .iter()
        .zip(&data)
        .map(|(range, data)| solve::Block {
            part,
            range: range.clone(),
            data,
            p: chunks.parity(0, range),
            q: chunks.parity(1, range),
        })
        .collect();
    let known = solve::identify(part, &blocks);
    for block in &blocks {
        let verdict = match &known {
            Some(known) => solve::fit(block, known),
            None => solve::solve(block),
        };
        let (from, to) = (block.range.start as u64, block.range.end as u64);
        let piece = |slot| Piece { slot, range: start + from..start + to };
        let present = slots.into_iter().flatten().filter(|&slot| here(slot));
        match verdict {
            Verdict::Keep => {}
            Verdict::Unknown => plan.bad.extend(present.map(piece)),
            Verdict::Write(parities) => {
                for (slot, bytes) in slots.into_iter().zip(parities) {
                    if let (Some(slot), Some(bytes)) = (slot.filter(|&slot| here(slot)), bytes) {
                        add_fix(&mut plan.fixes, piece(slot), bytes);
                    }
                }
            }
        }
    }
}

/// The blocks of a part that begins at `start` on the members, as ranges in it.
fn block_ranges(start: u64, len_bytes: u64, block_bytes: u64) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < len_bytes {
        let len = (block_bytes - (start + at) % block_bytes).min(len_bytes - at);
        ranges.push(at as usize..(at + len) as usize);
        at += len;
    }
    ranges
}

/// Adds a write, joined to the one before it on the same member if they touch.
fn add_fix(fixes: &mut Vec<(Piece, Vec<u8>)>, piece: Piece, bytes: Vec<u8>) {
    let before = fixes
        .iter_mut()
        .rev()
        .take(2)
        .find(|(before, _)| before.slot == piece.slot && before.range.end == piece.range.start);
    match before {
        Some((before, data)) => {
            before.range.end = piece.range.end;
            data.extend(bytes);
        }
        None => fixes.push((piece, bytes)),
    }
}

/// Sorts pieces and joins those that touch.
fn join(pieces: &mut Vec<Piece>) {
    pieces.sort_by_key(|piece| (piece.slot, piece.range.start));
    pieces.dedup_by(|next, before| {
        let touch = before.slot == next.slot && next.range.start <= before.range.end;
        if touch {
            before.range.end = before.range.end.max(next.range.end);
        }
        touch
    });
}

/// The chunks of a row in a range of the members' data areas, as far as they can be read.
struct Chunks {
    /// Data chunks by index, then P, then Q.
    chunks: Vec<Chunk>,
    data: usize,
}

/// The bytes of one chunk, and which of them mean something.
struct Chunk {
    bytes: Vec<u8>,
    unreadable: Vec<Range<usize>>,
}

impl Chunks {
    fn read<M: Medium>(input: &Input<'_, M>, row: u64, start: u64, len: u64) -> Self {
        let geometry = input.geometry;
        let data = geometry.data_chunks();
        let slots = (0..data).map(|index| geometry.data_slot(row, index));
        let parities = [Some(geometry.parity_slot(row)), geometry.q_slot(row)];
        let slots = slots.chain(parities.into_iter().flatten());
        let chunk = |slot: usize| {
            let member = input.members.get(slot).and_then(Option::as_ref);
            Chunk::read(member, start, len, input.block_bytes)
        };
        Self { chunks: slots.map(chunk).collect(), data }
    }

    fn data(&self, range: &Range<usize>) -> Vec<Option<&[u8]>> {
        self.chunks.iter().take(self.data).map(|chunk| chunk.get(range)).collect()
    }

    /// P (0) or Q (1).
    fn parity(&self, which: usize, range: &Range<usize>) -> Option<&[u8]> {
        self.chunks.get(self.data + which)?.get(range)
    }
}

impl Chunk {
    fn read<M: Medium>(
        member: Option<&Member<'_, M>>,
        start: u64,
        len: u64,
        block_bytes: u32,
    ) -> Self {
        let mut chunk = Self { bytes: vec![0; len as usize], unreadable: Vec::new() };
        let whole = 0..chunk.bytes.len();
        let Some(member) = member else {
            chunk.unreadable.push(whole);
            return chunk;
        };
        let place = member.data_offset_bytes + start;
        if member.medium.read_at(place, &mut chunk.bytes).is_err() {
            // Block by block, so that no more is missing than has to be.
            let block = block_bytes.max(512) as usize;
            let mut at = 0;
            while at < whole.end {
                let to = (at + block - (start as usize + at) % block).min(whole.end);
                let bytes = &mut chunk.bytes[at..to];
                if member.medium.read_at(place + at as u64, bytes).is_err() {
                    chunk.unreadable.push(at..to);
                }
                at = to;
            }
        }
        let unknown = std::iter::once(member.readable_below_bytes..u64::MAX);
        for bad in unknown.chain(member.bad.iter().cloned()) {
            let (from, to) = (bad.start.max(start), bad.end.min(start + len));
            if from < to {
                chunk.unreadable.push((from - start) as usize..(to - start) as usize);
            }
        }
        chunk
    }

    fn get(&self, range: &Range<usize>) -> Option<&[u8]> {
        let overlaps = |other: &Range<usize>| other.start < range.end && range.start < other.end;
        let bytes = self.bytes.get(range.clone());
        bytes.filter(|_| !self.unreadable.iter().any(overlaps))
    }
}

/// Writes the parity of a plan, makes it durable, and empties the logs. [`Plan::bad`] is recorded.
///
/// # Errors
/// If a member does not write or flush. The logs are as they were, or a part of them is empty: then
/// what they were about is durable.
pub fn apply<M: Medium>(input: &Input<'_, M>, plan: &Plan) -> Result<(), ReplayError> {
    let member = |slot: usize| input.members.get(slot).and_then(Option::as_ref);
    for (piece, bytes) in &plan.fixes {
        let Some(member) = member(piece.slot) else { continue };
        let at = member.data_offset_bytes + piece.range.start;
        write_blocks(member, at, bytes, input.block_bytes)
            .map_err(|source| ReplayError::Write { slot: piece.slot, source })?;
    }
    for (slot, member) in input.members.iter().enumerate() {
        // All of them: the log also covers data that was written before the stop, and is in the
        // cache of a drive still.
        if let (Some(member), true) = (member, input.is_dirty) {
            member.medium.flush().map_err(|source| ReplayError::Flush { slot, source })?;
        }
    }
    for (slot, renew) in plan.renew.iter().enumerate() {
        let Some((member, place)) = member(slot).and_then(|m| Some((m, m.log?))) else { continue };
        let error = |source| ReplayError::Write { slot, source };
        if *renew == Renew::Whole {
            zero(member.medium, place).map_err(error)?;
        }
        if *renew != Renew::Keep {
            let mark = mark(input.kind, input.array_uuid, slot, plan.generation);
            member.medium.write_durable(place.offset_bytes, &mark[..]).map_err(error)?;
        }
    }
    Ok(())
}

/// Writes, in whole blocks of 4096 bytes, what may be less at either end. Where what is beside it
/// there cannot be read, only what is to be written is, if that is in whole blocks of the array.
fn write_blocks<M: Medium>(
    member: &Member<'_, M>,
    at: u64,
    bytes: &[u8],
    block_bytes: u32,
) -> io::Result<()> {
    let (start, end) = (at - at % 4096, (at + bytes.len() as u64).next_multiple_of(4096));
    if (start, end) == (at, at + bytes.len() as u64) {
        return member.medium.write_durable(at, bytes);
    }
    let mut whole = vec![0; (end - start) as usize];
    if let Err(error) = member.medium.read_at(start, &mut whole) {
        let block = u64::from(block_bytes).max(512);
        if at.is_multiple_of(block) && (bytes.len() as u64).is_multiple_of(block) {
            return member.medium.write_durable(at, bytes);
        }
        return Err(error);
    }
    whole[(at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
    member.medium.write_durable(start, &whole)
}

/// Makes an empty log of a new member's, or of a member's that comes back. The array does not use
/// it yet.
///
/// # Errors
/// The drive's.
pub fn create<M: Medium>(
    medium: &M,
    kind: LogKind,
    array_uuid: [u8; 16],
    slot: usize,
    place: LogPlace,
) -> io::Result<()> {
    zero(medium, place)?;
    medium.write_durable(place.offset_bytes, &mark(kind, array_uuid, slot, 0)[..])
}

/// The bytes that begin an empty log.
#[must_use]
pub fn mark(
    kind: LogKind,
    array_uuid: [u8; 16],
    slot: usize,
    generation: u64,
) -> Box<[u8; ppl::HEADER_BYTES]> {
    match kind {
        LogKind::Ppl => ppl::Header::empty(ppl::signature(array_uuid), generation).to_bytes(),
        LogKind::WriteLog => {
            let mut bytes = Box::new([0; write_log::HEADER_BYTES]);
            let slot = u32::try_from(slot).unwrap_or(u32::MAX);
            write_log::Unit::mark(array_uuid, generation, slot).put(&mut bytes[..]);
            bytes
        }
    }
}

fn zero<M: Medium>(medium: &M, place: LogPlace) -> io::Result<()> {
    if medium.zero_cheaply(place.offset_bytes, place.len_bytes)? {
        return Ok(());
    }
    let zeros = vec![0; ZERO_BYTES as usize];
    for at in (0..place.len_bytes).step_by(ZERO_BYTES as usize) {
        let len = ZERO_BYTES.min(place.len_bytes - at) as usize;
        medium.write_durable(place.offset_bytes + at, &zeros[..len])?;
    }
    Ok(())
}
