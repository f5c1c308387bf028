//! Connect: what a host asks, and whether it gets it.
//!
//! Everything here is a pure function. The caller finds the subsystem (for an
//! admin queue) or the controller (for an I/O queue) that a [`Request`] names,
//! and answers with [`ConnectError::UnknownSubsystem`] or
//! [`ConnectError::UnknownController`] if there is none.
use raidfabric_protocol::fabrics::command::{
    CNTLID_DYNAMIC, CONNECT_DATA_BYTES, ConnectAttributes, ConnectResponse, FabricsCommand,
    InvalidParameter,
};
use raidfabric_protocol::fabrics::{ConnectData, nqn};
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::nvme::status::{CommandSpecific, Generic, Status};
use zerocopy::FromBytes;

/// A Connect command with its data, well formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// QID: 0 for an admin queue.
    pub qid: u16,
    /// Entries wanted, 2 to 65,536.
    pub entries: u32,
    /// The host does without submission queue flow control.
    pub sq_flow_control_disabled: bool,
    /// CATTR as sent.
    pub attributes: ConnectAttributes,
    /// Keep alive timeout in milliseconds; 0 for none.
    pub kato_ms: u32,
    /// HOSTID.
    pub host_id: [u8; 16],
    /// HOSTNQN.
    pub host_nqn: String,
    /// SUBNQN.
    pub subsystem_nqn: String,
    /// CNTLID asked for.
    pub cntlid: u16,
}

/// Why a Connect is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Another command came first.
    #[error("the first command on a queue must be Connect")]
    NotConnect,
    /// A second Connect on one queue.
    #[error("the queue is connected already")]
    AlreadyConnected,
    /// The entry is wrong in itself.
    #[error("the Connect entry is malformed: {0}")]
    Malformed(Status),
    /// The data is not 1024 bytes.
    #[error("Connect has {length_bytes} bytes of data; it must have 1024")]
    DataLength {
        /// Bytes it has.
        length_bytes: usize,
    },
    /// RECFMT is not 0.
    #[error("Connect record format {recfmt} is unknown; only 0 is")]
    RecordFormat {
        /// RECFMT.
        recfmt: u16,
    },
    /// SUBNQN is not a terminated text.
    #[error("the subsystem name in Connect is unusable: {0}")]
    SubsystemName(nqn::NqnError),
    /// HOSTNQN is not a terminated text, or empty.
    #[error("the host name in Connect is unusable: {0}")]
    HostName(nqn::NqnError),
    /// No such subsystem here.
    #[error("there is no subsystem {subsystem_nqn:?}")]
    UnknownSubsystem {
        /// SUBNQN.
        subsystem_nqn: String,
    },
    /// The host is not among those that may connect.
    #[error(
        "host {host_nqn:?} may not connect to {subsystem_nqn:?}: add it to the subsystem's hosts"
    )]
    HostNotAllowed {
        /// HOSTNQN.
        host_nqn: String,
        /// SUBNQN.
        subsystem_nqn: String,
    },
    /// Too few or too many entries.
    #[error("a queue of {entries} entries; possible are 2 to {max}")]
    QueueSize {
        /// Entries asked for.
        entries: u32,
        /// Most possible.
        max: u16,
    },
    /// An admin Connect that names a controller; they are made on demand.
    #[error("controller {cntlid:#06x} cannot be asked for: controllers are dynamic, ask for FFFFh")]
    ControllerChosen {
        /// CNTLID.
        cntlid: u16,
    },
    /// An I/O Connect to a controller that does not exist (any more).
    #[error("there is no controller {cntlid:#06x} of {subsystem_nqn:?}")]
    UnknownController {
        /// CNTLID.
        cntlid: u16,
        /// SUBNQN.
        subsystem_nqn: String,
    },
    /// An I/O Connect from another host than the controller's.
    #[error("controller {cntlid:#06x} belongs to another host than {host_nqn:?}")]
    OtherHost {
        /// CNTLID.
        cntlid: u16,
        /// HOSTNQN.
        host_nqn: String,
    },
    /// The same host name with another host identifier.
    #[error("controller {cntlid:#06x} was connected with another host identifier")]
    OtherHostId {
        /// CNTLID.
        cntlid: u16,
    },
    /// An I/O queue for a discovery controller, or beyond the number granted.
    #[error("queue {qid} does not exist: the controller has {queues} I/O queues")]
    QueueId {
        /// QID.
        qid: u16,
        /// I/O queues there are.
        queues: u16,
    },
    /// The I/O queue is connected already.
    #[error("queue {qid} of controller {cntlid:#06x} is connected already")]
    QueueInUse {
        /// QID.
        qid: u16,
        /// CNTLID.
        cntlid: u16,
    },
    /// An I/O Connect before CC.EN, or in a shutdown.
    #[error("controller {cntlid:#06x} is not enabled")]
    NotReady {
        /// CNTLID.
        cntlid: u16,
    },
    /// No resources for another queue or controller now.
    #[error("no room for another connection: {what}")]
    Busy {
        /// What has run out.
        what: String,
    },
}

