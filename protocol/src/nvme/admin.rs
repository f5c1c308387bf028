//! Admin commands: a raw entry becomes a typed command once, here.
//!
//! Parsing fails only where the entry itself is wrong whatever the controller
//! supports: an opcode that is not served, or a reserved value of a field that
//! selects meaning. Whether a page, feature or namespace exists is the
//! controller's to say. Fabrics commands (opcode 7Fh) are in [`crate::fabrics`].
use super::feature::FeatureSelect;
use super::sqe::Sqe;
use super::status::{Generic, Status};
use super::{bit_fields, wire_enum};
use zerocopy::little_endian::U32;

wire_enum! {
    /// Admin opcodes that are served (NVMe Base, Admin Command Set).
    pub enum AdminOpcode: u8 {
        /// Get Log Page.
        GetLogPage = 0x02,
        /// Identify.
        Identify = 0x06,
        /// Abort.
        Abort = 0x08,
        /// Set Features.
        SetFeatures = 0x09,
        /// Get Features.
        GetFeatures = 0x0A,
        /// Asynchronous Event Request.
        AsyncEventRequest = 0x0C,
        /// Keep Alive.
        KeepAlive = 0x18,
    }
}

bit_fields! {
    /// CDW10 of Get Log Page.
    pub struct GetLogPageCdw10: u32 {
        /// LID.
        lid / with_lid: u8 [7:0],
        /// LSP: log specific.
        lsp / with_lsp: u8 [14:8],
        /// RAE: retain asynchronous event.
        rae / with_rae: bool [15:15],
        /// NUMDL: dwords wanted, 0's based, low half.
        numdl / with_numdl: u16 [31:16],
    }
}

bit_fields! {
    /// CDW11 of Get Log Page.
    pub struct GetLogPageCdw11: u32 {
        /// NUMDU: dwords wanted, 0's based, high half.
        numdu / with_numdu: u16 [15:0],
        /// LSI: log specific identifier.
        lsi / with_lsi: u16 [31:16],
    }
}

bit_fields! {
    /// CDW14 of Get Log Page, and of Identify and the Features commands.
    pub struct Cdw14: u32 {
        /// UUID index.
        uuid_index / with_uuid_index: u8 [6:0],
        /// OT of Get Log Page: the offset is an index.
        index_offset / with_index_offset: bool [23:23],
        /// CSI of Get Log Page.
        csi / with_csi: u8 [31:24],
    }
}

bit_fields! {
    /// CDW10 of Identify.
    pub struct IdentifyCdw10: u32 {
        /// CNS.
        cns / with_cns: u8 [7:0],
        /// CNTID.
        cntid / with_cntid: u16 [31:16],
    }
}

bit_fields! {
    /// CDW11 of Identify.
    pub struct IdentifyCdw11: u32 {
        /// CNS specific identifier.
        specific / with_specific: u16 [15:0],
        /// CSI.
        csi / with_csi: u8 [31:24],
    }
}

bit_fields! {
    /// CDW10 of Abort.
    pub struct AbortCdw10: u32 {
        /// SQID.
        sqid / with_sqid: u16 [15:0],
        /// CID.
        cid / with_cid: u16 [31:16],
    }
}

bit_fields! {
    /// CDW10 of Get Features and Set Features.
    pub struct FeaturesCdw10: u32 {
        /// FID.
        fid / with_fid: u8 [7:0],
        /// SEL of Get Features.
        select / with_select: u8 [10:8],
        /// SV of Set Features.
        save / with_save: bool [31:31],
    }
}

/// Get Log Page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GetLogPage {
    /// NSID.
    pub nsid: u32,
    /// LID; unknown ones are for the controller to refuse.
    pub lid: u8,
    /// LSP, 7 bits.
    pub lsp: u8,
    /// RAE.
    pub retain_event: bool,
    /// NUMD as sent: dwords wanted, 0's based.
    pub numd: u32,
    /// LSI.
    pub lsi: u16,
    /// LPO: offset in bytes, or an index if `index_offset`.
    pub offset: u64,
    /// OT.
    pub index_offset: bool,
    /// UUID index, 7 bits.
    pub uuid_index: u8,
    /// CSI.
    pub csi: u8,
}

impl GetLogPage {
    /// How much is wanted, in bytes: 4 to 16 GiB.
    pub fn length_bytes(&self) -> u64 {
        (u64::from(self.numd) + 1) * 4
    }
}

/// Identify.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identify {
    /// NSID.
    pub nsid: u32,
    /// CNS; unknown ones are for the controller to refuse.
    pub cns: u8,
    /// CNTID.
    pub cntid: u16,
    /// CNS specific identifier.
    pub specific: u16,
    /// CSI.
    pub csi: u8,
    /// UUID index, 7 bits.
    pub uuid_index: u8,
}

