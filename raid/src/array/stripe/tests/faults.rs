//! Faults of drives at every call, and what hosts notice of them: nothing, as far as the level
//! tolerates them.

use super::*;
use crate::array::{Failure, MemberFault, WriteFailure};
use crate::drive::DriveError;
use rig::{DATA_OFFSET, Fault};

const SMALL: Load = Load { hosts: 3, requests: 5, zeroing: 8, longest_blocks: 60 };

fn small(level: Level, members: usize) -> Plan {
    Plan { cores: 1, ..Plan::new(level, members, 4096, 12) }
}

/// Runs a small load with these faults; the errors that hosts saw.
fn run_with(plan: &Plan, seed: u64, faults: &[(u64, Fault)]) -> (Rig, Rc<Model>, Vec<ArrayError>) {
    let rig = Rig::new(plan, seed);
    let model = Model::new(rig.capacity());
    *rig.faults.plan.borrow_mut() = faults.to_vec();
    let errors = run_load(&rig, &model, SMALL);
    rig.faults.plan.borrow_mut().clear();
    (rig, model, errors)
}

/// Late writes have reached their drives, which are out by then.
fn let_late_writes_end(rig: &Rig) {
    let world = Rc::clone(&rig.world);
    rig.run(async move { world.sleep_ns(10_000_000).await });
}

fn check_after(rig: &Rig, model: &Rc<Model>) {
    let_late_writes_end(rig);
    check_tidy(rig);
    check_contents(rig, model);
}

#[test]
fn one_fault_at_every_call_is_tolerated() {
    for plan in [small(Level::Raid5, 4), small(Level::Raid6, 5)] {
        let (rig, _, _) = run_with(&plan, 7, &[]);
        let calls = rig.faults.calls.get();
        let kinds = [
            Fault::Unreadable,
            Fault::ReadOnce,
            Fault::Write,
            Fault::NoSpace,
            Fault::Gone,
            Fault::TimedOut,
        ];
        for fault in kinds {
            for call in 0..calls {
                let (rig, model, errors) = run_with(&plan, 7, &[(call, fault)]);
                let context = format!("{} {fault:?} at call {call}", plan.level);
                let is_allowed = |error: &ArrayError| {
                    fault == Fault::NoSpace && matches!(error, ArrayError::NoSpace { .. })
                };
                assert!(errors.iter().all(is_allowed), "{context}: {errors:?}");
                assert_eq!(rig.shared.failure(), None, "{context}");
                let happened = rig.faults.happened.borrow().clone();
                for (slot, fault) in happened {
                    let is_out = matches!(fault, Fault::Write | Fault::Gone | Fault::TimedOut);
                    let is_there = rig.in_use().contains(&slot);
                    assert_eq!(is_there, !is_out, "{context}: slot {slot}");
                }
                assert!(rig.shared.is_in_sync(), "{context}");
                check_after(&rig, &model);
            }
        }
    }
}

#[test]
fn raid6_tolerates_two_faults() {
    let plan = small(Level::Raid6, 5);
    let (rig, _, _) = run_with(&plan, 3, &[]);
    let calls = rig.faults.calls.get();
    let kinds = [Fault::Unreadable, Fault::Write, Fault::Gone, Fault::TimedOut];
    for (number, first) in kinds.into_iter().enumerate() {
        for second in kinds.into_iter().skip(number) {
            for call in (0..calls).step_by(5) {
                for later in [0, 1, 2, 7, 40] {
                    let faults = [(call, first), (call + later, second)];
                    let (rig, model, errors) = run_with(&plan, 3, &faults);
                    assert_eq!(errors, [], "{faults:?}");
                    check_after(&rig, &model);
                }
            }
        }
    }
}

