//! Opening a drive: taking it, measuring it, and reading and writing metadata on it.

use super::aligned::AlignedBuffer;
use super::holder::{self, Holder, kind_of};
use super::identity::{Identity, Kind, Roots, read_text, sys_path, whole_disk};
use super::vanished::has_vanished;
use super::{DeviceError, Medium};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a drive is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// To look at it: read-only, shared with whoever has it, holding nothing.
    Examine,
    /// To own it: read and write, nobody else.
    Own,
}

/// How long to wait for a predecessor that still holds the drive, and whom to tell.
pub struct Patience<'a> {
    /// At most so long.
    pub limit: Duration,
    /// Called once, when the waiting begins, with a sentence.
    pub notify: &'a mut dyn FnMut(&str),
}

/// How often a held drive is tried again.
const RETRY: Duration = Duration::from_millis(50);

/// How long udev may look at a block device.
const UDEV_LIMIT: Duration = Duration::from_secs(1);

/// How long a process that is alive may take to release a drive.
const LIVING_LIMIT: Duration = Duration::from_secs(5);

/// The largest block that superblocks and headers can be written in.
const MAX_BLOCK_BYTES: u64 = 4096;

/// The largest single read of metadata.
const MAX_TRANSFER_BYTES: usize = 1 << 20;

/// The descriptors that I/O uses; as long as one clone exists the drive is owned.
#[derive(Debug, Clone)]
pub struct Descriptors {
    /// Reads, and writes that a later flush makes durable.
    pub io: Arc<OwnedFd>,
    /// Writes that are durable on completion (`O_DSYNC`). The same as `io` where the
    /// drive was opened to be examined.
    pub dsync: Arc<OwnedFd>,
}

/// A drive that is open.
#[derive(Debug)]
pub struct OpenDevice {
    identity: Identity,
    descriptors: Descriptors,
    size_bytes: u64,
    logical_block_bytes: u32,
    physical_block_bytes: u32,
    memory_alignment_bytes: u32,
    volatile_cache: bool,
    rotational: bool,
}

/// Opens a drive without waiting for anybody (but udev, which looks at a block device
/// for a moment whenever it appears or was written to).
///
/// # Errors
/// Says what is wrong with the drive, or who has it.
pub fn open(path: &Path, intent: Intent) -> Result<OpenDevice, DeviceError> {
    let limit = match find(path)? {
        Kind::Block { .. } => UDEV_LIMIT,
        Kind::File { .. } => Duration::ZERO,
    };
    open_patiently(path, intent, Patience { limit, notify: &mut |_| {} })
}

/// Opens a drive; while another process has it (a predecessor that was killed and whose
/// requests are still in the kernel), tries again until the time is up.
///
/// # Errors
/// Says what is wrong with the drive, or who has it.
pub fn open_patiently(
    path: &Path,
    intent: Intent,
    patience: Patience<'_>,
) -> Result<OpenDevice, DeviceError> {
    let roots = Roots::default();
    let start = Instant::now();
    let mut told = false;
    loop {
        let kind = find(path)?;
        let taken = match intent {
            Intent::Examine => take_shared(path, kind)?,
            Intent::Own => take(&roots, path, kind)?,
        };
        let holder = match taken {
            Attempt::Taken(descriptors) => return measure(&roots, path, kind, descriptors),
            Attempt::Held => holder::find(&roots, path, kind),
            Attempt::HeldBy(holder) => holder,
        };
        // Of a killed process no descriptor is seen any more while its last requests are in the
        // kernel; one that is seen to have the drive open lives, or is about to be gone.
        let limit = match holder {
            Holder::Process { .. } => patience.limit.min(LIVING_LIMIT),
            _ => patience.limit,
        };
        if holder.is_lasting() || start.elapsed() >= limit {
            return Err(DeviceError::Busy { path: path.to_owned(), holder });
        }
        if !told {
            let seconds = limit.as_secs_f32();
            (patience.notify)(&format!(
                "{}: still held by {holder}; waiting up to {seconds:.0} s for its last requests",
                path.display()
            ));
            told = true;
        }
        std::thread::sleep(RETRY);
    }
}

enum Attempt {
    Taken(Descriptors),
    Held,
    HeldBy(Holder),
}

fn io_error(path: &Path, doing: &'static str, source: impl Into<io::Error>) -> DeviceError {
    DeviceError::Io { path: path.to_owned(), doing, source: source.into() }
}

fn find(path: &Path) -> Result<Kind, DeviceError> {
    let meta = fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => DeviceError::NotFound { path: path.to_owned() },
        io::ErrorKind::PermissionDenied => DeviceError::Permission { path: path.to_owned() },
        _ => io_error(path, "looking it up", e),
    })?;
    kind_of(&meta).ok_or_else(|| DeviceError::NotADrive {
        path: path.to_owned(),
        what: if meta.is_dir() { "a directory" } else { "a character device, socket or pipe" },
    })
}

