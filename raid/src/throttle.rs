//! A drive that is as slow as one wishes: any other drive behind a fixed latency, bandwidth, rate of
//! operations and parallelism. For benchmarks, whose figures are then those of the engine's schedule
//! and not of the machine, and for trying out what a slow drive does to an array.
//!
//! **The model** ([`Queue`]) is a queue in front of a server:
//! * at most `parallelism` operations are in the drive at once; the others wait, in order;
//! * those in the drive pass through one stage, in order, in which each takes the longer of
//!   `1 / operations_per_second` and `its bytes / bytes_per_second`;
//! * it ends `latency` after that stage.
//!
//! So the drive reaches, whichever is least, its rate of operations, its bandwidth, or
//! `parallelism / latency`. Reads, writes and zeroing cost the same, but zeroing transfers no bytes:
//! it is one operation however long it is, as on drives that only note it. A flush is an operation
//! without bytes, too, and ends after all that came before it. Whether a write is FUA does not
//! matter.
//!
//! When an operation ends is computed when it comes; then it waits for that moment, on the timer
//! that it was given, and only then is it done. A timer that wakes late makes operations longer
//! but not the drive slower, as long as enough of them are under way.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::array::Timer;
use crate::buffer::{Buffer, SharedBuffer};
use crate::drive::{Drive, DriveError, ReadFailure};

/// How slow a drive is. See the file's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What every operation takes at least.
    pub latency: Duration,
    /// Bandwidth, of reads and writes together; at least 1.
    pub bytes_per_second: u64,
    /// Operations of any kind per second; at least 1.
    pub operations_per_second: u64,
    /// Operations that are in the drive at once; at least 1.
    pub parallelism: usize,
}

impl Limits {
    /// What an operation of `len_bytes` occupies the drive for.
    fn cost(&self, len_bytes: u64) -> Duration {
        let per = |count: u64, rate: u64| {
            let nanos = u128::from(count) * 1_000_000_000 / u128::from(rate.max(1));
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        };
        per(1, self.operations_per_second).max(per(len_bytes, self.bytes_per_second))
    }

    /// Operations of `len_bytes` per second that the drive reaches with enough of them under way.
    pub fn rate(&self, len_bytes: u64) -> f64 {
        let cost = self.cost(len_bytes);
        let by_latency = (self.latency + cost).as_secs_f64() / self.parallelism.max(1) as f64;
        1.0 / cost.as_secs_f64().max(by_latency)
    }
}

/// When the operations of a throttled drive end: a pure model, see the file's head.
#[derive(Debug)]
pub struct Queue {
    limits: Limits,
    /// When those in the drive end.
    ends: BinaryHeap<Reverse<Duration>>,
    /// When the stage is free.
    stage_free: Duration,
    last_end: Duration,
}

impl Queue {
    /// An idle drive.
    pub fn new(limits: Limits) -> Self {
        let ends = BinaryHeap::with_capacity(limits.parallelism.max(1));
        Self { limits, ends, stage_free: Duration::ZERO, last_end: Duration::ZERO }
    }

    /// An operation of `len_bytes` comes, no earlier than those before it. Answers when it ends.
    pub fn handle_operation(&mut self, now: Duration, len_bytes: u64) -> Duration {
        while self.ends.peek().is_some_and(|&Reverse(end)| end <= now) {
            self.ends.pop();
        }
        let mut begin = now;
        if self.ends.len() >= self.limits.parallelism.max(1)
            && let Some(Reverse(end)) = self.ends.pop()
        {
            begin = end;
        }
        self.stage_free = self.stage_free.max(begin) + self.limits.cost(len_bytes);
        let end = self.stage_free + self.limits.latency;
        self.ends.push(Reverse(end));
        self.last_end = self.last_end.max(end);
        end
    }

    /// A flush comes. Answers when it ends.
    pub fn handle_flush(&mut self, now: Duration) -> Duration {
        let end = self.handle_operation(now, 0);
        end.max(self.last_end)
    }
}

