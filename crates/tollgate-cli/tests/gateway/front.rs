//! The gateway's front: request ids, the access log, `100 Continue`, idle exchanges, tunnels, metrics and start-up.

use std::net::Ipv4Addr;
use std::path::Path;

use testkit::peers::{RawConversation, RawUpstream};
use testkit::wait::{until, until_true};

use super::gateway_process::{COUNTING_RULES, GatewayProcess};
use super::wire_client::WireClient;
use crate::harness::{file, run, text};
use crate::server::exposition::ParsedExposition;

/// An address that [`COUNTING_RULES`] do not trust.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn outcomes(gateway: &GatewayProcess, upstream: &str, outcome: &str) -> u64 {
    let page = ParsedExposition::of_text(&gateway.server.admin_get("/metrics", &[]).body);
    let counted = page.samples().find(|one| {
        one.name == "tollgate_gateway_requests_total"
            && one.labels["upstream"] == upstream
            && one.labels["outcome"] == outcome
    });
    counted.map_or(0, |one| one.value as u64)
}

#[test]
fn a_request_has_one_name_everywhere() {
    let upstream = RawUpstream::recorder();
    let gateway = GatewayProcess::start(upstream.address(), COUNTING_RULES);
    let trusted = Ipv4Addr::LOCALHOST;
    // Sender, its field | kept
    let rows = [
        (trusted, "x-request-id: abc-1\r\n", Some("abc-1")),
        (trusted, "x-request-id: two words\r\n", None),
        (trusted, "", None),
        (STRANGER, "x-request-id: abc-1\r\n", None),
    ];
    for (sender, field, kept) in rows {
        let mut client = WireClient::connect_from(sender, gateway.address());
        client.send(format!("GET / HTTP/1.1\r\nhost: app\r\n{field}\r\n").as_bytes());
        let reply = client.read_reply("GET").expect("an answer");
        let told = reply.field("x-request-id").expect("a name").to_owned();
        match kept {
            Some(name) => assert_eq!(told, name, "{field}"),
            None => assert!(told.len() == 32 && told != "abc-1", "{field}: {told}"),
        }
        let seen = upstream.take_requests().expect("requests");
        assert_eq!(seen[0].values("x-request-id"), [told]);
    }
}

