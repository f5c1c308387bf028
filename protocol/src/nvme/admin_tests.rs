use super::*;
use proptest::prelude::*;

/// An entry of zeros but for these dwords: (index, value).
fn sqe(dwords: &[(usize, u32)]) -> Sqe {
    let mut bytes = [0; 64];
    for &(index, value) in dwords {
        bytes[4 * index..4 * index + 4].copy_from_slice(&value.to_le_bytes());
    }
    Sqe::from_bytes(bytes)
}

#[test]
fn golden_get_log_page() {
    // The discovery log as nvme-cli reads its second part.
    let entry = sqe(&[(0, 0x0007_4002), (1, 0), (10, 0x03FF_8070), (11, 2), (12, 4096), (13, 1)]);
    let command = AdminCommand::parse(&entry).unwrap();
    let expected = GetLogPage {
        lid: 0x70,
        retain_event: true,
        numd: 0x0002_03FF,
        offset: 0x1_0000_1000,
        ..GetLogPage::default()
    };
    assert_eq!(command, AdminCommand::GetLogPage(expected));
    assert_eq!(expected.length_bytes(), 0x0002_0400 * 4);
    assert_eq!(command.to_sqe(7), entry);
}

#[test]
fn the_longest_log_length_does_not_overflow() {
    let command = GetLogPage { numd: u32::MAX, ..GetLogPage::default() };
    assert_eq!(command.length_bytes(), 1 << 34);
}

#[test]
fn golden_identify() {
    let entry = sqe(&[(0, 0x0001_4006), (1, 5), (10, 0x0002_0005), (11, 0x0300_0004), (14, 9)]);
    let command = AdminCommand::parse(&entry).unwrap();
    let expected = Identify { nsid: 5, cns: 5, cntid: 2, specific: 4, csi: 3, uuid_index: 9 };
    assert_eq!(command, AdminCommand::Identify(expected));
    assert_eq!(command.to_sqe(1), entry);
}

#[test]
fn golden_abort() {
    let entry = sqe(&[(0, 0x0001_4008), (10, 0xBEEF_0003)]);
    let command = AdminCommand::parse(&entry).unwrap();
    assert_eq!(command, AdminCommand::Abort { sqid: 3, cid: 0xBEEF });
    assert_eq!(command.to_sqe(1), entry);
}

#[test]
fn golden_set_features() {
    let entry = sqe(&[(0, 0x0001_4009), (1, 1), (10, 0x8000_000B), (11, 0x8000_0100)]);
    let command = AdminCommand::parse(&entry).unwrap();
    let expected =
        SetFeatures { nsid: 1, fid: 0x0B, save: true, value: 0x8000_0100, uuid_index: 0 };
    assert_eq!(command, AdminCommand::SetFeatures(expected));
    assert_eq!(command.to_sqe(1), entry);
}

#[test]
fn golden_get_features() {
    let entry = sqe(&[(0, 0x0001_400A), (10, 0x0304), (11, 0x0010_0000)]);
    let command = AdminCommand::parse(&entry).unwrap();
    let expected = GetFeatures {
        nsid: 0,
        fid: 4,
        select: FeatureSelect::Capabilities,
        cdw11: 0x0010_0000,
        uuid_index: 0,
    };
    assert_eq!(command, AdminCommand::GetFeatures(expected));
    assert_eq!(command.to_sqe(1), entry);
    let reserved = sqe(&[(0, 0x400A), (10, 0x0404)]);
    assert_eq!(AdminCommand::parse(&reserved), Err(Generic::InvalidField.into()));
}

#[test]
fn golden_commands_without_fields() {
    let entry = sqe(&[(0, 0x001F_400C)]);
    assert_eq!(AdminCommand::parse(&entry), Ok(AdminCommand::AsyncEventRequest));
    assert_eq!(AdminCommand::AsyncEventRequest.to_sqe(31), entry);
    let entry = sqe(&[(0, 0x0001_4018)]);
    assert_eq!(AdminCommand::parse(&entry), Ok(AdminCommand::KeepAlive));
    assert_eq!(AdminCommand::KeepAlive.to_sqe(1), entry);
}

#[test]
fn every_other_opcode_is_invalid() {
    for opcode in 0..=255u8 {
        let parsed = AdminCommand::parse(&Sqe::new(opcode, 0));
        if AdminOpcode::from_raw(opcode).is_some() {
            assert!(parsed.is_ok(), "{opcode:#x}");
        } else {
            assert_eq!(parsed, Err(Generic::InvalidOpcode.into()), "{opcode:#x}");
        }
    }
}

#[test]
fn fused_admin_commands_are_refused() {
    for fuse in 1..=3 {
        let mut entry = AdminCommand::KeepAlive.to_sqe(0);
        entry.flags = entry.flags.with_fuse(fuse);
        assert_eq!(AdminCommand::parse(&entry), Err(Generic::InvalidField.into()));
    }
}

#[test]
fn golden_events() {
    let event = |kind: EventType, information: u8, log: u8| {
        AsyncEvent::default()
            .with_kind(kind.raw())
            .with_information(information)
            .with_log(log)
            .raw()
    };
    // As Linux names them.
    assert_eq!(event(EventType::Notice, Notice::NamespaceAttribute.raw(), 4), 0x0004_0002);
    assert_eq!(event(EventType::Notice, Notice::DiscoveryChange.raw(), 0x70), 0x0070_F002);
}

proptest! {
    #[test]
    fn any_entry_parses_or_is_refused_and_survives(bytes: [u8; 64]) {
        if let Ok(command) = AdminCommand::parse(&Sqe::from_bytes(bytes)) {
            prop_assert_eq!(AdminCommand::parse(&command.to_sqe(1)), Ok(command));
        }
    }

    #[test]
    fn log_pages_round_trip(
        nsid: u32, lid: u8, lsp in 0u8..128, retain_event: bool, numd: u32, lsi: u16,
        offset: u64, index_offset: bool, uuid_index in 0u8..128, csi: u8,
    ) {
        let command = AdminCommand::GetLogPage(GetLogPage {
            nsid, lid, lsp, retain_event, numd, lsi, offset, index_offset, uuid_index, csi,
        });
        prop_assert_eq!(AdminCommand::parse(&command.to_sqe(1)), Ok(command));
    }
}
