//! `raidfabric array examine`: what drives say about the arrays that they belong to.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;

use super::super::output::Output;
use super::super::{Failure, drive, print};
use crate::config::format_bytes;
use crate::server::examination;
use crate::server::inspect;
use crate::server::report::examination::{Examination, ExaminedArray, Outlook};

/// Arguments of `array examine`.
#[derive(Debug, Args)]
#[command(
    after_help = "Arrays of raidfabric and of mdadm alike, served or not; nothing is written. The YAML \
                  at the end of each array is what a configuration needs to serve it.\n\nExit \
                  codes: 0 each array is complete, 1 one would start without some of its members, 2 \
                  one would not start, 4 there is no array, no such drive, or wrong \
                  usage.\n\nExamples:\n  raidfabric array examine\n  raidfabric array examine \
                  /dev/disk/by-id/nvme-A /dev/disk/by-id/nvme-B\n  raidfabric array examine \
                  --output json /srv/raid/*.img"
)]
pub(in crate::cli) struct Examine {
    /// Only these drives and files [default: all local drives]
    #[arg(value_name = "DRIVE")]
    drives: Vec<String>,
    #[command(flatten)]
    output: Output,
}

impl Examine {
    pub(super) fn run(self) -> Result<(), Failure> {
        let looks = match self.drives.is_empty() {
            true => inspect::look_at_all(&Vec::<PathBuf>::new()),
            false => drive::find(&self.drives)?,
        };
        let examination = examination::of(&looks);
        if examination.arrays.is_empty() {
            let what = match self.drives.is_empty() {
                true => "no local drive belongs to an array",
                false => "none of these drives belongs to an array",
            };
            return Err(Failure::Refused(format!(
                "{what}; files have to be named; `raidfabric drive list` shows what drives hold"
            )));
        }
        self.output.print(&examination, text)?;
        Failure::by_state(examination.severity())
    }
}

/// For people.
pub(in crate::cli) fn text(examination: &Examination) -> String {
    let texts: Vec<_> = examination.arrays.iter().map(paragraph).collect();
    texts.join("\n")
}

fn outlook(outlook: Outlook) -> &'static str {
    match outlook {
        Outlook::Complete => "complete",
        Outlook::Degraded => "would start degraded",
        Outlook::NeedsDecision => "would not start by itself",
        Outlook::Unusable => "cannot be started",
    }
}

