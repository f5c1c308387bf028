//! What happens when members fail, one case each, over memory drives that are told how to fail.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;

use super::*;
use crate::drive::{DriveError, ReadFailure};
use crate::geometry::{Geometry, Level};
use crate::memory::MemoryDrive;
use crate::mesh::Mesh;

const EIO: DriveError = DriveError::Io { errno: 5 };
const SIZE: u64 = 4 << 20;
const MIB: u64 = 1 << 20;

/// How a drive answers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Manner {
    Well,
    With(DriveError),
    /// Only when it is told another manner.
    NotYet,
}

/// How a drive behaves, and what it was asked.
pub(super) struct Mood {
    pub(super) reads: Cell<Manner>,
    /// For the next reads, one each, before `reads` counts.
    next_reads: RefCell<VecDeque<Manner>>,
    pub(super) writes: Cell<Manner>,
    pub(super) flushes: Cell<Manner>,
    pub(super) has_cache: Cell<bool>,
    read_count: Cell<u64>,
    write_count: Cell<u64>,
    fua_count: Cell<u64>,
    pub(super) flush_count: Cell<u64>,
    /// Buffers of reads that timed out.
    kept: RefCell<Vec<Buffer>>,
}

impl Default for Mood {
    fn default() -> Self {
        let well = || Cell::new(Manner::Well);
        Self {
            reads: well(),
            next_reads: RefCell::default(),
            writes: well(),
            flushes: well(),
            has_cache: Cell::new(true),
            read_count: Cell::default(),
            write_count: Cell::default(),
            fua_count: Cell::default(),
            flush_count: Cell::default(),
            kept: RefCell::default(),
        }
    }
}

/// Waits for an answer.
async fn answer(manner: &Cell<Manner>) -> Result<(), DriveError> {
    poll_fn(|_| match manner.get() {
        Manner::Well => Poll::Ready(Ok(())),
        Manner::With(error) => Poll::Ready(Err(error)),
        Manner::NotYet => Poll::Pending,
    })
    .await
}

/// A memory drive with a mood.
#[derive(Clone)]
pub(super) struct Moody {
    pub(super) drive: MemoryDrive,
    pub(super) mood: Rc<Mood>,
}

impl Drive for Moody {
    async fn read(&self, offset: u64, mut buffer: Buffer) -> Result<Buffer, ReadFailure> {
        let mood = &self.mood;
        mood.read_count.set(mood.read_count.get() + 1);
        // What a slow drive answers is what was there when it was asked.
        let done = self.drive.read_now(offset, &mut buffer);
        let next = mood.next_reads.borrow_mut().pop_front();
        let answered = match next {
            Some(Manner::With(error)) => Err(error),
            Some(_) => Ok(()),
            None => answer(&mood.reads).await,
        };
        match done.and(answered) {
            Ok(()) => Ok(buffer),
            Err(error) if error == DriveError::TimedOut => {
                mood.kept.borrow_mut().push(buffer);
                Err(ReadFailure { error, buffer: None })
            }
            Err(error) => Err(ReadFailure::new(error, buffer)),
        }
    }

    async fn write(&self, offset: u64, data: SharedBuffer, fua: bool) -> Result<(), DriveError> {
        self.mood.write_count.set(self.mood.write_count.get() + 1);
        self.mood.fua_count.set(self.mood.fua_count.get() + u64::from(fua));
        answer(&self.mood.writes).await?;
        self.drive.write_now(offset, &data)
    }

    async fn flush(&self) -> Result<(), DriveError> {
        self.mood.flush_count.set(self.mood.flush_count.get() + 1);
        answer(&self.mood.flushes).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, free: bool) -> Result<(), DriveError> {
        answer(&self.mood.writes).await?;
        self.drive.write_zeroes(offset, len, free).await
    }

    fn has_volatile_cache(&self) -> bool {
        self.mood.has_cache.get()
    }

    fn size_bytes(&self) -> u64 {
        self.drive.size_bytes()
    }

    fn block_size_bytes(&self) -> u32 {
        self.drive.block_size_bytes()
    }

    fn late_operations(&self) -> usize {
        self.mood.kept.borrow().len()
    }

    fn give_up(&self) {
        if self.mood.writes.get() == Manner::NotYet {
            self.mood.writes.set(Manner::With(DriveError::TimedOut));
        }
    }
}

/// A keeper that only counts; recording is done by hand.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Keeper for Counting {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Time that is set.
#[derive(Default)]
struct Watch(Cell<Duration>);

impl Timer for Watch {
    fn now(&self) -> Duration {
        self.0.get()
    }

    async fn sleep(&self, _time: Duration) {}
}

struct Rig {
    arrays: Vec<Array<Moody>>,
    drives: Vec<Moody>,
    shared: Arc<Shared>,
    pool: Pool,
    keeper: Arc<Counting>,
    watch: Rc<Watch>,
}

impl Rig {
    fn new(level: Level, members: usize) -> Self {
        Self::with(level, members, 1, |settings| settings)
    }

