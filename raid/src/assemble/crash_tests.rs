//! Every crash between two metadata writes, and every subset of the drives after it.
//!
//! A life of an array is a list of steps: what is wanted is recorded, drives are lost, added,
//! rebuilt. A crash may come before any of the writes of a step, and any of the drives may be away
//! at the next start. Whatever starts then must have everything that was acknowledged:
//! * after the loss of a member has been recorded, that member is in sync in no set;
//! * a member that is being rebuilt is never taken for one in sync, nor as further than it is;
//! * what was never synced, or was being written, does not count as agreeing.
//!
//! What starts must not depend on the order of drives. And where it is remembered when the array last
//! lost a member, all drives that have everything, together, always start.

use super::test_medium::{Call, TestMedium};
use super::*;
use crate::array::{MemberState, Wanted};
use crate::metadata::{Consistency, Level};

const MIB: u64 = 1 << 20;
const SMALL: u64 = 16 * MIB;
use MemberState::{Failed, InSync, Missing, Rebuilding};

fn look(drives: &[TestMedium]) -> Vec<Examined> {
    drives.iter().map(|d| examine_medium(d).unwrap()).collect()
}

fn new_array(level: Level, consistency: Consistency) -> NewArray {
    NewArray {
        name: "fast".into(),
        homehost: None,
        level,
        chunk_bytes: 64 << 10,
        uuid: None,
        consistency: Some(consistency),
        assume_clean: false,
    }
}

fn take_calls(drives: &[TestMedium]) -> Vec<Call> {
    std::mem::take(&mut drives[0].journal().borrow_mut().calls)
}

/// An array, and all drives that it has ever had.
struct Life {
    drives: Vec<TestMedium>,
    handle: ArrayHandle<TestMedium>,
}

/// What is known to be true of the array between two moments.
#[derive(Clone, Debug)]
struct Truth {
    /// By drive: what it may be taken for at most, or at least be able to be.
    drives: Vec<State>,
    /// Positions below which copies agree: any of these may be told.
    synced: Vec<Option<u64>>,
    /// The event count that is remembered from when the array last lost a member.
    lost_at: u64,
}

/// What a drive holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Everything that was acknowledged.
    Whole,
    /// Everything below a position.
    Upto(u64),
    /// It has missed something.
    Stale,
}

impl Life {
    /// An array on `members` drives, and `spares` more that are blank.
    fn new(level: Level, consistency: Consistency, members: usize, spares: usize) -> Self {
        let drives = TestMedium::drives(&vec![SMALL; members + spares], true);
        let used = &drives[..members];
        let plan = plan_create(&look(used), &new_array(level, consistency)).unwrap();
        let handle = create(&plan, used.to_vec()).unwrap();
        take_calls(&drives);
        Self { drives, handle }
    }

    fn wanted(&self) -> Wanted {
        self.handle.recorded().clone()
    }

    /// Takes a step, and looks at every crash in it and every subset of the drives. Before it,
    /// and until it is acknowledged, `before` is true; when it has begun, what is in `after` may be.
    fn step(&mut self, at: &str, truth: &Truth, step: impl FnOnce(&mut ArrayHandle<TestMedium>)) {
        let base = TestMedium::copies(&self.drives);
        step(&mut self.handle);
        let calls = take_calls(&self.drives);
        for done in 0..=calls.len() {
            // Of many calls (a log that is cleared block by block) the middle is all the same.
            if done > 6 && done + 8 < calls.len() && done % 128 != 0 {
                continue;
            }
            let image = TestMedium::copies(&base);
            calls[..done].iter().for_each(|call| TestMedium::replay(&image, call, u64::MAX));
            let at = format!("{at}, {done} of {} calls", calls.len());
            self.check_subsets(&image, truth, &at);
            // Torn between sectors, everything there.
            if let Some(call @ Call::Write { .. }) = calls.get(done) {
                for mask in [0x0f, 0xf0, 0x01, 0xfe, 0x55] {
                    let torn = TestMedium::copies(&image);
                    TestMedium::replay(&torn, call, mask);
                    check(&self.handle, &look(&torn), truth, true, &format!("{at}, torn {mask:x}"));
                }
            }
        }
    }

    fn check_subsets(&self, image: &[TestMedium], truth: &Truth, at: &str) {
        let examined = look(image);
        for mask in 1u32..1 << examined.len() {
            let some: Vec<_> = (0..examined.len())
                .filter(|i| mask >> i & 1 == 1)
                .map(|i| examined[i].clone())
                .collect();
            let all_whole = truth
                .drives
                .iter()
                .enumerate()
                .all(|(i, state)| *state != State::Whole || mask >> i & 1 == 1);
            let at = format!("{at}, drives {mask:05b}");
            let plan = check(&self.handle, &some, truth, all_whole, &at);
            let mut reversed = some.clone();
            reversed.reverse();
            let again = check(&self.handle, &reversed, truth, all_whole, &at);
            assert_eq!(plan, again, "{at}: the order matters");
        }
    }
}

