//! Adaptive busy-polling: a core that just saw work looks for more before it sleeps.
//!
//! Going to sleep and being woken costs more than a short spin, and it is the larger half of the
//! latency at depth one. The ring is submitted when the executor parks, so a task that merely
//! yields would never submit anything: instead the core rings a doorbell of its own and waits for
//! it, so that every turn parks with nothing to wait for, submits, looks, and comes back.
//!
//! A spin is begun only when the gap before the work just seen was itself short, so that a load
//! whose gaps are longer than the spin pays nothing for it, and an idle core sleeps.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::Doorbell;

/// Whether spinning pays, decided from the times at which work was seen.
#[derive(Clone, Copy, Debug)]
struct Gaps {
    last_work: Instant,
    short: bool,
}

impl Gaps {
    /// Work was seen at `now`; the gap before it was short if it was no longer than two spins.
    fn handle_work(&mut self, now: Instant, spin: Duration) {
        self.short = now.saturating_duration_since(self.last_work) <= spin * 2;
        self.last_work = now;
    }

    fn should_spin(&self, now: Instant, spin: Duration) -> bool {
        self.short && now.saturating_duration_since(self.last_work) < spin
    }
}

/// A core's spin, shared by everything on it that sees work.
#[derive(Clone, Debug)]
pub struct Awake {
    inner: Option<Rc<Inner>>,
}

#[derive(Debug)]
struct Inner {
    spin: Duration,
    gaps: Cell<Gaps>,
    spinning: Cell<bool>,
    sleeper: RefCell<Option<Waker>>,
}

impl Awake {
    /// Starts the spinning task on this core; `None` never spins.
    ///
    /// # Errors
    /// When the doorbell cannot be made.
    pub fn start(spin: Option<Duration>) -> io::Result<Self> {
        let Some(spin) = spin.filter(|spin| !spin.is_zero()) else {
            return Ok(Self { inner: None });
        };
        let long_ago = Instant::now();
        let inner = Rc::new(Inner {
            spin,
            gaps: Cell::new(Gaps { last_work: long_ago, short: false }),
            spinning: Cell::new(false),
            sleeper: RefCell::new(None),
        });
        let bell = Doorbell::new()?;
        let listener = bell.listen()?;
        super::spawn(spin_while_busy(Rc::downgrade(&inner), bell, listener));
        Ok(Self { inner: Some(inner) })
    }

    /// Something arrived on this core: bytes, a completion, a call from another core.
    pub fn saw_work(&self) {
        let Some(inner) = &self.inner else { return };
        let mut gaps = inner.gaps.get();
        gaps.handle_work(Instant::now(), inner.spin);
        inner.gaps.set(gaps);
        if gaps.short
            && !inner.spinning.get()
            && let Some(sleeper) = inner.sleeper.borrow_mut().take()
        {
            sleeper.wake();
        }
    }
}

async fn spin_while_busy(
    inner: std::rc::Weak<Inner>,
    bell: Doorbell,
    listener: super::doorbell::Listener,
) {
    loop {
        let Some(this) = inner.upgrade() else { return };
        while this.gaps.get().should_spin(Instant::now(), this.spin) {
            this.spinning.set(true);
            bell.ring();
            if listener.rung().await.is_err() {
                return;
            }
        }
        this.spinning.set(false);
        poll_fn(|context| {
            if this.gaps.get().should_spin(Instant::now(), this.spin) {
                return Poll::Ready(());
            }
            *this.sleeper.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_only_after_short_gaps_and_only_for_the_bound() {
        let spin = Duration::from_micros(50);
        let start = Instant::now();
        let mut gaps = Gaps { last_work: start, short: false };
        let at = |us| start + Duration::from_micros(us);

        gaps.handle_work(at(1_000), spin);
        assert!(!gaps.should_spin(at(1_001), spin), "the gap before was long");
        gaps.handle_work(at(1_060), spin);
        assert!(gaps.should_spin(at(1_109), spin), "the gap before was short");
        assert!(!gaps.should_spin(at(1_110), spin), "the bound is kept");
        gaps.handle_work(at(9_000), spin);
        assert!(!gaps.should_spin(at(9_000), spin), "a long gap ends it");
    }
}
