//! `StoreCall`: an operation that calls the store, done at once if the store never waits, and boxed
//! otherwise. Its future is small either way, so callers may hold it in theirs.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// The future of an operation that calls the store.
pub(crate) enum StoreCall<F: Future> {
    /// It is done; empty when its output was taken.
    Done(Option<F::Output>),
    /// It waits. A network round trip follows, so the allocation does not count.
    Waiting(Pin<Box<F>>),
}

impl<F: Future> StoreCall<F> {
    /// Runs the operation to its end if the store answers at once.
    #[inline]
    pub(crate) fn new(operation: F, answers_at_once: bool) -> StoreCall<F> {
        match answers_at_once {
            true => StoreCall::Done(Some(expect_ready(operation))),
            false => StoreCall::Waiting(Box::pin(operation)),
        }
    }
}

/// Nothing in it is pinned but the box.
impl<F: Future> Unpin for StoreCall<F> {}

impl<F: Future> Future for StoreCall<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        match &mut *self {
            StoreCall::Done(output) => Poll::Ready(output.take().expect("polled once")),
            StoreCall::Waiting(operation) => operation.as_mut().poll(context),
        }
    }
}

/// Returns the result of a future that never waits, such as those of a gatekeeper whose store is in
/// this process.
///
/// # Panics
///
/// If the future is not ready.
#[inline]
pub fn expect_ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("a store in this process answers at once"),
    }
}