/// A second fault in RAID 5 may cost the array, but nothing that is read is ever wrong.
#[test]
fn too_many_faults_are_told_and_nothing_wrong_is_read() {
    let plan = small(Level::Raid5, 4);
    let mut failed = 0;
    for seed in 0..150 {
        let faults = [(10 + seed % 40, Fault::Gone), (20 + seed % 70, Fault::Write)];
        let (rig, model, errors) = run_with(&plan, seed, &faults);
        let_late_writes_end(&rig);
        if rig.shared.failure().is_none() {
            assert_eq!(errors, [], "seed {seed}");
            continue;
        }
        failed += 1;
        check_tidy(&rig);
        for at in (0..rig.capacity()).step_by(BLOCK) {
            let began = model.time();
            match rig.read(0, at, BLOCK) {
                Ok(block) => model.check(at, &block, began),
                Err(error) => {
                    let is_expected = matches!(
                        error,
                        ArrayError::Unrecovered { .. } | ArrayError::ReadFailed { .. }
                    );
                    assert!(is_expected, "{error}");
                }
            }
        }
        let refused = rig.write(0, 0, &[1; BLOCK]);
        let error = ArrayError::WriteFailed(WriteFailure::ArrayFailed);
        assert_eq!(refused, Err(error));
    }
    assert!(failed > 20, "{failed}");
}

#[test]
fn a_block_that_cannot_be_read_is_written_again() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        let rig = Rig::new(&small(level, members), 1);
        let model = Model::new(rig.capacity());
        assert_eq!(run_load(&rig, &model, SMALL), []);
        let contents = rig.contents();
        for slot in 0..members {
            rig.faults.unreadable.borrow_mut().insert((slot, DATA_OFFSET / BLOCK as u64 + 3));
        }
        // One row, one bad block on each member: only one of them at a time can be told apart, and
        // that is enough, as each is repaired before the next one is met.
        for slot in 0..members {
            rig.faults.unreadable.borrow_mut().clear();
            rig.faults.unreadable.borrow_mut().insert((slot, DATA_OFFSET / BLOCK as u64 + 3));
            assert!(rig.contents() == contents);
            let is_data =
                matches!(rig.shared.geometry().role_of(0, slot), crate::geometry::Role::Data(_));
            assert_eq!(rig.faults.unreadable.borrow().is_empty(), is_data, "slot {slot}");
            // What is not read by hosts is repaired by a write that needs it.
            let row = rig.shared.geometry().row_data_bytes() as usize;
            rig.write(0, 0, &contents[..row / 2]).unwrap();
        }
        assert!(rig.shared.stripe_statistics().parts_repaired >= 3);
        rig.check_losses(&rig.contents());
    }
}

/// Each member of a row has a block that cannot be read, all in different places: as long as they
/// are not in the same column nothing is lost, however large the requests are.
#[test]
fn bad_blocks_in_different_places_do_not_add_up() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        for is_recorded in [false, true] {
            let mut plan = small(level, members);
            let blocks = u64::from(plan.chunk) / BLOCK as u64;
            if is_recorded {
                plan.bad_blocks = (0..members as u64)
                    .map(|slot| {
                        let start_bytes = slot % blocks * BLOCK as u64;
                        let end_bytes = start_bytes + BLOCK as u64;
                        vec![crate::array::BadRange { start_bytes, end_bytes }]
                    })
                    .collect();
            }
            let rig = Rig::new(&plan, 1);
            if !is_recorded {
                for slot in 0..members as u64 {
                    let block = DATA_OFFSET / BLOCK as u64 + slot % blocks;
                    rig.faults.unreadable.borrow_mut().insert((slot as usize, block));
                }
            }
            let row = rig.shared.geometry().row_data_bytes() as usize;
            assert!(rig.read(0, 0, row).unwrap().iter().all(|&byte| byte == 0));
            let bytes: Vec<u8> = (0..row / 2).map(|at| at as u8 | 1).collect();
            rig.write(0, 4096 - 1024, &bytes[..5 * BLOCK]).unwrap();
            let mut expected = vec![0; row];
            expected[4096 - 1024..][..5 * BLOCK].copy_from_slice(&bytes[..5 * BLOCK]);
            assert_eq!(rig.read(0, 0, row).unwrap(), expected);
            rig.write(0, 0, &vec![7; row]).unwrap();
            assert_eq!(rig.read(0, 0, row).unwrap(), vec![7; row]);
            assert!(rig.faults.unreadable.borrow().is_empty());
            for slot in 0..members {
                assert_eq!(rig.shared.bad_blocks(slot), [], "a write makes them good");
            }
            rig.check_losses(&rig.contents());
        }
    }
}

