//! The control plane: starting and stopping what a configuration describes.
//!
//! [`Server::start`] goes from what can be refused without a trace to what cannot: io_uring,
//! listening sockets, a look at every drive, and only then creating or assembling arrays and
//! starting the data cores. [`Server::stop`] goes back the same way and marks the arrays clean.
//!
//! The control thread accepts connections and writes superblocks; it never touches data.

pub mod arrays;
mod changes;
pub mod compose;
pub mod control;
mod cores;
mod error;
pub mod examination;
pub mod inspect;
mod keeper;
mod listen;
mod observe;
pub mod overwrite;
mod patience;
mod patient;
mod plane;
pub mod present;
pub mod report;
mod served;
mod spares;
mod state;
mod steward;
mod strays;
mod subsystems;
mod temperature;
pub mod verdict;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;
use std::time::Duration;

use raidfabric_protocol::tcp::target as machine;
use raidfabric_raid::array::{self, NoKeeper, Shared};
use raidfabric_raid::mesh::Mesh;
use tokio::sync::{mpsc, oneshot};

pub use arrays::{Accepted, OpenArray, Outlook, Prospect};
pub use compose::OpenComposed;
pub use error::ArrayStartError;
pub use listen::{Arrival, Seat};
pub use overwrite::Overwrite;
pub use plane::{InUse, Plane};
pub use state::StateDirectory;

