//! One array's life: it is booted several times over the same drives, and each time used by
//! clients on all cores until it is stopped cleanly, its process dies, or the power is cut.
//!
//! Clients write, zero, read and flush a few *hot* regions, some of them across the borders of
//! chunks and shards, so that requests overlap all the time. What they read, and what is found
//! after each boot, is checked against the model; the rest of the array must never change.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::disk::{BLOCK_BYTES, Disk, Faults, Plan, SimDrive};
use super::model::Model;
use super::world::{Clock, Random, World};
use crate::array::{
    Array, ArrayError, BadRange, IN_SYNC, Keeper, MemberState, Settings, Shared, WriteState,
};
use crate::buffer::{Buffer, Pool};
use crate::drive::DriveError;
use crate::geometry::{Geometry, Level};
use crate::mesh::Mesh;

/// What the superblocks say.
#[derive(Clone, Debug)]
struct Superblock {
    is_active: bool,
    resync_position: u64,
    members: Vec<MemberState>,
    bad_blocks: Vec<Vec<BadRange>>,
}

/// Whether something is wanted, until the world gets to it.
#[derive(Default)]
struct SimKeeper(AtomicBool);

impl Keeper for SimKeeper {
    fn wake(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What happened in a life: for judging whether the runs test what they should.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Story {
    pub(crate) requests: u64,
    pub(crate) failed_requests: u64,
    pub(crate) power_cuts: u64,
    pub(crate) deaths: u64,
    pub(crate) clean_stops: u64,
    pub(crate) resyncs_completed: u64,
    pub(crate) resumed_resyncs: u64,
    pub(crate) injected_errors: u64,
    pub(crate) failed_arrays: u64,
    pub(crate) reads_from_other_copies: u64,
    pub(crate) no_space: u64,
    /// Operations of the drives in the first boot.
    pub(crate) calls: u64,
}

impl Story {
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.failed_requests += other.failed_requests;
        self.power_cuts += other.power_cuts;
        self.deaths += other.deaths;
        self.clean_stops += other.clean_stops;
        self.resyncs_completed += other.resyncs_completed;
        self.resumed_resyncs += other.resumed_resyncs;
        self.injected_errors += other.injected_errors;
        self.failed_arrays += other.failed_arrays;
        self.reads_from_other_copies += other.reads_from_other_copies;
        self.no_space += other.no_space;
        self.calls += other.calls;
    }
}

/// The array and its drives, from boot to boot.
pub(crate) struct Life {
    random: Random,
    geometry: Geometry,
    cores: usize,
    disks: Vec<Rc<RefCell<Disk>>>,
    faults: Rc<Faults>,
    superblock: Rc<RefCell<Superblock>>,
    model: Rc<RefCell<Model>>,
    hot: Rc<[Range<usize>]>,
    /// Blocks not looked at since the power was cut.
    unknown: Rc<RefCell<Vec<bool>>>,
    story: Rc<RefCell<Story>>,
}

/// Where a member's data area begins.
const DATA_OFFSET: usize = 4096;

impl Life {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with_junk(seed, true)
    }

    /// A life in which members may fail: then an array that was never synced may lose its first
    /// copies, so that all of them are zeros from the beginning.
    pub(crate) fn with_failures(seed: u64) -> Self {
        Self::with_junk(seed, false)
    }

