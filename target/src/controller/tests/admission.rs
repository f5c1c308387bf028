//! Connect: each error with its status and where it says the fault is.
use super::*;
use raidfabric_protocol::nvme::sqe::SqeFlags;

const IN_DATA: u64 = 1 << 16;

/// What a host gets to see of a refusal.
fn refusal<T: std::fmt::Debug>(refused: Result<T, ConnectError>) -> (Code, bool, u64) {
    let error = refused.unwrap_err();
    assert!(!error.to_string().is_empty());
    (error.status().code, error.status().dnr, error.result())
}

fn invalid(result: u64) -> (Code, bool, u64) {
    (CommandSpecific::ConnectInvalidParameters.into(), true, result)
}

fn admit(connect: Connect, data: &ConnectData) -> Result<QueueGrant, ConnectError> {
    let request = request(connect, data)?;
    Controller::connect(&request, Kind::Nvm(subsystem()), 7, Instant::now()).map(|(_, grant)| grant)
}

#[test]
fn anything_before_connect_is_a_sequence_error() {
    let refused = (Generic::CommandSequenceError.into(), true, 0);
    for sqe in [
        AdminCommand::KeepAlive.to_sqe(1),
        Sqe::new(0xFF, 1),
        FabricsCommand::PropertyGet { offset: 0, size: PropertySize::Eight }.to_sqe(1),
        // Malformed, but first of all too early.
        FabricsCommand::Disconnect { recfmt: 9 }.to_sqe(1),
        Sqe { nsid: U32::new(0xEE), ..Sqe::new(FABRICS_OPCODE, 1) },
    ] {
        assert_eq!(refusal(Request::parse(&sqe, &[])), refused, "{sqe:?}");
    }
}

#[test]
fn a_malformed_connect_is_refused() {
    let data = connect_data(NQN, 0xFFFF);
    let mut connect = Connect::new(0, 31, 0);
    connect.recfmt = 1.into();
    let incompatible = (CommandSpecific::ConnectIncompatibleFormat.into(), true, 0);
    assert_eq!(refusal(request(connect, &data)), incompatible);

    let mut fused = Connect::new(0, 31, 0);
    fused.flags = SqeFlags::from_raw(0x41);
    assert_eq!(refusal(request(fused, &data)), (Generic::InvalidField.into(), true, 0));

    let sqe = FabricsCommand::Connect(Connect::new(0, 31, 0)).to_sqe(0);
    for length in [0, 1023, 1025] {
        let refused = Request::parse(&sqe, &vec![0; length]);
        assert_eq!(refusal(refused), (Generic::DataSglLengthInvalid.into(), true, 0));
    }
}

#[test]
fn names_must_be_names() {
    let connect = || Connect::new(0, 31, 0);
    let good = connect_data(NQN, 0xFFFF);
    let unterminated = ConnectData { subnqn: [b'n'; 256], ..good.clone() };
    assert_eq!(refusal(admit(connect(), &unterminated)), invalid(IN_DATA | 256));
    let unterminated = ConnectData { hostnqn: [b'n'; 256], ..good.clone() };
    assert_eq!(refusal(admit(connect(), &unterminated)), invalid(IN_DATA | 512));
    let nameless = ConnectData { hostnqn: [0; 256], ..good };
    assert_eq!(refusal(admit(connect(), &nameless)), invalid(IN_DATA | 512));
}

#[test]
fn a_host_must_be_allowed_byte_by_byte() {
    let invalid_host = (CommandSpecific::ConnectInvalidHost.into(), true, 0);
    for other in [HOST.to_uppercase(), format!("{HOST} "), HOST[..HOST.len() - 1].to_owned()] {
        let hostnqn = nqn::to_field(&other).unwrap();
        let data = ConnectData { hostnqn, ..connect_data(NQN, 0xFFFF) };
        assert_eq!(refusal(admit(Connect::new(0, 31, 0), &data)), invalid_host, "{other:?}");
    }
    assert!(admit(Connect::new(0, 31, 0), &connect_data(NQN, 0xFFFF)).is_ok());
}

