//! What the tests of this folder run on: arrays of all redundant levels on two cores of a simulated
//! world, over drives in memory that take their time, have a volatile cache and fail on request;
//! and a keeper that records at once.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::array::intent::{RegionsKind, RegionsLayout};
use crate::array::{
    Array, ArrayError, CoreTimer, IN_SYNC, IntentLayout, Keeper, MemberState, Settings, Shared,
    Timer, Wanted,
};
use crate::buffer::{Buffer, Pool, SharedBuffer};
use crate::drive::{Drive, DriveError, ReadFailure};
use crate::geometry::{Geometry, Level};
use crate::memory::MemoryDrive;
use crate::mesh::Mesh;
use crate::metadata::bitmap::{BitmapSuperblock, MapUnit, NewBitmap, RegionMap};
use crate::sim::world::{Clock, World};

pub(super) const BLOCK: u64 = 512;
pub(super) const EIO: DriveError = DriveError::Io { errno: 5 };
/// Where data areas begin; the bitmap is before that.
pub(super) const DATA_OFFSET: u64 = 64 << 10;
const BITMAP_OFFSET: u64 = 8 << 10;

/// A drive's contents and what is wrong with it; outlives the array.
pub(super) struct Disk {
    pub(super) memory: MemoryDrive,
    /// What the blocks held before writes that were not flushed, oldest first.
    unflushed: RefCell<Vec<(u64, Vec<u8>)>>,
    /// Bytes per second; 0: it takes a random time instead.
    pub(super) rate: Cell<u64>,
    /// When it is done with what it was given, if it has a rate.
    busy_until: Cell<u64>,
    /// Blocks, counted from the data area's start, that cannot be read until they are written.
    pub(super) unreadable: RefCell<HashSet<u64>>,
    /// Blocks that are read wrong for so many times.
    pub(super) wrong_reads: RefCell<Vec<(u64, u32)>>,
    /// What every write and zeroing says.
    pub(super) write_error: Cell<Option<DriveError>>,
    /// Writes until that begins.
    pub(super) writes_before_error: Cell<u64>,
    /// What every read says.
    pub(super) read_error: Cell<Option<DriveError>>,
    pub(super) flush_error: Cell<Option<DriveError>>,
    pub(super) cannot_zero: Cell<bool>,
    pub(super) read_bytes: Cell<u64>,
    pub(super) written: RefCell<Vec<Range<u64>>>,
    pub(super) flushes: Cell<u64>,
    pub(super) zeroed_bytes: Cell<u64>,
}

impl Disk {
    pub(super) fn new(size: u64) -> Rc<Self> {
        Rc::new(Self {
            memory: MemoryDrive::new(DATA_OFFSET + size),
            unflushed: RefCell::default(),
            rate: Cell::new(0),
            busy_until: Cell::new(0),
            unreadable: RefCell::default(),
            wrong_reads: RefCell::default(),
            write_error: Cell::new(None),
            writes_before_error: Cell::new(0),
            read_error: Cell::new(None),
            flush_error: Cell::new(None),
            cannot_zero: Cell::new(false),
            read_bytes: Cell::new(0),
            written: RefCell::default(),
            flushes: Cell::new(0),
            zeroed_bytes: Cell::new(0),
        })
    }

    /// What its data area holds.
    pub(super) fn data(&self) -> Vec<u8> {
        let mut bytes = vec![0; (self.memory.size_bytes() - DATA_OFFSET) as usize];
        self.memory.read_now(DATA_OFFSET, &mut bytes).unwrap();
        bytes
    }

    /// Changes it behind the array's back, at any offset.
    pub(super) fn put(&self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        let (first, last) = (offset / BLOCK * BLOCK, end.next_multiple_of(BLOCK));
        let mut blocks = vec![0; (last - first) as usize];
        self.memory.read_now(DATA_OFFSET + first, &mut blocks).unwrap();
        blocks[(offset - first) as usize..][..bytes.len()].copy_from_slice(bytes);
        self.memory.write_now(DATA_OFFSET + first, &blocks).unwrap();
    }

    pub(super) fn spoil(&self, block: u64) {
        self.unreadable.borrow_mut().insert(block);
    }

    pub(super) fn written_bytes(&self) -> u64 {
        self.written.borrow().iter().map(|range| range.end - range.start).sum()
    }

    /// Forgets what was not flushed.
    fn lose_cache(&self) {
        for (offset, old) in self.unflushed.borrow_mut().drain(..).rev() {
            self.memory.write_now(offset, &old).unwrap();
        }
    }

