//! The order of what happens to rows, for one core: whoever wants something of a row takes a
//! *ticket*, and tickets are served in the order in which they came.
//!
//! There are three kinds:
//! * `Write`: new data for a part of the row. The ticket at the front *leads a pass*: it takes all
//!   writes directly behind it along, up to the first ticket of another kind, does the work for
//!   all of them and answers for all. Writes that come while a pass runs wait for the next one,
//!   where they are merged in the same way.
//! * `Exclusive`: nothing else happens to the row meanwhile.
//! * `Shared`: like `Exclusive`, except that several which follow each other run together.
//!
//! Nobody is overtaken, so nobody starves. A write that takes tickets of several rows takes all of
//! them before it waits for any; as that is one step on one core, all rows see the same order of
//! writes, and nobody waits for somebody who waits for him.
//!
//! A write that leads may be *held* for a bounded time when it comes to a row where nothing else
//! is, so that more of the row comes along. A hold ends when the row's writes have as many bytes
//! as the row, when something other than a write comes, or when its time is over.
//!
//! Tickets live in a slab and rows in a table that keeps its room: nothing is allocated in the
//! steady state. There is no I/O here, and time comes in from outside.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const NONE: u32 = u32::MAX;

/// What a ticket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// New data.
    Write,
    /// Nothing else meanwhile.
    Exclusive,
    /// Nothing but its like meanwhile.
    Shared,
}

/// What a ticket that need not wait any longer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn<A> {
    /// It has the row (a write: leads a pass) until it is finished or dropped.
    Run,
    /// Somebody else's pass did its work, with this result.
    Done(A),
}

/// The queues of all rows. `P` is what a write brings, `A` what it is told.
pub(super) struct Rows<P, A> {
    table: RefCell<Table<P, A>>,
}

struct Table<P, A> {
    tickets: Vec<Ticket<P, A>>,
    free: Vec<u32>,
    rows: HashMap<u64, Row, BuildHasherDefault<RowHasher>>,
    /// Holds in the order in which they began; some may have ended.
    holds: VecDeque<Hold>,
    holds_begun: u64,
    /// Who waits for holds to be there.
    hold_waker: Option<Waker>,
    row_bytes: u64,
    abandoned: A,
}

struct Ticket<P, A> {
    row: u64,
    kind: Kind,
    state: State<A>,
    bytes: u64,
    /// The next one in the row's queue, or in the pass.
    next: u32,
    payload: Option<P>,
    /// It was held; true if the row was completed so.
    was_filled: Option<bool>,
    waker: Option<Waker>,
}

#[derive(Clone, Copy)]
enum State<A> {
    /// In the row's queue.
    Waiting,
    /// It has the row.
    Running,
    /// In somebody else's pass.
    Led,
    /// Its holder has gone; whoever leads it frees it.
    Forgotten,
    Done(A),
}

#[derive(Clone, Copy)]
struct Row {
    first: u32,
    last: u32,
    /// Tickets that have the row.
    running: u32,
    running_kind: Kind,
    /// Bytes of the writes that are waiting, while there is nothing else.
    waiting_bytes: u64,
    /// The number of the hold that the row is under, or 0.
    hold: u64,
}

struct Hold {
    row: u64,
    number: u64,
    until: Duration,
}

/// Multiplies, which is enough for numbers of rows.
#[derive(Default)]
struct RowHasher(u64);

impl Hasher for RowHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

impl<P, A: Copy> Rows<P, A> {
    /// No tickets, with room for `capacity` before anything is allocated. `abandoned` is what the
    /// writes of a pass are told whose leader went away before its end.
    pub(super) fn new(row_bytes: u64, capacity: usize, abandoned: A) -> Self {
        Self {
            table: RefCell::new(Table {
                tickets: Vec::with_capacity(capacity),
                free: Vec::with_capacity(capacity),
                // Twice the room, so that the table is cleaned up in place rather than grown.
                rows: HashMap::with_capacity_and_hasher(
                    2 * capacity,
                    BuildHasherDefault::default(),
                ),
                holds: VecDeque::with_capacity(64),
                holds_begun: 0,
                hold_waker: None,
                row_bytes,
                abandoned,
            }),
        }
    }

