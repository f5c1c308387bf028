//! The inbound half of a connection: bytes in, PDU headers and payload ranges out.
//!
//! Invariants:
//! * Bytes may be split anywhere. At most one header (152 bytes) is held back here; payload bytes
//!   are never copied, the caller is told where they lie in its own input.
//! * Every header has passed [`Rules`] before it is reported; payload bytes are reported in order
//!   and end with [`Event::DataEnd`].
//! * After a fatal error, or a TermReq, whatever arrives is consumed and ignored
//!   (NVMe-TCP 1.0 §3.5).
//!
//! It does not know commands: see [`super::target`] and [`super::host`].

use core::ops::Range;

use super::digest::{DataDigest, DigestCheck};
use super::error::FatalError;
use super::pdu::{CommonHeader, Direction, PduType};
use super::rules::{Frame, Parsed, Pdu, Rules};
use super::{DIGEST_BYTES, TERM_REQ_MAX_BYTES};

/// What one call of [`Receiver::poll`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes used up at the front of the input. Never more than there were.
    pub consumed: usize,
    /// What they were.
    pub event: Event,
}

/// What bytes turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The input is used up and no event is ready.
    NeedMore,
    /// A PDU header. If `payload_bytes` is not 0, `Data` and then `DataEnd` follow.
    Pdu {
        /// The typed header.
        pdu: Pdu,
        /// Payload that follows in bytes.
        payload_bytes: u32,
    },
    /// The next payload bytes.
    Data {
        /// Where they lie in the input of this call.
        range: Range<usize>,
    },
    /// The payload is complete and its digest, if there is one, has been compared.
    DataEnd {
        /// The verdict.
        digest: DigestCheck,
    },
}

/// Where the receiver stands in the PDU at hand.
#[derive(Clone, Debug)]
enum Stage {
    /// Collecting a header.
    Header,
    /// In the padding or the payload.
    Payload,
    /// Collecting DDGST: what there is of it, and how many bytes.
    Digest([u8; DIGEST_BYTES], usize),
    /// The connection is over.
    Stopped,
}

/// Framing, validation and digests of the PDUs that arrive on one connection.
#[derive(Clone, Debug)]
pub struct Receiver {
    rules: Rules,
    stage: Stage,
    /// A header that did not arrive in one piece; afterwards the last header seen.
    header: [u8; TERM_REQ_MAX_BYTES],
    header_have: usize,
    /// The last header came in pieces and lies in `header`, not in the caller's input.
    collected: bool,
    pad_remaining: usize,
    payload_remaining: usize,
    data_digest: Option<DataDigest>,
}

impl Receiver {
    /// A receiver of PDUs that travel in this direction, at the start of a connection.
    pub fn new(direction: Direction) -> Self {
        Self {
            rules: Rules::new(direction),
            stage: Stage::Header,
            header: [0; TERM_REQ_MAX_BYTES],
            header_have: 0,
            collected: false,
            pad_remaining: 0,
            payload_remaining: 0,
            data_digest: None,
        }
    }

    /// What is admissible now.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Changes what is admissible, from the next PDU on.
    pub fn rules_mut(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// Ignores everything that arrives from now on.
    pub fn stop(&mut self) {
        self.stage = Stage::Stopped;
        self.payload_remaining = 0;
    }

    /// Whether the connection is over on this side.
    pub fn is_stopped(&self) -> bool {
        matches!(self.stage, Stage::Stopped)
    }

    /// Consumes bytes from the front of `input`. Call again with the rest, also with an empty
    /// rest, until the event is [`Event::NeedMore`].
    ///
    /// # Errors
    /// The peer's fatal mistake; the receiver has stopped.
    #[inline]
    pub fn poll(&mut self, input: &[u8]) -> Result<Step, FatalError> {
        match self.stage {
            Stage::Header => self.poll_header(input),
            Stage::Payload => Ok(self.poll_payload(input)),
            Stage::Digest(have, count) => Ok(self.poll_digest(input, have, count)),
            Stage::Stopped => Ok(Step { consumed: input.len(), event: Event::NeedMore }),
        }
    }

    /// Payload bytes of the current PDU that have not arrived: so many may be received straight
    /// into their place and then be given to [`Receiver::handle_payload`]. 0 before the payload
    /// has been reached.
    pub fn payload_remaining(&self) -> usize {
        if self.pad_remaining == 0 { self.payload_remaining } else { 0 }
    }

    /// Takes payload bytes that the caller received into their place by itself. Afterwards
    /// `poll(&[])` may give [`Event::DataEnd`]. Bytes beyond [`Receiver::payload_remaining`] are
    /// not taken; the number taken is returned.
    pub fn handle_payload(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.payload_remaining());
        if let Some(digest) = &mut self.data_digest {
            digest.update(&bytes[..taken]);
        }
        self.payload_remaining -= taken;
        taken
    }

