//! How a part of a row is written or read: pure decisions, no I/O.
//!
//! **Slices.** What is to be written of a row is cut at offsets within the chunk, so that in every
//! *slice* the set of data chunks that change is the same all along. Parity is computed by columns,
//! so slices have nothing to do with each other. A slice is bounded in length, because what has to
//! be read for it is held in memory; one in which all data changes needs nothing read and may be as
//! long as the chunk.
//!
//! **Ways.** For each slice the cheapest way is chosen that gives the *partial parity*, the parity
//! of the data that does not change, of which the new parity is made:
//! * `Full`: all data changes, so there is nothing to know;
//! * `Reconstruct`: read the data that does not change;
//! * `ReadModify`: read the old data that changes and the old parity, and take one from the other.
//!   Only where parity is trusted;
//! * `Decode`: some of the data cannot be read: read everything else, and compute it. Only where
//!   parity is trusted;
//! * `DataOnly`: no member is there to take parity.
//!
//! Reconstruct wins over read-modify where both read the same, as it makes parity right whatever it
//! was. A parity that cannot be read but written (its member is being rebuilt, or has a bad block
//! there) is computed from all data.
//!
//! **The log's wish.** Its records describe runs of neighbouring chunks. If those that change are
//! no such run, the slice is done run by run, one after the other: to count an unchanged chunk
//! between them as changed would let a crash together with the loss of its member take it, though
//! nobody wrote it.

use std::fmt;
use std::ops::{BitAnd, BitOr, Sub};

/// Longest slice in which not all data changes.
pub(super) const MAX_SLICE_BYTES: u32 = 64 << 10;

/// What the buffers of one slice, and of one batch of slices, have together at most.
pub(super) const MAX_BATCH_BYTES: usize = 4 << 20;

/// Most data chunks of a row, so that P and Q have their places behind them in a set.
pub(super) const MAX_DATA_CHUNKS: usize = 64;

/// A set of roles in a row: data chunks by their index, P and Q.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Roles(u128);

impl Roles {
    pub(super) const NONE: Self = Self(0);
    pub(super) const P: Self = Self(1 << MAX_DATA_CHUNKS);
    pub(super) const Q: Self = Self(2 << MAX_DATA_CHUNKS);
    pub(super) const PARITIES: Self = Self(3 << MAX_DATA_CHUNKS);

    /// One data chunk.
    pub(super) fn data(index: usize) -> Self {
        debug_assert!(index < MAX_DATA_CHUNKS);
        Self(1 << index)
    }

    /// The first `count` data chunks.
    pub(super) fn all_data(count: usize) -> Self {
        debug_assert!(count <= MAX_DATA_CHUNKS);
        Self((1 << count) - 1)
    }

    pub(super) fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// How many of the set come before `role`, which is one role: its place in a list of them.
    pub(super) fn place_of(self, role: Self) -> usize {
        (self.0 & (role.0 - 1)).count_ones() as usize
    }

    /// Its members one by one: data in order, then P, then Q.
    pub(super) fn iter(self) -> impl Iterator<Item = Self> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let lowest = left & left.wrapping_neg();
            left ^= lowest;
            (lowest != 0).then_some(Self(lowest))
        })
    }

    /// The indices of its data chunks.
    pub(super) fn indices(self) -> impl Iterator<Item = usize> {
        (self - Self::PARITIES).iter().map(|role| role.0.trailing_zeros() as usize)
    }

    /// The index of a set that is one data chunk.
    pub(super) fn index(self) -> Option<usize> {
        (!self.is_empty() && Self::P.0 > self.0).then(|| self.0.trailing_zeros() as usize)
    }

    /// The first run of neighbouring data chunks.
    fn first_run(self) -> Self {
        let lowest = self.0 & self.0.wrapping_neg();
        Self(self.0 & !self.0.wrapping_add(lowest))
    }
}

impl BitOr for Roles {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Roles {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Sub for Roles {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Debug for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = f.debug_set();
        set.entries(self.indices());
        for (role, name) in [(Self::P, "P"), (Self::Q, "Q")] {
            if self.contains(role) {
                set.entry(&format_args!("{name}"));
            }
        }
        set.finish()
    }
}

/// New data for a part of one data chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) chunk: u16,
    /// Within the chunk, in bytes.
    pub(super) start: u32,
    pub(super) end: u32,
}

/// A range of the chunks of a row in which the same data chunks change all along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    /// Within the chunk, in bytes.
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) modified: Roles,
}

impl Slice {
    pub(super) fn end(&self) -> u32 {
        self.start + self.len
    }
}

/// Where a part begins or ends; room for them is kept by the caller.
pub(super) type Edges = Vec<(u32, u16, bool)>;

/// How slices are cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Data chunks of a row.
    pub(super) data_chunks: usize,
    /// Longest slice in which not all of them change.
    pub(super) max_bytes: u32,
    /// Only runs of neighbouring chunks may change in one slice.
    pub(super) consecutive: bool,
}

