//! Patterns and random numbers that come out the same in each run.

use bytes::Bytes;

/// SplitMix64: small, and good enough to choose sizes, places and contents.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit
    }

    /// One of these.
    pub fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// So many random bytes.
    pub fn bytes(&mut self, length: usize) -> Bytes {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.next_u64().to_le_bytes());
        }
        bytes.truncate(length);
        bytes.into()
    }
}

/// Bytes that differ from those of any other seed in every block, and from block to block.
pub fn pattern(seed: u64, length: usize) -> Bytes {
    Random::new(seed.wrapping_mul(0x1_0000_0001)).bytes(length)
}

/// Where two byte strings differ first, for a message that says more than "they differ".
pub fn difference(expected: &[u8], found: &[u8]) -> Option<String> {
    if expected == found {
        return None;
    }
    if expected.len() != found.len() {
        return Some(format!("{} bytes expected, {} found", expected.len(), found.len()));
    }
    let at = expected.iter().zip(found).position(|(a, b)| a != b)?;
    let count = expected.iter().zip(found).filter(|(a, b)| a != b).count();
    Some(format!(
        "{count} of {} bytes differ, first at {at}: {:02x} expected, {:02x} found",
        expected.len(),
        expected[at],
        found[at]
    ))
}
