//! A simulated drive: two images, a volatile cache, torn writes.
//!
//! One image is what reads see, the other what survives a power cut. A write is applied to the
//! first at some moment between submission and completion, whole or in parts. It reaches the second
//! with a flush that begins after its completion, with its own FUA, or (on drives without a cache)
//! when it completes. A power cut leaves in every atomic unit the surviving value or any of those
//! written later, applied or only submitted, each unit by itself.
//!
//! A flush that fails leaves what it was for in the cache for ever: no later flush saves it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use super::image::{Image, SECTOR_BYTES};
use crate::device::signature::BLANK_BYTES;

/// Never, as a time.
pub(crate) const NEVER: u64 = u64::MAX;

/// A write that has begun and not ended.
struct UnderWay {
    id: u64,
    first_sector: usize,
    data: Rc<[u8]>,
    atomic_sectors: usize,
    /// It survives once it has completed.
    fua: bool,
}

/// A part of a write that was applied, and may not survive yet.
struct Applied {
    sequence: u64,
    id: u64,
    first_sector: usize,
    data: Rc<[u8]>,
    atomic_sectors: usize,
    /// Counter of the disk's events when the write completed.
    completed: Option<u64>,
    /// A flush for it has failed.
    is_lost: bool,
}

/// By sector: the sequence number of what survives there; in pages that are made when they are first
/// needed.
struct Sequences(Vec<Option<Box<[u64; Sequences::PAGE]>>>);

impl Sequences {
    const PAGE: usize = 64;

    fn new(sectors: usize) -> Self {
        Self(vec![None; sectors.div_ceil(Self::PAGE)])
    }

    fn get(&self, sector: usize) -> u64 {
        self.0[sector / Self::PAGE].as_ref().map_or(0, |page| page[sector % Self::PAGE])
    }

    fn set(&mut self, sector: usize, sequence: u64) {
        let page = self.0[sector / Self::PAGE].get_or_insert_with(|| Box::new([0; Self::PAGE]));
        page[sector % Self::PAGE] = sequence;
    }
}

/// What kind of drive it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    pub(crate) size_bytes: usize,
    pub(crate) block_bytes: usize,
    /// What a power cut leaves whole: 512 or 4096.
    pub(crate) atomic_bytes: usize,
    pub(crate) has_volatile_cache: bool,
    pub(crate) can_zero: bool,
}

/// The drive itself; it outlives the worlds that use it.
pub(crate) struct Disk {
    /// Its number among all drives of the life.
    pub(crate) name: usize,
    pub(crate) model: Model,
    /// It is pulled out.
    pub(crate) is_gone: bool,
    /// It answers nothing until then (in the world's time).
    pub(crate) hung_until: u64,
    /// Operations that timed out, and may still happen.
    pub(crate) late: usize,
    visible: Image,
    surviving: Image,
    sequences: Sequences,
    /// Sectors that cannot be read until they are written.
    bad: BTreeSet<usize>,
    applied: Vec<Applied>,
    under_way: Vec<UnderWay>,
    next: u64,
}

impl Disk {
    pub(crate) fn new(name: usize, model: Model) -> Self {
        Self {
            name,
            model,
            is_gone: false,
            hung_until: 0,
            late: 0,
            visible: Image::new(model.size_bytes),
            surviving: Image::new(model.size_bytes),
            sequences: Sequences::new(model.size_bytes / SECTOR_BYTES),
            bad: BTreeSet::new(),
            applied: Vec::new(),
            under_way: Vec::new(),
            next: 1,
        }
    }

    /// What reads see.
    pub(crate) fn visible(&self) -> &Image {
        &self.visible
    }

    /// What survives a power cut at the least.
    pub(crate) fn surviving(&self) -> &Image {
        &self.surviving
    }

    /// Whether nothing was ever written where a look at it would find out whose it is.
    pub(crate) fn is_blank(&self) -> bool {
        let (size, ends) = (self.model.size_bytes, BLANK_BYTES as usize);
        self.visible.is_zero(0, ends) && self.visible.is_zero(size - ends, ends)
    }

    /// Fills a range with junk before the first use.
    pub(crate) fn set_junk(&mut self, range: Range<usize>, byte: u8) {
        self.visible.set_junk(range.clone(), byte);
        self.surviving.set_junk(range, byte);
    }

