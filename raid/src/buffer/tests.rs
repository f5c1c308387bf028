use super::*;
use std::collections::VecDeque;
use std::sync::mpsc;
use std::thread;

use proptest::prelude::*;

fn pool(units: usize, max_units: usize) -> Pool {
    Pool::new(units * UNIT_BYTES, max_units * UNIT_BYTES).unwrap()
}

#[test]
fn blocks_are_page_aligned_and_counted() {
    let pool = pool(64, 16);
    for (len, block) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (65_536, 65_536)] {
        let buffer = pool.allocate(len).unwrap();
        assert_eq!(buffer.len(), len);
        assert_eq!(buffer.as_ptr() as usize % UNIT_BYTES, 0);
        assert_eq!(pool.in_use_bytes(), block);
    }
    assert_eq!(pool.in_use_bytes(), 0);
    assert!(pool.allocate(65_537).is_none(), "above the largest block");
    assert!(pool.allocate(usize::MAX).is_none());
}

#[test]
fn senseless_sizes_are_refused() {
    assert!(Pool::new(0, 4096).is_err());
    assert!(Pool::new(4096, 8192).is_err());
    assert!(Pool::new(1 << 50, 4096).is_err());
    assert!(Pool::new(4096, usize::MAX).is_err());
}

#[test]
fn the_budget_is_the_limit_and_small_blocks_merge_again() {
    let pool = pool(8, 8);
    let small: Vec<Buffer> = (0..8).map(|_| pool.allocate(1).unwrap()).collect();
    assert!(pool.allocate(1).is_none());
    // The small blocks go to the queue of their size; a large one must get them from there.
    drop(small);
    let large = pool.allocate(8 * UNIT_BYTES).unwrap();
    assert!(pool.allocate(1).is_none());
    drop(large);
    assert!(pool.allocate(1).is_some());
}

#[test]
fn a_budget_that_is_no_power_of_two_is_usable_to_the_end() {
    let pool = pool(13, 4);
    let held: Vec<Buffer> = (0..13).map(|_| pool.allocate(4096).unwrap()).collect();
    assert!(pool.allocate(1).is_none());
    assert_eq!(pool.in_use_bytes(), 13 * 4096);
    drop(held);
    let larger: Vec<Buffer> = (0..3).map(|_| pool.allocate(4 * 4096).unwrap()).collect();
    assert_eq!(larger.len(), 3);
    assert!(pool.allocate(4096).is_some());
}

#[test]
fn split_and_unsplit() {
    let pool = pool(4, 4);
    let mut whole = pool.allocate(10_000).unwrap();
    for (index, byte) in whole.iter_mut().enumerate() {
        *byte = index as u8;
    }
    let address = whole.as_ptr();
    let mut middle = whole.split_off(100);
    let tail = middle.split_off(5000);
    assert_eq!((whole.len(), middle.len(), tail.len()), (100, 5000, 4900));
    middle.fill(7);
    let tail = whole.unsplit(tail).unwrap_err();
    whole.unsplit(middle).unwrap();
    whole.unsplit(tail).unwrap();
    assert_eq!((whole.len(), whole.as_ptr()), (10_000, address));
    for (index, &byte) in whole.iter().enumerate() {
        let expected = if (100..5100).contains(&index) { 7 } else { index as u8 };
        assert_eq!(byte, expected, "byte {index}");
    }
    assert_eq!(pool.in_use_bytes(), 16_384);
    drop(whole);
    assert_eq!(pool.in_use_bytes(), 0);
}

#[test]
fn unsplit_refuses_another_block_that_happens_to_be_adjacent() {
    let pool = pool(2, 1);
    let (mut a, mut b) = (pool.allocate(4096).unwrap(), pool.allocate(4096).unwrap());
    if a.as_ptr() > b.as_ptr() {
        std::mem::swap(&mut a, &mut b);
    }
    assert_eq!(a.as_ptr().wrapping_add(4096), b.as_ptr());
    assert!(a.unsplit(b).is_err());
}

