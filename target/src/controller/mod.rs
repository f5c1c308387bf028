//! The controller: one per association, as a state machine without I/O.
//!
//! ```text
//!   Connect ──▶ Controller::connect ──▶ Controller
//!   admin command ──▶ handle_admin ──▶ Complete | Held
//!   change of configuration, health ──▶ handle_event
//!   deadline ──▶ poll_timeout / handle_timeout
//!   what to do ◀── poll_completion, poll_effect
//! ```
//!
//! Invariants:
//! * No clock, socket, executor or lock inside: time is a parameter, and whoever
//!   owns the controller asks `poll_*` after every `handle_*`.
//! * A command is completed exactly once, because [`Permit`] says so.
//! * Everything is bounded: held requests, remembered events, logged errors.
//! * No bytes of a peer make it panic.
//! * It serves what it advertises and advertises what it serves.
//!
//! Not here: queues, data buffers and how they move, the I/O commands' execution.
mod connect;
pub mod discovery;
mod events;
mod features;
mod identify;
pub mod io;
mod keep_alive;
mod logs;
mod permit;
mod properties;
mod subsystem;
mod transfer;

pub use connect::{ConnectError, ControllerIds, QueueGrant, Request, response};
pub use logs::Health;
pub use permit::{Completion, Permit};
pub use subsystem::{
    ADMIN_IN_CAPSULE_BYTES, Advertised, Deallocation, Discovery, FIRMWARE, Hosts, Limits, Listener,
    MODEL, Namespace, Subsystem, SubsystemError,
};
pub use transfer::{DataIn, Transfer, admin_transfer};

use events::{Events, Report};
use features::{Context, Features};
use keep_alive::KeepAlive;
use logs::{ChangedNamespaces, ErrorLog, Sources};
use properties::{Change, Properties};
use raidfabric_protocol::fabrics::FabricsCommand;
use raidfabric_protocol::fabrics::command::FABRICS_OPCODE;
use raidfabric_protocol::nvme::admin::{AdminCommand, GetLogPage, Identify, SmartEvent};
use raidfabric_protocol::nvme::identify::IDENTIFY_BYTES;
use raidfabric_protocol::nvme::log::{CriticalWarning, ErrorEntry, LogId, ParameterLocation};
use raidfabric_protocol::nvme::registers::ShutdownNotification;
use raidfabric_protocol::nvme::sqe::Sqe;
use raidfabric_protocol::nvme::status::{CommandSpecific, Generic, Status};
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// What a controller serves.
#[derive(Debug, Clone)]
pub enum Kind {
    /// The discovery service.
    Discovery {
        /// Its snapshot.
        service: Arc<Discovery>,
        /// The local address that the host is connected to.
        via: SocketAddr,
    },
    /// An NVM subsystem.
    Nvm(Arc<Subsystem>),
}

impl Kind {
    fn subsystem(&self) -> Option<&Subsystem> {
        match self {
            Self::Nvm(subsystem) => Some(subsystem),
            Self::Discovery { .. } => None,
        }
    }

    fn limits(&self) -> &Limits {
        match self {
            Self::Nvm(subsystem) => &subsystem.limits,
            Self::Discovery { service, .. } => &service.limits,
        }
    }
}

/// What the controller asks of its surroundings while it serves a command.
pub trait Environment {
    /// Health and counters for the SMART log.
    fn health(&self) -> Health;

    /// Tries to abort command `cid` of queue `sqid`; whether it will end as aborted.
    fn abort(&mut self, sqid: u16, cid: u16) -> bool;
}

/// The data of an admin command, as [`admin_transfer`] said.
#[derive(Debug)]
pub enum Data<'a> {
    /// None.
    None,
    /// What came from the host.
    FromHost(&'a [u8]),
    /// Room for what goes to the host, of exactly the length that was asked for.
    /// It is overwritten whole if the command succeeds.
    ToHost(&'a mut [u8]),
}

/// How an admin command ended, or not.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum AdminOutcome {
    /// It is complete. If it succeeded, the room for data is filled and goes first;
    /// so does what [`Controller::poll_completion`] has (a request that this aborted).
    Complete(Completion),
    /// It is held; [`Controller::poll_completion`] will complete it.
    Held,
}

