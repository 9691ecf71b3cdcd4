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

impl<T: PacedClient> LoadGenerator<T> {
    /// Begins the requests whose time has come, as long as there are idle connections.
    fn begin_due_requests(&mut self, pace: &mut LoadPace) -> Result<(), String> {
        let now = self.clock.elapsed();
        while pace.next_at <= now {
            let count = self.connections.len();
            let mut in_turn = (0..count).map(|it| (pace.next_connection + it) % count);
            let idle = in_turn.find(|&index| self.connections[index].client.is_idle());
            let Some(index) = idle else { return Ok(()) };
            let connection = &mut self.connections[index];
            let (answers, latencies_ns) = (&mut self.answers, &mut self.latencies_ns);
            let out = &mut connection.out;
            // The time of the schedule is the beginning of the latency.
            let mut turn = ClientContext { now: pace.next_at, out, answers, latencies_ns };
            connection.client.on_connected(&mut turn)?;
            connection.send()?;
            pace.next_connection = (index + 1) % count;
            pace.next_at += pace.interval;
        }
        Ok(())
    }
}
