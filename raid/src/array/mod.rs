//! An array: reads and writes of a byte range, mapped to its members.
//!
//! One [`Shared`] per array, and one [`Array`] per core and array, which has its own handles on
//! the drives. A request goes in on the core where it arrived.
//!
//! * **Reads** go from there straight to a member, without any lock. Where all copies agree, the
//!   copy is chosen by what this core has under way on the drives, and another one is read if it
//!   cannot be read. Where they do not yet agree, only the first copy is read: no block may read
//!   new and then old.
//! * **Writes to levels with copies** are cut at shards; each piece is done by the core that owns
//!   its shard, under a lock on its range there, so that two writes of the same blocks reach all
//!   copies in the same order. RAID 0 writes go straight to the members: there, the order of
//!   overlapping writes under way is the drive's.
//! * **A write is acknowledged** when every copy has it. If a member cannot write, the array fails:
//!   it takes no more writes, and reads only the first copy from the place concerned on. Lack of
//!   space below a member fails only the write, after the copies were made equal again.
//! * **Flushes** are done by the core where they arrive, on all members: a drive's flush covers
//!   what any core has written. Those that are wanted at the same time, on any core, are one.
//!
//! **Requests run to completion.** Once polled, the futures of `write`, `write_zeroes`,
//! `deallocate`, `flush`, `serve` (while it serves) and `resync` must not be dropped before they
//! end: what they submitted is under way in the drives, and would be overtaken or its failure
//! missed. Dropping one all the same fails the array. A host that goes away does not stop its
//! writes; the target lets them end and then forgets the answer. Reads may be dropped any time.
//!
//! What is not here yet: members that fail without the array failing, parity, write-intent
//! bitmaps. They will need the members' states per core, changed in epochs; today all members are
//! in use for the life of an [`Array`].

mod error;
mod fan;
mod flush;
mod member;
mod progress;
mod range_lock;
mod resync;
#[cfg(test)]
mod resync_tests;
mod shared;
mod stripe;
#[cfg(test)]
mod tests;
mod write;

use std::rc::Rc;
use std::sync::Arc;

pub use error::{ArrayError, SetupError, WriteFailure};
pub use progress::{ResyncProgress, Stall};
pub use resync::Timer;
pub use shared::{Failure, IN_SYNC, Keeper, MemberErrors, NoKeeper, Settings, Shared, WriteState};
pub use write::Call;

use crate::buffer::{Buffer, Pool, SharedBuffer};
use crate::drive::{Drive, DriveError};
use crate::geometry::{Extent, Geometry};
use crate::mesh;
use fan::fan_out;
use member::{Member, MemberError};
use range_lock::RangeLocks;

/// The answer of a shard's owner.
pub type Answer = Result<(), ArrayError>;

/// The kind of mesh that arrays call each other's cores through.
pub type Endpoint = mesh::Endpoint<Call, Answer>;

/// Writes under way on a core before the table of locks grows.
const LOCKS: usize = 1024;

/// Size of the buffer of zeros for members that cannot zero.
const ZEROS_BYTES: usize = 64 << 10;

/// A read that continues a stream may find this many more reads under way on its drive than on
/// another before it moves there.
const STREAM_BONUS: u32 = 4;

/// What a read is told where every copy is on a member that may have lost writes: EIO.
const LOST_WRITES_ERRNO: i32 = 5;

/// One core's part of an array. See the file's head.
pub struct Array<D> {
    shared: Arc<Shared>,
    /// By slot.
    members: Box<[Member<D>]>,
    endpoint: Rc<Endpoint>,
    pool: Pool,
    locks: RangeLocks,
    zeros: SharedBuffer,
    block_bytes: u32,
}

