//! Rows: one chunk on every member, at the same offset of all data areas, and what each of them
//! holds. This is the view that the parity levels work in.
//!
//! md's left-symmetric layout, for both parity levels. P begins on the last member and moves one
//! member to the left with each row. RAID 6 has Q on the member after P (after the last comes the
//! first). Data begins on the member after the last parity and goes round, so that the chunks of a
//! sequential read visit all members in turn:
//! ```text
//!          RAID 5, 4 members      RAID 6, 5 members
//! row 0     0   1   2   P          Q   0   1   2   P
//! row 1     4   5   P   3          3   4   5   P   Q
//! row 2     8   P   6   7          7   8   P   Q   6
//! row 3     P   9  10  11         11   P   Q   9  10
//! row 4    12  13  14   P          P   Q  12  13  14
//! ```
//! The *index* of a data chunk counts from the member after the last parity. In Q the chunk of
//! index `i` has the coefficient `2^i` in the field of 256 elements with the polynomial 0x11d.
//!
//! RAID 0 has rows too, without parity. The levels of copies have none: what is asked of them here
//! has no meaning there, and is a fault of the caller, unless the method says otherwise.

use std::ops::Range;

use super::{Geometry, Level};

/// What a member holds in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The data chunk of this index, from 0.
    Data(usize),
    /// The exclusive or of the data chunks.
    P,
    /// The sum of the data chunks with the powers of two as coefficients (RAID 6).
    Q,
}

/// Where a byte of the array is in its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InRow {
    /// The row.
    pub row: u64,
    /// The index of the data chunk, from 0.
    pub index: usize,
    /// The offset in the chunk.
    pub within_bytes: u64,
}

impl Geometry {
    /// Parity chunks in a row: 0, 1 (RAID 5) or 2 (RAID 6).
    pub fn parities(&self) -> usize {
        self.level.parities()
    }

    /// Data chunks in a row.
    pub fn data_chunks(&self) -> usize {
        self.width as usize
    }

    /// How many members may be lost, whichever they are, before data is. A RAID 10 may survive
    /// more than this, if they are the right ones: see [`Self::survives`]. Any level.
    pub fn tolerance(&self) -> usize {
        match self.level {
            Level::Raid0 => 0,
            Level::Raid1 => self.members() - 1,
            Level::Raid10 | Level::Raid5 => 1,
            Level::Raid6 => 2,
        }
    }

    /// Whether all data is still there without the members for which `is_lost` says so. Any level.
    ///
    /// A RAID 10 with an odd number of members is taken to be long enough that each two
    /// neighbours, the last and the first among them, are the only ones to hold some chunk.
    pub fn survives(&self, is_lost: impl Fn(usize) -> bool) -> bool {
        let members = self.members();
        if self.level == Level::Raid10 {
            let step = if members.is_multiple_of(2) { 2 } else { 1 };
            return (0..members)
                .step_by(step)
                .all(|slot| !is_lost(slot) || !is_lost((slot + 1) % members));
        }
        (0..members).filter(|&slot| is_lost(slot)).count() <= self.tolerance()
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.component_bytes / self.unit_bytes
    }

    /// Data in a row.
    pub fn row_data_bytes(&self) -> u64 {
        self.width * self.unit_bytes
    }

    /// The row of the byte at `offset_bytes` of the array.
    pub fn row_of(&self, offset_bytes: u64) -> u64 {
        offset_bytes / self.row_data_bytes()
    }

    /// The data of a row, as a range of the array.
    pub fn row_range(&self, row: u64) -> Range<u64> {
        row * self.row_data_bytes()..(row + 1) * self.row_data_bytes()
    }

    /// Where the row's chunks begin in the data area of every member.
    pub fn row_component_offset(&self, row: u64) -> u64 {
        row * self.unit_bytes
    }

    /// The row of the byte at `component_offset_bytes` of the members' data areas.
    pub fn row_of_component(&self, component_offset_bytes: u64) -> u64 {
        component_offset_bytes / self.unit_bytes
    }

    /// Where in its row the byte at `offset_bytes` of the array is.
    pub fn in_row(&self, offset_bytes: u64) -> InRow {
        let chunk = offset_bytes / self.unit_bytes;
        InRow {
            row: chunk / self.width,
            index: (chunk % self.width) as usize,
            within_bytes: offset_bytes % self.unit_bytes,
        }
    }

    /// Where in the array the byte at `within_bytes` of a row's data chunk `index` is: the inverse
    /// of [`Self::in_row`].
    pub fn offset_of(&self, row: u64, index: usize, within_bytes: u64) -> u64 {
        debug_assert!(index < self.data_chunks() && within_bytes < self.unit_bytes);
        row * self.row_data_bytes() + index as u64 * self.unit_bytes + within_bytes
    }

