//! Asking the data cores to do something with their part of an array, and waiting for all of them.

use std::rc::Rc;
use std::sync::Arc;

use raidfabric_raid::array::Array;
use tokio::sync::oneshot;

use super::listen::Door;
use crate::core::{CoreMessage, OnArray};
use crate::runtime;
use crate::volume::MemberDrive;

/// The data cores.
#[derive(Clone)]
pub(super) struct Cores {
    doors: Arc<Vec<Door>>,
}

impl Cores {
    pub(super) fn new(doors: Arc<Vec<Door>>) -> Self {
        Self { doors }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.doors.len()
    }

    /// Has each core do something with its part of an array; gives their answers, without those of
    /// cores that have ended. `act` makes what a core does.
    pub(super) async fn each<T, F>(&self, array: usize, mut act: impl FnMut(usize) -> F) -> Vec<T>
    where
        T: Send + 'static,
        F: FnOnce(&Array<MemberDrive>) -> T + Send + 'static,
    {
        let mut waiting = Vec::with_capacity(self.doors.len());
        for (core, door) in self.doors.iter().enumerate() {
            let (answer, answered) = oneshot::channel();
            let work = act(core);
            let act = OnArray::new(move |array| {
                let _ = answer.send(work(array));
            });
            if door.inbox.send(CoreMessage::OnArray { array, act }).is_ok() {
                waiting.push(answered);
            }
        }
        let mut answers = Vec::with_capacity(waiting.len());
        for answered in waiting {
            answers.extend(answered.await.ok());
        }
        answers
    }

    /// Has the first core do something that takes a while with its part of an array. None if the
    /// core has ended.
    pub(super) async fn first<T, W, F>(&self, array: usize, work: W) -> Option<T>
    where
        T: Send + 'static,
        W: FnOnce(Rc<Array<MemberDrive>>) -> F + Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let act = OnArray::new(move |array: &Rc<Array<MemberDrive>>| {
            let array = Rc::clone(array);
            runtime::spawn(async move {
                let _ = answer.send(work(array).await);
            });
        });
        self.doors.first()?.inbox.send(CoreMessage::OnArray { array, act }).ok()?;
        answered.await.ok()
    }
}