#[test]
fn a_member_without_space_fails_the_write_and_nothing_else() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        for full in 0..members {
            for missing in (0..members).map(Some).chain([None]).filter(|&slot| slot != Some(full)) {
                let mut plan = small(level, members);
                if let Some(slot) = missing {
                    plan.states[slot] = MemberState::Missing;
                }
                let rig = Rig::new(&plan, 1);
                let model = Model::new(rig.capacity());
                assert_eq!(run_load(&rig, &model, SMALL), []);
                let row = rig.shared.geometry().row_data_bytes() as usize;
                for (at, len) in [(0, BLOCK), (row, 5000 / BLOCK * BLOCK), (3 * row, row)] {
                    rig.faults.full.borrow_mut().insert(full);
                    let (number, bytes) = model.begin(at, len, false);
                    let result = rig.write(0, at, &bytes);
                    model.end(number, result.is_ok());
                    rig.faults.full.borrow_mut().clear();
                    let error = ArrayError::NoSpace { slot: full };
                    assert!(result == Ok(()) || result == Err(error), "{result:?}");
                    let began = model.time();
                    for at in (0..rig.capacity()).step_by(BLOCK) {
                        match rig.read(0, at, BLOCK) {
                            Ok(block) => model.check(at, &block, began),
                            // Of the row's parity nothing was left to compute it from.
                            Err(ArrayError::Unrecovered { .. }) => {
                                assert!(missing.is_some() && result.is_err());
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    // With space again it is all good.
                    let (number, bytes) = model.begin(at / row * row, row, false);
                    assert_eq!(rig.write(0, at / row * row, &bytes), Ok(()));
                    model.end(number, true);
                    let began = model.time();
                    model.check(0, &rig.contents(), began);
                }
                assert_eq!(rig.shared.failure(), None);
            }
        }
    }
}

/// Data of an unrelated, missing member must survive that there was no space for a write.
#[test]
fn no_space_for_data_does_not_harm_what_is_computed_from_parity() {
    let mut plan = small(Level::Raid5, 4);
    let geometry = plan.geometry();
    let (written, lost) = (geometry.data_slot(0, 0), geometry.data_slot(0, 2));
    let before = Rig::new(&plan, 1);
    let row: Vec<u8> = (0..geometry.row_data_bytes()).map(|at| (at / 64) as u8).collect();
    before.write(0, 0, &row).unwrap();
    plan.states[lost] = MemberState::Missing;
    let rig = Rig::over(&plan, before.drives.clone(), 2);
    rig.faults.full.borrow_mut().insert(written);
    assert_eq!(rig.write(0, 0, &[9; 2048]), Err(ArrayError::NoSpace { slot: written }));
    rig.faults.full.borrow_mut().clear();
    let read = rig.read(0, 0, row.len()).unwrap();
    assert!(read[2048..] == row[2048..]);
    assert!(read[..1024] == [9; 1024] && read[1024..2048] == row[1024..2048]);
}

#[test]
fn a_member_that_is_gone_is_failed_once() {
    let rig = Rig::new(&small(Level::Raid5, 4), 1);
    rig.faults.gone.borrow_mut().insert(2);
    assert_eq!(rig.write(0, 0, &[5; 8192]), Ok(()));
    assert_eq!(rig.read(0, 0, 8192).unwrap(), vec![5; 8192]);
    let fault = rig.shared.member_fault(2);
    assert!(matches!(
        fault,
        Some(MemberFault::Write(DriveError::Gone) | MemberFault::Unreachable(_))
    ));
    rig.faults.gone.borrow_mut().insert(0);
    let result = rig.write(0, 0, &[6; 12_288]);
    assert!(matches!(result, Err(ArrayError::WriteFailed(_))), "{result:?}");
    assert!(matches!(rig.shared.failure(), Some(Failure::Member { slot: 0, .. })));
}
