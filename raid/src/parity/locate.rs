//! Which chunk of a row is not what it should be.
//!
//! If one chunk is wrong by an error `e`, byte by byte, then P as computed from the data differs
//! from P as read by a difference `p`, and Q by `q`:
//! ```text
//! data chunk i wrong:   p = e,   q = 2^i e      so that q / p = 2^i tells which
//! P wrong:              p = e,   q = 0
//! Q wrong:              p = 0,   q = e
//! ```
//! Two wrong chunks may by chance look like one in a byte, but hardly in many alike.

use super::field::{logarithm, over};
use super::list::List;
use super::{Kernel, check_count};

/// What the differences of P and Q say about a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// Nothing: both are right.
    Consistent,
    /// Only the data chunk of this index can be wrong, if one is.
    Data(usize),
    /// Only P can be wrong.
    P,
    /// Only Q can be wrong.
    Q,
    /// More than one chunk is wrong.
    Several,
}

impl Located {
    /// What one more byte says, beside what is known.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Consistent, other) => other,
            (known, Self::Consistent) => known,
            (known, other) if known == other => known,
            _ => Self::Several,
        }
    }
}

/// So much of the differences is computed at a time, on the stack.
const SCRATCH_BYTES: usize = 2 << 10;

/// What P and Q as computed differ by from P and Q as read, in a block.
struct Differences {
    p: [u8; SCRATCH_BYTES],
    q: [u8; SCRATCH_BYTES],
}

impl Kernel {
    /// Finds the one chunk that makes a row inconsistent, if it is one. All chunks of the row are
    /// there.
    ///
    /// # Panics
    /// If lengths differ, or there are more than [`MAX_DATA_CHUNKS`](super::MAX_DATA_CHUNKS).
    pub fn locate(self, data: &[&[u8]], p: &[u8], q: &[u8]) -> Located {
        let mut known = Located::Consistent;
        self.differences(data, Some(p), Some(q), |differences| {
            for (&p, &q) in differences.p.iter().zip(&differences.q) {
                known = known.and(located(p, q, data.len()));
            }
            known != Located::Several
        });
        known
    }

    /// Whether the parity that is given, P, Q or both, is that of the data.
    ///
    /// # Panics
    /// If lengths differ, or there are more than [`MAX_DATA_CHUNKS`](super::MAX_DATA_CHUNKS).
    pub fn is_consistent(self, data: &[&[u8]], p: Option<&[u8]>, q: Option<&[u8]>) -> bool {
        let mut consistent = true;
        self.differences(data, p, q, |_| {
            consistent = false;
            false
        });
        consistent
    }

    /// Calls `visit` for the blocks in which there are differences, until it says `false`. A parity
    /// that is not given does not differ.
    fn differences(
        self,
        data: &[&[u8]],
        p: Option<&[u8]>,
        q: Option<&[u8]>,
        mut visit: impl FnMut(&Differences) -> bool,
    ) {
        let Some(len) = p.or(q).map(<[u8]>::len) else { return };
        let mut chunks = data.iter().copied().chain(p).chain(q);
        assert!(chunks.all(|chunk| chunk.len() == len), "chunks of one row differ in length");
        let mut differences = Differences { p: [0; SCRATCH_BYTES], q: [0; SCRATCH_BYTES] };
        for at in (0..len).step_by(SCRATCH_BYTES) {
            let block = at..len.min(at + SCRATCH_BYTES);
            let used = block.end - block.start;
            let mut list = List::new();
            data.iter().for_each(|chunk| list.push(Some(&chunk[block.clone()])));
            check_count(list.as_slice());
            // Behind the last block's end nothing must be left from the one before.
            differences.p[used..].fill(0);
            differences.q[used..].fill(0);
            let (p_sum, q_sum) = (&mut differences.p[..used], &mut differences.q[..used]);
            match (p, q) {
                (Some(_), Some(_)) => self.pq(list.as_slice(), p_sum, q_sum),
                (Some(_), None) => self.p(list.as_slice(), p_sum),
                (None, _) => self.q(list.as_slice(), q_sum),
            }
            for (sum, read) in [(p_sum, p), (q_sum, q)] {
                if let Some(read) = read {
                    self.xor_into(sum, &[&read[block.clone()]]);
                }
            }
            const ZEROS: [u8; SCRATCH_BYTES] = [0; SCRATCH_BYTES];
            let differ = differences.p != ZEROS || differences.q != ZEROS;
            if differ && !visit(&differences) {
                return;
            }
        }
    }
}

/// What the differences in one byte say.
fn located(p: u8, q: u8, chunks: usize) -> Located {
    match (p, q) {
        (0, 0) => Located::Consistent,
        (_, 0) => Located::P,
        (0, _) => Located::Q,
        _ => match logarithm(over(q, p)) {
            index if index < chunks => Located::Data(index),
            _ => Located::Several,
        },
    }
}