    fn change(&self, offset: u64, bytes: &[u8], durable: bool) {
        if !durable {
            let mut old = vec![0; bytes.len()];
            self.memory.read_now(offset, &mut old).unwrap();
            self.unflushed.borrow_mut().push((offset, old));
        }
        self.memory.write_now(offset, bytes).unwrap();
        if let Some(from) = offset.checked_sub(DATA_OFFSET) {
            let blocks = from / BLOCK..(from + bytes.len() as u64) / BLOCK;
            self.unreadable.borrow_mut().retain(|block| !blocks.contains(block));
            self.written.borrow_mut().push(from..from + bytes.len() as u64);
        }
    }

    fn writes_fail(&self) -> Option<DriveError> {
        let error = self.write_error.get()?;
        match self.writes_before_error.get() {
            0 => Some(error),
            left => {
                self.writes_before_error.set(left - 1);
                None
            }
        }
    }
}

pub(super) struct TestDrive {
    pub(super) disk: Rc<Disk>,
    pub(super) world: Rc<World>,
}

impl TestDrive {
    async fn pause(&self, bytes: u64) {
        let rate = self.disk.rate.get();
        if rate == 0 {
            return self.world.sleep_ns(self.world.below(40_000)).await;
        }
        let now = now_ns(&self.world);
        let until = self.disk.busy_until.get().max(now) + bytes * 1_000_000_000 / rate;
        self.disk.busy_until.set(until);
        // 50 µs of latency, as many at a time as one likes.
        self.world.sleep_ns(until + 50_000 - now).await;
    }
}

impl Drive for TestDrive {
    async fn read(&self, offset: u64, mut buffer: Buffer) -> Result<Buffer, ReadFailure> {
        self.pause(buffer.len() as u64).await;
        let disk = &self.disk;
        disk.read_bytes.set(disk.read_bytes.get() + buffer.len() as u64);
        if let Some(error) = disk.read_error.get() {
            let buffer = (error != DriveError::TimedOut).then_some(buffer);
            return Err(ReadFailure { error, buffer });
        }
        let first = (offset - DATA_OFFSET) / BLOCK;
        let blocks = first..first + buffer.len() as u64 / BLOCK;
        if disk.unreadable.borrow().iter().any(|block| blocks.contains(block)) {
            return Err(ReadFailure::new(EIO, buffer));
        }
        disk.memory.read_now(offset, &mut buffer).unwrap();
        for (block, times) in disk.wrong_reads.borrow_mut().iter_mut() {
            if blocks.contains(block) && *times > 0 {
                *times -= 1;
                buffer[((*block - first) * BLOCK) as usize] ^= 0xff;
            }
        }
        Ok(buffer)
    }

    async fn write(&self, offset: u64, data: SharedBuffer, fua: bool) -> Result<(), DriveError> {
        self.pause(data.len() as u64).await;
        if let Some(error) = self.disk.writes_fail() {
            return Err(error);
        }
        self.disk.change(offset, &data, fua);
        Ok(())
    }

    async fn flush(&self) -> Result<(), DriveError> {
        let count = self.disk.unflushed.borrow().len();
        self.pause(0).await;
        self.disk.flushes.set(self.disk.flushes.get() + 1);
        if let Some(error) = self.disk.flush_error.get() {
            return Err(error);
        }
        let mut unflushed = self.disk.unflushed.borrow_mut();
        let durable: Vec<_> = unflushed.drain(..count).collect();
        // What is durable now must not be undone by what a later write of the same blocks saw.
        drop(durable);
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, _: bool) -> Result<(), DriveError> {
        self.pause(0).await;
        if self.disk.cannot_zero.get() {
            return Err(DriveError::Unsupported);
        }
        if let Some(error) = self.disk.writes_fail() {
            return Err(error);
        }
        self.disk.change(offset, &vec![0; len as usize], false);
        self.disk.zeroed_bytes.set(self.disk.zeroed_bytes.get() + len);
        Ok(())
    }

    fn has_volatile_cache(&self) -> bool {
        true
    }

    fn size_bytes(&self) -> u64 {
        self.disk.memory.size_bytes()
    }

    fn block_size_bytes(&self) -> u32 {
        BLOCK as u32
    }
}

pub(super) fn now_ns(world: &Rc<World>) -> u64 {
    Timer::now(&Clock(Rc::clone(world))).as_nanos() as u64
}

/// A keeper that records at once.
#[derive(Default)]
pub(super) struct Recorder {
    shared: OnceLock<Weak<Shared>>,
    pub(super) recorded: Mutex<Option<Wanted>>,
}

