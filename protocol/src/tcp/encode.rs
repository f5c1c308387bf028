//! PDUs to be sent: header, HDGST and padding, written without allocation.
//!
//! Each encoder appends to a [`BufMut`] whatever stands in front of the payload and returns the
//! number of bytes written; at most [`super::MAX_PREFIX_BYTES`], TermReq excepted, which is whole
//! and at most [`super::TERM_REQ_MAX_BYTES`]. The caller sends the payload from where it lies and,
//! if [`Encoder::has_data_digest`], its digest after it: [`put_data_digest`] for a payload in one
//! piece, [`super::DataDigest`] otherwise.
//!
//! The encoders check nothing: [`super::target`] and [`super::host`] see to it that only PDUs
//! which the peer expects are made.

use bytes::BufMut;
use zerocopy::{Immutable, IntoBytes};

use super::error::FatalError;
use super::pdu::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, DigestOptions, Direction, H2cData, IcReq,
    IcResp, PduAlignment, PduFlags, PduType, R2t, TermReq,
};
use super::rules::{C2hDataFields, H2cDataFields, IcReqFields, IcRespFields, R2tFields};
use super::{DIGEST_BYTES, DataDigest, Digests, digest};
use crate::nvme::cqe::Cqe;
use crate::nvme::sqe::Sqe;

/// How this end writes its PDUs: what was negotiated, for the outgoing direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoder {
    /// Digests in use.
    pub digests: Digests,
    /// Alignment of the payload: HPDA at a target, CPDA at a host.
    pub alignment: PduAlignment,
}

impl Encoder {
    /// Whether DDGST must follow each payload.
    #[inline]
    pub fn has_data_digest(&self) -> bool {
        self.digests.data
    }

    /// A CapsuleCmd, of which `in_capsule_bytes` of payload follow.
    pub fn capsule_cmd(&self, sqe: &Sqe, in_capsule_bytes: u32, out: &mut impl BufMut) -> usize {
        let none = PduFlags::empty();
        let (ch, pad) = self.common(PduType::CapsuleCmd, none, in_capsule_bytes);
        self.put(&CapsuleCmd { ch, ccsqe: *sqe }, pad, out)
    }

    /// A CapsuleResp.
    pub fn capsule_resp(&self, cqe: &Cqe, out: &mut impl BufMut) -> usize {
        let (ch, pad) = self.common(PduType::CapsuleResp, PduFlags::empty(), 0);
        self.put(&CapsuleResp { ch, rccqe: *cqe }, pad, out)
    }

    /// The front of an H2CData PDU.
    pub fn h2c_data(&self, data: &H2cDataFields, out: &mut impl BufMut) -> usize {
        let flags = PduFlags::empty().with_if(PduFlags::LAST_PDU, data.last);
        let (ch, pad) = self.common(PduType::H2cData, flags, data.datal);
        let header = H2cData {
            ch,
            cccid: data.cccid.into(),
            ttag: data.ttag.into(),
            datao: data.datao.into(),
            datal: data.datal.into(),
            reserved: [0; 4],
        };
        self.put(&header, pad, out)
    }

    /// The front of a C2HData PDU.
    pub fn c2h_data(&self, data: &C2hDataFields, out: &mut impl BufMut) -> usize {
        let flags = PduFlags::empty()
            .with_if(PduFlags::LAST_PDU, data.last)
            .with_if(PduFlags::SUCCESS, data.success);
        let (ch, pad) = self.common(PduType::C2hData, flags, data.datal);
        let header = C2hData {
            ch,
            cccid: data.cccid.into(),
            reserved: [0; 2],
            datao: data.datao.into(),
            datal: data.datal.into(),
            reserved2: [0; 4],
        };
        self.put(&header, pad, out)
    }

    /// An R2T.
    pub fn r2t(&self, r2t: &R2tFields, out: &mut impl BufMut) -> usize {
        let (ch, pad) = self.common(PduType::R2t, PduFlags::empty(), 0);
        let header = R2t {
            ch,
            cccid: r2t.cccid.into(),
            ttag: r2t.ttag.into(),
            r2to: r2t.r2to.into(),
            r2tl: r2t.r2tl.into(),
            reserved: [0; 4],
        };
        self.put(&header, pad, out)
    }

