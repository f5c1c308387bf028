//! Which PDU header is admissible under what a connection has negotiated. Pure.
//!
//! A header is judged in two steps. [`Rules::frame`] looks at the common header alone and says
//! how many bytes the whole header has. With header digests it checks only what is needed to find
//! the digest, because a damaged header must be reported as such and not by its symptoms; without
//! them it checks every length at once, so that a bad PDU is refused after eight bytes.
//! [`Rules::parse`] then checks the digest and the rest, and gives the typed header.
//!
//! Reserved fields and flags are ignored, as the specification lets a recipient do. Where several
//! fields are wrong, the one with the lowest offset is reported (NVMe-TCP 1.0 Figures 22 and 23).
//!
//! Not here: whether a data PDU belongs to an outstanding command. That is up to
//! [`super::target`] and [`super::host`].

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::error::{Fault, Termination};
use super::pdu::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, DigestOptions, Direction, H2cData, IcReq,
    IcResp, PduAlignment, PduFlags, PduType, R2t, TermReq,
};
use super::{
    ADMIN_IN_CAPSULE_BYTES, DIGEST_BYTES, Digests, MIN_MAXH2CDATA_BYTES, TERM_REQ_MAX_BYTES, digest,
};
use crate::nvme::cqe::Cqe;
use crate::nvme::sqe::Sqe;

/// Opcode of every fabrics command (NVMe Base 2.1, "Fabrics Command Set").
const FABRICS_OPCODE: u8 = 0x7F;

/// A received PDU header, judged and typed. Payload length and padding stand beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// The host opens the connection.
    IcReq(IcReqFields),
    /// The controller accepts it.
    IcResp(IcRespFields),
    /// The peer has found a fatal mistake of ours (H2CTermReq or C2HTermReq).
    TermReq(Termination),
    /// A command, perhaps with in-capsule data.
    CapsuleCmd(Sqe),
    /// A response.
    CapsuleResp(Cqe),
    /// Data that an R2T asked for.
    H2cData(H2cDataFields),
    /// Data of a command.
    C2hData(C2hDataFields),
    /// The controller asks for data.
    R2t(R2tFields),
}

/// The fields of ICReq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcReqFields {
    /// Alignment that the host wants in C2HData.
    pub hpda: PduAlignment,
    /// Digests that it asks for.
    pub digests: Digests,
    /// Outstanding R2Ts that it accepts per command, at least 1.
    pub max_r2t: u32,
}

/// The fields of ICResp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcRespFields {
    /// Alignment that the controller wants in CapsuleCmd and H2CData.
    pub cpda: PduAlignment,
    /// Digests that it grants.
    pub digests: Digests,
    /// MAXH2CDATA in bytes.
    pub max_h2c_data_bytes: u32,
}

/// The fields of H2CData.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H2cDataFields {
    /// Command identifier.
    pub cccid: u16,
    /// Transfer tag.
    pub ttag: u16,
    /// Offset in the command's data buffer in bytes.
    pub datao: u32,
    /// Payload length in bytes, not 0.
    pub datal: u32,
    /// LAST_PDU.
    pub last: bool,
}

/// The fields of C2HData.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct C2hDataFields {
    /// Command identifier.
    pub cccid: u16,
    /// Offset in the command's data buffer in bytes.
    pub datao: u32,
    /// Payload length in bytes, not 0.
    pub datal: u32,
    /// LAST_PDU.
    pub last: bool,
    /// SUCCESS; only with `last`.
    pub success: bool,
}

/// The fields of R2T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2tFields {
    /// Command identifier.
    pub cccid: u16,
    /// Transfer tag.
    pub ttag: u16,
    /// Offset in the command's data buffer in bytes.
    pub r2to: u32,
    /// Bytes asked for, not 0.
    pub r2tl: u32,
}

/// How long a header is, known from its first eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The PDU's type.
    pub pdu: PduType,
    /// Bytes to collect before [`Rules::parse`]: header and HDGST; for a TermReq the whole PDU.
    pub header_bytes: usize,
}

/// A judged header and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The typed header.
    pub pdu: Pdu,
    /// Padding between the header and the payload in bytes.
    pub pad_bytes: u32,
    /// Payload in bytes.
    pub payload_bytes: u32,
    /// DDGST follows the payload.
    pub data_digest: bool,
}

