//! From facts about an array to a verdict: its state, what is wrong and what to do, how much more it
//! can lose. Pure.
//!
//! The order of states, when several are true at once, is that of urgency: failed, degraded (nobody
//! is mending it), rebuilding, building, resyncing, healthy.

use uuid::Uuid;

use crate::config::format_bytes;

use super::report::{
    ArrayState, ArrayStatus, CheckResult, MemberCondition, MemberStatus, Problem, Severity, Spare,
    Task,
};

/// What is known of a running array.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its level, as the configuration has it.
    pub level: String,
    /// Its chunk; 0 for RAID 1.
    pub chunk_bytes: u64,
    /// Its size.
    pub size_bytes: u64,
    /// How it is made consistent after a crash.
    pub consistency: String,
    /// Whether an operator has stopped it.
    pub is_stopped: bool,
    /// Why it has failed.
    pub failure: Option<String>,
    /// Whether copies agree, or parity is right, everywhere.
    pub is_in_sync: bool,
    /// Whether it has never been so.
    pub is_building: bool,
    /// What the last check has found.
    pub last_check: Option<CheckResult>,
    /// What goes on.
    pub tasks: Vec<Task>,
    /// Members by slot.
    pub members: Vec<MemberStatus>,
    /// Drives in reserve.
    pub spares: Vec<Spare>,
}

impl Facts {
    fn lost(&self) -> impl Iterator<Item = &MemberStatus> {
        self.members.iter().filter(|member| member.state != MemberCondition::InSync)
    }

    fn is_held(&self, slot: usize) -> bool {
        self.members.get(slot).is_some_and(|member| member.state == MemberCondition::InSync)
    }

    /// How many more members it can lose, whichever they are.
    fn redundancy_remaining(&self) -> u64 {
        if self.failure.is_some() || !self.is_in_sync {
            return 0;
        }
        let members = self.members.len();
        let lost = self.lost().count();
        let left = match self.level.as_str() {
            "raid1" => members.saturating_sub(lost + 1),
            "raid5" => 1_usize.saturating_sub(lost),
            "raid6" => 2_usize.saturating_sub(lost),
            // Each chunk is on two neighbours; with an odd number of members the last is the
            // first one's neighbour as well.
            "raid10" => {
                let pairs = if members.is_multiple_of(2) { 2 } else { 1 };
                let whole = (0..members)
                    .step_by(pairs)
                    .all(|slot| self.is_held(slot) && self.is_held((slot + 1) % members));
                usize::from(whole)
            }
            _ => 0,
        };
        left as u64
    }

    fn state(&self) -> ArrayState {
        let needs_drive = |member: &MemberStatus| {
            matches!(member.state, MemberCondition::Failed | MemberCondition::Missing)
        };
        if self.is_stopped {
            ArrayState::Stopped
        } else if self.failure.is_some() {
            ArrayState::Failed
        } else if self.lost().any(needs_drive) {
            ArrayState::Degraded
        } else if self.lost().next().is_some() {
            ArrayState::Rebuilding
        } else if self.is_in_sync {
            ArrayState::Healthy
        } else if self.is_building {
            ArrayState::Building
        } else {
            ArrayState::Resyncing
        }
    }

