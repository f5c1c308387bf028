//! What a drive holds, for people; drives found by their array; and wiping one.

use super::error::AssembleError;
use super::examine::examine;
use crate::device::signature::{BLANK_BYTES, Contents, deep_blocks};
use crate::device::{DeviceError, Identity, Intent, Kind, Medium, open};
use crate::metadata::private::{Copy, header_offset_bytes};
use crate::metadata::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET_BYTES, Summary, Superblock};
use std::io;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// What is to be said of a drive before it is overwritten.
#[derive(Debug, Clone)]
pub struct Description {
    /// Its names, with serial number and model.
    pub identity: Identity,
    /// Its size.
    pub size_bytes: u64,
    /// What it holds now.
    pub contents: Contents,
}

impl std::fmt::Display for Description {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gib = self.size_bytes as f64 / f64::from(1u32 << 30);
        write!(f, "{}: {gib:.2} GiB", self.identity)?;
        if let Some(model) = &self.identity.model {
            write!(f, ", {model}")?;
        }
        write!(f, ", holds {}", self.contents)
    }
}

/// Looks at a drive without taking it, read-only.
///
/// # Errors
/// If it cannot be opened or read.
pub fn describe(path: &Path) -> Result<Description, DeviceError> {
    let device = open(path, Intent::Examine)?;
    let examined = examine(&device).map_err(|error| DeviceError::Io {
        path: path.to_owned(),
        doing: "reading it",
        source: match error {
            AssembleError::Unreadable { source, .. } => source,
            other => io::Error::other(other.to_string()),
        },
    })?;
    Ok(Description {
        identity: device.identity().clone(),
        size_bytes: device.size_bytes(),
        contents: examined.contents,
    })
}

/// Makes a drive blank: the superblock, then the private headers, then signatures that lie further
/// in (such as the second superblock of btrfs), then everything in the first and last MiB. Not the
/// data.
///
/// # Errors
/// The drive's; it then has no array's superblock any more, or is unchanged.
pub fn wipe(medium: &impl Medium) -> io::Result<()> {
    let mut block = [0; SUPERBLOCK_BYTES];
    let size = medium.size_bytes();
    let zeros = vec![0; 4096];
    if size >= SUPERBLOCK_OFFSET_BYTES + 4096 {
        medium.read_at(SUPERBLOCK_OFFSET_BYTES, &mut block)?;
        medium.write_durable(SUPERBLOCK_OFFSET_BYTES, &zeros)?;
    }
    if let Ok(superblock) = Superblock::parse(&block) {
        for copy in Copy::ALL {
            let offset = header_offset_bytes(superblock.data_offset_bytes(), copy);
            if let Some(offset) = offset.filter(|o| o.saturating_add(4096) <= size) {
                wipe_header(medium, offset, &zeros)?;
            }
        }
    }
    for offset in deep_blocks(medium)? {
        if offset.saturating_add(4096) <= size {
            medium.write_durable(offset, &zeros)?;
        }
    }
    let len = size.min(BLANK_BYTES);
    let zeros = vec![0; usize::try_from(len).unwrap_or(0)];
    medium.write_durable(size - len, &zeros)?;
    medium.write_durable(0, &zeros)
}

/// Zeroes a block only if it is one of our headers: on an array that md made, data or
/// md's own structures may be there.
fn wipe_header(medium: &impl Medium, offset_bytes: u64, zeros: &[u8]) -> io::Result<()> {
    let mut block = [0; 4096];
    medium.read_at(offset_bytes, &mut block)?;
    if crate::metadata::private::Header::parse(&block).is_ok() {
        medium.write_durable(offset_bytes, zeros)?;
    }
    Ok(())
}

/// A drive that says that it belongs to an array.
#[derive(Debug, Clone)]
pub struct Found {
    /// Where: the by-id name if there is one.
    pub path: PathBuf,
    /// Its names.
    pub identity: Identity,
    /// What it says that it is.
    pub summary: Summary,
}

/// The local block devices of this host by their kernel names, in order: not what has a medium to
/// load, only memory behind it, or a network.
///
/// Nor what another machine serves: a read there waits for as long as that machine is away.
#[must_use]
pub fn local_drives() -> Vec<PathBuf> {
    let passed_over = ["sr", "fd", "ram", "zram", "nbd", "rbd", "drbd"];
    let devices = std::fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let names = devices.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let names = names.filter(|name| !passed_over.iter().any(|p| name.starts_with(p)));
    let names = names.filter(|name| !is_over_fabrics(&Path::new("/sys/class/block").join(name)));
    let mut paths: Vec<_> = names.map(|name| Path::new("/dev").join(name)).collect();
    paths.sort();
    paths
}

/// Looks for an array's drives by UUID, on all local block devices of this host and on the
/// files in `also`; what cannot be opened or read is passed over.
///
/// What another machine serves is not looked at: a read there waits for as long as that
/// machine is away. It may even be this process that serves it, to a host on this same
/// machine, and that reading is to bring back. Of a drive and what device mapper shows of it
/// (one of several paths to it, say) only the latter is a member: the former is in use by it.
#[must_use]
pub fn find_members(array: Uuid, also: &[PathBuf]) -> Vec<Found> {
    let mut paths = local_drives();
    paths.extend(also.iter().cloned());
    let mut found: Vec<Found> = Vec::new();
    for path in paths {
        let Some(new) = find_member(&path, array) else { continue };
        if !found.iter().any(|f| f.identity.kind == new.identity.kind) {
            found.push(new);
        }
    }
    let kinds: Vec<Kind> = found.iter().map(|found| found.identity.kind).collect();
    found.retain(|found| !is_below(Path::new("/sys/dev/block"), found.identity.kind, &kinds));
    found
}

