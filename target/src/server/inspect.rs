//! Looking at drives without taking them: what there is, what is on it, who has it.
//!
//! Read-only, beside whoever uses the drives. A drive that does not answer is left alone after
//! [`PATIENCE`], with the thread that waits for it, so that one dead drive does not hide the others.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use raidfabric_raid::assemble::{self, Examined, examine, local_drives};
use raidfabric_raid::device::signature::Contents;
use raidfabric_raid::device::{
    self, DeviceError, Holder, Identity, Intent, Kind, OpenDevice, Roots,
};
use raidfabric_raid::metadata::superblock::{Role, Summary};

use super::report::drives::{ArrayMember, DriveReport, DriveRole, HeldBy, Holds, HoldsKind};

/// How long a drive may take to be read.
const PATIENCE: Duration = Duration::from_secs(5);

/// A drive that was looked at.
#[derive(Debug)]
pub struct Look {
    /// Its names.
    pub identity: Identity,
    /// What is on it.
    pub found: Result<Found, String>,
    /// Who has it.
    pub holder: Option<Holder>,
}

/// What was found on a drive.
#[derive(Debug)]
pub struct Found {
    /// The drive, open to be read.
    pub device: OpenDevice,
    /// What it holds.
    pub examined: Examined,
}

/// Looks at drives, all at the same time, and reports them in their order. One drive under several
/// paths is looked at once.
pub fn look_at(paths: &[PathBuf]) -> Vec<Look> {
    let mut kinds: Vec<Kind> = Vec::new();
    let mut waiting = Vec::new();
    for path in paths {
        let kind = kind_of(path);
        if kind.is_some_and(|kind| kinds.contains(&kind)) {
            continue;
        }
        kinds.extend(kind);
        let (sender, receiver) = mpsc::channel();
        let to_read = path.clone();
        let reading = std::thread::Builder::new().name("raidfabric-look".into()).spawn(move || {
            let _ = sender.send(read(&to_read));
        });
        waiting.push((path, kind, reading.map(|_| receiver)));
    }
    let deadline = std::time::Instant::now() + PATIENCE;
    let collect = |(path, kind, receiver): (&PathBuf, Option<Kind>, std::io::Result<_>)| {
        let found = match receiver {
            Err(error) => Err(format!("cannot be looked at: {error}")),
            Ok(receiver) => {
                let receiver: mpsc::Receiver<Result<Found, String>> = receiver;
                let left = deadline.saturating_duration_since(std::time::Instant::now());
                receiver.recv_timeout(left).unwrap_or_else(|_| {
                    let seconds = PATIENCE.as_secs();
                    Err(format!("it has not answered within {seconds} s; see the kernel's log"))
                })
            }
        };
        let identity = match (&found, kind) {
            (Ok(found), _) => found.device.identity().clone(),
            (Err(_), Some(kind)) => Identity::look_up(&Roots::default(), path, kind),
            (Err(_), None) => unknown(path),
        };
        Look { identity, found, holder: device::held_by(path) }
    };
    waiting.into_iter().map(collect).collect()
}

/// Looks at all local drives and at what else is named.
pub fn look_at_all(also: &[PathBuf]) -> Vec<Look> {
    let mut paths = local_drives();
    paths.extend(also.iter().cloned());
    look_at(&paths)
}

fn read(path: &Path) -> Result<Found, String> {
    let failed = |error: DeviceError| error.to_string();
    let device = device::open(path, Intent::Examine).map_err(failed)?;
    let examined = examine(&device).map_err(|error: assemble::AssembleError| error.to_string())?;
    Ok(Found { device, examined })
}

fn kind_of(path: &Path) -> Option<Kind> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let meta = std::fs::metadata(path).ok()?;
    if meta.file_type().is_block_device() {
        let number = meta.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        return Some(Kind::Block { major, minor });
    }
    meta.is_file().then(|| Kind::File { device: meta.dev(), inode: meta.ino() })
}

/// What is known of a drive that is not there.
fn unknown(path: &Path) -> Identity {
    Identity {
        path: path.to_owned(),
        kind: Kind::File { device: 0, inode: 0 },
        by_id: None,
        kernel_name: None,
        partition_of: None,
        serial: None,
        model: None,
    }
}

impl Look {
    /// Whether a drive is meant by what somebody typed: any path that leads to it, the last part of
    /// its by-id name, its kernel name, or its serial number.
    pub fn is_named(&self, name: &str) -> bool {
        is_named(&self.identity, name)
    }

    /// The drive for people and scripts.
    pub fn report(&self) -> DriveReport {
        let identity = &self.identity;
        let text = |path: &Path| path.display().to_string();
        let found = self.found.as_ref().ok();
        let device = found.map(|found| &found.device);
        DriveReport {
            path: text(&identity.path),
            by_id: identity.by_id.as_deref().map(text),
            kernel_name: identity.kernel_name.clone(),
            partition_of: identity.partition_of.clone(),
            serial: identity.serial.clone(),
            model: identity.model.clone(),
            size_bytes: found.map(|found| found.examined.size_bytes),
            block_size_bytes: device.map(OpenDevice::logical_block_bytes),
            physical_block_bytes: device.map(OpenDevice::physical_block_bytes),
            has_volatile_cache: device.map(OpenDevice::has_volatile_cache),
            is_rotational: device.map(OpenDevice::is_rotational),
            holds: found.map(|found| holds(&found.examined)),
            held_by: self.holder.as_ref().map(held_by),
            problem: self.found.as_ref().err().cloned(),
        }
    }
}

