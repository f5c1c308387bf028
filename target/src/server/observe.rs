//! Looking at a running array: from its parts to [`Facts`], which [`super::verdict`] judges.

use raidfabric_raid::array::{CheckMode, Limit, MemberState, RecoveryState, RecoveryStatus, Timer};
use raidfabric_raid::geometry::Level;

use super::compose::OpenComposed;
use super::inspect::Look;
use super::report::{
    ArrayState, ArrayStatus, CheckResult, MemberCondition, MemberStatus, MismatchPlace, Problem,
    Severity, Task, TaskKind,
};
use super::served::ServedArray;
use super::spares;
use super::verdict::Facts;
use crate::runtime::Clock;

/// md's unit, in which checks count.
const SECTOR_BYTES: u64 = 512;

/// How an array is.
pub(super) fn array(array: &ServedArray) -> ArrayStatus {
    let shared = &array.shared;
    let geometry = shared.geometry();
    let status = shared.recovery_status(Clock::new().now());
    Facts {
        name: array.name().to_owned(),
        uuid: array.uuid(),
        level: level(geometry.level()).to_owned(),
        chunk_bytes: geometry.chunk_bytes().unwrap_or(0),
        size_bytes: geometry.capacity_bytes(),
        consistency: array.open.consistency.to_string(),
        is_stopped: array.is_stopped(),
        failure: shared.failure().map(|failure| failure.to_string()),
        is_in_sync: shared.is_in_sync() && status.state != RecoveryState::Resync,
        is_building: array.is_building(),
        last_check: last_check(array),
        tasks: tasks(array, &status),
        members: members(array),
        spares: spares::look(&array.conduct.spares)
            .iter()
            .filter(|spare| !is_member(array, spare))
            .map(spares::report)
            .collect(),
    }
    .judge()
}

/// How an array over arrays is: as its worst leaf.
pub(super) fn composed(
    array: &OpenComposed,
    leaves: &[std::sync::Arc<ServedArray>],
) -> ArrayStatus {
    let leaves: Vec<ArrayStatus> = leaves.iter().map(|leaf| self::array(leaf)).collect();
    of_leaves(array, &leaves)
}

fn of_leaves(array: &OpenComposed, leaves: &[ArrayStatus]) -> ArrayStatus {
    let mut problems: Vec<Problem> =
        leaves.iter().enumerate().filter_map(|(slot, leaf)| about_leaf(slot, leaf)).collect();
    problems.sort_by_key(|problem| std::cmp::Reverse(problem.severity));
    let tasks = leaves.iter().enumerate().flat_map(|(slot, leaf)| {
        leaf.tasks.iter().map(move |task| Task { slot: Some(slot), ..task.clone() })
    });
    ArrayStatus {
        name: array.name.clone(),
        uuid: array.uuid,
        level: array.level.to_string(),
        chunk_bytes: array.geometry.chunk_bytes().unwrap_or(0),
        size_bytes: array.geometry.capacity_bytes(),
        consistency: crate::config::Consistency::None.to_string(),
        state: leaves.iter().map(|leaf| leaf.state).max().unwrap_or(ArrayState::Healthy),
        severity: leaves.iter().map(|leaf| leaf.severity).max().unwrap_or(Severity::Ok),
        problems,
        tasks: tasks.collect(),
        redundancy_remaining: leaves
            .iter()
            .map(|leaf| leaf.redundancy_remaining)
            .min()
            .unwrap_or(0),
        members: leaves.iter().enumerate().map(|(slot, leaf)| member_of(slot, leaf)).collect(),
        spares: Vec::new(),
        last_check: None,
    }
}

/// What is wrong with a leaf, and where more is told.
fn about_leaf(slot: usize, leaf: &ArrayStatus) -> Option<Problem> {
    let name = &leaf.name;
    let state = leaf.state.as_str();
    let worst = leaf.problems.first().map(|problem| format!(": {}", problem.what));
    (leaf.severity > Severity::Ok).then(|| Problem {
        severity: leaf.severity,
        what: format!("slot {slot}, array {name}, is {state}{}", worst.unwrap_or_default()),
        cure: Some(format!("raidfabric status {name} tells what to do")),
    })
}

fn member_of(slot: usize, leaf: &ArrayStatus) -> MemberStatus {
    let state = match leaf.state {
        ArrayState::Failed | ArrayState::Stopped => MemberCondition::Failed,
        ArrayState::Waiting => MemberCondition::Missing,
        _ => MemberCondition::InSync,
    };
    let sum = |count: fn(&MemberStatus) -> u64| leaf.members.iter().map(count).sum();
    MemberStatus {
        slot,
        drive: Some(format!("array:{}", leaf.name)),
        serial: None,
        state,
        why: leaf.problems.first().map(|problem| problem.what.clone()),
        read_errors: sum(|member| member.read_errors),
        write_errors: sum(|member| member.write_errors),
        flush_errors: sum(|member| member.flush_errors),
        no_space_errors: sum(|member| member.no_space_errors),
        bad_blocks: sum(|member| member.bad_blocks),
        temperature_kelvin: leaf.members.iter().filter_map(|one| one.temperature_kelvin).max(),
    }
}

/// A spare that has taken a member's place is none any more.
fn is_member(array: &ServedArray, spare: &Look) -> bool {
    let slots = 0..array.shared.geometry().members();
    let mut labels = slots.filter_map(|slot| array.label(slot));
    labels.any(|label| label.identity.kind == spare.identity.kind)
}

