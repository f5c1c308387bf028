//! Host machine against target machine, in memory: bytes travel in pieces of random size, under
//! every combination of digests and alignment, and every byte of data must arrive.

use proptest::prelude::*;

use crate::nvme::cqe::Cqe;
use crate::nvme::sqe::Sqe;
use crate::nvme::status::Status;
use crate::tcp::digest::DigestCheck;
use crate::tcp::encode::put_data_digest;
use crate::tcp::host::{self, CommandData};
use crate::tcp::pdu::PduAlignment;
use crate::tcp::rules::R2tFields;
use crate::tcp::target::{self, Place, Response};
use crate::tcp::{Digests, Negotiated};

/// What a scenario does on one connection.
#[derive(Clone, Debug)]
enum Op {
    /// A write with in-capsule data.
    Inline(usize),
    /// A write by R2Ts of so many bytes each.
    Write { bytes: usize, r2t_bytes: u32 },
    /// A read in C2HData PDUs of so many bytes each.
    Read { bytes: usize, pdu_bytes: u32 },
    /// A command without data.
    Flush,
}

/// One way of the wire, handing out its bytes in pieces of the given sizes.
struct Pipe {
    bytes: Vec<u8>,
    sizes: Vec<usize>,
    turn: usize,
}

impl Pipe {
    fn next_piece(&mut self) -> Vec<u8> {
        let size = self.sizes[self.turn % self.sizes.len()];
        self.turn += 1;
        self.bytes.drain(..size.min(self.bytes.len())).collect()
    }
}

fn pattern(cid: u16, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i as u8).wrapping_mul(31) ^ (cid as u8) ^ (i >> 8) as u8).collect()
}

struct Target {
    connection: target::Connection,
    /// Per command identifier: what has arrived.
    data: Vec<Vec<u8>>,
    /// Commands by identifier.
    ops: Vec<Op>,
    capsule_cid: u16,
    /// Where the next R2T of a write begins.
    asked: Vec<u32>,
    /// R2Ts outstanding for a write.
    r2ts: Vec<u32>,
}

impl Target {
    fn respond(&mut self, cid: u16, out: &mut Vec<u8>) {
        self.connection.encode_response(&Cqe::new(cid, Status::SUCCESS), out);
    }

    /// Asks for as much of a write as the host lets it.
    fn ask(&mut self, cid: u16, out: &mut Vec<u8>) {
        let Op::Write { bytes, r2t_bytes } = self.ops[usize::from(cid)] else { unreachable!() };
        let asked = &mut self.asked[usize::from(cid)];
        while (*asked as usize) < bytes {
            let length = r2t_bytes.min(bytes as u32 - *asked);
            match self.connection.encode_r2t(cid, *asked, length, out) {
                Ok(_) => {}
                Err(target::R2tRefused::HostLimit { .. }) => return,
                Err(refused) => panic!("{refused}"),
            }
            *asked += length;
            self.r2ts[usize::from(cid)] += 1;
        }
    }

    fn send(&mut self, cid: u16, out: &mut Vec<u8>) {
        let Op::Read { bytes, pdu_bytes } = self.ops[usize::from(cid)] else { unreachable!() };
        let data = pattern(cid, bytes);
        let mut offset = 0;
        for chunk in data.chunks(pdu_bytes as usize) {
            let last = offset + chunk.len() == bytes;
            let (_, response) = self.connection.encode_c2h_header(
                cid,
                offset as u32,
                chunk.len() as u32,
                last,
                true,
                out,
            );
            out.extend_from_slice(chunk);
            if self.connection.has_data_digest() {
                put_data_digest(chunk, out);
            }
            offset += chunk.len();
            if last && response == Response::Needed {
                self.respond(cid, out);
            }
        }
    }