use crate::association::Registry;
use crate::config::drives::Drives;
use crate::config::memory::{Bound, WORKERS_PER_CORE};
use crate::config::{Array, Config, Consistency};
use crate::core::{
    self, ArrayPlan, Below, ComposedPlan, CoreError, CoreMessage, CorePlan, MemoryPlan, Published,
    Settings,
};
use crate::runtime::{self, CoreOptions, Doorbell, RuntimeError};
use control::ControlSocket;
use cores::Cores;
use keeper::{Bell, Recorder, Turn};
use listen::{Door, Listener};
use plane::{CoreDoor, Desk};
use served::ServedArray;

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
    /// The control socket.
    #[error(transparent)]
    Control(#[from] control::SocketError),
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

/// A running server.
pub struct Server {
    plane: Arc<Plane>,
    cores: Vec<JoinHandle<Result<(), CoreError>>>,
    control: Control,
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
        let socket = config.control_socket.as_deref().map(ControlSocket::bind).transpose()?;
        let desk = Arc::new(Desk::default());
        let mut control = Control::start(socket, Arc::clone(&desk))
            .map_err(|source| StartError::Resources { what: "the control thread", source })?;
        let state = state_directory(config)?;
        let (opened, composed) = open_arrays(config, &plan.drives, state.as_ref(), &desk)?;
        opened.iter().for_each(announce);
        composed.iter().for_each(compose::announce);
        let exportable = subsystems::exportable(config, &opened, &composed);
        let everything =
            subsystems::build(config, &exportable, &listeners).map_err(StartError::Exporting)?;
        let mut served = Vec::new();
        let over_drives = config.arrays.iter().zip(&plan.drives);
        let over_drives = over_drives.filter(|(array, _)| !array.is_composed());
        for ((service, mut open), (conduct, drives)) in
            opened.into_iter().enumerate().zip(over_drives)
        {
            let conduct = conduct.clone();
            for limit in &mut open.time_limits {
                limit.timeout = conduct.member_timeout;
            }
            let bell = Arc::new(Bell::default());
            let shared = share(service, &open, &conduct, plan.cores.len(), &bell);
            let recorder = open.handle.as_ref().map(|handle| {
                let (handle, state) = (Arc::clone(handle), state.clone());
                let shared = Arc::clone(&shared);
                Arc::new(Recorder::new(open.name.clone(), shared, handle, state))
            });
            if let Some(recorder) = &recorder {
                control.spawn(keeper::keep(bell, Arc::clone(recorder), conduct.safe_mode_delay));
            }
            let array = ServedArray::new(service, open, shared, conduct, drives, recorder);
            served.push(Arc::new(array));
        }
        let below = arrays_below(&everything.volumes, &served, &composed);
        let registry = Arc::new(Registry::new(everything.served, below, plan.cores.len()));
        let launched = launch(plan, &registry, &served, &composed, &everything.volumes)?;
        let arrays = plane::Arrays { served, composed, order: compose::places(config) };
        let plane = Arc::new(Plane::new(config, &listeners, registry, launched.cores, arrays));
        for listener in listeners {
            control.accept(listener, &plane.doors);
        }
        for array in &plane.arrays {
            let cores = Cores::new(Arc::clone(&plane.doors));
            control.spawn(steward::look_after(Arc::clone(array), cores));
        }
        desk.open(&plane);
        Ok(Self { plane, cores: launched.threads, control })
    }

    /// What is served.
    pub fn plane(&self) -> &Arc<Plane> {
        &self.plane
    }

    /// Where volumes are served, in the order of the configuration.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.plane.addresses
    }

    /// What is in use; up to a second old.
    pub fn in_use(&self) -> InUse {
        self.plane.in_use()
    }

    /// The arrays, for their state: name and shared part.
    pub fn arrays(&self) -> impl Iterator<Item = (&str, &Arc<Shared>)> {
        self.plane.arrays.iter().map(|array| (array.name(), &array.shared))
    }

    /// How each array is made consistent after a crash, with its name.
    pub fn consistencies(&self) -> impl Iterator<Item = (&str, Consistency)> {
        self.plane.arrays.iter().map(|array| (array.name(), array.open.consistency))
    }

    /// Reads the drives' temperatures and tells every controller to look at the health of its
    /// subsystem, so that hosts hear of what is wrong.
    pub fn report_health(&self) {
        self.plane.report_health();
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
        for door in self.plane.doors.iter() {
            let _ = door.inbox.send(CoreMessage::End);
        }
        let mut ended = drained;
        for thread in std::mem::take(&mut self.cores) {
            ended &= matches!(thread.join(), Ok(Ok(())));
        }
        self.control.end();
        let mut left = Vec::new();
        for array in &self.plane.arrays {
            if let Err(reason) = mark_clean(array, ended) {
                left.push((array.name().to_owned(), reason));
            }
        }
        left
    }

    /// Whether every core has nothing left to do.
    fn drain(&self) -> bool {
        let (done, answers) = std::sync::mpsc::channel();
        for door in self.plane.doors.iter() {
            let _ = door.inbox.send(CoreMessage::Drain(done.clone()));
        }
        drop(done);
        let mut drained = 0;
        while let Ok(true) = answers.recv() {
            drained += 1;
        }
        drained == self.plane.doors.len()
    }
}

fn mark_clean(array: &ServedArray, cores_ended: bool) -> Result<(), String> {
    let Some(recorder) = &array.recorder else { return Ok(()) };
    let shared = &array.shared;
    shared.stop_writes();
    if let Some(failure) = shared.failure() {
        return Err(format!("it has failed: {failure}"));
    }
    if !cores_ended || shared.writes_in_flight() > 0 {
        return Err("writes to it were still under way".into());
    }
    shared.try_clean();
    match recorder.settle() {
        Turn::Done => Ok(()),
        _ => Err("its superblocks could not be written; see above".into()),
    }
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
    if config.arrays.iter().all(|array| array.is_memory() || array.is_composed()) {
        return Ok(None);
    }
    Ok(Some(StateDirectory::open(&config.state_dir)?))
}

/// The name of this host, which stands before an array's.
pub fn homehost() -> Option<String> {
    rustix::system::uname().nodename().to_str().ok().map(str::to_owned)
}

