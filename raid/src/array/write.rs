//! Everything that changes data: writes, zeroing, flushes, and the serving of other cores'
//! requests.
//!
//! The way of a write to a level with copies:
//! 1. it is cut at shards, and each piece goes to the shard's owner (a call, if that is another
//!    core);
//! 2. the owner gets a permit, which waits until the superblocks say "active";
//! 3. it enters the range and waits until it holds it;
//! 4. it takes a view of the members, and makes its intent durable where that is kept; if the
//!    members have changed meanwhile, again;
//! 5. it submits the data to all writable copies at once and waits for all; members that fail are
//!    out;
//! 6. if a member had no space, it copies one copy over the others (some may have the new data,
//!    some not);
//! 7. it waits until the members that are out are durably so, leaves the range and answers.
//!
//! From the submission to the last completion an [`Armed`] guard is there: if the future is
//! dropped in between, the array fails rather than let a late write hit newer data.

use std::ops::Range;
use std::sync::atomic::Ordering;

use futures_util::stream::{self, StreamExt};

use super::error::{ArrayError, Unread, WriteFailure};
use super::fan::fan_out;
use super::intent::IntentToken;
use super::member::MemberError;
use super::membership::Failure;
use super::recovery::Chore;
use super::shared::{Shared, WriteState};
use super::slots::SlotSet;
use super::{Answer, Array, Done};
use crate::buffer::{Buffer, SharedBuffer};
use crate::drive::{Drive, DriveError};
use crate::geometry::Place;
use crate::mutation::mutation;

/// Pieces of one large request that are under way at once.
const PIECES_AT_ONCE: usize = 4;

/// Largest piece in which RAID 0 zeroes, so that other requests come between.
const PLAIN_ZERO_BYTES: u64 = 64 << 20;

/// What one core asks of another that owns a shard. Ranges are of the array, within the shard.
pub struct Call(Work);

/// Something that a shard's owner does.
pub(in crate::array) enum Work {
    /// Write data.
    Write { offset_bytes: u64, data: SharedBuffer, fua: bool },
    /// Make a range zeros.
    Zero { offset_bytes: u64, len_bytes: u64, kind: Zeroing },
    /// Read what cannot simply be read from a member; a read from the member in `failed` failed.
    Read { offset_bytes: u64, buffer: Buffer, failed: Option<usize> },
    /// A part of a long task.
    Recover { chore: Chore, offset_bytes: u64, len_bytes: u64 },
}

/// How a range is made zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::array) enum Zeroing {
    /// By all means, if need be by writing zeros.
    Write { deallocate: bool },
    /// Only if all members concerned have an operation for it; else nothing is done.
    Deallocate,
}

/// What has come of operations on several members. Those that failed are out by then.
#[derive(Default)]
pub(in crate::array) struct Outcome {
    failed: Option<MemberError>,
    /// Slots of all that failed.
    missed: SlotSet,
    no_space: Option<usize>,
    unsupported: bool,
    succeeded: bool,
}

impl Outcome {
    pub(in crate::array) fn add(&mut self, result: Result<(), MemberError>) {
        match result {
            Ok(()) => self.succeeded = true,
            Err(MemberError { error: DriveError::Unsupported, .. }) => self.unsupported = true,
            Err(MemberError { slot, error: DriveError::NoSpace }) => self.no_space = Some(slot),
            Err(error) => {
                self.failed = Some(error);
                self.missed.insert(error.slot);
            }
        }
    }

    /// Slot of a member without space, if there was one.
    pub(in crate::array) fn no_space(&self) -> Option<usize> {
        self.no_space
    }
}

/// Guards writes or a flush under way: if it is dropped armed, they were abandoned.
pub(in crate::array) struct Armed<'a> {
    shared: &'a Shared,
    /// From where on copies may be unequal then: [`super::IN_SYNC`] if nowhere.
    offset_bytes: u64,
    armed: bool,
}

impl<'a> Armed<'a> {
    pub(in crate::array) fn new(shared: &'a Shared, offset_bytes: u64) -> Self {
        Self { shared, offset_bytes, armed: true }
    }

    pub(in crate::array) fn disarm(mut self) {
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
        loop {
            let mends = self.shared.mends();
            let result = self.write_once(offset_bytes, data.clone(), fua).await;
            match result {
                Err(error) => Box::pin(self.held(error, mends)).await?,
                Ok(()) => return Ok(()),
            }
        }
    }

