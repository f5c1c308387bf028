//! Connect and the admin queue: the controller answers, this moves the bytes.
//!
//! Admin commands are served at once, on the reader; only one whose data the host still has goes
//! to a worker. A task beside the reader looks after what does not come from a command: keep
//! alive, events, and the end of a shutdown.

use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::nvme::status::Status;

use super::command::{Command, Job, Task};
use super::connection::Connection;
use super::outbox::{Outgoing, Payload, Reply};
use super::reader::Inline;
use crate::association::{Association, Connected, Origin, Queue};
use crate::controller::{
    self, AdminOutcome, Completion, ConnectError, Data, DataIn, Effect, Environment, Health,
    Request, Transfer, admin_transfer,
};
use crate::runtime;

/// How long the commands of closed I/O queues may take at a reset or shutdown before it counts as
/// done.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(30);
/// How often that is looked at.
const SHUTDOWN_POLL: Duration = Duration::from_millis(5);
/// SQHD in the answer to a Connect that does without flow control (NVMe Base, Connect response).
const SQHD_WITHOUT_FLOW_CONTROL: u16 = 0xFFFF;

/// Serves the first command of a queue, which must be Connect.
pub(super) async fn connect(command: Command, sqe: &Sqe, inline: Option<Inline>) {
    let connection = Rc::clone(command.connection());
    match try_connect(&connection, sqe, inline).await {
        Ok(Connected { queue, grant, cntlid }) => {
            connection.set_queue_size(u32::from(grant.entries));
            let mut machine = connection.machine.borrow_mut();
            machine.set_sq_flow_control(grant.sq_flow_control_disabled);
            if let Queue::Io(_) = queue {
                machine.set_io_queue(connection.core.settings.in_capsule_bytes);
            }
            drop(machine);
            if let Queue::Admin(association) = &queue {
                runtime::spawn(look_after(Rc::downgrade(&connection), Arc::clone(association)));
            }
            *connection.queue.borrow_mut() = queue;
            let sq_head = match (connection.end_command(), grant.sq_flow_control_disabled) {
                (_, true) => SQHD_WITHOUT_FLOW_CONTROL,
                (sq_head, false) => sq_head,
            };
            let completion =
                command.into_parts().1.complete(Status::SUCCESS, controller::response(cntlid));
            connection.send(Outgoing::Response(Reply { completion, sq_head }));
        }
        Err(error) => {
            tracing::info!(peer = %connection.peer, %error, "Connect refused");
            command.complete_with(error.status(), error.result());
        }
    }
}

async fn try_connect(
    connection: &Connection,
    sqe: &Sqe,
    inline: Option<Inline>,
) -> Result<Connected, ConnectError> {
    let data = inline.as_ref().map_or(&[][..], |inline| &inline.buffer);
    let request = Request::parse(sqe, data)?;
    if request.qid == 0 {
        let deadline = Instant::now() + SHUTDOWN_PATIENCE;
        for earlier in connection.core.registry.ending_of(&request) {
            if !io_queues_are_gone(&earlier, deadline).await {
                let what = "commands of this host's last connection are still at the drives";
                return Err(ConnectError::Busy { what: what.into() });
            }
        }
    }
    let lost = |_| ConnectError::Busy { what: "the socket is gone".into() };
    let stream = connection.stream();
    let origin = Origin {
        via: connection.socket.local_address().map_err(lost)?,
        serves_volumes: connection.serves_volumes,
        stream: &stream,
    };
    connection.core.registry.connect(&request, &origin, Instant::now())
}

/// What the controller asks of us while it serves a command.
struct Surroundings<'a> {
    connection: &'a Connection,
    subsystem: Option<usize>,
}

impl Environment for Surroundings<'_> {
    fn health(&self) -> Health {
        self.connection.core.registry.health(self.subsystem)
    }

    fn abort(&mut self, _sqid: u16, _cid: u16) -> bool {
        // What runs is always completed, and soon; "not aborted" is then the true answer.
        false
    }
}

/// Serves a command of the admin queue.
pub(super) fn serve(
    command: Command,
    association: &Arc<Association>,
    sqe: &Sqe,
    inline: Option<Inline>,
) {
    let capsule_bytes = inline.as_ref().map_or(0, |inline| inline.buffer.len() as u32);
    let max_bytes = command.connection().core.settings.max_admin_bytes;
    match admin_transfer(sqe, capsule_bytes, max_bytes) {
        Ok(Transfer::None) => finish(command, association, sqe, Data::None),
        Ok(Transfer::FromHost(DataIn::InCapsule { offset_bytes, length_bytes })) => {
            let range = offset_bytes as usize..(offset_bytes + length_bytes) as usize;
            let data = inline.as_ref().and_then(|inline| inline.buffer.get(range));
            finish(command, association, sqe, Data::FromHost(data.unwrap_or_default()));
        }
        Ok(Transfer::FromHost(DataIn::Transport { length_bytes })) => {
            let core = Rc::clone(&command.connection().core);
            core.submit(Job { command, task: Task::Admin { sqe: *sqe, length_bytes } });
        }
        Ok(Transfer::ToHost { length_bytes }) => {
            let mut data = vec![0; length_bytes as usize];
            let (connection, completion) =
                handle(command, association, sqe, Data::ToHost(&mut data));
            look(&connection, association);
            if let Some(completion) = completion {
                answer(&connection, completion, Some(data.into()));
            }
        }
        Err(status) => command.complete(status),
    }
}