    /// Takes a ticket behind all that are there. `payload` is what a write brings, `bytes` how
    /// much of the row that is; it may be held until `hold` if nothing else is there.
    pub(super) fn enter(
        &self,
        row: u64,
        kind: Kind,
        bytes: u64,
        payload: Option<P>,
        hold: Option<Duration>,
    ) -> TicketGuard<'_, P, A> {
        let id = self.table.borrow_mut().enter(row, kind, bytes, payload, hold);
        TicketGuard { rows: self, id }
    }

    /// Holds so far.
    #[cfg(test)]
    pub(super) fn holds_begun(&self) -> u64 {
        self.table.borrow().holds_begun
    }

    /// Ends the holds whose time is over, which have been in vain.
    pub(super) fn end_holds(&self, now: Duration) {
        let table = &mut *self.table.borrow_mut();
        for _ in 0..table.holds.len() {
            let Some(hold) = table.holds.pop_front() else { break };
            if table.rows.get(&hold.row).is_none_or(|row| row.hold != hold.number) {
                continue;
            }
            if hold.until <= now {
                table.end_hold(hold.row, Some(false));
            } else {
                table.holds.push_back(hold);
            }
        }
    }

    /// Waits until any row is held.
    pub(super) fn poll_holds(&self, cx: &mut Context<'_>) -> Poll<()> {
        let table = &mut *self.table.borrow_mut();
        while let Some(hold) = table.holds.front() {
            if table.rows.get(&hold.row).is_some_and(|row| row.hold == hold.number) {
                return Poll::Ready(());
            }
            table.holds.pop_front();
        }
        table.hold_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Tickets that are out.
    #[cfg(test)]
    pub(super) fn tickets(&self) -> usize {
        let table = self.table.borrow();
        table.tickets.len() - table.free.len()
    }
}

impl<P, A: Copy> Table<P, A> {
    fn enter(
        &mut self,
        row: u64,
        kind: Kind,
        bytes: u64,
        payload: Option<P>,
        hold: Option<Duration>,
    ) -> u32 {
        let ticket = Ticket {
            row,
            kind,
            state: State::Waiting,
            bytes,
            next: NONE,
            payload,
            was_filled: None,
            waker: None,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.tickets[id as usize] = ticket;
                id
            }
            None => {
                self.tickets.push(ticket);
                (self.tickets.len() - 1) as u32
            }
        };
        let mut is_new = false;
        let queue = self.rows.entry(row).or_insert_with(|| {
            is_new = true;
            let running_kind = kind;
            Row { first: NONE, last: NONE, running: 0, running_kind, waiting_bytes: 0, hold: 0 }
        });
        match queue.last {
            NONE => queue.first = id,
            last => self.tickets[last as usize].next = id,
        }
        queue.last = id;
        queue.waiting_bytes += bytes;
        if is_new
            && let Some(until) = hold
            && bytes < self.row_bytes
        {
            self.begin_hold(row, until);
        } else if queue.hold != 0 && kind != Kind::Write {
            self.end_hold(row, None);
        } else if queue.hold != 0 && queue.waiting_bytes >= self.row_bytes {
            self.end_hold(row, Some(true));
        }
        id
    }

    fn begin_hold(&mut self, row: u64, until: Duration) {
        self.holds_begun += 1;
        let number = self.holds_begun;
        if let Some(queue) = self.rows.get_mut(&row) {
            queue.hold = number;
            self.holds.push_back(Hold { row, number, until });
            if let Some(waker) = self.hold_waker.take() {
                waker.wake();
            }
        }
    }

    fn end_hold(&mut self, row: u64, was_filled: Option<bool>) {
        if let Some(queue) = self.rows.get_mut(&row) {
            queue.hold = 0;
            if let Some(first) = self.tickets.get_mut(queue.first as usize) {
                first.was_filled = was_filled;
            }
            self.wake_front(row);
        }
    }

    /// Wakes the first in the queue, if it may go on.
    fn wake_front(&mut self, row: u64) {
        let Some(queue) = self.rows.get(&row) else { return };
        if let Some(first) = self.tickets.get_mut(queue.first as usize)
            && may_run(queue, first.kind)
            && let Some(waker) = first.waker.take()
        {
            waker.wake();
        }
    }

    fn poll(&mut self, id: u32, cx: &mut Context<'_>) -> Poll<Turn<A>> {
        let ticket = &mut self.tickets[id as usize];
        match ticket.state {
            State::Running => return Poll::Ready(Turn::Run),
            State::Done(answer) => return Poll::Ready(Turn::Done(answer)),
            State::Waiting | State::Led | State::Forgotten => {}
        }
        let (row, kind) = (ticket.row, ticket.kind);
        if matches!(ticket.state, State::Waiting)
            && let Some(queue) = self.rows.get(&row)
            && queue.first == id
            && may_run(queue, kind)
        {
            self.start(row, id);
            return Poll::Ready(Turn::Run);
        }
        let ticket = &mut self.tickets[id as usize];
        match &mut ticket.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => ticket.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Gives the row to the first ticket of its queue. A write takes those behind it along.
    fn start(&mut self, row: u64, id: u32) {
        let Some(queue) = self.rows.get_mut(&row) else { return };
        let kind = self.tickets[id as usize].kind;
        queue.running += 1;
        queue.running_kind = kind;
        let mut last = id;
        queue.waiting_bytes -= self.tickets[id as usize].bytes;
        self.tickets[id as usize].state = State::Running;
        let mut next = self.tickets[id as usize].next;
        while kind == Kind::Write
            && let Some(ticket) = self.tickets.get_mut(next as usize)
            && ticket.kind == Kind::Write
        {
            ticket.state = State::Led;
            queue.waiting_bytes -= ticket.bytes;
            last = next;
            next = ticket.next;
        }
        self.tickets[last as usize].next = NONE;
        queue.first = next;
        if next == NONE {
            queue.last = NONE;
        }
        // The next one may be of a kind that runs along.
        self.wake_front(row);
    }

    /// What the writes of a pass brought, in their order.
    fn take_payloads(&mut self, id: u32, mut each: impl FnMut(P)) -> u32 {
        let (mut at, mut count) = (id, 0);
        while let Some(ticket) = self.tickets.get_mut(at as usize) {
            if let Some(payload) = ticket.payload.take() {
                each(payload);
            }
            count += 1;
            at = ticket.next;
        }
        count
    }

    fn finish(&mut self, id: u32, answer: A) {
        let row = self.tickets[id as usize].row;
        let mut at = self.tickets[id as usize].next;
        self.release(id);
        while let Some(ticket) = self.tickets.get_mut(at as usize) {
            let led = at;
            at = ticket.next;
            // What a pass did not take is given up with it.
            ticket.payload = None;
            if matches!(ticket.state, State::Forgotten) {
                self.release(led);
                continue;
            }
            ticket.state = State::Done(answer);
            if let Some(waker) = ticket.waker.take() {
                waker.wake();
            }
        }
        if let Some(queue) = self.rows.get_mut(&row) {
            queue.running -= 1;
        }
        self.settle(row);
    }

    /// Somebody has left the row.
    fn settle(&mut self, row: u64) {
        match self.rows.get(&row) {
            Some(queue) if queue.running == 0 && queue.first == NONE => {
                self.rows.remove(&row);
            }
            Some(_) => self.wake_front(row),
            None => {}
        }
    }

    fn leave(&mut self, id: u32) {
        match self.tickets[id as usize].state {
            State::Running => self.finish(id, self.abandoned),
            State::Led => {
                self.tickets[id as usize].state = State::Forgotten;
                self.tickets[id as usize].waker = None;
            }
            State::Done(_) => self.release(id),
            State::Waiting => self.unlink(id),
            // Only its guard forgets a ticket, and there is one guard.
            State::Forgotten => {}
        }
    }

    /// Takes a waiting ticket out of its queue.
    fn unlink(&mut self, id: u32) {
        let Ticket { row, next, bytes, .. } = self.tickets[id as usize];
        let Some(queue) = self.rows.get_mut(&row) else { return };
        queue.waiting_bytes -= bytes;
        let mut previous = NONE;
        let mut at = queue.first;
        while at != id && at != NONE {
            previous = at;
            at = self.tickets[at as usize].next;
        }
        match previous {
            NONE => queue.first = next,
            previous => self.tickets[previous as usize].next = next,
        }
        if queue.last == id {
            queue.last = previous;
        }
        self.release(id);
        self.settle(row);
    }

    fn release(&mut self, id: u32) {
        let ticket = &mut self.tickets[id as usize];
        ticket.waker = None;
        ticket.payload = None;
        self.free.push(id);
    }
}

