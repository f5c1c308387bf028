//! One connection to a queue of a controller, as an engine without tasks.
//!
//! Commands are submitted into preallocated slots and leave together with the next
//! [`Queue::step`]; that also receives whatever has arrived and collects completions. Between
//! steps the caller waits with [`Queue::ready`], or does not wait and steps again.
//!
//! Invariants:
//! * Every command that [`Queue::submit`] took is given back by exactly one [`Completion`], or
//!   the queue has failed; then every call returns the same error.
//! * A command identifier is its slot's number; at most `depth` are outstanding.
//! * Input is used up in each step: nothing but the machine's own state is carried over.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use raidfabric_protocol::nvme::cqe::Cqe;
use raidfabric_protocol::nvme::sgl::Sgl;
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::tcp::encode::put_data_digest;
use raidfabric_protocol::tcp::host::{self, CommandData, Event};
use raidfabric_protocol::tcp::rules::R2tFields;
use raidfabric_protocol::tcp::{DigestCheck, Digests, Negotiated};
use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::output::Output;
use crate::{Error, Options};

/// Received at once.
const INPUT_BYTES: usize = 256 * 1024;

/// Payloads with so much to come are received straight into their buffer.
const DIRECT_BYTES: usize = 32 * 1024;

/// Bytes received in one step, at most: completions are reported before more is taken.
const STEP_BYTES: usize = 4 * INPUT_BYTES;

/// A command's data.
#[derive(Debug, Default)]
pub enum Data {
    /// None.
    #[default]
    None,
    /// Data from the controller: this buffer's whole length is filled.
    Read(BytesMut),
    /// So many bytes from the controller, looked at by the protocol and thrown away.
    Discard(u32),
    /// Data to the controller: in the capsule if it fits, else by R2T.
    Write(Bytes),
}

impl Data {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Read(buffer) => buffer.len(),
            Self::Discard(bytes) => *bytes as usize,
            Self::Write(payload) => payload.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Completion {
    /// What the caller passed to [`Queue::submit`].
    pub token: u64,
    /// Completion queue entry.
    pub cqe: Cqe,
    /// The command's data buffer.
    pub data: Data,
    /// Bytes received into it.
    pub received_bytes: u32,
    /// Whether what was received is undamaged.
    pub digest: DigestCheck,
    /// The controller answered by SUCCESS in the data; the entry is made up and has no SQHD.
    pub by_success_flag: bool,
}

impl Completion {
    /// The data, if the command succeeded and all of it arrived undamaged.
    ///
    /// # Errors
    /// Status, digest, or missing data, with the name of the command.
    pub fn check(&self, command: &'static str) -> Result<(), Error> {
        let status = self.cqe.status();
        if !status.is_success() {
            return Err(Error::Status { command, status, dw0: self.cqe.dw0.get() });
        }
        if self.digest == DigestCheck::Mismatch {
            return Err(Error::DataDigest { command });
        }
        let (Data::Read(_) | Data::Discard(_)) = &self.data else {
            return Ok(());
        };
        let (received_bytes, expected_bytes) = (self.received_bytes, self.data.len() as u32);
        if received_bytes == expected_bytes {
            Ok(())
        } else {
            Err(Error::ShortData { command, received_bytes, expected_bytes })
        }
    }
}

/// A command slot.
#[derive(Debug, Default)]
struct Slot {
    token: u64,
    data: Data,
}

/// What a step achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes received.
    pub received_bytes: usize,
    /// The socket would not take everything.
    pub output_waits: bool,
}

/// One connection; see the module.
#[derive(Debug)]
pub struct Queue {
    stream: TcpStream,
    machine: host::Connection,
    output: Output,
    input: Box<[u8]>,
    slots: Box<[Slot]>,
    free: Vec<u16>,
    depth: usize,
    in_capsule_bytes: usize,
    /// A partial write is waiting for the socket.
    output_waits: bool,
    failed: Option<Error>,
    sqhd: u16,
    sq_flow_control_disabled: bool,
}

impl Queue {
    /// Connects and initializes the connection. `depth` commands may be outstanding.
    ///
    /// # Errors
    /// No connection, a protocol fault, a refused digest, or no answer in time.
    pub async fn connect(
        address: SocketAddr,
        depth: u16,
        options: &Options,
    ) -> Result<Self, Error> {
        let what = "the TCP connection";
        let stream = within(what, options.timeout, async {
            let stream = TcpStream::connect(address).await;
            let refused = |source| Error::Connect { address, source: Arc::new(source) };
            let stream = stream.map_err(refused)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })
        .await?;
        Self::initialize(stream, depth, options).await
    }

