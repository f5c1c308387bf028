//! A data core: its thread, and what the connections on it share.
//!
//! Everything here belongs to one thread; other cores are reached through the mesh, the control
//! plane through the inbox and the published counters. Start: the control plane makes a
//! [`CorePlan`], moves it to a thread, and waits for its answer. Stop: [`CoreMessage::Drain`] closes
//! the connections and waits for their commands; when all cores have drained, so that none needs
//! another any more, [`CoreMessage::End`] ends the threads.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use raidfabric_protocol::nvme::status::Status;
use raidfabric_protocol::tcp::target as machine;
use raidfabric_raid::array::{Array, ComposeError, Composed, Leaf, SetupError, Shared};
use raidfabric_raid::buffer::{Buffer, Pool};
use raidfabric_raid::geometry::Geometry;
use raidfabric_raid::memory::MemoryDrive;
use tokio::sync::mpsc;

use crate::association::Registry;
use crate::config::memory::BACKGROUND_BYTES;
use crate::memory::DataMemory;
use crate::runtime::{
    self, Awake, CoreOptions, Doorbell, DriveFacts, RuntimeError, TimeLimit, UringDrive, Watch,
};
use crate::server::Arrival;
use crate::transport::{self, Connection, Job};
use crate::volume::{Backing, MemberDrive, Volume};
use crate::workers::Workers;

/// Received bytes are taken out of the socket in pieces of this size.
const RECEIVE_BYTES: usize = crate::config::memory::RECEIVE_BUFFER_BYTES as usize;
/// How often connections are looked over for hosts that do not read their replies or do not send
/// what they owe, and counters are published.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Commands of other cores that a core works on at a time.
const SERVERS: usize = 128;
/// Commands of each connection that a core works on in any case.
const GUARANTEED_COMMANDS: usize = 16;
/// How long the commands of closed connections may take before the core gives up on them.
const DRAIN_PATIENCE: Duration = Duration::from_secs(20);
/// How often they are looked at.
const DRAIN_POLL: Duration = Duration::from_millis(2);
/// The longest piece of a core's memory for what is not done for a host.
const BACKGROUND_BLOCK_BYTES: usize = 1 << 20;

/// What is the same for every connection.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What the protocol machine of a connection offers.
    pub machine: machine::Config,
    /// Size of every block of capsule memory, a power of two.
    pub capsule_block_bytes: usize,
    /// In-capsule data of I/O queues (IOCCSZ × 16 − 64).
    pub in_capsule_bytes: u32,
    /// Data of an admin command, at most.
    pub max_admin_bytes: u32,
    /// How long a host may leave replies unread, and what it owes unsent.
    pub reply_timeout: Duration,
    /// How long the end of a refused connection is waited for.
    pub linger: Duration,
    /// Commands that a core works on at a time; more wait, but for a few of each connection.
    pub worker_limit: usize,
}

/// Sizes of a core's memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryPlan {
    /// In-capsule data: all of it.
    pub capsule_bytes: usize,
    /// Transfers: all of it.
    pub transfer_bytes: usize,
    /// Transfers: guaranteed to each connection.
    pub transfer_minimum_bytes: usize,
    /// Connections, at most; bounds the receive buffers.
    pub connections: usize,
    /// The longest transfer of one command.
    pub max_transfer_bytes: usize,
}

/// A member drive, before it has reached its core.
pub enum MemberPlan {
    /// A descriptor of this core's own.
    Uring(std::os::fd::OwnedFd, DriveFacts, TimeLimit),
    /// Memory.
    Memory(MemoryDrive),
}

impl MemberPlan {
    /// The drive, on the core that uses it.
    pub fn open(self) -> MemberDrive {
        match self {
            Self::Uring(fd, facts, limit) => MemberDrive::Uring(UringDrive::new(fd, facts, limit)),
            Self::Memory(drive) => MemberDrive::Memory(drive),
        }
    }
}

