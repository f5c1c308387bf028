//! Drives that may take a failed member's place: looking at those that the configuration names.
//!
//! They are looked at when one is needed, or a person asks; nobody holds them meanwhile. One that is
//! not blank is left alone, whatever pattern it fits.

use std::path::PathBuf;

use raidfabric_raid::device::paths;
use raidfabric_raid::device::signature::Contents;

use super::inspect::{self, Look};
use super::report::Spare;
use crate::config::Member;

/// The drives that fit, in the order of the configuration. Blocking.
pub(super) fn look(spares: &[Member]) -> Vec<Look> {
    let paths: Vec<PathBuf> = spares.iter().flat_map(expand).collect();
    inspect::look_at(&paths)
}

fn expand(spare: &Member) -> Vec<PathBuf> {
    match spare {
        Member::Path(path) => vec![path.clone()],
        // What fits no pattern is no spare now.
        Member::Glob(pattern) => paths::expand(&[pattern]).unwrap_or_default(),
        Member::Memory { .. } => Vec::new(),
    }
}

/// What is told of a spare, unless it is a member by now.
pub(super) fn report(look: &Look) -> Spare {
    let why = match (&look.found, &look.holder) {
        (Err(error), _) => Some(error.clone()),
        (Ok(_), Some(holder)) => Some(format!("in use by {holder}")),
        (Ok(found), None) => match &found.examined.contents {
            Contents::Blank => None,
            contents => Some(format!("not blank: {contents}")),
        },
    };
    Spare {
        drive: look.identity.name(),
        serial: look.identity.serial.clone(),
        is_ready: why.is_none(),
        why,
    }
}
