//! An array: reads and writes of a byte range, mapped to its members.
//!
//! One [`Shared`] per array, and one [`Array`] per core and array, which has its own handles on
//! the drives. A request goes in on the core where it arrived.
//!
//! * **Reads** go from there straight to a member, without any lock; among copies the one is
//!   chosen by what this core has under way on the drives. What cannot be read so, or may differ
//!   between copies, is read by the owner of its shard, which makes it good before it answers
//!   (`read`).
//! * **Writes to levels with redundancy** are cut at shards; each piece is done by the core that
//!   owns its shard, under a lock on its range there, so that two writes of the same blocks reach
//!   all copies in the same order (`write`). RAID 0 writes go straight to the members: there, the
//!   order of overlapping writes under way is the drive's.
//! * **A write is acknowledged** when every member that is in use has it, and every member that
//!   failed to take it is durably recorded as failed (`membership`). Lack of space below a member
//!   fails only the write, after the copies were made equal again.
//! * **Flushes** are done by the core where they arrive, on all members: a drive's flush covers
//!   what any core has written. Those that are wanted at the same time, on any core, are one.
//! * **Failures.** A member that does not write, flush or answer is out, and commands go on. When
//!   more fail than the level tolerates, the array has failed: writes fail (or wait, see
//!   [`Shared::set_hold`]), reads go on where there is something to read. When the drives come back
//!   it works again ([`Shared::mend`], [`Array::resume`]).
//! * **Arrays on arrays** ([`Composed`]) stripe over arrays like these; all of the above is theirs.
//!
//! **Requests run to completion.** Once polled, the futures of `read`, `write`, `write_zeroes`,
//! `deallocate`, `flush`, `serve` and `resume` (while they work) and `recover` must not be dropped
//! before they end: what they submitted is under way in the drives, and would be overtaken or its
//! failure missed. Dropping one all the same fails the array if it had written. A host that goes
//! away does not stop its commands; the target lets them end and then forgets the answer.

mod agreement;
mod bad_blocks;
mod composed;
#[cfg(test)]
mod composed_tests;
mod error;
#[cfg(test)]
mod failure_tests;
mod fan;
mod flush;
mod intent;
mod member;
mod membership;
mod range_lock;
mod read;
mod recovery;
mod reserve;
#[cfg(test)]
mod resync_tests;
mod shared;
mod slots;
mod stripe;
#[cfg(test)]
mod tests;
mod timer;
mod turns;
mod view;
mod write;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use agreement::IN_SYNC;
pub use bad_blocks::BadRange;
pub use composed::{ComposeError, Composed, Leaf};
pub use error::{ArrayError, SetupError, Unread, WriteFailure};
pub use intent::{
    IntentLayout, IntentPlaces, LogKind, LogLayout, LogPlace, RegionsKind, RegionsLayout,
};
pub use membership::{Failure, Keeper, MemberFault, MemberState, NoKeeper, Wanted};
pub use recovery::{CheckMode, CheckReport, Limit, Mismatch, RecoveryState, RecoveryStatus};
pub use shared::{MemberErrors, Settings, Shared, WriteState};
pub use slots::SlotSet;
pub use stripe::StripeStatistics;
pub use timer::{CoreTimer, Timer};
pub use view::View;
pub use write::Call;

use crate::buffer::{Buffer, Pool, SharedBuffer};
use crate::drive::Drive;
use crate::geometry::Geometry;
use crate::mesh;
use member::Member;
use membership::MapCopy;
use range_lock::RangeLocks;

/// The answer of a shard's owner.
pub struct Answer {
    result: Done,
    /// The buffer of a read.
    buffer: Option<Buffer>,
}

/// Whether something is done.
type Done = Result<(), ArrayError>;

/// The kind of mesh that arrays call each other's cores through.
pub type Endpoint = mesh::Endpoint<Call, Answer>;

/// Writes under way on a core before the table of locks grows.
const LOCKS: usize = 1024;

/// Pieces that one core has zeroed at once, by whichever owners. Few, so that what others ask of the
/// members meanwhile does not wait behind many of them.
const ZEROINGS: usize = 2;

/// Size of the buffer of zeros for members that cannot zero.
const ZEROS_BYTES: usize = 64 << 10;

/// Memory that an array takes on each core at most, beside what commands bring, in bytes: for its
/// write intent; and with parity for what has to be read and computed, and, when it has failed, for
/// what waits for its drives to come back.
pub const fn memory_bytes(has_parity: bool) -> u64 {
    let for_parity = if has_parity { stripe::MEMORY_BYTES } else { 0 };
    (intent::RESERVE_BYTES + for_parity) as u64
}

