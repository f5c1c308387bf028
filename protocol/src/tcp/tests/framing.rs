//! The receiver against the encoder: every PDU, with and without digests and padding, in one
//! piece and split anywhere, and with payloads received beside the receiver.

use proptest::prelude::*;

use crate::nvme::cqe::Cqe;
use crate::nvme::sqe::Sqe;
use crate::tcp::Digests;
use crate::tcp::digest::DigestCheck;
use crate::tcp::encode::{self, Encoder, put_data_digest};
use crate::tcp::error::{FatalError, Fault, Termination};
use crate::tcp::pdu::{Direction, PduAlignment};
use crate::tcp::receiver::{Event, Receiver};
use crate::tcp::rules::{
    C2hDataFields, H2cDataFields, IcReqFields, IcRespFields, Pdu, R2tFields, Rules,
};

/// A PDU as reported by a receiver, its payload put together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    pdu: Pdu,
    payload: Vec<u8>,
    digest: Option<DigestCheck>,
}

fn encode(encoder: &Encoder, pdu: &Pdu, payload: &[u8], out: &mut Vec<u8>) {
    match pdu {
        Pdu::IcReq(fields) => encode::ic_req(fields, out),
        Pdu::IcResp(fields) => encode::ic_resp(fields, out),
        Pdu::TermReq(_) => {
            let error = FatalError::new(Fault::ReservedType { code: 8 }, payload);
            encode::term_req(Direction::HostToController, &error, out)
        }
        Pdu::CapsuleCmd(sqe) => encoder.capsule_cmd(sqe, payload.len() as u32, out),
        Pdu::CapsuleResp(cqe) => encoder.capsule_resp(cqe, out),
        Pdu::H2cData(fields) => encoder.h2c_data(fields, out),
        Pdu::C2hData(fields) => encoder.c2h_data(fields, out),
        Pdu::R2t(fields) => encoder.r2t(fields, out),
    };
    if !payload.is_empty() && !matches!(pdu, Pdu::TermReq(_)) {
        out.extend_from_slice(payload);
        if encoder.digests.data {
            put_data_digest(payload, out);
        }
    }
}

fn receiver(direction: Direction, encoder: &Encoder) -> Receiver {
    let mut receiver = Receiver::new(direction);
    *receiver.rules_mut() = Rules {
        initialized: true,
        digests: encoder.digests,
        asked_digests: Digests { header: true, data: true },
        alignment: encoder.alignment,
        io_in_capsule_bytes: None,
        max_h2c_data_bytes: 1 << 20,
        ..Rules::new(direction)
    };
    receiver
}

/// Feeds `bytes` in pieces whose sizes repeat; the unconsumed rest of a piece is offered again.
fn receive(receiver: &mut Receiver, bytes: &[u8], sizes: &[usize]) -> Vec<Seen> {
    let mut seen: Vec<Seen> = Vec::new();
    let mut rest = bytes;
    for size in sizes.iter().cycle() {
        let (mut piece, after) = rest.split_at((*size).min(rest.len()));
        rest = after;
        loop {
            let step = receiver.poll(piece).unwrap();
            match step.event {
                Event::NeedMore => {
                    assert_eq!(step.consumed, piece.len(), "input left over");
                    break;
                }
                Event::Pdu { pdu, .. } => {
                    seen.push(Seen { pdu, payload: Vec::new(), digest: None });
                }
                Event::Data { range } => {
                    assert!(!range.is_empty());
                    seen.last_mut().unwrap().payload.extend_from_slice(&piece[range]);
                }
                Event::DataEnd { digest } => seen.last_mut().unwrap().digest = Some(digest),
            }
            piece = &piece[step.consumed..];
        }
        if rest.is_empty() {
            return seen;
        }
    }
    seen
}

fn digests() -> impl Strategy<Value = Digests> {
    any::<(bool, bool)>().prop_map(|(header, data)| Digests { header, data })
}

fn encoder() -> impl Strategy<Value = Encoder> {
    (digests(), 0..=31u8).prop_map(|(digests, wire)| Encoder {
        digests,
        alignment: PduAlignment::from_wire(wire).unwrap(),
    })
}

fn payload(least: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), least..600)
}

