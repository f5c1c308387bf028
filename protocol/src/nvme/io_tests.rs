use super::*;
use proptest::prelude::*;

fn sqe(dwords: &[(usize, u32)]) -> Sqe {
    let mut bytes = [0; 64];
    for &(index, value) in dwords {
        bytes[4 * index..4 * index + 4].copy_from_slice(&value.to_le_bytes());
    }
    Sqe::from_bytes(bytes)
}

fn range() -> BlockRange {
    BlockRange {
        nsid: 1,
        slba: 0x1_0000_0010,
        blocks: 8,
        fua: false,
        limited_retry: false,
        prinfo: Prinfo::default(),
        storage_tag_check: false,
    }
}

#[test]
fn golden_flush() {
    let entry = sqe(&[(0, 0x0005_4000), (1, 0xFFFF_FFFF)]);
    let command = IoCommand::parse(&entry).unwrap();
    assert_eq!(command, IoCommand::Flush { nsid: 0xFFFF_FFFF });
    assert_eq!(command.to_sqe(5), entry);
}

#[test]
fn golden_read() {
    let entry = sqe(&[(0, 0x0005_4002), (1, 1), (10, 0x10), (11, 1), (12, 7)]);
    let command = IoCommand::parse(&entry).unwrap();
    assert_eq!(command, IoCommand::Read(range()));
    assert_eq!(command.to_sqe(5), entry);
}

#[test]
fn golden_write() {
    // FUA, LR, PRACT, directive 1.
    let entry = sqe(&[(0, 0x0005_4001), (1, 1), (10, 0x10), (11, 1), (12, 0xE010_0007)]);
    let command = IoCommand::parse(&entry).unwrap();
    let prinfo = Prinfo::default().with_pract(true);
    let expected = BlockRange { fua: true, limited_retry: true, prinfo, ..range() };
    assert_eq!(command, IoCommand::Write { range: expected, directive: 1 });
    assert_eq!(command.to_sqe(5), entry);
}

#[test]
fn golden_write_zeroes() {
    let entry = sqe(&[(0, 0x0005_4008), (1, 1), (10, 0x10), (11, 1), (12, 0x0200_FFFF)]);
    let command = IoCommand::parse(&entry).unwrap();
    let expected = BlockRange { blocks: 65_536, ..range() };
    assert_eq!(command, IoCommand::WriteZeroes { range: expected, deallocate: true });
    assert_eq!(command.to_sqe(5), entry);
}

#[test]
fn golden_dataset_management() {
    let entry = sqe(&[(0, 0x0005_4009), (1, 1), (10, 255), (11, 4)]);
    let command = IoCommand::parse(&entry).unwrap();
    let expected = IoCommand::DatasetManagement {
        nsid: 1,
        ranges: 256,
        attributes: DsmAttributes::default().with_ad(true),
    };
    assert_eq!(command, expected);
    assert_eq!(command.to_sqe(5), entry);
    let bytes = [1, 0, 0, 0, 8, 0, 0, 0, 0x10, 0, 0, 0, 1, 0, 0, 0];
    let range = DsmRange::read_from_bytes(&bytes).unwrap();
    assert_eq!((range.cattr.get(), range.nlb.get(), range.slba.get()), (1, 8, 0x1_0000_0010));
}

#[test]
fn every_other_opcode_is_invalid() {
    for opcode in 0..=255u8 {
        let parsed = IoCommand::parse(&Sqe::new(opcode, 0));
        if IoOpcode::from_raw(opcode).is_some() {
            assert!(parsed.is_ok(), "{opcode:#x}");
        } else {
            assert_eq!(parsed, Err(Generic::InvalidOpcode.into()), "{opcode:#x}");
        }
    }
}

#[test]
fn fused_commands_are_refused() {
    for fuse in 1..=3 {
        let mut entry = IoCommand::Read(range()).to_sqe(0);
        entry.flags = entry.flags.with_fuse(fuse);
        assert_eq!(IoCommand::parse(&entry), Err(Generic::InvalidField.into()));
    }
}

#[test]
fn directions() {
    assert_eq!(Direction::of_opcode(IoOpcode::Write.raw()), Direction::FromHost);
    assert_eq!(Direction::of_opcode(IoOpcode::Read.raw()), Direction::ToHost);
    assert_eq!(Direction::of_opcode(IoOpcode::Flush.raw()), Direction::None);
    assert_eq!(Direction::of_opcode(IoOpcode::WriteZeroes.raw()), Direction::None);
    assert_eq!(Direction::of_opcode(IoOpcode::DatasetManagement.raw()), Direction::FromHost);
    assert_eq!(Direction::of_opcode(0xFF), Direction::Both);
}

proptest! {
    #[test]
    fn any_entry_parses_or_is_refused_and_survives(bytes: [u8; 64]) {
        if let Ok(command) = IoCommand::parse(&Sqe::from_bytes(bytes)) {
            prop_assert_eq!(IoCommand::parse(&command.to_sqe(1)), Ok(command));
        }
    }
}
