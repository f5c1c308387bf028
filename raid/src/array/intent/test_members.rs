//! Members for tests: drives in memory in the simulated world, with delays, writes that are torn
//! until they end, caches, failures, and a keeper that takes its time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::super::error::{ArrayError, WriteFailure};
use super::super::reserve::Reserve;
use super::Members;
use crate::buffer::{Buffer, Pool, SharedBuffer};
use crate::drive::DriveError;
use crate::sim::world::World;

const SECTOR: usize = 512;

/// What fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fails {
    Write(DriveError),
    Flush,
}

/// A failure to come: so many operations of the kind on the member succeed before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) slot: usize,
    pub(super) what: Fails,
    pub(super) after: u64,
}

/// Is told of a flush of a member that it begins (false), or has succeeded (true).
type OnFlush = Box<dyn Fn(usize, bool)>;

/// See the file's head.
pub(super) struct TestMembers {
    pub(super) world: Rc<World>,
    drives: RefCell<Vec<Vec<u8>>>,
    writable: RefCell<Vec<bool>>,
    /// Members that failed, and whether that is recorded.
    failed: RefCell<Vec<Option<bool>>>,
    pub(super) fault: Cell<Option<Fault>>,
    /// How many members may fail.
    pub(super) tolerance: Cell<usize>,
    is_broken: Cell<bool>,
    pool: Pool,
    reserve: Reserve,
    /// All memory that commands share is in use.
    pub(super) is_short: Cell<bool>,
    /// Told when a flush begins and ends.
    pub(super) on_flush: RefCell<Option<OnFlush>>,
    /// Writes that have ended, by slot.
    pub(super) writes: RefCell<Vec<u64>>,
}

impl TestMembers {
    pub(super) fn new(world: &Rc<World>, slots: usize, drive_bytes: usize) -> Rc<Self> {
        Rc::new(Self {
            world: Rc::clone(world),
            drives: RefCell::new(vec![vec![0; drive_bytes]; slots]),
            writable: RefCell::new(vec![true; slots]),
            failed: RefCell::new(vec![None; slots]),
            fault: Cell::new(None),
            tolerance: Cell::new(slots),
            is_broken: Cell::new(false),
            pool: Pool::new(8 << 20, 1 << 20).unwrap(),
            reserve: super::new_reserve().unwrap(),
            is_short: Cell::new(false),
            on_flush: RefCell::default(),
            writes: RefCell::new(vec![0; slots]),
        })
    }

    /// What a loss of power would leave now, at the least and at the most: writes are durable, and
    /// those under way are there in part.
    pub(super) fn image(&self, slot: usize) -> Vec<u8> {
        self.drives.borrow()[slot].clone()
    }

    pub(super) fn look<T>(&self, slot: usize, look: impl FnOnce(&[u8]) -> T) -> T {
        look(&self.drives.borrow()[slot])
    }

    pub(super) fn put(&self, slot: usize, offset: usize, bytes: &[u8]) {
        self.drives.borrow_mut()[slot][offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn set_writable(&self, slot: usize, is_writable: bool) {
        self.writable.borrow_mut()[slot] = is_writable;
    }

    /// Whether the member counts as in use for who starts the array after a crash now: it takes
    /// writes, or it has failed and that is not recorded.
    pub(super) fn is_believed(&self, slot: usize) -> bool {
        self.writable.borrow()[slot] || self.failed.borrow()[slot] == Some(false)
    }

    /// A member that had failed is in use again.
    pub(super) fn forgive(&self, slot: usize) {
        self.failed.borrow_mut()[slot] = None;
    }

    pub(super) fn fail(&self, slot: usize) {
        if !std::mem::replace(&mut self.writable.borrow_mut()[slot], false) {
            return;
        }
        self.failed.borrow_mut()[slot] = Some(false);
        if self.failed.borrow().iter().flatten().count() > self.tolerance.get() {
            self.is_broken.set(true);
        }
    }

    fn fails(&self, slot: usize, is: impl Fn(Fails) -> bool) -> Option<Fails> {
        let fault = self.fault.get().filter(|fault| fault.slot == slot && is(fault.what))?;
        if fault.after > 0 {
            self.fault.set(Some(Fault { after: fault.after - 1, ..fault }));
            return None;
        }
        self.fault.set(None);
        Some(fault.what)
    }

    async fn rest(&self) {
        self.world.sleep_ns(self.world.below(20_000)).await;
    }
}

impl Members for TestMembers {
    fn slots(&self) -> usize {
        self.writable.borrow().len()
    }

    fn is_writable(&self, slot: usize) -> bool {
        self.writable.borrow()[slot]
    }

    fn is_degraded(&self) -> bool {
        self.writable.borrow().contains(&false)
    }

    async fn write(
        &self,
        slot: usize,
        offset_bytes: u64,
        data: SharedBuffer,
    ) -> Result<(), DriveError> {
        let fails = self.fails(slot, |what| matches!(what, Fails::Write(_)));
        let mut sectors: Vec<usize> = (0..data.len().div_ceil(SECTOR)).collect();
        // In any order, and with pauses.
        for at in (1..sectors.len()).rev() {
            sectors.swap(at, self.world.below(at as u64 + 1) as usize);
        }
        let most = sectors.len() as u64 + 1;
        if fails.is_some() {
            sectors.truncate(self.world.below(most) as usize);
        }
        let pause = self.world.below(most) as usize;
        self.rest().await;
        for (n, sector) in sectors.into_iter().enumerate() {
            if n == pause {
                self.rest().await;
            }
            let from = sector * SECTOR;
            let to = (from + SECTOR).min(data.len());
            self.put(slot, offset_bytes as usize + from, &data[from..to]);
        }
        self.rest().await;
        self.writes.borrow_mut()[slot] += 1;
        match fails {
            Some(Fails::Write(DriveError::NoSpace)) => Err(DriveError::NoSpace),
            Some(_) => {
                self.fail(slot);
                Err(DriveError::Io { errno: 5 })
            }
            None => Ok(()),
        }
    }

    async fn flush(&self, slot: usize) -> Result<(), DriveError> {
        let fails = self.fails(slot, |what| what == Fails::Flush).is_some();
        if let Some(tell) = &*self.on_flush.borrow() {
            tell(slot, false);
        }
        self.rest().await;
        if fails {
            self.fail(slot);
            return Err(DriveError::Io { errno: 5 });
        }
        if let Some(tell) = &*self.on_flush.borrow() {
            tell(slot, true);
        }
        Ok(())
    }

    async fn settled(&self) -> Result<(), ArrayError> {
        let is_recorded = |failed: &Option<bool>| *failed != Some(false);
        if !self.failed.borrow().iter().all(is_recorded) {
            self.rest().await;
            self.rest().await;
            self.failed.borrow_mut().iter_mut().flatten().for_each(|recorded| *recorded = true);
        }
        if self.is_broken.get() {
            return Err(ArrayError::WriteFailed(WriteFailure::ArrayFailed));
        }
        Ok(())
    }

    fn allocate(&self, len: usize) -> Option<Buffer> {
        self.pool.allocate(len).filter(|_| !self.is_short.get())
    }

    fn reserve(&self) -> &Reserve {
        &self.reserve
    }
}