    /// The power fails, or the drive is pulled out: of what does not survive for sure, `keeps`
    /// decides unit by unit. What was late will never happen.
    pub(crate) fn cut_power(&mut self, mut keeps: impl FnMut() -> bool) {
        self.late = 0;
        self.hung_until = 0;
        let applied = std::mem::take(&mut self.applied);
        let under_way = std::mem::take(&mut self.under_way);
        let mut touched: Vec<Range<usize>> = Vec::new();
        let newer = applied
            .iter()
            .map(|a| (a.sequence, a.first_sector, &a.data, a.atomic_sectors))
            .chain(under_way.iter().map(|w| (NEVER, w.first_sector, &w.data, w.atomic_sectors)));
        for (sequence, first_sector, data, atomic_sectors) in newer {
            let end = first_sector + data.len() / SECTOR_BYTES;
            touched.push(first_sector..end);
            let mut at = first_sector;
            while at < end {
                let unit_end = ((at / atomic_sectors + 1) * atomic_sectors).min(end);
                if keeps() {
                    for sector in at..unit_end {
                        if sequence > self.sequences.get(sector) {
                            let from = (sector - first_sector) * SECTOR_BYTES;
                            let bytes = &data[from..from + SECTOR_BYTES];
                            self.surviving.write(sector * SECTOR_BYTES, bytes);
                        }
                    }
                }
                at = unit_end;
            }
        }
        for range in touched {
            let (from, len) = (range.start * SECTOR_BYTES, range.len() * SECTOR_BYTES);
            self.visible.copy(&self.surviving, from, len);
        }
    }

    /// The process ends but the drive keeps its power: what was applied stays, and `keeps` decides
    /// which of the writes under way are still carried out. (The next process waits for the end of
    /// the requests of this one.) A drive whose flush failed has recovered when the next process comes:
    /// nobody tells that one of the failure.
    pub(crate) fn lose_process(&mut self, mut keeps: impl FnMut() -> bool) {
        (self.late, self.hung_until) = (0, 0);
        let writes: Vec<_> = self.under_way.iter().map(|write| (write.id, write.fua)).collect();
        for (id, fua) in writes {
            if keeps() {
                self.apply(id, 0..usize::MAX);
            }
            self.complete(id, fua || !self.model.has_volatile_cache);
        }
        self.applied.iter_mut().for_each(|applied| applied.is_lost = false);
    }

    /// A write has been submitted.
    pub(crate) fn begin(
        &mut self,
        offset_bytes: u64,
        data: Rc<[u8]>,
        atomic_bytes: usize,
        fua: bool,
    ) -> u64 {
        let id = self.tick();
        let first_sector = offset_bytes as usize / SECTOR_BYTES;
        let atomic_sectors = atomic_bytes / SECTOR_BYTES;
        self.under_way.push(UnderWay { id, first_sector, data, atomic_sectors, fua });
        id
    }

    /// The next of the disk's moments.
    pub(crate) fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Applies some sectors of a write, counted from its first one.
    pub(crate) fn apply(&mut self, id: u64, sectors: Range<usize>) {
        let Some(write) = self.under_way.iter().find(|write| write.id == id) else { return };
        let count = write.data.len() / SECTOR_BYTES;
        let sectors = sectors.start.min(count)..sectors.end.min(count);
        if sectors.is_empty() {
            return;
        }
        let data = if sectors.len() == count {
            Rc::clone(&write.data)
        } else {
            write.data[sectors.start * SECTOR_BYTES..sectors.end * SECTOR_BYTES].into()
        };
        let first_sector = write.first_sector + sectors.start;
        let atomic_sectors = write.atomic_sectors;
        self.visible.write(first_sector * SECTOR_BYTES, &data);
        if !self.bad.is_empty() {
            let written = first_sector..first_sector + sectors.len();
            self.bad.retain(|sector| !written.contains(sector));
        }
        let sequence = self.tick();
        let (completed, is_lost) = (None, false);
        self.applied.push(Applied {
            sequence,
            id,
            first_sector,
            data,
            atomic_sectors,
            completed,
            is_lost,
        });
    }

    /// A write has ended.
    pub(crate) fn complete(&mut self, id: u64, survives: bool) {
        let now = self.tick();
        self.under_way.retain(|write| write.id != id);
        for applied in self.applied.iter_mut().filter(|applied| applied.id == id) {
            applied.completed = Some(now);
        }
        if survives {
            self.save(|applied| applied.id == id);
        }
    }

    /// Ends a flush that began at `began`.
    pub(crate) fn flush(&mut self, began: u64, succeeds: bool) {
        let is_covered = |applied: &Applied| applied.completed.is_some_and(|at| at < began);
        if succeeds {
            self.save(|applied| is_covered(applied) && !applied.is_lost);
        } else {
            self.applied.iter_mut().filter(|a| is_covered(a)).for_each(|a| a.is_lost = true);
        }
    }

