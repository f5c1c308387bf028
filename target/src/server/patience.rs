//! Waiting for drives at the start.
//!
//! Drives appear one after the other when a machine boots. An array of which members are missing is
//! looked at again whenever another of its drives has appeared, until all are there or the time
//! (`degraded_wait`) is over; only then it is started without them, if it may be, or refused. What
//! the superblocks call lost is not waited for. Nothing is written meanwhile, to no array.
//!
//! Drives that are here already are held while the others are waited for, so that nobody takes them;
//! new ones are looked for read-only.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use raidfabric_raid::array::MemberState;
use raidfabric_raid::assemble::{AssembleError, CreateError, find_members};
use raidfabric_raid::device::Kind;
use uuid::Uuid;

use super::arrays::{Accepted, Prospect};
use super::error::ArrayStartError;
use super::plane::Desk;
use super::report::{ArrayState, ArrayStatus, MemberCondition, MemberStatus, Problem, Severity};
use super::state::StateDirectory;
use super::strays::remembered_files;
use crate::config::Array;
use crate::config::drives::{Drives, Listed};

/// How often drives are looked for.
const POLL: Duration = Duration::from_millis(500);

/// What an array lacks.
struct Lack {
    uuid: Option<Uuid>,
    /// In words.
    what: String,
}

/// Looks at an array's drives until they are all there, or it has waited long enough.
///
/// # Errors
/// As [`Prospect::look`].
pub(super) fn look_patiently(
    array: &Array,
    drives: &Drives,
    homehost: Option<&str>,
    state: Option<&StateDirectory>,
    desk: &Desk,
    started: Instant,
) -> Result<Prospect, ArrayStartError> {
    let homehost = homehost.map(str::to_owned);
    let look = |drives: &Drives| {
        Prospect::look(array, drives, homehost.clone(), state, &Accepted::default())
    };
    let remembered = match state.map(|state| state.record(&array.name)) {
        Some(Ok(Some(record))) => record.members,
        _ => Vec::new(),
    };
    let mut outcome = look(drives);
    let (Drives::Paths(listed), Some(mut lack)) = (drives, lack(&outcome)) else { return outcome };
    let deadline = started + array.degraded_wait;
    let mut told = String::new();
    let mut seen = seen(lack.uuid, listed, &remembered);
    while Instant::now() < deadline {
        if told != lack.what {
            let seconds = deadline.saturating_duration_since(Instant::now()).as_secs();
            tracing::warn!(
                array = array.name,
                "{}; waiting up to {seconds} s for its drives (degraded_wait)",
                lack.what
            );
            told.clone_from(&lack.what);
        }
        desk.waits(waiting(array, &lack, &outcome, &remembered));
        std::thread::sleep(POLL);
        let now = self::seen(lack.uuid, listed, &remembered);
        if now.is_subset(&seen) {
            continue;
        }
        seen = now;
        // The drives are let go of before they are taken again, all of them.
        drop(outcome);
        outcome = look(&Drives::Paths(present_now(listed)));
        match self::lack(&outcome) {
            Some(still) => lack = still,
            None => break,
        }
    }
    desk.waited(&array.name);
    outcome
}

/// What an array lacks that may come; nothing if waiting cannot help.
fn lack(outcome: &Result<Prospect, ArrayStartError>) -> Option<Lack> {
    match outcome {
        Ok(prospect) => {
            let awaited = prospect.awaited();
            let slots: Vec<_> = awaited.iter().map(ToString::to_string).collect();
            let plural = if slots.len() == 1 { "slot" } else { "slots" };
            (!slots.is_empty()).then(|| Lack {
                uuid: prospect.plan().map(|plan| plan.info.uuid),
                what: format!("the drives of {plural} {} are missing", slots.join(", ")),
            })
        }
        Err(ArrayStartError::Drives { source, .. }) => match &**source {
            CreateError::Drives(
                error @ (AssembleError::Incomplete { array, .. }
                | AssembleError::DirtyDegraded { array, .. }),
            ) => Some(Lack { uuid: Some(*array), what: error.to_string() }),
            CreateError::Drives(error @ AssembleError::NotFound(array)) => {
                Some(Lack { uuid: Some(*array), what: error.to_string() })
            }
            _ => None,
        },
        Err(_) => None,
    }
}

/// The drives of the array that there are.
fn seen(uuid: Option<Uuid>, listed: &Listed, remembered: &[String]) -> HashSet<Kind> {
    let Some(uuid) = uuid else { return HashSet::new() };
    let mut files = present_now(listed).present;
    files.extend(remembered_files(remembered));
    find_members(uuid, &files).into_iter().map(|found| found.identity.kind).collect()
}

/// What is there now of the members that the file names.
fn present_now(listed: &Listed) -> Listed {
    let mut now = Listed { present: listed.present.clone(), absent: Vec::new() };
    for absent in &listed.absent {
        let path = std::path::PathBuf::from(&absent.name);
        match path.exists() {
            true => now.present.push(path),
            false => now.absent.push(absent.clone()),
        }
    }
    now
}

/// What commands are told meanwhile.
fn waiting(
    array: &Array,
    lack: &Lack,
    outcome: &Result<Prospect, ArrayStartError>,
    remembered: &[String],
) -> ArrayStatus {
    let plan = outcome.as_ref().ok().and_then(Prospect::plan);
    let slot = |(slot, state): (usize, MemberState)| MemberStatus {
        slot,
        drive: remembered.get(slot).filter(|name| !name.is_empty()).cloned(),
        serial: None,
        state: match state {
            MemberState::InSync => MemberCondition::InSync,
            MemberState::Rebuilding => MemberCondition::Rebuilding,
            MemberState::Failed => MemberCondition::Failed,
            MemberState::Missing => MemberCondition::Missing,
        },
        why: None,
        read_errors: 0,
        write_errors: 0,
        flush_errors: 0,
        no_space_errors: 0,
        bad_blocks: 0,
        temperature_kelvin: None,
    };
    let members = plan.map(|plan| plan.members().into_iter().enumerate().map(slot).collect());
    ArrayStatus {
        name: array.name.clone(),
        uuid: lack.uuid.unwrap_or_default(),
        level: array.level.to_string(),
        chunk_bytes: array.chunk_bytes,
        size_bytes: plan.map_or(0, |plan| plan.info.size_bytes()),
        consistency: array.consistency.to_string(),
        state: ArrayState::Waiting,
        severity: Severity::Warning,
        problems: vec![Problem {
            severity: Severity::Warning,
            what: format!("it is not served yet: {}", lack.what),
            cure: Some(
                "plug its drives in; it is waited for as long as `degraded_wait` says".into(),
            ),
        }],
        tasks: Vec::new(),
        redundancy_remaining: 0,
        members: members.unwrap_or_default(),
        spares: Vec::new(),
        last_check: None,
    }
}
