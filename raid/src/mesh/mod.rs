//! Calls between cores: one bounded ring per ordered pair of cores, no locks, no allocation per
//! call.
//!
//! A core *calls* another with a `Call`, and gets an `Answer`. The story of a call from A to B:
//! 1. A takes a free slot of its slab for B. If none is free the caller waits, in order.
//! 2. A puts (slot, call) on the ring A→B and, unless B has been rung already and has not looked
//!    since, rings B's doorbell.
//! 3. B, in [`Endpoint::handle_doorbell`], empties its rings: calls go to the inbox of the service
//!    they are for, where [`Endpoint::next_call`] hands them to whoever serves.
//! 4. The server answers by using up its [`Received`] token: (slot, answer) on the ring B→A.
//! 5. A finds the answer, wakes the caller, and the slot is free again.
//!
//! Invariants:
//! * A slab has as many slots as calls may be outstanding from A to B, and the ring A→B has room
//!   for that many calls and for as many answers to B's own calls. So a ring is never full, and
//!   nobody ever waits while holding somebody else's call.
//! * Every received call is answered exactly once: dropping the token unanswered answers with
//!   `None`, which the caller sees as the loss of its peer.
//! * A caller that goes away leaves its slot occupied until the answer has come.
//!
//! It knows nothing of arrays, and of the executor only wakers. An endpoint belongs to one thread.

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use rtrb::{Consumer, Producer, RingBuffer};

/// Wakes a core from outside: called with the core's number.
pub type Doorbell = Arc<dyn Fn(usize) + Send + Sync>;

/// What travels on a ring.
enum Message<C, A> {
    Call { slot: u32, service: u16, call: C },
    Answer { slot: u32, answer: Option<A> },
}

/// Per core, seen by all: whether its doorbell was rung since it last looked. On a cache line of
/// its own.
#[repr(align(128))]
struct Rung(AtomicBool);

/// The mesh of all cores; made once, then taken apart into the endpoints.
pub struct Mesh;

impl Mesh {
    /// Connects `cores` cores (at least one) and returns the endpoint of each, to be moved to its
    /// thread. `doorbell` may be called from any core's thread, at most once per core until that
    /// core calls [`Endpoint::handle_doorbell`].
    #[allow(clippy::new_ret_no_self)]
    pub fn new<C, A>(cores: usize, doorbell: Doorbell) -> Vec<Endpoint<C, A>> {
        // Memory grows with the square of the cores; fewer calls per pair keep it in bounds, and
        // with more pairs there are as many calls per core.
        let calls_per_pair = (2048 / cores.max(1)).clamp(32, 256) as u32;
        Self::with_calls_per_pair(cores, doorbell, calls_per_pair)
    }

    /// The same with a given number of calls that may be outstanding from one core to another.
    pub fn with_calls_per_pair<C, A>(
        cores: usize,
        doorbell: Doorbell,
        calls_per_pair: u32,
    ) -> Vec<Endpoint<C, A>> {
        let calls_per_pair = calls_per_pair.max(1);
        let rung: Arc<[Rung]> = (0..cores).map(|_| Rung(AtomicBool::new(false))).collect();
        let mut outgoing: Vec<Vec<Option<Producer<_>>>> = Vec::new();
        let mut incoming: Vec<Vec<Option<Consumer<_>>>> = Vec::new();
        incoming.resize_with(cores, Vec::new);
        for from in 0..cores {
            let mut producers = Vec::with_capacity(cores);
            for (to, consumers) in incoming.iter_mut().enumerate() {
                let ring = (from != to).then(|| RingBuffer::new(2 * calls_per_pair as usize));
                let (producer, consumer) = ring.unzip();
                producers.push(producer);
                consumers.push(consumer);
            }
            outgoing.push(producers);
        }
        outgoing
            .into_iter()
            .zip(incoming)
            .enumerate()
            .map(|(core, (producers, consumers))| {
                let peers = producers.into_iter().zip(consumers).map(|(outgoing, incoming)| Peer {
                    outgoing: RefCell::new(outgoing),
                    incoming: RefCell::new(incoming),
                    slab: RefCell::new(Slab::new(calls_per_pair)),
                });
                Endpoint {
                    core,
                    peers: peers.collect(),
                    inboxes: RefCell::new(Vec::new()),
                    inbox_capacity: calls_per_pair as usize * cores.saturating_sub(1),
                    rung: Arc::clone(&rung),
                    doorbell: Arc::clone(&doorbell),
                    outstanding: Cell::new(0),
                }
            })
            .collect()
    }
}

