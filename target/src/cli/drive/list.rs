//! `raidfabric drive list` and `drive examine`.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;

use super::super::output::Output;
use super::super::{Failure, print};
use super::find;
use crate::config::format_bytes;
use crate::server::inspect::{self, Look};
use crate::server::report::drives::{DriveReport, Drives, Holds};

/// Arguments of `drive list`.
#[derive(Debug, Args)]
#[command(
    after_help = "What other machines serve, and drives without a medium, are left out. A drive \
                  that does not answer within five seconds is listed as such.\n\nExit codes: 0 \
                  done, 1 a drive cannot be read, 4 wrong usage.\n\nExamples:\n  raidfabric drive \
                  list\n  raidfabric drive list --output json /srv/raid/*.img"
)]
pub(in crate::cli) struct List {
    /// Files to be listed, too
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    output: Output,
}

impl List {
    pub(super) fn run(self) -> Result<(), Failure> {
        if let Some(absent) = self.files.iter().find(|path| !path.exists()) {
            return Err(Failure::Refused(format!("{}: there is no such file", absent.display())));
        }
        let looks = inspect::look_at_all(&self.files);
        let drives = looks.iter().filter(|look| has_medium(look)).map(Look::report).collect();
        let drives = Drives::new(drives);
        self.output.print(&drives, table)?;
        Failure::by_state(drives.severity())
    }
}

/// Loop devices without a file, for one, have none.
fn has_medium(look: &Look) -> bool {
    !look.found.as_ref().is_ok_and(|found| found.examined.size_bytes == 0)
}

fn table(drives: &Drives) -> String {
    let header = ["drive", "size", "block", "serial", "holds", "held by"];
    let mut table = print::table(&header, false);
    for drive in &drives.drives {
        let holds = match (&drive.holds, &drive.problem) {
            (Some(holds), _) => in_short(holds),
            (None, Some(problem)) => problem.clone(),
            (None, None) => "-".to_owned(),
        };
        table.add_row([
            drive.name().to_owned(),
            drive.size_bytes.map_or_else(|| "-".into(), format_bytes),
            drive.block_size_bytes.map_or_else(|| "-".into(), |bytes| bytes.to_string()),
            drive.serial.clone().unwrap_or_else(|| "-".into()),
            holds,
            drive.held_by.as_ref().map_or_else(|| "-".into(), |held| held.text.clone()),
        ]);
    }
    format!("{}\n", table.trim_fmt())
}

/// What is on a drive, in a few words.
fn in_short(holds: &Holds) -> String {
    use crate::server::report::drives::{DriveRole, HoldsKind};
    let Some(member) = &holds.member else {
        return match holds.kind {
            HoldsKind::Nothing => "nothing".to_owned(),
            _ => holds.text.clone(),
        };
    };
    let role = match (member.role, member.slot) {
        (DriveRole::Member, Some(slot)) => format!("slot {slot} of {}", member.slots),
        (DriveRole::Spare, _) => "spare".to_owned(),
        (DriveRole::Journal, _) => "journal".to_owned(),
        (DriveRole::Failed | DriveRole::Member, _) => "failed member".to_owned(),
    };
    format!("{role} of {} {}", member.level, member.name)
}

/// Arguments of `drive examine`.
#[derive(Debug, Args)]
#[command(
    after_help = "Read-only, also while the drive is in use. `raidfabric array examine` puts the \
                  members of an array together.\n\nExit codes: 0 done, 1 a drive cannot be read, 4 \
                  no such drive, or wrong usage.\n\nExample: raidfabric drive examine \
                  /dev/disk/by-id/nvme-A"
)]
pub(in crate::cli) struct Examine {
    /// The drives: paths, names under /dev/disk/by-id, or serial numbers
    #[arg(value_name = "DRIVE", required = true)]
    drives: Vec<String>,
    #[command(flatten)]
    output: Output,
}

impl Examine {
    pub(super) fn run(self) -> Result<(), Failure> {
        let drives = Drives::new(find(&self.drives)?.iter().map(Look::report).collect());
        self.output.print(&drives, |drives| {
            let texts: Vec<_> = drives.drives.iter().map(paragraph).collect();
            texts.join("\n")
        })?;
        Failure::by_state(drives.severity())
    }
}

