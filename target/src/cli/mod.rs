//! The command line: what can be asked for, and the exit codes.
//!
//! Each command lives in a file of its own; this one declares them, so that `--help`, the manual
//! and the completions come from one place. Exit codes: 0 done, 1 failed, 2 usage or
//! configuration (nothing was touched then). Of commands that tell how arrays or drives are: 0 all
//! is well, 1 degraded or a warning, 2 failed, 4 anything else.

mod array;
mod bench;
mod check;
mod client;
mod confirm;
mod demo;
mod drive;
mod generate;
mod output;
mod print;
mod serve;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::ConfigErrors;
use crate::server::report::Severity;

/// Serves the NVMe drives of this host as a RAID volume over NVMe/TCP.
///
/// Write a YAML file that names the drives, the RAID level and who may connect; `raidfabric serve
/// FILE` does the rest and prints the `nvme connect` line for the hosts. To see it work without
/// any drives: `raidfabric demo`.
#[derive(Debug, Parser)]
#[command(
    name = "raidfabric",
    version,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage or configuration (nothing was \
                  touched). Of status, examine and drive list: 0 all is well, 1 degraded or a \
                  warning, 2 failed, 4 not found, wrong usage or configuration.\nLogging: RAIDFABRIC_LOG=debug, or a filter such as \
                  raidfabric=trace,raidfabric_raid=debug. NO_COLOR=1 for no colours."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve what a configuration file describes, until SIGTERM or Ctrl-C
    Serve(serve::Serve),
    /// Say everything about a configuration that can be known without starting
    Check(check::Check),
    /// Say how the arrays are, what is wrong, and what to do
    Status(status::StatusCommand),
    /// Wait until the arrays are as they should be
    Wait(status::Wait),
    /// Create, examine and look after arrays
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "Example: raidfabric array create fabric.yaml"
    )]
    Array(array::Command),
    /// List, examine and wipe the drives of this host
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "Example: raidfabric drive list"
    )]
    Drive(drive::Command),
    /// Put load on a volume over NVMe/TCP, and measure it
    Bench(Box<bench::Bench>),
    /// Print the JSON Schema of the configuration file, for editors
    #[command(after_help = "Example: raidfabric schema >raidfabric.schema.json")]
    Schema,
    /// Serve four sparse files of 1 GiB as RAID 10 on 127.0.0.1:4420
    Demo(demo::Demo),
    /// Print the completions of a shell
    #[command(hide = true)]
    Completions(generate::Completions),
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man(generate::Man),
}

/// How a command ended otherwise than well; decides the exit code.
#[derive(Debug)]
pub enum Failure {
    /// Exit code 1: it was tried and did not succeed.
    Failed(String),
    /// Exit code 2: wrong usage or configuration; nothing was touched.
    Refused(String),
    /// Exit code 2 as well: mistakes of the configuration file, each of which begins with its place,
    /// so that editors find it.
    Misconfigured(String),
    /// Exit code 0: whoever read the output has read enough.
    Unread,
    /// The exit code of what was found, which has been told.
    Found(Severity),
}

impl Failure {
    /// An error of something that was tried.
    pub fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// Ends a command whose exit code tells what it found.
    ///
    /// # Errors
    /// [`Self::Found`] unless all is well.
    fn by_state(severity: Severity) -> Result<(), Self> {
        match severity {
            Severity::Ok => Ok(()),
            found => Err(Self::Found(found)),
        }
    }

    /// An error in the configuration file.
    fn misconfigured(error: ConfigErrors) -> Self {
        match error {
            ConfigErrors::Unreadable { .. } => Self::refused(error),
            ConfigErrors::Wrong(_) => Self::Misconfigured(error.to_string()),
        }
    }

    /// An error in what was asked for.
    pub fn refused(error: impl std::fmt::Display) -> Self {
        Self::Refused(error.to_string())
    }
}

