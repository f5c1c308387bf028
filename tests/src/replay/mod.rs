//! Crashes of the real I/O path. In a guest, a host wrote to arrays whose members were
//! dm-log-writes devices (`tests/guest/replay`); here its members are put together as a loss of
//! power could have left them at any moment of that, are served, and every block is read.
//!
//! * [`trace`]: what happened, in one order.
//! * [`log`]: what was written.
//! * [`crash`]: what a crash leaves on a member.
//! * [`model`]: what a block may hold afterwards.
//! * [`daemon`]: the target and its host.
//! * [`point`]: one crash, from the drives to the last block.
//!
//! This module has the run: its files, and the moments that are chosen.

pub mod crash;
pub mod daemon;
pub mod log;
pub mod model;
pub mod point;
pub mod trace;

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::data::Random;
use crash::{Member, Survival};
use trace::{Kind, Time, Trace};

const SECTOR_BYTES: u64 = 512;
const SUPERBLOCK_BYTES: usize = 4096;

/// A run in the guest.
pub struct Run {
    /// Its name.
    pub name: String,
    /// What happened in it.
    pub trace: Trace,
    /// The array, as the configuration file describes it.
    pub array: String,
    /// RAID level, as in the configuration.
    pub level: String,
    /// Its policy.
    pub consistency: String,
    /// Whether a member was lost in it.
    pub loses_a_member: bool,
    /// What the state directory held; empty if a member was lost meanwhile.
    pub state: PathBuf,
    logs: PathBuf,
    log_begin_bytes: u64,
    member_bytes: usize,
}

/// A moment at which power is lost.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Before which event.
    pub now: Time,
    /// What of the unflushed writes is there.
    pub survival: Survival,
    /// Which of the choices that are left.
    pub seed: u64,
}

impl Run {
    /// Reads the folder that the guest left; the logs are files `log0`, `log1` … of another.
    ///
    /// # Errors
    /// Something is missing, or makes no sense.
    pub fn read(folder: &Path, logs: &Path) -> Result<Self, String> {
        let text = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let facts = text("run")?;
        let facts: HashMap<&str, &str> =
            facts.lines().filter_map(|line| line.split_once(' ')).collect();
        let fact = |name: &str| facts.get(name).copied().ok_or(format!("run: no {name}"));
        let number = |name: &str| -> Result<u64, String> {
            fact(name)?.parse().map_err(|_| format!("run: {name} is no number"))
        };
        let members = number("members")? as usize;
        let trace = trace::read(&text("trace")?, members, number("first_minor")?)?;
        let (level, consistency) = (fact("level")?.to_owned(), fact("consistency")?.to_owned());
        let chunk = if level == "raid1" { "" } else { "chunk: 64KiB, " };
        Ok(Self {
            name: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            trace,
            array: format!("level: {level}, {chunk}consistency: {consistency}"),
            level,
            consistency,
            loses_a_member: fact("story")? == "lost",
            state: folder.join("state"),
            logs: logs.to_owned(),
            log_begin_bytes: number("log_begin_sectors")? * SECTOR_BYTES,
            member_bytes: (number("member_sectors")? * SECTOR_BYTES) as usize,
        })
    }

    /// The members, before the first event.
    ///
    /// # Errors
    /// A log does not say what the trace says.
    pub fn members(&self) -> Result<Vec<Member>, String> {
        let member = |(slot, requests): (usize, &Vec<trace::Request>)| {
            let path = self.logs.join(format!("log{slot}"));
            let log = File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let places = log::places(&log, self.log_begin_bytes, requests)
                .map_err(|error| format!("{}, {}: {error}", self.name, path.display()))?;
            let new = |offset_bytes| {
                let log = log.try_clone().map_err(|error| error.to_string())?;
                let (requests, places) = (requests.clone(), places.clone());
                Ok::<_, String>(Member::new(requests, places, log, self.member_bytes, offset_bytes))
            };
            // Where data begin stands in the superblock, as it is in the end.
            let image = new(0)?.image(self.trace.end, Survival::Everything, &mut Random::new(0));
            let image = image.map_err(|error| error.to_string())?;
            let mut sectors = [0; 8];
            sectors.copy_from_slice(&image[SUPERBLOCK_BYTES + 128..][..8]);
            new((u64::from_le_bytes(sectors) * SECTOR_BYTES) as usize)
        };
        self.trace.members.iter().enumerate().map(member).collect()
    }

    /// So many moments after the array was created, in order: one in three at the end of a flush, one
    /// in three at the end of a write with FUA, and the rest anywhere.
    pub fn moments(&self, count: usize, seed: u64) -> Vec<Moment> {
        let mut random = Random::new(seed);
        let begin = self.trace.writes.first().map_or(0, |write| write.begin);
        let ends = |wanted: fn(Kind) -> bool| -> Vec<Time> {
            let requests = self.trace.members.iter().flatten();
            requests.filter(|r| wanted(r.kind) && r.end > begin).map(|r| r.end).collect()
        };
        let flushes = ends(|kind| kind == Kind::Flush);
        let fua = ends(|kind| kind == Kind::Write { fua: true });
        let mut moments: Vec<Moment> = (0..count)
            .map(|at| {
                let pick = |random: &mut Random, from: &[Time]| {
                    random.choose(from) + random.below(2) as usize
                };
                let now = match at % 3 {
                    0 if !flushes.is_empty() => pick(&mut random, &flushes),
                    1 if !fua.is_empty() => pick(&mut random, &fua),
                    _ => begin + random.below((self.trace.end - begin) as u64) as usize,
                };
                let chance = 10 + random.below(80);
                let survivals = [
                    Survival::Nothing,
                    Survival::Everything,
                    Survival::Torn,
                    Survival::Some(chance),
                    Survival::Some(50),
                ];
                Moment { now, survival: random.choose(&survivals), seed: random.next_u64() }
            })
            .collect();
        moments.sort_unstable_by_key(|moment| moment.now);
        moments
    }
}
