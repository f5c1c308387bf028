//! One anonymous private mapping, which lives as long as its `Region`.
//!
//! It says where bytes are and never touches them: who may read or write which byte is the
//! business of the buffers.

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The mapping.
pub(super) struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; `Region` gives out addresses only.
unsafe impl Send for Region {}
// SAFETY: as above; nothing in it changes after it was made.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes of zeros, readable and writable, without reserving memory for them.
    pub(super) fn map(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is asked for, so no existing mapping is touched.
        let base = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { base, len })
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The address `offset` bytes behind the start; at most one past the end.
    pub(super) fn address(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.len);
        // SAFETY: within the mapping or one past it, as just checked.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is exactly the mapping made in `map`; the pool drops it only when no buffer
        // is left, so nothing refers to its bytes.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping {} bytes: {unmapped:?}", self.len);
    }
}
