//! Arrays over memory drives on one or two cores: what each request does and what it answers. What
//! happens in any order of events is tested by the simulation (`crate::sim`).

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::drive::DriveError;
use crate::geometry::Level;
use crate::memory::MemoryDrive;
use crate::mesh::Mesh;

/// A keeper that counts what it is asked for.
#[derive(Default)]
struct Asked {
    active: AtomicUsize,
}

impl Keeper for Asked {
    fn wake(&self) {
        self.active.fetch_add(1, Ordering::SeqCst);
    }
}

struct Rig {
    arrays: Vec<Array<MemoryDrive>>,
    drives: Vec<MemoryDrive>,
    shared: Arc<Shared>,
    pool: Pool,
    keeper: Arc<Asked>,
}

const DATA_OFFSET: u64 = 8192;

impl Rig {
    fn new(level: Level, members: usize, chunk_bytes: u32, rows_bytes: u64) -> Self {
        Self::with(level, members, chunk_bytes, rows_bytes, 1, true, IN_SYNC)
    }

    fn with(
        level: Level,
        members: usize,
        chunk_bytes: u32,
        component_bytes: u64,
        cores: usize,
        active: bool,
        resync_position_bytes: u64,
    ) -> Self {
        let keeper = Arc::new(Asked::default());
        let geometry = Geometry::new(level, members, chunk_bytes, component_bytes).unwrap();
        let shared = Shared::new(Settings {
            service: 1,
            uuid: [9; 16],
            data_offsets_bytes: vec![DATA_OFFSET; members],
            cores,
            active,
            resync_position_bytes,
            keeper: Arc::clone(&keeper) as Arc<dyn Keeper>,
            ..Settings::new(geometry)
        });
        let drives: Vec<MemoryDrive> =
            (0..members).map(|_| MemoryDrive::new(DATA_OFFSET + component_bytes)).collect();
        let pool = Pool::new(16 << 20, 4 << 20).unwrap();
        let arrays = Mesh::new(cores, Arc::new(|_| {}))
            .into_iter()
            .map(|end| {
                Array::new(Arc::clone(&shared), drives.clone(), Rc::new(end), pool.clone()).unwrap()
            })
            .collect();
        Self { arrays, drives, shared, pool, keeper }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ArrayError> {
        let mut buffer = self.pool.allocate(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        self.arrays[0].write(offset, buffer.freeze(), false).now_or_never().unwrap()
    }

    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, ArrayError> {
        let mut buffer = self.pool.allocate(len).unwrap();
        buffer.fill(0xee);
        match self.arrays[0].read(offset, buffer).now_or_never().unwrap() {
            Ok(buffer) => {
                assert_eq!(buffer.len(), len, "the whole buffer comes back");
                Ok(buffer.to_vec())
            }
            Err(Unread { error, buffer }) => {
                assert_eq!(buffer.map(|buffer| buffer.len()), Some(len));
                Err(error)
            }
        }
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 512) as u8 ^ (at as u8).wrapping_mul(31) ^ seed).collect()
}

fn shapes() -> impl Strategy<Value = (Level, usize, u32)> {
    prop_oneof![
        (1usize..6, 12u32..17).prop_map(|(members, log)| (Level::Raid0, members, 1 << log)),
        (1usize..5).prop_map(|members| (Level::Raid1, members, 0)),
        (2usize..8, 12u32..17).prop_map(|(members, log)| (Level::Raid10, members, 1 << log)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever is written, zeroed and deallocated, wherever: the array is an array of bytes, and
    /// each byte is on every place where md looks for it, and nowhere outside the data areas.
    #[test]
    fn it_is_an_array_of_bytes_in_mds_places(
        (level, members, chunk) in shapes(),
        steps in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>(), 0u8..5), 1..20),
    ) {
        let rig = Rig::new(level, members, chunk, 768 << 10);
        let capacity = rig.shared.geometry().capacity_bytes();
        let mut model = vec![0u8; capacity as usize];
        for (from, len, seed, kind) in steps {
            let from = from.index(model.len() / 512) * 512;
            let len = (len.index(800) * 512).min(model.len() - from);
            let (offset, len_bytes) = (from as u64, len as u64);
            match kind {
                0 | 1 => {
                    let bytes = pattern(len, seed);
                    model[from..from + len].copy_from_slice(&bytes);
                    rig.write(offset, &bytes).unwrap();
                }
                2 => {
                    model[from..from + len].fill(0);
                    let zeroed = rig.arrays[0].write_zeroes(offset, len_bytes, seed & 1 > 0, true);
                    prop_assert_eq!(zeroed.now_or_never(), Some(Ok(())));
                }
                3 => {
                    // Memory drives deallocate with a guarantee.
                    model[from..from + len].fill(0);
                    let gone = rig.arrays[0].deallocate(offset, len_bytes).now_or_never();
                    prop_assert_eq!(gone, Some(Ok(())));
                }
                _ => prop_assert_eq!(&rig.read(offset, len).unwrap()[..], &model[from..from + len]),
            }
        }
        let geometry = rig.shared.geometry();
        for extent in geometry.extents(0, capacity) {
            for copy in 0..extent.copies {
                let place = extent.place(copy);
                let mut on_drive = vec![0; extent.len_bytes as usize];
                rig.drives[place.slot].read_now(DATA_OFFSET + place.offset_bytes, &mut on_drive).unwrap();
                let from = extent.position_bytes as usize;
                prop_assert_eq!(&on_drive[..], &model[from..from + on_drive.len()]);
            }
        }
        for drive in &rig.drives {
            let mut before = vec![1; DATA_OFFSET as usize];
            drive.read_now(0, &mut before).unwrap();
            prop_assert!(before.iter().all(|&byte| byte == 0), "the space before the data was touched");
        }
        prop_assert_eq!(rig.shared.writes_in_flight(), 0);
    }
}

#[test]
fn ranges_beyond_the_end_or_not_in_blocks_are_refused() {
    let rig = Rig::new(Level::Raid1, 2, 0, 1 << 20);
    for (offset, len) in [(1 << 20, 512), ((1 << 20) - 512, 1024), (100, 512), (0, 100)] {
        assert_eq!(rig.read(offset, len), Err(ArrayError::OutOfRange));
        assert_eq!(rig.write(offset, &vec![0; len]), Err(ArrayError::OutOfRange));
        let array = &rig.arrays[0];
        let zeroed = array.write_zeroes(offset, len as u64, false, false).now_or_never();
        assert_eq!(zeroed, Some(Err(ArrayError::OutOfRange)));
    }
    assert_eq!(rig.write(u64::MAX - 511, &[0; 512]), Err(ArrayError::OutOfRange));
    assert_eq!(rig.write(1 << 20, &[]), Ok(()));
    assert_eq!(rig.read(0, 0), Ok(vec![]));
}

#[test]
fn drives_that_do_not_fit_are_refused() {
    let rig = Rig::new(Level::Raid1, 2, 0, 1 << 20);
    let build = |drives: Vec<MemoryDrive>, cores| {
        let end = Mesh::new(cores, Arc::new(|_| {})).remove(0);
        Array::new(Arc::clone(&rig.shared), drives, Rc::new(end), rig.pool.clone()).err()
    };
    let good = || MemoryDrive::new(DATA_OFFSET + (1 << 20));
    assert_eq!(build(vec![good()], 1), Some(SetupError::DriveCount { members: 2, drives: 1 }));
    assert_eq!(build(vec![good(), good()], 2), Some(SetupError::Cores { expected: 1, cores: 2 }));
    let small = MemoryDrive::new(1 << 20);
    let needed_bytes = DATA_OFFSET + (1 << 20);
    let error = SetupError::DriveTooSmall { slot: 1, needed_bytes, size_bytes: 1 << 20 };
    assert_eq!(build(vec![good(), small], 1), Some(error));
    let coarse = MemoryDrive::with_block_size(2 << 20, 16_384);
    assert!(matches!(build(vec![coarse, good()], 1), Some(SetupError::Misaligned { slot: 0, .. })));
}

/// Without an offset nothing may be guessed: at 0 there are superblocks.
#[test]
fn a_member_without_a_data_offset_is_refused() {
    let geometry = Geometry::new(Level::Raid0, 2, 4096, 1 << 20).unwrap();
    let shared =
        Shared::new(Settings { data_offsets_bytes: vec![4096], ..Settings::new(geometry) });
    let drives = vec![MemoryDrive::new(2 << 20), MemoryDrive::new(2 << 20)];
    let end = Rc::new(Mesh::new(1, Arc::new(|_| {})).remove(0));
    let pool = Pool::new(1 << 20, 1 << 20).unwrap();
    let refused = Array::new(shared, drives, end, pool).err();
    assert_eq!(refused, Some(SetupError::NoDataOffset { slot: 1 }));
}

#[test]
fn the_largest_block_of_the_members_is_the_arrays() {
    let rig = Rig::new(Level::Raid0, 2, 65_536, 1 << 20);
    let size = DATA_OFFSET + (1 << 20);
    let drives = vec![MemoryDrive::new(size), MemoryDrive::with_block_size(size, 4096)];
    let end = Rc::new(Mesh::new(1, Arc::new(|_| {})).remove(0));
    let array = Array::new(Arc::clone(&rig.shared), drives, end, rig.pool.clone()).unwrap();
    assert_eq!(array.block_size_bytes(), 4096);
    let unread = array.read(512, rig.pool.allocate(512).unwrap()).now_or_never().unwrap();
    assert_eq!(unread.unwrap_err().error, ArrayError::OutOfRange);
}

#[test]
fn the_first_write_waits_until_the_members_are_marked_active() {
    for level in [Level::Raid0, Level::Raid1] {
        let chunk = if level == Level::Raid0 { 4096 } else { 0 };
        let rig = Rig::with(level, 2, chunk, 1 << 20, 1, false, IN_SYNC);
        let data = || rig.pool.allocate(4096).unwrap().freeze();
        let mut first = Box::pin(rig.arrays[0].write(0, data(), false));
        let mut second = Box::pin(rig.arrays[0].write(65_536, data(), false));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        assert_eq!(rig.keeper.active.load(Ordering::SeqCst), 1, "asked once for both");
        assert!(rig.drives.iter().all(|drive| drive.resident_bytes() == 0), "nothing was written");
        assert!(rig.shared.wanted().active && rig.shared.write_state() == WriteState::Requested);
        rig.shared.record_failed(1, DriveError::NoSpace);
        let error = ArrayError::NoSpace { slot: 1 };
        assert_eq!(first.as_mut().now_or_never(), Some(Err(error)));
        assert_eq!(second.as_mut().now_or_never(), Some(Err(error)));
        let mut third = Box::pin(rig.arrays[0].write(0, data(), false));
        assert!(third.as_mut().now_or_never().is_none());
        assert_eq!(rig.keeper.active.load(Ordering::SeqCst), 2);
        let version = rig.shared.wanted().version;
        rig.shared.recorded(version - 1);
        assert!(third.as_mut().now_or_never().is_none(), "an older version says nothing of it");
        rig.shared.recorded(version);
        assert_eq!(third.as_mut().now_or_never(), Some(Ok(())));
        assert_eq!(rig.write(0, &[1; 512]), Ok(()));
        assert_eq!(rig.keeper.active.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn a_stopped_array_takes_no_writes() {
    let rig = Rig::with(Level::Raid1, 2, 0, 1 << 20, 1, false, IN_SYNC);
    let waiting = rig.pool.allocate(512).unwrap().freeze();
    let mut waiting = Box::pin(rig.arrays[0].write(0, waiting, false));
    assert!(waiting.as_mut().now_or_never().is_none());
    assert_eq!(rig.shared.writes_in_flight(), 0, "a write that waits has not begun");
    rig.shared.stop_writes();
    assert_eq!(waiting.now_or_never(), Some(Err(ArrayError::NotReady)));
    assert_eq!(rig.write(0, &[0; 512]), Err(ArrayError::NotReady));
    rig.shared.recorded(rig.shared.wanted().version);
    assert_eq!(rig.write(0, &[0; 512]), Err(ArrayError::NotReady), "the stop is final");
    assert!(rig.read(0, 512).is_ok());
    assert_eq!(rig.arrays[0].flush().now_or_never(), Some(Ok(())));
}

#[test]
fn another_cores_shard_is_written_by_its_owner() {
    let rig = Rig::with(Level::Raid1, 2, 0, 4 << 20, 2, true, IN_SYNC);
    let mut data = rig.pool.allocate(2 << 20).unwrap();
    data.copy_from_slice(&pattern(2 << 20, 3));
    // Half of shard 0, shard 1, half of shard 2: the middle belongs to the other core.
    let mut write = Box::pin(rig.arrays[0].write(512 << 10, data.freeze(), false));
    let mut serve = Box::pin(rig.arrays[1].serve());
    assert!(write.as_mut().now_or_never().is_none());
    let mut there = vec![0; 512];
    rig.drives[0].read_now(DATA_OFFSET + (1 << 20), &mut there).unwrap();
    assert_eq!(there, vec![0; 512], "core 0 did not write what core 1 owns");
    rig.arrays[1].endpoint.handle_doorbell();
    assert!(serve.as_mut().now_or_never().is_none());
    rig.arrays[0].endpoint.handle_doorbell();
    assert_eq!(write.now_or_never(), Some(Ok(())));
    assert_eq!(rig.read(512 << 10, 2 << 20).unwrap(), pattern(2 << 20, 3));
    drop(serve);
    assert_eq!(rig.shared.failure(), None, "an idle server may go away");
}

#[test]
fn an_abandoned_write_fails_the_array() {
    // With two writes on one range the second waits; dropping it there is harmless.
    let rig = Rig::new(Level::Raid1, 2, 0, 1 << 20);
    let lock = rig.arrays[0].locks.enter(0, 0..4096);
    let data = rig.pool.allocate(4096).unwrap().freeze();
    let mut write = Box::pin(rig.arrays[0].write(0, data, false));
    assert!(write.as_mut().now_or_never().is_none());
    assert_eq!(rig.shared.writes_in_flight(), 1);
    drop(write);
    assert_eq!((rig.shared.writes_in_flight(), rig.shared.failure()), (0, None));
    drop(lock);
    assert_eq!(rig.write(0, &[1; 4096]), Ok(()));
    drop(write::Armed::new(&rig.shared, 4096));
    assert_eq!(rig.shared.failure(), Some(Failure::Abandoned));
    assert_eq!(rig.shared.resync_position_bytes(), 4096);
    let error = ArrayError::WriteFailed(WriteFailure::ArrayFailed);
    assert_eq!(rig.write(0, &[1; 4096]), Err(error));
    assert_eq!(rig.arrays[0].flush().now_or_never(), Some(Err(error)));
    assert_eq!(rig.read(0, 512).unwrap(), [1; 512]);
}

/// Where copies may differ, a read makes them equal before it answers.
#[test]
fn reads_of_unsynced_regions_make_them_equal() {
    let rig = Rig::with(Level::Raid1, 3, 0, 2 << 20, 1, true, 1 << 20);
    for (slot, drive) in rig.drives.iter().enumerate() {
        drive.write_now(DATA_OFFSET, &vec![slot as u8 + 1; 2 << 20]).unwrap();
    }
    let mut seen = [0; 3];
    for block in (0..4096u64).step_by(2) {
        let first = rig.read(block * 512, 512).unwrap()[0];
        if block < 2048 {
            seen[usize::from(first) - 1] += 1;
        } else {
            assert_eq!(first, 1, "block {block}");
        }
    }
    assert!(seen[0] > 0, "{seen:?}");
    for (slot, drive) in rig.drives.iter().enumerate() {
        for block in 0..4096u64 {
            let mut bytes = [0; 512];
            drive.read_now(DATA_OFFSET + block * 512, &mut bytes).unwrap();
            let was_read = block >= 2048 && block.is_multiple_of(2);
            assert_eq!(bytes[0], if was_read { 1 } else { slot as u8 + 1 }, "block {block}");
        }
    }
    // Half in, half out counts as out.
    assert_eq!(rig.read((1 << 20) - 512, 1024).unwrap(), [1; 1024]);
    let status = rig.shared.recovery_status(std::time::Duration::ZERO);
    assert_eq!((status.position_bytes, status.total_bytes), (1 << 20, 2 << 20));
    assert_eq!((status.state, status.eta), (RecoveryState::Resync, None));
}

/// Streams stay on a drive, and different streams go to different drives.
#[test]
fn reads_are_spread_over_the_copies() {
    let rig = Rig::new(Level::Raid1, 2, 0, 8 << 20);
    let copy = |offset: u64| {
        let extent = rig.shared.geometry().extents(offset, 4096).next().unwrap();
        rig.arrays[0].choose(offset, &extent).unwrap().slot
    };
    assert_eq!((copy(0), copy(1 << 20)), (0, 1), "shards take turns");
    rig.read(1 << 20, 65_536).unwrap();
    for at in (0..16).map(|step| (1 << 20) + 65_536 * (step + 1)) {
        assert_eq!(copy(at), 1);
        rig.read(at, 65_536).unwrap();
    }
    assert_eq!(copy(2 << 20), 0);
}
