//! The data path of the parity levels in a simulated world: concurrent and overlapping writes from
//! several cores, lost and failing members, compared with a model of what each block may hold.

mod crash;
mod faults;
mod mend;
mod rig;
mod streams;
mod unsynced;

use std::rc::Rc;

use super::*;
use crate::array::MemberState;
use crate::geometry::Level;
use rig::{BLOCK, Model, Plan, Rig};

/// Where the hosts of a test write, and what.
#[derive(Clone, Copy)]
struct Load {
    hosts: u64,
    requests: u64,
    /// Out of so many, one is a zeroing.
    zeroing: u64,
    longest_blocks: u64,
}

const MIXED: Load = Load { hosts: 8, requests: 12, zeroing: 12, longest_blocks: 160 };

/// What the requests of a load were answered that were not done.
type Errors = Rc<RefCell<Vec<ArrayError>>>;

/// Runs a load to its end, on all cores, mostly on the first rows of each shard.
fn run_load(rig: &Rig, model: &Rc<Model>, load: Load) -> Vec<ArrayError> {
    let (errors, left) = start_load(rig, model, load);
    assert!(rig.world.run_until(|| left.get() == 0), "the hosts wait for ever");
    assert_eq!(rig.shared.writes_in_flight(), 0);
    errors.take()
}

/// Starts a load; also answers how many of its hosts are not done.
fn start_load(rig: &Rig, model: &Rc<Model>, load: Load) -> (Errors, Rc<Cell<u64>>) {
    let errors = Errors::default();
    let left = Rc::new(Cell::new(load.hosts));
    for _ in 0..load.hosts {
        let world = Rc::clone(&rig.world);
        let arrays = rig.arrays.clone();
        let (pool, model, errors) = (rig.pool.clone(), Rc::clone(model), Errors::clone(&errors));
        let left = Rc::clone(&left);
        let shard = rig.shared.geometry().shard_bytes() / BLOCK as u64;
        let row = rig.shared.geometry().row_data_bytes() / BLOCK as u64;
        let capacity = (rig.capacity() / BLOCK) as u64;
        rig.world.spawn(async move {
            for _ in 0..load.requests {
                let array = &arrays[world.below(arrays.len() as u64) as usize];
                let hot = world.below(capacity.div_ceil(shard)) * shard + world.below(3 * row);
                let any = world.below(capacity);
                let from = if world.one_in(8) { any } else { hot }.min(capacity - 1);
                let most = [1, 8, load.longest_blocks][world.below(3) as usize];
                let len = (1 + world.below(most)).min(capacity - from);
                let (at, len) = (from as usize * BLOCK, len as usize * BLOCK);
                if world.one_in(4) {
                    let began = model.time();
                    let buffer = pool.allocate(len).unwrap();
                    match array.read(at as u64, buffer).await {
                        Ok(buffer) => model.check(at, &buffer, began),
                        Err(unread) => errors.borrow_mut().push(unread.error),
                    }
                    continue;
                }
                let zeros = world.one_in(load.zeroing);
                let (number, bytes) = model.begin(at, len, zeros);
                let result = if zeros {
                    array.write_zeroes(at as u64, len as u64, false, false).await
                } else {
                    let mut buffer = pool.allocate(len).unwrap();
                    buffer.copy_from_slice(&bytes);
                    array.write(at as u64, buffer.freeze(), world.one_in(4)).await
                };
                model.end(number, result.is_ok());
                errors.borrow_mut().extend(result.err());
                if world.one_in(3) {
                    world.sleep_ns(world.below(200_000)).await;
                }
            }
            left.set(left.get() - 1);
        });
    }
    (errors, left)
}

/// Every block holds what it may, and all that is lost of the members can be told from the rest.
fn check_contents(rig: &Rig, model: &Model) {
    let began = model.time();
    let contents = rig.contents();
    model.check(0, &contents, began);
    rig.check_losses(&contents);
    check_tidy(rig);
}

/// Nothing that was taken is left behind.
fn check_tidy(rig: &Rig) {
    for array in &rig.arrays {
        let stripe = array.stripe();
        assert_eq!(stripe.rows.tickets(), 0);
        assert_eq!(stripe.reserve.in_use_bytes(), 0);
    }
}

fn shapes() -> Vec<Plan> {
    vec![
        Plan::new(Level::Raid5, 3, 4096, 200),
        Plan::new(Level::Raid5, 5, 16_384, 40),
        Plan::new(Level::Raid5, 9, 131_072, 3),
        Plan::new(Level::Raid6, 4, 8192, 100),
        Plan::new(Level::Raid6, 7, 16_384, 30),
    ]
}

const SEEDS: u64 = 12;

#[test]
fn concurrent_writes_leave_data_and_parity_right() {
    for plan in shapes() {
        for seed in 0..SEEDS {
            let rig = Rig::new(&plan, seed);
            let model = Model::new(rig.capacity());
            if seed % 2 == 0 {
                rig.gather();
            }
            let errors = run_load(&rig, &model, MIXED);
            assert_eq!(errors, [], "{} seed {seed}", plan.level);
            let began = model.time();
            let contents = rig.contents();
            model.check(0, &contents, began);
            rig.check_losses(&contents);
            check_tidy(&rig);
        }
    }
}

/// All ways in which `count` of the members can be something else than in sync.
fn states(members: usize, count: usize, state: MemberState) -> Vec<Vec<MemberState>> {
    let mut all = Vec::new();
    for first in 0..members {
        for second in if count == 2 { first + 1..members } else { first..first + 1 } {
            let mut states = vec![MemberState::InSync; members];
            states[first] = state;
            states[second] = state;
            all.push(states);
        }
    }
    all
}

#[test]
fn degraded_arrays_take_writes_and_read_right() {
    for plan in shapes() {
        let tolerance = plan.geometry().tolerance();
        for count in 1..=tolerance {
            for (seed, states) in
                states(plan.members, count, MemberState::Missing).into_iter().enumerate()
            {
                let plan = Plan { states, ..plan.clone() };
                let rig = Rig::new(&plan, seed as u64);
                let model = Model::new(rig.capacity());
                assert_eq!(run_load(&rig, &model, MIXED), [], "{} {:?}", plan.level, plan.states);
                let began = model.time();
                let contents = rig.contents();
                model.check(0, &contents, began);
                rig.check_losses(&contents);
                check_tidy(&rig);
            }
        }
    }
}
