//! The target's end of one NVMe/TCP connection, without I/O.
//!
//! [`Connection::poll`] turns received bytes into what the transport has to do: answer the
//! initialization, start a command, put payload somewhere, go on with a write whose data is
//! complete. The encoders write what the target sends.
//!
//! Invariants:
//! * A transfer (one R2T) is known by its tag from [`Connection::encode_r2t`] until its last
//!   H2CData PDU has arrived whole; its data arrives contiguously, inside its range, and ends
//!   with LAST_PDU, or the connection dies (NVMe-TCP 1.0 §3.3.2.2).
//! * A tag is not used again while it is outstanding, and a tag just used up is told from one
//!   that never was.
//! * No command has more outstanding R2Ts than the host's MAXR2T.
//! * SUCCESS is set only where the host has disabled SQ flow control.
//!
//! Not here: queues, command identifiers in use, buffers, timeouts, and what a command means.

use core::ops::Range;

use bytes::BufMut;

use super::digest::DigestCheck;
use super::encode::{self, Encoder};
use super::error::{FatalError, Fault, Termination};
use super::pdu::{Direction, PduAlignment, PduType};
use super::receiver::{self, Receiver};
use super::rules::{C2hDataFields, H2cDataFields, IcReqFields, IcRespFields, Pdu, R2tFields};
use super::{Digests, MIN_MAXH2CDATA_BYTES, Negotiated};
use crate::nvme::cqe::Cqe;
use crate::nvme::sqe::Sqe;

/// What a target offers on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Alignment asked of the host's payloads. Linux accepts only [`PduAlignment::NONE`].
    pub cpda: PduAlignment,
    /// MAXH2CDATA in bytes, a multiple of 4, at least 4096.
    pub max_h2c_data_bytes: u32,
    /// Digests granted to a host that asks for them.
    pub digests: Digests,
    /// Outstanding R2Ts on the connection, 1 to 32,768: usually the queue's size.
    pub max_transfers: u16,
}

impl Default for Config {
    /// No alignment, 1 MiB per H2CData, both digests if asked for, 128 transfers.
    fn default() -> Self {
        Self {
            cpda: PduAlignment::NONE,
            max_h2c_data_bytes: 1 << 20,
            digests: Digests { header: true, data: true },
            max_transfers: 128,
        }
    }
}

/// A configuration that the protocol does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// MAXH2CDATA is out of range.
    #[error("MAXH2CDATA of {0} bytes: use a multiple of 4, at least 4096")]
    MaxH2cData(u32),
    /// The number of transfers is out of range.
    #[error("{0} outstanding transfers: use 1 to 32768")]
    MaxTransfers(u16),
}

/// Where received payload belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In-capsule data of the command last reported.
    Capsule,
    /// Data of the write that this transfer belongs to.
    Transfer {
        /// Transfer tag.
        ttag: u16,
        /// Command identifier.
        cid: u16,
    },
}

/// What one call of [`Connection::poll`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes used up at the front of the input.
    pub consumed: usize,
    /// What to do.
    pub event: Event,
}

/// What the transport has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing: the input is used up.
    NeedMore,
    /// The host has opened the connection: send what [`Connection::encode_icresp`] writes.
    SendIcResp,
    /// A command. If `inline_bytes` is not 0, `Payload` and `CapsuleEnd` follow.
    Capsule {
        /// Submission queue entry.
        sqe: Sqe,
        /// In-capsule data in bytes.
        inline_bytes: u32,
    },
    /// The in-capsule data of the command last reported is complete. On a mismatch the command
    /// ends with Transient Transport Error.
    CapsuleEnd {
        /// Its data digest.
        digest: DigestCheck,
    },
    /// An H2CData PDU of `payload_bytes` begins; a good moment to receive into its place.
    TransferData {
        /// Transfer tag.
        ttag: u16,
        /// Command identifier.
        cid: u16,
        /// Where its payload begins in the command's data buffer, in bytes.
        offset_bytes: u32,
        /// Its payload in bytes.
        payload_bytes: u32,
    },
    /// Payload bytes, in order.
    Payload {
        /// What they belong to.
        place: Place,
        /// Their offset in the in-capsule data or in the command's data buffer, in bytes.
        offset_bytes: u32,
        /// Where they lie in the input of this call.
        range: Range<usize>,
    },
    /// Everything that one R2T asked for has arrived; its tag is free. On a mismatch the command
    /// ends with Transient Transport Error.
    TransferDone {
        /// Transfer tag.
        ttag: u16,
        /// Command identifier.
        cid: u16,
        /// The data digests of all its PDUs.
        digest: DigestCheck,
    },
    /// The host ends the connection because of a mistake of ours. Close it.
    PeerTerminated(Termination),
}

