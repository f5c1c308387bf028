//! The planner against what a naive model and linear algebra say.

use super::*;
use proptest::prelude::*;

/// A product in the field of RAID 6, bit by bit.
fn multiply(a: u8, b: u8) -> u8 {
    let (mut a, mut product) = (u16::from(a), 0u16);
    for bit in 0..8 {
        if b >> bit & 1 == 1 {
            product ^= a;
        }
        a <<= 1;
        if a & 0x100 != 0 {
            a ^= 0x11d;
        }
    }
    product as u8
}

fn power(exponent: usize) -> u8 {
    (0..exponent).fold(1, |product, _| multiply(product, 2))
}

/// The coefficients with which a chunk is made of the data.
fn vector(role: Roles, data_chunks: usize) -> Vec<u8> {
    let coefficient = |index: usize| match role {
        Roles::P => 1,
        Roles::Q => power(index),
        role => u8::from(role == Roles::data(index)),
    };
    (0..data_chunks).map(coefficient).collect()
}

/// The number of independent vectors.
fn rank(mut rows: Vec<Vec<u8>>) -> usize {
    let columns = rows.first().map_or(0, Vec::len);
    let mut rank = 0;
    for column in 0..columns {
        let Some(pivot) = (rank..rows.len()).find(|&row| rows[row][column] != 0) else { continue };
        rows.swap(rank, pivot);
        let value = rows[rank][column];
        let inverse = (1..=255).find(|&other| multiply(value, other) == 1).unwrap();
        let base: Vec<u8> = rows[rank].iter().map(|&byte| multiply(byte, inverse)).collect();
        for row in rows.iter_mut().skip(rank + 1) {
            let factor = row[column];
            for (byte, &of_base) in row.iter_mut().zip(&base) {
                *byte ^= multiply(factor, of_base);
            }
        }
        rank += 1;
    }
    rank
}

fn follows(known: Roles, wanted: &[Vec<u8>], data_chunks: usize) -> bool {
    let known: Vec<_> = known.iter().map(|role| vector(role, data_chunks)).collect();
    let both = known.iter().chain(wanted).cloned().collect();
    rank(known) == rank(both)
}

/// Every state of small rows, every set of chunks that may change: a plan is there exactly if the
/// parity of what does not change follows from what can be read, it follows from what the plan
/// reads, and nothing that is not needed is read.
#[test]
fn a_write_is_planned_whenever_it_can_be_done() {
    let mut ways = [0usize; 5];
    for (data, parities) in [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (4, 2)] {
        let all = Roles::all_data(data);
        let chunks: Vec<Roles> = (all | parity_roles(parities)).iter().collect();
        let choose = |bits: usize| {
            let chosen = chunks.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
            chosen.fold(Roles::NONE, |set, (_, &role)| set | role)
        };
        for state in 0..1usize << (2 * chunks.len() + 1) {
            let writable = choose(state);
            let readable = choose(state >> chunks.len());
            let trusted = state >> (2 * chunks.len()) & 1 == 1;
            if !writable.contains(readable) {
                continue;
            }
            let members = Members { readable, writable, trusted };
            for modified in (1..1usize << data).map(&choose) {
                let plan = plan_write(data, parities, members, modified);
                check_write(data, parities, members, modified, plan);
                if let Ok(plan) = plan {
                    ways[plan.way as usize] += 1;
                }
            }
        }
    }
    assert!(ways.iter().all(|&count| count > 100), "{ways:?}");
}

