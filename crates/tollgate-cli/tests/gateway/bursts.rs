//! Bursts of many callers at once: each gets its capacity, to the unit, however many workers decide over memory and over a
//! Redis.

use std::collections::BTreeMap;
use std::thread;

use testkit::peers::RawUpstream;
use testkit::redis::TestRedis;
use testkit::wait::until_true;

use super::gateway_process::GatewayProcess;
use super::shaping::waiting;
use super::wire_client::WireClient;
use crate::server::exposition::ParsedExposition;

/// Nothing comes back within an hour, so that what is admitted is the capacity.
const QUEUE: &str = "
identify: { trusted_peers: [127.0.0.1/32], user: { header: x-user-id } }
rules:
  - { name: even, key: '{user}', limits: [{ rate: 4/day, burst: 4, algorithm: leaky_bucket, queue: true }] }
";

/// The same capacity, and a caller who finds no room waits for it.
const FAIR_QUEUE: &str = "
identify: { trusted_peers: [127.0.0.1/32], user: { header: x-user-id } }
rules:
  - { name: even, key: '{user}', limits: [4/day burst 4], fair: { wait: 20h, per_key: 10, total: 5000 } }
";

const CALLERS: usize = 100;
const REQUESTS: usize = 5;
const CAPACITY: u64 = 4;

/// Bursts of each store and number of workers.
const ROUNDS: usize = 3;

/// The sum of the samples of a counter with this label.
fn sum(gateway: &GatewayProcess, name: &str, (label, value): (&str, &str)) -> u64 {
    let page = ParsedExposition::of_text(&gateway.server.admin_get("/metrics", &[]).body);
    let has_label =
        |labels: &BTreeMap<String, String>| labels.get(label).is_some_and(|of| of == value);
    let samples = page.samples().filter(|one| one.name == name && has_label(&one.labels));
    samples.map(|one| one.value as u64).sum()
}

/// Sends five requests of each of a hundred new callers at once, each on a connection of its own.
fn burst(gateway: &GatewayProcess, round: usize) -> Vec<WireClient> {
    let mut clients: Vec<WireClient> =
        (0..CALLERS * REQUESTS).map(|_| WireClient::connect(gateway.address())).collect();
    thread::scope(|scope| {
        // One request of each caller.
        for clients in clients.chunks_mut(CALLERS) {
            scope.spawn(move || {
                for (caller, client) in clients.iter_mut().enumerate() {
                    let request =
                        format!("GET / HTTP/1.1\r\nhost: a\r\nx-user-id: {round}-{caller}\r\n\r\n");
                    client.send(request.as_bytes());
                }
            });
        }
    });
    clients
}

#[test]
fn a_hundred_callers_of_a_queue_get_their_capacity_to_the_unit() {
    check_bursts(QUEUE, false);
}

#[test]
fn a_hundred_callers_of_a_fair_queue_get_their_capacity_to_the_unit() {
    check_bursts(FAIR_QUEUE, true);
}

/// Checks bursts under these rules. `waits_undecided` says if those who find no room wait, and are not refused.
fn check_bursts(rules: &str, waits_undecided: bool) {
    for workers in ["1", "2", "4", "8"] {
        for redis in [None, Some(TestRedis::start())] {
            let upstream = RawUpstream::recorder();
            let url = redis.as_ref().map(TestRedis::url).unwrap_or_default();
            let store = ["--store", &url, "--store-timeout", "1s"];
            let store = if redis.is_some() { &store[..] } else { &[] };
            let flags = ["--workers", workers, "--gateway-max-delay", "3000h"];
            let more = ["--max-connections-per-ip", "10000"];
            let flags = [&flags[..], &more, store].concat();
            let gateway = GatewayProcess::start_with(upstream.address(), rules, &flags);
            let mut exact = 0;
            for round in 0..2 * ROUNDS {
                let name = format!("{workers} workers, {url:?}, burst {round}");
                exact += usize::from(check_burst(&gateway, &name, round, waits_undecided));
                if exact == ROUNDS {
                    break;
                }
            }
            assert_eq!(
                exact, ROUNDS,
                "{workers} workers, {url:?}: the store did not answer in time"
            );
        }
    }
}

/// Checks one burst: of each caller's requests all but one are admitted, now or later. False if the store did not answer
/// everything in time, so that the gateway has decided by itself.
fn check_burst(gateway: &GatewayProcess, name: &str, round: usize, waits_undecided: bool) -> bool {
    let degraded = || sum(gateway, "tollgate_degraded_total", ("policy", "local"));
    let counts = || {
        let decided = |outcome| sum(gateway, "tollgate_decisions_total", ("outcome", outcome));
        // Those that a queue delays are allowed.
        let [allowed, refused] = ["allowed", "refused"].map(decided);
        [allowed, refused, if waits_undecided { waiting(gateway) } else { 0 }]
    };
    let (degraded_before, before) = (degraded(), counts());
    let clients = burst(gateway, round);
    let (all, mut after) = ((CALLERS * REQUESTS) as u64, before);
    until_true("all to be decided or to wait", || {
        after = counts();
        after.iter().sum::<u64>() - before.iter().sum::<u64>() == all
    });
    let by_itself = degraded() - degraded_before;
    eprintln!("{name}: {before:?} {after:?}, {by_itself} without the store");
    if by_itself == 0 {
        assert_eq!(after[0] - before[0], CALLERS as u64 * CAPACITY, "{name}: {before:?} {after:?}");
    }
    drop(clients);
    until_true("nobody to wait", || waiting(gateway) == 0);
    by_itself == 0
}
