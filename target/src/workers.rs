//! A core's workers: long-lived tasks that each carry one command at a time from start to end.
//!
//! A command costs no task and no boxed future: it is handed to a worker that is idle. Workers are
//! started as the load asks for them, up to a limit, and stay; the one that was idle for the
//! shortest time works first, so that a light load runs in few of them.
//!
//! Invariant: a job that was submitted is taken by exactly one worker.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// The queue between those who have jobs and those who do them. For one core only.
pub struct Workers<Job> {
    ready: RefCell<VecDeque<Job>>,
    idle: RefCell<Vec<Waker>>,
    count: Cell<usize>,
    limit: usize,
    busy: Cell<usize>,
}

impl<Job> Workers<Job> {
    /// A queue for at most `limit` workers; none is started yet.
    pub fn new(limit: usize) -> Self {
        Self {
            ready: RefCell::default(),
            idle: RefCell::default(),
            count: Cell::new(0),
            limit,
            busy: Cell::new(0),
        }
    }

    /// Queues a job. If the answer is true, every worker is busy and the caller starts another,
    /// which must then call [`Workers::next`] for ever.
    #[must_use]
    pub fn submit(&self, job: Job) -> bool {
        self.ready.borrow_mut().push_back(job);
        if let Some(worker) = self.idle.borrow_mut().pop() {
            worker.wake();
            return false;
        }
        let another = self.count.get() < self.limit;
        if another {
            self.count.set(self.count.get() + 1);
        }
        another
    }

    /// A worker's next job.
    pub async fn next(&self) -> Job {
        poll_fn(|context| {
            if let Some(job) = self.ready.borrow_mut().pop_front() {
                self.busy.set(self.busy.get() + 1);
                return Poll::Ready(job);
            }
            self.idle.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// A worker says that its job is done, before it asks for the next.
    pub fn done(&self) {
        self.busy.set(self.busy.get().saturating_sub(1));
    }

    /// Jobs that are queued or being done.
    pub fn outstanding(&self) -> usize {
        self.ready.borrow().len() + self.busy.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn every_job_is_done_once_by_no_more_workers_than_allowed() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let local = tokio::task::LocalSet::new();
        let workers = Rc::new(Workers::<u32>::new(3));
        let done = Rc::new(RefCell::new(Vec::new()));
        let mut started = 0;
        local.block_on(&runtime, async {
            for round in 0..4u32 {
                for job in 0..10 {
                    if workers.submit(round * 10 + job) {
                        started += 1;
                        let (workers, done) = (Rc::clone(&workers), Rc::clone(&done));
                        tokio::task::spawn_local(async move {
                            loop {
                                let job = workers.next().await;
                                tokio::task::yield_now().await;
                                done.borrow_mut().push(job);
                                workers.done();
                            }
                        });
                    }
                }
                while workers.outstanding() > 0 {
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut done = done.take();
        done.sort_unstable();
        assert_eq!(done, (0..40).collect::<Vec<_>>());
        assert_eq!(started, 3);
    }
}
