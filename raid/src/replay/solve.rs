//! What the parity of a block must be, given what the log has of it and what can be read. Pure.
//!
//! A part of a row is divided into the chunks that were being written (M) and the others (U). The
//! log has the parity of U alone: partial P, and for RAID 6 partial Q. Of M each chunk, and each
//! parity, has its old or its new contents, one independently of the other.
//!
//! * **All of M is readable**: parity is the partial parity together with M as it is now. What of
//!   U is missing follows from it.
//! * **M is one chunk, and that is missing**: then nothing but parity was written. With P, the
//!   partial P says what the chunk is (old or new, as P is), and Q is made to agree.
//! * **One of several chunks in M is missing**: with RAID 6, each parity says what it is, together
//!   with the others of M. If the two agree, that is what it is: were only one of them of the same
//!   age as the others, they could agree only on contents that the chunk had, or was given. If they
//!   do not agree, or there is only one, the chunk is not known, and so parity is not.
//! * **Two of M are missing**: neither can be known.
//!
//! **What the log knows of M as a whole** comes before all that, where chunks of several are
//! missing: a checksum of its new contents, and perhaps of the old ([`Checks`]). [`identify`]
//! computes what is missing from P, from Q, or from both, all along the part; if the result has a
//! checksum that the log knows, this is what the chunks hold. So a write that was complete loses
//! nothing, nor does one that had not begun if its old contents were known. What remains is a write
//! that was half done, whose end nobody has been told of.
//!
//! Known: where a chunk of M cannot be known and one of U is missing as well (RAID 6), that one
//! is told by the log, but afterwards by nothing that could be written: it reads as an error, too.

use std::ops::Range;

use crate::geometry::Role;
use crate::metadata::checks::{Check, Checks};
use crate::parity::Kernel;

/// A part of a row that was being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowPart {
    /// The row.
    pub(super) row: u64,
    /// Where in the chunks it begins.
    pub(super) within_bytes: u64,
    /// Its length.
    pub(super) len_bytes: u64,
    /// Indices of the data chunks that were being written.
    pub(super) modified: Range<usize>,
    /// The partial P, if the log has it.
    pub(super) p: Option<Vec<u8>>,
    /// The partial Q, if the log has it.
    pub(super) q: Option<Vec<u8>>,
    /// What is known of the contents of all that was being written in it.
    pub(super) checks: Checks,
}

impl RowPart {
    /// Only what is in this range of the chunks, which is within the part.
    pub(super) fn cut(&self, within: &Range<u64>) -> Self {
        let from = (within.start - self.within_bytes) as usize;
        let to = (within.end - self.within_bytes) as usize;
        let part = |parity: &Option<Vec<u8>>| {
            parity.as_ref().and_then(|parity| parity.get(from..to)).map(<[u8]>::to_vec)
        };
        Self {
            row: self.row,
            within_bytes: within.start,
            len_bytes: within.end - within.start,
            modified: self.modified.clone(),
            p: part(&self.p),
            q: part(&self.q),
            checks: if within.end - within.start == self.len_bytes {
                self.checks
            } else {
                Checks::NONE
            },
        }
    }
}

/// What is known of a block.
pub(super) struct Block<'a> {
    /// What it is a block of.
    pub(super) part: &'a RowPart,
    /// Where it is in the part.
    pub(super) range: Range<usize>,
    /// The row's data chunks, as far as they can be read.
    pub(super) data: &'a [Option<&'a [u8]>],
    /// P, if it can be read.
    pub(super) p: Option<&'a [u8]>,
    /// Q, if it can be read.
    pub(super) q: Option<&'a [u8]>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing: what is there is right.
    Keep,
    /// Parity must be written, P and Q each if it is given (and there is a member for it).
    Write([Option<Vec<u8>>; 2]),
    /// Parity cannot be known.
    Unknown,
}

/// Finds out what the chunks that were being written hold, from all blocks of a part: nothing if
/// the log cannot tell, or need not. By chunk, in order of their indices.
pub(super) fn identify(part: &RowPart, blocks: &[Block<'_>]) -> Option<Vec<Vec<u8>>> {
    let is_missing = |block: &Block<'_>| {
        let mut modified = part.modified.clone();
        modified.any(|index| block.data[index].is_none())
    };
    if part.checks.is_none() || !blocks.iter().any(is_missing) {
        return None;
    }
    // What P says first; for Q it is the same where that is the only one.
    let candidates = [true, false].map(|prefer_p| fill(part, blocks, prefer_p));
    let checked = candidates.into_iter().flatten().map(|chunks| {
        let mut check = Check::new();
        chunks.iter().for_each(|chunk| check.add(chunk));
        (Some(check.value()), chunks)
    });
    let mut checked: Vec<_> = checked.collect();
    // New contents first: where a crash interrupts the replay, the next one finds the same.
    let known = [part.checks.new, part.checks.old].into_iter().filter(Option::is_some);
    let found = known.flat_map(|known| checked.iter().position(|(check, _)| *check == known));
    found.take(1).next().map(|at| checked.swap_remove(at).1)
}

