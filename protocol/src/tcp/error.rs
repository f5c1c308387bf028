//! What a peer can do wrong on an NVMe/TCP connection, and how it is told.
//!
//! A [`Fault`] names the mistake; [`Fault::status`] and [`Fault::information`] are the one place
//! where mistakes become FES and FEI (NVMe-TCP 1.0 §3.5, Figures 22 and 23). A [`FatalError`] is
//! a fault together with the offending header, ready to be sent as a TermReq. Damaged payloads
//! are not here: they are not fatal.

use super::TERM_REQ_DATA_BYTES;
use super::pdu::{CapsuleResp, CommonHeader, H2cData, IcReq, IcResp, PduType, R2t};

/// Fatal Error Status (FES) of H2CTermReq and C2HTermReq.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum FatalErrorStatus {
    /// A header field is invalid; FEI is its offset.
    InvalidPduHeaderField = 0x01,
    /// A PDU came that this state does not allow.
    PduSequenceError = 0x02,
    /// HDGST does not match; FEI is the HDGST received.
    HeaderDigestError = 0x03,
    /// A data PDU lies outside the range that it belongs to.
    DataTransferOutOfRange = 0x04,
    /// C2HTermReq: an H2CData payload exceeds MAXH2CDATA ("Data Transfer Limit Exceeded").
    /// H2CTermReq: an R2T exceeds MAXR2T ("R2T Limit Exceeded").
    LimitExceeded = 0x05,
    /// A parameter is valid but not supported; FEI is its offset.
    UnsupportedParameter = 0x06,
}

impl FatalErrorStatus {
    /// The value on the wire.
    pub fn wire(self) -> u16 {
        self as u16
    }

    /// The status with this value; `None` if it is reserved.
    pub fn from_wire(value: u16) -> Option<Self> {
        Some(match value {
            0x01 => Self::InvalidPduHeaderField,
            0x02 => Self::PduSequenceError,
            0x03 => Self::HeaderDigestError,
            0x04 => Self::DataTransferOutOfRange,
            0x05 => Self::LimitExceeded,
            0x06 => Self::UnsupportedParameter,
            _ => return None,
        })
    }
}

impl core::fmt::Display for FatalErrorStatus {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::InvalidPduHeaderField => "Invalid PDU Header Field",
            Self::PduSequenceError => "PDU Sequence Error",
            Self::HeaderDigestError => "Header Digest Error",
            Self::DataTransferOutOfRange => "Data Transfer Out of Range",
            Self::LimitExceeded => "Data Transfer or R2T Limit Exceeded",
            Self::UnsupportedParameter => "Unsupported Parameter",
        })
    }
}

