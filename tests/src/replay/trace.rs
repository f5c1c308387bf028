//! What happened in a run, in one order: the requests of each member's device, and what the host
//! began and had acknowledged. Read from the text that `tests/guest/replay` makes of the
//! kernel's trace.
//!
//! Times are line numbers. A request began when the engine handed it to the kernel, and ended
//! before the engine could know of it; a host's operation was told of before it was sent, and
//! after its answer had come. So whatever follows from something else comes after it here.

use std::collections::{HashMap, VecDeque};

/// A place in the order of events.
pub type Time = usize;
/// The time of what never happened.
pub const NEVER: Time = usize::MAX;

/// What a request of a member asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A write; with FUA it is durable when it has ended.
    Write {
        /// With FUA.
        fua: bool,
    },
    /// A discard, after which anything may be read.
    Discard,
    /// A flush.
    Flush,
}

/// A request of a member.
#[derive(Clone, Debug)]
pub struct Request {
    /// What it asks for.
    pub kind: Kind,
    /// Where, in sectors of 512 bytes.
    pub sector: u64,
    /// How much.
    pub sectors: u64,
    /// When it was handed to the device.
    pub begin: Time,
    /// When it had ended.
    pub end: Time,
}

/// A write of the host.
#[derive(Clone, Debug)]
pub struct HostWrite {
    /// Its number, which makes its contents.
    pub id: u64,
    /// The first block.
    pub block: u64,
    /// How many.
    pub blocks: u64,
    /// It writes zeros.
    pub zeros: bool,
    /// When it began.
    pub begin: Time,
    /// When it was acknowledged.
    pub end: Time,
    /// When it had to survive a loss of power: after its own FUA, or a flush that began later.
    pub durable: Time,
    fua: bool,
}

/// A run.
#[derive(Debug, Default)]
pub struct Trace {
    /// Each member's requests, as they began.
    pub members: Vec<Vec<Request>>,
    /// The host's writes, as they began.
    pub writes: Vec<HostWrite>,
    /// When the first sync was over; never, if nobody waited for it.
    pub synced: Option<Time>,
    /// The end of all.
    pub end: Time,
}

/// Reads a run of so many members, whose devices have minor numbers from `first_minor` on.
///
/// # Errors
/// A line that does not make sense, or a request that failed.
pub fn read(text: &str, members: usize, first_minor: u64) -> Result<Trace, String> {
    let mut reader = Reader {
        first_minor,
        trace: Trace { members: vec![Vec::new(); members], ..Trace::default() },
        ..Reader::default()
    };
    for (time, line) in text.lines().enumerate() {
        reader.line(time, line).map_err(|what| format!("line {}: {what}: {line}", time + 1))?;
    }
    reader.trace.end = text.lines().count();
    reader.finish()
}

#[derive(Default)]
struct Reader {
    first_minor: u64,
    trace: Trace,
    /// Requests under way, by what their end repeats.
    open: HashMap<(usize, Kind, u64, u64), VecDeque<usize>>,
    by_id: HashMap<u64, usize>,
    /// Begin and end of the host's flushes, by their numbers.
    flushes: HashMap<u64, (Time, Time)>,
}

impl Reader {
    fn line(&mut self, time: Time, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| -> Result<u64, String> {
            let word = words.get(at).ok_or("a word is missing")?;
            word.parse().map_err(|_| format!("{word:?} is no number"))
        };
        match words[0] {
            "Q" | "C" => {
                let member = number(1)?.checked_sub(self.first_minor).ok_or("no member")? as usize;
                let (sector, sectors) = (number(3)?, number(4)?);
                let kind = kind(words.get(2).copied().unwrap_or_default(), sectors)?;
                if words[0] == "Q" {
                    return self.begun(time, member, kind, sector, sectors);
                }
                if words.get(5) != Some(&"0") {
                    return Err("a request failed".into());
                }
                self.ended(time, (member, kind, sector, sectors))
            }
            "S" => {
                let what = words.get(4).copied().unwrap_or_default();
                let (id, writes) = (number(1)?, &mut self.trace.writes);
                self.by_id.insert(id, writes.len());
                writes.push(HostWrite {
                    id,
                    block: number(2)?,
                    blocks: number(3)?,
                    zeros: what == "z",
                    begin: time,
                    end: NEVER,
                    durable: NEVER,
                    fua: what == "f",
                });
                Ok(())
            }
            "A" => {
                let at = *self.by_id.get(&number(1)?).ok_or("no such write")?;
                self.trace.writes[at].end = time;
                Ok(())
            }
            "F" => {
                self.flushes.insert(number(1)?, (time, NEVER));
                Ok(())
            }
            "G" => {
                self.flushes.get_mut(&number(1)?).ok_or("no such flush")?.1 = time;
                Ok(())
            }
            "Y" => {
                self.trace.synced = self.trace.synced.or(Some(time));
                Ok(())
            }
            _ => Err("not understood".into()),
        }
    }

