//! A list on the stack that costs nothing until something is in it.

use std::mem::MaybeUninit;

use super::MAX_DATA_CHUNKS;

/// Room for every data chunk of a row twice, and for its parities.
const CAPACITY: usize = 2 * MAX_DATA_CHUNKS + 2;

/// The list.
pub(super) struct List<T: Copy> {
    items: [MaybeUninit<T>; CAPACITY],
    /// So many items from the first on have been written.
    len: usize,
}

impl<T: Copy> List<T> {
    /// An empty one.
    pub(super) fn new() -> Self {
        Self { items: [const { MaybeUninit::uninit() }; CAPACITY], len: 0 }
    }

    /// Adds an item, for which there must be room.
    pub(super) fn push(&mut self, item: T) {
        self.items[self.len].write(item);
        self.len += 1;
    }

    /// What is in it.
    pub(super) fn as_slice(&self) -> &[T] {
        let items = &self.items[..self.len];
        // SAFETY: so many items have been written, and `MaybeUninit<T>` is laid out as `T`.
        unsafe { &*(std::ptr::from_ref(items) as *const [T]) }
    }
}
