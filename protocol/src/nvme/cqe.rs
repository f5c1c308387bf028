//! The completion queue entry: 16 bytes, as every command is answered.
use super::status::{Status, StatusField};
use super::wire_layout;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of a completion queue entry in bytes.
pub const CQE_BYTES: usize = 16;

/// A completion queue entry (NVMe Base, Completion Queue Entry).
///
/// Over fabrics the phase bit is always 0 and SQID is reserved.
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
pub struct Cqe {
    /// DW0: command specific result.
    pub dw0: U32,
    /// DW1: reserved, or the upper half of a Fabrics result.
    pub dw1: U32,
    /// SQHD: submission queue head pointer.
    pub sqhd: U16,
    /// SQID: reserved over fabrics.
    pub sqid: U16,
    /// CID of the command that this completes.
    pub cid: U16,
    /// Status and phase.
    pub status: StatusField,
}

wire_layout!(Cqe, 16, dw1 @ 4, sqhd @ 8, sqid @ 10, cid @ 12, status @ 14);

impl Cqe {
    /// A completion of command `cid` with no result and queue head 0.
    pub fn new(cid: u16, status: Status) -> Self {
        Self { cid: U16::new(cid), status: status.into(), ..Self::default() }
    }

    /// With the 64-bit result that spans DW0 and DW1.
    #[must_use]
    pub fn with_result(mut self, result: u64) -> Self {
        self.dw0 = U32::new(result as u32);
        self.dw1 = U32::new((result >> 32) as u32);
        self
    }

    /// With the submission queue head pointer.
    #[must_use]
    pub fn with_sqhd(mut self, sqhd: u16) -> Self {
        self.sqhd = U16::new(sqhd);
        self
    }

    /// DW0 and DW1 as one number.
    pub fn result(&self) -> u64 {
        u64::from(self.dw0.get()) | (u64::from(self.dw1.get()) << 32)
    }

    /// The status, decoded.
    pub fn status(&self) -> Status {
        self.status.into()
    }

    /// The 16 bytes as they travel.
    pub fn to_bytes(&self) -> [u8; CQE_BYTES] {
        zerocopy::transmute!(*self)
    }

    /// From the 16 bytes as they arrive. Every bit pattern is an entry.
    pub fn from_bytes(bytes: [u8; CQE_BYTES]) -> Self {
        zerocopy::transmute!(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::status::Generic;

    #[test]
    fn golden() {
        let cqe = Cqe::new(0xBEEF, Generic::InvalidField.into())
            .with_result(0x1122_3344_5566_7788)
            .with_sqhd(0x0102);
        let bytes = cqe.to_bytes();
        assert_eq!(
            bytes,
            [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 2, 1, 0, 0, 0xEF, 0xBE, 0x04, 0x80]
        );
        assert_eq!(Cqe::from_bytes(bytes), cqe);
        assert_eq!(cqe.result(), 0x1122_3344_5566_7788);
        assert_eq!(cqe.status(), Generic::InvalidField.into());
    }
}
