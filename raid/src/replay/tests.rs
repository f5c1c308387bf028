//! Tests of the replay: every crash state of a small row, with every loss that the level tolerates.

use std::cell::{Cell, RefCell};

use super::solve::RowPart;
use super::*;
use crate::geometry::{Level, Role};
use crate::metadata::checks::{Check, Checks};
use crate::metadata::ppl::Entry;
use crate::metadata::write_log::{Parity, Places, Unit};
use crate::parity::Kernel;
use crate::sim::world::Random;

const UUID: [u8; 16] = *b"an array's uuid.";
const CHUNK: u64 = 8192;
const DATA_OFFSET: u64 = 96 << 10;
const LOG: LogPlace = LogPlace { offset_bytes: 8192, len_bytes: 76 << 10 };
const DRIVE: usize = (96 << 10) + 16 * CHUNK as usize;

/// A drive in memory, of which ranges cannot be read, and which fails after some writes.
struct Drive {
    bytes: RefCell<Vec<u8>>,
    unreadable: RefCell<Vec<Range<u64>>>,
    calls_left: Cell<usize>,
}

impl Drive {
    fn new() -> Self {
        let bytes = RefCell::new(vec![0; DRIVE]);
        Self { bytes, unreadable: RefCell::default(), calls_left: Cell::new(usize::MAX) }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.bytes.borrow_mut()[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn get(&self, at: u64, len: usize) -> Vec<u8> {
        self.bytes.borrow()[at as usize..at as usize + len].to_vec()
    }

    fn call(&self) -> io::Result<()> {
        let left = self.calls_left.get();
        self.calls_left.set(left.checked_sub(1).ok_or(io::Error::from_raw_os_error(5))?);
        Ok(())
    }
}

impl Medium for Drive {
    fn name(&self) -> String {
        "drive".into()
    }

    fn size_bytes(&self) -> u64 {
        DRIVE as u64
    }

    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset_bytes + buf.len() as u64;
        let bad = |range: &Range<u64>| range.start < end && offset_bytes < range.end;
        if self.unreadable.borrow().iter().any(bad) {
            return Err(io::Error::from_raw_os_error(5));
        }
        buf.copy_from_slice(&self.get(offset_bytes, buf.len()));
        Ok(())
    }

    fn write_durable(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        assert!(offset_bytes.is_multiple_of(4096) && data.len().is_multiple_of(4096));
        self.call()?;
        self.put(offset_bytes, data);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.call()
    }

    fn zero_cheaply(&self, _offset_bytes: u64, _len_bytes: u64) -> io::Result<bool> {
        Ok(false)
    }
}

fn kind_of(geometry: &Geometry) -> LogKind {
    if geometry.parities() == 1 { LogKind::Ppl } else { LogKind::WriteLog }
}

/// A row's chunks before and after a write, and what is logged of it.
struct Row {
    geometry: Geometry,
    row: u64,
    modified: Range<usize>,
    within: Range<u64>,
    /// Data chunks, then P, then Q.
    old: Vec<Vec<u8>>,
    new: Vec<Vec<u8>>,
    partial: [Vec<u8>; 2],
    /// What the log knows of the contents.
    checks: Checks,
}

impl Row {
    fn new(
        geometry: &Geometry,
        row: u64,
        modified: Range<usize>,
        within: Range<u64>,
        random: &mut Random,
    ) -> Self {
        let len = (within.end - within.start) as usize;
        let mut chunk = || (0..len).map(|_| random.next() as u8).collect::<Vec<u8>>();
        let mut old: Vec<_> = (0..geometry.data_chunks()).map(|_| chunk()).collect();
        let mut new = old.clone();
        modified.clone().for_each(|index| new[index] = chunk());
        let pq = |data: &[Vec<u8>], counts: &dyn Fn(usize) -> bool| {
            let data: Vec<_> =
                data.iter().enumerate().map(|(i, d)| counts(i).then_some(&d[..])).collect();
            let (mut p, mut q) = (vec![0; len], vec![0; len]);
            Kernel::best().pq(&data, &mut p, &mut q);
            [p, q]
        };
        let partial = pq(&old, &|index| !modified.contains(&index));
        let (old_pq, new_pq) = (pq(&old, &|_| true), pq(&new, &|_| true));
        old.extend(old_pq.into_iter().take(geometry.parities()));
        new.extend(new_pq.into_iter().take(geometry.parities()));
        let checks = Checks::NONE;
        Self { geometry: *geometry, row, modified, within, old, new, partial, checks }
    }

