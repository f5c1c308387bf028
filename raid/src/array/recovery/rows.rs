//! Long tasks on levels with parity: what a shard's owner does of them, in *spans* (whole rows, or
//! a part of one), each while nothing else happens to its rows.
//!
//! Consecutive rows are behind each other on every member, so a span is read with one request to
//! each member, and the arithmetic is done row by row.
//!
//! * **Resync**, where parity is not trusted: parity is computed from the data, and written where it
//!   differs. All members have to be there: without one of the data chunks nothing can be said. A
//!   data block that cannot be read is lost with that; it is bad from then on, and so is the row's
//!   parity there, or else the block would be computed from it.
//! * **Rebuild**, where parity is trusted: what the new members lack is computed from the others. If
//!   too many of these cannot be read, the block is bad on the new members. Where parity is not
//!   trusted, only parity can be rebuilt; data is lost, as above.
//! * **Check**: data and parity are compared. What differs is read once more before it counts. On
//!   RAID 6 the wrong chunk is located if it is a single one. What a member cannot read, or has
//!   recorded as bad, is computed and written there, in any mode.
//!
//! What cannot be done in one go is done in halves, down to single blocks.

use std::ops::Range;

use futures_util::future::join_all;

use super::control::Mismatch;
use super::plan::CheckMode;
use super::{Chore, Lost, PIECE_BYTES, is_zero};
use crate::array::error::ArrayError;
use crate::array::slots::SlotSet;
use crate::array::write::{Armed, Outcome};
use crate::array::{Array, Done};
use crate::buffer::{Buffer, SharedBuffer};
use crate::drive::Drive;
use crate::geometry::{Geometry, Place, Role};
use crate::mutation::mutation;
use crate::parity::{Kernel, Located};

/// With less memory than for this much of each chunk nothing is tried.
const MIN_SPAN_BYTES: u64 = 16 << 10;

/// Whole consecutive rows, or a part of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    rows: Range<u64>,
    /// In the members' data areas.
    range: Range<u64>,
}

impl Span {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The rows as a range of the array.
    fn array_range(&self, geometry: &Geometry) -> Range<u64> {
        let first = geometry.row_range(self.rows.start).start;
        first..geometry.row_range(self.rows.end.saturating_sub(1)).end
    }

    /// Each row, and which bytes of the span it has.
    fn parts(&self, geometry: &Geometry) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
        let Range { start, end } = self.range;
        let chunk = geometry.row_component_offset(1);
        self.rows.clone().map(move |row| {
            let from = (row * chunk).max(start) - start;
            let to = ((row + 1) * chunk).min(end) - start;
            (row, from as usize..to as usize)
        })
    }

    /// Two parts of it: rows, if it has several.
    fn halves(&self, geometry: &Geometry, block_bytes: u64) -> [Self; 2] {
        let Range { start, end } = self.range;
        let Range { start: first, end: last } = self.rows;
        if last - first > 1 {
            let row = first + (last - first) / 2;
            let at = geometry.row_component_offset(row);
            return [
                Self { rows: first..row, range: start..at },
                Self { rows: row..last, range: at..end },
            ];
        }
        let at = start + ((end - start) / block_bytes).div_ceil(2) * block_bytes;
        [start..at, at..end].map(|range| Self { rows: self.rows.clone(), range })
    }
}

/// The chunks of a span by slot, those that are there.
type Chunks = Vec<Option<Buffer>>;

fn slots_of(chunks: &[Option<Buffer>]) -> SlotSet {
    let there = chunks.iter().enumerate().filter(|(_, chunk)| chunk.is_some());
    there.map(|(slot, _)| slot).collect()
}

/// A row's part of the chunks of a span, in the order of the kernels.
struct RowChunks<'a> {
    data: Vec<Option<&'a [u8]>>,
    p: Option<&'a [u8]>,
    q: Option<&'a [u8]>,
}

impl<'a> RowChunks<'a> {
    fn new(
        geometry: &Geometry,
        row: u64,
        chunks: &'a [Option<Buffer>],
        part: &Range<usize>,
    ) -> Self {
        let of = |slot: usize| Some(&chunks.get(slot)?.as_ref()?[part.clone()]);
        let data = (0..geometry.data_chunks()).map(|index| of(geometry.data_slot(row, index)));
        Self {
            data: data.collect(),
            p: of(geometry.parity_slot(row)),
            q: geometry.q_slot(row).and_then(of),
        }
    }

