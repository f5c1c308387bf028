//! The host's end of one NVMe/TCP connection, without I/O.
//!
//! It knows which commands are outstanding and what data each may get or give, so that a
//! controller that breaks the protocol is caught at the first wrong PDU and told so.
//!
//! Invariants:
//! * A command identifier is outstanding from [`Connection::encode_command`] until its
//!   [`Event::Completed`].
//! * Data of a read arrives contiguously from offset 0 and inside the command's buffer; R2Ts ask
//!   for the data of a write in the same way, at most MAXR2T at a time (NVMe-TCP 1.0 §3.3.2).
//! * H2CData goes out only for an outstanding R2T.
//!
//! Not here: SQ flow control, buffers, timeouts, what a status means, and in which order
//! transfers are served.

use core::ops::Range;

use bytes::BufMut;

use super::digest::DigestCheck;
use super::encode::{self, Encoder};
use super::error::{FatalError, Fault, Termination};
use super::pdu::{Direction, PduAlignment, PduType};
use super::receiver::{self, Receiver};
use super::rules::{C2hDataFields, H2cDataFields, IcReqFields, IcRespFields, Pdu, R2tFields};
use super::{Digests, Negotiated};
use crate::nvme::cqe::Cqe;
use crate::nvme::sqe::Sqe;
use crate::nvme::status::Status;

/// What a host asks for on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Alignment asked of the controller's payloads.
    pub hpda: PduAlignment,
    /// Digests asked for.
    pub digests: Digests,
    /// Outstanding R2Ts accepted per command, at least 1.
    pub max_r2t: u32,
    /// Command identifiers 0 to `max_commands` − 1 may be used.
    pub max_commands: u16,
}

impl Default for Config {
    /// As the Linux host: no alignment, no digests, one R2T per command; 128 commands.
    fn default() -> Self {
        Self {
            hpda: PduAlignment::NONE,
            digests: Digests::default(),
            max_r2t: 1,
            max_commands: 128,
        }
    }
}

/// The data of a command, as its SGL descriptor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandData {
    /// None.
    None,
    /// So many bytes follow in the capsule.
    InCapsule(u32),
    /// The controller sends so many bytes.
    ToHost(u32),
    /// The controller asks for so many bytes by R2T.
    ToController(u32),
}

/// A command that may not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandRefused {
    /// ICResp has not been received.
    #[error("the connection is not initialized")]
    NotInitialized,
    /// The identifier is outstanding, or beyond the configuration.
    #[error("command identifier {0} is in use or out of range")]
    Identifier(u16),
}

/// H2CData that no outstanding R2T asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("command {cid} has no outstanding R2T")]
pub struct DataRefused {
    /// Command identifier.
    pub cid: u16,
}

/// What one call of [`Connection::poll`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes used up at the front of the input.
    pub consumed: usize,
    /// What they were.
    pub event: Event,
}

/// What bytes turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The input is used up.
    NeedMore,
    /// The controller has accepted the connection.
    Initialized(Negotiated),
    /// A C2HData PDU of `payload_bytes` begins; a good moment to receive into its place.
    ReadData {
        /// Command identifier.
        cid: u16,
        /// Where its payload begins in the command's buffer, in bytes.
        offset_bytes: u32,
        /// Its payload in bytes.
        payload_bytes: u32,
    },
    /// Payload bytes of a read, in order.
    Payload {
        /// Command identifier.
        cid: u16,
        /// Their offset in the command's buffer in bytes.
        offset_bytes: u32,
        /// Where they lie in the input of this call.
        range: Range<usize>,
    },
    /// A command has ended; its identifier is free.
    Completed(Completion),
    /// The controller asks for data of a write.
    ReadyToTransfer(R2tFields),
    /// The controller ends the connection because of a mistake of ours. Close it.
    PeerTerminated(Termination),
}

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The completion queue entry; made up if the command ended by SUCCESS.
    pub cqe: Cqe,
    /// The command ended by SUCCESS: there is no SQHD.
    pub by_success_flag: bool,
    /// Data received for the command in bytes.
    pub received_bytes: u32,
    /// Data digests of all its data. On a mismatch the command has failed, whatever its status
    /// says (NVMe-TCP 1.0 §3.5).
    pub digest: DigestCheck,
}

