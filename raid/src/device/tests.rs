//! Owning, measuring and naming drives: on files, and on made-up `/sys`, `/proc`, `/dev`.

use super::holder::{find, kind_of};
use super::identity::Roots;
use super::*;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// On the disk that the sources are on: `/tmp` may be a tmpfs.
fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix(".test-").tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

fn file(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    File::create(&path).unwrap().set_len(2 * MIB).unwrap();
    path
}

fn own(path: &Path) -> Result<OpenDevice, DeviceError> {
    open(path, Intent::Own)
}

#[test]
fn reads_and_writes_at_any_place() {
    let dir = directory();
    let device = own(&file(dir.path(), "drive")).unwrap();
    assert_eq!(device.size_bytes(), 2 * MIB);
    assert!(device.has_volatile_cache(), "files report one");
    let data: Vec<u8> = (0..8192u32).map(|i| (i * 7 % 251) as u8).collect();
    device.write_durable(MIB - 4096, &data).unwrap();
    for (from, len) in [(0, 8192), (1, 8000), (511, 2), (512, 512), (4095, 4097), (100, 0)] {
        let mut found = vec![0; len];
        device.read_at(MIB - 4096 + from as u64, &mut found).unwrap();
        assert_eq!(found, data[from..from + len]);
    }
    // Larger than one transfer, and not aligned.
    let mut all = vec![1; 2 * MIB as usize - 3];
    device.read_at(3, &mut all).unwrap();
    let at = MIB as usize - 4096 - 3;
    assert_eq!(all[at..at + 8192], data);
    assert!(all[..at].iter().all(|b| *b == 0));
    let mut beyond = [0; 2];
    assert!(device.read_at(2 * MIB - 1, &mut beyond).is_err());
    assert!(device.write_durable(2 * MIB - 4096, &data).is_err());
    assert!(device.read_at(u64::MAX, &mut beyond).is_err());
    device.flush().unwrap();

    assert!(device.zero_cheaply(MIB, MIB).unwrap());
    let mut found = vec![1; 8192];
    device.read_at(MIB - 4096, &mut found).unwrap();
    assert_eq!(found[..4096], data[..4096]);
    assert_eq!(found[4096..], [0; 4096]);
    assert_eq!(fs::metadata(device.path()).unwrap().len(), 2 * MIB);
}

#[test]
fn zeroing_keeps_reserved_space_and_holes() {
    use std::os::linux::fs::MetadataExt;
    let dir = directory();
    let blocks = |path: &Path| fs::metadata(path).unwrap().st_blocks();
    let sparse = own(&file(dir.path(), "sparse")).unwrap();
    sparse.write_durable(MIB, &[1; 4096]).unwrap();
    assert!(blocks(sparse.path()) > 0);
    assert!(sparse.zero_cheaply(0, 2 * MIB).unwrap());
    assert_eq!(blocks(sparse.path()), 0);

    let reserved = file(dir.path(), "reserved");
    fs::write(&reserved, vec![1; 2 * MIB as usize]).unwrap();
    let before = blocks(&reserved);
    let reserved = own(&reserved).unwrap();
    if reserved.zero_cheaply(0, 2 * MIB).unwrap() {
        assert_eq!(blocks(reserved.path()), before);
        let mut all = vec![1; 2 * MIB as usize];
        reserved.read_at(0, &mut all).unwrap();
        assert!(all.iter().all(|b| *b == 0));
    }
}

#[test]
fn a_second_owner_is_shut_out_while_any_descriptor_lives() {
    let dir = directory();
    let path = file(dir.path(), "drive");
    let device = own(&path).unwrap();
    assert!(matches!(own(&path), Err(DeviceError::Busy { .. })));
    // Looking is allowed, and does not take anything.
    let looking = open(&path, Intent::Examine).unwrap();
    assert!(looking.write_durable(0, &[0; 4096]).is_err());
    drop(looking);
    let Descriptors { io, dsync } = device.descriptors();
    drop(device);
    assert!(matches!(own(&path), Err(DeviceError::Busy { .. })));
    drop(io);
    assert!(matches!(own(&path), Err(DeviceError::Busy { .. })), "FUA writes hold it, too");
    drop(dsync);
    own(&path).unwrap();
}

