//! Resync, and requests that meet drive errors, one case each, over memory drives that can be told
//! to refuse.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use futures_util::FutureExt;

use super::*;
use crate::buffer::{Buffer, Pool};
use crate::drive::{DriveError, ReadFailure};
use crate::geometry::Level;
use crate::memory::MemoryDrive;
use crate::mesh::Mesh;

const EIO: DriveError = DriveError::Io { errno: 5 };
const SIZE: u64 = 5 << 20;

/// A memory drive that can be told to refuse.
struct Moody {
    drive: MemoryDrive,
    mood: Rc<Mood>,
}

#[derive(Default)]
struct Mood {
    unreadable: RefCell<Vec<Range<u64>>>,
    write_error: Cell<Option<DriveError>>,
    flush_error: Cell<Option<DriveError>>,
    flush_hangs: Cell<bool>,
    cannot_zero: Cell<bool>,
    /// It has zeroed the beginning when it finds that it cannot.
    zeroes_a_block: Cell<bool>,
    flushes: Cell<u64>,
    zeroed_bytes: Cell<u64>,
    written_bytes: Cell<u64>,
}

impl Drive for Moody {
    async fn read(&self, offset: u64, mut buffer: Buffer) -> Result<Buffer, ReadFailure> {
        let end = offset + buffer.len() as u64;
        let unreadable = self.mood.unreadable.borrow();
        if unreadable.iter().any(|range| range.start < end && offset < range.end) {
            buffer.fill(0xbd);
            return Err(ReadFailure::new(EIO, buffer));
        }
        match self.drive.read_now(offset, &mut buffer) {
            Ok(()) => Ok(buffer),
            Err(error) => Err(ReadFailure::new(error, buffer)),
        }
    }

    async fn write(&self, offset: u64, data: SharedBuffer, _fua: bool) -> Result<(), DriveError> {
        if let Some(error) = self.mood.write_error.get() {
            return Err(error);
        }
        // A block that is written becomes readable.
        let end = offset + data.len() as u64;
        let is_other = |range: &Range<u64>| range.start < offset || end < range.end;
        self.mood.unreadable.borrow_mut().retain(is_other);
        self.mood.written_bytes.set(self.mood.written_bytes.get() + data.len() as u64);
        self.drive.write_now(offset, &data)
    }

    async fn flush(&self) -> Result<(), DriveError> {
        self.mood.flushes.set(self.mood.flushes.get() + 1);
        if self.mood.flush_hangs.get() {
            std::future::pending::<()>().await;
        }
        self.mood.flush_error.get().map_or(Ok(()), Err)
    }

    async fn write_zeroes(&self, offset: u64, len: u64, free: bool) -> Result<(), DriveError> {
        if self.mood.zeroes_a_block.get() {
            self.drive.write_zeroes(offset, 512, free).await?;
        }
        if self.mood.cannot_zero.get() {
            return Err(DriveError::Unsupported);
        }
        if let Some(error) = self.mood.write_error.get() {
            return Err(error);
        }
        self.mood.zeroed_bytes.set(self.mood.zeroed_bytes.get() + len);
        self.drive.write_zeroes(offset, len, free).await
    }

    fn has_volatile_cache(&self) -> bool {
        true
    }

    fn size_bytes(&self) -> u64 {
        self.drive.size_bytes()
    }

    fn block_size_bytes(&self) -> u32 {
        512
    }
}

/// A keeper that records at once, and remembers the checkpoints.
#[derive(Default)]
struct Checkpoints {
    shared: OnceLock<Weak<Shared>>,
    positions: Mutex<Vec<u64>>,
}

impl Keeper for Checkpoints {
    fn wake(&self) {
        let shared = self.shared.get().and_then(Weak::upgrade).unwrap();
        let wanted = shared.wanted();
        let mut positions = self.positions.lock().unwrap();
        if wanted.resync_from != IN_SYNC || !positions.is_empty() {
            positions.push(wanted.resync_from);
        }
        drop(positions);
        shared.recorded(wanted.version);
    }
}

