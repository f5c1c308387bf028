//! Checks and repairs.

use super::rig::{BLOCK, CHUNK, Plan, Rig, every_level};
use crate::array::{CheckMode, Mismatch, RecoveryState};
use crate::drive::DriveError;
use crate::geometry::{Level, Role};

fn check(rig: &Rig, mode: CheckMode) -> crate::array::CheckReport {
    assert!(rig.shared.start_check_as(mode));
    rig.finish();
    let report = rig.shared.check_report();
    assert!(report.is_complete && !report.is_wanted && report.mode == Some(mode), "{report:?}");
    report
}

#[test]
fn what_agrees_is_found_to_agree_and_not_touched() {
    for plan in every_level() {
        let (rig, contents) = Rig::filled(&plan, 5);
        rig.start();
        for mode in [CheckMode::Check, CheckMode::Repair, CheckMode::RepairAll] {
            let report = check(&rig, mode);
            assert_eq!((report.mismatch_sectors, report.uncompared_bytes), (0, 0));
            assert!(report.places.is_empty());
        }
        assert!(rig.disks.iter().all(|disk| disk.written_bytes() == 0));
        let used = plan.geometry.component_bytes() / 10 * 9;
        assert!(rig.disks.iter().all(|disk| disk.read_bytes.get() >= 3 * used), "all is read");
        rig.assert_holds(&contents);
    }
}

/// One byte is wrong on one member: it is found, at its place; repaired if that is asked for, and
/// then the array is consistent.
#[test]
fn a_wrong_byte_is_found_anywhere() {
    for plan in every_level() {
        for slot in 0..plan.states.len() {
            let (rig, contents) = Rig::filled(&plan, 5);
            let at = 40 * BLOCK + 3;
            let byte = rig.disks[slot].data()[at as usize];
            rig.disks[slot].put(at, &[byte ^ 1]);
            rig.start();
            let report = check(&rig, CheckMode::Check);
            assert_eq!((report.mismatch_sectors, report.repaired_sectors), (1, 0));
            let is_raid6 = plan.geometry.level() == Level::Raid6;
            let [place] = report.places[..] else { panic!("{report:?}") };
            assert_eq!((place.len_bytes, place.repaired), (BLOCK, false));
            assert_eq!(place.slot, is_raid6.then_some(slot));
            assert_eq!(rig.disks[slot].written_bytes(), 0);
            if plan.geometry.parities() > 0 {
                let row = plan.geometry.row_of_component(at);
                assert_eq!(place.offset_bytes, plan.geometry.row_range(row).start);
                assert_eq!(place.component_offset_bytes, 40 * BLOCK);
            } else {
                let end = at / BLOCK * BLOCK;
                let array_offset = plan.geometry.array_offset(slot, end);
                assert_eq!(Some(place.offset_bytes), array_offset);
            }
            let report = check(&rig, CheckMode::Repair);
            assert_eq!((report.mismatch_sectors, report.repaired_sectors), (1, 1));
            let again = check(&rig, CheckMode::Check);
            assert_eq!(again.mismatch_sectors, 0);
            // RAID 6 knows what is right; copies and RAID 5 do not.
            if is_raid6 {
                rig.assert_holds(&contents);
            }
        }
    }
}

/// What differs for one read only is not counted.
#[test]
fn what_is_read_wrong_once_does_not_count() {
    for plan in every_level() {
        let (rig, contents) = Rig::filled(&plan, 5);
        rig.disks[1].wrong_reads.borrow_mut().extend([(40, 1), (2000, 1)]);
        rig.start();
        let report = check(&rig, CheckMode::Repair);
        assert_eq!(report.mismatch_sectors, 0, "{:?}", plan.geometry);
        assert!(rig.disks[1].wrong_reads.borrow().iter().all(|&(_, times)| times == 0));
        rig.assert_holds(&contents);
    }
}

/// Two chunks of a RAID 6 row are wrong: nobody knows which. Parity is computed anew only if that
/// is asked for.
#[test]
fn two_wrong_chunks_are_left_alone_unless_asked() {
    let plan = Plan::new(Level::Raid6, 6, 2 << 20);
    let (rig, contents) = Rig::filled(&plan, 5);
    let slots = [0, 1].map(|index| plan.geometry.data_slot(3, index));
    for (slot, flip) in slots.into_iter().zip([1, 2]) {
        let at = 3 * u64::from(CHUNK);
        let wrong: Vec<_> = rig.disks[slot].data()[at as usize..][..1024].to_vec();
        rig.disks[slot].put(at, &wrong.iter().map(|byte| byte ^ flip).collect::<Vec<_>>());
    }
    rig.start();
    let before: Vec<_> = rig.disks.iter().map(|disk| disk.data()).collect();
    for mode in [CheckMode::Check, CheckMode::Repair] {
        let report = check(&rig, mode);
        assert_eq!((report.mismatch_sectors, report.repaired_sectors), (2, 0));
        assert_eq!(report.places[0].slot, None);
        assert!(rig.disks.iter().map(|disk| disk.data()).eq(before.iter().cloned()));
    }
    let report = check(&rig, CheckMode::RepairAll);
    assert_eq!((report.mismatch_sectors, report.repaired_sectors), (2, 2));
    assert_eq!(check(&rig, CheckMode::Check).mismatch_sectors, 0);
    let data = rig.contents();
    let wrong = (0..data.len()).filter(|&at| data[at] != contents[at]).count();
    assert_eq!(wrong, 2048, "the data as it was on the members is believed");
}

