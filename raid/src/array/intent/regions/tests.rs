//! Tests of the maps of regions in the simulated world: at every step, what a crash would leave is
//! looked at.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

use uuid::Uuid;

use super::super::test_members::{Fails, Fault, TestMembers};
use super::*;
use crate::array::Timer;
use crate::drive::DriveError;
use crate::geometry::Level;
use crate::metadata::bitmap::{Bitmap, NewBitmap, RegionMap};
use crate::sim::world::{Clock, World};

const UUID: Uuid = Uuid::from_u128(7);
const REGION: u64 = 4096;
const COMPONENT: u64 = 1 << 20;
/// Where the map is on member `slot`.
const fn offset(slot: usize) -> u64 {
    8192 + 4096 * slot as u64
}
const DRIVE: usize = 256 << 10;
const SECOND: u64 = 1_000_000_000;

fn layout(kind: RegionsKind, slots: usize, covered: u64, region: u64) -> RegionsLayout {
    let new = NewBitmap {
        array_uuid: UUID,
        covered_bytes: covered,
        region_bytes: region as u32,
        events: 10,
    };
    let mut superblock = BitmapSuperblock::create(&new).with_events(1 << 40);
    if kind == RegionsKind::DegradedMap {
        superblock = superblock.with_state(BitmapState::STALE);
    }
    RegionsLayout {
        kind,
        superblock,
        set: RegionMap::empty(MapUnit::Component, covered, region),
        dirty: RegionMap::empty(MapUnit::Component, covered, region),
        offsets_bytes: (0..slots).map(|slot| Some(offset(slot))).collect(),
        events: 10,
        on_all_members: true,
    }
}

fn mirror(members: usize) -> Geometry {
    Geometry::new(Level::Raid1, members, 0, COMPONENT).unwrap()
}

/// A write as the test does it: under way, or done but not flushed on the slots named.
struct Written {
    range: Range<u64>,
    under_way: bool,
    volatile_on: Vec<usize>,
    /// Done when a flush of the slot began that has not ended.
    flushing_on: Vec<usize>,
}

struct Test {
    world: Rc<World>,
    members: Rc<TestMembers>,
    regions: Rc<Regions>,
    written: RefCell<BTreeMap<u64, Written>>,
    next: Cell<u64>,
    ended: Cell<u64>,
    refused: Cell<u64>,
}

impl Test {
    fn new(seed: u64, geometry: &Geometry, layout: &RegionsLayout) -> Rc<Self> {
        let world = World::new(seed);
        let members = TestMembers::new(&world, geometry.members(), DRIVE);
        let bitmap = Bitmap { superblock: layout.superblock, regions: layout.set.clone() };
        for slot in 0..geometry.members() {
            let all: Vec<u8> = bitmap.blocks().iter().flat_map(|block| block.to_vec()).collect();
            members.put(slot, offset(slot) as usize, &all);
        }
        let test = Rc::new(Self {
            regions: Rc::new(Regions::new(geometry, layout, false)),
            world,
            members,
            written: RefCell::default(),
            next: Cell::new(0),
            ended: Cell::new(0),
            refused: Cell::new(0),
        });
        let flushed = Rc::downgrade(&test);
        *test.members.on_flush.borrow_mut() = Some(Box::new(move |slot, ended| {
            if let Some(test) = flushed.upgrade() {
                test.flush(slot, ended);
            }
        }));
        test
    }

    fn flush(&self, slot: usize, ended: bool) {
        for written in self.written.borrow_mut().values_mut() {
            if !ended && !written.under_way && written.volatile_on.contains(&slot) {
                written.flushing_on.push(slot);
            }
            if ended && written.flushing_on.contains(&slot) {
                written.volatile_on.retain(|&other| other != slot);
                written.flushing_on.retain(|&other| other != slot);
            }
        }
    }

