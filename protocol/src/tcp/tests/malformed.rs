//! What each malformed PDU gets: a table of bytes, FES and FEI, for a target and for a host.
//!
//! The values are those of NVMe-TCP 1.0 §3.1, §3.3.2 and Figures 22 and 23. Every case is sent in
//! one piece and byte by byte, and must be refused alike.

use crate::nvme::cqe::Cqe;
use crate::nvme::sqe::Sqe;
use crate::nvme::status::Status;
use crate::tcp::digest::{self, DigestCheck};
use crate::tcp::encode::{self, Encoder, put_data_digest};
use crate::tcp::error::{FatalError, FatalErrorStatus as Fes, Fault};
use crate::tcp::host::{self, CommandData};
use crate::tcp::pdu::PduAlignment;
use crate::tcp::rules::{C2hDataFields, H2cDataFields, IcReqFields, IcRespFields, R2tFields};
use crate::tcp::{Digests, target};

const NONE: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };

/// One malformed PDU: what was negotiated, its bytes, and the answer.
struct Case {
    name: &'static str,
    digests: Digests,
    bytes: Vec<u8>,
    fes: Option<Fes>,
    fei: u32,
}

fn case(name: &'static str, digests: Digests, bytes: Vec<u8>, fes: Fes, fei: u32) -> Case {
    Case { name, digests, bytes, fes: Some(fes), fei }
}

fn encoder(digests: Digests) -> Encoder {
    Encoder { digests, alignment: PduAlignment::NONE }
}

/// Writes a PDU, changes one byte of its header, and makes the header digest right again.
fn with_byte(digests: Digests, mut pdu: Vec<u8>, offset: usize, value: u8) -> Vec<u8> {
    assert_ne!(pdu[offset], value, "the case changes nothing");
    pdu[offset] = value;
    if digests.header {
        let hlen = if pdu[0] == 4 { 72 } else { 24 };
        let crc = digest::crc32c(&pdu[..hlen]);
        pdu[hlen..hlen + 4].copy_from_slice(&crc.to_le_bytes());
    }
    pdu
}

fn icreq() -> Vec<u8> {
    let mut out = Vec::new();
    let fields = IcReqFields { hpda: PduAlignment::NONE, digests: BOTH, max_r2t: 1 };
    encode::ic_req(&fields, &mut out);
    out
}

fn capsule(digests: Digests, opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encoder(digests).capsule_cmd(&Sqe::new(opcode, 9), payload.len() as u32, &mut out);
    out.extend_from_slice(payload);
    if digests.data && !payload.is_empty() {
        put_data_digest(payload, &mut out);
    }
    out
}

fn h2c(digests: Digests, fields: H2cDataFields, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encoder(digests).h2c_data(&fields, &mut out);
    out.extend_from_slice(payload);
    if digests.data {
        put_data_digest(payload, &mut out);
    }
    out
}

/// Data as the outstanding R2T of [`target_at_work`] asks for it.
const DATA: H2cDataFields =
    H2cDataFields { cccid: 9, ttag: 0, datao: 4096, datal: 64, last: false };

/// A target that has been initialized and has one R2T outstanding: command 9, 4096..8192.
fn target_at_work(digests: Digests) -> target::Connection {
    let config = target::Config { digests, max_h2c_data_bytes: 4096, ..Default::default() };
    let mut target = target::Connection::new(config).unwrap();
    let step = target.poll(&icreq()).unwrap();
    assert_eq!(step.event, target::Event::SendIcResp);
    target.set_io_queue(4096);
    let ttag = target.encode_r2t(9, 4096, 4096, &mut Vec::new()).unwrap();
    assert_eq!(ttag, DATA.ttag);
    target
}

/// The fault that a target finds in `bytes`, which may contain good PDUs before it.
fn refused(target: &mut target::Connection, bytes: &[u8], piece: usize) -> Option<FatalError> {
    for piece in bytes.chunks(piece) {
        let mut at = 0;
        loop {
            match target.poll(&piece[at..]) {
                Err(error) => return Some(error),
                Ok(step) if step.event == target::Event::NeedMore => break,
                Ok(step) => at += step.consumed,
            }
        }
    }
    None
}

