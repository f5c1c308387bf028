//! Arrays on arrays: RAID 50, 60 and 100 are RAID 0 over arrays of level 5, 6 or 10, the *leaves*.
//!
//! A composed array has no members, no state and no locks of its own: it is a shape that says which
//! bytes are whose. So a command is routed once, to the leaf that has the bytes, and from there like
//! any other of that leaf: what has redundancy goes to the owner of the leaf's shard. What a leaf
//! answers, the host is told: an array of which one leaf has failed is whole in the others, and has
//! nothing to be put right when that leaf is back.
//!
//! * **What lies within one chunk** is the leaf's own command.
//! * **A larger read** is cut into the pieces that lie in one piece on a drive, of whichever leaf,
//!   and these are read at once, just as a leaf does it.
//! * **A larger write** is cut at chunks, and the leaves write the parts at once.
//! * **What covers ranges** (zeroing) is one range for each leaf, since the chunks of a leaf follow
//!   each other there.
//!
//! While a leaf has failed and commands for it are held ([`super::Shared::set_hold`]), a command for
//! several leaves waits after all parts of it have ended, and is then done again as a whole.
//!
//! As with any array, requests run to completion.

use std::rc::Rc;

use futures_util::stream::{self, StreamExt};

use super::error::{ArrayError, Unread};
use super::fan::fan_out;
use super::read::Joined;
use super::shared::WriteState;
use super::{Array, Done};
use crate::buffer::{Buffer, SharedBuffer};
use crate::drive::Drive;
use crate::geometry::{Extent, Geometry};

/// Parts of one large write that are under way at once.
const PARTS_AT_ONCE: usize = 30;

/// An array below a composed one.
pub struct Leaf<D> {
    /// One core's part of it.
    pub array: Rc<Array<D>>,
    /// Where in it the composed array's data begins.
    pub data_offset_bytes: u64,
}

impl<D> Clone for Leaf<D> {
    fn clone(&self) -> Self {
        Self { array: Rc::clone(&self.array), data_offset_bytes: self.data_offset_bytes }
    }
}

/// One core's part of an array on arrays. See the file's head.
pub struct Composed<D> {
    geometry: Geometry,
    leaves: Box<[Leaf<D>]>,
    block_bytes: u32,
}

/// Why leaves and shape do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ComposeError {
    /// Redundancy is the leaves' part.
    #[error("arrays can be striped over only, not mirrored or given parity")]
    Level,
    /// Not as many leaves as members.
    #[error("the array is over {members} arrays, but {leaves} were given")]
    LeafCount {
        /// Members of the geometry.
        members: usize,
        /// Leaves given.
        leaves: usize,
    },
    /// A leaf ends before its part does.
    #[error("the array below in slot {slot} needs {needed_bytes} bytes and has {size_bytes}")]
    LeafTooSmall {
        /// The slot.
        slot: usize,
        /// End of the data.
        needed_bytes: u64,
        /// The leaf's size.
        size_bytes: u64,
    },
    /// A leaf's part, or its chunks, do not begin on the leaf's blocks.
    #[error("the data in slot {slot} do not lie on the blocks of {block_bytes} bytes there")]
    Misaligned {
        /// The slot.
        slot: usize,
        /// The leaf's block size.
        block_bytes: u32,
    },
}

/// Where a part of a range is.
#[derive(Clone, Copy)]
struct Part {
    /// Index of the leaf.
    leaf: usize,
    /// Where in the range it begins.
    position_bytes: u64,
    len_bytes: u64,
    /// Where in the leaf.
    offset_bytes: u64,
}

impl<D: Drive> Composed<D> {
    /// Puts it together from one core's part of each leaf, in slot order; `geometry` is of level 0
    /// over data areas of the same size in each.
    ///
    /// # Errors
    /// If leaves and shape do not fit together.
    pub fn new(geometry: Geometry, leaves: Vec<Leaf<D>>) -> Result<Self, ComposeError> {
        if geometry.is_redundant() {
            return Err(ComposeError::Level);
        }
        if leaves.len() != geometry.members() {
            let (members, leaves) = (geometry.members(), leaves.len());
            return Err(ComposeError::LeafCount { members, leaves });
        }
        for (slot, Leaf { array, data_offset_bytes }) in leaves.iter().enumerate() {
            let needed_bytes = data_offset_bytes.saturating_add(geometry.component_bytes());
            let size_bytes = array.geometry().capacity_bytes();
            if needed_bytes > size_bytes {
                return Err(ComposeError::LeafTooSmall { slot, needed_bytes, size_bytes });
            }
            let block_bytes = array.block_size_bytes();
            let lies_on_blocks = |bytes: u64| bytes.is_multiple_of(u64::from(block_bytes));
            if !lies_on_blocks(*data_offset_bytes)
                || !geometry.chunk_bytes().is_some_and(lies_on_blocks)
            {
                return Err(ComposeError::Misaligned { slot, block_bytes });
            }
        }
        let blocks = leaves.iter().map(|leaf| leaf.array.block_size_bytes());
        let block_bytes = blocks.max().unwrap_or(512);
        Ok(Self { geometry, leaves: leaves.into_boxed_slice(), block_bytes })
    }

