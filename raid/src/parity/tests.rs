//! All implementations against a reference that goes byte by byte.

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::*;
use crate::geometry::Role;

/// Multiplication bit by bit, reducing by the polynomial at the end of each step.
fn product(mut a: u16, b: u8) -> u8 {
    let mut sum = 0;
    for bit in 0..8 {
        if b >> bit & 1 == 1 {
            sum ^= a;
        }
        a <<= 1;
        if a & 0x100 != 0 {
            a ^= 0x11d;
        }
    }
    sum as u8
}

/// The coefficient of a data chunk.
fn coefficient(index: usize) -> u8 {
    (0..index).fold(1, |power, _| product(power.into(), 2))
}

/// Reproducible noise.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = (self.next() >> 24) as u8);
    }
}

/// Bytes that begin at a chosen distance from a multiple of 64, in the midst of others.
struct Chunk {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

const GUARD: u8 = 0xa5;

impl Chunk {
    fn new(misaligned: usize, len: usize) -> Self {
        let memory = vec![GUARD; len + 192];
        let start = memory.as_ptr().align_offset(64) + misaligned % 64;
        Self { memory, start, len }
    }

    fn noise(misaligned: usize, len: usize, noise: &mut Noise) -> Self {
        let mut chunk = Self::new(misaligned, len);
        noise.fill(chunk.bytes_mut());
        chunk
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }

    fn assert_guards(&self) {
        let before = &self.memory[..self.start];
        let behind = &self.memory[self.start + self.len..];
        assert!(before.iter().chain(behind).all(|&byte| byte == GUARD), "written outside");
    }
}

/// The data of a row with its parity by the reference.
struct Row {
    data: Vec<Chunk>,
    p: Vec<u8>,
    q: Vec<u8>,
}

impl Row {
    fn new(chunks: usize, len: usize, noise: &mut Noise) -> Self {
        let data: Vec<_> = (0..chunks).map(|index| Chunk::noise(index * 7, len, noise)).collect();
        let mut row = Self { data, p: Vec::new(), q: Vec::new() };
        (row.p, row.q) = row.reference(|_| true);
        row
    }

    fn reference(&self, is_there: impl Fn(usize) -> bool) -> (Vec<u8>, Vec<u8>) {
        let len = self.data.first().map_or(0, |chunk| chunk.len);
        let (mut p, mut q) = (vec![0; len], vec![0; len]);
        for (index, chunk) in self.data.iter().enumerate().filter(|(index, _)| is_there(*index)) {
            let factor = coefficient(index).into();
            let multiples: Vec<u8> = (0..=255).map(|byte| product(factor, byte)).collect();
            for (at, &byte) in chunk.bytes().iter().enumerate() {
                p[at] ^= byte;
                q[at] ^= multiples[usize::from(byte)];
            }
        }
        (p, q)
    }

    fn window(&self, at: usize, len: usize) -> Vec<Option<&[u8]>> {
        self.data.iter().map(|chunk| Some(&chunk.bytes()[at..at + len])).collect()
    }

