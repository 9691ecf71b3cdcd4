//! The life of a server: listeners are bound, open, serve, and end one after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use super::announce::announce;
use super::server::{AssembledServer, ListenerService};
use super::{cannot_start, workers};
use crate::cli::check::RulesSize;
use crate::cli::{CommandFailure, Report};
use crate::listeners::ListenerAddress;
use crate::listeners::accept::BoundListener;
use crate::listeners::protocol::Protocol;
use crate::listeners::tls::Certificate;
use crate::listeners::workers::{Workers, WorkersEnded};
use crate::shutdown::Signals;
use crate::snapshot::SnapshotThread;
use crate::store::ServerGatekeeper;
use crate::telemetry::LogField;
use crate::warnings;

/// How long requests may take to finish once the server is asked to stop.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// How long a start waits for the store to tell what was decided at other instances.
const FIRST_EXCHANGE_MAX: Duration = Duration::from_millis(250);

impl AssembledServer<'_> {
    /// Opens the listeners, serves until it is asked to stop, and lets what has begun finish.
    pub(super) async fn serve(
        self,
        gatekeeper: Arc<ServerGatekeeper>,
        mut signals: Signals,
    ) -> Result<(), CommandFailure> {
        let settings = self.settings;
        // All are bound before the first accepts: a start that fails half-way serves nobody.
        let listeners = [settings.http, settings.grpc, settings.resp, settings.admin];
        let bind = |name, address| bind(name, address, &listeners);
        let http = bind("http", settings.http)?;
        let grpc = bind("grpc", settings.grpc)?;
        let resp = bind("resp", settings.resp)?;
        let admin = bind("admin", settings.admin)?;
        let listeners = [&http, &grpc, &resp, &admin];
        if listeners.iter().all(|listener| listener.is_none()) {
            let report = Report::new("every listener is switched off");
            return Err(CommandFailure::Usage(
                report.hint("leave out one of --http none, --grpc none, --resp none, --admin none"),
            ));
        }
        let addresses = listeners.map(|listener| listener.as_ref().map(BoundListener::address));

        self.wait_for_peer_changes().await;
        let (workers, tls) = (workers(settings), self.certificate.as_deref());
        // In the order in which they end: until the last of the others is done, the admin listener says that
        // the server is stopping.
        let opened = [
            self.open(http, &self.http, workers, tls)?,
            self.open(grpc, &self.grpc, workers, tls)?,
            self.open(resp, &self.resp, workers, tls)?,
            self.open(admin, &self.admin, 1, None)?,
        ];
        let keeper = settings.snapshot.clone().map(|path| {
            SnapshotThread::start(
                self.store.clone(),
                path,
                settings.snapshot_interval,
                self.logs.clone(),
            )
        });
        let keeper = keeper.transpose().map_err(|error| cannot_start(&error))?;
        tokio::spawn(warnings::watch_left_out(gatekeeper.clone(), self.logs.clone()));
        tokio::spawn(warnings::watch_store(self.store.clone(), self.logs.clone()));
        tokio::spawn(self.resp.protocol.clone().log_suppressed_resets());
        let others = self.peers.clone();
        let (store, logs) = (self.store.clone(), self.logs.clone());
        tokio::spawn(warnings::watch_peers(others, gatekeeper.clone(), store, logs));
        self.log_start(&gatekeeper);
        announce(addresses, settings);

        let signal = signals.next(&self.live).await;
        self.logs.info("stopping: requests may finish", &[("signal", &signal)]);
        self.stopping.store(true, Ordering::Relaxed);
        tokio::select! {
            () = self.drain(opened) => {}
            // Asked twice: whoever asks knows best. The snapshot of the last interval stays.
            _ = signals.next(&self.live) => {
                self.logs.warn("stopping at once", &[]);
                return Ok(());
            }
        }
        self.resp.protocol.log_remaining_resets();
        if let Some(store) = self.store.shared() {
            store.disconnect(self.peers.control()).await;
        }
        keeper.map_or(Ok(()), SnapshotThread::finish).map_err(CommandFailure::Input)?;
        self.logs.info("stopped", &[]);
        Ok(())
    }

    /// Tells in one line what serves: for whoever reads the log of a server that they did not start.
    fn log_start(&self, gatekeeper: &ServerGatekeeper) {
        let RulesSize { rules, limits, .. } = RulesSize::of(&gatekeeper.rules());
        let fields: [LogField<'_>; 4] = [
            ("version", &env!("CARGO_PKG_VERSION")),
            ("rules", &rules),
            ("limits", &limits),
            ("store", &self.settings.store),
        ];
        self.logs.info("tollgate serves", &fields);
    }

    /// What was decided at other instances holds here from the first request, if the store can be asked.
    async fn wait_for_peer_changes(&self) {
        let Some(store) = self.store.shared() else { return };
        let heard = async {
            tokio::select! {
                () = self.peers.first_exchange() => self.live.peer_changes_applied().await,
                () = store.first_connect_failed() => {}
            }
        };
        let _ = tokio::time::timeout(FIRST_EXCHANGE_MAX, heard).await;
    }

    /// Lets connections in.
    fn open<P: Protocol>(
        &self,
        listener: Option<BoundListener>,
        hall: &ListenerService<P>,
        workers: usize,
        tls: Option<&Certificate>,
    ) -> Result<Option<OpenListener>, CommandFailure> {
        let Some(listener) = listener else { return Ok(None) };
        let acceptor = tls.map(|certificate| certificate.acceptor(P::ALPN));
        let started = Workers::start(listener.name, workers, &hall.protocol, acceptor.as_ref());
        let (workers, ended) = started.map_err(|error| cannot_start(&error))?;
        let (stop, stopped) = watch::channel(false);
        // Whoever expects TLS cannot read a word in the clear.
        let too_many = if tls.is_none() { P::TOO_MANY_CONNECTIONS_REPLY } else { &[] };
        tokio::spawn(listener.accept(
            workers,
            hall.caps.clone(),
            too_many,
            stopped,
            self.logs.clone(),
        ));
        Ok(Some(OpenListener { stop, ended }))
    }

    /// Ends the data listeners together, then the admin listener.
    async fn drain(&self, opened: [Option<OpenListener>; 4]) {
        let [data @ .., admin] = opened;
        let drained = async {
            let data: Vec<_> = data.into_iter().flatten().collect();
            data.iter().for_each(OpenListener::stop);
            for mut opened in data {
                opened.ended.recv().await;
            }
            if let Some(mut admin) = admin {
                admin.stop();
                admin.ended.recv().await;
            }
        };
        if tokio::time::timeout(DRAIN_MAX, drained).await.is_err() {
            let seconds = DRAIN_MAX.as_secs();
            self.logs.warn("some requests did not finish in time", &[("seconds", &seconds)]);
        }
    }
}

/// A listener that lets connections in.
struct OpenListener {
    stop: watch::Sender<bool>,
    ended: WorkersEnded,
}

impl OpenListener {
    fn stop(&self) {
        self.stop.send_replace(true);
    }
}

fn bind(
    name: &'static str,
    address: ListenerAddress,
    all: &[ListenerAddress],
) -> Result<Option<BoundListener>, CommandFailure> {
    let ListenerAddress::At(address) = address else { return Ok(None) };
    let at = |listener: &ListenerAddress| match listener {
        ListenerAddress::At(address) => Some(*address),
        ListenerAddress::None => None,
    };
    let others: Vec<_> = all.iter().filter_map(at).collect();
    BoundListener::bind(name, address, &others).map(Some).map_err(CommandFailure::Input)
}
