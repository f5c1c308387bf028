//! The core that runs an array's long tasks: which shards it has its owners work on, and what
//! follows from that.
//!
//! A *walk* is one way through the array, or through what of it needs the task. It ends at its end;
//! when another task is more urgent, or none is wanted; or when something has happened that makes
//! what it has done doubtful. Then the next one begins where the position is. Whatever ends it, it
//! waits for everything that is under way.

use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, LocalBoxFuture, select};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::Chore;
use super::pace::{Brake, Go, Pacer};
use super::plan::Task;
use super::progress::Limit;
use super::window::{Ranges, Window};
use crate::array::agreement::IN_SYNC;
use crate::array::error::ArrayError;
use crate::array::timer::Timer;
use crate::array::write::Work;
use crate::array::{Array, Done};
use crate::drive::Drive;
use crate::mutation::mutation;

/// How long to wait before trying again without space.
const SPACE_RETRY: Duration = Duration::from_secs(5);

/// How long to wait before trying again without memory, and after anything else.
const RETRY: Duration = Duration::from_millis(10);

/// Members are flushed for the resync after so much, or after that time: then what has been made equal
/// counts as equal, and its reads need no owner any more.
const AGREE_BYTES: u64 = 64 << 20;

/// See [`AGREE_BYTES`].
const AGREE_AFTER: Duration = Duration::from_millis(250);

/// What a walk is for.
#[derive(Clone, Copy)]
enum Purpose {
    /// The rebuild of the members of a series.
    Rebuild { series: u64 },
    /// The resync of regions that were being written when the array crashed: what is behind the
    /// walk from here on is known to agree, if nothing was marked since.
    Dirty { marks: u64, agrees_from: u64 },
    /// The resync from the position on: the one that counts, since that time.
    Resync { agrees_to: u64, since: Duration },
    /// The check of that number.
    Check { number: u64 },
}

/// See the file's head.
struct Walk {
    purpose: Purpose,
    chore: Chore,
    ranges: Ranges,
    window: Window,
    end: u64,
    /// The position that is recorded.
    checkpoint: u64,
}

/// Why a walk is over.
#[derive(Debug)]
enum Over {
    /// It got to its end.
    End,
    /// Another task is next, or none.
    NotNext,
    /// What it did does not count, or not all of it.
    Disturbed,
    /// An owner could not go on.
    Error(ArrayError),
}

/// A piece that has ended.
struct Ended {
    number: u64,
    bytes: u64,
    began: Duration,
    was_alone: bool,
    result: Done,
}

type Pieces<'a> = FuturesUnordered<LocalBoxFuture<'a, Ended>>;

impl Walk {
    /// The next piece: within a shard.
    fn next_piece(&self, shard_end: impl Fn(u64) -> u64) -> Option<Range<u64>> {
        let next = self.ranges.next(self.window.next_from(), self.end)?;
        Some(next.start..next.end.min(shard_end(next.start)))
    }

    /// How far it has got since the position was recorded.
    fn moved(&self) -> u64 {
        self.window.position().saturating_sub(self.checkpoint)
    }

    /// Whether a flush should make count what has been made equal.
    fn could_agree(&self, now: Duration) -> bool {
        let Purpose::Resync { agrees_to, since } = self.purpose else { return false };
        let bytes = self.window.position().saturating_sub(agrees_to);
        bytes >= AGREE_BYTES || bytes > 0 && now.saturating_sub(since) >= AGREE_AFTER
    }

    fn left_bytes(&self) -> u64 {
        self.ranges.bytes_from(self.window.position(), self.end)
    }
}

impl<D: Drive> Array<D> {
    /// Does the array's long tasks: rebuilds, resyncs and checks as they are needed, and waits
    /// otherwise. Run it on one core. Ends after
    /// [`Shared::stop_resync`](crate::array::Shared::stop_resync); must not be dropped before.
    pub async fn recover(&self, timer: &impl Timer) {
        let most = self.shards_at_once();
        let mut pacer = Pacer::new(self.shared.host_operations(), most);
        while let Some(task) = self.shared.next_task().await {
            let mut walk = self.begin_walk(task, timer.now());
            self.shared.task_began(task, timer.now(), walk.window.position(), walk.left_bytes());
            let over = self.walk(task, &mut walk, &mut pacer, timer).await;
            let retry = self.end_walk(&mut walk, over, &mut pacer, timer).await;
            self.shared.task_left(task, timer.now());
            if let Some(retry) = retry {
                // A stop, or a more urgent task, does not wait for the end of it.
                let not_next = pin!(self.shared.not_next(task));
                select(pin!(timer.sleep(retry)), not_next).await;
            }
        }
    }

