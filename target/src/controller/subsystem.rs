//! What a controller is given to serve: immutable snapshots of a subsystem or
//! of the discovery service.
//!
//! A change of configuration is a new snapshot, handed to each controller as an
//! event; a controller never sees half a change.
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Model number in Identify Controller.
pub const MODEL: &str = "raidfabric";

/// Firmware revision in Identify Controller: the version of this program.
pub const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// Which hosts may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hosts {
    /// Every host.
    Any,
    /// The hosts with these names, compared byte by byte.
    Only(BTreeSet<String>),
}

impl Hosts {
    /// Whether the host with this name may connect.
    pub fn allows(&self, host_nqn: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Only(names) => names.contains(host_nqn),
        }
    }
}

/// Limits that a controller advertises and honours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most data of one command in bytes: a power of two, 4096 to 2^27.
    pub max_transfer_bytes: u32,
    /// Most in-capsule data on an I/O queue in bytes: a multiple of 16.
    pub in_capsule_bytes: u32,
    /// Most entries of an I/O queue: 2 to 65,535.
    pub max_queue_entries: u16,
    /// Most entries of an admin queue: 32 to 4096.
    pub max_admin_queue_entries: u16,
    /// Most I/O queues of one controller: 1 to 65,534.
    pub max_io_queues: u16,
    /// Largest NSID that may ever be used; namespaces may be added up to it.
    pub max_nsid: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_transfer_bytes: 1 << 20,
            in_capsule_bytes: 8192,
            max_queue_entries: 1023,
            max_admin_queue_entries: 128,
            max_io_queues: 128,
            max_nsid: 128,
        }
    }
}

/// In-capsule bytes that the admin queue and every Fabrics command may carry,
/// whatever IOCCSZ says (NVMe-TCP, In-capsule data).
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

/// What deallocation does to a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deallocation {
    /// Deallocated blocks always read as zeros, on every path.
    pub reads_zeros: bool,
    /// Write Zeroes with DEAC deallocates.
    pub by_write_zeroes: bool,
    /// Granularity and alignment at which it is worth it, in bytes; 0 for unknown.
    pub granularity_bytes: u32,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// NSID: 1 to [`Limits::max_nsid`].
    pub nsid: u32,
    /// Logical block size in bytes: a power of two, 512 to 65,536.
    pub block_size_bytes: u32,
    /// Size in logical blocks.
    pub size_blocks: u64,
    /// NGUID; not zero, and never another's.
    pub nguid: [u8; 16],
    /// UUID; not zero, and never another's.
    pub uuid: [u8; 16],
    /// Acknowledged writes may be in a volatile cache until a Flush.
    pub volatile_cache: bool,
    /// Ready for I/O.
    pub ready: bool,
    /// What deallocation does.
    pub deallocation: Deallocation,
    /// Preferred granularity and alignment of writes (the chunk) in bytes; 0 for none.
    pub write_granularity_bytes: u32,
    /// Optimal size of a write (the data stripe of a parity level) in bytes; 0 for none.
    pub optimal_write_bytes: u32,
    /// Data stripe in bytes; 0 for none. Advertised as an I/O boundary only where
    /// that helps: see [`Namespace::io_boundary_blocks`].
    pub stripe_bytes: u64,
}

impl Namespace {
    /// Binary logarithm of the block size.
    pub fn block_shift(&self) -> u32 {
        self.block_size_bytes.trailing_zeros()
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u128 {
        u128::from(self.size_blocks) << self.block_shift()
    }

    /// NOIOB: the data stripe, if it is a power of two of at least 128 KiB, else 0.
    ///
    /// Linux splits every request at this boundary, but only if it is a power of
    /// two. A smaller one would cut writes so short that whole stripes never come.
    pub fn io_boundary_blocks(&self) -> u16 {
        if self.stripe_bytes < 128 << 10 || !self.stripe_bytes.is_power_of_two() {
            return 0;
        }
        u16::try_from(self.stripe_bytes >> self.block_shift()).unwrap_or(0)
    }

    /// Bytes as a 0's based number of blocks; 0 blocks for what does not divide.
    pub(super) fn zeros_based_blocks(&self, bytes: u32) -> u16 {
        if bytes == 0 || bytes & (self.block_size_bytes - 1) != 0 {
            return 0;
        }
        u16::try_from((bytes >> self.block_shift()) - 1).unwrap_or(u16::MAX)
    }
}

/// An NVM subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subsystem {
    /// NQN.
    pub nqn: String,
    /// Serial number: up to 20 ASCII characters, the same after every restart.
    pub serial: String,
    /// Who may connect.
    pub hosts: Hosts,
    /// Limits of its controllers.
    pub limits: Limits,
    /// WCTEMP in kelvin; 0 for none.
    pub warning_kelvin: u16,
    /// CCTEMP in kelvin; 0 for none.
    pub critical_kelvin: u16,
    namespaces: Vec<Namespace>,
}

