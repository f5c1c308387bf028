//! Parity: P and Q of the data chunks of a row, their incremental update, and what was lost back
//! from what is left.
//!
//! With data chunks `d0, d1, ...` of one length, byte by byte in the field of 256 elements with the
//! polynomial 0x11d (addition is exclusive or):
//! ```text
//! P = d0 + d1 + d2 + ...
//! Q = d0 + 2 d1 + 4 d2 + ...         (chunk i has the coefficient 2^i)
//! ```
//! Everything else is such a sum, too. A lost chunk is a sum of those that are left, with
//! coefficients that depend on its place only; so all of it comes down to three loops
//! (`columns`): sum without coefficients, sum with coefficients, and P and Q at once.
//!
//! The loops exist for several instruction sets. A [`Kernel`] is one of them that this processor
//! has; [`Kernel::best`] chooses once per process. They differ in speed only.
//!
//! Nothing here knows of members or rows: the index of a data chunk is its place in the slice that
//! is passed, and [`crate::geometry`] says on which member it is. All chunks of a call have one
//! length, any length, and begin anywhere; other lengths are a fault of the caller and panic.
//!
//! This is the one module besides [`crate::buffer`] with `unsafe` code: the loops and the vectors.
//! The functions of [`Kernel`] check all lengths before they call them.

mod columns;
mod field;
mod list;
mod locate;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod reconstruct;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;
use std::sync::OnceLock;

use columns::{MAX_VECTOR_BYTES, Store};
use list::List;

use crate::geometry::MAX_PARITY_MEMBERS;

pub use locate::Located;
pub use reconstruct::ReconstructError;

/// Most data chunks in a row.
pub const MAX_DATA_CHUNKS: usize = MAX_PARITY_MEMBERS - 1;

/// From this length on results are written past the caches: they go to drives, and reading what
/// was there before, only to overwrite it, costs more than anything else. Shorter ones are likely
/// to be looked at again soon. Measured on an EPYC of Zen 5 with chunks of 64 KiB that are in no
/// cache, against `memcpy` of the same chunks: 4+1 1.85 streaming and 1.64 without, 4+2 1.45 and
/// 1.11; with 16 KiB there is little between them.
const STREAM_BYTES: usize = 32 << 10;

/// Where a step needs a result of the one before, chunks are worked through in blocks of this
/// size, so that everything is still in the nearest caches.
const BLOCK_BYTES: usize = 4 << 10;

/// A chunk and what it is multiplied by.
#[derive(Clone, Copy)]
struct Term<'a> {
    chunk: &'a [u8],
    factor: u8,
}

/// The loops of [`columns`] for one instruction set.
///
/// # Safety
/// To call them `exists` must have said so, all slices must have one length, and, to stream, the
/// destinations must be aligned to [`MAX_VECTOR_BYTES`].
struct Functions {
    name: &'static str,
    exists: fn() -> bool,
    xor: unsafe fn(&mut [u8], &[&[u8]], Store),
    sum: unsafe fn(&mut [u8], &[Term<'_>], Store),
    pq: PqLoop,
}

/// See [`columns::pq`].
///
/// # Safety
/// As for [`Functions`].
type PqLoop = unsafe fn(&mut [u8], &mut [u8], &[Option<&[u8]>], Store);

/// All implementations for this architecture, the fastest first.
static IMPLEMENTATIONS: &[&Functions] = &[
    #[cfg(target_arch = "x86_64")]
    &x86::AVX512,
    #[cfg(target_arch = "x86_64")]
    &x86::AVX2,
    #[cfg(target_arch = "aarch64")]
    &neon::NEON,
    &portable::PORTABLE,
];

/// One implementation of the parity functions, for instructions that this processor has.
#[derive(Clone, Copy)]
pub struct Kernel(&'static Functions);

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernel").field(&self.name()).finish()
    }
}

/// A data chunk that changes.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Its index among the data chunks of the row.
    pub index: usize,
    /// What it holds.
    pub old: &'a [u8],
    /// What it will hold.
    pub new: &'a [u8],
}

