//! Round trips, damage, and when a header is believed.

use super::*;
use crate::array::{MemberState, Wanted};
use crate::metadata::record::{Before, Replica, plan_record};
use crate::metadata::superblock::{Geometry, NewIntent, NewSuperblock};
use crate::metadata::{Level, Timestamp};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn superblock(device: u128) -> Superblock {
    Superblock::create(&NewSuperblock {
        array_uuid: Uuid::from_u128(1),
        set_name: "fast",
        geometry: Geometry {
            level: Level::Raid1,
            members: 1,
            chunk_bytes: 0,
            component_bytes: 58 * MIB,
        },
        slot: 0,
        device_uuid: Uuid::from_u128(device),
        data_offset_bytes: 6 * MIB,
        bad_block_log_offset_bytes: super::super::layout::BAD_BLOCK_LOG_OFFSET_BYTES,
        intent: NewIntent::None,
        in_sync: true,
        created: Timestamp(1),
    })
}

fn header(superblock: &Superblock) -> Header {
    Header {
        array_uuid: superblock.array_uuid(),
        device_uuid: superblock.device_uuid(),
        generation: 5,
        data_offset_bytes: superblock.data_offset_bytes(),
        private_bytes: 4 * MIB,
        superblock_hash: superblock_hash(superblock),
        synced_bytes: 77,
        sections: vec![Section {
            kind: SectionKind::Reservations,
            flags: SectionFlags::empty(),
            offset_bytes: 8192,
            len_bytes: 5000,
        }],
    }
}

