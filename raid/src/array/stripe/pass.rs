//! A pass over a row: what all the writes that it took along bring is put on the members.
//!
//! The story, for each batch of slices (`plan`), until none is left:
//! 1. take the memory for all of it;
//! 2. read what the plans need. What cannot be read counts as not there, and the slice is planned
//!    again;
//! 3. compute the partial and the new parity (`work`);
//! 4. if the members have changed meanwhile, begin again: a plan holds for one epoch only;
//! 5. for each slice, make its log record durable, if there is a log; then, if the members are
//!    still the same, submit its data and parity to all members that take writes, and wait for all.
//!
//! Then wait until members that failed are durably out, and answer all writes of the pass.
//!
//! **What is on the drives at any moment.** Between the submission of a slice and its last
//! completion its chunks are old or new, block by block, and parity fits none of it. Without a log
//! that is the write hole, which a resync of the row closes if no member is lost; with one, the
//! partial parity and what is there of the written chunks give parity back. Other slices, and the
//! chunks that do not change, are not touched by any of this: the partial parity is that of
//! the unchanged data in any case.
//!
//! **Memory of a log's record.** A slice waits for its record while it holds no other record: the
//! space of the log is given back by slices that have been written, so that a wait for it ends.
//!
//! **Lack of space** below a member may leave a part of a slice old and parity new. Then parity is
//! made to fit what the members have: the partial parity and the written chunks, read again, give
//! it. Where even that fails, the parity blocks are recorded as bad: nothing is computed from them
//! any more, and the next write of those blocks makes them good.
//!
//! **Failures that the level cannot lose.** The member stays, and what it took of a slice is unknown.
//! All that was to be written is kept until its drive is back (`parked`). If the array has failed for
//! good, parity is recorded as bad, as above.

use std::future::poll_fn;
use std::ops::Range;

use super::super::error::{ArrayError, WriteFailure};
use super::super::fan::fan_out;
use super::super::intent::{IntentToken, LogRecord};
use super::super::member::MemberError;
use super::super::membership::Parking;
use super::super::reserve::Claim;
use super::super::shared::WriteState;
use super::super::slots::SlotSet;
use super::super::write::Armed;
use super::super::{Array, Done};
use super::Ticket;
use super::parked::ParkedJob;
use super::plan::{Cut, Members, Roles, Slice, plan_write};
use super::queue::{Kind, Turn};
use super::work::{Job, Piece, Source, Task, Workspace};
use crate::buffer::SharedBuffer;
use crate::drive::{Drive, DriveError, ReadFailure};
use crate::geometry::Place;
use crate::mutation::mutation;

/// What became of operations on members. Those that failed are out by then.
#[derive(Clone, Copy, Default)]
pub(super) struct Outcome {
    pub(super) failed: Option<MemberError>,
    /// Slots of all that failed.
    pub(super) missed: SlotSet,
    /// Slot of a member without space.
    pub(super) no_space: Option<usize>,
    /// Parity does not fit its data, and that is known nowhere else.
    pub(super) differs: bool,
}

