//! The log of writes under way to parity levels: md's PPL for RAID 5, our write log for RAID 6.
//!
//! Records of all cores go into *units*, each of which is one write to the members concerned. Who
//! has a record to log and finds nobody writing takes all that wait and writes them for everybody:
//! so units grow with the load, and a member sees one log write for many writes of rows. A unit is
//! *live* until all that it covers has completed, and has been flushed on the members.
//!
//! * **PPL**: every member has its own sequence of units, for the rows whose parity it holds, and
//!   one of them is live at a time, since md replays no other.
//! * **Write log**: the array has one sequence. A unit is written to every member that holds P or Q
//!   of its rows. Several are live, each in its own place, and each says which is the oldest. Were
//!   there a sequence for each member as well, two rows could each hold the one that the other
//!   waits for.
//!
//! **What a record relies on is durable.** Its partial parity is of chunks as they are read now. So
//! a record for the same part of a row as one of a live unit waits until what that one covers is
//! flushed: a loss of power must not take back what the partial parity was computed from.
//!
//! **Failures.** A member that does not take its unit has failed, and that is durable before the
//! writes go on without it. A flush that fails is durable as a failure before the unit's place is
//! used again.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::super::error::{ArrayError, WriteFailure};
use super::layout::{LogKind, LogLayout, LogPlace};
use super::members::{Members, Memory, flush_all, write_all, write_new};
use super::unit::{self, Part};
use super::{LogRecord, MAX_BUFFER_BYTES};
use crate::buffer::{Buffer, SharedBuffer};
use crate::geometry::Geometry;
use crate::metadata::write_log::Places;
use crate::metadata::{ppl, write_log};
use crate::mutation::mutation;

/// The largest unit that is written: so that its buffer is a block of this size.
const MAX_UNIT_BYTES: u64 = MAX_BUFFER_BYTES as u64;
/// Where in a PPL units begin, behind the first header, which stays.
const PPL_UNITS_FROM: u64 = ppl::HEADER_BYTES as u64;
/// Smaller PPLs have no header that stays.
const SMALL_PPL_BYTES: u64 = 72 << 10;
/// What is zeroed at a time.
const ZERO_BYTES: u64 = 64 << 10;
const NOWHERE: u64 = u64::MAX;

/// See the file's head.
pub(super) struct Log {
    kind: LogKind,
    geometry: Geometry,
    array_uuid: [u8; 16],
    /// PPL: by slot. Write log: one.
    sequences: Box<[Mutex<Sequence>]>,
    /// Each member's place, by slot: offset on the drive and length.
    places: Box<[(AtomicU64, AtomicU64)]>,
}

/// Units in the order of their numbers.
struct Sequence {
    /// Records that wait, in order of their tickets.
    pending: VecDeque<Record>,
    first_pending: u64,
    is_led: bool,
    is_abandoned: bool,
    /// Oldest first.
    live: VecDeque<Live>,
    next_generation: u64,
    /// PPL: where in the member's place the next unit begins.
    position: u64,
    /// Where the newest unit is.
    position_before: u64,
    waiting: Vec<(u64, Waker)>,
}

/// A record with what is needed to put it into units.
pub(super) struct Record {
    pub(super) log: LogRecord,
    /// Slots of P and Q, as far as they are to have it.
    pub(super) p_slot: Option<usize>,
    pub(super) q_slot: Option<usize>,
}

impl Record {
    fn overlaps(&self, place: &Covered) -> bool {
        let end = self.log.within_bytes + u64::from(self.log.len_bytes);
        self.log.row == place.row
            && self.log.within_bytes < place.within.end
            && place.within.start < end
    }
}

/// A part of a row.
struct Covered {
    row: u64,
    within: Range<u64>,
}

/// A unit that has been begun and is not done with.
struct Live {
    generation: u64,
    tickets: Range<u64>,
    covers: Vec<Covered>,
    state: UnitState,
    /// Records whose writes have not completed.
    open: usize,
    /// All that it covers is durable.
    is_flushed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UnitState {
    BeingWritten,
    Durable,
    Failed(ArrayError),
}

/// See [`super::LogToken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitToken {
    sequence: usize,
    generation: u64,
}