    /// Writes a range as the array does; `time`: how long the members take.
    async fn write(&self, range: Range<u64>, time: u64) -> Result<(), ArrayError> {
        let result = self.regions.begin(&*self.members, &range).await;
        let Ok(regions) = result else {
            self.refused.set(self.refused.get() + 1);
            return result.map(|_| ());
        };
        let id = self.next.replace(self.next.get() + 1);
        let slots = (0..self.members.slots()).filter(|&slot| self.members.is_writable(slot));
        let written = Written {
            range,
            under_way: true,
            volatile_on: slots.collect(),
            flushing_on: Vec::new(),
        };
        self.written.borrow_mut().insert(id, written);
        self.world.sleep_ns(time).await;
        if let Some(written) = self.written.borrow_mut().get_mut(&id) {
            written.under_way = false;
        }
        self.members.settled().await?;
        let result = self.regions.end(&*self.members, regions, true).await;
        self.ended.set(self.ended.get() + 1);
        result
    }

    fn now_ns(&self) -> u64 {
        Timer::now(&Clock(Rc::clone(&self.world))).as_nanos() as u64
    }

    fn bitmap_of(&self, slot: usize, covered: u64) -> Bitmap {
        self.members.look(slot, |drive| {
            let bytes = &drive[offset(slot) as usize..];
            Bitmap::parse(&bytes[..bytes.len().min(64 << 10)], UUID, MapUnit::Component, covered)
                .unwrap()
        })
    }

    /// What may differ between members after a crash now has its bit, on every member that the
    /// next start could read it from.
    fn check(&self, covered: u64, region: u64) {
        let risky: Vec<_> = self
            .written
            .borrow()
            .values()
            .filter(|w| w.under_way || !w.volatile_on.is_empty())
            .map(|w| w.range.clone())
            .collect();
        if risky.is_empty() {
            return;
        }
        for slot in (0..self.members.slots()).filter(|&slot| self.members.is_believed(slot)) {
            let bits = self.bitmap_of(slot, covered).regions;
            for range in &risky {
                for at in range.start / region..range.end.div_ceil(region) {
                    assert!(bits.contains(at), "region {at} of {range:?} on member {slot}");
                }
            }
        }
    }
}

/// Runs writers at random places, with `faults`, and looks at every step.
fn random_run(seed: u64, fault: Option<Fault>, geometry: &Geometry) -> Rc<Test> {
    let layout = layout(RegionsKind::Bitmap, geometry.members(), COMPONENT, REGION);
    let test = Test::new(seed, geometry, &layout);
    test.members.fault.set(fault);
    let watcher = Rc::downgrade(&test);
    test.world.add_hook(move || {
        if let Some(test) = watcher.upgrade() {
            test.check(COMPONENT, REGION);
        }
    });
    let keeper = Rc::clone(&test);
    test.world.spawn(async move {
        let clock = Clock(Rc::clone(&keeper.world));
        keeper.regions.keep(&*keeper.members, &clock).await;
    });
    let done = Rc::new(Cell::new(0));
    for _ in 0..4 {
        let (test, done) = (Rc::clone(&test), Rc::clone(&done));
        test.world.clone().spawn(async move {
            for _ in 0..12 {
                let start = test.world.below(60) * 512;
                let range = start..start + 512 * (1 + test.world.below(20));
                let _ = test.write(range, test.world.below(30_000)).await;
                let pause = if test.world.one_in(4) { 9 * SECOND } else { 1000 };
                test.world.sleep_ns(test.world.below(pause)).await;
            }
            done.set(done.get() + 1);
        });
    }
    assert!(test.world.run_until(|| done.get() == 4));
    test
}

#[test]
fn a_bit_is_there_as_long_as_copies_may_differ() {
    let geometry = mirror(3);
    for seed in 0..60 {
        let test = random_run(seed, None, &geometry);
        assert_eq!(test.ended.get(), 48);
        let idle_at = test.now_ns() + 30 * SECOND;
        test.world.run_until(|| test.now_ns() > idle_at);
        for slot in 0..3 {
            let bitmap = test.bitmap_of(slot, COMPONENT);
            assert!(bitmap.regions.is_empty(), "seed {seed}: idle regions are clean");
            assert_eq!(bitmap.superblock.events_cleared(), 10);
        }
        test.regions.stop();
    }
}

