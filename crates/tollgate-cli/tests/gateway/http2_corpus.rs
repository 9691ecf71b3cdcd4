//! Requests in HTTP/2 that become other requests in HTTP/1.1 if a gateway is careless: lengths, line ends in values,
//! connection fields, and two names for the host.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use testkit::peers::RawUpstream;

use super::gateway_process::{COUNTING_RULES, GatewayProcess};
use super::http2_wire::Http2Wire;
use super::wire_client::WireClient;

/// The address of the clients: no trusted peer.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A whole request in HTTP/1.1, to be hidden in HTTP/2.
const EVIL: &str = "GET /smuggled HTTP/1.1\r\nHost: app\r\n\r\n";

/// The expected outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Http2Verdict {
    /// The upstream receives it once, and answers it.
    Forward,
    /// The upstream receives no complete request.
    Refuse,
    /// The upstream may receive the request without its body, which belongs to no request.
    Bodiless,
}

use Http2Verdict::{Bodiless, Forward, Refuse};

/// Fields of a plain request, with others behind them.
fn with<'a>(path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let plain = [(":method", "POST"), (":scheme", "http"), (":authority", "app"), (":path", path)];
    plain.into_iter().chain(more.iter().copied()).collect()
}

/// Fields of a plain request, with one of the four replaced.
fn but<'a>(name: &str, value: &'a str) -> Vec<(&'a str, &'a str)> {
    let replaced = |(field, old)| (field, if field == name { value } else { old });
    with("/plain", &[]).into_iter().map(replaced).collect()
}

/// Fields of a plain request, without one of the four.
fn without(name: &str) -> Vec<(&'static str, &'static str)> {
    with("/plain", &[]).into_iter().filter(|(field, _)| *field != name).collect()
}

/// Fields, body, verdict.
type Http2Case<'a> = (Vec<(&'a str, &'a str)>, &'a str, Http2Verdict);

fn cases<'a>(long: &'a str, longer: &'a str) -> Vec<Http2Case<'a>> {
    let value = |name, value| with("/value", &[(name, value)]);
    let mut cases = vec![
        (with("/plain", &[]), "hello", Forward),
        (with("/empty", &[]), "", Forward),
        (value("content-length", "5"), "hello", Forward),
        // h2.CL: the length does not say what the frames say.
        (value("content-length", "0"), EVIL, Bodiless),
        (value("content-length", "4"), "hello", Refuse),
        (value("content-length", "6"), "hello", Refuse),
        (value("content-length", "5"), "", Refuse),
        (value("content-length", "+5"), "hello", Refuse),
        (value("content-length", "5, 5"), "hello", Refuse),
        (with("/cl", &[("content-length", "5"), ("content-length", "6")]), "hello", Refuse),
        // h2.TE: chunks do not exist in HTTP/2.
        (value("transfer-encoding", "chunked"), EVIL, Refuse),
        (value("transfer-encoding", "identity"), "hello", Refuse),
        (value("Transfer-Encoding", "chunked"), "hello", Refuse),
        // Fields of connections do not exist either.
        (value("connection", "close"), "", Refuse),
        (value("connection", "x-user-id"), "", Refuse),
        (value("keep-alive", "timeout=5"), "", Refuse),
        (value("proxy-connection", "keep-alive"), "", Refuse),
        (value("upgrade", "websocket"), "", Refuse),
        (value("te", "gzip"), "", Refuse),
        (value("te", "trailers"), "", Forward),
        // Names.
        (value("X-Upper", "1"), "", Refuse),
        (value("x a", "1"), "", Refuse),
        (value("x:a", "1"), "", Refuse),
        (value("x\r\na", "1"), "", Refuse),
        (value("", "1"), "", Refuse),
        (value("x\0a", "1"), "", Refuse),
        (value(":unknown", "1"), "", Refuse),
        (value(":status", "200"), "", Refuse),
        (value(":path", "/second"), "", Refuse),
        (value(":method", "GET"), "", Refuse),
        // Methods.
        (but(":method", "GET / HTTP/1.1\r\nhost: evil\r\n\r\n"), "", Refuse),
        (but(":method", "GET "), "", Refuse),
        (but(":method", ""), "", Refuse),
        (but(":method", "G@T"), "", Refuse),
        (but(":method", "TRACE"), "", Refuse),
        (without(":method"), "", Refuse),
        // Paths.
        (but(":path", ""), "", Refuse),
        (but(":path", "plain"), "", Refuse),
        (but(":path", "*"), "", Refuse),
        (but(":path", "/a b"), "", Refuse),
        (but(":path", "/ HTTP/1.1\r\nhost: evil\r\n\r\n"), "", Refuse),
        (but(":path", "/\0"), "", Refuse),
        (but(":path", "http://evil/"), "", Refuse),
        (but(":path", "//evil/"), "", Forward),
        (but(":path", "/a/../%2e%2e/b"), "", Forward),
        (but(":path", long), "", Forward),
        (but(":path", longer), "", Refuse),
        (without(":path"), "", Refuse),
        // Schemes.
        (but(":scheme", "https://evil/?"), "", Refuse),
        (but(":scheme", "ftp"), "", Refuse),
        (without(":scheme"), "", Refuse),
        // Hosts.
        (but(":authority", "a@app"), "", Refuse),
        (but(":authority", "app/evil"), "", Refuse),
        (but(":authority", "app evil"), "", Refuse),
        (but(":authority", "app:80x"), "", Refuse),
        (but(":authority", ""), "", Refuse),
        (without(":authority"), "", Forward),
        (value(":authority", "evil"), "", Refuse),
        (value("host", "app"), "", Forward),
        (value("host", "evil"), "", Refuse),
        (with("/hosts", &[("host", "app"), ("host", "evil")]), "", Refuse),
        // What a client says about itself.
        (value("x-user-id", "admin"), "", Forward),
        (value("x-forwarded-for", "10.0.0.1"), "", Forward),
        (value("x-tollgate-token", "x"), "", Forward),
        (with("/cookies", &[("cookie", "a=1"), ("cookie", "b=2")]), "", Forward),
        (value("x-long", longer), "", Refuse),
    ];
    for bytes in ["a\r\nx-injected: 1", "a\nb", "a\rb", "a\0b", "\r\n\r\nGET /smuggled HTTP/1.1"] {
        cases.push((with("/value", &[("x-value", bytes)]), "", Refuse));
    }
    // A pseudo field behind an ordinary one.
    let mut late = vec![("x-early", "1")];
    late.extend(with("/late", &[]));
    cases.push((late, "", Refuse));
    let connect = vec![(":method", "CONNECT"), (":authority", "app:443")];
    cases.push((connect, "", Refuse));
    let socket = but(":method", "CONNECT").into_iter().chain([(":protocol", "websocket")]);
    cases.push((socket.collect(), "", Refuse));
    cases
}