/// What somebody with a record in a sequence does next.
enum Next {
    Lead,
    Ended(Result<UnitToken, ArrayError>),
}

impl Log {
    /// A log that is empty on all members.
    pub(super) fn new(geometry: &Geometry, layout: &LogLayout) -> Self {
        let members = geometry.members();
        let sequences = if layout.kind == LogKind::Ppl { members } else { 1 };
        let sequence = || Sequence {
            pending: VecDeque::with_capacity(64),
            first_pending: 0,
            is_led: false,
            is_abandoned: false,
            live: VecDeque::with_capacity(8),
            next_generation: layout.next_generation,
            position: 0,
            position_before: 0,
            waiting: Vec::with_capacity(64),
        };
        let place = |slot: usize| {
            let place = layout.places.get(slot).copied().flatten();
            let place = place.unwrap_or(LogPlace { offset_bytes: NOWHERE, len_bytes: 0 });
            (AtomicU64::new(place.offset_bytes), AtomicU64::new(place.len_bytes))
        };
        Self {
            kind: layout.kind,
            geometry: *geometry,
            array_uuid: layout.array_uuid,
            sequences: (0..sequences).map(|_| Mutex::new(sequence())).collect(),
            places: (0..members).map(place).collect(),
        }
    }

    fn place(&self, slot: usize) -> Option<LogPlace> {
        let (offset, len) = self.places.get(slot)?;
        let offset_bytes = offset.load(Ordering::SeqCst);
        let len_bytes = len.load(Ordering::SeqCst);
        (offset_bytes != NOWHERE).then_some(LogPlace { offset_bytes, len_bytes })
    }

    fn places(&self) -> impl Iterator<Item = LogPlace> {
        (0..self.places.len()).filter_map(|slot| self.place(slot))
    }

    /// The most data in a unit of any member.
    fn unit_data_bytes(&self) -> usize {
        let most = MAX_UNIT_BYTES - ppl::HEADER_BYTES as u64;
        let data = self.places().map(|place| match self.kind {
            LogKind::Ppl => {
                let room = place.len_bytes.saturating_sub(units_from(&place));
                room.saturating_sub(ppl::HEADER_BYTES as u64).min(most)
            }
            LogKind::WriteLog => {
                Places::new(place.len_bytes).map_or(0, |places| places.data_bytes() as u64)
            }
        });
        usize::try_from(data.min().unwrap_or(0)).unwrap_or(usize::MAX)
    }

    /// See [`super::Intent::max_record_bytes`].
    pub(super) fn max_record_bytes(&self) -> usize {
        let bytes = self.unit_data_bytes();
        bytes - bytes % 4096
    }

    /// Units that may be live at once in a sequence.
    fn depth(&self) -> usize {
        match self.kind {
            LogKind::Ppl => 1,
            LogKind::WriteLog => {
                let counts = self.places().filter_map(|place| Places::new(place.len_bytes));
                counts.map(|places| places.count() as usize).min().unwrap_or(1)
            }
        }
    }

