//! Creating and assembling on drives in memory and on files; refusals; crash images.

use super::test_medium::{Call, TestMedium};
use super::*;
use crate::device::{Intent, Medium, OpenDevice, open};
use crate::metadata::private::{PrivateArea, Section, SectionFlags, SectionKind};
use crate::metadata::{Consistency, Level};

const MIB: u64 = 1 << 20;

fn new_array(level: Level) -> NewArray {
    NewArray {
        name: "fast".into(),
        homehost: Some("box".into()),
        level,
        chunk_bytes: 64 << 10,
        uuid: None,
        consistency: level.is_redundant().then_some(Consistency::Resync),
        assume_clean: false,
    }
}

/// The drives of a plan whose slots are all filled.
fn order(plan: &AssemblyPlan) -> Vec<usize> {
    plan.order().into_iter().map(|drive| drive.expect("every slot is filled")).collect()
}

fn look(drives: &[TestMedium]) -> Vec<Examined> {
    drives.iter().map(|d| examine_medium(d).unwrap()).collect()
}

fn create_on(drives: &[TestMedium], level: Level) -> ArrayHandle<TestMedium> {
    let plan = plan_create(&look(drives), &new_array(level)).unwrap();
    create(&plan, drives.to_vec()).unwrap()
}

#[test]
fn creates_on_files_and_finds_the_array_again_in_any_order() {
    let dir = tempfile::Builder::new().tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let paths: Vec<_> = (0..4).map(|i| dir.path().join(format!("{i}.img"))).collect();
    for path in &paths {
        std::fs::File::create(path).unwrap().set_len(64 * MIB).unwrap();
    }
    let open_all = |paths: &[std::path::PathBuf]| -> Vec<OpenDevice> {
        paths.iter().map(|p| open(p, Intent::Own).unwrap()).collect()
    };
    let devices = open_all(&paths);
    let examined: Vec<_> = devices.iter().map(|d| examine(d).unwrap()).collect();
    let Ok(Decision::Create(plan)) =
        decide(&examined, &Expected::default(), &new_array(Level::Raid10))
    else {
        panic!("blank files are there to be created on");
    };
    let mut handle = create(&plan, devices).unwrap();
    assert_eq!(handle.resync_from_bytes(), None, "holes are zeros, so the copies agree");
    handle.mark_active().unwrap();
    handle.mark_clean().unwrap();
    let info = handle.info().clone();
    drop(handle);

    let mut paths = paths;
    paths.rotate_left(1);
    let devices = open_all(&paths);
    let examined: Vec<_> = devices.iter().map(|d| examine(d).unwrap()).collect();
    let plan = plan_assemble(&examined, &Expected { uuid: Some(info.uuid), ..Expected::default() });
    let plan = plan.unwrap();
    assert_eq!(plan.info, info);
    assert_eq!(order(&plan), [3, 0, 1, 2]);
    let (handle, unused) = ArrayHandle::assemble(&plan, &examined, devices);
    assert!(unused.is_empty());
    let names: Vec<_> = handle.members().iter().map(|m| m.medium().name()).collect();
    let expected: Vec<_> =
        (0..4).map(|i| dir.path().join(format!("{i}.img")).display().to_string()).collect();
    assert_eq!(names, expected);
}

const SMALL: u64 = 16 * MIB;

/// What a crash can leave of a write of eight sectors: beginnings, ends, single sectors
/// and all but one.
fn tears() -> Vec<u64> {
    let mut masks: Vec<u64> = (0..8).map(|n| (1 << n) - 1).collect();
    masks.extend((1..8).map(|n| 0xff << n & 0xff));
    masks.extend((0..8).flat_map(|n| [1 << n, 0xff & !(1 << n)]));
    masks.sort_unstable();
    masks.dedup();
    masks
}

/// Every state of the drives that a crash within `calls` can leave, with the number of
/// calls that were complete; `base` is what they began from.
fn crash_images(
    base: &[TestMedium],
    calls: &[Call],
    mut check: impl FnMut(usize, Option<u64>, &[TestMedium]),
) {
    for done in 0..=calls.len() {
        let image = |torn: Option<u64>| {
            let image = TestMedium::copies(base);
            calls[..done].iter().for_each(|call| TestMedium::replay(&image, call, u64::MAX));
            if let Some(mask) = torn {
                TestMedium::replay(&image, &calls[done], mask);
            }
            image
        };
        check(done, None, &image(None));
        if let Some(Call::Write { .. }) = calls.get(done) {
            for mask in tears() {
                check(done, Some(mask), &image(Some(mask)));
            }
        }
    }
}

fn take_calls(drives: &[TestMedium]) -> Vec<Call> {
    std::mem::take(&mut drives[0].journal().borrow_mut().calls)
}

