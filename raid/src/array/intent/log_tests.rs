//! Tests of the logs in the simulated world: at every step, what a crash would leave is read as the
//! replay reads it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::super::test_members::{Fails, Fault, TestMembers};
use super::*;
use crate::drive::DriveError;
use crate::geometry::Level;
use crate::metadata::checks::Checks;
use crate::replay::scan::{live_from, newest_ppl, superseded, write_log_units};
use crate::sim::world::World;

const UUID: [u8; 16] = [9; 16];
const CHUNK: u64 = 16 << 10;
const PLACE_LEN: u64 = 512 << 10;
const DRIVE: usize = 600 << 10;

const fn offset(slot: usize) -> u64 {
    4096 + 4096 * slot as u64
}

fn place(slot: usize) -> LogPlace {
    LogPlace { offset_bytes: offset(slot), len_bytes: PLACE_LEN }
}

fn geometry(kind: LogKind) -> Geometry {
    let (level, members) = match kind {
        LogKind::Ppl => (Level::Raid5, 4),
        LogKind::WriteLog => (Level::Raid6, 5),
    };
    Geometry::new(level, members, CHUNK as u32, 1 << 20).unwrap()
}

/// What the test knows of a record that was made durable.
struct Written {
    row: u64,
    within: u64,
    len: u32,
    p: Vec<u8>,
    q: Vec<u8>,
    under_way: bool,
    volatile_on: Vec<usize>,
    flushing_on: Vec<usize>,
}

struct Test {
    world: Rc<World>,
    members: Rc<TestMembers>,
    log: Log,
    geometry: Geometry,
    written: RefCell<BTreeMap<u64, Written>>,
    busy: RefCell<Vec<u64>>,
    next: Cell<u64>,
    refused: Cell<u64>,
}

