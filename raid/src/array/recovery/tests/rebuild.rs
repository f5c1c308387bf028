//! Rebuilds.

use std::rc::Rc;
use std::sync::Arc;

use super::rig::{BLOCK, CHUNK, Disk, EIO, Plan, REGION, Rig, contents, every_level};
use crate::array::{ArrayError, BadRange, IN_SYNC, Limit, MemberFault, MemberState, RecoveryState};
use crate::drive::DriveError;
use crate::geometry::Level;
use crate::sim::world::Random;

/// Any member of any level can be lost and is rebuilt to the last byte.
#[test]
fn every_member_of_every_level_is_rebuilt() {
    for plan in every_level() {
        for slot in 0..plan.states.len() {
            let (mut rig, contents) = Rig::filled(&plan.clone().without(slot), 7 + slot as u64);
            rig.add(slot);
            assert_eq!(rig.status().state, RecoveryState::Rebuild);
            rig.recover();
            assert_eq!(rig.shared.member_states(), plan.states, "{:?} {slot}", plan.geometry);
            assert_eq!(rig.shared.rebuilds_completed(), 1);
            rig.assert_holds(&contents);
            let recorded = rig.keeper.recorded.lock().unwrap().clone().unwrap();
            assert_eq!((recorded.members, recorded.rebuild_from), (plan.states.clone(), None));
            assert!(rig.disks[slot].flushes.get() > 0);
            assert!(rig.contents() == contents);
        }
    }
}

/// Hosts write all the while, from both cores: nothing of it is lost on the new member.
#[test]
fn what_is_written_meanwhile_is_there_afterwards() {
    for (turn, plan) in every_level().into_iter().enumerate() {
        let (mut rig, mut contents) = Rig::filled(&plan.clone().without(1), turn as u64);
        rig.add(1);
        rig.start();
        let mut random = Random::new(turn as u64);
        for write in 0..60u64 {
            let at = random.below(contents.len() as u64 / BLOCK) * BLOCK;
            let len = ((1 + random.below(64)) * BLOCK).min(contents.len() as u64 - at);
            let bytes = vec![write as u8 | 0x80; len as usize];
            rig.write(write as usize % 2, at, &bytes).unwrap();
            contents[at as usize..][..len as usize].copy_from_slice(&bytes);
        }
        rig.finish();
        assert_eq!(rig.shared.member_states(), plan.states);
        rig.assert_holds(&contents);
    }
}

/// Power fails at any moment, and what was not flushed is lost: the rebuild goes on where the
/// superblocks say, and that is right.
#[test]
fn a_rebuild_that_was_cut_off_goes_on_where_it_was_recorded() {
    let mut resumed = 0;
    for (turn, plan) in every_level().into_iter().enumerate() {
        for seed in 0..6 {
            let (mut rig, contents) = Rig::filled(&plan.clone().without(0), seed);
            rig.shared.set_checkpoint_interval(256 << 10);
            // In small steps, as beside a busy host.
            rig.shared.set_resync_rates(1, Some(64 << 20));
            rig.add(0);
            rig.start();
            for cut in 0..3 {
                // Somewhere on the way, often a step before or after a checkpoint.
                let until = (seed + 1) * plan.geometry.capacity_bytes() / 8;
                let shared = Arc::clone(&rig.shared);
                let is_there = || shared.rebuild_position_bytes() >= until;
                rig.world.run_until(|| is_there() || !shared.is_degraded());
                rig.world.run_for(20 * cut + 7 * turn as u64);
                rig = rig.cut_power(seed * 10 + cut);
                let position = rig.shared.rebuild_position_bytes();
                let is_rebuilding = rig.shared.member_states()[0] == MemberState::Rebuilding;
                resumed += usize::from(is_rebuilding && position > 0);
                rig.shared.set_checkpoint_interval(256 << 10);
                rig.start();
            }
            rig.finish();
            rig.assert_holds(&contents);
        }
    }
    assert!(resumed > 50, "{resumed}");
}