impl Cut {
    /// For rows of so many chunks.
    pub(super) fn new(data_chunks: usize, parities: usize, consecutive: bool) -> Self {
        // What is read and what is made of it: every chunk and every parity twice at most.
        let buffers = 2 * (data_chunks + parities);
        let most = (MAX_BATCH_BYTES / buffers.max(1)).max(4096) as u32;
        let most = if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 };
        Self { data_chunks, max_bytes: most.min(MAX_SLICE_BYTES), consecutive }
    }

    /// The slices of all `parts`, which may overlap, in order of their starts. Where a range is
    /// done run by run, its slices follow each other.
    pub(super) fn slices(
        &self,
        parts: impl Iterator<Item = Part>,
        edges: &mut Edges,
        slices: &mut Vec<Slice>,
    ) {
        edges.clear();
        slices.clear();
        for Part { chunk, start, end } in parts {
            if start < end {
                edges.extend([(start, chunk, true), (end, chunk, false)]);
            }
        }
        edges.sort_unstable();
        // How many parts cover each chunk at the place where the sweep is.
        let mut covers = [0u32; MAX_DATA_CHUNKS];
        let mut modified = Roles::NONE;
        // The range that has been found to be the same all along, and is not yet in `slices`.
        let mut open = Slice { start: 0, len: 0, modified };
        for &(at, chunk, begins) in edges.iter() {
            let Some(cover) = covers.get_mut(usize::from(chunk)) else { continue };
            if at > open.end() {
                if modified == open.modified {
                    open.len = at - open.start;
                } else {
                    self.close(open, slices);
                    open = Slice { start: open.end(), len: at - open.end(), modified };
                }
            }
            let role = Roles::data(usize::from(chunk));
            if begins {
                *cover += 1;
                modified = modified | role;
            } else {
                *cover -= 1;
                modified = if *cover == 0 { modified - role } else { modified };
            }
        }
        self.close(open, slices);
    }

    fn close(&self, open: Slice, slices: &mut Vec<Slice>) {
        if open.modified.is_empty() {
            return;
        }
        let is_full = open.modified == Roles::all_data(self.data_chunks);
        let step = if is_full { open.len } else { self.max_bytes };
        let mut start = open.start;
        while start < open.end() {
            let len = step.min(open.end() - start);
            let mut left = open.modified;
            while !left.is_empty() {
                let modified = if self.consecutive { left.first_run() } else { left };
                slices.push(Slice { start, len, modified });
                left = left - modified;
            }
            start += len;
        }
    }
}

/// What of a row can be used, in one range of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Members {
    /// Chunks whose member is there and has the right contents.
    pub(super) readable: Roles,
    /// Chunks whose member takes writes.
    pub(super) writable: Roles,
    /// Parity fits the data.
    pub(super) trusted: bool,
}

/// How a slice is done. See the file's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Full,
    Reconstruct,
    ReadModify,
    Decode,
    DataOnly,
}

/// What is to be done for one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) way: Way,
    /// Chunks to read.
    pub(super) reads: Roles,
    /// Data chunks to compute from what was read.
    pub(super) unknown: Roles,
    /// Chunks to write: data that changes, and parity.
    pub(super) writes: Roles,
}

/// Too much is missing, or parity cannot be trusted where it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unrecoverable;

/// How to write a slice in which `modified` changes, in a row of `data_chunks` and `parities`.
///
/// # Errors
/// If the parity of what does not change cannot be known, or the data would not be stored.
pub(super) fn plan_write(
    data_chunks: usize,
    parities: usize,
    members: Members,
    modified: Roles,
) -> Result<Plan, Unrecoverable> {
    let all = Roles::all_data(data_chunks);
    let Members { readable, writable, trusted } = members;
    let chunks = all | parity_roles(parities);
    if (chunks - writable).count() > parities {
        return Err(Unrecoverable);
    }
    let parity = writable & parity_roles(parities);
    let writes = (modified & writable) | parity;
    let plan = |way, reads, unknown| Ok(Plan { way, reads, unknown, writes });
    if modified == all {
        return plan(Way::Full, Roles::NONE, Roles::NONE);
    }
    if parity.is_empty() {
        return plan(Way::DataOnly, Roles::NONE, Roles::NONE);
    }
    let others = all - modified;
    let can_reconstruct = readable.contains(others);
    let can_modify = trusted && readable.contains(modified | parity);
    let modify_reads = modified | parity;
    if can_modify && !(can_reconstruct && others.count() <= modify_reads.count()) {
        return plan(Way::ReadModify, modify_reads, Roles::NONE);
    }
    if can_reconstruct {
        return plan(Way::Reconstruct, others, Roles::NONE);
    }
    let (reads, unknown) = decode(all, parities, members)?;
    plan(Way::Decode, reads, unknown)
}

/// How to read `wanted` data chunks. `Way::Decode` if any of them has to be computed, otherwise
/// `Way::DataOnly`.
///
/// # Errors
/// If one of them can neither be read nor computed.
pub(super) fn plan_read(
    data_chunks: usize,
    parities: usize,
    members: Members,
    wanted: Roles,
) -> Result<Plan, Unrecoverable> {
    let writes = Roles::NONE;
    if members.readable.contains(wanted) {
        let (way, unknown) = (Way::DataOnly, Roles::NONE);
        return Ok(Plan { way, reads: wanted, unknown, writes });
    }
    let (reads, unknown) = decode(Roles::all_data(data_chunks), parities, members)?;
    Ok(Plan { way: Way::Decode, reads, unknown, writes })
}

/// What to read in order to know all data, and what of it then has to be computed.
fn decode(all: Roles, parities: usize, members: Members) -> Result<(Roles, Roles), Unrecoverable> {
    let unknown = all - members.readable;
    let parity = members.readable & parity_roles(parities);
    if !members.trusted || unknown.count() > parity.count() {
        return Err(Unrecoverable);
    }
    // P first: what it takes is a plain sum.
    let needed = parity.iter().take(unknown.count()).fold(Roles::NONE, BitOr::bitor);
    Ok(((all & members.readable) | needed, unknown))
}

/// P, or P and Q.
pub(super) fn parity_roles(parities: usize) -> Roles {
    match parities {
        0 => Roles::NONE,
        1 => Roles::P,
        _ => Roles::PARITIES,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
