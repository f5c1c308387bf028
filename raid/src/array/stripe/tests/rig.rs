//! What the tests of this folder run on: arrays of parity levels on several cores of a simulated
//! world, over drives in memory that take their time and fail on request; and a model of what each
//! block may hold.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use crate::array::{
    Array, ArrayError, BadRange, CoreTimer, IN_SYNC, IntentLayout, MemberState, Settings, Shared,
};
use crate::buffer::{Buffer, Pool, SharedBuffer};
use crate::drive::{Drive, DriveError, ReadFailure};
use crate::geometry::{Geometry, Level, Role};
use crate::memory::MemoryDrive;
use crate::mesh::Mesh;
use crate::sim::world::{Clock, World};

pub(super) const BLOCK: usize = 512;
pub(super) const DATA_OFFSET: u64 = 4096;

/// What happens to an operation of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A read fails, and so do all later ones of the same blocks, until they are written.
    Unreadable,
    /// A read fails, once.
    ReadOnce,
    /// A write stops half way.
    Write,
    /// A write finds no space half way.
    NoSpace,
    /// The drive is gone, half way.
    Gone,
    /// The operation does not end; a write is carried out much later.
    TimedOut,
}

/// What is wrong with the drives of a rig.
#[derive(Default)]
pub(super) struct Faults {
    /// Reads and writes so far.
    pub(super) calls: Cell<u64>,
    /// The calls that fail, and how.
    pub(super) plan: RefCell<Vec<(u64, Fault)>>,
    /// Faults that have happened, and to which slot.
    pub(super) happened: RefCell<Vec<(usize, Fault)>>,
    /// Blocks that cannot be read, by slot.
    pub(super) unreadable: RefCell<HashSet<(usize, u64)>>,
    /// Every write to these slots finds no space.
    pub(super) full: RefCell<HashSet<usize>>,
    pub(super) gone: RefCell<HashSet<usize>>,
    pub(super) cannot_zero: RefCell<HashSet<usize>>,
    pub(super) reads: Cell<u64>,
    pub(super) writes: Cell<u64>,
}

pub(super) struct TestDrive {
    memory: MemoryDrive,
    world: Rc<World>,
    faults: Rc<Faults>,
    slot: usize,
}

impl TestDrive {
    async fn pause(&self) {
        self.world.sleep_ns(self.world.below(40_000)).await;
    }

    /// The fault that this call meets; `is_read` says which ones it can.
    fn next_fault(&self, is_read: bool) -> Option<Fault> {
        let call = self.faults.calls.get();
        self.faults.calls.set(call + 1);
        if self.faults.gone.borrow().contains(&self.slot) {
            return Some(Fault::Gone);
        }
        if !is_read && self.faults.full.borrow().contains(&self.slot) {
            return Some(Fault::NoSpace);
        }
        let mut plan = self.faults.plan.borrow_mut();
        let fits = |fault| match fault {
            Fault::Unreadable | Fault::ReadOnce => is_read,
            Fault::Write | Fault::NoSpace => !is_read,
            Fault::Gone | Fault::TimedOut => true,
        };
        let due = plan.iter().position(|&(at, fault)| at <= call && fits(fault))?;
        let (_, fault) = plan.remove(due);
        self.faults.happened.borrow_mut().push((self.slot, fault));
        if fault == Fault::Gone {
            self.faults.gone.borrow_mut().insert(self.slot);
        }
        self.world.trace(|| format!("slot {}: {fault:?} at call {call}", self.slot));
        Some(fault)
    }

    fn blocks(offset: u64, len: usize) -> std::ops::Range<u64> {
        offset / BLOCK as u64..(offset + len as u64) / BLOCK as u64
    }
}

