//! What a loss of power at some moment can leave on a member: everything that a FUA or a flush had
//! made durable, and of the other writes that had begun any part, in units that the drive writes
//! whole.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::log::Places;
use super::trace::{Kind, NEVER, Request, Time};
use crate::data::Random;

const SECTOR_BYTES: usize = 512;
/// Hosts' blocks are torn only where their drives' are (`docs/` says that 4096 over 512 may be);
/// here they are not. What lies before the data is torn at sectors.
const BLOCK_BYTES: usize = 4096;

/// How much of what was not flushed is there after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Nothing.
    Nothing,
    /// Everything.
    Everything,
    /// Each write, whole, with this chance in a hundred.
    Some(u64),
    /// Each unit of each write, with even chances.
    Torn,
}

/// A member, replayed up to some moment.
pub struct Member {
    requests: Vec<Request>,
    /// When each request's write was durable.
    durable: Vec<Time>,
    places: Places,
    log: File,
    /// What all writes before `applied` have left.
    base: Vec<u8>,
    applied: usize,
    /// Where data begin, in bytes.
    data_offset_bytes: usize,
}

impl Member {
    /// A member that was blank before its first request.
    pub fn new(
        requests: Vec<Request>,
        places: Places,
        log: File,
        size_bytes: usize,
        data_offset_bytes: usize,
    ) -> Self {
        let durable = durable(&requests);
        let base = vec![0; size_bytes];
        Self { requests, durable, places, log, base, applied: 0, data_offset_bytes }
    }

    /// The member after a loss of power just before `now`. Times must not go back.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn image(
        &mut self,
        now: Time,
        survival: Survival,
        random: &mut Random,
    ) -> io::Result<Vec<u8>> {
        while self.durable.get(self.applied).is_some_and(|durable| *durable < now) {
            self.apply(self.applied)?;
            self.applied += 1;
        }
        let mut image = self.base.clone();
        let begun = self.requests.partition_point(|request| request.begin < now);
        for at in self.applied..begun {
            let Some((begin, data)) = self.data(at, random)? else { continue };
            let survival = if self.durable[at] < now { Survival::Everything } else { survival };
            let whole = match survival {
                Survival::Nothing => false,
                Survival::Everything => true,
                Survival::Some(chance) => random.below(100) < chance,
                Survival::Torn => {
                    self.tear(&mut image, begin, &data, random);
                    false
                }
            };
            if whole {
                image[begin..begin + data.len()].copy_from_slice(&data);
            }
        }
        Ok(image)
    }

    fn apply(&mut self, at: usize) -> io::Result<()> {
        // What a discard leaves need not be the same each time.
        if let Some((begin, data)) = self.data(at, &mut Random::new(at as u64))? {
            self.base[begin..begin + data.len()].copy_from_slice(&data);
        }
        Ok(())
    }

    fn data(&self, at: usize, random: &mut Random) -> io::Result<Option<(usize, Vec<u8>)>> {
        let request = &self.requests[at];
        let length = request.sectors as usize * SECTOR_BYTES;
        let data = match (request.kind, self.places[at]) {
            (Kind::Flush, _) => return Ok(None),
            (_, Some(place)) => {
                let mut data = vec![0; length];
                self.log.read_exact_at(&mut data, place)?;
                data
            }
            (_, None) => random.bytes(length).to_vec(),
        };
        Ok(Some((request.sector as usize * SECTOR_BYTES, data)))
    }

    fn tear(&self, image: &mut [u8], begin: usize, data: &[u8], random: &mut Random) {
        let mut done = 0;
        while done < data.len() {
            let at = begin + done;
            let unit = if at < self.data_offset_bytes { SECTOR_BYTES } else { BLOCK_BYTES };
            let end = (at - at % unit + unit - begin).min(data.len());
            if random.below(2) == 0 {
                image[at..begin + end].copy_from_slice(&data[done..end]);
            }
            done = end;
        }
    }
}

/// When each request was durable: when it had ended, with FUA; else when a flush had, that began
/// after it ended. (Flushes never come to be, themselves, anything that could be lost.)
fn durable(requests: &[Request]) -> Vec<Time> {
    let flushes: Vec<_> = requests.iter().filter(|r| r.kind == Kind::Flush).collect();
    let by = |request: &Request| match request.kind {
        Kind::Flush => request.begin,
        Kind::Write { fua: true } => request.end,
        Kind::Write { fua: false } | Kind::Discard => flushes
            .iter()
            .skip(flushes.partition_point(|flush| flush.begin <= request.end))
            .map(|flush| flush.end)
            .min()
            .unwrap_or(NEVER),
    };
    requests.iter().map(by).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn write(fua: bool, sector: u64, begin: Time, end: Time) -> Request {
        Request { kind: Kind::Write { fua }, sector, sectors: 8, begin, end }
    }

    fn flush(begin: Time, end: Time) -> Request {
        Request { kind: Kind::Flush, sector: 0, sectors: 0, begin, end }
    }

    /// Writes of ones, twos, threes, each of 4096 bytes.
    fn member(requests: Vec<Request>) -> Member {
        let mut log = tempfile::tempfile().unwrap();
        let places = (0..requests.len()).map(|at| Some(at as u64 * 4096)).collect();
        for at in 0..requests.len() {
            log.write_all(&[at as u8 + 1; 4096]).unwrap();
        }
        Member::new(requests, places, log, 64 << 10, 32 << 10)
    }

    #[test]
    fn a_flush_keeps_what_had_ended_before_it_began() {
        let requests = vec![write(false, 0, 0, 2), write(false, 8, 1, 4), flush(3, 6)];
        assert_eq!(durable(&requests)[..2], [6, NEVER]);
        let mut member = member(requests);
        let mut image = |now, survival| member.image(now, survival, &mut Random::new(1)).unwrap();
        assert_eq!(image(6, Survival::Nothing)[0], 0, "the flush has not ended");
        assert_eq!(image(7, Survival::Nothing)[0], 1);
        assert_eq!(image(7, Survival::Nothing)[4096], 0, "it ended after the flush began");
        assert_eq!(image(7, Survival::Everything)[4096], 2);
    }

    #[test]
    fn an_older_write_does_not_cover_a_durable_one() {
        let mut member = member(vec![write(false, 0, 0, 1), write(true, 0, 2, 3), flush(5, 6)]);
        for now in [4, 8] {
            let image = member.image(now, Survival::Everything, &mut Random::new(1)).unwrap();
            assert_eq!(image[0], 2, "at {now}");
        }
    }

    #[test]
    fn writes_tear_at_sectors_before_the_data_and_at_blocks_within() {
        let mut units = [false; 2];
        for seed in 0..50 {
            let mut member = member(vec![write(false, 0, 0, 1), write(false, 80, 0, 1)]);
            let image = member.image(5, Survival::Torn, &mut Random::new(seed)).unwrap();
            units[0] |= image[0] != image[512];
            units[1] |= image[40 << 10] != 0;
            let data = &image[40 << 10..44 << 10];
            assert!(data.iter().all(|byte| *byte == data[0]), "a block was torn");
        }
        assert_eq!(units, [true; 2]);
    }
}