/// Time that passes only when somebody sleeps; something may happen then.
#[derive(Default)]
struct Sleeps {
    now: Cell<Duration>,
    count: Cell<u32>,
    then: RefCell<Option<Then>>,
}

/// What happens when somebody has slept, given how often.
type Then = Box<dyn FnMut(u32)>;

impl Timer for Sleeps {
    fn now(&self) -> Duration {
        self.now.get()
    }

    async fn sleep(&self, time: Duration) {
        self.now.set(self.now.get() + time);
        self.count.set(self.count.get() + 1);
        if let Some(then) = &mut *self.then.borrow_mut() {
            then(self.count.get());
        }
    }
}

struct Mirror {
    array: Array<Moody>,
    drives: Vec<MemoryDrive>,
    moods: Vec<Rc<Mood>>,
    shared: Arc<Shared>,
    pool: Pool,
    checkpoints: Arc<Checkpoints>,
    timer: Sleeps,
}

impl Mirror {
    fn new(members: usize, resync_position_bytes: u64) -> Self {
        let checkpoints = Arc::new(Checkpoints::default());
        let shared = Shared::new(Settings {
            resync_position_bytes,
            keeper: Arc::clone(&checkpoints) as Arc<dyn Keeper>,
            ..Settings::new(Geometry::new(Level::Raid1, members, 0, SIZE).unwrap())
        });
        checkpoints.shared.set(Arc::downgrade(&shared)).unwrap();
        let drives: Vec<_> = (0..members).map(|_| MemoryDrive::new(SIZE)).collect();
        let moods: Vec<Rc<Mood>> = (0..members).map(|_| Rc::default()).collect();
        let moody = drives.iter().zip(&moods);
        let moody = moody.map(|(drive, mood)| Moody { drive: drive.clone(), mood: mood.clone() });
        let end = Rc::new(Mesh::new(1, Arc::new(|_| {})).remove(0));
        let pool = Pool::new(4 << 20, 1 << 20).unwrap();
        let array = Array::new(Arc::clone(&shared), moody.collect(), end, pool.clone()).unwrap();
        let timer = Sleeps::default();
        Self { array, drives, moods, shared, pool, checkpoints, timer }
    }

    /// Fills a drive with its own pattern.
    fn fill(&self, slot: usize) {
        for at in (0..SIZE).step_by(65_536) {
            let pattern = vec![(at / 65_536) as u8 ^ (slot as u8 + 1); 65_536];
            self.drives[slot].write_now(at, &pattern).unwrap();
        }
    }

    fn on_drive(&self, slot: usize) -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        self.drives[slot].read_now(0, &mut bytes).unwrap();
        bytes
    }

    /// Resyncs as far as possible without waiting for anything but time.
    fn resync(&self) {
        let ended = self.array.recover(&self.timer).now_or_never().is_some();
        assert_eq!(ended, self.shared.must_resync_stop());
    }

    fn write(&self, offset: u64, len: usize, byte: u8) -> Result<(), ArrayError> {
        let mut buffer = self.pool.allocate(len).unwrap();
        buffer.fill(byte);
        self.array.write(offset, buffer.freeze(), false).now_or_never().unwrap()
    }

    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, ArrayError> {
        let buffer = self.pool.allocate(len).unwrap();
        let read = self.array.read(offset, buffer).now_or_never().unwrap();
        read.map(|buffer| buffer.to_vec()).map_err(|unread| unread.error)
    }
}

