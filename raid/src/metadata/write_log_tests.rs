//! Tests of the RAID 6 write log's bytes.

use super::*;
use proptest::prelude::*;

fn arb_entry() -> impl Strategy<Value = Entry> {
    let parity = prop_oneof![Just(Parity::None), Just(Parity::P), Just(Parity::Q)];
    let checks = any::<[u32; 2]>().prop_map(Checks::from_raw);
    (any::<u64>(), any::<u32>(), 0u32..2000, any::<u16>(), any::<u16>(), parity, checks).prop_map(
        |(row, within_bytes, len_bytes, first, count, parity, checks)| Entry {
            row,
            within_bytes,
            len_bytes,
            first,
            count,
            parity,
            checks,
        },
    )
}

fn arb_unit() -> impl Strategy<Value = Unit> {
    let entries = prop::collection::vec(arb_entry(), 0..=MAX_ENTRIES);
    (any::<[u8; 16]>(), any::<u64>(), any::<u64>(), any::<u32>(), entries).prop_map(
        |(array_uuid, generation, live_from, slot, entries)| Unit {
            array_uuid,
            generation,
            live_from,
            slot,
            entries,
        },
    )
}

fn bytes_of(unit: &Unit) -> Vec<u8> {
    let data = unit.entries.iter().map(Entry::data_bytes).sum::<usize>();
    let mut bytes: Vec<u8> = (0..HEADER_BYTES + data).map(|i| (i * 31) as u8).collect();
    unit.put(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn a_unit_comes_back(unit in arb_unit()) {
        let bytes = bytes_of(&unit);
        let header: &[u8; HEADER_BYTES] = bytes[..HEADER_BYTES].try_into().unwrap();
        prop_assert_eq!(Unit::data_bytes(header), Some(bytes.len() - HEADER_BYTES));
        prop_assert_eq!(Unit::parse(&bytes), Ok(unit));
    }

    #[test]
    fn a_damaged_unit_is_refused(unit in arb_unit(), at in any::<prop::sample::Index>(), bit in 0u32..8) {
        let mut bytes = bytes_of(&unit);
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        prop_assert!(Unit::parse(&bytes).is_err());
        bytes[at] ^= 1u8 << bit;
        bytes.push(0);
        prop_assert!(Unit::parse(&bytes).is_err());
        bytes.truncate(HEADER_BYTES - 1);
        prop_assert_eq!(Unit::parse(&bytes), Err(UnitError::NoMagic));
    }

    #[test]
    fn places_do_not_overlap(section in 0u64..3 << 20) {
        let Some(places) = Places::new(section) else {
            prop_assert!(section < (HEADER_BYTES as u64) + 2 * MIN_PLACE_BYTES);
            return Ok(());
        };
        prop_assert!(places.count() >= 2 && places.data_bytes() >= 4096);
        let unit = (HEADER_BYTES + places.data_bytes()) as u64;
        let mut offsets: Vec<_> = (5..5 + places.count()).map(|n| places.offset_bytes(n)).collect();
        prop_assert_eq!(places.offset_bytes(5), places.offset_bytes(5 + places.count()));
        offsets.sort_unstable();
        prop_assert_eq!(offsets[0], HEADER_BYTES as u64);
        prop_assert!(offsets.windows(2).all(|two| two[0] + unit <= two[1]));
        prop_assert!(offsets.iter().all(|at| at + unit <= section && at % 4096 == 0));
    }
}

#[test]
fn the_mark_is_as_drawn() {
    let mut bytes = vec![0; HEADER_BYTES];
    Unit::mark([3; 16], 0x0102, 5).put(&mut bytes);
    assert_eq!(&bytes[..8], b"raid6log");
    assert_eq!(bytes[12..16], [2, 0, 32, 0]);
    assert_eq!(bytes[16..32], [3; 16]);
    assert_eq!(bytes[32..40], 0x0102u64.to_le_bytes());
    assert_eq!(bytes[40..48], 0x0102u64.to_le_bytes());
    assert_eq!(bytes[48..60], [0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
    assert!(bytes[60..].iter().all(|&byte| byte == 0));
    let mut later = RawHeader::read_from_bytes(&bytes[..]).unwrap();
    for version in [0, 3] {
        later.version = version.into();
        later.crc32c = crc(&later, &[]).into();
        assert_eq!(Unit::parse(later.as_bytes()), Err(UnitError::Version(version)));
    }
}

#[test]
fn an_entry_is_as_drawn_and_one_of_version_1_has_no_checks() {
    let entry = Entry {
        row: 0x0102_0304_0506_0708,
        within_bytes: 0x1112_1314,
        len_bytes: 4096,
        first: 0x2122,
        count: 0x3132,
        parity: Parity::None,
        checks: Checks { new: Some(0x4142_4344), old: None },
    };
    let unit = Unit { entries: vec![entry], ..Unit::mark([3; 16], 9, 5) };
    let mut bytes = vec![0; HEADER_BYTES];
    unit.put(&mut bytes);
    assert_eq!(bytes[128..136], 0x0102_0304_0506_0708u64.to_le_bytes());
    assert_eq!(bytes[136..140], 0x1112_1314u32.to_le_bytes());
    assert_eq!(bytes[140..150], [0, 16, 0, 0, 0x22, 0x21, 0x32, 0x31, 0, 0]);
    assert_eq!(bytes[150..160], [0, 0, 0x44, 0x43, 0x42, 0x41, 255, 255, 255, 255]);
    let mut earlier = RawHeader::read_from_bytes(&bytes[..]).unwrap();
    earlier.version = 1.into();
    earlier.entries[0].checks = [U32::ZERO; 2];
    earlier.crc32c = crc(&earlier, &[]).into();
    let expected = Unit { entries: vec![Entry { checks: Checks::NONE, ..entry }], ..unit };
    assert_eq!(Unit::parse(earlier.as_bytes()), Ok(expected));
}
