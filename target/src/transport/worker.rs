//! A worker carries one I/O command at a time from its start to its completion.
//!
//! Memory first: a command takes the memory for its data before it reads from the array or asks
//! the host. Where the whole is not to be had, it goes in pieces, each of which is sent or written
//! before the next is taken.

use std::rc::Rc;

use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::nvme::status::{Generic, Status};
use raidfabric_protocol::tcp::DigestCheck;
use raidfabric_raid::buffer::Buffer;

use super::admin;
use super::command::{Command, Job, Request, Source, Task};
use super::connection::Stopped;
use super::outbox::{Outgoing, Payload};
use super::reader::Inline;
use crate::association::{IoQueue, Queue};
use crate::controller::{Data, io};
use crate::core::Core;
use crate::memory::Grant;
use crate::volume::Volume;

/// Carries commands for ever.
pub async fn work(core: Rc<Core>) {
    loop {
        let job = core.workers.next().await;
        let party = Rc::clone(job.party());
        let Job { command, task } = job;
        match task {
            // Not for want of memory does a closed connection stay.
            _ if command.connection().is_closed() => command.abandon(),
            Task::Io { request, volume, queue, sqe } => {
                carry(&core, command, request, &volume, &queue, &sqe).await;
            }
            Task::FlushAll { queue } => command.complete(core.flush_all(queue.index).await),
            Task::Admin { sqe, length_bytes } => fetch_admin(command, &sqe, length_bytes).await,
        }
        core.workers.done(&party);
    }
}

/// Why a command gets no status of its own.
enum Ended {
    /// With this status.
    With(Status),
    /// With the connection.
    Abandoned,
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Self::With(status)
    }
}

impl From<Stopped> for Ended {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Closed => Self::Abandoned,
            Stopped::Conflict => Self::With(Generic::CommandIdConflict.into()),
        }
    }
}

async fn carry(
    core: &Core,
    command: Command,
    request: Request,
    volume: &Volume,
    queue: &IoQueue,
    sqe: &Sqe,
) {
    let traffic = core.registry.traffic(core.index, queue.index);
    let ended = match request {
        Request::Read { offset_bytes, length_bytes, fua } => {
            match read(&command, volume, offset_bytes, length_bytes, fua).await {
                Ok((last_offset_bytes, payload)) => {
                    if let Some(traffic) = traffic {
                        traffic.read(length_bytes.into());
                    }
                    return command.complete_with_data(last_offset_bytes, payload);
                }
                Err(ended) => ended,
            }
        }
        Request::Write { offset_bytes, data, fua } => {
            let length_bytes = data.length_bytes();
            let ended = match data {
                Source::Capsule(inline) => write_inline(volume, offset_bytes, inline, fua).await,
                Source::Host { length_bytes } => {
                    write(&command, volume, offset_bytes, length_bytes, fua).await
                }
            };
            if let (Ok(()), Some(traffic)) = (&ended, traffic) {
                traffic.write(length_bytes.into());
            }
            done(ended)
        }
        Request::Flush => volume.flush().await.into(),
        Request::WriteZeroes { offset_bytes, length_bytes, deallocate, fua } => {
            volume.write_zeroes(offset_bytes, length_bytes, deallocate, fua).await.into()
        }
        Request::Deallocate { ranges, data } => {
            done(deallocate(&command, volume, queue, sqe, ranges, data).await)
        }
        Request::Hint => Status::SUCCESS.into(),
    };
    match ended {
        Ended::With(status) => {
            if status != Status::SUCCESS {
                queue.association.controller().log_io_error(queue.qid, sqe, status);
            }
            command.complete(status);
        }
        Ended::Abandoned => command.abandon(),
    }
}

fn done(result: Result<(), Ended>) -> Ended {
    result.err().unwrap_or(Ended::With(Status::SUCCESS))
}

fn check(status: Status) -> Result<(), Ended> {
    if status == Status::SUCCESS { Ok(()) } else { Err(status.into()) }
}

/// Reads, and sends all data but the last piece, which is returned with its place.
async fn read(
    command: &Command,
    volume: &Volume,
    offset_bytes: u64,
    length_bytes: u32,
    fua: bool,
) -> Result<(u32, Payload), Ended> {
    if fua {
        check(volume.flush().await)?;
    }
    let connection = command.connection();
    let mut done_bytes = 0;
    loop {
        let rest = (length_bytes - done_bytes) as usize;
        let (buffer, grant) = connection.transfer.take(rest).await;
        if connection.is_closed() {
            return Err(Ended::Abandoned);
        }
        let piece_bytes = buffer.len() as u32;
        let read = volume.read(offset_bytes + u64::from(done_bytes), buffer).await;
        let buffer = read.map_err(Ended::With)?;
        let payload = Payload::Pooled { data: buffer.freeze(), _grant: grant };
        if done_bytes + piece_bytes >= length_bytes {
            return Ok((done_bytes, payload));
        }
        let (cid, offset_bytes) = (command.cid(), done_bytes);
        connection.send(Outgoing::Data { cid, offset_bytes, payload, reply: None });
        done_bytes += piece_bytes;
    }
}