fn open_error(path: &Path, errno: Errno) -> DeviceError {
    let path_buf = path.to_owned();
    match errno {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => DeviceError::NotFound { path: path_buf },
        Errno::ACCESS | Errno::PERM => DeviceError::Permission { path: path_buf },
        Errno::ROFS => DeviceError::ReadOnly { path: path_buf },
        Errno::INVAL => DeviceError::NoDirectIo { path: path_buf },
        other => io_error(path, "opening it", other),
    }
}

/// Opened to be read, whoever has it.
fn take_shared(path: &Path, kind: Kind) -> Result<Attempt, DeviceError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT;
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::BUSY) => return Ok(Attempt::Held),
        Err(errno) => return Err(open_error(path, errno)),
    };
    still_the_same(path, &fd, kind)?;
    let io = Arc::new(fd);
    Ok(Attempt::Taken(Descriptors { dsync: Arc::clone(&io), io }))
}

/// Taken as the module's head tells.
fn take(roots: &Roots, path: &Path, kind: Kind) -> Result<Attempt, DeviceError> {
    let mut flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
    if matches!(kind, Kind::Block { .. }) {
        flags |= OFlags::EXCL;
    }
    let io = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::BUSY | Errno::TXTBSY) => return Ok(Attempt::Held),
        Err(errno) => return Err(open_error(path, errno)),
    };
    still_the_same(path, &io, kind)?;
    if let Some(holder) = holder::loop_over(roots, path, kind) {
        return Ok(Attempt::HeldBy(holder));
    }
    if !lock(path, &io, FlockOperation::NonBlockingLockExclusive)? {
        return Ok(Attempt::Held);
    }
    let again = format!("{}/self/fd/{}", roots.proc.display(), io.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT | OFlags::DSYNC;
    let dsync = rustix::fs::open(again, flags, Mode::empty())
        .map_err(|e| DeviceError::Reopen { path: path.to_owned(), source: e.into() })?;
    // Turning the lock into a shared one lets go of it for a moment. Who gets in then
    // holds it exclusively, and our own attempt fails.
    let held = lock(path, &io, FlockOperation::NonBlockingLockShared)?
        && lock(path, &dsync, FlockOperation::NonBlockingLockShared)?;
    if !held {
        return Ok(Attempt::Held);
    }
    Ok(Attempt::Taken(Descriptors { io: Arc::new(io), dsync: Arc::new(dsync) }))
}

fn lock(path: &Path, fd: &OwnedFd, operation: FlockOperation) -> Result<bool, DeviceError> {
    loop {
        match rustix::fs::flock(fd, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(io_error(path, "locking it", errno)),
        }
    }
}

/// The path may have been given to another device since it was looked up.
fn still_the_same(path: &Path, fd: &OwnedFd, kind: Kind) -> Result<(), DeviceError> {
    let stat = rustix::fs::fstat(fd).map_err(|e| io_error(path, "looking at it", e))?;
    let same = match kind {
        Kind::Block { major, minor } => {
            let (now_major, now_minor) =
                (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
            (now_major, now_minor) == (major, minor)
        }
        Kind::File { device, inode } => (stat.st_dev, stat.st_ino) == (device, inode),
    };
    if same {
        return Ok(());
    }
    let changed = io::Error::other("the path changed its meaning meanwhile");
    Err(io_error(path, "opening it", changed))
}

fn measure(
    roots: &Roots,
    path: &Path,
    kind: Kind,
    descriptors: Descriptors,
) -> Result<OpenDevice, DeviceError> {
    let fd = &descriptors.io;
    let size = rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0))
        .map_err(|e| io_error(path, "finding its size", e))?;
    let dio = direct_alignment(fd);
    let sys = match kind {
        Kind::Block { major, minor } => sys_path(roots, major, minor).map(|p| whole_disk(&p)),
        Kind::File { .. } => None,
    };
    let queue = |file: &str| read_text(&sys.as_ref()?.join("queue").join(file));
    let (logical, physical) = match kind {
        Kind::Block { .. } => {
            let logical = rustix::fs::ioctl_blksszget(fd)
                .map_err(|e| io_error(path, "finding its block size", e))?;
            let physical = rustix::fs::ioctl_blkpbszget(fd).unwrap_or(logical);
            (logical.max(dio.map_or(0, |(_, offset)| offset)), physical)
        }
        // Where the file system does not say, every one takes multiples of 4096.
        Kind::File { .. } => {
            let logical = dio.map_or(4096, |(_, offset)| offset.max(512));
            (logical, logical.max(4096))
        }
    };
    if dio == Some((0, 0)) && matches!(kind, Kind::File { .. }) {
        return Err(DeviceError::NoDirectIo { path: path.to_owned() });
    }
    if !logical.is_power_of_two() || u64::from(logical) > MAX_BLOCK_BYTES {
        return Err(DeviceError::BlockSize { path: path.to_owned(), bytes: logical.into() });
    }
    Ok(OpenDevice {
        identity: Identity::look_up(roots, path, kind),
        size_bytes: size - size % u64::from(logical),
        logical_block_bytes: logical,
        physical_block_bytes: physical,
        memory_alignment_bytes: dio.map_or(logical, |(memory, _)| memory.max(1)),
        // What is not known may lose what it has not flushed.
        volatile_cache: queue("write_cache").is_none_or(|mode| mode != "write through"),
        rotational: queue("rotational").is_some_and(|flag| flag == "1"),
        descriptors,
    })
}