    /// Initializes a connection that exists already.
    ///
    /// # Errors
    /// As [`Queue::connect`].
    pub async fn initialize(
        stream: TcpStream,
        depth: u16,
        options: &Options,
    ) -> Result<Self, Error> {
        let depth = depth.max(1);
        let config = host::Config {
            hpda: options.hpda,
            digests: options.digests,
            max_r2t: options.max_r2t,
            max_commands: depth,
        };
        let mut queue = Self {
            stream,
            machine: host::Connection::new(config),
            output: Output::default(),
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            slots: (0..depth).map(|_| Slot::default()).collect(),
            free: (0..depth).rev().collect(),
            depth: usize::from(depth),
            // Until Identify says otherwise: what every controller accepts with Connect.
            in_capsule_bytes: raidfabric_protocol::tcp::ADMIN_IN_CAPSULE_BYTES as usize,
            output_waits: false,
            failed: None,
            sqhd: 0,
            sq_flow_control_disabled: false,
        };
        queue.machine.encode_icreq(queue.output.staging());
        within("ICReq", options.timeout, async {
            let mut none = Vec::new();
            while queue.machine.negotiated().is_none() {
                queue.turn(&mut none).await?;
            }
            Ok(())
        })
        .await?;
        queue.check_digests(options.digests)?;
        Ok(queue)
    }

    fn check_digests(&self, asked: Digests) -> Result<(), Error> {
        let granted = self.negotiated().map(|negotiated| negotiated.digests).unwrap_or_default();
        if asked.header && !granted.header {
            return Err(Error::DigestRefused("header"));
        }
        if asked.data && !granted.data {
            return Err(Error::DigestRefused("data"));
        }
        Ok(())
    }

    /// What ICReq and ICResp settled.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.machine.negotiated()
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sets how much a command may carry in its capsule, in bytes; 0 for nothing.
    pub fn set_in_capsule_bytes(&mut self, bytes: usize) {
        self.in_capsule_bytes = bytes;
    }

    /// Whether SQ flow control is off: asked for and granted in Connect.
    pub fn is_sq_flow_control_disabled(&self) -> bool {
        self.sq_flow_control_disabled
    }

    /// Notes what Connect settled.
    pub(crate) fn set_sq_flow_control_disabled(&mut self, disabled: bool) {
        self.sq_flow_control_disabled = disabled;
    }

    /// Commands that may be submitted now.
    pub fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// Commands outstanding.
    pub fn outstanding(&self) -> usize {
        self.depth - self.free.len()
    }

    /// SQHD of the last CapsuleResp.
    pub fn sqhd(&self) -> u16 {
        self.sqhd
    }

