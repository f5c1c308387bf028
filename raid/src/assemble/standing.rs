//! Who is believed, and what each slot's drive is. Pure.
//!
//! The highest event count rules, in whatever order drives are given. A member counts if it is at
//! most one event behind (md's margin), the newest superblock's role table gives its device number
//! the slot that it claims, and it does not itself record the newest as failed. Where several are
//! newest, that has to hold for each of them. A drive that was about to get its role, and is called
//! a member by the newest already, is one: it says itself that nothing of it has been rebuilt.
//!
//! Two that record each other as failed have diverged: nothing is put together from them until the
//! operator names the one that counts; then whoever records that one as failed is left out.

use super::error::{AssembleError, NotMember};
use super::examine::Examined;
use crate::metadata::private::PrivateArea;
use crate::metadata::superblock::{Geometry, Role, Summary, Superblock};
use crate::mutation::mutation;

/// A drive of the array, in the list's order.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) index: usize,
    pub(super) drive: &'a Examined,
    pub(super) superblock: &'a Superblock,
}

impl Candidate<'_> {
    pub(super) fn name(&self) -> String {
        self.drive.name.clone()
    }

    pub(super) fn geometry(&self) -> Result<Geometry, AssembleError> {
        self.superblock.geometry().map_err(|reason| AssembleError::NotServed {
            name: self.name(),
            summary: Box::new(Summary::from(self.superblock)),
            reason,
        })
    }

    pub(super) fn check_served(&self) -> Result<(), AssembleError> {
        if let Some(reason) = self.drive.newer_header.clone() {
            return Err(AssembleError::NewerHeader { name: self.name(), reason });
        }
        if let PrivateArea::Believed { header, .. } = &self.drive.private
            && let Some(section) = header.unknown_section()
        {
            return Err(AssembleError::NewerSection { name: self.name(), section });
        }
        self.geometry().map(|_| ())
    }

    pub(super) fn events(&self) -> u64 {
        self.superblock.events()
    }

    fn is_active(&self) -> bool {
        match self.superblock.own_role() {
            Role::Active(slot) => u32::from(slot) < self.superblock.member_count(),
            _ => false,
        }
    }

    /// Whether it was to become a member, and has not heard yet that it is one.
    fn awaits_role(&self) -> bool {
        self.superblock.own_role() == Role::Spare
    }

    pub(super) fn is_rebuilding(&self) -> bool {
        self.superblock.recovery_sectors().is_some()
    }

    /// Whether this drive records another as failed. A member that is being rebuilt may have come
    /// into the array by a change that this one has not taken yet.
    pub(super) fn deems_failed(&self, other: &Self) -> bool {
        !other.is_rebuilding()
            && !mutation!("ignore-what-a-member-deems-failed")
            && self.superblock.role_of(other.superblock.device_number()) == Role::Faulty
    }

    fn check_fits(&self, geometry: &Geometry) -> Result<(), AssembleError> {
        let needed_bytes =
            self.superblock.data_offset_bytes().saturating_add(geometry.component_bytes);
        if needed_bytes <= self.drive.size_bytes {
            return Ok(());
        }
        Err(AssembleError::TooSmall {
            name: self.name(),
            size_bytes: self.drive.size_bytes,
            needed_bytes,
        })
    }
}

/// The drive whose superblock rules. Spares do not count, as with md.
fn newest<'a>(candidates: &[Candidate<'a>]) -> Result<Candidate<'a>, AssembleError> {
    let active = candidates.iter().filter(|c| c.is_active());
    // A member in sync before one that is being rebuilt; of equals always the same one, in whatever
    // order they come.
    let order = |c: &Candidate<'_>| std::cmp::Reverse((c.superblock.device_number(), c.index));
    let newest = active.max_by_key(|c| (c.events(), !c.is_rebuilding(), order(c)));
    // Only spares and failed drives: every slot is missing.
    newest.or(candidates.first()).copied().ok_or(AssembleError::NoDrives)
}

/// What the drives are to each other.
pub(super) struct Standing<'a> {
    /// Whose superblock rules.
    pub(super) newest: Candidate<'a>,
    /// All those that are as new as that.
    rulers: Vec<Candidate<'a>>,
    /// The array's shape.
    pub(super) geometry: Geometry,
    /// Each slot's drive.
    pub(super) slots: Vec<Option<Candidate<'a>>>,
    /// The drives that have none, and why.
    pub(super) rest: Vec<(Candidate<'a>, NotMember)>,
}

