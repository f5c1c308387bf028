//! A host in memory and a controller: what every line of a host's demands needs.
use super::*;
use raidfabric_protocol::fabrics::command::{
    CONNECT_DATA_BYTES, Connect, ConnectData, FabricsCommand,
};
use raidfabric_protocol::fabrics::{Property, PropertySize, nqn};
use raidfabric_protocol::nvme::admin::{GetFeatures, SetFeatures};
use raidfabric_protocol::nvme::feature::{FeatureId, FeatureSelect};
use raidfabric_protocol::nvme::identify::{Cns, IdentifyController, NSID_ALL};
use raidfabric_protocol::nvme::registers::Csts;
use raidfabric_protocol::nvme::sgl::Sgl;
use raidfabric_protocol::nvme::status::Code;
use std::time::Duration;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

mod admission;
mod commands;
mod features;
mod hostile;
mod linux;
mod logs;
mod properties;

const NQN: &str = "nqn.2026-11.io.raidfabric:fast";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6f2c5ba1-32b1-4b3a-9a5e-1f2c5ba132b1";
const HOST_ID: [u8; 16] = [0xA5; 16];

fn namespace(nsid: u32, block_size_bytes: u32) -> Namespace {
    Namespace {
        nsid,
        block_size_bytes,
        size_blocks: (1 << 30) / u64::from(block_size_bytes),
        nguid: [nsid as u8; 16],
        uuid: [nsid as u8 | 0x80; 16],
        volatile_cache: true,
        ready: true,
        deallocation: Deallocation {
            reads_zeros: true,
            by_write_zeroes: true,
            granularity_bytes: 65_536,
        },
        write_granularity_bytes: 65_536,
        optimal_write_bytes: 0,
        stripe_bytes: 131_072,
    }
}

fn subsystem_with(namespaces: Vec<Namespace>) -> Arc<Subsystem> {
    let hosts = Hosts::Only([HOST.to_owned()].into());
    let serial = "0123456789ABCDEF".to_owned();
    let made = Subsystem::new(NQN.into(), serial, hosts, Limits::default(), namespaces);
    Arc::new(made.unwrap())
}

fn subsystem() -> Arc<Subsystem> {
    subsystem_with(vec![namespace(5, 512), namespace(1, 4096)])
}

fn service() -> Arc<Discovery> {
    let listener = |port_id, address: &str| Listener { port_id, address: address.parse().unwrap() };
    Arc::new(Discovery {
        serial: "discovery".into(),
        limits: Limits::default(),
        generation: 1,
        listeners: vec![listener(2, "192.0.2.10:8009")],
        subsystems: vec![Advertised {
            nqn: NQN.into(),
            hosts: Hosts::Any,
            listeners: vec![listener(1, "192.0.2.10:4420")],
            max_admin_queue_entries: 128,
        }],
    })
}

fn connect_data(subsystem_nqn: &str, cntlid: u16) -> ConnectData {
    ConnectData {
        hostid: HOST_ID,
        cntlid: cntlid.into(),
        subnqn: nqn::to_field(subsystem_nqn).unwrap(),
        hostnqn: nqn::to_field(HOST).unwrap(),
        ..ConnectData::default()
    }
}

fn request(connect: Connect, data: &ConnectData) -> Result<Request, ConnectError> {
    Request::parse(&FabricsCommand::Connect(connect).to_sqe(0), data.as_bytes())
}

/// What a test controller sees of the world.
#[derive(Default)]
struct World {
    health: Health,
    /// The one command that can be aborted.
    abortable: Option<(u16, u16)>,
}

impl Environment for World {
    fn health(&self) -> Health {
        self.health.clone()
    }

    fn abort(&mut self, sqid: u16, cid: u16) -> bool {
        self.abortable == Some((sqid, cid))
    }
}

/// A host with its admin queue on a controller.
struct Host {
    controller: Controller,
    world: World,
    now: Instant,
    cid: u16,
}

impl Host {
    fn connected(kind: Kind, kato_ms: u32) -> Self {
        let name = if kind.subsystem().is_some() { NQN } else { nqn::DISCOVERY_NQN };
        let request = request(Connect::new(0, 31, kato_ms), &connect_data(name, 0xFFFF)).unwrap();
        let now = Instant::now();
        let (controller, _) = Controller::connect(&request, kind, 7, now).unwrap();
        Self { controller, world: World::default(), now, cid: 0 }
    }

    fn nvm() -> Self {
        let mut host = Self::connected(Kind::Nvm(subsystem()), 5000);
        host.enable();
        host
    }

    fn discovery() -> Self {
        let via = "192.0.2.10:8009".parse().unwrap();
        let mut host = Self::connected(Kind::Discovery { service: service(), via }, 0);
        host.enable();
        host
    }

    fn enable(&mut self) {
        self.set_cc(0x0046_0001).unwrap();
    }

    fn set_cc(&mut self, value: u64) -> Result<u64, Status> {
        let offset = Property::Cc.raw();
        self.fabrics(FabricsCommand::PropertySet { offset, size: PropertySize::Four, value })
    }