    /// All data, if all of it is there.
    fn all_data(&self) -> Option<Vec<&'a [u8]>> {
        self.data.iter().copied().collect()
    }

    /// Without the chunk of one role.
    fn without(mut self, role: Role) -> Self {
        match role {
            Role::P => self.p = None,
            Role::Q => self.q = None,
            Role::Data(index) => {
                if let Some(chunk) = self.data.get_mut(index) {
                    *chunk = None;
                }
            }
        }
        self
    }
}

impl<D: Drive> Array<D> {
    /// An owner's part of a long task on a level with parity.
    pub(super) async fn recover_rows(
        &self,
        chore: Chore,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Done {
        let geometry = self.shared.geometry();
        let chunk = geometry.row_component_offset(1);
        let span_bytes = self.span_bytes();
        let rows_at_once = (span_bytes / chunk).max(1);
        let end = geometry.row_of(offset_bytes + len_bytes - 1) + 1;
        let mut row = geometry.row_of(offset_bytes);
        while row < end {
            let rows = row..end.min(row + rows_at_once);
            let lock = self.lock_rows(rows.clone()).await;
            self.check_not_failed()?;
            let first = geometry.row_range(rows.start).start;
            let armed = Armed::new(&self.shared, first);
            let component =
                geometry.row_component_offset(rows.start)..geometry.row_component_offset(rows.end);
            let lost = Lost::default();
            let mut result = Ok(());
            for start in component.clone().step_by(span_bytes as usize) {
                let range = start..component.end.min(start + span_bytes);
                let span = Span { rows: rows.clone(), range };
                result = self.recover_span(chore, span, &lost).await;
                if result.is_err() {
                    break;
                }
            }
            if result.is_ok() {
                result = self.note_lost(lost).await;
            }
            armed.disarm();
            drop(lock);
            result?;
            row = rows.end;
        }
        Ok(())
    }

    /// How much of each chunk is done at once: less, if there are many.
    pub(super) fn span_bytes(&self) -> u64 {
        let members = self.shared.geometry().members() as u64;
        let most = (self.pool.budget_bytes() as u64 / 4 / members).min(PIECE_BYTES);
        let most = most.min(self.pool.max_block_bytes() as u64).max(MIN_SPAN_BYTES);
        1 << most.ilog2()
    }

    async fn recover_span(&self, chore: Chore, span: Span, lost: &Lost) -> Done {
        let geometry = self.shared.geometry();
        let agree = span.rows.clone().filter(|&row| self.agrees(&geometry.row_range(row)));
        let agree = agree.count() as u64;
        if agree > 0 && agree < span.rows.end - span.rows.start {
            return self.recover_halves(chore, &span, lost).await;
        }
        match (chore, agree > 0) {
            (Chore::Sync, true) => Ok(()),
            (Chore::Sync, false) => self.sync_span(span, lost).await,
            (Chore::Rebuild, agrees) => {
                let agrees = agrees || mutation!("rebuild-from-untrusted-parity");
                self.rebuild_span(span, agrees, lost).await
            }
            (Chore::Check(mode), true) => self.check_span(span, mode, lost).await,
            (Chore::Check(_), false) => {
                self.uncompared(&span);
                Ok(())
            }
        }
    }

    async fn recover_halves(&self, chore: Chore, span: &Span, lost: &Lost) -> Done {
        for half in span.halves(self.shared.geometry(), u64::from(self.block_bytes)) {
            Box::pin(self.recover_span(chore, half, lost)).await?;
        }
        Ok(())
    }

    /// Memory was lacking for a span: it is done in parts, if it can be.
    async fn recover_with_less(&self, chore: Chore, span: &Span, lost: &Lost) -> Done {
        if span.len() <= MIN_SPAN_BYTES || !self.can_halve(span.len()) {
            return Err(ArrayError::NotReady);
        }
        self.recover_halves(chore, span, lost).await
    }

    /// Members whose part of a span can be read.
    fn readable_slots(&self, span: &Span) -> SlotSet {
        let end_bytes = span.array_range(self.shared.geometry()).end;
        let offset_bytes = span.range.start;
        let is_readable =
            |&slot: &usize| self.is_readable(Place { slot, offset_bytes }, span.len(), end_bytes);
        self.writable().iter().filter(is_readable).collect()
    }

    /// Reads a span from some members; those that cannot are left out. None without memory.
    async fn read_span(&self, span: &Span, slots: SlotSet) -> Option<Chunks> {
        let with_buffer = |slot| Some((slot, self.task_buffer(span.len())?));
        let reads = slots.iter().map(with_buffer).collect::<Option<Vec<_>>>()?;
        let reads = reads.into_iter().map(|(slot, buffer)| async move {
            let place = Place { slot, offset_bytes: span.range.start };
            (slot, self.read_member(place, buffer).await.ok())
        });
        let mut chunks: Chunks = (0..self.shared.geometry().members()).map(|_| None).collect();
        for (slot, chunk) in join_all(reads).await {
            chunks[slot] = chunk;
        }
        // One that has failed meanwhile may have lost writes that it had acknowledged.
        let still = self.readable_slots(span);
        for (slot, chunk) in chunks.iter_mut().enumerate() {
            if !still.contains(slot) {
                *chunk = None;
            }
        }
        Some(chunks)
    }

    /// Members in sync that did not yield their part of a span: for read errors, or because it is
    /// bad. Counts the errors, if the span is as short as can be.
    fn errors_in(&self, span: &Span, read: SlotSet) -> SlotSet {
        let errors = self.map().in_sync.without(read);
        if !self.can_halve(span.len()) {
            let now = self.timer.now();
            for slot in errors.and(self.readable_slots(span)).iter() {
                self.shared.count_read_error(slot, now);
            }
        }
        errors
    }

    /// Writes parts of buffers to members, or zeros instead.
    async fn write_parts(
        &self,
        span: &Span,
        parts: Vec<(usize, Range<usize>, SharedBuffer)>,
    ) -> Done {
        let writes = parts.into_iter().map(|(slot, part, buffer)| async move {
            let place = Place { slot, offset_bytes: span.range.start + part.start as u64 };
            let data = buffer.slice(part);
            let is_zero = is_zero(&data);
            self.write_or_zero(place, data, is_zero).await
        });
        let mut outcome = Outcome::default();
        join_all(writes).await.into_iter().for_each(|result| outcome.add(result));
        self.recovered(&outcome).await
    }

    /// A row's part of a span holds nothing to be believed on these members.
    fn lose(span: &Span, part: &Range<usize>, slots: impl IntoIterator<Item = usize>, lost: &Lost) {
        let start = span.range.start;
        let bad = start + part.start as u64..start + part.end as u64;
        slots.into_iter().for_each(|slot| lost.add(slot, bad.clone()));
    }

    fn parity_slots(&self, row: u64) -> impl Iterator<Item = usize> {
        let geometry = self.shared.geometry();
        std::iter::once(geometry.parity_slot(row)).chain(geometry.q_slot(row))
    }

    fn data_slots(&self, row: u64) -> impl Iterator<Item = usize> {
        let geometry = self.shared.geometry();
        (0..geometry.data_chunks()).map(move |index| geometry.data_slot(row, index))
    }

    fn uncompared(&self, span: &Span) {
        let bytes = span.len() * self.shared.geometry().members() as u64;
        self.shared.found(|report| report.uncompared_bytes += bytes);
    }
}

/// The resync.
impl<D: Drive> Array<D> {
    async fn sync_span(&self, span: Span, lost: &Lost) -> Done {
        let geometry = self.shared.geometry();
        let all = SlotSet::first(geometry.members());
        let unknown = ArrayError::Unrecovered { offset_bytes: span.array_range(geometry).start };
        if self.map().in_sync != all {
            return Err(unknown);
        }
        let Some(mut chunks) = self.read_span(&span, self.readable_slots(&span)).await else {
            return self.recover_with_less(Chore::Sync, &span, lost).await;
        };
        let read = slots_of(&chunks);
        if self.map().in_sync != all {
            return Err(unknown);
        }
        if read != all && self.can_halve(span.len()) {
            return self.recover_halves(Chore::Sync, &span, lost).await;
        }
        self.errors_in(&span, read);
        let mut writes = Vec::new();
        for (row, part) in span.parts(geometry) {
            if !self.data_slots(row).all(|slot| read.contains(slot)) {
                let unread = self.data_slots(row).filter(|&slot| !read.contains(slot));
                Self::lose(&span, &part, unread.chain(self.parity_slots(row)), lost);
                continue;
            }
            let chunks_of_row = RowChunks::new(geometry, row, &chunks, &part);
            let parity_is_there = self.parity_slots(row).all(|slot| read.contains(slot));
            if let Some(data) = chunks_of_row.all_data()
                && parity_is_there
                && Kernel::best().is_consistent(&data, chunks_of_row.p, chunks_of_row.q)
            {
                continue;
            }
            self.compute_parity(row, &part, &mut chunks, span.len())?;
            writes.extend(self.parity_slots(row).map(|slot| (slot, part.clone())));
        }
        self.write_chunks(&span, chunks, writes).await
    }

