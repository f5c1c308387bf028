//! The sending half of a connection: everything that became ready goes out in one message.
//!
//! Headers are written when the batch is made, in the order of the outbox; data are sent from
//! where they lie. The memory of a batch is given back when all of it has been sent.

use std::rc::Rc;
use std::time::Instant;

use raidfabric_protocol::tcp::encode::put_data_digest;
use raidfabric_protocol::tcp::target::{Connection as Machine, Response};

use super::connection::Connection;
use super::outbox::{Outgoing, Payload, Reply};
use crate::runtime::Batch;

/// A batch is sent when it has so many bytes, or nothing more is ready.
const BATCH_BYTES: usize = 1 << 20;
/// A batch is sent when it has so many pieces.
const BATCH_PIECES: usize = 512;

/// What is being sent, beside the bytes.
#[derive(Default)]
struct InFlight {
    payloads: Vec<Payload>,
    terminates: bool,
}

/// Sends until the connection is closed.
pub(super) async fn run(connection: Rc<Connection>) {
    let mut batch = Batch::new();
    let mut in_flight = InFlight::default();
    while connection.something_to_send().await {
        fill(&connection, &mut batch, &mut in_flight);
        connection.set_sending_since(Some(Instant::now()));
        let (result, returned) = connection.socket.send(batch).await;
        batch = returned;
        connection.set_sending_since(None);
        for payload in in_flight.payloads.drain(..) {
            connection.sent(&payload);
        }
        if let Err(error) = result {
            tracing::debug!(peer = %connection.peer, %error, "cannot send");
            connection.close();
        } else if in_flight.terminates {
            // The host reads what was sent before it sees the end of the stream; then it closes.
            connection.socket.finish_sending();
            tokio::time::sleep(connection.core.settings.linger).await;
            connection.close();
        }
    }
    drop(batch);
    connection.writer_is_gone();
}

fn fill(connection: &Connection, batch: &mut Batch, in_flight: &mut InFlight) {
    let mut machine = connection.machine.borrow_mut();
    while batch.length_bytes() < BATCH_BYTES && batch.pieces() < BATCH_PIECES {
        let Some(outgoing) = connection.next_outgoing() else { return };
        match outgoing {
            Outgoing::InitializeConnection => batch.header(|out| {
                machine.encode_icresp(out);
            }),
            Outgoing::Response(reply) => put_response(&machine, batch, reply),
            Outgoing::Data { cid, offset_bytes, payload, reply } => {
                put_data(&machine, batch, cid, offset_bytes, &payload, reply);
                in_flight.payloads.push(payload);
            }
            Outgoing::ReadyToTransfer { cid, offset_bytes, length_bytes } => batch.header(|out| {
                // Refused only where the queue's size is exceeded, which ends the connection
                // before; the command would otherwise wait until the connection closes.
                if let Err(refused) = machine.encode_r2t(cid, offset_bytes, length_bytes, out) {
                    tracing::error!(peer = %connection.peer, %refused, "R2T not sent");
                }
            }),
            Outgoing::Terminate(error) => {
                batch.header(|out| {
                    machine.encode_term_req(&error, out);
                });
                in_flight.terminates = true;
                return;
            }
            Outgoing::Close => {
                in_flight.terminates = true;
                return;
            }
        }
    }
}

fn put_response(machine: &Machine, batch: &mut Batch, reply: Reply) {
    let cqe = reply.completion.into_cqe(reply.sq_head);
    batch.header(|out| {
        machine.encode_response(&cqe, out);
    });
}

fn put_data(
    machine: &Machine,
    batch: &mut Batch,
    cid: u16,
    offset_bytes: u32,
    payload: &Payload,
    reply: Option<Reply>,
) {
    let length_bytes = payload.len() as u32;
    let last = reply.is_some();
    // SUCCESS leaves no room for a result.
    let success = reply.as_ref().is_some_and(|reply| reply.completion.result() == 0);
    let mut response = Response::Needed;
    batch.header(|out| {
        response = machine.encode_c2h_header(cid, offset_bytes, length_bytes, last, success, out).1;
    });
    match payload {
        Payload::Pooled { data, .. } => batch.shared(data.clone()),
        Payload::Heap(data) => batch.bytes(data.clone()),
    }
    if machine.has_data_digest() {
        batch.header(|out| {
            put_data_digest(payload.bytes(), out);
        });
    }
    if let (Some(reply), Response::Needed) = (reply, response) {
        put_response(machine, batch, reply);
    }
}
