//! Fabrics commands (opcode 7Fh): Connect, Property Get and Set, Disconnect, Authentication.
//!
//! Parsing says what a command asks; whether it is admitted on this queue, in
//! this state, from this host, is the controller's to decide.
use crate::nvme::sgl::Sgl;
use crate::nvme::sqe::{SQE_BYTES, Sqe, SqeFlags};
use crate::nvme::status::{CommandSpecific, Generic, Status};
use crate::nvme::{bit_fields, wire_enum, wire_layout};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Opcode of every Fabrics command.
pub const FABRICS_OPCODE: u8 = 0x7F;

/// Size of Connect's data in bytes.
pub const CONNECT_DATA_BYTES: usize = 1024;

/// CNTLID that asks for any controller (dynamic controller model).
pub const CNTLID_DYNAMIC: u16 = 0xFFFF;

wire_enum! {
    /// FCTYPE: Fabrics command type, byte 4 of the entry.
    pub enum FabricsType: u8 {
        /// Property Set.
        PropertySet = 0x00,
        /// Connect.
        Connect = 0x01,
        /// Property Get.
        PropertyGet = 0x04,
        /// Authentication Send.
        AuthenticationSend = 0x05,
        /// Authentication Receive.
        AuthenticationReceive = 0x06,
        /// Disconnect.
        Disconnect = 0x08,
    }
}

bit_fields! {
    /// CATTR of Connect.
    pub struct ConnectAttributes: u8 {
        /// PRIOC: priority class.
        priority / with_priority: u8 [1:0],
        /// The host does not use submission queue flow control.
        disable_sq_flow_control / with_disable_sq_flow_control: bool [2:2],
        /// The host can delete single I/O queues (Disconnect).
        queue_deletion / with_queue_deletion: bool [3:3],
    }
}

/// Connect, the entry (NVMe over Fabrics, Connect command).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Connect {
    /// Opcode: 7Fh.
    pub opcode: u8,
    /// PSDT.
    pub flags: SqeFlags,
    /// CID.
    pub cid: U16,
    /// FCTYPE.
    pub fctype: u8,
    /// Reserved.
    pub reserved_5: [u8; 19],
    /// SGL1: where the 1024 bytes are.
    pub sgl1: Sgl,
    /// RECFMT: record format; 0.
    pub recfmt: U16,
    /// QID: 0 for an admin queue.
    pub qid: U16,
    /// SQSIZE: entries, 0's based.
    pub sqsize: U16,
    /// CATTR.
    pub cattr: ConnectAttributes,
    /// Reserved.
    pub reserved_47: u8,
    /// KATO: keep alive timeout in milliseconds; 0 for none. Admin queue only.
    pub kato_ms: U32,
    /// Reserved.
    pub reserved_52: [u8; 12],
}
wire_layout!(
    Connect, 64,
    flags @ 1, cid @ 2, fctype @ 4, sgl1 @ 24, recfmt @ 40, qid @ 42, sqsize @ 44, cattr @ 46,
    kato_ms @ 48,
);

/// Connect, the data (NVMe over Fabrics, Connect command data).
#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// HOSTID.
    pub hostid: [u8; 16],
    /// CNTLID: FFFFh for a new controller; on an I/O queue the one that admin Connect gave.
    pub cntlid: U16,
    /// Reserved.
    pub reserved_18: [u8; 238],
    /// SUBNQN.
    pub subnqn: [u8; 256],
    /// HOSTNQN.
    pub hostnqn: [u8; 256],
    /// Reserved.
    pub reserved_768: [u8; 256],
}
wire_layout!(ConnectData, 1024, cntlid @ 16, subnqn @ 256, hostnqn @ 512, reserved_768 @ 768);

impl Default for ConnectData {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

/// The field of Connect that is wrong: IPO and IATTR of Connect Invalid Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InvalidParameter {
    /// QID in the entry.
    Qid,
    /// SQSIZE in the entry.
    SqSize,
    /// CATTR in the entry.
    Cattr,
    /// KATO in the entry.
    Kato,
    /// HOSTID in the data.
    HostId,
    /// CNTLID in the data.
    CntlId,
    /// SUBNQN in the data.
    SubNqn,
    /// HOSTNQN in the data.
    HostNqn,
}

bit_fields! {
    /// DW0 of Connect's completion with Connect Invalid Parameters.
    pub struct InvalidParameterResult: u32 {
        /// IPO: offset of the wrong field in bytes.
        ipo / with_ipo: u16 [15:0],
        /// IATTR: the offset is in the data, else in the entry.
        in_data / with_in_data: bool [16:16],
    }
}

