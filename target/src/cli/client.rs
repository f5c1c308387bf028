//! The command line's side of the control socket.
//!
//! One request for each connection. Whether a daemon runs is told by its socket: if nobody listens
//! at the usual place there is none, and commands that can do without work on the drives directly.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;

use super::Failure;
use crate::config;
use crate::server::control::api::Request;
use crate::server::control::socket;
use crate::server::report::{Done, Refusal, RefusalKind, Status};

/// How long the daemon may take to answer; stopping an array waits for its writes.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long a daemon that is just starting is asked again, and how often.
const STARTING_PATIENCE: Duration = Duration::from_secs(20);
const STARTING_POLL: Duration = Duration::from_millis(100);
/// The longest answer that is taken.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Names another socket, where the option does not.
const VARIABLE: &str = "RAIDFABRIC_SOCKET";

/// The option `--socket`.
#[derive(Clone, Debug, Args)]
pub(super) struct Socket {
    /// The daemon's control socket [default: $RAIDFABRIC_SOCKET, or
    /// /var/lib/raidfabric/control.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// A daemon that runs.
#[derive(Debug)]
pub(super) struct Daemon {
    path: PathBuf,
}

impl Socket {
    /// The daemon, if one runs.
    ///
    /// # Errors
    /// One is meant (by the option or the variable) and does not run, or this user may not ask it.
    pub(super) fn daemon(&self) -> Result<Option<Daemon>, Failure> {
        let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        let given = self.socket.clone().or_else(|| variable.map(PathBuf::from));
        let path = given.clone().unwrap_or_else(config::default_control_socket);
        let error = match socket::connect(&path) {
            Ok(_) => return Ok(Some(Daemon { path })),
            Err(error) => error,
        };
        let absent =
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        if absent && given.is_none() {
            return Ok(None);
        }
        Err(unreachable(&path, &error))
    }

    /// The daemon, which must run.
    ///
    /// # Errors
    /// It does not, or this user may not ask it.
    pub(super) fn running(&self) -> Result<Daemon, Failure> {
        self.daemon()?.ok_or_else(|| {
            Failure::Refused(
                "no daemon runs that could do this (no control socket at the usual place); start \
                 one with `raidfabric serve FILE`, or name its socket by --socket"
                    .into(),
            )
        })
    }
}

fn unreachable(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    Failure::Refused(match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{path}: there is no such socket; is the daemon running?")
        }
        io::ErrorKind::ConnectionRefused => {
            format!("{path}: no daemon listens there any more; start it with `raidfabric serve`")
        }
        io::ErrorKind::PermissionDenied => {
            format!("{path}: only root and the daemon's own user may use it; try with sudo")
        }
        _ => format!("{path}: cannot be connected to: {error}"),
    })
}

impl Daemon {
    /// All arrays, or one.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub(super) fn status(&self, array: Option<&str>) -> Result<Status, Failure> {
        let path = match array {
            None => "/v1/status".to_owned(),
            Some(name) => format!("/v1/status?array={}", encoded(name)),
        };
        self.ask(Method::GET, &path, Vec::new())
    }

    /// Does something with an array.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub(super) fn command(&self, array: &str, request: &Request) -> Result<Done, Failure> {
        let path = format!("/v1/arrays/{}/{}", encoded(array), request.verb());
        self.ask(Method::POST, &path, request.body())
    }

    fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::Failed(format!("cannot ask the daemon: {error}")))?;
        let patience = Instant::now() + STARTING_PATIENCE;
        let (code, answer) = loop {
            let asked = async {
                let exchange = self.exchange(method.clone(), path, body.clone());
                tokio::time::timeout(PATIENCE, exchange).await.map_err(|_| {
                    Failure::Failed(format!(
                        "the daemon has not answered within {} s; see its log",
                        PATIENCE.as_secs()
                    ))
                })?
            };
            let answer = runtime.block_on(asked)?;
            if answer.0 != StatusCode::SERVICE_UNAVAILABLE || Instant::now() >= patience {
                break answer;
            }
            std::thread::sleep(STARTING_POLL);
        };
        if code == StatusCode::OK {
            return serde_json::from_slice(&answer).map_err(|error| {
                Failure::Failed(format!(
                    "the daemon's answer is not understood ({error}); it and this command may be \
                     of different versions"
                ))
            });
        }
        Err(match serde_json::from_slice::<Refusal>(&answer) {
            Ok(refusal) => refused(refusal),
            Err(_) => Failure::Failed(format!("the daemon answered with {code}; see its log")),
        })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let stream =
            socket::connect(&self.path).map_err(|error| unreachable(&self.path, &error))?;
        let broken = |error: &dyn std::fmt::Display| {
            Failure::Failed(format!("the daemon went away while it was asked: {error}"))
        };
        let open = || -> io::Result<_> {
            stream.set_nonblocking(true)?;
            tokio::net::UnixStream::from_std(stream)
        };
        let stream = TokioIo::new(open().map_err(|error| broken(&error))?);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(|error| broken(&error))?;
        tokio::spawn(connection);
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| broken(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| broken(&error))?;
        let code = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES);
        let body = body.collect().await.map_err(|error| broken(&error))?.to_bytes();
        Ok((code, body))
    }
}

