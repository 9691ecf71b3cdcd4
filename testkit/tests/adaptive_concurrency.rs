//! The adaptive concurrency controller in front of a modelled upstream, on a virtual clock, beside the best fixed bound.

use testkit::upstream_model::{ModelClients, ModelPhase, PhaseResult, ServiceTimes, UpstreamModel};
use tollgate::queue::AdaptiveConcurrency;

/// The range of a rule that names none.
const RANGE: (u32, u32) = (4, 1_000);

/// A thousand service times of 50 ms, of which the first two hundred are for settling.
fn phase(servers: u32, service_us: u64) -> ModelPhase {
    let (length_us, settling_us) = (50_000_000, 10_000_000);
    ModelPhase { length_us, settling_us, servers, service_us }
}

fn run(model: &UpstreamModel) -> Vec<PhaseResult> {
    model.run(&mut AdaptiveConcurrency::new(RANGE.0, RANGE.1))
}

#[test]
fn it_is_near_the_best_fixed_bound_while_capacity_halves_and_returns() {
    let fewer = vec![phase(16, 50_000), phase(8, 50_000), phase(16, 50_000)];
    let slower = vec![phase(16, 50_000), phase(16, 100_000), phase(16, 50_000)];
    let clients = [
        ModelClients::Open { load: 1.5 },
        ModelClients::Open { load: 3.0 },
        ModelClients::Closed { clients: 60, retry_us: 20_000 },
    ];
    for phases in [fewer, slower] {
        for times in [ServiceTimes::Constant, ServiceTimes::Exponential] {
            for clients in clients {
                let model = UpstreamModel { phases: phases.clone(), times, clients, seed: 1 };
                compare_with_best_fixed(&model);
            }
        }
    }
}

/// Goodput is what is answered, at any latency: the 99th percentile is compared beside it.
fn compare_with_best_fixed(model: &UpstreamModel) {
    for (number, result) in run(model).iter().enumerate() {
        let (limit, best) = model.best_fixed(number);
        let case = format!("{model:?}, phase {number}: {result:?}; best {limit}: {best:?}");
        assert!(result.goodput >= 0.9 * best.goodput, "{case}");
        assert!(result.p99_us <= 2 * best.p99_us, "{case}");
    }
}

#[test]
fn a_limit_that_nobody_reaches_does_not_move_and_refuses_nobody() {
    for times in [ServiceTimes::Constant, ServiceTimes::Exponential] {
        let phases = vec![phase(16, 50_000), phase(16, 100_000), phase(16, 50_000)];
        let clients = ModelClients::Open { load: 0.2 };
        for result in run(&UpstreamModel { phases, times, clients, seed: 1 }) {
            assert!((result.limit_min, result.limit_max) == (20, 20), "{times:?}: {result:?}");
            assert!(result.goodput > 0.18 * 320.0, "{times:?}: {result:?}");
        }
    }
}

#[test]
fn a_base_latency_that_drifts_is_followed_both_ways() {
    let up = (0..20).map(|step| 50_000 + 5_000 * step);
    let phases = up.clone().chain(up.rev()).map(|service_us| phase(16, service_us)).collect();
    let clients = ModelClients::Open { load: 3.0 };
    let model = UpstreamModel { phases, times: ServiceTimes::Constant, clients, seed: 1 };
    for (result, phase) in run(&model).iter().zip(&model.phases) {
        let capacity = 16.0 * 1e6 / phase.service_us as f64;
        assert!(result.goodput >= 0.9 * capacity, "{phase:?}: {result:?}");
        assert!(result.p99_us <= 2 * phase.service_us, "{phase:?}: {result:?}");
    }
}

#[test]
fn a_first_limit_far_from_capacity_is_left_behind() {
    for (servers, times) in [
        (5, ServiceTimes::Constant),
        (5, ServiceTimes::Exponential),
        (100, ServiceTimes::Constant),
        (100, ServiceTimes::Exponential),
    ] {
        let clients = ModelClients::Open { load: 2.0 };
        let model = UpstreamModel { phases: vec![phase(servers, 50_000)], times, clients, seed: 1 };
        compare_with_best_fixed(&model);
    }
}

#[test]
fn a_run_repeats_itself() {
    let clients = ModelClients::Open { load: 1.5 };
    let times = ServiceTimes::Exponential;
    let model = |seed| UpstreamModel { phases: vec![phase(16, 50_000)], times, clients, seed };
    let goodput = |seed| run(&model(seed))[0].goodput;
    assert_eq!(goodput(1), goodput(1));
    assert_ne!(goodput(1), goodput(2));
}
