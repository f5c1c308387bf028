//! The SGL descriptor in a command, and the two kinds that NVMe/TCP uses for data.
use super::status::{Generic, Status};
use super::{bit_fields, wire_enum, wire_layout};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

wire_enum! {
    /// SGL Descriptor Type (NVMe Base, Scatter Gather List).
    pub enum SglType: u8 {
        /// SGL Data Block.
        DataBlock = 0x0,
        /// SGL Bit Bucket.
        BitBucket = 0x1,
        /// SGL Segment.
        Segment = 0x2,
        /// SGL Last Segment.
        LastSegment = 0x3,
        /// Keyed SGL Data Block.
        KeyedDataBlock = 0x4,
        /// Transport SGL Data Block.
        TransportDataBlock = 0x5,
        /// Vendor Specific.
        VendorSpecific = 0xF,
    }
}

wire_enum! {
    /// SGL Descriptor Sub Type (NVMe Base, Scatter Gather List).
    pub enum SglSubtype: u8 {
        /// The address field is an address.
        Address = 0x0,
        /// The address field is an offset from the start of in-capsule data.
        Offset = 0x1,
        /// Transport specific; what NVMe/TCP uses with the transport data block.
        TransportSpecific = 0xA,
    }
}

bit_fields! {
    /// SGL Identifier, byte 15 of a descriptor.
    pub struct SglIdentifier: u8 {
        /// Sub Type; see [`SglSubtype`].
        subtype / with_subtype: u8 [3:0],
        /// Descriptor Type; see [`SglType`].
        kind / with_kind: u8 [7:4],
    }
}

/// An SGL descriptor of the data block kinds (NVMe Base, Scatter Gather List).
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
pub struct Sgl {
    /// Address, or offset into in-capsule data.
    pub address: U64,
    /// Length in bytes.
    pub length_bytes: U32,
    /// Reserved.
    pub reserved: [u8; 3],
    /// Type and sub type.
    pub identifier: SglIdentifier,
}

wire_layout!(Sgl, 16, length_bytes @ 8, identifier @ 15);

/// Where a command's data is, once its descriptor is known to be a kind we serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPointer {
    /// The data follows the command in its capsule (descriptor 01h). To the controller only.
    InCapsule {
        /// From the start of the capsule's data, in bytes.
        offset_bytes: u64,
        /// Length in bytes.
        length_bytes: u32,
    },
    /// The transport moves the data, by R2T or C2HData (descriptor 5Ah).
    Transport {
        /// Length in bytes.
        length_bytes: u32,
    },
}

impl DataPointer {
    /// Length in bytes.
    pub fn length_bytes(&self) -> u32 {
        match *self {
            Self::InCapsule { length_bytes, .. } | Self::Transport { length_bytes } => length_bytes,
        }
    }
}

impl Sgl {
    /// A descriptor with these parts.
    pub fn new(kind: SglType, subtype: SglSubtype, address: u64, length_bytes: u32) -> Self {
        Self {
            address: U64::new(address),
            length_bytes: U32::new(length_bytes),
            reserved: [0; 3],
            identifier: SglIdentifier::default().with_kind(kind.raw()).with_subtype(subtype.raw()),
        }
    }

    /// Data in the capsule, at `offset_bytes` from its start (01h).
    pub fn in_capsule(offset_bytes: u64, length_bytes: u32) -> Self {
        Self::new(SglType::DataBlock, SglSubtype::Offset, offset_bytes, length_bytes)
    }

    /// Data that the transport moves (5Ah).
    pub fn transport(length_bytes: u32) -> Self {
        Self::new(SglType::TransportDataBlock, SglSubtype::TransportSpecific, 0, length_bytes)
    }

    /// Which of the kinds we serve this is.
    ///
    /// # Errors
    /// SGL Descriptor Type Invalid for a type or sub type that NVMe/TCP does not use for data.
    pub fn data_pointer(&self) -> Result<DataPointer, Status> {
        let kind = SglType::from_raw(self.identifier.kind());
        let subtype = SglSubtype::from_raw(self.identifier.subtype());
        let length_bytes = self.length_bytes.get();
        match (kind, subtype) {
            (Some(SglType::DataBlock), Some(SglSubtype::Offset)) => {
                Ok(DataPointer::InCapsule { offset_bytes: self.address.get(), length_bytes })
            }
            (Some(SglType::TransportDataBlock), Some(SglSubtype::TransportSpecific)) => {
                Ok(DataPointer::Transport { length_bytes })
            }
            _ => Err(Generic::SglDescriptorTypeInvalid.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        assert_eq!(
            Sgl::in_capsule(8, 1024).as_bytes(),
            [8, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0x01]
        );
        assert_eq!(Sgl::transport(1).as_bytes()[15], 0x5A);
    }

    #[test]
    fn only_the_two_kinds_are_served() {
        let mut served = 0;
        for id in 0..=255u8 {
            let sgl = Sgl { identifier: SglIdentifier::from_raw(id), ..Sgl::transport(7) };
            match sgl.data_pointer() {
                Ok(pointer) => {
                    served += 1;
                    assert!(id == 0x01 || id == 0x5A);
                    assert_eq!(pointer.length_bytes(), 7);
                }
                Err(status) => assert_eq!(status, Generic::SglDescriptorTypeInvalid.into()),
            }
        }
        assert_eq!(served, 2);
    }
}