fn check(case: &Case, error: Option<FatalError>, term: impl Fn(&FatalError) -> Vec<u8>) {
    let Case { name, fes, fei, bytes, .. } = case;
    let error = error.unwrap_or_else(|| panic!("{name}: accepted"));
    let told = (error.status(), error.information());
    assert_eq!(told, (*fes, *fei), "{name}: {error}");
    let term = term(&error);
    if fes.is_none() {
        assert!(term.is_empty(), "{name}: must not be answered");
        return;
    }
    // The TermReq is well-formed and carries the start of the offending header.
    assert_eq!(term.len(), 24 + error.header().len(), "{name}");
    assert_eq!(term[4..8], (term.len() as u32).to_le_bytes(), "{name}");
    assert!(term.len() > 24 && term.len() <= 152, "{name}");
    let offending = &term[24..];
    assert!(offending.len() >= 8, "{name}: only {offending:?} of the header");
    assert!(
        pdu_starts(bytes).any(|start| bytes[start..].starts_with(offending)),
        "{name}: {offending:?} is not the start of a PDU that was sent"
    );
}

/// Where PDUs begin, as far as their PLEN can be followed.
fn pdu_starts(bytes: &[u8]) -> impl Iterator<Item = usize> {
    core::iter::successors(Some(0usize), |start| {
        let plen = bytes.get(start + 4..start + 8)?;
        let plen = u32::from_le_bytes(plen.try_into().ok()?) as usize;
        start.checked_add(plen.max(1)).filter(|next| *next < bytes.len())
    })
}

fn check_target(case: &Case, make: impl Fn(Digests) -> target::Connection) {
    for piece in [case.bytes.len(), 1, 7] {
        let mut target = make(case.digests);
        let error = refused(&mut target, &case.bytes, piece);
        check(case, error, |error| {
            let mut out = Vec::new();
            target.encode_term_req(error, &mut out);
            out
        });
        // Whatever follows is ignored.
        let step = target.poll(&capsule(NONE, 2, &[])).unwrap();
        assert_eq!((step.consumed, step.event), (72, target::Event::NeedMore), "{}", case.name);
    }
}

#[test]
fn target_common_header() {
    let data = [0x55; 64];
    let c = |digests| capsule(digests, 1, &data);
    let flush = |digests| capsule(digests, 0, &[]);
    let field = Fes::InvalidPduHeaderField;
    let plen = |mut pdu: Vec<u8>, plen: u32| {
        pdu[4..8].copy_from_slice(&plen.to_le_bytes());
        let crc = digest::crc32c(&pdu[..72]);
        if pdu[1] & 1 == 1 {
            pdu[72..76].copy_from_slice(&crc.to_le_bytes());
        }
        pdu
    };
    let cases = [
        case("reserved type 08h", NONE, with_byte(NONE, c(NONE), 0, 8), field, 0),
        case("reserved type FFh", NONE, with_byte(NONE, c(NONE), 0, 0xFF), field, 0),
        case("reserved type, digests", BOTH, with_byte(NONE, c(BOTH), 0, 0x0A), field, 0),
        case("C2HData from a host", NONE, with_byte(NONE, c(NONE), 0, 7), field, 0),
        case("R2T from a host", NONE, with_byte(NONE, c(NONE), 0, 9), field, 0),
        case("CapsuleResp from a host", NONE, with_byte(NONE, c(NONE), 0, 5), field, 0),
        case("ICResp from a host", NONE, with_byte(NONE, c(NONE), 0, 1), field, 0),
        case("C2HTermReq from a host", NONE, with_byte(NONE, c(NONE), 0, 3), field, 0),
        case("HDGSTF not negotiated", NONE, c(Digests { header: true, data: false }), field, 1),
        case("HDGSTF missing", BOTH, c(Digests { header: false, data: true }), field, 1),
        case("DDGSTF not negotiated", NONE, c(Digests { header: false, data: true }), field, 1),
        case("DDGSTF missing", BOTH, c(Digests { header: true, data: false }), field, 1),
        case("DDGSTF without data", BOTH, with_byte(BOTH, flush(BOTH), 1, 3), field, 1),
        case("HLEN too short", NONE, with_byte(NONE, c(NONE), 2, 24), field, 2),
        case("HLEN too long", NONE, with_byte(NONE, c(NONE), 2, 128), field, 2),
        case("HLEN 0", BOTH, with_byte(BOTH, c(BOTH), 2, 0), field, 2),
        case("PDO inside the header", NONE, with_byte(NONE, c(NONE), 3, 68), field, 3),
        case("PDO 0 with data", NONE, with_byte(NONE, c(NONE), 3, 0), field, 3),
        case("PDO inside HDGST", BOTH, with_byte(BOTH, c(BOTH), 3, 72), field, 3),
        case("PDO not aligned", NONE, with_byte(NONE, c(NONE), 3, 73), field, 3),
        case("PDO beyond the PDU", NONE, with_byte(NONE, c(NONE), 3, 140), field, 3),
        case("PDO without data", NONE, with_byte(NONE, flush(NONE), 3, 100), field, 3),
        case("PLEN 0", NONE, plen(c(NONE), 0), field, 4),
        case("PLEN below the header", NONE, plen(flush(NONE), 71), field, 4),
        case("PLEN below HDGST", BOTH, plen(flush(BOTH), 75), field, 4),
        case("PLEN at PDO", NONE, plen(with_byte(NONE, c(NONE), 3, 76), 76), field, 4),
        case("PLEN without DDGST", BOTH, plen(c(BOTH), 80), field, 4),
        case("PLEN of 4 GiB", NONE, plen(c(NONE), u32::MAX), field, 4),
        case("PLEN of 4 GiB, digests", BOTH, plen(c(BOTH), u32::MAX), field, 4),
        // Two mistakes: the lower offset is told.
        case("HLEN and PLEN", NONE, plen(with_byte(NONE, flush(NONE), 2, 1), 9), field, 2),
    ];
    cases.iter().for_each(|case| check_target(case, target_at_work));
}

