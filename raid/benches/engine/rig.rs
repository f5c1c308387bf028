//! Arrays as the daemon puts them together: one thread and one tokio runtime for each data core, the
//! mesh between them, servers, gathering, long tasks and the keeping of the write intent. Bitmaps
//! and logs lie on the members where a created array has them.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use raidfabric_raid::array::{
    Array, CoreTimer, Endpoint, IntentLayout, LogKind, LogLayout, LogPlace, MemberState,
    RegionsKind, RegionsLayout, Settings, Shared, Timer,
};
use raidfabric_raid::buffer::{Buffer, Pool, SharedBuffer};
use raidfabric_raid::drive::Drive;
use raidfabric_raid::geometry::{Geometry, Level};
use raidfabric_raid::memory::MemoryDrive;
use raidfabric_raid::mesh::Mesh;
use raidfabric_raid::metadata::bitmap::{
    BitmapState, BitmapSuperblock, MapUnit, NewBitmap, RegionMap, region_bytes_for,
};
use raidfabric_raid::metadata::layout::{self, Placement};
use raidfabric_raid::throttle::{Limits, Queue, ThrottledDrive};
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

/// Calls of other cores that a core works on at once, as in the daemon.
const SERVERS: usize = 128;

/// Memory of a core for long tasks, as in the daemon.
const BACKGROUND_BYTES: usize = 8 << 20;

/// Memory of a core for hosts' commands.
const TRANSFER_BYTES: usize = 256 << 20;

/// The largest transfer of a host.
pub const MAX_TRANSFER_BYTES: usize = 1 << 20;

const CHUNK_BYTES: u32 = 64 << 10;
const UUID: [u8; 16] = *b"engine benchmark";

/// Time since the start of the program, on the runtime's timer.
#[derive(Clone, Copy, Debug)]
pub struct Clock;

impl Clock {
    fn start() -> Instant {
        static START: OnceLock<Instant> = OnceLock::new();
        *START.get_or_init(Instant::now)
    }
}

impl Timer for Clock {
    fn now(&self) -> Duration {
        Self::start().elapsed()
    }

    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// How an array is made consistent after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// By a whole resync; RAID 0 has none.
    Resync,
    Bitmap,
    Ppl,
}

impl Policy {
    pub fn name(self) -> &'static str {
        match self {
            Self::Resync => "resync",
            Self::Bitmap => "bitmap",
            Self::Ppl => "ppl",
        }
    }
}

/// The shape of an array.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub level: Level,
    pub members: usize,
    pub policy: Policy,
    /// A slot whose member is missing.
    pub missing: Option<usize>,
    /// The size of each member.
    pub member_bytes: u64,
    pub cores: usize,
}

impl Spec {
    fn placement(&self) -> Placement {
        layout::place(self.member_bytes).expect("members have a sensible size")
    }

    pub fn geometry(&self) -> Geometry {
        let chunk_bytes = if self.level == Level::Raid1 { 0 } else { CHUNK_BYTES };
        let component_bytes = self.placement().component_bytes;
        Geometry::new(self.level, self.members, chunk_bytes, component_bytes)
            .expect("the shape is one that there is")
    }

    /// Whether a slot has a drive.
    fn has_drive(&self, slot: usize) -> bool {
        self.missing != Some(slot)
    }

    pub fn shared(&self) -> Arc<Shared> {
        let state = |slot| {
            if self.has_drive(slot) { MemberState::InSync } else { MemberState::Missing }
        };
        Shared::new(Settings {
            uuid: UUID,
            data_offsets_bytes: vec![self.placement().data_offset_bytes; self.members],
            cores: self.cores,
            members: (0..self.members).map(state).collect(),
            intent: self.intent(),
            ..Settings::new(self.geometry())
        })
    }

    /// Where the drive of the missing member's slot will have its data.
    pub fn data_offset_bytes(&self) -> u64 {
        self.placement().data_offset_bytes
    }

    /// Where a created array has its bitmap, map and log.
    pub fn intent(&self) -> IntentLayout {
        let placement = self.placement();
        if !self.geometry().is_redundant() {
            return IntentLayout::NONE;
        }
        let log = (self.policy == Policy::Ppl).then(|| self.log(&placement));
        IntentLayout { regions: Some(self.regions(&placement)), log }
    }

