//! From drives that were looked at to the arrays that they belong to, and how those would start.
//!
//! Drives are grouped by the UUID in their superblocks; and so are arrays that hold superblocks of
//! others. What each group is together the engine's own decision says, so that what is told here is
//! what a start would find.

use std::path::PathBuf;

use raidfabric_raid::array::MemberState;
use raidfabric_raid::assemble::{
    AssembleError, AssemblyPlan, Examined, Expected, peek, plan_assemble,
};
use raidfabric_raid::metadata::Level;
use raidfabric_raid::metadata::superblock::{Role, Superblock};
use serde::Serialize;
use uuid::Uuid;

use super::inspect::{Found, Look, level_word};
use super::report::examination::{Examination, ExaminedArray, ExaminedDrive, Outlook};
use super::state::Record;

/// A member of an array, a drive or another array: what is on it, and its superblock.
struct Member<'a> {
    name: String,
    serial: Option<String>,
    held_by: Option<String>,
    examined: &'a Examined,
    superblock: &'a Superblock,
}

/// An array that is the member of another.
struct Leaf {
    /// As the configuration would name it.
    name: String,
    level: Level,
    /// What it holds.
    examined: Examined,
}

/// The arrays that drives belong to, and those that are over these, in the order of their names.
pub fn of(looks: &[Look]) -> Examination {
    let expected = Expected::default();
    let mut arrays = all(looks, |_| true, &expected);
    let leaves: Vec<_> =
        uuids(looks, |_| true).iter().filter_map(|uuid| leaf(*uuid, looks)).collect();
    let mut outer: Vec<Uuid> = Vec::new();
    for superblock in leaves.iter().filter_map(|leaf| leaf.examined.superblock()) {
        if !outer.contains(&superblock.array_uuid()) {
            outer.push(superblock.array_uuid());
        }
    }
    arrays.extend(outer.iter().filter_map(|uuid| over(*uuid, &leaves, &expected)));
    sorted(arrays)
}

/// What an array of drives holds, if it can be read.
fn leaf(uuid: Uuid, looks: &[Look]) -> Option<Leaf> {
    let found = looks.iter().filter_map(|look| look.found.as_ref().ok());
    let is_of_it = |found: &&Found| {
        found.examined.superblock().is_some_and(|superblock| superblock.array_uuid() == uuid)
    };
    let (examined, media): (Vec<_>, Vec<_>) =
        found.filter(is_of_it).map(|found| (found.examined.clone(), &found.device)).unzip();
    let plan = plan_assemble(&examined, &Expected::default()).ok()?;
    let examined = peek(&plan, &examined, &media).ok()?;
    let name = config_name(plan.info.short_name());
    Some(Leaf { name, level: plan.info.geometry.level, examined })
}

/// The array over arrays with this UUID.
fn over(uuid: Uuid, leaves: &[Leaf], expected: &Expected) -> Option<ExaminedArray> {
    let is_member = |leaf: &&Leaf| {
        leaf.examined.superblock().is_some_and(|superblock| superblock.array_uuid() == uuid)
    };
    let below: Vec<&Leaf> = leaves.iter().filter(is_member).collect();
    let members: Vec<_> = below
        .iter()
        .filter_map(|leaf| {
            Some(Member {
                name: format!("array:{}", leaf.name),
                serial: None,
                held_by: None,
                examined: &leaf.examined,
                superblock: leaf.examined.superblock()?,
            })
        })
        .collect();
    let first = below.first().map(|leaf| leaf.level);
    let level = first.filter(|first| below.iter().all(|leaf| leaf.level == *first));
    let word = match level {
        Some(Level::Raid5) => Some("raid50"),
        Some(Level::Raid6) => Some("raid60"),
        Some(Level::Raid10) => Some("raid100"),
        _ => None,
    };
    array(uuid, &members, expected, word)
}