/// A handle on a throttled drive. Handles of all cores share its queue, and their timers the time
/// that they count from.
pub struct ThrottledDrive<D, T> {
    drive: D,
    queue: Arc<Mutex<Queue>>,
    timer: T,
}

impl<D: Drive, T: Timer> ThrottledDrive<D, T> {
    /// A handle on `drive`, whose handles share `queue`.
    pub fn new(drive: D, queue: Arc<Mutex<Queue>>, timer: T) -> Self {
        Self { drive, queue, timer }
    }

    async fn wait(&self, end: impl FnOnce(&mut Queue, Duration) -> Duration) {
        let now = self.timer.now();
        // The queue is whole at any point where its code could panic.
        let end = end(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner), now);
        self.timer.sleep(end.saturating_sub(now)).await;
    }

    async fn pass(&self, len_bytes: u64) {
        self.wait(|queue, now| queue.handle_operation(now, len_bytes)).await;
    }
}

impl<D: Drive, T: Timer> Drive for ThrottledDrive<D, T> {
    async fn read(&self, offset_bytes: u64, buffer: Buffer) -> Result<Buffer, ReadFailure> {
        self.pass(buffer.len() as u64).await;
        self.drive.read(offset_bytes, buffer).await
    }

    async fn write(
        &self,
        offset_bytes: u64,
        data: SharedBuffer,
        fua: bool,
    ) -> Result<(), DriveError> {
        self.pass(data.len() as u64).await;
        self.drive.write(offset_bytes, data, fua).await
    }