/// Unreadable blocks are rewritten from redundancy, in a mere check too; several at a place that
/// has no redundancy for it are counted.
#[test]
fn unreadable_blocks_are_rewritten() {
    for plan in every_level() {
        let (rig, contents) = Rig::filled(&plan, 5);
        [0, 1, 100, 4095].iter().for_each(|&block| rig.disks[0].spoil(block));
        rig.start();
        let report = check(&rig, CheckMode::Check);
        let expected = if plan.geometry.level() == Level::Raid10 { 3..=4 } else { 4..=4 };
        assert!(expected.contains(&report.rewritten_sectors), "{:?} {report:?}", plan.geometry);
        assert_eq!((report.unreadable_sectors, report.mismatch_sectors), (0, 0));
        let errors = rig.shared.member_errors(0).reads;
        assert!(errors >= 4, "{errors}");
        rig.assert_holds(&contents);
    }
    let plan = Plan::new(Level::Raid5, 4, 2 << 20);
    let (rig, _) = Rig::filled(&plan, 5);
    (0..2).for_each(|slot| rig.disks[slot].spoil(77));
    rig.start();
    let report = check(&rig, CheckMode::Repair);
    assert_eq!((report.unreadable_sectors, report.rewritten_sectors), (2, 0));
    let plan = Plan::new(Level::Raid1, 2, 2 << 20);
    let (rig, _) = Rig::filled(&plan, 5);
    (0..2).for_each(|slot| rig.disks[slot].spoil(77));
    rig.start();
    let report = check(&rig, CheckMode::Repair);
    assert_eq!((report.unreadable_sectors, report.rewritten_sectors), (1, 0));
}

/// A member's bad blocks are filled from the others.
#[test]
fn bad_blocks_are_filled_from_redundancy() {
    for mut plan in every_level() {
        let bad = crate::array::BadRange { start_bytes: 40 * BLOCK, end_bytes: 43 * BLOCK };
        plan.bad_blocks = vec![Vec::new(), vec![bad]];
        let (rig, contents) = Rig::filled(&plan, 5);
        rig.disks[1].put(40 * BLOCK, &[0xbd; 3 * BLOCK as usize]);
        rig.start();
        let report = check(&rig, CheckMode::Check);
        assert_eq!((report.rewritten_sectors, report.mismatch_sectors), (3, 0), "{report:?}");
        assert!(rig.shared.bad_blocks(1).is_empty());
        rig.assert_holds(&contents);
    }
}

/// Without all members there is less to compare, and that is said; nothing is made up.
#[test]
fn a_degraded_array_is_read_and_says_what_was_not_compared() {
    for plan in every_level() {
        let (rig, contents) = Rig::filled(&plan.clone().without(1), 5);
        rig.start();
        let report = check(&rig, CheckMode::RepairAll);
        assert_eq!((report.mismatch_sectors, report.repaired_sectors), (0, 0));
        assert!(report.uncompared_bytes > 0, "{:?}", plan.geometry);
        assert!(rig.disks.iter().all(|disk| disk.written_bytes() == 0));
        assert!(rig.contents() == contents);
    }
}

/// Only the first hundred places are remembered, and all are counted.
#[test]
fn many_mismatches_are_counted() {
    let plan = Plan::new(Level::Raid1, 2, 2 << 20);
    let (rig, _) = Rig::filled(&plan, 5);
    for block in (0..600).step_by(2) {
        let byte = rig.disks[1].data()[(block * BLOCK) as usize];
        rig.disks[1].put(block * BLOCK, &[!byte]);
    }
    rig.start();
    let report = check(&rig, CheckMode::Check);
    assert_eq!((report.mismatch_sectors, report.places.len()), (300, 100));
    let first = Mismatch {
        offset_bytes: 0,
        component_offset_bytes: 0,
        len_bytes: BLOCK,
        slot: None,
        repaired: false,
    };
    assert!(report.places.contains(&first));
}

/// A member that cannot be repaired is out, and the check goes on.
#[test]
fn a_member_that_fails_during_a_repair_is_out() {
    for plan in every_level() {
        let (rig, _) = Rig::filled(&plan, 5);
        // The second copy of the first chunk; or the second row's parity.
        let (slot, at) = match plan.geometry.parities() {
            0 => (1, 0),
            _ => (plan.geometry.parity_slot(1), u64::from(CHUNK)),
        };
        let byte = rig.disks[slot].data()[at as usize];
        rig.disks[slot].put(at, &[!byte]);
        rig.disks[slot].write_error.set(Some(DriveError::Io { errno: 5 }));
        assert!(rig.shared.start_check(true));
        rig.recover();
        let report = rig.shared.check_report();
        assert!(report.is_complete && report.repaired_sectors == 0, "{report:?}");
        assert_eq!(rig.shared.member_states()[slot], crate::array::MemberState::Failed);
        assert_eq!(rig.shared.failure(), None);
    }
}

/// Writes go on during a check, and are never taken for mismatches.
#[test]
fn writes_beside_a_check_are_no_mismatches() {
    for plan in every_level() {
        let (rig, mut contents) = Rig::filled(&plan, 5);
        assert!(rig.shared.start_check(true));
        rig.start();
        for write in 0..40u64 {
            let at = (write * 37 % 64) * 16 * BLOCK;
            let bytes = vec![write as u8 | 0x80; 9 * BLOCK as usize];
            rig.write(write as usize % 2, at, &bytes).unwrap();
            contents[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        rig.finish();
        let report = rig.shared.check_report();
        assert_eq!((report.mismatch_sectors, report.is_complete), (0, true), "{report:?}");
        rig.assert_holds(&contents);
    }
}

#[test]
fn an_array_without_redundancy_has_nothing_to_check() {
    let plan = Plan::new(Level::Raid0, 2, 2 << 20);
    let (rig, _) = Rig::filled(&plan, 5);
    assert!(!rig.shared.start_check(false));
    assert_eq!(rig.status().state, RecoveryState::Idle);
    assert_ne!(Role::P, Role::Q);
}
