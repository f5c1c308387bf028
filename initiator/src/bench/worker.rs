//! Runs a workload: a thread per worker, and the controller's own queue on the caller's thread.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use super::report::{Report, Tally, Verification};
use super::stream::{Stream, Task, Window};
use super::workload::{Access, Phase, Progress, Workload};
use crate::{Controller, Error, Namespace};

/// How often the caller hears of progress.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// Time between looks at the clock and the phase while there is work, in steps.
const STEPS_PER_LOOK: u32 = 16;

/// What a worker tells.
enum Message {
    /// It is ready for the next phase.
    Ready,
    /// It has ended.
    Ended(Box<Result<Outcome, Error>>),
}

/// What a worker has measured.
struct Outcome {
    reads: Tally,
    writes: Tally,
    verification: Verification,
    sq_flow_control_disabled: bool,
}

/// Counters that workers show while they run.
#[derive(Default)]
struct Counters {
    operations: AtomicU64,
    phase: AtomicU8,
    /// Somebody has failed: everybody ends.
    stop: AtomicBool,
}

/// What all workers share.
struct Common {
    workload: Workload,
    namespace: Namespace,
    controller: Controller,
    counters: Counters,
    units: u64,
}

/// Runs a workload and measures it. Blocks the calling thread, which must not be inside a tokio
/// runtime; `progress` is called on it several times a second.
///
/// # Errors
/// A workload that makes no sense, a connection or operation that failed, or a verification that
/// found a difference.
pub fn run(workload: &Workload, progress: &mut dyn FnMut(&Progress)) -> Result<Report, Error> {
    workload.check()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(control(workload, progress))
}

