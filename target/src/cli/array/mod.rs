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
use crate::server::compose::{self, Fate, Leaf};
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

/// What is to be done about an array over drives.
enum Work<'a> {
    /// Nothing; this is said instead.
    Nothing(String, Leaf),
    /// Its drives are blank.
    Create(&'a Array, Prospect),
    /// Some of its drives are to be wiped first.
    Overwrite(&'a Array, Overwrite),
}

impl Work<'_> {
    fn creates(&self) -> bool {
        !matches!(self, Self::Nothing(..))
    }
}

/// The works about arrays over drives, by their indices in the configuration.
type Works<'a> = Vec<(usize, Work<'a>)>;

impl Create {
    fn run(self) -> Result<(), Failure> {
        start_logging()?;
        let (loaded, all_drives) = check::load_drives(&self.file, Absence::Allowed)?;
        let config = &loaded.config;
        let selected = select(&self.file, self.array.as_deref(), config, &all_drives)?;
        let (composed, over_drives): (Vec<_>, Vec<_>) =
            selected.into_iter().partition(|one| one.array.is_composed());
        let pairs: Vec<_> = over_drives.iter().map(|one| (one.array, one.drives)).collect();
        let victims = drives::victims(&pairs, &self.overwrite)?;
        let state = server::state_directory(config).map_err(Failure::refused)?;
        let state = state.as_ref();
        let works: Works<'_> = over_drives
            .iter()
            .zip(victims)
            .map(|(one, victims)| {
                let is_below = config.over(one.index).is_some();
                let work = look(one, victims, state, self.assume_clean, is_below)?;
                Ok((one.index, work))
            })
            .collect::<Result<_, Failure>>()?;
        let composed = composed
            .into_iter()
            .map(|one| Ok((one.array, look_at_leaves(one.array, config, &works, state)?)))
            .collect::<Result<Vec<_>, Failure>>()?;
        if self.assume_clean && works.iter().any(|(_, work)| work.creates()) {
            print::note(
                "raidfabric: as you say, what is on the drives is taken as agreeing. If it does not, \
                 blocks that were never written read differently from time to time, and a lost \
                 member's are computed wrong until their stripe has been written whole; `raidfabric \
                 array repair` makes it good",
            );
        }
        self.confirm(&works)?;
        let mut created = false;
        let mut open = Vec::new();
        for (index, work) in works {
            let made = perform(work, state)?;
            created |= made.is_some();
            open.extend(made.map(|array| (index, array)).filter(|_| config.over(index).is_some()));
        }
        for (array, (fate, anew)) in composed {
            created |= compose_one(array, config, &all_drives, &mut open, fate, anew, state)?;
        }
        if created { print_next(config, &self.file) } else { Ok(()) }
    }

