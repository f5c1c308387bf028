//! `raidfabric status` and `raidfabric wait`: how the arrays are.
//!
//! The text says four things first for each array: its state, why, what to do, and what goes on.

use std::fmt::Write;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use super::client::Socket;
use super::output::Output;
use super::{Failure, array, print};
use crate::config::{format_bytes, parse_duration};
use crate::server::report::examination::ExaminedArray;
use crate::server::report::{
    ArrayState, ArrayStatus, Export, MemberCondition, Severity, Status, Task,
};
use crate::server::{examination, inspect};

/// How often the state is asked for while it is waited for.
const POLL: Duration = Duration::from_millis(200);

/// Arguments of `status`.
#[derive(Debug, Args)]
#[command(
    after_help = "While no daemon runs it is told what the drives hold, as by `raidfabric array \
                  examine`.\n\nExit codes: 0 all is well, 1 degraded or a warning, 2 failed or \
                  stopped, 4 no such array, or wrong usage.\n\nExamples:\n  raidfabric status\n  \
                  raidfabric status fast --problems\n  raidfabric status --output json"
)]
pub(super) struct StatusCommand {
    /// Only this array
    #[arg(value_name = "ARRAY")]
    array: Option<String>,
    /// Only what is wrong
    #[arg(long)]
    problems: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    socket: Socket,
}

impl StatusCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Some(daemon) = self.socket.daemon()? else {
            return self.without_daemon();
        };
        let mut status = daemon.status(self.array.as_deref())?;
        let severity = status.severity();
        if self.problems {
            status.arrays.retain(|array| !array.problems.is_empty());
        }
        let text = if self.problems { problems } else { everything };
        self.output.print(&status, text)?;
        Failure::by_state(severity)
    }

    /// What the drives tell.
    fn without_daemon(self) -> Result<(), Failure> {
        let mut examination = examination::of(&inspect::look_at_all(&[]));
        if let Some(name) = &self.array {
            let is_it = |array: &ExaminedArray| {
                let short = array.name.split_once(':').map_or(&*array.name, |(_, short)| short);
                array.name == *name || short == name
            };
            examination.arrays.retain(is_it);
        }
        if examination.arrays.is_empty() {
            let which =
                self.array.map_or_else(|| "an array".into(), |name| format!("array {name}"));
            return Err(Failure::Refused(format!(
                "no daemon runs (none has its control socket at the usual place; --socket names \
                 another), and no local drive belongs to {which}"
            )));
        }
        let severity = examination.severity();
        self.output.print(&examination, |examination| {
            let told = array::examined(examination);
            format!("no daemon runs; this is what the drives tell:\n\n{told}")
        })?;
        Failure::by_state(severity)
    }
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Goal {
    /// Nothing is wrong
    Healthy,
    /// Nothing goes on in the background
    Idle,
    /// No member is being rebuilt, or waits for it
    Rebuilt,
    /// Copies agree, and parity is right, everywhere
    Synced,
}

impl Goal {
    fn is_reached(self, array: &ArrayStatus) -> bool {
        let runs =
            !matches!(array.state, ArrayState::Waiting | ArrayState::Stopped | ArrayState::Failed);
        let in_sync =
            |states: &[MemberCondition]| array.members.iter().all(|m| states.contains(&m.state));
        match self {
            Self::Healthy => array.state == ArrayState::Healthy,
            Self::Idle => array.tasks.is_empty(),
            Self::Rebuilt => runs && in_sync(&[MemberCondition::InSync]),
            Self::Synced => {
                runs && !matches!(array.state, ArrayState::Building | ArrayState::Resyncing)
                    && array.tasks.iter().all(|task| !task.kind.is_sync())
            }
        }
    }
}