    fn csts(&mut self) -> Csts {
        let property = Property::Csts;
        let command = FabricsCommand::PropertyGet { offset: property.raw(), size: property.size() };
        Csts::from_raw(self.fabrics(command).unwrap() as u32)
    }

    fn fabrics(&mut self, command: FabricsCommand) -> Result<u64, Status> {
        self.run(command.to_sqe(0), Data::None)
    }

    /// Runs one entry, with its data, and gives its result.
    fn run(&mut self, mut sqe: Sqe, data: Data<'_>) -> Result<u64, Status> {
        self.cid += 1;
        sqe.cid = self.cid.into();
        let permit = Permit::new(self.cid);
        let outcome = self.controller.handle_admin(self.now, permit, &sqe, data, &mut self.world);
        let AdminOutcome::Complete(completion) = outcome else { panic!("held: {sqe:?}") };
        assert_eq!(completion.cid(), self.cid);
        match completion.status() {
            Status::SUCCESS => Ok(completion.result()),
            status => Err(status),
        }
    }

    fn admin(&mut self, command: AdminCommand) -> Result<u64, Status> {
        self.run(command.to_sqe(0), Data::None)
    }

    /// Runs a command that gives data to the host.
    fn read(&mut self, command: AdminCommand, bytes: usize) -> Result<Vec<u8>, Status> {
        let sqe = Sqe { dptr: Sgl::transport(bytes as u32), ..command.to_sqe(0) };
        let limit = Limits::default().max_transfer_bytes;
        let expected = Transfer::ToHost { length_bytes: bytes as u32 };
        assert_eq!(admin_transfer(&sqe, 0, limit)?, expected);
        // Not zeros: what is not written would be seen.
        let mut data = vec![0xEE; bytes];
        self.run(sqe, Data::ToHost(&mut data))?;
        Ok(data)
    }

    fn identify(&mut self, cns: Cns, nsid: u32) -> Result<Vec<u8>, Status> {
        let command = Identify { cns: cns.raw(), nsid, ..Identify::default() };
        self.read(AdminCommand::Identify(command), IDENTIFY_BYTES)
    }

    fn identify_controller(&mut self) -> IdentifyController {
        let data = self.identify(Cns::Controller, 0).unwrap();
        IdentifyController::read_from_bytes(&data).unwrap()
    }

    fn log(&mut self, log: LogId, bytes: usize, retain_event: bool) -> Result<Vec<u8>, Status> {
        self.log_part(log, 0, bytes, retain_event)
    }

    fn log_part(
        &mut self,
        log: LogId,
        offset: u64,
        bytes: usize,
        retain_event: bool,
    ) -> Result<Vec<u8>, Status> {
        let command = GetLogPage {
            nsid: NSID_ALL,
            lid: log.raw(),
            numd: (bytes / 4 - 1) as u32,
            offset,
            retain_event,
            ..GetLogPage::default()
        };
        self.read(AdminCommand::GetLogPage(command), bytes)
    }

    fn get_feature(&mut self, feature: FeatureId) -> Result<u64, Status> {
        self.get_feature_with(feature, FeatureSelect::Current, 0)
    }

    fn get_feature_with(
        &mut self,
        feature: FeatureId,
        select: FeatureSelect,
        cdw11: u32,
    ) -> Result<u64, Status> {
        let command = GetFeatures { nsid: 0, fid: feature.raw(), select, cdw11, uuid_index: 0 };
        self.admin(AdminCommand::GetFeatures(command))
    }

    fn set_feature(&mut self, feature: FeatureId, value: u32) -> Result<u64, Status> {
        let command = SetFeatures { fid: feature.raw(), value, ..SetFeatures::default() };
        self.admin(AdminCommand::SetFeatures(command))
    }

    /// Sends an Asynchronous Event Request; its command identifier.
    fn request_event(&mut self) -> u16 {
        self.cid += 1;
        let sqe = AdminCommand::AsyncEventRequest.to_sqe(self.cid);
        let permit = Permit::new(self.cid);
        let held =
            self.controller.handle_admin(self.now, permit, &sqe, Data::None, &mut self.world);
        assert_eq!(held, AdminOutcome::Held);
        self.cid
    }

    /// The next event that is reported: the request's identifier and DW0.
    fn event(&mut self) -> Option<(u16, u64)> {
        let completion = self.controller.poll_completion()?;
        assert_eq!(completion.status(), Status::SUCCESS);
        Some((completion.cid(), completion.result()))
    }

    fn connect_io(&mut self, qid: u16, sqsize: u16) -> Result<QueueGrant, ConnectError> {
        let data = connect_data(NQN, self.controller.cntlid());
        let request = request(Connect::new(qid, sqsize, 0), &data)?;
        self.controller.connect_io_queue(&request)
    }
}

fn generic(code: Generic) -> Result<u64, Status> {
    Err(code.into())
}

fn specific(code: CommandSpecific) -> Result<u64, Status> {
    Err(code.into())
}