    fn confirm(&self, works: &Works<'_>) -> Result<(), Failure> {
        let doomed: Vec<_> = works
            .iter()
            .filter_map(|(_, work)| match work {
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

/// An array of a file that is meant.
struct Selected<'a> {
    index: usize,
    array: &'a Array,
    drives: &'a Drives,
}

/// The arrays of a file that are meant: all, or the one of a name with those that it is over.
fn select<'a>(
    file: &ConfigFile,
    wanted: Option<&str>,
    config: &'a Config,
    drives: &'a [Drives],
) -> Result<Vec<Selected<'a>>, Failure> {
    let is_meant = |array: &Array| wanted.is_none_or(|wanted| array.name == *wanted);
    let is_selected =
        |one: &Selected<'_>| is_meant(one.array) || config.over(one.index).is_some_and(is_meant);
    let all = config.arrays.iter().zip(drives).enumerate();
    let all = all.map(|(index, (array, drives))| Selected { index, array, drives });
    let selected: Vec<_> = all.filter(is_selected).collect();
    if let (Some(wanted), true) = (wanted, selected.is_empty()) {
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
    one: &Selected<'a>,
    victims: Vec<usize>,
    state: Option<&StateDirectory>,
    assume_clean: bool,
    is_below: bool,
) -> Result<Work<'a>, Failure> {
    let (array, drives) = (one.array, one.drives);
    if let (Drives::Paths(listed), false) = (drives, victims.is_empty()) {
        return Overwrite::look(array, listed, victims, homehost(), state)
            .map(|overwrite| overwrite.assume_clean(assume_clean).below(is_below))
            .map(|overwrite| Work::Overwrite(array, overwrite))
            .map_err(Failure::refused);
    }
    let outlook = Outlook::look(array, drives, state).map_err(Failure::refused)?;
    let text = match &outlook {
        Outlook::Memory => format!(
            "array {}: its members are memory, so that there is nothing to create",
            array.name
        ),
        Outlook::Exists(info, _) => exists(array, info),
        Outlook::Blank => {
            let accepted = Accepted::default();
            let prospect = Prospect::look(array, drives, homehost(), state, &accepted);
            let prospect = prospect.map_err(Failure::refused)?.assume_clean(assume_clean);
            return Ok(Work::Create(array, if is_below { prospect.below() } else { prospect }));
        }
    };
    Ok(Work::Nothing(text, Leaf::by(outlook)))
}

/// What becomes of an array over arrays, and whether all of it is made anew. Nothing is written.
fn look_at_leaves(
    array: &Array,
    config: &Config,
    works: &Works<'_>,
    state: Option<&StateDirectory>,
) -> Result<(Fate, bool), Failure> {
    let of = |leaf: &usize| works.iter().find(|(index, _)| index == leaf).map(|(_, work)| work);
    let below: Vec<_> = array.leaves.iter().filter_map(of).collect();
    let names = array.leaves.iter().filter_map(|leaf| config.arrays.get(*leaf));
    let names: Vec<_> = names.map(|leaf| leaf.name.as_str()).collect();
    let held: Vec<_> = below
        .iter()
        .map(|work| match work {
            Work::Nothing(_, leaf) => leaf,
            Work::Create(..) | Work::Overwrite(..) => &Leaf::New,
        })
        .collect();
    let anew = below
        .iter()
        .all(|work| matches!(work, Work::Overwrite(_, overwrite) if overwrite.is_of_all_drives()));
    let fate = compose::check(array, &names, &held, state, anew).map_err(Failure::refused)?;
    Ok((fate, anew))
}

/// Does it, and says what was done; the array, if one was created.
fn perform(work: Work<'_>, state: Option<&StateDirectory>) -> Result<Option<OpenArray>, Failure> {
    let (array, open) = match work {
        Work::Nothing(text, _) => {
            print::line(text)?;
            return Ok(None);
        }
        Work::Create(array, prospect) => (array, prospect.take(state)),
        Work::Overwrite(array, overwrite) => (array, overwrite.create(state)),
    };
    let open = open.map_err(Failure::failed)?;
    print::text(created(array, &open))?;
    Ok(Some(open))
}

/// Creates an array over arrays, if it does not exist, and says what was done; whether it was
/// created. `open`: the arrays that have just been created, by index.
fn compose_one(
    array: &Array,
    config: &Config,
    drives: &[Drives],
    open: &mut Vec<(usize, OpenArray)>,
    fate: Fate,
    anew: bool,
    state: Option<&StateDirectory>,
) -> Result<bool, Failure> {
    match fate {
        Fate::Memory => {
            print::line(format_args!(
                "array {}: it is in memory, so that there is nothing to create",
                array.name
            ))?;
            return Ok(false);
        }
        Fate::Exists(plan) => {
            print::line(exists(array, &plan.info))?;
            return Ok(false);
        }
        Fate::Create | Fate::Unknown => {}
    }
    for &leaf in &array.leaves {
        let missing = open.iter().all(|(index, _)| *index != leaf);
        if let (true, Some(below), Some(drives)) =
            (missing, config.arrays.get(leaf), drives.get(leaf))
        {
            let accepted = Accepted::default();
            let prospect = Prospect::look(below, drives, homehost(), state, &accepted);
            let array = prospect.map_err(Failure::failed)?.take(state).map_err(Failure::failed)?;
            open.push((leaf, array));
        }
    }
    let place = |index: usize| array.leaves.iter().position(|leaf| *leaf == index);
    let mut leaves: Vec<_> = open
        .iter_mut()
        .filter_map(|(index, open)| place(*index).map(|place| (place, open)))
        .collect();
    leaves.sort_by_key(|(place, _)| *place);
    let mut leaves: Vec<_> = leaves.into_iter().map(|(_, open)| open).collect();
    let made = compose::open(config, array, &mut leaves, homehost(), state, anew);
    let made = made.map_err(Failure::failed)?;
    let size = format_bytes(made.geometry.capacity_bytes());
    if !made.created {
        let (name, uuid) = (&made.name, made.uuid);
        print::line(format_args!("array {name}: exists (UUID {uuid}, {size}), left alone"))?;
        return Ok(false);
    }
    let mut text = format!(
        "array {}: created\n  UUID         {}\n  level        {}, chunk {}, {} arrays\n  size         \
         {size}\n",
        made.name,
        made.uuid,
        made.level,
        format_bytes(array.chunk_bytes),
        made.leaves.len(),
    );
    for (slot, leaf) in made.leaves.iter().enumerate() {
        text.push_str(&format!("  slot {slot:<7} array {}\n", leaf.name));
    }
    print::text(text)?;
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