    /// Computes a row's parity from its data, in place.
    fn compute_parity(
        &self,
        row: u64,
        part: &Range<usize>,
        chunks: &mut Chunks,
        len_bytes: u64,
    ) -> Done {
        let geometry = self.shared.geometry();
        let mut take = |slot: usize| {
            let read = chunks.get_mut(slot).and_then(Option::take);
            read.or_else(|| self.task_buffer(len_bytes)).ok_or(ArrayError::NotReady)
        };
        let p_slot = geometry.parity_slot(row);
        let mut p = take(p_slot)?;
        let mut q = match geometry.q_slot(row) {
            Some(slot) => Some((slot, take(slot)?)),
            None => None,
        };
        let row = RowChunks::new(geometry, row, chunks, part);
        match &mut q {
            Some((_, q)) => {
                Kernel::best().pq(&row.data, &mut p[part.clone()], &mut q[part.clone()]);
            }
            None => Kernel::best().p(&row.data, &mut p[part.clone()]),
        }
        chunks[p_slot] = Some(p);
        if let Some((slot, q)) = q {
            chunks[slot] = Some(q);
        }
        Ok(())
    }

    /// Writes parts of chunks to their members.
    async fn write_chunks(
        &self,
        span: &Span,
        chunks: Chunks,
        parts: Vec<(usize, Range<usize>)>,
    ) -> Done {
        let writable = self.writable();
        let frozen: Vec<_> = chunks.into_iter().map(|chunk| chunk.map(Buffer::freeze)).collect();
        // Neighbouring parts of a member go together.
        let mut runs: Vec<(usize, Range<usize>)> = Vec::with_capacity(parts.len());
        for (slot, part) in parts {
            match runs.iter_mut().find(|(other, run)| *other == slot && run.end == part.start) {
                Some((_, run)) => run.end = part.end,
                None => runs.push((slot, part)),
            }
        }
        let runs = runs.into_iter().filter(|(slot, _)| writable.contains(*slot));
        let runs = runs.filter_map(|(slot, part)| Some((slot, part, frozen.get(slot)?.clone()?)));
        let runs = runs.collect();
        self.write_parts(span, runs).await
    }
}

/// The rebuild.
impl<D: Drive> Array<D> {
    async fn rebuild_span(&self, span: Span, agrees: bool, lost: &Lost) -> Done {
        let geometry = self.shared.geometry();
        let targets = self.map().rebuilding;
        if targets.is_empty() {
            return Ok(());
        }
        let sources = self.readable_slots(&span).without(targets);
        let Some(mut chunks) = self.read_span(&span, sources).await else {
            return self.recover_with_less(Chore::Rebuild, &span, lost).await;
        };
        self.check_not_failed()?;
        let read = slots_of(&chunks);
        let in_sync = self.map().in_sync;
        if !in_sync.without(read).is_empty() && self.can_halve(span.len()) {
            return self.recover_halves(Chore::Rebuild, &span, lost).await;
        }
        let wanted = targets.or(self.errors_in(&span, read));
        for slot in wanted.iter() {
            let Some(buffer) = self.task_buffer(span.len()) else {
                drop(chunks);
                return self.recover_with_less(Chore::Rebuild, &span, lost).await;
            };
            chunks[slot] = Some(buffer);
        }
        let mut writes = Vec::new();
        for (row, part) in span.parts(geometry) {
            let has_all_data = self.data_slots(row).all(|slot| read.contains(slot));
            let done = match (agrees, has_all_data) {
                (true, _) => self.reconstruct(row, &part, &mut chunks, wanted),
                (false, true) => {
                    self.compute_parity(row, &part, &mut chunks, span.len())?;
                    true
                }
                (false, false) => {
                    let unread = self.data_slots(row).filter(|&slot| !read.contains(slot));
                    Self::lose(&span, &part, unread.chain(self.parity_slots(row)), lost);
                    continue;
                }
            };
            if done {
                let parity: SlotSet = self.parity_slots(row).collect();
                let written = if agrees { wanted } else { parity };
                writes.extend(written.iter().map(|slot| (slot, part.clone())));
            } else {
                Self::lose(&span, &part, targets.iter(), lost);
            }
        }
        self.write_chunks(&span, chunks, writes).await
    }

