//! How fast parity is, beside copying the same chunks.
//!
//! First the comparison that a promise rests on: *computing the parity of rows of four data chunks
//! of 64 KiB, one (4+1) or two (4+2) parity chunks, reaches at least 90 % of the bandwidth of
//! copying the same chunks*. The bandwidth of all is that of the data: bytes read per second, from
//! a working set of 256 MiB, far more than the caches hold. Parity writes 64 or 128 KiB per row,
//! the copy 256 KiB, each to as many places as there are rows. `copy` is `memcpy` chunk by chunk,
//! which at this size writes through the caches; `streaming copy` writes past them, as parity does.
//! Runs over the whole set take turns, and each ratio is the median of those of all turns.
//!
//! Then Criterion's measurements of every implementation that this processor has, on one row again
//! and again: what the computation costs when memory does not count.
//!
//! `cargo bench -p raidfabric-raid --bench parity [-- FILTER]`

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use raidfabric_raid::geometry::Role;
use raidfabric_raid::parity::{Change, Kernel};

const DATA_CHUNKS: usize = 4;
const CHUNK_BYTES: usize = 64 << 10;
const ROWS: usize = 1024;
const TURNS: usize = 15;

/// Memory aligned as buffers of the engine are, all of it touched.
struct Memory {
    bytes: Vec<u8>,
    start: usize,
}

impl Memory {
    fn new(len: usize) -> Self {
        let mut bytes = vec![0; len + 4096];
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        for word in bytes.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start }
    }

    fn chunk(&self, number: usize) -> &[u8] {
        &self.bytes[self.start + number * CHUNK_BYTES..][..CHUNK_BYTES]
    }

    fn chunk_mut(&mut self, number: usize) -> &mut [u8] {
        &mut self.bytes[self.start + number * CHUNK_BYTES..][..CHUNK_BYTES]
    }

    fn pair_mut(&mut self, pair: usize) -> (&mut [u8], &mut [u8]) {
        let both = &mut self.bytes[self.start + 2 * pair * CHUNK_BYTES..][..2 * CHUNK_BYTES];
        both.split_at_mut(CHUNK_BYTES)
    }

    fn row(&self, row: usize) -> [Option<&[u8]>; DATA_CHUNKS] {
        std::array::from_fn(|index| Some(self.chunk(row * DATA_CHUNKS + index)))
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints each way's bandwidth, and its ratios to the two copies.
fn compare_with_copying() {
    let source = Memory::new(ROWS * DATA_CHUNKS * CHUNK_BYTES);
    let mut copies = Memory::new(ROWS * DATA_CHUNKS * CHUNK_BYTES);
    let mut parity = Memory::new(ROWS * 2 * CHUNK_BYTES);
    let best = Kernel::best();
    type Way<'a> = (String, Box<dyn FnMut(usize, &mut Memory, &mut Memory) + 'a>);
    let source = &source;
    let mut ways: Vec<Way<'_>> = vec![
        (
            "copy".into(),
            Box::new(|row, copies, _| {
                for number in row * DATA_CHUNKS..(row + 1) * DATA_CHUNKS {
                    copies.chunk_mut(number).copy_from_slice(source.chunk(number));
                }
            }),
        ),
        (
            "streaming copy".into(),
            Box::new(|row, copies, _| {
                for number in row * DATA_CHUNKS..(row + 1) * DATA_CHUNKS {
                    best.xor(copies.chunk_mut(number), &[source.chunk(number)]);
                }
            }),
        ),
    ];
    for kernel in Kernel::available() {
        ways.push((
            format!("4+1 {}", kernel.name()),
            Box::new(move |row, _, parity| kernel.p(&source.row(row), parity.pair_mut(row).0)),
        ));
        ways.push((
            format!("4+2 {}", kernel.name()),
            Box::new(move |row, _, parity| {
                let (p, q) = parity.pair_mut(row);
                kernel.pq(&source.row(row), p, q);
            }),
        ));
    }
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    for turn in 0..=TURNS {
        for n in 0..ways.len() {
            let way = (n + turn) % ways.len();
            let begin = Instant::now();
            for row in 0..ROWS {
                (ways[way].1)(row, &mut copies, &mut parity);
            }
            let seconds = begin.elapsed().as_secs_f64();
            // The first turn warms up.
            if turn > 0 {
                rates[way].push((ROWS * DATA_CHUNKS * CHUNK_BYTES) as f64 / seconds);
            }
        }
    }
    println!("rows of {DATA_CHUNKS} chunks of {CHUNK_BYTES} bytes, {ROWS} of them; {TURNS} turns");
    println!("{:<18} {:>12} {:>12} {:>18}", "", "data GB/s", "to copy", "to streaming copy");
    for ((name, _), own) in ways.iter().zip(&rates) {
        let ratio = |other: &[f64]| median(own.iter().zip(other).map(|(a, b)| a / b).collect());
        let gigabytes = median(own.clone()) / 1e9;
        let (copy, streaming) = (ratio(&rates[0]), ratio(&rates[1]));
        println!("{name:<18} {gigabytes:>12.2} {copy:>12.2} {streaming:>18.2}");
    }
}

