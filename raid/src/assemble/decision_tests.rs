//! What is decided about sets of drives: which start, what they say, and what operators can overrule.

use super::test_medium::TestMedium;
use super::*;
use crate::array::{BadRange, IN_SYNC, LogKind, MemberState, RegionsKind, Wanted};
use crate::device::Medium;
use crate::metadata::bitmap::{BitmapState, MapUnit};
use crate::metadata::private::{PrivateArea, SectionKind};
use crate::metadata::superblock::Superblock;
use crate::metadata::{Consistency, Level};
use MemberState::{Failed, InSync, Missing, Rebuilding};

const MIB: u64 = 1 << 20;
const SMALL: u64 = 16 * MIB;

fn look(drives: &[TestMedium]) -> Vec<Examined> {
    drives.iter().map(|d| examine_medium(d).unwrap()).collect()
}

fn new_array(level: Level, consistency: Consistency) -> NewArray {
    NewArray {
        name: "fast".into(),
        homehost: None,
        level,
        chunk_bytes: 64 << 10,
        uuid: None,
        consistency: Some(consistency),
        assume_clean: false,
    }
}

/// An array on drives that can be zeroed (or not) with a guarantee.
fn array(
    level: Level,
    consistency: Consistency,
    members: usize,
    zeroes: bool,
) -> (Vec<TestMedium>, ArrayHandle<TestMedium>) {
    let drives = TestMedium::drives(&vec![SMALL; members], zeroes);
    let plan = plan_create(&look(&drives), &new_array(level, consistency)).unwrap();
    let handle = create(&plan, drives.clone()).unwrap();
    (drives, handle)
}

fn plan(drives: &[TestMedium]) -> AssemblyPlan {
    plan_assemble(&look(drives), &Expected::default()).unwrap()
}

fn refusal(drives: &[Examined], expected: &Expected) -> AssembleError {
    plan_assemble(drives, expected).unwrap_err()
}

/// Sets or clears a bit of a member's bitmap, behind everybody's back.
fn put_bit(drive: &TestMedium, region: u64, set: bool) {
    let superblock = examine_medium(drive).unwrap().superblock().unwrap().clone();
    let at = superblock.bitmap_place().unwrap().start + 256 + region / 8;
    let mut byte = [0];
    drive.read_at(at, &mut byte).unwrap();
    byte[0] = if set { byte[0] | 1 << (region % 8) } else { byte[0] & !(1 << (region % 8)) };
    drive.put(at, &byte);
}

/// Records that a slot has lost its member; gives back the event count.
fn lose(handle: &mut ArrayHandle<TestMedium>, slot: usize) -> u64 {
    let mut wanted = handle.recorded().clone();
    wanted.members[slot] = Failed;
    let recorded = handle.record(&wanted).unwrap();
    assert!(recorded.lost_member);
    recorded.events
}

#[test]
fn incomplete_sets_start_only_where_nothing_newer_can_be() {
    let kinds = [
        (Level::Raid1, Consistency::Bitmap, 3, 2),
        (Level::Raid5, Consistency::Ppl, 3, 1),
        (Level::Raid6, Consistency::Ppl, 4, 2),
        (Level::Raid10, Consistency::Bitmap, 4, 1),
    ];
    for (level, consistency, members, tolerance) in kinds {
        let (drives, mut handle) = array(level, consistency, members, true);
        let examined = look(&drives);
        // One is not plugged in, and nothing says that it is gone.
        let some = &examined[1..];
        let error = refusal(some, &Expected::default());
        assert!(
            matches!(&error, AssembleError::Incomplete { can_run: true, is_behind: false, missing, .. }
                if missing.len() == 1 && missing[0].0 == 0),
            "{level}: {error}"
        );
        assert!(error.to_string().contains("`--run`"), "{error}");
        let run = Expected { run: true, ..Expected::default() };
        let with_run = plan_assemble(some, &run).unwrap();
        assert_eq!((with_run.members()[0], with_run.risks.len()), (Missing, 1));
        // It is known when members were last lost: never.
        let known = Expected { known_events: Some(0), ..Expected::default() };
        assert!(plan_assemble(some, &known).unwrap().risks.is_empty());
        // The array went on without it: only the others start, and by themselves.
        let events = lose(&mut handle, 0);
        let now = look(&drives);
        assert_eq!(plan_assemble(&now[1..], &Expected::default()).unwrap().order()[0], None);
        assert_eq!(plan_assemble(&now, &Expected::default()).unwrap().left_over.len(), 1);
        // The lost one with others from before is behind what is known.
        let known = Expected { known_events: Some(events), ..Expected::default() };
        let error = refusal(&examined[..members - 1], &known);
        assert!(
            matches!(error, AssembleError::Incomplete { is_behind: true, can_run: true, .. }),
            "{level}: {error}"
        );
        // Too few hold not all data, whatever the operator says.
        let few = now.get(tolerance + 1..).unwrap_or_default();
        if few.is_empty() {
            continue;
        }
        let error = refusal(few, &Expected { run: true, force: true, ..Expected::default() });
        assert!(
            matches!(error, AssembleError::Incomplete { can_run: false, .. }),
            "{level}: {error}"
        );
    }
    let (drives, _) = array(Level::Raid0, Consistency::None, 2, true);
    let run = Expected { run: true, ..Expected::default() };
    let error = refusal(&look(&drives)[..1], &run);
    assert!(matches!(error, AssembleError::Incomplete { can_run: false, .. }), "{error}");
}