/// One core's end of the mesh.
pub struct Endpoint<C, A> {
    core: usize,
    /// By core; the entry of the own core has no rings.
    peers: Box<[Peer<C, A>]>,
    /// Calls that came in, by service.
    inboxes: RefCell<Vec<Inbox<C>>>,
    inbox_capacity: usize,
    rung: Arc<[Rung]>,
    doorbell: Doorbell,
    /// Calls of this core that have no answer yet.
    outstanding: Cell<usize>,
}

struct Peer<C, A> {
    outgoing: RefCell<Option<Producer<Message<C, A>>>>,
    incoming: RefCell<Option<Consumer<Message<C, A>>>>,
    slab: RefCell<Slab<A>>,
}

struct Inbox<C> {
    calls: VecDeque<Envelope<C>>,
    /// Servers that found it empty, first come first served.
    idle: VecDeque<Waiting>,
    next_number: u64,
}

impl<C> Inbox<C> {
    fn wake_first(&mut self) {
        if let Some(first) = self.idle.pop_front() {
            first.waker.wake();
        }
    }
}

struct Envelope<C> {
    from: usize,
    slot: u32,
    call: C,
}

impl<C, A> Endpoint<C, A> {
    /// This core's number.
    pub fn core(&self) -> usize {
        self.core
    }

    /// Number of cores in the mesh.
    pub fn cores(&self) -> usize {
        self.peers.len()
    }

    /// Calls of this core that have no answer yet.
    pub fn outstanding_calls(&self) -> usize {
        self.outstanding.get()
    }

    /// Whether another core has put something on a ring since the last
    /// [`Self::handle_doorbell`]: a cheap question for a core that polls.
    pub fn has_mail(&self) -> bool {
        self.rung[self.core].0.load(Ordering::Acquire)
    }

    /// Takes in what the other cores sent, and wakes the futures concerned. To be called by the
    /// core's thread whenever its doorbell was rung, and as often as it likes besides.
    pub fn handle_doorbell(&self) {
        // Cleared before looking, so that what is sent from now on rings again. As the senders'
        // swaps and this one are in one order, a sender that did not ring has its message seen.
        if !self.rung[self.core].0.swap(false, Ordering::AcqRel) {
            return;
        }
        for (from, peer) in self.peers.iter().enumerate() {
            let mut incoming = peer.incoming.borrow_mut();
            let Some(ring) = incoming.as_mut() else { continue };
            while let Ok(message) = ring.pop() {
                match message {
                    Message::Call { slot, service, call } => {
                        self.accept(service, Envelope { from, slot, call });
                    }
                    Message::Answer { slot, answer } => {
                        self.outstanding.set(self.outstanding.get() - 1);
                        peer.slab.borrow_mut().fulfil(slot, answer);
                    }
                }
            }
        }
    }

    /// Calls `service` on core `to` and waits for the answer; `None` if the server dropped the
    /// call. Dropping the future does not stop a call that has been sent.
    ///
    /// # Panics
    /// If `to` is this core itself or no core of the mesh: a core does its own work directly.
    pub async fn call(&self, to: usize, service: u16, call: C) -> Option<A> {
        assert!(to != self.core && to < self.peers.len(), "core {} calls {to}", self.core);
        let peer = &self.peers[to];
        let mut ticket = Ticket { slab: &peer.slab, state: TicketState::New };
        poll_fn(|cx| ticket.poll_slot(cx)).await;
        self.outstanding.set(self.outstanding.get() + 1);
        self.send(to, Message::Call { slot: ticket.slot(), service, call });
        poll_fn(|cx| ticket.poll_answer(cx)).await
    }

