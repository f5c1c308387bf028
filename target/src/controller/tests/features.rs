//! Features: each with its values, and each error.
use super::*;
use crate::controller::features::capabilities;
use raidfabric_protocol::nvme::feature::HostBehavior;

#[test]
fn each_feature_has_its_default() {
    let mut host = Host::nvm();
    for (feature, value) in [
        (FeatureId::Arbitration, 0),
        (FeatureId::PowerManagement, 0),
        (FeatureId::TemperatureThreshold, 0xFFFF),
        (FeatureId::ErrorRecovery, 0),
        (FeatureId::VolatileWriteCache, 1),
        (FeatureId::NumberOfQueues, 0x007F_007F),
        (FeatureId::WriteAtomicity, 0),
        (FeatureId::AsyncEventConfiguration, 0),
        (FeatureId::KeepAliveTimer, 5000),
    ] {
        assert_eq!(host.get_feature(feature), Ok(value), "{feature:?}");
        for select in [FeatureSelect::Default, FeatureSelect::Saved] {
            assert_eq!(host.get_feature_with(feature, select, 0), Ok(value), "{feature:?}");
        }
    }
}

#[test]
fn a_changed_value_is_current_and_the_default_stays() {
    let mut host = Host::nvm();
    for (feature, value) in [
        (FeatureId::Arbitration, 0x0302_0107),
        (FeatureId::PowerManagement, 0x20),
        (FeatureId::TemperatureThreshold, 350),
        (FeatureId::WriteAtomicity, 1),
        (FeatureId::AsyncEventConfiguration, 0x013F),
    ] {
        let default = host.get_feature(feature).unwrap();
        assert_eq!(host.set_feature(feature, value), Ok(0), "{feature:?}");
        assert_eq!(host.get_feature(feature), Ok(u64::from(value)), "{feature:?}");
        let still = host.get_feature_with(feature, FeatureSelect::Default, 0);
        assert_eq!(still, Ok(default), "{feature:?}");
    }
}

#[test]
fn values_that_cannot_be_are_refused() {
    let mut host = Host::nvm();
    for (feature, value) in [
        (FeatureId::PowerManagement, 1), // no second power state
        (FeatureId::TemperatureThreshold, 0x0001_0150), // no sensor 1
        (FeatureId::TemperatureThreshold, 0x0020_0150), // reserved kind of threshold
        (FeatureId::NumberOfQueues, 0x0000_FFFF),
        (FeatureId::NumberOfQueues, 0xFFFF_0000),
        (FeatureId::AsyncEventConfiguration, 0x0800), // no ANA
        (FeatureId::AsyncEventConfiguration, 0x8000_0000), // no discovery log
    ] {
        let refused = host.set_feature(feature, value);
        assert_eq!(refused, generic(Generic::InvalidField), "{feature:?} {value:#x}");
    }
    for sensor in 1..=15 {
        let asked = host.get_feature_with(
            FeatureId::TemperatureThreshold,
            FeatureSelect::Current,
            sensor << 16,
        );
        assert_eq!(asked, generic(Generic::InvalidField), "sensor {sensor}");
    }
}

#[test]
fn features_that_are_fixed_can_only_be_set_to_what_they_are() {
    let mut host = Host::nvm();
    assert_eq!(host.set_feature(FeatureId::VolatileWriteCache, 1), Ok(0));
    assert_eq!(host.set_feature(FeatureId::ErrorRecovery, 0), Ok(0));
    let fixed = specific(CommandSpecific::FeatureNotChangeable);
    assert_eq!(host.set_feature(FeatureId::VolatileWriteCache, 0), fixed);
    assert_eq!(host.set_feature(FeatureId::ErrorRecovery, 1), fixed);
    assert_eq!(host.set_feature(FeatureId::ErrorRecovery, 1 << 16), fixed, "no DULBE");
}

#[test]
fn every_other_feature_is_an_invalid_field() {
    let mut host = Host::nvm();
    for fid in 0..=255u8 {
        let known = FeatureId::from_raw(fid)
            .filter(|&feature| capabilities(feature, host.controller.kind().subsystem()).is_some());
        if known.is_some() {
            continue;
        }
        let get =
            GetFeatures { nsid: 0, fid, select: FeatureSelect::Current, cdw11: 0, uuid_index: 0 };
        let invalid = generic(Generic::InvalidField);
        assert_eq!(host.admin(AdminCommand::GetFeatures(get)), invalid, "{fid:#x}");
        let set = SetFeatures { fid, ..SetFeatures::default() };
        assert_eq!(host.admin(AdminCommand::SetFeatures(set)), invalid, "{fid:#x}");
    }
}

#[test]
fn capabilities_say_what_set_features_does() {
    for mut host in [Host::nvm(), Host::discovery()] {
        for &feature in FeatureId::ALL {
            let answer = host.get_feature_with(feature, FeatureSelect::Capabilities, 0);
            let expected = capabilities(feature, host.controller.kind().subsystem());
            let expected = expected.map(|capabilities| u64::from(capabilities.raw()));
            assert_eq!(answer.ok(), expected, "{feature:?}");
        }
    }
}

#[test]
fn nothing_is_saved() {
    let mut host = Host::nvm();
    let set = SetFeatures { fid: 1, save: true, ..SetFeatures::default() };
    let refused = host.admin(AdminCommand::SetFeatures(set));
    assert_eq!(refused, specific(CommandSpecific::FeatureNotSaveable));
}