    fn with_junk(seed: u64, has_junk: bool) -> Self {
        let mut random = Random::new(seed ^ 0x5eed);
        let level = [Level::Raid0, Level::Raid1, Level::Raid1, Level::Raid10, Level::Raid10]
            [random.below(5) as usize];
        let members = match level {
            Level::Raid1 => 2 + random.below(2),
            _ => 2 + random.below(4),
        } as usize;
        let chunk = if level == Level::Raid1 { 0 } else { 4096 << random.below(5) };
        let copies = if level == Level::Raid10 { 2 } else { 1 };
        let component = match level {
            Level::Raid1 => 2_700_000,
            _ => 2_700_000 * copies / members as u64 + u64::from(chunk),
        };
        let geometry = Geometry::new(level, members, chunk, component).unwrap();
        let size = DATA_OFFSET + geometry.component_bytes() as usize;
        // All without a cache, all with, or mixed.
        let cache_of = [0, 100, 50][random.below(3) as usize];
        let in_sync = level == Level::Raid0 || random.below(3) > 0;
        let disks: Vec<_> = (0..members)
            .map(|slot| {
                let (cache, can_zero) = (random.below(100) < cache_of, random.below(4) > 0);
                Disk::new(slot, size, cache, can_zero)
            })
            .collect();
        let disks: Vec<_> = disks.into_iter().map(|disk| Rc::new(RefCell::new(disk))).collect();
        let mut life = Self {
            geometry,
            cores: 1 + random.below(3) as usize,
            disks,
            faults: Rc::default(),
            superblock: Rc::new(RefCell::new(Superblock {
                is_active: false,
                resync_position: if in_sync { IN_SYNC } else { 0 },
                members: vec![MemberState::InSync; members],
                bad_blocks: vec![Vec::new(); members],
            })),
            model: Rc::new(RefCell::new(Model::new(
                geometry.capacity_bytes() as usize / BLOCK_BYTES,
            ))),
            hot: Self::hot_regions(&geometry, &mut random),
            unknown: Rc::default(),
            story: Rc::default(),
            random,
        };
        life.unknown = Rc::new(RefCell::new(vec![false; life.model.borrow().blocks()]));
        if !in_sync && has_junk {
            life.fill_other_copies();
        }
        life
    }

    fn hot_regions(geometry: &Geometry, random: &mut Random) -> Rc<[Range<usize>]> {
        let blocks = geometry.capacity_bytes() as usize / BLOCK_BYTES;
        let border = geometry.shard_bytes() as usize / BLOCK_BYTES;
        let chunk = geometry.chunk_bytes().unwrap_or(65_536) as usize / BLOCK_BYTES;
        let around = |block: usize| block.saturating_sub(8)..(block + 8).min(blocks);
        let regions = [
            around(border),
            around(chunk),
            around(blocks),
            around(random.below(blocks as u64) as usize),
        ];
        regions.into_iter().filter(|region| !region.is_empty()).collect()
    }

    /// An array that was never synced: the first copies are zeros, the others whatever the drives
    /// held.
    fn fill_other_copies(&self) {
        let is_zero = |slot: usize, block: usize| {
            let at = (block * BLOCK_BYTES).checked_sub(DATA_OFFSET);
            at.is_some_and(|at| self.is_first_copy(slot, at as u64))
        };
        for (slot, disk) in self.disks.iter().enumerate() {
            let junk = slot as u8 + 0x70;
            disk.borrow_mut().fill(|block| if is_zero(slot, block) { 0 } else { junk });
        }
    }

    /// Whether what a member holds at an offset of its data area is a first copy.
    fn is_first_copy(&self, slot: usize, offset: u64) -> bool {
        match self.geometry.chunk_bytes() {
            Some(chunk) => {
                let row = offset / chunk;
                let place = row * self.geometry.members() as u64 + slot as u64;
                place.is_multiple_of(self.geometry.copies() as u64)
            }
            None => slot == 0,
        }
    }

    /// An error to come in the next boot.
    pub(crate) fn plan(&self, plan: Option<Plan>) {
        self.faults.plan(plan);
    }

    /// Boots `boots` times. `with_errors`: in some boots an error is injected at some call.
    pub(crate) fn live(&mut self, boots: u64, with_errors: bool) -> Story {
        for boot in 0..boots {
            if with_errors && self.random.below(2) == 0 {
                let plan = self.random_plan();
                self.plan(Some(plan));
            }
            self.boot_once(boot + 1 == boots);
            if boot == 0 {
                self.story.borrow_mut().calls = self.faults.calls();
            }
        }
        let mut story = *self.story.borrow();
        story.injected_errors = self.faults.injected();
        story
    }