/// What direct I/O needs of memory and of offsets, in bytes; None if the kernel does not
/// say (before 6.1). Zeros: it cannot be done.
fn direct_alignment(fd: &OwnedFd) -> Option<(u32, u32)> {
    // STATX_DIOALIGN.
    let wanted = StatxFlags::from_bits_retain(0x2000);
    let stat = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, wanted).ok()?;
    let known = stat.stx_mask & wanted.bits() != 0;
    known.then_some((stat.stx_dio_mem_align, stat.stx_dio_offset_align))
}

impl OpenDevice {
    /// The drive's names.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// As the operator gave it.
    #[must_use]
    pub fn path(&self) -> &PathBuf {
        &self.identity.path
    }

    /// What an error of the kernel means for this drive.
    fn error(&self, errno: Errno) -> io::Error {
        let may_be_gone = matches!(errno, Errno::NOSPC | Errno::IO);
        if may_be_gone && has_vanished(&self.descriptors.io, self.size_bytes) {
            return Errno::NODEV.into();
        }
        errno.into()
    }

    /// The descriptors for I/O.
    #[must_use]
    pub fn descriptors(&self) -> Descriptors {
        self.descriptors.clone()
    }

    /// The unit that offsets and lengths must be multiples of: the logical block, or
    /// what direct I/O on the file needs. At most 4096.
    #[must_use]
    pub fn logical_block_bytes(&self) -> u32 {
        self.logical_block_bytes
    }

    /// The unit that the drive writes without reading it first.
    #[must_use]
    pub fn physical_block_bytes(&self) -> u32 {
        self.physical_block_bytes
    }

    /// What the address of a buffer must be a multiple of.
    #[must_use]
    pub fn memory_alignment_bytes(&self) -> u32 {
        self.memory_alignment_bytes
    }

    /// Whether completed writes may be lost with the power until they are flushed.
    #[must_use]
    pub fn has_volatile_cache(&self) -> bool {
        self.volatile_cache
    }

    /// Whether it has platters.
    #[must_use]
    pub fn is_rotational(&self) -> bool {
        self.rotational
    }

    fn check_range(&self, offset_bytes: u64, len: usize) -> io::Result<()> {
        let end = offset_bytes.checked_add(len as u64);
        if end.is_some_and(|end| end <= self.size_bytes) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the drive"))
    }
}

impl Medium for OpenDevice {
    fn name(&self) -> String {
        self.identity.to_string()
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check_range(offset_bytes, buf.len())?;
        let block = u64::from(self.logical_block_bytes);
        let lead = (offset_bytes % block) as usize;
        let mut at = offset_bytes - lead as u64;
        let mut skip = lead;
        let mut rest = buf;
        while !rest.is_empty() {
            let take = rest.len().min(MAX_TRANSFER_BYTES - skip);
            let len = (skip + take).next_multiple_of(block as usize);
            let mut bounce = AlignedBuffer::zeroed(len);
            read_full(self.descriptors.io.as_fd(), &mut bounce, at)?;
            let (now, later) = rest.split_at_mut(take);
            if let Some(from) = bounce.get(skip..skip + take) {
                now.copy_from_slice(from);
            }
            at += (skip + take) as u64;
            skip = 0;
            rest = later;
        }
        Ok(())
    }

    fn write_durable(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        self.check_range(offset_bytes, data.len())?;
        let mut at = offset_bytes;
        for piece in data.chunks(MAX_TRANSFER_BYTES) {
            let mut bounce = AlignedBuffer::zeroed(piece.len());
            bounce.copy_from_slice(piece);
            let mut rest: &[u8] = &bounce;
            while !rest.is_empty() {
                match rustix::io::pwrite(&self.descriptors.dsync, rest, at) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(n) => {
                        at += n as u64;
                        rest = rest.get(n..).unwrap_or_default();
                    }
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(self.error(errno)),
                }
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        rustix::fs::fdatasync(&self.descriptors.io).map_err(|errno| self.error(errno))
    }

    fn zero_cheaply(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<bool> {
        if !matches!(self.identity.kind, Kind::File { .. }) {
            return Ok(false);
        }
        // A sparse file stays sparse, and one whose space is reserved keeps it.
        let stat = rustix::fs::fstat(&self.descriptors.io)?;
        let reserved = u64::try_from(stat.st_blocks).unwrap_or(0) * 512 >= self.size_bytes;
        let how = if reserved { FallocateFlags::ZERO_RANGE } else { FallocateFlags::PUNCH_HOLE };
        let flags = how | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.descriptors.io, flags, offset_bytes, len_bytes) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
        rustix::fs::fsync(&self.descriptors.io)?;
        Ok(true)
    }
}

fn read_full(fd: impl AsFd + Copy, buf: &mut [u8], offset_bytes: u64) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(fd, rest, offset_bytes + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
