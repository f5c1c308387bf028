//! A drive in memory, for tests, benchmarks and trying things out. It forgets everything at the
//! end of the process.
//!
//! The space is a table of 64 KiB *pieces*, each behind a read-write lock and made when it is
//! first written: what was never written, or was zeroed in whole pieces, takes no memory and reads
//! as zeros. Every operation completes at once. Clones are handles on the same drive and may be
//! used from any thread; a reader may see a concurrent write in one piece and not yet in the next,
//! as on a real drive.

use std::sync::{Arc, PoisonError, RwLock};

use crate::buffer::{Buffer, SharedBuffer};
use crate::drive::{Drive, DriveError, ReadFailure};

const PIECE_BYTES: usize = 64 << 10;

/// The bytes of one piece; `None` is all zeros.
type Piece = RwLock<Option<Box<[u8]>>>;

/// A handle on a drive in memory.
#[derive(Clone)]
pub struct MemoryDrive {
    pieces: Arc<[Piece]>,
    size_bytes: u64,
    block_size_bytes: u32,
}

impl MemoryDrive {
    /// A drive of zeros with blocks of 512 bytes.
    pub fn new(size_bytes: u64) -> Self {
        Self::with_block_size(size_bytes, 512)
    }

    /// A drive of zeros with blocks of `block_size_bytes`; the size is rounded down to whole
    /// blocks.
    ///
    /// # Panics
    /// If the block size is zero or does not divide 64 KiB.
    pub fn with_block_size(size_bytes: u64, block_size_bytes: u32) -> Self {
        assert!(block_size_bytes > 0 && PIECE_BYTES.is_multiple_of(block_size_bytes as usize));
        let size_bytes = size_bytes - size_bytes % u64::from(block_size_bytes);
        let pieces = (0..size_bytes.div_ceil(PIECE_BYTES as u64)).map(|_| RwLock::new(None));
        Self { pieces: pieces.collect(), size_bytes, block_size_bytes }
    }

    /// Bytes of memory that hold data at the moment.
    pub fn resident_bytes(&self) -> usize {
        let is_there =
            |piece: &&Piece| piece.read().unwrap_or_else(PoisonError::into_inner).is_some();
        self.pieces.iter().filter(is_there).count() * PIECE_BYTES
    }

