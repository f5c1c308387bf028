//! One connection of a run: which operation comes next, and what its end means.
//!
//! The volume, or the part that is used, is divided into *units* of one operation's size. A
//! connection that verifies has units of its own and remembers the generation last written to
//! each; a unit with a write under way gets no second operation, so that each read has exactly
//! one right answer.

use std::ops::Range;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use raidfabric_protocol::nvme::io::{BlockRange, IoCommand, Prinfo};

use super::pattern::{self, Stamp, mix};
use super::report::{Tally, Verification};
use super::workload::{Access, Workload};
use crate::queue::{Completion, Data, Queue};
use crate::{Error, Namespace};

/// Tries to find a unit without an operation under way.
const TRIES: usize = 32;

/// What a connection does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Write every unit once.
    Fill,
    /// The workload.
    Load,
    /// Read back every unit that was written.
    Check,
    /// Nothing more.
    Drain,
}

/// An operation under way.
#[derive(Debug)]
struct Operation {
    started: Instant,
    unit: u64,
    is_read: bool,
    /// Reused from operation to operation; here while the operation's slot is free.
    buffer: BytesMut,
}

/// What verification remembers.
#[derive(Debug)]
struct Memory {
    /// By unit, from the range's start: generation last written; 0 if never.
    generations: Vec<u32>,
    /// By unit: an operation is under way.
    busy: Vec<bool>,
    run: u64,
    seen: Verification,
}

/// When measuring began and ends.
pub(super) type Window = Option<Range<Instant>>;

/// One connection of a run.
#[derive(Debug)]
pub(super) struct Stream {
    queue: Queue,
    nsid: u32,
    block_bytes: u32,
    io_bytes: u32,
    read_percent: u8,
    access: Access,
    units: Range<u64>,
    /// Where sequential access, filling and checking are.
    cursor: u64,
    random: u64,
    task: Task,
    operations: Vec<Operation>,
    free: Vec<u32>,
    /// What is written without verification.
    payload: Bytes,
    memory: Option<Memory>,
    pub(super) reads: Tally,
    pub(super) writes: Tally,
    /// Operations that have ended, in all phases.
    pub(super) ended: u64,
}

impl Stream {
    /// A connection with its own queue. `units` is what it works on; `index` tells connections
    /// apart.
    pub(super) fn new(
        queue: Queue,
        workload: &Workload,
        namespace: &Namespace,
        units: Range<u64>,
        index: u64,
    ) -> Self {
        let depth = queue.free_slots();
        let run = mix(workload.seed ^ mix(index.wrapping_add(1)));
        let count = (units.end - units.start) as usize;
        let memory = workload.verify.then(|| Memory {
            generations: vec![0; count],
            busy: vec![false; count],
            run,
            seen: Verification::default(),
        });
        let io = workload.io_bytes as usize;
        let buffer_bytes = if workload.verify { io } else { 0 };
        let now = Instant::now();
        let idle = || Operation {
            started: now,
            unit: 0,
            is_read: true,
            buffer: BytesMut::zeroed(buffer_bytes),
        };
        let mut payload = BytesMut::zeroed(io);
        let stamp = Stamp { lba: 0, generation: 0, run };
        pattern::fill(stamp, namespace.block_bytes as usize, &mut payload);
        Self {
            queue,
            nsid: namespace.nsid,
            block_bytes: namespace.block_bytes,
            io_bytes: workload.io_bytes,
            read_percent: workload.read_percent,
            access: workload.access,
            cursor: units.start,
            units,
            random: run | 1,
            task: Task::Drain,
            operations: (0..depth).map(|_| idle()).collect(),
            free: (0..depth as u32).rev().collect(),
            payload: payload.freeze(),
            memory,
            reads: Tally::new(),
            writes: Tally::new(),
            ended: 0,
        }
    }

    /// Begins another task; operations under way go on.
    pub(super) fn begin(&mut self, task: Task) {
        self.task = task;
        self.cursor = self.units.start;
    }

    /// The connection.
    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Whether the task has come to its end, with all its operations.
    pub(super) fn is_done(&self) -> bool {
        let exhausted = match self.task {
            Task::Fill | Task::Check => self.cursor >= self.units.end,
            Task::Load => false,
            Task::Drain => true,
        };
        exhausted && self.queue.outstanding() == 0
    }

    /// What verification has seen.
    pub(super) fn verification(&self) -> Verification {
        self.memory.as_ref().map(|memory| memory.seen).unwrap_or_default()
    }

    /// Submits operations while there is room, sends, receives, and accounts for what has ended.
    /// Returns whether anything arrived.
    ///
    /// # Errors
    /// The connection's, an operation's status, or a verification that failed.
    pub(super) fn step(
        &mut self,
        completions: &mut Vec<Completion>,
        window: &Window,
    ) -> Result<bool, Error> {
        if !self.free.is_empty() {
            self.fill(Instant::now())?;
        }
        let progress = self.queue.step(completions)?;
        if !completions.is_empty() {
            let now = Instant::now();
            let counts = window.as_ref().is_some_and(|window| window.contains(&now));
            for completion in completions.drain(..) {
                self.complete(completion, now, counts)?;
            }
        }
        Ok(progress.received_bytes > 0)
    }

    fn fill(&mut self, now: Instant) -> Result<(), Error> {
        while let Some(&at) = self.free.last() {
            let Some((unit, is_read)) = self.next() else {
                return Ok(());
            };
            self.free.pop();
            self.submit(at, unit, is_read, now)?;
        }
        Ok(())
    }

