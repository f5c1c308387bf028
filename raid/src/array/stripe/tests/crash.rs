//! Arrays with a log: the process dies at any moment, perhaps together with as many members as the
//! level tolerates; the logs are replayed, and every block is looked at.

use super::*;
use crate::array::{BadRange, IntentLayout, LogKind, LogLayout, LogPlace};
use crate::assemble::test_medium::TestMedium;
use crate::memory::MemoryDrive;
use crate::replay;
use rig::DATA_OFFSET;

const UUID: [u8; 16] = [7; 16];
const LOG_BYTES: u64 = 1 << 20;

fn log_place(plan: &Plan) -> LogPlace {
    let data_bytes = plan.rows * u64::from(plan.chunk);
    LogPlace { offset_bytes: DATA_OFFSET + data_bytes, len_bytes: LOG_BYTES }
}

fn kind(plan: &Plan) -> LogKind {
    if plan.level == Level::Raid5 { LogKind::Ppl } else { LogKind::WriteLog }
}

pub(super) fn with_log(mut plan: Plan) -> (Plan, Vec<MemoryDrive>) {
    let place = log_place(&plan);
    let drives: Vec<_> = (0..plan.members)
        .map(|slot| {
            let drive = MemoryDrive::new(place.offset_bytes + place.len_bytes);
            let mark = replay::mark(kind(&plan), UUID, slot, 0);
            drive.write_now(place.offset_bytes, &mark[..]).unwrap();
            drive
        })
        .collect();
    let in_use = |slot: usize| plan.states[slot] == MemberState::InSync;
    plan.intent = IntentLayout {
        regions: None,
        log: Some(LogLayout {
            kind: kind(&plan),
            array_uuid: UUID,
            places: (0..plan.members).map(|slot| in_use(slot).then_some(place)).collect(),
            next_generation: 1,
        }),
    };
    (plan, drives)
}

/// What is on the drives now.
pub(super) fn snapshot(drives: &[MemoryDrive]) -> Vec<Vec<u8>> {
    let image = |drive: &MemoryDrive| {
        let mut bytes = vec![0; drive.size_bytes() as usize];
        drive.read_now(0, &mut bytes).unwrap();
        bytes
    };
    drives.iter().map(image).collect()
}

/// Starts again from what was on the drives, without some of them, and looks at every block.
pub(super) fn check_start(
    plan: &Plan,
    images: &[Vec<u8>],
    lost: &[usize],
    model: &Model,
    began: u64,
) -> usize {
    let geometry = plan.geometry();
    let sizes: Vec<u64> = images.iter().map(|image| image.len() as u64).collect();
    let media = TestMedium::drives(&sizes, false);
    for (medium, image) in media.iter().zip(images) {
        for (page, bytes) in image.chunks(4096).enumerate() {
            if bytes.iter().any(|&byte| byte != 0) {
                medium.put(page as u64 * 4096, bytes);
            }
        }
    }
    let is_there = |slot: usize| plan.states[slot] == MemberState::InSync && !lost.contains(&slot);
    let members: Vec<_> = media
        .iter()
        .enumerate()
        .map(|(slot, medium)| {
            is_there(slot).then_some(replay::Member {
                medium,
                data_offset_bytes: DATA_OFFSET,
                log: Some(log_place(plan)),
                readable_below_bytes: u64::MAX,
                bad: &[],
            })
        })
        .collect();
    let input = replay::Input {
        geometry: &geometry,
        array_uuid: UUID,
        kind: kind(plan),
        block_bytes: BLOCK as u32,
        is_dirty: true,
        members: &members,
    };
    let decided = replay::plan(&input);
    assert!(decided.is_complete);
    replay::apply(&input, &decided).unwrap();
    let mut after = Plan { cores: 1, intent: IntentLayout::NONE, ..plan.clone() };
    after.bad_blocks = vec![Vec::new(); plan.members];
    for piece in &decided.bad {
        after.bad_blocks[piece.slot]
            .push(BadRange { start_bytes: piece.range.start, end_bytes: piece.range.end });
    }
    for slot in 0..plan.members {
        after.states[slot] =
            if is_there(slot) { MemberState::InSync } else { MemberState::Missing };
    }
    let drives: Vec<_> = media
        .iter()
        .zip(&sizes)
        .map(|(medium, &size)| {
            let drive = MemoryDrive::new(size);
            let mut bytes = vec![0; size as usize];
            crate::device::Medium::read_at(medium, 0, &mut bytes).unwrap();
            drive.write_now(0, &bytes).unwrap();
            drive
        })
        .collect();
    let rig = Rig::over(&after, drives, 1);
    if (0..plan.members).all(is_there) {
        assert_eq!(decided.bad, []);
        rig.check_parity();
    }
    let mut unreadable = 0;
    for at in (0..rig.capacity()).step_by(8 * BLOCK) {
        let len = (8 * BLOCK).min(rig.capacity() - at);
        if let Ok(bytes) = rig.read(0, at, len) {
            model.check(at, &bytes, began);
            continue;
        }
        for at in (at..at + len).step_by(BLOCK) {
            match rig.read(0, at, BLOCK) {
                Ok(bytes) => model.check(at, &bytes, began),
                Err(error) => {
                    assert!(matches!(error, ArrayError::Unrecovered { .. }), "{error}");
                    // Without two members, one that was being written and is not known takes the
                    // other with it: what the log tells cannot be written anywhere (`replay`).
                    let missing = (0..plan.members).filter(|&slot| !is_there(slot)).count();
                    assert!(
                        model.is_half_written(at) || missing == 2,
                        "{}, states {:?}, lost {lost:?}: block {} was not being written",
                        plan.level,
                        plan.states,
                        at / BLOCK,
                    );
                    unreadable += 1;
                }
            }
        }
    }
    unreadable
}

