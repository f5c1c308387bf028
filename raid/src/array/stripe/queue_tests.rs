//! The queue of rows against a plain list, for every short course of events and many long ones.

use super::*;
use proptest::prelude::*;

type Rows = super::Rows<u32, u8>;
type Guard<'a> = TicketGuard<'a, u32, u8>;

const ABANDONED: u8 = 99;
/// So long that it does not end.
const HOLD: Option<Duration> = Some(Duration::from_secs(1));
const ROW_BYTES: u64 = 100;

fn poll(guard: &Guard<'_>) -> Option<Turn<u8>> {
    match guard.poll_turn(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(turn) => Some(turn),
        Poll::Pending => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Now {
    Waiting,
    Running,
    Led(u32),
    Done(u8),
}

/// What should be: every ticket that is out, in order of arrival.
struct Entry<'a> {
    number: u32,
    row: u64,
    kind: Kind,
    now: Now,
    guard: Option<Guard<'a>>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Enter(u64, Kind),
    /// Asks one ticket whether it is its turn.
    Poll(usize),
    /// Ends one that runs.
    Finish(usize),
    Drop(usize),
}

struct Model<'a> {
    rows: &'a Rows,
    entries: Vec<Entry<'a>>,
    next: u32,
}

impl<'a> Model<'a> {
    fn new(rows: &'a Rows) -> Self {
        Self { rows, entries: Vec::new(), next: 0 }
    }

    fn may_run(&self, index: usize) -> bool {
        let Entry { row, kind, now, .. } = self.entries[index];
        let of_row = || self.entries.iter().filter(move |entry| entry.row == row);
        let first = of_row().find(|entry| entry.now == Now::Waiting).map(|entry| entry.number);
        now == Now::Waiting
            && first == Some(self.entries[index].number)
            && of_row()
                .filter(|entry| entry.now == Now::Running)
                .all(|running| kind == Kind::Shared && running.kind == Kind::Shared)
    }

    fn poll(&mut self, index: usize) {
        let may_run = self.may_run(index);
        let Entry { number, row, kind, now, .. } = self.entries[index];
        let turn = poll(self.entries[index].guard.as_ref().unwrap());
        let expected = match now {
            Now::Waiting if may_run => Some(Turn::Run),
            Now::Running => Some(Turn::Run),
            Now::Done(answer) => Some(Turn::Done(answer)),
            Now::Waiting | Now::Led(_) => None,
        };
        assert_eq!(turn, expected, "ticket {number} ({now:?})");
        if !may_run {
            return;
        }
        self.entries[index].now = Now::Running;
        if kind != Kind::Write {
            return;
        }
        let mut taken = vec![number];
        let behind =
            self.entries.iter_mut().filter(|entry| entry.row == row && entry.now == Now::Waiting);
        for entry in behind.take_while(|entry| entry.kind == Kind::Write) {
            entry.now = Now::Led(number);
            taken.push(entry.number);
        }
        let mut payloads = Vec::new();
        let guard = self.entries[index].guard.as_ref().unwrap();
        assert_eq!(guard.take_payloads(|payload| payloads.push(payload)), taken.len() as u32);
        assert_eq!(payloads, taken, "all writes of the pass, in order");
    }

    fn end(&mut self, index: usize, answer: u8) {
        let entry = self.entries.remove(index);
        for other in self.entries.iter_mut().filter(|other| other.now == Now::Led(entry.number)) {
            other.now = Now::Done(answer);
        }
    }

    fn step(&mut self, step: Step) {
        let count = self.entries.len();
        match step {
            Step::Enter(row, kind) => {
                let number = self.next;
                self.next += 1;
                let payload = (kind == Kind::Write).then_some(number);
                let guard = Some(self.rows.enter(row, kind, 1, payload, None));
                self.entries.push(Entry { number, row, kind, now: Now::Waiting, guard });
            }
            Step::Poll(index) if count > 0 => self.poll(index % count),
            Step::Finish(index) if count > 0 => {
                let index = index % count;
                if self.entries[index].now == Now::Running {
                    let answer = (self.next % 50) as u8;
                    self.entries[index].guard.take().unwrap().finish(answer);
                    self.end(index, answer);
                }
            }
            Step::Drop(index) if count > 0 => {
                let index = index % count;
                drop(self.entries[index].guard.take());
                // Dropping a follower lets its pass go on; dropping a leader ends it.
                self.end(index, ABANDONED);
            }
            _ => {}
        }
    }

