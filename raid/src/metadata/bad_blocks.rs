//! md's bad-block log: which blocks of one member must not be read. Pure.
//!
//! 4096 bytes of 64-bit entries, little endian, at a place that the superblock names:
//!
//! ```text
//!  bits  0..10   length, 1 to 512
//!  bits 10..64   first sector on the drive (not in the data area)
//! ```
//!
//! Both count in units of `512 << bblog_shift` bytes. The first entry of all ones ends
//! the list. The list counts only if the superblock has `BAD_BLOCKS` set.
//!
//! **No update loses an entry, wherever it is torn.** A log is written over in place, and
//! a drive may tear it between any two sectors. So entries keep their places: what is
//! new goes behind the last one, or where another stands again ([`Log::with`]), and only
//! when that is durable may what is no longer wanted be taken away
//! ([`Log::without_others`]), by putting a copy of an entry that stays in its place, or, at
//! the list's end, by shortening it. Either way every sector is right by itself. md takes
//! the same entry twice as once. Where there is no room for that, what is wanted in no part
//! goes first ([`Log::without_unneeded`]).

use super::SECTOR_BYTES;
use crate::array::BadRange;
use std::collections::HashSet;
use std::ops::Range;
use thiserror::Error;

/// The log's size; md reads no more.
pub const LOG_BYTES: usize = 4096;
/// The entries of a log.
pub const MAX_ENTRIES: usize = LOG_BYTES / 8;
/// The longest entry, in the log's units.
const MAX_LEN: u64 = 512;
const LEN_BITS: u32 = 10;
const END: u64 = u64::MAX;
/// Larger units make no sense: an entry would be longer than any drive.
const MAX_SHIFT: u8 = 32;

/// Why a log cannot be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadBlockError {
    /// An entry of no length, or beyond any drive.
    #[error("entry {0} of its bad-block log makes no sense")]
    Entry(usize),
    /// A unit beyond any drive.
    #[error("its bad-block log counts in units of 2^{0} sectors")]
    Shift(u8),
    /// More bad blocks than a log holds.
    #[error("it has more bad blocks than its log holds ({MAX_ENTRIES})")]
    Full,
}

/// One member's log, as it lies on the drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Entries in their places.
    entries: Vec<u64>,
    /// The unit is `512 << shift` bytes.
    shift: u8,
}

impl Log {
    /// A log without entries.
    ///
    /// # Errors
    /// If the unit makes no sense.
    pub fn empty(shift: u8) -> Result<Self, BadBlockError> {
        if shift > MAX_SHIFT {
            return Err(BadBlockError::Shift(shift));
        }
        Ok(Self { entries: Vec::new(), shift })
    }

    /// From the log's bytes (at most 4096 of them).
    ///
    /// # Errors
    /// If an entry makes no sense: nobody knows then which blocks are bad.
    pub fn parse(bytes: &[u8], shift: u8) -> Result<Self, BadBlockError> {
        let mut log = Self::empty(shift)?;
        for (index, bytes) in bytes.as_chunks::<8>().0.iter().take(MAX_ENTRIES).enumerate() {
            let entry = u64::from_le_bytes(*bytes);
            if entry == END {
                break;
            }
            log.place(entry).ok_or(BadBlockError::Entry(index))?;
            log.entries.push(entry);
        }
        Ok(log)
    }

