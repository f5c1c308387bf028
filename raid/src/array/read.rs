//! Reads: on the core where they arrive, straight from a member; and on the shard's owner, where
//! that does not do.
//!
//! A read takes one good member and compares the epoch again when it has ended; if that has
//! changed, it is done again. What cannot be read so goes to the owner of its shard:
//! * after a read error: the owner reads again under the range's lock, answers from another copy
//!   if need be, and writes that back where it could not be read;
//! * where no copy is readable as a whole (members lost, bad blocks): block by block;
//! * where copies may not agree: the owner answers one of them and has written it over all others
//!   before, so that no later read sees another value.

use super::error::{ArrayError, Unread};
use super::fan::fan_out;
use super::slots::SlotSet;
use super::write::{Armed, Outcome, Work};
use super::{Answer, Array};
use crate::buffer::{Buffer, Pool, SharedBuffer};
use crate::drive::{Drive, DriveError, ReadFailure};
use crate::geometry::{Extent, Place};
use crate::mutation::mutation;

/// A read that continues a stream may find this many more reads under way on its drive than on
/// another before it moves there.
const STREAM_BONUS: u32 = 4;

/// What a read is told that no member can answer: EIO.
const UNREADABLE: DriveError = DriveError::Io { errno: 5 };

impl<D: Drive> Array<D> {
    /// Reads `buffer.len()` bytes at `offset_bytes`. Must not be dropped before it ends.
    ///
    /// # Errors
    /// `OutOfRange`; `ReadFailed` or `Unrecovered` if no member can answer; `NotReady`. The buffer
    /// comes back with the error unless a drive that did not answer in time still has it; its
    /// contents mean nothing then.
    pub async fn read(&self, offset_bytes: u64, buffer: Buffer) -> Result<Buffer, Unread> {
        let len_bytes = buffer.len();
        if let Err(error) = self.check_range(offset_bytes, len_bytes as u64) {
            return Err(Unread::new(error, buffer));
        }
        self.shared.count_read(self.endpoint.core());
        let mut buffer = buffer;
        loop {
            let mends = self.shared.mends();
            let unread = match self.read_once(offset_bytes, buffer).await {
                Ok(buffer) => return Ok(buffer),
                Err(unread) => unread,
            };
            if let Err(error) = Box::pin(self.held(unread.error, mends)).await {
                return Err(Unread { error, ..unread });
            }
            // The array was mended.
            buffer = match unread.buffer {
                Some(buffer) => buffer,
                None => self.replacement(len_bytes)?,
            };
        }
    }

    async fn read_once(&self, offset_bytes: u64, buffer: Buffer) -> Result<Buffer, Unread> {
        let len_bytes = buffer.len() as u64;
        let geometry = self.shared.geometry();
        let mut extents = geometry.extents(offset_bytes, len_bytes);
        let count = geometry.extent_count(offset_bytes, len_bytes) as usize;
        if count <= 1 {
            return match extents.next() {
                Some(extent) => self.read_extent(offset_bytes, extent, buffer).await,
                None => Ok(buffer),
            };
        }
        // Each extent reads into its own part of the buffer; the parts are joined again in order.
        let mut rest = buffer;
        let parts = extents.map(|extent| {
            let tail = rest.split_off(extent.len_bytes as usize);
            let part = std::mem::replace(&mut rest, tail);
            self.read_extent(offset_bytes + extent.position_bytes, extent, part)
        });
        let mut joined = Joined::default();
        fan_out(count, parts, |part| joined.add(part)).await;
        joined.end(len_bytes as usize, &self.pool)
    }

    /// Reads a range that is contiguous on its members.
    pub(super) async fn read_extent(
        &self,
        offset_bytes: u64,
        extent: Extent,
        mut buffer: Buffer,
    ) -> Result<Buffer, Unread> {
        loop {
            let epoch = self.shared.epoch();
            let Some(place) = self.choose(offset_bytes, &extent) else {
                // Rare, so boxed to keep every read's future small; likewise below.
                return Box::pin(self.read_on_owners(offset_bytes, buffer, None)).await;
            };
            let Some(member) = self.member(place.slot) else {
                let failure = ReadFailure::new(DriveError::Gone, buffer);
                return Box::pin(self.read_failed(offset_bytes, &extent, place, failure)).await;
            };
            let under_way = member.begin_read(place.offset_bytes, buffer.len());
            let (drive, offset_bytes_there) = member.drive_at(place.offset_bytes);
            let result = drive.read(offset_bytes_there, buffer).await;
            drop(under_way);
            let is_current = self.shared.epoch() == epoch || mutation!("no-epoch-check-after-read");
            match result {
                Ok(read) if is_current => return Ok(read),
                // The member may have missed a write meanwhile that was acknowledged.
                Ok(read) => buffer = read,
                Err(failure) => {
                    self.not_read(place.slot, &member, failure.error);
                    return Box::pin(self.read_failed(offset_bytes, &extent, place, failure)).await;
                }
            }
        }
    }

