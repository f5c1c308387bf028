//! What the engine makes of members with a fixed speed: the experiments, one function for each kind.
//! Each answers what it measured in one run; `figures` makes shares of it.

use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use raidfabric_raid::array::{Array, IntentPlaces, LogPlace, Timer};
use raidfabric_raid::geometry::Level;
use raidfabric_raid::throttle::Limits;
use tokio::task::spawn_local;

use super::load::{Access, Load, Order, Sample, Window, cpu_seconds, load};
use super::rig::{Clock, Core, Policy, Slow, SlowDrive, Spec, run, run_bare};

/// How fast a member is. As with NVMe drives, it moves ten times as many bytes with large requests
/// as with 4 KiB.
pub const MEMBER: Limits = Limits {
    latency: Duration::from_millis(1),
    bytes_per_second: 20 << 20,
    operations_per_second: 3000,
    parallelism: 64,
};

/// Requests under way for each member.
const DEPTH: usize = 32;

/// The size of a member.
const MEMBER_BYTES: u64 = 64 << 20;

/// What a host's Write Zeroes is cut into by Linux, for blocks of 512 bytes.
const ZERO_PIECE_BYTES: u64 = 32 << 20;

/// How many of these it has under way.
const ZERO_PIECES_AT_ONCE: usize = 4;

/// How long runs are.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub warm_up: Duration,
    pub length: Duration,
}

/// What one run has shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// Operations, bytes, or rows per second; or a ratio.
    pub value: f64,
    /// CPU time of all cores, as a share of one.
    pub cpu: f64,
}

impl Measured {
    fn of(sample: &Sample, window: &Window, value: f64) -> Self {
        Self { value, cpu: sample.cpu_seconds / window.seconds() }
    }
}

/// Something to measure.
#[derive(Clone, Copy, Debug)]
pub enum Experiment {
    /// A bare member: operations per second.
    Bare(Load),
    /// An array: operations per second.
    Operations(Load),
    /// An array: share of rows that were written whole.
    WholeRows(Load),
    /// Bytes per second with which a member is filled.
    Rebuild,
    /// How much higher the 99th percentile of others is while the volume is zeroed or deallocated.
    Discard { deallocate: bool, depth: usize },
}

/// A load with the usual depth for so many members.
pub fn random(access: Access, members: usize) -> Experiment {
    let load = Load { access, order: Order::Random, block_bytes: 4096, depth: DEPTH * members };
    Experiment::Operations(load)
}

pub fn sequential(access: Access, block_bytes: u64, depth: usize) -> Load {
    Load { access, order: Order::Sequential, block_bytes, depth }
}

/// What a bare member is measured with.
pub fn bare(access: Access, order: Order, block_bytes: u64) -> Experiment {
    Experiment::Bare(Load { access, order, block_bytes, depth: DEPTH })
}

/// Writes of whole rows, as many as occupy each member with the usual depth.
pub fn whole_rows(spec: &Spec) -> Experiment {
    let block_bytes = spec.geometry().row_data_bytes();
    Experiment::Operations(sequential(Access::Write, block_bytes, DEPTH))
}

/// The array of an experiment.
pub fn spec(level: Level, members: usize, policy: Policy, cores: usize) -> Spec {
    Spec { level, members, policy, missing: None, member_bytes: MEMBER_BYTES, cores }
}

impl Experiment {
    pub fn run(&self, spec: &Spec, times: Times) -> Measured {
        match *self {
            Self::Bare(load) => bare_member(load, times),
            Self::Operations(load) => operations(spec, load, times),
            Self::WholeRows(load) => rows_written_whole(spec, load, times),
            Self::Rebuild => rebuild(spec),
            Self::Discard { deallocate, depth } => discard(spec, deallocate, depth, times),
        }
    }
}

fn drives(spec: &Spec) -> Vec<Slow> {
    (0..spec.members).map(|_| Slow::new(spec.member_bytes, MEMBER)).collect()
}

fn bare_member(what: Load, times: Times) -> Measured {
    let drive = Slow::new(MEMBER_BYTES, MEMBER);
    run_bare(drive.handle(), async |core| {
        let window = Window::after(times.warm_up, times.length);
        let sample = load(&core, what, window).await;
        Measured::of(&sample, &window, sample.operations as f64 / window.seconds())
    })
}

fn operations(spec: &Spec, what: Load, times: Times) -> Measured {
    let window = Window::after(times.warm_up, times.length);
    let samples = run(spec, &drives(spec), async |core| load(&core, what, window).await);
    let sample = Sample::sum(samples);
    Measured::of(&sample, &window, sample.operations as f64 / window.seconds())
}

