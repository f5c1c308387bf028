//! Which task runs, how it is paused and stopped, and what is said of it.

use std::sync::Arc;
use std::time::Duration;

use super::rig::{Plan, Rig};
use crate::array::{CheckMode, IN_SYNC, Limit, MemberState, RecoveryState};
use crate::geometry::Level;

#[test]
fn an_idle_array_says_so() {
    let (rig, _) = Rig::filled(&Plan::new(Level::Raid1, 2, 2 << 20), 1);
    rig.start();
    rig.world.run_for(1000);
    assert_eq!(rig.status(), crate::array::RecoveryStatus::default());
    rig.stop();
}

/// A rebuild takes the place of a resync and of a check, which go on afterwards.
#[test]
fn the_most_urgent_task_comes_first_and_the_others_go_on() {
    let mut plan = Plan::new(Level::Raid1, 3, 8 << 20).without(2);
    plan.resync_from = 4 << 20;
    let (mut rig, contents) = Rig::filled(&plan, 1);
    rig.shared.set_resync_rates(1, Some(64 << 20));
    assert!(rig.shared.start_check(false));
    assert!(!rig.shared.start_check(true), "one at a time");
    assert_eq!(rig.status().state, RecoveryState::Resync);
    rig.start();
    assert!(rig.world.run_until(|| rig.status().position_bytes > 4 << 20));
    rig.add(2);
    let mut order = vec![RecoveryState::Resync];
    let reached = rig.world.run_until(|| {
        let state = rig.status().state;
        if order.last() != Some(&state) {
            order.push(state);
        }
        state == RecoveryState::Idle
    });
    assert!(reached);
    use RecoveryState::{Check, Idle, Rebuild, Resync};
    assert_eq!(order, [Resync, Rebuild, Resync, Check, Idle]);
    assert!(rig.shared.check_report().is_complete);
    rig.assert_holds(&contents);
}

/// The check gives way to a rebuild in the middle, and begins where it was.
#[test]
fn a_check_goes_on_where_it_was() {
    let plan = Plan::new(Level::Raid6, 5, 8 << 20).without(2);
    let (mut rig, _) = Rig::filled(&plan, 1);
    rig.shared.set_resync_rates(1, Some(64 << 20));
    assert!(rig.shared.start_check(false));
    rig.start();
    assert!(rig.world.run_until(|| rig.status().position_bytes > 8 << 20));
    let before = rig.status().position_bytes;
    rig.add(2);
    assert!(rig.world.run_until(|| rig.status().state == RecoveryState::Rebuild));
    assert!(rig.world.run_until(|| rig.status().state == RecoveryState::Check));
    assert!(rig.status().position_bytes >= before);
    rig.finish();
    assert!(rig.shared.check_report().is_complete);
    assert_eq!(rig.shared.member_states()[2], MemberState::InSync);
}

#[test]
fn a_check_can_be_stopped_and_begun_anew() {
    let (rig, _) = Rig::filled(&Plan::new(Level::Raid5, 4, 8 << 20), 1);
    rig.shared.set_resync_rates(1, Some(64 << 20));
    assert!(!rig.shared.stop_check());
    assert!(rig.shared.start_check(false));
    rig.start();
    assert!(rig.world.run_until(|| rig.status().position_bytes > 4 << 20));
    assert!(rig.shared.stop_check());
    let report = rig.shared.check_report();
    assert!(!report.is_wanted && !report.is_complete);
    // At once, while the old one's pieces are under way: it begins at the beginning.
    assert!(rig.shared.start_check(false));
    let read = || rig.disks.iter().map(|disk| disk.read_bytes.get()).min().unwrap();
    let before = read();
    rig.finish();
    assert!(rig.shared.check_report().is_complete);
    assert!(read() - before >= 8 << 20, "all of it was read");
    // Another mode, too.
    assert!(rig.shared.start_check_as(CheckMode::RepairAll));
    assert_eq!(rig.status().state, RecoveryState::Repair);
    rig.finish();
}

