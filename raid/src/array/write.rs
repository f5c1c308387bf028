//! Everything that changes data: writes, zeroing, flushes, and the serving of other cores'
//! requests.
//!
//! The way of a write to a level with copies:
//! 1. it is cut at shards, and each piece goes to the shard's owner (a call, if that is another
//!    core);
//! 2. the owner gets a permit, which waits until the superblocks say "active";
//! 3. it enters the range and waits until it holds it;
//! 4. it submits the data to all copies at once and waits for all;
//! 5. if a member had no space, it copies the first copy over the others (some may have the new
//!    data, some not); if a member failed otherwise, the array fails;
//! 6. it leaves the range and answers.
//!
//! From the submission to the last completion an [`Armed`] guard is there: if the future is
//! dropped in between, the array fails rather than let a late write hit newer data.

use futures_util::stream::{self, StreamExt};

use super::error::{ArrayError, WriteFailure};
use super::fan::fan_out;
use super::member::MemberError;
use super::shared::{Failure, Shared, WriteState};
use super::{Answer, Array};
use crate::buffer::SharedBuffer;
use crate::drive::{Drive, DriveError};

/// Pieces of one large request that are under way at once.
const PIECES_AT_ONCE: usize = 4;

/// Largest piece in which RAID 0 zeroes, so that other requests come between.
const PLAIN_ZERO_BYTES: u64 = 64 << 20;

/// What one core asks of another that owns a shard. Ranges are of the array, within the shard.
pub struct Call(Work);

/// Something that a shard's owner does.
#[derive(Clone)]
pub(super) enum Work {
    /// Write data.
    Write { offset_bytes: u64, data: SharedBuffer, fua: bool },
    /// Make a range zeros.
    Zero { offset_bytes: u64, len_bytes: u64, kind: Zeroing },
    /// Make all copies like the first.
    Sync { offset_bytes: u64, len_bytes: u64 },
}

/// How a range is made zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Zeroing {
    /// By all means, if need be by writing zeros.
    Write { deallocate: bool },
    /// Only if all members concerned have an operation for it; else nothing is done.
    Deallocate,
}

/// What has come of operations on several members.
#[derive(Default)]
pub(super) struct Outcome {
    failed: Option<MemberError>,
    no_space: Option<usize>,
    unsupported: bool,
    succeeded: bool,
}

impl Outcome {
    pub(super) fn add(&mut self, result: Result<(), MemberError>) {
        match result {
            Ok(()) => self.succeeded = true,
            Err(MemberError { error: DriveError::Unsupported, .. }) => self.unsupported = true,
            Err(MemberError { slot, error: DriveError::NoSpace }) => self.no_space = Some(slot),
            Err(error) => self.failed = Some(error),
        }
    }
}

impl Outcome {
    /// The failure, other than for lack of space or support, if there was one.
    pub(super) fn failed(&self) -> Option<MemberError> {
        self.failed
    }

    /// Slot of a member without space, if there was one.
    pub(super) fn no_space(&self) -> Option<usize> {
        self.no_space
    }
}

/// Guards writes or a flush under way: if it is dropped armed, they were abandoned.
pub(super) struct Armed<'a> {
    shared: &'a Shared,
    /// From where on copies may be unequal then: [`super::IN_SYNC`] if nowhere.
    offset_bytes: u64,
    armed: bool,
}

impl<'a> Armed<'a> {
    pub(super) fn new(shared: &'a Shared, offset_bytes: u64) -> Self {
        Self { shared, offset_bytes, armed: true }
    }

    pub(super) fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.shared.require_resync(self.offset_bytes);
            self.shared.fail(Failure::Abandoned);
        }
    }
}

impl<D: Drive> Array<D> {
    /// Writes `data` at `offset_bytes`; with `fua` it is safe from power loss when this returns.
    /// Must not be dropped before it ends.
    ///
    /// # Errors
    /// After an error the range may hold old or new data, block by block.
    pub async fn write(
        &self,
        offset_bytes: u64,
        data: SharedBuffer,
        fua: bool,
    ) -> Result<(), ArrayError> {
        let len_bytes = data.len() as u64;
        self.check_range(offset_bytes, len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        let geometry = self.shared.geometry();
        if !geometry.is_redundant() {
            return self.write_piece(offset_bytes, data, fua).await;
        }
        let (first_bytes, shard) = geometry.first_shard(offset_bytes, len_bytes);
        if first_bytes == len_bytes {
            return self.on_owner(shard, Work::Write { offset_bytes, data, fua }).await;
        }
        let work = |at: u64, len: u64| {
            let from = (at - offset_bytes) as usize;
            let data = data.slice(from..from + len as usize);
            Work::Write { offset_bytes: at, data, fua }
        };
        // Rare, and large; boxed so that the common write's future stays small.
        Box::pin(self.on_owners(offset_bytes, len_bytes, &work)).await
    }

    /// Makes the range read as zeros, releasing its space where that is asked for and possible.
    /// Must not be dropped before it ends.
    ///
    /// # Errors
    /// After an error the range may hold old data or zeros, block by block.
    pub async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        deallocate: bool,
        fua: bool,
    ) -> Result<(), ArrayError> {
        Box::pin(self.zero(offset_bytes, len_bytes, Zeroing::Write { deallocate })).await?;
        // Zeroing has no FUA of its own; whatever cores did it, a flush here covers it.
        if fua { self.flush().await } else { Ok(()) }
    }

