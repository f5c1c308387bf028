//! An association with a controller: from Connect to shutdown.
//!
//! Connecting goes as the Linux host does it: Connect on the admin queue, CAP, CC.EN, wait for
//! CSTS.RDY, Identify Controller. Keep-alives go out by themselves from then on. I/O queues are
//! further connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use raidfabric_protocol::fabrics::command::{CNTLID_DYNAMIC, ConnectAttributes};
use raidfabric_protocol::fabrics::discovery::{LogEntry, LogHeader, RECORD_BYTES};
use raidfabric_protocol::fabrics::{
    Connect, ConnectData, ConnectResponse, FabricsCommand, Property, PropertySize, nqn,
};
use raidfabric_protocol::nvme::admin::{
    AdminCommand, AsyncEvent, GetFeatures, GetLogPage, Identify, SetFeatures,
};
use raidfabric_protocol::nvme::feature::{FeatureId, FeatureSelect, NumberOfQueues, data_bytes};
use raidfabric_protocol::nvme::identify::{
    Cns, ControllerType, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, NSID_ALL,
};
use raidfabric_protocol::nvme::log::LogId;
use raidfabric_protocol::nvme::registers::{Cap, Cc, Csts, ShutdownNotification, ShutdownStatus};
use raidfabric_protocol::nvme::sqe::Sqe;
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;
use zerocopy::{FromBytes, IntoBytes};

use crate::queue::{Data, Queue, within};
use crate::{Done, Error, IoQueue, Namespace, Options};

/// SQHD in Connect's completion that grants a queue without SQ flow control.
const SQHD_NO_FLOW_CONTROL: u16 = 0xFFFF;

/// I/O queues asked for unless [`Controller::set_number_of_queues`] was called before.
const QUEUES_ASKED: u16 = 128;

/// Pause between looks at CSTS.
const STATUS_PERIOD: Duration = Duration::from_millis(5);

/// A connected, enabled controller. Dropping it closes the admin queue; [`Controller::shutdown`]
/// says goodbye first.
pub struct Controller {
    address: SocketAddr,
    subnqn: String,
    options: Options,
    cntlid: u16,
    cap: Cap,
    admin: IoQueue,
    identify: Box<IdentifyController>,
    queues: OnceCell<u16>,
    next_qid: AtomicU16,
    keep_alive: Option<AbortHandle>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("address", &self.address)
            .field("subnqn", &self.subnqn)
            .field("cntlid", &self.cntlid)
            .finish_non_exhaustive()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if let Some(task) = &self.keep_alive {
            task.abort();
        }
    }
}

impl Controller {
    /// Connects to a subsystem and enables the controller that it gives.
    ///
    /// # Errors
    /// No connection, a refused Connect, a controller that does not become ready, or an Identify
    /// that makes no sense.
    pub async fn connect(
        address: SocketAddr,
        subnqn: &str,
        options: &Options,
    ) -> Result<Self, Error> {
        let mut queue = Queue::connect(address, options.admin_depth, options).await?;
        let answer = connect_queue(&mut queue, 0, CNTLID_DYNAMIC, subnqn, options).await?;
        if answer.authentication_required() {
            let problem = "the controller requires in-band authentication, which is not there yet";
            return Err(Error::Unsupported(problem.into()));
        }
        let admin = IoQueue::start(queue, 0);
        let mut controller = Self {
            address,
            subnqn: subnqn.to_owned(),
            options: options.clone(),
            cntlid: answer.cntlid(),
            cap: Cap::default(),
            admin,
            identify: Box::default(),
            queues: OnceCell::new(),
            next_qid: AtomicU16::new(1),
            keep_alive: None,
        };
        controller.cap = Cap::from_raw(controller.property_get(Property::Cap).await?);
        controller.enable().await?;
        let page = controller.identify(Cns::Controller, 0).await?;
        controller.identify = Box::new(controller.check_identify(&page)?);
        controller.start_keep_alive();
        Ok(controller)
    }

    /// Sets CC.EN and waits for CSTS.RDY, at most CAP.TO.
    async fn enable(&self) -> Result<(), Error> {
        // 2^6-byte submission and 2^4-byte completion queue entries, 4 KiB pages.
        let cc = Cc::default().with_en(true).with_iosqes(6).with_iocqes(4);
        self.property_set(Property::Cc, u64::from(cc.raw())).await?;
        let limit = Duration::from_millis(500 * u64::from(self.cap.to().max(1)));
        self.await_status("CSTS.RDY", limit, |csts| csts.rdy()).await
    }

