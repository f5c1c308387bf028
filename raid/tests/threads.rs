//! Arrays on real threads: what the simulation does in virtual time, here with real atomics,
//! parked threads and doorbells. A lost wake-up would hang it.

#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use futures_util::future::{join_all, select};
use raidfabric_raid::array::{Array, Endpoint, IN_SYNC, Keeper, Settings, Shared, Timer};
use raidfabric_raid::buffer::Pool;
use raidfabric_raid::geometry::{Geometry, Level};
use raidfabric_raid::memory::MemoryDrive;
use raidfabric_raid::mesh::Mesh;

const CORES: usize = 3;
const BLOCK: usize = 4096;

/// Marks the members active on a thread of its own, as the control plane does.
#[derive(Default)]
struct SlowKeeper {
    shared: Mutex<Option<Arc<Shared>>>,
    is_active: Arc<AtomicBool>,
}

impl Keeper for SlowKeeper {
    fn wake(&self) {
        let shared = self.shared.lock().unwrap().clone().unwrap();
        let is_active = Arc::clone(&self.is_active);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            let wanted = shared.wanted();
            is_active.store(wanted.active, Ordering::SeqCst);
            shared.recorded(wanted.version);
        });
    }
}

/// Wakes a core's only task: sets its flag and unparks its thread.
struct CoreWaker {
    is_woken: AtomicBool,
    thread: Thread,
}

impl Wake for CoreWaker {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Runs `future` on this thread, hearing the doorbell.
fn run(endpoint: &Endpoint, future: impl Future) {
    let core = Arc::new(CoreWaker { is_woken: AtomicBool::new(true), thread: thread::current() });
    let waker = Waker::from(Arc::clone(&core));
    let mut future = pin!(future);
    loop {
        endpoint.handle_doorbell();
        if !core.is_woken.swap(false, Ordering::SeqCst) {
            if !endpoint.has_mail() {
                thread::park();
            }
            continue;
        }
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            return;
        }
    }
}

struct NoRest;

impl Timer for NoRest {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    async fn sleep(&self, _time: Duration) {}
}

/// The array as all threads see it.
struct World {
    shared: Arc<Shared>,
    drives: Vec<MemoryDrive>,
    is_active: Arc<AtomicBool>,
    /// By block: the number of the newest acknowledged write of its only writer.
    acknowledged: Vec<AtomicUsize>,
    finished: AtomicUsize,
    wakers: Mutex<Vec<Waker>>,
}

/// Core `core` writes the blocks that are `core` modulo the number of cores, rewrites a common
/// block, and reads everybody's.
async fn client(
    world: &World,
    array: &Array<MemoryDrive>,
    pool: &Pool,
    core: usize,
    client: usize,
) {
    let blocks = world.acknowledged.len();
    let mut seed = (core * 8 + client) as u64 + 1;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let rounds = if cfg!(debug_assertions) { 300 } else { 3000 };
    for round in 1..=rounds {
        // Of a core's blocks each client has its own, so that it alone decides their order.
        let mine = (random(blocks / 24) * 24 + core * 8 + client).min(blocks - 1);
        if mine % 24 == core * 8 + client {
            let mut buffer = pool.allocate(BLOCK).unwrap();
            buffer
                .chunks_exact_mut(8)
                .for_each(|w| w.copy_from_slice(&(round as u64).to_le_bytes()));
            array.write((mine * BLOCK) as u64, buffer.freeze(), false).await.unwrap();
            assert!(
                world.is_active.load(Ordering::SeqCst),
                "written before the members were marked"
            );
            world.acknowledged[mine].store(round, Ordering::SeqCst);
        }
        let any = random(blocks);
        let at_least = world.acknowledged[any].load(Ordering::SeqCst);
        let buffer = array.read((any * BLOCK) as u64, pool.allocate(BLOCK).unwrap()).await.unwrap();
        let found = u64::from_le_bytes(buffer[..8].try_into().unwrap()) as usize;
        assert!(found >= at_least, "block {any} reads {found}, {at_least} was acknowledged");
    }
    // Everybody at once: the last shard, several blocks wide.
    for round in 0..rounds / 10 {
        let mut buffer = pool.allocate(3 * BLOCK).unwrap();
        buffer.fill((core * 8 + client) as u8);
        let block = blocks + round % 5;
        array.write((block * BLOCK) as u64, buffer.freeze(), true).await.unwrap();
        array.flush().await.unwrap();
    }
}

