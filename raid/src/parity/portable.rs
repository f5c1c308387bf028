//! Vectors for every machine: eight bytes in an integer.

use super::columns::{self, Store, Vector};
use super::{Functions, Term};

/// 64-bit integers.
pub(super) static PORTABLE: Functions = Functions {
    name: "portable",
    exists: || true,
    xor: xor_portable,
    sum: sum_portable,
    pq: pq_portable,
};

/// The same byte in all eight places.
const fn each(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

// SAFETY (of all its methods): no special instructions; the addresses are the caller's promise.
impl Vector for u64 {
    const BYTES: usize = 8;

    type Factor = u8;

    // SAFETY: as above.
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: as above.
        unsafe { from.cast::<u64>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: as above.
        unsafe { to.cast::<u64>().write_unaligned(self) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as above.
        unsafe { self.store(to) }
    }

    // SAFETY: as above.
    #[inline(always)]
    unsafe fn fence() {}

    // SAFETY: as above.
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        self ^ other
    }

    // SAFETY: as above.
    #[inline(always)]
    unsafe fn double(self) -> Self {
        let highest = self & each(0x80);
        // 0xff where the highest bit is set: 0x100 - 1 in each byte, borrowing from none other.
        let carry = (highest << 1).wrapping_sub(highest >> 7);
        ((self << 1) & each(0xfe)) ^ (carry & each(0x1d))
    }

    // SAFETY: as above.
    #[inline(always)]
    unsafe fn factor(value: u8) -> u8 {
        value
    }

    // SAFETY: as above.
    #[inline(always)]
    unsafe fn times(self, factor: u8) -> Self {
        // Without branches, so that the compiler can do several vectors at once.
        let (mut sum, mut shifted) = (0, self);
        for bit in 0..8 {
            let is_set = u64::from(factor >> bit & 1);
            sum ^= shifted & 0_u64.wrapping_sub(is_set);
            // SAFETY: as above.
            shifted = unsafe { shifted.double() };
        }
        sum
    }
}

/// # Safety
/// As for [`columns::xor`].
unsafe fn xor_portable(out: &mut [u8], sources: &[&[u8]], store: Store) {
    // SAFETY: by the caller.
    unsafe { columns::xor::<u64, 8>(out, sources, store) }
}

/// # Safety
/// As for [`columns::sum`].
unsafe fn sum_portable(out: &mut [u8], terms: &[Term<'_>], store: Store) {
    // SAFETY: by the caller.
    unsafe { columns::sum::<u64, 8>(out, terms, store) }
}

/// # Safety
/// As for [`columns::pq`].
unsafe fn pq_portable(p: &mut [u8], q: &mut [u8], data: &[Option<&[u8]>], store: Store) {
    // SAFETY: by the caller.
    unsafe { columns::pq::<u64, 8>(p, q, data, store) }
}
