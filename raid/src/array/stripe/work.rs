//! What a pass over a row works on, and the arithmetic of it; no I/O.
//!
//! A [`Workspace`] holds the writes of the pass, cut into *segments* (bytes of one write for one
//! chunk, the later write winning where they overlap), the *tasks* (slices not done yet), and the
//! batch of *jobs* under way: planned tasks with their buffers. Workspaces are kept and used again,
//! so that nothing is allocated once they have grown.
//!
//! The buffers of a job, in this order: what is read, by role; data to be computed; the partial
//! parity, unless it comes to be where the old parity was read; the new parity.

use std::ops::Range;

use super::parked::ParkedJob;
use super::plan::{
    Cut, Edges, MAX_BATCH_BYTES, MAX_DATA_CHUNKS, MAX_SLICE_BYTES, Members, Part, Plan, Roles,
    Slice, Unrecoverable, Way,
};
use crate::buffer::{Buffer, SharedBuffer, UNIT_BYTES};
use crate::geometry::{Place, Role};
use crate::metadata::checks::{Check, Checks};
use crate::mutation::mutation;
use crate::parity::Kernel;

/// Neighbouring segments of a chunk shorter than this are copied together and written at once.
const GATHER_BYTES: u32 = 32 << 10;

/// What one write brings to a row.
pub(super) struct Piece {
    /// Where in the row's data it begins, in bytes.
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) source: Source,
    /// Safe from power loss before it is answered.
    pub(super) fua: bool,
}

/// Where the bytes of a write come from.
pub(super) enum Source {
    /// As many bytes as the write is long.
    Data(SharedBuffer),
    Zeros,
}

/// Bytes of one write for a part of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    chunk: u16,
    /// Within the chunk.
    start: u32,
    end: u32,
    piece: u32,
    /// Where in the piece.
    from: u32,
}

/// A slice that is not done yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) slice: Slice,
    /// Chunks that could not be read in it, though their members should have them.
    pub(super) unreadable: Roles,
}

impl Task {
    pub(super) fn new(slice: Slice) -> Self {
        Self { slice, unreadable: Roles::NONE }
    }
}

/// A task of the batch under way.
pub(super) struct Job {
    pub(super) task: Task,
    pub(super) plan: Plan,
    /// Its first buffer.
    first_block: usize,
    /// The partial parity of P and Q, once it is computed and may be logged.
    pub(super) partial: [Option<SharedBuffer>; 2],
    /// What the log is to know of the contents of the data that changes.
    pub(super) checks: Checks,
    /// What of [`Workspace::writes`] is its.
    pub(super) writes: Range<usize>,
}

impl Job {
    fn parity(&self) -> Roles {
        self.plan.writes & Roles::PARITIES
    }

    /// Parities whose partial has a buffer of its own.
    fn fresh(plan: &Plan) -> Roles {
        match plan.way {
            Way::Reconstruct | Way::Decode => plan.writes & Roles::PARITIES,
            Way::Full | Way::ReadModify | Way::DataOnly => Roles::NONE,
        }
    }

    fn blocks(plan: &Plan) -> usize {
        let parity = plan.writes & Roles::PARITIES;
        plan.reads.count() + plan.unknown.count() + Self::fresh(plan).count() + parity.count()
    }

    /// Where a chunk's contents are that were read or computed.
    fn known_block(&self, role: Roles) -> Option<usize> {
        let Plan { reads, unknown, .. } = self.plan;
        if reads.contains(role) {
            Some(self.first_block + reads.place_of(role))
        } else if unknown.contains(role) {
            Some(self.first_block + reads.count() + unknown.place_of(role))
        } else {
            None
        }
    }

    fn partial_block(&self, parity: Roles) -> Option<usize> {
        let Plan { reads, unknown, way, .. } = self.plan;
        let fresh = Self::fresh(&self.plan);
        match way {
            Way::ReadModify => self.known_block(parity),
            Way::Reconstruct | Way::Decode => {
                Some(self.first_block + reads.count() + unknown.count() + fresh.place_of(parity))
            }
            Way::Full | Way::DataOnly => None,
        }
    }

    fn new_block(&self, parity: Roles) -> usize {
        let Plan { reads, unknown, .. } = self.plan;
        let before = reads.count() + unknown.count() + Self::fresh(&self.plan).count();
        self.first_block + before + self.parity().place_of(parity)
    }
}