fn run_core(world: &World, endpoint: Endpoint) {
    let core = endpoint.core();
    let endpoint = Rc::new(endpoint);
    let pool = Pool::new(16 << 20, 1 << 20).unwrap();
    let shared = Arc::clone(&world.shared);
    let array =
        Array::new(shared, world.drives.clone(), Rc::clone(&endpoint), pool.clone()).unwrap();
    let clients = async {
        join_all((0..8).map(|number| client(world, &array, &pool, core, number))).await;
        if core == 0 {
            assert!(world.shared.wait_in_sync().await);
            world.shared.stop_resync();
        }
        world.finished.fetch_add(1, Ordering::SeqCst);
        world.wakers.lock().unwrap().drain(..).for_each(Waker::wake);
        // The others may still need this core's servers.
        std::future::poll_fn(|cx| {
            let mut wakers = world.wakers.lock().unwrap();
            if world.finished.load(Ordering::SeqCst) == CORES {
                return std::task::Poll::Ready(());
            }
            wakers.push(cx.waker().clone());
            std::task::Poll::Pending
        })
        .await;
    };
    let background = async {
        let servers = join_all((0..4).map(|_| array.serve()));
        let resync = async {
            if core == 0 {
                array.recover(&NoRest).await;
            }
            std::future::pending::<()>().await;
        };
        select(pin!(servers), pin!(resync)).await;
    };
    run(&endpoint, async {
        select(pin!(clients), pin!(background)).await;
    });
    drop(array);
    assert_eq!(pool.in_use_bytes(), 0, "core {core} has not got all its memory back");
}

#[test]
fn threads_share_a_mirror_that_is_being_synced() {
    let size_bytes = 6 << 20;
    let keeper = Arc::new(SlowKeeper::default());
    let shared = Shared::new(Settings {
        service: 2,
        uuid: [5; 16],
        cores: CORES,
        active: false,
        resync_position_bytes: 0,
        keeper: Arc::clone(&keeper) as Arc<dyn Keeper>,
        ..Settings::new(Geometry::new(Level::Raid10, 4, 16_384, size_bytes / 2).unwrap())
    });
    *keeper.shared.lock().unwrap() = Some(Arc::clone(&shared));
    let drives: Vec<_> = (0..4).map(|_| MemoryDrive::new(size_bytes / 2)).collect();
    // Second copies differ everywhere before the resync.
    drives[1].write_now(0, &vec![0xff; size_bytes as usize / 2]).unwrap();
    drives[3].write_now(0, &vec![0xff; size_bytes as usize / 2]).unwrap();
    let blocks = shared.geometry().capacity_bytes() as usize / BLOCK - 8;
    let world = Arc::new(World {
        is_active: Arc::clone(&keeper.is_active),
        acknowledged: (0..blocks).map(|_| AtomicUsize::new(0)).collect(),
        finished: AtomicUsize::new(0),
        wakers: Mutex::default(),
        drives,
        shared,
    });
    let threads: Arc<Mutex<Vec<Thread>>> = Arc::default();
    let bells = Arc::clone(&threads);
    let doorbell = move |core: usize| bells.lock().unwrap()[core].unpark();
    let start = Arc::new(Barrier::new(CORES));
    let handles: Vec<_> = Mesh::new(CORES, Arc::new(doorbell))
        .into_iter()
        .map(|endpoint| {
            let (world, start) = (Arc::clone(&world), Arc::clone(&start));
            let mut threads = threads.lock().unwrap();
            let handle = thread::spawn(move || {
                start.wait();
                run_core(&world, endpoint);
            });
            threads.push(handle.thread().clone());
            handle
        })
        .collect();
    for handle in handles {
        handle.join().unwrap();
    }
    let shared = &world.shared;
    assert_eq!((shared.failure(), shared.writes_in_flight(), shared.is_in_sync()), (None, 0, true));
    assert_eq!(shared.resync_position_bytes(), IN_SYNC);
    let mut copies = [0, 1, 2, 3].map(|_| vec![0; size_bytes as usize / 2]);
    for (drive, copy) in world.drives.iter().zip(&mut copies) {
        drive.read_now(0, copy).unwrap();
    }
    assert!(copies[0] == copies[1] && copies[2] == copies[3], "copies differ");
    for (block, number) in world.acknowledged.iter().enumerate() {
        let extent = shared.geometry().extents((block * BLOCK) as u64, 8).next().unwrap();
        let place = extent.place(0);
        let found = &copies[place.slot][place.offset_bytes as usize..][..8];
        let found = u64::from_le_bytes(found.try_into().unwrap()) as usize;
        assert_eq!(found, number.load(Ordering::SeqCst), "block {block}");
    }
}