fn tasks(array: &ServedArray, status: &RecoveryStatus) -> Vec<Task> {
    let kind = match status.state {
        RecoveryState::Idle => return Vec::new(),
        RecoveryState::Resync if array.is_building() => TaskKind::Build,
        RecoveryState::Resync => TaskKind::Resync,
        RecoveryState::Rebuild => TaskKind::Rebuild,
        RecoveryState::Check => TaskKind::Check,
        RecoveryState::Repair => TaskKind::Repair,
    };
    let is_check = matches!(kind, TaskKind::Check | TaskKind::Repair);
    let found = is_check.then(|| array.shared.check_report().mismatch_sectors * SECTOR_BYTES);
    let states = array.shared.member_states();
    let mut rebuilding = (0..).zip(states).filter(|(_, state)| *state == MemberState::Rebuilding);
    let slot = match (kind, rebuilding.next(), rebuilding.next()) {
        (TaskKind::Rebuild, Some((slot, _)), None) => Some(slot),
        _ => None,
    };
    let rate = Some(status.bytes_per_second).filter(|rate| *rate > 0);
    vec![Task {
        kind,
        slot,
        position_bytes: status.position_bytes,
        end_bytes: status.total_bytes,
        left_bytes: status.left_bytes,
        bytes_per_second: rate.filter(|_| !status.is_paused),
        seconds_left: status.eta.map(|left| left.as_secs()),
        limited_by: match status.is_paused {
            true => Some("an operator: it is paused".to_owned()),
            false => status.limited_by.map(limit),
        },
        mismatch_bytes: found,
    }]
}

fn limit(limit: Limit) -> String {
    match limit {
        Limit::Drive => "the drives".to_owned(),
        Limit::Foreground => "foreground latency".to_owned(),
        Limit::RateLimit => "the maximum rate (resync: max)".to_owned(),
        Limit::Memory => "lack of memory".to_owned(),
        Limit::BadBlocksFull { slot } => format!(
            "the list of bad blocks of slot {slot}, which is full: more has been lost than can be \
             noted; write what was lost before that place again, from a backup, to make room"
        ),
        Limit::Space { slot } => format!("lack of space below slot {slot}"),
    }
}

/// What the last check has found, once there has been one.
fn last_check(array: &ServedArray) -> Option<CheckResult> {
    let report = array.shared.check_report();
    let mode = report.mode.filter(|_| !report.is_wanted)?;
    let bytes = |sectors: u64| sectors.saturating_mul(SECTOR_BYTES);
    Some(CheckResult {
        is_repair: mode != CheckMode::Check,
        is_complete: report.is_complete,
        mismatch_bytes: bytes(report.mismatch_sectors),
        repaired_bytes: bytes(report.repaired_sectors),
        rewritten_bytes: bytes(report.rewritten_sectors),
        unreadable_bytes: bytes(report.unreadable_sectors),
        uncompared_bytes: report.uncompared_bytes,
        places: report
            .places
            .iter()
            .map(|place| MismatchPlace {
                offset_bytes: place.offset_bytes,
                len_bytes: place.len_bytes,
                slot: place.slot,
                is_repaired: place.repaired,
            })
            .collect(),
    })
}

fn members(array: &ServedArray) -> Vec<MemberStatus> {
    let shared = &array.shared;
    let states = shared.member_states().into_iter().enumerate();
    let member = |(slot, state): (usize, MemberState)| {
        let errors = shared.member_errors(slot);
        let label = array.label(slot);
        MemberStatus {
            slot,
            drive: array.drive_name(slot),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::compose::LeafPlace;
    use crate::server::verdict::tests::facts;

    fn over(names: [&str; 2]) -> OpenComposed {
        let leaf = |(array, name): (usize, &str)| LeafPlace {
            array,
            name: name.into(),
            data_offset_bytes: 1 << 20,
        };
        OpenComposed {
            name: "wide".into(),
            uuid: uuid::Uuid::from_u128(7),
            level: crate::config::Level::Raid60,
            geometry: raidfabric_raid::geometry::Geometry::new(Level::Raid0, 2, 65_536, 1 << 30)
                .unwrap(),
            leaves: names.into_iter().enumerate().map(leaf).collect(),
            created: false,
        }
    }

    #[test]
    fn an_array_over_arrays_is_as_its_worst_part() {
        let array = over(["left", "right"]);
        let leaf = |name: &str| Facts { name: name.into(), ..facts("raid6", 4) };
        let healthy = of_leaves(&array, &[leaf("left").judge(), leaf("right").judge()]);
        assert_eq!((healthy.state, healthy.severity), (ArrayState::Healthy, Severity::Ok));
        assert_eq!((healthy.level.as_str(), healthy.redundancy_remaining), ("raid60", 2));
        assert_eq!(healthy.size_bytes, 2 << 30);
        assert!(healthy.problems.is_empty() && healthy.members[0].why.is_none());

        let mut right = leaf("right");
        right.members[3].state = MemberCondition::Failed;
        right.members[3].write_errors = 2;
        let degraded = of_leaves(&array, &[leaf("left").judge(), right.clone().judge()]);
        assert_eq!((degraded.state, degraded.redundancy_remaining), (ArrayState::Degraded, 1));
        let problem = &degraded.problems[0];
        assert!(
            problem.what.starts_with("slot 1, array right, is degraded: slot 3"),
            "{problem:?}"
        );
        assert_eq!(problem.cure.as_deref(), Some("raidfabric status right tells what to do"));
        let member = &degraded.members[1];
        assert_eq!(member.drive.as_deref(), Some("array:right"));
        assert_eq!((member.state, member.write_errors), (MemberCondition::InSync, 2));

        right.failure = Some("member 2 failed".into());
        let failed = of_leaves(&array, &[leaf("left").judge(), right.judge()]);
        assert_eq!((failed.state, failed.severity), (ArrayState::Failed, Severity::Failed));
        assert_eq!(failed.members[1].state, MemberCondition::Failed);
        assert_eq!(failed.redundancy_remaining, 0);
    }
}