impl<D: Drive> Array<D> {
    /// Puts a core's part together from its handles on the drives, in slot order. `pool` is where
    /// buffers for background work come from.
    ///
    /// # Errors
    /// If drives and shape do not fit together, or the pool has no memory left.
    pub fn new(
        shared: Arc<Shared>,
        drives: Vec<D>,
        endpoint: Rc<Endpoint>,
        pool: Pool,
    ) -> Result<Self, SetupError> {
        let geometry = shared.geometry();
        if drives.len() != geometry.members() {
            let members = geometry.members();
            return Err(SetupError::DriveCount { members, drives: drives.len() });
        }
        if endpoint.cores() != shared.cores() {
            let (expected, cores) = (shared.cores(), endpoint.cores());
            return Err(SetupError::Cores { expected, cores });
        }
        let zeros_len = ZEROS_BYTES.min(pool.max_block_bytes());
        let mut zeros = pool.allocate(zeros_len).ok_or(SetupError::NoMemory)?;
        zeros.fill(0);
        let block_bytes = drives.iter().map(Drive::block_size_bytes).max().unwrap_or(512);
        let member = |(slot, drive)| {
            let offset_bytes = Self::check_drive(&shared, slot, &drive)?;
            Ok(Member::new(drive, slot, offset_bytes))
        };
        let members = drives.into_iter().enumerate().map(member).collect::<Result<_, _>>()?;
        Ok(Self {
            members,
            endpoint,
            pool,
            locks: RangeLocks::new(LOCKS),
            zeros: zeros.freeze(),
            block_bytes,
            shared,
        })
    }

    /// Whether a member's data area is within its drive and on its blocks; returns its start.
    fn check_drive(shared: &Shared, slot: usize, drive: &D) -> Result<u64, SetupError> {
        let offset_bytes =
            shared.data_offset_bytes(slot).ok_or(SetupError::NoDataOffset { slot })?;
        let needed_bytes = offset_bytes.saturating_add(shared.geometry().component_bytes());
        let (size_bytes, block_bytes) = (drive.size_bytes(), drive.block_size_bytes());
        if size_bytes < needed_bytes {
            return Err(SetupError::DriveTooSmall { slot, needed_bytes, size_bytes });
        }
        if block_bytes == 0 || !offset_bytes.is_multiple_of(u64::from(block_bytes)) {
            return Err(SetupError::Misaligned { slot, offset_bytes, block_bytes });
        }
        Ok(offset_bytes)
    }

    /// What all cores know of the array.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The array's shape.
    pub fn geometry(&self) -> &Geometry {
        self.shared.geometry()
    }

    /// The unit of requests: the largest block size of the members.
    pub fn block_size_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Whether acknowledged writes can be lost with the power until a flush.
    pub fn has_volatile_cache(&self) -> bool {
        self.members.iter().any(Member::has_volatile_cache)
    }

