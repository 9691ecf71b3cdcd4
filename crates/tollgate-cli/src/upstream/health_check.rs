//! Active health checks: a task for each upstream that has them.

use std::sync::{Arc, Weak};

use http::{HeaderValue, Request, Uri, header};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tollgate_rules::gateway_settings::HealthProbe;

use super::body::OutgoingBody;
use super::forwarder;
use super::registry::UpstreamState;
use super::server_state::FailureReason;

/// Starts the checks of an upstream. They end when a reload replaces it; long responses may keep the old one.
pub(super) fn start(upstream: &Arc<UpstreamState>) {
    let Some(probe) = upstream.settings.health.clone() else {
        upstream.servers.iter().for_each(|server| server.health.forget_checks());
        return;
    };
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(check_all(Arc::downgrade(upstream), probe));
    }
}

/// Checks all servers at each interval.
async fn check_all(upstream: Weak<UpstreamState>, probe: HealthProbe) {
    let mut ticks = tokio::time::interval(probe.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // Bound: the servers of the upstream.
        let mut checks = JoinSet::new();
        let Some(upstream) = upstream.upgrade().filter(|it| !it.is_replaced()) else { return };
        for number in 0..upstream.servers.len() {
            checks.spawn(check_one(upstream.clone(), number));
        }
        drop(upstream);
        checks.join_all().await;
    }
}

pub(super) async fn check_one(upstream: Arc<UpstreamState>, number: usize) {
    let Some(probe) = &upstream.settings.health else { return };
    let mut request = Request::new(OutgoingBody::Empty);
    *request.uri_mut() = Uri::try_from(&*probe.path).unwrap_or(Uri::from_static("/"));
    let agent = HeaderValue::from_static("tollgate-health-check");
    request.headers_mut().insert(header::USER_AGENT, agent);
    let answer = forwarder::check(&upstream, number, request);
    let answer = tokio::time::timeout(probe.timeout, answer).await;
    let failure = match answer {
        Ok(Ok(status)) if (200..400).contains(&status.as_u16()) => None,
        Ok(Ok(status)) => Some(FailureReason::CheckStatus(status.as_u16())),
        Ok(Err(error)) => Some(FailureReason::Check(error)),
        Err(_) => Some(FailureReason::CheckTimeout),
    };
    // The servers may belong to the next version of the upstream already.
    if !upstream.is_replaced() {
        upstream.record_check(number, failure);
    }
}
