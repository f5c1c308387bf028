//! `arrays:`: names, levels, chunks, members. Arrays over arrays: `composed`.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use uuid::Uuid;

use super::{Findings, Grain, KIB, MIB, SizeRule, composed, conduct};
use crate::config::raw;
use crate::config::source::At;
use crate::config::types::{Array, Level, Member};
use crate::config::units;

const CHUNK: SizeRule = SizeRule {
    what: "a chunk",
    min: 4 * KIB,
    max: MIB,
    default: 64 * KIB,
    grain: Grain::PowerOfTwo,
};
/// The longest name that the md superblock's `set_name` can hold.
const MAX_NAME_BYTES: usize = 32;
/// The most members of an array.
pub(super) const MAX_MEMBERS: usize = 64;
/// The largest memory member, far more than a test needs.
const MAX_MEMORY_BYTES: u64 = 1 << 40;

/// The arrays; where a value is wrong, its default stands.
pub(super) fn check(arrays: &[raw::Array], findings: &mut Findings<'_>) -> Vec<Array> {
    let at = At::root().key("arrays");
    if arrays.is_empty() {
        findings.error(&at, "there is no array", "describe at least one: name, level, members");
    }
    let mut drives = HashMap::new();
    let mut uuids: HashMap<Uuid, &str> = HashMap::new();
    let mut checked = Vec::new();
    for (i, array) in arrays.iter().enumerate() {
        let at = at.index(i);
        name(&at.key("name"), &array.name, &arrays[..i], findings);
        let level = level(array);
        let uuid = array.uuid.as_deref().and_then(|text| uuid(&at.key("uuid"), text, findings));
        if let Some(other) = uuid.and_then(|uuid| uuids.insert(uuid, &array.name)) {
            findings.error(
                &at.key("uuid"),
                format!("array `{other}` has this UUID already"),
                "an array can be listed once; `mdadm --examine DRIVE` shows which one a drive belongs to",
            );
        }
        if composed::is_composed(array) {
            checked.push(composed::check(&at, i, arrays, uuid, findings));
            continue;
        }
        if let Some(leaf) = level.leaf() {
            findings.error(
                &at.key("members"),
                format!("{level} is over arrays, and here are drives"),
                format!(
                    "describe arrays of level {leaf} over the drives, and name them here: \
                     `array:NAME`"
                ),
            );
        }
        let members = members(&at.key("members"), array, level, &mut drives, findings);
        let is_memory = members.iter().any(|member| matches!(member, Member::Memory { .. }));
        let checked_array = Array {
            name: array.name.clone(),
            level,
            chunk_bytes: chunk(&at.key("chunk"), array, level, findings),
            uuid,
            consistency: conduct::consistency(&at, array, level, is_memory, findings),
            consistency_is_given: array.consistency.is_some(),
            spares: spares(&at, array, level, is_memory, &mut drives, findings),
            degraded_wait: conduct::degraded_wait(&at, array, findings),
            member_timeout: conduct::member_timeout(&at, array, findings),
            hold: conduct::hold(&at, array, findings),
            safe_mode_delay: conduct::safe_mode_delay(&at, array, findings),
            read_error_limit: conduct::read_error_limit(&at, array, findings),
            resync: conduct::resync(&at, array, findings),
            leaves: Vec::new(),
            members,
        };
        if checked_array.is_memory() && uuid.is_some() {
            findings.error(
                &at.key("uuid"),
                "an array in memory is made anew at each start, so that it cannot have a UUID",
                "remove `uuid`",
            );
        }
        checked.push(checked_array);
    }
    composed::check_all(&mut checked, findings);
    checked
}

fn name(at: &At, name: &str, earlier: &[raw::Array], findings: &mut Findings<'_>) {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    if !begins || name.len() > MAX_NAME_BYTES || !name.chars().all(legal) {
        findings.error(
            at,
            format!("`{name}` cannot be the name of an array"),
            format!(
                "a name is 1 to {MAX_NAME_BYTES} of A-Z, a-z, 0-9, `.`, `_` and `-`, and does not \
                 begin with `.` or `-`"
            ),
        );
    } else if earlier.iter().any(|array| array.name == name) {
        findings.error(
            at,
            format!("there are two arrays with the name `{name}`"),
            "namespaces refer to arrays by name; give one of them another",
        );
    }
}

pub(super) fn level(array: &raw::Array) -> Level {
    match array.level {
        raw::Level::Raid0 => Level::Raid0,
        raw::Level::Raid1 => Level::Raid1,
        raw::Level::Raid5 => Level::Raid5,
        raw::Level::Raid6 => Level::Raid6,
        raw::Level::Raid10 => Level::Raid10,
        raw::Level::Raid50 => Level::Raid50,
        raw::Level::Raid60 => Level::Raid60,
        raw::Level::Raid100 => Level::Raid100,
    }
}

fn chunk(at: &At, array: &raw::Array, level: Level, findings: &mut Findings<'_>) -> u64 {
    if level == Level::Raid1 {
        if array.chunk.is_some() {
            findings.error(
                at,
                "raid1 has no chunks: every member holds everything",
                "remove `chunk`",
            );
        }
        return 0;
    }
    findings.size_within(at, array.chunk.as_ref(), &CHUNK)
}

fn uuid(at: &At, text: &str, findings: &mut Findings<'_>) -> Option<Uuid> {
    // mdadm prints the same 16 bytes as four groups with colons.
    let plain: String = text.chars().filter(|c| *c != ':').collect();
    let parsed = Uuid::try_parse(&plain).ok().filter(|uuid| !uuid.is_nil());
    if parsed.is_none() {
        findings.error(
            at,
            format!("`{text}` is not the UUID of an array"),
            "it has 32 hexadecimal digits, as `raidfabric serve` and `mdadm --examine` print it",
        );
    }
    parsed
}

