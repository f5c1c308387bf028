//! `raidfabric serve` over files, and a host that reads its volume.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;
use raidfabric_initiator::{Controller, Error, Options, Volume};
use raidfabric_protocol::nvme::status::Status;

use super::model::BLOCK_BYTES;

const NQN: &str = "nqn.2026-11.io.raidfabric:replay";
const PATIENCE: Duration = Duration::from_secs(60);
/// Blocks of one read, and reads under way.
const READ_BLOCKS: u64 = 32;
const READS: u64 = 8;

/// What a block reads as: its data, or the error's status.
pub type Read = Result<Bytes, Status>;

/// A running daemon.
pub struct Daemon {
    child: Child,
    program: PathBuf,
    directory: PathBuf,
    log: PathBuf,
    address: SocketAddr,
}

impl Daemon {
    /// Serves the files `member*` of a directory as an array of this level, and waits until it does.
    ///
    /// # Errors
    /// What the daemon says when it does not start.
    pub fn start(program: &Path, directory: &Path, array: &str) -> Result<Self, String> {
        let file = directory.join("raidfabric.yaml");
        let shown = directory.display();
        let yaml = format!(
            "arrays:\n  - {{ name: a, {array}, degraded_wait: 0s, members: [\"{shown}/member*\"] }}\n\
             subsystems:\n  - nqn: {NQN}\n    hosts: any\n    namespaces: [{{ nsid: 1, array: a }}]\n\
             listen: [\"127.0.0.1:0\"]\nstate_dir: {shown}/state\nbusy_poll: off\n"
        );
        let log = directory.join("log");
        let output = File::create(&log).map_err(|error| error.to_string())?;
        fs::write(&file, yaml).map_err(|error| error.to_string())?;
        let child = Command::new(program)
            .arg("serve")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(|error| error.to_string())?)
            .stderr(output)
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let address = ([127, 0, 0, 1], 0).into();
        let (program, directory) = (program.to_owned(), directory.to_owned());
        let mut daemon = Self { child, program, directory, log, address };
        let begin = Instant::now();
        while !daemon.said().contains("\nserving") {
            if let Ok(Some(status)) = daemon.child.try_wait() {
                return Err(format!("the daemon ended with {status}:\n{}", daemon.said()));
            }
            if begin.elapsed() > PATIENCE {
                return Err(format!("the daemon does not serve:\n{}", daemon.said()));
            }
            sleep(Duration::from_millis(5));
        }
        let port = daemon.said();
        let port = port.split(" -s ").nth(1).and_then(|rest| rest.split(' ').next());
        let port = port.and_then(|port| port.parse().ok()).ok_or("no port is told")?;
        daemon.address.set_port(port);
        Ok(daemon)
    }

    /// All that it has printed.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// An order, such as `array fail a 1`.
    ///
    /// # Errors
    /// What it says when it fails.
    pub fn order(&self, words: &[&str]) -> Result<String, String> {
        let socket = self.directory.join("state/control.sock");
        let output = Command::new(&self.program)
            .args(words)
            .env("RAIDFABRIC_SOCKET", socket)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(said);
        }
        let why = String::from_utf8_lossy(&output.stderr);
        Err(format!("raidfabric {}: {said}{why}\nthe daemon:\n{}", words.join(" "), self.said()))
    }

    /// Waits for a goal of `raidfabric wait`.
    ///
    /// # Errors
    /// It is not reached in time.
    pub fn reached(&self, goal: &str) -> Result<(), String> {
        self.order(&["wait", "a", "--for", goal, "--timeout", "60s"]).map(drop)
    }

    /// Reads every block.
    ///
    /// # Errors
    /// The host has to give up.
    pub fn read_all(&self) -> Result<Vec<Read>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let read = runtime.block_on(read_all(self.address));
        read.map_err(|error| format!("{error}\nthe daemon:\n{}", self.said()))
    }

    /// Ends the daemon as an operator would, which must end clean.
    ///
    /// # Errors
    /// It does not.
    pub fn stop(mut self) -> Result<(), String> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .map_err(|error| error.to_string())?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if !status.success() || self.said().contains("panicked") {
            return Err(format!("the daemon ended with {status}:\n{}", self.said()));
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // After `stop` there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn read_all(address: SocketAddr) -> Result<Vec<Read>, Error> {
    let options = Options { timeout: PATIENCE, ..Options::default() };
    let controller = Controller::connect(address, NQN, &options).await?;
    let volume = controller.volume(1, READS as u16 + 1).await?;
    let blocks = volume.namespace().size_bytes() / BLOCK_BYTES as u64;
    let mut tasks = Vec::new();
    for task in 0..READS {
        let volume = volume.clone();
        tasks.push(tokio::spawn(async move {
            let mut read = Vec::new();
            for begin in (task * READ_BLOCKS..blocks).step_by((READS * READ_BLOCKS) as usize) {
                read.push((
                    begin,
                    read_some(&volume, begin, READ_BLOCKS.min(blocks - begin)).await?,
                ));
            }
            Result::<_, Error>::Ok(read)
        }));
    }
    let mut pieces = Vec::new();
    for task in tasks {
        pieces.extend(task.await.map_err(|error| Error::Invalid(error.to_string()))??);
    }
    pieces.sort_unstable_by_key(|(begin, _)| *begin);
    controller.shutdown().await?;
    Ok(pieces.into_iter().flat_map(|(_, blocks)| blocks).collect())
}

async fn read_some(volume: &Volume, begin: u64, blocks: u64) -> Result<Vec<Read>, Error> {
    match volume.read(begin, blocks as u32).await {
        Ok(data) => {
            let block = |at: u64| {
                let at = at as usize * BLOCK_BYTES;
                Ok(data.slice(at..at + BLOCK_BYTES))
            };
            Ok((0..blocks).map(block).collect())
        }
        Err(Error::Status { status, .. }) if blocks == 1 => Ok(vec![Err(status)]),
        // One of them cannot be read: which?
        Err(Error::Status { .. }) => {
            let mut read = Vec::new();
            for block in begin..begin + blocks {
                read.extend(Box::pin(read_some(volume, block, 1)).await?);
            }
            Ok(read)
        }
        Err(error) => Err(error),
    }
}
