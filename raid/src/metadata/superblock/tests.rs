//! Parsing, refusing, round trips, and superblocks that mdadm wrote.

use super::*;
use proptest::prelude::*;

fn geometry(level: Level) -> Geometry {
    let chunk_bytes = if level == Level::Raid1 { 0 } else { 64 << 10 };
    Geometry { level, members: 4, chunk_bytes, component_bytes: 58 << 20 }
}

fn example(level: Level) -> Superblock {
    Superblock::create(&NewSuperblock {
        array_uuid: Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
        set_name: "box:fast",
        geometry: geometry(level),
        slot: 2,
        device_uuid: Uuid::from_u128(7),
        data_offset_bytes: 6 << 20,
        bad_block_log_offset_bytes: (1 << 20) + 8192,
        intent: NewIntent::None,
        in_sync: true,
        created: Timestamp(1_800_000_000),
    })
}

/// The superblock with other contents and a right checksum.
fn changed(superblock: &Superblock, change: impl FnOnce(&mut Raw)) -> [u8; SUPERBLOCK_BYTES] {
    let mut raw = superblock.raw.clone();
    change(&mut raw);
    if let Some(sum) = raw.checksum() {
        raw.sb_csum = sum.into();
    }
    zerocopy::transmute!(*raw)
}

#[test]
fn what_is_created_is_what_is_read() {
    for level in [Level::Raid0, Level::Raid1, Level::Raid10, Level::Raid5, Level::Raid6] {
        let superblock = example(level);
        let again = Superblock::parse(superblock.as_bytes()).unwrap();
        assert_eq!(again, superblock);
        assert_eq!(again.geometry(), Ok(geometry(level)));
        assert_eq!(again.set_name(), "box:fast");
        assert_eq!(again.short_name(), "fast");
        assert_eq!(again.own_role(), Role::Active(2));
        assert_eq!(again.role_of(4), Role::Spare);
        assert_eq!(again.role_of(128), Role::Faulty, "beyond the table");
        assert_eq!(again.events(), 0);
        assert_eq!(again.resync_offset(), IN_SYNC);
        assert_eq!(again.data_offset_bytes(), 6 << 20);
        let text = Summary::from(&again).to_string();
        assert!(text.starts_with("member 2 of 4 of the md array box:fast"), "{text}");
        assert!(text.contains("00112233:44556677:8899aabb:ccddeeff"), "{text}");
    }
}

/// Kernels that know of one unit only must not take it for repaired.
#[test]
fn a_log_of_several_units_is_named_as_such() {
    let place = 8192..(1 << 20) + 8192;
    let new = NewSuperblock {
        set_name: "box:fast",
        array_uuid: Uuid::from_u128(1),
        geometry: geometry(Level::Raid5),
        slot: 0,
        device_uuid: Uuid::from_u128(2),
        data_offset_bytes: 6 << 20,
        bad_block_log_offset_bytes: (1 << 20) + 8192,
        intent: NewIntent::Ppl(place.clone()),
        in_sync: true,
        created: Timestamp(1),
    };
    let made = Superblock::create(&new);
    assert_eq!(made.raw.feature_map.get(), 0x800);
    assert_eq!(made.ppl_place(), Some(place));
    assert!(made.geometry().is_ok());
}

#[test]
fn everything_that_is_used_lies_in_the_first_512_bytes() {
    let superblock = example(Level::Raid1);
    let mut state = superblock.state();
    (state.events, state.updated, state.resync_offset) = (9, Timestamp(9), 0);
    state.roles.set(127, Role::Active(1));
    let own = Own { recovery_sectors: Some(u64::MAX), has_bad_blocks: true };
    let next = superblock.with_state(&state, own);
    assert_ne!(superblock.as_bytes()[..512], next.as_bytes()[..512]);
    assert_eq!(superblock.as_bytes()[512..], next.as_bytes()[512..]);
}

#[test]
fn long_names_are_cut_at_a_character() {
    let name = "box:ääääääääääääääääääääää";
    let new = NewSuperblock {
        set_name: name,
        array_uuid: Uuid::from_u128(1),
        geometry: geometry(Level::Raid0),
        slot: 0,
        device_uuid: Uuid::from_u128(2),
        data_offset_bytes: 6 << 20,
        bad_block_log_offset_bytes: (1 << 20) + 8192,
        intent: NewIntent::None,
        in_sync: true,
        created: Timestamp(1),
    };
    let read = Superblock::create(&new).set_name();
    assert_eq!(read.len(), 30);
    assert!(name.starts_with(&read));
}