impl Keeper for Recorder {
    fn wake(&self) {
        let Some(shared) = self.shared.get().and_then(Weak::upgrade) else { return };
        let wanted = shared.wanted();
        *self.recorded.lock().unwrap() = Some(wanted.clone());
        shared.recorded(wanted.version);
    }
}

/// From what a rig is made.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) geometry: Geometry,
    pub(super) states: Vec<MemberState>,
    pub(super) rebuild_from: Option<u64>,
    pub(super) resync_from: u64,
    pub(super) bad_blocks: Vec<Vec<crate::array::BadRange>>,
    /// Regions of a bitmap that are dirty; none: there is no bitmap.
    pub(super) dirty: Option<Vec<u64>>,
    pub(super) memory_bytes: usize,
    pub(super) read_error_limit: u32,
    pub(super) bad_block_limit: u32,
}

pub(super) const REGION: u64 = 512 << 10;
pub(super) const CHUNK: u32 = 16 << 10;

impl Plan {
    /// An array whose members contribute so much.
    pub(super) fn new(level: Level, members: usize, component: u64) -> Self {
        let chunk = if level == Level::Raid1 { 0 } else { CHUNK };
        let geometry = Geometry::new(level, members, chunk, component).unwrap();
        Self {
            states: vec![MemberState::InSync; geometry.members()],
            geometry,
            rebuild_from: None,
            resync_from: IN_SYNC,
            bad_blocks: Vec::new(),
            dirty: None,
            memory_bytes: 16 << 20,
            read_error_limit: 1000,
            bad_block_limit: Settings::BAD_BLOCK_LIMIT,
        }
    }

    pub(super) fn without(mut self, slot: usize) -> Self {
        self.states[slot] = MemberState::Missing;
        self
    }

    fn intent(&self) -> IntentLayout {
        let Some(dirty) = &self.dirty else { return IntentLayout::NONE };
        let unit = match self.geometry.level() {
            Level::Raid10 => MapUnit::Array,
            _ => MapUnit::Component,
        };
        let covered = match unit {
            MapUnit::Array => self.geometry.capacity_bytes(),
            MapUnit::Component => self.geometry.component_bytes(),
        };
        let mut map = RegionMap::empty(unit, covered, REGION);
        dirty.iter().for_each(|&region| map.insert(region));
        let superblock = BitmapSuperblock::create(&NewBitmap {
            array_uuid: uuid::Uuid::from_bytes([0; 16]),
            covered_bytes: covered,
            region_bytes: REGION as u32,
            events: 7,
        });
        IntentLayout {
            regions: Some(RegionsLayout {
                kind: RegionsKind::Bitmap,
                superblock,
                set: map.clone(),
                dirty: map,
                offsets_bytes: vec![Some(BITMAP_OFFSET); self.geometry.members()],
                events: 7,
                on_all_members: true,
            }),
            log: None,
        }
    }
}

pub(super) struct Rig {
    pub(super) world: Rc<World>,
    pub(super) arrays: Vec<Rc<Array<TestDrive>>>,
    pub(super) disks: Vec<Rc<Disk>>,
    pub(super) shared: Arc<Shared>,
    pub(super) keeper: Arc<Recorder>,
    pub(super) pool: Pool,
    pub(super) plan: Plan,
    pub(super) ended: Rc<Cell<bool>>,
}

impl Rig {
    /// Over disks that hold the same contents, pseudo-random ones: returns these, too.
    pub(super) fn filled(plan: &Plan, seed: u64) -> (Self, Vec<u8>) {
        let contents = contents(plan.geometry.capacity_bytes() as usize, seed);
        let disks = disks_with(&plan.geometry, &contents);
        (Self::over(plan, disks, seed), contents)
    }

