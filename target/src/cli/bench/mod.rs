//! `raidfabric bench`: the load generator of the initiator crate on the command line.
//!
//! A run that would write asks the target first what is there, and refuses with that in the
//! message unless `--destroy-data` was given.

mod progress;
mod tables;
mod url;

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use raidfabric_initiator::bench::{self, Access, Workload};
use raidfabric_initiator::{Controller, Error, Host, Namespace, Options};
use raidfabric_protocol::fabrics::nqn;
use raidfabric_protocol::nvme::status::{Code, CommandSpecific};
use raidfabric_protocol::tcp::Digests;
use serde::Serialize;

use self::progress::Bar;
use self::url::Url;
use super::{Failure, print};
use crate::config::{cores, format_bytes, parse_duration, parse_size};

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Latencies are from a command's submission to its completion. Runs that write, \
                  and --verify, destroy the volume's data and need --destroy-data. With --sweep \
                  the depth goes from 1 to 512 and the number of workers from 1 to 8, each with a \
                  connection of its own: 40 runs, four minutes with the usual times.\n\nExamples:\n  raidfabric bench \
                  nvme-tcp://127.0.0.1:4420/nqn.2026-11.io.raidfabric:demo\n  raidfabric bench \
                  URL --block-size 128KiB --sequential --depth 8 --connections 4\n  raidfabric \
                  bench URL --workload mixed --read-percent 70 --verify --destroy-data\n  \
                  raidfabric bench URL --sweep --output json >sweep.json"
)]
pub(super) struct Bench {
    /// The subsystem: nvme-tcp://HOST:PORT/NQN
    #[arg(value_name = "URL")]
    url: Url,
    /// What is done
    #[arg(long, value_enum, default_value_t = Kind::Read, value_name = "KIND")]
    workload: Kind,
    /// Share of reads in a mixed workload [default: 70]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=99))]
    read_percent: Option<u8>,
    /// One place after the other instead of random ones
    #[arg(long)]
    sequential: bool,
    /// Size of each read or write
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = io_bytes)]
    block_size: u32,
    /// Commands under way on each connection
    #[arg(
        long, value_name = "NUMBER", default_value_t = 32, conflicts_with = "sweep",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    depth: u16,
    /// Connections, each with an I/O queue
    #[arg(
        long, value_name = "NUMBER", default_value_t = 1, conflicts_with = "sweep",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    connections: u16,
    /// Threads that share the connections [default: one for each connection, at most one for each
    /// core that may be used]
    #[arg(
        long, value_name = "NUMBER", conflicts_with = "sweep",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    workers: Option<u16>,
    /// Cores that the threads are pinned to, in turn, as in 2,4-7
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    cpus: Option<Cpus>,
    /// How long is measured
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = run_time)]
    duration: Duration,
    /// How long load is put on before that
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = warm_up_time)]
    warm_up: Duration,
    /// Use only the first part of the volume [default: all of it]
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    span: Option<u64>,
    /// The namespace
    #[arg(long, value_name = "NSID", default_value_t = 1)]
    namespace: u32,
    /// Protect headers by digests (CRC32C)
    #[arg(long)]
    hdr_digest: bool,
    /// Protect data by digests (CRC32C)
    #[arg(long)]
    data_digest: bool,
    /// Do without SQ flow control: a controller then may answer reads without a response
    #[arg(long)]
    disable_sqflow: bool,
    /// This host's NQN, where the subsystem allows only some [default: one made up for the run]
    #[arg(long, value_name = "NQN", value_parser = host)]
    hostnqn: Option<Host>,
    /// Write contents that tell where and when they were written, and check everything that is read
    #[arg(long)]
    verify: bool,
    /// Agree that the data of the volume is destroyed
    #[arg(long)]
    destroy_data: bool,
    /// Measure depths from 1 to 512 with 1 to 8 workers
    #[arg(long)]
    sweep: bool,
    /// Text for people, or JSON (raidfabric.bench/1, raidfabric.bench-sweep/1)
    #[arg(long, value_enum, default_value_t = Output::Text, value_name = "FORM")]
    output: Output,
}

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Read,
    Write,
    Mixed,
}

