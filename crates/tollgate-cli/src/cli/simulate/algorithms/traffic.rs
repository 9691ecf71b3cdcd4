//! Traffic: when requests arrive, and from whom.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use tollgate::Micros;

use super::super::one_limit::{TRACE_FORMAT, key_of};
use super::super::trace::TraceReader;
use super::super::{CommandFailure, Report};
use crate::chart::{ChartAxis, time_step};

/// Most requests that a chart or a table is made of.
pub(in super::super) const REQUESTS_MAX: usize = 100_000;

/// Instants from here on are shown from the first request on, not from the epoch: a week.
const SHOWN_AS_CLOCK_US: u64 = 7 * 86_400 * 1_000_000;

/// Requests in the order in which they are decided.
#[derive(Debug, Default)]
pub(in super::super) struct TrafficTrace {
    pub(super) requests: Vec<TrafficRequest>,
    span: TrafficSpan,
}

/// The part of time that a chart shows.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct TrafficSpan {
    pub(in super::super) from_us: u64,
    pub(in super::super) to_us: u64,
    /// The instant that is labelled 0.
    zero_us: u64,
}

/// One request.
#[derive(Clone, Debug)]
pub(super) struct TrafficRequest {
    pub(super) at: Micros,
    pub(super) key: Arc<str>,
    pub(super) cost: u64,
}

impl TrafficSpan {
    /// The time from 0 to an instant.
    pub(super) fn until(to_us: u64) -> TrafficSpan {
        TrafficSpan { from_us: 0, to_us, zero_us: 0 }
    }

    /// The time around requests from one instant to another, with some time after it.
    pub(in super::super) fn around(first_us: u64, last_us: u64) -> TrafficSpan {
        let length = last_us.saturating_sub(first_us).max(1_000);
        let from_us = match first_us <= length / 2 {
            true => 0,
            false => first_us - first_us % time_step(length),
        };
        let to_us = last_us.saturating_add(length / 12);
        let zero_us = if from_us < SHOWN_AS_CLOCK_US { 0 } else { from_us };
        TrafficSpan { from_us, to_us, zero_us }
    }

    pub(in super::super) fn length_us(&self) -> u64 {
        self.to_us.saturating_sub(self.from_us).max(1)
    }

    /// The place of an instant on the horizontal axis.
    pub(in super::super) fn place(&self, at_us: u64) -> u64 {
        at_us.saturating_sub(self.zero_us)
    }

    pub(in super::super) fn axis(&self) -> ChartAxis {
        ChartAxis::time_between(self.place(self.from_us), self.place(self.to_us))
    }

    /// The index of the part that an instant falls into, of so many equal parts.
    pub(in super::super) fn part_of(&self, at_us: u64, parts: u64) -> usize {
        let part = u128::from(at_us.saturating_sub(self.from_us)) * u128::from(parts)
            / u128::from(self.length_us());
        usize::try_from(part).unwrap_or(usize::MAX).min(parts as usize - 1)
    }
}

impl TrafficTrace {
    pub(super) fn new(requests: Vec<TrafficRequest>, span: TrafficSpan) -> TrafficTrace {
        TrafficTrace { requests, span }
    }

    /// Reads a trace of keys.
    pub(super) fn read(path: &Path) -> Result<TrafficTrace, CommandFailure> {
        let mut trace = TraceReader::open(path, &TRACE_FORMAT)?;
        let mut requests = Vec::new();
        while trace.advance()? {
            if requests.len() == REQUESTS_MAX {
                return Err(CommandFailure::Input(too_many_requests()));
            }
            let request = trace.request()?;
            let key = Arc::from(&*key_of(&request)?);
            requests.push(TrafficRequest { at: request.at, key, cost: request.cost.unwrap_or(1) });
        }
        let instants = || requests.iter().map(|request| request.at.as_u64());
        let (Some(first), Some(last)) = (instants().min(), instants().max()) else {
            return Err(CommandFailure::Input(no_requests()));
        };
        Ok(TrafficTrace { span: TrafficSpan::around(first, last), requests })
    }

    pub(super) fn span(&self) -> TrafficSpan {
        self.span
    }

    /// Returns true if one caller sends all requests in the order of time, so that one line can show what
    /// the limiter remembers.
    pub(super) fn has_one_level(&self) -> bool {
        let mut pairs = self.requests.windows(2);
        pairs.all(|pair| pair[0].key == pair[1].key && pair[0].at <= pair[1].at)
    }

    /// The number of requests, callers and units in words.
    pub(super) fn summary(&self) -> String {
        let requests = self.requests.len() as u64;
        let units = self.requests.iter().map(|request| request.cost).fold(0, u64::saturating_add);
        let callers: HashSet<&str> = self.requests.iter().map(|request| &*request.key).collect();
        let mut text = counted(requests, "request");
        if units != requests {
            text = format!("{text} for {}", counted(units, "unit"));
        }
        if callers.len() > 1 { format!("{text} by {} callers", callers.len()) } else { text }
    }
}

/// A number with its noun.
pub(in super::super) fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// The failure of a trace that is too long to draw.
pub(in super::super) fn too_many_requests() -> Report {
    Report::new(format!("the trace has more than {REQUESTS_MAX} requests, too many for a chart"))
        .hint("draw a part of it, or print answers with --output jsonl and without --svg")
}

/// The failure of a trace without requests.
pub(in super::super) fn no_requests() -> Report {
    Report::new("the trace has no requests, so there is nothing to draw")
}
