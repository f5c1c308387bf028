//! A simulated drive: delays, reordering, a volatile cache, torn writes, injected errors.
//!
//! There are two images of the drive: what reads see, and what survives a power cut. A write is
//! applied to the first at some moment between submission and completion, whole or in two parts.
//! It reaches the second with a flush that begins after its completion, with its own FUA, or (on
//! drives without a cache) when it completes. A power cut leaves in every block the surviving
//! value or any of those written later, applied or only submitted, each block by itself.
//!
//! A write that is told to fail applies any part of itself. A flush that fails leaves what it was
//! for in the cache for ever: no later flush saves it.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use super::world::World;
use crate::buffer::{Buffer, SharedBuffer};
use crate::drive::{Drive, DriveError, ReadFailure};

/// The simulated drives' block size.
pub(crate) const BLOCK_BYTES: usize = 512;

/// What kinds of operations an injected error hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    Zero,
}

/// Errors to come, counted over all operations of all drives.
#[derive(Default)]
pub(crate) struct Faults {
    calls: Cell<u64>,
    plan: Cell<Option<Plan>>,
    injected: Cell<u64>,
}

/// One planned error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The call that fails, counted from 0 since the plan was made.
    pub(crate) at_call: u64,
    pub(crate) error: DriveError,
    /// Only this kind of operation; others pass, and the error waits for the next one that fits.
    pub(crate) only: Option<Kind>,
    /// So many operations that fit fail.
    pub(crate) times: u64,
}

impl Faults {
    pub(crate) fn plan(&self, plan: Option<Plan>) {
        self.calls.set(0);
        self.plan.set(plan);
    }

    /// Operations since the plan was made.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.get()
    }

    /// Errors injected so far.
    pub(crate) fn injected(&self) -> u64 {
        self.injected.get()
    }

    /// Lets operations pass uncounted until [`Self::resume`].
    pub(crate) fn suspend(&self) -> (u64, Option<Plan>) {
        (self.calls.get(), self.plan.take())
    }

    pub(crate) fn resume(&self, (calls, plan): (u64, Option<Plan>)) {
        self.calls.set(calls);
        self.plan.set(plan);
    }

    fn next(&self, kind: Kind) -> Option<DriveError> {
        let call = self.calls.get();
        self.calls.set(call + 1);
        let plan = self.plan.get()?;
        // What makes no sense for an operation is not injected into it.
        let fits = match plan.error {
            DriveError::NoSpace => matches!(kind, Kind::Write | Kind::Zero),
            DriveError::Unsupported => matches!(kind, Kind::Write | Kind::Zero),
            _ => true,
        };
        if call < plan.at_call || !fits || plan.only.is_some_and(|only| only != kind) {
            return None;
        }
        let times = plan.times - 1;
        self.plan.set((times > 0).then_some(Plan { times, ..plan }));
        self.injected.set(self.injected.get() + 1);
        Some(plan.error)
    }
}

/// A write that has begun and not ended.
struct UnderWay {
    id: u64,
    first_block: usize,
    data: Rc<[u8]>,
}

/// A part of a write that was applied, and may not survive yet.
struct Applied {
    sequence: u64,
    id: u64,
    first_block: usize,
    data: Rc<[u8]>,
    /// Counter of the disk's events when the write completed.
    completed: Option<u64>,
    /// A flush for it has failed.
    is_lost: bool,
}

/// The drive itself; it outlives the worlds that use it.
pub(crate) struct Disk {
    pub(crate) name: usize,
    visible: Vec<u8>,
    surviving: Vec<u8>,
    /// By block: the sequence number of what survives there.
    surviving_sequence: Vec<u64>,
    applied: Vec<Applied>,
    under_way: Vec<UnderWay>,
    next: u64,
    has_volatile_cache: bool,
    can_zero: bool,
}

impl Disk {
    pub(crate) fn new(name: usize, size_bytes: usize, cache: bool, can_zero: bool) -> Self {
        Self {
            name,
            visible: vec![0; size_bytes],
            surviving: vec![0; size_bytes],
            surviving_sequence: vec![0; size_bytes / BLOCK_BYTES],
            applied: Vec::new(),
            under_way: Vec::new(),
            next: 1,
            has_volatile_cache: cache,
            can_zero,
        }
    }