    /// The bytes for the drive.
    #[must_use]
    pub fn to_bytes(&self) -> Box<[u8; LOG_BYTES]> {
        let mut bytes = Box::new([0xff; LOG_BYTES]);
        for (to, entry) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&self.entries) {
            *to = entry.to_le_bytes();
        }
        bytes
    }

    /// Whether nothing is bad.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of the drive that an entry names.
    fn place(&self, entry: u64) -> Option<Range<u64>> {
        let unit = SECTOR_BYTES << self.shift;
        let len = entry & ((1 << LEN_BITS) - 1);
        if len == 0 || len > MAX_LEN {
            return None;
        }
        let start = (entry >> LEN_BITS).checked_mul(unit)?;
        let end = start.checked_add(len * unit)?;
        Some(start..end)
    }

    /// What is bad, in the member's data area of `component_bytes` from
    /// `data_offset_bytes` on: sorted, joined, without what lies elsewhere.
    #[must_use]
    pub fn ranges(&self, data_offset_bytes: u64, component_bytes: u64) -> Vec<BadRange> {
        let data_end = data_offset_bytes.saturating_add(component_bytes);
        let within = |place: Range<u64>| {
            let start = place.start.max(data_offset_bytes);
            let end = place.end.min(data_end);
            (start < end).then(|| start - data_offset_bytes..end - data_offset_bytes)
        };
        let places = self.entries.iter().filter_map(|entry| within(self.place(*entry)?));
        join(places.collect())
            .into_iter()
            .map(|r| BadRange { start_bytes: r.start, end_bytes: r.end })
            .collect()
    }

    /// The entries for `ranges`, rounded out to the log's unit, in order.
    fn entries_for(&self, ranges: &[BadRange], data_offset_bytes: u64) -> Vec<u64> {
        let unit = SECTOR_BYTES << self.shift;
        let place = |r: &BadRange| {
            let start = data_offset_bytes.saturating_add(r.start_bytes) / unit;
            let end = data_offset_bytes.saturating_add(r.end_bytes).div_ceil(unit);
            start..end
        };
        let mut entries = Vec::new();
        for place in join(ranges.iter().map(place).collect()) {
            let mut start = place.start;
            while start < place.end {
                let len = (place.end - start).min(MAX_LEN);
                entries.push(start << LEN_BITS | len);
                start += len;
            }
        }
        entries
    }

    /// The log with `ranges` of the data area in it, besides everything that it has: the
    /// first of the two steps of an update.
    ///
    /// # Errors
    /// [`BadBlockError::Full`].
    pub fn with(&self, ranges: &[BadRange], data_offset_bytes: u64) -> Result<Self, BadBlockError> {
        let mut next = self.clone();
        let mut seen = HashSet::new();
        let is_again = |entry: &u64| !seen.insert(*entry);
        // What stands in the list twice, because something was taken away there, is a free place.
        let again = self.entries.iter().map(is_again).collect::<Vec<_>>();
        let mut free = again.iter().enumerate().filter(|(_, again)| **again).map(|(at, _)| at);
        for entry in self.entries_for(ranges, data_offset_bytes) {
            if !seen.insert(entry) {
                continue;
            }
            match free.next() {
                Some(at) => next.entries[at] = entry,
                None => next.entries.push(entry),
            }
        }
        if next.entries.len() > MAX_ENTRIES {
            return Err(BadBlockError::Full);
        }
        Ok(next)
    }

    /// The log without the entries of which nothing is in `ranges`: makes room where an update
    /// would not fit beside them.
    #[must_use]
    pub fn without_unneeded(&self, ranges: &[BadRange], data_offset_bytes: u64) -> Self {
        let wanted = self.entries_for(ranges, data_offset_bytes);
        let wanted: Vec<Range<u64>> = wanted.iter().filter_map(|e| self.place(*e)).collect();
        let is_needed = |entry: &u64| {
            let Some(place) = self.place(*entry) else { return false };
            let first = wanted.partition_point(|range| range.end <= place.start);
            wanted.get(first).is_some_and(|range| range.start < place.end)
        };
        self.with_only(self.entries.iter().map(is_needed).collect())
    }

    /// The log with nothing in it but `ranges`, which it has already: the second step.
    #[must_use]
    pub fn without_others(&self, ranges: &[BadRange], data_offset_bytes: u64) -> Self {
        let wanted = self.entries_for(ranges, data_offset_bytes);
        let mut seen = Vec::with_capacity(wanted.len());
        let mut stays: Vec<bool> = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let first = wanted.contains(entry) && !seen.contains(entry);
            if first {
                seen.push(*entry);
            }
            stays.push(first);
        }
        self.with_only(stays)
    }

    /// The log with only those of its entries that are to stay, in their places; the others get the
    /// first of them.
    fn with_only(&self, stays: Vec<bool>) -> Self {
        let len = stays.iter().rposition(|stays| *stays).map_or(0, |last| last + 1);
        let first = stays.iter().position(|stays| *stays);
        let filler = first.and_then(|at| self.entries.get(at)).copied().unwrap_or(END);
        let keep = |(entry, stays): (&u64, &bool)| if *stays { *entry } else { filler };
        Self {
            entries: self.entries.iter().zip(&stays).map(keep).take(len).collect(),
            shift: self.shift,
        }
    }
}