    fn handle(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let mut at = 0;
        loop {
            let step = self.connection.poll(&input[at..]).unwrap();
            let input = &input[at..];
            at += step.consumed;
            match step.event {
                target::Event::NeedMore => return,
                target::Event::SendIcResp => {
                    self.connection.encode_icresp(out);
                }
                target::Event::Capsule { sqe, inline_bytes } => {
                    let cid = sqe.cid.get();
                    self.capsule_cid = cid;
                    match self.ops[usize::from(cid)].clone() {
                        Op::Inline(bytes) => assert_eq!(inline_bytes as usize, bytes),
                        Op::Write { .. } => self.ask(cid, out),
                        Op::Read { .. } => self.send(cid, out),
                        Op::Flush => self.respond(cid, out),
                    }
                }
                target::Event::Payload { place, offset_bytes, range } => {
                    let cid = match place {
                        Place::Capsule => self.capsule_cid,
                        Place::Transfer { cid, .. } => cid,
                    };
                    let data = &mut self.data[usize::from(cid)];
                    assert_eq!(data.len(), offset_bytes as usize);
                    data.extend_from_slice(&input[range]);
                }
                target::Event::CapsuleEnd { digest } => {
                    assert_eq!(digest, DigestCheck::Ok);
                    self.respond(self.capsule_cid, out);
                }
                target::Event::TransferData { .. } => {}
                target::Event::TransferDone { cid, digest, .. } => {
                    assert_eq!(digest, DigestCheck::Ok);
                    self.r2ts[usize::from(cid)] -= 1;
                    self.ask(cid, out);
                    if self.r2ts[usize::from(cid)] == 0 {
                        self.respond(cid, out);
                    }
                }
                target::Event::PeerTerminated(reason) => panic!("terminated: {reason}"),
            }
        }
    }
}

struct Host {
    connection: host::Connection,
    ops: Vec<Op>,
    data: Vec<Vec<u8>>,
    completed: Vec<bool>,
    by_success_flag: usize,
    negotiated: Option<Negotiated>,
}

impl Host {
    fn submit_all(&mut self, out: &mut Vec<u8>) {
        for (cid, op) in self.ops.iter().enumerate() {
            let cid = cid as u16;
            let sqe = Sqe::new(1, cid);
            let data = match op {
                Op::Inline(bytes) => CommandData::InCapsule(*bytes as u32),
                Op::Write { bytes, .. } => CommandData::ToController(*bytes as u32),
                Op::Read { bytes, .. } => CommandData::ToHost(*bytes as u32),
                Op::Flush => CommandData::None,
            };
            self.connection.encode_command(&sqe, data, out).unwrap();
            if let Op::Inline(bytes) = op {
                let payload = pattern(cid, *bytes);
                out.extend_from_slice(&payload);
                if self.connection.has_data_digest() {
                    put_data_digest(&payload, out);
                }
            }
        }
    }

    fn transfer(&mut self, r2t: &R2tFields, out: &mut Vec<u8>) {
        let Op::Write { bytes, .. } = self.ops[usize::from(r2t.cccid)] else { unreachable!() };
        let data = pattern(r2t.cccid, bytes);
        let mut done = 0;
        loop {
            let (_, length, last) =
                self.connection.encode_h2c_header(r2t, done, u32::MAX, out).unwrap();
            let start = (r2t.r2to + done) as usize;
            let payload = &data[start..start + length as usize];
            out.extend_from_slice(payload);
            if self.connection.has_data_digest() {
                put_data_digest(payload, out);
            }
            done += length;
            if last {
                return;
            }
        }
    }