#[test]
fn mirrored_pairs_need_one_of_each() {
    for (members, gone, starts) in [
        (4, vec![0, 2], true),
        (4, vec![1, 2], true),
        (4, vec![0, 1], false),
        (5, vec![0, 2], true),
        (5, vec![0, 4], false),
        (5, vec![1, 2], false),
    ] {
        let (drives, _) = array(Level::Raid10, Consistency::Resync, members, true);
        let mut left = look(&drives);
        gone.iter().rev().for_each(|slot| {
            left.remove(*slot);
        });
        let plan = plan_assemble(&left, &Expected { run: true, ..Expected::default() });
        assert_eq!(plan.is_ok(), starts, "{members} without {gone:?}");
    }
}

#[test]
fn diverged_halves_need_a_winner() {
    let (drives, handle) = array(Level::Raid1, Consistency::Resync, 2, true);
    drop(handle);
    let before = look(&drives);
    // Each is started alone, and goes on.
    for alone in 0..2 {
        let run = Expected { run: true, ..Expected::default() };
        let one = [before[alone].clone()];
        let plan = plan_assemble(&one, &run).unwrap();
        let (mut handle, _) = ArrayHandle::assemble(&plan, &one, vec![drives[alone].clone()]);
        // What was missing at the start is recorded as gone with the first change.
        handle.mark_active().unwrap();
        handle.mark_clean().unwrap();
    }
    let both = look(&drives);
    assert!(matches!(refusal(&both, &Expected::default()), AssembleError::Diverged { .. }));
    let run = Expected { run: true, force: true, ..Expected::default() };
    assert!(matches!(refusal(&both, &run), AssembleError::Diverged { .. }));
    for winner in 0..2 {
        let named = Expected { winner: Some(format!("drive-{winner}")), ..Expected::default() };
        let plan = plan_assemble(&both, &named).unwrap();
        assert_eq!(plan.order()[winner], Some(winner));
        assert_eq!(plan.order()[1 - winner], None);
        let loser = &plan.left_over[0];
        assert_eq!((loser.reason, loser.misses.as_ref()), (NotMember::Diverged, None));
    }
    let other = Expected { winner: Some("drive-7".into()), ..Expected::default() };
    assert!(matches!(refusal(&both, &other), AssembleError::Diverged { .. }));
}

