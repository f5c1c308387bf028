//! The blocks of a map of regions on the members: each is written by one core at a time, for all.
//!
//! A block has an *image*, what its bytes are to be. Whoever changes it and needs the change on the
//! members waits until a write that began with it has ended; if none is under way he writes, with
//! what everybody has changed by then. Versions tell what a write has in it.
//!
//! A write whose future was dropped may still land, on newer bits: from then on nothing can be
//! made durable, and all who ask are told so.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::super::error::{ArrayError, WriteFailure};
use crate::metadata::bitmap::BLOCK_BYTES;

/// The bytes of a block.
pub(super) type Image = [u8; BLOCK_BYTES];

/// See the file's head.
pub(super) struct Block(Mutex<State>);

struct State {
    image: Box<Image>,
    /// Counts the image's changes.
    version: u64,
    /// All changes up to this one are on every member that takes writes.
    durable: u64,
    is_taken: bool,
    is_abandoned: bool,
    waiting: Vec<Waker>,
}

/// The right to write a block; to be ended with [`Turn::end`].
pub(super) struct Turn<'a> {
    block: &'a Block,
    ended: bool,
}

impl Block {
    /// A block whose image is on the members, or is not.
    pub(super) fn new(image: Box<Image>, is_durable: bool) -> Self {
        let (version, durable) = (1, u64::from(is_durable));
        let waiting = Vec::new();
        let (is_taken, is_abandoned) = (false, false);
        Self(Mutex::new(State { image, version, durable, is_taken, is_abandoned, waiting }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the image, if `change` says that it did, and returns the version to wait for.
    pub(super) fn change(&self, change: impl FnOnce(&mut Image) -> bool) -> u64 {
        let mut state = self.state();
        if change(&mut state.image) {
            state.version += 1;
        }
        state.version
    }

    /// Looks at the image.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Image) -> T) -> T {
        look(&self.state().image)
    }

    /// The version to wait for if the members do not have the whole image.
    pub(super) fn outstanding(&self) -> Option<u64> {
        let state = self.state();
        (state.durable < state.version).then_some(state.version)
    }

    /// Waits until the members have the image of that version (nothing is returned), or it is the
    /// caller's turn to write. Without a version, always for a turn.
    pub(super) async fn turn(&self, version: Option<u64>) -> Result<Option<Turn<'_>>, ArrayError> {
        poll_fn(|cx| {
            let mut state = self.state();
            if state.is_abandoned {
                return Poll::Ready(Err(ArrayError::WriteFailed(WriteFailure::ArrayFailed)));
            }
            if version.is_some_and(|version| state.durable >= version) {
                return Poll::Ready(Ok(None));
            }
            if state.is_taken {
                if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    state.waiting.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
            state.is_taken = true;
            Poll::Ready(Ok(Some(Turn { block: self, ended: false })))
        })
        .await
    }
}

impl Turn<'_> {
    /// The image and its version.
    pub(super) fn image(&self) -> (Box<Image>, u64) {
        let state = self.block.state();
        (state.image.clone(), state.version)
    }

    /// Ends the turn; all members have the image up to `durable`, if that is given.
    pub(super) fn end(mut self, durable: Option<u64>) {
        self.ended = true;
        let mut state = self.block.state();
        state.durable = state.durable.max(durable.unwrap_or(0));
        state.is_taken = false;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut state = self.block.state();
        state.is_abandoned = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}
