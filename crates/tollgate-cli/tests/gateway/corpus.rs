//! Smuggling and hop-by-hop abuse: every case of `corpus.txt` through the gateway into strict upstreams. The upstream
//! receives what the gateway counted and nothing else, and the next client is answered as itself.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use testkit::peers::RawUpstream;
use testkit::strict_http::StrictRequest;

use super::applications::RecordingApplication;
use super::corpus_reader::{self, CorpusCase, CorpusVerdict};
use super::gateway_process::{COUNTING_RULES, GatewayProcess};
use super::wire_client::{WireClient, WireReply};

/// The address of the clients: no trusted peer, so nothing that they say about themselves counts.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Fields that no upstream may receive from a client that is not trusted.
const NEVER_FORWARDED: [&str; 9] = [
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "http2-settings",
    "x-user-id",
    "x-tier",
    "x-real-ip",
    "x-tollgate-token",
    "x-tollgate-anything",
];

/// Fields that have no business in trailers.
const NEVER_TRAILERS: [&str; 8] = [
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "host",
    "transfer-encoding",
    "x-forwarded-for",
    "x-forwarded-proto",
];

/// The target of the request that follows a case on its connection.
const LAST_TARGET: &str = "/last-on-this-connection";

/// The responses to one case.
#[derive(Debug, Default)]
struct CorpusOutcome {
    /// Responses to the case itself.
    replies: Vec<WireReply>,
    /// Responses to everything behind it on the connection.
    later: Vec<WireReply>,
}

impl CorpusOutcome {
    /// Number of responses that the application wrote.
    fn answered(&self) -> usize {
        let all = self.replies.iter().chain(&self.later);
        all.filter(|reply| reply.is_from_application()).count()
    }
}

/// Sends a case and reads its responses. Then it sends a last request on the same connection: responses come in order, so
/// a smuggled request would be answered before it.
fn play(gateway: SocketAddr, case: &CorpusCase) -> CorpusOutcome {
    let mut client = WireClient::connect_from(STRANGER, gateway);
    client.send(&case.bytes);
    let mut outcome = CorpusOutcome::default();
    let expected = match case.verdict {
        CorpusVerdict::Forward(count) => count,
        CorpusVerdict::Refuse => 1,
        // The rest of the request never comes.
        CorpusVerdict::Cut => {
            client.finish();
            usize::MAX
        }
    };
    // A HEAD has no body; in the corpus it is always the first request.
    let mut method = if case.bytes.starts_with(b"HEAD") { "HEAD" } else { "GET" };
    while outcome.replies.len() < expected {
        let Ok(reply) = client.read_reply(method) else { return outcome };
        outcome.replies.push(reply);
        method = "GET";
    }
    let last = format!("GET {LAST_TARGET} HTTP/1.1\r\nhost: app\r\nconnection: close\r\n\r\n");
    client.send(last.as_bytes());
    while let Ok(reply) = client.read_reply("GET") {
        outcome.later.push(reply);
    }
    outcome
}

/// Compares the responses to a case with its verdict.
fn check_replies(case: &CorpusCase, outcome: &CorpusOutcome) -> Result<(), String> {
    let from_application = |reply: &&WireReply| reply.is_from_application();
    let forwarded = outcome.replies.iter().filter(from_application).count();
    let expected = match case.verdict {
        CorpusVerdict::Forward(count) => count,
        CorpusVerdict::Refuse | CorpusVerdict::Cut => 0,
    };
    if forwarded != expected {
        let statuses: Vec<_> = outcome.replies.iter().map(|reply| reply.status).collect();
        return Err(format!("{forwarded} of {expected} answered, statuses {statuses:?}"));
    }
    let errors = outcome.replies.iter().filter(|reply| !reply.is_from_application());
    if let Some(odd) = errors.clone().find(|reply| !(400..600).contains(&reply.status)) {
        return Err(format!("the gateway answers {}", odd.status));
    }
    match outcome.later.iter().filter(from_application).find(|reply| reply.text() != LAST_TARGET) {
        Some(smuggled) => Err(format!("a request was smuggled: {smuggled:?}")),
        None => Ok(()),
    }
}

/// Checks a request that the upstream received.
fn check_forwarded(case: &CorpusCase, request: &StrictRequest) -> Result<(), String> {
    let is_upgrade = case.name.starts_with("upgrade");
    let has = |name: &str| !request.values(name).is_empty();
    if let Some(name) = NEVER_FORWARDED.into_iter().find(|name| has(name)) {
        return Err(format!("{name} is forwarded"));
    }
    // Whoever sends TE must nominate it.
    let is_te = |value: &str| value.eq_ignore_ascii_case("te") && has("te");
    let connection = request.values("connection").iter().all(|value| is_te(value));
    if !is_upgrade && (!connection || has("upgrade")) {
        return Err("Connection or Upgrade is forwarded".into());
    }
    if request.values("te").iter().any(|te| *te != "trailers") {
        return Err("TE is forwarded".into());
    }
    if request.value("x-forwarded-for") != Some("127.0.0.2") {
        return Err(format!("X-Forwarded-For is {:?}", request.values("x-forwarded-for")));
    }
    let trailers = request.trailers.iter().map(|(name, _)| name.as_str());
    let mut bad =
        trailers.filter(|name| NEVER_TRAILERS.contains(name) || NEVER_FORWARDED.contains(name));
    match bad.next() {
        Some(name) => Err(format!("the trailer {name} is forwarded")),
        None => Ok(()),
    }
}

