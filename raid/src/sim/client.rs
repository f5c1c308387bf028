//! Hosts: they write, zero, read and flush a few *hot* regions of an array from all its cores, so
//! that requests overlap all the time, and judge every answer by the model and the [`Ground`].

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use super::drive::SimDrive;
use super::ground::Ground;
use super::image::SECTOR_BYTES;
use super::model::{Asked, Model};
use super::runner::Story;
use super::value::{ZERO, decode, encode, show};
use super::world::World;
use crate::array::{Array, ArrayError};
use crate::buffer::{Buffer, Pool};

/// Everything that a host of a running array needs.
pub(crate) struct Scene {
    pub(crate) world: Rc<World>,
    pub(crate) arrays: Vec<Rc<Array<SimDrive>>>,
    pub(crate) pool: Pool,
    pub(crate) model: Rc<RefCell<Model>>,
    pub(crate) ground: Rc<Ground>,
    pub(crate) hot: Rc<[Range<usize>]>,
    pub(crate) story: Rc<RefCell<Story>>,
    /// Sectors of a block of the array.
    pub(crate) unit: usize,
    /// The array is being stopped: requests may be refused.
    pub(crate) is_stopping: Cell<bool>,
    /// The operator has taken parity as right that need not be.
    pub(crate) was_forced: Rc<Cell<bool>>,
    /// Writes that failed and may still be carried out.
    pub(crate) lingering: RefCell<Vec<Asked>>,
}

impl Scene {
    fn array(&self, core: usize) -> &Array<SimDrive> {
        &self.arrays[core]
    }

    /// A random core.
    pub(crate) fn any_core(&self) -> usize {
        self.world.below(self.arrays.len() as u64) as usize
    }

    /// Tells the model the answer to a write. One that failed because a drive did not answer may
    /// still be carried out later; and what an array that has failed shows of one that failed
    /// depends on which of its members can be read at the moment.
    fn answer(&self, asked: Asked, result: &Result<(), ArrayError>, fua: bool) {
        let has_failed = self.ground.shared.failure().is_some();
        if result.is_err() && (has_failed || self.ground.has_late_operations()) {
            self.lingering.borrow_mut().push(asked);
            return;
        }
        self.model.borrow_mut().answer(&asked, result.is_ok(), fua || self.is_durable());
    }

    /// Once nothing is late any more, what failed cannot change anything either.
    pub(crate) fn watch(&self) {
        self.ground.watch();
        let may_linger =
            || self.ground.shared.failure().is_some() || self.ground.has_late_operations();
        if !self.lingering.borrow().is_empty() && !may_linger() {
            for asked in self.lingering.take() {
                self.model.borrow_mut().answer(&asked, false, false);
            }
        }
    }

    /// Whether the array says that every write is safe once it is acknowledged.
    fn is_durable(&self) -> bool {
        !self.arrays[0].has_volatile_cache()
    }

    fn buffer(&self, sectors: usize) -> Buffer {
        self.pool.allocate(sectors * SECTOR_BYTES).expect("the pool is large enough")
    }

    /// A range of whole blocks within a hot region.
    fn somewhere(&self) -> Range<usize> {
        let (world, unit) = (&self.world, self.unit);
        let region = &self.hot[world.below(self.hot.len() as u64) as usize];
        let blocks = (region.len() / unit) as u64;
        let first = world.below(blocks);
        // Mostly small, now and then as far as the region goes.
        let most = blocks - first;
        let most = if world.one_in(4) { most } else { most.min(4) };
        let first = region.start + first as usize * unit;
        first..first + (1 + world.below(most) as usize) * unit
    }

