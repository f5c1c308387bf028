//! Arrays on arrays over memory drives: which byte is whose, and what becomes of a command of which
//! a leaf cannot do its part.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use proptest::prelude::*;

use super::failure_tests::{Manner, Mood, Moody};
use super::*;
use crate::drive::DriveError;
use crate::geometry::{Geometry, Level};
use crate::memory::MemoryDrive;
use crate::mesh::Mesh;

const EIO: DriveError = DriveError::Io { errno: 5 };
const KIB: u64 = 1 << 10;
const LEAF_CHUNK: u32 = 16 << 10;

/// What is wanted is recorded by hand.
struct ByHand;

impl Keeper for ByHand {
    fn wake(&self) {}
}

struct Rig {
    composed: Composed<Moody>,
    leaves: Vec<Leaf<Moody>>,
    /// By leaf and slot.
    drives: Vec<Vec<Moody>>,
    pool: Pool,
}

impl Rig {
    /// Over leaves of these levels and numbers of members, whose data areas begin at `offset` of
    /// each, where something else is before them.
    fn new(leaves: &[(Level, usize)], chunk_bytes: u32, offset: u64) -> Self {
        let endpoint = Rc::new(Mesh::new(1, Arc::new(|_| {})).remove(0));
        let pool = Pool::new(16 << 20, 4 << 20).unwrap();
        let mut rig = (Vec::new(), Vec::new());
        for (service, &(level, members)) in (0..).zip(leaves) {
            let chunk = if level == Level::Raid1 { 0 } else { LEAF_CHUNK };
            // About as much data in each, whatever its level.
            let data = Geometry::new(level, members, chunk, 1 << 20).unwrap().capacity_bytes();
            let size = ((1 << 40) / data).next_multiple_of(u64::from(LEAF_CHUNK));
            let geometry = Geometry::new(level, members, chunk, size).unwrap();
            let keeper = Arc::new(ByHand);
            let shared = Shared::new(Settings { service, keeper, ..Settings::new(geometry) });
            let drive = |_| Moody { drive: MemoryDrive::new(size), mood: Rc::default() };
            let drives: Vec<Moody> = (0..members).map(drive).collect();
            let array =
                Array::new(shared, drives.clone(), Rc::clone(&endpoint), pool.clone()).unwrap();
            rig.0.push(Leaf { array: Rc::new(array), data_offset_bytes: offset });
            rig.1.push(drives);
        }
        let (leaves, drives) = rig;
        let room = leaves.iter().map(|leaf| leaf.array.geometry().capacity_bytes()).min();
        let component = room.unwrap() - offset;
        let geometry = Geometry::new(Level::Raid0, leaves.len(), chunk_bytes, component).unwrap();
        let composed = Composed::new(geometry, leaves.clone()).unwrap();
        Self { composed, leaves, drives, pool }
    }

    fn shared(&self, leaf: usize) -> &Shared {
        self.leaves[leaf].array.shared()
    }

    fn mood(&self, leaf: usize, slot: usize) -> &Mood {
        &self.drives[leaf][slot].mood
    }

