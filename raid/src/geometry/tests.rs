use super::*;
use proptest::prelude::*;

/// md's mapping, written out block by block and copy by copy without any arithmetic on whole
/// stripes: chunks are dealt to (member, row) places one after the other.
struct Reference {
    /// For each chunk (for RAID 1: each block), the places of its copies.
    chunks: Vec<Vec<(usize, u64)>>,
    chunk_bytes: u64,
}

impl Reference {
    fn new(level: Level, members: usize, chunk_bytes: u64, component_bytes: u64) -> Self {
        let unit = if level == Level::Raid1 { 512 } else { chunk_bytes };
        let rows = component_bytes / unit;
        let mut places = Vec::new();
        for row in 0..rows {
            for member in 0..members {
                places.push((member, row * unit));
            }
        }
        let copies = match level {
            Level::Raid1 => members,
            Level::Raid10 => 2,
            // The parity levels have a picture of their own.
            Level::Raid0 | Level::Raid5 | Level::Raid6 => 1,
        };
        let chunks = places.chunks_exact(copies).map(<[_]>::to_vec).collect();
        Self { chunks, chunk_bytes: unit }
    }

    fn capacity(&self) -> u64 {
        self.chunks.len() as u64 * self.chunk_bytes
    }

    /// The places of the block of 512 bytes at `offset`.
    fn block(&self, offset: u64) -> Vec<(usize, u64)> {
        let within = offset % self.chunk_bytes;
        let places = &self.chunks[(offset / self.chunk_bytes) as usize];
        places.iter().map(|&(member, start)| (member, start + within)).collect()
    }
}

