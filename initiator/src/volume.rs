//! Blocks of a namespace over an I/O queue.
//!
//! Each call is one command: nothing is split, and nothing is repeated. Limits (MDTS, 65,536
//! blocks, 256 ranges) are the controller's to enforce, counts that an entry cannot express are
//! refused here.

use bytes::{Bytes, BytesMut};
use raidfabric_protocol::nvme::io::{
    BlockRange, DSM_RANGES_MAX, DsmAttributes, DsmRange, IoCommand, Prinfo,
};
use zerocopy::IntoBytes;

use crate::queue::Data;
use crate::{Error, IoQueue, Namespace};

/// A namespace together with a queue to reach it.
#[derive(Clone, Debug)]
pub struct Volume {
    queue: IoQueue,
    namespace: Namespace,
}

impl Volume {
    /// The namespace, by this queue.
    pub fn new(queue: IoQueue, namespace: Namespace) -> Self {
        Self { queue, namespace }
    }

    /// The queue.
    pub fn queue(&self) -> &IoQueue {
        &self.queue
    }

    /// The namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Reads blocks.
    ///
    /// # Errors
    /// The command's or the connection's; more than 65,536 blocks.
    pub async fn read(&self, lba: u64, blocks: u32) -> Result<Bytes, Error> {
        let range = self.range(lba, u64::from(blocks), false)?;
        let buffer = BytesMut::zeroed(blocks as usize * self.namespace.block_bytes as usize);
        let sqe = IoCommand::Read(range).to_sqe(0);
        Ok(self.queue.command("Read", sqe, Data::Read(buffer)).await?.data)
    }

    /// Writes whole blocks.
    ///
    /// # Errors
    /// The command's or the connection's; data that is not 1 to 65,536 whole blocks.
    pub async fn write(&self, lba: u64, data: Bytes) -> Result<(), Error> {
        self.write_with(lba, data, false).await
    }

    /// Writes whole blocks with FUA: they survive power loss once this returns.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub async fn write_durably(&self, lba: u64, data: Bytes) -> Result<(), Error> {
        self.write_with(lba, data, true).await
    }

    async fn write_with(&self, lba: u64, data: Bytes, fua: bool) -> Result<(), Error> {
        let block_bytes = self.namespace.block_bytes as usize;
        if !data.len().is_multiple_of(block_bytes) {
            let bytes = data.len();
            return Err(Error::Invalid(format!(
                "{bytes} bytes are not a whole number of {block_bytes}-byte blocks"
            )));
        }
        let range = self.range(lba, (data.len() / block_bytes) as u64, fua)?;
        let sqe = IoCommand::Write { range, directive: 0 }.to_sqe(0);
        self.queue.command("Write", sqe, Data::Write(data)).await.map(|_| ())
    }

    /// Makes durable what was written before.
    ///
    /// # Errors
    /// The command's or the connection's.
    pub async fn flush(&self) -> Result<(), Error> {
        let sqe = IoCommand::Flush { nsid: self.namespace.nsid }.to_sqe(0);
        self.queue.command("Flush", sqe, Data::None).await.map(|_| ())
    }

    /// Writes zeros, which the drive may do by deallocating if `deallocate`.
    ///
    /// # Errors
    /// The command's or the connection's; not 1 to 65,536 blocks.
    pub async fn write_zeroes(&self, lba: u64, blocks: u32, deallocate: bool) -> Result<(), Error> {
        let range = self.range(lba, u64::from(blocks), false)?;
        let sqe = IoCommand::WriteZeroes { range, deallocate }.to_sqe(0);
        self.queue.command("Write Zeroes", sqe, Data::None).await.map(|_| ())
    }

    /// Deallocates ranges of (first block, blocks) by Dataset Management.
    ///
    /// # Errors
    /// The command's or the connection's; not 1 to 256 ranges.
    pub async fn deallocate(&self, ranges: &[(u64, u32)]) -> Result<(), Error> {
        if ranges.is_empty() || ranges.len() > DSM_RANGES_MAX {
            let count = ranges.len();
            return Err(Error::Invalid(format!("{count} ranges: use 1 to {DSM_RANGES_MAX}")));
        }
        let list: Vec<DsmRange> = ranges
            .iter()
            .map(|(lba, blocks)| DsmRange {
                cattr: 0.into(),
                nlb: (*blocks).into(),
                slba: (*lba).into(),
            })
            .collect();
        let command = IoCommand::DatasetManagement {
            nsid: self.namespace.nsid,
            ranges: ranges.len() as u16,
            attributes: DsmAttributes::default().with_ad(true),
        };
        let data = Data::Write(Bytes::copy_from_slice(list.as_bytes()));
        self.queue.command("Dataset Management", command.to_sqe(0), data).await.map(|_| ())
    }

    fn range(&self, slba: u64, blocks: u64, fua: bool) -> Result<BlockRange, Error> {
        if blocks == 0 || blocks > 1 << 16 {
            return Err(Error::Invalid(format!("{blocks} blocks in one command: use 1 to 65536")));
        }
        Ok(BlockRange {
            nsid: self.namespace.nsid,
            slba,
            blocks: blocks as u32,
            fua,
            limited_retry: false,
            prinfo: Prinfo::default(),
            storage_tag_check: false,
        })
    }
}
