//! What goes wrong with a request to an array, in the words of the array.

use crate::buffer::Buffer;
use crate::drive::DriveError;

/// Why an array did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrayError {
    /// The range is beyond the end of the array, or not in whole blocks.
    #[error("the range is beyond the end of the array or not in whole blocks")]
    OutOfRange,
    /// No copy of the data could be read.
    #[error("the data cannot be read: member {slot}: {error}")]
    ReadFailed {
        /// Slot of the member that was tried last.
        slot: usize,
        /// What it said.
        error: DriveError,
    },
    /// No member has the data any more: it was lost while too many could not be read. It can be
    /// written again.
    #[error("the data at {offset_bytes} of the array is lost until it is written again")]
    Unrecovered {
        /// Where in the array.
        offset_bytes: u64,
    },
    /// The data may not be on every member that has to hold it.
    #[error("the write failed: {0}")]
    WriteFailed(WriteFailure),
    /// A member has no room left below it (sparse file, thin volume). Nothing has failed; the
    /// write may be repeated when there is room.
    #[error("no space left below member {slot}: make room on its file system or thin volume")]
    NoSpace {
        /// Slot of the member.
        slot: usize,
    },
    /// Blocks are lost, and a member's list of bad blocks has no room for them. Only long tasks meet
    /// this: they wait where they are.
    #[error(
        "the list of bad blocks of member {slot} is full; blocks that are written again make room"
    )]
    BadBlocksFull {
        /// Slot of the member.
        slot: usize,
    },
    /// The array does not take this request now: it is being stopped, or memory for background
    /// work is short. It may be repeated.
    #[error("the array is not ready")]
    NotReady,
}

/// A read that failed, and its buffer.
#[derive(Debug)]
pub struct Unread {
    /// Why.
    pub error: ArrayError,
    /// The buffer, whose contents mean nothing; none if a drive that did not answer in time still
    /// has it.
    pub buffer: Option<Buffer>,
}

impl Unread {
    pub(super) fn new(error: ArrayError, buffer: Buffer) -> Self {
        Self { error, buffer: Some(buffer) }
    }
}

/// Why a write or a flush failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteFailure {
    /// A member did not write or flush.
    #[error("member {slot}: {error}")]
    Member {
        /// Slot of the member.
        slot: usize,
        /// What it said.
        error: DriveError,
    },
    /// The array has failed before; it takes no more writes.
    #[error("the array has failed and takes no more writes")]
    ArrayFailed,
    /// A drive came back without power, and with it what it had in its cache may be gone. Flushes
    /// after this one say nothing of it.
    #[error("a drive has lost power, and what was written and not flushed may be gone")]
    CacheLost,
    /// The core that had to do it has stopped serving the array.
    #[error("the core that owns the range has stopped")]
    OwnerStopped,
}

/// Why an array's per-core part could not be put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// Not as many drives as members.
    #[error("the array has {members} members, but {drives} drives were given")]
    DriveCount {
        /// Members of the geometry.
        members: usize,
        /// Drives given.
        drives: usize,
    },
    /// It is not known where the data area of a member begins.
    #[error("no data offset was given for member {slot}")]
    NoDataOffset {
        /// Slot of the member.
        slot: usize,
    },
    /// A drive ends before its data area does.
    #[error("member {slot} needs {needed_bytes} bytes, its drive has {size_bytes}")]
    DriveTooSmall {
        /// Slot of the member.
        slot: usize,
        /// End of the data area.
        needed_bytes: u64,
        /// Size of the drive.
        size_bytes: u64,
    },
    /// A data area does not begin on a block of its drive.
    #[error(
        "the data area of member {slot} at {offset_bytes} is not on its block of {block_bytes} bytes"
    )]
    Misaligned {
        /// Slot of the member.
        slot: usize,
        /// Start of the data area.
        offset_bytes: u64,
        /// The drive's block size.
        block_bytes: u32,
    },
    /// A slot whose member is in use has no drive.
    #[error("member {slot} is in use but has no drive")]
    NoDrive {
        /// Slot of the member.
        slot: usize,
    },
    /// A drive's blocks are larger than the array was served with so far.
    #[error(
        "the drive for member {slot} has blocks of {block_bytes} bytes, the array is served with \
         {array_bytes}: restart the array to use it"
    )]
    BlockSize {
        /// Slot of the member.
        slot: usize,
        /// The drive's block size.
        block_bytes: u32,
        /// The array's.
        array_bytes: u32,
    },
    /// The core's mesh has another number of cores than the array was made for.
    #[error("the array is for {expected} cores, the mesh has {cores}")]
    Cores {
        /// Cores the shared state was made for.
        expected: usize,
        /// Cores of the mesh.
        cores: usize,
    },
    /// The pool has no memory left for the array's buffer of zeros.
    #[error("the memory pool has nothing left for the array")]
    NoMemory,
}
