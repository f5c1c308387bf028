//! A core's handle on a simulated drive.

use std::cell::RefCell;
use std::rc::Rc;

use super::disk::{Disk, NEVER};
use super::faults::{Fault, Faults, Kind};
use super::image::SECTOR_BYTES;
use super::world::World;
use crate::buffer::{Buffer, SharedBuffer};
use crate::drive::{Drive, DriveError, ReadFailure};

/// After this time without an answer an operation counts as timed out.
pub(crate) const TIMEOUT_NS: u64 = 60_000_000;

/// What a drive says to what it cannot do: an input/output error.
const EIO: DriveError = DriveError::Io { errno: 5 };

/// One core's handle.
#[derive(Clone)]
pub(crate) struct SimDrive {
    pub(crate) world: Rc<World>,
    pub(crate) disk: Rc<RefCell<Disk>>,
    pub(crate) faults: Rc<Faults>,
}

impl SimDrive {
    fn name(&self) -> usize {
        self.disk.borrow().name
    }

    async fn delay(&self) {
        // Mostly quick, now and then slow: later operations overtake.
        let bound = if self.world.one_in(8) { 400_000 } else { 40_000 };
        self.world.sleep_ns(1 + self.world.below(bound)).await;
    }

    /// What happens to an operation that begins now.
    fn next_fault(&self, kind: Kind) -> Option<Fault> {
        let name = self.name();
        let fault = self.faults.next(name, kind)?;
        self.world.trace(|| format!("drive {name}: fault {fault:?} at {kind:?}"));
        let mut disk = self.disk.borrow_mut();
        match fault {
            Fault::Hang { nanoseconds } => {
                disk.hung_until = self.world.now_ns().saturating_add(nanoseconds);
                None
            }
            Fault::Gone => {
                disk.is_gone = true;
                None
            }
            other => Some(other),
        }
    }

    /// Waits while the drive hangs; false if that is too long.
    async fn answers(&self) -> bool {
        let (until, now) = (self.disk.borrow().hung_until, self.world.now_ns());
        if until <= now {
            return true;
        }
        let in_time = until - now <= TIMEOUT_NS;
        if !in_time {
            self.faults.note_fatal(self.name());
        }
        self.world.sleep_ns(TIMEOUT_NS.min(until - now)).await;
        in_time
    }

    /// An operation has timed out: when the drive answers again, if ever, `end` is called.
    fn becomes_late(&self, what: &str, end: impl FnOnce(&mut Disk) + 'static) {
        let mut disk = self.disk.borrow_mut();
        disk.late += 1;
        let name = disk.name;
        self.world.trace(|| format!("drive {name}: {what} times out"));
        if disk.hung_until == NEVER {
            return;
        }
        let delay = disk.hung_until.saturating_sub(self.world.now_ns());
        let (shared, world) = (Rc::clone(&self.disk), Rc::downgrade(&self.world));
        self.world.after(delay + self.world.below(400_000), move || {
            let mut disk = shared.borrow_mut();
            if disk.late > 0 {
                disk.late -= 1;
                end(&mut disk);
                if let Some(world) = world.upgrade() {
                    world.trace(|| format!("drive {name}: a late operation ends"));
                }
            }
        });
    }

    /// Writes, in pieces; what a power cut tears are units of `atomic_bytes`.
    pub(crate) async fn change(
        &self,
        kind: Kind,
        offset_bytes: u64,
        data: Rc<[u8]>,
        fua: bool,
        atomic_bytes: usize,
    ) -> Result<(), DriveError> {
        let sectors = data.len() / SECTOR_BYTES;
        let fault = self.next_fault(kind);
        let name = self.name();
        if self.disk.borrow().is_gone {
            return self.gone().await;
        }
        let id = self.disk.borrow_mut().begin(offset_bytes, data, atomic_bytes, fua);
        self.world.trace(|| {
            let fua = if fua { ", with FUA" } else { "" };
            format!("drive {name}: {kind:?} {id} at {offset_bytes}, {sectors} sectors{fua}")
        });
        if !self.answers().await {
            let survives = fua || !self.disk.borrow().model.has_volatile_cache;
            self.becomes_late(&format!("{kind:?} {id}"), move |disk| {
                disk.apply(id, 0..usize::MAX);
                disk.complete(id, survives);
            });
            return Err(DriveError::TimedOut);
        }
        self.delay().await;
        let is_kept = !self.disk.borrow().model.has_volatile_cache;
        let (result, survives) = match fault {
            Some(Fault::NoSpace) => (Err(DriveError::NoSpace), is_kept),
            Some(_) => (Err(EIO), is_kept),
            None => (Ok(()), fua || is_kept),
        };
        let unit = (atomic_bytes.max(self.disk.borrow().model.block_bytes) / SECTOR_BYTES) as u64;
        let some = || (self.world.below(sectors as u64 / unit + 1) * unit) as usize;
        if result.is_err() {
            let (a, b) = (some(), some());
            self.disk.borrow_mut().apply(id, a.min(b)..a.max(b));
        } else {
            let first = if self.world.one_in(2) { sectors } else { some() };
            self.disk.borrow_mut().apply(id, 0..first);
            if first < sectors {
                self.delay().await;
                self.disk.borrow_mut().apply(id, first..sectors);
            }
        }
        self.delay().await;
        if self.disk.borrow().is_gone {
            // Pulled out in between: nobody knows what it has kept.
            return self.gone().await;
        }
        self.disk.borrow_mut().complete(id, survives);
        self.world.trace(|| match &result {
            Ok(()) => format!("drive {name}: {id} done"),
            Err(error) => format!("drive {name}: {id} fails: {error}"),
        });
        result
    }

