//! What the engine makes of its members.
//!
//! **Over throttled members** ([`raidfabric_raid::throttle`]): members in memory that are as slow as
//! told, so slow that the processor does not matter. The engine runs as in the daemon: each data
//! core a thread with a tokio runtime of its own, the mesh between them, gathering, long tasks and
//! write intent. What comes out is the schedule: how many operations of members a request costs, and
//! how busy they are kept. Every figure says how much CPU time it took, as a share of one core; where
//! that is above 30 % the figure may be this machine's and not the engine's, and is marked.
//!
//! **Over members that answer at once**: the CPU time of a request, by level and policy.
//!
//! All experiments take turns; a figure is the median of its runs. `tests/engine-bench` runs this.

#![allow(clippy::expect_used)]

mod cost;
mod figures;
mod load;
mod report;
mod rig;
mod throttled;

use std::process::ExitCode;
use std::time::Duration;

use cost::Subject;
use figures::Figures;
use raidfabric_raid::geometry::Level;
use rig::Policy;
use throttled::Times;

const USAGE: &str = "\
usage: tests/engine-bench [--runs N] [--seconds S] [--cores N] [--only TEXT] [--quick]
                          [--check] [--output text|json]
  --runs N       runs of each experiment, of which the median counts (3)
  --seconds S    how long a run is measured (2)
  --cores N      data cores (1)
  --only TEXT    only the figures whose names contain this; \"cpu\" for those of CPU time
  --quick        one of each kind, for a few seconds: whether it runs, not how fast
  --check        exit with status 1 if a bar is missed
  --output json  the same for programs";

struct Options {
    runs: usize,
    seconds: f64,
    cores: usize,
    only: Option<String>,
    quick: bool,
    check: bool,
    json: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        runs: 3,
        seconds: 2.0,
        cores: 1,
        only: None,
        quick: false,
        check: false,
        json: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--runs" => options.runs = number(&value()?)?,
            "--seconds" => options.seconds = number(&value()?)?,
            "--cores" => options.cores = number(&value()?)?,
            "--only" => options.only = Some(value()?),
            "--output" => options.json = value()? == "json",
            "--quick" => options.quick = true,
            "--check" => options.check = true,
            // Cargo says this to every benchmark.
            "--bench" => {}
            "--help" | "-h" => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            _ => return Err(format!("{argument} is not known")),
        }
    }
    if options.runs == 0 || options.cores == 0 || options.seconds.is_nan() || options.seconds <= 0.0 {
        return Err("runs, cores and seconds are at least 1".into());
    }
    Ok(options)
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

/// Levels and policies whose CPU time is measured.
fn subjects(quick: bool) -> Vec<Subject> {
    let mut subjects = vec![
        Subject::bare(),
        Subject::array(Level::Raid0, 4, Policy::Resync),
        Subject::array(Level::Raid1, 2, Policy::Resync),
        Subject::array(Level::Raid1, 2, Policy::Bitmap),
    ];
    let others = [(Level::Raid10, 4), (Level::Raid5, 4), (Level::Raid5, 8), (Level::Raid6, 8)];
    for (level, members) in others.into_iter().take(if quick { 2 } else { 4 }) {
        for policy in [Policy::Resync, Policy::Bitmap, Policy::Ppl] {
            if policy != Policy::Ppl || matches!(level, Level::Raid5 | Level::Raid6) {
                subjects.push(Subject::array(level, members, policy));
            }
        }
    }
    subjects
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut figures = Figures::new(options.cores, options.quick);
    let mut subjects = subjects(options.quick);
    match options.only.as_deref() {
        Some("cpu") => figures.figures.clear(),
        Some(text) => {
            figures.keep(text);
            subjects.clear();
        }
        None => {}
    }
    let (runs, seconds, requests) =
        if options.quick { (1, 0.1, 500) } else { (options.runs, options.seconds, 20_000) };
    let warm_up = Duration::from_secs_f64(f64::min(seconds, 0.7));
    let times = Times { warm_up, length: Duration::from_secs_f64(seconds) };
    subjects.iter().for_each(Subject::fill);
    for run in 1..=runs {
        for entry in 0..figures.entries.len() {
            if figures.is_needed(entry) {
                eprint!("\r\x1b[Krun {run} of {runs}: {}", figures.entries[entry].name);
                figures.run(entry, times);
            }
        }
        // Short turns: what disturbs one of them disturbs few.
        for _ in 0..5 {
            subjects.iter_mut().for_each(|subject| subject.turn(requests));
        }
    }
    eprintln!("\r\x1b[K");
    let missed = if options.json {
        report::json(&figures, &subjects, runs, options.cores)
    } else {
        report::text(&figures, &subjects)
    };
    if options.check && missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
