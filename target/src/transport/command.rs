//! From a capsule to a command under way: what kind of queue it came on decides who serves it.
//!
//! I/O commands are checked here and handed to a worker; Connect and admin commands go to `admin`.
//! [`Command`] is the right to complete one command: it is used up by completing it.

use std::rc::Rc;

use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::nvme::status::{Generic, Status};
use raidfabric_protocol::tcp::DigestCheck;

use super::admin;
use super::connection::Connection;
use super::outbox::{Outgoing, Payload, Reply};
use super::reader::Inline;
use crate::association::{IoQueue, Queue};
use crate::controller::io::{self, Flush, IoRequest};
use crate::controller::{DataIn, Permit};
use crate::runtime;
use crate::volume::Volume;
use crate::workers::Party;

/// The right, and the duty, to complete a command.
pub struct Command {
    connection: Rc<Connection>,
    permit: Permit,
}

/// A command for a worker.
pub struct Job {
    pub(super) command: Command,
    pub(super) task: Task,
}

/// What a worker does.
pub(super) enum Task {
    /// An I/O command.
    Io { request: Request, volume: Volume, queue: Rc<IoQueue>, sqe: Sqe },
    /// Flush of every namespace of a subsystem.
    FlushAll { queue: Rc<IoQueue> },
    /// An admin command whose data has to be fetched first.
    Admin { sqe: Sqe, length_bytes: u32 },
}

/// An I/O command with its data, if they came with it.
pub(super) enum Request {
    Read {
        offset_bytes: u64,
        length_bytes: u32,
        fua: bool,
    },
    Write {
        offset_bytes: u64,
        data: Source,
        fua: bool,
    },
    WriteZeroes {
        offset_bytes: u64,
        length_bytes: u64,
        deallocate: bool,
        fua: bool,
    },
    Deallocate {
        ranges: u16,
        data: Source,
    },
    /// Dataset Management without deallocation: hints, which need no action.
    Hint,
    Flush,
}

/// Where a worker finds a command's data.
pub(super) enum Source {
    /// In its capsule, already cut to the range that the command names.
    Capsule(Inline),
    /// With the host.
    Host { length_bytes: u32 },
}

impl Job {
    /// Whose it is.
    pub fn party(&self) -> &Rc<Party<Job>> {
        &self.command.connection.party
    }
}

impl Source {
    pub(super) fn length_bytes(&self) -> u32 {
        match self {
            Self::Capsule(inline) => inline.buffer.len() as u32,
            Self::Host { length_bytes } => *length_bytes,
        }
    }
}

impl Command {
    pub(super) fn connection(&self) -> &Rc<Connection> {
        &self.connection
    }

    pub(super) fn cid(&self) -> u16 {
        self.permit.cid()
    }

    /// Completes the command.
    pub(super) fn complete(self, status: Status) {
        self.complete_with(status, 0);
    }

    /// Completes the command with a result.
    pub(super) fn complete_with(self, status: Status, result: u64) {
        let sq_head = self.connection.end_command();
        let completion = self.permit.complete(status, result);
        self.connection.send(Outgoing::Response(Reply { completion, sq_head }));
    }

    /// Completes the command with success; these are its last data.
    pub(super) fn complete_with_data(self, offset_bytes: u32, payload: Payload) {
        let sq_head = self.connection.end_command();
        let cid = self.permit.cid();
        let reply = Some(Reply { completion: self.permit.succeed(), sq_head });
        self.connection.send(Outgoing::Data { cid, offset_bytes, payload, reply });
    }

    /// The connection is closed: there is nobody to answer.
    pub(super) fn abandon(self) {
        self.connection.end_command();
        self.permit.abandon();
    }

    /// Takes the right apart, for the controller to complete the command now or later.
    pub(super) fn into_parts(self) -> (Rc<Connection>, Permit) {
        (self.connection, self.permit)
    }
}