impl Outcome {
    pub(super) fn add(&mut self, result: Result<(), MemberError>) {
        match result {
            Ok(()) => {}
            Err(MemberError { slot, error: DriveError::NoSpace }) => self.no_space = Some(slot),
            Err(failed) => {
                self.failed = Some(failed);
                self.missed.insert(failed.slot);
            }
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.failed = self.failed.or(other.failed);
        self.missed = self.missed.or(other.missed);
        self.no_space = self.no_space.or(other.no_space);
        self.differs |= other.differs;
    }
}

/// What became of a slice.
enum Stored {
    /// The members have it, as far as `Outcome` says so.
    Written(Outcome),
    /// The array has failed under it, and it waits for a drive to come back.
    Parked(Box<ParkedJob>, Outcome),
    /// Nothing was written: the members changed before.
    Again,
    Failed(ArrayError),
}

impl<D: Drive> Array<D> {
    /// Writes a piece within a shard of a parity level, on its owner.
    pub(in crate::array) async fn stripe_write(
        &self,
        offset_bytes: u64,
        data: SharedBuffer,
        fua: bool,
    ) -> Done {
        let stripe = self.stripe();
        let permit = self.shared.begin_write(self.endpoint.core()).await?;
        let end_bytes = offset_bytes + data.len() as u64;
        let owned_bytes = self.offset_in_owned(offset_bytes);
        let (stream, hold) =
            stripe.handle_write(owned_bytes, data.len() as u64, || self.timer.now());
        let mut result = Ok(());
        let pieces = stripe.row_parts(offset_bytes, data.len() as u64);
        // Every ticket is taken before the first one is waited for.
        let tickets = pieces.map(|part| {
            let from = (part.offset_bytes - offset_bytes) as usize;
            let source = Source::Data(data.slice(from..from + part.len as usize));
            let piece = Piece { start: part.start, len: part.len, source, fua };
            let bytes = u64::from(part.len);
            let ticket = stripe.rows.enter(part.row, Kind::Write, bytes, Some(piece), hold);
            self.run_write(part.row, ticket)
        });
        let count = stripe.row_count(offset_bytes, end_bytes);
        fan_out(count, tickets, |(done, was_filled)| {
            result = result.and(done);
            if let Some(was_filled) = was_filled {
                stripe.streams.borrow_mut().handle_hold(stream, was_filled);
            }
        })
        .await;
        stripe.streams.borrow_mut().handle_end(stream);
        drop(permit);
        result
    }

    /// An offset within the shards that this core owns, as if they were in one piece.
    fn offset_in_owned(&self, offset_bytes: u64) -> u64 {
        let shard_bytes = self.shared.geometry().shard_bytes();
        let shard = offset_bytes / shard_bytes / self.endpoint.cores() as u64;
        shard * shard_bytes + offset_bytes % shard_bytes
    }

    /// Waits for a write's turn, and does it together with those behind it, unless another one has
    /// done it. Also says whether it was held, and whether that was of use.
    pub(super) async fn run_write(&self, row: u64, ticket: Ticket<'_>) -> (Done, Option<bool>) {
        match poll_fn(|cx| ticket.poll_turn(cx)).await {
            Turn::Done(result) => (result, ticket.was_filled()),
            // In a box, since every write has one such future and few lead.
            Turn::Run => Box::pin(self.lead(row, ticket)).await,
        }
    }

    async fn lead(&self, row: u64, ticket: Ticket<'_>) -> (Done, Option<bool>) {
        let stripe = self.stripe();
        let mut work = stripe.workspace();
        let count = ticket.take_payloads(|piece| work.pieces.push(piece));
        let counters = self.stripe_counters();
        counters.passes.add(1);
        counters.merged_writes.add(u64::from(count) - 1);
        let result = self.pass(row, &mut work).await;
        let was_filled = ticket.was_filled();
        stripe.keep_workspace(work);
        ticket.finish(result);
        (result, was_filled)
    }

    /// Puts a workspace's writes on the members. The row is held.
    async fn pass(&self, row: u64, work: &mut Workspace) -> Done {
        let stripe = self.stripe();
        let shape = &stripe.shape;
        let intent = &self.shared.intent;
        let mut cut = Cut::new(shape.data_chunks, shape.parities, intent.has_log());
        let record_bytes = u32::try_from(intent.max_record_bytes()).unwrap_or(u32::MAX);
        let in_blocks = record_bytes - record_bytes % self.block_bytes;
        cut.max_bytes = cut.max_bytes.min(in_blocks.max(self.block_bytes));
        work.cut_writes(&cut, shape.chunk_bytes, self.zeros.len() as u32);
        let token = self.begin_intent(self.shared.geometry().row_range(row)).await?;
        self.count_pass(work);
        let mut outcome = Outcome::default();
        let mut result = Ok(());
        while result.is_ok() && !work.tasks.is_empty() {
            result = self.write_batch(row, work, false, &mut outcome).await;
        }
        let no_space = outcome.no_space.map(|slot| ArrayError::NoSpace { slot });
        if !work.parked.is_empty() {
            self.park(row..row + 1, token, std::mem::take(&mut work.parked));
            return Err(self.failed_under(outcome.failed));
        }
        let settled = self.settled(outcome.failed).await;
        let ended = intent.end(self, token, !outcome.differs).await;
        settled.and(result).and(no_space.map_or(Ok(()), Err)).and(ended)
    }

