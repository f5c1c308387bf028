//! Sets of slots: which members are meant.

use crate::geometry::MAX_MEMBERS;

const WORDS: usize = MAX_MEMBERS / 64;

/// A set of slots, of those below [`MAX_MEMBERS`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotSet([u64; WORDS]);

impl SlotSet {
    /// No slot.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// The first `count` slots.
    pub fn first(count: usize) -> Self {
        (0..count).collect()
    }

    /// Whether a slot is in it.
    pub fn contains(&self, slot: usize) -> bool {
        self.0.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Puts a slot in. A slot that cannot be a member's is ignored.
    pub fn insert(&mut self, slot: usize) {
        if let Some(word) = self.0.get_mut(slot / 64) {
            *word |= 1 << (slot % 64);
        }
    }

    /// Takes a slot out.
    pub fn remove(&mut self, slot: usize) {
        if let Some(word) = self.0.get_mut(slot / 64) {
            *word &= !(1 << (slot % 64));
        }
    }

    /// How many slots are in it.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Those in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// Those in either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Those in this one only.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// The slots in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(index, mut word)| {
            std::iter::from_fn(move || {
                let bit = word.trailing_zeros() as usize;
                word &= word.wrapping_sub(1);
                (bit < 64).then_some(index * 64 + bit)
            })
        })
    }
}

impl FromIterator<usize> for SlotSet {
    fn from_iter<I: IntoIterator<Item = usize>>(slots: I) -> Self {
        let mut set = Self::EMPTY;
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

impl std::fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(
            a in prop::collection::btree_set(0..MAX_MEMBERS, 0..40),
            b in prop::collection::btree_set(0..MAX_MEMBERS, 0..40),
        ) {
            let set = |slots: &BTreeSet<usize>| slots.iter().copied().collect::<SlotSet>();
            let list = |set: SlotSet| set.iter().collect::<BTreeSet<_>>();
            prop_assert_eq!(list(set(&a).and(set(&b))), a.intersection(&b).copied().collect());
            prop_assert_eq!(list(set(&a).or(set(&b))), a.union(&b).copied().collect());
            prop_assert_eq!(list(set(&a).without(set(&b))), a.difference(&b).copied().collect());
            prop_assert_eq!((set(&a).len(), set(&a).is_empty()), (a.len(), a.is_empty()));
            prop_assert!((0..MAX_MEMBERS).all(|slot| set(&a).contains(slot) == a.contains(&slot)));
            let mut less = set(&a);
            b.iter().for_each(|&slot| less.remove(slot));
            prop_assert_eq!(less, set(&a).without(set(&b)));
        }
    }

    #[test]
    fn slots_that_cannot_be_are_never_in_it() {
        let mut set = SlotSet::first(MAX_MEMBERS);
        assert_eq!(set.len(), MAX_MEMBERS);
        set.insert(MAX_MEMBERS);
        set.remove(MAX_MEMBERS + 7);
        assert!(!set.contains(MAX_MEMBERS) && set.len() == MAX_MEMBERS);
        assert_eq!(format!("{:?}", SlotSet::first(2)), "{0, 1}");
    }
}