    /// What reads see.
    pub(crate) fn visible(&self) -> &[u8] {
        &self.visible
    }

    /// What survives a power cut at the least.
    pub(crate) fn surviving(&self) -> &[u8] {
        &self.surviving
    }

    /// Fills both images, before the first use.
    pub(crate) fn fill(&mut self, mut byte: impl FnMut(usize) -> u8) {
        for block in 0..self.surviving_sequence.len() {
            let value = byte(block);
            let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
            self.visible[range.clone()].fill(value);
            self.surviving[range].fill(value);
        }
    }

    /// The power fails: of what does not survive for sure, `keeps` decides block by block.
    pub(crate) fn cut_power(&mut self, mut keeps: impl FnMut() -> bool) {
        let applied = std::mem::take(&mut self.applied);
        let under_way = std::mem::take(&mut self.under_way);
        let newer = applied
            .iter()
            .map(|applied| (applied.sequence, applied.first_block, &applied.data))
            .chain(under_way.iter().map(|write| (u64::MAX, write.first_block, &write.data)));
        for (sequence, first_block, data) in newer {
            for (index, block) in data.chunks(BLOCK_BYTES).enumerate() {
                let at = first_block + index;
                if sequence > self.surviving_sequence[at] && keeps() {
                    self.surviving[at * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(block);
                }
            }
        }
        self.visible.copy_from_slice(&self.surviving);
    }

    /// The process ends but the drives keep their power: what was applied stays, and `keeps`
    /// decides which of the writes under way are still carried out. A drive whose flush failed has
    /// recovered when the next process comes: what becomes of members that have failed is not this
    /// simulation's business.
    pub(crate) fn lose_process(&mut self, mut keeps: impl FnMut() -> bool) {
        let ids: Vec<u64> = self.under_way.iter().map(|write| write.id).collect();
        for id in ids {
            if keeps() {
                self.apply(id, 0..usize::MAX);
            }
            self.complete(id, !self.has_volatile_cache);
        }
        self.applied.iter_mut().for_each(|applied| applied.is_lost = false);
    }

    fn begin(&mut self, offset_bytes: u64, data: Rc<[u8]>) -> u64 {
        let id = self.tick();
        let first_block = offset_bytes as usize / BLOCK_BYTES;
        self.under_way.push(UnderWay { id, first_block, data });
        id
    }

    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Applies some blocks of a write, counted from its first one.
    fn apply(&mut self, id: u64, blocks: Range<usize>) {
        let Some(write) = self.under_way.iter().find(|write| write.id == id) else { return };
        let count = write.data.len() / BLOCK_BYTES;
        let blocks = blocks.start.min(count)..blocks.end.min(count);
        let data: Rc<[u8]> =
            write.data[blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES].into();
        let first_block = write.first_block + blocks.start;
        self.visible[first_block * BLOCK_BYTES..][..data.len()].copy_from_slice(&data);
        let sequence = self.tick();
        let applied = Applied { sequence, id, first_block, data, completed: None, is_lost: false };
        self.applied.push(applied);
    }

    fn complete(&mut self, id: u64, survives: bool) {
        let now = self.tick();
        self.under_way.retain(|write| write.id != id);
        for applied in self.applied.iter_mut().filter(|applied| applied.id == id) {
            applied.completed = Some(now);
        }
        if survives {
            self.save(|applied| applied.id == id);
        }
    }

    /// What is meant survives from now on.
    fn save(&mut self, is_meant: impl Fn(&Applied) -> bool) {
        let (surviving, sequences) = (&mut self.surviving, &mut self.surviving_sequence);
        self.applied.retain(|applied| {
            if !is_meant(applied) {
                return true;
            }
            for (index, block) in applied.data.chunks(BLOCK_BYTES).enumerate() {
                let at = applied.first_block + index;
                if applied.sequence > sequences[at] {
                    sequences[at] = applied.sequence;
                    surviving[at * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(block);
                }
            }
            false
        });
    }
}

/// One core's handle on a simulated drive.
pub(crate) struct SimDrive {
    pub(crate) world: Rc<World>,
    pub(crate) disk: Rc<RefCell<Disk>>,
    pub(crate) faults: Rc<Faults>,
    /// Called before every write and zeroing.
    pub(crate) before_write: Rc<dyn Fn()>,
}

impl SimDrive {
    async fn delay(&self) {
        // Mostly quick, now and then slow: later operations overtake.
        let bound = if self.world.one_in(8) { 400_000 } else { 40_000 };
        self.world.sleep_ns(1 + self.world.below(bound)).await;
    }

    async fn change(
        &self,
        kind: Kind,
        offset_bytes: u64,
        data: Rc<[u8]>,
        fua: bool,
    ) -> Result<(), DriveError> {
        (self.before_write)();
        let blocks = data.len() / BLOCK_BYTES;
        let fault = self.faults.next(kind);
        let name = self.disk.borrow().name;
        let id = self.disk.borrow_mut().begin(offset_bytes, data);
        self.world.trace(|| {
            format!("drive {name}: {kind:?} {id} at {offset_bytes}, {blocks} blocks, fua {fua}")
        });
        self.delay().await;
        if let Some(error) = fault {
            let (a, b) = (self.world.below(blocks as u64 + 1), self.world.below(blocks as u64 + 1));
            self.disk.borrow_mut().apply(id, a.min(b) as usize..a.max(b) as usize);
            self.delay().await;
            let mut disk = self.disk.borrow_mut();
            let survives = !disk.has_volatile_cache;
            disk.complete(id, survives);
            self.world.trace(|| format!("drive {name}: {id} fails: {error}"));
            return Err(error);
        }
        let first = if self.world.one_in(2) {
            blocks
        } else {
            self.world.below(blocks as u64 + 1) as usize
        };
        self.disk.borrow_mut().apply(id, 0..first);
        if first < blocks {
            self.delay().await;
            self.disk.borrow_mut().apply(id, first..blocks);
        }
        self.delay().await;
        let mut disk = self.disk.borrow_mut();
        let survives = fua || !disk.has_volatile_cache;
        disk.complete(id, survives);
        self.world.trace(|| format!("drive {name}: {id} done"));
        Ok(())
    }
}

impl Drive for SimDrive {
    async fn read(&self, offset_bytes: u64, mut buffer: Buffer) -> Result<Buffer, ReadFailure> {
        let fault = self.faults.next(Kind::Read);
        self.delay().await;
        let name = self.disk.borrow().name;
        if let Some(error) = fault {
            buffer.fill(0xbd);
            self.world.trace(|| format!("drive {name}: read at {offset_bytes} fails: {error}"));
            return Err(ReadFailure::new(error, buffer));
        }
        let len = buffer.len();
        buffer.copy_from_slice(&self.disk.borrow().visible[offset_bytes as usize..][..len]);
        self.world.trace(|| format!("drive {name}: read at {offset_bytes}, {len} bytes"));
        self.delay().await;
        Ok(buffer)
    }

    async fn write(
        &self,
        offset_bytes: u64,
        data: SharedBuffer,
        fua: bool,
    ) -> Result<(), DriveError> {
        self.change(Kind::Write, offset_bytes, data[..].into(), fua).await
    }

    async fn flush(&self) -> Result<(), DriveError> {
        let start = self.disk.borrow_mut().tick();
        let fault = self.faults.next(Kind::Flush);
        self.delay().await;
        let mut disk = self.disk.borrow_mut();
        let is_covered = |applied: &Applied| applied.completed.is_some_and(|at| at < start);
        if let Some(error) = fault {
            disk.applied.iter_mut().filter(|a| is_covered(a)).for_each(|a| a.is_lost = true);
            self.world.trace(|| format!("drive {}: flush fails: {error}", disk.name));
            return Err(error);
        }
        disk.save(|applied| is_covered(applied) && !applied.is_lost);
        self.world.trace(|| format!("drive {}: flushed", disk.name));
        Ok(())
    }

    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        _deallocate: bool,
    ) -> Result<(), DriveError> {
        if !self.disk.borrow().can_zero {
            return Err(DriveError::Unsupported);
        }
        let zeros = vec![0; len_bytes as usize].into();
        self.change(Kind::Zero, offset_bytes, zeros, false).await
    }

    fn has_volatile_cache(&self) -> bool {
        self.disk.borrow().has_volatile_cache
    }

    fn size_bytes(&self) -> u64 {
        self.disk.borrow().visible.len() as u64
    }

    fn block_size_bytes(&self) -> u32 {
        BLOCK_BYTES as u32
    }
}