#[test]
fn a_resync_makes_all_copies_like_the_first() {
    let mirror = Mirror::new(3, 0);
    (0..3).for_each(|slot| mirror.fill(slot));
    mirror.shared.set_checkpoint_interval(2 << 20);
    mirror.resync();
    assert!(mirror.shared.is_in_sync());
    assert!(mirror.on_drive(1) == mirror.on_drive(0) && mirror.on_drive(2) == mirror.on_drive(0));
    assert_eq!(mirror.on_drive(0)[0], 1, "the first copy was not touched");
    assert_eq!(mirror.shared.resyncs_completed(), 1);
    assert_eq!(mirror.checkpoints.positions.lock().unwrap().last(), Some(&IN_SYNC));
    assert!(mirror.moods.iter().all(|mood| mood.flushes.get() >= 1));
    assert_eq!(mirror.shared.recovery_status(Duration::ZERO), RecoveryStatus::default());
}

#[test]
fn it_begins_at_its_position() {
    let mirror = Mirror::new(2, 2 << 20);
    (0..2).for_each(|slot| mirror.fill(slot));
    mirror.resync();
    let (first, second) = (mirror.on_drive(0), mirror.on_drive(1));
    assert!(first[..2 << 20] != second[..2 << 20], "what is below was not touched");
    assert!(first[2 << 20..] == second[2 << 20..]);
}

#[test]
fn zeros_are_zeroed_not_written() {
    let mirror = Mirror::new(2, 0);
    mirror.fill(1);
    mirror.drives[0].write_now(3 << 20, &[7; 512]).unwrap();
    mirror.resync();
    assert!(mirror.on_drive(0) == mirror.on_drive(1));
    let mood = &mirror.moods[1];
    assert_eq!(mood.zeroed_bytes.get() + mood.written_bytes.get(), SIZE);
    assert_eq!(mood.written_bytes.get(), 256 << 10, "the one piece with data");
    assert!(mirror.drives[1].resident_bytes() <= 256 << 10);
}

#[test]
fn zeros_are_written_where_zeroing_is_not_supported() {
    let mirror = Mirror::new(2, 0);
    mirror.fill(1);
    mirror.moods[1].cannot_zero.set(true);
    mirror.resync();
    assert!(mirror.on_drive(0) == mirror.on_drive(1));
    assert_eq!(mirror.moods[1].written_bytes.get(), SIZE);
    assert_eq!(mirror.shared.member_errors(1), MemberErrors::default());
}

/// A block that the first copy has lost comes from another; what no copy has stays an error.
#[test]
fn unreadable_blocks_are_taken_from_another_copy() {
    let mirror = Mirror::new(3, 0);
    (0..3).for_each(|slot| mirror.fill(slot));
    mirror.moods[0].unreadable.borrow_mut().push(1024..1536);
    mirror.moods[0].unreadable.borrow_mut().push(8192..8704);
    mirror.moods[1].unreadable.borrow_mut().push(1024..1536);
    mirror.moods[1].unreadable.borrow_mut().push(8192..8704);
    mirror.moods[2].unreadable.borrow_mut().push(8192..8704);
    assert!(matches!(mirror.read(8192, 512), Err(ArrayError::ReadFailed { .. })));
    mirror.resync();
    assert!(mirror.shared.is_in_sync());
    assert_eq!(mirror.read(1024, 512).unwrap(), [3; 512], "the third drive's");
    assert_eq!(mirror.read(512, 512).unwrap(), [1; 512], "the first drive's");
    let lost = Err(ArrayError::Unrecovered { offset_bytes: 8192 });
    assert_eq!(mirror.read(8192, 512), lost);
    let (mut first, mut second) = (mirror.on_drive(0), mirror.on_drive(1));
    first[8192..8704].fill(0);
    second[8192..8704].fill(0);
    assert!(first == second);
}

/// What a crash left unequal was read, and then the copy that it came from cannot be read any more.
/// The host must not see another value than before.
#[test]
fn what_was_read_before_a_resync_is_never_replaced_by_another_value() {
    let mirror = Mirror::new(2, 0);
    mirror.drives[0].write_now(1024, &[2; 512]).unwrap();
    mirror.drives[1].write_now(1024, &[1; 512]).unwrap();
    assert_eq!(mirror.read(1024, 512).unwrap(), [2; 512]);
    assert_eq!(mirror.array.flush().now_or_never(), Some(Ok(())));
    mirror.moods[0].unreadable.borrow_mut().push(1024..1536);
    mirror.resync();
    let again = mirror.read(1024, 512);
    assert!(again.is_err() || again == Ok(vec![2; 512]), "{:?}", again.map(|data| data[0]));
}

