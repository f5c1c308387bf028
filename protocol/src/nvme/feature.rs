//! Features: identifiers, values, and what Get Features selects.
//!
//! A feature's value is CDW11 of Set Features and DW0 of Get Features' completion.
use super::log::CriticalWarning;
use super::{bit_fields, wire_enum, wire_layout};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

wire_enum! {
    /// Feature identifiers (NVMe Base, Set Features command).
    pub enum FeatureId: u8 {
        /// Arbitration.
        Arbitration = 0x01,
        /// Power Management.
        PowerManagement = 0x02,
        /// Temperature Threshold.
        TemperatureThreshold = 0x04,
        /// Error Recovery (NVM command set).
        ErrorRecovery = 0x05,
        /// Volatile Write Cache.
        VolatileWriteCache = 0x06,
        /// Number of Queues.
        NumberOfQueues = 0x07,
        /// Write Atomicity Normal (NVM command set).
        WriteAtomicity = 0x0A,
        /// Asynchronous Event Configuration.
        AsyncEventConfiguration = 0x0B,
        /// Keep Alive Timer.
        KeepAliveTimer = 0x0F,
        /// Host Behavior Support.
        HostBehavior = 0x16,
        /// Host Identifier.
        HostIdentifier = 0x81,
        /// Reservation Notification Mask.
        ReservationNotificationMask = 0x82,
        /// Reservation Persistence.
        ReservationPersistence = 0x83,
    }
}

wire_enum! {
    /// SEL of Get Features.
    pub enum FeatureSelect: u8 {
        /// The current value.
        Current = 0,
        /// The value after a reset.
        Default = 1,
        /// The saved value.
        Saved = 2,
        /// What can be done with the feature; see [`FeatureCapabilities`].
        Capabilities = 3,
    }
}

bit_fields! {
    /// DW0 of Get Features with SEL = supported capabilities.
    pub struct FeatureCapabilities: u32 {
        /// The value can be saved.
        saveable / with_saveable: bool [0:0],
        /// Each namespace has its own value.
        namespace_specific / with_namespace_specific: bool [1:1],
        /// The value can be changed.
        changeable / with_changeable: bool [2:2],
    }
}

bit_fields! {
    /// Arbitration (01h).
    pub struct Arbitration: u32 {
        /// AB: arbitration burst, 2^value commands; 7 for no limit.
        ab / with_ab: u8 [2:0],
        /// LPW: low priority weight, 0's based.
        lpw / with_lpw: u8 [15:8],
        /// MPW: medium priority weight, 0's based.
        mpw / with_mpw: u8 [23:16],
        /// HPW: high priority weight, 0's based.
        hpw / with_hpw: u8 [31:24],
    }
}

bit_fields! {
    /// Power Management (02h).
    pub struct PowerManagement: u32 {
        /// PS: power state.
        ps / with_ps: u8 [4:0],
        /// WH: workload hint.
        wh / with_wh: u8 [7:5],
    }
}

bit_fields! {
    /// Temperature Threshold (04h).
    pub struct TemperatureThreshold: u32 {
        /// TMPTH: threshold in kelvin.
        kelvin / with_kelvin: u16 [15:0],
        /// TMPSEL: 0 for the composite temperature, 1 to 8 for a sensor, 15 for all.
        sensor / with_sensor: u8 [19:16],
        /// THSEL: 0 for over, 1 for under temperature.
        under / with_under: u8 [21:20],
        /// TMPTHH: hysteresis in kelvin.
        hysteresis / with_hysteresis: u8 [24:22],
    }
}

bit_fields! {
    /// Error Recovery (05h).
    pub struct ErrorRecovery: u32 {
        /// TLER: limit of retries for commands with Limited Retry, in 100 ms; 0 for none.
        tler / with_tler: u16 [15:0],
        /// DULBE: reads of deallocated blocks give an error.
        dulbe / with_dulbe: bool [16:16],
    }
}

bit_fields! {
    /// Volatile Write Cache (06h).
    pub struct VolatileWriteCache: u32 {
        /// WCE: the cache is enabled.
        wce / with_wce: bool [0:0],
    }
}

bit_fields! {
    /// Number of Queues (07h): asked for in CDW11, allocated in DW0.
    pub struct NumberOfQueues: u32 {
        /// I/O submission queues, 0's based.
        submission / with_submission: u16 [15:0],
        /// I/O completion queues, 0's based.
        completion / with_completion: u16 [31:16],
    }
}

bit_fields! {
    /// Write Atomicity Normal (0Ah).
    pub struct WriteAtomicity: u32 {
        /// DN: the host does not need AWUN beyond AWUPF.
        disable_normal / with_disable_normal: bool [0:0],
    }
}

bit_fields! {
    /// Asynchronous Event Configuration (0Bh).
    pub struct AsyncEventConfiguration: u32 {
        /// SMART / health critical warnings, as in [`CriticalWarning`].
        smart / with_smart: u8 [7:0],
        /// Namespace attribute notices.
        namespace_attribute / with_namespace_attribute: bool [8:8],
        /// Firmware activation notices.
        firmware_activation / with_firmware_activation: bool [9:9],
        /// Telemetry log notices.
        telemetry / with_telemetry: bool [10:10],
        /// ANA change notices.
        ana_change / with_ana_change: bool [11:11],
        /// Discovery log page change notices.
        discovery_change / with_discovery_change: bool [31:31],
    }
}

impl AsyncEventConfiguration {
    /// The critical warnings for which events are wanted.
    pub fn critical_warnings(self) -> CriticalWarning {
        CriticalWarning::from_raw(self.smart())
    }
}

bit_fields! {
    /// CDW11 of Host Identifier (81h).
    pub struct HostIdentifierFormat: u32 {
        /// EXHID: the identifier has 128 bits; always over fabrics.
        extended / with_extended: bool [0:0],
    }
}

/// Host Behavior Support (16h) data.
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HostBehavior {
    /// ACRE: 1 if the host honours command retry delays.
    pub acre: u8,
    /// ETDAS: 1 if the host knows extended telemetry.
    pub etdas: u8,
    /// LBAFEE: 1 if the host knows extended LBA formats.
    pub lbafee: u8,
    /// Later fields and reserved.
    pub reserved_3: [u8; 509],
}
wire_layout!(HostBehavior, 512, etdas @ 1, lbafee @ 2);

impl Default for HostBehavior {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

/// Bytes of data that a feature has beside its value.
pub const fn data_bytes(feature: FeatureId) -> usize {
    match feature {
        FeatureId::HostBehavior => 512,
        FeatureId::HostIdentifier => 16,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits() {
        let queues = NumberOfQueues::from_raw(0x0003_0001);
        assert_eq!((queues.submission(), queues.completion()), (1, 3));
        let threshold = TemperatureThreshold::from_raw(0x0011_0157);
        assert_eq!((threshold.kelvin(), threshold.sensor(), threshold.under()), (343, 1, 1));
        let aec = AsyncEventConfiguration::from_raw(0x8000_0902);
        assert!(aec.namespace_attribute() && aec.ana_change() && aec.discovery_change());
        assert!(aec.critical_warnings().temperature() && !aec.critical_warnings().spare());
        assert_eq!(ErrorRecovery::default().with_dulbe(true).raw(), 1 << 16);
        assert_eq!(FeatureCapabilities::default().with_changeable(true).raw(), 4);
    }
}