/// What the first eight bytes give away is refused without waiting for more: a peer that claims a
/// short PDU would never send more. Only what a header digest protects waits for the digest.
#[test]
fn eight_bytes_are_enough() {
    let refused_early = |digests, offset: usize, value| {
        let mut start = capsule(digests, 2, &[]);
        start.truncate(8);
        start[offset] = value;
        refused(&mut target_at_work(digests), &start, 8).is_some()
    };
    for (digests, hdgst) in [(NONE, 0), (BOTH, 1)] {
        assert!(refused_early(digests, 0, 8));
        assert!(refused_early(digests, 1, 1 - hdgst));
        assert!(refused_early(digests, 2, 71));
        assert!(refused_early(digests, 4, 71));
        assert!(!refused_early(digests, 4, 72 + 4 * hdgst));
    }
    assert!(refused_early(NONE, 3, 5));
    assert!(refused_early(BOTH, 4, 75));
    assert!(refused_early(NONE, 6, 1));
    assert!(!refused_early(BOTH, 6, 1), "PLEN may be damaged: its digest decides");
    let too_long = capsule(NONE, 0x7F, &[0; 8196]);
    assert!(refused(&mut target_at_work(NONE), &too_long[..8], 8).is_some());
}

#[test]
fn target_capsules() {
    let field = Fes::InvalidPduHeaderField;
    let mut damaged = capsule(BOTH, 2, &[]);
    damaged[40] ^= 0x10;
    let received = u32::from_le_bytes([damaged[72], damaged[73], damaged[74], damaged[75]]);
    // PLEN is damaged, too, and must not be believed: the digest is the error.
    let mut damaged_length = capsule(BOTH, 2, &[]);
    damaged_length[5] ^= 0x10;
    let received_length = u32::from_le_bytes([
        damaged_length[72],
        damaged_length[73],
        damaged_length[74],
        damaged_length[75],
    ]);
    let cases = [
        case("I/O capsule above IOCCSZ", NONE, capsule(NONE, 1, &[0; 4100]), field, 4),
        case("capsule above 8 KiB", NONE, capsule(NONE, 0x7F, &[0; 8196]), field, 4),
        case("header digest", BOTH, damaged, Fes::HeaderDigestError, received),
        case(
            "header digest and PLEN",
            BOTH,
            damaged_length,
            Fes::HeaderDigestError,
            received_length,
        ),
        case("second ICReq", NONE, icreq(), Fes::PduSequenceError, 0),
    ];
    cases.iter().for_each(|case| check_target(case, target_at_work));
    // Fabrics commands may be longer than IOCCSZ; the admin queue has no other limit.
    let mut target = target_at_work(NONE);
    assert_eq!(refused(&mut target, &capsule(NONE, 0x7F, &[0; 8192]), 1000), None);
    assert_eq!(refused(&mut target, &capsule(NONE, 1, &[0; 4096]), 1000), None);
    let mut admin = target::Connection::new(target::Config::default()).unwrap();
    admin.poll(&icreq()).unwrap();
    assert_eq!(refused(&mut admin, &capsule(BOTH, 1, &[0; 8192]), 1000), None);
    let over = refused(&mut admin, &capsule(BOTH, 1, &[0; 8196]), 1000).unwrap();
    assert_eq!(*over.fault(), Fault::CapsuleTooLong { found_bytes: 8196, limit_bytes: 8192 });
}

