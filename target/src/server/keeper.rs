//! Makes the arrays' state durable for the data cores.
//!
//! A data core asks (the first write after clean, a resync that got on), the control plane writes
//! superblocks on its blocking pool, one request of an array after the other, and tells the array.

use std::sync::{Arc, Mutex, PoisonError};

use raidfabric_raid::array::{Keeper, Shared};
use raidfabric_raid::assemble::ArrayHandle;
use raidfabric_raid::device::OpenDevice;
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
                shared.fail_active();
            }
        },
        Request::Checkpoint(position_bytes) => {
            if let Err(error) = handle.checkpoint_resync(position_bytes) {
                tracing::warn!(array = name, %error, "the progress of the resync is not recorded");
            }
        }
    }
}
