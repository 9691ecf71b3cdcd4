//! The contestants: proxies in front of the same upstream.
//!
//! A proxy that cannot be started, or that does not do its work, is reported and left out.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use tollgate_bench::generator::answer_excerpt;
use tollgate_bench::generator::http::ask;
use tollgate_bench::generator::requests::EncodedRequests;
use tollgate_bench::generator::upstream::BenchUpstream;
use tollgate_bench::process::{ScratchDir, ServerProcess};
use tollgate_bench::proxies::{self, StartedProxy};
use tollgate_bench::reply::check_same_shape;

use crate::configurations;
use crate::requests::TIGHT;
use crate::rules;

pub(crate) const FORWARDER: &str = "bare forwarder";
pub(crate) const NGINX: &str = "nginx limit_req";
pub(crate) const HAPROXY: &str = "HAProxy stick-table";
pub(crate) const ENVOY: &str = "Envoy local rate limit";
pub(crate) const NO_RULE: &str = "tollgate, no rule matches";
pub(crate) const ONE_RULE: &str = "tollgate, 1 rule";
pub(crate) const ELEVEN_RULES: &str = "tollgate, 11 rules";

/// A running proxy.
pub(crate) struct GatewayContestant {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) process: ServerProcess,
}

/// The contestants to start, and the paths of their programs.
pub(crate) struct GatewayContestantChoice<'a> {
    /// The program `tollgate`.
    pub(crate) tollgate: &'a Path,
    /// The program `bare-forwarder`.
    pub(crate) forwarder: &'a Path,
    /// A part of the names of the wanted contestants; the empty text selects all.
    pub(crate) only: &'a str,
}

/// All contestants, ready to be measured.
pub(crate) struct GatewayContestants {
    /// The contestants in the order of the table. Bound: seven.
    pub(crate) all: Vec<GatewayContestant>,
    /// Contestants that could not be measured, with the reason.
    pub(crate) problems: Vec<String>,
}

impl GatewayContestants {
    /// Starts all wanted contestants and checks that they forward and limit.
    pub(crate) fn start(
        choice: &GatewayContestantChoice<'_>,
        requests: &EncodedRequests,
        upstream: &mut BenchUpstream,
        scratch: &ScratchDir,
    ) -> GatewayContestants {
        let mut it = GatewayContestants { all: Vec::new(), problems: Vec::new() };
        let address = upstream.address();
        let tollgate =
            |name, rules: &str| proxies::tollgate(choice.tollgate, scratch, address, (name, rules));
        let nginx = || proxies::nginx(scratch, address, configurations::NGINX);
        let haproxy = || proxies::haproxy(scratch, address, configurations::HAPROXY);
        let envoy = || proxies::envoy(scratch, address, configurations::ENVOY);
        let (request, only) = (requests.get(0), choice.only);
        it.add(FORWARDER, only, || {
            let started = tollgate("shape", &rules::matching(1))?;
            forwarder(choice.forwarder, scratch, upstream, (request, started.1))
        });
        it.add(NGINX, only, || limiting(upstream, nginx()?));
        it.add(HAPROXY, only, || limiting(upstream, haproxy()?));
        it.add(ENVOY, only, || limiting(upstream, envoy()?));
        it.add(NO_RULE, only, || limiting(upstream, tollgate("no-rule", &rules::matching(0))?));
        it.add(ONE_RULE, only, || limiting(upstream, tollgate("one-rule", &rules::matching(1))?));
        it.add(ELEVEN_RULES, only, || {
            limiting(upstream, tollgate("eleven-rules", &rules::matching(11))?)
        });
        it.check_answers(upstream, request);
        it
    }

    /// Starts a contestant if it is wanted.
    fn add(&mut self, name: &'static str, only: &str, start: impl FnOnce() -> StartedProxy) {
        if !name.contains(only) {
            return;
        }
        match start() {
            Ok((process, address)) => self.all.push(GatewayContestant { name, address, process }),
            Err(problem) => self.problems.push(format!("{name}: {problem}")),
        }
    }

    /// Leaves out contestants that do not forward the request of the measurement.
    fn check_answers(&mut self, upstream: &mut BenchUpstream, request: &[u8]) {
        let problems = &mut self.problems;
        self.all.retain(|it| match exchange(upstream, it.address, request) {
            Ok(_) => true,
            Err(problem) => {
                problems.push(format!("{}: {problem}", it.name));
                false
            }
        });
    }
}

/// Starts the bare forwarder with the fields that Tollgate adds, and checks that both send the same bytes.
fn forwarder(
    program: &Path,
    scratch: &ScratchDir,
    upstream: &mut BenchUpstream,
    (request, tollgate): (&[u8], SocketAddr),
) -> StartedProxy {
    let direct = exchange(upstream, upstream.address(), request)?;
    let through_tollgate = exchange(upstream, tollgate, request)?;
    let mut command = Command::new(program);
    command.arg(upstream.address().to_string());
    command.args(added_fields(&direct.head, &through_tollgate.head)).arg("--");
    command.args(added_fields(&direct.response, &through_tollgate.response));
    let log = scratch.path().join("bare-forwarder.log");
    let (process, address) = ServerProcess::start_announced(&mut command, log, "gateway")?;
    let through_floor = exchange(upstream, address, request)?;
    check_same_shape(&through_tollgate.head, &through_floor.head)?;
    check_same_shape(&through_tollgate.response, &through_floor.response)?;
    Ok((process, address))
}

/// The fields of a message that it did not have without the proxy, except `Date`, which hyper adds itself.
fn added_fields<'a>(direct: &str, message: &'a str) -> Vec<&'a str> {
    let direct = direct.to_ascii_lowercase();
    let is_new = |line: &&str| {
        let line = line.to_ascii_lowercase();
        !line.starts_with("date: ") && !direct.lines().any(|it| it == line)
    };
    let head = message.split("\r\n\r\n").next().unwrap_or_default();
    head.split("\r\n").skip(1).filter(is_new).collect()
}

/// Checks that a proxy limits: one that limits nothing would look fast.
fn limiting(
    upstream: &mut BenchUpstream,
    (process, address): (ServerProcess, SocketAddr),
) -> StartedProxy {
    let status = || ask(address, TIGHT).map(|response| response.status);
    let statuses = upstream.serve_during(|| Ok::<_, String>([status()?, status()?]))?;
    match statuses {
        [200, 429] => Ok((process, address)),
        other => Err(process.with_log(&format!("it does not limit: {other:?} is not 200, 429"))),
    }
}

/// A request as the upstream received it, and the response as the client received it.
struct ProxiedExchange {
    head: String,
    response: String,
}

fn exchange(
    upstream: &mut BenchUpstream,
    address: SocketAddr,
    request: &[u8],
) -> Result<ProxiedExchange, String> {
    let response = upstream.serve_during(|| ask(address, request))?;
    if response.status != 200 {
        let said = answer_excerpt(response.text.as_bytes());
        return Err(format!("the answer is not 200; it said:\n{said}"));
    }
    Ok(ProxiedExchange { head: upstream.last_head(), response: response.text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_fields_are_those_that_the_proxy_wrote() {
        let direct = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na";
        let proxied = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ndate: Mon\r\nvia: b\r\n\r\na";
        assert_eq!(added_fields(direct, proxied), ["via: b"]);
        assert!(added_fields(direct, direct).is_empty());
    }
}