    fn with(
        level: Level,
        members: usize,
        cores: usize,
        change: impl FnOnce(Settings) -> Settings,
    ) -> Self {
        let chunk = if level == Level::Raid1 { 0 } else { 65_536 };
        let geometry = Geometry::new(level, members, chunk, SIZE).unwrap();
        let keeper = Arc::new(Counting::default());
        let settings = Settings {
            cores,
            keeper: Arc::clone(&keeper) as Arc<dyn Keeper>,
            ..Settings::new(geometry)
        };
        let shared = Shared::new(change(settings));
        let drive = |_| Moody { drive: MemoryDrive::new(SIZE), mood: Rc::default() };
        let drives: Vec<Moody> = (0..members).map(drive).collect();
        let pool = Pool::new(8 << 20, 1 << 20).unwrap();
        let watch = Rc::new(Watch::default());
        let states = shared.member_states();
        let arrays = Mesh::new(cores, Arc::new(|_| {})).into_iter().map(|end| {
            let used = [MemberState::InSync, MemberState::Rebuilding];
            let slots = drives.iter().zip(&states);
            let slots = slots.map(|(drive, state)| used.contains(state).then(|| drive.clone()));
            Array::with_slots(Arc::clone(&shared), slots.collect(), Rc::new(end), pool.clone())
                .unwrap()
                .with_timer(Rc::clone(&watch) as Rc<dyn CoreTimer>)
        });
        Self { arrays: arrays.collect(), drives, shared, pool, keeper, watch }
    }

    fn mood(&self, slot: usize) -> &Mood {
        &self.drives[slot].mood
    }

    fn data(&self, len: usize, byte: u8) -> SharedBuffer {
        let mut buffer = self.pool.allocate(len).unwrap();
        buffer.fill(byte);
        buffer.freeze()
    }

    /// A write that must end at once, nothing being outstanding.
    fn write(&self, offset: u64, len: usize, byte: u8) -> Result<(), ArrayError> {
        let write = self.arrays[0].write(offset, self.data(len, byte), false);
        write.now_or_never().expect("the write waits")
    }

    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, ArrayError> {
        let read = self.arrays[0].read(offset, self.pool.allocate(len).unwrap());
        let read = read.now_or_never().expect("the read waits");
        read.map(|buffer| buffer.to_vec()).map_err(|unread| unread.error)
    }

    /// What a member holds at an offset.
    fn on(&self, slot: usize, offset: u64) -> u8 {
        let mut bytes = [0; 512];
        self.drives[slot].drive.read_now(offset, &mut bytes).unwrap();
        bytes[0]
    }

    fn record(&self) {
        self.shared.recorded(self.shared.wanted().version);
    }

    fn states(&self) -> Vec<MemberState> {
        self.shared.member_states()
    }
}

use MemberState::{Failed, InSync, Missing, Rebuilding};

/// A write that a member missed is not acknowledged before the superblocks say that it is out: a
/// restart would believe it.
#[test]
fn a_write_is_acknowledged_when_the_failure_is_recorded() {
    let rig = Rig::new(Level::Raid1, 2);
    rig.mood(1).writes.set(Manner::With(EIO));
    let mut write = Box::pin(rig.arrays[0].write(0, rig.data(4096, 1), false));
    assert!(write.as_mut().now_or_never().is_none());
    assert_eq!(
        (rig.states(), rig.keeper.0.load(Ordering::SeqCst) > 0),
        (vec![InSync, Failed], true)
    );
    // Later ones, and flushes, wait as well: they miss it, too.
    let mut later = Box::pin(rig.arrays[0].write(MIB, rig.data(4096, 1), false));
    let mut flush = Box::pin(rig.arrays[0].flush());
    assert!(later.as_mut().now_or_never().is_none() && flush.as_mut().now_or_never().is_none());
    assert_eq!(rig.mood(1).write_count.get(), 1, "a failed member is not written any more");
    let version = rig.shared.wanted().version;
    rig.shared.recorded(version - 1);
    assert!(write.as_mut().now_or_never().is_none(), "an older version does not have it");
    rig.shared.recorded(version);
    assert_eq!(write.now_or_never(), Some(Ok(())));
    assert_eq!(later.now_or_never(), Some(Ok(())));
    assert_eq!(flush.now_or_never(), Some(Ok(())));
    assert_eq!(rig.read(0, 4096).unwrap(), [1; 4096]);
}

#[test]
fn a_flush_is_answered_when_the_failure_is_recorded() {
    let rig = Rig::new(Level::Raid10, 4);
    rig.mood(2).flushes.set(Manner::With(EIO));
    let mut flush = Box::pin(rig.arrays[0].flush());
    assert!(flush.as_mut().now_or_never().is_none());
    assert_eq!(rig.shared.member_fault(2), Some(MemberFault::Flush(EIO)));
    rig.record();
    assert_eq!(flush.now_or_never(), Some(Ok(())));
    // Nobody asks it again, though it would say yes now.
    rig.mood(2).flushes.set(Manner::Well);
    assert_eq!(rig.arrays[0].flush().now_or_never(), Some(Ok(())));
    assert_eq!(rig.mood(2).flush_count.get(), 1);
}

