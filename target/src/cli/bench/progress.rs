//! The bar that is drawn while a run lasts; on a terminal only.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use raidfabric_initiator::bench::{Phase, Progress};

use super::tables::grouped;

/// Steps of the whole bar.
const STEPS: u64 = 1000;

/// A bar on standard error, which is nothing where that is not a terminal.
pub(super) struct Bar {
    bar: ProgressBar,
    /// What had been done when the phase began, to tell its own rate.
    phase: Option<(Phase, u64, u64)>,
}

impl Bar {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::stderr());
        // The template is a constant; were it wrong, the usual one would do.
        let style = ProgressStyle::with_template("{msg} [{wide_bar}] {percent:>3} %")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        Self { bar, phase: None }
    }

    /// Shows how far a run is; `before` says which run of several it is.
    pub(super) fn show(&mut self, before: &str, run: usize, runs: usize, now: &Progress) {
        let (_, operations, bytes) = match self.phase {
            Some(begun) if begun.0 == now.phase && begun.1 <= now.operations => begun,
            _ => *self.phase.insert((now.phase, now.operations, now.bytes)),
        };
        let rates = rates(now.operations - operations, now.bytes - bytes, now.elapsed);
        let position = (run as f64 + fraction(now)) / runs.max(1) as f64;
        self.bar.set_position((position * STEPS as f64) as u64);
        // As wide as rates get, so that the bar keeps its length.
        self.bar.set_message(format!("{before}{:<11} {rates:<30}", word(now.phase)));
    }

    /// Removes the bar.
    pub(super) fn clear(self) {
        self.bar.finish_and_clear();
    }
}

/// How much of its run has passed; only measuring counts, which lasts longest.
fn fraction(now: &Progress) -> f64 {
    match (now.phase, now.total) {
        (Phase::Measuring, Some(total)) if !total.is_zero() => {
            (now.elapsed.as_secs_f64() / total.as_secs_f64()).min(1.0)
        }
        (Phase::Checking, _) => 1.0,
        _ => 0.0,
    }
}

fn rates(operations: u64, bytes: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    if seconds <= 0.0 {
        return String::new();
    }
    let megabytes = bytes as f64 / seconds / 1e6;
    format!("{} IOPS, {megabytes:.1} MB/s", grouped(operations as f64 / seconds))
}

fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::Connecting => "connecting",
        Phase::Filling => "filling",
        Phase::Warming => "warming up",
        Phase::Measuring => "measuring",
        Phase::Checking => "checking",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(phase: Phase, seconds: u64, operations: u64) -> Progress {
        let total = (phase == Phase::Measuring).then_some(Duration::from_secs(4));
        let elapsed = Duration::from_secs(seconds);
        Progress { phase, elapsed, total, operations, bytes: operations * 4096 }
    }

    #[test]
    fn a_phase_has_its_own_rate_and_a_run_its_part_of_the_bar() {
        let mut bar = Bar::new();
        bar.show("", 0, 2, &at(Phase::Filling, 1, 500));
        assert_eq!(bar.bar.position(), 0);
        bar.show("", 0, 2, &at(Phase::Measuring, 0, 1000));
        bar.show("", 0, 2, &at(Phase::Measuring, 2, 3000));
        assert_eq!(bar.bar.position(), 250);
        assert!(bar.bar.message().contains("1,000 IOPS, 4.1 MB/s"), "{}", bar.bar.message());
        // The next run of a sweep counts from nothing.
        bar.show("run 2 of 2: ", 1, 2, &at(Phase::Measuring, 4, 10));
        assert_eq!(bar.bar.position(), STEPS);
        assert!(bar.bar.message().starts_with("run 2 of 2: measuring"));
    }
}