/// Names of the drives by slot, with their states, if the set starts by itself, and if it starts
/// where it is remembered when the array last lost a member.
type Started = [Option<Vec<(String, MemberState)>>; 2];

fn check(
    handle: &ArrayHandle<TestMedium>,
    drives: &[Examined],
    truth: &Truth,
    must_start: bool,
    at: &str,
) -> Started {
    // Drives that are blank still are no part of it.
    let drives: Vec<_> = drives.iter().filter(|d| d.superblock().is_some()).cloned().collect();
    let known_events = Some(truth.lost_at);
    [Expected::default(), Expected { known_events, ..Expected::default() }].map(|expected| {
        let plan = match plan_assemble(&drives, &expected) {
            Ok(plan) => plan,
            Err(error) => {
                let must_start = must_start && expected.known_events.is_some();
                assert!(!must_start, "{at}: {error}");
                return None;
            }
        };
        judge(&plan, &drives, truth, at);
        assert_eq!(plan.info.geometry, handle.info().geometry, "{at}");
        let in_slot = |slot: &SlotPlan| {
            (slot.drive.map_or_else(String::new, |i| drives[i].name.clone()), slot.state)
        };
        Some(plan.slots.iter().map(in_slot).collect())
    })
}

fn judge(plan: &AssemblyPlan, drives: &[Examined], truth: &Truth, at: &str) {
    for slot in &plan.slots {
        let Some(index) = slot.drive else { continue };
        let name = &drives[index].name;
        let number: usize = name.strip_prefix("drive-").unwrap().parse().unwrap();
        match (truth.drives[number], slot.state) {
            (State::Whole, _) => {}
            (State::Upto(position), Rebuilding) => {
                let told = plan.rebuild_from_bytes.unwrap();
                assert!(told <= position, "{at}: {name} is rebuilt to {position}, not {told}");
            }
            (state, told) => panic!("{at}: {name} is {state:?}, and counts as {told:?}"),
        }
    }
    let synced = plan.info.resync_from_bytes;
    assert!(truth.synced.contains(&synced), "{at}: synced to {synced:?}, not {:?}", truth.synced);
}

/// Small arrays of every level that has redundancy.
fn kinds() -> Vec<(Level, Consistency, usize)> {
    vec![
        (Level::Raid1, Consistency::Resync, 2),
        (Level::Raid1, Consistency::Bitmap, 3),
        (Level::Raid10, Consistency::Bitmap, 4),
        (Level::Raid5, Consistency::Ppl, 3),
        (Level::Raid6, Consistency::Ppl, 4),
        (Level::Raid6, Consistency::Resync, 4),
    ]
}