/// IOCCSZ may allow more than fabrics commands may carry.
#[test]
fn fabrics_commands_keep_their_own_limit() {
    let mut target = target_at_work(NONE);
    target.set_io_queue(16_384);
    assert_eq!(refused(&mut target, &capsule(NONE, 1, &[0; 16_384]), 1000), None);
    let error = refused(&mut target, &capsule(NONE, 0x7F, &[0; 8196]), 1000).unwrap();
    assert_eq!(*error.fault(), Fault::CapsuleTooLong { found_bytes: 8196, limit_bytes: 8192 });
}

/// A queue with less in-capsule data than the fabrics minimum (spdk#1569: with in-capsule size 0
/// Connect's data was refused, too).
#[test]
fn no_in_capsule_data_on_an_io_queue() {
    let mut target = target_at_work(NONE);
    target.set_io_queue(0);
    assert_eq!(refused(&mut target, &capsule(NONE, 0x7F, &[0; 1024]), 100), None);
    let error = refused(&mut target, &capsule(NONE, 1, &[0; 4]), 100).unwrap();
    assert_eq!((error.status(), error.information()), (Some(Fes::InvalidPduHeaderField), 4));
}

#[test]
fn target_initialization() {
    let fresh = |_| target::Connection::new(target::Config::default()).unwrap();
    let field = Fes::InvalidPduHeaderField;
    let request = |offset: usize, value: u8| with_byte(NONE, icreq(), offset, value);
    let early = |pdu: Vec<u8>| pdu;
    let cases = [
        case("ICReq HLEN", NONE, request(2, 24), field, 2),
        case("ICReq PLEN", NONE, request(4, 127), field, 4),
        case("ICReq PLEN, high byte", NONE, request(7, 1), field, 4),
        case("PFV 1", NONE, request(8, 1), Fes::UnsupportedParameter, 8),
        case("PFV 0100h", NONE, request(9, 1), Fes::UnsupportedParameter, 8),
        case("HPDA 32", NONE, request(10, 32), field, 10),
        case("CapsuleCmd first", NONE, early(capsule(NONE, 2, &[])), Fes::PduSequenceError, 0),
        case("H2CData first", NONE, h2c(NONE, DATA, &[0; 64]), Fes::PduSequenceError, 0),
        case("ICResp first", NONE, request(0, 1), field, 0),
        case("noise", NONE, b"GET / HTTP/1.1\r\n\r\n".to_vec(), field, 0),
    ];
    cases.iter().for_each(|case| check_target(case, fresh));
    // Reserved bits and bytes are ignored.
    let mut target = fresh(NONE);
    let reserved = with_byte(NONE, with_byte(NONE, icreq(), 100, 1), 11, 0xFF);
    assert_eq!(refused(&mut target, &reserved, 128), None);
    assert_eq!(target.negotiated().unwrap().digests, BOTH);
}

#[test]
fn target_term_req() {
    let term = |plen: u32| {
        let mut pdu = vec![0; 200];
        (pdu[0], pdu[2]) = (2, 24);
        pdu[4..8].copy_from_slice(&plen.to_le_bytes());
        pdu[8] = 2;
        pdu
    };
    for plen in [0, 8, 23, 153, u32::MAX] {
        let case = Case {
            name: "PLEN of H2CTermReq",
            digests: BOTH,
            bytes: term(plen),
            fes: None,
            fei: 0,
        };
        check_target(&case, target_at_work);
    }
    for plen in [24, 25, 152] {
        let mut target = target_at_work(BOTH);
        let step = target.poll(&term(plen)).unwrap();
        assert!(matches!(step.event, target::Event::PeerTerminated(reason) if reason.fes == 2));
        assert_eq!(step.consumed, plen as usize);
    }
}