#[test]
fn truncated_bytes_do_not_come_back() {
    let pool = pool(1, 1);
    let mut buffer = pool.allocate(4096).unwrap();
    let tail = buffer.split_off(2048);
    buffer.truncate(1024);
    buffer.truncate(4096);
    assert_eq!(buffer.len(), 1024);
    assert!(buffer.unsplit(tail).is_err());
}

#[test]
#[should_panic(expected = "cannot split 10 bytes at 11")]
fn splitting_beyond_the_end_panics() {
    let mut buffer = pool(1, 1).allocate(10).unwrap();
    let _ = buffer.split_off(11);
}

#[test]
#[should_panic(expected = "is not within 10 bytes")]
fn slicing_beyond_the_end_panics() {
    let _ = pool(1, 1).allocate(10).unwrap().freeze().slice(5..11);
}

#[test]
fn shared_bytes_become_exclusive_only_for_the_last_handle() {
    let pool = pool(1, 1);
    let mut buffer = pool.allocate(100).unwrap();
    buffer.fill(1);
    let shared = buffer.freeze();
    let part = shared.slice(10..=19);
    assert_eq!(&part[..], &[1; 10]);
    assert_eq!(shared.slice(..).len(), 100);
    assert_eq!(shared.slice(100..).len(), 0);
    let shared = shared.try_into_mut().unwrap_err();
    drop(shared);
    let mut part = part.try_into_mut().unwrap();
    part.fill(2);
    assert_eq!(&part.freeze()[..], &[2; 10]);
}

#[test]
fn exclusive_and_shared_parts_of_one_block_live_side_by_side() {
    let pool = pool(1, 1);
    let mut head = pool.allocate(4096).unwrap();
    let mut tail = head.split_off(2048);
    tail.fill(9);
    let shared = tail.freeze();
    head.fill(8);
    assert!(shared.iter().all(|&byte| byte == 9));
    assert!(shared.clone().try_into_mut().is_err(), "the head is another handle");
    drop(head);
    assert_eq!(pool.in_use_bytes(), 4096);
}

#[test]
fn the_mapping_outlives_the_pool() {
    let pool = pool(4, 4);
    let mut buffer = pool.allocate(8192).unwrap();
    drop(pool);
    buffer.fill(3);
    let shared = buffer.freeze();
    let elsewhere = shared.slice(4096..);
    drop(shared);
    thread::spawn(move || assert!(elsewhere.iter().all(|&byte| byte == 3))).join().unwrap();
}

#[test]
fn the_region_covers_every_block() {
    let pool = pool(8, 2);
    let (base, len) = pool.region();
    assert_eq!(len, pool.budget_bytes());
    assert_eq!(pool.max_block_bytes(), 8192);
    while let Some(buffer) = pool.allocate(4096) {
        let offset = buffer.as_ptr() as usize - base as usize;
        assert!(offset + buffer.len() <= len);
        std::mem::forget(buffer);
    }
}

/// Each thread fills what it holds with its own pattern and finds it unharmed later; buffers, parts
/// and clones travel between the threads and are dropped wherever they end up.
#[test]
fn threads_never_see_each_others_bytes() {
    const THREADS: usize = 4;
    let rounds = if cfg!(debug_assertions) { 4_000 } else { 40_000 };
    let pool = pool(61, 16);
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..THREADS).map(|_| mpsc::sync_channel::<(SharedBuffer, u8)>(4)).unzip();
    let threads: Vec<_> = receivers
        .into_iter()
        .enumerate()
        .map(|(me, receiver)| {
            let (pool, senders) = (pool.clone(), senders.clone());
            thread::spawn(move || churn(me, rounds, &pool, &senders, &receiver))
        })
        .collect();
    drop(senders);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(pool.in_use_bytes(), 0);
    // Nothing was lost or handed out twice: everything can be taken as single units, and as the
    // largest blocks there are.
    let units: Vec<Buffer> = std::iter::from_fn(|| pool.allocate(1)).collect();
    assert_eq!(units.len(), 61);
    drop(units);
    let blocks: Vec<Buffer> = std::iter::from_fn(|| pool.allocate(16 * UNIT_BYTES)).collect();
    assert_eq!(blocks.len(), 3);
}

