//! Loads: hosts that each keep one request under way, and what is measured of them in a window of
//! time.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use raidfabric_raid::array::Timer;
use raidfabric_raid::buffer::SharedBuffer;
use rustix::time::{ClockId, clock_gettime};
use tokio::task::spawn_local;

use super::rig::{Clock, Core, Random, Volume};

/// What a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// Seven reads for three writes.
    Mixed,
}

/// Where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Random,
    Sequential,
}

#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub access: Access,
    pub order: Order,
    pub block_bytes: u64,
    /// Requests under way, on all cores together.
    pub depth: usize,
}

/// When it is measured.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub from: Duration,
    pub to: Duration,
}

impl Window {
    /// A window that begins after a warm-up.
    pub fn after(warm_up: Duration, length: Duration) -> Self {
        let from = Clock.now() + warm_up;
        Self { from, to: from + length }
    }

    pub fn seconds(&self) -> f64 {
        (self.to - self.from).as_secs_f64()
    }
}

/// What was measured, on one core or on several.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub operations: u64,
    pub bytes: u64,
    /// Written or read from the start of the load to its end.
    pub bytes_of_all: u64,
    /// Of the cores' threads, hosts and drives included.
    pub cpu_seconds: f64,
    pub latencies: Vec<Duration>,
}

impl Sample {
    pub fn sum(samples: Vec<Self>) -> Self {
        samples.into_iter().fold(Self::default(), |mut sum, sample| {
            sum.operations += sample.operations;
            sum.bytes += sample.bytes;
            sum.bytes_of_all += sample.bytes_of_all;
            sum.cpu_seconds += sample.cpu_seconds;
            sum.latencies.extend(sample.latencies);
            sum
        })
    }

    pub fn p99(&mut self) -> Duration {
        self.latencies.sort_unstable();
        let at = self.latencies.len() * 99 / 100;
        self.latencies.get(at).copied().unwrap_or_default()
    }
}

/// CPU time of this thread so far.
pub fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

async fn sleep_until(at: Duration) {
    Clock.sleep(at.saturating_sub(Clock.now())).await;
}

/// Loads a core's part until the end of the window, and waits for what is under way then.
pub async fn load<V: Volume + 'static>(core: &Rc<Core<V>>, load: Load, window: Window) -> Sample {
    let mut data = core.pool.allocate(load.block_bytes as usize).expect("memory for a request");
    data.fill(0x5a);
    let data = data.freeze();
    let sample = Rc::new(RefCell::new(Sample::default()));
    let hosts: Vec<_> = (0..load.depth.div_ceil(core.cores))
        .map(|_| {
            let (core, data, sample) = (Rc::clone(core), data.clone(), Rc::clone(&sample));
            let random = core.random();
            spawn_local(host(core, load, window, random, data, sample))
        })
        .collect();
    sleep_until(window.from).await;
    let before = cpu_seconds();
    sleep_until(window.to).await;
    let cpu_seconds = cpu_seconds() - before;
    for host in hosts {
        host.await.expect("the host ends");
    }
    Sample { cpu_seconds, ..sample.take() }
}

async fn host<V: Volume>(
    core: Rc<Core<V>>,
    load: Load,
    window: Window,
    mut random: Random,
    data: SharedBuffer,
    sample: Rc<RefCell<Sample>>,
) {
    let blocks = core.volume.capacity_bytes() / load.block_bytes;
    loop {
        let began = Clock.now();
        if began >= window.to {
            break;
        }
        let block = match load.order {
            Order::Random => random.below(blocks),
            Order::Sequential => core.cursor.fetch_add(1, Ordering::Relaxed) % blocks,
        };
        let is_read = match load.access {
            Access::Read => true,
            Access::Write => false,
            Access::Mixed => random.below(10) < 7,
        };
        let offset_bytes = block * load.block_bytes;
        if is_read {
            let buffer = core.pool.allocate(load.block_bytes as usize).expect("memory to read");
            drop(core.volume.read(offset_bytes, buffer).await);
        } else {
            core.volume.write(offset_bytes, data.clone()).await;
        }
        let ended = Clock.now();
        let mut sample = sample.borrow_mut();
        sample.bytes_of_all += load.block_bytes;
        if (window.from..window.to).contains(&ended) {
            sample.operations += 1;
            sample.bytes += load.block_bytes;
            sample.latencies.push(ended - began);
        }
    }
}