/// Sorted, with what touches or overlaps made one.
fn join(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|r| r.start < r.end);
    ranges.sort_unstable_by_key(|r| r.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DATA: u64 = 1 << 20;

    fn bad(start_bytes: u64, len_bytes: u64) -> BadRange {
        BadRange { start_bytes, end_bytes: start_bytes + len_bytes }
    }

    /// A log in which much comes and goes does not fill up with what stands in it again and again.
    #[test]
    fn places_are_used_again() {
        let at = |number: u64| bad(number << 20, 512);
        let mut log = Log::empty(0).unwrap().with(&[at(0), at(1), at(9000)], DATA).unwrap();
        for number in 2..3000 {
            let wanted = [at(0), at(number), at(9000)];
            log = log.with(&wanted, DATA).unwrap().without_others(&wanted, DATA);
            assert_eq!(log.ranges(DATA, 1 << 40), wanted);
        }
        assert!(log.to_bytes()[4 * 8..].iter().all(|byte| *byte == 0xff));
    }

    /// One that is nearly full can be exchanged in two steps.
    #[test]
    fn what_is_not_needed_makes_room() {
        let of = |from: u64, to: u64| (from..to).map(|n| bad(n << 20, 1024)).collect::<Vec<_>>();
        let log = Log::empty(0).unwrap().with(&of(0, 500), DATA).unwrap();
        let mut wanted = of(400, 500);
        wanted[0].end_bytes -= 512;
        wanted.extend(of(600, 900));
        assert_eq!(log.with(&wanted, DATA), Err(BadBlockError::Full));
        let less = log.without_unneeded(&wanted, DATA);
        assert_eq!(less.ranges(DATA, 1 << 40), of(400, 500));
        let both = less.with(&wanted, DATA).unwrap();
        let rest = both.without_others(&wanted, DATA);
        assert_eq!(rest.ranges(DATA, 1 << 40), wanted);
    }

    /// Bytes as the kernel lays them out: 4 KiB that are bad 8 KiB into data at 1 MiB are
    /// sector 2064, 8 of them.
    #[test]
    fn an_entry_is_what_md_makes_of_it() {
        let log = Log::empty(0).unwrap().with(&[bad(8192, 4096)], DATA).unwrap();
        let bytes = log.to_bytes();
        assert_eq!(bytes[..8], (2064u64 << 10 | 8).to_le_bytes());
        assert_eq!(bytes[8..], [0xff; LOG_BYTES - 8]);
        assert_eq!(Log::parse(&*bytes, 0).unwrap().ranges(DATA, 1 << 30), [bad(8192, 4096)]);
        // The same in units of 4 KiB.
        let entry = (258u64 << 10 | 1).to_le_bytes();
        let mut large = [0xff; LOG_BYTES];
        large[..8].copy_from_slice(&entry);
        assert_eq!(Log::parse(&large, 3).unwrap().ranges(DATA, 1 << 30), [bad(8192, 4096)]);
        let log = Log::empty(3).unwrap().with(&[bad(8192 + 512, 512)], DATA).unwrap();
        assert_eq!(log.to_bytes()[..8], entry, "rounded out to what the log can say");
    }

    #[test]
    fn long_ranges_take_several_entries_and_are_read_as_one() {
        let all = [bad(0, 1 << 20), bad(1 << 21, 512)];
        let log = Log::empty(0).unwrap().with(&all, DATA).unwrap();
        assert_eq!(log.entries.len(), 5);
        assert_eq!(log.ranges(DATA, 1 << 30), all);
        assert_eq!(log.ranges(DATA, 1 << 20), [bad(0, 1 << 20)], "what is no data does not count");
    }

    #[test]
    fn nonsense_is_refused() {
        let parse = |entry: u64, shift| Log::parse(&entry.to_le_bytes(), shift);
        assert_eq!(parse(1 << 10, 0), Err(BadBlockError::Entry(0)));
        assert_eq!(parse(1 << 10 | 513, 0), Err(BadBlockError::Entry(0)));
        assert_eq!(parse(((1 << 54) - 1) << 10 | 512, 1), Err(BadBlockError::Entry(0)));
        assert_eq!(parse(1 << 10 | 1, 33), Err(BadBlockError::Shift(33)));
        assert_eq!(parse(END, 0).map(|log| log.is_empty()), Ok(true));
        let many: Vec<_> = (0..=MAX_ENTRIES as u64).map(|i| bad(i * 8192, 4096)).collect();
        let log = Log::empty(0).unwrap();
        assert_eq!(log.with(&many, DATA), Err(BadBlockError::Full));
        assert_eq!(log.with(&many[1..], DATA).map(|l| l.entries.len()), Ok(MAX_ENTRIES));
    }

    /// Whatever part of its eight sectors a write leaves, nothing is lost that was bad
    /// before and still is.
    fn check_every_tear(old: &Log, new: &Log, stays: &[BadRange]) {
        let (old, new) = (old.to_bytes(), new.to_bytes());
        for mask in 0..256u32 {
            let mut torn = *old;
            for sector in (0..8).filter(|s| mask >> s & 1 == 1) {
                torn[512 * sector..512 * (sector + 1)]
                    .copy_from_slice(&new[512 * sector..512 * (sector + 1)]);
            }
            let found = Log::parse(&torn, 0).unwrap().ranges(DATA, 1 << 40);
            for range in stays {
                let is_in = found
                    .iter()
                    .any(|f| f.start_bytes <= range.start_bytes && f.end_bytes >= range.end_bytes);
                assert!(is_in, "{range:?} is lost with sectors {mask:08b}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_tear_loses_a_bad_block(
            // Lists of the bits: which of 300 places are bad, in turn.
            lists in proptest::collection::vec(
                proptest::collection::btree_set(0u64..300, 0..120), 2..6),
        ) {
            let mut log = Log::empty(0).unwrap();
            let mut was: Vec<BadRange> = Vec::new();
            for list in lists {
                let is: Vec<_> = list.iter().map(|i| bad(i * 8192, 4096)).collect();
                let stays: Vec<_> = was.iter().filter(|r| is.contains(r)).copied().collect();
                let more = log.with(&is, DATA).unwrap();
                check_every_tear(&log, &more, &was);
                let next = more.without_others(&is, DATA);
                check_every_tear(&more, &next, &is);
                prop_assert!(stays.len() <= is.len());
                prop_assert_eq!(next.ranges(DATA, 1 << 40), is.clone());
                prop_assert_eq!(&Log::parse(&*next.to_bytes(), 0).unwrap(), &next);
                (log, was) = (next, is);
            }
        }

        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096), shift: u8) {
            if let Ok(log) = Log::parse(&bytes, shift) {
                let ranges = log.ranges(DATA, u64::MAX);
                let _ = log.with(&ranges, DATA);
                let _ = log.without_others(&ranges, DATA).to_bytes();
            }
        }
    }
}
