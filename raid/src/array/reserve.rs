//! Memory for what has to be read, computed or written down before a command can be done: bounded
//! reserves of each core, of their own, so that it is there whatever the hosts' commands hold.
//! Passes over rows have one, and the write intent has another: who waits for the latter may hold
//! some of the former.
//!
//! All that a request needs is taken at once or not at all, and who waits does so in order
//! of arrival and holds nothing of the reserve meanwhile: so somebody always gets on. What is taken
//! belongs to a [`Claim`]; when one ends, the first of those who wait tries again. If no claim is
//! out and there is not enough all the same (drives that do not answer keep what they were given),
//! waiting would be for nothing, and the request is told so.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker};

use crate::buffer::{Buffer, Pool};

/// The reserve of one core.
pub(in crate::array) struct Reserve {
    pool: Pool,
    claims: Cell<usize>,
    waiting: RefCell<VecDeque<Waiting>>,
    next_number: Cell<u64>,
}

struct Waiting {
    number: u64,
    waker: Waker,
}

/// Something is taken from the reserve. To be dropped after the buffers.
pub(in crate::array) struct Claim<'a>(&'a Reserve);

impl Reserve {
    /// A reserve of `bytes`, with buffers of up to `max_bytes`. Memory is touched only as it is
    /// used.
    pub(in crate::array) fn new(bytes: usize, max_bytes: usize) -> io::Result<Self> {
        let pool = Pool::new(bytes.max(max_bytes), max_bytes)?;
        Ok(Self {
            pool,
            claims: Cell::new(0),
            waiting: RefCell::new(VecDeque::with_capacity(64)),
            next_number: Cell::new(0),
        })
    }

    /// Takes a buffer of each of these sizes, in this order, and puts them behind `buffers`. None
    /// if that will not be possible.
    pub(in crate::array) async fn take(
        &self,
        sizes: &[u32],
        buffers: &mut Vec<Option<Buffer>>,
    ) -> Option<Claim<'_>> {
        let mut place = Place { reserve: self, number: None };
        poll_fn(|cx| place.poll(cx, sizes, buffers)).await
    }

    /// One more buffer, for somebody who has a claim.
    pub(in crate::array) fn spare(&self, _claim: &Claim<'_>, len_bytes: usize) -> Option<Buffer> {
        self.pool.allocate(len_bytes)
    }

    fn try_take(&self, sizes: &[u32], buffers: &mut Vec<Option<Buffer>>) -> bool {
        let before = buffers.len();
        for &size in sizes {
            let buffer = self.pool.allocate(size as usize);
            if buffer.is_none() {
                buffers.truncate(before);
                return false;
            }
            buffers.push(buffer);
        }
        true
    }

    fn wake_first(&self) {
        if let Some(first) = self.waiting.borrow().front() {
            first.waker.wake_by_ref();
        }
    }

    #[cfg(test)]
    pub(in crate::array) fn in_use_bytes(&self) -> usize {
        self.pool.in_use_bytes()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.claims.set(self.0.claims.get() - 1);
        self.0.wake_first();
    }
}

/// A place among those who wait, once there are any.
struct Place<'a> {
    reserve: &'a Reserve,
    number: Option<u64>,
}

impl<'a> Place<'a> {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        sizes: &[u32],
        buffers: &mut Vec<Option<Buffer>>,
    ) -> Poll<Option<Claim<'a>>> {
        let reserve = self.reserve;
        let first = reserve.waiting.borrow().front().map(|first| first.number);
        if first == self.number {
            let is_there = reserve.try_take(sizes, buffers);
            if is_there || reserve.claims.get() == 0 {
                self.leave();
                if !is_there {
                    return Poll::Ready(None);
                }
                reserve.claims.set(reserve.claims.get() + 1);
                return Poll::Ready(Some(Claim(reserve)));
            }
        }
        let mut waiting = reserve.waiting.borrow_mut();
        match self.number {
            Some(number) => {
                if let Some(mine) = waiting.iter_mut().find(|waiting| waiting.number == number) {
                    mine.waker.clone_from(cx.waker());
                }
            }
            None => {
                let number = reserve.next_number.get();
                reserve.next_number.set(number + 1);
                waiting.push_back(Waiting { number, waker: cx.waker().clone() });
                self.number = Some(number);
            }
        }
        Poll::Pending
    }

    fn leave(&mut self) {
        let Some(number) = self.number.take() else { return };
        self.reserve.waiting.borrow_mut().retain(|waiting| waiting.number != number);
        self.reserve.wake_first();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::pin::pin;

    #[test]
    fn all_or_nothing_and_in_order() {
        let reserve = Reserve::new(64 << 10, 16 << 10).unwrap();
        let mut first = Vec::new();
        let claim = reserve.take(&[16 << 10; 3], &mut first).now_or_never().unwrap();
        assert!(claim.is_some() && first.len() == 3);
        let (mut second, mut third) = (Vec::new(), Vec::new());
        {
            let mut large = pin!(reserve.take(&[16 << 10, 16 << 10], &mut second));
            assert!(large.as_mut().now_or_never().is_none());
            let mut small = pin!(reserve.take(&[4096], &mut third));
            assert!(small.as_mut().now_or_never().is_none(), "nobody is overtaken");
            assert_eq!(reserve.in_use_bytes(), 48 << 10, "who waits holds nothing");
            first.clear();
            drop(claim);
            assert!(small.as_mut().now_or_never().is_none());
            let large = large.as_mut().now_or_never().unwrap();
            assert!(large.is_some());
            let small = small.as_mut().now_or_never().unwrap();
            assert!(small.is_some());
        }
        assert_eq!((second.len(), third.len()), (2, 1));
    }

    #[test]
    fn who_goes_away_lets_the_next_one_pass() {
        let reserve = Reserve::new(16 << 10, 16 << 10).unwrap();
        let (mut first, mut second, mut third) = (Vec::new(), Vec::new(), Vec::new());
        let _claim = reserve.take(&[8 << 10], &mut first).now_or_never().unwrap().unwrap();
        let mut large = Box::pin(reserve.take(&[16 << 10], &mut second));
        assert!(large.as_mut().now_or_never().is_none());
        let mut small = Box::pin(reserve.take(&[4096], &mut third));
        assert!(small.as_mut().now_or_never().is_none());
        drop(large);
        assert!(small.now_or_never().unwrap().is_some());
    }

    #[test]
    fn what_will_never_be_there_is_not_waited_for() {
        let reserve = Reserve::new(16 << 10, 16 << 10).unwrap();
        let mut buffers = Vec::new();
        assert!(reserve.take(&[16 << 10, 4096], &mut buffers).now_or_never().unwrap().is_none());
        assert!(buffers.is_empty() && reserve.in_use_bytes() == 0);
        // A drive that does not answer has the memory.
        let kept = reserve.pool.allocate(8 << 10).unwrap();
        assert!(reserve.take(&[16 << 10], &mut buffers).now_or_never().unwrap().is_none());
        drop(kept);
        assert!(reserve.take(&[16 << 10], &mut buffers).now_or_never().unwrap().is_some());
    }
}
