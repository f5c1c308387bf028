//! The control socket: how commands on this machine reach the daemon.
//!
//! HTTP/1.1 with JSON over a Unix socket, served on the control thread; never on a data core. What
//! is asked of the daemon is in [`api`], as paths under `/v1/`; who may ask is decided by the
//! socket's file ([`socket`]).
//!
//! Bounds: [`MAX_CONNECTIONS`] at a time (others wait in the kernel), one request for each,
//! [`HEADER_PATIENCE`] for its head, [`MAX_BODY_BYTES`] of body, [`REQUEST_PATIENCE`] in all.

pub mod api;
pub mod socket;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;

pub use api::Operator;
pub use socket::{ControlSocket, SocketError};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 16;
/// The longest body of a request.
const MAX_BODY_BYTES: usize = 64 << 10;
/// How long a client may take to send the head of its request.
const HEADER_PATIENCE: Duration = Duration::from_secs(5);
/// How long a request may take altogether: stopping an array waits for its writes.
const REQUEST_PATIENCE: Duration = Duration::from_secs(300);
/// Pause after a failed accept, which is nearly always a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves commands until the task is dropped.
///
/// # Errors
/// Only when the socket cannot be registered with the executor.
pub async fn serve(
    listener: std::os::unix::net::UnixListener,
    operator: Arc<dyn Operator>,
) -> io::Result<()> {
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let router = api::router(operator, MAX_BODY_BYTES);
    let seats = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                tokio::spawn(async move {
                    converse(stream, router).await;
                    drop(seat);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a command");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection.
async fn converse(stream: tokio::net::UnixStream, router: Router) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_PATIENCE).keep_alive(false);
    let service = TowerToHyperService::new(router);
    let served = http.serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(REQUEST_PATIENCE, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a command's connection broke"),
        Err(_) => tracing::warn!("a command took too long, and was left"),
    }
}