/// Blocks that no copy could read during the resync (all drives were away for a moment) may differ:
/// they do not agree only because the resync has passed.
#[test]
fn blocks_that_could_not_be_read_do_not_count_as_equal() {
    let mirror = Mirror::new(2, 0);
    (0..2).for_each(|slot| mirror.fill(slot));
    for mood in &mirror.moods {
        mood.unreadable.borrow_mut().push(0..512);
    }
    mirror.resync();
    mirror.moods.iter().for_each(|mood| mood.unreadable.borrow_mut().clear());
    let bad = BadRange { start_bytes: 0, end_bytes: 512 };
    for slot in 0..2 {
        assert_eq!(mirror.shared.bad_blocks(slot), [bad]);
        assert_eq!(mirror.shared.wanted().bad_blocks[slot], [bad]);
    }
    assert!(mirror.shared.is_in_sync());
    let lost = Err(ArrayError::Unrecovered { offset_bytes: 0 });
    assert_eq!(mirror.read(0, 4096), lost, "the copies differ and count as equal");
    assert!(mirror.read(512, 3584).is_ok());
    // What is written is there again.
    assert_eq!(mirror.write(0, 512, 9), Ok(()));
    assert_eq!(mirror.read(0, 512).unwrap(), [9; 512]);
    assert!((0..2).all(|slot| mirror.shared.bad_blocks(slot).is_empty()));
}

#[test]
fn without_space_it_waits_and_goes_on() {
    let mirror = Mirror::new(2, 0);
    mirror.fill(0);
    mirror.moods[1].write_error.set(Some(DriveError::NoSpace));
    let (mood, shared) = (Rc::clone(&mirror.moods[1]), Arc::clone(&mirror.shared));
    *mirror.timer.then.borrow_mut() = Some(Box::new(move |sleeps| {
        let status = shared.recovery_status(Duration::from_secs(99));
        assert_eq!((status.state, status.position_bytes), (RecoveryState::Resync, 0));
        assert_eq!(status.limited_by, Some(Limit::Space { slot: 1 }));
        assert_eq!((status.worked, status.eta), (Duration::ZERO, None));
        if sleeps == 3 {
            mood.write_error.set(None);
        }
    }));
    mirror.resync();
    assert!(mirror.shared.is_in_sync() && mirror.on_drive(0) == mirror.on_drive(1));
    assert_eq!(mirror.timer.now.get(), Duration::from_secs(15));
    assert_eq!(mirror.shared.failure(), None);
}

#[test]
fn without_memory_it_waits_and_goes_on() {
    let mirror = Mirror::new(2, 0);
    mirror.fill(0);
    let held: Vec<Buffer> = std::iter::from_fn(|| mirror.pool.allocate(4096)).collect();
    let held = Cell::new(Some(held));
    let shared = Arc::clone(&mirror.shared);
    *mirror.timer.then.borrow_mut() = Some(Box::new(move |_| {
        assert_eq!(shared.recovery_status(Duration::ZERO).limited_by, Some(Limit::Memory));
        drop(held.take());
    }));
    mirror.resync();
    assert!(mirror.shared.is_in_sync() && mirror.on_drive(0) == mirror.on_drive(1));
}

#[test]
fn a_member_that_cannot_be_synced_is_out_and_the_resync_goes_on() {
    let mirror = Mirror::new(3, 0);
    mirror.fill(0);
    mirror.moods[1].write_error.set(Some(EIO));
    mirror.resync();
    assert_eq!(mirror.shared.failure(), None);
    assert_eq!(mirror.shared.member_fault(1), Some(MemberFault::Write(EIO)));
    assert!(mirror.shared.is_in_sync() && mirror.on_drive(0) == mirror.on_drive(2));
    assert_eq!(mirror.shared.wanted().members[1], MemberState::Failed);
}

