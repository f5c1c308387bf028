//! A member drive on a data core: O_DIRECT reads and writes through the core's ring.
//!
//! One open descriptor per drive and process; each core has its own handle on it. FUA is RWF_DSYNC
//! on the write, so that nothing but that write is forced to the medium. Zeroing is fallocate(2),
//! which for a block device is the kernel's zero-out: it guarantees zeros or fails.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use io_uring::{opcode, types};
use raidfabric_raid::buffer::{Buffer, SharedBuffer};
use raidfabric_raid::drive::{Drive, DriveError, ReadFailure};

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
}

impl UringDrive {
    /// Takes a descriptor opened with O_DIRECT. It shares the open file, and so the ownership
    /// lock, with every other duplicate of it.
    pub fn new(fd: OwnedFd, facts: DriveFacts) -> Self {
        Self { fd: Rc::new(fd), facts }
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

    async fn fallocate(&self, offset_bytes: u64, len_bytes: u64, mode: i32) -> io::Result<()> {
        let entry = opcode::Fallocate::new(self.target(), len_bytes)
            .offset(offset_bytes)
            .mode(mode)
            .build();
        op::submit(Rc::clone(&self.fd), entry).await.0.map(drop)
    }

    async fn sync(&self) -> io::Result<()> {
        let entry = opcode::Fsync::new(self.target()).flags(types::FsyncFlags::DATASYNC).build();
        op::submit(Rc::clone(&self.fd), entry).await.0.map(drop)
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
            let (result, (returned, _)) = op::submit((buffer, Rc::clone(&self.fd)), entry).await;
            buffer = returned;
            match result {
                // The end of a file that was truncated under us.
                Ok(0) => {
                    let wanted_bytes = buffer.len();
                    let error = DriveError::Short { done_bytes: done, wanted_bytes };
                    return Err(ReadFailure::new(error, buffer));
                }
                Ok(read) => done += read,
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(ReadFailure::new(drive_error(&error), buffer)),
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
            let (result, (returned, _)) = op::submit((data, Rc::clone(&self.fd)), entry).await;
            data = returned;
            match result {
                Ok(0) => return DriveError::check_transfer(done, data.len()),
                Ok(written) => done += written,
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(drive_error(&error)),
            }
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), DriveError> {
        // Not retried, whatever it says: after a failed fdatasync the kernel has forgotten what
        // was dirty, and a second one would succeed without it.
        self.sync().await.map_err(|error| drive_error(&error))
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
        self.fallocate(offset_bytes, len_bytes, mode).await.map_err(|error| drive_error(&error))
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
}

/// Nothing happened and the same call may succeed.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

fn drive_error(error: &io::Error) -> DriveError {
    DriveError::from_errno(error.raw_os_error().unwrap_or(libc::EIO))
}
