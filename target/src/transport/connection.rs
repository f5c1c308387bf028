//! One connection's state, shared by its reader, its writer and the workers on its commands.
//!
//! Invariants:
//! * `outstanding` counts commands between their capsule and their completion; it never exceeds
//!   the queue's size, or the connection ends.
//! * A write that waits for the host's data is in `incoming` from its R2T until its data is whole
//!   or the connection is closed; then its worker is woken exactly once.
//! * After `close`, nothing is queued for sending and nobody waits for the host.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use raidfabric_protocol::tcp::target as machine;
use raidfabric_protocol::tcp::{DigestCheck, FatalError};
use raidfabric_raid::buffer::Buffer;

use super::command::Job;
use super::outbox::{Outgoing, Payload};
use crate::association::Queue;
use crate::core::Core;
use crate::memory::Account;
use crate::runtime::Socket;
use crate::server::{Arrival, Seat};
use crate::workers::Party;

/// Admin replies that wait to be sent before no further admin command is read, in bytes.
pub(super) const ADMIN_BACKLOG_BYTES: usize = 256 * 1024;

/// Data of a write, on its way from the host.
pub(super) struct Incoming {
    /// Where the data goes; taken out while the kernel receives straight into it.
    pub(super) buffer: Option<Buffer>,
    /// The buffer's place in the command's data.
    pub(super) base_bytes: u32,
    done: Option<DigestCheck>,
    waker: Option<Waker>,
}

/// Why a command cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// The connection is closed; there is nobody to answer.
    Closed,
    /// The host uses the identifier of a command that is still waiting for data.
    Conflict,
}

/// A connection.
pub struct Connection {
    pub(super) core: Rc<Core>,
    pub(super) socket: Socket,
    pub(super) peer: SocketAddr,
    pub(super) serves_volumes: bool,
    pub(super) machine: RefCell<machine::Connection>,
    pub(super) queue: RefCell<Queue>,
    pub(super) transfer: Rc<Account>,
    pub(super) capsule: Rc<Account>,
    /// Its commands among those of all that the core works on.
    pub(super) party: Rc<Party<Job>>,
    outbox: RefCell<VecDeque<Outgoing>>,
    backlog_bytes: Cell<usize>,
    writer: RefCell<Option<Waker>>,
    reader: RefCell<Option<Waker>>,
    drain: RefCell<Option<Waker>>,
    writer_gone: Cell<bool>,
    incoming: RefCell<HashMap<u16, Incoming>>,
    outstanding: Cell<u32>,
    held: Cell<u32>,
    queue_size: Cell<u32>,
    sq_head: Cell<u16>,
    closed: Cell<bool>,
    opened_at: Instant,
    sending_since: Cell<Option<Instant>>,
    /// The reader waits for the host's bytes, and for nothing else.
    listening: Cell<bool>,
    /// When the housekeeper first saw that the host owes bytes; it has at each look since.
    owing: Cell<Option<Instant>>,
    _seat: Seat,
}

/// What a connection holds, for the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Commands not yet completed.
    pub commands: u32,
    /// Bytes of capsule and transfer memory.
    pub memory_bytes: usize,
}

impl Connection {
    /// Takes a socket in; `None` if its guaranteed memory is not to be had.
    pub(super) fn open(core: &Rc<Core>, arrival: Arrival) -> Option<Rc<Self>> {
        let transfer = core.transfer.admit()?;
        let capsule = core.capsule.admit()?;
        let machine = machine::Connection::new(core.settings.machine).ok()?;
        let connection = Rc::new(Self {
            core: Rc::clone(core),
            socket: Socket::new(arrival.stream),
            peer: arrival.peer,
            serves_volumes: arrival.serves_volumes,
            machine: RefCell::new(machine),
            queue: RefCell::new(Queue::Unconnected),
            transfer,
            capsule,
            party: Rc::default(),
            outbox: RefCell::default(),
            backlog_bytes: Cell::new(0),
            writer: RefCell::default(),
            reader: RefCell::default(),
            drain: RefCell::default(),
            writer_gone: Cell::new(false),
            incoming: RefCell::default(),
            outstanding: Cell::new(0),
            held: Cell::new(0),
            queue_size: Cell::new(1),
            sq_head: Cell::new(0),
            closed: Cell::new(false),
            opened_at: Instant::now(),
            sending_since: Cell::new(None),
            listening: Cell::new(false),
            owing: Cell::new(None),
            _seat: arrival.seat,
        });
        core.register(&connection);
        Some(connection)
    }

    /// The queue has been connected with so many entries.
    pub(super) fn set_queue_size(&self, entries: u32) {
        self.queue_size.set(entries.max(1));
    }

    /// Whether it has been closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// What it holds.
    pub fn counts(&self) -> Counts {
        Counts {
            commands: self.outstanding.get(),
            memory_bytes: self.transfer.held_bytes() + self.capsule.held_bytes(),
        }
    }

    /// Since when the host has not taken what we are sending; `None` if nothing is being sent.
    pub fn sending_since(&self) -> Option<Instant> {
        self.sending_since.get()
    }