    async fn flush(&self) -> Result<(), DriveError> {
        self.wait(Queue::handle_flush).await;
        self.drive.flush().await
    }

    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        deallocate: bool,
    ) -> Result<(), DriveError> {
        self.pass(0).await;
        self.drive.write_zeroes(offset_bytes, len_bytes, deallocate).await
    }

    fn has_volatile_cache(&self) -> bool {
        self.drive.has_volatile_cache()
    }

    fn size_bytes(&self) -> u64 {
        self.drive.size_bytes()
    }

    fn block_size_bytes(&self) -> u32 {
        self.drive.block_size_bytes()
    }

    fn late_operations(&self) -> usize {
        self.drive.late_operations()
    }

    fn give_up(&self) {
        self.drive.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Pool;
    use crate::memory::MemoryDrive;
    use futures_util::FutureExt;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::rc::Rc;

    const MIB: u64 = 1 << 20;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn limits(latency: u64, operations: u64, mib: u64, parallelism: usize) -> Limits {
        Limits {
            latency: us(latency),
            bytes_per_second: mib * MIB,
            operations_per_second: operations,
            parallelism,
        }
    }

    #[test]
    fn a_single_operation_takes_its_latency_and_its_share_of_the_rate() {
        let mut queue = Queue::new(limits(100, 10_000, 64, 8));
        // Bound by the rate of operations.
        assert_eq!(queue.handle_operation(us(1000), 512), us(1200));
        // Idle again; bound by bandwidth.
        assert_eq!(queue.handle_operation(us(5000), MIB), us(5000 + 15_625 + 100));
    }

    #[test]
    fn operations_under_way_share_the_stage_and_overlap_in_latency() {
        let mut queue = Queue::new(limits(1000, 10_000, 64, 8));
        let ends: Vec<_> = (0..4).map(|_| queue.handle_operation(us(0), 4096)).collect();
        assert_eq!(ends, [us(1100), us(1200), us(1300), us(1400)]);
    }

    #[test]
    fn no_more_are_in_the_drive_than_it_can_take() {
        let mut queue = Queue::new(limits(1000, 1_000_000, 4096, 2));
        let ends: Vec<_> = (0..6).map(|_| queue.handle_operation(us(0), 512)).collect();
        // Two by two, each pair when the one before it is done.
        assert_eq!(ends, [us(1001), us(1002), us(2002), us(2003), us(3003), us(3004)]);
    }

    #[test]
    fn a_flush_ends_after_everything_before_it() {
        let mut queue = Queue::new(limits(1000, 1000, 64, 1));
        let write = queue.handle_operation(us(0), MIB);
        let flush = queue.handle_flush(us(1));
        assert!(flush >= write + us(1000), "{flush:?} after {write:?}");
        // It does not stop what comes behind it any longer than another operation would.
        assert_eq!(queue.handle_operation(flush, 0), flush + us(2000));
    }

    #[test]
    fn the_rate_is_the_least_of_the_three() {
        assert_eq!(limits(0, 4000, 25, 32).rate(4096).round(), 4000.0);
        assert_eq!(limits(0, 4000, 25, 32).rate(128 << 10).round(), 200.0);
        // Two at once, each in the drive for a millisecond.
        assert_eq!(limits(750, 4000, 25, 2).rate(4096).round(), 2000.0);
    }

    proptest! {
        /// A closed load of enough depth gets what `rate` says, and no load more.
        #[test]
        fn closed_loads_reach_the_rate(
            latency in 1u64..5000, operations in 100u64..100_000, mib in 1u64..1000,
            parallelism in 1usize..64, blocks in 1u64..64,
        ) {
            let limits = limits(latency, operations, mib, parallelism);
            let (mut queue, len, depth) = (Queue::new(limits), blocks * 4096, parallelism + 1);
            let mut under_way: BinaryHeap<_> =
                (0..depth).map(|_| Reverse(queue.handle_operation(us(0), len))).collect();
            let count = 2000;
            let mut end = us(0);
            for _ in 0..count {
                let Reverse(ended) = under_way.pop().unwrap();
                prop_assert!(ended >= end, "they end in order");
                end = ended;
                under_way.push(Reverse(queue.handle_operation(end, len)));
            }
            let rate = f64::from(count) / end.as_secs_f64();
            let share = rate / limits.rate(len);
            // The beginning takes its latency, and the first ones come all at once.
            let slack = depth as f64 / f64::from(count) * 2.0 + 0.001;
            prop_assert!((1.0 - slack..=1.0 + slack).contains(&share), "{share}");
        }
    }

    /// Time that jumps to the end of whatever is slept for.
    #[derive(Clone, Default)]
    struct Jumps(Rc<Cell<Duration>>);

    impl Timer for Jumps {
        fn now(&self) -> Duration {
            self.0.get()
        }

        async fn sleep(&self, time: Duration) {
            self.0.set(self.0.get() + time);
        }
    }

    #[test]
    fn it_is_the_drive_behind_it_in_all_but_time() {
        let timer = Jumps::default();
        let memory = MemoryDrive::with_block_size(MIB, 4096);
        let queue = Arc::new(Mutex::new(Queue::new(limits(100, 10_000, 64, 4))));
        let drive = ThrottledDrive::new(memory.clone(), queue, timer.clone());
        assert_eq!((drive.size_bytes(), drive.block_size_bytes()), (MIB, 4096));
        assert!(!drive.has_volatile_cache());
        let pool = Pool::new(1 << 16, 1 << 16).unwrap();
        let buffer = |byte| {
            let mut buffer = pool.allocate(4096).unwrap();
            buffer.fill(byte);
            buffer
        };
        drive.write(8192, buffer(7).freeze(), true).now_or_never().unwrap().unwrap();
        assert_eq!(timer.now(), us(200));
        let read = drive.read(8192, buffer(0)).now_or_never().unwrap().unwrap();
        assert_eq!((&read[..], timer.now()), (&[7; 4096][..], us(400)));
        drive.flush().now_or_never().unwrap().unwrap();
        assert_eq!(timer.now(), us(600));
        drive.write_zeroes(0, MIB, true).now_or_never().unwrap().unwrap();
        assert_eq!(timer.now(), us(800));
        let mut bytes = [1; 4096];
        memory.read_now(8192, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4096]);
        let beyond = drive.read(MIB, buffer(0)).now_or_never().unwrap().unwrap_err();
        assert_eq!(beyond.error, DriveError::OutOfRange);
    }
}
