//! Path confusion through the gateway: whichever route an application serves a request by, the rule for that route has
//! counted it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;

use super::gateway_process::GatewayProcess;
use super::wire_client::WireClient;
use crate::proxies::spellings::{
    RULES, has_more_slashes, route_in, start_nginx, start_node, start_uvicorn, targets,
};

/// Sends all targets through a gateway, and compares the rules that applied with the route that served them.
fn compare(name: &str, application: SocketAddr) {
    let gateway = GatewayProcess::start(application, RULES);
    let mut client = WireClient::connect(gateway.address());
    let (mut wrong, mut routes) = (String::new(), BTreeSet::new());
    for target in targets() {
        let Ok(reply) = client.get(&target) else {
            client = WireClient::connect(gateway.address());
            continue;
        };
        let body = reply.text();
        let Some(route) = route_in(&body).filter(|_| reply.status == 200) else { continue };
        // Each policy is named after its rule and its period.
        let policies = reply.field("ratelimit-policy").unwrap_or_default();
        let tolerated = route == "other" && has_more_slashes(&target) && !policies.is_empty();
        if !policies.contains(&format!("\"{route}-1h\"")) && !tolerated {
            writeln!(wrong, "{target} is served by {route}: {policies}").expect("a text");
        }
        routes.insert(route);
    }
    assert!(wrong.is_empty(), "{name}:\n{wrong}");
    assert!(routes.len() >= 4, "{name} served {routes:?} only");
}

#[test]
fn uvicorn_serves_what_was_counted() {
    compare("uvicorn", start_uvicorn().address());
}

#[test]
fn node_serves_what_was_counted() {
    let (app, by_url, by_parse) = start_node();
    compare("node by URL", by_url);
    compare("node by its older parser", by_parse);
    compare("node by target", app.address());
}

#[test]
fn nginx_serves_what_was_counted() {
    compare("nginx", start_nginx().address());
}
