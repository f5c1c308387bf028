//! Resyncs of levels with parity, and of dirty regions. Those of copies are in `resync_tests`.

use super::rig::{BLOCK, CHUNK, Plan, REGION, Rig, contents, every_level};
use crate::array::{ArrayError, BadRange, IN_SYNC, MemberState, RecoveryState};
use crate::drive::DriveError;
use crate::geometry::{Level, Role};

/// Spoils parity, or other copies than the first, of a part of the array.
fn make_differ(rig: &Rig, range: std::ops::Range<u64>) {
    let geometry = &rig.plan.geometry;
    if geometry.parities() > 0 {
        for row in geometry.row_of(range.start)..=geometry.row_of(range.end - 1) {
            let at = geometry.row_component_offset(row);
            for slot in 0..geometry.members() {
                if !matches!(geometry.role_of(row, slot), Role::Data(_)) {
                    rig.disks[slot].put(at + 512, &[0xee; 700]);
                }
            }
        }
        return;
    }
    for extent in geometry.extents(range.start, range.end - range.start) {
        for place in (1..extent.copies).map(|copy| extent.place(copy)) {
            rig.disks[place.slot].put(place.offset_bytes, &[0xee; 700]);
        }
    }
}

#[test]
fn parity_is_made_right_from_the_position_on() {
    for mut plan in every_level() {
        plan.resync_from = 0;
        let (rig, contents) = Rig::filled(&plan, 5);
        make_differ(&rig, 0..plan.geometry.capacity_bytes());
        assert_eq!(rig.status().state, RecoveryState::Resync);
        rig.recover();
        assert_eq!(rig.shared.resync_position_bytes(), IN_SYNC);
        assert_eq!(rig.shared.resyncs_completed(), 1);
        let recorded = rig.keeper.recorded.lock().unwrap().clone().unwrap();
        assert_eq!(recorded.resync_from, IN_SYNC);
        rig.assert_holds(&contents);
    }
}

/// Parity that is right is not written again.
#[test]
fn what_is_right_is_not_written() {
    for mut plan in every_level() {
        plan.resync_from = 0;
        let (rig, contents) = Rig::filled(&plan, 5);
        rig.recover();
        assert!(rig.disks.iter().all(|disk| disk.written_bytes() == 0), "{:?}", plan.geometry);
        rig.assert_holds(&contents);
    }
}

/// Power fails at any moment; what was not flushed is lost. The position that was recorded is true.
#[test]
fn a_resync_that_was_cut_off_goes_on_where_it_was_recorded() {
    let mut resumed = 0;
    for (turn, mut plan) in every_level().into_iter().enumerate() {
        for seed in 0..6 {
            plan.resync_from = 0;
            let (mut rig, contents) = Rig::filled(&plan, seed);
            make_differ(&rig, 0..plan.geometry.capacity_bytes());
            for cut in 0..3 {
                rig.shared.set_checkpoint_interval(256 << 10);
                rig.shared.set_resync_rates(1, Some(128 << 20));
                rig.start();
                let until = (seed + 1) * plan.geometry.capacity_bytes() / 8;
                let shared = std::sync::Arc::clone(&rig.shared);
                rig.world.run_until(|| shared.resync_position_bytes() >= until);
                rig.world.run_for(20 * cut + 7 * turn as u64);
                rig = rig.cut_power(seed * 10 + cut);
                let position = rig.shared.resync_position_bytes();
                resumed += usize::from((1..IN_SYNC).contains(&position));
            }
            rig.recover();
            rig.assert_holds(&contents);
        }
    }
    assert!(resumed > 50, "{resumed}");
}

/// A data block that cannot be read before parity is trusted is lost: it is an error from then on,
/// and nothing computes it from the parity.
#[test]
fn data_that_cannot_be_read_without_trusted_parity_is_lost() {
    for level in [Level::Raid5, Level::Raid6] {
        let mut plan = Plan::new(level, 5, 1 << 20);
        plan.resync_from = 0;
        let (rig, contents) = Rig::filled(&plan, 5);
        let slot = plan.geometry.data_slot(2, 1);
        let block = 2 * u64::from(CHUNK) / BLOCK + 3;
        rig.disks[slot].spoil(block);
        rig.recover();
        assert!(rig.shared.is_in_sync());
        let bad = BadRange { start_bytes: block * BLOCK, end_bytes: (block + 1) * BLOCK };
        let geometry = &plan.geometry;
        let concerned = [Some(slot), Some(geometry.parity_slot(2)), geometry.q_slot(2)];
        for slot in 0..5 {
            let is_concerned = concerned.contains(&Some(slot));
            let expected: &[_] = if is_concerned { &[bad] } else { &[] };
            assert_eq!(rig.shared.bad_blocks(slot), expected, "{slot}");
        }
        let at = geometry.array_offset(slot, block * BLOCK).unwrap();
        // Even if the drive could read it again now.
        rig.disks[slot].unreadable.borrow_mut().clear();
        let read = rig.read(0, at, BLOCK as usize);
        assert!(matches!(read, Err(ArrayError::Unrecovered { .. })), "{read:?}");
        let read = rig.read(0, at - BLOCK, BLOCK as usize).unwrap();
        assert!(read == contents[(at - BLOCK) as usize..][..BLOCK as usize]);
        // A write of it makes it good, and the row's parity.
        rig.write(1, at, &[5; BLOCK as usize]).unwrap();
        assert_eq!(rig.read(0, at, BLOCK as usize).unwrap(), [5; BLOCK as usize]);
        assert!((0..5).all(|slot| rig.shared.bad_blocks(slot).is_empty()));
        let mut contents = contents;
        contents[at as usize..][..BLOCK as usize].fill(5);
        rig.assert_holds(&contents);
    }
}