async fn control(
    workload: &Workload,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, Error> {
    let options = &workload.options;
    let controller = Controller::connect(workload.address, &workload.subnqn, options).await?;
    let namespace = controller.namespace(workload.nsid).await?;
    let units = workload.units(&namespace)?;
    let granted = controller.set_number_of_queues(workload.connections).await?;
    if granted < workload.connections {
        let asked = workload.connections;
        return Err(Error::Unsupported(format!(
            "{asked} connections: the controller grants {granted} I/O queues"
        )));
    }
    let common = Arc::new(Common {
        workload: workload.clone(),
        namespace,
        controller,
        counters: Counters::default(),
        units,
    });
    let (messages, mut inbox) = mpsc::unbounded_channel();
    let (go, gate) = watch::channel(None);
    let mut threads = Vec::new();
    for worker in 0..workload.workers {
        let (common, messages, gate) = (common.clone(), messages.clone(), gate.clone());
        let thread = thread::Builder::new().name(format!("bench-{worker}"));
        threads.push(thread.spawn(move || {
            let outcome = work(worker, &common, gate, &messages);
            // The other side is gone only if it has failed itself.
            let _ = messages.send(Message::Ended(Box::new(outcome)));
        })?);
    }
    drop(messages);
    let outcomes = gather(&common, &mut inbox, &go, progress).await;
    // If one has failed the others end, too: at the gate, or under load.
    common.counters.stop.store(true, Ordering::Relaxed);
    drop(go);
    for thread in threads {
        if thread.join().is_err() {
            return Err(Error::Invalid("a worker thread panicked".into()));
        }
    }
    let outcomes = outcomes?;
    let (mut reads, mut writes) = (Tally::new(), Tally::new());
    let mut seen = Verification::default();
    for outcome in &outcomes {
        reads.add(&outcome.reads);
        writes.add(&outcome.writes);
        seen.checked_reads += outcome.verification.checked_reads;
        seen.checked_places += outcome.verification.checked_places;
    }
    let block_bytes = common.namespace.block_bytes;
    let disabled = outcomes.iter().all(|outcome| outcome.sq_flow_control_disabled);
    Ok(Report::new(workload, block_bytes, disabled, &reads, &writes, seen))
}

/// Opens the gate when all workers are ready, tells of progress, and collects outcomes.
async fn gather(
    common: &Common,
    inbox: &mut mpsc::UnboundedReceiver<Message>,
    go: &watch::Sender<Option<Instant>>,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Vec<Outcome>, Error> {
    let workers = usize::from(common.workload.workers);
    let (mut ready, mut outcomes) = (0, Vec::new());
    let mut phase = (Phase::Connecting, Instant::now());
    let mut ticks = tokio::time::interval(PROGRESS_PERIOD);
    while outcomes.len() < workers {
        tokio::select! {
            message = inbox.recv() => match message {
                Some(Message::Ready) => {
                    ready += 1;
                    if ready == workers {
                        go.send_replace(Some(Instant::now()));
                    }
                }
                Some(Message::Ended(outcome)) => outcomes.push((*outcome)?),
                None => return Err(Error::Invalid("a worker thread ended early".into())),
            },
            _ = ticks.tick() => {
                let now = phase_of(common.counters.phase.load(Ordering::Relaxed));
                if now != phase.0 {
                    phase = (now, Instant::now());
                }
                progress(&look(common, phase));
            }
        }
    }
    Ok(outcomes)
}

fn look(common: &Common, (phase, since): (Phase, Instant)) -> Progress {
    let operations = common.counters.operations.load(Ordering::Relaxed);
    let total = match phase {
        Phase::Warming => Some(common.workload.warm_up),
        Phase::Measuring => Some(common.workload.duration),
        _ => None,
    };
    Progress {
        phase,
        elapsed: since.elapsed(),
        total,
        operations,
        bytes: operations * u64::from(common.workload.io_bytes),
    }
}

fn phase_of(code: u8) -> Phase {
    match code {
        1 => Phase::Filling,
        2 => Phase::Warming,
        3 => Phase::Measuring,
        4 => Phase::Checking,
        _ => Phase::Connecting,
    }
}

/// A worker's thread, from the first connection to its numbers.
fn work(
    worker: u16,
    common: &Common,
    mut gate: watch::Receiver<Option<Instant>>,
    messages: &mpsc::UnboundedSender<Message>,
) -> Result<Outcome, Error> {
    pin(worker, &common.workload.cpus)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut crew = Crew { common, streams: connect(worker, common).await?, published: 0 };
        if common.workload.verify && common.workload.read_percent > 0 {
            crew.run(Task::Fill, Phase::Filling, None).await?;
        }
        let _ = messages.send(Message::Ready);
        let begin = gate.wait_for(Option::is_some).await.map_err(|_| Error::Closed)?;
        let begin = begin.unwrap_or_else(Instant::now);
        crew.load(begin).await?;
        if common.workload.verify {
            crew.run(Task::Check, Phase::Checking, None).await?;
        }
        Ok(crew.outcome())
    })
}

/// Pins the calling thread to its core, if cores are given.
fn pin(worker: u16, cpus: &[usize]) -> Result<(), Error> {
    let Some(cpu) = cpus.get(usize::from(worker) % cpus.len().max(1)) else {
        return Ok(());
    };
    let mut set = rustix::thread::CpuSet::new();
    if *cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(Error::Invalid(format!("there is no core {cpu}")));
    }
    set.set(*cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|errno| Error::Invalid(format!("cannot run on core {cpu}: {errno}")))
}

/// The units that connection `index` works on: its own part where order or verification need
/// it, else all.
fn part(workload: &Workload, units: u64, index: u64) -> Range<u64> {
    if !workload.verify && workload.access == Access::Random {
        return 0..units;
    }
    let count = u64::from(workload.connections);
    let bound = |n: u64| (u128::from(units) * u128::from(n) / u128::from(count)) as u64;
    bound(index)..bound(index + 1)
}

async fn connect(worker: u16, common: &Common) -> Result<Vec<Stream>, Error> {
    let workload = &common.workload;
    let mut streams = Vec::new();
    for index in (worker..workload.connections).step_by(usize::from(workload.workers)) {
        let queue = common.controller.engine(workload.queue_depth).await?;
        let index = u64::from(index);
        let units = part(workload, common.units, index);
        streams.push(Stream::new(queue, workload, &common.namespace, units, index));
    }
    Ok(streams)
}

