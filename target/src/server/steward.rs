//! Looks after one running array: what its members need and nobody asks for.
//!
//! Once a second, and without touching data:
//!
//! * **Drives that come back.** A member whose drive was gone, or was not there at the start, gets it
//!   back when a drive with its superblock appears, under whatever name. A drive that failed while it
//!   was there does not come back by itself: it would fail again, and again be rebuilt.
//! * **Spares.** A slot without a working drive gets a spare, after [`SPARE_PATIENCE`]: a cable that
//!   was pulled by mistake is put back within that.
//! * **Hold.** While an array has failed, commands wait for drives to come back, as long as `hold`
//!   says; then hosts are told to try again themselves.
//!
//! What changes is logged once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use raidfabric_raid::array::{Failure, MemberFault, MemberState};
use raidfabric_raid::assemble::{Found, find_members};
use raidfabric_raid::device::Kind;
use raidfabric_raid::device::signature::Contents;
use raidfabric_raid::drive::DriveError;
use raidfabric_raid::metadata::superblock::Role;

use super::cores::Cores;
use super::report::Refusal;
use super::served::ServedArray;
use super::spares;

/// How often an array is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long a drive is left alone that could not be had.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(60);
/// A drive that has gone so soon after it failed was pulled, whatever error was the first to tell.
const PULL_PATIENCE: Duration = Duration::from_secs(5);
/// How long a slot is left without a drive before a spare takes its place.
const SPARE_PATIENCE: Duration = Duration::from_secs(10);

/// Looks after an array, for ever.
pub(super) async fn look_after(array: Arc<ServedArray>, cores: Cores) {
    let mut steward = Steward::new(array, cores);
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if steward.array.is_stopped() {
            return;
        }
        steward.look().await;
    }
}

struct Steward {
    array: Arc<ServedArray>,
    cores: Cores,
    /// The members' states that were told last.
    told: Vec<MemberState>,
    failure: Option<Failure>,
    /// Since when a slot has had no drive that works.
    lacking_since: Vec<Option<Instant>>,
    /// Since when a member has had a fault, and whether its drive was pulled.
    faulty_since: Vec<Option<Instant>>,
    pulled: Vec<bool>,
    /// Since when commands wait.
    holding_since: Option<Instant>,
    /// Drives that were tried and could not be had, by kind and event count: not tried again for a
    /// while.
    refused: HashMap<(Kind, u64), Instant>,
    refused_spares: HashMap<Kind, Instant>,
}

impl Steward {
    fn new(array: Arc<ServedArray>, cores: Cores) -> Self {
        let told = array.shared.member_states();
        let hold = array.conduct.hold;
        array.shared.set_hold(!hold.is_zero());
        Self {
            lacking_since: vec![None; told.len()],
            faulty_since: vec![None; told.len()],
            pulled: vec![false; told.len()],
            told,
            failure: None,
            holding_since: None,
            refused: HashMap::new(),
            refused_spares: HashMap::new(),
            array,
            cores,
        }
    }

    async fn look(&mut self) {
        self.tell();
        if self.array.is_building() && self.array.shared.is_in_sync() {
            let array = Arc::clone(&self.array);
            let _ = tokio::task::spawn_blocking(move || array.set_built()).await;
            tracing::info!(array = self.array.name(), "built: its redundancy is whole");
        }
        self.hold(Instant::now());
        self.note_lacks(Instant::now());
        self.note_pulls(Instant::now());
        if self.failure.is_some() {
            // Nothing could be filled from what is left, until it works again.
            if self.array.handle().is_some() {
                self.mend().await;
            }
            return;
        }
        if self.array.handle().is_none() || self.lacking_since.iter().all(Option::is_none) {
            return;
        }
        if self.returning_slots().next().is_some() {
            self.bring_back().await;
        }
        self.bring_spare(Instant::now()).await;
    }

