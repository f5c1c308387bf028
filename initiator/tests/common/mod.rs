//! A small target for the initiator's own tests: the protocol crate's target machine over
//! loopback, one namespace in memory, and knobs for what should go wrong.
//!
//! It is no model of the real target: it knows just the commands that the tests send.

// Each test file uses its part, and what fails here is a broken test.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use raidfabric_protocol::fabrics::discovery::{LogEntry, LogHeader, put_text};
use raidfabric_protocol::fabrics::{ConnectData, FabricsCommand, Property, nqn};
use raidfabric_protocol::nvme::admin::{AdminCommand, GetLogPage};
use raidfabric_protocol::nvme::cqe::Cqe;
use raidfabric_protocol::nvme::identify::{
    Cns, IdentifyController, IdentifyNamespace, NamespaceIdType, put_namespace_id,
};
use raidfabric_protocol::nvme::io::{DsmRange, IoCommand};
use raidfabric_protocol::nvme::registers::{Cap, Cc, Csts};
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::nvme::status::{CommandSpecific, Generic, Status};
use raidfabric_protocol::tcp::encode::put_data_digest;
use raidfabric_protocol::tcp::target::{self, Event, Place, Response};
use raidfabric_protocol::tcp::{DigestCheck, Digests, PduAlignment};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use zerocopy::{FromBytes, IntoBytes};

pub const NQN: &str = "nqn.2026-11.io.example:test";
pub const NGUID: [u8; 16] = [0x11; 16];
pub const UUID: [u8; 16] = [0x22; 16];

/// What this target is like, and what it does wrong.
#[derive(Clone, Debug)]
pub struct Knobs {
    pub digests: Digests,
    pub cpda: PduAlignment,
    pub block_bytes: u32,
    pub blocks: u64,
    /// In-capsule data on I/O queues.
    pub in_capsule_bytes: u32,
    pub max_h2c_data_bytes: u32,
    /// Bytes that one R2T asks for.
    pub r2t_bytes: u32,
    /// Bytes of one C2HData PDU.
    pub c2h_bytes: usize,
    pub mqes: u16,
    pub queues: u16,
    /// Grant queues without SQ flow control.
    pub grant_no_flow_control: bool,
    /// Damage the payload of this many reads.
    pub damage_reads: usize,
    /// Answer reads with that many bytes too few.
    pub short_reads_by: usize,
    /// Send an R2T that no command asked for, instead of answering a flush.
    pub stray_r2t_on_flush: bool,
    /// Close the connection instead of answering a flush.
    pub close_on_flush: bool,
    /// Never become ready.
    pub never_ready: bool,
    /// CNTLID in Identify.
    pub wrong_cntlid: bool,
    /// Flip a bit of what Write stores, to see that verification finds it.
    pub damage_writes: usize,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            digests: Digests { header: true, data: true },
            cpda: PduAlignment::NONE,
            block_bytes: 512,
            blocks: 32 * 1024,
            in_capsule_bytes: 4096,
            max_h2c_data_bytes: 64 * 1024,
            r2t_bytes: 128 * 1024,
            c2h_bytes: 128 * 1024,
            mqes: 127,
            queues: 8,
            grant_no_flow_control: true,
            damage_reads: 0,
            short_reads_by: 0,
            stray_r2t_on_flush: false,
            close_on_flush: false,
            never_ready: false,
            wrong_cntlid: false,
            damage_writes: 0,
        }
    }
}

/// What all connections share.
pub struct Shared {
    pub knobs: Knobs,
    pub data: Mutex<Vec<u8>>,
    next_cntlid: AtomicU16,
    pub keep_alives: AtomicUsize,
    pub connections: AtomicUsize,
    /// Reads answered by SUCCESS.
    pub successes: AtomicUsize,
    pub flushes: AtomicUsize,
    damage_reads: AtomicUsize,
    damage_writes: AtomicUsize,
    /// CC by controller.
    cc: Mutex<HashMap<u16, u32>>,
    /// Completes the next Asynchronous Event Request.
    pub events: Mutex<Vec<mpsc::UnboundedSender<u32>>>,
    address: Mutex<Option<SocketAddr>>,
}

