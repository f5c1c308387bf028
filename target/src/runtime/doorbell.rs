//! A doorbell: how another thread wakes a data core.
//!
//! An eventfd that is never read: with edge-triggered readiness each ring is a new edge, so a wake
//! costs one system call on each side. Ringing any number of times before the core looks wakes it
//! once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The side that rings; clones ring the same bell.
#[derive(Clone, Debug)]
pub struct Doorbell {
    bell: Arc<OwnedFd>,
}

impl Doorbell {
    /// A bell nobody waits for yet.
    ///
    /// # Errors
    /// What eventfd(2) answers, as when the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell: Arc::new(bell) })
    }

    /// Wakes whoever waits. Never blocks: a counter at its limit is as good as rung.
    pub fn ring(&self) {
        let _ = rustix::io::write(self.bell.as_fd(), &1u64.to_ne_bytes());
    }

    /// The waiting side, to be used on one core only.
    ///
    /// # Errors
    /// What epoll_ctl(2) answers.
    pub fn listen(&self) -> io::Result<Listener> {
        // SAFETY: the duplicate is an open descriptor of its own, owned by the registration and
        // closed with it, never replaced in between.
        let fd =
            unsafe { AsyncFd::register_with_interest(self.bell.try_clone()?, Interest::READABLE) }?;
        Ok(Listener { fd })
    }
}

/// The side that waits.
#[derive(Debug)]
pub struct Listener {
    fd: AsyncFd<OwnedFd>,
}

impl Listener {
    /// Waits until the bell was rung since the last call returned.
    ///
    /// # Errors
    /// Only when the executor is going away.
    pub async fn rung(&self) -> io::Result<()> {
        self.fd.readable().await?.clear_ready();
        Ok(())
    }
}