#[test]
fn does_not_believe_what_md_would_not() {
    let good = example(Level::Raid1);
    let parse = |change: fn(&mut Raw)| Superblock::parse(&changed(&good, change));
    assert_eq!(parse(|r| r.magic = 1.into()), Err(ParseError::NoMagic));
    assert_eq!(parse(|r| r.major_version = 2.into()), Err(ParseError::Version(2)));
    assert_eq!(parse(|r| r.max_dev = 1921.into()), Err(ParseError::MaxDev(1921)));
    assert_eq!(parse(|r| r.max_dev = u32::MAX.into()), Err(ParseError::MaxDev(u32::MAX)));
    assert_eq!(parse(|r| r.super_offset = 0.into()), Err(ParseError::Misplaced(0)));
    assert_eq!(parse(|r| r.pad0 = 1.into()), Err(ParseError::Padding));
    assert_eq!(parse(|r| r.pad3[27] = 1), Err(ParseError::Padding));
    let mut bytes = *good.as_bytes();
    bytes[40] ^= 1;
    assert!(matches!(Superblock::parse(&bytes), Err(ParseError::Checksum { .. })));
    assert_eq!(Superblock::parse(&[0; SUPERBLOCK_BYTES]), Err(ParseError::NoMagic));
    // Linux 6.19 and later store this; it stays as it is.
    let with_block_size = parse(|r| r.logical_block_size = 4096.into()).unwrap();
    assert_eq!(with_block_size.logical_block_size_bytes(), 4096);
}

#[test]
fn names_what_is_not_served() {
    let geometry = |level, change: fn(&mut Raw)| {
        Superblock::parse(&changed(&example(level), change)).unwrap().geometry()
    };
    let on = |level, features: Features| {
        let bytes = changed(&example(level), |r| {
            r.feature_map = features.bits().into();
            // Eight sectors behind the superblock; as a log, of 16 sectors.
            r.bitmap_offset = (8 | 16 << 16).into();
        });
        Superblock::parse(&bytes).unwrap().geometry()
    };
    let feature = |features| on(Level::Raid1, features);
    let (r0, r1, r10) = (Level::Raid0, Level::Raid1, Level::Raid10);
    let (r5, r6) = (Level::Raid5, Level::Raid6);
    for layout in [0, 1, 3, 4, 8, 16] {
        let found = |level| {
            let bytes = changed(&example(level), |r| r.layout = layout.into());
            Superblock::parse(&bytes).unwrap().geometry()
        };
        assert_eq!(found(r5), Err(NotServed::ParityLayout(r5, layout)));
        assert_eq!(found(r6), Err(NotServed::ParityLayout(r6, layout)));
    }
    assert_eq!(geometry(r1, |r| r.level = (-1).into()), Err(NotServed::Level(-1)));
    assert_eq!(geometry(r1, |r| r.level = 4.into()), Err(NotServed::Level(4)));
    for (bits, near_copies, far_copies, offset) in
        [(0x103, 3, 1, false), (0x201, 1, 2, false), (0x1_0201, 1, 2, true), (0x202, 2, 2, false)]
    {
        let bytes = changed(&example(r10), |r| r.layout = bits.into());
        let layout = Raid10Layout { near_copies, far_copies, offset, other_bits: 0 };
        let found = Superblock::parse(&bytes).unwrap().geometry();
        assert_eq!(found, Err(NotServed::Raid10Layout(layout)));
        assert_eq!(layout.to_bits(), bits);
    }
    let far_sets = geometry(r10, |r| r.layout = 0x2_0102.into());
    assert!(matches!(far_sets, Err(NotServed::Raid10Layout(l)) if l.other_bits == 0x2_0000));
    assert_eq!(geometry(r0, |r| r.layout = 3.into()), Err(NotServed::Raid0Layout(3)));
    assert_eq!(feature(Features::RESHAPE_ACTIVE), Err(NotServed::Reshape));
    assert_eq!(feature(Features::RESHAPE_BACKWARDS), Err(NotServed::Reshape));
    assert_eq!(feature(Features::NEW_OFFSET), Err(NotServed::NewOffset));
    for (features, what) in [
        (Features::BITMAP_OFFSET, "a write-intent bitmap"),
        (Features::BAD_BLOCKS, "bad blocks"),
        (Features::RECOVERY_OFFSET, "a rebuild under way"),
        (Features::RECOVERY_OFFSET | Features::RECOVERY_BITMAP, "a rebuild under way"),
    ] {
        assert_eq!(on(r0, features), Err(NotServed::NotOnRaid0(what)));
        if features != Features::BITMAP_OFFSET {
            assert!(on(r5, features).is_ok());
        }
    }
    assert_eq!(feature(Features::REPLACEMENT), Err(NotServed::Replacement));
    assert_eq!(feature(Features::CLUSTERED), Err(NotServed::Clustered));
    assert_eq!(feature(Features::JOURNAL), Err(NotServed::Journal));
    for ppl in [Features::PPL, Features::MULTIPLE_PPLS] {
        assert_eq!(feature(ppl), Err(NotServed::Ppl));
        assert_eq!(on(r6, ppl), Err(NotServed::Ppl));
        assert!(on(r5, ppl).is_ok());
        assert_eq!(on(r5, ppl | Features::BITMAP_OFFSET), Err(NotServed::Ppl));
    }
    assert_eq!(on(r5, Features::PPL | Features::MULTIPLE_PPLS), Err(NotServed::Ppl));
    assert_eq!(feature(Features::RAID0_LAYOUT), Err(NotServed::UnknownFeatures(4096)));
    let unknown = Features::from_bits_retain(1 << 13);
    assert_eq!(feature(unknown), Err(NotServed::UnknownFeatures(1 << 13)));
    for sectors in [0u32, 1, 7, 12, 4096, u32::MAX] {
        let bytes = changed(&example(r0), |r| r.chunksize = sectors.into());
        let found = Superblock::parse(&bytes).unwrap().geometry();
        assert_eq!(found, Err(NotServed::Chunk(u64::from(sectors) * 512)));
    }
    assert!(matches!(geometry(r1, |r| r.raid_disks = 0.into()), Err(NotServed::MemberCount(..))));
    assert!(matches!(geometry(r10, |r| r.raid_disks = 1.into()), Err(NotServed::MemberCount(..))));
    assert!(matches!(geometry(r1, |r| r.raid_disks = 129.into()), Err(NotServed::MemberCount(..))));
    assert_eq!(geometry(r1, |r| r.max_dev = 129.into()), Err(NotServed::RoleTable(129)));
    assert!(matches!(geometry(r1, |r| r.size = 0.into()), Err(NotServed::Sizes(_))));
    assert!(matches!(geometry(r1, |r| r.size = u64::MAX.into()), Err(NotServed::Sizes(_))));
    assert!(matches!(geometry(r0, |r| r.data_size = u64::MAX.into()), Err(NotServed::Sizes(_))));
    assert!(matches!(geometry(r0, |r| r.data_offset = 15.into()), Err(NotServed::Sizes(_))));
    assert!(matches!(
        geometry(r0, |r| {
            r.data_size = (u64::MAX / 1024).into();
            r.data_offset = 64.into();
        }),
        Err(NotServed::Sizes(_))
    ));
}