/// What one end of a connection accepts at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The direction of the PDUs that this end receives.
    pub direction: Direction,
    /// ICReq (at a target) or ICResp (at a host) has been received.
    pub initialized: bool,
    /// Digests in use.
    pub digests: Digests,
    /// At a host: digests that ICReq asked for.
    pub asked_digests: Digests,
    /// Alignment of received payloads: CPDA at a target, HPDA at a host.
    pub alignment: PduAlignment,
    /// In-capsule data accepted on an I/O queue in bytes. `None` on the admin queue and before
    /// Connect: [`ADMIN_IN_CAPSULE_BYTES`], which hold for fabrics commands anyway.
    pub io_in_capsule_bytes: Option<u32>,
    /// The largest H2CData payload in bytes.
    pub max_h2c_data_bytes: u32,
}

/// Where the payload of a PDU lies.
#[derive(Clone, Copy)]
struct Geometry {
    pad_bytes: u32,
    payload_bytes: u32,
    data_digest: bool,
}

impl Rules {
    /// Rules of an end that has negotiated nothing yet.
    pub fn new(direction: Direction) -> Self {
        Self {
            direction,
            initialized: false,
            digests: Digests::default(),
            asked_digests: Digests::default(),
            alignment: PduAlignment::NONE,
            io_in_capsule_bytes: None,
            max_h2c_data_bytes: MIN_MAXH2CDATA_BYTES,
        }
    }

    /// Judges the first eight bytes of a PDU, as far as they can be trusted.
    #[inline]
    pub fn frame(&self, start: &[u8; CommonHeader::BYTES]) -> Result<Frame, Fault> {
        let ch: CommonHeader = zerocopy::transmute!(*start);
        let pdu = self.admit_type(ch.pdu_type)?;
        if matches!(pdu, PduType::H2cTermReq | PduType::C2hTermReq) {
            let found = ch.plen.get();
            let header_bytes = found as usize;
            if !(TermReq::HLEN as usize..=TERM_REQ_MAX_BYTES).contains(&header_bytes) {
                return Err(Fault::MalformedTermReq { pdu, found });
            }
            return Ok(Frame { pdu, header_bytes });
        }
        let header_digest = self.has_header_digest(pdu);
        if pdu.is_digested() && ch.flags.contains(PduFlags::HDGSTF) != header_digest {
            return Err(Fault::HeaderDigestFlag { pdu, expected: header_digest });
        }
        if header_digest {
            self.check_hlen(pdu, &ch)?;
            if ch.plen.get() < self.full_header_bytes(pdu) {
                return Err(Fault::PduLength { pdu, found: ch.plen.get() });
            }
        } else {
            self.geometry(pdu, &ch)?;
        }
        Ok(Frame { pdu, header_bytes: self.full_header_bytes(pdu) as usize })
    }

    /// Judges a whole header: the bytes that [`Rules::frame`] asked for.
    #[inline]
    pub fn parse(&self, header: &[u8]) -> Result<Parsed, Fault> {
        let ch: &CommonHeader = view(header)?;
        let pdu = self.admit_type(ch.pdu_type)?;
        if self.has_header_digest(pdu) {
            check_header_digest(pdu, header)?;
        }
        let mut parsed = Parsed {
            pdu: Pdu::TermReq(Termination { fes: 0, fei: 0 }),
            pad_bytes: 0,
            payload_bytes: 0,
            data_digest: false,
        };
        if !matches!(pdu, PduType::H2cTermReq | PduType::C2hTermReq) {
            let geometry = self.geometry(pdu, ch)?;
            parsed.pad_bytes = geometry.pad_bytes;
            parsed.payload_bytes = geometry.payload_bytes;
            parsed.data_digest = geometry.data_digest;
        }
        parsed.pdu = self.fields(pdu, header, parsed.payload_bytes)?;
        Ok(parsed)
    }

    /// Whether PDUs of this type carry HDGST now.
    #[inline]
    fn has_header_digest(&self, pdu: PduType) -> bool {
        self.digests.header && pdu.is_digested()
    }

    /// Header and HDGST in bytes.
    #[inline]
    fn full_header_bytes(&self, pdu: PduType) -> u32 {
        let digest = if self.has_header_digest(pdu) { DIGEST_BYTES as u32 } else { 0 };
        u32::from(pdu.hlen()) + digest
    }

    /// Refuses reserved types, the wrong direction and the wrong moment.
    #[inline]
    fn admit_type(&self, code: u8) -> Result<PduType, Fault> {
        let pdu = PduType::from_code(code).ok_or(Fault::ReservedType { code })?;
        if pdu.direction() != self.direction {
            return Err(Fault::WrongDirection { pdu });
        }
        match pdu {
            PduType::H2cTermReq | PduType::C2hTermReq => {}
            PduType::IcReq | PduType::IcResp if self.initialized => {
                return Err(Fault::AlreadyInitialized { pdu });
            }
            PduType::IcReq | PduType::IcResp => {}
            _ if !self.initialized => return Err(Fault::NotInitialized { pdu }),
            _ => {}
        }
        Ok(pdu)
    }

