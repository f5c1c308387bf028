//! What array a seed gets: its shape, its drives, the regions that hosts use.

use std::ops::Range;

use super::disk;
use super::image::SECTOR_BYTES;
use super::world::Random;
use crate::geometry::{Geometry, Level};
use crate::metadata::Consistency;

/// What a seed decides about an array before it is made.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) level: Level,
    pub(crate) members: usize,
    /// 0 for RAID 1.
    pub(crate) chunk_bytes: u32,
    pub(crate) component_bytes: u64,
    pub(crate) cores: usize,
    /// Read errors at which a member is failed.
    pub(crate) read_error_limit: u32,
    /// Entries that a member's list of bad blocks may have.
    pub(crate) bad_block_limit: u32,
    /// How it is made consistent after a crash.
    pub(crate) consistency: Consistency,
    /// What each drive is.
    pub(crate) drives: Vec<disk::Model>,
}

/// Size of every drive.
pub(crate) const DRIVE_BYTES: usize = 16 << 20;

impl Shape {
    pub(crate) fn random(random: &mut Random, levels: &[Level]) -> Self {
        let level = levels[random.below(levels.len() as u64) as usize];
        let members = match level {
            Level::Raid0 => 1 + random.below(4),
            Level::Raid1 => 2 + random.below(2),
            Level::Raid10 => 2 + random.below(4),
            Level::Raid5 => 3 + random.below(3),
            Level::Raid6 => 4 + random.below(3),
        } as usize;
        let chunk_bytes = if level == Level::Raid1 { 0 } else { 4096 << random.below(5) };
        let capacity = (2100 << 10) + (random.below(100) << 12);
        // How many members' worth of data there is.
        let width = match level {
            Level::Raid1 => 1,
            Level::Raid10 => members as u64 / 2,
            _ => (members - level.parities()) as u64,
        };
        let unit = u64::from(chunk_bytes).max(4096);
        let component_bytes = (capacity / width.max(1)).next_multiple_of(unit);
        let policies: &[Consistency] = match level {
            Level::Raid0 => &[Consistency::None],
            Level::Raid1 | Level::Raid10 => &[Consistency::Bitmap, Consistency::Resync],
            Level::Raid5 | Level::Raid6 => {
                &[Consistency::Ppl, Consistency::Ppl, Consistency::Bitmap, Consistency::Resync]
            }
        };
        let consistency = policies[random.below(policies.len() as u64) as usize];
        // All without a cache, all with, or mixed.
        let cache_of = [0, 100, 50][random.below(3) as usize];
        let zero_of = [0, 100, 75][random.below(3) as usize];
        let block_of = [0, 0, 100, 30][random.below(4) as usize];
        let drives = (0..members).map(|_| Self::drive(random, cache_of, zero_of, block_of));
        Self {
            level,
            members,
            chunk_bytes,
            component_bytes,
            consistency,
            drives: drives.collect(),
            cores: 1 + random.below(3) as usize,
            read_error_limit: [20, 3][random.below(2) as usize],
            bad_block_limit: [448, 448, 448, 3][random.below(4) as usize],
        }
    }

    /// A drive, with so many chances in a hundred of a cache, of zeroing, of blocks of 4 KiB.
    fn drive(random: &mut Random, cache_of: u64, zero_of: u64, block_of: u64) -> disk::Model {
        let mut in_hundred = |chances| random.below(100) < chances;
        let block_bytes = if in_hundred(block_of) { 4096 } else { SECTOR_BYTES };
        let atomic_bytes = if in_hundred(50) { 4096 } else { block_bytes };
        disk::Model {
            size_bytes: DRIVE_BYTES,
            block_bytes,
            atomic_bytes,
            has_volatile_cache: in_hundred(cache_of),
            can_zero: in_hundred(zero_of),
        }
    }

    /// One more drive like another.
    pub(crate) fn another_drive(&self, random: &mut Random) -> disk::Model {
        let like = self.drives[random.below(self.drives.len() as u64) as usize];
        disk::Model { has_volatile_cache: random.below(2) == 0, ..like }
    }

    /// The shape as the engine has it.
    pub(crate) fn geometry(&self) -> Geometry {
        Geometry::new(self.level, self.members, self.chunk_bytes, self.component_bytes).unwrap()
    }

    /// Sectors of a block of the array.
    pub(crate) fn unit(&self) -> usize {
        self.drives.iter().map(|drive| drive.block_bytes / SECTOR_BYTES).max().unwrap_or(1)
    }

    /// What hosts use: around the borders of chunks, rows and shards, and somewhere.
    pub(crate) fn hot_regions(&self, random: &mut Random) -> Vec<Range<usize>> {
        let geometry = self.geometry();
        let unit = self.unit();
        let sectors = geometry.capacity_bytes() as usize / SECTOR_BYTES;
        let border = geometry.shard_bytes() as usize / SECTOR_BYTES;
        let chunk = geometry.chunk_bytes().unwrap_or(65_536) as usize / SECTOR_BYTES;
        let around = |sector: usize| {
            let sector = sector / unit * unit;
            sector.saturating_sub(8 * unit)..(sector + 8 * unit).min(sectors / unit * unit)
        };
        let somewhere = random.below(sectors as u64) as usize;
        let mut regions = vec![around(border), around(chunk), around(sectors), around(somewhere)];
        if geometry.level().parities() > 0 && geometry.row_data_bytes() <= 128 << 10 {
            let row = geometry.row_range(random.below(geometry.rows()));
            regions.push(row.start as usize / SECTOR_BYTES..row.end as usize / SECTOR_BYTES);
        }
        // A small array of regions makes requests meet more often.
        let kept = 1 + random.below(4) as usize;
        while regions.len() > kept {
            regions.swap_remove(random.below(regions.len() as u64) as usize);
        }
        regions.retain(|region| !region.is_empty());
        // No sector twice: regions that meet are one.
        regions.sort_by_key(|region| region.start);
        regions.dedup_by(|next, before| {
            let meets = next.start <= before.end;
            if meets {
                before.end = before.end.max(next.end);
            }
            meets
        });
        regions
    }
}