/// Nothing is checkpointed as long as a member in use has not flushed it.
#[test]
fn a_member_that_does_not_flush_is_out_before_a_checkpoint() {
    let mirror = Mirror::new(2, 0);
    mirror.moods[1].flush_error.set(Some(EIO));
    mirror.resync();
    assert_eq!(mirror.shared.failure(), None);
    assert_eq!(mirror.shared.member_fault(1), Some(MemberFault::Flush(EIO)));
    assert!(mirror.shared.is_in_sync());
    assert_eq!(mirror.shared.member_errors(1).flushes, 1);
    assert_eq!(mirror.moods[1].flushes.get(), 1, "it was not tried again");
    let states = mirror.checkpoints.positions.lock().unwrap().clone();
    assert_eq!(states, [0, IN_SYNC], "first the failure, then the position");
}

/// The only one that is left cannot be lost.
#[test]
fn a_flush_error_of_the_last_member_ends_it_without_a_checkpoint() {
    let mirror = Mirror::new(2, 0);
    mirror.moods.iter().for_each(|mood| mood.flush_error.set(Some(EIO)));
    mirror.resync();
    let failure = Failure::Member { slot: 1, fault: MemberFault::Flush(EIO) };
    assert_eq!(mirror.shared.failure(), Some(failure));
    assert!(!mirror.shared.is_in_sync());
    assert!(!mirror.checkpoints.positions.lock().unwrap().contains(&IN_SYNC));
}

#[test]
fn a_stopped_resync_leaves_a_checkpoint_and_resumes_there() {
    let mirror = Mirror::new(2, 0);
    (0..2).for_each(|slot| mirror.fill(slot));
    // Slow, so that there is a pause after each step in which to stop it.
    mirror.shared.set_resync_rates(1, Some(1 << 20));
    let shared = Arc::clone(&mirror.shared);
    // The host reads: so a step is one shard.
    mirror.read(0, 512).unwrap();
    *mirror.timer.then.borrow_mut() = Some(Box::new(move |_| shared.stop_resync()));
    mirror.resync();
    let position = mirror.shared.resync_position_bytes();
    assert!(position > 0 && position <= SIZE);
    assert_eq!(mirror.checkpoints.positions.lock().unwrap().last(), Some(&position));
    assert!(mirror.moods.iter().all(|mood| mood.flushes.get() == 1));
}

/// A stop does not wait until a pause is over.
#[test]
fn a_resting_resync_stops_at_once() {
    struct Never;
    impl Timer for Never {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
        async fn sleep(&self, _time: Duration) {
            std::future::pending().await
        }
    }
    let mirror = Mirror::new(2, 0);
    mirror.shared.set_resync_rates(1, Some(1));
    let mut resync = Box::pin(mirror.array.recover(&Never));
    assert!(resync.as_mut().now_or_never().is_none());
    mirror.shared.stop_resync();
    assert_eq!(resync.as_mut().now_or_never(), Some(()));
    // What it had done counts from the flush on that comes before its checkpoint.
    let position = mirror.shared.resync_position_bytes();
    assert!(position > 0 && position < IN_SYNC);
    assert_eq!(mirror.checkpoints.positions.lock().unwrap().last(), Some(&position));
}

#[test]
fn an_idle_resync_begins_when_copies_become_unequal() {
    let mirror = Mirror::new(2, IN_SYNC);
    let mut resync = Box::pin(mirror.array.recover(&mirror.timer));
    assert!(resync.as_mut().now_or_never().is_none());
    mirror.drives[0].write_now(1 << 20, &[1; 512]).unwrap();
    mirror.shared.require_resync(1 << 20);
    assert_eq!(mirror.shared.resync_position_bytes(), 1 << 20);
    assert!(resync.as_mut().now_or_never().is_none());
    assert!(mirror.shared.is_in_sync() && mirror.on_drive(0) == mirror.on_drive(1));
}

