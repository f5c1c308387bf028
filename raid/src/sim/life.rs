//! One array's life: it is created, and then booted several times over the same drives, any of
//! which may be away, and each time used by hosts on all cores until it is stopped cleanly, its
//! process dies, or the power is cut.
//!
//! What the drives are together is decided by the real code. If that refuses, it has to have a
//! reason ([`Life::judge_refusal`]), and the operator answers: brings the drives, or accepts the
//! risk that it names.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::boot::{Boot, Lasting, Start, sectors};
use super::check::Place;
use super::control::{Control, Drives, Truth};
use super::disk::NEVER;
use super::drive::TIMEOUT_NS;
use super::faults::{Fault, Faults, Plan};
use super::image::SECTOR_BYTES;
use super::medium::{Fuse, SimMedium, Tape};
use super::model::Model;
use super::runner::Story;
use super::shape::{DRIVE_BYTES, Shape};
use super::value::{ZERO, decode, junk, junk_byte, show};
use super::world::{Random, tell};
use crate::array::{MemberState, RecoveryState};
use crate::assemble::{
    ArrayHandle, AssembleError, AssemblyPlan, Decision, Examined, Expected, NewArray, NotMember,
    create, decide, examine_medium, plan_assemble,
};
use crate::buffer::Pool;
use crate::geometry::{Geometry, Level};
use crate::metadata::layout::place;
use crate::metadata::{Consistency, Timestamp};
use crate::mutation::mutation;
use uuid::Uuid;

thread_local! {
    /// Memory that a life has left, for the next one.
    static POOL: RefCell<Option<Pool>> = const { RefCell::new(None) };
}

fn taken_pool() -> Pool {
    POOL.take().unwrap_or_else(|| Pool::new(16 << 20, 1 << 20).unwrap())
}

fn keep_pool(pool: &Pool) {
    if pool.in_use_bytes() == 0 {
        POOL.set(Some(pool.clone()));
    }
}

/// How to read a trace.
const LEGEND: &str = "\
legend of the trace:
  numbers at the left   virtual time since the boot, in nanoseconds
  sector, 40..48        sectors of 512 bytes of the array: from the first to before the last
  core N: write V of R  a host asks core N to write value V; without \"begins\": what was answered
  read of R: [values]   what a host was given, sector by sector: \"write V\" is what that write wrote,
                        \"junk of drive D\" what drive D was full of at the beginning, \"garbage\" what
                        nobody ever wrote there
  drive D: Write I at O operation number I of drive D, at byte O of the drive; metadata lie at 4096
                        (superblock), 8192 (bitmap, partial parity log), from 2 MiB on (private area)
  I done, I fails       its end; a write may be carried out in parts, at any time before that
  fault F at K          the drive is told to fail
  keeper                the control plane, recording what the engine wants recorded
  operator              somebody fails members, takes drives out, puts drives in
  asked, answered, seen moments in the order of all requests, in what the model says of a sector";

/// What a life is to be like.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) levels: Vec<Level>,
    pub(crate) boots: u64,
    /// In this share of the boots, in a hundred, drives have faults.
    pub(crate) faulty_boots: u64,
    /// The faults of the first boot, instead.
    pub(crate) first: Vec<Plan>,
}

/// The array and its drives, from boot to boot.
pub(crate) struct Life {
    random: Random,
    plot: Plot,
    shape: Shape,
    geometry: Geometry,
    drives: Rc<RefCell<Drives>>,
    uuid: Uuid,
    truth: Rc<RefCell<Truth>>,
    /// Sectors that were being written at a crash, since all parity was right.
    exposed: BTreeSet<usize>,
    lasting: Lasting,
    calls: u64,
}

/// An array that is put together.
struct Assembled {
    handle: ArrayHandle<SimMedium>,
    start: Start,
    tape: Rc<Tape>,
    /// By slot: the drive's number.
    slots: Vec<Option<usize>>,
}

/// What the operator says to a refusal.
#[derive(Clone, Debug, Default)]
struct Answer {
    brings_all: bool,
    run: bool,
    force: bool,
    winner: Option<String>,
}

/// A drive's superblock in one line.
fn describe(drive: &Examined) -> String {
    let Some(superblock) = drive.superblock() else { return format!("  {}: none", drive.name) };
    let roles: Vec<_> = (0..40).map(|number| superblock.role_of(number)).collect();
    format!(
        "  {}: number {}, events {}, is {:?}, rebuilt up to {:?}, roles {roles:?}",
        drive.name,
        superblock.device_number(),
        superblock.events(),
        superblock.own_role(),
        superblock.recovery_sectors()
    )
}

