//! The admin queue: Identify, logs, features, events, properties, reset and shutdown.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use raidfabric_initiator::queue::Data;
use raidfabric_initiator::{Controller, Options};
use raidfabric_protocol::fabrics::command::{Authentication, FabricsCommand};
use raidfabric_protocol::fabrics::nqn::DISCOVERY_NQN;
use raidfabric_protocol::fabrics::{Property, PropertySize};
use raidfabric_protocol::nvme::admin::{
    AdminCommand, GetFeatures, GetLogPage, Identify, SetFeatures,
};
use raidfabric_protocol::nvme::feature::{FeatureId, FeatureSelect, NumberOfQueues};
use raidfabric_protocol::nvme::identify::*;
use raidfabric_protocol::nvme::log::{ErrorEntry, SmartLog, SupportedLogPages};
use raidfabric_protocol::nvme::registers::{Cap, Cc, Csts, ShutdownNotification, ShutdownStatus};
use raidfabric_protocol::nvme::sgl::Sgl;
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::nvme::status::{CommandSpecific, Generic, Status};
use raidfabric_tests::data::pattern;
use raidfabric_tests::host::{
    Login, NONE, RawHost, completion, open, options, read_sqe, soon, volume,
};
use raidfabric_tests::setup::{NQN, Setup, Target};
use zerocopy::FromBytes;

fn target() -> Target {
    Setup::memory("raid10", 4, 4).memory_array("b", "raid1", 2, 2).namespace(7, "b", 512).start()
}

fn status<T: std::fmt::Debug>(
    outcome: Result<T, raidfabric_initiator::Error>,
) -> raidfabric_protocol::nvme::status::Status {
    outcome.unwrap_err().status().unwrap()
}

#[tokio::test]
async fn identify_controller_is_what_hosts_demand() {
    let target = target();
    let controller = Controller::connect(target.address, NQN, &options()).await.unwrap();
    let id = controller.identity();
    assert_eq!(id.mdts, 8, "1 MiB in pages of 4 KiB");
    assert_eq!(id.ioccsz.get(), (64 + 16 * 1024) / 16);
    assert!(id.iorcsz.get() >= 1);
    assert_eq!(id.icdoff.get(), 0);
    assert!(id.sgls.support() != 0 && id.sgls.offset());
    assert_ne!(id.kas.get(), 0);
    assert_ne!(id.maxcmd.get(), 0);
    assert!(id.cmic.multi_controller());
    assert_eq!(id.cntrltype, ControllerType::Io.raw());
    assert_eq!(id.cntlid.get(), controller.cntlid());
    assert!(id.subnqn.starts_with(NQN.as_bytes()) && id.subnqn[NQN.len()] == 0);
    assert_eq!(id.sn.len(), 20);
    assert!(!ascii(&id.sn).trim().is_empty() && ascii(&id.sn).is_ascii());
    assert_eq!((id.sqes.minimum(), id.cqes.minimum()), (6, 4));
    assert!(id.oncs.dataset_management() && id.oncs.write_zeroes());
    assert!(!id.oncs.compare(), "only what works is advertised");
    assert!(!id.vwc.present(), "memory has no volatile cache");
    assert_eq!(id.fuses.get(), 0);
    assert!(id.nn.get() >= 7);
    let cap = controller.cap();
    assert_eq!(cap.mpsmin(), 0);
    assert!(cap.cqr() && cap.css_nvm());
    let other = Controller::connect(target.address, NQN, &options()).await.unwrap();
    assert_ne!(other.cntlid(), controller.cntlid());
    assert_eq!(other.identity().sn, id.sn);
    assert_eq!(other.identity().awupf, id.awupf);
    drop((controller, other));
    target.settle_and_stop().await;
}