    pub(super) fn over(plan: &Plan, disks: Vec<Rc<Disk>>, seed: u64) -> Self {
        const CORES: usize = 2;
        let world = World::new(seed);
        let keeper = Arc::new(Recorder::default());
        let shared = Shared::new(Settings {
            data_offsets_bytes: vec![DATA_OFFSET; plan.geometry.members()],
            cores: CORES,
            members: plan.states.clone(),
            rebuild_from: plan.rebuild_from,
            resync_position_bytes: plan.resync_from,
            bad_blocks: plan.bad_blocks.clone(),
            read_error_limit: plan.read_error_limit,
            bad_block_limit: plan.bad_block_limit,
            intent: plan.intent(),
            keeper: Arc::clone(&keeper) as Arc<dyn Keeper>,
            ..Settings::new(plan.geometry)
        });
        keeper.shared.set(Arc::downgrade(&shared)).unwrap();
        let pool = Pool::new(plan.memory_bytes, 1 << 20).unwrap();
        let endpoints = Mesh::new(CORES, world.doorbell());
        let arrays = endpoints.into_iter().map(|endpoint| {
            let endpoint = Rc::new(endpoint);
            let bell = Rc::clone(&endpoint);
            world.add_core(move || bell.handle_doorbell());
            let slots = disks.iter().zip(&plan.states).map(|(disk, state)| {
                let in_use = matches!(state, MemberState::InSync | MemberState::Rebuilding);
                in_use.then(|| TestDrive { disk: Rc::clone(disk), world: Rc::clone(&world) })
            });
            let timer: Rc<dyn CoreTimer> = Rc::new(Clock(Rc::clone(&world)));
            let slots = slots.collect();
            let array = Array::with_slots(Arc::clone(&shared), slots, endpoint, pool.clone());
            Rc::new(array.unwrap().with_timer(timer))
        });
        let arrays: Vec<_> = arrays.collect();
        for array in &arrays {
            for _ in 0..16 {
                let array = Rc::clone(array);
                world.spawn(async move {
                    array.serve().await;
                });
            }
        }
        let ended = Rc::new(Cell::new(false));
        let plan = plan.clone();
        Self { world, arrays, disks, shared, keeper, pool, plan, ended }
    }

    /// Has the first core do the long tasks.
    pub(super) fn start(&self) {
        let (array, ended) = (Rc::clone(&self.arrays[0]), Rc::clone(&self.ended));
        let clock = Clock(Rc::clone(&self.world));
        self.world.spawn(async move {
            array.recover(&clock).await;
            ended.set(true);
        });
    }

    /// Starts, and runs until nothing is left to be done.
    pub(super) fn recover(&self) {
        self.start();
        self.finish();
    }

    /// Runs until nothing is left to be done.
    pub(super) fn finish(&self) {
        let idle = || self.status().state == crate::array::RecoveryState::Idle;
        assert!(self.world.run_until(idle), "it does not end: {:?}", self.status());
    }

    pub(super) fn status(&self) -> crate::array::RecoveryStatus {
        self.shared.recovery_status(std::time::Duration::from_nanos(now_ns(&self.world)))
    }

    /// Lets so much time pass.
    pub(super) fn rest(&self, seconds: u64) {
        let world = Rc::clone(&self.world);
        self.run(async move { world.sleep_ns(seconds * 1_000_000_000).await });
    }

    /// Stops the tasks.
    pub(super) fn stop(&self) {
        self.shared.stop_resync();
        assert!(self.world.run_until(|| self.ended.get()), "it does not stop");
    }

    /// Puts a drive into an empty slot on all cores; it is not a member yet.
    pub(super) fn put_drive(&mut self, slot: usize, disk: Rc<Disk>) {
        for array in &self.arrays {
            let drive = TestDrive { disk: Rc::clone(&disk), world: Rc::clone(&self.world) };
            array.set_drive(slot, drive, DATA_OFFSET).unwrap();
        }
        self.disks[slot] = disk;
    }

    /// Adds an empty drive.
    pub(super) fn add(&mut self, slot: usize) {
        let component = self.plan.geometry.component_bytes();
        let disk = Disk::new(component);
        disk.put(0, &vec![0xdd; component as usize]);
        self.put_drive(slot, disk);
        assert!(self.shared.add_member(slot));
    }

    /// Cuts the power: what was not flushed is lost. Goes on with what was recorded.
    pub(super) fn cut_power(self, seed: u64) -> Self {
        self.world.stop();
        self.disks.iter().for_each(|disk| disk.lose_cache());
        let mut plan = self.plan.clone();
        if let Some(wanted) = self.keeper.recorded.lock().unwrap().clone() {
            plan.states = wanted.members;
            plan.rebuild_from = wanted.rebuild_from;
            plan.resync_from = wanted.resync_from;
            plan.bad_blocks = wanted.bad_blocks;
        }
        Self::over(&plan, self.disks.clone(), seed)
    }

