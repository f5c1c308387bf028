//! Contents that tell where and when they were written.
//!
//! Every logical block begins with its LBA, the generation of the write and the run's number;
//! the rest is a sequence that follows from these three, so that any byte out of place is found:
//! stale data by its generation, misplaced data by its LBA, torn or damaged data by the sequence.

use crate::Error;

/// Spreads the bits of consecutive words.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Words that are not of the sequence: LBA, generation, run.
const HEAD: [&str; 3] = ["LBA", "generation", "run"];

/// What a block should hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) lba: u64,
    pub(super) generation: u32,
    pub(super) run: u64,
}

/// A mixing function: every input bit changes half of the output's.
pub(super) fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

impl Stamp {
    fn head(&self) -> [u64; 3] {
        [self.lba, u64::from(self.generation), self.run]
    }

    fn key(&self) -> u64 {
        mix(self.lba ^ mix(u64::from(self.generation) ^ mix(self.run)))
    }

    /// Fills one logical block.
    fn fill(&self, block: &mut [u8]) {
        let (words, _) = block.as_chunks_mut::<8>();
        let (head, body) = words.split_at_mut(HEAD.len().min(words.len()));
        for (place, word) in head.iter_mut().zip(self.head()) {
            *place = word.to_le_bytes();
        }
        let mut word = self.key();
        for place in body {
            *place = word.to_le_bytes();
            word = word.wrapping_add(STEP);
        }
    }

    /// Checks one logical block.
    fn check(&self, block: &[u8]) -> Result<(), Error> {
        let (words, _) = block.as_chunks::<8>();
        let (head, body) = words.split_at(HEAD.len().min(words.len()));
        let at = |lba| format!("LBA {lba}");
        for ((found, expected), what) in head.iter().zip(self.head()).zip(HEAD) {
            let found = u64::from_le_bytes(*found);
            if found != expected {
                let lba = at(self.lba);
                return Err(Error::Verification(format!(
                    "{lba}: {what} {found:#x} was read, {expected:#x} was written"
                )));
            }
        }
        let mut word = self.key();
        for (index, found) in body.iter().enumerate() {
            if u64::from_le_bytes(*found) != word {
                let byte = (index + HEAD.len()) * 8;
                let lba = at(self.lba);
                return Err(Error::Verification(format!(
                    "{lba}: the block is damaged in bytes {byte} to {}",
                    byte + 7
                )));
            }
            word = word.wrapping_add(STEP);
        }
        Ok(())
    }

    fn following(&self, blocks: usize) -> Self {
        Self { lba: self.lba + blocks as u64, ..*self }
    }
}

/// Fills consecutive blocks, the first of which is `first`.
pub(super) fn fill(first: Stamp, block_bytes: usize, buffer: &mut [u8]) {
    for (index, block) in buffer.chunks_exact_mut(block_bytes).enumerate() {
        first.following(index).fill(block);
    }
}

/// Checks consecutive blocks, the first of which should be `first`.
///
/// # Errors
/// The first difference, in words.
pub(super) fn check(first: Stamp, block_bytes: usize, buffer: &[u8]) -> Result<(), Error> {
    for (index, block) in buffer.chunks_exact(block_bytes).enumerate() {
        first.following(index).check(block)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { lba: 40, generation: 3, run: 77 };

    #[test]
    fn what_was_filled_is_accepted_and_nothing_else() {
        let mut buffer = vec![0; 4 * 512];
        fill(STAMP, 512, &mut buffer);
        check(STAMP, 512, &buffer).unwrap();
        for (wrong, word) in [
            (Stamp { lba: 41, ..STAMP }, "LBA"),
            (Stamp { generation: 2, ..STAMP }, "generation"),
            (Stamp { run: 78, ..STAMP }, "run"),
        ] {
            let error = check(wrong, 512, &buffer).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn every_damaged_byte_is_found() {
        let mut buffer = vec![0; 2 * 512];
        fill(STAMP, 512, &mut buffer);
        for byte in 0..buffer.len() {
            buffer[byte] ^= 0x40;
            let error = check(STAMP, 512, &buffer).unwrap_err().to_string();
            let lba = format!("LBA {}", STAMP.lba as usize + byte / 512);
            assert!(error.contains(&lba), "byte {byte}: {error}");
            buffer[byte] ^= 0x40;
        }
    }
}