    /// The place to read an extent from; none if only its owner can answer.
    ///
    /// It is the copy on the drive with the fewest reads of this core under way, with some
    /// preference for the drive that has just read what is right before. Equal ones take turns by
    /// shard.
    pub(super) fn choose(&self, offset_bytes: u64, extent: &Extent) -> Option<Place> {
        let end_bytes = offset_bytes + extent.len_bytes;
        let is_readable = |place: &Place| self.is_readable(*place, extent.len_bytes, end_bytes);
        if extent.copies == 1 {
            return Some(extent.place(0)).filter(is_readable);
        }
        let agrees = self.agrees(&(offset_bytes..end_bytes));
        if !agrees && !mutation!("read-dirty-beside-owner") {
            return None;
        }
        let start = (self.shared.geometry().shard_of(offset_bytes) % extent.copies as u64) as usize;
        let cost = |place: &Place| {
            self.members[place.slot].borrow().as_ref().map_or(u32::MAX, |member| {
                let continues = member.continues_stream(place.offset_bytes);
                member.reads_under_way() + if continues { 0 } else { STREAM_BONUS }
            })
        };
        let copies = (start..extent.copies).chain(0..start);
        copies.map(|copy| extent.place(copy)).filter(is_readable).min_by_key(cost)
    }

    /// A member did not read an extent.
    async fn read_failed(
        &self,
        offset_bytes: u64,
        extent: &Extent,
        place: Place,
        failure: ReadFailure,
    ) -> Result<Buffer, Unread> {
        let ReadFailure { error, buffer } = failure;
        if !self.has_redundancy() {
            return Err(Unread {
                error: ArrayError::ReadFailed { slot: place.slot, error },
                buffer,
            });
        }
        let buffer = match buffer {
            Some(buffer) => buffer,
            None => self.replacement(extent.len_bytes as usize)?,
        };
        self.read_on_owners(offset_bytes, buffer, Some(place.slot)).await
    }

    /// A buffer in place of one that a drive has kept.
    pub(super) fn replacement(&self, len_bytes: usize) -> Result<Buffer, Unread> {
        let missing = Unread { error: ArrayError::NotReady, buffer: None };
        self.pool.allocate(len_bytes).ok_or(missing)
    }

    /// Has the owners of a range's shards read it. A read of it from the member in `failed` has
    /// failed.
    async fn read_on_owners(
        &self,
        offset_bytes: u64,
        buffer: Buffer,
        failed: Option<usize>,
    ) -> Result<Buffer, Unread> {
        let geometry = self.shared.geometry();
        if !self.has_redundancy() {
            let slot = geometry.extents(offset_bytes, buffer.len() as u64).next();
            let slot = slot.map_or(0, |extent| extent.place(0).slot);
            return Err(Unread::new(ArrayError::ReadFailed { slot, error: UNREADABLE }, buffer));
        }
        let len_bytes = buffer.len();
        let mut joined = Joined::default();
        let mut at = offset_bytes;
        let mut rest = Some(buffer);
        while let Some(mut part) = rest.take() {
            let (len, shard) = geometry.first_shard(at, part.len() as u64);
            if len < part.len() as u64 {
                rest = Some(part.split_off(len as usize));
            }
            let work = Work::Read { offset_bytes: at, buffer: part, failed };
            let Answer { result, buffer } = self.on_owner(shard, work).await;
            joined.add(match (result, buffer) {
                (Ok(()), Some(buffer)) => Ok(buffer),
                (result, buffer) => {
                    Err(Unread { error: result.err().unwrap_or(ArrayError::NotReady), buffer })
                }
            });
            at += len;
        }
        joined.end(len_bytes, &self.pool)
    }
}

/// Parts of a buffer, joined again in order.
#[derive(Default)]
pub(super) struct Joined {
    whole: Option<Buffer>,
    /// Those from the first one on that is in a buffer of its own.
    others: Vec<Buffer>,
    error: Option<ArrayError>,
}

