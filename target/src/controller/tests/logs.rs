//! Log pages, the events that point to them, the error log.
use super::*;
use raidfabric_protocol::fabrics::discovery::LogHeader;
use raidfabric_protocol::nvme::admin::AdminOpcode;
use raidfabric_protocol::nvme::io::{IoCommand, IoOpcode};
use raidfabric_protocol::nvme::log::*;

#[test]
fn the_effects_log_names_exactly_the_commands_served() {
    let mut host = Host::nvm();
    let page = host.log(LogId::CommandEffects, 4096, true).unwrap();
    let log = CommandEffectsLog::read_from_bytes(&page).unwrap();
    for opcode in 0..=255u8 {
        let sqe = Sqe::new(opcode, 0);
        let served = opcode == AdminOpcode::AsyncEventRequest.raw()
            || opcode != FABRICS_OPCODE
                && host.run(sqe, Data::None) != generic(Generic::InvalidOpcode);
        let entry = log.admin[usize::from(opcode)];
        assert_eq!(entry.supported(), served, "admin {opcode:#x}");
        let parsed = IoCommand::parse(&sqe);
        let entry = log.io[usize::from(opcode)];
        assert_eq!(entry.supported(), parsed.is_ok(), "I/O {opcode:#x}");
        let writes = [IoOpcode::Write, IoOpcode::WriteZeroes, IoOpcode::DatasetManagement];
        assert_eq!(entry.content(), writes.iter().any(|it| it.raw() == opcode));
    }
    let page = Host::discovery().log(LogId::CommandEffects, 4096, true).unwrap();
    let log = CommandEffectsLog::read_from_bytes(&page).unwrap();
    assert!(log.io.iter().all(|entry| entry.raw() == 0));
}

#[test]
fn the_supported_logs_are_exactly_those_that_can_be_read() {
    for mut host in [Host::nvm(), Host::discovery()] {
        let page = host.log(LogId::SupportedLogPages, 1024, true).unwrap();
        let supported = SupportedLogPages::read_from_bytes(&page).unwrap();
        for lid in 0..=255u8 {
            let command = GetLogPage { lid, numd: 3, ..GetLogPage::default() };
            let answer = host.read(AdminCommand::GetLogPage(command), 16);
            let listed = supported.logs[usize::from(lid)].supported();
            assert_eq!(answer.is_ok(), listed, "{lid:#x}");
            if !listed {
                assert_eq!(answer, Err(CommandSpecific::InvalidLogPage.into()), "{lid:#x}");
            }
        }
    }
}

#[test]
fn the_feature_effects_are_exactly_the_features() {
    for mut host in [Host::nvm(), Host::discovery()] {
        let page = host.log(LogId::FeatureEffects, 1024, true).unwrap();
        let log = FeatureEffectsLog::read_from_bytes(&page).unwrap();
        for fid in 0..=255u8 {
            let command = GetFeatures {
                nsid: 0,
                fid,
                select: FeatureSelect::Capabilities,
                cdw11: 0,
                uuid_index: 0,
            };
            let exists = host.admin(AdminCommand::GetFeatures(command)).is_ok();
            assert_eq!(log.features[usize::from(fid)].supported(), exists, "{fid:#x}");
        }
    }
}

#[test]
fn no_management_interface_command_is_served() {
    assert_eq!(Host::nvm().log(LogId::MiCommandEffects, 4096, true).unwrap(), [0; 4096]);
}

#[test]
fn parts_of_a_page_fit_together_and_what_is_beyond_is_zeros() {
    let mut host = Host::nvm();
    let whole = host.log(LogId::SmartHealth, 512, true).unwrap();
    assert_eq!(host.log_part(LogId::SmartHealth, 4, 8, true).unwrap(), whole[4..12]);
    let last = host.log_part(LogId::SmartHealth, 508, 16, true).unwrap();
    assert_eq!((&last[..4], &last[4..]), (&whole[508..], &[0; 12][..]));
    assert_eq!(host.log_part(LogId::SmartHealth, 512, 4, true).unwrap(), [0; 4]);
    let invalid = Err(Generic::InvalidField.into());
    assert_eq!(host.log_part(LogId::SmartHealth, 516, 4, true), invalid, "beyond the end");
    assert_eq!(host.log_part(LogId::SmartHealth, u64::MAX - 3, 4, true), invalid);
    assert_eq!(host.log_part(LogId::SmartHealth, 2, 4, true), invalid, "not a multiple of 4");
    let index = GetLogPage { lid: 2, numd: 0, index_offset: true, ..GetLogPage::default() };
    assert_eq!(host.read(AdminCommand::GetLogPage(index), 4), invalid, "not indexed");
}