fn members(
    at: &At,
    array: &raw::Array,
    level: Level,
    drives: &mut HashMap<PathBuf, String>,
    findings: &mut Findings<'_>,
) -> Vec<Member> {
    let mut members = Vec::new();
    for (i, text) in array.members.iter().enumerate() {
        if let Some(member) = member(&at.index(i), text, findings) {
            once(&at.index(i), &member, array, drives, findings);
            members.push(member);
        }
    }
    let has = array.members.len();
    let globs = members.iter().any(|member| matches!(member, Member::Glob(_)));
    if has < level.min_members() && !globs {
        findings.error(
            at,
            format!(
                "{level} needs at least {} members, and here {} {has}",
                level.min_members(),
                if has == 1 { "is" } else { "are" }
            ),
            "add members, or choose another level",
        );
    }
    if has > MAX_MEMBERS {
        findings.error(
            at,
            format!("an array has at most {MAX_MEMBERS} members, and here are {has}"),
            "make several arrays",
        );
    }
    let memory = members.iter().filter(|member| matches!(member, Member::Memory { .. })).count();
    if memory != 0 && memory != members.len() {
        findings.error(
            at,
            "memory and drives cannot form one array: the memory would be gone at each start",
            "use drives, files (sparse ones will do), or memory only",
        );
    }
    members
}

/// The drives that may take a failed member's place.
fn spares(
    at: &At,
    array: &raw::Array,
    level: Level,
    is_memory: bool,
    drives: &mut HashMap<PathBuf, String>,
    findings: &mut Findings<'_>,
) -> Vec<Member> {
    let at = at.key("spares");
    if array.spares.is_empty() {
        return Vec::new();
    }
    if level == Level::Raid0 {
        findings.error(
            &at,
            "raid0 has no use for spares: what a lost drive held is lost",
            "remove `spares`, or choose a level with redundancy",
        );
    } else if is_memory {
        findings.error(&at, "members in memory have no spares", "remove `spares`");
    }
    let mut spares = Vec::new();
    for (i, text) in array.spares.iter().enumerate() {
        let at = at.index(i);
        match member(&at, text, findings) {
            Some(Member::Memory { .. }) => {
                findings.error(&at, "memory cannot be a spare", "name a drive, or a pattern");
            }
            Some(spare) => {
                once(&at, &spare, array, drives, findings);
                spares.push(spare);
            }
            None => {}
        }
    }
    spares
}

fn member(at: &At, text: &str, findings: &mut Findings<'_>) -> Option<Member> {
    if text.starts_with(composed::PREFIX) {
        findings.error(at, "an array cannot be a spare", "name a drive, or a pattern");
        return None;
    }
    if let Some(size) = text.strip_prefix("memory:") {
        return memory_member(at, size, findings);
    }
    let path = Path::new(text);
    if !path.is_absolute() {
        let help = match text.contains('/') {
            true => "the daemon has no working directory to rely on; write the path from / on",
            false => "write a path such as /dev/disk/by-id/nvme-…, or memory:SIZE for a test",
        };
        findings.error(at, format!("`{text}` is not an absolute path"), help);
        return None;
    }
    if is_kernel_name(text) {
        findings.warn(
            at,
            format!("`{text}` can be another drive after the next boot"),
            "name it by what does not move: `ls -l /dev/disk/by-id` shows the names",
        );
    }
    if text.contains(['*', '?', '[']) {
        if let Err(error) = glob::Pattern::new(text) {
            findings.error(
                at,
                format!("`{text}` is not a pattern: {}", error.msg),
                "`*` and `?` stand for characters, `[abc]` for one of several",
            );
            return None;
        }
        return Some(Member::Glob(text.to_owned()));
    }
    Some(Member::Path(path.to_owned()))
}

fn memory_member(at: &At, size: &str, findings: &mut Findings<'_>) -> Option<Member> {
    match units::parse_size(size) {
        Ok(bytes) if bytes.is_multiple_of(MIB) && (MIB..=MAX_MEMORY_BYTES).contains(&bytes) => {
            Some(Member::Memory { size_bytes: bytes })
        }
        Ok(bytes) => {
            findings.error(
                at,
                format!("a member of {} in memory is not possible", units::format_bytes(bytes)),
                format!(
                    "it must be a multiple of 1 MiB, up to {}",
                    units::format_bytes(MAX_MEMORY_BYTES)
                ),
            );
            None
        }
        Err(message) => {
            findings.error(at, message, "write memory:SIZE, as in memory:64MiB");
            None
        }
    }
}

/// Refuses a path that is listed a second time, in this array or another.
fn once(
    at: &At,
    member: &Member,
    array: &raw::Array,
    drives: &mut HashMap<PathBuf, String>,
    findings: &mut Findings<'_>,
) {
    let Member::Path(path) = member else { return };
    if let Some(other) = drives.insert(plain(path), array.name.clone()) {
        findings.error(
            at,
            format!("`{}` is a member of array `{other}` already", path.display()),
            "a drive can be one member only; remove it from one of the two places",
        );
    }
}

/// The path without `.`, `..` and doubled slashes, by its text alone.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// Whether the kernel gave this name in the order in which it found its drives.
fn is_kernel_name(text: &str) -> bool {
    let Some(name) = text.strip_prefix("/dev/") else { return false };
    ["nvme", "sd", "vd", "xvd"].iter().any(|prefix| {
        name.strip_prefix(prefix).is_some_and(|rest| {
            !rest.is_empty()
                && rest.chars().all(|c| c.is_ascii_alphanumeric() || "*?[]-".contains(c))
        })
    })
}