#[test]
fn an_admin_queue_has_possible_values() {
    let data = connect_data(NQN, 0xFFFF);
    let with_size = |sqsize| admit(Connect::new(0, sqsize, 0), &data);
    assert_eq!(with_size(1).unwrap().entries, 2);
    assert_eq!(with_size(127).unwrap().entries, 128);
    for sqsize in [0, 128, 0xFFFF] {
        assert_eq!(refusal(with_size(sqsize)), invalid(44), "{sqsize}");
    }
    for cntlid in [0, 1, 0xFFFE] {
        let refused = admit(Connect::new(0, 31, 0), &connect_data(NQN, cntlid));
        assert_eq!(refusal(refused), invalid(IN_DATA | 16));
    }
    assert_eq!(refusal(admit(Connect::new(1, 31, 0), &data)), invalid(42));
}

#[test]
fn flow_control_is_as_the_host_says() {
    let mut connect = Connect::new(0, 31, 0);
    connect.cattr = connect.cattr.with_disable_sq_flow_control(true);
    assert!(admit(connect, &connect_data(NQN, 0xFFFF)).unwrap().sq_flow_control_disabled);
}

#[test]
fn what_the_caller_finds_missing_has_its_status() {
    let unknown = ConnectError::UnknownSubsystem { subsystem_nqn: "nqn.2026-11.io.x:y".into() };
    assert_eq!(refusal::<()>(Err(unknown)), invalid(IN_DATA | 256));
    let unknown = ConnectError::UnknownController { cntlid: 9, subsystem_nqn: NQN.into() };
    assert_eq!(refusal::<()>(Err(unknown)), invalid(IN_DATA | 16));
    let busy = ConnectError::Busy { what: "memory for buffers".into() };
    let retry = (CommandSpecific::ConnectControllerBusy.into(), false, 0);
    assert_eq!(refusal::<()>(Err(busy)), retry);
    let twice = (Generic::CommandSequenceError.into(), true, 0);
    assert_eq!(refusal::<()>(Err(ConnectError::AlreadyConnected)), twice);
}

#[test]
fn an_io_queue_needs_an_enabled_controller() {
    let sequence = (Generic::CommandSequenceError.into(), true, 0);
    let mut host = Host::connected(Kind::Nvm(subsystem()), 0);
    assert_eq!(refusal(host.connect_io(1, 31)), sequence);
    host.enable();
    assert!(host.connect_io(1, 31).is_ok());
    assert_eq!(refusal(host.connect_io(1, 31)), sequence, "in use");
    host.controller.handle_io_queue_closed(1);
    assert!(host.connect_io(1, 31).is_ok(), "and free again");
    host.set_cc(0x0046_4001).unwrap();
    assert_eq!(refusal(host.connect_io(2, 31)), sequence, "in a shutdown");
}

#[test]
fn an_io_queue_has_possible_values() {
    let mut host = Host::nvm();
    assert_eq!(host.set_feature(FeatureId::NumberOfQueues, 0x0001_0001), Ok(0x0001_0001));
    assert_eq!(refusal(host.connect_io(0, 31)), invalid(42));
    assert_eq!(refusal(host.connect_io(3, 31)), invalid(42));
    assert_eq!(refusal(host.connect_io(1, 0)), invalid(44));
    assert_eq!(refusal(host.connect_io(1, 1023)), invalid(44));
    assert_eq!(host.controller.io_queues().count(), 0, "a refusal leaves nothing behind");
    assert_eq!(host.connect_io(1, 1022).unwrap().entries, 1023);
    assert_eq!(host.controller.io_queues().collect::<Vec<_>>(), [1]);
}

#[test]
fn an_io_queue_belongs_to_its_host_and_subsystem() {
    let mut host = Host::nvm();
    let good = connect_data(NQN, 7);
    let mut connect = |data: &ConnectData| {
        let request = request(Connect::new(1, 31, 0), data).unwrap();
        host.controller.connect_io_queue(&request)
    };
    let other_name = "nqn.2026-11.io.raidfabric:slow";
    assert_eq!(refusal(connect(&connect_data(other_name, 7))), invalid(IN_DATA | 16));
    assert_eq!(refusal(connect(&connect_data(NQN, 8))), invalid(IN_DATA | 16));
    let other_host = ConnectData { hostnqn: nqn::to_field("nqn.x").unwrap(), ..good.clone() };
    assert_eq!(refusal(connect(&other_host)), invalid(IN_DATA | 512));
    let other_id = ConnectData { hostid: [1; 16], ..good.clone() };
    assert_eq!(refusal(connect(&other_id)), invalid(IN_DATA));
    assert!(connect(&good).is_ok());
}

