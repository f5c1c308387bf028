//! Which figures there are: what is measured for each, what it is a share of, and its bar.

use raidfabric_raid::geometry::Level;
use raidfabric_raid::metadata;

use super::load::{Access, Order};
use super::rig::{Policy, Spec};
use super::throttled::{Experiment, Measured, Times, bare, random, sequential, spec, whole_rows};

const SEQUENTIAL_BYTES: u64 = 128 << 10;

/// What a figure must reach.
#[derive(Clone, Copy, Debug)]
pub enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    pub fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }
}

/// An experiment and what its runs have shown.
pub struct Entry {
    pub name: String,
    pub experiment: Experiment,
    pub spec: Spec,
    pub runs: Vec<Measured>,
}

/// A figure: the median of one experiment's values, or its ratio to a multiple of another's.
pub struct Figure {
    pub name: String,
    entry: usize,
    over: Option<(usize, f64)>,
    pub bar: Option<Bar>,
    /// What cannot be exceeded, given what the operation costs the members.
    pub ceiling: Option<f64>,
}

/// Everything that is measured over throttled members.
#[derive(Default)]
pub struct Figures {
    pub entries: Vec<Entry>,
    pub figures: Vec<Figure>,
    member_bytes: Option<u64>,
    cores: usize,
}

/// The baselines: a member alone.
struct Alone {
    read: usize,
    write: usize,
    sequential_read: usize,
    sequential_write: usize,
}

