//! A seeded executor with virtual time: several cores' tasks, timers and doorbells, in an order
//! that the seed alone decides.
//!
//! All cores run on the one thread of the test. Which of the tasks that could run does run next,
//! whether time passes before that, how long a doorbell takes to be heard: all of it is drawn from
//! one generator, so a run is repeated exactly by its seed.

use std::cell::{Cell, RefCell};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::array::Timer;
use crate::mesh::Doorbell;

/// The generator of everything random in a run (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

enum Action {
    Wake(Waker),
    Doorbell(usize),
    Call(Box<dyn FnOnce()>),
}

struct Event {
    at: u64,
    /// Drawn at random: the order of events of one moment.
    tie: u64,
    action: Action,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.tie).cmp(&(other.at, other.tie))
    }
}

/// The tasks that were woken, and the doorbells that were rung; filled from wakers and doorbells,
/// which must be `Send`.
#[derive(Default)]
struct Inbox {
    ready: Vec<usize>,
    rung: Vec<usize>,
}

struct TaskWaker {
    task: usize,
    inbox: Arc<Mutex<Inbox>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut inbox = self.inbox.lock().unwrap();
        if !inbox.ready.contains(&self.task) {
            inbox.ready.push(self.task);
        }
    }
}

/// Whether the environment asks to be told what happens (`RAIDFABRIC_SIM_TRACE`).
pub(crate) fn is_traced() -> bool {
    static TRACES: OnceLock<bool> = OnceLock::new();
    *TRACES.get_or_init(|| std::env::var_os("RAIDFABRIC_SIM_TRACE").is_some())
}

/// Tells what happens outside of a world, if anybody listens.
pub(crate) fn tell(line: impl FnOnce() -> String) {
    if is_traced() {
        println!("{:>15}  {}", "", line());
    }
}

/// The executor. See the file's head.
pub(crate) struct World {
    now: Cell<u64>,
    random: RefCell<Random>,
    events: RefCell<BinaryHeap<Reverse<Event>>>,
    tasks: RefCell<Vec<Option<Task>>>,
    inbox: Arc<Mutex<Inbox>>,
    bells: RefCell<Vec<Box<dyn Fn()>>>,
    hooks: RefCell<Vec<Box<dyn Fn()>>>,
    steps: Cell<u64>,
    traces: bool,
}

impl World {
    /// A world whose course is decided by `seed`. It tells what happens if the environment
    /// variable `RAIDFABRIC_SIM_TRACE` is set.
    pub(crate) fn new(seed: u64) -> Rc<Self> {
        Rc::new(Self {
            now: Cell::new(0),
            random: RefCell::new(Random::new(seed)),
            events: RefCell::default(),
            tasks: RefCell::default(),
            inbox: Arc::default(),
            bells: RefCell::default(),
            hooks: RefCell::default(),
            steps: Cell::new(0),
            traces: is_traced(),
        })
    }

    /// The time, in nanoseconds since the world began.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now.get()
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().below(bound)
    }

    /// True once in `times` on average.
    pub(crate) fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Tells what happens, if anybody listens.
    pub(crate) fn trace(&self, line: impl FnOnce() -> String) {
        if self.traces {
            println!("{:>12} ns  {}", self.now.get(), line());
        }
    }

    /// The doorbell for a mesh of this world's cores.
    pub(crate) fn doorbell(&self) -> Doorbell {
        let inbox = Arc::clone(&self.inbox);
        Arc::new(move |core| inbox.lock().unwrap().rung.push(core))
    }

    /// What the next core (0, 1, …) does when its doorbell is heard.
    pub(crate) fn add_core(&self, hear: impl Fn() + 'static) {
        self.bells.borrow_mut().push(Box::new(hear));
    }

    /// Something to do at every step.
    pub(crate) fn add_hook(&self, hook: impl Fn() + 'static) {
        self.hooks.borrow_mut().push(Box::new(hook));
    }

    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        tasks.push(Some(Box::pin(future)));
        self.inbox.lock().unwrap().ready.push(tasks.len() - 1);
    }

    /// Calls `action` after `delay` nanoseconds.
    pub(crate) fn after(&self, delay: u64, action: impl FnOnce() + 'static) {
        self.schedule(delay, Action::Call(Box::new(action)));
    }

    pub(crate) async fn sleep_ns(&self, delay: u64) {
        let deadline = self.now.get() + delay;
        let mut scheduled = false;
        poll_fn(|cx| {
            if self.now.get() >= deadline {
                return Poll::Ready(());
            }
            if !scheduled {
                scheduled = true;
                self.schedule(deadline - self.now.get(), Action::Wake(cx.waker().clone()));
            }
            Poll::Pending
        })
        .await;
    }

    fn schedule(&self, delay: u64, action: Action) {
        let tie = self.random.borrow_mut().next();
        let event = Event { at: self.now.get() + delay, tie, action };
        self.events.borrow_mut().push(Reverse(event));
    }

    /// Runs until `done`; returns false if nothing can happen any more before that.
    ///
    /// Panics if it does not come to an end.
    pub(crate) fn run_until(&self, mut done: impl FnMut() -> bool) -> bool {
        while !done() {
            if !self.step() {
                return done();
            }
        }
        true
    }

    /// Runs for `steps` steps, or until nothing can happen any more.
    pub(crate) fn run_for(&self, steps: u64) {
        for _ in 0..steps {
            if !self.step() {
                return;
            }
        }
    }

    fn step(&self) -> bool {
        self.steps.set(self.steps.get() + 1);
        assert!(self.steps.get() < 1_000_000, "the run does not come to an end");
        let rung = std::mem::take(&mut self.inbox.lock().unwrap().rung);
        for core in rung {
            let delay = self.below(60_000);
            self.schedule(delay, Action::Doorbell(core));
        }
        self.hooks.borrow().iter().for_each(|hook| hook());
        let ready = self.inbox.lock().unwrap().ready.len() as u64;
        // Now and then time passes before a task that could run does.
        let time_passes = ready == 0 || self.one_in(6);
        if time_passes && let Some(Reverse(event)) = self.pop_event() {
            self.now.set(self.now.get().max(event.at));
            match event.action {
                Action::Wake(waker) => waker.wake(),
                Action::Doorbell(core) => self.bells.borrow()[core](),
                Action::Call(action) => action(),
            }
            return true;
        }
        if ready == 0 {
            return false;
        }
        let index = self.below(ready) as usize;
        let task = self.inbox.lock().unwrap().ready.swap_remove(index);
        self.poll(task);
        true
    }

    fn pop_event(&self) -> Option<Reverse<Event>> {
        self.events.borrow_mut().pop()
    }

    fn poll(&self, task: usize) {
        let Some(mut future) = self.tasks.borrow_mut()[task].take() else { return };
        let waker = Waker::from(Arc::new(TaskWaker { task, inbox: Arc::clone(&self.inbox) }));
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.tasks.borrow_mut()[task] = Some(future);
        }
    }

    /// Forgets all tasks and events, as a power cut does.
    pub(crate) fn stop(&self) {
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        drop(tasks);
        self.events.borrow_mut().clear();
        self.bells.borrow_mut().clear();
        self.hooks.borrow_mut().clear();
    }
}

/// The world's clock, as the engine sees it.
pub(crate) struct Clock(pub(crate) Rc<World>);

impl Timer for Clock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.now.get())
    }

    async fn sleep(&self, time: Duration) {
        self.0.sleep_ns(time.as_nanos() as u64).await;
    }
}
