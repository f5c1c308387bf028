//! Where the write intent of the array comes into a row's pass.

use std::ops::Range;

use super::super::error::ArrayError;
use super::super::{Array, Done};
use crate::array::intent::IntentToken;
use crate::buffer::SharedBuffer;
use crate::drive::Drive;

/// A write to a part of a row, as the log is told.
pub(super) struct Record {
    pub(super) row: u64,
    /// Where in the chunks.
    pub(super) within_bytes: u32,
    pub(super) len_bytes: u32,
    /// The first data chunk that is written, and how many are.
    pub(super) first: usize,
    pub(super) count: usize,
    /// The partial parity: of the data chunks that are not written. None where that is nothing.
    pub(super) partial: [Option<SharedBuffer>; 2],
}

/// The right to submit what a record is about.
#[must_use]
pub(super) struct LogToken(());

impl<D: Drive> Array<D> {
    /// Whether parts of rows are logged before they are written.
    pub(super) fn has_log(&self) -> bool {
        false
    }

    /// The longest part of a chunk that a record can be about, unless all data changes.
    pub(super) fn max_record_bytes(&self) -> u32 {
        u32::MAX
    }

    /// Makes it durable that a range is about to be written.
    pub(super) async fn begin_intent(
        &self,
        range: Range<u64>,
    ) -> Result<IntentToken, ArrayError> {
        self.check_not_failed()?;
        self.shared.intent.begin(range).await
    }

    /// All that was submitted under the token has ended. `agree` is false if something was left
    /// half done.
    pub(super) async fn end_intent(&self, token: IntentToken, _agree: bool) -> Done {
        self.shared.intent.end(token);
        Ok(())
    }

    /// Makes a record durable.
    pub(super) async fn log(&self, record: Record) -> Result<LogToken, ArrayError> {
        let _ = record;
        Ok(LogToken(()))
    }

    /// All that was submitted under the token has ended.
    pub(super) fn logged_end(&self, token: LogToken) {
        let LogToken(()) = token;
    }
}
