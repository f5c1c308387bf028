//! Which writes are worth waiting for: finds sequential streams that have company. Pure.
//!
//! A write of a stream whose next write is on its way already should wait for it, so that the row
//! is written whole, without reading anything. A write nobody follows must not wait, least of all
//! one of a host that sends the next one only when this one has been answered. So a *stream* (writes
//! that begin where the one before ended) earns *credit* for every write that comes while an
//! earlier one of it is under way, and loses some for one that comes alone; with enough credit its
//! writes may be held. A hold that ended without the row being completed takes the credit away, and
//! more of it is needed the next time; one that was worth it makes that good again.
//!
//! How long a hold is worth is a matter of how fast the stream is: its next writes come when
//! earlier ones have been answered. So a stream's pace is measured, the mean time between its writes;
//! as many times as it has writes under way, that is the time in which it is answered one. A hold
//! lasts twice as long, within bounds: the lower one for a stream that has just begun, the upper one
//! since the last write of a stream waits for nothing.
//!
//! Writes that come by other cores may come out of order. So one that begins near to where a stream's
//! next write should belongs to it as well, and of a stream that has its credit, one not so near.
//!
//! A core sees only the shards that it owns. Offsets here are therefore within all that it owns, as
//! if that were in one piece.

use std::time::Duration;

/// Streams that are remembered.
const STREAMS: usize = 16;

/// Credit with which a stream's writes are held, if holding has not been in vain before.
const ENOUGH: u32 = 4;

/// The most that is asked for.
const MOST: u32 = 4096;

/// What a write in company earns that comes in order. One alone costs 1: when a host of depth 2 has
/// been answered both of its writes at once, every second one comes alone.
const EARNED: u32 = 2;

/// What one earns that comes somewhat out of order: it may be there by chance.
const EARNED_NEAR: u32 = 1;

/// How many times its own length a write may be off its place in any stream.
const NEAR: u64 = 2;

/// The same for a stream that has its credit.
const NOT_SO_NEAR: u64 = 16;

/// How long a hold lasts at least.
const MIN_HOLD: Duration = Duration::from_micros(500);

/// How long it lasts at most.
const MAX_HOLD: Duration = Duration::from_millis(20);

/// A hold lasts so many times as long as the stream is answered a write in.
const ANSWERS_HELD: f64 = 2.0;

/// The mean time between two writes is one over so many of the newest, about: more than come in one
/// burst.
const MEAN_OVER: u32 = 64;

/// Names a stream; it may have been forgotten meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamId {
    index: u8,
    number: u32,
}

#[derive(Clone, Copy, Default)]
struct Stream {
    number: u32,
    /// Where its next write begins.
    next_bytes: u64,
    under_way: u32,
    credit: u32,
    enough: u32,
    used: u32,
    /// When its newest write came, once that has been looked at.
    came: Option<Duration>,
    /// Mean time between two of its writes, in seconds.
    pace_seconds: f64,
    /// What the mean is of, at most [`MEAN_OVER`].
    measured: u32,
}

impl Stream {
    /// A write comes now.
    fn measure(&mut self, now: Duration) {
        if let Some(came) = self.came.replace(now) {
            let gap = now.saturating_sub(came).min(MAX_HOLD).as_secs_f64();
            self.measured = (self.measured + 1).min(MEAN_OVER);
            self.pace_seconds += (gap - self.pace_seconds) / f64::from(self.measured);
        }
    }

    /// How long a hold lasts.
    fn hold(&self) -> Duration {
        let seconds = self.pace_seconds * f64::from(self.under_way) * ANSWERS_HELD;
        Duration::from_secs_f64(seconds.min(MAX_HOLD.as_secs_f64())).max(MIN_HOLD)
    }
}

/// The streams of one core.
pub(super) struct Streams {
    streams: [Stream; STREAMS],
    clock: u32,
}

impl Streams {
    pub(super) fn new() -> Self {
        let free = Stream { next_bytes: u64::MAX / 2, enough: ENOUGH, ..Stream::default() };
        Self { streams: [free; STREAMS], clock: 0 }
    }