    fn problems(&self, state: ArrayState) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut add = |severity, what: String, cure: Option<String>| {
            problems.push(Problem { severity, what, cure });
        };
        let name = &self.name;
        if self.is_stopped {
            let cure = format!("restart the daemon to serve array {name} again");
            add(Severity::Failed, "an operator has stopped it".into(), Some(cure));
        }
        if let Some(failure) = &self.failure {
            let cure = "bring the drives back that were lost last, and if it does not go on by \
                        itself then, restart the daemon; the kernel's log (dmesg) says what happened \
                        to them";
            add(Severity::Failed, format!("it takes no more writes: {failure}"), Some(cure.into()));
        }
        for member in self.lost() {
            let (what, cure) = self.about(member);
            add(Severity::Warning, what, cure);
        }
        if state == ArrayState::Building {
            let what = "it is new, and its redundancy is being built: until then it cannot lose a \
                        member";
            add(Severity::Warning, what.into(), None);
        }
        if state == ArrayState::Resyncing {
            let what = "it was not stopped cleanly, and its redundancy is being made good";
            add(Severity::Warning, what.into(), None);
        }
        for member in &self.members {
            self.wear(member, &mut add);
        }
        if let Some(found) = &self.last_check {
            self.about_check(found, &mut add);
        }
        problems.sort_by_key(|problem| std::cmp::Reverse(problem.severity));
        problems
    }

    /// A member that is not in sync, and what to do about it.
    fn about(&self, member: &MemberStatus) -> (String, Option<String>) {
        let name = &self.name;
        let slot = member.slot;
        let label = label(member);
        let why = member.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        match member.state {
            MemberCondition::Failed => (
                format!("{label} has failed{why}"),
                Some(format!(
                    "put a new drive in: raidfabric array add {name} DRIVE --slot {slot}"
                )),
            ),
            MemberCondition::Missing => (
                format!("{label} is missing{why}"),
                Some(format!(
                    "plug its drive in, which is then taken again; or put another in its place: \
                     raidfabric array add {name} DRIVE --slot {slot}"
                )),
            ),
            MemberCondition::Rebuilding | MemberCondition::InSync => {
                (format!("{label} is being rebuilt{why}"), None)
            }
        }
    }

    /// What a member that is in sync suffers from.
    fn wear(&self, member: &MemberStatus, add: &mut impl FnMut(Severity, String, Option<String>)) {
        let label = label(member);
        if member.bad_blocks > 0 {
            let ranges = member.bad_blocks;
            let plural = if ranges == 1 { "range" } else { "ranges" };
            let what = format!("{label} has {ranges} {plural} that cannot be read");
            let cure = "they are good again once they have been written; or replace the drive";
            add(Severity::Warning, what, Some(cure.into()));
        }
        if member.read_errors > 0 && member.state == MemberCondition::InSync {
            let errors = member.read_errors;
            let plural = if errors == 1 { "error" } else { "errors" };
            let what = format!("{label} has had {errors} read {plural}, answered from the others");
            let cure = format!(
                "look at its health (nvme smart-log); raidfabric array repair {} finds what is left",
                self.name
            );
            add(Severity::Ok, what, Some(cure));
        }
        if member.no_space_errors > 0 {
            let what = format!("{label} has no space below it");
            let cure = "make room on its file system or thin volume";
            add(Severity::Warning, what, Some(cure.into()));
        }
    }

    /// What the last check has found wrong.
    fn about_check(
        &self,
        found: &CheckResult,
        add: &mut impl FnMut(Severity, String, Option<String>),
    ) {
        let word = if found.is_repair { "repair" } else { "check" };
        let left = found.mismatch_bytes.saturating_sub(found.repaired_bytes);
        if left > 0 {
            let bytes = format_bytes(left);
            let what = format!("the last {word} has found {bytes} that do not agree");
            let cure = format!("raidfabric array repair {}", self.name);
            add(Severity::Warning, what, Some(cure));
        }
        if found.unreadable_bytes > 0 {
            let bytes = format_bytes(found.unreadable_bytes);
            let what = format!("the last {word} has found {bytes} that cannot be read");
            let cure = "write them anew, from a backup; hosts get read errors there until then";
            add(Severity::Warning, what, Some(cure.into()));
        }
    }

    /// The verdict.
    pub fn judge(self) -> ArrayStatus {
        let state = self.state();
        let problems = self.problems(state);
        let own = match state {
            ArrayState::Healthy => Severity::Ok,
            ArrayState::Failed | ArrayState::Stopped => Severity::Failed,
            _ => Severity::Warning,
        };
        let worst = problems.iter().map(|problem| problem.severity).max();
        ArrayStatus {
            redundancy_remaining: self.redundancy_remaining(),
            severity: own.max(worst.unwrap_or(Severity::Ok)),
            state,
            problems,
            name: self.name,
            uuid: self.uuid,
            level: self.level,
            chunk_bytes: self.chunk_bytes,
            size_bytes: self.size_bytes,
            consistency: self.consistency,
            tasks: self.tasks,
            members: self.members,
            spares: self.spares,
            last_check: self.last_check,
        }
    }
}