    fn random_plan(&mut self) -> Plan {
        use super::disk::Kind;
        let error = [
            DriveError::Io { errno: 5 },
            DriveError::NoSpace,
            DriveError::Gone,
            DriveError::Unsupported,
        ][self.random.below(4) as usize];
        let kinds =
            [None, Some(Kind::Read), Some(Kind::Read), Some(Kind::Write), Some(Kind::Flush)];
        let only = kinds[self.random.below(5) as usize];
        let times = 1 + self.random.below(12);
        Plan { at_call: self.random.below(250), error, only, times }
    }

    fn boot_once(&mut self, is_last: bool) {
        let boot = Boot::new(self);
        boot.verify();
        boot.verify();
        // Now and then nobody uses the array: a resync then runs without "active" superblocks, and
        // its checkpoints count.
        let per_core = if self.random.below(4) == 0 { 0 } else { 1 + self.random.below(3) };
        boot.start_clients(per_core, 5 + self.random.below(25));
        let ending = if is_last { 0 } else { self.random.below(5) };
        match ending {
            0 | 1 => {
                boot.finish(is_last || self.random.below(2) == 0);
                if self.random.below(2) == 0 {
                    self.cut_power(&boot);
                } else {
                    self.die(&boot);
                }
            }
            2 => {
                boot.world.run_for(self.random.below(6000));
                self.die(&boot);
            }
            _ => {
                boot.world.run_for(self.random.below(6000));
                self.cut_power(&boot);
            }
        }
        if !self.superblock.borrow().is_active {
            self.check_copies_below(self.superblock.borrow().resync_position);
        }
        if is_last {
            self.check_untouched();
        }
    }

    fn cut_power(&mut self, boot: &Boot) {
        boot.stop();
        self.story.borrow_mut().power_cuts += 1;
        // All that can be lost is lost, or none of it, or some.
        let keep_percent = [0, 100, 50, 50][self.random.below(4) as usize];
        for disk in &self.disks {
            disk.borrow_mut().cut_power(|| self.random.below(100) < keep_percent);
        }
        self.model.borrow_mut().restart();
        self.unknown.borrow_mut().fill(true);
    }

    fn die(&mut self, boot: &Boot) {
        boot.stop();
        self.story.borrow_mut().deaths += 1;
        for disk in &self.disks {
            disk.borrow_mut().lose_process(|| self.random.below(2) == 0);
        }
        self.model.borrow_mut().restart();
    }

    /// Where the superblocks say that copies agree they must, also without power.
    fn check_copies_below(&self, position: u64) {
        let is_in_sync =
            |slot: usize| self.superblock.borrow().members[slot] == MemberState::InSync;
        let len = position.min(self.geometry.capacity_bytes());
        for extent in self.geometry.extents(0, len) {
            let bytes = |copy: usize| {
                let place = extent.place(copy);
                let from = DATA_OFFSET + place.offset_bytes as usize;
                self.disks[place.slot].borrow().surviving()[from..from + extent.len_bytes as usize]
                    .to_vec()
            };
            if !is_in_sync(extent.place(0).slot) {
                continue;
            }
            let first = bytes(0);
            for copy in (1..extent.copies).filter(|&copy| is_in_sync(extent.place(copy).slot)) {
                let other = bytes(copy);
                if let Some(at) = (0..first.len()).find(|&at| first[at] != other[at]) {
                    let block = (extent.position_bytes as usize + at) / BLOCK_BYTES;
                    panic!("copy {copy} of block {block} differs, below the resync position");
                }
            }
        }
    }

