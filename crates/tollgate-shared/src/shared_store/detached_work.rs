//! Work that is finished even if its caller stops waiting.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

/// The runtime of tasks that no caller waits for, and the number of those that have not ended.
/// Clones share it.
#[derive(Clone, Debug)]
pub(super) struct BackgroundTasks {
    runtime: Handle,
    running: Arc<RunningTasks>,
}

#[derive(Debug, Default)]
struct RunningTasks {
    count: AtomicUsize,
    /// Notified when the last task has ended.
    idle: Notify,
}

/// A task that has not ended. Dropped also when the task panics or the runtime shuts down.
struct RunningTaskGuard(Arc<RunningTasks>);

impl RunningTaskGuard {
    fn new(running: &Arc<RunningTasks>) -> RunningTaskGuard {
        running.count.fetch_add(1, Ordering::AcqRel);
        RunningTaskGuard(Arc::clone(running))
    }
}

impl Drop for RunningTaskGuard {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

impl BackgroundTasks {
    pub(super) fn new(runtime: Handle) -> BackgroundTasks {
        BackgroundTasks { runtime, running: Arc::default() }
    }

    /// Number of tasks that have not ended.
    pub(super) fn count(&self) -> usize {
        self.running.count.load(Ordering::Acquire)
    }

    /// Starts a task; [`BackgroundTasks::wait_until_idle`] waits for it.
    pub(super) fn spawn(&self, work: impl Future<Output: Send> + Send + 'static) {
        let guard = RunningTaskGuard::new(&self.running);
        self.runtime.spawn(async move {
            let _guard = guard;
            work.await;
        });
    }

    /// Waits until all tasks have ended, at most for `timeout`.
    pub(super) async fn wait_until_idle(&self, timeout: Duration) {
        let idle = async {
            loop {
                // Made before the count is read, so that no notification is missed.
                let notified = self.running.idle.notified();
                if self.running.count.load(Ordering::Acquire) == 0 {
                    return;
                }
                notified.await;
            }
        };
        let _ = tokio::time::timeout(timeout, idle).await;
    }
}

/// Work that continues on the runtime when its waiter is dropped. Until then it runs in the
/// waiter's task, so that its requests to a store keep their order.
pub(super) struct DetachedWork<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: BackgroundTasks,
}

impl<T: Send + 'static> DetachedWork<T> {
    pub(super) fn new(
        runtime: &BackgroundTasks,
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