/// A superblock that cannot be written is a failure like others; one without room is none.
#[test]
fn a_member_whose_superblock_cannot_be_written_is_out() {
    let rig = Rig::new(Level::Raid1, 3);
    rig.mood(2).writes.set(Manner::With(EIO));
    let mut write = Box::pin(rig.arrays[0].write(0, rig.data(512, 1), false));
    assert!(write.as_mut().now_or_never().is_none());
    rig.shared.record_failed(1, EIO);
    assert!(write.as_mut().now_or_never().is_none());
    assert_eq!(rig.states(), [InSync, Failed, Failed]);
    assert_eq!(rig.shared.member_fault(1), Some(MemberFault::Superblock(EIO)));
    let woken = rig.keeper.0.load(Ordering::SeqCst);
    rig.shared.record_failed(0, DriveError::NoSpace);
    assert_eq!(write.now_or_never(), Some(Err(ArrayError::NoSpace { slot: 0 })));
    // Who comes next has it tried again.
    let mut write = Box::pin(rig.arrays[0].write(0, rig.data(512, 2), false));
    assert!(write.as_mut().now_or_never().is_none());
    assert!(rig.keeper.0.load(Ordering::SeqCst) > woken);
    rig.record();
    assert_eq!(write.now_or_never(), Some(Ok(())));
}

/// Lack of space below a member never fails it.
#[test]
fn lack_of_space_fails_no_member() {
    let rig = Rig::new(Level::Raid1, 2);
    rig.mood(1).writes.set(Manner::With(DriveError::NoSpace));
    assert_eq!(rig.write(0, 512, 1), Err(ArrayError::NoSpace { slot: 1 }));
    assert_eq!(rig.states(), [InSync, InSync]);
}

#[test]
fn a_drive_that_is_gone_is_out_when_it_is_read() {
    let rig = Rig::new(Level::Raid1, 2);
    rig.write(0, 4096, 7).unwrap();
    rig.mood(0).reads.set(Manner::With(DriveError::Gone));
    assert_eq!(rig.read(0, 4096).unwrap(), [7; 4096]);
    let fault = MemberFault::Unreachable(DriveError::Gone);
    assert_eq!((rig.states(), rig.shared.member_fault(0)), (vec![Failed, InSync], Some(fault)));
}

/// The buffer of a read that timed out belongs to the drive until it answers; the host gets
/// another one.
#[test]
fn a_read_that_times_out_is_answered_in_another_buffer() {
    let rig = Rig::new(Level::Raid10, 2);
    rig.write(0, 262_144, 7).unwrap();
    let idle = rig.pool.in_use_bytes();
    rig.mood(0).reads.set(Manner::With(DriveError::TimedOut));
    // Several extents, so that parts of the buffer are lost and others not.
    assert_eq!(rig.read(0, 262_144).unwrap(), [7; 262_144]);
    assert_eq!(rig.states(), [Failed, InSync]);
    assert!(rig.arrays[0].late_operations(0) > 0 && rig.pool.in_use_bytes() > idle);
    rig.mood(0).kept.borrow_mut().clear();
    assert_eq!(rig.pool.in_use_bytes(), idle);
    // The last one cannot be lost: its answer is an error, and so is that without a buffer.
    rig.mood(1).reads.set(Manner::With(DriveError::TimedOut));
    let read = rig.arrays[0].read(0, rig.pool.allocate(512).unwrap()).now_or_never().unwrap();
    let error = ArrayError::ReadFailed { slot: 1, error: DriveError::TimedOut };
    assert_eq!(read.unwrap_err().error, error);
    assert!(rig.shared.failure().is_some());
}

#[test]
fn a_write_that_times_out_leaves_its_member_behind() {
    let rig = Rig::new(Level::Raid1, 2);
    rig.mood(1).writes.set(Manner::NotYet);
    let mut write = Box::pin(rig.arrays[0].write(0, rig.data(4096, 3), false));
    assert!(write.as_mut().now_or_never().is_none(), "the other one has it, but not this one");
    assert_eq!(rig.states(), [InSync, InSync]);
    rig.mood(1).writes.set(Manner::With(DriveError::TimedOut));
    assert!(write.as_mut().now_or_never().is_none());
    rig.record();
    assert_eq!(write.now_or_never(), Some(Ok(())));
    let fault = MemberFault::Write(DriveError::TimedOut);
    assert_eq!(rig.shared.member_fault(1), Some(fault));
}

/// A member that hangs is failed by somebody else: those that wait for it need not wait for its
/// timeout.
#[test]
fn nobody_waits_for_a_member_that_is_out() {
    let rig = Rig::with(Level::Raid1, 2, 2, |settings| settings);
    rig.mood(1).writes.set(Manner::NotYet);
    let mut write = Box::pin(rig.arrays[0].write(0, rig.data(4096, 3), false));
    assert!(write.as_mut().now_or_never().is_none());
    rig.shared.fail_member(1, MemberFault::Operator);
    rig.record();
    assert!(write.as_mut().now_or_never().is_none(), "its core has not looked yet");
    rig.arrays[0].look();
    assert_eq!(write.now_or_never(), Some(Ok(())));
    assert_eq!(rig.shared.member_fault(1), Some(MemberFault::Operator));
}