    /// How many shards can be under way at once with the memory that there is.
    fn shards_at_once(&self) -> usize {
        let geometry = self.shared.geometry();
        let (each, several) = match geometry.parities() {
            0 => (super::PIECE_BYTES, geometry.copies()),
            _ => (self.span_bytes(), geometry.members()),
        };
        let cores = self.endpoint.cores().min(geometry.shard_count() as usize);
        let memory = self.pool.budget_bytes() / 4 * 3 * cores.max(1);
        (memory / (each as usize * several)).max(2)
    }

    fn begin_walk(&self, task: Task, now: Duration) -> Walk {
        let end = self.shared.geometry().capacity_bytes();
        let walk = |purpose, chore, ranges, position: u64, recorded: u64| Walk {
            purpose,
            chore,
            ranges,
            window: Window::new(position),
            end,
            checkpoint: position.min(recorded),
        };
        match task {
            Task::Rebuild => {
                let (series, position, ranges) = self.shared.begin_rebuild_walk();
                let recorded = self.shared.wanted().rebuild_from.unwrap_or(0);
                walk(Purpose::Rebuild { series }, Chore::Rebuild, ranges, position, recorded)
            }
            Task::Resync => {
                let position = self.shared.begin_resync_walk();
                let marks = self.shared.intent.dirty_marks();
                let dirty = self.shared.intent.dirty_ranges();
                if dirty.is_empty() {
                    let purpose = Purpose::Resync { agrees_to: position, since: now };
                    let recorded = self.shared.wanted().resync_from;
                    return walk(purpose, Chore::Sync, Ranges::All, position.min(end), recorded);
                }
                let purpose = Purpose::Dirty { marks, agrees_from: 0 };
                walk(purpose, Chore::Sync, Ranges::from_list(dirty), 0, 0)
            }
            Task::Check(mode) => {
                let (number, position) = self.shared.begin_check_walk();
                let purpose = Purpose::Check { number };
                walk(purpose, Chore::Check(mode), Ranges::All, position, position)
            }
        }
    }

    /// Walks until it is over, and waits for what is under way.
    async fn walk(
        &self,
        task: Task,
        walk: &mut Walk,
        pacer: &mut Pacer,
        timer: &impl Timer,
    ) -> Over {
        let mut pieces = Pieces::new();
        let mut over = None;
        loop {
            if over.is_none() {
                over = self.step(task, walk, pacer, &mut pieces, timer).await;
                continue;
            }
            let Some(ended) = pieces.next().await else { break };
            if let Some(error) = self.piece_ended(walk, pacer, &ended, timer) {
                over = Some(Over::Error(error));
            }
        }
        if !self.advance(walk, timer) {
            over = Some(Over::Disturbed);
        }
        over.unwrap_or(Over::NotNext)
    }