/// Begins a command that has arrived with its in-capsule data.
pub(super) async fn start(
    connection: &Rc<Connection>,
    sqe: &Sqe,
    inline: Option<Inline>,
    digest: DigestCheck,
) {
    if !connection.begin_command() {
        tracing::warn!(
            peer = %connection.peer,
            "the host sends more commands than its queue holds: connection closed"
        );
        connection.end_command();
        return connection.close();
    }
    let command = Command { connection: Rc::clone(connection), permit: Permit::new(sqe.cid.get()) };
    if digest == DigestCheck::Mismatch {
        return command.complete(Generic::TransientTransportError.into());
    }
    let queue = connection.queue.borrow().clone();
    match queue {
        Queue::Unconnected => admin::connect(command, sqe, inline).await,
        Queue::Admin(association) => {
            admin::serve(command, &association, sqe, inline);
            connection.admin_backlog_is_small().await;
        }
        Queue::Io(queue) => start_io(command, queue, sqe, inline),
    }
}

fn start_io(command: Command, queue: Rc<IoQueue>, sqe: &Sqe, inline: Option<Inline>) {
    let capsule_bytes = inline.as_ref().map_or(0, |inline| inline.buffer.len() as u32);
    let request = match io::parse(sqe, capsule_bytes, &queue.subsystem) {
        Ok(request) => request,
        Err(status) => {
            queue.association.controller().log_io_error(queue.qid, sqe, status);
            return command.complete(status);
        }
    };
    let core = Rc::clone(&command.connection.core);
    let task = match request {
        IoRequest::Disconnect => return runtime::spawn(admin::disconnect(command)),
        IoRequest::Flush(Flush::All) => Task::FlushAll { queue },
        request => {
            let (nsid, request) = match with_data(request, inline) {
                Ok(request) => request,
                Err(status) => return command.complete(status),
            };
            let namespaces = queue.subsystem.namespaces();
            let place = namespaces.binary_search_by_key(&nsid, |namespace| namespace.nsid);
            let volume = place.ok().and_then(|place| core.volume(queue.index, place)).cloned();
            let Some(volume) = volume else {
                return command.complete(Generic::InvalidNamespaceOrFormat.into());
            };
            Task::Io { request, volume, queue, sqe: *sqe }
        }
    };
    core.submit(Job { command, task });
}

/// Puts a checked request together with its data.
fn with_data(request: IoRequest, inline: Option<Inline>) -> Result<(u32, Request), Status> {
    Ok(match request {
        IoRequest::Read { nsid, offset_bytes, length_bytes, fua } => {
            (nsid, Request::Read { offset_bytes, length_bytes, fua })
        }
        IoRequest::Write { nsid, offset_bytes, data, fua } => {
            (nsid, Request::Write { offset_bytes, data: source(data, inline)?, fua })
        }
        IoRequest::WriteZeroes { nsid, offset_bytes, length_bytes, deallocate, fua } => {
            (nsid, Request::WriteZeroes { offset_bytes, length_bytes, deallocate, fua })
        }
        IoRequest::DatasetManagement { nsid, ranges, deallocate: true, data } => {
            (nsid, Request::Deallocate { ranges, data: source(data, inline)? })
        }
        IoRequest::DatasetManagement { nsid, .. } => (nsid, Request::Hint),
        IoRequest::Flush(Flush::One(nsid)) => (nsid, Request::Flush),
        IoRequest::Flush(Flush::All) | IoRequest::Disconnect => {
            return Err(Generic::InternalError.into());
        }
    })
}

pub(super) fn source(data: DataIn, inline: Option<Inline>) -> Result<Source, Status> {
    match (data, inline) {
        (DataIn::Transport { length_bytes }, _) => Ok(Source::Host { length_bytes }),
        (DataIn::InCapsule { offset_bytes, length_bytes }, Some(mut inline)) => {
            let (start, length) = (offset_bytes as usize, length_bytes as usize);
            if start > 0 {
                // Aligned memory for the drives; hosts put the data at the start.
                inline.buffer.copy_within(start..start + length, 0);
            }
            inline.buffer.truncate(length);
            Ok(Source::Capsule(inline))
        }
        (DataIn::InCapsule { .. }, None) => Err(Generic::DataSglLengthInvalid.into()),
    }
}
