//! Whoever looks after a running array: fails members, pulls drives and puts them back, adds new
//! ones, and has the array checked.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::check::Place;
use super::client::Scene;
use super::control::{Control, Drives};
use super::drive::SimDrive;
use super::medium::{Fuse, SimMedium};
use crate::array::{BadRange, MemberFault, MemberState};
use crate::assemble::examine_medium;

/// See the file's head.
pub(crate) struct Operator {
    pub(crate) scene: Rc<Scene>,
    pub(crate) control: Rc<Control>,
    pub(crate) ends: Rc<Cell<bool>>,
    /// What drives can be bought.
    pub(crate) model: super::disk::Model,
}

impl Operator {
    fn drives(&self) -> &Rc<RefCell<Drives>> {
        &self.control.drives
    }

    fn states(&self) -> Vec<MemberState> {
        self.scene.ground.shared.member_states()
    }

    /// Works until the array is stopped.
    pub(crate) async fn work(self) {
        let world = Rc::clone(&self.scene.world);
        // Some are there all the time, some look in now and then.
        let pause = [400_000, 20_000_000, 3_000_000_000][world.below(3) as usize];
        while !self.ends.get() {
            world.sleep_ns(1 + world.below(pause)).await;
            if self.ends.get() {
                return;
            }
            let shared = &self.scene.ground.shared;
            if shared.geometry().parities() > 0 && !shared.is_in_sync() {
                // What a member held whose parity was never right is lost with it, block by block.
                continue;
            }
            match world.below(8) {
                0 => {
                    shared.start_check(world.one_in(2));
                }
                1 if world.one_in(3) => self.fail_one(),
                _ => {
                    let slots = 0..self.states().len();
                    for slot in slots {
                        match self.states()[slot] {
                            MemberState::Failed => self.remove(slot).await,
                            MemberState::Missing => self.add(slot).await,
                            _ => (),
                        }
                    }
                }
            }
        }
    }

    /// Fails a member, if the level can do without it.
    fn fail_one(&self) {
        let ground = &self.scene.ground;
        let slot = self.scene.world.below(self.states().len() as u64) as usize;
        let others_are_out = self.states().iter().any(|state| *state != MemberState::InSync);
        if others_are_out || !ground.shared.geometry().survives(|lost| lost == slot) {
            return;
        }
        let Some(disk) = ground.disk(slot) else { return };
        self.scene.world.trace(|| format!("operator: fails member {slot}, drive {disk}"));
        ground.faults.note_fatal(disk);
        ground.shared.fail_member(slot, MemberFault::Operator);
    }

    /// Takes a failed member out.
    async fn remove(&self, slot: usize) {
        let ground = &self.scene.ground;
        if self.scene.world.one_in(2) || !ground.shared.remove_member(slot) {
            return;
        }
        self.scene.world.trace(|| format!("operator: removes member {slot}"));
        let version = ground.shared.wanted().version;
        if ground.shared.wait_recorded(version).await.is_err() {
            return;
        }
        self.control.wait().await;
        self.control.handle.borrow_mut().remove(slot);
        self.control.is_busy.set(false);
        self.scene.arrays.iter().for_each(|array| array.take_drive(slot));
        ground.places.borrow_mut()[slot] = None;
        self.control.slots.borrow_mut()[slot] = None;
    }

    /// A drive that is in no slot and can be used: one that was there before, or a new one.
    fn spare(&self) -> usize {
        let world = &self.scene.world;
        let used: Vec<usize> = self.control.slots.borrow().iter().flatten().copied().collect();
        let all = self.drives().borrow().0.len();
        let free: Vec<usize> = (0..all).filter(|disk| !used.contains(disk)).collect();
        if !free.is_empty() && !world.one_in(4) {
            return free[world.below(free.len() as u64) as usize];
        }
        let number = self.drives().borrow_mut().add(self.model);
        self.scene.ground.faults.add_disk();
        self.scene.ground.stale.borrow_mut().push(true);
        number
    }