/// What the owner of the controller has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Controller reset: abort what runs on the I/O queues and close them. The
    /// admin queue stays.
    CloseIoQueues,
    /// Shutdown: close the I/O queues, make everything written durable if
    /// `flush`, then call [`Controller::handle_shutdown_done`].
    Shutdown {
        /// A normal shutdown; an abrupt one does not wait for caches.
        flush: bool,
    },
    /// Close all connections of this association.
    CloseAssociation(CloseReason),
}

/// Why an association ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// No Keep Alive came in time.
    KeepAliveExpired,
    /// The host is no longer allowed.
    HostRemoved,
}

/// Something that happened outside.
#[derive(Debug, Clone)]
pub enum Event {
    /// The subsystem has changed; nothing happens on a discovery controller. Its
    /// limits must be those that the controller was made with: the host knows them.
    Subsystem(Arc<Subsystem>),
    /// The discovery service has changed; nothing happens on an I/O controller.
    Discovery(Arc<Discovery>),
    /// Health may have changed.
    Health(Box<Health>),
}

/// Why a command fails, and where in its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fault {
    status: Status,
    location: ParameterLocation,
}

impl Fault {
    const NSID: u8 = 4;
    const CDW10: u8 = 40;
    const CDW11: u8 = 44;
    const CDW12: u8 = 48;
    const CDW14: u8 = 56;

    /// The field that begins at this byte of the entry is wrong.
    fn at(status: Status, byte: u8) -> Self {
        Self { status, location: ParameterLocation::default().with_byte(byte) }
    }

    fn nsid(status: Status) -> Self {
        Self::at(status, Self::NSID)
    }
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Self { status, location: ParameterLocation::NONE }
    }
}

impl From<Generic> for Fault {
    fn from(code: Generic) -> Self {
        Status::from(code).into()
    }
}

impl From<CommandSpecific> for Fault {
    fn from(code: CommandSpecific) -> Self {
        Status::from(code).into()
    }
}

/// A controller.
#[derive(Debug)]
pub struct Controller {
    cntlid: u16,
    host_nqn: String,
    host_id: [u8; 16],
    kind: Kind,
    properties: Properties,
    keep_alive: KeepAlive,
    features: Features,
    events: Events,
    errors: ErrorLog,
    changed: ChangedNamespaces,
    /// Critical warnings that were there at the last look, and wanted.
    warning: CriticalWarning,
    /// I/O queues connected now.
    io_queues: BTreeSet<u16>,
    /// At most as many as requests are held, and one per Abort.
    completions: VecDeque<Completion>,
    effects: VecDeque<Effect>,
}

impl Controller {
    /// Admits an admin queue and makes its controller.
    ///
    /// `cntlid` is free, from [`ControllerIds`]; `kind` is what the request names.
    ///
    /// # Errors
    /// Why the host does not get it.
    pub fn connect(
        request: &Request,
        kind: Kind,
        cntlid: u16,
        now: Instant,
    ) -> Result<(Self, QueueGrant), ConnectError> {
        if let Kind::Nvm(subsystem) = &kind
            && !subsystem.hosts.allows(&request.host_nqn)
        {
            return Err(ConnectError::HostNotAllowed {
                host_nqn: request.host_nqn.clone(),
                subsystem_nqn: request.subsystem_nqn.clone(),
            });
        }
        let grant = request.check_admin(kind.limits().max_admin_queue_entries)?;
        let is_io = kind.subsystem().is_some();
        let controller = Self {
            cntlid,
            host_nqn: request.host_nqn.clone(),
            host_id: request.host_id,
            properties: Properties::new(kind.limits(), is_io),
            keep_alive: KeepAlive::new(request.kato_ms, now),
            features: Features::default(),
            events: Events::default(),
            errors: ErrorLog::default(),
            changed: ChangedNamespaces::default(),
            warning: CriticalWarning::default(),
            io_queues: BTreeSet::new(),
            completions: VecDeque::new(),
            effects: VecDeque::new(),
            kind,
        };
        Ok((controller, grant))
    }

