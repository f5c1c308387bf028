//! The control plane's view of all that is served, and the desk at which commands are answered.
//!
//! The desk is there before anything is served, so that commands hear what a start waits for.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use super::changes::blocking;
use super::compose::OpenComposed;
use super::control::Operator;
use super::control::api::{Answer, Request};
use super::cores::Cores;
use super::listen::{Door, Listener};
use super::observe;
use super::report::{
    ArrayStatus, Daemon, Done, Export, ExportedNamespace, Refusal, STATUS, Status,
};
use super::served::ServedArray;
use crate::association::Registry;
use crate::config::{self, Config};
use crate::core::{Below, Published};

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

/// A data core, from outside.
pub(super) struct CoreDoor {
    pub(super) door: Door,
    pub(super) published: Arc<Published>,
}

/// The arrays that are served.
pub(super) struct Arrays {
    /// Those over drives.
    pub(super) served: Vec<Arc<ServedArray>>,
    /// Those over arrays.
    pub(super) composed: Vec<OpenComposed>,
    /// Where each array of the configuration is among them.
    pub(super) order: Vec<Below>,
}

/// All that is served.
pub struct Plane {
    started: Instant,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) registry: Arc<Registry>,
    pub(super) doors: Arc<Vec<Door>>,
    published: Vec<Arc<Published>>,
    /// Those over drives.
    pub(super) arrays: Vec<Arc<ServedArray>>,
    composed: Vec<OpenComposed>,
    order: Vec<Below>,
    subsystems: Vec<config::Subsystem>,
}

impl Plane {
    pub(super) fn new(
        config: &Config,
        listeners: &[Listener],
        registry: Arc<Registry>,
        cores: Vec<CoreDoor>,
        arrays: Arrays,
    ) -> Self {
        let Arrays { served: arrays, composed, order } = arrays;
        let volumes = listeners.iter().filter(|listener| listener.serves_volumes);
        let (doors, published) = cores.into_iter().map(|core| (core.door, core.published)).unzip();
        for array in &arrays {
            array.tell(&registry);
        }
        Self {
            started: Instant::now(),
            addresses: volumes.map(|listener| listener.address).collect(),
            registry,
            doors: Arc::new(doors),
            published,
            arrays,
            composed,
            order,
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
            self.registry.set_temperature(&array.shared, array.warmest_kelvin());
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
            let (name, capacity_bytes) = match *self.order.get(namespace.array)? {
                Below::Array(index) => {
                    let array = self.arrays.get(index)?;
                    (array.name(), array.open.geometry.capacity_bytes())
                }
                Below::Composed(index) => {
                    let array = self.composed.get(index)?;
                    (array.name.as_str(), array.geometry.capacity_bytes())
                }
            };
            let rest_bytes = capacity_bytes.saturating_sub(namespace.offset_bytes);
            Some(ExportedNamespace {
                nsid: namespace.nsid,
                array: name.to_owned(),
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
        let is_wanted = |name: &str| only.is_none_or(|only| only == name);
        let one = |below: &Below| match *below {
            Below::Array(index) => {
                let array = self.arrays.get(index).filter(|array| is_wanted(array.name()))?;
                Some(observe::array(array))
            }
            Below::Composed(index) => {
                let array = self.composed.get(index).filter(|array| is_wanted(&array.name))?;
                Some(observe::composed(array, &self.leaves(array)))
            }
        };
        let arrays: Vec<_> = self.order.iter().filter_map(one).collect();
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

    /// The arrays that one is over, by slot.
    fn leaves(&self, array: &OpenComposed) -> Vec<Arc<ServedArray>> {
        let leaf = |leaf: &super::compose::LeafPlace| self.arrays.get(leaf.array).map(Arc::clone);
        array.leaves.iter().filter_map(leaf).collect()
    }

    fn no_array(&self, name: &str) -> Refusal {
        let name_of = |below: &Below| match *below {
            Below::Array(index) => self.arrays.get(index).map(|array| array.name()),
            Below::Composed(index) => self.composed.get(index).map(|array| array.name.as_str()),
        };
        let names: Vec<_> = self.order.iter().filter_map(name_of).collect();
        Refusal::not_found(format!("there is no array {name}; there are {}", names.join(", ")))
    }
}

/// Where commands are answered.
#[derive(Default)]
pub(super) struct Desk {
    plane: OnceLock<Arc<Plane>>,
    waiting: Mutex<Vec<ArrayStatus>>,
}

impl Desk {
    /// From now on everything is served.
    pub(super) fn open(&self, plane: &Arc<Plane>) {
        let _ = self.plane.set(Arc::clone(plane));
    }

    /// An array waits for something before it is served.
    pub(super) fn waits(&self, array: ArrayStatus) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|other| other.name != array.name);
        waiting.push(array);
    }

    /// It does not wait any more.
    pub(super) fn waited(&self, name: &str) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|other| other.name != name);
    }