/// Runs the program; `main` does nothing else.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let codes = Codes::of(cli.command.tells_state());
    let result = match cli.command {
        Command::Serve(command) => command.run(),
        Command::Check(command) => command.run(),
        Command::Status(command) => command.run(),
        Command::Wait(command) => command.run(),
        Command::Array(command) => command.run(),
        Command::Drive(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Schema => check::print_schema(),
        Command::Demo(command) => command.run(),
        Command::Completions(command) => command.run(),
        Command::Man(command) => command.run(),
    };
    match result {
        Ok(()) | Err(Failure::Unread) => ExitCode::SUCCESS,
        Err(Failure::Found(severity)) => ExitCode::from(severity.exit_code()),
        Err(Failure::Failed(text)) => {
            print::note(format_args!("raidfabric: {text}"));
            ExitCode::from(codes.failed)
        }
        Err(Failure::Refused(text)) => {
            print::note(format_args!("raidfabric: {text}"));
            ExitCode::from(codes.refused)
        }
        Err(Failure::Misconfigured(text)) => {
            print::note(text);
            ExitCode::from(codes.refused)
        }
    }
}

/// The exit codes of a command for what is not the state that it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Codes {
    failed: u8,
    refused: u8,
}

impl Codes {
    /// Where 1 and 2 tell a state, as of mdadm's commands, everything else is 4.
    fn of(tells_state: bool) -> Self {
        if tells_state { Self { failed: 4, refused: 4 } } else { Self { failed: 1, refused: 2 } }
    }
}

/// Tells what is wrong with the arguments, or what was asked for: help, the version.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.exit_code() == 0 {
        return ExitCode::SUCCESS;
    }
    let words: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).take(2).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    ExitCode::from(Codes::of(asks_for_state(&words)).refused)
}

/// Whether a command line that could not be understood was meant for a command that tells a state.
fn asks_for_state(words: &[&str]) -> bool {
    matches!(
        words,
        ["status", ..] | ["array", "status" | "examine", ..] | ["drive", "list" | "examine", ..]
    )
}

impl Command {
    /// Whether its exit code tells a state.
    fn tells_state(&self) -> bool {
        match self {
            Self::Status(_) => true,
            Self::Array(command) => command.tells_state(),
            Self::Drive(command) => command.tells_state(),
            _ => false,
        }
    }
}

/// The filter of the log.
///
/// # Errors
/// It is none, or one that would silence everything because of a slip (`debgu` is understood as
/// the name of a part of the program, and nothing else is logged then).
fn log_filter(text: &str) -> Result<tracing_subscriber::EnvFilter, Failure> {
    let text = if text.trim().is_empty() { "info" } else { text };
    let is_level = |word: &str| {
        ["off", "error", "warn", "info", "debug", "trace"]
            .iter()
            .any(|level| level.eq_ignore_ascii_case(word))
    };
    let unknown = text.split(',').map(str::trim).find(|part| {
        !(part.contains(['=', '[']) || part.starts_with("raidfabric") || is_level(part))
    });
    let refused = |what: String| {
        Failure::Refused(format!(
            "RAIDFABRIC_LOG={text}: {what}; give a level (error, warn, info, debug, trace), or \
             PART=LEVEL pairs such as raidfabric=trace,raidfabric_raid=debug"
        ))
    };
    if let Some(unknown) = unknown {
        return Err(refused(format!("`{unknown}` is no level")));
    }
    tracing_subscriber::EnvFilter::try_new(text).map_err(|error| refused(error.to_string()))
}

/// Sends what the program notes to standard error, coloured only on a terminal.
///
/// # Errors
/// `RAIDFABRIC_LOG` is no filter.
fn start_logging() -> Result<(), Failure> {
    use std::io::IsTerminal;
    let filter = std::env::var_os("RAIDFABRIC_LOG").unwrap_or_default();
    let filter = log_filter(&filter.to_string_lossy())?;
    let colours = std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // A second start in one process (tests) keeps the first.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        // It would print them to standard error, and panic: a daemon must outlive whoever read
        // its log.
        .log_internal_errors(false)
        .try_init();
    Ok(())
}

/// A configuration file on the command line.
#[derive(Debug, clap::Args)]
struct ConfigFile {
    /// The configuration file (YAML)
    #[arg(value_name = "FILE")]
    path: PathBuf,
}