#[test]
fn target_h2c_data() {
    let d = |change: fn(&mut H2cDataFields)| {
        let mut fields = DATA;
        change(&mut fields);
        h2c(NONE, fields, &vec![0; fields.datal as usize])
    };
    let after_good = |bad: Vec<u8>| {
        let mut bytes = h2c(NONE, DATA, &[0; 64]);
        bytes.extend_from_slice(&bad);
        bytes
    };
    let after_last = |bad: Vec<u8>| {
        let all = H2cDataFields { datal: 4096, last: true, ..DATA };
        let mut bytes = h2c(NONE, all, &[0; 4096]);
        bytes.extend_from_slice(&bad);
        bytes
    };
    let (field, sequence) = (Fes::InvalidPduHeaderField, Fes::PduSequenceError);
    let range = Fes::DataTransferOutOfRange;
    let cases = [
        case("unknown TTAG", NONE, d(|f| f.ttag = 1), field, 10),
        case("TTAG of another generation", NONE, d(|f| f.ttag = 1 << 7), field, 10),
        case("TTAG beyond the table", NONE, d(|f| f.ttag = 0xFFFF), field, 10),
        case("CCCID of another command", NONE, d(|f| f.cccid = 8), field, 8),
        case("before the range", NONE, d(|f| f.datao = 0), range, 0),
        case("beyond the range", NONE, d(|f| f.datao = 8192 - 32), range, 0),
        case("offset overflows", NONE, d(|f| f.datao = u32::MAX - 3), range, 0),
        case("a gap", NONE, d(|f| f.datao = 4100), sequence, 0),
        case("the same again", NONE, after_good(d(|_| {})), sequence, 0),
        case("LAST too early", NONE, d(|f| f.last = true), sequence, 0),
        case("LAST missing", NONE, d(|f| f.datal = 4096), sequence, 0),
        case("above MAXH2CDATA", NONE, d(|f| f.datal = 4100), Fes::LimitExceeded, 0),
        case("data after LAST", NONE, after_last(d(|_| {})), sequence, 0),
        case("data behind LAST", NONE, after_last(d(|f| f.datao = 8192)), sequence, 0),
        case("DATAL is not the payload", NONE, with_byte(NONE, d(|_| {}), 16, 60), field, 16),
        case(
            "no payload",
            NONE,
            {
                let mut pdu = d(|_| {});
                pdu.truncate(24);
                pdu[4] = 24;
                pdu[16] = 0;
                pdu
            },
            field,
            4,
        ),
        case(
            "DDGSTF missing",
            BOTH,
            {
                let fields = DATA;
                h2c(Digests { header: true, data: false }, fields, &[0; 64])
            },
            field,
            1,
        ),
    ];
    cases.iter().for_each(|case| check_target(case, target_at_work));
}

/// CVE-2026-22998 and its like: data that no R2T asked for, on a connection with none
/// outstanding, is out of sequence and touches nothing.
#[test]
fn h2c_data_before_any_r2t() {
    let idle = |digests| {
        let config = target::Config { digests, ..Default::default() };
        let mut target = target::Connection::new(config).unwrap();
        target.poll(&icreq()).unwrap();
        target
    };
    let data = h2c(NONE, DATA, &[0; 64]);
    let case = case("H2CData without R2T", NONE, data, Fes::PduSequenceError, 0);
    check_target(&case, idle);
}

/// CPDA is the host's duty: payloads that do not keep to it are refused.
#[test]
fn host_must_align_to_cpda() {
    let cpda = PduAlignment::from_wire(15).unwrap();
    let make = || {
        let config = target::Config { cpda, digests: NONE, ..Default::default() };
        let mut target = target::Connection::new(config).unwrap();
        target.poll(&icreq()).unwrap();
        target
    };
    let error = refused(&mut make(), &capsule(NONE, 1, &[0; 64]), 1000).unwrap();
    assert_eq!((error.status(), error.information()), (Some(Fes::InvalidPduHeaderField), 3));
    let mut aligned = Vec::new();
    let encoder = Encoder { digests: NONE, alignment: cpda };
    encoder.capsule_cmd(&Sqe::new(1, 1), 64, &mut aligned);
    aligned.extend_from_slice(&[0; 64]);
    assert_eq!(refused(&mut make(), &aligned, 1000), None);
}