/// How the result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// A list of cores.
#[derive(Clone, Debug)]
struct Cpus(Vec<usize>);

fn size_bytes(text: &str) -> Result<u64, String> {
    parse_size(text)
}

fn io_bytes(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text)?;
    u32::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or_else(|| {
        format!("{} is no size of a read or write; try 4KiB to 1MiB", format_bytes(bytes))
    })
}

fn run_time(text: &str) -> Result<Duration, String> {
    parse_duration(text, Duration::from_millis(10), Duration::from_hours(24))
}

fn warm_up_time(text: &str) -> Result<Duration, String> {
    parse_duration(text, Duration::ZERO, Duration::from_hours(1))
}

fn cpus(text: &str) -> Result<Cpus, String> {
    match cores::parse_list(text) {
        Some(list) if !list.is_empty() => Ok(Cpus(list)),
        _ => Err("write core numbers and ranges, as in 2,4-7".into()),
    }
}

fn host(text: &str) -> Result<Host, String> {
    nqn::validate(text).map_err(|error| error.to_string())?;
    let mut builder = Host::builder().nqn(text);
    // A name made of a UUID goes with that HOSTID, as nvme-cli has it.
    if let Some(id) = text.strip_prefix("nqn.2014-08.org.nvmexpress:uuid:")
        && let Ok(id) = id.parse()
    {
        builder = builder.id(id);
    }
    builder.build().map_err(|error| error.to_string())
}

impl Bench {
    pub(super) fn run(self) -> Result<(), Failure> {
        let address = self.url.address().map_err(Failure::Failed)?;
        let workload = self.workload(address)?;
        if workload.writes() {
            self.check_leave(&workload)?;
        }
        if self.sweep { self.run_sweep(&workload) } else { self.run_once(&workload) }
    }

    fn workload(&self, address: SocketAddr) -> Result<Workload, Failure> {
        let read_percent = match (self.workload, self.read_percent) {
            (Kind::Mixed, percent) => percent.unwrap_or(70),
            (_, Some(_)) => {
                return Err(Failure::Refused(
                    "--read-percent goes with a mixed workload: add --workload mixed".into(),
                ));
            }
            (Kind::Read, None) => 100,
            (Kind::Write, None) => 0,
        };
        let mut options = Options {
            digests: Digests { header: self.hdr_digest, data: self.data_digest },
            disable_sq_flow_control: self.disable_sqflow,
            ..Options::default()
        };
        if let Some(host) = &self.hostnqn {
            options.host = host.clone();
        }
        Ok(Workload {
            nsid: self.namespace,
            options,
            access: if self.sequential { Access::Sequential } else { Access::Random },
            read_percent,
            io_bytes: self.block_size,
            queue_depth: self.depth,
            connections: self.connections,
            workers: self.workers.unwrap_or_else(|| self.usual_workers()),
            duration: self.duration,
            warm_up: self.warm_up,
            span_bytes: self.span,
            verify: self.verify,
            destroy_data: self.destroy_data,
            cpus: self.cpus.clone().map_or_else(Vec::new, |cpus| cpus.0),
            ..Workload::new(address, self.url.nqn.clone())
        })
    }

    fn usual_workers(&self) -> u16 {
        let cores = match &self.cpus {
            Some(cpus) => cpus.0.len(),
            None => std::thread::available_parallelism().map_or(1, usize::from),
        };
        self.connections.min(u16::try_from(cores).unwrap_or(u16::MAX))
    }

    /// Refuses to write without leave, and says what would be lost.
    fn check_leave(&self, workload: &Workload) -> Result<(), Failure> {
        if self.destroy_data {
            return Ok(());
        }
        let namespace = identify(workload).map_err(|error| explain(workload, &error))?;
        let why = if self.verify && workload.read_percent == 100 {
            "--verify writes known contents first"
        } else {
            "this workload writes"
        };
        Err(Failure::Refused(format!(
            "{why}, and that destroys the data of {}. Nothing was written; if that data may be \
             lost, add --destroy-data",
            describe(workload, &namespace)
        )))
    }

