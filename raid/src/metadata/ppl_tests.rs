//! Tests of the PPL's bytes.

use super::*;
use crate::geometry::Level;
use proptest::prelude::*;
use std::collections::BTreeMap;

const CHUNK: u64 = 16 << 10;

fn geometry() -> Geometry {
    Geometry::new(Level::Raid5, 4, CHUNK as u32, 1 << 20).unwrap()
}

/// What mdadm writes at creation, byte by byte as its source has it: everything zero but the
/// reserved bytes, the signature (the inverse of a crc32c seeded with ones, of the UUID) and the
/// checksum, made alike.
#[test]
fn an_empty_header_is_what_mdadm_writes() {
    let uuid: [u8; 16] = std::array::from_fn(|i| (i * 17 + 3) as u8);
    let bytes = Header::empty(signature(uuid), 0).to_bytes();
    assert!(bytes[..512].iter().all(|&byte| byte == 0xff));
    assert_eq!(bytes[512..516], (!bitwise_crc32c(!0, &uuid)).to_le_bytes());
    assert!(bytes[516..532].iter().chain(&bytes[536..]).all(|&byte| byte == 0));
    let mut without = *bytes;
    without[532..536].fill(0);
    assert_eq!(bytes[532..536], (!bitwise_crc32c(!0, &without)).to_le_bytes());
}

/// The kernel's crc32c, bit by bit.
fn bitwise_crc32c(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 }
        })
    })
}

#[test]
fn the_checksum_is_the_kernels() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(b"123456789"), !bitwise_crc32c(!0, b"123456789"));
    assert_eq!(crc32c(b""), 0);
}

#[test]
fn an_entrys_fields_lie_where_md_has_them() {
    let entry = Entry {
        data_sector: 0x0102_0304_0506_0708,
        parity_bytes: 0x1112_1314,
        data_bytes: 0x2122_2324,
        parity_slot: 0x3132_3334,
        checksum: 0x4142_4344,
        checks: Checks { new: Some(0x5152_5354), old: None },
    };
    let header = Header { signature: 7, generation: 9, entries: vec![entry] };
    let bytes = header.to_bytes();
    let mut expected = Vec::new();
    expected.extend(9u64.to_le_bytes());
    expected.extend(1u32.to_le_bytes());
    expected.extend(&bytes[532..536]);
    expected.extend(0x0102_0304_0506_0708u64.to_le_bytes());
    for word in [0x1112_1314u32, 0x2122_2324, 0x3132_3334, 0x4142_4344] {
        expected.extend(word.to_le_bytes());
    }
    assert_eq!(bytes[520..560], expected[..]);
    assert_eq!(bytes[..16], *b"raidfppl\x01\0\0\0\0\0\0\0");
    assert_eq!(bytes[16..24], [0x54, 0x53, 0x52, 0x51, 255, 255, 255, 255]);
    assert!(bytes[24..512].iter().all(|&byte| byte == 255));
    assert_eq!(Header::parse(&bytes), Ok(header));
}

/// The reserved bytes are md's as long as there is nothing to say, and whatever else is in them, of
/// md or of other programs, is no check.
#[test]
fn checks_come_back_and_nothing_else_is_taken_for_them() {
    let checks = |n: u32| Checks { new: Some(n), old: n.is_multiple_of(3).then_some(!n - 1) };
    let entry = |n: u32| Entry {
        data_sector: u64::from(n),
        parity_bytes: 0,
        data_bytes: 512,
        parity_slot: 0,
        checksum: 0,
        checks: if n.is_multiple_of(2) { checks(n) } else { Checks::NONE },
    };
    let header = |count: usize| Header {
        signature: 7,
        generation: 9,
        entries: (0..count as u32).map(entry).collect(),
    };
    let most = header(MAX_OWN_ENTRIES);
    assert_eq!(Header::parse(&most.to_bytes()), Ok(most));
    let more = Header::parse(&header(MAX_ENTRIES).to_bytes()).unwrap();
    let (own, rest) = more.entries.split_at(MAX_OWN_ENTRIES);
    assert_eq!(own, header(MAX_OWN_ENTRIES).entries);
    assert!(rest.iter().all(|entry| entry.checks.is_none()));
    let none = Header { entries: vec![entry(1); 3], ..header(0) };
    assert!(none.to_bytes()[..512].iter().all(|&byte| byte == 0xff));
    for at in [0, 7, 8] {
        let mut bytes = header(8).to_bytes();
        bytes[at] ^= 0x40;
        bytes[532..536].fill(0);
        let crc = crc32c(&bytes[..]);
        bytes[532..536].copy_from_slice(&crc.to_le_bytes());
        let entries = Header::parse(&bytes).unwrap().entries;
        assert!(entries.iter().all(|entry| entry.checks.is_none()), "byte {at}");
    }
}

#[test]
fn what_is_no_header_is_refused() {
    let mut bytes = Header::empty(1, 2).to_bytes();
    assert!(Header::parse(&bytes).is_ok());
    for at in [0, 511, 512, 520, 528, 532, 536, 4095] {
        bytes[at] ^= 1;
        assert_eq!(Header::parse(&bytes), Err(HeaderError::Checksum), "byte {at}");
        bytes[at] ^= 1;
    }
    assert_eq!(Header::parse(&[0; HEADER_BYTES]), Err(HeaderError::Checksum));
    bytes[528..532].copy_from_slice(&149u32.to_le_bytes());
    bytes[532..536].fill(0);
    let crc = crc32c(&bytes[..]);
    bytes[532..536].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(Header::parse(&bytes), Err(HeaderError::TooManyEntries(149)));
}