/// spdk#3886: a damaged payload ends its command, not the connection.
#[test]
fn a_damaged_payload_is_not_fatal() {
    let mut target = target_at_work(BOTH);
    let mut capsule = capsule(BOTH, 1, &[1; 512]);
    *capsule.last_mut().unwrap() ^= 1;
    let mut first = h2c(BOTH, H2cDataFields { datal: 2048, ..DATA }, &[2; 2048]);
    first[100] ^= 1;
    let rest = H2cDataFields { datao: 6144, datal: 2048, last: true, ..DATA };
    let second = h2c(BOTH, rest, &[3; 2048]);
    let stream = [capsule, first, second].concat();
    let mut ends = Vec::new();
    let mut at = 0;
    while at < stream.len() {
        let step = target.poll(&stream[at..]).unwrap();
        at += step.consumed;
        match step.event {
            target::Event::CapsuleEnd { digest } => ends.push(("capsule", digest)),
            target::Event::TransferDone { digest, cid: 9, .. } => ends.push(("write", digest)),
            _ => {}
        }
    }
    let mismatch = DigestCheck::Mismatch;
    assert_eq!(ends, [("capsule", mismatch), ("write", mismatch)]);
    assert_eq!(target.outstanding_transfers(), 0);
}

#[test]
fn r2ts_stay_within_the_hosts_limit() {
    let config = target::Config { max_transfers: 3, ..Default::default() };
    let mut target = target::Connection::new(config).unwrap();
    let mut out = Vec::new();
    let refused = target.encode_r2t(1, 0, 4, &mut out);
    assert_eq!(refused, Err(target::R2tRefused::NotInitialized));
    let fields = IcReqFields { hpda: PduAlignment::NONE, digests: NONE, max_r2t: 2 };
    let mut request = Vec::new();
    encode::ic_req(&fields, &mut request);
    target.poll(&request).unwrap();
    target.encode_r2t(1, 0, 64, &mut out).unwrap();
    target.encode_r2t(1, 64, 64, &mut out).unwrap();
    let refused = target.encode_r2t(1, 128, 64, &mut out);
    assert_eq!(refused, Err(target::R2tRefused::HostLimit { cid: 1, limit: 2 }));
    target.encode_r2t(2, 0, 64, &mut out).unwrap();
    let refused = target.encode_r2t(3, 0, 64, &mut out);
    assert_eq!(refused, Err(target::R2tRefused::NoTransfer));
    assert!(matches!(target.encode_r2t(4, 0, 0, &mut out), Err(target::R2tRefused::Range { .. })));
    let refused = target.encode_r2t(4, u32::MAX, 4, &mut out);
    assert!(matches!(refused, Err(target::R2tRefused::Range { .. })));
    assert_eq!(out.len(), 3 * 24, "a refused R2T writes nothing");
}

/// Tags come back in another generation, so that late data of an old R2T is told from new data.
#[test]
fn a_tag_is_not_reused_at_once() {
    let mut target = target_at_work(NONE);
    let mut seen = vec![DATA.ttag];
    for _ in 0..100 {
        let ttag = *seen.last().unwrap();
        let all = H2cDataFields { ttag, datal: 4096, last: true, ..DATA };
        assert_eq!(refused(&mut target, &h2c(NONE, all, &[0; 4096]), 8192), None);
        let next = target.encode_r2t(9, 4096, 4096, &mut Vec::new()).unwrap();
        assert!(!seen.contains(&next));
        seen.push(next);
    }
}

#[test]
fn success_needs_flow_control_off_and_the_last_pdu() {
    let mut target = target_at_work(NONE);
    let flags = |target: &target::Connection, last, success| {
        let mut out = Vec::new();
        let (_, response) = target.encode_c2h_header(1, 0, 64, last, success, &mut out);
        (out[1], response)
    };
    use target::Response::{InData, Needed};
    assert_eq!(flags(&target, true, true), (0b0100, Needed));
    target.set_sq_flow_control(true);
    assert_eq!(flags(&target, true, true), (0b1100, InData));
    assert_eq!(flags(&target, true, false), (0b0100, Needed));
    assert_eq!(flags(&target, false, true), (0b0000, Needed));
}

#[test]
fn a_wrong_configuration_is_refused() {
    let make = |max_h2c_data_bytes, max_transfers| {
        let config = target::Config { max_h2c_data_bytes, max_transfers, ..Default::default() };
        target::Connection::new(config).err()
    };
    assert_eq!(make(4092, 1), Some(target::ConfigError::MaxH2cData(4092)));
    assert_eq!(make(4097, 1), Some(target::ConfigError::MaxH2cData(4097)));
    assert_eq!(make(4096, 0), Some(target::ConfigError::MaxTransfers(0)));
    assert_eq!(make(4096, 32_769), Some(target::ConfigError::MaxTransfers(32_769)));
    assert_eq!(make(4096, 32_768), None);
}

