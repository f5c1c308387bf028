//! Arrays that fail because drives are pulled, and work again when they are put back: no write may
//! be lost that was acknowledged, none may leave its row's parity wrong, and hosts that are held
//! notice nothing.

use super::*;
use crate::array::{Failure, MemberFault, WriteFailure, WriteState};
use crate::drive::DriveError;
use crate::sim::world::Clock;
use crash::{check_start, snapshot, with_log};
use rig::Fault;

const SMALL: Load = Load { hosts: 4, requests: 5, zeroing: 6, longest_blocks: 60 };

/// What has to be pulled for the array to fail.
fn plans() -> Vec<(Plan, usize)> {
    let missing = |level, members, slots: &[usize]| {
        let mut plan = Plan { cores: 2, ..Plan::new(level, members, 4096, 280) };
        slots.iter().for_each(|&slot| plan.states[slot] = MemberState::Missing);
        plan
    };
    vec![
        (missing(Level::Raid5, 4, &[1]), 1),
        (missing(Level::Raid5, 4, &[]), 2),
        (missing(Level::Raid6, 5, &[0, 3]), 1),
        (missing(Level::Raid6, 5, &[2]), 2),
        (missing(Level::Raid6, 5, &[]), 3),
    ]
}

/// Puts drives back some time after the array has failed, until it works.
fn put_back_after(rig: &Rc<Rig>, patience_ns: u64) {
    let rig = Rc::downgrade(rig);
    let Some(world) = rig.upgrade().map(|rig| Rc::clone(&rig.world)) else { return };
    let again = Rc::clone(&world);
    world.spawn(async move {
        for _ in 0..2000 {
            again.sleep_ns(50_000).await;
            let Some(rig) = rig.upgrade() else { return };
            if rig.shared.failure().is_none() {
                continue;
            }
            again.sleep_ns(1 + again.below(patience_ns)).await;
            for slot in rig.needed() {
                put_back(&rig, slot);
            }
        }
    });
}

fn put_back(rig: &Rig, slot: usize) {
    rig.put_back(slot);
    assert!(rig.shared.can_mend(slot, false) && rig.shared.mend(slot, false));
}

fn has_parked(rig: &Rig) -> bool {
    rig.shared.rare().membership.has_parked()
}

/// All is good.
fn check_all(rig: &Rig, model: &Model) {
    assert_eq!((rig.shared.failure(), rig.shared.writes_in_flight()), (None, 0));
    assert!(!has_parked(rig));
    check_contents(rig, model);
}

/// A drive is pulled at each operation, and put back: hosts are held, and see no error.
#[test]
fn an_array_goes_on_when_its_drives_are_back() {
    let mut parked = 0;
    for (plan, pulls) in plans() {
        let quiet = Rig::new(&plan, 5);
        let model = Model::new(quiet.capacity());
        assert_eq!(run_load(&quiet, &model, SMALL), []);
        let calls = quiet.faults.calls.get();
        // With several to be pulled there are many ways in which the last one can go.
        for call in (0..calls).step_by(pulls) {
            let rig = Rc::new(Rig::new(&plan, 5));
            let model = Model::new(rig.capacity());
            let gone = |pull| (call + pull * (call % 7), Fault::Gone);
            rig.faults.plan.borrow_mut().extend((0..pulls as u64).map(gone));
            rig.shared.set_hold(true);
            put_back_after(&rig, [60_000, 2_000_000][(call % 2) as usize]);
            let (errors, left) = start_load(&rig, &model, SMALL);
            let ended = rig.world.run_until(|| {
                parked += u64::from(has_parked(&rig));
                left.get() == 0 && rig.shared.failure().is_none()
            });
            assert!(ended, "{} call {call}: the hosts wait for ever", plan.level);
            assert_eq!(errors.take(), [], "{} {:?} call {call}", plan.level, plan.states);
            rig.faults.plan.borrow_mut().clear();
            check_all(&rig, &model);
        }
    }
    assert!(parked > 1000, "the test is about passes that are cut short: {parked}");
}