    /// Releases the space of the range, as far as the members have an operation after which it is
    /// sure to read as zeros; elsewhere nothing happens. Must not be dropped before it ends.
    ///
    /// # Errors
    /// After an error the range may hold old data or zeros, block by block.
    pub async fn deallocate(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), ArrayError> {
        Box::pin(self.zero(offset_bytes, len_bytes, Zeroing::Deallocate)).await
    }

    /// Makes every write that was acknowledged, by whichever core, before this call safe from
    /// power loss. Must not be dropped before it ends.
    ///
    /// # Errors
    /// If a member cannot flush; the array has failed then.
    pub async fn flush(&self) -> Result<(), ArrayError> {
        if self.shared.write_state() == WriteState::Failed {
            return Err(ArrayError::WriteFailed(WriteFailure::ArrayFailed));
        }
        let mut failed = None;
        let flushes = self.members.iter().map(|member| member.flush(&self.shared));
        fan_out(self.members.len(), flushes, |result| failed = failed.or(result.err())).await;
        match failed {
            None => Ok(()),
            Some(MemberError { slot, error }) => {
                self.shared.fail(Failure::Flush { slot, error });
                Err(ArrayError::WriteFailed(WriteFailure::Member { slot, error }))
            }
        }
    }

    /// Serves the requests of other cores to this one, one at a time; never ends. Run several at
    /// once. May be dropped while it waits for a request, not while it works on one.
    pub async fn serve(&self) -> std::convert::Infallible {
        loop {
            let received = self.endpoint.next_call(self.shared.service()).await;
            let answer = self.do_work(received.call.0).await;
            received.token.answer(answer);
        }
    }

    /// Has the owner of `shard` do something.
    pub(super) async fn on_owner(&self, shard: u64, work: Work) -> Answer {
        let owner = self.shared.geometry().owner(shard, self.endpoint.cores());
        if owner == self.endpoint.core() {
            return self.do_work(work).await;
        }
        // A handle on the data stays here until the answer has come: so the buffer is freed by
        // the core whose pool it is of.
        let kept = work.clone();
        let answer = self.endpoint.call(owner, self.shared.service(), Call(work)).await;
        drop(kept);
        answer.unwrap_or(Err(ArrayError::WriteFailed(WriteFailure::OwnerStopped)))
    }

    /// Has the owners of the shards of a range do their parts, some at a time.
    async fn on_owners(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        work: &dyn Fn(u64, u64) -> Work,
    ) -> Answer {
        let geometry = self.shared.geometry();
        let mut at = offset_bytes;
        let pieces = std::iter::from_fn(|| {
            let left = offset_bytes + len_bytes - at;
            let (len, shard) = geometry.first_shard(at, left);
            let piece = (left > 0).then(|| (shard, work(at, len)));
            at += len;
            piece
        });
        let mut answers = stream::iter(pieces)
            .map(|(shard, work)| self.on_owner(shard, work))
            .buffer_unordered(PIECES_AT_ONCE);
        // All of them, whatever the first ones say: they must run to completion.
        let mut result = Ok(());
        while let Some(answer) = answers.next().await {
            result = result.and(answer);
        }
        result
    }

    async fn do_work(&self, work: Work) -> Answer {
        match work {
            Work::Write { offset_bytes, data, fua } => {
                self.write_piece(offset_bytes, data, fua).await
            }
            Work::Zero { offset_bytes, len_bytes, kind } => {
                Box::pin(self.zero_piece(offset_bytes, len_bytes, kind)).await
            }
            Work::Sync { offset_bytes, len_bytes } => {
                Box::pin(self.sync_shard(offset_bytes, len_bytes)).await
            }
        }
    }

    /// Writes a piece within a shard, on its owner (RAID 0: any range, on any core).
    async fn write_piece(&self, offset_bytes: u64, data: SharedBuffer, fua: bool) -> Answer {
        let geometry = self.shared.geometry();
        let end_bytes = offset_bytes + data.len() as u64;
        let permit = self.shared.begin_write(self.endpoint.core()).await?;
        let lock = geometry
            .is_redundant()
            .then(|| self.locks.enter(geometry.shard_of(offset_bytes), offset_bytes..end_bytes));
        if let Some(lock) = &lock {
            lock.held().await;
            self.check_not_failed()?;
        }
        let armed = Armed::new(&self.shared, offset_bytes);
        let mut outcome = Outcome::default();
        let count =
            geometry.extent_count(offset_bytes, data.len() as u64) as usize * geometry.copies();
        let writes = geometry
            .extents(offset_bytes, data.len() as u64)
            .flat_map(|extent| (0..extent.copies).map(move |copy| (extent, extent.place(copy))));
        let writes = writes.map(|(extent, place)| {
            let from = extent.position_bytes as usize;
            let part = data.slice(from..from + extent.len_bytes as usize);
            self.members[place.slot].write(&self.shared, place.offset_bytes, part, fua)
        });
        fan_out(count, writes, |result| outcome.add(result)).await;
        let result = self.settle(offset_bytes, end_bytes, outcome).await;
        armed.disarm();
        drop((lock, permit));
        result
    }