fn check_write(
    data: usize,
    parities: usize,
    members: Members,
    modified: Roles,
    plan: Result<Plan, Unrecoverable>,
) {
    let all = Roles::all_data(data);
    let Members { readable, writable, trusted } = members;
    let known = if trusted { readable } else { readable & all };
    let parity = writable - all;
    // The partial parity: without what changes.
    let partial: Vec<Vec<u8>> = parity
        .iter()
        .map(|role| vector(role, data))
        .map(|mut vector| {
            modified.indices().for_each(|index| vector[index] = 0);
            vector
        })
        .collect();
    let is_stored = ((all | parity_roles(parities)) - writable).count() <= parities;
    let possible = is_stored && (parity.is_empty() || follows(known, &partial, data));
    let context = format!("{data}+{parities} {members:?} {modified:?}");
    assert_eq!(plan.is_ok(), possible, "{context}: {plan:?}");
    let Ok(plan) = plan else { return };
    assert!(known.contains(plan.reads), "{context}: {plan:?}");
    assert_eq!(plan.writes, (modified & writable) | parity, "{context}");
    if !parity.is_empty() {
        assert!(follows(plan.reads, &partial, data), "{context}: {plan:?}");
        // Nothing could be left out of what the plain ways read (with two parities the old data
        // could sometimes be computed, but not more cheaply than read).
        let is_plain =
            plan.way == Way::Reconstruct || (plan.way == Way::ReadModify && parities == 1);
        for role in plan.reads.iter().filter(|_| is_plain) {
            let needed = !follows(plan.reads - role, &partial, data);
            assert!(needed, "{context}: {plan:?} reads {role:?} for nothing");
        }
    } else {
        assert!(plan.reads.is_empty());
    }
    // The two plain ways compared, where both can be gone.
    let (others, modify) = (all - modified, modified | parity);
    if plan.way == Way::ReadModify && known.contains(others) {
        assert!(modify.count() < others.count(), "{context}");
    }
    if plan.way == Way::Reconstruct && known.contains(modify) {
        assert!(others.count() <= modify.count(), "{context}");
    }
    if plan.way == Way::Decode {
        assert_eq!(plan.unknown, all - readable, "{context}");
        let data_known = (all - plan.unknown) & plan.reads;
        assert_eq!(data_known | plan.unknown, all, "{context}");
        assert!(!known.contains(others) && !known.contains(modify), "{context}");
    }
}

#[test]
fn a_read_is_planned_whenever_it_can_be_done() {
    for (data, parities) in [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)] {
        let all = Roles::all_data(data);
        let chunks: Vec<Roles> = (all | parity_roles(parities)).iter().collect();
        let choose = |bits: usize| {
            let chosen = chunks.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
            chosen.fold(Roles::NONE, |set, (_, &role)| set | role)
        };
        for state in 0..1usize << (chunks.len() + 1) {
            let readable = choose(state);
            let trusted = state >> chunks.len() & 1 == 1;
            let members = Members { readable, writable: readable, trusted };
            let known = if trusted { readable } else { readable & all };
            for wanted in (1..1usize << data).map(&choose) {
                let plan = plan_read(data, parities, members, wanted);
                let vectors: Vec<_> = wanted.iter().map(|role| vector(role, data)).collect();
                let context = format!("{data}+{parities} {members:?} {wanted:?}: {plan:?}");
                assert_eq!(plan.is_ok(), follows(known, &vectors, data), "{context}");
                let Ok(plan) = plan else { continue };
                assert!(known.contains(plan.reads), "{context}");
                assert!((plan.reads | plan.unknown).contains(wanted), "{context}");
                assert!(follows(plan.reads, &vectors, data), "{context}");
                if readable.contains(wanted) {
                    assert_eq!((plan.way, plan.reads), (Way::DataOnly, wanted), "{context}");
                }
                assert!(plan.writes.is_empty());
            }
        }
    }
}

/// Bytes (in units) that change in each chunk.
type Changes = Vec<Vec<bool>>;

fn check_slices(cut: Cut, units: usize, parts: &[Part]) {
    let mut changes: Changes = vec![vec![false; units]; cut.data_chunks];
    for part in parts {
        changes[usize::from(part.chunk)][part.start as usize..part.end as usize].fill(true);
    }
    let mut slices = vec![Slice { start: 9, len: 9, modified: Roles::P }];
    cut.slices(parts.iter().copied(), &mut vec![(1, 1, true)], &mut slices);
    let mut done: Changes = vec![vec![false; units]; cut.data_chunks];
    for (at, slice) in slices.iter().enumerate() {
        assert!(slice.len > 0 && !slice.modified.is_empty());
        let is_full = slice.modified == Roles::all_data(cut.data_chunks);
        assert!(is_full || slice.len <= cut.max_bytes, "{slices:?}");
        if let Some(previous) = at.checked_sub(1).map(|before| slices[before]) {
            let same = previous.start == slice.start && previous.len == slice.len;
            assert!(slice.start >= previous.end() || (cut.consecutive && same), "{slices:?}");
            let joins = previous.end() == slice.start && previous.modified == slice.modified;
            let is_single = !cut.consecutive;
            assert!(!joins || !is_single || previous.len == cut.max_bytes, "{slices:?}");
        }
        for index in slice.modified.indices() {
            for unit in slice.start..slice.end() {
                assert!(!std::mem::replace(&mut done[index][unit as usize], true), "{slices:?}");
            }
        }
        if cut.consecutive {
            let first = slice.modified.indices().next().unwrap();
            let last = slice.modified.indices().last().unwrap();
            assert_eq!(last - first + 1, slice.modified.count(), "{slices:?}");
        } else {
            // All that changes in this range, and nothing else.
            for (index, change) in changes.iter().enumerate() {
                let is_modified = slice.modified.contains(Roles::data(index));
                let range = slice.start as usize..slice.end() as usize;
                assert!(change[range].iter().all(|&changes| changes == is_modified));
            }
        }
    }
    assert_eq!(done, changes, "{parts:?} {slices:?}");
}