    /// What is meant survives from now on.
    fn save(&mut self, is_meant: impl Fn(&Applied) -> bool) {
        let (surviving, sequences) = (&mut self.surviving, &mut self.sequences);
        self.applied.retain(|applied| {
            if !is_meant(applied) {
                return true;
            }
            let count = applied.data.len() / SECTOR_BYTES;
            let sectors = applied.first_sector..applied.first_sector + count;
            if sectors.clone().all(|sector| sequences.get(sector) < applied.sequence) {
                sectors.for_each(|sector| sequences.set(sector, applied.sequence));
                surviving.write(applied.first_sector * SECTOR_BYTES, &applied.data);
                return false;
            }
            for (sector, bytes) in sectors.zip(applied.data.chunks(SECTOR_BYTES)) {
                if applied.sequence > sequences.get(sector) {
                    sequences.set(sector, applied.sequence);
                    surviving.write(sector * SECTOR_BYTES, bytes);
                }
            }
            false
        });
    }

    /// Makes sectors unreadable until they are written.
    pub(crate) fn spoil(&mut self, sectors: Range<usize>) {
        self.bad.extend(sectors);
    }

    /// Whether all of a range can be read.
    pub(crate) fn is_readable(&self, offset_bytes: u64, len: usize) -> bool {
        let first = offset_bytes as usize / SECTOR_BYTES;
        self.bad.is_empty()
            || self.bad.range(first..first + len.div_ceil(SECTOR_BYTES)).next().is_none()
    }

    /// Makes a range zeros at once, surviving; nothing is under way there.
    pub(crate) fn zero(&mut self, offset_bytes: u64, len_bytes: u64) {
        let (offset, len) = (offset_bytes as usize, len_bytes as usize);
        self.visible.zero(offset, len);
        self.surviving.zero(offset, len);
        let sectors = offset / SECTOR_BYTES..(offset + len) / SECTOR_BYTES;
        self.bad.retain(|sector| !sectors.contains(sector));
        let now = self.tick();
        sectors.for_each(|sector| self.sequences.set(sector, now));
    }

    /// Writes at once, surviving.
    pub(crate) fn write_now(&mut self, offset_bytes: u64, data: &[u8]) {
        let id = self.begin(offset_bytes, data.into(), SECTOR_BYTES, true);
        self.apply(id, 0..usize::MAX);
        self.complete(id, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(atomic_bytes: usize) -> Disk {
        let (size_bytes, block_bytes) = (64 << 10, 512);
        let (has_volatile_cache, can_zero) = (true, true);
        Disk::new(0, Model { size_bytes, block_bytes, atomic_bytes, has_volatile_cache, can_zero })
    }

    fn write(disk: &mut Disk, offset: u64, bytes: &[u8]) {
        let atomic = disk.model.atomic_bytes;
        let id = disk.begin(offset, bytes.into(), atomic, false);
        disk.apply(id, 0..usize::MAX);
        disk.complete(id, false);
    }

    fn sector(image: &Image, number: usize) -> u8 {
        let mut bytes = [0; SECTOR_BYTES];
        image.read(number * SECTOR_BYTES, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == bytes[0]));
        bytes[0]
    }

    #[test]
    fn only_what_was_flushed_is_sure_to_survive() {
        let mut disk = disk(512);
        write(&mut disk, 0, &[1; 1024]);
        let began = disk.tick();
        write(&mut disk, 512, &[2; 1024]);
        disk.flush(began, true);
        assert_eq!((sector(disk.visible(), 1), sector(disk.surviving(), 1)), (2, 1));
        disk.cut_power(|| false);
        let found: Vec<_> = (0..4).map(|number| sector(disk.visible(), number)).collect();
        assert_eq!(found, [1, 1, 0, 0]);
    }

    #[test]
    fn a_failed_flush_loses_for_ever_what_it_was_for() {
        let mut disk = disk(512);
        write(&mut disk, 0, &[1; 512]);
        let began = disk.tick();
        disk.flush(began, false);
        let began = disk.tick();
        disk.flush(began, true);
        assert_eq!(sector(disk.surviving(), 0), 0);
    }

    #[test]
    fn power_cuts_tear_between_atomic_units_only() {
        for (atomic, expected) in [(512, vec![0, 3, 0, 3]), (1024, vec![0, 0, 3, 3])] {
            let mut disk = disk(atomic);
            write(&mut disk, 0, &[3; 2048]);
            let mut keeps = false;
            disk.cut_power(|| {
                keeps = !keeps;
                !keeps
            });
            let found: Vec<_> = (0..4).map(|number| sector(disk.visible(), number)).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_spoilt_sector_is_readable_again_once_written() {
        let mut disk = disk(512);
        disk.spoil(3..5);
        assert!(!disk.is_readable(1536, 512) && disk.is_readable(1024, 512));
        write(&mut disk, 1536, &[9; 512]);
        assert!(disk.is_readable(1536, 512) && !disk.is_readable(1536, 1024));
    }
}