/// A slot on one core: the drive in it, if there is one.
type Slot<D> = RefCell<Option<Rc<Member<D>>>>;

/// One core's part of an array. See the file's head.
pub struct Array<D> {
    shared: Arc<Shared>,
    members: Box<[Slot<D>]>,
    /// This core's copy of the member map.
    map: RefCell<Arc<MapCopy>>,
    endpoint: Rc<Endpoint>,
    pool: Pool,
    timer: Rc<dyn CoreTimer>,
    /// Parity levels have one.
    stripe: Option<Box<stripe::Stripe>>,
    locks: RangeLocks,
    zeroings: turns::Turns,
    likeness: recovery::Likeness,
    intent_reserve: reserve::Reserve,
    zeros: SharedBuffer,
    block_bytes: u32,
    has_volatile_cache: bool,
    /// Of [`Shared`]'s count of lost caches, those that a flush here has told of.
    told_caches: Cell<u64>,
}

impl<D: Drive> Array<D> {
    /// Puts a core's part together from its handles on the drives, in slot order, all of them.
    /// `pool` is where buffers for background work, and for repairs, come from.
    ///
    /// # Errors
    /// If drives and shape do not fit together, or the pool has no memory left.
    pub fn new(
        shared: Arc<Shared>,
        drives: Vec<D>,
        endpoint: Rc<Endpoint>,
        pool: Pool,
    ) -> Result<Self, SetupError> {
        Self::with_slots(shared, drives.into_iter().map(Some).collect(), endpoint, pool)
    }

    /// The same with empty slots, which can be given a drive later.
    ///
    /// # Errors
    /// As [`Self::new`]; and if a slot is empty whose member is in use.
    pub fn with_slots(
        shared: Arc<Shared>,
        drives: Vec<Option<D>>,
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
        let present = || drives.iter().flatten();
        let block_bytes = present().map(Drive::block_size_bytes).max().unwrap_or(512);
        let has_volatile_cache = present().any(Drive::has_volatile_cache);
        let map = shared.map();
        let in_use = map.in_sync.or(map.rebuilding);
        let slot = |(slot, drive): (usize, Option<D>)| {
            let Some(drive) = drive else {
                let is_empty = !in_use.contains(slot);
                return is_empty.then(Slot::default).ok_or(SetupError::NoDrive { slot });
            };
            let offset_bytes =
                shared.data_offset_bytes(slot).ok_or(SetupError::NoDataOffset { slot })?;
            Self::check_drive(&shared, slot, &drive, offset_bytes)?;
            let member = Member::new(drive, slot, offset_bytes, !has_volatile_cache);
            Ok(RefCell::new(Some(Rc::new(member))))
        };
        let members = drives.into_iter().enumerate().map(slot).collect::<Result<_, _>>()?;
        let stripe = stripe::Stripe::new(shared.geometry()).map_err(|_| SetupError::NoMemory)?;
        let intent_reserve = intent::new_reserve().map_err(|_| SetupError::NoMemory)?;
        Ok(Self {
            members,
            map: RefCell::new(map),
            endpoint,
            pool,
            timer: Rc::new(timer::Standstill),
            stripe,
            locks: RangeLocks::new(LOCKS),
            zeroings: turns::Turns::new(ZEROINGS),
            likeness: recovery::Likeness::new(),
            intent_reserve,
            zeros: zeros.freeze(),
            block_bytes,
            has_volatile_cache,
            told_caches: Cell::new(shared.lost_caches.load(Ordering::SeqCst)),
            shared,
        })
    }

    /// Gives it the core's clock; without one, time stands still for it.
    #[must_use]
    pub fn with_timer(self, timer: Rc<dyn CoreTimer>) -> Self {
        Self { timer, ..self }
    }

    /// Whether a data area at `offset_bytes` is within the drive and on its blocks.
    fn check_drive(
        shared: &Shared,
        slot: usize,
        drive: &D,
        offset_bytes: u64,
    ) -> Result<(), SetupError> {
        let needed_bytes = offset_bytes.saturating_add(shared.geometry().component_bytes());
        let (size_bytes, block_bytes) = (drive.size_bytes(), drive.block_size_bytes());
        if size_bytes < needed_bytes {
            return Err(SetupError::DriveTooSmall { slot, needed_bytes, size_bytes });
        }
        if block_bytes == 0 || !offset_bytes.is_multiple_of(u64::from(block_bytes)) {
            return Err(SetupError::Misaligned { slot, offset_bytes, block_bytes });
        }
        Ok(())
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
        self.has_volatile_cache
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
