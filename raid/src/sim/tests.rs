//! Many lives of arrays, and an error at every call of some.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::disk::{Kind, Plan};
use super::run::{Life, Story};
use crate::drive::DriveError;

/// Tells how to repeat a run that panics.
fn with_seed(seed: u64, what: &str, run: impl FnOnce() -> Story) -> Story {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(story) => story,
        Err(panic) => {
            eprintln!(
                "\nsimulation: seed {seed} fails ({what}); to see it: RAIDFABRIC_SIM_SEED={seed} \
                 RAIDFABRIC_SIM_TRACE=1 cargo test -p raidfabric-raid sim -- --nocapture"
            );
            resume_unwind(panic)
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The seeds to run, and whether it is the usual set.
fn seeds(usual: u64) -> (std::ops::Range<u64>, bool) {
    match (number("RAIDFABRIC_SIM_SEED"), number("RAIDFABRIC_SIM_SEEDS")) {
        (Some(seed), _) => (seed..seed + 1, false),
        (None, Some(count)) => (0..count, count >= usual),
        (None, None) => (0..usual, true),
    }
}

#[test]
fn many_lives() {
    let (seeds, is_usual) = seeds(if cfg!(debug_assertions) { 250 } else { 2500 });
    let mut all = Story::default();
    for seed in seeds {
        all.add(&with_seed(seed, "many lives", || match seed % 2 {
            0 => Life::new(seed).live(4, false),
            _ => Life::with_failures(seed).live(4, true),
        }));
    }
    println!("{all:#?}");
    if is_usual {
        // The runs reach what they are meant to test.
        assert!(all.power_cuts > 50 && all.deaths > 50 && all.clean_stops > 50);
        assert!(all.resyncs_completed > 50 && all.resumed_resyncs > 0);
        assert!(all.injected_errors > 20 && all.failed_arrays > 5 && all.no_space > 2);
        assert!(all.reads_from_other_copies > 0);
        assert!(all.requests > 10 * all.failed_requests, "most requests succeed");
    }
}

/// Every operation on a drive fails once, in every way: nothing hangs, panics, or breaks a promise,
/// in this boot and after the next.
#[test]
fn an_error_at_every_call() {
    let errors = [
        DriveError::Io { errno: 5 },
        DriveError::NoSpace,
        DriveError::Gone,
        DriveError::Short { done_bytes: 512, wanted_bytes: 4096 },
    ];
    let (lives, stride) = if cfg!(debug_assertions) { (3, 31) } else { (12, 1) };
    // Of a life there are as many runs as calls, so the number of seeds is not for asking.
    let seeds = number("RAIDFABRIC_SIM_SEED").map_or(0..lives, |seed| seed..seed + 1);
    for seed in seeds {
        let calls = with_seed(seed, "no error", || Life::with_failures(seed).live(1, false)).calls;
        let mut injected = 0;
        for at_call in (seed % stride..calls).step_by(stride as usize) {
            // All four in turn, and every call with each of them over the seeds.
            let error = errors[((at_call / stride + seed) % 4) as usize];
            let what = format!("{error} at call {at_call}");
            let story = with_seed(seed, &what, || {
                let mut life = Life::with_failures(seed);
                life.plan(Some(Plan { at_call, error, only: None, times: 1 }));
                life.live(2, false)
            });
            injected += story.injected_errors;
        }
        assert!(injected * 2 > calls / stride, "{injected} errors in {calls} calls");
    }
}

/// Lives in which the first error hits one kind of operation.
fn lives_with(kind: Kind, what: &str) {
    let (seeds, _) = seeds(if cfg!(debug_assertions) { 30 } else { 600 });
    let mut all = Story::default();
    for seed in seeds {
        let story = with_seed(seed, what, || {
            let mut life = Life::with_failures(seed);
            let error = DriveError::Io { errno: 5 };
            life.plan(Some(Plan { at_call: seed % 40, error, only: Some(kind), times: 1 }));
            life.live(3, false)
        });
        all.add(&story);
    }
    println!("{all:#?}");
}

/// After a failed flush nothing that it was for counts as safe.
#[test]
fn failing_flushes() {
    lives_with(Kind::Flush, "a flush fails");
}

/// A read error early, when copies may not agree yet.
#[test]
fn failing_reads() {
    lives_with(Kind::Read, "a read fails");
}