/// A read was under way on a member that failed meanwhile, and a write that it missed was
/// acknowledged before the read was answered.
#[test]
fn a_read_that_ends_in_another_epoch_is_done_again() {
    let rig = Rig::new(Level::Raid1, 2);
    rig.write(0, 4096, 1).unwrap();
    rig.mood(0).reads.set(Manner::NotYet);
    let mut read = Box::pin(rig.arrays[0].read(0, rig.pool.allocate(4096).unwrap()));
    assert!(read.as_mut().now_or_never().is_none());
    assert_eq!(rig.mood(0).read_count.get(), 1, "the test is about this member");
    rig.mood(0).writes.set(Manner::With(EIO));
    let mut write = Box::pin(rig.arrays[0].write(0, rig.data(4096, 2), false));
    assert!(write.as_mut().now_or_never().is_none());
    rig.record();
    assert_eq!(write.now_or_never(), Some(Ok(())));
    rig.mood(0).reads.set(Manner::Well);
    let read = read.now_or_never().unwrap().unwrap();
    assert_eq!(read[..], [2; 4096], "an acknowledged write is not there");
}

#[test]
fn read_errors_are_repaired_counted_and_at_the_limit_too_many() {
    let rig =
        Rig::with(Level::Raid1, 2, 1, |settings| Settings { read_error_limit: 3, ..settings });
    rig.write(0, 65_536, 7).unwrap();
    let fail_once = |slot: usize| {
        // Read, and read again by the owner.
        rig.mood(slot).next_reads.borrow_mut().extend([Manner::With(EIO); 2]);
        let before = rig.mood(slot).write_count.get();
        // The other one is busy, so that this one is read.
        let other = rig.arrays[0].member(1 - slot).unwrap();
        let busy: Vec<_> = (0..9).map(|_| other.begin_read(MIB, 0)).collect();
        assert_eq!(rig.read(0, 4096).unwrap(), [7; 4096]);
        drop(busy);
        assert!(rig.mood(slot).next_reads.borrow().is_empty());
        rig.mood(slot).write_count.get() - before
    };
    assert_eq!(fail_once(0), 1, "what could not be read is written again");
    rig.watch.0.set(Duration::from_secs(1800));
    assert_eq!(fail_once(0), 1);
    // The first one is too long ago.
    rig.watch.0.set(Duration::from_secs(3601));
    assert_eq!(fail_once(0), 1);
    assert_eq!(rig.states(), [InSync, InSync]);
    assert_eq!(fail_once(0), 0, "it is out");
    assert_eq!(rig.states(), [Failed, InSync]);
    assert_eq!(rig.shared.member_fault(0), Some(MemberFault::ReadErrors(3)));
    // The last one is not failed for that.
    for _ in 0..5 {
        rig.shared.count_read_error(1, Duration::from_secs(3601));
    }
    assert_eq!((rig.states(), rig.shared.failure()), (vec![Failed, InSync], None));
}

/// It cannot be read, and not be written again either: then it is out, and the read is answered.
#[test]
fn a_repair_that_fails_fails_the_member() {
    let rig = Rig::new(Level::Raid1, 2);
    rig.write(0, 65_536, 7).unwrap();
    rig.mood(0).reads.set(Manner::With(EIO));
    rig.mood(0).writes.set(Manner::With(EIO));
    assert_eq!(rig.read(0, 4096).unwrap(), [7; 4096]);
    assert_eq!(rig.shared.member_fault(0), Some(MemberFault::Write(EIO)));
}

#[test]
fn bad_blocks_are_not_read_until_they_are_written() {
    let bad = |start_bytes: u64| BadRange { start_bytes, end_bytes: start_bytes + 1024 };
    let rig = Rig::with(Level::Raid1, 2, 1, |settings| Settings {
        bad_blocks: vec![vec![bad(4096), bad(8192)], vec![bad(4608)]],
        ..settings
    });
    (0..2).for_each(|slot| {
        let byte = slot as u8 + 1;
        rig.drives[slot].drive.write_now(0, &[byte; 65_536]).unwrap();
    });
    // From the other one, whole or block by block; what is bad on both is lost.
    assert_eq!(rig.read(4096, 512).unwrap(), [2; 512]);
    assert_eq!(rig.read(5120, 512).unwrap()[..1], [1]);
    let lost = Err(ArrayError::Unrecovered { offset_bytes: 4608 });
    assert_eq!(rig.read(4608, 512), lost);
    assert_eq!(rig.read(4096, 1024), lost);
    let both = rig.read(4608, 4608);
    assert_eq!(both, lost);
    // A write makes them good; it is acknowledged when that is recorded.
    let mut write = Box::pin(rig.arrays[0].write(4608, rig.data(512, 9), false));
    assert!(write.as_mut().now_or_never().is_none());
    assert_eq!(rig.read(4608, 512).unwrap(), [9; 512]);
    rig.record();
    assert_eq!(write.now_or_never(), Some(Ok(())));
    let left = [BadRange { start_bytes: 4096, end_bytes: 4608 }, bad(8192)];
    assert_eq!(rig.shared.wanted().bad_blocks[0], left);
    assert_eq!(rig.shared.bad_blocks(1), [BadRange { start_bytes: 5120, end_bytes: 5632 }]);
}

/// A range of which each member has only a part is put together.
#[test]
fn a_range_with_bad_blocks_on_both_is_read_block_by_block() {
    let bad = |start_bytes: u64| vec![BadRange { start_bytes, end_bytes: start_bytes + 512 }];
    let rig = Rig::with(Level::Raid1, 2, 1, |settings| Settings {
        bad_blocks: vec![bad(512), bad(1024)],
        ..settings
    });
    rig.drives[0].drive.write_now(0, &[1; 2048]).unwrap();
    rig.drives[1].drive.write_now(0, &[1; 2048]).unwrap();
    rig.drives[0].drive.write_now(512, &[0xbd; 512]).unwrap();
    rig.drives[1].drive.write_now(1024, &[0xbd; 512]).unwrap();
    assert_eq!(rig.read(0, 2048).unwrap(), [1; 2048]);
}

