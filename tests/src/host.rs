//! Hosts that behave, and raw connections up to the point where they stop doing so.

use std::net::SocketAddr;
use std::time::Duration;

use raidfabric_initiator::raw::Connection;
use raidfabric_initiator::{Controller, Error, Host, Options, Volume};
use raidfabric_protocol::fabrics::command::{CNTLID_DYNAMIC, ConnectAttributes};
use raidfabric_protocol::fabrics::{
    Connect, ConnectData, ConnectResponse, FabricsCommand, Property, nqn,
};
use raidfabric_protocol::nvme::cqe::Cqe;
use raidfabric_protocol::nvme::io::{BlockRange, IoCommand, Prinfo};
use raidfabric_protocol::nvme::registers::Cc;
use raidfabric_protocol::nvme::sgl::Sgl;
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::tcp::{Digests, PduAlignment};
use zerocopy::IntoBytes;

use crate::setup::NQN;

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Options of a host that behaves.
pub fn options() -> Options {
    Options { timeout: PATIENCE, ..Options::default() }
}

/// Both digests.
pub const BOTH: Digests = Digests { header: true, data: true };
/// No digests.
pub const NONE: Digests = Digests { header: false, data: false };

/// A controller and namespace 1 over a queue of this depth.
pub async fn volume(address: SocketAddr, depth: u16) -> (Controller, Volume) {
    volume_with(address, depth, &options()).await
}

/// The same with options.
pub async fn volume_with(
    address: SocketAddr,
    depth: u16,
    options: &Options,
) -> (Controller, Volume) {
    let controller = Controller::connect(address, NQN, options).await.unwrap();
    let volume = controller.volume(1, depth).await.unwrap();
    (controller, volume)
}

/// A future that must end in time.
///
/// # Panics
/// It does not.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: nothing within {PATIENCE:?}"),
    }
}

/// What a raw host says in Connect.
#[derive(Clone, Debug)]
pub struct Login {
    /// Who it is.
    pub host: Host,
    /// Which subsystem it wants.
    pub subnqn: String,
    /// Which controller.
    pub cntlid: u16,
    /// Which queue.
    pub qid: u16,
    /// SQSIZE, 0's based.
    pub sqsize: u16,
    /// KATO.
    pub kato_ms: u32,
    /// No SQ flow control.
    pub disable_sq_flow_control: bool,
}

impl Default for Login {
    fn default() -> Self {
        Self {
            host: Host::random(),
            subnqn: NQN.into(),
            cntlid: CNTLID_DYNAMIC,
            qid: 0,
            sqsize: 31,
            kato_ms: 0,
            disable_sq_flow_control: false,
        }
    }
}

impl Login {
    /// The entry of Connect.
    pub fn sqe(&self) -> Sqe {
        let mut connect = Connect::new(self.qid, self.sqsize, self.kato_ms);
        connect.cattr =
            ConnectAttributes::default().with_disable_sq_flow_control(self.disable_sq_flow_control);
        FabricsCommand::Connect(connect).to_sqe(0x00C0)
    }

    /// The data of Connect.
    pub fn data(&self) -> ConnectData {
        ConnectData {
            hostid: self.host.id().into_bytes(),
            cntlid: self.cntlid.into(),
            subnqn: nqn::to_field(&self.subnqn).unwrap(),
            hostnqn: nqn::to_field(self.host.nqn()).unwrap(),
            ..ConnectData::default()
        }
    }

    /// Sends Connect on an initialized connection and gives its completion.
    ///
    /// # Errors
    /// The connection's.
    pub async fn send(&self, connection: &mut Connection) -> Result<Cqe, Error> {
        connection.send_command(&self.sqe(), self.data().as_bytes()).await?;
        completion(connection).await
    }
}

/// The next completion, which must come in a CapsuleResp.
///
/// # Errors
/// The connection's.
///
/// # Panics
/// None in time, or it came as SUCCESS.
pub async fn completion(connection: &mut Connection) -> Result<Cqe, Error> {
    let (cqe, _) = soon("a completion", connection.receive_response()).await?;
    Ok(cqe.expect("a completion, not SUCCESS"))
}