    fn regions(&self, placement: &Placement) -> RegionsLayout {
        let geometry = self.geometry();
        let level = self.level.into();
        let unit = MapUnit::of(level);
        let covered_bytes = match unit {
            MapUnit::Component => geometry.component_bytes(),
            MapUnit::Array => geometry.capacity_bytes(),
        };
        let is_bitmap = self.policy == Policy::Bitmap;
        let (kind, offset_bytes, region_bytes) = if is_bitmap {
            let region_bytes = region_bytes_for(covered_bytes, layout::BITMAP_BYTES);
            (RegionsKind::Bitmap, layout::BITMAP_OFFSET_BYTES, region_bytes)
        } else {
            let room = placement.private_bytes / 4;
            let region_bytes = region_bytes_for(covered_bytes, room);
            (RegionsKind::DegradedMap, layout::PRIVATE_OFFSET_BYTES, region_bytes)
        };
        let array_uuid = uuid::Uuid::from_bytes(UUID);
        let new = NewBitmap { array_uuid, covered_bytes, region_bytes, events: 10 };
        let superblock = BitmapSuperblock::create(&new);
        let is_stale = !is_bitmap && self.missing.is_none();
        let state = if is_stale { BitmapState::STALE } else { BitmapState::empty() };
        let none = RegionMap::empty(unit, covered_bytes, u64::from(region_bytes));
        let offset = |slot| self.has_drive(slot).then_some(offset_bytes);
        RegionsLayout {
            kind,
            superblock: superblock.with_state(state),
            set: none.clone(),
            dirty: none,
            offsets_bytes: (0..self.members).map(offset).collect(),
            events: 10,
            on_all_members: true,
        }
    }

    fn log(&self, placement: &Placement) -> LogLayout {
        let (kind, place) = match self.level {
            Level::Raid6 => {
                // Behind the map; half of what is left, but 16 MiB at most.
                let begin = 64 << 10;
                let room = placement.private_bytes - layout::HEADERS_BYTES - begin;
                let len_bytes = (room / 2).min(16 << 20);
                let offset_bytes = layout::PRIVATE_OFFSET_BYTES + begin;
                (LogKind::WriteLog, LogPlace { offset_bytes, len_bytes })
            }
            _ => {
                let (offset_bytes, len_bytes) = (layout::BITMAP_OFFSET_BYTES, layout::BITMAP_BYTES);
                (LogKind::Ppl, LogPlace { offset_bytes, len_bytes })
            }
        };
        let place = |slot| self.has_drive(slot).then_some(place);
        let places = (0..self.members).map(place).collect();
        LogLayout { kind, array_uuid: UUID, places, next_generation: 1 }
    }
}

/// A throttled drive in memory, from which each core has a handle.
#[derive(Clone)]
pub struct Slow {
    memory: MemoryDrive,
    queue: Arc<Mutex<Queue>>,
}

pub type SlowDrive = ThrottledDrive<MemoryDrive, Clock>;

impl Slow {
    pub fn new(size_bytes: u64, limits: Limits) -> Self {
        let memory = MemoryDrive::new(size_bytes);
        Self { memory, queue: Arc::new(Mutex::new(Queue::new(limits))) }
    }

    pub fn handle(&self) -> SlowDrive {
        ThrottledDrive::new(self.memory.clone(), Arc::clone(&self.queue), Clock)
    }
}

/// What can be loaded: a bare drive, or an array.
pub trait Volume {
    fn capacity_bytes(&self) -> u64;
    async fn read(&self, offset_bytes: u64, buffer: Buffer) -> Buffer;
    async fn write(&self, offset_bytes: u64, data: SharedBuffer);
}

/// A drive that is no member of anything.
pub struct Bare<D>(pub D);

impl<D: Drive> Volume for Bare<D> {
    fn capacity_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    async fn read(&self, offset_bytes: u64, buffer: Buffer) -> Buffer {
        self.0.read(offset_bytes, buffer).await.expect("the drive reads")
    }

    async fn write(&self, offset_bytes: u64, data: SharedBuffer) {
        self.0.write(offset_bytes, data, false).await.expect("the drive writes");
    }
}

impl<D: Drive> Volume for Array<D> {
    fn capacity_bytes(&self) -> u64 {
        self.geometry().capacity_bytes()
    }

    async fn read(&self, offset_bytes: u64, buffer: Buffer) -> Buffer {
        Self::read(self, offset_bytes, buffer).await.expect("the array reads")
    }

    async fn write(&self, offset_bytes: u64, data: SharedBuffer) {
        Self::write(self, offset_bytes, data, false).await.expect("the array writes");
    }
}

/// One data core, from within.
pub struct Core<V> {
    pub volume: V,
    pub pool: Pool,
    pub cores: usize,
    number: usize,
    /// Where the next request of a sequential load begins, for all cores.
    pub cursor: Arc<AtomicU64>,
    /// Seeds of random numbers handed out so far.
    seeds: Cell<u64>,
}

impl<V> Core<V> {
    pub fn new(volume: V, number: usize, cores: usize, cursor: Arc<AtomicU64>) -> Self {
        let pool = Pool::new(TRANSFER_BYTES, MAX_TRANSFER_BYTES).expect("there is memory");
        let seeds = Cell::new(number as u64 * 10_000);
        Self { volume, pool, cores, number, cursor, seeds }
    }

    /// Whether it is the core that does what one core does for all.
    pub fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Random numbers for one host.
    pub fn random(&self) -> Random {
        let seed = self.seeds.get() + 1;
        self.seeds.set(seed);
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
}

/// A stream of random numbers.
pub struct Random(u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }
}

