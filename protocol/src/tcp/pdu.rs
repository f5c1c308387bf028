//! The NVMe/TCP PDU headers as they lie on the wire (NVMe-TCP 1.0 §3.6.2).
//!
//! Every struct is plain bytes (zerocopy, alignment 1, little-endian fields); sizes and offsets
//! are asserted at compile time. Reserved bytes are sent as zero and not looked at when received.
//! Nothing here judges a value: that is [`super::rules`].

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nvme::cqe::Cqe;
use crate::nvme::sqe::Sqe;

/// Checks a wire struct's size and the offset of each named field at compile time.
macro_rules! assert_layout {
    ($name:ident, $size:expr, { $($field:ident: $offset:expr),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(align_of::<$name>() == 1);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}

/// PDU-Type, the first byte of a PDU (NVMe-TCP 1.0 Figure 10). Bit 0 is the direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PduType {
    /// Initialize Connection Request, host to controller.
    IcReq = 0x00,
    /// Initialize Connection Response.
    IcResp = 0x01,
    /// Host to Controller Terminate Connection Request.
    H2cTermReq = 0x02,
    /// Controller to Host Terminate Connection Request.
    C2hTermReq = 0x03,
    /// Command Capsule.
    CapsuleCmd = 0x04,
    /// Response Capsule.
    CapsuleResp = 0x05,
    /// Host to Controller Data.
    H2cData = 0x06,
    /// Controller to Host Data.
    C2hData = 0x07,
    /// Ready to Transfer.
    R2t = 0x09,
}

impl PduType {
    /// Every type that is not reserved.
    pub const ALL: [Self; 9] = [
        Self::IcReq,
        Self::IcResp,
        Self::H2cTermReq,
        Self::C2hTermReq,
        Self::CapsuleCmd,
        Self::CapsuleResp,
        Self::H2cData,
        Self::C2hData,
        Self::R2t,
    ];

    /// The type with this code; `None` if it is reserved.
    #[inline]
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::IcReq,
            0x01 => Self::IcResp,
            0x02 => Self::H2cTermReq,
            0x03 => Self::C2hTermReq,
            0x04 => Self::CapsuleCmd,
            0x05 => Self::CapsuleResp,
            0x06 => Self::H2cData,
            0x07 => Self::C2hData,
            0x09 => Self::R2t,
            _ => return None,
        })
    }

    /// The type's code on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Who sends PDUs of this type.
    pub fn direction(self) -> Direction {
        if self.code() & 1 == 0 { Direction::HostToController } else { Direction::ControllerToHost }
    }

    /// HLEN of this type: fixed, in bytes, without HDGST.
    #[inline]
    pub fn hlen(self) -> u8 {
        match self {
            Self::IcReq | Self::IcResp => IcReq::HLEN,
            Self::CapsuleCmd => CapsuleCmd::HLEN,
            _ => 24,
        }
    }

    /// Whether PDUs of this type carry HDGST once that is negotiated (NVMe-TCP 1.0 §3.3.1.1).
    #[inline]
    pub fn is_digested(self) -> bool {
        !matches!(self, Self::IcReq | Self::IcResp | Self::H2cTermReq | Self::C2hTermReq)
    }
}

/// The direction in which a PDU travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// H2C.
    HostToController,
    /// C2H.
    ControllerToHost,
}

/// FLAGS, the second byte of a PDU. Which flags exist depends on the type; the others are
/// reserved and ignored when received.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct PduFlags(u8);

impl PduFlags {
    /// HDGSTF: HDGST follows the header.
    pub const HDGSTF: Self = Self(1 << 0);
    /// DDGSTF: DDGST follows the payload.
    pub const DDGSTF: Self = Self(1 << 1);
    /// LAST_PDU: the last data PDU of an R2T (H2CData) or of a command (C2HData).
    pub const LAST_PDU: Self = Self(1 << 2);
    /// SUCCESS: the command ended well and no CapsuleResp follows (C2HData).
    pub const SUCCESS: Self = Self(1 << 3);

    /// No flag.
    pub const fn empty() -> Self {
        Self(0)
    }

    /// The byte on the wire.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Flags from the byte on the wire, reserved bits included.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Whether every flag of `other` is set here.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags, and those of `other` if `condition` holds.
    #[inline]
    #[must_use]
    pub const fn with_if(self, other: Self, condition: bool) -> Self {
        if condition { Self(self.0 | other.0) } else { self }
    }
}

impl core::fmt::Debug for PduFlags {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PduFlags({:#04x})", self.0)
    }
}

/// DGST of ICReq and ICResp: which digests are asked for, or granted.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct DigestOptions(u8);

impl DigestOptions {
    /// HDGST_ENABLE.
    pub const HDGST_ENABLE: Self = Self(1 << 0);
    /// DDGST_ENABLE.
    pub const DDGST_ENABLE: Self = Self(1 << 1);

