//! Workers: threads that serve connections, each with a runtime of its own.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::connection_caps::ConnectionPermit;
use super::protocol::{AgreedVersion, Protocol};
use super::socket::AcceptedStream;
use super::watchdog::{ConnectionWatchdog, WatchGuard};

/// Bound of the queue of new connections of one worker; beyond it the acceptor waits.
const QUEUED_CONNECTIONS_MAX: usize = 256;

/// Time for which idle connections stay open while the server stops: a request that is already on its way still gets a
/// response, with `Connection: close`.
const IDLE_DRAIN_TIME: Duration = Duration::from_millis(250);

/// A new connection.
pub(crate) struct NewConnection {
    pub(crate) stream: AcceptedStream,
    pub(crate) peer: SocketAddr,
    pub(crate) permit: ConnectionPermit,
}

/// The workers of a listener. Dropping it lets them finish.
pub(crate) struct Workers {
    workers: Vec<Worker>,
}

struct Worker {
    queue: mpsc::Sender<(NewConnection, LoadGuard)>,
    /// Number of its open connections.
    load: Arc<AtomicUsize>,
}

/// Closed when all workers have ended.
pub(crate) type WorkersEnded = mpsc::Receiver<()>;

impl Workers {
    /// Starts `count` workers.
    pub(crate) fn start<P: Protocol>(
        name: &str,
        count: usize,
        protocol: &Arc<P>,
        tls: Option<&TlsAcceptor>,
    ) -> io::Result<(Workers, WorkersEnded)> {
        let (alive, ended) = mpsc::channel(1);
        let mut workers = Vec::with_capacity(count);
        for index in 0..count {
            let (arrivals, queue) = mpsc::channel(QUEUED_CONNECTIONS_MAX);
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            let (protocol, tls, alive) = (protocol.clone(), tls.cloned(), alive.clone());
            thread::Builder::new().name(format!("{name}-{index}")).spawn(move || {
                runtime.block_on(run_worker(queue, protocol, tls));
                drop(alive);
            })?;
            workers.push(Worker { queue: arrivals, load: Arc::default() });
        }
        Ok((Workers { workers }, ended))
    }

    /// Assigns a connection to the worker with the fewest.
    pub(crate) async fn assign(&self, arrival: NewConnection) {
        let least = self.workers.iter().min_by_key(|worker| worker.load.load(Ordering::Relaxed));
        let Some(worker) = least else { return };
        worker.load.fetch_add(1, Ordering::Relaxed);
        let load = LoadGuard(worker.load.clone());
        // If the worker is gone, the connection is closed.
        let _ = worker.queue.send((arrival, load)).await;
    }
}

/// One connection in a worker's load.
struct LoadGuard(Arc<AtomicUsize>);

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

thread_local! {
    /// Held by everything that the worker of this thread waits for before it ends.
    static OPEN: RefCell<Option<mpsc::WeakSender<()>>> = const { RefCell::new(None) };
}

/// Runs a task on the worker of this thread, which does not end before the task: a task that has begun elsewhere could not
/// go on without its timers. Nothing runs it on a thread without a runtime.
pub(crate) fn spawn_on_worker(task: impl Future<Output = ()> + Send + 'static) {
    let open = OPEN.with_borrow(|open| open.as_ref().and_then(mpsc::WeakSender::upgrade));
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(async move {
            task.await;
            drop(open);
        });
    }
}

async fn run_worker<P: Protocol>(
    mut queue: mpsc::Receiver<(NewConnection, LoadGuard)>,
    protocol: Arc<P>,
    tls: Option<TlsAcceptor>,
) {
    let watchdog = Arc::new(ConnectionWatchdog::default());
    tokio::spawn(run_watchdog(watchdog.clone(), protocol.clone()));
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    OPEN.set(Some(open.downgrade()));
    while let Some((arrival, load)) = queue.recv().await {
        let guards = (load, open.clone());
        let watched = watchdog.watch(arrival.permit.activity().clone());
        let (protocol, tls) = (protocol.clone(), tls.clone());
        tokio::spawn(async move {
            serve_connection(arrival, watched, protocol, tls).await;
            drop(guards);
        });
    }
    drop(open);
    watchdog.finish_http2();
    // The wait ends when the last connection closes.
    if tokio::time::timeout(IDLE_DRAIN_TIME, all_closed.recv()).await.is_err() {
        watchdog.finish_all();
        all_closed.recv().await;
    }
}

async fn run_watchdog<P: Protocol>(watchdog: Arc<ConnectionWatchdog>, protocol: Arc<P>) {
    loop {
        tokio::time::sleep(protocol.timeouts().check_interval()).await;
        watchdog.check_all(protocol.timeouts());
    }
}

/// Serves a new connection, after the TLS handshake if there is one.
async fn serve_connection<P: Protocol>(
    arrival: NewConnection,
    watched: WatchGuard,
    protocol: Arc<P>,
    tls: Option<TlsAcceptor>,
) {
    let NewConnection { stream, peer, permit } = arrival;
    let activity = watched.activity.clone();
    let Ok(stream) = stream.into_connection() else { return };
    match tls {
        None => protocol.serve(stream, peer, AgreedVersion::Any, activity).await,
        Some(tls) => {
            let handshake =
                tokio::time::timeout(protocol.timeouts().head, tls.accept(stream)).await;
            let Ok(Ok(stream)) = handshake else { return };
            let agreed = AgreedVersion::of(stream.get_ref().1.alpn_protocol());
            protocol.serve(stream, peer, agreed, activity).await;
        }
    }
    drop((watched, permit));
}