/// A peer's fatal mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// PDU-Type is reserved.
    #[error("PDU type {code:#04x} is reserved")]
    ReservedType {
        /// The code received.
        code: u8,
    },
    /// A PDU that only this side may send.
    #[error("{pdu:?} travels in the other direction")]
    WrongDirection {
        /// The type received.
        pdu: PduType,
    },
    /// Anything but ICReq or ICResp before the negotiation.
    #[error("{pdu:?} came before the connection was initialized")]
    NotInitialized {
        /// The type received.
        pdu: PduType,
    },
    /// A second ICReq or ICResp.
    #[error("a second {pdu:?} came")]
    AlreadyInitialized {
        /// The type received.
        pdu: PduType,
    },
    /// HDGSTF differs from what was negotiated.
    #[error("{pdu:?}: HDGSTF must be {expected}, as negotiated")]
    HeaderDigestFlag {
        /// The type received.
        pdu: PduType,
        /// What the negotiation demands.
        expected: bool,
    },
    /// DDGSTF differs from what was negotiated, or is set without payload.
    #[error("{pdu:?}: DDGSTF must be {expected} here")]
    DataDigestFlag {
        /// The type received.
        pdu: PduType,
        /// What the negotiation and the payload demand.
        expected: bool,
    },
    /// SUCCESS without LAST_PDU.
    #[error("C2HData: SUCCESS is set without LAST_PDU")]
    SuccessWithoutLast,
    /// HLEN is not the type's.
    #[error("{pdu:?}: HLEN is {found}, must be {}", pdu.hlen())]
    HeaderLength {
        /// The type received.
        pdu: PduType,
        /// HLEN received.
        found: u8,
    },
    /// PDO points into the header, beyond the PDU, or is not aligned.
    #[error("{pdu:?}: PDO {found} is not a valid payload offset")]
    DataOffsetField {
        /// The type received.
        pdu: PduType,
        /// PDO received.
        found: u8,
    },
    /// PLEN does not fit the type, the header or the payload that must be there.
    #[error("{pdu:?}: PLEN {found} is not a valid length")]
    PduLength {
        /// The type received.
        pdu: PduType,
        /// PLEN received.
        found: u32,
    },
    /// More in-capsule data than the queue accepts.
    #[error("CapsuleCmd: {found_bytes} bytes of in-capsule data, at most {limit_bytes} here")]
    CapsuleTooLong {
        /// In-capsule data in bytes.
        found_bytes: u32,
        /// The queue's limit in bytes.
        limit_bytes: u32,
    },
    /// HDGST does not match the header.
    #[error("{pdu:?}: header digest {received:#010x} received, {computed:#010x} computed")]
    HeaderDigest {
        /// The type received, which may be damaged, too.
        pdu: PduType,
        /// HDGST received.
        received: u32,
        /// HDGST of the header received.
        computed: u32,
    },
    /// PFV is not 0.
    #[error("PDU format version {found} is not supported")]
    FormatVersion {
        /// PFV received.
        found: u16,
    },
    /// HPDA or CPDA is above 31.
    #[error("data alignment {found} is above 31")]
    Alignment {
        /// HPDA or CPDA received.
        found: u8,
    },
    /// ICResp enables a digest that ICReq did not ask for.
    #[error("ICResp enables a digest that was not asked for")]
    DigestNotAskedFor,
    /// MAXH2CDATA is below 4096 or no multiple of 4.
    #[error("MAXH2CDATA {found} must be a multiple of 4 and at least 4096")]
    MaxH2cData {
        /// MAXH2CDATA received.
        found: u32,
    },
    /// A data PDU or R2T for a command that is not outstanding.
    #[error("{pdu:?} for command {cccid}, which is not outstanding")]
    UnknownCommand {
        /// The type received.
        pdu: PduType,
        /// CCCID received.
        cccid: u16,
    },
    /// A response to a command that is not outstanding.
    #[error("CapsuleResp for command {cid}, which is not outstanding")]
    UnknownResponse {
        /// The command identifier received.
        cid: u16,
    },
    /// H2CData with a transfer tag that no outstanding R2T carries.
    #[error("H2CData with transfer tag {ttag}, which is not outstanding")]
    UnknownTransfer {
        /// TTAG received.
        ttag: u16,
    },
    /// H2CData whose CCCID is not that of the R2T with its transfer tag.
    #[error("H2CData for command {cccid} with the transfer tag of command {expected}")]
    WrongCommand {
        /// CCCID received.
        cccid: u16,
        /// CCCID of the R2T.
        expected: u16,
    },
    /// DATAL or R2TL is 0, or DATAL is not the length of the payload.
    #[error("{pdu:?}: data length {found} is not valid")]
    DataLength {
        /// The type received.
        pdu: PduType,
        /// DATAL or R2TL received.
        found: u32,
    },
    /// An H2CData payload above MAXH2CDATA.
    #[error("H2CData: {found} bytes exceed MAXH2CDATA of {limit_bytes}")]
    DataLimit {
        /// DATAL received.
        found: u32,
        /// MAXH2CDATA.
        limit_bytes: u32,
    },
    /// A data PDU or R2T outside the range that it belongs to.
    #[error("{pdu:?}: {length} bytes at {offset} lie outside {start}..{end}")]
    OutOfRange {
        /// The type received.
        pdu: PduType,
        /// DATAO or R2TO received.
        offset: u32,
        /// DATAL or R2TL received.
        length: u32,
        /// First byte of the range.
        start: u32,
        /// End of the range.
        end: u32,
    },
    /// A data PDU or R2T that does not begin where the one before it ended.
    #[error("{pdu:?} begins at {offset}, expected {expected}")]
    NotContiguous {
        /// The type received.
        pdu: PduType,
        /// DATAO or R2TO received.
        offset: u32,
        /// Where it should begin.
        expected: u32,
    },
    /// LAST_PDU is missing on the PDU that ends the range, or set before its end.
    #[error("{pdu:?} ending at {end}: LAST_PDU must be {expected}")]
    LastFlag {
        /// The type received.
        pdu: PduType,
        /// Offset of the end of the payload.
        end: u32,
        /// What LAST_PDU must be.
        expected: bool,
    },
    /// A data PDU that nobody asked for.
    #[error("{pdu:?} for command {cccid}, which expects none")]
    UnexpectedData {
        /// The type received.
        pdu: PduType,
        /// CCCID received.
        cccid: u16,
    },
    /// More R2Ts at a time than MAXR2T allows for one command.
    #[error("R2T for command {cccid} exceeds MAXR2T of {limit}")]
    R2tLimit {
        /// CCCID received.
        cccid: u16,
        /// MAXR2T, 1's based.
        limit: u32,
    },
    /// A TermReq whose PLEN is outside 24..=152. It is ignored and the connection ends at once
    /// (NVMe-TCP 1.0 §3.5); it is not answered.
    #[error("{pdu:?}: PLEN {found} is outside 24..=152")]
    MalformedTermReq {
        /// The type received.
        pdu: PduType,
        /// PLEN received.
        found: u32,
    },
}