    /// Admits an I/O queue. The caller has found this controller by the request's
    /// CNTLID among those of the subsystem that the request names.
    ///
    /// # Errors
    /// Why the host does not get it.
    pub fn connect_io_queue(&mut self, request: &Request) -> Result<QueueGrant, ConnectError> {
        let cntlid = self.cntlid;
        let qid = request.qid;
        let Some(subsystem) = self.kind.subsystem() else {
            return Err(ConnectError::QueueId { qid, queues: 0 });
        };
        if request.subsystem_nqn != subsystem.nqn || request.cntlid != cntlid {
            return Err(ConnectError::UnknownController {
                cntlid: request.cntlid,
                subsystem_nqn: request.subsystem_nqn.clone(),
            });
        }
        if request.host_nqn != self.host_nqn {
            let host_nqn = request.host_nqn.clone();
            return Err(ConnectError::OtherHost { cntlid, host_nqn });
        }
        if request.host_id != self.host_id {
            return Err(ConnectError::OtherHostId { cntlid });
        }
        if !self.properties.is_running() {
            return Err(ConnectError::NotReady { cntlid });
        }
        let queues = self.features.granted_queues(subsystem);
        if qid == 0 || qid > queues {
            return Err(ConnectError::QueueId { qid, queues });
        }
        if self.io_queues.contains(&qid) {
            return Err(ConnectError::QueueInUse { qid, cntlid });
        }
        let grant = request.grant(subsystem.limits.max_queue_entries)?;
        self.io_queues.insert(qid);
        Ok(grant)
    }

    /// An I/O queue's connection is gone.
    pub fn handle_io_queue_closed(&mut self, qid: u16) {
        self.io_queues.remove(&qid);
    }

    /// CNTLID.
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// The host's name.
    pub fn host_nqn(&self) -> &str {
        &self.host_nqn
    }

    /// The host's identifier.
    pub fn host_id(&self) -> &[u8; 16] {
        &self.host_id
    }

