//! Arrays over arrays: `members: [array:NAME, ...]`.
//!
//! Such an array stripes over other arrays of the file, its *leaves*, which are over drives. What
//! happens to drives is the leaves' business, so that its own entry has few keys.

use uuid::Uuid;

use super::arrays::{self, MAX_MEMBERS};
use super::{Findings, Grain, KIB, MIB, SizeRule, conduct};
use crate::config::error::closest;
use crate::config::raw;
use crate::config::source::At;
use crate::config::types::{Array, Consistency, Level};

/// What stands before the name of an array among members.
pub(super) const PREFIX: &str = "array:";

/// Larger than for drives: most requests are then one leaf's, and with rows of 2, 4 or 8 chunks of
/// 64 KiB a chunk is whole rows.
const CHUNK: SizeRule = SizeRule {
    what: "a chunk",
    min: 4 * KIB,
    max: MIB,
    default: 512 * KIB,
    grain: Grain::PowerOfTwo,
};

/// Whether an entry is that of an array over arrays.
pub(super) fn is_composed(array: &raw::Array) -> bool {
    array.members.iter().any(|member| member.starts_with(PREFIX))
}

/// The entry at `index`. How it fits to its leaves is judged by [`check_all`].
pub(super) fn check(
    at: &At,
    index: usize,
    arrays: &[raw::Array],
    uuid: Option<Uuid>,
    findings: &mut Findings<'_>,
) -> Array {
    let array = &arrays[index];
    let level = arrays::level(array);
    if level != Level::Raid0 && level.leaf().is_none() {
        findings.error(
            &at.key("level"),
            format!("{level} over arrays is not served: they can only be striped over"),
            "write raid0, or raid50, raid60 or raid100 as the arrays below are raid5, raid6 or raid10",
        );
    }
    no_keys_of_drives(at, array, findings);
    // What the keys that are refused would mean if they were not there.
    let none = raw::Array {
        degraded_wait: None,
        member_timeout: None,
        hold: None,
        safe_mode_delay: None,
        read_error_limit: None,
        resync: None,
        ..array.clone()
    };
    Array {
        name: array.name.clone(),
        level,
        chunk_bytes: findings.size_within(&at.key("chunk"), array.chunk.as_ref(), &CHUNK),
        members: Vec::new(),
        leaves: leaves(&at.key("members"), index, arrays, findings),
        uuid,
        consistency: Consistency::None,
        consistency_is_given: false,
        spares: Vec::new(),
        degraded_wait: conduct::degraded_wait(at, &none, findings),
        member_timeout: conduct::member_timeout(at, &none, findings),
        hold: conduct::hold(at, &none, findings),
        safe_mode_delay: conduct::safe_mode_delay(at, &none, findings),
        read_error_limit: conduct::read_error_limit(at, &none, findings),
        resync: conduct::resync(at, &none, findings),
    }
}

fn no_keys_of_drives(at: &At, array: &raw::Array, findings: &mut Findings<'_>) {
    let keys = [
        ("consistency", array.consistency.is_some()),
        ("spares", !array.spares.is_empty()),
        ("degraded_wait", array.degraded_wait.is_some()),
        ("member_timeout", array.member_timeout.is_some()),
        ("hold", array.hold.is_some()),
        ("safe_mode_delay", array.safe_mode_delay.is_some()),
        ("read_error_limit", array.read_error_limit.is_some()),
        ("resync", array.resync.is_some()),
    ];
    for (key, _) in keys.into_iter().filter(|(_, is_given)| *is_given) {
        findings.error(
            &at.key(key),
            format!("`{key}` is about drives, and this array is over arrays"),
            format!("write `{key}` to the arrays that it is over"),
        );
    }
}