impl Drive for TestDrive {
    async fn read(&self, offset: u64, mut buffer: Buffer) -> Result<Buffer, ReadFailure> {
        assert!(offset >= DATA_OFFSET, "a read outside the data area");
        self.faults.reads.set(self.faults.reads.get() + 1);
        let fault = self.next_fault(true);
        self.pause().await;
        let eio = DriveError::Io { errno: 5 };
        let blocks = Self::blocks(offset, buffer.len());
        match fault {
            Some(Fault::Gone) => return Err(ReadFailure::new(DriveError::Gone, buffer)),
            Some(Fault::ReadOnce) => return Err(ReadFailure::new(eio, buffer)),
            Some(Fault::TimedOut) => {
                return Err(ReadFailure { error: DriveError::TimedOut, buffer: None });
            }
            Some(Fault::Unreadable) => {
                let mut unreadable = self.faults.unreadable.borrow_mut();
                unreadable.extend(blocks.clone().map(|block| (self.slot, block)));
            }
            _ => {}
        }
        let unreadable = self.faults.unreadable.borrow();
        if blocks.into_iter().any(|block| unreadable.contains(&(self.slot, block))) {
            return Err(ReadFailure::new(eio, buffer));
        }
        self.memory.read_now(offset, &mut buffer).unwrap();
        Ok(buffer)
    }

    async fn write(&self, offset: u64, data: SharedBuffer, _fua: bool) -> Result<(), DriveError> {
        assert!(offset >= DATA_OFFSET, "a write outside the data area");
        self.faults.writes.set(self.faults.writes.get() + 1);
        let fault = self.next_fault(false);
        self.pause().await;
        let half = data.len() / BLOCK / 2 * BLOCK;
        let apply = |from: usize, to: usize| {
            self.memory.write_now(offset + from as u64, &data[from..to]).unwrap();
            for block in Self::blocks(offset + from as u64, to - from) {
                self.faults.unreadable.borrow_mut().remove(&(self.slot, block));
            }
        };
        apply(0, half);
        match fault {
            Some(Fault::Write) => return Err(DriveError::Io { errno: 5 }),
            Some(Fault::NoSpace) => return Err(DriveError::NoSpace),
            Some(Fault::Gone) => return Err(DriveError::Gone),
            Some(Fault::TimedOut) => {
                let memory = self.memory.clone();
                self.world.after(3_000_000, move || memory.write_now(offset, &data).unwrap());
                return Err(DriveError::TimedOut);
            }
            _ => {}
        }
        self.pause().await;
        apply(half, data.len());
        Ok(())
    }

    async fn flush(&self) -> Result<(), DriveError> {
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, _: bool) -> Result<(), DriveError> {
        self.pause().await;
        if self.faults.cannot_zero.borrow().contains(&self.slot) {
            return Err(DriveError::Unsupported);
        }
        let zeros = vec![0; len as usize];
        let half = len as usize / BLOCK / 2 * BLOCK;
        self.memory.write_now(offset, &zeros[..half]).unwrap();
        match self.next_fault(false) {
            Some(Fault::NoSpace) => return Err(DriveError::NoSpace),
            Some(Fault::Gone) => return Err(DriveError::Gone),
            Some(Fault::TimedOut) => return Err(DriveError::TimedOut),
            Some(Fault::Write) => return Err(DriveError::Io { errno: 5 }),
            _ => {}
        }
        self.memory.write_now(offset, &zeros).unwrap();
        for block in Self::blocks(offset, len as usize) {
            self.faults.unreadable.borrow_mut().remove(&(self.slot, block));
        }
        Ok(())
    }

    fn has_volatile_cache(&self) -> bool {
        true
    }

    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn block_size_bytes(&self) -> u32 {
        BLOCK as u32
    }
}

/// From what a rig is made.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) level: Level,
    pub(super) members: usize,
    pub(super) chunk: u32,
    pub(super) rows: u64,
    pub(super) cores: usize,
    /// By slot; nothing: all are in sync.
    pub(super) states: Vec<MemberState>,
    pub(super) rebuild_from: Option<u64>,
    pub(super) resync_from: u64,
    pub(super) bad_blocks: Vec<Vec<BadRange>>,
    pub(super) intent: IntentLayout,
}

impl Plan {
    pub(super) fn new(level: Level, members: usize, chunk: u32, rows: u64) -> Self {
        Self {
            level,
            members,
            chunk,
            rows,
            cores: 2,
            states: vec![MemberState::InSync; members],
            rebuild_from: None,
            resync_from: IN_SYNC,
            bad_blocks: Vec::new(),
            intent: IntentLayout::NONE,
        }
    }

    pub(super) fn geometry(&self) -> Geometry {
        let component = self.rows * u64::from(self.chunk);
        Geometry::new(self.level, self.members, self.chunk, component).unwrap()
    }

