use super::*;
use std::rc::Rc;
use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;
use std::thread;

use futures_util::future::{join_all, select};
use futures_util::task::{ArcWake, noop_waker};
use futures_util::{FutureExt, pin_mut};
use proptest::prelude::*;

type Ends = Vec<Endpoint<u64, u64>>;

/// A mesh whose doorbells are counted.
fn mesh(cores: usize, calls: u32) -> (Ends, Arc<[AtomicUsize]>) {
    let rings: Arc<[AtomicUsize]> = (0..cores).map(|_| AtomicUsize::new(0)).collect();
    let counters = Arc::clone(&rings);
    let doorbell: Doorbell = Arc::new(move |core| {
        counters[core].fetch_add(1, Ordering::SeqCst);
    });
    (Mesh::with_calls_per_pair(cores, doorbell, calls), rings)
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    future.poll_unpin(&mut Context::from_waker(&noop_waker()))
}

#[test]
fn a_call_is_answered() {
    let (ends, rings) = mesh(2, 4);
    let mut call = Box::pin(ends[0].call(1, 7, 20));
    assert!(poll_once(&mut call).is_pending());
    assert_eq!((ends[0].outstanding_calls(), ends[1].has_mail()), (1, true));
    ends[1].handle_doorbell();
    assert!(!ends[1].has_mail());
    let received = ends[1].next_call(7).now_or_never().unwrap();
    let twice = received.call * 2;
    received.token.answer(twice);
    assert!(poll_once(&mut call).is_pending(), "the answer has not been looked for");
    ends[0].handle_doorbell();
    assert_eq!(poll_once(&mut call), Poll::Ready(Some(40)));
    assert_eq!(ends[0].outstanding_calls(), 0);
    assert_eq!(rings.iter().map(|ring| ring.load(Ordering::SeqCst)).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn a_dropped_token_tells_the_caller() {
    let (ends, _) = mesh(2, 4);
    let mut call = Box::pin(ends[0].call(1, 0, 1));
    assert!(poll_once(&mut call).is_pending());
    ends[1].handle_doorbell();
    drop(ends[1].next_call(0).now_or_never().unwrap());
    ends[0].handle_doorbell();
    assert_eq!(poll_once(&mut call), Poll::Ready(None));
}

#[test]
fn services_are_apart() {
    let (ends, _) = mesh(2, 4);
    let mut call = Box::pin(ends[0].call(1, 3, 1));
    assert!(poll_once(&mut call).is_pending());
    ends[1].handle_doorbell();
    assert!(ends[1].next_call(2).now_or_never().is_none());
    assert_eq!(ends[1].next_call(3).now_or_never().unwrap().call, 1);
}

#[test]
fn the_doorbell_rings_once_until_it_is_answered() {
    let (ends, rings) = mesh(3, 8);
    let mut calls: Vec<_> = (0..6).map(|n| Box::pin(ends[n % 2].call(2, 0, n as u64))).collect();
    for call in &mut calls {
        assert!(poll_once(call).is_pending());
    }
    assert_eq!(rings[2].load(Ordering::SeqCst), 1);
    ends[2].handle_doorbell();
    let mut more = Box::pin(ends[0].call(2, 0, 9));
    assert!(poll_once(&mut more).is_pending());
    assert_eq!(rings[2].load(Ordering::SeqCst), 2);
}

#[test]
fn callers_wait_for_a_slot_in_order() {
    let (ends, _) = mesh(2, 2);
    let mut calls: Vec<_> = (0..5).map(|n| Box::pin(ends[0].call(1, 0, n))).collect();
    // Polled backwards: 4 and 3 get the slots, then 2, 1, 0 queue up.
    for call in calls.iter_mut().rev() {
        assert!(poll_once(call).is_pending());
    }
    let mut served = Vec::new();
    // Caller 1 gives up while it waits; nobody behind it may be forgotten.
    drop(calls.remove(1));
    for _ in 0..8 {
        ends[1].handle_doorbell();
        while let Some(received) = ends[1].next_call(0).now_or_never() {
            served.push(received.call);
            received.token.answer(0);
        }
        ends[0].handle_doorbell();
        calls.retain_mut(|call| poll_once(call).is_pending());
    }
    assert_eq!(served, [4, 3, 2, 0]);
    assert!(calls.is_empty());
}

#[test]
fn an_abandoned_call_keeps_its_slot_until_the_answer() {
    let (ends, _) = mesh(2, 1);
    let mut first = Box::pin(ends[0].call(1, 0, 1));
    assert!(poll_once(&mut first).is_pending());
    drop(first);
    let mut second = Box::pin(ends[0].call(1, 0, 2));
    assert!(poll_once(&mut second).is_pending());
    ends[1].handle_doorbell();
    let received = ends[1].next_call(0).now_or_never().unwrap();
    assert_eq!(received.call, 1);
    assert!(ends[1].next_call(0).now_or_never().is_none(), "the second has no slot yet");
    received.token.answer(11);
    ends[0].handle_doorbell();
    assert!(poll_once(&mut second).is_pending());
    ends[1].handle_doorbell();
    ends[1].next_call(0).now_or_never().unwrap().token.answer(22);
    ends[0].handle_doorbell();
    assert_eq!(poll_once(&mut second), Poll::Ready(Some(22)));
}

/// A server that was woken for a call and is dropped before it runs must not lose the wake-up.
#[test]
fn a_dropped_server_passes_its_wake_up_on() {
    let (ends, _) = mesh(2, 4);
    let woken = Arc::new(AtomicUsize::new(0));
    struct Count(Arc<AtomicUsize>);
    impl ArcWake for Count {
        fn wake_by_ref(this: &Arc<Self>) {
            this.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let waker = futures_util::task::waker(Arc::new(Count(Arc::clone(&woken))));
    let mut first = Box::pin(ends[1].next_call(0));
    let mut second = Box::pin(ends[1].next_call(0));
    assert!(poll_once(&mut first).is_pending());
    assert!(second.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
    let mut call = Box::pin(ends[0].call(1, 0, 5));
    assert!(poll_once(&mut call).is_pending());
    ends[1].handle_doorbell();
    assert_eq!(woken.load(Ordering::SeqCst), 0, "the first server was woken");
    drop(first);
    assert_eq!(woken.load(Ordering::SeqCst), 1);
    assert!(poll_once(&mut second).is_ready());
}

#[test]
#[should_panic(expected = "core 1 calls 1")]
fn a_core_does_not_call_itself() {
    let (ends, _) = mesh(2, 1);
    let _ = ends[1].call(1, 0, 0).now_or_never();
}

proptest! {
    /// Any interleaving of calls, looks at the doorbell, serving and giving up: every call is
    /// answered with its own answer, and nothing is left behind.
    #[test]
    fn any_interleaving_answers_every_call(
        cores in 2usize..5,
        slots in 1u32..4,
        steps in prop::collection::vec((0u8..5, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..150),
    ) {
        let (ends, rings) = mesh(cores, slots);
        let mut calls = Vec::new();
        let mut tokens = Vec::new();
        let mut asked = 0u64;
        for (kind, a, b) in steps {
            let core = a.index(cores);
            match kind {
                0 => {
                    let to = (core + 1 + b.index(cores - 1)) % cores;
                    let mut call = Box::pin(ends[core].call(to, 0, asked));
                    prop_assert!(poll_once(&mut call).is_pending());
                    calls.push((asked, call));
                    asked += 1;
                }
                1 => ends[core].handle_doorbell(),
                2 => tokens.extend(ends[core].next_call(0).now_or_never()),
                3 if !tokens.is_empty() => {
                    let received: Received<'_, u64, u64> = tokens.swap_remove(b.index(tokens.len()));
                    received.token.answer(received.call + 1000);
                }
                4 if !calls.is_empty() => drop(calls.swap_remove(b.index(calls.len()))),
                _ => {}
            }
            for core in 0..cores {
                // A message on a ring is never left without a bell.
                let waiting = ends[core].peers.iter().any(|peer| {
                    peer.incoming.borrow().as_ref().is_some_and(|ring| !ring.is_empty())
                });
                prop_assert!(!waiting || ends[core].has_mail());
                prop_assert!(!waiting || rings[core].load(Ordering::SeqCst) > 0);
            }
        }
        for _ in 0..2 * asked + 2 {
            for received in tokens.drain(..) {
                received.token.answer(received.call + 1000);
            }
            for end in &ends {
                end.handle_doorbell();
                while let Some(received) = end.next_call(0).now_or_never() {
                    received.token.answer(received.call + 1000);
                }
            }
            let mut wrong = None;
            calls.retain_mut(|(number, call)| match poll_once(call) {
                Poll::Ready(answer) => {
                    if answer != Some(*number + 1000) {
                        wrong = Some((*number, answer));
                    }
                    false
                }
                Poll::Pending => true,
            });
            prop_assert_eq!(wrong, None);
        }
        prop_assert!(calls.is_empty());
        for end in &ends {
            end.handle_doorbell();
            prop_assert_eq!(end.outstanding_calls(), 0);
            for peer in &end.peers {
                prop_assert_eq!(peer.slab.borrow().free.len(), slots as usize);
            }
        }
    }
}

/// Real threads that park until their doorbell is rung: a lost wake-up would hang the test.
#[test]
fn threads_answer_each_other() {
    const CORES: usize = 3;
    let rounds = if cfg!(debug_assertions) { 3_000u64 } else { 30_000 };
    let threads: Arc<std::sync::Mutex<Vec<thread::Thread>>> = Arc::default();
    let bells = Arc::clone(&threads);
    let ends: Ends = Mesh::with_calls_per_pair(
        CORES,
        Arc::new(move |core| bells.lock().unwrap()[core].unpark()),
        4,
    );
    let ready = Arc::new(Barrier::new(CORES));
    let finished = Arc::new(AtomicUsize::new(0));
    let handles: Vec<_> = ends
        .into_iter()
        .map(|end| {
            let (ready, finished) = (Arc::clone(&ready), Arc::clone(&finished));
            let list_of_threads = Arc::clone(&threads);
            let threads = Arc::clone(&threads);
            let run = move || {
                ready.wait();
                run_core(&Rc::new(end), rounds, &finished, CORES, &threads);
            };
            let mut list = list_of_threads.lock().unwrap();
            let handle = thread::spawn(run);
            list.push(handle.thread().clone());
            handle
        })
        .collect();
    for handle in handles {
        handle.join().unwrap();
    }
}

/// Whether the core's task was woken since it was polled.
struct Again(AtomicBool);

impl ArcWake for Again {
    fn wake_by_ref(this: &Arc<Self>) {
        this.0.store(true, Ordering::SeqCst);
    }
}

fn run_core(
    end: &Rc<Endpoint<u64, u64>>,
    rounds: u64,
    finished: &AtomicUsize,
    cores: usize,
    threads: &std::sync::Mutex<Vec<thread::Thread>>,
) {
    let me = end.core();
    let callers = join_all((0..8u64).map(|caller| async move {
        for round in 0..rounds / 8 {
            let to = (me + 1 + (round as usize + caller as usize) % (cores - 1)) % cores;
            let number = round * 8 + caller;
            assert_eq!(end.call(to, 0, number).await, Some(number ^ 0xff));
        }
    }));
    let servers = join_all((0..3).map(|_| async {
        loop {
            let received: Received<'_, u64, u64> = end.next_call(0).await;
            received.token.answer(received.call ^ 0xff);
        }
    }));
    let callers = async {
        callers.await;
        finished.fetch_add(1, Ordering::SeqCst);
        for thread in threads.lock().unwrap().iter() {
            thread.unpark();
        }
        poll_fn(|_| {
            if finished.load(Ordering::SeqCst) == cores { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    };
    pin_mut!(callers, servers);
    let mut both = select(callers, servers);
    let again = Arc::new(Again(AtomicBool::new(true)));
    let waker = futures_util::task::waker(Arc::clone(&again));
    loop {
        end.handle_doorbell();
        while again.0.swap(false, Ordering::SeqCst) {
            if both.poll_unpin(&mut Context::from_waker(&waker)).is_ready() {
                return;
            }
        }
        if !end.has_mail() {
            thread::park();
            if finished.load(Ordering::SeqCst) == cores {
                again.0.store(true, Ordering::SeqCst);
            }
        }
    }
}