#[test]
fn array_sizes_by_level() {
    let size = |level, members| {
        let chunk_bytes = if level == Level::Raid1 { 0 } else { 4096 };
        Geometry { level, members, chunk_bytes, component_bytes: 3 * 4096 }.array_bytes() / 4096
    };
    assert_eq!(size(Level::Raid0, 4), 12);
    assert_eq!(size(Level::Raid1, 3), 3);
    assert_eq!(size(Level::Raid10, 4), 6);
    // Nine chunks, of which eight make pairs.
    assert_eq!(size(Level::Raid10, 3), 4);
    assert_eq!(size(Level::Raid5, 4), 9);
    assert_eq!(size(Level::Raid6, 4), 6);
}

#[test]
fn uuids_in_mds_form() {
    let uuid = Uuid::from_u128(0x3aaa_0122_2982_7cfa_5331_ad66_ca76_7371);
    assert_eq!(MdUuid(uuid).to_string(), "3aaa0122:29827cfa:5331ad66:ca767371");
    assert_eq!(MdUuid::parse("3aaa0122:29827cfa:5331ad66:ca767371"), Some(uuid));
    assert_eq!(MdUuid::parse("3aaa0122-2982-7cfa-5331-ad66ca767371"), Some(uuid));
    assert_eq!(MdUuid::parse("3aaa0122:29827cfa:5331ad66"), None);
}

