//! The control plane's view of all that is served, and the desk at which commands are answered.
//!
//! The desk is there before anything is served, so that commands hear what a start waits for.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use raidfabric_raid::array::{ResyncProgress, Shared, Timer};

use super::arrays::OpenArray;
use super::control::Operator;
use super::control::api::{Answer, Request};
use super::listen::{Door, Listener};
use super::observe;
use super::report::{Daemon, Done, Export, ExportedNamespace, Refusal, STATUS, Status};
use crate::association::Registry;
use crate::config::{self, Config};
use crate::core::Published;
use crate::runtime::Clock;

/// What is in use at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// TCP connections.
    pub connections: u64,
    /// Controllers.
    pub controllers: u64,
    /// Commands not yet completed.
    pub commands: u64,
    /// Bytes of data memory.
    pub memory_bytes: u64,
}

impl std::fmt::Display for InUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "in use: {} connections, {} controllers, {} commands, {} bytes of buffers",
            self.connections, self.controllers, self.commands, self.memory_bytes
        )
    }
}

/// An array, and what the cores share of it.
pub struct ServedArray {
    /// Its drives.
    pub(super) open: OpenArray,
    /// Its state.
    pub(super) shared: Arc<Shared>,
}

impl ServedArray {
    /// How far its resync is, if one is under way.
    pub(super) fn sync_progress(&self) -> Option<ResyncProgress> {
        self.shared.resync_progress(Clock::new().now())
    }
}

/// A data core, from outside.
pub(super) struct CoreDoor {
    pub(super) door: Door,
    pub(super) published: Arc<Published>,
}

/// All that is served.
pub struct Plane {
    started: Instant,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) registry: Arc<Registry>,
    pub(super) doors: Arc<Vec<Door>>,
    published: Vec<Arc<Published>>,
    pub(super) arrays: Vec<ServedArray>,
    subsystems: Vec<config::Subsystem>,
}

impl Plane {
    pub(super) fn new(
        config: &Config,
        listeners: &[Listener],
        registry: Arc<Registry>,
        cores: Vec<CoreDoor>,
        arrays: Vec<ServedArray>,
    ) -> Self {
        let volumes = listeners.iter().filter(|listener| listener.serves_volumes);
        let (doors, published) = cores.into_iter().map(|core| (core.door, core.published)).unzip();
        Self {
            started: Instant::now(),
            addresses: volumes.map(|listener| listener.address).collect(),
            registry,
            doors: Arc::new(doors),
            published,
            arrays,
            subsystems: config.subsystems.clone(),
        }
    }

    /// What is in use; up to a second old.
    pub fn in_use(&self) -> InUse {
        let sum = |counter: fn(&Published) -> &AtomicU64| {
            self.published.iter().map(|core| counter(core).load(Ordering::Relaxed)).sum()
        };
        InUse {
            connections: sum(|core| &core.connections),
            controllers: self.registry.controllers() as u64,
            commands: sum(|core| &core.commands),
            memory_bytes: sum(|core| &core.memory_bytes),
        }
    }

    /// Reads the drives' temperatures and tells every controller to look at the health of its
    /// subsystem.
    pub(super) fn report_health(&self) {
        for array in &self.arrays {
            let kelvin = array.open.temperature_kelvin();
            self.registry.set_temperature(&array.shared, kelvin);
        }
        self.registry.health_may_have_changed();
    }

    fn daemon(&self) -> Daemon {
        let in_use = self.in_use();
        Daemon {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            connections: in_use.connections,
            controllers: in_use.controllers,
            commands: in_use.commands,
            buffer_bytes: in_use.memory_bytes,
        }
    }

    fn export(&self, index: usize, subsystem: &config::Subsystem) -> Export {
        let namespace = |namespace: &config::Namespace| {
            let array = self.arrays.get(namespace.array)?;
            let capacity_bytes = array.open.geometry.capacity_bytes();
            let rest_bytes = capacity_bytes.saturating_sub(namespace.offset_bytes);
            Some(ExportedNamespace {
                nsid: namespace.nsid,
                array: array.open.name.clone(),
                size_bytes: namespace.size_bytes.unwrap_or(rest_bytes),
                block_size_bytes: namespace.block_size_bytes,
            })
        };
        Export {
            nqn: subsystem.nqn.clone(),
            addresses: self.addresses.clone(),
            connected_hosts: self.registry.connected_hosts(index),
            namespaces: subsystem.namespaces.iter().filter_map(namespace).collect(),
        }
    }

    /// All arrays, or one.
    fn status(&self, only: Option<&str>) -> Result<Status, Refusal> {
        let wanted = |array: &&ServedArray| only.is_none_or(|name| name == array.open.name);
        let arrays: Vec<_> = self.arrays.iter().filter(wanted).map(observe::array).collect();
        if let (Some(name), true) = (only, arrays.is_empty()) {
            return Err(self.no_array(name));
        }
        let exports = self.subsystems.iter().enumerate().map(|(at, one)| self.export(at, one));
        let concerns = |export: &Export| {
            only.is_none_or(|name| export.namespaces.iter().any(|ns| ns.array == name))
        };
        Ok(Status {
            schema: STATUS.to_owned(),
            daemon: Some(self.daemon()),
            arrays,
            exports: exports.filter(concerns).collect(),
        })
    }

    fn no_array(&self, name: &str) -> Refusal {
        let names: Vec<_> = self.arrays.iter().map(|array| array.open.name.as_str()).collect();
        Refusal::not_found(format!("there is no array {name}; there are {}", names.join(", ")))
    }
}

/// Where commands are answered.
#[derive(Default)]
pub(super) struct Desk {
    plane: OnceLock<Arc<Plane>>,
}

impl Desk {
    /// From now on everything is served.
    pub(super) fn open(&self, plane: &Arc<Plane>) {
        let _ = self.plane.set(Arc::clone(plane));
    }

    fn plane(&self) -> Result<Arc<Plane>, Refusal> {
        self.plane
            .get()
            .map(Arc::clone)
            .ok_or_else(|| Refusal::conflict("the daemon is just starting; ask again in a moment"))
    }
}

impl Operator for Desk {
    fn status(&self, array: Option<String>) -> Answer<Status> {
        let plane = self.plane();
        Box::pin(async move {
            // Reads sensors: not on the thread that accepts connections.
            let look = move || plane?.status(array.as_deref());
            tokio::task::spawn_blocking(look).await.unwrap_or_else(|error| {
                Err(Refusal::failed(format!("looking at the arrays failed: {error}")))
            })
        })
    }

    fn command(&self, array: String, request: Request) -> Answer<Done> {
        let plane = self.plane();
        Box::pin(async move {
            let plane = plane?;
            if !plane.arrays.iter().any(|one| one.open.name == array) {
                return Err(plane.no_array(&array));
            }
            Err(Refusal::conflict(format!("this version cannot {} an array", request.verb())))
        })
    }
}