    /// What a command is told that the array has failed under.
    pub(super) fn failed_under(&self, failed: Option<MemberError>) -> ArrayError {
        ArrayError::WriteFailed(match failed {
            Some(MemberError { slot, error }) => WriteFailure::Member { slot, error },
            None => WriteFailure::ArrayFailed,
        })
    }

    fn count_pass(&self, work: &Workspace) {
        let shape = &self.stripe().shape;
        let all = Roles::all_data(shape.data_chunks);
        let full = work.tasks.iter().filter(|task| task.slice.modified == all);
        let full_bytes: u32 = full.map(|task| task.slice.len).sum();
        if full_bytes == shape.chunk_bytes {
            self.stripe_counters().full_row_writes.add(1);
        }
    }

    /// Does the first tasks, as many as fit in a batch, and takes them off the list; those that
    /// have to be planned again stay on it.
    /// With `anew` nothing is believed of the parity that is there.
    async fn write_batch(
        &self,
        row: u64,
        work: &mut Workspace,
        anew: bool,
        outcome: &mut Outcome,
    ) -> Done {
        self.check_not_failed()?;
        let stripe = self.stripe();
        let (data_chunks, parities) = (stripe.shape.data_chunks, stripe.shape.parities);
        let epoch = self.shared.epoch();
        let mut members = self.row_members(row);
        members.trusted &= !anew;
        let planned = work.plan_batch(
            self.block_bytes,
            |slice| self.slice_members(row, slice, members),
            |members, modified| plan_write(data_chunks, parities, members, modified),
        );
        if let Err(task) = planned {
            return Err(ArrayError::Unrecovered { offset_bytes: self.task_offset(row, &task) });
        }
        let Some(claim) = stripe.reserve.take(&work.sizes, &mut work.blocks).await else {
            work.end_batch();
            return Err(ArrayError::NotReady);
        };
        let all_read = self.read_blocks(row, work).await;
        let mut result = Ok(());
        if all_read && self.shared.epoch() == epoch {
            self.make_jobs(row, work, members.writable, &claim);
            result = self.store(row, work, epoch, &claim, outcome).await;
        }
        work.end_batch();
        drop(claim);
        result
    }

    fn make_jobs(&self, row: u64, work: &mut Workspace, writable: Roles, claim: &Claim<'_>) {
        let stripe = self.stripe();
        for index in 0..work.jobs.len() {
            work.compute(index, stripe.shape.data_chunks, &self.zeros);
            if self.shared.intent.has_log() && !mutation!("log-without-checks") {
                work.check(index, &self.zeros);
            }
            // What changes is written anyway, and must not meet its old contents on the way.
            let Task { slice, unreadable } = work.jobs[index].task;
            let repairs = (unreadable & writable) - slice.modified;
            work.make_writes(
                index,
                repairs,
                &self.zeros,
                |role, within| self.place(row, role, within),
                |len| stripe.reserve.spare(claim, len),
            );
            self.count_way(&work.jobs[index]);
        }
    }