/// Checks the conditions of the case itself.
fn check_conditions(case: &CorpusCase, request: &StrictRequest) -> Result<(), String> {
    if let Some(name) = case.absent.iter().find(|name| !request.values(name).is_empty()) {
        return Err(format!("{name} is forwarded"));
    }
    let differs = |(name, value): &&(String, String)| request.value(name) != Some(value);
    match case.present.iter().find(differs) {
        Some((name, value)) => {
            Err(format!("{name} is {:?} instead of {value}", request.values(name)))
        }
        None => Ok(()),
    }
}

/// Plays one case against the recorder of raw bytes.
fn judge(
    gateway: &GatewayProcess,
    upstream: &RawUpstream,
    case: &CorpusCase,
) -> Result<(), String> {
    let before = gateway.counted_for(STRANGER);
    let outcome = play(gateway.address(), case);
    let follow_up = format!("/follow-up-{}", case.name);
    let next = WireClient::connect_from(STRANGER, gateway.address()).get(&follow_up);
    let next = next.expect("an answer");
    if !next.is_from_application() || next.text() != follow_up {
        return Err(format!("the next client is answered {next:?}"));
    }
    let requests = upstream.take_requests()?;
    for request in &requests {
        check_forwarded(case, request)?;
        if request.target != follow_up && request.target != LAST_TARGET {
            check_conditions(case, request)?;
        }
    }
    check_replies(case, &outcome)?;
    let (received, answered) = (requests.len(), outcome.answered() + 1);
    if received != answered {
        return Err(format!("{received} received, {answered} answered"));
    }
    let counted = gateway.counted_for(STRANGER) - before;
    let exact = matches!(case.verdict, CorpusVerdict::Forward(_));
    if counted < received as u64 || (exact && counted > received as u64) {
        // A bad request behind a good one is refused without being counted.
        return Err(format!("{counted} counted, {received} received"));
    }
    Ok(())
}

#[test]
fn nothing_is_smuggled_into_a_strict_reader() {
    let upstream = RawUpstream::recorder();
    let gateway = GatewayProcess::start(upstream.address(), COUNTING_RULES);
    let mut wrong = String::new();
    let cases = corpus_reader::read();
    for case in &cases {
        if let Err(reason) = judge(&gateway, &upstream, case) {
            writeln!(wrong, "{}: {reason}", case.name).expect("a text");
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{wrong}", wrong.lines().count(), cases.len());
}

/// Cases that an application cannot be asked, because its own grammar is narrower: the name of the application, and the
/// start of the names of the cases.
const NOT_ASKED: [(&str, &str); 4] = [
    // Methods that Node does not know, and an Expect that it answers itself.
    ("node", "line-method-small"),
    ("node", "hop-expect"),
    // uvicorn breaks off when it is asked to switch to a protocol that it lacks.
    ("uvicorn", "upgrade"),
    // h11 reads at most 20 digits.
    ("uvicorn", "cl-many-zeros"),
];

/// Plays one case against a real application.
fn judge_count(
    gateway: &GatewayProcess,
    application: &RecordingApplication,
    case: &CorpusCase,
) -> Result<(), String> {
    let (before, errors_before) = application.seen();
    let outcome = play(gateway.address(), case);
    let follow_up = format!("/follow-up-{}", case.name);
    let next = WireClient::connect_from(STRANGER, gateway.address()).get(&follow_up);
    let next = next.expect("an answer");
    if !next.is_from_application() || next.text() != follow_up {
        return Err(format!("the next client is answered {next:?}"));
    }
    let (after, errors) = application.seen();
    if errors > errors_before {
        return Err("the application received something that it cannot read".into());
    }
    // nginx counts a request when its first byte arrives, and does not wait for the body.
    let cut = u64::from(case.verdict == CorpusVerdict::Cut && application.name == "nginx");
    if cut == 0 {
        check_replies(case, &outcome)?;
    }
    let (received, answered) = (after - before, outcome.answered() as u64 + 1);
    match received {
        received if received < answered || received > answered + cut => {
            Err(format!("{received} received, {answered} answered"))
        }
        _ => Ok(()),
    }
}

fn nothing_is_smuggled_into(application: &RecordingApplication) {
    let gateway = GatewayProcess::start(application.address(), COUNTING_RULES);
    let mut wrong = String::new();
    let asked = |case: &&CorpusCase| {
        let same = |(name, start): &(&str, &str)| {
            *name == application.name && case.name.starts_with(start)
        };
        !NOT_ASKED.iter().any(same)
    };
    for case in corpus_reader::read().iter().filter(asked) {
        if let Err(reason) = judge_count(&gateway, application, case) {
            writeln!(wrong, "{}: {reason}", case.name).expect("a text");
        }
    }
    assert!(wrong.is_empty(), "{}:\n{wrong}\n{}", application.name, application.log());
}

#[test]
fn nothing_is_smuggled_into_node() {
    nothing_is_smuggled_into(&RecordingApplication::node());
}

#[test]
fn nothing_is_smuggled_into_uvicorn() {
    nothing_is_smuggled_into(&RecordingApplication::uvicorn());
}

#[test]
fn nothing_is_smuggled_into_nginx() {
    nothing_is_smuggled_into(&RecordingApplication::nginx());
}