    /// Computes the chunks of a row that are `wanted` from the others, into their buffers. False if
    /// too few are there.
    fn reconstruct(
        &self,
        row: u64,
        part: &Range<usize>,
        chunks: &mut Chunks,
        wanted: SlotSet,
    ) -> bool {
        let geometry = self.shared.geometry();
        let mut taken: Vec<_> =
            wanted.iter().filter_map(|slot| Some((slot, chunks.get_mut(slot)?.take()?))).collect();
        let lost = geometry.members() - slots_of(chunks).len();
        let can = lost <= geometry.parities();
        if can {
            let there = RowChunks::new(geometry, row, chunks, part);
            let mut places: Vec<_> = taken
                .iter_mut()
                .map(|(slot, buffer)| (geometry.role_of(row, *slot), &mut buffer[part.clone()]))
                .collect();
            let done = Kernel::best().reconstruct(&there.data, there.p, there.q, &mut places);
            debug_assert!(done.is_ok(), "enough chunks are there: {done:?}");
        }
        for (slot, buffer) in taken {
            chunks[slot] = Some(buffer);
        }
        can
    }
}

/// A part of a row in which all blocks are wrong in the same way.
struct WrongRun {
    row: u64,
    part: Range<usize>,
    located: Located,
}

/// The check.
impl<D: Drive> Array<D> {
    async fn check_span(&self, span: Span, mode: CheckMode, lost: &Lost) -> Done {
        let geometry = self.shared.geometry();
        let readable = self.readable_slots(&span);
        let Some(chunks) = self.read_span(&span, readable).await else {
            return self.recover_with_less(Chore::Check(mode), &span, lost).await;
        };
        self.check_not_failed()?;
        let read = slots_of(&chunks);
        if !self.map().in_sync.without(read).is_empty() {
            if self.can_halve(span.len()) {
                return self.recover_halves(Chore::Check(mode), &span, lost).await;
            }
            let errors = self.errors_in(&span, read);
            return self.rewrite_block(&span, chunks, errors).await;
        }
        if read.len() < geometry.members() {
            self.uncompared(&span);
            return Ok(());
        }
        let is_right = |(row, part): (u64, Range<usize>)| self.is_row_right(row, &part, &chunks);
        if span.parts(geometry).all(is_right) {
            return Ok(());
        }
        drop(chunks);
        // Once more, before it counts.
        let Some(chunks) = self.read_span(&span, readable).await else {
            return Err(ArrayError::NotReady);
        };
        if slots_of(&chunks) != read {
            return Err(ArrayError::NotReady);
        }
        self.row_differs(&span, chunks, mode).await
    }

