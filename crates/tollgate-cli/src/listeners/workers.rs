//! Workers: threads that serve connections, each with a runtime of its own.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::connection_caps::Place;
use super::patrol::{Patrol, Watched};
use super::protocol::Protocol;

/// Connections that wait for one worker to begin. Bound of the channel; the acceptor waits.
const ARRIVALS_MAX: usize = 256;

/// How long an idle connection stays open while the server stops: a request that is already on
/// its way still gets an answer, with a request to close.
const LINGER: Duration = Duration::from_millis(250);

/// A new connection.
pub(crate) struct Arrival {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) place: Place,
}

/// The workers of a listener. Dropping it lets them finish.
pub(crate) struct Workers {
    workers: Vec<Worker>,
}

struct Worker {
    arrivals: mpsc::Sender<(Arrival, Load)>,
    /// Connections it has been given and that have not ended.
    load: Arc<AtomicUsize>,
}

/// Closed when all workers have ended.
pub(crate) type Ended = mpsc::Receiver<()>;

impl Workers {
    /// Starts so many.
    pub(crate) fn start<P: Protocol>(
        name: &str,
        count: usize,
        protocol: &Arc<P>,
        tls: Option<&TlsAcceptor>,
    ) -> io::Result<(Workers, Ended)> {
        let (alive, ended) = mpsc::channel(1);
        let mut workers = Vec::with_capacity(count);
        for index in 0..count {
            let (arrivals, queue) = mpsc::channel(ARRIVALS_MAX);
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            let (protocol, tls, alive) = (protocol.clone(), tls.cloned(), alive.clone());
            thread::Builder::new().name(format!("{name}-{index}")).spawn(move || {
                runtime.block_on(work(queue, protocol, tls));
                drop(alive);
            })?;
            workers.push(Worker { arrivals, load: Arc::default() });
        }
        Ok((Workers { workers }, ended))
    }

    /// Gives a connection to the worker with the fewest.
    pub(crate) async fn take(&self, arrival: Arrival) {
        let least = self.workers.iter().min_by_key(|worker| worker.load.load(Ordering::Relaxed));
        let Some(worker) = least else { return };
        worker.load.fetch_add(1, Ordering::Relaxed);
        let load = Load(worker.load.clone());
        // A worker that is gone takes nothing; the connection is closed.
        let _ = worker.arrivals.send((arrival, load)).await;
    }
}

/// One connection's part of a worker's load.
struct Load(Arc<AtomicUsize>);

impl Drop for Load {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn work<P: Protocol>(
    mut queue: mpsc::Receiver<(Arrival, Load)>,
    protocol: Arc<P>,
    tls: Option<TlsAcceptor>,
) {
    let patrol = Arc::new(Patrol::default());
    tokio::spawn(make_rounds(patrol.clone(), protocol.clone()));
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    while let Some((arrival, load)) = queue.recv().await {
        let guards = (load, open.clone());
        let watched = patrol.watch(arrival.place.pulse().clone());
        let (protocol, tls) = (protocol.clone(), tls.clone());
        tokio::spawn(async move {
            greet(arrival, watched, protocol, tls).await;
            drop(guards);
        });
    }
    drop(open);
    patrol.finish_http2();
    // Whoever closes last ends the wait.
    if tokio::time::timeout(LINGER, all_closed.recv()).await.is_err() {
        patrol.finish_all();
        all_closed.recv().await;
    }
}

async fn make_rounds<P: Protocol>(patrol: Arc<Patrol>, protocol: Arc<P>) {
    loop {
        tokio::time::sleep(protocol.patience().round()).await;
        patrol.round(protocol.patience());
    }
}

/// Serves a new connection, after a handshake where there is one.
async fn greet<P: Protocol>(
    arrival: Arrival,
    watched: Watched,
    protocol: Arc<P>,
    tls: Option<TlsAcceptor>,
) {
    let Arrival { stream, peer, place } = arrival;
    let pulse = watched.pulse.clone();
    let Ok(stream) = tokio::net::TcpStream::from_std(stream) else { return };
    match tls {
        None => protocol.serve(stream, peer, pulse).await,
        Some(tls) => {
            let handshake =
                tokio::time::timeout(protocol.patience().head, tls.accept(stream)).await;
            let Ok(Ok(stream)) = handshake else { return };
            protocol.serve(stream, peer, pulse).await;
        }
    }
    drop((watched, place));
}
