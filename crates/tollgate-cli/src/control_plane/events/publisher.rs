//! `LiveTraffic`: history and events of a running server, and the thread that adds to them each second.

use std::io;
use std::sync::Arc;

use super::hub::EventHub;
use super::tick::tick_json;
use crate::control_plane::refusals::refusal_row;
use crate::control_plane::reloads::reload_event_json;
use crate::history::{SecondObserver, TrafficHistory, TrafficSampler, TrafficSecond};
use crate::metrics::Metrics;

/// The recent past and the present of the server, for the control listener.
#[derive(Clone)]
pub(crate) struct LiveTraffic {
    pub(in crate::control_plane) history: Arc<TrafficHistory>,
    pub(in crate::control_plane) events: Arc<EventHub>,
    metrics: Arc<Metrics>,
}

impl LiveTraffic {
    pub(crate) fn new(metrics: Arc<Metrics>) -> LiveTraffic {
        let events = Arc::new(EventHub::new(metrics.started.as_u64()));
        LiveTraffic { history: Arc::default(), events, metrics }
    }

    /// Starts the thread that adds the traffic of each second.
    pub(crate) fn start(&self) -> io::Result<TrafficSampler> {
        let publisher = EventPublisher {
            events: self.events.clone(),
            metrics: self.metrics.clone(),
            last_reload: 0,
            last_refusal: String::new(),
        };
        TrafficSampler::start(self.metrics.clone(), self.history.clone(), publisher)
    }

    /// Ends the event streams, which would otherwise keep their connections open.
    pub(crate) fn stop(&self) {
        self.events.close();
    }
}

/// Makes the events of each second, once for all streams.
struct EventPublisher {
    events: Arc<EventHub>,
    metrics: Arc<Metrics>,
    /// Number of the last reload that was published.
    last_reload: u64,
    /// Id of the last refusal that was published.
    last_refusal: String,
}

/// Most refusals that are published in a second, the last of it.
const REFUSALS_MAX: usize = 5;

impl EventPublisher {
    fn publish_reloads(&mut self) {
        for record in self.metrics.live.reloads_after(self.last_reload) {
            self.events.publish("reload", &reload_event_json(&record).to_string());
            self.last_reload = record.number;
        }
    }

    fn publish_refusals(&mut self) {
        let latest = self.metrics.observer.refusals().latest(REFUSALS_MAX, None);
        let fresh = latest.iter().take_while(|refusal| refusal.id != self.last_refusal).count();
        for refusal in latest[..fresh].iter().rev() {
            self.events.publish("refusal", &refusal_row(refusal).to_string());
        }
        if let Some(last) = latest.first() {
            self.last_refusal.clone_from(&last.id);
        }
    }
}

impl SecondObserver for EventPublisher {
    fn second_over(&mut self, second: &TrafficSecond) {
        self.publish_reloads();
        self.publish_refusals();
        self.events.publish("tick", &tick_json(second, &self.metrics));
    }
}