/// What people call it.
pub fn name(level: Level, members: usize) -> String {
    format!("{}, {members} members", metadata::Level::from(level))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Entry {
    pub fn value(&self) -> f64 {
        median(self.runs.iter().map(|run| run.value).collect())
    }

    pub fn cpu(&self) -> f64 {
        median(self.runs.iter().map(|run| run.cpu).collect())
    }
}

impl Figures {
    /// All figures; or with `quick` one of each kind, over smaller members.
    pub fn new(cores: usize, quick: bool) -> Self {
        let member_bytes = quick.then_some(16 << 20);
        let mut figures = Self { member_bytes, cores, ..Self::default() };
        let alone = figures.alone();
        figures.striping(&alone);
        let members: &[usize] = if quick { &[4] } else { &[4, 8] };
        for &level in if quick { &[Level::Raid5][..] } else { &[Level::Raid5, Level::Raid6] } {
            for &members in members {
                figures.parity(&alone, level, members);
            }
        }
        for (level, members) in [(Level::Raid1, 2), (Level::Raid10, 4)] {
            if !quick {
                figures.mirrors(&alone, level, members);
            }
        }
        figures
    }

    /// Keeps the figures whose names contain `text`, and what they need.
    pub fn keep(&mut self, text: &str) {
        self.figures.retain(|figure| figure.name.contains(text));
    }

    /// Whether the entry is needed by any figure.
    pub fn is_needed(&self, entry: usize) -> bool {
        let over = |figure: &Figure| figure.over.map(|(over, _)| over);
        self.figures.iter().any(|figure| figure.entry == entry || over(figure) == Some(entry))
    }

    pub fn run(&mut self, entry: usize, times: Times) {
        let entry = &mut self.entries[entry];
        entry.runs.push(entry.experiment.run(&entry.spec, times));
    }

    pub fn value(&self, figure: &Figure) -> f64 {
        let value = self.entries[figure.entry].value();
        figure.over.map_or(value, |(over, factor)| value / (self.entries[over].value() * factor))
    }

    pub fn entry(&self, figure: &Figure) -> &Entry {
        &self.entries[figure.entry]
    }

    pub fn missed(&self) -> impl Iterator<Item = &Figure> {
        self.figures
            .iter()
            .filter(|figure| figure.bar.is_some_and(|bar| !bar.is_met(self.value(figure))))
    }

    fn add(&mut self, name: String, experiment: Experiment, spec: Spec) -> usize {
        let member_bytes = self.member_bytes.unwrap_or(spec.member_bytes);
        let spec = Spec { member_bytes, ..spec };
        self.entries.push(Entry { name, experiment, spec, runs: Vec::new() });
        self.entries.len() - 1
    }

    fn figure(
        &mut self,
        entry: usize,
        over: Option<(usize, f64)>,
        bar: Option<Bar>,
        ceiling: Option<f64>,
    ) {
        let name = self.entries[entry].name.clone();
        self.figures.push(Figure { name, entry, over, bar, ceiling });
    }

    fn alone(&mut self) -> Alone {
        let nothing = spec(Level::Raid0, 2, Policy::Resync, 1);
        let mut one = |name: &str, access, order, block_bytes| {
            let entry = self.add(name.into(), bare(access, order, block_bytes), nothing);
            self.figure(entry, None, None, None);
            entry
        };
        use Access::{Read, Write};
        use Order::{Random, Sequential};
        Alone {
            read: one("one member: 4 KiB random reads/s", Read, Random, 4096),
            write: one("one member: 4 KiB random writes/s", Write, Random, 4096),
            sequential_read: one(
                "one member: 128 KiB sequential reads/s",
                Read,
                Sequential,
                SEQUENTIAL_BYTES,
            ),
            sequential_write: one(
                "one member: 128 KiB sequential writes/s",
                Write,
                Sequential,
                SEQUENTIAL_BYTES,
            ),
        }
    }

    fn striping(&mut self, alone: &Alone) {
        let members = 4;
        let shape = spec(Level::Raid0, members, Policy::Resync, self.cores);
        for (access, word, over) in [
            (Access::Read, "reads", alone.sequential_read),
            (Access::Write, "writes", alone.sequential_write),
        ] {
            let name = format!("RAID 0, 4 members: 128 KiB sequential {word}, of one member");
            let load = sequential(access, SEQUENTIAL_BYTES, 32 * members);
            let entry = self.add(name, Experiment::Operations(load), shape);
            self.figure(entry, Some((over, 1.0)), Some(Bar::AtLeast(3.95)), Some(4.0));
        }
    }

    /// The figures of one parity level: bars are those of RAID 5.
    fn parity(&mut self, alone: &Alone, level: Level, members: usize) {
        let cores = self.cores;
        let bar = |value| (level == Level::Raid5).then_some(Bar::AtLeast(value));
        let name = |what: &str| format!("{}: {what}", name(level, members));
        let of_all = members as f64;
        let bitmap = spec(level, members, Policy::Bitmap, cores);
        let parities = bitmap.geometry().parities() as f64;

        let reads = random(Access::Read, members);
        let healthy = self.add(name("4 KiB random reads, of the sum"), reads, bitmap);
        self.figure(healthy, Some((alone.read, of_all)), Some(Bar::AtLeast(0.93)), Some(1.0));
        let degraded = Spec { missing: Some(1), ..bitmap };
        let entry = self.add(name("4 KiB reads without a member, of healthy"), reads, degraded);
        // A read of what is lost is one of each of the others that are needed.
        let left = of_all - 1.0;
        let ceiling = left / ((left + (of_all - parities)) / of_all) / of_all;
        self.figure(entry, Some((healthy, 1.0)), bar(0.45), Some(ceiling));

        for policy in [Policy::Bitmap, Policy::Ppl] {
            let shape = spec(level, members, policy, cores);
            let with = |what: &str| name(&format!("{what}, {}", policy.name()));
            let entry = self.add(with("writes of whole rows"), whole_rows(&shape), shape);
            let row_bytes = shape.geometry().row_data_bytes() as f64;
            let factor = (of_all - parities) * SEQUENTIAL_BYTES as f64 / row_bytes;
            self.figure(entry, Some((alone.sequential_write, factor)), bar(0.90), Some(1.0));
        }
        for policy in [Policy::Resync, Policy::Bitmap, Policy::Ppl] {
            let shape = spec(level, members, policy, cores);
            let what = format!("4 KiB random writes, {}, of the sum", policy.name());
            let entry = self.add(name(&what), random(Access::Write, members), shape);
            let operations = self.operations_of_a_small_write(level, members, policy);
            let bar = match policy {
                Policy::Resync => None,
                Policy::Bitmap => bar(0.22),
                Policy::Ppl => bar(0.17),
            };
            self.figure(entry, Some((alone.write, of_all)), bar, Some(1.0 / operations));
        }
        for depth in if members == 4 { [2, 32] } else { [8, 32] } {
            let load = sequential(Access::Write, SEQUENTIAL_BYTES, depth);
            let what = format!("128 KiB sequential writes at depth {depth}, whole rows");
            let entry = self.add(name(&what), Experiment::WholeRows(load), bitmap);
            self.figure(entry, None, Some(Bar::AtLeast(0.95)), Some(1.0));
        }
        self.rebuild(alone, bitmap);
        self.discards(level, members, &[Policy::Bitmap, Policy::Ppl]);
    }

    fn rebuild(&mut self, alone: &Alone, shape: Spec) {
        let name = name(shape.level, shape.members);
        let name = format!("{name}: rebuild, of one member's speed");
        let entry = self.add(name, Experiment::Rebuild, shape);
        let over = Some((alone.sequential_write, SEQUENTIAL_BYTES as f64));
        self.figure(entry, over, Some(Bar::AtLeast(0.85)), Some(1.0));
    }

    /// Operations of members for a write of 4 KiB: what it reads, writes and logs.
    fn operations_of_a_small_write(&self, level: Level, members: usize, policy: Policy) -> f64 {
        let parities = if level == Level::Raid6 { 2 } else { 1 };
        let others = members - parities - 1;
        let reads = others.min(1 + parities);
        let log = if policy == Policy::Ppl { parities } else { 0 };
        (reads + 1 + parities + log) as f64
    }

    fn mirrors(&mut self, alone: &Alone, level: Level, members: usize) {
        let shape = spec(level, members, Policy::Bitmap, self.cores);
        let name = |what: &str| format!("{}: {what}", name(level, members));
        let of_all = members as f64;
        let reads = random(Access::Read, members);
        let entry = self.add(name("4 KiB random reads, of the sum"), reads, shape);
        self.figure(entry, Some((alone.read, of_all)), Some(Bar::AtLeast(0.93)), Some(1.0));
        let writes = random(Access::Write, members);
        let entry = self.add(name("4 KiB random writes, bitmap, of the sum"), writes, shape);
        self.figure(entry, Some((alone.write, of_all)), None, Some(0.5));
        self.rebuild(alone, shape);
        self.discards(level, members, &[Policy::Bitmap]);
    }

    /// Zeroing and deallocating beside a moderate load, and beside a light one, which waits for little
    /// when it is alone.
    fn discards(&mut self, level: Level, members: usize, policies: &[Policy]) {
        for &policy in policies {
            for (deallocate, what, depth) in [
                (false, "write zeroes", 2 * members),
                (false, "write zeroes", 2),
                (true, "deallocate", 2 * members),
            ] {
                let shape = spec(level, members, policy, self.cores);
                let name = format!(
                    "{}: p99 of {depth} others during {what} of all, {}",
                    name(level, members),
                    policy.name()
                );
                let entry = self.add(name, Experiment::Discard { deallocate, depth }, shape);
                self.figure(entry, None, Some(Bar::AtMost(2.0)), None);
            }
        }
    }
}