#[test]
fn parity_that_was_being_written_without_all_members_needs_a_log() {
    for (level, members) in [(Level::Raid5, 3), (Level::Raid6, 4)] {
        for consistency in [Consistency::Resync, Consistency::Bitmap, Consistency::Ppl] {
            let at = format!("{level} with {consistency}");
            let (drives, mut handle) = array(level, consistency, members, true);
            lose(&mut handle, 1);
            handle.mark_active().unwrap();
            if consistency == Consistency::Bitmap {
                // Nothing is under way as long as no bit is set.
                assert_eq!(plan(&drives).info.resync_from_bytes, None, "{at}");
                drives.iter().for_each(|drive| put_bit(drive, 3, true));
            }
            let found = plan_assemble(&look(&drives), &Expected::default());
            if consistency == Consistency::Ppl {
                let plan = found.unwrap();
                assert_eq!((plan.replay, plan.info.resync_from_bytes), (true, None), "{at}");
                continue;
            }
            let error = found.unwrap_err();
            assert!(matches!(error, AssembleError::DirtyDegraded { .. }), "{at}: {error}");
            let run = Expected { run: true, ..Expected::default() };
            assert!(plan_assemble(&look(&drives), &run).is_err(), "{at}");
            let force = Expected { force: true, ..Expected::default() };
            let plan = plan_assemble(&look(&drives), &force).unwrap();
            assert_eq!((plan.info.resync_from_bytes, plan.dirty.as_ref()), (None, None), "{at}");
            assert_eq!(plan.risks.len(), 1, "{at}");
            // Stopped cleanly it starts.
            handle.mark_clean().unwrap();
            assert_eq!(self::plan(&drives).info.resync_from_bytes, None, "{at}");
        }
    }
}

/// A first sync that is not complete is no parity that could stand for a member.
#[test]
fn parity_that_was_never_synced_cannot_stand_for_a_member() {
    for consistency in [Consistency::Resync, Consistency::Bitmap, Consistency::Ppl] {
        let (drives, mut handle) = array(Level::Raid5, consistency, 3, false);
        handle.checkpoint_resync(2 * MIB).unwrap();
        for active in [false, true] {
            if active {
                handle.mark_active().unwrap();
            }
            let run = Expected { run: true, ..Expected::default() };
            let error = refusal(&look(&drives)[1..], &run);
            assert!(matches!(error, AssembleError::DirtyDegraded { .. }), "{consistency}: {error}");
        }
    }
}

/// While an array with a log is active, how far its first sync was stands in the private headers.
#[test]
fn the_position_of_a_sync_survives_a_crash_where_a_log_is_replayed() {
    for (level, members) in [(Level::Raid5, 3), (Level::Raid6, 4)] {
        let (drives, mut handle) = array(level, Consistency::Ppl, members, false);
        let position = || plan(&drives).info.resync_from_bytes;
        assert_eq!(position(), Some(0));
        handle.mark_active().unwrap();
        let events = handle.info().events;
        for mib in [2, 4] {
            handle.checkpoint_resync(mib * MIB).unwrap();
            assert_eq!(position(), Some(mib * MIB), "{level}");
            assert!(plan(&drives).replay);
        }
        assert_eq!(handle.info().events, events, "only the headers are written");
        handle.checkpoint_resync(u64::MAX).unwrap();
        assert_eq!(position(), None);
        // Somebody else has written the superblocks: nothing is known but what they say.
        for drive in &drives {
            let superblock = examine_medium(drive).unwrap().superblock().unwrap().clone();
            drive.put(4096, superblock.patched(192, &[9]).as_bytes());
        }
        let found = plan(&drives);
        assert_eq!(found.info.resync_from_bytes, Some(0));
        // md keeps its own log, and not ours.
        assert_eq!(found.replay, level == Level::Raid5);
        // And the places of the logs are taken up again.
        let examined = look(&drives);
        let (mut handle, _) = ArrayHandle::assemble(&found, &examined, drives.clone());
        handle.take_over().unwrap();
        let now = look(&drives);
        for drive in &now {
            assert!(matches!(drive.private, PrivateArea::Believed { .. }));
            assert!(drive.kept.ppl == (level == Level::Raid5));
            assert!(drive.kept.write_log == (level == Level::Raid6));
            assert!(drive.kept.degraded_map.is_some());
        }
        assert_eq!(plan(&drives).info.consistency, Consistency::Ppl);
    }
}

