//! Log pages: identifiers and structures.
//!
//! The discovery log page is in [`crate::fabrics::discovery`].
use super::status::StatusField;
use super::{bit_fields, wire_enum, wire_layout};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

wire_enum! {
    /// Log page identifiers (NVMe Base, Get Log Page command).
    pub enum LogId: u8 {
        /// Supported Log Pages.
        SupportedLogPages = 0x00,
        /// Error Information.
        ErrorInformation = 0x01,
        /// SMART / Health Information.
        SmartHealth = 0x02,
        /// Firmware Slot Information.
        FirmwareSlot = 0x03,
        /// Changed Namespace List.
        ChangedNamespaces = 0x04,
        /// Commands Supported and Effects.
        CommandEffects = 0x05,
        /// Feature Identifiers Supported and Effects.
        FeatureEffects = 0x12,
        /// NVMe-MI Commands Supported and Effects.
        MiCommandEffects = 0x13,
        /// Discovery.
        Discovery = 0x70,
    }
}

bit_fields! {
    /// One entry of the Supported Log Pages log (00h).
    pub struct LogSupport: u32 {
        /// LSUPP: the log page is supported.
        supported / with_supported: bool [0:0],
        /// IOS: the log page may be read by index offset.
        index_offset / with_index_offset: bool [1:1],
        /// LIDSP: depends on the log page; for 70h see the discovery log's own options.
        specific / with_specific: u16 [31:16],
    }
}

/// Supported Log Pages log (00h).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SupportedLogPages {
    /// By log page identifier.
    pub logs: [LogSupport; 256],
}
wire_layout!(SupportedLogPages, 1024);

bit_fields! {
    /// Where in a command an error is: PEL of an error log entry.
    pub struct ParameterLocation: u16 {
        /// Byte in the command, 0 to 63.
        byte / with_byte: u8 [7:0],
        /// Bit in that byte.
        bit / with_bit: u8 [10:8],
    }
}

impl ParameterLocation {
    /// The error is not at one place of the command.
    pub const NONE: Self = Self::from_raw(0xFFFF);
}

/// Error Information log entry (01h).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ErrorEntry {
    /// Error count: 1 for the first, rising; 0 for an invalid entry.
    pub error_count: U64,
    /// SQID, or FFFFh if not of one command.
    pub sqid: U16,
    /// CID, or FFFFh if not of one command.
    pub cid: U16,
    /// Status as it was posted.
    pub status: StatusField,
    /// Where in the command the error is.
    pub location: ParameterLocation,
    /// First LBA concerned.
    pub lba: U64,
    /// Namespace concerned.
    pub nsid: U32,
    /// Vendor specific information available: a log page id or 0.
    pub vendor_log: u8,
    /// TRTYPE if the error is of the transport.
    pub trtype: u8,
    /// CSI of the command.
    pub csi: u8,
    /// Opcode of the command; valid as `version` says.
    pub opcode: u8,
    /// Command specific information.
    pub specific: U64,
    /// Transport specific information.
    pub transport_specific: U16,
    /// Reserved.
    pub reserved_42: [u8; 21],
    /// Log page version: 1 if CSI and opcode are valid.
    pub version: u8,
}
wire_layout!(
    ErrorEntry, 64,
    sqid @ 8, cid @ 10, status @ 12, location @ 14, lba @ 16, nsid @ 24, vendor_log @ 28,
    trtype @ 29, csi @ 30, opcode @ 31, specific @ 32, transport_specific @ 40, version @ 63,
);

bit_fields! {
    /// Critical Warning of the SMART log, and the events enabled for it in feature 0Bh.
    pub struct CriticalWarning: u8 {
        /// Available spare below its threshold.
        spare / with_spare: bool [0:0],
        /// Temperature beyond a threshold.
        temperature / with_temperature: bool [1:1],
        /// Reliability is degraded.
        reliability / with_reliability: bool [2:2],
        /// All media are read only.
        read_only / with_read_only: bool [3:3],
        /// The backup of volatile memory failed.
        backup / with_backup: bool [4:4],
        /// The persistent memory region is unreliable.
        persistent_memory / with_persistent_memory: bool [5:5],
    }
}

/// SMART / Health Information log (02h).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SmartLog {
    /// Critical Warning.
    pub critical_warning: CriticalWarning,
    /// Composite Temperature in kelvin.
    pub temperature_kelvin: U16,
    /// Available Spare in percent.
    pub available_spare: u8,
    /// Available Spare Threshold in percent.
    pub available_spare_threshold: u8,
    /// Percentage Used, 0 to 255.
    pub percentage_used: u8,
    /// Endurance Group Critical Warning Summary.
    pub endurance_group_warning: u8,
    /// Reserved.
    pub reserved_7: [u8; 25],
    /// Data Units Read, in 1000 × 512 bytes, rounded up.
    pub data_units_read: U128,
    /// Data Units Written, likewise.
    pub data_units_written: U128,
    /// Host Read Commands.
    pub host_reads: U128,
    /// Host Write Commands.
    pub host_writes: U128,
    /// Controller Busy Time in minutes.
    pub busy_minutes: U128,
    /// Power Cycles.
    pub power_cycles: U128,
    /// Power On Hours.
    pub power_on_hours: U128,
    /// Unsafe Shutdowns.
    pub unsafe_shutdowns: U128,
    /// Media and Data Integrity Errors.
    pub media_errors: U128,
    /// Number of Error Information Log Entries.
    pub error_entries: U128,
    /// Warning Composite Temperature Time in minutes.
    pub warning_temperature_minutes: U32,
    /// Critical Composite Temperature Time in minutes.
    pub critical_temperature_minutes: U32,
    /// Temperature Sensors 1 to 8 in kelvin; 0 for none.
    pub sensors_kelvin: [U16; 8],
    /// Thermal management transition counts and times.
    pub thermal: [U32; 4],
    /// Reserved.
    pub reserved_232: [u8; 280],
}
wire_layout!(
    SmartLog, 512,
    temperature_kelvin @ 1, available_spare @ 3, available_spare_threshold @ 4, percentage_used @ 5,
    endurance_group_warning @ 6, data_units_read @ 32, data_units_written @ 48, host_reads @ 64,
    host_writes @ 80, busy_minutes @ 96, power_cycles @ 112, power_on_hours @ 128,
    unsafe_shutdowns @ 144, media_errors @ 160, error_entries @ 176,
    warning_temperature_minutes @ 192, critical_temperature_minutes @ 196, sensors_kelvin @ 200,
    thermal @ 216,
);

