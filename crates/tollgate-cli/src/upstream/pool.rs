//! The pool of one worker: its connections to upstream servers.
//!
//! A worker is a thread with a runtime of its own, and a connection never leaves it. So the pool is a thread-local value
//! without a lock. A request needs a permit for an HTTP/1.1 connection, and an HTTP/2 connection holds one: a connection is
//! opened only if none is idle, so that there are never more connections than permits.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, oneshot};

use super::error::ForwardError;
use super::http1::Http1Connection;
use super::http2::{Http2Connection, Http2Stream};
use super::server::UpstreamServer;

/// Time after which an idle connection is closed. Servers close theirs as well, some after 5 seconds; a connection that
/// was closed is noticed when it is taken out.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Sweeps within that time. A connection is closed by the first sweep after it.
const SWEEPS_PER_IDLE_MAX: u64 = 2;

/// Most idle connections to one server.
const IDLE_CONNECTIONS_MAX: usize = 256;

/// Most requests that wait for a connection to one server.
const WAITING_MAX: usize = 1_024;

thread_local! {
    static POOL: RefCell<WorkerPool> = RefCell::default();
}

/// The connections of this worker.
#[derive(Default)]
struct WorkerPool {
    /// Connections by the id of their server. Bound: one entry for each server that was used within the last
    /// [`IDLE_MAX`].
    servers: BTreeMap<u64, ServerPool>,
    /// Number of sweeps so far: the clock of idle connections.
    sweeps: u64,
    /// True once the task that closes old connections runs.
    has_sweeper: bool,
}

/// The connections to one server.
#[derive(Default)]
struct ServerPool {
    /// Idle HTTP/1.1 connections, the last used at the end. Bound: [`IDLE_CONNECTIONS_MAX`].
    idle: Vec<IdleConnection>,
    /// HTTP/2 connections. Bound: each holds a permit.
    http2: Vec<Arc<Http2Connection>>,
    /// Number of permits.
    in_use: usize,
    /// Requests that wait for a permit. Bound: [`WAITING_MAX`].
    waiting: VecDeque<oneshot::Sender<PoolPermit>>,
    /// Held while an HTTP/2 connection opens, so that requests share it.
    opening: Arc<Mutex<()>>,
}

struct IdleConnection {
    connection: Http1Connection,
    /// Number of sweeps before it became idle.
    since: u64,
}

impl ServerPool {
    fn is_unused(&self) -> bool {
        self.idle.is_empty() && self.http2.is_empty() && self.in_use == 0 && self.waiting.is_empty()
    }
}

/// The right to use a connection to a server. It is passed to the first request that waits when it is dropped.
#[derive(Debug)]
pub(crate) struct PoolPermit {
    server: u64,
    /// False once it was given back.
    counts: bool,
}

impl Drop for PoolPermit {
    fn drop(&mut self) {
        if !self.counts {
            return;
        }
        loop {
            // The thread may be about to end, without a pool.
            let waiting = POOL.try_with(|pool| {
                let mut pool = pool.borrow_mut();
                let server = pool.servers.get_mut(&self.server)?;
                let waiting = server.waiting.pop_front();
                server.in_use -= usize::from(waiting.is_none());
                waiting
            });
            let Ok(Some(waiting)) = waiting else { return };
            let passed_on = PoolPermit { server: self.server, counts: true };
            match waiting.send(passed_on) {
                Ok(()) => return,
                // That request is gone: the permit is for the next one.
                Err(mut back) => back.counts = false,
            }
        }
    }
}

/// Takes a permit for a connection to a server, of at most `most`; waits for one at most this long.
pub(super) async fn permit(
    server: &UpstreamServer,
    most: usize,
    wait: Duration,
) -> Result<PoolPermit, ForwardError> {
    let permit = || PoolPermit { server: server.id, counts: true };
    let waiting = POOL.with_borrow_mut(|pool| {
        let pool = pool.servers.entry(server.id).or_default();
        if pool.in_use < most && pool.waiting.is_empty() {
            pool.in_use += 1;
            return Ok(None);
        }
        pool.waiting.retain(|waiting| !waiting.is_closed());
        if pool.waiting.len() >= WAITING_MAX {
            return Err(ForwardError::UpstreamBusy);
        }
        let (sender, receiver) = oneshot::channel();
        pool.waiting.push_back(sender);
        Ok(Some(receiver))
    });
    match waiting? {
        None => Ok(permit()),
        Some(waiting) => match tokio::time::timeout(wait, waiting).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(ForwardError::UpstreamBusy),
        },
    }
}

/// Takes the HTTP/1.1 connection that was used last.
pub(super) fn take(server: &UpstreamServer) -> Option<Http1Connection> {
    POOL.with_borrow_mut(|pool| Some(pool.servers.get_mut(&server.id)?.idle.pop()?.connection))
}