fn blank(members: usize, zeroes: bool) -> Vec<TestMedium> {
    TestMedium::drives(&vec![SMALL; members], zeroes)
}

#[test]
fn a_crash_in_the_middle_of_a_creation_leaves_no_array_or_a_whole_one() {
    for (level, members, zeroes) in [
        (Level::Raid0, 2, false),
        (Level::Raid1, 2, true),
        (Level::Raid1, 3, false),
        (Level::Raid10, 4, true),
    ] {
        let drives = blank(members, zeroes);
        let info = create_on(&drives, level).info().clone();
        let calls = take_calls(&drives);
        let in_sync = zeroes || level == Level::Raid0;
        assert_eq!(info.resync_from_bytes, (!in_sync).then_some(0));
        let (mut created, mut whole) = (0, 0);
        crash_images(&blank(members, zeroes), &calls, |done, torn, image| {
            let at = format!("{level}: {done} of {} calls, torn {torn:?}", calls.len());
            let mut examined = look(image);
            examined.reverse();
            match decide(&examined, &Expected::default(), &new_array(level)) {
                Ok(Decision::Assemble(plan)) => {
                    whole += 1;
                    let found = ArrayInfo { events: info.events, ..plan.info.clone() };
                    assert_eq!(found, info, "{at}");
                    assert!(plan.info.events <= 1, "{at}");
                    let reversed: Vec<_> = (0..members).rev().collect();
                    assert_eq!(order(&plan), reversed, "{at}");
                }
                Ok(Decision::Create(plan)) => {
                    created += 1;
                    assert!(done < calls.len(), "{at}: what was reported as created is there");
                    let image: Vec<_> = image.iter().rev().cloned().collect();
                    create(&plan, image.clone()).expect(&at);
                    plan_assemble(&look(&image), &Expected::default()).expect(&at);
                }
                Err(error) => panic!("{at}: {error}"),
            }
        });
        assert!(created > 0 && whole > 0);
    }
}

/// The state that the superblocks tell, as far as the operations matter.
fn told(image: &[TestMedium], at: &str) -> (AssemblyPlan, Vec<Examined>) {
    let examined = look(image);
    let plan =
        plan_assemble(&examined, &Expected::default()).unwrap_or_else(|e| panic!("{at}: {e}"));
    for drive in &examined {
        let believed = matches!(drive.private, PrivateArea::Believed { .. });
        assert!(believed, "{at}: the private area of {} is not believed", drive.name);
    }
    (plan, examined)
}

#[test]
fn a_crash_in_the_middle_of_an_update_leaves_the_old_state_or_the_new() {
    for (level, members) in [(Level::Raid1, 3), (Level::Raid10, 4)] {
        let drives = blank(members, true);
        let mut handle = create_on(&drives, level);
        take_calls(&drives);
        // Before and after each step: where a resync would have to begin.
        type Step = fn(&mut ArrayHandle<TestMedium>);
        let steps: [(Step, Option<u64>); 4] = [
            (|h| h.mark_active().unwrap(), Some(0)),
            (|h| h.mark_clean().unwrap(), None),
            (|h| h.checkpoint_resync(MIB).unwrap(), Some(MIB)),
            (|h| h.mark_active().unwrap(), Some(0)),
        ];
        let mut before = None;
        for (number, (step, after)) in steps.into_iter().enumerate() {
            let base = TestMedium::copies(&drives);
            step(&mut handle);
            let calls = take_calls(&drives);
            assert!(!calls.is_empty());
            crash_images(&base, &calls, |done, torn, image| {
                let at = format!("{level}, step {number}: {done} calls, torn {torn:?}");
                let (plan, examined) = told(image, &at);
                let state = plan.info.resync_from_bytes;
                assert!(state == before || state == after, "{at}: {state:?}");
                if done == calls.len() {
                    assert_eq!(state, after, "{at}");
                }
                if torn.is_none() {
                    crash_again(&plan, &examined, image, &at);
                }
            });
            before = after;
        }
    }
}

/// After one crash another, at every call of the next start.
fn crash_again(plan: &AssemblyPlan, examined: &[Examined], image: &[TestMedium], at: &str) {
    let base = TestMedium::copies(image);
    let (mut handle, _) = ArrayHandle::assemble(plan, examined, image.to_vec());
    take_calls(image);
    handle.mark_active().unwrap();
    let calls = take_calls(image);
    for done in 0..=calls.len() {
        let again = TestMedium::copies(&base);
        calls[..done].iter().for_each(|call| TestMedium::replay(&again, call, u64::MAX));
        let at = format!("{at}, then {done} calls");
        let (next, _) = told(&again, &at);
        let state = next.info.resync_from_bytes;
        assert!(state == plan.info.resync_from_bytes || state == Some(0), "{at}: {state:?}");
    }
    let (last, _) = told(image, at);
    assert_eq!(last.info.resync_from_bytes, Some(0), "{at}");
}

