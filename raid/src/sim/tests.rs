//! Many lives of arrays, and an error at every call of some.

use std::time::Duration;

use super::faults::{Fault, Plan};
use super::life::{Life, Plot};
use super::mutations::MUTATIONS;
use super::runner::{Outcome, Run, number};
use crate::geometry::Level;

const MIRRORS: &[Level] = &[Level::Raid0, Level::Raid1, Level::Raid1, Level::Raid10, Level::Raid10];

const PARITY: &[Level] = &[Level::Raid5, Level::Raid6];

/// The levels that the environment asks for, or all.
fn levels() -> Vec<Level> {
    match std::env::var("RAIDFABRIC_SIM_LEVELS").as_deref() {
        Ok("mirrors") => MIRRORS.to_vec(),
        Ok("parity") => PARITY.to_vec(),
        _ => [MIRRORS, PARITY, PARITY].concat(),
    }
}

fn plot() -> Plot {
    Plot { levels: levels(), boots: 4, faulty_boots: 50, first: Vec::new() }
}

fn many_lives_of(plot: &Plot, usual: u64) -> Outcome {
    let outcome = Run::new(usual).run(|seed| Life::new(seed, plot.clone()).live());
    println!("{} seeds:\n{:?}", outcome.seeds, outcome.story);
    outcome
}

#[test]
fn many_lives() {
    let usual = if cfg!(debug_assertions) { 250 } else { 2500 };
    let outcome = many_lives_of(&plot(), usual);
    outcome.expect_clean("sim::tests::many_lives");
}

/// Every operation on a drive fails once, in every way: nothing hangs, panics, or breaks a promise,
/// in this boot and after the next.
#[test]
fn an_error_at_every_call() {
    let faults = [
        Fault::Write,
        Fault::NoSpace,
        Fault::Gone,
        Fault::Read { sticky: true },
        Fault::Flush,
        Fault::Hang { nanoseconds: super::disk::NEVER },
    ];
    let (lives, stride) = if cfg!(debug_assertions) { (3, 31) } else { (12, 7) };
    // Of a life there are as many runs as calls, so the number of seeds is not for asking.
    let seeds = number("RAIDFABRIC_SIM_SEED").map_or(0..lives, |seed| seed..seed + 1);
    let run = Run { seeds, time: None, mutation: "", most_failures: 10, is_told: false };
    let outcome = run.run(|seed| {
        let quiet = Plot { boots: 1, faulty_boots: 0, ..plot() };
        let mut life = Life::new(seed, quiet);
        let mut story = life.live();
        for at_call in (seed % stride..life.calls()).step_by(stride as usize) {
            // All of them in turn, and every call with each of them over the seeds.
            let fault = faults[((at_call / stride + seed) % 6) as usize];
            let first = vec![Plan { at_call, disk: None, fault, times: 1 }];
            let plot = Plot { boots: 2, faulty_boots: 0, first, ..plot() };
            let one = super::runner::catch(|| Life::new(seed, plot).live());
            match one {
                Ok(one) => story.add(&one),
                Err(message) => panic!("with {fault:?} at call {at_call}: {message}"),
            }
        }
        story
    });
    println!("{} seeds:\n{:?}", outcome.seeds, outcome.story);
    outcome.expect_clean("sim::tests::an_error_at_every_call");
}

/// Lives for as long as `RAIDFABRIC_SIM_MINUTES` says (or an hour), or for so many seeds as
/// `RAIDFABRIC_SIM_SEEDS` says, from the seed `RAIDFABRIC_SIM_SEED` on (or one made of the time). With
/// `RAIDFABRIC_SIM_STOP` it ends at the first that fails.
#[test]
#[ignore = "it takes as long as it is told to"]
fn soak() {
    let minutes = number("RAIDFABRIC_SIM_MINUTES");
    let seeds = number("RAIDFABRIC_SIM_SEEDS");
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
    let first = number("RAIDFABRIC_SIM_SEED").unwrap_or(now << 24);
    let minutes = minutes.or(seeds.is_none().then_some(60));
    let run = Run {
        seeds: first..seeds.map_or(u64::MAX, |count| first.saturating_add(count)),
        time: minutes.map(|minutes| Duration::from_secs(60 * minutes)),
        mutation: "",
        most_failures: if number("RAIDFABRIC_SIM_STOP").is_some() { 1 } else { usize::MAX },
        is_told: true,
    };
    println!("from seed {first} on");
    let outcome = run.run(|seed| Life::new(seed, plot()).live());
    println!("{} seeds from {first} on:\n{:?}", outcome.seeds, outcome.story);
    outcome.expect_clean("sim::tests::many_lives");
}

/// Every mutation is noticed; prints by how many seeds.
#[test]
#[ignore = "it lives thousands of lives"]
fn mutations_are_noticed() {
    let most = number("RAIDFABRIC_SIM_SEEDS").unwrap_or(20_000);
    let wanted = std::env::var("RAIDFABRIC_SIM_MUTATIONS").unwrap_or_default();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.split_whitespace().any(|w| w == name);
    let mut unnoticed = Vec::new();
    println!("| mutation | what it breaks | seeds | how it shows |\n|---|---|---|---|");
    for mutation in MUTATIONS.iter().filter(|mutation| is_wanted(mutation.name)) {
        let (name, breaks) = (mutation.name, mutation.breaks);
        let run =
            Run { seeds: 0..most, time: None, mutation: name, most_failures: 1, is_told: false };
        let outcome = run.run(|seed| Life::new(seed, plot()).live());
        let Some(failure) = outcome.failures.first() else {
            println!("| `{name}` | {breaks} | not in {} | |", outcome.seeds);
            unnoticed.push(name);
            continue;
        };
        // Without what is another in every run.
        let how = failure.message.lines().next().unwrap_or_default().replace('|', "/");
        let how: String =
            how.split([';', ':']).next().unwrap_or_default().chars().take(90).collect();
        println!("| `{name}` | {breaks} | {} | {how} |", failure.seed + 1);
    }
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
}