/// A member that fails does not take the bits of the others with it, and none is cleared after
/// that: they are what it misses.
#[test]
fn members_that_fail_leave_the_bits_right() {
    let geometry = mirror(3);
    for seed in 0..60 {
        let slot = (seed % 3) as usize;
        let what = match seed / 3 % 2 {
            0 => Fails::Write(DriveError::Io { errno: 5 }),
            _ => Fails::Flush,
        };
        let fault = Fault { slot, what, after: seed / 6 };
        let test = random_run(seed, Some(fault), &geometry);
        assert_eq!(test.ended.get(), 48, "seed {seed}: writes go on");
        if !test.members.is_degraded() {
            continue;
        }
        let (a, b) = ((slot + 1) % 3, (slot + 2) % 3);
        let before = test.bitmap_of(a, COMPONENT).regions;
        let later = test.now_ns() + 40 * SECOND;
        test.world.run_until(|| test.now_ns() > later);
        let after = test.bitmap_of(a, COMPONENT).regions;
        assert_eq!(before, after, "seed {seed}: nothing is cleared");
        assert_eq!(test.bitmap_of(b, COMPONENT).regions, after);
        assert_eq!(test.regions.missed_since(10), Some(after));
        assert_eq!(test.regions.missed_since(9), None);
        test.regions.stop();
    }
}

#[test]
fn without_space_for_a_bit_the_write_is_refused_and_later_ones_try_again() {
    let geometry = mirror(2);
    for seed in 0..20 {
        let what = Fails::Write(DriveError::NoSpace);
        let test = random_run(seed, Some(Fault { slot: 1, what, after: seed % 4 }), &geometry);
        assert!(!test.members.is_degraded());
        assert!(test.refused.get() <= 4, "only those who waited for it");
        assert_eq!(test.ended.get() + test.refused.get(), 48);
        test.regions.stop();
    }
}

#[test]
fn a_write_to_a_region_whose_bit_is_there_writes_nothing() {
    let geometry = mirror(2);
    let layout = layout(RegionsKind::Bitmap, 2, COMPONENT, REGION);
    let test = Test::new(1, &geometry, &layout);
    let writer = Rc::clone(&test);
    test.world.spawn(async move {
        writer.write(0..512, 10).await.unwrap();
        let writes = writer.members.writes.borrow().clone();
        assert_eq!(writes, [1, 1]);
        writer.write(1024..4096, 10).await.unwrap();
        assert_eq!(*writer.members.writes.borrow(), writes);
        writer.write(4000..5000, 10).await.unwrap();
        assert_eq!(*writer.members.writes.borrow(), [2, 2], "the next region's bit");
    });
    assert!(test.world.run_until(|| test.ended.get() == 3));
}

/// Many regions, in several blocks: writers of one block share its write.
#[test]
fn writers_of_a_block_share_its_writes() {
    let component = 512 << 20;
    let geometry = Geometry::new(Level::Raid1, 2, 0, component).unwrap();
    let layout = layout(RegionsKind::Bitmap, 2, component, REGION);
    let test = Test::new(3, &geometry, &layout);
    for n in 0..200u64 {
        let test = Rc::clone(&test);
        test.world.clone().spawn(async move {
            // Half of them in the first block, half in the fourth.
            let region = n + if n % 2 == 0 { 0 } else { 3 * 32_768 };
            test.write(region * REGION..region * REGION + 512, 1_000_000).await.unwrap();
        });
    }
    assert!(test.world.run_until(|| test.next.get() == 200));
    test.check(component, REGION);
    let writes = test.members.writes.borrow()[0];
    assert!(writes <= 40, "{writes} writes for 200");
    assert!(test.world.run_until(|| test.ended.get() == 200));
}