#[test]
fn every_failing_call_is_reported_and_can_be_made_good() {
    let drives = blank(3, true);
    let mut handle = create_on(&drives, Level::Raid1);
    take_calls(&drives);
    let fail_after = |n: Option<usize>| drives[0].journal().borrow_mut().fail_after = n;
    // Active: a header and a superblock on each, twice.
    for calls in 0..12 {
        fail_after(Some(calls));
        let error = handle.mark_active().unwrap_err();
        assert!(error.to_string().contains("drive-"), "{error}");
        assert!(!handle.is_active());
        take_calls(&drives);
        fail_after(None);
        told(&TestMedium::copies(&drives), "after an error");
    }
    handle.mark_active().unwrap();
    take_calls(&drives);
    // Clean: three flushes first.
    for calls in 0..15 {
        fail_after(Some(calls));
        let error = handle.mark_clean().unwrap_err();
        assert_eq!(matches!(error, UpdateError::Flush { .. }), calls < 3, "{error}");
        assert!(handle.is_active());
        take_calls(&drives);
        fail_after(None);
        told(&TestMedium::copies(&drives), "after an error");
    }
    handle.mark_clean().unwrap();
    assert_eq!(told(&drives, "at the end").0.info.resync_from_bytes, None);
    take_calls(&drives);
    fail_after(Some(1));
    let error = handle.checkpoint_resync(0).unwrap_err();
    assert_eq!((error.slot(), handle.resync_from_bytes()), (1, None));
}

#[test]
fn a_creation_that_fails_leaves_the_drives_free() {
    // Three zeroings, three headers, three superblocks; then there is an array.
    for calls in 0..9 {
        let drives = blank(3, true);
        drives[0].journal().borrow_mut().fail_after = Some(calls);
        let plan = plan_create(&look(&drives), &new_array(Level::Raid1)).unwrap();
        let error = create(&plan, drives.clone()).unwrap_err();
        let named = format!("drive-{}", calls % 3);
        assert!(error.to_string().starts_with(&named), "{error}");
        drives[0].journal().borrow_mut().fail_after = None;
        create_on(&drives, Level::Raid1);
        plan_assemble(&look(&drives), &Expected::default()).unwrap();
    }
}

#[test]
fn the_position_of_a_sync_survives_a_clean_stop_and_no_other() {
    let drives = blank(2, false);
    let mut handle = create_on(&drives, Level::Raid1);
    let state = |at| told(&drives, at).0.info.resync_from_bytes;
    assert_eq!(state("created"), Some(0));
    handle.checkpoint_resync(2 * MIB + 100).unwrap();
    assert_eq!(state("idle"), Some(2 * MIB), "whole sectors");
    handle.mark_active().unwrap();
    handle.checkpoint_resync(5 * MIB).unwrap();
    assert_eq!(state("running"), Some(0), "a crash now resyncs the whole array");
    assert_eq!(handle.resync_from_bytes(), Some(5 * MIB));
    handle.mark_clean().unwrap();
    assert_eq!(state("stopped"), Some(5 * MIB));
    handle.mark_active().unwrap();
    handle.checkpoint_resync(u64::MAX).unwrap();
    handle.mark_clean().unwrap();
    assert_eq!(state("synced"), None);
}

#[test]
fn raid_0_has_nothing_to_sync() {
    let drives = blank(2, false);
    let mut handle = create_on(&drives, Level::Raid0);
    handle.mark_active().unwrap();
    let plan = told(&drives, "active").0;
    assert_eq!((plan.info.resync_from_bytes, plan.info.events), (None, 3));
    handle.checkpoint_resync(0).unwrap();
    assert_eq!(handle.resync_from_bytes(), None);
}

fn refusal(drives: &[Examined], expected: &Expected) -> String {
    plan_assemble(drives, expected).unwrap_err().to_string()
}

/// Puts a superblock on a drive as a stranger would, and looks again.
fn rewritten(drive: &TestMedium, offset: usize, bytes: &[u8]) -> Examined {
    let examined = examine_medium(drive).unwrap();
    let superblock = examined.superblock().unwrap().patched(offset, bytes);
    drive.put(4096, superblock.as_bytes());
    examine_medium(drive).unwrap()
}

/// Offsets in the superblock.
const EVENTS: usize = 200;
const ROLES: usize = 256;
const DATA_SIZE: usize = 136;