    /// What no client ever wrote is as it was, and so is what is before the data areas.
    fn check_untouched(&self) {
        for extent in self.geometry.extents(0, self.geometry.capacity_bytes()) {
            let is_in_sync =
                |slot: usize| self.superblock.borrow().members[slot] == MemberState::InSync;
            let places = (0..extent.copies).map(|copy| extent.place(copy));
            let Some(place) = places.into_iter().find(|place| is_in_sync(place.slot)) else {
                panic!("a chunk without a member counts as good");
            };
            let from = DATA_OFFSET + place.offset_bytes as usize;
            let disk = self.disks[place.slot].borrow();
            let bytes = &disk.visible()[from..from + extent.len_bytes as usize];
            for (index, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
                let number = extent.position_bytes as usize / BLOCK_BYTES + index;
                if !self.hot.iter().any(|region| region.contains(&number)) {
                    assert!(block.iter().all(|&byte| byte == 0), "block {number} has changed");
                }
            }
        }
    }
}

/// One boot.
struct Boot {
    world: Rc<World>,
    arrays: Vec<Rc<Array<SimDrive>>>,
    shared: Arc<Shared>,
    pool: Pool,
    faults: Rc<Faults>,
    superblock: Rc<RefCell<Superblock>>,
    model: Rc<RefCell<Model>>,
    hot: Rc<[Range<usize>]>,
    unknown: Rc<RefCell<Vec<bool>>>,
    story: Rc<RefCell<Story>>,
    busy_clients: Rc<Cell<u64>>,
    resync_ended: Rc<Cell<bool>>,
    idle_bytes: usize,
}

impl Boot {
    fn new(life: &mut Life) -> Self {
        let world = World::new(life.random.next());
        let keeper = Arc::new(SimKeeper::default());
        let superblock = life.superblock.borrow().clone();
        // An unclean stop leaves copies unequal anywhere.
        let position = if superblock.is_active { 0 } else { superblock.resync_position };
        if !superblock.is_active && (1..IN_SYNC).contains(&position) {
            life.story.borrow_mut().resumed_resyncs += 1;
        }
        let shared = Shared::new(Settings {
            service: 3,
            uuid: [7; 16],
            data_offsets_bytes: vec![DATA_OFFSET as u64; life.disks.len()],
            cores: life.cores,
            active: superblock.is_active,
            resync_position_bytes: position,
            members: superblock.members.clone(),
            bad_blocks: superblock.bad_blocks,
            keeper: Arc::clone(&keeper) as Arc<dyn Keeper>,
            ..Settings::new(life.geometry)
        });
        shared
            .set_checkpoint_interval([256 << 10, 1 << 20, 1 << 30][life.random.below(3) as usize]);
        let pool = Pool::new(8 << 20, 1 << 20).unwrap();
        let before_write: Rc<dyn Fn()> = {
            let (superblock, shared) = (Rc::clone(&life.superblock), Arc::clone(&shared));
            Rc::new(move || {
                // A resync writes without being asked; otherwise the superblocks come first.
                let fine = superblock.borrow().is_active || !shared.is_in_sync();
                assert!(fine, "data is written before the superblocks say so");
            })
        };
        let calls_per_pair = 1 + life.random.below(6) as u32;
        let ends = Mesh::with_calls_per_pair(life.cores, world.doorbell(), calls_per_pair);
        let arrays: Vec<_> = ends
            .into_iter()
            .map(|end| {
                let end = Rc::new(end);
                let hears = Rc::clone(&end);
                world.add_core(move || hears.handle_doorbell());
                let drive = |(disk, state): (&Rc<RefCell<Disk>>, &MemberState)| {
                    (*state == MemberState::InSync).then(|| SimDrive {
                        world: Rc::clone(&world),
                        disk: Rc::clone(disk),
                        faults: Rc::clone(&life.faults),
                        before_write: Rc::clone(&before_write),
                    })
                };
                let drives = life.disks.iter().zip(&superblock.members).map(drive).collect();
                let shared = Arc::clone(&shared);
                Rc::new(Array::with_slots(shared, drives, end, pool.clone()).unwrap())
            })
            .collect();
        let boot = Self {
            idle_bytes: pool.in_use_bytes(),
            arrays,
            pool,
            faults: Rc::clone(&life.faults),
            superblock: Rc::clone(&life.superblock),
            model: Rc::clone(&life.model),
            hot: Rc::clone(&life.hot),
            unknown: Rc::clone(&life.unknown),
            story: Rc::clone(&life.story),
            busy_clients: Rc::default(),
            resync_ended: Rc::default(),
            shared,
            world,
        };
        boot.serve_keeper(&keeper);
        boot.serve_calls(1 + life.random.below(3));
        boot.start_resync();
        boot
    }