    /// One request of some kind somewhere.
    pub(crate) async fn request(&self, core: usize) {
        let world = &self.world;
        if world.one_in(3) {
            world.sleep_ns(world.below(200_000)).await;
        }
        let at = self.somewhere();
        let is_fine = match world.below(12) {
            0..=4 => self.write(core, at).await,
            5 => self.zero(core, at).await,
            6 => self.deallocate(core, at).await,
            7 => self.flush(core).await,
            _ => self.read(core, at).await,
        };
        let mut story = self.story.borrow_mut();
        story.count("requests", 1);
        story.count("failed requests", u64::from(!is_fine));
    }

    /// Writes one block after the other, or row after row, from the start of a region to its end,
    /// several at once.
    pub(crate) async fn stream(&self, core: usize) {
        let world = &self.world;
        let region = self.hot[world.below(self.hot.len() as u64) as usize].clone();
        let step = self.unit * (1 + world.below(16) as usize);
        let depth = 1 + world.below(4) as usize;
        let mut pieces = Vec::new();
        let mut at = region.start;
        while at < region.end {
            pieces.push(at..(at + step).min(region.end));
            at += step;
        }
        for group in pieces.chunks(depth) {
            let writes = group.iter().map(|at| self.write(core, at.clone()));
            let fine = futures_util::future::join_all(writes).await;
            let mut story = self.story.borrow_mut();
            story.count("requests", fine.len() as u64);
            story.count("failed requests", fine.iter().filter(|fine| !**fine).count() as u64);
        }
    }

    async fn write(&self, core: usize, at: Range<usize>) -> bool {
        let fua = self.world.one_in(4);
        let value = self.model.borrow_mut().new_value();
        let mut buffer = self.buffer(at.len());
        encode(value, at.start, &mut buffer);
        let writable = self.ground.writable();
        let asked = self.model.borrow_mut().ask(at.clone(), value);
        self.world.trace(|| format!("core {core}: write {value} of {at:?} begins"));
        let offset = (at.start * SECTOR_BYTES) as u64;
        let result = self.array(core).write(offset, buffer.freeze(), fua).await;
        self.answer(asked, &result, fua);
        let fua = if fua { ", with FUA" } else { "" };
        self.changed(core, &format!("write {value}{fua}"), at, result, Some(&writable))
    }

    async fn zero(&self, core: usize, at: Range<usize>) -> bool {
        let (deallocate, fua) = (self.world.one_in(2), self.world.one_in(3));
        let writable = self.ground.writable();
        let asked = self.model.borrow_mut().ask(at.clone(), ZERO);
        let (offset, len) = ((at.start * SECTOR_BYTES) as u64, (at.len() * SECTOR_BYTES) as u64);
        let result = self.array(core).write_zeroes(offset, len, deallocate, fua).await;
        self.answer(asked, &result, fua);
        self.changed(core, "write zeroes", at, result, Some(&writable))
    }

    async fn deallocate(&self, core: usize, at: Range<usize>) -> bool {
        let asked = self.model.borrow_mut().ask(at.clone(), ZERO);
        let (offset, len) = ((at.start * SECTOR_BYTES) as u64, (at.len() * SECTOR_BYTES) as u64);
        let result = self.array(core).deallocate(offset, len).await;
        // It may have been skipped, so like a failed write it supersedes nothing.
        self.answer(asked, &result.and(Err(ArrayError::NotReady)), false);
        self.changed(core, "deallocate", at, result, None)
    }

    /// Judges the answer to a write; whether it succeeded.
    fn changed(
        &self,
        core: usize,
        what: &str,
        at: Range<usize>,
        result: Result<(), ArrayError>,
        writable: Option<&[usize]>,
    ) -> bool {
        self.world.trace(|| format!("core {core}: {what} of {at:?}: {result:?}"));
        if let (Ok(()), Some(writable)) = (&result, writable) {
            self.ground.note_acknowledged(writable);
        }
        self.judge(what, &at, result)
    }

