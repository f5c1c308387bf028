//! NVM commands: a raw entry becomes a typed command once, here.
//!
//! Values are as the host sent them, in logical blocks and with 0's based
//! counts resolved. Whether the range is inside the namespace, or the length
//! within a limit, is not decided here.
use super::sqe::Sqe;
use super::status::{Generic, Status};
use super::{bit_fields, wire_enum, wire_layout};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

wire_enum! {
    /// I/O opcodes that are served (NVM Command Set).
    pub enum IoOpcode: u8 {
        /// Flush.
        Flush = 0x00,
        /// Write.
        Write = 0x01,
        /// Read.
        Read = 0x02,
        /// Write Zeroes.
        WriteZeroes = 0x08,
        /// Dataset Management.
        DatasetManagement = 0x09,
    }
}

bit_fields! {
    /// PRINFO: protection information, 4 bits of CDW12.
    pub struct Prinfo: u8 {
        /// PRCHK: which fields to check.
        prchk / with_prchk: u8 [2:0],
        /// PRACT: the controller inserts and strips.
        pract / with_pract: bool [3:3],
    }
}

bit_fields! {
    /// CDW12 of Read, Write and Write Zeroes.
    pub struct RwCdw12: u32 {
        /// NLB: blocks, 0's based.
        nlb / with_nlb: u16 [15:0],
        /// DTYPE of Write: directive type.
        dtype / with_dtype: u8 [23:20],
        /// STC: storage tag check.
        stc / with_stc: bool [24:24],
        /// DEAC of Write Zeroes: deallocate.
        deac / with_deac: bool [25:25],
        /// PRINFO.
        prinfo / with_prinfo: u8 [29:26],
        /// FUA: force unit access.
        fua / with_fua: bool [30:30],
        /// LR: limited retry.
        lr / with_lr: bool [31:31],
    }
}

bit_fields! {
    /// CDW10 of Dataset Management.
    pub struct DsmCdw10: u32 {
        /// NR: ranges, 0's based.
        nr / with_nr: u8 [7:0],
    }
}

bit_fields! {
    /// CDW11 of Dataset Management.
    pub struct DsmAttributes: u32 {
        /// IDR: integral dataset for read.
        idr / with_idr: bool [0:0],
        /// IDW: integral dataset for write.
        idw / with_idw: bool [1:1],
        /// AD: deallocate.
        ad / with_ad: bool [2:2],
    }
}

/// One range of Dataset Management (NVM Command Set, Dataset Management command).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DsmRange {
    /// Context attributes: hints.
    pub cattr: U32,
    /// NLB: blocks, *not* 0's based.
    pub nlb: U32,
    /// SLBA.
    pub slba: U64,
}
wire_layout!(DsmRange, 16, nlb @ 4, slba @ 8);

/// Ranges in one Dataset Management command, at most.
pub const DSM_RANGES_MAX: usize = 256;

/// Fields that Read, Write and Write Zeroes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// NSID.
    pub nsid: u32,
    /// First logical block.
    pub slba: u64,
    /// Blocks, 1 to 65,536.
    pub blocks: u32,
    /// Force unit access.
    pub fua: bool,
    /// Limited retry.
    pub limited_retry: bool,
    /// Protection information.
    pub prinfo: Prinfo,
    /// Storage tag check.
    pub storage_tag_check: bool,
}

/// A typed NVM command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoCommand {
    /// Flush a namespace, or all with NSID FFFFFFFFh.
    Flush {
        /// NSID.
        nsid: u32,
    },
    /// Write.
    Write {
        /// Where.
        range: BlockRange,
        /// Directive type; 0 for none.
        directive: u8,
    },
    /// Read.
    Read(BlockRange),
    /// Write zeros.
    WriteZeroes {
        /// Where.
        range: BlockRange,
        /// The blocks may be deallocated, if they then read as zeros.
        deallocate: bool,
    },
    /// Dataset Management: a list of ranges follows as data.
    DatasetManagement {
        /// NSID.
        nsid: u32,
        /// Ranges, 1 to 256.
        ranges: u16,
        /// What is said about them.
        attributes: DsmAttributes,
    },
}