#[test]
fn waits_for_a_predecessor_and_says_so_once() {
    let dir = directory();
    let path = file(dir.path(), "drive");
    let device = own(&path).unwrap();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(device);
    });
    let mut told = Vec::new();
    let patience =
        Patience { limit: Duration::from_secs(30), notify: &mut |text| told.push(text.to_owned()) };
    open_patiently(&path, Intent::Own, patience).unwrap();
    release.join().unwrap();
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("still held by") && told[0].contains("up to 30 s"), "{told:?}");

    let _device = own(&path).unwrap();
    let begin = Instant::now();
    let patience = Patience { limit: Duration::from_millis(200), notify: &mut |_| {} };
    let error = open_patiently(&path, Intent::Own, patience).unwrap_err();
    assert!(matches!(error, DeviceError::Busy { .. }));
    assert!((200..20_000).contains(&begin.elapsed().as_millis()));
}

const HOLD: &str = "RAIDFABRIC_TEST_HOLD";

/// Not a test by itself: the other process of the next one.
#[test]
fn hold_for_another_test() {
    if let Some(path) = std::env::var_os(HOLD) {
        // The test may just be trying whether we have it.
        let patience = Patience { limit: Duration::from_secs(20), notify: &mut |_| {} };
        let _device = open_patiently(Path::new(&path), Intent::Own, patience).unwrap();
        println!("holding");
        std::thread::sleep(Duration::from_secs(60));
    }
}

