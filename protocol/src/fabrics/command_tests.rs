use super::*;
use proptest::prelude::*;

fn entry(parts: &[(usize, &[u8])]) -> Sqe {
    let mut bytes = [0; 64];
    for (at, part) in parts {
        bytes[*at..*at + part.len()].copy_from_slice(part);
    }
    Sqe::from_bytes(bytes)
}

#[test]
fn golden_connect() {
    let sqe = entry(&[
        (0, &[0x7F, 0x40, 9, 0, 1]),
        (32, &[0, 4, 0, 0, 0, 0, 0, 1]),
        (42, &[2, 0, 127, 0, 0x04, 0]),
        (48, &[0x88, 0x13, 0, 0]),
    ]);
    let FabricsCommand::Connect(connect) = FabricsCommand::parse(&sqe).unwrap() else { panic!() };
    assert_eq!(connect.recfmt.get(), 0);
    assert_eq!((connect.qid.get(), connect.sqsize.get()), (2, 127));
    assert!(connect.cattr.disable_sq_flow_control() && !connect.cattr.queue_deletion());
    assert_eq!(connect.kato_ms.get(), 5000);
    assert_eq!(connect.sgl1, Sgl::in_capsule(0, 1024));
    assert_eq!(FabricsCommand::Connect(connect).to_sqe(9), sqe);
    let mut built = Connect::new(2, 127, 5000);
    built.cattr = built.cattr.with_disable_sq_flow_control(true);
    assert_eq!(FabricsCommand::Connect(built).to_sqe(9), sqe);
}

#[test]
fn golden_property_get() {
    let sqe = entry(&[(0, &[0x7F, 0x40, 9, 0, 4]), (40, &[1])]);
    let command = FabricsCommand::parse(&sqe).unwrap();
    assert_eq!(command, FabricsCommand::PropertyGet { offset: 0, size: PropertySize::Eight });
    assert_eq!(command.to_sqe(9), sqe);
}

#[test]
fn golden_property_set() {
    let sqe = entry(&[(0, &[0x7F, 0x40, 9, 0, 0]), (44, &[0x14, 0, 0, 0, 1, 0, 0x46, 0])]);
    let command = FabricsCommand::parse(&sqe).unwrap();
    let expected =
        FabricsCommand::PropertySet { offset: 0x14, size: PropertySize::Four, value: 0x46_0001 };
    assert_eq!(command, expected);
    assert_eq!(command.to_sqe(9), sqe);
}

#[test]
fn golden_disconnect() {
    let sqe = entry(&[(0, &[0x7F, 0x40, 9, 0, 8]), (40, &[1, 2])]);
    let command = FabricsCommand::parse(&sqe).unwrap();
    assert_eq!(command, FabricsCommand::Disconnect { recfmt: 0x0201 });
    assert_eq!(command.to_sqe(9), sqe);
}

#[test]
fn golden_authentication() {
    let message = Authentication { secp: 0xE9, spsp0: 1, spsp1: 2, length_bytes: 0x100 };
    for (kind, command) in [
        (5, FabricsCommand::AuthenticationSend(message)),
        (6, FabricsCommand::AuthenticationReceive(message)),
    ] {
        let sqe = entry(&[(0, &[0x7F, 0x40, 9, 0, kind]), (41, &[1, 2, 0xE9, 0, 1])]);
        assert_eq!(FabricsCommand::parse(&sqe), Ok(command));
        assert_eq!(command.to_sqe(9), sqe);
    }
}

#[test]
fn what_is_refused() {
    assert_eq!(FabricsCommand::parse(&Sqe::new(0x06, 0)), Err(Generic::InvalidOpcode.into()));
    for kind in 0..=255u8 {
        let parsed = FabricsCommand::parse(&entry(&[(0, &[0x7F, 0x40, 0, 0, kind])]));
        assert_eq!(parsed.is_ok(), FabricsType::from_raw(kind).is_some(), "{kind:#x}");
    }
    let invalid = Err(Generic::InvalidField.into());
    for size in 2..8 {
        assert_eq!(
            FabricsCommand::parse(&entry(&[(0, &[0x7F, 0, 0, 0, 4]), (40, &[size])])),
            invalid
        );
    }
    assert_eq!(FabricsCommand::parse(&entry(&[(0, &[0x7F, 0x41, 0, 0, 4])])), invalid);
}

#[test]
fn wrong_fields_are_named_by_offset() {
    assert_eq!(InvalidParameter::Qid.result(), 42);
    assert_eq!(InvalidParameter::SqSize.result(), 44);
    assert_eq!(InvalidParameter::Cattr.result(), 46);
    assert_eq!(InvalidParameter::Kato.result(), 48);
    assert_eq!(InvalidParameter::HostId.result(), 0x1_0000);
    assert_eq!(InvalidParameter::CntlId.result(), 0x1_0010);
    assert_eq!(InvalidParameter::SubNqn.result(), 0x1_0100);
    assert_eq!(InvalidParameter::HostNqn.result(), 0x1_0200);
}

#[test]
fn connect_response_bits() {
    let response = ConnectResponse::default().with_cntlid(0x1234);
    assert_eq!(response.raw(), 0x1234);
    assert_eq!(ConnectResponse::default().with_authentication_required(true).raw(), 1 << 17);
    assert_eq!(ConnectResponse::default().with_secure_channel_required(true).raw(), 1 << 18);
}

#[test]
fn property_sizes() {
    for &property in Property::ALL {
        let eight = property == Property::Cap;
        assert_eq!(property.size() == PropertySize::Eight, eight);
    }
}

proptest! {
    #[test]
    fn any_entry_parses_or_is_refused_and_survives(mut bytes: [u8; 64], kind in 0u8..10) {
        bytes[0] = FABRICS_OPCODE;
        bytes[1] = 0x40;
        bytes[4] = kind;
        let sqe = Sqe::from_bytes(bytes);
        if let Ok(command) = FabricsCommand::parse(&sqe) {
            prop_assert_eq!(FabricsCommand::parse(&command.to_sqe(sqe.cid.get())), Ok(command));
        }
    }
}