/// The chunks that were being written, what is missing of them computed from one parity, or from
/// both where two are; nothing if some of it cannot be computed.
fn fill(part: &RowPart, blocks: &[Block<'_>], prefer_p: bool) -> Option<Vec<Vec<u8>>> {
    let mut chunks = vec![Vec::with_capacity(part.len_bytes as usize); part.modified.len()];
    for block in blocks {
        let missing = part.modified.clone().filter(|&index| block.data[index].is_none());
        let missing: Vec<_> = missing.collect();
        let computed =
            if missing.is_empty() { Vec::new() } else { missing_of(block, &missing, prefer_p)? };
        for (chunk, index) in chunks.iter_mut().zip(part.modified.clone()) {
            let at = missing.iter().position(|&other| other == index);
            chunk.extend(match at {
                Some(at) => computed.get(at)?,
                None => block.data[index]?,
            });
        }
    }
    Some(chunks)
}

/// Chunks that are missing of those that were being written, as parity has them.
fn missing_of(block: &Block<'_>, missing: &[usize], prefer_p: bool) -> Option<Vec<Vec<u8>>> {
    let partial = Partial::new(block);
    let without =
        |parity: Option<&[u8]>, partial: &Option<Vec<u8>>| Some(rest(parity?, partial.as_ref()?));
    let (mut p, mut q) = (without(block.p, &partial.p), without(block.q, &partial.q));
    if missing.len() == 1 && p.is_some() && q.is_some() {
        if prefer_p { q = None } else { p = None }
    }
    let zeros = vec![0; block.range.len()];
    let is_modified = |index: usize| block.part.modified.contains(&index);
    let data = block.data.iter().enumerate();
    let data =
        data.map(|(index, chunk)| if is_modified(index) { *chunk } else { Some(&zeros[..]) });
    let data: Vec<_> = data.collect();
    let mut computed = vec![zeros.clone(); missing.len()];
    let wanted = missing.iter().zip(&mut computed);
    let mut wanted: Vec<_> =
        wanted.map(|(&index, out)| (Role::Data(index), &mut out[..])).collect();
    let done = Kernel::best().reconstruct(&data, p.as_deref(), q.as_deref(), &mut wanted);
    done.is_ok().then_some(computed)
}

/// What is to be done where the chunks that were being written are known ([`identify`]).
pub(super) fn fit(block: &Block<'_>, chunks: &[Vec<u8>]) -> Verdict {
    let mut data = block.data.to_vec();
    for (index, chunk) in block.part.modified.clone().zip(chunks) {
        data[index] = chunk.get(block.range.clone());
    }
    let verdict =
        solve(&Block { part: block.part, range: block.range.clone(), data: &data, ..*block });
    let Verdict::Write([p, q]) = verdict else { return verdict };
    let differs = |new: Option<Vec<u8>>, is: Option<&[u8]>| new.filter(|new| is != Some(&new[..]));
    match [differs(p, block.p), differs(q, block.q)] {
        [None, None] => Verdict::Keep,
        parities => Verdict::Write(parities),
    }
}

pub(super) fn solve(block: &Block<'_>) -> Verdict {
    let modified = &block.part.modified;
    let missing: Vec<_> = modified.clone().filter(|&index| block.data[index].is_none()).collect();
    let partial = Partial::new(block);
    match (missing.as_slice(), modified.len()) {
        ([], _) => {
            let p = partial.p.as_ref().map(|p| with(p, block, |k, data, out| k.p(data, out)));
            let q = partial.q.as_ref().map(|q| with(q, block, |k, data, out| k.q(data, out)));
            // One that the log does not tell, of a member whose log is lost.
            let is_lost = (block.p.is_some() && p.is_none()) || (block.q.is_some() && q.is_none());
            if is_lost { Verdict::Unknown } else { Verdict::Write([p, q]) }
        }
        (&[index], 1) => alone(block, &partial, index),
        (&[index], _) => one_of_several(block, &partial, index),
        _ => Verdict::Unknown,
    }
}

/// The parity of the chunks that were not being written.
struct Partial {
    p: Option<Vec<u8>>,
    q: Option<Vec<u8>>,
}

impl Partial {
    /// From the log; what it does not have, from the chunks themselves, if they are there or
    /// follow from what it has.
    fn new(block: &Block<'_>) -> Self {
        let part = |parity: &Option<Vec<u8>>| {
            parity.as_ref().and_then(|parity| parity.get(block.range.clone())).map(<[u8]>::to_vec)
        };
        let (mut p, mut q) = (part(&block.part.p), part(&block.part.q));
        if p.is_some() && q.is_some() {
            return Self { p, q };
        }
        let kernel = Kernel::best();
        let zeros = vec![0; block.range.len()];
        let is_modified = |index: usize| block.part.modified.contains(&index);
        let mut others: Vec<Option<&[u8]>> = block.data.to_vec();
        let indices = 0..others.len();
        indices.clone().filter(|&index| is_modified(index)).for_each(|i| others[i] = Some(&zeros));
        let missing: Vec<_> = indices.filter(|&index| others[index].is_none()).collect();
        let mut found = vec![zeros.clone(); missing.len()];
        let mut wanted: Vec<_> = missing
            .iter()
            .zip(&mut found)
            .map(|(&index, out)| (Role::Data(index), &mut out[..]))
            .collect();
        let known = kernel.reconstruct(&others, p.as_deref(), q.as_deref(), &mut wanted).is_ok();
        if known {
            missing.iter().zip(&found).for_each(|(&index, bytes)| others[index] = Some(bytes));
            let mut all = [zeros.clone(), zeros.clone()];
            kernel.p(&others, &mut all[0]);
            kernel.q(&others, &mut all[1]);
            let [all_p, all_q] = all;
            (p, q) = (p.or(Some(all_p)), q.or(Some(all_q)));
        }
        Self { p, q }
    }
}

/// `partial` together with what `of` makes of the chunks that were being written.
fn with(
    partial: &[u8],
    block: &Block<'_>,
    of: impl Fn(Kernel, &[Option<&[u8]>], &mut [u8]),
) -> Vec<u8> {
    let is_modified = |index: usize| block.part.modified.contains(&index);
    let data = block.data.iter().enumerate();
    let data: Vec<_> = data.map(|(index, chunk)| chunk.filter(|_| is_modified(index))).collect();
    let mut parity = vec![0; partial.len()];
    of(Kernel::best(), &data, &mut parity);
    xor(&mut parity, partial);
    parity
}

fn xor(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to ^= from);
}