    /// The shape over the leaves.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The unit of requests: the largest of the leaves.
    pub fn block_size_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Whether acknowledged writes can be lost with the power until a flush.
    pub fn has_volatile_cache(&self) -> bool {
        self.leaves.iter().any(|leaf| leaf.array.has_volatile_cache())
    }

    /// The parts of a range, in order, each within one chunk.
    fn parts(&self, offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = Part> {
        self.geometry.extents(offset_bytes, len_bytes).map(|extent| {
            let place = extent.place(0);
            let Extent { position_bytes, len_bytes, .. } = extent;
            let offset_bytes = self.leaves[place.slot].data_offset_bytes + place.offset_bytes;
            Part { leaf: place.slot, position_bytes, len_bytes, offset_bytes }
        })
    }

    /// The same, cut into what is in one piece on drives; each with its leaf and where it is there.
    fn pieces(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Iterator<Item = (usize, u64, Extent)> {
        self.parts(offset_bytes, len_bytes).flat_map(|part| {
            let extents = self.leaf(part).geometry().extents(part.offset_bytes, part.len_bytes);
            extents
                .map(move |extent| (part.leaf, part.offset_bytes + extent.position_bytes, extent))
        })
    }

    fn leaf(&self, part: Part) -> &Array<D> {
        &self.leaves[part.leaf].array
    }

    /// The part that a range is, if it is in one chunk.
    fn only_part(&self, offset_bytes: u64, len_bytes: u64) -> Option<Part> {
        let is_one = self.geometry.extent_count(offset_bytes, len_bytes) == 1;
        self.parts(offset_bytes, len_bytes).next().filter(|_| is_one)
    }

    fn check_range(&self, offset_bytes: u64, len_bytes: u64) -> Done {
        let block = u64::from(self.block_bytes);
        let in_blocks = offset_bytes.is_multiple_of(block) && len_bytes.is_multiple_of(block);
        if in_blocks && self.geometry.contains(offset_bytes, len_bytes) {
            Ok(())
        } else {
            Err(ArrayError::OutOfRange)
        }
    }

    /// As [`Array::read`].
    ///
    /// # Errors
    /// As there.
    pub async fn read(&self, offset_bytes: u64, buffer: Buffer) -> Result<Buffer, Unread> {
        let len_bytes = buffer.len();
        if let Err(error) = self.check_range(offset_bytes, len_bytes as u64) {
            return Err(Unread::new(error, buffer));
        }
        if len_bytes == 0 {
            return Ok(buffer);
        }
        if let Some(part) = self.only_part(offset_bytes, len_bytes as u64) {
            return self.leaf(part).read(part.offset_bytes, buffer).await;
        }
        let mut buffer = buffer;
        loop {
            let mends = self.mends();
            let (leaf, unread) = match self.read_pieces(offset_bytes, buffer).await {
                Ok(buffer) => return Ok(buffer),
                Err(failed) => failed,
            };
            let leaf = &self.leaves[leaf].array;
            let has_failed = leaf.shared().write_state() == WriteState::Failed;
            if !has_failed && self.mends() == mends {
                return Err(unread);
            }
            if has_failed && let Err(error) = Box::pin(leaf.shared().held(unread.error)).await {
                return Err(Unread { error, ..unread });
            }
            // The leaf was mended.
            buffer = match unread.buffer {
                Some(buffer) => buffer,
                None => leaf.replacement(len_bytes)?,
            };
        }
    }

    /// How often its leaves have worked again after they had failed.
    fn mends(&self) -> u64 {
        self.leaves.iter().map(|leaf| leaf.array.shared().mends()).sum()
    }

    /// Reads what is in several pieces, once. A failure names the leaf.
    async fn read_pieces(
        &self,
        offset_bytes: u64,
        buffer: Buffer,
    ) -> Result<Buffer, (usize, Unread)> {
        let len_bytes = buffer.len() as u64;
        for part in self.parts(offset_bytes, len_bytes) {
            let leaf = self.leaf(part);
            leaf.shared().count_read(leaf.endpoint.core());
        }
        let count = self.pieces(offset_bytes, len_bytes).count();
        // Each piece reads into its own part of the buffer; the parts are joined again in order.
        let mut rest = buffer;
        let reads = self.pieces(offset_bytes, len_bytes).map(|(leaf, at, extent)| {
            let tail = rest.split_off(extent.len_bytes as usize);
            let part = std::mem::replace(&mut rest, tail);
            self.leaves[leaf].array.read_extent(at, extent, part)
        });
        let (mut joined, mut done, mut first_failed) = (Joined::default(), 0, None);
        fan_out(count, reads, |read| {
            if read.is_err() {
                first_failed = first_failed.or(Some(done));
            }
            joined.add(read);
            done += 1;
        })
        .await;
        let leaf_of =
            |piece| self.pieces(offset_bytes, len_bytes).nth(piece).map_or(0, |(leaf, ..)| leaf);
        let pool = &self.leaves[0].array.pool;
        let joined = joined.end(len_bytes as usize, pool);
        joined.map_err(|unread| (leaf_of(first_failed.unwrap_or(0)), unread))
    }

    /// As [`Array::write`].
    ///
    /// # Errors
    /// As there.
    pub async fn write(&self, offset_bytes: u64, data: SharedBuffer, fua: bool) -> Done {
        let len_bytes = data.len() as u64;
        self.check_range(offset_bytes, len_bytes)?;
        if let Some(part) = self.only_part(offset_bytes, len_bytes) {
            return self.leaf(part).write(part.offset_bytes, data, fua).await;
        }
        // Boxed so that the common write's future stays small.
        Box::pin(self.write_parts(offset_bytes, data, fua)).await
    }

    /// Writes what is in several chunks.
    async fn write_parts(&self, offset_bytes: u64, data: SharedBuffer, fua: bool) -> Done {
        let count = self.geometry.extent_count(offset_bytes, data.len() as u64) as usize;
        loop {
            let writes = self.parts(offset_bytes, data.len() as u64).map(|part| {
                let from = part.position_bytes as usize;
                let piece = data.slice(from..from + part.len_bytes as usize);
                async move {
                    let leaf = self.leaf(part);
                    let mends = leaf.shared().mends();
                    let written = leaf.write_once(part.offset_bytes, piece, fua).await;
                    written.map_err(|error| (leaf, error, mends))
                }
            });
            // All of them, whatever the first ones say: they must run to completion.
            let mut failed = None;
            let mut note = |written: Result<(), _>| failed = failed.take().or(written.err());
            if count <= PARTS_AT_ONCE {
                fan_out(count, writes, note).await;
            } else {
                let mut writes = stream::iter(writes).buffer_unordered(PARTS_AT_ONCE);
                while let Some(written) = writes.next().await {
                    note(written);
                }
            }
            let Some((leaf, error, mends)) = failed else { return Ok(()) };
            leaf.held(error, mends).await?;
        }
    }

    /// As [`Array::write_zeroes`].
    ///
    /// # Errors
    /// As there.
    pub async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        deallocate: bool,
        fua: bool,
    ) -> Done {
        self.check_range(offset_bytes, len_bytes)?;
        let zero = |leaf: Rc<Array<D>>, at: u64, len: u64| async move {
            leaf.write_zeroes(at, len, deallocate, fua).await
        };
        Box::pin(self.on_leaves(offset_bytes, len_bytes, zero)).await
    }

    /// As [`Array::deallocate`].
    ///
    /// # Errors
    /// As there.
    pub async fn deallocate(&self, offset_bytes: u64, len_bytes: u64) -> Done {
        self.check_range(offset_bytes, len_bytes)?;
        let free =
            |leaf: Rc<Array<D>>, at: u64, len: u64| async move { leaf.deallocate(at, len).await };
        Box::pin(self.on_leaves(offset_bytes, len_bytes, free)).await
    }

    /// Has each leaf do something to its part of a range, which is one range there.
    async fn on_leaves<F: Future<Output = Done>>(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        act: impl Fn(Rc<Array<D>>, u64, u64) -> F,
    ) -> Done {
        let ranges = self.leaves.iter().enumerate().filter_map(|(slot, leaf)| {
            let range = self.geometry.member_range(slot, offset_bytes, len_bytes);
            let at = leaf.data_offset_bytes + range.start;
            let len = range.end - range.start;
            (len > 0).then(|| act(Rc::clone(&leaf.array), at, len))
        });
        let mut result = Ok(());
        fan_out(self.leaves.len(), ranges, |done| result = result.and(done)).await;
        result
    }

    /// As [`Array::flush`], for all leaves.
    ///
    /// # Errors
    /// If any of them has failed.
    pub async fn flush(&self) -> Done {
        let flushes = self.leaves.iter().map(|leaf| leaf.array.flush());
        let mut result = Ok(());
        // Boxed, as it is several flushes, and takes the time of a drive's.
        Box::pin(fan_out(self.leaves.len(), flushes, |done| result = result.and(done))).await;
        result
    }
}
