//! Looking at a running array: from its parts to [`Facts`], which [`super::verdict`] judges.

use raidfabric_raid::array::{CheckMode, Limit, MemberState, RecoveryState, RecoveryStatus, Timer};
use raidfabric_raid::geometry::Level;

use super::inspect::Look;
use super::report::{
    ArrayStatus, CheckResult, MemberCondition, MemberStatus, MismatchPlace, Task, TaskKind,
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