    async fn gone(&self) -> Result<(), DriveError> {
        self.faults.note_fatal(self.name());
        self.delay().await;
        Err(DriveError::Gone)
    }

    fn read_result(&self, offset_bytes: u64, buffer: &mut Buffer) -> Result<(), DriveError> {
        let disk = self.disk.borrow();
        if disk.is_gone {
            self.faults.note_fatal(disk.name);
            return Err(DriveError::Gone);
        }
        if !disk.is_readable(offset_bytes, buffer.len()) {
            self.faults.note_read(disk.name);
            return Err(EIO);
        }
        disk.visible().read(offset_bytes as usize, buffer);
        Ok(())
    }
}

impl Drive for SimDrive {
    async fn read(&self, offset_bytes: u64, mut buffer: Buffer) -> Result<Buffer, ReadFailure> {
        let fault = self.next_fault(Kind::Read);
        let name = self.name();
        if !self.answers().await {
            self.becomes_late("a read", |_| ());
            drop(buffer);
            return Err(ReadFailure { error: DriveError::TimedOut, buffer: None });
        }
        self.delay().await;
        if let Some(Fault::Read { sticky }) = fault {
            if sticky {
                // One block of what was read.
                let block = self.disk.borrow().model.block_bytes;
                let blocks = (buffer.len() / block).max(1) as u64;
                let first = (offset_bytes as usize + self.world.below(blocks) as usize * block)
                    / SECTOR_BYTES;
                self.disk.borrow_mut().spoil(first..first + block / SECTOR_BYTES);
            }
            buffer.fill(0xbd);
            self.world.trace(|| format!("drive {name}: read at {offset_bytes} fails"));
            return Err(ReadFailure { error: EIO, buffer: Some(buffer) });
        }
        if let Err(error) = self.read_result(offset_bytes, &mut buffer) {
            buffer.fill(0xbd);
            self.world.trace(|| format!("drive {name}: read at {offset_bytes} fails: {error}"));
            return Err(ReadFailure { error, buffer: Some(buffer) });
        }
        let len = buffer.len();
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
        let atomic_bytes = self.disk.borrow().model.atomic_bytes;
        self.change(Kind::Write, offset_bytes, data[..].into(), fua, atomic_bytes).await
    }

    async fn flush(&self) -> Result<(), DriveError> {
        let fault = self.next_fault(Kind::Flush);
        if self.disk.borrow().is_gone {
            return self.gone().await;
        }
        let began = self.disk.borrow_mut().tick();
        if !self.answers().await {
            self.becomes_late("a flush", |_| ());
            return Err(DriveError::TimedOut);
        }
        self.delay().await;
        if self.disk.borrow().is_gone {
            return self.gone().await;
        }
        let mut disk = self.disk.borrow_mut();
        disk.flush(began, fault.is_none());
        let name = disk.name;
        self.world.trace(|| {
            let how = if fault.is_some() { "flush fails" } else { "flushed" };
            format!("drive {name}: {how}, begun at {began}")
        });
        if fault.is_some() { Err(EIO) } else { Ok(()) }
    }

    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        _deallocate: bool,
    ) -> Result<(), DriveError> {
        let model = self.disk.borrow().model;
        if !model.can_zero {
            return Err(DriveError::Unsupported);
        }
        let zeros = vec![0; len_bytes as usize].into();
        self.change(Kind::Zero, offset_bytes, zeros, false, model.atomic_bytes).await
    }

    fn has_volatile_cache(&self) -> bool {
        self.disk.borrow().model.has_volatile_cache
    }

    fn size_bytes(&self) -> u64 {
        self.disk.borrow().model.size_bytes as u64
    }

    fn block_size_bytes(&self) -> u32 {
        self.disk.borrow().model.block_bytes as u32
    }

    fn late_operations(&self) -> usize {
        self.disk.borrow().late
    }
}