#[test]
fn a_read_error_is_answered_from_another_copy_and_repaired() {
    let mirror = Mirror::new(2, IN_SYNC);
    mirror.write(0, 65_536, 5).unwrap();
    // Neither copy can be read as a whole.
    mirror.moods[0].unreadable.borrow_mut().push(4096..4608);
    mirror.moods[1].unreadable.borrow_mut().push(7680..8192);
    assert_eq!(mirror.read(0, 8192).unwrap(), [5; 8192]);
    let left: usize = mirror.moods.iter().map(|mood| mood.unreadable.borrow().len()).sum();
    assert_eq!(left, 1, "the block that was asked of the one that could not read it");
    assert_eq!(mirror.read(0, 8192).unwrap(), [5; 8192]);
    assert!(mirror.shared.reads_from_other_copies() > 0);
    assert!((0..2).all(|slot| mirror.shared.member_errors(slot).reads > 0));
    assert_eq!(mirror.shared.member_states(), [MemberState::InSync; 2]);
    // What nobody can read is an error, and does no harm to anybody.
    for mood in &mirror.moods {
        mood.unreadable.borrow_mut().clear();
        mood.unreadable.borrow_mut().push(4096..4608);
    }
    assert!(matches!(mirror.read(0, 8192), Err(ArrayError::ReadFailed { error: EIO, .. })));
    assert_eq!(mirror.read(0, 4096).unwrap(), [5; 4096]);
    assert_eq!(mirror.shared.failure(), None);
}

#[test]
fn a_write_error_fails_the_member_and_the_write_succeeds() {
    let mirror = Mirror::new(2, IN_SYNC);
    mirror.write(0, 4096, 1).unwrap();
    mirror.moods[1].write_error.set(Some(EIO));
    assert_eq!(mirror.write(0, 4096, 2), Ok(()));
    assert_eq!(mirror.shared.member_states(), [MemberState::InSync, MemberState::Failed]);
    assert_eq!(mirror.shared.member_fault(1), Some(MemberFault::Write(EIO)));
    assert_eq!((mirror.shared.failure(), mirror.shared.is_degraded()), (None, true));
    assert_eq!(mirror.shared.member_errors(1).writes, 1);
    // It is not used any more, whatever it would do now.
    mirror.moods[1].write_error.set(None);
    assert_eq!(mirror.write(1 << 20, 4096, 3), Ok(()));
    assert_eq!(mirror.array.flush().now_or_never(), Some(Ok(())));
    assert_eq!(mirror.moods[1].flushes.get(), 0);
    assert_eq!(mirror.on_drive(1)[1 << 20], 0);
    for _ in 0..4 {
        assert_eq!(mirror.read(0, 4096).unwrap(), [2; 4096]);
    }
}

/// Without the last member nothing is left: it stays, and the array fails.
#[test]
fn a_write_error_of_the_last_member_fails_the_array() {
    let mirror = Mirror::new(2, IN_SYNC);
    mirror.write(0, 4096, 1).unwrap();
    mirror.moods[1].write_error.set(Some(EIO));
    assert_eq!(mirror.write(0, 4096, 2), Ok(()));
    mirror.moods[0].write_error.set(Some(EIO));
    let failure = WriteFailure::Member { slot: 0, error: EIO };
    assert_eq!(mirror.write(0, 4096, 3), Err(ArrayError::WriteFailed(failure)));
    let failure = Failure::Member { slot: 0, fault: MemberFault::Write(EIO) };
    assert_eq!(mirror.shared.failure(), Some(failure));
    assert_eq!(mirror.shared.write_state(), WriteState::Failed);
    assert_eq!(mirror.shared.wanted().members, [MemberState::InSync, MemberState::Failed]);
    mirror.moods[0].write_error.set(None);
    let failed = Err(ArrayError::WriteFailed(WriteFailure::ArrayFailed));
    assert_eq!(mirror.write(1 << 20, 4096, 2), failed);
    assert_eq!(mirror.array.flush().now_or_never(), Some(failed));
    assert_eq!(mirror.array.deallocate(0, 4096).now_or_never(), Some(failed));
    assert_eq!(mirror.read(0, 4096).unwrap(), [2; 4096], "what is there can be read");
}