    fn plane(&self) -> Option<Arc<Plane>> {
        self.plane.get().map(Arc::clone)
    }

    /// What is known before anything is served.
    fn early_status(&self, only: Option<&str>) -> Result<Status, Refusal> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = |array: &&ArrayStatus| only.is_none_or(|name| name == array.name);
        let arrays: Vec<_> = waiting.iter().filter(wanted).cloned().collect();
        drop(waiting);
        if arrays.is_empty() {
            return Err(Refusal::starting());
        }
        Ok(Status { schema: STATUS.to_owned(), daemon: None, arrays, exports: Vec::new() })
    }
}

impl Operator for Desk {
    fn status(&self, array: Option<String>) -> Answer<Status> {
        let plane = self.plane();
        let early = match plane {
            Some(_) => None,
            None => Some(self.early_status(array.as_deref())),
        };
        Box::pin(async move {
            let Some(plane) = plane else {
                return early.unwrap_or_else(|| Err(Refusal::starting()));
            };
            // Reads sensors and looks at spares: not on the thread that accepts connections.
            blocking(move || plane.status(array.as_deref())).await
        })
    }

    fn command(&self, array: String, request: Request) -> Answer<Done> {
        let plane = self.plane();
        Box::pin(async move {
            let plane = plane.ok_or_else(Refusal::starting)?;
            tracing::info!(array, ?request, "asked by an operator");
            let done = plane.carry_out_by_name(&array, request).await;
            match &done {
                Ok(done) => tracing::info!(array, "{}", done.message),
                Err(refusal) => tracing::info!(array, "refused: {refusal}"),
            }
            done
        })
    }
}

impl Plane {
    async fn carry_out_by_name(&self, name: &str, request: Request) -> Result<Done, Refusal> {
        if let Some(array) = self.composed.iter().find(|one| one.name == name) {
            return self.carry_out_on_leaves(array, request).await;
        }
        let found = self.arrays.iter().find(|one| one.name() == name);
        let served = found.ok_or_else(|| self.no_array(name))?;
        let is_leaf = |array: &&OpenComposed| array.leaves.iter().any(|leaf| leaf.name == name);
        if let (Request::Stop, Some(outer)) = (&request, self.composed.iter().find(is_leaf)) {
            return Err(Refusal::conflict(format!(
                "array {name} is a part of array {}, which is stopped as a whole: raidfabric array \
                 stop {}",
                outer.name, outer.name
            )));
        }
        self.carry_out(served, request).await
    }

    /// What is asked of an array over arrays: its leaves do it, or are to be asked.
    async fn carry_out_on_leaves(
        &self,
        array: &OpenComposed,
        request: Request,
    ) -> Result<Done, Refusal> {
        let leaves = self.leaves(array);
        let names: Vec<_> = leaves.iter().map(|leaf| leaf.name()).collect();
        let names = names.join(", ");
        match &request {
            Request::Add { .. } | Request::Fail { .. } | Request::Remove { .. } => {
                return Err(Refusal::invalid(format!(
                    "array {} is over arrays and has no drives of its own; {} goes to the one of {names} \
                     that the drive belongs to",
                    array.name,
                    request.verb()
                )));
            }
            Request::Stop | Request::Check { .. } | Request::Cancel | Request::Assemble { .. } => {}
        }
        let mut done = Vec::new();
        for leaf in &leaves {
            match self.carry_out(leaf, request.clone()).await {
                Ok(one) => done.push(one.message),
                // What has been begun goes on, and is told.
                Err(refusal) if done.is_empty() => return Err(refusal),
                Err(refusal) => {
                    let message = format!("{refusal}; but: {}", done.join("; "));
                    return Err(Refusal { message, ..refusal });
                }
            }
        }
        Ok(Done::new(done.join("; "))
            .next(format!("raidfabric status {} tells how it is", array.name)))
    }

    async fn carry_out(&self, array: &ServedArray, request: Request) -> Result<Done, Refusal> {
        let cores = Cores::new(Arc::clone(&self.doors));
        if array.is_stopped() {
            return Err(Refusal::conflict(format!(
                "array {} was stopped; restart the daemon to serve it again",
                array.name()
            )));
        }
        match request {
            Request::Stop => array.stop(&cores).await,
            Request::Assemble { .. } => Err(Refusal::conflict(format!(
                "array {} is being served already; raidfabric status {} tells how it is",
                array.name(),
                array.name()
            ))),
            Request::Add { drive, slot } => array.add(&cores, drive.into(), slot).await,
            Request::Fail { member } => array.fail(&member).await,
            Request::Remove { member } => array.remove(&cores, &member).await,
            Request::Check { repair } => array.check(repair),
            Request::Cancel => array.cancel(),
        }
    }
}
