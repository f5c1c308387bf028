//! Which long task comes next. Pure.
//!
//! One at a time, the most urgent first: a rebuild, since another loss may be the last one; then
//! the resync, without which the array cannot be relied on after a crash; then what the operator
//! asked for. A task makes way for a more urgent one, and goes on later where it was.

/// A long task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Fill members that came.
    Rebuild,
    /// Make copies equal, or parity right, where they may not be.
    Resync,
    /// Compare copies, or data and parity.
    Check(CheckMode),
}

/// What a check does about what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckMode {
    /// Nothing but to count it. What cannot be read is repaired all the same.
    Check,
    /// Copies: the first one is written over the others. RAID 5: parity is computed from the data.
    /// RAID 6: a single wrong chunk is found and repaired; where more are wrong, nothing.
    Repair,
    /// The same; and on RAID 6, where more than one chunk is wrong, parity is computed from the
    /// data.
    RepairAll,
}

/// What an array needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Needs {
    /// A member is being rebuilt.
    pub(super) rebuild: bool,
    /// There is something that may not agree.
    pub(super) resync: bool,
    /// A check is asked for.
    pub(super) check: Option<CheckMode>,
    /// A member is not in sync.
    pub(super) is_degraded: bool,
    /// The level has parity: without all members it cannot be told what is right.
    pub(super) has_parity: bool,
    /// More members are lost than the level tolerates.
    pub(super) has_failed: bool,
}

impl Needs {
    /// The task that comes next; none if there is nothing to do, or nothing that could be done now.
    pub(super) fn next(self) -> Option<Task> {
        if self.has_failed {
            None
        } else if self.rebuild {
            Some(Task::Rebuild)
        } else if self.resync && !(self.has_parity && self.is_degraded) {
            Some(Task::Resync)
        } else {
            self.check.map(Task::Check)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_urgent_task_comes_first() {
        // Every combination against the rules, one by one.
        let bools = [false, true];
        for bits in 0u32..1 << 6 {
            let bit = |index: u32| bools[(bits >> index & 1) as usize];
            let needs = Needs {
                rebuild: bit(0),
                resync: bit(1),
                check: bit(2).then_some(CheckMode::Repair),
                is_degraded: bit(3),
                has_parity: bit(4),
                has_failed: bit(5),
            };
            let next = needs.next();
            if bit(5) {
                assert_eq!(next, None, "{needs:?}");
                continue;
            }
            assert_eq!(next == Some(Task::Rebuild), bit(0), "{needs:?}");
            let can_resync = !bit(3) || !bit(4);
            let resyncs = !bit(0) && bit(1) && can_resync;
            assert_eq!(next == Some(Task::Resync), resyncs, "{needs:?}");
            let checks = !bit(0) && !resyncs && bit(2);
            assert_eq!(next == Some(Task::Check(CheckMode::Repair)), checks, "{needs:?}");
            assert_eq!(next.is_none(), !bit(0) && !resyncs && !bit(2), "{needs:?}");
        }
    }
}