fn rows_written_whole(spec: &Spec, what: Load, times: Times) -> Measured {
    let window = Window::after(times.warm_up, times.length);
    let samples = run(spec, &drives(spec), async |core| {
        let sample = load(&core, what, window).await;
        (sample, core.volume.shared().stripe_statistics())
    });
    let whole = samples.iter().map(|(_, statistics)| statistics.full_row_writes).max();
    let bytes_of_rows = |rows: u64| rows * spec.geometry().row_data_bytes();
    let (samples, _): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
    let sample = Sample::sum(samples);
    // All that was written from the start on, the warm-up included.
    let share = bytes_of_rows(whole.unwrap_or(0)) as f64 / sample.bytes_of_all as f64;
    Measured::of(&sample, &window, share)
}

fn rebuild(spec: &Spec) -> Measured {
    let slot = 1;
    let spec = Spec { missing: Some(slot), ..*spec };
    let drives = drives(&spec);
    let samples = run(&spec, &drives, async |core| {
        let shared = core.volume.shared();
        let fits = core.volume.set_drive(slot, drives[slot].handle(), spec.data_offset_bytes());
        fits.expect("the drive fits");
        let (began, cpu) = (Clock.now(), cpu_seconds());
        if core.is_first() {
            let places = intent_places(&spec);
            core.volume.admit_drive(slot, places).await.expect("the new drive writes");
            assert!(shared.add_member(slot), "the slot is empty");
        }
        while shared.rebuilds_completed() == 0 {
            Clock.sleep(Duration::from_millis(1)).await;
        }
        ((Clock.now() - began).as_secs_f64(), cpu_seconds() - cpu)
    });
    let took = samples.iter().map(|(took, _)| *took).fold(0.0, f64::max);
    let cpu: f64 = samples.iter().map(|(_, cpu)| cpu).sum();
    let bytes = spec.geometry().component_bytes() as f64;
    Measured { value: bytes / took, cpu: cpu / took }
}

fn intent_places(spec: &Spec) -> IntentPlaces {
    let complete = Spec { missing: None, ..*spec };
    let intent = complete.intent();
    let regions = intent.regions.and_then(|regions| regions.offsets_bytes[0]);
    let log: Option<LogPlace> = intent.log.and_then(|log| log.places[0]);
    IntentPlaces { regions_offset_bytes: regions, log }
}

/// A mixed load, first alone, then while one host zeroes or deallocates all of the volume again and
/// again.
fn discard(spec: &Spec, deallocate: bool, depth: usize, times: Times) -> Measured {
    let what = Load { access: Access::Mixed, order: Order::Random, block_bytes: 4096, depth };
    // Percentiles need many.
    let length = 2 * times.length;
    let alone = Window::after(times.warm_up, length);
    let beside = Window { from: alone.to + times.warm_up, to: alone.to + times.warm_up + length };
    let samples = run(spec, &drives(spec), async |core| {
        let first = load(&core, what, alone).await;
        let discards = core.is_first().then(|| {
            let core = Rc::clone(&core);
            spawn_local(discard_until(core, deallocate, beside.to))
        });
        let second = load(&core, what, beside).await;
        let rounds = match discards {
            Some(discards) => discards.await.expect("the discards end"),
            None => 0,
        };
        (first, second, rounds)
    });
    let rounds: u64 = samples.iter().map(|(.., rounds)| rounds).sum();
    assert!(rounds > 0, "nothing was discarded beside the load");
    let mut first = Sample::sum(samples.iter().map(|(first, ..)| first.clone()).collect());
    let mut second = Sample::sum(samples.iter().map(|(_, second, _)| second.clone()).collect());
    let (before, during) = (first.p99().as_secs_f64(), second.p99().as_secs_f64());
    Measured::of(&second, &beside, during / before)
}

/// Answers how often the whole volume was done.
async fn discard_until(core: Rc<Core<Array<SlowDrive>>>, deallocate: bool, end: Duration) -> u64 {
    let capacity = core.volume.geometry().capacity_bytes();
    let mut rounds = 0;
    while Clock.now() < end {
        if deallocate {
            core.volume.deallocate(0, capacity).await.expect("the array deallocates");
        } else {
            let mut at = 0;
            while at < capacity {
                let pieces = (0..ZERO_PIECES_AT_ONCE as u64)
                    .map(|piece| at + piece * ZERO_PIECE_BYTES)
                    .filter(|&from| from < capacity)
                    .map(|from| {
                        let len = ZERO_PIECE_BYTES.min(capacity - from);
                        core.volume.write_zeroes(from, len, true, false)
                    });
                for result in join_all(pieces).await {
                    result.expect("the array zeroes");
                }
                at += ZERO_PIECES_AT_ONCE as u64 * ZERO_PIECE_BYTES;
            }
        }
        rounds += 1;
    }
    rounds
}
