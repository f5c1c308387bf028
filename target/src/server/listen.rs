//! Listening sockets: binding them before anything is touched, and handing connections to cores.
//!
//! Connections are dealt out evenly: each goes to the core that has the fewest, whichever address
//! it came to. What a connection is (discovery or volume) the host says later, with its Connect.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::sync::mpsc;

use crate::core::CoreMessage;

/// How long a peer may leave sent bytes unacknowledged before the kernel gives the connection up.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// When the kernel begins to ask a silent peer whether it is still there, and how often.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(10))
    .with_retries(3);
/// Connections that the kernel completes before we accept them.
const BACKLOG: i32 = 1024;
/// Pause after a failed accept, which is nearly always a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An address that is bound and listening.
#[derive(Debug)]
pub struct Listener {
    socket: std::net::TcpListener,
    /// The address; with the port that the kernel chose if the configuration said 0.
    pub address: SocketAddr,
    /// Whether NVM subsystems are served here, or discovery only.
    pub serves_volumes: bool,
}

/// Why an address could not be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {}", explain(.source))]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another program has the port (`ss -ltnp` shows which); stop it or choose another \
             address"
                .into()
        }
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this host has that address (`ip addr` lists them)".into()
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE; the usual ones are 4420 and 8009".into()
        }
        _ => error.to_string(),
    }
}

/// Binds and listens.
///
/// # Errors
/// [`BindError`], which says what to do.
pub fn bind(address: SocketAddr, serves_volumes: bool) -> Result<Listener, BindError> {
    let listening = || -> io::Result<std::net::TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // `[::]` beside `0.0.0.0` is then no conflict, and each means what it says.
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    let socket = listening().map_err(|source| BindError { address, source })?;
    let address = socket.local_addr().map_err(|source| BindError { address, source })?;
    Ok(Listener { socket, address, serves_volumes })
}

/// A connection on its way to a core.
#[derive(Debug)]
pub struct Arrival {
    /// The socket, in blocking mode, as the ring wants it.
    pub stream: std::net::TcpStream,
    /// Who connected.
    pub peer: SocketAddr,
    /// Whether it came to an address that serves NVM subsystems.
    pub serves_volumes: bool,
    /// The place it takes on its core, given back when dropped.
    pub seat: Seat,
}

/// A connection's place in the count of its core.
#[derive(Debug)]
pub struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where connections go: one entry per data core.
#[derive(Clone, Debug)]
pub struct Door {
    /// The core's inbox.
    pub inbox: mpsc::UnboundedSender<CoreMessage>,
    /// How many connections it has.
    pub connections: Arc<AtomicUsize>,
}

/// Accepts on one listener until the task is dropped.
///
/// # Errors
/// Only when the listener cannot be registered with the executor.
pub async fn accept(listener: Listener, doors: Arc<Vec<Door>>) -> io::Result<()> {
    let serves_volumes = listener.serves_volumes;
    let accepting = tokio::net::TcpListener::from_std(listener.socket)?;
    loop {
        match accepting.accept().await {
            Ok((stream, peer)) => {
                if let Err(error) = deal(stream, peer, serves_volumes, &doors) {
                    tracing::debug!(%peer, %error, "connection lost before it was served");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn deal(
    stream: tokio::net::TcpStream,
    peer: SocketAddr,
    serves_volumes: bool,
    doors: &[Door],
) -> io::Result<()> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    let Some(door) = doors.iter().min_by_key(|door| door.connections.load(Ordering::Relaxed))
    else {
        return Ok(());
    };
    door.connections.fetch_add(1, Ordering::Relaxed);
    let seat = Seat(Arc::clone(&door.connections));
    let _ = door.inbox.send(CoreMessage::Serve(Arrival { stream, peer, serves_volumes, seat }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_port_is_named_with_the_cure() {
        let first = bind("127.0.0.1:0".parse().unwrap(), true).unwrap();
        let error = bind(first.address, true).unwrap_err().to_string();
        assert!(error.contains(&first.address.to_string()), "{error}");
        assert!(error.contains("another program has the port"), "{error}");
    }

    #[test]
    fn an_address_of_another_host_is_named() {
        let error = bind("192.0.2.1:4420".parse().unwrap(), true).unwrap_err().to_string();
        assert!(error.contains("no interface of this host has that address"), "{error}");
    }

    #[tokio::test]
    async fn connections_are_dealt_out_evenly_and_seats_are_given_back() {
        let listener = bind("127.0.0.1:0".parse().unwrap(), true).unwrap();
        let address = listener.address;
        let (doors, mut inboxes): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| {
                let (inbox, arrivals) = mpsc::unbounded_channel();
                (Door { inbox, connections: Arc::default() }, arrivals)
            })
            .unzip();
        let doors = Arc::new(doors);
        let accepting = tokio::spawn(accept(listener, Arc::clone(&doors)));
        let mut streams = Vec::new();
        for _ in 0..9 {
            streams.push(tokio::net::TcpStream::connect(address).await.unwrap());
        }
        let mut arrivals = Vec::new();
        for inbox in &mut inboxes {
            for _ in 0..3 {
                arrivals.push(inbox.recv().await.unwrap());
            }
        }
        assert!(doors.iter().all(|door| door.connections.load(Ordering::Relaxed) == 3));
        arrivals.clear();
        assert!(doors.iter().all(|door| door.connections.load(Ordering::Relaxed) == 0));
        accepting.abort();
    }
}