    fn handle(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let mut at = 0;
        loop {
            let step = self.connection.poll(&input[at..]).unwrap();
            let input = &input[at..];
            at += step.consumed;
            match step.event {
                host::Event::NeedMore => return,
                host::Event::Initialized(negotiated) => {
                    self.negotiated = Some(negotiated);
                    self.submit_all(out);
                }
                host::Event::ReadData { .. } => {}
                host::Event::Payload { cid, offset_bytes, range } => {
                    let data = &mut self.data[usize::from(cid)];
                    assert_eq!(data.len(), offset_bytes as usize);
                    data.extend_from_slice(&input[range]);
                }
                host::Event::Completed(completion) => {
                    let cid = usize::from(completion.cqe.cid.get());
                    assert!(!self.completed[cid], "command {cid} answered twice");
                    assert_eq!(completion.digest, DigestCheck::Ok);
                    assert!(completion.cqe.status().is_success());
                    assert_eq!(completion.received_bytes as usize, self.data[cid].len());
                    self.by_success_flag += usize::from(completion.by_success_flag);
                    self.completed[cid] = true;
                }
                host::Event::ReadyToTransfer(r2t) => self.transfer(&r2t, out),
                host::Event::PeerTerminated(reason) => panic!("terminated: {reason}"),
            }
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = (1..40_000usize).prop_map(|n| n * 4);
    prop_oneof![
        (1..=2048usize).prop_map(|n| Op::Inline(n * 4)),
        (bytes.clone(), 1..20_000u32).prop_map(|(bytes, n)| Op::Write { bytes, r2t_bytes: n * 4 }),
        (bytes, 1..20_000u32).prop_map(|(bytes, n)| Op::Read { bytes, pdu_bytes: n * 4 }),
        Just(Op::Flush),
    ]
}

fn digests() -> impl Strategy<Value = Digests> {
    any::<(bool, bool)>().prop_map(|(header, data)| Digests { header, data })
}

fn alignment() -> impl Strategy<Value = PduAlignment> {
    (0..=31u8).prop_map(|wire| PduAlignment::from_wire(wire).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_byte_arrives_and_every_command_is_answered_once(
        ops in prop::collection::vec(op(), 1..12),
        sizes in prop::collection::vec(prop_oneof![1..100usize, 100..100_000usize], 1..20),
        asked in digests(),
        granted in digests(),
        hpda in alignment(),
        cpda in alignment(),
        sq_flow_control_disabled: bool,
        max_r2t in 1..=5u32,
        max_h2c_data_bytes in (1024..20_000u32).prop_map(|n| n * 4),
    ) {
        let count = ops.len();
        let config = target::Config { cpda, max_h2c_data_bytes, digests: granted, max_transfers: 64 };
        let mut target = Target {
            connection: target::Connection::new(config).unwrap(),
            data: vec![Vec::new(); count],
            ops: ops.clone(),
            capsule_cid: 0,
            asked: vec![0; count],
            r2ts: vec![0; count],
        };
        target.connection.set_sq_flow_control(sq_flow_control_disabled);
        let config = host::Config { hpda, digests: asked, max_r2t, max_commands: 12 };
        let mut host = Host {
            connection: host::Connection::new(config),
            ops: ops.clone(),
            data: vec![Vec::new(); count],
            completed: vec![false; count],
            by_success_flag: 0,
            negotiated: None,
        };
        let mut to_target = Pipe { bytes: Vec::new(), sizes: sizes.clone(), turn: 0 };
        let mut to_host = Pipe { bytes: Vec::new(), sizes, turn: 1 };
        host.connection.encode_icreq(&mut to_target.bytes);
        while !(to_target.bytes.is_empty() && to_host.bytes.is_empty()) {
            let piece = to_target.next_piece();
            target.handle(&piece, &mut to_host.bytes);
            let piece = to_host.next_piece();
            host.handle(&piece, &mut to_target.bytes);
        }
        prop_assert!(host.completed.iter().all(|done| *done));
        let expected = Digests {
            header: asked.header && granted.header,
            data: asked.data && granted.data,
        };
        prop_assert_eq!(host.negotiated.unwrap().digests, expected);
        prop_assert_eq!(target.connection.negotiated(), host.connection.negotiated());
        prop_assert_eq!(target.connection.outstanding_transfers(), 0);
        let mut reads = 0;
        for (cid, op) in ops.iter().enumerate() {
            let cid16 = cid as u16;
            match op {
                Op::Inline(bytes) | Op::Write { bytes, .. } => {
                    prop_assert_eq!(&target.data[cid], &pattern(cid16, *bytes));
                }
                Op::Read { bytes, .. } => {
                    reads += 1;
                    prop_assert_eq!(&host.data[cid], &pattern(cid16, *bytes));
                }
                Op::Flush => {}
            }
        }
        prop_assert_eq!(host.by_success_flag, if sq_flow_control_disabled { reads } else { 0 });
    }
}
