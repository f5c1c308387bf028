//! One crash: the members as they were left are served, and every block is read, then once more
//! when redundancy was made good, and once more without the members that the level can lose.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use raidfabric_protocol::nvme::status::{Code, Media};

use super::crash::Member;
use super::daemon::{Daemon, Read};
use super::model::{BLOCK_BYTES, Model, Value};
use super::{Moment, Run};
use crate::data::Random;

/// Blocks of a chunk: of 64 KiB, as the runs have it.
const CHUNK_BLOCKS: usize = (64 << 10) / BLOCK_BYTES;

/// What is done after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// All members are there; later as many go as the level can lose.
    ThenLoss,
    /// As many members as the level can lose go with the crash.
    LossAtOnce,
}

/// Checks crashes of one run, in a folder of its own.
pub struct Checker<'run> {
    run: &'run Run,
    model: Model,
    members: Vec<Member>,
    program: PathBuf,
    directory: PathBuf,
}

impl<'run> Checker<'run> {
    /// A checker, for moments that do not go back.
    ///
    /// # Errors
    /// The logs cannot be read.
    pub fn new(run: &'run Run, program: &Path, directory: &Path) -> Result<Self, String> {
        let members = run.members()?;
        let last = run.trace.writes.iter().map(|write| write.block + write.blocks).max();
        let model = Model::new(&run.trace, last.unwrap_or(0) as usize);
        let (program, directory) = (program.to_owned(), directory.to_owned());
        Ok(Self { run, model, members, program, directory })
    }

