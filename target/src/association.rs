//! Associations: which controllers there are, and which connections belong to each.
//!
//! This is the only state that connections on different cores share beside the arrays. It is used
//! when a queue comes or goes and for admin commands, never for an I/O command: a connection keeps
//! what it needs for those.
//!
//! Invariants: a controller exists as long as its admin connection; its I/O connections are ended
//! with it. Locks are taken in this order: an association's controller, then its connections; that
//! of the registry is never held while one of an association is.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use raidfabric_protocol::nvme::log::CriticalWarning;
use raidfabric_raid::array::{Shared, WriteState};
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::sync::Notify;

use crate::controller::{
    ConnectError, Controller, ControllerIds, Discovery, Health, Kind, QueueGrant, Request,
    Subsystem,
};

/// What controllers serve.
pub struct Served {
    /// The subsystems, in the order of the configuration.
    pub subsystems: Vec<Arc<Subsystem>>,
    /// The discovery service.
    pub discovery: Arc<Discovery>,
}

/// All associations.
pub struct Registry {
    served: Served,
    live: Mutex<Live>,
    traffic: Vec<Vec<Traffic>>,
    /// For each subsystem, the arrays below it.
    arrays: Vec<Vec<Arc<Shared>>>,
    /// For each subsystem, the temperature of its warmest drive in kelvin; 0 if not known.
    temperatures: Vec<AtomicU16>,
    started: Instant,
}

#[derive(Default)]
struct Live {
    ids: ControllerIds,
    controllers: HashMap<u16, Arc<Association>>,
    /// Associations that have ended, while commands of their I/O queues have not.
    ending: Vec<Arc<Association>>,
}

/// One controller and its connections.
pub struct Association {
    cntlid: u16,
    /// The subsystem's place in the configuration; `None` for discovery.
    subsystem: Option<usize>,
    controller: Mutex<Controller>,
    /// Something happened that the admin connection has to look at.
    pub changed: Notify,
    connections: Mutex<Connections>,
    shutdowns: AtomicU64,
}

/// The connections of an association, by queue number.
struct Connections {
    open: Vec<(u16, Arc<TcpStream>)>,
    /// The association ends: no further one is taken in.
    ended: bool,
}

/// What one core has done for one subsystem. Written by that core only.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Traffic {
    read_commands: AtomicU64,
    read_bytes: AtomicU64,
    write_commands: AtomicU64,
    written_bytes: AtomicU64,
}

/// Adds to a counter that only this thread writes.
fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Traffic {
    /// A read was completed.
    pub fn read(&self, bytes: u64) {
        count(&self.read_commands, 1);
        count(&self.read_bytes, bytes);
    }

    /// A write was completed.
    pub fn write(&self, bytes: u64) {
        count(&self.write_commands, 1);
        count(&self.written_bytes, bytes);
    }
}

/// What a connection is.
#[derive(Clone)]
pub enum Queue {
    /// Nothing yet: Connect must come first.
    Unconnected,
    /// The admin queue of an association.
    Admin(Arc<Association>),
    /// An I/O queue.
    Io(Rc<IoQueue>),
}

/// An I/O queue, with all that its commands need.
pub struct IoQueue {
    /// Its association.
    pub association: Arc<Association>,
    /// Its number.
    pub qid: u16,
    /// What it serves.
    pub subsystem: Arc<Subsystem>,
    /// The subsystem's place in the configuration.
    pub index: usize,
}

/// A queue that has just been connected.
pub struct Connected {
    /// What the connection is now.
    pub queue: Queue,
    /// Its size and flow control.
    pub grant: QueueGrant,
    /// The controller.
    pub cntlid: u16,
}

