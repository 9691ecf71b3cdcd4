//! A run of the server: assembles all parts, from top to bottom.

mod announce;
mod decision_core;
mod gateway_check;
mod server;
mod serving;

use std::io;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use tokio::runtime;
use tollgate::{Clock, Micros, SystemClock};

use crate::access;
use crate::cli::environment::{self, UnknownVariable};
use crate::cli::{CommandFailure, Report};
use crate::credentials::Credentials;
use crate::data_plane::gateway::access_log;
use crate::key_names::KeySecret;
use crate::listeners::ListenerAddress;
use crate::listeners::inherited::InheritedSockets;
use crate::live;
use crate::open_files::{self, OpenFilesBudget};
use crate::settings::ServerSettings;
use crate::shutdown::Signals;
use crate::snapshot;
use crate::store::open_stores::OpenStores;
use crate::telemetry::{LogField, Logs};
use decision_core::DecisionCore;
use server::AssembledServer;

/// Most connections of the admin listener.
const ADMIN_CONNECTIONS_MAX: usize = 256;

/// Serves until a signal stops it.
pub(crate) fn run(mut settings: ServerSettings) -> Result<(), CommandFailure> {
    let inherited = take_inherited_sockets(&mut settings).map_err(CommandFailure::Usage)?;
    let logs = Logs::to_stderr(settings.log_format, settings.log_lines_waiting.into());
    log_panics(&logs);
    let outcome = set_up_and_serve(&settings, inherited, &logs, SystemClock.now());
    logs.flush();
    outcome
}

/// Takes the sockets that a supervisor passed. Their listeners have the addresses of these sockets from here on.
fn take_inherited_sockets(settings: &mut ServerSettings) -> Result<InheritedSockets, Report> {
    let mut sockets = InheritedSockets::from_environment()?;
    let configured = settings.listeners.iter().map(|(entry, address)| match address {
        ListenerAddress::At(address) => (entry.name, Some(address.clone())),
        ListenerAddress::None => (entry.name, None),
    });
    let configured: Vec<_> = configured.collect();
    for (name, address) in sockets.assign(&configured)? {
        settings.listeners.set(name, address);
    }
    Ok(sockets)
}

fn set_up_and_serve(
    settings: &ServerSettings,
    inherited: InheritedSockets,
    logs: &Logs,
    started: Micros,
) -> Result<(), CommandFailure> {
    access::check(settings).map_err(CommandFailure::Usage)?;
    gateway_check::check_settings(settings).map_err(CommandFailure::Usage)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| cannot_start(&error))?;
    // Before anything that takes time: an unhandled SIGHUP would end the process.
    let signals = runtime.block_on(async { Signals::install() });
    let signals = signals.map_err(|error| cannot_start(&error))?;
    let needed = OpenFilesBudget::of(settings, workers(settings), ADMIN_CONNECTIONS_MAX);
    let connections = open_files::raise_file_limit(needed, logs);
    warn_of_variables(logs);
    let secret = KeySecret::of_file(settings.key_secret_file.as_deref(), logs);
    let secret = secret.map_err(CommandFailure::Input)?;
    let shared = OpenStores::open(settings, secret.as_ref());
    let shared = shared.map_err(|error| cannot_start(&error))?;
    let names_of_stores = shared.as_ref().map(OpenStores::names);
    let rules = live::load(settings, names_of_stores, logs)?;
    gateway_check::check_rules(settings, &rules.0).map_err(CommandFailure::Input)?;
    let access_log = access_log::open(settings, logs).map_err(CommandFailure::Input)?;
    let credentials = Credentials::read(settings, logs).map_err(CommandFailure::Input)?;
    let _alone = snapshot::SnapshotLock::take(settings.snapshot.as_deref())
        .map_err(CommandFailure::Input)?;
    let core = DecisionCore::start(settings, logs, secret.as_ref(), shared, &credentials, rules)?;
    let gatekeeper = core.gatekeeper.clone();
    let logs = (logs, access_log.as_ref());
    let server = AssembledServer::new((settings, connections), logs, credentials, core, started);
    runtime.block_on(server.serve(gatekeeper, inherited, signals))
}

/// Number of threads that serve each data listener.
fn workers(settings: &ServerSettings) -> usize {
    let given = settings.workers.map(usize::from);
    given.unwrap_or_else(|| available_parallelism().map_or(1, NonZeroUsize::get))
}

/// Warns of misspelt settings in the environment, which would be ignored silently.
fn warn_of_variables(logs: &Logs) {
    for UnknownVariable { name, meant } in environment::unknown_variables() {
        let mut fields: Vec<LogField<'_>> = vec![("variable", &name)];
        fields.extend(meant.as_ref().map(|meant| ("did_you_mean", meant as _)));
        logs.warn("an environment variable names an unknown setting and is ignored", &fields);
    }
}

/// Logs panics with their location. They are bugs; a request gets a 500.
fn log_panics(logs: &Logs) {
    let logs = logs.clone();
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let reason = info.payload_as_str().unwrap_or("no reason given");
        logs.error(
            "internal error, please report this bug",
            &[("place", &place), ("reason", &reason)],
        );
    }));
}

fn cannot_start(error: &io::Error) -> CommandFailure {
    CommandFailure::Input(Report::new(format!("the server cannot start: {error}")))
}