/// As [`Look::is_named`].
pub fn is_named(identity: &Identity, name: &str) -> bool {
    let is = |text: Option<&str>| text == Some(name) && !name.is_empty();
    let by_id = identity.by_id.as_ref().and_then(|path| path.file_name()?.to_str());
    is(identity.serial.as_deref())
        || is(by_id)
        || is(identity.kernel_name.as_deref())
        || (name.contains('/') && kind_of(Path::new(name)) == Some(identity.kind))
}

fn held_by(holder: &Holder) -> HeldBy {
    let pid = match holder {
        Holder::Process { pid, .. } => Some(*pid),
        _ => None,
    };
    let kind = match holder {
        Holder::Md(_) => "md",
        Holder::DeviceMapper(_) => "device_mapper",
        Holder::OtherDevice(_) => "block_device",
        Holder::Mounted(_) => "mount",
        Holder::Swap => "swap",
        Holder::Loop(_) => "loop",
        Holder::Process { .. } => "process",
        Holder::Unknown => "unknown",
    };
    HeldBy { kind: kind.to_owned(), text: holder.to_string(), pid, cure: holder.cure() }
}

/// What a drive holds.
pub fn holds(examined: &Examined) -> Holds {
    let text = examined.contents.to_string();
    let (kind, offset_bytes, member) = match &examined.contents {
        Contents::Blank => (HoldsKind::Nothing, None, None),
        Contents::Md(superblock) => {
            let member = member(&Summary::from(&**superblock), superblock.level_number());
            (HoldsKind::Member, None, Some(member))
        }
        Contents::Foreign { offset_bytes, .. } => (HoldsKind::Foreign, Some(*offset_bytes), None),
        Contents::NotBlank { offset_bytes } => (HoldsKind::Unknown, Some(*offset_bytes), None),
    };
    Holds { kind, text, offset_bytes, member }
}

fn member(summary: &Summary, level: i32) -> ArrayMember {
    let (role, slot) = match summary.role {
        Role::Active(slot) => (DriveRole::Member, Some(slot)),
        Role::Spare => (DriveRole::Spare, None),
        Role::Faulty => (DriveRole::Failed, None),
        Role::Journal => (DriveRole::Journal, None),
    };
    ArrayMember {
        uuid: summary.array_uuid,
        name: summary.set_name.clone(),
        level: level_word(level),
        slots: summary.members,
        role,
        slot,
        events: summary.events,
    }
}

/// md's number of a level as a word.
pub fn level_word(number: i32) -> String {
    match number {
        0 | 1 | 4 | 5 | 6 | 10 => format!("raid{number}"),
        -1 => "linear".to_owned(),
        -4 => "multipath".to_owned(),
        other => format!("level {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn file(folder: &Path, name: &str, mebibytes: u64) -> PathBuf {
        let path = folder.join(name);
        File::create(&path).unwrap().set_len(mebibytes << 20).unwrap();
        path
    }

    /// A folder on a file system that can do direct I/O.
    fn folder() -> tempfile::TempDir {
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../");
        let base = option_env!("CARGO_TARGET_DIR").map_or(base, PathBuf::from);
        tempfile::tempdir_in(base).unwrap()
    }

    #[test]
    fn each_drive_once_and_in_order_whatever_is_wrong_with_it() {
        let folder = folder();
        let one = file(folder.path(), "one", 16);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&one, &link).unwrap();
        let absent = folder.path().join("absent");
        let looks = look_at(&[one.clone(), absent.clone(), link.clone()]);
        assert_eq!(looks.len(), 2);
        let report = looks[0].report();
        assert_eq!((report.size_bytes, report.problem), (Some(16 << 20), None));
        assert_eq!(report.holds.unwrap().kind, HoldsKind::Nothing);
        assert_eq!(report.held_by, None);
        let report = looks[1].report();
        assert!(report.problem.unwrap().contains("absent"), "{looks:?}");
        assert_eq!(report.size_bytes, None);
        assert!(looks[0].is_named(link.to_str().unwrap()));
        assert!(!looks[0].is_named("one"), "a path of another folder's file");
        assert!(!looks[0].is_named(absent.to_str().unwrap()));
        assert!(!looks[0].is_named(""));
    }

    #[test]
    fn who_has_a_drive_is_told() {
        let folder = folder();
        let one = file(folder.path(), "one", 16);
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .stdin(File::open(&one).unwrap())
            .spawn()
            .unwrap();
        let looks = look_at(&[one]);
        let held = looks[0].report().held_by.unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!((held.kind.as_str(), held.pid), ("process", Some(other.id())));
        assert!(held.text.contains("sleep"), "{held:?}");
    }
}
