//! Page-aligned buffers from one mapping per pool, without locks or heap allocation in steady state.
//!
//! A [`Pool`] maps its whole budget once (anonymous memory: pages cost nothing until they are
//! touched) and hands out *blocks* of a power of two of 4 KiB units. Handles on a block are
//! [`Buffer`] (exclusive bytes) and [`SharedBuffer`] (read-only bytes that can be cloned and
//! sliced). A block goes back to its pool when its last handle is dropped, from whatever thread.
//!
//! Where a block comes from, fastest first:
//! 1. one bounded lock-free queue of free blocks per size;
//! 2. the buddy allocator under a mutex;
//! 3. the same after all queues were drained into it, so that blocks of another size merge again.
//!
//! Invariants, on which the `unsafe` code of this folder rests:
//! * A block is in exactly one place: in one of the queues, free in the buddy allocator, or out in
//!   the hands of handles. Only blocks that are out have a reference count above zero, and it is
//!   the number of handles. The counts are in a table made with the pool, so that splitting and
//!   cloning allocate nothing.
//! * The byte ranges of the `Buffer`s of a block are disjoint from each other and from those of
//!   its `SharedBuffer`s. `SharedBuffer`s may overlap among themselves.
//! * Each block that is out holds one strong count on the pool's inner part, so the mapping lives
//!   until the last handle is gone, also if every `Pool` was dropped before.
//! * The mapping is anonymous, so every byte is initialised at any time. It never moves.
//!
//! `unsafe` code of this crate for memory lives here and nowhere else. This file does no I/O.

mod buddy;
mod region;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_queue::ArrayQueue;

use buddy::Buddy;
use region::Region;

/// Size and alignment of the smallest block.
pub const UNIT_BYTES: usize = 4096;

/// Most free blocks of one size that are kept in its queue.
const QUEUE_BLOCKS: usize = 4096;

/// What the pool keeps for each unit; meaningful at the first unit of a block that is out.
struct Block {
    /// Number of handles.
    handles: AtomicU32,
    /// log2 of the block's units. Written before the block is handed out.
    order: AtomicU8,
}

struct Inner {
    region: Region,
    blocks: Box<[Block]>,
    /// Free blocks by order, the fast path.
    queues: Box<[ArrayQueue<u32>]>,
    buddy: Mutex<Buddy>,
    in_use_bytes: AtomicUsize,
}

impl Inner {
    fn buddy(&self) -> MutexGuard<'_, Buddy> {
        // A panic inside is a broken invariant of the allocator's own; nothing to recover here.
        self.buddy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, order: u8) -> Option<u32> {
        if let Some(unit) = self.queues.get(usize::from(order))?.pop() {
            return Some(unit);
        }
        let mut buddy = self.buddy();
        if let Some(unit) = buddy.allocate(order) {
            return Some(unit);
        }
        for (order, queue) in self.queues.iter().enumerate() {
            while let Some(unit) = queue.pop() {
                buddy.free(unit, order as u8);
            }
        }
        buddy.allocate(order)
    }

    fn give_back(&self, unit: u32, order: u8) {
        if let Err(unit) = self.queues[usize::from(order)].push(unit) {
            self.buddy().free(unit, order);
        }
    }
}

/// A budget of memory from which buffers are allocated. Clones share it.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