    fn sequence(&self, index: usize) -> MutexGuard<'_, Sequence> {
        self.sequences[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`super::Intent::log`]; nothing if no member has to have the record.
    pub(super) async fn log(
        &self,
        members: &impl Members,
        record: LogRecord,
    ) -> Result<Option<UnitToken>, ArrayError> {
        let is_whole = record.count == self.geometry.data_chunks();
        let slots = [Some(self.geometry.parity_slot(record.row)), self.geometry.q_slot(record.row)];
        if slots.into_iter().flatten().any(|slot| !members.is_writable(slot)) {
            // Were it believed at the next start, it would have neither parity nor record.
            members.settled().await?;
        }
        let has_place = |slot: &usize| members.is_writable(*slot) && self.place(*slot).is_some();
        let p_slot = slots[0].filter(|_| is_whole || record.p.is_some()).filter(has_place);
        let q_slot = slots[1].filter(|_| !mutation!("log-without-q"));
        let q_slot = q_slot.filter(|_| is_whole || record.q.is_some()).filter(has_place);
        let index = match (self.kind, p_slot, q_slot) {
            (_, None, None) | (LogKind::Ppl, None, _) => return Ok(None),
            (LogKind::Ppl, Some(slot), _) => slot,
            (LogKind::WriteLog, ..) => 0,
        };
        if mutation!("write-before-log-record")
            || mutation!("no-log-while-degraded") && members.is_degraded()
        {
            return Ok(None);
        }
        let ticket = self.sequence(index).enter(Record { log: record, p_slot, q_slot });
        loop {
            let next = poll_fn(|cx| {
                let mut sequence = self.sequence(index);
                match sequence.next(index, ticket, self.depth()) {
                    Some(next) => Poll::Ready(next),
                    None => {
                        sequence.wait(ticket, cx.waker());
                        Poll::Pending
                    }
                }
            })
            .await;
            match next {
                Next::Ended(result) => return result.map(Some),
                Next::Lead => Box::pin(self.lead(members, index)).await,
            }
        }
    }

    /// See [`super::Intent::logged_end`].
    pub(super) fn end(&self, token: UnitToken) {
        self.sequence(token.sequence).end(token.generation);
    }

    /// Writes one unit, with all that wait for it if they fit in; the turn to do so was taken.
    async fn lead(&self, members: &impl Members, index: usize) {
        let lead = Lead { log: self, index, ended: false };
        if let Err(error) = self.make_room(members, index).await {
            // The array is beyond help: whoever waits is told.
            lead.end(|sequence| sequence.fail_pending(error));
            return;
        }
        let mut result = Err(ArrayError::NotReady);
        let mut generation = None;
        // With little memory fewer go together, and one alone waits until there is some.
        for most in [usize::MAX, 4, 1] {
            let limits = Limits { most, data_bytes: self.unit_data_bytes(), depth: self.depth() };
            let Some(batch) = self.sequence(index).begin_unit(self.kind, &limits) else { break };
            let slots = self.slots_of(index, &batch);
            let sizes = slots.iter().map(|&slot| unit::unit_bytes(&batch.records, slot) as u32);
            let sizes: Vec<_> = sizes.collect();
            let memory = match (most, Memory::at_once(members, &sizes)) {
                (_, Some(memory)) => Ok(memory),
                (1, None) => Memory::take(members, &sizes).await,
                (_, None) => {
                    self.sequence(index).take_back(batch);
                    continue;
                }
            };
            generation = Some(batch.generation);
            result = match memory {
                Ok(memory) => self.write_units(members, index, batch, (slots, memory)).await,
                Err(error) => Err(error),
            };
            break;
        }
        lead.end(|sequence| {
            if let Some(generation) = generation {
                sequence.written(generation, result);
            }
        });
    }

