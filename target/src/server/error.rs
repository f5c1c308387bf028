//! Why an array cannot be served.

use std::path::PathBuf;

use raidfabric_raid::assemble::{AddError, CreateError, ReplayFailure};
use raidfabric_raid::device::DeviceError;
use raidfabric_raid::geometry::GeometryError;
use uuid::Uuid;

use super::state::StateError;

/// Why an array cannot be served. Nothing has been touched, unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum ArrayStartError {
    /// A drive cannot be opened.
    #[error("array {array}: {source}")]
    Device {
        /// The array.
        array: String,
        /// What is wrong.
        source: DeviceError,
    },
    /// The drives are not the array.
    #[error("array {array}: {source}")]
    Drives {
        /// The array.
        array: String,
        /// What is wrong.
        source: Box<CreateError>,
    },
    /// The drives hold nothing, and yet the array has existed.
    #[error(
        "array {array}: it existed here with UUID {uuid} (says {record:?}), so no other is created \
         in its place unasked. Bring its own drives; or, if its data is not needed any more, create \
         it anew with `raidfabric array create FILE --array {array}` and --overwrite for each of \
         its drives"
    )]
    Existed {
        /// The array.
        array: String,
        /// What it was.
        uuid: Uuid,
        /// The record.
        record: PathBuf,
    },
    /// The drives are another array than the one that was last served under this name.
    #[error(
        "array {array}: its drives, {drives}, hold the array with UUID {found}, but it existed here \
         with UUID {uuid} (says {record:?}), so hosts would find other data under its name. Bring \
         its own drives; or, if this array is meant, say so with `uuid: {found}` in the \
         configuration"
    )]
    Other {
        /// The array.
        array: String,
        /// Their names.
        drives: String,
        /// What they are.
        found: Uuid,
        /// What it was.
        uuid: Uuid,
        /// The record.
        record: PathBuf,
    },
    /// It is over arrays, and they do not make it.
    #[error("array {array}: {what}")]
    Below {
        /// The array.
        array: String,
        /// What is wrong with those below, and what to do.
        what: String,
    },
    /// It has a UUID in the configuration.
    #[error(
        "array {array}: its `uuid` in the configuration, {uuid}, says that it exists; to create a \
         new one on these drives, take that key out of the file"
    )]
    HasUuid {
        /// The array.
        array: String,
        /// As configured.
        uuid: Uuid,
    },
    /// A drive that was to be overwritten could not be.
    #[error(
        "array {array}: wiping {drive} failed: {source}; see the kernel's log (dmesg). Drives \
         wiped before it are blank; nothing was created. The same command can be given again"
    )]
    Wipe {
        /// The array.
        array: String,
        /// The drive.
        drive: String,
        /// Its error.
        source: std::io::Error,
    },
    /// A drive that was wiped still holds something.
    #[error(
        "array {array}: {drive} was wiped, and yet holds {contents}; nothing was created. Wipe it \
         with `wipefs --all` or `blkdiscard`, and give the same command again"
    )]
    NotWiped {
        /// The array.
        array: String,
        /// The drive.
        drive: String,
        /// What is there.
        contents: String,
    },
    /// The shape is not possible.
    #[error("array {array}: {source}")]
    Geometry {
        /// The array.
        array: String,
        /// What is wrong.
        source: GeometryError,
    },
    /// A drive's blocks are larger than the namespace's.
    #[error(
        "array {array}: {drive} has blocks of {drive_bytes} bytes, and namespace {nsid} of {nqn} \
         has blocks of {block_bytes}: set `block_size: {drive_bytes}`"
    )]
    BlockSize {
        /// The array.
        array: String,
        /// The drive.
        drive: String,
        /// Its block.
        drive_bytes: u32,
        /// The namespace.
        nsid: u32,
        /// Its subsystem.
        nqn: String,
        /// Its block.
        block_bytes: u32,
    },
    /// It is to be created, and not all of its drives are there.
    #[error(
        "array {array}: {absent}; it does not exist yet, so it is created only once all of its \
         drives are there. `ls -l /dev/disk/by-id` shows which are"
    )]
    Absent {
        /// The array.
        array: String,
        /// What is not there.
        absent: String,
    },
    /// What was being written could not be made good.
    #[error("array {array}: {source}")]
    Replay {
        /// The array.
        array: String,
        /// What is wrong.
        source: Box<ReplayFailure>,
    },
    /// A drive could not be made a spare.
    #[error("array {array}: {drive}: {source}")]
    Add {
        /// The array.
        array: String,
        /// The drive.
        drive: String,
        /// What is wrong.
        source: AddError,
    },
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// The process is out of descriptors.
    #[error("array {array}: cannot duplicate a descriptor: {source}; raise `ulimit -n`")]
    Descriptors {
        /// The array.
        array: String,
        /// The system's error.
        source: std::io::Error,
    },
}
