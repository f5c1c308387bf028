//! A member's list of bad blocks: ranges of its data area that hold nothing to be believed,
//! although the member as a whole is good. Pure; sorted, disjoint, never touching each other.

use std::ops::Range;

/// Entries that a member's list may have. On the drive there is room for 512 (one page of md's
/// bad-block log); the rest is for those that are written before others are taken out.
pub(super) const MAX_ENTRIES: u32 = 448;

/// Bytes that one entry on the drive covers at most (md: 512 sectors).
const ENTRY_BYTES: u64 = 512 * 512;

/// A range of a member's data area, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BadRange {
    /// Its first byte.
    pub start_bytes: u64,
    /// The byte after its last one.
    pub end_bytes: u64,
}

/// See the file's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BadBlocks(Vec<BadRange>);

impl BadBlocks {
    pub(super) fn new(ranges: &[BadRange]) -> Self {
        let mut list = Self::default();
        ranges.iter().for_each(|range| {
            list.add(range.start_bytes..range.end_bytes);
        });
        list
    }

    pub(super) fn ranges(&self) -> &[BadRange] {
        &self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        let first = self.0.partition_point(|bad| bad.end_bytes <= range.start);
        !range.is_empty() && self.0.get(first).is_some_and(|bad| bad.start_bytes < range.end)
    }

    /// Entries on the drive that the list needs.
    pub(super) fn entries(&self) -> u64 {
        self.0.iter().map(|bad| (bad.end_bytes - bad.start_bytes).div_ceil(ENTRY_BYTES)).sum()
    }

    /// Adds a range; false if all of it was there.
    pub(super) fn add(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return false;
        }
        // All that it overlaps or touches becomes one with it.
        let first = self.0.partition_point(|bad| bad.end_bytes < range.start);
        let end = self.0.partition_point(|bad| bad.start_bytes <= range.end);
        let mut merged = BadRange { start_bytes: range.start, end_bytes: range.end };
        if let (Some(left), Some(right)) = (self.0.get(first), self.0.get(end.wrapping_sub(1)))
            && first < end
        {
            if end - first == 1 && left.start_bytes <= range.start && range.end <= left.end_bytes {
                return false;
            }
            merged.start_bytes = merged.start_bytes.min(left.start_bytes);
            merged.end_bytes = merged.end_bytes.max(right.end_bytes);
        }
        self.0.splice(first..end, [merged]);
        true
    }

    /// Takes a range out; false if nothing of it was there.
    pub(super) fn remove(&mut self, range: Range<u64>) -> bool {
        if !self.overlaps(&range) {
            return false;
        }
        let cut = |bad: &BadRange| {
            let left = BadRange { end_bytes: bad.end_bytes.min(range.start), ..*bad };
            let right = BadRange { start_bytes: bad.start_bytes.max(range.end), ..*bad };
            [left, right].into_iter().filter(|part| part.start_bytes < part.end_bytes)
        };
        self.0 = self.0.iter().flat_map(cut).collect();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_set_of_bytes(
            steps in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 0..30),
            (from, len) in (0u64..60, 0u64..20),
        ) {
            let (mut list, mut model) = (BadBlocks::default(), [false; 100]);
            for (add, start, len) in steps {
                let bytes = &mut model[start as usize..(start + len) as usize];
                let changes = bytes.iter().any(|&bad| bad != add);
                bytes.fill(add);
                let range = start..start + len;
                let changed = if add { list.add(range) } else { list.remove(range) };
                prop_assert_eq!(changed, changes);
            }
            let mut covered = [false; 100];
            for bad in list.ranges() {
                covered[bad.start_bytes as usize..bad.end_bytes as usize].fill(true);
            }
            prop_assert_eq!(covered, model);
            let apart = list.ranges().windows(2).all(|two| two[0].end_bytes < two[1].start_bytes);
            prop_assert!(apart, "{:?}", list);
            let overlaps = model[from as usize..(from + len) as usize].contains(&true);
            prop_assert_eq!(list.overlaps(&(from..from + len)), overlaps);
            prop_assert_eq!(BadBlocks::new(list.ranges()), list);
        }
    }

    #[test]
    fn a_long_range_needs_several_entries() {
        let list = BadBlocks::new(&[
            BadRange { start_bytes: 0, end_bytes: ENTRY_BYTES + 512 },
            BadRange { start_bytes: 1 << 20, end_bytes: (1 << 20) + 512 },
        ]);
        assert_eq!(list.entries(), 3);
    }
}