    /// Reads `buffer.len()` bytes at `offset_bytes`. The buffer comes back in any case; its
    /// contents mean nothing after an error.
    ///
    /// # Errors
    /// `OutOfRange`, or `ReadFailed` if no copy can be read.
    pub async fn read(
        &self,
        offset_bytes: u64,
        buffer: Buffer,
    ) -> (Result<(), ArrayError>, Buffer) {
        let len_bytes = buffer.len() as u64;
        if let Err(error) = self.check_range(offset_bytes, len_bytes) {
            return (Err(error), buffer);
        }
        self.shared.count_read(self.endpoint.core());
        let geometry = self.shared.geometry();
        let mut extents = geometry.extents(offset_bytes, len_bytes);
        let count = geometry.extent_count(offset_bytes, len_bytes) as usize;
        if count <= 1 {
            return match extents.next() {
                Some(extent) => self.read_extent(offset_bytes, extent, buffer).await,
                None => (Ok(()), buffer),
            };
        }
        // Each extent reads into its own part of the buffer; the parts are joined again in order.
        let mut rest = buffer;
        let parts = extents.map(|extent| {
            let tail = rest.split_off(extent.len_bytes as usize);
            let part = std::mem::replace(&mut rest, tail);
            self.read_extent(offset_bytes + extent.position_bytes, extent, part)
        });
        let mut result = Ok(());
        let mut whole: Option<Buffer> = None;
        fan_out(count, parts, |(part_result, part)| {
            result = result.and(part_result);
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => {
                    let joined = whole.unsplit(part);
                    debug_assert!(joined.is_ok(), "the parts of a buffer are adjacent");
                }
            }
        })
        .await;
        (result, whole.unwrap_or(rest))
    }

    async fn read_extent(
        &self,
        offset_bytes: u64,
        extent: Extent,
        buffer: Buffer,
    ) -> (Result<(), ArrayError>, Buffer) {
        if self.shared.has_suspects() {
            return Box::pin(self.read_trusted_copy(offset_bytes, extent, buffer)).await;
        }
        let copy = self.choose_copy(offset_bytes, &extent);
        let place = extent.place(copy);
        let member = &self.members[place.slot];
        let (result, buffer) = member.read(&self.shared, place.offset_bytes, buffer).await;
        // A flush that failed meanwhile: what was read may lack what that member has lost.
        if self.shared.has_suspects() {
            return Box::pin(self.read_trusted_copy(offset_bytes, extent, buffer)).await;
        }
        match result {
            Ok(()) => (Ok(()), buffer),
            // Rare, so boxed to keep every read's future small.
            Err(failed) => {
                Box::pin(self.read_other_copies(offset_bytes, copy, failed, buffer)).await
            }
        }
    }

    /// Reads in an array that has failed: from the first copy whose member has neither failed a
    /// write nor a flush. A member that has may show what was there before, and two copies of a
    /// write that failed may differ, so that only one is ever read.
    async fn read_trusted_copy(
        &self,
        offset_bytes: u64,
        extent: Extent,
        buffer: Buffer,
    ) -> (Result<(), ArrayError>, Buffer) {
        let end_bytes = offset_bytes + extent.len_bytes;
        let known = if self.copies_agree(end_bytes) { extent.copies } else { 1 };
        let trusted = (0..known)
            .map(|copy| extent.place(copy))
            .find(|place| !self.shared.is_suspect(place.slot));
        let Some(place) = trusted else {
            let slot = extent.place(0).slot;
            let error = DriveError::Io { errno: LOST_WRITES_ERRNO };
            return (Err(ArrayError::ReadFailed { slot, error }), buffer);
        };
        let member = &self.members[place.slot];
        let (result, buffer) = member.read(&self.shared, place.offset_bytes, buffer).await;
        let result = result
            .map_err(|failed| ArrayError::ReadFailed { slot: failed.slot, error: failed.error });
        (result, buffer)
    }

    /// Reads a range that is one extent from another copy than `tried`, which `failed`.
    async fn read_other_copies(
        &self,
        offset_bytes: u64,
        tried: usize,
        mut failed: MemberError,
        mut buffer: Buffer,
    ) -> (Result<(), ArrayError>, Buffer) {
        let len_bytes = buffer.len() as u64;
        let extent = self.shared.geometry().extents(offset_bytes, len_bytes).next();
        let places = extent.into_iter().flat_map(|extent| {
            let others = (0..extent.copies).filter(move |&copy| copy != tried);
            others.map(move |copy| extent.place(copy))
        });
        for place in places {
            // Asked each time: the copies may have ceased to agree meanwhile.
            if !self.copies_agree(offset_bytes + len_bytes) {
                break;
            }
            let member = &self.members[place.slot];
            let result;
            (result, buffer) = member.read(&self.shared, place.offset_bytes, buffer).await;
            match result {
                Ok(()) => {
                    self.shared.count_read_from_other_copy();
                    return (Ok(()), buffer);
                }
                Err(error) => failed = error,
            }
        }
        (Err(ArrayError::ReadFailed { slot: failed.slot, error: failed.error }), buffer)
    }

    /// Whether all copies of everything below `end_bytes` agree.
    fn copies_agree(&self, end_bytes: u64) -> bool {
        end_bytes <= self.shared.resync_position_bytes()
    }

    /// The copy to read: the one on the drive with the fewest reads of this core under way, with
    /// some preference for the drive that has just read what is right before. Equal ones take
    /// turns by shard.
    fn choose_copy(&self, offset_bytes: u64, extent: &Extent) -> usize {
        if extent.copies == 1 || !self.copies_agree(offset_bytes + extent.len_bytes) {
            return 0;
        }
        let start = (self.shared.geometry().shard_of(offset_bytes) % extent.copies as u64) as usize;
        let cost = |copy: usize| {
            let place = extent.place(copy);
            let member = &self.members[place.slot];
            let penalty =
                if member.continues_stream(place.offset_bytes) { 0 } else { STREAM_BONUS };
            member.reads_under_way() + penalty
        };
        let copies = (start..extent.copies).chain(0..start);
        copies.min_by_key(|&copy| cost(copy)).unwrap_or(0)
    }

    fn check_range(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), ArrayError> {
        let block = u64::from(self.block_bytes);
        let in_blocks = offset_bytes.is_multiple_of(block) && len_bytes.is_multiple_of(block);
        if in_blocks && self.shared.geometry().contains(offset_bytes, len_bytes) {
            Ok(())
        } else {
            Err(ArrayError::OutOfRange)
        }
    }
}
