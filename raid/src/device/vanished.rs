//! Telling a block device that was pulled from one that is full, ends early, or errs.
//!
//! The kernel sets the size of a disk that has gone to zero. Whoever still has it open is then told
//! that there is no space left (writes), that this is the end (reads), or that there was an error
//! (flushes, and what was under way), which would otherwise be the words for a thin volume, a
//! truncated file, or a drive that is broken.

use rustix::fd::AsFd;
use rustix::fs::{FileType, SeekFrom, fstat, seek};

/// Whether `fd` is a block device of `size_bytes` that is not there any more. Asks the kernel for
/// two numbers that it has in memory, and so never waits.
pub fn has_vanished(fd: impl AsFd, size_bytes: u64) -> bool {
    let is_block =
        fstat(&fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice);
    is_block && seek(&fd, SeekFrom::End(0)).is_ok_and(|now_bytes| now_bytes < size_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Block devices cannot be had in a unit test; the guest's tests pull some.
    #[test]
    fn a_file_has_not_vanished_however_short() {
        let file = tempfile::tempfile().unwrap();
        assert!(!has_vanished(&file, 4096));
    }
}