#[test]
fn the_bitmap_tells_what_is_dirty() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid10, 4), (Level::Raid5, 3)] {
        let (drives, mut handle) = array(level, Consistency::Bitmap, members, true);
        let size = handle.info().size_bytes();
        handle.mark_active().unwrap();
        assert_eq!((plan(&drives).info.resync_from_bytes, plan(&drives).dirty), (None, None));
        // One member has a bit that others could not take.
        put_bit(&drives[0], 2, true);
        put_bit(&drives[1], 5, true);
        let found = plan(&drives);
        let dirty = found.dirty.clone().unwrap();
        assert_eq!(dirty.ranges(), [2 * MIB..3 * MIB, 5 * MIB..6 * MIB], "{level}");
        assert_eq!(dirty.unit(), MapUnit::of(level));
        assert_eq!(found.info.resync_from_bytes, None);
        // All of them get both.
        let examined = look(&drives);
        let (mut handle, _) = ArrayHandle::assemble(&found, &examined, drives.clone());
        handle.take_over().unwrap();
        for drive in look(&drives) {
            let bitmap = drive.kept.bitmap.unwrap();
            assert_eq!(bitmap.regions, dirty, "{level}: {}", drive.name);
            assert!(bitmap.superblock.events() > 1 << 31);
        }
        let layout = handle.intent_layout(1).unwrap();
        let regions = layout.regions.unwrap();
        // Who goes on writing the first block writes no lower count.
        assert!(regions.superblock.events() > 1 << 31, "{level}");
        assert_eq!(
            (regions.kind, &regions.set, &regions.dirty),
            (RegionsKind::Bitmap, &dirty, &dirty)
        );
        assert_eq!(regions.offsets_bytes, vec![Some(8192); members]);
        assert!(regions.on_all_members && layout.log.is_none());
        // As long as they are dirty no superblock says that everything agrees.
        handle.mark_active().unwrap();
        handle.mark_clean().unwrap();
        assert_eq!(plan(&drives).dirty.as_ref().map(|d| d.len()), Some(2), "{level}");
        for drive in &drives {
            put_bit(drive, 2, false);
        }
        handle.mark_active().unwrap();
        handle.mark_clean().unwrap();
        assert_eq!(plan(&drives).dirty.as_ref().map(|d| d.len()), Some(1), "{level}");
        for drive in &drives {
            put_bit(drive, 5, false);
        }
        handle.mark_active().unwrap();
        handle.mark_clean().unwrap();
        // Bits that are left over from a clean stop say what absent members would miss, no more.
        drives.iter().for_each(|drive| put_bit(drive, 1, true));
        let clean = plan(&drives);
        assert_eq!((clean.dirty, clean.info.resync_from_bytes), (None, None), "{level}");
        // A first sync: all bits from somewhere on.
        let regions = size.min(clean.bitmap.unwrap().regions.covered_bytes()) / MIB;
        (7..regions).for_each(|r| drives.iter().for_each(|drive| put_bit(drive, r, true)));
        handle.mark_active().unwrap();
        let found = plan(&drives);
        let from = found.info.resync_from_bytes.unwrap();
        assert!(from <= size * 7 / regions && found.dirty.unwrap().contains(1), "{level}: {from}");
    }
}

/// Whatever is wrong with all bitmaps: everything is dirty, and they are made anew.
#[test]
fn a_bitmap_that_does_not_count_is_made_anew() {
    let spoil: [fn(&TestMedium); 3] = [
        // Out of date.
        |drive| drive.put(8192 + 24, &1u64.to_le_bytes()),
        |drive| drive.put(8192 + 48, &BitmapState::STALE.bits().to_le_bytes()),
        |drive| drive.put(8192, b"????"),
    ];
    for spoil in spoil {
        let (drives, mut handle) = array(Level::Raid1, Consistency::Bitmap, 2, true);
        handle.mark_active().unwrap();
        drives.iter().for_each(spoil);
        let found = plan(&drives);
        assert_eq!((found.info.resync_from_bytes, found.dirty.clone()), (Some(0), None));
        let examined = look(&drives);
        let (mut handle, _) = ArrayHandle::assemble(&found, &examined, drives.clone());
        handle.take_over().unwrap();
        for drive in look(&drives) {
            assert_eq!(drive.kept.bitmap.unwrap().regions.len(), 13);
        }
        let regions = handle.intent_layout(1).unwrap().regions.unwrap();
        assert_eq!(regions.dirty.len(), 13);
    }
}

