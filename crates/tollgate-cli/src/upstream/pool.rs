//! The pool of one worker: idle connections to upstream servers.
//!
//! A worker is a thread with a runtime of its own, and a connection never leaves it. So the pool is a thread-local value
//! without a lock.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::http1::Http1Connection;
use super::registry::UpstreamServer;

/// Time after which an idle connection is closed. Servers close theirs as well, some after 5 seconds; a connection that
/// was closed is noticed when it is taken out.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Most idle connections to one server.
const IDLE_CONNECTIONS_MAX: usize = 256;

thread_local! {
    static POOL: RefCell<WorkerPool> = RefCell::default();
}

/// Idle connections of this worker.
#[derive(Default)]
struct WorkerPool {
    /// Connections by the id of their server, the last used at the end. Bound: one entry for each server that was used
    /// within the last [`IDLE_MAX`], with at most [`IDLE_CONNECTIONS_MAX`] connections.
    idle: HashMap<u64, Vec<IdleConnection>>,
    /// True once the task that closes old connections runs.
    has_sweeper: bool,
}

struct IdleConnection {
    connection: Http1Connection,
    since: Instant,
}

/// Takes the connection that was used last.
pub(super) fn take(server: &UpstreamServer) -> Option<Http1Connection> {
    POOL.with_borrow_mut(|pool| Some(pool.idle.get_mut(&server.id)?.pop()?.connection))
}

/// Keeps a connection for the next request.
pub(super) fn put(connection: Http1Connection) {
    POOL.with_borrow_mut(|pool| {
        if !pool.has_sweeper {
            pool.has_sweeper = true;
            tokio::spawn(sweep());
        }
        let idle = pool.idle.entry(connection.server_id()).or_default();
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(IdleConnection { connection, since: Instant::now() });
        }
    });
}

/// Closes old connections for as long as the worker runs.
async fn sweep() {
    loop {
        tokio::time::sleep(IDLE_MAX / 4).await;
        let now = Instant::now();
        POOL.with_borrow_mut(|pool| {
            for idle in pool.idle.values_mut() {
                idle.retain(|one| now.duration_since(one.since) < IDLE_MAX);
            }
            pool.idle.retain(|_, idle| !idle.is_empty());
        });
    }
}