/// Reads each block of an array that has failed: what is answered is right.
fn check_failed(rig: &Rig, model: &Model) {
    let began = model.time();
    // Not the many others, of which nothing is told that these do not tell.
    let blocks = (0..rig.capacity()).step_by(BLOCK);
    for at in blocks.filter(|&at| model.is_half_written(at) || at % (17 * BLOCK) == 0) {
        match rig.read(0, at, BLOCK) {
            Ok(block) => model.check(at, &block, began),
            Err(error) => assert!(
                matches!(
                    error,
                    ArrayError::NotReady
                        | ArrayError::Unrecovered { .. }
                        | ArrayError::ReadFailed { .. }
                ),
                "{error}"
            ),
        }
    }
}

/// Nobody waits longer than he is held; drives that come back later are good all the same, and what
/// was cut short is done then.
#[test]
fn a_drive_that_is_back_after_the_hold_is_as_good() {
    let mut parked = 0;
    for (plan, pulls) in plans() {
        for seed in 0..60 {
            let rig = Rig::new(&plan, seed);
            let model = Model::new(rig.capacity());
            let gone = |pull| (20 + seed % 40 + pull * (seed % 5), Fault::Gone);
            rig.faults.plan.borrow_mut().extend((0..pulls as u64).map(gone));
            let is_held = seed % 2 == 0;
            if is_held {
                rig.shared.set_hold(true);
            }
            let (errors, left) = start_load(&rig, &model, SMALL);
            if is_held {
                rig.world.run_until(|| rig.shared.failure().is_some() || left.get() == 0);
                rig.world.run_for(2000);
                rig.shared.set_hold(false);
            }
            assert!(rig.world.run_until(|| left.get() == 0), "somebody waits for ever");
            if rig.shared.failure().is_none() {
                continue;
            }
            let is_expected = |error: &ArrayError| match error {
                ArrayError::NotReady => is_held,
                ArrayError::WriteFailed(_) | ArrayError::ReadFailed { .. } => !is_held,
                ArrayError::Unrecovered { .. } => !is_held,
                _ => false,
            };
            let errors = errors.take();
            assert!(errors.iter().all(is_expected) && !errors.is_empty(), "{errors:?}");
            assert_eq!((rig.shared.writes_in_flight(), rig.shared.try_clean()), (0, false));
            parked += u64::from(has_parked(&rig));
            check_tidy(&rig);
            check_failed(&rig, &model);
            let needed = rig.needed();
            needed.iter().for_each(|&slot| rig.put_back(slot));
            // They are there, and what was cut short is not done yet.
            check_failed(&rig, &model);
            assert!(needed.iter().all(|&slot| rig.shared.mend(slot, false)));
            assert!(rig.world.run_until(|| rig.shared.failure().is_none()));
            check_all(&rig, &model);
            assert_eq!(run_load(&rig, &model, SMALL), []);
            check_all(&rig, &model);
        }
    }
    assert!(parked > 40, "{parked}");
}

/// The drive goes again while what was cut short is being repeated.
#[test]
fn a_drive_may_go_again_while_it_is_mended() {
    let (plan, _) = plans().remove(0);
    let mut again = 0;
    for seed in 0..80 {
        let rig = Rig::new(&plan, seed);
        let model = Model::new(rig.capacity());
        rig.shared.set_hold(true);
        rig.faults.plan.borrow_mut().push((30, Fault::Gone));
        let (errors, left) = start_load(&rig, &model, SMALL);
        assert!(rig.world.run_until(|| rig.shared.failure().is_some()));
        rig.world.run_for(2000);
        for turn in 0..4 {
            let is_parked = has_parked(&rig);
            let pull = rig.faults.calls.get() + seed % 6;
            rig.faults.plan.borrow_mut().push((pull, Fault::Gone));
            rig.needed().into_iter().for_each(|slot| put_back(&rig, slot));
            if is_parked {
                let state = rig.shared.write_state();
                assert_eq!(state, WriteState::Failed, "it works when all is repeated: {turn}");
            }
            rig.world.run_until(|| !rig.needed().is_empty() || left.get() == 0);
            rig.world.run_for(2000);
            again += u64::from(is_parked && has_parked(&rig));
        }
        rig.faults.plan.borrow_mut().clear();
        rig.needed().into_iter().for_each(|slot| put_back(&rig, slot));
        assert!(rig.world.run_until(|| left.get() == 0 && rig.shared.failure().is_none()));
        assert_eq!(errors.take(), [], "seed {seed}");
        check_all(&rig, &model);
    }
    assert!(again > 10, "{again}");
}

