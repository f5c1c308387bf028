//! What the write intent needs of an array on one core. The array implements it; so do the tests,
//! with drives that fail.

use super::super::error::{ArrayError, WriteFailure};
use super::super::reserve::{Claim, Reserve};
use crate::buffer::{Buffer, SharedBuffer};
use crate::drive::DriveError;

/// The members, as one core sees and reaches them.
pub(in crate::array) trait Members {
    /// Number of slots.
    fn slots(&self) -> usize;

    /// Whether the member in `slot` takes writes.
    fn is_writable(&self, slot: usize) -> bool;

    /// Whether any member is not in sync: missing, failed, or being rebuilt.
    fn is_degraded(&self) -> bool;

    /// Writes at an offset of the drive, not of its data area; durable when it returns. A member
    /// that cannot has failed already then, but for lack of space.
    async fn write(
        &self,
        slot: usize,
        offset_bytes: u64,
        data: SharedBuffer,
    ) -> Result<(), DriveError>;

    /// Makes all that was written to the member before this call survive a loss of power. A member
    /// that cannot has failed already when this returns.
    async fn flush(&self, slot: usize) -> Result<(), DriveError>;

    /// Waits until all failures so far are durable.
    async fn settled(&self) -> Result<(), ArrayError>;

    /// Regions have become dirty: reads under way are to notice, and who repairs them.
    fn became_dirty(&self) {}

    /// Memory for `len` bytes, of what all commands share; its contents are unspecified.
    fn allocate(&self, len: usize) -> Option<Buffer>;

    /// This core's memory for the write intent alone.
    fn reserve(&self) -> &Reserve;
}

/// Buffers to be written. To be kept until the writes have ended.
pub(super) struct Memory<'a> {
    /// In the order of the sizes that were asked for.
    pub(super) buffers: Vec<Buffer>,
    /// To be dropped after them.
    pub(super) claim: Option<Claim<'a>>,
}

impl<'a> Memory<'a> {
    /// Buffers of these sizes, if they are there now.
    pub(super) fn at_once(members: &'a impl Members, sizes: &[u32]) -> Option<Self> {
        let buffers = sizes.iter().map(|&size| members.allocate(size as usize));
        Some(Self { buffers: buffers.collect::<Option<_>>()?, claim: None })
    }

    /// Buffers of these sizes; waits for the reserve, if there is nothing else.
    ///
    /// # Errors
    /// If drives that do not answer have all of that.
    pub(super) async fn take(members: &'a impl Members, sizes: &[u32]) -> Result<Self, ArrayError> {
        if let Some(memory) = Self::at_once(members, sizes) {
            return Ok(memory);
        }
        let mut buffers = Vec::with_capacity(sizes.len());
        let claim = members.reserve().take(sizes, &mut buffers).await;
        let claim = claim.ok_or(ArrayError::NotReady)?;
        Ok(Self { buffers: buffers.into_iter().flatten().collect(), claim: Some(claim) })
    }
}

/// Flushes all members that take writes. One that cannot has failed.
pub(super) async fn flush_all(members: &impl Members) {
    let slots = (0..members.slots()).filter(|&slot| members.is_writable(slot));
    let flushes = slots.map(|slot| members.flush(slot));
    futures_util::future::join_all(flushes).await;
}

/// Writes durably to several members, each at its own place. A member that does not write has
/// failed. All failures, whoever noticed them, are durable when this returns: a member that was
/// left out because it had failed would be believed at the next start otherwise, without what is
/// written here.
///
/// # Errors
/// If a member has no space, or the array cannot do without one that failed.
pub(super) async fn write_all(
    members: &impl Members,
    writes: impl Iterator<Item = (usize, u64, SharedBuffer)>,
) -> Result<(), ArrayError> {
    let writes = writes.map(|(slot, offset_bytes, data)| async move {
        (slot, members.write(slot, offset_bytes, data).await)
    });
    let mut no_space = None;
    for (slot, result) in futures_util::future::join_all(writes).await {
        if result == Err(DriveError::NoSpace) {
            no_space = Some(slot);
        }
    }
    members.settled().await?;
    no_space.map_or(Ok(()), |slot| Err(ArrayError::NoSpace { slot }))
}

/// Writes durably to one member that is about to be used.
///
/// # Errors
/// If it does not write.
pub(super) async fn write_new(
    members: &impl Members,
    slot: usize,
    offset_bytes: u64,
    data: SharedBuffer,
) -> Result<(), ArrayError> {
    members.write(slot, offset_bytes, data).await.map_err(|error| match error {
        DriveError::NoSpace => ArrayError::NoSpace { slot },
        error => ArrayError::WriteFailed(WriteFailure::Member { slot, error }),
    })
}
