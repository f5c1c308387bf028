//! What of a superblock changes while an array runs: the state and the roles, which are the same on
//! all members, and what is each member's own.

use super::{Features, IN_SYNC, MAX_DEVICES, Role, Superblock, Timestamp};
use uuid::Uuid;
use zerocopy::little_endian::U32;

/// Who is what: a role for each device number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RoleTable(Vec<Role>);

impl RoleTable {
    /// A role; one beyond the table has failed, as for md.
    pub(crate) fn role(&self, number: u32) -> Role {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        self.0.get(index).copied().unwrap_or(Role::Faulty)
    }

    /// Gives a device number a role; the table grows as needed.
    pub(crate) fn set(&mut self, number: u32, role: Role) {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        if index < MAX_DEVICES && index >= self.0.len() {
            self.0.resize(index + 1, Role::Faulty);
        }
        if let Some(entry) = self.0.get_mut(index) {
            *entry = role;
        }
    }

    /// The device numbers that hold a slot.
    pub(crate) fn holders(&self, slot: u16) -> impl Iterator<Item = u32> {
        let all = (0u32..).zip(&self.0);
        all.filter(move |(_, role)| **role == Role::Active(slot)).map(|(number, _)| number)
    }

    /// Whether a slot has a device.
    pub(crate) fn holds(&self, slot: u16) -> bool {
        self.holders(slot).next().is_some()
    }

    /// A number for a new device: none that a device may have had, as long as there are such, and
    /// none of those `given` to drives that do not have their role yet.
    pub(crate) fn free_number(&self, members: usize, given: &[u32]) -> Option<u32> {
        let is_given = |number: usize| given.iter().any(|given| *given as usize == number);
        let is_free = |number: &usize| {
            !matches!(self.0.get(*number), Some(Role::Active(_) | Role::Journal))
                && !is_given(*number)
        };
        // One that failed counts as well: an old superblock that calls its number failed would
        // contradict whoever has it now.
        let used = self.0.iter().rposition(|role| *role != Role::Spare);
        let given_last = given.iter().map(|given| *given as usize + 1).max().unwrap_or(0);
        let first_new = used.map_or(0, |last| last + 1).max(members).max(given_last);
        let number = (first_new..MAX_DEVICES).chain(0..MAX_DEVICES).find(is_free)?;
        u32::try_from(number).ok()
    }
}

/// The part of a superblock that is the same on all members and changes while an array runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) events: u64,
    pub(crate) updated: Timestamp,
    pub(crate) resync_offset: u64,
    pub(crate) roles: RoleTable,
}

/// The part that is each member's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Own {
    /// It is being rebuilt, and complete below so many sectors of its data.
    pub(crate) recovery_sectors: Option<u64>,
    /// Its bad-block log counts.
    pub(crate) has_bad_blocks: bool,
}

impl Superblock {
    /// The roles.
    pub(crate) fn roles(&self) -> RoleTable {
        RoleTable((0..self.role_count()).map(|number| self.role_of(number)).collect())
    }

    /// The state that is the same on all members.
    pub(crate) fn state(&self) -> State {
        State {
            events: self.events(),
            updated: self.updated(),
            resync_offset: self.resync_offset(),
            roles: self.roles(),
        }
    }

    /// What is this member's own.
    pub(crate) fn own(&self) -> Own {
        Own { recovery_sectors: self.recovery_sectors(), has_bad_blocks: self.has_bad_blocks() }
    }

    /// Up to where the member is complete, in sectors of its data, if it is being rebuilt.
    #[must_use]
    pub fn recovery_sectors(&self) -> Option<u64> {
        let rebuilding = self.features().0.contains(Features::RECOVERY_OFFSET);
        rebuilding.then(|| self.raw.recovery_offset.get())
    }

    /// Whether the member's bad-block log counts.
    #[must_use]
    pub fn has_bad_blocks(&self) -> bool {
        self.features().0.contains(Features::BAD_BLOCKS)
    }

    /// The unit of the bad-block log is `512 << shift` bytes.
    #[must_use]
    pub fn bad_block_shift(&self) -> u8 {
        self.raw.bblog_shift
    }

    /// Whether the copies agree everywhere (and nothing is being written).
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        self.resync_offset() == IN_SYNC
    }

    /// The same member in another state; all else stays as it is.
    pub(crate) fn with_state(&self, state: &State, own: Own) -> Self {
        let mut new = self.clone();
        new.raw.events = state.events.into();
        new.raw.utime = state.updated.0.into();
        new.raw.resync_offset = state.resync_offset.into();
        new.raw.max_dev = U32::new(state.roles.0.len().min(MAX_DEVICES) as u32);
        for (to, from) in new.raw.dev_roles.iter_mut().zip(&state.roles.0) {
            *to = from.to_bits().into();
        }
        let mut features = new.raw.feature_map.get();
        let mut feature = |feature: Features, is_set| {
            features = if is_set { features | feature.bits() } else { features & !feature.bits() };
        };
        feature(Features::RECOVERY_OFFSET, own.recovery_sectors.is_some());
        // A rebuild goes over everything from its position on, whatever the bitmap says.
        feature(Features::RECOVERY_BITMAP, false);
        feature(Features::BAD_BLOCKS, own.has_bad_blocks);
        new.raw.feature_map = features.into();
        new.raw.recovery_offset = own.recovery_sectors.unwrap_or(0).into();
        new.seal();
        new
    }

    /// A superblock for a new member of this one's array: at the same places, with a number and an
    /// identity of its own. It is a spare so far, and says that nothing of it has been rebuilt.
    pub(crate) fn for_new_member(&self, number: u32, device_uuid: Uuid) -> Self {
        let mut new = self.clone();
        new.raw.dev_number = number.into();
        new.raw.device_uuid = device_uuid.into_bytes();
        new.raw.data_size = self.raw.size;
        new.raw.cnt_corrected_read = 0.into();
        new.raw.devflags = 0;
        new.raw.bblog_shift = 0;
        let mut state = self.state();
        state.roles.set(number, Role::Spare);
        new.with_state(&state, Own { recovery_sectors: Some(0), has_bad_blocks: false })
    }
}