/// A subsystem that cannot be served as described.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubsystemError {
    /// NSID 0, or above the limit.
    #[error("namespace {nsid} is outside 1 to {max}: choose another number")]
    NsidOutOfRange {
        /// The NSID.
        nsid: u32,
        /// Largest allowed.
        max: u32,
    },
    /// Two namespaces with one NSID.
    #[error("namespace {nsid} is there twice: number them differently")]
    NsidTwice {
        /// The NSID.
        nsid: u32,
    },
    /// The block size cannot be expressed or served.
    #[error("namespace {nsid}: a block of {bytes} bytes is not a power of two from 512 to 65536")]
    BlockSize {
        /// The NSID.
        nsid: u32,
        /// Bytes.
        bytes: u32,
    },
    /// Larger than byte offsets reach.
    #[error("namespace {nsid} is larger than 2^63 bytes: make it smaller")]
    TooLarge {
        /// The NSID.
        nsid: u32,
    },
    /// An identifier is all zeros, which hosts take for "none".
    #[error("namespace {nsid} has an identifier of zeros: derive NGUID and UUID from the array")]
    ZeroIdentifier {
        /// The NSID.
        nsid: u32,
    },
    /// A limit is out of range.
    #[error("{what} of {value}: use {allowed}")]
    Limit {
        /// Which.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is possible.
        allowed: &'static str,
    },
}

impl Limits {
    /// Checks that every limit can be advertised.
    ///
    /// # Errors
    /// The first that cannot.
    pub fn validate(&self) -> Result<(), SubsystemError> {
        let transfer = self.max_transfer_bytes;
        let checks = [
            (
                transfer.is_power_of_two() && (1 << 12..=1 << 27).contains(&transfer),
                "a largest transfer",
                u64::from(transfer),
                "a power of two from 4 KiB to 128 MiB",
            ),
            (
                self.in_capsule_bytes.is_multiple_of(16) && self.in_capsule_bytes <= 1 << 20,
                "in-capsule data",
                u64::from(self.in_capsule_bytes),
                "a multiple of 16 bytes up to 1 MiB",
            ),
            (
                (2..=u16::MAX).contains(&self.max_queue_entries),
                "a queue depth",
                u64::from(self.max_queue_entries),
                "2 to 65535 entries",
            ),
            (
                (32..=4096).contains(&self.max_admin_queue_entries),
                "an admin queue depth",
                u64::from(self.max_admin_queue_entries),
                "32 to 4096 entries",
            ),
            (
                (1..=65_534).contains(&self.max_io_queues),
                "a number of I/O queues",
                u64::from(self.max_io_queues),
                "1 to 65534",
            ),
            (
                (1..=0xFFFF_FFFD).contains(&self.max_nsid),
                "a largest NSID",
                u64::from(self.max_nsid),
                "1 to 4294967293",
            ),
        ];
        match checks.into_iter().find(|(holds, ..)| !holds) {
            Some((_, what, value, allowed)) => Err(SubsystemError::Limit { what, value, allowed }),
            None => Ok(()),
        }
    }
}

impl Subsystem {
    /// A subsystem with these namespaces, in any order, and no temperature thresholds.
    ///
    /// # Errors
    /// What cannot be served: see [`SubsystemError`].
    pub fn new(
        nqn: String,
        serial: String,
        hosts: Hosts,
        limits: Limits,
        mut namespaces: Vec<Namespace>,
    ) -> Result<Self, SubsystemError> {
        limits.validate()?;
        namespaces.sort_by_key(|namespace| namespace.nsid);
        let mut last = 0;
        for namespace in &namespaces {
            check_namespace(namespace, &limits)?;
            if namespace.nsid == last {
                return Err(SubsystemError::NsidTwice { nsid: namespace.nsid });
            }
            last = namespace.nsid;
        }
        Ok(Self { nqn, serial, hosts, limits, warning_kelvin: 0, critical_kelvin: 0, namespaces })
    }

    /// The namespaces, by ascending NSID.
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// The namespace with this NSID.
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        let at = self.namespaces.binary_search_by_key(&nsid, |namespace| namespace.nsid).ok()?;
        self.namespaces.get(at)
    }

    /// Whether any namespace has a volatile write cache.
    pub fn has_volatile_cache(&self) -> bool {
        self.namespaces.iter().any(|namespace| namespace.volatile_cache)
    }
}

fn check_namespace(namespace: &Namespace, limits: &Limits) -> Result<(), SubsystemError> {
    let nsid = namespace.nsid;
    if nsid == 0 || nsid > limits.max_nsid {
        return Err(SubsystemError::NsidOutOfRange { nsid, max: limits.max_nsid });
    }
    let bytes = namespace.block_size_bytes;
    if !bytes.is_power_of_two() || !(512..=65_536).contains(&bytes) {
        return Err(SubsystemError::BlockSize { nsid, bytes });
    }
    if namespace.size_bytes() > 1 << 63 {
        return Err(SubsystemError::TooLarge { nsid });
    }
    if namespace.nguid == [0; 16] || namespace.uuid == [0; 16] {
        return Err(SubsystemError::ZeroIdentifier { nsid });
    }
    Ok(())
}

/// An address that the target listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// PORTID: the same for the life of the process, unique.
    pub port_id: u16,
    /// Where; may be a wildcard address.
    pub address: SocketAddr,
}

/// An NVM subsystem as the discovery service knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertised {
    /// NQN.
    pub nqn: String,
    /// Who may know of it.
    pub hosts: Hosts,
    /// Where it is reached.
    pub listeners: Vec<Listener>,
    /// Most entries of its admin queues.
    pub max_admin_queue_entries: u16,
}

/// The discovery service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// Serial number: up to 20 ASCII characters, the same after every restart.
    pub serial: String,
    /// Limits of its controllers; what is about I/O does not matter.
    pub limits: Limits,
    /// GENCTR: to be counted up with every change of what follows.
    pub generation: u64,
    /// Where the discovery service itself is reached.
    pub listeners: Vec<Listener>,
    /// The subsystems.
    pub subsystems: Vec<Advertised>,
}