    #[inline]
    fn poll_header(&mut self, input: &[u8]) -> Result<Step, FatalError> {
        if self.header_have == 0
            && let Some(start) = input.first_chunk::<{ CommonHeader::BYTES }>()
        {
            let frame = self.rules.frame(start);
            let frame = frame.map_err(|fault| self.fail(fault, input))?;
            if let Some(header) = input.get(..frame.header_bytes) {
                let parsed = self.rules.parse(header);
                let parsed = parsed.map_err(|fault| self.fail(fault, header))?;
                self.collected = false;
                return Ok(self.accept(parsed, header.len()));
            }
        }
        self.collect_header(input)
    }

    /// The slow way: the header arrives in pieces.
    fn collect_header(&mut self, input: &[u8]) -> Result<Step, FatalError> {
        let mut consumed = 0;
        consumed += self.fill_header(&input[consumed..], CommonHeader::BYTES);
        let Some(start) = self.header[..self.header_have].first_chunk() else {
            return Ok(Step { consumed, event: Event::NeedMore });
        };
        let frame: Frame = match self.rules.frame(start) {
            Ok(frame) => frame,
            Err(fault) => {
                let header = self.header;
                return Err(self.fail(fault, &header[..self.header_have]));
            }
        };
        consumed += self.fill_header(&input[consumed..], frame.header_bytes);
        if self.header_have < frame.header_bytes {
            return Ok(Step { consumed, event: Event::NeedMore });
        }
        match self.rules.parse(&self.header[..frame.header_bytes]) {
            Ok(parsed) => {
                self.collected = true;
                Ok(self.accept(parsed, consumed))
            }
            Err(fault) => {
                let header = self.header;
                Err(self.fail(fault, &header[..frame.header_bytes]))
            }
        }
    }

    /// Copies input until `wanted` header bytes are there; returns how many it took.
    fn fill_header(&mut self, input: &[u8], wanted: usize) -> usize {
        let missing = wanted.min(self.header.len()).saturating_sub(self.header_have);
        let taken = missing.min(input.len());
        self.header[self.header_have..self.header_have + taken].copy_from_slice(&input[..taken]);
        self.header_have += taken;
        taken
    }

    /// Moves on to what follows the header.
    #[inline]
    fn accept(&mut self, parsed: Parsed, consumed: usize) -> Step {
        self.header_have = 0;
        if parsed.payload_bytes > 0 {
            self.pad_remaining = parsed.pad_bytes as usize;
            self.payload_remaining = parsed.payload_bytes as usize;
            self.data_digest = parsed.data_digest.then(DataDigest::new);
            self.stage = Stage::Payload;
        } else if matches!(parsed.pdu, Pdu::TermReq(_)) {
            self.stage = Stage::Stopped;
        }
        let event = Event::Pdu { pdu: parsed.pdu, payload_bytes: parsed.payload_bytes };
        Step { consumed, event }
    }

    #[inline]
    fn poll_payload(&mut self, input: &[u8]) -> Step {
        let skipped = self.pad_remaining.min(input.len());
        self.pad_remaining -= skipped;
        let taken = self.payload_remaining().min(input.len() - skipped);
        let range = skipped..skipped + taken;
        if taken > 0 {
            self.handle_payload(&input[range.clone()]);
            return Step { consumed: range.end, event: Event::Data { range } };
        }
        if self.payload_remaining > 0 {
            return Step { consumed: skipped, event: Event::NeedMore };
        }
        if self.data_digest.is_some() {
            return self.poll_digest(input, [0; DIGEST_BYTES], 0);
        }
        self.stage = Stage::Header;
        Step { consumed: 0, event: Event::DataEnd { digest: DigestCheck::Ok } }
    }

    fn poll_digest(&mut self, input: &[u8], mut have: [u8; DIGEST_BYTES], count: usize) -> Step {
        let taken = (DIGEST_BYTES - count).min(input.len());
        have[count..count + taken].copy_from_slice(&input[..taken]);
        if count + taken < DIGEST_BYTES {
            self.stage = Stage::Digest(have, count + taken);
            return Step { consumed: taken, event: Event::NeedMore };
        }
        let computed = self.data_digest.take().map(|digest| digest.value());
        let digest = match computed {
            Some(value) if value != u32::from_le_bytes(have) => DigestCheck::Mismatch,
            _ => DigestCheck::Ok,
        };
        self.stage = Stage::Header;
        Step { consumed: taken, event: Event::DataEnd { digest } }
    }

    /// Stops, and makes the error with as much of the header as is there.
    #[cold]
    fn fail(&mut self, fault: super::Fault, available: &[u8]) -> FatalError {
        self.stop();
        let header_bytes = match available.first().copied().and_then(PduType::from_code) {
            Some(pdu) => usize::from(pdu.hlen()),
            None => CommonHeader::BYTES,
        };
        FatalError::new(fault, &available[..header_bytes.min(available.len())])
    }

    /// Stops because of a header that was admissible by itself but not in its context. `consumed`
    /// is what the call that reported it consumed at the front of the caller's input.
    #[cold]
    pub(super) fn reject(&mut self, fault: super::Fault, consumed: &[u8]) -> FatalError {
        if self.collected {
            let header = self.header;
            self.fail(fault, &header)
        } else {
            self.fail(fault, consumed)
        }
    }
}
