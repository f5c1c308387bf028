//! Long tasks on an array: rebuild, resync, check and repair. One at a time, the most urgent first.
//!
//! One core runs [`Array::recover`], which walks the array shard by shard in order; the work on a
//! shard is done by its owner, under the same locks as writes. Several shards are under way at once
//! while the host is idle. When all of the first ones are done, the *position* advances.
//!
//! * **Rebuild** fills members that came ([`Shared::add_member`](super::Shared::add_member)). They
//!   get all writes from the start; what is below the position is read from them, too. At the end
//!   all members are flushed, and the members are in sync. A member that came back and lacks only
//!   what was written meanwhile is filled there only.
//! * **Resync** makes copies equal, or parity right, where they may not be: in regions that were
//!   being written when the array crashed, and from the resync position on. Then these are relied
//!   on.
//! * **Check** reads everything and compares. What cannot be read from a member is written there
//!   again; what differs is counted, and put right if that is asked for.
//!
//! What holds for all of them:
//! * Before a position is recorded all members are flushed; it is the one from before the flush. So
//!   a task that was killed goes on from where the superblocks say. (A check is not recorded: it
//!   ends with the process.)
//! * A position never advances over what is not so: not if a write has left copies unequal, nor if
//!   a member has come or gone whose part was not done.
//! * A task makes way for the host's requests ([`pace`]), and for a more urgent task.
//! * Lack of space below a member, or of memory, makes it wait and try again. A member that fails
//!   is out; if it was being rebuilt, that rebuild is over. A source that cannot be read costs the
//!   blocks concerned at most. These are noted as bad, together for what is done under one lock;
//!   while a list of bad blocks has no room for them the task waits at its position.
//!
//! The parts: what comes next ([`plan`]), how fast ([`pace`]), which shards ([`window`]), the
//! numbers ([`progress`]), what all cores share of it ([`control`]), the walk ([`walk`]), and the
//! owners' work on copies ([`mirror`]) and on rows ([`rows`]).

mod control;
mod mirror;
mod pace;
mod plan;
mod progress;
mod rows;
#[cfg(test)]
mod tests;
mod walk;
mod window;

use std::cell::RefCell;
use std::ops::Range;

pub use control::{CheckReport, Mismatch, RecoveryState, RecoveryStatus};
pub(in crate::array) use control::{Control, Limits};
pub(in crate::array) use mirror::Likeness;
pub use plan::CheckMode;
pub use progress::Limit;

use super::{Array, Done};
use crate::drive::Drive;

/// What is done of each copy, or of each chunk, under one lock.
const PIECE_BYTES: u64 = 256 << 10;

/// With less memory than for this much of a copy nothing is tried.
const MIN_PIECE_BYTES: u64 = 64 << 10;

/// Places on members that hold nothing to be believed from now on, by slot: collected while a range
/// is held, and noted together before it is let go.
#[derive(Debug, Default)]
struct Lost(RefCell<Vec<(usize, Range<u64>)>>);

impl Lost {
    fn add(&self, slot: usize, range: Range<u64>) {
        self.0.borrow_mut().push((slot, range));
    }
}

/// What a shard's owner does of a long task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::array) enum Chore {
    /// Make copies equal, or parity right, where they need not be.
    Sync,
    /// Fill the members that are being rebuilt.
    Rebuild,
    /// Compare.
    Check(CheckMode),
}

impl<D: Drive> Array<D> {
    /// Does a part of a long task, on the owner of the shard that it is in.
    pub(in crate::array) async fn recover_shard(
        &self,
        chore: Chore,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Done {
        if self.shared.geometry().parities() > 0 {
            self.recover_rows(chore, offset_bytes, len_bytes).await
        } else {
            self.recover_mirrors(chore, offset_bytes, len_bytes).await
        }
    }

    /// What has been lost is bad, durably. No member fails for that: if there is no room to note it
    /// the task stops, and what it did since the last position does not count.
    async fn note_lost(&self, lost: Lost) -> Done {
        let lost = lost.0.into_inner();
        if lost.is_empty() {
            return Ok(());
        }
        self.check_not_failed()?;
        let writable = self.writable();
        self.shared
            .add_bad_blocks(lost.into_iter().filter(|(slot, _)| writable.contains(*slot)))?;
        self.settled(None).await
    }
}

/// Whether all bytes are zero.
fn is_zero(data: &[u8]) -> bool {
    // In lines of 64 bytes without a branch inside, which the compiler vectorises.
    data.chunks(64).all(|line| line.iter().fold(0, |all, byte| all | byte) == 0)
}

/// The runs of blocks of a range of `len` bytes for which `differs` says so.
fn differing_runs(
    len: usize,
    block_bytes: usize,
    differs: impl Fn(Range<usize>) -> bool,
) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for start in (0..len).step_by(block_bytes) {
        let block = start..len.min(start + block_bytes);
        if !differs(block.clone()) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == block.start => run.end = block.end,
            _ => runs.push(block),
        }
    }
    runs
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn zeros_are_recognised_to_the_last_byte() {
        for len in [1, 63, 64, 65, 4096] {
            let mut data = vec![0; len];
            assert!(is_zero(&data));
            data[len - 1] = 1;
            assert!(!is_zero(&data));
        }
        assert!(is_zero(&[]));
    }

    #[test]
    fn blocks_that_differ_are_joined() {
        let wrong = [false, true, true, false, true];
        let runs = differing_runs(50, 10, |block| wrong[block.start / 10]);
        assert_eq!(runs, [10..30, 40..50]);
        assert_eq!(differing_runs(50, 10, |_| false), []);
        // The last block may be shorter.
        assert_eq!(differing_runs(45, 10, |_| true).first(), Some(&(0..45)));
    }
}