/// Paused, nothing is done, the time does not count, and the end is unknown.
#[test]
fn a_pause_is_a_pause() {
    let mut plan = Plan::new(Level::Raid5, 4, 64 << 20);
    plan.resync_from = 0;
    let disks = super::rig::disks_with(&plan.geometry, &vec![0; 192 << 20]);
    let rig = Rig::over(&plan, disks, 1);
    // 64 MiB of each member at 8/3 MiB a second: 24 seconds. Of the array that is three times as
    // much.
    rig.shared.set_resync_rates(1, Some((8 << 20) / 3));
    rig.start();
    assert!(rig.world.run_until(|| rig.status().worked > Duration::from_secs(9)));
    assert_eq!(rig.status().eta, None, "not in the first ten seconds");
    assert!(rig.world.run_until(|| rig.status().worked > Duration::from_secs(11)));
    let status = rig.status();
    let eta = status.eta.unwrap().as_secs_f64();
    assert!((11.0..14.0).contains(&eta), "{eta}");
    assert!((7 << 20..9 << 20).contains(&status.bytes_per_second), "{status:?}");
    assert_eq!(status.limited_by, Some(Limit::RateLimit));
    rig.shared.pause();
    let (array, world) = (Arc::clone(&rig.shared), std::rc::Rc::clone(&rig.world));
    rig.run(async move {
        world.sleep_ns(100_000_000_000).await;
        assert!(!array.is_in_sync());
    });
    let paused = rig.status();
    assert!(paused.is_paused && paused.state == RecoveryState::Resync);
    assert_eq!(paused.eta, None);
    assert!(paused.worked < Duration::from_secs(13), "{paused:?}");
    let recorded = rig.keeper.recorded.lock().unwrap().clone().unwrap();
    assert_eq!(recorded.resync_from, rig.shared.resync_position_bytes(), "it is recorded");
    assert!(recorded.resync_from > 0);
    rig.shared.resume();
    rig.finish();
    assert_eq!(rig.shared.resync_position_bytes(), IN_SYNC);
}

/// A stop does not wait for a rest, and leaves the position recorded.
#[test]
fn a_stop_is_at_once_and_leaves_a_checkpoint() {
    for level in [Level::Raid1, Level::Raid5] {
        let members = if level == Level::Raid1 { 2 } else { 3 };
        let plan = Plan::new(level, members, 8 << 20).without(1);
        let (mut rig, _) = Rig::filled(&plan, 1);
        rig.shared.set_checkpoint_interval(1 << 30);
        rig.shared.set_resync_rates(1, Some(4 << 20));
        rig.add(1);
        rig.start();
        let shared = Arc::clone(&rig.shared);
        assert!(rig.world.run_until(|| shared.rebuild_position_bytes() > 0));
        let before = shared.rebuild_position_bytes();
        rig.stop();
        let shard = plan.geometry.shard_bytes();
        assert!(shared.rebuild_position_bytes() <= before + 2 * shard);
        let recorded = rig.keeper.recorded.lock().unwrap().clone().unwrap();
        assert_eq!(recorded.rebuild_from, Some(rig.shared.rebuild_position_bytes()));
    }
}

/// While the host is busy the task rests, says so, and keeps its guaranteed rate.
#[test]
fn it_makes_way_for_the_host_and_keeps_its_rate() {
    let mut plan = Plan::new(Level::Raid1, 2, 64 << 20);
    plan.resync_from = 0;
    let disks = super::rig::disks_with(&plan.geometry, &vec![0; 64 << 20]);
    disks.iter().for_each(|disk| disk.rate.set(50 << 20));
    let rig = Rig::over(&plan, disks, 1);
    rig.shared.set_resync_rates(4 << 20, None);
    let (array, world, pool) =
        (rig.arrays[1].clone(), std::rc::Rc::clone(&rig.world), rig.pool.clone());
    rig.world.spawn(async move {
        for _ in 0..600 {
            let buffer = pool.allocate(4096).unwrap();
            array.read(0, buffer).await.unwrap();
            world.sleep_ns(10_000_000).await;
        }
    });
    rig.start();
    rig.world.run_until(|| super::rig::now_ns(&rig.world) > 5_000_000_000);
    let status = rig.status();
    assert_eq!(status.limited_by, Some(Limit::Foreground), "{status:?}");
    let done = status.position_bytes;
    assert!(done >= 18 << 20, "it falls below its guaranteed rate: {done} in five seconds");
    assert!(done <= 64 << 20, "it does not make way: {done} in five seconds");
    rig.finish();
}
