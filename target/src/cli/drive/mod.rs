//! `raidfabric drive`: the drives of this host, whether a daemon runs or not.

mod list;
mod wipe;

use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::Failure;
use crate::server::inspect::{self, Look};

/// The verbs of `drive`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the drives of this host, what is on them, and who has them
    List(list::List),
    /// Say everything about drives that can be known by reading them
    Examine(list::Examine),
    /// Destroy what drives hold, so that they count as blank
    Wipe(wipe::Wipe),
}

impl Command {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            Self::List(list) => list.run(),
            Self::Examine(examine) => examine.run(),
            Self::Wipe(wipe) => wipe.run(),
        }
    }

    /// Whether its exit code tells of the drives' state.
    pub(super) fn tells_state(&self) -> bool {
        !matches!(self, Self::Wipe(_))
    }
}

/// The drives that are meant by paths, by-id names, kernel names or serial numbers, in this order.
///
/// # Errors
/// [`Failure::Refused`]: a name of no drive, or of several.
pub(super) fn find(names: &[String]) -> Result<Vec<Look>, Failure> {
    // A file in this directory is meant by its name alone, too.
    let names: Vec<String> = names
        .iter()
        .map(|name| match !name.contains('/') && Path::new(name).is_file() {
            true => format!("./{name}"),
            false => name.clone(),
        })
        .collect();
    let names = &names[..];
    let is_path = |name: &&String| name.contains('/');
    let paths: Vec<PathBuf> = names.iter().filter(is_path).map(PathBuf::from).collect();
    if let Some(absent) = paths.iter().find(|path| !path.exists()) {
        let absent = absent.display();
        return Err(Failure::Refused(format!(
            "{absent}: there is no such drive or file; `raidfabric drive list` shows the drives"
        )));
    }
    // Only who gives names that are no paths needs all drives to be looked at.
    let mut looks = if paths.len() == names.len() {
        inspect::look_at(&paths)
    } else {
        inspect::look_at_all(&paths)
    };
    let mut found: Vec<Look> = Vec::new();
    for name in names {
        if found.iter().any(|look| look.is_named(name)) {
            continue;
        }
        let at = position(&looks, name)?;
        found.push(looks.remove(at));
    }
    Ok(found)
}

/// The one drive that a name means.
fn position(looks: &[Look], name: &str) -> Result<usize, Failure> {
    let named = |at: &usize| looks.get(*at).is_some_and(|look| look.is_named(name));
    let all: Vec<usize> = (0..looks.len()).filter(named).collect();
    // The partitions of a drive have its serial number.
    let is_whole = |at: &usize| looks.get(*at).is_some_and(|l| l.identity.partition_of.is_none());
    let whole: Vec<usize> = all.iter().copied().filter(is_whole).collect();
    match (&whole[..], &all[..]) {
        (&[one], _) | (_, &[one]) => Ok(one),
        (_, []) => Err(Failure::Refused(format!(
            "{name}: no drive has this name or serial number; `raidfabric drive list` shows the \
             drives"
        ))),
        _ => Err(Failure::Refused(format!(
            "{name} names several drives; give a path of the one that is meant"
        ))),
    }
}

/// The last part of a path.
fn base_name(path: &str) -> &str {
    Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path)
}
