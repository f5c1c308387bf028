//! Runs many seeds on all processors, catches what fails, and tells how to see it again.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use crate::mutation;

/// What happened, counted: for judging whether the runs test what they should.
#[derive(Clone, Default)]
pub(crate) struct Story(BTreeMap<&'static str, u64>);

impl Story {
    /// So many more of something happened.
    pub(crate) fn count(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    pub(crate) fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            self.count(what, *times);
        }
    }
}

impl fmt::Debug for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, times)| writeln!(f, "{times:>12} {what}"))
    }
}

/// A seed that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) seed: u64,
    pub(crate) message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} fails:\n{}", self.seed, self.message)
    }
}

/// What has come of a run of many.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) story: Story,
    pub(crate) seeds: u64,
    /// In order of seeds.
    pub(crate) failures: Vec<Failure>,
}

impl Outcome {
    /// Panics if any seed failed, telling how to see it again.
    pub(crate) fn expect_clean(&self, test: &str) {
        let Some(first) = self.failures.first() else { return };
        let line = |failure: &Failure| {
            let first = failure.message.lines().next().unwrap_or_default();
            format!("\n  {}: {}", failure.seed, first.chars().take(150).collect::<String>())
        };
        let all: String = self.failures.iter().map(line).collect();
        panic!(
            "\nsimulation: {first}\n\nto see it, with a legend:\n  RAIDFABRIC_SIM_SEED={} \
             RAIDFABRIC_SIM_TRACE=1 cargo test --profile simulation -p raidfabric-raid --lib {test} \
             -- --exact --nocapture\nall that failed:{all}\n",
            first.seed
        );
    }
}

thread_local! {
    /// What the last panic on this thread said, while panics are caught here.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static CATCHES: RefCell<bool> = const { RefCell::new(false) };
}

/// Panics in simulated lives are not printed at once, but kept.
fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !CATCHES.with_borrow(|catches| *catches) {
                return before(info);
            }
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let what = text(info.payload());
            LAST_PANIC.set(Some(format!("{what}\n(at {place})")));
        }));
    });
}

fn text(payload: &dyn Any) -> String {
    let words = payload.downcast_ref::<&str>().map(ToString::to_string);
    words.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Runs one life; a panic in it is the error.
pub(crate) fn catch(live: impl FnOnce() -> Story) -> Result<Story, String> {
    install_hook();
    CATCHES.set(true);
    let result = catch_unwind(AssertUnwindSafe(live));
    CATCHES.set(false);
    result.map_err(|_| LAST_PANIC.take().unwrap_or_default())
}

/// What to run, and when to stop.
pub(crate) struct Run {
    pub(crate) seeds: Range<u64>,
    pub(crate) time: Option<Duration>,
    /// The fault to make on purpose; empty: none.
    pub(crate) mutation: &'static str,
    /// Ends when so many seeds have failed.
    pub(crate) most_failures: usize,
    /// Tells every failure at once, and now and then how far it is.
    pub(crate) is_told: bool,
}

/// How often it is told how far a run is.
const TOLD_EVERY: Duration = Duration::from_secs(60);

impl Run {
    /// The given number of seeds, or what the environment asks for.
    pub(crate) fn new(usual: u64) -> Self {
        let seeds = match (number("RAIDFABRIC_SIM_SEED"), number("RAIDFABRIC_SIM_SEEDS")) {
            (Some(seed), None) => seed..seed + 1,
            (first, Some(count)) => first.unwrap_or(0)..first.unwrap_or(0) + count,
            (None, None) => 0..usual,
        };
        Self { seeds, time: None, mutation: "", most_failures: 10, is_told: false }
    }

    /// Lives all lives, on all processors.
    pub(crate) fn run(&self, live: impl Fn(u64) -> Story + Sync) -> Outcome {
        let next = AtomicU64::new(self.seeds.start);
        let outcome = Mutex::new(Outcome::default());
        let started = Instant::now();
        let told = Mutex::new(started);
        let work = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                let is_late = self.time.is_some_and(|time| started.elapsed() > time);
                if seed >= self.seeds.end || is_late {
                    return;
                }
                let result = catch(|| mutation::with(self.mutation, || live(seed)));
                let mut outcome = outcome.lock().unwrap();
                outcome.seeds += 1;
                match result {
                    Ok(story) => outcome.story.add(&story),
                    Err(message) => {
                        let failure = Failure { seed, message };
                        if self.is_told {
                            println!("{failure}\nto see it: tests/soak --replay {seed}\n");
                        }
                        outcome.failures.push(failure);
                    }
                }
                let mut told = told.lock().unwrap();
                if self.is_told && told.elapsed() >= TOLD_EVERY {
                    *told = Instant::now();
                    let minutes = started.elapsed().as_secs() / 60;
                    let (seeds, failed) = (outcome.seeds, outcome.failures.len());
                    println!("{minutes} minutes: {seeds} seeds, {failed} failed");
                }
                if outcome.failures.len() >= self.most_failures {
                    next.store(self.seeds.end, Ordering::Relaxed);
                }
            }
        };
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = number("RAIDFABRIC_SIM_THREADS").map_or_else(all, |threads| threads as usize);
        std::thread::scope(|scope| {
            (0..threads.max(1)).for_each(|_| {
                scope.spawn(work);
            });
        });
        let mut outcome = outcome.into_inner().unwrap();
        outcome.failures.sort_by_key(|failure| failure.seed);
        outcome
    }
}

/// A number that the environment gives.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
