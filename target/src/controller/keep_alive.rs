//! The keep alive timer.
//!
//! Without traffic-based keep alive only Keep Alive commands restart it while
//! the controller is ready. Before and after that such commands are not served,
//! so there every Fabrics command restarts it: a host that connects and does
//! nothing more is got rid of, one that takes its time to enable is not.
use std::time::{Duration, Instant};

/// KAS: granularity in 100 ms.
pub(super) const GRANULARITY: u16 = 1;

const GRANULARITY_MS: u64 = 100 * GRANULARITY as u64;

#[derive(Debug)]
pub(super) struct KeepAlive {
    timeout_ms: u32,
    deadline: Option<Instant>,
}

impl KeepAlive {
    /// Started at `now`; `timeout_ms` 0 for none.
    pub(super) fn new(timeout_ms: u32, now: Instant) -> Self {
        let mut this = Self { timeout_ms: 0, deadline: None };
        this.set(timeout_ms, now);
        this
    }

    /// Another timeout, rounded up to the granularity; the timer restarts.
    pub(super) fn set(&mut self, timeout_ms: u32, now: Instant) {
        let rounded = u64::from(timeout_ms).div_ceil(GRANULARITY_MS) * GRANULARITY_MS;
        // What cannot be rounded up any more is 49 days long; so exact is good enough.
        self.timeout_ms = u32::try_from(rounded).unwrap_or(timeout_ms);
        self.restart(now);
    }

    /// The timeout in force, in milliseconds; 0 for none.
    pub(super) fn timeout_ms(&self) -> u32 {
        self.timeout_ms
    }

    /// The host lives.
    pub(super) fn restart(&mut self, now: Instant) {
        let timeout = Duration::from_millis(u64::from(self.timeout_ms));
        self.deadline = if self.timeout_ms == 0 { None } else { now.checked_add(timeout) };
    }

    /// When the host will be given up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the host is to be given up; says so once.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let expired = self.deadline.is_some_and(|deadline| now >= deadline);
        if expired {
            self.deadline = None;
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_rounded_up_to_the_granularity() {
        let now = Instant::now();
        for (asked, got) in [(0, 0), (1, 100), (100, 100), (101, 200), (5000, 5000)] {
            assert_eq!(KeepAlive::new(asked, now).timeout_ms(), got);
        }
        assert_eq!(KeepAlive::new(u32::MAX, now).timeout_ms(), u32::MAX);
    }

    #[test]
    fn it_expires_once_at_its_deadline() {
        let now = Instant::now();
        let mut timer = KeepAlive::new(250, now);
        let deadline = now + Duration::from_millis(300);
        assert_eq!(timer.deadline(), Some(deadline));
        assert!(!timer.expire(deadline - Duration::from_nanos(1)));
        timer.restart(deadline - Duration::from_nanos(1));
        assert!(!timer.expire(deadline));
        assert!(timer.expire(deadline + Duration::from_millis(300)));
        assert!(!timer.expire(deadline + Duration::from_secs(9)));
        assert_eq!(timer.deadline(), None);
    }

    #[test]
    fn without_a_timeout_it_never_expires() {
        let now = Instant::now();
        let mut timer = KeepAlive::new(0, now);
        assert_eq!(timer.deadline(), None);
        assert!(!timer.expire(now + Duration::from_secs(1 << 30)));
    }
}