/// Keeps a connection for the next request.
pub(super) fn put(mut connection: Http1Connection) {
    // Given back after the connection: a request that waits takes it.
    let permit = connection.permit.take();
    let left = POOL.with_borrow_mut(|pool| {
        pool.start_sweeper();
        let since = pool.sweeps;
        let idle = &mut pool.servers.entry(connection.server_id()).or_default().idle;
        if idle.len() >= IDLE_CONNECTIONS_MAX {
            return Some(connection);
        }
        idle.push(IdleConnection { connection, since });
        None
    });
    drop((left, permit));
}

/// Begins a stream on an HTTP/2 connection that has room for one.
pub(super) fn take_stream(server: &UpstreamServer) -> Option<Http2Stream> {
    let (stream, closed) = POOL.with_borrow_mut(|pool| {
        let connections = &mut pool.servers.get_mut(&server.id)?.http2;
        let closed: Vec<_> = connections.extract_if(.., |one| one.is_closed()).collect();
        Some((connections.iter().find_map(Http2Stream::begin), closed))
    })?;
    // Its permit needs the pool.
    drop(closed);
    stream
}

/// Keeps an HTTP/2 connection for further requests.
pub(super) fn put_http2(server: &UpstreamServer, connection: Arc<Http2Connection>) {
    POOL.with_borrow_mut(|pool| {
        pool.start_sweeper();
        pool.servers.entry(server.id).or_default().http2.push(connection);
    });
}

/// The lock of requests that open an HTTP/2 connection.
pub(super) fn opening(server: &UpstreamServer) -> Arc<Mutex<()>> {
    POOL.with_borrow_mut(|pool| pool.servers.entry(server.id).or_default().opening.clone())
}

impl WorkerPool {
    fn start_sweeper(&mut self) {
        if !self.has_sweeper {
            self.has_sweeper = true;
            tokio::spawn(sweep());
        }
    }

    /// Removes connections that were idle for long, and returns them: their permits need the pool.
    fn remove_idle(&mut self) -> Vec<Arc<Http2Connection>> {
        self.sweeps += 1;
        // The first of these sweeps may have come just after the connection became idle.
        let oldest = self.sweeps.saturating_sub(SWEEPS_PER_IDLE_MAX);
        let mut old = Vec::new();
        for server in self.servers.values_mut() {
            server.idle.retain(|one| one.since >= oldest);
            old.extend(server.http2.extract_if(.., |one| one.is_closed() || one.was_idle()));
        }
        self.servers.retain(|_, server| !server.is_unused());
        old
    }
}

/// Closes old connections for as long as the worker runs.
async fn sweep() {
    loop {
        tokio::time::sleep(IDLE_MAX / SWEEPS_PER_IDLE_MAX as u32).await;
        let old = POOL.with_borrow_mut(WorkerPool::remove_idle);
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tollgate_rules::UpstreamUrl;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[tokio::test]
    async fn permits_are_bounded_and_passed_on_in_order() {
        let server = UpstreamServer::new(UpstreamUrl::parse("http://127.0.0.1").unwrap());
        let one = permit(&server, 2, HOUR).await.expect("the first");
        let two = permit(&server, 2, HOUR).await.expect("the second");
        let late = permit(&server, 2, Duration::ZERO).await;
        assert_eq!(late.err(), Some(ForwardError::UpstreamBusy));
        let mut context = Context::from_waker(Waker::noop());
        let (mut third, mut fourth) =
            (pin!(permit(&server, 2, HOUR)), pin!(permit(&server, 2, HOUR)));
        assert!(third.as_mut().poll(&mut context).is_pending());
        assert!(fourth.as_mut().poll(&mut context).is_pending());
        drop(one);
        assert!(fourth.as_mut().poll(&mut context).is_pending(), "the third comes first");
        let Poll::Ready(Ok(three)) = third.as_mut().poll(&mut context) else { panic!("its turn") };
        drop(two);
        let Poll::Ready(Ok(four)) = fourth.as_mut().poll(&mut context) else { panic!("its turn") };
        drop((three, four));
        let in_use = POOL.with_borrow(|pool| pool.servers[&server.id].in_use);
        assert_eq!(in_use, 0);
    }

    #[tokio::test]
    async fn a_request_that_left_the_line_leaves_its_permit_to_the_next() {
        let server = UpstreamServer::new(UpstreamUrl::parse("http://127.0.0.1").unwrap());
        let one = permit(&server, 1, HOUR).await.expect("the first");
        let mut context = Context::from_waker(Waker::noop());
        let mut next = Box::pin(permit(&server, 1, HOUR));
        let mut last = Box::pin(permit(&server, 1, HOUR));
        assert!(next.as_mut().poll(&mut context).is_pending());
        assert!(last.as_mut().poll(&mut context).is_pending());
        // The permit has been sent to it, but it leaves before it looks.
        drop(one);
        drop(next);
        assert!(last.as_mut().poll(&mut context).is_ready());
        drop(last);
        assert!(permit(&server, 1, Duration::ZERO).await.is_ok(), "all were given back");
    }
}