/// The arrays that a configured one may mean: the one with its UUID, if that is known, and else
/// those that its listed drives belong to. `record`: what is remembered of it.
pub fn of_array(
    looks: &[Look],
    uuid: Option<Uuid>,
    listed: &[PathBuf],
    record: Option<&Record>,
) -> Examination {
    let expected = Expected {
        known_events: record.and_then(|record| record.events),
        last_known: record
            .iter()
            .flat_map(|record| (0..).zip(record.members.iter().cloned()))
            .filter(|(_, name)| !name.is_empty())
            .collect(),
        ..Expected::default()
    };
    let is_listed = |look: &Look| {
        listed.iter().any(|path| path.to_str().is_some_and(|path| look.is_named(path)))
    };
    let meant = |look: &Look| match uuid {
        Some(uuid) => member(look).is_some_and(|one| one.superblock.array_uuid() == uuid),
        None => is_listed(look),
    };
    sorted(all(looks, meant, &expected))
}

/// The arrays of the drives that are meant.
fn uuids(looks: &[Look], meant: impl Fn(&Look) -> bool) -> Vec<Uuid> {
    let mut uuids: Vec<Uuid> = Vec::new();
    for member in looks.iter().filter(|look| meant(look)).filter_map(member) {
        let uuid = member.superblock.array_uuid();
        if !uuids.contains(&uuid) {
            uuids.push(uuid);
        }
    }
    uuids
}

fn all(looks: &[Look], meant: impl Fn(&Look) -> bool, expected: &Expected) -> Vec<ExaminedArray> {
    let one = |uuid: &Uuid| {
        let of_it = looks.iter().filter_map(member);
        let members: Vec<_> = of_it.filter(|one| one.superblock.array_uuid() == *uuid).collect();
        array(*uuid, &members, expected, None)
    };
    uuids(looks, meant).iter().filter_map(one).collect()
}

fn sorted(mut arrays: Vec<ExaminedArray>) -> Examination {
    arrays.sort_by(|one, other| (&one.name, one.uuid).cmp(&(&other.name, other.uuid)));
    Examination::new(arrays)
}

fn member(look: &Look) -> Option<Member<'_>> {
    let examined = &look.found.as_ref().ok()?.examined;
    Some(Member {
        name: look.identity.name(),
        serial: look.identity.serial.clone(),
        held_by: look.holder.as_ref().map(ToString::to_string),
        examined,
        superblock: examined.superblock()?,
    })
}