    fn judge(&self, what: &str, at: &Range<usize>, result: Result<(), ArrayError>) -> bool {
        let Err(error) = result else { return true };
        let is_allowed = match &error {
            ArrayError::NotReady => self.is_stopping.get() || self.ground.may_fail_writes(),
            ArrayError::NoSpace { slot } => {
                self.ground.had_no_space() || self.ground.may_lack_room(*slot)
            }
            ArrayError::ReadFailed { .. } | ArrayError::Unrecovered { .. } => {
                self.model.borrow().may_fail(at.clone())
                    || self.ground.may_be_unreadable(at)
                    || self.is_beyond_parity(at)
                    || self.cannot_be_mended(at)
            }
            ArrayError::WriteFailed(_) => {
                self.ground.may_fail_writes() || self.ground.may_be_unreadable(at)
            }
            ArrayError::OutOfRange | ArrayError::BadBlocksFull { .. } => false,
        };
        let ground = &self.ground;
        assert!(is_allowed, "{what} of {at:?} fails without a cause: {error:?}; {ground:?}");
        false
    }

    /// Whether copies may differ, and the array takes no writes that would make them equal.
    fn cannot_be_mended(&self, at: &Range<usize>) -> bool {
        let range = (at.start * SECTOR_BYTES) as u64..(at.end * SECTOR_BYTES) as u64;
        self.ground.shared.failure().is_some() && !self.arrays[0].view(range).agrees
    }

    /// Whether a member is out, and there is no parity to be trusted in its place.
    fn is_beyond_parity(&self, at: &Range<usize>) -> bool {
        let geometry = self.arrays[0].geometry();
        if geometry.parities() == 0 || !self.ground.is_degraded() && !self.ground.had_read_errors()
        {
            return false;
        }
        let rows = geometry.row_of((at.start * SECTOR_BYTES) as u64)
            ..=geometry.row_of((at.end * SECTOR_BYTES) as u64 - 1);
        rows.into_iter().any(|row| !self.arrays[0].view(geometry.row_range(row)).agrees)
    }

    pub(crate) async fn flush(&self, core: usize) -> bool {
        let began = self.model.borrow_mut().begin();
        let result = self.array(core).flush().await;
        self.world.trace(|| format!("core {core}: flush begun at {began}: {result:?}"));
        if result.is_ok() {
            self.model.borrow_mut().flushed(began);
        }
        self.judge("flush", &(0..0), result)
    }

    /// Reads, and checks what is read; false if it could not be.
    pub(crate) async fn read(&self, core: usize, at: Range<usize>) -> bool {
        let began = self.model.borrow_mut().begin();
        let offset = (at.start * SECTOR_BYTES) as u64;
        let buffer = self.buffer(at.len());
        let buffer = match self.array(core).read(offset, buffer).await {
            Ok(buffer) => buffer,
            Err(unread) => {
                let error = unread.error;
                self.world.trace(|| format!("core {core}: read of {at:?}: {error:?}"));
                return self.judge("read", &at, Err(error));
            }
        };
        assert_eq!(buffer.len(), at.len() * SECTOR_BYTES, "the buffer comes back whole");
        self.world.trace(|| {
            let found = buffer.chunks(SECTOR_BYTES).enumerate();
            let found: Vec<_> =
                found.map(|(i, sector)| show(decode(at.start + i, sector))).collect();
            format!("core {core}: read of {at:?}, begun at {began}: {found:?}")
        });
        // What is read where copies may differ, and cannot be made equal any more, depends on the
        // members that are there at the moment.
        let settles = !self.cannot_be_mended(&at);
        if self.was_forced.get() {
            // What the operator has taken as right nobody knows.
            return true;
        }
        let mut model = self.model.borrow_mut();
        for (index, sector) in buffer.chunks(SECTOR_BYTES).enumerate() {
            let number = at.start + index;
            let value = decode(number, sector);
            let result = match settles {
                true => model.read(number, began, value),
                false => model.glance(number, began, value),
            };
            if let Err(broken) = result {
                panic!("a promise is broken: {broken}");
            }
        }
        true
    }
}
