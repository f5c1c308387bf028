//! `raidfabric array assemble`: how arrays would start, and what an operator decides about that.
//!
//! It starts nothing: `serve` does. Without a decision it only reads. A decision is written into the
//! superblocks, so that the array starts by itself from then on.

use clap::Args;

use super::super::confirm::{Doom, confirm};
use super::super::{ConfigFile, Failure, check, drive, print, start_logging};
use super::{Selected, examine, select};
use crate::config::drives::{Absence, Drives};
use crate::config::{Array, Config};
use crate::server::compose::{self, Fate, Leaf};
use crate::server::report::examination::Examination;
use crate::server::{
    self, Accepted, Outlook, Prospect, StateDirectory, examination, homehost, inspect,
};

/// Arguments of `array assemble`.
#[derive(Debug, Args)]
#[command(
    after_help = "`serve` assembles arrays by itself, from drives in any order and under any names. This \
                  command says beforehand what it would find; and where it would refuse, because \
                  what is missing may be newer, or parity may be wrong, or halves of the array were \
                  used apart, it takes the operator's decision. The error says which of the options \
                  would accept which risk.\n\nExit codes: 0 all would start, 1 one would not, or it \
                  was tried and failed, 2 wrong usage or configuration.\n\nExamples:\n  raidfabric \
                  array assemble fabric.yaml\n  raidfabric array assemble fabric.yaml --array fast \
                  --run"
)]
pub(in crate::cli) struct Assemble {
    #[command(flatten)]
    file: ConfigFile,
    /// Only this array of the file; needed for a decision if there are several
    #[arg(long, value_name = "NAME")]
    array: Option<String>,
    /// Start without the members that are missing, although they may be newer
    #[arg(long)]
    run: bool,
    /// Take parity as right, although it was being written when the array stopped
    #[arg(long)]
    force: bool,
    /// The drive that is right, if halves of the array were used apart; what was written to the
    /// others since is given up
    #[arg(long, value_name = "DRIVE")]
    winner: Option<String>,
    /// Do not ask before the history of other drives is given up for the winner's
    #[arg(long, requires = "winner")]
    yes: bool,
}

impl Assemble {
    pub(super) fn run(self) -> Result<(), Failure> {
        start_logging()?;
        let (loaded, all_drives) = check::load_drives(&self.file, Absence::Allowed)?;
        let config = &loaded.config;
        let selected = select(&self.file, self.array.as_deref(), config, &all_drives)?;
        let accepted = self.accepted()?;
        let state = server::state_directory(config).map_err(Failure::refused)?;
        if !accepted.is_something() {
            return show(config, &selected, &all_drives, state.as_ref());
        }
        let [one] = &selected[..] else {
            let over = selected.iter().find(|one| one.array.is_composed());
            let text = match (&self.array, over) {
                (Some(name), Some(over)) if over.array.name == *name => format!(
                    "array {name} is over arrays, and a decision is about one of those: say which by \
                     --array"
                ),
                _ => "a decision is about one array: say which by --array".to_owned(),
            };
            return Err(Failure::Refused(text));
        };
        let (array, drives) = (one.array, one.drives);
        let prospect = Prospect::look(array, drives, homehost(), state.as_ref(), &accepted)
            .map_err(Failure::refused)?;
        self.decide(array, prospect, state.as_ref())
    }

    fn accepted(&self) -> Result<Accepted, Failure> {
        let winner = match &self.winner {
            None => None,
            Some(name) => {
                let found = drive::find(std::slice::from_ref(name))?;
                // Drives are told apart by the names that they have while they are examined.
                found.first().map(|look| look.identity.to_string())
            }
        };
        Ok(Accepted { run: self.run, force: self.force, winner })
    }

