//! `raidfabric array`: creating arrays, and looking after them.
//!
//! `create` makes the arrays of a configuration file, without serving them:
//!
//! 1. Everything is looked at, read-only where nothing is to be written; any fault refuses all.
//! 2. What the drives named by `--overwrite` hold is shown, and has to be confirmed.
//! 3. Only then the first byte is written.

mod assemble;
mod drives;
mod examine;
mod verbs;

use clap::{Args, Subcommand};
use raidfabric_raid::assemble::ArrayInfo;

use super::confirm::{Doom, confirm};
use super::status::StatusCommand;
use super::{ConfigFile, Failure, check, print, start_logging};
use crate::config::drives::{Absence, Drives};
use crate::config::{Array, Config, Consistency, format_bytes};
use crate::server::{
    self, Accepted, OpenArray, Outlook, Overwrite, Prospect, StateDirectory, homehost, present,
};

pub(super) use examine::text as examined;

/// The verbs of `array`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Create the arrays that a configuration file describes and that do not exist yet
    Create(Create),
    /// Say how the arrays of a configuration file would start, and decide what nobody else can
    Assemble(assemble::Assemble),
    /// Say what drives tell of their arrays, mdadm's too, and how those would start
    Examine(examine::Examine),
    /// Say how the arrays are, what is wrong, and what to do
    Status(StatusCommand),
    /// Stop writes to an array of a running daemon, and mark it clean
    Stop(verbs::Stop),
    /// Put a drive into an array of a running daemon, and rebuild it
    Add(verbs::Add),
    /// Take a member out of use
    Fail(verbs::Fail),
    /// Let go of the drive of a member that has failed
    Remove(verbs::Remove),
    /// Compare copies, or data and parity, of a whole array
    Check(verbs::Check),
    /// Compare, and make equal what differs
    Repair(verbs::Repair),
}

impl Command {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Create(create) => create.run(),
            Self::Assemble(assemble) => assemble.run(),
            Self::Examine(examine) => examine.run(),
            Self::Status(status) => status.run(),
            Self::Stop(stop) => stop.run(),
            Self::Add(add) => add.run(),
            Self::Fail(fail) => fail.run(),
            Self::Remove(remove) => remove.run(),
            Self::Check(check) => check.run(),
            Self::Repair(repair) => repair.run(),
        }
    }

    /// Whether its exit code tells of the arrays' state.
    pub(super) fn tells_state(&self) -> bool {
        matches!(self, Self::Status(_) | Self::Examine(_))
    }
}

/// Arguments of `array create`.
#[derive(Debug, Args)]
#[command(
    after_help = "Arrays that exist are left alone. Without --overwrite every drive must be blank: \
                  no signature known, first and last MiB zero. What is on a drive that is named by \
                  --overwrite is shown first, and the drive's name has to be typed; where there is \
                  no terminal nothing is asked, and --yes is needed. A drive that is in use is \
                  refused.\n\nExamples:\n  raidfabric array create fabric.yaml\n  raidfabric array \
                  create fabric.yaml --array fast --overwrite /dev/disk/by-id/nvme-A"
)]
pub(super) struct Create {
    #[command(flatten)]
    file: ConfigFile,
    /// Only this array of the file
    #[arg(long, value_name = "NAME")]
    array: Option<String>,
    /// A drive of the array whose contents are destroyed: its path or serial number; once for each
    #[arg(long, value_name = "DRIVE")]
    overwrite: Vec<String>,
    /// Do not ask before overwriting the drives that are named
    #[arg(long, requires = "overwrite")]
    yes: bool,
    /// Take what is on the drives as agreeing, so that nothing is built: blocks that were never
    /// written may then read differently from each copy, and parity may be wrong there
    #[arg(long)]
    assume_clean: bool,
}

/// What is to be done about an array.
enum Work<'a> {
    /// Nothing; this is said instead.
    Nothing(String),
    /// Its drives are blank.
    Create(&'a Array, Prospect),
    /// Some of its drives are to be wiped first.
    Overwrite(&'a Array, Overwrite),
}

impl Work<'_> {
    fn creates(&self) -> bool {
        !matches!(self, Self::Nothing(_))
    }
}

impl Create {
    fn run(self) -> Result<(), Failure> {
        start_logging()?;
        let (loaded, all_drives) = check::load_drives(&self.file, Absence::Allowed)?;
        let config = &loaded.config;
        let selected = select(&self.file, self.array.as_deref(), config, &all_drives)?;
        let victims = drives::victims(&selected, &self.overwrite)?;
        let state = server::state_directory(config).map_err(Failure::refused)?;
        let works = selected
            .into_iter()
            .zip(victims)
            .map(|((array, drives), victims)| {
                look(array, drives, victims, state.as_ref(), self.assume_clean)
            })
            .collect::<Result<Vec<_>, _>>()?;
        if self.assume_clean && works.iter().any(Work::creates) {
            print::note(
                "raidfabric: as you say, what is on the drives is taken as agreeing. If it does not, \
                 blocks that were never written read differently from time to time, and a lost \
                 member's are computed wrong until their stripe has been written whole; `raidfabric \
                 array repair` makes it good",
            );
        }
        self.confirm(&works)?;
        let mut created = false;
        for work in works {
            created |= perform(work, state.as_ref())?;
        }
        if created { print_next(config, &self.file) } else { Ok(()) }
    }

