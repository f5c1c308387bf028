//! NVMe/TCP: the PDUs of one connection, from bytes to typed events and back, without I/O.
//!
//! * [`pdu`]: the wire structs, named as in the specification.
//! * [`digest`]: CRC32C over headers and payloads.
//! * [`error`]: what a peer can do wrong, and the FES and FEI that tell it so.
//! * [`rules`]: which header is admissible under what was negotiated. Pure.
//! * [`receiver`]: incremental framing; bytes may be split anywhere.
//! * [`encode`]: PDUs to be sent, with digests and padding.
//! * [`target`], [`host`]: the two ends of a connection as state machines.
//!
//! A connection carries one queue pair (NVMe-TCP 1.0 §3.2). The machines own no payload memory
//! and allocate only when they are created and when a connection dies of a fatal error. What a
//! hostile peer claims in a length field is compared with a limit and never allocated.
//!
//! Section numbers refer to the NVMe/TCP Transport Specification 1.0.

pub mod digest;
pub mod encode;
pub mod error;
pub mod host;
pub mod pdu;
pub mod receiver;
pub mod rules;
pub mod target;
#[cfg(test)]
mod tests;

pub use digest::{DataDigest, DigestCheck};
pub use error::{FatalError, FatalErrorStatus, Fault, Termination};
pub use pdu::{PduAlignment, PduFlags, PduType};

/// In-capsule data that every controller accepts on the admin queue and with fabrics commands,
/// whatever IOCCSZ says (NVMe-TCP 1.0 §3.3.1 and Figure 11).
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

/// The least MAXH2CDATA that a controller may advertise (NVMe-TCP 1.0 §3.6.2.3).
pub const MIN_MAXH2CDATA_BYTES: u32 = 4096;

/// Bytes of a header or data digest on the wire.
pub const DIGEST_BYTES: usize = 4;

/// The most offending header bytes that a TermReq PDU may carry (NVMe-TCP 1.0 §3.5).
pub const TERM_REQ_DATA_BYTES: usize = 128;

/// The longest H2CTermReq or C2HTermReq PDU.
pub const TERM_REQ_MAX_BYTES: usize = pdu::TermReq::HLEN as usize + TERM_REQ_DATA_BYTES;

/// The most bytes that an encoder puts in front of a payload: the longest header (ICReq, ICResp),
/// or the largest PDO that fits its field, rounded up.
pub const MAX_PREFIX_BYTES: usize = 256;

/// Digests that both ends agreed to use on a connection (NVMe-TCP 1.0 §3.3.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Every PDU but ICReq, ICResp and the TermReqs carries HDGST.
    pub header: bool,
    /// Every PDU with payload carries DDGST.
    pub data: bool,
}

/// What one connection works with after ICReq and ICResp (NVMe-TCP 1.0 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Digests in use, in both directions.
    pub digests: Digests,
    /// Alignment of the payload in PDUs that the controller sends.
    pub hpda: PduAlignment,
    /// Alignment of the payload in PDUs that the host sends.
    pub cpda: PduAlignment,
    /// Outstanding R2Ts that the host accepts per command, at least 1 (the wire's MAXR2T plus one).
    pub max_r2t: u32,
    /// The largest payload of one H2CData PDU, in bytes.
    pub max_h2c_data_bytes: u32,
}
