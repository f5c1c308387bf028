//! Peers that send anything: nothing may panic, no input may be lost or consumed twice, and a
//! connection that has died stays dead.

use proptest::prelude::*;

use crate::nvme::sqe::Sqe;
use crate::tcp::encode::{self, Encoder, put_data_digest};
use crate::tcp::host::{self, CommandData};
use crate::tcp::pdu::PduAlignment;
use crate::tcp::rules::{C2hDataFields, H2cDataFields, IcReqFields, IcRespFields, R2tFields};
use crate::tcp::{Digests, target};

const ALL: Digests = Digests { header: true, data: true };

fn digests() -> impl Strategy<Value = Digests> {
    any::<(bool, bool)>().prop_map(|(header, data)| Digests { header, data })
}

/// A session of a host that behaves, before it is mutilated.
fn good_host(digests: Digests) -> Vec<u8> {
    let mut out = Vec::new();
    let none = PduAlignment::NONE;
    encode::ic_req(&IcReqFields { hpda: none, digests, max_r2t: 1 }, &mut out);
    let encoder = Encoder { digests, alignment: none };
    for (cid, bytes) in [(0, 512), (1, 0), (2, 1024)] {
        encoder.capsule_cmd(&Sqe::new(1, cid), bytes, &mut out);
        let payload = vec![cid as u8; bytes as usize];
        out.extend_from_slice(&payload);
        if digests.data && bytes > 0 {
            put_data_digest(&payload, &mut out);
        }
    }
    let data = H2cDataFields { cccid: 1, ttag: 1, datao: 0, datal: 256, last: true };
    encoder.h2c_data(&data, &mut out);
    out.extend_from_slice(&[9; 256]);
    if digests.data {
        put_data_digest(&[9; 256], &mut out);
    }
    out
}

/// The answers of a controller that behaves, before they are mutilated.
fn good_controller(digests: Digests) -> Vec<u8> {
    let mut out = Vec::new();
    let none = PduAlignment::NONE;
    let response = IcRespFields { cpda: none, digests, max_h2c_data_bytes: 4096 };
    encode::ic_resp(&response, &mut out);
    let encoder = Encoder { digests, alignment: none };
    encoder.r2t(&R2tFields { cccid: 2, ttag: 1, r2to: 0, r2tl: 512 }, &mut out);
    let data = C2hDataFields { cccid: 1, datao: 0, datal: 256, last: true, success: true };
    encoder.c2h_data(&data, &mut out);
    out.extend_from_slice(&[9; 256]);
    if digests.data {
        put_data_digest(&[9; 256], &mut out);
    }
    out
}

/// Feeds a target; returns whether the connection has ended.
fn feed_target(bytes: &[u8], sizes: &[usize]) -> bool {
    let config = target::Config { max_transfers: 4, ..Default::default() };
    let mut target = target::Connection::new(config).unwrap();
    let mut rest = bytes;
    let mut ended = false;
    for size in sizes.iter().cycle() {
        let (piece, after) = rest.split_at((*size).min(rest.len()));
        rest = after;
        let mut at = 0;
        loop {
            match target.poll(&piece[at..]) {
                Err(error) => {
                    assert!(!ended, "a dead connection died again: {error}");
                    ended = true;
                    at = 0;
                }
                Ok(step) => {
                    at += step.consumed;
                    assert!(at <= piece.len());
                    match step.event {
                        target::Event::NeedMore => {
                            assert_eq!(at, piece.len(), "input left over");
                            break;
                        }
                        target::Event::Capsule { sqe, .. } if !ended => {
                            let _ = target.encode_r2t(sqe.cid.get(), 0, 256, &mut Vec::new());
                        }
                        target::Event::Payload { range, .. } => {
                            assert!(range.end <= step.consumed);
                        }
                        target::Event::PeerTerminated(_) => ended = true,
                        _ => assert!(!ended, "an event after the end"),
                    }
                }
            }
        }
        if rest.is_empty() {
            return ended;
        }
    }
    ended
}

fn feed_host(bytes: &[u8], sizes: &[usize]) {
    let config = host::Config { digests: ALL, ..Default::default() };
    let mut host = host::Connection::new(config);
    let mut rest = bytes;
    let mut ended = false;
    for size in sizes.iter().cycle() {
        let (piece, after) = rest.split_at((*size).min(rest.len()));
        rest = after;
        let mut at = 0;
        loop {
            match host.poll(&piece[at..]) {
                Err(error) => {
                    assert!(!ended, "a dead connection died again: {error}");
                    ended = true;
                    at = 0;
                }
                Ok(step) => {
                    at += step.consumed;
                    match step.event {
                        host::Event::NeedMore => {
                            assert_eq!(at, piece.len(), "input left over");
                            break;
                        }
                        host::Event::Initialized(_) => {
                            let mut out = Vec::new();
                            for (cid, data) in [
                                (1, CommandData::ToHost(4096)),
                                (2, CommandData::ToController(4096)),
                            ] {
                                host.encode_command(&Sqe::new(1, cid), data, &mut out).unwrap();
                            }
                        }
                        host::Event::PeerTerminated(_) => ended = true,
                        _ => assert!(!ended, "an event after the end"),
                    }
                }
            }
        }
        if rest.is_empty() {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn noise(
        bytes in prop::collection::vec(any::<u8>(), 1..400),
        sizes in prop::collection::vec(1..100usize, 1..6),
    ) {
        feed_target(&bytes, &sizes);
        feed_host(&bytes, &sizes);
    }

    #[test]
    fn good_sessions_with_bytes_changed(
        digests in digests(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        sizes in prop::collection::vec(1..300usize, 1..6),
    ) {
        for (mut bytes, is_host) in [(good_host(digests), true), (good_controller(digests), false)] {
            for (index, value) in &changes {
                let index = index.index(bytes.len());
                bytes[index] = *value;
            }
            if is_host {
                feed_target(&bytes, &sizes);
            } else {
                feed_host(&bytes, &sizes);
            }
        }
    }

    /// With both digests no change of a single bit gets through, wherever it is: it ends the
    /// connection, or is in the negotiation, in padding or payload.
    #[test]
    fn a_flipped_header_bit_is_always_found(bit in 0..72 * 8usize) {
        let mut bytes = good_host(ALL);
        let capsule = 128 + bit / 8;
        bytes[capsule] ^= 1 << (bit % 8);
        prop_assert!(feed_target(&bytes, &[bytes.len()]));
    }
}

#[test]
fn good_sessions_are_good() {
    for digests in [Digests::default(), ALL] {
        assert!(!feed_target(&good_host(digests), &[1]));
        feed_host(&good_controller(digests), &[3]);
    }
}
