//! A run of the server: everything is put together here, from top to bottom.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use crate::store::shared::SharedStore;
use crate::store::{Gatekeeper, ServerStore};
use tokio::runtime;
use tokio::sync::watch;
use tollgate::{Clock, Limiter, MemoryStore, Micros, SystemClock};
use tollgate_rules::RuleSet;

use crate::access;
use crate::cli::{Failure, Report};
use crate::control_plane::ControlPlane;
use crate::credentials::Credentials;
use crate::data_plane::envoy::EnvoyDoor;
use crate::data_plane::http::DataPlane;
use crate::data_plane::resp::{Audit, RespDoor};
use crate::descriptors::{self, Needed};
use crate::doors::DoorAddress;
use crate::doors::accept::Door;
use crate::doors::connection::{Handler, Site};
use crate::doors::connection_caps::ConnectionCaps;
use crate::doors::patrol::Patience;
use crate::doors::protocol::Protocol;
use crate::doors::tls::Certificate;
use crate::doors::workers::{Ended, Workers};
use crate::key_names::{KeyNames, Secret};
use crate::live::{self, LiveRules};
use crate::metrics::{DoorFigures, Metrics, Timing};
use crate::others::{Ears, Others};
use crate::settings::Settings;
use crate::shutdown::Signals;
use crate::snapshot::{self, Keeper};
use crate::telemetry::{LogFormat, Logs};
use crate::warnings::{self, Warnings};
use crate::watcher::Watcher;

/// How long requests may take to finish once the server is asked to stop.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// How long a start waits for the store to tell what was decided at other instances.
const FIRST_EXCHANGE_MAX: Duration = Duration::from_millis(250);

/// The most connections of the admin door,
const ADMIN_CONNECTIONS_MAX: usize = 256;
/// and from one address: nobody alone may keep a probe out.
const ADMIN_CONNECTIONS_PER_IP_MAX: usize = 32;
/// How long the head of a request to it may take: connections that say nothing make room.
const ADMIN_HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// Serves until it is asked to stop.
pub(crate) fn run(settings: Settings) -> Result<(), Failure> {
    let logs = Logs::to_stderr(settings.log_format, settings.log_lines_waiting.into());
    tell_of_panics(&logs);
    let outcome = set_up_and_serve(&settings, &logs, SystemClock.now());
    logs.flush();
    outcome
}

fn set_up_and_serve(settings: &Settings, logs: &Logs, started: Micros) -> Result<(), Failure> {
    access::check(settings).map_err(Failure::Usage)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| cannot_start(&error))?;
    // Before anything that takes time: a hangup would end a process that does not expect it.
    let signals = runtime.block_on(async { Signals::install() });
    let signals = signals.map_err(|error| cannot_start(&error))?;
    descriptors::make_room(Needed::of(settings, workers(settings), ADMIN_CONNECTIONS_MAX), logs);
    let secret = Secret::of_file(settings.key_secret_file.as_deref(), logs);
    let secret = secret.map_err(Failure::Input)?;
    let shared = SharedStore::open(settings, secret.as_ref());
    let shared = shared.map_err(|error| cannot_start(&error))?;
    let names_of_stores = shared.as_ref().map(SharedStore::names);
    let rules = live::load(settings, names_of_stores, logs)?;
    let credentials = Credentials::read(settings, logs).map_err(Failure::Input)?;
    let _alone = snapshot::Lock::take(settings.snapshot.as_deref()).map_err(Failure::Input)?;
    let heart = Heart::start(settings, logs, secret.as_ref(), shared, (rules, &credentials))?;
    let gatekeeper = heart.gatekeeper.clone();
    let server = Server::new(settings, logs, credentials, heart, started);
    runtime.block_on(server.serve(gatekeeper, signals))
}

/// What decides, and whoever keeps it up to date or watches it.
struct Heart {
    gatekeeper: Arc<Gatekeeper>,
    watcher: Arc<Watcher>,
    names: Arc<KeyNames>,
    live: LiveRules,
    others: Others,
}