    #[inline]
    fn check_hlen(&self, pdu: PduType, ch: &CommonHeader) -> Result<(), Fault> {
        if ch.hlen == pdu.hlen() {
            Ok(())
        } else {
            Err(Fault::HeaderLength { pdu, found: ch.hlen })
        }
    }

    /// Checks flags, lengths and the payload's offset against each other, lowest offset first.
    #[inline]
    fn geometry(&self, pdu: PduType, ch: &CommonHeader) -> Result<Geometry, Fault> {
        let header_bytes = self.full_header_bytes(pdu);
        let (plen, pdo) = (ch.plen.get(), u32::from(ch.pdo));
        let carries = match pdu {
            PduType::H2cData | PduType::C2hData => true,
            PduType::CapsuleCmd => plen > header_bytes,
            _ => false,
        };
        let may_carry = carries || pdu == PduType::CapsuleCmd;
        let data_digest = carries && self.digests.data;
        if may_carry && ch.flags.contains(PduFlags::DDGSTF) != data_digest {
            return Err(Fault::DataDigestFlag { pdu, expected: data_digest });
        }
        if pdu == PduType::C2hData
            && ch.flags.contains(PduFlags::SUCCESS)
            && !ch.flags.contains(PduFlags::LAST_PDU)
        {
            return Err(Fault::SuccessWithoutLast);
        }
        self.check_hlen(pdu, ch)?;
        if !carries {
            // Where there is no payload PDO is 0; the offset that a payload would have is
            // tolerated in a capsule, whose PDO is not reserved.
            if may_carry && pdo != 0 && pdo != self.alignment.align(header_bytes) {
                return Err(Fault::DataOffsetField { pdu, found: ch.pdo });
            }
            if plen != header_bytes {
                return Err(Fault::PduLength { pdu, found: plen });
            }
            return Ok(Geometry { pad_bytes: 0, payload_bytes: 0, data_digest: false });
        }
        if pdo < header_bytes || !pdo.is_multiple_of(self.alignment.bytes()) || pdo > plen {
            return Err(Fault::DataOffsetField { pdu, found: ch.pdo });
        }
        let trailer = if data_digest { DIGEST_BYTES as u32 } else { 0 };
        let payload_bytes = (plen - pdo).saturating_sub(trailer);
        if payload_bytes == 0 {
            return Err(Fault::PduLength { pdu, found: plen });
        }
        if pdu == PduType::CapsuleCmd {
            let most = self.io_in_capsule_bytes.unwrap_or(0).max(ADMIN_IN_CAPSULE_BYTES);
            check_capsule(payload_bytes, most)?;
        }
        Ok(Geometry { pad_bytes: pdo - header_bytes, payload_bytes, data_digest })
    }

    /// The typed fields of a header whose lengths are right.
    #[inline]
    fn fields(&self, pdu: PduType, header: &[u8], payload_bytes: u32) -> Result<Pdu, Fault> {
        Ok(match pdu {
            PduType::CapsuleCmd => {
                let ccsqe = view::<CapsuleCmd>(header)?.ccsqe;
                if let Some(limit) = self.io_in_capsule_bytes
                    && ccsqe.opcode != FABRICS_OPCODE
                {
                    check_capsule(payload_bytes, limit)?;
                }
                if ccsqe.opcode == FABRICS_OPCODE || self.io_in_capsule_bytes.is_none() {
                    check_capsule(payload_bytes, ADMIN_IN_CAPSULE_BYTES)?;
                }
                Pdu::CapsuleCmd(ccsqe)
            }
            PduType::H2cData => Pdu::H2cData(self.h2c_data(view(header)?, payload_bytes)?),
            PduType::CapsuleResp => Pdu::CapsuleResp(view::<CapsuleResp>(header)?.rccqe),
            PduType::C2hData => Pdu::C2hData(c2h_data(view(header)?, payload_bytes)?),
            PduType::R2t => Pdu::R2t(r2t(view(header)?)?),
            PduType::IcReq => Pdu::IcReq(ic_req(view(header)?)?),
            PduType::IcResp => Pdu::IcResp(ic_resp(view(header)?, self.asked_digests)?),
            PduType::H2cTermReq | PduType::C2hTermReq => {
                let term: &TermReq = view(header)?;
                Pdu::TermReq(Termination { fes: term.fes.get(), fei: term.fei.get() })
            }
        })
    }