/// Sends one case on a connection of its own and compares what the upstream received.
fn judge(
    gateway: &GatewayProcess,
    upstream: &RawUpstream,
    (fields, body, verdict): &Http2Case<'_>,
) -> Result<(), String> {
    let before = gateway.counted_for(STRANGER);
    let mut wire = Http2Wire::connect_from(STRANGER, gateway.address());
    let _ = wire.send_request(1, fields, body.as_bytes());
    let outcome = wire.read_stream(1);
    let next = WireClient::connect_from(STRANGER, gateway.address()).get("/follow-up");
    let next = next.expect("an answer");
    if next.text() != "/follow-up" {
        return Err(format!("the next client is answered {next:?}"));
    }
    let requests = upstream.take_requests()?;
    let received: Vec<_> = requests.iter().filter(|one| one.target != "/follow-up").collect();
    for request in &received {
        let has = |name: &str| !request.values(name).is_empty();
        // Whoever sends TE must nominate it.
        let connection = has("connection") && !has("te");
        if connection || ["x-user-id", "x-tollgate-token", "x-injected"].into_iter().any(has) {
            return Err(format!("a field slipped through: {request:?}"));
        }
        if request.value("x-forwarded-for") != Some("127.0.0.2") {
            return Err(format!("a forged address slipped through: {request:?}"));
        }
        if request.target == "/cookies" && request.value("cookie") != Some("a=1; b=2") {
            return Err(format!("cookies are not joined: {request:?}"));
        }
    }
    let path = fields.iter().find(|(name, _)| *name == ":path").map_or("", |(_, path)| path);
    let expected = usize::from(*verdict == Forward);
    let answered = usize::from(outcome.complete && outcome.data == path.as_bytes());
    let bodiless = received.len() <= 1 && received.iter().all(|request| request.body.is_empty());
    let agrees = match verdict {
        Bodiless => bodiless,
        Forward | Refuse => (received.len(), answered) == (expected, expected),
    };
    if !agrees {
        return Err(format!("{} received, {answered} answered: {outcome:?}", received.len()));
    }
    match gateway.counted_for(STRANGER) - before {
        counted if counted < requests.len() as u64 => Err(format!("only {counted} counted")),
        _ => Ok(()),
    }
}

#[test]
fn http2_requests_do_not_become_others() {
    let upstream = RawUpstream::recorder();
    let gateway = GatewayProcess::start(upstream.address(), COUNTING_RULES);
    let (long, longer) = (format!("/{}", "a".repeat(9_000)), format!("/{}", "a".repeat(70_000)));
    let mut wrong = String::new();
    for case in cases(&long, &longer) {
        if let Err(reason) = judge(&gateway, &upstream, &case) {
            let shown: String = format!("{case:?}").chars().take(200).collect();
            writeln!(wrong, "{shown}: {reason}").expect("a text");
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{wrong}", wrong.lines().count());
}