#[tokio::test]
async fn identify_of_every_structure() {
    let target = target();
    let controller = Controller::connect(target.address, NQN, &options()).await.unwrap();
    let list = controller.identify(Cns::ActiveNamespaces, 0).await.unwrap();
    assert_eq!(list[..12], [1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    let rest = controller.identify(Cns::CommandSetActiveNamespaces, 1).await.unwrap();
    assert_eq!(rest[..8], [7, 0, 0, 0, 0, 0, 0, 0]);
    let mut seen = Vec::new();
    for (nsid, bytes, block) in [(1u32, 8u64 << 20, 4096u64), (7, 2 << 20, 512)] {
        let page = controller.identify(Cns::Namespace, nsid).await.unwrap();
        let id = IdentifyNamespace::read_from_bytes(&page).unwrap();
        assert_eq!(id.nsze.get(), bytes / block);
        assert_eq!((id.ncap, id.nuse), (id.nsze, id.nsze));
        assert_eq!(1u64 << id.lbaf[0].lbads, block);
        assert_eq!(id.nlbaf, 0);
        assert!(id.nmic.shared());
        assert_eq!(id.dlfeat.read_behaviour(), 1, "deallocated blocks read as zeros");
        assert_ne!(id.nguid, [0; 16]);
        let page = controller.identify(Cns::NamespaceDescriptors, nsid).await.unwrap();
        let ids: Vec<_> = namespace_ids(&page).collect();
        let of = |kind: NamespaceIdType| {
            ids.iter().find(|(found, _)| *found == kind.raw()).map(|(_, id)| id.to_vec()).unwrap()
        };
        assert_eq!(of(NamespaceIdType::Nguid), id.nguid);
        assert_ne!(of(NamespaceIdType::Uuid), [0; 16]);
        assert_eq!(of(NamespaceIdType::Csi), [CSI_NVM]);
        seen.push(id.nguid.to_vec());
        let page = controller.identify(Cns::IndependentNamespace, nsid).await.unwrap();
        let id = IndependentNamespace::read_from_bytes(&page).unwrap();
        assert!(id.nstat.nrdy() && id.nmic.shared());
        let page = controller.identify(Cns::CommandSetNamespace, nsid).await.unwrap();
        assert_eq!(page.len(), 4096);
    }
    assert_ne!(seen[0], seen[1]);
    controller.identify(Cns::CommandSetController, 0).await.unwrap();
    // A namespace that could be there and is not: zeros, or not active.
    let page = controller.identify(Cns::Namespace, 2).await.unwrap();
    assert!(page.iter().all(|byte| *byte == 0));
    let inactive: Status = Generic::InvalidNamespaceOrFormat.into();
    assert_eq!(status(controller.identify(Cns::NamespaceDescriptors, 2).await), inactive);
    for nsid in [0, 5000, NSID_ALL] {
        assert_eq!(status(controller.identify(Cns::Namespace, nsid).await), inactive);
    }
    let identify = async |command: Identify, room: usize| {
        let sqe = AdminCommand::Identify(command).to_sqe(0);
        controller.command("Identify", sqe, Data::Read(BytesMut::zeroed(room))).await
    };
    for cns in [0x09u8, 0x10, 0x1C, 0x55, 0xFF] {
        let refused = status(identify(Identify { cns, ..Identify::default() }, 4096).await);
        assert_eq!(refused, Generic::InvalidField.into(), "CNS {cns:#04x}");
        assert!(refused.dnr);
    }
    let other_set = Identify { nsid: 1, cns: 0x05, csi: 2, ..Identify::default() };
    assert_eq!(status(identify(other_set, 4096).await), Generic::InvalidField.into());
    let short = Identify { cns: 0x01, ..Identify::default() };
    assert_eq!(status(identify(short, 512).await), Generic::DataSglLengthInvalid.into());
    drop(controller);
    target.settle_and_stop().await;
}

#[tokio::test]
async fn every_log_can_be_read_in_parts() {
    let target = target();
    let controller = Controller::connect(target.address, NQN, &options()).await.unwrap();
    let served: [(u8, u32); 8] = [
        (0x00, 1024),
        (0x01, 64 * 64),
        (0x02, 512),
        (0x03, 512),
        (0x04, 4096),
        (0x05, 4096),
        (0x12, 1024),
        (0x13, 4096),
    ];
    let page = controller.log_page(0, 0, 0, 1024, false).await.unwrap();
    let supported = SupportedLogPages::read_from_bytes(&page).unwrap();
    for lid in 0..=u8::MAX {
        let expected = served.iter().any(|(served, _)| *served == lid);
        assert_eq!(supported.logs[usize::from(lid)].supported(), expected, "log {lid:#04x}");
        if !expected {
            let refused = status(controller.log_page(lid, 0, 0, 64, false).await);
            assert_eq!(refused, CommandSpecific::InvalidLogPage.into(), "log {lid:#04x}");
        }
    }
    for (lid, length) in served {
        let read = async |offset: u64, bytes: u32| {
            // The error log grows by our own mistakes; the part that is looked at does not.
            controller.log_page(lid, NSID_ALL, offset, bytes, true).await
        };
        let whole = read(0, length).await.unwrap();
        for (offset, bytes) in [(0, 4), (4, 8), (length / 2, length / 2), (length - 4, 4)] {
            let part = read(u64::from(offset), bytes).await.unwrap();
            let start = offset as usize;
            assert!(part == whole[start..start + bytes as usize], "log {lid:#04x} at {offset}");
        }
        let beyond = read(u64::from(length) - 4, 64).await.unwrap();
        assert!(beyond[4..].iter().all(|byte| *byte == 0), "zeros after the end");
        for offset in [1u64, 2, u64::from(length) + 4, 1 << 32, u64::MAX - 3] {
            let refused = status(read(offset, 4).await);
            assert_eq!(refused, Generic::InvalidField.into(), "log {lid:#04x} at {offset}");
        }
    }
    // More than MDTS, and a length that the descriptor contradicts.
    let most = controller.log_page(0x05, 0, 0, 1 << 20, false).await.unwrap();
    assert!(most[4096..].iter().all(|byte| *byte == 0));
    let refused = controller.log_page(0x05, 0, 0, (1 << 20) + 4, false).await;
    assert_eq!(status(refused), Generic::InvalidField.into());
    let command = GetLogPage { lid: 5, numd: 1023, ..GetLogPage::default() };
    let sqe = AdminCommand::GetLogPage(command).to_sqe(0);
    let data = Data::Read(BytesMut::zeroed(512));
    let refused = controller.command("Get Log Page", sqe, data).await;
    assert_eq!(status(refused), Generic::DataSglLengthInvalid.into());
    drop(controller);
    target.settle_and_stop().await;
}

#[tokio::test]
async fn logs_tell_what_happened() {
    let target = target();
    let (controller, volume) = volume(target.address, 4).await;
    let before = SmartLog::read_from_bytes(&controller.smart_log().await.unwrap()).unwrap();
    for _ in 0..5 {
        volume.write(3, pattern(1, 256 * 4096)).await.unwrap();
        volume.read(3, 256).await.unwrap();
        volume.read(3, 1).await.unwrap();
    }
    let after = SmartLog::read_from_bytes(&controller.smart_log().await.unwrap()).unwrap();
    let grown = |field: fn(&SmartLog) -> u128| field(&after) - field(&before);
    assert_eq!(grown(|log| log.host_writes.get()), 5);
    assert_eq!(grown(|log| log.host_reads.get()), 10);
    // 5 MiB are 10.24 units of 1000 blocks of 512 bytes.
    assert_eq!(grown(|log| log.data_units_written.get()), 11);
    assert_eq!(after.available_spare, 100);
    assert_eq!(after.critical_warning.raw(), 0);
    let errors = after.error_entries.get();
    volume.read(1 << 40, 1).await.unwrap_err();
    let page = controller.log_page(1, NSID_ALL, 0, 64, true).await.unwrap();
    let entry = ErrorEntry::read_from_bytes(&page).unwrap();
    assert_eq!(u128::from(entry.error_count.get()), errors + 1);
    assert_eq!((entry.sqid.get(), entry.opcode, entry.nsid.get()), (1, 2, 1));
    assert_eq!(entry.lba.get(), 1 << 40);
    drop((controller, volume));
    target.settle_and_stop().await;
}

#[tokio::test]
async fn features_are_got_and_set() {
    let target = target();
    let controller = Controller::connect(target.address, NQN, &options()).await.unwrap();
    for feature in [
        FeatureId::Arbitration,
        FeatureId::PowerManagement,
        FeatureId::TemperatureThreshold,
        FeatureId::ErrorRecovery,
        FeatureId::WriteAtomicity,
        FeatureId::AsyncEventConfiguration,
        FeatureId::HostBehavior,
    ] {
        controller.get_feature(feature, 0).await.unwrap();
        for select in [FeatureSelect::Default, FeatureSelect::Saved, FeatureSelect::Capabilities] {
            let command =
                GetFeatures { nsid: 0, fid: feature.raw(), select, cdw11: 0, uuid_index: 0 };
            let sqe = AdminCommand::GetFeatures(command).to_sqe(0);
            let data = Data::Discard(if feature == FeatureId::HostBehavior { 512 } else { 0 });
            let completion = controller.admin().submit(sqe, data).await.unwrap();
            assert!(completion.cqe.status().is_success(), "{feature:?} {select:?}");
        }
    }
    // There is no volatile cache over memory, so there is no such feature.
    let refused = status(controller.get_feature(FeatureId::VolatileWriteCache, 0).await);
    assert_eq!(refused, Generic::InvalidField.into());
    let refused = status(controller.get_feature(FeatureId::ReservationPersistence, 0).await);
    assert_eq!(refused, Generic::InvalidField.into());
    assert_eq!(controller.get_feature(FeatureId::KeepAliveTimer, 0).await.unwrap().0, 15_000);
    controller.set_feature(FeatureId::KeepAliveTimer, 12_345).await.unwrap();
    assert_eq!(controller.get_feature(FeatureId::KeepAliveTimer, 0).await.unwrap().0, 12_400);
    let (_, id) = controller.get_feature(FeatureId::HostIdentifier, 1).await.unwrap();
    assert_eq!(id.len(), 16);
    assert_ne!(id[..], [0; 16]);
    // Host Identifier is settled by Connect; nothing can be saved.
    let set = async |command: SetFeatures, data: Data| {
        let sqe = AdminCommand::SetFeatures(command).to_sqe(0);
        controller.admin().submit(sqe, data).await.unwrap().cqe.status()
    };
    let host_id = SetFeatures { fid: 0x81, value: 1, ..SetFeatures::default() };
    let refused: Status = Generic::CommandSequenceError.into();
    assert_eq!(set(host_id, Data::Write(Bytes::from(vec![9; 16]))).await, refused);
    let saved = SetFeatures { fid: 0x01, save: true, ..SetFeatures::default() };
    assert_eq!(set(saved, Data::None).await, CommandSpecific::FeatureNotSaveable.into());
    let unknown = SetFeatures { fid: 0x77, ..SetFeatures::default() };
    assert_eq!(set(unknown, Data::None).await, Generic::InvalidField.into());
    // Data of a feature in the capsule, and larger than the capsule, so that it is asked for.
    let behavior = SetFeatures { fid: 0x16, ..SetFeatures::default() };
    let mut data = vec![0; 512];
    data[0] = 1;
    assert!(set(behavior, Data::Write(data.clone().into())).await.is_success());
    data.resize(16 * 1024, 0);
    assert!(set(behavior, Data::Write(data.into())).await.is_success());
    assert_eq!(controller.get_feature(FeatureId::HostBehavior, 0).await.unwrap().1[0], 1);
    assert_eq!(controller.set_number_of_queues(3).await.unwrap(), 3);
    let queue = controller.io_queue(4).await.unwrap();
    let value = NumberOfQueues::default().with_submission(1).with_completion(1).raw();
    let too_late = controller.set_feature(FeatureId::NumberOfQueues, value).await;
    assert_eq!(status(too_late), Generic::CommandSequenceError.into());
    drop((queue, controller));
    target.settle_and_stop().await;
}

/// Four requests are held, the fifth is refused; an aborted one ends as aborted, the others with
/// the reset.
#[tokio::test]
async fn asynchronous_event_requests() {
    let target = target();
    let mut host = RawHost::connect(target.address, NONE).await;
    let aer = |cid| AdminCommand::AsyncEventRequest.to_sqe(cid);
    for cid in 100..105 {
        host.admin.send_command(&aer(cid), &[]).await.unwrap();
    }
    let refused = completion(&mut host.admin).await.unwrap();
    assert_eq!(
        (refused.cid.get(), refused.status()),
        (104, CommandSpecific::AerLimitExceeded.into())
    );
    let abort = AdminCommand::Abort { sqid: 0, cid: 101 }.to_sqe(1);
    host.admin.send_command(&abort, &[]).await.unwrap();
    let mut ended = Vec::new();
    for _ in 0..2 {
        let cqe = completion(&mut host.admin).await.unwrap();
        ended.push((cqe.cid.get(), cqe.status(), cqe.dw0.get() & 1));
    }
    ended.sort_by_key(|(cid, ..)| *cid);
    assert_eq!(ended[0], (1, Status::SUCCESS, 0), "aborted");
    assert_eq!((ended[1].0, ended[1].1), (101, Generic::AbortRequested.into()));
    // One that is not there is not aborted, and that is no error.
    for (sqid, cid) in [(0, 101), (0, 7), (1, 7), (9, 9)] {
        host.admin.send_command(&AdminCommand::Abort { sqid, cid }.to_sqe(2), &[]).await.unwrap();
        let cqe = completion(&mut host.admin).await.unwrap();
        assert_eq!((cqe.status(), cqe.dw0.get() & 1), (Status::SUCCESS, 1));
    }
    // There is room for one again.
    host.admin.send_command(&aer(105), &[]).await.unwrap();
    let cc = FabricsCommand::PropertySet {
        offset: Property::Cc.raw(),
        size: PropertySize::Four,
        value: 0,
    };
    host.admin.send_command(&cc.to_sqe(3), &[]).await.unwrap();
    let mut ended = Vec::new();
    for _ in 0..5 {
        ended.push(completion(&mut host.admin).await.unwrap().cid.get());
    }
    ended.sort_unstable();
    assert_eq!(ended, [3, 100, 102, 103, 105]);
    host.enable().await;
    host.admin.send_command(&aer(106), &[]).await.unwrap();
    let held = tokio::time::timeout(Duration::from_millis(100), host.admin.receive()).await;
    assert!(held.is_err(), "{held:?}");
    drop(host);
    target.settle_and_stop().await;
}

#[tokio::test]
async fn properties_are_got_and_set() {
    let target = target();
    let mut host = RawHost::connect(target.address, NONE).await;
    let mut run = async |command: FabricsCommand| {
        host.admin.send_command(&command.to_sqe(5), &[]).await.unwrap();
        completion(&mut host.admin).await.unwrap()
    };
    let get = |offset, size| FabricsCommand::PropertyGet { offset, size };
    let (four, eight) = (PropertySize::Four, PropertySize::Eight);
    let cap = run(get(0, eight)).await;
    assert_eq!(Cap::from_raw(cap.result()).mqes(), 1022);
    assert_eq!(run(get(8, four)).await.dw0.get(), 0x0002_0000);
    let csts = Csts::from_raw(run(get(0x1C, four)).await.dw0.get());
    assert!(csts.rdy() && !csts.cfs());
    assert_eq!(run(get(0x20, four)).await.dw0.get(), 0, "NSSR");
    let invalid: Status = Generic::InvalidField.into();
    for (offset, size) in [(0, four), (8, eight), (0x14, eight), (0x04, four), (0x38, eight)] {
        assert_eq!(run(get(offset, size)).await.status(), invalid, "get {offset:#x}");
    }
    for (offset, size) in [(0u32, eight), (8, four), (0x1C, four), (0x14, eight), (0x1000, four)] {
        let set = FabricsCommand::PropertySet { offset, size, value: 0 };
        assert_eq!(run(set).await.status(), invalid, "set {offset:#x}");
    }
    // CC that asks for what there is not: pages of 8 KiB, another command set, odd entries.
    let set = |cc: Cc| FabricsCommand::PropertySet {
        offset: 0x14,
        size: four,
        value: u64::from(cc.raw()),
    };
    let good = Cc::default().with_en(true).with_iosqes(6).with_iocqes(4);
    assert!(run(set(good.with_en(false))).await.status().is_success());
    for bad in [good.with_mps(1), good.with_css(1), good.with_iosqes(7), good.with_ams(1)] {
        assert_eq!(run(set(bad)).await.status(), invalid);
        assert!(!Csts::from_raw(run(get(0x1C, four)).await.dw0.get()).rdy());
    }
    assert!(run(set(good)).await.status().is_success());
    assert!(Csts::from_raw(run(get(0x1C, four)).await.dw0.get()).rdy());
    let receive = FabricsCommand::AuthenticationReceive(Authentication {
        secp: 0,
        spsp0: 0,
        spsp1: 0,
        length_bytes: 0,
    });
    assert_eq!(run(receive).await.status(), Generic::InvalidOpcode.into());
    let leave = FabricsCommand::Disconnect { recfmt: 0 };
    assert_eq!(run(leave).await.status(), CommandSpecific::DisconnectInvalidQueueType.into());
    // Only Fabrics commands before CC.EN.
    assert!(run(set(good.with_en(false))).await.status().is_success());
    host.admin.send_command(&AdminCommand::KeepAlive.to_sqe(1), &[]).await.unwrap();
    let cqe = completion(&mut host.admin).await.unwrap();
    assert_eq!(cqe.status(), Generic::CommandSequenceError.into());
    drop(host);
    target.settle_and_stop().await;
}

#[tokio::test]
async fn admin_commands_that_are_not_served() {
    let target = target();
    let mut host = RawHost::connect(target.address, NONE).await;
    let served = [0x02u8, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18, 0x7F];
    for opcode in (0..=u8::MAX).filter(|opcode| !served.contains(opcode)) {
        host.admin.send_command(&Sqe::new(opcode, 3), &[]).await.unwrap();
        let cqe = completion(&mut host.admin).await.unwrap();
        assert_eq!(cqe.status(), Generic::InvalidOpcode.into(), "opcode {opcode:#04x}");
    }
    // Data pointers that cannot be: PRPs, a keyed descriptor, in-capsule data that is not there.
    let identify = AdminCommand::Identify(Identify { cns: 1, ..Identify::default() }).to_sqe(4);
    let mut keyed = Sgl::transport(4096);
    keyed.identifier = raidfabric_protocol::nvme::sgl::SglIdentifier::from_raw(0x40);
    for (sqe, expected) in [
        (
            Sqe { flags: Default::default(), dptr: Sgl::transport(4096), ..identify },
            Generic::InvalidField,
        ),
        (Sqe { dptr: keyed, ..identify }, Generic::SglDescriptorTypeInvalid),
        (Sqe { dptr: Sgl::in_capsule(0, 4096), ..identify }, Generic::SglDescriptorTypeInvalid),
        (Sqe { dptr: Sgl::transport(u32::MAX), ..identify }, Generic::InvalidField),
    ] {
        host.admin.send_command(&sqe, &[]).await.unwrap();
        let cqe = completion(&mut host.admin).await.unwrap();
        assert_eq!(cqe.status(), expected.into());
    }
    drop(host);
    target.settle_and_stop().await;
}

/// A reset ends the I/O queues and leaves the association; what was written stays.
#[tokio::test]
async fn controller_reset() {
    let target = target();
    let mut host = RawHost::connect(target.address, NONE).await;
    for turn in 0..5u64 {
        let mut first = host.io(1, 32).await;
        let second = host.io(2, 32).await;
        first.send_command(&read_sqe(1, 0, 4), &[]).await.unwrap();
        let (_, data) = soon("data", first.receive_response()).await.unwrap();
        if turn > 0 {
            assert!(data == pattern(turn - 1, 4 * 4096), "written before the last reset");
        }
        let sqe = raidfabric_tests::host::inline_sqe(2, 0, 4);
        first.send_command(&sqe, &pattern(turn, 4 * 4096)).await.unwrap();
        assert!(completion(&mut first).await.unwrap().status().is_success());
        let cc = Cc::default().with_iosqes(6).with_iocqes(4);
        assert!(host.set_cc(cc).await.status().is_success());
        for mut queue in [first, second] {
            assert!(soon("the end of the queue", queue.receive_end()).await.unwrap().is_empty());
        }
        // Not enabled: no I/O queue.
        let mut early = open(target.address, NONE, Default::default()).await;
        let cqe = host.io_login(1, 32).send(&mut early).await.unwrap();
        assert_eq!(cqe.status(), Generic::CommandSequenceError.into());
        host.enable().await;
        // The queue that was refused may now be connected over the same connection, unless its
        // predecessor's end has not been noticed yet.
        let start = Instant::now();
        loop {
            let cqe = host.io_login(1, 32).send(&mut early).await.unwrap();
            if cqe.status().is_success() {
                break;
            }
            assert_eq!(cqe.status(), Generic::CommandSequenceError.into());
            assert!(start.elapsed() < Duration::from_secs(2), "queue 1 stays in use");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        early
            .send_command(
                &raidfabric_protocol::fabrics::FabricsCommand::Disconnect { recfmt: 0 }.to_sqe(9),
                &[],
            )
            .await
            .unwrap();
        assert!(completion(&mut early).await.unwrap().status().is_success());
        soon("the end of the queue", early.receive_end()).await.unwrap();
        target.settled_at("Disconnect", |in_use| in_use.connections == 1).await;
    }
    drop(host);
    target.settle_and_stop().await;
}

/// A shutdown ends the I/O queues; properties are answered all the while, and a reset starts anew.
#[tokio::test]
async fn controller_shutdown() {
    let target = target();
    let mut host = RawHost::connect(target.address, NONE).await;
    for notification in [ShutdownNotification::Normal, ShutdownNotification::Abrupt] {
        let mut io = host.io(1, 32).await;
        let cc = Cc::default().with_en(true).with_iosqes(6).with_iocqes(4);
        assert!(host.set_cc(cc.with_shn(notification.raw())).await.status().is_success());
        let start = Instant::now();
        loop {
            let get = FabricsCommand::PropertyGet {
                offset: Property::Csts.raw(),
                size: PropertySize::Four,
            };
            host.admin.send_command(&get.to_sqe(8), &[]).await.unwrap();
            let csts = Csts::from_raw(completion(&mut host.admin).await.unwrap().dw0.get());
            if csts.shst() == ShutdownStatus::Complete.raw() {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(5), "shutdown does not end");
        }
        soon("the end of the queue", io.receive_end()).await.unwrap();
        let mut late = open(target.address, NONE, Default::default()).await;
        let cqe = host.io_login(1, 32).send(&mut late).await.unwrap();
        assert_eq!(cqe.status(), Generic::CommandSequenceError.into());
        assert!(host.set_cc(cc.with_en(false)).await.status().is_success());
        host.enable().await;
        target.settled_at("shutdown", |in_use| in_use.connections == 2).await;
    }
    drop(host);
    target.settle_and_stop().await;
}

/// A host that is silent for its KATO loses its association, also at a discovery controller; one
/// that keeps alive, or asked for no timer, does not.
#[tokio::test]
async fn keep_alive() {
    let target = target();
    let login =
        |kato_ms, subnqn: &str| Login { kato_ms, subnqn: subnqn.into(), ..Login::default() };
    let mut ends = Vec::new();
    for subnqn in [NQN, DISCOVERY_NQN] {
        for kato_ms in [0u32, 250, 600] {
            // Before the timer can have begun, so that a slow machine is no fault of it.
            let start = Instant::now();
            let mut host = RawHost::connect_with(
                target.address,
                NONE,
                Default::default(),
                login(kato_ms, subnqn),
            )
            .await;
            ends.push(async move {
                let limit = Duration::from_millis(3000);
                let end = tokio::time::timeout(limit, host.admin.receive_end()).await;
                match kato_ms {
                    0 => assert!(end.is_err(), "{subnqn}: closed without a timer"),
                    _ => {
                        end.unwrap_or_else(|_| panic!("{subnqn}: alive after KATO {kato_ms}"))
                            .unwrap();
                        let after = start.elapsed() + Duration::from_millis(20);
                        assert!(after >= Duration::from_millis(kato_ms.into()), "after {after:?}");
                    }
                }
            });
        }
    }
    let lively = Options { keep_alive: Duration::from_millis(1500), ..options() };
    let controller = Controller::connect(target.address, NQN, &lively).await.unwrap();
    let volume = controller.volume(1, 4).await.unwrap();
    let all = ends.into_iter().map(tokio::spawn).collect::<Vec<_>>();
    for end in all {
        end.await.unwrap();
    }
    volume.read(0, 1).await.unwrap();
    controller.keep_alive().await.unwrap();
    drop((controller, volume));
    target.settle_and_stop().await;
}

/// An I/O queue ends with its association, wherever it is served.
#[tokio::test]
async fn io_queues_end_with_the_admin_queue() {
    let target = target();
    let host = RawHost::connect(target.address, NONE).await;
    let mut queues = Vec::new();
    for qid in 1..=4 {
        queues.push(host.io(qid, 16).await);
    }
    host.admin.reset().unwrap();
    for queue in &mut queues {
        soon("the end of the queue", queue.receive_end()).await.unwrap();
    }
    target.settle_and_stop().await;
}
