//! Who the host is, and how it connects.

use std::time::Duration;

use raidfabric_protocol::fabrics::nqn;
use raidfabric_protocol::tcp::{Digests, PduAlignment};
use uuid::Uuid;

use crate::Error;

/// A host's identity: HOSTNQN and HOSTID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    nqn: String,
    id: Uuid,
}

impl Host {
    /// Sets out to build an identity.
    pub fn builder() -> HostBuilder {
        HostBuilder::default()
    }

    /// An identity of its own, made up now: a random HOSTID and the HOSTNQN that carries it.
    pub fn random() -> Self {
        Self::with_id(Uuid::new_v4())
    }

    fn with_id(id: Uuid) -> Self {
        Self { nqn: format!("nqn.2014-08.org.nvmexpress:uuid:{id}"), id }
    }

    /// HOSTNQN.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// HOSTID.
    pub fn id(&self) -> Uuid {
        self.id
    }
}

/// Builds a [`Host`].
#[derive(Clone, Debug, Default)]
pub struct HostBuilder {
    nqn: Option<String>,
    id: Option<Uuid>,
}

impl HostBuilder {
    /// HOSTNQN, at most 223 bytes. By default made from the HOSTID.
    #[must_use]
    pub fn nqn(mut self, nqn: impl Into<String>) -> Self {
        self.nqn = Some(nqn.into());
        self
    }

    /// HOSTID. By default random.
    #[must_use]
    pub fn id(mut self, id: Uuid) -> Self {
        self.id = Some(id);
        self
    }

    /// The identity.
    ///
    /// # Errors
    /// A HOSTNQN that does not fit its field.
    pub fn build(self) -> Result<Host, Error> {
        let mut host = Host::with_id(self.id.unwrap_or_else(Uuid::new_v4));
        if let Some(nqn) = self.nqn {
            nqn::to_field(&nqn).map_err(|error| Error::Invalid(error.to_string()))?;
            host.nqn = nqn;
        }
        Ok(host)
    }
}

/// How a host connects to a controller.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who connects.
    pub host: Host,
    /// Digests asked for; refused ones are an error.
    pub digests: Digests,
    /// Alignment asked of the controller's payloads.
    pub hpda: PduAlignment,
    /// Outstanding R2Ts accepted per command, at least 1.
    pub max_r2t: u32,
    /// Ask for queues without SQ flow control; a controller then may answer reads by SUCCESS.
    pub disable_sq_flow_control: bool,
    /// Commands outstanding on the admin queue.
    pub admin_depth: u16,
    /// KATO; zero for none. A keep-alive goes out every half of it.
    pub keep_alive: Duration,
    /// How long connecting, and each admin or fabrics command, may take.
    pub timeout: Duration,
}

impl Default for Options {
    /// A random host, no digests, no alignment, one R2T per command, SQ flow control on, 31 admin
    /// commands, 15 s keep-alive timeout, 10 s for each answer.
    fn default() -> Self {
        Self {
            host: Host::random(),
            digests: Digests::default(),
            hpda: PduAlignment::NONE,
            max_r2t: 1,
            disable_sq_flow_control: false,
            admin_depth: 31,
            keep_alive: Duration::from_secs(15),
            timeout: Duration::from_secs(10),
        }
    }
}