    pub(super) async fn write_once(
        &self,
        offset_bytes: u64,
        data: SharedBuffer,
        fua: bool,
    ) -> Done {
        let len_bytes = data.len() as u64;
        let geometry = self.shared.geometry();
        if !geometry.is_redundant() {
            return self.write_piece(offset_bytes, data, fua).await;
        }
        let (first_bytes, shard) = geometry.first_shard(offset_bytes, len_bytes);
        if first_bytes == len_bytes {
            return self.on_owner(shard, Work::Write { offset_bytes, data, fua }).await.result;
        }
        let work = |at: u64, len: u64| {
            let from = (at - offset_bytes) as usize;
            let data = data.slice(from..from + len as usize);
            Work::Write { offset_bytes: at, data, fua }
        };
        // Rare, and large; boxed so that the common write's future stays small.
        Box::pin(self.on_owners(offset_bytes, len_bytes, &work)).await
    }

    /// What a command does that failed: to be tried again (`Ok`) if that was because the array had
    /// failed, and it was mended while the command was held, or on its way here. It began when
    /// there had been so many `mends`.
    pub(in crate::array) async fn held(&self, error: ArrayError, mends: u64) -> Done {
        match self.shared.write_state() {
            // It is told once.
            _ if error == ArrayError::WriteFailed(WriteFailure::CacheLost) => Err(error),
            WriteState::Failed => self.shared.held(error).await,
            _ if self.shared.mends() != mends => Ok(()),
            _ => Err(error),
        }
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
        let kind = Zeroing::Write { deallocate };
        let mut mends = self.shared.mends();
        while let Err(error) = Box::pin(self.zero(offset_bytes, len_bytes, kind)).await {
            Box::pin(self.held(error, mends)).await?;
            mends = self.shared.mends();
        }
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
    /// If the array has failed. A member that cannot flush is out, and the others have the data.
    pub async fn flush(&self) -> Result<(), ArrayError> {
        let mut mends = self.shared.mends();
        while let Err(error) = self.flush_once().await {
            Box::pin(self.held(error, mends)).await?;
            mends = self.shared.mends();
        }
        Ok(())
    }

    pub(in crate::array) async fn flush_once(&self) -> Done {
        self.check_not_failed()?;
        let lost_caches = self.shared.lost_caches.load(Ordering::SeqCst);
        if self.told_caches.replace(lost_caches) != lost_caches {
            return Err(ArrayError::WriteFailed(WriteFailure::CacheLost));
        }
        let writable = self.writable();
        let count = if mutation!("flush-one-member") { 1 } else { writable.len() };
        let flushes = writable.iter().take(count).map(|slot| self.flush_member(slot));
        let mut failed = None;
        fan_out(count, flushes, |result| failed = failed.or(result.err())).await;
        self.settled(failed).await
    }

    /// Waits until the members that are out are durably so; `failed` is one of this request's.
    pub(in crate::array) async fn settled(&self, failed: Option<MemberError>) -> Done {
        let settled = self.shared.settled().await;
        match (settled, failed) {
            (Err(ArrayError::WriteFailed(_)), Some(MemberError { slot, error })) => {
                Err(ArrayError::WriteFailed(WriteFailure::Member { slot, error }))
            }
            (settled, _) => settled,
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
    pub(in crate::array) async fn on_owner(&self, shard: u64, work: Work) -> Answer {
        let owner = self.shared.geometry().owner(shard, self.endpoint.cores());
        if owner == self.endpoint.core() {
            return self.do_work(work).await;
        }
        // A handle on the data stays here until the answer has come: so the buffer is freed by
        // the core whose pool it is of.
        let kept = match &work {
            Work::Write { data, .. } => Some(data.clone()),
            _ => None,
        };
        let answer = self.endpoint.call(owner, self.shared.service(), Call(work)).await;
        drop(kept);
        let stopped = ArrayError::WriteFailed(WriteFailure::OwnerStopped);
        answer.unwrap_or(Answer { result: Err(stopped), buffer: None })
    }

    /// Has the owners of the shards of a range do their parts, some at a time.
    async fn on_owners(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        work: &dyn Fn(u64, u64) -> Work,
    ) -> Done {
        let geometry = self.shared.geometry();
        let mut at = offset_bytes;
        let pieces = std::iter::from_fn(|| {
            let left = offset_bytes + len_bytes - at;
            let (len, shard) = geometry.first_shard(at, left);
            let piece = (left > 0).then(|| (shard, work(at, len)));
            at += len;
            piece
        });
        let answer = |(shard, work): (u64, Work)| async move {
            // Whoever waits here occupies none of the owner's servers.
            let turn = match work {
                Work::Zero { .. } => Some(self.zeroings.take().await),
                _ => None,
            };
            let answer = self.on_owner(shard, work).await;
            drop(turn);
            answer
        };
        let mut answers = stream::iter(pieces).map(answer).buffer_unordered(PIECES_AT_ONCE);
        // All of them, whatever the first ones say: they must run to completion.
        let mut result = Ok(());
        while let Some(answer) = answers.next().await {
            result = result.and(answer.result);
        }
        result
    }

    async fn do_work(&self, work: Work) -> Answer {
        let result = match work {
            Work::Write { offset_bytes, data, fua } if self.stripe.is_some() => {
                self.stripe_write(offset_bytes, data, fua).await
            }
            Work::Write { offset_bytes, data, fua } => {
                self.write_piece(offset_bytes, data, fua).await
            }
            Work::Zero { offset_bytes, len_bytes, kind } if self.stripe.is_some() => {
                Box::pin(self.stripe_zero(offset_bytes, len_bytes, kind)).await
            }
            Work::Zero { offset_bytes, len_bytes, kind } => {
                Box::pin(self.zero_piece(offset_bytes, len_bytes, kind)).await
            }
            Work::Read { offset_bytes, buffer, failed } => {
                let read = Box::pin(self.read_piece(offset_bytes, buffer, failed)).await;
                return match read {
                    Ok(buffer) => Answer { result: Ok(()), buffer: Some(buffer) },
                    Err(Unread { error, buffer }) => Answer { result: Err(error), buffer },
                };
            }
            Work::Recover { chore, offset_bytes, len_bytes } => {
                Box::pin(self.recover_shard(chore, offset_bytes, len_bytes)).await
            }
        };
        Answer { result, buffer: None }
    }

    /// Writes a piece within a shard, on its owner (RAID 0: any range, on any core).
    async fn write_piece(&self, offset_bytes: u64, data: SharedBuffer, fua: bool) -> Done {
        let geometry = self.shared.geometry();
        let end_bytes = offset_bytes + data.len() as u64;
        let permit = self.shared.begin_write(self.endpoint.core()).await?;
        let lock = geometry
            .is_redundant()
            .then(|| self.locks.enter(geometry.shard_of(offset_bytes), offset_bytes..end_bytes));
        if let Some(lock) = &lock
            && !mutation!("write-without-lock")
        {
            lock.held().await;
        }
        let (writable, token) = self.prepare(offset_bytes..end_bytes).await?;
        let armed = Armed::new(&self.shared, offset_bytes);
        let mut outcome = Outcome::default();
        let count =
            geometry.extent_count(offset_bytes, data.len() as u64) as usize * geometry.copies();
        let writes = geometry
            .extents(offset_bytes, data.len() as u64)
            .flat_map(|extent| (0..extent.copies).map(move |copy| (extent, extent.place(copy))))
            .filter(|(_, place)| writable.contains(place.slot));
        let writes = writes.map(|(extent, place)| {
            let from = extent.position_bytes as usize;
            let part = data.slice(from..from + extent.len_bytes as usize);
            self.write_member(place, part, fua)
        });
        fan_out(count, writes, |result| outcome.add(result)).await;
        let (result, agree) = self.settle(offset_bytes, end_bytes, outcome).await;
        let ended = self.shared.intent.end(self, token, agree).await;
        armed.disarm();
        drop((lock, permit));
        result.and(ended)
    }

    /// Makes the intent to write a range durable, and says which members have to be written. Write
    /// without waiting for anything in between: then the answer still holds.
    async fn prepare(&self, range: Range<u64>) -> Result<(SlotSet, IntentToken), ArrayError> {
        loop {
            self.check_not_failed()?;
            let epoch = self.shared.epoch();
            let token = self.shared.intent.begin(self, range.clone()).await?;
            if self.shared.epoch() == epoch {
                return Ok((self.writable(), token));
            }
            self.shared.intent.end(self, token, true).await?;
        }
    }

    /// The members that every write must reach.
    pub(in crate::array) fn writable(&self) -> SlotSet {
        let map = self.map();
        if mutation!("skip-rebuilding-member") {
            return map.in_sync;
        }
        map.in_sync.or(map.rebuilding)
    }

    /// What is left to do, and to answer, after the members have been written; the range is held.
    /// Also says whether all members that are in use hold the same in the range.
    async fn settle(&self, offset_bytes: u64, end_bytes: u64, outcome: Outcome) -> (Done, bool) {
        let mut agree = true;
        let behind = outcome.missed.and(self.map().in_sync);
        if !behind.is_empty() {
            // They stay, though they may lack what others have: the array has failed, or it had
            // and their drives are back already.
            self.shared.require_resync(offset_bytes);
            agree = false;
        }
        if let Some(slot) = outcome.no_space {
            if self.has_redundancy() {
                // Some copies may have the new data and some not.
                let equal =
                    Box::pin(self.copy_first_copy(offset_bytes, end_bytes - offset_bytes)).await;
                if equal.is_err() {
                    self.shared.require_resync(offset_bytes);
                    agree = false;
                }
            }
            let settled = self.settled(outcome.failed).await;
            return (settled.and(Err(ArrayError::NoSpace { slot })), agree);
        }
        let settled = self.settled(outcome.failed).await;
        let missed = match outcome.failed {
            Some(MemberError { slot, error }) if !behind.is_empty() => {
                Err(ArrayError::WriteFailed(WriteFailure::Member { slot, error }))
            }
            _ => Ok(()),
        };
        (settled.and(missed), agree)
    }

    pub(in crate::array) fn check_not_failed(&self) -> Result<(), ArrayError> {
        match self.shared.write_state() {
            WriteState::Failed => Err(ArrayError::WriteFailed(WriteFailure::ArrayFailed)),
            _ => Ok(()),
        }
    }

    async fn zero(&self, offset_bytes: u64, len_bytes: u64, kind: Zeroing) -> Done {
        self.check_range(offset_bytes, len_bytes)?;
        if self.shared.geometry().is_redundant() {
            let work = |at, len| Work::Zero { offset_bytes: at, len_bytes: len, kind };
            return self.on_owners(offset_bytes, len_bytes, &work).await;
        }
        let (mut at, end) = (offset_bytes, offset_bytes + len_bytes);
        while at < end {
            let len = PLAIN_ZERO_BYTES.min(end - at);
            let turn = self.zeroings.take().await;
            self.zero_piece(at, len, kind).await?;
            drop(turn);
            at += len;
        }
        Ok(())
    }

    /// Zeroes a piece within a shard, on its owner (RAID 0: any range, on any core).
    async fn zero_piece(&self, offset_bytes: u64, len_bytes: u64, kind: Zeroing) -> Done {
        let geometry = self.shared.geometry();
        let end_bytes = offset_bytes + len_bytes;
        let permit = self.shared.begin_write(self.endpoint.core()).await?;
        let lock = geometry
            .is_redundant()
            .then(|| self.locks.enter(geometry.shard_of(offset_bytes), offset_bytes..end_bytes));
        if let Some(lock) = &lock {
            lock.held().await;
        }
        let (writable, token) = self.prepare(offset_bytes..end_bytes).await?;
        let armed = Armed::new(&self.shared, offset_bytes);
        let outcome = self.zero_members(offset_bytes, len_bytes, kind, writable).await;
        let (result, agree) = self.settle(offset_bytes, end_bytes, outcome).await;
        let ended = self.shared.intent.end(self, token, agree).await;
        armed.disarm();
        drop((lock, permit));
        result.and(ended)
    }

    /// Zeroes a range on all members concerned. Those that cannot are written, if that is asked
    /// for or others of them have been zeroed: copies must stay equal.
    async fn zero_members(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        kind: Zeroing,
        writable: SlotSet,
    ) -> Outcome {
        let ranges = || {
            writable.iter().filter_map(|slot| {
                let geometry = self.shared.geometry();
                let range = geometry.member_range(slot, offset_bytes, len_bytes);
                (!range.is_empty()).then_some((slot, range))
            })
        };
        let cannot_zero =
            |slot: usize| self.member(slot).is_some_and(|member| member.cannot_zero());
        let mut outcome = Outcome::default();
        let deallocate = kind != Zeroing::Write { deallocate: false };
        if kind == Zeroing::Deallocate && ranges().any(|(slot, _)| cannot_zero(slot)) {
            return outcome;
        }
        let zeroings = ranges().map(|(slot, range)| {
            let place = Place { slot, offset_bytes: range.start };
            self.zero_member(place, range.end - range.start, deallocate)
        });
        fan_out(ranges().count(), zeroings, |result| outcome.add(result)).await;
        if !outcome.unsupported {
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
        for (slot, range) in ranges().filter(|&(slot, _)| cannot_zero(slot)) {
            let mut at = range.start;
            while at < range.end {
                let len = (range.end - at).min(self.zeros.len() as u64);
                let zeros = self.zeros.slice(..len as usize);
                let place = Place { slot, offset_bytes: at };
                let result = self.write_member(place, zeros, false).await;
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