impl IoCommand {
    /// The command in an I/O queue entry.
    ///
    /// # Errors
    /// Invalid Opcode for one that is not served; Invalid Field for a fused command.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        let opcode = IoOpcode::from_raw(sqe.opcode).ok_or(Generic::InvalidOpcode)?;
        if sqe.flags.fuse() != 0 {
            return Err(Generic::InvalidField.into());
        }
        let nsid = sqe.nsid.get();
        let cdw12 = RwCdw12::from_raw(sqe.cdw12.get());
        let range = || BlockRange {
            nsid,
            slba: u64::from(sqe.cdw10.get()) | (u64::from(sqe.cdw11.get()) << 32),
            blocks: u32::from(cdw12.nlb()) + 1,
            fua: cdw12.fua(),
            limited_retry: cdw12.lr(),
            prinfo: Prinfo::from_raw(cdw12.prinfo()),
            storage_tag_check: cdw12.stc(),
        };
        Ok(match opcode {
            IoOpcode::Flush => Self::Flush { nsid },
            IoOpcode::Write => Self::Write { range: range(), directive: cdw12.dtype() },
            IoOpcode::Read => Self::Read(range()),
            IoOpcode::WriteZeroes => Self::WriteZeroes { range: range(), deallocate: cdw12.deac() },
            IoOpcode::DatasetManagement => Self::DatasetManagement {
                nsid,
                ranges: u16::from(DsmCdw10::from_raw(sqe.cdw10.get()).nr()) + 1,
                attributes: DsmAttributes::from_raw(sqe.cdw11.get()),
            },
        })
    }

    /// NSID of the command.
    pub fn nsid(&self) -> u32 {
        match *self {
            Self::Flush { nsid } | Self::DatasetManagement { nsid, .. } => nsid,
            Self::Write { range, .. } | Self::Read(range) | Self::WriteZeroes { range, .. } => {
                range.nsid
            }
        }
    }

    /// The entry for this command, without a data pointer.
    ///
    /// Counts beyond their range (65,536 blocks, 256 ranges) are cut to it, and 0 becomes 1.
    pub fn to_sqe(&self, cid: u16) -> Sqe {
        match *self {
            Self::Flush { nsid } => {
                Sqe { nsid: U32::new(nsid), ..Sqe::new(IoOpcode::Flush.raw(), cid) }
            }
            Self::Write { range, directive } => {
                let cdw12 = RwCdw12::default().with_dtype(directive);
                range_sqe(IoOpcode::Write, cid, &range, cdw12)
            }
            Self::Read(range) => range_sqe(IoOpcode::Read, cid, &range, RwCdw12::default()),
            Self::WriteZeroes { range, deallocate } => {
                let cdw12 = RwCdw12::default().with_deac(deallocate);
                range_sqe(IoOpcode::WriteZeroes, cid, &range, cdw12)
            }
            Self::DatasetManagement { nsid, ranges, attributes } => {
                let nr = ranges.clamp(1, DSM_RANGES_MAX as u16) - 1;
                Sqe {
                    nsid: U32::new(nsid),
                    cdw10: U32::new(DsmCdw10::default().with_nr(nr as u8).raw()),
                    cdw11: U32::new(attributes.raw()),
                    ..Sqe::new(IoOpcode::DatasetManagement.raw(), cid)
                }
            }
        }
    }
}

fn range_sqe(opcode: IoOpcode, cid: u16, range: &BlockRange, cdw12: RwCdw12) -> Sqe {
    let cdw12 = cdw12
        .with_nlb((range.blocks.clamp(1, 1 << 16) - 1) as u16)
        .with_fua(range.fua)
        .with_lr(range.limited_retry)
        .with_prinfo(range.prinfo.raw())
        .with_stc(range.storage_tag_check);
    Sqe {
        nsid: U32::new(range.nsid),
        cdw10: U32::new(range.slba as u32),
        cdw11: U32::new((range.slba >> 32) as u32),
        cdw12: U32::new(cdw12.raw()),
        ..Sqe::new(opcode.raw(), cid)
    }
}

wire_enum! {
    /// Bits 1:0 of an opcode, or of a Fabrics command type: which way data goes.
    pub enum Direction: u8 {
        /// No data.
        None = 0,
        /// From the host to the controller.
        FromHost = 1,
        /// From the controller to the host.
        ToHost = 2,
        /// Both; no such command is served.
        Both = 3,
    }
}

impl Direction {
    /// The direction that an opcode implies.
    pub fn of_opcode(opcode: u8) -> Self {
        Self::from_raw(opcode & 0b11).unwrap_or(Self::Both)
    }
}

#[cfg(test)]
#[path = "io_tests.rs"]
mod tests;
