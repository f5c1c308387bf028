//! Doing several things at once and waiting for all of them, without heap allocation for up to
//! four: what nearly every request needs.

use std::future::Future;

use futures_util::future::{OptionFuture, join_all, join4};

/// Runs the first `count` of `futures` together, to the end of all, and passes the outputs to
/// `each` in order. All are polled before this waits for the first time.
pub(super) async fn fan_out<F: Future>(
    count: usize,
    futures: impl Iterator<Item = F>,
    mut each: impl FnMut(F::Output),
) {
    let mut futures = futures.take(count);
    if count == 1 {
        if let Some(only) = futures.next() {
            each(only.await);
        }
        return;
    }
    if count > 4 {
        return join_all(futures).await.into_iter().for_each(each);
    }
    // One shape for all small numbers, so that the caller's future has room for four, not for one
    // and two and three and four.
    let mut next = || OptionFuture::from(futures.next());
    let (a, b, c, d) = join4(next(), next(), next(), next()).await;
    [a, b, c, d].into_iter().flatten().for_each(each);
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn every_output_arrives_in_order() {
        for count in 0..9 {
            let mut outputs = Vec::new();
            let futures = (0..count).map(|n| async move { n });
            fan_out(count, futures, |n| outputs.push(n)).now_or_never().unwrap();
            assert_eq!(outputs, (0..count).collect::<Vec<_>>());
        }
    }
}