impl ConnectError {
    /// The wrong field, for those that are Connect Invalid Parameters.
    fn parameter(&self) -> Option<InvalidParameter> {
        match self {
            Self::SubsystemName(_) | Self::UnknownSubsystem { .. } => {
                Some(InvalidParameter::SubNqn)
            }
            Self::HostName(_) | Self::OtherHost { .. } => Some(InvalidParameter::HostNqn),
            Self::OtherHostId { .. } => Some(InvalidParameter::HostId),
            Self::QueueSize { .. } => Some(InvalidParameter::SqSize),
            Self::ControllerChosen { .. } | Self::UnknownController { .. } => {
                Some(InvalidParameter::CntlId)
            }
            Self::QueueId { .. } => Some(InvalidParameter::Qid),
            _ => None,
        }
    }

    /// The status to complete the Connect with.
    pub fn status(&self) -> Status {
        if let Some(parameter) = self.parameter() {
            return parameter.status();
        }
        match self {
            Self::NotConnect
            | Self::AlreadyConnected
            | Self::QueueInUse { .. }
            | Self::NotReady { .. } => Generic::CommandSequenceError.into(),
            Self::Malformed(status) => *status,
            Self::DataLength { .. } => Generic::DataSglLengthInvalid.into(),
            Self::RecordFormat { .. } => CommandSpecific::ConnectIncompatibleFormat.into(),
            Self::HostNotAllowed { .. } => CommandSpecific::ConnectInvalidHost.into(),
            Self::Busy { .. } => CommandSpecific::ConnectControllerBusy.into(),
            // The others have a parameter and were answered above.
            _ => CommandSpecific::ConnectInvalidParameters.into(),
        }
    }

    /// DW0 of the completion: where the wrong field is.
    pub fn result(&self) -> u64 {
        self.parameter().map_or(0, |parameter| u64::from(parameter.result()))
    }
}

