//! What goes wrong with the drives: planned errors, and a record of what was done to whom, by which
//! the engine's answers are judged.

use std::cell::{Cell, RefCell};

/// What kinds of operations an error hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    Zero,
    Flush,
}

/// Something that happens to a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// A read fails; if `sticky`, what it read stays unreadable until it is rewritten.
    Read { sticky: bool },
    /// A write or zeroing fails, having done any part of its work.
    Write,
    /// A flush fails: what it was for never survives a power cut.
    Flush,
    /// A write finds no space below the drive.
    NoSpace,
    /// The drive answers nothing for so many nanoseconds, if ever again.
    Hang { nanoseconds: u64 },
    /// The drive is pulled out.
    Gone,
}

impl Fault {
    /// Whether it hits an operation of this kind.
    fn fits(self, kind: Kind) -> bool {
        match self {
            Self::Read { .. } => kind == Kind::Read,
            Self::Write | Self::NoSpace => matches!(kind, Kind::Write | Kind::Zero),
            Self::Flush => kind == Kind::Flush,
            Self::Hang { .. } | Self::Gone => true,
        }
    }
}

/// A fault to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// It waits until this many operations of all drives have been asked for.
    pub(crate) at_call: u64,
    /// The drive that it happens to; None: the one that is next asked for something that fits.
    pub(crate) disk: Option<usize>,
    pub(crate) fault: Fault,
    /// So many operations that fit are hit.
    pub(crate) times: u64,
}

/// What has been done to one drive.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Hits {
    /// Reads that failed.
    pub(crate) reads: u64,
    /// Anything for which a member may fail at once.
    pub(crate) fatal: u64,
}

/// Faults to come and faults that were, of all drives.
pub(crate) struct Faults {
    calls: Cell<u64>,
    plans: RefCell<Vec<Plan>>,
    hits: RefCell<Vec<Hits>>,
    injected: Cell<u64>,
    no_space: Cell<u64>,
    suspended: Cell<bool>,
}

impl Faults {
    /// For so many drives.
    pub(crate) fn new(disks: usize) -> Self {
        Self {
            calls: Cell::new(0),
            plans: RefCell::default(),
            hits: RefCell::new(vec![Hits::default(); disks]),
            injected: Cell::new(0),
            no_space: Cell::new(0),
            suspended: Cell::new(false),
        }
    }

    /// Begins a boot: nobody has done anything to any drive, and these faults will come.
    pub(crate) fn begin(&self, plans: Vec<Plan>) {
        self.calls.set(0);
        self.no_space.set(0);
        *self.plans.borrow_mut() = plans;
        self.hits.borrow_mut().fill(Hits::default());
    }

    /// Room for one more drive.
    pub(crate) fn add_disk(&self) {
        self.hits.borrow_mut().push(Hits::default());
    }

    /// Operations since the boot began, without those while suspended.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.get()
    }

    /// Errors injected in this life.
    pub(crate) fn injected(&self) -> u64 {
        self.injected.get()
    }

    /// Writes of this boot that found no space.
    pub(crate) fn no_space(&self) -> u64 {
        self.no_space.get()
    }

    /// What has been done to a drive in this boot.
    pub(crate) fn hits(&self, disk: usize) -> Hits {
        self.hits.borrow()[disk]
    }

    /// Whether new faults wait.
    pub(crate) fn suspend(&self, suspended: bool) {
        self.suspended.set(suspended);
    }

    /// Notes that something happened to a drive for which a member may fail.
    pub(crate) fn note_fatal(&self, disk: usize) {
        self.hits.borrow_mut()[disk].fatal += 1;
    }

    pub(crate) fn note_read(&self, disk: usize) {
        self.hits.borrow_mut()[disk].reads += 1;
    }

    /// A drive is asked for something: what happens to it, if anything does.
    pub(crate) fn next(&self, disk: usize, kind: Kind) -> Option<Fault> {
        if self.suspended.get() {
            return None;
        }
        let call = self.calls.get();
        self.calls.set(call + 1);
        let mut plans = self.plans.borrow_mut();
        let is_due = |plan: &Plan| {
            plan.at_call <= call && plan.disk.is_none_or(|d| d == disk) && plan.fault.fits(kind)
        };
        let index = plans.iter().position(is_due)?;
        let fault = plans[index].fault;
        plans[index].disk = Some(disk);
        plans[index].times -= 1;
        if plans[index].times == 0 {
            plans.remove(index);
        }
        self.injected.set(self.injected.get() + 1);
        match fault {
            Fault::Read { .. } => self.note_read(disk),
            Fault::NoSpace => self.no_space.set(self.no_space.get() + 1),
            _ => self.note_fatal(disk),
        }
        Some(fault)
    }
}
