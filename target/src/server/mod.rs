//! The control plane: starting and stopping what a configuration describes.
//!
//! [`Server::start`] goes from what can be refused without a trace to what cannot: io_uring,
//! listening sockets, a look at every drive, and only then creating or assembling arrays and
//! starting the data cores. [`Server::stop`] goes back the same way and marks the arrays clean.
//!
//! The control thread accepts connections and writes superblocks; it never touches data.

pub mod arrays;
mod keeper;
mod listen;
pub mod overwrite;
pub mod present;
mod state;
mod subsystems;
mod temperature;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use raidfabric_protocol::tcp::target as machine;
use raidfabric_raid::array::{self, NoKeeper, Shared};
use raidfabric_raid::assemble::ArrayHandle;
use raidfabric_raid::device::OpenDevice;
use raidfabric_raid::mesh::Mesh;
use tokio::sync::{mpsc, oneshot};

pub use arrays::{ArrayStartError, OpenArray, Outlook, Prospect};
pub use listen::{Arrival, Seat};
pub use overwrite::Overwrite;
pub use state::StateDirectory;

use crate::association::Registry;
use crate::config::drives::Drives;
use crate::config::memory::{Bound, WORKERS_PER_CORE};
use crate::config::{Array, Config};
use crate::core::{
    self, ArrayPlan, CoreError, CoreMessage, CorePlan, MemoryPlan, Published, Settings,
};
use crate::runtime::{self, CoreOptions, Doorbell, RuntimeError};
use keeper::ControlSide;
use listen::{Door, Listener};

/// How long a refused connection's end is waited for.
const LINGER: Duration = Duration::from_secs(1);