#[test]
fn a_discovery_controller_has_no_io_queues() {
    let mut host = Host::discovery();
    let request = request(Connect::new(1, 31, 0), &connect_data(nqn::DISCOVERY_NQN, 7)).unwrap();
    assert!(request.is_discovery());
    assert_eq!(refusal(host.controller.connect_io_queue(&request)), invalid(42));
}

#[test]
fn any_host_may_ask_the_discovery_service() {
    let hostnqn = nqn::to_field("nqn.2014-08.com.vmware:nvme:esx-01").unwrap();
    let data = ConnectData { hostnqn, ..connect_data(nqn::DISCOVERY_NQN, 0xFFFF) };
    let request = request(Connect::new(0, 31, 0), &data).unwrap();
    let via = "[::1]:8009".parse().unwrap();
    let kind = Kind::Discovery { service: service(), via };
    assert!(Controller::connect(&request, kind, 1, Instant::now()).is_ok());
}

#[test]
fn controller_identifiers_are_unique_and_go_round() {
    let mut ids = ControllerIds::default();
    assert_eq!((ids.allocate(), ids.allocate()), (Some(1), Some(2)));
    ids.free(1);
    assert_eq!(ids.allocate(), Some(3), "not the one just freed");
    let rest: Vec<_> = std::iter::from_fn(|| ids.allocate()).collect();
    assert_eq!(rest.len(), 0xFFEF - 2);
    assert_eq!(rest.last(), Some(&1), "the freed one comes last");
    assert!(rest.iter().all(|&id| (1..=0xFFEF).contains(&id)));
    ids.free(0x1234);
    assert_eq!(ids.allocate(), Some(0x1234));
    assert_eq!(ids.allocate(), None);
}

#[test]
fn what_cannot_be_served_is_refused_when_described() {
    let build = |limits, namespaces| {
        Subsystem::new(NQN.into(), "s".into(), Hosts::Any, limits, namespaces).map(|_| ())
    };
    let limits = Limits::default();
    let changed = |change: &dyn Fn(&mut Namespace)| {
        let mut changed = namespace(1, 4096);
        change(&mut changed);
        build(limits, vec![changed])
    };
    assert_eq!(changed(&|_| ()), Ok(()));
    let out_of_range = |nsid| Err(SubsystemError::NsidOutOfRange { nsid, max: 128 });
    assert_eq!(changed(&|ns| ns.nsid = 0), out_of_range(0));
    assert_eq!(changed(&|ns| ns.nsid = 129), out_of_range(129));
    for bytes in [0, 256, 520, 131_072] {
        let refused = Err(SubsystemError::BlockSize { nsid: 1, bytes });
        assert_eq!(changed(&|ns| ns.block_size_bytes = bytes), refused);
    }
    let too_large = Err(SubsystemError::TooLarge { nsid: 1 });
    assert_eq!(changed(&|ns| ns.size_blocks = u64::MAX), too_large);
    let zeros = Err(SubsystemError::ZeroIdentifier { nsid: 1 });
    assert_eq!(changed(&|ns| ns.nguid = [0; 16]), zeros);
    assert_eq!(changed(&|ns| ns.uuid = [0; 16]), zeros);
    let twice = vec![namespace(3, 512), namespace(3, 4096)];
    assert_eq!(build(limits, twice), Err(SubsystemError::NsidTwice { nsid: 3 }));
    for limits in [
        Limits { max_transfer_bytes: 2048, ..limits },
        Limits { max_transfer_bytes: 3 << 20, ..limits },
        Limits { in_capsule_bytes: 8, ..limits },
        Limits { max_queue_entries: 1, ..limits },
        Limits { max_admin_queue_entries: 31, ..limits },
        Limits { max_io_queues: 0, ..limits },
        Limits { max_nsid: 0, ..limits },
    ] {
        assert!(matches!(build(limits, vec![]), Err(SubsystemError::Limit { .. })), "{limits:?}");
    }
}

#[test]
fn connect_data_is_the_size_that_the_wire_says() {
    assert_eq!(connect_data(NQN, 0).as_bytes().len(), CONNECT_DATA_BYTES);
}
