//! The numbers of a resync that people want to see. Time comes in as a parameter.

use std::collections::VecDeque;
use std::time::Duration;

/// The rate is measured over this much time.
const WINDOW: Duration = Duration::from_secs(10);

/// Why a resync does not get on at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The sparse file or thin volume below this member has no room.
    NoSpace {
        /// Its slot.
        slot: usize,
    },
    /// No buffer memory was free.
    NoMemory,
}

/// How far a resync is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResyncProgress {
    /// All copies agree below this offset of the array.
    pub position_bytes: u64,
    /// Where it ends.
    pub total_bytes: u64,
    /// Rate over the last ten seconds of work; 0 until there is something to measure.
    pub bytes_per_second: u64,
    /// When this process began it, on its clock; nothing while it waits to begin.
    pub started_at: Option<Duration>,
    /// Where this process began it.
    pub started_from_bytes: u64,
    /// Why it does not get on, if so.
    pub stall: Option<Stall>,
}

/// What is remembered of the resync under way.
#[derive(Default)]
pub(super) struct Progress {
    started_at: Option<Duration>,
    started_from: u64,
    /// When how much had been done since the start, oldest first.
    samples: VecDeque<(Duration, u64)>,
    done: u64,
    stall: Option<Stall>,
    completed: u64,
}

impl Progress {
    pub(super) fn start(&mut self, now: Duration, position: u64) {
        let completed = self.completed;
        *self = Self {
            started_at: Some(now),
            started_from: position,
            samples: VecDeque::from([(now, 0)]),
            completed,
            ..Self::default()
        };
    }

    pub(super) fn add(&mut self, now: Duration, bytes: u64) {
        self.stall = None;
        self.done += bytes;
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

    pub(super) fn stall(&mut self, stall: Stall) {
        self.stall = Some(stall);
    }

    pub(super) fn complete(&mut self) {
        *self = Self { completed: self.completed + 1, ..Self::default() };
    }

    pub(super) fn completed(&self) -> u64 {
        self.completed
    }

    pub(super) fn report(&self, now: Duration, position: u64, total: u64) -> ResyncProgress {
        let rate = self.samples.front().map_or(0, |&(since, before)| {
            let micros = now.saturating_sub(since).as_micros().max(1);
            u64::try_from(u128::from(self.done - before) * 1_000_000 / micros).unwrap_or(u64::MAX)
        });
        ResyncProgress {
            position_bytes: position.min(total),
            total_bytes: total,
            bytes_per_second: rate,
            started_at: self.started_at,
            started_from_bytes: self.started_from,
            stall: self.stall,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_ten_seconds() {
        let mut progress = Progress::default();
        let at = Duration::from_millis;
        assert_eq!(progress.report(at(5), 0, 1000).bytes_per_second, 0);
        progress.start(at(1000), 100);
        for tenth in 1..=100 {
            progress.add(at(1000 + tenth * 100), 50);
        }
        let report = progress.report(at(11_000), 5100, 100_000);
        assert_eq!((report.bytes_per_second, report.started_at), (500, Some(at(1000))));
        assert_eq!(report.started_from_bytes, 100);
        // Ten seconds without work: the rate falls, the samples stay few.
        assert!(progress.report(at(21_000), 5100, 100_000).bytes_per_second <= 250);
        for tenth in 1..=200 {
            progress.add(at(21_000 + tenth * 100), 10);
        }
        let rate = progress.report(at(41_000), 5100, 100_000).bytes_per_second;
        assert!((95..=105).contains(&rate), "{rate}");
        assert!(progress.samples.len() <= 30, "{}", progress.samples.len());
        progress.stall(Stall::NoMemory);
        assert_eq!(progress.report(at(41_000), 0, 1).stall, Some(Stall::NoMemory));
        progress.complete();
        assert_eq!((progress.completed(), progress.started_at), (1, None));
    }
}