impl Life {
    pub(crate) fn new(seed: u64, plot: Plot) -> Self {
        let mut random = Random::new(seed ^ 0x5eed);
        let shape = Shape::random(&mut random, &plot.levels);
        let geometry = shape.geometry();
        let data_offset = place(DRIVE_BYTES as u64).unwrap().data_offset_bytes as usize;
        let mut drives = Drives::default();
        for model in &shape.drives {
            let end = data_offset + geometry.component_bytes() as usize;
            let number = drives.add(*model);
            drives.get(number).borrow_mut().set_junk(data_offset..end, junk_byte(number));
        }
        let can_zero: Vec<bool> = shape.drives.iter().map(|drive| drive.can_zero).collect();
        let initial = move |sector: usize| {
            let offset = (sector * SECTOR_BYTES) as u64;
            let extents = geometry.extents(offset, SECTOR_BYTES as u64);
            let copies = extents.flat_map(|e| (0..e.copies).map(move |copy| e.place(copy).slot));
            copies.map(|slot| if can_zero[slot] { ZERO } else { junk(slot) }).collect()
        };
        let model = Model::new(sectors(geometry.capacity_bytes()), Box::new(initial));
        let lasting = Lasting {
            model: Rc::new(RefCell::new(model)),
            faults: Rc::new(Faults::new(shape.members)),
            hot: shape.hot_regions(&mut random).into(),
            story: Rc::default(),
            stale: Rc::new(RefCell::new(vec![false; shape.members])),
            is_tainted: Rc::default(),
            pool: taken_pool(),
            was_forced: Rc::default(),
        };
        let uuid = Uuid::from_u128(u128::from(random.next()) << 64 | u128::from(random.next()));
        let (truth, exposed) = (Rc::default(), BTreeSet::new());
        let drives = Rc::new(RefCell::new(drives));
        Self { random, plot, shape, geometry, drives, uuid, truth, exposed, lasting, calls: 0 }
    }

