//! Time, as an array on a core sees it: the executor's, or a test's own.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A clock that can be waited on.
pub trait Timer {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;

    /// Waits for that long.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()>;
}

/// The same for those who do not know its type. Waiting allocates.
pub trait CoreTimer {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;

    /// Waits for that long.
    fn sleep<'a>(&'a self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + 'a>>;
}

impl<T: Timer> CoreTimer for T {
    fn now(&self) -> Duration {
        Timer::now(self)
    }

    fn sleep<'a>(&'a self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
        Box::pin(Timer::sleep(self, time))
    }
}

/// Time that stands still; who waits does not wait.
pub(super) struct Standstill;

impl Timer for Standstill {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    async fn sleep(&self, _time: Duration) {}
}