    /// Every ticket gets its turn in the end, without anything but finishing.
    fn run_out(mut self) {
        while !self.entries.is_empty() {
            let before = self.entries.len();
            for index in 0..self.entries.len() {
                self.poll(index);
            }
            while let Some(done) =
                self.entries.iter().position(|entry| matches!(entry.now, Now::Done(_)))
            {
                self.entries.remove(done);
            }
            while let Some(running) =
                self.entries.iter().position(|entry| entry.now == Now::Running)
            {
                self.step(Step::Finish(running));
            }
            while let Some(done) =
                self.entries.iter().position(|entry| matches!(entry.now, Now::Done(_)))
            {
                self.entries.remove(done);
            }
            assert!(self.entries.len() < before, "nobody can go on");
        }
        assert_eq!(self.rows.tickets(), 0);
        assert!(self.rows.table.borrow().rows.is_empty());
    }
}

#[test]
fn every_short_course_of_events_on_one_row() {
    let mut steps = vec![
        Step::Enter(0, Kind::Write),
        Step::Enter(0, Kind::Exclusive),
        Step::Enter(0, Kind::Shared),
    ];
    for index in 0..3 {
        steps.extend([Step::Poll(index), Step::Finish(index), Step::Drop(index)]);
    }
    let rows = Rows::new(ROW_BYTES, 4, ABANDONED);
    let length = 6;
    for course in 0..steps.len().pow(length) {
        let mut model = Model::new(&rows);
        let mut course = course;
        for _ in 0..length {
            model.step(steps[course % steps.len()]);
            course /= steps.len();
        }
        model.run_out();
    }
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        3 => Just(Kind::Write),
        1 => Just(Kind::Exclusive),
        1 => Just(Kind::Shared)
    ];
    prop_oneof![
        4 => (0u64..3, kind).prop_map(|(row, kind)| Step::Enter(row, kind)),
        4 => (0usize..20).prop_map(Step::Poll),
        3 => (0usize..20).prop_map(Step::Finish),
        1 => (0usize..20).prop_map(Step::Drop),
    ]
}