    /// Waits for the next call to `service`. Several tasks may wait; each call goes to one.
    pub async fn next_call(&self, service: u16) -> Received<'_, C, A> {
        let mut seat = Seat { endpoint: self, service, number: None };
        let envelope = poll_fn(|cx| seat.poll_next(cx)).await;
        let Envelope { from, slot, call } = envelope;
        Received { token: Token { endpoint: self, from, slot, answered: false }, call }
    }

    fn accept(&self, service: u16, envelope: Envelope<C>) {
        let mut inboxes = self.inboxes.borrow_mut();
        let inbox = Self::inbox(&mut inboxes, service, self.inbox_capacity);
        inbox.calls.push_back(envelope);
        inbox.wake_first();
    }

    fn inbox(inboxes: &mut Vec<Inbox<C>>, service: u16, capacity: usize) -> &mut Inbox<C> {
        let index = usize::from(service);
        if inboxes.len() <= index {
            inboxes.resize_with(index + 1, || Inbox {
                calls: VecDeque::with_capacity(capacity),
                idle: VecDeque::with_capacity(64),
                next_number: 0,
            });
        }
        &mut inboxes[index]
    }

    fn send(&self, to: usize, message: Message<C, A>) {
        let mut outgoing = self.peers[to].outgoing.borrow_mut();
        let pushed = outgoing.as_mut().map(|ring| ring.push(message));
        // Slots bound what is on a ring (invariant of the file).
        assert!(matches!(pushed, Some(Ok(()))), "the ring {}→{to} is full", self.core);
        drop(outgoing);
        if !self.rung[to].0.swap(true, Ordering::AcqRel) {
            (self.doorbell)(to);
        }
    }
}

/// A server's place among those that wait for a call.
struct Seat<'a, C, A> {
    endpoint: &'a Endpoint<C, A>,
    service: u16,
    /// Its number in the list of idle servers. No longer in the list: it was woken for a call.
    number: Option<u64>,
}

impl<C, A> Seat<'_, C, A> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Envelope<C>> {
        let mut inboxes = self.endpoint.inboxes.borrow_mut();
        let inbox =
            Endpoint::<C, A>::inbox(&mut inboxes, self.service, self.endpoint.inbox_capacity);
        let number = self.number;
        let mine = inbox.idle.iter().position(|waiting| Some(waiting.number) == number);
        if let Some(envelope) = inbox.calls.pop_front() {
            if let Some(mine) = mine {
                inbox.idle.remove(mine);
            }
            self.number = None;
            return Poll::Ready(envelope);
        }
        match mine {
            Some(mine) => inbox.idle[mine].waker.clone_from(cx.waker()),
            None => {
                let number = inbox.next_number;
                inbox.next_number += 1;
                inbox.idle.push_back(Waiting { number, waker: cx.waker().clone() });
                self.number = Some(number);
            }
        }
        Poll::Pending
    }
}

impl<C, A> Drop for Seat<'_, C, A> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut inboxes = self.endpoint.inboxes.borrow_mut();
        let inbox =
            Endpoint::<C, A>::inbox(&mut inboxes, self.service, self.endpoint.inbox_capacity);
        match inbox.idle.iter().position(|waiting| waiting.number == number) {
            Some(mine) => drop(inbox.idle.remove(mine)),
            // It was woken for a call and goes away without taking it: another one must.
            None if !inbox.calls.is_empty() => inbox.wake_first(),
            None => {}
        }
    }
}

/// A call that came in, with the duty to answer it.
pub struct Received<'a, C, A> {
    /// What is asked.
    pub call: C,
    /// Answers it.
    pub token: Token<'a, C, A>,
}

/// The duty to answer one call. Dropped unanswered, it tells the caller that nobody will.
pub struct Token<'a, C, A> {
    endpoint: &'a Endpoint<C, A>,
    from: usize,
    slot: u32,
    answered: bool,
}

impl<C, A> Token<'_, C, A> {
    /// Sends the answer.
    pub fn answer(mut self, answer: A) {
        self.answered = true;
        let message = Message::Answer { slot: self.slot, answer: Some(answer) };
        self.endpoint.send(self.from, message);
    }
}

impl<C, A> Drop for Token<'_, C, A> {
    fn drop(&mut self) {
        if !self.answered {
            let message = Message::Answer { slot: self.slot, answer: None };
            self.endpoint.send(self.from, message);
        }
    }
}

/// The calls of one core to one other.
struct Slab<A> {
    slots: Box<[Slot<A>]>,
    free: Vec<u32>,
    /// Callers waiting for a free slot, in order.
    waiting: VecDeque<Waiting>,
    next_waiting: u64,
}