/// The arrays that are named, as indices.
fn leaves(at: &At, index: usize, arrays: &[raw::Array], findings: &mut Findings<'_>) -> Vec<usize> {
    let array = &arrays[index];
    let mut leaves = Vec::new();
    for (i, text) in array.members.iter().enumerate() {
        let at = at.index(i);
        let Some(name) = text.strip_prefix(PREFIX) else {
            findings.error(
                &at,
                format!("`{text}` is no array, and other members of `{}` are", array.name),
                "an array is over arrays (`array:NAME`) or over drives, not over both",
            );
            continue;
        };
        match arrays.iter().position(|other| other.name == name) {
            Some(leaf) if leaf == index => findings.error(
                &at,
                format!("array `{name}` cannot be over itself"),
                "name other arrays",
            ),
            Some(leaf) if leaves.contains(&leaf) => findings.error(
                &at,
                format!("array `{name}` is listed twice"),
                "remove one of the two",
            ),
            Some(leaf) => leaves.push(leaf),
            None => unknown(&at, name, arrays, findings),
        }
    }
    let has = array.members.len();
    if has < 2 {
        findings.error(at, "one array is not striped over", "name two arrays or more");
    } else if has > MAX_MEMBERS {
        findings.error(
            at,
            format!("an array has at most {MAX_MEMBERS} members, and here are {has}"),
            "make several arrays",
        );
    }
    leaves
}

fn unknown(at: &At, name: &str, arrays: &[raw::Array], findings: &mut Findings<'_>) {
    let names: Vec<&str> = arrays.iter().map(|array| array.name.as_str()).collect();
    let help = match closest(name, names.iter().copied()) {
        Some(meant) => format!("did you mean `array:{meant}`? Arrays here: {}", names.join(", ")),
        None => format!("arrays here: {}", names.join(", ")),
    };
    findings.error(at, format!("there is no array `{name}`"), help);
}

/// How arrays over arrays and their leaves fit together. A level that is only said to be raid0 gets
/// its name.
pub(super) fn check_all(arrays: &mut [Array], findings: &mut Findings<'_>) {
    let mut taken: Vec<Option<String>> = vec![None; arrays.len()];
    for index in 0..arrays.len() {
        let array = &arrays[index];
        if !array.is_composed() {
            continue;
        }
        let at = At::root().key("arrays").index(index);
        // The file may name others between them; what is wrong with those has been told.
        for &leaf in &array.leaves {
            let name = &arrays[leaf].name;
            if arrays[leaf].is_composed() {
                findings.error(
                    &at.key("members"),
                    format!("array `{name}` is over arrays itself"),
                    "arrays are striped over one level deep: name arrays that are over drives",
                );
            }
            if let Some(other) = &taken[leaf] {
                findings.error(
                    &at.key("members"),
                    format!("array `{name}` is a member of array `{other}` already"),
                    "an array can be one member only; remove it from one of the two places",
                );
            }
            taken[leaf] = Some(array.name.clone());
        }
        let level = fit(&at, array, arrays, findings);
        arrays[index].level = level;
    }
}

/// Whether its leaves are alike and of the level that it says; its level.
fn fit(at: &At, array: &Array, arrays: &[Array], findings: &mut Findings<'_>) -> Level {
    let leaves = || array.leaves.iter().filter_map(|leaf| arrays.get(*leaf));
    let in_memory = leaves().filter(|leaf| leaf.is_memory()).count();
    if in_memory != 0 && in_memory != array.leaves.len() {
        findings.error(
            &at.key("members"),
            "arrays in memory and on drives cannot form one array",
            "the part in memory would be gone at each start",
        );
    }
    if in_memory != 0 && array.uuid.is_some() {
        findings.error(
            &at.key("uuid"),
            "an array in memory is made anew at each start, so that it cannot have a UUID",
            "remove `uuid`",
        );
    }
    if let Some(wanted) = array.level.leaf()
        && let Some(other) = leaves().find(|leaf| leaf.level != wanted)
    {
        findings.error(
            &at.key("level"),
            format!(
                "{} is over arrays of level {wanted}, and array `{}` is of level {}",
                array.level, other.name, other.level
            ),
            "write the level that it is; raid0 is right over any",
        );
    }
    let mut levels = leaves().map(|leaf| leaf.level);
    match levels.next() {
        Some(first) if array.level == Level::Raid0 && levels.all(|level| level == first) => {
            first.striped()
        }
        _ => array.level,
    }
}
