//! Several futures that are polled by one task, so that all requests are sent before the first answer is awaited.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Number of calls that one batch has in flight at once. A node of Redis takes 4,096 calls of all callers
/// together and fails the next ones, which opens its breaker; so 16 batches fit.
pub const BATCH_CALLS_MAX: usize = 256;

/// Waits for all futures and returns their outputs in order. They are polled in order, so their requests are
/// sent in order.
pub async fn join_all<T>(mut futures: Vec<Pin<Box<impl Future<Output = T>>>>) -> Vec<T> {
    let mut outputs: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut missing = false;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *output = Some(value),
                    Poll::Pending => missing = true,
                }
            }
        }
        if missing { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