#[test]
fn members_are_told_from_strangers() {
    let any = Expected::default();
    let array = blank(4, true);
    let info = create_on(&array, Level::Raid10).info().clone();
    let other = blank(2, true);
    create_on(&other, Level::Raid1);
    let (array, other) = (look(&array), look(&other));

    assert_eq!(refusal(&[], &any), "no drives were given");
    let names = Expected { last_known: vec![(2, "nvme-C".into())], ..any.clone() };
    let missing = refusal(&[array[0].clone(), array[3].clone()], &names);
    assert!(missing.contains("slot 1 and slot 2 (last seen as nvme-C) of 4 missing"), "{missing}");
    let strange = [array[0].clone(), other[0].clone()];
    assert!(
        refusal(&strange, &any).starts_with("drive-0 is member 0 of 2 of the md array box:fast")
    );
    let twice = [array[0].clone(), array[1].clone(), array[1].clone()];
    assert!(refusal(&twice, &any).contains("drive-1 and drive-1 both are slot 1"));
    let wrong = Expected { uuid: Some(uuid::Uuid::from_u128(9)), ..any.clone() };
    assert!(refusal(&array, &wrong).contains("and not of array 00000000:00000000:"));
    let blank = look(&blank(2, true));
    assert!(refusal(&blank, &wrong).starts_with("none of the drives belongs to array"));
    assert!(refusal(&blank, &any).starts_with("drive-0 and drive-1 hold no array"));
    let partly = [array[0].clone(), blank[0].clone()];
    let text = refusal(&partly, &any);
    assert!(text.starts_with("drive-0 is blank, but drive-0 belongs to array"), "{text}");
    let level = Expected { level: Some(Level::Raid1), ..any.clone() };
    let text = refusal(&array, &level);
    assert!(
        text.contains("level RAID 10 on its drives, but the configuration says RAID 1"),
        "{text}"
    );
    let chunk = Expected { chunk_bytes: Some(4096), ..any.clone() };
    assert!(refusal(&array, &chunk).contains("chunk 64 KiB on its drives"));
    let right = Expected {
        uuid: Some(info.uuid),
        level: Some(Level::Raid10),
        chunk_bytes: Some(64 << 10),
        ..Expected::default()
    };
    assert_eq!(plan_assemble(&array, &right).unwrap().info, info);

    let mut file = array[0].clone();
    file.kind = Some(crate::device::Kind::File { device: 1, inode: 2 });
    let link = Examined { name: "link".into(), ..file.clone() };
    assert!(refusal(&[file, link], &any).starts_with("drive-0 and link are the same drive"));
}

#[test]
fn foreign_drives_are_refused_by_name() {
    let drives = blank(2, true);
    drives[1].put(1024 + 56, &[0x53, 0xef]);
    let decide = |drives: &[TestMedium]| {
        decide(&look(drives), &Expected::default(), &new_array(Level::Raid1))
            .unwrap_err()
            .to_string()
    };
    let text = decide(&drives);
    assert!(text.starts_with("drive-1 holds an ext2, ext3 or ext4 file system"), "{text}");
    assert!(text.ends_with("`raidfabric array create FILE --overwrite DRIVE`"), "{text}");
    drives[1].put(1024 + 56, &[0; 2]);
    drives[1].put(SMALL - 1, &[1]);
    let text = decide(&drives);
    assert!(text.contains("drive-1 holds data of an unknown kind (byte 16777215"), "{text}");
    // One drive of a finished array, one blank.
    let drives = blank(2, true);
    create_on(&drives, Level::Raid1);
    let mixed = [drives[0].clone(), blank(2, true)[1].clone()];
    assert!(decide(&mixed).starts_with("drive-1 is blank, but drive-0 belongs to array"));
    let error = plan_create(&look(&mixed), &new_array(Level::Raid1)).unwrap_err().to_string();
    assert!(error.starts_with("drive-0 is member 0 of 2 of the md array box:fast"), "{error}");
}

/// A configured UUID is one of an array that exists: blank drives are the wrong ones.
#[test]
fn nothing_is_created_in_the_place_of_an_array_that_has_a_uuid() {
    let drives = blank(2, true);
    let uuid = uuid::Uuid::from_u128(9);
    let expected = Expected { uuid: Some(uuid), ..Expected::default() };
    let refused = |drives: &[Examined]| {
        decide(drives, &expected, &new_array(Level::Raid1)).unwrap_err().to_string()
    };
    assert!(refused(&look(&drives)).starts_with("none of the drives belongs to array"));
    // Nor over what another creation has left.
    let left = (1..64).find_map(|writes| {
        let drives = blank(2, true);
        drives[0].journal().borrow_mut().fail_after = Some(writes);
        let plan = plan_create(&look(&drives), &new_array(Level::Raid1)).unwrap();
        create(&plan, drives.clone()).is_err().then_some(())?;
        let left = look(&drives);
        (left[0].is_unfinished() && !left[1].is_unfinished()).then_some(left)
    });
    let left = left.expect("a creation that is cut short between its two drives");
    assert!(refused(&left).contains("and not of array 00000000:00000000:00000000:00000009"));
    // Without one they count as blank.
    let decision = decide(&left, &Expected::default(), &new_array(Level::Raid1)).unwrap();
    assert!(matches!(decision, Decision::Create(_)));
}

