//! What a superblock says, in words.

use super::{Role, Superblock};
use uuid::Uuid;

/// What one member's superblock says, for people and for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The array's identity.
    pub array_uuid: Uuid,
    /// The array's name, with its home host.
    pub set_name: String,
    /// md's number of the level.
    pub level: i32,
    /// The number of slots.
    pub members: u32,
    /// What this drive is.
    pub role: Role,
    /// The event count.
    pub events: u64,
}

impl From<&Superblock> for Summary {
    fn from(from: &Superblock) -> Self {
        Self {
            array_uuid: from.array_uuid(),
            set_name: from.set_name(),
            level: from.level_number(),
            members: from.member_count(),
            role: from.own_role(),
            events: from.events(),
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.role {
            Role::Active(slot) => write!(f, "member {slot} of {}", self.members)?,
            Role::Spare => write!(f, "a spare")?,
            Role::Faulty => write!(f, "a failed member")?,
            Role::Journal => write!(f, "the journal")?,
        }
        let name = if self.set_name.is_empty() { "without a name" } else { &self.set_name };
        write!(
            f,
            " of the md array {name} (level {}, UUID {})",
            self.level,
            MdUuid(self.array_uuid)
        )
    }
}

/// A UUID as mdadm prints it: four groups of eight digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MdUuid(pub Uuid);

impl std::fmt::Display for MdUuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, byte) in self.0.as_bytes().iter().enumerate() {
            if i % 4 == 0 && i > 0 {
                write!(f, ":")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl MdUuid {
    /// From mdadm's form, or from the usual one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Uuid> {
        let digits: String = text.chars().filter(|c| *c != ':').collect();
        Uuid::try_parse(&digits).ok()
    }
}
