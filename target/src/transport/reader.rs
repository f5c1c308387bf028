//! The receiving half of a connection.
//!
//! One large receive takes whatever has come; the protocol machine takes it apart, and payload is
//! copied from there into aligned memory. Only a payload of which much is still to come is
//! received straight into its place.
//!
//! The reader waits for memory in one place: a command's in-capsule data. That memory is never
//! held while something waits for the host, so the wait ends. It never waits for transfer memory,
//! which may be held by writes whose data are still behind this command in the stream.

use std::io;
use std::rc::Rc;

use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::tcp::target::{Event, Place};
use raidfabric_protocol::tcp::{DigestCheck, FatalError};
use raidfabric_raid::buffer::Buffer;

use super::command;
use super::connection::Connection;
use super::outbox::Outgoing;
use crate::memory::Grant;

/// A payload of which so much is still to come is received straight into its place: below, one
/// large receive for many commands costs less than the copy saves.
const DIRECT_BYTES: usize = 32 * 1024;

/// How a connection ended.
pub(super) enum End {
    /// The host closed it, or we did.
    Closed,
    /// By a TermReq, ours or the host's.
    Refused,
    /// The network lost it.
    Lost(io::Error),
}

/// A command's in-capsule data, in its aligned memory.
pub(super) struct Inline {
    pub(super) buffer: Buffer,
    // After the buffer, which it accounts for.
    pub(super) grant: Grant,
}

/// A command whose in-capsule data is on its way.
struct Capsule {
    sqe: Sqe,
    inline: Inline,
}

/// Receives and hands on until the connection ends.
pub(super) async fn run(connection: &Rc<Connection>) -> End {
    let Some(mut buffer) = connection.core.receive_buffer() else {
        return End::Lost(io::ErrorKind::OutOfMemory.into());
    };
    let mut capsule = None;
    loop {
        let whole = 0..buffer.len();
        connection.set_listening(true);
        let (result, returned) = connection.socket.receive(buffer, whole, false).await;
        connection.set_listening(false);
        buffer = returned;
        match result {
            Ok(0) => return End::Closed,
            Ok(received) => {
                connection.core.awake.saw_work();
                let received = buffer.get(..received).unwrap_or_default();
                match take_apart(connection, received, &mut capsule).await {
                    Ok(false) => {}
                    Ok(true) => return End::Refused,
                    Err(error) => return refuse(connection, error, buffer).await,
                }
            }
            Err(error) => return End::Lost(error),
        }
        match receive_directly(connection, &mut capsule).await {
            Ok(None) => {}
            Ok(Some(end)) => return end,
            Err(error) => return refuse(connection, error, buffer).await,
        }
        if connection.is_closed() {
            return End::Closed;
        }
    }
}

/// Goes through received bytes; true if the host has ended the connection.
async fn take_apart(
    connection: &Rc<Connection>,
    received: &[u8],
    capsule: &mut Option<Capsule>,
) -> Result<bool, FatalError> {
    let mut rest = received;
    loop {
        let step = connection.machine.borrow_mut().poll(rest)?;
        match step.event {
            Event::NeedMore => return Ok(false),
            Event::SendIcResp => connection.send(Outgoing::InitializeConnection),
            Event::Capsule { sqe, inline_bytes: 0 } => {
                command::start(connection, &sqe, None, DigestCheck::Ok).await;
            }
            Event::Capsule { sqe, inline_bytes } => {
                *capsule = Some(begin_capsule(connection, sqe, inline_bytes as usize).await);
            }
            Event::Payload { place: Place::Capsule, offset_bytes, range } => {
                let start = offset_bytes as usize;
                if let Some(capsule) = capsule
                    && let Some(bytes) = rest.get(range)
                    && let Some(place) = capsule.inline.buffer.get_mut(start..start + bytes.len())
                {
                    place.copy_from_slice(bytes);
                }
            }
            Event::Payload { place: Place::Transfer { cid, .. }, offset_bytes, range } => {
                if let Some(bytes) = rest.get(range) {
                    connection.accept_data(cid, offset_bytes, bytes);
                }
            }
            Event::CapsuleEnd { digest } => {
                if let Some(Capsule { sqe, inline }) = capsule.take() {
                    command::start(connection, &sqe, Some(inline), digest).await;
                }
            }
            Event::TransferData { .. } => {}
            Event::TransferDone { cid, digest, .. } => connection.data_is_complete(cid, digest),
            Event::PeerTerminated(termination) => {
                tracing::warn!(peer = %connection.peer, %termination, "the host ended the connection");
                return Ok(true);
            }
        }
        rest = rest.get(step.consumed..).unwrap_or_default();
    }
}

async fn begin_capsule(connection: &Rc<Connection>, sqe: Sqe, inline_bytes: usize) -> Capsule {
    // All capsule memory is taken in blocks of one size, so that it cannot fragment and the
    // guaranteed minimum is always one whole block.
    let block = connection.core.settings.capsule_block_bytes.max(inline_bytes);
    let (mut buffer, grant) = connection.capsule.take(block).await;
    buffer.truncate(inline_bytes);
    Capsule { sqe, inline: Inline { buffer, grant } }
}

/// Receives the rest of a long payload into its place, and of the next, while they are long.
async fn receive_directly(
    connection: &Rc<Connection>,
    capsule: &mut Option<Capsule>,
) -> Result<Option<End>, FatalError> {
    loop {
        let direct = connection.machine.borrow().direct();
        let Some((Place::Transfer { cid, .. }, offset_bytes, remaining)) = direct else {
            return Ok(None);
        };
        if remaining < DIRECT_BYTES {
            return Ok(None);
        }
        let Some((buffer, start)) = connection.lend_buffer(cid, offset_bytes) else {
            return Ok(None);
        };
        connection.set_listening(true);
        let (result, buffer) =
            connection.socket.receive(buffer, start..start + remaining, true).await;
        connection.set_listening(false);
        let received = match result {
            Ok(received) => received,
            Err(error) => return Ok(Some(End::Lost(error))),
        };
        connection.core.awake.saw_work();
        if let Some(bytes) = buffer.get(start..start + received) {
            connection.machine.borrow_mut().handle_payload(bytes);
        }
        connection.return_buffer(cid, buffer);
        if received < remaining {
            return Ok(Some(End::Closed));
        }
        if take_apart(connection, &[], capsule).await? {
            return Ok(Some(End::Refused));
        }
    }
}

/// Sends the TermReq, and reads on until the host closes, so that it is not lost to a reset.
async fn refuse(connection: &Rc<Connection>, error: FatalError, mut buffer: Buffer) -> End {
    connection.terminate(error);
    let drain = async {
        loop {
            let whole = 0..buffer.len();
            let (result, returned) = connection.socket.receive(buffer, whole, false).await;
            buffer = returned;
            if !matches!(result, Ok(1..)) {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(connection.core.settings.linger, drain).await;
    End::Refused
}
