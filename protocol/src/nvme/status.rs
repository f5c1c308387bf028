//! Status codes by their type, and the 16-bit status field of a completion.
//!
//! A status is a [`Code`] plus the bits DNR (do not retry), M (more in the
//! error log) and CRD. Turning a code into a [`Status`] sets DNR unless the
//! code describes something that may pass; [`Status::retryable`] and
//! [`Status::do_not_retry`] override that.
use super::{bit_fields, wire_enum};

bit_fields! {
    /// Status field with the phase bit, bytes 14 and 15 of a completion (NVMe Base, Status Field).
    pub struct StatusField: u16 {
        /// P: phase tag; always 0 over fabrics.
        phase / with_phase: bool [0:0],
        /// SC: status code.
        sc / with_sc: u8 [8:1],
        /// SCT: status code type.
        sct / with_sct: u8 [11:9],
        /// CRD: command retry delay, an index into Identify's CRDTn; 0 for none.
        crd / with_crd: u8 [13:12],
        /// M: more information in the error log.
        more / with_more: bool [14:14],
        /// DNR: the same command would fail again.
        dnr / with_dnr: bool [15:15],
    }
}

wire_enum! {
    /// Status Code Type (NVMe Base, Status Code Type).
    pub enum StatusCodeType: u8 {
        /// Generic Command Status.
        Generic = 0x0,
        /// Command Specific Status.
        CommandSpecific = 0x1,
        /// Media and Data Integrity Errors.
        Media = 0x2,
        /// Path Related Status.
        Path = 0x3,
        /// Vendor Specific.
        Vendor = 0x7,
    }
}

wire_enum! {
    /// Generic Command Status (SCT 0), with the NVM command set's codes.
    pub enum Generic: u8 {
        /// Successful Completion.
        Success = 0x00,
        /// Invalid Command Opcode.
        InvalidOpcode = 0x01,
        /// Invalid Field in Command.
        InvalidField = 0x02,
        /// Command ID Conflict.
        CommandIdConflict = 0x03,
        /// Data Transfer Error.
        DataTransferError = 0x04,
        /// Commands Aborted due to Power Loss Notification.
        AbortedPowerLoss = 0x05,
        /// Internal Error.
        InternalError = 0x06,
        /// Command Abort Requested.
        AbortRequested = 0x07,
        /// Command Aborted due to SQ Deletion.
        AbortedSqDeletion = 0x08,
        /// Command Aborted due to Failed Fused Command.
        AbortedFailedFused = 0x09,
        /// Command Aborted due to Missing Fused Command.
        AbortedMissingFused = 0x0A,
        /// Invalid Namespace or Format.
        InvalidNamespaceOrFormat = 0x0B,
        /// Command Sequence Error.
        CommandSequenceError = 0x0C,
        /// Invalid SGL Segment Descriptor.
        InvalidSglSegment = 0x0D,
        /// Invalid Number of SGL Descriptors.
        InvalidSglCount = 0x0E,
        /// Data SGL Length Invalid.
        DataSglLengthInvalid = 0x0F,
        /// Metadata SGL Length Invalid.
        MetadataSglLengthInvalid = 0x10,
        /// SGL Descriptor Type Invalid.
        SglDescriptorTypeInvalid = 0x11,
        /// Invalid Use of Controller Memory Buffer.
        InvalidCmbUse = 0x12,
        /// PRP Offset Invalid.
        PrpOffsetInvalid = 0x13,
        /// Atomic Write Unit Exceeded.
        AtomicWriteUnitExceeded = 0x14,
        /// Operation Denied.
        OperationDenied = 0x15,
        /// SGL Offset Invalid.
        SglOffsetInvalid = 0x16,
        /// Host Identifier Inconsistent Format.
        HostIdInconsistentFormat = 0x18,
        /// Keep Alive Timer Expired.
        KeepAliveExpired = 0x19,
        /// Keep Alive Timeout Invalid.
        KeepAliveTimeoutInvalid = 0x1A,
        /// Command Aborted due to Preempt and Abort.
        AbortedPreempt = 0x1B,
        /// Sanitize Failed.
        SanitizeFailed = 0x1C,
        /// Sanitize In Progress.
        SanitizeInProgress = 0x1D,
        /// SGL Data Block Granularity Invalid.
        SglGranularityInvalid = 0x1E,
        /// Command Not Supported for Queue in CMB.
        CommandNotSupportedInCmb = 0x1F,
        /// Namespace is Write Protected.
        NamespaceWriteProtected = 0x20,
        /// Command Interrupted.
        CommandInterrupted = 0x21,
        /// Transient Transport Error.
        TransientTransportError = 0x22,
        /// Command Prohibited by Command and Feature Lockdown.
        CommandProhibited = 0x23,
        /// Admin Command Media Not Ready.
        AdminMediaNotReady = 0x24,
        /// LBA Out of Range.
        LbaOutOfRange = 0x80,
        /// Capacity Exceeded.
        CapacityExceeded = 0x81,
        /// Namespace Not Ready.
        NamespaceNotReady = 0x82,
        /// Reservation Conflict.
        ReservationConflict = 0x83,
        /// Format In Progress.
        FormatInProgress = 0x84,
    }
}

