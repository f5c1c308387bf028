//! `raidfabric serve`: the daemon.

use std::collections::HashSet;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::{ConfigFile, Failure, check, start_logging};
use crate::server::{Plan, Server, present};

/// Arguments of `serve`.
#[derive(Debug, Args)]
#[command(
    after_help = "An array is created only if every drive listed for it is blank; it is found \
                  again wherever its drives appear.\nSIGTERM and Ctrl-C end the service: commands \
                  under way are finished, and the arrays are marked clean. SIGUSR1 logs what is \
                  in use."
)]
pub(super) struct Serve {
    #[command(flatten)]
    file: ConfigFile,
}

impl Serve {
    pub(super) fn run(self) -> Result<(), Failure> {
        start_logging();
        let (loaded, drives, cores) = check::load(&self.file)?;
        serve(&Plan { config: loaded.config, drives, cores })
    }
}

/// Serves until a signal says to stop.
pub(super) fn serve(plan: &Plan) -> Result<(), Failure> {
    let server = Server::start(plan).map_err(|error| {
        if error.is_refusal() { Failure::refused(error) } else { Failure::failed(error) }
    })?;
    print_connect_lines(plan, &server);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    let reason = runtime.block_on(watch(&server)).map_err(Failure::failed)?;
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

fn print_connect_lines(plan: &Plan, server: &Server) {
    for subsystem in &plan.config.subsystems {
        for &address in server.addresses() {
            println!("{}", present::connect_line(&subsystem.nqn, address));
        }
    }
    println!("serving; Ctrl-C ends it");
}

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

/// Waits for a reason to stop; logs what an operator should know meanwhile.
async fn watch(server: &Server) -> std::io::Result<Reason> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut report = signal(SignalKind::user_defined1())?;
    let mut second = tokio::time::interval(Duration::from_secs(1));
    let mut half_minute = tokio::time::interval(Duration::from_secs(30));
    let mut watcher = Watcher::default();
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(Reason::Signal("SIGTERM")),
            _ = interrupt.recv() => return Ok(Reason::Signal("interrupted")),
            _ = report.recv() => tracing::info!("{}", server.in_use()),
            _ = half_minute.tick() => server.report_health(),
            _ = second.tick() => {
                if server.has_lost_a_core() {
                    return Ok(Reason::CoreLost);
                }
                watcher.look(server);
            }
        }
    }
}

/// Notices what changes about the arrays, and says it once.
#[derive(Default)]
struct Watcher {
    failed: HashSet<String>,
    resyncing: HashSet<String>,
}

impl Watcher {
    fn look(&mut self, server: &Server) {
        for (name, array) in server.arrays() {
            if let Some(failure) = array.failure()
                && self.failed.insert(name.to_owned())
            {
                tracing::error!(
                    array = name,
                    "the array has failed and takes no more writes: {failure}. See the kernel's \
                     log (dmesg) for the drive"
                );
                server.report_health();
            }
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