    /// Says what has changed.
    fn tell(&mut self) {
        let name = self.array.name();
        let states = self.array.shared.member_states();
        for (slot, (now, before)) in states.iter().zip(&self.told).enumerate() {
            if now == before {
                continue;
            }
            let drive = self.array.label(slot).map(|label| label.to_string()).unwrap_or_default();
            match now {
                MemberState::Failed => {
                    let why = self.array.shared.member_fault(slot);
                    let why = why.map(|fault| fault.to_string()).unwrap_or_default();
                    tracing::error!(array = name, slot, drive, why, "a member has failed");
                }
                MemberState::Rebuilding => {
                    tracing::warn!(array = name, slot, drive, "a member is being rebuilt");
                }
                MemberState::InSync => {
                    tracing::info!(array = name, slot, drive, "a member is in sync again");
                }
                MemberState::Missing => tracing::warn!(array = name, slot, "a slot is empty"),
            }
        }
        let changed = states != self.told;
        self.told = states;
        let failure = self.array.shared.failure();
        if failure != self.failure {
            match &failure {
                Some(failure) => tracing::error!(
                    array = name,
                    "the array has failed and takes no more writes: {failure}. See the kernel's \
                     log (dmesg) for the drive"
                ),
                None => tracing::warn!(array = name, "the array works again"),
            }
        }
        if changed || failure != self.failure {
            self.array.report_health();
        }
        self.failure = failure;
    }

    /// Ends the waiting of commands when its time is over.
    fn hold(&mut self, now: Instant) {
        let limit = self.array.conduct.hold;
        if limit.is_zero() {
            return;
        }
        match (self.failure.is_some(), self.holding_since) {
            (true, None) => self.holding_since = Some(now),
            (true, Some(since)) if now.duration_since(since) >= limit => {
                self.array.shared.set_hold(false);
            }
            (false, Some(_)) => {
                self.holding_since = None;
                self.array.shared.set_hold(true);
            }
            _ => {}
        }
    }

    /// Notes since when slots are without a drive that works.
    fn note_lacks(&mut self, now: Instant) {
        for (state, since) in self.told.iter().zip(&mut self.lacking_since) {
            match state {
                MemberState::Failed | MemberState::Missing => _ = since.get_or_insert(now),
                MemberState::InSync | MemberState::Rebuilding => *since = None,
            }
        }
    }

    /// Notes which members failed because their drives were pulled: what was under way then may have
    /// ended in any error, before the drive was known to be gone.
    fn note_pulls(&mut self, now: Instant) {
        for (slot, since) in self.faulty_since.iter_mut().enumerate() {
            let Some(pulled) = self.pulled.get_mut(slot) else { continue };
            let Some(fault) = self.array.shared.member_fault(slot) else {
                (*since, *pulled) = (None, false);
                continue;
            };
            let age = now.duration_since(*since.get_or_insert(now));
            if age <= PULL_PATIENCE && may_be_a_pull(fault) {
                let kind = self.array.label(slot).map(|label| label.identity.kind);
                *pulled |= kind.is_some_and(|kind| is_unplugged(Path::new("/sys"), kind));
            }
        }
    }

    /// Whether the drive of a slot was not there any more when its member failed.
    fn had_gone(&self, slot: usize) -> bool {
        let was_pulled = self.pulled.get(slot).is_some_and(|pulled| *pulled);
        was_pulled || self.array.shared.member_fault(slot).is_some_and(MemberFault::is_gone)
    }

    /// Slots whose drive may come back by itself.
    fn returning_slots(&self) -> impl Iterator<Item = usize> {
        let states = self.told.iter().enumerate();
        let may = |(slot, state): &(usize, &MemberState)| {
            let has_fault = self.array.shared.member_fault(*slot).is_some();
            may_return(**state, has_fault, self.had_gone(*slot))
        };
        states.filter(may).map(|(slot, _)| slot)
    }

