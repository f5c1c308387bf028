//! `raidfabric drive wipe`: makes drives blank.
//!
//! Everything that can be refused is refused before the first drive is written to; what is destroyed
//! is shown, and each drive has to be named once more: at the terminal, or by `--drive` with `--yes`.

use std::time::Duration;

use clap::Args;
use raidfabric_raid::assemble::{Description, examine, wipe};
use raidfabric_raid::device::signature::Contents;
use raidfabric_raid::device::{Intent, Medium, OpenDevice, Patience, open_patiently};

use super::super::confirm::{self, Doom, confirm};
use super::super::{Failure, print};
use super::{base_name, find};
use crate::server::inspect::Look;

/// How long udev, or a command that has just ended, is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Arguments of `drive wipe`.
#[derive(Debug, Args)]
#[command(
    after_help = "What is destroyed: superblocks, signatures, the first and the last MiB; the rest \
                  of the data stays, but nothing tells any more what it was. What each drive holds \
                  is shown first, and its name has to be typed; where there is no terminal nothing \
                  is asked, and each drive must be named by --drive, with --yes. A drive that is in \
                  use is refused.\n\nExamples:\n  raidfabric drive wipe /dev/disk/by-id/nvme-A\n  \
                  raidfabric drive wipe --dry-run nvme-A\n  raidfabric drive wipe --yes --drive \
                  /dev/disk/by-id/nvme-A"
)]
pub(in crate::cli) struct Wipe {
    /// Drives: paths, names under /dev/disk/by-id, or serial numbers; each is asked about
    #[arg(value_name = "DRIVE", required_unless_present = "drives")]
    asked: Vec<String>,
    /// A drive that is not asked about if --yes is given, too; once for each
    #[arg(long = "drive", value_name = "DRIVE")]
    drives: Vec<String>,
    /// Do not ask about the drives that are named by --drive
    #[arg(long, requires = "drives")]
    yes: bool,
    /// Only show what would be destroyed; drives are opened to be read
    #[arg(long)]
    dry_run: bool,
}

impl Wipe {
    pub(super) fn run(self) -> Result<(), Failure> {
        let asked = find(&self.asked)?;
        let named = find(&self.drives)?;
        if self.dry_run {
            return show(asked.iter().chain(&named));
        }
        let asked = asked.into_iter().map(own).collect::<Result<Vec<_>, _>>()?;
        let named = named.into_iter().map(own).collect::<Result<Vec<_>, _>>()?;
        let doom = |drives: &[Owned], yes| Doom {
            purpose: "To wipe".to_owned(),
            drives: drives.iter().map(|owned| owned.description.clone()).collect(),
            yes,
            say_yes: "name each drive by --drive, and add --yes",
        };
        let doomed = [doom(&asked, false), doom(&named, self.yes)];
        confirm(&doomed.into_iter().filter(|doom| !doom.drives.is_empty()).collect::<Vec<_>>())?;
        for owned in asked.iter().chain(&named) {
            owned.wipe()?;
        }
        Ok(())
    }
}

/// What would be destroyed, and what is in the way.
fn show<'a>(looks: impl Iterator<Item = &'a Look>) -> Result<(), Failure> {
    let mut drives = Vec::new();
    for look in looks {
        let found = look.found.as_ref().map_err(Failure::refused)?;
        drives.push(Description {
            identity: look.identity.clone(),
            size_bytes: found.examined.size_bytes,
            contents: found.examined.contents.clone(),
        });
        if let Some(holder) = &look.holder {
            print::line(format_args!(
                "{} would be refused: it is in use by {holder}; {}",
                look.identity.name(),
                holder.cure()
            ))?;
        }
    }
    print::line(confirm::table(&drives))?;
    print::line("this is what would be destroyed; nothing was touched")
}

/// A drive that is ours.
struct Owned {
    medium: OpenDevice,
    description: Description,
}

fn own(look: Look) -> Result<Owned, Failure> {
    let patience = Patience { limit: PATIENCE, notify: &mut |_| {} };
    let medium = open_patiently(&look.identity.path, Intent::Own, patience);
    let medium = medium.map_err(Failure::refused)?;
    let examined = examine(&medium).map_err(Failure::refused)?;
    let description = Description {
        identity: look.identity,
        size_bytes: medium.size_bytes(),
        contents: examined.contents,
    };
    Ok(Owned { medium, description })
}

impl Owned {
    fn wipe(&self) -> Result<(), Failure> {
        let name = self.medium.name();
        wipe(&self.medium).map_err(|error| {
            Failure::Failed(format!("wiping {name} failed: {error}; see the kernel's log (dmesg)"))
        })?;
        let left = examine(&self.medium).map_err(Failure::failed)?;
        match left.contents {
            Contents::Blank => {
                let short = base_name(&name);
                print::line(format_args!("{short}: wiped; it counts as blank"))
            }
            contents => Err(Failure::Failed(format!(
                "{name} was wiped, and yet holds {contents}; use `wipefs --all` or `blkdiscard`"
            ))),
        }
    }
}