/// Something to be read.
pub(super) struct Read {
    pub(super) job: usize,
    pub(super) role: Roles,
    /// Where its buffer is and comes back to.
    pub(super) block: usize,
}

/// The chunks of a row by index, those that are there.
type Chunks<'a> = [Option<&'a [u8]>; MAX_DATA_CHUNKS];

/// See the file's head.
#[derive(Default)]
pub(super) struct Workspace {
    pub(super) pieces: Vec<Piece>,
    /// In order of chunk and start; they do not overlap.
    segments: Vec<Segment>,
    /// Ranges of the row and the piece they are of: segments before they are cut at chunks.
    ranges: Vec<(u32, u32, u32)>,
    edges: Edges,
    slices: Vec<Slice>,
    /// In order; the batch is of the first ones.
    pub(super) tasks: Vec<Task>,
    pub(super) jobs: Vec<Job>,
    /// Sizes of the batch's buffers.
    pub(super) sizes: Vec<u32>,
    pub(super) blocks: Vec<Option<Buffer>>,
    pub(super) reads: Vec<Read>,
    /// Buffers of reads that are about to begin.
    pub(super) buffers: Vec<Option<Buffer>>,
    pub(super) writes: Vec<(Place, SharedBuffer)>,
    /// Jobs whose writes wait for a drive to come back.
    pub(super) parked: Vec<ParkedJob>,
}

impl Workspace {
    /// Forgets everything and keeps the room.
    pub(super) fn clear(&mut self) {
        self.end_batch();
        self.pieces.clear();
        self.segments.clear();
        self.tasks.clear();
        self.parked.clear();
    }

    /// Gives the batch's buffers back.
    pub(super) fn end_batch(&mut self) {
        self.jobs.clear();
        self.sizes.clear();
        self.blocks.clear();
        self.reads.clear();
        self.writes.clear();
    }

    /// Whether any of the writes has to be safe from power loss.
    pub(super) fn fua(&self) -> bool {
        self.pieces.iter().any(|piece| piece.fua)
    }

    /// Cuts the pieces into segments, and those into tasks. Zeros come in pieces of up to
    /// `zeros_bytes`.
    pub(super) fn cut_writes(&mut self, cut: &Cut, chunk_bytes: u32, zeros_bytes: u32) {
        self.cut_segments(chunk_bytes, zeros_bytes);
        let Self { segments, edges, slices, .. } = self;
        let parts =
            segments.iter().map(|&Segment { chunk, start, end, .. }| Part { chunk, start, end });
        cut.slices(parts, edges, slices);
        self.tasks.clear();
        self.tasks.extend(self.slices.iter().copied().map(Task::new));
    }

    /// Cuts what is to be read, a range of the row, into tasks.
    pub(super) fn cut_reads(&mut self, max_bytes: u32, chunk_bytes: u32, range: Range<u32>) {
        // No set of chunks counts as all of them, so no slice is longer than that.
        let cut = Cut { data_chunks: 0, max_bytes, consecutive: false };
        let Self { edges, slices, .. } = self;
        cut.slices(chunk_parts(range, chunk_bytes), edges, slices);
        self.tasks.clear();
        self.tasks.extend(self.slices.iter().copied().map(Task::new));
    }

    fn cut_segments(&mut self, chunk_bytes: u32, zeros_bytes: u32) {
        self.ranges.clear();
        for (index, piece) in self.pieces.iter().enumerate().rev() {
            add_uncovered(&mut self.ranges, piece.start, piece.start + piece.len, index as u32);
        }
        self.segments.clear();
        for &(start, end, index) in &self.ranges {
            let Some(piece) = self.pieces.get(index as usize) else { continue };
            let most = match piece.source {
                Source::Data(_) => u32::MAX,
                Source::Zeros => zeros_bytes,
            };
            let mut at = start;
            while at < end {
                let within = at % chunk_bytes;
                let len = (end - at).min(chunk_bytes - within).min(most);
                self.segments.push(Segment {
                    chunk: (at / chunk_bytes) as u16,
                    start: within,
                    end: within + len,
                    piece: index,
                    from: at - piece.start,
                });
                at += len;
            }
        }
    }