/// The superblock's writer flushes members as well; its failures count like the engine's.
#[test]
fn a_flush_that_failed_elsewhere_fails_the_member() {
    let mirror = Mirror::new(2, IN_SYNC);
    mirror.write(0, 4096, 1).unwrap();
    mirror.shared.fail_flush(1, EIO);
    mirror.shared.fail_flush(7, EIO);
    assert_eq!(mirror.shared.member_fault(1), Some(MemberFault::Flush(EIO)));
    assert_eq!(mirror.array.flush().now_or_never(), Some(Ok(())));
    assert_eq!(mirror.write(0, 4096, 1), Ok(()));
    assert_eq!(mirror.shared.member_errors(1).flushes, 1);
    assert_eq!(mirror.moods.iter().map(|mood| mood.flushes.get()).collect::<Vec<_>>(), [1, 0]);
}

/// Nobody sees how a flush ends that is dropped while the drive works on it. If it fails, the
/// kernel has said so for the only time: a stop must not take the next flush's word for it and
/// call the array clean.
#[test]
fn a_flush_that_is_dropped_under_way_fails_the_array() {
    let mirror = Mirror::new(2, IN_SYNC);
    mirror.write(0, 4096, 1).unwrap();
    mirror.moods[1].flush_hangs.set(true);
    let mut first = Box::pin(mirror.array.flush());
    assert!(first.as_mut().now_or_never().is_none());
    // Who only waits for a flush may go.
    let mut second = Box::pin(mirror.array.flush());
    assert!(second.as_mut().now_or_never().is_none());
    drop(second);
    assert_eq!(mirror.shared.failure(), None);
    drop(first);
    assert_eq!(mirror.shared.failure(), Some(Failure::Abandoned));
    assert!(mirror.shared.is_in_sync(), "the copies are as equal as before");
}

/// A drive that does not support writing is no different from one that fails to.
#[test]
fn an_unsupported_write_is_a_write_error() {
    let mirror = Mirror::new(2, IN_SYNC);
    mirror.moods[0].write_error.set(Some(DriveError::Unsupported));
    assert_eq!(mirror.write(0, 512, 1), Ok(()));
    let fault = MemberFault::Write(DriveError::Io { errno: 95 });
    assert_eq!(mirror.shared.member_fault(0), Some(fault));
}

#[test]
fn lack_of_space_fails_only_the_write_and_leaves_copies_equal() {
    let mirror = Mirror::new(3, IN_SYNC);
    mirror.write(0, 4096, 1).unwrap();
    // The first copy has no room: it keeps the old data, and the others go back to it.
    mirror.moods[0].write_error.set(Some(DriveError::NoSpace));
    assert_eq!(mirror.write(0, 4096, 2), Err(ArrayError::NoSpace { slot: 0 }));
    assert!(mirror.shared.is_in_sync());
    for slot in 0..3 {
        assert_eq!(mirror.on_drive(slot)[..4096], [1; 4096], "slot {slot}");
    }
    mirror.moods[0].write_error.set(None);
    // Another copy has no room: it cannot be made equal, so only the first counts from there on.
    mirror.moods[2].write_error.set(Some(DriveError::NoSpace));
    assert_eq!(mirror.write(8192, 4096, 3), Err(ArrayError::NoSpace { slot: 2 }));
    assert_eq!(mirror.shared.resync_position_bytes(), 8192);
    mirror.moods[2].write_error.set(None);
    mirror.resync();
    assert!(mirror.shared.is_in_sync());
    assert_eq!(mirror.on_drive(2)[8192..12_288], [3; 4096]);
    assert_eq!(mirror.write(8192, 4096, 4), Ok(()));
    assert_eq!((mirror.shared.failure(), mirror.shared.member_errors(0).no_space), (None, 1));
}