    /// The checksums of the written chunks, new and old.
    fn all_checks(&self) -> Checks {
        let of = |chunks: &[Vec<u8>]| {
            let mut check = Check::new();
            self.modified.clone().for_each(|index| check.add(&chunks[index]));
            Some(check.value())
        };
        Checks { new: of(&self.new), old: of(&self.old) }
    }

    fn slot(&self, chunk: usize) -> usize {
        let data = self.geometry.data_chunks();
        match chunk.checked_sub(data) {
            None => self.geometry.data_slot(self.row, chunk),
            Some(0) => self.geometry.parity_slot(self.row),
            Some(_) => self.geometry.q_slot(self.row).unwrap(),
        }
    }

    fn start(&self) -> u64 {
        self.geometry.row_component_offset(self.row) + self.within.start
    }

    fn len(&self) -> usize {
        (self.within.end - self.within.start) as usize
    }

    fn is_whole(&self) -> bool {
        self.modified.len() == self.geometry.data_chunks()
    }

    /// Drives with the row's old contents, and the log of those parities that `logged` names.
    fn drives(&self, logged: &[bool]) -> Vec<Drive> {
        let kind = kind_of(&self.geometry);
        let drives: Vec<_> = (0..self.geometry.members()).map(|_| Drive::new()).collect();
        for (slot, drive) in drives.iter().enumerate() {
            drive.put(LOG.offset_bytes, &mark(kind, UUID, slot, 3)[..]);
        }
        for (chunk, bytes) in self.old.iter().enumerate() {
            drives[self.slot(chunk)].put(DATA_OFFSET + self.start(), bytes);
        }
        for (parity, _) in logged.iter().enumerate().filter(|(_, logged)| **logged) {
            let slot = self.slot(self.geometry.data_chunks() + parity);
            drives[slot].put(LOG.offset_bytes + 4096, &self.unit(parity, slot));
        }
        drives
    }

    fn unit(&self, parity: usize, slot: usize) -> Vec<u8> {
        let partial = (!self.is_whole()).then_some(&self.partial[parity]);
        let mut unit = vec![0; 4096];
        unit.extend(partial.into_iter().flatten());
        let run = (self.modified.start, self.modified.len());
        if kind_of(&self.geometry) == LogKind::Ppl {
            let place = (self.within.start, self.len() as u32);
            let parity = partial.map(|partial| &partial[..]);
            let entry = Entry::new(&self.geometry, self.row, run, place, parity, self.checks);
            let header = ppl::Header {
                signature: ppl::signature(UUID),
                generation: 4,
                entries: vec![entry],
            };
            unit[..4096].copy_from_slice(&header.to_bytes()[..]);
            return unit;
        }
        let entry = write_log::Entry {
            row: self.row,
            within_bytes: self.within.start as u32,
            len_bytes: self.len() as u32,
            first: run.0 as u16,
            count: run.1 as u16,
            parity: match (partial, parity) {
                (None, _) => Parity::None,
                (_, 0) => Parity::P,
                _ => Parity::Q,
            },
            checks: self.checks,
        };
        // In its place, whichever number that takes.
        let generation = Places::new(LOG.len_bytes).unwrap().count() * 2;
        let header = Unit {
            array_uuid: UUID,
            generation,
            live_from: generation,
            slot: slot as u32,
            entries: vec![entry],
        };
        header.put(&mut unit);
        unit
    }

    /// Chunks that a write touches: the modified ones and the parities.
    fn touched(&self) -> Vec<usize> {
        self.modified.clone().chain(self.geometry.data_chunks()..self.old.len()).collect()
    }
}

/// The array's members, but for the lost ones.
struct Crashed<'a> {
    row: &'a Row,
    drives: &'a [Drive],
    lost: &'a [usize],
    block_bytes: u32,
    bad: RefCell<Vec<Piece>>,
}