#[test]
fn impossible_arrays_are_refused() {
    let error = |sizes: &[u64], level, chunk_bytes| {
        let drives = TestMedium::drives(sizes, true);
        let new = NewArray { chunk_bytes, ..new_array(level) };
        plan_create(&look(&drives), &new).unwrap_err().to_string()
    };
    let chunk = 64 << 10;
    assert_eq!(error(&[SMALL], Level::Raid1, chunk), "RAID 1 needs 2 to 128 drives, not 1");
    assert_eq!(error(&[], Level::Raid0, chunk), "RAID 0 needs 1 to 128 drives, not 0");
    assert_eq!(error(&[SMALL; 2], Level::Raid5, chunk), "RAID 5 needs 3 to 128 drives, not 2");
    assert_eq!(error(&[SMALL; 3], Level::Raid6, chunk), "RAID 6 needs 4 to 128 drives, not 3");
    let policies = [
        (Level::Raid0, Consistency::Bitmap),
        (Level::Raid1, Consistency::Ppl),
        (Level::Raid10, Consistency::None),
    ];
    for (level, consistency) in policies {
        let new = NewArray { consistency: Some(consistency), ..new_array(level) };
        let text = plan_create(&look(&blank(4, true)), &new).unwrap_err().to_string();
        assert_eq!(text, format!("{level} cannot have consistency {consistency}"));
    }
    for bad in [0, 2048, 12 << 10, 2 << 20] {
        assert!(error(&[SMALL; 2], Level::Raid0, bad).starts_with(&format!("a chunk of {bad}")));
    }
    let small = error(&[SMALL, SMALL - 4096], Level::Raid0, chunk);
    assert!(small.starts_with("drive-1: it has 16773120 bytes"), "{small}");
}

#[test]
fn the_highest_event_count_rules() {
    let any = Expected::default();
    let drives = blank(2, true);
    let mut handle = create_on(&drives, Level::Raid1);
    handle.mark_active().unwrap();
    handle.mark_clean().unwrap();
    let events = handle.info().events;
    // One behind is a crash between two members; two behind has missed something.
    rewritten(&drives[1], EVENTS, &(events - 1).to_le_bytes());
    let mut examined = look(&drives);
    assert_eq!(plan_assemble(&examined, &any).unwrap().info.events, events);
    examined.reverse();
    assert_eq!(order(&plan_assemble(&examined, &any).unwrap()), [1, 0]);
    let old = rewritten(&drives[1], EVENTS, &(events - 2).to_le_bytes());
    let text = refusal(&look(&drives), &any);
    assert!(text.contains("slot 1 of 2 missing. drive-1 cannot take their place"), "{text}");
    // And what the old one says about its state counts for nothing.
    assert!(matches!(old.private, PrivateArea::Void { .. }));
}

/// A count that cannot be raised any more would begin again at 0, and the newest be the oldest.
#[test]
fn an_event_count_at_its_end_is_refused() {
    let drives = blank(2, true);
    create_on(&drives, Level::Raid1);
    for events in [u64::MAX, u64::MAX - 1] {
        let examined: Vec<_> =
            drives.iter().map(|drive| rewritten(drive, EVENTS, &events.to_le_bytes())).collect();
        let Ok(plan) = plan_assemble(&examined, &Expected::default()) else { continue };
        let (mut handle, _) = ArrayHandle::assemble(&plan, &examined, drives.clone());
        handle.mark_active().unwrap();
        assert!(handle.info().events > events);
    }
}

/// A member's image from before (a backup, a snapshot, a mirror that was split off) is not taken
/// for the member if anything may have been written since: it would be read as if it were in sync.
#[test]
fn an_older_image_of_a_member_is_refused() {
    for level in [Level::Raid0, Level::Raid1] {
        let drives = blank(2, true);
        let mut handle = create_on(&drives, level);
        let mut images = vec![TestMedium::copies(&drives)];
        for _ in 0..2 {
            handle.mark_active().unwrap();
            images.push(TestMedium::copies(&drives));
            handle.mark_clean().unwrap();
            images.push(TestMedium::copies(&drives));
        }
        // Between any two of these the array was active.
        for (newer, now) in images.iter().enumerate() {
            for (older, then) in images[..newer].iter().enumerate() {
                for slot in 0..2 {
                    let mut mixed = look(now);
                    mixed[slot] = look(then)[slot].clone();
                    let plan = plan_assemble(&mixed, &Expected::default());
                    let at = format!("{level}: member {slot} of image {older} in image {newer}");
                    // RAID 1 goes on without it, RAID 0 cannot.
                    let is_member = plan.is_ok_and(|plan| plan.order()[slot].is_some());
                    assert!(!is_member, "{at} is believed");
                }
            }
        }
    }
}