/// A worker's connections.
struct Crew<'a> {
    common: &'a Common,
    streams: Vec<Stream>,
    /// Operations that the counters know of.
    published: u64,
}

impl Crew<'_> {
    fn outcome(self) -> Outcome {
        let mut outcome = Outcome {
            reads: Tally::new(),
            writes: Tally::new(),
            verification: Verification::default(),
            sq_flow_control_disabled: true,
        };
        for stream in &self.streams {
            outcome.reads.add(&stream.reads);
            outcome.writes.add(&stream.writes);
            outcome.sq_flow_control_disabled &= stream.queue().is_sq_flow_control_disabled();
            let seen = stream.verification();
            outcome.verification.checked_reads += seen.checked_reads;
            outcome.verification.checked_places += seen.checked_places;
        }
        outcome
    }

    fn show(&self, phase: Phase) {
        let code = match phase {
            Phase::Connecting => 0,
            Phase::Filling => 1,
            Phase::Warming => 2,
            Phase::Measuring => 3,
            Phase::Checking => 4,
        };
        self.common.counters.phase.store(code, Ordering::Relaxed);
    }

    fn publish(&mut self) {
        let ended: u64 = self.streams.iter().map(|stream| stream.ended).sum();
        let fresh = ended - self.published;
        self.common.counters.operations.fetch_add(fresh, Ordering::Relaxed);
        self.published = ended;
    }

    /// Warms up and measures.
    async fn load(&mut self, begin: Instant) -> Result<(), Error> {
        let workload = &self.common.workload;
        let measure = begin + workload.warm_up;
        let end = measure + workload.duration;
        self.run(Task::Load, Phase::Warming, Some(measure..end)).await
    }

    /// Runs a task to its end: load until the window closes, everything else until it is done.
    async fn run(&mut self, task: Task, phase: Phase, window: Window) -> Result<(), Error> {
        self.show(phase);
        self.streams.iter_mut().for_each(|stream| stream.begin(task));
        let mut completions = Vec::new();
        let mut idle_since = None;
        let mut steps = 0u32;
        loop {
            let mut arrived = false;
            for stream in &mut self.streams {
                arrived |= stream.step(&mut completions, &window)?;
            }
            steps = steps.wrapping_add(1);
            if !arrived || steps.is_multiple_of(STEPS_PER_LOOK) {
                self.publish();
                self.follow_clock(&window);
                if self.common.counters.stop.load(Ordering::Relaxed) {
                    return Err(Error::Closed);
                }
            }
            if self.streams.iter().all(Stream::is_done) {
                self.publish();
                return Ok(());
            }
            if arrived {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() < self.common.workload.spin {
                std::hint::spin_loop();
            } else {
                self.wait().await?;
                idle_since = None;
            }
        }
    }

    /// Shows that measuring has begun, and ends the load when it is over.
    fn follow_clock(&mut self, window: &Window) {
        let Some(window) = window else {
            return;
        };
        let now = Instant::now();
        if now >= window.end {
            self.streams.iter_mut().for_each(|stream| stream.begin(Task::Drain));
        } else if now >= window.start {
            self.show(Phase::Measuring);
        }
    }

    /// Sleeps until a connection has something to do, or a moment at most.
    async fn wait(&self) -> Result<(), Error> {
        let ready = poll_fn(|cx| {
            let mut any = false;
            for stream in &self.streams {
                match stream.queue().poll_ready(cx) {
                    Poll::Ready(Ok(())) => any = true,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {}
                }
            }
            if any { Poll::Ready(Ok(())) } else { Poll::Pending }
        });
        // The limit keeps the clock in view when nothing arrives.
        match tokio::time::timeout(PROGRESS_PERIOD, ready).await {
            Ok(outcome) => outcome,
            Err(_) => Ok(()),
        }
    }
}