#[test]
fn a_member_with_too_many_bad_blocks_is_out() {
    let rig = Rig::new(Level::Raid1, 2);
    let block = |number: u64| number * 1024..number * 1024 + 512;
    let all = |count: u64| (0..count).map(move |number| (1, block(number)));
    assert_eq!(rig.shared.add_bad_blocks(all(600)), Err(ArrayError::BadBlocksFull { slot: 1 }));
    assert_eq!(rig.shared.bad_blocks(1), []);
    rig.shared.add_bad_blocks(all(440)).unwrap();
    rig.shared.add_bad_blocks([(0, 0..512), (1, block(440))]).unwrap();
    assert_eq!((rig.shared.bad_blocks(0).len(), rig.shared.bad_blocks(1).len()), (1, 441));
    assert_eq!(rig.shared.member_fault(1), None);
    for number in 441..600 {
        rig.shared.must_add_bad_blocks(1, block(number), 0);
    }
    assert_eq!(rig.shared.member_fault(1), Some(MemberFault::BadBlocksFull));
    let epoch = rig.shared.epoch();
    rig.shared.add_bad_blocks([(9, 0..512), (0, 0..0)]).unwrap();
    assert_eq!(rig.shared.epoch(), epoch);
}

#[test]
fn a_rebuilding_member_gets_all_writes_and_is_read_below_its_position() {
    let rig = Rig::with(Level::Raid1, 2, 1, |settings| Settings {
        members: vec![InSync, Rebuilding],
        rebuild_from: Some(MIB),
        ..settings
    });
    assert_eq!(rig.write(2 * MIB, 4096, 5), Ok(()));
    assert_eq!(rig.write(0, 4096, 5), Ok(()));
    assert_eq!((rig.on(1, 2 * MIB), rig.on(1, 0)), (5, 5));
    let view = |range| {
        let View { readable, writable, agrees, .. } = rig.arrays[0].view(range);
        (readable.iter().collect::<Vec<_>>(), writable.len(), agrees)
    };
    assert_eq!(view(0..MIB), (vec![0, 1], 2, true));
    assert_eq!(view(0..MIB + 512), (vec![0], 2, true));
    rig.drives[1].drive.write_now(3 * MIB, &[9; 4096]).unwrap();
    for _ in 0..8 {
        assert_eq!(rig.read(3 * MIB, 4096).unwrap(), [0; 4096]);
    }
    assert!(rig.shared.is_degraded());
    assert_eq!(rig.shared.wanted().rebuild_from, Some(MIB));
}

/// While a member is being rebuilt the others cannot be lost, but it can.
#[test]
fn a_rebuilding_member_does_not_count_as_redundancy() {
    let settings = |settings| Settings { members: vec![InSync, Rebuilding], ..settings };
    let rig = Rig::with(Level::Raid1, 2, 1, settings);
    assert!(!rig.shared.fail_member(0, MemberFault::Operator), "the operator is told no");
    assert_eq!((rig.states(), rig.shared.failure()), (vec![InSync, Rebuilding], None));
    assert!(rig.shared.fail_member(1, MemberFault::Write(EIO)));
    assert_eq!(rig.states(), [InSync, Failed]);
    let rig = Rig::with(Level::Raid1, 2, 1, settings);
    rig.mood(0).writes.set(Manner::With(EIO));
    let failure = WriteFailure::Member { slot: 0, error: EIO };
    assert_eq!(rig.write(0, 512, 1), Err(ArrayError::WriteFailed(failure)));
    assert_eq!(rig.states(), [InSync, Rebuilding]);
}