/// Parity that cannot be read is simply written.
#[test]
fn unreadable_parity_is_written() {
    for level in [Level::Raid5, Level::Raid6] {
        let mut plan = Plan::new(level, 5, 1 << 20);
        plan.resync_from = 0;
        let (rig, contents) = Rig::filled(&plan, 5);
        let slot = plan.geometry.parity_slot(2);
        rig.disks[slot].spoil(2 * u64::from(CHUNK) / BLOCK + 3);
        rig.recover();
        assert!(rig.disks[slot].unreadable.borrow().is_empty());
        assert!((0..5).all(|slot| rig.shared.bad_blocks(slot).is_empty()));
        rig.assert_holds(&contents);
    }
}

/// Without one of the members nobody can tell what parity should be: the resync waits. Copies are
/// synced all the same.
#[test]
fn a_degraded_level_with_parity_is_not_resynced() {
    for plan in every_level() {
        let mut plan = plan.without(1);
        plan.resync_from = 0;
        let (rig, _) = Rig::filled(&plan, 5);
        rig.start();
        rig.world.run_for(20_000);
        let has_parity = plan.geometry.parities() > 0;
        assert_eq!(rig.shared.is_in_sync(), !has_parity, "{:?}", plan.geometry);
        assert_eq!(rig.status().state, RecoveryState::Idle);
        rig.stop();
    }
}

/// A member fails during the resync: the position does not pass what was not synced.
#[test]
fn a_member_that_fails_during_a_resync_stops_it() {
    for level in [Level::Raid5, Level::Raid6] {
        for after in [0, 2, 5, 9] {
            let mut plan = Plan::new(level, 5, 4 << 20);
            plan.resync_from = 0;
            let (rig, _) = Rig::filled(&plan, after);
            make_differ(&rig, 0..plan.geometry.capacity_bytes());
            rig.disks[2].write_error.set(Some(DriveError::Io { errno: 5 }));
            rig.disks[2].writes_before_error.set(after);
            rig.start();
            rig.world.run_for(30_000);
            assert_eq!(rig.shared.member_states()[2], MemberState::Failed);
            assert!(!rig.shared.is_in_sync());
            let position = rig.shared.resync_position_bytes();
            assert!(position < plan.geometry.capacity_bytes());
            rig.stop();
        }
    }
}

/// After a crash only the regions that were being written are looked at, one by one.
#[test]
fn only_dirty_regions_are_resynced() {
    for mut plan in every_level() {
        plan.dirty = Some(vec![1, 3]);
        let (rig, contents) = Rig::filled(&plan, 5);
        let per_region = match plan.geometry.level() {
            Level::Raid1 | Level::Raid10 => REGION,
            _ => REGION / u64::from(CHUNK) * plan.geometry.row_data_bytes(),
        };
        for region in [1, 3] {
            make_differ(&rig, region * per_region..(region + 1) * per_region);
        }
        assert_eq!(rig.status().state, RecoveryState::Resync);
        assert_eq!(rig.status().left_bytes, 2 * per_region);
        rig.recover();
        rig.assert_holds(&contents);
        assert!(rig.shared.is_in_sync());
        assert_eq!(rig.shared.resyncs_completed(), 1);
        let read: u64 = rig.disks.iter().map(|disk| disk.read_bytes.get()).sum();
        let copies = if plan.geometry.parities() > 0 { 1 } else { plan.geometry.copies() as u64 };
        let all = plan.geometry.component_bytes() * plan.geometry.members() as u64;
        let share = if plan.geometry.parities() > 0 { all / 2 } else { 2 * per_region * copies };
        assert!(read <= share, "{:?}: {read} of {share}", plan.geometry);
    }
}

/// A write leaves a region dirty while it is being resynced: it is done again.
#[test]
fn a_region_that_becomes_dirty_again_is_done_again() {
    let mut reached = 0;
    for mut plan in every_level() {
        plan.dirty = Some(vec![0, 1]);
        let (rig, contents) = Rig::filled(&plan, 5);
        make_differ(&rig, 0..REGION);
        rig.shared.set_resync_rates(1, Some(32 << 20));
        rig.start();
        rig.world.run_for(100);
        if !rig.shared.intent.has_dirty() {
            continue;
        }
        reached += 1;
        // As a write does that finds no space, with what it leaves.
        let array = std::rc::Rc::clone(&rig.arrays[0]);
        rig.run(async move {
            let shared = array.shared();
            let token = shared.intent.begin(&*array, 0..4096).await.unwrap();
            shared.intent.end(&*array, token, false).await.unwrap();
        });
        make_differ(&rig, 0..4096);
        rig.finish();
        rig.assert_holds(&contents);
    }
    assert!(reached >= 4, "{reached}");
}

/// Hosts write during the resync: afterwards everything fits together.
#[test]
fn writes_beside_a_resync_leave_everything_consistent() {
    for (turn, mut plan) in every_level().into_iter().enumerate() {
        plan.resync_from = 0;
        let (rig, mut expected) = Rig::filled(&plan, turn as u64);
        make_differ(&rig, 0..plan.geometry.capacity_bytes());
        rig.start();
        let noise = contents(64 * 1024, 5);
        for write in 0..50u64 {
            let at = (write * 53 % 200) * 4096;
            let bytes = &noise[(write * 512) as usize..][..5 * BLOCK as usize];
            rig.write(write as usize % 2, at, bytes).unwrap();
            expected[at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        rig.finish();
        rig.assert_holds(&expected);
    }
}