/// One drive, a line for each fact.
fn paragraph(drive: &DriveReport) -> String {
    let mut text = format!("drive {}\n", drive.name());
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(text, "  {name:<14}{value}");
        }
    };
    fact("path", (drive.path != drive.name()).then(|| drive.path.clone()));
    fact("partition of", drive.partition_of.clone());
    fact("model", drive.model.clone());
    fact("serial", drive.serial.clone());
    fact("size", drive.size_bytes.map(|bytes| format!("{} ({bytes} bytes)", format_bytes(bytes))));
    let blocks = drive.block_size_bytes.zip(drive.physical_block_bytes);
    fact(
        "blocks",
        blocks.map(|(logical, physical)| match logical == physical {
            true => format!("{logical} bytes"),
            false => format!("{logical} bytes, {physical} inside"),
        }),
    );
    fact(
        "write cache",
        drive.has_volatile_cache.map(|cache| match cache {
            true => "volatile: flushes are needed".to_owned(),
            false => "none, or safe from power loss".to_owned(),
        }),
    );
    fact("holds", drive.holds.as_ref().map(|holds| holds.text.clone()));
    let member = drive.holds.as_ref().and_then(|holds| holds.member.as_ref());
    fact("events", member.map(|member| member.events.to_string()));
    fact("held by", drive.held_by.as_ref().map(|held| format!("{}: {}", held.text, held.cure)));
    fact("problem", drive.problem.clone());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::report::drives::{ArrayMember, DriveRole, HeldBy, HoldsKind};

    fn member() -> DriveReport {
        DriveReport {
            path: "/dev/nvme0n1".into(),
            by_id: Some("/dev/disk/by-id/nvme-A".into()),
            kernel_name: Some("nvme0n1".into()),
            partition_of: None,
            serial: Some("S1".into()),
            model: Some("Example 980".into()),
            size_bytes: Some(1 << 40),
            block_size_bytes: Some(512),
            physical_block_bytes: Some(4096),
            has_volatile_cache: Some(true),
            is_rotational: Some(false),
            holds: Some(Holds {
                kind: HoldsKind::Member,
                text: "member 2 of 4 of the md array host:fast (level 10, UUID …)".into(),
                offset_bytes: None,
                member: Some(ArrayMember {
                    uuid: uuid::Uuid::from_u128(7),
                    name: "host:fast".into(),
                    level: "raid10".into(),
                    slots: 4,
                    role: DriveRole::Member,
                    slot: Some(2),
                    events: 41,
                }),
            }),
            held_by: Some(HeldBy {
                kind: "process".into(),
                text: "process 7 (raidfabric)".into(),
                pid: Some(7),
                cure: "end process 7".into(),
            }),
            problem: None,
        }
    }

    fn dead() -> DriveReport {
        DriveReport {
            path: "/dev/nvme1n1".into(),
            by_id: None,
            serial: None,
            size_bytes: None,
            block_size_bytes: None,
            physical_block_bytes: None,
            has_volatile_cache: None,
            is_rotational: None,
            model: None,
            holds: None,
            held_by: None,
            problem: Some("it has not answered within 5 s".into()),
            ..member()
        }
    }

    #[test]
    fn the_list_is_a_table() {
        let text = table(&Drives::new(vec![member(), dead()]));
        let expected = "\
drive                   size   block  serial  holds                           held by
/dev/disk/by-id/nvme-A  1 TiB  512    S1      slot 2 of 4 of raid10 host:fast  process 7 (raidfabric)
/dev/nvme1n1            -      -      -       it has not answered within 5 s  -
";
        let plain = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
        };
        assert_eq!(plain(&text), plain(expected), "{text}");
    }

    #[test]
    fn one_drive_is_told_fact_by_fact() {
        let text = paragraph(&member());
        let expected = "\
drive /dev/disk/by-id/nvme-A
  path          /dev/nvme0n1
  model         Example 980
  serial        S1
  size          1 TiB (1099511627776 bytes)
  blocks        512 bytes, 4096 inside
  write cache   volatile: flushes are needed
  holds         member 2 of 4 of the md array host:fast (level 10, UUID …)
  events        41
  held by       process 7 (raidfabric): end process 7
";
        assert_eq!(text, expected);
        assert_eq!(
            paragraph(&dead()),
            "drive /dev/nvme1n1\n  problem       it has not answered within 5 s\n"
        );
    }

    /// Exporters and scripts rest on the names: a change of this text is a new schema.
    #[test]
    fn the_json_is_as_it_was_promised() {
        let json = serde_json::to_value(Drives::new(vec![member()])).unwrap();
        let expected = serde_json::json!({
            "schema": "raidfabric.drives/1",
            "drives": [{
                "path": "/dev/nvme0n1",
                "by_id": "/dev/disk/by-id/nvme-A",
                "kernel_name": "nvme0n1",
                "partition_of": null,
                "serial": "S1",
                "model": "Example 980",
                "size_bytes": 1_099_511_627_776_u64,
                "block_size_bytes": 512,
                "physical_block_bytes": 4096,
                "has_volatile_cache": true,
                "is_rotational": false,
                "holds": {
                    "kind": "member",
                    "text": "member 2 of 4 of the md array host:fast (level 10, UUID …)",
                    "offset_bytes": null,
                    "member": {
                        "uuid": "00000000-0000-0000-0000-000000000007",
                        "name": "host:fast",
                        "level": "raid10",
                        "slots": 4,
                        "role": "member",
                        "slot": 2,
                        "events": 41,
                    },
                },
                "held_by": {
                    "kind": "process",
                    "text": "process 7 (raidfabric)",
                    "pid": 7,
                    "cure": "end process 7",
                },
                "problem": null,
            }],
        });
        assert_eq!(json, expected);
    }
}