/// An array, before it has reached a core.
pub struct ArrayPlan {
    /// What all cores share of it.
    pub shared: Arc<Shared>,
    /// Its members in slot order; a slot may be empty.
    pub members: Vec<Option<MemberPlan>>,
}

/// An array over arrays.
#[derive(Clone, Debug)]
pub struct ComposedPlan {
    /// How it stripes over them.
    pub geometry: Geometry,
    /// By slot, the index of the array there, and where in it the data begins.
    pub leaves: Vec<(usize, u64)>,
}

/// Which array a namespace is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// One over drives, by its index in [`CorePlan::arrays`].
    Array(usize),
    /// One over arrays, by its index in [`CorePlan::composed`].
    Composed(usize),
}

/// Where a namespace's data are.
#[derive(Clone, Copy, Debug)]
pub struct VolumePlan {
    /// The array.
    pub below: Below,
    /// Where it begins there.
    pub base_bytes: u64,
}

/// All that a core needs; moved to its thread.
pub struct CorePlan {
    /// Its number, 0 first.
    pub index: usize,
    /// Its runtime.
    pub options: CoreOptions,
    /// Its connections' settings.
    pub settings: Settings,
    /// Its memory.
    pub memory: MemoryPlan,
    /// The arrays over drives.
    pub arrays: Vec<ArrayPlan>,
    /// The arrays over those.
    pub composed: Vec<ComposedPlan>,
    /// Volumes of each subsystem, in the order of its namespaces.
    pub volumes: Vec<Vec<VolumePlan>>,
    /// Controllers and subsystems.
    pub registry: Arc<Registry>,
    /// The other cores.
    pub endpoint: Endpoint,
    /// Rung by the other cores.
    pub doorbell: Doorbell,
    /// The control plane.
    pub inbox: mpsc::UnboundedReceiver<CoreMessage>,
    /// Counters that the control plane reads.
    pub published: Arc<Published>,
}

/// A core's end of the mesh.
pub type Endpoint = raidfabric_raid::array::Endpoint;

/// What the control plane asks of a core.
#[derive(Debug)]
pub enum CoreMessage {
    /// Serve this connection.
    Serve(Arrival),
    /// Close every connection, wait for their commands and for long tasks, and say on this channel
    /// whether all have ended. The core goes on doing what other cores ask of it.
    Drain(std::sync::mpsc::Sender<bool>),
    /// Do something with this core's part of an array.
    OnArray {
        /// Index of the array.
        array: usize,
        /// What; it must not block.
        act: OnArray,
    },
    /// End. Every core has drained.
    End,
}

/// What is done with a core's part of an array.
pub struct OnArray(Box<Act>);

type Act = dyn FnOnce(&Rc<Array<MemberDrive>>) + Send;

impl OnArray {
    /// Does this.
    pub fn new(act: impl FnOnce(&Rc<Array<MemberDrive>>) + Send + 'static) -> Self {
        Self(Box::new(act))
    }
}

impl std::fmt::Debug for OnArray {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnArray")
    }
}

/// A core's counters, as the control plane sees them: at most a second old.
#[derive(Debug, Default)]
pub struct Published {
    /// Connections.
    pub connections: AtomicU64,
    /// Commands not yet completed.
    pub commands: AtomicU64,
    /// Bytes of data memory in use.
    pub memory_bytes: AtomicU64,
}

/// What the connections of a core share.
pub struct Core {
    /// Its number.
    pub index: usize,
    /// What connections offer.
    pub settings: Settings,
    /// Its spin.
    pub awake: Awake,
    /// Memory for transfers.
    pub transfer: Rc<DataMemory>,
    /// Memory for in-capsule data.
    pub capsule: Rc<DataMemory>,
    /// Those who carry commands.
    pub workers: Workers<Job>,
    /// Controllers and subsystems.
    pub registry: Arc<Registry>,
    receive: Pool,
    arrays: Vec<Rc<Array<MemberDrive>>>,
    volumes: Vec<Vec<Volume>>,
    chores: Cell<usize>,
    connections: RefCell<Vec<Weak<Connection>>>,
    open: Cell<usize>,
    published: Arc<Published>,
}