impl Fault {
    /// FES of the TermReq that reports this fault; `None` if it is not reported.
    pub fn status(&self) -> Option<FatalErrorStatus> {
        use FatalErrorStatus as Fes;
        Some(match self {
            Self::ReservedType { .. }
            | Self::WrongDirection { .. }
            | Self::HeaderDigestFlag { .. }
            | Self::DataDigestFlag { .. }
            | Self::SuccessWithoutLast
            | Self::HeaderLength { .. }
            | Self::DataOffsetField { .. }
            | Self::PduLength { .. }
            | Self::CapsuleTooLong { .. }
            | Self::Alignment { .. }
            | Self::DigestNotAskedFor
            | Self::MaxH2cData { .. }
            | Self::UnknownCommand { .. }
            | Self::UnknownResponse { .. }
            | Self::UnknownTransfer { .. }
            | Self::WrongCommand { .. }
            | Self::DataLength { .. } => Fes::InvalidPduHeaderField,
            Self::NotInitialized { .. }
            | Self::AlreadyInitialized { .. }
            | Self::NotContiguous { .. }
            | Self::LastFlag { .. }
            | Self::UnexpectedData { .. } => Fes::PduSequenceError,
            Self::HeaderDigest { .. } => Fes::HeaderDigestError,
            Self::OutOfRange { .. } => Fes::DataTransferOutOfRange,
            Self::DataLimit { .. } | Self::R2tLimit { .. } => Fes::LimitExceeded,
            Self::FormatVersion { .. } => Fes::UnsupportedParameter,
            Self::MalformedTermReq { .. } => return None,
        })
    }