impl Crashed<'_> {
    fn with_input<T>(&self, run: impl FnOnce(&Input<'_, Drive>) -> T) -> T {
        let bad = self.bad.borrow();
        let ranges: Vec<Vec<_>> = (0..self.drives.len())
            .map(|slot| bad.iter().filter(|b| b.slot == slot).map(|b| b.range.clone()).collect())
            .collect();
        let members: Vec<_> = self
            .drives
            .iter()
            .enumerate()
            .map(|(slot, medium)| {
                (!self.lost.contains(&slot)).then(|| Member {
                    medium,
                    data_offset_bytes: DATA_OFFSET,
                    log: Some(LOG),
                    readable_below_bytes: u64::MAX,
                    bad: &ranges[slot],
                })
            })
            .collect();
        run(&Input {
            geometry: &self.row.geometry,
            array_uuid: UUID,
            kind: kind_of(&self.row.geometry),
            block_bytes: self.block_bytes,
            is_dirty: true,
            members: &members,
        })
    }

    fn plan(&self) -> Plan {
        self.with_input(plan)
    }

    /// Replays, and is interrupted after so many calls on each drive; true if it came to the end.
    fn replay(&self, calls: usize) -> bool {
        let plan = self.plan();
        self.drives.iter().for_each(|drive| drive.calls_left.set(calls));
        self.bad.borrow_mut().extend(plan.bad.iter().cloned());
        let result = self.with_input(|input| apply(input, &plan));
        self.drives.iter().for_each(|drive| drive.calls_left.set(usize::MAX));
        result.is_ok()
    }

    /// What of a chunk a member has in a block; nothing where it is lost, bad or unreadable.
    fn stored(&self, chunk: usize, block: &Range<usize>) -> Option<Vec<u8>> {
        let slot = self.row.slot(chunk);
        let start = self.row.start() + block.start as u64;
        let end = start + block.len() as u64;
        let is_bad = self
            .bad
            .borrow()
            .iter()
            .any(|bad| bad.slot == slot && bad.range.start < end && start < bad.range.end);
        if self.lost.contains(&slot) || is_bad {
            return None;
        }
        let mut bytes = vec![0; block.len()];
        self.drives[slot].read_at(DATA_OFFSET + start, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Reads a block of a data chunk as the array does.
    fn read(&self, index: usize, block: &Range<usize>) -> Option<Vec<u8>> {
        if let Some(bytes) = self.stored(index, block) {
            return Some(bytes);
        }
        let count = self.row.geometry.data_chunks();
        let chunks: Vec<_> = (0..self.row.old.len()).map(|c| self.stored(c, block)).collect();
        let data: Vec<_> = chunks[..count].iter().map(Option::as_deref).collect();
        let mut out = vec![0; block.len()];
        let q = chunks.get(count + 1).and_then(Option::as_deref);
        let p = chunks[count].as_deref();
        let mut wanted = [(Role::Data(index), &mut out[..])];
        Kernel::best().reconstruct(&data, p, q, &mut wanted).ok()?;
        Some(out)
    }

    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let block = self.block_bytes as usize;
        (0..self.row.len()).step_by(block).map(move |at| at..at + block)
    }

    /// That every block reads as it may, and how many read as an error.
    fn check(&self) -> usize {
        let row = self.row;
        let mut errors = 0;
        let is_lost = |index: usize, block: &Range<usize>| {
            let start = DATA_OFFSET + row.start() + block.start as u64;
            let unreadable = self.drives[row.slot(index)].read_at(start, &mut vec![0; block.len()]);
            self.lost.contains(&row.slot(index)) || unreadable.is_err()
        };
        for block in self.blocks() {
            let lost_modified = row.modified.clone().filter(|&i| is_lost(i, &block)).count();
            for index in 0..row.geometry.data_chunks() {
                let is_modified = row.modified.contains(&index);
                let Some(bytes) = self.read(index, &block) else {
                    // Only what was being written with others, or what the others take along.
                    assert!(is_lost(index, &block), "chunk {index} is there");
                    assert!(row.modified.len() > 1 && lost_modified > 0, "{index} cannot be read");
                    assert!(is_modified || row.geometry.parities() == 2);
                    errors += 1;
                    continue;
                };
                let is_old = bytes == row.old[index][block.clone()];
                let is_new = is_modified && bytes == row.new[index][block.clone()];
                assert!(is_old || is_new, "chunk {index} reads as something else");
            }
            // What parity is not bad, is right: as the next loss would show.
            let chunks: Vec<_> = (0..row.old.len()).map(|c| self.stored(c, &block)).collect();
            if chunks.iter().all(Option::is_some) {
                let count = row.geometry.data_chunks();
                let data: Vec<_> = chunks[..count].iter().map(Option::as_deref).collect();
                let (mut p, mut q) = (vec![0; block.len()], vec![0; block.len()]);
                Kernel::best().pq(&data, &mut p, &mut q);
                assert!(Some(&p) == chunks[count].as_ref(), "P is wrong");
                assert!(count + 1 == chunks.len() || Some(&q) == chunks[count + 1].as_ref());
            }
        }
        errors
    }
}

/// All runs of data chunks that a write can be about.
fn runs(chunks: usize) -> Vec<Range<usize>> {
    (0..chunks).flat_map(|first| (first + 1..=chunks).map(move |end| first..end)).collect()
}

/// All sets of members that may be lost.
fn losses(geometry: &Geometry) -> Vec<Vec<usize>> {
    let members = geometry.members();
    let mut all = vec![Vec::new()];
    all.extend((0..members).map(|slot| vec![slot]));
    if geometry.parities() == 2 {
        all.extend((0..members).flat_map(|a| (a + 1..members).map(move |b| vec![a, b])));
    }
    all
}

/// Every crash state of one write: each chunk that it touches old or new, and the log without any
/// checksum of the contents, with that of the new ones, and with both.
fn every_state(geometry: &Geometry, rows: Range<u64>, mut each: impl FnMut(&Row, u32, Vec<Drive>)) {
    let mut random = Random::new(5);
    for row in rows {
        for modified in runs(geometry.data_chunks()) {
            let within = if row % 2 == 0 { 0..4096 } else { 4096..8192 };
            let mut row = Row::new(geometry, row, modified, within, &mut random);
            let touched = row.touched();
            let all = row.all_checks();
            let checks = [Checks::NONE, Checks { old: None, ..all }, all];
            for state in 0..3 << touched.len() {
                row.checks = checks[(state >> touched.len()) as usize];
                let state = state & ((1 << touched.len()) - 1);
                let drives = row.drives(&vec![true; geometry.parities()]);
                for (bit, &chunk) in touched.iter().enumerate() {
                    if state >> bit & 1 == 1 {
                        let at = DATA_OFFSET + row.start();
                        drives[row.slot(chunk)].put(at, &row.new[chunk]);
                    }
                }
                each(&row, state, drives);
            }
        }
    }
}

fn copy(drives: &[Drive]) -> Vec<Drive> {
    let copy = |drive: &Drive| Drive {
        bytes: RefCell::new(drive.bytes.borrow().clone()),
        unreadable: RefCell::new(drive.unreadable.borrow().clone()),
        calls_left: Cell::new(usize::MAX),
    };
    drives.iter().map(copy).collect()
}

fn check_every_state(geometry: &Geometry, rows: Range<u64>) {
    let (mut errors, mut saved) = (0, [0, 0]);
    every_state(geometry, rows, |row, state, drives| {
        for lost in losses(geometry) {
            let drives = copy(&drives);
            let bad = RefCell::default();
            let crashed = Crashed { row, drives: &drives, lost: &lost, block_bytes: 4096, bad };
            // Interrupted again and again, each time a little later.
            let mut calls = 0;
            while !crashed.replay(calls) {
                calls += 1;
                assert!(calls < 20);
            }
            let lost_blocks = crashed.check();
            errors += lost_blocks;
            // A write that was complete, or not begun, harms nothing.
            let touched = row.touched().len() as u32;
            let states = [(row.checks.new, (1 << touched) - 1), (row.checks.old, 0)];
            for (known, (check, whole)) in states.into_iter().enumerate() {
                if check.is_some() && state == whole {
                    assert_eq!(lost_blocks, 0, "{:?} {state:b} {lost:?}", row.modified);
                    saved[known] += 1;
                    let expected = if known == 0 { &row.new } else { &row.old };
                    for (index, chunk) in expected.iter().take(geometry.data_chunks()).enumerate() {
                        assert_eq!(crashed.read(index, &(0..row.len())).as_ref(), Some(chunk));
                    }
                }
            }
            let again = crashed.plan();
            assert!(again.bad.is_empty() && again.replayed == 0, "{state} {lost:?}: it is done");
            assert!(again.is_complete);
        }
    });
    assert!(errors > 0, "there are states in which something is lost");
    assert!(saved.iter().all(|&saved| saved > 0));
}

#[test]
fn raid5_every_crash_state_with_every_loss() {
    let geometry = Geometry::new(Level::Raid5, 4, CHUNK as u32, 16 * CHUNK).unwrap();
    check_every_state(&geometry, 0..4);
}

#[test]
fn raid6_every_crash_state_with_every_loss() {
    let geometry = Geometry::new(Level::Raid6, 5, CHUNK as u32, 16 * CHUNK).unwrap();
    check_every_state(&geometry, 1..2);
    let geometry = Geometry::new(Level::Raid6, 6, CHUNK as u32, 16 * CHUNK).unwrap();
    check_every_state(&geometry, 3..4);
}

/// What is said of blocks that cannot be known is exact: RAID 5 only if several were written and
/// the lost one is among them; RAID 6 only if, besides, P and Q contradict each other or one of
/// them is lost too, or two of the written ones are; and neither if the log knows the contents, and
/// the write was complete, or not begun, on all that is left.
#[test]
fn no_more_is_lost_than_has_to_be() {
    let geometry = Geometry::new(Level::Raid6, 6, CHUNK as u32, 16 * CHUNK).unwrap();
    every_state(&geometry, 2..3, |row, state, drives| {
        for lost in losses(&geometry) {
            let bad = RefCell::default();
            let crashed = Crashed { row, drives: &drives, lost: &lost, block_bytes: 4096, bad };
            let plan = crashed.plan();
            let is_lost = |chunk: usize| lost.contains(&row.slot(chunk));
            let gone = row.modified.clone().filter(|&index| is_lost(index)).count();
            let parities = (4..6).filter(|&parity| !is_lost(parity)).count();
            let touched = row.touched();
            let of = |chunk: usize| touched.iter().position(|&t| t == chunk);
            let is_new = |chunk: usize| of(chunk).is_some_and(|bit| state >> bit & 1 == 1);
            let others = row.modified.clone().filter(|&index| !is_lost(index));
            let same_age = |parity| others.clone().all(|index| is_new(index) == is_new(parity));
            let agree = same_age(4) && same_age(5) && is_new(4) == is_new(5);
            let may_lose = row.modified.len() > 1 && gone > 0 && parities > 0;
            // Where the log knows the contents, one parity that fits the others is enough, or both
            // where two chunks are gone.
            let all_are = |new: bool| {
                let mut parity = (4..6).filter(|&p| !is_lost(p)).map(|p| is_new(p) == new);
                let is_parity =
                    if gone == 1 { parity.any(|fits| fits) } else { parity.all(|fits| fits) };
                others.clone().all(|index| is_new(index) == new) && is_parity
            };
            let is_known = (row.checks.new.is_some() && all_are(true))
                || (row.checks.old.is_some() && all_are(false));
            if !may_lose || (gone == 1 && parities == 2 && agree) || is_known {
                assert!(plan.bad.is_empty(), "{:?} {state:b} {lost:?}", row.modified);
            } else {
                assert_eq!(plan.bad.len(), parities);
            }
        }
    });
}

/// Blocks old and new in any mixture, writes of several blocks, and blocks that cannot be read.
#[test]
fn any_mixture_of_blocks() {
    let mut random = Random::new(77);
    for round in 0..1500 {
        let (level, members) = if round % 2 == 0 { (Level::Raid5, 5) } else { (Level::Raid6, 6) };
        let geometry = Geometry::new(level, members, CHUNK as u32, 16 * CHUNK).unwrap();
        let all = runs(geometry.data_chunks());
        let modified = all[random.below(all.len() as u64) as usize].clone();
        let start = random.below(16) * 512;
        let end = start + 512 * (1 + random.below((CHUNK - start) / 512));
        let mut row = Row::new(&geometry, random.below(16), modified, start..end, &mut random);
        if random.below(2) == 1 {
            row.checks = row.all_checks();
        }
        let drives = row.drives(&[true, true][..geometry.parities()]);
        // Often nothing or all of the write, so that what is known of it is of use.
        let (new, of) = [(1, 2), (0, 1), (1, 1), (1, 16), (15, 16)][random.below(5) as usize];
        let whole = [row.checks.old, None, row.checks.new][if of == 1 { 2 * new } else { 1 }];
        for chunk in row.touched() {
            for at in (0..row.len()).step_by(512) {
                if random.below(of) < new as u64 {
                    let place = DATA_OFFSET + row.start() + at as u64;
                    drives[row.slot(chunk)].put(place, &row.new[chunk][at..at + 512]);
                }
            }
        }
        let all = losses(&geometry);
        let mut lost = all[random.below(all.len() as u64) as usize].clone();
        if lost.len() == geometry.parities() && random.below(2) == 1 {
            // A block that cannot be read in place of a lost member.
            let slot = lost.pop().unwrap();
            if slot != geometry.parity_slot(row.row) && Some(slot) != geometry.q_slot(row.row) {
                let at = DATA_OFFSET + row.start() + random.below((end - start) / 512) * 512;
                drives[slot].unreadable.borrow_mut().push(at..at + 512);
            }
        }
        let bad = RefCell::default();
        let crashed = Crashed { row: &row, drives: &drives, lost: &lost, block_bytes: 512, bad };
        let mut calls = random.below(4) as usize;
        while !crashed.replay(calls) {
            calls += 1;
        }
        let lost = crashed.check();
        assert!(whole.is_none() || lost == 0, "round {round}");
    }
}

/// The log did not become durable, on one member or another: then nothing was submitted, and the
/// replay changes nothing.
#[test]
fn a_log_that_is_not_durable_changes_nothing() {
    for (level, members, parities) in [(Level::Raid5, 4, 1), (Level::Raid6, 5, 2)] {
        let geometry = Geometry::new(level, members, CHUNK as u32, 16 * CHUNK).unwrap();
        let mut random = Random::new(3);
        for modified in runs(geometry.data_chunks()) {
            for logged in 0..(1usize << parities) - 1 {
                let row = Row::new(&geometry, 2, modified.clone(), 0..4096, &mut random);
                let logged: Vec<_> =
                    (0..parities).map(|parity| logged >> parity & 1 == 1).collect();
                for lost in losses(&geometry) {
                    let drives = row.drives(&logged);
                    let bad = RefCell::default();
                    let crashed =
                        Crashed { row: &row, drives: &drives, lost: &lost, block_bytes: 4096, bad };
                    // Where the member without the record is lost, it may have had it.
                    assert!(crashed.replay(usize::MAX));
                    for (chunk, bytes) in row.old.iter().enumerate() {
                        let stored = drives[row.slot(chunk)].get(DATA_OFFSET + row.start(), 4096);
                        assert!(stored == *bytes || lost.contains(&row.slot(chunk)));
                    }
                    let unknown = crashed.bad.borrow().len();
                    assert!(unknown == 0 || lost.len() == 2, "{logged:?} {lost:?}");
                }
            }
        }
    }
}

/// A unit that is torn at any sector: its entries whose partial parity is not whole count for
/// nothing.
#[test]
fn a_torn_unit_changes_nothing() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        let geometry = Geometry::new(level, members, CHUNK as u32, 16 * CHUNK).unwrap();
        let row = Row::new(&geometry, 2, 1..2, 0..4096, &mut Random::new(3));
        let all = vec![true; geometry.parities()];
        for missing in 0..16 {
            let drives = row.drives(&all);
            let slot = geometry.parity_slot(2);
            drives[slot].put(LOG.offset_bytes + 4096 + missing * 512, &[0; 512]);
            let bad = RefCell::default();
            let crashed = Crashed { row: &row, drives: &drives, lost: &[], block_bytes: 512, bad };
            let plan = crashed.plan();
            // Sectors of the header without entries are zeros anyway.
            let first = if level == Level::Raid5 { 2 } else { 1 };
            let is_zero = (first..8).contains(&missing);
            assert_eq!(plan.replayed, usize::from(is_zero), "sector {missing}");
            assert!(plan.is_complete);
            assert!(crashed.replay(usize::MAX));
            crashed.check();
        }
    }
}