wire_enum! {
    /// Command Specific Status (SCT 1): NVMe Base, NVM command set and Fabrics.
    ///
    /// Numbers mean different things for different commands: 80h to 91h are named
    /// for Fabrics commands here where they are only used there; see [`Nvm`] for I/O.
    pub enum CommandSpecific: u8 {
        /// Completion Queue Invalid.
        CompletionQueueInvalid = 0x00,
        /// Invalid Queue Identifier.
        InvalidQueueId = 0x01,
        /// Invalid Queue Size.
        InvalidQueueSize = 0x02,
        /// Abort Command Limit Exceeded.
        AbortLimitExceeded = 0x03,
        /// Asynchronous Event Request Limit Exceeded.
        AerLimitExceeded = 0x05,
        /// Invalid Firmware Slot.
        InvalidFirmwareSlot = 0x06,
        /// Invalid Firmware Image.
        InvalidFirmwareImage = 0x07,
        /// Invalid Log Page.
        InvalidLogPage = 0x09,
        /// Invalid Format.
        InvalidFormat = 0x0A,
        /// Feature Identifier Not Saveable.
        FeatureNotSaveable = 0x0D,
        /// Feature Not Changeable.
        FeatureNotChangeable = 0x0E,
        /// Feature Not Namespace Specific.
        FeatureNotNamespaceSpecific = 0x0F,
        /// Invalid Controller Identifier.
        InvalidControllerId = 0x1F,
        /// I/O Command Set Not Supported.
        IoCommandSetNotSupported = 0x29,
        /// I/O Command Set Combination Rejected.
        IoCommandSetCombinationRejected = 0x2B,
        /// Fabrics: Incompatible Format (record format of Connect).
        ConnectIncompatibleFormat = 0x80,
        /// Fabrics: Controller Busy.
        ConnectControllerBusy = 0x81,
        /// Fabrics: Connect Invalid Parameters.
        ConnectInvalidParameters = 0x82,
        /// Fabrics: Connect Restart Discovery.
        ConnectRestartDiscovery = 0x83,
        /// Fabrics: Connect Invalid Host.
        ConnectInvalidHost = 0x84,
        /// Fabrics: Disconnect Invalid Queue Type.
        DisconnectInvalidQueueType = 0x85,
        /// Fabrics: Discover Restart.
        DiscoverRestart = 0x90,
        /// Fabrics: Authentication Required.
        AuthenticationRequired = 0x91,
    }
}

wire_enum! {
    /// Command Specific Status (SCT 1) of the NVM command set's I/O commands.
    pub enum Nvm: u8 {
        /// Conflicting Attributes.
        ConflictingAttributes = 0x80,
        /// Invalid Protection Information.
        InvalidProtectionInformation = 0x81,
        /// Attempted Write to Read Only Range.
        WriteToReadOnlyRange = 0x82,
        /// Command Size Limit Exceeded.
        CommandSizeLimitExceeded = 0x83,
    }
}

