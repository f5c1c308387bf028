//! NVMe/TCP connections on a data core: bytes in, commands to workers, replies out.
//!
//! A connection is two long-lived tasks on one core. The *reader* receives large pieces, lets the
//! protocol machine take them apart, and hands commands on; it is the only one that waits for the
//! host's bytes. The *writer* sends everything that became ready since its last turn in one
//! message. Between them, workers carry I/O commands from start to end (`worker`), and the
//! controller answers admin commands at once (`admin`).
//!
//! What bounds a connection: commands outstanding by its queue size, data by its two memory
//! accounts, admin replies by [`connection::ADMIN_BACKLOG_BYTES`]. A host that does not read its
//! replies is closed after a time.

mod admin;
mod command;
mod connection;
mod outbox;
mod reader;
mod worker;
mod writer;

pub use command::Job;
pub use connection::{Connection, Counts};
pub use worker::work;

use std::rc::Rc;

use crate::association::Queue;
use crate::core::Core;
use crate::server::Arrival;

/// Serves one connection from its first byte to its last, and leaves nothing of it behind.
pub async fn serve(core: Rc<Core>, arrival: Arrival) {
    let peer = arrival.peer;
    let Some(connection) = Connection::open(&core, arrival) else {
        tracing::warn!(%peer, "connection refused: the memory budget of this core is used up");
        return;
    };
    crate::runtime::spawn(writer::run(Rc::clone(&connection)));
    let end = reader::run(&connection).await;
    connection.close();
    match end {
        reader::End::Closed => tracing::debug!(%peer, "connection closed"),
        reader::End::Refused => tracing::debug!(%peer, "connection ended with a TermReq"),
        reader::End::Lost(error) => tracing::debug!(%peer, %error, "connection lost"),
    }
    // An admin queue's controller goes at once. An I/O queue is there until its last command has
    // ended: whoever waits for the queue's end waits for what it may still write.
    let is_io = matches!(*connection.queue.borrow(), Queue::Io(_));
    if !is_io {
        admin::leave(&connection);
    }
    connection.drained().await;
    if is_io {
        admin::leave(&connection);
    }
}