    /// Logs and writes the jobs, all at once. Those that are done lose their tasks.
    async fn store(
        &self,
        row: u64,
        work: &mut Workspace,
        epoch: u64,
        claim: &Claim<'_>,
        outcome: &mut Outcome,
    ) -> Done {
        // An abandoned write would come upon newer data.
        let armed = Armed::new(&self.shared, self.shared.geometry().row_range(row).start);
        let mut result = Ok(());
        let mut index = 0;
        let (mut again, mut parked) = (Vec::new(), Vec::new());
        let mut add = |stored| {
            match stored {
                Stored::Parked(job, written) => {
                    outcome.merge(written);
                    parked.push(*job);
                }
                Stored::Written(written) => outcome.merge(written),
                Stored::Again => again.push(index),
                Stored::Failed(error) => result = result.and(Err(error)),
            }
            index += 1;
        };
        match &work.jobs[..] {
            [job] => add(self.store_job(row, work, job, epoch, claim).await),
            jobs => {
                let stores = jobs.iter();
                let stores =
                    stores.map(|job| Box::pin(self.store_job(row, work, job, epoch, claim)));
                fan_out(jobs.len(), stores, add).await;
            }
        }
        armed.disarm();
        work.parked.extend(parked);
        let mut at = 0;
        let done = work.jobs.len();
        work.tasks.retain(|_| {
            at += 1;
            at > done || again.contains(&(at - 1))
        });
        result
    }

    async fn store_job(
        &self,
        row: u64,
        work: &Workspace,
        job: &Job,
        epoch: u64,
        claim: &Claim<'_>,
    ) -> Stored {
        // What only makes parity right changes no data that a record could be about.
        let token = match job.task.slice.modified.is_empty() {
            true => None,
            false => match self.shared.intent.log(self, Self::log_record(row, job)).await {
                Ok(token) => Some(token),
                Err(error) => return Stored::Failed(error),
            },
        };
        if self.shared.epoch() != epoch {
            token.into_iter().for_each(|token| self.shared.intent.logged_end(token));
            return Stored::Again;
        }
        let (writes, fua) = (&work.writes[job.writes.clone()], work.fua());
        let mut outcome = self.write_members(writes, fua).await;
        let mut parked = None;
        if !outcome.missed.is_empty() {
            parked = Box::pin(self.missed(row, job, (writes, fua), &mut outcome)).await;
        }
        if parked.is_none() && outcome.no_space.is_some() {
            outcome.differs |= Box::pin(self.reconcile(row, work, job, claim)).await;
        }
        if let Some(token) = token {
            if outcome.failed.is_some() {
                // The record is good for as long as a start could believe that member.
                let _ = self.shared.settled().await;
            }
            self.shared.intent.logged_end(token);
        }
        match parked {
            Some(job) => Stored::Parked(job, outcome),
            None => Stored::Written(outcome),
        }
    }

    /// Writes to members, all at once.
    pub(super) async fn write_members(
        &self,
        writes: &[(Place, SharedBuffer)],
        fua: bool,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let count = writes.len();
        let writes = writes.iter();
        let writes = writes.map(|(place, data)| self.write_member(*place, data.clone(), fua));
        fan_out(count, writes, |result| outcome.add(result)).await;
        outcome
    }

    /// Some members did not take their part of a job. Gives the job back if it has to wait for one.
    async fn missed(
        &self,
        row: u64,
        job: &Job,
        (writes, fua): (&[(Place, SharedBuffer)], bool),
        outcome: &mut Outcome,
    ) -> Option<Box<ParkedJob>> {
        let slice = job.task.slice;
        match self.until_done(outcome, || self.write_members(writes, fua)).await {
            Parking::NotNeeded => None,
            Parking::Parked => Some(Box::new(self.parked_writes(row, slice, writes, fua))),
            Parking::InVain => {
                // A member that is still read holds old data, new, or some of each.
                let parity = job.plan.writes & Roles::PARITIES;
                outcome.differs |= self.distrust(row, &slice, parity);
                None
            }
        }
    }

    fn log_record(row: u64, job: &Job) -> LogRecord {
        let slice = job.task.slice;
        let [p, q] = job.partial.clone();
        LogRecord {
            row,
            within_bytes: u64::from(slice.start),
            len_bytes: slice.len,
            first: slice.modified.indices().next().unwrap_or(0),
            count: slice.modified.count(),
            p,
            q,
            checks: job.checks,
        }
    }

    /// Makes it durable that a range of the array is about to be written.
    pub(super) async fn begin_intent(&self, range: Range<u64>) -> Result<IntentToken, ArrayError> {
        self.check_not_failed()?;
        self.shared.intent.begin(self, range).await
    }