wire_enum! {
    /// Media and Data Integrity Errors (SCT 2).
    pub enum Media: u8 {
        /// Write Fault.
        WriteFault = 0x80,
        /// Unrecovered Read Error.
        UnrecoveredReadError = 0x81,
        /// End-to-end Guard Check Error.
        GuardCheckError = 0x82,
        /// End-to-end Application Tag Check Error.
        ApplicationTagCheckError = 0x83,
        /// End-to-end Reference Tag Check Error.
        ReferenceTagCheckError = 0x84,
        /// Compare Failure.
        CompareFailure = 0x85,
        /// Access Denied.
        AccessDenied = 0x86,
        /// Deallocated or Unwritten Logical Block.
        DeallocatedBlock = 0x87,
    }
}

wire_enum! {
    /// Path Related Status (SCT 3).
    pub enum Path: u8 {
        /// Internal Path Error.
        InternalPathError = 0x00,
        /// Asymmetric Access Persistent Loss.
        AccessPersistentLoss = 0x01,
        /// Asymmetric Access Inaccessible.
        AccessInaccessible = 0x02,
        /// Asymmetric Access Transition.
        AccessTransition = 0x03,
        /// Controller Pathing Error.
        ControllerPathingError = 0x60,
        /// Host Pathing Error.
        HostPathingError = 0x70,
        /// Command Aborted By Host.
        AbortedByHost = 0x71,
    }
}

/// A status code together with its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// SCT 0.
    Generic(Generic),
    /// SCT 1, of an admin or Fabrics command.
    CommandSpecific(CommandSpecific),
    /// SCT 1, of an NVM command.
    Nvm(Nvm),
    /// SCT 2.
    Media(Media),
    /// SCT 3.
    Path(Path),
    /// A code that has no name here; only ever received, never sent.
    Other {
        /// SCT, 0 to 7.
        sct: u8,
        /// SC.
        sc: u8,
    },
}

impl Code {
    /// SCT and SC.
    pub const fn raw(self) -> (u8, u8) {
        match self {
            Self::Generic(code) => (StatusCodeType::Generic.raw(), code.raw()),
            Self::CommandSpecific(code) => (StatusCodeType::CommandSpecific.raw(), code.raw()),
            Self::Nvm(code) => (StatusCodeType::CommandSpecific.raw(), code.raw()),
            Self::Media(code) => (StatusCodeType::Media.raw(), code.raw()),
            Self::Path(code) => (StatusCodeType::Path.raw(), code.raw()),
            Self::Other { sct, sc } => (sct, sc),
        }
    }

    /// The code with these numbers. SCT 1 is read as an admin or Fabrics command's.
    pub fn from_raw(sct: u8, sc: u8) -> Self {
        let known = match StatusCodeType::from_raw(sct) {
            Some(StatusCodeType::Generic) => Generic::from_raw(sc).map(Self::Generic),
            Some(StatusCodeType::CommandSpecific) => {
                CommandSpecific::from_raw(sc).map(Self::CommandSpecific)
            }
            Some(StatusCodeType::Media) => Media::from_raw(sc).map(Self::Media),
            Some(StatusCodeType::Path) => Path::from_raw(sc).map(Self::Path),
            Some(StatusCodeType::Vendor) | None => None,
        };
        known.unwrap_or(Self::Other { sct, sc })
    }

    /// Whether sending the same command again may succeed without anyone changing anything.
    pub const fn may_pass(self) -> bool {
        match self {
            Self::Generic(code) => matches!(
                code,
                Generic::Success
                    | Generic::DataTransferError
                    | Generic::AbortedPowerLoss
                    | Generic::InternalError
                    | Generic::AbortRequested
                    | Generic::AbortedSqDeletion
                    | Generic::CapacityExceeded
                    | Generic::NamespaceNotReady
                    | Generic::CommandInterrupted
                    | Generic::TransientTransportError
                    | Generic::AdminMediaNotReady
                    | Generic::FormatInProgress
                    | Generic::SanitizeInProgress
            ),
            Self::CommandSpecific(code) => matches!(
                code,
                CommandSpecific::ConnectControllerBusy | CommandSpecific::ConnectRestartDiscovery
            ),
            Self::Path(code) => !matches!(code, Path::AccessPersistentLoss),
            Self::Nvm(_) | Self::Media(_) => false,
            Self::Other { .. } => true,
        }
    }
}

/// The outcome of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status {
    /// What happened.
    pub code: Code,
    /// DNR: the host should not send the same command again.
    pub dnr: bool,
    /// M: the error log has more.
    pub more: bool,
    /// CRD: retry delay index, 0 to 3.
    pub crd: u8,
}

