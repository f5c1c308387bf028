//! Arrays as the drives of others: created, found again, and read and written like drives.

#![expect(clippy::arc_with_non_send_sync, reason = "one thread; what is used shares them")]

use std::sync::{Arc, Mutex};

use super::test_medium::{Call, TestMedium};
use super::*;
use crate::array::MemberState;
use crate::device::Medium;
use crate::device::signature::Contents;
use crate::metadata::superblock::Role;
use crate::metadata::{Consistency, Level};

const MIB: u64 = 1 << 20;
const DRIVE: u64 = 32 * MIB;

type Leaf = Arc<Mutex<ArrayHandle<TestMedium>>>;

fn new_array(name: &str, level: Level, consistency: Option<Consistency>) -> NewArray {
    NewArray {
        name: name.into(),
        homehost: None,
        level,
        chunk_bytes: 64 << 10,
        uuid: None,
        consistency,
        assume_clean: false,
    }
}

fn look(drives: &[TestMedium]) -> Vec<Examined> {
    drives.iter().map(|drive| examine_medium(drive).unwrap()).collect()
}

/// Drives whose insides hold something, as used ones do that were wiped.
fn used(count: usize) -> Vec<TestMedium> {
    let drives = TestMedium::drives(&vec![DRIVE; count], false);
    for (number, drive) in drives.iter().enumerate() {
        for at in (MIB..DRIVE - MIB).step_by(12 << 10) {
            drive.put(at, &[number as u8 + 1; 100]);
        }
    }
    drives
}

fn create_leaf(
    name: &str,
    level: Level,
    consistency: Option<Consistency>,
    drives: &[TestMedium],
) -> Leaf {
    let new = new_array(name, level, consistency);
    let mut plan = plan_create(&look(drives), &new).unwrap();
    plan.blank_ends = true;
    Arc::new(Mutex::new(create(&plan, drives.to_vec()).unwrap()))
}

/// Puts an array together from what is there of it.
fn assemble_leaf(drives: &[TestMedium]) -> Leaf {
    let examined = look(drives);
    // New arrays on used drives were never synced; what is written to them is right all the same.
    let expected = Expected { run: true, force: true, ..Expected::default() };
    let plan = plan_assemble(&examined, &expected).unwrap();
    let (mut handle, _) = ArrayHandle::assemble(&plan, &examined, drives.to_vec());
    handle.take_over().unwrap();
    Arc::new(Mutex::new(handle))
}

fn nest(leaf: &Leaf) -> Nested<TestMedium> {
    let mut handle = leaf.lock().unwrap();
    let replayed = handle.replay(512, false).unwrap();
    let intent = handle.intent_layout(replayed.next_generation).unwrap();
    drop(handle);
    Nested::open(Arc::clone(leaf), intent).unwrap()
}

/// As has to be done after a nested array was written to.
fn empty_logs(leaf: &Leaf) {
    leaf.lock().unwrap().replay(512, false).unwrap();
}

fn shapes() -> Vec<(Level, Option<Consistency>, usize)> {
    use Consistency::{Bitmap, Ppl, Resync};
    vec![
        (Level::Raid5, Some(Ppl), 3),
        (Level::Raid5, Some(Bitmap), 4),
        (Level::Raid6, Some(Ppl), 5),
        (Level::Raid10, Some(Bitmap), 4),
        (Level::Raid10, Some(Resync), 3),
        (Level::Raid1, Some(Bitmap), 2),
        (Level::Raid0, None, 2),
    ]
}