    /// That DATAO and DATAL are multiples of four is not demanded: commands exist whose data is
    /// not, and nothing here depends on it.
    #[inline]
    fn h2c_data(&self, wire: &H2cData, payload_bytes: u32) -> Result<H2cDataFields, Fault> {
        let datal = wire.datal.get();
        if datal > self.max_h2c_data_bytes {
            return Err(Fault::DataLimit { found: datal, limit_bytes: self.max_h2c_data_bytes });
        }
        if datal != payload_bytes {
            return Err(Fault::DataLength { pdu: PduType::H2cData, found: datal });
        }
        Ok(H2cDataFields {
            cccid: wire.cccid.get(),
            ttag: wire.ttag.get(),
            datao: wire.datao.get(),
            datal,
            last: wire.ch.flags.contains(PduFlags::LAST_PDU),
        })
    }
}

/// The header as a wire struct. The frame has seen to its length; should it be short after all,
/// that is a wrong PDU and no reason to panic.
#[inline]
fn view<T: FromBytes + KnownLayout + Immutable + zerocopy::Unaligned>(
    header: &[u8],
) -> Result<&T, Fault> {
    T::ref_from_prefix(header).map(|(view, _)| view).map_err(|_| {
        let code = header.first().copied().unwrap_or_default();
        match PduType::from_code(code) {
            Some(pdu) => Fault::PduLength { pdu, found: header.len() as u32 },
            None => Fault::ReservedType { code },
        }
    })
}

/// HDGST covers the header's HLEN bytes and stands behind them.
#[inline]
fn check_header_digest(pdu: PduType, header: &[u8]) -> Result<(), Fault> {
    let Some((covered, received)) = header.split_last_chunk::<DIGEST_BYTES>() else {
        return Err(Fault::PduLength { pdu, found: header.len() as u32 });
    };
    let (received, computed) = (u32::from_le_bytes(*received), digest::crc32c(covered));
    if received == computed { Ok(()) } else { Err(Fault::HeaderDigest { pdu, received, computed }) }
}

#[inline]
fn check_capsule(found_bytes: u32, limit_bytes: u32) -> Result<(), Fault> {
    if found_bytes > limit_bytes {
        Err(Fault::CapsuleTooLong { found_bytes, limit_bytes })
    } else {
        Ok(())
    }
}

#[inline]
fn c2h_data(wire: &C2hData, payload_bytes: u32) -> Result<C2hDataFields, Fault> {
    let datal = wire.datal.get();
    if datal != payload_bytes {
        return Err(Fault::DataLength { pdu: PduType::C2hData, found: datal });
    }
    Ok(C2hDataFields {
        cccid: wire.cccid.get(),
        datao: wire.datao.get(),
        datal,
        last: wire.ch.flags.contains(PduFlags::LAST_PDU),
        success: wire.ch.flags.contains(PduFlags::SUCCESS),
    })
}

fn r2t(wire: &R2t) -> Result<R2tFields, Fault> {
    let r2tl = wire.r2tl.get();
    if r2tl == 0 {
        return Err(Fault::DataLength { pdu: PduType::R2t, found: r2tl });
    }
    Ok(R2tFields { cccid: wire.cccid.get(), ttag: wire.ttag.get(), r2to: wire.r2to.get(), r2tl })
}

fn check_format(pfv: u16) -> Result<(), Fault> {
    if pfv == 0 { Ok(()) } else { Err(Fault::FormatVersion { found: pfv }) }
}

fn alignment(value: u8) -> Result<PduAlignment, Fault> {
    PduAlignment::from_wire(value).ok_or(Fault::Alignment { found: value })
}

fn ic_req(wire: &IcReq) -> Result<IcReqFields, Fault> {
    check_format(wire.pfv.get())?;
    Ok(IcReqFields {
        hpda: alignment(wire.hpda)?,
        digests: digests(wire.dgst),
        max_r2t: wire.maxr2t.get().saturating_add(1),
    })
}

fn ic_resp(wire: &IcResp, asked: Digests) -> Result<IcRespFields, Fault> {
    check_format(wire.pfv.get())?;
    let cpda = alignment(wire.cpda)?;
    let granted = digests(wire.dgst);
    if (granted.header && !asked.header) || (granted.data && !asked.data) {
        return Err(Fault::DigestNotAskedFor);
    }
    let max = wire.maxh2cdata.get();
    if max < MIN_MAXH2CDATA_BYTES || !max.is_multiple_of(4) {
        return Err(Fault::MaxH2cData { found: max });
    }
    Ok(IcRespFields { cpda, digests: granted, max_h2c_data_bytes: max })
}

fn digests(options: DigestOptions) -> Digests {
    options.digests()
}