    /// Plans the first tasks, as many as fit in a batch; those that cannot be done as they are, but
    /// perhaps in parts, are halved. Nothing is planned if there are no tasks.
    ///
    /// # Errors
    /// If a block of `block_bytes` cannot be done: its task.
    pub(super) fn plan_batch(
        &mut self,
        block_bytes: u32,
        members: impl Fn(&Slice) -> Members,
        plan: impl Fn(Members, Roles) -> Result<Plan, Unrecoverable>,
    ) -> Result<(), Task> {
        self.end_batch();
        let mut bytes = 0;
        let mut at = 0;
        while let Some(&task) = self.tasks.get(at) {
            let Task { slice, unreadable } = task;
            // Slices of one range follow each other in time.
            if self.jobs.last().is_some_and(|job| job.task.slice.end() > slice.start) {
                break;
            }
            let mut members = members(&slice);
            members.readable = members.readable - unreadable;
            let Ok(plan) = plan(members, slice.modified) else {
                if slice.len <= block_bytes {
                    return Err(task);
                }
                self.halve(at, block_bytes);
                continue;
            };
            let blocks = Job::blocks(&plan);
            let block_bytes = (slice.len as usize).max(UNIT_BYTES).next_power_of_two();
            bytes += blocks * block_bytes;
            if at > 0 && bytes > MAX_BATCH_BYTES {
                break;
            }
            let first_block = self.sizes.len();
            self.sizes.extend(std::iter::repeat_n(slice.len, blocks));
            let job = self.jobs.len();
            let reads = plan.reads.iter().enumerate();
            self.reads.extend(reads.map(|(at, role)| Read { job, role, block: first_block + at }));
            self.jobs.push(Job {
                task,
                plan,
                first_block,
                partial: [None, None],
                checks: Checks::NONE,
                writes: 0..0,
            });
            at += 1;
        }
        Ok(())
    }

    /// Halves a task. What could not be read is tried again in the halves.
    fn halve(&mut self, at: usize, block_bytes: u32) {
        let Task { slice, .. } = self.tasks[at];
        let len = (slice.len / 2).next_multiple_of(block_bytes);
        let first = Slice { len, ..slice };
        let second = Slice { start: slice.start + len, len: slice.len - len, ..slice };
        self.tasks[at] = Task::new(first);
        self.tasks.insert(at + 1, Task::new(second));
    }

    /// Computes the data of a job that is not known. All has been read.
    pub(super) fn decode(&mut self, job: usize, data_chunks: usize) {
        let Self { jobs, blocks, .. } = self;
        let Some(job) = jobs.get(job) else { return };
        if job.plan.unknown.is_empty() {
            return;
        }
        let len = job.task.slice.len as usize;
        let mut unknown = job.plan.unknown.indices().map(|index| {
            let block =
                job.known_block(Roles::data(index)).and_then(|at| blocks.get_mut(at)?.take());
            (index, block)
        });
        // No row can lack more and be known.
        let (mut first, mut second) = (unknown.next(), unknown.next());
        debug_assert!(unknown.next().is_none());
        drop(unknown);
        let known = |role| job.known_block(role).and_then(|at| blocks.get(at)?.as_deref());
        let mut data: Chunks<'_> = [None; MAX_DATA_CHUNKS];
        for (index, chunk) in data.iter_mut().enumerate().take(data_chunks) {
            *chunk = known(Roles::data(index));
        }
        let mut wanted: [(Role, &mut [u8]); 2] = [(Role::P, &mut []), (Role::P, &mut [])];
        let mut count = 0;
        for (index, block) in [&mut first, &mut second].into_iter().flatten() {
            if let Some(block) = block {
                wanted[count] = (Role::Data(*index), &mut block[..len]);
                count += 1;
            }
        }
        let (p, q) = (known(Roles::P), known(Roles::Q));
        let done = Kernel::best().reconstruct(&data[..data_chunks], p, q, &mut wanted[..count]);
        debug_assert!(done.is_ok(), "the plan reads enough: {done:?}");
        for (index, block) in [first, second].into_iter().flatten() {
            if let Some(at) = job.known_block(Roles::data(index)) {
                blocks[at] = block;
            }
        }
    }

    /// What was read or computed of a chunk.
    pub(super) fn known(&self, job: &Job, role: Roles) -> Option<&[u8]> {
        job.known_block(role).and_then(|at| self.blocks.get(at)?.as_deref())
    }

