//! Memory aligned for direct I/O, from the ordinary heap.

use std::ops::{Deref, DerefMut};

/// Zeroed bytes whose address is a multiple of 4096.
#[derive(Debug)]
pub struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// What every address is a multiple of.
    pub const ALIGNMENT_BYTES: usize = 4096;

    /// `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let memory = vec![0; len + Self::ALIGNMENT_BYTES];
        let start = memory.as_ptr().align_offset(Self::ALIGNMENT_BYTES).min(Self::ALIGNMENT_BYTES);
        Self { memory, start, len }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.memory.get(self.start..self.start + self.len).unwrap_or_default()
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.start..self.start + self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_and_of_the_length_asked_for() {
        for len in [0, 1, 512, 4096, 5000, 1 << 20] {
            let buf = AlignedBuffer::zeroed(len);
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_ptr().addr() % AlignedBuffer::ALIGNMENT_BYTES, 0);
        }
    }
}
