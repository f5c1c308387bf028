//! Makes the arrays' state durable for the data cores.
//!
//! When what an array wants recorded has changed, it wakes the control plane, which writes the
//! superblocks on its blocking pool, one version of an array after the other, and tells the array.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use raidfabric_raid::array::{Keeper, Shared, Wanted};
use raidfabric_raid::assemble::{ArrayHandle, UpdateError};
use raidfabric_raid::device::{Medium, OpenDevice};
use raidfabric_raid::drive::DriveError;
use tokio::sync::Notify;

/// The data cores' side.
pub struct CoreSide {
    wake: Notify,
}

/// The control plane's side, of one array.
pub struct ControlSide {
    core_side: Weak<CoreSide>,
}

/// The two sides for one array.
pub fn pair() -> (Arc<CoreSide>, ControlSide) {
    let core_side = Arc::new(CoreSide { wake: Notify::new() });
    let control = ControlSide { core_side: Arc::downgrade(&core_side) };
    (core_side, control)
}

impl Keeper for CoreSide {
    fn wake(&self) {
        self.wake.notify_one();
    }
}

impl ControlSide {
    /// Records what is wanted, one version after the other, for ever.
    pub async fn serve(
        self,
        name: String,
        shared: Arc<Shared>,
        handle: Arc<Mutex<ArrayHandle<OpenDevice>>>,
    ) {
        let Some(core_side) = self.core_side.upgrade() else { return };
        let recorded = Arc::new(Mutex::new(shared.wanted()));
        loop {
            core_side.wake.notified().await;
            let (handle, shared, name) = (Arc::clone(&handle), Arc::clone(&shared), name.clone());
            let recorded = Arc::clone(&recorded);
            let carry = move || {
                let mut handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
                let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
                record(&name, &mut handle, &shared, &mut recorded);
            };
            if tokio::task::spawn_blocking(carry).await.is_err() {
                // The runtime is going away, or the drive's driver panicked under us.
                return;
            }
        }
    }
}

/// Records the newest version. `recorded` is the last one.
fn record<M: Medium>(
    name: &str,
    handle: &mut ArrayHandle<M>,
    shared: &Shared,
    recorded: &mut Wanted,
) {
    let wanted = shared.wanted();
    if (&wanted.members, &wanted.bad_blocks) != (&recorded.members, &recorded.bad_blocks) {
        // A failure that is not written down would be forgotten after a restart, and the member
        // believed.
        tracing::error!(array = name, "the failure of a member is not recorded: the array fails");
        for slot in 0..wanted.members.len() {
            shared.record_failed(slot, DriveError::Unsupported);
        }
        return;
    }
    let mut result = Ok(());
    if wanted.resync_from != recorded.resync_from {
        result = handle.checkpoint_resync(wanted.resync_from);
    }
    if wanted.active {
        result = result.and_then(|()| handle.mark_active());
    }
    match result {
        Ok(()) => {
            shared.recorded(wanted.version);
            *recorded = wanted;
        }
        Err(error) => {
            tracing::error!(array = name, %error, "the array's state is not recorded");
            believe(&error, shared);
        }
    }
}

/// A member that does not flush, or does not take a durable write, may have lost what was written
/// to it before, and the kernel tells nobody else: the array has to know. Lack of space below a
/// file is no such failure.
pub(super) fn believe(error: &UpdateError, shared: &Shared) {
    let (UpdateError::Write { slot, source, .. } | UpdateError::Flush { slot, source, .. }) = error;
    let errno = source.raw_os_error().unwrap_or(libc::EIO);
    match DriveError::from_errno(errno) {
        DriveError::NoSpace => shared.record_failed(*slot, DriveError::NoSpace),
        failure => shared.fail_flush(*slot, failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::io;
    use std::rc::Rc;

    use raidfabric_raid::array::{MemberFault, Settings, WriteState};
    use raidfabric_raid::assemble::{self, NewArray, examine_medium, plan_create};
    use raidfabric_raid::geometry::{self, Geometry};
    use raidfabric_raid::metadata::Level;

    /// A drive whose flush fails once, as the kernel reports what it has lost.
    struct Lossy {
        bytes: RefCell<Vec<u8>>,
        has_lost: Rc<Cell<bool>>,
    }

    impl Medium for Lossy {
        fn name(&self) -> String {
            "lossy".into()
        }

        fn size_bytes(&self) -> u64 {
            self.bytes.borrow().len() as u64
        }

        fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
            let at = offset_bytes as usize;
            buf.copy_from_slice(&self.bytes.borrow()[at..at + buf.len()]);
            Ok(())
        }

        fn write_durable(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
            let at = offset_bytes as usize;
            self.bytes.borrow_mut()[at..at + data.len()].copy_from_slice(data);
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            if self.has_lost.take() { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
        }

        fn zero_cheaply(&self, _: u64, _: u64) -> io::Result<bool> {
            Ok(false)
        }
    }

    /// The flush before a checkpoint was told that a drive had lost writes, which is told once. The
    /// next flush of a host succeeded, and was answered so, without them.
    #[test]
    fn what_a_checkpoint_hears_of_lost_writes_is_not_kept_from_hosts() {
        let has_lost = Rc::new(Cell::new(false));
        let drive =
            |_| Lossy { bytes: RefCell::new(vec![0; 16 << 20]), has_lost: Rc::clone(&has_lost) };
        let media: Vec<_> = (0..2).map(drive).collect();
        let new = NewArray {
            name: "a".into(),
            homehost: None,
            level: Level::Raid1,
            chunk_bytes: 0,
            uuid: None,
        };
        let examined: Vec<_> = media.iter().map(|m| examine_medium(m).unwrap()).collect();
        let plan = plan_create(&examined, &new).unwrap();
        let mut handle = assemble::create(&plan, media).unwrap();
        let (core_side, _control) = pair();
        let shared = Shared::new(Settings {
            uuid: [1; 16],
            data_offsets_bytes: handle.members().iter().map(|m| m.data_offset_bytes()).collect(),
            active: false,
            resync_position_bytes: 0,
            keeper: core_side,
            ..Settings::new(handle.info().engine_geometry().unwrap())
        });
        let mut recorded = shared.wanted();
        record("a", &mut handle, &shared, &mut recorded);
        assert_eq!((shared.failure(), shared.recorded_version()), (None, shared.wanted().version));
        has_lost.set(true);
        recorded.resync_from = 7;
        record("a", &mut handle, &shared, &mut recorded);
        let error = DriveError::Io { errno: 5 };
        assert_eq!(shared.member_fault(0), Some(MemberFault::Flush(error)));
    }

    #[test]
    fn lack_of_space_fails_nothing() {
        let geometry = Geometry::new(geometry::Level::Raid1, 2, 0, 1 << 20).unwrap();
        let shared = Shared::new(Settings::new(geometry));
        let source = io::Error::from_raw_os_error(libc::ENOSPC);
        believe(&UpdateError::Flush { slot: 1, name: "drive".into(), source }, &shared);
        assert_eq!(shared.write_state(), WriteState::Active);
    }
}