    fn begun(
        &mut self,
        begin: Time,
        member: usize,
        kind: Kind,
        sector: u64,
        sectors: u64,
    ) -> Result<(), String> {
        let requests = self.trace.members.get_mut(member).ok_or("no such member")?;
        self.open.entry((member, kind, sector, sectors)).or_default().push_back(requests.len());
        requests.push(Request { kind, sector, sectors, begin, end: NEVER });
        Ok(())
    }

    fn ended(&mut self, time: Time, key: (usize, Kind, u64, u64)) -> Result<(), String> {
        let begun = self.open.get_mut(&key).and_then(VecDeque::pop_front);
        self.trace.members[key.0][begun.ok_or("it has not begun")?].end = time;
        Ok(())
    }

    fn finish(mut self) -> Result<Trace, String> {
        if self.open.values().any(|open| !open.is_empty()) {
            return Err("requests have not ended".into());
        }
        let mut flushes: Vec<_> = self.flushes.into_values().collect();
        flushes.sort_unstable();
        for write in &mut self.trace.writes {
            let later = flushes.iter().filter(|(begin, _)| *begin > write.end);
            let flushed = later.map(|(_, end)| *end).min().unwrap_or(NEVER);
            write.durable = if write.fua { write.end } else { flushed };
        }
        Ok(self.trace)
    }
}

/// A request's kind, from the letters of the kernel's `rwbs`: F before W is a flush, behind it FUA.
fn kind(letters: &str, sectors: u64) -> Result<Kind, String> {
    match letters.split_once('W') {
        Some(("F", _)) if sectors == 0 => Ok(Kind::Flush),
        Some(("", rest)) => Ok(Kind::Write { fua: rest.contains('F') }),
        None if letters == "FF" || letters == "F" => Ok(Kind::Flush),
        None if letters.starts_with('D') => Ok(Kind::Discard),
        _ => Err(format!("a request of kind {letters}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_operations_find_their_ends() {
        let text = "S 1 8 2 w\nQ 7 WS 64 16 \nQ 8 WFS 64 8\nC 8 WFS 64 8 0\nC 7 WS 64 16 0\nA 1\n\
                    F 1\nQ 7 FWS 0 0\nC 7 FWS 0 0 0\nG 1\nS 2 0 1 f\nA 2\nS 3 0 1 z\nY\nY";
        let trace = read(text, 2, 7).unwrap();
        let times: Vec<_> = trace.members[0].iter().map(|r| (r.kind, r.begin, r.end)).collect();
        assert_eq!(times, [(Kind::Write { fua: false }, 1, 4), (Kind::Flush, 7, 8)]);
        assert_eq!(trace.members[1][0].kind, Kind::Write { fua: true });
        let durable: Vec<_> = trace.writes.iter().map(|write| write.durable).collect();
        assert_eq!(durable, [9, 11, NEVER]);
        assert_eq!((trace.synced, trace.end), (Some(13), 15));
    }

    #[test]
    fn a_flush_under_way_makes_nothing_durable_that_ended_meanwhile() {
        let trace = read("S 1 0 1 w\nF 1\nA 1\nG 1\nF 2", 1, 0).unwrap();
        assert_eq!(trace.writes[0].durable, NEVER);
    }

    #[test]
    fn failed_and_unknown_requests_are_errors() {
        assert!(read("Q 0 WS 0 8\nC 0 WS 0 8 -5", 1, 0).is_err());
        assert!(read("Q 0 WS 0 8", 1, 0).is_err());
        assert!(read("C 0 WS 0 8 0", 1, 0).is_err());
        assert!(read("Q 0 FWS 0 8", 1, 0).is_err());
        assert!(read("split", 1, 0).is_err());
    }
}