/// The format is for good: these bytes may not change.
#[test]
fn golden_bytes() {
    let mut header = header(&superblock(2));
    header.superblock_hash = [0xab; 32];
    let bytes = header.to_bytes();
    assert_eq!(&bytes[..8], b"raidfabr");
    assert_eq!(bytes[12..16], [1, 0, 32, 0]);
    assert_eq!(bytes[16..32], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(bytes[47], 2);
    assert_eq!(bytes[48..56], 5u64.to_le_bytes());
    assert_eq!(bytes[56..64], (6 * MIB).to_le_bytes());
    assert_eq!(bytes[64..72], (4 * MIB).to_le_bytes());
    assert_eq!(bytes[72..80], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[80..112], [0xab; 32]);
    assert_eq!(bytes[112..120], 77u64.to_le_bytes());
    assert_eq!(bytes[120..256], [0; 136]);
    assert_eq!(bytes[256..264], [3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[264..272], 8192u64.to_le_bytes());
    assert_eq!(bytes[272..280], 5000u64.to_le_bytes());
    assert!(bytes[280..].iter().all(|b| *b == 0));
    // CRC-32C, of which "123456789" is the usual example.
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    let mut zeroed = *bytes;
    zeroed[8..12].fill(0);
    assert_eq!(bytes[8..12], crc32c(&zeroed).to_le_bytes());
}

#[test]
fn sections_are_checked() {
    let parse = |sections: Vec<(u64, u64)>| {
        let mut header = header(&superblock(2));
        let section = |(offset_bytes, len_bytes)| Section {
            kind: SectionKind::Other(77),
            flags: SectionFlags::MUST_UNDERSTAND,
            offset_bytes,
            len_bytes,
        };
        header.sections = sections.into_iter().map(section).collect();
        Header::parse(&header.to_bytes())
    };
    let room = 4 * MIB - HEADERS_BYTES;
    let good = parse(vec![(8192, 4096), (0, 8192), (room - 4096, 4096)]).unwrap();
    assert_eq!(good.unknown_section().map(|s| s.kind), Some(SectionKind::Other(77)));
    for bad in [
        vec![(0, 8192), (4096, 4096)],
        vec![(100, 4096)],
        vec![(0, 0)],
        vec![(room - 4096, 4097)],
        vec![(u64::MAX - 4095, 4096)],
        vec![(4096, u64::MAX)],
    ] {
        assert!(matches!(parse(bad), Err(HeaderError::Inconsistent(_))));
    }
    let mut without_room = header(&superblock(2));
    without_room.private_bytes = HEADERS_BYTES - 1;
    assert!(matches!(Header::parse(&without_room.to_bytes()), Err(HeaderError::Inconsistent(_))));
    without_room.private_bytes = 6 * MIB;
    assert!(matches!(Header::parse(&without_room.to_bytes()), Err(HeaderError::Inconsistent(_))));
}

#[test]
fn is_believed_only_beside_its_superblock() {
    let ours = superblock(2);
    let none = || Err(HeaderError::NoMagic);
    let judge = |first, second| PrivateArea::judge(&ours, [first, second]);
    let good = header(&ours);
    let newer = Header { generation: 6, ..good.clone() };
    let void = Header { generation: 9, superblock_hash: [0; 32], ..good.clone() };

    assert_eq!(judge(none(), none()), PrivateArea::Absent);
    let believed = |header: &Header, copy| PrivateArea::Believed { header: header.clone(), copy };
    assert_eq!(judge(Ok(good.clone()), none()), believed(&good, Copy::First));
    assert_eq!(judge(none(), Ok(good.clone())), believed(&good, Copy::Second));
    assert_eq!(judge(Ok(good.clone()), Ok(newer.clone())), believed(&newer, Copy::Second));
    assert_eq!(judge(Ok(newer.clone()), Ok(good.clone())), believed(&newer, Copy::First));
    // A later header for a superblock that never arrived.
    assert_eq!(judge(Ok(void.clone()), Ok(good.clone())), believed(&good, Copy::Second));
    let voided = PrivateArea::Void { last: void.clone(), copy: Copy::First };
    assert_eq!(judge(Ok(void.clone()), none()), voided);
    // Copied from another member, or to another place.
    let stray = Header { device_uuid: Uuid::from_u128(3), ..good.clone() };
    assert_eq!(judge(Ok(stray), none()), PrivateArea::Absent);
    let moved = Header { data_offset_bytes: 7 * MIB, ..good.clone() };
    assert_eq!(judge(Ok(moved), none()), PrivateArea::Absent);
}

#[test]
fn the_next_header_goes_over_the_copy_that_does_not_count() {
    let ours = superblock(2);
    let good = header(&ours);
    let next = superblock(2);
    for copy in Copy::ALL {
        let area = PrivateArea::Believed { header: good.clone(), copy };
        let (header, place) = area.header_for(&next, 78).unwrap();
        assert_eq!(place, copy.other());
        assert_eq!((header.generation, header.sections.len()), (6, 1));
        let area = PrivateArea::Void { last: good.clone(), copy };
        let (header, place) = area.header_for(&next, 78).unwrap();
        assert_eq!(place, copy.other());
        assert_eq!(header.sections, [], "what md has made void stays void");
        let (again, place) = area.restored(&next).unwrap();
        assert_eq!((place, again.synced_bytes), (copy.other(), 0));
        assert_eq!(again.sections, good.sections, "unless it is made anew");
    }
    assert_eq!(PrivateArea::Absent.header_for(&next, 78), None);
}

/// md repeats event counts: only the hash tells that it was there.
#[test]
fn an_equal_event_count_proves_nothing() {
    let ours = superblock(2);
    let replica = Replica {
        superblock: ours.clone(),
        private: PrivateArea::Believed { header: header(&ours), copy: Copy::First },
        bad_blocks: None,
    };
    let wanted = Wanted {
        version: 1,
        active: true,
        members: vec![MemberState::InSync],
        rebuild_from: None,
        resync_from: u64::MAX,
        bad_blocks: vec![Vec::new()],
        devices: vec![0],
    };
    let change = |now| {
        let mut after = replica.clone();
        let replicas = [Some(replica.clone())];
        let geometry = ours.geometry().unwrap();
        let before = Before { replicas: &replicas, active: false, geometry: &geometry };
        for write in plan_record(&before, &wanted, Timestamp(now)).unwrap().writes {
            write.apply(&mut after);
        }
        after
    };
    let (at_noon, at_one) = (change(12), change(13));
    assert_eq!(at_noon.superblock.events(), at_one.superblock.events());
    let PrivateArea::Believed { header, .. } = at_noon.private else { panic!("just written") };
    let judged = PrivateArea::judge(&at_one.superblock, [Ok(header), Err(HeaderError::NoMagic)]);
    assert!(matches!(judged, PrivateArea::Void { .. }));
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES)) {
        let _ = Header::parse(bytes.as_slice().try_into().unwrap());
    }

    #[test]
    fn every_flipped_bit_is_noticed(bit in 0..HEADER_BYTES * 8) {
        let mut bytes = *header(&superblock(2)).to_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Header::parse(&bytes).is_err());
    }

    /// Any fields behind a right checksum.
    #[test]
    fn nothing_with_a_right_checksum_makes_it_panic(
        fields in proptest::collection::vec(any::<u8>(), 512 - 16),
        count in 0u8..=130,
    ) {
        let mut bytes = *header(&superblock(2)).to_bytes();
        bytes[16..512].copy_from_slice(&fields);
        bytes[72..76].copy_from_slice(&[count, 0, 0, 0]);
        bytes[8..12].fill(0);
        let crc = crc32c(&bytes);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        let _ = Header::parse(&bytes);
    }

    #[test]
    fn round_trips(
        generation in any::<u64>(),
        hash in any::<[u8; 32]>(),
        // Kinds, flags, gaps and lengths.
        parts in proptest::collection::vec((any::<u32>(), any::<u32>(), 0u64..3, 1u64..9000), 0..20),
    ) {
        let mut header = header(&superblock(2));
        header.generation = generation;
        header.superblock_hash = hash;
        header.sections.clear();
        let mut at = 0u64;
        for (kind, flags, gap, len_bytes) in parts {
            at = at.next_multiple_of(4096) + gap * 4096;
            header.sections.push(Section {
                kind: SectionKind::from_bits(kind % 8),
                flags: SectionFlags::from_bits_retain(flags),
                offset_bytes: at,
                len_bytes,
            });
            at += len_bytes;
        }
        prop_assert_eq!(Header::parse(&header.to_bytes()), Ok(header));
    }
}
