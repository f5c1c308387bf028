//! A buddy allocator over numbered units; it owns no memory and knows no addresses.
//!
//! A block of order `k` is `2^k` consecutive units and begins at a multiple of `2^k`. Its buddy is
//! the block of the same order that together with it makes up a block of order `k + 1`.
//!
//! Invariants (`Buddy::verify` checks them all):
//! * Every unit belongs to exactly one block, free or allocated.
//! * A free block is on the free list of its order, and its buddy is not free with the same order
//!   (they would have been merged), unless it has the highest order.
//! * The number of units need not be a power of two: what is beyond the end is never free.
//!
//! It does no locking; the pool wraps it in a mutex and keeps it off the fast path.

/// Marks "no unit" in the links of the free lists.
const NONE: u32 = u32::MAX;

/// What a unit is to the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    /// Not the first unit of a block.
    Inner,
    /// The first unit of a free block of this order.
    Free(u8),
    /// The first unit of an allocated block of this order.
    Allocated(u8),
}

/// The neighbours of a free block in the list of its order.
#[derive(Clone, Copy)]
struct Link {
    previous: u32,
    next: u32,
}

/// The allocator. See the file's head.
pub(super) struct Buddy {
    units: Box<[Unit]>,
    links: Box<[Link]>,
    /// First free block of each order.
    heads: Box<[u32]>,
    free_units: u32,
}

impl Buddy {
    /// An allocator of `unit_count` units, all free, whose largest block is `2^max_order` units.
    /// Units that do not fill a block of the highest order become smaller blocks.
    pub(super) fn new(unit_count: u32, max_order: u8) -> Self {
        assert!(unit_count < NONE && max_order < 31);
        let mut buddy = Self {
            units: vec![Unit::Inner; unit_count as usize].into_boxed_slice(),
            links: vec![Link { previous: NONE, next: NONE }; unit_count as usize]
                .into_boxed_slice(),
            heads: vec![NONE; usize::from(max_order) + 1].into_boxed_slice(),
            free_units: unit_count,
        };
        // From the end backwards, so that the lowest block is handed out first.
        let mut end = unit_count;
        while end > 0 {
            // The block that ends here starts where its order's alignment allows: the lowest set
            // bit of `end`, capped by the highest order.
            let order = (end.trailing_zeros() as u8).min(max_order);
            let start = end - (1 << order);
            buddy.push_free(start, order);
            end = start;
        }
        buddy
    }

    /// The highest order that can be asked for.
    pub(super) fn max_order(&self) -> u8 {
        (self.heads.len() - 1) as u8
    }

    /// Units in free blocks.
    #[cfg(test)]
    pub(super) fn free_units(&self) -> u32 {
        self.free_units
    }

    /// Takes a block of `2^order` units and returns its first unit, or nothing if no free block is
    /// large enough.
    pub(super) fn allocate(&mut self, order: u8) -> Option<u32> {
        let mut found = order;
        while *self.heads.get(usize::from(found))? == NONE {
            found += 1;
        }
        let start = self.heads[usize::from(found)];
        self.remove_free(start, found);
        while found > order {
            found -= 1;
            self.push_free(start + (1 << found), found);
        }
        self.units[start as usize] = Unit::Allocated(order);
        self.free_units -= 1 << order;
        Some(start)
    }

    /// Gives back the block that `allocate` returned, merging it with free buddies.
    ///
    /// Panics if no allocated block of that order starts there: that would be a double free.
    pub(super) fn free(&mut self, mut start: u32, mut order: u8) {
        assert_eq!(self.units[start as usize], Unit::Allocated(order), "block {start}");
        self.free_units += 1 << order;
        self.units[start as usize] = Unit::Inner;
        while order < self.max_order() {
            let buddy = start ^ (1 << order);
            // A buddy beyond the end does not exist and is never free.
            if self.units.get(buddy as usize) != Some(&Unit::Free(order)) {
                break;
            }
            self.remove_free(buddy, order);
            self.units[buddy as usize] = Unit::Inner;
            start &= buddy;
            order += 1;
        }
        self.push_free(start, order);
    }

    fn push_free(&mut self, start: u32, order: u8) {
        let head = self.heads[usize::from(order)];
        self.links[start as usize] = Link { previous: NONE, next: head };
        if head != NONE {
            self.links[head as usize].previous = start;
        }
        self.heads[usize::from(order)] = start;
        self.units[start as usize] = Unit::Free(order);
    }

