//! How many of the writes of sequential and random loads end as writes of whole rows.

use super::*;
use crate::array::StripeStatistics;

/// Runs `depth` hosts' worth of sequential writes from the start of the array to its end.
fn stream(plan: &Plan, depth: usize, len: usize, seed: u64) -> (StripeStatistics, u64) {
    let rig = Rig::new(plan, seed);
    rig.gather();
    let next = Rc::new(Cell::new(0));
    let done = Rc::new(Cell::new(0));
    for _ in 0..depth {
        let (next, done) = (Rc::clone(&next), Rc::clone(&done));
        let (world, pool) = (Rc::clone(&rig.world), rig.pool.clone());
        let arrays = rig.arrays.clone();
        let capacity = rig.capacity();
        rig.world.spawn(async move {
            while next.get() + len <= capacity {
                let at = next.get();
                next.set(at + len);
                let mut buffer = pool.allocate(len).unwrap();
                buffer.fill(at as u8);
                let array = &arrays[at / len % arrays.len()];
                array.write(at as u64, buffer.freeze(), false).await.unwrap();
                // The host thinks and the network takes its time.
                world.sleep_ns(world.below(30_000)).await;
            }
            done.set(done.get() + 1);
        });
    }
    assert!(rig.world.run_until(|| done.get() == depth));
    check_tidy(&rig);
    rig.check_parity();
    (rig.shared.stripe_statistics(), rig.shared.geometry().rows())
}

#[test]
fn streams_with_company_are_written_in_whole_rows() {
    for (members, chunk) in [(4, 65_536), (5, 65_536), (3, 131_072)] {
        for depth in [2, 4, 32] {
            for cores in [1, 2] {
                let plan = Plan { cores, ..Plan::new(Level::Raid5, members, chunk, 120) };
                let (statistics, rows) = stream(&plan, depth, 128 << 10, 9);
                let whole = statistics.full_row_writes;
                assert!(
                    whole * 100 >= rows * 95,
                    "{members} members, depth {depth}, {cores} cores: {whole} of {rows} rows: \
                     {statistics:?}"
                );
            }
        }
    }
}

/// Rows of eight members are larger than what depth 2 has under way; with more they are filled.
#[test]
fn wide_rows_need_more_company() {
    for (depth, least) in [(2, 0), (4, 95), (32, 95)] {
        let plan = Plan::new(Level::Raid5, 8, 65_536, 60);
        let (statistics, rows) = stream(&plan, depth, 128 << 10, 4);
        let whole = statistics.full_row_writes;
        assert!(whole * 100 >= rows * least, "depth {depth}: {whole} of {rows}: {statistics:?}");
    }
}

/// A host that waits for each answer is never kept waiting for what it has not sent.
#[test]
fn a_stream_without_company_does_not_wait() {
    let plan = Plan { cores: 1, ..Plan::new(Level::Raid5, 4, 65_536, 30) };
    for gathers in [false, true] {
        let rig = Rig::new(&plan, 6);
        if gathers {
            rig.gather();
        }
        for at in (0..rig.capacity()).step_by(64 << 10) {
            rig.write(0, at, &[1; 64 << 10]).unwrap();
            assert_eq!(rig.arrays[0].stripe().rows.newest_hold(), 0);
        }
        rig.check_parity();
    }
}

#[test]
fn futures_of_requests_are_small() {
    let rig = Rig::new(&Plan::new(Level::Raid6, 6, 65_536, 10), 1);
    let buffer = || rig.pool.allocate(4096).unwrap();
    let write = rig.arrays[0].write(0, buffer().freeze(), false);
    let read = rig.arrays[0].read(0, buffer());
    let (read, write) = (size_of_val(&read), size_of_val(&write));
    println!("read {read} bytes, write {write} bytes");
    assert!(read <= 2048 && write <= 2048, "read {read} bytes, write {write} bytes");
}