    /// Reads `into.len()` bytes at `offset_bytes`.
    ///
    /// # Errors
    /// `OutOfRange` as for [`Drive::read`].
    pub fn read_now(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), DriveError> {
        self.check(offset_bytes, into.len() as u64)?;
        for span in Span::cut(offset_bytes, into.len() as u64) {
            let part = &mut into[span.done..span.done + span.len];
            match &*self.pieces[span.piece].read().unwrap_or_else(PoisonError::into_inner) {
                Some(piece) => part.copy_from_slice(&piece[span.from..span.from + span.len]),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    /// Writes `data` at `offset_bytes`.
    ///
    /// # Errors
    /// `OutOfRange` as for [`Drive::write`].
    pub fn write_now(&self, offset_bytes: u64, data: &[u8]) -> Result<(), DriveError> {
        self.check(offset_bytes, data.len() as u64)?;
        for span in Span::cut(offset_bytes, data.len() as u64) {
            let mut piece = self.pieces[span.piece].write().unwrap_or_else(PoisonError::into_inner);
            let piece = piece.get_or_insert_with(|| vec![0; PIECE_BYTES].into_boxed_slice());
            piece[span.from..span.from + span.len]
                .copy_from_slice(&data[span.done..span.done + span.len]);
        }
        Ok(())
    }

    fn zero_now(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DriveError> {
        self.check(offset_bytes, len_bytes)?;
        for span in Span::cut(offset_bytes, len_bytes) {
            let mut piece = self.pieces[span.piece].write().unwrap_or_else(PoisonError::into_inner);
            if span.len == PIECE_BYTES {
                *piece = None;
            } else if let Some(piece) = &mut *piece {
                piece[span.from..span.from + span.len].fill(0);
            }
        }
        Ok(())
    }

    fn check(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), DriveError> {
        let block = u64::from(self.block_size_bytes);
        let end = offset_bytes.checked_add(len_bytes).ok_or(DriveError::OutOfRange)?;
        let in_blocks = offset_bytes.is_multiple_of(block) && len_bytes.is_multiple_of(block);
        if end <= self.size_bytes && in_blocks { Ok(()) } else { Err(DriveError::OutOfRange) }
    }
}

/// The part of a transfer that is in one piece.
struct Span {
    piece: usize,
    /// Where in the piece.
    from: usize,
    len: usize,
    /// Bytes of the transfer before this span.
    done: usize,
}

impl Span {
    fn cut(offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = Self> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let left = len_bytes - done;
            let at = offset_bytes + done;
            let from = at % PIECE_BYTES as u64;
            let len = left.min(PIECE_BYTES as u64 - from);
            let span = Self {
                piece: (at / PIECE_BYTES as u64) as usize,
                from: from as usize,
                len: len as usize,
                done: done as usize,
            };
            done += len;
            (len > 0).then_some(span)
        })
    }
}

impl Drive for MemoryDrive {
    async fn read(&self, offset_bytes: u64, mut buffer: Buffer) -> Result<Buffer, ReadFailure> {
        match self.read_now(offset_bytes, &mut buffer) {
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
        self.write_now(offset_bytes, &data)
    }

    async fn flush(&self) -> Result<(), DriveError> {
        Ok(())
    }

    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        _deallocate: bool,
    ) -> Result<(), DriveError> {
        self.zero_now(offset_bytes, len_bytes)
    }

    fn has_volatile_cache(&self) -> bool {
        false
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn block_size_bytes(&self) -> u32 {
        self.block_size_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Pool;
    use futures_util::FutureExt;
    use proptest::prelude::*;

    #[test]
    fn unwritten_space_reads_as_zeros_and_takes_no_memory() {
        let drive = MemoryDrive::new(1 << 40);
        let mut bytes = [1; 4096];
        drive.read_now((1 << 40) - 4096, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4096]);
        assert_eq!(drive.resident_bytes(), 0);
    }

    #[test]
    fn zeroing_whole_pieces_gives_the_memory_back() {
        let drive = MemoryDrive::new(1 << 20);
        drive.write_now(0, &[5; 3 * PIECE_BYTES]).unwrap();
        assert_eq!(drive.resident_bytes(), 3 * PIECE_BYTES);
        drive.zero_now(512, 2 * PIECE_BYTES as u64).unwrap();
        assert_eq!(drive.resident_bytes(), 2 * PIECE_BYTES);
    }

    #[test]
    fn what_is_beyond_the_end_or_not_in_blocks_is_refused() {
        let drive = MemoryDrive::with_block_size(1_000_000, 4096);
        assert_eq!(drive.size_bytes(), 999_424);
        let pool = Pool::new(1 << 16, 1 << 16).unwrap();
        for (offset, len) in
            [(999_424, 4096), (995_328, 8192), (512, 4096), (0, 512), (u64::MAX - 4095, 4096)]
        {
            let buffer = pool.allocate(len).unwrap();
            let failure = drive.read(offset, buffer).now_or_never().unwrap().unwrap_err();
            assert_eq!(failure.error, DriveError::OutOfRange, "read {len} at {offset}");
            let buffer = failure.buffer.unwrap();
            let written = drive.write(offset, buffer.freeze(), false).now_or_never().unwrap();
            assert_eq!(written, Err(DriveError::OutOfRange), "write {len} at {offset}");
            let zeroed = drive.write_zeroes(offset, len as u64, true).now_or_never().unwrap();
            assert_eq!(zeroed, Err(DriveError::OutOfRange), "zero {len} at {offset}");
        }
        assert_eq!(drive.flush().now_or_never(), Some(Ok(())));
    }

    proptest! {
        #[test]
        fn it_is_an_array_of_bytes(
            steps in prop::collection::vec((0usize..400, 0usize..300, any::<u8>(), 0u8..3), 1..40)
        ) {
            const BLOCKS: usize = 500;
            let drive = MemoryDrive::new((BLOCKS * 512) as u64);
            let handle = drive.clone();
            let mut model = vec![0u8; BLOCKS * 512];
            for (block, blocks, byte, kind) in steps {
                let (from, to) = (block * 512, (block + blocks).min(BLOCKS) * 512);
                match kind {
                    0 => {
                        model[from..to].fill(byte);
                        drive.write_now(from as u64, &model[from..to]).unwrap();
                    }
                    1 => {
                        model[from..to].fill(0);
                        drive.zero_now(from as u64, (to - from) as u64).unwrap();
                    }
                    _ => {
                        let mut read = vec![!byte; to - from];
                        handle.read_now(from as u64, &mut read).unwrap();
                        prop_assert_eq!(&read[..], &model[from..to]);
                    }
                }
            }
            let mut all = vec![1; model.len()];
            handle.read_now(0, &mut all).unwrap();
            prop_assert_eq!(all, model);
        }
    }
}