fn churn(
    me: usize,
    rounds: usize,
    pool: &Pool,
    senders: &[mpsc::SyncSender<(SharedBuffer, u8)>],
    receiver: &mpsc::Receiver<(SharedBuffer, u8)>,
) {
    let mut seed = me as u64 + 1;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let mut held: VecDeque<(Buffer, u8)> = VecDeque::new();
    let mut allocated = 0;
    while allocated < rounds {
        let pattern = (allocated * 4 + me) as u8;
        if let Some(mut buffer) = pool.allocate(1 + random(5 * UNIT_BYTES)) {
            allocated += 1;
            buffer.fill(pattern);
            let at = random(buffer.len() + 1);
            let tail = buffer.split_off(at);
            if random(2) == 0 {
                buffer.unsplit(tail).unwrap();
            } else {
                let shared = tail.freeze();
                let _ = senders[random(senders.len())].try_send((shared.slice(..), pattern));
                assert!(shared.iter().all(|&byte| byte == pattern));
            }
            held.push_back((buffer, pattern));
        } else {
            thread::yield_now();
        }
        if held.len() > random(6)
            && let Some((buffer, pattern)) = held.pop_front()
        {
            assert!(buffer.iter().all(|&byte| byte == pattern), "seen by thread {me}");
        }
        while let Ok((shared, pattern)) = receiver.try_recv() {
            assert!(shared.iter().all(|&byte| byte == pattern), "shared with thread {me}");
            if let Ok(mut mine) = shared.try_into_mut() {
                mine.fill(!pattern);
            }
        }
    }
}

/// The last two handles are dropped at the same time by two threads, over and over: the block must
/// come back exactly once.
#[test]
fn racing_last_drops_free_once() {
    let pool = pool(2, 2);
    let (to_other, from_main) = mpsc::sync_channel::<SharedBuffer>(1);
    let other = thread::spawn(move || while from_main.recv().is_ok() {});
    for _ in 0..if cfg!(debug_assertions) { 20_000 } else { 200_000 } {
        let buffer = loop {
            match pool.allocate(8192) {
                Some(buffer) => break buffer.freeze(),
                None => std::hint::spin_loop(),
            }
        };
        to_other.send(buffer.clone()).unwrap();
        drop(buffer);
    }
    drop(to_other);
    other.join().unwrap();
    assert_eq!(pool.in_use_bytes(), 0);
    assert!(pool.allocate(8192).is_some());
}

proptest! {
    /// Any cuts of a buffer, rejoined in order, give the buffer back; each part keeps its bytes.
    #[test]
    fn any_cuts_rejoin(len in 1usize..20_000, cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10)) {
        let pool = pool(8, 8);
        let mut rest = pool.allocate(len).unwrap();
        let mut parts = Vec::new();
        for (index, cut) in cuts.iter().enumerate() {
            let tail = rest.split_off(cut.index(rest.len() + 1));
            let mut head = std::mem::replace(&mut rest, tail);
            head.fill(index as u8);
            parts.push(head);
        }
        rest.fill(parts.len() as u8);
        parts.push(rest);
        let mut whole: Option<Buffer> = None;
        for (index, part) in parts.into_iter().enumerate() {
            prop_assert!(part.iter().all(|&byte| byte == index as u8));
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => prop_assert!(whole.unsplit(part).is_ok()),
            }
        }
        prop_assert_eq!(whole.as_ref().map(|whole| whole.len()), Some(len));
        prop_assert_eq!(pool.in_use_bytes(), len.div_ceil(4096).next_power_of_two() * 4096);
    }
}
