//! The command line: what can be asked for, and the exit codes.
//!
//! Each command lives in a file of its own; this one declares them, so that `--help`, the manual
//! and the completions come from one place. Exit codes: 0 done, 1 failed, 2 usage or
//! configuration (nothing was touched then).

mod array;
mod bench;
mod check;
mod demo;
mod generate;
mod print;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::ConfigErrors;

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
                  touched).\nLogging: RAIDFABRIC_LOG=debug, or a filter such as \
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
    /// Create the arrays of a configuration file without serving them
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "Example: raidfabric array create fabric.yaml"
    )]
    Array(array::Command),
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
}

impl Failure {
    /// An error of something that was tried.
    pub fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
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
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Serve(command) => command.run(),
        Command::Check(command) => command.run(),
        Command::Array(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Schema => check::print_schema(),
        Command::Demo(command) => command.run(),
        Command::Completions(command) => command.run(),
        Command::Man(command) => command.run(),
    };
    match result {
        Ok(()) | Err(Failure::Unread) => ExitCode::SUCCESS,
        Err(Failure::Failed(text)) => {
            print::note(format_args!("raidfabric: {text}"));
            ExitCode::from(1)
        }
        Err(Failure::Refused(text)) => {
            print::note(format_args!("raidfabric: {text}"));
            ExitCode::from(2)
        }
        Err(Failure::Misconfigured(text)) => {
            print::note(text);
            ExitCode::from(2)
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