    /// The next operation of the task; `None` if there is none now.
    fn next(&mut self) -> Option<(u64, bool)> {
        match self.task {
            Task::Drain => None,
            Task::Fill => Some((self.advance()?, false)),
            Task::Check => loop {
                let unit = self.advance()?;
                if self.generation(unit) > 0 {
                    return Some((unit, true));
                }
            },
            Task::Load => {
                let is_read = match self.read_percent {
                    0 => false,
                    100 => true,
                    percent => self.random_below(100) < u64::from(percent),
                };
                for _ in 0..TRIES {
                    let unit = self.choose();
                    if !self.is_busy(unit) {
                        return Some((unit, is_read));
                    }
                }
                None
            }
        }
    }

    /// The next unit in order, once through.
    fn advance(&mut self) -> Option<u64> {
        let unit = self.cursor;
        if unit >= self.units.end {
            return None;
        }
        self.cursor += 1;
        Some(unit)
    }

    fn choose(&mut self) -> u64 {
        match self.access {
            Access::Random => {
                let count = self.units.end - self.units.start;
                self.units.start + self.random_below(count)
            }
            Access::Sequential => self.advance().unwrap_or_else(|| {
                self.cursor = self.units.start + 1;
                self.units.start
            }),
        }
    }

    /// A random number below `limit`, evenly enough for offsets.
    fn random_below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        ((u128::from(mix(self.random)) * u128::from(limit)) >> 64) as u64
    }

    fn offset(&self, unit: u64) -> usize {
        (unit - self.units.start) as usize
    }

    fn generation(&self, unit: u64) -> u32 {
        let memory = self.memory.as_ref();
        memory.and_then(|memory| memory.generations.get(self.offset(unit))).copied().unwrap_or(0)
    }

    fn is_busy(&self, unit: u64) -> bool {
        let memory = self.memory.as_ref();
        memory.and_then(|memory| memory.busy.get(self.offset(unit))).copied().unwrap_or(false)
    }

    fn set_busy(&mut self, unit: u64, busy: bool) {
        let at = self.offset(unit);
        if let Some(place) = self.memory.as_mut().and_then(|memory| memory.busy.get_mut(at)) {
            *place = busy;
        }
    }

    fn stamp(&self, unit: u64, generation: u32) -> Option<Stamp> {
        let run = self.memory.as_ref()?.run;
        Some(Stamp { lba: self.lba(unit), generation, run })
    }

    fn lba(&self, unit: u64) -> u64 {
        unit * u64::from(self.io_bytes / self.block_bytes)
    }

    fn submit(&mut self, at: u32, unit: u64, is_read: bool, now: Instant) -> Result<(), Error> {
        let range = BlockRange {
            nsid: self.nsid,
            slba: self.lba(unit),
            blocks: self.io_bytes / self.block_bytes,
            fua: false,
            limited_retry: false,
            prinfo: Prinfo::default(),
            storage_tag_check: false,
        };
        let command = match is_read {
            true => IoCommand::Read(range),
            false => IoCommand::Write { range, directive: 0 },
        };
        let stamp = self.stamp(unit, self.generation(unit).wrapping_add(1).max(1));
        let Some(operation) = self.operations.get_mut(at as usize) else {
            return Ok(());
        };
        operation.started = now;
        operation.unit = unit;
        operation.is_read = is_read;
        let data = match (stamp, is_read) {
            (None, true) => Data::Discard(self.io_bytes),
            (None, false) => Data::Write(self.payload.clone()),
            (Some(_), true) => Data::Read(core::mem::take(&mut operation.buffer)),
            (Some(stamp), false) => {
                let mut buffer = core::mem::take(&mut operation.buffer);
                pattern::fill(stamp, self.block_bytes as usize, &mut buffer);
                Data::Write(buffer.freeze())
            }
        };
        self.set_busy(unit, true);
        self.queue.submit(command.to_sqe(0), data, u64::from(at))
    }

    fn complete(&mut self, done: Completion, now: Instant, counts: bool) -> Result<(), Error> {
        let at = done.token as u32;
        let Some(operation) = self.operations.get_mut(at as usize) else {
            return Ok(());
        };
        let (unit, is_read) = (operation.unit, operation.is_read);
        let latency = now.saturating_duration_since(operation.started);
        done.check(if is_read { "Read" } else { "Write" })?;
        self.free.push(at);
        self.ended += 1;
        if counts {
            let tally = if is_read { &mut self.reads } else { &mut self.writes };
            tally.record(latency);
        }
        if self.memory.is_some() {
            self.set_busy(unit, false);
            self.verify(at, unit, is_read, done.data)?;
        }
        Ok(())
    }

    /// Checks what was read, remembers what was written, and takes the buffer back.
    fn verify(&mut self, at: u32, unit: u64, is_read: bool, data: Data) -> Result<(), Error> {
        let offset = self.offset(unit);
        let generation = self.generation(unit);
        let buffer = match data {
            Data::Read(buffer) => {
                if generation > 0
                    && let Some(stamp) = self.stamp(unit, generation)
                {
                    pattern::check(stamp, self.block_bytes as usize, &buffer)?;
                    self.count_check();
                }
                buffer
            }
            // Sent and answered: nobody else holds it, and it is taken back without a copy.
            Data::Write(payload) => payload.into(),
            _ => BytesMut::new(),
        };
        if !is_read
            && let Some(place) =
                self.memory.as_mut().and_then(|memory| memory.generations.get_mut(offset))
        {
            *place = generation.wrapping_add(1).max(1);
        }
        if let Some(operation) = self.operations.get_mut(at as usize) {
            operation.buffer = buffer;
        }
        Ok(())
    }

    fn count_check(&mut self) {
        let checking = self.task == Task::Check;
        if let Some(memory) = &mut self.memory {
            match checking {
                true => memory.seen.checked_places += 1,
                false => memory.seen.checked_reads += 1,
            }
        }
    }
}