impl Pool {
    /// Maps a pool of `budget_bytes` (rounded up to 4 KiB) whose largest block has
    /// `max_block_bytes` (rounded up to a power of two, at least 4 KiB).
    ///
    /// The memory is touched, and so counted as resident, only as it is used.
    ///
    /// # Errors
    /// `InvalidInput` if the budget is zero, smaller than one largest block, or beyond 16 TiB; or
    /// whatever the kernel says to the mapping.
    pub fn new(budget_bytes: usize, max_block_bytes: usize) -> io::Result<Self> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        let units = budget_bytes.div_ceil(UNIT_BYTES);
        let max_units = max_block_bytes.div_ceil(UNIT_BYTES).max(1).checked_next_power_of_two();
        let max_units = max_units.ok_or_else(|| invalid("the largest block is too large"))?;
        let unit_count =
            u32::try_from(units).ok().filter(|&units| units > 0 && units < u32::MAX).ok_or_else(
                || invalid("the memory budget of a pool must be above zero and below 16 TiB"),
            )?;
        if max_units > units || max_units.trailing_zeros() > 30 {
            return Err(invalid("the memory budget of a pool is smaller than its largest block"));
        }
        let max_order = max_units.trailing_zeros() as u8;
        let blocks =
            (0..units).map(|_| Block { handles: AtomicU32::new(0), order: AtomicU8::new(0) });
        let queues = (0..=max_order)
            .map(|order| ArrayQueue::new((units >> order).clamp(1, QUEUE_BLOCKS)))
            .collect();
        let inner = Inner {
            region: Region::map(units * UNIT_BYTES)?,
            blocks: blocks.collect(),
            queues,
            buddy: Mutex::new(Buddy::new(unit_count, max_order)),
            in_use_bytes: AtomicUsize::new(0),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A buffer of `len` bytes in a block of its own, whose size is `len` rounded up to a power of
    /// two of at least 4 KiB. What it contains is unspecified (what its last user left there).
    ///
    /// Nothing if `len` is above the largest block, or no free block of that size is left. Another
    /// thread's block that is just being freed may be missed, so a caller that must have memory
    /// waits for a release and tries again.
    pub fn allocate(&self, len: usize) -> Option<Buffer> {
        let units = len.div_ceil(UNIT_BYTES).max(1).checked_next_power_of_two()?;
        let order = u8::try_from(units.trailing_zeros()).ok()?;
        let unit = self.inner.take(order)?;
        self.inner.in_use_bytes.fetch_add(UNIT_BYTES << order, Ordering::Relaxed);
        let block = &self.inner.blocks[unit as usize];
        // The block is out now, with one handle, which nobody else can know of yet: the queue or
        // the mutex it came through orders these stores after the last user's accesses.
        block.order.store(order, Ordering::Relaxed);
        block.handles.store(1, Ordering::Relaxed);
        // The count of the block that is out; `Handle::drop` gives it back with the block.
        let inner = Arc::into_raw(Arc::clone(&self.inner)).cast_mut();
        // SAFETY: a pointer from an `Arc` is not null.
        let inner = unsafe { NonNull::new_unchecked(inner) };
        let start = self.inner.region.address(unit as usize * UNIT_BYTES);
        Some(Buffer { handle: Handle { inner, unit }, start, len })
    }

    /// Bytes in blocks that are out.
    pub fn in_use_bytes(&self) -> usize {
        self.inner.in_use_bytes.load(Ordering::Relaxed)
    }

    /// Bytes this pool can hand out at most.
    pub fn budget_bytes(&self) -> usize {
        self.inner.region.len()
    }

    /// The size of the largest block.
    pub fn max_block_bytes(&self) -> usize {
        UNIT_BYTES << (self.inner.queues.len() - 1)
    }

    /// Address and length of the whole mapping, for registering it with the kernel. It is mapped
    /// as long as the pool or any of its buffers lives. The pointer is for its address: what it
    /// points to belongs to the buffers.
    pub fn region(&self) -> (*const u8, usize) {
        (self.inner.region.address(0).as_ptr(), self.inner.region.len())
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("in_use_bytes", &self.in_use_bytes())
            .field("budget_bytes", &self.budget_bytes())
            .finish()
    }
}

/// One counted reference to a block that is out.
struct Handle {
    inner: NonNull<Inner>,
    /// The block's first unit.
    unit: u32,
}

// SAFETY: a handle is a counted reference to `Inner`, which is `Send` and `Sync` (checked below);
// the count of handles is atomic and may be changed from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above; through `&Handle` only the atomic count can be changed.
unsafe impl Sync for Handle {}

const _: () = {
    const fn assert_send_and_sync<T: Send + Sync>() {}
    assert_send_and_sync::<Inner>();
};

impl Handle {
    fn inner(&self) -> &Inner {
        // SAFETY: `inner` came from an `Arc`, and the block, which is out while `self` exists,
        // holds one of its strong counts.
        unsafe { self.inner.as_ref() }
    }

    fn block(&self) -> &Block {
        &self.inner().blocks[self.unit as usize]
    }

    fn is_only_one(&self) -> bool {
        // Acquire: what other threads did through handles that are gone happened before this.
        self.block().handles.load(Ordering::Acquire) == 1
    }