    fn slices(&self) -> Vec<&[u8]> {
        self.data.iter().map(Chunk::bytes).collect()
    }
}

fn kernels() -> Vec<Kernel> {
    let kernels: Vec<_> = Kernel::available().collect();
    assert!(!kernels.is_empty());
    kernels
}

/// A change like this in the machine that runs the tests should be seen: only what is available
/// is tested.
#[test]
fn the_best_is_the_first_that_is_available() {
    let names: Vec<_> = kernels().iter().map(|kernel| kernel.name()).collect();
    println!("available: {names:?}");
    assert_eq!(Kernel::best().name(), names[0]);
    assert_eq!(names.last(), Some(&"portable"));
}

#[test]
fn the_tables_are_the_field() {
    for a in 0..=255u8 {
        for b in 0..=255u8 {
            let expected = product(a.into(), b);
            assert_eq!(field::times(a, b), expected);
            let nibbles = &field::NIBBLES.0[usize::from(a)];
            let looked_up = nibbles[usize::from(b & 15)] ^ nibbles[16 + usize::from(b >> 4)];
            assert_eq!(looked_up, expected);
            if b != 0 {
                assert_eq!(field::over(expected, b), a);
            }
        }
        if a != 0 {
            assert_eq!(coefficient(field::logarithm(a)), a);
        }
    }
    // All elements but zero are powers of two, so that no two chunks have one coefficient.
    let mut powers: Vec<u8> = (0..255).map(field::power).collect();
    powers.sort_unstable();
    assert!(powers.into_iter().eq(1..=255));
}

/// Every number of chunks with every short length, with large ones, and from unaligned places.
#[test]
fn p_and_q_are_the_reference_s() {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    for chunks in 1..=MAX_DATA_CHUNKS {
        let row = Row::new(chunks, 65_536 + 64, &mut noise);
        let short = (0..=257).map(|len| (len % 64, len));
        let long = [(0, 4096), (1, 4095), (0, 65_536), (31, 65_537), (64, 65_536), (3, 12_345)];
        for (at, len) in short.chain(long) {
            for kernel in kernels() {
                check_p_and_q(kernel, &row, at, len, noise.below(64));
                // Aligned, so that long ones are streamed.
                check_p_and_q(kernel, &row, at, len, 0);
            }
        }
    }
}

fn check_p_and_q(kernel: Kernel, row: &Row, at: usize, len: usize, misaligned: usize) {
    let data = row.window(at, len);
    let expected = (&row.p[at..at + len], &row.q[at..at + len]);
    let what = || format!("{kernel:?}, {} chunks, {len} bytes at {at}", data.len());
    let (mut p, mut q) = (Chunk::new(misaligned, len), Chunk::new(misaligned * 3, len));
    kernel.pq(&data, p.bytes_mut(), q.bytes_mut());
    assert!(p.bytes() == expected.0, "pq: P, {}", what());
    assert!(q.bytes() == expected.1, "pq: Q, {}", what());
    p.bytes_mut().fill(0x55);
    q.bytes_mut().fill(0x55);
    kernel.p(&data, p.bytes_mut());
    kernel.q(&data, q.bytes_mut());
    assert!(p.bytes() == expected.0, "p, {}", what());
    assert!(q.bytes() == expected.1, "q, {}", what());
    let sources: Vec<&[u8]> = data.iter().flatten().copied().collect();
    kernel.xor_into(p.bytes_mut(), &sources);
    assert!(p.bytes().iter().all(|&byte| byte == 0), "xor_into, {}", what());
    kernel.xor(p.bytes_mut(), &sources[1..]);
    kernel.xor_into(p.bytes_mut(), &sources[..1]);
    assert!(p.bytes() == expected.0, "xor, {}", what());
    p.assert_guards();
    q.assert_guards();
}

#[test]
fn chunks_that_are_not_there_count_as_zeros() {
    let mut noise = Noise(77);
    for chunks in [1, 2, 3, 5, 16, 62] {
        let row = Row::new(chunks, 777, &mut noise);
        for _ in 0..40 {
            let mask = noise.next();
            let is_there = |index: usize| mask >> index & 1 == 1;
            let mut data = row.window(0, 777);
            for (index, chunk) in data.iter_mut().enumerate() {
                *chunk = chunk.filter(|_| is_there(index));
            }
            let expected = row.reference(is_there);
            for kernel in kernels() {
                let (mut p, mut q) = (vec![1; 777], vec![1; 777]);
                kernel.pq(&data, &mut p, &mut q);
                assert_eq!((&p, &q), (&expected.0, &expected.1), "{kernel:?}");
                (p, q) = (vec![1; 777], vec![1; 777]);
                kernel.p(&data, &mut p);
                kernel.q(&data, &mut q);
                assert_eq!((&p, &q), (&expected.0, &expected.1), "{kernel:?}");
            }
        }
    }
    for kernel in kernels() {
        let (mut p, mut q) = ([1; 9], [1; 9]);
        kernel.pq(&[], &mut p, &mut q);
        assert_eq!((p, q), ([0; 9], [0; 9]));
    }
}

#[test]
fn updates_lead_to_what_computing_anew_does() {
    let mut noise = Noise(4711);
    for chunks in [1, 2, 4, 6, 30, MAX_DATA_CHUNKS] {
        for len in [0, 1, 63, 64, 65, 255, 512, 4096, 4097, 10_000] {
            let old = Row::new(chunks, len, &mut noise);
            let mut new = Row::new(chunks, len, &mut noise);
            let mask = noise.next() | 1 << noise.below(chunks);
            let changed = |index: usize| mask >> index & 1 == 1;
            for index in (0..chunks).filter(|&index| !changed(index)) {
                new.data[index].bytes_mut().copy_from_slice(old.data[index].bytes());
            }
            (new.p, new.q) = new.reference(|_| true);
            let changes: Vec<Change<'_>> = (0..chunks)
                .filter(|&index| changed(index))
                .map(|index| Change {
                    index,
                    old: old.data[index].bytes(),
                    new: new.data[index].bytes(),
                })
                .collect();
            for kernel in kernels() {
                let (mut p, mut q) = (old.p.clone(), old.q.clone());
                kernel.update(Some(&mut p), Some(&mut q), &changes);
                assert!((&p, &q) == (&new.p, &new.q), "{kernel:?} {chunks} {len}");
                let (mut p, mut q) = (old.p.clone(), old.q.clone());
                kernel.update(Some(&mut p), None, &changes);
                kernel.update(None, Some(&mut q), &changes);
                kernel.update(None, None, &changes);
                assert!((&p, &q) == (&new.p, &new.q), "{kernel:?} {chunks} {len}");
            }
        }
    }
}

/// All chunks of a row in one list: data, then P, then Q.
fn role(place: usize, chunks: usize) -> Role {
    match place.checked_sub(chunks) {
        None => Role::Data(place),
        Some(0) => Role::P,
        Some(_) => Role::Q,
    }
}

/// Loses the places in `lost` and asks for those in `wanted`, in this order.
fn check_reconstruct(kernel: Kernel, row: &Row, lost: &[usize], wanted: &[usize]) {
    let (chunks, len) = (row.data.len(), row.p.len());
    let mut all: Vec<Option<&[u8]>> = row.window(0, len);
    all.extend([Some(&row.p[..]), Some(&row.q[..])]);
    let truth = all.clone();
    lost.iter().for_each(|&place| all[place] = None);
    let mut outs: Vec<Chunk> = wanted.iter().map(|&place| Chunk::new(place * 5, len)).collect();
    let mut list: Vec<(Role, &mut [u8])> = wanted
        .iter()
        .zip(&mut outs)
        .map(|(&place, out)| (role(place, chunks), out.bytes_mut()))
        .collect();
    let (data, parity) = all.split_at(chunks);
    let result = kernel.reconstruct(data, parity[0], parity[1], &mut list);
    assert_eq!(result, Ok(()));
    for (place, out) in wanted.iter().zip(&outs) {
        assert!(
            Some(out.bytes()) == truth[*place],
            "{kernel:?}: {:?} of {chunks} data chunks, lost {lost:?}, wanted {wanted:?}",
            role(*place, chunks)
        );
        out.assert_guards();
    }
}

/// Every loss of one or two chunks, and of both everything that can be asked for.
#[test]
fn every_single_and_double_loss_comes_back() {
    let mut noise = Noise(31);
    for chunks in (1..=12).chain([33, 62, MAX_DATA_CHUNKS]) {
        let lengths: &[usize] = if chunks < 6 { &[1, 64, 777, 9000] } else { &[97] };
        for &len in lengths {
            let row = Row::new(chunks, len, &mut noise);
            for kernel in kernels() {
                for first in 0..chunks + 2 {
                    check_reconstruct(kernel, &row, &[first], &[first]);
                    for second in first + 1..chunks + 2 {
                        let lost = [first, second];
                        for wanted in [&lost[..], &[second, first], &[first], &[second], &[]] {
                            check_reconstruct(kernel, &row, &lost, wanted);
                        }
                    }
                }
            }
        }
    }
}

/// Long and aligned, so that what can be streamed is.
#[test]
fn long_chunks_come_back() {
    let mut noise = Noise(32);
    let row = Row::new(4, 65_536, &mut noise);
    for kernel in kernels() {
        for first in 0..6 {
            check_reconstruct(kernel, &row, &[first], &[first]);
            for second in first + 1..6 {
                check_reconstruct(kernel, &row, &[first, second], &[first, second]);
            }
        }
    }
}

#[test]
fn with_one_parity_one_chunk_comes_back() {
    let mut noise = Noise(33);
    for chunks in [2, 3, 7, MAX_DATA_CHUNKS] {
        let row = Row::new(chunks, 513, &mut noise);
        for kernel in kernels() {
            for lost in 0..chunks {
                let mut data = row.window(0, 513);
                data[lost] = None;
                let mut out = vec![0; 513];
                let wanted = &mut [(Role::Data(lost), &mut out[..])];
                kernel.reconstruct(&data, Some(&row.p), None, wanted).unwrap();
                assert_eq!(out, row.data[lost].bytes());
            }
        }
    }
}

#[test]
fn what_cannot_come_back_is_an_error_and_nothing_is_written() {
    let row = Row::new(5, 100, &mut Noise(34));
    let kernel = Kernel::best();
    let attempt = |lost: &[usize], p: bool, q: bool| {
        let mut data = row.window(0, 100);
        lost.iter().for_each(|&index| data[index] = None);
        let mut out = [7; 100];
        let wanted = &mut [(Role::Data(lost[0]), &mut out[..])];
        let p = p.then_some(&row.p[..]);
        let result = kernel.reconstruct(&data, p, q.then_some(&row.q[..]), wanted);
        assert!(result.is_ok() || out == [7; 100]);
        result
    };
    let error = |missing, parities| Err(ReconstructError::TooManyMissing { missing, parities });
    assert_eq!(attempt(&[1], false, false), error(1, 0));
    assert_eq!(attempt(&[1, 3], true, false), error(2, 1));
    assert_eq!(attempt(&[1, 3], false, true), error(2, 1));
    assert_eq!(attempt(&[0, 1, 2], true, true), error(3, 2));
    assert_eq!(attempt(&[1, 3], true, true), Ok(()));
    assert_eq!(
        attempt(&[0, 1, 2], true, true).unwrap_err().to_string(),
        "3 data chunks are missing, and only 2 parity chunks are there"
    );
}

#[test]
fn a_single_bad_chunk_is_found() {
    let mut noise = Noise(35);
    for chunks in [1, 2, 4, 13, MAX_DATA_CHUNKS] {
        for len in [1, 64, 2048, 2049, 5000] {
            let mut row = Row::new(chunks, len, &mut noise);
            for kernel in kernels() {
                let locate = |row: &Row| kernel.locate(&row.slices(), &row.p, &row.q);
                assert_eq!(locate(&row), Located::Consistent);
                for bad in 0..chunks + 2 {
                    let (at, error) = (noise.below(len), 1 + noise.below(255) as u8);
                    let more = noise.below(len);
                    let expected = match role(bad, chunks) {
                        Role::Data(index) => Located::Data(index),
                        Role::P => Located::P,
                        Role::Q => Located::Q,
                    };
                    let harm = |row: &mut Row| {
                        let chunk = match role(bad, chunks) {
                            Role::Data(index) => row.data[index].bytes_mut(),
                            Role::P => &mut row.p,
                            Role::Q => &mut row.q,
                        };
                        chunk[at] ^= error;
                        if more != at {
                            chunk[more] ^= error.rotate_left(3);
                        }
                    };
                    harm(&mut row);
                    assert_eq!(locate(&row), expected, "{kernel:?} {chunks} {len}");
                    let data = row.slices();
                    let consistent = |p, q| kernel.is_consistent(&data, p, q);
                    assert!(!consistent(Some(&row.p), Some(&row.q)));
                    assert_eq!(consistent(Some(&row.p), None), expected == Located::Q);
                    assert_eq!(consistent(None, Some(&row.q)), expected == Located::P);
                    assert!(consistent(None, None));
                    harm(&mut row);
                }
            }
        }
    }
}

#[test]
fn two_bad_chunks_are_not_taken_for_one() {
    let mut noise = Noise(36);
    for chunks in [1, 2, 5, 20] {
        let mut row = Row::new(chunks, 3000, &mut noise);
        for first in 0..chunks + 2 {
            for second in first + 1..chunks + 2 {
                // In different bytes, in different blocks.
                for (place, at) in [(first, 17), (second, 2500)] {
                    match role(place, chunks) {
                        Role::Data(index) => row.data[index].bytes_mut()[at] ^= 1,
                        Role::P => row.p[at] ^= 1,
                        Role::Q => row.q[at] ^= 1,
                    }
                }
                let kernel = Kernel::best();
                assert_eq!(kernel.locate(&row.slices(), &row.p, &row.q), Located::Several);
                row = Row::new(chunks, 3000, &mut noise);
            }
        }
    }
    // In one byte: differences that no chunk of so few can make.
    let row = Row::new(3, 10, &mut noise);
    let (mut p, mut q) = (row.p.clone(), row.q.clone());
    p[4] ^= 1;
    q[4] ^= coefficient(3);
    assert_eq!(Kernel::best().locate(&row.slices(), &p, &q), Located::Several);
}

#[test]
fn a_fault_of_the_caller_panics() {
    let kernel = Kernel::best();
    let panics = |call: &dyn Fn()| {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
        assert!(result.is_err());
    };
    let (a, b) = ([1; 64], [2; 65]);
    panics(&|| kernel.xor(&mut [0; 64], &[&a, &b]));
    panics(&|| kernel.xor_into(&mut [0; 65], &[&a]));
    panics(&|| kernel.p(&[Some(&a), Some(&b)], &mut [0; 64]));
    panics(&|| kernel.q(&[Some(&a), Some(&b)], &mut [0; 64]));
    panics(&|| kernel.pq(&[Some(&a), Some(&b)], &mut [0; 64], &mut [0; 64]));
    panics(&|| kernel.pq(&[Some(&a)], &mut [0; 64], &mut [0; 65]));
    panics(&|| kernel.pq(&[Some(&a[..]); MAX_DATA_CHUNKS + 1], &mut [0; 64], &mut [0; 64]));
    let change = Change { index: 0, old: &a, new: &b };
    panics(&|| kernel.update(Some(&mut [0; 64]), None, &[change]));
    let change = Change { index: 0, old: &a, new: &a };
    panics(&|| kernel.update(Some(&mut [0; 64]), Some(&mut [0; 65]), &[change]));
    panics(&|| {
        let _ = kernel.locate(&[&a, &b], &a, &a);
    });
    panics(&|| {
        let _ = kernel.is_consistent(&[&a], Some(&b), None);
    });
    let reconstruct = |data: &[Option<&[u8]>], role| {
        let _ = kernel.reconstruct(data, Some(&a), None, &mut [(role, &mut [0; 64])]);
    };
    reconstruct(&[Some(&a), None], Role::Data(1));
    panics(&|| reconstruct(&[Some(&b), None], Role::Data(1)));
    panics(&|| reconstruct(&[Some(&a), None], Role::Data(0)));
    panics(&|| reconstruct(&[Some(&a), None], Role::Data(2)));
    panics(&|| reconstruct(&[Some(&a), None], Role::P));
    panics(&|| {
        let (mut x, mut y) = ([0; 64], [0; 64]);
        let wanted = &mut [(Role::Q, &mut x[..]), (Role::Q, &mut y[..])];
        let _ = kernel.reconstruct(&[Some(&a)], None, None, wanted);
    });
}

/// Memory of one page between two that cannot be touched.
struct Fenced(*mut u8);

const PAGE: usize = 4096;

impl Fenced {
    fn new() -> Self {
        let (all, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, of which the first and the last page are made inaccessible.
        unsafe {
            let base = mmap_anonymous(std::ptr::null_mut(), 3 * PAGE, all, flags).unwrap();
            mprotect(base, PAGE, MprotectFlags::empty()).unwrap();
            mprotect(base.byte_add(2 * PAGE), PAGE, MprotectFlags::empty()).unwrap();
            Self(base.cast::<u8>().add(PAGE))
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the middle page is readable and writable, and borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.0, PAGE) }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, and nothing borrows it any more.
        unsafe { munmap(self.0.sub(PAGE).cast(), 3 * PAGE).unwrap() }
    }
}

/// Not a byte before or behind a chunk is touched, not even read.
#[test]
fn nothing_beyond_the_chunks_is_touched() {
    let mut fenced: Vec<Fenced> = (0..5).map(|_| Fenced::new()).collect();
    let mut noise = Noise(37);
    for kernel in kernels() {
        for len in (0..=300).chain([PAGE - 1, PAGE]) {
            for at in [0, PAGE - len] {
                fenced.iter_mut().for_each(|page| noise.fill(page.bytes()));
                let mut chunks = fenced.iter_mut().map(|page| &mut page.bytes()[at..at + len]);
                let mut next = || chunks.next().unwrap();
                let (p, q, a, b, c): (_, _, &[u8], &[u8], &[u8]) =
                    (next(), next(), next(), next(), next());
                let data = [Some(a), Some(b), Some(c)];
                kernel.pq(&data, p, q);
                assert!(kernel.is_consistent(&[a, b, c], Some(p), Some(q)));
                kernel.q(&data, q);
                kernel.xor(p, &[a, b, c]);
                kernel.update(Some(p), Some(q), &[Change { index: 1, old: a, new: b }]);
            }
        }
    }
}