/// PDUs from a host, with payload.
fn from_host() -> impl Strategy<Value = (Pdu, Vec<u8>)> {
    let sqe = any::<[u8; 64]>().prop_map(Sqe::from_bytes);
    prop_oneof![
        (sqe, payload(0)).prop_map(|(sqe, payload)| (Pdu::CapsuleCmd(sqe), payload)),
        (any::<(u16, u16, u32, bool)>(), payload(1)).prop_map(
            |((cccid, ttag, datao, last), payload)| {
                let datal = payload.len() as u32;
                (Pdu::H2cData(H2cDataFields { cccid, ttag, datao, datal, last }), payload)
            }
        ),
    ]
}

/// PDUs from a controller, with payload.
fn from_controller() -> impl Strategy<Value = (Pdu, Vec<u8>)> {
    let cqe = any::<[u8; 16]>().prop_map(Cqe::from_bytes);
    prop_oneof![
        cqe.prop_map(|cqe| (Pdu::CapsuleResp(cqe), Vec::new())),
        (any::<(u16, u32, bool, bool)>(), payload(1)).prop_map(
            |((cccid, datao, last, success), payload)| {
                let datal = payload.len() as u32;
                let success = success && last;
                (Pdu::C2hData(C2hDataFields { cccid, datao, datal, last, success }), payload)
            }
        ),
        any::<(u16, u16, u32, u32)>().prop_map(|(cccid, ttag, r2to, r2tl)| {
            (Pdu::R2t(R2tFields { cccid, ttag, r2to, r2tl: r2tl.max(1) }), Vec::new())
        }),
    ]
}

