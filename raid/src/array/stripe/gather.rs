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
//! Writes that come by other cores may come out of order. So one that begins near to where a stream's
//! next write should belongs to it as well, and of a stream that has its credit, one not so near.
//!
//! A core sees only the shards that it owns. Offsets here are therefore within all that it owns, as
//! if that were in one piece.

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

    /// A write has come, of `len_bytes`. Says whether it may be held.
    pub(super) fn handle_write(&mut self, offset_bytes: u64, len_bytes: u64) -> (StreamId, bool) {
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
        let may_hold = stream.credit >= stream.enough;
        (StreamId { index: index as u8, number: stream.number }, may_hold)
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

    /// A host that keeps `depth` writes under way; answers say which of them may be held.
    fn run(streams: &mut Streams, start: u64, depth: usize, writes: usize) -> Vec<bool> {
        let mut under_way = Vec::new();
        let mut held = Vec::new();
        for number in 0..writes as u64 {
            if under_way.len() == depth {
                streams.handle_end(under_way.remove(0));
            }
            let at = start + number * WRITE;
            let (id, may_hold) = streams.handle_write(at, WRITE);
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
            let (first, may_hold) = streams.handle_write(at, WRITE);
            held += u32::from(may_hold);
            let (second, _) = streams.handle_write(at + WRITE, WRITE);
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
            assert!(!streams.handle_write(at, 4096).1);
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
            let (id, may_hold) = streams.handle_write((seed >> 20) % (1 << 11) * 4096, 4096);
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
            held += u32::from(streams.handle_write(number * WRITE, WRITE).1);
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
                let (id, may_hold) = streams.handle_write(at, WRITE);
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
            let (id, may_hold) = streams.handle_write(at, WRITE);
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
            let (id, may_hold) = streams.handle_write(at, WRITE);
            at += WRITE;
            if may_hold {
                break id;
            }
            assert!(until < 2 * MOST);
        };
        streams.handle_hold(id, true);
        assert!(streams.handle_write(at, WRITE).1);
    }

    #[test]
    fn a_forgotten_stream_is_not_mistaken_for_another() {
        let mut streams = Streams::new();
        let (first, _) = streams.handle_write(0, WRITE);
        for other in 1..=STREAMS as u64 {
            streams.handle_write(other << 40, WRITE);
        }
        assert_eq!(streams.stream(first).map(|stream| stream.number), None);
        streams.handle_end(first);
        streams.handle_hold(first, false);
        assert!(streams.streams.iter().all(|stream| stream.under_way == 1));
    }
}
