//! One array's life: it is booted several times over the same drives, and each time used by hosts
//! on all cores until it is stopped cleanly, its process dies, or the power is cut.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::boot::{Boot, Lasting, Start, sectors};
use super::check::Place;
use super::disk::{Disk, NEVER};
use super::drive::{SimDrive, TIMEOUT_NS};
use super::faults::{Fault, Faults, Plan};
use super::image::SECTOR_BYTES;
use super::model::Model;
use super::paper::PaperRecords;
use super::runner::Story;
use super::shape::Shape;
use super::value::{ZERO, decode, junk, junk_byte, show};
use super::world::Random;
use crate::array::{IN_SYNC, MemberState, Wanted};
use crate::geometry::{Geometry, Level};

/// Where a member's data area begins.
const DATA_OFFSET: usize = 64 << 10;

/// What a life is to be like.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) levels: Vec<Level>,
    pub(crate) boots: u64,
    /// In this share of the boots, in a hundred, drives have faults.
    pub(crate) faulty_boots: u64,
    /// The faults of the first boot, instead.
    pub(crate) first: Vec<Plan>,
}

/// The array and its drives, from boot to boot.
pub(crate) struct Life {
    random: Random,
    plot: Plot,
    shape: Shape,
    geometry: Geometry,
    disks: Vec<Rc<RefCell<Disk>>>,
    /// By slot: the number of the drive in it.
    slots: Vec<Option<usize>>,
    paper: Rc<RefCell<Wanted>>,
    lasting: Lasting,
    calls: u64,
}

impl Life {
    pub(crate) fn new(seed: u64, plot: Plot) -> Self {
        let mut random = Random::new(seed ^ 0x5eed);
        let shape = Shape::random(&mut random, &plot.levels);
        let geometry = shape.geometry();
        let in_sync = shape.level == Level::Raid0 || random.below(3) > 0;
        let mut disks = Vec::new();
        for (number, model) in shape.drives.iter().enumerate() {
            let mut disk = Disk::new(number, *model);
            if !in_sync {
                let end = DATA_OFFSET + geometry.component_bytes() as usize;
                disk.set_junk(DATA_OFFSET..end, junk_byte(number));
            }
            disks.push(Rc::new(RefCell::new(disk)));
        }
        let initial = move |sector: usize| {
            let offset = (sector * SECTOR_BYTES) as u64;
            let extents = geometry.extents(offset, SECTOR_BYTES as u64);
            let copies = extents.flat_map(|e| (0..e.copies).map(move |copy| e.place(copy).slot));
            copies.map(|slot| if in_sync { ZERO } else { junk(slot) }).collect()
        };
        let model = Model::new(sectors(geometry.capacity_bytes()), Box::new(initial));
        let lasting = Lasting {
            model: Rc::new(RefCell::new(model)),
            faults: Rc::new(Faults::new(disks.len())),
            hot: shape.hot_regions(&mut random).into(),
            story: Rc::default(),
            stale: Rc::new(RefCell::new(vec![false; disks.len()])),
        };
        let paper = Wanted {
            version: 0,
            active: false,
            members: vec![MemberState::InSync; shape.members],
            rebuild_from: None,
            resync_from: if in_sync { IN_SYNC } else { 0 },
            bad_blocks: vec![Vec::new(); shape.members],
            devices: (0..shape.members as u64).collect(),
        };
        let slots = (0..shape.members).map(Some).collect();
        let paper = Rc::new(RefCell::new(paper));
        Self { random, plot, shape, geometry, disks, slots, paper, lasting, calls: 0 }
    }

    /// Operations of the drives in the first boot.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// Lives.
    pub(crate) fn live(&mut self) -> Story {
        for boot in 0..self.plot.boots {
            let faults = if boot == 0 && !self.plot.first.is_empty() {
                self.plot.first.clone()
            } else {
                self.random_faults()
            };
            self.lasting.faults.begin(faults);
            let is_last = boot + 1 == self.plot.boots;
            if !self.boot(is_last) {
                break;
            }
            if boot == 0 {
                self.calls = self.lasting.faults.calls();
            }
        }
        let mut story = self.lasting.story.borrow().clone();
        story.count("faults", self.lasting.faults.injected());
        story
    }

    fn random_faults(&mut self) -> Vec<Plan> {
        if self.random.below(100) >= self.plot.faulty_boots {
            return Vec::new();
        }
        (0..1 + self.random.below(3)).map(|_| self.random_fault()).collect()
    }

    fn random_fault(&mut self) -> Plan {
        let random = &mut self.random;
        let long = [TIMEOUT_NS / 2, TIMEOUT_NS * 3 / 2, TIMEOUT_NS * 5, NEVER];
        let (fault, times) = match random.below(8) {
            0 | 1 => (Fault::Read { sticky: random.below(2) == 0 }, 1 + random.below(30)),
            2 | 3 => (Fault::Write, 1 + random.below(3)),
            4 => (Fault::Flush, 1),
            5 => (Fault::NoSpace, 1 + random.below(12)),
            6 => (Fault::Hang { nanoseconds: long[random.below(4) as usize] }, 1),
            _ => (Fault::Gone, 1),
        };
        let disks = self.disks.len() as u64;
        let disk = (random.below(4) > 0).then(|| random.below(disks) as usize);
        let bound = [100, 600, 2500][random.below(3) as usize];
        Plan { at_call: random.below(bound), disk, fault, times }
    }