#[test]
fn the_length_asked_for_is_the_length_of_the_data() {
    let mut host = Host::nvm();
    let command = |numd| {
        AdminCommand::GetLogPage(GetLogPage { lid: 2, numd, nsid: 0, ..GetLogPage::default() })
    };
    assert_eq!(host.read(command(0), 4).unwrap(), [0, 0, 0, 100], "nothing wrong, all spare");
    let length = Err(Generic::DataSglLengthInvalid.into());
    assert_eq!(host.read(command(0), 8), length);
    assert_eq!(host.read(command(3), 8), length);
    assert_eq!(host.admin(command(127)), generic(Generic::DataSglLengthInvalid));
    // As much as one transfer holds, and not more.
    assert_eq!(host.read(command((1 << 18) - 1), 1 << 20).unwrap().len(), 1 << 20);
    let invalid = generic(Generic::InvalidField);
    assert_eq!(host.admin(command(1 << 18)), invalid);
    assert_eq!(host.admin(command(u32::MAX)), invalid);
}

#[test]
fn the_smart_log_tells_what_was_measured() {
    let mut host = Host::nvm();
    host.world.health = Health {
        warning: CriticalWarning::default().with_reliability(true),
        temperature_kelvin: 320,
        available_spare_percent: 90,
        spare_threshold_percent: 10,
        percentage_used: 3,
        read_bytes: 512 * 1000 + 1,
        written_bytes: 512 * 1000,
        read_commands: 7,
        write_commands: 1 << 70,
        busy: Duration::from_secs(119),
        power_cycles: 4,
        power_on: Duration::from_secs(7199),
        unsafe_shutdowns: 5,
        media_errors: 6,
    };
    host.admin(AdminCommand::KeepAlive).unwrap();
    host.run(Sqe::new(0xFF, 0), Data::None).unwrap_err();
    let page = host.log(LogId::SmartHealth, 512, true).unwrap();
    let log = SmartLog::read_from_bytes(&page).unwrap();
    assert_eq!(log.critical_warning, CriticalWarning::default().with_reliability(true));
    assert_eq!(log.temperature_kelvin.get(), 320);
    assert_eq!((log.available_spare, log.available_spare_threshold), (90, 10));
    assert_eq!(log.percentage_used, 3);
    assert_eq!((log.data_units_read.get(), log.data_units_written.get()), (2, 1));
    assert_eq!((log.host_reads.get(), log.host_writes.get()), (7, 1 << 70));
    assert_eq!((log.busy_minutes.get(), log.power_on_hours.get()), (1, 1));
    assert_eq!((log.power_cycles.get(), log.unsafe_shutdowns.get()), (4, 5));
    assert_eq!((log.media_errors.get(), log.error_entries.get()), (6, 1));
    // There is one for the controller, none for a namespace.
    let one = GetLogPage { nsid: 1, lid: 2, numd: 127, ..GetLogPage::default() };
    let refused = host.read(AdminCommand::GetLogPage(one), 512);
    assert_eq!(refused, Err(Generic::InvalidField.into()));
}

#[test]
fn one_firmware_slot_holds_this_version() {
    let page = Host::nvm().log(LogId::FirmwareSlot, 512, true).unwrap();
    let log = FirmwareSlotLog::read_from_bytes(&page).unwrap();
    assert_eq!(log.afi.raw(), 1);
    assert!(log.frs[0].starts_with(FIRMWARE.as_bytes()));
    assert!(log.frs[1..].iter().all(|slot| *slot == [0; 8]));
}

fn error_entries(host: &mut Host) -> Vec<ErrorEntry> {
    let page = host.log(LogId::ErrorInformation, 4096, true).unwrap();
    let entries = page.chunks_exact(64).map(|entry| ErrorEntry::read_from_bytes(entry).unwrap());
    entries.take_while(|entry| entry.error_count.get() != 0).collect()
}

#[test]
fn errors_are_logged_newest_first_with_their_place() {
    let mut host = Host::nvm();
    assert!(error_entries(&mut host).is_empty());
    host.identify(Cns::Namespace, 0).unwrap_err();
    let first = host.cid;
    host.set_feature(FeatureId::PowerManagement, 1).unwrap_err();
    let entries = error_entries(&mut host);
    let seen: Vec<_> = entries.iter().map(|e| (e.error_count.get(), e.opcode)).collect();
    assert_eq!(seen, [(2, 0x09), (1, 0x06)]);
    let [newest, oldest] = [entries[0], entries[1]];
    assert_eq!(oldest.cid.get(), first);
    assert_eq!(Status::from(oldest.status), Generic::InvalidNamespaceOrFormat.into());
    assert_eq!((oldest.location.byte(), newest.location.byte()), (4, 44));
    assert_eq!((oldest.version, oldest.sqid.get()), (1, 0));
}