    /// Whether every option of `other` is set here.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The digests named by this byte.
    pub const fn digests(self) -> super::Digests {
        super::Digests {
            header: self.contains(Self::HDGST_ENABLE),
            data: self.contains(Self::DDGST_ENABLE),
        }
    }

    /// The byte that names these digests.
    pub const fn from_digests(digests: super::Digests) -> Self {
        let header = if digests.header { Self::HDGST_ENABLE.0 } else { 0 };
        let data = if digests.data { Self::DDGST_ENABLE.0 } else { 0 };
        Self(header | data)
    }

    /// Options from the byte on the wire, reserved bits included.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
}

impl core::fmt::Debug for DigestOptions {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "DigestOptions({:#04x})", self.0)
    }
}

/// HPDA or CPDA: alignment of a payload from the start of its PDU. On the wire a 0's based
/// number of dwords, 0 to 31, so that 0 means 4 bytes and 31 means 128.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PduAlignment(u8);

impl PduAlignment {
    /// Four bytes, which every header has: no padding.
    pub const NONE: Self = Self(0);
    /// The largest: 128 bytes.
    pub const MAX: Self = Self(31);

    /// From the value on the wire; `None` above 31.
    pub const fn from_wire(value: u8) -> Option<Self> {
        if value <= Self::MAX.0 { Some(Self(value)) } else { None }
    }

    /// The value on the wire.
    pub const fn wire(self) -> u8 {
        self.0
    }

    /// The alignment in bytes, 4 to 128.
    #[inline]
    pub const fn bytes(self) -> u32 {
        (self.0 as u32 + 1) * 4
    }

    /// The first aligned offset at or after `offset_bytes`.
    #[inline]
    pub const fn align(self, offset_bytes: u32) -> u32 {
        offset_bytes.next_multiple_of(self.bytes())
    }
}

/// PDU Common Header (CH), NVMe-TCP 1.0 §3.6.2.1.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CommonHeader {
    /// PDU-Type.
    pub pdu_type: u8,
    /// FLAGS.
    pub flags: PduFlags,
    /// Header length in bytes, without HDGST.
    pub hlen: u8,
    /// Offset of the payload from the start of the PDU in bytes; reserved without payload.
    pub pdo: u8,
    /// Length of the whole PDU in bytes.
    pub plen: U32,
}
assert_layout!(CommonHeader, 8, { pdu_type: 0, flags: 1, hlen: 2, pdo: 3, plen: 4 });

impl CommonHeader {
    /// Bytes of the common header.
    pub const BYTES: usize = 8;
    /// Offsets that FEI names.
    pub const PDU_TYPE_OFFSET: u32 = 0;
    /// Offset of FLAGS.
    pub const FLAGS_OFFSET: u32 = 1;
    /// Offset of HLEN.
    pub const HLEN_OFFSET: u32 = 2;
    /// Offset of PDO.
    pub const PDO_OFFSET: u32 = 3;
    /// Offset of PLEN.
    pub const PLEN_OFFSET: u32 = 4;
}

/// Initialize Connection Request, NVMe-TCP 1.0 §3.6.2.2.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct IcReq {
    /// Common header.
    pub ch: CommonHeader,
    /// PDU Format Version, 0.
    pub pfv: U16,
    /// Host PDU Data Alignment, see [`PduAlignment`].
    pub hpda: u8,
    /// Digests that the host asks for.
    pub dgst: DigestOptions,
    /// Outstanding R2Ts per command, 0's based.
    pub maxr2t: U32,
    /// Reserved.
    pub reserved: [u8; 112],
}
assert_layout!(IcReq, 128, { ch: 0, pfv: 8, hpda: 10, dgst: 11, maxr2t: 12, reserved: 16 });

impl IcReq {
    /// HLEN and PLEN.
    pub const HLEN: u8 = 128;
    /// Offset of PFV (ICReq and ICResp).
    pub const PFV_OFFSET: u32 = 8;
    /// Offset of HPDA (CPDA in ICResp).
    pub const HPDA_OFFSET: u32 = 10;
}

/// Initialize Connection Response, NVMe-TCP 1.0 §3.6.2.3.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct IcResp {
    /// Common header.
    pub ch: CommonHeader,
    /// PDU Format Version, 0.
    pub pfv: U16,
    /// Controller PDU Data Alignment, see [`PduAlignment`].
    pub cpda: u8,
    /// Digests that the connection uses.
    pub dgst: DigestOptions,
    /// The largest payload of an H2CData PDU in bytes, a multiple of 4, at least 4096.
    pub maxh2cdata: U32,
    /// Reserved.
    pub reserved: [u8; 112],
}
assert_layout!(IcResp, 128, { ch: 0, pfv: 8, cpda: 10, dgst: 11, maxh2cdata: 12, reserved: 16 });

