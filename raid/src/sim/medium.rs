//! A simulated drive as assembly and the keeper of superblocks see it: synchronous.
//!
//! While an array is put together operations happen at once, until the [`Fuse`] blows: then the
//! power fails in the middle of one.
//!
//! While it runs they take their time, and anything may happen between and in them. So what the
//! keeper does is done three times: first on a copy of its state, only to learn which operations it
//! takes ([`Tape::record`]); then these are done one by one in the simulated world; and last by the
//! keeper itself, which is told what became of each ([`Tape::play`]).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use super::disk::Disk;
use super::image::SECTOR_BYTES;
use super::world::Random;
use crate::device::Medium;

/// "No such device".
const ENODEV: i32 = 19;

/// The end of the power, after so many operations.
pub(crate) struct Fuse {
    left: Cell<Option<u64>>,
    random: RefCell<Random>,
    is_blown: Cell<bool>,
}

impl Fuse {
    pub(crate) fn new(left: Option<u64>, seed: u64) -> Rc<Self> {
        let random = RefCell::new(Random::new(seed));
        Rc::new(Self { left: Cell::new(left), random, is_blown: Cell::new(false) })
    }

    /// Whether the power has failed.
    pub(crate) fn is_blown(&self) -> bool {
        self.is_blown.get()
    }

    /// It does not blow any more.
    pub(crate) fn disarm(&self) {
        self.left.set(None);
    }

    /// Counts an operation: true if the power fails in it.
    fn burn(&self) -> bool {
        match self.left.get() {
            Some(0) => {
                self.is_blown.set(true);
                true
            }
            Some(left) => {
                self.left.set(Some(left - 1));
                false
            }
            None => false,
        }
    }
}

/// An operation of the keeper.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The number of the drive.
    pub(crate) disk: usize,
    pub(crate) what: StepKind,
}

#[derive(Clone, Debug)]
pub(crate) enum StepKind {
    Read(Result<Vec<u8>, i32>),
    Write { offset_bytes: u64, data: Rc<[u8]> },
    Flush,
}

#[derive(Default)]
enum Mode {
    /// Operations happen.
    #[default]
    Direct,
    /// They are only noted.
    Recording(Vec<Step>),
    /// They have happened: this is what became of them.
    Playing(VecDeque<(Step, Result<(), i32>)>),
}

/// What becomes of operations.
#[derive(Default)]
pub(crate) struct Tape(RefCell<Mode>);

impl Tape {
    /// From now on operations are only noted, as if they succeeded.
    pub(crate) fn record(&self) {
        *self.0.borrow_mut() = Mode::Recording(Vec::new());
    }

    /// What has been noted; from now on operations happen.
    pub(crate) fn take(&self) -> Vec<Step> {
        match std::mem::take(&mut *self.0.borrow_mut()) {
            Mode::Recording(steps) => steps,
            _ => Vec::new(),
        }
    }

    /// From now on these are the operations, and their results.
    pub(crate) fn play(&self, steps: Vec<(Step, Result<(), i32>)>) {
        *self.0.borrow_mut() = Mode::Playing(steps.into());
    }

    /// From now on operations happen. Nothing that was to be played is left.
    pub(crate) fn stop(&self) {
        if let Mode::Playing(rest) = std::mem::take(&mut *self.0.borrow_mut()) {
            assert!(rest.is_empty(), "the keeper did not do what it did before: {rest:?}");
        }
    }
}

/// The drive.
#[derive(Clone)]
pub(crate) struct SimMedium {
    pub(crate) disk: Rc<RefCell<Disk>>,
    pub(crate) fuse: Rc<Fuse>,
    pub(crate) tape: Rc<Tape>,
}

impl SimMedium {
    fn check(&self) -> io::Result<()> {
        let disk = self.disk.borrow();
        if self.fuse.is_blown() || disk.is_gone || disk.hung_until > 0 {
            return Err(io::Error::from_raw_os_error(ENODEV));
        }
        Ok(())
    }