/// The same for a resync of an array that nobody writes to: the image lacks what was synced.
#[test]
fn an_image_from_before_a_checkpoint_does_not_count_as_synced() {
    let drives = blank(2, false);
    let mut handle = create_on(&drives, Level::Raid1);
    let before = TestMedium::copies(&drives);
    handle.checkpoint_resync(u64::MAX).unwrap();
    let mut mixed = look(&drives);
    mixed[1] = look(&before)[1].clone();
    let Ok(plan) = plan_assemble(&mixed, &Expected::default()) else { return };
    assert!(plan.order()[1].is_none() || plan.info.resync_from_bytes.is_some());
}

#[test]
fn roles_come_from_the_newest() {
    let any = Expected::default();
    let array = || {
        let drives = blank(2, true);
        create_on(&drives, Level::Raid1);
        drives
    };
    // The newest says that the other has failed: it is out, though its events fit, and the array
    // goes on without it.
    let drives = array();
    rewritten(&drives[0], ROLES + 2, &[0xfe, 0xff]);
    rewritten(&drives[0], EVENTS, &2u64.to_le_bytes());
    let plan = plan_assemble(&look(&drives), &any).unwrap();
    assert_eq!(plan.order(), [Some(0), None]);
    assert_eq!((plan.left_over[0].slot, plan.left_over[0].reason), (Some(1), NotMember::Failed));
    // The older one thinks so of the newest: it went on without it.
    let drives = array();
    rewritten(&drives[0], EVENTS, &2u64.to_le_bytes());
    rewritten(&drives[1], ROLES, &[0xfe, 0xff]);
    let text = refusal(&look(&drives), &any);
    assert!(text.contains("slot 1 of 2 missing. drive-1 cannot take"), "{text}");
    // Both say so of each other.
    let drives = array();
    rewritten(&drives[0], ROLES + 2, &[0xfe, 0xff]);
    rewritten(&drives[1], ROLES, &[0xfe, 0xff]);
    let text = refusal(&look(&drives), &any);
    assert!(text.starts_with("drive-0 and drive-1 each record the other as failed"), "{text}");
    // A spare of the same array is not needed, and does not hinder.
    let drives = array();
    let mut examined = look(&drives);
    let mut spare = examined[1].clone();
    spare.name = "spare".into();
    let superblock = examined[1].superblock().unwrap();
    let third = superblock.patched(160, &2u32.to_le_bytes()).patched(EVENTS, &0u64.to_le_bytes());
    spare.contents = crate::device::signature::Contents::Md(Box::new(third));
    spare.private = PrivateArea::Absent;
    examined.insert(0, spare);
    let plan = plan_assemble(&examined, &any).unwrap();
    assert_eq!(order(&plan), [1, 2]);
    assert_eq!(
        plan.left_over.iter().map(|l| (l.drive, l.reason)).collect::<Vec<_>>(),
        [(0, NotMember::Spare)]
    );
}

#[test]
fn members_that_disagree_are_refused() {
    let any = Expected::default();
    let drives = blank(2, true);
    create_on(&drives, Level::Raid0);
    let examined = look(&drives);
    let sectors = examined[0].superblock().unwrap().geometry().unwrap().component_bytes / 512;
    rewritten(&drives[1], DATA_SIZE, &(sectors - 128).to_le_bytes());
    assert!(refusal(&look(&drives), &any).contains("members of unequal size is not served"));
    // Less than a chunk more does not matter to md either.
    rewritten(&drives[1], DATA_SIZE, &(sectors + 1).to_le_bytes());
    plan_assemble(&look(&drives), &any).unwrap();
    // The chunk size.
    rewritten(&drives[1], 88, &256u32.to_le_bytes());
    assert!(refusal(&look(&drives), &any).contains("describe different arrays"));
    // A drive that ends before its data does.
    let mut short = examined;
    short[0].size_bytes = 10 * MIB;
    assert!(refusal(&short, &any).starts_with("drive-0 has 10485760 bytes, but its data ends"));
}

