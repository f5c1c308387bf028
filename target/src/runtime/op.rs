//! One operation on the ring: an entry for the kernel, and what must outlive it.
//!
//! Invariant: the entry points only at memory that `Kept` owns through a stable pointer, and names
//! only a descriptor that `Kept` holds open. tokio-uring keeps `Kept` until the kernel has
//! completed the operation, also when the future is dropped before, which makes both sound.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use io_uring::{cqueue, squeue};
use tokio_uring::{OneshotOutputTransform, UnsubmittedOneshot};

use super::late::{TimeLimit, Watch};

/// Hands back what was kept, with the kernel's answer.
struct GiveBack<Kept>(std::marker::PhantomData<Kept>);

impl<Kept> OneshotOutputTransform for GiveBack<Kept> {
    type Output = (io::Result<usize>, Kept);
    type StoredData = Kept;

    fn transform_oneshot_output(self, kept: Kept, entry: cqueue::Entry) -> Self::Output {
        let answer = entry.result();
        let result = if answer >= 0 {
            Ok(answer as usize)
        } else {
            Err(io::Error::from_raw_os_error(-answer))
        };
        (result, kept)
    }
}

/// Queues the operation for the core's next submission, and waits for its completion.
///
/// The caller upholds the module's invariant for `entry` and `kept`.
pub(super) fn submit<Kept: Unpin + 'static>(
    kept: Kept,
    entry: squeue::Entry,
) -> impl Future<Output = (io::Result<usize>, Kept)> {
    UnsubmittedOneshot::new(kept, GiveBack(std::marker::PhantomData), entry).submit()
}

/// As [`submit`], but waits no longer than until the operation is late: then there is no answer,
/// and the kernel keeps what was kept until it has ended.
pub(super) async fn submit_watched<Kept: Unpin + 'static>(
    watch: &Rc<Watch>,
    limit: &Rc<TimeLimit>,
    kept: Kept,
    entry: squeue::Entry,
) -> Option<(io::Result<usize>, Kept)> {
    let ticket = watch.begin(limit);
    let index = ticket.index();
    // Dropped after the operation: what has not ended by then is late.
    let _waiting = Waiting { watch, index };
    let mut operation = pin!(submit((kept, ticket), entry));
    poll_fn(|cx| match operation.as_mut().poll(cx) {
        Poll::Ready((result, (kept, _ticket))) => Poll::Ready(Some((result, kept))),
        Poll::Pending => watch.poll_late(index, cx).map(|()| None),
    })
    .await
}

/// Whoever waits for an operation.
struct Waiting<'a> {
    watch: &'a Watch,
    index: u32,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.watch.leave(self.index);
    }
}