    fn remove_free(&mut self, start: u32, order: u8) {
        let Link { previous, next } = self.links[start as usize];
        match previous {
            NONE => self.heads[usize::from(order)] = next,
            previous => self.links[previous as usize].next = next,
        }
        if next != NONE {
            self.links[next as usize].previous = previous;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Buddy {
        /// Panics where an invariant of the file's head does not hold.
        fn verify(&self) {
            let mut at = 0;
            let mut free = 0;
            let mut listed = Vec::new();
            for (order, &head) in self.heads.iter().enumerate() {
                let (mut previous, mut block) = (NONE, head);
                while block != NONE {
                    assert_eq!(self.units[block as usize], Unit::Free(order as u8));
                    assert_eq!(self.links[block as usize].previous, previous);
                    listed.push(block);
                    (previous, block) = (block, self.links[block as usize].next);
                }
            }
            listed.sort_unstable();
            let mut found = Vec::new();
            while at < self.units.len() as u32 {
                let order = match self.units[at as usize] {
                    Unit::Inner => panic!("unit {at} belongs to no block"),
                    Unit::Allocated(order) => order,
                    Unit::Free(order) => {
                        free += 1 << order;
                        found.push(at);
                        let buddy = at ^ (1 << order);
                        let mergeable = order < self.max_order()
                            && self.units.get(buddy as usize) == Some(&Unit::Free(order));
                        assert!(!mergeable, "{at} and {buddy} were not merged");
                        order
                    }
                };
                assert_eq!(at % (1 << order), 0, "block {at} of order {order} is not aligned");
                for inner in at + 1..at + (1 << order) {
                    assert_eq!(self.units[inner as usize], Unit::Inner, "in block {at}");
                }
                at += 1 << order;
            }
            assert_eq!(at as usize, self.units.len(), "a block reaches beyond the end");
            assert_eq!(free, self.free_units);
            assert_eq!(found, listed, "free blocks and free lists differ");
        }
    }

    /// Tries every sequence of `depth` operations: each allocation order, and each free.
    fn explore(buddy: &mut Buddy, held: &mut Vec<(u32, u8)>, depth: u32) {
        buddy.verify();
        if depth == 0 {
            return;
        }
        for order in 0..=buddy.max_order() {
            if let Some(start) = buddy.allocate(order) {
                for &(other, other_order) in held.iter() {
                    let apart =
                        start + (1 << order) <= other || other + (1 << other_order) <= start;
                    assert!(apart, "{start} and {other} overlap");
                }
                held.push((start, order));
                explore(buddy, held, depth - 1);
                held.pop();
                buddy.free(start, order);
                buddy.verify();
            }
        }
        for index in 0..held.len() {
            let (start, order) = held.swap_remove(index);
            buddy.free(start, order);
            explore(buddy, held, depth - 1);
            // Taking the same block back: allocate blocks until it comes, then free the others.
            retake(buddy, start, order);
            held.push((start, order));
            let last = held.len() - 1;
            held.swap(index, last);
        }
    }

    fn retake(buddy: &mut Buddy, start: u32, order: u8) {
        let mut others = Vec::new();
        loop {
            match buddy.allocate(order) {
                Some(found) if found == start => break,
                Some(other) => others.push(other),
                None => panic!("block {start} is gone"),
            }
        }
        for other in others {
            buddy.free(other, order);
        }
    }

    #[test]
    fn every_short_history_keeps_the_invariants() {
        for (units, max_order, depth) in [(1, 0, 4), (4, 2, 6), (7, 2, 5), (8, 3, 5), (11, 3, 4)] {
            let mut buddy = Buddy::new(units, max_order);
            explore(&mut buddy, &mut Vec::new(), depth);
            assert_eq!(buddy.free_units(), units);
        }
    }

    #[test]
    fn everything_freed_is_whole_again() {
        let mut buddy = Buddy::new(64, 4);
        let blocks: Vec<u32> = (0..64).map(|_| buddy.allocate(0).unwrap()).collect();
        assert_eq!(buddy.allocate(0), None);
        for block in blocks {
            buddy.free(block, 0);
        }
        for _ in 0..4 {
            assert!(buddy.allocate(4).is_some());
        }
    }

    #[test]
    fn an_order_beyond_the_highest_is_refused() {
        assert_eq!(Buddy::new(64, 3).allocate(4), None);
    }

    #[test]
    #[should_panic(expected = "block 0")]
    fn a_double_free_panics() {
        let mut buddy = Buddy::new(4, 2);
        let block = buddy.allocate(1).unwrap();
        buddy.free(block, 1);
        buddy.free(block, 1);
    }

    proptest! {
        #[test]
        fn long_histories_keep_the_invariants(
            units in 1u32..200,
            steps in prop::collection::vec((0u8..6, any::<prop::sample::Index>(), any::<bool>()), 0..200),
        ) {
            let mut buddy = Buddy::new(units, 5);
            let mut held: Vec<(u32, u8)> = Vec::new();
            for (order, index, take) in steps {
                if take || held.is_empty() {
                    held.extend(buddy.allocate(order).map(|start| (start, order)));
                } else {
                    let (start, order) = held.swap_remove(index.index(held.len()));
                    buddy.free(start, order);
                }
                buddy.verify();
            }
            for (start, order) in held {
                buddy.free(start, order);
            }
            buddy.verify();
            prop_assert_eq!(buddy.free_units(), units);
        }
    }
}