    /// Puts a drive into an empty slot.
    async fn add(&self, slot: usize) {
        let (world, ground) = (&self.scene.world, &self.scene.ground);
        let number = self.spare();
        let disk = self.drives().borrow().get(number);
        {
            let mut disk = disk.borrow_mut();
            if disk.is_gone || disk.hung_until > world.now_ns() || disk.late > 0 {
                if world.one_in(2) {
                    return;
                }
                // Out and in again: what was late never happens now.
                disk.is_gone = false;
                disk.cut_power(|| world.one_in(2));
            }
            if disk.model.block_bytes > self.scene.arrays[0].block_size_bytes() as usize {
                return;
            }
        }
        let (fuse, tape) = (Fuse::new(None, 0), Rc::clone(&self.control.tape));
        self.control.wait().await;
        let medium = SimMedium { disk: Rc::clone(&disk), fuse, tape };
        let examined = examine_medium(&medium);
        self.control.is_busy.set(false);
        let Ok(examined) = examined else { return };
        // What it was, if it was a member here.
        let was = examined.superblock().map(|superblock| superblock.events());
        let was_here = examined.superblock().is_some_and(|superblock| {
            superblock.recovery_sectors().is_none()
                && superblock.own_role() == crate::metadata::superblock::Role::Active(slot as u16)
        });
        let missed = {
            let missed = self.control.perform(|handle| handle.missed_by(slot, &examined)).await;
            missed.ok().flatten()
        };
        // What it holds nothing to be believed in it keeps.
        let component_bytes = ground.shared.geometry().component_bytes();
        let bad: Vec<BadRange> = match (&examined.bad_blocks, examined.superblock()) {
            (Some(Ok(log)), Some(own)) => log.ranges(own.data_offset_bytes(), component_bytes),
            _ => Vec::new(),
        };
        world.trace(|| format!("operator: adds drive {number} as member {slot}, it was {was:?}"));
        let added =
            self.control.perform(|handle| handle.add(slot, medium.clone(), &examined, true)).await;
        if let Err(error) = added {
            world.trace(|| format!("operator: it cannot be added: {error}"));
            return;
        }
        let (data_offset_bytes, places) = {
            let handle = self.control.handle.borrow();
            let Some(member) = handle.member(slot) else { return };
            (member.data_offset_bytes(), handle.intent_places(slot))
        };
        self.control.slots.borrow_mut()[slot] = Some(number);
        for array in &self.scene.arrays {
            let drive = SimDrive {
                world: Rc::clone(world),
                disk: Rc::clone(&disk),
                faults: Rc::clone(&ground.faults),
            };
            array.set_drive(slot, drive, data_offset_bytes).expect("the drive fits");
        }
        let core = self.scene.any_core();
        let admitted = self.scene.arrays[core].admit_drive(slot, places).await;
        ground.places.borrow_mut()[slot] = Some(Place { disk, data_offset_bytes });
        if let Err(error) = admitted {
            world.trace(|| format!("operator: it cannot be admitted: {error}"));
            self.scene.arrays.iter().for_each(|array| array.take_drive(slot));
            ground.places.borrow_mut()[slot] = None;
            self.control.slots.borrow_mut()[slot] = None;
            self.control.wait().await;
            self.control.handle.borrow_mut().remove(slot);
            self.control.is_busy.set(false);
            return;
        }
        ground.brings_bad_blocks.set(ground.brings_bad_blocks.get() || !bad.is_empty());
        let mut story = self.scene.story.borrow_mut();
        match was.filter(|_| was_here && missed.is_some()) {
            Some(events) => {
                story.count("members that came back", 1);
                ground.shared.readd_member(slot, events, &bad);
            }
            None => {
                story.count("members that are new", 1);
                ground.shared.add_member(slot);
            }
        }
    }
}
