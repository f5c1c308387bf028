//! Passes that were cut short because the array failed, and wait for its drives.
//!
//! When a drive goes without which the array has failed, the member writes of a slice may have
//! reached some members and not others: its parity fits nothing, and yet it has to stand in for the
//! members that were lost before. So all that the pass was about to write is kept: it is *parked*.
//! While the array has failed nobody else writes, so that it stays good. Once all drives are back
//! that the array needs, each core repeats its parked passes ([`Array::resume`]), and only then the
//! array works again ([`Shared::mend`](crate::array::Shared::mend)). To repeat the same writes does
//! no harm wherever they had been done.
//!
//! * The commands are answered as those of any failed array: they fail, or are held and tried again
//!   when the array works again, behind what was parked. Nobody waits for a parked pass.
//! * Parity of a parked row is not trusted: what is on no member cannot be read meanwhile.
//! * What the write intent has of it stays: its bits are set, and the place of a log record is not
//!   used again before the members have been flushed, which an array that has failed does not do.
//!   What was repeated is flushed before the array works again.
//! * Memory is that of what was under way. The data is copied out of the hosts' buffers, which are
//!   needed for the answers of those who read.
//! * It does not matter what the drives said: one that is being pulled may say anything. If they do
//!   not come back, what is parked is to the next start what writes are that a crash has cut short.
//! * An array that is stopped forgets its parked passes and is not clean then.

use std::cell::RefCell;
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

use super::super::Array;
use super::super::fan::fan_out;
use super::super::intent::IntentToken;
use super::super::membership::Parking;
use super::super::slots::SlotSet;
use super::super::write::{Armed, Zeroing};
use super::pass::Outcome;
use super::plan::{Roles, Slice};
use crate::buffer::{Pool, SharedBuffer};
use crate::drive::Drive;
use crate::geometry::{MAX_CHUNK_BYTES, Place};

/// Memory for what parked passes write, on each core; what does not fit stays where it is.
pub(super) const PARKED_BYTES: usize = 64 << 20;

/// Something to be done again, on all members concerned.
pub(super) struct ParkedJob {
    pub(super) redo: Redo,
    /// What it makes right, and in which rows.
    pub(super) rows: Range<u64>,
    pub(super) slice: Slice,
}

/// What is done.
pub(super) enum Redo {
    /// The writes of a slice.
    Writes { writes: Vec<(Place, SharedBuffer)>, fua: bool },
    /// The zeroing of a range of all members' data areas.
    Zero { range: Range<u64>, kind: Zeroing },
}

/// What is left of a pass.
struct Pass {
    rows: Range<u64>,
    token: IntentToken,
    jobs: Vec<ParkedJob>,
}

/// The parked passes of a core.
#[derive(Default)]
pub(super) struct Parked {
    passes: RefCell<Vec<Rc<Pass>>>,
    /// Where their data is, while there are any.
    pool: RefCell<Option<Pool>>,
}

impl Parked {
    /// Whether anything in a row waits to be repeated.
    pub(super) fn has_row(&self, row: u64) -> bool {
        self.passes.borrow().iter().any(|pass| pass.rows.contains(&row))
    }

    fn is_empty(&self) -> bool {
        self.passes.borrow().is_empty()
    }

    /// The same bytes in memory of our own, if there is any.
    fn copy(&self, data: &SharedBuffer) -> SharedBuffer {
        let mut pool = self.pool.borrow_mut();
        if pool.is_none() {
            *pool = Pool::new(PARKED_BYTES, MAX_CHUNK_BYTES as usize).ok();
        }
        match pool.as_ref().and_then(|pool| pool.allocate(data.len())) {
            Some(mut copy) => {
                copy.copy_from_slice(data);
                copy.freeze()
            }
            None => data.clone(),
        }
    }

    fn put(&self, pass: Pass) {
        self.passes.borrow_mut().push(Rc::new(pass));
    }

    fn all(&self) -> Vec<Rc<Pass>> {
        self.passes.borrow().clone()
    }

    /// Takes those out that have been repeated.
    fn take(&self, repeated: Vec<Rc<Pass>>) -> impl Iterator<Item = Pass> {
        let is_among = |pass: &Rc<Pass>| repeated.iter().any(|other| Rc::ptr_eq(pass, other));
        let mut passes = self.passes.borrow_mut();
        passes.retain(|pass| !is_among(pass));
        if passes.is_empty() {
            // The mapping goes with the last buffer.
            *self.pool.borrow_mut() = None;
        }
        repeated.into_iter().filter_map(Rc::into_inner)
    }
}