fn icresp(digests: Digests) -> Vec<u8> {
    let mut out = Vec::new();
    let fields = IcRespFields { cpda: PduAlignment::NONE, digests, max_h2c_data_bytes: 4096 };
    encode::ic_resp(&fields, &mut out);
    out
}

/// A host with a read of 4096 bytes (command 1), a write of 8192 (2) and a flush (3) outstanding.
fn host_at_work(digests: Digests) -> host::Connection {
    let config = host::Config { digests, ..Default::default() };
    let mut host = host::Connection::new(config);
    host.poll(&icresp(digests)).unwrap();
    let mut out = Vec::new();
    for (cid, data) in [
        (1, CommandData::ToHost(4096)),
        (2, CommandData::ToController(8192)),
        (3, CommandData::None),
    ] {
        host.encode_command(&Sqe::new(2, cid), data, &mut out).unwrap();
    }
    host
}

fn check_host(case: &Case, make: impl Fn(Digests) -> host::Connection) {
    for piece in [case.bytes.len(), 1, 7] {
        let mut host = make(case.digests);
        let mut found = None;
        'pieces: for piece in case.bytes.chunks(piece) {
            let mut at = 0;
            loop {
                match host.poll(&piece[at..]) {
                    Err(error) => {
                        found = Some(error);
                        break 'pieces;
                    }
                    Ok(step) if step.event == host::Event::NeedMore => break,
                    Ok(step) => at += step.consumed,
                }
            }
        }
        check(case, found, |error| {
            let mut out = Vec::new();
            host.encode_term_req(error, &mut out);
            out
        });
    }
}

#[test]
fn host_initialization() {
    let field = Fes::InvalidPduHeaderField;
    let fresh = |digests| host::Connection::new(host::Config { digests, ..Default::default() });
    let response = |offset: usize, value: u8| with_byte(NONE, icresp(BOTH), offset, value);
    let cases = [
        case("PFV", BOTH, response(8, 1), Fes::UnsupportedParameter, 8),
        case("CPDA 32", BOTH, response(10, 32), field, 10),
        case("digest not asked for", NONE, response(11, 1), field, 11),
        case("data digest not asked for", NONE, response(11, 2), field, 11),
        case("MAXH2CDATA 4095", BOTH, with_byte(NONE, response(12, 0xFF), 13, 0x0F), field, 12),
        case("MAXH2CDATA 4098", BOTH, response(12, 2), field, 12),
        case("HLEN", BOTH, response(2, 24), field, 2),
        case("PLEN", BOTH, response(5, 1), field, 4),
        case("R2T first", BOTH, response(0, 9), Fes::PduSequenceError, 0),
        case("ICReq from a controller", BOTH, response(0, 0), field, 0),
    ];
    cases.iter().for_each(|case| check_host(case, fresh));
    let again = case("second ICResp", NONE, icresp(NONE), Fes::PduSequenceError, 0);
    check_host(&again, host_at_work);
}