    /// A write has come, of `len_bytes`. Says until when it may be held, if it may.
    pub(super) fn handle_write(
        &mut self,
        offset_bytes: u64,
        len_bytes: u64,
        now: impl FnOnce() -> Duration,
    ) -> (StreamId, Option<Duration>) {
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        let distance = |stream: &Stream| stream.next_bytes.abs_diff(offset_bytes);
        let is_of = |stream: &Stream| {
            let reach = if stream.credit >= stream.enough { NOT_SO_NEAR } else { NEAR };
            distance(stream) <= reach * len_bytes
        };
        let known = (0..STREAMS)
            .filter(|&index| is_of(&self.streams[index]))
            .min_by_key(|&index| distance(&self.streams[index]));
        let index = known.unwrap_or_else(|| self.oldest());
        let end_bytes = offset_bytes + len_bytes;
        let stream = &mut self.streams[index];
        let distance = distance(stream);
        if known.is_none() {
            *stream = Stream { number: clock, enough: ENOUGH, ..Stream::default() };
        } else if stream.under_way == 0 {
            stream.credit = stream.credit.saturating_sub(1);
        } else if distance <= NEAR * len_bytes {
            let earned = if distance == 0 { EARNED } else { EARNED_NEAR };
            stream.credit = (stream.credit + earned).min(2 * stream.enough);
        }
        stream.next_bytes = if known.is_some() && distance > 0 {
            stream.next_bytes.max(end_bytes)
        } else {
            end_bytes
        };
        stream.under_way += 1;
        stream.used = clock;
        // Writes that are of no stream, as random ones are, need not know the time.
        let now = known.map(|_| now());
        if let Some(now) = now {
            stream.measure(now);
        }
        let may_hold = stream.credit >= stream.enough;
        let until = now.filter(|_| may_hold).map(|now| now + stream.hold());
        (StreamId { index: index as u8, number: stream.number }, until)
    }