    /// Begins a piece, or waits for something to happen. Says when it is over.
    async fn step<'a>(
        &'a self,
        task: Task,
        walk: &mut Walk,
        pacer: &mut Pacer,
        pieces: &mut Pieces<'a>,
        timer: &impl Timer,
    ) -> Option<Over> {
        if !self.shared.is_next(task) {
            return Some(Over::NotNext);
        }
        if !self.advance(walk, timer) {
            return Some(Over::Disturbed);
        }
        let interval = self.shared.limits.checkpoint_interval();
        if walk.moved() >= interval || walk.could_agree(timer.now()) {
            return self.checkpoint_beside(walk, pacer, pieces, timer).await;
        }
        let shard_end = |at| {
            let geometry = self.shared.geometry();
            geometry.shard_range(geometry.shard_of(at)).end
        };
        let Some(piece) = walk.next_piece(shard_end) else {
            if pieces.is_empty() {
                return Some(Over::End);
            }
            let ended = pieces.next().await?;
            return self.piece_ended(walk, pacer, &ended, timer).map(Over::Error);
        };
        let (now, operations) = (timer.now(), self.shared.host_operations());
        let rest = match pacer.poll(now, operations, pieces.len()) {
            Go::Launch => {
                pacer.handle_launch(now, piece.end - piece.start, self.shared.limits.rates());
                pieces.push(self.launch(walk, piece, now, pacer.is_busy()));
                return None;
            }
            Go::Wait => None,
            Go::Rest(rest, brake) => {
                self.shared.task_limited(match brake {
                    Brake::Host => Limit::Foreground,
                    Brake::MaxRate => Limit::RateLimit,
                });
                Some(rest)
            }
        };
        let ended = self.wait_for_piece(task, rest, pieces, timer).await?;
        if rest.is_none() {
            let by_host = pacer.is_busy();
            self.shared.task_limited(if by_host { Limit::Foreground } else { Limit::Drive });
        }
        self.piece_ended(walk, pacer, &ended, timer).map(Over::Error)
    }

    fn launch<'a>(
        &'a self,
        walk: &mut Walk,
        piece: Range<u64>,
        began: Duration,
        was_alone: bool,
    ) -> LocalBoxFuture<'a, Ended> {
        let (offset_bytes, bytes) = (piece.start, piece.end - piece.start);
        let number = walk.window.handle_launch(piece);
        let work = Work::Recover { chore: walk.chore, offset_bytes, len_bytes: bytes };
        let shard = self.shared.geometry().shard_of(offset_bytes);
        Box::pin(async move {
            let result = self.on_owner(shard, work).await.result;
            Ended { number, bytes, began, was_alone, result }
        })
    }

    /// Waits until a piece has ended. None if the rest is over, or another task is next.
    async fn wait_for_piece(
        &self,
        task: Task,
        rest: Option<Duration>,
        pieces: &mut Pieces<'_>,
        timer: &impl Timer,
    ) -> Option<Ended> {
        let other = async {
            let not_next = pin!(self.shared.not_next(task));
            match rest {
                Some(rest) => {
                    select(pin!(timer.sleep(rest)), not_next).await;
                }
                None => not_next.await,
            }
        };
        if pieces.is_empty() {
            other.await;
            return None;
        }
        // The pieces first: their ends are not to wait for one another.
        match select(pieces.next(), pin!(other)).await {
            Either::Left((ended, _)) => ended,
            Either::Right(_) => None,
        }
    }

    /// Says what was wrong with it, if anything.
    fn piece_ended(
        &self,
        walk: &mut Walk,
        pacer: &mut Pacer,
        ended: &Ended,
        timer: &impl Timer,
    ) -> Option<ArrayError> {
        let &Ended { number, bytes, began, was_alone, result } = ended;
        match result {
            Ok(()) => {
                walk.window.handle_done(number);
                let now = timer.now();
                let took = now.saturating_sub(began);
                pacer.handle_done(now, took, bytes, was_alone, self.shared.limits.rates());
                None
            }
            Err(error) => Some(error),
        }
    }

    /// Advances the position over what is done. False if that does not count.
    fn advance(&self, walk: &mut Walk, timer: &impl Timer) -> bool {
        let counts = match walk.purpose {
            Purpose::Resync { .. } | Purpose::Dirty { .. } => {
                self.shared.is_resync_undisturbed(walk.window.next_from())
            }
            Purpose::Rebuild { .. } | Purpose::Check { .. } => true,
        };
        let Some((_, to, bytes)) = walk.window.poll_advance() else { return counts };
        let counts = match walk.purpose {
            Purpose::Rebuild { series } => self.shared.advance_rebuild(series, to),
            Purpose::Resync { ref mut agrees_to, .. } if mutation!("agree-before-flush") => {
                let from = std::mem::replace(agrees_to, to);
                self.shared.advance_resync(from, to) && counts
            }
            // When all members have been flushed: until then a power cut may take back what one of
            // the copies, and nobody else, has been made to say.
            Purpose::Resync { .. } | Purpose::Dirty { .. } => counts,
            Purpose::Check { number } => self.shared.advance_check(number, to),
        };
        if counts {
            self.shared.task_did(timer.now(), bytes, to, walk.left_bytes());
        }
        counts
    }

    /// Flushes all members before a position is recorded.
    async fn flush_for_position(&self, purpose: &Purpose) -> Done {
        let is_rebuild = matches!(purpose, Purpose::Rebuild { .. });
        if is_rebuild && mutation!("advance-rebuild-without-flush")
            || !is_rebuild && mutation!("advance-resync-without-flush")
        {
            return Ok(());
        }
        self.flush_once().await
    }

    /// Flushes all members and has the position recorded, while what is under way goes on.
    async fn checkpoint_beside<'a>(
        &'a self,
        walk: &mut Walk,
        pacer: &mut Pacer,
        pieces: &mut Pieces<'a>,
        timer: &impl Timer,
    ) -> Option<Over> {
        let position = walk.window.position();
        let purpose = walk.purpose;
        let mut flush = pin!(self.flush_for_position(&purpose));
        let mut error = None;
        let flushed = loop {
            if pieces.is_empty() {
                break flush.await;
            }
            match select(flush.as_mut(), pieces.next()).await {
                Either::Left((flushed, _)) => break flushed,
                Either::Right((ended, _)) => {
                    let ended =
                        ended.and_then(|ended| self.piece_ended(walk, pacer, &ended, timer));
                    error = error.or(ended);
                }
            }
        };
        let position = match mutation!("position-of-after-the-flush") {
            true => walk.window.poll_advance().map_or(position, |(_, to, _)| to),
            false => position,
        };
        match flushed {
            Ok(()) if !self.record_position(walk, position, timer.now()) => {
                return Some(Over::Disturbed);
            }
            Ok(()) => {}
            Err(flush) => error = error.or(Some(flush)),
        }
        error.map(Over::Error)
    }

    /// Has the position recorded, which all members have been flushed since, if it is far enough from
    /// the last one. False if what is before it does not count any more.
    fn record_position(&self, walk: &mut Walk, position: u64, now: Duration) -> bool {
        let is_far = walk.moved() >= self.shared.limits.checkpoint_interval();
        match &mut walk.purpose {
            Purpose::Rebuild { series } => {
                self.shared.checkpoint_rebuild_of(*series, position);
                walk.checkpoint = position;
                true
            }
            Purpose::Resync { agrees_to, since } => {
                // A write may have left copies unequal below it during the flush.
                if !self.shared.advance_resync(*agrees_to, position) {
                    return false;
                }
                (*agrees_to, *since) = (position, now);
                if is_far {
                    self.shared.checkpoint_resync(position);
                    walk.checkpoint = position;
                }
                true
            }
            Purpose::Dirty { marks, agrees_from } => {
                let counts = self.shared.dirty_made_consistent(*agrees_from..position, *marks);
                // A region may reach to both sides of the position: so the end of the last range
                // that was begun before it.
                if counts && let Some(next) = walk.ranges.next(position, walk.end) {
                    *agrees_from = walk.ranges.start_of(next.start);
                }
                walk.checkpoint = position;
                counts
            }
            Purpose::Check { .. } => {
                walk.checkpoint = position;
                true
            }
        }
    }

    /// What is left to do when a walk is over, and how long to wait before the next one.
    async fn end_walk(
        &self,
        walk: &mut Walk,
        over: Over,
        pacer: &mut Pacer,
        timer: &impl Timer,
    ) -> Option<Duration> {
        let ended = match over {
            Over::End => self.finish(walk).await,
            Over::NotNext => {
                self.keep_position(walk, timer).await;
                Ok(())
            }
            Over::Disturbed => Ok(()),
            Over::Error(error) => Err(error),
        };
        match ended {
            Ok(()) => None,
            Err(ArrayError::NoSpace { slot }) => {
                self.shared.task_halted(timer.now(), Some(Limit::Space { slot }));
                Some(SPACE_RETRY)
            }
            Err(ArrayError::BadBlocksFull { slot }) => {
                self.keep_position(walk, timer).await;
                self.shared.task_halted(timer.now(), Some(Limit::BadBlocksFull { slot }));
                Some(SPACE_RETRY)
            }
            Err(ArrayError::NotReady) => {
                pacer.handle_no_memory();
                self.shared.task_limited(Limit::Memory);
                Some(RETRY)
            }
            // A core has stopped serving, and the task will be stopped as well; or a member has
            // failed, and everything is looked at anew.
            Err(_) => Some(RETRY),
        }
    }

    /// What has been done need not be done again.
    async fn keep_position(&self, walk: &mut Walk, timer: &impl Timer) {
        let position = walk.window.position();
        if position != walk.checkpoint
            && self.flush_for_position(&walk.purpose).await.is_ok()
            && self.record_position(walk, position, timer.now())
            && let Purpose::Resync { .. } = walk.purpose
        {
            self.shared.checkpoint_resync(position);
        }
    }

    /// Whether no member is missing when those that are being rebuilt are in sync.
    fn will_be_complete(&self) -> bool {
        let map = self.map();
        map.in_sync.or(map.rebuilding).len() == self.shared.geometry().members()
    }

    /// The walk has got to its end.
    async fn finish(&self, walk: &mut Walk) -> Done {
        match walk.purpose {
            Purpose::Rebuild { series } => {
                self.flush_for_position(&walk.purpose).await?;
                if self.will_be_complete() {
                    self.before_in_sync().await?;
                }
                if self.shared.advance_rebuild(series, walk.end) && self.shared.end_rebuild(series)
                {
                    self.settled(None).await?;
                }
            }
            Purpose::Dirty { marks, agrees_from } => {
                self.shared.dirty_made_consistent(agrees_from..walk.end, marks);
                self.shared.dirty_ended();
            }
            Purpose::Resync { agrees_to, .. } => {
                self.flush_for_position(&walk.purpose).await?;
                if self.shared.advance_resync(agrees_to, IN_SYNC) {
                    self.shared.checkpoint_resync(IN_SYNC);
                }
            }
            Purpose::Check { number } => self.shared.end_check(number),
        }
        Ok(())
    }
}
