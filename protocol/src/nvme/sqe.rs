//! The submission queue entry: 64 bytes, as any command arrives.
//!
//! It is raw: which fields mean what depends on the opcode, and only the typed
//! commands say so. Nothing here validates a value.
use super::{bit_fields, sgl::Sgl, wire_layout};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of a submission queue entry in bytes.
pub const SQE_BYTES: usize = 64;

bit_fields! {
    /// Byte 1 of a submission queue entry (NVMe Base, Common Command Format).
    pub struct SqeFlags: u8 {
        /// FUSE: 0 for a normal command, 1 and 2 for the first and second of a fused pair.
        fuse / with_fuse: u8 [1:0],
        /// PSDT: 1 for an SGL, the only value NVMe/TCP allows without metadata SGLs.
        psdt / with_psdt: u8 [7:6],
    }
}

/// PSDT value: data by SGL, metadata pointer a plain address. The one used over fabrics.
pub const PSDT_SGL: u8 = 1;

/// A submission queue entry (NVMe Base, Common Command Format).
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Sqe {
    /// OPC: what the command is, together with the queue it arrived on.
    pub opcode: u8,
    /// FUSE and PSDT.
    pub flags: SqeFlags,
    /// CID: the host's name for this command among those outstanding on the queue.
    pub cid: U16,
    /// NSID; in a Fabrics command its first byte is FCTYPE.
    pub nsid: U32,
    /// CDW2.
    pub cdw2: U32,
    /// CDW3.
    pub cdw3: U32,
    /// MPTR: metadata pointer.
    pub mptr: U64,
    /// DPTR as an SGL descriptor.
    pub dptr: Sgl,
    /// CDW10.
    pub cdw10: U32,
    /// CDW11.
    pub cdw11: U32,
    /// CDW12.
    pub cdw12: U32,
    /// CDW13.
    pub cdw13: U32,
    /// CDW14.
    pub cdw14: U32,
    /// CDW15.
    pub cdw15: U32,
}

wire_layout!(Sqe, 64, flags @ 1, cid @ 2, nsid @ 4, mptr @ 16, dptr @ 24, cdw10 @ 40, cdw15 @ 60);

impl Sqe {
    /// A command with this opcode and id, data by SGL, everything else zero.
    pub fn new(opcode: u8, cid: u16) -> Self {
        Self {
            opcode,
            flags: SqeFlags::default().with_psdt(PSDT_SGL),
            cid: U16::new(cid),
            ..Self::default()
        }
    }

    /// The 64 bytes as they travel.
    pub fn to_bytes(&self) -> [u8; SQE_BYTES] {
        zerocopy::transmute!(*self)
    }

    /// From the 64 bytes as they arrive. Every bit pattern is an entry.
    pub fn from_bytes(bytes: [u8; SQE_BYTES]) -> Self {
        zerocopy::transmute!(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let mut sqe = Sqe::new(0x02, 0x1234);
        sqe.nsid = U32::new(1);
        sqe.dptr = Sgl::transport(4096);
        sqe.cdw10 = U32::new(0x0102_0304);
        sqe.cdw15 = U32::new(0xA1A2_A3A4);
        let bytes = sqe.to_bytes();
        assert_eq!(bytes[..8], [0x02, 0x40, 0x34, 0x12, 1, 0, 0, 0]);
        assert_eq!(bytes[24..40], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0x5A]);
        assert_eq!(bytes[40..44], [4, 3, 2, 1]);
        assert_eq!(bytes[60..], [0xA4, 0xA3, 0xA2, 0xA1]);
        assert_eq!(Sqe::from_bytes(bytes), sqe);
    }
}