proptest! {
    #[test]
    fn long_courses_on_several_rows(steps in prop::collection::vec(step(), 0..200)) {
        let rows = Rows::new(ROW_BYTES, 1, ABANDONED);
        let mut model = Model::new(&rows);
        for step in steps {
            model.step(step);
        }
        model.run_out();
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Counter(std::sync::atomic::AtomicUsize);

impl std::task::Wake for Counter {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

impl Counter {
    fn count(&self) -> usize {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

fn poll_with(guard: &Guard<'_>, counter: &std::sync::Arc<Counter>) -> bool {
    let waker = Waker::from(std::sync::Arc::clone(counter));
    guard.poll_turn(&mut Context::from_waker(&waker)).is_ready()
}

#[test]
fn those_who_can_go_on_are_woken() {
    let rows = Rows::new(ROW_BYTES, 8, ABANDONED);
    let first = rows.enter(7, Kind::Exclusive, 0, None, None);
    assert_eq!(poll(&first), Some(Turn::Run));
    let waiting = [(); 4].map(|()| std::sync::Arc::new(Counter::default()));
    let shared = rows.enter(7, Kind::Shared, 0, None, None);
    let also = rows.enter(7, Kind::Shared, 0, None, None);
    let write = rows.enter(7, Kind::Write, 1, Some(1), None);
    let led = rows.enter(7, Kind::Write, 1, Some(2), None);
    for (guard, counter) in [&shared, &also, &write, &led].into_iter().zip(&waiting) {
        assert!(!poll_with(guard, counter));
    }
    first.finish(0);
    assert_eq!(waiting[0].count(), 1);
    assert!(poll_with(&shared, &waiting[0]));
    assert_eq!(waiting[1].count(), 1, "one that runs along is woken by the one before it");
    assert!(poll_with(&also, &waiting[1]));
    shared.finish(0);
    assert_eq!(waiting[2].count(), 0, "there is still one that runs");
    drop(also);
    assert_eq!(waiting[2].count(), 1);
    assert!(poll_with(&write, &waiting[2]));
    assert_eq!(waiting[3].count(), 0);
    write.finish(5);
    assert_eq!(waiting[3].count(), 1);
    assert_eq!(poll(&led), Some(Turn::Done(5)));
    drop(led);
    assert_eq!(rows.tickets(), 0);
}

#[test]
fn leaving_the_queue_wakes_the_next() {
    let rows = Rows::new(ROW_BYTES, 8, ABANDONED);
    let running = rows.enter(7, Kind::Shared, 0, None, None);
    assert_eq!(poll(&running), Some(Turn::Run));
    let exclusive = rows.enter(7, Kind::Exclusive, 0, None, None);
    let shared = rows.enter(7, Kind::Shared, 0, None, None);
    let counter = std::sync::Arc::new(Counter::default());
    assert!(!poll_with(&exclusive, &std::sync::Arc::default()) && !poll_with(&shared, &counter));
    drop(exclusive);
    assert_eq!(counter.count(), 1);
    assert_eq!(poll(&shared), Some(Turn::Run));
}

#[test]
fn a_hold_ends_when_the_row_is_complete() {
    let rows = Rows::new(ROW_BYTES, 8, ABANDONED);
    let counter = std::sync::Arc::new(Counter::default());
    let first = rows.enter(3, Kind::Write, 40, Some(1), HOLD);
    assert!(!poll_with(&first, &counter), "it is held");
    let second = rows.enter(3, Kind::Write, 40, Some(2), HOLD);
    assert!(!poll_with(&first, &counter) && poll(&second).is_none());
    let third = rows.enter(3, Kind::Write, 20, Some(3), HOLD);
    assert_eq!(counter.count(), 1);
    assert_eq!(poll(&first), Some(Turn::Run));
    let mut all = Vec::new();
    assert_eq!(
        (first.take_payloads(|payload| all.push(payload)), first.was_filled()),
        (3, Some(true))
    );
    assert_eq!(all, [1, 2, 3]);
    first.finish(0);
    assert_eq!((poll(&second), poll(&third)), (Some(Turn::Done(0)), Some(Turn::Done(0))));
    rows.end_holds(Duration::MAX);
    assert_eq!(rows.tickets(), 2);
}

#[test]
fn a_hold_ends_when_its_time_is_over_or_for_something_else() {
    let rows = Rows::new(ROW_BYTES, 8, ABANDONED);
    let us = Duration::from_micros;
    let other = rows.enter(4, Kind::Write, 40, Some(1), Some(us(30)));
    let first = rows.enter(3, Kind::Write, 40, Some(1), Some(us(20)));
    rows.end_holds(us(19));
    assert!(poll(&first).is_none() && poll(&other).is_none());
    rows.end_holds(us(20));
    assert_eq!((poll(&first), first.was_filled()), (Some(Turn::Run), Some(false)));
    assert!(poll(&other).is_none(), "it may be held for longer");
    let reader = rows.enter(4, Kind::Shared, 0, None, None);
    assert_eq!(poll(&other), Some(Turn::Run), "a reader does not wait for a hold");
    assert_eq!(other.was_filled(), None, "nobody can say whether it would have been of use");
    other.finish(0);
    assert_eq!(poll(&reader), Some(Turn::Run));
    // Behind a pass nothing is held: what is left of the row is not the whole of it.
    let late = rows.enter(3, Kind::Write, 40, Some(1), HOLD);
    first.finish(0);
    assert_eq!(poll(&late), Some(Turn::Run));
    // A whole row waits for nothing.
    let whole = rows.enter(5, Kind::Write, 100, Some(1), HOLD);
    assert_eq!(poll(&whole), Some(Turn::Run));
}

#[test]
fn who_watches_holds_is_woken_by_one() {
    let rows = Rows::new(ROW_BYTES, 8, ABANDONED);
    let counter = std::sync::Arc::new(Counter::default());
    let waker = Waker::from(std::sync::Arc::clone(&counter));
    let mut cx = Context::from_waker(&waker);
    assert!(rows.poll_holds(&mut cx).is_pending());
    let first = rows.enter(3, Kind::Write, 40, Some(1), HOLD);
    assert_eq!(counter.count(), 1);
    assert!(rows.poll_holds(&mut cx).is_ready());
    drop(first);
    assert!(rows.poll_holds(&mut cx).is_pending(), "a hold whose write has gone is none");
}