    /// Reads what the batch's plans need. False if not all of it could be read; it is noted at the
    /// tasks.
    pub(super) async fn read_blocks(&self, row: u64, work: &mut Workspace) -> bool {
        let Workspace { jobs, tasks, blocks, reads, buffers, .. } = work;
        buffers.clear();
        buffers.extend(reads.iter().map(|read| blocks.get_mut(read.block).and_then(Option::take)));
        let mut all_read = true;
        let starts = |job: usize| jobs.get(job).map_or(0, |job| job.task.slice.start);
        let started = reads.iter().zip(buffers.iter_mut()).filter_map(|(read, buffer)| {
            let place = self.place(row, read.role, starts(read.job));
            let read_member = self.read_member(place, buffer.take()?);
            Some(async move { (read, read_member.await) })
        });
        fan_out(reads.len(), started, |(read, result)| match result {
            Ok(buffer) => blocks[read.block] = Some(buffer),
            Err(ReadFailure { error, .. }) => {
                all_read = false;
                self.count_unreadable(row, read.role, error);
                if let Some(task) = tasks.get_mut(read.job) {
                    task.unreadable = task.unreadable | read.role;
                }
            }
        })
        .await;
        all_read
    }

    /// Makes parity fit what the members have of a slice, after one had no space for its part.
    /// Answers as [`Self::distrust`].
    async fn reconcile(&self, row: u64, work: &Workspace, job: &Job, claim: &Claim<'_>) -> bool {
        let slice = job.task.slice;
        let parity = job.plan.writes & Roles::PARITIES;
        let fits = match self.fitting_parity(row, work, job, claim).await {
            Some(fitting) => {
                let mut fits = Roles::NONE;
                for (role, data) in [Roles::P, Roles::Q].into_iter().zip(fitting) {
                    let Some(data) = data else { continue };
                    let place = self.place(row, role, slice.start);
                    if self.write_member(place, data, false).await.is_ok() {
                        fits = fits | role;
                    }
                }
                fits
            }
            None => Roles::NONE,
        };
        self.distrust(row, &slice, parity - fits)
    }

    /// These parities do not fit their data, and could not be made to. While all members are there
    /// it is enough to have the row synced again; otherwise they are recorded as bad, so that
    /// nothing is computed from them. Answers whether the row has to be synced.
    pub(super) fn distrust(&self, row: u64, slice: &Slice, parities: Roles) -> bool {
        if parities.is_empty() || mutation!("trust-parity-after-failed-write") {
            return false;
        }
        let geometry = self.shared.geometry();
        let has_failed = self.shared.write_state() == WriteState::Failed;
        if !has_failed && self.map().in_sync.len() == geometry.members() {
            self.shared.require_resync(geometry.row_range(row).start);
            return true;
        }
        for role in parities.iter() {
            let place = self.place(row, role, slice.start);
            let end_bytes = place.offset_bytes + u64::from(slice.len);
            let range = place.offset_bytes..end_bytes;
            self.shared.must_add_bad_blocks(place.slot, range, geometry.row_range(row).start);
        }
        false
    }

    /// Makes the parity of a row fit its data, whatever it was. The row is held.
    pub(in crate::array) async fn sync_row(&self, row: u64) -> Done {
        let stripe = self.stripe();
        let mut work = stripe.workspace();
        let shape = &stripe.shape;
        let most = Cut::new(shape.data_chunks, shape.parities, false).max_bytes;
        for start in (0..shape.chunk_bytes).step_by(most as usize) {
            let len = most.min(shape.chunk_bytes - start);
            work.tasks.push(Task::new(Slice { start, len, modified: Roles::NONE }));
        }
        let mut outcome = Outcome::default();
        let mut result = Ok(());
        while result.is_ok() && !work.tasks.is_empty() {
            result = self.write_batch(row, &mut work, true, &mut outcome).await;
        }
        stripe.keep_workspace(work);
        let no_space = outcome.no_space.map(|slot| ArrayError::NoSpace { slot });
        self.settled(outcome.failed).await.and(result).and(no_space.map_or(Ok(()), Err))
    }

