//! `raidfabric serve`: the daemon.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use clap::Args;
use raidfabric_raid::array::Shared;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{ConfigFile, Failure, check, print, start_logging};
use crate::config::drives::Absence;
use crate::server::{Plan, Server, present};

/// Arguments of `serve`.
#[derive(Debug, Args)]
#[command(
    after_help = "An array is created only if every drive listed for it is blank; it is found \
                  again wherever its drives appear.\nSIGTERM, Ctrl-C and the terminal's \
                  end (SIGHUP) end the service: commands under way are finished, and the arrays \
                  are marked clean. SIGUSR1 logs what is in use.\n\nExample: raidfabric serve /etc/raidfabric/raidfabric.yaml"
)]
pub(super) struct Serve {
    #[command(flatten)]
    file: ConfigFile,
}

impl Serve {
    pub(super) fn run(self) -> Result<(), Failure> {
        start_logging()?;
        let (loaded, drives, cores) = check::load(&self.file, Absence::Allowed)?;
        serve(&Plan { config: loaded.config, drives, cores })
    }
}

/// Serves until a signal says to stop.
pub(super) fn serve(plan: &Plan) -> Result<(), Failure> {
    let server = Server::start(plan).map_err(|error| {
        if error.is_refusal() { Failure::refused(error) } else { Failure::failed(error) }
    })?;
    let reason = match watch_until_stopped(plan, &server) {
        Ok(reason) => reason,
        Err(error) => {
            server.stop();
            return Err(Failure::Failed(format!("cannot wait for signals: {error}")));
        }
    };
    tracing::info!("{}", server.in_use());
    tracing::info!("stopping: {reason}");
    let unclean = server.stop();
    for (array, why) in &unclean {
        tracing::error!(array, "not marked clean, so that it is checked at the next start: {why}");
    }
    match (reason, unclean.is_empty()) {
        (Reason::Signal(_), true) => Ok(()),
        (Reason::Signal(_), false) => {
            Err(Failure::Failed("an array was not stopped cleanly".into()))
        }
        (Reason::CoreLost, _) => Err(Failure::Failed(
            "a data core ended by itself, which is a fault of raidfabric; please report it with \
             the log above"
                .into(),
        )),
    }
}

/// Tells how to connect; a daemon serves on even if nobody reads it.
fn print_connect_lines(plan: &Plan, server: &Server) {
    for subsystem in &plan.config.subsystems {
        for &address in server.addresses() {
            let _ = print::line(present::connect_line(&subsystem.nqn, address));
        }
    }
    for (name, consistency) in server.consistencies() {
        let _ = print::line(format_args!("array {name}: consistency {consistency}"));
    }
    let _ = print::line("serving; Ctrl-C ends it");
}

/// How often a lack of space is said again, in looks of a second each.
const SPACE_NOTICE_SECONDS: u64 = 10;

/// Why the service ends.
#[derive(Clone, Copy, Debug)]
enum Reason {
    Signal(&'static str),
    CoreLost,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Signal(name) => f.write_str(name),
            Self::CoreLost => f.write_str("a data core has ended"),
        }
    }
}

/// Says that it serves, and waits for a reason to stop.
fn watch_until_stopped(plan: &Plan, server: &Server) -> std::io::Result<Reason> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before anybody is told that it serves: who reads that may send a signal at once.
        let signals = Signals::catch()?;
        print_connect_lines(plan, server);
        Ok(watch(server, signals).await)
    })
}

/// The signals that are not fatal to a daemon.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// The terminal went away; `None` where whoever started us has it ignored (`nohup`).
    hang_up: Option<Signal>,
    report: Signal,
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: if ignores_hang_up() { None } else { Some(signal(SignalKind::hangup())?) },
            report: signal(SignalKind::user_defined1())?,
        })
    }
}

/// Whether SIGHUP is ignored: signal 1, the lowest bit of the kernel's mask.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

/// The signal, if it is waited for at all.
async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Waits for a reason to stop; logs what an operator should know meanwhile.
async fn watch(server: &Server, mut signals: Signals) -> Reason {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    let mut half_minute = tokio::time::interval(Duration::from_secs(30));
    let mut watcher = Watcher::default();
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => return Reason::Signal("SIGTERM"),
            _ = signals.interrupt.recv() => return Reason::Signal("interrupted"),
            () = received(signals.hang_up.as_mut()) => return Reason::Signal("SIGHUP"),
            _ = signals.report.recv() => tracing::info!("{}", server.in_use()),
            _ = half_minute.tick() => server.report_health(),
            _ = second.tick() => {
                if server.has_lost_a_core() {
                    return Reason::CoreLost;
                }
                watcher.look(server);
            }
        }
    }
}

/// Notices what changes about the arrays, and says it once.
#[derive(Default)]
struct Watcher {
    resyncing: HashSet<String>,
    /// Writes that found no space below a member, by array, when it was last said.
    no_space: HashMap<String, u64>,
    looks: u64,
}

impl Watcher {
    /// Says that members have no space, once in a while, as long as writes meet it.
    fn look_for_space(&mut self, name: &str, array: &Shared) {
        let counts = (0..array.geometry().members()).map(|slot| array.member_errors(slot).no_space);
        let count: u64 = counts.sum();
        let said = self.no_space.entry(name.to_owned()).or_default();
        if count > *said && self.looks % SPACE_NOTICE_SECONDS == 1 {
            tracing::error!(
                array = name,
                "{} writes failed for lack of space below a member: make room on its file system \
                 or thin volume; hosts are told Capacity Exceeded until then",
                count - *said
            );
            *said = count;
        }
    }

    fn look(&mut self, server: &Server) {
        self.looks += 1;
        for (name, array) in server.arrays() {
            self.look_for_space(name, array);
            if array.is_in_sync() {
                if self.resyncing.remove(name) {
                    tracing::info!(array = name, "resync done: all copies are equal");
                }
            } else {
                self.resyncing.insert(name.to_owned());
            }
        }
    }
}
