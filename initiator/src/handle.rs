//! Async commands from any number of tasks over one queue.
//!
//! One task owns the [`Queue`] and runs its steps; callers send it their commands and await the
//! answer. What callers have sent by the time the task runs leaves in one write. The task ends,
//! and the connection with it, when the last handle is dropped or the connection fails; then
//! everybody who waits gets the connection's error.

use bytes::Bytes;
use raidfabric_protocol::fabrics::FabricsCommand;
use raidfabric_protocol::nvme::cqe::Cqe;
use raidfabric_protocol::nvme::sqe::Sqe;
use tokio::sync::{mpsc, oneshot};

use crate::Error;
use crate::queue::{Completion, Data, Queue};

/// A command on its way to the task.
#[derive(Debug)]
struct Request {
    sqe: Sqe,
    data: Data,
    reply: oneshot::Sender<Result<Completion, Error>>,
}

/// A command that succeeded.
#[derive(Clone, Debug)]
pub struct Done {
    /// Completion queue entry.
    pub cqe: Cqe,
    /// The data read; empty for other commands.
    pub data: Bytes,
}

/// A queue of a controller, shared by cloning.
#[derive(Clone, Debug)]
pub struct IoQueue {
    requests: mpsc::Sender<Request>,
    qid: u16,
    depth: u16,
    sq_flow_control_disabled: bool,
}

impl IoQueue {
    /// Starts the task that runs `queue`, on the current runtime.
    pub(crate) fn start(queue: Queue, qid: u16) -> Self {
        let sq_flow_control_disabled = queue.is_sq_flow_control_disabled();
        let slots = queue.free_slots() + queue.outstanding();
        let (requests, receiver) = mpsc::channel(slots);
        tokio::spawn(run(queue, receiver));
        Self { requests, qid, depth: slots as u16, sq_flow_control_disabled }
    }

    /// QID.
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// Commands that may be outstanding; further ones wait here.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Whether SQ flow control is off, as asked for and granted in Connect.
    pub fn is_sq_flow_control_disabled(&self) -> bool {
        self.sq_flow_control_disabled
    }

    /// Sends a command and awaits its end, whatever its status. Identifier and data pointer are
    /// filled in.
    ///
    /// # Errors
    /// The connection has failed.
    pub async fn submit(&self, sqe: Sqe, data: Data) -> Result<Completion, Error> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request { sqe, data, reply }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }

    /// Sends a command and awaits its success. `name` stands in errors.
    ///
    /// # Errors
    /// The connection has failed, the status is an error, or data is damaged or missing.
    pub async fn command(&self, name: &'static str, sqe: Sqe, data: Data) -> Result<Done, Error> {
        let completion = self.submit(sqe, data).await?;
        completion.check(name)?;
        let data = match completion.data {
            Data::Read(buffer) => buffer.freeze(),
            _ => Bytes::new(),
        };
        Ok(Done { cqe: completion.cqe, data })
    }

    /// Ends this queue by the Disconnect command.
    ///
    /// # Errors
    /// As [`IoQueue::command`].
    pub async fn disconnect(&self) -> Result<(), Error> {
        let sqe = FabricsCommand::Disconnect { recfmt: 0 }.to_sqe(0);
        self.command("Disconnect", sqe, Data::None).await.map(|_| ())
    }
}

/// Those who wait for a command, by token.
#[derive(Default)]
struct Waiting {
    replies: Vec<Option<oneshot::Sender<Result<Completion, Error>>>>,
    free: Vec<usize>,
}

impl Waiting {
    fn insert(&mut self, reply: oneshot::Sender<Result<Completion, Error>>) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.replies.push(None);
            self.replies.len() - 1
        });
        if let Some(place) = self.replies.get_mut(at) {
            *place = Some(reply);
        }
        at as u64
    }

    fn answer(&mut self, token: u64, outcome: Result<Completion, Error>) {
        let at = token as usize;
        if let Some(reply) = self.replies.get_mut(at).and_then(Option::take) {
            self.free.push(at);
            // Whoever asked may have stopped waiting; the command has ended all the same.
            let _ = reply.send(outcome);
        }
    }

    fn fail_all(&mut self, error: &Error) {
        for reply in self.replies.iter_mut().filter_map(Option::take) {
            let _ = reply.send(Err(error.clone()));
        }
    }
}

async fn run(mut queue: Queue, mut requests: mpsc::Receiver<Request>) {
    let mut waiting = Waiting::default();
    let outcome = serve(&mut queue, &mut requests, &mut waiting).await;
    requests.close();
    let error = outcome.err().unwrap_or(Error::Closed);
    waiting.fail_all(&error);
    while let Ok(request) = requests.try_recv() {
        let _ = request.reply.send(Err(error.clone()));
    }
}

/// Runs until the last handle is gone.
async fn serve(
    queue: &mut Queue,
    requests: &mut mpsc::Receiver<Request>,
    waiting: &mut Waiting,
) -> Result<(), Error> {
    let mut completions = Vec::new();
    loop {
        while queue.free_slots() > 0
            && let Ok(request) = requests.try_recv()
        {
            submit(queue, request, waiting)?;
        }
        let progress = queue.step(&mut completions)?;
        let ended = !completions.is_empty();
        for completion in completions.drain(..) {
            waiting.answer(completion.token, Ok(completion));
        }
        if ended || progress.received_bytes > 0 {
            tokio::task::yield_now().await;
            continue;
        }
        let room = queue.free_slots() > 0;
        tokio::select! {
            ready = queue.ready() => ready?,
            request = requests.recv(), if room => match request {
                Some(request) => submit(queue, request, waiting)?,
                None => return Ok(()),
            },
        }
    }
}

fn submit(queue: &mut Queue, request: Request, waiting: &mut Waiting) -> Result<(), Error> {
    let token = waiting.insert(request.reply);
    match queue.submit(request.sqe, request.data, token) {
        Err(Error::Invalid(problem)) => waiting.answer(token, Err(Error::Invalid(problem))),
        outcome => outcome?,
    }
    Ok(())
}