    fn is_same_block(&self, other: &Self) -> bool {
        self.inner == other.inner && self.unit == other.unit
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        // Relaxed, as in `Arc`: the new handle is made from an existing one.
        let before = self.block().handles.fetch_add(1, Ordering::Relaxed);
        // Leaked handles could wrap the count around; long before that it is a bug worth dying of.
        assert!(before < u32::MAX / 2, "too many handles on one buffer");
        Self { inner: self.inner, unit: self.unit }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Release: this handle's accesses happen before the block is used again.
        if self.block().handles.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        // The last handle: all others' accesses happened before.
        fence(Ordering::Acquire);
        let order = self.block().order.load(Ordering::Relaxed);
        self.inner().in_use_bytes.fetch_sub(UNIT_BYTES << order, Ordering::Relaxed);
        self.inner().give_back(self.unit, order);
        // SAFETY: `inner` came from `Arc<Inner>`, and this is the strong count that `allocate` put
        // aside for the block, which is not out any more. `self` is not used after this.
        unsafe { Arc::decrement_strong_count(self.inner.as_ptr()) };
    }
}

/// Exclusive bytes of a pool.
///
/// They start page-aligned when they come from [`Pool::allocate`], and stay at the same address
/// for the life of the buffer, wherever it is moved.
pub struct Buffer {
    handle: Handle,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are this buffer's alone (invariant of the file), and plain data.
unsafe impl Send for Buffer {}
// SAFETY: `&Buffer` only gives shared access to the bytes.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// The address of the first byte, valid for reads of `len()` bytes while the buffer lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The address of the first byte, valid for reads and writes of `len()` bytes while the buffer
    /// lives. The caller must not let anything write there while it also uses the slice.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Keeps the first `len` bytes; does nothing if there are not more. The rest of the block is
    /// unused until the block is freed.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Splits at byte `at`: `self` keeps what is before, the result has what follows. Both hold
    /// the block.
    ///
    /// # Panics
    /// If `at` is beyond the end.
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "cannot split {} bytes at {at}", self.len);
        let tail = Self {
            handle: self.handle.clone(),
            // SAFETY: `at` is at most the length, so the result is in the block or one past it.
            start: unsafe { self.start.add(at) },
            len: self.len - at,
        };
        self.len = at;
        tail
    }

    /// Takes back what was split off right behind `self`.
    ///
    /// # Errors
    /// Returns `other` if it is of another block or does not begin where `self` ends.
    pub fn unsplit(&mut self, other: Self) -> Result<(), Self> {
        // SAFETY: the end of a buffer is in its block or one past it.
        let end = unsafe { self.start.add(self.len) };
        if !self.handle.is_same_block(&other.handle) || end != other.start {
            return Err(other);
        }
        // Both ranges were exclusive and are adjacent within one block: so is their union.
        self.len += other.len;
        Ok(())
    }

    /// Gives up writing, so that the bytes can be shared.
    pub fn freeze(self) -> SharedBuffer {
        SharedBuffer { handle: self.handle, start: self.start, len: self.len }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` and `len` are within the mapping, which is initialised and lives while
        // the handle does; nobody else has access to these bytes, so nobody writes them while the
        // slice borrows `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// Read-only bytes of a pool; clones and slices share the block.
#[derive(Clone)]
pub struct SharedBuffer {
    handle: Handle,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are plain data that nobody writes while a `SharedBuffer` on them exists.
unsafe impl Send for SharedBuffer {}
// SAFETY: as above.
unsafe impl Sync for SharedBuffer {}

impl SharedBuffer {
    /// The address of the first byte, valid for reads of `len()` bytes while the buffer lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// A part of the bytes, which holds the block as well.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let from = match range.start_bound() {
            Bound::Included(&from) => from,
            Bound::Excluded(&before) => before + 1,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&last) => last + 1,
            Bound::Excluded(&to) => to,
            Bound::Unbounded => self.len,
        };
        assert!(from <= to && to <= self.len, "{from}..{to} is not within {} bytes", self.len);
        Self {
            handle: self.handle.clone(),
            // SAFETY: `from` is at most the length, so the result is in the block or one past it.
            start: unsafe { self.start.add(from) },
            len: to - from,
        }
    }

    /// The bytes for writing again, if this is the only handle on the block.
    ///
    /// # Errors
    /// Returns `self` if there is any other handle on the block, even on other bytes of it.
    pub fn try_into_mut(self) -> Result<Buffer, Self> {
        // A single handle cannot become two behind our back: only it could be cloned.
        if !self.handle.is_only_one() {
            return Err(self);
        }
        Ok(Buffer { handle: self.handle, start: self.start, len: self.len })
    }
}

impl Deref for SharedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` and `len` are within the mapping, which is initialised and lives while
        // the handle does; while a shared buffer on these bytes exists there is no exclusive one.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for SharedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuffer({} bytes)", self.len)
    }
}
