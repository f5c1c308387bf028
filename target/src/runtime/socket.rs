//! A connected TCP socket on a data core, and the batch in which everything that became ready in
//! one turn is sent.
//!
//! Invariants: a receive owns its buffer until the kernel is done with it; a batch is sent whole
//! and in order, or the socket is broken. No allocation per send once a batch has grown to its
//! working size.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use io_uring::{opcode, types};
use raidfabric_raid::buffer::{Buffer, SharedBuffer};

use super::op;

/// The kernel takes no more pieces than this in one message (UIO_MAXIOV).
const MAX_PIECES_PER_SEND: usize = 1024;

/// A connected socket; clones are the same socket.
#[derive(Clone, Debug)]
pub struct Socket {
    stream: Arc<TcpStream>,
}

impl Socket {
    /// Takes a connected socket over from the thread that accepted it.
    pub fn new(stream: TcpStream) -> Self {
        Self { stream: Arc::new(stream) }
    }

    /// The socket itself, for whoever must be able to shut it down from another thread.
    pub fn stream(&self) -> Arc<TcpStream> {
        Arc::clone(&self.stream)
    }

    /// The address the peer connected to.
    ///
    /// # Errors
    /// When the socket is no longer connected.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Receives into `buffer[range]`: at least one byte, or with `fill` the whole range; zero when
    /// the peer has closed. Fewer bytes than asked with `fill` mean the same.
    ///
    /// # Errors
    /// What recv(2) answers. `InvalidInput` for a range outside of the buffer.
    pub async fn receive(
        &self,
        mut buffer: Buffer,
        range: Range<usize>,
        fill: bool,
    ) -> (io::Result<usize>, Buffer) {
        let Some(window) = buffer.get_mut(range) else {
            return (Err(io::ErrorKind::InvalidInput.into()), buffer);
        };
        let length = u32::try_from(window.len()).unwrap_or(u32::MAX);
        let flags = if fill { libc::MSG_WAITALL } else { 0 };
        let entry =
            opcode::Recv::new(types::Fd(self.stream.as_raw_fd()), window.as_mut_ptr(), length)
                .flags(flags)
                .build();
        let (result, (buffer, _)) = op::submit((buffer, Arc::clone(&self.stream)), entry).await;
        (result, buffer)
    }

    /// Sends the batch whole. The batch comes back empty, ready for the next turn.
    ///
    /// # Errors
    /// What sendmsg(2) answers; part of the batch may have been sent then.
    pub async fn send(&self, mut batch: Batch) -> (io::Result<()>, Batch) {
        batch.inner.prepare();
        while let Some(message) = batch.inner.next_message() {
            let entry = opcode::SendMsg::new(types::Fd(self.stream.as_raw_fd()), message)
                .flags(libc::MSG_NOSIGNAL as u32)
                .build();
            let (result, (inner, _)) =
                op::submit((batch.inner, Arc::clone(&self.stream)), entry).await;
            batch.inner = inner;
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), batch),
                Ok(sent) => batch.inner.advance(sent),
                Err(error) => return (Err(error), batch),
            }
        }
        batch.inner.clear();
        (Ok(()), batch)
    }

    /// How long ago the last bytes from the peer reached this host, whether they have been received
    /// from the socket or not; zero if the kernel does not say.
    pub fn silent_for(&self) -> Duration {
        // SAFETY: tcp_info is a plain C structure for which all zeros is a valid value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the descriptor is open as long as `self`; the kernel writes at most `length`
        // bytes to `info`, which has as many, and the true length to `length`.
        let answer = unsafe {
            libc::getsockopt(
                self.stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        if answer == 0 {
            Duration::from_millis(info.tcpi_last_data_recv.into())
        } else {
            Duration::ZERO
        }
    }

    /// Ends both directions: pending and later operations return at once.
    pub fn shut_down(&self) {
        // An error says that the peer has already ended it.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Ends our direction only, so that what was sent still reaches the peer.
    pub fn finish_sending(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

enum Piece {
    Header(Range<usize>),
    Shared(SharedBuffer),
    Bytes(Bytes),
}

/// Headers and data that leave in one send, in order.
pub struct Batch {
    // Boxed, because it moves into the operation with every send.
    inner: Box<BatchInner>,
}

struct BatchInner {
    headers: Vec<u8>,
    pieces: Vec<Piece>,
    length_bytes: usize,
    vector: Vec<libc::iovec>,
    first: usize,
    message: libc::msghdr,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        // SAFETY: msghdr is a plain C structure for which all zeros (null pointers, zero lengths)
        // is a valid value.
        let message = unsafe { std::mem::zeroed() };
        Self {
            inner: Box::new(BatchInner {
                headers: Vec::with_capacity(8192),
                pieces: Vec::with_capacity(256),
                length_bytes: 0,
                vector: Vec::with_capacity(256),
                first: 0,
                message,
            }),
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.inner.pieces.is_empty()
    }

    /// What will be sent, in bytes.
    pub fn length_bytes(&self) -> usize {
        self.inner.length_bytes
    }

    /// How many pieces of memory the batch has so far.
    pub fn pieces(&self) -> usize {
        self.inner.pieces.len()
    }

    /// Adds header bytes: `write` appends them to what it is given. Neighbouring headers become
    /// one piece.
    pub fn header(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let inner = &mut *self.inner;
        let start = inner.headers.len();
        write(&mut inner.headers);
        let end = inner.headers.len();
        inner.length_bytes += end - start;
        match inner.pieces.last_mut() {
            Some(Piece::Header(range)) if range.end == start => range.end = end,
            _ if end > start => inner.pieces.push(Piece::Header(start..end)),
            _ => {}
        }
    }

    /// Adds data from a pool.
    pub fn shared(&mut self, data: SharedBuffer) {
        if !data.is_empty() {
            self.inner.length_bytes += data.len();
            self.inner.pieces.push(Piece::Shared(data));
        }
    }

    /// Adds data from the heap, as admin responses are.
    pub fn bytes(&mut self, data: Bytes) {
        if !data.is_empty() {
            self.inner.length_bytes += data.len();
            self.inner.pieces.push(Piece::Bytes(data));
        }
    }
}

impl BatchInner {
    /// Points the vector at the pieces. Nothing may be added between this and the last send.
    fn prepare(&mut self) {
        self.vector.clear();
        self.first = 0;
        for piece in &self.pieces {
            let bytes: &[u8] = match piece {
                Piece::Header(range) => self.headers.get(range.clone()).unwrap_or_default(),
                Piece::Shared(data) => data,
                Piece::Bytes(data) => data,
            };
            self.vector.push(libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            });
        }
    }

    /// The message for what is left, or `None` when all is sent.
    fn next_message(&mut self) -> Option<*const libc::msghdr> {
        let rest = self.vector.get_mut(self.first..).filter(|rest| !rest.is_empty())?;
        self.message.msg_iov = rest.as_mut_ptr();
        self.message.msg_iovlen = rest.len().min(MAX_PIECES_PER_SEND) as _;
        Some(&raw const self.message)
    }

    /// Steps over `sent` bytes.
    fn advance(&mut self, mut sent: usize) {
        while let Some(piece) = self.vector.get_mut(self.first) {
            if sent < piece.iov_len {
                piece.iov_base = piece.iov_base.cast::<u8>().wrapping_add(sent).cast();
                piece.iov_len -= sent;
                return;
            }
            sent -= piece.iov_len;
            self.first += 1;
        }
    }

    fn clear(&mut self) {
        self.headers.clear();
        self.pieces.clear();
        self.vector.clear();
        self.first = 0;
        self.length_bytes = 0;
    }
}