/// Whether a command that got C2HData still needs a CapsuleResp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a command is answered exactly once"]
pub enum Response {
    /// A CapsuleResp must follow.
    Needed,
    /// The C2HData PDU carries SUCCESS: the command is answered.
    InData,
}

/// An R2T that may not be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum R2tRefused {
    /// ICReq has not been answered.
    #[error("the connection is not initialized")]
    NotInitialized,
    /// The command has as many outstanding R2Ts as the host accepts.
    #[error("command {cid} has {limit} R2Ts outstanding, all that the host accepts")]
    HostLimit {
        /// Command identifier.
        cid: u16,
        /// MAXR2T, 1's based.
        limit: u32,
    },
    /// Every transfer of the connection is in use.
    #[error("all transfers of the connection are in use")]
    NoTransfer,
    /// No bytes, or an end above 4 GiB.
    #[error("an R2T for {length} bytes at {offset} is not possible")]
    Range {
        /// Offset in bytes.
        offset: u32,
        /// Length in bytes.
        length: u32,
    },
}

/// One R2T, outstanding or used up.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    cid: u16,
    /// Tag: the slot's number, and above it a generation. Of a free slot: its last tag.
    ttag: u16,
    outstanding: bool,
    /// The slot has been used, so that its tag means something.
    used: bool,
    next: u32,
    start: u32,
    end: u32,
    digest: DigestCheck,
}

/// Whose payload is being received.
#[derive(Clone, Copy, Debug)]
enum Current {
    Nothing,
    Capsule { offset: u32 },
    Transfer { slot: u16, offset: u32, last: bool },
}

/// The target's end of one connection.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    receiver: Receiver,
    encoder: Encoder,
    negotiated: Option<Negotiated>,
    may_signal_success: bool,
    current: Current,
    transfers: Box<[Transfer]>,
    free: Vec<u16>,
    /// Slots that have ever been used: the first ones, because free slots are taken lowest first
    /// until all have been used.
    touched: usize,
    /// Bits of a tag that hold the slot's number.
    slot_bits: u32,
}

