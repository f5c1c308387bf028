//! Lets power fail in the runs that a guest recorded: see `raidfabric_tests::replay`, which does
//! it, and `tests/parts/guest-replay`, which has the guest record them.
//!
//! ```text
//! replay RAIDFABRIC RUNS LOGS WORK POINTS [SEED [POINT]]
//! ```
//!
//! RUNS has a folder for each run, LOGS the members' logs, WORK is where members are laid out;
//! POINTS is the number of crashes of each run. A failure prints the command that repeats it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use raidfabric_tests::replay::Run;
use raidfabric_tests::replay::point::Checker;

/// Crashes are looked into by so many at a time.
const WORKERS: usize = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match replay(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("replay: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Settings {
    program: PathBuf,
    work: PathBuf,
    points: usize,
    seed: u64,
    only: Option<usize>,
}

fn replay(arguments: &[String]) -> Result<bool, String> {
    let [program, runs, logs, work, points, rest @ ..] = arguments else {
        return Err("usage: replay RAIDFABRIC RUNS LOGS WORK POINTS [SEED [POINT]]".into());
    };
    let number = |text: &String| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    let settings = Settings {
        program: program.into(),
        work: work.into(),
        points: number(points)? as usize,
        seed: rest.first().map_or(Ok(1), number)?,
        only: rest.get(1).map(number).transpose()?.map(|point| point as usize),
    };
    let entries = std::fs::read_dir(runs).map_err(|error| format!("{runs}: {error}"))?;
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    let (mut all, mut bad) = (0, 0);
    for folder in folders {
        let begin = Instant::now();
        let run = Run::read(&folder, Path::new(logs))?;
        let failures = crashes(&run, &settings)?;
        for (point, what) in &failures {
            println!("{}, point {point}: {what}", run.name);
            println!("again: {} {} {point}", arguments[..5].join(" "), settings.seed);
        }
        let count = settings.only.map_or(settings.points, |_| 1);
        println!(
            "{}: {count} crashes among {} events and {} writes of the host, {} failed, {:.0} s",
            run.name,
            run.trace.end,
            run.trace.writes.len(),
            failures.len(),
            begin.elapsed().as_secs_f32()
        );
        all += count;
        bad += failures.len();
    }
    println!("{all} crashes, {bad} failed");
    Ok(bad == 0 && all > 0)
}

/// Checks a run's crashes; what is wrong with those that fail.
fn crashes(run: &Run, settings: &Settings) -> Result<Vec<(usize, String)>, String> {
    let moments = run.moments(settings.points, settings.seed);
    let failures = Mutex::new(Vec::new());
    let work = |worker: usize| -> Result<(), String> {
        let directory = settings.work.join(format!("crash{worker}"));
        let mut checker = Checker::new(run, &settings.program, &directory)?;
        for (point, moment) in moments.iter().enumerate() {
            if settings.only.map_or(point % WORKERS != worker, |only| only != point || worker != 0)
            {
                continue;
            }
            if let Err(what) = checker.check(moment) {
                let what = format!("{moment:?}: {what}");
                failures.lock().map_err(|_| "a worker died")?.push((point, what));
            }
        }
        Ok(())
    };
    let work = &work;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|at| scope.spawn(move || work(at))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a worker died")?)
    })?;
    failures.into_inner().map_err(|_| "a worker died".into())
}