    /// Writes the units of a batch, each in its buffer.
    async fn write_units(
        &self,
        members: &impl Members,
        index: usize,
        batch: Batch,
        (slots, memory): (Vec<usize>, Memory<'_>),
    ) -> Result<(), ArrayError> {
        let Memory { buffers, claim } = memory;
        let writes = self.units(members, index, &batch, slots.into_iter().zip(buffers));
        drop(batch);
        let result = write_all(members, writes.into_iter()).await;
        drop(claim);
        result
    }

    /// Flushes the members if what is in the way of the next unit only waits for that.
    async fn make_room(&self, members: &impl Members, index: usize) -> Result<(), ArrayError> {
        let done = self.sequence(index).to_flush(self.depth());
        let Some(done) = done else { return Ok(()) };
        if !mutation!("reuse-log-without-flush") {
            flush_all(members).await;
            // A member that could not is out before what it may have lost ceases to be covered.
            members.settled().await?;
        }
        self.sequence(index).flushed(&done);
        Ok(())
    }

    /// The members that get a unit of a batch.
    fn slots_of(&self, index: usize, batch: &Batch) -> Vec<usize> {
        if self.kind == LogKind::Ppl {
            return vec![index];
        }
        let slots = batch.records.iter().flat_map(|record| [record.p_slot, record.q_slot]);
        let mut slots: Vec<_> = slots.flatten().collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// The units of a batch with their places, by member, for those that still take writes.
    fn units(
        &self,
        members: &impl Members,
        index: usize,
        batch: &Batch,
        buffers: impl Iterator<Item = (usize, Buffer)>,
    ) -> Vec<(usize, u64, SharedBuffer)> {
        let unit = |(slot, buffer): (usize, Buffer)| {
            let place = self.place(slot)?;
            let (at, unit) = if self.kind == LogKind::Ppl {
                let marks = (ppl::signature(self.array_uuid), batch.generation);
                let len_bytes = buffer.len() as u64;
                let unit = unit::ppl(buffer, &self.geometry, marks, &batch.records)?;
                (self.sequence(index).ppl_position(&place, len_bytes), unit)
            } else {
                let header = unit::WriteLogHeader {
                    array_uuid: self.array_uuid,
                    generation: batch.generation,
                    live_from: batch.live_from,
                    slot,
                };
                let places = Places::new(place.len_bytes)?;
                let unit = unit::write_log(buffer, &header, &batch.records);
                (places.offset_bytes(batch.generation), unit)
            };
            members.is_writable(slot).then_some((slot, place.offset_bytes + at, unit))
        };
        buffers.filter_map(unit).collect()
    }

    /// Empties the log of a member that is about to take writes: whatever it held is of a time
    /// when it was in use before.
    pub(super) async fn admit(
        &self,
        members: &impl Members,
        slot: usize,
        place: LogPlace,
    ) -> Result<(), ArrayError> {
        let Some((offset, len)) = self.places.get(slot) else { return Ok(()) };
        let piece = ZERO_BYTES.min(place.len_bytes.next_multiple_of(4096));
        let sizes = [piece as u32, ppl::HEADER_BYTES as u32];
        let Memory { mut buffers, claim } = Memory::take(members, &sizes).await?;
        let (Some(mut mark), Some(mut zeros)) = (buffers.pop(), buffers.pop()) else {
            return Err(ArrayError::NotReady);
        };
        zeros.fill(0);
        let zeros = zeros.freeze();
        for at in (0..place.len_bytes).step_by(piece as usize) {
            let data = zeros.slice(..piece.min(place.len_bytes - at) as usize);
            write_new(members, slot, place.offset_bytes + at, data).await?;
        }
        drop(zeros);
        match self.kind {
            LogKind::Ppl => {
                let mut sequence = self.sequence(slot);
                let generation = sequence.next_generation;
                sequence.next_generation += 1;
                sequence.position = 0;
                let header = ppl::Header::empty(ppl::signature(self.array_uuid), generation);
                mark.copy_from_slice(&header.to_bytes()[..]);
            }
            LogKind::WriteLog => {
                // Nothing older than what is live now is on it, and nothing newer.
                let oldest = self.sequence(0).oldest_live();
                let slot = u32::try_from(slot).unwrap_or(u32::MAX);
                write_log::Unit::mark(self.array_uuid, oldest, slot).put(&mut mark);
            }
        }
        let mark = mark.freeze();
        write_new(members, slot, place.offset_bytes, mark).await?;
        drop(claim);
        len.store(place.len_bytes, Ordering::SeqCst);
        offset.store(place.offset_bytes, Ordering::SeqCst);
        Ok(())
    }
}

/// Where in a PPL units begin.
fn units_from(place: &LogPlace) -> u64 {
    if place.len_bytes < SMALL_PPL_BYTES { 0 } else { PPL_UNITS_FROM }
}

/// What bounds a unit.
struct Limits {
    most: usize,
    data_bytes: usize,
    depth: usize,
}

/// Records that go into one unit.
struct Batch {
    generation: u64,
    live_from: u64,
    records: Vec<Record>,
}

impl Sequence {
    fn enter(&mut self, record: Record) -> u64 {
        self.pending.push_back(record);
        self.first_pending + self.pending.len() as u64 - 1
    }

    /// What the one with that ticket does now; nothing if he waits.
    fn next(&mut self, sequence: usize, ticket: u64, depth: usize) -> Option<Next> {
        if self.is_abandoned {
            let error = ArrayError::WriteFailed(WriteFailure::ArrayFailed);
            return Some(Next::Ended(Err(error)));
        }
        if ticket < self.first_pending {
            let unit = self.live.iter().find(|unit| unit.tickets.contains(&ticket))?;
            let token = UnitToken { sequence, generation: unit.generation };
            return match unit.state {
                UnitState::BeingWritten => None,
                UnitState::Durable => Some(Next::Ended(Ok(token))),
                UnitState::Failed(error) => {
                    self.end(token.generation);
                    Some(Next::Ended(Err(error)))
                }
            };
        }
        if self.is_led || !self.can_go_on(depth) {
            return None;
        }
        self.is_led = true;
        Some(Next::Lead)
    }

    /// Whether a unit can be begun, or can after a flush.
    fn can_go_on(&self, depth: usize) -> bool {
        let has_room = self.has_room(depth) || self.live.front().is_some_and(|u| u.open == 0);
        let first = self.pending.front();
        let is_first_free = first.is_none_or(|first| {
            let mut in_the_way = self.live.iter().filter(|unit| unit.is_in_the_way(first));
            in_the_way.all(|unit| unit.open == 0)
        });
        has_room && is_first_free
    }

    /// Whether the next unit's place is not that of one that is live.
    fn has_room(&self, depth: usize) -> bool {
        let oldest = self.live.front().filter(|_| !mutation!("reuse-log-under-writes"));
        oldest.is_none_or(|unit| self.next_generation - unit.generation < depth as u64)
    }

    /// The units that a flush completes, if the next one needs that.
    fn to_flush(&self, depth: usize) -> Option<Vec<u64>> {
        let is_needed = !self.has_room(depth)
            || self.pending.iter().any(|record| self.live.iter().any(|u| u.is_in_the_way(record)));
        let done = self.live.iter().filter(|unit| unit.open == 0 && !unit.is_flushed);
        is_needed.then(|| done.map(|unit| unit.generation).collect())
    }

    fn flushed(&mut self, generations: &[u64]) {
        for unit in self.live.iter_mut().filter(|unit| generations.contains(&unit.generation)) {
            unit.is_flushed = true;
        }
        self.forget_done();
    }

    fn forget_done(&mut self) {
        while self.live.front().is_some_and(|unit| unit.open == 0 && unit.is_flushed) {
            self.live.pop_front();
        }
    }

    /// The number of the oldest unit that is live, or of the next one.
    fn oldest_live(&self) -> u64 {
        self.live.front().map_or(self.next_generation, |unit| unit.generation)
    }

    /// Takes as many records as fit into a unit; none if there is no room for one.
    fn begin_unit(&mut self, kind: LogKind, limits: &Limits) -> Option<Batch> {
        if !self.has_room(limits.depth) {
            return None;
        }
        let mut records: Vec<Record> = Vec::with_capacity(self.pending.len().min(limits.most));
        while let Some(record) = self.pending.front() {
            let in_the_way = self.live.iter().any(|unit| unit.is_in_the_way(record));
            let fits = unit::fits(kind, &records, record, limits.data_bytes);
            if in_the_way || !fits || records.len() >= limits.most {
                break;
            }
            records.extend(self.pending.pop_front());
        }
        if records.is_empty() {
            return None;
        }
        let generation = self.next_generation;
        self.next_generation += 1;
        let first = self.first_pending;
        self.first_pending += records.len() as u64;
        let covers = records.iter().map(|record| Covered {
            row: record.log.row,
            within: record.log.within_bytes
                ..record.log.within_bytes + u64::from(record.log.len_bytes),
        });
        self.live.push_back(Live {
            generation,
            tickets: first..self.first_pending,
            covers: covers.collect(),
            state: UnitState::BeingWritten,
            open: records.len(),
            is_flushed: false,
        });
        Some(Batch { generation, live_from: self.oldest_live(), records })
    }

    /// Undoes [`Self::begin_unit`], of which nothing was written.
    fn take_back(&mut self, batch: Batch) {
        self.live.pop_back();
        self.next_generation -= 1;
        self.first_pending -= batch.records.len() as u64;
        for record in batch.records.into_iter().rev() {
            self.pending.push_front(record);
        }
    }

    fn written(&mut self, generation: u64, result: Result<(), ArrayError>) {
        if let Some(unit) = self.live.iter_mut().find(|unit| unit.generation == generation) {
            unit.state = result.map_or_else(UnitState::Failed, |()| UnitState::Durable);
            // Nothing is written under a unit that failed.
            unit.is_flushed |= result.is_err();
        }
        if result.is_err() {
            // Whatever is there now, a reader goes no further.
            self.position = self.position_before;
        }
    }

    /// Nobody who waits gets a unit.
    fn fail_pending(&mut self, error: ArrayError) {
        let first = self.first_pending;
        let open = self.pending.len();
        self.first_pending += open as u64;
        self.pending.clear();
        self.live.push_back(Live {
            generation: self.next_generation,
            tickets: first..self.first_pending,
            covers: Vec::new(),
            state: UnitState::Failed(error),
            open,
            is_flushed: true,
        });
        self.next_generation += 1;
    }

    fn end(&mut self, generation: u64) {
        let Some(unit) = self.live.iter_mut().find(|unit| unit.generation == generation) else {
            debug_assert!(self.is_abandoned, "a unit was ended too often");
            return;
        };
        unit.open = unit.open.saturating_sub(1);
        if unit.open == 0 {
            self.forget_done();
            self.wake_all();
        }
    }

    /// Where a unit of this length goes in a PPL.
    fn ppl_position(&mut self, place: &LogPlace, len_bytes: u64) -> u64 {
        let from = units_from(place);
        let at = self.position.max(from);
        // Beyond an end that is not on the block, nothing can be found by who reads from the start,
        // so that it begins anew.
        let fits = at.is_multiple_of(4096) && at + len_bytes <= place.len_bytes;
        let at = if fits { at } else { from };
        self.position_before = at;
        self.position = if from == 0 { 0 } else { at + len_bytes };
        at
    }

    fn wait(&mut self, ticket: u64, waker: &Waker) {
        match self.waiting.iter_mut().find(|(other, _)| *other == ticket) {
            Some((_, known)) => known.clone_from(waker),
            None => self.waiting.push((ticket, waker.clone())),
        }
    }

    fn wake_all(&mut self) {
        self.waiting.drain(..).for_each(|(_, waker)| waker.wake());
    }
}

impl Live {
    /// Whether the record is about something of this unit that is not flushed yet.
    fn is_in_the_way(&self, record: &Record) -> bool {
        !self.is_flushed && self.covers.iter().any(|place| record.overlaps(place))
    }
}

/// Somebody writes a unit for all; its end, whichever, is told to those who wait.
struct Lead<'a> {
    log: &'a Log,
    index: usize,
    ended: bool,
}

impl Lead<'_> {
    fn end(mut self, change: impl FnOnce(&mut Sequence)) {
        self.ended = true;
        let mut sequence = self.log.sequence(self.index);
        change(&mut sequence);
        sequence.is_led = false;
        sequence.forget_done();
        sequence.wake_all();
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // What was submitted may land at any time.
            let mut sequence = self.log.sequence(self.index);
            sequence.is_abandoned = true;
            sequence.wake_all();
        }
    }
}

/// Whose partial parity goes into a member's unit.
pub(super) fn part_of(record: &Record, slot: usize) -> Option<Part> {
    if record.p_slot == Some(slot) {
        Some(Part::P)
    } else {
        (record.q_slot == Some(slot)).then_some(Part::Q)
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