/// An array on this thread's core alone, without any task: for drives that answer at once.
pub fn array_alone(spec: &Spec, drives: Vec<MemoryDrive>) -> Array<MemoryDrive> {
    let endpoint: Endpoint = Mesh::new(1, Arc::new(|_| {})).remove(0);
    let background = Pool::new(BACKGROUND_BYTES, MAX_TRANSFER_BYTES).expect("there is memory");
    Array::new(spec.shared(), drives, Rc::new(endpoint), background).expect("the drives fit")
}

/// Runs `work` on a core with one bare drive.
pub fn run_bare<R>(drive: SlowDrive, work: impl AsyncFnOnce(Rc<Core<Bare<SlowDrive>>>) -> R) -> R {
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    let core = Rc::new(Core::new(Bare(drive), 0, 1, Arc::default()));
    LocalSet::new().block_on(&runtime, work(core))
}

/// Runs `work` on every core of an array over throttled drives, and answers what each said.
pub fn run<R: Send>(
    spec: &Spec,
    drives: &[Slow],
    work: impl AsyncFn(Rc<Core<Array<SlowDrive>>>) -> R + Sync,
) -> Vec<R> {
    let shared = spec.shared();
    let bells: Arc<[Notify]> = (0..spec.cores).map(|_| Notify::new()).collect();
    let ring = Arc::clone(&bells);
    let endpoints = Mesh::new(spec.cores, Arc::new(move |core: usize| ring[core].notify_one()));
    let (cursor, arrived) = (Arc::new(AtomicU64::new(0)), AtomicUsize::new(0));
    thread::scope(|scope| {
        let threads: Vec<_> = endpoints
            .into_iter()
            .map(|endpoint| {
                let (shared, bells, cursor) =
                    (Arc::clone(&shared), Arc::clone(&bells), Arc::clone(&cursor));
                let (work, arrived) = (&work, &arrived);
                scope.spawn(move || {
                    let one = OneCore { spec: *spec, shared, endpoint, bells, arrived };
                    one.run(drives, cursor, work)
                })
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, R>| thread.join().expect("a core ran");
        threads.into_iter().map(join).collect()
    })
}

/// From what a core's thread is made.
struct OneCore<'a> {
    spec: Spec,
    shared: Arc<Shared>,
    endpoint: Endpoint,
    bells: Arc<[Notify]>,
    arrived: &'a AtomicUsize,
}

impl OneCore<'_> {
    fn run<R>(
        self,
        drives: &[Slow],
        cursor: Arc<AtomicU64>,
        work: &impl AsyncFn(Rc<Core<Array<SlowDrive>>>) -> R,
    ) -> R {
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        LocalSet::new().block_on(&runtime, async {
            let (number, cores, shared) =
                (self.endpoint.core(), self.spec.cores, Arc::clone(&self.shared));
            let endpoint = Rc::new(self.endpoint);
            let background =
                Pool::new(BACKGROUND_BYTES, MAX_TRANSFER_BYTES).expect("there is memory");
            let handle = |slot: usize| self.spec.has_drive(slot).then(|| drives[slot].handle());
            let handles = (0..self.spec.members).map(handle).collect();
            let timer: Rc<dyn CoreTimer> = Rc::new(Clock);
            let array = Array::with_slots(self.shared, handles, Rc::clone(&endpoint), background)
                .expect("the drives fit")
                .with_timer(timer);
            let core = Rc::new(Core::new(array, number, cores, cursor));
            let tasks = spawn_tasks(&core, number);
            spawn_local(async move {
                loop {
                    self.bells[number].notified().await;
                    endpoint.handle_doorbell();
                }
            });
            let result = work(Rc::clone(&core)).await;
            // The others still need this core's servers.
            meet(self.arrived, cores).await;
            if number == 0 {
                shared.stop_resync();
                shared.stop_intent();
            }
            for task in tasks {
                task.await.expect("the task ends");
            }
            meet(self.arrived, 2 * cores).await;
            result
        })
    }
}

/// Starts what a core of the daemon runs for an array; answers the tasks that have an end.
fn spawn_tasks(core: &Rc<Core<Array<SlowDrive>>>, number: usize) -> Vec<JoinHandle<()>> {
    for _ in 0..SERVERS {
        let core = Rc::clone(core);
        spawn_local(async move {
            core.volume.serve().await;
        });
    }
    let gatherer = Rc::clone(core);
    spawn_local(async move { gatherer.volume.gather().await });
    if number > 0 {
        return Vec::new();
    }
    let (recovering, keeping) = (Rc::clone(core), Rc::clone(core));
    let recover = spawn_local(async move { recovering.volume.recover(&Clock).await });
    let keep = spawn_local(async move { keeping.volume.keep_intent(&Clock).await });
    vec![recover, keep]
}

/// Waits until so many cores have come here.
async fn meet(arrived: &AtomicUsize, count: usize) {
    arrived.fetch_add(1, Ordering::SeqCst);
    while arrived.load(Ordering::SeqCst) < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
