//! Heap allocations of the data cores per command in steady state, counted by thread.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use raidfabric_initiator::queue::{Completion, Data, Queue};
use raidfabric_initiator::{Controller, Options};
use raidfabric_protocol::nvme::io::IoCommand;
use raidfabric_tests::data::Random;
use raidfabric_tests::host::{options, range, soon};
use raidfabric_tests::setup::{NQN, Setup};

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// What is known of a thread: nothing yet, a data core, or another.
const UNKNOWN: u8 = 0;
const DATA_CORE: u8 = 1;
const OTHER: u8 = 2;

thread_local! {
    static ROLE: Cell<u8> = const { Cell::new(UNKNOWN) };
}

/// Whether this thread is named `raidfabric-` and a number. Allocates nothing.
fn is_data_core() -> bool {
    ROLE.try_with(|role| {
        if role.get() == UNKNOWN {
            let mut name = [0u8; 16];
            read_name(&mut name);
            let number = name.strip_prefix(b"raidfabric-").and_then(|rest| rest.first());
            let data_core = number.is_some_and(u8::is_ascii_digit);
            role.set(if data_core { DATA_CORE } else { OTHER });
        }
        role.get() == DATA_CORE
    })
    .unwrap_or(false)
}

/// The name of this thread as the kernel has it.
fn read_name(name: &mut [u8; 16]) {
    use std::os::fd::AsFd;
    let Ok(file) = rustix::fs::open(
        c"/proc/thread-self/comm",
        rustix::fs::OFlags::RDONLY,
        rustix::fs::Mode::empty(),
    ) else {
        return;
    };
    let _ = rustix::io::read(file.as_fd(), &mut name[..]);
}

/// The system's allocator, counting what the data cores ask for.
struct Counting;

fn count() {
    // Threads are told apart once all of them run, and have their names.
    if COUNTING.load(Ordering::Relaxed) && is_data_core() {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: everything is passed on to the system's allocator unchanged.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read(u32),
    Write(u32),
}

/// Keeps 32 commands outstanding until so many have ended.
async fn load(queue: &mut Queue, kind: Kind, commands: u64, random: &mut Random) {
    let mut completions: Vec<Completion> = Vec::with_capacity(64);
    let mut buffers: Vec<Data> = (0..32)
        .map(|_| match kind {
            Kind::Read(blocks) => Data::Read(BytesMut::zeroed(blocks as usize * 4096)),
            Kind::Write(blocks) => Data::Write(Bytes::from(vec![7; blocks as usize * 4096])),
        })
        .collect();
    let (mut sent, mut ended) = (0, 0);
    while ended < commands {
        while sent < commands
            && let Some(data) = buffers.pop()
        {
            let sqe = match kind {
                Kind::Read(blocks) => IoCommand::Read(range(random.below(1900), blocks)),
                Kind::Write(blocks) => {
                    IoCommand::Write { range: range(random.below(1900), blocks), directive: 0 }
                }
            };
            queue.submit(sqe.to_sqe(0), data, 0).unwrap();
            sent += 1;
        }
        queue.turn(&mut completions).await.unwrap();
        for completion in completions.drain(..) {
            completion.check("command").unwrap();
            buffers.push(completion.data);
            ended += 1;
        }
    }
}

async fn measure(queue: &mut Queue, kind: Kind, what: &str) -> f64 {
    const COMMANDS: u64 = 4000;
    let mut random = Random::new(1);
    // Queues and tables grow to their working size first.
    soon(what, load(queue, kind, 1000, &mut random)).await;
    COUNTING.store(true, Ordering::SeqCst);
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    soon(what, load(queue, kind, COMMANDS, &mut random)).await;
    let count = ALLOCATIONS.load(Ordering::SeqCst) - before;
    COUNTING.store(false, Ordering::SeqCst);
    let each = count as f64 / COMMANDS as f64;
    println!("{what}: {each:.3} allocations per command");
    each
}

/// A read of 4 KiB at depth 32 takes at most 0.2 allocations, and so do the others.
#[tokio::test]
async fn commands_allocate_nothing_in_steady_state() {
    let mut failures = Vec::new();
    for (level, members, cores) in [("raid0", 4, 1), ("raid10", 4, 2)] {
        let target = Setup::memory(level, members, 8).cores(cores).busy_poll().start();
        for disable_sq_flow_control in [false, true] {
            let options = Options { disable_sq_flow_control, ..options() };
            COUNTING.store(true, Ordering::SeqCst);
            let before = ALLOCATIONS.load(Ordering::SeqCst);
            let controller = Controller::connect(target.address, NQN, &options).await.unwrap();
            let connecting = ALLOCATIONS.load(Ordering::SeqCst) - before;
            COUNTING.store(false, Ordering::SeqCst);
            assert!(connecting > 10, "the data cores are not seen: {connecting} allocations");
            let mut queue = controller.engine(32).await.unwrap();
            for (kind, name) in [
                (Kind::Read(1), "read of 4 KiB"),
                (Kind::Write(1), "write of 4 KiB in its capsule"),
                (Kind::Write(8), "write of 32 KiB by R2T"),
                (Kind::Read(32), "read of 128 KiB"),
            ] {
                let flow = if disable_sq_flow_control { "off" } else { "on" };
                let what = format!("{level}, {cores} cores, flow control {flow}, {name}");
                let each = measure(&mut queue, kind, &what).await;
                if each > 0.2 {
                    failures.push(format!("{what}: {each:.3}"));
                }
            }
        }
        target.settle_and_stop().await;
    }
    assert!(failures.is_empty(), "more than 0.2 allocations per command: {failures:#?}");
}
