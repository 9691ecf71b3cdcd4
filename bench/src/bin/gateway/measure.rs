//! The measurements: a closed load at full speed, an open load at half of it, and idle connections.

use std::cell::RefCell;
use std::time::Duration;

use tollgate_bench::address::{BlockingStream, ServerAddress};
use tollgate_bench::generator::http::{HttpLoadClient, PacedHttpClient, ask_on};
use tollgate_bench::generator::paced::measure_paced;
use tollgate_bench::generator::requests::EncodedRequests;
use tollgate_bench::generator::upstream::BenchUpstream;
use tollgate_bench::generator::{self, LoadSpec};
use tollgate_bench::machine;
use tollgate_bench::process::START_MAX;
use tollgate_bench::rounds::{Figure, RoundResults, SampleTiming, ServerSample};

use crate::contestants::GatewayContestant;

/// Idle connections whose memory is measured.
pub(crate) const IDLE_CONNECTIONS: usize = 2_000;
/// Connections of the open load: enough that requests rarely wait for one.
const PACED_CONNECTIONS: usize = 64;

/// Least part of the scheduled requests that the direct load must do for a round to count.
const PACE_KEPT_LEAST: f64 = 0.95;

/// The duration and number of samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatewayEffort {
    pub(crate) rounds: usize,
    pub(crate) span: SampleTiming,
}

/// The load generator with its upstream.
pub(crate) struct GatewayLoad<'a> {
    pub(crate) upstream: RefCell<BenchUpstream>,
    pub(crate) requests: &'a EncodedRequests,
    pub(crate) effort: GatewayEffort,
}

/// Latency that a proxy adds at half load, in microseconds; `None` if the machine was too busy in every round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AddedLatency {
    pub(crate) requests_per_s: f64,
    pub(crate) p50_us: Option<Figure>,
    pub(crate) p99_us: Option<Figure>,
}

impl GatewayLoad<'_> {
    /// Measures all contestants in turn over so many connections.
    pub(crate) fn full_speed(
        &self,
        contestants: &[GatewayContestant],
        connections: usize,
    ) -> Result<RoundResults, String> {
        let names: Vec<String> = contestants.iter().map(|it| it.name.to_owned()).collect();
        RoundResults::measure(&names, self.effort.rounds, |index| {
            let load = self.spec(&contestants[index], connections);
            let client = |index| HttpLoadClient::new(self.requests, index);
            generator::measure_beside(&load, client, || self.upstream.borrow_mut().serve())
        })
    }

    /// Measures the latency at this rate through a proxy, and directly after it without the proxy.
    pub(crate) fn added_latency(
        &self,
        contestant: &GatewayContestant,
        requests_per_s: f64,
    ) -> Result<AddedLatency, String> {
        let through = self.spec(contestant, PACED_CONNECTIONS);
        let upstream = self.upstream.borrow().address();
        let direct =
            LoadSpec { address: upstream.into(), server: std::process::id(), ..through.clone() };
        let mut pairs = Vec::with_capacity(self.effort.rounds);
        for _ in 0..self.effort.rounds {
            let through = self.paced_sample(&through, requests_per_s)?;
            let direct = self.paced_sample(&direct, requests_per_s)?;
            // If not even the direct load keeps its pace, the machine is busy with something else.
            if direct.requests_per_s >= requests_per_s * PACE_KEPT_LEAST {
                pairs.push((through, direct));
            }
        }
        let added = |us: fn(&ServerSample) -> f64| {
            Figure::from_values(pairs.iter().map(|(through, direct)| us(through) - us(direct)))
        };
        let (p50_us, p99_us) = (added(|it| it.p50_us), added(|it| it.p99_us));
        Ok(AddedLatency { requests_per_s, p50_us, p99_us })
    }

    fn paced_sample(&self, load: &LoadSpec, requests_per_s: f64) -> Result<ServerSample, String> {
        let client = |index| PacedHttpClient::new(self.requests, index);
        measure_paced(load, requests_per_s, client, || self.upstream.borrow_mut().serve())
    }

    fn spec(&self, contestant: &GatewayContestant, connections: usize) -> LoadSpec {
        LoadSpec {
            address: contestant.address.into(),
            server: contestant.process.id(),
            connections,
            span: self.effort.span,
        }
    }

    /// Opens connections, sends one request on each and keeps them. Returns the growth of the proxy's memory in
    /// bytes per connection.
    pub(crate) fn idle_bytes(&self, contestant: &GatewayContestant) -> Result<f64, String> {
        let resident = || machine::resident_bytes_of(contestant.process.id()).ok_or("it is gone");
        let address = ServerAddress::from(contestant.address);
        let before = resident()?;
        let open = |index| {
            let mut stream = BlockingStream::connect(&address, START_MAX)
                .map_err(|error| format!("connection {index}: {error}"))?;
            let response = ask_on(&mut stream, self.requests.get(index))?;
            match response.status {
                200 => Ok(stream),
                other => Err(format!("connection {index} is answered {other}")),
            }
        };
        let open_all = || (0..IDLE_CONNECTIONS).map(open).collect::<Result<Vec<_>, String>>();
        let connections = self.upstream.borrow_mut().serve_during(open_all)?;
        let grown = resident()?.saturating_sub(before);
        drop(connections);
        Ok(grown as f64 / IDLE_CONNECTIONS as f64)
    }
}

/// The timing of a sample.
pub(crate) fn timing(warm_up_ms: u64, duration_ms: u64) -> SampleTiming {
    SampleTiming {
        warm_up: Duration::from_millis(warm_up_ms),
        duration: Duration::from_millis(duration_ms),
    }
}
