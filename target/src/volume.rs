//! A volume: the range of an array that a namespace is, on one core; and what array errors mean to
//! a host.

use std::rc::Rc;

use raidfabric_protocol::nvme::status::{Generic, Media, Status};
use raidfabric_raid::array::{Array, ArrayError, Composed};
use raidfabric_raid::buffer::{Buffer, SharedBuffer};
use raidfabric_raid::drive::{Drive, DriveError, ReadFailure};
use raidfabric_raid::memory::MemoryDrive;

use crate::runtime::UringDrive;

/// A member drive of an array on one core.
pub enum MemberDrive {
    /// A block device or a regular file.
    Uring(UringDrive),
    /// Memory, for tests and benchmarks.
    Memory(MemoryDrive),
}

impl Drive for MemberDrive {
    async fn read(&self, offset_bytes: u64, buffer: Buffer) -> Result<Buffer, ReadFailure> {
        match self {
            Self::Uring(drive) => drive.read(offset_bytes, buffer).await,
            Self::Memory(drive) => drive.read(offset_bytes, buffer).await,
        }
    }

    async fn write(
        &self,
        offset_bytes: u64,
        data: SharedBuffer,
        fua: bool,
    ) -> Result<(), DriveError> {
        match self {
            Self::Uring(drive) => drive.write(offset_bytes, data, fua).await,
            Self::Memory(drive) => drive.write(offset_bytes, data, fua).await,
        }
    }

    async fn flush(&self) -> Result<(), DriveError> {
        match self {
            Self::Uring(drive) => drive.flush().await,
            Self::Memory(drive) => drive.flush().await,
        }
    }

    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        deallocate: bool,
    ) -> Result<(), DriveError> {
        match self {
            Self::Uring(drive) => drive.write_zeroes(offset_bytes, len_bytes, deallocate).await,
            Self::Memory(drive) => drive.write_zeroes(offset_bytes, len_bytes, deallocate).await,
        }
    }

    fn has_volatile_cache(&self) -> bool {
        match self {
            Self::Uring(drive) => drive.has_volatile_cache(),
            Self::Memory(drive) => drive.has_volatile_cache(),
        }
    }

    fn size_bytes(&self) -> u64 {
        match self {
            Self::Uring(drive) => drive.size_bytes(),
            Self::Memory(drive) => drive.size_bytes(),
        }
    }

    fn block_size_bytes(&self) -> u32 {
        match self {
            Self::Uring(drive) => drive.block_size_bytes(),
            Self::Memory(drive) => drive.block_size_bytes(),
        }
    }

    fn late_operations(&self) -> usize {
        match self {
            Self::Uring(drive) => drive.late_operations(),
            Self::Memory(drive) => drive.late_operations(),
        }
    }

    fn give_up(&self) {
        match self {
            Self::Uring(drive) => drive.give_up(),
            Self::Memory(drive) => drive.give_up(),
        }
    }
}

/// The array that a volume is on.
#[derive(Clone)]
pub enum Backing {
    /// One over drives.
    Array(Rc<Array<MemberDrive>>),
    /// One over arrays.
    Composed(Rc<Composed<MemberDrive>>),
}

/// A range of an array. Offsets of its operations are the namespace's own; the controller has
/// checked that they lie within the namespace.
#[derive(Clone)]
pub struct Volume {
    backing: Backing,
    base_bytes: u64,
}

impl Volume {
    /// The range of an array that begins at `base_bytes`.
    pub fn new(backing: Backing, base_bytes: u64) -> Self {
        Self { backing, base_bytes }
    }

    /// Fills the buffer from the volume.
    ///
    /// # Errors
    /// What the host is told.
    pub async fn read(&self, offset_bytes: u64, buffer: Buffer) -> Result<Buffer, Status> {
        let offset_bytes = self.base_bytes + offset_bytes;
        let read = match &self.backing {
            Backing::Array(array) => array.read(offset_bytes, buffer).await,
            Backing::Composed(array) => array.read(offset_bytes, buffer).await,
        };
        read.map_err(|unread| status(Err(unread.error)))
    }

    /// Writes the data to the volume.
    pub async fn write(&self, offset_bytes: u64, data: SharedBuffer, fua: bool) -> Status {
        let offset_bytes = self.base_bytes + offset_bytes;
        status(match &self.backing {
            Backing::Array(array) => array.write(offset_bytes, data, fua).await,
            Backing::Composed(array) => array.write(offset_bytes, data, fua).await,
        })
    }

    /// Makes every completed write safe from power loss.
    pub async fn flush(&self) -> Status {
        status(match &self.backing {
            Backing::Array(array) => array.flush().await,
            Backing::Composed(array) => array.flush().await,
        })
    }

    /// Makes the range read as zeros.
    pub async fn write_zeroes(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
        deallocate: bool,
        fua: bool,
    ) -> Status {
        let offset_bytes = self.base_bytes + offset_bytes;
        status(match &self.backing {
            Backing::Array(array) => {
                array.write_zeroes(offset_bytes, length_bytes, deallocate, fua).await
            }
            Backing::Composed(array) => {
                array.write_zeroes(offset_bytes, length_bytes, deallocate, fua).await
            }
        })
    }

    /// Releases the range where that can be done with zeros afterwards.
    pub async fn deallocate(&self, offset_bytes: u64, length_bytes: u64) -> Status {
        let offset_bytes = self.base_bytes + offset_bytes;
        status(match &self.backing {
            Backing::Array(array) => array.deallocate(offset_bytes, length_bytes).await,
            Backing::Composed(array) => array.deallocate(offset_bytes, length_bytes).await,
        })
    }
}

/// What an array's answer means to a host (NVM Command Set, Status Values).
fn status(result: Result<(), ArrayError>) -> Status {
    match result {
        Ok(()) => Status::SUCCESS,
        Err(ArrayError::OutOfRange) => Generic::LbaOutOfRange.into(),
        Err(ArrayError::ReadFailed { .. } | ArrayError::Unrecovered { .. }) => {
            Media::UnrecoveredReadError.into()
        }
        Err(ArrayError::WriteFailed { .. } | ArrayError::BadBlocksFull { .. }) => {
            Media::WriteFault.into()
        }
        Err(ArrayError::NoSpace { .. }) => Generic::CapacityExceeded.into(),
        Err(ArrayError::NotReady) => Generic::NamespaceNotReady.into(),
    }
}
