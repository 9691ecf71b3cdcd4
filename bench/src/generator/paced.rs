//! An open load: requests begin at fixed times, whatever happens to those before them.
//!
//! The latency of a request is counted from the time at which it should begin, so a request that had to wait for a
//! free connection shows the wait.

use std::time::Duration;

use super::{ClientContext, LoadClient, LoadGenerator, LoadSpec};
use crate::rounds::ServerSample;

/// A client that sends one request for each call of `on_connected`.
pub trait PacedClient: LoadClient {
    /// Returns true if no request is in flight.
    fn is_idle(&self) -> bool;
}

/// Takes one sample with `requests_per_s` requests in each second. `beside` is called in every turn of the generator.
pub fn measure_paced<T: PacedClient>(
    load: &LoadSpec,
    requests_per_s: f64,
    client: impl Fn(usize) -> T,
    mut beside: impl FnMut() -> Result<(), String>,
) -> Result<ServerSample, String> {
    let mut generator = LoadGenerator::connect(load, client)?;
    let interval = Duration::from_secs_f64(1.0 / requests_per_s);
    let mut pace = LoadPace { interval, next_at: generator.clock.elapsed(), next_connection: 0 };
    let mut turn = |generator: &mut LoadGenerator<T>| {
        beside()?;
        generator.begin_due_requests(&mut pace)
    };
    generator.sample(load, &mut turn)
}

/// The schedule of requests.
struct LoadPace {
    interval: Duration,
    /// The time of the next request.
    next_at: Duration,
    /// The connection to try first.
    next_connection: usize,
}

impl LoadPace {
    /// The connection for the next request and the time when it should begin, if that time has come and a connection is
    /// idle. A request that is late keeps its time, and so do those after it.
    fn next_request(
        &mut self,
        now: Duration,
        connections: usize,
        is_idle: impl Fn(usize) -> bool,
    ) -> Option<(usize, Duration)> {
        if self.next_at > now {
            return None;
        }
        let mut in_turn = (0..connections).map(|it| (self.next_connection + it) % connections);
        let index = in_turn.find(|&index| is_idle(index))?;
        let at = self.next_at;
        self.next_connection = (index + 1) % connections;
        self.next_at += self.interval;
        Some((index, at))
    }
}

impl<T: PacedClient> LoadGenerator<T> {
    /// Begins the requests whose time has come, as long as there are idle connections.
    fn begin_due_requests(&mut self, pace: &mut LoadPace) -> Result<(), String> {
        let now = self.clock.elapsed();
        loop {
            let connections = &self.connections;
            let is_idle = |index: usize| connections[index].client.is_idle();
            let next = pace.next_request(now, connections.len(), is_idle);
            let Some((index, at)) = next else { return Ok(()) };
            let connection = &mut self.connections[index];
            let (answers, latencies_ns) = (&mut self.answers, &mut self.latencies_ns);
            let out = &mut connection.out;
            // The time of the schedule is the beginning of the latency.
            let mut turn = ClientContext { now: at, out, answers, latencies_ns };
            connection.client.on_connected(&mut turn)?;
            connection.send()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::http::PacedHttpClient;
    use crate::generator::requests::EncodedRequests;
    use crate::generator::upstream::BenchUpstream;
    use crate::rounds::SampleTiming;

    #[test]
    fn late_requests_keep_their_times_and_connections_take_turns() {
        let ms = Duration::from_millis;
        let mut pace = LoadPace { interval: ms(10), next_at: ms(0), next_connection: 0 };
        // now, idle connections, the next request
        let rows: [(u64, &[usize], _); 6] = [
            (0, &[0, 1, 2], Some((0, ms(0)))),
            (9, &[1, 2], None),
            (10, &[1, 2], Some((1, ms(10)))),
            (45, &[], None),
            (50, &[0, 1], Some((0, ms(20)))),
            (50, &[1], Some((1, ms(30)))),
        ];
        for (now, idle, expected) in rows {
            let next = pace.next_request(ms(now), 3, |index| idle.contains(&index));
            assert_eq!(next, expected, "at {now} ms");
        }
    }

    #[test]
    fn an_open_load_is_answered() {
        let mut upstream = BenchUpstream::listen().unwrap();
        let moment = Duration::from_millis(20);
        let load = LoadSpec {
            address: upstream.address().into(),
            server: std::process::id(),
            connections: 3,
            span: SampleTiming { warm_up: moment, duration: moment },
        };
        let requests = EncodedRequests::generate(1, |_| "GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
        let client = |index| PacedHttpClient::new(&requests, index);
        let sample = measure_paced(&load, 1_000.0, client, || upstream.serve()).unwrap();
        assert!(sample.requests_per_s > 0.0, "{sample:?}");
    }
}
