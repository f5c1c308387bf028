//! In steady state a request allocates nothing on the heap, and its future is small enough to be
//! kept in a slot.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use raidfabric_raid::array::{Array, Composed, Leaf, Settings, Shared};
use raidfabric_raid::buffer::Pool;
use raidfabric_raid::geometry::{Geometry, Level};
use raidfabric_raid::memory::MemoryDrive;
use raidfabric_raid::mesh::Mesh;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting what each thread asks for.
struct Counting;

// SAFETY: everything is passed on to the system's allocator unchanged.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs a future that never has to wait.
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a request to memory drives has to wait"),
    }
}

fn array(level: Level, members: usize, chunk_bytes: u32) -> (Array<MemoryDrive>, Pool) {
    let size_bytes = 16 << 20;
    let geometry = Geometry::new(level, members, chunk_bytes, size_bytes).unwrap();
    let shared = Shared::new(Settings::new(geometry));
    let drives = (0..members).map(|_| MemoryDrive::new(size_bytes)).collect();
    let endpoint = Mesh::new(1, Arc::new(|_| {})).remove(0);
    let pool = Pool::new(4 << 20, 1 << 20).unwrap();
    (Array::new(shared, drives, Rc::new(endpoint), pool.clone()).unwrap(), pool)
}

/// An array with chunks of 64 KiB over two of this level.
fn composed(level: Level, members: usize) -> (Composed<MemoryDrive>, Pool) {
    let leaf = |_| {
        let (array, pool) = array(level, members, 65_536);
        (Leaf { array: Rc::new(array), data_offset_bytes: 0 }, pool)
    };
    let (leaves, pools): (Vec<_>, Vec<_>) = (0..2).map(leaf).unzip();
    let component = leaves[0].array.geometry().capacity_bytes();
    let geometry = Geometry::new(Level::Raid0, 2, 65_536, component).unwrap();
    (Composed::new(geometry, leaves).unwrap(), pools[0].clone())
}

/// Allocations per round of `round`, after two rounds to warm up.
fn count(mut round: impl FnMut()) -> usize {
    round();
    round();
    let before = ALLOCATIONS.with(Cell::get);
    for _ in 0..100 {
        round();
    }
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(count(|| drop(std::hint::black_box(Box::new(1)))), 100);
}

#[test]
fn reads_and_writes_allocate_nothing() {
    let shapes = [
        (Level::Raid0, 4, 65_536),
        (Level::Raid1, 2, 0),
        (Level::Raid1, 3, 0),
        (Level::Raid10, 4, 65_536),
    ];
    for (level, members, chunk_bytes) in shapes {
        let (array, pool) = array(level, members, chunk_bytes);
        for len in [4096, 131_072] {
            let copies = array.geometry().copies();
            let operations = copies * array.geometry().extent_count(8 << 20, len as u64) as usize;
            if operations > 4 {
                continue;
            }
            let allocations = count(|| {
                let mut buffer = pool.allocate(len).unwrap();
                buffer.fill(7);
                now(array.write(8 << 20, buffer.freeze(), true)).unwrap();
                let buffer = now(array.read(8 << 20, pool.allocate(len).unwrap())).unwrap();
                assert_eq!((buffer[0], buffer[len - 1]), (7, 7));
            });
            assert_eq!(allocations, 0, "{level} over {members} members, {len} bytes");
        }
    }
}

#[test]
fn flushes_allocate_nothing() {
    let (array, _) = array(Level::Raid1, 2, 0);
    assert_eq!(count(|| now(array.flush()).unwrap()), 0);
}

/// A target keeps one such future per command; growth here is growth of its memory per command.
#[test]
fn futures_of_requests_are_small() {
    for (level, members) in [(Level::Raid10, 4), (Level::Raid6, 6)] {
        let (array, pool) = array(level, members, 65_536);
        let read = size_of_val(&array.read(0, pool.allocate(4096).unwrap()));
        let write = size_of_val(&array.write(0, pool.allocate(4096).unwrap().freeze(), false));
        println!("{level}: read {read} bytes, write {write} bytes");
        assert!(read <= 2048, "a read's future has {read} bytes");
        assert!(write <= 2048, "a write's future has {write} bytes");
    }
}

/// What is in one chunk of an array over arrays costs what it does in the array there; a read over
/// several as well. A write over several has one allocation.
#[test]
fn arrays_over_arrays_allocate_little() {
    for (len, reads, writes) in [(4096, 0, 0), (65_536, 0, 0), (131_072, 0, 1), (262_144, 0, 1)] {
        let (array, pool) = composed(Level::Raid10, 4);
        let read = count(|| {
            let buffer = now(array.read(8 << 20, pool.allocate(len).unwrap())).unwrap();
            assert_eq!(buffer.len(), len);
        });
        let write = count(|| {
            let mut buffer = pool.allocate(len).unwrap();
            buffer.fill(7);
            now(array.write(8 << 20, buffer.freeze(), true)).unwrap();
        });
        println!("{len} bytes: {read} and {write} allocations in 100 reads and writes");
        assert_eq!(read, 100 * reads, "reads of {len} bytes");
        assert!(write <= 100 * writes, "{write} in 100 writes of {len} bytes");
    }
    let (array, _) = composed(Level::Raid10, 4);
    assert_eq!(count(|| now(array.flush()).unwrap()), 100);
}

#[test]
fn futures_of_requests_to_arrays_over_arrays_are_small() {
    let (array, pool) = composed(Level::Raid6, 6);
    let read = size_of_val(&array.read(0, pool.allocate(4096).unwrap()));
    let write = size_of_val(&array.write(0, pool.allocate(4096).unwrap().freeze(), false));
    let flush = size_of_val(&array.flush());
    println!("read {read} bytes, write {write} bytes, flush {flush} bytes");
    assert!(read <= 2560, "a read's future has {read} bytes");
    assert!(write <= 2304, "a write's future has {write} bytes");
    assert!(flush <= 512, "a flush's future has {flush} bytes");
}

/// Who leads a pass over a row has a future of its own for it; where more than four operations on
/// members are under way at once, there is one more allocation for each such step. All else comes
/// from what is kept.
#[test]
fn writes_to_rows_allocate_little() {
    for (level, members, len, most) in [
        (Level::Raid5, 3, 4096, 1),
        (Level::Raid5, 4, 4096, 1),
        (Level::Raid5, 4, 3 * 65_536, 1),
        (Level::Raid6, 7, 4096, 1),
        (Level::Raid6, 7, 5 * 65_536, 8),
    ] {
        let (array, pool) = array(level, members, 65_536);
        let allocations = count(|| {
            let mut buffer = pool.allocate(len).unwrap();
            buffer.fill(7);
            now(array.write(0, buffer.freeze(), false)).unwrap();
        });
        println!("{level} over {members}, {len} bytes: {allocations} allocations in 100 writes");
        assert!(allocations <= 100 * most, "{level} over {members}, {len} bytes: {allocations}");
    }
}