fn open_arrays(
    config: &Config,
    drives: &[Drives],
    state: Option<&StateDirectory>,
    desk: &Desk,
) -> Result<(Vec<OpenArray>, Vec<OpenComposed>), StartError> {
    let homehost = homehost();
    let started = std::time::Instant::now();
    let look = |(index, (array, drives))| -> Result<Prospect, ArrayStartError> {
        let prospect =
            patience::look_patiently(array, drives, homehost.as_deref(), state, desk, started)?;
        Ok(if config.over(index).is_some() { prospect.below() } else { prospect })
    };
    let over_drives = config.arrays.iter().zip(drives).enumerate();
    let over_drives = over_drives.filter(|(_, (array, _))| !array.is_composed());
    let prospects = over_drives.map(look).collect::<Result<Vec<_>, _>>()?;
    check_block_sizes(config, &prospects)?;
    let capacities = compose::check_all(config, &prospects, state)?;
    subsystems::check_sizes(config, &capacities)?;
    let take = |prospect: Prospect| prospect.take(state);
    let arrays = prospects.into_iter().map(take).collect::<Result<Vec<_>, _>>();
    let mut arrays = arrays.map_err(StartError::Opening)?;
    let composed = compose::open_all(config, &mut arrays, homehost.as_deref(), state);
    Ok((arrays, composed.map_err(StartError::Opening)?))
}