/// A member that comes during another's rebuild is filled from the beginning.
#[test]
fn a_second_member_begins_at_the_beginning() {
    for (plan, slots) in [
        (Plan::new(Level::Raid6, 6, 4 << 20), [1, 2]),
        (Plan::new(Level::Raid10, 4, 4 << 20), [0, 2]),
        (Plan::new(Level::Raid1, 3, 4 << 20), [0, 2]),
    ] {
        let [first, second] = slots;
        let (mut rig, contents) = Rig::filled(&plan.clone().without(first).without(second), 3);
        rig.shared.set_resync_rates(1, Some(64 << 20));
        rig.add(first);
        rig.start();
        let shared = Arc::clone(&rig.shared);
        assert!(rig.world.run_until(|| shared.rebuild_position_bytes() > 0));
        rig.add(second);
        assert_eq!(rig.shared.rebuild_position_bytes(), 0);
        rig.finish();
        assert_eq!(rig.shared.member_states(), plan.states);
        assert_eq!(rig.shared.rebuilds_completed(), 1, "both at once");
        rig.assert_holds(&contents);
    }
}

/// A drive that fails and is replaced during its rebuild: the new one gets everything, though the
/// walk that began for the old one was half way.
#[test]
fn a_replacement_of_the_replacement_gets_everything() {
    let plan = Plan::new(Level::Raid5, 4, 4 << 20);
    let (mut rig, contents) = Rig::filled(&plan.clone().without(2), 3);
    rig.shared.set_resync_rates(1, Some(64 << 20));
    rig.add(2);
    rig.start();
    let shared = Arc::clone(&rig.shared);
    assert!(rig.world.run_until(|| shared.rebuild_position_bytes() > 0));
    rig.shared.fail_member(2, MemberFault::Operator);
    assert!(rig.shared.remove_member(2));
    rig.arrays.iter().for_each(|array| array.take_drive(2));
    rig.add(2);
    rig.finish();
    assert_eq!(rig.shared.member_states(), plan.states);
    rig.assert_holds(&contents);
}

/// A block of the only source that cannot be read is bad on the new member, and nothing else is
/// lost; when it is written it is good again.
#[test]
fn an_unreadable_source_costs_its_blocks_only() {
    for plan in [Plan::new(Level::Raid1, 2, 2 << 20), Plan::new(Level::Raid5, 4, 2 << 20)] {
        let (mut rig, mut contents) = Rig::filled(&plan.clone().without(1), 3);
        let (bad, block) = (100 * BLOCK, 100);
        rig.disks[0].spoil(block);
        rig.add(1);
        rig.recover();
        assert_eq!(rig.shared.member_states(), plan.states);
        let lost = BadRange { start_bytes: bad, end_bytes: bad + BLOCK };
        assert_eq!(rig.shared.bad_blocks(1), [lost]);
        let recorded = rig.keeper.recorded.lock().unwrap().clone().unwrap();
        assert_eq!(recorded.bad_blocks[1], [lost]);
        assert!(rig.shared.bad_blocks(0).is_empty());
        // Where in the array that is.
        let places = [0, 1].map(|slot| plan.geometry.array_offset(slot, bad));
        for at in (0..contents.len() as u64).step_by(BLOCK as usize) {
            let read = rig.read(0, at, BLOCK as usize);
            match read {
                Ok(read) => assert!(read == contents[at as usize..][..BLOCK as usize], "{at}"),
                Err(_) => assert!(places.contains(&Some(at)), "{at}"),
            }
        }
        if plan.geometry.level() == Level::Raid1 {
            rig.write(1, bad, &[9; BLOCK as usize]).unwrap();
            contents[bad as usize..][..BLOCK as usize].fill(9);
            assert!(rig.shared.bad_blocks(1).is_empty());
            rig.assert_holds(&contents);
        }
    }
}

/// With more redundancy a source that cannot be read costs nothing, and is repaired on the way.
#[test]
fn an_unreadable_source_is_made_good_from_others() {
    for plan in [Plan::new(Level::Raid6, 5, 2 << 20), Plan::new(Level::Raid1, 3, 2 << 20)] {
        let (mut rig, contents) = Rig::filled(&plan.clone().without(1), 3);
        let blocks = [0, 7, 100, 101, 4095];
        blocks.iter().for_each(|&block| rig.disks[0].spoil(block));
        rig.add(1);
        rig.recover();
        assert_eq!(rig.shared.member_states(), plan.states);
        assert!((0..plan.states.len()).all(|slot| rig.shared.bad_blocks(slot).is_empty()));
        rig.assert_holds(&contents);
        assert!(rig.contents() == contents);
        if plan.geometry.parities() > 0 {
            assert!(rig.disks[0].unreadable.borrow().is_empty(), "they were written again");
        }
    }
}