/// The bits of dirty regions stay until they have been made consistent.
#[test]
fn dirty_regions_are_known_and_stay_set() {
    let geometry = Geometry::new(Level::Raid5, 4, 4096, COMPONENT).unwrap();
    let mut layout = layout(RegionsKind::Bitmap, 4, COMPONENT, 2 * REGION);
    for region in [3, 7] {
        layout.set.insert(region);
        layout.dirty.insert(region);
    }
    let test = Test::new(5, &geometry, &layout);
    let row = 3 * 4096;
    assert_eq!(test.regions.dirty_ranges(), [6 * row..8 * row, 14 * row..16 * row]);
    assert!(test.regions.is_dirty(&(7 * row..7 * row + 512)));
    assert!(!test.regions.is_dirty(&(0..6 * row)) && !test.regions.is_dirty(&(8 * row..9 * row)));
    let keeper = Rc::clone(&test);
    test.world.spawn(async move {
        let clock = Clock(Rc::clone(&keeper.world));
        keeper.regions.keep(&*keeper.members, &clock).await;
    });
    test.world.run_until(|| test.now_ns() > 60 * SECOND);
    assert_eq!(test.bitmap_of(2, COMPONENT).regions.len(), 2);
    // A part of a region does not make it clean.
    let marks = test.regions.dirty_marks();
    assert!(test.regions.made_consistent(&(6 * row..7 * row), marks));
    assert!(test.regions.is_dirty(&(6 * row..7 * row)));
    assert!(test.regions.made_consistent(&(5 * row..8 * row), marks));
    assert!(!test.regions.is_dirty(&(6 * row..8 * row)));
    test.world.run_until(|| test.now_ns() > 120 * SECOND);
    let left = test.bitmap_of(2, COMPONENT).regions;
    assert!(left.contains(7) && left.len() == 1);
    // A write that was left half done.
    let regions = test.regions.regions_of(&(0..512));
    test.regions.mark_dirty(&regions);
    assert_eq!(test.regions.dirty_ranges(), [0..2 * row, 14 * row..16 * row]);
    assert!(!test.regions.made_consistent(&(0..16 * row), marks), "marked since");
    assert!(test.regions.made_consistent(&(0..16 * row), test.regions.dirty_marks()));
    assert!(!test.regions.has_dirty());
    test.regions.stop();
}

/// Bits of a clean stop: those of idle regions go at once.
#[test]
fn a_clean_stop_clears_what_is_idle() {
    let geometry = mirror(2);
    let layout = layout(RegionsKind::Bitmap, 2, COMPONENT, REGION);
    let test = Test::new(9, &geometry, &layout);
    let writer = Rc::clone(&test);
    let done = Rc::new(Cell::new(false));
    let told = Rc::clone(&done);
    test.world.spawn(async move {
        writer.write(0..40_000, 10).await.unwrap();
        let held = writer.regions.begin(&*writer.members, &(80_000..80_100)).await.unwrap();
        writer.regions.clear_idle(&*writer.members).await;
        assert_eq!(writer.bitmap_of(0, COMPONENT).regions.len(), 1);
        writer.regions.end(&*writer.members, held, true).await.unwrap();
        writer.regions.clear_idle(&*writer.members).await;
        assert!(writer.bitmap_of(1, COMPONENT).regions.is_empty());
        told.set(true);
    });
    assert!(test.world.run_until(|| done.get()));
}

/// The event count that the cleared bits are of is on all members before a bit is cleared.
#[test]
fn events_cleared_goes_before_the_bits() {
    let geometry = mirror(2);
    for seed in 0..40 {
        let layout = layout(RegionsKind::Bitmap, 2, COMPONENT, REGION);
        let test = Test::new(seed, &geometry, &layout);
        test.regions.note_events(25, false);
        let watcher = Rc::downgrade(&test);
        let had_bit = Rc::new(Cell::new([false; 2]));
        let seen = Rc::clone(&had_bit);
        test.world.add_hook(move || {
            let Some(test) = watcher.upgrade() else { return };
            let mut had = seen.get();
            for (slot, had) in had.iter_mut().enumerate() {
                let bitmap = test.bitmap_of(slot, COMPONENT);
                if bitmap.regions.contains(5) {
                    *had = true;
                } else if *had {
                    let cleared = (0..2).map(|s| test.bitmap_of(s, COMPONENT).superblock);
                    assert!(cleared.into_iter().all(|s| s.events_cleared() == 25), "seed {seed}");
                }
            }
            seen.set(had);
        });
        let writer = Rc::clone(&test);
        test.world.spawn(async move {
            writer.write(5 * REGION..5 * REGION + 512, 10).await.unwrap();
            let clock = Clock(Rc::clone(&writer.world));
            writer.regions.keep(&*writer.members, &clock).await;
        });
        test.world.run_until(|| test.now_ns() > 30 * SECOND);
        assert_eq!(had_bit.get(), [true; 2]);
        assert_eq!(test.regions.missed_since(24), None);
        assert!(test.regions.missed_since(25).is_some());
        test.regions.stop();
    }
}

