//! I/O commands: checked once, and turned into byte ranges.
//!
//! Order of the checks: opcode, fused, namespace, fields, range, size, data
//! pointer. After this nothing about a command can be wrong but the drives.
use super::subsystem::{Limits, Namespace, Subsystem};
use super::transfer::{DataIn, data_in, data_out};
use raidfabric_protocol::fabrics::FabricsCommand;
use raidfabric_protocol::fabrics::command::FABRICS_OPCODE;
use raidfabric_protocol::nvme::identify::NSID_ALL;
use raidfabric_protocol::nvme::io::{BlockRange, DSM_RANGES_MAX, DsmRange, IoCommand, Prinfo};
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::nvme::status::{CommandSpecific, Generic, Nvm, Status};
use zerocopy::FromBytes;

/// Which namespaces to flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// One.
    One(u32),
    /// All of the subsystem.
    All,
}

/// A checked command of an I/O queue. Offsets and lengths are multiples of the
/// block size and lie within the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoRequest {
    /// Read.
    Read {
        /// NSID.
        nsid: u32,
        /// From the start of the namespace, in bytes.
        offset_bytes: u64,
        /// Length in bytes, not 0, at most the largest transfer.
        length_bytes: u32,
        /// What is read must be on non-volatile media first.
        fua: bool,
    },
    /// Write.
    Write {
        /// NSID.
        nsid: u32,
        /// From the start of the namespace, in bytes.
        offset_bytes: u64,
        /// Where the data is; its length is that of the write.
        data: DataIn,
        /// The write must be on non-volatile media when acknowledged.
        fua: bool,
    },
    /// Write zeros.
    WriteZeroes {
        /// NSID.
        nsid: u32,
        /// From the start of the namespace, in bytes.
        offset_bytes: u64,
        /// Length in bytes, not 0.
        length_bytes: u64,
        /// The range may be deallocated if it then reads as zeros.
        deallocate: bool,
        /// The zeros must be on non-volatile media when acknowledged.
        fua: bool,
    },
    /// Dataset Management; [`dsm_ranges`] reads its data.
    DatasetManagement {
        /// NSID.
        nsid: u32,
        /// Ranges, 1 to 256.
        ranges: u16,
        /// The ranges are to be deallocated; without it they are hints only.
        deallocate: bool,
        /// Where the list is.
        data: DataIn,
    },
    /// Flush.
    Flush(Flush),
    /// Disconnect: complete it, then close the queue.
    Disconnect,
}

/// Checks a command that came on an I/O queue with `capsule_bytes` of data.
///
/// # Errors
/// The status to complete the command with; then nothing is to be transferred.
pub fn parse(sqe: &Sqe, capsule_bytes: u32, subsystem: &Subsystem) -> Result<IoRequest, Status> {
    if sqe.opcode == FABRICS_OPCODE {
        return parse_fabrics(sqe);
    }
    let command = IoCommand::parse(sqe)?;
    if let IoCommand::Flush { nsid: NSID_ALL } = command {
        return Ok(IoRequest::Flush(Flush::All));
    }
    let namespace = subsystem.namespace(command.nsid()).ok_or(Generic::InvalidNamespaceOrFormat)?;
    let limits = &subsystem.limits;
    let nsid = namespace.nsid;
    Ok(match command {
        IoCommand::Flush { .. } => IoRequest::Flush(Flush::One(nsid)),
        IoCommand::Read(range) => {
            let (offset_bytes, length_bytes) = transfer_range(&range, namespace, limits)?;
            if data_out(sqe)? != length_bytes {
                return Err(Generic::DataSglLengthInvalid.into());
            }
            IoRequest::Read { nsid, offset_bytes, length_bytes, fua: range.fua }
        }
        IoCommand::Write { range, directive } => {
            // Directives are not offered.
            if directive != 0 {
                return Err(Generic::InvalidField.into());
            }
            let (offset_bytes, length_bytes) = transfer_range(&range, namespace, limits)?;
            let data = data_in(sqe, capsule_bytes)?;
            if data.length_bytes() != length_bytes {
                return Err(Generic::DataSglLengthInvalid.into());
            }
            IoRequest::Write { nsid, offset_bytes, data, fua: range.fua }
        }
        IoCommand::WriteZeroes { range, deallocate } => {
            check_protection(&range)?;
            let (offset_bytes, length_bytes) =
                byte_range(range.slba, u64::from(range.blocks), namespace)?;
            IoRequest::WriteZeroes { nsid, offset_bytes, length_bytes, deallocate, fua: range.fua }
        }
        IoCommand::DatasetManagement { ranges, attributes, .. } => {
            let data = data_in(sqe, capsule_bytes)?;
            // Linux always sends room for all ranges, whatever their number.
            let needed = usize::from(ranges) * size_of::<DsmRange>();
            let length = data.length_bytes() as usize;
            if length < needed || length > DSM_RANGES_MAX * size_of::<DsmRange>() {
                return Err(Generic::DataSglLengthInvalid.into());
            }
            IoRequest::DatasetManagement { nsid, ranges, deallocate: attributes.ad(), data }
        }
    })
}

