//! Chunks of a row from the others.
//!
//! A chunk that is wanted is written as a sum of chunks that are there. With data chunks `x` and
//! `y` not there, and `P'` and `Q'` the sums of what is there of P's and Q's equations:
//! ```text
//! one lost, with P:   dx = P'
//! one lost, with Q:   dx = Q' / 2^x
//! two lost:           dx + dy = P',  2^x dx + 2^y dy = Q'
//!               =>    dx = (2^y P' + Q') / (2^x + 2^y),  dy = P' + dx
//! ```
//! P and Q, if they are wanted, are their definitions with these sums put in. What has been
//! computed counts as there for what is computed next, which so becomes a plain sum.

use std::ops::Range;

use super::field::{over, power, times};
use super::list::List;
use super::{BLOCK_BYTES, Kernel, MAX_DATA_CHUNKS, Term, check_count, store_for};
use crate::geometry::Role;

/// Why a chunk cannot be computed from those that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReconstructError {
    /// More data chunks are not there than parity chunks are.
    #[error("{missing} data chunks are missing, and only {parities} parity chunks are there")]
    TooManyMissing {
        /// Number of data chunks that are not there.
        missing: usize,
        /// Number of parity chunks that are there.
        parities: usize,
    },
}

/// No row can lack more chunks than this and still yield them.
const MAX_WANTED: usize = 2;

/// The factors of all chunks of a row in a sum; zero for those that are not in it.
#[derive(Clone, Copy)]
struct Combination {
    data: [u8; MAX_DATA_CHUNKS],
    p: u8,
    q: u8,
}

impl Combination {
    const ZERO: Self = Self { data: [0; MAX_DATA_CHUNKS], p: 0, q: 0 };

    /// Adds a multiple of another combination.
    fn add(&mut self, other: &Self, factor: u8) {
        for (mine, &its) in self.data.iter_mut().zip(&other.data) {
            *mine ^= times(its, factor);
        }
        self.p ^= times(other.p, factor);
        self.q ^= times(other.q, factor);
    }
}

/// Which chunks of a row are there: only their presence is looked at.
struct Present {
    data: [bool; MAX_DATA_CHUNKS],
    count: usize,
    p: bool,
}

impl Present {
    fn missing(&self) -> impl Iterator<Item = usize> {
        (0..self.count).filter(|&index| !self.data[index])
    }

    /// P', or with `coefficient` [`power`] Q' without Q itself: a sum of the data that is there.
    fn data_sum(&self, coefficient: impl Fn(usize) -> u8) -> Combination {
        let mut sum = Combination::ZERO;
        for index in (0..self.count).filter(|&index| self.data[index]) {
            sum.data[index] = coefficient(index);
        }
        sum
    }

    fn p_rest(&self) -> Combination {
        Combination { p: 1, ..self.data_sum(|_| 1) }
    }

    fn q_rest(&self) -> Combination {
        Combination { q: 1, ..self.data_sum(power) }
    }

    /// Data chunk `x`, which is not there, as a sum of what is. Enough is there.
    fn lost_data(&self, x: usize) -> Combination {
        let other = self.missing().find(|&index| index != x);
        let mut sum = Combination::ZERO;
        match other {
            None if self.p => sum.add(&self.p_rest(), 1),
            None => sum.add(&self.q_rest(), over(1, power(x))),
            Some(y) => {
                let determinant = power(x) ^ power(y);
                sum.add(&self.p_rest(), over(power(y), determinant));
                sum.add(&self.q_rest(), over(1, determinant));
            }
        }
        sum
    }

    /// Any chunk that is not there as a sum of what is.
    fn lost(&self, role: Role) -> Combination {
        let coefficient = |index| if role == Role::Q { power(index) } else { 1 };
        match role {
            Role::Data(index) => self.lost_data(index),
            Role::P | Role::Q => {
                let mut sum = self.data_sum(coefficient);
                for index in self.missing() {
                    sum.add(&self.lost_data(index), coefficient(index));
                }
                sum
            }
        }
    }
}

/// The chunks of a row that are there.
#[derive(Clone, Copy)]
struct Row<'a> {
    data: &'a [Option<&'a [u8]>],
    p: Option<&'a [u8]>,
    q: Option<&'a [u8]>,
}

