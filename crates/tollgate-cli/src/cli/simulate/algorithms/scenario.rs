//! The traffic shapes that algorithms are compared on.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Micros;

use super::course::ComparedLimit;
use super::picture::PictureHeading;
use super::traffic::{TrafficRequest, TrafficSpan, TrafficTrace};

const SECOND_US: u64 = 1_000_000;

/// A traffic shape and the limit that it meets.
#[derive(Debug)]
pub(crate) struct TrafficScenario {
    pub(crate) name: &'static str,
    title: &'static str,
    /// Description of the traffic.
    traffic: &'static str,
    /// Sentence that says what to look at.
    lesson: &'static str,
    /// Requests in each period of the limit; a bucket holds as many.
    units: u64,
    period_s: u64,
    /// Length of the chart in seconds.
    seconds: u64,
    /// The instants of the requests in microseconds.
    instants_us: fn() -> Vec<u64>,
}

/// All scenarios, in the order of the help.
pub(crate) const SCENARIOS: [TrafficScenario; 7] = [
    TrafficScenario {
        name: "steady",
        title: "Steady traffic above the limit",
        traffic: "A request every 0.8 s, a quarter more than the limit.",
        lesson: "A bucket admits everything until its capacity is used, and then ten in ten seconds as the others do.",
        units: 10,
        period_s: 10,
        seconds: 40,
        instants_us: || (0..50).map(|index| index * SECOND_US * 4 / 5).collect(),
    },
    TrafficScenario {
        name: "burst",
        title: "Bursts after silence",
        traffic: "15 requests within 1.4 s, three times.",
        lesson: "All pass a burst of 10; they differ in when they let the next requests pass.",
        units: 10,
        period_s: 10,
        seconds: 40,
        instants_us: || {
            let burst = |from: u64| (0..15).map(move |index| (from + index) * SECOND_US / 10);
            [20, 120, 280].into_iter().flat_map(burst).collect()
        },
    },
    TrafficScenario {
        name: "boundary",
        title: "Both sides of a boundary",
        traffic: "10 requests in the last second of a window and 10 in the first second of the next.",
        lesson: "A fixed window admits all 20 of them within two seconds; a sliding window does not.",
        units: 10,
        period_s: 10,
        seconds: 30,
        instants_us: || {
            let burst = |from: u64| (0..10).map(move |index| (from + index) * SECOND_US / 10);
            [90, 100].into_iter().flat_map(burst).collect()
        },
    },
    TrafficScenario {
        name: "flood",
        title: "A flood",
        traffic: "20 requests a second for 30 s, twenty times the limit.",
        lesson: "Nothing but the limit passes; a refusal charges nothing, so the flood does not lock its caller out.",
        units: 10,
        period_s: 10,
        seconds: 40,
        instants_us: || (0..600).map(|index| index * SECOND_US / 20).collect(),
    },
    TrafficScenario {
        name: "visual",
        title: "A request every two seconds",
        traffic: "Requests at 0, 2, 4, 6, 8, 10, 12 and 16 s.",
        lesson: "Buckets give back two units in every five seconds and admit all; windows wait for the oldest requests to leave.",
        units: 4,
        period_s: 10,
        seconds: 20,
        instants_us: || [0, 2, 4, 6, 8, 10, 12, 16].map(|second| second * SECOND_US).into(),
    },
    TrafficScenario {
        name: "timeline",
        title: "A request every second",
        traffic: "Requests at every second from 0 to 12 s, twice the limit.",
        lesson: "The log admits the request at 10 s, because that at 0 s is ten seconds old by then.",
        units: 5,
        period_s: 10,
        seconds: 20,
        instants_us: || (0..=12).map(|second| second * SECOND_US).collect(),
    },
    TrafficScenario {
        name: "eager",
        title: "An eager caller",
        traffic: "Silence until 8 s, then 8 requests at once, then one every second.",
        lesson: "Five pass everywhere. What comes after is the character of the algorithm: a trickle, a boundary, or a silence.",
        units: 5,
        period_s: 10,
        seconds: 30,
        instants_us: || {
            let at_once = [8; 8].into_iter();
            at_once.chain(9..=27).map(|second| second * SECOND_US).collect()
        },
    },
];

impl TrafficScenario {
    /// The scenario of this name.
    pub(crate) fn find(name: &str) -> Option<&'static TrafficScenario> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }

    /// The requests, all by one caller.
    pub(super) fn traffic(&self) -> TrafficTrace {
        let key: Arc<str> = "default".into();
        let request =
            |at_us| TrafficRequest { at: Micros::new(at_us), key: Arc::clone(&key), cost: 1 };
        let requests = (self.instants_us)().into_iter().map(request).collect();
        TrafficTrace::new(requests, TrafficSpan::until(self.seconds * SECOND_US))
    }

    /// The limit.
    pub(super) fn limit(&self) -> ComparedLimit {
        let period = Duration::from_secs(self.period_s);
        ComparedLimit { units: self.units, period, burst: self.units }
    }

    /// Title and text of the picture.
    pub(super) fn heading(&self) -> PictureHeading {
        let TrafficScenario { units, period_s, traffic, lesson, .. } = self;
        let limit = format!("The limit is {units} in {period_s} s, and a bucket holds {units}.");
        PictureHeading { title: self.title.into(), text: format!("{traffic} {limit} {lesson}") }
    }
}