#[test]
fn slices_of_every_pair_and_triple_of_small_parts() {
    let units = 4u32;
    let mut parts = Vec::new();
    for chunk in 0..3 {
        for start in 0..units {
            for end in start..=units {
                parts.push(Part { chunk, start, end });
            }
        }
    }
    for consecutive in [false, true] {
        for max_bytes in [1, 3, 8] {
            let cut = Cut { data_chunks: 3, max_bytes, consecutive };
            check_slices(cut, 4, &[]);
            for &first in &parts {
                for &second in &parts {
                    check_slices(cut, 4, &[first, second]);
                    for &third in parts.iter().filter(|part| part.chunk == 2) {
                        check_slices(cut, 4, &[first, third, second]);
                    }
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn slices_of_many_parts(
        parts in prop::collection::vec((0u16..6, 0u32..64, 1u32..30), 0..40),
        max_bytes in 1u32..70,
        consecutive in any::<bool>(),
    ) {
        let part = |&(chunk, start, len): &(u16, u32, u32)| {
            Part { chunk, start, end: (start + len).min(64) }
        };
        let parts: Vec<Part> = parts.iter().map(part).collect();
        check_slices(Cut { data_chunks: 6, max_bytes, consecutive }, 64, &parts);
    }
}

/// A contiguous write changes a run of chunks everywhere, so the log costs it nothing.
#[test]
fn a_contiguous_write_is_made_of_runs() {
    for start in 0..12u32 {
        for end in start + 1..=12 {
            let parts = (0..3u32).filter_map(|chunk| {
                let (from, to) = (start.max(chunk * 4), end.min(chunk * 4 + 4));
                let within = |at: u32| at - chunk * 4;
                (from < to).then(|| Part {
                    chunk: chunk as u16,
                    start: within(from),
                    end: within(to),
                })
            });
            let slices = |consecutive| {
                let cut = Cut { data_chunks: 3, max_bytes: 4, consecutive };
                let mut slices = Vec::new();
                cut.slices(parts.clone(), &mut Vec::new(), &mut slices);
                slices
            };
            let with: Vec<Slice> = slices(true);
            let without: Vec<Slice> = slices(false);
            // Of chunks 0 and 2 with a hole between them there are two.
            if with != without {
                assert!(with.len() > without.len() && start / 4 == 0 && end > 8, "{start}..{end}");
                assert!(without.iter().any(|slice| slice.modified.indices().eq([0, 2])));
            }
        }
    }
}

#[test]
fn the_buffers_of_a_slice_stay_within_their_bound() {
    for parities in [1, 2] {
        for data_chunks in 1..=62 {
            let cut = Cut::new(data_chunks, parities, false);
            assert!(cut.max_bytes.is_power_of_two() && cut.max_bytes <= MAX_SLICE_BYTES);
            let bytes = 2 * (data_chunks + parities) * cut.max_bytes as usize;
            assert!(bytes <= MAX_BATCH_BYTES, "{data_chunks}");
            assert!(cut.max_bytes == MAX_SLICE_BYTES || 2 * bytes > MAX_BATCH_BYTES);
        }
    }
}

#[test]
fn sets_of_roles() {
    let set = Roles::data(0) | Roles::data(5) | Roles::Q;
    assert_eq!(format!("{set:?}"), "{0, 5, Q}");
    assert_eq!((set.count(), set.indices().collect::<Vec<_>>()), (3, vec![0, 5]));
    assert_eq!(
        [Roles::data(0), Roles::data(5), Roles::Q].map(|role| set.place_of(role)),
        [0, 1, 2]
    );
    assert_eq!(
        (Roles::data(63).index(), Roles::P.index(), Roles::NONE.index()),
        (Some(63), None, None)
    );
    assert!(set.contains(Roles::Q) && !set.contains(Roles::P));
    assert_eq!(Roles::all_data(64).count(), 64);
    assert_eq!((Roles::all_data(3) - Roles::data(1)).first_run(), Roles::data(0));
    assert_eq!(Roles::all_data(3).first_run(), Roles::all_data(3));
}
