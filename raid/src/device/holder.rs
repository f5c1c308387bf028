//! Who has a drive that we could not get.
//!
//! Looks at sysfs (md, device mapper), the mount table, swap, loop devices and other
//! processes' descriptors. Only called when an open or a lock has failed: it explains,
//! it does not decide.

use super::identity::{Kind, Roots, read_text, sys_path};
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Who has the drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A running md array.
    Md(String),
    /// Device mapper: LVM, LUKS, multipath.
    DeviceMapper(String),
    /// Another block device on top (bcache and the like).
    OtherDevice(String),
    /// A mounted file system, on the drive or on a partition of it.
    Mounted(PathBuf),
    /// Swap space.
    Swap,
    /// A loop device over the file.
    Loop(String),
    /// Another process has it open.
    Process {
        /// Its number.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// It could not be found out.
    Unknown,
}

impl Holder {
    /// Whether waiting a moment cannot help.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        !matches!(self, Self::Process { .. } | Self::Unknown)
    }

    /// What to do about it.
    #[must_use]
    pub fn cure(&self) -> String {
        match self {
            Self::Md(name) => format!(
                "stop it with `mdadm --stop /dev/{name}`, and keep it from being assembled again"
            ),
            Self::DeviceMapper(name) => format!(
                "see `dmsetup info {name}`; close it (vgchange -an, cryptsetup close, multipath -f)"
            ),
            Self::OtherDevice(name) => format!("detach /dev/{name} first"),
            Self::Mounted(at) => format!("umount {}", at.display()),
            Self::Swap => "swapoff it".to_owned(),
            Self::Loop(name) => format!("detach it with `losetup -d /dev/{name}`"),
            Self::Process { pid, .. } => {
                format!("end process {pid}, or wait until it has released the drive")
            }
            Self::Unknown => {
                "look for a container or another host process that has it open".to_owned()
            }
        }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Md(name) => write!(f, "the md array {name}"),
            Self::DeviceMapper(name) => write!(f, "device mapper ({name})"),
            Self::OtherDevice(name) => write!(f, "the block device {name}"),
            Self::Mounted(at) => write!(f, "the file system mounted on {}", at.display()),
            Self::Swap => write!(f, "swap"),
            Self::Loop(name) => write!(f, "the loop device {name}"),
            Self::Process { pid, name } => write!(f, "process {pid} ({name})"),
            Self::Unknown => write!(f, "somebody who is not visible from here"),
        }
    }
}

/// Who has the drive open or lies on it, as far as it can be seen; None if nobody. Takes nothing and
/// waits for nobody.
#[must_use]
pub fn held_by(path: &Path) -> Option<Holder> {
    let kind = kind_of(&fs::metadata(path).ok()?)?;
    match find(&Roots::default(), path, kind) {
        Holder::Unknown => None,
        holder => Some(holder),
    }
}

/// Finds the holder, the lasting kinds first.
pub(super) fn find(roots: &Roots, path: &Path, kind: Kind) -> Holder {
    let found = match kind {
        Kind::Block { major, minor } => find_block(roots, major, minor),
        Kind::File { .. } => find_loop(roots, path),
    };
    found.or_else(|| find_process(roots, kind)).unwrap_or(Holder::Unknown)
}

fn find_block(roots: &Roots, major: u32, minor: u32) -> Option<Holder> {
    let sys = sys_path(roots, major, minor)?;
    // The drive itself, and its partitions.
    let mut devices = vec![sys.clone()];
    let children = fs::read_dir(&sys).into_iter().flatten().flatten().map(|e| e.path());
    devices.extend(children.filter(|p| p.join("partition").exists()));
    let mut holders = devices.iter().flat_map(|d| fs::read_dir(d.join("holders"))).flatten();
    if let Some(Ok(holder)) = holders.next() {
        let name = holder.file_name().to_string_lossy().into_owned();
        return Some(stacked(roots, name));
    }
    let numbers: Vec<_> = devices.iter().filter_map(|d| read_text(&d.join("dev"))).collect();
    find_mount(roots, &numbers).or_else(|| find_swap(roots, &devices))
}

/// A block device that lies on another.
fn stacked(roots: &Roots, name: String) -> Holder {
    if name.starts_with("md") {
        Holder::Md(name)
    } else if name.starts_with("dm-") {
        let told = roots.sys.join("block").join(&name).join("dm/name");
        Holder::DeviceMapper(read_text(&told).unwrap_or(name))
    } else {
        Holder::OtherDevice(name)
    }
}

/// `/proc/self/mountinfo`: the third field is the device's number, the fifth the place.
fn find_mount(roots: &Roots, numbers: &[String]) -> Option<Holder> {
    let table = fs::read_to_string(roots.proc.join("self/mountinfo")).ok()?;
    table.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let number = fields.nth(2)?;
        let place = fields.nth(1)?;
        numbers.iter().any(|n| n == number).then(|| Holder::Mounted(place.into()))
    })
}

fn find_swap(roots: &Roots, devices: &[PathBuf]) -> Option<Holder> {
    let table = fs::read_to_string(roots.proc.join("swaps")).ok()?;
    let used = |line: &str| {
        let device = Path::new(line.split_whitespace().next()?).file_name()?;
        devices.iter().any(|d| d.file_name() == Some(device)).then_some(Holder::Swap)
    };
    table.lines().skip(1).find_map(used)
}

/// A loop device's backing file is named in sysfs.
fn find_loop(roots: &Roots, path: &Path) -> Option<Holder> {
    let path = fs::canonicalize(path).ok()?;
    fs::read_dir(roots.sys.join("block")).ok()?.flatten().find_map(|entry| {
        let backing = read_text(&entry.path().join("loop/backing_file"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        (Path::new(&backing) == path).then_some(Holder::Loop(name))
    })
}

/// Another process that has the drive open, by its descriptors (those that we may see).
fn find_process(roots: &Roots, kind: Kind) -> Option<Holder> {
    let own = std::process::id();
    let processes = fs::read_dir(&roots.proc).ok()?.flatten();
    for process in processes {
        let Some(pid) = process.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        let descriptors = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        for descriptor in descriptors {
            // Following the link finds the file itself, whatever it is called by now.
            let Ok(meta) = fs::metadata(descriptor.path()) else { continue };
            if pid != own && kind_of(&meta) == Some(kind) {
                let name = read_text(&process.path().join("comm")).unwrap_or_default();
                return Some(Holder::Process { pid, name });
            }
        }
    }
    None
}

/// The kind of a file, if it can be a drive.
pub(super) fn kind_of(meta: &fs::Metadata) -> Option<Kind> {
    use std::os::unix::fs::FileTypeExt;
    if meta.file_type().is_block_device() {
        let (major, minor) = (rustix::fs::major(meta.st_rdev()), rustix::fs::minor(meta.st_rdev()));
        Some(Kind::Block { major, minor })
    } else if meta.is_file() {
        Some(Kind::File { device: meta.st_dev(), inode: meta.st_ino() })
    } else {
        None
    }
}

/// Whether a loop device lies over this file: it is in use although nothing is locked.
pub(super) fn loop_over(roots: &Roots, path: &Path, kind: Kind) -> Option<Holder> {
    match kind {
        Kind::File { .. } => find_loop(roots, path),
        Kind::Block { .. } => None,
    }
}