/// Arguments of `wait`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 it is so, 1 the time was up or an array has failed, 2 wrong usage or \
                  no daemon.\n\nExamples:\n  raidfabric wait --for healthy\n  raidfabric wait fast \
                  --for rebuilt --timeout 2h"
)]
pub(super) struct Wait {
    /// Only this array
    #[arg(value_name = "ARRAY")]
    array: Option<String>,
    /// What is waited for
    #[arg(long = "for", value_name = "GOAL", value_enum)]
    goal: Goal,
    /// Give up after this time [default: wait as long as it takes]
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    timeout: Option<Duration>,
    #[command(flatten)]
    socket: Socket,
}

fn timeout(text: &str) -> Result<Duration, String> {
    parse_duration(text, Duration::ZERO, Duration::from_secs(365 * 24 * 3600))
}

impl Wait {
    pub(super) fn run(self) -> Result<(), Failure> {
        let daemon = self.socket.running()?;
        let deadline = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let status = daemon.status(self.array.as_deref())?;
            let missed = |array: &&ArrayStatus| !self.goal.is_reached(array);
            let Some(array) = status.arrays.iter().find(missed) else { return Ok(()) };
            // What has failed does not mend itself; what waits for drives may.
            if matches!(array.state, ArrayState::Failed | ArrayState::Stopped) {
                return Err(Failure::Failed(format!(
                    "array {} is {}; `raidfabric status {}` says why",
                    array.name,
                    array.state.as_str(),
                    array.name
                )));
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Failure::Failed(format!(
                    "the time is up, and array {} is {}{}",
                    array.name,
                    array.state.as_str(),
                    array
                        .tasks
                        .first()
                        .map(|task| format!(": {}", task_line(task)))
                        .unwrap_or_default()
                )));
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Only what is wrong.
fn problems(status: &Status) -> String {
    let mut text = String::new();
    for array in &status.arrays {
        head(&mut text, array);
    }
    if text.is_empty() { "nothing is wrong\n".to_owned() } else { text }
}

fn everything(status: &Status) -> String {
    let mut text = String::new();
    for array in &status.arrays {
        head(&mut text, array);
        text.push('\n');
        members(&mut text, array);
        text.push('\n');
    }
    for export in &status.exports {
        exported(&mut text, export);
    }
    text
}

/// State, why, what to do, what goes on.
fn head(text: &mut String, array: &ArrayStatus) {
    let chunk = match array.chunk_bytes {
        0 => String::new(),
        bytes => format!(", chunk {}", format_bytes(bytes)),
    };
    let _ = writeln!(
        text,
        "array {}: {}\n  {}{chunk}, {} members, {}, consistency {}; can lose {} more",
        array.name,
        array.state.as_str(),
        array.level,
        array.members.len(),
        format_bytes(array.size_bytes),
        array.consistency,
        array.redundancy_remaining,
    );
    for problem in &array.problems {
        let word = match problem.severity {
            Severity::Ok => "note",
            _ => "why",
        };
        let _ = writeln!(text, "  {word:<5} {}", problem.what);
        if let Some(cure) = &problem.cure {
            let _ = writeln!(text, "  do    {cure}");
        }
    }
    for task in &array.tasks {
        let _ = writeln!(text, "  task  {}", task_line(task));
    }
}

/// One line about what goes on.
pub(super) fn task_line(task: &Task) -> String {
    let share = match task.end_bytes {
        0 => 100.0,
        end => task.position_bytes as f64 * 100.0 / end as f64,
    };
    let slot = task.slot.map(|slot| format!(" of slot {slot}")).unwrap_or_default();
    let mut line = format!(
        "{}{slot}  {share:.1} %  {}",
        task.kind.as_str(),
        progress(task.position_bytes, task.end_bytes)
    );
    if let Some(rate) = task.bytes_per_second {
        let _ = write!(line, "  {}/s", decimal(rate as f64));
    }
    match task.seconds_left {
        Some(seconds) => _ = write!(line, "  about {} left", rough(seconds)),
        None => line.push_str("  time left not known yet"),
    }
    if let Some(bytes) = task.mismatch_bytes.filter(|bytes| *bytes > 0) {
        let _ = write!(line, "  {} differ", format_bytes(bytes));
    }
    if let Some(limit) = &task.limited_by {
        let _ = write!(line, "  (limited by: {limit})");
    }
    line
}

const UNITS: [(&str, f64); 5] = [
    ("TiB", 1_099_511_627_776.0),
    ("GiB", 1_073_741_824.0),
    ("MiB", 1_048_576.0),
    ("KiB", 1024.0),
    ("B", 1.0),
];

fn unit(bytes: f64) -> (&'static str, f64) {
    UNITS.into_iter().find(|(_, factor)| bytes >= *factor).unwrap_or(("B", 1.0))
}

/// A rate or a size in three or four digits.
fn decimal(bytes: f64) -> String {
    let (name, factor) = unit(bytes);
    let value = bytes / factor;
    if value >= 100.0 || factor == 1.0 {
        format!("{value:.0} {name}")
    } else {
        format!("{value:.1} {name}")
    }
}

/// `1.24/3.29 TiB`.
fn progress(position: u64, end: u64) -> String {
    let (name, factor) = unit(end as f64);
    let digits = if factor == 1.0 { 0 } else { 2 };
    format!("{:.digits$}/{:.digits$} {name}", position as f64 / factor, end as f64 / factor)
}

/// A time as one would say it.
fn rough(seconds: u64) -> String {
    match seconds {
        0..=89 => format!("{seconds} s"),
        90..=5399 => format!("{} min", (seconds + 30) / 60),
        5400..=172_799 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} days", (seconds + 43_200) / 86_400),
    }
}

fn members(text: &mut String, array: &ArrayStatus) {
    let header =
        ["slot", "drive", "serial", "state", "read err", "write err", "bad", "temperature"];
    let mut table = print::table(&header, false);
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    for member in &array.members {
        table.add_row([
            member.slot.to_string(),
            or_dash(&member.drive),
            or_dash(&member.serial),
            member.state.as_str().to_owned(),
            member.read_errors.to_string(),
            (member.write_errors + member.flush_errors).to_string(),
            member.bad_blocks.to_string(),
            member.temperature_kelvin.map_or_else(|| "-".into(), celsius),
        ]);
    }
    for spare in &array.spares {
        let state = match (spare.is_ready, &spare.why) {
            (true, _) => "ready".to_owned(),
            (false, Some(why)) => why.clone(),
            (false, None) => "not ready".to_owned(),
        };
        let dash = || "-".to_owned();
        table.add_row([
            "spare".to_owned(),
            spare.drive.clone(),
            or_dash(&spare.serial),
            state,
            dash(),
            dash(),
            dash(),
            dash(),
        ]);
    }
    for line in table.trim_fmt().lines() {
        let _ = writeln!(text, "  {}", line.trim_end());
    }
}

fn celsius(kelvin: u16) -> String {
    format!("{} °C", i32::from(kelvin) - 273)
}

fn exported(text: &mut String, export: &Export) {
    let addresses: Vec<_> = export.addresses.iter().map(ToString::to_string).collect();
    let _ = writeln!(text, "subsystem {}\n  at        {}", export.nqn, addresses.join(", "));
    for namespace in &export.namespaces {
        let _ = writeln!(
            text,
            "  nsid {:<4} {} of array {}, blocks of {} bytes",
            namespace.nsid,
            format_bytes(namespace.size_bytes),
            namespace.array,
            namespace.block_size_bytes
        );
    }
    let hosts = match export.connected_hosts.len() {
        0 => "none".to_owned(),
        _ => export.connected_hosts.join(", "),
    };
    let _ = writeln!(text, "  hosts     {hosts}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::report::{Daemon, ExportedNamespace, STATUS, Spare, TaskKind};
    use crate::server::verdict::tests::facts;

    fn rebuild() -> Task {
        Task {
            kind: TaskKind::Rebuild,
            slot: Some(2),
            position_bytes: 1_360_000_000_000,
            end_bytes: 3_617_000_000_000,
            left_bytes: 2_257_000_000_000,
            bytes_per_second: Some(851_443_712),
            seconds_left: Some(2600),
            limited_by: Some("foreground latency".into()),
            mismatch_bytes: None,
        }
    }

    fn degraded() -> Status {
        let mut facts = facts("raid5", 4);
        facts.members[2].state = MemberCondition::Rebuilding;
        facts.members[3].state = MemberCondition::Failed;
        facts.members[3].why = Some("it did not write: I/O error (errno 5)".into());
        facts.members[3].write_errors = 1;
        facts.members[1].temperature_kelvin = None;
        facts.tasks.push(rebuild());
        facts.spares.push(Spare {
            drive: "/dev/disk/by-id/nvme-E".into(),
            serial: Some("S4".into()),
            is_ready: false,
            why: Some("not blank: an XFS file system (at byte 0)".into()),
        });
        Status {
            schema: STATUS.into(),
            daemon: Some(Daemon {
                version: "0.1.0".into(),
                pid: 7,
                uptime_seconds: 60,
                connections: 5,
                controllers: 1,
                commands: 0,
                buffer_bytes: 0,
            }),
            arrays: vec![facts.judge()],
            exports: vec![Export {
                nqn: "nqn.2026-11.io.raidfabric:fast".into(),
                addresses: vec!["192.0.2.10:4420".parse().unwrap()],
                connected_hosts: vec![
                    "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111".into(),
                ],
                namespaces: vec![ExportedNamespace {
                    nsid: 1,
                    array: "fast".into(),
                    size_bytes: 3 << 40,
                    block_size_bytes: 4096,
                }],
            }],
        }
    }

    #[test]
    fn the_text_says_four_things_first() {
        let text = everything(&degraded());
        let expected = "\
array fast: degraded
  raid5, chunk 64 KiB, 4 members, 3 TiB, consistency ppl; can lose 0 more
  why   slot 2 (/dev/disk/by-id/nvme-C, serial S2) is being rebuilt
  why   slot 3 (/dev/disk/by-id/nvme-D, serial S3) has failed: it did not write: I/O error (errno 5)
  do    put a new drive in: raidfabric array add fast DRIVE --slot 3
  task  rebuild of slot 2  37.6 %  1.24/3.29 TiB  812 MiB/s  about 43 min left  (limited by: foreground latency)

  slot   drive                   serial  state                                      read err  write err  bad  temperature
  0      /dev/disk/by-id/nvme-A  S0      in sync                                    0         0          0    40 °C
  1      /dev/disk/by-id/nvme-B  S1      in sync                                    0         0          0    -
  2      /dev/disk/by-id/nvme-C  S2      rebuilding                                 0         0          0    40 °C
  3      /dev/disk/by-id/nvme-D  S3      failed                                     0         1          0    40 °C
  spare  /dev/disk/by-id/nvme-E  S4      not blank: an XFS file system (at byte 0)  -         -          -    -

subsystem nqn.2026-11.io.raidfabric:fast
  at        192.0.2.10:4420
  nsid 1    3 TiB of array fast, blocks of 4096 bytes
  hosts     nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111
";
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn only_problems() {
        let mut status = degraded();
        let text = problems(&status);
        assert!(text.starts_with("array fast: degraded\n") && !text.contains("nsid"), "{text}");
        status.arrays.clear();
        assert_eq!(problems(&status), "nothing is wrong\n");
    }

    #[test]
    fn a_task_whose_pace_is_not_known_does_not_guess() {
        let task = Task {
            kind: TaskKind::Check,
            slot: None,
            bytes_per_second: None,
            seconds_left: None,
            limited_by: None,
            mismatch_bytes: Some(4096),
            position_bytes: 0,
            end_bytes: 64 << 20,
            left_bytes: 64 << 20,
        };
        assert_eq!(
            task_line(&task),
            "check  0.0 %  0.00/64.00 MiB  time left not known yet  4 KiB differ"
        );
        for (seconds, text) in
            [(5, "5 s"), (89, "89 s"), (90, "2 min"), (5400, "1 h 30 min"), (700_000, "8 days")]
        {
            assert_eq!(rough(seconds), text);
        }
    }

    #[test]
    fn goals() {
        let healthy = facts("raid6", 4).judge();
        let rebuilding = degraded().arrays.remove(0);
        for (goal, now) in [
            (Goal::Healthy, false),
            (Goal::Idle, false),
            (Goal::Rebuilt, false),
            (Goal::Synced, true),
        ] {
            assert!(goal.is_reached(&healthy), "{goal:?}");
            assert_eq!(goal.is_reached(&rebuilding), now, "{goal:?}");
        }
    }

    /// Exporters and scripts rest on the names: a change of this text is a new schema.
    #[test]
    fn the_json_is_as_it_was_promised() {
        let json = serde_json::to_value(degraded()).unwrap();
        let array = &json["arrays"][0];
        let expected = serde_json::json!({
            "name": "fast",
            "uuid": "3f0c1d3a-6b0e-4b9b-9a0e-0d6a52a3c001",
            "level": "raid5",
            "chunk_bytes": 65536,
            "size_bytes": 3_298_534_883_328_u64,
            "consistency": "ppl",
            "state": "degraded",
            "severity": "warning",
            "problems": [
                {
                    "severity": "warning",
                    "what": "slot 2 (/dev/disk/by-id/nvme-C, serial S2) is being rebuilt",
                    "cure": null,
                },
                {
                    "severity": "warning",
                    "what": "slot 3 (/dev/disk/by-id/nvme-D, serial S3) has failed: it did not write: I/O error (errno 5)",
                    "cure": "put a new drive in: raidfabric array add fast DRIVE --slot 3",
                },
            ],
            "tasks": [{
                "kind": "rebuild",
                "slot": 2,
                "position_bytes": 1_360_000_000_000_u64,
                "end_bytes": 3_617_000_000_000_u64,
                "left_bytes": 2_257_000_000_000_u64,
                "bytes_per_second": 851_443_712,
                "seconds_left": 2600,
                "limited_by": "foreground latency",
                "mismatch_bytes": null,
            }],
            "redundancy_remaining": 0,
            "members": array["members"],
            "spares": [{
                "drive": "/dev/disk/by-id/nvme-E",
                "serial": "S4",
                "is_ready": false,
                "why": "not blank: an XFS file system (at byte 0)",
            }],
            "last_check": null,
        });
        assert_eq!(*array, expected);
        let member = serde_json::json!({
            "slot": 3,
            "drive": "/dev/disk/by-id/nvme-D",
            "serial": "S3",
            "state": "failed",
            "why": "it did not write: I/O error (errno 5)",
            "read_errors": 0,
            "write_errors": 1,
            "flush_errors": 0,
            "no_space_errors": 0,
            "bad_blocks": 0,
            "temperature_kelvin": 313,
        });
        assert_eq!(array["members"][3], member);
        assert_eq!(array["members"][0]["state"], "in_sync");
        assert_eq!(json["schema"], "raidfabric.status/1");
        let expected = serde_json::json!({
            "version": "0.1.0",
            "pid": 7,
            "uptime_seconds": 60,
            "connections": 5,
            "controllers": 1,
            "commands": 0,
            "buffer_bytes": 0,
        });
        assert_eq!(json["daemon"], expected);
        let expected = serde_json::json!([{
            "nqn": "nqn.2026-11.io.raidfabric:fast",
            "addresses": ["192.0.2.10:4420"],
            "connected_hosts": ["nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111"],
            "namespaces": [{
                "nsid": 1,
                "array": "fast",
                "size_bytes": 3_298_534_883_328_u64,
                "block_size_bytes": 4096,
            }],
        }]);
        assert_eq!(json["exports"], expected);
        let back: Status = serde_json::from_value(json).unwrap();
        assert_eq!(back, degraded());
    }
}