    /// One boot; false if there is nothing left to boot.
    fn boot(&mut self, is_last: bool) -> bool {
        let Some(start) = self.assemble() else { return false };
        self.lasting.story.borrow_mut().count("boots", 1);
        let (slots, disks) = (self.slots.clone(), self.disks.clone());
        let (paper, faults) = (Rc::clone(&self.paper), Rc::clone(&self.lasting.faults));
        let boot = Boot::new(&mut self.random, start, &self.lasting, |world, shared| {
            let drive = |number: &Option<usize>| {
                number.map(|number| SimDrive {
                    world: Rc::clone(world),
                    disk: Rc::clone(&disks[number]),
                    faults: Rc::clone(&faults),
                })
            };
            let drives = slots.iter().map(drive).collect();
            PaperRecords { paper, shared: Arc::clone(shared), drives }
        });
        boot.check_agreement();
        match self.random.below(4) {
            0 => boot.verify(false),
            1 => (),
            _ => boot.verify(true),
        }
        // Now and then nobody uses the array: a resync then runs without "active" superblocks.
        let per_core = if self.random.below(4) == 0 { 0 } else { 1 + self.random.below(3) };
        boot.start_hosts(per_core, 5 + self.random.below(25));
        match if is_last { 0 } else { self.random.below(5) } {
            0 | 1 => {
                let waits = is_last || self.random.below(2) == 0;
                if boot.finish(waits) {
                    self.lasting.story.borrow_mut().count("clean stops", 1);
                }
                if is_last {
                    self.check_untouched();
                }
                if self.random.below(2) == 0 { self.cut_power(&boot) } else { self.die(&boot) }
            }
            2 => {
                boot.run_for(self.random.below(6000));
                self.die(&boot);
            }
            _ => {
                boot.run_for(self.random.below(6000));
                self.cut_power(&boot);
            }
        }
        true
    }

    /// What the paper says, with the drives that are there.
    fn assemble(&mut self) -> Option<Start> {
        let paper = self.paper.borrow().clone();
        let mut members = paper.members.clone();
        for (slot, state) in members.iter_mut().enumerate() {
            if *state == MemberState::Failed {
                *state = MemberState::Missing;
                self.slots[slot] = None;
            }
        }
        let place = |number: &Option<usize>| {
            number.map(|number| Place {
                disk: Rc::clone(&self.disks[number]),
                data_offset_bytes: DATA_OFFSET as u64,
            })
        };
        Some(Start {
            geometry: self.geometry,
            places: self.slots.iter().map(place).collect(),
            members,
            active: paper.active,
            resync_from: if paper.active { 0 } else { paper.resync_from },
            rebuild_from: paper.rebuild_from,
            bad_blocks: paper.bad_blocks,
            intent: Default::default(),
            read_error_limit: self.shape.read_error_limit,
            cores: self.shape.cores,
            unit: self.shape.unit(),
        })
    }

    fn cut_power(&mut self, boot: &Boot) {
        boot.stop();
        self.lasting.story.borrow_mut().count("power cuts", 1);
        // All that can be lost is lost, or none of it, or some.
        let keep_percent = [0, 100, 50, 50][self.random.below(4) as usize];
        for disk in &self.disks {
            disk.borrow_mut().cut_power(|| self.random.below(100) < keep_percent);
            disk.borrow_mut().is_gone = false;
        }
        self.lasting.model.borrow_mut().restart();
        self.lasting.model.borrow_mut().power_cut();
    }

    fn die(&mut self, boot: &Boot) {
        boot.stop();
        self.lasting.story.borrow_mut().count("deaths", 1);
        self.lasting.model.borrow_mut().restart();
        for (number, disk) in self.disks.iter().enumerate() {
            let mut disk = disk.borrow_mut();
            if !disk.is_gone {
                disk.lose_process(|| self.random.below(2) == 0);
                continue;
            }
            // It has lost its power, and with that what it had not yet kept.
            disk.is_gone = false;
            disk.cut_power(|| self.random.below(2) == 0);
            let slot = self.slots.iter().position(|slot| *slot == Some(number));
            let counts =
                slot.is_some_and(|s| self.paper.borrow().members[s] == MemberState::InSync);
            if counts {
                self.lasting.model.borrow_mut().power_cut();
            }
        }
    }

    /// What no host ever wrote is as it was.
    fn check_untouched(&self) {
        let model = self.lasting.model.borrow();
        let paper = self.paper.borrow();
        let mut sector_bytes = [0; SECTOR_BYTES];
        for sector in 0..model.sectors() {
            if model.is_known(sector) {
                continue;
            }
            let offset = (sector * SECTOR_BYTES) as u64;
            let Some(extent) = self.geometry.extents(offset, SECTOR_BYTES as u64).next() else {
                continue;
            };
            for copy in 0..extent.copies {
                let place = extent.place(copy);
                let Some(number) = self.slots[place.slot] else { continue };
                if paper.members[place.slot] != MemberState::InSync {
                    continue;
                }
                let disk = self.disks[number].borrow();
                disk.visible().read(DATA_OFFSET + place.offset_bytes as usize, &mut sector_bytes);
                let found = decode(sector, &sector_bytes);
                let allowed = model.initial(sector);
                assert!(
                    allowed.contains(&found),
                    "sector {sector}, which nobody wrote, has become {} on member {}",
                    show(found),
                    place.slot
                );
            }
        }
    }
}