#[test]
fn a_failed_member_is_replaced_at_run_time() {
    let rig = Rig::new(Level::Raid1, 2);
    rig.write(0, 4096, 1).unwrap();
    let old = rig.shared.wanted();
    // An operation of the old drive is still under way when the new one is there, though its core
    // has given it up.
    rig.mood(1).writes.set(Manner::NotYet);
    let mut write = Box::pin(rig.arrays[0].write(MIB, rig.data(512, 1), false));
    assert!(write.as_mut().now_or_never().is_none());
    assert!(!rig.shared.remove_member(1) && !rig.shared.add_member(1), "it is in use");
    rig.arrays[0].take_drive(1);
    assert!(rig.arrays[0].member(1).is_some(), "it is in use");
    assert!(rig.shared.fail_member(1, MemberFault::Operator));
    assert!(!rig.shared.add_member(1), "the slot is not empty");
    assert!(rig.shared.remove_member(1));
    assert_eq!(rig.states(), [InSync, Missing]);
    rig.arrays[0].take_drive(1);
    rig.mood(1).writes.set(Manner::NotYet);
    assert!(rig.arrays[0].member(1).is_none());
    rig.record();

    let new = Moody { drive: MemoryDrive::new(SIZE), mood: Rc::default() };
    let small = Moody { drive: MemoryDrive::new(SIZE - 512), ..new.clone() };
    let set = |drive: Moody, offset| rig.arrays[0].set_drive(1, drive, offset);
    assert!(matches!(set(small, 0), Err(SetupError::DriveTooSmall { slot: 1, .. })));
    let coarse = Moody { drive: MemoryDrive::with_block_size(2 * SIZE, 4096), ..new.clone() };
    let error = SetupError::BlockSize { slot: 1, block_bytes: 4096, array_bytes: 512 };
    assert_eq!(set(coarse, 4096), Err(error));
    let far = Moody { drive: MemoryDrive::new(2 * SIZE), ..new.clone() };
    assert_eq!(set(far.clone(), 8192), Ok(()));
    assert!(rig.shared.add_member(1));
    let wanted = rig.shared.wanted();
    assert_eq!((wanted.members, wanted.rebuild_from), (vec![InSync, Rebuilding], Some(0)));
    assert_ne!(wanted.devices[1], old.devices[1]);
    assert_eq!(wanted.devices[0], old.devices[0]);
    rig.record();
    // The old drive's failure is not the new one's.
    rig.mood(1).writes.set(Manner::With(EIO));
    assert_eq!(write.now_or_never(), Some(Ok(())));
    assert_eq!(rig.states(), [InSync, Rebuilding]);
    assert_eq!(rig.shared.member_fault(1), None);
    assert_eq!(rig.write(0, 4096, 6), Ok(()));
    let mut there = [0; 512];
    far.drive.read_now(8192, &mut there).unwrap();
    assert_eq!(there, [6; 512], "in its own data area");
    // Its flushes count anew.
    assert_eq!(rig.arrays[0].flush().now_or_never(), Some(Ok(())));
    assert_eq!(new.mood.flush_count.get(), 1);
}

/// Hosts were told that what is acknowledged is safe; a drive with a cache must live up to it.
#[test]
fn a_drive_with_a_cache_writes_through_where_none_was_expected() {
    let rig = Rig::with(Level::Raid1, 2, 1, |settings| settings);
    let plain = |slot: usize| {
        let mood = Rc::new(Mood { has_cache: Cell::new(false), ..Mood::default() });
        Moody { drive: rig.drives[slot].drive.clone(), mood }
    };
    let end = Rc::new(Mesh::new(1, Arc::new(|_| {})).remove(0));
    let array =
        Array::new(Arc::clone(&rig.shared), vec![plain(0), plain(1)], end, rig.pool.clone())
            .unwrap();
    assert!(!array.has_volatile_cache());
    rig.shared.fail_member(1, MemberFault::Operator);
    rig.shared.remove_member(1);
    array.set_drive(1, rig.drives[1].clone(), 0).unwrap();
    rig.shared.add_member(1);
    rig.record();
    assert_eq!(array.write(0, rig.data(512, 1), false).now_or_never(), Some(Ok(())));
    assert_eq!(rig.mood(1).fua_count.get(), 1);
    // Zeroing cannot be durable by itself, so zeros are written.
    assert_eq!(array.write_zeroes(0, 4096, false, false).now_or_never(), Some(Ok(())));
    assert_eq!((rig.mood(1).fua_count.get(), rig.on(1, 0)), (2, 0));
}

/// RAID 0 has nothing to answer from, but what is on other members can be read.
#[test]
fn without_redundancy_the_array_fails_and_the_rest_is_read() {
    let rig = Rig::new(Level::Raid0, 2);
    rig.write(0, 131_072, 4).unwrap();
    rig.mood(1).reads.set(Manner::With(EIO));
    let error = ArrayError::ReadFailed { slot: 1, error: EIO };
    assert_eq!(rig.read(65_536, 512), Err(error));
    assert_eq!(rig.shared.failure(), None, "a read error fails nobody");
    rig.mood(1).writes.set(Manner::With(EIO));
    assert!(rig.write(65_536, 512, 5).is_err());
    let failure = Failure::Member { slot: 1, fault: MemberFault::Write(EIO) };
    assert_eq!((rig.shared.failure(), rig.states()), (Some(failure), vec![InSync, InSync]));
    assert!(rig.write(0, 512, 5).is_err());
    assert_eq!(rig.read(0, 512).unwrap(), [4; 512]);
    rig.mood(1).reads.set(Manner::Well);
    assert_eq!(rig.read(65_536, 512).unwrap(), [4; 512], "what it holds was not lost");
}

/// A member that may have lost what it had acknowledged is not read, though nothing replaces it.
#[test]
fn after_a_failed_flush_without_redundancy_its_member_is_not_read() {
    let rig = Rig::new(Level::Raid0, 2);
    rig.write(0, 131_072, 4).unwrap();
    rig.mood(1).flushes.set(Manner::With(EIO));
    assert!(rig.arrays[0].flush().now_or_never().unwrap().is_err());
    assert_eq!(rig.read(0, 512).unwrap(), [4; 512]);
    assert!(matches!(rig.read(65_536, 512), Err(ArrayError::ReadFailed { slot: 1, .. })));
    assert!(!rig.shared.mend(1, false), "it is not mended by coming back");
}