#[test]
fn host_data_and_responses() {
    const READ: C2hDataFields =
        C2hDataFields { cccid: 1, datao: 0, datal: 64, last: false, success: false };
    let c2h = |change: fn(&mut C2hDataFields)| {
        let mut fields = READ;
        change(&mut fields);
        let mut out = Vec::new();
        encoder(NONE).c2h_data(&fields, &mut out);
        out.resize(out.len() + fields.datal as usize, 0);
        out
    };
    let r2t = |changes: &[R2tFields]| {
        let mut out = Vec::new();
        changes.iter().for_each(|fields| {
            encoder(NONE).r2t(fields, &mut out);
        });
        out
    };
    let response = |cid| {
        let mut out = Vec::new();
        encoder(NONE).capsule_resp(&Cqe::new(cid, Status::SUCCESS), &mut out);
        out
    };
    let ask = R2tFields { cccid: 2, ttag: 7, r2to: 0, r2tl: 4096 };
    let (field, sequence) = (Fes::InvalidPduHeaderField, Fes::PduSequenceError);
    let range = Fes::DataTransferOutOfRange;
    let cases = [
        case("unknown command", NONE, c2h(|f| f.cccid = 4), field, 8),
        case("command beyond the table", NONE, c2h(|f| f.cccid = 0xFFFF), field, 8),
        case("data of a write", NONE, c2h(|f| f.cccid = 2), sequence, 0),
        case("data of a flush", NONE, c2h(|f| f.cccid = 3), sequence, 0),
        case("a gap", NONE, c2h(|f| f.datao = 4), sequence, 0),
        case("beyond the buffer", NONE, c2h(|f| f.datao = 4096), range, 0),
        case("too much", NONE, c2h(|f| f.datal = 4100), range, 0),
        case("LAST missing at the end", NONE, c2h(|f| f.datal = 4096), sequence, 0),
        case(
            "data after LAST",
            NONE,
            [c2h(|f| f.last = true), c2h(|f| f.datao = 64)].concat(),
            sequence,
            0,
        ),
        case("SUCCESS without LAST", NONE, c2h(|f| f.success = true), field, 1),
        case("DATAL is not the payload", NONE, with_byte(NONE, c2h(|_| {}), 17, 1), field, 16),
        case("unknown response", NONE, response(4), field, 20),
        case("answered twice", NONE, [response(3), response(3)].concat(), field, 20),
        case("R2T of nothing", NONE, r2t(&[R2tFields { r2tl: 0, ..ask }]), field, 16),
        case("R2T for an unknown command", NONE, r2t(&[R2tFields { cccid: 5, ..ask }]), field, 8),
        case("R2T for a read", NONE, r2t(&[R2tFields { cccid: 1, ..ask }]), sequence, 0),
        case("R2T with a gap", NONE, r2t(&[R2tFields { r2to: 4, ..ask }]), sequence, 0),
        case("R2T beyond the data", NONE, r2t(&[R2tFields { r2tl: 8196, ..ask }]), range, 0),
        case(
            "one R2T too many",
            NONE,
            r2t(&[ask, R2tFields { r2to: 4096, ..ask }]),
            Fes::LimitExceeded,
            0,
        ),
        case("R2T with PLEN of data", NONE, with_byte(NONE, r2t(&[ask]), 4, 28), field, 4),
    ];
    cases.iter().for_each(|case| check_host(case, host_at_work));
}

/// A host finishes a read with a damaged payload and reports it (NVMe-TCP 1.0 §3.5).
#[test]
fn host_reports_a_damaged_read() {
    let mut host = host_at_work(BOTH);
    // The first PDU is damaged and the last is not: the command has failed all the same.
    let mut stream = Vec::new();
    for (datao, sent) in [(0, 8), (2048, 7)] {
        let last = datao > 0;
        let fields = C2hDataFields { cccid: 1, datao, datal: 2048, last, success: last };
        encoder(BOTH).c2h_data(&fields, &mut stream);
        stream.resize(stream.len() + 2048, 7);
        put_data_digest(&[sent; 2048], &mut stream);
    }
    let mut at = 0;
    loop {
        let step = host.poll(&stream[at..]).unwrap();
        at += step.consumed;
        if let host::Event::Completed(completion) = step.event {
            assert_eq!(completion.digest, DigestCheck::Mismatch);
            assert_eq!(completion.received_bytes, 4096);
            assert!(completion.by_success_flag);
            break;
        }
    }
    assert_eq!(at, stream.len());
    assert!(!host.is_outstanding(1));
}

/// H2CData goes out only where an R2T asked for it, and in PDUs of at most MAXH2CDATA.
#[test]
fn host_sends_only_what_was_asked_for() {
    let mut host = host_at_work(NONE);
    let r2t = R2tFields { cccid: 2, ttag: 7, r2to: 0, r2tl: 6144 };
    let mut out = Vec::new();
    assert!(host.encode_h2c_header(&r2t, 0, u32::MAX, &mut out).is_err());
    let mut wire = Vec::new();
    encoder(NONE).r2t(&r2t, &mut wire);
    assert_eq!(host.poll(&wire).unwrap().event, host::Event::ReadyToTransfer(r2t));
    let (_, first, last) = host.encode_h2c_header(&r2t, 0, u32::MAX, &mut out).unwrap();
    assert_eq!((first, last), (4096, false));
    let (_, small, last) = host.encode_h2c_header(&r2t, 4096, 1026, &mut out).unwrap();
    assert_eq!((small, last), (1024, false));
    let (_, rest, last) = host.encode_h2c_header(&r2t, 5120, u32::MAX, &mut out).unwrap();
    assert_eq!((rest, last), (1024, true));
    assert!(host.encode_h2c_header(&r2t, 0, u32::MAX, &mut out).is_err());
    // An identifier in use is not given away again.
    let refused = host.encode_command(&Sqe::new(2, 2), CommandData::None, &mut out);
    assert_eq!(refused, Err(host::CommandRefused::Identifier(2)));
}