    /// Computes the partial and the new parity of a job. All has been read.
    pub(super) fn compute(&mut self, index: usize, data_chunks: usize, zeros: &[u8]) {
        self.decode(index, data_chunks);
        let Some(job) = self.jobs.get(index) else { return };
        let parity = job.parity();
        if parity.is_empty() {
            return;
        }
        let mut new = Pair::take(&mut self.blocks, parity, |role| Some(job.new_block(role)));
        let partial = |role| job.partial_block(role);
        let mut old = Pair::take(&mut self.blocks, parity, partial);
        match job.plan.way {
            Way::Full | Way::DataOnly => {}
            Way::ReadModify => {
                // What changes goes out of the old parity.
                let data = self.chunks(job, job.task.slice.modified);
                sum(&data[..data_chunks], &mut new, 0..job.task.slice.len as usize);
                if !mutation!("wrong-parity-after-partial-write") {
                    old.add(&new, 0..job.task.slice.len as usize);
                }
            }
            Way::Reconstruct | Way::Decode => {
                let others = Roles::all_data(data_chunks) - job.task.slice.modified;
                let data = self.chunks(job, others);
                sum(&data[..data_chunks], &mut old, 0..job.task.slice.len as usize);
            }
        }
        let slice = job.task.slice;
        let mut at = slice.start;
        while at < slice.end() {
            let (end, data) = self.new_data(&slice, at, zeros);
            let range = (at - slice.start) as usize..(end - slice.start) as usize;
            sum(&data[..data_chunks], &mut new, range.clone());
            new.add(&old, range);
            at = end;
        }
        if mutation!("wrong-q-after-partial-write")
            && job.plan.way != Way::Full
            && let Some(q) = &mut new.q
        {
            q[0] ^= 1;
        }
        new.put(&mut self.blocks, |role| Some(job.new_block(role)));
        old.put(&mut self.blocks, partial);
    }

    /// Computes what the log is to know of a job's data; its parity is computed.
    ///
    /// Nothing of a single chunk: if that is lost, whatever parity says of it is what it was or was
    /// to be. The old contents are known only where they were needed.
    pub(super) fn check(&mut self, index: usize, zeros: &[u8]) {
        let Some(job) = self.jobs.get(index) else { return };
        let Slice { modified, .. } = job.task.slice;
        if modified.count() < 2 {
            return;
        }
        let mut new = Check::new();
        for chunk in modified.indices() {
            self.each_new(&job.task.slice, chunk, zeros, |_, bytes| new.add(bytes));
        }
        let mut old = Check::new();
        let is_old_known = modified.iter().all(|role| {
            let known = self.known(job, role);
            known.into_iter().for_each(|bytes| old.add(bytes));
            known.is_some()
        });
        let checks = Checks { new: Some(new.value()), old: is_old_known.then(|| old.value()) };
        self.jobs[index].checks = checks;
    }