/// A rig that has failed with something parked.
fn failed_rig() -> (Rig, Rc<Model>) {
    let (plan, _) = plans().remove(0);
    for seed in 0.. {
        let rig = Rig::new(&plan, seed);
        let model = Model::new(rig.capacity());
        rig.faults.plan.borrow_mut().push((30, Fault::Gone));
        let errors = run_load(&rig, &model, SMALL);
        assert!(errors.iter().any(|error| matches!(
            error,
            ArrayError::WriteFailed(WriteFailure::Member { .. } | WriteFailure::ArrayFailed)
                | ArrayError::Unrecovered { .. }
                | ArrayError::ReadFailed { .. }
        )));
        if has_parked(&rig) {
            return (rig, model);
        }
    }
    unreachable!()
}

/// To the next start it is what a crash leaves.
#[test]
fn an_array_that_is_stopped_with_writes_cut_short_is_not_clean() {
    let (rig, _) = failed_rig();
    rig.shared.stop_writes();
    assert!(!rig.shared.try_clean());
    rig.needed().into_iter().for_each(|slot| put_back(&rig, slot));
    assert!(!rig.shared.try_clean(), "before it is repeated");
    assert!(rig.world.run_until(|| rig.shared.failure().is_none()));
    assert_eq!(rig.shared.write_state(), WriteState::Stopped);
    assert!(rig.shared.try_clean(), "all of it is done");
}

/// What is in the cache of a drive without power is lost by blocks, and what parity fits there
/// nobody knows.
#[test]
fn a_lost_cache_is_mended_only_where_nothing_was_in_it() {
    let (rig, _) = failed_rig();
    let slot = rig.needed()[0];
    assert!(!rig.shared.can_mend(slot, true) && !rig.shared.mend(slot, true));
    assert!(matches!(rig.shared.failure(), Some(Failure::Member { .. })));
    assert!(rig.shared.can_mend(slot, false));

    let (plan, _) = plans().remove(0);
    let rig = Rig::new(&plan, 1);
    assert_eq!(rig.write(0, 0, &[7; 4096]), Ok(()));
    assert!(rig.shared.try_clean());
    rig.faults.gone.borrow_mut().insert(2);
    rig.shared.fail_member(2, MemberFault::Flush(DriveError::Gone));
    assert!(rig.shared.can_mend(2, true), "all was flushed before it was clean");
    rig.put_back(2);
    assert!(rig.shared.mend(2, true));
    assert_eq!(rig.shared.failure(), None);
    assert_eq!(rig.read(0, 0, 4096).unwrap(), [7; 4096]);
    let array = Rc::clone(&rig.arrays[0]);
    let lost = Err(ArrayError::WriteFailed(WriteFailure::CacheLost));
    assert_eq!(rig.run(async move { array.flush().await }), lost);
}

/// What a drive that has gone says later does not count; what one says that is there does.
#[test]
fn only_a_drive_that_was_pulled_comes_back() {
    let (plan, _) = plans().remove(0);
    let rig = Rig::new(&plan, 1);
    let eio = DriveError::Io { errno: 5 };
    rig.shared.fail_member(0, MemberFault::Unreachable(DriveError::Gone));
    rig.shared.fail_flush(0, eio);
    rig.shared.record_failed(0, eio);
    assert_eq!(rig.needed(), [0]);
    assert!(rig.shared.can_mend(0, false) && !rig.shared.can_mend(2, false));
    rig.shared.fail_flush(2, eio);
    assert!(!rig.shared.can_mend(2, false), "it has lost what it had acknowledged");
    assert!(rig.shared.mend(0, false));
    assert!(rig.shared.failure().is_some());
}