/// Starts a target on loopback; it lives as long as the runtime.
pub async fn start(knobs: Knobs) -> (SocketAddr, Arc<Shared>) {
    let bytes = (knobs.blocks * u64::from(knobs.block_bytes)) as usize;
    let shared = Arc::new(Shared {
        data: Mutex::new(vec![0; bytes]),
        next_cntlid: AtomicU16::new(1),
        keep_alives: AtomicUsize::new(0),
        connections: AtomicUsize::new(0),
        successes: AtomicUsize::new(0),
        flushes: AtomicUsize::new(0),
        damage_reads: AtomicUsize::new(knobs.damage_reads),
        damage_writes: AtomicUsize::new(knobs.damage_writes),
        cc: Mutex::new(HashMap::new()),
        events: Mutex::new(Vec::new()),
        address: Mutex::new(None),
        knobs,
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    *shared.address.lock().unwrap() = Some(address);
    let accepted = shared.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let shared = accepted.clone();
            tokio::spawn(async move {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                Connection::new(stream, shared.clone()).run().await;
                shared.connections.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (address, shared)
}

/// A command that waits for data.
struct Pending {
    sqe: Sqe,
    data: Vec<u8>,
    asked: u32,
    digest: DigestCheck,
}

struct Connection {
    stream: TcpStream,
    shared: Arc<Shared>,
    machine: target::Connection,
    out: Vec<u8>,
    pending: HashMap<u16, Pending>,
    capsule: Option<(Sqe, Vec<u8>)>,
    qid: u16,
    cntlid: u16,
    discovery: bool,
    flow_control: bool,
    sqsize: u16,
    sqhd: u16,
    waiting_events: Vec<u16>,
    events: mpsc::UnboundedReceiver<u32>,
    closing: bool,
}

fn take(counter: &AtomicUsize) -> bool {
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
}

impl Connection {
    fn new(stream: TcpStream, shared: Arc<Shared>) -> Self {
        stream.set_nodelay(true).unwrap();
        let config = target::Config {
            cpda: shared.knobs.cpda,
            max_h2c_data_bytes: shared.knobs.max_h2c_data_bytes,
            digests: shared.knobs.digests,
            max_transfers: 256,
        };
        let (sender, events) = mpsc::unbounded_channel();
        shared.events.lock().unwrap().push(sender);
        Self {
            machine: target::Connection::new(config).unwrap(),
            stream,
            shared,
            out: Vec::new(),
            pending: HashMap::new(),
            capsule: None,
            qid: 0,
            cntlid: 0,
            discovery: false,
            flow_control: true,
            sqsize: 0,
            sqhd: 0,
            waiting_events: Vec::new(),
            events,
            closing: false,
        }
    }

    async fn run(mut self) {
        let mut input = vec![0; 256 * 1024];
        loop {
            let received = tokio::select! {
                received = self.stream.read(&mut input) => received,
                Some(event) = self.events.recv(), if !self.waiting_events.is_empty() => {
                    let cid = self.waiting_events.remove(0);
                    self.respond(cid, Status::SUCCESS, u64::from(event));
                    Ok(usize::MAX)
                }
            };
            match received {
                Ok(0) | Err(_) => return,
                Ok(usize::MAX) => {}
                Ok(count) => {
                    if let Err(error) = self.handle(&input[..count]) {
                        self.machine.encode_term_req(&error, &mut self.out);
                        self.closing = true;
                    }
                }
            }
            let out = std::mem::take(&mut self.out);
            if self.stream.write_all(&out).await.is_err() || self.closing {
                return;
            }
        }
    }

    fn handle(&mut self, input: &[u8]) -> Result<(), raidfabric_protocol::tcp::FatalError> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            let step = self.machine.poll(rest)?;
            at += step.consumed;
            match step.event {
                Event::NeedMore => return Ok(()),
                Event::SendIcResp => {
                    self.machine.encode_icresp(&mut self.out);
                }
                Event::Capsule { sqe, inline_bytes } => self.capsule(sqe, inline_bytes),
                Event::Payload { place, offset_bytes, range } => {
                    let place = match place {
                        Place::Capsule => &mut self.capsule.as_mut().unwrap().1,
                        Place::Transfer { cid, .. } => {
                            &mut self.pending.get_mut(&cid).unwrap().data
                        }
                    };
                    let start = offset_bytes as usize;
                    place[start..start + range.len()].copy_from_slice(&rest[range]);
                }
                Event::CapsuleEnd { digest } => {
                    let (sqe, data) = self.capsule.take().unwrap();
                    self.execute(sqe, data, digest);
                }
                Event::TransferData { .. } => {}
                Event::TransferDone { cid, digest, .. } => {
                    let pending = self.pending.get_mut(&cid).unwrap();
                    pending.digest = pending.digest.and(digest);
                    if (pending.asked as usize) < pending.data.len() {
                        self.ask(cid);
                    } else {
                        let pending = self.pending.remove(&cid).unwrap();
                        self.execute(pending.sqe, pending.data, pending.digest);
                    }
                }
                Event::PeerTerminated(_) => self.closing = true,
            }
        }
    }

    fn capsule(&mut self, sqe: Sqe, inline_bytes: u32) {
        if self.sqsize > 0 {
            self.sqhd = (self.sqhd + 1) % (self.sqsize + 1);
        }
        let bytes = sqe.dptr.length_bytes.get();
        let is_write = sqe.opcode & 3 == 1 && sqe.opcode != 0x7F;
        if inline_bytes > 0 {
            assert_eq!(inline_bytes, bytes);
            self.capsule = Some((sqe, vec![0; bytes as usize]));
        } else if is_write && bytes > 0 {
            let data = vec![0; bytes as usize];
            let pending = Pending { sqe, data, asked: 0, digest: DigestCheck::Ok };
            self.pending.insert(sqe.cid.get(), pending);
            self.ask(sqe.cid.get());
        } else {
            self.execute(sqe, Vec::new(), DigestCheck::Ok);
        }
    }

    fn ask(&mut self, cid: u16) {
        let pending = self.pending.get_mut(&cid).unwrap();
        let rest = pending.data.len() as u32 - pending.asked;
        let length = rest.min(self.shared.knobs.r2t_bytes);
        self.machine.encode_r2t(cid, pending.asked, length, &mut self.out).unwrap();
        pending.asked += length;
    }

    fn respond(&mut self, cid: u16, status: Status, result: u64) {
        let sqhd = if self.flow_control { self.sqhd } else { 0 };
        let cqe = Cqe::new(cid, status).with_result(result).with_sqhd(sqhd);
        self.machine.encode_response(&cqe, &mut self.out);
    }

    fn send(&mut self, cid: u16, data: &[u8], damage: bool) {
        let mut offset = 0;
        for chunk in data.chunks(self.shared.knobs.c2h_bytes) {
            let last = offset + chunk.len() == data.len();
            let (_, response) = self.machine.encode_c2h_header(
                cid,
                offset as u32,
                chunk.len() as u32,
                last,
                true,
                &mut self.out,
            );
            let start = self.out.len();
            self.out.extend_from_slice(chunk);
            if damage {
                self.out[start] ^= 0x80;
            }
            if self.machine.has_data_digest() {
                put_data_digest(chunk, &mut self.out);
            }
            offset += chunk.len();
            match response {
                Response::InData => {
                    self.shared.successes.fetch_add(1, Ordering::SeqCst);
                }
                Response::Needed if last => self.respond(cid, Status::SUCCESS, 0),
                Response::Needed => {}
            }
        }
    }

    fn execute(&mut self, sqe: Sqe, data: Vec<u8>, digest: DigestCheck) {
        let cid = sqe.cid.get();
        if digest == DigestCheck::Mismatch {
            return self.respond(cid, Generic::TransientTransportError.into(), 0);
        }
        let outcome = if sqe.opcode == 0x7F {
            self.fabrics(&sqe, &data)
        } else if self.qid == 0 {
            self.admin(&sqe)
        } else {
            self.io(&sqe, &data)
        };
        if let Err(status) = outcome {
            self.respond(cid, status, 0);
        }
    }

    fn fabrics(&mut self, sqe: &Sqe, data: &[u8]) -> Result<(), Status> {
        let cid = sqe.cid.get();
        match FabricsCommand::parse(sqe)? {
            FabricsCommand::Connect(connect) => {
                let data = ConnectData::read_from_bytes(data).unwrap();
                let name = nqn::from_field(&data.subnqn).unwrap();
                if name != NQN && name != nqn::DISCOVERY_NQN {
                    return Err(CommandSpecific::ConnectInvalidParameters.into());
                }
                self.discovery = name == nqn::DISCOVERY_NQN;
                self.qid = connect.qid.get();
                self.sqsize = connect.sqsize.get();
                self.sqhd = 1;
                let disable = connect.cattr.disable_sq_flow_control()
                    && self.shared.knobs.grant_no_flow_control;
                self.flow_control = !disable;
                self.machine.set_sq_flow_control(disable);
                self.cntlid = match self.qid {
                    0 => self.shared.next_cntlid.fetch_add(1, Ordering::SeqCst),
                    _ => data.cntlid.get(),
                };
                if self.qid > 0 {
                    self.machine.set_io_queue(self.shared.knobs.in_capsule_bytes);
                }
                let sqhd = if disable { 0xFFFF } else { self.sqhd };
                let cqe = Cqe::new(cid, Status::SUCCESS)
                    .with_result(u64::from(self.cntlid))
                    .with_sqhd(sqhd);
                self.machine.encode_response(&cqe, &mut self.out);
            }
            FabricsCommand::PropertyGet { offset, .. } => {
                let cc = self.shared.cc.lock().unwrap().get(&self.cntlid).copied().unwrap_or(0);
                let cc = Cc::from_raw(cc);
                let value = match Property::from_raw(offset) {
                    Some(Property::Cap) => {
                        let cap = Cap::default().with_mqes(self.shared.knobs.mqes).with_to(1);
                        cap.with_css_nvm(true).raw()
                    }
                    Some(Property::Csts) => {
                        let ready = cc.en() && !self.shared.knobs.never_ready;
                        let shst = if cc.shn() == 0 { 0 } else { 2 };
                        u64::from(Csts::default().with_rdy(ready).with_shst(shst).raw())
                    }
                    Some(Property::Cc) => u64::from(cc.raw()),
                    Some(Property::Vs) => 0x0002_0000,
                    _ => return Err(Generic::InvalidField.into()),
                };
                self.respond(cid, Status::SUCCESS, value);
            }
            FabricsCommand::PropertySet { value, .. } => {
                self.shared.cc.lock().unwrap().insert(self.cntlid, value as u32);
                self.respond(cid, Status::SUCCESS, 0);
            }
            FabricsCommand::Disconnect { .. } => {
                self.respond(cid, Status::SUCCESS, 0);
                self.closing = true;
            }
            _ => return Err(Generic::InvalidOpcode.into()),
        }
        Ok(())
    }

    fn admin(&mut self, sqe: &Sqe) -> Result<(), Status> {
        let cid = sqe.cid.get();
        match AdminCommand::parse(sqe)? {
            AdminCommand::Identify(identify) => {
                let page = self.identify(identify.cns, identify.nsid)?;
                self.send(cid, &page, false);
            }
            AdminCommand::SetFeatures(command) if command.fid == 7 => {
                let granted = u32::from(self.shared.knobs.queues - 1);
                self.respond(cid, Status::SUCCESS, u64::from(granted | granted << 16));
            }
            AdminCommand::SetFeatures(_) => self.respond(cid, Status::SUCCESS, 0),
            AdminCommand::GetFeatures(command) if command.fid == 0x0F => {
                self.respond(cid, Status::SUCCESS, 15_000);
            }
            AdminCommand::GetLogPage(command) => {
                let page = self.log(&command)?;
                self.send(cid, &page, false);
            }
            AdminCommand::KeepAlive => {
                self.shared.keep_alives.fetch_add(1, Ordering::SeqCst);
                self.respond(cid, Status::SUCCESS, 0);
            }
            AdminCommand::AsyncEventRequest => self.waiting_events.push(cid),
            _ => return Err(Generic::InvalidField.into()),
        }
        Ok(())
    }

    fn identify(&self, cns: u8, nsid: u32) -> Result<Vec<u8>, Status> {
        let knobs = &self.shared.knobs;
        Ok(match Cns::from_raw(cns) {
            Some(Cns::Controller) => {
                let mut page = IdentifyController {
                    cntlid: (self.cntlid + u16::from(knobs.wrong_cntlid)).into(),
                    mdts: 8,
                    // As nvmet: 0 on a discovery controller.
                    ioccsz: match self.discovery {
                        true => 0.into(),
                        false => (4 + knobs.in_capsule_bytes / 16).into(),
                    },
                    iorcsz: 1.into(),
                    ..IdentifyController::default()
                };
                page.sgls = page.sgls.with_support(1).with_offset(true).with_transport(true);
                page.as_bytes().to_vec()
            }
            Some(Cns::ActiveNamespaces) => {
                let mut page = vec![0; 4096];
                if nsid == 0 {
                    page[0] = 1;
                }
                page
            }
            Some(Cns::Namespace) if nsid == 1 => {
                let mut page = IdentifyNamespace {
                    nsze: knobs.blocks.into(),
                    ncap: knobs.blocks.into(),
                    nguid: NGUID,
                    ..IdentifyNamespace::default()
                };
                page.lbaf[0].lbads = knobs.block_bytes.trailing_zeros() as u8;
                page.as_bytes().to_vec()
            }
            Some(Cns::Namespace) => vec![0; 4096],
            Some(Cns::NamespaceDescriptors) if nsid == 1 => {
                let mut page = vec![0; 4096];
                let at = put_namespace_id(&mut page, 0, NamespaceIdType::Nguid, &NGUID).unwrap();
                put_namespace_id(&mut page, at, NamespaceIdType::Uuid, &UUID).unwrap();
                page
            }
            _ => return Err(Generic::InvalidField.into()),
        })
    }

    fn log(&self, command: &GetLogPage) -> Result<Vec<u8>, Status> {
        let whole = match command.lid {
            0x70 => {
                let mut log = LogHeader::default().as_bytes().to_vec();
                log[0] = 5;
                log[8] = 6;
                for port in 1..=6u16 {
                    let mut entry = LogEntry {
                        trtype: 3,
                        adrfam: 1,
                        subtype: 2,
                        portid: port.into(),
                        subnqn: nqn::to_field(NQN).unwrap(),
                        ..LogEntry::default()
                    };
                    let address = self.shared.address.lock().unwrap().unwrap();
                    put_text(&mut entry.traddr, &address.ip().to_string()).unwrap();
                    put_text(&mut entry.trsvcid, &address.port().to_string()).unwrap();
                    log.extend_from_slice(entry.as_bytes());
                }
                log
            }
            0x02 => vec![7; 512],
            _ => return Err(CommandSpecific::InvalidLogPage.into()),
        };
        let start = command.offset as usize;
        let end = start + command.length_bytes() as usize;
        whole.get(start..end).map(<[u8]>::to_vec).ok_or(Generic::InvalidField.into())
    }

    fn io(&mut self, sqe: &Sqe, data: &[u8]) -> Result<(), Status> {
        let cid = sqe.cid.get();
        let block = self.shared.knobs.block_bytes as usize;
        let blocks = self.shared.knobs.blocks;
        let place = |slba: u64, count: u32| -> Result<std::ops::Range<usize>, Status> {
            let end = slba.checked_add(u64::from(count)).filter(|end| *end <= blocks);
            let end = end.ok_or(Status::from(Generic::LbaOutOfRange))?;
            Ok(slba as usize * block..end as usize * block)
        };
        let shared = self.shared.clone();
        match IoCommand::parse(sqe)? {
            IoCommand::Read(range) => {
                let place = place(range.slba, range.blocks)?;
                let mut read = shared.data.lock().unwrap()[place].to_vec();
                read.truncate(read.len() - shared.knobs.short_reads_by);
                self.send(cid, &read, take(&shared.damage_reads));
            }
            IoCommand::Write { range, .. } => {
                let place = place(range.slba, range.blocks)?;
                assert_eq!(place.len(), data.len());
                let mut volume = shared.data.lock().unwrap();
                volume[place.clone()].copy_from_slice(data);
                if take(&shared.damage_writes) {
                    volume[place.start + 100] ^= 1;
                }
                drop(volume);
                self.respond(cid, Status::SUCCESS, 0);
            }
            IoCommand::WriteZeroes { range, .. } => {
                let place = place(range.slba, range.blocks)?;
                shared.data.lock().unwrap()[place].fill(0);
                self.respond(cid, Status::SUCCESS, 0);
            }
            IoCommand::DatasetManagement { .. } => {
                for range in data.chunks_exact(16) {
                    let range = DsmRange::read_from_bytes(range).unwrap();
                    let place = place(range.slba.get(), range.nlb.get())?;
                    shared.data.lock().unwrap()[place].fill(0);
                }
                self.respond(cid, Status::SUCCESS, 0);
            }
            IoCommand::Flush { .. } => {
                shared.flushes.fetch_add(1, Ordering::SeqCst);
                if shared.knobs.close_on_flush {
                    self.closing = true;
                } else if shared.knobs.stray_r2t_on_flush {
                    self.machine.encode_r2t(cid, 0, 512, &mut self.out).unwrap();
                } else {
                    self.respond(cid, Status::SUCCESS, 0);
                }
            }
        }
        Ok(())
    }
}