/// More members are lost than the level tolerates: what is on others is read, and commands that
/// cannot be done fail, or wait as long as they are held.
#[test]
fn commands_that_a_failed_array_cannot_do_are_held() {
    let rig = Rig::new(Level::Raid10, 4);
    rig.write(0, 262_144, 4).unwrap();
    rig.shared.fail_member(0, MemberFault::Operator);
    rig.record();
    rig.mood(1).writes.set(Manner::With(DriveError::Gone));
    rig.mood(1).reads.set(Manner::With(DriveError::Gone));
    let gone = WriteFailure::Member { slot: 1, error: DriveError::Gone };
    assert_eq!(rig.write(0, 512, 5), Err(ArrayError::WriteFailed(gone)));
    assert_eq!(rig.read(65_536, 512).unwrap(), [4; 512], "the other pair");
    assert!(matches!(rig.read(0, 512), Err(ArrayError::ReadFailed { slot: 1, .. })));

    rig.shared.set_hold(true);
    let array = &rig.arrays[0];
    let mut write = Box::pin(array.write(512, rig.data(512, 6), false));
    let mut read = Box::pin(array.read(0, rig.pool.allocate(512).unwrap()));
    let mut flush = Box::pin(array.flush());
    let mut zero = Box::pin(array.write_zeroes(1024, 512, false, false));
    assert!(write.as_mut().now_or_never().is_none() && read.as_mut().now_or_never().is_none());
    assert!(flush.as_mut().now_or_never().is_none() && zero.as_mut().now_or_never().is_none());
    assert_eq!(rig.shared.writes_in_flight(), 0, "who is held holds nobody up");
    assert_eq!(rig.read(65_536, 512).unwrap(), [4; 512]);
    // The drive comes back: they are done now. What its cache may have lost is told by a flush.
    rig.mood(1).writes.set(Manner::Well);
    rig.mood(1).reads.set(Manner::Well);
    assert!(!rig.shared.mend(3, false), "that one is not missed");
    array.set_drive(1, rig.drives[1].clone(), 0).unwrap();
    assert!(rig.shared.mend(1, true));
    assert_eq!((rig.shared.failure(), rig.shared.write_state()), (None, WriteState::Active));
    assert_eq!(write.now_or_never(), Some(Ok(())));
    assert_eq!(read.now_or_never().unwrap().unwrap()[..], [4; 512]);
    assert_eq!(zero.now_or_never(), Some(Ok(())));
    let lost = Err(ArrayError::WriteFailed(WriteFailure::CacheLost));
    assert_eq!(flush.now_or_never(), Some(lost));
    assert_eq!(array.flush().now_or_never(), Some(Ok(())));
}

/// A drive was pulled while its superblock was written, or while it was flushed, and an array that
/// held its commands until it is back waited in vain.
#[test]
fn a_drive_that_was_pulled_while_its_state_was_recorded_comes_back() {
    for by_flush in [false, true] {
        let rig = Rig::new(Level::Raid10, 4);
        rig.write(0, 512, 4).unwrap();
        rig.shared.set_hold(true);
        rig.shared.fail_member(0, MemberFault::Operator);
        match by_flush {
            true => rig.shared.fail_flush(1, DriveError::Gone),
            false => rig.shared.record_failed(1, DriveError::Gone),
        }
        assert!(rig.shared.failure().is_some());
        let woken = rig.keeper.0.load(Ordering::SeqCst);
        rig.arrays[0].set_drive(1, rig.drives[1].clone(), 0).unwrap();
        assert!(rig.shared.mend(1, true), "{by_flush}");
        assert!(
            rig.keeper.0.load(Ordering::SeqCst) > woken,
            "the loss of the first is not recorded"
        );
        rig.record();
        rig.write(0, 512, 5).unwrap();
        let lost = Err(ArrayError::WriteFailed(WriteFailure::CacheLost));
        assert_eq!(rig.arrays[0].flush().now_or_never(), Some(lost));
        assert_eq!(rig.arrays[0].flush().now_or_never(), Some(Ok(())));
        // One that errs has lost what it had acknowledged.
        rig.shared.record_failed(1, EIO);
        assert!(!rig.shared.mend(1, true));
    }
}

#[test]
fn a_hold_that_is_over_answers_that_the_array_is_not_ready() {
    let rig = Rig::new(Level::Raid1, 1);
    rig.shared.set_hold(false);
    rig.mood(0).writes.set(Manner::With(EIO));
    let failure = WriteFailure::Member { slot: 0, error: EIO };
    assert_eq!(rig.write(0, 512, 1), Err(ArrayError::WriteFailed(failure)), "never held");
    rig.shared.set_hold(true);
    let mut write = Box::pin(rig.arrays[0].write(0, rig.data(512, 1), false));
    assert!(write.as_mut().now_or_never().is_none());
    rig.shared.set_hold(false);
    assert_eq!(write.now_or_never(), Some(Err(ArrayError::NotReady)));
    assert_eq!(rig.write(0, 512, 1), Err(ArrayError::NotReady));
    // A stop does not wait for it.
    rig.shared.set_hold(true);
    let mut write = Box::pin(rig.arrays[0].write(0, rig.data(512, 1), false));
    assert!(write.as_mut().now_or_never().is_none());
    rig.shared.stop_writes();
    assert_eq!(write.now_or_never(), Some(Err(ArrayError::NotReady)));
    assert!(rig.shared.mend(0, false));
    assert_eq!(rig.shared.write_state(), WriteState::Stopped);
}

