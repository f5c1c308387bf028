//! Looking at a running array: from its parts to [`Facts`], which [`super::verdict`] judges.

use raidfabric_raid::array::{MemberState, ResyncProgress, Stall};
use raidfabric_raid::geometry::Level;

use super::plane::ServedArray;
use super::report::{ArrayStatus, MemberCondition, MemberStatus, Task, TaskKind};
use super::verdict::Facts;

/// How an array is.
pub(super) fn array(array: &ServedArray) -> ArrayStatus {
    let shared = &array.shared;
    let geometry = shared.geometry();
    Facts {
        name: array.open.name.clone(),
        uuid: array.open.uuid,
        level: level(geometry.level()).to_owned(),
        chunk_bytes: geometry.chunk_bytes().unwrap_or(0),
        size_bytes: geometry.capacity_bytes(),
        consistency: match geometry.level() {
            Level::Raid0 => "none".to_owned(),
            _ => "resync".to_owned(),
        },
        is_stopped: false,
        failure: shared.failure().map(|failure| failure.to_string()),
        is_in_sync: shared.is_in_sync(),
        tasks: array.sync_progress().map(|progress| sync_task(&progress)).into_iter().collect(),
        members: members(array),
        spares: Vec::new(),
    }
    .judge()
}

fn members(array: &ServedArray) -> Vec<MemberStatus> {
    let shared = &array.shared;
    let drives = array.open.drives();
    let states = shared.member_states().into_iter().enumerate();
    let member = |(slot, state): (usize, MemberState)| {
        let errors = shared.member_errors(slot);
        let drive = drives.get(slot);
        MemberStatus {
            slot,
            drive: drive.map(|drive| drive.name.clone()),
            serial: drive.and_then(|drive| drive.serial.clone()),
            state: condition(state),
            why: shared.member_fault(slot).map(|fault| fault.to_string()),
            read_errors: errors.reads,
            write_errors: errors.writes,
            flush_errors: errors.flushes,
            no_space_errors: errors.no_space,
            bad_blocks: shared.bad_blocks(slot).len() as u64,
            temperature_kelvin: drive.and_then(|drive| drive.temperature_kelvin),
        }
    };
    states.map(member).collect()
}

fn condition(state: MemberState) -> MemberCondition {
    match state {
        MemberState::InSync => MemberCondition::InSync,
        MemberState::Rebuilding => MemberCondition::Rebuilding,
        MemberState::Failed => MemberCondition::Failed,
        MemberState::Missing => MemberCondition::Missing,
    }
}

/// A level as the configuration has it.
pub(super) fn level(level: Level) -> &'static str {
    match level {
        Level::Raid0 => "raid0",
        Level::Raid1 => "raid1",
        Level::Raid10 => "raid10",
    }
}

fn sync_task(progress: &ResyncProgress) -> Task {
    let left_bytes = progress.total_bytes.saturating_sub(progress.position_bytes);
    let rate = Some(progress.bytes_per_second).filter(|rate| *rate > 0);
    Task {
        kind: TaskKind::Resync,
        slot: None,
        position_bytes: progress.position_bytes,
        end_bytes: progress.total_bytes,
        bytes_per_second: rate,
        seconds_left: rate.map(|rate| left_bytes.div_ceil(rate)),
        limited_by: progress.stall.map(|stall| match stall {
            Stall::NoSpace { slot } => format!("no space below slot {slot}"),
            Stall::NoMemory => "no memory".to_owned(),
        }),
        mismatch_bytes: None,
    }
}