/// A superblock that mdadm 4.4 wrote under Linux 6.12, after the array had run.
fn golden(name: &str) -> Superblock {
    let path = format!("{}/src/metadata/superblock/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    Superblock::parse(bytes.as_slice().try_into().unwrap()).unwrap()
}

#[test]
fn reads_what_mdadm_wrote() {
    for (name, level, members) in
        [("raid0", Level::Raid0, 4), ("raid1", Level::Raid1, 2), ("raid10", Level::Raid10, 4)]
    {
        let all: Vec<_> =
            (0..members).map(|slot| golden(&format!("{name}-{slot}.superblock"))).collect();
        for (slot, superblock) in (0u16..).zip(&all) {
            let geometry = superblock.geometry().unwrap();
            assert_eq!((geometry.level, geometry.members), (level, members));
            let chunk_bytes = if level == Level::Raid1 { 0 } else { 64 << 10 };
            assert_eq!(geometry.chunk_bytes, chunk_bytes);
            assert_eq!(superblock.own_role(), Role::Active(slot));
            assert_eq!(superblock.set_name(), "initiator:golden");
            assert_eq!(superblock.resync_offset(), IN_SYNC);
            assert!(superblock.same_array(&all[0]));
        }
    }
}

/// Ours and mdadm's for the same array: what differs is what each has chosen, and no more.
#[test]
fn writes_what_mdadm_would() {
    for (name, level) in
        [("raid0", Level::Raid0), ("raid1", Level::Raid1), ("raid10", Level::Raid10)]
    {
        let theirs = golden(&format!("{name}-1.superblock"));
        let mut ours = Superblock::create(&NewSuperblock {
            array_uuid: theirs.array_uuid(),
            set_name: &theirs.set_name(),
            geometry: theirs.geometry().unwrap(),
            slot: 1,
            device_uuid: theirs.device_uuid(),
            data_offset_bytes: theirs.data_offset_bytes(),
            bad_block_log_offset_bytes: SUPERBLOCK_OFFSET_BYTES
                + u64::try_from(theirs.raw.bblog_offset.get()).unwrap() * SECTOR_BYTES,
            intent: NewIntent::None,
            in_sync: true,
            created: theirs.created(),
        });
        // The time and the count of updates; unused roles, which md calls faulty once it
        // has run an array and mdadm calls spares when it creates one; the space behind
        // the last whole chunk.
        ours.raw.utime = theirs.raw.utime;
        ours.raw.events = theirs.raw.events;
        ours.raw.dev_roles = theirs.raw.dev_roles;
        ours.raw.data_size = theirs.raw.data_size;
        ours.raw.ctime = theirs.raw.ctime;
        ours.seal();
        assert_eq!(ours.raw, theirs.raw, "{level}");
    }
}

#[test]
fn names_what_mdadm_made_and_we_do_not_serve() {
    let far = Raid10Layout { near_copies: 1, far_copies: 2, offset: false, other_bits: 0 };
    let expected = [
        None,
        Some(NotServed::Raid10Layout(far)),
        Some(NotServed::Raid10Layout(Raid10Layout { offset: true, ..far })),
        None,
        None,
    ];
    for (i, reason) in expected.into_iter().enumerate() {
        let superblock = golden(&format!("other-{}.superblock", i + 1));
        assert_eq!(superblock.geometry().err(), reason);
    }
    // The first has a bitmap, right behind its superblock.
    let bitmap = golden("other-1.superblock").bitmap_place().unwrap();
    assert_eq!(bitmap.start, 8192);
    for (i, level) in [(4, Level::Raid5), (5, Level::Raid6)] {
        let superblock = golden(&format!("other-{i}.superblock"));
        assert_eq!(superblock.geometry().map(|g| g.level), Ok(level));
        assert!(superblock.bad_block_place().is_some());
        println!(
            "{i}: {:?} {:?} {:?}",
            superblock.features(),
            superblock.bitmap_place(),
            superblock.recovery_sectors()
        );
    }
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), SUPERBLOCK_BYTES)) {
        let _ = Superblock::parse(bytes.as_slice().try_into().unwrap());
    }

    /// Random fields behind a right magic and checksum: everything that asks is safe.
    #[test]
    fn nothing_with_a_right_checksum_makes_it_panic(
        bytes in proptest::collection::vec(any::<u8>(), 256),
        keep in any::<u16>(),
    ) {
        let mut whole = *example(Level::Raid10).as_bytes();
        // Any sixteen-byte pieces of the fixed part.
        for (i, piece) in bytes.chunks(16).enumerate() {
            if keep >> i & 1 == 1 {
                whole[16 * i..16 * i + 16].copy_from_slice(piece);
            }
        }
        let mut raw: Raw = zerocopy::transmute!(whole);
        raw.magic = MAGIC.into();
        raw.major_version = 1.into();
        raw.pad0 = 0.into();
        raw.pad3 = [0; 28];
        raw.super_offset = 8.into();
        raw.max_dev = (raw.max_dev.get() % 1921).into();
        raw.sb_csum = raw.checksum().unwrap().into();
        let superblock = Superblock::parse(&zerocopy::transmute!(raw)).unwrap();
        let geometry = superblock.geometry();
        if let Ok(geometry) = geometry {
            prop_assert!(geometry.array_bytes() > 0);
            prop_assert!(geometry.members <= MAX_DEVICES);
        }
        let _ = (superblock.own_role(), superblock.short_name(), superblock.features());
        let _ = Summary::from(&superblock).to_string();
        prop_assert_eq!(&Superblock::parse(superblock.as_bytes()).unwrap(), &superblock);
    }

    /// No bit that counts can flip unnoticed.
    #[test]
    fn flipped_bits_are_noticed(bit in 0usize..512 * 8) {
        let mut bytes = *example(Level::Raid1).as_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Superblock::parse(&bytes).is_err());
    }

    #[test]
    fn raid10_layouts_round_trip(bits in any::<u32>()) {
        prop_assert_eq!(Raid10Layout::from_bits(bits).to_bits(), bits);
    }
}

