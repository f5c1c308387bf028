//! Operations on drives that do not end in time.
//!
//! A core, which is a thread, has one [`Watch`] over all operations of its drives. Its owner calls [`Watch::scan`]
//! every second or so; an operation that has been there for the drive's timeout is *late* then:
//! who waits for it is told so, and goes on without it. The kernel still has it, and with it the
//! buffer and the descriptor; when it ends at last its [`Ticket`] goes, and it is no longer
//! counted. There is no timer per operation, and nothing is allocated for one once the table has
//! grown to the number of operations that are under way at once.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// How long a drive may take for an operation, unless said otherwise.
pub const MEMBER_TIMEOUT: Duration = Duration::from_secs(30);

/// The late operations of one drive, on all cores, which have not ended yet.
#[derive(Clone, Debug, Default)]
pub struct LateOperations(Arc<AtomicUsize>);

impl LateOperations {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// How long a drive is waited for, and what it owes.
#[derive(Clone, Debug)]
pub struct TimeLimit {
    /// How long an operation may take.
    pub timeout: Duration,
    /// Shared by all handles on the drive.
    pub late: LateOperations,
}

impl Default for TimeLimit {
    fn default() -> Self {
        Self { timeout: MEMBER_TIMEOUT, late: LateOperations::default() }
    }
}

/// The operations of one core. See the file's head.
#[derive(Debug, Default)]
pub struct Watch(RefCell<Table>);

#[derive(Debug, Default)]
struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Debug)]
enum Entry {
    Free,
    /// Under way; seen by a scan at that time, first.
    Waiting {
        limit: Rc<TimeLimit>,
        seen_at: Option<Instant>,
        waker: Option<Waker>,
    },
    Late(Rc<TimeLimit>),
}

impl Entry {
    /// Makes an operation that is under way late, and returns who waits for it.
    fn make_late(&mut self) -> Option<Waker> {
        let Self::Waiting { limit, waker, .. } = self else { return None };
        limit.late.0.fetch_add(1, Ordering::AcqRel);
        let (limit, waker) = (Rc::clone(limit), waker.take());
        *self = Self::Late(limit);
        waker
    }
}

thread_local! {
    static WATCH: Rc<Watch> = Rc::default();
}

impl Watch {
    /// That of this thread, which is one core.
    pub fn of_this_core() -> Rc<Self> {
        WATCH.with(Rc::clone)
    }

    /// An operation begins.
    pub(super) fn begin(self: &Rc<Self>, limit: &Rc<TimeLimit>) -> Ticket {
        let mut table = self.0.borrow_mut();
        let limit = Rc::clone(limit);
        let entry = Entry::Waiting { limit, seen_at: None, waker: None };
        let index = match table.free.pop() {
            Some(index) => {
                table.entries[index as usize] = entry;
                index
            }
            None => {
                table.entries.push(entry);
                (table.entries.len() - 1) as u32
            }
        };
        Ticket { watch: Rc::clone(self), index }
    }

