//! A core's data memory: buffers under a budget, and who waits for them. A core has two: one for
//! data that came in capsules (never held while waiting for a host), one for transfers.
//!
//! A command takes the memory for its data before it asks the host for data or a drive for them.
//! Where the whole is not to be had, a connection that holds nothing gets at least its guaranteed
//! minimum and goes through the command in pieces, so that every connection makes progress
//! whatever the others do. Others wait, each connection in its own queue; the queues are served in
//! turn, so that a connection at its own maximum delays nobody else.
//!
//! Invariant: a waiter is either in its connection's queue or has been granted its bytes.

mod budget;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use raidfabric_raid::buffer::{Buffer, Pool};

use budget::{Budget, Verdict};

/// The smallest unit of memory that is handed out, in bytes.
const UNIT_BYTES: usize = 4096;

/// How long to wait for memory that is accounted as free but still on its way home.
const HOMEWARD_PAUSE: Duration = Duration::from_millis(1);

/// One of a core's two memories.
pub struct DataMemory {
    pool: Pool,
    budget: RefCell<Budget>,
    /// Connections with somebody waiting, served in turn.
    waiting: RefCell<VecDeque<Rc<Account>>>,
}

/// What one connection holds, and who of it waits.
pub struct Account {
    memory: Rc<DataMemory>,
    held: Cell<usize>,
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
    listed: Cell<bool>,
}

struct Waiter {
    want: usize,
    granted: Cell<usize>,
    waker: RefCell<Option<Waker>>,
}

/// Bytes of the budget, given back when dropped. It must outlive the buffer that was taken on it.
pub struct Grant {
    account: Rc<Account>,
    bytes: usize,
}

impl DataMemory {
    /// Memory from `pool`, of which each connection is guaranteed `guaranteed_bytes` and may hold
    /// at most `maximum_bytes`.
    pub fn new(pool: Pool, guaranteed_bytes: usize, maximum_bytes: usize) -> Rc<Self> {
        let budget = Budget::new(
            pool.budget_bytes(),
            guaranteed_bytes.max(UNIT_BYTES).next_power_of_two(),
            maximum_bytes,
        );
        Rc::new(Self { pool, budget: RefCell::new(budget), waiting: RefCell::default() })
    }

    /// Takes a connection in, or `None` when its minimum could not be guaranteed.
    pub fn admit(self: &Rc<Self>) -> Option<Rc<Account>> {
        self.budget.borrow_mut().admit().then(|| {
            Rc::new(Account {
                memory: Rc::clone(self),
                held: Cell::new(0),
                waiters: RefCell::default(),
                listed: Cell::new(false),
            })
        })
    }

    /// Bytes of buffers that are out, for the counters.
    pub fn in_use_bytes(&self) -> usize {
        self.pool.in_use_bytes()
    }

    /// Serves waiters until each connection's first one is one that must go on waiting.
    fn serve_waiters(&self) {
        let mut skipped = 0;
        loop {
            let Some(account) = self.waiting.borrow_mut().pop_front() else { return };
            let Some(waiter) = account.waiters.borrow_mut().pop_front() else {
                account.listed.set(false);
                continue;
            };
            let granted = account.request(waiter.want);
            if granted > 0 {
                skipped = 0;
                waiter.granted.set(granted);
                if let Some(waker) = waiter.waker.borrow_mut().take() {
                    waker.wake();
                }
            } else {
                skipped += 1;
                account.waiters.borrow_mut().push_front(waiter);
            }
            let mut waiting = self.waiting.borrow_mut();
            waiting.push_back(account);
            if skipped >= waiting.len() {
                return;
            }
        }
    }
}

impl Account {
    /// Bytes this connection holds.
    pub fn held_bytes(&self) -> usize {
        self.held.get()
    }

    /// Takes a buffer of `length` bytes, or of a piece of it where memory is short: at least one
    /// unit of 4096 bytes, and a multiple of that unless it is the whole. Waits for its turn.
    pub async fn take(self: &Rc<Self>, length: usize) -> (Buffer, Grant) {
        let want = length.max(UNIT_BYTES).next_power_of_two();
        let bytes = match self.try_request(want) {
            0 => self.wait_for_grant(want).await,
            granted => granted,
        };
        let grant = Grant { account: Rc::clone(self), bytes };
        loop {
            // Fragmentation can deny one long block where shorter ones are free.
            let mut size = length.min(grant.bytes);
            while size > 0 {
                if let Some(buffer) = self.memory.pool.allocate(size) {
                    return (buffer, grant);
                }
                let half = size.next_power_of_two() / 2;
                size = if half >= UNIT_BYTES { half } else { 0 };
            }
            tokio::time::sleep(HOMEWARD_PAUSE).await;
        }
    }

    fn try_request(self: &Rc<Self>, want: usize) -> usize {
        if self.waiters.borrow().is_empty()
            && (self.held.get() == 0 || self.memory.waiting.borrow().is_empty())
        {
            self.request(want)
        } else {
            0
        }
    }

    /// Bytes granted: the whole, or the minimum if nothing is held, or zero.
    fn request(&self, want: usize) -> usize {
        let held = self.held.get();
        let mut budget = self.memory.budget.borrow_mut();
        if budget.request(held, want) == Verdict::Granted {
            self.held.set(held + want);
            return want;
        }
        let minimum = budget.guaranteed().min(want);
        if held == 0 && budget.request(0, minimum) == Verdict::Granted {
            self.held.set(minimum);
            return minimum;
        }
        0
    }

    async fn wait_for_grant(self: &Rc<Self>, want: usize) -> usize {
        let waiter = Rc::new(Waiter { want, granted: Cell::new(0), waker: RefCell::new(None) });
        self.waiters.borrow_mut().push_back(Rc::clone(&waiter));
        if !self.listed.replace(true) {
            self.memory.waiting.borrow_mut().push_back(Rc::clone(self));
        }
        poll_fn(|context: &mut Context<'_>| match waiter.granted.get() {
            0 => {
                *waiter.waker.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
            granted => Poll::Ready(granted),
        })
        .await
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.memory.budget.borrow_mut().leave();
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let account = &self.account;
        let held = account.held.get();
        account.memory.budget.borrow_mut().release(held, self.bytes);
        account.held.set(held - self.bytes);
        if !account.memory.waiting.borrow().is_empty() {
            account.memory.serve_waiters();
        }
    }
}
