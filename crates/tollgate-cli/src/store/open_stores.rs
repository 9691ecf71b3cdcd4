//! A store that several servers share: opened on a thread and a runtime of its own, so that a listener that
//! is busy does not keep the store waiting.

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

/// How long a stop waits for the store: what it was not told by then runs out by itself.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// What several servers share.
pub(crate) struct OpenStores {
    pub(crate) shared: SharedStore<RedisStore>,
    /// The first is the one of all rules that name no other. Bound: `SECOND_STORES_MAX` and one.
    addresses: Vec<StoreAddress>,
    runtime: Handle,
    /// The thread ends with it.
    _stop: oneshot::Sender<()>,
}

/// A store's name, and where it is, without passwords.
pub(crate) struct StoreAddress {
    pub(crate) name: Box<str>,
    pub(crate) url: String,
}

/// How it stands with one store.
pub(crate) struct StoreFigures<'a> {
    pub(crate) address: &'a StoreAddress,
    pub(crate) link: LinkStats,
    pub(crate) values: RedisStats,
}

impl StoreFigures<'_> {
    /// Whether it answers.
    pub(crate) fn is_up(&self) -> bool {
        self.link.nodes.iter().any(|node| node.up && !node.breaker_open)
    }

    pub(crate) fn health(&self) -> &Health {
        &self.link.health
    }

    /// Why it does not answer, if that is known.
    pub(crate) fn why_down(&self) -> Option<String> {
        if self.is_up() {
            return None;
        }
        let down = self.link.nodes.iter().find_map(|node| node.down.as_ref());
        down.map(ToString::to_string).or_else(|| self.why_failing())
    }

    /// Why it is not asked although it is connected: what calls failed of most.
    fn why_failing(&self) -> Option<String> {
        let failed = self.link.errors.iter().filter(|(class, count)| {
            // Those are the ones that were not asked.
            *class != ErrorClass::BreakerOpen && *count > 0
        });
        let (class, count) = failed.max_by_key(|(_, count)| *count)?;
        let class = class.name();
        Some(format!("it is connected, and calls fail: {class}, {count} of them so far"))
    }
}

impl fmt::Debug for OpenStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore").finish_non_exhaustive()
    }
}

impl OpenStores {
    /// Begins to connect to the stores of the settings; does not wait for them. `None`: the settings
    /// say that the store is this process's own.
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

    /// Begins to tell the other instances, and to hear of them.
    pub(crate) fn start_control(&self, sink: Arc<dyn InstanceSink>) -> InstanceChannel {
        let _inside = self.runtime.enter();
        self.first().join_instances(sink, SystemClock)
    }

    fn first(&self) -> &RedisStore {
        self.shared.stores().next().expect("there is one of all rules that name no other")
    }

    /// The names of stores that rules can name.
    pub(crate) fn names(&self) -> Vec<Box<str>> {
        self.addresses[1..].iter().map(|place| place.name.clone()).collect()
    }

    /// How it stands with each store, the first first.
    pub(crate) fn figures(&self) -> Vec<StoreFigures<'_>> {
        let stores = self.addresses.iter().zip(self.shared.stores());
        let figures = |(place, store): (_, &RedisStore)| StoreFigures {
            address: place,
            link: store.link_stats(),
            values: store.stats(),
        };
        stores.map(figures).collect()
    }

    pub(crate) fn stats(&self) -> SharedStats {
        self.shared.stats()
    }

    /// Waits until an attempt to connect to the first store has failed. Who calls it says how long.
    pub(crate) async fn first_connect_failed(&self) {
        while self.first().link_stats().nodes.iter().all(|node| node.down.is_none()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The first store that does not answer.
    pub(crate) fn first_down(&self) -> Option<Box<str>> {
        let figures = self.figures();
        let down = figures.iter().find(|store| !store.is_up());
        down.map(|store| store.address.name.clone())
    }

    /// The first store that does not answer and without which a rule refuses.
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

    /// Gives back what is borrowed, and says goodbye, as far as that takes no longer.
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
