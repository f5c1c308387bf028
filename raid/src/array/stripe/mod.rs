//! The data path of RAID 5 and 6, on the core that owns the shard.
//!
//! Everything that changes a row, or must not see it change, goes through the row's queue
//! ([`queue`]). The write at its front leads a *pass* ([`pass`]), in which all writes that wait
//! behind it come along; what they change is cut into slices, and for each the way is chosen that
//! reads least ([`plan`]). Writes of a sequential stream are held for a moment, so that rows are
//! written whole ([`gather`]). What a pass reads and computes is in memory of its own
//! ([`super::reserve`], [`work`]). Reads that cannot simply be read, and zeroing, are in [`read`] and
//! [`zero`]. What is left of passes that a failure of the array cut short waits for its drives in
//! [`parked`].
//!
//! Reads of healthy members do not come here: they see the chunks as they are on the members, old
//! or new, whatever is done to the row.

mod counters;
mod gather;
mod parked;
mod pass;
mod plan;
mod queue;
mod read;
#[cfg(test)]
mod tests;
mod work;
mod zero;

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::time::Duration;

pub(in crate::array) use counters::StripeCounters;
pub use counters::StripeStatistics;

use super::error::{ArrayError, WriteFailure};
use super::reserve::Reserve;
use super::{Array, Done};
use crate::drive::{Drive, DriveError};
use crate::geometry::{Geometry, MAX_CHUNK_BYTES};
use gather::{StreamId, Streams};
use parked::Parked;
use plan::{Roles, Way, parity_roles};
use queue::{Kind, Rows, TicketGuard};
use work::{Job, Piece, Source, Workspace};

/// Tickets for which there is room before anything is allocated.
const TICKETS: usize = 512;

/// Memory of a core for passes over rows and degraded reads.
const RESERVE_BYTES: usize = 16 << 20;

/// All memory of its own that a parity level has on a core at most.
pub(in crate::array) const MEMORY_BYTES: usize = RESERVE_BYTES + parked::PARKED_BYTES;

/// Workspaces that are kept when nobody needs them.
const WORKSPACES: usize = 64;

/// How often it is looked whether holds are over.
const HOLD_TICK: Duration = Duration::from_micros(500);

/// A place in the queue of a row.
type Ticket<'a> = TicketGuard<'a, Piece, Done>;

/// The shape of rows.
struct Shape {
    data_chunks: usize,
    parities: usize,
    chunk_bytes: u32,
    row_bytes: u64,
}

impl Shape {
    fn roles(&self) -> Roles {
        Roles::all_data(self.data_chunks) | parity_roles(self.parities)
    }
}

/// What one core keeps for an array of a parity level.
pub(in crate::array) struct Stripe {
    shape: Shape,
    rows: Rows<Piece, Done>,
    streams: RefCell<Streams>,
    /// Whether somebody ends holds in time; without, nothing is held.
    gathers: Cell<bool>,
    reserve: Reserve,
    parked: Parked,
    /// The log's checksum of a row of zeros, once it was needed.
    zeros_check: OnceCell<u32>,
    /// In boxes, as they are large and change hands.
    #[expect(clippy::vec_box, reason = "they are moved into futures")]
    workspaces: RefCell<Vec<Box<Workspace>>>,
}

/// A part of a range that is in one row.
struct RowPart {
    row: u64,
    /// Where in the array it begins.
    offset_bytes: u64,
    /// Where in the row's data.
    start: u32,
    len: u32,
}

impl Stripe {
    /// For an array of this shape; none if the level has no parity.
    ///
    /// # Errors
    /// If there is no memory for the reserve.
    pub(in crate::array) fn new(geometry: &Geometry) -> io::Result<Option<Box<Self>>> {
        let (parities, Some(chunk_bytes)) = (geometry.parities(), geometry.chunk_bytes()) else {
            return Ok(None);
        };
        if parities == 0 {
            return Ok(None);
        }
        let row_bytes = geometry.row_data_bytes();
        let abandoned = Err(ArrayError::WriteFailed(WriteFailure::ArrayFailed));
        Ok(Some(Box::new(Self {
            shape: Shape {
                data_chunks: geometry.data_chunks(),
                parities,
                // A chunk is below 2^32 bytes long.
                chunk_bytes: chunk_bytes as u32,
                row_bytes,
            },
            rows: Rows::new(row_bytes, TICKETS, abandoned),
            streams: RefCell::new(Streams::new()),
            gathers: Cell::new(false),
            reserve: Reserve::new(RESERVE_BYTES, MAX_CHUNK_BYTES as usize)?,
            parked: Parked::default(),
            zeros_check: OnceCell::new(),
            workspaces: RefCell::default(),
        })))
    }

    fn workspace(&self) -> Box<Workspace> {
        self.workspaces.borrow_mut().pop().unwrap_or_default()
    }