/// mdadm 4.4 made this superblock; its bitmap is where it says, with every bit set.
#[test]
fn a_bitmap_that_mdadm_made_is_read() {
    let path =
        format!("{}/src/metadata/superblock/golden/other-1.superblock", env!("CARGO_MANIFEST_DIR"));
    let bytes: [u8; 4096] = std::fs::read(path).unwrap().try_into().unwrap();
    let superblock = Superblock::parse(&bytes).unwrap();
    let geometry = superblock.geometry().unwrap();
    assert_eq!(geometry.level, Level::Raid1);
    let size = superblock.data_offset_bytes() + geometry.component_bytes;
    let drives = TestMedium::drives(&[size], false);
    drives[0].put(4096, &bytes);
    let new = crate::metadata::bitmap::NewBitmap {
        array_uuid: superblock.array_uuid(),
        covered_bytes: geometry.component_bytes,
        region_bytes: 64 << 20,
        events: superblock.events(),
    };
    let head = crate::metadata::bitmap::BitmapSuperblock::create(&new);
    drives[0].put(8192, &head.to_bytes());
    drives[0].put(8192 + 256, &[0xff; 3840]);
    let run = Expected { run: true, ..Expected::default() };
    let found = plan_assemble(&look(&drives), &run).unwrap();
    assert_eq!(found.info.consistency, Consistency::Bitmap);
    assert_eq!(found.info.resync_from_bytes, None, "it was stopped cleanly");
    let bitmap = found.bitmap.clone().unwrap();
    assert_eq!(bitmap.regions.len(), bitmap.regions.regions());
    // Nothing of ours is written there.
    let examined = look(&drives);
    let (mut handle, _) = ArrayHandle::assemble(&found, &examined, drives.clone());
    handle.mark_active().unwrap();
    let now = look(&drives);
    assert_eq!(now[0].private, PrivateArea::Absent);
    assert!(now[0].kept.bitmap.is_some());
}

#[test]
fn bad_blocks_are_recorded_and_found() {
    let (drives, mut handle) = array(Level::Raid5, Consistency::Ppl, 3, true);
    let bad = |start_bytes, end_bytes| BadRange { start_bytes, end_bytes };
    let lists = [
        vec![bad(4096, 8192)],
        vec![bad(0, 512), bad(4096, 8192), bad(MIB, 2 * MIB)],
        vec![bad(MIB, 2 * MIB)],
        vec![],
        vec![bad(0, 4096)],
    ];
    for list in lists {
        handle.record_bad_blocks(1, list.clone()).unwrap();
        let found = plan(&drives);
        assert_eq!(found.slots[1].bad_blocks, list);
        assert!(found.slots[0].bad_blocks.is_empty());
        let has_bad_blocks = look(&drives)[1].superblock().unwrap().has_bad_blocks();
        assert_eq!(has_bad_blocks, !list.is_empty());
    }
    let many = (0..513).map(|i| bad(i * 8192, i * 8192 + 4096)).collect();
    let error = handle.record_bad_blocks(1, many).unwrap_err();
    assert!(matches!(error, UpdateError::Cannot { slot: 1, .. }), "{error}");
    assert_eq!(plan(&drives).slots[1].bad_blocks, [bad(0, 4096)], "nothing has changed");
    // A log that cannot be read: nobody knows what of the member is good.
    drives[1].put(MIB + 8192, &[0; 8]);
    let error = refusal(&look(&drives), &Expected::default());
    assert!(error.to_string().contains("its bad-block log cannot be read"), "{error}");
}

