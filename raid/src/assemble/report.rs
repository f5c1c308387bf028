//! What drives are together, in words, and the configuration that would serve them.

use super::examine::Examined;
use super::plan::AssemblyPlan;
use crate::array::MemberState;
use crate::metadata::Level;
use crate::metadata::superblock::MdUuid;
use std::fmt::{Display, Formatter, Result};

/// An array that was found, for people.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    /// What was decided.
    pub plan: &'a AssemblyPlan,
    /// About these drives.
    pub drives: &'a [Examined],
}

impl Report<'_> {
    fn name(&self, drive: Option<usize>) -> &str {
        drive.and_then(|index| self.drives.get(index)).map_or("nobody", |drive| &drive.name)
    }

    /// The entry under `arrays:` that would serve the array; a slot without a drive has a comment.
    #[must_use]
    pub fn yaml(&self) -> String {
        let info = &self.plan.info;
        let mut yaml = format!(
            "- name: {}\n  uuid: {}\n  level: raid{}\n",
            quoted(info.short_name()),
            quoted(&MdUuid(info.uuid).to_string()),
            info.geometry.level.number()
        );
        if info.geometry.level != Level::Raid1 {
            yaml += &format!("  chunk: {}KiB\n", info.geometry.chunk_bytes / 1024);
        }
        if info.geometry.level.is_redundant() {
            yaml += &format!("  consistency: {}\n", info.consistency);
        }
        yaml += "  members:\n";
        for (number, slot) in self.plan.slots.iter().enumerate() {
            yaml += &match slot.drive {
                Some(_) => format!("    - {}\n", quoted(self.name(slot.drive))),
                None => format!("    # slot {number} has no drive\n"),
            };
        }
        yaml
    }
}

/// A scalar that is a string, whatever is in it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.escape_debug())
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (plan, info) = (self.plan, &self.plan.info);
        writeln!(f, "array {} (UUID {})", info.set_name, MdUuid(info.uuid))?;
        writeln!(
            f,
            "  {} of {} members, consistency {}, event count {}",
            info.geometry.level, info.geometry.members, info.consistency, info.events
        )?;
        match info.resync_from_bytes {
            None => writeln!(f, "  in sync")?,
            Some(0) => writeln!(f, "  to be synced")?,
            Some(position) => writeln!(f, "  synced up to byte {position}")?,
        }
        if let Some(dirty) = &plan.dirty {
            let (count, all) = (dirty.len(), dirty.regions());
            writeln!(f, "  {count} of {all} regions may differ since it stopped")?;
        }
        if plan.replay {
            writeln!(f, "  its log is to be replayed")?;
        }
        for (number, slot) in plan.slots.iter().enumerate() {
            let state = match slot.state {
                MemberState::InSync => "in sync".to_owned(),
                MemberState::Rebuilding => {
                    let position = plan.rebuild_from_bytes.unwrap_or(0);
                    format!("being rebuilt, complete up to byte {position} of the array")
                }
                MemberState::Failed | MemberState::Missing => "missing".to_owned(),
            };
            write!(f, "  slot {number}: {}, {state}", self.name(slot.drive))?;
            let bad: u64 = slot.bad_blocks.iter().map(|b| b.end_bytes - b.start_bytes).sum();
            if bad > 0 {
                write!(f, ", {bad} bytes bad")?;
            }
            writeln!(f)?;
        }
        for left in &plan.left_over {
            write!(f, "  left over: {}: {}", self.name(Some(left.drive)), left.reason)?;
            if let Some(misses) = &left.misses {
                write!(f, "; it misses {} of {} regions", misses.len(), misses.regions())?;
            }
            writeln!(f)?;
        }
        plan.risks.iter().try_for_each(|risk| writeln!(f, "  at the operator's risk: {risk}"))
    }
}