impl InvalidParameter {
    /// DW0 of the completion.
    pub fn result(self) -> u32 {
        let (in_data, offset) = match self {
            Self::Qid => (false, core::mem::offset_of!(Connect, qid)),
            Self::SqSize => (false, core::mem::offset_of!(Connect, sqsize)),
            Self::Cattr => (false, core::mem::offset_of!(Connect, cattr)),
            Self::Kato => (false, core::mem::offset_of!(Connect, kato_ms)),
            Self::HostId => (true, core::mem::offset_of!(ConnectData, hostid)),
            Self::CntlId => (true, core::mem::offset_of!(ConnectData, cntlid)),
            Self::SubNqn => (true, core::mem::offset_of!(ConnectData, subnqn)),
            Self::HostNqn => (true, core::mem::offset_of!(ConnectData, hostnqn)),
        };
        InvalidParameterResult::default().with_ipo(offset as u16).with_in_data(in_data).raw()
    }

    /// The status that goes with it.
    pub fn status(self) -> Status {
        CommandSpecific::ConnectInvalidParameters.into()
    }
}

bit_fields! {
    /// DW0 of Connect's completion with success.
    pub struct ConnectResponse: u32 {
        /// CNTLID.
        cntlid / with_cntlid: u16 [15:0],
        /// ATR: authentication is required.
        authentication_required / with_authentication_required: bool [17:17],
        /// ASCR: authentication over a secure channel is required.
        secure_channel_required / with_secure_channel_required: bool [18:18],
    }
}

wire_enum! {
    /// Properties of a controller over fabrics, by offset.
    pub enum Property: u32 {
        /// CAP, 8 bytes.
        Cap = 0x00,
        /// VS, 4 bytes.
        Vs = 0x08,
        /// CC, 4 bytes; the one that may be set.
        Cc = 0x14,
        /// CSTS, 4 bytes.
        Csts = 0x1C,
        /// NSSR, 4 bytes.
        Nssr = 0x20,
        /// CRTO, 4 bytes.
        Crto = 0x68,
    }
}

impl Property {
    /// Its size.
    pub const fn size(self) -> PropertySize {
        match self {
            Self::Cap => PropertySize::Eight,
            _ => PropertySize::Four,
        }
    }
}

wire_enum! {
    /// ATTRIB bits 2:0 of Property Get and Set.
    pub enum PropertySize: u8 {
        /// 4 bytes.
        Four = 0,
        /// 8 bytes.
        Eight = 1,
    }
}

bit_fields! {
    /// ATTRIB of Property Get and Set.
    pub struct PropertyAttributes: u8 {
        /// Size; see [`PropertySize`].
        size / with_size: u8 [2:0],
    }
}

/// Property Get and Property Set, the entry.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
struct PropertyEntry {
    opcode: u8,
    flags: SqeFlags,
    cid: U16,
    fctype: u8,
    reserved_5: [u8; 35],
    attrib: PropertyAttributes,
    reserved_41: [u8; 3],
    offset: U32,
    value: U64,
    reserved_56: [u8; 8],
}
wire_layout!(PropertyEntry, 64, fctype @ 4, attrib @ 40, offset @ 44, value @ 48);

/// Disconnect, the entry.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
struct DisconnectEntry {
    opcode: u8,
    flags: SqeFlags,
    cid: U16,
    fctype: u8,
    reserved_5: [u8; 35],
    recfmt: U16,
    reserved_42: [u8; 22],
}
wire_layout!(DisconnectEntry, 64, fctype @ 4, recfmt @ 40);

/// Authentication Send and Receive, the entry.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
struct AuthenticationEntry {
    opcode: u8,
    flags: SqeFlags,
    cid: U16,
    fctype: u8,
    reserved_5: [u8; 19],
    sgl1: Sgl,
    reserved_40: u8,
    spsp0: u8,
    spsp1: u8,
    secp: u8,
    length_bytes: U32,
    reserved_48: [u8; 16],
}
wire_layout!(AuthenticationEntry, 64, sgl1 @ 24, spsp0 @ 41, spsp1 @ 42, secp @ 43, length_bytes @ 44);

/// Authentication Send or Receive: a message of a security protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authentication {
    /// SECP: security protocol; E9h for DH-HMAC-CHAP.
    pub secp: u8,
    /// SPSP0.
    pub spsp0: u8,
    /// SPSP1.
    pub spsp1: u8,
    /// TL or AL: length of the message, or room for it, in bytes.
    pub length_bytes: u32,
}

/// A typed Fabrics command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FabricsCommand {
    /// Connect.
    Connect(Connect),
    /// Property Get.
    PropertyGet {
        /// Offset in bytes; unknown ones are for the controller to refuse.
        offset: u32,
        /// Size.
        size: PropertySize,
    },
    /// Property Set.
    PropertySet {
        /// Offset in bytes; unknown ones are for the controller to refuse.
        offset: u32,
        /// Size.
        size: PropertySize,
        /// Value; the upper half counts only for 8 bytes.
        value: u64,
    },
    /// Disconnect this I/O queue.
    Disconnect {
        /// RECFMT.
        recfmt: u16,
    },
    /// Authentication Send.
    AuthenticationSend(Authentication),
    /// Authentication Receive.
    AuthenticationReceive(Authentication),
}

