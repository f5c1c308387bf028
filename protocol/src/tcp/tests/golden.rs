//! Each PDU byte for byte, written down from the figures of NVMe-TCP 1.0 §3.6.2.

use crate::nvme::cqe::Cqe;
use crate::nvme::sqe::Sqe;
use crate::nvme::status::Status;
use crate::tcp::digest::{self, DataDigest};
use crate::tcp::encode::{self, Encoder};
use crate::tcp::error::{FatalError, Fault};
use crate::tcp::pdu::{Direction, PduAlignment, PduType};
use crate::tcp::rules::{C2hDataFields, H2cDataFields, IcReqFields, IcRespFields, R2tFields};
use crate::tcp::{Digests, MAX_PREFIX_BYTES};

const BOTH: Digests = Digests { header: true, data: true };

fn plain() -> Encoder {
    Encoder::default()
}

fn digested(wire_alignment: u8) -> Encoder {
    Encoder { digests: BOTH, alignment: PduAlignment::from_wire(wire_alignment).unwrap() }
}

fn bytes(write: impl FnOnce(&mut Vec<u8>) -> usize) -> Vec<u8> {
    let mut out = Vec::new();
    let written = write(&mut out);
    assert_eq!(written, out.len());
    out
}

/// The check values of RFC 3720 §B.4 and of the CRC catalogue.
#[test]
fn crc32c_check_values() {
    assert_eq!(digest::crc32c(b"123456789"), 0xE306_9283);
    assert_eq!(digest::crc32c(&[0x00; 32]), 0x8A91_36AA);
    assert_eq!(digest::crc32c(&[0xFF; 32]), 0x62A8_AB43);
    let ascending: Vec<u8> = (0..32).collect();
    assert_eq!(digest::crc32c(&ascending), 0x46DD_794E);
    let mut pieces = DataDigest::new();
    pieces.update(&ascending[..5]);
    pieces.update(&[]);
    pieces.update(&ascending[5..]);
    assert_eq!(pieces.value(), 0x46DD_794E);
}

#[test]
fn icreq() {
    let fields = IcReqFields {
        hpda: PduAlignment::from_wire(15).unwrap(),
        digests: Digests { header: false, data: true },
        max_r2t: 4,
    };
    let pdu = bytes(|out| encode::ic_req(&fields, out));
    assert_eq!(pdu[..16], [0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 15, 2, 3, 0, 0, 0]);
    assert_eq!(pdu[16..], [0; 112]);
}

#[test]
fn icresp() {
    let fields = IcRespFields {
        cpda: PduAlignment::NONE,
        digests: Digests { header: true, data: false },
        max_h2c_data_bytes: 0x2_0000,
    };
    let pdu = bytes(|out| encode::ic_resp(&fields, out));
    assert_eq!(pdu[..16], [1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2, 0]);
    assert_eq!(pdu[16..], [0; 112]);
}

#[test]
fn capsule_cmd() {
    let sqe = Sqe::new(0x02, 0x1234);
    let pdu = bytes(|out| plain().capsule_cmd(&sqe, 0, out));
    assert_eq!(pdu[..8], [4, 0, 72, 0, 72, 0, 0, 0]);
    assert_eq!(pdu[8..], sqe.to_bytes());

    let pdu = bytes(|out| plain().capsule_cmd(&sqe, 4096, out));
    assert_eq!(pdu[..8], [4, 0, 72, 72, 0x48, 0x10, 0, 0]);
    assert_eq!(pdu.len(), 72);

    // Header digest, data digest, payload aligned to 64 bytes: it begins at 128.
    let pdu = bytes(|out| digested(15).capsule_cmd(&sqe, 512, out));
    assert_eq!(pdu[..8], [4, 0b11, 72, 128, 0x84, 0x02, 0, 0]);
    assert_eq!(pdu[72..76], digest::crc32c(&pdu[..72]).to_le_bytes());
    assert_eq!(pdu[76..], [0; 52]);
}