    /// The contents of some chunks, as they were read or computed.
    fn chunks(&self, job: &Job, roles: Roles) -> Chunks<'_> {
        let mut data: Chunks<'_> = [None; MAX_DATA_CHUNKS];
        for index in roles.indices() {
            data[index] = self.known(job, Roles::data(index));
        }
        data
    }

    /// The new data of all chunks of a slice from `at` on, up to where any of it ends.
    fn new_data<'a>(&'a self, slice: &Slice, at: u32, zeros: &'a [u8]) -> (u32, Chunks<'a>) {
        let segment = |index| self.segment(index, at);
        let ends = slice.modified.indices().filter_map(segment).map(|segment| segment.end);
        let end = ends.fold(slice.end(), u32::min);
        let mut data: Chunks<'a> = [None; MAX_DATA_CHUNKS];
        for index in slice.modified.indices() {
            if let Some(segment) = segment(index) {
                data[index] = Some(self.bytes(segment, at, end, zeros));
            }
        }
        (end, data)
    }

    /// The segment of a chunk that holds the byte at `at`.
    fn segment(&self, index: usize, at: u32) -> Option<&Segment> {
        let key = (index as u16, at);
        let behind = self.segments.partition_point(|segment| (segment.chunk, segment.start) <= key);
        let segment = self.segments.get(behind.checked_sub(1)?)?;
        let is_it = usize::from(segment.chunk) == index && segment.end > at;
        debug_assert!(is_it, "chunk {index} has no new data at {at}");
        is_it.then_some(segment)
    }

    fn bytes<'a>(&'a self, segment: &Segment, at: u32, end: u32, zeros: &'a [u8]) -> &'a [u8] {
        let len = (end - at) as usize;
        match &self.pieces[segment.piece as usize].source {
            Source::Data(data) => {
                let from = (segment.from + at - segment.start) as usize;
                &data[from..from + len]
            }
            Source::Zeros => &zeros[..len],
        }
    }

    /// The new contents of one chunk of a slice, in pieces as they come.
    pub(super) fn each_new(
        &self,
        slice: &Slice,
        index: usize,
        zeros: &[u8],
        mut each: impl FnMut(Range<usize>, &[u8]),
    ) {
        let mut at = slice.start;
        while at < slice.end() {
            let Some(segment) = self.segment(index, at) else { return };
            let end = segment.end.min(slice.end());
            let range = (at - slice.start) as usize..(end - slice.start) as usize;
            each(range, self.bytes(segment, at, end, zeros));
            at = end;
        }
    }

    /// Makes the writes of a job whose parity is computed, and sets its partial parity free for the
    /// log. `repairs` are chunks to be written with what was computed, `place` says where a chunk
    /// is on its member, `spare` gives memory to copy small segments together.
    pub(super) fn make_writes(
        &mut self,
        index: usize,
        repairs: Roles,
        zeros: &SharedBuffer,
        place: impl Fn(Roles, u32) -> Place,
        mut spare: impl FnMut(usize) -> Option<Buffer>,
    ) {
        let Self { pieces, segments, jobs, blocks, writes, .. } = self;
        let Some(job) = jobs.get_mut(index) else { return };
        let (first, slice) = (writes.len(), job.task.slice);
        let mut take = |at: usize| blocks.get_mut(at)?.take().map(Buffer::freeze);
        for role in job.parity().iter() {
            let partial = job.partial_block(role).and_then(&mut take);
            job.partial[usize::from(role == Roles::Q)] = partial;
            writes.extend(take(job.new_block(role)).map(|new| (place(role, slice.start), new)));
        }
        for role in (repairs & job.plan.unknown).iter() {
            let computed = job.known_block(role).and_then(&mut take);
            writes.extend(computed.map(|data| (place(role, slice.start), data)));
        }
        for chunk in (slice.modified & job.plan.writes).indices() {
            let role = Roles::data(chunk);
            let mut at = slice.start;
            while at < slice.end() {
                let run = Run::find(segments, chunk as u16, at, slice.end());
                let data = match run.segments {
                    [] => break,
                    [one] => Some(bytes_of(pieces, one, at..run.end, zeros)),
                    several => spare((run.end - at) as usize).map(|mut copy| {
                        for segment in several {
                            let part = segment.start.max(at)..segment.end.min(run.end);
                            let to = (part.start - at) as usize..(part.end - at) as usize;
                            copy[to].copy_from_slice(&bytes_of(pieces, segment, part, zeros));
                        }
                        copy.freeze()
                    }),
                };
                // Without memory to copy them together they are written one by one.
                let (data, end) = data.map_or_else(
                    || {
                        let end = run.segments[0].end.min(run.end);
                        (bytes_of(pieces, &run.segments[0], at..end, zeros), end)
                    },
                    |data| (data, run.end),
                );
                writes.push((place(role, at), data));
                at = end;
            }
        }
        job.writes = first..writes.len();
    }
}

/// The bytes of a segment's part.
fn bytes_of(
    pieces: &[Piece],
    segment: &Segment,
    part: Range<u32>,
    zeros: &SharedBuffer,
) -> SharedBuffer {
    let len = (part.end - part.start) as usize;
    match &pieces[segment.piece as usize].source {
        Source::Data(data) => {
            let from = (segment.from + part.start - segment.start) as usize;
            data.slice(from..from + len)
        }
        Source::Zeros => zeros.slice(..len),
    }
}

/// Segments of a chunk that are written at once: one, or neighbouring small ones.
struct Run<'a> {
    segments: &'a [Segment],
    end: u32,
}

