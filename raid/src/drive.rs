//! The only seam between the engine and storage: what a member of an array can do.
//!
//! The daemon implements [`Drive`] on io_uring, the tests on memory and on a simulated drive. The
//! engine is generic over it, so that a command costs no boxed future. A handle belongs to one
//! core; several cores have a handle each on the same drive.
//!
//! What the engine relies on:
//! * A write whose future completed with success is seen by every later read through any handle.
//! * After a `flush` completed with success, every write that had completed (through any handle)
//!   *before the flush was asked for* survives power loss; so does a write with `fua` when it
//!   completed. If `has_volatile_cache()` is false, that holds for every completed write.
//! * A failed or torn write leaves each of its blocks old or new or unreadable, never other bytes,
//!   and touches no other block.
//! * Offsets and lengths are multiples of `block_size_bytes()`; buffers are 512-byte aligned at
//!   least, and page-aligned whenever the host's command began so.
//! * Dropping a future abandons the result, not the operation; the buffers stay with the drive
//!   until it has really ended.
//! * Every operation answers within the drive's timeout, if need be with [`DriveError::TimedOut`].
//!   What timed out may still reach the drive later, or never: [`Drive::late_operations`] counts
//!   such operations until they have ended, and until then the drive keeps their buffers.

use std::future::Future;

use crate::buffer::{Buffer, SharedBuffer};

/// A drive as seen by one core. See the file's head for what implementations promise.
pub trait Drive {
    /// Reads `buffer.len()` bytes at `offset_bytes`. A short read is an error.
    ///
    /// # Errors
    /// The failure brings the buffer back, unless the operation timed out and still owns it.
    fn read(
        &self,
        offset_bytes: u64,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, ReadFailure>>;

    /// Writes all of `data` at `offset_bytes`. With `fua` it completes only when the data is safe
    /// from power loss.
    fn write(
        &self,
        offset_bytes: u64,
        data: SharedBuffer,
        fua: bool,
    ) -> impl Future<Output = Result<(), DriveError>>;

    /// Makes every write that completed before this call safe from power loss.
    fn flush(&self) -> impl Future<Output = Result<(), DriveError>>;

    /// Makes the range read as zeros, guaranteed, releasing its space if `deallocate` and the
    /// drive can do that under the same guarantee. Like a write, it is volatile until a flush.
    ///
    /// # Errors
    /// `Unsupported` if only writing zeros would do; the caller then does that.
    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        deallocate: bool,
    ) -> impl Future<Output = Result<(), DriveError>>;

    /// Whether completed writes can be lost with the power until a flush.
    fn has_volatile_cache(&self) -> bool;

    /// Usable size.
    fn size_bytes(&self) -> u64;

    /// The unit of reads and writes: 512 or 4096.
    fn block_size_bytes(&self) -> u32;

    /// Operations that have timed out and not ended below yet, through all handles of the drive.
    fn late_operations(&self) -> usize {
        0
    }

    /// The drive is not used any more through this handle: what is under way through it may end at
    /// once, with [`DriveError::TimedOut`], and counts as late until it has ended below.
    fn give_up(&self) {}
}

/// Why a read failed, and its buffer.
#[derive(Debug)]
pub struct ReadFailure {
    /// What went wrong.
    pub error: DriveError,
    /// The buffer, whose contents mean nothing now. It is missing if the operation timed out: then
    /// the drive may still write to it, and keeps it until that has ended.
    pub buffer: Option<Buffer>,
}

impl ReadFailure {
    /// A failure after which the buffer is free again.
    pub fn new(error: DriveError, buffer: Buffer) -> Self {
        Self { error, buffer: Some(buffer) }
    }
}

/// Why a drive did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DriveError {
    /// The operating system reported this error number (`EIO`, `ETIMEDOUT`, `EILSEQ` …).
    #[error("input/output error (errno {errno})")]
    Io {
        /// The raw error number, positive.
        errno: i32,
    },
    /// A sparse file or thin volume has no room left below it. The drive itself is sound.
    #[error("no space left on the file system or thin volume below")]
    NoSpace,
    /// Fewer bytes than asked for were transferred.
    #[error("only {done_bytes} of {wanted_bytes} bytes were transferred")]
    Short {
        /// Bytes transferred.
        done_bytes: usize,
        /// Bytes asked for.
        wanted_bytes: usize,
    },
    /// The range is not within the drive, or not in whole blocks.
    #[error("the range is beyond the end of the drive or not in whole blocks")]
    OutOfRange,
    /// The drive cannot do this kind of operation.
    #[error("the drive does not support this operation")]
    Unsupported,
    /// The drive was removed, or its device node is dead.
    #[error("the drive is gone")]
    Gone,
    /// The drive did not answer within the member's timeout. The operation may still be carried
    /// out later, or never.
    #[error("the drive did not answer in time")]
    TimedOut,
}

impl DriveError {
    /// What an error number from the kernel means for a drive.
    pub fn from_errno(errno: i32) -> Self {
        use rustix::io::Errno;
        match Errno::from_raw_os_error(errno) {
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace,
            Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => Self::Unsupported,
            Errno::NODEV | Errno::NXIO => Self::Gone,
            _ => Self::Io { errno },
        }
    }

    /// What a result of a transfer of `wanted_bytes` means: a count that falls short is an error.
    ///
    /// # Errors
    /// `Short`, if less was transferred.
    pub fn check_transfer(done_bytes: usize, wanted_bytes: usize) -> Result<(), Self> {
        if done_bytes == wanted_bytes {
            Ok(())
        } else {
            Err(Self::Short { done_bytes, wanted_bytes })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_keep_their_meaning() {
        for (errno, expected) in [
            (28, DriveError::NoSpace),
            (122, DriveError::NoSpace),
            (95, DriveError::Unsupported),
            (19, DriveError::Gone),
            (6, DriveError::Gone),
            (5, DriveError::Io { errno: 5 }),
        ] {
            assert_eq!(DriveError::from_errno(errno), expected, "errno {errno}");
        }
    }

    #[test]
    fn a_short_transfer_is_an_error() {
        assert_eq!(DriveError::check_transfer(4096, 4096), Ok(()));
        let short = DriveError::Short { done_bytes: 512, wanted_bytes: 4096 };
        assert_eq!(DriveError::check_transfer(512, 4096), Err(short));
        assert_eq!(short.to_string(), "only 512 of 4096 bytes were transferred");
    }
}
