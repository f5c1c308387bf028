//! What a drive is called: by what does not move (by-id name, serial number), and by
//! the kernel's name, which does.
//!
//! Reads `/sys` and `/dev/disk/by-id`; missing entries (a container without `/sys`, a
//! file) leave gaps, never errors.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the system's trees are; tests have their own.
#[derive(Debug, Clone)]
pub struct Roots {
    /// Usually `/sys`.
    pub sys: PathBuf,
    /// Usually `/proc`.
    pub proc: PathBuf,
    /// Usually `/dev`.
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into() }
    }
}

/// Block device or file, with what tells two paths to the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A block device, by its number.
    Block {
        /// The driver.
        major: u32,
        /// The device.
        minor: u32,
    },
    /// A regular file, by its place.
    File {
        /// The file system's device number.
        device: u64,
        /// The file's number there.
        inode: u64,
    },
}

/// A drive's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// As the operator gave it.
    pub path: PathBuf,
    /// Block device or file.
    pub kind: Kind,
    /// `/dev/disk/by-id/…`, if there is such a name.
    pub by_id: Option<PathBuf>,
    /// The kernel's name (`nvme0n1`); None for files.
    pub kernel_name: Option<String>,
    /// The whole drive's name, if this is a partition.
    pub partition_of: Option<String>,
    /// The serial number.
    pub serial: Option<String>,
    /// The model.
    pub model: Option<String>,
}

impl Identity {
    /// Looks up what is known.
    #[must_use]
    pub fn look_up(roots: &Roots, path: &Path, kind: Kind) -> Self {
        let mut identity = Self {
            path: path.to_owned(),
            kind,
            by_id: None,
            kernel_name: None,
            partition_of: None,
            serial: None,
            model: None,
        };
        let Kind::Block { major, minor } = kind else { return identity };
        let Some(sys) = sys_path(roots, major, minor) else { return identity };
        let name = file_name(&sys);
        let disk = whole_disk(&sys);
        if disk != sys {
            identity.partition_of = file_name(&disk);
        }
        identity.serial = ["device/serial", "serial", "device/device/serial"]
            .iter()
            .find_map(|file| read_text(&disk.join(file)))
            .or_else(|| vital_product_serial(&disk));
        identity.model = read_text(&disk.join("device/model"));
        identity.by_id = name.as_deref().and_then(|name| by_id_name(roots, name));
        identity.kernel_name = name;
        identity
    }

    /// The name that does not move: by-id if there is one, else as given.
    #[must_use]
    pub fn name(&self) -> String {
        self.by_id.as_ref().unwrap_or(&self.path).display().to_string()
    }

    /// What to tell an operator who named the drive by something that moves.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let kernel_name = self.kernel_name.as_deref()?;
        let given = self.path.file_name()?.to_str()?;
        // Under `/dev` itself; links elsewhere are somebody's own naming.
        let moves = given == kernel_name && self.path.parent()?.ends_with("dev");
        if !moves || kernel_name.starts_with("dm-") {
            return None;
        }
        let path = self.path.display();
        Some(match &self.by_id {
            Some(by_id) => format!(
                "{path} may name another drive after the next boot; write {} instead",
                by_id.display()
            ),
            None => format!(
                "{path} may name another drive after the next boot, and the drive has no name \
                 under /dev/disk/by-id; once the array is created, it is found by its UUID"
            ),
        })
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.name())?;
        match &self.serial {
            Some(serial) => write!(f, " (serial {serial})"),
            None => Ok(()),
        }
    }
}

/// The device's directory in sysfs.
pub(super) fn sys_path(roots: &Roots, major: u32, minor: u32) -> Option<PathBuf> {
    fs::canonicalize(roots.sys.join(format!("dev/block/{major}:{minor}"))).ok()
}

/// The directory of the drive that a partition is on, or of the drive itself.
pub(super) fn whole_disk(sys: &Path) -> PathBuf {
    let is_partition = sys.join("partition").exists();
    match sys.parent() {
        Some(parent) if is_partition => parent.to_owned(),
        _ => sys.to_owned(),
    }
}

/// A line of text from a file, trimmed; None if there is nothing.
pub(super) fn read_text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn file_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

/// SCSI keeps the serial number in a page with a four-byte header.
fn vital_product_serial(disk: &Path) -> Option<String> {
    let page = fs::read(disk.join("device/vpd_pg80")).ok()?;
    let text = String::from_utf8_lossy(page.get(4..)?).trim().trim_matches('\0').to_owned();
    (!text.is_empty()).then_some(text)
}

/// The most telling of the names that udev made for a device.
fn by_id_name(roots: &Roots, kernel_name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(roots.dev.join("disk/by-id")).ok()?;
    let mut names: Vec<(usize, String, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let target = fs::read_link(&path).ok()?;
            (target.file_name()?.to_str()? == kernel_name).then_some(())?;
            let name = file_name(&path)?;
            Some((by_id_rank(&name)?, name, path))
        })
        .collect();
    // Of equal rank the shorter: udev adds `_1` (the namespace) to a second link.
    names.sort_by(|a, b| (a.0, a.1.len(), &a.1).cmp(&(b.0, b.1.len(), &b.1)));
    names.into_iter().next().map(|(_, _, path)| path)
}

/// Names with model and serial number first, bare identifiers after them; what names
/// contents instead of a device, not at all.
fn by_id_rank(name: &str) -> Option<usize> {
    if name.starts_with("md-") || name.starts_with("lvm-pv") {
        return None;
    }
    let bare = ["nvme-eui.", "nvme-nvme.", "nvme-uuid.", "wwn-", "scsi-3", "dm-uuid-"];
    let named = ["nvme-", "ata-", "scsi-", "virtio-", "usb-", "mmc-", "dm-name-"];
    if bare.iter().any(|prefix| name.starts_with(prefix)) {
        Some(2)
    } else if named.iter().any(|prefix| name.starts_with(prefix)) {
        Some(0)
    } else {
        Some(1)
    }
}