#[test]
fn an_array_is_created_on_arrays_and_found_again_in_any_order() {
    for (level, consistency, members) in shapes() {
        let what = format!("{level} {consistency:?} of {members}");
        let drives = [used(members), used(members), used(members)];
        let leaves: Vec<_> = drives
            .iter()
            .zip(["a", "b", "c"])
            .map(|(drives, name)| create_leaf(name, level, consistency, drives))
            .collect();
        let nested: Vec<_> = leaves.iter().map(nest).collect();
        let examined: Vec<_> = nested.iter().map(|one| examine_medium(one).unwrap()).collect();
        assert!(examined.iter().all(|one| one.contents == Contents::Blank), "{what}");
        assert_eq!(examined[1].name, "array b");
        let plan = plan_create(&examined, &new_array("outer", Level::Raid0, None)).unwrap();
        let handle = create(&plan, nested).unwrap();
        let info = handle.info().clone();
        for nested in handle.into_media() {
            nested.close().unwrap();
        }
        for leaf in &leaves {
            empty_logs(leaf);
            assert!(!leaf.lock().unwrap().is_active(), "{what}: not marked clean");
        }
        drop(leaves);

        // Whoever looks at the drives sees the arrays on them, and nothing is written for that.
        for (number, drives) in drives.iter().enumerate() {
            drives[0].journal().borrow_mut().calls.clear();
            for missing in 0..=members {
                let there = there(drives, missing);
                let examined = look(&there);
                let expected = Expected { run: true, force: true, ..Expected::default() };
                let Ok(plan) = plan_assemble(&examined, &expected) else {
                    assert!(missing < members, "{what}");
                    continue;
                };
                let found = match peek(&plan, &examined, &there) {
                    // It was never synced, which md tells as it tells a crash.
                    Err(NestedError::AwaitsReplay) if plan.replay && missing < members => continue,
                    found => found.unwrap(),
                };
                let superblock = found.superblock().unwrap();
                assert_eq!(superblock.array_uuid(), info.uuid, "{what} without {missing}");
                assert_eq!(superblock.own_role(), Role::Active(number as u16), "{what}");
            }
            assert_eq!(drives[0].journal().borrow().calls, [], "{what}");
        }

        let turned = [&drives[2], &drives[0], &drives[1]];
        let leaves: Vec<_> = turned.iter().map(|drives| assemble_leaf(drives)).collect();
        let nested: Vec<_> = leaves.iter().map(nest).collect();
        let examined: Vec<_> = nested.iter().map(|one| examine_medium(one).unwrap()).collect();
        let plan = plan_assemble(&examined, &Expected::default()).unwrap();
        assert_eq!(plan.order(), [Some(1), Some(2), Some(0)], "{what}");
        assert_eq!(plan.info.geometry, info.geometry);
        // With one of them missing, or another array's in its place, there is none.
        let error = plan_assemble(&examined[..2], &Expected::default()).unwrap_err();
        assert!(matches!(error, AssembleError::Incomplete { .. }), "{what}: {error}");
    }
}

/// All but one, or all.
fn there(drives: &[TestMedium], missing: usize) -> Vec<TestMedium> {
    let kept = drives.iter().enumerate().filter(|(slot, _)| *slot != missing);
    kept.map(|(_, drive)| drive.clone()).collect()
}

/// What is written lies where the engine would have it: each member may be missing afterwards.
#[test]
fn what_is_written_is_there_whoever_is_missing() {
    for (level, consistency, members) in shapes() {
        let what = format!("{level} {consistency:?} of {members}");
        let drives = used(members);
        let leaf = create_leaf("a", level, consistency, &drives);
        let nested = nest(&leaf);
        let data: Vec<u8> = (0..700_u32 << 10).map(|at| (at / 7 + at / 4096) as u8).collect();
        nested.write_durable(3 * MIB - 8192, &data).unwrap();
        nested.write_durable(3 * MIB, &data[..4096]).unwrap();
        assert!(nested.close().unwrap(), "{what}");
        empty_logs(&leaf);
        let mut expected = data;
        expected.copy_within(..4096, 8192);
        let size_bytes = leaf.lock().unwrap().info().size_bytes();
        drop(leaf);
        for missing in 0..=members {
            if level == Level::Raid0 && missing < members {
                continue;
            }
            let images = TestMedium::copies(&there(&drives, missing));
            let nested = nest(&assemble_leaf(&images));
            assert_eq!(nested.is_degraded(), missing < members, "{what}");
            // Any bytes, not only whole blocks.
            let mut read = vec![0xee; expected.len() - 1001];
            nested.read_at(3 * MIB - 8192 + 500, &mut read).unwrap();
            assert!(read[..] == expected[500..expected.len() - 501], "{what} without {missing}");
            assert_eq!(nested.size_bytes(), size_bytes);
            let mut beyond = [0; 2];
            assert!(nested.read_at(size_bytes - 1, &mut beyond).is_err());
            nested.close().unwrap();
        }
    }
}