/// Without memory of the commands' a bit is still set, from the reserve.
#[test]
fn without_memory_bits_are_set_all_the_same() {
    let geometry = mirror(2);
    let test = Test::new(1, &geometry, &layout(RegionsKind::Bitmap, 2, COMPONENT, REGION));
    test.members.is_short.set(true);
    let done = Rc::new(Cell::new(0));
    for n in 0..40 {
        let (test, done) = (Rc::clone(&test), Rc::clone(&done));
        test.world.clone().spawn(async move {
            test.write(n * REGION..n * REGION + 512, 1000).await.unwrap();
            done.set(done.get() + 1);
        });
    }
    assert!(test.world.run_until(|| done.get() == 40));
}

/// A member that comes gets all bits, also those that are set while it comes.
#[test]
fn a_member_that_comes_has_all_bits() {
    let geometry = mirror(3);
    for seed in 0..40 {
        let layout = layout(RegionsKind::Bitmap, 3, COMPONENT, REGION);
        let test = Test::new(seed, &geometry, &layout);
        test.members.fail(2);
        test.members.put(2, offset(2) as usize, &[0xee; 4096]);
        let done = Rc::new(Cell::new(0));
        for _ in 0..3 {
            let (test, done) = (Rc::clone(&test), Rc::clone(&done));
            test.world.clone().spawn(async move {
                for _ in 0..10 {
                    let start = test.world.below(100) * 512;
                    test.write(start..start + 512, test.world.below(20_000)).await.unwrap();
                }
                done.set(done.get() + 1);
            });
        }
        let comer = Rc::clone(&test);
        let came = Rc::clone(&done);
        test.world.spawn(async move {
            comer.world.sleep_ns(comer.world.below(200_000)).await;
            comer.regions.admit(&*comer.members, 2, offset(2)).await.unwrap();
            comer.world.sleep_ns(comer.world.below(200_000)).await;
            comer.members.set_writable(2, true);
            comer.members.forgive(2);
            came.set(came.get() + 1);
        });
        assert!(test.world.run_until(|| done.get() == 4));
        let [a, c] = [0, 2].map(|slot| test.bitmap_of(slot, COMPONENT));
        assert_eq!(a, c, "seed {seed}");
    }
}