    /// Starts the servers of other cores' calls, so many on each core.
    fn serve_calls(&self, servers: u64) {
        for array in &self.arrays {
            for _ in 0..servers {
                let array = Rc::clone(array);
                self.world.spawn(async move {
                    array.serve().await;
                });
            }
        }
    }

    /// Records what is wanted, after a while, one version at a time.
    fn serve_keeper(&self, keeper: &Arc<SimKeeper>) {
        let (keeper, superblock) = (Arc::clone(keeper), Rc::clone(&self.superblock));
        let (shared, weak) = (Arc::clone(&self.shared), Rc::downgrade(&self.world));
        let is_busy = Rc::new(Cell::new(false));
        self.world.add_hook(move || {
            let Some(world) = weak.upgrade() else { return };
            if is_busy.get() || !keeper.0.swap(false, Ordering::SeqCst) {
                return;
            }
            is_busy.set(true);
            let wanted = shared.wanted();
            world.trace(|| format!("{wanted:?}"));
            let (superblock, shared) = (Rc::clone(&superblock), Arc::clone(&shared));
            let (fails, is_busy) = (world.one_in(10), Rc::clone(&is_busy));
            world.after(world.below(300_000), move || {
                is_busy.set(false);
                let mut superblock = superblock.borrow_mut();
                if fails {
                    superblock.is_active |= wanted.active;
                    return shared.record_failed(0, DriveError::NoSpace);
                }
                *superblock = Superblock {
                    is_active: wanted.active,
                    resync_position: wanted.resync_from,
                    members: wanted.members,
                    bad_blocks: wanted.bad_blocks,
                };
                shared.recorded(wanted.version);
            });
        });
    }

    fn start_resync(&self) {
        let (array, ended) = (Rc::clone(&self.arrays[0]), Rc::clone(&self.resync_ended));
        let clock = Clock(Rc::clone(&self.world));
        self.world.spawn(async move {
            array.recover(&clock).await;
            ended.set(true);
        });
    }

    fn client(&self, core: usize) -> Client {
        Client {
            world: Rc::clone(&self.world),
            array: Rc::clone(&self.arrays[core]),
            pool: self.pool.clone(),
            model: Rc::clone(&self.model),
            hot: Rc::clone(&self.hot),
            unknown: Rc::clone(&self.unknown),
            story: Rc::clone(&self.story),
        }
    }