    fn confirm(&self, works: &[Work<'_>]) -> Result<(), Failure> {
        let doomed: Vec<_> = works
            .iter()
            .filter_map(|work| match work {
                Work::Overwrite(_, overwrite) => Some(Doom {
                    purpose: format!("To create array {}", overwrite.name()),
                    drives: overwrite.victims(),
                    yes: self.yes,
                    say_yes: "add --yes",
                }),
                _ => None,
            })
            .collect();
        if doomed.is_empty() { Ok(()) } else { confirm(&doomed) }
    }
}

/// The arrays of a file that are meant.
fn select<'a>(
    file: &ConfigFile,
    wanted: Option<&str>,
    config: &'a Config,
    drives: &'a [Drives],
) -> Result<Vec<(&'a Array, &'a Drives)>, Failure> {
    let all = config.arrays.iter().zip(drives);
    let Some(wanted) = wanted else { return Ok(all.collect()) };
    let selected: Vec<_> = all.filter(|(array, _)| array.name == *wanted).collect();
    if selected.is_empty() {
        let names: Vec<_> = config.arrays.iter().map(|array| array.name.as_str()).collect();
        return Err(Failure::Refused(format!(
            "{} describes no array {wanted}; it describes {}",
            file.path.display(),
            names.join(", ")
        )));
    }
    Ok(selected)
}

fn look<'a>(
    array: &'a Array,
    drives: &Drives,
    victims: Vec<usize>,
    state: Option<&StateDirectory>,
    assume_clean: bool,
) -> Result<Work<'a>, Failure> {
    if let (Drives::Paths(listed), false) = (drives, victims.is_empty()) {
        return Overwrite::look(array, listed, victims, homehost(), state)
            .map(|overwrite| Work::Overwrite(array, overwrite.assume_clean(assume_clean)))
            .map_err(Failure::refused);
    }
    match Outlook::look(array, drives, state).map_err(Failure::refused)? {
        Outlook::Memory => Ok(Work::Nothing(format!(
            "array {}: its members are memory, so that there is nothing to create",
            array.name
        ))),
        Outlook::Exists(info) => Ok(Work::Nothing(exists(array, &info))),
        Outlook::Blank => Prospect::look(array, drives, homehost(), state, &Accepted::default())
            .map(|prospect| Work::Create(array, prospect.assume_clean(assume_clean)))
            .map_err(Failure::refused),
    }
}

/// Does it, and says what was done; whether an array was created.
fn perform(work: Work<'_>, state: Option<&StateDirectory>) -> Result<bool, Failure> {
    let (array, open) = match work {
        Work::Nothing(text) => {
            print::line(text)?;
            return Ok(false);
        }
        Work::Create(array, prospect) => (array, prospect.take(state)),
        Work::Overwrite(array, overwrite) => (array, overwrite.create(state)),
    };
    let open = open.map_err(Failure::failed)?;
    print::text(created(array, &open))?;
    Ok(true)
}

fn exists(array: &Array, info: &ArrayInfo) -> String {
    format!(
        "array {}: exists (UUID {}, {}), left alone",
        array.name,
        info.uuid,
        format_bytes(info.size_bytes())
    )
}

fn created(array: &Array, open: &OpenArray) -> String {
    let chunk = match array.chunk_bytes {
        0 => String::new(),
        bytes => format!(", chunk {}", format_bytes(bytes)),
    };
    let names = open.drive_names();
    let mut text = format!(
        "array {}: created\n  UUID         {}\n  level        {}{chunk}, {} drives\n  size         \
         {}\n  consistency  {}\n",
        array.name,
        open.uuid,
        array.level,
        names.len(),
        format_bytes(open.geometry.capacity_bytes()),
        consistency(open),
    );
    for (slot, name) in names.iter().enumerate() {
        text.push_str(&format!("  slot {slot:<7} {name}\n"));
    }
    text
}

/// What makes the array consistent after a crash, and whether its redundancy is whole.
fn consistency(open: &OpenArray) -> String {
    let what = match open.consistency {
        Consistency::None => {
            return "none: there are no copies, and a lost drive loses the array".to_owned();
        }
        Consistency::Resync => "resync: after a crash all of it is made good",
        Consistency::Bitmap => "bitmap: after a crash what was being written is made good",
        Consistency::Ppl => "ppl: after a crash its log is replayed",
    };
    match open.resync_position_bytes == u64::MAX {
        true => format!("{what}; its redundancy is whole now"),
        false => format!("{what}; `serve` builds its redundancy in the background"),
    }
}

fn print_next(config: &Config, file: &ConfigFile) -> Result<(), Failure> {
    print::line(format_args!("now: raidfabric serve {}", file.path.display()))?;
    for subsystem in &config.subsystems {
        for &address in &config.listen {
            let line = present::connect_line(&subsystem.nqn, address);
            print::line(format_args!("then, on a host: {line}"))?;
        }
    }
    Ok(())
}