/// Fabrics commands on an I/O queue: Disconnect, and nothing else once connected.
fn parse_fabrics(sqe: &Sqe) -> Result<IoRequest, Status> {
    match FabricsCommand::parse(sqe)? {
        FabricsCommand::Disconnect { recfmt: 0 } => Ok(IoRequest::Disconnect),
        FabricsCommand::Disconnect { .. } => Err(CommandSpecific::ConnectIncompatibleFormat.into()),
        FabricsCommand::Connect(_) => Err(Generic::CommandSequenceError.into()),
        FabricsCommand::PropertyGet { .. }
        | FabricsCommand::PropertySet { .. }
        | FabricsCommand::AuthenticationSend(_)
        | FabricsCommand::AuthenticationReceive(_) => Err(Generic::InvalidOpcode.into()),
    }
}

/// There is no protection information: asking for it must not go unnoticed.
fn check_protection(range: &BlockRange) -> Result<(), Status> {
    if range.prinfo == Prinfo::default() && !range.storage_tag_check {
        Ok(())
    } else {
        Err(Nvm::InvalidProtectionInformation.into())
    }
}

/// A range of blocks in bytes.
fn byte_range(slba: u64, blocks: u64, namespace: &Namespace) -> Result<(u64, u64), Status> {
    let end = slba.checked_add(blocks).ok_or(Generic::LbaOutOfRange)?;
    if end > namespace.size_blocks {
        return Err(Generic::LbaOutOfRange.into());
    }
    // No overflow: a namespace has at most 2^63 bytes.
    Ok((slba << namespace.block_shift(), blocks << namespace.block_shift()))
}

/// The range of a command that transfers data, within the largest transfer.
fn transfer_range(
    range: &BlockRange,
    namespace: &Namespace,
    limits: &Limits,
) -> Result<(u64, u32), Status> {
    check_protection(range)?;
    let (offset_bytes, length_bytes) = byte_range(range.slba, u64::from(range.blocks), namespace)?;
    match u32::try_from(length_bytes) {
        Ok(length_bytes) if length_bytes <= limits.max_transfer_bytes => {
            Ok((offset_bytes, length_bytes))
        }
        _ => Err(Generic::InvalidField.into()),
    }
}

/// The ranges in a Dataset Management command's data: offsets and lengths in bytes.
///
/// Ranges of no blocks are left out.
///
/// # Errors
/// LBA Out of Range if any range leaves the namespace: then none is to be acted
/// on. Data SGL Length Invalid if there are fewer than `ranges`.
pub fn dsm_ranges<'a>(
    data: &'a [u8],
    ranges: u16,
    namespace: &'a Namespace,
) -> Result<impl Iterator<Item = (u64, u64)> + use<'a>, Status> {
    let list = data
        .get(..usize::from(ranges) * size_of::<DsmRange>())
        .ok_or(Generic::DataSglLengthInvalid)?;
    let list = <[DsmRange]>::ref_from_bytes(list).map_err(|_| Generic::DataSglLengthInvalid)?;
    let in_bytes =
        |range: &DsmRange| byte_range(range.slba.get(), u64::from(range.nlb.get()), namespace);
    for range in list {
        in_bytes(range)?;
    }
    let used = list.iter().filter(|range| range.nlb.get() != 0);
    Ok(used.filter_map(move |range| in_bytes(range).ok()))
}

#[cfg(test)]
#[path = "io_tests.rs"]
mod tests;