/// Where a connection comes from.
pub struct Origin<'a> {
    /// The local address.
    pub via: SocketAddr,
    /// Whether NVM subsystems are served there.
    pub serves_volumes: bool,
    /// Its socket.
    pub stream: &'a Arc<TcpStream>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves whole values behind: none of these is changed in steps.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// No controllers yet; `arrays` are those below each subsystem.
    pub fn new(served: Served, arrays: Vec<Vec<Arc<Shared>>>, cores: usize) -> Self {
        let subsystems = served.subsystems.len();
        let traffic = |_| (0..subsystems).map(|_| Traffic::default()).collect();
        Self {
            live: Mutex::default(),
            traffic: (0..cores).map(traffic).collect(),
            temperatures: (0..subsystems).map(|_| AtomicU16::new(0)).collect(),
            arrays,
            started: Instant::now(),
            served,
        }
    }

    /// Live controllers.
    pub fn controllers(&self) -> usize {
        lock(&self.live).controllers.len()
    }

    /// The hosts that have a controller of a subsystem, by NQN.
    pub fn connected_hosts(&self, subsystem: usize) -> Vec<String> {
        let all: Vec<_> = lock(&self.live).controllers.values().map(Arc::clone).collect();
        let connected = all.iter().filter(|one| one.subsystem == Some(subsystem));
        let mut hosts: Vec<String> =
            connected.map(|one| one.controller().host_nqn().to_owned()).collect();
        hosts.sort();
        hosts.dedup();
        hosts
    }

    /// The counters of a core for a subsystem.
    pub fn traffic(&self, core: usize, subsystem: usize) -> Option<&Traffic> {
        self.traffic.get(core)?.get(subsystem)
    }

    /// Commands of an association that has ended may still be under way to the drives. A write
    /// among them must not come after a write that its host sends once it is back: these are the
    /// associations whose commands a Connect of that host has to wait for.
    ///
    /// Also those whose admin connection the host has closed while its core has not noticed yet. A
    /// host may well have several that live.
    pub fn ending_of(&self, request: &Request) -> Vec<Arc<Association>> {
        let mut live = lock(&self.live);
        live.ending.retain(|association| association.io_connections() > 0);
        let mut candidates = live.ending.clone();
        candidates.extend(live.controllers.values().cloned());
        drop(live);
        let is_ending = |association: &Arc<Association>| {
            association.is_of(request) && association.is_left_by_its_host()
        };
        candidates.into_iter().filter(is_ending).collect()
    }

    /// Serves a Connect.
    ///
    /// # Errors
    /// Why the host does not get the queue.
    pub fn connect(
        &self,
        request: &Request,
        origin: &Origin<'_>,
        now: Instant,
    ) -> Result<Connected, ConnectError> {
        if request.qid == 0 {
            self.connect_admin(request, origin, now)
        } else {
            self.connect_io(request, origin)
        }
    }

    fn find(
        &self,
        request: &Request,
        origin: &Origin<'_>,
    ) -> Result<(Kind, Option<usize>), ConnectError> {
        if request.is_discovery() {
            let service = Arc::clone(&self.served.discovery);
            return Ok((Kind::Discovery { service, via: origin.via }, None));
        }
        let named = |subsystem: &Arc<Subsystem>| subsystem.nqn == request.subsystem_nqn;
        let index = self.served.subsystems.iter().position(named);
        let index = index.filter(|_| origin.serves_volumes).ok_or_else(|| {
            ConnectError::UnknownSubsystem { subsystem_nqn: request.subsystem_nqn.clone() }
        })?;
        let subsystem = self.served.subsystems.get(index).map(Arc::clone);
        let subsystem = subsystem.ok_or_else(|| ConnectError::UnknownSubsystem {
            subsystem_nqn: request.subsystem_nqn.clone(),
        })?;
        Ok((Kind::Nvm(subsystem), Some(index)))
    }

    fn connect_admin(
        &self,
        request: &Request,
        origin: &Origin<'_>,
        now: Instant,
    ) -> Result<Connected, ConnectError> {
        let (kind, subsystem) = self.find(request, origin)?;
        let mut live = lock(&self.live);
        let cntlid = live
            .ids
            .allocate()
            .ok_or_else(|| ConnectError::Busy { what: "controller identifiers".into() })?;
        let (controller, grant) = match Controller::connect(request, kind, cntlid, now) {
            Ok(connected) => connected,
            Err(error) => {
                live.ids.free(cntlid);
                return Err(error);
            }
        };
        let association = Arc::new(Association {
            cntlid,
            subsystem,
            controller: Mutex::new(controller),
            changed: Notify::new(),
            connections: Mutex::new(Connections {
                open: vec![(0, Arc::clone(origin.stream))],
                ended: false,
            }),
            shutdowns: AtomicU64::new(0),
        });
        live.controllers.insert(cntlid, Arc::clone(&association));
        Ok(Connected { queue: Queue::Admin(association), grant, cntlid })
    }

    fn connect_io(
        &self,
        request: &Request,
        origin: &Origin<'_>,
    ) -> Result<Connected, ConnectError> {
        let association = lock(&self.live).controllers.get(&request.cntlid).map(Arc::clone);
        let unknown = || ConnectError::UnknownController {
            cntlid: request.cntlid,
            subsystem_nqn: request.subsystem_nqn.clone(),
        };
        let association = association.ok_or_else(unknown)?;
        // Under one lock: a reset or an end comes either before, and the queue is refused, or
        // after, and finds the connection among those that it ends.
        let mut controller = association.controller();
        let grant = controller.connect_io_queue(request)?;
        if !association.take_in(grant.qid, origin.stream) {
            controller.handle_io_queue_closed(grant.qid);
            return Err(unknown());
        }
        drop(controller);
        let index = association.subsystem.ok_or_else(unknown)?;
        let subsystem = self.served.subsystems.get(index).ok_or_else(unknown)?;
        let cntlid = association.cntlid;
        let queue =
            IoQueue { qid: grant.qid, subsystem: Arc::clone(subsystem), index, association };
        Ok(Connected { queue: Queue::Io(Rc::new(queue)), grant, cntlid })
    }

    /// A connection is gone, with all its commands.
    pub fn leave(&self, queue: &Queue) {
        match queue {
            Queue::Unconnected => {}
            Queue::Admin(association) => {
                let mut live = lock(&self.live);
                live.controllers.remove(&association.cntlid);
                live.ids.free(association.cntlid);
                live.ending.push(Arc::clone(association));
                drop(live);
                association.shut_down_all();
                association.changed.notify_one();
                self.forget_if_over(association);
            }
            Queue::Io(queue) => {
                let association = &queue.association;
                // Under one lock, as when it came: whoever sees that the queue is gone may have
                // its number.
                let mut controller = association.controller();
                controller.handle_io_queue_closed(queue.qid);
                lock(&association.connections).open.retain(|(qid, _)| *qid != queue.qid);
                drop(controller);
                self.forget_if_over(association);
            }
        }
    }

    /// Nothing is kept of an association that has ended with all its queues.
    fn forget_if_over(&self, association: &Arc<Association>) {
        if association.io_connections() == 0 {
            lock(&self.live).ending.retain(|other| !Arc::ptr_eq(other, association));
        }
    }

    /// An array's drives are this warm; a subsystem on several arrays is as warm as the last told.
    pub fn set_temperature(&self, array: &Arc<Shared>, kelvin: u16) {
        for (arrays, temperature) in self.arrays.iter().zip(&self.temperatures) {
            if arrays.iter().any(|below| Arc::ptr_eq(below, array)) {
                temperature.store(kelvin, Ordering::Relaxed);
            }
        }
    }

    /// What the SMART log of a subsystem says.
    pub fn health(&self, subsystem: Option<usize>) -> Health {
        let mut health = Health { power_on: self.started.elapsed(), ..Health::default() };
        let Some(subsystem) = subsystem else { return health };
        if let Some(temperature) = self.temperatures.get(subsystem) {
            health.temperature_kelvin = temperature.load(Ordering::Relaxed);
        }
        for core in self.traffic.iter().filter_map(|core| core.get(subsystem)) {
            let sum = |counter: &AtomicU64| u128::from(counter.load(Ordering::Relaxed));
            health.read_commands += sum(&core.read_commands);
            health.read_bytes += sum(&core.read_bytes);
            health.write_commands += sum(&core.write_commands);
            health.written_bytes += sum(&core.written_bytes);
        }
        for array in self.arrays.get(subsystem).into_iter().flatten() {
            if array.write_state() == WriteState::Failed {
                health.warning = CriticalWarning::default().with_reliability(true);
            }
            let members = (0..array.geometry().members()).map(|slot| array.member_errors(slot));
            health.media_errors += members.map(|errors| u128::from(errors.reads)).sum::<u128>();
        }
        health
    }

    /// Tells every controller to look at the health of its subsystem.
    pub fn health_may_have_changed(&self) {
        let all: Vec<_> = lock(&self.live).controllers.values().map(Arc::clone).collect();
        for association in all {
            let health = self.health(association.subsystem);
            association
                .controller()
                .handle_event(crate::controller::Event::Health(Box::new(health)));
            association.changed.notify_one();
        }
    }
}

