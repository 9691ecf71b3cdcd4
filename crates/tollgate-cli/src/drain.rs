//! `ServerDrain`: the end of a drain. Requests that still wait for their turn are answered instead of cut off.

use std::future::Future;

use tokio::sync::watch;

/// The stop of a server, as the requests see it that wait.
#[derive(Default)]
pub(crate) struct ServerDrain {
    /// True once nobody may wait any longer.
    ended: watch::Sender<bool>,
}

impl ServerDrain {
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
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn the_end_is_seen_by_those_who_wait_and_by_those_who_come_later() {
        let drain = ServerDrain::default();
        let before = drain.waits_ended();
        let early = tokio::time::timeout(Duration::ZERO, drain.waits_ended()).await;
        assert!(early.is_err(), "the drain has not ended");
        drain.end_waits();
        before.await;
        drain.waits_ended().await;
    }
}