    fn is_row_right(&self, row: u64, part: &Range<usize>, chunks: &Chunks) -> bool {
        let row = RowChunks::new(self.shared.geometry(), row, chunks, part);
        row.all_data().is_some_and(|data| Kernel::best().is_consistent(&data, row.p, row.q))
    }

    /// Members did not yield a block, and the others did: they get what it should be.
    async fn rewrite_block(&self, span: &Span, mut chunks: Chunks, errors: SlotSet) -> Done {
        let geometry = self.shared.geometry();
        let sectors = span.len() / 512 * errors.len() as u64;
        for slot in errors.iter() {
            chunks[slot] = Some(self.task_buffer(span.len()).ok_or(ArrayError::NotReady)?);
        }
        let mut writes = Vec::new();
        for (row, part) in span.parts(geometry) {
            if self.reconstruct(row, &part, &mut chunks, errors) {
                writes.extend(errors.iter().map(|slot| (slot, part.clone())));
            }
        }
        if writes.is_empty() {
            self.shared.found(|report| report.unreadable_sectors += sectors);
            return Ok(());
        }
        self.write_chunks(span, chunks, writes).await?;
        self.shared.found(|report| report.rewritten_sectors += sectors);
        Ok(())
    }

    /// The parts of a span that are wrong, block by block.
    fn wrong_runs(&self, span: &Span, chunks: &Chunks) -> Vec<WrongRun> {
        let geometry = self.shared.geometry();
        let mut runs: Vec<WrongRun> = Vec::new();
        for (row, part) in span.parts(geometry) {
            for start in part.clone().step_by(self.block_bytes as usize) {
                let block = start..part.end.min(start + self.block_bytes as usize);
                let chunks = RowChunks::new(geometry, row, chunks, &block);
                let Some(data) = chunks.all_data() else { continue };
                let located = match (chunks.p, chunks.q) {
                    (Some(p), Some(q)) => Kernel::best().locate(&data, p, q),
                    (p, _) if Kernel::best().is_consistent(&data, p, None) => Located::Consistent,
                    // One parity tells that something is wrong, not what.
                    _ => Located::Several,
                };
                match runs.last_mut() {
                    _ if located == Located::Consistent => {}
                    Some(run)
                        if run.row == row
                            && run.part.end == block.start
                            && run.located == located =>
                    {
                        run.part.end = block.end;
                    }
                    _ => runs.push(WrongRun { row, part: block, located }),
                }
            }
        }
        runs
    }