fn arrays() -> impl Strategy<Value = (Level, usize, u32, u64)> {
    let level = prop_oneof![Just(Level::Raid0), Just(Level::Raid1), Just(Level::Raid10)];
    (level, 1usize..=16, 12u32..=20, 1u64..12, 0u64..8).prop_map(
        |(level, members, chunk_log, rows, extra)| {
            let members = if level == Level::Raid10 { members.max(2) } else { members };
            // RAID 1 in the reference is block by block, so keep it small.
            let (chunk, unit) = match level {
                Level::Raid1 => (0, 200 * 512),
                _ => (1 << chunk_log, 1 << chunk_log),
            };
            (level, members, chunk, rows * unit + extra * 512)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn it_maps_every_block_as_md_does(
        (level, members, chunk, component) in arrays(),
        from in any::<prop::sample::Index>(),
        blocks in 0u64..6000,
    ) {
        let reference = Reference::new(level, members, u64::from(chunk), component);
        let geometry = Geometry::new(level, members, chunk, component).unwrap();
        prop_assert_eq!(geometry.capacity_bytes(), reference.capacity());
        let capacity_blocks = reference.capacity() / 512;
        let from = from.index(capacity_blocks as usize + 1) as u64;
        let blocks = blocks.min(capacity_blocks - from);
        let (offset, len) = (from * 512, blocks * 512);

        let mut position = 0;
        let mut count = 0;
        let mut touched: Vec<Vec<u64>> = vec![Vec::new(); members];
        for extent in geometry.extents(offset, len) {
            prop_assert_eq!(extent.position_bytes, position);
            prop_assert!(extent.len_bytes > 0);
            prop_assert_eq!(extent.copies, geometry.copies());
            for block in (0..extent.len_bytes).step_by(512) {
                let places: Vec<(usize, u64)> = (0..extent.copies)
                    .map(|copy| extent.place(copy))
                    .map(|place| (place.slot, place.offset_bytes + block))
                    .collect();
                prop_assert_eq!(&places, &reference.block(offset + position + block));
                for (slot, at) in places {
                    prop_assert!(at + 512 <= geometry.component_bytes());
                    touched[slot].push(at);
                }
            }
            position += extent.len_bytes;
            count += 1;
        }
        prop_assert_eq!(position, len);
        prop_assert_eq!(geometry.extent_count(offset, len), count);
        for (slot, mut blocks) in touched.into_iter().enumerate() {
            blocks.sort_unstable();
            let range = geometry.member_range(slot, offset, len);
            let expected: Vec<u64> = range.step_by(512).collect();
            prop_assert_eq!(blocks, expected, "slot {}", slot);
        }
    }

    #[test]
    fn shards_cover_the_array_once((level, members, chunk, component) in arrays(), cores in 1usize..8) {
        let geometry = Geometry::new(level, members, chunk, component * 64).unwrap();
        prop_assert!(geometry.shard_bytes() >= MIN_SHARD_BYTES);
        prop_assert_eq!(geometry.shard_bytes() % geometry.stripe_bytes(), 0);
        let mut end = 0;
        for shard in 0..geometry.shard_count() {
            let range = geometry.shard_range(shard);
            prop_assert_eq!(range.start, end);
            prop_assert!(range.end > range.start);
            prop_assert_eq!(geometry.shard_of(range.start), shard);
            prop_assert_eq!(geometry.shard_of(range.end - 1), shard);
            prop_assert!(geometry.owner(shard, cores) < cores);
            let (len, first) = geometry.first_shard(range.start, u64::MAX / 2);
            prop_assert_eq!(first, shard);
            prop_assert!(len >= range.end - range.start);
            end = range.end;
        }
        prop_assert_eq!(end, geometry.capacity_bytes());
        prop_assert!(geometry.shard_range(geometry.shard_count()).is_empty());
    }
}

/// Worked by hand from md's description of the near layout with three members:
/// ```text
/// member  0   1   2
/// row 0   A   A   B
/// row 1   B   C   C
/// row 2   D   D   E
/// row 3   E   F   F
/// ```
#[test]
fn raid10_of_three_members() {
    let chunk = 65_536;
    let geometry = Geometry::new(Level::Raid10, 3, chunk, 4 * 65_536).unwrap();
    let chunk = u64::from(chunk);
    assert_eq!(geometry.capacity_bytes(), 6 * chunk);
    let places: Vec<[(usize, u64); 2]> = geometry
        .extents(0, 6 * chunk)
        .map(|extent| [0, 1].map(|copy| extent.place(copy)))
        .map(|places| places.map(|place| (place.slot, place.offset_bytes / chunk)))
        .collect();
    let expected = [
        [(0, 0), (1, 0)],
        [(2, 0), (0, 1)],
        [(1, 1), (2, 1)],
        [(0, 2), (1, 2)],
        [(2, 2), (0, 3)],
        [(1, 3), (2, 3)],
    ];
    assert_eq!(places, expected);
}

/// With an odd number of places the last one stays unused, as in md.
#[test]
fn raid10_of_three_members_with_an_odd_number_of_rows() {
    let geometry = Geometry::new(Level::Raid10, 3, 4096, 5 * 4096 + 100).unwrap();
    assert_eq!(geometry.component_bytes(), 5 * 4096);
    assert_eq!(geometry.capacity_bytes(), 7 * 4096);
}

/// Where the mapping is the identity, a range is one extent whatever the chunk: large requests
/// reach the members as they are.
#[test]
fn full_copies_are_not_cut_into_chunks() {
    for (level, members, chunk) in
        [(Level::Raid1, 4, 0), (Level::Raid10, 2, 4096), (Level::Raid0, 1, 4096)]
    {
        let geometry = Geometry::new(level, members, chunk, 1 << 30).unwrap();
        let extents: Vec<Extent> = geometry.extents(512, 10 << 20).collect();
        assert_eq!(extents.len(), 1, "{level}");
        assert_eq!(extents[0].len_bytes, 10 << 20);
    }
}

#[test]
fn impossible_shapes_are_refused_by_name() {
    let refused = |level, members, chunk, component| {
        Geometry::new(level, members, chunk, component).unwrap_err().to_string()
    };
    let gib = 1 << 30;
    assert_eq!(
        refused(Level::Raid10, 1, 65_536, gib),
        "a raid10 array has 2 to 256 members, not 1"
    );
    assert!(refused(Level::Raid0, 0, 65_536, gib).contains("1 to 256"));
    assert!(refused(Level::Raid0, 257, 65_536, gib).contains("not 257"));
    for chunk in [0, 2048, 5000, 2 << 20] {
        assert!(refused(Level::Raid0, 2, chunk, gib).contains("power of two"), "{chunk}");
    }
    assert!(refused(Level::Raid1, 2, 65_536, gib).contains("leave the chunk size out"));
    assert!(refused(Level::Raid0, 2, 65_536, 65_535).contains("too small or too large"));
    assert!(refused(Level::Raid0, 256, 4096, u64::MAX).contains("too small or too large"));
    assert!(refused(Level::Raid1, 2, 0, 511).contains("too small or too large"));
}

#[test]
fn ranges_beyond_the_end_are_not_contained() {
    let geometry = Geometry::new(Level::Raid1, 2, 0, 1 << 20).unwrap();
    assert!(geometry.contains(0, 1 << 20));
    assert!(geometry.contains(1 << 20, 0));
    assert!(!geometry.contains(512, 1 << 20));
    assert!(!geometry.contains(u64::MAX, 2));
}