    /// The common header of a PDU with so much payload, and the padding in front of that.
    #[inline]
    fn common(&self, pdu: PduType, flags: PduFlags, payload_bytes: u32) -> (CommonHeader, usize) {
        let carries = payload_bytes > 0;
        let digest = DIGEST_BYTES as u32;
        let header_bytes = u32::from(pdu.hlen()) + if self.digests.header { digest } else { 0 };
        let pdo = if carries { self.alignment.align(header_bytes) } else { 0 };
        let trailer = if carries && self.digests.data { digest } else { 0 };
        let plen = if carries { pdo + payload_bytes + trailer } else { header_bytes };
        let ch = CommonHeader {
            pdu_type: pdu.code(),
            flags: flags
                .with_if(PduFlags::HDGSTF, self.digests.header)
                .with_if(PduFlags::DDGSTF, carries && self.digests.data),
            hlen: pdu.hlen(),
            // At most 128, the largest alignment: 76 rounds up to no more.
            pdo: pdo as u8,
            plen: plen.into(),
        };
        (ch, pdo.saturating_sub(header_bytes) as usize)
    }

    /// Writes header, HDGST and padding.
    #[inline]
    fn put<H>(&self, header: &H, pad_bytes: usize, out: &mut impl BufMut) -> usize
    where
        H: IntoBytes + Immutable,
    {
        let header = header.as_bytes();
        let mut written = header.len();
        out.put_slice(header);
        if self.digests.header {
            out.put_u32_le(digest::crc32c(header));
            written += DIGEST_BYTES;
        }
        if pad_bytes > 0 {
            out.put_bytes(0, pad_bytes);
            written += pad_bytes;
        }
        written
    }
}

/// Writes the digest of a payload that lies in one piece.
pub fn put_data_digest(payload: &[u8], out: &mut impl BufMut) -> usize {
    out.put_u32_le(digest::crc32c(payload));
    DIGEST_BYTES
}

/// Writes the digest of a payload that was taken in piece by piece.
pub fn put_data_digest_value(payload: &DataDigest, out: &mut impl BufMut) -> usize {
    out.put_u32_le(payload.value());
    DIGEST_BYTES
}

/// The common header of ICReq, ICResp and TermReq: no flags, no PDO.
fn plain(pdu: PduType, plen: u32) -> CommonHeader {
    CommonHeader {
        pdu_type: pdu.code(),
        flags: PduFlags::empty(),
        hlen: pdu.hlen(),
        pdo: 0,
        plen: plen.into(),
    }
}

/// An ICReq.
pub fn ic_req(fields: &IcReqFields, out: &mut impl BufMut) -> usize {
    let header = IcReq {
        ch: plain(PduType::IcReq, IcReq::HLEN.into()),
        pfv: 0.into(),
        hpda: fields.hpda.wire(),
        dgst: DigestOptions::from_digests(fields.digests),
        maxr2t: fields.max_r2t.saturating_sub(1).into(),
        reserved: [0; 112],
    };
    out.put_slice(header.as_bytes());
    size_of::<IcReq>()
}

/// An ICResp.
pub fn ic_resp(fields: &IcRespFields, out: &mut impl BufMut) -> usize {
    let header = IcResp {
        ch: plain(PduType::IcResp, IcResp::HLEN.into()),
        pfv: 0.into(),
        cpda: fields.cpda.wire(),
        dgst: DigestOptions::from_digests(fields.digests),
        maxh2cdata: fields.max_h2c_data_bytes.into(),
        reserved: [0; 112],
    };
    out.put_slice(header.as_bytes());
    size_of::<IcResp>()
}

/// The TermReq that tells the peer of its mistake, or nothing if the fault is not reported.
pub fn term_req(sender: Direction, error: &FatalError, out: &mut impl BufMut) -> usize {
    let Some(status) = error.status() else {
        return 0;
    };
    let pdu = match sender {
        Direction::HostToController => PduType::H2cTermReq,
        Direction::ControllerToHost => PduType::C2hTermReq,
    };
    let offending = error.header();
    let written = size_of::<TermReq>() + offending.len();
    let header = TermReq {
        ch: plain(pdu, written as u32),
        fes: status.wire().into(),
        fei: error.information().into(),
        reserved: [0; 10],
    };
    out.put_slice(header.as_bytes());
    out.put_slice(offending);
    written
}
