//! The three loops that everything is made of, for any vector type.
//!
//! Chunks are worked through in *columns*: a few vectors at the same place of all sources are
//! added up in registers, then the sums are stored. So every source is read once and every
//! destination written once, whatever their number. Columns of several vectors come first, then
//! single vectors, then the bytes that are left, which go through a vector on the stack.
//!
//! Nothing here enables instructions: the functions are inlined into those of [`super::x86`] and
//! its like that do.

use super::Term;

/// A register and what it can do. All methods need the type's instructions.
pub(super) trait Vector: Copy {
    /// Its size, at most [`MAX_VECTOR_BYTES`].
    const BYTES: usize;

    /// What a multiplication needs to know of its factor.
    type Factor: Copy;

    /// # Safety
    /// `from` is valid for reads of `BYTES`.
    unsafe fn load(from: *const u8) -> Self;

    /// # Safety
    /// `to` is valid for writes of `BYTES`.
    unsafe fn store(self, to: *mut u8);

    /// Stores past the caches where there is such an instruction. The order with other memory
    /// accesses is undefined until [`Self::fence`].
    ///
    /// # Safety
    /// `to` is valid for writes of `BYTES` and a multiple of `BYTES`.
    unsafe fn stream(self, to: *mut u8);

    /// Orders what was streamed before everything that follows.
    ///
    /// # Safety
    /// The instructions exist.
    unsafe fn fence();

    /// # Safety
    /// The instructions exist.
    unsafe fn xor(self, other: Self) -> Self;

    /// Each byte times two in the field.
    ///
    /// # Safety
    /// The instructions exist.
    unsafe fn double(self) -> Self;

    /// # Safety
    /// The instructions exist.
    unsafe fn factor(value: u8) -> Self::Factor;

    /// Each byte times the factor in the field.
    ///
    /// # Safety
    /// The instructions exist.
    unsafe fn times(self, factor: Self::Factor) -> Self;
}

/// Size of the largest vector.
pub(super) const MAX_VECTOR_BYTES: usize = 64;

/// How the sums are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Store {
    /// Over what is there.
    Plain,
    /// Past the caches. The destination must be aligned to [`MAX_VECTOR_BYTES`].
    Stream,
    /// Added to what is there.
    Add,
}

/// Reads a vector, or its first `part_bytes` with zeros behind.
///
/// # Safety
/// `from` is valid for reads of as many bytes; the vector's instructions exist.
#[inline(always)]
unsafe fn read<V: Vector, const WHOLE: bool>(from: *const u8, part_bytes: usize) -> V {
    if WHOLE {
        // SAFETY: by the caller.
        return unsafe { V::load(from) };
    }
    let mut bytes = [0; MAX_VECTOR_BYTES];
    debug_assert!(part_bytes <= V::BYTES && V::BYTES <= MAX_VECTOR_BYTES);
    // SAFETY: the source by the caller, and the array is as large as any vector.
    unsafe {
        std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), part_bytes);
        V::load(bytes.as_ptr())
    }
}

/// Writes the vectors of a column, or the first `part_bytes` of its only one.
///
/// # Safety
/// `to` is valid for reads and writes of as many bytes, and aligned if it is streamed to; the
/// vector's instructions exist.
#[inline(always)]
unsafe fn write<V: Vector, const N: usize, const WHOLE: bool>(
    mut sums: [V; N],
    to: *mut u8,
    part_bytes: usize,
    store: Store,
) {
    for (n, sum) in sums.iter_mut().enumerate() {
        // SAFETY: by the caller; a column is N vectors in a row.
        unsafe {
            let to = to.add(n * V::BYTES);
            if store == Store::Add {
                *sum = sum.xor(read::<V, WHOLE>(to, part_bytes));
            }
            if !WHOLE {
                let mut bytes = [0; MAX_VECTOR_BYTES];
                sum.store(bytes.as_mut_ptr());
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, part_bytes);
            } else if store == Store::Stream {
                sum.stream(to);
            } else {
                sum.store(to);
            }
        }
    }
}

/// The bytes of a source at `at`.
///
/// # Safety
/// `at` is at most the source's length.
#[inline(always)]
unsafe fn place(source: &[u8], at: usize) -> *const u8 {
    debug_assert!(at <= source.len());
    // SAFETY: by the caller.
    unsafe { source.as_ptr().add(at) }
}

/// Calls a column function for a length in columns of `N` vectors, then in single vectors, then
/// for the rest.
macro_rules! in_columns {
    ($vector:ty, $many:expr, $len_bytes:expr, $store:expr, $column:ident($($argument:expr),*)) => {{
        let (len_bytes, store) = ($len_bytes, $store);
        let mut at = 0;
        // SAFETY: each column begins at `at` and ends at or before `len_bytes`, the length of all
        // slices; the instructions exist by the caller of the function that this is in.
        unsafe {
            while len_bytes - at >= $many * <$vector>::BYTES {
                $column::<$vector, $many, true>(at, 0, $($argument,)* store);
                at += $many * <$vector>::BYTES;
            }
            while len_bytes - at >= <$vector>::BYTES {
                $column::<$vector, 1, true>(at, 0, $($argument,)* store);
                at += <$vector>::BYTES;
            }
            if at < len_bytes {
                $column::<$vector, 1, false>(at, len_bytes - at, $($argument,)* store);
            }
            if store == Store::Stream {
                <$vector>::fence();
            }
        }
    }};
}

