//! How fast long tasks are, over drives with a rate: in virtual time, so it is their schedule that
//! is measured, not this machine.

use super::rig::{Disk, Plan, Rig, disks_with, now_ns};
use crate::array::{CheckMode, MemberState};
use crate::geometry::Level;

const RATE: u64 = 100 << 20;
const COMPONENT: u64 = 64 << 20;

fn plans() -> Vec<Plan> {
    vec![
        Plan::new(Level::Raid1, 2, COMPONENT),
        Plan::new(Level::Raid10, 4, COMPONENT),
        Plan::new(Level::Raid5, 4, COMPONENT),
        Plan::new(Level::Raid5, 8, COMPONENT),
        Plan::new(Level::Raid6, 4, COMPONENT),
        Plan::new(Level::Raid6, 8, COMPONENT),
    ]
}

fn rig(plan: &Plan) -> Rig {
    let zeros = vec![0; plan.geometry.capacity_bytes() as usize];
    let disks = disks_with(&plan.geometry, &zeros);
    for disk in &disks {
        disk.rate.set(RATE);
        disk.cannot_zero.set(true);
    }
    // As much memory as two cores have for this.
    let plan = Plan { memory_bytes: 16 << 20, ..plan.clone() };
    Rig::over(&plan, disks, 1)
}

/// Bytes per second of each member, since the beginning.
fn rate(rig: &Rig) -> f64 {
    COMPONENT as f64 / (now_ns(&rig.world) as f64 / 1e9)
}

/// At least 85 % of what the slowest member can read or write.
#[test]
fn a_rebuild_is_nearly_as_fast_as_the_drives() {
    for plan in plans() {
        let mut rig = rig(&plan.clone().without(1));
        let disk = Disk::new(COMPONENT);
        disk.rate.set(RATE);
        disk.cannot_zero.set(true);
        rig.put_drive(1, disk);
        assert!(rig.shared.add_member(1));
        rig.recover();
        assert_eq!(rig.shared.member_states()[1], MemberState::InSync);
        let share = rate(&rig) / RATE as f64;
        println!("rebuild {:?} of {}: {share:.3}", plan.geometry.level(), plan.geometry.members());
        assert!(share >= 0.85, "{:?}: {share}", plan.geometry);
    }
}

/// At least 80 % of what the members can read together.
#[test]
fn a_check_is_nearly_as_fast_as_the_drives() {
    for plan in plans() {
        let rig = rig(&plan);
        assert!(rig.shared.start_check_as(CheckMode::Check));
        rig.recover();
        let share = rate(&rig) / RATE as f64;
        println!("check {:?} of {}: {share:.3}", plan.geometry.level(), plan.geometry.members());
        assert!(share >= 0.80, "{:?}: {share}", plan.geometry);
    }
}

/// The resync after a crash compares, and is as fast as reading everything.
#[test]
fn a_resync_of_what_is_equal_is_nearly_as_fast_as_the_drives() {
    for plan in plans() {
        let rig = rig(&Plan { resync_from: 0, ..plan.clone() });
        rig.recover();
        let share = rate(&rig) / RATE as f64;
        println!("resync {:?} of {}: {share:.3}", plan.geometry.level(), plan.geometry.members());
        assert!(share >= 0.80, "{:?}: {share}", plan.geometry);
    }
}
