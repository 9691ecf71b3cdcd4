//! Work that is finished even if its caller stops waiting.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Work that continues on the runtime when its waiter is dropped. Until then it runs in the
/// waiter's task, so that its requests to a store keep their order.
pub(super) struct DetachedWork<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Handle,
}

impl<T: Send + 'static> DetachedWork<T> {
    pub(super) fn new(
        runtime: &Handle,
        work: impl Future<Output = T> + Send + 'static,
    ) -> DetachedWork<T> {
        DetachedWork { work: Some(Box::pin(work)), runtime: runtime.clone() }
    }
}

impl<T: Send + 'static> Future for DetachedWork<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let work = self.work.as_mut().expect("nobody polls what is done");
        let done = work.as_mut().poll(context);
        if done.is_ready() {
            self.work = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for DetachedWork<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(work);
        }
    }
}