    /// What is served.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// I/O queues connected now, by QID.
    pub fn io_queues(&self) -> impl Iterator<Item = u16> + '_ {
        self.io_queues.iter().copied()
    }

    /// Whether the controller is enabled and not in a shutdown.
    pub fn is_running(&self) -> bool {
        self.properties.is_running()
    }

    /// Serves a command of the admin queue, after Connect.
    ///
    /// `data` is what [`admin_transfer`] asked for. Afterwards poll completions and effects.
    pub fn handle_admin(
        &mut self,
        now: Instant,
        permit: Permit,
        sqe: &Sqe,
        data: Data<'_>,
        environment: &mut dyn Environment,
    ) -> AdminOutcome {
        if sqe.opcode == FABRICS_OPCODE {
            let (status, result) = match self.fabrics(now, sqe) {
                Ok(result) => (Status::SUCCESS, result),
                Err(fault) => (self.failed(sqe, fault), 0),
            };
            return AdminOutcome::Complete(permit.complete(status, result));
        }
        let served = match self.ready_command(sqe) {
            Ok(AdminCommand::AsyncEventRequest) => return self.hold(sqe, permit),
            Ok(command) => self.admin(now, &command, data, environment),
            Err(fault) => Err(fault),
        };
        let (status, result) = match served {
            Ok(dw0) => (Status::SUCCESS, u64::from(dw0)),
            Err(fault) => (self.failed(sqe, fault), 0),
        };
        AdminOutcome::Complete(permit.complete(status, result))
    }

    /// The command, if it is one and its time has come.
    fn ready_command(&self, sqe: &Sqe) -> Result<AdminCommand, Fault> {
        if !self.properties.is_ready() {
            return Err(Fault::from(Generic::CommandSequenceError));
        }
        AdminCommand::parse(sqe).map_err(Fault::from)
    }

    fn hold(&mut self, sqe: &Sqe, permit: Permit) -> AdminOutcome {
        match self.events.hold(permit) {
            Ok(()) => AdminOutcome::Held,
            Err(permit) => {
                let fault = Fault::from(CommandSpecific::AerLimitExceeded);
                let status = self.failed(sqe, fault);
                AdminOutcome::Complete(permit.complete(status, 0))
            }
        }
    }

    /// Serves a Fabrics command of the admin queue: DW0 and DW1.
    fn fabrics(&mut self, now: Instant, sqe: &Sqe) -> Result<u64, Fault> {
        let command = FabricsCommand::parse(sqe)?;
        if !self.properties.is_running() {
            self.keep_alive.restart(now);
        }
        match command {
            FabricsCommand::PropertyGet { offset, size } => {
                self.properties.get(offset, size).map_err(|s| Fault::at(s, Fault::CDW11))
            }
            FabricsCommand::PropertySet { offset, size, value } => {
                let change = self.properties.set(offset, size, value);
                self.changed(now, change.map_err(|s| Fault::at(s, Fault::CDW11))?);
                Ok(0)
            }
            FabricsCommand::Connect(_) => Err(Fault::from(Generic::CommandSequenceError)),
            FabricsCommand::Disconnect { recfmt: 0 } => {
                Err(Fault::from(CommandSpecific::DisconnectInvalidQueueType))
            }
            FabricsCommand::Disconnect { .. } => {
                let status = CommandSpecific::ConnectIncompatibleFormat.into();
                Err(Fault::at(status, Fault::CDW10))
            }
            // No authentication is required or offered.
            FabricsCommand::AuthenticationSend(_) | FabricsCommand::AuthenticationReceive(_) => {
                Err(Fault::from(Generic::InvalidOpcode))
            }
        }
    }

    fn changed(&mut self, now: Instant, change: Change) {
        match change {
            Change::None => {}
            Change::Enabled => self.keep_alive.restart(now),
            Change::Reset => {
                self.features = Features::default();
                self.warning = CriticalWarning::default();
                self.changed.clear();
                self.completions.extend(self.events.reset());
                self.push_effect(Effect::CloseIoQueues);
            }
            Change::Shutdown(kind) => {
                let flush = kind == ShutdownNotification::Normal;
                self.push_effect(Effect::Shutdown { flush });
            }
        }
    }

    /// Effects are idempotent, so one of a kind is enough: the queue stays short.
    fn push_effect(&mut self, effect: Effect) {
        if !self.effects.contains(&effect) {
            self.effects.push_back(effect);
        }
    }

    /// Serves an admin command: DW0.
    fn admin(
        &mut self,
        now: Instant,
        command: &AdminCommand,
        data: Data<'_>,
        environment: &mut dyn Environment,
    ) -> Result<u32, Fault> {
        let (input, mut output) = match data {
            Data::None => (&[][..], None),
            Data::FromHost(input) => (input, None),
            Data::ToHost(output) => {
                output.fill(0);
                (&[][..], Some(output))
            }
        };
        match command {
            AdminCommand::Identify(command) => self.identify(command, output),
            AdminCommand::GetLogPage(command) => self.get_log_page(command, output, environment),
            AdminCommand::SetFeatures(command) => {
                let (features, mut context) = self.features_and_context(now);
                let result = features.set(command, &mut context, input)?;
                self.withdraw_unwanted();
                Ok(result)
            }
            AdminCommand::GetFeatures(command) => {
                let (features, context) = self.features_and_context(now);
                features.get(command, &context, output.take())
            }
            AdminCommand::Abort { sqid, cid } => Ok(self.abort(*sqid, *cid, environment)),
            AdminCommand::KeepAlive => {
                self.keep_alive.restart(now);
                Ok(0)
            }
            // Held before it comes here.
            AdminCommand::AsyncEventRequest => Err(Fault::from(Generic::InternalError)),
        }
    }

    fn features_and_context(&mut self, now: Instant) -> (&mut Features, Context<'_>) {
        let context = Context {
            subsystem: self.kind.subsystem(),
            host_id: &self.host_id,
            keep_alive: &mut self.keep_alive,
            io_queues: self.io_queues.len(),
            now,
        };
        (&mut self.features, context)
    }

    fn identify(&self, command: &Identify, output: Option<&mut [u8]>) -> Result<u32, Fault> {
        let output: &mut [u8; IDENTIFY_BYTES] = output
            .and_then(|output| output.try_into().ok())
            .ok_or_else(|| Fault::from(Generic::DataSglLengthInvalid))?;
        match &self.kind {
            Kind::Nvm(subsystem) => identify::serve_io(command, subsystem, self.cntlid, output)?,
            Kind::Discovery { service, .. } => {
                identify::serve_discovery(command, service, self.cntlid, output)?;
            }
        }
        Ok(0)
    }

    fn get_log_page(
        &mut self,
        command: &GetLogPage,
        output: Option<&mut [u8]>,
        environment: &mut dyn Environment,
    ) -> Result<u32, Fault> {
        let log = logs::check(command, self.kind.subsystem().is_some())?;
        let length_bytes = command.length_bytes();
        if length_bytes > u64::from(self.kind.limits().max_transfer_bytes) {
            return Err(Fault::at(Generic::InvalidField.into(), Fault::CDW10 + 2));
        }
        let output = output
            .filter(|output| output.len() as u64 == length_bytes)
            .ok_or_else(|| Fault::from(Generic::DataSglLengthInvalid))?;
        let discovery = match (&self.kind, log) {
            (Kind::Discovery { service, via }, LogId::Discovery) => {
                discovery::log(service, &self.host_nqn, *via)
            }
            _ => Vec::new(),
        };
        let health = match log {
            LogId::SmartHealth => environment.health(),
            _ => Health::default(),
        };
        let sources = Sources {
            subsystem: self.kind.subsystem(),
            features: &self.features,
            errors: &self.errors,
            changed: &self.changed,
            health,
            discovery,
        };
        logs::read(log, command.offset, &sources, output)?;
        if !command.retain_event {
            self.events.log_read(log);
            if log == LogId::ChangedNamespaces {
                self.changed.clear();
            }
        }
        Ok(0)
    }

    /// Abort: DW0, whose bit 0 says "not aborted".
    fn abort(&mut self, sqid: u16, cid: u16, environment: &mut dyn Environment) -> u32 {
        let held = if sqid == 0 { self.events.abort(cid) } else { None };
        if let Some(completion) = held {
            self.completions.push_back(completion);
            return 0;
        }
        u32::from(!environment.abort(sqid, cid))
    }

    /// Logs a failed command and gives its status.
    fn failed(&mut self, sqe: &Sqe, fault: Fault) -> Status {
        self.errors.push(ErrorEntry {
            sqid: 0.into(),
            cid: sqe.cid,
            status: fault.status.into(),
            location: fault.location,
            nsid: sqe.nsid,
            opcode: sqe.opcode,
            version: 1,
            ..ErrorEntry::default()
        });
        fault.status
    }

    /// Logs a command of I/O queue `qid` that failed with `status`.
    pub fn log_io_error(&mut self, qid: u16, sqe: &Sqe, status: Status) {
        let lba = u64::from(sqe.cdw10.get()) | (u64::from(sqe.cdw11.get()) << 32);
        self.errors.push(ErrorEntry {
            sqid: qid.into(),
            cid: sqe.cid,
            status: status.into(),
            location: ParameterLocation::NONE,
            lba: lba.into(),
            nsid: sqe.nsid,
            opcode: sqe.opcode,
            version: 1,
            ..ErrorEntry::default()
        });
    }

    /// Takes note of something that happened outside.
    pub fn handle_event(&mut self, event: Event) {
        match event {
            Event::Subsystem(new) => self.subsystem_changed(new),
            Event::Discovery(new) => self.discovery_changed(new),
            Event::Health(health) => self.health_changed(&health),
        }
    }

    fn subsystem_changed(&mut self, new: Arc<Subsystem>) {
        let Kind::Nvm(old) = &mut self.kind else { return };
        let old = std::mem::replace(old, Arc::clone(&new));
        if !new.hosts.allows(&self.host_nqn) {
            self.push_effect(Effect::CloseAssociation(CloseReason::HostRemoved));
        }
        let both = old.namespaces().iter().chain(new.namespaces()).map(|ns| ns.nsid);
        let changed: BTreeSet<u32> =
            both.filter(|&nsid| old.namespace(nsid) != new.namespace(nsid)).collect();
        for &nsid in &changed {
            self.changed.insert(nsid);
        }
        if !changed.is_empty() && self.features.events.namespace_attribute() {
            self.events.raise(Report::NAMESPACES);
        }
    }

    fn discovery_changed(&mut self, new: Arc<Discovery>) {
        let Kind::Discovery { service, via } = &mut self.kind else { return };
        let old = std::mem::replace(service, Arc::clone(&new));
        let entries = |service: &Discovery| discovery::entries(service, &self.host_nqn, *via);
        // Only a host that would see a difference is told.
        if entries(&old) != entries(&new) && self.features.events.discovery_change() {
            self.events.raise(Report::DISCOVERY);
        }
    }

    fn health_changed(&mut self, health: &Health) {
        let Some(subsystem) = self.kind.subsystem() else { return };
        let wanted = self.features.events.critical_warnings();
        let present = health.warning(&self.features, subsystem);
        // Only what the host wants to hear of counts as heard of: what it asks for
        // later, and is still there, it is told then.
        let now = CriticalWarning::from_raw(present.raw() & wanted.raw());
        let before = std::mem::replace(&mut self.warning, now);
        let appeared = |bit: fn(CriticalWarning) -> bool| bit(now) && !bit(before);
        if appeared(CriticalWarning::spare) {
            self.events.raise(Report::smart(SmartEvent::Spare));
        }
        if appeared(CriticalWarning::temperature) {
            self.events.raise(Report::smart(SmartEvent::Temperature));
        }
        let reliability = [
            CriticalWarning::reliability,
            CriticalWarning::read_only,
            CriticalWarning::backup,
            CriticalWarning::persistent_memory,
        ];
        if reliability.into_iter().any(appeared) {
            self.events.raise(Report::smart(SmartEvent::Reliability));
        }
    }

    /// What the host has just said it does not want is not reported any more.
    fn withdraw_unwanted(&mut self) {
        let wanted = self.features.events;
        if !wanted.namespace_attribute() {
            self.events.withdraw(Report::NAMESPACES);
        }
        if !wanted.discovery_change() {
            self.events.withdraw(Report::DISCOVERY);
        }
        let warnings = wanted.critical_warnings();
        if !warnings.spare() {
            self.events.withdraw(Report::smart(SmartEvent::Spare));
        }
        if !warnings.temperature() {
            self.events.withdraw(Report::smart(SmartEvent::Temperature));
        }
    }

    /// The I/O queues are closed and, for a normal shutdown, what was written is durable.
    pub fn handle_shutdown_done(&mut self) {
        self.properties.finish_shutdown();
    }

    /// When [`Self::handle_timeout`] is to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.keep_alive.deadline()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.keep_alive.expire(now) {
            self.properties.set_fatal();
            self.push_effect(Effect::CloseAssociation(CloseReason::KeepAliveExpired));
        }
    }

    /// The next completion of a held command.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front().or_else(|| self.events.poll())
    }

    /// The next thing to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }
}

#[cfg(test)]
mod tests;