/// What md's kernel leaves: several units one behind the other from the start of the area on, the
/// ring begun anew, and old units behind the newest.
#[test]
fn the_newest_of_several_units_counts_as_md_has_it() {
    let geometry = Geometry::new(Level::Raid5, 4, CHUNK as u32, 16 * CHUNK).unwrap();
    let mut random = Random::new(11);
    for newest in 0..6u64 {
        let rows: Vec<_> =
            (0..6).map(|_| Row::new(&geometry, 2, 0..1, 0..4096, &mut random)).collect();
        let drives = rows[0].drives(&[false]);
        let slot = geometry.parity_slot(2);
        // Unit n is at n units from the start; those behind the newest are of the round before.
        for (n, row) in rows.iter().enumerate() {
            let generation = if n as u64 <= newest { 100 + n as u64 } else { 50 + n as u64 };
            let parity = Some(&row.partial[0][..]);
            let entry = Entry::new(&geometry, 2, (0, 1), (0, 4096), parity, Checks::NONE);
            let signature = ppl::signature(UUID);
            let header = ppl::Header { signature, generation, entries: vec![entry] };
            let at = LOG.offset_bytes + n as u64 * 8192;
            drives[slot].put(at, &header.to_bytes()[..]);
            drives[slot].put(at + 4096, &row.partial[0]);
        }
        let row = &rows[0];
        let bad = RefCell::default();
        let crashed = Crashed { row, drives: &drives, lost: &[], block_bytes: 512, bad };
        let plan = crashed.plan();
        assert_eq!((plan.replayed, plan.next_generation()), (1, 100 + newest + 2));
        let mut expected = rows[newest as usize].partial[0].clone();
        expected.iter_mut().zip(&row.old[0]).for_each(|(to, from)| *to ^= from);
        assert_eq!(plan.fixes, [(Piece { slot, range: 2 * CHUNK..2 * CHUNK + 4096 }, expected)]);
        // Emptied, it is empty for md, too: the first header has no entries, and the next is older.
        assert!(crashed.replay(usize::MAX));
        assert_eq!(crashed.plan().replayed, 0);
    }
}