    /// The one that has been quiet for longest.
    fn oldest(&self) -> usize {
        let age = |stream: &Stream| self.clock.wrapping_sub(stream.used);
        (0..STREAMS).max_by_key(|&index| age(&self.streams[index])).unwrap_or(0)
    }

    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        let stream = self.streams.get_mut(usize::from(id.index))?;
        (stream.number == id.number).then_some(stream)
    }

    /// A write of this stream has ended.
    pub(super) fn handle_end(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id) {
            stream.under_way = stream.under_way.saturating_sub(1);
        }
    }

    /// A write of this stream was held; `filled` says whether its row was completed.
    pub(super) fn handle_hold(&mut self, id: StreamId, filled: bool) {
        if let Some(stream) = self.stream(id) {
            if filled {
                stream.enough = ENOUGH;
            } else {
                // The next write comes late because of the hold, and says nothing of the pace.
                stream.came = None;
                stream.credit = 0;
                stream.enough = (2 * stream.enough).min(MOST);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: u64 = 128 << 10;

    /// A write comes; the answers are its stream and whether it may be held.
    fn write(streams: &mut Streams, at: u64, len: u64) -> (StreamId, bool) {
        let (id, hold) = streams.handle_write(at, len, || Duration::ZERO);
        (id, hold.is_some())
    }

    /// A host that keeps `depth` writes under way; answers say which of them may be held.
    fn run(streams: &mut Streams, start: u64, depth: usize, writes: usize) -> Vec<bool> {
        let mut under_way = Vec::new();
        let mut held = Vec::new();
        for number in 0..writes as u64 {
            if under_way.len() == depth {
                streams.handle_end(under_way.remove(0));
            }
            let at = start + number * WRITE;
            let (id, may_hold) = write(streams, at, WRITE);
            under_way.push(id);
            held.push(may_hold);
        }
        under_way.into_iter().for_each(|id| streams.handle_end(id));
        held
    }

    #[test]
    fn a_stream_with_company_is_held_and_one_without_never() {
        let mut streams = Streams::new();
        assert!(!run(&mut streams, 0, 1, 1000).contains(&true));
        for depth in [2, 3, 32] {
            let held = run(&mut streams, 1 << 40, depth, 100);
            assert_eq!(held.iter().position(|&held| held), Some(2));
            assert!(held[2..].iter().all(|&held| held));
            streams = Streams::new();
        }
    }

    #[test]
    fn answers_in_pairs_count_as_company() {
        let mut streams = Streams::new();
        let mut held = 0;
        for pair in 0..100 {
            let at = pair * 2 * WRITE;
            let (first, may_hold) = write(&mut streams, at, WRITE);
            held += u32::from(may_hold);
            let (second, _) = write(&mut streams, at + WRITE, WRITE);
            streams.handle_end(first);
            streams.handle_end(second);
        }
        assert!(held > 90, "{held}");
    }

    #[test]
    fn random_writes_are_not_held() {
        let mut streams = Streams::new();
        let mut seed = 1u64;
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 20) % (1 << 28) * 4096;
            assert!(!write(&mut streams, at, 4096).1);
        }
    }

    /// All of them in a small place, all under way at once: some are near each other by chance.
    #[test]
    fn hardly_any_of_crowded_random_writes_is_held() {
        let mut streams = Streams::new();
        let mut seed = 1u64;
        let mut held = 0;
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (id, may_hold) = write(&mut streams, (seed >> 20) % (1 << 11) * 4096, 4096);
            if may_hold {
                held += 1;
                streams.handle_hold(id, false);
            }
        }
        assert!(held < 100, "{held} of 10000");
    }

    #[test]
    fn a_stream_may_come_out_of_order() {
        let mut streams = Streams::new();
        let mut held = 0;
        for number in 0..1000u64 {
            let number = number / 4 * 4 + [2, 0, 3, 1][(number % 4) as usize];
            held += u32::from(write(&mut streams, number * WRITE, WRITE).1);
        }
        assert!(held > 980, "{held}");
    }

    #[test]
    fn several_streams_are_kept_apart() {
        let mut streams = Streams::new();
        let mut ids = Vec::new();
        for round in 0..20 {
            for stream in 0..8u64 {
                let at = (stream << 40) + round * WRITE;
                let (id, may_hold) = write(&mut streams, at, WRITE);
                ids.push(id);
                assert_eq!(may_hold, round >= 2, "round {round}");
            }
        }
    }

    #[test]
    fn holding_in_vain_makes_it_rarer_and_success_makes_that_good() {
        let mut streams = Streams::new();
        let mut at = 0;
        let mut vain = 0;
        for _ in 0..10_000 {
            let (id, may_hold) = write(&mut streams, at, WRITE);
            at += WRITE;
            if may_hold {
                vain += 1;
                streams.handle_hold(id, false);
            }
        }
        assert!((5..15).contains(&vain), "{vain}");
        let mut until = 0;
        let id = loop {
            until += 1;
            let (id, may_hold) = write(&mut streams, at, WRITE);
            at += WRITE;
            if may_hold {
                break id;
            }
            assert!(until < 2 * MOST);
        };
        streams.handle_hold(id, true);
        assert!(write(&mut streams, at, WRITE).1);
    }

    #[test]
    fn a_forgotten_stream_is_not_mistaken_for_another() {
        let mut streams = Streams::new();
        let (first, _) = write(&mut streams, 0, WRITE);
        for other in 1..=STREAMS as u64 {
            write(&mut streams, other << 40, WRITE);
        }
        assert_eq!(streams.stream(first).map(|stream| stream.number), None);
        streams.handle_end(first);
        streams.handle_hold(first, false);
        assert!(streams.streams.iter().all(|stream| stream.under_way == 1));
    }

    /// How long the last of many writes is held, in µs: of a host with `depth` under way that is
    /// answered `burst` at once, and then sends as many.
    fn last_hold_us(depth: usize, burst: usize, answered_us: u64) -> u128 {
        let (mut streams, mut now) = (Streams::new(), Duration::from_secs(1));
        let (mut under_way, mut hold) = (Vec::new(), None);
        for number in 0..960 {
            if under_way.len() == depth {
                now += Duration::from_micros(answered_us);
                under_way.drain(..burst).for_each(|id| streams.handle_end(id));
            }
            let (id, until) = streams.handle_write(number * WRITE, WRITE, || now);
            under_way.push(id);
            hold = until.map(|until| until - now);
        }
        hold.unwrap().as_micros()
    }

    #[test]
    fn holds_last_for_twice_the_time_of_an_answer() {
        // Each of four is answered in 4 ms; with more at once it takes as long.
        for (burst, answered_us) in [(1, 1000), (2, 2000), (4, 4000)] {
            let hold = last_hold_us(4, burst, answered_us);
            assert!((7500..8500).contains(&hold), "{burst} at once: {hold} µs");
        }
        let hold = last_hold_us(32, 32, 3000);
        assert!((4500..7500).contains(&hold), "{hold} µs");
        // A fast stream, and a slow one.
        assert_eq!(last_hold_us(4, 1, 10), MIN_HOLD.as_micros());
        assert_eq!(last_hold_us(4, 1, 10_000), MAX_HOLD.as_micros());
    }

    #[test]
    fn holding_in_vain_says_nothing_of_the_pace() {
        let (mut streams, mut now) = (Streams::new(), Duration::from_secs(1));
        let mut at = 0;
        let mut write = |streams: &mut Streams, now| {
            at += WRITE;
            streams.handle_write(at, WRITE, || now).0
        };
        for _ in 0..100 {
            now += Duration::from_micros(100);
            let id = write(&mut streams, now);
            streams.handle_hold(id, false);
            streams.handle_end(id);
            now += Duration::from_millis(10);
            let id = write(&mut streams, now);
            streams.handle_end(id);
        }
        let pace = streams.streams.iter().map(|stream| stream.pace_seconds).fold(0.0, f64::max);
        assert!((90e-6..110e-6).contains(&pace), "{pace} s");
    }

    #[test]
    fn random_writes_do_not_ask_for_the_time() {
        let mut streams = Streams::new();
        for number in 0..100u64 {
            let at = (number * 7919 % 100) << 30;
            streams.handle_write(at, 4096, || unreachable!("it is of no stream"));
        }
    }
}