    /// The parity of what the members have of a slice; of what is on no member, of what should be.
    async fn fitting_parity(
        &self,
        row: u64,
        work: &Workspace,
        job: &Job,
        claim: &Claim<'_>,
    ) -> Option<[Option<SharedBuffer>; 2]> {
        let stripe = self.stripe();
        let slice = job.task.slice;
        let len = slice.len as usize;
        let mut parity = [None, None];
        for role in (job.plan.writes & Roles::PARITIES).iter() {
            let at = usize::from(role == Roles::Q);
            let mut sum = stripe.reserve.spare(claim, len)?;
            match &job.partial[at] {
                Some(partial) => sum.copy_from_slice(partial),
                None => sum.fill(0),
            }
            parity[at] = Some(sum);
        }
        let mut term = stripe.reserve.spare(claim, len)?;
        for index in slice.modified.indices() {
            let role = Roles::data(index);
            let members = self.slice_members(row, &slice, self.row_members(row));
            let mut chunk = stripe.reserve.spare(claim, len)?;
            if members.readable.contains(role) {
                let place = self.place(row, role, slice.start);
                chunk = self.read_member(place, chunk).await.ok()?;
            } else {
                work.each_new(&slice, index, &self.zeros, |range, new| {
                    chunk[range].copy_from_slice(new);
                });
            }
            super::work::add_chunk(&mut parity, index, &chunk, &mut term);
        }
        Some(parity.map(|sum| sum.map(crate::buffer::Buffer::freeze)))
    }

    /// Where a chunk of a row is on its member, from `within` on.
    pub(super) fn place(&self, row: u64, role: Roles, within: u32) -> Place {
        let geometry = self.shared.geometry();
        let slot = match role.index() {
            Some(index) => geometry.data_slot(row, index),
            None if role == Roles::Q => geometry.q_slot(row).unwrap_or(usize::MAX),
            None => geometry.parity_slot(row),
        };
        Place { slot, offset_bytes: geometry.row_component_offset(row) + u64::from(within) }
    }

    /// Where in the array the first chunk of a task begins.
    pub(super) fn task_offset(&self, row: u64, task: &Task) -> u64 {
        let index = task.slice.modified.indices().next().unwrap_or(0);
        self.shared.geometry().offset_of(row, index, u64::from(task.slice.start))
    }

    /// What can be used of a row as a whole.
    pub(super) fn row_members(&self, row: u64) -> Members {
        let stripe = self.stripe();
        let chunk = Slice { start: 0, len: stripe.shape.chunk_bytes, modified: Roles::NONE };
        let slots = self.writable();
        let roles = stripe.shape.roles();
        let writable = roles.iter().filter(|&role| slots.contains(self.place(row, role, 0).slot));
        let writable = writable.fold(Roles::NONE, |set, role| set | role);
        let trusted = self.agrees(&self.shared.geometry().row_range(row))
            || mutation!("trust-unsynced-parity");
        let trusted = trusted && !stripe.parked.has_row(row);
        let readable = self.readable(row, &chunk, writable);
        Members { readable, writable, trusted }
    }

    /// What can be used in a slice of it; bad blocks elsewhere in the row do not matter.
    pub(super) fn slice_members(&self, row: u64, slice: &Slice, members: Members) -> Members {
        if members.readable == members.writable {
            return members;
        }
        Members { readable: self.readable(row, slice, members.writable), ..members }
    }

    fn readable(&self, row: u64, slice: &Slice, writable: Roles) -> Roles {
        let end_bytes = self.shared.geometry().row_range(row).end;
        let is_readable = |&role: &Roles| {
            self.is_readable(self.place(row, role, slice.start), u64::from(slice.len), end_bytes)
        };
        writable.iter().filter(is_readable).fold(Roles::NONE, |set, role| set | role)
    }
}