impl Test {
    fn new(seed: u64, kind: LogKind) -> Rc<Self> {
        let geometry = geometry(kind);
        let world = World::new(seed);
        let members = TestMembers::new(&world, geometry.members(), DRIVE);
        for slot in 0..geometry.members() {
            let mark = crate::replay::mark(kind, UUID, slot, 6);
            members.put(slot, offset(slot) as usize, &mark[..]);
        }
        let layout = LogLayout {
            kind,
            array_uuid: UUID,
            places: (0..geometry.members()).map(|slot| Some(place(slot))).collect(),
            next_generation: 7,
        };
        let test = Rc::new(Self {
            log: Log::new(&geometry, &layout),
            world,
            members,
            geometry,
            written: RefCell::default(),
            busy: RefCell::default(),
            next: Cell::new(0),
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
        let mut all = self.written.borrow_mut();
        for written in all.values_mut() {
            if !ended && !written.under_way && written.volatile_on.contains(&slot) {
                written.flushing_on.push(slot);
            }
            if ended && written.flushing_on.contains(&slot) {
                written.volatile_on.retain(|&other| other != slot);
                written.flushing_on.retain(|&other| other != slot);
            }
        }
    }

    fn buffer(&self, bytes: &[u8]) -> Option<SharedBuffer> {
        let mut buffer = self.members.allocate(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Some(buffer.freeze())
    }

    /// Writes a random part of a row that nobody else writes.
    async fn write(&self) {
        let row = loop {
            let row = self.world.below(8);
            if !self.busy.borrow().contains(&row) {
                break row;
            }
            self.world.sleep_ns(1000).await;
        };
        self.busy.borrow_mut().push(row);
        let chunks = self.geometry.data_chunks();
        let first = self.world.below(chunks as u64) as usize;
        let count = 1 + self.world.below((chunks - first) as u64) as usize;
        let within = self.world.below(30) * 512;
        let len = 512 * (1 + self.world.below((CHUNK - within) / 512)) as u32;
        let is_whole = count == chunks;
        let random = || (0..len).map(|_| self.world.below(256) as u8).collect::<Vec<u8>>();
        let (p, q) = if is_whole { (Vec::new(), Vec::new()) } else { (random(), random()) };
        let part = |bytes: &[u8], slot: Option<usize>| {
            let wanted = slot.is_some_and(|slot| self.members.is_writable(slot)) && !is_whole;
            wanted.then(|| self.buffer(bytes).unwrap())
        };
        let record = LogRecord {
            row,
            within_bytes: within,
            len_bytes: len,
            first,
            count,
            p: part(&p, Some(self.geometry.parity_slot(row))),
            q: part(&q, self.geometry.q_slot(row)),
            checks: Checks { new: Some(len), old: None },
        };
        let (has_p, has_q) = (record.p.is_some() || is_whole, record.q.is_some() || is_whole);
        match self.log.log(&*self.members, record).await {
            Err(_) => self.refused.set(self.refused.get() + 1),
            Ok(token) => {
                let slots = (0..self.members.slots()).filter(|&s| self.members.is_writable(s));
                let id = self.next.replace(self.next.get() + 1);
                let written = Written {
                    row,
                    within,
                    len,
                    p: if has_p { p } else { Vec::new() },
                    q: if has_q { q } else { Vec::new() },
                    under_way: true,
                    volatile_on: slots.collect(),
                    flushing_on: Vec::new(),
                };
                self.written.borrow_mut().insert(id, written);
                self.check();
                self.world.sleep_ns(self.world.below(60_000)).await;
                if let Some(written) = self.written.borrow_mut().get_mut(&id) {
                    written.under_way = false;
                }
                self.members.settled().await.unwrap();
                if let Some(token) = token {
                    self.log.end(token);
                }
            }
        }
        self.busy.borrow_mut().retain(|&other| other != row);
    }

    /// Whatever is under way or not flushed would be found by who replays the logs now.
    fn check(&self) {
        self.written.borrow_mut().retain(|_, w| {
            // A member that has failed, which is recorded, has nothing that matters.
            w.volatile_on.retain(|&slot| self.members.is_believed(slot));
            w.under_way || !w.volatile_on.is_empty()
        });
        let in_use = |slot: usize| self.members.is_believed(slot);
        match self.log.kind {
            LogKind::Ppl => {
                for slot in (0..self.members.slots()).filter(|&slot| in_use(slot)) {
                    self.check_ppl(slot);
                }
            }
            LogKind::WriteLog => self.check_write_logs(),
        }
    }

    fn check_ppl(&self, slot: usize) {
        let all = self.written.borrow();
        let of_slot = |w: &&Written| self.geometry.parity_slot(w.row) == slot;
        if !all.values().any(|w| of_slot(&w)) {
            return;
        }
        let drive = self.members.image(slot);
        let area = &drive[offset(slot) as usize..][..PLACE_LEN as usize];
        let read = |at: u64, bytes: &mut [u8]| {
            bytes.copy_from_slice(&area[at as usize..at as usize + bytes.len()]);
            true
        };
        let newest = newest_ppl(&read, PLACE_LEN, ppl::signature(UUID)).unwrap();
        for written in all.values().filter(of_slot) {
            let mut at = newest.offset_bytes as usize + ppl::HEADER_BYTES;
            let found = newest.header.entries.iter().any(|entry| {
                let parity = &area[at..at + entry.parity_bytes as usize];
                at += entry.parity_bytes as usize;
                let stripes = entry.stripes(&self.geometry).unwrap();
                stripes[0].row == written.row
                    && stripes[0].within_bytes == written.within
                    && parity == written.p
                    && ppl::crc32c(parity) == entry.checksum
                    && entry.checks.new == Some(written.len)
            });
            assert!(found, "row {} is not in the newest unit of member {slot}", written.row);
        }
    }

    fn check_write_logs(&self) {
        let all = self.written.borrow();
        if all.is_empty() {
            return;
        }
        let mut units = Vec::new();
        for slot in (0..self.members.slots()).filter(|&slot| self.members.is_believed(slot)) {
            let drive = self.members.image(slot);
            let area = drive[offset(slot) as usize..][..PLACE_LEN as usize].to_vec();
            let read = move |at: u64, bytes: &mut [u8]| {
                bytes.copy_from_slice(&area[at as usize..at as usize + bytes.len()]);
                true
            };
            units.extend(write_log_units(&read, PLACE_LEN, UUID, slot).unwrap());
        }
        let live_from = live_from(&units);
        let superseded = superseded(&units);
        units.retain(|found| !superseded.contains(&found.unit.generation));
        for written in all.values() {
            let (p, q) = (
                self.geometry.parity_slot(written.row),
                self.geometry.q_slot(written.row).unwrap(),
            );
            for (slot, parity) in [(p, &written.p), (q, &written.q)] {
                // Records for a member that was out when they were made are not there.
                let was_in = parity.len() == written.len as usize;
                if !self.members.is_believed(slot) || !was_in {
                    continue;
                }
                let found = units.iter().any(|found| {
                    let mut at = 0;
                    let unit = &found.unit;
                    unit.slot as usize == slot
                        && unit.generation >= live_from
                        && unit.entries.iter().any(|entry| {
                            let data = &found.data[at..at + entry.data_bytes()];
                            at += entry.data_bytes();
                            entry.row == written.row
                                && u64::from(entry.within_bytes) == written.within
                                && data == parity
                                && entry.checks.new == Some(written.len)
                        })
                });
                assert!(found, "row {} is not live on member {slot}", written.row);
            }
        }
    }
}

fn random_run(seed: u64, kind: LogKind, fault: Option<Fault>) -> Rc<Test> {
    let test = Test::new(seed, kind);
    test.members.fault.set(fault);
    let watcher = Rc::downgrade(&test);
    test.world.add_hook(move || {
        if let Some(test) = watcher.upgrade()
            && test.world.one_in(3)
        {
            test.check();
        }
    });
    let done = Rc::new(Cell::new(0));
    for _ in 0..5 {
        let (test, done) = (Rc::clone(&test), Rc::clone(&done));
        test.world.clone().spawn(async move {
            for _ in 0..10 {
                test.write().await;
                test.world.sleep_ns(test.world.below(10_000)).await;
            }
            done.set(done.get() + 1);
        });
    }
    assert!(test.world.run_until(|| done.get() == 5), "seed {seed}: somebody waits for ever");
    test
}

/// A record of a write to the beginning of a row's first chunk; the same for P and Q.
fn first_chunk(row: u64, len_bytes: u32, parity: Option<SharedBuffer>) -> LogRecord {
    LogRecord {
        row,
        within_bytes: 0,
        len_bytes,
        first: 0,
        count: 1,
        p: parity.clone(),
        q: parity,
        checks: Checks::NONE,
    }
}

#[test]
fn a_ppl_has_all_that_is_under_way_in_its_newest_unit() {
    for seed in 0..25 {
        let test = random_run(seed, LogKind::Ppl, None);
        assert_eq!((test.next.get(), test.refused.get()), (50, 0));
    }
}

#[test]
fn a_write_log_has_all_that_is_under_way_in_live_units() {
    for seed in 0..25 {
        let test = random_run(seed, LogKind::WriteLog, None);
        assert_eq!((test.next.get(), test.refused.get()), (50, 0));
    }
}

#[test]
fn writes_go_on_without_a_member_that_fails() {
    for seed in 0..48 {
        let kind = if seed % 2 == 0 { LogKind::Ppl } else { LogKind::WriteLog };
        let what = match seed / 2 % 2 {
            0 => Fails::Write(DriveError::Io { errno: 5 }),
            _ => Fails::Flush,
        };
        let fault = Fault { slot: (seed / 4 % 4) as usize, what, after: seed / 8 };
        let test = random_run(seed, kind, Some(fault));
        assert_eq!((test.next.get(), test.refused.get()), (50, 0), "seed {seed}");
    }
}

/// A unit that was not written whole for lack of space does not hide the ones after it.
#[test]
fn without_space_those_in_the_unit_are_refused_and_later_ones_are_found() {
    for seed in 0..24 {
        let kind = if seed % 2 == 0 { LogKind::Ppl } else { LogKind::WriteLog };
        let what = Fails::Write(DriveError::NoSpace);
        let fault = Fault { slot: (seed % 4) as usize, what, after: seed / 4 };
        let test = random_run(seed, kind, Some(fault));
        assert!(test.refused.get() > 0 || test.members.fault.get().is_some(), "seed {seed}");
        assert!(test.refused.get() <= 5 && test.next.get() + test.refused.get() == 50);
    }
}

#[test]
fn when_the_array_cannot_lose_the_member_nobody_writes() {
    for kind in [LogKind::Ppl, LogKind::WriteLog] {
        let test = Test::new(1, kind);
        test.members.tolerance.set(0);
        let what = Fails::Write(DriveError::Io { errno: 5 });
        let slot = test.geometry.parity_slot(0);
        test.members.fault.set(Some(Fault { slot, what, after: 0 }));
        let done = Rc::new(Cell::new(0));
        for row in [0, 5, 10] {
            let (test, done) = (Rc::clone(&test), Rc::clone(&done));
            test.world.clone().spawn(async move {
                let parity = test.buffer(&[1; 512]);
                let record =
                    first_chunk(row * if kind == LogKind::Ppl { 4 } else { 5 } % 40, 512, parity);
                assert!(test.log.log(&*test.members, record).await.is_err());
                done.set(done.get() + 1);
            });
        }
        assert!(test.world.run_until(|| done.get() == 3));
    }
}

/// Writes of many rows with one parity member take few log writes.
#[test]
fn records_of_many_share_a_unit() {
    for kind in [LogKind::Ppl, LogKind::WriteLog] {
        let test = Test::new(2, kind);
        let members = test.geometry.members() as u64;
        let done = Rc::new(Cell::new(0));
        for n in 0..64 {
            let (test, done) = (Rc::clone(&test), Rc::clone(&done));
            test.world.clone().spawn(async move {
                let parity = test.buffer(&[n as u8; 4096]);
                let record = first_chunk(n * members, 4096, parity);
                let token = test.log.log(&*test.members, record).await.unwrap().unwrap();
                test.world.sleep_ns(40_000).await;
                test.log.end(token);
                done.set(done.get() + 1);
            });
        }
        assert!(test.world.run_until(|| done.get() == 64));
        let writes = test.members.writes.borrow()[test.geometry.parity_slot(0)];
        assert!((2..=16).contains(&writes), "{kind:?}: {writes} log writes for 64 rows");
    }
}

/// Without memory of the commands' a record still is written, from the reserve; all get their turn.
#[test]
fn without_memory_records_are_written_one_by_one() {
    for kind in [LogKind::Ppl, LogKind::WriteLog] {
        let test = Test::new(3, kind);
        let done = Rc::new(Cell::new(0));
        for row in 0..60 {
            let (test, done) = (Rc::clone(&test), Rc::clone(&done));
            let parity = test.buffer(&[7; CHUNK as usize]);
            test.world.clone().spawn(async move {
                let record = first_chunk(row, CHUNK as u32, parity);
                let token = test.log.log(&*test.members, record).await.unwrap().unwrap();
                test.world.sleep_ns(40_000).await;
                test.log.end(token);
                done.set(done.get() + 1);
            });
        }
        test.members.is_short.set(true);
        assert!(test.world.run_until(|| done.get() == 60), "{kind:?}: {} of 60", done.get());
    }
}

/// A member that comes back: nothing of what its log held counts, and what is logged from then on
/// is found.
#[test]
fn a_member_that_comes_has_an_empty_log() {
    for seed in 0..24 {
        let kind = if seed % 2 == 0 { LogKind::Ppl } else { LogKind::WriteLog };
        let test = random_run(seed, kind, None);
        let slot = (seed % 4) as usize;
        test.members.fail(slot);
        let done = Rc::new(Cell::new(0));
        let (comer, told) = (Rc::clone(&test), Rc::clone(&done));
        test.world.spawn(async move {
            comer.members.settled().await.unwrap();
            for _ in 0..4 {
                comer.write().await;
            }
            comer.log.admit(&*comer.members, slot, place(slot)).await.unwrap();
            // Its parity is rebuilt, and not relied on before everything is flushed.
            comer.written.borrow_mut().retain(|_, w| comer.geometry.parity_slot(w.row) != slot);
            for written in comer.written.borrow_mut().values_mut() {
                if comer.geometry.q_slot(written.row) == Some(slot) {
                    written.q.clear();
                }
            }
            comer.members.set_writable(slot, true);
            comer.members.forgive(slot);
            comer.check();
            told.set(1);
        });
        assert!(test.world.run_until(|| done.get() == 1));
        for _ in 0..4 {
            let (test, done) = (Rc::clone(&test), Rc::clone(&done));
            test.world.clone().spawn(async move {
                for _ in 0..8 {
                    test.write().await;
                }
                done.set(done.get() + 1);
            });
        }
        assert!(test.world.run_until(|| done.get() == 5), "seed {seed}");
    }
}

#[test]
fn an_abandoned_unit_ends_all_logging() {
    let test = Test::new(1, LogKind::Ppl);
    let record = |test: &Test| LogRecord {
        row: 0,
        within_bytes: 0,
        len_bytes: 512,
        first: 0,
        count: 1,
        p: test.buffer(&[1; 512]),
        q: None,
        checks: Checks::NONE,
    };
    let mut first = Box::pin(test.log.log(&*test.members, record(&test)));
    let waker = futures_util::task::noop_waker();
    let polled =
        std::future::Future::poll(first.as_mut(), &mut std::task::Context::from_waker(&waker));
    assert!(polled.is_pending());
    drop(first);
    let late = Rc::clone(&test);
    test.world.spawn(async move {
        assert!(late.log.log(&*late.members, record(&late)).await.is_err());
        late.next.set(1);
    });
    assert!(test.world.run_until(|| test.next.get() == 1));
}

#[test]
fn a_place_that_is_small_still_works() {
    let geometry = geometry(LogKind::Ppl);
    for (len_bytes, most) in [(8192, 4096), (64 << 10, 60 << 10), (1 << 20, 124 << 10)] {
        let layout = LogLayout {
            kind: LogKind::Ppl,
            array_uuid: UUID,
            places: vec![Some(LogPlace { offset_bytes: 0, len_bytes }); 4],
            next_generation: 1,
        };
        assert_eq!(Log::new(&geometry, &layout).max_record_bytes(), most);
    }
}
