//! The deadline that a client sets for its request.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// A deadline. Its timer starts when the request first has to wait: most never do.
#[derive(Default)]
pub(super) struct CallDeadline {
    /// Time allowed; `None` is without end.
    timeout: Option<Duration>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl CallDeadline {
    pub(super) fn new(timeout: Option<Duration>) -> CallDeadline {
        CallDeadline { timeout, timer: None }
    }

    /// Ready when the time has passed. The first call starts the timer.
    pub(super) fn poll_passed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(timeout) = self.timeout else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        timer.as_mut().poll(context)
    }

    /// Runs `work` until the deadline. `None` if it is not done in time; then it is dropped.
    pub(super) async fn within<T>(mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            ready!(self.poll_passed(context));
            Poll::Ready(None)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    #[test]
    fn work_that_is_never_done_is_dropped() {
        let clock = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let within = |timeout| CallDeadline::new(timeout);
        let short = Some(Duration::from_nanos(1));
        assert_eq!(clock.block_on(within(short).within(pending::<()>())), None);
        let none = Some(Duration::ZERO);
        assert_eq!(clock.block_on(within(none).within(ready(1))), Some(1), "done at once");
        assert_eq!(clock.block_on(within(None).within(ready(1))), Some(1));
    }
}
