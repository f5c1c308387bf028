//! Drives that are listed and are no members, and members that are not listed.

use std::path::PathBuf;

use raidfabric_raid::assemble::{Examined, find_members};
use raidfabric_raid::device::OpenDevice;
use raidfabric_raid::device::signature::Contents;
use uuid::Uuid;

/// Beside the listed drives, those that carry the array's UUID under other names.
pub(super) fn with_moved_members(
    paths: &[PathBuf],
    known: Option<Uuid>,
    remembered: &[String],
) -> Vec<PathBuf> {
    let mut paths = paths.to_vec();
    let Some(uuid) = known else { return paths };
    let identity = |path: &PathBuf| std::fs::canonicalize(path).ok();
    for found in find_members(uuid, &remembered_files(remembered)) {
        if !paths.iter().any(|path| identity(path) == identity(&found.path)) {
            tracing::info!(drive = %found.path.display(), %uuid, "found a member under another name");
            paths.push(found.path);
        }
    }
    paths
}

/// Members that are files, which nobody finds who does not know where they are: those that came in
/// while the array ran.
pub(super) fn remembered_files(members: &[String]) -> Vec<PathBuf> {
    members.iter().map(PathBuf::from).filter(|path| path.is_absolute() && path.is_file()).collect()
}

/// Without the drives that are blank, if the others are an array that is known to exist: what is to
/// come into it is added while it runs.
pub(super) fn without_blank(
    name: &str,
    known: Option<Uuid>,
    media: Vec<OpenDevice>,
    examined: Vec<Examined>,
) -> (Vec<OpenDevice>, Vec<Examined>) {
    let is_member = |drive: &Examined| {
        drive.superblock().is_some_and(|superblock| Some(superblock.array_uuid()) == known)
    };
    if !examined.iter().any(|drive| is_member(drive) && !drive.is_unfinished()) {
        return (media, examined);
    }
    let pairs = media.into_iter().zip(examined);
    pairs
        .filter(|(_, drive)| {
            let is_blank = drive.contents == Contents::Blank;
            if is_blank {
                let drive = &drive.name;
                tracing::warn!(
                    array = name,
                    drive,
                    "it is blank, and no member; `raidfabric array add {name} DRIVE` makes it one"
                );
            }
            !is_blank
        })
        .unzip()
}