/// A namespace's blocks must be whole blocks of every drive below.
fn check_block_sizes(config: &Config, prospects: &[Prospect]) -> Result<(), ArrayStartError> {
    for subsystem in &config.subsystems {
        for namespace in &subsystem.namespaces {
            let Some(array) = config.arrays.get(namespace.array) else { continue };
            let is_below = |prospect: &&Prospect| {
                let mut leaves = array.leaves.iter().filter_map(|leaf| config.arrays.get(*leaf));
                prospect.name() == array.name || leaves.any(|leaf| leaf.name == prospect.name())
            };
            let too_large = |(_, bytes): &(String, u32)| *bytes > namespace.block_size_bytes;
            let drives = prospects.iter().filter(is_below).flat_map(Prospect::drive_blocks);
            if let Some((drive, drive_bytes)) = drives.into_iter().find(too_large) {
                return Err(ArrayStartError::BlockSize {
                    array: array.name.clone(),
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
    let consistency = array.consistency.as_str();
    let (array, uuid, position) = (&array.name, array.uuid, array.resync_position_bytes);
    if position == u64::MAX {
        tracing::info!(array, %uuid, size, consistency, "array {did}");
    } else {
        tracing::warn!(
            array, %uuid, size, consistency,
            "array {did}; its redundancy is made good in the background"
        );
    }
}

fn share(
    service: usize,
    open: &OpenArray,
    conduct: &Array,
    cores: usize,
    bell: &Arc<Bell>,
) -> Arc<Shared> {
    let keeper: Arc<dyn array::Keeper> = match &open.handle {
        Some(_) => Arc::<Bell>::clone(bell),
        None => Arc::new(NoKeeper),
    };
    let shared = Shared::new(array::Settings {
        service: u16::try_from(service).unwrap_or(u16::MAX),
        uuid: *open.uuid.as_bytes(),
        data_offsets_bytes: open.data_offsets_bytes.clone(),
        cores,
        active: open.handle.is_none(),
        resync_position_bytes: open.resync_position_bytes,
        members: open.members.clone(),
        rebuild_from: open.rebuild_from_bytes,
        bad_blocks: open.bad_blocks.clone(),
        read_error_limit: conduct.read_error_limit,
        intent: open.intent.clone(),
        keeper,
        ..array::Settings::new(open.geometry)
    });
    let max = Some(conduct.resync.max_bytes).filter(|rate| *rate > 0);
    shared.set_resync_rates(conduct.resync.min_bytes, max);
    shared
}

/// For each subsystem, the arrays that its namespaces are on, each once.
fn arrays_below(
    volumes: &[Vec<core::VolumePlan>],
    served: &[Arc<ServedArray>],
    composed: &[OpenComposed],
) -> Vec<Vec<Arc<Shared>>> {
    let arrays = |volume: &core::VolumePlan| match volume.below {
        Below::Array(index) => vec![index],
        Below::Composed(index) => composed
            .get(index)
            .map(|composed| composed.leaves.iter().map(|leaf| leaf.array).collect())
            .unwrap_or_default(),
    };
    let below = |volumes: &Vec<core::VolumePlan>| {
        let indexes: BTreeSet<usize> = volumes.iter().flat_map(arrays).collect();
        indexes.into_iter().filter_map(|at| Some(Arc::clone(&served.get(at)?.shared))).collect()
    };
    volumes.iter().map(below).collect()
}

struct Launched {
    cores: Vec<CoreDoor>,
    threads: Vec<JoinHandle<Result<(), CoreError>>>,
}

/// Starts the data cores and waits until every one serves.
fn launch(
    plan: &Plan,
    registry: &Arc<Registry>,
    arrays: &[Arc<ServedArray>],
    composed: &[OpenComposed],
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
    let mut launched = Launched { cores: Vec::new(), threads: Vec::new() };
    let (ready, started) = std::sync::mpsc::channel();
    for (index, (endpoint, doorbell)) in endpoints.into_iter().zip(bells).enumerate() {
        let (inbox, messages) = mpsc::unbounded_channel();
        let published = Arc::new(Published::default());
        let mut array_plans = Vec::new();
        for array in arrays {
            let members = array.open.member_plans()?;
            array_plans.push(ArrayPlan { shared: Arc::clone(&array.shared), members });
        }
        let core_plan = CorePlan {
            index,
            options: core_options(plan, index),
            settings: settings(&plan.config),
            memory: memory_plan(&plan.config, count),
            arrays: array_plans,
            composed: composed.iter().map(composed_plan).collect(),
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
        let door = Door { inbox, connections: Arc::new(AtomicUsize::new(0)) };
        launched.cores.push(CoreDoor { door, published });
        launched.threads.push(thread);
    }
    drop(ready);
    let serving = started.into_iter().take(count).count();
    if serving == count {
        return Ok(launched);
    }
    Err(first_failure(launched))
}

fn composed_plan(composed: &OpenComposed) -> ComposedPlan {
    let leaf = |leaf: &compose::LeafPlace| (leaf.array, leaf.data_offset_bytes);
    let leaves = composed.leaves.iter().map(leaf).collect();
    ComposedPlan { geometry: composed.geometry, leaves }
}

/// A core ended before it served: the others are stopped, and its error is the start's.
fn first_failure(launched: Launched) -> StartError {
    for core in &launched.cores {
        let _ = core.door.inbox.send(CoreMessage::End);
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

/// The control thread: it accepts connections, serves the control socket, and writes superblocks.
/// Ends when it is dropped, once what it was writing is written.
struct Control {
    runtime: tokio::runtime::Handle,
    accepting: Vec<tokio::task::JoinHandle<std::io::Result<()>>>,
    /// Dropped to end the thread.
    living: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Its file goes with it.
    _socket: Option<ControlSocket>,
}

impl Control {
    fn start(socket: Option<ControlSocket>, desk: Arc<Desk>) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("raidfabric-io")
            .build()?;
        let handle = runtime.handle().clone();
        if let Some(socket) = &socket {
            tracing::debug!(path = %socket.path().display(), "control socket");
            handle.spawn(control::serve(socket.listener()?, desk));
        }
        let (living, ended) = oneshot::channel::<()>();
        let thread =
            std::thread::Builder::new().name("raidfabric-control".into()).spawn(move || {
                // Ends by being dropped.
                let _: Result<(), _> = runtime.block_on(ended);
            })?;
        Ok(Self {
            runtime: handle,
            accepting: Vec::new(),
            living: Some(living),
            thread: Some(thread),
            _socket: socket,
        })
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    fn accept(&mut self, listener: Listener, doors: &Arc<Vec<Door>>) {
        self.accepting.push(self.runtime.spawn(listen::accept(listener, Arc::clone(doors))));
    }

    /// No further connection is accepted; requests of the data cores are still served.
    fn stop_accepting(&mut self) {
        self.accepting.drain(..).for_each(|task| task.abort());
    }

    /// Ends the thread.
    fn end(&mut self) {
        self.stop_accepting();
        self.living = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.end();
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
