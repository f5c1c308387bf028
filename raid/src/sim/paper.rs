//! Superblocks in one piece of paper: what the engine wanted to be recorded, for the whole array at
//! once. With it the engine is tried apart from the format of real superblocks.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::drive::SimDrive;
use super::faults::Kind;
use super::keeper::Records;
use crate::array::{MemberState, Shared, Wanted};
use crate::drive::Drive;

/// Where a superblock would be.
const SUPERBLOCK_BYTES: u64 = 4096;

/// Writes the paper.
pub(crate) struct PaperRecords {
    pub(crate) paper: Rc<RefCell<Wanted>>,
    pub(crate) shared: Arc<Shared>,
    /// By slot.
    pub(crate) drives: Vec<Option<SimDrive>>,
}

impl PaperRecords {
    fn kept<'a>(&'a self, wanted: &Wanted) -> impl Iterator<Item = (usize, &'a SimDrive)> {
        let is_kept: Vec<bool> = wanted
            .members
            .iter()
            .map(|state| matches!(state, MemberState::InSync | MemberState::Rebuilding))
            .collect();
        let drives = self.drives.iter().enumerate();
        drives
            .filter(move |(slot, _)| is_kept[*slot])
            .filter_map(|(slot, drive)| Some((slot, drive.as_ref()?)))
    }
}

impl Records for PaperRecords {
    async fn record(&self, wanted: &Wanted) -> bool {
        let becomes_clean = self.paper.borrow().active && !wanted.active;
        if becomes_clean && !crate::mutation::mutation!("clean-without-flush") {
            for (slot, drive) in self.kept(wanted) {
                if !drive.has_volatile_cache() {
                    continue;
                }
                if let Err(error) = drive.flush().await {
                    self.shared.fail_flush(slot, error);
                    return false;
                }
            }
        }
        for (slot, drive) in self.kept(wanted) {
            let superblock = vec![0; 4096].into();
            let written = drive.change(Kind::Write, SUPERBLOCK_BYTES, superblock, true, 512).await;
            if let Err(error) = written {
                self.shared.record_failed(slot, error);
                return false;
            }
        }
        *self.paper.borrow_mut() = wanted.clone();
        true
    }
}