enum Slot<A> {
    Free,
    /// Sent; the waker of the caller once it has polled.
    Sent(Option<Waker>),
    /// Sent, and the caller has gone away.
    Abandoned,
    Answered(Option<A>),
}

/// Somebody in a queue.
struct Waiting {
    number: u64,
    waker: Waker,
}

impl<A> Slab<A> {
    fn new(slots: u32) -> Self {
        Self {
            slots: (0..slots).map(|_| Slot::Free).collect(),
            free: (0..slots).rev().collect(),
            waiting: VecDeque::with_capacity(16),
            next_waiting: 0,
        }
    }

    fn fulfil(&mut self, slot: u32, answer: Option<A>) {
        match std::mem::replace(&mut self.slots[slot as usize], Slot::Answered(answer)) {
            Slot::Sent(waker) => {
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Slot::Abandoned => self.release(slot),
            // INVARIANT: slots are named by our own cores only, which answer each call once.
            Slot::Free | Slot::Answered(_) => unreachable!("slot {slot} was not called"),
        }
    }

    fn release(&mut self, slot: u32) {
        self.slots[slot as usize] = Slot::Free;
        self.free.push(slot);
        self.wake_first();
    }

    fn wake_first(&self) {
        if let Some(first) = self.waiting.front()
            && !self.free.is_empty()
        {
            first.waker.wake_by_ref();
        }
    }
}

/// A caller's place: first in the queue for a slot, then in the slot.
struct Ticket<'a, A> {
    slab: &'a RefCell<Slab<A>>,
    state: TicketState,
}

enum TicketState {
    New,
    Waiting(u64),
    Slot(u32),
    Done,
}

impl<A> Ticket<'_, A> {
    fn slot(&self) -> u32 {
        match self.state {
            TicketState::Slot(slot) => slot,
            // INVARIANT: the callers have just seen that the call has its slot.
            _ => unreachable!("no slot yet"),
        }
    }

    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let slab = &mut *self.slab.borrow_mut();
        let is_first = match self.state {
            TicketState::New => slab.waiting.is_empty(),
            TicketState::Waiting(number) => {
                slab.waiting.front().is_some_and(|first| first.number == number)
            }
            TicketState::Slot(_) | TicketState::Done => return Poll::Ready(()),
        };
        if is_first && let Some(slot) = slab.free.pop() {
            if matches!(self.state, TicketState::Waiting(_)) {
                slab.waiting.pop_front();
            }
            slab.slots[slot as usize] = Slot::Sent(None);
            self.state = TicketState::Slot(slot);
            // Several slots may have become free at once.
            slab.wake_first();
            return Poll::Ready(());
        }
        match self.state {
            TicketState::Waiting(number) => {
                let mine = slab.waiting.iter_mut().find(|waiting| waiting.number == number);
                if let Some(mine) = mine {
                    mine.waker.clone_from(cx.waker());
                }
            }
            _ => {
                let number = slab.next_waiting;
                slab.next_waiting += 1;
                slab.waiting.push_back(Waiting { number, waker: cx.waker().clone() });
                self.state = TicketState::Waiting(number);
            }
        }
        Poll::Pending
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Option<A>> {
        let slot = self.slot();
        let slab = &mut *self.slab.borrow_mut();
        match &mut slab.slots[slot as usize] {
            Slot::Sent(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            Slot::Answered(answer) => {
                let answer = answer.take();
                self.state = TicketState::Done;
                slab.release(slot);
                Poll::Ready(answer)
            }
            // INVARIANT: only this ticket frees or abandons its slot, and then it has ended.
            Slot::Free | Slot::Abandoned => unreachable!("slot {slot} is this caller's"),
        }
    }
}

impl<A> Drop for Ticket<'_, A> {
    fn drop(&mut self) {
        let slab = &mut *self.slab.borrow_mut();
        match self.state {
            TicketState::New | TicketState::Done => {}
            TicketState::Waiting(number) => {
                slab.waiting.retain(|waiting| waiting.number != number);
                slab.wake_first();
            }
            TicketState::Slot(slot) => match slab.slots[slot as usize] {
                Slot::Answered(_) => slab.release(slot),
                _ => slab.slots[slot as usize] = Slot::Abandoned,
            },
        }
    }
}