    /// What becomes of a step that is not done directly.
    fn taped(&self, what: impl FnOnce() -> StepKind) -> Option<Result<Step, i32>> {
        let disk = self.disk.borrow().name;
        match &mut *self.tape.0.borrow_mut() {
            Mode::Direct => None,
            Mode::Recording(steps) => {
                let step = Step { disk, what: what() };
                steps.push(step.clone());
                Some(Ok(step))
            }
            Mode::Playing(steps) => {
                let (step, result) = steps.pop_front().expect("no more than it did before");
                assert_eq!(step.disk, disk, "the same as it did before");
                Some(result.map(|()| step))
            }
        }
    }

    fn read_now(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check()?;
        let disk = self.disk.borrow();
        if offset_bytes + buf.len() as u64 > disk.model.size_bytes as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !disk.is_readable(offset_bytes, buf.len()) {
            return Err(io::Error::from_raw_os_error(5));
        }
        disk.visible().read(offset_bytes as usize, buf);
        Ok(())
    }
}

impl Medium for SimMedium {
    fn name(&self) -> String {
        format!("drive-{}", self.disk.borrow().name)
    }

    fn size_bytes(&self) -> u64 {
        self.disk.borrow().model.size_bytes as u64
    }

    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let raw = |error: io::Error| error.raw_os_error().unwrap_or(5);
        let read = || {
            let mut bytes = vec![0; buf.len()];
            self.read_now(offset_bytes, &mut bytes).map(|()| bytes)
        };
        let bytes = match self.taped(|| StepKind::Read(read().map_err(raw))) {
            None => return self.read_now(offset_bytes, buf),
            Some(Ok(Step { what: StepKind::Read(Ok(bytes)), .. })) => bytes,
            Some(Ok(Step { what: StepKind::Read(Err(errno)), .. }) | Err(errno)) => {
                return Err(io::Error::from_raw_os_error(errno));
            }
            Some(Ok(step)) => panic!("the keeper did not do what it did before: {step:?}"),
        };
        buf.copy_from_slice(&bytes);
        Ok(())
    }

    fn write_durable(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        let block = self.disk.borrow().model.block_bytes;
        assert!(
            offset_bytes.is_multiple_of(block as u64) && data.len().is_multiple_of(block),
            "whole blocks"
        );
        if let Some(taped) = self.taped(|| StepKind::Write { offset_bytes, data: data.into() }) {
            return taped.map(drop).map_err(io::Error::from_raw_os_error);
        }
        self.check()?;
        let fails = self.fuse.burn();
        let mut disk = self.disk.borrow_mut();
        assert!(offset_bytes + data.len() as u64 <= disk.model.size_bytes as u64);
        if !fails {
            disk.write_now(offset_bytes, data);
            return Ok(());
        }
        for (index, sector) in data.chunks(SECTOR_BYTES).enumerate() {
            if self.fuse.random.borrow_mut().below(2) == 0 {
                disk.write_now(offset_bytes + (index * SECTOR_BYTES) as u64, sector);
            }
        }
        Err(io::Error::from_raw_os_error(ENODEV))
    }

    fn flush(&self) -> io::Result<()> {
        if let Some(taped) = self.taped(|| StepKind::Flush) {
            return taped.map(drop).map_err(io::Error::from_raw_os_error);
        }
        self.check()?;
        if self.fuse.burn() {
            return Err(io::Error::from_raw_os_error(ENODEV));
        }
        let mut disk = self.disk.borrow_mut();
        let began = disk.tick();
        disk.flush(began, true);
        Ok(())
    }

    fn zero_cheaply(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<bool> {
        self.check()?;
        if !self.disk.borrow().model.can_zero {
            return Ok(false);
        }
        if self.fuse.burn() {
            return Err(io::Error::from_raw_os_error(ENODEV));
        }
        self.disk.borrow_mut().zero(offset_bytes, len_bytes);
        Ok(true)
    }
}
