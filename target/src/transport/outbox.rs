//! What is to be sent on a connection, in order.

use bytes::Bytes;
use raidfabric_protocol::tcp::FatalError;
use raidfabric_raid::buffer::SharedBuffer;

use crate::controller::Completion;
use crate::memory::Grant;

/// Data of a reply.
pub(super) enum Payload {
    /// From the transfer memory; the grant goes back after the data has been sent.
    Pooled { data: SharedBuffer, _grant: Grant },
    /// From the heap, as admin data is.
    Heap(Bytes),
}

impl Payload {
    pub(super) fn len(&self) -> usize {
        self.bytes().len()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Pooled { data, .. } => data,
            Self::Heap(data) => data,
        }
    }
}

/// How a command ends.
pub(super) struct Reply {
    pub(super) completion: Completion,
    /// The value of SQHD.
    pub(super) sq_head: u16,
}

/// One thing to send.
pub(super) enum Outgoing {
    /// The answer to ICReq.
    InitializeConnection,
    /// A completion by itself.
    Response(Reply),
    /// Data of a read, and its successful completion if these are the last.
    Data { cid: u16, offset_bytes: u32, payload: Payload, reply: Option<Reply> },
    /// Ask for data of a write.
    ReadyToTransfer { cid: u16, offset_bytes: u32, length_bytes: u32 },
    /// Tell the host of its mistake; nothing follows.
    Terminate(FatalError),
    /// Nothing follows.
    Close,
}
