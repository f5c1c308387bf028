//! The discovery log page (70h): header and entries.
use super::nqn;
use crate::nvme::{bit_fields, wire_enum, wire_layout};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of the header, and of each entry, in bytes.
pub const RECORD_BYTES: usize = 1024;

wire_enum! {
    /// TRTYPE: transport type.
    pub enum TransportType: u8 {
        /// RDMA.
        Rdma = 1,
        /// Fibre Channel.
        FibreChannel = 2,
        /// TCP.
        Tcp = 3,
        /// Within one host.
        Loop = 254,
    }
}

wire_enum! {
    /// ADRFAM: address family.
    pub enum AddressFamily: u8 {
        /// IPv4.
        Ipv4 = 1,
        /// IPv6.
        Ipv6 = 2,
        /// InfiniBand.
        InfiniBand = 3,
        /// Fibre Channel.
        FibreChannel = 4,
    }
}

wire_enum! {
    /// SUBTYPE: what an entry points to.
    pub enum SubsystemType: u8 {
        /// Another discovery service.
        Referral = 1,
        /// An NVM subsystem.
        Nvm = 2,
        /// The discovery subsystem that this log was read from.
        CurrentDiscovery = 3,
    }
}

bit_fields! {
    /// TREQ: transport requirements.
    pub struct TransportRequirements: u8 {
        /// Secure channel: 0 not specified, 1 required, 2 not required.
        secure_channel / with_secure_channel: u8 [1:0],
        /// Submission queue flow control may be disabled.
        disable_sq_flow_control / with_disable_sq_flow_control: bool [2:2],
    }
}

/// TREQ: a secure channel is not required.
pub const SECURE_CHANNEL_NOT_REQUIRED: u8 = 2;

bit_fields! {
    /// EFLAGS: entry flags.
    pub struct EntryFlags: u16 {
        /// DUPRETINFO: other entries with this flag lead to the same information.
        duplicate_information / with_duplicate_information: bool [0:0],
        /// EPCSD: explicit persistent connections are supported by the discovery controller.
        explicit_persistence / with_explicit_persistence: bool [1:1],
        /// NCC: no connectivity to a central discovery controller.
        no_cdc / with_no_cdc: bool [2:2],
    }
}

bit_fields! {
    /// LSP of Get Log Page for the discovery log.
    pub struct DiscoveryLogSpecific: u8 {
        /// EXTDLPE: extended entries are wanted.
        extended_entries / with_extended_entries: bool [0:0],
        /// PLEO: only entries of the port that the log is read through.
        port_local / with_port_local: bool [1:1],
        /// ALLSUBE: all subsystems of a central discovery controller.
        all_subsystems / with_all_subsystems: bool [2:2],
    }
}

wire_enum! {
    /// SECTYPE of NVMe/TCP, byte 0 of TSAS.
    pub enum SecurityType: u8 {
        /// No security.
        None = 0,
        /// TLS 1.3.
        Tls13 = 2,
    }
}

/// Discovery log page header (NVMe over Fabrics, Discovery Log Page).
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogHeader {
    /// GENCTR: changes with every change of the log.
    pub genctr: U64,
    /// NUMREC: entries.
    pub numrec: U64,
    /// RECFMT: 0.
    pub recfmt: U16,
    /// Later fields and reserved.
    pub reserved_18: [u8; 1006],
}
wire_layout!(LogHeader, 1024, numrec @ 8, recfmt @ 16);