#[test]
fn the_error_log_keeps_the_newest() {
    let mut host = Host::nvm();
    for _ in 0..100 {
        host.run(Sqe::new(0xFF, 0), Data::None).unwrap_err();
    }
    let entries = error_entries(&mut host);
    assert_eq!(entries.len(), 64);
    assert_eq!(entries[0].error_count.get(), 100);
    assert_eq!(entries[63].error_count.get(), 37);
}

#[test]
fn io_errors_are_logged_too() {
    let mut host = Host::nvm();
    let mut sqe = Sqe::new(0x02, 9);
    sqe.nsid = 1.into();
    (sqe.cdw10, sqe.cdw11) = (0x10.into(), 1.into());
    host.controller.log_io_error(3, &sqe, Generic::LbaOutOfRange.into());
    let entry = error_entries(&mut host)[0];
    assert_eq!((entry.sqid.get(), entry.cid.get(), entry.nsid.get()), (3, 9, 1));
    assert_eq!(entry.lba.get(), 0x1_0000_0010);
}

#[test]
fn a_change_is_one_event_until_its_log_is_read_without_rae() {
    let mut host = Host::nvm();
    host.set_feature(FeatureId::AsyncEventConfiguration, 0x100).unwrap();
    let requests = [host.request_event(), host.request_event(), host.request_event()];
    let with = |nsids: &[u32]| {
        let all = nsids.iter().map(|&nsid| namespace(nsid, 4096)).collect();
        Event::Subsystem(subsystem_with(all))
    };
    host.controller.handle_event(with(&[1, 2]));
    assert_eq!(host.event(), Some((requests[0], 0x0004_0002)));
    host.controller.handle_event(with(&[1]));
    assert_eq!(host.event(), None, "masked");
    let changed = |page: Vec<u8>| -> Vec<u32> {
        let entries = page.chunks_exact(4).map(|e| u32::from_le_bytes(e.try_into().unwrap()));
        entries.take_while(|&nsid| nsid != 0).collect()
    };
    let page = host.log(LogId::ChangedNamespaces, 4096, true).unwrap();
    assert_eq!(changed(page), [2, 5]);
    host.controller.handle_event(with(&[1, 3]));
    assert_eq!(host.event(), None, "RAE keeps it masked");
    let page = host.log(LogId::ChangedNamespaces, 4096, false).unwrap();
    assert_eq!(changed(page), [2, 3, 5]);
    assert_eq!(host.event(), None, "the log has told it already");
    host.controller.handle_event(with(&[1]));
    assert_eq!(host.event(), Some((requests[1], 0x0004_0002)));
    let page = host.log(LogId::ChangedNamespaces, 4096, false).unwrap();
    assert_eq!(changed(page), [3], "each change once");
}

#[test]
fn the_same_again_is_no_change() {
    let mut host = Host::nvm();
    host.set_feature(FeatureId::AsyncEventConfiguration, 0x100).unwrap();
    host.request_event();
    host.controller.handle_event(Event::Subsystem(subsystem()));
    assert_eq!(host.event(), None);
}

#[test]
fn an_event_waits_for_a_request_and_for_being_wanted() {
    let mut host = Host::nvm();
    host.controller.handle_event(Event::Subsystem(subsystem_with(vec![])));
    host.request_event();
    assert_eq!(host.event(), None, "not wanted");
    let mut host = Host::nvm();
    host.set_feature(FeatureId::AsyncEventConfiguration, 0x100).unwrap();
    host.controller.handle_event(Event::Subsystem(subsystem_with(vec![])));
    assert_eq!(host.event(), None, "nobody asks");
    let cid = host.request_event();
    assert_eq!(host.event(), Some((cid, 0x0004_0002)));
    // Not wanted any more, before it was told.
    host.log(LogId::ChangedNamespaces, 4096, false).unwrap();
    host.controller.handle_event(Event::Subsystem(subsystem()));
    host.set_feature(FeatureId::AsyncEventConfiguration, 0).unwrap();
    host.request_event();
    assert_eq!(host.event(), None);
}

#[test]
fn too_many_changes_for_the_list_are_one_entry() {
    let limits = Limits { max_nsid: 4096, ..Limits::default() };
    let with = |count: u32| {
        let all = (1..=count).map(|nsid| {
            let mut made = namespace(nsid, 4096);
            made.nguid[..4].copy_from_slice(&nsid.to_be_bytes());
            made
        });
        let hosts = Hosts::Only([HOST.to_owned()].into());
        let all = all.collect();
        Arc::new(Subsystem::new(NQN.into(), "s".into(), hosts, limits, all).unwrap())
    };
    for (count, first) in [(1024, 1), (1025, NSID_ALL), (3000, NSID_ALL)] {
        let mut host = Host::connected(Kind::Nvm(with(0)), 0);
        host.enable();
        host.controller.handle_event(Event::Subsystem(with(count)));
        let page = host.log(LogId::ChangedNamespaces, 4096, false).unwrap();
        assert_eq!(page[..4], first.to_le_bytes(), "{count}");
        assert_eq!(page[4..8] == [0; 4], count != 1024);
    }
}

