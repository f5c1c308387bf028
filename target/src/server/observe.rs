//! Looking at a running array: from its parts to [`Facts`], which [`super::verdict`] judges.

use raidfabric_raid::array::{MemberState, ResyncProgress, Stall, Timer};
use raidfabric_raid::geometry::Level;

use super::inspect::Look;
use super::report::{ArrayStatus, MemberCondition, MemberStatus, Task, TaskKind};
use super::served::ServedArray;
use super::spares;
use super::verdict::Facts;
use crate::runtime::Clock;

/// How an array is.
pub(super) fn array(array: &ServedArray) -> ArrayStatus {
    let shared = &array.shared;
    let geometry = shared.geometry();
    Facts {
        name: array.name().to_owned(),
        uuid: array.uuid(),
        level: level(geometry.level()).to_owned(),
        chunk_bytes: geometry.chunk_bytes().unwrap_or(0),
        size_bytes: geometry.capacity_bytes(),
        consistency: array.open.consistency.to_string(),
        is_stopped: array.is_stopped(),
        failure: shared.failure().map(|failure| failure.to_string()),
        is_in_sync: shared.is_in_sync(),
        tasks: tasks(array),
        members: members(array),
        spares: spares::look(&array.conduct.spares)
            .iter()
            .filter(|spare| !is_member(array, spare))
            .map(spares::report)
            .collect(),
    }
    .judge()
}

/// A spare that has taken a member's place is none any more.
fn is_member(array: &ServedArray, spare: &Look) -> bool {
    let slots = 0..array.shared.geometry().members();
    let mut labels = slots.filter_map(|slot| array.label(slot));
    labels.any(|label| label.identity.kind == spare.identity.kind)
}

fn tasks(array: &ServedArray) -> Vec<Task> {
    let progress = array.shared.resync_progress(Clock::new().now());
    progress.iter().map(sync_task).collect()
}

fn members(array: &ServedArray) -> Vec<MemberStatus> {
    let shared = &array.shared;
    let states = shared.member_states().into_iter().enumerate();
    let member = |(slot, state): (usize, MemberState)| {
        let errors = shared.member_errors(slot);
        let label = array.label(slot);
        MemberStatus {
            slot,
            drive: label.as_ref().map(|label| label.identity.name()),
            serial: label.and_then(|label| label.identity.serial),
            state: condition(state),
            why: shared.member_fault(slot).map(|fault| fault.to_string()),
            read_errors: errors.reads,
            write_errors: errors.writes,
            flush_errors: errors.flushes,
            no_space_errors: errors.no_space,
            bad_blocks: shared.bad_blocks(slot).len() as u64,
            temperature_kelvin: array.temperature_kelvin(slot),
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
        Level::Raid5 => "raid5",
        Level::Raid6 => "raid6",
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