impl Joined {
    pub(super) fn add(&mut self, part: Result<Buffer, Unread>) {
        let part = match part {
            Ok(part) => Some(part),
            Err(unread) => {
                self.error = self.error.or(Some(unread.error));
                unread.buffer
            }
        };
        let Some(part) = part else { return };
        match &mut self.whole {
            None => self.whole = Some(part),
            Some(whole) if self.others.is_empty() => {
                self.others.extend(whole.unsplit(part).err());
            }
            Some(_) => self.others.push(part),
        }
    }

    /// The whole of `len_bytes`; if a part of it is in a buffer of its own, in a new one from
    /// `pool`.
    pub(super) fn end(self, len_bytes: usize, pool: &Pool) -> Result<Buffer, Unread> {
        let Self { whole, others, error } = self;
        let is_whole = |buffer: &Buffer| others.is_empty() && buffer.len() == len_bytes;
        if let Some(error) = error {
            return Err(Unread { error, buffer: whole.filter(is_whole) });
        }
        match whole {
            Some(whole) if is_whole(&whole) => Ok(whole),
            whole => {
                let none = Unread { error: ArrayError::NotReady, buffer: None };
                let mut copy = pool.allocate(len_bytes).ok_or(none)?;
                let mut at = 0;
                for part in whole.iter().chain(&others) {
                    copy[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
                debug_assert_eq!(at, len_bytes);
                Ok(copy)
            }
        }
    }
}

/// On the owner.
impl<D: Drive> Array<D> {
    /// Reads a range within a shard, on its owner; see the file's head.
    pub(super) async fn read_piece(
        &self,
        offset_bytes: u64,
        buffer: Buffer,
        failed: Option<usize>,
    ) -> Result<Buffer, Unread> {
        if self.stripe.is_some() {
            return self.stripe_read(offset_bytes, buffer).await;
        }
        let geometry = self.shared.geometry();
        let end_bytes = offset_bytes + buffer.len() as u64;
        let lock = self.locks.enter(geometry.shard_of(offset_bytes), offset_bytes..end_bytes);
        if !mutation!("repair-without-lock") {
            lock.held().await;
        }
        let mut joined = Joined::default();
        let mut rest = buffer;
        for extent in geometry.extents(offset_bytes, end_bytes - offset_bytes) {
            let tail = rest.split_off(extent.len_bytes as usize);
            let part = std::mem::replace(&mut rest, tail);
            let at = offset_bytes + extent.position_bytes;
            joined.add(self.read_and_mend(at, &extent, part, failed).await);
        }
        drop(lock);
        joined.end((end_bytes - offset_bytes) as usize, &self.pool)
    }

    /// Reads an extent from the copies that there are, and writes what was read where it could not
    /// be read; over all other copies, if they need not agree. The range is held.
    async fn read_and_mend(
        &self,
        offset_bytes: u64,
        extent: &Extent,
        buffer: Buffer,
        failed: Option<usize>,
    ) -> Result<Buffer, Unread> {
        let end_bytes = offset_bytes + extent.len_bytes;
        let agrees = self.agrees(&(offset_bytes..end_bytes));
        let (mut buffer, mut wrong, mut last) = (buffer, SlotSet::EMPTY, None);
        // First the one that has failed: it may have been for this once.
        let copies = || (0..extent.copies).map(|copy| extent.place(copy));
        let again = copies().filter(|place| agrees && Some(place.slot) == failed);
        let others = copies().filter(|place| !agrees || Some(place.slot) != failed);
        for place in again.chain(others) {
            // What a member that is being rebuilt holds is a copy of another, and nobody's choice
            // where copies differ.
            let is_copy = !agrees && self.map().rebuilding.contains(place.slot);
            if is_copy || !self.is_readable(place, extent.len_bytes, end_bytes) {
                continue;
            }
            match self.read_member(place, buffer).await {
                // It may have lost writes that it had acknowledged.
                Ok(read) if !self.is_readable(place, extent.len_bytes, end_bytes) => buffer = read,
                Ok(read) => {
                    return self.mended(offset_bytes, extent, place, read, wrong, agrees).await;
                }
                Err(ReadFailure { error, buffer: returned }) => {
                    last = Some(ArrayError::ReadFailed { slot: place.slot, error });
                    wrong.insert(place.slot);
                    buffer = match returned {
                        Some(buffer) => buffer,
                        None => self.replacement(extent.len_bytes as usize)?,
                    };
                }
            }
        }
        if extent.len_bytes > u64::from(self.block_bytes) {
            return self.read_block_by_block(offset_bytes, extent, buffer, failed).await;
        }
        let error = last.unwrap_or(ArrayError::Unrecovered { offset_bytes });
        Err(Unread::new(error, buffer))
    }

    /// The same where no copy can be read as a whole.
    async fn read_block_by_block(
        &self,
        offset_bytes: u64,
        extent: &Extent,
        mut buffer: Buffer,
        failed: Option<usize>,
    ) -> Result<Buffer, Unread> {
        let block_bytes = self.block_bytes as usize;
        let geometry = self.shared.geometry();
        let count = extent.len_bytes as usize / block_bytes;
        for index in 0..count {
            let at = offset_bytes + (index * block_bytes) as u64;
            let Some(block) = geometry.extents(at, block_bytes as u64).next() else { break };
            let piece = match self.replacement(block_bytes) {
                Ok(piece) => piece,
                Err(unread) => return Err(Unread::new(unread.error, buffer)),
            };
            match Box::pin(self.read_and_mend(at, &block, piece, failed)).await {
                Ok(read) => buffer[index * block_bytes..][..block_bytes].copy_from_slice(&read),
                Err(unread) => return Err(Unread::new(unread.error, buffer)),
            }
        }
        Ok(buffer)
    }

    /// An extent was read from `source`. Writes it back where it was `wrong`; where copies need not
    /// agree, over all others.
    async fn mended(
        &self,
        offset_bytes: u64,
        extent: &Extent,
        source: Place,
        buffer: Buffer,
        wrong: SlotSet,
        agrees: bool,
    ) -> Result<Buffer, Unread> {
        let end_bytes = offset_bytes + extent.len_bytes;
        self.count_wrong(wrong);
        if agrees && wrong.is_empty() {
            return Ok(buffer);
        }
        let core = self.endpoint.core();
        let permit = if agrees {
            self.shared.begin_write(core).await.ok()
        } else {
            self.shared.begin_sync(core)
        };
        if !agrees && self.agrees(&(offset_bytes..end_bytes)) {
            // The resync had made them equal before this got the range.
            return Ok(buffer);
        }
        if permit.is_none() {
            // An array that takes no writes. Where copies may differ only the first one counts.
            return match agrees || wrong.is_empty() {
                true => Ok(buffer),
                false => Err(Unread::new(ArrayError::Unrecovered { offset_bytes }, buffer)),
            };
        }
        let armed = Armed::new(&self.shared, offset_bytes);
        let data = buffer.freeze();
        let writable = self.writable();
        // What was read may itself have been written by a resync, and not be durable yet.
        let is_sure = !self.member(source.slot).is_some_and(|member| member.needs_fua(true));
        let targets = || {
            let copies = (0..extent.copies).map(|copy| extent.place(copy));
            copies.filter(|place| {
                let is_meant = match agrees {
                    true => wrong.contains(place.slot),
                    false => *place != source || !is_sure,
                };
                is_meant && writable.contains(place.slot)
            })
        };
        let mut outcome = Outcome::default();
        // Where copies need not agree, what is answered now must be what is answered after a power
        // cut, too, should any member fail.
        let writes = targets().map(|place| {
            let fua = !agrees && !mutation!("mend-without-fua");
            self.write_member(place, data.clone(), fua)
        });
        fan_out(targets().count(), writes, |result| outcome.add(result)).await;
        armed.disarm();
        drop(permit);
        // Where copies agreed, whoever lacks the block now has nothing else to answer with.
        let mut settled = if agrees { Ok(()) } else { self.shared.settled().await };
        if let Some(slot) = outcome.no_space()
            && !agrees
        {
            // One of the copies says something else still.
            settled = settled.and(Err(ArrayError::NoSpace { slot }));
        }
        let buffer = self.taken_back(data)?;
        match settled {
            Err(error) => Err(Unread::new(error, buffer)),
            Ok(()) => Ok(buffer),
        }
    }

    /// Counts copies that could not be read, while another one could.
    fn count_wrong(&self, wrong: SlotSet) {
        let writable = self.writable();
        for slot in wrong.iter().filter(|&slot| writable.contains(slot)) {
            self.shared.count_read_error(slot, self.timer.now());
        }
        if !wrong.is_empty() {
            self.shared.count_read_from_other_copy();
        }
    }

    /// A buffer again, of what was written. A drive that has not answered in time still has it.
    fn taken_back(&self, data: SharedBuffer) -> Result<Buffer, Unread> {
        match data.try_into_mut() {
            Ok(buffer) => Ok(buffer),
            Err(data) => {
                let mut copy = self.replacement(data.len())?;
                copy.copy_from_slice(&data);
                Ok(copy)
            }
        }
    }
}