/// Serves an admin command that sends no data to the host.
pub(super) fn finish(command: Command, association: &Arc<Association>, sqe: &Sqe, data: Data<'_>) {
    let (connection, completion) = handle(command, association, sqe, data);
    // First what the command has set free, as the requests that an Abort or a reset ends.
    let resets = look(&connection, association);
    match completion {
        // The reset is answered when it is over: then the numbers of the I/O queues are free, and
        // no write of before comes after one that the host sends from now on.
        Some(completion) if resets => {
            let association = Arc::clone(association);
            runtime::spawn(async move {
                io_queues_are_gone(&association, Instant::now() + SHUTDOWN_PATIENCE).await;
                answer(&connection, completion, None);
            });
        }
        Some(completion) => answer(&connection, completion, None),
        None => {}
    }
}

/// The controller's completion, unless it holds the command.
fn handle(
    command: Command,
    association: &Association,
    sqe: &Sqe,
    data: Data<'_>,
) -> (Rc<Connection>, Option<Completion>) {
    let (connection, permit) = command.into_parts();
    let mut surroundings =
        Surroundings { connection: &connection, subsystem: association.subsystem() };
    let outcome =
        association.controller().handle_admin(Instant::now(), permit, sqe, data, &mut surroundings);
    match outcome {
        AdminOutcome::Complete(completion) => (connection, Some(completion)),
        AdminOutcome::Held => {
            connection.hold_command();
            (connection, None)
        }
    }
}

/// Sends a completion, and before it the data of a command that succeeded.
fn answer(connection: &Connection, completion: Completion, data: Option<Bytes>) {
    let reply = Reply { sq_head: connection.end_command(), completion };
    let succeeded = reply.completion.status() == Status::SUCCESS;
    match data.filter(|data| succeeded && !data.is_empty()) {
        Some(data) => connection.send(Outgoing::Data {
            cid: reply.completion.cid(),
            offset_bytes: 0,
            payload: Payload::Heap(data),
            reply: Some(reply),
        }),
        None => connection.send(Outgoing::Response(reply)),
    }
}

/// Does what the controller has become ready for; whether that is a reset.
fn look(connection: &Rc<Connection>, association: &Arc<Association>) -> bool {
    let mut resets = false;
    loop {
        // Not in the loop's head: the lock must be open again before the completion is sent.
        let completion = association.controller().poll_completion();
        let Some(completion) = completion else { break };
        connection.release_command();
        answer(connection, completion, None);
    }
    loop {
        let effect = association.controller().poll_effect();
        match effect {
            None => return resets,
            Some(Effect::CloseIoQueues) => {
                association.shut_down_io();
                resets = true;
            }
            Some(Effect::Shutdown { flush }) => {
                let (connection, association) = (Rc::clone(connection), Arc::clone(association));
                let number = association.begin_shutdown();
                runtime::spawn(async move {
                    shut_down(&connection, &association, flush).await;
                    association.end_shutdown(number);
                });
            }
            Some(Effect::CloseAssociation(reason)) => {
                tracing::warn!(
                    peer = %connection.peer,
                    host = association.controller().host_nqn(),
                    ?reason,
                    "association ended"
                );
                association.shut_down_all();
            }
        }
    }
}

/// Waits until the I/O queues, which have been told to end, and their commands are gone; false if
/// they are not by the deadline.
async fn io_queues_are_gone(association: &Association, deadline: Instant) -> bool {
    while association.io_connections() > 0 {
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(SHUTDOWN_POLL).await;
    }
    true
}

/// Ends the I/O queues, waits for their commands, and makes what was written durable.
async fn shut_down(connection: &Rc<Connection>, association: &Arc<Association>, flush: bool) {
    association.shut_down_io();
    io_queues_are_gone(association, Instant::now() + SHUTDOWN_PATIENCE).await;
    if flush && let Some(subsystem) = association.subsystem() {
        let status = connection.core.flush_all(subsystem).await;
        if status != Status::SUCCESS {
            tracing::error!(peer = %connection.peer, %status, "flush at controller shutdown failed");
        }
    }
}

/// Ends an I/O queue at its host's wish. That is answered when the queue's other commands have
/// ended and its number is free: the host may connect it again as soon as it has the answer.
pub(super) async fn disconnect(command: Command) {
    let connection = Rc::clone(command.connection());
    let deadline = Instant::now() + SHUTDOWN_PATIENCE;
    // Also when the host has closed the connection meanwhile: its commands are at the drives all
    // the same, and whoever waits for the queue's end waits for them.
    let others = || connection.counts().commands > 1;
    while others() && Instant::now() < deadline {
        tokio::time::sleep(SHUTDOWN_POLL).await;
    }
    if !others() {
        leave(&connection);
    }
    command.complete(Status::SUCCESS);
    connection.close_when_sent();
}

/// Looks after an association until its admin connection is gone.
async fn look_after(connection: Weak<Connection>, association: Arc<Association>) {
    loop {
        let deadline = association.controller().poll_timeout();
        let timeout = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = association.changed.notified() => {}
            () = timeout => association.controller().handle_timeout(Instant::now()),
        }
        let Some(connection) = connection.upgrade().filter(|connection| !connection.is_closed())
        else {
            return;
        };
        look(&connection, &association);
    }
}

/// A connection is closed: its queue, and with an admin queue the whole association, is gone.
pub(super) fn leave(connection: &Connection) {
    let queue = connection.queue.replace(Queue::Unconnected);
    connection.core.registry.leave(&queue);
    connection.release_held_commands();
}
