//! An assembled array as the drive of another: how arrays on arrays find their metadata, as md's do,
//! at the beginning of the arrays below.
//!
//! It is read and written through the engine itself, on this thread, by drives that answer at once:
//! so members may be missing, blocks bad and copies unequal, and a write keeps copies and parity
//! right, is preceded by "active" and by what the write intent asks for, and followed by "clean"
//! ([`Nested::close`]). For before data cores use the array, and after its logs were replayed.
//!
//! Nothing is decided here about members: a write that would lose one fails instead, and nothing is
//! recorded.
//!
//! [`peek`] reads what an array that is not ours holds, and writes nothing at all.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use thiserror::Error;

use super::error::AssembleError;
use super::examine::{Examined, examine_medium};
use super::handle::{ArrayHandle, Member};
use super::plan::{AssemblyPlan, SlotPlan};
use crate::array::{
    Array, ArrayError, IN_SYNC, IntentLayout, Keeper, MemberState, Settings, SetupError, Shared,
};
use crate::buffer::{Buffer, Pool, SharedBuffer};
use crate::device::Medium;
use crate::drive::{Drive, DriveError, ReadFailure};
use crate::geometry::GeometryError;
use crate::mesh::Mesh;

/// The unit in which it is read and written; any drive's blocks divide it.
const BLOCK_BYTES: u64 = 4096;

/// What is read or written at a time.
const PIECE_BYTES: u64 = 256 << 10;

/// Memory for that.
const MEMORY_BYTES: usize = 8 << 20;
/// The longest piece of it.
const MEMORY_BLOCK_BYTES: usize = 1 << 20;

/// Why an array cannot be used as a drive.
#[derive(Debug, Error)]
pub enum NestedError {
    /// No shape that the engine has.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Drives and shape do not fit together.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// What is read now may be another thing than afterwards.
    #[error("a member is missing, and its log has to be replayed before it is read")]
    AwaitsReplay,
    /// No memory.
    #[error("no memory to read it with: {0}")]
    Memory(io::Error),
    /// It was read, and could not be.
    #[error(transparent)]
    Examine(#[from] AssembleError),
}

/// The metadata of an array, shared with whoever has it.
type Handle<M> = Arc<Mutex<ArrayHandle<M>>>;

fn lock<M>(handle: &Mutex<ArrayHandle<M>>) -> MutexGuard<'_, ArrayHandle<M>> {
    handle.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the file's head.
pub struct Nested<M> {
    name: String,
    handle: Handle<M>,
    shared: Arc<Shared>,
    array: Array<AtOnce<M>>,
    pool: Pool,
}

impl<M: Medium> Nested<M> {
    /// An array that is ours, whose logs were replayed, and whose write intent is here. Writes
    /// nothing.
    ///
    /// # Errors
    /// If the engine cannot have such an array.
    pub fn open(handle: Handle<M>, intent: IntentLayout) -> Result<Self, NestedError> {
        let guard = lock(&handle);
        let info = guard.info();
        let geometry = info.engine_geometry()?;
        let name = format!("array {}", info.short_name());
        let recorded = guard.recorded();
        let slots = || 0..geometry.members();
        let offset = |slot| guard.member(slot).map_or(0, Member::data_offset_bytes);
        let shared = Shared::new(Settings {
            uuid: info.uuid.into_bytes(),
            data_offsets_bytes: slots().map(offset).collect(),
            active: false,
            resync_position_bytes: guard.resync_from_bytes().unwrap_or(IN_SYNC),
            members: recorded.members.clone(),
            rebuild_from: recorded.rebuild_from,
            bad_blocks: recorded.bad_blocks.clone(),
            intent,
            keeper: Arc::new(Later),
            ..Settings::new(geometry)
        });
        let drive = |slot| {
            let size_bytes = guard.member(slot)?.medium().size_bytes();
            Some(AtOnce { handle: Arc::clone(&handle), slot, size_bytes })
        };
        let drives = slots().map(drive).collect();
        drop(guard);
        let pool = Pool::new(MEMORY_BYTES, MEMORY_BLOCK_BYTES).map_err(NestedError::Memory)?;
        // One core calls nobody, so that nobody has to be woken.
        let endpoint = Rc::new(Mesh::new(1, Arc::new(|_| {})).remove(0));
        let array = Array::with_slots(Arc::clone(&shared), drives, endpoint, pool.clone())?;
        Ok(Self { name, handle, shared, array, pool })
    }