    fn decide(
        &self,
        array: &Array,
        prospect: Prospect,
        state: Option<&StateDirectory>,
    ) -> Result<(), Failure> {
        let name = &array.name;
        let Some(plan) = prospect.plan() else {
            return Err(Failure::Refused(format!(
                "array {name}: its drives are blank, so that there is nothing to decide; create it \
                 with `raidfabric array create {}`",
                self.file.path.display()
            )));
        };
        if plan.risks.is_empty() && prospect.losers().is_empty() {
            print::line(format_args!("array {name}: it starts by itself; nothing was written"))?;
            return Ok(());
        }
        let risks = plan.risks.clone();
        let losers = prospect.losers();
        if !losers.is_empty() {
            confirm(&[Doom {
                purpose: format!("To assemble array {name} by its winner"),
                drives: losers,
                yes: self.yes,
                say_yes: "add --yes",
            }])?;
        }
        let array = prospect.decide(state).map_err(Failure::failed)?;
        print::line(format_args!("array {name}: it starts by itself from now on"))?;
        for risk in risks {
            print::line(format_args!("  accepted: {risk}"))?;
        }
        drop(array);
        print::line(format_args!("now: raidfabric serve {}", self.file.path.display()))
    }
}

/// Tells how each array would start. Reads only.
fn show(
    config: &Config,
    selected: &[Selected<'_>],
    all_drives: &[Drives],
    state: Option<&StateDirectory>,
) -> Result<(), Failure> {
    let mut would_start = true;
    for Selected { array, drives, .. } in selected {
        let listed = match drives {
            Drives::Paths(listed) => listed,
            Drives::Memory(_) => {
                print::line(format_args!("array {}: its members are memory", array.name))?;
                continue;
            }
            Drives::Arrays(_) => {
                would_start &= show_composed(config, array, all_drives, state)?;
                continue;
            }
        };
        let record = state.map(|state| state.record(&array.name)).transpose();
        let record = record.map_err(Failure::refused)?.flatten();
        let uuid = array.uuid.or(record.as_ref().map(|record| record.uuid));
        let looks = inspect::look_at_all(&listed.present);
        let examined = examination::of_array(&looks, uuid, &listed.present, record.as_ref());
        if examined.arrays.is_empty() {
            print::line(format_args!(
                "array {}: none of its drives belongs to an array yet; `serve` or `array create` \
                 creates it",
                array.name
            ))?;
        }
        would_start &= examined.arrays.iter().all(|one| one.outlook.starts());
        print::text(examine::text(&Examination::new(examined.arrays)))?;
    }
    match would_start {
        true => Ok(()),
        false => Err(Failure::Failed("not all arrays would start; see above".to_owned())),
    }
}

/// Tells how an array over arrays would start, by what these hold; whether it would.
fn show_composed(
    config: &Config,
    array: &Array,
    all_drives: &[Drives],
    state: Option<&StateDirectory>,
) -> Result<bool, Failure> {
    let leaves = array
        .leaves
        .iter()
        .filter_map(|&leaf| Some((config.arrays.get(leaf)?, all_drives.get(leaf)?)));
    let (below, drives): (Vec<_>, Vec<_>) = leaves.unzip();
    let names: Vec<_> = below.iter().map(|leaf| leaf.name.as_str()).collect();
    let looks = below.iter().zip(drives).map(|(leaf, drives)| Outlook::look(leaf, drives, state));
    let held = looks.map(|look| look.map(Leaf::by)).collect::<Result<Vec<_>, _>>();
    let fate = held.and_then(|held| {
        let held: Vec<_> = held.iter().collect();
        compose::check(array, &names, &held, state, false)
    });
    let names = names.join(", ");
    let text = match &fate {
        Ok(Fate::Exists(_)) => format!("complete, over {names}"),
        Ok(Fate::Memory) => format!("over {names}, which are in memory"),
        Ok(Fate::Create) => {
            format!("its arrays, {names}, hold nothing yet; `serve` or `array create` creates it")
        }
        Ok(Fate::Unknown) => format!("over {names}; what they hold cannot be read yet"),
        Err(error) => error.to_string(),
    };
    match &fate {
        Ok(_) => print::line(format_args!("array {}: {text}", array.name))?,
        Err(_) => print::line(text)?,
    }
    Ok(fate.is_ok())
}