/// The degraded-write map: nothing is written while all members are there; when one fails, all that
/// it may lack is in the map before a write that it missed is acknowledged.
#[test]
fn the_degraded_map_has_all_that_a_member_may_lack() {
    let geometry = mirror(3);
    for seed in 0..80 {
        let layout = layout(RegionsKind::DegradedMap, 3, COMPONENT, REGION);
        let test = Test::new(seed, &geometry, &layout);
        test.regions.note_events(20, false);
        let keeper = Rc::clone(&test);
        test.world.spawn(async move {
            let clock = Clock(Rc::clone(&keeper.world));
            keeper.regions.keep(&*keeper.members, &clock).await;
        });
        let (done, failed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        for writer in 0..3 {
            let (test, done, failed) = (Rc::clone(&test), Rc::clone(&done), Rc::clone(&failed));
            test.world.clone().spawn(async move {
                for n in 0..14 {
                    if writer == 0 && n == 7 {
                        assert_eq!(*test.members.writes.borrow(), [0, 0, 0], "seed {seed}");
                        failed.set(true);
                        test.members.fail(1);
                    }
                    let start = test.world.below(60) * 512;
                    let range = start..start + 512 * (1 + test.world.below(20));
                    let was_failed = failed.get();
                    test.write(range.clone(), test.world.below(30_000)).await.unwrap();
                    if failed.get() {
                        // Acknowledged: so it is in the map, and so is what was not flushed on
                        // the member when it failed.
                        let bitmap = test.bitmap_of(0, COMPONENT);
                        assert!(bitmap.counts_at(1), "seed {seed}");
                        assert_eq!(bitmap.superblock.events_cleared(), 20);
                        let written = test.written.borrow();
                        let lacks = written.values().filter(|w| {
                            w.volatile_on.contains(&1) && !w.under_way
                                || was_failed && w.range == range
                        });
                        for written in lacks {
                            for at in
                                written.range.start / REGION..written.range.end.div_ceil(REGION)
                            {
                                assert!(bitmap.regions.contains(at), "seed {seed}: {at}");
                            }
                        }
                    }
                    let pause = if test.world.one_in(4) { 9 * SECOND } else { 1000 };
                    test.world.sleep_ns(test.world.below(pause)).await;
                }
                done.set(done.get() + 1);
            });
        }
        assert!(test.world.run_until(|| done.get() == 3));
        assert!(test.regions.missed_since(20).is_some_and(|missed| !missed.is_empty()));
        assert_eq!(test.regions.missed_since(19), None);
        comes_back(&test);
        test.regions.stop();
    }
}

/// The failed member is brought up to date: from then on the map does not count, until the next one
/// fails.
fn comes_back(test: &Rc<Test>) {
    let done = Rc::new(Cell::new(false));
    let (comer, told) = (Rc::clone(test), Rc::clone(&done));
    test.world.spawn(async move {
        comer.regions.admit(&*comer.members, 1, offset(1)).await.unwrap();
        comer.members.set_writable(1, true);
        comer.members.forgive(1);
        comer.regions.before_in_sync(&*comer.members).await.unwrap();
        assert!((0..3).all(|slot| !comer.bitmap_of(slot, COMPONENT).counts_at(1)));
        assert_eq!(comer.regions.missed_since(1000), None);
        comer.regions.note_events(30, false);
        let writes = comer.members.writes.borrow().clone();
        comer.write(0..512, 10).await.unwrap();
        assert_eq!(*comer.members.writes.borrow(), writes, "nothing to write down");
        comer.members.fail(2);
        comer.write(50 * REGION..50 * REGION + 512, 10).await.unwrap();
        let missed = comer.regions.missed_since(30).unwrap();
        assert!(missed.contains(0) && missed.contains(50));
        assert_eq!(comer.bitmap_of(1, COMPONENT).superblock.events_cleared(), 30);
        told.set(true);
    });
    assert!(test.world.run_until(|| done.get()));
}

/// Started with a member missing: a map that counts goes on, one that does not is left alone.
#[test]
fn a_degraded_map_goes_on_after_a_restart() {
    let geometry = mirror(3);
    for counts in [true, false] {
        let mut layout = layout(RegionsKind::DegradedMap, 3, COMPONENT, REGION);
        if counts {
            layout.superblock = layout.superblock.with_state(BitmapState::empty());
            layout.set.insert(9);
        }
        let world = World::new(4);
        let members = TestMembers::new(&world, 3, DRIVE);
        let regions = Rc::new(Regions::new(&geometry, &layout, true));
        members.fail(1);
        let done = Rc::new(Cell::new(false));
        let told = Rc::clone(&done);
        let (m, r) = (Rc::clone(&members), Rc::clone(&regions));
        world.spawn(async move {
            let token = r.begin(&*m, &(0..512)).await.unwrap();
            r.end(&*m, token, true).await.unwrap();
            told.set(true);
        });
        assert!(world.run_until(|| done.get()));
        let missed = regions.missed_since(10);
        if counts {
            let missed = missed.unwrap();
            assert!(missed.contains(0) && missed.contains(9) && missed.len() == 2);
            assert_eq!(*members.writes.borrow(), [1, 0, 1]);
        } else {
            assert_eq!(missed, None);
            assert_eq!(*members.writes.borrow(), [0, 0, 0]);
        }
    }
}

#[test]
fn an_abandoned_write_of_a_bit_ends_all_writing() {
    let geometry = mirror(2);
    let layout = layout(RegionsKind::Bitmap, 2, COMPONENT, REGION);
    let test = Test::new(1, &geometry, &layout);
    let mut first = Box::pin(test.regions.begin(&*test.members, &(0..512)));
    let waker = futures_util::task::noop_waker();
    let polled = first.as_mut().poll(&mut std::task::Context::from_waker(&waker));
    assert!(polled.is_pending());
    drop(first);
    let late = Rc::clone(&test);
    test.world.spawn(async move {
        assert!(late.regions.begin(&*late.members, &(0..512)).await.is_err());
        late.ended.set(1);
    });
    assert!(test.world.run_until(|| test.ended.get() == 1));
}
