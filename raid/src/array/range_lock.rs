//! Locks on byte ranges, for one core: overlapping requests go one after the other in the order
//! they came, others at the same time.
//!
//! A request *enters* with its range and gets a place behind everything that is there already. It
//! holds the range when nothing that came earlier and overlaps is left. Since waiting requests
//! count too, nobody is overtaken and starved.
//!
//! The requests of a shard are on one list in order of arrival; shards share a fixed table of
//! lists. Entries live in a slab, so nothing is allocated once the slab has grown to the number of
//! requests that are under way at once.

use std::cell::RefCell;
use std::future::poll_fn;
use std::ops::Range;
use std::task::{Poll, Waker};

const NONE: u32 = u32::MAX;

/// log2 of the number of lists.
const LIST_BITS: u32 = 8;

/// The locks of one core.
pub(super) struct RangeLocks {
    table: RefCell<Table>,
}

struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
    lists: Box<[List]>,
}

#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

struct Entry {
    start: u64,
    end: u64,
    previous: u32,
    next: u32,
    /// Earlier entries that overlap this one.
    blockers: u32,
    waker: Option<Waker>,
}

impl RangeLocks {
    /// No locks, with room for `capacity` before anything is allocated.
    pub(super) fn new(capacity: usize) -> Self {
        let lists = vec![List { first: NONE, last: NONE }; 1 << LIST_BITS].into_boxed_slice();
        let (entries, free) = (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
        Self { table: RefCell::new(Table { entries, free, lists }) }
    }

    /// Takes a place for `range`, which is not empty and within the shard. Dropping the result
    /// leaves, whether the range was held already or not.
    pub(super) fn enter(&self, shard: u64, range: Range<u64>) -> RangeLock<'_> {
        let list = (shard.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - LIST_BITS)) as usize;
        let entry = self.table.borrow_mut().enter(list, range);
        RangeLock { locks: self, list, entry }
    }
}

impl Table {
    fn enter(&mut self, list: usize, range: Range<u64>) -> u32 {
        let mut blockers = 0;
        let mut at = self.lists[list].first;
        while at != NONE {
            let other = &self.entries[at as usize];
            blockers += u32::from(other.start < range.end && range.start < other.end);
            at = other.next;
        }
        let List { first, last } = self.lists[list];
        let entry = Entry {
            start: range.start,
            end: range.end,
            previous: last,
            next: NONE,
            blockers,
            waker: None,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        if last != NONE {
            self.entries[last as usize].next = index;
        }
        let first = if first == NONE { index } else { first };
        self.lists[list] = List { first, last: index };
        index
    }

    fn leave(&mut self, list: usize, index: u32) {
        let Entry { start, end, previous, next, .. } = self.entries[index as usize];
        match previous {
            NONE => self.lists[list].first = next,
            previous => self.entries[previous as usize].next = next,
        }
        match next {
            NONE => self.lists[list].last = previous,
            next => self.entries[next as usize].previous = previous,
        }
        self.entries[index as usize].waker = None;
        let mut at = next;
        while at != NONE {
            let later = &mut self.entries[at as usize];
            if later.start < end && start < later.end {
                later.blockers -= 1;
                if later.blockers == 0
                    && let Some(waker) = later.waker.take()
                {
                    waker.wake();
                }
            }
            at = later.next;
        }
        self.free.push(index);
    }
}

/// A place in the order of a range. See [`RangeLocks::enter`].
pub(super) struct RangeLock<'a> {
    locks: &'a RangeLocks,
    list: usize,
    entry: u32,
}

impl RangeLock<'_> {
    /// Waits until the range is held.
    pub(super) async fn held(&self) {
        poll_fn(|cx| {
            let entry = &mut self.locks.table.borrow_mut().entries[self.entry as usize];
            if entry.blockers == 0 {
                return Poll::Ready(());
            }
            match &mut entry.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => entry.waker = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
        .await;
    }
}

impl Drop for RangeLock<'_> {
    fn drop(&mut self) {
        self.locks.table.borrow_mut().leave(self.list, self.entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use proptest::prelude::*;

    fn is_held(lock: &RangeLock<'_>) -> bool {
        lock.held().now_or_never().is_some()
    }

    #[test]
    fn overlapping_ranges_follow_each_other_and_nobody_is_overtaken() {
        let locks = RangeLocks::new(8);
        let a = locks.enter(0, 0..10);
        let b = locks.enter(0, 5..15);
        let c = locks.enter(0, 10..20);
        let d = locks.enter(0, 0..5);
        assert!(is_held(&a) && !is_held(&b));
        assert!(!is_held(&c), "c must not overtake b, though a does not block it");
        assert!(!is_held(&d));
        drop(a);
        assert!(is_held(&b) && !is_held(&c) && is_held(&d));
        drop(b);
        assert!(is_held(&c));
    }

    #[test]
    fn leaving_while_waiting_lets_the_next_one_pass() {
        let locks = RangeLocks::new(8);
        let a = locks.enter(0, 0..10);
        let b = locks.enter(0, 0..20);
        let c = locks.enter(0, 15..20);
        assert!(is_held(&a) && !is_held(&c));
        drop(b);
        assert!(is_held(&c));
    }

    proptest! {
        /// Against a plain list: a range is held exactly when no earlier overlapping one is left.
        #[test]
        fn it_is_the_plain_list(
            steps in prop::collection::vec((any::<bool>(), 0u64..3, 0u64..30, 1u64..10, any::<prop::sample::Index>()), 0..120)
        ) {
            let locks = RangeLocks::new(1);
            let mut model: Vec<(u64, Range<u64>, RangeLock<'_>)> = Vec::new();
            for (enter, shard, start, len, index) in steps {
                if enter || model.is_empty() {
                    let range = shard * 40 + start..shard * 40 + start + len;
                    model.push((shard, range.clone(), locks.enter(shard, range)));
                } else {
                    model.remove(index.index(model.len()));
                }
                for (at, (_, range, lock)) in model.iter().enumerate() {
                    let blocked = model[..at]
                        .iter()
                        .any(|(_, other, _)| other.start < range.end && range.start < other.end);
                    prop_assert_eq!(is_held(lock), !blocked);
                }
            }
            let most = locks.table.borrow().entries.len();
            drop(model);
            prop_assert_eq!(locks.table.borrow().free.len(), most);
        }
    }
}