impl IcResp {
    /// HLEN and PLEN.
    pub const HLEN: u8 = 128;
    /// Offset of CPDA.
    pub const CPDA_OFFSET: u32 = 10;
    /// Offset of DGST.
    pub const DGST_OFFSET: u32 = 11;
    /// Offset of MAXH2CDATA.
    pub const MAXH2CDATA_OFFSET: u32 = 12;
}

/// H2CTermReq and C2HTermReq, NVMe-TCP 1.0 §3.6.2.4 and §3.6.2.5. The offending header follows.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct TermReq {
    /// Common header.
    pub ch: CommonHeader,
    /// Fatal Error Status.
    pub fes: U16,
    /// Fatal Error Information; its meaning depends on FES.
    pub fei: U32,
    /// Reserved.
    pub reserved: [u8; 10],
}
assert_layout!(TermReq, 24, { ch: 0, fes: 8, fei: 10, reserved: 14 });

impl TermReq {
    /// HLEN.
    pub const HLEN: u8 = 24;
}

/// Command Capsule, NVMe-TCP 1.0 §3.6.2.6. In-capsule data may follow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CapsuleCmd {
    /// Common header.
    pub ch: CommonHeader,
    /// Submission queue entry.
    pub ccsqe: Sqe,
}
assert_layout!(CapsuleCmd, 72, { ch: 0, ccsqe: 8 });

impl CapsuleCmd {
    /// HLEN.
    pub const HLEN: u8 = 72;
}

/// Response Capsule, NVMe-TCP 1.0 §3.6.2.7.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CapsuleResp {
    /// Common header.
    pub ch: CommonHeader,
    /// Completion queue entry.
    pub rccqe: Cqe,
}
assert_layout!(CapsuleResp, 24, { ch: 0, rccqe: 8 });

impl CapsuleResp {
    /// HLEN.
    pub const HLEN: u8 = 24;
    /// Offset of the command identifier in the completion queue entry, from the PDU's start.
    pub const CID_OFFSET: u32 = 20;
}

/// Host to Controller Data Transfer, NVMe-TCP 1.0 §3.6.2.8. The payload follows.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct H2cData {
    /// Common header.
    pub ch: CommonHeader,
    /// Command identifier of the command that the data belongs to.
    pub cccid: U16,
    /// Transfer tag of the R2T that asked for the data.
    pub ttag: U16,
    /// Offset from the start of the command's data buffer, in bytes.
    pub datao: U32,
    /// Payload length in bytes.
    pub datal: U32,
    /// Reserved.
    pub reserved: [u8; 4],
}
assert_layout!(H2cData, 24, { ch: 0, cccid: 8, ttag: 10, datao: 12, datal: 16, reserved: 20 });

impl H2cData {
    /// HLEN.
    pub const HLEN: u8 = 24;
    /// Offset of CCCID (also in C2HData and R2T).
    pub const CCCID_OFFSET: u32 = 8;
    /// Offset of TTAG (also in R2T).
    pub const TTAG_OFFSET: u32 = 10;
    /// Offset of DATAL (also in C2HData; R2TL in R2T).
    pub const DATAL_OFFSET: u32 = 16;
}

/// Controller to Host Data Transfer, NVMe-TCP 1.0 §3.6.2.9. The payload follows.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct C2hData {
    /// Common header.
    pub ch: CommonHeader,
    /// Command identifier of the command that the data belongs to.
    pub cccid: U16,
    /// Reserved.
    pub reserved: [u8; 2],
    /// Offset from the start of the command's data buffer, in bytes.
    pub datao: U32,
    /// Payload length in bytes.
    pub datal: U32,
    /// Reserved.
    pub reserved2: [u8; 4],
}
assert_layout!(C2hData, 24, {
    ch: 0, cccid: 8, reserved: 10, datao: 12, datal: 16, reserved2: 20,
});

impl C2hData {
    /// HLEN.
    pub const HLEN: u8 = 24;
}

/// Ready to Transfer, NVMe-TCP 1.0 §3.6.2.10.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct R2t {
    /// Common header.
    pub ch: CommonHeader,
    /// Command identifier of the command whose data is asked for.
    pub cccid: U16,
    /// Transfer tag, chosen by the controller; the H2CData PDUs repeat it.
    pub ttag: U16,
    /// Offset from the start of the command's data buffer, in bytes.
    pub r2to: U32,
    /// Length asked for in bytes, more than 0.
    pub r2tl: U32,
    /// Reserved.
    pub reserved: [u8; 4],
}
assert_layout!(R2t, 24, { ch: 0, cccid: 8, ttag: 10, r2to: 12, r2tl: 16, reserved: 20 });

impl R2t {
    /// HLEN.
    pub const HLEN: u8 = 24;
    /// Offset of R2TO.
    pub const R2TO_OFFSET: u32 = 12;
}