    /// Takes drives again without which the array has failed.
    async fn mend(&mut self) {
        let states = (0..).zip(&self.told).filter(|(_, state)| **state == MemberState::InSync);
        let slots = states.map(|(slot, _)| slot).filter(|slot| self.had_gone(*slot));
        let slots: Vec<usize> = slots.collect();
        if slots.is_empty() {
            return;
        }
        for found in self.find().await {
            let Role::Active(slot) = found.summary.role else { continue };
            let (slot, mark) = (usize::from(slot), (found.identity.kind, found.summary.events));
            if !slots.contains(&slot)
                || self.was_refused(mark)
                || self.is_used_elsewhere(&found, slot)
            {
                continue;
            }
            let drive = found.identity.to_string();
            match self.array.mend(&self.cores, found.path, slot).await {
                Ok(done) => tracing::warn!(array = self.array.name(), "{}", done.message),
                Err(refusal) => self.refuse(mark, slot, &drive, &refusal),
            }
        }
    }

    fn was_refused(&self, mark: (Kind, u64)) -> bool {
        self.refused.get(&mark).is_some_and(|at| at.elapsed() < REFUSAL_PATIENCE)
    }

    /// A drive of the array could not be had; it is left alone for a while.
    fn refuse(&mut self, mark: (Kind, u64), slot: usize, drive: &str, refusal: &Refusal) {
        self.refused.insert(mark, Instant::now());
        tracing::error!(
            array = self.array.name(),
            slot,
            drive,
            "a drive of the array is here, and is not taken: {refusal}"
        );
    }

    /// Takes drives again that belong to slots which lack them.
    async fn bring_back(&mut self) {
        let slots: Vec<usize> = self.returning_slots().collect();
        for found in self.find().await {
            let Role::Active(slot) = found.summary.role else { continue };
            let slot = usize::from(slot);
            let mark = (found.identity.kind, found.summary.events);
            if !slots.contains(&slot)
                || self.was_refused(mark)
                || self.is_used_elsewhere(&found, slot)
            {
                continue;
            }
            let drive = found.identity.to_string();
            match self.array.add(&self.cores, found.path, Some(slot)).await {
                Ok(done) => tracing::warn!(array = self.array.name(), "{}", done.message),
                Err(refusal) => self.refuse(mark, slot, &drive, &refusal),
            }
        }
    }

    /// Whether a drive is in another slot. The kernel may have given its number to another one.
    fn is_used_elsewhere(&self, found: &Found, slot: usize) -> bool {
        (0..self.told.len()).filter(|other| *other != slot).any(|other| {
            self.array.label(other).is_some_and(|label| label.identity.kind == found.identity.kind)
        })
    }

    /// Drives that carry the array's UUID, with the most recent ones first.
    async fn find(&self) -> Vec<Found> {
        let uuid = self.array.uuid();
        let also: Vec<PathBuf> = self.array.known_files();
        let find = move || find_members(uuid, &also);
        let mut found = tokio::task::spawn_blocking(find).await.unwrap_or_default();
        found.sort_by_key(|found| std::cmp::Reverse(found.summary.events));
        found
    }

    /// Has a spare take the place of a slot that has been without a drive for long enough.
    async fn bring_spare(&mut self, now: Instant) {
        let is_due = |since: &Option<Instant>| {
            since.is_some_and(|since| now.duration_since(since) >= SPARE_PATIENCE)
        };
        let due = self.lacking_since.iter().position(is_due);
        let Some(slot) = due.filter(|_| self.failure.is_none()) else { return };
        // One after the other: each rebuild goes as fast as it can.
        if self.told.contains(&MemberState::Rebuilding) || self.array.conduct.spares.is_empty() {
            return;
        }
        let patterns = self.array.conduct.spares.clone();
        let looking = tokio::task::spawn_blocking(move || spares::look(&patterns));
        for look in looking.await.unwrap_or_default() {
            let kind = look.identity.kind;
            let is_blank =
                look.found.as_ref().is_ok_and(|found| found.examined.contents == Contents::Blank);
            let was_refused =
                self.refused_spares.get(&kind).is_some_and(|at| at.elapsed() < REFUSAL_PATIENCE);
            if !is_blank || look.holder.is_some() || was_refused {
                continue;
            }
            match self.array.add(&self.cores, look.identity.path.clone(), Some(slot)).await {
                Ok(done) => {
                    tracing::warn!(array = self.array.name(), "a spare: {}", done.message);
                    return;
                }
                Err(refusal) => {
                    self.refused_spares.insert(kind, Instant::now());
                    tracing::error!(array = self.array.name(), "a spare is not taken: {refusal}");
                }
            }
        }
    }
}