    fn run_once(&self, workload: &Workload) -> Result<(), Failure> {
        let mut bar = Bar::new();
        let result = bench::run(workload, &mut |now| bar.show("", 0, 1, now));
        bar.clear();
        let report = result.map_err(|error| explain(workload, &error))?;
        self.print(&report, tables::report)
    }

    fn run_sweep(&self, workload: &Workload) -> Result<(), Failure> {
        let mut bar = Bar::new();
        let result = bench::sweep(workload, &mut |number, total, now| {
            bar.show(&format!("run {} of {total}: ", number + 1), number, total, now);
        });
        bar.clear();
        let report = result.map_err(|error| explain(workload, &error))?;
        self.print(&report, tables::sweep)
    }

    fn print<T: Serialize>(&self, report: &T, text: impl Fn(&T) -> String) -> Result<(), Failure> {
        match self.output {
            Output::Text => print::text(text(report)),
            Output::Json => {
                let json = serde_json::to_string_pretty(report).map_err(Failure::failed)?;
                print::line(json)
            }
        }
    }
}

/// What the volume is that a run would write to.
fn describe(workload: &Workload, namespace: &Namespace) -> String {
    let size = namespace.size_bytes();
    let part = match workload.span_bytes.filter(|span| *span < size) {
        Some(span) => format!("the first {} of ", format_bytes(span)),
        None => String::new(),
    };
    let id = match namespace.uuid {
        Some(uuid) => format!("UUID {uuid}"),
        None => "no UUID".to_owned(),
    };
    format!(
        "{part}namespace {} ({}, {id}) of {} at {}",
        workload.nsid,
        format_bytes(size),
        workload.subnqn,
        workload.address
    )
}

/// Asks the target what the namespace is.
fn identify(workload: &Workload) -> Result<Namespace, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let controller =
            Controller::connect(workload.address, &workload.subnqn, &workload.options).await?;
        let namespace = controller.namespace(workload.nsid).await?;
        // What was asked for is known; the target closes what is left.
        let _ = controller.shutdown().await;
        Ok(namespace)
    })
}

/// The subsystems that discovery lists at the address, if it answers.
fn subsystems(workload: &Workload) -> Vec<String> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    let found = runtime.block_on(Controller::discover(workload.address, &workload.options));
    let names = found.unwrap_or_default();
    let names = names.iter().filter_map(|entry| nqn::from_field(&entry.subnqn).ok());
    let mut names: Vec<_> =
        names.filter(|name| *name != nqn::DISCOVERY_NQN).map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// An error of a run, with what to do about it.
fn explain(workload: &Workload, error: &Error) -> Failure {
    match error {
        Error::Invalid(_) | Error::Unsupported(_) => Failure::refused(error),
        Error::Connect { .. } => Failure::Failed(format!(
            "{error}; is the target running, and is this its address and port?"
        )),
        _ => match error.status().map(|status| status.code) {
            Some(Code::CommandSpecific(CommandSpecific::ConnectInvalidHost)) => {
                Failure::Failed(format!(
                    "{error}: {} does not allow this host; give the NQN of one that it allows by \
                     --hostnqn (a host's own is in /etc/nvme/hostnqn)",
                    workload.subnqn
                ))
            }
            Some(Code::CommandSpecific(CommandSpecific::ConnectInvalidParameters)) => {
                let names = subsystems(workload);
                let there = if names.is_empty() {
                    "this host may use none there".to_owned()
                } else {
                    format!("there are {}", names.join(", "))
                };
                Failure::Failed(format!(
                    "{error}: there is no subsystem {} at {}; {there}",
                    workload.subnqn, workload.address
                ))
            }
            _ => Failure::failed(error),
        },
    }
}