impl Core {
    /// A buffer to receive into.
    pub fn receive_buffer(&self) -> Option<Buffer> {
        self.receive.allocate(RECEIVE_BYTES)
    }

    /// The volume of a subsystem's namespace, by their places in the configuration.
    pub fn volume(&self, subsystem: usize, namespace: usize) -> Option<&Volume> {
        self.volumes.get(subsystem)?.get(namespace)
    }

    /// Makes everything written to a subsystem's volumes safe from power loss.
    pub async fn flush_all(&self, subsystem: usize) -> Status {
        for volume in self.volumes.get(subsystem).into_iter().flatten() {
            let status = volume.flush().await;
            if status != Status::SUCCESS {
                return status;
            }
        }
        Status::SUCCESS
    }

    /// Hands a command to a worker.
    pub fn submit(self: &Rc<Self>, job: Job) {
        let party = Rc::clone(job.party());
        if self.workers.submit(&party, job) {
            runtime::spawn(transport::work(Rc::clone(self)));
        }
    }

    /// A connection begins.
    pub fn register(&self, connection: &Rc<Connection>) {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|known| known.strong_count() > 0);
        connections.push(Rc::downgrade(connection));
        self.open.set(self.open.get() + 1);
    }

    /// A connection has ended and nothing of it is left.
    pub fn unregister(&self) {
        self.open.set(self.open.get().saturating_sub(1));
        self.publish();
    }

    fn each_connection(&self, mut act: impl FnMut(&Connection)) {
        // Collected first: what is done to a connection may end it, and that changes the list.
        let all: Vec<_> = self.connections.borrow().iter().filter_map(Weak::upgrade).collect();
        for connection in all {
            act(&connection);
        }
    }

    fn publish(&self) {
        let mut commands = 0;
        let known = self.connections.borrow();
        for connection in known.iter().filter_map(Weak::upgrade) {
            commands += u64::from(connection.counts().commands);
        }
        drop(known);
        let memory_bytes = self.transfer.in_use_bytes() + self.capsule.in_use_bytes();
        self.published.connections.store(self.open.get() as u64, Ordering::Relaxed);
        self.published.commands.store(commands, Ordering::Relaxed);
        self.published.memory_bytes.store(memory_bytes as u64, Ordering::Relaxed);
    }

    /// Ends connections whose hosts do not read, or do not send what they owe, and waiting for
    /// drives that do not answer or are out, once a second.
    async fn keep_house(self: Rc<Self>) {
        let watch = Watch::of_this_core();
        loop {
            tokio::time::sleep(HOUSEKEEPING).await;
            let now = Instant::now();
            self.arrays.iter().for_each(|array| array.look());
            let late = watch.scan(now);
            if late > 0 {
                tracing::warn!(
                    core = self.index,
                    operations = late,
                    "drives did not answer in time"
                );
            }
            let limit = self.settings.reply_timeout;
            self.each_connection(|connection| {
                let unread = connection.sending_since();
                if unread.is_some_and(|since| now.saturating_duration_since(since) > limit) {
                    connection.close_unread();
                } else if connection.owed_for(now) > limit
                    || connection.idles_unconnected(now, limit)
                {
                    connection.close_unsent();
                }
            });
            self.publish();
        }
    }

    /// Closes every connection and waits until their commands, and long tasks, have ended.
    async fn drain(self: Rc<Self>, done: std::sync::mpsc::Sender<bool>) {
        self.each_connection(Connection::close);
        for array in &self.arrays {
            array.shared().stop_resync();
            array.shared().stop_intent();
        }
        let deadline = Instant::now() + DRAIN_PATIENCE;
        let busy =
            || self.open.get() > 0 || self.workers.outstanding() > 0 || self.chores.get() > 0;
        while busy() && Instant::now() < deadline {
            tokio::time::sleep(DRAIN_POLL).await;
        }
        if self.index == 0 && !busy() {
            for array in &self.arrays {
                array.clear_intent().await;
            }
        }
        self.publish();
        let _ = done.send(!busy());
    }

    /// Does an array's long tasks until the core drains.
    async fn recover(self: Rc<Self>, array: Rc<Array<MemberDrive>>) {
        self.chores.set(self.chores.get() + 1);
        array.recover(&runtime::Clock::new()).await;
        self.chores.set(self.chores.get() - 1);
    }

    /// Clears the write-intent bits of an array that are not needed any more until the core drains.
    async fn keep_intent(self: Rc<Self>, array: Rc<Array<MemberDrive>>) {
        self.chores.set(self.chores.get() + 1);
        array.keep_intent(&runtime::Clock::new()).await;
        self.chores.set(self.chores.get() - 1);
    }
}