    /// Lets power fail at this moment, and sees what is left.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&mut self, moment: &Moment) -> Result<(), String> {
        let mut random = Random::new(moment.seed);
        self.lay_out(moment, &mut random).map_err(|error| error.to_string())?;
        let lost = self.choose_lost(&mut random);
        let course = self.course(moment, &mut random);
        let tell = |what: String| format!("{course:?}, without {lost:?} in the end: {what}");
        match course {
            Course::ThenLoss => self.then_loss(moment, &lost),
            Course::LossAtOnce => self.loss_at_once(moment, &lost),
        }
        .map_err(tell)
    }

    fn member(&self, slot: usize) -> PathBuf {
        self.directory.join(format!("member{slot}"))
    }

    fn lay_out(&mut self, moment: &Moment, random: &mut Random) -> std::io::Result<()> {
        let _ = fs::remove_dir_all(&self.directory);
        let state = self.directory.join("state");
        fs::create_dir_all(&state)?;
        if self.run.state.is_dir() {
            for entry in fs::read_dir(&self.run.state)? {
                let entry = entry?;
                fs::copy(entry.path(), state.join(entry.file_name()))?;
            }
        }
        for slot in 0..self.members.len() {
            let image = self.members[slot].image(moment.now, moment.survival, random)?;
            fs::write(self.member(slot), image)?;
        }
        Ok(())
    }

    /// Slots that the array can be without, all together.
    fn choose_lost(&self, random: &mut Random) -> Vec<usize> {
        let members = self.members.len() as u64;
        let first = random.below(members) as usize;
        match self.run.level.as_str() {
            "raid6" => {
                let second = (first + 1 + random.below(members - 1) as usize) % members as usize;
                vec![first, second]
            }
            // One of each pair.
            "raid10" => (0..members as usize)
                .step_by(2)
                .map(|slot| slot + random.below(2) as usize)
                .collect(),
            _ => vec![first],
        }
    }

    /// Where nothing tells what was being written, parity levels do not survive both at once; nor
    /// do they before their parity was built.
    fn course(&self, moment: &Moment, random: &mut Random) -> Course {
        let parity = matches!(self.run.level.as_str(), "raid5" | "raid6");
        let synced = self.run.trace.synced.is_some_and(|synced| moment.now >= synced);
        let logged = self.run.consistency == "ppl" && synced;
        if (logged || !parity) && !self.run.loses_a_member && random.below(2) == 0 {
            Course::LossAtOnce
        } else {
            Course::ThenLoss
        }
    }

    fn start(&self) -> Result<Daemon, String> {
        Daemon::start(&self.program, &self.directory, &self.run.array)
    }

    fn then_loss(&self, moment: &Moment, lost: &[usize]) -> Result<(), String> {
        let daemon = self.start()?;
        let first = daemon.read_all()?;
        // One may have been out at the crash, and what was being written there is not known.
        let is_degraded = self.run.loses_a_member && self.run.consistency == "ppl";
        self.judge(&first, moment, is_degraded)?;
        if self.run.loses_a_member {
            self.bring_back(&daemon)?;
        }
        daemon.reached("healthy")?;
        let second = daemon.read_all()?;
        same(&first, &second).map_err(|what| format!("read again: {what}"))?;
        daemon.stop()?;
        for slot in lost {
            fs::remove_file(self.member(*slot)).map_err(|error| error.to_string())?;
        }
        let daemon = self.start()?;
        let mut third = daemon.read_all()?;
        self.forgive_beside_errors(&first, &mut third);
        same(&first, &third).map_err(|what| format!("without {lost:?}: {what}"))?;
        daemon.stop()
    }

    /// A block that is not known has no parity, or that would say what it is: so those beside it in
    /// its row may be lost with their members until it is written.
    fn forgive_beside_errors(&self, before: &[Read], after: &mut [Read]) {
        let parities = match self.run.level.as_str() {
            "raid5" => 1,
            "raid6" => 2,
            _ => return,
        };
        let row_blocks = CHUNK_BLOCKS * (self.members.len() - parities);
        let place = |block: usize| (block / row_blocks, block % CHUNK_BLOCKS);
        let errors = before.iter().enumerate().filter(|(_, read)| read.is_err());
        let unknown: HashSet<_> = errors.map(|(block, _)| place(block)).collect();
        for (block, (is, was)) in after.iter_mut().zip(before).enumerate() {
            if is.is_err() && unknown.contains(&place(block)) {
                is.clone_from(was);
            }
        }
    }

    fn loss_at_once(&self, moment: &Moment, lost: &[usize]) -> Result<(), String> {
        for slot in lost {
            fs::remove_file(self.member(*slot)).map_err(|error| error.to_string())?;
        }
        let daemon = self.start()?;
        let first = daemon.read_all()?;
        self.judge(&first, moment, self.run.consistency == "ppl")?;
        let second = daemon.read_all()?;
        same(&first, &second).map_err(|what| format!("read again: {what}"))?;
        daemon.stop()
    }

    /// A member that had failed before the crash is put in again, if that is not done already.
    fn bring_back(&self, daemon: &Daemon) -> Result<(), String> {
        if daemon.reached("healthy").is_ok() {
            return Ok(());
        }
        let member = self.member(1);
        let member = member.to_str().ok_or("the folder's name is no text")?;
        daemon.order(&["array", "add", "a", member]).map(drop)
    }

    /// Whether every block is what it may be. Errors are allowed on blocks that were being written
    /// only.
    fn judge(&self, read: &[Read], moment: &Moment, errors: bool) -> Result<(), String> {
        for (block, found) in read.iter().enumerate().take(self.model.blocks()) {
            let allowed = self.model.allowed(block as u64, moment.now);
            let tell = |what: String| Err(format!("block {block} is {what}, allowed: {allowed:?}"));
            match found {
                Ok(data) if allowed.iter().any(|value| value.is(block as u64, data)) => {}
                Ok(data) => return tell(self.model.tell(block as u64, data)),
                Err(status) if status.code == Code::Media(Media::UnrecoveredReadError) => {
                    if !errors || allowed.len() == 1 {
                        return tell(status.to_string());
                    }
                }
                Err(status) => return tell(status.to_string()),
            }
        }
        // Nobody ever wrote there.
        let rest = read.iter().enumerate().skip(self.model.blocks());
        for (block, found) in rest {
            if !found.as_ref().is_ok_and(|data| Value::Zeros.is(block as u64, data)) {
                return Err(format!("block {block}, which nobody wrote to, is {found:?}"));
            }
        }
        Ok(())
    }
}

/// Whether two readings are equal.
fn same(first: &[Read], second: &[Read]) -> Result<(), String> {
    match first.iter().zip(second).position(|(first, second)| first != second) {
        Some(block) => {
            let head = |read: &Read| match read {
                Ok(data) => format!("{:02x?}", &data[..16]),
                Err(status) => status.to_string(),
            };
            let (first, second) = (head(&first[block]), head(&second[block]));
            Err(format!("block {block} was {first}, and is {second}"))
        }
        None if first.len() == second.len() => Ok(()),
        None => Err(format!("{} blocks were read, then {}", first.len(), second.len())),
    }
}