#[test]
fn an_array_without_enough_members_has_failed_from_the_start() {
    let members = vec![Missing, Missing, InSync, InSync];
    let rig = Rig::with(Level::Raid10, 4, 1, |settings| Settings { members, ..settings });
    assert_eq!(rig.shared.failure(), Some(Failure::Incomplete));
    assert!(rig.write(65_536, 512, 1).is_err() && rig.read(65_536, 512).is_ok());
    assert!(rig.read(0, 512).is_err());
}

/// The whole way over another core: a read error there, too, is repaired by the owner.
#[test]
fn a_read_error_is_repaired_by_the_owner_of_the_shard() {
    let rig = Rig::with(Level::Raid1, 2, 2, |settings| settings);
    for drive in &rig.drives {
        drive.drive.write_now(MIB, &[8; 4096]).unwrap();
    }
    rig.mood(1).next_reads.borrow_mut().extend([Manner::With(EIO); 2]);
    let mut read = Box::pin(rig.arrays[0].read(MIB, rig.pool.allocate(4096).unwrap()));
    let mut serve = Box::pin(rig.arrays[1].serve());
    assert!(read.as_mut().now_or_never().is_none(), "shard 1 is the other core's");
    rig.arrays[1].endpoint.handle_doorbell();
    assert!(serve.as_mut().now_or_never().is_none());
    rig.arrays[0].endpoint.handle_doorbell();
    let buffer = read.now_or_never().unwrap().unwrap();
    assert_eq!(buffer[..], [8; 4096]);
    assert_eq!((rig.mood(1).read_count.get(), rig.mood(1).write_count.get()), (2, 1));
    assert_eq!(rig.shared.reads_from_other_copies(), 1);
}

/// Where copies may differ, a member that does not take what is answered must be known to be out
/// before it is.
#[test]
fn an_unsynced_read_is_answered_when_all_copies_have_it_or_are_out() {
    let rig =
        Rig::with(Level::Raid1, 2, 1, |settings| Settings { resync_position_bytes: 0, ..settings });
    rig.drives[0].drive.write_now(0, &[1; 4096]).unwrap();
    rig.mood(1).writes.set(Manner::With(EIO));
    let mut read = Box::pin(rig.arrays[0].read(0, rig.pool.allocate(4096).unwrap()));
    assert!(read.as_mut().now_or_never().is_none());
    rig.record();
    assert_eq!(read.now_or_never().unwrap().unwrap()[..], [1; 4096]);
    assert_eq!(rig.states(), [InSync, Failed]);
}

/// An array that takes no writes cannot make copies equal: only the first one is answered.
#[test]
fn unsynced_reads_of_a_stopped_array_take_the_first_copy_only() {
    let rig =
        Rig::with(Level::Raid1, 2, 1, |settings| Settings { resync_position_bytes: 0, ..settings });
    rig.drives[0].drive.write_now(0, &[1; 4096]).unwrap();
    rig.shared.stop_writes();
    assert_eq!(rig.read(0, 4096).unwrap(), [1; 4096]);
    assert_eq!(rig.mood(1).write_count.get(), 0);
    rig.mood(0).reads.set(Manner::With(EIO));
    assert!(rig.read(0, 4096).is_err());
}

/// Safe mode: after a pause the superblocks say "clean", unless a write slips in.
#[test]
fn a_pause_makes_the_array_clean_but_for_writes_under_way() {
    let rig = Rig::new(Level::Raid1, 2);
    rig.mood(1).writes.set(Manner::NotYet);
    let mut write = Box::pin(rig.arrays[0].write(0, rig.data(512, 1), false));
    assert!(write.as_mut().now_or_never().is_none());
    assert!(!rig.shared.try_clean());
    assert_eq!((rig.shared.write_state(), rig.shared.wanted().active), (WriteState::Active, true));
    rig.mood(1).writes.set(Manner::Well);
    assert_eq!(write.now_or_never(), Some(Ok(())));
    assert!(rig.shared.try_clean() && !rig.shared.try_clean());
    let clean = rig.shared.wanted();
    assert_eq!((rig.shared.write_state(), clean.active), (WriteState::Clean, false));
    // The next write waits for "active" again, though "clean" is not even recorded yet.
    let mut write = Box::pin(rig.arrays[0].write(0, rig.data(512, 2), false));
    assert!(write.as_mut().now_or_never().is_none());
    rig.shared.recorded(clean.version);
    assert!(write.as_mut().now_or_never().is_none());
    assert_eq!(rig.on(0, 0), 1);
    rig.record();
    assert_eq!(write.now_or_never(), Some(Ok(())));
    // For good.
    rig.shared.stop_writes();
    assert!(rig.shared.try_clean() && !rig.shared.wanted().active);
    assert_eq!(rig.write(0, 512, 1), Err(ArrayError::NotReady));
}

/// What is wanted of a memory array is done at once: there is nothing to write down.
#[test]
fn an_array_that_nobody_records_goes_on_at_once() {
    let rig = Rig::with(Level::Raid1, 2, 1, |settings| Settings {
        active: false,
        keeper: Arc::new(NoKeeper),
        ..settings
    });
    assert_eq!(rig.write(0, 512, 1), Ok(()));
    rig.mood(0).writes.set(Manner::With(EIO));
    assert_eq!(rig.write(0, 512, 2), Ok(()));
    assert_eq!(rig.read(0, 512).unwrap(), [2; 512]);
}
