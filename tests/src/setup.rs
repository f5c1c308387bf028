//! A configuration, and the server that is started from it.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use raidfabric::config;
use raidfabric::config::cores::Available;
use raidfabric::server::{InUse, Plan, Server, StartError};

/// The subsystem that is served, unless a test says otherwise.
pub const NQN: &str = "nqn.2026-11.io.raidfabric:test";

/// How long a target may take to be rid of connections that have ended.
const SETTLE: Duration = Duration::from_secs(6);

/// A configuration under construction.
#[derive(Clone, Debug)]
pub struct Setup {
    arrays: String,
    namespaces: String,
    more_subsystems: String,
    hosts: String,
    settings: String,
    listen: String,
    chunk: String,
    cores: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self::new()
    }
}

impl Setup {
    /// One subsystem, for any host, without arrays; two data cores that do not poll; a free port.
    pub fn new() -> Self {
        Self {
            arrays: String::new(),
            namespaces: String::new(),
            more_subsystems: String::new(),
            hosts: "any".into(),
            settings: "busy_poll: off\n".into(),
            listen: "listen: [\"127.0.0.1:0\"]\n".into(),
            chunk: "64KiB".into(),
            cores: 2,
        }
    }

    /// One array of this level in memory, as namespace 1 with blocks of 4096 bytes.
    pub fn memory(level: &str, members: usize, member_mib: u64) -> Self {
        Self::new().memory_array("a", level, members, member_mib).namespace(1, "a", 4096)
    }

    /// One array of this level over files, as namespace 1 with blocks of 4096 bytes. Members that
    /// are missing are not waited for.
    pub fn files(level: &str, directory: &Path, files: &[&str]) -> Self {
        Self::files_with(level, directory, files, "")
    }

    /// The same with further keys of the array, such as `consistency: resync`.
    pub fn files_with(level: &str, directory: &Path, files: &[&str], more: &str) -> Self {
        let paths: Vec<_> = files.iter().map(|file| quoted(&directory.join(file))).collect();
        let state = format!("state_dir: {}\n", quoted(&directory.join("state")));
        let comma = if more.is_empty() { "" } else { ", " };
        let keys = format!("degraded_wait: 0s{comma}{more}");
        let setup = Self::new().array_with("a", level, &paths.join(", "), &keys);
        setup.namespace(1, "a", 4096).setting(&state)
    }

    /// An array over members in memory.
    #[must_use]
    pub fn memory_array(self, name: &str, level: &str, members: usize, member_mib: u64) -> Self {
        let members = vec![format!("memory:{member_mib}MiB"); members].join(", ");
        self.array(name, level, &members)
    }

    /// The chunk of the arrays that are added from now on, instead of 64 KiB.
    #[must_use]
    pub fn chunk(mut self, chunk: &str) -> Self {
        self.chunk = chunk.into();
        self
    }

    /// An array with these members, written as in YAML.
    #[must_use]
    pub fn array(self, name: &str, level: &str, members: &str) -> Self {
        self.array_with(name, level, members, "")
    }

    /// The same with further keys, such as `consistency: resync`.
    #[must_use]
    pub fn array_with(mut self, name: &str, level: &str, members: &str, more: &str) -> Self {
        let comma = if more.is_empty() { "" } else { ", " };
        let chunk = match level {
            "raid1" => String::new(),
            _ => format!("chunk: {}, ", self.chunk),
        };
        let _ = writeln!(
            self.arrays,
            "  - {{ name: {name}, level: {level}, {chunk}members: [{members}]{comma}{more} }}"
        );
        self
    }

    /// A namespace that takes a whole array.
    #[must_use]
    pub fn namespace(self, nsid: u32, array: &str, block_bytes: u32) -> Self {
        self.namespace_with(nsid, array, block_bytes, "")
    }

    /// A namespace with further keys, such as `offset: 4MiB, size: 4MiB`.
    #[must_use]
    pub fn namespace_with(mut self, nsid: u32, array: &str, block_bytes: u32, more: &str) -> Self {
        let comma = if more.is_empty() { "" } else { ", " };
        let _ = writeln!(
            self.namespaces,
            "      - {{ nsid: {nsid}, array: {array}, block_size: {block_bytes}{comma}{more} }}"
        );
        self
    }

