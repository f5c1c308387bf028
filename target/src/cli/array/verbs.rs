//! What is asked of a running daemon about an array: `stop`, `add`, `fail`, `remove`, `check`,
//! `repair`.

use std::path::PathBuf;

use clap::Args;

use super::super::client::Socket;
use super::super::{Failure, print};
use crate::server::control::api::Request;

/// An array of a running daemon.
#[derive(Debug, Args)]
struct Target {
    /// The array
    #[arg(value_name = "ARRAY")]
    array: String,
}

/// Asks the daemon, and prints what was done and what is next.
fn ask(socket: &Socket, array: &str, request: &Request) -> Result<(), Failure> {
    let done = socket.running()?.command(array, request)?;
    print::line(done.message)?;
    match done.next {
        Some(next) => print::line(format_args!("next: {next}")),
        None => Ok(()),
    }
}

/// Arguments of `array stop`.
#[derive(Debug, Args)]
#[command(
    after_help = "Writes under way are finished, the array is marked clean, and no further write is \
                  taken: hosts are told that the namespace is not ready, and try again. Its drives \
                  stay with the daemon until that ends.\n\nExample: raidfabric array stop fast"
)]
pub(in crate::cli) struct Stop {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    socket: Socket,
}

impl Stop {
    pub(super) fn run(self) -> Result<(), Failure> {
        ask(&self.socket, &self.target.array, &Request::Stop)
    }
}

/// Arguments of `array add`.
#[derive(Debug, Args)]
#[command(
    after_help = "The drive must be blank, or be a member of this array that comes back; `raidfabric \
                  drive wipe` makes a drive blank. A member that comes back gets only what was \
                  written meanwhile, where the array knows what that is; a new one is filled \
                  whole. Hosts go on meanwhile.\n\nExample: raidfabric array add fast \
                  /dev/disk/by-id/nvme-E"
)]
pub(in crate::cli) struct Add {
    #[command(flatten)]
    target: Target,
    /// The drive: a path, best one under /dev/disk/by-id
    #[arg(value_name = "DRIVE")]
    drive: PathBuf,
    /// The place it takes [default: its own, or the first free one]
    #[arg(long, value_name = "NUMBER")]
    slot: Option<usize>,
    #[command(flatten)]
    socket: Socket,
}

impl Add {
    pub(super) fn run(self) -> Result<(), Failure> {
        let drive = std::path::absolute(&self.drive)
            .map_err(|error| Failure::Refused(format!("{:?}: {error}", self.drive)))?;
        let Some(drive) = drive.to_str().map(str::to_owned) else {
            return Err(Failure::Refused(format!("{drive:?}: not a text")));
        };
        ask(&self.socket, &self.target.array, &Request::Add { drive, slot: self.slot })
    }
}

/// Arguments of `array fail`.
#[derive(Debug, Args)]
#[command(
    after_help = "It is refused where the array would be lost with it.\n\nExample: raidfabric array fail \
                  fast 2"
)]
pub(in crate::cli) struct Fail {
    #[command(flatten)]
    target: Target,
    /// The member: its slot, path or serial number
    #[arg(value_name = "MEMBER")]
    member: String,
    #[command(flatten)]
    socket: Socket,
}

impl Fail {
    pub(super) fn run(self) -> Result<(), Failure> {
        ask(&self.socket, &self.target.array, &Request::Fail { member: self.member })
    }
}

/// Arguments of `array remove`.
#[derive(Debug, Args)]
#[command(
    after_help = "Its drive is let go of, and can be pulled, or used for something else. A member that is \
                  in use has to be failed first.\n\nExample: raidfabric array remove fast 2"
)]
pub(in crate::cli) struct Remove {
    #[command(flatten)]
    target: Target,
    /// The member: its slot, path or serial number
    #[arg(value_name = "MEMBER")]
    member: String,
    #[command(flatten)]
    socket: Socket,
}

impl Remove {
    pub(super) fn run(self) -> Result<(), Failure> {
        ask(&self.socket, &self.target.array, &Request::Remove { member: self.member })
    }
}

/// Arguments of `array check`.
#[derive(Debug, Args)]
#[command(
    after_help = "Reads everything and counts what differs; changes nothing but blocks that cannot be \
                  read, which are written anew from the others. Hosts go on meanwhile; `raidfabric \
                  status` shows how far it is.\n\nExamples:\n  raidfabric array check fast\n  \
                  raidfabric array check fast --cancel"
)]
pub(in crate::cli) struct Check {
    #[command(flatten)]
    target: Target,
    /// End a check or repair that is under way
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    socket: Socket,
}

impl Check {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.cancel {
            true => ask(&self.socket, &self.target.array, &Request::Cancel),
            false => ask(&self.socket, &self.target.array, &Request::Check { repair: false }),
        }
    }
}

/// Arguments of `array repair`.
#[derive(Debug, Args)]
#[command(
    after_help = "As check, and makes equal what differs. RAID 6 finds out which one of a stripe's blocks \
                  is wrong, and corrects that. Elsewhere nobody can know: RAID 1 and 10 take the \
                  copy on the lowest slot, RAID 5 takes the data and computes its parity anew. It is \
                  ended early by `raidfabric array check ARRAY --cancel`.\n\nExample: raidfabric \
                  array repair fast"
)]
pub(in crate::cli) struct Repair {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    socket: Socket,
}

impl Repair {
    pub(super) fn run(self) -> Result<(), Failure> {
        ask(&self.socket, &self.target.array, &Request::Check { repair: true })
    }
}