#[test]
fn the_access_log_has_a_line_for_each_request_and_no_secret() {
    let upstream = RawUpstream::start(|conversation| {
        while let Some(request) = conversation.read_request()? {
            match request.target.starts_with("/stalls") {
                true => return conversation.wait_for_close(),
                false => conversation.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?,
            }
        }
        Ok(())
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let rules = "rules: [{ name: few, key: '{ip}', match: { path: /few }, limits: [1/hour] }]";
    let flags = ["--access-log", text(&path), "--log-format", "json"];
    let gateway = GatewayProcess::start_with(upstream.address(), rules, &flags);

    let mut client = WireClient::connect(gateway.address());
    client.send(b"POST /items?token=hidden HTTP/1.1\r\nhost: app\r\ncontent-length: 3\r\n\r\nabc");
    let named = client.read_reply("POST").expect("an answer");
    assert_eq!(client.get("/few").expect("an answer").status, 200);
    assert_eq!(client.get("/few").expect("an answer").status, 429);
    client.send(b"GET / HTTP/1.1\r\nhost: a b\r\n\r\n");
    assert_eq!(client.read_reply("GET").expect("an answer").status, 400);
    let mut leaver = WireClient::connect(gateway.address());
    leaver.send(b"GET /stalls HTTP/1.1\r\nhost: app\r\n\r\n");
    until_true("the upstream to have the request", || upstream.connected() == 2);
    drop(leaver);

    let lines = access_lines(&path, 5);
    // path, status, code, bytes in, bytes out, upstream, rule
    let rows: Vec<_> = lines
        .iter()
        .map(|line| {
            let text = |name: &str| line[name].as_str().expect("a text").to_owned();
            let number = |name: &str| line[name].as_u64().expect("a number");
            let numbers = (number("status"), number("bytes_in"), number("bytes_out"));
            (text("path"), numbers, text("code"), text("upstream"), text("rule"))
        })
        .collect();
    let row = |path: &str, numbers, code: &str, upstream: &str, rule: &str| {
        (path.to_owned(), numbers, code.to_owned(), upstream.to_owned(), rule.to_owned())
    };
    assert_eq!(rows[0], row("/items", (200, 3, 2), "", "default", ""));
    assert_eq!(rows[1], row("/few", (200, 0, 2), "", "default", ""));
    assert_eq!((rows[2].1.0, &*rows[2].2, &*rows[2].4), (429, "refused", "few"));
    assert_eq!((rows[3].1.0, &*rows[3].2, &*rows[3].3), (400, "bad_request", ""));
    assert_eq!(rows[4], row("/stalls", (499, 0, 0), "client_gone", "default", ""));
    assert_eq!(lines[0]["id"], named.field("x-request-id").expect("a name"));
    assert_eq!(lines[2]["decided_by"], "memory");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("hidden") && !text.contains("127.0.0.1\""), "{text}");
    assert_eq!(outcomes(&gateway, "default", "client_gone"), 1);
    assert_eq!(outcomes(&gateway, "", "refused"), 1);
    assert_eq!(outcomes(&gateway, "default", "2xx"), 2);
}

/// A program that rotates logs moves the file and sends SIGHUP: later lines are in a new file of the name.
#[cfg(unix)]
#[test]
fn an_access_log_that_was_moved_is_opened_again_after_a_hangup() {
    let upstream = RawUpstream::recorder();
    let folder = tempfile::tempdir().unwrap();
    let (path, moved) = (folder.path().join("access.log"), folder.path().join("access.log.1"));
    let flags = ["--access-log", text(&path), "--log-format", "json"];
    let mut gateway = GatewayProcess::start_with(upstream.address(), COUNTING_RULES, &flags);
    let paths = |path: &Path, count| {
        let lines = access_lines(path, count);
        lines
            .iter()
            .map(|line| line["path"].as_str().expect("a path").to_owned())
            .collect::<Vec<_>>()
    };
    let mut client = WireClient::connect(gateway.address());
    client.get("/before").expect("an answer");
    assert_eq!(paths(&path, 1), ["/before"]);
    std::fs::rename(&path, &moved).expect("the file is moved");
    client.get("/moved").expect("an answer");
    assert_eq!(paths(&moved, 2), ["/before", "/moved"]);
    gateway.server.signal("HUP");
    gateway.server.wait_for_log("access log reopened");
    client.get("/after").expect("an answer");
    assert_eq!(paths(&path, 1), ["/after"]);
    assert_eq!(paths(&moved, 2).len(), 2);
}

pub(super) fn access_lines(path: &Path, count: usize) -> Vec<serde_json::Value> {
    until("the lines of the access log", || {
        let text = std::fs::read_to_string(path).expect("the access log");
        let lines: Vec<_> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (lines.len() >= count).then_some(lines)
    })
}

const UPLOAD: &[u8] =
    b"POST / HTTP/1.1\r\nhost: app\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";

#[test]
fn a_body_is_asked_for_when_the_upstream_wants_it() {
    let upstream = RawUpstream::start(|conversation: &mut RawConversation| {
        let head = conversation.read_head()?;
        assert!(head.contains("expect: 100-continue"), "{head}");
        conversation.write(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        let body = conversation.read_bytes(5)?;
        let length = body.len();
        conversation
            .write(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").as_bytes())?;
        conversation.write(&body)?;
        conversation.wait_for_close()
    });
    let gateway = GatewayProcess::start(upstream.address(), COUNTING_RULES);
    let mut client = WireClient::connect(gateway.address());
    client.send(UPLOAD);
    assert_eq!(client.read_any_head().expect("a head").status, 100);
    client.send(b"hello");
    let reply = client.read_reply("POST").expect("an answer");
    assert_eq!((reply.status, reply.text().as_str()), (200, "hello"));
}

#[test]
fn a_body_that_nobody_wants_is_not_asked_for() {
    let upstream = RawUpstream::start(|conversation: &mut RawConversation| {
        conversation.read_head()?;
        conversation.write(b"HTTP/1.1 417 No\r\ncontent-length: 0\r\n\r\n")?;
        conversation.wait_for_close()
    });
    let rules = "rules: [{ name: one, key: '{ip}', limits: [1/hour] }]";
    let gateway = GatewayProcess::start(upstream.address(), rules);
    // By the upstream, then by a rule.
    for status in [417, 429] {
        let mut client = WireClient::connect(gateway.address());
        client.send(UPLOAD);
        let reply = client.read_reply("POST").expect("an answer");
        assert_eq!((reply.status, &*reply.interim), (status, &[][..]));
    }
    assert!(upstream.received().iter().all(|bytes| !bytes.ends_with(b"hello")));
}

#[test]
fn an_upstream_that_ignores_expectations_gets_the_body_all_the_same() {
    let upstream = RawUpstream::recorder();
    let gateway = GatewayProcess::start(upstream.address(), COUNTING_RULES);
    let mut client = WireClient::connect(gateway.address());
    client.send(UPLOAD);
    assert_eq!(client.read_any_head().expect("a head").status, 100);
    client.send(b"hello");
    assert_eq!(client.read_reply("POST").expect("an answer").status, 200);
    assert_eq!(upstream.take_requests().expect("requests")[0].body, b"hello");
}

#[test]
fn an_exchange_without_a_byte_in_either_direction_ends() {
    let upstream = RawUpstream::start(|conversation: &mut RawConversation| {
        conversation.read_head()?;
        conversation.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")?;
        conversation.wait_for_close()
    });
    let rules = format!(
        "{COUNTING_RULES}upstreams: {{ app: {{ addresses: 'http://{}', idle_timeout: 100ms }} }}\n",
        upstream.address()
    );
    let gateway = GatewayProcess::start_routed(&rules, &[]);
    let mut client = WireClient::connect(gateway.address());
    client.send(b"GET / HTTP/1.1\r\nhost: app\r\n\r\n");
    assert_eq!(client.read_head().expect("a head").status, 200);
    assert!(client.read_to_close().is_none_or(|body| body == b"half"));
    assert_eq!(outcomes(&gateway, "app", "body_timeout"), 1);
    until_true("the upstream's connection to close", || upstream.connected() == 0);
}

#[test]
fn a_tunnel_holds_its_slot_until_it_ends() {
    let upstream = RawUpstream::start(|conversation: &mut RawConversation| {
        while let Ok(head) = conversation.read_head() {
            if head.contains("upgrade: echo") {
                conversation.write(
                    b"HTTP/1.1 101 Go\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\nhello",
                )?;
                let bytes = conversation.read_bytes(4)?;
                conversation.write(&bytes)?;
                return conversation.wait_for_close();
            }
            conversation.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        }
        Ok(())
    });
    let rules = "rules: [{ name: one, key: '{ip}', limits: [1000/hour], concurrency: 1 }]";
    let gateway = GatewayProcess::start(upstream.address(), rules);
    let tunnels = || {
        let page = ParsedExposition::of_text(&gateway.server.admin_get("/metrics", &[]).body);
        page.value("tollgate_gateway_tunnels", &[])
    };
    let mut client = WireClient::connect(gateway.address());
    client.send(b"GET / HTTP/1.1\r\nhost: app\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n");
    let reply = client.read_head().expect("a head");
    assert_eq!((reply.status, reply.field("upgrade")), (101, Some("echo")));
    assert_eq!(client.read_exact(5).expect("bytes"), b"hello");
    client.send(b"ping");
    assert_eq!(client.read_exact(4).expect("bytes"), b"ping");
    assert_eq!(tunnels(), 1.0);
    assert_eq!(gateway.get("/").status, 429, "the slot is taken");
    drop(client);
    until_true("the slot", || gateway.get("/").status == 200);
    until_true("the tunnel's end", || tunnels() == 0.0);
}

#[test]
fn a_tunnel_without_traffic_ends() {
    let upstream = RawUpstream::start(|conversation: &mut RawConversation| {
        conversation.read_head()?;
        conversation.write(b"HTTP/1.1 101 Go\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")?;
        conversation.wait_for_close()
    });
    let rules = format!(
        "{COUNTING_RULES}upstreams: {{ app: {{ addresses: 'http://{}', idle_timeout: 50ms }} }}\n",
        upstream.address()
    );
    let gateway = GatewayProcess::start_routed(&rules, &[]);
    let mut client = WireClient::connect(gateway.address());
    client.send(b"GET / HTTP/1.1\r\nhost: app\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n");
    assert_eq!(client.read_head().expect("a head").status, 101);
    assert!(client.read_to_close().is_none_or(|rest| rest.is_empty()));
    until_true("the upstream's connection to close", || upstream.connected() == 0);
}

#[test]
fn a_gateway_needs_an_upstream_and_an_upstream_a_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let rules = file(folder.path(), "rules.yaml", COUNTING_RULES);
    // Flags | exit code, problem, hint
    let rows: [(&[&str], i32, &str, &str); 4] = [
        (&["--gateway", ":0"], 2, "no upstream", "--upstream http"),
        (&["--gateway", ":0", "--limit", "1/s"], 2, "no upstream", "--upstream http"),
        (&["--gateway", ":0", "--rules", text(&rules)], 1, "no upstream", "routes"),
        (&["--upstream", "http://127.0.0.1:3000"], 2, "without --gateway", "--gateway 127"),
    ];
    for (flags, code, problem, hint) in rows {
        let none =
            ["serve", "--http", "none", "--grpc", "none", "--resp", "none", "--admin", "none"];
        let ended = run(&[&none[..], flags].concat());
        assert_eq!(ended.code, Some(code), "{flags:?}: {ended:?}");
        assert!(ended.stderr.contains(problem) && ended.stderr.contains(hint), "{ended:?}");
    }
}

#[test]
fn the_example_does_what_its_readme_says() {
    let rules = include_str!("../../../../examples/gateway/rules.yaml");
    let (app, api) = (RawUpstream::recorder(), RawUpstream::recorder());
    let rules = rules
        .replace("http://127.0.0.1:3000", &format!("http://{}", app.address()))
        .replace("http://127.0.0.1:3001", &format!("http://{}", api.address()));
    let gateway = GatewayProcess::start_routed(&rules, &["--workers", "1"]);
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!((app.accepted(), api.accepted()), (1, 0));
    let reply = gateway.get("/v1/items");
    assert_eq!((reply.status, reply.field("x-ratelimit-limit")), (200, Some("20")));
    assert_eq!((app.accepted(), api.accepted()), (1, 1));
    let mut client = WireClient::connect(gateway.address());
    let mut login = || {
        client.send(b"POST /login HTTP/1.1\r\nhost: app\r\ncontent-length: 0\r\n\r\n");
        client.read_reply("POST").expect("an answer").status
    };
    let statuses: Vec<_> = (0..6).map(|_| login()).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
}

#[test]
fn a_slow_body_of_grpc_is_waited_for_and_others_are_not() {
    let upstream = RawUpstream::recorder();
    let flags = ["--workers", "1", "--body-timeout", "50ms"];
    // gRPC would go to the upstream by HTTP/2 otherwise.
    let address = upstream.address();
    let upstreams =
        format!("upstreams: {{ app: {{ addresses: ['http://{address}'], version: http1 }} }}\n");
    let gateway = GatewayProcess::start_routed(&(upstreams + COUNTING_RULES), &flags);
    let send = |kind: &str| {
        let mut client = WireClient::connect(gateway.address());
        let head = format!("content-type: {kind}\r\ncontent-length: 5\r\n\r\nhel");
        client.send(format!("POST / HTTP/1.1\r\nhost: app\r\n{head}").as_bytes());
        client
    };
    let mut grpc = send("application/grpc");
    let mut other = send("text/plain");
    let reply = other.read_reply("POST").expect("an answer");
    assert_eq!((reply.status, reply.problem_code()), (408, "request_body".into()));
    // The timeout of the other has passed by now, and it began later.
    grpc.send(b"lo");
    assert_eq!(grpc.read_reply("POST").expect("an answer").status, 200);
}
