//! Where parity is not trusted, and members that are being rebuilt; and zeroing.

use super::*;
use rig::DATA_OFFSET;

fn random_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 40) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Drives of zeros, except for the parity from a row on, and what `garbage` says.
fn drives(plan: &Plan, garbage: impl Fn(u64, usize) -> bool) -> Vec<crate::memory::MemoryDrive> {
    let drives = plan.drives();
    let chunk = plan.chunk as usize;
    for (slot, drive) in drives.iter().enumerate() {
        for row in (0..plan.rows).filter(|&row| garbage(row, slot)) {
            let bytes = random_bytes(chunk, row * 100 + slot as u64);
            drive.write_now(DATA_OFFSET + row * chunk as u64, &bytes).unwrap();
        }
    }
    drives
}

fn is_parity(plan: &Plan, row: u64, slot: usize) -> bool {
    !matches!(plan.geometry().role_of(row, slot), crate::geometry::Role::Data(_))
}

/// What was written has right parity, though nothing that was there before had.
#[test]
fn a_write_leaves_right_parity_where_there_was_none() {
    for plan in shapes() {
        for seed in 0..4 {
            let plan = Plan { resync_from: 0, ..plan.clone() };
            let garbage = drives(&plan, |row, slot| is_parity(&plan, row, slot));
            let before: Vec<_> = garbage.iter().map(|drive| image(drive, &plan)).collect();
            let rig = Rig::over(&plan, garbage, seed);
            let model = Model::new(rig.capacity());
            assert_eq!(run_load(&rig, &model, MIXED), []);
            let began = model.time();
            let contents = rig.contents();
            model.check(0, &contents, began);
            let mut written = 0;
            for row in 0..plan.rows {
                let (p, q) = rig.expected_parity(row);
                for slot in (0..plan.members).filter(|&slot| is_parity(&plan, row, slot)) {
                    let is_p = plan.geometry().parity_slot(row) == slot;
                    let expected = if is_p { &p } else { &q };
                    let now = rig.chunk(row, slot);
                    let from = row as usize * plan.chunk as usize;
                    for at in (0..now.len()).step_by(BLOCK) {
                        let is_old = now[at..at + BLOCK] == before[slot][from + at..][..BLOCK];
                        let is_right = now[at..at + BLOCK] == expected[at..at + BLOCK];
                        written += u32::from(is_right);
                        assert!(is_old || is_right, "row {row} slot {slot} at {at}");
                        let range = at..at + BLOCK;
                        let touched = (0..plan.geometry().data_chunks()).any(|index| {
                            let slot = plan.geometry().data_slot(row, index);
                            rig.chunk(row, slot)[range.clone()].iter().any(|&byte| byte != 0)
                        });
                        assert!(is_right || !touched, "row {row} slot {slot} at {at}");
                    }
                }
            }
            assert!(written > 0);
        }
    }
}

fn image(drive: &crate::memory::MemoryDrive, plan: &Plan) -> Vec<u8> {
    let mut bytes = vec![0; (plan.rows * u64::from(plan.chunk)) as usize];
    drive.read_now(DATA_OFFSET, &mut bytes).unwrap();
    bytes
}

/// Nothing is computed from parity that is not trusted: it is an error, not garbage.
#[test]
fn untrusted_parity_is_not_used() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        let mut plan = Plan::new(level, members, 4096, 300);
        let shard = plan.geometry().shard_bytes() as usize;
        plan.resync_from = shard as u64;
        let drives = drives(&plan, |row, slot| {
            row >= plan.geometry().row_of(shard as u64) && is_parity(&plan, row, slot)
        });
        plan.states[1] = MemberState::Missing;
        let rig = Rig::over(&plan, drives, 3);
        let geometry = plan.geometry();
        let row_bytes = geometry.row_data_bytes() as usize;
        assert_eq!(rig.read(0, 0, 2 * row_bytes).unwrap(), vec![0; 2 * row_bytes]);
        assert_eq!(rig.write(0, 0, &[1; 2048]), Ok(()));
        for row in geometry.row_of(shard as u64)..geometry.row_of(shard as u64) + members as u64 {
            for index in 0..geometry.data_chunks() {
                let at = geometry.offset_of(row, index, 0) as usize;
                let is_lost = geometry.data_slot(row, index) == 1;
                let read = rig.read(0, at, 4096);
                let lost = Err(ArrayError::Unrecovered { offset_bytes: at as u64 });
                assert_eq!(read, if is_lost { lost } else { Ok(vec![0; 4096]) }, "row {row}");
                // A write needs the others, or nothing if there is no parity to make.
                let others = (0..geometry.data_chunks()).filter(|&other| other != index);
                let needs_lost = others.clone().any(|other| geometry.data_slot(row, other) == 1);
                let has_parity = (0..members).any(|slot| slot != 1 && is_parity(&plan, row, slot));
                let result = rig.write(1, at, &[index as u8; 1024]);
                if needs_lost && has_parity {
                    assert!(matches!(result, Err(ArrayError::Unrecovered { .. })), "{result:?}");
                } else {
                    assert_eq!(result, Ok(()));
                }
            }
            // A whole row needs nothing, and is right afterwards; but nobody says so yet.
            let at = row as usize * row_bytes;
            assert_eq!(rig.write(0, at, &vec![row as u8; row_bytes]), Ok(()));
        }
    }
}