/// `word`: its level, if that is more than its superblocks say.
fn array(
    uuid: Uuid,
    members: &[Member<'_>],
    expected: &Expected,
    word: Option<&str>,
) -> Option<ExaminedArray> {
    let examined: Vec<Examined> = members.iter().map(|one| one.examined.clone()).collect();
    let newest = members.iter().max_by_key(|one| one.superblock.events())?.superblock;
    let plan = plan_assemble(&examined, expected);
    let level = word.map_or_else(|| level_word(newest.level_number()), str::to_owned);
    let shape = newest.geometry().ok();
    let mut drives: Vec<_> = members
        .iter()
        .enumerate()
        .map(|(index, one)| drive(one, plan.as_ref().ok().map(|plan| state(plan, index))))
        .collect();
    drives.sort_by_key(|drive| (drive.slot.unwrap_or(u16::MAX), u64::MAX - drive.events));
    let (outlook, problem) = judge(&plan);
    let done = plan.as_ref().ok();
    Some(ExaminedArray {
        uuid,
        name: newest.set_name(),
        yaml: done.map(|plan| configuration(plan, &level, &drives)),
        level,
        slots: newest.member_count(),
        chunk_bytes: shape.map(|shape| shape.chunk_bytes),
        size_bytes: shape.map(|shape| shape.array_bytes()),
        consistency: done.map(|plan| plan.info.consistency.to_string()),
        outlook,
        problem,
        is_clean: done.map(|plan| !plan.was_active),
        events: newest.events(),
        resync_from_bytes: done.and_then(|plan| plan.info.resync_from_bytes),
        dirty_bytes: done
            .and_then(|plan| plan.dirty.as_ref())
            .map_or(0, |map| map.len().saturating_mul(map.region_bytes())),
        needs_replay: done.is_some_and(|plan| plan.replay),
        drives,
    })
}

/// What a drive would be if the array were started now.
fn state(plan: &AssemblyPlan, index: usize) -> String {
    if let Some(slot) = plan.slots.iter().find(|slot| slot.drive == Some(index)) {
        return match slot.state {
            MemberState::InSync => "in sync".to_owned(),
            MemberState::Rebuilding => "rebuilding".to_owned(),
            MemberState::Failed => "failed".to_owned(),
            MemberState::Missing => "missing".to_owned(),
        };
    }
    let left = plan.left_over.iter().find(|left| left.drive == index);
    left.map_or_else(|| "not used".to_owned(), |left| left.reason.to_string())
}

fn drive(member: &Member<'_>, state: Option<String>) -> ExaminedDrive {
    let superblock = member.superblock;
    let role = superblock.own_role();
    let own = || match role {
        Role::Active(slot) => format!("says that it is slot {slot}"),
        Role::Spare => "spare".to_owned(),
        Role::Faulty => "failed".to_owned(),
        Role::Journal => "journal".to_owned(),
    };
    ExaminedDrive {
        drive: member.name.clone(),
        serial: member.serial.clone(),
        slot: match role {
            Role::Active(slot) => Some(slot),
            _ => None,
        },
        state: state.unwrap_or_else(own),
        events: superblock.events(),
        updated_seconds: superblock.updated().0,
        data_offset_bytes: superblock.data_offset_bytes(),
        bad_blocks: bad_blocks(member.examined),
        held_by: member.held_by.clone(),
    }
}

fn bad_blocks(examined: &Examined) -> u64 {
    match &examined.bad_blocks {
        Some(Ok(log)) => log.ranges(0, examined.size_bytes).len() as u64,
        _ => 0,
    }
}

fn judge(plan: &Result<AssemblyPlan, AssembleError>) -> (Outlook, Option<String>) {
    match plan {
        Ok(plan) => {
            let lacking: Vec<String> = plan
                .slots
                .iter()
                .enumerate()
                .filter_map(|(slot, one)| match one.state {
                    MemberState::InSync => None,
                    MemberState::Rebuilding => Some(format!("slot {slot} is being rebuilt")),
                    MemberState::Failed | MemberState::Missing => {
                        Some(format!("slot {slot} is missing"))
                    }
                })
                .collect();
            match lacking.is_empty() {
                true => (Outlook::Complete, None),
                false => (Outlook::Degraded, Some(lacking.join(", "))),
            }
        }
        Err(error) => {
            let decidable = match error {
                AssembleError::Incomplete { can_run, .. } => *can_run,
                AssembleError::DirtyDegraded { .. } | AssembleError::Diverged { .. } => true,
                _ => false,
            };
            let outlook = if decidable { Outlook::NeedsDecision } else { Outlook::Unusable };
            (outlook, Some(error.to_string()))
        }
    }
}

/// The entry of `arrays:` that serves an array.
#[derive(Serialize)]
struct Entry<'a> {
    name: String,
    level: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk: Option<String>,
    uuid: String,
    members: Vec<&'a str>,
}

fn configuration(plan: &AssemblyPlan, level: &str, drives: &[ExaminedDrive]) -> String {
    let shape = &plan.info.geometry;
    let chunk = Some(shape.chunk_bytes).filter(|bytes| *bytes > 0);
    let entry = Entry {
        name: config_name(plan.info.short_name()),
        level: level.to_owned(),
        chunk: chunk.map(|bytes| format!("{}KiB", bytes / 1024)),
        uuid: plan.info.uuid.to_string(),
        members: drives.iter().map(|drive| drive.drive.as_str()).collect(),
    };
    // Texts and lists of texts always have a form.
    serde_yaml::to_string(&[entry]).unwrap_or_default()
}

/// A name that the configuration takes: md allows any.
fn config_name(name: &str) -> String {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let mut text: String = name.chars().map(|c| if legal(c) { c } else { '_' }).take(32).collect();
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        text.insert(0, '_');
        text.truncate(32);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_md_become_names_of_the_configuration() {
        for (name, expected) in [
            ("fast", "fast"),
            ("0", "0"),
            ("", "_"),
            ("-x", "_-x"),
            ("a b/c", "a_b_c"),
            (&"x".repeat(40), &"x".repeat(32)),
        ] {
            assert_eq!(config_name(name), expected);
        }
    }
}