    async fn await_status(
        &self,
        what: &'static str,
        limit: Duration,
        reached: impl Fn(Csts) -> bool,
    ) -> Result<(), Error> {
        within(what, limit, async {
            loop {
                let csts = Csts::from_raw(self.property_get(Property::Csts).await? as u32);
                if csts.cfs() {
                    let problem = "the controller reports a fatal status (CSTS.CFS)";
                    return Err(Error::BadAnswer { command: "Property Get", problem });
                }
                if reached(csts) {
                    return Ok(());
                }
                tokio::time::sleep(STATUS_PERIOD).await;
            }
        })
        .await
    }

    /// Checks what every host relies on. A discovery controller has no I/O queues, and the Linux
    /// one leaves their capsule sizes 0.
    fn check_identify(&self, page: &[u8]) -> Result<IdentifyController, Error> {
        let bad = |problem| Error::BadAnswer { command: "Identify Controller", problem };
        let identify =
            IdentifyController::read_from_bytes(page).map_err(|_| bad("not 4096 bytes"))?;
        if identify.cntlid.get() != self.cntlid {
            return Err(bad("CNTLID is not the one that Connect gave"));
        }
        if self.subnqn == nqn::DISCOVERY_NQN
            || identify.cntrltype == ControllerType::Discovery.raw()
        {
            return Ok(identify);
        }
        if identify.ioccsz.get() < 4 {
            return Err(bad("IOCCSZ is below 4: a command does not fit its capsule"));
        }
        if identify.iorcsz.get() < 1 {
            return Err(bad("IORCSZ is below 1: a response does not fit its capsule"));
        }
        if identify.icdoff.get() != 0 {
            return Err(bad("ICDOFF must be 0 with NVMe/TCP"));
        }
        if identify.sgls.support() == 0 {
            return Err(bad("SGLs are not supported"));
        }
        Ok(identify)
    }

