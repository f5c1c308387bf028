//! The rows of the parity levels against a picture of them that is drawn member by member.

use super::*;

const CHUNK: u32 = 4096;

/// A row as a list of roles by slot, and the array's chunk numbers in it.
struct Picture {
    level: Level,
    members: usize,
    rows: Vec<Vec<(Role, Option<u64>)>>,
}

impl Picture {
    /// Draws the left-symmetric layout by walking: the last row's P moves one to the left, and
    /// from the last parity on the next chunks are laid down to the right and round the corner.
    fn new(level: Level, members: usize, rows: usize) -> Self {
        let mut next_chunk = 0;
        let mut p = members - 1;
        let rows = (0..rows)
            .map(|_| {
                let mut row = vec![(Role::P, None); members];
                let mut at = p;
                let step = |at: &mut usize| *at = if *at + 1 == members { 0 } else { *at + 1 };
                if level == Level::Raid6 {
                    step(&mut at);
                    row[at] = (Role::Q, None);
                }
                let data = members - if level == Level::Raid6 { 2 } else { 1 };
                for index in 0..data {
                    step(&mut at);
                    row[at] = (Role::Data(index), Some(next_chunk));
                    next_chunk += 1;
                }
                p = if p == 0 { members - 1 } else { p - 1 };
                row
            })
            .collect();
        Self { level, members, rows }
    }

    fn geometry(&self) -> Geometry {
        let component = self.rows.len() as u64 * u64::from(CHUNK);
        Geometry::new(self.level, self.members, CHUNK, component + 512).unwrap()
    }
}

/// All shapes, with every member in every role at least twice.
fn pictures() -> impl Iterator<Item = Picture> {
    let levels = [Level::Raid5, Level::Raid6];
    levels.into_iter().flat_map(|level| {
        (level.min_members()..=MAX_PARITY_MEMBERS)
            .map(move |members| Picture::new(level, members, 2 * members + 1))
    })
}

/// Worked by hand from the arithmetic of Linux `drivers/md/raid5.c`, `raid5_compute_sector`, for
/// `ALGORITHM_LEFT_SYMMETRIC`: P of row r is on n - 1 - r mod n, Q on the one after it.
#[test]
fn the_picture_is_md_s() {
    let chunks = |level, members| {
        let picture = Picture::new(level, members, 5);
        let text = |&(role, chunk): &(Role, Option<u64>)| match role {
            Role::Data(_) => chunk.unwrap().to_string(),
            Role::P => "P".into(),
            Role::Q => "Q".into(),
        };
        let rows = picture.rows.iter().map(|row| row.iter().map(text).collect::<Vec<_>>());
        rows.map(|row| row.join(" ")).collect::<Vec<_>>()
    };
    let raid5 = ["0 1 2 P", "4 5 P 3", "8 P 6 7", "P 9 10 11", "12 13 14 P"];
    assert_eq!(chunks(Level::Raid5, 4), raid5);
    let raid6 = ["Q 0 1 2 P", "3 4 5 P Q", "7 8 P Q 6", "11 P Q 9 10", "P Q 12 13 14"];
    assert_eq!(chunks(Level::Raid6, 5), raid6);
}