impl Kernel {
    /// Computes chunks that are not there (`None`) from those that are. `data` are all data chunks
    /// of the row by index. `wanted` are one or two of those that are not there, each with the
    /// place for it; what else is not there need not be wanted.
    ///
    /// With P lost too, one data chunk comes from Q; two come from P and Q together; P and Q can be
    /// computed besides data, or alone.
    ///
    /// # Errors
    /// `TooManyMissing` if more data chunks are missing than parity chunks are there; then nothing
    /// has been written.
    ///
    /// # Panics
    /// If lengths differ, there are more than [`MAX_DATA_CHUNKS`], or something is wanted that is
    /// there, twice, or beyond the row.
    pub fn reconstruct(
        self,
        data: &[Option<&[u8]>],
        p: Option<&[u8]>,
        q: Option<&[u8]>,
        wanted: &mut [(Role, &mut [u8])],
    ) -> Result<(), ReconstructError> {
        check_count(data);
        let row = Row { data, p, q };
        check_wanted(row, wanted);
        let missing = data.iter().filter(|chunk| chunk.is_none()).count();
        let parities = usize::from(p.is_some()) + usize::from(q.is_some());
        if missing > parities {
            return Err(ReconstructError::TooManyMissing { missing, parities });
        }
        match wanted {
            [] => {}
            [(Role::P, p)] if missing == 0 => self.p(data, p),
            [(Role::Q, q)] if missing == 0 => self.q(data, q),
            [(Role::P, p), (Role::Q, q)] | [(Role::Q, q), (Role::P, p)] if missing == 0 => {
                self.pq(data, p, q);
            }
            _ => self.combine(row, wanted),
        }
        Ok(())
    }

    /// Computes what is wanted as sums, one after the other.
    fn combine(self, row: Row<'_>, wanted: &mut [(Role, &mut [u8])]) {
        let mut present =
            Present { data: [false; MAX_DATA_CHUNKS], count: row.data.len(), p: row.p.is_some() };
        for (present, chunk) in present.data.iter_mut().zip(row.data) {
            *present = chunk.is_some();
        }
        let mut sums = [Combination::ZERO; MAX_WANTED];
        for (sum, (role, _)) in sums.iter_mut().zip(wanted.iter()) {
            *sum = present.lost(*role);
            if let Role::Data(index) = *role {
                present.data[index] = true;
            }
        }
        let len = wanted.first().map_or(0, |(_, out)| out.len());
        let step = if wanted.len() == 1 { len.max(1) } else { BLOCK_BYTES };
        for at in (0..len).step_by(step) {
            let block = at..len.min(at + step);
            for (n, sum) in sums.iter().enumerate().take(wanted.len()) {
                let (done, rest) = wanted.split_at_mut(n);
                self.add_up(row, done, sum, block.clone(), rest[0].1);
            }
        }
    }

    /// Computes a block of `out` as a sum of what is there and what is `done`.
    fn add_up(
        self,
        row: Row<'_>,
        done: &[(Role, &mut [u8])],
        sum: &Combination,
        block: Range<usize>,
        out: &mut [u8],
    ) {
        let find = |index| {
            let is_it = |(role, _): &&(Role, &mut [u8])| *role == Role::Data(index);
            done.iter().find(is_it).map(|(_, chunk)| &**chunk)
        };
        let data = row.data.iter().enumerate().map(|(index, chunk)| chunk.or_else(|| find(index)));
        let factors = sum.data.iter().copied();
        let chunks = data.zip(factors).chain([(row.p, sum.p), (row.q, sum.q)]);
        let (mut terms, mut sources, mut plain) = (List::new(), List::new(), true);
        for (chunk, factor) in chunks {
            let (Some(chunk), 1..) = (chunk, factor) else { continue };
            let chunk = &chunk[block.clone()];
            terms.push(Term { chunk, factor });
            sources.push(chunk);
            plain &= factor == 1;
        }
        let out = &mut out[block];
        if plain {
            self.xor(out, sources.as_slice());
        } else {
            let store = store_for(&[out]);
            self.call_sum(out, terms.as_slice(), store);
        }
    }
}

/// Panics if what is wanted is there, wanted twice, or not of the row, or if lengths differ.
fn check_wanted(row: Row<'_>, wanted: &[(Role, &mut [u8])]) {
    for (n, (role, out)) in wanted.iter().enumerate() {
        let is_lost = match *role {
            Role::Data(index) => row.data.get(index).is_some_and(Option::is_none),
            Role::P => row.p.is_none(),
            Role::Q => row.q.is_none(),
        };
        assert!(is_lost, "{role:?} is wanted and not missing");
        assert!(wanted[..n].iter().all(|(other, _)| other != role), "{role:?} is wanted twice");
        let there = row.data.iter().flatten().chain(&row.p).chain(&row.q);
        let lengths_equal = there.map(|chunk| chunk.len()).all(|len| len == out.len());
        assert!(lengths_equal, "chunks of one row differ in length");
    }
}