/// `out = sources[0] ^ sources[1] ^ ...`; there is at least one.
///
/// # Safety
/// The vector's instructions exist; all slices are of one length; `out` is aligned to
/// [`MAX_VECTOR_BYTES`] if it is streamed to.
#[inline(always)]
pub(super) unsafe fn xor<V: Vector, const N: usize>(
    out: &mut [u8],
    sources: &[&[u8]],
    store: Store,
) {
    let Some((first, others)) = sources.split_first() else { return };
    in_columns!(V, N, out.len(), store, xor_column(out.as_mut_ptr(), first, others));
}

/// One column of [`xor`], of `N` vectors from `at`.
///
/// # Safety
/// As for [`xor`], and the column ends within the slices.
#[inline(always)]
unsafe fn xor_column<V: Vector, const N: usize, const WHOLE: bool>(
    at: usize,
    part_bytes: usize,
    out: *mut u8,
    first: &[u8],
    others: &[&[u8]],
    store: Store,
) {
    // SAFETY: by the caller.
    unsafe {
        let from = place(first, at);
        let mut sums: [V; N] = [read::<V, WHOLE>(from, part_bytes); N];
        for (n, sum) in sums.iter_mut().enumerate().skip(1) {
            *sum = read::<V, WHOLE>(from.add(n * V::BYTES), part_bytes);
        }
        for source in others {
            let from = place(source, at);
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = sum.xor(read::<V, WHOLE>(from.add(n * V::BYTES), part_bytes));
            }
        }
        write::<V, N, WHOLE>(sums, out.add(at), part_bytes, store);
    }
}

/// `out = terms[0].factor * terms[0].chunk ^ ...`; there is at least one.
///
/// # Safety
/// As for [`xor`].
#[inline(always)]
pub(super) unsafe fn sum<V: Vector, const N: usize>(
    out: &mut [u8],
    terms: &[Term<'_>],
    store: Store,
) {
    let Some((first, others)) = terms.split_first() else { return };
    in_columns!(V, N, out.len(), store, sum_column(out.as_mut_ptr(), first, others));
}

/// One column of [`sum`].
///
/// # Safety
/// As for [`sum`], and the column ends within the slices.
#[inline(always)]
unsafe fn sum_column<V: Vector, const N: usize, const WHOLE: bool>(
    at: usize,
    part_bytes: usize,
    out: *mut u8,
    first: &Term<'_>,
    others: &[Term<'_>],
    store: Store,
) {
    // SAFETY: by the caller.
    unsafe {
        let (from, factor) = (place(first.chunk, at), V::factor(first.factor));
        let mut sums: [V; N] = [read::<V, WHOLE>(from, part_bytes).times(factor); N];
        for (n, sum) in sums.iter_mut().enumerate().skip(1) {
            *sum = read::<V, WHOLE>(from.add(n * V::BYTES), part_bytes).times(factor);
        }
        for term in others {
            let (from, factor) = (place(term.chunk, at), V::factor(term.factor));
            for (n, sum) in sums.iter_mut().enumerate() {
                let chunk = read::<V, WHOLE>(from.add(n * V::BYTES), part_bytes);
                *sum = sum.xor(chunk.times(factor));
            }
        }
        write::<V, N, WHOLE>(sums, out.add(at), part_bytes, store);
    }
}

/// `p = data[0] ^ data[1] ^ ...`, `q = data[0] ^ 2 * data[1] ^ 4 * data[2] ^ ...`, where a chunk
/// that is not there counts as zeros; the last one is there.
///
/// Q is computed from the last chunk on: double what there is and add the next.
///
/// # Safety
/// As for [`xor`], and for `q` as for `p`.
#[inline(always)]
pub(super) unsafe fn pq<V: Vector, const N: usize>(
    p: &mut [u8],
    q: &mut [u8],
    data: &[Option<&[u8]>],
    store: Store,
) {
    let Some((&Some(last), others)) = data.split_last() else { return };
    let outs = (p.as_mut_ptr(), q.as_mut_ptr());
    in_columns!(V, N, p.len(), store, pq_column(outs, last, others));
}

/// One column of [`pq`].
///
/// # Safety
/// As for [`pq`], and the column ends within the slices.
#[inline(always)]
unsafe fn pq_column<V: Vector, const N: usize, const WHOLE: bool>(
    at: usize,
    part_bytes: usize,
    outs: (*mut u8, *mut u8),
    last: &[u8],
    others: &[Option<&[u8]>],
    store: Store,
) {
    // SAFETY: by the caller.
    unsafe {
        let from = place(last, at);
        let mut p: [V; N] = [read::<V, WHOLE>(from, part_bytes); N];
        for (n, p) in p.iter_mut().enumerate().skip(1) {
            *p = read::<V, WHOLE>(from.add(n * V::BYTES), part_bytes);
        }
        let mut q = p;
        for chunk in others.iter().rev() {
            for q in &mut q {
                *q = q.double();
            }
            let Some(chunk) = chunk else { continue };
            let from = place(chunk, at);
            for n in 0..N {
                let data = read::<V, WHOLE>(from.add(n * V::BYTES), part_bytes);
                p[n] = p[n].xor(data);
                q[n] = q[n].xor(data);
            }
        }
        write::<V, N, WHOLE>(p, outs.0.add(at), part_bytes, store);
        write::<V, N, WHOLE>(q, outs.1.add(at), part_bytes, store);
    }
}