impl Kernel {
    /// The fastest one.
    pub fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().next().unwrap_or(Self(&portable::PORTABLE)))
    }

    /// All that this processor can run, the fastest first; for tests and measurements.
    pub fn available() -> impl Iterator<Item = Self> {
        IMPLEMENTATIONS.iter().filter(|functions| (functions.exists)()).map(|&each| Self(each))
    }

    /// The name of its instruction set: `avx512-gfni`, `avx2`, `neon` or `portable`.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// `out = sources[0] ^ sources[1] ^ ...`; zeros if there are none.
    ///
    /// # Panics
    /// If a source is not as long as `out`.
    pub fn xor(self, out: &mut [u8], sources: &[&[u8]]) {
        if sources.is_empty() {
            return out.fill(0);
        }
        let store = store_for(&[out]);
        self.call_xor(out, sources, store);
    }

    /// `out ^= sources[0] ^ sources[1] ^ ...`
    ///
    /// # Panics
    /// If a source is not as long as `out`.
    pub fn xor_into(self, out: &mut [u8], sources: &[&[u8]]) {
        self.call_xor(out, sources, Store::Add);
    }

    /// P of the data chunks; those that are not there count as zeros.
    ///
    /// # Panics
    /// If a chunk is not as long as `p`, or there are more than [`MAX_DATA_CHUNKS`].
    pub fn p(self, data: &[Option<&[u8]>], p: &mut [u8]) {
        check_count(data);
        let mut sources = List::new();
        data.iter().flatten().for_each(|chunk| sources.push(*chunk));
        self.xor(p, sources.as_slice());
    }

    /// Q of the data chunks; those that are not there count as zeros.
    ///
    /// # Panics
    /// If a chunk is not as long as `q`, or there are more than [`MAX_DATA_CHUNKS`].
    pub fn q(self, data: &[Option<&[u8]>], q: &mut [u8]) {
        check_count(data);
        let mut terms = List::new();
        for (index, chunk) in data.iter().enumerate() {
            if let Some(chunk) = chunk {
                terms.push(Term { chunk, factor: field::power(index) });
            }
        }
        if terms.as_slice().is_empty() {
            return q.fill(0);
        }
        let store = store_for(&[q]);
        self.call_sum(q, terms.as_slice(), store);
    }

    /// P and Q of the data chunks in one pass; those that are not there count as zeros.
    ///
    /// # Panics
    /// If the chunks, `p` and `q` are not all of one length, or there are more than
    /// [`MAX_DATA_CHUNKS`].
    pub fn pq(self, data: &[Option<&[u8]>], p: &mut [u8], q: &mut [u8]) {
        check_count(data);
        let lengths_equal = data.iter().flatten().all(|chunk| chunk.len() == p.len());
        assert!(lengths_equal && q.len() == p.len(), "chunks of one row differ in length");
        let Some(last) = data.iter().rposition(Option::is_some) else {
            p.fill(0);
            return q.fill(0);
        };
        let store = store_for(&[p, q]);
        // SAFETY: a `Kernel` exists only if its instructions do; the lengths were just checked,
        // and the alignment by `store_for`.
        unsafe { (self.0.pq)(p, q, &data[..=last], store) }
    }

    /// Takes changes of data chunks over into P and Q, or only one of them:
    /// `p ^= old ^ new`, `q ^= 2^index * (old ^ new)`.
    ///
    /// # Panics
    /// If the chunks, `p` and `q` are not all of one length, or there are more changes than
    /// [`MAX_DATA_CHUNKS`].
    pub fn update(
        self,
        mut p: Option<&mut [u8]>,
        mut q: Option<&mut [u8]>,
        changes: &[Change<'_>],
    ) {
        assert!(changes.len() <= MAX_DATA_CHUNKS, "more changes than a row has chunks");
        let Some(len) = p.as_deref().or(q.as_deref()).map(<[u8]>::len) else { return };
        let same = |chunk: &[u8]| chunk.len() == len;
        let changes_fit = changes.iter().all(|change| same(change.old) && same(change.new));
        assert!(changes_fit && q.as_deref().is_none_or(same), "chunks of one row differ in length");
        for at in (0..len).step_by(BLOCK_BYTES) {
            let block = at..len.min(at + BLOCK_BYTES);
            if let Some(p) = &mut p {
                let mut sources = List::new();
                for change in changes {
                    sources.push(&change.old[block.clone()]);
                    sources.push(&change.new[block.clone()]);
                }
                self.xor_into(&mut p[block.clone()], sources.as_slice());
            }
            if let Some(q) = &mut q {
                let mut terms = List::new();
                for change in changes {
                    let factor = field::power(change.index);
                    terms.push(Term { chunk: &change.old[block.clone()], factor });
                    terms.push(Term { chunk: &change.new[block.clone()], factor });
                }
                self.call_sum(&mut q[block.clone()], terms.as_slice(), Store::Add);
            }
        }
    }

    fn call_xor(self, out: &mut [u8], sources: &[&[u8]], store: Store) {
        let lengths_equal = sources.iter().all(|source| source.len() == out.len());
        assert!(lengths_equal, "chunks of one row differ in length");
        debug_assert!(store != Store::Stream || is_aligned(out));
        // SAFETY: a `Kernel` exists only if its instructions do; the lengths were just checked; the
        // callers stream only what is aligned.
        unsafe { (self.0.xor)(out, sources, store) }
    }

    fn call_sum(self, out: &mut [u8], terms: &[Term<'_>], store: Store) {
        let lengths_equal = terms.iter().all(|term| term.chunk.len() == out.len());
        assert!(lengths_equal, "chunks of one row differ in length");
        debug_assert!(store != Store::Stream || is_aligned(out));
        // SAFETY: as for `call_xor`.
        unsafe { (self.0.sum)(out, terms, store) }
    }
}

fn check_count(data: &[Option<&[u8]>]) {
    assert!(data.len() <= MAX_DATA_CHUNKS, "more than {MAX_DATA_CHUNKS} data chunks in a row");
}

fn is_aligned(out: &[u8]) -> bool {
    out.as_ptr().addr().is_multiple_of(MAX_VECTOR_BYTES)
}

/// How to store results that nothing needs soon.
fn store_for(outs: &[&mut [u8]]) -> Store {
    if outs.iter().all(|out| out.len() >= STREAM_BYTES && is_aligned(out)) {
        Store::Stream
    } else {
        Store::Plain
    }
}
