//! How many of the writes of sequential loads end as writes of whole rows. Here time passes only
//! when nobody has anything to do, as on a machine that is fast enough; in the simulated world of
//! the other tests it also passes by those who could go on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::array::{CoreTimer, Settings, Shared, StripeStatistics, Timer};
use crate::buffer::{Buffer, Pool, SharedBuffer};
use crate::drive::ReadFailure;
use crate::memory::MemoryDrive;
use crate::mesh::Mesh;

/// An executor that lets time pass when all tasks wait.
#[derive(Default)]
struct Lab {
    now: Cell<u64>,
    timers: RefCell<BinaryHeap<Reverse<(u64, u64)>>>,
    wakers: RefCell<Vec<Option<Waker>>>,
    tasks: RefCell<Vec<Task>>,
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    woken: Arc<Flag>,
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Lab {
    fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let woken = Arc::new(Flag(AtomicBool::new(true)));
        self.tasks.borrow_mut().push(Task { future: Box::pin(future), woken });
    }

    async fn sleep_us(&self, time: u64) {
        let deadline = self.now.get() + time;
        let mut number = None;
        poll_fn(|cx| {
            if self.now.get() >= deadline {
                return Poll::Ready(());
            }
            let mut wakers = self.wakers.borrow_mut();
            let number = *number.get_or_insert_with(|| {
                wakers.push(None);
                self.timers.borrow_mut().push(Reverse((deadline, wakers.len() as u64 - 1)));
                wakers.len() - 1
            });
            wakers[number] = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Runs until `done`; `between` is called between two polls.
    fn run(&self, done: impl Fn() -> bool, between: impl Fn()) {
        while !done() {
            let mut idle = true;
            let mut tasks = std::mem::take(&mut *self.tasks.borrow_mut());
            for task in &mut tasks {
                between();
                if task.woken.0.swap(false, Ordering::SeqCst) {
                    idle = false;
                    let waker = Waker::from(Arc::clone(&task.woken));
                    let _ = task.future.as_mut().poll(&mut Context::from_waker(&waker));
                }
            }
            self.tasks.borrow_mut().extend(tasks);
            between();
            let is_woken = |task: &Task| task.woken.0.load(Ordering::SeqCst);
            if idle && !self.tasks.borrow().iter().any(is_woken) {
                let Reverse((at, number)) =
                    self.timers.borrow_mut().pop().expect("all wait for ever");
                self.now.set(at);
                self.wakers.borrow_mut()[number as usize].take().into_iter().for_each(Waker::wake);
            }
        }
    }
}

struct LabClock(Rc<Lab>);

impl Timer for LabClock {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.now.get())
    }

    async fn sleep(&self, time: Duration) {
        self.0.sleep_us(time.as_micros() as u64).await;
    }
}

/// A drive in memory that takes 20 µs and a µs for each 2 KiB, so many times.
struct SlowDrive(MemoryDrive, Rc<Lab>, u64);

impl SlowDrive {
    async fn pause(&self, len: usize) {
        self.1.sleep_us((20 + len as u64 / 2048) * self.2).await;
    }
}

impl Drive for SlowDrive {
    async fn read(&self, offset: u64, buffer: Buffer) -> Result<Buffer, ReadFailure> {
        self.pause(buffer.len()).await;
        self.0.read(offset, buffer).await
    }

    async fn write(&self, offset: u64, data: SharedBuffer, fua: bool) -> Result<(), DriveError> {
        self.pause(data.len()).await;
        self.0.write(offset, data, fua).await
    }

    async fn flush(&self) -> Result<(), DriveError> {
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, free: bool) -> Result<(), DriveError> {
        self.0.write_zeroes(offset, len, free).await
    }

