//! `ServerDrain`: the end of a drain. Requests that still wait for their turn are answered instead of cut off, and
//! what was charged for them is given back before the process ends.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio::sync::watch;

/// The stop of a server, as its requests see it.
pub(crate) struct ServerDrain {
    /// True while the server stops.
    stopping: Arc<AtomicBool>,
    /// True once nobody may wait any longer.
    ended: watch::Sender<bool>,
    /// Has a receiver for each settlement that was begun while the server stops.
    settlements: watch::Sender<()>,
    /// The runtime of the server. Those of workers end with their last connection.
    runtime: Handle,
}

impl ServerDrain {
    /// The drain of a server with this runtime.
    pub(crate) fn new(stopping: &Arc<AtomicBool>, runtime: Handle) -> ServerDrain {
        ServerDrain {
            stopping: stopping.clone(),
            ended: watch::Sender::new(false),
            settlements: watch::Sender::new(()),
            runtime,
        }
    }

    /// Ends all waits for turns.
    pub(crate) fn end_waits(&self) {
        self.ended.send_replace(true);
    }

    /// Becomes ready when nobody may wait any longer.
    pub(crate) fn waits_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.subscribe();
        async move {
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    /// Runs a settlement that goes on without its request.
    pub(crate) fn settle(&self, settlement: impl Future<Output = ()> + Send + 'static) {
        if self.stopping.load(Ordering::Relaxed) {
            let open = self.settlements.subscribe();
            self.runtime.spawn(async move {
                settlement.await;
                drop(open);
            });
        } else if let Ok(runtime) = Handle::try_current() {
            // Without a runtime the worker has ended, and its charges stand.
            runtime.spawn(settlement);
        }
    }

    /// Waits until all settlements that were begun while the server stops have ended.
    pub(crate) async fn settled(&self) {
        self.settlements.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime::Builder;
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn settlements_outlive_the_worker_of_their_request_while_the_server_stops() {
        let server = Builder::new_current_thread().enable_all().build().unwrap();
        let worker = Builder::new_current_thread().enable_all().build().unwrap();
        let stopping = Arc::new(AtomicBool::new(true));
        let drain = ServerDrain::new(&stopping, server.handle().clone());
        let (answer, answered) = oneshot::channel::<()>();
        let (report, reported) = oneshot::channel();
        worker.block_on(async {
            drain.settle(async {
                answered.await.unwrap();
                report.send(()).unwrap();
            });
        });
        drop(worker);
        server.block_on(async {
            let early = tokio::time::timeout(Duration::ZERO, drain.settled()).await;
            assert!(early.is_err(), "the store has not answered");
            answer.send(()).unwrap();
            drain.settled().await;
            reported.await.unwrap();
        });
    }

    #[test]
    fn the_end_is_seen_by_those_who_wait_and_by_those_who_come_later() {
        let server = Builder::new_current_thread().enable_all().build().unwrap();
        let drain = ServerDrain::new(&Arc::default(), server.handle().clone());
        server.block_on(async {
            let before = drain.waits_ended();
            let early = tokio::time::timeout(Duration::ZERO, drain.waits_ended()).await;
            assert!(early.is_err(), "the drain has not ended");
            drain.end_waits();
            before.await;
            drain.waits_ended().await;
        });
    }
}
