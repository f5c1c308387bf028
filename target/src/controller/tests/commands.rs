//! Identify's errors, Abort, event requests, Fabrics commands out of place.
use super::*;
use raidfabric_protocol::fabrics::command::Authentication;
use raidfabric_protocol::nvme::sqe::SqeFlags;

#[test]
fn identify_refuses_what_there_is_not() {
    let mut host = Host::nvm();
    for cns in 0..=255u8 {
        let command = Identify { cns, nsid: 1, ..Identify::default() };
        let answer = host.read(AdminCommand::Identify(command), IDENTIFY_BYTES);
        if Cns::from_raw(cns).is_some() {
            assert!(answer.is_ok(), "{cns:#x}");
        } else {
            let refused = answer.unwrap_err();
            assert_eq!(refused, Generic::InvalidField.into(), "{cns:#x}");
            assert!(refused.dnr);
        }
    }
}

#[test]
fn a_namespace_is_active_inactive_or_impossible() {
    let mut host = Host::nvm();
    let impossible = Err(Generic::InvalidNamespaceOrFormat.into());
    for cns in [Cns::Namespace, Cns::CommandSetNamespace, Cns::IndependentNamespace] {
        assert_eq!(host.identify(cns, 2).unwrap(), [0; 4096], "{cns:?} of an inactive one");
        for nsid in [0, 129, NSID_ALL] {
            assert_eq!(host.identify(cns, nsid), impossible, "{cns:?} {nsid:#x}");
        }
    }
    for nsid in [0, 2, NSID_ALL] {
        assert_eq!(host.identify(Cns::NamespaceDescriptors, nsid), impossible, "{nsid:#x}");
    }
    for cns in [Cns::ActiveNamespaces, Cns::CommandSetActiveNamespaces] {
        assert_eq!(host.identify(cns, 1).unwrap()[..8], [5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(host.identify(cns, 5).unwrap(), [0; 4096]);
        for nsid in [NSID_ALL, NSID_ALL - 1] {
            assert_eq!(host.identify(cns, nsid), impossible, "{cns:?} {nsid:#x}");
        }
    }
}

#[test]
fn a_namespace_that_is_not_ready_says_so() {
    let mut waiting = namespace(1, 4096);
    waiting.ready = false;
    let mut host = Host::connected(Kind::Nvm(subsystem_with(vec![waiting])), 0);
    host.enable();
    assert_eq!(host.identify(Cns::IndependentNamespace, 1).unwrap()[14], 0);
}

#[test]
fn other_command_sets_are_refused() {
    let mut host = Host::nvm();
    let other = |cns: Cns| {
        AdminCommand::Identify(Identify { cns: cns.raw(), nsid: 1, csi: 2, ..Default::default() })
    };
    for cns in
        [Cns::CommandSetNamespace, Cns::CommandSetController, Cns::CommandSetActiveNamespaces]
    {
        let refused = host.read(other(cns), IDENTIFY_BYTES);
        assert_eq!(refused, Err(Generic::InvalidField.into()), "{cns:?}");
    }
    // The others do not look at it.
    assert!(host.read(other(Cns::Controller), IDENTIFY_BYTES).is_ok());
}

#[test]
fn identify_has_exactly_its_length() {
    let mut host = Host::nvm();
    let command = AdminCommand::Identify(Identify { cns: 1, ..Identify::default() });
    for bytes in [4, 4092, 4100, 8192] {
        let refused = host.read(command, bytes);
        assert_eq!(refused, Err(Generic::DataSglLengthInvalid.into()), "{bytes}");
    }
    assert_eq!(host.admin(command), generic(Generic::DataSglLengthInvalid));
}

#[test]
fn unknown_and_fused_commands_are_refused() {
    let mut host = Host::nvm();
    // Queues are made by Connect over fabrics; firmware, format and the like are not offered.
    for opcode in [0x00, 0x01, 0x04, 0x05, 0x0D, 0x10, 0x11, 0x14, 0x15, 0x80, 0x81, 0x84, 0xC0] {
        let refused = host.run(Sqe::new(opcode, 0), Data::None);
        assert_eq!(refused, generic(Generic::InvalidOpcode), "{opcode:#x}");
    }
    let mut fused = AdminCommand::KeepAlive.to_sqe(0);
    fused.flags = SqeFlags::from_raw(0x41);
    assert_eq!(host.run(fused, Data::None), generic(Generic::InvalidField));
}

#[test]
fn abort_says_whether_it_did() {
    let mut host = Host::nvm();
    host.world.abortable = Some((3, 100));
    assert_eq!(host.admin(AdminCommand::Abort { sqid: 3, cid: 100 }), Ok(0));
    assert_eq!(host.admin(AdminCommand::Abort { sqid: 3, cid: 101 }), Ok(1));
    assert_eq!(host.admin(AdminCommand::Abort { sqid: 0xFFFF, cid: 0xFFFF }), Ok(1));
}

#[test]
fn a_held_request_can_be_aborted() {
    let mut host = Host::nvm();
    let cid = host.request_event();
    assert_eq!(host.admin(AdminCommand::Abort { sqid: 1, cid }), Ok(1), "another queue's");
    assert_eq!(host.controller.poll_completion(), None);
    assert_eq!(host.admin(AdminCommand::Abort { sqid: 0, cid }), Ok(0));
    let aborted = host.controller.poll_completion().unwrap();
    assert_eq!((aborted.cid(), aborted.status()), (cid, Generic::AbortRequested.into()));
    assert_eq!(host.admin(AdminCommand::Abort { sqid: 0, cid }), Ok(1), "gone");
}

#[test]
fn more_event_requests_than_advertised_are_refused() {
    let mut host = Host::nvm();
    let limit = host.identify_controller().aerl + 1;
    for _ in 0..limit {
        host.request_event();
    }
    let refused = host.admin(AdminCommand::AsyncEventRequest);
    assert_eq!(refused, specific(CommandSpecific::AerLimitExceeded));
    // One that is used up makes room.
    host.set_feature(FeatureId::AsyncEventConfiguration, 0x100).unwrap();
    host.controller.handle_event(Event::Subsystem(subsystem_with(vec![])));
    assert!(host.event().is_some());
    host.request_event();
}

#[test]
fn fabrics_commands_out_of_place() {
    let mut host = Host::nvm();
    let connect = FabricsCommand::Connect(Connect::new(0, 31, 0));
    assert_eq!(host.fabrics(connect), generic(Generic::CommandSequenceError));
    let refused = host.fabrics(FabricsCommand::Disconnect { recfmt: 0 });
    assert_eq!(refused, specific(CommandSpecific::DisconnectInvalidQueueType));
    let refused = host.fabrics(FabricsCommand::Disconnect { recfmt: 1 });
    assert_eq!(refused, specific(CommandSpecific::ConnectIncompatibleFormat));
    let message = Authentication { secp: 0xE9, spsp0: 1, spsp1: 1, length_bytes: 8 };
    for command in [
        FabricsCommand::AuthenticationSend(message),
        FabricsCommand::AuthenticationReceive(message),
    ] {
        assert_eq!(host.fabrics(command), generic(Generic::InvalidOpcode));
    }
    let unknown = Sqe { nsid: U32::new(0x55), ..Sqe::new(FABRICS_OPCODE, 0) };
    assert_eq!(host.run(unknown, Data::None), generic(Generic::InvalidField));
}
