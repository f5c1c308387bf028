//! What a log's record tells of the contents of the data chunks that are being written: a checksum
//! of what they become, and one of what they were, if that is known. Pure.
//!
//! A member that is lost along with a crash leaves its chunk to be computed from parity, and whether
//! the write had got to parity and to the other chunks is seen from nothing else. If what is
//! computed, together with the others as they are, has one of these checksums, that is what the
//! chunks hold.
//!
//! Each is a CRC-32C of the bytes of all the chunks of the record, in ascending order of their index,
//! each chunk's part in one piece behind the one before. For a record of a single chunk there need
//! be none: then nothing but parity could differ from what it says.

use crc_fast::CrcAlgorithm::Crc32Iscsi;

/// How "not known" is stored. A checksum of this value counts as not known.
const UNKNOWN: u32 = u32::MAX;

/// See the file's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Of what the chunks become.
    pub new: Option<u32>,
    /// Of what they were.
    pub old: Option<u32>,
}

impl Checks {
    /// Nothing is known.
    pub const NONE: Self = Self { new: None, old: None };

    /// Whether nothing is known.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// As it is stored: that of the new contents, and that of the old.
    #[must_use]
    pub fn to_raw(self) -> [u32; 2] {
        [self.new, self.old].map(|check| check.unwrap_or(UNKNOWN))
    }

    /// From how it is stored.
    #[must_use]
    pub fn from_raw(raw: [u32; 2]) -> Self {
        let [new, old] = raw.map(|check| (check != UNKNOWN).then_some(check));
        Self { new, old }
    }
}

/// A checksum that is being computed.
pub struct Check(crc_fast::Digest);

impl Check {
    /// Of nothing so far.
    #[must_use]
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(Crc32Iscsi))
    }

    /// These bytes come next.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Of all that was added.
    #[must_use]
    pub fn value(&self) -> u32 {
        // The 32-bit algorithms give their value in the low half.
        u32::try_from(self.0.finalize() & 0xffff_ffff).unwrap_or(0)
    }
}

impl Default for Check {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_the_checksum_of_the_bytes_in_their_order() {
        let mut check = Check::new();
        check.add(b"12345");
        check.add(b"");
        check.add(b"6789");
        assert_eq!(check.value(), 0xe306_9283);
        assert_eq!(Check::new().value(), 0);
    }

    #[test]
    fn what_is_not_known_comes_back_as_such() {
        for checks in [
            Checks::NONE,
            Checks { new: Some(0), old: None },
            Checks { new: Some(7), old: Some(u32::MAX - 1) },
        ] {
            assert_eq!(Checks::from_raw(checks.to_raw()), checks);
        }
        let checks = Checks { new: Some(UNKNOWN), old: Some(1) };
        assert_eq!(Checks::from_raw(checks.to_raw()), Checks { new: None, old: Some(1) });
    }
}
