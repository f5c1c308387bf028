//! The numbers of a long task that people want to see. Time comes in as a parameter; what counts
//! is the time in which the task worked, not that of pauses.

use std::collections::VecDeque;
use std::time::Duration;

/// The rate is measured over this much time of work.
const WINDOW: Duration = Duration::from_secs(10);

/// Before the task has worked for this long nothing is said of its end.
const ETA_AFTER: Duration = Duration::from_secs(10);

/// What holds a task back at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The drives: it goes as fast as they do.
    Drive,
    /// It makes way for the host's requests.
    Foreground,
    /// The maximum rate that it was given.
    RateLimit,
    /// No memory was free.
    Memory,
    /// Blocks are lost, and the list of bad blocks of a member has no room for them: only when
    /// others of its bad blocks have been written again does it go on.
    BadBlocksFull {
        /// Its slot.
        slot: usize,
    },
    /// The sparse file or thin volume below a member has no room.
    Space {
        /// Its slot.
        slot: usize,
    },
}

/// What is remembered of the task under way.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Time in which it worked, until it last halted or began.
    worked: Duration,
    /// Since when it works; none while it is halted.
    since: Option<Duration>,
    /// When, in time of work, how much had been done since the start; oldest first.
    samples: VecDeque<(Duration, u64)>,
    done: u64,
    limit: Option<Limit>,
}

impl Progress {
    /// The time in which it has worked so far.
    pub(super) fn worked(&self, now: Duration) -> Duration {
        self.worked + self.since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// A new task begins.
    pub(super) fn start(&mut self, now: Duration) {
        let samples = VecDeque::from([(Duration::ZERO, 0)]);
        *self = Self { since: Some(now), samples, ..Self::default() };
    }

    /// It works again after a halt.
    pub(super) fn go_on(&mut self, now: Duration) {
        self.since.get_or_insert(now);
    }

    /// It does not work for now.
    pub(super) fn halt(&mut self, now: Duration, limit: Option<Limit>) {
        self.worked = self.worked(now);
        self.since = None;
        self.limit = limit;
    }

    /// What holds it back while it works.
    pub(super) fn limited(&mut self, limit: Limit) {
        self.limit = Some(limit);
    }

    /// Some of it was done.
    pub(super) fn add(&mut self, now: Duration, bytes: u64) {
        self.go_on(now);
        self.done += bytes;
        let now = self.worked(now);
        // One sample in half a second is enough; the newest stands for what came since.
        let recent = |&(at, _): &(Duration, u64)| at + WINDOW / 20 > now;
        if self.samples.len() > 1 && self.samples.iter().nth_back(1).is_some_and(recent) {
            self.samples.pop_back();
        }
        self.samples.push_back((now, self.done));
        while self.samples.get(1).is_some_and(|&(at, _)| at + WINDOW <= now) {
            self.samples.pop_front();
        }
    }

    /// Bytes per second over the last ten seconds of work; 0 until there is something to measure.
    pub(super) fn rate(&self, now: Duration) -> u64 {
        let now = self.worked(now);
        self.samples.front().map_or(0, |&(since, before)| {
            let micros = now.saturating_sub(since).as_micros().max(1);
            u64::try_from(u128::from(self.done - before) * 1_000_000 / micros).unwrap_or(u64::MAX)
        })
    }

    /// How long it will take for what is left, if that can be said.
    pub(super) fn eta(&self, now: Duration, left_bytes: u64) -> Option<Duration> {
        let rate = self.rate(now);
        let is_known = self.since.is_some() && self.worked(now) >= ETA_AFTER && rate > 0;
        is_known.then(|| Duration::from_secs_f64(left_bytes as f64 / rate as f64))
    }

    /// What holds it back.
    pub(super) fn limit(&self) -> Option<Limit> {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_rate_is_that_of_the_last_ten_seconds() {
        let mut progress = Progress::default();
        assert_eq!(progress.rate(ms(5)), 0);
        progress.start(ms(1000));
        for tenth in 1..=100 {
            progress.add(ms(1000 + tenth * 100), 50);
        }
        assert_eq!(progress.rate(ms(11_000)), 500);
        // Ten seconds without result: the rate falls, the samples stay few.
        assert!(progress.rate(ms(21_000)) <= 250);
        for tenth in 1..=200 {
            progress.add(ms(21_000 + tenth * 100), 10);
        }
        let rate = progress.rate(ms(41_000));
        assert!((95..=105).contains(&rate), "{rate}");
        assert!(progress.samples.len() <= 30, "{}", progress.samples.len());
        progress.limited(Limit::Memory);
        assert_eq!(progress.limit(), Some(Limit::Memory));
    }

    #[test]
    fn the_end_is_unknown_for_ten_seconds_of_work() {
        let mut progress = Progress::default();
        progress.start(ms(0));
        for second in 1..10 {
            progress.add(ms(second * 1000), 100);
            assert_eq!(progress.eta(ms(second * 1000), 1000), None);
        }
        progress.add(ms(10_000), 100);
        assert_eq!(progress.eta(ms(10_000), 1000), Some(ms(10_000)));
    }

    #[test]
    fn pauses_do_not_count() {
        let mut progress = Progress::default();
        progress.start(ms(0));
        for second in 1..=5 {
            progress.add(ms(second * 1000), 100);
        }
        progress.halt(ms(5000), Some(Limit::Space { slot: 1 }));
        assert_eq!(progress.worked(ms(99_000)), ms(5000));
        assert_eq!((progress.rate(ms(99_000)), progress.eta(ms(99_000), 100)), (100, None));
        assert_eq!(progress.limit(), Some(Limit::Space { slot: 1 }));
        // Halting again changes nothing.
        progress.halt(ms(99_500), None);
        progress.go_on(ms(100_000));
        progress.go_on(ms(100_900));
        for second in 1..=5 {
            progress.add(ms(100_000 + second * 1000), 100);
        }
        assert_eq!(progress.worked(ms(105_000)), ms(10_000));
        assert_eq!(progress.rate(ms(105_000)), 100);
        assert_eq!(progress.eta(ms(105_000), 200), Some(ms(2000)));
    }
}
