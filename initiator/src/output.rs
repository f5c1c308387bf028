//! What waits to be sent on one connection: small pieces are copied together, large payloads are
//! sent from where they lie, everything leaves in as few vectored writes as possible.
//!
//! Invariant: `segments` covers the staging bytes from `sent` on, in order.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use bytes::{Buf, Bytes};

/// Payloads up to this size are copied: cheaper than a vector element of their own.
const COPY_BYTES: usize = 16 * 1024;

/// Vector elements of one write.
const SLICES: usize = 64;

/// A run of bytes to be sent.
#[derive(Debug)]
enum Segment {
    /// So many bytes of the staging buffer.
    Staged(usize),
    /// A payload.
    Shared(Bytes),
}

/// The bytes that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Output {
    staging: Vec<u8>,
    /// Staging bytes sent already.
    sent: usize,
    /// Staging bytes that a segment covers.
    covered: usize,
    segments: VecDeque<Segment>,
}

impl Output {
    /// The staging buffer, to which headers are appended.
    pub(crate) fn staging(&mut self) -> &mut Vec<u8> {
        &mut self.staging
    }

    /// Appends a payload.
    pub(crate) fn put_payload(&mut self, payload: Bytes) {
        if payload.len() <= COPY_BYTES {
            self.staging.extend_from_slice(&payload);
        } else {
            self.cover();
            self.segments.push_back(Segment::Shared(payload));
        }
    }

    /// Whether everything has been sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.covered == self.staging.len()
    }

    /// Makes a segment of the staging bytes that have none.
    fn cover(&mut self) {
        let fresh = self.staging.len() - self.covered;
        if fresh > 0 {
            self.segments.push_back(Segment::Staged(fresh));
            self.covered = self.staging.len();
        }
    }

    /// Sends as much as the socket takes; `Ok(false)` if something is left.
    pub(crate) fn flush(&mut self, socket: &impl AsFd) -> io::Result<bool> {
        self.cover();
        while !self.segments.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut staged = self.sent;
            let mut count = 0;
            for (slice, segment) in slices.iter_mut().zip(&self.segments) {
                *slice = match segment {
                    Segment::Staged(bytes) => {
                        let start = staged;
                        staged += bytes;
                        IoSlice::new(&self.staging[start..staged])
                    }
                    Segment::Shared(payload) => IoSlice::new(payload),
                };
                count += 1;
            }
            match rustix::io::writev(socket, &slices[..count]) {
                Ok(written) => self.advance(written),
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.staging.clear();
        self.sent = 0;
        self.covered = 0;
        Ok(true)
    }

    /// Forgets `written` bytes at the front.
    fn advance(&mut self, mut written: usize) {
        while let Some(front) = self.segments.front_mut() {
            let done = match front {
                Segment::Staged(bytes) => {
                    let part = written.min(*bytes);
                    *bytes -= part;
                    self.sent += part;
                    written -= part;
                    *bytes == 0
                }
                Segment::Shared(payload) => {
                    let part = written.min(payload.len());
                    payload.advance(part);
                    written -= part;
                    payload.is_empty()
                }
            };
            if !done {
                return;
            }
            self.segments.pop_front();
            if written == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Everything arrives in order through a socket that takes little at a time.
    #[test]
    fn order_is_kept_through_partial_writes() {
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let mut output = Output::default();
        let mut expected = Vec::new();
        for round in 0..40u8 {
            let header = vec![round; 72];
            output.staging().extend_from_slice(&header);
            expected.extend_from_slice(&header);
            let bytes = if round % 3 == 0 { 200_000 } else { 1000 };
            let payload: Vec<u8> = (0..bytes).map(|i| (i as u8) ^ round).collect();
            expected.extend_from_slice(&payload);
            output.put_payload(payload.into());
        }
        let mut received = Vec::new();
        let mut chunk = vec![0; 50_000];
        while received.len() < expected.len() {
            output.flush(&near).unwrap();
            if let Ok(count) = far.read(&mut chunk) {
                received.extend_from_slice(&chunk[..count]);
            }
        }
        assert!(received == expected);
        assert!(output.is_empty() && output.flush(&near).unwrap());
    }
}