/// What a drive says that is being pulled may be any error.
#[test]
fn a_drive_may_be_back_after_any_error() {
    let (plan, _) = plans().remove(0);
    for fault in [Fault::Write, Fault::Gone] {
        let rig = Rig::new(&plan, 1);
        let model = Model::new(rig.capacity());
        assert_eq!(run_load(&rig, &model, SMALL), []);
        rig.shared.set_hold(true);
        rig.faults.plan.borrow_mut().push((0, fault));
        let (errors, left) = start_load(&rig, &model, SMALL);
        assert!(rig.world.run_until(|| rig.shared.failure().is_some()));
        let Some(Failure::Member { slot, .. }) = rig.shared.failure() else { unreachable!() };
        rig.world.run_for(3000);
        put_back(&rig, slot);
        assert!(rig.world.run_until(|| left.get() == 0 && rig.shared.failure().is_none()));
        assert_eq!(errors.take(), []);
        assert!((0..4).all(|slot| rig.shared.bad_blocks(slot).is_empty()));
        check_all(&rig, &model);
    }
}

/// With a log: a crash while writes wait for a drive is one of a degraded array like others, and so
/// is one after they have been repeated.
#[test]
fn a_log_covers_what_is_cut_short() {
    let mut parked = 0;
    for (plan, pulls) in plans().into_iter().filter(|(_, pulls)| *pulls == 1) {
        for seed in 0..12 {
            let (plan, drives) = with_log(Plan { rows: 8, chunk: 8192, ..plan.clone() });
            let rig = Rig::over(&plan, drives, seed);
            let model = Model::new(rig.capacity());
            rig.shared.set_hold(true);
            let gone = |pull| (30 + 3 * seed + pull, Fault::Gone);
            rig.faults.plan.borrow_mut().extend((0..pulls as u64).map(gone));
            let (errors, left) = start_load(&rig, &model, Load { requests: 12, ..SMALL });
            assert!(rig.world.run_until(|| rig.shared.failure().is_some() || left.get() == 0));
            rig.world.run_for(3000);
            parked += u64::from(has_parked(&rig));
            check_start(&plan, &snapshot(&rig.drives), &[], &model, model.time());
            rig.needed().into_iter().for_each(|slot| put_back(&rig, slot));
            while left.get() > 0 {
                rig.world.run_for(200);
                check_start(&plan, &snapshot(&rig.drives), &[], &model, model.time());
            }
            assert_eq!(errors.take(), [], "{} seed {seed}", plan.level);
            check_all(&rig, &model);
        }
    }
    assert!(parked > 10, "{parked}");
}

/// A rebuild that is under way goes on, and ends with everything right.
#[test]
fn a_rebuild_goes_on_when_the_drives_are_back() {
    let (mut pulls, mut parked) = (0, 0);
    for (level, members, pulled) in [(Level::Raid5, 4, 2), (Level::Raid6, 5, 3)] {
        for seed in 0..30 {
            let mut plan = Plan { cores: 2, ..Plan::new(level, members, 4096, 280) };
            plan.states[1] = MemberState::Rebuilding;
            plan.rebuild_from = Some(0);
            if level == Level::Raid6 {
                plan.states[4] = MemberState::Rebuilding;
            }
            let rig = Rc::new(Rig::new(&plan, seed));
            let model = Model::new(rig.capacity());
            rig.shared.set_hold(true);
            put_back_after(&rig, 500_000);
            let (array, clock) = (Rc::clone(&rig.arrays[0]), Clock(Rc::clone(&rig.world)));
            rig.world.spawn(async move { array.recover(&clock).await });
            let (errors, left) = start_load(&rig, &model, SMALL);
            rig.world.run_for(40 + 5 * seed);
            rig.faults.gone.borrow_mut().insert(pulled);
            rig.world.run_until(|| rig.shared.member_fault(pulled).is_some());
            if rig.shared.failure().is_none() {
                // The rebuild had ended before.
                continue;
            }
            pulls += 1;
            let ended = rig.world.run_until(|| {
                parked += u64::from(has_parked(&rig));
                left.get() == 0 && rig.in_use().len() == members && rig.shared.failure().is_none()
            });
            assert!(ended, "{:?}", rig.shared.member_states());
            assert_eq!(errors.take(), [], "{level} seed {seed}");
            check_all(&rig, &model);
        }
    }
    assert!(pulls > 20 && parked > 100, "{pulls} {parked}");
}