    /// Takes a command; it leaves with the next [`Queue::step`]. Identifier and data pointer are
    /// filled in here. `token` comes back with the completion.
    ///
    /// # Errors
    /// The queue has failed, or no slot is free ([`Queue::free_slots`]).
    pub fn submit(&mut self, mut sqe: Sqe, data: Data, token: u64) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Ok(bytes) = u32::try_from(data.len()) else {
            return Err(Error::Invalid("a command's data is at most 4 GiB".into()));
        };
        let Some(cid) = self.free.pop() else {
            return Err(Error::Invalid("all slots of the queue are in use".into()));
        };
        sqe.cid = cid.into();
        let in_capsule = matches!(&data, Data::Write(payload)
            if payload.len() <= self.in_capsule_bytes && !payload.is_empty());
        let kind = match &data {
            Data::Read(_) | Data::Discard(_) if bytes > 0 => CommandData::ToHost(bytes),
            Data::Write(_) if in_capsule => CommandData::InCapsule(bytes),
            Data::Write(_) if bytes > 0 => CommandData::ToController(bytes),
            _ => CommandData::None,
        };
        sqe.dptr = if in_capsule { Sgl::in_capsule(0, bytes) } else { Sgl::transport(bytes) };
        let written = self.machine.encode_command(&sqe, kind, self.output.staging());
        if let Err(refused) = written {
            self.free.push(cid);
            return Err(Error::Invalid(refused.to_string()));
        }
        if let (true, Data::Write(payload)) = (in_capsule, &data) {
            self.output.put_payload(payload.clone());
            if self.machine.has_data_digest() {
                put_data_digest(payload, self.output.staging());
            }
        }
        if let Some(slot) = self.slots.get_mut(usize::from(cid)) {
            *slot = Slot { token, data };
        }
        Ok(())
    }

    /// Sends what is there to send and receives what has arrived, without waiting.
    ///
    /// # Errors
    /// The connection has failed; it stays so.
    pub fn step(&mut self, completions: &mut Vec<Completion>) -> Result<Progress, Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match self.try_step(completions) {
            Ok(progress) => Ok(progress),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Steps, and waits and steps again until something has arrived.
    ///
    /// # Errors
    /// The connection has failed; it stays so.
    pub async fn turn(&mut self, completions: &mut Vec<Completion>) -> Result<(), Error> {
        loop {
            let before = completions.len();
            let progress = self.step(completions)?;
            if completions.len() > before || progress.received_bytes > 0 {
                return Ok(());
            }
            self.ready().await?;
        }
    }

    /// Waits until [`Queue::step`] has something to do. May return early. Cancel safe.
    ///
    /// # Errors
    /// The connection has failed.
    pub async fn ready(&self) -> Result<(), Error> {
        std::future::poll_fn(|cx| self.poll_ready(cx)).await
    }

    /// Whether [`Queue::step`] has something to do: bytes have arrived, or the socket takes what
    /// it would not take before. May say so early.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // The engine reads and writes beside tokio's bookkeeping of readiness, which is stale
        // after that. The attempts here are made by tokio's rules and put it right, so that the
        // wait is a real one.
        if self.output_waits && self.stream.poll_write_ready(cx)?.is_ready() {
            let would_block = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
            let _ = self.stream.try_io(Interest::WRITABLE, would_block);
            return Poll::Ready(Ok(()));
        }
        let mut byte = [0u8; 1];
        while self.stream.poll_read_ready(cx)?.is_ready() {
            let peeked = self.stream.try_io(Interest::READABLE, || {
                let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
                Ok(rustix::net::recv(&self.stream, &mut byte[..], flags).map(|_| ())?)
            });
            match peeked {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Data, the end, or an error that the next step will find.
                _ => return Poll::Ready(Ok(())),
            }
        }
        Poll::Pending
    }

    /// Submits one command and waits for its completion. For a queue that is otherwise idle.
    ///
    /// # Errors
    /// The connection has failed, or no answer came in time.
    pub async fn execute(
        &mut self,
        sqe: Sqe,
        data: Data,
        timeout: Duration,
    ) -> Result<Completion, Error> {
        self.submit(sqe, data, u64::MAX)?;
        within("a command", timeout, async {
            let mut completions = Vec::with_capacity(1);
            loop {
                self.turn(&mut completions).await?;
                if let Some(completion) = completions.pop() {
                    return Ok(completion);
                }
            }
        })
        .await
    }

    fn try_step(&mut self, completions: &mut Vec<Completion>) -> Result<Progress, Error> {
        self.flush()?;
        let mut received_bytes = 0;
        while received_bytes < STEP_BYTES {
            let (count, full) = self.receive(completions)?;
            received_bytes += count;
            if !full {
                break;
            }
        }
        if received_bytes > 0 {
            self.flush()?;
        }
        Ok(Progress { received_bytes, output_waits: self.output_waits })
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.output_waits = !self.output.is_empty() && !self.output.flush(&self.stream)?;
        Ok(())
    }

    /// Receives once. Returns the bytes received, and whether there may be more.
    fn receive(&mut self, completions: &mut Vec<Completion>) -> Result<(usize, bool), Error> {
        let mut direct = 0;
        let outcome = match self.direct_buffer() {
            Some((cid, offset, bytes)) => {
                direct = bytes;
                let input = &mut self.input[..];
                let slot = self.slots.get_mut(usize::from(cid));
                match slot.map(|slot| &mut slot.data) {
                    Some(Data::Read(buffer)) => {
                        let place = &mut buffer[offset..offset + bytes];
                        let mut parts = [IoSliceMut::new(place), IoSliceMut::new(input)];
                        rustix::io::readv(&self.stream, &mut parts)
                    }
                    _ => rustix::io::read(&self.stream, input),
                }
            }
            None => rustix::io::read(&self.stream, &mut self.input[..]),
        };
        let count = match outcome {
            Ok(0) => return Err(Error::Closed),
            Ok(count) => count,
            Err(rustix::io::Errno::AGAIN) => return Ok((0, false)),
            Err(rustix::io::Errno::INTR) => return Ok((0, true)),
            Err(errno) => return Err(io::Error::from(errno).into()),
        };
        let in_place = count.min(direct);
        if in_place > 0 {
            self.take_in_place(in_place);
        }
        self.process(count - in_place, completions)?;
        Ok((count, count == direct + self.input.len()))
    }

    /// Where the payload at hand may be received directly, if that is worth it: command
    /// identifier, offset and length in its buffer.
    fn direct_buffer(&self) -> Option<(u16, usize, usize)> {
        let (cid, offset, bytes) = self.machine.direct()?;
        let slot = self.slots.get(usize::from(cid))?;
        let Data::Read(buffer) = &slot.data else {
            return None;
        };
        let offset = offset as usize;
        let fits = bytes >= DIRECT_BYTES && offset.checked_add(bytes)? <= buffer.len();
        fits.then_some((cid, offset, bytes))
    }

    /// Tells the machine of payload that was received in place.
    fn take_in_place(&mut self, bytes: usize) {
        if let Some((cid, offset, _)) = self.machine.direct()
            && let Some(Data::Read(buffer)) =
                self.slots.get(usize::from(cid)).map(|slot| &slot.data)
        {
            let offset = offset as usize;
            self.machine.handle_payload(&buffer[offset..offset + bytes]);
        }
    }

    /// Runs the machine over so many bytes of input.
    fn process(&mut self, bytes: usize, completions: &mut Vec<Completion>) -> Result<(), Error> {
        let mut at = 0;
        loop {
            let input = &self.input[at..bytes];
            let step = self.machine.poll(input).map_err(Error::Protocol)?;
            at += step.consumed;
            match step.event {
                Event::NeedMore => return Ok(()),
                Event::Payload { cid, offset_bytes, range } => {
                    if let Some(Data::Read(buffer)) =
                        self.slots.get_mut(usize::from(cid)).map(|slot| &mut slot.data)
                    {
                        let start = offset_bytes as usize;
                        // The machine has checked the range against the buffer's length.
                        if let Some(place) = buffer.get_mut(start..start + range.len()) {
                            place.copy_from_slice(&input[range]);
                        }
                    }
                }
                Event::Completed(completion) => self.complete(&completion, completions),
                Event::ReadyToTransfer(r2t) => self.transfer(&r2t),
                Event::PeerTerminated(reason) => return Err(Error::Terminated(reason)),
                Event::ReadData { .. } | Event::Initialized(_) => {}
            }
        }
    }

    fn complete(&mut self, ended: &host::Completion, completions: &mut Vec<Completion>) {
        let cid = ended.cqe.cid.get();
        let Some(slot) = self.slots.get_mut(usize::from(cid)) else {
            return;
        };
        let Slot { token, data } = core::mem::take(slot);
        self.free.push(cid);
        if !ended.by_success_flag {
            self.sqhd = ended.cqe.sqhd.get();
        }
        completions.push(Completion {
            token,
            cqe: ended.cqe,
            data,
            received_bytes: ended.received_bytes,
            digest: ended.digest,
            by_success_flag: ended.by_success_flag,
        });
    }

    /// Sends what an R2T asks for, in as many H2CData PDUs as MAXH2CDATA demands.
    fn transfer(&mut self, r2t: &R2tFields) {
        let Some(Data::Write(payload)) =
            self.slots.get(usize::from(r2t.cccid)).map(|slot| &slot.data)
        else {
            return;
        };
        let mut done = 0;
        loop {
            let staging = self.output.staging();
            let header = self.machine.encode_h2c_header(r2t, done, u32::MAX, staging);
            // The machine has just reported this R2T, so that it is outstanding.
            let Ok((_, length, last)) = header else {
                return;
            };
            let start = r2t.r2to as usize + done as usize;
            let part = payload.slice(start..start + length as usize);
            let digest = self.machine.has_data_digest().then(|| part.clone());
            self.output.put_payload(part);
            if let Some(part) = digest {
                put_data_digest(&part, self.output.staging());
            }
            done += length;
            if last {
                return;
            }
        }
    }

    /// The connection is over. A controller that broke the protocol is told so.
    fn fail(&mut self, error: Error) -> Error {
        if let Error::Protocol(fatal) = &error {
            self.machine.encode_term_req(fatal, self.output.staging());
            let _ = self.output.flush(&self.stream);
        }
        self.failed = Some(error.clone());
        error
    }
}

/// Awaits with a time limit.
pub(crate) async fn within<T>(
    what: &'static str,
    after: Duration,
    future: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(after, future).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::Timeout { what, after }),
    }
}
