//! The field of RAID 6: 256 elements, polynomial 0x11d, generator 2; addition is exclusive or.
//!
//! Everything is computed at compile time from [`double`], and the tables are checked against a
//! multiplication bit by bit in the tests.

/// The generator's multiple of an element.
const fn double(element: u8) -> u8 {
    let carry = if element & 0x80 != 0 { 0x1d } else { 0 };
    (element << 1) ^ carry
}

/// Powers of the generator, twice in a row so that a sum of two logarithms needs no remainder.
static POWERS: [u8; 510] = powers();

/// Logarithms to the base of the generator; that of zero does not exist and is given as 0.
static LOGARITHMS: [u8; 256] = logarithms();

const fn powers() -> [u8; 510] {
    let mut powers = [1; 510];
    let mut at = 1;
    while at < 510 {
        powers[at] = double(powers[at - 1]);
        at += 1;
    }
    powers
}

const fn logarithms() -> [u8; 256] {
    let powers = powers();
    let mut logarithms = [0; 256];
    let mut at = 0;
    while at < 255 {
        logarithms[powers[at] as usize] = at as u8;
        at += 1;
    }
    logarithms
}

const fn product(a: u8, b: u8) -> u8 {
    let (mut sum, mut shifted, mut bit) = (0, a, 0);
    while bit < 8 {
        if b >> bit & 1 == 1 {
            sum ^= shifted;
        }
        shifted = double(shifted);
        bit += 1;
    }
    sum
}

/// The coefficient of data chunk `index` in Q.
pub(super) fn power(index: usize) -> u8 {
    POWERS[index % 255]
}

/// Which power of the generator an element other than zero is, below 255.
pub(super) fn logarithm(element: u8) -> usize {
    LOGARITHMS[usize::from(element)].into()
}

/// The product of two elements.
pub(super) fn times(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    POWERS[logarithm(a) + logarithm(b)]
}

/// The quotient of two elements; `b` is not zero.
pub(super) fn over(a: u8, b: u8) -> u8 {
    debug_assert!(b != 0);
    if a == 0 {
        return 0;
    }
    POWERS[logarithm(a) + 255 - logarithm(b)]
}

/// For each factor its products with the values of the low nibble and of the high nibble of a
/// byte: the tables of byte shuffles.
#[repr(align(32))]
pub(super) struct Nibbles(pub(super) [[u8; 32]; 256]);

/// See [`Nibbles`].
pub(super) static NIBBLES: Nibbles = nibbles();

const fn nibbles() -> Nibbles {
    let mut tables = [[0; 32]; 256];
    let mut factor = 0;
    while factor < 256 {
        let mut value = 0;
        while value < 16 {
            tables[factor][value] = product(factor as u8, value as u8);
            tables[factor][16 + value] = product(factor as u8, (value << 4) as u8);
            value += 1;
        }
        factor += 1;
    }
    Nibbles(tables)
}

/// For each factor the multiplication by it as a matrix of bits, in the form that the instruction
/// GF2P8AFFINEQB takes: the row that yields bit `i` of the result is byte `7 - i`.
#[cfg(target_arch = "x86_64")]
pub(super) static MATRICES: [u64; 256] = matrices();

#[cfg(target_arch = "x86_64")]
const fn matrices() -> [u64; 256] {
    let mut matrices = [0; 256];
    let mut factor = 0;
    while factor < 256 {
        let (mut matrix, mut column) = (0u64, 0);
        while column < 8 {
            let image = product(factor as u8, 1 << column);
            let mut bit = 0;
            while bit < 8 {
                matrix |= ((image >> bit & 1) as u64) << ((7 - bit) * 8 + column);
                bit += 1;
            }
            column += 1;
        }
        matrices[factor] = matrix;
        factor += 1;
    }
    matrices
}