#[test]
fn every_chunk_is_where_the_picture_has_it() {
    for picture in pictures() {
        let geometry = picture.geometry();
        let chunk_bytes = u64::from(CHUNK);
        let data = geometry.data_chunks();
        assert_eq!(data, picture.members - picture.level.parities());
        assert_eq!(geometry.rows(), picture.rows.len() as u64);
        assert_eq!(geometry.row_data_bytes(), data as u64 * chunk_bytes);
        assert_eq!(geometry.stripe_bytes(), geometry.row_data_bytes());
        assert_eq!(geometry.capacity_bytes(), geometry.rows() * geometry.row_data_bytes());
        assert_eq!((geometry.copies(), geometry.is_redundant()), (1, true));
        for (row, roles) in (0u64..).zip(&picture.rows) {
            let component = row * chunk_bytes;
            assert_eq!(geometry.row_component_offset(row), component);
            for within in [0, 1, chunk_bytes - 1] {
                assert_eq!(geometry.row_of_component(component + within), row);
            }
            let range = geometry.row_range(row);
            assert_eq!(range.end - range.start, geometry.row_data_bytes());
            for (slot, &(role, chunk)) in roles.iter().enumerate() {
                assert_eq!(geometry.role_of(row, slot), role);
                match role {
                    Role::P => assert_eq!(geometry.parity_slot(row), slot),
                    Role::Q => assert_eq!(geometry.q_slot(row), Some(slot)),
                    Role::Data(index) => assert_eq!(geometry.data_slot(row, index), slot),
                }
                for within in [0, 1, 512, chunk_bytes - 1] {
                    let offset = chunk.map(|chunk| chunk * chunk_bytes + within);
                    assert_eq!(geometry.array_offset(slot, component + within), offset);
                    let (Some(offset), Role::Data(index)) = (offset, role) else { continue };
                    assert!(range.contains(&offset));
                    assert_eq!(geometry.row_of(offset), row);
                    let in_row = InRow { row, index, within_bytes: within };
                    assert_eq!(geometry.in_row(offset), in_row);
                    assert_eq!(geometry.offset_of(row, index, within), offset);
                    let extent = geometry.extents(offset, 1).next().unwrap();
                    let place = Place { slot, offset_bytes: component + within };
                    assert_eq!((extent.place(0), extent.copies), (place, 1));
                }
            }
            assert_eq!(geometry.q_slot(row).is_some(), picture.level == Level::Raid6);
        }
        let end = geometry.component_bytes();
        assert!((0..picture.members).all(|slot| geometry.array_offset(slot, end).is_none()));
    }
}

/// Adds `at .. at + len` to the smallest range that has all that was added.
fn widen(range: &mut Range<u64>, at: u64, len: u64) {
    *range =
        if range.is_empty() { at..at + len } else { range.start.min(at)..range.end.max(at + len) };
}

/// Every range of every small shape, at every multiple of half and a quarter of a chunk.
#[test]
fn ranges_touch_what_their_blocks_touch() {
    let block = u64::from(CHUNK) / 4;
    for picture in pictures().filter(|picture| picture.members <= 7) {
        let geometry = picture.geometry();
        let blocks = geometry.capacity_bytes() / block;
        for first in 0..blocks {
            let mut members = vec![0..0; picture.members];
            let mut span = 0..0;
            let mut extents = 0;
            for end in first + 1..=blocks {
                let offset = (end - 1) * block;
                let (row, within) = (geometry.row_of(offset), offset % u64::from(CHUNK));
                let chunk = offset / u64::from(CHUNK);
                let is_chunk = |&(_, has): &(Role, Option<u64>)| has == Some(chunk);
                let slot = picture.rows[row as usize].iter().position(is_chunk).unwrap();
                let at = row * u64::from(CHUNK) + within;
                widen(&mut members[slot], at, block);
                widen(&mut span, at, block);
                extents += u64::from(end == first + 1 || within == 0);
                let (from, len) = (first * block, (end - first) * block);
                for (slot, expected) in members.iter().enumerate() {
                    let range = geometry.member_range(slot, from, len);
                    assert_eq!(&range, expected, "slot {slot} of {from}+{len} in {geometry:?}");
                }
                assert_eq!(geometry.component_span(from, len), span);
                assert_eq!(geometry.extent_count(from, len), extents);
            }
        }
    }
}

#[test]
fn extents_follow_the_chunks() {
    for picture in pictures() {
        let geometry = picture.geometry();
        for (from, cut) in [(0, 0), (512, 512), (u64::from(CHUNK) - 1, 3)] {
            let len = geometry.capacity_bytes() - from - cut;
            let mut position = 0;
            for extent in geometry.extents(from, len) {
                assert_eq!(extent.position_bytes, position);
                let InRow { row, index, within_bytes } = geometry.in_row(from + position);
                assert!(position == 0 || within_bytes == 0);
                let place = extent.place(0);
                assert_eq!(place.slot, geometry.data_slot(row, index));
                assert_eq!(place.offset_bytes, row * u64::from(CHUNK) + within_bytes);
                assert!(within_bytes + extent.len_bytes <= u64::from(CHUNK));
                position += extent.len_bytes;
            }
            assert_eq!(position, len);
        }
    }
}

#[test]
fn shards_are_whole_rows() {
    for level in [Level::Raid5, Level::Raid6] {
        for members in level.min_members()..=MAX_PARITY_MEMBERS {
            for chunk in [4096, 65_536, 1 << 20] {
                let geometry = Geometry::new(level, members, chunk, 1 << 30).unwrap();
                let (shard, row) = (geometry.shard_bytes(), geometry.row_data_bytes());
                assert!(shard >= MIN_SHARD_BYTES && shard < MIN_SHARD_BYTES + row);
                assert!(shard.is_multiple_of(row));
            }
        }
    }
}