/// A raw association: an enabled controller, and raw I/O queues on it.
pub struct RawHost {
    address: SocketAddr,
    login: Login,
    digests: Digests,
    hpda: PduAlignment,
    /// The admin queue.
    pub admin: Connection,
    /// CNTLID.
    pub cntlid: u16,
}

impl RawHost {
    /// Connects and enables a controller.
    ///
    /// # Panics
    /// That is refused.
    pub async fn connect(address: SocketAddr, digests: Digests) -> Self {
        Self::connect_with(address, digests, PduAlignment::NONE, Login::default()).await
    }

    /// The same, asking for an alignment, with another Connect.
    ///
    /// # Panics
    /// That is refused.
    pub async fn connect_with(
        address: SocketAddr,
        digests: Digests,
        hpda: PduAlignment,
        login: Login,
    ) -> Self {
        let mut admin = open(address, digests, hpda).await;
        let cqe = login.send(&mut admin).await.unwrap();
        assert!(cqe.status().is_success(), "{}", cqe.status());
        let cntlid = ConnectResponse::from_raw(cqe.dw0.get()).cntlid();
        let mut this = Self { address, login, digests, hpda, admin, cntlid };
        this.enable().await;
        this
    }

    /// Sets CC.EN.
    ///
    /// # Panics
    /// The controller refuses.
    pub async fn enable(&mut self) {
        let cc = Cc::default().with_en(true).with_iosqes(6).with_iocqes(4);
        assert!(self.set_cc(cc).await.status().is_success());
    }

    /// Property Set of CC.
    ///
    /// # Panics
    /// No answer.
    pub async fn set_cc(&mut self, cc: Cc) -> Cqe {
        let property = Property::Cc;
        let command = FabricsCommand::PropertySet {
            offset: property.raw(),
            size: property.size(),
            value: u64::from(cc.raw()),
        };
        self.admin.send_command(&command.to_sqe(1), &[]).await.unwrap();
        completion(&mut self.admin).await.unwrap()
    }

    /// What this host says to connect I/O queue `qid`, of `entries` entries.
    pub fn io_login(&self, qid: u16, entries: u16) -> Login {
        Login { cntlid: self.cntlid, qid, sqsize: entries - 1, kato_ms: 0, ..self.login.clone() }
    }

    /// An I/O queue.
    ///
    /// # Panics
    /// That is refused.
    pub async fn io(&self, qid: u16, entries: u16) -> Connection {
        let mut connection = open(self.address, self.digests, self.hpda).await;
        let cqe = self.io_login(qid, entries).send(&mut connection).await.unwrap();
        assert!(cqe.status().is_success(), "{}", cqe.status());
        connection
    }
}

/// A connection after ICResp.
///
/// # Panics
/// There is none.
pub async fn open(address: SocketAddr, digests: Digests, hpda: PduAlignment) -> Connection {
    let mut connection = Connection::connect(address).await.unwrap();
    soon("ICResp", connection.initialize(digests, hpda)).await.unwrap();
    connection
}

/// A range of namespace 1.
pub fn range(slba: u64, blocks: u32) -> BlockRange {
    BlockRange {
        nsid: 1,
        slba,
        blocks,
        fua: false,
        limited_retry: false,
        prinfo: Prinfo::default(),
        storage_tag_check: false,
    }
}

/// A read of `blocks` of 4096 bytes.
pub fn read_sqe(cid: u16, slba: u64, blocks: u32) -> Sqe {
    Sqe { dptr: Sgl::transport(blocks * 4096), ..IoCommand::Read(range(slba, blocks)).to_sqe(cid) }
}

/// A write of `blocks` of 4096 bytes whose data the target has to ask for.
pub fn write_sqe(cid: u16, slba: u64, blocks: u32) -> Sqe {
    let command = IoCommand::Write { range: range(slba, blocks), directive: 0 };
    Sqe { dptr: Sgl::transport(blocks * 4096), ..command.to_sqe(cid) }
}

/// A write of `blocks` of 4096 bytes whose data are in its capsule.
pub fn inline_sqe(cid: u16, slba: u64, blocks: u32) -> Sqe {
    Sqe { dptr: Sgl::in_capsule(0, blocks * 4096), ..write_sqe(cid, slba, blocks) }
}