/// Why a core could not start.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// The runtime.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// Drives and shape do not fit together.
    #[error(transparent)]
    Array(#[from] SetupError),
    /// Arrays, and the shape over them.
    #[error(transparent)]
    Composed(#[from] ComposeError),
    /// Memory, descriptors.
    #[error("a data core cannot get what it needs ({what}): {source}")]
    Resources {
        /// What it asked for.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Runs a core on this thread until it is told to end. `ready` is called once it serves.
///
/// # Errors
/// [`CoreError`] if it could not start; `ready` has not been called then.
pub fn run(plan: CorePlan, ready: impl FnOnce()) -> Result<(), CoreError> {
    let options = plan.options.clone();
    runtime::run(&options, || serve(plan, ready))?
}

async fn serve(plan: CorePlan, ready: impl FnOnce()) -> Result<(), CoreError> {
    let awake = Awake::start(plan.options.busy_poll).map_err(resources("an eventfd"))?;
    let listener = plan.doorbell.listen().map_err(resources("an eventfd"))?;
    let endpoint = Rc::new(plan.endpoint);
    let background = pool("background memory", BACKGROUND_BYTES as usize, BACKGROUND_BLOCK_BYTES)?;
    let arrays = arrays(plan.arrays, &endpoint, &background)?;
    let capsule_block = plan.settings.capsule_block_bytes;
    let memory = Memory::new(&plan.memory, capsule_block)?;
    let core = Rc::new(Core {
        index: plan.index,
        settings: plan.settings,
        awake: awake.clone(),
        transfer: memory.transfer,
        capsule: memory.capsule,
        receive: memory.receive,
        workers: Workers::new(plan.settings.worker_limit, GUARANTEED_COMMANDS),
        registry: plan.registry,
        volumes: volumes(&plan.volumes, &arrays, &composed(&plan.composed, &arrays)?),
        arrays,
        chores: Cell::new(0),
        connections: RefCell::default(),
        open: Cell::new(0),
        published: plan.published,
    });
    for array in &core.arrays {
        for _ in 0..SERVERS {
            let array = Rc::clone(array);
            runtime::spawn(async move {
                array.serve().await;
            });
        }
        let gatherer = Rc::clone(array);
        runtime::spawn(async move { gatherer.gather().await });
        let resumer = Rc::clone(array);
        runtime::spawn(async move { resumer.resume().await });
        if plan.index == 0 {
            runtime::spawn(Rc::clone(&core).recover(Rc::clone(array)));
            runtime::spawn(Rc::clone(&core).keep_intent(Rc::clone(array)));
        }
    }
    runtime::spawn(async move {
        while listener.rung().await.is_ok() {
            awake.saw_work();
            endpoint.handle_doorbell();
        }
    });
    runtime::spawn(Rc::clone(&core).keep_house());
    ready();

    let mut inbox = plan.inbox;
    while let Some(message) = inbox.recv().await {
        match message {
            CoreMessage::Serve(arrival) => {
                runtime::spawn(transport::serve(Rc::clone(&core), arrival));
            }
            CoreMessage::Drain(done) => runtime::spawn(Rc::clone(&core).drain(done)),
            CoreMessage::OnArray { array, act } => {
                if let Some(array) = core.arrays.get(array) {
                    (act.0)(array);
                }
            }
            CoreMessage::End => break,
        }
    }
    Ok(())
}

fn resources(what: &'static str) -> impl Fn(io::Error) -> CoreError {
    move |source| CoreError::Resources { what, source }
}

fn pool(what: &'static str, bytes: usize, block_bytes: usize) -> Result<Pool, CoreError> {
    Pool::new(bytes, block_bytes).map_err(resources(what))
}

/// A core's memory for connections.
struct Memory {
    transfer: Rc<DataMemory>,
    capsule: Rc<DataMemory>,
    receive: Pool,
}

impl Memory {
    fn new(plan: &MemoryPlan, capsule_block: usize) -> Result<Self, CoreError> {
        let longest = plan.max_transfer_bytes.next_power_of_two();
        let transfer = pool("transfer memory", plan.transfer_bytes, longest)?;
        let capsule = pool("capsule memory", plan.capsule_bytes, capsule_block)?;
        let receive_bytes = plan.connections.max(1) * RECEIVE_BYTES;
        // No connection may have more than half, whatever the others do not use.
        let half = |bytes| bytes / 2;
        Ok(Self {
            transfer: DataMemory::new(
                transfer,
                plan.transfer_minimum_bytes,
                half(plan.transfer_bytes),
            ),
            capsule: DataMemory::new(capsule, capsule_block, half(plan.capsule_bytes)),
            receive: pool("receive memory", receive_bytes, RECEIVE_BYTES)?,
        })
    }
}

fn arrays(
    plans: Vec<ArrayPlan>,
    endpoint: &Rc<Endpoint>,
    pool: &Pool,
) -> Result<Vec<Rc<Array<MemberDrive>>>, CoreError> {
    plans
        .into_iter()
        .map(|plan| {
            let members = plan.members.into_iter().map(|member| member.map(MemberPlan::open));
            let (members, endpoint) = (members.collect(), Rc::clone(endpoint));
            let array = Array::with_slots(plan.shared, members, endpoint, pool.clone())?;
            Ok(Rc::new(array.with_timer(Rc::new(runtime::Clock::new()))))
        })
        .collect()
}

fn composed(
    plans: &[ComposedPlan],
    arrays: &[Rc<Array<MemberDrive>>],
) -> Result<Vec<Rc<Composed<MemberDrive>>>, CoreError> {
    let one = |plan: &ComposedPlan| {
        let leaf = |&(index, data_offset_bytes): &(usize, u64)| {
            arrays.get(index).map(|array| Leaf { array: Rc::clone(array), data_offset_bytes })
        };
        let leaves = plan.leaves.iter().filter_map(leaf).collect();
        Ok(Rc::new(Composed::new(plan.geometry, leaves)?))
    };
    plans.iter().map(one).collect()
}

fn volumes(
    plans: &[Vec<VolumePlan>],
    arrays: &[Rc<Array<MemberDrive>>],
    composed: &[Rc<Composed<MemberDrive>>],
) -> Vec<Vec<Volume>> {
    let volume = |plan: &VolumePlan| {
        let backing = match plan.below {
            Below::Array(index) => Backing::Array(Rc::clone(arrays.get(index)?)),
            Below::Composed(index) => Backing::Composed(Rc::clone(composed.get(index)?)),
        };
        Some(Volume::new(backing, plan.base_bytes))
    };
    plans.iter().map(|subsystem| subsystem.iter().filter_map(volume).collect()).collect()
}