/// A member is lost while the array is written to, its drive comes back, is rebuilt, and the array
/// stops cleanly.
#[test]
fn a_member_is_lost_and_comes_back() {
    for (level, consistency, members) in kinds() {
        let kind = format!("{level} with {consistency}");
        let mut life = Life::new(level, consistency, members, 0);
        let size = life.handle.info().size_bytes();
        let lost = members - 1;
        let with =
            |state| (0..members).map(|i| if i == lost { state } else { State::Whole }).collect();
        // What an active array says of its copies: with a bitmap, what its bits say.
        let active = match consistency {
            Consistency::Resync => vec![Some(0)],
            _ => vec![None],
        };
        let either = || active.iter().copied().chain([None]).collect::<Vec<_>>();
        let whole = Truth { drives: with(State::Whole), synced: either(), lost_at: 0 };

        let wanted = Wanted { active: true, ..life.wanted() };
        life.step(&format!("{kind}: active"), &whole, |h| {
            h.record(&wanted).unwrap();
        });

        // Nothing that it misses is acknowledged before the record ends, so it counts till then.
        let mut wanted = life.wanted();
        wanted.members[lost] = Failed;
        let before = life.handle.info().events;
        // Parity levels without a log do not start degraded while they are active.
        let starts_degraded = consistency != Consistency::Resync || level == Level::Raid1;
        let mut recorded = None;
        let truth = Truth { synced: active.clone(), ..whole.clone() };
        let image = TestMedium::copies(&life.drives);
        recorded.replace(life.handle.record(&wanted).unwrap());
        let calls = take_calls(&life.drives);
        for done in 0..=calls.len() {
            let now = TestMedium::copies(&image);
            calls[..done].iter().for_each(|call| TestMedium::replay(&now, call, u64::MAX));
            let at = format!("{kind}: lost, {done} of {} calls", calls.len());
            if starts_degraded {
                life.check_subsets(&now, &truth, &at);
            }
        }
        let recorded = recorded.unwrap();
        assert!(recorded.lost_member && recorded.events >= before + 2, "{kind}: {recorded:?}");
        assert_eq!(life.handle.member(lost).unwrap().superblock().events(), before);

        // From now on it misses what is acknowledged.
        let stale =
            Truth { drives: with(State::Stale), synced: active.clone(), lost_at: recorded.events };
        if starts_degraded {
            life.check_subsets(&life.drives, &stale, &format!("{kind}: without it"));
        }

        // It comes back.
        let medium = life.handle.remove(lost).unwrap();
        let examined = examine_medium(&medium).unwrap();
        life.step_if(starts_degraded, &format!("{kind}: added"), &stale, |h| {
            h.add(lost, medium, &examined, false).unwrap();
        });
        let new = Truth { drives: with(State::Upto(0)), ..stale.clone() };
        let mut wanted = life.wanted();
        (wanted.members[lost], wanted.rebuild_from, wanted.devices[lost]) =
            (Rebuilding, Some(0), 99);
        life.step_if(starts_degraded, &format!("{kind}: gets its role"), &new, |h| {
            assert!(!h.record(&wanted).unwrap().lost_member);
        });
        for position in [size / 4, size / 2] {
            let truth = Truth { drives: with(State::Upto(position)), ..stale.clone() };
            let wanted = Wanted { rebuild_from: Some(position), ..life.wanted() };
            life.step_if(starts_degraded, &format!("{kind}: rebuilt to {position}"), &truth, |h| {
                assert!(!h.record(&wanted).unwrap().lost_member);
            });
        }
        let mut wanted = life.wanted();
        (wanted.members[lost], wanted.rebuild_from) = (InSync, None);
        let done = Truth { drives: with(State::Whole), ..stale.clone() };
        life.step_if(starts_degraded, &format!("{kind}: complete"), &done, |h| {
            assert!(!h.record(&wanted).unwrap().lost_member);
        });
        let wanted = Wanted { active: false, ..life.wanted() };
        let clean = Truth { synced: either(), ..done.clone() };
        life.step_if(starts_degraded, &format!("{kind}: clean"), &clean, |h| {
            h.record(&wanted).unwrap();
        });
        let plan = plan_assemble(&look(&life.drives), &Expected::default()).unwrap();
        assert_eq!((plan.members(), plan.info.resync_from_bytes), (vec![InSync; members], None));
        assert!(plan.left_over.is_empty() && plan.dirty.is_none());
    }
}

impl Life {
    fn step_if(
        &mut self,
        checks: bool,
        at: &str,
        truth: &Truth,
        step: impl FnOnce(&mut ArrayHandle<TestMedium>),
    ) {
        if checks {
            self.step(at, truth, step);
        } else {
            step(&mut self.handle);
            take_calls(&self.drives);
        }
    }
}

/// Another drive takes the lost one's place; then the old one must never be believed.
#[test]
fn a_lost_member_is_replaced() {
    for (level, consistency, members) in kinds() {
        if consistency == Consistency::Resync && level != Level::Raid1 {
            continue;
        }
        let kind = format!("{level} with {consistency}");
        let mut life = Life::new(level, consistency, members, 1);
        let size = life.handle.info().size_bytes();
        let mut wanted = life.wanted();
        wanted.members[1] = Missing;
        let lost_at = life.handle.record(&wanted).unwrap().events;
        take_calls(&life.drives);
        let with = |new| {
            let mut states = vec![State::Whole; members + 1];
            (states[1], states[members]) = (State::Stale, new);
            Truth { drives: states, synced: vec![None], lost_at }
        };
        life.handle.remove(1).unwrap();
        let medium = life.drives[members].clone();
        let examined = examine_medium(&medium).unwrap();
        life.step(&format!("{kind}: added"), &with(State::Stale), |h| {
            h.add(1, medium, &examined, false).unwrap();
        });
        let mut wanted = life.wanted();
        (wanted.members[1], wanted.rebuild_from, wanted.devices[1]) = (Rebuilding, Some(0), 99);
        life.step(&format!("{kind}: gets its role"), &with(State::Upto(0)), |h| {
            h.record(&wanted).unwrap();
        });
        let wanted = Wanted { rebuild_from: Some(size / 2), ..life.wanted() };
        life.step(&format!("{kind}: half"), &with(State::Upto(size / 2)), |h| {
            h.record(&wanted).unwrap();
        });
        let mut wanted = life.wanted();
        (wanted.members[1], wanted.rebuild_from) = (InSync, None);
        life.step(&format!("{kind}: complete"), &with(State::Whole), |h| {
            h.record(&wanted).unwrap();
        });
        let plan = plan_assemble(&look(&life.drives), &Expected::default()).unwrap();
        assert_eq!(plan.order()[1], Some(members), "{kind}");
        assert_eq!(plan.left_over.len(), 1);
        assert_eq!((plan.left_over[0].drive, plan.left_over[0].slot), (1, Some(1)));
    }
}