#[test]
fn a_later_programs_private_area_is_left_alone() {
    let any = Expected::default();
    let drives = blank(2, true);
    create_on(&drives, Level::Raid1);
    let mut examined = look(&drives);
    let PrivateArea::Believed { header, .. } = &mut examined[1].private else { panic!("fresh") };
    let section =
        |flags| Section { kind: SectionKind::Other(99), flags, offset_bytes: 0, len_bytes: 4096 };
    header.sections = vec![section(SectionFlags::empty())];
    plan_assemble(&examined, &any).unwrap();
    let PrivateArea::Believed { header, .. } = &mut examined[1].private else { panic!("fresh") };
    header.sections = vec![section(SectionFlags::MUST_UNDERSTAND)];
    assert!(refusal(&examined, &any).contains("section of unknown kind Other(99)"));
    // A header of another version, whole.
    let data = 3 * MIB;
    let mut bytes = [0; 4096];
    drives[0].read_at(data - 65536, &mut bytes).unwrap();
    bytes[12] = 2;
    bytes[8..12].fill(0);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes) as u32;
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    drives[0].put(data - 65536, &bytes);
    assert!(refusal(&look(&drives), &any).contains("version 2, which a later raidfabric wrote"));
}

#[test]
fn the_private_area_of_an_array_that_md_made_is_never_written() {
    let drives = blank(2, true);
    create_on(&drives, Level::Raid1);
    let data = 3 * MIB;
    for drive in &drives {
        drive.put(data - 65536, &[7; 4096]);
        drive.put(data - 131_072, &[7; 4096]);
    }
    let examined = look(&drives);
    let plan = plan_assemble(&examined, &Expected::default()).unwrap();
    let (mut handle, _) = ArrayHandle::assemble(&plan, &examined, drives.clone());
    take_calls(&drives);
    handle.mark_active().unwrap();
    let superblocks_only = take_calls(&drives)
        .iter()
        .all(|call| matches!(call, Call::Write { offset_bytes: 4096, .. }));
    assert!(superblocks_only);
    assert!(look(&drives).iter().all(|d| d.private == PrivateArea::Absent));
}

#[test]
fn a_void_private_area_is_taken_up_again() {
    let drives = blank(2, true);
    create_on(&drives, Level::Raid1);
    // md was here: same events, another time.
    for drive in &drives {
        rewritten(drive, 192, &[1, 2, 3]);
    }
    let examined = look(&drives);
    assert!(examined.iter().all(|d| matches!(d.private, PrivateArea::Void { .. })));
    let plan = plan_assemble(&examined, &Expected::default()).unwrap();
    let (mut handle, _) = ArrayHandle::assemble(&plan, &examined, drives.clone());
    handle.mark_active().unwrap();
    told(&drives, "taken up");
}

#[test]
fn wiping_makes_blank_and_a_crash_in_it_leaves_no_array() {
    let drives = blank(2, true);
    create_on(&drives, Level::Raid1);
    drives[0].put(0, b"boot");
    drives[0].put(SMALL - 512, b"EFI PART");
    take_calls(&drives);
    let base = TestMedium::copies(&drives);
    wipe(&drives[0]).unwrap();
    assert_eq!(look(&drives)[0].contents, crate::device::signature::Contents::Blank);
    let mut headers = [1; 4096];
    drives[0].read_at(3 * MIB - 131_072, &mut headers).unwrap();
    assert_eq!(headers, [0; 4096]);
    let calls = take_calls(&drives);
    for done in 1..calls.len() {
        let image = TestMedium::copies(&base);
        calls[..done].iter().for_each(|call| TestMedium::replay(&image, call, u64::MAX));
        plan_assemble(&look(&image), &Expected::default()).unwrap_err();
        wipe(&image[0]).unwrap();
        assert_eq!(look(&image)[0].contents, crate::device::signature::Contents::Blank);
    }
}

/// A wiped drive must be blank to whoever looks next: btrfs keeps a second superblock at 64 MiB,
/// and a wipe that left it made every drive that had once been btrfs refused as foreign.
#[test]
fn wiping_reaches_signatures_beyond_the_first_mebibyte() {
    for (offset, signature) in [(64 * MIB + 0x40, &b"_BHRfS_M"[..]), (MIB, &[0x0d, 0xd0, 1, 0xc0])]
    {
        let drives = TestMedium::drives(&[80 * MIB], false);
        drives[0].put(offset, signature);
        drives[0].put(70 * MIB, b"data");
        assert_ne!(look(&drives)[0].contents, crate::device::signature::Contents::Blank);
        wipe(&drives[0]).unwrap();
        assert_eq!(look(&drives)[0].contents, crate::device::signature::Contents::Blank);
        let mut data = [0; 4];
        drives[0].read_at(70 * MIB, &mut data).unwrap();
        assert_eq!(&data, b"data", "data is not wiped");
    }
}

/// Four superblocks of one RAID 10, to be changed at will.
fn four() -> Vec<Examined> {
    static FOUR: std::sync::OnceLock<Vec<Examined>> = std::sync::OnceLock::new();
    let make = || {
        let drives = blank(4, true);
        create_on(&drives, Level::Raid10);
        look(&drives)
    };
    FOUR.get_or_init(make).clone()
}