fn one_row(criterion: &mut Criterion) {
    for (data, chunk) in [(4, 4 << 10), (4, 64 << 10), (22, 4 << 10)] {
        let source = Memory::new(2 * data * CHUNK_BYTES);
        let mut outs = Memory::new(2 * CHUNK_BYTES);
        let (x, y) = outs.pair_mut(0);
        let (x, y) = (&mut x[..chunk], &mut y[..chunk]);
        let chunks: Vec<Option<&[u8]>> =
            (0..data).map(|number| Some(&source.chunk(number)[..chunk])).collect();
        let (p, q) = (&source.chunk(data)[..chunk], &source.chunk(data + 1)[..chunk]);
        let mut group = criterion.benchmark_group(format!("{data} chunks of {chunk} bytes"));
        group.throughput(Throughput::Bytes((data * chunk) as u64));
        for kernel in Kernel::available() {
            let name = |what| BenchmarkId::new(what, kernel.name());
            group.bench_function(name("p"), |bencher| {
                bencher.iter(|| kernel.p(black_box(&chunks), x));
            });
            group.bench_function(name("p and q"), |bencher| {
                bencher.iter(|| kernel.pq(black_box(&chunks), x, y));
            });
            group.bench_function(name("one from p"), |bencher| {
                let mut left = chunks.clone();
                left[1] = None;
                bencher.iter(|| {
                    let wanted = &mut [(Role::Data(1), &mut *x)];
                    kernel.reconstruct(black_box(&left), Some(p), None, wanted)
                });
            });
            group.bench_function(name("two from p and q"), |bencher| {
                let mut left = chunks.clone();
                (left[1], left[3]) = (None, None);
                bencher.iter(|| {
                    let wanted = &mut [(Role::Data(1), &mut *x), (Role::Data(3), &mut *y)];
                    kernel.reconstruct(black_box(&left), Some(p), Some(q), wanted)
                });
            });
        }
        group.finish();
    }
}

fn one_change(criterion: &mut Criterion) {
    let source = Memory::new(2 * CHUNK_BYTES);
    let mut parity = Memory::new(2 * CHUNK_BYTES);
    let (p, q) = parity.pair_mut(0);
    for bytes in [4 << 10, 64 << 10] {
        let change =
            Change { index: 3, old: &source.chunk(0)[..bytes], new: &source.chunk(1)[..bytes] };
        let mut group = criterion.benchmark_group(format!("a change of {bytes} bytes"));
        group.throughput(Throughput::Bytes(bytes as u64));
        for kernel in Kernel::available() {
            group.bench_function(BenchmarkId::new("p and q", kernel.name()), |bencher| {
                bencher.iter(|| {
                    let (p, q) = (&mut p[..bytes], &mut q[..bytes]);
                    kernel.update(Some(p), Some(q), black_box(&[change]));
                });
            });
        }
        group.finish();
    }
}

fn main() {
    // Cargo runs benchmarks as tests, too, where they need only work.
    if std::env::args().any(|argument| argument == "--bench") {
        compare_with_copying();
    }
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    one_row(&mut criterion);
    one_change(&mut criterion);
    criterion.final_summary();
}