    /// Whether the host has not connected a queue in that time, however busily it sends.
    pub fn idles_unconnected(&self, now: Instant, limit: Duration) -> bool {
        matches!(*self.queue.borrow(), Queue::Unconnected)
            && now.saturating_duration_since(self.opened_at) > limit
    }

    pub(super) fn set_sending_since(&self, since: Option<Instant>) {
        self.sending_since.set(since);
    }

    /// The reader begins to wait for the host, or has something from it.
    pub(super) fn set_listening(&self, listening: bool) {
        self.listening.set(listening);
    }

    /// Whether the next bytes are the host's to send: the start of the connection, the rest of a
    /// payload, or data that it was asked for. An idle queue owes nothing.
    fn host_owes(&self) -> bool {
        if !self.listening.get() {
            return false;
        }
        let machine = self.machine.borrow();
        machine.direct().is_some()
            || machine.outstanding_transfers() > 0
            || matches!(*self.queue.borrow(), Queue::Unconnected)
    }

    /// For how long the host has sent nothing of what it owes; zero if it owes nothing. A host that
    /// sends slowly is none that does not send. For the housekeeper, which asks at each look.
    pub fn owed_for(&self, now: Instant) -> Duration {
        if !self.host_owes() {
            self.owing.set(None);
            return Duration::ZERO;
        }
        let since = self.owing.get().unwrap_or(now);
        self.owing.set(Some(since));
        now.saturating_duration_since(since).min(self.socket.silent_for())
    }