impl<'a> Standing<'a> {
    /// Judges the drives of one array. `winner` is the name of the one that counts, should they
    /// have diverged.
    pub(super) fn judge(
        candidates: &[Candidate<'a>],
        winner: Option<&str>,
    ) -> Result<Self, AssembleError> {
        for candidate in candidates {
            candidate.check_served()?;
        }
        let (counting, mut rest) = settle(candidates, winner)?;
        let newest = newest(&counting)?;
        check_same_array(&counting, &newest)?;
        let geometry = newest.geometry()?;
        let rulers: Vec<_> = counting
            .iter()
            .filter(|c| c.is_active() && c.events() == newest.events())
            .filter(|c| !c.is_rebuilding() || newest.is_rebuilding())
            .copied()
            .collect();
        let slots = fill_slots(&counting, &newest, &rulers, &geometry, &mut rest)?;
        for member in slots.iter().flatten() {
            member.check_fits(&geometry)?;
        }
        Ok(Self { newest, rulers, geometry, slots, rest })
    }

    /// Whether the newest superblocks say that there is nobody in a slot.
    pub(super) fn is_recorded_gone(&self, slot: usize) -> bool {
        let is_gone = |slot| self.rulers.iter().all(|c| !c.superblock.roles().holds(slot));
        u16::try_from(slot).is_ok_and(is_gone)
    }
}

type Judged<'a> = (Vec<Candidate<'a>>, Vec<(Candidate<'a>, NotMember)>);

/// Leaves out those whose history is not that of the winner.
fn settle<'a>(
    candidates: &[Candidate<'a>],
    winner: Option<&str>,
) -> Result<Judged<'a>, AssembleError> {
    let Err(diverged) = check_diverged(candidates) else {
        return Ok((candidates.to_vec(), Vec::new()));
    };
    let is_winner = |c: &&Candidate<'_>| winner == Some(c.drive.name.as_str());
    let Some(winner) = candidates.iter().find(is_winner).copied() else { return Err(diverged) };
    let agrees = |c: &Candidate<'_>| !c.deems_failed(&winner);
    let (counting, others): (Vec<_>, Vec<_>) = candidates.iter().copied().partition(agrees);
    check_diverged(&counting)?;
    Ok((counting, others.into_iter().map(|c| (c, NotMember::Diverged)).collect()))
}

fn check_diverged(candidates: &[Candidate<'_>]) -> Result<(), AssembleError> {
    let active: Vec<_> = candidates.iter().filter(|c| c.is_active()).collect();
    for (i, first) in active.iter().enumerate() {
        for second in active.iter().skip(i + 1) {
            if first.deems_failed(second) && second.deems_failed(first) {
                return Err(AssembleError::Diverged { first: first.name(), second: second.name() });
            }
        }
    }
    Ok(())
}

fn check_same_array(
    candidates: &[Candidate<'_>],
    newest: &Candidate<'_>,
) -> Result<(), AssembleError> {
    for candidate in candidates {
        if !candidate.superblock.same_array(newest.superblock) {
            return Err(AssembleError::Disagree { name: candidate.name(), other: newest.name() });
        }
        let (found, expected) = (candidate.geometry()?, newest.geometry()?);
        if found != expected {
            return Err(AssembleError::UnequalRaid0 {
                name: candidate.name(),
                found_bytes: found.component_bytes,
                expected_bytes: expected.component_bytes,
            });
        }
    }
    Ok(())
}

/// Each slot's drive; the drives that have none go to `rest`.
fn fill_slots<'a>(
    candidates: &[Candidate<'a>],
    newest: &Candidate<'a>,
    rulers: &[Candidate<'a>],
    geometry: &Geometry,
    rest: &mut Vec<(Candidate<'a>, NotMember)>,
) -> Result<Vec<Option<Candidate<'a>>>, AssembleError> {
    let mut slots: Vec<Option<Candidate<'a>>> = vec![None; geometry.members];
    for candidate in candidates {
        match membership(candidate, newest, rulers) {
            Ok(slot) => match slots.get_mut(usize::from(slot)) {
                Some(Some(first)) if first.awaits_role() || candidate.awaits_role() => {
                    // One of them was left a spare when it was to be added, and another one came
                    // in its place: it holds nothing.
                    let uuid = |c: &Candidate<'_>| (c.awaits_role(), c.superblock.device_uuid());
                    let mut other = *candidate;
                    if uuid(&other) < uuid(first) {
                        std::mem::swap(first, &mut other);
                    }
                    rest.push((other, NotMember::Spare));
                }
                Some(Some(first)) => {
                    return Err(AssembleError::DuplicateSlot {
                        slot,
                        first: first.name(),
                        second: candidate.name(),
                    });
                }
                Some(place) => *place = Some(*candidate),
                None => rest.push((*candidate, NotMember::Failed)),
            },
            Err(reason) => rest.push((*candidate, reason)),
        }
    }
    Ok(slots)
}

/// The slot that a drive has, or why it has none.
fn membership(
    candidate: &Candidate<'_>,
    newest: &Candidate<'_>,
    rulers: &[Candidate<'_>],
) -> Result<u16, NotMember> {
    let superblock = candidate.superblock;
    let number = superblock.device_number();
    let own = superblock.own_role();
    if own == Role::Journal {
        return Err(NotMember::Failed);
    }
    if let (Role::Active(slot), true) = (own, mutation!("believe-older-member")) {
        return Ok(slot);
    }
    let behind = newest.events().saturating_sub(candidate.events());
    let role = newest.superblock.role_of(number);
    let Role::Active(slot) = role else {
        return Err(if own == Role::Spare { NotMember::Spare } else { NotMember::Failed });
    };
    if behind > 1 {
        return Err(NotMember::Behind { events: behind });
    }
    let awaits_role = own == Role::Spare && candidate.is_rebuilding();
    if own != role && !awaits_role {
        return Err(NotMember::Failed);
    }
    let agrees = |ruler: &Candidate<'_>| {
        ruler.superblock.role_of(number) == role && !candidate.deems_failed(ruler)
    };
    if !rulers.iter().all(agrees) {
        return Err(NotMember::Diverged);
    }
    if matches!(candidate.drive.bad_blocks, Some(Err(_))) {
        return Err(NotMember::BadBlockLog);
    }
    Ok(slot)
}