/// What to serve.
pub struct Plan {
    /// The configuration.
    pub config: Config,
    /// The drives of each of its arrays.
    pub drives: Vec<Drives>,
    /// The data cores.
    pub cores: Vec<usize>,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// io_uring, or pinning.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A listening socket.
    #[error(transparent)]
    Listen(#[from] listen::BindError),
    /// An array, by a look at its drives.
    #[error(transparent)]
    Array(#[from] ArrayStartError),
    /// An array that was being created or assembled: drives may have been written to.
    #[error(transparent)]
    Opening(ArrayStartError),
    /// A subsystem.
    #[error(transparent)]
    Subsystem(#[from] subsystems::SubsystemStartError),
    /// A subsystem, after the arrays were opened.
    #[error(transparent)]
    Exporting(subsystems::SubsystemStartError),
    /// The state directory.
    #[error(transparent)]
    State(#[from] state::StateError),
    /// A data core, after the arrays were opened.
    #[error("a data core did not start: {0}")]
    Core(#[from] CoreError),
    /// The system is out of something.
    #[error("cannot get {what}: {source}")]
    Resources {
        /// What.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

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

/// A running server.
pub struct Server {
    addresses: Vec<SocketAddr>,
    registry: Arc<Registry>,
    doors: Arc<Vec<Door>>,
    published: Vec<Arc<Published>>,
    cores: Vec<JoinHandle<Result<(), CoreError>>>,
    control: Control,
    arrays: Vec<ServedArray>,
}

/// An array and what the cores share of it.
struct ServedArray {
    open: OpenArray,
    shared: Arc<Shared>,
}

/// The control thread.
struct Control {
    /// Dropped to stop accepting.
    accepting: Option<oneshot::Sender<()>>,
    /// Dropped to end the thread.
    living: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts serving.
    ///
    /// # Errors
    /// [`StartError`]. Up to the arrays nothing has been touched.
    pub fn start(plan: &Plan) -> Result<Self, StartError> {
        let config = &plan.config;
        runtime::preflight(plan.cores.len(), config.ring.entries, config.ring.coop_taskrun)?;
        let listeners = bind(config)?;
        let addresses = listeners
            .iter()
            .filter(|listener| listener.serves_volumes)
            .map(|listener| listener.address)
            .collect();
        let opened = open_arrays(config, &plan.drives)?;
        for array in &opened {
            announce(array);
        }
        let everything =
            subsystems::build(config, &opened, &listeners).map_err(StartError::Exporting)?;
        let mut control_sides = Vec::new();
        let mut served = Vec::new();
        for (service, open) in opened.into_iter().enumerate() {
            let (shared, control) = share(service, &open, plan.cores.len());
            if let (Some(control), Some(handle)) = (control, &open.handle) {
                control_sides.push((
                    control,
                    open.name.clone(),
                    Arc::clone(&shared),
                    Arc::clone(handle),
                ));
            }
            served.push(ServedArray { open, shared });
        }
        let below = arrays_below(&everything.volumes, &served);
        let registry = Arc::new(Registry::new(everything.served, below, plan.cores.len()));
        let control_runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("raidfabric-io")
            .build()
            .map_err(|source| StartError::Resources { what: "the control thread", source })?;
        let launched = launch(plan, &registry, &served, &everything.volumes)?;
        let doors = Arc::new(launched.doors);
        let control = Control::start(control_runtime, control_sides, listeners, Arc::clone(&doors))
            .map_err(|source| StartError::Resources { what: "the control thread", source })?;
        Ok(Self {
            addresses,
            registry,
            doors,
            published: launched.published,
            cores: launched.threads,
            control,
            arrays: served,
        })
    }

    /// Where volumes are served, in the order of the configuration.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What is in use; up to a second old.
    pub fn in_use(&self) -> InUse {
        let sum = |counter: fn(&Published) -> &std::sync::atomic::AtomicU64| {
            self.published.iter().map(|core| counter(core).load(Ordering::Relaxed)).sum()
        };
        InUse {
            connections: sum(|core| &core.connections),
            controllers: self.registry.controllers() as u64,
            commands: sum(|core| &core.commands),
            memory_bytes: sum(|core| &core.memory_bytes),
        }
    }

    /// The arrays, for their state: name and shared part.
    pub fn arrays(&self) -> impl Iterator<Item = (&str, &Arc<Shared>)> {
        self.arrays.iter().map(|array| (array.open.name.as_str(), &array.shared))
    }

    /// Reads the drives' temperatures and tells every controller to look at the health of its
    /// subsystem, so that hosts hear of what is wrong.
    pub fn report_health(&self) {
        for array in &self.arrays {
            let kelvin = array.open.temperature_kelvin();
            self.registry.set_temperature(&array.shared, kelvin);
        }
        self.registry.health_may_have_changed();
    }

    /// Whether a data core has ended by itself, which only a fault of ours makes it do.
    pub fn has_lost_a_core(&self) -> bool {
        self.cores.iter().any(JoinHandle::is_finished)
    }

    /// Stops: ends the connections, waits for their commands, and marks the arrays clean. Returns
    /// the names of arrays that could not be, with the reason.
    pub fn stop(mut self) -> Vec<(String, String)> {
        self.control.stop_accepting();
        let drained = self.drain();
        for door in self.doors.iter() {
            let _ = door.inbox.send(CoreMessage::End);
        }
        let mut ended = drained;
        for thread in std::mem::take(&mut self.cores) {
            ended &= matches!(thread.join(), Ok(Ok(())));
        }
        self.control.end();
        let mut left = Vec::new();
        for array in &self.arrays {
            if let Err(reason) = mark_clean(array, ended) {
                left.push((array.open.name.clone(), reason));
            }
        }
        left
    }

    /// Whether every core has nothing left to do.
    fn drain(&self) -> bool {
        let (done, answers) = std::sync::mpsc::channel();
        for door in self.doors.iter() {
            let _ = door.inbox.send(CoreMessage::Drain(done.clone()));
        }
        drop(done);
        let mut drained = 0;
        while let Ok(true) = answers.recv() {
            drained += 1;
        }
        drained == self.doors.len()
    }
}

fn mark_clean(array: &ServedArray, cores_ended: bool) -> Result<(), String> {
    let Some(handle) = &array.open.handle else { return Ok(()) };
    array.shared.stop_writes();
    if let Some(failure) = array.shared.failure() {
        return Err(format!("it has failed: {failure}"));
    }
    if !cores_ended || array.shared.writes_in_flight() > 0 {
        return Err("writes to it were still under way".into());
    }
    let mut handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
    // The position can have fallen since the last checkpoint.
    let position_bytes = array.shared.resync_position_bytes();
    handle
        .checkpoint_resync(position_bytes)
        .and_then(|()| handle.mark_clean())
        .map_err(|error| error.to_string())
}

/// Whether an address could be served on now.
///
/// # Errors
/// [`listen::BindError`], which says what to do.
pub fn check_address(address: SocketAddr) -> Result<(), listen::BindError> {
    listen::bind(address, true).map(drop)
}

fn bind(config: &Config) -> Result<Vec<Listener>, StartError> {
    let volumes = config.listen.iter().map(|&address| (address, true));
    let discovery = config.discovery.iter().map(|&address| (address, false));
    let bound = volumes.chain(discovery).map(|(address, serves)| listen::bind(address, serves));
    Ok(bound.collect::<Result<_, _>>()?)
}

/// The state directory, where an array outlives the process.
///
/// # Errors
/// It cannot be made.
pub fn state_directory(config: &Config) -> Result<Option<StateDirectory>, state::StateError> {
    if config.arrays.iter().all(Array::is_memory) {
        return Ok(None);
    }
    Ok(Some(StateDirectory::open(&config.state_dir)?))
}

/// The name of this host, which stands before an array's.
pub fn homehost() -> Option<String> {
    rustix::system::uname().nodename().to_str().ok().map(str::to_owned)
}

fn open_arrays(config: &Config, drives: &[Drives]) -> Result<Vec<OpenArray>, StartError> {
    let state = state_directory(config)?;
    let homehost = homehost();
    let prospects = config
        .arrays
        .iter()
        .zip(drives)
        .map(|(array, drives)| Prospect::look(array, drives, homehost.clone(), state.as_ref()))
        .collect::<Result<Vec<_>, _>>()?;
    check_block_sizes(config, &prospects)?;
    let capacities =
        prospects.iter().map(Prospect::capacity_bytes).collect::<Result<Vec<_>, _>>()?;
    subsystems::check_sizes(config, &capacities)?;
    let take = |prospect: Prospect| prospect.take(state.as_ref());
    prospects.into_iter().map(take).collect::<Result<_, _>>().map_err(StartError::Opening)
}

/// A namespace's blocks must be whole blocks of every drive below.
fn check_block_sizes(config: &Config, prospects: &[Prospect]) -> Result<(), ArrayStartError> {
    for subsystem in &config.subsystems {
        for namespace in &subsystem.namespaces {
            let Some(prospect) = prospects.get(namespace.array) else { continue };
            let too_large = |(_, bytes): &(String, u32)| *bytes > namespace.block_size_bytes;
            if let Some((drive, drive_bytes)) = prospect.drive_blocks().into_iter().find(too_large)
            {
                return Err(ArrayStartError::BlockSize {
                    array: prospect.name().to_owned(),
                    drive,
                    drive_bytes,
                    nsid: namespace.nsid,
                    nqn: subsystem.nqn.clone(),
                    block_bytes: namespace.block_size_bytes,
                });
            }
        }
    }
    Ok(())
}

fn announce(array: &OpenArray) {
    let did = if array.created { "created" } else { "assembled" };
    let size = crate::config::format_bytes(array.geometry.capacity_bytes());
    if array.resync_position_bytes == u64::MAX {
        tracing::info!(array = array.name, uuid = %array.uuid, size, "array {did}");
    } else {
        tracing::warn!(
            array = array.name, uuid = %array.uuid, size,
            "array {did}; its copies are made equal in the background"
        );
    }
}

fn share(service: usize, open: &OpenArray, cores: usize) -> (Arc<Shared>, Option<ControlSide>) {
    let (keeper, control): (Arc<dyn array::Keeper>, _) = if open.handle.is_some() {
        let (core_side, control) = keeper::pair();
        (core_side, Some(control))
    } else {
        (Arc::new(NoKeeper), None)
    };
    let shared = Shared::new(array::Settings {
        service: u16::try_from(service).unwrap_or(u16::MAX),
        uuid: *open.uuid.as_bytes(),
        data_offsets_bytes: open.data_offsets_bytes.clone(),
        cores,
        active: open.handle.is_none(),
        resync_position_bytes: open.resync_position_bytes,
        keeper,
        ..array::Settings::new(open.geometry)
    });
    (shared, control)
}

/// For each subsystem, the arrays that its namespaces are on, each once.
fn arrays_below(
    volumes: &[Vec<core::VolumePlan>],
    served: &[ServedArray],
) -> Vec<Vec<Arc<Shared>>> {
    let below = |volumes: &Vec<core::VolumePlan>| {
        let indexes: BTreeSet<usize> = volumes.iter().map(|volume| volume.array).collect();
        indexes.into_iter().filter_map(|at| Some(Arc::clone(&served.get(at)?.shared))).collect()
    };
    volumes.iter().map(below).collect()
}

struct Launched {
    doors: Vec<Door>,
    published: Vec<Arc<Published>>,
    threads: Vec<JoinHandle<Result<(), CoreError>>>,
}

/// Starts the data cores and waits until every one serves.
fn launch(
    plan: &Plan,
    registry: &Arc<Registry>,
    arrays: &[ServedArray],
    volumes: &[Vec<core::VolumePlan>],
) -> Result<Launched, StartError> {
    let resources = |what| move |source| StartError::Resources { what, source };
    let count = plan.cores.len();
    let bells = (0..count)
        .map(|_| Doorbell::new())
        .collect::<Result<Vec<_>, _>>()
        .map_err(resources("an eventfd"))?;
    let ringing = bells.clone();
    let ring = move |core: usize| {
        if let Some(bell) = ringing.get(core) {
            bell.ring();
        }
    };
    let endpoints = Mesh::new(count, Arc::new(ring));
    let mut launched = Launched { doors: Vec::new(), published: Vec::new(), threads: Vec::new() };
    let (ready, started) = std::sync::mpsc::channel();
    for (index, (endpoint, doorbell)) in endpoints.into_iter().zip(bells).enumerate() {
        let (inbox, messages) = mpsc::unbounded_channel();
        let published = Arc::new(Published::default());
        let mut array_plans = Vec::new();
        for array in arrays {
            let members = array.open.members()?;
            array_plans.push(ArrayPlan { shared: Arc::clone(&array.shared), members });
        }
        let core_plan = CorePlan {
            index,
            options: core_options(plan, index),
            settings: settings(&plan.config),
            memory: memory_plan(&plan.config, count),
            arrays: array_plans,
            volumes: volumes.to_vec(),
            registry: Arc::clone(registry),
            endpoint,
            doorbell,
            inbox: messages,
            published: Arc::clone(&published),
        };
        let ready = ready.clone();
        let thread = std::thread::Builder::new()
            .name(format!("raidfabric-{index}"))
            .spawn(move || {
                core::run(core_plan, move || {
                    let _ = ready.send(());
                })
            })
            .map_err(resources("a thread"))?;
        launched.doors.push(Door { inbox, connections: Arc::new(AtomicUsize::new(0)) });
        launched.published.push(published);
        launched.threads.push(thread);
    }
    drop(ready);
    let serving = started.into_iter().take(count).count();
    if serving == count {
        return Ok(launched);
    }
    Err(first_failure(launched))
}

/// A core ended before it served: the others are stopped, and its error is the start's.
fn first_failure(launched: Launched) -> StartError {
    for door in &launched.doors {
        let _ = door.inbox.send(CoreMessage::End);
    }
    let ends: Vec<_> = launched.threads.into_iter().map(JoinHandle::join).collect();
    for end in ends {
        if let Ok(Err(error)) = end {
            return error.into();
        }
    }
    StartError::Resources {
        what: "a data core",
        source: std::io::Error::other("its thread ended without a reason"),
    }
}

fn core_options(plan: &Plan, index: usize) -> CoreOptions {
    CoreOptions {
        cpu: plan.cores.get(index).copied(),
        ring_entries: plan.config.ring.entries,
        coop_taskrun: plan.config.ring.coop_taskrun,
        busy_poll: plan.config.busy_poll,
    }
}

fn settings(config: &Config) -> Settings {
    Settings {
        machine: machine::Config {
            max_transfers: u16::try_from(config.limits.queue_depth.min(1 << 15)).unwrap_or(1 << 15),
            ..machine::Config::default()
        },
        capsule_block_bytes: size(Bound::capsule_block_bytes(config)),
        in_capsule_bytes: config.limits.in_capsule_bytes,
        max_admin_bytes: config.limits.max_transfer_bytes,
        reply_timeout: config.reply_timeout,
        linger: LINGER,
        worker_limit: size(WORKERS_PER_CORE),
    }
}

/// A size in memory. Sizes that do not fit an address space are refused when they are allocated.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn memory_plan(config: &Config, cores: usize) -> MemoryPlan {
    let bound = Bound::new(config, cores);
    MemoryPlan {
        capsule_bytes: size(bound.capsule_bytes),
        transfer_bytes: size(bound.transfer_bytes),
        transfer_minimum_bytes: size(bound.transfer_minimum_bytes),
        connections: size(bound.connections_per_core),
        max_transfer_bytes: size(u64::from(config.limits.max_transfer_bytes)),
    }
}

type Handle = Arc<Mutex<ArrayHandle<OpenDevice>>>;
type Keeping = (ControlSide, String, Arc<Shared>, Handle);

impl Control {
    fn start(
        runtime: tokio::runtime::Runtime,
        keeping: Vec<Keeping>,
        listeners: Vec<Listener>,
        doors: Arc<Vec<Door>>,
    ) -> std::io::Result<Self> {
        let (accepting, stopped) = oneshot::channel();
        let (living, ended) = oneshot::channel();
        let thread =
            std::thread::Builder::new().name("raidfabric-control".into()).spawn(move || {
                runtime.block_on(async move {
                    for (side, name, shared, handle) in keeping {
                        tokio::spawn(side.serve(name, shared, handle));
                    }
                    let accepting: Vec<_> = listeners
                        .into_iter()
                        .map(|listener| tokio::spawn(listen::accept(listener, Arc::clone(&doors))))
                        .collect();
                    // Both end by being dropped.
                    let _: Result<(), _> = stopped.await;
                    accepting.iter().for_each(tokio::task::JoinHandle::abort);
                    let _: Result<(), _> = ended.await;
                });
            })?;
        Ok(Self { accepting: Some(accepting), living: Some(living), thread: Some(thread) })
    }

    /// No further connection is accepted; requests of the data cores are still served.
    fn stop_accepting(&mut self) {
        self.accepting = None;
    }

    /// Ends the thread, once what it was writing is written.
    fn end(&mut self) {
        self.accepting = None;
        self.living = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl StartError {
    /// Whether nothing had been touched when it was found.
    pub fn is_refusal(&self) -> bool {
        !matches!(
            self,
            Self::Opening(_) | Self::Exporting(_) | Self::Core(_) | Self::Resources { .. }
        )
    }
}