/// A member with bad blocks gets another list, and a crash comes: what stays bad is there, and what
/// is new as soon as it is acknowledged.
#[test]
fn no_crash_forgets_a_bad_block() {
    let (drives, mut handle) = array(Level::Raid6, Consistency::Ppl, 4, true);
    let bad = |i: u64| BadRange { start_bytes: i * 8192, end_bytes: i * 8192 + 4096 };
    let mut before: Vec<BadRange> = Vec::new();
    for list in [vec![], vec![1], vec![1, 2, 70], vec![2, 70, 80], vec![80], vec![], vec![3]] {
        let list: Vec<_> = list.into_iter().map(bad).collect();
        let base = TestMedium::copies(&drives);
        drives[0].journal().borrow_mut().calls.clear();
        handle.record_bad_blocks(2, list.clone()).unwrap();
        let calls = drives[0].journal().borrow().calls.clone();
        for done in 0..=calls.len() {
            for mask in [0u64, 1, 2, 0x80, 0xf0, 0x55, 0xaa] {
                let image = TestMedium::copies(&base);
                calls[..done].iter().for_each(|c| TestMedium::replay(&image, c, u64::MAX));
                calls.get(done).into_iter().for_each(|c| TestMedium::replay(&image, c, mask));
                let found = plan(&image).slots[2].bad_blocks.clone();
                let stays = before.iter().filter(|b| list.contains(b));
                stays.for_each(|b| assert!(found.contains(b), "{b:?} is lost at {done}"));
                if done == calls.len() {
                    assert_eq!(found, list);
                }
                let known = |b: &&BadRange| before.contains(b) || list.contains(b);
                assert!(found.iter().all(|b| known(&b)), "{found:?}");
            }
        }
        before = list;
    }
}

#[test]
fn who_comes_back_is_told_what_it_misses() {
    let (drives, mut handle) = array(Level::Raid1, Consistency::Bitmap, 3, true);
    handle.mark_active().unwrap();
    let gone = look(&drives)[2].clone();
    lose(&mut handle, 2);
    drives[..2].iter().for_each(|drive| put_bit(drive, 4, true));
    let found = plan(&drives);
    let left = &found.left_over[0];
    assert_eq!((left.drive, left.slot, left.reason), (2, Some(2), NotMember::Failed));
    assert_eq!(left.misses.as_ref().unwrap().ranges(), vec![4 * MIB..5 * MIB]);
    // The same while it runs.
    let _ = handle.remove(2).unwrap();
    assert_eq!(handle.missed_by(2, &gone).unwrap().unwrap().ranges(), vec![4 * MIB..5 * MIB]);
    assert_eq!(handle.missed_by(1, &gone).unwrap(), None, "it was another slot's");
    // Bits were cleared since then.
    for drive in &drives[..2] {
        drive.put(8192 + 32, &1000u64.to_le_bytes());
    }
    assert_eq!(plan(&drives).left_over[0].misses, None);
    assert_eq!(handle.missed_by(2, &gone).unwrap(), None);
}

/// A copy of a member that was made while the array ran is put in its place after a clean stop. What
/// was written and cleared after the copy was made has no bit, and was not rebuilt.
#[test]
fn an_older_image_is_told_to_miss_everything() {
    let (drives, mut handle) = array(Level::Raid1, Consistency::Bitmap, 2, true);
    handle.mark_active().unwrap();
    let older = TestMedium::copies(&drives);
    handle.mark_clean().unwrap();
    let set = [drives[0].clone(), older[1].clone()];
    let run = Expected { run: true, ..Expected::default() };
    let found = plan_assemble(&look(&set), &run).unwrap();
    let left = &found.left_over[0];
    assert!(matches!(left.reason, NotMember::Behind { .. }), "{left:?}");
    assert_eq!((left.drive, left.misses.as_ref()), (1, None));
    // Nor is it while the array runs without it, nor at a later start.
    let (mut handle, _) = ArrayHandle::assemble(&found, &look(&set), set.to_vec());
    handle.take_over().unwrap();
    let recorded = handle.recorded().clone();
    handle.record(&recorded).unwrap();
    assert_eq!(handle.missed_by(1, &look(&older)[1]).unwrap(), None);
    assert_eq!(plan(&set).left_over[0].misses, None);
    // The member itself misses what is written from now on.
    put_bit(&drives[0], 4, true);
    let misses = plan(&drives).left_over[0].misses.clone();
    assert_eq!(misses.unwrap().ranges(), vec![4 * MIB..5 * MIB]);
}