fn refused(refusal: Refusal) -> Failure {
    match refusal.kind {
        RefusalKind::Failed => Failure::Failed(refusal.message),
        RefusalKind::NotFound
        | RefusalKind::Invalid
        | RefusalKind::Starting
        | RefusalKind::Conflict => Failure::Refused(refusal.message),
    }
}

/// A name as a part of a path.
fn encoded(name: &str) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => text.push(byte.into()),
            other => _ = write!(text, "%{other:02X}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::server::control::api::Answer;
    use crate::server::control::{self, ControlSocket, Operator};
    use crate::server::report::STATUS;

    /// Answers as it is asked.
    struct Parrot;

    impl Operator for Parrot {
        fn status(&self, array: Option<String>) -> Answer<Status> {
            Box::pin(async move {
                match array {
                    None => Ok(Status {
                        schema: STATUS.into(),
                        daemon: None,
                        arrays: Vec::new(),
                        exports: Vec::new(),
                    }),
                    Some(name) => Err(Refusal::not_found(format!("no array {name}"))),
                }
            })
        }

        fn command(&self, array: String, request: Request) -> Answer<Done> {
            Box::pin(async move {
                match request {
                    Request::Stop => Err(Refusal::conflict("not now")),
                    Request::Cancel => Err(Refusal::failed("it broke")),
                    Request::Check { .. } => panic!("a fault"),
                    other => Ok(Done::new(format!("{array}: {other:?}"))),
                }
            })
        }
    }

    /// A daemon for a test; it ends with the test.
    fn daemon(folder: &Path) -> (Daemon, ControlSocket) {
        let path = folder.join("control.sock");
        let socket = ControlSocket::bind(&path).unwrap();
        let listener = socket.listener().unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let _ = runtime.unwrap().block_on(control::serve(listener, Arc::new(Parrot)));
        });
        let given = Socket { socket: Some(path) };
        (given.running().unwrap(), socket)
    }

    #[test]
    fn answers_and_refusals_come_through() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, _socket) = daemon(folder.path());
        assert_eq!(daemon.status(None).unwrap().schema, STATUS);
        let refused = daemon.status(Some("a b/ü")).unwrap_err();
        assert!(
            matches!(&refused, Failure::Refused(text) if text == "no array a b/ü"),
            "{refused:?}"
        );
        let add = Request::Add { drive: "/dev/x".into(), slot: None };
        let done = daemon.command("a/b", &add).unwrap();
        assert!(done.message.starts_with("a/b: Add"), "{done:?}");
        let refused = daemon.command("a", &Request::Stop).unwrap_err();
        assert!(matches!(&refused, Failure::Refused(text) if text == "not now"), "{refused:?}");
        let failed = daemon.command("a", &Request::Cancel).unwrap_err();
        assert!(matches!(&failed, Failure::Failed(text) if text == "it broke"), "{failed:?}");
        // A fault in one command ends neither the daemon nor what comes after.
        let failed = daemon.command("a", &Request::Check { repair: false }).unwrap_err();
        assert!(matches!(&failed, Failure::Failed(text) if text.contains("fault")), "{failed:?}");
        assert!(daemon.status(None).is_ok());
    }

    /// Raw bytes in, the head of the answer out.
    fn raw(path: &Path, bytes: &[u8]) -> String {
        use std::io::{Read, Write};
        let mut stream = socket::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn nonsense_is_refused_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, _socket) = daemon(folder.path());
        let head = |line: &str| format!("{line} HTTP/1.1\r\nhost: x\r\n\r\n");
        for (line, code) in [
            ("GET /", "404"),
            ("GET /v2/status", "404"),
            ("POST /v1/status", "405"),
            ("GET /v1/status?arrray=x", "400"),
            ("POST /v1/arrays/a/explode", "404"),
        ] {
            let answer = raw(&daemon.path, head(line).as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{line}: {answer}");
            assert!(answer.contains("raidfabric.error/1"), "{line}: {answer}");
        }
        let long = vec![b'x'; 70 << 10];
        let mut post = format!(
            "POST /v1/arrays/a/add HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
            long.len()
        )
        .into_bytes();
        post.extend(&long);
        let answer = raw(&daemon.path, &post);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(raw(&daemon.path, b"\x16\x03\x01hello\r\n\r\n").starts_with("HTTP/1.1 400 "));
        assert!(daemon.status(None).is_ok());
    }

    /// More connections than are served, all silent: they are given up one by one, and whoever asks
    /// meanwhile gets his answer.
    #[test]
    fn silent_connections_do_not_shut_others_out() {
        let folder = tempfile::tempdir().unwrap();
        let (daemon, _socket) = daemon(folder.path());
        let silent: Vec<_> = (0..24).map(|_| socket::connect(&daemon.path).unwrap()).collect();
        assert!(daemon.status(None).is_ok());
        drop(silent);
    }

    #[test]
    fn without_a_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let given = Socket { socket: Some(path.clone()) };
        let refused = given.daemon().unwrap_err();
        assert!(matches!(&refused, Failure::Refused(text) if text.contains("no such socket")));
        // What a killed one leaves.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let refused = given.daemon().unwrap_err();
        assert!(matches!(&refused, Failure::Refused(text) if text.contains("any more")));
    }
}
