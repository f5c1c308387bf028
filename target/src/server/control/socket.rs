//! The control socket's file: who may have it, and what is left of a daemon that was killed.
//!
//! Beside the socket lies a lock file, which a daemon holds as long as it lives; the kernel lets go
//! of it whatever way the daemon ends. Whoever has the lock owns the path: a socket that lies there
//! is a dead daemon's, and is replaced. So a living daemon's socket is never taken away from it, and
//! two that start at once cannot both get it.
//!
//! The socket is made with mode 0600 (it is given to the socket before its file appears, so that
//! nobody gets in between): commands need the daemon's user, or root.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Commands that the kernel keeps waiting while we serve others.
const BACKLOG: i32 = 64;

/// How long a daemon may take to end, and how often it is looked for.
const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(50);

/// The longest path that a socket's address can hold, with its end.
const MAX_ADDRESS_BYTES: usize = 108;

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another daemon has it.
    #[error(
        "{path:?} is the control socket of a daemon that is running{}; give this one another \
         `state_dir`, or `control: {{ socket: PATH }}`", .pid.map(|pid| format!(" (process {pid})"))
            .unwrap_or_default()
    )]
    Live {
        /// The socket.
        path: PathBuf,
        /// The daemon, if it says.
        pid: Option<u32>,
    },
    /// Something else lies there.
    #[error(
        "{path:?} is there and is no socket; move it away, or set `control: {{ socket: PATH }}`"
    )]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refuses.
    #[error(
        "cannot {doing} {path:?}: {source}; set `control: {{ socket: PATH }}` to a place that this \
         user can write, or to `off`"
    )]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A socket that is ours and listens; its file goes when it is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    listener: std::os::unix::net::UnixListener,
    path: PathBuf,
    /// Device and number of the socket's file.
    file: (u64, u64),
    _lock: File,
}

impl ControlSocket {
    /// Takes the path and listens.
    ///
    /// # Errors
    /// [`SocketError`]; a daemon that lives keeps its socket.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |doing: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| SocketError::Io { doing, path, source }
        };
        if let Some(parent) = path.parent() {
            let make = || DirBuilder::new().recursive(true).mode(0o755).create(parent);
            make().map_err(failed("make", parent))?;
        }
        let lock = lock_patiently(path)?;
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.file_type().is_socket() => {
                return Err(SocketError::NotASocket { path: path.to_owned() });
            }
            Ok(_) => fs::remove_file(path).map_err(failed("replace", path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("look at", path)(error)),
        }
        let listening = || -> io::Result<(OwnedFd, fs::Metadata)> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
            with_address(path, |address| Ok(rustix::net::bind(&socket, address)?))?;
            rustix::net::listen(&socket, BACKLOG)?;
            Ok((socket, fs::symlink_metadata(path)?))
        };
        let (socket, meta) = listening().map_err(failed("listen on", path))?;
        Ok(Self {
            listener: socket.into(),
            path: path.to_owned(),
            file: (meta.dev(), meta.ino()),
            _lock: lock,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A handle to accept on, for an executor.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn listener(&self) -> io::Result<std::os::unix::net::UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.file);
        if ours {
            // If it fails the next daemon replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Takes the lock beside the socket; waits a moment for a daemon that is ending.
fn lock_patiently(path: &Path) -> Result<File, SocketError> {
    let start = Instant::now();
    loop {
        match lock(path) {
            Err(SocketError::Live { .. }) if start.elapsed() < PREDECESSOR_PATIENCE => {
                std::thread::sleep(RETRY);
            }
            end => return end,
        }
    }
}

/// Takes the lock beside the socket.
fn lock(path: &Path) -> Result<File, SocketError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let io_error = |doing, source| SocketError::Io { doing, path: name.clone(), source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(&name).map_err(|source| io_error("open", source))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            // Whatever cannot be read is only not said.
            let _ = Read::by_ref(&mut file).take(16).read_to_string(&mut text);
            return Err(SocketError::Live { path: path.to_owned(), pid: text.trim().parse().ok() });
        }
        Err(TryLockError::Error(source)) => return Err(io_error("lock", source)),
    }
    let mut note = || -> io::Result<()> {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    note().map_err(|source| io_error("write", source))?;
    Ok(file)
}

/// Gives a path's address to `act`: of a path that is too long for one, through its directory.
fn with_address<T>(
    path: &Path,
    act: impl FnOnce(&SocketAddrUnix) -> io::Result<T>,
) -> io::Result<T> {
    if path.as_os_str().len() < MAX_ADDRESS_BYTES {
        return act(&SocketAddrUnix::new(path)?);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(parent, flags, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    act(&SocketAddrUnix::new(short)?)
}

/// Connects to a daemon's socket.
///
/// # Errors
/// The system's: nobody listens there, or this user may not.
pub fn connect(path: &Path) -> io::Result<std::os::unix::net::UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    with_address(path, |address| Ok(rustix::net::connect(&socket, address)?))?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn only_its_user_gets_in_and_nothing_is_left_but_the_lock() {
        let folder = folder();
        let path = folder.path().join("run/raidfabric/control.sock");
        let socket = ControlSocket::bind(&path).unwrap();
        let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert!(connect(&path).is_ok());
        drop(socket);
        assert!(!path.exists());
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_living_daemon_keeps_its_socket() {
        let folder = folder();
        let path = folder.path().join("control.sock");
        let _socket = ControlSocket::bind(&path).unwrap();
        let error = ControlSocket::bind(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        assert!(error.contains("state_dir"), "{error}");
        assert!(connect(&path).is_ok(), "it still listens");
    }

    /// After SIGKILL the file stays, and the next daemon could not bind it.
    #[test]
    fn what_a_killed_daemon_left_is_replaced() {
        let folder = folder();
        // As the kernel does at a process's end: the descriptors are closed, the files stay.
        let stale = folder.path().join("stale.sock");
        drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
        assert!(stale.exists());
        fs::write(folder.path().join("stale.sock.lock"), "4194305\n").unwrap();
        let socket = ControlSocket::bind(&stale).unwrap();
        assert!(connect(&stale).is_ok());
        // Somebody else's file in its place is not removed with it.
        fs::remove_file(&stale).unwrap();
        fs::write(&stale, "x").unwrap();
        drop(socket);
        assert!(stale.exists());
        let error = ControlSocket::bind(&stale).unwrap_err();
        assert!(matches!(error, SocketError::NotASocket { .. }), "{error}");
    }

    #[test]
    fn a_path_may_be_longer_than_an_address() {
        let folder = folder();
        let path = folder.path().join("d".repeat(120)).join("control.sock");
        let _socket = ControlSocket::bind(&path).unwrap();
        assert!(path.exists());
        assert!(connect(&path).is_ok());
        let refused = ControlSocket::bind(Path::new("/proc/nowhere/control.sock")).unwrap_err();
        assert!(refused.to_string().contains("control: { socket: PATH }"), "{refused}");
    }
}
