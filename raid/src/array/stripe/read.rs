//! Reads of a parity level that cannot simply be read: on the row's owner, while nothing writes to
//! the row.
//!
//! All that was asked for is read again; what cannot be read, or is on a member that does not have
//! it, is computed from the other chunks of the row, where parity is trusted. What a member should
//! have and could not read is written to it again. Two reads of one row may do so at the same
//! time: they write the same.

use std::future::poll_fn;
use std::ops::Range;

use super::super::error::{ArrayError, Unread};
use super::super::fan::fan_out;
use super::super::write::Armed;
use super::super::{Array, Done};
use super::pass::Outcome;
use super::plan::{Cut, Roles, Way, plan_read};
use super::queue::Kind;
use super::work::{Job, Workspace};
use crate::buffer::Buffer;
use crate::drive::Drive;

impl<D: Drive> Array<D> {
    /// Reads a range within a shard of a parity level, on its owner.
    pub(in crate::array) async fn stripe_read(
        &self,
        offset_bytes: u64,
        mut buffer: Buffer,
    ) -> Result<Buffer, Unread> {
        let stripe = self.stripe();
        for part in stripe.row_parts(offset_bytes, buffer.len() as u64) {
            let ticket = stripe.rows.enter(part.row, Kind::Shared, 0, None, None);
            poll_fn(|cx| ticket.poll_turn(cx)).await;
            let from = (part.offset_bytes - offset_bytes) as usize;
            let into = &mut buffer[from..from + part.len as usize];
            let mut work = stripe.workspace();
            let range = part.start..part.start + part.len;
            let result = self.read_row(part.row, range, &mut work, into).await;
            stripe.keep_workspace(work);
            drop(ticket);
            if let Err(error) = result {
                return Err(Unread::new(error, buffer));
            }
        }
        Ok(buffer)
    }

    /// Reads a range of a row's data. The row is held.
    async fn read_row(
        &self,
        row: u64,
        range: Range<u32>,
        work: &mut Workspace,
        into: &mut [u8],
    ) -> Done {
        let shape = &self.stripe().shape;
        let most = Cut::new(shape.data_chunks, shape.parities, false).max_bytes;
        work.cut_reads(most, shape.chunk_bytes, range.clone());
        while !work.tasks.is_empty() {
            self.read_batch(row, range.start, work, into).await?;
        }
        Ok(())
    }

    async fn read_batch(
        &self,
        row: u64,
        start: u32,
        work: &mut Workspace,
        into: &mut [u8],
    ) -> Done {
        let stripe = self.stripe();
        let (data_chunks, parities) = (stripe.shape.data_chunks, stripe.shape.parities);
        let epoch = self.shared.epoch();
        let members = self.row_members(row);
        let planned = work.plan_batch(
            self.block_bytes,
            |slice| self.slice_members(row, slice, members),
            |members, wanted| plan_read(data_chunks, parities, members, wanted),
        );
        if let Err(task) = planned {
            return Err(ArrayError::Unrecovered { offset_bytes: self.task_offset(row, &task) });
        }
        let Some(claim) = stripe.reserve.take(&work.sizes, &mut work.blocks).await else {
            work.end_batch();
            return Err(ArrayError::NotReady);
        };
        let all_read = self.read_blocks(row, work).await;
        if all_read && self.shared.epoch() == epoch {
            for job in 0..work.jobs.len() {
                work.decode(job, data_chunks);
                self.copy_out(work, job, start, into);
            }
            self.repair(row, work, members.writable).await;
            work.tasks.drain(..work.jobs.len());
        }
        work.end_batch();
        drop(claim);
        Ok(())
    }

    /// Copies what was asked for of a job.
    fn copy_out(&self, work: &Workspace, job: usize, start: u32, into: &mut [u8]) {
        let chunk_bytes = self.stripe().shape.chunk_bytes as usize;
        let Some(job) = work.jobs.get(job) else { return };
        let slice = job.task.slice;
        for index in slice.modified.indices() {
            if let Some(data) = work.known(job, Roles::data(index)) {
                let at = index * chunk_bytes + slice.start as usize - start as usize;
                into[at..at + data.len()].copy_from_slice(data);
            }
        }
        if job.plan.way == Way::Decode {
            self.stripe_counters().degraded_reads.add(1);
        }
    }

    /// Writes what could not be read and was computed to the members that should have it. That is
    /// a favour: the answer does not depend on it.
    async fn repair(&self, row: u64, work: &mut Workspace, writable: Roles) {
        let repairs = |job: &Job| job.task.unreadable & job.plan.unknown & writable;
        if work.jobs.iter().all(|job| repairs(job).is_empty()) {
            return;
        }
        let Ok(permit) = self.shared.begin_write(self.endpoint.core()).await else { return };
        for index in 0..work.jobs.len() {
            let repairs = repairs(&work.jobs[index]);
            let place = |role, within| self.place(row, role, within);
            work.make_writes(index, repairs, &self.zeros, place, |_| None);
        }
        let armed = Armed::new(&self.shared, self.shared.geometry().row_range(row).start);
        let mut outcome = Outcome::default();
        let writes = work.writes.drain(..);
        let count = writes.len();
        let writes = writes.map(|(place, data)| self.write_member(place, data, false));
        fan_out(count, writes, |result| {
            self.stripe_counters().parts_repaired.add(u64::from(result.is_ok()));
            outcome.add(result);
        })
        .await;
        armed.disarm();
        drop(permit);
        // Nothing that was acknowledged is missing on a member that failed here.
        let _ = self.settled(outcome.failed).await;
    }
}