    fn start_keep_alive(&mut self) {
        if self.options.keep_alive.is_zero() {
            return;
        }
        let admin = self.admin.clone();
        let period = (self.options.keep_alive / 2).max(Duration::from_millis(1));
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(period).await;
                let sqe = AdminCommand::KeepAlive.to_sqe(0);
                if admin.submit(sqe, Data::None).await.is_err() {
                    return;
                }
            }
        });
        self.keep_alive = Some(task.abort_handle());
    }

    /// CNTLID.
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// CAP.
    pub fn cap(&self) -> Cap {
        self.cap
    }

    /// Identify Controller, as it was when connecting.
    pub fn identity(&self) -> &IdentifyController {
        &self.identify
    }

    /// The admin queue.
    pub fn admin(&self) -> &IoQueue {
        &self.admin
    }

    /// The most data of one command in bytes (MDTS); `None` for no limit.
    pub fn max_transfer_bytes(&self) -> Option<u64> {
        let page_shift = 12 + u32::from(self.cap.mpsmin());
        match u32::from(self.identify.mdts) {
            0 => None,
            mdts => Some(1u64.checked_shl(page_shift + mdts).unwrap_or(u64::MAX)),
        }
    }

    /// In-capsule data that I/O queues accept, in bytes.
    pub fn in_capsule_bytes(&self) -> usize {
        (self.identify.ioccsz.get() as usize).saturating_mul(16).saturating_sub(64)
    }

    /// Sends an admin command and awaits its success. `name` stands in errors.
    ///
    /// # Errors
    /// The command's, the connection's, or no answer in time.
    pub async fn command(&self, name: &'static str, sqe: Sqe, data: Data) -> Result<Done, Error> {
        within(name, self.options.timeout, self.admin.command(name, sqe, data)).await
    }

    /// Property Get.
    ///
    /// # Errors
    /// As [`Controller::command`].
    pub async fn property_get(&self, property: Property) -> Result<u64, Error> {
        let command = FabricsCommand::PropertyGet { offset: property.raw(), size: property.size() };
        let done = self.command("Property Get", command.to_sqe(0), Data::None).await?;
        let result = done.cqe.result();
        Ok(if property.size() == PropertySize::Eight { result } else { result & 0xFFFF_FFFF })
    }

    /// Property Set.
    ///
    /// # Errors
    /// As [`Controller::command`].
    pub async fn property_set(&self, property: Property, value: u64) -> Result<(), Error> {
        let (offset, size) = (property.raw(), property.size());
        let command = FabricsCommand::PropertySet { offset, size, value };
        self.command("Property Set", command.to_sqe(0), Data::None).await.map(|_| ())
    }

    /// Identify, 4096 bytes.
    ///
    /// # Errors
    /// As [`Controller::command`].
    pub async fn identify(&self, cns: Cns, nsid: u32) -> Result<Bytes, Error> {
        let command = Identify { nsid, cns: cns.raw(), ..Identify::default() };
        let sqe = AdminCommand::Identify(command).to_sqe(0);
        let data = Data::Read(BytesMut::zeroed(IDENTIFY_BYTES));
        Ok(self.command("Identify", sqe, data).await?.data)
    }

    /// NSIDs of the active namespaces, in order.
    ///
    /// # Errors
    /// As [`Controller::command`].
    pub async fn namespaces(&self) -> Result<Vec<u32>, Error> {
        let mut nsids = Vec::new();
        loop {
            let last = nsids.last().copied().unwrap_or(0);
            let page = self.identify(Cns::ActiveNamespaces, last).await?;
            let (words, _) = page.as_chunks::<4>();
            let before = nsids.len();
            nsids.extend(words.iter().map(|w| u32::from_le_bytes(*w)).take_while(|id| *id > 0));
            if nsids.len() - before < words.len() {
                return Ok(nsids);
            }
            if nsids.last().is_none_or(|now| *now <= last) {
                let problem = "the namespace list is not in order";
                return Err(Error::BadAnswer { command: "Identify", problem });
            }
        }
    }

    /// A namespace.
    ///
    /// # Errors
    /// As [`Controller::command`]; or it is not there.
    pub async fn namespace(&self, nsid: u32) -> Result<Namespace, Error> {
        let page = self.identify(Cns::Namespace, nsid).await?;
        let bad = |problem| Error::BadAnswer { command: "Identify Namespace", problem };
        let identify =
            IdentifyNamespace::read_from_bytes(&page).map_err(|_| bad("not 4096 bytes"))?;
        if identify.nsze.get() == 0 {
            return Err(Error::Unsupported(format!("namespace {nsid} is not active")));
        }
        let descriptors = self.identify(Cns::NamespaceDescriptors, nsid).await.ok();
        Namespace::new(nsid, &identify, descriptors.as_deref(), self.max_transfer_bytes())
    }

    /// Part of a log page.
    ///
    /// # Errors
    /// As [`Controller::command`]; a length that is no multiple of 4.
    pub async fn log_page(
        &self,
        lid: u8,
        nsid: u32,
        offset: u64,
        length_bytes: u32,
        retain_event: bool,
    ) -> Result<Bytes, Error> {
        if length_bytes == 0 || !length_bytes.is_multiple_of(4) {
            return Err(Error::Invalid(format!("{length_bytes} bytes of a log page: use dwords")));
        }
        let numd = length_bytes / 4 - 1;
        let command = GetLogPage { nsid, lid, numd, offset, retain_event, ..Default::default() };
        let data = Data::Read(BytesMut::zeroed(length_bytes as usize));
        let sqe = AdminCommand::GetLogPage(command).to_sqe(0);
        Ok(self.command("Get Log Page", sqe, data).await?.data)
    }

    /// A feature's current value, and its data where it has some.
    ///
    /// # Errors
    /// As [`Controller::command`].
    pub async fn get_feature(&self, feature: FeatureId, cdw11: u32) -> Result<(u32, Bytes), Error> {
        let select = FeatureSelect::Current;
        let command = GetFeatures { nsid: 0, fid: feature.raw(), select, cdw11, uuid_index: 0 };
        let data = match data_bytes(feature) {
            0 => Data::None,
            bytes => Data::Read(BytesMut::zeroed(bytes)),
        };
        let sqe = AdminCommand::GetFeatures(command).to_sqe(0);
        let done = self.command("Get Features", sqe, data).await?;
        Ok((done.cqe.dw0.get(), done.data))
    }

    /// Sets a feature without data; returns DW0.
    ///
    /// # Errors
    /// As [`Controller::command`].
    pub async fn set_feature(&self, feature: FeatureId, value: u32) -> Result<u32, Error> {
        let command = SetFeatures { fid: feature.raw(), value, ..SetFeatures::default() };
        let sqe = AdminCommand::SetFeatures(command).to_sqe(0);
        Ok(self.command("Set Features", sqe, Data::None).await?.cqe.dw0.get())
    }

    /// Asks for I/O queues; returns how many were granted. The first call counts.
    ///
    /// # Errors
    /// As [`Controller::command`]; no queue at all.
    pub async fn set_number_of_queues(&self, count: u16) -> Result<u16, Error> {
        let granted = self.queues.get_or_try_init(|| async {
            let asked = count.max(1) - 1;
            let value = NumberOfQueues::default().with_submission(asked).with_completion(asked);
            let dw0 = self.set_feature(FeatureId::NumberOfQueues, value.raw()).await?;
            let granted = NumberOfQueues::from_raw(dw0);
            Ok(granted.submission().min(granted.completion()).min(asked) + 1)
        });
        granted.await.copied()
    }

    /// Opens an I/O queue on which `depth` commands may be outstanding.
    ///
    /// # Errors
    /// More queues or entries than the controller has, or a failing connection or command.
    pub async fn io_queue(&self, depth: u16) -> Result<IoQueue, Error> {
        let (queue, qid) = self.open_queue(depth).await?;
        Ok(IoQueue::start(queue, qid))
    }

    /// Opens an I/O queue as an engine without a task.
    ///
    /// # Errors
    /// As [`Controller::io_queue`].
    pub async fn engine(&self, depth: u16) -> Result<Queue, Error> {
        Ok(self.open_queue(depth).await?.0)
    }

    async fn open_queue(&self, depth: u16) -> Result<(Queue, u16), Error> {
        let depth = depth.max(1);
        // A queue of n entries holds n − 1 commands, and both fields are 0's based.
        if depth > self.cap.mqes() {
            let most = self.cap.mqes();
            return Err(Error::Unsupported(format!(
                "a queue depth of {depth}: this controller's queues hold {most} commands"
            )));
        }
        let granted = self.set_number_of_queues(QUEUES_ASKED).await?;
        let qid = self.next_qid.fetch_add(1, Ordering::Relaxed);
        if qid > granted {
            return Err(Error::Unsupported(format!(
                "I/O queue {qid}: the controller grants {granted}"
            )));
        }
        let mut queue = Queue::connect(self.address, depth, &self.options).await?;
        let (subnqn, options) = (&self.subnqn, &self.options);
        connect_queue(&mut queue, qid, self.cntlid, subnqn, options).await?;
        queue.set_in_capsule_bytes(self.in_capsule_bytes());
        Ok((queue, qid))
    }

    /// Opens a namespace over a new I/O queue.
    ///
    /// # Errors
    /// As [`Controller::io_queue`] and [`Controller::namespace`].
    pub async fn volume(&self, nsid: u32, depth: u16) -> Result<crate::Volume, Error> {
        let namespace = self.namespace(nsid).await?;
        Ok(crate::Volume::new(self.io_queue(depth).await?, namespace))
    }

    /// Waits for an asynchronous event: sends one Asynchronous Event Request.
    ///
    /// # Errors
    /// As [`Controller::command`], but it may take forever.
    pub async fn async_event(&self) -> Result<AsyncEvent, Error> {
        let sqe = AdminCommand::AsyncEventRequest.to_sqe(0);
        let done = self.admin.command("Asynchronous Event Request", sqe, Data::None).await?;
        Ok(AsyncEvent::from_raw(done.cqe.dw0.get()))
    }

    /// Sends one Keep Alive now.
    ///
    /// # Errors
    /// As [`Controller::command`].
    pub async fn keep_alive(&self) -> Result<(), Error> {
        let sqe = AdminCommand::KeepAlive.to_sqe(0);
        self.command("Keep Alive", sqe, Data::None).await.map(|_| ())
    }

    /// The discovery log's entries. Read again if it changes meanwhile.
    ///
    /// # Errors
    /// As [`Controller::command`]; a log that never holds still.
    pub async fn discovery_log(&self) -> Result<Vec<LogEntry>, Error> {
        const RECORDS_AT_ONCE: u64 = 4;
        let lid = LogId::Discovery.raw();
        let bad = |problem| Error::BadAnswer { command: "Get Log Page (discovery)", problem };
        let read = |offset, bytes| self.log_page(lid, 0, offset, bytes, false);
        for _ in 0..10 {
            let header = read(0, RECORD_BYTES as u32).await?;
            let header = LogHeader::read_from_bytes(&header).map_err(|_| bad("short header"))?;
            let count = header.numrec.get();
            let mut entries = Vec::new();
            while (entries.len() as u64) < count {
                let at = entries.len() as u64;
                let records = (count - at).min(RECORDS_AT_ONCE);
                let offset = at.checked_add(1).and_then(|n| n.checked_mul(RECORD_BYTES as u64));
                let offset = offset.ok_or(bad("impossible number of records"))?;
                let page = read(offset, records as u32 * RECORD_BYTES as u32).await?;
                for record in page.chunks_exact(RECORD_BYTES) {
                    let entry = LogEntry::read_from_bytes(record).map_err(|_| bad("short"))?;
                    entries.push(entry);
                }
            }
            let again = read(0, RECORD_BYTES as u32).await?;
            let again = LogHeader::read_from_bytes(&again).map_err(|_| bad("short header"))?;
            if again.genctr == header.genctr {
                return Ok(entries);
            }
        }
        Err(bad("it changed each time it was read"))
    }

    /// Shuts the controller down (CC.SHN) and waits until it has.
    ///
    /// # Errors
    /// As [`Controller::command`], or it did not shut down in time.
    pub async fn shutdown(self) -> Result<(), Error> {
        let cc = Cc::default()
            .with_en(true)
            .with_iosqes(6)
            .with_iocqes(4)
            .with_shn(ShutdownNotification::Normal.raw());
        self.property_set(Property::Cc, u64::from(cc.raw())).await?;
        let complete = ShutdownStatus::Complete.raw();
        let reached = move |csts: Csts| csts.shst() == complete;
        self.await_status("CSTS.SHST", self.options.timeout, reached).await
    }

    /// What a subsystem's discovery service lists: connects to it, reads the log, and leaves.
    ///
    /// # Errors
    /// As [`Controller::connect`] and [`Controller::discovery_log`].
    pub async fn discover(address: SocketAddr, options: &Options) -> Result<Vec<LogEntry>, Error> {
        let controller = Self::connect(address, nqn::DISCOVERY_NQN, options).await?;
        let entries = controller.discovery_log().await?;
        controller.shutdown().await?;
        Ok(entries)
    }

    /// The whole SMART / health log.
    ///
    /// # Errors
    /// As [`Controller::command`].
    pub async fn smart_log(&self) -> Result<Bytes, Error> {
        self.log_page(LogId::SmartHealth.raw(), NSID_ALL, 0, 512, false).await
    }
}