impl Request {
    /// Reads the first command of a queue and its data.
    ///
    /// # Errors
    /// Another command, a wrong length or format, or a name that is none.
    pub fn parse(sqe: &Sqe, data: &[u8]) -> Result<Self, ConnectError> {
        let connect = match FabricsCommand::parse(sqe) {
            Ok(FabricsCommand::Connect(connect)) => connect,
            // Whatever else it is, and however wrong: its time has not come.
            _ if !is_connect(sqe) => return Err(ConnectError::NotConnect),
            Ok(_) => return Err(ConnectError::NotConnect),
            Err(status) => return Err(ConnectError::Malformed(status)),
        };
        if connect.recfmt.get() != 0 {
            return Err(ConnectError::RecordFormat { recfmt: connect.recfmt.get() });
        }
        let length_bytes = data.len();
        if length_bytes != CONNECT_DATA_BYTES {
            return Err(ConnectError::DataLength { length_bytes });
        }
        let data = ConnectData::ref_from_bytes(data)
            .map_err(|_| ConnectError::DataLength { length_bytes })?;
        let subsystem_nqn =
            nqn::from_field(&data.subnqn).map_err(ConnectError::SubsystemName)?.to_owned();
        let host_nqn = nqn::from_field(&data.hostnqn).map_err(ConnectError::HostName)?.to_owned();
        if host_nqn.is_empty() {
            return Err(ConnectError::HostName(nqn::NqnError::NotNqn));
        }
        Ok(Self {
            qid: connect.qid.get(),
            entries: u32::from(connect.sqsize.get()) + 1,
            sq_flow_control_disabled: connect.cattr.disable_sq_flow_control(),
            attributes: connect.cattr,
            kato_ms: connect.kato_ms.get(),
            host_id: data.hostid,
            host_nqn,
            subsystem_nqn,
            cntlid: data.cntlid.get(),
        })
    }

    /// Whether this asks for the discovery service.
    pub fn is_discovery(&self) -> bool {
        self.subsystem_nqn == nqn::DISCOVERY_NQN
    }

    /// Checks what an admin queue's Connect asks, but for the host.
    pub(super) fn check_admin(&self, max_entries: u16) -> Result<QueueGrant, ConnectError> {
        if self.qid != 0 {
            return Err(ConnectError::QueueId { qid: self.qid, queues: 0 });
        }
        if self.cntlid != CNTLID_DYNAMIC {
            return Err(ConnectError::ControllerChosen { cntlid: self.cntlid });
        }
        self.grant(max_entries)
    }

    /// The queue, if its size is possible.
    pub(super) fn grant(&self, max_entries: u16) -> Result<QueueGrant, ConnectError> {
        let too_large = || ConnectError::QueueSize { entries: self.entries, max: max_entries };
        let entries = u16::try_from(self.entries).map_err(|_| too_large())?;
        if !(2..=max_entries).contains(&entries) {
            return Err(too_large());
        }
        Ok(QueueGrant {
            qid: self.qid,
            entries,
            sq_flow_control_disabled: self.sq_flow_control_disabled,
        })
    }
}

fn is_connect(sqe: &Sqe) -> bool {
    use raidfabric_protocol::fabrics::command::{FABRICS_OPCODE, FabricsType};
    sqe.opcode == FABRICS_OPCODE && sqe.nsid.get() as u8 == FabricsType::Connect.raw()
}

/// A queue that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueGrant {
    /// QID: 0 for the admin queue.
    pub qid: u16,
    /// Entries, 2 to 65,535.
    pub entries: u16,
    /// SQHD is not to be kept; SUCCESS may stand for a completion.
    pub sq_flow_control_disabled: bool,
}

/// DW0 and DW1 of a successful Connect's completion.
pub fn response(cntlid: u16) -> u64 {
    u64::from(ConnectResponse::default().with_cntlid(cntlid).raw())
}

/// Hands out controller identifiers: 1 to FFEFh, none twice among the live ones.
///
/// They go round, so that one just freed is not the next: a host that still
/// believes in its old controller must not meet another's.
#[derive(Debug, Clone, Default)]
pub struct ControllerIds {
    live: std::collections::BTreeSet<u16>,
    last: u16,
}

/// Largest controller identifier that may be used.
const CNTLID_MAX: u16 = 0xFFEF;

impl ControllerIds {
    /// An identifier that no live controller has, or `None` if all are taken.
    pub fn allocate(&mut self) -> Option<u16> {
        let after = (self.last.saturating_add(1)..=CNTLID_MAX).chain(1..=self.last);
        let id = after.into_iter().find(|id| !self.live.contains(id))?;
        self.live.insert(id);
        self.last = id;
        Some(id)
    }

    /// The controller with this identifier is gone.
    pub fn free(&mut self, id: u16) {
        self.live.remove(&id);
    }
}