    /// Runs `work` to its end.
    fn run<F: Future<Output = ()> + 'static>(&self, what: &str, work: F) {
        let done = Rc::new(Cell::new(false));
        let set = Rc::clone(&done);
        self.world.spawn(async move {
            work.await;
            set.set(true);
        });
        assert!(self.world.run_until(|| done.get()), "{what} hangs");
    }

    /// Reads all hot blocks on some cores.
    fn verify(&self) {
        let faults = Rc::clone(&self.faults);
        let plan = faults.suspend();
        // Blocks that no copy could read in a resync.
        let may_be_lost = (0..self.shared.geometry().members())
            .any(|slot| !self.shared.bad_blocks(slot).is_empty());
        for region in self.hot.iter() {
            let client = self.client(self.world.below(self.arrays.len() as u64) as usize);
            let region = region.clone();
            self.run("the check after booting", async move {
                let result = client.read(region.start, region.len()).await;
                let is_lost = matches!(result, Err(ArrayError::Unrecovered { .. }));
                assert!(result.is_ok() || is_lost && may_be_lost, "{result:?}");
            });
        }
        faults.resume(plan);
    }

    fn start_clients(&self, per_core: u64, requests: u64) {
        for core in 0..self.arrays.len() {
            for _ in 0..per_core {
                let (client, busy) = (self.client(core), Rc::clone(&self.busy_clients));
                busy.set(busy.get() + 1);
                self.world.spawn(async move {
                    for _ in 0..requests {
                        client.request().await;
                    }
                    busy.set(busy.get() - 1);
                });
            }
        }
    }

    /// Lets the clients finish, perhaps the resync too, and stops the array cleanly.
    fn finish(&self, waits_for_resync: bool) {
        let world = &self.world;
        let busy = Rc::clone(&self.busy_clients);
        assert!(
            world.run_until(|| busy.get() == 0),
            "a request hangs: {:?}",
            self.shared.failure()
        );
        if waits_for_resync {
            let shared = Arc::clone(&self.shared);
            self.run("the resync", async move {
                shared.wait_in_sync().await;
            });
        }
        self.shared.stop_resync();
        let ended = Rc::clone(&self.resync_ended);
        assert!(world.run_until(|| ended.get()), "the resync does not stop");
        self.shared.stop_writes();
        assert_eq!(self.shared.writes_in_flight(), 0);
        let array = Rc::clone(&self.arrays[0]);
        let (shared, superblock) = (Arc::clone(&self.shared), Rc::clone(&self.superblock));
        let (story, model) = (Rc::clone(&self.story), Rc::clone(&self.model));
        self.run("the last flush", async move {
            let began = model.borrow_mut().begin();
            if array.flush().await.is_ok() && shared.write_state() != WriteState::Failed {
                model.borrow_mut().flushed(began);
                let mut superblock = superblock.borrow_mut();
                superblock.is_active = false;
                superblock.resync_position = shared.resync_position_bytes();
                superblock.members = shared.member_states();
                superblock.bad_blocks =
                    (0..superblock.members.len()).map(|slot| shared.bad_blocks(slot)).collect();
                story.borrow_mut().clean_stops += 1;
            }
        });
        assert_eq!(self.pool.in_use_bytes(), self.idle_bytes, "memory is held by nobody");
    }

    fn stop(&self) {
        let mut story = self.story.borrow_mut();
        story.resyncs_completed += self.shared.resyncs_completed();
        story.failed_arrays += u64::from(self.shared.failure().is_some());
        story.reads_from_other_copies += self.shared.reads_from_other_copies();
        for slot in 0..self.shared.geometry().members() {
            story.no_space += self.shared.member_errors(slot).no_space;
        }
        drop(story);
        self.world.stop();
    }
}

/// Somebody who uses the array on one core.
struct Client {
    world: Rc<World>,
    array: Rc<Array<SimDrive>>,
    pool: Pool,
    model: Rc<RefCell<Model>>,
    hot: Rc<[Range<usize>]>,
    unknown: Rc<RefCell<Vec<bool>>>,
    story: Rc<RefCell<Story>>,
}

impl Client {
    /// One request of some kind somewhere hot.
    async fn request(&self) {
        let world = &self.world;
        if world.one_in(3) {
            world.sleep_ns(world.below(200_000)).await;
        }
        let region = self.hot[world.below(self.hot.len() as u64) as usize].clone();
        let first = region.start + world.below(region.len() as u64) as usize;
        let blocks = 1 + world.below((region.end - first) as u64) as usize;
        let result = match world.below(12) {
            0..=4 => self.write(first, blocks).await,
            5 => self.zero(first, blocks).await,
            6 => self.deallocate(first, blocks).await,
            7 => self.flush().await,
            _ => self.read(first, blocks).await,
        };
        let mut story = self.story.borrow_mut();
        story.requests += 1;
        story.failed_requests += u64::from(result.is_err());
    }