#[test]
fn controller_features_are_not_of_a_namespace() {
    let mut host = Host::nvm();
    let set = |nsid| AdminCommand::SetFeatures(SetFeatures { nsid, fid: 1, ..Default::default() });
    assert_eq!(host.admin(set(NSID_ALL)), Ok(0));
    let refused = specific(CommandSpecific::FeatureNotNamespaceSpecific);
    assert_eq!(host.admin(set(1)), refused);
    let get = |nsid, feature: FeatureId| {
        let select = FeatureSelect::Current;
        let fid = feature.raw();
        AdminCommand::GetFeatures(GetFeatures { nsid, fid, select, cdw11: 0, uuid_index: 0 })
    };
    // Asking with a namespace is harmless, but a feature of one needs one that exists.
    assert_eq!(host.admin(get(1, FeatureId::Arbitration)), Ok(0));
    assert_eq!(host.admin(get(5, FeatureId::ErrorRecovery)), Ok(0));
    let unknown = generic(Generic::InvalidNamespaceOrFormat);
    assert_eq!(host.admin(get(2, FeatureId::ErrorRecovery)), unknown);
}

#[test]
fn queues_are_granted_before_the_first_is_connected() {
    let mut host = Host::nvm();
    let queues = FeatureId::NumberOfQueues;
    assert_eq!(host.set_feature(queues, 0x0001_0003), Ok(0x0001_0001), "pairs");
    assert_eq!(host.set_feature(queues, 0xFFFE_FFFE), Ok(0x007F_007F), "all there are");
    host.connect_io(1, 31).unwrap();
    assert_eq!(host.set_feature(queues, 0), generic(Generic::CommandSequenceError));
    assert_eq!(host.get_feature(queues), Ok(0x007F_007F));
}

#[test]
fn the_host_identifier_is_that_of_connect() {
    let mut host = Host::nvm();
    let get = |cdw11| {
        AdminCommand::GetFeatures(GetFeatures {
            nsid: 0,
            fid: FeatureId::HostIdentifier.raw(),
            select: FeatureSelect::Current,
            cdw11,
            uuid_index: 0,
        })
    };
    assert_eq!(host.read(get(1), 16).unwrap(), HOST_ID);
    assert_eq!(host.read(get(0), 16), Err(Generic::InvalidField.into()), "64 bits");
    assert_eq!(host.read(get(1), 8), Err(Generic::DataSglLengthInvalid.into()));
    assert_eq!(host.admin(get(1)), generic(Generic::DataSglLengthInvalid));
    let refused = host.set_feature(FeatureId::HostIdentifier, 1);
    assert_eq!(refused, generic(Generic::CommandSequenceError));
}

#[test]
fn room_beyond_a_features_data_is_zeros() {
    let mut host = Host::nvm();
    let get = |feature: FeatureId, cdw11| {
        AdminCommand::GetFeatures(GetFeatures {
            nsid: 0,
            fid: feature.raw(),
            select: FeatureSelect::Current,
            cdw11,
            uuid_index: 0,
        })
    };
    assert_eq!(host.read(get(FeatureId::Arbitration, 0), 64).unwrap(), [0; 64]);
    let data = host.read(get(FeatureId::HostIdentifier, 1), 20).unwrap();
    assert_eq!((&data[..16], &data[16..]), (&HOST_ID[..], &[0; 4][..]));
}

#[test]
fn host_behavior_comes_as_data() {
    let mut host = Host::nvm();
    let set = AdminCommand::SetFeatures(SetFeatures {
        fid: FeatureId::HostBehavior.raw(),
        ..SetFeatures::default()
    });
    let sqe = Sqe { dptr: Sgl::in_capsule(0, 512), ..set.to_sqe(0) };
    let mut behavior = HostBehavior { acre: 1, ..HostBehavior::default() };
    assert_eq!(host.run(sqe, Data::FromHost(behavior.as_bytes())), Ok(0));
    let get = AdminCommand::GetFeatures(GetFeatures {
        nsid: 0,
        fid: FeatureId::HostBehavior.raw(),
        select: FeatureSelect::Current,
        cdw11: 0,
        uuid_index: 0,
    });
    assert_eq!(host.read(get, 512).unwrap(), behavior.as_bytes());
    behavior.etdas = 2;
    let refused = host.run(sqe, Data::FromHost(behavior.as_bytes()));
    assert_eq!(refused, generic(Generic::InvalidField));
    let short = host.run(sqe, Data::FromHost(&[0; 511]));
    assert_eq!(short, generic(Generic::DataSglLengthInvalid));
    assert_eq!(host.run(sqe, Data::None), generic(Generic::DataSglLengthInvalid));
}

#[test]
fn the_keep_alive_timeout_can_be_changed() {
    let mut host = Host::nvm();
    assert_eq!(host.set_feature(FeatureId::KeepAliveTimer, 1050), Ok(0));
    assert_eq!(host.get_feature(FeatureId::KeepAliveTimer), Ok(1100));
    let deadline = host.now + Duration::from_millis(1100);
    assert_eq!(host.controller.poll_timeout(), Some(deadline));
    assert_eq!(host.set_feature(FeatureId::KeepAliveTimer, 0), Ok(0));
    assert_eq!(host.controller.poll_timeout(), None);
}

#[test]
fn a_discovery_controller_has_few_features() {
    let mut host = Host::discovery();
    let changed = host.set_feature(FeatureId::AsyncEventConfiguration, 0x8000_0000);
    assert_eq!(changed, Ok(0));
    let refused = host.set_feature(FeatureId::AsyncEventConfiguration, 0x100);
    assert_eq!(refused, generic(Generic::InvalidField));
    let queues = host.set_feature(FeatureId::NumberOfQueues, 0);
    assert_eq!(queues, generic(Generic::InvalidField));
}
