//! The log of a dm-log-writes device: what was written, in the order in which it ended, except that
//! what had no FUA stands before the next flush. The format is in the kernel's
//! `drivers/md/dm-log-writes.c`: a superblock in the first sector, then for each request a sector
//! that describes it (sector, length, flags, length of a mark), and its data.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::trace::{Kind, Request};

const SECTOR_BYTES: u64 = 512;
const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// Where the data of each of a member's requests lie in the log file, in bytes; `None` for those
/// that have none.
pub type Places = Vec<Option<u64>>;

/// Finds the data of a member's requests in its log, which begins at `begin_bytes`.
///
/// # Errors
/// No log is there, or it does not tell the same as the trace.
pub fn places(file: &File, begin_bytes: u64, requests: &[Request]) -> io::Result<Places> {
    let word = |sector: u64, at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, begin_bytes + sector * SECTOR_BYTES + at * 8)?;
        io::Result::Ok(u64::from_le_bytes(bytes))
    };
    if word(0, 0)? != MAGIC || word(0, 1)? != 1 || word(0, 3)? & 0xFFFF_FFFF != SECTOR_BYTES {
        return Err(io::Error::other("no log of dm-log-writes"));
    }
    let mut logged: HashMap<(Kind, u64, u64), VecDeque<u64>> = HashMap::new();
    let mut at = 1;
    for _ in 0..word(0, 2)? {
        let (sector, sectors, flags) = (word(at, 0)?, word(at, 1)?, word(at, 2)?);
        at += 1;
        if flags & MARK != 0 || (flags & FLUSH != 0 && sectors == 0) {
            continue;
        }
        let discard = flags & DISCARD != 0;
        let kind = if discard { Kind::Discard } else { Kind::Write { fua: flags & FUA != 0 } };
        let place = begin_bytes + at * SECTOR_BYTES;
        logged.entry((kind, sector, sectors)).or_default().push_back(place);
        at += if discard { 0 } else { sectors };
    }
    // What is equal in kind and place ended in the order of the log.
    let mut by_end: Vec<usize> = (0..requests.len()).collect();
    by_end.sort_unstable_by_key(|at| requests[*at].end);
    let mut places = vec![None; requests.len()];
    for at in by_end {
        let request = &requests[at];
        if request.kind == Kind::Flush {
            continue;
        }
        let key = (request.kind, request.sector, request.sectors);
        let place = logged.get_mut(&key).and_then(VecDeque::pop_front);
        let place = place.ok_or_else(|| io::Error::other(format!("not logged: {request:?}")))?;
        places[at] = (request.kind != Kind::Discard).then_some(place);
    }
    match logged.iter().find(|(_, places)| !places.is_empty()) {
        Some((what, _)) => Err(io::Error::other(format!("logged, but not in the trace: {what:?}"))),
        None => Ok(places),
    }
}