/// A member as it is called in sentences.
fn label(member: &MemberStatus) -> String {
    let slot = member.slot;
    match (&member.drive, &member.serial) {
        (Some(drive), Some(serial)) => format!("slot {slot} ({drive}, serial {serial})"),
        (Some(drive), None) => format!("slot {slot} ({drive})"),
        (None, _) => format!("slot {slot}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A member that is in sync.
    pub(crate) fn member(slot: usize) -> MemberStatus {
        let letter = char::from(b'A' + slot as u8);
        MemberStatus {
            slot,
            drive: Some(format!("/dev/disk/by-id/nvme-{letter}")),
            serial: Some(format!("S{slot}")),
            state: MemberCondition::InSync,
            why: None,
            read_errors: 0,
            write_errors: 0,
            flush_errors: 0,
            no_space_errors: 0,
            bad_blocks: 0,
            temperature_kelvin: Some(313),
        }
    }

    /// A healthy array.
    pub(crate) fn facts(level: &str, members: usize) -> Facts {
        Facts {
            name: "fast".into(),
            uuid: Uuid::from_u128(0x3f0c1d3a_6b0e_4b9b_9a0e_0d6a52a3c001),
            level: level.into(),
            chunk_bytes: 65536,
            size_bytes: 3 << 40,
            consistency: "ppl".into(),
            is_stopped: false,
            failure: None,
            is_in_sync: true,
            is_building: false,
            last_check: None,
            tasks: Vec::new(),
            members: (0..members).map(member).collect(),
            spares: Vec::new(),
        }
    }

    fn without(level: &str, members: usize, lost: &[usize]) -> ArrayStatus {
        let mut facts = facts(level, members);
        for slot in lost {
            facts.members[*slot].state = MemberCondition::Failed;
        }
        facts.judge()
    }

    #[test]
    fn what_can_still_be_lost() {
        for (level, members, lost, expected) in [
            ("raid0", 4, &[][..], 0),
            ("raid1", 3, &[], 2),
            ("raid1", 3, &[1, 2], 0),
            ("raid5", 4, &[], 1),
            ("raid5", 4, &[3], 0),
            ("raid6", 4, &[], 2),
            ("raid6", 4, &[0], 1),
            ("raid6", 4, &[0, 1], 0),
            ("raid10", 4, &[], 1),
            ("raid10", 4, &[2], 0),
            ("raid10", 5, &[], 1),
            ("raid10", 5, &[4], 0),
        ] {
            let status = without(level, members, lost);
            assert_eq!(status.redundancy_remaining, expected, "{level} {members} {lost:?}");
        }
        let building = Facts { is_in_sync: false, ..facts("raid6", 4) };
        assert_eq!(building.judge().redundancy_remaining, 0);
    }

    #[test]
    fn each_state_has_its_severity_and_its_cure() {
        let healthy = facts("raid5", 4).judge();
        assert_eq!((healthy.state, healthy.severity), (ArrayState::Healthy, Severity::Ok));
        assert!(healthy.problems.is_empty());

        let degraded = without("raid5", 4, &[2]);
        assert_eq!((degraded.state, degraded.severity), (ArrayState::Degraded, Severity::Warning));
        let problem = &degraded.problems[0];
        assert_eq!(problem.what, "slot 2 (/dev/disk/by-id/nvme-C, serial S2) has failed");
        let cure = problem.cure.as_deref().unwrap();
        assert!(cure.contains("raidfabric array add fast DRIVE --slot 2"), "{cure}");

        let mut rebuilding = facts("raid5", 4);
        rebuilding.members[1].state = MemberCondition::Rebuilding;
        let rebuilding = rebuilding.judge();
        assert_eq!(rebuilding.state, ArrayState::Rebuilding);
        assert_eq!(rebuilding.problems[0].cure, None, "nothing has to be done");

        let mut building = Facts { is_in_sync: false, ..facts("raid5", 4) };
        assert_eq!(building.clone().judge().state, ArrayState::Resyncing);
        building.is_building = true;
        let building = building.judge();
        assert_eq!((building.state, building.severity), (ArrayState::Building, Severity::Warning));

        let mut failed = facts("raid5", 4);
        failed.members[0].state = MemberCondition::Failed;
        failed.failure = Some("member 1 failed".into());
        let failed = failed.judge();
        assert_eq!((failed.state, failed.severity), (ArrayState::Failed, Severity::Failed));
        assert!(failed.problems[0].what.contains("takes no more writes: member 1"), "{failed:?}");
        assert_eq!(failed.problems.len(), 2);

        let stopped = Facts { is_stopped: true, ..facts("raid5", 4) }.judge();
        assert_eq!((stopped.state, stopped.severity), (ArrayState::Stopped, Severity::Failed));
    }

    #[test]
    fn what_a_check_has_found_is_a_problem_until_it_is_repaired() {
        let mut facts = facts("raid6", 4);
        let mut found = CheckResult {
            is_repair: false,
            is_complete: true,
            mismatch_bytes: 8192,
            repaired_bytes: 0,
            rewritten_bytes: 0,
            unreadable_bytes: 0,
            uncompared_bytes: 0,
            places: Vec::new(),
        };
        facts.last_check = Some(found.clone());
        let status = facts.clone().judge();
        assert_eq!((status.state, status.severity), (ArrayState::Healthy, Severity::Warning));
        assert_eq!(status.problems[0].what, "the last check has found 8 KiB that do not agree");
        assert_eq!(status.problems[0].cure.as_deref(), Some("raidfabric array repair fast"));
        (found.is_repair, found.repaired_bytes) = (true, 8192);
        facts.last_check = Some(found);
        assert!(facts.judge().problems.is_empty());
    }

    #[test]
    fn read_errors_are_told_without_being_a_state() {
        let mut facts = facts("raid1", 2);
        facts.members[0].read_errors = 1;
        let status = facts.judge();
        assert_eq!((status.state, status.severity), (ArrayState::Healthy, Severity::Ok));
        assert!(
            status.problems[0].what.ends_with("has had 1 read error, answered from the others")
        );
    }
}