/// Runs a load, and looks at what every loss would leave of it at several moments.
fn crash(plan: &Plan, seed: u64, moments: u64, loses: impl Fn(u64) -> Vec<Vec<usize>>) -> usize {
    let (plan, drives) = with_log(plan.clone());
    let rig = Rig::over(&plan, drives, seed);
    let model = Model::new(rig.capacity());
    start_load(&rig, &model, Load { hosts: 6, requests: 1000, zeroing: 12, longest_blocks: 40 });
    let mut unreadable = 0;
    for moment in 0..moments {
        rig.world.run_for(150 + rig.world.below(500));
        let images = snapshot(&rig.drives);
        let began = model.time();
        for lost in loses(moment) {
            let unknown = check_start(&plan, &images, &lost, &model, began);
            // A loss is what it takes.
            assert!(
                unknown == 0 || !lost.is_empty() || plan.states.contains(&MemberState::Missing)
            );
            unreadable += unknown;
        }
    }
    unreadable
}

fn small(level: Level, members: usize) -> Plan {
    Plan::new(level, members, 8192, 8)
}

#[test]
fn a_crash_alone_leaves_everything_right() {
    for plan in [small(Level::Raid5, 4), small(Level::Raid6, 6)] {
        for seed in 0..6 {
            assert_eq!(crash(&plan, seed, 8, |_| vec![vec![]]), 0, "{} {seed}", plan.level);
        }
    }
}

#[test]
fn a_crash_and_losses_together_leave_right_what_was_not_being_written() {
    let single = |members: usize| move |_| (0..members).map(|slot| vec![slot]).collect();
    let double = |members: u64| {
        move |moment: u64| {
            let first = moment % members;
            vec![vec![first as usize, ((first + 1 + moment / members) % members) as usize]]
        }
    };
    let mut unreadable = 0;
    for seed in 0..4 {
        unreadable += crash(&small(Level::Raid5, 4), seed, 5, single(4));
        unreadable += crash(&small(Level::Raid6, 6), seed, 3, single(6));
        unreadable += crash(&small(Level::Raid6, 6), seed, 8, double(6));
    }
    println!("{unreadable} blocks are not known");
}

#[test]
fn a_crash_of_a_degraded_array_leaves_right_what_was_not_being_written() {
    for seed in 0..4 {
        for lost in 0..4 {
            let mut plan = small(Level::Raid5, 4);
            plan.states[lost] = MemberState::Missing;
            crash(&plan, seed, 3, |_| vec![vec![]]);
        }
        for lost in 0..6 {
            let mut plan = small(Level::Raid6, 6);
            plan.states[lost] = MemberState::Missing;
            crash(&plan, seed, 2, |moment| vec![vec![], vec![(lost + 1 + moment as usize) % 6]]);
        }
    }
}