/// Units of the write log that are done with, and a newer one about the same part.
#[test]
fn only_live_units_count_and_the_newest_of_them() {
    let geometry = Geometry::new(Level::Raid6, 5, CHUNK as u32, 16 * CHUNK).unwrap();
    let part = |within: Range<u64>, fill: u8| RowPart {
        row: 1,
        within_bytes: within.start,
        len_bytes: within.end - within.start,
        modified: 0..1,
        p: Some(vec![fill; (within.end - within.start) as usize]),
        q: Some(vec![fill; (within.end - within.start) as usize]),
        checks: Checks::NONE,
    };
    let drives: Vec<_> = (0..5).map(|_| Drive::new()).collect();
    let places = Places::new(LOG.len_bytes).unwrap();
    let slots = [geometry.parity_slot(1), geometry.q_slot(1).unwrap()];
    for (slot, drive) in drives.iter().enumerate() {
        drive.put(LOG.offset_bytes, &mark(LogKind::WriteLog, UUID, slot, 1)[..]);
    }
    // The newest shows that what the one before it covers is safe: both are about one part.
    let units = [(6, 6, 0..4096, 66u8), (7, 6, 4096..6144, 55), (8, 6, 1024..2048, 77)];
    let done = (5, 4, 4096..8192, 44);
    for (generation, live_from, within, fill) in std::iter::once(done).chain(units) {
        for (slot, parity) in slots.into_iter().zip([Parity::P, Parity::Q]) {
            let len_bytes = (within.end - within.start) as u32;
            let mut unit = vec![fill; 4096 + len_bytes as usize];
            let entry = write_log::Entry {
                row: 1,
                within_bytes: within.start as u32,
                len_bytes,
                first: 0,
                count: 1,
                parity,
                checks: Checks::NONE,
            };
            let slot_number = slot as u32;
            let entries = vec![entry];
            let header =
                Unit { array_uuid: UUID, generation, live_from, slot: slot_number, entries };
            header.put(&mut unit);
            drives[slot].put(LOG.offset_bytes + places.offset_bytes(generation), &unit);
        }
    }
    let row = Row::new(&geometry, 1, 0..1, 0..4096, &mut Random::new(1));
    let bad = RefCell::default();
    let crashed = Crashed { row: &row, drives: &drives, lost: &[], block_bytes: 512, bad };
    let parts = crashed.with_input(scan::scan).parts;
    assert_eq!(parts, [part(1024..2048, 77), part(4096..6144, 55)]);
}