impl Heart {
    fn start(
        settings: &Settings,
        logs: &Logs,
        secret: Option<&Secret>,
        shared: Option<SharedStore>,
        ((rules, first), credentials): ((RuleSet, live::First), &Credentials),
    ) -> Result<Heart, Failure> {
        let max_keys = usize::try_from(settings.max_keys).unwrap_or(usize::MAX);
        let store = match shared {
            Some(shared) => ServerStore::Shared(Box::new(shared)),
            None => {
                let empty = MemoryStore::new(max_keys);
                let store = snapshot::load(empty, settings.snapshot.as_deref(), logs);
                ServerStore::Memory(Box::new(store.map_err(Failure::Input)?))
            }
        };
        let limiter = Limiter::new(store, SystemClock);
        let names = Arc::new(KeyNames::new(secret).map_err(Failure::Input)?);
        let watcher = Arc::new(Watcher::new(logs, names.clone()));
        let gatekeeper = Arc::new(Gatekeeper::new(rules, limiter).observed_by(watcher.clone()));
        let others = Others::default();
        let beside = (others.clone(), credentials.clone());
        let live = LiveRules::start(gatekeeper.clone(), first, beside, logs.clone());
        let live = live.map_err(|error| cannot_start(&error))?;
        join(&others, &gatekeeper, &live);
        Ok(Heart { gatekeeper, watcher, names, live, others })
    }
}

/// Lets the other instances on the same store know of this one, if there can be others.
fn join(others: &Others, gatekeeper: &Arc<Gatekeeper>, live: &LiveRules) {
    if let Some(store) = gatekeeper.limiter().store().shared() {
        let shared = store.shared.clone();
        let count = Box::new(move |live| shared.set_live(live));
        others.join(store.start_control(Arc::new(Ears { live: live.clone(), count })));
    }
}

struct Server<'a> {
    settings: &'a Settings,
    logs: &'a Logs,
    http: Hall<Site<DataPlane>>,
    grpc: Hall<Site<EnvoyDoor>>,
    resp: Hall<RespDoor>,
    admin: Hall<Site<ControlPlane>>,
    certificate: Option<Arc<Certificate>>,
    stopping: Arc<AtomicBool>,
    live: LiveRules,
    others: Others,
}

/// What is behind a door: who answers, and how many at once.
struct Hall<P> {
    protocol: Arc<P>,
    caps: Arc<ConnectionCaps>,
}

impl<H: Handler> Hall<Site<H>> {
    fn of_http(
        handler: H,
        patience: Patience,
        stopping: &Arc<AtomicBool>,
        figures: DoorFigures,
    ) -> Hall<Site<H>> {
        let responses = figures.responses.unwrap_or_default();
        let site = Site::new(handler, patience, stopping.clone(), responses);
        Hall { protocol: Arc::new(site), caps: figures.caps }
    }
}