async fn write_inline(
    volume: &Volume,
    offset_bytes: u64,
    inline: Inline,
    fua: bool,
) -> Result<(), Ended> {
    let Inline { buffer, grant } = inline;
    let status = volume.write(offset_bytes, buffer.freeze(), fua).await;
    drop(grant);
    check(status)
}

/// A write whose data the host is asked for.
async fn write(
    command: &Command,
    volume: &Volume,
    offset_bytes: u64,
    length_bytes: u32,
    fua: bool,
) -> Result<(), Ended> {
    let mut done_bytes = 0;
    while done_bytes < length_bytes {
        let (buffer, grant) = fetch(command, done_bytes, length_bytes).await?;
        let piece_bytes = buffer.len() as u32;
        let position = offset_bytes + u64::from(done_bytes);
        let status = volume.write(position, buffer.freeze(), fua).await;
        drop(grant);
        check(status)?;
        done_bytes += piece_bytes;
    }
    Ok(())
}

/// Takes memory for the rest of a command's data, or for a piece of it, and asks the host for it.
async fn fetch(
    command: &Command,
    done_bytes: u32,
    length_bytes: u32,
) -> Result<(Buffer, Grant), Ended> {
    let connection = command.connection();
    let rest = (length_bytes - done_bytes) as usize;
    let (buffer, grant) = connection.transfer.take(rest).await;
    let (buffer, digest) = connection.receive_data(command.cid(), done_bytes, buffer).await?;
    if digest == DigestCheck::Mismatch {
        return Err(Ended::With(Generic::TransientTransportError.into()));
    }
    Ok((buffer, grant))
}

/// Data of a command that is no block data, whole and small.
async fn gather(command: &Command, length_bytes: u32) -> Result<Vec<u8>, Ended> {
    let mut data = Vec::with_capacity(length_bytes as usize);
    while data.len() < length_bytes as usize {
        let (buffer, grant) = fetch(command, data.len() as u32, length_bytes).await?;
        data.extend_from_slice(&buffer);
        drop((buffer, grant));
    }
    Ok(data)
}

async fn deallocate(
    command: &Command,
    volume: &Volume,
    queue: &IoQueue,
    sqe: &Sqe,
    ranges: u16,
    data: Source,
) -> Result<(), Ended> {
    let gathered;
    let list: &[u8] = match &data {
        Source::Capsule(inline) => &inline.buffer,
        Source::Host { length_bytes } => {
            gathered = gather(command, *length_bytes).await?;
            &gathered
        }
    };
    let namespace = queue.subsystem.namespace(sqe.nsid.get());
    let namespace = namespace.ok_or(Ended::With(Generic::InvalidNamespaceOrFormat.into()))?;
    for (offset_bytes, length_bytes) in
        io::dsm_ranges(list, ranges, namespace).map_err(Ended::With)?
    {
        check(volume.deallocate(offset_bytes, length_bytes).await)?;
    }
    Ok(())
}

/// An admin command whose data the host still has.
async fn fetch_admin(command: Command, sqe: &Sqe, length_bytes: u32) {
    let queue = command.connection().queue.borrow().clone();
    let Queue::Admin(association) = queue else { return command.abandon() };
    match gather(&command, length_bytes).await {
        Ok(data) => admin::finish(command, &association, sqe, Data::FromHost(&data)),
        Err(Ended::With(status)) => command.complete(status),
        Err(Ended::Abandoned) => command.abandon(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::memory::{COMMAND_SLOT_BYTES, WORKER_BYTES};
    use crate::transport::outbox::Outgoing;

    /// The documented memory bound counts these.
    #[test]
    fn a_command_takes_no_more_than_the_memory_bound_says() {
        fn size_of_future<F: Future>(_: impl FnOnce(Rc<Core>) -> F) -> u64 {
            size_of::<F>() as u64
        }
        // Beside its future a task has a header and a place in two queues.
        let worker_bytes = size_of_future(work) + 256;
        assert!(worker_bytes <= WORKER_BYTES, "{worker_bytes}");
        let slot_bytes = (size_of::<Job>() + size_of::<Outgoing>()) as u64 + 64;
        assert!(slot_bytes <= COMMAND_SLOT_BYTES, "{slot_bytes}");
    }
}
