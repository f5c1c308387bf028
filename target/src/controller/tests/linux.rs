//! What the Linux host asks, in its order, and what it demands of the answers.
use super::*;
use raidfabric_protocol::nvme::identify::{
    ControllerType, IdentifyNamespace, IndependentNamespace, NamespaceIdType, NvmController, ascii,
    namespace_ids,
};
use raidfabric_protocol::nvme::log::{CommandEffectsLog, SmartLog};
use raidfabric_protocol::nvme::registers::{Cap, Crto, Vs};

fn property(host: &mut Host, property: Property) -> u64 {
    let command = FabricsCommand::PropertyGet { offset: property.raw(), size: property.size() };
    host.fabrics(command).unwrap()
}

#[test]
fn the_whole_connect_as_linux_does_it() {
    let data = connect_data(NQN, 0xFFFF);
    let admin = request(Connect::new(0, 31, 15_000), &data).unwrap();
    assert!(!admin.is_discovery());
    let now = Instant::now();
    let kind = Kind::Nvm(subsystem());
    let (controller, grant) = Controller::connect(&admin, kind, 7, now).unwrap();
    assert_eq!((grant.qid, grant.entries, grant.sq_flow_control_disabled), (0, 32, false));
    assert_eq!(response(7), 7);
    let mut host = Host { controller, world: World::default(), now, cid: 0 };

    // Property Get CAP; a 4 KiB page must do; ready within CAP.TO, which CRTO does not undercut.
    let cap = Cap::from_raw(property(&mut host, Property::Cap));
    assert_eq!((cap.mpsmin(), cap.mqes(), cap.css_nvm()), (0, 1022, true));
    let crto = Crto::from_raw(property(&mut host, Property::Crto) as u32);
    assert!(cap.crwms() && !cap.crims());
    assert!(cap.to() > 0 && crto.crwmt() >= u16::from(cap.to()));

    // CC without EN first, then with it; poll CSTS; VS.
    host.set_cc(0x0046_0000).unwrap();
    assert!(!host.csts().rdy());
    host.set_cc(0x0046_0001).unwrap();
    let csts = host.csts();
    assert!(csts.rdy() && !csts.cfs());
    assert_eq!(Vs::from_raw(property(&mut host, Property::Vs) as u32), Vs::V2_0);

    // Identify Controller.
    let id = host.identify_controller();
    assert_eq!(id.cntlid.get(), 7);
    assert_eq!(id.ver.get(), Vs::V2_0.raw());

    // Effects log, if LPA says so; with NSID 0.
    assert!(id.lpa.effects_log());
    let effects = GetLogPage { lid: 5, numd: 1023, ..GetLogPage::default() };
    let page = host.read(AdminCommand::GetLogPage(effects), 4096).unwrap();
    let effects = CommandEffectsLog::read_from_bytes(&page).unwrap();
    assert!(effects.io[1].supported() && effects.io[1].content());

    // hwmon: SMART log and the composite temperature's thresholds.
    host.world.health.temperature_kelvin = 311;
    let smart = host.log(LogId::SmartHealth, 512, true).unwrap();
    assert_eq!(SmartLog::read_from_bytes(&smart).unwrap().temperature_kelvin.get(), 311);
    let threshold = |host: &mut Host, cdw11| {
        host.get_feature_with(FeatureId::TemperatureThreshold, FeatureSelect::Current, cdw11)
    };
    assert_eq!(threshold(&mut host, 0), Ok(0xFFFF));
    assert_eq!(threshold(&mut host, 1 << 20), Ok(0));

    // Number of queues, then the queues.
    assert_eq!(host.set_feature(FeatureId::NumberOfQueues, 0x0003_0003), Ok(0x0003_0003));
    for qid in 1..=4 {
        let grant = host.connect_io(qid, 127).unwrap();
        assert_eq!((grant.qid, grant.entries), (qid, 128));
    }

    // Events: OAES ∩ what Linux knows; then one request under its fixed identifier.
    let wanted = id.oaes.raw() & 0x8000_0B00;
    assert_eq!(wanted, 0x100);
    host.set_feature(FeatureId::AsyncEventConfiguration, wanted).unwrap();
    host.cid = 30;
    assert_eq!(host.request_event(), 31);

    scan_namespaces(&mut host);

    // A namespace grows: one event, log 04h, the new size.
    let mut grown = namespace(1, 4096);
    grown.size_blocks *= 2;
    let new = subsystem_with(vec![namespace(5, 512), grown]);
    host.controller.handle_event(Event::Subsystem(new));
    assert_eq!(host.event(), Some((31, 0x0004_0002)));
    let changed = host.log(LogId::ChangedNamespaces, 4096, false).unwrap();
    assert_eq!(changed[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    let id = host.identify(Cns::Namespace, 1).unwrap();
    assert_eq!(IdentifyNamespace::read_from_bytes(&id).unwrap().nsze.get(), 524_288);

    // Keep Alive at half the timeout.
    host.now += Duration::from_millis(7500);
    assert_eq!(host.admin(AdminCommand::KeepAlive), Ok(0));
    host.controller.handle_timeout(host.now + Duration::from_millis(14_999));
    assert_eq!(host.controller.poll_effect(), None);

    // Disconnect: a shutdown, and polling CSTS until it is done.
    host.set_cc(0x0046_4001).unwrap();
    assert_eq!(host.controller.poll_effect(), Some(Effect::Shutdown { flush: true }));
    assert_eq!(host.csts().shst(), 1);
    host.controller.handle_shutdown_done();
    assert_eq!((host.csts().shst(), host.csts().rdy()), (2, true));
}

fn scan_namespaces(host: &mut Host) {
    let id = host.identify(Cns::CommandSetController, 0).unwrap();
    let limits = NvmController::read_from_bytes(&id).unwrap();
    assert_eq!((limits.wzsl, limits.dmrl, limits.dmrsl.get()), (0, 0, 0));

    let list = host.identify(Cns::ActiveNamespaces, 0).unwrap();
    assert_eq!(list[..12], [1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);

    for nsid in [1u32, 5] {
        let list = host.identify(Cns::NamespaceDescriptors, nsid).unwrap();
        let ids: Vec<_> = namespace_ids(&list).collect();
        assert_eq!(ids[0], (NamespaceIdType::Nguid.raw(), &[nsid as u8; 16][..]));
        assert_eq!(ids[1], (NamespaceIdType::Uuid.raw(), &[nsid as u8 | 0x80; 16][..]));
        assert_eq!(ids[2], (NamespaceIdType::Csi.raw(), &[0][..]));
        assert_eq!(ids.len(), 3);

        let independent = host.identify(Cns::IndependentNamespace, nsid).unwrap();
        let independent = IndependentNamespace::read_from_bytes(&independent).unwrap();
        assert!(independent.nstat.nrdy(), "or Linux hides it");
        assert!(independent.nmic.shared());

        let id = host.identify(Cns::Namespace, nsid).unwrap();
        let id = IdentifyNamespace::read_from_bytes(&id).unwrap();
        assert_eq!(id.nmic.raw(), independent.nmic.raw());
        assert_eq!(id.nguid, [nsid as u8; 16]);
        let block_size = 1u64 << id.lbaf[0].lbads;
        assert_eq!(block_size, if nsid == 1 { 4096 } else { 512 });
        assert_eq!(id.nsze.get() * block_size, 1 << 30);
        assert_eq!((id.ncap, id.nuse), (id.nsze, id.nsze));
        assert_eq!((id.lbaf[0].ms.get(), id.flbas, id.nlbaf, id.dps), (0, 0, 0, 0));
    }
}

/// Each assertion is a check that Linux makes before it uses a controller.
#[test]
fn identify_controller_is_what_linux_demands() {
    let id = Host::nvm().identify_controller();
    assert!(id.ioccsz.get() >= 4);
    assert_eq!(id.ioccsz.get() * 16, 64 + Limits::default().in_capsule_bytes);
    assert!(id.iorcsz.get() >= 1);
    assert_eq!(id.icdoff.get(), 0);
    assert!(id.sgls.support() != 0 && id.sgls.offset() && id.sgls.transport());
    assert_eq!(id.kas.get(), 1);
    assert_eq!(id.maxcmd.get(), 1023);
    assert_eq!(id.cntrltype, ControllerType::Io.raw());
    assert!(id.cmic.multi_controller() && !id.cmic.ana());
    assert_eq!((id.awun.get(), id.awupf.get()), (0, 0));
    assert!(id.mdts >= 8, "1 MiB at least");
    assert_eq!((id.sqes.raw(), id.cqes.raw()), (0x66, 0x44));
    assert!(id.vwc.present());
    assert_eq!((ascii(&id.sn), ascii(&id.mn)), ("0123456789ABCDEF".into(), MODEL.into()));
    assert_eq!(ascii(&id.fr), FIRMWARE);
    assert!(id.sn.is_ascii() && !id.sn.contains(&0));
    assert_eq!(nqn::from_field(&id.subnqn), Ok(NQN));
    assert!(id.rtd3e.get() > 0);
    assert!(id.ctratt.hids() && !id.ctratt.tbkas() && !id.ctratt.elbas());
    assert_eq!(id.tnvmcap.get(), 2 << 30);
    assert_eq!(id.nn.get(), Limits::default().max_nsid);
    // Only what works.
    assert_eq!(id.oncs.raw(), 0b1_1100);
    assert_eq!((id.fuses.get(), id.oacs.get(), id.cdfs.get(), id.fna), (0, 0, 0, 0));
    assert_eq!((id.anagrpmax.get(), id.nwpc, id.fcatt), (0, 0, 0));
    assert_eq!((id.aerl, id.acl, id.elpe), (3, 3, 63));
}

#[test]
fn a_discovery_controller_says_that_it_is_one() {
    let mut host = Host::discovery();
    let id = host.identify_controller();
    assert_eq!(id.cntrltype, ControllerType::Discovery.raw());
    assert_eq!(nqn::from_field(&id.subnqn), Ok(nqn::DISCOVERY_NQN));
    assert_eq!((id.ioccsz.get(), id.kas.get()), (4, 1));
    assert_eq!(id.oaes.raw(), 0x8000_0000);
    assert!(id.lpa.extended_data());
    assert!(!id.oncs.dataset_management() && !id.vwc.present());
    assert_eq!(id.nn.get(), 0);
    // Everything else of Identify is about namespaces, which it has none of.
    for &cns in Cns::ALL {
        let answer = host.identify(cns, 1);
        assert_eq!(answer.is_ok(), cns == Cns::Controller, "{cns:?}");
    }
}

/// Set to the chunk, NOIOB would make Linux cut every larger write.
#[test]
fn the_io_boundary_is_a_data_stripe_that_linux_can_use() {
    let boundary = |stripe_bytes, block_size| {
        Namespace { stripe_bytes, ..namespace(1, block_size) }.io_boundary_blocks()
    };
    assert_eq!(boundary(128 << 10, 4096), 32);
    assert_eq!(boundary(256 << 10, 512), 512);
    assert_eq!(boundary(64 << 10, 4096), 0, "too small");
    assert_eq!(boundary(192 << 10, 4096), 0, "not a power of two");
    assert_eq!(boundary(0, 4096), 0, "none");
    assert_eq!(boundary(1 << 30, 512), 0, "does not fit the field");
}

#[test]
fn write_sizes_are_the_chunk_and_the_data_stripe_of_parity() {
    let mut parity = namespace(1, 4096);
    parity.optimal_write_bytes = 192 << 10;
    let mut plain = namespace(2, 4096);
    plain.write_granularity_bytes = 0;
    plain.deallocation = Deallocation::default();
    let mut host = Host::connected(Kind::Nvm(subsystem_with(vec![parity, plain])), 0);
    host.enable();
    let id = host.identify(Cns::Namespace, 1).unwrap();
    let id = IdentifyNamespace::read_from_bytes(&id).unwrap();
    assert!(id.nsfeat.optimal_io());
    assert_eq!((id.npwg.get(), id.npwa.get(), id.nows.get()), (15, 15, 47));
    assert_eq!((id.npdg.get(), id.npda.get()), (15, 15));
    assert_eq!(id.dlfeat.raw(), 0b1001);
    assert_eq!(id.noiob.get(), 32);
    let id = host.identify(Cns::Namespace, 2).unwrap();
    let id = IdentifyNamespace::read_from_bytes(&id).unwrap();
    assert_eq!((id.nsfeat.raw(), id.npwg.get(), id.dlfeat.raw()), (0, 0, 0));
}

#[test]
fn without_a_volatile_cache_none_is_advertised() {
    let mut durable = namespace(1, 4096);
    durable.volatile_cache = false;
    let mut host = Host::connected(Kind::Nvm(subsystem_with(vec![durable])), 0);
    host.enable();
    assert!(!host.identify_controller().vwc.present());
    assert_eq!(host.get_feature(FeatureId::VolatileWriteCache), generic(Generic::InvalidField));
}
