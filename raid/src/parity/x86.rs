//! The vectors of x86-64: AVX2, and AVX-512 with GFNI.

use std::arch::x86_64::*;

use super::columns::{self, Store, Vector};
use super::field::{MATRICES, NIBBLES};
use super::{Functions, Term};

/// AVX-512 with the affine transformation of bytes, which multiplies by any constant of any field.
pub(super) static AVX512: Functions = Functions {
    name: "avx512-gfni",
    exists: || {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("gfni")
    },
    xor: xor_avx512,
    sum: sum_avx512,
    pq: pq_avx512,
};

/// AVX2, multiplying by table look-up of nibbles.
pub(super) static AVX2: Functions = Functions {
    name: "avx2",
    exists: || is_x86_feature_detected!("avx2"),
    xor: xor_avx2,
    sum: sum_avx2,
    pq: pq_avx2,
};

#[derive(Clone, Copy)]
struct Zmm(__m512i);

// SAFETY (of all its methods): the instructions and the addresses are the caller's promise.
impl Vector for Zmm {
    const BYTES: usize = 64;

    type Factor = __m512i;

    // SAFETY: as above.
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as above.
        unsafe { _mm512_stream_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn fence() {
        // SAFETY: as above.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: as above.
        unsafe { self.times(Self::factor(2)) }
    }

    #[inline(always)]
    unsafe fn factor(value: u8) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_set1_epi64(MATRICES[usize::from(value)].cast_signed()) }
    }

    #[inline(always)]
    unsafe fn times(self, factor: __m512i) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(self.0, factor) })
    }
}

/// # Safety
/// As for [`columns::xor`], and the processor has the instructions.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn xor_avx512(out: &mut [u8], sources: &[&[u8]], store: Store) {
    // SAFETY: by the caller.
    unsafe { columns::xor::<Zmm, 4>(out, sources, store) }
}

/// # Safety
/// As for [`columns::sum`], and the processor has the instructions.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn sum_avx512(out: &mut [u8], terms: &[Term<'_>], store: Store) {
    // SAFETY: by the caller.
    unsafe { columns::sum::<Zmm, 4>(out, terms, store) }
}

/// # Safety
/// As for [`columns::pq`], and the processor has the instructions.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn pq_avx512(p: &mut [u8], q: &mut [u8], data: &[Option<&[u8]>], store: Store) {
    // SAFETY: by the caller.
    unsafe { columns::pq::<Zmm, 4>(p, q, data, store) }
}

#[derive(Clone, Copy)]
struct Ymm(__m256i);

// SAFETY (of all its methods): the instructions and the addresses are the caller's promise.
impl Vector for Ymm {
    const BYTES: usize = 32;

    /// The products with the low and with the high nibbles, each in both halves of a register.
    type Factor = (__m256i, __m256i);

    // SAFETY: as above.
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as above.
        unsafe { _mm256_stream_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn fence() {
        // SAFETY: as above.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: as above.
        unsafe {
            // All ones where the highest bit is set, which is carried into the polynomial.
            let carry = _mm256_cmpgt_epi8(_mm256_setzero_si256(), self.0);
            let carry = _mm256_and_si256(carry, _mm256_set1_epi8(0x1d));
            Self(_mm256_xor_si256(_mm256_add_epi8(self.0, self.0), carry))
        }
    }

    #[inline(always)]
    unsafe fn factor(value: u8) -> Self::Factor {
        let table = &NIBBLES.0[usize::from(value)];
        // SAFETY: as above; the table has two halves of 16 bytes.
        unsafe {
            let low = _mm_loadu_si128(table.as_ptr().cast());
            let high = _mm_loadu_si128(table.as_ptr().add(16).cast());
            (_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high))
        }
    }

    #[inline(always)]
    unsafe fn times(self, (low, high): Self::Factor) -> Self {
        // SAFETY: as above.
        unsafe {
            let nibble = _mm256_set1_epi8(0x0f);
            let low = _mm256_shuffle_epi8(low, _mm256_and_si256(self.0, nibble));
            let shifted = _mm256_srli_epi64::<4>(self.0);
            let high = _mm256_shuffle_epi8(high, _mm256_and_si256(shifted, nibble));
            Self(_mm256_xor_si256(low, high))
        }
    }
}

/// # Safety
/// As for [`columns::xor`], and the processor has the instructions.
#[target_feature(enable = "avx2")]
unsafe fn xor_avx2(out: &mut [u8], sources: &[&[u8]], store: Store) {
    // SAFETY: by the caller.
    unsafe { columns::xor::<Ymm, 8>(out, sources, store) }
}

/// # Safety
/// As for [`columns::sum`], and the processor has the instructions.
#[target_feature(enable = "avx2")]
unsafe fn sum_avx2(out: &mut [u8], terms: &[Term<'_>], store: Store) {
    // SAFETY: by the caller.
    unsafe { columns::sum::<Ymm, 4>(out, terms, store) }
}

/// # Safety
/// As for [`columns::pq`], and the processor has the instructions.
#[target_feature(enable = "avx2")]
unsafe fn pq_avx2(p: &mut [u8], q: &mut [u8], data: &[Option<&[u8]>], store: Store) {
    // SAFETY: by the caller.
    unsafe { columns::pq::<Ymm, 4>(p, q, data, store) }
}