impl Association {
    /// The subsystem's place in the configuration; `None` for discovery.
    pub fn subsystem(&self) -> Option<usize> {
        self.subsystem
    }

    /// The controller.
    pub fn controller(&self) -> MutexGuard<'_, Controller> {
        lock(&self.controller)
    }

    /// A shutdown of the controller begins; returns its number.
    pub fn begin_shutdown(&self) -> u64 {
        self.shutdowns.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What the shutdown with this number had to do is done. A reset may have ended that one, and
    /// another may have begun, which must not count as done.
    pub fn end_shutdown(&self, number: u64) {
        let mut controller = self.controller();
        if self.shutdowns.load(Ordering::Relaxed) == number {
            controller.handle_shutdown_done();
        }
    }

    /// Whether it is with the host of this Connect, on the same subsystem.
    fn is_of(&self, request: &Request) -> bool {
        let controller = self.controller();
        let names_it = match controller.kind() {
            Kind::Nvm(subsystem) => subsystem.nqn == request.subsystem_nqn,
            Kind::Discovery { .. } => false,
        };
        names_it
            && controller.host_nqn() == request.host_nqn
            && controller.host_id() == &request.host_id
    }

    /// Whether the admin connection is gone, or its host has closed it.
    fn is_left_by_its_host(&self) -> bool {
        let connections = lock(&self.connections);
        let mut admin = connections.open.iter().filter(|(qid, _)| *qid == 0).peekable();
        admin.peek().is_none() || admin.any(|(_, stream)| is_closed_by_peer(stream))
    }

    /// Takes an I/O connection in, unless the association ends.
    fn take_in(&self, qid: u16, stream: &Arc<TcpStream>) -> bool {
        let mut connections = lock(&self.connections);
        if !connections.ended {
            connections.open.push((qid, Arc::clone(stream)));
        }
        !connections.ended
    }

    /// I/O connections of which something is left, if only a command that has not ended.
    pub fn io_connections(&self) -> usize {
        lock(&self.connections).open.iter().filter(|(qid, _)| *qid != 0).count()
    }

    /// Ends the I/O connections; their cores notice.
    pub fn shut_down_io(&self) {
        for (_, stream) in lock(&self.connections).open.iter().filter(|(qid, _)| *qid != 0) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Ends all connections, for good; their cores notice.
    pub fn shut_down_all(&self) {
        let mut connections = lock(&self.connections);
        connections.ended = true;
        for (_, stream) in &connections.open {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // The admin queue's commands need no waiting for, and its socket is not to be kept open.
        connections.open.retain(|(qid, _)| *qid != 0);
    }
}

/// Whether the end of what the peer sends has reached this host, read or not.
fn is_closed_by_peer(stream: &TcpStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    // RDHUP, or HUP and ERR, which are told unasked.
    matches!(rustix::event::poll(&mut fds, Some(&at_once)), Ok(1..))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::{Hosts, Limits};
    use raidfabric_protocol::fabrics::command::ConnectAttributes;

    const NQN: &str = "nqn.2026-11.io.raidfabric:test";

    fn registry() -> Registry {
        let subsystem =
            Subsystem::new(NQN.into(), "S".into(), Hosts::Any, Limits::default(), vec![]).unwrap();
        let discovery = Discovery {
            serial: "D".into(),
            limits: Limits::default(),
            generation: 1,
            listeners: vec![],
            subsystems: vec![],
        };
        let served =
            Served { subsystems: vec![Arc::new(subsystem)], discovery: Arc::new(discovery) };
        Registry::new(served, vec![vec![]], 1)
    }

    fn request(qid: u16, cntlid: u16, host: &str) -> Request {
        Request {
            qid,
            entries: 32,
            sq_flow_control_disabled: false,
            attributes: ConnectAttributes::default(),
            kato_ms: 0,
            host_id: [1; 16],
            host_nqn: host.into(),
            subsystem_nqn: NQN.into(),
            cntlid,
        }
    }

    thread_local! {
        /// The other ends of the streams of this test.
        static HOSTS: std::cell::RefCell<Vec<TcpStream>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    fn stream() -> Arc<TcpStream> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        HOSTS.with_borrow_mut(|hosts| hosts.push(listener.accept().unwrap().0));
        Arc::new(stream)
    }

    fn connect(registry: &Registry, request: &Request) -> Result<Connected, ConnectError> {
        let stream = stream();
        let via = "127.0.0.1:4420".parse().unwrap();
        let origin = Origin { via, serves_volumes: true, stream: &stream };
        registry.connect(request, &origin, Instant::now())
    }

    fn enable(queue: &Queue) {
        use raidfabric_protocol::fabrics::{FabricsCommand, command::Property};
        struct Nothing;
        impl crate::controller::Environment for Nothing {
            fn health(&self) -> Health {
                Health::default()
            }
            fn abort(&mut self, _: u16, _: u16) -> bool {
                false
            }
        }
        let Queue::Admin(association) = queue else { panic!("not an admin queue") };
        let enable = FabricsCommand::PropertySet {
            offset: Property::Cc.raw(),
            size: Property::Cc.size(),
            value: 0x0046_0001,
        };
        let outcome = association.controller().handle_admin(
            Instant::now(),
            crate::controller::Permit::new(1),
            &enable.to_sqe(1),
            crate::controller::Data::None,
            &mut Nothing,
        );
        assert!(matches!(outcome, crate::controller::AdminOutcome::Complete(_)));
        assert!(association.controller().is_running());
    }

    /// A host that was cut off comes back and writes: what its last association still had at the
    /// drives must not come after that.
    #[test]
    fn a_host_that_comes_back_waits_for_its_last_commands_and_nobody_elses() {
        let registry = registry();
        let admin = connect(&registry, &request(0, 0xFFFF, "nqn.host")).unwrap();
        enable(&admin.queue);
        let io = connect(&registry, &request(1, admin.cntlid, "nqn.host")).unwrap();
        assert!(registry.ending_of(&request(0, 0xFFFF, "nqn.host")).is_empty(), "it lives");
        // The host has closed its connections, and nobody has noticed yet.
        HOSTS.take();
        assert_eq!(registry.ending_of(&request(0, 0xFFFF, "nqn.host")).len(), 1);
        assert!(registry.ending_of(&request(0, 0xFFFF, "nqn.other")).is_empty());

        registry.leave(&admin.queue);
        assert_eq!(registry.controllers(), 0);
        assert_eq!(registry.ending_of(&request(0, 0xFFFF, "nqn.host")).len(), 1);
        assert!(registry.ending_of(&request(0, 0xFFFF, "nqn.other")).is_empty());
        let mut same_name = request(0, 0xFFFF, "nqn.host");
        same_name.host_id = [2; 16];
        assert!(registry.ending_of(&same_name).is_empty());

        registry.leave(&io.queue);
        assert!(registry.ending_of(&request(0, 0xFFFF, "nqn.host")).is_empty());
    }

    #[test]
    fn an_association_that_ends_takes_no_queue_in() {
        let registry = registry();
        let admin = connect(&registry, &request(0, 0xFFFF, "nqn.host")).unwrap();
        enable(&admin.queue);
        let Queue::Admin(association) = &admin.queue else { panic!("not an admin queue") };
        association.shut_down_all();
        let refused = connect(&registry, &request(1, admin.cntlid, "nqn.host"));
        assert!(matches!(refused, Err(ConnectError::UnknownController { .. })));
        assert_eq!(association.controller().io_queues().count(), 0, "its number is free again");
    }
}