    /// Whether the operation is late; if not, whoever asks is woken when it is.
    pub(super) fn poll_late(&self, index: u32, cx: &Context<'_>) -> Poll<()> {
        match self.0.borrow_mut().entries.get_mut(index as usize) {
            Some(Entry::Waiting { waker: Some(waker), .. }) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            Some(Entry::Waiting { waker, .. }) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Looks for operations that have become late; returns how many have.
    pub fn scan(&self, now: Instant) -> usize {
        self.end_waits(|limit, seen_at| {
            let seen_at = *seen_at.get_or_insert(now);
            now.saturating_duration_since(seen_at) >= limit.timeout
        })
    }

    /// The operations of one handle count as late from now on.
    pub(super) fn give_up(&self, handle: &Rc<TimeLimit>) {
        self.end_waits(|limit, _| Rc::ptr_eq(limit, handle));
    }

    /// Nobody waits for an operation any more. If the kernel still has it, it is late.
    pub(super) fn leave(&self, index: u32) {
        if let Some(entry) = self.0.borrow_mut().entries.get_mut(index as usize) {
            entry.make_late();
        }
    }

    fn end_waits(
        &self,
        mut is_meant: impl FnMut(&Rc<TimeLimit>, &mut Option<Instant>) -> bool,
    ) -> usize {
        let (mut count, mut woken) = (0, Vec::new());
        for entry in &mut self.0.borrow_mut().entries {
            if let Entry::Waiting { limit, seen_at, .. } = entry
                && is_meant(limit, seen_at)
            {
                woken.extend(entry.make_late());
                count += 1;
            }
        }
        // Outside of the table, which those who are woken look at.
        woken.into_iter().for_each(Waker::wake);
        count
    }
}

/// One operation, for as long as the kernel has it: kept with what the operation uses.
#[derive(Debug)]
pub(super) struct Ticket {
    watch: Rc<Watch>,
    index: u32,
}

impl Ticket {
    /// For [`Watch::poll_late`].
    pub(super) fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut table = self.watch.0.borrow_mut();
        if let Some(entry) = table.entries.get_mut(self.index as usize)
            && let Entry::Late(limit) = std::mem::replace(entry, Entry::Free)
        {
            limit.late.0.fetch_sub(1, Ordering::AcqRel);
        }
        table.free.push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_late(watch: &Watch, ticket: &Ticket) -> bool {
        watch.poll_late(ticket.index(), &Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn an_operation_is_late_after_the_timeout_and_counted_until_it_ends() {
        let watch = Rc::new(Watch::default());
        let second = Duration::from_secs(1);
        let limit = Rc::new(TimeLimit { timeout: 3 * second, ..TimeLimit::default() });
        let hasty = Rc::new(TimeLimit { timeout: second, ..TimeLimit::default() });
        let start = Instant::now();
        let (slow, quick) = (watch.begin(&limit), watch.begin(&limit));
        let other = watch.begin(&hasty);
        assert!(!is_late(&watch, &slow) && !is_late(&watch, &quick) && !is_late(&watch, &other));
        // The time runs from the first scan that sees it, so nobody is late too early.
        assert_eq!(watch.scan(start), 0);
        assert_eq!(watch.scan(start + 2 * second), 1);
        assert!(is_late(&watch, &other) && !is_late(&watch, &slow));
        assert_eq!((hasty.late.count(), limit.late.count()), (1, 0));
        drop(quick);
        assert_eq!(watch.scan(start + 3 * second), 1);
        assert_eq!(watch.scan(start + 9 * second), 0, "told once");
        assert!(is_late(&watch, &slow));
        assert_eq!(limit.late.count(), 1);
        drop(slow);
        assert_eq!((hasty.late.count(), limit.late.count()), (1, 0));
        // The places are used again.
        let (a, b) = (watch.begin(&limit), watch.begin(&limit));
        assert!(!is_late(&watch, &a) && !is_late(&watch, &b));
        drop((a, b, other));
        assert_eq!((watch.0.borrow().entries.len(), watch.0.borrow().free.len()), (3, 3));
        assert_eq!(hasty.late.count(), 0);
    }

    /// What a handle has given up, or nobody waits for any more, is late before its time: it must
    /// be over before the drive is used again.
    #[test]
    fn what_is_given_up_is_late_at_once() {
        let watch = Rc::new(Watch::default());
        let (here, there) = (Rc::new(TimeLimit::default()), Rc::new(TimeLimit::default()));
        let (first, second) = (watch.begin(&here), watch.begin(&here));
        let other = watch.begin(&there);
        watch.give_up(&here);
        assert!(is_late(&watch, &first) && is_late(&watch, &second) && !is_late(&watch, &other));
        assert_eq!((here.late.count(), there.late.count()), (2, 0));
        watch.leave(first.index());
        watch.leave(other.index());
        assert_eq!((here.late.count(), there.late.count()), (2, 1));
        let ended = first.index();
        drop((first, second, other));
        watch.leave(ended);
        assert_eq!((here.late.count(), there.late.count()), (0, 0));
    }
}
