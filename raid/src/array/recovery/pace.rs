//! How fast a long task goes: how much of it is under way at once, and when it rests. Pure; time
//! and the number of the host's requests come in.
//!
//! * While the host is idle several shards are under way, so that the members are never without
//!   something to read and something to write.
//! * While the host is busy it is one shard at a time, and after each one the task rests for as
//!   long as three times that took, but never so long that it falls below its guaranteed rate.
//! * The maximum rate holds at any time.
//! * When memory was lacking, fewer shards are under way at once, and more again as it goes well.

use std::time::Duration;

/// Shards that are under way at once while the host is idle.
pub(super) const SHARDS_AT_ONCE: usize = 8;

/// How long the host counts as busy after a request.
const BUSY_FOR: Duration = Duration::from_millis(100);

/// After so many shards without trouble one more is tried at once.
const GOOD_RUN: u32 = 16;

/// How fast it may go, in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    /// Guaranteed while the host is busy.
    pub(super) min: u64,
    /// Never exceeded; 0: no limit.
    pub(super) max: u64,
}

/// What holds a task back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brake {
    /// The host's requests.
    Host,
    /// The maximum rate.
    MaxRate,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Go {
    /// Begin the next shard.
    Launch,
    /// Enough is under way.
    Wait,
    /// Begin nothing for that long.
    Rest(Duration, Brake),
}

/// Knows whether the host is busy.
#[derive(Debug)]
struct HostWatch {
    operations: u64,
    last_seen: Option<Duration>,
}

impl HostWatch {
    /// Whether there were requests lately, given their number so far.
    fn handle_count(&mut self, now: Duration, operations: u64) -> bool {
        if operations != self.operations {
            self.operations = operations;
            self.last_seen = Some(now);
        }
        self.last_seen.is_some_and(|seen| seen + BUSY_FOR > now)
    }
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct Pacer {
    host: HostWatch,
    is_busy: bool,
    /// Shards at once while the host is idle, now and at most.
    at_once: usize,
    most: usize,
    good: u32,
    /// No earlier than this, for the sake of the maximum rate.
    not_before: Duration,
    /// No earlier than this while the host is busy.
    rest_until: Duration,
}

fn time_at(rate: u64, bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64)
}

impl Pacer {
    /// A pacer that has seen nothing yet but the number of the host's requests so far, and lets up
    /// to `most` shards be under way at once.
    pub(super) fn new(operations: u64, most: usize) -> Self {
        let most = most.clamp(1, SHARDS_AT_ONCE);
        Self {
            host: HostWatch { operations, last_seen: None },
            is_busy: false,
            at_once: most,
            most,
            good: 0,
            not_before: Duration::ZERO,
            rest_until: Duration::ZERO,
        }
    }

    /// What to do while `under_way` shards are under way.
    pub(super) fn poll(&mut self, now: Duration, operations: u64, under_way: usize) -> Go {
        self.is_busy = self.host.handle_count(now, operations);
        let at_once = if self.is_busy { 1 } else { self.at_once };
        if under_way >= at_once {
            return Go::Wait;
        }
        if self.is_busy && now < self.rest_until {
            return Go::Rest(self.rest_until - now, Brake::Host);
        }
        if now < self.not_before {
            return Go::Rest(self.not_before - now, Brake::MaxRate);
        }
        Go::Launch
    }

    /// Whether the host was busy when it was last asked.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// A piece of `bytes` has begun.
    pub(super) fn handle_launch(&mut self, now: Duration, bytes: u64, rates: Rates) {
        if rates.max > 0 {
            self.not_before = self.not_before.max(now) + time_at(rates.max, bytes);
        }
    }

    /// A piece of `bytes` is done, which was `alone` because the host was busy when it began.
    pub(super) fn handle_done(
        &mut self,
        now: Duration,
        took: Duration,
        bytes: u64,
        alone: bool,
        rates: Rates,
    ) {
        if alone {
            let rest = (3 * took).min(time_at(rates.min, bytes).saturating_sub(took));
            self.rest_until = now + rest;
        }
        self.good += 1;
        if self.good >= GOOD_RUN && self.at_once < self.most {
            self.at_once += 1;
            self.good = 0;
        }
    }