/// What one missing chunk contributes to P or Q: the parity without the partial parity and the
/// other chunks that were being written.
fn rest(parity: &[u8], others: &[u8]) -> Vec<u8> {
    let mut rest = parity.to_vec();
    xor(&mut rest, others);
    rest
}

/// The chunk `index` from what it contributes to Q, and the other way round.
fn from_q(contribution: &[u8], index: usize, chunks: usize) -> Option<Vec<u8>> {
    let mut data: Vec<Option<&[u8]>> = vec![None; chunks];
    let zeros = vec![0; contribution.len()];
    (0..chunks).filter(|&other| other != index).for_each(|other| data[other] = Some(&zeros));
    let mut chunk = zeros.clone();
    let mut wanted = [(Role::Data(index), &mut chunk[..])];
    Kernel::best().reconstruct(&data, None, Some(contribution), &mut wanted).ok()?;
    Some(chunk)
}

fn to_q(chunk: &[u8], index: usize, chunks: usize) -> Vec<u8> {
    let mut data: Vec<Option<&[u8]>> = vec![None; chunks];
    data[index] = Some(chunk);
    let mut q = vec![0; chunk.len()];
    Kernel::best().q(&data, &mut q);
    q
}

/// The only chunk that was being written is missing.
fn alone(block: &Block<'_>, partial: &Partial, index: usize) -> Verdict {
    let chunks = block.data.len();
    if let (Some(p), Some(partial_p)) = (block.p, &partial.p) {
        let Some(partial_q) = &partial.q else {
            // RAID 5, or no Q that could disagree.
            return if block.q.is_none() { Verdict::Keep } else { Verdict::Unknown };
        };
        let mut q = to_q(&rest(p, partial_p), index, chunks);
        xor(&mut q, partial_q);
        return Verdict::Write([None, Some(q)]);
    }
    let from_q = block
        .q
        .zip(partial.q.as_ref())
        .and_then(|(q, partial_q)| from_q(&rest(q, partial_q), index, chunks));
    match (from_q, &partial.p) {
        (Some(mut chunk), Some(partial_p)) => {
            xor(&mut chunk, partial_p);
            Verdict::Write([Some(chunk), None])
        }
        // There is only one parity, or none that could be read: it says what the chunk is, or
        // nothing does.
        _ => Verdict::Keep,
    }
}

/// One of several chunks that were being written is missing.
fn one_of_several(block: &Block<'_>, partial: &Partial, index: usize) -> Verdict {
    let (Some(p), Some(q)) = (block.p, block.q) else { return Verdict::Unknown };
    let (Some(partial_p), Some(partial_q)) = (&partial.p, &partial.q) else {
        return Verdict::Unknown;
    };
    let chunk = rest(p, &with(partial_p, block, |k, data, out| k.p(data, out)));
    let expected = rest(q, &with(partial_q, block, |k, data, out| k.q(data, out)));
    let agree = to_q(&chunk, index, block.data.len()) == expected;
    if agree { Verdict::Keep } else { Verdict::Unknown }
}
