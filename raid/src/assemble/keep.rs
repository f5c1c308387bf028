//! The bitmap and the map of all members as one. Pure.
//!
//! A bit is set on every member that is written before the write is submitted. A member that could
//! not take it has failed, but a crash may have come before that was recorded: so what counts is
//! every bit that any member in sync has.
//!
//! **Since when they tell.** The count up to which bits were cleared says what the bits tell of a
//! member that was lost: all, if it had that count or a newer one. While nobody is recorded as lost
//! every member has the newest superblock's count, so that is the count of whoever is lost next.
//! What has an older one is an image from before (a backup, half of a mirror), and lacks what was
//! written and cleared after it: the count is raised to the newest one.

use super::examine::Examined;
use super::standing::Standing;
use crate::metadata::bitmap::{
    Bitmap, BitmapState, BitmapSuperblock, MapUnit, NewBitmap, RegionMap, region_bytes_for,
};
use crate::metadata::layout::degraded_map_region_bytes;

fn in_sync<'s>(standing: &'s Standing<'_>) -> impl Iterator<Item = &'s Examined> {
    standing.slots.iter().flatten().filter(|c| !c.is_rebuilding()).map(|c| c.drive)
}

/// All bits together; None if there are none, or they do not fit together.
fn join<'a>(mut bitmaps: impl Iterator<Item = &'a Bitmap>) -> Option<Bitmap> {
    let mut joined = bitmaps.next()?.clone();
    for bitmap in bitmaps {
        joined.regions.union(&bitmap.regions).ok()?;
        // What one member's bits do not tell, all bits do not.
        let cleared = joined.superblock.events_cleared().max(bitmap.superblock.events_cleared());
        let state = joined.superblock.state() | bitmap.superblock.state();
        joined.superblock = joined.superblock.with_events_cleared(cleared).with_state(state);
    }
    Some(joined)
}

/// The bitmap of the members in sync, if it tells what may be inconsistent.
pub(super) fn counting_bitmap(standing: &Standing<'_>) -> Option<Bitmap> {
    let mut bitmap = join(in_sync(standing).filter_map(|drive| drive.kept.bitmap.as_ref()))?;
    let newest = standing.newest.events();
    if bitmap.superblock.events_cleared() < newest && !is_one_lost(standing) {
        bitmap.superblock = bitmap.superblock.with_events_cleared(newest);
    }
    Some(bitmap)
}

/// Whether it is recorded that a slot has no member.
fn is_one_lost(standing: &Standing<'_>) -> bool {
    let roles = standing.newest.superblock.roles();
    let has_holder =
        |slot: usize| u16::try_from(slot).is_ok_and(|slot| roles.holders(slot).next().is_some());
    !(0..standing.geometry.members).all(has_holder)
}

/// The array's bitmap: as it counts, or else with every bit set.
pub(super) fn bitmap(standing: &Standing<'_>) -> Option<Bitmap> {
    if let Some(bitmap) = counting_bitmap(standing) {
        return Some(bitmap);
    }
    let found = in_sync(standing).filter_map(|drive| drive.bitmap.as_ref()?.as_ref().ok());
    let room = in_sync(standing).filter_map(|drive| drive.superblock()?.bitmap_place());
    let room_bytes = room.map(|place| place.end - place.start).min()?;
    let covered_bytes = standing.geometry.mapped_bytes();
    let region_bytes = match found.map(|bitmap| bitmap.superblock.region_bytes()).max() {
        // As whoever made it has chosen.
        Some(region_bytes) => u32::try_from(region_bytes).ok()?,
        None => region_bytes_for(covered_bytes, room_bytes),
    };
    let superblock = fresh(standing, covered_bytes, region_bytes);
    (superblock.bitmap_bytes() <= room_bytes).then(|| all_set(standing, superblock))
}

/// The array's degraded-write map, if its members have a place for one: as it is on those where it
/// kept, or else new: empty, and stale.
pub(super) fn degraded_map(standing: &Standing<'_>) -> Option<Bitmap> {
    use crate::metadata::private::SectionKind::DegradedWriteMap;
    let headers = in_sync(standing).filter_map(|drive| drive.private.header());
    let mut headers = headers.filter(|header| header.place(DegradedWriteMap).is_some());
    let header = headers.next()?;
    let maps = || in_sync(standing).map(|drive| drive.kept.degraded_map.as_ref());
    if maps().all(|map| map.is_some())
        && let Some(map) = join(maps().flatten())
    {
        return Some(map);
    }
    let geometry = &standing.geometry;
    let region_bytes = degraded_map_region_bytes(geometry, header.private_bytes);
    let superblock = fresh(standing, geometry.mapped_bytes(), region_bytes);
    // As long as nobody is missing there is nothing in it; and if somebody is, nobody knows what.
    let superblock = superblock.with_state(BitmapState::STALE);
    let unit = MapUnit::of(geometry.level);
    let regions = RegionMap::empty(unit, superblock.covered_bytes(), superblock.region_bytes());
    Some(Bitmap { superblock, regions })
}

fn fresh(standing: &Standing<'_>, covered_bytes: u64, region_bytes: u32) -> BitmapSuperblock {
    let array_uuid = standing.newest.superblock.array_uuid();
    let events = standing.newest.events();
    BitmapSuperblock::create(&NewBitmap { array_uuid, covered_bytes, region_bytes, events })
}

fn all_set(standing: &Standing<'_>, superblock: BitmapSuperblock) -> Bitmap {
    let unit = MapUnit::of(standing.geometry.level);
    let mut regions = RegionMap::empty(unit, superblock.covered_bytes(), superblock.region_bytes());
    regions.fill();
    Bitmap { superblock, regions }
}