/// Set Features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetFeatures {
    /// NSID.
    pub nsid: u32,
    /// FID; unknown ones are for the controller to refuse.
    pub fid: u8,
    /// SV.
    pub save: bool,
    /// CDW11: the value.
    pub value: u32,
    /// UUID index, 7 bits.
    pub uuid_index: u8,
}

/// Get Features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetFeatures {
    /// NSID.
    pub nsid: u32,
    /// FID; unknown ones are for the controller to refuse.
    pub fid: u8,
    /// SEL.
    pub select: FeatureSelect,
    /// CDW11: which of the feature's values, for those that have several.
    pub cdw11: u32,
    /// UUID index, 7 bits.
    pub uuid_index: u8,
}

/// A typed admin command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminCommand {
    /// Get Log Page.
    GetLogPage(GetLogPage),
    /// Identify.
    Identify(Identify),
    /// Abort the command `cid` of queue `sqid`.
    Abort {
        /// SQID.
        sqid: u16,
        /// CID.
        cid: u16,
    },
    /// Set Features.
    SetFeatures(SetFeatures),
    /// Get Features.
    GetFeatures(GetFeatures),
    /// Asynchronous Event Request.
    AsyncEventRequest,
    /// Keep Alive.
    KeepAlive,
}

impl AdminCommand {
    /// The command in an admin queue entry.
    ///
    /// # Errors
    /// Invalid Opcode for one that is not served; Invalid Field for a fused
    /// command or a reserved SEL of Get Features.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        let opcode = AdminOpcode::from_raw(sqe.opcode).ok_or(Generic::InvalidOpcode)?;
        if sqe.flags.fuse() != 0 {
            return Err(Generic::InvalidField.into());
        }
        let nsid = sqe.nsid.get();
        let (cdw10, cdw11) = (sqe.cdw10.get(), sqe.cdw11.get());
        let cdw14 = Cdw14::from_raw(sqe.cdw14.get());
        Ok(match opcode {
            AdminOpcode::GetLogPage => Self::GetLogPage(parse_get_log_page(sqe)),
            AdminOpcode::Identify => {
                let (cdw10, cdw11) =
                    (IdentifyCdw10::from_raw(cdw10), IdentifyCdw11::from_raw(cdw11));
                Self::Identify(Identify {
                    nsid,
                    cns: cdw10.cns(),
                    cntid: cdw10.cntid(),
                    specific: cdw11.specific(),
                    csi: cdw11.csi(),
                    uuid_index: cdw14.uuid_index(),
                })
            }
            AdminOpcode::Abort => {
                let cdw10 = AbortCdw10::from_raw(cdw10);
                Self::Abort { sqid: cdw10.sqid(), cid: cdw10.cid() }
            }
            AdminOpcode::SetFeatures => {
                let cdw10 = FeaturesCdw10::from_raw(cdw10);
                Self::SetFeatures(SetFeatures {
                    nsid,
                    fid: cdw10.fid(),
                    save: cdw10.save(),
                    value: cdw11,
                    uuid_index: cdw14.uuid_index(),
                })
            }
            AdminOpcode::GetFeatures => {
                let cdw10 = FeaturesCdw10::from_raw(cdw10);
                let select =
                    FeatureSelect::from_raw(cdw10.select()).ok_or(Generic::InvalidField)?;
                Self::GetFeatures(GetFeatures {
                    nsid,
                    fid: cdw10.fid(),
                    select,
                    cdw11,
                    uuid_index: cdw14.uuid_index(),
                })
            }
            AdminOpcode::AsyncEventRequest => Self::AsyncEventRequest,
            AdminOpcode::KeepAlive => Self::KeepAlive,
        })
    }

    /// The entry for this command, without a data pointer.
    pub fn to_sqe(&self, cid: u16) -> Sqe {
        match *self {
            Self::GetLogPage(command) => get_log_page_sqe(&command, cid),
            Self::Identify(command) => Sqe {
                nsid: U32::new(command.nsid),
                cdw10: U32::new(
                    IdentifyCdw10::default().with_cns(command.cns).with_cntid(command.cntid).raw(),
                ),
                cdw11: U32::new(
                    IdentifyCdw11::default()
                        .with_specific(command.specific)
                        .with_csi(command.csi)
                        .raw(),
                ),
                cdw14: uuid_cdw14(command.uuid_index),
                ..Sqe::new(AdminOpcode::Identify.raw(), cid)
            },
            Self::Abort { sqid, cid: aborted } => Sqe {
                cdw10: U32::new(AbortCdw10::default().with_sqid(sqid).with_cid(aborted).raw()),
                ..Sqe::new(AdminOpcode::Abort.raw(), cid)
            },
            Self::SetFeatures(command) => Sqe {
                nsid: U32::new(command.nsid),
                cdw10: U32::new(
                    FeaturesCdw10::default().with_fid(command.fid).with_save(command.save).raw(),
                ),
                cdw11: U32::new(command.value),
                cdw14: uuid_cdw14(command.uuid_index),
                ..Sqe::new(AdminOpcode::SetFeatures.raw(), cid)
            },
            Self::GetFeatures(command) => Sqe {
                nsid: U32::new(command.nsid),
                cdw10: U32::new(
                    FeaturesCdw10::default()
                        .with_fid(command.fid)
                        .with_select(command.select.raw())
                        .raw(),
                ),
                cdw11: U32::new(command.cdw11),
                cdw14: uuid_cdw14(command.uuid_index),
                ..Sqe::new(AdminOpcode::GetFeatures.raw(), cid)
            },
            Self::AsyncEventRequest => Sqe::new(AdminOpcode::AsyncEventRequest.raw(), cid),
            Self::KeepAlive => Sqe::new(AdminOpcode::KeepAlive.raw(), cid),
        }
    }
}

