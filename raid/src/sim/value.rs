//! What a sector of the array contains, as one number, and back.
//!
//! A write has a number of its own, and fills each of its sectors with a word that tells that
//! number and the sector's: a mix-up of places is seen, and an exclusive-or of several such words
//! is none. Besides there are zeros, the junk that a drive was full of, and garbage.

use super::image::SECTOR_BYTES;

/// What a sector contains.
pub(crate) type Value = u64;

/// Zeros: what zeroing leaves.
pub(crate) const ZERO: Value = 0;

/// Stands for any value at all (in the model only).
pub(crate) const ANYTHING: Value = 1 << 62;

/// Stands for any value that the sector ever had (in the model only).
pub(crate) const ANY_EARLIER: Value = ANYTHING + 1;

/// Values from here on are something that nobody ever wrote there.
const GARBAGE: Value = 1 << 63;

/// Values from here on are the junk of a drive.
const JUNK: Value = 1 << 61;

const JUNK_BYTE: u8 = 0x70;

const SECTOR_BITS: u32 = 24;

/// What the drive of this number was full of.
pub(crate) fn junk(disk: usize) -> Value {
    JUNK + disk as u64
}

/// The byte of which that consists.
pub(crate) fn junk_byte(disk: usize) -> u8 {
    JUNK_BYTE + disk as u8
}

/// A bijection of 64 bits (SplitMix64's last steps).
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The inverse of [`mix`].
fn unmix(mut word: u64) -> u64 {
    word = (word ^ (word >> 31) ^ (word >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
    word = (word ^ (word >> 27) ^ (word >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
    word ^ (word >> 30) ^ (word >> 60)
}

/// Fills sectors of the array, from `first` on, with a write's value.
pub(crate) fn encode(value: Value, first: usize, bytes: &mut [u8]) {
    for (index, sector) in bytes.chunks_mut(SECTOR_BYTES).enumerate() {
        let word = mix(value << SECTOR_BITS | (first + index) as u64).to_le_bytes();
        sector.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&word));
    }
}

/// What a sector contains.
pub(crate) fn decode(sector: usize, bytes: &[u8]) -> Value {
    let (words, _) = bytes.as_chunks::<8>();
    let word = u64::from_le_bytes(words[0]);
    if words.iter().any(|other| *other != words[0]) {
        let hash = words.iter().fold(0, |hash, word| mix(hash ^ u64::from_le_bytes(*word)));
        return GARBAGE | hash >> 1;
    }
    if word == 0 {
        return ZERO;
    }
    let byte = word as u8;
    if word == u64::from_le_bytes([byte; 8]) && (JUNK_BYTE..JUNK_BYTE + 16).contains(&byte) {
        return junk((byte - JUNK_BYTE) as usize);
    }
    let (value, place) = (unmix(word) >> SECTOR_BITS, unmix(word) & ((1 << SECTOR_BITS) - 1));
    if place == sector as u64 && value < 1 << 32 { value } else { GARBAGE | word >> 1 }
}

/// A value in words.
pub(crate) fn show(value: Value) -> String {
    match value {
        ZERO => "zeros".into(),
        ANYTHING => "anything".into(),
        ANY_EARLIER => "anything it ever had".into(),
        _ if value >= GARBAGE => format!("garbage {value:x}"),
        _ if value >= JUNK => format!("junk of drive {}", value - JUNK),
        _ => format!("write {value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_recognised_at_their_own_place_only() {
        let mut bytes = [0; 2 * SECTOR_BYTES];
        for value in [1, 77, (1 << 32) - 1] {
            encode(value, 1000, &mut bytes);
            assert_eq!(decode(1000, &bytes[..SECTOR_BYTES]), value);
            assert_eq!(decode(1001, &bytes[SECTOR_BYTES..]), value);
            assert!(decode(1000, &bytes[SECTOR_BYTES..]) >= GARBAGE);
        }
        assert_eq!(decode(5, &[0; SECTOR_BYTES]), ZERO);
        assert_eq!(decode(5, &[junk_byte(3); SECTOR_BYTES]), junk(3));
        bytes[300] ^= 1;
        assert!(decode(1000, &bytes[..SECTOR_BYTES]) >= GARBAGE);
    }
}