#[test]
fn a_killed_predecessor_lets_go() {
    let dir = directory();
    let path = file(dir.path(), "drive");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "device::tests::hold_for_another_test", "--nocapture"])
        .env(HOLD, &path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let holder = loop {
        match own(&path) {
            Err(DeviceError::Busy { holder, .. }) => break holder,
            _ => assert!(Instant::now() < end, "it never took the drive"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = holder.to_string();
    assert!(text.starts_with(&format!("process {} (", child.id())), "{text}");
    assert!(!holder.is_lasting());
    child.kill().unwrap();
    let patience = Patience { limit: Duration::from_secs(20), notify: &mut |_| {} };
    open_patiently(&path, Intent::Own, patience).unwrap();
    child.wait().unwrap();
}

#[test]
fn what_is_no_drive_is_named() {
    let dir = directory();
    let text = |path: &Path| own(path).unwrap_err().to_string();
    let missing = text(&dir.path().join("missing"));
    assert!(missing.contains("there is no such drive or file"), "{missing}");
    assert!(text(dir.path()).contains("this is a directory"));
    assert!(text(Path::new("/dev/null")).contains("this is a character device"));
    // procfs has no direct I/O, as tmpfs had none before Linux 6.6.
    let error = open(Path::new("/proc/version"), Intent::Examine).unwrap_err();
    assert!(matches!(error, DeviceError::NoDirectIo { .. }), "{error}");
}

/// A made-up host.
struct Host {
    dir: tempfile::TempDir,
    roots: Roots,
}

const DISK: Kind = Kind::Block { major: 259, minor: 0 };
const PARTITION: Kind = Kind::Block { major: 259, minor: 1 };

impl Host {
    /// With the drive nvme0n1 and its partition nvme0n1p1.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let roots = Roots { sys: at("sys"), proc: at("proc"), dev: at("dev") };
        let host = Self { dir, roots };
        host.write("sys/block/nvme0n1/dev", "259:0\n");
        host.write("sys/block/nvme0n1/device/serial", "S64ANS0T\n");
        host.write("sys/block/nvme0n1/device/model", "Samsung SSD 990 PRO 2TB \n");
        host.write("sys/block/nvme0n1/nvme0n1p1/dev", "259:1\n");
        host.write("sys/block/nvme0n1/nvme0n1p1/partition", "1\n");
        host.link("sys/dev/block/259:0", "../../block/nvme0n1");
        host.link("sys/dev/block/259:1", "../../block/nvme0n1/nvme0n1p1");
        host
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    fn identity(&self, path: &str, kind: Kind) -> Identity {
        Identity::look_up(&self.roots, Path::new(path), kind)
    }

    fn holder(&self, kind: Kind) -> Holder {
        find(&self.roots, Path::new("/dev/nvme0n1"), kind)
    }
}

#[test]
fn a_drive_is_named_by_what_does_not_move() {
    let host = Host::new();
    let identity = host.identity("/dev/nvme0n1", DISK);
    assert_eq!(identity.by_id, None);
    assert!(identity.warning().unwrap().contains("has no name under /dev/disk/by-id"));
    for name in [
        "lvm-pv-uuid-abc",
        "nvme-eui.0025385b21403f29",
        "nvme-Samsung_SSD_990_PRO_2TB_S64ANS0T_1",
        "nvme-Samsung_SSD_990_PRO_2TB_S64ANS0T",
    ] {
        host.link(&format!("dev/disk/by-id/{name}"), "../../nvme0n1");
    }
    host.link("dev/disk/by-id/nvme-Other", "../../nvme1n1");
    host.link("dev/disk/by-id/nvme-eui.0025385b21403f29-part1", "../../nvme0n1p1");
    let identity = host.identity("/dev/nvme0n1", DISK);
    let by_id = host.roots.dev.join("disk/by-id/nvme-Samsung_SSD_990_PRO_2TB_S64ANS0T");
    assert_eq!(identity.by_id.as_ref(), Some(&by_id));
    assert_eq!(identity.serial.as_deref(), Some("S64ANS0T"));
    assert_eq!(identity.model.as_deref(), Some("Samsung SSD 990 PRO 2TB"));
    assert_eq!(identity.partition_of, None);
    assert_eq!(identity.to_string(), format!("{} (serial S64ANS0T)", by_id.display()));
    let warning = identity.warning().unwrap();
    assert!(warning.ends_with(&format!("write {} instead", by_id.display())), "{warning}");
    // Named by its link, there is nothing to warn of.
    assert_eq!(host.identity(&by_id.display().to_string(), DISK).warning(), None);

    let partition = host.identity("/dev/nvme0n1p1", PARTITION);
    assert_eq!(partition.partition_of.as_deref(), Some("nvme0n1"));
    assert_eq!(partition.serial.as_deref(), Some("S64ANS0T"));
    assert!(partition.name().ends_with("by-id/nvme-eui.0025385b21403f29-part1"));

    let file = host.identity("/srv/drive.img", Kind::File { device: 1, inode: 2 });
    assert_eq!((file.to_string().as_str(), file.warning()), ("/srv/drive.img", None));
}

#[test]
fn scsi_serial_numbers_are_in_a_page() {
    let host = Host::new();
    host.write("sys/block/sda/dev", "8:0\n");
    host.write("sys/block/sda/device/vpd_pg80", "\0\u{1}\0\u{8}  WD-1234");
    host.link("sys/dev/block/8:0", "../../block/sda");
    let identity = host.identity("/dev/sda", Kind::Block { major: 8, minor: 0 });
    assert_eq!(identity.serial.as_deref(), Some("WD-1234"));
}

#[test]
fn who_has_a_drive_is_found_out() {
    let host = Host::new();
    assert_eq!(host.holder(DISK), Holder::Unknown);
    host.write(
        "proc/self/mountinfo",
        "25 1 8:1 / / rw - ext4 /dev/sda1 rw\n36 25 259:1 / /srv/data rw - xfs /dev/nvme0n1p1 rw\n",
    );
    // Through its partition.
    assert_eq!(host.holder(DISK), Holder::Mounted("/srv/data".into()));
    assert_eq!(host.holder(PARTITION), Holder::Mounted("/srv/data".into()));
    host.write("sys/block/nvme0n1/holders/dm-3/x", "");
    host.write("sys/block/dm-3/dm/name", "vg-root\n");
    assert_eq!(host.holder(DISK), Holder::DeviceMapper("vg-root".into()));

    let host = Host::new();
    host.write("sys/block/nvme0n1/nvme0n1p1/holders/md127/x", "");
    assert_eq!(host.holder(DISK), Holder::Md("md127".into()));
    assert!(host.holder(DISK).cure().contains("mdadm --stop /dev/md127"));

    let host = Host::new();
    host.write("sys/block/nvme0n1/holders/bcache0/x", "");
    assert_eq!(host.holder(DISK), Holder::OtherDevice("bcache0".into()));

    let host = Host::new();
    host.write("proc/swaps", "Filename Type Size Used Priority\n/dev/nvme0n1p1 partition 1 0 -2\n");
    assert_eq!(host.holder(DISK), Holder::Swap);
    assert!(host.holder(DISK).is_lasting());

    // A file under a loop device, and one that another process has open.
    let host = Host::new();
    host.write("drive.img", "");
    let path = host.dir.path().join("drive.img");
    let kind = kind_of(&fs::metadata(&path).unwrap()).unwrap();
    assert_eq!(find(&host.roots, &path, kind), Holder::Unknown);
    host.link("proc/4711/fd/3", &path.display().to_string());
    host.write("proc/4711/comm", "qemu\n");
    let process = Holder::Process { pid: 4711, name: "qemu".into() };
    assert_eq!(find(&host.roots, &path, kind), process);
    host.write("sys/block/loop7/loop/backing_file", &format!("{}\n", path.display()));
    assert_eq!(find(&host.roots, &path, kind), Holder::Loop("loop7".into()));
}
