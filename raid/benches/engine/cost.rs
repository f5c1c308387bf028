//! What a request costs in CPU time over members that answer at once.

use std::hint::black_box;

use raidfabric_raid::geometry::Level;
use raidfabric_raid::memory::MemoryDrive;
use tokio::runtime::Builder;

use super::figures::name;
use super::load::cpu_seconds;
use super::rig::{Bare, Core, Policy, Spec, Volume, array_alone};

const BLOCK_BYTES: u64 = 4096;

/// The size of a member: what is read and written in all is more than the caches hold.
const MEMBER_BYTES: u64 = 32 << 20;

/// An array, or a bare member, that is measured.
pub struct Subject {
    pub name: String,
    /// Seconds of CPU time of a read and of a write, one for each turn.
    pub reads: Vec<f64>,
    pub writes: Vec<f64>,
    volume: Kind,
}

enum Kind {
    Bare(Core<Bare<MemoryDrive>>),
    Array(Box<Core<raidfabric_raid::array::Array<MemoryDrive>>>),
}

impl Subject {
    pub fn bare() -> Self {
        let drive = MemoryDrive::new(MEMBER_BYTES);
        let core = Core::new(Bare(drive), 0, 1, Default::default());
        Self::new("a member alone".into(), Kind::Bare(core))
    }

    pub fn array(level: Level, members: usize, policy: Policy) -> Self {
        let (missing, cores) = (None, 1);
        let spec = Spec { level, members, policy, missing, member_bytes: MEMBER_BYTES, cores };
        let drives = (0..members).map(|_| MemoryDrive::new(MEMBER_BYTES)).collect();
        let core = Core::new(array_alone(&spec, drives), 0, 1, Default::default());
        let name = match level {
            Level::Raid0 => name(level, members),
            _ => format!("{}, {}", name(level, members), policy.name()),
        };
        Self::new(name, Kind::Array(Box::new(core)))
    }

    fn new(name: String, volume: Kind) -> Self {
        Self { name, reads: Vec::new(), writes: Vec::new(), volume }
    }

    /// Measures one turn of so many requests of each kind.
    pub fn turn(&mut self, requests: u32) {
        let (read, write) = match &self.volume {
            Kind::Bare(core) => measure(core, requests),
            Kind::Array(core) => measure(core, requests),
        };
        self.reads.push(read);
        self.writes.push(write);
    }

    /// Writes everything once, so that the memory is there.
    pub fn fill(&self) {
        match &self.volume {
            Kind::Bare(core) => fill(core),
            Kind::Array(core) => fill(core),
        }
    }
}

fn block_on<R>(future: impl Future<Output = R>) -> R {
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(future)
}

fn fill<V: Volume>(core: &Core<V>) {
    let len = 64 << 10;
    let mut data = core.pool.allocate(len as usize).expect("memory");
    data.fill(0xa5);
    let data = data.freeze();
    block_on(async {
        for at in (0..core.volume.capacity_bytes() / len).map(|block| block * len) {
            core.volume.write(at, data.clone()).await;
        }
    });
}

/// CPU time of a read and of a write, at random places.
fn measure<V: Volume>(core: &Core<V>, requests: u32) -> (f64, f64) {
    let blocks = core.volume.capacity_bytes() / BLOCK_BYTES;
    let mut random = core.random();
    let mut data = core.pool.allocate(BLOCK_BYTES as usize).expect("memory");
    data.fill(0x77);
    let data = data.freeze();
    block_on(async {
        let begin = cpu_seconds();
        for _ in 0..requests {
            let buffer = core.pool.allocate(BLOCK_BYTES as usize).expect("memory");
            let at = random.below(blocks) * BLOCK_BYTES;
            black_box(core.volume.read(at, buffer).await);
        }
        let middle = cpu_seconds();
        for _ in 0..requests {
            core.volume.write(random.below(blocks) * BLOCK_BYTES, data.clone()).await;
        }
        let end = cpu_seconds();
        let each = f64::from(requests);
        ((middle - begin) / each, (end - middle) / each)
    })
}
