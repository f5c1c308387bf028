//! Drives as the engine's owner sees them: opened once, owned, measured, named.
//!
//! A drive is a block device or a regular file. [`open`] takes it so that nobody else
//! can while any request of ours is in the kernel, and says who has it otherwise.
//!
//! **One owner.** A block device is opened with `O_EXCL`, which shuts out mounts, md,
//! LVM and other exclusive openers, through whatever device node they come. Files know
//! no such thing, so an advisory lock does it, `flock(2)`, for three reasons: like an
//! open-file-description lock it belongs to the open file, so that it lasts until the
//! last request in the kernel has let go of it, also after `SIGKILL`; it works on block
//! devices as well (where it is what udev honours); and it needs no unsafe code. Writes
//! with FUA go through a second descriptor, `O_DSYNC`, which must shut out a successor
//! too. Hence: who wants to own a drive takes the exclusive lock through the first
//! descriptor, which succeeds only while nobody holds anything, and then turns it into a
//! shared lock held through both.
//!
//! What stays open: a block device's node in another container is another file, so
//! there only `O_EXCL` counts, which the second descriptor cannot have. Whoever
//! registers both descriptors with the same io_uring instance (it lets go of its files
//! only after its last request) closes that, too.
//!
//! Nothing here knows arrays; [`signature`] recognises what a drive holds.

pub mod advice;
mod aligned;
mod holder;
mod identity;
mod open;
pub mod paths;
pub mod signature;
#[cfg(test)]
mod tests;
mod vanished;

pub use aligned::AlignedBuffer;
pub use holder::{Holder, held_by};
pub use identity::{Identity, Kind, Roots};
pub use open::{Descriptors, Intent, OpenDevice, Patience, open, open_patiently};
pub use vanished::has_vanished;

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Synchronous access to a drive's metadata: what assembly and superblock updates need.
///
/// Offsets and lengths of writes are multiples of the drive's block, as those of 4096
/// always are; reads may be any.
pub trait Medium {
    /// What to call the drive in messages.
    fn name(&self) -> String;
    /// The drive's size.
    fn size_bytes(&self) -> u64;
    /// Fills `buf` from `offset_bytes` on.
    ///
    /// # Errors
    /// The drive's, or if the range is not within the drive.
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Writes, and returns once that survives power loss.
    ///
    /// # Errors
    /// The drive's; what is on the drive then is not known.
    fn write_durable(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()>;
    /// Makes every write that has completed survive power loss.
    ///
    /// # Errors
    /// The drive's; it must then not be believed to have kept anything unflushed.
    fn flush(&self) -> io::Result<()>;
    /// Makes a range read as zeros, guaranteed and durably, if the drive can do that
    /// without writing it all; else changes nothing and says false.
    ///
    /// # Errors
    /// The drive's.
    fn zero_cheaply(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<bool>;
}

impl<M: Medium + ?Sized> Medium for &M {
    fn name(&self) -> String {
        (**self).name()
    }
    fn size_bytes(&self) -> u64 {
        (**self).size_bytes()
    }
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset_bytes, buf)
    }
    fn write_durable(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        (**self).write_durable(offset_bytes, data)
    }
    fn flush(&self) -> io::Result<()> {
        (**self).flush()
    }
    fn zero_cheaply(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<bool> {
        (**self).zero_cheaply(offset_bytes, len_bytes)
    }
}

/// Why a drive could not be opened. Each says what to do.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// No such path.
    #[error(
        "{path}: there is no such drive or file; check the path and that the drive is plugged in"
    )]
    NotFound {
        /// As given.
        path: PathBuf,
    },
    /// Neither a block device nor a regular file.
    #[error("{path}: this is {what}; a member is a block device or a regular file")]
    NotADrive {
        /// As given.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The process may not.
    #[error(
        "{path}: permission denied; run as root, or as a member of the group that owns the drive"
    )]
    Permission {
        /// As given.
        path: PathBuf,
    },
    /// The drive or its file system only reads.
    #[error("{path}: it is read-only; a member must be writable")]
    ReadOnly {
        /// As given.
        path: PathBuf,
    },
    /// Somebody else has it.
    #[error("{path}: it is in use by {holder}; {cure}", cure = .holder.cure())]
    Busy {
        /// As given.
        path: PathBuf,
        /// Who.
        holder: Holder,
    },
    /// tmpfs before Linux 6.6, some FUSE file systems.
    #[error(
        "{path}: its file system does not support direct I/O (O_DIRECT), as tmpfs does not; \
         put the file on ext4, XFS or btrfs"
    )]
    NoDirectIo {
        /// As given.
        path: PathBuf,
    },
    /// Blocks larger than a superblock.
    #[error("{path}: its blocks have {bytes} bytes; up to 4096 are supported")]
    BlockSize {
        /// As given.
        path: PathBuf,
        /// The logical block, or the alignment that direct I/O needs.
        bytes: u64,
    },
    /// `/proc` is missing.
    #[error("{path}: cannot be reopened through /proc/self/fd ({source}); mount /proc")]
    Reopen {
        /// As given.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Anything else.
    #[error("{path}: {doing} failed: {source}; see the kernel's log (dmesg)")]
    Io {
        /// As given.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
