//! The life of a server, step by step: binds all listeners, opens them, serves, and drains them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use super::announce::announce;
use super::server::{AssembledListener, AssembledServer};
use super::{cannot_start, workers};
use crate::cli::check::RulesSize;
use crate::cli::{CommandFailure, Report};
use crate::control_plane::LiveTraffic;
use crate::listener_table::LISTENERS;
use crate::listeners::ListenerAddress;
use crate::listeners::accept::{BindOptions, BoundListener};
use crate::listeners::inherited::InheritedSockets;
use crate::listeners::workers::WorkersEnded;
use crate::recording::RecorderThread;
use crate::shutdown::{HangupTargets, Signals};
use crate::snapshot::SnapshotThread;
use crate::store::ServerGatekeeper;
use crate::telemetry::LogField;
use crate::warnings;

/// Longest time that a graceful shutdown waits for requests to finish.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Longest time that the answers to requests which still wait then may take, and what was charged for them to come back.
const LAST_REPLIES_MAX: Duration = Duration::from_secs(1);

/// Longest time that a start waits for changes made at other instances.
const FIRST_EXCHANGE_MAX: Duration = Duration::from_millis(250);

impl AssembledServer<'_> {
    /// Opens the listeners, serves until a signal stops it, and drains connections.
    pub(super) async fn serve(
        self,
        gatekeeper: Arc<ServerGatekeeper>,
        inherited: InheritedSockets,
        mut signals: Signals,
    ) -> Result<(), CommandFailure> {
        let settings = self.settings;
        let bound = self.bind_all(inherited).await?;
        if bound.is_empty() {
            let flags = LISTENERS.each_ref().map(|entry| format!("--{} none", entry.name));
            let report = Report::new("every listener is switched off");
            let hint = format!("leave out one of {}", flags.join(", "));
            return Err(CommandFailure::Usage(report.hint(hint)));
        }
        let address = |bound: &BoundListener| (bound.name, bound.address().clone());
        let addresses: Vec<_> = bound.iter().map(|(_, bound)| address(bound)).collect();

        self.wait_for_peer_changes().await;
        let mut opened = Vec::with_capacity(bound.len());
        for (listener, bound) in bound {
            opened.push(self.open(listener, bound)?);
        }
        let keeper = settings.snapshot.clone().map(|path| {
            SnapshotThread::start(
                self.store.clone(),
                path,
                settings.snapshot_interval,
                self.logs.clone(),
            )
        });
        let keeper = keeper.transpose().map_err(|error| cannot_start(&error))?;
        let sampler = self.traffic.as_ref().map(LiveTraffic::start);
        let _sampler = sampler.transpose().map_err(|error| cannot_start(&error))?;
        tokio::spawn(warnings::watch_left_out(gatekeeper.clone(), self.logs.clone()));
        tokio::spawn(warnings::watch_store(
            self.store.clone(),
            gatekeeper.clone(),
            self.logs.clone(),
        ));
        let others = self.peers.clone();
        let (store, logs) = (self.store.clone(), self.logs.clone());
        tokio::spawn(warnings::watch_peers(others, gatekeeper.clone(), store, logs));
        self.log_start(&gatekeeper);
        announce(&addresses, settings);

        let targets = HangupTargets {
            rules: self.live.clone(),
            access_log: self.access_log.cloned(),
            recorder: self.recording.as_ref().map(RecorderThread::recorder),
        };
        let signal = signals.next(&targets).await;
        self.logs.info("stopping: waiting for requests to finish", &[("signal", &signal)]);
        self.log_lost_overrides(&gatekeeper);
        self.stopping.store(true, Ordering::Relaxed);
        self.traffic.iter().for_each(LiveTraffic::stop);
        tokio::select! {
            () = self.drain(opened) => {}
            // A second signal: stop without draining. The last periodic snapshot stays.
            _ = signals.next(&targets) => {
                self.logs.warn("stopping at once", &[]);
                return Ok(());
            }
        }
        self.listeners.iter().for_each(|listener| listener.service.protocol.drained());
        if let Some(store) = self.store.shared() {
            store.disconnect(self.peers.control()).await;
        }
        if let Some(recording) = self.recording {
            recording.finish();
        }
        keeper.map_or(Ok(()), SnapshotThread::finish).map_err(CommandFailure::Input)?;
        self.logs.info("stopped", &[]);
        Ok(())
    }

    /// Binds all listeners before the first accepts: a start that fails half-way has served no request.
    async fn bind_all(
        &self,
        mut inherited: InheritedSockets,
    ) -> Result<Vec<(&AssembledListener, BoundListener)>, CommandFailure> {
        let settings = self.settings;
        let all: Vec<_> = settings.listeners.open().map(|(_, address)| address.clone()).collect();
        let options = BindOptions { all: &all, reuse_port: settings.reuse_port };
        let mut bound = Vec::with_capacity(all.len());
        for (listener, (entry, address)) in self.listeners.iter().zip(settings.listeners.iter()) {
            let ListenerAddress::At(address) = address else { continue };
            let at = match BoundListener::inherited(entry.name, &mut inherited) {
                Some(inherited) => inherited,
                None => BoundListener::bind(entry.name, address, &options).await,
            };
            bound.push((listener, at.map_err(CommandFailure::Input)?));
        }
        Ok(bound)
    }

    /// Logs the settings of this server in one line.
    fn log_start(&self, gatekeeper: &ServerGatekeeper) {
        let RulesSize { rules, limits, .. } = RulesSize::of(&gatekeeper.rules());
        let fields: [LogField<'_>; 4] = [
            ("version", &env!("CARGO_PKG_VERSION")),
            ("rules", &rules),
            ("limits", &limits),
            ("store", &self.settings.store),
        ];
        self.logs.info("server started", &fields);
    }

    /// Waits for changes made at other instances, so that they apply from the first request if the store
    /// is available.
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

    /// Starts to accept connections.
    fn open(
        &self,
        listener: &AssembledListener,
        bound: BoundListener,
    ) -> Result<OpenListener, CommandFailure> {
        let AssembledListener { entry, service, caps } = listener;
        let (workers, tls) = match entry.is_data() {
            true => (workers(self.settings), self.certificate.as_deref()),
            false => (1, None),
        };
        let started = service.protocol.start_workers(entry.name, workers, tls);
        let (workers, ended) = started.map_err(|error| cannot_start(&error))?;
        service.protocol.start_background();
        let (stop, stopped) = watch::channel(false);
        // A client that expects TLS cannot read plain text.
        let too_many = match tls {
            None => service.protocol.too_many_connections_reply(),
            Some(_) => &[],
        };
        tokio::spawn(bound.accept(workers, caps.clone(), too_many, stopped, self.logs.clone()));
        Ok(OpenListener { is_data: entry.is_data(), stop, ended })
    }

    /// Warns of overrides that end with this process: without a shared store nothing keeps them.
    fn log_lost_overrides(&self, gatekeeper: &ServerGatekeeper) {
        let overrides = gatekeeper.overrides().len();
        if overrides > 0 && self.peers.control().is_none() {
            let event = "overrides that were set at run time end with this server: write those that should \
                         stay into a rules file, or use a shared store";
            self.logs.warn(event, &[("overrides", &overrides)]);
        }
    }

    /// Drains the data listeners together, then the control listener, which reports "stopping" until then. Requests that
    /// still wait for their turn when the time is over are refused.
    async fn drain(&self, opened: Vec<OpenListener>) {
        let (data, control): (Vec<_>, Vec<_>) = opened.into_iter().partition(|one| one.is_data);
        let drained = async {
            for together in [data, control] {
                together.iter().for_each(OpenListener::stop);
                for mut opened in together {
                    opened.ended.recv().await;
                }
            }
        };
        let mut drained = pin!(drained);
        if tokio::time::timeout(DRAIN_MAX, &mut drained).await.is_err() {
            let seconds = DRAIN_MAX.as_secs();
            self.logs.warn("some requests did not finish in time", &[("seconds", &seconds)]);
            self.drain.end_waits();
            let _ = tokio::time::timeout(LAST_REPLIES_MAX, drained).await;
        }
    }
}

/// A listener that accepts connections.
struct OpenListener {
    is_data: bool,
    stop: watch::Sender<bool>,
    ended: WorkersEnded,
}

impl OpenListener {
    fn stop(&self) {
        self.stop.send_replace(true);
    }
}