    fn data(&self, bytes: &[u8]) -> SharedBuffer {
        let mut buffer = self.pool.allocate(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer.freeze()
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ArrayError> {
        let write = self.composed.write(offset, self.data(bytes), false);
        write.now_or_never().expect("the write waits")
    }

    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, ArrayError> {
        let mut buffer = self.pool.allocate(len).unwrap();
        buffer.fill(0xee);
        match self.composed.read(offset, buffer).now_or_never().expect("the read waits") {
            Ok(buffer) => Ok(buffer.to_vec()),
            Err(Unread { error, buffer }) => {
                assert_eq!(buffer.map(|buffer| buffer.len()), Some(len), "the buffer comes back");
                Err(error)
            }
        }
    }

    /// What a leaf holds.
    fn on(&self, leaf: usize, offset: u64, len: usize) -> Vec<u8> {
        let read = self.leaves[leaf].array.read(offset, self.pool.allocate(len).unwrap());
        read.now_or_never().expect("the read waits").unwrap().to_vec()
    }

    fn record(&self, leaf: usize) {
        let shared = self.shared(leaf);
        shared.recorded(shared.wanted().version);
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 512) as u8 ^ (at as u8).wrapping_mul(31) ^ seed).collect()
}

fn leaves() -> impl Strategy<Value = (Level, usize)> {
    prop_oneof![
        (3usize..6).prop_map(|members| (Level::Raid5, members)),
        (4usize..7).prop_map(|members| (Level::Raid6, members)),
        (2usize..6).prop_map(|members| (Level::Raid10, members)),
        (1usize..4).prop_map(|members| (Level::Raid1, members)),
        (1usize..4).prop_map(|members| (Level::Raid0, members)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever is written, zeroed and deallocated, wherever: it is an array of bytes, dealt to the
    /// leaves chunk by chunk as md's RAID 0 does over arrays, and nothing else in them is touched.
    #[test]
    fn it_is_an_array_of_bytes_dealt_to_the_leaves(
        leaves in prop::collection::vec(leaves(), 1..6),
        chunk_log in 12u32..20,
        offset in (0u64..5).prop_map(|blocks| blocks * 4096),
        steps in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>(), 0u8..6), 1..16),
    ) {
        let chunk = 1u64 << chunk_log;
        let rig = Rig::new(&leaves, 1 << chunk_log, offset);
        let mut model = vec![0u8; rig.composed.geometry().capacity_bytes() as usize];
        for (from, len, seed, kind) in steps {
            let from = from.index(model.len() / 512) * 512;
            // Mostly short ones, some over many chunks.
            let most = if seed & 3 == 0 { 4096 } else { 128 };
            let len = (len.index(most) * 512).min(model.len() - from);
            let (at, len_bytes) = (from as u64, len as u64);
            match kind {
                0..3 => {
                    let bytes = pattern(len, seed);
                    model[from..from + len].copy_from_slice(&bytes);
                    rig.write(at, &bytes).unwrap();
                }
                3 => {
                    model[from..from + len].fill(0);
                    let zeroed = rig.composed.write_zeroes(at, len_bytes, seed & 1 > 0, true);
                    prop_assert_eq!(zeroed.now_or_never(), Some(Ok(())));
                }
                4 => {
                    // Memory drives deallocate with a guarantee; rows only whole ones.
                    let gone = rig.composed.deallocate(at, len_bytes).now_or_never();
                    prop_assert_eq!(gone, Some(Ok(())));
                    let now = rig.read(at, len).unwrap();
                    for (now, before) in now.iter().zip(&mut model[from..from + len]) {
                        prop_assert!(*now == 0 || now == before);
                        *before = *now;
                    }
                }
                _ => prop_assert_eq!(&rig.read(at, len).unwrap()[..], &model[from..from + len]),
            }
        }
        prop_assert_eq!(rig.composed.flush().now_or_never(), Some(Ok(())));
        let count = rig.leaves.len();
        for (number, bytes) in model.chunks_exact(chunk as usize).enumerate() {
            let at = offset + (number / count) as u64 * chunk;
            prop_assert_eq!(&rig.on(number % count, at, chunk as usize)[..], bytes);
        }
        for leaf in 0..count {
            prop_assert!(rig.on(leaf, 0, offset as usize).iter().all(|&byte| byte == 0));
            prop_assert_eq!(rig.shared(leaf).writes_in_flight(), 0);
        }
    }
}

/// Chunks of 64 KiB over three arrays of level 5 with three members each.
fn raid50() -> Rig {
    Rig::new(&[(Level::Raid5, 3); 3], 64 << 10, 8192)
}

#[test]
fn ranges_beyond_the_end_or_not_in_blocks_are_refused() {
    let rig = raid50();
    let end = rig.composed.geometry().capacity_bytes();
    for (offset, len) in [(end, 512), (end - 512, 1024), (100, 512), (0, 100)] {
        assert_eq!(rig.read(offset, len), Err(ArrayError::OutOfRange));
        assert_eq!(rig.write(offset, &vec![0; len]), Err(ArrayError::OutOfRange));
        for act in [true, false] {
            let (zero, free) = (
                rig.composed.write_zeroes(offset, len as u64, false, false),
                rig.composed.deallocate(offset, len as u64),
            );
            let done = if act { zero.now_or_never() } else { free.now_or_never() };
            assert_eq!(done, Some(Err(ArrayError::OutOfRange)));
        }
    }
    assert_eq!((rig.write(end, &[]), rig.read(0, 0)), (Ok(()), Ok(vec![])));
}

#[test]
fn leaves_that_do_not_fit_are_refused() {
    let rig = raid50();
    let leaves = || rig.leaves.clone();
    let geometry = *rig.composed.geometry();
    let build = |geometry, leaves| Composed::new(geometry, leaves).err();
    let two = leaves().into_iter().take(2).collect();
    assert_eq!(build(geometry, two), Some(ComposeError::LeafCount { members: 3, leaves: 2 }));
    let mirror = Geometry::new(Level::Raid1, 3, 0, 1 << 20).unwrap();
    assert_eq!(build(mirror, leaves()), Some(ComposeError::Level));
    let mut moved = leaves();
    moved[1].data_offset_bytes = 8192 + 64 * KIB;
    let size_bytes = moved[1].array.geometry().capacity_bytes();
    let needed_bytes = 8192 + 64 * KIB + geometry.component_bytes();
    let error = ComposeError::LeafTooSmall { slot: 1, needed_bytes, size_bytes };
    assert_eq!(build(geometry, moved), Some(error));
    let mut moved = leaves();
    moved[2].data_offset_bytes = 100;
    assert_eq!(
        build(geometry, moved),
        Some(ComposeError::Misaligned { slot: 2, block_bytes: 512 })
    );
}

/// A leaf that loses a member is degraded, and nobody else is; the write is acknowledged when that is
/// recorded.
#[test]
fn a_degraded_leaf_answers_from_what_it_has() {
    let rig = raid50();
    let bytes = pattern(384 << 10, 3);
    rig.mood(1, 2).writes.set(Manner::With(EIO));
    let mut write = Box::pin(rig.composed.write(0, rig.data(&bytes), true));
    assert!(write.as_mut().now_or_never().is_none(), "acknowledged before it was recorded");
    let degraded = |leaf| rig.shared(leaf).is_degraded();
    assert_eq!([degraded(0), degraded(1), degraded(2)], [false, true, false]);
    rig.record(1);
    assert_eq!(write.now_or_never(), Some(Ok(())));
    assert_eq!(rig.read(0, bytes.len()).unwrap(), bytes);
    // Another one in another leaf: each tolerates its own.
    rig.mood(2, 0).reads.set(Manner::With(DriveError::Gone));
    assert_eq!(rig.read(0, bytes.len()).unwrap(), bytes);
    assert!(rig.shared(2).failure().is_none());
}

#[test]
fn a_failed_leaf_fails_only_what_it_has() {
    let rig = raid50();
    let bytes = pattern(576 << 10, 9);
    rig.write(0, &bytes).unwrap();
    for slot in [0, 1, 2] {
        rig.mood(1, slot).writes.set(Manner::With(EIO));
    }
    let write = |offset: u64, len: usize| {
        let mut write = Box::pin(rig.composed.write(offset, rig.data(&bytes[..len]), false));
        if let Some(done) = write.as_mut().now_or_never() {
            return done;
        }
        rig.record(1);
        write.now_or_never().expect("the write waits")
    };
    // Of the second chunk, alone and with its neighbours.
    for (offset, len) in [(64 * KIB, 128 << 10), (64 * KIB, 4096), (0, 192 << 10), (96 * KIB, 4096)]
    {
        let failed = write(offset, len);
        assert!(matches!(failed, Err(ArrayError::WriteFailed(_))), "{failed:?}");
    }
    for slot in [0, 1, 2] {
        rig.mood(1, slot).reads.set(Manner::With(EIO));
    }
    for (offset, len) in [(64 * KIB, 4096), (0, 192 << 10), (96 * KIB, 64 << 10)] {
        let failed = rig.read(offset, len);
        assert!(
            matches!(failed, Err(ArrayError::ReadFailed { .. } | ArrayError::Unrecovered { .. })),
            "{failed:?}"
        );
    }
    assert!(rig.shared(1).failure().is_some());
    let flushed = rig.composed.flush().now_or_never();
    assert!(matches!(flushed, Some(Err(ArrayError::WriteFailed(_)))), "{flushed:?}");
    let zeroed = rig.composed.write_zeroes(0, 192 * KIB, false, false).now_or_never();
    assert!(matches!(zeroed, Some(Err(ArrayError::WriteFailed(_)))), "{zeroed:?}");
    // The third chunk and the first one of the next row are the others'.
    for leaf in [0, 2] {
        assert!(rig.shared(leaf).failure().is_none());
    }
    let other = pattern(128 << 10, 77);
    rig.write(128 * KIB, &other).unwrap();
    assert_eq!(rig.read(128 * KIB, other.len()).unwrap(), other);
}

/// A medium error of a leaf in order is not held because another leaf has failed.
#[test]
fn whose_error_it_is_decides_whether_a_read_waits() {
    let rig = Rig::new(&[(Level::Raid0, 1), (Level::Raid1, 1)], 64 << 10, 0);
    rig.shared(1).set_hold(true);
    rig.mood(1, 0).writes.set(Manner::With(DriveError::Gone));
    let mut write = Box::pin(rig.composed.write(64 * KIB, rig.data(&[1; 4096]), false));
    assert!(write.as_mut().now_or_never().is_none(), "held");
    rig.mood(0, 0).reads.set(Manner::With(EIO));
    let error = ArrayError::ReadFailed { slot: 0, error: EIO };
    assert_eq!(rig.read(0, 128 << 10), Err(error));
}

#[test]
fn commands_for_a_leaf_that_is_away_are_held_and_done_again() {
    let rig = Rig::new(&[(Level::Raid10, 2), (Level::Raid10, 2)], 64 << 10, 0);
    let bytes = pattern(256 << 10, 5);
    rig.write(0, &bytes).unwrap();
    rig.shared(1).set_hold(true);
    for slot in [0, 1] {
        for manner in [&rig.mood(1, slot).writes, &rig.mood(1, slot).reads] {
            manner.set(Manner::With(DriveError::Gone));
        }
    }
    let newer = pattern(256 << 10, 6);
    let mut write = Box::pin(rig.composed.write(0, rig.data(&newer), false));
    assert!(write.as_mut().now_or_never().is_none());
    rig.record(1);
    assert!(write.as_mut().now_or_never().is_none(), "held");
    let failure = rig.shared(1).failure();
    assert!(matches!(failure, Some(Failure::Member { .. })), "{failure:?}");
    let mut read = Box::pin(rig.composed.read(0, rig.pool.allocate(128 << 10).unwrap()));
    assert!(read.as_mut().now_or_never().is_none(), "held");
    // What is the other leaf's goes on.
    rig.write(128 * KIB, &newer[128 << 10..192 << 10]).unwrap();
    let Some(Failure::Member { slot, .. }) = failure else { return };
    for manner in [&rig.mood(1, slot).writes, &rig.mood(1, slot).reads] {
        manner.set(Manner::Well);
    }
    assert!(rig.shared(1).mend(slot, false), "{failure:?}");
    assert_eq!(write.now_or_never(), Some(Ok(())));
    assert_eq!(read.now_or_never().unwrap().unwrap()[..], newer[..128 << 10]);
    assert_eq!(rig.read(0, newer.len()).unwrap(), newer);
}

#[test]
fn commands_held_for_too_long_are_not_ready() {
    let rig = Rig::new(&[(Level::Raid10, 2), (Level::Raid10, 2)], 64 << 10, 0);
    rig.shared(0).set_hold(true);
    for slot in [0, 1] {
        rig.mood(0, slot).writes.set(Manner::With(DriveError::Gone));
        rig.mood(0, slot).reads.set(Manner::With(DriveError::Gone));
    }
    let mut write = Box::pin(rig.composed.write(0, rig.data(&[7; 128 << 10]), false));
    assert!(write.as_mut().now_or_never().is_none());
    rig.record(0);
    assert!(write.as_mut().now_or_never().is_none());
    rig.shared(0).set_hold(false);
    assert_eq!(write.now_or_never(), Some(Err(ArrayError::NotReady)));
    assert_eq!(rig.read(0, 128 << 10), Err(ArrayError::NotReady));
}

/// A flush reaches every leaf, and what one of them says of it is said.
#[test]
fn flushes_are_of_all_leaves() {
    let rig = raid50();
    assert!(rig.composed.has_volatile_cache());
    let counts = |rig: &Rig| -> Vec<u64> {
        rig.drives.iter().flatten().map(|drive| drive.mood.flush_count.get()).collect()
    };
    let before = counts(&rig);
    assert_eq!(rig.composed.flush().now_or_never(), Some(Ok(())));
    assert!(counts(&rig).iter().zip(&before).all(|(now, before)| now > before));
    rig.mood(2, 1).flushes.set(Manner::With(EIO));
    let mut flush = Box::pin(rig.composed.flush());
    assert!(flush.as_mut().now_or_never().is_none(), "acknowledged before it was recorded");
    assert_eq!(rig.shared(2).member_states()[1], MemberState::Failed);
    rig.record(2);
    assert_eq!(flush.now_or_never(), Some(Ok(())));
    rig.shared(1).lost_caches.fetch_add(1, Ordering::SeqCst);
    let lost = ArrayError::WriteFailed(WriteFailure::CacheLost);
    assert_eq!(rig.composed.flush().now_or_never(), Some(Err(lost)));
    assert_eq!(rig.composed.flush().now_or_never(), Some(Ok(())));
}