fn paragraph(array: &ExaminedArray) -> String {
    let mut text = format!("array {}: {}\n", array.name, outlook(array.outlook));
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(text, "  {name:<13}{value}");
        }
    };
    fact("why", array.problem.clone());
    fact("UUID", Some(array.uuid.to_string()));
    let chunk = array.chunk_bytes.filter(|bytes| *bytes > 0);
    let chunk = chunk.map(|bytes| format!(", chunk {}", format_bytes(bytes))).unwrap_or_default();
    fact("level", Some(format!("{}{chunk}, {} members", array.level, array.slots)));
    fact("size", array.size_bytes.map(format_bytes));
    fact("consistency", array.consistency.clone());
    fact("stopped", array.is_clean.map(|clean| stopped(array, clean)));
    fact("events", Some(array.events.to_string()));
    let mut table = print::table(&["slot", "drive", "serial", "state", "events", "held by"], false);
    for drive in &array.drives {
        table.add_row([
            drive.slot.map_or_else(|| "-".into(), |slot| slot.to_string()),
            drive.drive.clone(),
            drive.serial.clone().unwrap_or_else(|| "-".into()),
            drive.state.clone(),
            drive.events.to_string(),
            drive.held_by.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    for line in table.trim_fmt().lines() {
        let _ = writeln!(text, "  {}", line.trim_end());
    }
    if let Some(yaml) = &array.yaml {
        text.push_str("  to serve it:\n");
        for line in yaml.lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

/// Whether it was stopped cleanly, and what has to be done if not.
fn stopped(array: &ExaminedArray, clean: bool) -> String {
    let mut text = if clean { "cleanly".to_owned() } else { "not cleanly".to_owned() };
    if array.needs_replay {
        text.push_str("; its log is replayed at the start");
    }
    if array.dirty_bytes > 0 {
        let _ = write!(text, "; {} have to be made good", format_bytes(array.dirty_bytes));
    }
    match array.resync_from_bytes {
        None => {}
        Some(0) => text.push_str("; all of it has to be made good"),
        Some(from) => {
            let _ = write!(text, "; it has to be made good from {} on", format_bytes(from));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::report::examination::ExaminedDrive;

    fn array() -> ExaminedArray {
        let drive = |slot: u16, letter: char, state: &str, events| ExaminedDrive {
            drive: format!("/dev/disk/by-id/nvme-{letter}"),
            serial: Some(format!("S{slot}")),
            slot: Some(slot),
            state: state.into(),
            events,
            updated_seconds: 1_796_000_000,
            data_offset_bytes: 1 << 27,
            bad_blocks: 0,
            held_by: None,
        };
        ExaminedArray {
            uuid: uuid::Uuid::from_u128(0x3f0c1d3a_6b0e_4b9b_9a0e_0d6a52a3c001),
            name: "host:fast".into(),
            level: "raid5".into(),
            slots: 3,
            chunk_bytes: Some(65536),
            size_bytes: Some(2 << 40),
            consistency: Some("ppl".into()),
            outlook: Outlook::Degraded,
            problem: Some("slot 2 is missing".into()),
            is_clean: Some(false),
            events: 41,
            resync_from_bytes: None,
            dirty_bytes: 0,
            needs_replay: true,
            drives: vec![
                drive(0, 'A', "in sync", 41),
                drive(1, 'B', "in sync", 41),
                drive(2, 'C', "it is out of date, 4 events behind", 37),
            ],
            yaml: Some(
                "- name: fast\n  level: raid5\n  members:\n    - /dev/disk/by-id/nvme-A\n".into(),
            ),
        }
    }

    #[test]
    fn an_array_is_told_with_its_members_and_the_yaml() {
        let expected = "\
array host:fast: would start degraded
  why          slot 2 is missing
  UUID         3f0c1d3a-6b0e-4b9b-9a0e-0d6a52a3c001
  level        raid5, chunk 64 KiB, 3 members
  size         2 TiB
  consistency  ppl
  stopped      not cleanly; its log is replayed at the start
  events       41
  slot  drive                   serial  state                               events  held by
  0     /dev/disk/by-id/nvme-A  S0      in sync                             41      -
  1     /dev/disk/by-id/nvme-B  S1      in sync                             41      -
  2     /dev/disk/by-id/nvme-C  S2      it is out of date, 4 events behind  37      -
  to serve it:
    - name: fast
      level: raid5
      members:
        - /dev/disk/by-id/nvme-A
";
        let text = text(&Examination::new(vec![array()]));
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn what_has_to_be_made_good_is_told() {
        let mut one = array();
        one.needs_replay = false;
        one.resync_from_bytes = Some(0);
        assert_eq!(stopped(&one, false), "not cleanly; all of it has to be made good");
        one.resync_from_bytes = Some(3 << 30);
        one.dirty_bytes = 64 << 20;
        let expected = "cleanly; 64 MiB have to be made good; it has to be made good from 3 GiB on";
        assert_eq!(stopped(&one, true), expected);
    }

    /// Scripts rest on the names: a change of this text is a new schema.
    #[test]
    fn the_json_is_as_it_was_promised() {
        let json = serde_json::to_value(Examination::new(vec![array()])).unwrap();
        let mut one = json["arrays"][0].clone();
        let drives = one["drives"].take();
        let expected = serde_json::json!({
            "uuid": "3f0c1d3a-6b0e-4b9b-9a0e-0d6a52a3c001",
            "name": "host:fast",
            "level": "raid5",
            "slots": 3,
            "chunk_bytes": 65536,
            "size_bytes": 2_199_023_255_552_u64,
            "consistency": "ppl",
            "outlook": "degraded",
            "problem": "slot 2 is missing",
            "is_clean": false,
            "events": 41,
            "resync_from_bytes": null,
            "dirty_bytes": 0,
            "needs_replay": true,
            "drives": null,
            "yaml": "- name: fast\n  level: raid5\n  members:\n    - /dev/disk/by-id/nvme-A\n",
        });
        assert_eq!(one, expected);
        let expected = serde_json::json!({
            "drive": "/dev/disk/by-id/nvme-C",
            "serial": "S2",
            "slot": 2,
            "state": "it is out of date, 4 events behind",
            "events": 37,
            "updated_seconds": 1_796_000_000,
            "data_offset_bytes": 134_217_728,
            "bad_blocks": 0,
            "held_by": null,
        });
        assert_eq!(drives[2], expected);
        assert_eq!(json["schema"], "raidfabric.examination/1");
    }
}
