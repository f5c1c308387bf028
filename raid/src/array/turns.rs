//! A bound on how much of something goes on at once, on one core: who wants a part in it waits for a
//! turn, in the order in which they come.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

/// See the file's head.
pub(super) struct Turns {
    free: Cell<usize>,
    waiting: RefCell<VecDeque<(u64, Waker)>>,
    next_number: Cell<u64>,
}

/// A turn, until it is dropped.
#[must_use]
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    /// So many at once.
    pub(super) fn new(count: usize) -> Self {
        Self { free: Cell::new(count), waiting: RefCell::default(), next_number: Cell::new(0) }
    }

    /// Waits for a turn.
    pub(super) async fn take(&self) -> Turn<'_> {
        let mut place = Place { turns: self, number: None };
        poll_fn(|cx| place.poll(cx)).await
    }

    fn wake_first(&self) {
        if self.free.get() > 0
            && let Some((_, waker)) = self.waiting.borrow().front()
        {
            waker.wake_by_ref();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.free.set(self.0.free.get() + 1);
        self.0.wake_first();
    }
}

/// A place among those who wait, once there are any.
struct Place<'a> {
    turns: &'a Turns,
    number: Option<u64>,
}

impl<'a> Place<'a> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Turn<'a>> {
        let turns = self.turns;
        let first = turns.waiting.borrow().front().map(|(number, _)| *number);
        if first == self.number && turns.free.get() > 0 {
            turns.free.set(turns.free.get() - 1);
            // The next one may have a turn as well.
            self.leave();
            return Poll::Ready(Turn(turns));
        }
        let mut waiting = turns.waiting.borrow_mut();
        match waiting.iter_mut().find(|(number, _)| Some(*number) == self.number) {
            Some((_, waker)) => waker.clone_from(cx.waker()),
            None => {
                let number = turns.next_number.get();
                turns.next_number.set(number + 1);
                waiting.push_back((number, cx.waker().clone()));
                self.number = Some(number);
            }
        }
        Poll::Pending
    }

    fn leave(&mut self) {
        let Some(number) = self.number.take() else { return };
        self.turns.waiting.borrow_mut().retain(|(waiting, _)| *waiting != number);
        self.turns.wake_first();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::task::ArcWake;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl ArcWake for Counted {
        fn wake_by_ref(this: &Arc<Self>) {
            this.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn no_more_than_that_at_once_and_in_order() {
        let turns = Turns::new(2);
        let first = turns.take().now_or_never().unwrap();
        let second = turns.take().now_or_never().unwrap();
        let (mut third, mut fourth) = (Box::pin(turns.take()), Box::pin(turns.take()));
        assert!((&mut third).now_or_never().is_none() && (&mut fourth).now_or_never().is_none());
        drop(first);
        assert!((&mut fourth).now_or_never().is_none(), "nobody is overtaken");
        let third = third.now_or_never().unwrap();
        assert!((&mut fourth).now_or_never().is_none());
        drop((second, third));
        assert!(fourth.now_or_never().is_some());
    }

    #[test]
    fn whoever_is_next_is_woken() {
        let turns = Turns::new(1);
        let held = turns.take().now_or_never().unwrap();
        let wakes: [Arc<Counted>; 2] = Default::default();
        let mut waiting: Vec<_> = wakes.iter().map(|_| Box::pin(turns.take())).collect();
        for (take, count) in waiting.iter_mut().zip(&wakes) {
            let waker = futures_util::task::waker(Arc::clone(count));
            assert!(take.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(held);
        let counts = || [0, 1].map(|at: usize| wakes[at].0.load(Ordering::SeqCst));
        assert_eq!(counts(), [1, 0]);
        // It goes away instead.
        drop(waiting.remove(0));
        assert_eq!(counts(), [1, 1]);
        assert!(waiting.remove(0).now_or_never().is_some());
        assert_eq!(turns.free.get(), 1);
    }
}