/// A clean array's logs are emptied, and nothing else.
#[test]
fn a_clean_arrays_log_is_only_emptied() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        let geometry = Geometry::new(level, members, CHUNK as u32, 16 * CHUNK).unwrap();
        let row = Row::new(&geometry, 2, 0..1, 0..4096, &mut Random::new(8));
        let drives = row.drives(&vec![true; geometry.parities()]);
        let at = DATA_OFFSET + row.start();
        drives[row.slot(0)].put(at, &row.new[0]);
        let before: Vec<_> = drives.iter().map(|drive| drive.get(at, 4096)).collect();
        let bad = RefCell::default();
        let crashed = Crashed { row: &row, drives: &drives, lost: &[], block_bytes: 512, bad };
        crashed.with_input(|input| {
            let clean = Input { is_dirty: false, members: input.members, ..*input };
            let plan = plan(&clean);
            assert_eq!(plan.replayed, 0);
            apply(&clean, &plan).unwrap();
        });
        let after: Vec<_> = drives.iter().map(|drive| drive.get(at, 4096)).collect();
        assert_eq!(before, after);
        assert_eq!(crashed.plan().replayed, 0);
    }
}

#[test]
fn a_log_that_was_never_made_is_not_complete_and_is_made() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        let geometry = Geometry::new(level, members, CHUNK as u32, 16 * CHUNK).unwrap();
        let row = Row::new(&geometry, 2, 0..1, 0..4096, &mut Random::new(8));
        let drives = row.drives(&vec![false; geometry.parities()]);
        drives[1].put(LOG.offset_bytes, &[7; 70 << 10]);
        let bad = RefCell::default();
        let crashed = Crashed { row: &row, drives: &drives, lost: &[], block_bytes: 512, bad };
        assert!(!crashed.plan().is_complete);
        assert!(crashed.replay(usize::MAX));
        assert!(crashed.plan().is_complete);
        drives[3].unreadable.borrow_mut().push(LOG.offset_bytes..LOG.offset_bytes + 1);
        assert!(!crashed.plan().is_complete);
        create(&drives[2], kind_of(&geometry), UUID, 2, LOG).unwrap();
        drives[3].unreadable.borrow_mut().clear();
        assert!(crashed.plan().is_complete);
    }
}

