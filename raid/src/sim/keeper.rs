//! The control plane of a simulated boot: it makes durable what the engine wants to be durable,
//! slowly, and marks the array clean when nothing has been written for a while.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use super::world::World;
use crate::array::{Keeper, Shared, Wanted};

/// Wakes the task that keeps records.
#[derive(Default)]
pub(crate) struct Bell {
    state: Mutex<(bool, Option<Waker>)>,
}

impl Keeper for Bell {
    fn wake(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 = true;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }
}

impl Bell {
    async fn rings(&self) {
        poll_fn(|cx| {
            let mut state = self.state.lock().unwrap();
            if std::mem::take(&mut state.0) {
                return Poll::Ready(());
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// How records are made.
pub(crate) trait Records {
    /// Makes durable what is wanted; false if that could not be done and will be wanted
    /// differently.
    async fn record(&self, wanted: &Wanted) -> bool;
}

/// Serves the keeper's bell for the life of a boot.
pub(crate) async fn keep(
    bell: Arc<Bell>,
    shared: Arc<Shared>,
    world: Rc<World>,
    records: impl Records,
) {
    loop {
        bell.rings().await;
        loop {
            let wanted = shared.wanted();
            if shared.recorded_version() >= wanted.version {
                break;
            }
            world.trace(|| format!("keeper: records {wanted:?}"));
            if records.record(&wanted).await {
                world.trace(|| format!("keeper: version {} is recorded", wanted.version));
                shared.recorded(wanted.version);
            } else if shared.wanted().version == wanted.version {
                // For want of space: whoever needs it asks again.
                break;
            }
            if world.one_in(8) {
                world.sleep_ns(world.below(500_000)).await;
            }
        }
    }
}

/// Safe mode: has the array marked clean whenever nothing was written for `delay`.
pub(crate) async fn rest(
    shared: Arc<Shared>,
    world: Rc<World>,
    delay: Duration,
    ends: Rc<Cell<bool>>,
) {
    let mut seen = shared.host_operations();
    loop {
        world.sleep_ns(delay.as_nanos() as u64).await;
        if ends.get() {
            return;
        }
        let operations = shared.host_operations();
        if operations == seen && shared.try_clean() {
            world.trace(|| "keeper: nothing is written, so the array shall be clean".into());
        }
        seen = operations;
    }
}