/// Sends Connect on a fresh queue.
async fn connect_queue(
    queue: &mut Queue,
    qid: u16,
    cntlid: u16,
    subnqn: &str,
    options: &Options,
) -> Result<ConnectResponse, Error> {
    let field = |name| nqn::to_field(name).map_err(|error| Error::Invalid(error.to_string()));
    let data = ConnectData {
        hostid: options.host.id().into_bytes(),
        cntlid: cntlid.into(),
        subnqn: field(subnqn)?,
        hostnqn: field(options.host.nqn())?,
        ..ConnectData::default()
    };
    let kato_ms = match qid {
        0 => u32::try_from(options.keep_alive.as_millis()).unwrap_or(u32::MAX),
        _ => 0,
    };
    let sqsize = (queue.free_slots() + queue.outstanding()) as u16;
    let mut connect = Connect::new(qid, sqsize, kato_ms);
    let disable = options.disable_sq_flow_control;
    connect.cattr = ConnectAttributes::default().with_disable_sq_flow_control(disable);
    let sqe = FabricsCommand::Connect(connect).to_sqe(0);
    let payload = Data::Write(Bytes::copy_from_slice(data.as_bytes()));
    let completion = queue.execute(sqe, payload, options.timeout).await?;
    completion.check("Connect")?;
    let granted = completion.cqe.sqhd.get() == SQHD_NO_FLOW_CONTROL;
    queue.set_sq_flow_control_disabled(disable && granted);
    Ok(ConnectResponse::from_raw(completion.cqe.dw0.get()))
}