    pub(super) fn drives(&self) -> Vec<MemoryDrive> {
        let size = DATA_OFFSET + self.rows * u64::from(self.chunk);
        (0..self.members).map(|_| MemoryDrive::new(size)).collect()
    }
}

pub(super) struct Rig {
    pub(super) world: Rc<World>,
    pub(super) arrays: Vec<Rc<Array<TestDrive>>>,
    pub(super) drives: Vec<MemoryDrive>,
    pub(super) shared: Arc<Shared>,
    pub(super) faults: Rc<Faults>,
    pub(super) pool: Pool,
    pub(super) plan: Plan,
}

impl Rig {
    pub(super) fn new(plan: &Plan, seed: u64) -> Self {
        Self::over(plan, plan.drives(), seed)
    }

    pub(super) fn over(plan: &Plan, drives: Vec<MemoryDrive>, seed: u64) -> Self {
        let geometry = plan.geometry();
        let world = World::new(seed);
        let faults = Rc::new(Faults::default());
        let shared = Shared::new(Settings {
            service: 1,
            data_offsets_bytes: vec![DATA_OFFSET; plan.members],
            cores: plan.cores,
            members: plan.states.clone(),
            rebuild_from: plan.rebuild_from,
            resync_position_bytes: plan.resync_from,
            bad_blocks: plan.bad_blocks.clone(),
            intent: plan.intent.clone(),
            read_error_limit: 1_000_000,
            ..Settings::new(geometry)
        });
        let pool = Pool::new(64 << 20, 4 << 20).unwrap();
        let endpoints = Mesh::new(plan.cores, world.doorbell());
        let arrays: Vec<_> = endpoints
            .into_iter()
            .map(|endpoint| {
                let endpoint = Rc::new(endpoint);
                let bell = Rc::clone(&endpoint);
                world.add_core(move || bell.handle_doorbell());
                let drive = |(slot, memory): (usize, &MemoryDrive)| {
                    let memory = memory.clone();
                    let (world, faults) = (Rc::clone(&world), Rc::clone(&faults));
                    let in_use =
                        matches!(plan.states[slot], MemberState::InSync | MemberState::Rebuilding);
                    in_use.then_some(TestDrive { memory, world, faults, slot })
                };
                let slots = drives.iter().enumerate().map(drive).collect();
                let timer: Rc<dyn CoreTimer> = Rc::new(Clock(Rc::clone(&world)));
                let array =
                    Array::with_slots(Arc::clone(&shared), slots, endpoint, pool.clone()).unwrap();
                Rc::new(array.with_timer(timer))
            })
            .collect();
        for array in &arrays {
            for _ in 0..16 {
                let array = Rc::clone(array);
                world.spawn(async move {
                    array.serve().await;
                });
            }
            let array = Rc::clone(array);
            world.spawn(async move { array.resume().await });
        }
        Self { world, arrays, drives, shared, faults, pool, plan: plan.clone() }
    }

    /// Members without which the array has failed, as their drives are gone.
    pub(super) fn needed(&self) -> Vec<usize> {
        let is_gone = |slot: &usize| {
            self.shared.member_fault(*slot).is_some_and(crate::array::MemberFault::is_gone)
        };
        self.in_use().into_iter().filter(is_gone).collect()
    }

    /// The drive of a slot is back, and each core has it.
    pub(super) fn put_back(&self, slot: usize) {
        self.faults.gone.borrow_mut().remove(&slot);
        for array in &self.arrays {
            let (world, faults) = (Rc::clone(&self.world), Rc::clone(&self.faults));
            let memory = self.drives[slot].clone();
            let drive = TestDrive { memory, world, faults, slot };
            array.set_drive(slot, drive, DATA_OFFSET).unwrap();
        }
    }