impl<'a> Server<'a> {
    /// What answers at each door.
    fn new(
        settings: &'a Settings,
        logs: &'a Logs,
        credentials: Credentials,
        heart: Heart,
        started: Micros,
    ) -> Server<'a> {
        let Credentials { tokens, admin_tokens, certificate } = credentials;
        let Heart { gatekeeper, watcher, names, live, others } = heart;
        let stopping = Arc::new(AtomicBool::new(false));
        let patience = Patience {
            head: settings.header_timeout,
            idle: settings.idle_timeout,
            body: settings.body_timeout,
        };
        let (total, per_ip) = (settings.max_connections, settings.max_connections_per_ip);
        let caps = || ConnectionCaps::new(total.get(), per_ip.get());
        let http = DoorFigures::of_http("http", caps());
        let grpc = DoorFigures::of_http("grpc", caps());
        let resp = DoorFigures::new("resp", caps());
        let caps = ConnectionCaps::new(ADMIN_CONNECTIONS_MAX, ADMIN_CONNECTIONS_PER_IP_MAX);
        let admin = DoorFigures::of_http("admin", caps);
        let timing = Arc::<Timing>::default();
        let data = DataPlane {
            gatekeeper: gatekeeper.clone(),
            tokens: tokens.clone(),
            warnings: Warnings::new(logs),
            timing: timing.clone(),
        };
        let envoy = EnvoyDoor {
            gatekeeper: gatekeeper.clone(),
            tokens: tokens.clone(),
            timing: timing.clone(),
            stopping: stopping.clone(),
            codes: Arc::default(),
            warnings: Warnings::new(logs),
        };
        let redis = RespDoor::new(
            gatekeeper.clone(),
            tokens,
            timing.clone(),
            patience,
            stopping.clone(),
            Audit::new(logs, names.clone()),
        );
        let metrics = Metrics {
            gatekeeper: gatekeeper.clone(),
            watcher,
            timing,
            doors: vec![http.clone(), grpc.clone(), resp.clone(), admin.clone()],
            grpc: envoy.codes.clone(),
            resp: redis.figures(),
            logs: logs.clone(),
            live: live.clone(),
            others: others.clone(),
            started,
        };
        let control = ControlPlane {
            tokens: admin_tokens,
            stopping: stopping.clone(),
            gatekeeper,
            live: live.clone(),
            others: others.clone(),
            names,
            metrics: Arc::new(metrics),
            logs: logs.clone(),
            warnings: Warnings::new(logs),
        };
        let admin_patience = Patience { head: patience.head.min(ADMIN_HEAD_TIMEOUT), ..patience };
        Server {
            settings,
            logs,
            http: Hall::of_http(data, patience, &stopping, http),
            grpc: Hall::of_http(envoy, patience, &stopping, grpc),
            resp: Hall { protocol: Arc::new(redis), caps: resp.caps },
            admin: Hall::of_http(control, admin_patience, &stopping, admin),
            certificate,
            stopping,
            live,
            others,
        }
    }

    async fn serve(self, gatekeeper: Arc<Gatekeeper>, mut signals: Signals) -> Result<(), Failure> {
        let settings = self.settings;
        // All are bound before the first accepts: a start that fails half-way serves nobody.
        let http = bind("http", settings.http)?;
        let grpc = bind("grpc", settings.grpc)?;
        let resp = bind("resp", settings.resp)?;
        let admin = bind("admin", settings.admin)?;
        let doors = [&http, &grpc, &resp, &admin];
        if doors.iter().all(|door| door.is_none()) {
            let report = Report::new("every door is switched off");
            return Err(Failure::Usage(
                report.hint("leave out one of --http none, --grpc none, --resp none, --admin none"),
            ));
        }
        let addresses = doors.map(|door| door.as_ref().map(Door::address));

        self.hear_others(&gatekeeper).await;
        let (workers, tls) = (workers(settings), self.certificate.as_deref());
        // In the order in which they end: until the last of the others is done, the admin door says that
        // the server is stopping.
        let opened = [
            self.open(http, &self.http, workers, tls)?,
            self.open(grpc, &self.grpc, workers, tls)?,
            self.open(resp, &self.resp, workers, tls)?,
            self.open(admin, &self.admin, 1, None)?,
        ];
        let keeper = settings.snapshot.clone().map(|path| {
            Keeper::start(gatekeeper.clone(), path, settings.snapshot_interval, self.logs.clone())
        });
        let keeper = keeper.transpose().map_err(|error| cannot_start(&error))?;
        tokio::spawn(warnings::watch_left_out(gatekeeper.clone(), self.logs.clone()));
        tokio::spawn(warnings::watch_store(gatekeeper.clone(), self.logs.clone()));
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
        if let Some(store) = gatekeeper.limiter().store().shared() {
            store.leave(self.others.control()).await;
        }
        keeper.map_or(Ok(()), Keeper::finish).map_err(Failure::Input)?;
        self.logs.info("stopped", &[]);
        Ok(())
    }

    /// What was decided at other instances holds here from the first request, if the store can be asked.
    async fn hear_others(&self, gatekeeper: &Gatekeeper) {
        let Some(store) = gatekeeper.limiter().store().shared() else { return };
        let heard = async {
            tokio::select! {
                () = self.others.first_exchange() => self.live.listened().await,
                () = store.cannot_be_reached() => {}
            }
        };
        let _ = tokio::time::timeout(FIRST_EXCHANGE_MAX, heard).await;
    }

    /// Lets connections in.
    fn open<P: Protocol>(
        &self,
        door: Option<Door>,
        hall: &Hall<P>,
        workers: usize,
        tls: Option<&Certificate>,
    ) -> Result<Option<Opened>, Failure> {
        let Some(door) = door else { return Ok(None) };
        let acceptor = tls.map(|certificate| certificate.acceptor(P::ALPN));
        let started = Workers::start(door.name, workers, &hall.protocol, acceptor.as_ref());
        let (workers, ended) = started.map_err(|error| cannot_start(&error))?;
        let (stop, stopped) = watch::channel(false);
        // Whoever expects TLS cannot read a word in the clear.
        let too_many = if tls.is_none() { P::TOO_MANY } else { &[] };
        tokio::spawn(door.accept(workers, hall.caps.clone(), too_many, stopped, self.logs.clone()));
        Ok(Some(Opened { stop, ended }))
    }

    /// Ends the data doors together, then the admin door.
    async fn drain(&self, opened: [Option<Opened>; 4]) {
        let [data @ .., admin] = opened;
        let drained = async {
            let data: Vec<_> = data.into_iter().flatten().collect();
            data.iter().for_each(Opened::stop);
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

/// How many threads serve each data door.
fn workers(settings: &Settings) -> usize {
    let given = settings.workers.map(usize::from);
    given.unwrap_or_else(|| available_parallelism().map_or(1, NonZeroUsize::get))
}

/// A door that lets connections in.
struct Opened {
    stop: watch::Sender<bool>,
    ended: Ended,
}

impl Opened {
    fn stop(&self) {
        self.stop.send_replace(true);
    }
}

fn bind(name: &'static str, address: DoorAddress) -> Result<Option<Door>, Failure> {
    match address {
        DoorAddress::None => Ok(None),
        DoorAddress::At(address) => Door::bind(name, address).map(Some).map_err(Failure::Input),
    }
}

/// Tells scripts where the doors are, and people how to try them.
fn announce(addresses: [Option<io::Result<SocketAddr>>; 4], settings: &Settings) {
    let [http, grpc, resp, admin] = addresses.map(|address| address.and_then(Result::ok));
    if let Some(http) = http
        && settings.is_demo()
        && settings.log_format == LogFormat::Text
    {
        let _ = write!(io::stderr(), "{}", how_to_try(http, settings));
    }
    let mut out = io::stdout().lock();
    for (name, address) in [("http", http), ("grpc", grpc), ("resp", resp), ("admin", admin)] {
        if let Some(address) = address {
            let _ = writeln!(out, "listening {name} {address}");
        }
    }
    // Whoever started us may have closed standard output: that is no reason not to serve.
    let _ = writeln!(out, "ready").and_then(|()| out.flush());
}

/// Commands that work as they stand, with the door as it is.
fn how_to_try(http: SocketAddr, settings: &Settings) -> String {
    let token_file = settings.auth_token_file.as_deref().map(Path::display);
    let mut curl = String::from("curl -i");
    if let Some(file) = &token_file {
        curl += &format!(" -H \"Authorization: Bearer $(head -n 1 '{file}')\"");
    }
    curl += " -d '{\"path\":\"/api/search\",\"user\":\"42\"}'";
    // The certificate is for a name that is not known here, and may be nobody's but ours.
    curl += &match settings.tls_cert {
        Some(_) => format!(" --insecure https://{http}/v1/check"),
        None => format!(" http://{http}/v1/check"),
    };
    let mut ask = String::new();
    if settings.tls_cert.is_none() {
        ask = format!(
            "\n  tollgate ask --server http://{http} --path /login --method POST --ip 192.0.2.1"
        );
        ask += &token_file.map_or(String::new(), |file| format!(" --token-file '{file}'"));
    }
    format!(
        "No --rules and no --limit: these are demo rules. Try them:\n\
         \n  {curl}{ask}\n\
         \nYour own: tollgate serve --limit 100/minute, or --rules FILE. More: tollgate serve --help\n\n"
    )
}

/// Panics are bugs that answer 500: the log says where they are.
fn tell_of_panics(logs: &Logs) {
    let logs = logs.clone();
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let reason = info.payload_as_str().unwrap_or("no reason given");
        logs.error("a bug: please report it", &[("place", &place), ("reason", &reason)]);
    }));
}

fn cannot_start(error: &io::Error) -> Failure {
    Failure::Input(Report::new(format!("the server cannot start: {error}")))
}