/// Where bitmap, log and bad-block log lie; and that none of them may lie in anything else.
#[test]
fn places_before_the_data() {
    let place = |features: Features, offset: u32, find: fn(&Superblock) -> Option<Range<u64>>| {
        let bytes = changed(&example(Level::Raid5), |r| {
            r.feature_map = features.bits().into();
            r.bitmap_offset = offset.into();
        });
        find(&Superblock::parse(&bytes).unwrap())
    };
    const LOG: u64 = (1 << 20) + 8192;
    let bitmap = |offset| place(Features::BITMAP_OFFSET, offset, Superblock::bitmap_place);
    assert_eq!(bitmap(8), Some(8192..LOG), "up to the bad-block log");
    assert_eq!(bitmap(2064), Some(LOG + 4096..6 << 20), "up to the data");
    // In the superblock's own block (where md puts one that was added later), across blocks,
    // before it, behind the data.
    for offset in [0, 2, 12, u32::MAX - 15, 12280, 20000] {
        assert_eq!(bitmap(offset), None, "{offset}");
    }
    let ppl =
        |offset: u32, size: u32| place(Features::PPL, offset | size << 16, Superblock::ppl_place);
    assert_eq!(ppl(8, 2048), Some(8192..LOG));
    for (offset, size) in [(8, 8), (8, 0), (2, 2048), (0xfff8, 2048), (8, 12288), (9, 2048)] {
        assert_eq!(ppl(offset, size), None, "{offset} {size}");
    }
    let with_log = example(Level::Raid5);
    assert_eq!(with_log.bad_block_place(), Some(LOG..LOG + 4096));
    for (size, offset) in [(8u16, 0i32), (16, 2064), (8, 4), (8, -8), (8, 12281)] {
        let bytes = changed(&with_log, |r| {
            r.bblog_size = size.into();
            r.bblog_offset = offset.into();
        });
        assert_eq!(Superblock::parse(&bytes).unwrap().bad_block_place(), None, "{offset}");
    }
}

proptest! {
    /// Converting a position to md's units and back never claims more.
    #[test]
    fn positions_never_grow(
        level in proptest::sample::select(vec![Level::Raid1, Level::Raid10, Level::Raid5, Level::Raid6]),
        members in 4usize..9,
        chunk_shift in 12u32..=20,
        component_mib in 1u64..5000,
        part in 0.0f64..1.1,
    ) {
        let chunk_bytes = if level == Level::Raid1 { 0 } else { 1 << chunk_shift };
        let component_bytes = component_mib << 20;
        let geometry = Geometry { level, members, chunk_bytes, component_bytes };
        let position = (geometry.array_bytes() as f64 * part) as u64;
        let row = chunk_bytes.max(512) * members as u64;
        let resync = geometry.resync_bytes(geometry.resync_sectors(position));
        let resync = resync.unwrap_or(geometry.array_bytes());
        prop_assert!(resync <= position && position.min(geometry.array_bytes()) - resync < row);
        let rebuild = geometry.recovery_bytes(geometry.recovery_sectors(position));
        prop_assert!(rebuild <= position && position.min(geometry.array_bytes()) - rebuild < 2 * row);
        if position >= geometry.array_bytes() {
            prop_assert_eq!(geometry.recovery_sectors(position), component_bytes / 512);
        }
        let engine = crate::geometry::Geometry::new(
            level.into(), members, chunk_bytes as u32, component_bytes).unwrap();
        prop_assert_eq!(engine.capacity_bytes(), geometry.array_bytes());
        // What lies before the position in the array lies before the place on each member, and
        // what lies before the place, before the position after it.
        let place = geometry.to_component(rebuild);
        for slot in 0..members {
            if level != Level::Raid5 && level != Level::Raid6 && rebuild > 0 {
                prop_assert!(engine.member_range(slot, 0, rebuild).end <= place + row);
            }
        }
    }
}