/// Parking.
impl<D: Drive> Array<D> {
    /// Members that are in use and have not done what they were asked to.
    fn left_behind(&self, outcome: &Outcome) -> SlotSet {
        match outcome.missed.is_empty() {
            true => SlotSet::EMPTY,
            false => outcome.missed.and(self.map().in_sync),
        }
    }

    /// Something was done to members. Does it again as long as one that stays in use misses it and
    /// is there; says what is to be done if one is not.
    pub(super) async fn until_done<F>(
        &self,
        outcome: &mut Outcome,
        mut again: impl FnMut() -> F,
    ) -> Parking
    where
        F: Future<Output = Outcome>,
    {
        loop {
            if self.left_behind(outcome).is_empty() {
                return Parking::NotNeeded;
            }
            let parking = self.shared.park();
            if parking != Parking::NotNeeded {
                return parking;
            }
            // Its drive has come back before all others had answered.
            let failed = outcome.failed;
            *outcome = again().await;
            outcome.failed = outcome.failed.or(failed);
        }
    }

    /// The writes of a slice, as they are kept.
    pub(super) fn parked_writes(
        &self,
        row: u64,
        slice: Slice,
        writes: &[(Place, SharedBuffer)],
        fua: bool,
    ) -> ParkedJob {
        let parked = &self.stripe().parked;
        let copy = |(place, data): &(Place, SharedBuffer)| (*place, parked.copy(data));
        let writes = writes.iter().map(copy).collect();
        ParkedJob { redo: Redo::Writes { writes, fua }, rows: row..row + 1, slice }
    }

    /// Keeps what is left of a pass, each job of which has been counted ([`Parking::Parked`]).
    pub(super) fn park(&self, rows: Range<u64>, token: IntentToken, jobs: Vec<ParkedJob>) {
        self.stripe().parked.put(Pass { rows, token, jobs });
        // Its drives may be back already.
        self.shared.look_again();
    }
}

/// Repeating.
impl<D: Drive> Array<D> {
    /// Repeats the passes that were cut short when an array with parity failed, as soon as its
    /// drives are back; before that the array does not work again. Never ends; run it once on each
    /// core. Must not be dropped while it works.
    pub async fn resume(&self) {
        let Some(stripe) = &self.stripe else { return };
        let parked = &stripe.parked;
        loop {
            self.shared.wait_until_mending(|| !parked.is_empty()).await;
            // They stay in the list until all is done: so long nothing is computed from their rows.
            let passes = parked.all();
            let mut agree = Vec::with_capacity(passes.len());
            for pass in &passes {
                match self.repeat(pass).await {
                    Some(agrees) => agree.push(agrees),
                    None => break,
                }
            }
            if agree.len() < passes.len() || !self.flush_repeated().await {
                // It has failed again.
                continue;
            }
            let mut jobs = 0;
            for (pass, agrees) in parked.take(passes).zip(agree) {
                jobs += pass.jobs.len() as u64;
                // What a lost member misses is written down when there is next something to write:
                // nobody is told of this.
                let _ = self.shared.intent.end(self, pass.token, agrees).await;
            }
            self.shared.unpark(jobs);
        }
    }

    /// Does what is left of a pass again. Says whether all members hold the same afterwards; None
    /// if a drive is gone again.
    async fn repeat(&self, pass: &Pass) -> Option<bool> {
        let lock = self.lock_rows(pass.rows.clone()).await;
        let permit = self.shared.count_write(self.endpoint.core());
        let geometry = self.shared.geometry();
        let armed = Armed::new(&self.shared, geometry.row_range(pass.rows.start).start);
        let mut agree = true;
        let mut is_done = true;
        for job in &pass.jobs {
            let outcome = self.redo(&job.redo).await;
            is_done = self.left_behind(&outcome).is_empty();
            if !is_done {
                break;
            }
            if outcome.no_space.is_some() {
                // Some members may have it, and some not.
                for row in job.rows.clone() {
                    let parity = self.row_members(row).writable & Roles::PARITIES;
                    agree &= !self.distrust(row, &job.slice, parity);
                }
            }
        }
        armed.disarm();
        drop((lock, permit));
        is_done.then_some(agree)
    }

    async fn redo(&self, redo: &Redo) -> Outcome {
        match redo {
            Redo::Writes { writes, fua } => self.write_members(writes, *fua).await,
            Redo::Zero { range, kind } => self.zero_places(range.clone(), *kind).await,
        }
    }

    /// Makes what was repeated durable: from now on the log need not know of it.
    async fn flush_repeated(&self) -> bool {
        let writable = self.writable();
        let flushes =
            writable.iter().map(|slot| async move { (slot, self.flush_member(slot).await) });
        let mut outcome = Outcome::default();
        fan_out(writable.len(), flushes, |(_, result)| outcome.add(result)).await;
        self.left_behind(&outcome).is_empty()
    }
}