    /// Operations of the drives in the first boot.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    fn count(&self, what: &'static str) {
        self.lasting.story.borrow_mut().count(what, 1);
    }

    /// Lives.
    pub(crate) fn live(&mut self) -> Story {
        tell(|| format!("{LEGEND}\n{:#?}\nhot sectors: {:?}", self.shape, self.lasting.hot));
        self.create();
        for boot in 0..self.plot.boots {
            let faults = if boot == 0 && !self.plot.first.is_empty() {
                self.plot.first.clone()
            } else {
                self.random_faults()
            };
            self.lasting.faults.begin(faults);
            let mut is_last = boot + 1 == self.plot.boots;
            let Some(assembled) = self.assemble() else { break };
            if self.lasting.was_forced.get() {
                // What the parity is worth nobody knows: this is the end of what can be judged.
                self.lasting.faults.begin(Vec::new());
                is_last = true;
            }
            self.boot(assembled, is_last);
            if is_last {
                break;
            }
            if boot == 0 {
                self.calls = self.lasting.faults.calls();
            }
        }
        tell(|| "the end".into());
        keep_pool(&self.lasting.pool);
        let mut story = self.lasting.story.borrow().clone();
        story.count("faults", self.lasting.faults.injected());
        story
    }

    fn random_faults(&mut self) -> Vec<Plan> {
        if self.random.below(100) >= self.plot.faulty_boots {
            return Vec::new();
        }
        (0..1 + self.random.below(3)).map(|_| self.random_fault()).collect()
    }

    fn random_fault(&mut self) -> Plan {
        let random = &mut self.random;
        let long = [TIMEOUT_NS / 2, TIMEOUT_NS * 3 / 2, TIMEOUT_NS * 5, NEVER];
        let (fault, times) = match random.below(8) {
            0 | 1 => (Fault::Read { sticky: random.below(2) == 0 }, 1 + random.below(30)),
            2 | 3 => (Fault::Write, 1 + random.below(3)),
            4 => (Fault::Flush, 1),
            5 => (Fault::NoSpace, 1 + random.below(12)),
            6 => (Fault::Hang { nanoseconds: long[random.below(4) as usize] }, 1),
            _ => (Fault::Gone, 1),
        };
        let disks = self.drives.borrow().0.len() as u64;
        let random = &mut self.random;
        let disk = (random.below(4) > 0).then(|| random.below(disks) as usize);
        let bound = [100, 600, 2500][random.below(3) as usize];
        Plan { at_call: random.below(bound), disk, fault, times }
    }

    fn fuse(&mut self, one_in: u64, bound: u64) -> Rc<Fuse> {
        let left = (self.random.below(one_in) == 0).then(|| self.random.below(bound));
        Fuse::new(left, self.random.next())
    }

    fn media(&self, disks: &[usize], fuse: &Rc<Fuse>, tape: &Rc<Tape>) -> Vec<SimMedium> {
        let medium = |number: &usize| SimMedium {
            disk: self.drives.borrow().get(*number),
            fuse: Rc::clone(fuse),
            tape: Rc::clone(tape),
        };
        disks.iter().map(medium).collect()
    }

    /// Creates the array; all or nothing, however often the power fails.
    fn create(&mut self) {
        let all: Vec<usize> = (0..self.shape.members).collect();
        loop {
            let fuse = self.fuse(3, 80);
            let media = self.media(&all, &fuse, &Rc::default());
            let drives: Vec<_> = media.iter().map(|m| examine_medium(m).unwrap()).collect();
            let new = NewArray {
                name: "life".into(),
                homehost: None,
                level: self.shape.level.into(),
                chunk_bytes: self.shape.chunk_bytes.into(),
                uuid: Some(self.uuid),
                consistency: Some(self.shape.consistency),
                assume_clean: false,
            };
            match decide(&drives, &Expected::default(), &new) {
                Ok(Decision::Create(mut plan)) => {
                    plan.created = Timestamp(1);
                    plan.geometry.component_bytes = self.geometry.component_bytes();
                    plan.placement.component_bytes = self.geometry.component_bytes();
                    for uuid in &mut plan.device_uuids {
                        *uuid = Uuid::from_u128(u128::from(self.random.next()));
                    }
                    match create(&plan, media) {
                        Ok(_) => {
                            let mut truth = self.truth.borrow_mut();
                            truth.is_recorded = true;
                            truth.is_synced = self.shape.drives.iter().all(|d| d.can_zero);
                            // What the state directory may know from the start.
                            truth.known_events = (self.random.below(2) == 0).then_some(0);
                            break;
                        }
                        Err(error) => assert!(fuse.is_blown(), "the creation failed: {error}"),
                    }
                    self.count("creations cut short");
                }
                // The crash came so late that the array is there.
                Ok(Decision::Assemble(_)) => break,
                Err(error) => panic!("blank drives are refused: {error}"),
            }
        }
        self.truth.borrow_mut().in_sync = all;
    }

    /// Puts the array together from some of the drives, in any order.
    fn assemble(&mut self) -> Option<Assembled> {
        let mut answer = Answer::default();
        for _ in 0..40 {
            let present = self.present(answer.brings_all);
            let fuse = self.fuse(10, 40);
            let tape = Rc::new(Tape::default());
            let media = self.media(&present, &fuse, &tape);
            let drives: Vec<_> = media.iter().filter_map(|m| examine_medium(m).ok()).collect();
            assert_eq!(drives.len(), media.len(), "all drives can be read");
            let with_state = self.random.below(4) > 0;
            let expected = Expected {
                uuid: Some(self.uuid),
                known_events: self.truth.borrow().known_events.filter(|_| with_state),
                run: answer.run,
                force: answer.force,
                winner: answer.winner.clone(),
                ..Expected::default()
            };
            let plan = match plan_assemble(&drives, &expected) {
                Ok(plan) => plan,
                Err(error) => {
                    tell(|| format!("drives {present:?} are refused: {error}"));
                    drives.iter().for_each(|drive| tell(|| describe(drive)));
                    self.count("refusals");
                    answer = self.judge_refusal(&error, &present, with_state, &answer)?;
                    continue;
                }
            };
            tell(|| {
                let slots = plan.slots.iter();
                let slots = slots.map(|s| (s.drive.map(|d| present[d]), s.state, &s.bad_blocks));
                format!(
                    "drives {present:?} are assembled, by slot: {:?}, known events {:?}, events {}, \
                     resync from {:?}, replay {}, answer {answer:?}",
                    slots.collect::<Vec<_>>(),
                    expected.known_events,
                    plan.info.events,
                    plan.info.resync_from_bytes,
                    plan.replay
                )
            });
            self.judge_start(&plan, &present, with_state, &answer);
            if let Some(assembled) =
                self.take(&plan, &drives, media, &present, &fuse, &tape, &mut answer)
            {
                return Some(assembled);
            }
        }
        panic!("the array does not come up, whatever the operator does");
    }

    /// Some of the drives, in any order.
    fn present(&mut self, all: bool) -> Vec<usize> {
        let mut rest: Vec<usize> = (0..self.drives.borrow().0.len()).collect();
        // New drives that never came into the array stay out of this.
        rest.retain(|disk| !self.drives.borrow().get(*disk).borrow().is_blank());
        if !all && self.random.below(4) == 0 {
            let keep = self.random.below(100);
            rest.retain(|_| self.random.below(100) < keep);
        }
        let mut present = Vec::new();
        while !rest.is_empty() {
            present.push(rest.swap_remove(self.random.below(rest.len() as u64) as usize));
        }
        present
    }

    /// Everybody who was in sync, or being rebuilt, when something was last acknowledged is here.
    fn are_all_here(&self, present: &[usize]) -> bool {
        let truth = self.truth.borrow();
        truth.in_sync.iter().chain(&truth.rebuilding).all(|disk| present.contains(disk))
    }

    /// A refusal has to have a reason. What the operator does about it; None: nothing helps.
    fn judge_refusal(
        &mut self,
        error: &AssembleError,
        present: &[usize],
        with_state: bool,
        before: &Answer,
    ) -> Option<Answer> {
        let truth = self.truth.borrow().clone();
        let answer = before.clone();
        let reason = || format!("{error}\n(drives {present:?}, {truth:?}, {before:?})");
        match error {
            AssembleError::NoDrives => {
                assert!(present.is_empty(), "{}", reason());
                Some(Answer { brings_all: true, ..answer })
            }
            AssembleError::Unfinished { .. } => {
                let may = !truth.is_recorded || !self.are_all_here(present);
                assert!(may, "it was in use: {}", reason());
                Some(Answer { brings_all: true, ..answer })
            }
            AssembleError::Incomplete { can_run, unusable, .. } => {
                // A member that failed while a change was recorded may be too old, without the others
                // knowing that it failed; then it might as well be an old image of it.
                let is_old = |(_, why): &(String, NotMember)| {
                    matches!(why, NotMember::Behind { .. } | NotMember::Spare)
                };
                let knows = with_state && truth.known_events.is_some();
                let is_reason = *can_run && !knows && unusable.iter().any(is_old);
                assert!(
                    is_reason || !self.are_all_here(present),
                    "refused without a reason: {}",
                    reason()
                );
                let in_sync = |slot: &usize| present.contains(slot);
                let here: Vec<usize> = truth.in_sync.iter().copied().filter(in_sync).collect();
                assert!(
                    !(with_state && truth.known_events.is_some() && !truth.took_risk)
                        || here.is_empty()
                        || !*can_run,
                    "refused although the state directory knows better: {}",
                    reason()
                );
                if *can_run && self.random.below(3) == 0 {
                    self.count("starts with --run");
                    return Some(Answer { run: true, ..answer });
                }
                if present.len() == self.present(true).len() {
                    // All are here, and it is not enough: a member was lost that was needed.
                    self.count("arrays that are lost");
                    return None;
                }
                Some(Answer { brings_all: true, ..answer })
            }
            AssembleError::Diverged { first, .. } => {
                // A failure whose record was cut short, and the one that failed then started alone,
                // by what the state directory knew.
                let may = truth.took_risk || truth.started_without;
                assert!(may, "they cannot have diverged: {}", reason());
                self.count("winners named");
                let newest = truth.in_sync.iter().find(|disk| present.contains(disk));
                let winner = newest.map_or_else(|| first.clone(), |disk| format!("drive-{disk}"));
                Some(Answer { winner: Some(winner), ..answer })
            }
            AssembleError::DuplicateSlot { .. } => {
                assert!(!self.are_all_here(present), "refused without a reason: {}", reason());
                Some(Answer { brings_all: true, ..answer })
            }
            AssembleError::DirtyDegraded { .. } => {
                let has_log = self.shape.consistency == Consistency::Ppl;
                let knows = has_log && truth.is_synced && !truth.took_risk;
                assert!(!knows, "there is a log: {}", reason());
                if present.len() < self.present(true).len() && self.random.below(2) == 0 {
                    return Some(Answer { brings_all: true, ..answer });
                }
                self.count("starts with --force");
                Some(Answer { force: true, ..answer })
            }
            _ => panic!("refused without a reason: {}", reason()),
        }
    }

    /// A start must not believe a drive that lacks something, unless the operator said so, or has lost
    /// the state directory.
    fn judge_start(
        &mut self,
        plan: &AssemblyPlan,
        present: &[usize],
        with_state: bool,
        answer: &Answer,
    ) {
        let starts_without = !self.are_all_here(present);
        self.truth.borrow_mut().started_without |= starts_without;
        if starts_without && answer.run {
            // From here on there may be two histories.
            self.truth.borrow_mut().took_risk = true;
        }
        let stale = self.lasting.stale.borrow().clone();
        let used: Vec<usize> = plan
            .slots
            .iter()
            .filter(|slot| slot.state == MemberState::InSync)
            .filter_map(|slot| Some(present[slot.drive?]))
            .collect();
        let old: Vec<usize> = used.iter().copied().filter(|disk| stale[*disk]).collect();
        if old.is_empty() {
            return;
        }
        // A set that once was whole without the others cannot know that they have gone on without
        // it; only the state directory can.
        let took_risk = answer.run || answer.winner.is_some() || !with_state;
        let truth = self.truth.borrow().clone();
        assert!(
            took_risk || truth.took_risk,
            "drives {old:?} lack acknowledged writes, and count as in sync; drives {present:?}, \
             {truth:?}"
        );
        self.truth.borrow_mut().took_risk = true;
        self.lasting.is_tainted.set(true);
        self.lasting.model.borrow_mut().allow_earlier();
    }

    /// Takes the drives of a plan, and replays the logs. None if the power failed in between, or
    /// the operator has to say something.
    #[allow(clippy::too_many_arguments, reason = "all of one attempt")]
    fn take(
        &mut self,
        plan: &AssemblyPlan,
        drives: &[Examined],
        media: Vec<SimMedium>,
        present: &[usize],
        fuse: &Rc<Fuse>,
        tape: &Rc<Tape>,
        answer: &mut Answer,
    ) -> Option<Assembled> {
        let slots: Vec<Option<usize>> =
            plan.slots.iter().map(|slot| Some(present[slot.drive?])).collect();
        let blocks =
            slots.iter().flatten().map(|&d| self.drives.borrow().get(d).borrow().model.block_bytes);
        let block_bytes = blocks.max().unwrap_or(SECTOR_BYTES) as u32;
        self.allow_what_the_logs_cannot_know(plan, answer);
        if answer.force && !plan.risks.is_empty() {
            self.lasting.was_forced.set(true);
            self.lasting.is_tainted.set(true);
        }
        let (mut handle, _) = ArrayHandle::assemble(plan, drives, media);
        let replayed = match handle.replay(block_bytes, answer.force) {
            Ok(replayed) => replayed,
            Err(error) => {
                assert!(fuse.is_blown(), "the replay failed: {error}");
                self.count("starts cut short");
                self.lose_power();
                return None;
            }
        };
        self.lasting.story.borrow_mut().count("parts of rows replayed", replayed.parts as u64);
        // A loss that was not known yet is recorded before anybody reads or writes.
        let recorded = handle.recorded().clone();
        if recorded.members.contains(&MemberState::Missing)
            && !mutation!("no-record-of-loss-at-start")
            && let Err(error) = handle.record(&recorded)
        {
            assert!(fuse.is_blown(), "the start failed: {error}");
            self.count("starts cut short");
            self.lose_power();
            return None;
        }
        let recorded = handle.recorded().clone();
        let with = |wanted: MemberState| {
            let members = recorded.members.iter().zip(&slots);
            let fit = members.filter(|(state, _)| **state == wanted);
            fit.filter_map(|(_, disk)| *disk).collect::<Vec<_>>()
        };
        {
            let mut truth = self.truth.borrow_mut();
            truth.in_sync = with(MemberState::InSync);
            truth.rebuilding = with(MemberState::Rebuilding);
        }
        let intent = match handle.intent_layout(replayed.next_generation) {
            Ok(intent) => intent,
            Err(error) => {
                assert!(fuse.is_blown(), "the start failed: {error}");
                self.count("starts cut short");
                self.lose_power();
                return None;
            }
        };
        fuse.disarm();
        if plan.slots.iter().any(|slot| slot.state != MemberState::InSync) {
            // Whoever remembers the array notes a loss that was recorded without it, before anything
            // is acknowledged.
            let mut truth = self.truth.borrow_mut();
            // Of those that have just had their superblocks written all have this count.
            let events = handle.info().events;
            truth.known_events = truth.known_events.max(Some(events));
            if answer.run || answer.winner.is_some() {
                // What was remembered of others does not count any more.
                truth.known_events = Some(events);
            }
        }
        let recorded = handle.recorded().clone();
        let place = |slot: usize| {
            Some(Place {
                disk: self.drives.borrow().get(slots[slot]?),
                data_offset_bytes: handle.member(slot)?.data_offset_bytes(),
            })
        };
        let start = Start {
            geometry: self.geometry,
            places: (0..slots.len()).map(place).collect(),
            members: recorded.members,
            active: recorded.active,
            resync_from: recorded.resync_from,
            rebuild_from: recorded.rebuild_from,
            bad_blocks: recorded.bad_blocks,
            intent,
            read_error_limit: self.shape.read_error_limit,
            bad_block_limit: self.shape.bad_block_limit,
            cores: self.shape.cores,
            unit: self.shape.unit(),
        };
        Some(Assembled { handle, start, tape: Rc::clone(tape), slots })
    }

    /// Blocks of a missing member that were being written at a crash may be lost where there is a
    /// log, and may be anything where there is none and the operator took that risk. Where two are
    /// missing, one that is not known takes the block of the other member beside it along.
    fn allow_what_the_logs_cannot_know(&mut self, plan: &AssemblyPlan, answer: &Answer) {
        let parities = self.geometry.level().parities();
        let is_out = |slot: usize| plan.slots[slot].state != MemberState::InSync;
        let out = (0..plan.slots.len()).filter(|&slot| is_out(slot)).count();
        if parities == 0 || out == 0 {
            return;
        }
        let place = |sector: usize| {
            let in_row = self.geometry.in_row((sector * SECTOR_BYTES) as u64);
            (in_row, is_out(self.geometry.data_slot(in_row.row, in_row.index)))
        };
        let exposed = self.exposed.iter().map(|&sector| place(sector));
        let rows: BTreeSet<u64> = exposed.clone().map(|(in_row, _)| in_row.row).collect();
        let lost = exposed.filter(|(_, is_out)| *is_out);
        let beside: BTreeSet<_> = lost.map(|(at, _)| (at.row, at.within_bytes)).collect();
        let mut model = self.lasting.model.borrow_mut();
        let was_synced = self.truth.borrow().is_synced;
        for sector in 0..model.sectors() {
            let (in_row, is_out) = place(sector);
            if !is_out {
                continue;
            }
            let is_exposed = self.exposed.contains(&sector)
                || (out > 1 && beside.contains(&(in_row.row, in_row.within_bytes)));
            if is_exposed && model.is_known(sector) {
                model.allow_failure(sector);
            }
            if answer.force && (rows.contains(&in_row.row) || !was_synced) {
                model.allow_anything(sector);
            }
        }
    }

    fn boot(&mut self, assembled: Assembled, is_last: bool) {
        self.count("boots");
        let Assembled { handle, start, tape, slots } = assembled;
        let slots = Rc::new(RefCell::new(slots));
        let (drives, truth) = (Rc::clone(&self.drives), Rc::clone(&self.truth));
        let faults = Rc::clone(&self.lasting.faults);
        let kept = Rc::clone(&slots);
        let new_model = self.shape.another_drive(&mut self.random);
        let boot = Boot::new(&mut self.random, start, &self.lasting, new_model, |world, shared| {
            Rc::new(Control {
                handle: RefCell::new(handle),
                tape,
                drives,
                faults,
                world: Rc::clone(world),
                shared: Arc::clone(shared),
                truth,
                slots: kept,
                is_busy: Cell::new(false),
            })
        });
        boot.check_agreement();
        match self.random.below(4) {
            0 => boot.verify(false),
            1 => (),
            _ => boot.verify(true),
        }
        // Now and then nobody uses the array: a resync then runs without "active" superblocks.
        let per_core = if self.random.below(4) == 0 { 0 } else { 1 + self.random.below(3) };
        boot.start_hosts(per_core, 5 + self.random.below(25));
        match if is_last { 0 } else { self.random.below(6) } {
            0 | 1 => {
                let waits = is_last || self.random.below(2) == 0;
                if boot.finish(waits) {
                    self.count("clean stops");
                }
                if is_last {
                    self.check_untouched(&boot);
                }
                if self.random.below(2) == 0 { self.cut_power(&boot) } else { self.die(&boot) }
            }
            2 => {
                // Long enough for bits to be cleared, perhaps.
                boot.rest(self.random.below(20_000_000_000));
                if self.random.below(4) == 0 { self.die(&boot) } else { self.cut_power(&boot) }
            }
            3 => {
                boot.run_for(self.random.below(6000));
                self.die(&boot);
            }
            _ => {
                boot.run_for(self.random.below(6000));
                self.cut_power(&boot);
            }
        }
    }

    /// Notes what is being written, now that all ends.
    fn expose(&mut self, boot: &Boot) {
        let doing = boot.shared.recovery_status(Duration::ZERO).state;
        if boot.shared.is_in_sync() && doing == RecoveryState::Idle {
            self.exposed.clear();
        }
        if self.geometry.level().parities() > 0 {
            self.exposed.extend(self.lasting.model.borrow().exposed(true));
        }
    }

    fn cut_power(&mut self, boot: &Boot) {
        self.expose(boot);
        boot.stop();
        self.count("power cuts");
        self.lose_power();
    }

    fn lose_power(&mut self) {
        tell(|| "the power is cut".into());
        // All that can be lost is lost, or none of it, or some.
        let keep_percent = [0, 100, 50, 50][self.random.below(4) as usize];
        for disk in &self.drives.borrow().0 {
            disk.borrow_mut().cut_power(|| self.random.below(100) < keep_percent);
            disk.borrow_mut().is_gone = false;
        }
        self.lasting.model.borrow_mut().restart(false);
        self.lasting.model.borrow_mut().power_cut();
    }

    fn die(&mut self, boot: &Boot) {
        self.expose(boot);
        boot.stop();
        self.count("deaths");
        tell(|| "the process dies".into());
        let has_failed = boot.shared.failure().is_some();
        self.lasting.model.borrow_mut().restart(has_failed);
        let mut some_lost_power = false;
        for disk in &self.drives.borrow().0 {
            let mut disk = disk.borrow_mut();
            if !disk.is_gone && disk.hung_until == 0 {
                disk.lose_process(|| self.random.below(2) == 0);
                continue;
            }
            // It has lost its power, or been reset, and with that what it had not yet kept.
            disk.is_gone = false;
            disk.cut_power(|| self.random.below(2) == 0);
            some_lost_power |= self.truth.borrow().in_sync.contains(&disk.name);
        }
        if some_lost_power {
            self.lasting.model.borrow_mut().lose_cache();
        }
    }

    /// What no host ever wrote is as it was.
    fn check_untouched(&self, boot: &Boot) {
        if self.lasting.is_tainted.get() {
            return;
        }
        let model = self.lasting.model.borrow();
        let members = boot.shared.wanted().members;
        let bad = boot.shared.wanted().bad_blocks;
        let is_bad = |slot: usize, at: u64| {
            bad[slot].iter().any(|bad| bad.start_bytes <= at && at < bad.end_bytes)
        };
        let places = boot.scene.ground.places.borrow();
        let mut bytes = [0; SECTOR_BYTES];
        for sector in (0..model.sectors()).filter(|sector| !model.is_known(*sector)) {
            let offset = (sector * SECTOR_BYTES) as u64;
            let Some(extent) = self.geometry.extents(offset, SECTOR_BYTES as u64).next() else {
                continue;
            };
            for copy in 0..extent.copies {
                let at = extent.place(copy);
                let Some(place) = &places[at.slot] else { continue };
                if members[at.slot] != MemberState::InSync || is_bad(at.slot, at.offset_bytes) {
                    continue;
                }
                let from = (place.data_offset_bytes + at.offset_bytes) as usize;
                place.disk.borrow().visible().read(from, &mut bytes);
                let found = decode(sector, &bytes);
                assert!(
                    model.initial(sector).contains(&found),
                    "sector {sector}, which nobody wrote, has become {} on member {}",
                    show(found),
                    at.slot
                );
            }
        }
    }
}