/// One command identifier.
#[derive(Clone, Copy, Debug)]
struct Command {
    outstanding: bool,
    data: CommandData,
    /// ToHost: bytes received. ToController: where the next R2T must begin.
    next: u32,
    /// C2HData with LAST_PDU has come.
    complete: bool,
    r2ts: u32,
    digest: DigestCheck,
}

impl Command {
    const IDLE: Self = Self {
        outstanding: false,
        data: CommandData::None,
        next: 0,
        complete: false,
        r2ts: 0,
        digest: DigestCheck::Ok,
    };
}

/// The C2HData PDU whose payload is being received.
#[derive(Clone, Copy, Debug)]
struct Current {
    cid: u16,
    offset: u32,
    success: bool,
}

/// The host's end of one connection.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    receiver: Receiver,
    encoder: Encoder,
    negotiated: Option<Negotiated>,
    commands: Box<[Command]>,
    current: Option<Current>,
}

impl Connection {
    /// A connection that has just been made.
    pub fn new(config: Config) -> Self {
        let mut receiver = Receiver::new(Direction::ControllerToHost);
        receiver.rules_mut().asked_digests = config.digests;
        Self {
            config,
            receiver,
            encoder: Encoder::default(),
            negotiated: None,
            commands: vec![Command::IDLE; usize::from(config.max_commands)].into_boxed_slice(),
            current: None,
        }
    }