    /// Ends the connection: the kernel's pending operations return, and whoever waits for the host
    /// is told.
    pub fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        self.socket.shut_down();
        self.discard_outbox();
        for incoming in self.incoming.borrow_mut().values_mut() {
            if let Some(waker) = incoming.waker.take() {
                waker.wake();
            }
        }
        wake(&self.writer);
        wake(&self.reader);
        wake(&self.drain);
    }

    /// Ends the connection because its host does not read what we send.
    pub fn close_unread(&self) {
        tracing::warn!(peer = %self.peer, "the host does not read its replies: connection closed");
        self.close();
    }

    /// Ends the connection because its host does not send what it has begun or was asked for.
    pub fn close_unsent(&self) {
        tracing::warn!(
            peer = %self.peer,
            "the host does not send what it owes: connection closed"
        );
        self.close();
    }

    fn discard_outbox(&self) {
        // Dropped after the borrow has ended: giving memory back may serve others that wait.
        let discarded = std::mem::take(&mut *self.outbox.borrow_mut());
        drop(discarded);
        self.backlog_bytes.set(0);
    }

    // ---- Commands ----

    /// A command has come. False if the host has more outstanding than its queue holds.
    #[must_use]
    pub(super) fn begin_command(&self) -> bool {
        let outstanding = self.outstanding.get() + 1;
        self.outstanding.set(outstanding);
        outstanding <= self.queue_size.get()
    }

    /// A command ends; returns the value for SQHD. Entries are given back in order of completion.
    pub(super) fn end_command(&self) -> u16 {
        self.outstanding.set(self.outstanding.get().saturating_sub(1));
        let head = (u32::from(self.sq_head.get()) + 1) % self.queue_size.get();
        self.sq_head.set(head as u16);
        if self.closed.get() && self.outstanding.get() == 0 {
            wake(&self.drain);
        }
        head as u16
    }

    /// The controller holds a command for an event to come.
    pub(super) fn hold_command(&self) {
        self.held.set(self.held.get() + 1);
    }

    /// The controller completes a command that it held.
    pub(super) fn release_command(&self) {
        self.held.set(self.held.get().saturating_sub(1));
    }

    /// The controller is gone, and with it the commands that it held.
    pub(super) fn release_held_commands(&self) {
        for _ in 0..self.held.take() {
            self.end_command();
        }
    }

    // ---- Sending ----

    pub(super) fn send(&self, outgoing: Outgoing) {
        if self.closed.get() {
            return;
        }
        if let Outgoing::Data { payload, .. } = &outgoing {
            self.backlog_bytes.set(self.backlog_bytes.get() + payload.len());
        }
        self.outbox.borrow_mut().push_back(outgoing);
        wake(&self.writer);
    }

    /// Ends the connection once everything before this has been sent.
    pub(super) fn close_when_sent(&self) {
        self.send(Outgoing::Close);
    }

    /// Tells the host of its mistake and ends the connection once that is sent.
    pub(super) fn terminate(&self, error: FatalError) {
        tracing::info!(peer = %self.peer, fault = %error, "protocol error: connection ended");
        self.discard_outbox();
        self.send(Outgoing::Terminate(error));
    }

    /// The writer's next thing to send, if there is one now.
    pub(super) fn next_outgoing(&self) -> Option<Outgoing> {
        self.outbox.borrow_mut().pop_front()
    }

    /// Waits until there is something to send; false when the connection is closed.
    pub(super) async fn something_to_send(&self) -> bool {
        poll_fn(|context| {
            if self.closed.get() {
                return Poll::Ready(false);
            }
            if !self.outbox.borrow().is_empty() {
                return Poll::Ready(true);
            }
            set(&self.writer, context.waker());
            Poll::Pending
        })
        .await
    }

    /// So many bytes of data have been sent.
    pub(super) fn sent(&self, payload: &Payload) {
        let backlog = self.backlog_bytes.get().saturating_sub(payload.len());
        self.backlog_bytes.set(backlog);
        if backlog <= ADMIN_BACKLOG_BYTES {
            wake(&self.reader);
        }
    }

    /// Waits until the replies to admin commands that wait to be sent are few.
    pub(super) async fn admin_backlog_is_small(&self) {
        poll_fn(|context| {
            if self.closed.get() || self.backlog_bytes.get() <= ADMIN_BACKLOG_BYTES {
                return Poll::Ready(());
            }
            set(&self.reader, context.waker());
            Poll::Pending
        })
        .await;
    }

    pub(super) fn writer_is_gone(&self) {
        self.writer_gone.set(true);
        wake(&self.drain);
    }

    /// Waits until no command and no task of the connection is left.
    pub(super) async fn drained(&self) {
        poll_fn(|context| {
            if self.outstanding.get() == 0 && self.writer_gone.get() {
                return Poll::Ready(());
            }
            set(&self.drain, context.waker());
            Poll::Pending
        })
        .await;
    }

    // ---- Data from the host ----

    /// Asks the host for `buffer.len()` bytes of a write's data and waits for them.
    pub(super) async fn receive_data(
        &self,
        cid: u16,
        offset_bytes: u32,
        buffer: Buffer,
    ) -> Result<(Buffer, DigestCheck), Stopped> {
        if self.closed.get() {
            return Err(Stopped::Closed);
        }
        let length_bytes = buffer.len() as u32;
        {
            let mut incoming = self.incoming.borrow_mut();
            if incoming.contains_key(&cid) {
                return Err(Stopped::Conflict);
            }
            let entry = Incoming {
                buffer: Some(buffer),
                base_bytes: offset_bytes,
                done: None,
                waker: None,
            };
            incoming.insert(cid, entry);
        }
        self.send(Outgoing::ReadyToTransfer { cid, offset_bytes, length_bytes });
        let result = poll_fn(|context| {
            let mut incoming = self.incoming.borrow_mut();
            let Some(entry) = incoming.get_mut(&cid) else {
                return Poll::Ready(Err(Stopped::Closed));
            };
            if let Some(digest) = entry.done
                && let Some(buffer) = entry.buffer.take()
            {
                return Poll::Ready(Ok((buffer, digest)));
            }
            if self.closed.get() {
                return Poll::Ready(Err(Stopped::Closed));
            }
            match &mut entry.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            Poll::Pending
        })
        .await;
        let entry = self.incoming.borrow_mut().remove(&cid);
        drop(entry);
        result
    }

    /// Copies payload bytes into the data buffer of a write.
    pub(super) fn accept_data(&self, cid: u16, offset_bytes: u32, bytes: &[u8]) {
        let mut incoming = self.incoming.borrow_mut();
        if let Some(entry) = incoming.get_mut(&cid)
            && let Some(buffer) = &mut entry.buffer
        {
            let start = offset_bytes.saturating_sub(entry.base_bytes) as usize;
            if let Some(place) = buffer.get_mut(start..start + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        }
    }

    /// Lends the data buffer of a write out, to be received into, with the place of `offset`.
    pub(super) fn lend_buffer(&self, cid: u16, offset_bytes: u32) -> Option<(Buffer, usize)> {
        let mut incoming = self.incoming.borrow_mut();
        let entry = incoming.get_mut(&cid)?;
        let start = offset_bytes.checked_sub(entry.base_bytes)? as usize;
        Some((entry.buffer.take()?, start))
    }

    pub(super) fn return_buffer(&self, cid: u16, buffer: Buffer) {
        if let Some(entry) = self.incoming.borrow_mut().get_mut(&cid) {
            entry.buffer = Some(buffer);
        }
    }

    /// All data that one R2T asked for has come.
    pub(super) fn data_is_complete(&self, cid: u16, digest: DigestCheck) {
        if let Some(entry) = self.incoming.borrow_mut().get_mut(&cid) {
            entry.done = Some(digest);
            if let Some(waker) = entry.waker.take() {
                waker.wake();
            }
        }
    }

    /// The socket, for whoever must be able to end this connection from another core.
    pub(super) fn stream(&self) -> Arc<std::net::TcpStream> {
        self.socket.stream()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.core.unregister();
    }
}

fn wake(waker: &RefCell<Option<Waker>>) {
    if let Some(waker) = waker.borrow_mut().take() {
        waker.wake();
    }
}

fn set(place: &RefCell<Option<Waker>>, waker: &Waker) {
    match &mut *place.borrow_mut() {
        Some(old) => old.clone_from(waker),
        none => *none = Some(waker.clone()),
    }
}