bit_fields! {
    /// AFI of the firmware slot log.
    pub struct ActiveFirmware: u8 {
        /// Slot of the running firmware.
        active_slot / with_active_slot: u8 [2:0],
        /// Slot that the next reset activates; 0 for not indicated.
        next_slot / with_next_slot: u8 [6:4],
    }
}

/// Firmware Slot Information log (03h).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FirmwareSlotLog {
    /// AFI.
    pub afi: ActiveFirmware,
    /// Reserved.
    pub reserved_1: [u8; 7],
    /// FRS1 to FRS7: revisions, ASCII padded with spaces.
    pub frs: [[u8; 8]; 7],
    /// Reserved.
    pub reserved_64: [u8; 448],
}
wire_layout!(FirmwareSlotLog, 512, frs @ 8, reserved_64 @ 64);

/// Entries in the Changed Namespace List log (04h).
pub const CHANGED_NAMESPACES_MAX: usize = 1024;

/// Changed Namespace List log (04h): NSIDs in ascending order, zero filled; one
/// entry FFFFFFFFh if more changed than fit.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChangedNamespacesLog {
    /// The list.
    pub nsids: [U32; CHANGED_NAMESPACES_MAX],
}
wire_layout!(ChangedNamespacesLog, 4096);

bit_fields! {
    /// What a command or feature does beside its purpose (logs 05h and 12h).
    pub struct Effects: u32 {
        /// Supported.
        supported / with_supported: bool [0:0],
        /// Changes logical block content (05h), or user data (12h).
        content / with_content: bool [1:1],
        /// NCC: namespace capability change.
        namespace_capability / with_namespace_capability: bool [2:2],
        /// NIC: namespace inventory change.
        namespace_inventory / with_namespace_inventory: bool [3:3],
        /// CCC: controller capability change.
        controller_capability / with_controller_capability: bool [4:4],
        /// CSER: submission and execution relaxations.
        relaxations / with_relaxations: u8 [15:14],
        /// CSE: submission and execution restrictions.
        restrictions / with_restrictions: u8 [18:16],
        /// UUID selection supported.
        uuid_selection / with_uuid_selection: bool [19:19],
        /// Scope: one namespace.
        scope_namespace / with_scope_namespace: bool [20:20],
        /// Scope: the controller.
        scope_controller / with_scope_controller: bool [21:21],
        /// Scope: the NVM subsystem.
        scope_subsystem / with_scope_subsystem: bool [25:25],
    }
}

/// Commands Supported and Effects log (05h).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandEffectsLog {
    /// ACS: by admin opcode.
    pub admin: [Effects; 256],
    /// IOCS: by I/O opcode.
    pub io: [Effects; 256],
    /// Reserved.
    pub reserved_2048: [u8; 2048],
}
wire_layout!(CommandEffectsLog, 4096, io @ 1024, reserved_2048 @ 2048);

/// Feature Identifiers Supported and Effects log (12h).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FeatureEffectsLog {
    /// By feature identifier.
    pub features: [Effects; 256],
}
wire_layout!(FeatureEffectsLog, 1024);

/// NVMe-MI Commands Supported and Effects log (13h).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MiCommandEffectsLog {
    /// By NVMe-MI opcode.
    pub commands: [Effects; 256],
    /// Reserved.
    pub reserved_1024: [u8; 3072],
}
wire_layout!(MiCommandEffectsLog, 4096, reserved_1024 @ 1024);

macro_rules! zeroed_default {
    ($($ty:ty),*) => {$(
        impl Default for $ty {
            fn default() -> Self {
                Self::new_zeroed()
            }
        }
    )*};
}
zeroed_default!(
    SupportedLogPages,
    ErrorEntry,
    SmartLog,
    FirmwareSlotLog,
    ChangedNamespacesLog,
    CommandEffectsLog,
    FeatureEffectsLog,
    MiCommandEffectsLog
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits() {
        let effects = Effects::default().with_supported(true).with_content(true);
        assert_eq!(effects.raw(), 3);
        assert_eq!(Effects::default().with_restrictions(1).raw(), 1 << 16);
        assert_eq!(Effects::default().with_scope_namespace(true).raw(), 1 << 20);
        assert_eq!(Effects::default().with_scope_subsystem(true).raw(), 1 << 25);
        assert_eq!(ActiveFirmware::default().with_active_slot(1).raw(), 1);
        assert_eq!(ParameterLocation::default().with_byte(40).with_bit(3).raw(), 0x328);
        assert_eq!(LogSupport::default().with_supported(true).with_specific(1).raw(), 0x1_0001);
    }
}