impl FabricsCommand {
    /// The command in an entry whose opcode is [`FABRICS_OPCODE`].
    ///
    /// # Errors
    /// Invalid Opcode for another opcode; Invalid Field for an unknown FCTYPE, a
    /// reserved property size, or a fused command.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        if sqe.opcode != FABRICS_OPCODE {
            return Err(Generic::InvalidOpcode.into());
        }
        let bytes = sqe.to_bytes();
        let property: PropertyEntry = zerocopy::transmute!(bytes);
        let kind = FabricsType::from_raw(property.fctype).ok_or(Generic::InvalidField)?;
        if sqe.flags.fuse() != 0 {
            return Err(Generic::InvalidField.into());
        }
        let size = || PropertySize::from_raw(property.attrib.size()).ok_or(Generic::InvalidField);
        let offset = property.offset.get();
        Ok(match kind {
            FabricsType::Connect => Self::Connect(zerocopy::transmute!(bytes)),
            FabricsType::PropertyGet => Self::PropertyGet { offset, size: size()? },
            FabricsType::PropertySet => {
                Self::PropertySet { offset, size: size()?, value: property.value.get() }
            }
            FabricsType::Disconnect => {
                let entry: DisconnectEntry = zerocopy::transmute!(bytes);
                Self::Disconnect { recfmt: entry.recfmt.get() }
            }
            FabricsType::AuthenticationSend => Self::AuthenticationSend(authentication(bytes)),
            FabricsType::AuthenticationReceive => {
                Self::AuthenticationReceive(authentication(bytes))
            }
        })
    }

    /// The entry for this command. Only Connect brings its own data pointer.
    pub fn to_sqe(&self, cid: u16) -> Sqe {
        let base = |kind: FabricsType| Sqe {
            nsid: U32::new(u32::from(kind.raw())),
            ..Sqe::new(FABRICS_OPCODE, cid)
        };
        let property = |kind: FabricsType, offset: u32, size: PropertySize, value: u64| {
            let mut entry: PropertyEntry = zerocopy::transmute!(base(kind).to_bytes());
            entry.attrib = PropertyAttributes::default().with_size(size.raw());
            entry.offset = U32::new(offset);
            entry.value = U64::new(value);
            zerocopy::transmute!(entry)
        };
        let bytes: [u8; SQE_BYTES] = match *self {
            Self::Connect(mut connect) => {
                connect.opcode = FABRICS_OPCODE;
                connect.fctype = FabricsType::Connect.raw();
                connect.cid = U16::new(cid);
                zerocopy::transmute!(connect)
            }
            Self::PropertyGet { offset, size } => {
                property(FabricsType::PropertyGet, offset, size, 0)
            }
            Self::PropertySet { offset, size, value } => {
                property(FabricsType::PropertySet, offset, size, value)
            }
            Self::Disconnect { recfmt } => {
                let mut entry: DisconnectEntry =
                    zerocopy::transmute!(base(FabricsType::Disconnect).to_bytes());
                entry.recfmt = U16::new(recfmt);
                zerocopy::transmute!(entry)
            }
            Self::AuthenticationSend(command) => {
                authentication_bytes(base(FabricsType::AuthenticationSend), command)
            }
            Self::AuthenticationReceive(command) => {
                authentication_bytes(base(FabricsType::AuthenticationReceive), command)
            }
        };
        Sqe::from_bytes(bytes)
    }
}

impl Connect {
    /// A Connect with its data in the capsule.
    pub fn new(qid: u16, sqsize: u16, kato_ms: u32) -> Self {
        let mut connect = Self::new_zeroed();
        connect.opcode = FABRICS_OPCODE;
        connect.flags = SqeFlags::default().with_psdt(crate::nvme::sqe::PSDT_SGL);
        connect.fctype = FabricsType::Connect.raw();
        connect.sgl1 = Sgl::in_capsule(0, CONNECT_DATA_BYTES as u32);
        connect.qid = U16::new(qid);
        connect.sqsize = U16::new(sqsize);
        connect.kato_ms = U32::new(kato_ms);
        connect
    }
}

fn authentication(bytes: [u8; SQE_BYTES]) -> Authentication {
    let entry: AuthenticationEntry = zerocopy::transmute!(bytes);
    Authentication {
        secp: entry.secp,
        spsp0: entry.spsp0,
        spsp1: entry.spsp1,
        length_bytes: entry.length_bytes.get(),
    }
}

fn authentication_bytes(base: Sqe, command: Authentication) -> [u8; SQE_BYTES] {
    let mut entry: AuthenticationEntry = zerocopy::transmute!(base.to_bytes());
    entry.secp = command.secp;
    entry.spsp0 = command.spsp0;
    entry.spsp1 = command.spsp1;
    entry.length_bytes = U32::new(command.length_bytes);
    zerocopy::transmute!(entry)
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