/// Whether a device is used by one of `others`, by the folder in sysfs that has all block devices
/// by their numbers.
fn is_below(numbered: &Path, kind: Kind, others: &[Kind]) -> bool {
    let Kind::Block { major, minor } = kind else { return false };
    let holders = std::fs::read_dir(numbered.join(format!("{major}:{minor}/holders")));
    holders.into_iter().flatten().flatten().any(|holder| {
        let number = std::fs::read_to_string(holder.path().join("dev")).unwrap_or_default();
        let parts = number.trim().split_once(':');
        parts.is_some_and(|(major, minor)| {
            let (Ok(major), Ok(minor)) = (major.parse(), minor.parse()) else { return false };
            others.contains(&Kind::Block { major, minor })
        })
    })
}

/// Whether a block device, by its folder in sysfs, is an NVMe namespace of another machine.
///
/// `device` leads to its controller, or, for one that several controllers may share, to its
/// subsystem, which has the controllers in it. A partition's own folder lies in its disk's.
fn is_over_fabrics(folder: &Path) -> bool {
    let remote = |controller: &Path| {
        std::fs::read_to_string(controller.join("transport"))
            .is_ok_and(|transport| transport.trim() != "pcie")
    };
    let Ok(folder) = std::fs::canonicalize(folder) else { return false };
    let disks = folder.ancestors().take(2).map(|disk| disk.join("device"));
    disks.into_iter().any(|device| {
        let inside = std::fs::read_dir(&device).into_iter().flatten().flatten();
        remote(&device) || inside.into_iter().any(|entry| remote(&entry.path()))
    })
}

fn find_member(path: &Path, array: Uuid) -> Option<Found> {
    let device = open(path, Intent::Examine).ok()?;
    let mut block = [0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_OFFSET_BYTES, &mut block).ok()?;
    let superblock = Superblock::parse(&block).ok().filter(|s| s.array_uuid() == array)?;
    let identity = device.identity().clone();
    let path = identity.by_id.clone().unwrap_or_else(|| path.to_owned());
    Some(Found { path, identity, summary: Summary::from(&superblock) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    /// A member that was given as a device of device mapper was found once more below it at the next
    /// start, which then failed as that drive was in use.
    #[test]
    fn a_drive_below_another_one_that_shows_the_same_is_known() {
        let sys = tempfile::tempdir().unwrap();
        let at = |path: &str| sys.path().join(path);
        create_dir_all(at("259:0/holders")).unwrap();
        create_dir_all(at("253:4")).unwrap();
        write(at("253:4/dev"), "253:4\n").unwrap();
        symlink(at("253:4"), at("259:0/holders/dm-4")).unwrap();
        let block = |major, minor| Kind::Block { major, minor };
        let (drive, mapped) = (block(259, 0), block(253, 4));
        assert!(is_below(sys.path(), drive, &[drive, mapped]));
        assert!(!is_below(sys.path(), mapped, &[drive, mapped]));
        // Somebody else's does not count: that the drive is in use has to be told.
        assert!(!is_below(sys.path(), drive, &[drive, block(253, 5)]));
        assert!(!is_below(sys.path(), Kind::File { device: 1, inode: 2 }, &[drive, mapped]));
    }

    /// A target was killed whose volume a host on the same machine had connected. Its
    /// successor looked through that volume for lost members, and waited for it for ever.
    #[test]
    fn volumes_of_other_machines_are_known_by_their_transport() {
        let sys = tempfile::tempdir().unwrap();
        let at = |path: &str| sys.path().join(path);
        // Two subsystems, each with a disk (one has a partition) and a controller elsewhere.
        for (n, transport) in [(0, "pcie"), (1, "tcp")] {
            let subsystem = at(&format!("nvme-subsystem/nvme-subsys{n}"));
            let disk = subsystem.join(format!("nvme{n}n1"));
            create_dir_all(disk.join(format!("nvme{n}n1p1"))).unwrap();
            symlink(&subsystem, disk.join("device")).unwrap();
            let controller = at(&format!("ctl/nvme{n}"));
            create_dir_all(&controller).unwrap();
            write(controller.join("transport"), format!("{transport}\n")).unwrap();
            symlink(&controller, subsystem.join(format!("nvme{n}"))).unwrap();
            // A disk that is not shared lies under its controller.
            let own = controller.join(format!("nvme{n}n2"));
            create_dir_all(&own).unwrap();
            symlink(&controller, own.join("device")).unwrap();
        }
        create_dir_all(at("virtual/loop0")).unwrap();
        let remote = |path: &str| is_over_fabrics(&at(path));
        assert!(remote("nvme-subsystem/nvme-subsys1/nvme1n1"));
        assert!(remote("nvme-subsystem/nvme-subsys1/nvme1n1/nvme1n1p1"));
        assert!(remote("ctl/nvme1/nvme1n2"));
        assert!(!remote("nvme-subsystem/nvme-subsys0/nvme0n1"));
        assert!(!remote("nvme-subsystem/nvme-subsys0/nvme0n1/nvme0n1p1"));
        assert!(!remote("ctl/nvme0/nvme0n2"));
        assert!(!remote("virtual/loop0"));
        assert!(!remote("absent"));
    }
}