/// Known bad blocks of a source are not read, whatever the drive would say.
#[test]
fn bad_blocks_of_a_source_are_not_copied() {
    for level in [Level::Raid1, Level::Raid5] {
        let members = if level == Level::Raid1 { 2 } else { 3 };
        let mut plan = Plan::new(level, members, 2 << 20).without(1);
        let bad = BadRange { start_bytes: 64 << 10, end_bytes: (64 << 10) + 2 * BLOCK };
        plan.bad_blocks = vec![vec![bad]];
        let (mut rig, _) = Rig::filled(&plan, 3);
        rig.add(1);
        rig.recover();
        assert_eq!(rig.shared.member_states()[1], MemberState::InSync);
        assert_eq!(rig.shared.bad_blocks(1), [bad]);
    }
}

/// What a member alone had that left before parity was ever right is lost. That is noted once for
/// all that is done under one lock, and the new member is in sync.
#[test]
fn what_was_lost_before_parity_was_right_is_noted_together() {
    for level in [Level::Raid5, Level::Raid6] {
        let mut plan = Plan::new(level, 5, 2 << 20).without(1);
        plan.resync_from = 0;
        let (mut rig, _) = Rig::filled(&plan, 3);
        rig.add(1);
        rig.recover();
        assert!(rig.shared.member_states().iter().all(|state| *state == MemberState::InSync));
        let chunk = u64::from(CHUNK);
        let geometry = &plan.geometry;
        for row in 0..geometry.rows() {
            let is_bad = |slot: usize| {
                let bad = rig.shared.bad_blocks(slot);
                bad.iter().any(|bad| bad.start_bytes <= row * chunk && row * chunk < bad.end_bytes)
            };
            let parity = [Some(geometry.parity_slot(row)), geometry.q_slot(row)];
            let is_lost = !parity.contains(&Some(1));
            let expected =
                (0..5).map(|slot| is_lost && (slot == 1 || parity.contains(&Some(slot))));
            assert_eq!((0..5).map(is_bad).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        }
        // Eight of 256 KiB, and what else there is to record.
        assert!(rig.shared.wanted().version < 20, "{}", rig.shared.wanted().version);
    }
}

/// Where a list of bad blocks is full the rebuild stops, for good, and no member fails. What is
/// written again makes room.
#[test]
fn a_full_list_of_bad_blocks_stops_the_rebuild_where_it_is() {
    let is_stuck = |rig: &Rig| {
        let limit = rig.status().limited_by;
        matches!(limit, Some(Limit::BadBlocksFull { .. }))
    };
    for level in [Level::Raid1, Level::Raid5] {
        let members = if level == Level::Raid1 { 2 } else { 5 };
        let mut plan = Plan::new(level, members, 16 << 20).without(1);
        let geometry = plan.geometry;
        plan.bad_block_limit = 48;
        // So that not all of it is under way at once.
        plan.memory_bytes = 1 << 20;
        if level == Level::Raid1 {
            // Of every 128 KiB one block.
            let bad = |at: u64| BadRange { start_bytes: at << 17, end_bytes: (at << 17) + BLOCK };
            plan.bad_blocks = vec![(0..128).map(bad).collect()];
        } else {
            plan.resync_from = 0;
        }
        let (mut rig, contents) = Rig::filled(&plan, 3);
        rig.add(1);
        rig.start();
        assert!(rig.world.run_until(|| is_stuck(&rig)));
        rig.rest(60);
        let position = rig.shared.rebuild_position_bytes();
        assert!((1..geometry.capacity_bytes()).contains(&position), "{position}");
        let recorded = rig.shared.wanted();
        assert_eq!(recorded.rebuild_from, Some(position));
        assert_eq!(recorded.members[1], MemberState::Rebuilding);
        rig.rest(60);
        assert!(rig.world.run_until(|| is_stuck(&rig)));
        assert_eq!(rig.shared.wanted(), recorded);
        // It goes on by itself once what is lost has been written again, and is stuck once more.
        let mut stops = 1;
        while rig.shared.rebuilds_completed() == 0 {
            let position = rig.shared.rebuild_position_bytes();
            // Whole rows: of a part of one, parity could not be computed.
            let row_bytes = 4 * CHUNK as usize;
            for at in (0..position).step_by(row_bytes) {
                let again = &contents[at as usize..][..row_bytes];
                rig.write(0, at, again).unwrap();
            }
            let is_over = || rig.shared.rebuilds_completed() > 0 || is_stuck(&rig);
            rig.rest(6);
            assert!(rig.world.run_until(is_over));
            stops += 1;
            assert!(stops < 20, "it does not get on from {position}");
        }
        rig.finish();
        assert!(rig.shared.member_states().iter().all(|state| *state == MemberState::InSync));
        rig.stop();
    }
}

/// A target that does not write, or does not flush, is out; the array goes on as before.
#[test]
fn a_target_that_fails_ends_the_rebuild() {
    let mut reached = 0;
    for plan in every_level() {
        for (after, error) in [(0, EIO), (3, DriveError::Gone), (7, DriveError::TimedOut)] {
            let (mut rig, contents) = Rig::filled(&plan.clone().without(1), after);
            rig.add(1);
            rig.disks[1].write_error.set(Some(error));
            rig.disks[1].writes_before_error.set(after);
            rig.recover();
            if rig.disks[1].writes_before_error.get() > 0 {
                continue;
            }
            reached += 1;
            assert_eq!(rig.shared.member_states()[1], MemberState::Failed);
            assert_eq!(rig.shared.member_fault(1), Some(MemberFault::Write(error)));
            assert_eq!(rig.shared.failure(), None);
            assert!(rig.contents() == contents);
            rig.stop();
        }
        let (mut rig, contents) = Rig::filled(&plan.clone().without(1), 9);
        rig.add(1);
        rig.disks[1].flush_error.set(Some(EIO));
        rig.recover();
        assert_eq!(rig.shared.member_states()[1], MemberState::Failed);
        assert_eq!(rig.shared.member_fault(1), Some(MemberFault::Flush(EIO)));
        assert!(rig.contents() == contents);
        assert_eq!(rig.shared.rebuilds_completed(), 0);
    }
    assert!(reached > 10, "{reached}");
}

/// Another member fails during the rebuild. If the level can bear it the rebuild goes on without
/// that member; if not, the array has failed, and nothing hangs.
#[test]
fn another_member_that_fails_never_hangs_it() {
    for (turn, plan) in every_level().into_iter().enumerate() {
        for error in [DriveError::Gone, DriveError::TimedOut] {
            let (mut rig, contents) = Rig::filled(&plan.clone().without(1), turn as u64);
            rig.shared.set_resync_rates(1, Some(256 << 20));
            rig.add(1);
            rig.start();
            rig.world.run_for(300);
            if rig.shared.member_states()[1] != MemberState::Rebuilding {
                continue;
            }
            rig.disks[0].read_error.set(Some(error));
            rig.disks[0].write_error.set(Some(error));
            let shared = Arc::clone(&rig.shared);
            let is_over = || {
                shared.failure().is_some() || shared.member_states()[1] != MemberState::Rebuilding
            };
            assert!(rig.world.run_until(is_over), "it hangs");
            if rig.shared.failure().is_none() {
                assert_eq!(rig.shared.member_states()[1], MemberState::InSync);
                assert!(rig.contents() == contents);
            }
            rig.stop();
        }
    }
}

/// Without space below the target the rebuild waits, says so, and goes on.
#[test]
fn it_waits_for_space() {
    for plan in [Plan::new(Level::Raid1, 2, 2 << 20), Plan::new(Level::Raid6, 4, 2 << 20)] {
        let (mut rig, contents) = Rig::filled(&plan.clone().without(1), 3);
        rig.add(1);
        rig.disks[1].write_error.set(Some(DriveError::NoSpace));
        rig.start();
        let limit = Some(Limit::Space { slot: 1 });
        assert!(rig.world.run_until(|| rig.status().limited_by == limit));
        let disk = Rc::clone(&rig.disks[1]);
        rig.world.after(12_000_000_000, move || disk.write_error.set(None));
        rig.finish();
        assert_eq!(rig.shared.member_states(), plan.states);
        rig.assert_holds(&contents);
    }
}

/// With hardly any memory the rebuild does with smaller pieces, and waits when there is none.
#[test]
fn it_does_with_little_memory() {
    for mut plan in every_level() {
        plan.memory_bytes = 1 << 20;
        let (mut rig, contents) = Rig::filled(&plan.clone().without(0), 3);
        rig.add(0);
        let held: Vec<_> = std::iter::from_fn(|| rig.pool.allocate(16 << 10)).take(40).collect();
        rig.start();
        rig.world.run_for(500);
        rig.world.after(50_000_000, move || drop(held));
        rig.finish();
        rig.assert_holds(&contents);
    }
}

/// A member that comes back gets what was written without it, and nothing else.
#[test]
fn a_member_that_comes_back_is_rebuilt_where_it_misses_something() {
    for level in [Level::Raid1, Level::Raid5, Level::Raid10] {
        let members = if level == Level::Raid1 { 2 } else { 4 };
        let mut plan = Plan::new(level, members, 8 << 20);
        plan.dirty = Some(Vec::new());
        let (mut rig, mut contents) = Rig::filled(&plan, 3);
        rig.shared.fail_member(1, MemberFault::Operator);
        assert!(rig.shared.remove_member(1));
        for at in [3 << 20, (5 << 20) + 4096] {
            rig.write(0, at, &[0xa5; 8192]).unwrap();
            contents[at as usize..][..8192].fill(0xa5);
        }
        let disk = Rc::clone(&rig.disks[1]);
        disk.written.borrow_mut().clear();
        rig.arrays.iter().for_each(|array| array.take_drive(1));
        rig.put_drive(1, disk);
        assert!(rig.shared.readd_member(1, 7, &[]));
        rig.recover();
        assert_eq!(rig.shared.member_states(), plan.states);
        rig.assert_holds(&contents);
        let written = rig.disks[1].written_bytes();
        assert!(written <= 3 * REGION, "{level:?}: {written}");
        assert!(written > 0, "{level:?}");
    }
}

/// Where parity is not trusted, data cannot be rebuilt: it is an error, never garbage.
#[test]
fn data_without_trusted_parity_is_not_made_up() {
    let mut plan = Plan::new(Level::Raid5, 4, 1 << 20).without(1);
    plan.resync_from = plan.geometry.capacity_bytes() - 3 * 2 * u64::from(CHUNK);
    let (mut rig, contents) = Rig::filled(&plan, 3);
    rig.add(1);
    rig.recover();
    assert_eq!(rig.shared.member_states()[1], MemberState::InSync);
    let resync_from = plan.resync_from;
    assert_eq!(rig.shared.resync_position_bytes(), IN_SYNC, "and the resync has passed");
    let mut lost = 0;
    for at in (0..contents.len() as u64).step_by(BLOCK as usize) {
        match rig.read(0, at, BLOCK as usize) {
            Ok(read) => assert!(read == contents[at as usize..][..BLOCK as usize], "{at}"),
            Err(error) => {
                assert!(matches!(error, ArrayError::Unrecovered { .. }), "{error}");
                let row = plan.geometry.row_of(at);
                assert!(plan.geometry.row_range(row).end > resync_from, "{at}");
                lost += 1;
            }
        }
    }
    // The rows beyond the position in which the member has data; the position is in the first.
    assert!(lost > 0, "{lost}");
    // Written, it is there again.
    let at = contents.len() as u64 - 3 * u64::from(CHUNK);
    rig.write(0, at, &vec![1; 3 * CHUNK as usize]).unwrap();
    assert_eq!(rig.read(1, at, 3 * CHUNK as usize).unwrap(), vec![1; 3 * CHUNK as usize]);
}

/// Copies that need not agree are made to, by the rebuild as well.
#[test]
fn a_rebuild_of_mirrors_makes_unsynced_copies_agree() {
    let mut plan = Plan::new(Level::Raid1, 3, 2 << 20).without(2);
    plan.resync_from = 1 << 20;
    let (mut rig, original) = Rig::filled(&plan, 3);
    let other = contents(original.len(), 99);
    rig.disks[1].put(1 << 20, &other[1 << 20..]);
    rig.add(2);
    rig.recover();
    rig.assert_holds(&original);
    assert!(rig.shared.is_in_sync());
}

/// Zeros do not fill a sparse drive.
#[test]
fn zeros_are_zeroed_not_written() {
    let plan = Plan::new(Level::Raid5, 3, 2 << 20).without(0);
    let zeros = vec![0; plan.geometry.capacity_bytes() as usize];
    let disks = super::rig::disks_with(&plan.geometry, &zeros);
    let mut rig = Rig::over(&plan, disks, 1);
    let disk = Disk::new(2 << 20);
    rig.put_drive(0, Rc::clone(&disk));
    assert!(rig.shared.add_member(0));
    rig.recover();
    assert_eq!(rig.shared.member_states()[0], MemberState::InSync);
    assert_eq!((disk.zeroed_bytes.get(), disk.written_bytes()), (2 << 20, 2 << 20));
}