    fn has_volatile_cache(&self) -> bool {
        false
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn block_size_bytes(&self) -> u32 {
        512
    }
}

/// Runs `depth` hosts' worth of sequential writes from the start of the array to its end; also
/// answers the number of rows, and how long it took in µs.
fn stream(plan: &Plan, depth: usize, len: usize, gathers: bool) -> (StripeStatistics, u64, u64) {
    stream_over(1, plan, depth, len, gathers)
}

/// The same over drives that are so many times as slow.
fn stream_over(
    slowness: u64,
    plan: &Plan,
    depth: usize,
    len: usize,
    gathers: bool,
) -> (StripeStatistics, u64, u64) {
    let lab = Rc::new(Lab::default());
    let geometry = plan.geometry();
    let rows = geometry.rows();
    let shared = Shared::new(Settings { cores: plan.cores, ..Settings::new(geometry) });
    let pool = Pool::new(64 << 20, 1 << 20).unwrap();
    let drives = plan.drives();
    let endpoints: Vec<_> =
        Mesh::new(plan.cores, Arc::new(|_| {})).into_iter().map(Rc::new).collect();
    let arrays: Vec<_> = endpoints
        .iter()
        .map(|endpoint| {
            let drives =
                drives.iter().map(|drive| SlowDrive(drive.clone(), Rc::clone(&lab), slowness));
            let timer: Rc<dyn CoreTimer> = Rc::new(LabClock(Rc::clone(&lab)));
            let array = Array::new(
                Arc::clone(&shared),
                drives.collect(),
                Rc::clone(endpoint),
                pool.clone(),
            );
            Rc::new(array.unwrap().with_timer(timer))
        })
        .collect();
    for array in &arrays {
        for _ in 0..64 {
            let array = Rc::clone(array);
            lab.spawn(async move {
                array.serve().await;
            });
        }
        let array = Rc::clone(array);
        lab.spawn(async move {
            if gathers {
                array.gather().await;
            }
        });
    }
    let (next, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let capacity = shared.geometry().capacity_bytes() as usize;
    for host in 0..depth {
        let (next, done) = (Rc::clone(&next), Rc::clone(&done));
        let (lab_of_host, pool, arrays) = (Rc::clone(&lab), pool.clone(), arrays.clone());
        lab.spawn(async move {
            while next.get() + len <= capacity {
                let at = next.get();
                next.set(at + len);
                let mut buffer = pool.allocate(len).unwrap();
                buffer.fill(at as u8);
                let array = &arrays[host % arrays.len()];
                array.write(at as u64, buffer.freeze(), false).await.unwrap();
                // The network, and the host, take their time.
                lab_of_host.sleep_us(20 + (at / len % 7) as u64 * 5).await;
            }
            done.set(done.get() + 1);
        });
    }
    lab.run(|| done.get() == depth, || endpoints.iter().for_each(|end| end.handle_doorbell()));
    // They have the arrays, and these have the lab.
    lab.tasks.borrow_mut().clear();
    (shared.stripe_statistics(), rows, lab.now.get())
}

#[test]
fn streams_with_company_are_written_in_whole_rows() {
    for (members, chunk) in [(4, 65_536), (5, 65_536), (3, 131_072)] {
        for depth in [2, 4, 32] {
            for cores in [1, 2] {
                let plan = Plan { cores, ..Plan::new(Level::Raid5, members, chunk, 300) };
                let (statistics, rows, _) = stream(&plan, depth, 128 << 10, true);
                let whole = statistics.full_row_writes;
                assert!(
                    whole * 100 >= rows * 95,
                    "{members} members, depth {depth}, {cores} cores: {whole} of {rows} rows: \
                     {statistics:?}"
                );
            }
        }
    }
}

/// On slow drives the next write of a stream comes late, as it waits for the answer of an earlier
/// one: a hold of fixed length was over before, and each write was done on its own.
#[test]
fn streams_to_slow_drives_are_written_in_whole_rows() {
    for slowness in [10, 60] {
        for (members, depth) in [(4, 2), (4, 32), (5, 2), (8, 8), (8, 32)] {
            let plan = Plan { cores: 1, ..Plan::new(Level::Raid5, members, 65_536, 300) };
            let (statistics, rows, _) = stream_over(slowness, &plan, depth, 128 << 10, true);
            let whole = statistics.full_row_writes;
            assert!(
                whole * 100 >= rows * 95,
                "{members} members, depth {depth}, {slowness} times as slow: {whole} of {rows} \
                 rows: {statistics:?}"
            );
        }
    }
}

/// Rows of eight members are larger than what depth 2 has under way; with more they are filled.
/// Those that cannot be are soon not waited for any more.
#[test]
fn wide_rows_need_more_company() {
    let plan = Plan::new(Level::Raid5, 8, 65_536, 100);
    for depth in [4, 32] {
        let (statistics, rows, _) = stream(&plan, depth, 128 << 10, true);
        let whole = statistics.full_row_writes;
        assert!(whole * 100 >= rows * 95, "depth {depth}: {whole} of {rows}: {statistics:?}");
    }
    let (_, _, held_us) = stream(&plan, 2, 128 << 10, true);
    let (_, _, free_us) = stream(&plan, 2, 128 << 10, false);
    assert!(held_us < free_us * 3 / 2, "{held_us} µs instead of {free_us}");
}

#[test]
fn gathering_makes_streams_faster() {
    let plan = Plan::new(Level::Raid5, 5, 65_536, 120);
    let (_, _, held_us) = stream(&plan, 4, 128 << 10, true);
    let (_, _, free_us) = stream(&plan, 4, 128 << 10, false);
    println!("held {held_us} µs, not held {free_us} µs");
    assert!(held_us < free_us, "{held_us} µs instead of {free_us}");
}

/// A host that waits for each answer is never kept waiting for what it has not sent.
#[test]
fn a_stream_without_company_does_not_wait() {
    let plan = Plan { cores: 1, ..Plan::new(Level::Raid5, 4, 65_536, 30) };
    for gathers in [false, true] {
        let rig = Rig::new(&plan, 6);
        if gathers {
            rig.gather();
        }
        for at in (0..rig.capacity()).step_by(64 << 10) {
            rig.write(0, at, &[1; 64 << 10]).unwrap();
            assert_eq!(rig.arrays[0].stripe().rows.holds_begun(), 0);
        }
        rig.check_parity();
    }
}