    /// Rows did not fit together when they were read before, and now they are these.
    async fn row_differs(&self, span: &Span, mut chunks: Chunks, mode: CheckMode) -> Done {
        let geometry = self.shared.geometry();
        let runs = self.wrong_runs(span, &chunks);
        let mut writes = Vec::new();
        let mut found = Vec::new();
        for WrongRun { row, part, located } in runs {
            let role = match located {
                Located::Data(index) => Some(Role::Data(index)),
                Located::P => Some(Role::P),
                Located::Q => Some(Role::Q),
                Located::Several | Located::Consistent => None,
            };
            let may_compute = geometry.parities() == 1 || mode == CheckMode::RepairAll;
            let slot = role.map(|role| self.slot_of(row, role));
            let mut repairs = SlotSet::EMPTY;
            match (role, slot) {
                _ if mode == CheckMode::Check => {}
                (Some(role), Some(slot)) => {
                    self.correct(row, &part, &mut chunks, role, slot);
                    repairs.insert(slot);
                }
                _ if may_compute => {
                    self.compute_parity(row, &part, &mut chunks, span.len())?;
                    repairs = self.parity_slots(row).collect();
                }
                _ => {}
            }
            writes.extend(repairs.iter().map(|slot| (slot, part.clone())));
            let mismatch = Mismatch {
                offset_bytes: geometry.row_range(row).start,
                component_offset_bytes: span.range.start + part.start as u64,
                len_bytes: (part.end - part.start) as u64,
                slot,
                repaired: !repairs.is_empty(),
            };
            found.push((mismatch, repairs));
        }
        let written = self.write_chunks(span, chunks, writes).await;
        // A member that did not write is out.
        let writable = self.writable();
        self.shared.found(|report| {
            for (mut mismatch, repairs) in found {
                mismatch.repaired &= written.is_ok() && repairs.without(writable).is_empty();
                report.add(mismatch);
            }
        });
        written
    }

    fn slot_of(&self, row: u64, role: Role) -> usize {
        let geometry = self.shared.geometry();
        match role {
            Role::Data(index) => geometry.data_slot(row, index),
            Role::P => geometry.parity_slot(row),
            // Only RAID 6 has it.
            Role::Q => geometry.q_slot(row).unwrap_or_default(),
        }
    }

    /// Computes one chunk of a row from the others, in place.
    fn correct(&self, row: u64, part: &Range<usize>, chunks: &mut Chunks, role: Role, slot: usize) {
        let Some(mut buffer) = chunks.get_mut(slot).and_then(Option::take) else { return };
        let there = RowChunks::new(self.shared.geometry(), row, chunks, part).without(role);
        let mut place = [(role, &mut buffer[part.clone()])];
        let done = Kernel::best().reconstruct(&there.data, there.p, there.q, &mut place);
        debug_assert!(done.is_ok(), "all other chunks are there: {done:?}");
        chunks[slot] = Some(buffer);
    }
}