/// Whether the drive of a slot in this state is taken again as soon as it is there: it was never
/// there, or has gone. What failed in another way, or was taken out by an operator, is not.
fn may_return(state: MemberState, has_fault: bool, had_gone: bool) -> bool {
    match state {
        MemberState::Missing => had_gone || !has_fault,
        MemberState::Failed => had_gone,
        MemberState::InSync | MemberState::Rebuilding => false,
    }
}

/// Whether this is what is told first of some drives that were pulled.
fn may_be_a_pull(fault: MemberFault) -> bool {
    let (MemberFault::Write(error)
    | MemberFault::Flush(error)
    | MemberFault::Unreachable(error)
    | MemberFault::Superblock(error)) = fault
    else {
        return false;
    };
    matches!(error, DriveError::Io { .. })
}

/// Whether the kernel has a block device no more. Its number is not given again while it is open.
fn is_unplugged(sys: &Path, kind: Kind) -> bool {
    match kind {
        Kind::Block { major, minor } => !sys.join(format!("dev/block/{major}:{minor}")).exists(),
        Kind::File { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_while_it_was_there_does_not_come_back_by_itself() {
        let gone = Some(MemberFault::Unreachable(DriveError::Gone));
        let broken = Some(MemberFault::Write(DriveError::Io { errno: 5 }));
        for (state, fault, expected) in [
            (MemberState::Missing, None, true),
            (MemberState::Missing, gone, true),
            (MemberState::Missing, broken, false),
            (MemberState::Missing, Some(MemberFault::Operator), false),
            (MemberState::Failed, gone, true),
            (MemberState::Failed, broken, false),
            (MemberState::Failed, Some(MemberFault::Write(DriveError::TimedOut)), false),
            (MemberState::Failed, Some(MemberFault::Operator), false),
            (MemberState::InSync, None, false),
            (MemberState::Rebuilding, None, false),
        ] {
            let had_gone = fault.is_some_and(MemberFault::is_gone);
            let found = may_return(state, fault.is_some(), had_gone);
            assert_eq!(found, expected, "{state:?} {fault:?}");
        }
    }

    /// A drive that was pulled while it was being flushed had failed with an error, and did not come
    /// back.
    #[test]
    fn a_drive_that_was_pulled_is_known_whatever_it_told_first() {
        let io = DriveError::Io { errno: 5 };
        assert!(may_be_a_pull(MemberFault::Flush(io)) && may_be_a_pull(MemberFault::Write(io)));
        assert!(!may_be_a_pull(MemberFault::Write(DriveError::TimedOut)));
        assert!(!may_be_a_pull(MemberFault::Operator));
        assert!(!may_be_a_pull(MemberFault::ReadErrors(20)));
        let sys = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(sys.path().join("dev/block/259:0")).unwrap();
        let block = |minor| Kind::Block { major: 259, minor };
        assert!(!is_unplugged(sys.path(), block(0)));
        assert!(is_unplugged(sys.path(), block(1)));
        assert!(!is_unplugged(sys.path(), Kind::File { device: 1, inode: 2 }));
        assert!(may_return(MemberState::Failed, true, true));
    }
}
