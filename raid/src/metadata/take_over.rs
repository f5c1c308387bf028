//! What is written to members before an array is used, beside what its superblocks say: bitmaps,
//! logs and maps that are not there, not whole, or void. Pure.
//!
//! This is done at every start, after the logs have been replayed and before anybody writes data;
//! and for a drive that is added, before it gets its role. All of it is in places that nothing else
//! uses, and none of it is believed before it is whole:
//!
//! * **bitmap**: all members get the same bits, those of all members together; a member whose bits
//!   are those already gets its first block only, and that only if the count in it is not far
//!   enough ahead ([`super::bitmap`]), or the bits are to count for younger members only;
//! * **partial parity log** and **write log**: a member without a whole one gets an empty one, with
//!   everything cleared that could be taken for an old unit;
//! * **degraded-write map**: a member without a whole one gets a new one;
//! * a **private area that is void** gets all of that anew, and then a header that counts.

use super::bitmap::{BLOCK_BYTES, Bitmap, EVENTS_AHEAD, EVENTS_MARGIN};
use super::private::{PrivateArea, SectionKind, header_offset_bytes};
use super::record::{Effect, MetadataWrite, Replica};
use super::{ppl, write_log};
use std::ops::Range;

/// What of all this is on a member and whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Its bitmap, if it counts.
    pub bitmap: Option<Bitmap>,
    /// Its partial parity log begins with a header of this array.
    pub ppl: bool,
    /// Its write log begins with a mark of this array.
    pub write_log: bool,
    /// Its degraded-write map, if it is this array's.
    pub degraded_map: Option<Bitmap>,
}

/// What all members shall have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Common {
    /// The bitmap, if the array has one.
    pub bitmap: Option<Bitmap>,
    /// The degraded-write map for members that have a place for one.
    pub degraded_map: Option<Bitmap>,
}

impl Common {
    /// Sees to it that the bitmap's count of events is far enough ahead of the superblocks', which
    /// is `events`: whoever writes the bitmap's first block from now on writes this count, too.
    pub fn raise_events(&mut self, events: u64) {
        if let Some(bitmap) = &mut self.bitmap
            && !is_ahead(bitmap.superblock.events(), events)
        {
            let ahead = events.saturating_add(EVENTS_AHEAD);
            bitmap.superblock = bitmap.superblock.with_events(ahead);
        }
    }
}

/// Whether a bitmap with this count of events is good for a whole run of the array.
fn is_ahead(bitmap_events: u64, events: u64) -> bool {
    bitmap_events >= events.saturating_add(EVENTS_MARGIN)
}

/// The writes that give the member in `slot` what it lacks, after [`Common::raise_events`].
#[must_use]
pub fn plan_take_over(
    slot: usize,
    replica: &Replica,
    kept: &Kept,
    common: &Common,
) -> Vec<MetadataWrite> {
    let mut writes = Writes { slot, writes: Vec::new() };
    let superblock = &replica.superblock;
    let uuid = superblock.array_uuid();
    if let (Some(place), Some(common)) = (superblock.bitmap_place(), &common.bitmap) {
        let its_events = kept.bitmap.as_ref().map_or(0, |bitmap| bitmap.superblock.events());
        let is_ahead = is_ahead(its_events, superblock.events());
        let has_bits = kept.bitmap.as_ref().is_some_and(|kept| kept.regions == common.regions);
        // Who left before that misses more than the bits say.
        let cleared = common.superblock.events_cleared();
        let knows_since =
            kept.bitmap.as_ref().is_some_and(|kept| kept.superblock.events_cleared() >= cleared);
        if !is_ahead || !has_bits || !knows_since {
            let blocks = if has_bits { 1 } else { usize::MAX };
            // The head last: without it the bits do not count.
            let blocks: Vec<_> = common.blocks().into_iter().take(blocks).collect();
            for (index, block) in blocks.into_iter().enumerate().rev() {
                writes.put(place.start + (index * BLOCK_BYTES) as u64, block);
            }
        }
    }
    if let Some(place) = superblock.ppl_place().filter(|_| !kept.ppl) {
        writes.clear(&(place.start + BLOCK_BYTES as u64..place.end));
        let header = ppl::Header::empty(ppl::signature(uuid.into_bytes()), 0);
        writes.put(place.start, header.to_bytes());
    }
    let is_void = matches!(replica.private, PrivateArea::Void { .. });
    let Some(header) = replica.private.header() else { return writes.writes };
    if let Some(place) = header.place(SectionKind::WriteLog)
        && (is_void || !kept.write_log)
    {
        writes.new_write_log(&place, uuid.into_bytes());
    }
    if let (Some(place), Some(map)) =
        (header.place(SectionKind::DegradedWriteMap), &common.degraded_map)
        && (is_void || kept.degraded_map.is_none())
    {
        for (index, block) in map.blocks().into_iter().enumerate().rev() {
            let offset = place.start + (index * BLOCK_BYTES) as u64;
            if offset < place.end {
                writes.put(offset, block);
            }
        }
    }
    if let Some((header, copy)) = replica.private.restored(superblock)
        && let Some(offset_bytes) = header_offset_bytes(superblock.data_offset_bytes(), copy)
    {
        let bytes = header.to_bytes();
        let effect = Effect::NewHeader(header, copy);
        writes.writes.push(MetadataWrite { member: slot, offset_bytes, bytes, effect });
    }
    writes.writes
}

struct Writes {
    slot: usize,
    writes: Vec<MetadataWrite>,
}

impl Writes {
    fn put(&mut self, offset_bytes: u64, bytes: Box<[u8; BLOCK_BYTES]>) {
        let (member, effect) = (self.slot, Effect::Other);
        self.writes.push(MetadataWrite { member, offset_bytes, bytes, effect });
    }

    fn clear(&mut self, place: &Range<u64>) {
        for offset in place.clone().step_by(BLOCK_BYTES) {
            self.put(offset, Box::new([0; BLOCK_BYTES]));
        }
    }

    /// A log without units: nothing in any place, then the mark.
    fn new_write_log(&mut self, place: &Range<u64>, array_uuid: [u8; 16]) {
        let len = place.end - place.start;
        for number in 0..write_log::Places::new(len).map_or(0, write_log::Places::count) {
            let Some(places) = write_log::Places::new(len) else { break };
            self.put(place.start + places.offset_bytes(number), Box::new([0; BLOCK_BYTES]));
        }
        let slot = u32::try_from(self.slot).unwrap_or(u32::MAX);
        let mut block = Box::new([0; BLOCK_BYTES]);
        write_log::Unit::mark(array_uuid, 0, slot).put(&mut block[..]);
        self.put(place.start, block);
    }
}