impl Connection {
    /// A connection that has just been accepted.
    ///
    /// # Errors
    /// A configuration that the protocol does not allow.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let max = config.max_h2c_data_bytes;
        if max < MIN_MAXH2CDATA_BYTES || !max.is_multiple_of(4) {
            return Err(ConfigError::MaxH2cData(max));
        }
        let count = config.max_transfers;
        if count == 0 || count > 1 << 15 {
            return Err(ConfigError::MaxTransfers(count));
        }
        let idle = Transfer {
            cid: 0,
            ttag: 0,
            outstanding: false,
            used: false,
            next: 0,
            start: 0,
            end: 0,
            digest: DigestCheck::Ok,
        };
        Ok(Self {
            config,
            receiver: Receiver::new(Direction::HostToController),
            encoder: Encoder::default(),
            negotiated: None,
            may_signal_success: false,
            current: Current::Nothing,
            transfers: vec![idle; usize::from(count)].into_boxed_slice(),
            free: (0..count).rev().collect(),
            touched: 0,
            slot_bits: u32::from(count).next_power_of_two().trailing_zeros(),
        })
    }

    /// What was negotiated; `None` before ICReq.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.negotiated.as_ref()
    }

    /// R2Ts outstanding on the connection.
    pub fn outstanding_transfers(&self) -> usize {
        self.transfers.len() - self.free.len()
    }

    /// Connect has succeeded on an I/O queue: from now on its capsules carry at most
    /// `in_capsule_bytes` (IOCCSZ × 16 − 64), fabrics commands excepted.
    pub fn set_io_queue(&mut self, in_capsule_bytes: u32) {
        self.receiver.rules_mut().io_in_capsule_bytes = Some(in_capsule_bytes);
    }

    /// Connect has settled SQ flow control. SUCCESS needs it disabled: a command answered that
    /// way brings the host no SQHD (NVMe-TCP 1.0 §3.3.2.1; NVMe Base 2.1 §6.3, DISSQFC).
    pub fn set_sq_flow_control(&mut self, disabled: bool) {
        self.may_signal_success = disabled;
    }

    /// Whether [`Connection::encode_c2h_header`] may end a command by SUCCESS.
    pub fn may_signal_success(&self) -> bool {
        self.may_signal_success
    }

    /// Consumes bytes from the front of `input`. Call again with the rest, also with an empty
    /// rest, until the event is [`Event::NeedMore`]. After an error or
    /// [`Event::PeerTerminated`] everything is consumed and ignored.
    ///
    /// # Errors
    /// The host's fatal mistake: send what [`Connection::encode_term_req`] writes and close.
    #[inline]
    pub fn poll(&mut self, input: &[u8]) -> Result<Step, FatalError> {
        let mut base = 0;
        loop {
            let rest = &input[base..];
            let receiver::Step { consumed, event } = self.receiver.poll(rest)?;
            let event = match event {
                receiver::Event::NeedMore => Some(Event::NeedMore),
                receiver::Event::Pdu { pdu, payload_bytes } => {
                    let event = self.handle_pdu(pdu, payload_bytes);
                    let rejected = |fault| self.receiver.reject(fault, &rest[..consumed]);
                    Some(event.map_err(rejected)?)
                }
                receiver::Event::Data { range } => {
                    let range = base + range.start..base + range.end;
                    Some(self.handle_data(range))
                }
                receiver::Event::DataEnd { digest } => self.handle_data_end(digest),
            };
            base += consumed;
            if let Some(event) = event {
                return Ok(Step { consumed: base, event });
            }
        }
    }

    /// Payload that has not arrived yet and may be received straight into its place: what it
    /// belongs to, its offset there, and how many bytes. `None` between payloads.
    pub fn direct(&self) -> Option<(Place, u32, usize)> {
        let remaining = self.receiver.payload_remaining();
        let (place, offset) = self.place()?;
        (remaining > 0).then_some((place, offset, remaining))
    }

    /// Takes payload bytes that the caller received into their place by itself; returns how many
    /// belong to the current payload. Call [`Connection::poll`] afterwards.
    pub fn handle_payload(&mut self, bytes: &[u8]) -> usize {
        let taken = self.receiver.handle_payload(bytes);
        self.advance(taken as u32);
        taken
    }

    fn place(&self) -> Option<(Place, u32)> {
        match self.current {
            Current::Nothing => None,
            Current::Capsule { offset } => Some((Place::Capsule, offset)),
            Current::Transfer { slot, offset, .. } => {
                let transfer = self.transfers.get(usize::from(slot))?;
                Some((Place::Transfer { ttag: transfer.ttag, cid: transfer.cid }, offset))
            }
        }
    }

    fn advance(&mut self, bytes: u32) {
        match &mut self.current {
            Current::Nothing => {}
            Current::Capsule { offset } | Current::Transfer { offset, .. } => *offset += bytes,
        }
    }

    #[inline]
    fn handle_pdu(&mut self, pdu: Pdu, payload_bytes: u32) -> Result<Event, Fault> {
        match pdu {
            Pdu::CapsuleCmd(sqe) => {
                if payload_bytes > 0 {
                    self.current = Current::Capsule { offset: 0 };
                }
                Ok(Event::Capsule { sqe, inline_bytes: payload_bytes })
            }
            Pdu::H2cData(data) => self.handle_h2c_data(&data),
            Pdu::IcReq(request) => {
                self.handle_icreq(&request);
                Ok(Event::SendIcResp)
            }
            Pdu::TermReq(termination) => Ok(Event::PeerTerminated(termination)),
            // The rules have refused these; to be sure that they stay refused:
            Pdu::IcResp(_) => Err(Fault::WrongDirection { pdu: PduType::IcResp }),
            Pdu::CapsuleResp(_) => Err(Fault::WrongDirection { pdu: PduType::CapsuleResp }),
            Pdu::C2hData(_) => Err(Fault::WrongDirection { pdu: PduType::C2hData }),
            Pdu::R2t(_) => Err(Fault::WrongDirection { pdu: PduType::R2t }),
        }
    }

    fn handle_icreq(&mut self, request: &IcReqFields) {
        let digests = Digests {
            header: request.digests.header && self.config.digests.header,
            data: request.digests.data && self.config.digests.data,
        };
        self.negotiated = Some(Negotiated {
            digests,
            hpda: request.hpda,
            cpda: self.config.cpda,
            max_r2t: request.max_r2t,
            max_h2c_data_bytes: self.config.max_h2c_data_bytes,
        });
        self.encoder = Encoder { digests, alignment: request.hpda };
        let rules = self.receiver.rules_mut();
        rules.initialized = true;
        rules.digests = digests;
        rules.alignment = self.config.cpda;
        rules.max_h2c_data_bytes = self.config.max_h2c_data_bytes;
    }

    /// Admits an H2CData PDU against the R2T that it answers.
    fn handle_h2c_data(&mut self, data: &H2cDataFields) -> Result<Event, Fault> {
        let pdu = PduType::H2cData;
        let slot = data.ttag & ((1 << self.slot_bits) - 1) as u16;
        let nothing_outstanding = self.free.len() == self.transfers.len();
        let transfer = self.transfers.get_mut(usize::from(slot));
        let unexpected = Fault::UnexpectedData { pdu, cccid: data.cccid };
        let transfer = match transfer {
            Some(transfer) if transfer.used && transfer.ttag == data.ttag => transfer,
            // Data before any R2T is out of sequence; a tag beside those outstanding is wrong.
            _ if nothing_outstanding => return Err(unexpected),
            _ => return Err(Fault::UnknownTransfer { ttag: data.ttag }),
        };
        if !transfer.outstanding {
            return Err(unexpected);
        }
        if transfer.cid != data.cccid {
            return Err(Fault::WrongCommand { cccid: data.cccid, expected: transfer.cid });
        }
        let (offset, length) = (data.datao, data.datal);
        let (start, end) = (transfer.start, transfer.end);
        let stop = offset.checked_add(length).filter(|stop| offset >= start && *stop <= end);
        let Some(stop) = stop else {
            return Err(Fault::OutOfRange { pdu, offset, length, start, end });
        };
        if offset != transfer.next {
            return Err(Fault::NotContiguous { pdu, offset, expected: transfer.next });
        }
        if data.last != (stop == end) {
            return Err(Fault::LastFlag { pdu, end: stop, expected: stop == end });
        }
        transfer.next = stop;
        self.current = Current::Transfer { slot, offset, last: data.last };
        Ok(Event::TransferData {
            ttag: data.ttag,
            cid: data.cccid,
            offset_bytes: offset,
            payload_bytes: length,
        })
    }

    #[inline]
    fn handle_data(&mut self, range: Range<usize>) -> Event {
        // There is a place whenever there is payload.
        let (place, offset_bytes) = self.place().unwrap_or((Place::Capsule, 0));
        self.advance(range.len() as u32);
        Event::Payload { place, offset_bytes, range }
    }

    /// A PDU's payload is complete; that is an event unless more PDUs of its R2T follow.
    fn handle_data_end(&mut self, digest: DigestCheck) -> Option<Event> {
        match core::mem::replace(&mut self.current, Current::Nothing) {
            Current::Nothing => None,
            Current::Capsule { .. } => Some(Event::CapsuleEnd { digest }),
            Current::Transfer { slot, last, .. } => {
                let transfer = self.transfers.get_mut(usize::from(slot))?;
                transfer.digest = transfer.digest.and(digest);
                if !last {
                    return None;
                }
                transfer.outstanding = false;
                self.free.push(slot);
                let Transfer { ttag, cid, digest, .. } = *transfer;
                Some(Event::TransferDone { ttag, cid, digest })
            }
        }
    }

    /// Whether each payload that the target sends must be followed by its digest, see
    /// [`encode::put_data_digest`].
    #[inline]
    pub fn has_data_digest(&self) -> bool {
        self.encoder.has_data_digest()
    }

    /// The ICResp that [`Event::SendIcResp`] asks for. Nothing before ICReq.
    pub fn encode_icresp(&self, out: &mut impl BufMut) -> usize {
        let Some(negotiated) = &self.negotiated else {
            return 0;
        };
        let fields = IcRespFields {
            cpda: negotiated.cpda,
            digests: negotiated.digests,
            max_h2c_data_bytes: negotiated.max_h2c_data_bytes,
        };
        encode::ic_resp(&fields, out)
    }

    /// A CapsuleResp.
    #[inline]
    pub fn encode_response(&self, cqe: &Cqe, out: &mut impl BufMut) -> usize {
        self.encoder.capsule_resp(cqe, out)
    }

    /// The front of a C2HData PDU: the payload follows, and its digest if
    /// [`Connection::has_data_digest`]. A command's data goes out in order and ends with
    /// `last`. With `success` a `last` PDU also answers the command, where that is allowed.
    ///
    /// Returns the bytes written and whether a CapsuleResp must still be sent for the command
    /// (after the last PDU).
    #[inline]
    pub fn encode_c2h_header(
        &self,
        cid: u16,
        offset_bytes: u32,
        payload_bytes: u32,
        last: bool,
        success: bool,
        out: &mut impl BufMut,
    ) -> (usize, Response) {
        let success = success && last && self.may_signal_success;
        let fields =
            C2hDataFields { cccid: cid, datao: offset_bytes, datal: payload_bytes, last, success };
        let written = self.encoder.c2h_data(&fields, out);
        (written, if success { Response::InData } else { Response::Needed })
    }

    /// An R2T for part of a command's data; its tag comes with the events of its transfer. The
    /// R2Ts of a command ask for its data in order, from offset 0 to the end.
    ///
    /// # Errors
    /// The R2T may not be sent now; nothing is written.
    pub fn encode_r2t(
        &mut self,
        cid: u16,
        offset_bytes: u32,
        length_bytes: u32,
        out: &mut impl BufMut,
    ) -> Result<u16, R2tRefused> {
        let negotiated = self.negotiated.as_ref().ok_or(R2tRefused::NotInitialized)?;
        let limit = negotiated.max_r2t;
        let range = R2tRefused::Range { offset: offset_bytes, length: length_bytes };
        let end = offset_bytes.checked_add(length_bytes).filter(|_| length_bytes > 0);
        let end = end.ok_or(range)?;
        let touched = self.transfers.iter().take(self.touched);
        let outstanding = touched.filter(|transfer| transfer.outstanding && transfer.cid == cid);
        if outstanding.count() as u64 >= u64::from(limit) {
            return Err(R2tRefused::HostLimit { cid, limit });
        }
        let slot = self.free.pop().ok_or(R2tRefused::NoTransfer)?;
        let Some(transfer) = self.transfers.get_mut(usize::from(slot)) else {
            return Err(R2tRefused::NoTransfer);
        };
        let generation = if transfer.used {
            ((u32::from(transfer.ttag) >> self.slot_bits) + 1) << self.slot_bits
        } else {
            0
        };
        let ttag = generation as u16 | slot;
        *transfer = Transfer {
            cid,
            ttag,
            outstanding: true,
            used: true,
            next: offset_bytes,
            start: offset_bytes,
            end,
            digest: DigestCheck::Ok,
        };
        self.touched = self.touched.max(usize::from(slot) + 1);
        let fields = R2tFields { cccid: cid, ttag, r2to: offset_bytes, r2tl: length_bytes };
        self.encoder.r2t(&fields, out);
        Ok(ttag)
    }

    /// The C2HTermReq that tells the host of its mistake. Writes nothing if it is not to be told.
    pub fn encode_term_req(&self, error: &FatalError, out: &mut impl BufMut) -> usize {
        encode::term_req(Direction::ControllerToHost, error, out)
    }
}
