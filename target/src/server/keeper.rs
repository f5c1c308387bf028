//! Makes the arrays' state durable for the data cores.
//!
//! A data core asks (the first write after clean, a resync that got on), the control plane writes
//! superblocks on its blocking pool, one request of an array after the other, and tells the array.

use std::sync::{Arc, Mutex, PoisonError};

use raidfabric_raid::array::{Keeper, Shared};
use raidfabric_raid::assemble::{ArrayHandle, UpdateError};
use raidfabric_raid::device::OpenDevice;
use raidfabric_raid::drive::DriveError;
use tokio::sync::mpsc;

/// What a data core asks for.
#[derive(Clone, Copy, Debug)]
enum Request {
    Activate,
    Checkpoint(u64),
}

/// The data cores' side.
pub struct CoreSide {
    requests: mpsc::UnboundedSender<Request>,
}

/// The control plane's side, of one array.
pub struct ControlSide {
    requests: mpsc::UnboundedReceiver<Request>,
}

/// The two sides for one array. Requests are few: at most one activation and one checkpoint of an
/// array are under way, so that the channel needs no bound.
pub fn pair() -> (Arc<CoreSide>, ControlSide) {
    let (sender, requests) = mpsc::unbounded_channel();
    (Arc::new(CoreSide { requests: sender }), ControlSide { requests })
}

impl Keeper for CoreSide {
    fn request_active(&self) {
        let _ = self.requests.send(Request::Activate);
    }

    fn checkpoint_resync(&self, position_bytes: u64) {
        let _ = self.requests.send(Request::Checkpoint(position_bytes));
    }
}

impl ControlSide {
    /// Serves requests until the data cores' side is gone.
    pub async fn serve(
        mut self,
        name: String,
        shared: Arc<Shared>,
        handle: Arc<Mutex<ArrayHandle<OpenDevice>>>,
    ) {
        while let Some(request) = self.requests.recv().await {
            let (handle, shared, name) = (Arc::clone(&handle), Arc::clone(&shared), name.clone());
            let carry = move || {
                let mut handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
                carry_out(request, &name, &mut handle, &shared);
            };
            if tokio::task::spawn_blocking(carry).await.is_err() {
                // The runtime is going away, or the drive's driver panicked under us.
                return;
            }
        }
    }
}

fn carry_out(request: Request, name: &str, handle: &mut ArrayHandle<OpenDevice>, shared: &Shared) {
    match request {
        Request::Activate => match handle.mark_active() {
            Ok(()) => shared.set_active(),
            Err(error) => {
                tracing::error!(array = name, %error, "not marked as in use: writes fail");
                believe(&error, shared);
                shared.fail_active();
            }
        },
        Request::Checkpoint(position_bytes) => {
            if let Err(error) = handle.checkpoint_resync(position_bytes) {
                tracing::error!(array = name, %error, "the progress of the resync is not recorded");
                believe(&error, shared);
            }
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
        DriveError::NoSpace => {}
        failure => shared.fail_flush(*slot, failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use raidfabric_raid::array::{Failure, NoKeeper, Settings, WriteState};
    use raidfabric_raid::geometry::{Geometry, Level};

    fn array() -> Arc<Shared> {
        Shared::new(Settings {
            service: 0,
            uuid: [1; 16],
            geometry: Geometry::new(Level::Raid1, 2, 0, 1 << 20).unwrap(),
            data_offsets_bytes: vec![0, 0],
            cores: 1,
            active: true,
            resync_position_bytes: u64::MAX,
            keeper: Arc::new(NoKeeper),
        })
    }

    fn flush_failed(errno: i32) -> UpdateError {
        let source = std::io::Error::from_raw_os_error(errno);
        UpdateError::Flush { slot: 1, name: "drive".into(), source }
    }

    /// The superblock writer's flush failed, nobody was told, and a host's flush after it succeeded.
    #[test]
    fn a_flush_that_fails_here_fails_the_array() {
        let shared = array();
        believe(&flush_failed(libc::EIO), &shared);
        assert_eq!(shared.write_state(), WriteState::Failed);
        assert!(matches!(shared.failure(), Some(Failure::Flush { slot: 1, .. })));
    }

    #[test]
    fn lack_of_space_fails_nothing() {
        let shared = array();
        believe(&flush_failed(libc::ENOSPC), &shared);
        assert_eq!(shared.write_state(), WriteState::Active);
    }
}