/// Whether the first ticket of a queue, of this kind, may have the row.
fn may_run(queue: &Row, kind: Kind) -> bool {
    let is_free =
        queue.running == 0 || (kind == Kind::Shared && queue.running_kind == Kind::Shared);
    is_free && queue.hold == 0
}

/// A ticket; dropping it gives it back. A pass that is dropped before it is finished tells its
/// writes that it was abandoned.
pub(super) struct TicketGuard<'a, P, A: Copy> {
    rows: &'a Rows<P, A>,
    id: u32,
}

impl<P, A: Copy> TicketGuard<'_, P, A> {
    /// Waits for its turn, or for its end in somebody else's pass.
    pub(super) fn poll_turn(&self, cx: &mut Context<'_>) -> Poll<Turn<A>> {
        self.rows.table.borrow_mut().poll(self.id, cx)
    }

    /// What the writes of the pass that this one leads brought, in order; returns their number.
    pub(super) fn take_payloads(&self, each: impl FnMut(P)) -> u32 {
        self.rows.table.borrow_mut().take_payloads(self.id, each)
    }

    /// Whether it was held, and if so, whether that completed the row.
    pub(super) fn was_filled(&self) -> Option<bool> {
        self.rows.table.borrow().tickets.get(self.id as usize)?.was_filled
    }

    /// Ends what runs and, if it was a pass, answers all its writes.
    pub(super) fn finish(self, answer: A) {
        self.rows.table.borrow_mut().finish(self.id, answer);
        std::mem::forget(self);
    }
}

impl<P, A: Copy> Drop for TicketGuard<'_, P, A> {
    fn drop(&mut self) {
        self.rows.table.borrow_mut().leave(self.id);
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