/// The member with Q came while the write was under way: its log has no record, and it is not in
/// sync. What P's record says counts all the same.
#[test]
fn a_member_that_is_being_rebuilt_need_not_have_the_record() {
    let geometry = Geometry::new(Level::Raid6, 5, CHUNK as u32, 16 * CHUNK).unwrap();
    let q_slot = geometry.q_slot(2).unwrap();
    every_state(&geometry, 2..3, |row, state, drives| {
        let q_log = LOG.offset_bytes + 4096;
        drives[q_slot].put(q_log, &vec![0; LOG.len_bytes as usize - 4096]);
        let others = (0..5).filter(|&slot| slot != q_slot);
        for lost in std::iter::once(Vec::new()).chain(others.map(|slot| vec![slot])) {
            let drives = copy(&drives);
            let bad = RefCell::default();
            let crashed = Crashed { row, drives: &drives, lost: &lost, block_bytes: 4096, bad };
            let plan = crashed.with_input(|input| {
                let mut members = Vec::new();
                for (slot, member) in input.members.iter().enumerate() {
                    let readable_below_bytes = if slot == q_slot { 0 } else { u64::MAX };
                    members.push(member.as_ref().map(|member| Member {
                        medium: member.medium,
                        data_offset_bytes: DATA_OFFSET,
                        log: member.log,
                        readable_below_bytes,
                        bad: member.bad,
                    }));
                }
                let input = Input { members: &members, ..*input };
                let plan = plan(&input);
                apply(&input, &plan).unwrap();
                plan
            });
            let p_is_there = !lost.contains(&geometry.parity_slot(2));
            assert_eq!(plan.replayed, usize::from(p_is_there), "{state:b} {lost:?}");
            crashed.bad.borrow_mut().extend(plan.bad);
            crashed.check();
        }
    });
}