    /// The member with a row's data chunk `index`, which is below [`Self::data_chunks`].
    pub fn data_slot(&self, row: u64, index: usize) -> usize {
        debug_assert!(self.copies == 1 && index < self.data_chunks());
        ((self.first_data_slot(row) + index as u64) % self.members) as usize
    }

    /// The member with a row's P. The level is a parity level.
    pub fn parity_slot(&self, row: u64) -> usize {
        debug_assert!(self.parities() > 0);
        self.p_slot(row) as usize
    }

    /// The member with a row's Q; RAID 6 has one.
    pub fn q_slot(&self, row: u64) -> Option<usize> {
        (self.parities() == 2).then(|| ((self.p_slot(row) + 1) % self.members) as usize)
    }

    /// What the member in `slot` holds in a row.
    pub fn role_of(&self, row: u64, slot: usize) -> Role {
        debug_assert!(self.copies == 1 && slot < self.members());
        let from_data = (slot as u64 + self.members - self.first_data_slot(row)) % self.members;
        match from_data.checked_sub(self.width) {
            None => Role::Data(from_data as usize),
            Some(0) => Role::P,
            Some(_) => Role::Q,
        }
    }

    /// Which byte of the array the member in `slot` holds at `component_offset_bytes` of its data
    /// area; none if that is parity, or unused. Any level.
    pub fn array_offset(&self, slot: usize, component_offset_bytes: u64) -> Option<u64> {
        if slot >= self.members() || component_offset_bytes >= self.component_bytes {
            return None;
        }
        if self.members == self.copies {
            return Some(component_offset_bytes);
        }
        let row = component_offset_bytes / self.unit_bytes;
        let within_bytes = component_offset_bytes % self.unit_bytes;
        let offset_bytes = if self.copies > 1 {
            (row * self.members + slot as u64) / self.copies * self.unit_bytes + within_bytes
        } else {
            let Role::Data(index) = self.role_of(row, slot) else { return None };
            self.offset_of(row, index, within_bytes)
        };
        (offset_bytes < self.capacity_bytes).then_some(offset_bytes)
    }

    /// The smallest range of component offsets outside of which a write of this range of the array
    /// changes nothing on any member, parity and all copies included. Any level.
    pub fn component_span(&self, offset_bytes: u64, len_bytes: u64) -> Range<u64> {
        if len_bytes == 0 {
            return 0..0;
        }
        let end_bytes = offset_bytes + len_bytes;
        if self.members == self.copies {
            return offset_bytes..end_bytes;
        }
        let (first, last) = (offset_bytes / self.unit_bytes, (end_bytes - 1) / self.unit_bytes);
        // Chunks, with all their copies, are dealt out to the places for data, row by row.
        let first_row = |chunk: u64| chunk * self.copies / self.width;
        let last_row = |chunk: u64| (chunk * self.copies + self.copies - 1) / self.width;
        // The start of a row is changed if any but the range's first chunk is in it, too.
        let start_row = first_row(first);
        let skipped = if first < last && first_row(first + 1) == start_row {
            0
        } else {
            offset_bytes % self.unit_bytes
        };
        let end_row = last_row(last);
        let kept = if first < last && last_row(last - 1) == end_row {
            self.unit_bytes
        } else {
            (end_bytes - 1) % self.unit_bytes + 1
        };
        start_row * self.unit_bytes + skipped..end_row * self.unit_bytes + kept
    }

    /// [`Self::member_range`] for the parity levels and a range that is not empty.
    pub(super) fn member_data_range(
        &self,
        slot: usize,
        offset_bytes: u64,
        end_bytes: u64,
    ) -> Range<u64> {
        let (first, last) = (self.in_row(offset_bytes), self.in_row(end_bytes - 1));
        let data_in = |row: u64| match self.role_of(row, slot) {
            Role::Data(index) => Some((row, index)),
            Role::P | Role::Q => None,
        };
        // A member has parity in at most two rows in succession.
        let start = (first.row..=last.row)
            .take(4)
            .filter_map(data_in)
            .find(|&place| place >= (first.row, first.index));
        let end = (first.row..=last.row)
            .rev()
            .take(4)
            .filter_map(data_in)
            .find(|&place| place <= (last.row, last.index));
        let (Some(start), Some(end)) = (start, end) else { return 0..0 };
        if start > end {
            return 0..0;
        }
        let skipped = if start == (first.row, first.index) { first.within_bytes } else { 0 };
        let whole = end != (last.row, last.index);
        let kept = if whole { self.unit_bytes } else { last.within_bytes + 1 };
        start.0 * self.unit_bytes + skipped..end.0 * self.unit_bytes + kept
    }

    /// The member with P: the last one in row 0, then one to the left in each row.
    fn p_slot(&self, row: u64) -> u64 {
        self.members - 1 - row % self.members
    }

    /// The member with data chunk 0.
    fn first_data_slot(&self, row: u64) -> u64 {
        match self.parities() as u64 {
            0 => 0,
            parities => (self.p_slot(row) + parities) % self.members,
        }
    }
}