#[test]
fn deallocation_is_skipped_unless_every_member_can_zero() {
    let mirror = Mirror::new(3, IN_SYNC);
    mirror.write(0, 65_536, 9).unwrap();
    (0..3).for_each(|slot| mirror.moods[slot].cannot_zero.set(true));
    assert_eq!(mirror.array.deallocate(0, 65_536).now_or_never(), Some(Ok(())));
    assert_eq!(mirror.read(0, 65_536).unwrap(), [9; 65_536]);

    // One member turns out not to zero when others have done it: all are zeros then.
    let mirror = Mirror::new(3, IN_SYNC);
    mirror.write(0, 65_536, 9).unwrap();
    mirror.moods[1].cannot_zero.set(true);
    assert_eq!(mirror.array.deallocate(0, 65_536).now_or_never(), Some(Ok(())));
    for slot in 0..3 {
        assert_eq!(mirror.on_drive(slot)[..65_536], [0; 65_536], "slot {slot}");
    }
    // From now on it is known, and nothing is done.
    mirror.write(0, 4096, 8).unwrap();
    assert_eq!(mirror.array.deallocate(0, 4096).now_or_never(), Some(Ok(())));
    assert_eq!(mirror.read(0, 4096).unwrap(), [8; 4096]);
    // Write zeroes is done in any case.
    let zeroed = mirror.array.write_zeroes(0, 3 << 20, true, true).now_or_never();
    assert_eq!(zeroed, Some(Ok(())));
    assert!((0..3).all(|slot| mirror.on_drive(slot)[..4096] == [0; 4096]));
    assert!(mirror.moods.iter().all(|mood| mood.flushes.get() == 1), "one flush for all of it");
}

/// A drive that is put together of several zeroed what is on the first of them, and then found that
/// another cannot. No member had zeroed all, so nothing more was done, and the copies differed.
#[test]
fn a_deallocation_that_was_begun_and_not_supported_leaves_copies_equal() {
    let mirror = Mirror::new(2, IN_SYNC);
    mirror.write(0, 4096, 9).unwrap();
    mirror.moods.iter().for_each(|mood| mood.cannot_zero.set(true));
    mirror.moods[1].zeroes_a_block.set(true);
    assert_eq!(mirror.array.deallocate(0, 4096).now_or_never(), Some(Ok(())));
    assert!(mirror.on_drive(0) == mirror.on_drive(1) || !mirror.shared.is_in_sync());
}

/// A drive that has lost writes shows what it had before. Another copy still has them, so no read may
/// be answered with less.
#[test]
fn after_a_failed_flush_no_read_is_stale() {
    let mirror = Mirror::new(2, IN_SYNC);
    mirror.write(0, 4096, 2).unwrap();
    assert_eq!(mirror.array.flush().now_or_never(), Some(Ok(())));
    mirror.write(0, 4096, 3).unwrap();
    mirror.drives[0].write_now(0, &[2; 4096]).unwrap();
    mirror.moods[0].flush_error.set(Some(EIO));
    assert_eq!(mirror.array.flush().now_or_never(), Some(Ok(())), "the other one has flushed");
    assert_eq!(mirror.shared.member_fault(0), Some(MemberFault::Flush(EIO)));
    for _ in 0..4 {
        assert_eq!(mirror.read(0, 4096).unwrap(), [3; 4096], "an acknowledged write is gone");
    }
    // The last one cannot be lost, but neither can it be believed.
    mirror.moods[1].flush_error.set(Some(EIO));
    assert!(mirror.array.flush().now_or_never().unwrap().is_err());
    assert!(mirror.read(0, 4096).is_err());
}