fn expected(stream: &[(Pdu, Vec<u8>)]) -> Vec<Seen> {
    stream
        .iter()
        .map(|(pdu, payload)| Seen {
            pdu: *pdu,
            payload: payload.clone(),
            digest: (!payload.is_empty()).then_some(DigestCheck::Ok),
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_a_host_sends_is_received(
        encoder in encoder(),
        stream in prop::collection::vec(from_host(), 1..8),
        sizes in prop::collection::vec(1..300usize, 1..20),
    ) {
        let mut bytes = Vec::new();
        stream.iter().for_each(|(pdu, payload)| encode(&encoder, pdu, payload, &mut bytes));
        let mut receiver = receiver(Direction::HostToController, &encoder);
        prop_assert_eq!(receive(&mut receiver, &bytes, &sizes), expected(&stream));
    }

    #[test]
    fn what_a_controller_sends_is_received(
        encoder in encoder(),
        stream in prop::collection::vec(from_controller(), 1..8),
        sizes in prop::collection::vec(1..300usize, 1..20),
    ) {
        let mut bytes = Vec::new();
        stream.iter().for_each(|(pdu, payload)| encode(&encoder, pdu, payload, &mut bytes));
        let mut receiver = receiver(Direction::ControllerToHost, &encoder);
        prop_assert_eq!(receive(&mut receiver, &bytes, &sizes), expected(&stream));
    }

    #[test]
    fn initialization_is_received(
        digests in digests(),
        wire in 0..=31u8,
        max_r2t in 1..=u32::MAX,
        max_dwords in 1024..=u32::MAX / 4,
        sizes in prop::collection::vec(1..200usize, 1..9),
    ) {
        let alignment = PduAlignment::from_wire(wire).unwrap();
        let request = Pdu::IcReq(IcReqFields { hpda: alignment, digests, max_r2t });
        let max_h2c_data_bytes = max_dwords * 4;
        let response = Pdu::IcResp(IcRespFields { cpda: alignment, digests, max_h2c_data_bytes });
        for (pdu, direction) in
            [(request, Direction::HostToController), (response, Direction::ControllerToHost)]
        {
            let mut bytes = Vec::new();
            encode(&Encoder::default(), &pdu, &[], &mut bytes);
            let mut receiver = Receiver::new(direction);
            receiver.rules_mut().asked_digests = digests;
            let expected = Seen { pdu, payload: Vec::new(), digest: None };
            prop_assert_eq!(receive(&mut receiver, &bytes, &sizes), vec![expected]);
        }
    }

    /// A TermReq carries no digest, whatever was negotiated, and ends everything.
    #[test]
    fn a_term_req_is_received_at_any_time(
        encoder in encoder(),
        initialized: bool,
        offending in prop::collection::vec(any::<u8>(), 0..=128),
        sizes in prop::collection::vec(1..60usize, 1..9),
    ) {
        let pdu = Pdu::TermReq(Termination { fes: 1, fei: 0 });
        let mut bytes = Vec::new();
        encode(&encoder, &pdu, &offending, &mut bytes);
        bytes.extend_from_slice(&[0xEE; 99]);
        let mut receiver = receiver(Direction::HostToController, &encoder);
        receiver.rules_mut().initialized = initialized;
        let seen = receive(&mut receiver, &bytes, &sizes);
        prop_assert_eq!(seen, vec![Seen { pdu, payload: Vec::new(), digest: None }]);
        prop_assert!(receiver.is_stopped());
    }

    /// Payload that the caller receives straight into its place counts as if it had been input,
    /// for the lengths and for the digest.
    #[test]
    fn payload_may_be_received_in_place(
        encoder in encoder(),
        payload in payload(1),
        first in 0..700usize,
        flip: bool,
    ) {
        let fields = H2cDataFields {
            cccid: 1, ttag: 2, datao: 0, datal: payload.len() as u32, last: true,
        };
        let mut bytes = Vec::new();
        let front = encoder.h2c_data(&fields, &mut bytes);
        let mut sent = payload.clone();
        if flip {
            sent[payload.len() / 2] ^= 1;
        }
        bytes.extend_from_slice(&sent);
        put_data_digest(&payload, &mut bytes);
        if !encoder.digests.data {
            bytes.truncate(front + payload.len());
        }
        let mut receiver = receiver(Direction::HostToController, &encoder);
        // The front, and `first` bytes of payload, go the ordinary way.
        let mut at = 0;
        let stop = (front + first).min(front + payload.len());
        loop {
            let step = receiver.poll(&bytes[at..stop]).unwrap();
            at += step.consumed;
            if step.event == Event::NeedMore || matches!(step.event, Event::DataEnd { .. }) {
                break;
            }
        }
        let remaining = receiver.payload_remaining();
        prop_assert_eq!(remaining, front + payload.len() - stop);
        prop_assert_eq!(receiver.handle_payload(&bytes[at..]), remaining);
        at += remaining;
        if remaining > 0 || encoder.digests.data {
            let step = receiver.poll(&bytes[at..]).unwrap();
            let damaged = flip && encoder.digests.data;
            let digest = if damaged { DigestCheck::Mismatch } else { DigestCheck::Ok };
            prop_assert_eq!(step.event, Event::DataEnd { digest });
            at += step.consumed;
        }
        prop_assert_eq!(at, bytes.len());
    }
}

/// Padding is no payload: while it is missing nothing may be received in place.
#[test]
fn nothing_is_received_in_place_before_the_padding() {
    let encoder =
        Encoder { digests: Digests::default(), alignment: PduAlignment::from_wire(31).unwrap() };
    let fields = H2cDataFields { cccid: 1, ttag: 2, datao: 0, datal: 500, last: true };
    let mut front = Vec::new();
    encoder.h2c_data(&fields, &mut front);
    let mut receiver = receiver(Direction::HostToController, &encoder);
    for (from, to) in [(0, 24), (24, 60), (60, 127)] {
        let mut at = from;
        while at < to {
            at += receiver.poll(&front[at..to]).unwrap().consumed;
        }
        assert_eq!(receiver.payload_remaining(), 0, "after {to} bytes");
        assert_eq!(receiver.handle_payload(&[0; 500]), 0);
    }
    receiver.poll(&front[127..]).unwrap();
    assert_eq!(receiver.payload_remaining(), 500);
}

/// Every way to cut a stream of two PDUs in two, exhaustively.
#[test]
fn every_single_cut() {
    let encoder = Encoder {
        digests: Digests { header: true, data: true },
        alignment: PduAlignment::from_wire(8).unwrap(),
    };
    let sqe = Sqe::new(0x7F, 5);
    let fields = H2cDataFields { cccid: 1, ttag: 2, datao: 4, datal: 3, last: false };
    let stream = [
        (Pdu::CapsuleCmd(sqe), vec![1, 2, 3, 4, 5]),
        (Pdu::H2cData(fields), vec![7, 8, 9]),
        (Pdu::CapsuleCmd(sqe), vec![]),
    ];
    let mut bytes = Vec::new();
    stream.iter().for_each(|(pdu, payload)| encode(&encoder, pdu, payload, &mut bytes));
    for cut in 1..bytes.len() {
        let mut receiver = receiver(Direction::HostToController, &encoder);
        let sizes = [cut, bytes.len()];
        assert_eq!(receive(&mut receiver, &bytes, &sizes), expected(&stream), "cut at {cut}");
    }
}