#[test]
fn who_may_be_added() {
    let (drives, mut handle) = array(Level::Raid5, Consistency::Ppl, 3, true);
    let spare = &TestMedium::drives(&[SMALL], true)[0];
    let blank = examine_medium(spare).unwrap();
    let taken = handle.add(0, spare.clone(), &blank, false);
    assert!(matches!(taken, Err(AddError::SlotTaken(0))));
    lose(&mut handle, 0);
    assert!(matches!(handle.add(0, spare.clone(), &blank, false), Err(AddError::SlotTaken(0))));
    handle.remove(0).unwrap();
    assert!(matches!(handle.add(3, spare.clone(), &blank, false), Err(AddError::SlotTaken(3))));
    let small = TestMedium::drives(&[SMALL - MIB], true);
    let error = handle.add(0, small[0].clone(), &look(&small)[0], false).unwrap_err();
    assert!(matches!(error, AddError::TooSmall { .. }), "{error}");
    let (other, _) = array(Level::Raid1, Consistency::Resync, 2, true);
    let error = handle.add(0, other[0].clone(), &look(&other)[0], false).unwrap_err();
    assert!(matches!(error, AddError::NotBlank { .. }), "{error}");
    handle.add(0, other[0].clone(), &look(&other)[0], true).unwrap();
    // What was wanted of the old drive is not wanted of this one.
    let mut wanted = handle.recorded().clone();
    (wanted.members[0], wanted.rebuild_from) = (Rebuilding, Some(MIB));
    handle.record(&wanted).unwrap();
    let role = |handle: &ArrayHandle<TestMedium>| handle.member(0).unwrap().superblock().own_role();
    assert_eq!(role(&handle), crate::metadata::superblock::Role::Spare);
    wanted.devices[0] = 7;
    handle.record(&wanted).unwrap();
    assert_eq!(role(&handle), crate::metadata::superblock::Role::Active(0));
    let found = plan_assemble(
        &look(&[drives[1].clone(), other[0].clone(), drives[2].clone()]),
        &Expected::default(),
    );
    let found = found.unwrap();
    assert_eq!(found.members(), [Rebuilding, InSync, InSync]);
    assert_eq!(found.slots[0].log, Some(8192..MIB + 8192));
}

/// Everything that a new array of each kind has, and that a crash in its creation leaves nothing.
#[test]
fn what_is_created_is_whole() {
    let kinds = [
        (Level::Raid0, Consistency::None, 2),
        (Level::Raid1, Consistency::Bitmap, 2),
        (Level::Raid10, Consistency::Resync, 3),
        (Level::Raid5, Consistency::Ppl, 3),
        (Level::Raid5, Consistency::Bitmap, 3),
        (Level::Raid6, Consistency::Ppl, 4),
    ];
    for (level, consistency, members) in kinds {
        for zeroes in [true, false] {
            let at = format!("{level} with {consistency}, zeroes {zeroes}");
            let (drives, handle) = array(level, consistency, members, zeroes);
            let found = plan(&drives);
            let in_sync = zeroes || level == Level::Raid0;
            assert_eq!(found.info, *handle.info(), "{at}");
            assert_eq!(found.info.consistency, consistency, "{at}");
            assert_eq!(found.info.resync_from_bytes, (!in_sync).then_some(0), "{at}");
            assert_eq!(found.members(), vec![InSync; members], "{at}");
            let is_set = found.bitmap.as_ref().map(|b| !b.regions.is_empty());
            assert_eq!(is_set, (consistency == Consistency::Bitmap).then_some(!in_sync), "{at}");
            for drive in look(&drives) {
                let header = drive.private.believed().unwrap();
                assert_eq!(
                    drive.kept.ppl,
                    (level, consistency) == (Level::Raid5, Consistency::Ppl)
                );
                assert_eq!(drive.kept.write_log, level == Level::Raid6, "{at}");
                let has_map = level != Level::Raid0 && consistency != Consistency::Bitmap;
                assert_eq!(drive.kept.degraded_map.is_some(), has_map, "{at}");
                assert_eq!(header.place(SectionKind::DegradedWriteMap).is_some(), has_map);
            }
            crash_in_creation(level, consistency, members, zeroes, &at);
        }
    }
}

