//! Where a command's data is: the data pointer, checked against the direction
//! and against what came in the capsule.
use raidfabric_protocol::fabrics::command::FABRICS_OPCODE;
use raidfabric_protocol::nvme::io::Direction;
use raidfabric_protocol::nvme::sgl::DataPointer;
use raidfabric_protocol::nvme::sqe::{PSDT_SGL, Sqe};
use raidfabric_protocol::nvme::status::{Generic, Status};

/// Where data from the host is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataIn {
    /// It came in the capsule; the range lies within what came.
    InCapsule {
        /// From the start of the capsule's data, in bytes.
        offset_bytes: u32,
        /// Length in bytes.
        length_bytes: u32,
    },
    /// It has to be fetched (R2T).
    Transport {
        /// Length in bytes.
        length_bytes: u32,
    },
}

impl DataIn {
    /// Length in bytes.
    pub fn length_bytes(&self) -> u32 {
        match *self {
            Self::InCapsule { length_bytes, .. } | Self::Transport { length_bytes } => length_bytes,
        }
    }
}

/// The data of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// None.
    None,
    /// To the host, exactly this much if the command succeeds.
    ToHost {
        /// Length in bytes.
        length_bytes: u32,
    },
    /// From the host.
    FromHost(DataIn),
}

/// Checks the data pointer for data from the host. `capsule_bytes` came with the command.
pub(super) fn data_in(sqe: &Sqe, capsule_bytes: u32) -> Result<DataIn, Status> {
    match pointer(sqe)? {
        DataPointer::InCapsule { offset_bytes, length_bytes } => {
            let offset_bytes =
                u32::try_from(offset_bytes).map_err(|_| Generic::SglOffsetInvalid)?;
            let room = capsule_bytes.checked_sub(offset_bytes).ok_or(Generic::SglOffsetInvalid)?;
            if length_bytes > room {
                return Err(Generic::DataSglLengthInvalid.into());
            }
            Ok(DataIn::InCapsule { offset_bytes, length_bytes })
        }
        DataPointer::Transport { length_bytes } => Ok(DataIn::Transport { length_bytes }),
    }
}

/// Checks the data pointer for data to the host and gives its length in bytes.
pub(super) fn data_out(sqe: &Sqe) -> Result<u32, Status> {
    match pointer(sqe)? {
        DataPointer::Transport { length_bytes } => Ok(length_bytes),
        DataPointer::InCapsule { .. } => Err(Generic::SglDescriptorTypeInvalid.into()),
    }
}

fn pointer(sqe: &Sqe) -> Result<DataPointer, Status> {
    // PRPs and metadata SGLs do not exist over this transport.
    if sqe.flags.psdt() != PSDT_SGL {
        return Err(Generic::InvalidField.into());
    }
    sqe.dptr.data_pointer()
}

/// The data of a command on the admin queue, or of a Fabrics command on any queue.
///
/// `capsule_bytes` came with the command; `max_bytes` is the largest transfer.
///
/// # Errors
/// The status to complete the command with; then nothing is to be transferred.
pub fn admin_transfer(sqe: &Sqe, capsule_bytes: u32, max_bytes: u32) -> Result<Transfer, Status> {
    let fabrics_type = sqe.nsid.get() as u8;
    let opcode = if sqe.opcode == FABRICS_OPCODE { fabrics_type } else { sqe.opcode };
    // Set Features is in the class "from the host", but most features have no data.
    let no_data = sqe.dptr.length_bytes.get() == 0;
    let transfer = match Direction::of_opcode(opcode) {
        Direction::None | Direction::Both => Transfer::None,
        Direction::FromHost | Direction::ToHost if no_data => Transfer::None,
        Direction::FromHost => Transfer::FromHost(data_in(sqe, capsule_bytes)?),
        Direction::ToHost => Transfer::ToHost { length_bytes: data_out(sqe)? },
    };
    let length_bytes = match transfer {
        Transfer::None => 0,
        Transfer::ToHost { length_bytes } => length_bytes,
        Transfer::FromHost(data) => data.length_bytes(),
    };
    if length_bytes > max_bytes {
        return Err(Generic::InvalidField.into());
    }
    Ok(transfer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use raidfabric_protocol::fabrics::command::{Connect, FabricsCommand};
    use raidfabric_protocol::nvme::admin::{AdminCommand, Identify};
    use raidfabric_protocol::nvme::sgl::{Sgl, SglIdentifier};
    use raidfabric_protocol::nvme::sqe::SqeFlags;

    const MAX: u32 = 1 << 20;

    fn identify(dptr: Sgl) -> Sqe {
        Sqe { dptr, ..AdminCommand::Identify(Identify::default()).to_sqe(1) }
    }

    #[test]
    fn to_the_host_goes_by_transport_only() {
        assert_eq!(
            admin_transfer(&identify(Sgl::transport(4096)), 0, MAX),
            Ok(Transfer::ToHost { length_bytes: 4096 })
        );
        assert_eq!(
            admin_transfer(&identify(Sgl::in_capsule(0, 4096)), 4096, MAX),
            Err(Generic::SglDescriptorTypeInvalid.into())
        );
    }

    #[test]
    fn more_than_the_largest_transfer_is_an_invalid_field() {
        assert!(admin_transfer(&identify(Sgl::transport(MAX)), 0, MAX).is_ok());
        assert_eq!(
            admin_transfer(&identify(Sgl::transport(MAX + 1)), 0, MAX),
            Err(Generic::InvalidField.into())
        );
    }

    #[test]
    fn in_capsule_data_lies_within_the_capsule() {
        let connect =
            |dptr| Sqe { dptr, ..FabricsCommand::Connect(Connect::new(0, 31, 0)).to_sqe(1) };
        let transfer = |dptr, capsule_bytes| admin_transfer(&connect(dptr), capsule_bytes, MAX);
        assert_eq!(
            transfer(Sgl::in_capsule(16, 1024), 1040),
            Ok(Transfer::FromHost(DataIn::InCapsule { offset_bytes: 16, length_bytes: 1024 }))
        );
        assert_eq!(
            transfer(Sgl::in_capsule(16, 1024), 1039),
            Err(Generic::DataSglLengthInvalid.into())
        );
        assert_eq!(transfer(Sgl::in_capsule(17, 1), 16), Err(Generic::SglOffsetInvalid.into()));
        assert_eq!(
            transfer(Sgl::in_capsule(1 << 32, 1), 16),
            Err(Generic::SglOffsetInvalid.into())
        );
        assert_eq!(
            transfer(Sgl::transport(1024), 0),
            Ok(Transfer::FromHost(DataIn::Transport { length_bytes: 1024 }))
        );
    }

    #[test]
    fn prps_and_unknown_descriptors_are_refused() {
        let mut sqe = identify(Sgl::transport(4096));
        for psdt in [0, 2, 3] {
            sqe.flags = SqeFlags::default().with_psdt(psdt);
            assert_eq!(admin_transfer(&sqe, 0, MAX), Err(Generic::InvalidField.into()));
        }
        let keyed = Sgl { identifier: SglIdentifier::from_raw(0x40), ..Sgl::transport(4096) };
        assert_eq!(
            admin_transfer(&identify(keyed), 0, MAX),
            Err(Generic::SglDescriptorTypeInvalid.into())
        );
    }

    #[test]
    fn commands_without_data_need_no_descriptor() {
        let mut sqe = AdminCommand::KeepAlive.to_sqe(1);
        sqe.flags = SqeFlags::default();
        assert_eq!(admin_transfer(&sqe, 0, MAX), Ok(Transfer::None));
    }
}