#[test]
fn a_removed_host_is_sent_away() {
    let mut host = Host::nvm();
    let mut new = (*subsystem()).clone();
    new.hosts = Hosts::Only(BTreeSet::new());
    host.controller.handle_event(Event::Subsystem(Arc::new(new)));
    let reason = CloseReason::HostRemoved;
    assert_eq!(host.controller.poll_effect(), Some(Effect::CloseAssociation(reason)));
}

#[test]
fn warnings_are_reported_when_they_appear() {
    let mut host = Host::nvm();
    let mut warm = subsystem_with(vec![namespace(1, 4096)]);
    Arc::get_mut(&mut warm).unwrap().warning_kelvin = 343;
    host.controller.handle_event(Event::Subsystem(warm));
    host.request_event();
    host.request_event();
    let health = |kelvin, spare| {
        let warning = CriticalWarning::default().with_spare(spare);
        Event::Health(Box::new(Health { temperature_kelvin: kelvin, warning, ..Health::default() }))
    };
    host.controller.handle_event(health(343, false));
    assert_eq!(host.event(), None, "not wanted yet");
    host.set_feature(FeatureId::AsyncEventConfiguration, 0x03).unwrap();
    host.controller.handle_event(health(343, false));
    assert_eq!(host.event().unwrap().1, 0x0002_0101);
    host.controller.handle_event(health(342, false));
    host.log(LogId::SmartHealth, 512, false).unwrap();
    host.controller.handle_event(health(342, true));
    assert_eq!(host.event().unwrap().1, 0x0002_0201);
    host.world.health.temperature_kelvin = 343;
    let page = host.log(LogId::SmartHealth, 512, false).unwrap();
    let log = SmartLog::read_from_bytes(&page).unwrap();
    assert!(log.critical_warning.temperature());
    // The host's own threshold counts; an unknown temperature crosses none.
    host.set_feature(FeatureId::TemperatureThreshold, 350).unwrap();
    let page = host.log(LogId::SmartHealth, 512, false).unwrap();
    assert_eq!(page[0], 0);
    host.set_feature(FeatureId::TemperatureThreshold, 0x0010_0000 | 343).unwrap();
    let page = host.log(LogId::SmartHealth, 512, false).unwrap();
    assert_eq!(page[0], 2, "too cold");
    host.world.health.temperature_kelvin = 0;
    assert_eq!(host.log(LogId::SmartHealth, 512, false).unwrap()[0], 0);
}

#[test]
fn the_discovery_log_is_read_in_parts_and_its_change_is_told() {
    let mut host = Host::discovery();
    host.set_feature(FeatureId::AsyncEventConfiguration, 0x8000_0000).unwrap();
    let cid = host.request_event();
    let header = host.log(LogId::Discovery, 1024, true).unwrap();
    let header = LogHeader::read_from_bytes(&header).unwrap();
    assert_eq!((header.genctr.get(), header.numrec.get()), (1, 2));
    let whole = host.log(LogId::Discovery, 3072, true).unwrap();
    let part = host.log_part(LogId::Discovery, 1024, 2048, true).unwrap();
    assert_eq!(part, whole[1024..]);

    let mut new = (*service()).clone();
    new.generation = 2;
    host.controller.handle_event(Event::Discovery(Arc::new(new.clone())));
    assert_eq!(host.event(), None, "nothing that this host would see");
    new.generation = 3;
    new.subsystems.clear();
    host.controller.handle_event(Event::Discovery(Arc::new(new)));
    assert_eq!(host.event(), Some((cid, 0x0070_F002)));
    let header = host.log(LogId::Discovery, 1024, false).unwrap();
    let header = LogHeader::read_from_bytes(&header).unwrap();
    assert_eq!((header.genctr.get(), header.numrec.get()), (3, 1));
}

#[test]
fn events_of_the_other_kind_of_controller_do_nothing() {
    let mut host = Host::nvm();
    host.controller.handle_event(Event::Discovery(service()));
    assert!(host.controller.kind().subsystem().is_some());
    let mut host = Host::discovery();
    host.controller.handle_event(Event::Subsystem(subsystem()));
    host.controller.handle_event(Event::Health(Box::default()));
    assert!(host.controller.kind().subsystem().is_none());
}
