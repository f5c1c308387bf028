//! Flushes of one member, shared by everybody who wants one, on whichever core.
//!
//! A flush covers what was written before it started, so a request that comes while one is under
//! way needs the next one; all requests of that time share it. Whoever needs a flush that has not
//! started when none is under way runs it, with the drive handle of its own core, for all.
//!
//! A flush that failed is never repeated and believed: the kernel reports lost writes once only.
//! From then on every flush of this member fails, and so does one whose future was dropped while
//! it ran, since its result is unknown. That is why there is one such sequence per member and not
//! one per core: while a flush of one core is about to fail, another core's would succeed, and
//! what the first one lost would be acknowledged by the second.

use std::future::{Future, poll_fn};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::drive::DriveError;
use crate::mutation::mutation;

/// The error number that stands for a flush nobody saw the end of (`ECANCELED`).
const ABANDONED: DriveError = DriveError::Io { errno: 125 };

/// See the file's head.
pub(super) struct SharedFlush(Mutex<State>);

struct State {
    /// Flushes begun; they are numbered from 1.
    started: u64,
    running: bool,
    failed: Option<DriveError>,
    waiting: Vec<Waker>,
}

impl SharedFlush {
    pub(super) fn new() -> Self {
        let waiting = Vec::with_capacity(16);
        Self(Mutex::new(State { started: 0, running: false, failed: None, waiting }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A flush of this member by somebody else has failed.
    pub(super) fn fail(&self, error: DriveError) {
        let mut state = self.state();
        state.failed = Some(error);
        state.waiting.drain(..).for_each(Waker::wake);
    }

    /// Waits for a flush that starts from now on. `flush` performs one.
    ///
    /// # Errors
    /// Whatever any flush of this member failed with.
    pub(super) async fn run<F>(&self, flush: impl FnOnce() -> F) -> Result<(), DriveError>
    where
        F: Future<Output = Result<(), DriveError>>,
    {
        let wanted = self.state().started + 1;
        let turn = poll_fn(|cx| {
            let mut state = self.state();
            let is_over = state.started > wanted || (state.started == wanted && !state.running);
            if is_over || state.failed.is_some() {
                return Poll::Ready(None);
            }
            if state.running {
                state.waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
            state.running = true;
            state.started += 1;
            Poll::Ready(Some(Turn { shared: self, result: Err(ABANDONED) }))
        })
        .await;
        if let Some(mut turn) = turn {
            turn.result = flush().await;
            if mutation!("believe-flush-after-failure") {
                turn.result = Ok(());
            }
        }
        self.state().failed.map_or(Ok(()), Err)
    }
}

/// The running of one flush; its end, whichever, is told to those who wait.
struct Turn<'a> {
    shared: &'a SharedFlush,
    result: Result<(), DriveError>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.running = false;
        if let Err(error) = self.result {
            state.failed.get_or_insert(error);
        }
        state.waiting.drain(..).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    use futures_util::FutureExt;
    use futures_util::task::noop_waker;
    use std::rc::Rc;
    use std::task::Context;

    /// A drive whose flushes end when told to.
    #[derive(Default)]
    struct Drive {
        flushes: RefCell<Vec<Rc<End>>>,
    }

    /// How a flush ends, once that is known.
    type End = Cell<Option<Result<(), DriveError>>>;

    impl Drive {
        async fn flush(&self) -> Result<(), DriveError> {
            let end = Rc::new(End::default());
            self.flushes.borrow_mut().push(Rc::clone(&end));
            poll_fn(|_| end.get().map_or(Poll::Pending, Poll::Ready)).await
        }

        fn end_first(&self, result: Result<(), DriveError>) {
            self.flushes.borrow_mut().remove(0).set(Some(result));
        }
    }

    fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        future.poll_unpin(&mut Context::from_waker(&noop_waker()))
    }

    #[test]
    fn those_who_come_during_a_flush_share_the_next() {
        let (drive, shared) = (Drive::default(), SharedFlush::new());
        let start = || Box::pin(shared.run(|| drive.flush()));
        let mut first = start();
        assert!(poll(&mut first).is_pending());
        let (mut second, mut third) = (start(), start());
        assert!(poll(&mut second).is_pending() && poll(&mut third).is_pending());
        assert_eq!(drive.flushes.borrow().len(), 1);
        drive.end_first(Ok(()));
        assert_eq!(poll(&mut first), Poll::Ready(Ok(())));
        assert!(poll(&mut third).is_pending() && poll(&mut second).is_pending());
        assert_eq!(drive.flushes.borrow().len(), 1, "one flush for both");
        drive.end_first(Ok(()));
        assert!(poll(&mut second).is_pending(), "the third runs it, and has not seen its end");
        assert_eq!(poll(&mut third), Poll::Ready(Ok(())));
        assert_eq!(poll(&mut second), Poll::Ready(Ok(())));
        assert!(drive.flushes.borrow().is_empty());
    }

    #[test]
    fn a_failed_flush_is_final() {
        let (drive, shared) = (Drive::default(), SharedFlush::new());
        let error = DriveError::Io { errno: 5 };
        let mut first = Box::pin(shared.run(|| drive.flush()));
        let mut second = Box::pin(shared.run(|| drive.flush()));
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        drive.end_first(Err(error));
        assert_eq!(poll(&mut first), Poll::Ready(Err(error)));
        assert_eq!(poll(&mut second), Poll::Ready(Err(error)));
        let later = shared.run(|| drive.flush()).now_or_never();
        assert_eq!(later, Some(Err(error)));
        assert!(drive.flushes.borrow().is_empty(), "no flush was tried again");
    }

    /// While another's flush fails ours succeeds: it is not believed.
    #[test]
    fn a_failure_reported_from_elsewhere_is_final() {
        let (drive, shared) = (Drive::default(), SharedFlush::new());
        let error = DriveError::Io { errno: 5 };
        let mut flush = Box::pin(shared.run(|| drive.flush()));
        assert!(poll(&mut flush).is_pending());
        shared.fail(error);
        drive.end_first(Ok(()));
        assert_eq!(poll(&mut flush), Poll::Ready(Err(error)));
    }

    #[test]
    fn an_abandoned_flush_counts_as_failed() {
        let (drive, shared) = (Drive::default(), SharedFlush::new());
        let mut first = Box::pin(shared.run(|| drive.flush()));
        let mut second = Box::pin(shared.run(|| drive.flush()));
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        drop(first);
        assert_eq!(poll(&mut second), Poll::Ready(Err(ABANDONED)));
    }
}
