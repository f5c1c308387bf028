//! Who may hold how many bytes of a core's transfer memory: arithmetic only.
//!
//! Every connection owns a guaranteed minimum, whatever the others do, and has a maximum. What the
//! minimums leave is shared, but for a quarter of the whole, which is kept for the minimums of
//! connections to come: a host must be able to connect while others use all that they can get.
//! Invariant: `shared_used + connections × guaranteed <= total`, so that a connection that holds
//! nothing can always be granted its minimum.

/// The budget of one core. All numbers are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    total: usize,
    guaranteed: usize,
    maximum: usize,
    connections: usize,
    shared_used: usize,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Granted: now held by the connection.
    Granted,
    /// The connection is at its own maximum: only it can change that.
    OwnMaximum,
    /// The shared part is used up: any connection can change that.
    Exhausted,
}

impl Budget {
    /// `guaranteed` to each connection, at most `maximum` each, of `total`.
    pub fn new(total: usize, guaranteed: usize, maximum: usize) -> Self {
        let maximum = maximum.max(guaranteed);
        Self { total, guaranteed, maximum, connections: 0, shared_used: 0 }
    }

    /// The guaranteed minimum of each connection.
    pub fn guaranteed(&self) -> usize {
        self.guaranteed
    }

    /// Takes a connection in, unless its minimum could not be guaranteed (Controller Busy).
    #[must_use]
    pub fn admit(&mut self) -> bool {
        let minimums = (self.connections + 1).saturating_mul(self.guaranteed);
        if minimums.saturating_add(self.shared_used) > self.total {
            return false;
        }
        self.connections += 1;
        true
    }

    /// Lets a connection go that holds nothing any more.
    pub fn leave(&mut self) {
        debug_assert!(self.connections > 0);
        self.connections = self.connections.saturating_sub(1);
    }

    /// What of the shared part nobody has.
    fn shared_free(&self) -> usize {
        let minimums = (self.connections * self.guaranteed).max(self.total / 4);
        self.total.saturating_sub(minimums).saturating_sub(self.shared_used)
    }

    fn beyond_minimum(&self, held: usize) -> usize {
        held.saturating_sub(self.guaranteed)
    }

    /// Asks for `want` more for a connection that holds `held`.
    #[must_use]
    pub fn request(&mut self, held: usize, want: usize) -> Verdict {
        let holds = held.saturating_add(want);
        if held > 0 && holds > self.maximum {
            return Verdict::OwnMaximum;
        }
        let more = self.beyond_minimum(holds) - self.beyond_minimum(held);
        if more > self.shared_free() {
            return Verdict::Exhausted;
        }
        self.shared_used += more;
        Verdict::Granted
    }

    /// Takes `bytes` back from a connection that held `held`.
    pub fn release(&mut self, held: usize, bytes: usize) {
        debug_assert!(bytes <= held);
        let holds = held.saturating_sub(bytes);
        let less = self.beyond_minimum(held) - self.beyond_minimum(holds);
        debug_assert!(less <= self.shared_used);
        self.shared_used = self.shared_used.saturating_sub(less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimums_are_kept_whatever_the_others_hold() {
        let mut budget = Budget::new(1000, 100, 600);
        assert!(budget.admit() && budget.admit() && budget.admit());
        // One takes all that is shared: 700, but its own maximum is 600 in all.
        assert_eq!(budget.request(0, 600), Verdict::Granted);
        assert_eq!(budget.request(600, 1), Verdict::OwnMaximum);
        // 200 of the shared part are left, beside the two other minimums.
        assert_eq!(budget.request(0, 300), Verdict::Granted);
        assert_eq!(budget.request(300, 1), Verdict::Exhausted);
        assert_eq!(budget.request(0, 101), Verdict::Exhausted);
        assert_eq!(budget.request(0, 100), Verdict::Granted);
        // A fourth connection would need a minimum that is not there.
        assert!(!budget.admit());
        budget.release(600, 550);
        assert!(budget.admit());
        budget.release(50, 50);
        budget.release(300, 300);
        budget.release(100, 100);
        assert_eq!(budget.shared_used, 0);
    }

    /// Two connections that took all there was to share kept every further host out until they had
    /// given it back.
    #[test]
    fn new_connections_find_their_minimum_whatever_the_others_hold() {
        let mut budget = Budget::new(1000, 10, 500);
        assert!(budget.admit() && budget.admit());
        assert_eq!(budget.request(0, 500), Verdict::Granted);
        assert_eq!(budget.request(0, 270), Verdict::Granted);
        assert_eq!(budget.request(270, 1), Verdict::Exhausted);
        for _ in 2..25 {
            assert!(budget.admit());
            assert_eq!(budget.request(0, 10), Verdict::Granted);
        }
        assert!(!budget.admit(), "the quarter is used up");
    }

    #[test]
    fn a_request_beyond_the_maximum_is_for_a_connection_that_holds_nothing_only() {
        let mut budget = Budget::new(1000, 10, 50);
        assert!(budget.admit());
        assert_eq!(budget.request(0, 200), Verdict::Granted);
        assert_eq!(budget.request(200, 10), Verdict::OwnMaximum);
    }

    /// Random requests and releases: the invariant holds at every step.
    #[test]
    fn never_over_committed() {
        let mut budget = Budget::new(4096, 64, 1024);
        let mut held = [0usize; 8];
        for _ in &held {
            assert!(budget.admit());
        }
        let mut random = 1u64;
        for _ in 0..100_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (who, size) = ((random >> 60) as usize & 7, (random >> 33) as usize % 512 + 1);
            if random & (1 << 20) == 0 {
                if budget.request(held[who], size) == Verdict::Granted {
                    held[who] += size;
                }
            } else {
                let size = size.min(held[who]);
                budget.release(held[who], size);
                held[who] -= size;
            }
            let beyond: usize = held.iter().map(|h| h.saturating_sub(64)).sum();
            assert_eq!(beyond, budget.shared_used);
            assert!(beyond + 8 * 64 <= 4096);
            if held[who] == 0 {
                assert_eq!(budget.request(0, 64), Verdict::Granted);
                budget.release(64, 64);
            }
        }
    }
}