impl<'a> Run<'a> {
    /// The one at `at`, up to `end` at most.
    fn find(segments: &'a [Segment], chunk: u16, at: u32, end: u32) -> Self {
        let first = segments.partition_point(|segment| (segment.chunk, segment.end) <= (chunk, at));
        let len = |segment: &Segment| segment.end.min(end) - segment.start.max(at);
        let mut count = 0;
        let mut reaches = at;
        for segment in &segments[first..] {
            let follows = segment.chunk == chunk && segment.start.max(at) == reaches;
            if !follows || segment.start >= end {
                break;
            }
            if count > 0 && len(segment) >= GATHER_BYTES {
                break;
            }
            count += 1;
            reaches = segment.end.min(end);
            if len(segment) >= GATHER_BYTES || reaches - at >= MAX_SLICE_BYTES {
                break;
            }
        }
        Self { segments: &segments[first..first + count], end: reaches }
    }
}

/// The parts of a range of a row that are in its chunks.
fn chunk_parts(range: Range<u32>, chunk_bytes: u32) -> impl Iterator<Item = Part> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let within = at % chunk_bytes;
        let len = (range.end - at).min(chunk_bytes - within);
        let chunk = (at / chunk_bytes) as u16;
        at += len;
        (len > 0).then_some(Part { chunk, start: within, end: within + len })
    })
}

/// Adds what of a range is not covered yet by those in the list, which are sorted and disjoint.
fn add_uncovered(ranges: &mut Vec<(u32, u32, u32)>, start: u32, end: u32, piece: u32) {
    let mut at = ranges.partition_point(|&(_, covered, _)| covered <= start);
    let mut from = start;
    while from < end {
        match ranges.get(at) {
            Some(&(next, covered, _)) if next <= from => {
                from = covered;
                at += 1;
            }
            next => {
                let to = next.map_or(end, |&(next, _, _)| next.min(end));
                ranges.insert(at, (from, to, piece));
                from = to;
                at += 1;
            }
        }
    }
}

/// Adds a data chunk to sums that are P and Q; `term` is room for as much.
pub(super) fn add_chunk(
    sums: &mut [Option<Buffer>; 2],
    index: usize,
    chunk: &[u8],
    term: &mut [u8],
) {
    let [p, q] = sums;
    if let Some(p) = p {
        Kernel::best().xor_into(p, &[chunk]);
    }
    if let Some(q) = q {
        let mut data: Chunks<'_> = [None; MAX_DATA_CHUNKS];
        data[index] = Some(chunk);
        Kernel::best().q(&data[..=index], term);
        Kernel::best().xor_into(q, &[term]);
    }
}

/// The buffers of P and Q, those that there are.
struct Pair {
    p: Option<Buffer>,
    q: Option<Buffer>,
}

impl Pair {
    fn take(
        blocks: &mut [Option<Buffer>],
        parity: Roles,
        place: impl Fn(Roles) -> Option<usize>,
    ) -> Self {
        let mut take = |role| {
            let at = parity.contains(role).then(|| place(role)).flatten();
            at.and_then(|at| blocks.get_mut(at)?.take())
        };
        Self { p: take(Roles::P), q: take(Roles::Q) }
    }

    fn put(self, blocks: &mut [Option<Buffer>], place: impl Fn(Roles) -> Option<usize>) {
        for (role, buffer) in [(Roles::P, self.p), (Roles::Q, self.q)] {
            if let Some(buffer) = buffer
                && let Some(block) = place(role).and_then(|at| blocks.get_mut(at))
            {
                *block = Some(buffer);
            }
        }
    }

    /// Adds another pair's bytes, where it has any.
    fn add(&mut self, other: &Self, range: Range<usize>) {
        for (to, from) in [(&mut self.p, &other.p), (&mut self.q, &other.q)] {
            if let (Some(to), Some(from)) = (to, from) {
                Kernel::best().xor_into(&mut to[range.clone()], &[&from[range.clone()]]);
            }
        }
    }
}

/// Sets a range of P and Q to the sums of the data.
fn sum(data: &[Option<&[u8]>], pair: &mut Pair, range: Range<usize>) {
    match (&mut pair.p, &mut pair.q) {
        (Some(p), Some(q)) => Kernel::best().pq(data, &mut p[range.clone()], &mut q[range]),
        (Some(p), None) => Kernel::best().p(data, &mut p[range]),
        (None, Some(q)) => Kernel::best().q(data, &mut q[range]),
        (None, None) => {}
    }
}