    /// Memory was lacking.
    pub(super) fn handle_no_memory(&mut self) {
        self.at_once = (self.at_once / 2).max(1);
        self.good = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const NO_LIMIT: Rates = Rates { min: MIB, max: 0 };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn an_idle_host_lets_many_shards_go_at_once() {
        let mut pacer = Pacer::new(7, 99);
        for under_way in 0..SHARDS_AT_ONCE {
            assert_eq!(pacer.poll(ms(0), 7, under_way), Go::Launch);
            pacer.handle_launch(ms(0), MIB, NO_LIMIT);
        }
        assert_eq!(pacer.poll(ms(0), 7, SHARDS_AT_ONCE), Go::Wait);
        pacer.handle_done(ms(5), ms(5), MIB, false, NO_LIMIT);
        assert_eq!(pacer.poll(ms(5), 7, SHARDS_AT_ONCE - 1), Go::Launch);
    }

    #[test]
    fn the_host_is_busy_for_a_while_after_a_request() {
        let mut pacer = Pacer::new(7, 99);
        assert_eq!((pacer.poll(ms(0), 7, 1), pacer.is_busy()), (Go::Launch, false));
        assert_eq!((pacer.poll(ms(10), 8, 1), pacer.is_busy()), (Go::Wait, true));
        assert_eq!(pacer.poll(ms(100), 8, 1), Go::Wait);
        assert_eq!(pacer.poll(ms(100), 8, 0), Go::Launch);
        assert_eq!((pacer.poll(ms(110), 8, 1), pacer.is_busy()), (Go::Launch, false));
        assert_eq!(pacer.poll(ms(120), 9, 1), Go::Wait);
    }

    #[test]
    fn rests_are_long_while_the_host_is_busy_but_not_too_long() {
        let rest = |took: u64, bytes, min| {
            let mut pacer = Pacer::new(0, 99);
            assert_eq!(pacer.poll(ms(1000), 1, 0), Go::Launch);
            pacer.handle_done(ms(1000), ms(took), bytes, true, Rates { min, max: 0 });
            match pacer.poll(ms(1000), 2, 0) {
                Go::Rest(rest, brake) => {
                    assert_eq!(brake, Brake::Host);
                    rest
                }
                go => {
                    assert_eq!(go, Go::Launch);
                    ms(0)
                }
            }
        };
        // Three times as long as the work.
        assert_eq!(rest(10, MIB, MIB), ms(30));
        // But a MiB a second is guaranteed.
        assert_eq!(rest(400, MIB, MIB), ms(600));
        assert_eq!(rest(1500, MIB, MIB), ms(0));
    }

    #[test]
    fn a_rest_ends_when_the_host_goes_idle() {
        let mut pacer = Pacer::new(0, 99);
        assert_eq!(pacer.poll(ms(0), 1, 0), Go::Launch);
        pacer.handle_done(ms(50), ms(50), MIB, true, NO_LIMIT);
        assert_eq!(pacer.poll(ms(50), 1, 0), Go::Rest(ms(150), Brake::Host));
        assert_eq!(pacer.poll(ms(100), 1, 0), Go::Launch);
    }

    #[test]
    fn the_maximum_holds_busy_or_idle_over_any_time() {
        let rates = Rates { min: MIB, max: 16 * MIB };
        let (mut pacer, mut now, mut bytes) = (Pacer::new(0, 99), ms(0), 0);
        while now < Duration::from_secs(10) {
            match pacer.poll(now, 0, 0) {
                Go::Launch => {
                    pacer.handle_launch(now, MIB, rates);
                    pacer.handle_done(now, ms(0), MIB, false, rates);
                    bytes += MIB;
                }
                Go::Rest(rest, brake) => {
                    assert_eq!(brake, Brake::MaxRate);
                    now += rest;
                }
                Go::Wait => unreachable!("nothing is under way"),
            }
        }
        assert!((159 * MIB..=161 * MIB).contains(&bytes), "{bytes}");
        // What was not used is not made up for.
        now += Duration::from_secs(100);
        assert_eq!(pacer.poll(now, 0, 0), Go::Launch);
        pacer.handle_launch(now, MIB, rates);
        assert!(matches!(pacer.poll(now, 0, 0), Go::Rest(_, Brake::MaxRate)));
        assert!(matches!(pacer.poll(now, 1, 0), Go::Rest(_, Brake::MaxRate)));
    }

    #[test]
    fn without_memory_less_is_tried_at_once_for_a_while() {
        let mut pacer = Pacer::new(0, 99);
        pacer.handle_no_memory();
        assert_eq!(pacer.poll(ms(0), 0, 4), Go::Wait);
        assert_eq!(pacer.poll(ms(0), 0, 3), Go::Launch);
        (0..10).for_each(|_| pacer.handle_no_memory());
        assert_eq!(pacer.poll(ms(0), 0, 0), Go::Launch);
        assert_eq!(pacer.poll(ms(0), 0, 1), Go::Wait);
        for _ in 0..GOOD_RUN * 7 {
            pacer.handle_done(ms(0), ms(1), MIB, false, NO_LIMIT);
        }
        assert_eq!(pacer.poll(ms(0), 0, SHARDS_AT_ONCE - 1), Go::Launch);
        assert_eq!(pacer.poll(ms(0), 0, SHARDS_AT_ONCE), Go::Wait);
    }
}