#[test]
fn members_that_are_being_rebuilt_get_every_write() {
    for plan in shapes() {
        let tolerance = plan.geometry().tolerance();
        for (seed, states) in
            states(plan.members, tolerance, MemberState::Rebuilding).into_iter().enumerate()
        {
            let middle = plan.rows / 2;
            let position = plan.geometry().row_range(middle).start;
            let mut plan = Plan { states, ..plan.clone() };
            plan.rebuild_from = Some(position);
            let garbage = drives(&plan, |row, slot| {
                row >= middle && plan.states[slot] == MemberState::Rebuilding
            });
            let before: Vec<_> = garbage.iter().map(|drive| image(drive, &plan)).collect();
            let rig = Rig::over(&plan, garbage, seed as u64);
            let model = Model::new(rig.capacity());
            assert_eq!(run_load(&rig, &model, MIXED), []);
            let began = model.time();
            let contents = rig.contents();
            model.check(0, &contents, began);
            // The rebuilding members hold what they should, or what they held before where nothing
            // was written.
            let geometry = plan.geometry();
            let chunk = plan.chunk as usize;
            for row in 0..plan.rows {
                for slot in
                    (0..plan.members).filter(|&slot| plan.states[slot] != MemberState::InSync)
                {
                    let should = should_hold(&plan, &contents, row, slot);
                    let now = rig.chunk(row, slot);
                    for at in (0..chunk).step_by(BLOCK) {
                        let is_right = now[at..at + BLOCK] == should[at..at + BLOCK];
                        let old = &before[slot][row as usize * chunk + at..][..BLOCK];
                        let is_old = row >= middle && now[at..at + BLOCK] == *old;
                        assert!(is_right || is_old, "row {row} slot {slot} at {at}");
                        let geometry = &geometry;
                        if let crate::geometry::Role::Data(index) = geometry.role_of(row, slot) {
                            let block =
                                &contents[geometry.offset_of(row, index, at as u64) as usize..];
                            let was_written = block[..BLOCK].iter().any(|&byte| byte != 0);
                            assert!(is_right || !was_written, "row {row} slot {slot} at {at}");
                        }
                    }
                }
            }
        }
    }
}

/// What a member should hold of a row with these contents of the array.
fn should_hold(plan: &Plan, contents: &[u8], row: u64, slot: usize) -> Vec<u8> {
    let geometry = plan.geometry();
    let chunk = plan.chunk as usize;
    let data = |index| &contents[geometry.offset_of(row, index, 0) as usize..][..chunk];
    let mut sum = vec![0; chunk];
    let role = geometry.role_of(row, slot);
    if let crate::geometry::Role::Data(index) = role {
        return data(index).to_vec();
    }
    for index in (0..geometry.data_chunks()).rev() {
        for (byte, &of_data) in sum.iter_mut().zip(data(index)) {
            let carry = if *byte & 0x80 != 0 { 0x1d } else { 0 };
            let doubled =
                if role == crate::geometry::Role::Q { (*byte << 1) ^ carry } else { *byte };
            *byte = doubled ^ of_data;
        }
    }
    sum
}

#[test]
fn zeroed_rows_are_right_whatever_they_were() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 6)] {
        for cannot in [None, Some(0), Some(members - 1)] {
            let plan = Plan { resync_from: 0, ..Plan::new(level, members, 4096, 20) };
            let rig = Rig::over(&plan, drives(&plan, |_, _| true), 5);
            rig.faults.cannot_zero.borrow_mut().extend(cannot);
            let array = Rc::clone(&rig.arrays[0]);
            let row = plan.geometry().row_data_bytes();
            let (at, len) = (row / 2, 6 * row);
            let before = rig.contents();
            rig.run(async move { array.write_zeroes(at, len, true, false).await }).unwrap();
            let mut expected = before;
            expected[at as usize..(at + len) as usize].fill(0);
            assert!(rig.contents() == expected);
            for row in 1..6 {
                for slot in 0..members {
                    assert!(rig.chunk(row, slot).iter().all(|&byte| byte == 0), "{row} {slot}");
                }
            }
        }
    }
}

#[test]
fn deallocation_is_of_whole_rows_where_all_members_can() {
    let plan = Plan::new(Level::Raid5, 4, 4096, 20);
    for cannot in [None, Some(2)] {
        let rig = Rig::new(&plan, 5);
        rig.write(0, 0, &vec![3; rig.capacity()]).unwrap();
        rig.faults.cannot_zero.borrow_mut().extend(cannot);
        let row = plan.geometry().row_data_bytes();
        for turn in 0..2 {
            let array = Rc::clone(&rig.arrays[1]);
            let at = row / 2 + turn * 5 * row;
            rig.run(async move { array.deallocate(at, 4 * row).await }).unwrap();
        }
        let contents = rig.contents();
        rig.check_losses(&contents);
        for (block, bytes) in contents.chunks(BLOCK).enumerate() {
            let row = (block * BLOCK) as u64 / row;
            let first = (1..4).contains(&row);
            // Who finds only on the way that a member cannot does it the other way, once.
            let second = (6..9).contains(&row) && cannot.is_none();
            let expected = if first || second { 0 } else { 3 };
            assert!(bytes.iter().all(|&byte| byte == expected), "block {block}");
        }
    }
}

#[test]
fn rows_can_be_held_and_synced() {
    let plan = Plan { cores: 1, resync_from: 0, ..Plan::new(Level::Raid6, 5, 4096, 10) };
    let rig = Rig::over(&plan, drives(&plan, |row, _| row < 3), 5);
    let contents = rig.contents();
    let array = Rc::clone(&rig.arrays[0]);
    rig.run(async move {
        let locks = array.lock_rows(0..3).await;
        for row in 0..3 {
            array.sync_row(row).await.unwrap();
        }
        drop(locks);
    });
    rig.check_parity();
    assert!(rig.contents() == contents);
    check_tidy(&rig);
}
