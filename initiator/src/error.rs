//! What can go wrong between a host and a controller.
//!
//! A connection's error is given to everybody who waits on it, so errors can be cloned.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use raidfabric_protocol::nvme::status::Status;
use raidfabric_protocol::tcp::{FatalError, Termination};

/// Why a command, or a whole connection, failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// No TCP connection.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// What the system says.
        source: Arc<io::Error>,
    },
    /// Reading or writing failed: the connection is over.
    #[error("connection lost: {0}")]
    Io(Arc<io::Error>),
    /// The controller closed the connection.
    #[error("the controller closed the connection")]
    Closed,
    /// The controller did not answer in time.
    #[error("no answer to {what} within {after:?}")]
    Timeout {
        /// What was asked.
        what: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// The controller broke the protocol; it has been told by H2CTermReq.
    #[error("the controller broke the protocol: {0}")]
    Protocol(FatalError),
    /// The controller says that this host broke the protocol.
    #[error("the controller ended the connection: {0}")]
    Terminated(Termination),
    /// The controller does not use a digest that was asked for.
    #[error("the controller refuses the {0} digest: connect without it")]
    DigestRefused(&'static str),
    /// A command ended with an error status.
    #[error("{command}: {status}")]
    Status {
        /// The command.
        command: &'static str,
        /// Its status.
        status: Status,
        /// DW0 of the completion; with some statuses it says which field is wrong.
        dw0: u32,
    },
    /// Data arrived damaged (data digest).
    #[error("{command}: the data arrived damaged (data digest)")]
    DataDigest {
        /// The command.
        command: &'static str,
    },
    /// A command succeeded without bringing all its data.
    #[error("{command}: {received_bytes} of {expected_bytes} bytes arrived")]
    ShortData {
        /// The command.
        command: &'static str,
        /// What came.
        received_bytes: u32,
        /// What should have come.
        expected_bytes: u32,
    },
    /// The controller's answer does not make sense.
    #[error("{command}: {problem}")]
    BadAnswer {
        /// The command.
        command: &'static str,
        /// What is wrong with the answer.
        problem: &'static str,
    },
    /// What was asked for is not possible with this controller or namespace.
    #[error("{0}")]
    Unsupported(String),
    /// What was read is not what was written.
    #[error("verification failed at {0}")]
    Verification(String),
    /// The caller's mistake.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// The NVMe status, if a command ended with one.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the connection is over.
    pub fn is_connection_lost(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. }
                | Self::Io(_)
                | Self::Closed
                | Self::Protocol(_)
                | Self::Terminated(_)
        )
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}