    /// Runs something to its end.
    pub(super) fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&result);
        self.world.spawn(async move {
            let value = future.await;
            *slot.borrow_mut() = Some(value);
        });
        assert!(self.world.run_until(|| result.borrow().is_some()), "it does not end");
        result.take().unwrap()
    }

    pub(super) fn write(&self, core: usize, at: u64, bytes: &[u8]) -> Result<(), ArrayError> {
        let mut buffer = self.pool.allocate(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        let array = Rc::clone(&self.arrays[core]);
        self.run(async move { array.write(at, buffer.freeze(), false).await })
    }

    pub(super) fn read(&self, core: usize, at: u64, len: usize) -> Result<Vec<u8>, ArrayError> {
        let array = Rc::clone(&self.arrays[core]);
        let mut buffer = self.pool.allocate(len).unwrap();
        buffer.fill(0xee);
        self.run(async move {
            match array.read(at, buffer).await {
                Ok(buffer) => Ok(buffer.to_vec()),
                Err(unread) => Err(unread.error),
            }
        })
    }

    /// Everything that the array holds, read through it.
    pub(super) fn contents(&self) -> Vec<u8> {
        let (step, capacity) = (64 << 10, self.plan.geometry.capacity_bytes());
        let mut all = Vec::new();
        for (turn, at) in (0..capacity).step_by(step).enumerate() {
            let len = (step as u64).min(capacity - at) as usize;
            all.extend(
                self.read(turn % 2, at, len).unwrap_or_else(|error| panic!("{at}: {error}")),
            );
        }
        all
    }

    /// Checks that the disks hold exactly what they should for these contents.
    pub(super) fn assert_holds(&self, contents: &[u8]) {
        let expected = disks_with(&self.plan.geometry, contents);
        for (slot, (disk, expected)) in self.disks.iter().zip(&expected).enumerate() {
            let (disk, expected) = (disk.data(), expected.data());
            let used = used_bytes(&self.plan.geometry, slot);
            let wrong = (0..used).find(|&at| disk[at] != expected[at]);
            assert!(wrong.is_none(), "slot {slot} is wrong at {wrong:?}");
        }
    }
}

/// How much of a member's data area the array uses: all of it, but for the last chunk of a RAID 10
/// with an odd number of members.
fn used_bytes(geometry: &Geometry, slot: usize) -> usize {
    let range = geometry.member_range(slot, 0, geometry.capacity_bytes());
    match geometry.parities() {
        0 => range.end as usize,
        _ => geometry.component_bytes() as usize,
    }
}

/// Pseudo-random bytes, with some zeros among them.
pub(super) fn contents(len: usize, seed: u64) -> Vec<u8> {
    let mut random = crate::sim::world::Random::new(seed);
    let mut bytes = Vec::with_capacity(len + 4096);
    while bytes.len() < len {
        match random.below(6) {
            0 => bytes.extend([0; 4096]),
            _ => (0..64).for_each(|_| bytes.extend(random.next().to_le_bytes())),
        }
    }
    bytes.truncate(len);
    bytes
}

/// Disks that hold these contents, with copies or right parity.
pub(super) fn disks_with(geometry: &Geometry, contents: &[u8]) -> Vec<Rc<Disk>> {
    let disks: Vec<_> =
        (0..geometry.members()).map(|_| Disk::new(geometry.component_bytes())).collect();
    for extent in geometry.extents(0, geometry.capacity_bytes()) {
        for place in (0..extent.copies).map(|copy| extent.place(copy)) {
            let from = extent.position_bytes as usize;
            disks[place.slot]
                .put(place.offset_bytes, &contents[from..][..extent.len_bytes as usize]);
        }
    }
    if geometry.parities() > 0 {
        (0..geometry.rows()).for_each(|row| put_parity(geometry, &disks, row));
    }
    disks
}

/// Gives a row the parity that it should have, by the definition.
fn put_parity(geometry: &Geometry, disks: &[Rc<Disk>], row: u64) {
    let chunk = CHUNK as usize;
    let at = geometry.row_component_offset(row);
    let (mut p, mut q) = (vec![0; chunk], vec![0; chunk]);
    for index in (0..geometry.data_chunks()).rev() {
        let mut data = vec![0; chunk];
        let slot = geometry.data_slot(row, index);
        disks[slot].memory.read_now(DATA_OFFSET + at, &mut data).unwrap();
        for byte in 0..chunk {
            p[byte] ^= data[byte];
            let carry = if q[byte] & 0x80 != 0 { 0x1d } else { 0 };
            q[byte] = (q[byte] << 1) ^ carry ^ data[byte];
        }
    }
    disks[geometry.parity_slot(row)].put(at, &p);
    if let Some(slot) = geometry.q_slot(row) {
        disks[slot].put(at, &q);
    }
}

/// An array of each redundant level, in several widths. Two MiB of component.
pub(super) fn every_level() -> Vec<Plan> {
    let plan = |level, members| Plan::new(level, members, 2 << 20);
    vec![
        plan(Level::Raid1, 2),
        plan(Level::Raid1, 3),
        plan(Level::Raid10, 4),
        plan(Level::Raid10, 5),
        plan(Level::Raid5, 3),
        plan(Level::Raid5, 6),
        plan(Level::Raid6, 4),
        plan(Level::Raid6, 7),
    ]
}
