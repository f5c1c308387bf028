//! The vectors of 64-bit ARM, where NEON always exists.

use std::arch::aarch64::*;

use super::columns::{self, Store, Vector};
use super::field::NIBBLES;
use super::{Functions, Term};

/// NEON, multiplying by table look-up of nibbles.
pub(super) static NEON: Functions =
    Functions { name: "neon", exists: || true, xor: xor_neon, sum: sum_neon, pq: pq_neon };

#[derive(Clone, Copy)]
struct Quad(uint8x16_t);

// SAFETY (of all its methods): NEON is part of the architecture's base; the addresses are the
// caller's promise.
impl Vector for Quad {
    const BYTES: usize = 16;

    /// The products with the low and with the high nibbles.
    type Factor = (uint8x16_t, uint8x16_t);

    // SAFETY: as above.
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: as above.
        Self(unsafe { vld1q_u8(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: as above.
        unsafe { vst1q_u8(to, self.0) }
    }

    /// There is no such store for single vectors; the architecture's hint for pairs of them is
    /// mostly ignored.
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as above.
        unsafe { vst1q_u8(to, self.0) }
    }

    #[inline(always)]
    unsafe fn fence() {}

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { veorq_u8(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: as above.
        unsafe {
            // All ones where the highest bit is set, which is carried into the polynomial.
            let carry = vreinterpretq_u8_s8(vshrq_n_s8::<7>(vreinterpretq_s8_u8(self.0)));
            let carry = vandq_u8(carry, vdupq_n_u8(0x1d));
            Self(veorq_u8(vshlq_n_u8::<1>(self.0), carry))
        }
    }

    #[inline(always)]
    unsafe fn factor(value: u8) -> Self::Factor {
        let table = &NIBBLES.0[usize::from(value)];
        // SAFETY: as above; the table has two halves of 16 bytes.
        unsafe { (vld1q_u8(table.as_ptr()), vld1q_u8(table.as_ptr().add(16))) }
    }

    #[inline(always)]
    unsafe fn times(self, (low, high): Self::Factor) -> Self {
        // SAFETY: as above.
        unsafe {
            let low = vqtbl1q_u8(low, vandq_u8(self.0, vdupq_n_u8(0x0f)));
            let high = vqtbl1q_u8(high, vshrq_n_u8::<4>(self.0));
            Self(veorq_u8(low, high))
        }
    }
}

/// # Safety
/// As for [`columns::xor`].
unsafe fn xor_neon(out: &mut [u8], sources: &[&[u8]], store: Store) {
    // SAFETY: by the caller.
    unsafe { columns::xor::<Quad, 8>(out, sources, store) }
}

/// # Safety
/// As for [`columns::sum`].
unsafe fn sum_neon(out: &mut [u8], terms: &[Term<'_>], store: Store) {
    // SAFETY: by the caller.
    unsafe { columns::sum::<Quad, 4>(out, terms, store) }
}

/// # Safety
/// As for [`columns::pq`].
unsafe fn pq_neon(p: &mut [u8], q: &mut [u8], data: &[Option<&[u8]>], store: Store) {
    // SAFETY: by the caller.
    unsafe { columns::pq::<Quad, 8>(p, q, data, store) }
}