    /// Has the cores hold writes of streams.
    pub(super) fn gather(&self) {
        for array in &self.arrays {
            let array = Rc::clone(array);
            self.world.spawn(async move { array.gather().await });
        }
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

    pub(super) fn capacity(&self) -> usize {
        self.shared.geometry().capacity_bytes() as usize
    }

    pub(super) fn buffer(&self, bytes: &[u8]) -> SharedBuffer {
        let mut buffer = self.pool.allocate(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer.freeze()
    }

    pub(super) fn write(&self, core: usize, at: usize, bytes: &[u8]) -> Result<(), ArrayError> {
        let (array, data) = (Rc::clone(&self.arrays[core]), self.buffer(bytes));
        self.run(async move { array.write(at as u64, data, false).await })
    }

    pub(super) fn read(&self, core: usize, at: usize, len: usize) -> Result<Vec<u8>, ArrayError> {
        let array = Rc::clone(&self.arrays[core]);
        let mut buffer = self.pool.allocate(len).unwrap();
        buffer.fill(0xee);
        self.run(async move {
            match array.read(at as u64, buffer).await {
                Ok(buffer) => Ok(buffer.to_vec()),
                Err(unread) => Err(unread.error),
            }
        })
    }

    /// A chunk as it is on its member.
    pub(super) fn chunk(&self, row: u64, slot: usize) -> Vec<u8> {
        let chunk = self.plan.chunk as usize;
        let mut bytes = vec![0; chunk];
        self.drives[slot].read_now(DATA_OFFSET + row * chunk as u64, &mut bytes).unwrap();
        bytes
    }

    /// P and Q as they should be on the row's members, from its data there.
    pub(super) fn expected_parity(&self, row: u64) -> (Vec<u8>, Vec<u8>) {
        let geometry = self.shared.geometry();
        let chunk = self.plan.chunk as usize;
        let (mut p, mut q) = (vec![0; chunk], vec![0; chunk]);
        for index in (0..geometry.data_chunks()).rev() {
            let data = self.chunk(row, geometry.data_slot(row, index));
            for at in 0..chunk {
                p[at] ^= data[at];
                let carry = if q[at] & 0x80 != 0 { 0x1d } else { 0 };
                q[at] = (q[at] << 1) ^ carry ^ data[at];
            }
        }
        (p, q)
    }

    /// Checks the parity of all rows whose members are all in use.
    pub(super) fn check_parity(&self) {
        let geometry = self.shared.geometry();
        assert!(self.in_use().len() == self.plan.members);
        for row in 0..geometry.rows() {
            let (p, q) = self.expected_parity(row);
            for slot in 0..self.plan.members {
                match geometry.role_of(row, slot) {
                    Role::P => assert!(self.chunk(row, slot) == p, "P of row {row}"),
                    Role::Q => assert!(self.chunk(row, slot) == q, "Q of row {row}"),
                    Role::Data(_) => {}
                }
            }
        }
    }

    pub(super) fn in_use(&self) -> Vec<usize> {
        let states = self.shared.member_states();
        (0..self.plan.members).filter(|&slot| states[slot] == MemberState::InSync).collect()
    }

    /// Everything that the array holds, read through it.
    pub(super) fn contents(&self) -> Vec<u8> {
        let step = 256 << 10;
        let mut all = Vec::new();
        for (turn, at) in (0..self.capacity()).step_by(step).enumerate() {
            let len = step.min(self.capacity() - at);
            let read = self.read(turn % self.plan.cores, at, len);
            all.extend(read.unwrap_or_else(|error| panic!("{at}: {error}")));
        }
        all
    }

    /// Checks that each loss of more members that the level tolerates leaves everything readable
    /// and the same; and parity, if nothing is lost yet. Nothing may be under way.
    pub(super) fn check_losses(&self, contents: &[u8]) {
        let members = self.plan.members;
        let in_use = self.in_use();
        let lost = members - in_use.len();
        let tolerated = self.shared.geometry().tolerance();
        assert!(lost <= tolerated, "{lost} members are lost");
        if lost == 0 {
            self.check_parity();
        }
        let mut sets: Vec<Vec<usize>> = vec![vec![]];
        if lost < tolerated {
            sets = in_use.iter().map(|&slot| vec![slot]).collect();
        }
        if lost + 2 <= tolerated {
            for (at, &first) in in_use.iter().enumerate() {
                sets.extend(in_use[at + 1..].iter().map(|&second| vec![first, second]));
            }
        }
        for set in sets {
            let mut plan = Plan { cores: 1, ..self.plan.clone() };
            plan.rebuild_from = None;
            plan.bad_blocks = (0..members).map(|slot| self.shared.bad_blocks(slot)).collect();
            for slot in 0..members {
                let is_there = in_use.contains(&slot) && !set.contains(&slot);
                plan.states[slot] =
                    if is_there { MemberState::InSync } else { MemberState::Missing };
            }
            let rest = Rig::over(&plan, self.drives.clone(), 1);
            assert!(rest.contents() == contents, "without {set:?} something else is read");
        }
    }
}

impl Drop for Rig {
    /// The tasks have the arrays, and these have the world with the tasks.
    fn drop(&mut self) {
        self.world.stop();
    }
}

/// A write, as the model knows it.
struct Written {
    /// In what it filled its blocks with.
    id: u64,
    began: u64,
    /// When it ended, with or without success; never: it is under way.
    ended: Option<u64>,
    succeeded: bool,
}

/// What each block may hold.
pub(super) struct Model {
    blocks: RefCell<Vec<Vec<usize>>>,
    writes: RefCell<Vec<Written>>,
    now: Cell<u64>,
}

impl Model {
    pub(super) fn new(capacity: usize) -> Rc<Self> {
        let zeros = Written { id: 0, began: 0, ended: Some(0), succeeded: true };
        Rc::new(Self {
            blocks: RefCell::new(vec![vec![0]; capacity / BLOCK]),
            writes: RefCell::new(vec![zeros]),
            now: Cell::new(1),
        })
    }

    fn tick(&self) -> u64 {
        self.now.set(self.now.get() + 1);
        self.now.get()
    }

    /// A write begins; answers its number, and what to write (zeros, if it is one of zeros).
    pub(super) fn begin(&self, at: usize, len: usize, zeros: bool) -> (usize, Vec<u8>) {
        let number = self.writes.borrow().len();
        let id = if zeros { 0 } else { number as u64 };
        let began = self.tick();
        self.writes.borrow_mut().push(Written { id, began, ended: None, succeeded: false });
        let mut bytes = vec![0; len];
        for (index, block) in bytes.chunks_mut(BLOCK).enumerate() {
            self.blocks.borrow_mut()[at / BLOCK + index].push(number);
            block.copy_from_slice(&pattern(id, at / BLOCK + index));
        }
        (number, bytes)
    }

    pub(super) fn end(&self, number: usize, succeeded: bool) {
        let now = self.tick();
        let write = &mut self.writes.borrow_mut()[number];
        (write.ended, write.succeeded) = (Some(now), succeeded);
    }

    pub(super) fn time(&self) -> u64 {
        self.tick()
    }

    /// Whether a write of a block has not ended, or has failed.
    pub(super) fn is_half_written(&self, at: usize) -> bool {
        let writes = self.writes.borrow();
        let ended = |&number: &usize| writes[number].ended.is_some() && writes[number].succeeded;
        !self.blocks.borrow()[at / BLOCK].iter().all(ended)
    }

    /// Checks what a read saw that began at `began` and has just ended.
    pub(super) fn check(&self, at: usize, bytes: &[u8], began: u64) {
        let writes = self.writes.borrow();
        for (index, block) in bytes.chunks(BLOCK).enumerate() {
            let number = at / BLOCK + index;
            let history = &self.blocks.borrow()[number];
            let is_allowed = history.iter().any(|&candidate| {
                let write = &writes[candidate];
                let is_replaced = history.iter().map(|&other| &writes[other]).any(|other| {
                    let ended = other.ended.unwrap_or(u64::MAX);
                    // What failed may still be carried out later, and be replaced by nothing.
                    let was_before = write.ended.is_some_and(|end| end < other.began);
                    other.succeeded && ended < began && was_before
                });
                !is_replaced && block == pattern(write.id, number)
            });
            let id = u64::from_le_bytes(block[..8].try_into().unwrap());
            assert!(is_allowed, "block {number} holds {id}, which is old or was never there");
        }
    }
}

/// What a write fills a block with.
fn pattern(id: u64, block: usize) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    if id != 0 {
        for (index, part) in bytes.chunks_mut(8).enumerate() {
            let mixed = (id << 32 | (block as u64) << 8 | index as u64).wrapping_mul(0x9e37_79b9);
            part.copy_from_slice(&if index == 0 { id } else { mixed }.to_le_bytes());
        }
    }
    bytes
}
