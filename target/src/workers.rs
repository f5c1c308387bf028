//! A core's workers: long-lived tasks that each carry one command at a time from start to end.
//!
//! A command costs no task and no boxed future: it is handed to a worker that is idle. Workers are
//! started as the load asks for them and stay; the one that was idle for the shortest time works
//! first, so that a light load runs in few of them.
//!
//! A command can take long: the host may be slow to send its data, or never send it. So that such
//! commands do not take the workers of others away, each party (a connection) may always have some
//! commands carried, whatever the others have; beyond that there is one limit for all. What is
//! over it waits with its party, and the parties have their turns.
//!
//! Invariants: a job that was submitted is taken by exactly one worker; a job waits only while
//! its party has its guaranteed number carried and all together have the limit.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The queue between those who have jobs and those who do them. For one core only.
pub struct Workers<Job> {
    /// Jobs whose turn has come. There is a worker for each.
    ready: RefCell<VecDeque<Job>>,
    idle: RefCell<Vec<Waker>>,
    /// Parties with jobs whose turn has not come, in turn.
    waiting: RefCell<VecDeque<Rc<Party<Job>>>>,
    limit: usize,
    guaranteed: usize,
    /// Jobs whose turn has come and that are not done.
    carried: Cell<usize>,
    /// All jobs that are not done.
    outstanding: Cell<usize>,
}

/// One of those who have jobs.
pub struct Party<Job> {
    carried: Cell<usize>,
    waiting: RefCell<VecDeque<Job>>,
    listed: Cell<bool>,
}

impl<Job> Default for Party<Job> {
    fn default() -> Self {
        Self { carried: Cell::new(0), waiting: RefCell::default(), listed: Cell::new(false) }
    }
}

impl<Job> Workers<Job> {
    /// A queue for `limit` jobs at a time, and for `guaranteed` of each party in any case; no
    /// worker is started yet.
    pub fn new(limit: usize, guaranteed: usize) -> Self {
        Self {
            ready: RefCell::default(),
            idle: RefCell::default(),
            waiting: RefCell::default(),
            limit,
            guaranteed,
            carried: Cell::new(0),
            outstanding: Cell::new(0),
        }
    }

    /// Queues a job. If the answer is true, every worker is busy and the caller starts another,
    /// which must then call [`Workers::next`] for ever.
    #[must_use]
    pub fn submit(&self, party: &Rc<Party<Job>>, job: Job) -> bool {
        self.outstanding.set(self.outstanding.get() + 1);
        let next = party.waiting.borrow().is_empty();
        if !(next && self.has_room(party)) {
            party.waiting.borrow_mut().push_back(job);
            if !party.listed.replace(true) {
                self.waiting.borrow_mut().push_back(Rc::clone(party));
            }
            return false;
        }
        self.admit(party, job);
        match self.idle.borrow_mut().pop() {
            Some(worker) => {
                worker.wake();
                false
            }
            None => true,
        }
    }

    fn has_room(&self, party: &Party<Job>) -> bool {
        party.carried.get() < self.guaranteed || self.carried.get() < self.limit
    }

    fn admit(&self, party: &Party<Job>, job: Job) {
        party.carried.set(party.carried.get() + 1);
        self.carried.set(self.carried.get() + 1);
        self.ready.borrow_mut().push_back(job);
    }

    /// A worker's next job.
    pub async fn next(&self) -> Job {
        poll_fn(|context| {
            if let Some(job) = self.ready.borrow_mut().pop_front() {
                return Poll::Ready(job);
            }
            self.idle.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// A worker says that a job of this party is done, before it asks for the next: which may be
    /// one that has waited for this.
    pub fn done(&self, party: &Rc<Party<Job>>) {
        self.outstanding.set(self.outstanding.get().saturating_sub(1));
        party.carried.set(party.carried.get().saturating_sub(1));
        self.carried.set(self.carried.get().saturating_sub(1));
        if party.listed.get() && party.carried.get() < self.guaranteed {
            let job = party.waiting.borrow_mut().pop_front();
            if let Some(job) = job {
                return self.admit(party, job);
            }
        }
        while self.carried.get() < self.limit {
            let Some(party) = self.waiting.borrow_mut().pop_front() else { return };
            let job = party.waiting.borrow_mut().pop_front();
            let Some(job) = job else {
                party.listed.set(false);
                continue;
            };
            self.admit(&party, job);
            return self.waiting.borrow_mut().push_back(party);
        }
    }

    /// Jobs that are queued or being done.
    pub fn outstanding(&self) -> usize {
        self.outstanding.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Submits jobs of parties, with a worker for each `true`; returns how many were started and
    /// what was done, in order. Odd jobs of a party in `stuck` are never done.
    fn run(
        workers: Workers<(usize, u32)>,
        jobs: &[(usize, u32)],
        stuck: &[usize],
    ) -> (usize, Vec<(usize, u32)>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let local = tokio::task::LocalSet::new();
        let workers = Rc::new(workers);
        let mut parties: BTreeMap<usize, Rc<Party<(usize, u32)>>> = BTreeMap::new();
        for (party, _) in jobs {
            parties.entry(*party).or_default();
        }
        let parties = Rc::new(parties);
        let done = Rc::new(RefCell::new(Vec::new()));
        let mut started = 0;
        local.block_on(&runtime, async {
            for job in jobs {
                if workers.submit(&parties[&job.0], *job) {
                    started += 1;
                    let (workers, done) = (Rc::clone(&workers), Rc::clone(&done));
                    let (parties, stuck) = (Rc::clone(&parties), stuck.to_vec());
                    tokio::task::spawn_local(async move {
                        loop {
                            let job = workers.next().await;
                            tokio::task::yield_now().await;
                            if stuck.contains(&job.0) {
                                std::future::pending::<()>().await;
                            }
                            done.borrow_mut().push(job);
                            workers.done(&parties[&job.0]);
                        }
                    });
                }
            }
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
        });
        let left = jobs.iter().filter(|(party, _)| stuck.contains(party)).count();
        assert_eq!(workers.outstanding(), left);
        (started, done.take())
    }

    #[test]
    fn every_job_is_done_once_by_no_more_workers_than_allowed() {
        let jobs: Vec<_> = (0..40).map(|job| (0, job)).collect();
        let (started, mut done) = run(Workers::new(3, 0), &jobs, &[]);
        done.sort_unstable();
        assert_eq!(done, jobs);
        assert_eq!(started, 3);
    }

    /// A few hosts that never sent the data of their writes had every worker of a core, and the
    /// commands of all others waited until those hosts were closed.
    #[test]
    fn jobs_that_never_end_do_not_keep_other_parties_from_theirs() {
        let stuck = (0..50).map(|job| (job as usize % 2, job));
        let others = (0..100).map(|job| (2 + job as usize % 3, job));
        let jobs: Vec<_> = stuck.chain(others).collect();
        let (started, mut done) = run(Workers::new(10, 2), &jobs, &[0, 1]);
        done.sort_unstable();
        let mut expected = jobs[50..].to_vec();
        expected.sort_unstable();
        assert_eq!(done, expected);
        assert!(started <= 10 + 5 * 2, "{started}");
    }

    #[test]
    fn parties_have_turns_beyond_what_is_guaranteed() {
        let jobs: Vec<_> = (0..30).map(|job| (job as usize / 10, job)).collect();
        let (_, done) = run(Workers::new(1, 0), &jobs, &[]);
        assert_eq!(done.len(), 30);
        // The first is carried when the others come; from then on it is one of each in turn.
        let order: Vec<_> = done[1..13].iter().map(|(party, _)| *party).collect();
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }
}