    /// What is left to do, and to answer, after the members have been written; the range is held.
    async fn settle(&self, offset_bytes: u64, end_bytes: u64, outcome: Outcome) -> Answer {
        if let Some(failed) = outcome.failed {
            return Err(self.fail_write(offset_bytes, failed));
        }
        let Some(slot) = outcome.no_space else { return Ok(()) };
        if self.shared.geometry().copies() > 1 {
            // Some copies may have the new data and some not.
            let equal =
                Box::pin(self.copy_first_copy(offset_bytes, end_bytes - offset_bytes)).await;
            if equal.is_err() {
                self.shared.require_resync(offset_bytes);
            }
        }
        Err(ArrayError::NoSpace { slot })
    }

    /// Fails the array for a member that did not write, and says so.
    pub(super) fn fail_write(&self, offset_bytes: u64, failed: MemberError) -> ArrayError {
        let MemberError { slot, error } = failed;
        self.shared.require_resync(offset_bytes);
        self.shared.fail(Failure::Write { slot, error });
        ArrayError::WriteFailed(WriteFailure::Member { slot, error })
    }

    pub(super) fn check_not_failed(&self) -> Result<(), ArrayError> {
        match self.shared.write_state() {
            WriteState::Failed => Err(ArrayError::WriteFailed(WriteFailure::ArrayFailed)),
            _ => Ok(()),
        }
    }

    async fn zero(&self, offset_bytes: u64, len_bytes: u64, kind: Zeroing) -> Answer {
        self.check_range(offset_bytes, len_bytes)?;
        if self.shared.geometry().is_redundant() {
            let work = |at, len| Work::Zero { offset_bytes: at, len_bytes: len, kind };
            return self.on_owners(offset_bytes, len_bytes, &work).await;
        }
        let (mut at, end) = (offset_bytes, offset_bytes + len_bytes);
        while at < end {
            let len = PLAIN_ZERO_BYTES.min(end - at);
            self.zero_piece(at, len, kind).await?;
            at += len;
        }
        Ok(())
    }

    /// Zeroes a piece within a shard, on its owner (RAID 0: any range, on any core).
    async fn zero_piece(&self, offset_bytes: u64, len_bytes: u64, kind: Zeroing) -> Answer {
        let geometry = self.shared.geometry();
        let end_bytes = offset_bytes + len_bytes;
        let permit = self.shared.begin_write(self.endpoint.core()).await?;
        let lock = geometry
            .is_redundant()
            .then(|| self.locks.enter(geometry.shard_of(offset_bytes), offset_bytes..end_bytes));
        if let Some(lock) = &lock {
            lock.held().await;
            self.check_not_failed()?;
        }
        let armed = Armed::new(&self.shared, offset_bytes);
        let outcome = self.zero_members(offset_bytes, len_bytes, kind).await;
        let result = self.settle(offset_bytes, end_bytes, outcome).await;
        armed.disarm();
        drop((lock, permit));
        result
    }

    /// Zeroes a range on all members concerned. Those that cannot are written, if that is asked
    /// for or others of them have been zeroed: copies must stay equal.
    async fn zero_members(&self, offset_bytes: u64, len_bytes: u64, kind: Zeroing) -> Outcome {
        let ranges = || {
            self.members.iter().filter_map(|member| {
                let geometry = self.shared.geometry();
                let range = geometry.member_range(member.slot(), offset_bytes, len_bytes);
                (!range.is_empty()).then_some((member, range))
            })
        };
        let mut outcome = Outcome::default();
        let deallocate = kind != Zeroing::Write { deallocate: false };
        if kind == Zeroing::Deallocate && ranges().any(|(member, _)| member.cannot_zero()) {
            return outcome;
        }
        let zeroings = ranges().map(|(member, range)| {
            member.zero(&self.shared, range.start, range.end - range.start, deallocate)
        });
        fan_out(ranges().count(), zeroings, |result| outcome.add(result)).await;
        if !outcome.unsupported || outcome.failed.is_some() {
            return outcome;
        }
        if kind == Zeroing::Deallocate && !outcome.succeeded {
            // Nobody has to write; but who found only on the way that it cannot may have zeroed
            // what came before. This happens once: from now on it is known.
            if self.copy_first_copy(offset_bytes, len_bytes).await.is_err() {
                self.shared.require_resync(offset_bytes);
            }
            return outcome;
        }
        for (member, range) in ranges().filter(|(member, _)| member.cannot_zero()) {
            let mut at = range.start;
            while at < range.end {
                let len = (range.end - at).min(self.zeros.len() as u64);
                let zeros = self.zeros.slice(..len as usize);
                let result = member.write(&self.shared, at, zeros, false).await;
                let stop = result.is_err();
                outcome.add(result);
                if stop {
                    break;
                }
                at += len;
            }
        }
        outcome
    }
}
