//! A drive in its role as a member, on one core: the one place where a data area's offset is
//! added, errors are counted, and reads under way are known for balancing.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::agreement::IN_SYNC;
use super::shared::{MemberCounters, Shared};
use super::write::Armed;
use crate::buffer::SharedBuffer;
use crate::drive::{Drive, DriveError};
use crate::mutation::mutation;

/// "Operation not supported".
const EOPNOTSUPP: i32 = 95;

/// What a member said no to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::array) struct MemberError {
    pub(in crate::array) slot: usize,
    pub(in crate::array) error: DriveError,
}

/// One member on one core. Operations hold it, so that the slot can get another drive while they
/// are under way.
pub(super) struct Member<D> {
    drive: D,
    slot: usize,
    data_offset_bytes: u64,
    has_volatile_cache: bool,
    /// Hosts were told that what is acknowledged is safe: every write must be.
    always_fua: bool,
    reads_under_way: Cell<u32>,
    /// Where the newest read ends: a read that begins there continues a stream.
    next_sequential: Cell<u64>,
    /// The drive has said that it cannot zero.
    cannot_zero: Cell<bool>,
}

impl<D: Drive> Member<D> {
    pub(super) fn new(drive: D, slot: usize, data_offset_bytes: u64, always_fua: bool) -> Self {
        let has_volatile_cache = drive.has_volatile_cache();
        Self {
            has_volatile_cache,
            drive,
            slot,
            data_offset_bytes,
            always_fua: always_fua && has_volatile_cache,
            reads_under_way: Cell::new(0),
            next_sequential: Cell::new(u64::MAX),
            cannot_zero: Cell::new(always_fua && has_volatile_cache),
        }
    }

    pub(super) fn late_operations(&self) -> usize {
        self.drive.late_operations()
    }

    /// It is out: nobody waits for it any longer.
    pub(super) fn give_up(&self) {
        self.drive.give_up();
    }

    pub(super) fn cannot_zero(&self) -> bool {
        self.cannot_zero.get()
    }

    /// Reads under way.
    pub(super) fn reads_under_way(&self) -> u32 {
        self.reads_under_way.get()
    }

    /// Whether a read at this offset continues the newest one.
    pub(super) fn continues_stream(&self, offset_bytes: u64) -> bool {
        self.next_sequential.get() == offset_bytes
    }

    /// The drive, for an operation on `offset_bytes` of the data area, and where that is on it.
    /// (What is awaited is awaited by the caller: every layer of futures holds the buffer again.)
    pub(super) fn drive_at(&self, offset_bytes: u64) -> (&D, u64) {
        (&self.drive, self.data_offset_bytes + offset_bytes)
    }

    /// A read begins: it counts as under way until the answer is dropped.
    pub(super) fn begin_read(&self, offset_bytes: u64, len_bytes: usize) -> UnderWay<'_> {
        self.next_sequential.set(offset_bytes + len_bytes as u64);
        UnderWay::count(&self.reads_under_way)
    }

    /// A read has failed.
    pub(super) fn read_failed(&self, shared: &Shared, error: DriveError) {
        self.count(shared, error, |counters| &counters.reads);
    }

    /// Whether a write must be durable when it completes.
    pub(super) fn needs_fua(&self, fua: bool) -> bool {
        (fua && self.has_volatile_cache && !mutation!("write-without-fua")) || self.always_fua
    }

    /// A write has failed.
    pub(super) fn write_failed(&self, shared: &Shared, error: DriveError) -> MemberError {
        // A drive that does not support writing has failed; only zeroing may be unsupported.
        let error = match error {
            DriveError::Unsupported => DriveError::Io { errno: EOPNOTSUPP },
            error => error,
        };
        self.count_write(shared, error)
    }

    /// Writes durably at an offset of the drive, outside of its data area.
    pub(super) async fn write_outside(
        &self,
        shared: &Shared,
        drive_offset_bytes: u64,
        data: SharedBuffer,
    ) -> Result<(), MemberError> {
        let fua = self.has_volatile_cache && !mutation!("metadata-without-fua");
        let result = self.drive.write(drive_offset_bytes, data, fua).await;
        result.map_err(|error| self.count_write(shared, error))
    }

    /// As [`Drive::write_zeroes`]; that it is not supported is remembered, and not counted as an
    /// error.
    pub(super) async fn zero(
        &self,
        shared: &Shared,
        offset_bytes: u64,
        len_bytes: u64,
        deallocate: bool,
    ) -> Result<(), MemberError> {
        let mut error = DriveError::Unsupported;
        if !self.cannot_zero.get() {
            let offset_bytes = self.data_offset_bytes + offset_bytes;
            match self.drive.write_zeroes(offset_bytes, len_bytes, deallocate).await {
                Ok(()) => return Ok(()),
                Err(other) => error = other,
            }
        }
        if error == DriveError::Unsupported {
            self.cannot_zero.set(true);
            return Err(MemberError { slot: self.slot, error });
        }
        Err(self.count_write(shared, error))
    }

    /// A flush that starts from now on, shared with whoever else wants one, on any core.
    pub(super) async fn flush(&self, shared: &Shared) -> Result<(), MemberError> {
        if !self.has_volatile_cache {
            return Ok(());
        }
        let flush = || async {
            // Nobody would hear whether it failed, and the next one would not say.
            let armed = Armed::new(shared, IN_SYNC);
            let result = self.drive.flush().await;
            armed.disarm();
            result.inspect_err(|&error| {
                self.count(shared, error, |counters| &counters.flushes);
            })
        };
        let result = shared.member_flush(self.slot).run(flush).await;
        result.map_err(|error| MemberError { slot: self.slot, error })
    }

    fn count_write(&self, shared: &Shared, error: DriveError) -> MemberError {
        match error {
            DriveError::NoSpace => self.count(shared, error, |counters| &counters.no_space),
            _ => self.count(shared, error, |counters| &counters.writes),
        }
    }

    fn count(
        &self,
        shared: &Shared,
        error: DriveError,
        counter: impl Fn(&MemberCounters) -> &AtomicU64,
    ) -> MemberError {
        counter(shared.member_counters(self.slot)).fetch_add(1, Ordering::Relaxed);
        MemberError { slot: self.slot, error }
    }
}

/// Counts something as under way until dropped.
pub(super) struct UnderWay<'a>(&'a Cell<u32>);

impl<'a> UnderWay<'a> {
    fn count(counter: &'a Cell<u32>) -> Self {
        counter.set(counter.get() + 1);
        Self(counter)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