/// A member that does not take the write is not lost by it: nothing says that it has failed.
#[test]
fn a_write_that_would_lose_a_member_fails() {
    let drives = used(3);
    let leaf = create_leaf("a", Level::Raid5, Some(Consistency::Ppl), &drives);
    let nested = nest(&leaf);
    nested.write_durable(0, &[1; 4096]).unwrap();
    {
        let mut journal = drives[0].journal().borrow_mut();
        journal.fail_after = Some(journal.calls.len());
    }
    let error = nested.write_durable(0, &[2; 4096]).unwrap_err().to_string();
    assert!(error.contains("drive-"), "{error}");
    drives[0].journal().borrow_mut().fail_after = None;
    drop(nested);
    let handle = leaf.lock().unwrap();
    assert_eq!(handle.recorded().members, [MemberState::InSync; 3]);
    assert!(handle.is_active(), "what was being written is looked for at the next start");
}

/// Nothing of what drives held before an array was created on them is taken for what the array
/// holds.
#[test]
fn what_drives_held_before_is_not_the_arrays() {
    let drives = used(3);
    // An md superblock where the array's first chunk will be.
    let victim = TestMedium::drives(&[DRIVE; 2], false);
    create_leaf("old", Level::Raid1, Some(Consistency::Resync), &victim);
    let mut old = [0; 4096];
    victim[0].read_at(4096, &mut old).unwrap();
    for drive in &drives {
        drive.put(4 * MIB + 4096, &old);
    }
    let leaf = create_leaf("a", Level::Raid5, None, &drives);
    assert_eq!(leaf.lock().unwrap().member(0).unwrap().data_offset_bytes(), 4 * MIB);
    let calls = std::mem::take(&mut drives[0].journal().borrow_mut().calls);
    let zeroed: u64 = calls
        .iter()
        .map(|call| match call {
            Call::Write { offset_bytes, data, .. } if *offset_bytes >= 4 * MIB => data.len() as u64,
            _ => 0,
        })
        .sum();
    assert!(zeroed <= 3 * 3 * MIB, "only the ends are written: {zeroed} bytes");
    assert_eq!(examine_medium(&nest(&leaf)).unwrap().contents, Contents::Blank);
}

/// What stands in for a missing member may be wrong until the log is replayed.
#[test]
fn nothing_is_made_of_parity_that_awaits_its_log() {
    let drives = used(3);
    let leaf = create_leaf("a", Level::Raid5, Some(Consistency::Ppl), &drives);
    nest(&leaf).close().unwrap();
    let mut handle = leaf.lock().unwrap();
    // As after the first sync, while it is written to.
    let mut wanted = handle.recorded().clone();
    wanted.resync_from = crate::array::IN_SYNC;
    handle.record(&wanted).unwrap();
    handle.mark_active().unwrap();
    drop(handle);
    let look_at = |there: &[TestMedium]| {
        let examined = look(there);
        let expected = Expected { run: true, ..Expected::default() };
        let plan = plan_assemble(&examined, &expected).unwrap();
        assert!(plan.replay);
        peek(&plan, &examined, there)
    };
    assert_eq!(look_at(&drives).unwrap().contents, Contents::Blank);
    let without = look_at(&drives[1..]);
    assert!(matches!(without, Err(NestedError::AwaitsReplay)), "{without:?}");
}