    /// What was negotiated; `None` before ICResp.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.negotiated.as_ref()
    }

    /// Whether this command identifier is outstanding.
    pub fn is_outstanding(&self, cid: u16) -> bool {
        self.commands.get(usize::from(cid)).is_some_and(|command| command.outstanding)
    }

    /// The ICReq that opens the connection.
    pub fn encode_icreq(&self, out: &mut impl BufMut) -> usize {
        let Config { hpda, digests, max_r2t, .. } = self.config;
        encode::ic_req(&IcReqFields { hpda, digests, max_r2t }, out)
    }

    /// Whether each payload that the host sends must be followed by its digest, see
    /// [`encode::put_data_digest`].
    #[inline]
    pub fn has_data_digest(&self) -> bool {
        self.encoder.has_data_digest()
    }

    /// The front of a CapsuleCmd; in-capsule data follows. Its identifier is outstanding now.
    ///
    /// # Errors
    /// The command may not be sent; nothing is written.
    #[inline]
    pub fn encode_command(
        &mut self,
        sqe: &Sqe,
        data: CommandData,
        out: &mut impl BufMut,
    ) -> Result<usize, CommandRefused> {
        let cid = sqe.cid.get();
        if self.negotiated.is_none() {
            return Err(CommandRefused::NotInitialized);
        }
        let slot = self.commands.get_mut(usize::from(cid)).filter(|slot| !slot.outstanding);
        let slot = slot.ok_or(CommandRefused::Identifier(cid))?;
        *slot = Command { outstanding: true, data, ..Command::IDLE };
        let in_capsule = if let CommandData::InCapsule(bytes) = data { bytes } else { 0 };
        Ok(self.encoder.capsule_cmd(sqe, in_capsule, out))
    }

    /// The front of the next H2CData PDU of a transfer, of which `done_bytes` have been sent
    /// already. Returns the bytes written, the length of the payload that must follow (at most
    /// MAXH2CDATA and `at_most_bytes`; the latter is at least 4), and whether it is the last of
    /// the transfer.
    ///
    /// # Errors
    /// The command has ended, or never had this R2T; nothing is written.
    pub fn encode_h2c_header(
        &mut self,
        r2t: &R2tFields,
        done_bytes: u32,
        at_most_bytes: u32,
        out: &mut impl BufMut,
    ) -> Result<(usize, u32, bool), DataRefused> {
        let cid = r2t.cccid;
        let refused = DataRefused { cid };
        let limit = self.negotiated.as_ref().ok_or(refused)?.max_h2c_data_bytes;
        let command = self.commands.get_mut(usize::from(cid)).ok_or(refused)?;
        if !command.outstanding || command.r2ts == 0 || done_bytes >= r2t.r2tl {
            return Err(refused);
        }
        let rest = r2t.r2tl - done_bytes;
        let datal = rest.min(limit).min((at_most_bytes & !3).max(4));
        let last = datal == rest;
        if last {
            command.r2ts -= 1;
        }
        let datao = r2t.r2to + done_bytes;
        let fields = H2cDataFields { cccid: cid, ttag: r2t.ttag, datao, datal, last };
        Ok((self.encoder.h2c_data(&fields, out), datal, last))
    }

    /// The H2CTermReq that tells the controller of its mistake. Writes nothing if it is not to be
    /// told.
    pub fn encode_term_req(&self, error: &FatalError, out: &mut impl BufMut) -> usize {
        encode::term_req(Direction::HostToController, error, out)
    }

    /// Consumes bytes from the front of `input`. Call again with the rest, also with an empty
    /// rest, until the event is [`Event::NeedMore`]. After an error or
    /// [`Event::PeerTerminated`] everything is consumed and ignored.
    ///
    /// # Errors
    /// The controller's fatal mistake: send what [`Connection::encode_term_req`] writes and close.
    #[inline]
    pub fn poll(&mut self, input: &[u8]) -> Result<Step, FatalError> {
        let mut base = 0;
        loop {
            let rest = &input[base..];
            let receiver::Step { consumed, event } = self.receiver.poll(rest)?;
            let event = match event {
                receiver::Event::NeedMore => Some(Event::NeedMore),
                receiver::Event::Pdu { pdu, .. } => {
                    let event = self.handle_pdu(pdu);
                    let rejected = |fault| self.receiver.reject(fault, &rest[..consumed]);
                    Some(event.map_err(rejected)?)
                }
                receiver::Event::Data { range } => {
                    self.handle_data(base + range.start..base + range.end)
                }
                receiver::Event::DataEnd { digest } => self.handle_data_end(digest),
            };
            base += consumed;
            if let Some(event) = event {
                return Ok(Step { consumed: base, event });
            }
        }
    }

    /// Payload that has not arrived yet and may be received straight into its place: command
    /// identifier, offset in its buffer, and how many bytes. `None` between payloads.
    pub fn direct(&self) -> Option<(u16, u32, usize)> {
        let remaining = self.receiver.payload_remaining();
        let current = self.current?;
        (remaining > 0).then_some((current.cid, current.offset, remaining))
    }

    /// Takes payload bytes that the caller received into their place by itself; returns how many
    /// belong to the current payload. Call [`Connection::poll`] afterwards.
    pub fn handle_payload(&mut self, bytes: &[u8]) -> usize {
        let taken = self.receiver.handle_payload(bytes);
        if let Some(current) = &mut self.current {
            current.offset += taken as u32;
        }
        taken
    }

    #[inline]
    fn handle_pdu(&mut self, pdu: Pdu) -> Result<Event, Fault> {
        match pdu {
            Pdu::C2hData(data) => self.handle_c2h_data(&data),
            Pdu::CapsuleResp(cqe) => self.handle_response(cqe),
            Pdu::R2t(r2t) => self.handle_r2t(r2t),
            Pdu::IcResp(response) => Ok(Event::Initialized(self.handle_icresp(&response))),
            Pdu::TermReq(termination) => Ok(Event::PeerTerminated(termination)),
            // The rules have refused these; to be sure that they stay refused:
            Pdu::IcReq(_) => Err(Fault::WrongDirection { pdu: PduType::IcReq }),
            Pdu::CapsuleCmd(_) => Err(Fault::WrongDirection { pdu: PduType::CapsuleCmd }),
            Pdu::H2cData(_) => Err(Fault::WrongDirection { pdu: PduType::H2cData }),
        }
    }

    fn handle_icresp(&mut self, response: &IcRespFields) -> Negotiated {
        let negotiated = Negotiated {
            digests: response.digests,
            hpda: self.config.hpda,
            cpda: response.cpda,
            max_r2t: self.config.max_r2t,
            max_h2c_data_bytes: response.max_h2c_data_bytes,
        };
        self.negotiated = Some(negotiated);
        self.encoder = Encoder { digests: response.digests, alignment: response.cpda };
        let rules = self.receiver.rules_mut();
        rules.initialized = true;
        rules.digests = response.digests;
        rules.alignment = self.config.hpda;
        negotiated
    }

    fn outstanding(&mut self, pdu: PduType, cccid: u16) -> Result<&mut Command, Fault> {
        let command = self.commands.get_mut(usize::from(cccid)).filter(|slot| slot.outstanding);
        command.ok_or(Fault::UnknownCommand { pdu, cccid })
    }

    #[inline]
    fn handle_c2h_data(&mut self, data: &C2hDataFields) -> Result<Event, Fault> {
        let pdu = PduType::C2hData;
        let (cccid, offset, length) = (data.cccid, data.datao, data.datal);
        let command = self.outstanding(pdu, cccid)?;
        let end = match command.data {
            CommandData::ToHost(bytes) if !command.complete => bytes,
            _ => return Err(Fault::UnexpectedData { pdu, cccid }),
        };
        let stop = offset.checked_add(length).filter(|stop| *stop <= end);
        let Some(stop) = stop else {
            return Err(Fault::OutOfRange { pdu, offset, length, start: 0, end });
        };
        if offset != command.next {
            return Err(Fault::NotContiguous { pdu, offset, expected: command.next });
        }
        if stop == end && !data.last {
            return Err(Fault::LastFlag { pdu, end: stop, expected: true });
        }
        command.next = stop;
        command.complete = data.last;
        self.current = Some(Current { cid: cccid, offset, success: data.success });
        Ok(Event::ReadData { cid: cccid, offset_bytes: offset, payload_bytes: length })
    }

    #[inline]
    fn handle_data(&mut self, range: Range<usize>) -> Option<Event> {
        let current = self.current.as_mut()?;
        let offset_bytes = current.offset;
        current.offset += range.len() as u32;
        Some(Event::Payload { cid: current.cid, offset_bytes, range })
    }

    fn handle_data_end(&mut self, digest: DigestCheck) -> Option<Event> {
        let current = self.current.take()?;
        let command = self.commands.get_mut(usize::from(current.cid))?;
        command.digest = command.digest.and(digest);
        if !current.success {
            return None;
        }
        let cqe = Cqe::new(current.cid, Status::SUCCESS);
        Some(Event::Completed(complete(command, cqe, true)))
    }

    #[inline]
    fn handle_response(&mut self, cqe: Cqe) -> Result<Event, Fault> {
        let cid = cqe.cid.get();
        let command = self.commands.get_mut(usize::from(cid)).filter(|slot| slot.outstanding);
        let command = command.ok_or(Fault::UnknownResponse { cid })?;
        Ok(Event::Completed(complete(command, cqe, false)))
    }

    /// Admits an R2T: in order, inside the command's data, and not one too many. The
    /// specification names no status for one beyond the command's data; it is out of range.
    fn handle_r2t(&mut self, r2t: R2tFields) -> Result<Event, Fault> {
        let pdu = PduType::R2t;
        let limit = self.config.max_r2t.max(1);
        let (cccid, offset, length) = (r2t.cccid, r2t.r2to, r2t.r2tl);
        let command = self.outstanding(pdu, cccid)?;
        let CommandData::ToController(end) = command.data else {
            return Err(Fault::UnexpectedData { pdu, cccid });
        };
        let stop = offset.checked_add(length).filter(|stop| *stop <= end);
        let Some(stop) = stop else {
            return Err(Fault::OutOfRange { pdu, offset, length, start: 0, end });
        };
        if offset != command.next {
            return Err(Fault::NotContiguous { pdu, offset, expected: command.next });
        }
        if command.r2ts >= limit {
            return Err(Fault::R2tLimit { cccid, limit });
        }
        command.r2ts += 1;
        command.next = stop;
        Ok(Event::ReadyToTransfer(r2t))
    }
}

/// Ends a command and frees its identifier.
#[inline]
fn complete(command: &mut Command, cqe: Cqe, by_success_flag: bool) -> Completion {
    let received_bytes = match command.data {
        CommandData::ToHost(_) => command.next,
        _ => 0,
    };
    let digest = command.digest;
    *command = Command::IDLE;
    Completion { cqe, by_success_flag, received_bytes, digest }
}