#[test]
fn capsule_resp() {
    let cqe = Cqe::new(7, Status::SUCCESS).with_sqhd(9);
    let pdu = bytes(|out| plain().capsule_resp(&cqe, out));
    assert_eq!(pdu[..8], [5, 0, 24, 0, 24, 0, 0, 0]);
    assert_eq!(pdu[8..], cqe.to_bytes());
    // No payload, hence neither padding nor DDGSTF.
    let pdu = bytes(|out| digested(31).capsule_resp(&cqe, out));
    assert_eq!(pdu[..8], [5, 1, 24, 0, 28, 0, 0, 0]);
    assert_eq!(pdu[24..], digest::crc32c(&pdu[..24]).to_le_bytes());
}

#[test]
fn h2c_data() {
    let fields = H2cDataFields { cccid: 3, ttag: 0x0201, datao: 0x1000, datal: 8, last: true };
    let pdu = bytes(|out| plain().h2c_data(&fields, out));
    assert_eq!(pdu[..8], [6, 4, 24, 24, 32, 0, 0, 0]);
    assert_eq!(pdu[8..], [3, 0, 1, 2, 0, 0x10, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    // The example of §3.3, Figure 8: CPDA 0Fh asks for 40 bytes of padding.
    let aligned =
        Encoder { digests: Digests::default(), alignment: PduAlignment::from_wire(0x0F).unwrap() };
    let pdu = bytes(|out| aligned.h2c_data(&fields, out));
    assert_eq!((pdu[3], pdu.len()), (64, 64));
}

#[test]
fn c2h_data() {
    let fields = C2hDataFields { cccid: 3, datao: 16, datal: 8, last: true, success: true };
    let pdu = bytes(|out| plain().c2h_data(&fields, out));
    assert_eq!(pdu[..8], [7, 0b1100, 24, 24, 32, 0, 0, 0]);
    assert_eq!(pdu[8..], [3, 0, 0, 0, 16, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    let more = C2hDataFields { last: false, success: false, ..fields };
    let pdu = bytes(|out| digested(0).c2h_data(&more, out));
    assert_eq!(pdu[..8], [7, 0b0011, 24, 28, 40, 0, 0, 0]);
    // Figure 9: HPDA 03h asks for 8 bytes of padding.
    let aligned =
        Encoder { digests: Digests::default(), alignment: PduAlignment::from_wire(3).unwrap() };
    let pdu = bytes(|out| aligned.c2h_data(&fields, out));
    assert_eq!((pdu[3], pdu.len()), (32, 32));
}

#[test]
fn r2t() {
    let fields = R2tFields { cccid: 3, ttag: 4, r2to: 0x2000, r2tl: 0x1000 };
    let pdu = bytes(|out| plain().r2t(&fields, out));
    assert_eq!(pdu[..8], [9, 0, 24, 0, 24, 0, 0, 0]);
    assert_eq!(pdu[8..], [3, 0, 4, 0, 0, 0x20, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn term_req() {
    let error = FatalError::new(Fault::ReservedType { code: 8 }, &[8, 0, 24, 0, 24, 0, 0, 0]);
    let pdu = bytes(|out| encode::term_req(Direction::ControllerToHost, &error, out));
    assert_eq!(pdu[..8], [3, 0, 24, 0, 32, 0, 0, 0]);
    assert_eq!(pdu[8..24], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(pdu[24..], [8, 0, 24, 0, 24, 0, 0, 0]);
    // The header digest that was received is the error's information.
    let fault =
        Fault::HeaderDigest { pdu: PduType::CapsuleCmd, received: 0x0403_0201, computed: 0 };
    let error = FatalError::new(fault, &[4; 300]);
    let pdu = bytes(|out| encode::term_req(Direction::HostToController, &error, out));
    assert_eq!(pdu[..14], [2, 0, 24, 0, 152, 0, 0, 0, 3, 0, 1, 2, 3, 4]);
    assert_eq!(pdu.len(), 152);
}

/// Callers reserve so much in front of a payload.
#[test]
fn no_prefix_is_longer_than_promised() {
    for wire in 0..=31 {
        let sqe = Sqe::new(1, 1);
        let pdu = bytes(|out| digested(wire).capsule_cmd(&sqe, 4, out));
        assert!(pdu.len() <= MAX_PREFIX_BYTES);
        assert_eq!(usize::from(pdu[3]), pdu.len());
    }
}