fn uuid_cdw14(index: u8) -> U32 {
    U32::new(Cdw14::default().with_uuid_index(index).raw())
}

fn parse_get_log_page(sqe: &Sqe) -> GetLogPage {
    let cdw10 = GetLogPageCdw10::from_raw(sqe.cdw10.get());
    let cdw11 = GetLogPageCdw11::from_raw(sqe.cdw11.get());
    let cdw14 = Cdw14::from_raw(sqe.cdw14.get());
    GetLogPage {
        nsid: sqe.nsid.get(),
        lid: cdw10.lid(),
        lsp: cdw10.lsp(),
        retain_event: cdw10.rae(),
        numd: u32::from(cdw10.numdl()) | (u32::from(cdw11.numdu()) << 16),
        lsi: cdw11.lsi(),
        offset: u64::from(sqe.cdw12.get()) | (u64::from(sqe.cdw13.get()) << 32),
        index_offset: cdw14.index_offset(),
        uuid_index: cdw14.uuid_index(),
        csi: cdw14.csi(),
    }
}

fn get_log_page_sqe(command: &GetLogPage, cid: u16) -> Sqe {
    Sqe {
        nsid: U32::new(command.nsid),
        cdw10: U32::new(
            GetLogPageCdw10::default()
                .with_lid(command.lid)
                .with_lsp(command.lsp)
                .with_rae(command.retain_event)
                .with_numdl(command.numd as u16)
                .raw(),
        ),
        cdw11: U32::new(
            GetLogPageCdw11::default()
                .with_numdu((command.numd >> 16) as u16)
                .with_lsi(command.lsi)
                .raw(),
        ),
        cdw12: U32::new(command.offset as u32),
        cdw13: U32::new((command.offset >> 32) as u32),
        cdw14: U32::new(
            Cdw14::default()
                .with_uuid_index(command.uuid_index)
                .with_index_offset(command.index_offset)
                .with_csi(command.csi)
                .raw(),
        ),
        ..Sqe::new(AdminOpcode::GetLogPage.raw(), cid)
    }
}

wire_enum! {
    /// Type of an asynchronous event (NVMe Base, Asynchronous Event Request command).
    pub enum EventType: u8 {
        /// Error status.
        Error = 0,
        /// SMART / health status.
        SmartHealth = 1,
        /// Notice.
        Notice = 2,
        /// Immediate.
        Immediate = 3,
        /// I/O command specific.
        IoCommand = 6,
    }
}

wire_enum! {
    /// Information of a SMART / health event.
    pub enum SmartEvent: u8 {
        /// The subsystem's reliability.
        Reliability = 0,
        /// A temperature threshold was crossed.
        Temperature = 1,
        /// Spare is below its threshold.
        Spare = 2,
    }
}

wire_enum! {
    /// Information of a notice.
    pub enum Notice: u8 {
        /// Namespace attributes changed (log 04h).
        NamespaceAttribute = 0x00,
        /// A firmware activation started.
        FirmwareActivation = 0x01,
        /// Telemetry log changed.
        Telemetry = 0x02,
        /// Asymmetric namespace access changed (log 0Ch).
        AnaChange = 0x03,
        /// Discovery log page changed (log 70h).
        DiscoveryChange = 0xF0,
    }
}

bit_fields! {
    /// DW0 of an Asynchronous Event Request's completion.
    pub struct AsyncEvent: u32 {
        /// Type; see [`EventType`].
        kind / with_kind: u8 [2:0],
        /// Information, by type.
        information / with_information: u8 [15:8],
        /// The log page to read.
        log / with_log: u8 [23:16],
    }
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