impl Status {
    /// Successful Completion.
    pub const SUCCESS: Self =
        Self { code: Code::Generic(Generic::Success), dnr: false, more: false, crd: 0 };

    /// Whether the command succeeded.
    pub fn is_success(&self) -> bool {
        self.code.raw() == (0, 0)
    }

    /// With DNR clear: the host may try again.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.dnr = false;
        self
    }

    /// With DNR set: trying again is pointless.
    #[must_use]
    pub fn do_not_retry(mut self) -> Self {
        self.dnr = true;
        self
    }

    /// With M set: the error log has an entry about this.
    #[must_use]
    pub fn with_more(mut self) -> Self {
        self.more = true;
        self
    }
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (sct, sc) = self.code.raw();
        match self.code {
            Code::Generic(code) => write!(f, "{code:?}")?,
            Code::CommandSpecific(code) => write!(f, "{code:?}")?,
            Code::Nvm(code) => write!(f, "{code:?}")?,
            Code::Media(code) => write!(f, "{code:?}")?,
            Code::Path(code) => write!(f, "{code:?}")?,
            Code::Other { .. } => write!(f, "unknown status")?,
        }
        write!(f, " ({sct:02X}/{sc:02X}h{})", if self.dnr { ", DNR" } else { "" })
    }
}

impl From<Code> for Status {
    fn from(code: Code) -> Self {
        Self { code, dnr: !code.may_pass(), more: false, crd: 0 }
    }
}

macro_rules! status_from {
    ($($ty:ident),*) => {$(
        impl From<$ty> for Code {
            fn from(code: $ty) -> Self {
                Self::$ty(code)
            }
        }
        impl From<$ty> for Status {
            fn from(code: $ty) -> Self {
                Code::$ty(code).into()
            }
        }
    )*};
}
status_from!(Generic, CommandSpecific, Nvm, Media, Path);

impl From<Status> for StatusField {
    fn from(status: Status) -> Self {
        let (sct, sc) = status.code.raw();
        Self::default()
            .with_sct(sct)
            .with_sc(sc)
            .with_crd(status.crd)
            .with_more(status.more)
            .with_dnr(status.dnr)
    }
}

impl From<StatusField> for Status {
    fn from(field: StatusField) -> Self {
        Self {
            code: Code::from_raw(field.sct(), field.sc()),
            dnr: field.dnr(),
            more: field.more(),
            crd: field.crd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_fields() {
        let field = |status: Status| StatusField::from(status).raw();
        assert_eq!(field(Status::SUCCESS), 0);
        // Invalid Opcode with DNR, as Linux prints it: 0x4001 after dropping the phase bit.
        assert_eq!(field(Generic::InvalidOpcode.into()) >> 1, 0x4001);
        assert_eq!(field(CommandSpecific::ConnectInvalidHost.into()) >> 1, 0x4184);
        assert_eq!(field(CommandSpecific::ConnectControllerBusy.into()) >> 1, 0x0181);
        assert_eq!(field(Media::UnrecoveredReadError.into()) >> 1, 0x4281);
        assert_eq!(field(Path::AccessInaccessible.into()) >> 1, 0x0302);
        assert_eq!(field(Status::from(Generic::TransientTransportError).with_more()) >> 1, 0x2022);
        assert_eq!(field(Status { crd: 2, ..Generic::NamespaceNotReady.into() }) >> 1, 0x1082);
    }

    #[test]
    fn every_field_value_survives_decoding() {
        for raw in (0..=u16::MAX).filter(|raw| raw & 1 == 0) {
            let status = Status::from(StatusField::from_raw(raw));
            assert_eq!(StatusField::from(status).raw(), raw);
        }
    }

    #[test]
    fn retry_can_be_overridden() {
        let status = Status::from(Generic::InvalidField);
        assert!(status.dnr && !status.retryable().dnr);
        assert!(Status::from(Generic::InternalError).do_not_retry().dnr);
        assert!(!status.is_success() && Status::SUCCESS.is_success());
    }

    #[test]
    fn display_names_the_code() {
        let status = Status::from(CommandSpecific::ConnectInvalidHost);
        assert_eq!(status.to_string(), "ConnectInvalidHost (01/84h, DNR)");
    }
}