    /// Another subsystem, as a YAML mapping in one line.
    #[must_use]
    pub fn subsystem(mut self, yaml: &str) -> Self {
        let _ = writeln!(self.more_subsystems, "  - {yaml}");
        self
    }

    /// Who may connect to the first subsystem, as in YAML.
    #[must_use]
    pub fn hosts(mut self, hosts: &str) -> Self {
        self.hosts = hosts.into();
        self
    }

    /// A line of settings.
    #[must_use]
    pub fn setting(mut self, line: &str) -> Self {
        self.settings.push_str(line.trim_end());
        self.settings.push('\n');
        self
    }

    /// The busy polling that is the default, instead of none.
    #[must_use]
    pub fn busy_poll(mut self) -> Self {
        self.settings = self.settings.replace("busy_poll: off\n", "");
        self
    }

    /// The listening addresses, as a line of YAML.
    #[must_use]
    pub fn listen(mut self, line: &str) -> Self {
        self.listen = format!("{}\n", line.trim_end());
        self
    }

    /// So many data cores.
    #[must_use]
    pub fn cores(mut self, cores: usize) -> Self {
        self.cores = cores;
        self
    }

    /// The file's text.
    pub fn yaml(&self) -> String {
        format!(
            "arrays:\n{}subsystems:\n  - nqn: {NQN}\n    hosts: {}\n    namespaces:\n{}{}{}{}",
            self.arrays,
            self.hosts,
            self.namespaces,
            self.more_subsystems,
            self.listen,
            self.settings
        )
    }

    /// What the server is started with.
    pub fn plan(&self) -> Plan {
        let text = self.yaml();
        let loaded = config::parse(Path::new("test.yaml"), &text)
            .unwrap_or_else(|error| panic!("{error}\n{text}"));
        let drives = loaded
            .drives(raidfabric::config::drives::Absence::Refused)
            .unwrap_or_else(|error| panic!("{error}"));
        // Threads are named and pinned by this list. Where there are fewer processors than a test
        // wants cores, some share one.
        let available = Available::read().unwrap();
        let processors = config::cores::choose(&config::CoreSelection::Auto, &available).unwrap();
        let cores = processors.iter().copied().cycle().take(self.cores).collect();
        Plan { config: loaded.config, drives, cores }
    }

    /// A running target.
    pub fn start(&self) -> Target {
        self.try_start().unwrap_or_else(|error| panic!("{error}"))
    }

    /// A running target, or why there is none.
    ///
    /// # Errors
    /// The server's.
    pub fn try_start(&self) -> Result<Target, StartError> {
        let server = Server::start(&self.plan())?;
        let address = server.addresses()[0];
        Ok(Target { server, address })
    }
}

/// A path as YAML takes it, whatever is in it.
pub fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display())
}

/// A running target.
pub struct Target {
    server: Server,
    /// The first address that serves volumes.
    pub address: SocketAddr,
}

impl Target {
    /// The server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The server, to be stopped where that may not end clean.
    pub fn into_server(self) -> Server {
        self.server
    }

    /// Waits until nothing is in use any more.
    ///
    /// # Panics
    /// Something stays in use, or a data core is gone.
    pub async fn settled(&self) {
        let nothing = InUse::default();
        self.settled_at("everything ended", |in_use| *in_use == nothing).await;
    }

    /// Waits until what is in use is as it should be.
    ///
    /// # Panics
    /// It does not become so, or a data core is gone.
    pub async fn settled_at(&self, when: &str, right: impl Fn(&InUse) -> bool) {
        let start = Instant::now();
        loop {
            assert!(!self.server.has_lost_a_core(), "a data core has ended by itself");
            let in_use = self.server.in_use();
            if right(&in_use) {
                return;
            }
            assert!(start.elapsed() < SETTLE, "after {when}: {in_use}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Stops, which must end clean.
    ///
    /// # Panics
    /// A core was lost, or an array could not be marked clean.
    pub fn stop(self) {
        assert!(!self.server.has_lost_a_core(), "a data core has ended by itself");
        let unclean = self.server.stop();
        assert!(unclean.is_empty(), "not clean: {unclean:?}");
    }

    /// Waits until nothing is in use, then stops.
    ///
    /// # Panics
    /// Something was left behind, or the stop was not clean.
    pub async fn settle_and_stop(self) {
        self.settled().await;
        self.stop();
    }
}