    /// Whether a member is missing or being rebuilt.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.shared.is_degraded()
    }

    /// Ends it: what was written is flushed, and the array below marked clean again. Says whether
    /// anything was written: then its logs have to be emptied, and its write intent looked up anew.
    ///
    /// # Errors
    /// The array's; its superblocks may say "active" still.
    pub fn close(self) -> io::Result<bool> {
        if self.shared.writes_begun() == 0 {
            return Ok(false);
        }
        self.run(self.array.flush())?;
        self.run(async {
            self.array.clear_intent().await;
            Ok(())
        })?;
        self.shared.stop_writes();
        self.shared.try_clean();
        while self.record()? {}
        Ok(true)
    }

    /// Does something that the engine does, and meanwhile records what it wants to be recorded.
    fn run<T>(&self, work: impl Future<Output = Result<T, ArrayError>>) -> io::Result<T> {
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&flag));
        let mut work = pin!(work);
        loop {
            flag.0.store(false, Ordering::Relaxed);
            if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
                return done.map_err(io::Error::other);
            }
            if !flag.0.load(Ordering::Relaxed) && !self.record()? {
                return Err(io::Error::other("the array waits for something that never comes"));
            }
        }
    }

    /// Records what is wanted; false if that is recorded.
    fn record(&self) -> io::Result<bool> {
        let wanted = self.shared.wanted();
        if wanted.version <= self.shared.recorded_version() {
            return Ok(false);
        }
        let mut handle = lock(&self.handle);
        let before = &handle.recorded().members;
        let slots = wanted.members.iter().zip(before).enumerate();
        let lost = |(_, (now, before)): &(usize, (&MemberState, &MemberState))| now != before;
        if let Some((slot, _)) = slots.into_iter().find(lost) {
            let fault = self.shared.member_fault(slot);
            let why = fault.map_or_else(|| "it has failed".to_owned(), |fault| fault.to_string());
            let name = handle.member(slot).map_or_else(String::new, |one| one.medium().name());
            return Err(io::Error::other(format!("member {slot} ({name}): {why}")));
        }
        let recorded = handle.record(&wanted).map_err(io::Error::other)?;
        drop(handle);
        self.shared.recorded_events(&wanted, recorded.events);
        self.shared.recorded(wanted.version);
        Ok(true)
    }

    fn buffer(&self, len_bytes: u64) -> io::Result<Buffer> {
        let buffer = self.pool.allocate(usize::try_from(len_bytes).unwrap_or(usize::MAX));
        buffer.ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn check(&self, offset_bytes: u64, len: usize) -> io::Result<()> {
        let end_bytes = offset_bytes.checked_add(len as u64);
        match end_bytes.is_some_and(|end| end <= self.size_bytes()) {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// What is wanted is looked for whenever an operation does not end.
struct Later;

impl Keeper for Later {
    fn wake(&self) {}
}

/// Set when somebody has been woken.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<M: Medium> Medium for Nested<M> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn size_bytes(&self) -> u64 {
        let capacity_bytes = self.array.geometry().capacity_bytes();
        capacity_bytes - capacity_bytes % BLOCK_BYTES
    }

    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(offset_bytes, buf.len())?;
        let mut at = offset_bytes;
        let mut rest = buf;
        while !rest.is_empty() {
            let begin = at - at % BLOCK_BYTES;
            let within = (at - begin) as usize;
            let wanted = (within as u64 + rest.len() as u64).min(PIECE_BYTES);
            let buffer = self.buffer(wanted.next_multiple_of(BLOCK_BYTES))?;
            let read =
                async { self.array.read(begin, buffer).await.map_err(|unread| unread.error) };
            let read = self.run(read)?;
            let (part, after) = rest.split_at_mut(wanted as usize - within);
            part.copy_from_slice(&read[within..within + part.len()]);
            at += part.len() as u64;
            rest = after;
        }
        Ok(())
    }

    fn write_durable(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        self.check(offset_bytes, data.len())?;
        let mut at = offset_bytes;
        for part in data.chunks(PIECE_BYTES as usize) {
            let mut buffer = self.buffer(part.len() as u64)?;
            buffer.copy_from_slice(part);
            self.run(self.array.write(at, buffer.freeze(), true))?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.run(self.array.flush())
    }

    fn zero_cheaply(&self, _offset_bytes: u64, _len_bytes: u64) -> io::Result<bool> {
        Ok(false)
    }
}

/// A member's drive, on which every operation ends at once.
struct AtOnce<M> {
    handle: Handle<M>,
    slot: usize,
    size_bytes: u64,
}

impl<M: Medium> AtOnce<M> {
    fn with(&self, act: impl FnOnce(&M) -> io::Result<()>) -> Result<(), DriveError> {
        let handle = lock(&self.handle);
        let member = handle.member(self.slot).ok_or(DriveError::Gone)?;
        const EIO: i32 = 5;
        act(member.medium())
            .map_err(|error| DriveError::from_errno(error.raw_os_error().unwrap_or(EIO)))
    }
}

impl<M: Medium> Drive for AtOnce<M> {
    async fn read(&self, offset_bytes: u64, mut buffer: Buffer) -> Result<Buffer, ReadFailure> {
        match self.with(|medium| medium.read_at(offset_bytes, &mut buffer)) {
            Ok(()) => Ok(buffer),
            Err(error) => Err(ReadFailure::new(error, buffer)),
        }
    }

    async fn write(
        &self,
        offset_bytes: u64,
        data: SharedBuffer,
        _fua: bool,
    ) -> Result<(), DriveError> {
        self.with(|medium| medium.write_durable(offset_bytes, &data))
    }

    async fn flush(&self) -> Result<(), DriveError> {
        self.with(Medium::flush)
    }

    async fn write_zeroes(&self, _: u64, _: u64, _: bool) -> Result<(), DriveError> {
        Err(DriveError::Unsupported)
    }

    fn has_volatile_cache(&self) -> bool {
        false
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn block_size_bytes(&self) -> u32 {
        BLOCK_BYTES as u32
    }
}

/// What an array holds at its own beginning: whether it is the member of another. The plan is one
/// of these drives; nothing is written, and nobody need own them.
///
/// # Errors
/// If it cannot be read; or not yet, as a member is missing and parity is not known to be right where
/// a log has to be replayed first.
pub fn peek<M: Medium>(
    plan: &AssemblyPlan,
    drives: &[Examined],
    media: &[M],
) -> Result<Examined, NestedError> {
    let is_in_sync = |slot: &SlotPlan| slot.state == MemberState::InSync;
    if plan.replay && !plan.slots.iter().all(is_in_sync) {
        return Err(NestedError::AwaitsReplay);
    }
    let media = media.iter().map(Untouched).collect();
    let (handle, _) = ArrayHandle::assemble(plan, drives, media);
    let nested = Nested::open(Arc::new(Mutex::new(handle)), IntentLayout::NONE)?;
    Ok(examine_medium(&nested)?)
}

/// A drive that takes writes and forgets them.
struct Untouched<'a, M>(&'a M);

impl<M: Medium> Medium for Untouched<'_, M> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset_bytes, buf)
    }

    fn write_durable(&self, _offset_bytes: u64, _data: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn zero_cheaply(&self, _offset_bytes: u64, _len_bytes: u64) -> io::Result<bool> {
        Ok(false)
    }
}
