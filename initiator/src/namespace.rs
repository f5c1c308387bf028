//! What a host needs to know of a namespace.

use raidfabric_protocol::nvme::identify::{IdentifyNamespace, NamespaceIdType, namespace_ids};
use uuid::Uuid;

use crate::Error;

/// A namespace, as Identify describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// NSID.
    pub nsid: u32,
    /// Logical block size in bytes.
    pub block_bytes: u32,
    /// NSZE: logical blocks.
    pub blocks: u64,
    /// NGUID; zero if there is none.
    pub nguid: [u8; 16],
    /// UUID, if there is one.
    pub uuid: Option<Uuid>,
    /// The most data of one command in bytes (MDTS); `None` for no limit.
    pub max_transfer_bytes: Option<u64>,
}

impl Namespace {
    /// Reads Identify Namespace (CNS 00h) and, where there is one, the list of namespace
    /// identification descriptors (CNS 03h).
    pub(crate) fn new(
        nsid: u32,
        identify: &IdentifyNamespace,
        descriptors: Option<&[u8]>,
        max_transfer_bytes: Option<u64>,
    ) -> Result<Self, Error> {
        let format = usize::from(identify.flbas & 0x0F);
        let lbads = identify.lbaf.get(format).map_or(0, |format| format.lbads);
        if !(9..=31).contains(&lbads) {
            let problem = "the block size is not 2^9 to 2^31 bytes";
            return Err(Error::BadAnswer { command: "Identify Namespace", problem });
        }
        let uuid = descriptors.and_then(|list| {
            namespace_ids(list)
                .find(|(kind, _)| *kind == NamespaceIdType::Uuid.raw())
                .and_then(|(_, id)| Uuid::from_slice(id).ok())
        });
        Ok(Self {
            nsid,
            block_bytes: 1 << lbads,
            blocks: identify.nsze.get(),
            nguid: identify.nguid,
            uuid,
            max_transfer_bytes,
        })
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_bytes))
    }
}