/// Discovery log page entry (NVMe over Fabrics, Discovery Log Page Entry).
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogEntry {
    /// TRTYPE; see [`TransportType`].
    pub trtype: u8,
    /// ADRFAM; see [`AddressFamily`].
    pub adrfam: u8,
    /// SUBTYPE; see [`SubsystemType`].
    pub subtype: u8,
    /// TREQ.
    pub treq: TransportRequirements,
    /// PORTID.
    pub portid: U16,
    /// CNTLID: FFFFh for the dynamic controller model.
    pub cntlid: U16,
    /// ASQSZ: largest admin submission queue, at least 32.
    pub asqsz: U16,
    /// EFLAGS.
    pub eflags: EntryFlags,
    /// Reserved.
    pub reserved_12: [u8; 20],
    /// TRSVCID: the TCP port in decimal, ASCII, NUL padded.
    pub trsvcid: [u8; 32],
    /// Reserved.
    pub reserved_64: [u8; 192],
    /// SUBNQN.
    pub subnqn: [u8; 256],
    /// TRADDR: the address in text, ASCII, NUL padded.
    pub traddr: [u8; 256],
    /// TSAS: for TCP, byte 0 is the [`SecurityType`].
    pub tsas: [u8; 256],
}
wire_layout!(
    LogEntry, 1024,
    adrfam @ 1, subtype @ 2, treq @ 3, portid @ 4, cntlid @ 6, asqsz @ 8, eflags @ 10,
    trsvcid @ 32, subnqn @ 256, traddr @ 512, tsas @ 768,
);

impl Default for LogHeader {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

impl Default for LogEntry {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

impl LogEntry {
    /// The address as text, without padding.
    pub fn address(&self) -> String {
        text(&self.traddr)
    }

    /// The service (TCP port) as text, without padding.
    pub fn service(&self) -> String {
        text(&self.trsvcid)
    }

    /// The subsystem's name.
    ///
    /// # Errors
    /// As [`nqn::from_field`].
    pub fn subsystem_nqn(&self) -> Result<&str, nqn::NqnError> {
        nqn::from_field(&self.subnqn)
    }
}

/// A text field up to its first NUL, without trailing spaces (some targets pad with them).
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    let (text, _) = field.split_at(end);
    String::from_utf8_lossy(text).trim_end().to_owned()
}

/// Copies ASCII text into a field and fills the rest with NUL. `None` if it does not fit.
pub fn put_text(field: &mut [u8], value: &str) -> Option<()> {
    let (room, rest) = field.split_at_mut_checked(value.len())?;
    room.copy_from_slice(value.as_bytes());
    rest.fill(0);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_entry() {
        let mut entry = LogEntry {
            trtype: TransportType::Tcp.raw(),
            adrfam: AddressFamily::Ipv4.raw(),
            subtype: SubsystemType::Nvm.raw(),
            treq: TransportRequirements::default()
                .with_secure_channel(SECURE_CHANNEL_NOT_REQUIRED)
                .with_disable_sq_flow_control(true),
            portid: U16::new(1),
            cntlid: U16::new(0xFFFF),
            asqsz: U16::new(32),
            subnqn: nqn::to_field("nqn.2026-11.io.x:a").unwrap(),
            ..LogEntry::default()
        };
        put_text(&mut entry.traddr, "192.0.2.10").unwrap();
        put_text(&mut entry.trsvcid, "4420").unwrap();
        let bytes = entry.as_bytes();
        assert_eq!(bytes[..12], [3, 1, 2, 6, 1, 0, 0xFF, 0xFF, 32, 0, 0, 0]);
        assert_eq!(&bytes[32..37], b"4420\0");
        assert_eq!(&bytes[512..523], b"192.0.2.10\0");
        let read = LogEntry::read_from_bytes(bytes).unwrap();
        assert_eq!(read.address(), "192.0.2.10");
        assert_eq!(read.service(), "4420");
        assert_eq!(read.subsystem_nqn(), Ok("nqn.2026-11.io.x:a"));
    }

    #[test]
    fn flags() {
        assert_eq!(EntryFlags::default().with_duplicate_information(true).raw(), 1);
        assert_eq!(EntryFlags::default().with_explicit_persistence(true).raw(), 2);
        assert!(DiscoveryLogSpecific::from_raw(2).port_local());
    }

    #[test]
    fn text_that_does_not_fit_is_refused() {
        let mut field = [1; 4];
        assert_eq!(put_text(&mut field, "12345"), None);
        assert_eq!(put_text(&mut field, "12"), Some(()));
        assert_eq!(field, *b"12\0\0");
    }

    #[test]
    fn text_padded_with_spaces_is_read() {
        assert_eq!(text(b"4420    "), "4420");
    }
}
