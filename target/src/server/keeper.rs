//! Makes the arrays' state durable for the data cores.
//!
//! A data core asks (the first write after clean, a resync that got on), the control plane writes
//! superblocks on its blocking pool, one request of an array after the other, and tells the array.

use std::sync::{Arc, Mutex, PoisonError};

use raidfabric_raid::array::{Keeper, Shared};
use raidfabric_raid::assemble::{ArrayHandle, UpdateError};
use raidfabric_raid::device::{Medium, OpenDevice};
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

fn carry_out<M: Medium>(
    request: Request,
    name: &str,
    handle: &mut ArrayHandle<M>,
    shared: &Shared,
) {
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
    use std::cell::{Cell, RefCell};
    use std::io;
    use std::rc::Rc;

    use raidfabric_raid::array::{Failure, NoKeeper, Settings, WriteState};
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
        let shared = Shared::new(Settings {
            service: 0,
            uuid: [1; 16],
            geometry: handle.info().engine_geometry().unwrap(),
            data_offsets_bytes: handle.members().iter().map(|m| m.data_offset_bytes()).collect(),
            cores: 1,
            active: false,
            resync_position_bytes: 0,
            keeper: Arc::new(NoKeeper),
        });
        carry_out(Request::Activate, "a", &mut handle, &shared);
        carry_out(Request::Checkpoint(1 << 20), "a", &mut handle, &shared);
        assert_eq!(shared.failure(), None);
        has_lost.set(true);
        carry_out(Request::Checkpoint(2 << 20), "a", &mut handle, &shared);
        let error = DriveError::Io { errno: 5 };
        assert_eq!(shared.failure(), Some(Failure::Flush { slot: 0, error }));
    }

    #[test]
    fn lack_of_space_fails_nothing() {
        let shared = Shared::new(Settings {
            service: 0,
            uuid: [1; 16],
            geometry: Geometry::new(geometry::Level::Raid1, 2, 0, 1 << 20).unwrap(),
            data_offsets_bytes: vec![0, 0],
            cores: 1,
            active: true,
            resync_position_bytes: u64::MAX,
            keeper: Arc::new(NoKeeper),
        });
        let source = io::Error::from_raw_os_error(libc::ENOSPC);
        believe(&UpdateError::Flush { slot: 1, name: "drive".into(), source }, &shared);
        assert_eq!(shared.write_state(), WriteState::Active);
    }
}
