//! The pieces of a long task that are under way: they end in any order, and the task's position
//! advances over those that are done, in the order of the array. Pure.

use std::collections::VecDeque;
use std::ops::Range;

/// Ranges of the array to be worked through, in ascending order and apart from each other; or all
/// of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ranges {
    /// Everything.
    All,
    /// Only these.
    Some(Vec<Range<u64>>),
}

impl Ranges {
    /// Those of a list in any order, whose ranges may overlap.
    pub(super) fn from_list(mut list: Vec<Range<u64>>) -> Self {
        list.retain(|range| !range.is_empty());
        list.sort_unstable_by_key(|range| range.start);
        let mut ranges: Vec<Range<u64>> = Vec::with_capacity(list.len());
        for range in list {
            match ranges.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => ranges.push(range),
            }
        }
        Self::Some(ranges)
    }

    /// Everything that is in either.
    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Some(mut one), Self::Some(other)) => {
                one.extend(other);
                Self::from_list(one)
            }
            _ => Self::All,
        }
    }

    /// The first of it that is at or behind `from`, and before `end`.
    pub(super) fn next(&self, from: u64, end: u64) -> Option<Range<u64>> {
        let found = match self {
            Self::All => from..end,
            Self::Some(ranges) => {
                let index = ranges.partition_point(|range| range.end <= from);
                let range = ranges.get(index)?;
                range.start.max(from)..range.end.min(end)
            }
        };
        (!found.is_empty()).then_some(found)
    }

    /// Where the range begins that `at` is in, or the next one.
    pub(super) fn start_of(&self, at: u64) -> u64 {
        match self {
            Self::All => 0,
            Self::Some(ranges) => {
                let index = ranges.partition_point(|range| range.end <= at);
                ranges.get(index).map_or(at, |range| range.start)
            }
        }
    }

    /// How much of it is at or behind `from`, and before `end`.
    pub(super) fn bytes_from(&self, from: u64, end: u64) -> u64 {
        match self {
            Self::All => end.saturating_sub(from),
            Self::Some(ranges) => {
                let parts = ranges.iter().map(|range| range.start.max(from)..range.end.min(end));
                parts.map(|part| part.end.saturating_sub(part.start)).sum()
            }
        }
    }
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct Window {
    /// Everything before it is done.
    position: u64,
    /// In ascending order; whether each one is done.
    pieces: VecDeque<(Range<u64>, bool)>,
    /// Number of the first of them.
    first: u64,
}

impl Window {
    /// A task that begins at `position`.
    pub(super) fn new(position: u64) -> Self {
        Self { position, pieces: VecDeque::new(), first: 0 }
    }

    /// Everything before it is done.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Where the next piece can begin.
    pub(super) fn next_from(&self) -> u64 {
        self.pieces.back().map_or(self.position, |(range, _)| range.end)
    }

    /// Pieces that have begun and are not behind the position yet.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.pieces.len()
    }

    /// A piece begins; everything between the last one and it need not be done. Returns its number.
    pub(super) fn handle_launch(&mut self, range: Range<u64>) -> u64 {
        debug_assert!(range.start >= self.next_from());
        self.pieces.push_back((range, false));
        self.first + self.pieces.len() as u64 - 1
    }

    /// A piece is done.
    pub(super) fn handle_done(&mut self, number: u64) {
        let index = number.checked_sub(self.first).map(|index| index as usize);
        if let Some((_, done)) = index.and_then(|index| self.pieces.get_mut(index)) {
            *done = true;
        }
    }

    /// Advances the position if that is possible: returns where it was and is, and how much was
    /// done in between.
    pub(super) fn poll_advance(&mut self) -> Option<(u64, u64, u64)> {
        let (from, mut bytes) = (self.position, 0);
        while let Some((range, _)) = self.pieces.pop_front_if(|(_, done)| *done) {
            bytes += range.end - range.start;
            self.position = range.end;
            self.first += 1;
        }
        (bytes > 0).then_some((from, self.position, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_position_follows_what_is_done_in_order() {
        let mut window = Window::new(10);
        let pieces = [10..20, 20..30, 50..60].map(|range| window.handle_launch(range));
        assert_eq!((window.len(), window.next_from(), window.poll_advance()), (3, 60, None));
        window.handle_done(pieces[1]);
        assert_eq!(window.poll_advance(), None);
        window.handle_done(pieces[0]);
        assert_eq!(window.poll_advance(), Some((10, 30, 20)));
        assert_eq!((window.position(), window.len()), (30, 1));
        let more = window.handle_launch(60..61);
        window.handle_done(more);
        window.handle_done(pieces[2]);
        // A number that is not under way (any more) is nothing.
        window.handle_done(pieces[0]);
        window.handle_done(99);
        assert_eq!(window.poll_advance(), Some((30, 61, 11)));
        assert_eq!((window.len(), window.next_from()), (0, 61));
    }

    fn ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
        prop::collection::vec((0u64..80, 0u64..12).prop_map(|(at, len)| at..at + len), 0..8)
    }

    proptest! {
        #[test]
        fn ranges_are_a_set(one in ranges(), other in ranges(), from in 0u64..100, end in 0u64..100) {
            let mut model = [false; 100];
            for range in one.iter().chain(&other) {
                model[range.start as usize..range.end as usize].fill(true);
            }
            let set = Ranges::from_list(one).or(Ranges::from_list(other));
            let mut covered = [false; 100];
            let mut at = 0;
            while let Some(range) = set.next(at, 100) {
                prop_assert!(range.start >= at);
                covered[range.start as usize..range.end as usize].fill(true);
                at = range.end;
            }
            prop_assert_eq!(covered, model);
            if let Some(first) = (from..100).find(|&at| model[at as usize]) {
                let start = (0..=first).rev().take_while(|&at| model[at as usize]).last();
                prop_assert_eq!(Some(set.start_of(from)), start);
            }
            let wanted = (from..end).filter(|&at| model[at as usize]).count() as u64;
            prop_assert_eq!(set.bytes_from(from, end), wanted);
            let first = (from..end).find(|&at| model[at as usize]);
            prop_assert_eq!(set.next(from, end).map(|range| range.start), first);
            prop_assert_eq!(Ranges::All.or(set.clone()), Ranges::All);
            prop_assert_eq!(Ranges::All.bytes_from(from, end), end.saturating_sub(from));
        }
    }
}