proptest::proptest! {
    /// Whatever the superblocks say, in whatever order: an array is put together only from
    /// drives that fit, and the order makes no difference.
    #[test]
    fn only_what_fits_is_put_together(
        // Events behind the highest, a role table's entry that is changed, and to what.
        changes in proptest::collection::vec(
            (0u64..3, 0usize..12, proptest::sample::select(vec![0u16, 1, 2, 3, 4, 0xffff, 0xfffe])),
            4,
        ),
        subset in proptest::sample::subsequence(vec![0usize, 1, 2, 3], 3..=4),
        rotation in 0usize..4,
    ) {
        let mut drives = four();
        for (drive, (behind, entry, role)) in drives.iter_mut().zip(changes) {
            let crate::device::signature::Contents::Md(superblock) = &mut drive.contents else {
                panic!("a member");
            };
            **superblock = superblock.patched(EVENTS, &(9 - behind).to_le_bytes());
            // Most changes hit none of the entries that matter.
            if entry < 4 {
                **superblock = superblock.patched(ROLES + 2 * entry, &role.to_le_bytes());
            }
        }
        let mut chosen: Vec<_> = subset.iter().map(|i| drives[*i].clone()).collect();
        let first = plan_assemble(&chosen, &Expected::default());
        let names = |plan: &AssemblyPlan, drives: &[Examined]| -> Vec<String> {
            let name = |i: Option<usize>| i.map_or_else(String::new, |i| drives[i].name.clone());
            plan.order().into_iter().map(name).collect()
        };
        let before = first.as_ref().ok().map(|plan| (names(plan, &chosen), plan.info.clone()));
        if let Ok(plan) = &first {
            let members: Vec<_> =
                plan.order().iter().map(|i| Some(chosen[(*i)?].superblock().unwrap())).collect();
            use crate::metadata::superblock::Role;
            let is_active = |s: &&crate::metadata::superblock::Superblock| {
                matches!(s.own_role(), Role::Active(0..4))
            };
            let all = || chosen.iter().filter_map(Examined::superblock).filter(is_active);
            let highest = all().map(|s| s.events()).max().unwrap();
            for (slot, member) in (0u16..).zip(&members) {
                // Only who is recorded as gone may be missing, or is here and too old.
                let Some(member) = member else {
                    let mut newest = all().filter(|s| s.events() == highest);
                    let is_gone = newest.all(|s| !s.roles().holds(slot));
                    let own = Role::Active(slot);
                    let is_old = all().any(|s| s.own_role() == own && s.events() + 1 < highest);
                    proptest::prop_assert!(is_gone || is_old);
                    continue;
                };
                let role = crate::metadata::superblock::Role::Active(slot);
                proptest::prop_assert_eq!(member.own_role(), role);
                proptest::prop_assert!(member.events() + 1 >= highest);
            }
        }
        let middle = rotation % chosen.len();
        chosen.rotate_left(middle);
        let second = plan_assemble(&chosen, &Expected::default());
        let after = second.as_ref().ok().map(|plan| (names(plan, &chosen), plan.info.clone()));
        proptest::prop_assert_eq!(before, after);
        chosen.reverse();
        let third = plan_assemble(&chosen, &Expected::default());
        proptest::prop_assert_eq!(third.is_ok(), first.is_ok());
    }

    /// The superblock's arithmetic and the engine's are the same.
    #[test]
    fn the_engine_has_the_same_shape(
        level in 0usize..3,
        members in 2usize..=128,
        chunk_shift in 12u32..=20,
        component_mib in 1u64..1 << 30,
    ) {
        let level = [Level::Raid0, Level::Raid1, Level::Raid10][level];
        let chunk_bytes = if level == Level::Raid1 { 0 } else { 1 << chunk_shift };
        let component_bytes = component_mib * MIB;
        let geometry =
            crate::metadata::superblock::Geometry { level, members, chunk_bytes, component_bytes };
        let info = ArrayInfo {
            uuid: uuid::Uuid::nil(),
            set_name: "box:fast".into(),
            geometry,
            events: 0,
            consistency: Consistency::Resync,
            resync_from_bytes: None,
            md_block_bytes: 0,
        };
        proptest::prop_assert_eq!(info.short_name(), "fast");
        if let Ok(engine) = info.engine_geometry() {
            proptest::prop_assert_eq!(engine.capacity_bytes(), info.size_bytes());
            proptest::prop_assert_eq!(engine.component_bytes(), component_bytes);
            proptest::prop_assert_eq!(Level::from(engine.level()), level);
        } else {
            proptest::prop_assert!(info.size_bytes() >= 1 << 63);
        }
    }
}