    /// FEI of the TermReq that reports this fault: the offset of the field in question, the HDGST
    /// received, or 0 where the specification reserves it.
    pub fn information(&self) -> u32 {
        match self {
            Self::ReservedType { .. } | Self::WrongDirection { .. } => {
                CommonHeader::PDU_TYPE_OFFSET
            }
            Self::HeaderDigestFlag { .. }
            | Self::DataDigestFlag { .. }
            | Self::SuccessWithoutLast => CommonHeader::FLAGS_OFFSET,
            Self::HeaderLength { .. } => CommonHeader::HLEN_OFFSET,
            Self::DataOffsetField { .. } => CommonHeader::PDO_OFFSET,
            Self::PduLength { .. } | Self::CapsuleTooLong { .. } => CommonHeader::PLEN_OFFSET,
            Self::FormatVersion { .. } => IcReq::PFV_OFFSET,
            Self::Alignment { .. } => IcReq::HPDA_OFFSET,
            Self::DigestNotAskedFor => IcResp::DGST_OFFSET,
            Self::MaxH2cData { .. } => IcResp::MAXH2CDATA_OFFSET,
            Self::UnknownCommand { .. } | Self::WrongCommand { .. } => H2cData::CCCID_OFFSET,
            Self::UnknownResponse { .. } => CapsuleResp::CID_OFFSET,
            Self::UnknownTransfer { .. } => H2cData::TTAG_OFFSET,
            Self::DataLength { .. } => H2cData::DATAL_OFFSET,
            Self::HeaderDigest { received, .. } => *received,
            Self::NotInitialized { .. }
            | Self::AlreadyInitialized { .. }
            | Self::NotContiguous { .. }
            | Self::LastFlag { .. }
            | Self::UnexpectedData { .. }
            | Self::OutOfRange { .. }
            | Self::DataLimit { .. }
            | Self::R2tLimit { .. }
            | Self::MalformedTermReq { .. } => 0,
        }
    }
}

const _: () = assert!(R2t::R2TO_OFFSET == 12 && IcResp::CPDA_OFFSET == IcReq::HPDA_OFFSET);

/// A connection is over because its peer made a fatal mistake. Send the TermReq that the
/// connection encodes from it, then close; whatever else arrives is ignored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NVMe/TCP peer: {}{}", .0.fault, StatusText(.0.fault))]
pub struct FatalError(Box<Offence>);

/// Boxed, because it is large and made at most once in the life of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offence {
    fault: Fault,
    header: [u8; TERM_REQ_DATA_BYTES],
    header_bytes: usize,
}

impl FatalError {
    /// A fault, and as much of the header in question as has been received.
    pub fn new(fault: Fault, header: &[u8]) -> Self {
        let header_bytes = header.len().min(TERM_REQ_DATA_BYTES);
        let mut copy = [0; TERM_REQ_DATA_BYTES];
        copy[..header_bytes].copy_from_slice(&header[..header_bytes]);
        Self(Box::new(Offence { fault, header: copy, header_bytes }))
    }

    /// The peer's mistake.
    pub fn fault(&self) -> &Fault {
        &self.0.fault
    }

    /// FES of the TermReq to send; `None` if the connection just ends.
    pub fn status(&self) -> Option<FatalErrorStatus> {
        self.0.fault.status()
    }

    /// FEI of the TermReq to send.
    pub fn information(&self) -> u32 {
        self.0.fault.information()
    }

    /// The offending header, at most [`TERM_REQ_DATA_BYTES`].
    pub fn header(&self) -> &[u8] {
        &self.0.header[..self.0.header_bytes]
    }
}

/// Appends FES to an error's text where there is one.
struct StatusText(Fault);

impl core::fmt::Display for StatusText {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0.status() {
            Some(status) => write!(f, " ({status}, FEI {:#x})", self.0.information()),
            None => Ok(()),
        }
    }
}

/// What a peer's TermReq says: it has ended the connection because of our mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Termination {
    /// Fatal Error Status, as received; may be reserved.
    pub fes: u16,
    /// Fatal Error Information, as received.
    pub fei: u32,
}

impl core::fmt::Display for Termination {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match FatalErrorStatus::from_wire(self.fes) {
            Some(status) => write!(f, "{status}")?,
            None => write!(f, "reserved status {:#06x}", self.fes)?,
        }
        write!(f, " (FEI {:#x})", self.fei)
    }
}
