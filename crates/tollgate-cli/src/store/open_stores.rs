//! Stores shared by several servers. They run on their own thread and runtime, so that a busy listener does
//! not delay the store.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tollgate::{OnFailure, SystemClock};
use tollgate_redis::instances::{InstanceChannel, InstanceSink};
use tollgate_redis::{ErrorClass, TimeSource, stats::Health};
use tollgate_redis::{
    LinkStats, RedisOptions, RedisStats, RedisStore, SharedStats, SharedStore, StoreUrl,
};
use tollgate_rules::RuleSet;
use tollgate_rules::rule::Mode;

use crate::key_names::KeySecret;
use crate::settings::{ServerSettings, StoreChoice};

/// Longest time that a shutdown waits for the store: leases that were not returned by then expire.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The shared stores of this server.
pub(crate) struct OpenStores {
    pub(crate) shared: SharedStore<RedisStore>,
    /// Addresses, that of `--store` first. Bound: `SECOND_STORES_MAX` and one.
    addresses: Vec<StoreAddress>,
    runtime: Handle,
    /// Ends the thread when dropped.
    _stop: oneshot::Sender<()>,
}

/// Name and URL of a store, without passwords.
pub(crate) struct StoreAddress {
    pub(crate) name: Box<str>,
    pub(crate) url: String,
}

/// Figures of one store.
pub(crate) struct StoreFigures<'a> {
    pub(crate) address: &'a StoreAddress,
    pub(crate) link: LinkStats,
    pub(crate) values: RedisStats,
    /// Times that the store had lost data that it had at an earlier call.
    pub(crate) data_losses: u64,
}

impl StoreFigures<'_> {
    /// Returns true if the store answers.
    pub(crate) fn is_up(&self) -> bool {
        self.link.nodes.iter().any(|node| node.up && !node.breaker_open)
    }

    pub(crate) fn health(&self) -> &Health {
        &self.link.health
    }

    /// The reason why the store is unavailable, if it is known.
    pub(crate) fn why_down(&self) -> Option<String> {
        if self.is_up() {
            return None;
        }
        let down = self.link.nodes.iter().find_map(|node| node.down.as_ref());
        down.map(ToString::to_string).or_else(|| self.why_failing())
    }

    /// The most frequent error of a store that is connected but not called.
    fn why_failing(&self) -> Option<String> {
        let failed = self.link.errors.iter().filter(|(class, count)| {
            // An open breaker is the result, not the reason.
            *class != ErrorClass::BreakerOpen && *count > 0
        });
        let (class, count) = failed.max_by_key(|(_, count)| *count)?;
        let class = class.name();
        Some(format!("it is connected, but calls fail: {class}, {count} so far"))
    }
}

impl fmt::Debug for OpenStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore").finish_non_exhaustive()
    }
}

impl OpenStores {
    /// Starts to connect to the stores of the settings, without waiting for them. `None` with the memory
    /// store.
    pub(crate) fn open(
        settings: &ServerSettings,
        secret: Option<&KeySecret>,
    ) -> io::Result<Option<OpenStores>> {
        let StoreChoice::Redis(first) = &settings.store else { return Ok(None) };
        let named = settings.second_store.iter().map(|one| (one.name.clone(), *one.url.clone()));
        let urls: Vec<(Box<str>, StoreUrl)> =
            [("default".into(), *first.clone())].into_iter().chain(named).collect();
        let place = |(name, url): &(Box<str>, StoreUrl)| StoreAddress {
            name: name.clone(),
            url: url.to_string(),
        };
        let places = urls.iter().map(place).collect();
        let options = RedisOptions {
            timeout: settings.store_timeout,
            prefix: settings.key_prefix.clone(),
            key_secret: secret.map(|secret| secret.bytes().to_vec()),
            time: TimeSource::Server,
        };
        let max_keys = usize::try_from(settings.max_keys).unwrap_or(usize::MAX);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (opened, open) = sync_channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            runtime.block_on(async {
                let stores = urls.iter().map(|(_, url)| RedisStore::at(url, &options));
                let _ =
                    opened.send(SharedStore::start(stores.collect(), max_keys, TimeSource::Server));
                let _ = stopped.await;
            });
        };
        thread::Builder::new().name("store".into()).spawn(run)?;
        let shared = open.recv().map_err(|_| io::Error::other("the store's thread has ended"))?;
        shared.set_min_instances(settings.instances);
        Ok(Some(OpenStores { shared, addresses: places, runtime: handle, _stop: stop }))
    }

    /// Starts to exchange changes with the other instances through the first store, and to watch the others for data that
    /// they lose.
    pub(crate) fn start_control(&self, sink: Arc<dyn InstanceSink>) -> InstanceChannel {
        let _inside = self.runtime.enter();
        for store in self.shared.stores().skip(1) {
            // Rules name it, and no more: it may be the store of other servers.
            store.watch_data(SystemClock);
        }
        self.first().join_instances(sink, SystemClock)
    }

    fn first(&self) -> &RedisStore {
        self.shared.stores().next().expect("there is always the store of --store")
    }

    /// The names of stores that rules can name.
    pub(crate) fn names(&self) -> Vec<Box<str>> {
        self.addresses[1..].iter().map(|place| place.name.clone()).collect()
    }

    /// Figures of each store, that of `--store` first.
    pub(crate) fn figures(&self) -> Vec<StoreFigures<'_>> {
        let stores = self.addresses.iter().zip(self.shared.stores());
        let figures = |(place, store): (_, &RedisStore)| StoreFigures {
            address: place,
            link: store.link_stats(),
            values: store.stats(),
            data_losses: store.data_losses(),
        };
        stores.map(figures).collect()
    }

    pub(crate) fn stats(&self) -> SharedStats {
        self.shared.stats()
    }

    /// Waits until an attempt to connect to the first store has failed. The caller sets the timeout.
    pub(crate) async fn first_connect_failed(&self) {
        while self.first().link_stats().nodes.iter().all(|node| node.down.is_none()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The name of the first store that is unavailable.
    pub(crate) fn first_down(&self) -> Option<Box<str>> {
        let figures = self.figures();
        let down = figures.iter().find(|store| !store.is_up());
        down.map(|store| store.address.name.clone())
    }

    /// The name of the first store that is unavailable and without which a rule refuses.
    pub(crate) fn first_closed(&self, rules: &RuleSet) -> Option<Box<str>> {
        let closes = |number: usize| {
            rules.rules().any(|rule| {
                let refuses = !rule.soft && !matches!(rule.mode, Mode::Off | Mode::Shadow);
                let closes = rule.terms.on_failure == OnFailure::Closed;
                refuses && closes && usize::from(rule.terms.store) == number
            })
        };
        let figures = self.figures();
        let down = figures.iter().enumerate().filter(|(_, store)| !store.is_up());
        let mut closed = down.filter(|(number, _)| closes(*number));
        closed.next().map(|(_, store)| store.address.name.clone())
    }

    /// Returns leases and leaves the other instances, within [`DISCONNECT_TIMEOUT`].
    pub(crate) async fn disconnect(&self, control: Option<&InstanceChannel>) {
        let leave = async {
            self.shared.drain().await;
            if let Some(control) = control {
                control.leave(DISCONNECT_TIMEOUT).await;
            }
        };
        let _ = tokio::time::timeout(DISCONNECT_TIMEOUT, leave).await;
    }
}