/// For the levels of copies: the inverse and the span, block by block.
#[test]
fn copies_have_an_inverse_and_a_span() {
    let shapes = [
        (Level::Raid0, 1),
        (Level::Raid0, 3),
        (Level::Raid1, 1),
        (Level::Raid1, 3),
        (Level::Raid10, 2),
        (Level::Raid10, 3),
        (Level::Raid10, 4),
        (Level::Raid10, 5),
    ];
    for (level, members) in shapes {
        let chunk = if level == Level::Raid1 { 0 } else { 4096 };
        let geometry = Geometry::new(level, members, chunk, 7 * 4096).unwrap();
        let mut used = vec![false; members * 14];
        let blocks = geometry.capacity_bytes() / 2048;
        for first in 0..blocks {
            let mut span = 0..0;
            for end in first + 1..=blocks {
                let offset = (end - 1) * 2048;
                let extent = geometry.extents(offset, 2048).next().unwrap();
                for place in (0..extent.copies).map(|copy| extent.place(copy)) {
                    widen(&mut span, place.offset_bytes, 2048);
                    let found = geometry.array_offset(place.slot, place.offset_bytes + 5);
                    assert_eq!(found, Some(offset + 5), "{geometry:?}");
                    used[place.slot * 14 + place.offset_bytes as usize / 2048] = true;
                }
                let (from, len) = (first * 2048, (end - first) * 2048);
                assert_eq!(geometry.component_span(from, len), span, "{from}+{len} {geometry:?}");
            }
        }
        for (place, used) in used.into_iter().enumerate() {
            let (slot, at) = (place / 14, (place % 14) as u64 * 2048);
            assert_eq!(geometry.array_offset(slot, at).is_some(), used);
        }
        assert_eq!(geometry.component_span(4096, 0), 0..0);
        assert_eq!(geometry.array_offset(members, 0), None);
    }
}

/// A loss is survived if every chunk is still somewhere, or its row lacks no more than it has
/// parities.
#[test]
fn what_is_survived_is_what_leaves_every_chunk_reachable() {
    for level in [Level::Raid0, Level::Raid1, Level::Raid10, Level::Raid5, Level::Raid6] {
        for members in level.min_members()..=8 {
            let chunk = if level == Level::Raid1 { 0 } else { 4096 };
            let geometry = Geometry::new(level, members, chunk, 64 * 4096).unwrap();
            let mut least_fatal = members + 1;
            for lost in 0u32..1 << members {
                let is_lost = |slot: usize| lost >> slot & 1 == 1;
                let count = lost.count_ones() as usize;
                let survived = match level {
                    Level::Raid5 | Level::Raid6 => count <= level.parities(),
                    _ => {
                        geometry.extents(0, geometry.capacity_bytes().min(1 << 17)).all(|extent| {
                            (0..extent.copies).any(|copy| !is_lost(extent.place(copy).slot))
                        })
                    }
                };
                assert_eq!(geometry.survives(is_lost), survived, "{level} {members} {lost:b}");
                if !survived {
                    least_fatal = least_fatal.min(count);
                }
            }
            assert_eq!(geometry.tolerance() + 1, least_fatal, "{level} {members}");
        }
    }
}

#[test]
fn impossible_shapes_with_parity_are_refused_by_name() {
    let refused = |level, members, chunk, component| {
        Geometry::new(level, members, chunk, component).unwrap_err().to_string()
    };
    let gib = 1 << 30;
    assert_eq!(refused(Level::Raid5, 2, 65_536, gib), "a raid5 array has 3 to 64 members, not 2");
    assert_eq!(refused(Level::Raid6, 65, 65_536, gib), "a raid6 array has 4 to 64 members, not 65");
    assert!(refused(Level::Raid5, 3, 0, gib).contains("power of two"));
    assert!(refused(Level::Raid6, 4, 65_536, 65_535).contains("too small or too large"));
    assert!(refused(Level::Raid5, 64, 4096, u64::MAX).contains("too small or too large"));
    let largest = Geometry::new(Level::Raid5, 3, 4096, (1 << 62) - 4096).unwrap();
    let end = largest.capacity_bytes();
    assert_eq!(largest.row_of(end - 1), largest.rows() - 1);
    assert_eq!(largest.row_range(largest.rows() - 1).end, end);
}