    fn buffer(&self, blocks: usize) -> Buffer {
        self.pool.allocate(blocks * BLOCK_BYTES).expect("the pool is large enough")
    }

    async fn write(&self, first: usize, blocks: usize) -> Result<(), ArrayError> {
        let fua = self.world.one_in(4);
        let number = self.model.borrow_mut().new_number();
        let mut buffer = self.buffer(blocks);
        for word in buffer.chunks_exact_mut(8) {
            word.copy_from_slice(&number.to_le_bytes());
        }
        let asked = self.model.borrow_mut().ask(first, blocks, number);
        self.world.trace(|| format!("write {number} to {first}, {blocks} blocks, fua {fua}"));
        let offset = (first * BLOCK_BYTES) as u64;
        let result = self.array.write(offset, buffer.freeze(), fua).await;
        self.world.trace(|| format!("write {number}: {result:?}"));
        self.model.borrow_mut().answer(&asked, result.is_ok(), fua);
        result
    }

    async fn zero(&self, first: usize, blocks: usize) -> Result<(), ArrayError> {
        let (fua, deallocate) = (self.world.one_in(4), self.world.one_in(2));
        let asked = self.model.borrow_mut().ask(first, blocks, 0);
        let (offset, len) = ((first * BLOCK_BYTES) as u64, (blocks * BLOCK_BYTES) as u64);
        let result = self.array.write_zeroes(offset, len, deallocate, fua).await;
        self.world.trace(|| format!("zero {first}, {blocks} blocks, fua {fua}: {result:?}"));
        self.model.borrow_mut().answer(&asked, result.is_ok(), fua);
        result
    }

    async fn deallocate(&self, first: usize, blocks: usize) -> Result<(), ArrayError> {
        let asked = self.model.borrow_mut().ask(first, blocks, 0);
        let (offset, len) = ((first * BLOCK_BYTES) as u64, (blocks * BLOCK_BYTES) as u64);
        let result = self.array.deallocate(offset, len).await;
        self.world.trace(|| format!("deallocate {first}, {blocks} blocks: {result:?}"));
        // It may have been skipped, so like a failed write it supersedes nothing.
        self.model.borrow_mut().answer(&asked, false, false);
        result
    }

    async fn flush(&self) -> Result<(), ArrayError> {
        let began = self.model.borrow_mut().begin();
        let result = self.array.flush().await;
        self.world.trace(|| format!("flush begun at {began}: {result:?}"));
        if result.is_ok() {
            self.model.borrow_mut().flushed(began);
        }
        result
    }

    /// Reads, and checks what is read.
    async fn read(&self, first: usize, blocks: usize) -> Result<(), ArrayError> {
        let began = self.model.borrow_mut().begin();
        let offset = (first * BLOCK_BYTES) as u64;
        let read = self.array.read(offset, self.buffer(blocks)).await;
        self.world.trace(|| format!("read {first}, {blocks} blocks, begun at {began}: {read:?}"));
        let buffer = read.map_err(|unread| unread.error)?;
        assert_eq!(buffer.len(), blocks * BLOCK_BYTES, "the buffer comes back whole");
        for (index, block) in buffer.chunks(BLOCK_BYTES).enumerate() {
            let number = u64::from_le_bytes(block[..8].try_into().unwrap());
            let is_whole = block.chunks_exact(8).all(|word| word == &block[..8]);
            assert!(is_whole, "block {} is torn inside", first + index);
            let mut model = self.model.borrow_mut();
            let allowed = if std::mem::take(&mut self.unknown.borrow_mut()[first + index]) {
                model.found_after_power_cut(first + index, number)
            } else {
                model.read(first + index, began, number)
            };
            if let Err(broken) = allowed {
                panic!("a promise is broken: {broken}");
            }
        }
        Ok(())
    }
}