    fn keep_workspace(&self, mut work: Box<Workspace>) {
        work.clear();
        let mut workspaces = self.workspaces.borrow_mut();
        if workspaces.len() < WORKSPACES {
            workspaces.push(work);
        }
    }

    /// A write has come, at an offset within what this core owns; also says until when it may be
    /// held.
    fn handle_write(
        &self,
        owned_offset_bytes: u64,
        len_bytes: u64,
        now: impl FnOnce() -> Duration,
    ) -> (StreamId, Option<Duration>) {
        let (stream, hold) =
            self.streams.borrow_mut().handle_write(owned_offset_bytes, len_bytes, now);
        (stream, hold.filter(|_| self.gathers.get()))
    }

    /// The parts of a range in its rows, in order.
    fn row_parts(&self, offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = RowPart> {
        let row_bytes = self.shape.row_bytes;
        let end_bytes = offset_bytes + len_bytes;
        let mut at = offset_bytes;
        std::iter::from_fn(move || {
            let start = at % row_bytes;
            let len = (end_bytes - at).min(row_bytes - start);
            let part = RowPart {
                row: at / row_bytes,
                offset_bytes: at,
                start: start as u32,
                len: len as u32,
            };
            at += len;
            (len > 0).then_some(part)
        })
    }

    /// Takes a ticket for the zeroing of a part of a row, as a write of zeros.
    fn enter_zeros(&self, part: &RowPart) -> Ticket<'_> {
        let piece = Piece { start: part.start, len: part.len, source: Source::Zeros, fua: false };
        self.rows.enter(part.row, Kind::Write, u64::from(part.len), Some(piece), None)
    }

    fn row_count(&self, offset_bytes: u64, end_bytes: u64) -> usize {
        let row_bytes = self.shape.row_bytes;
        (end_bytes.div_ceil(row_bytes) - offset_bytes / row_bytes) as usize
    }
}

/// Rows that nothing else happens to until this is dropped.
#[must_use]
pub(in crate::array) struct RowLocks<'a> {
    _tickets: Vec<Ticket<'a>>,
}

impl<D: Drive> Array<D> {
    fn stripe(&self) -> &Stripe {
        match &self.stripe {
            Some(stripe) => stripe,
            // INVARIANT: only requests to parity levels come here, which have one.
            None => unreachable!("the level has no parity"),
        }
    }

    /// Waits until nothing else happens to some consecutive rows of a parity level: no pass, no
    /// degraded read, no zeroing. They are in one shard, and this is its owner.
    pub(in crate::array) async fn lock_rows(&self, rows: Range<u64>) -> RowLocks<'_> {
        let queue = &self.stripe().rows;
        // Every ticket is taken before the first one is waited for.
        let tickets: Vec<_> =
            rows.map(|row| queue.enter(row, Kind::Exclusive, 0, None, None)).collect();
        for ticket in &tickets {
            poll_fn(|cx| ticket.poll_turn(cx)).await;
        }
        RowLocks { _tickets: tickets }
    }

    /// Lets sequential writes of hosts to a parity level wait for each other for a moment, so that
    /// rows are written whole. Never ends; run it once on each core, with a timer
    /// ([`Self::with_timer`]). Without it every write is done at once. May be dropped any time.
    pub async fn gather(&self) {
        let Some(stripe) = &self.stripe else { return };
        let _guard = Gathering::begin(stripe);
        loop {
            poll_fn(|cx| stripe.rows.poll_holds(cx)).await;
            self.timer.sleep(HOLD_TICK).await;
            stripe.rows.end_holds(self.timer.now());
        }
    }

    fn stripe_counters(&self) -> &StripeCounters {
        self.shared.stripe_counters(self.endpoint.core())
    }

    fn count_way(&self, job: &Job) {
        let counters = self.stripe_counters();
        match job.plan.way {
            Way::Full | Way::DataOnly => {}
            Way::ReadModify => counters.read_modify_writes.add(1),
            Way::Reconstruct | Way::Decode => counters.reconstruct_writes.add(1),
        }
    }

    /// A chunk of a row could not be read. A drive that is gone is out already.
    fn count_unreadable(&self, row: u64, role: Roles, error: DriveError) {
        let slot = self.place(row, role, 0).slot;
        let is_out = matches!(error, DriveError::Gone | DriveError::TimedOut);
        if !is_out && self.writable().contains(slot) {
            self.shared.count_read_error(slot, self.timer.now());
        }
    }
}

/// While this is there, writes may be held.
struct Gathering<'a>(&'a Stripe);

impl<'a> Gathering<'a> {
    fn begin(stripe: &'a Stripe) -> Self {
        stripe.gathers.set(true);
        Self(stripe)
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        self.0.gathers.set(false);
        self.0.rows.end_holds(Duration::MAX);
    }
}
