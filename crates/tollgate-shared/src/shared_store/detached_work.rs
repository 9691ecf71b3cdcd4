//! Work that is done whether or not whoever began it waits for the end.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Work that goes on by itself when whoever waits for it goes. Until then it runs in the waiter's own task,
/// so that what it asks a store is asked before anything that is asked after it.
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