fn crash_in_creation(
    level: Level,
    consistency: Consistency,
    members: usize,
    zeroes: bool,
    at: &str,
) {
    let (drives, _) = array(level, consistency, members, zeroes);
    let calls = drives[0].journal().borrow().calls.clone();
    for done in (0..=calls.len()).filter(|d| *d < 24 || d + 10 > calls.len() || d % 256 == 0) {
        let image = TestMedium::drives(&vec![SMALL; members], zeroes);
        calls[..done].iter().for_each(|call| TestMedium::replay(&image, call, u64::MAX));
        let new = new_array(level, consistency);
        match decide(&look(&image), &Expected::default(), &new) {
            Ok(Decision::Create(plan)) => {
                assert!(done < calls.len(), "{at}");
                create(&plan, image.clone()).unwrap();
            }
            Ok(Decision::Assemble(plan)) => {
                // Whatever of bitmaps and logs is missing is made.
                let examined = look(&image);
                let (mut handle, _) = ArrayHandle::assemble(&plan, &examined, image.clone());
                handle.take_over().unwrap();
            }
            Err(error) => panic!("{at}: {done} calls: {error}"),
        }
        let found = plan(&image);
        assert_eq!(found.info.consistency, consistency, "{at}: {done} calls");
        let zeroed = zeroes || level == Level::Raid0;
        assert_eq!(found.info.resync_from_bytes, (!zeroed).then_some(0), "{at}: {done} calls");
    }
}

#[test]
fn the_operator_may_know_that_copies_agree() {
    let drives = TestMedium::drives(&[SMALL; 2], false);
    let new = NewArray { assume_clean: true, ..new_array(Level::Raid1, Consistency::Bitmap) };
    let created = create(&plan_create(&look(&drives), &new).unwrap(), drives.clone()).unwrap();
    assert_eq!(created.resync_from_bytes(), None);
    assert_eq!(plan(&drives).info.resync_from_bytes, None);
}

/// As long as logs are not replayed, superblocks say so, whatever is wanted.
#[test]
fn superblocks_stay_active_until_logs_are_replayed() {
    for (level, members, kind) in
        [(Level::Raid5, 3, LogKind::Ppl), (Level::Raid6, 4, LogKind::WriteLog)]
    {
        let (drives, mut handle) = array(level, Consistency::Ppl, members, true);
        handle.mark_active().unwrap();
        let examined = look(&drives);
        let found = plan(&drives);
        assert!(found.replay);
        let (mut handle, _) = ArrayHandle::assemble(&found, &examined, drives.clone());
        let bad = BadRange { start_bytes: 0, end_bytes: 4096 };
        handle.record_bad_blocks(0, vec![bad]).unwrap();
        assert!(plan(&drives).replay, "{level}");
        let replayed = handle.replay(4096, false).unwrap();
        assert_eq!((replayed.parts, replayed.bad_bytes), (0, 0));
        let layout = handle.intent_layout(replayed.next_generation).unwrap();
        let log = layout.log.unwrap();
        assert_eq!((log.kind, log.places.iter().flatten().count()), (kind, members));
        assert_eq!(layout.regions.unwrap().kind, RegionsKind::DegradedMap);
        let wanted = Wanted { active: false, resync_from: IN_SYNC, ..handle.recorded().clone() };
        handle.record(&wanted).unwrap();
        assert!(!plan(&drives).replay, "{level}");
    }
}

#[test]
fn what_people_are_told() {
    let (drives, mut handle) = array(Level::Raid5, Consistency::Ppl, 3, true);
    handle.record_bad_blocks(0, vec![BadRange { start_bytes: 0, end_bytes: 4096 }]).unwrap();
    lose(&mut handle, 1);
    handle.mark_active().unwrap();
    let drives = look(&drives);
    let plan = plan_assemble(&drives, &Expected::default()).unwrap();
    let report = Report { plan: &plan, drives: &drives };
    let text = report.to_string();
    for line in [
        "  RAID 5 of 3 members, consistency ppl, event count ",
        "  its log is to be replayed\n",
        "  slot 0: drive-0, in sync, 4096 bytes bad\n",
        "  slot 1: nobody, missing\n",
        "  left over: drive-1: it is recorded as failed\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let uuid = crate::metadata::superblock::MdUuid(plan.info.uuid);
    let expected = format!(
        "- name: \"fast\"\n  uuid: \"{uuid}\"\n  level: raid5\n  chunk: 64KiB\n  consistency: ppl\n  \
         members:\n    - \"drive-0\"\n    # slot 1 has no drive\n    - \"drive-2\"\n"
    );
    assert_eq!(report.yaml(), expected);
}