/// What an entry covers, sector by sector and exactly as md's recovery walks it: by (row, offset in
/// the chunk), the chunks that were being written and where the partial parity is.
fn as_md_walks(geometry: &Geometry, entry: &Entry) -> BTreeMap<(u64, u64), (Vec<usize>, u64)> {
    let chunk = CHUNK / 512;
    let all = geometry.data_chunks() as u64;
    let (pp, data) = (u64::from(entry.parity_bytes) / 512, u64::from(entry.data_bytes) / 512);
    let first = entry.data_sector;
    let (disks, strip, last);
    if pp < chunk {
        disks = data.checked_div(pp).unwrap_or(all);
        strip = if pp > 0 { pp } else { data / disks };
        last = first + (disks - 1) * chunk + strip;
    } else {
        disks = all;
        strip = chunk;
        last = first + data;
    }
    let mut covered = BTreeMap::new();
    for i in 0..strip {
        for disk in 0..disks {
            let sector = first + i + disk * chunk;
            if sector >= last {
                continue;
            }
            let place = geometry.in_row(sector * 512);
            let at = covered
                .entry((place.row, place.within_bytes))
                .or_insert_with(|| (Vec::new(), i * 512));
            at.0.push(place.index);
        }
    }
    covered
}

fn flatten(stripes: &[Stripe], parity: bool) -> BTreeMap<(u64, u64), (Vec<usize>, u64)> {
    let mut covered = BTreeMap::new();
    for stripe in stripes {
        assert_eq!(stripe.parity_offset.is_some(), parity);
        for at in (0..stripe.len_bytes).step_by(512) {
            let chunks = (stripe.first..stripe.first + stripe.count).collect();
            let value = (chunks, stripe.parity_offset.unwrap_or(0) + at);
            let before = covered.insert((stripe.row, stripe.within_bytes + at), value);
            assert_eq!(before, None, "twice");
        }
    }
    covered
}

proptest! {
    /// All that our own writes are logged as reads back as what was logged.
    #[test]
    fn our_entries_come_back(
        row in 0u64..64, first in 0usize..3, count in 1usize..4, from in 0u64..32, len in 1u64..33,
    ) {
        let geometry = geometry();
        let count = count.min(3 - first);
        let len = len.min(32 - from);
        let parity = vec![7; len as usize * 512];
        let parity = (count < 3).then_some(&parity[..]);
        let place = (from * 512, len as u32 * 512);
        let entry = Entry::new(&geometry, row, (first, count), place, parity, Checks::NONE);
        prop_assert_eq!(entry.parity_slot as usize, geometry.parity_slot(row));
        let stripes = entry.stripes(&geometry).unwrap();
        let whole = Stripe {
            row,
            within_bytes: from * 512,
            len_bytes: len * 512,
            first,
            count,
            parity_offset: (count < 3).then_some(0),
        };
        if len < 32 || count == 3 {
            prop_assert_eq!(&stripes, &[whole]);
        }
        let md = as_md_walks(&geometry, &entry);
        prop_assert_eq!(flatten(&stripes, count < 3), md);
    }

    /// Entries of other programs, cut anywhere: read as md reads them.
    #[test]
    fn a_range_cut_anywhere_is_read_as_md_does(row in 0u64..64, from in 0u64..96, len in 1u64..96) {
        let geometry = geometry();
        let len = len.min(96 - from);
        let entry = Entry {
            data_sector: row * 96 + from,
            parity_bytes: CHUNK as u32,
            data_bytes: len as u32 * 512,
            parity_slot: geometry.parity_slot(row) as u32,
            checksum: 0,
            checks: Checks::NONE,
        };
        let mut md = as_md_walks(&geometry, &entry);
        let stripes = flatten(&entry.stripes(&geometry).unwrap(), true);
        // What is reached beyond the end of the first chunk is in order of its position.
        for (chunks, _) in md.values_mut() {
            chunks.sort_unstable();
        }
        prop_assert_eq!(stripes, md);
    }

    #[test]
    fn no_entry_leads_outside_its_row(
        data_sector in any::<u64>(), small in 0u64..7000, parity in any::<u32>(), data in any::<u32>(),
        units in (0u32..70, 0u32..300), slot in 0u32..5, choice in 0u8..8,
    ) {
        let geometry = geometry();
        let entry = Entry {
            data_sector: if choice & 1 == 0 { small } else { data_sector },
            parity_bytes: if choice & 2 == 0 { units.0 * 512 } else { parity },
            data_bytes: if choice & 4 == 0 { units.1 * 512 } else { data },
            parity_slot: slot,
            checksum: 0,
            checks: Checks::NONE,
        };
        for stripe in entry.stripes(&geometry).into_iter().flatten() {
            prop_assert!(stripe.row < geometry.rows());
            prop_assert!(stripe.within_bytes + stripe.len_bytes <= CHUNK && stripe.len_bytes > 0);
            prop_assert!(stripe.count > 0 && stripe.first + stripe.count <= 3);
            prop_assert_eq!(geometry.parity_slot(stripe.row) as u32, slot);
            let end = stripe.parity_offset.map_or(0, |offset| offset + stripe.len_bytes);
            prop_assert!(end <= u64::from(entry.parity_bytes));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), HEADER_BYTES)) {
        let bytes: [u8; HEADER_BYTES] = bytes.try_into().unwrap();
        prop_assert!(Header::parse(&bytes).is_err());
    }
}
