//! A member drive on a data core: O_DIRECT reads and writes through the core's ring.
//!
//! One open descriptor per drive and process; each core has its own handle on it. FUA is RWF_DSYNC
//! on the write, so that nothing but that write is forced to the medium. Zeroing is fallocate(2),
//! which for a block device is the kernel's zero-out: it guarantees zeros or fails.
//!
//! Every operation answers within the drive's timeout (`late`); what is still in the kernel then
//! keeps its buffer.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use io_uring::{opcode, types};
use raidfabric_raid::buffer::{Buffer, SharedBuffer};
use raidfabric_raid::drive::{Drive, DriveError, ReadFailure};

use super::late::{TimeLimit, Watch};
use super::op;

/// Reads and writes of one system call are cut at this size by the kernel's own limits; a longer
/// transfer continues where the last one ended.
const MAX_TRANSFER_BYTES: usize = 1 << 30;

/// What is known of a drive beside its descriptor.
#[derive(Clone, Copy, Debug)]
pub struct DriveFacts {
    /// The drive's size.
    pub size_bytes: u64,
    /// The alignment that offsets, lengths and memory need.
    pub block_size_bytes: u32,
    /// Whether an acknowledged write may be lost at power loss before a flush.
    pub has_volatile_cache: bool,
}

/// One core's handle on a member drive.
#[derive(Clone, Debug)]
pub struct UringDrive {
    fd: Rc<OwnedFd>,
    facts: DriveFacts,
    watch: Rc<Watch>,
    limit: Rc<TimeLimit>,
}

impl UringDrive {
    /// Takes a descriptor opened with O_DIRECT. It shares the open file, and so the ownership
    /// lock, with every other duplicate of it. Operations that take longer than `limit` allows
    /// end when the core scans its [`Watch`].
    pub fn new(fd: OwnedFd, facts: DriveFacts, limit: TimeLimit) -> Self {
        let watch = Watch::of_this_core();
        Self { fd: Rc::new(fd), facts, watch, limit: Rc::new(limit) }
    }

    /// Has the kernel do something, as long as the drive's timeout.
    async fn submit<Kept: Unpin + 'static>(
        &self,
        kept: Kept,
        entry: io_uring::squeue::Entry,
    ) -> Option<(io::Result<usize>, Kept)> {
        op::submit_watched(&self.watch, &self.limit, kept, entry).await
    }

    fn target(&self) -> types::Fd {
        types::Fd(self.fd.as_raw_fd())
    }

    /// A range past the end would let a file grow.
    fn check_range(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DriveError> {
        match offset_bytes.checked_add(len_bytes) {
            Some(end) if end <= self.facts.size_bytes => Ok(()),
            _ => Err(DriveError::OutOfRange),
        }
    }

    /// What an error of the kernel means for this drive.
    fn error(&self, error: &io::Error) -> DriveError {
        match DriveError::from_errno(error.raw_os_error().unwrap_or(libc::EIO)) {
            // What a drive that was pulled had under way, and flushes, end in an error of its own.
            DriveError::NoSpace | DriveError::Io { .. } if self.has_vanished() => DriveError::Gone,
            error => error,
        }
    }

    fn has_vanished(&self) -> bool {
        raidfabric_raid::device::has_vanished(&*self.fd, self.facts.size_bytes)
    }

    async fn fallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        mode: i32,
    ) -> Result<(), DriveError> {
        let entry = opcode::Fallocate::new(self.target(), len_bytes)
            .offset(offset_bytes)
            .mode(mode)
            .build();
        self.without_data(entry).await
    }

    async fn without_data(&self, entry: io_uring::squeue::Entry) -> Result<(), DriveError> {
        match self.submit(Rc::clone(&self.fd), entry).await {
            Some((result, _)) => result.map(drop).map_err(|error| self.error(&error)),
            None => Err(DriveError::TimedOut),
        }
    }

    async fn sync(&self) -> Result<(), DriveError> {
        let entry = opcode::Fsync::new(self.target()).flags(types::FsyncFlags::DATASYNC).build();
        self.without_data(entry).await
    }
}

impl Drive for UringDrive {
    async fn read(&self, offset_bytes: u64, mut buffer: Buffer) -> Result<Buffer, ReadFailure> {
        if let Err(error) = self.check_range(offset_bytes, buffer.len() as u64) {
            return Err(ReadFailure::new(error, buffer));
        }
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let length = rest.len().min(MAX_TRANSFER_BYTES) as u32;
            let entry = opcode::Read::new(self.target(), rest.as_mut_ptr(), length)
                .offset(offset_bytes + done as u64)
                .build();
            let kept = (buffer, Rc::clone(&self.fd));
            let Some((result, (returned, _))) = self.submit(kept, entry).await else {
                return Err(ReadFailure { error: DriveError::TimedOut, buffer: None });
            };
            buffer = returned;
            match result {
                // The end of a file that was truncated under us.
                Ok(0) => {
                    let wanted_bytes = buffer.len();
                    let error = if self.has_vanished() {
                        DriveError::Gone
                    } else {
                        DriveError::Short { done_bytes: done, wanted_bytes }
                    };
                    return Err(ReadFailure::new(error, buffer));
                }
                Ok(read) => done += read,
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(ReadFailure::new(self.error(&error), buffer)),
            }
        }
        Ok(buffer)
    }

    async fn write(
        &self,
        offset_bytes: u64,
        mut data: SharedBuffer,
        fua: bool,
    ) -> Result<(), DriveError> {
        self.check_range(offset_bytes, data.len() as u64)?;
        let flags = if fua { libc::RWF_DSYNC } else { 0 };
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            let length = rest.len().min(MAX_TRANSFER_BYTES) as u32;
            let entry = opcode::Write::new(self.target(), rest.as_ptr(), length)
                .offset(offset_bytes + done as u64)
                .rw_flags(flags)
                .build();
            let kept = (data, Rc::clone(&self.fd));
            let Some((result, (returned, _))) = self.submit(kept, entry).await else {
                return Err(DriveError::TimedOut);
            };
            data = returned;
            match result {
                Ok(0) => return DriveError::check_transfer(done, data.len()),
                Ok(written) => done += written,
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(self.error(&error)),
            }
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), DriveError> {
        // Not retried, whatever it says: after a failed fdatasync the kernel has forgotten what
        // was dirty, and a second one would succeed without it.
        self.sync().await
    }

    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        deallocate: bool,
    ) -> Result<(), DriveError> {
        self.check_range(offset_bytes, len_bytes)?;
        let mode = if deallocate {
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE
        } else {
            libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE
        };
        self.fallocate(offset_bytes, len_bytes, mode).await
    }

    fn has_volatile_cache(&self) -> bool {
        self.facts.has_volatile_cache
    }

    fn size_bytes(&self) -> u64 {
        self.facts.size_bytes
    }

    fn block_size_bytes(&self) -> u32 {
        self.facts.block_size_bytes
    }

    fn late_operations(&self) -> usize {
        self.limit.late.count()
    }

    fn give_up(&self) {
        self.watch.give_up(&self.limit);
    }
}

/// Nothing happened and the same call may succeed.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}
