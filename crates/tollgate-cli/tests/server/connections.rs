//! Connections that are slow, too many, or end with the server.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::harness::{DEADLINE, TestHttpClient, TollgateProcess};

#[test]
fn slow_heads_are_closed() {
    // Enough for the heads that are to arrive, also from a client that has to wait for its turn.
    let server = TollgateProcess::start(&["--limit", "9/hour", "--header-timeout", "2s"]);
    let mut silent = TestHttpClient::connect(server.http());
    let mut slow = TestHttpClient::connect(server.http());
    slow.send(b"POST /v1/check HTTP/1.1\r\nhost:").unwrap();
    let mut second = TestHttpClient::connect(server.http());
    second.request("POST", "/v1/check", &[], r#"{"user":"1","cost":0}"#);
    second.send(b"POST").unwrap();
    for (name, client) in [("silent", &mut silent), ("slow", &mut slow), ("second", &mut second)] {
        assert_eq!(client.until_closed(), "", "{name}");
    }
    assert_eq!(
        server.post("/v1/check", r#"{"user":"1","cost":0}"#).status,
        200,
        "others are served"
    );
}

#[test]
fn slow_bodies_are_told_and_closed() {
    let server = TollgateProcess::start(&["--limit", "9/hour", "--body-timeout", "100ms"]);
    let mut client = TestHttpClient::connect(server.http());
    client.send(b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n{").unwrap();
    let answer = client.receive(true).unwrap();
    assert_eq!((answer.status, answer.message()), (408, "The body took too long.".into()));
    assert_eq!(client.until_closed(), "");
}

#[test]
fn idle_connections_are_closed() {
    let flags = ["--limit", "9/hour", "--header-timeout", "1h", "--idle-timeout", "2s"];
    let server = TollgateProcess::start(&flags);
    let mut client = TestHttpClient::connect(server.http());
    assert_eq!(client.request("POST", "/v1/check", &[], r#"{"user":"1","cost":0}"#).status, 200);
    assert_eq!(client.until_closed(), "");
}

#[test]
fn heads_have_a_cap() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let long = "x".repeat(20_000);
    let many: Vec<_> = (0..101).map(|n| (format!("h{n}"), "1")).collect();
    let many: Vec<_> = many.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    for headers in [&[("x-long", long.as_str())][..], &many] {
        let mut client = TestHttpClient::connect(server.http());
        let answer = client.try_request("POST", "/v1/check", headers, r#"{"user":"1","cost":0}"#);
        assert_eq!(answer.expect("an answer").status, 431);
    }
    assert_eq!(server.post("/v1/check", r#"{"user":"1","cost":0}"#).status, 200);
}

#[test]
fn what_follows_a_request_does_not_withhold_its_answer() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let request =
        "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 12\r\n\r\n{\"user\":\"1\"}";
    for after in ["\r\n", "POST /v1/ch", "\u{0}garbage\r\n\r\n"] {
        let mut client = TestHttpClient::connect(server.http());
        client.send(format!("{request}{after}").as_bytes()).unwrap();
        assert_eq!(client.receive(true).unwrap().status, 200, "{after:?}");
    }
}

#[test]
fn one_connection_too_many_is_turned_away() {
    for flag in ["--max-connections", "--max-connections-per-ip"] {
        let server = TollgateProcess::start(&["--limit", "9/hour", flag, "2"]);
        let mut first = TestHttpClient::connect(server.http());
        let mut second = TestHttpClient::connect(server.http());
        for client in [&mut first, &mut second] {
            assert_eq!(
                client.request("POST", "/v1/check", &[], r#"{"user":"1","cost":0}"#).status,
                200
            );
        }
        let mut third = TestHttpClient::connect(server.http());
        let answer = third.receive(true).unwrap();
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
        assert_eq!(answer.message(), "Too many connections are open.");
        assert_eq!(first.request("POST", "/v1/check", &[], r#"{"user":"1","cost":0}"#).status, 200);
        drop(second);
        // Room comes when the server has noticed; until then newcomers are turned away.
        let served = |_| {
            let mut client = TestHttpClient::connect(server.http());
            client
                .try_request("POST", "/v1/check", &[], r#"{"user":"1","cost":0}"#)
                .is_ok_and(|one| one.status == 200)
        };
        assert!((0..1_000).any(served), "{flag}");
    }
}

/// With no descriptors left, connections wait in the kernel until there are some.
#[test]
fn a_server_without_descriptors_recovers() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 48 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_tollgate")]);
    command.args(["serve", "--limit", "9/hour", "--workers", "1", "--max-keys", "1000"]);
    command.args(["--http", "127.0.0.1:0", "--grpc", "none", "--resp", "none", "--admin", "none"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = TollgateProcess::spawn(command).expect("it starts");
    let clients: Vec<_> = (0..64).map(|_| TestHttpClient::connect(server.http())).collect();
    server.wait_for_log("cannot accept connections");
    drop(clients);
    assert_eq!(server.post("/v1/check", r#"{"user":"1","cost":0}"#).status, 200);
    let ended = server.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let told = ended.stderr.matches("cannot accept connections").count();
    assert!((1..=10).contains(&told), "{ended:?}");
}

#[test]
fn who_has_closed_its_side_is_still_answered() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let mut stream = TcpStream::connect(server.http()).unwrap();
    stream
        .write_all(
            b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 12\r\n\r\n{\"user\":\"1\"}",
        )
        .unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(TestHttpClient::over(stream).receive(true).unwrap().status, 200);
}

#[test]
fn what_is_not_http_does_not_disturb() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let junk: [&[u8]; 5] = [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\0\0\0\0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\njunkjunkjunkjunk",
        b"POST /v1/check HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    ];
    for bytes in junk {
        let mut client = TestHttpClient::connect(server.http());
        client.send(bytes).unwrap();
        let said = client.until_closed();
        assert!(!said.contains(" 200 "), "{said:?}");
    }
    assert_eq!(server.post("/v1/check", r#"{"user":"1","cost":0}"#).status, 200);
}

/// Clients that ask without pause, each on one connection, while the server is told to stop: every
/// request that was sent is answered, and the connection then says that it closes.
#[test]
fn a_stop_loses_no_request() {
    const CLIENTS: usize = 8;
    let server = TollgateProcess::start(&["--limit", "1000000/hour"]);
    let (address, stopping) = (server.http(), AtomicBool::new(false));
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = TestHttpClient::connect(address);
                    loop {
                        let answer =
                            client.try_request("POST", "/v1/check", &[], r#"{"user":"1"}"#);
                        let answer = answer.expect("every request is answered");
                        assert_eq!(answer.status, 200);
                        answered.fetch_add(1, Ordering::Relaxed);
                        if answer.header("connection") == Some("close") {
                            assert!(stopping.load(Ordering::Relaxed), "nobody asked it to stop");
                            return;
                        }
                    }
                })
            })
            .collect();
        while answered.load(Ordering::Relaxed) < 1_000 {
            thread::yield_now();
        }
        stopping.store(true, Ordering::Relaxed);
        server.signal("TERM");
        for client in clients {
            client.join().expect("no request is lost");
        }
    });
    let ended = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("stopping") && ended.stderr.contains("stopped"), "{ended:?}");
}

#[test]
fn a_request_that_has_begun_is_finished() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let mut client = TestHttpClient::connect(server.http());
    client.send(b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 13\r\n\r\n").unwrap();
    let mut other = TestHttpClient::connect(server.http());
    assert_eq!(other.request("POST", "/v1/check", &[], r#"{"user":"1","cost":0}"#).status, 200);
    server.signal("TERM");
    // Idle connections are closed, and the listener: then the stop has certainly begun.
    assert_eq!(other.until_closed(), "");
    client.send(b"{\"user\":\"42\"}").unwrap();
    let answer = client.receive(true).unwrap();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert_eq!(server.wait().code, Some(0));
}

#[test]
fn while_it_stops_it_is_not_ready_and_a_second_signal_does_not_wait() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    assert_eq!(server.admin_get("/readyz", &[]).status, 200);
    let mut admin = TestHttpClient::connect(server.admin());
    let mut stuck = TestHttpClient::connect(server.http());
    stuck.send(b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 13\r\n\r\n").unwrap();
    server.signal("TERM");
    let ready = loop {
        let answer = admin.request("GET", "/readyz", &[], "");
        if answer.status != 200 {
            break answer;
        }
    };
    assert_eq!((ready.status, &ready.json()["ready"]), (503, &false.into()));
    server.signal("INT");
    let ended = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("stopping at once"), "{ended:?}");
}

/// The timers of the server's sockets at a listener, as the kernel tells them: which, and its hundredths of a
/// second.
#[cfg(target_os = "linux")]
fn timers(listener: SocketAddr) -> Vec<(String, u64)> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{:04X}", listener.port());
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields
        .filter(|fields| fields[1].ends_with(&port) && fields[3] == "01")
        .map(|fields| {
            let (kind, when) = fields[5].split_once(':').unwrap();
            (kind.to_string(), u64::from_str_radix(when, 16).unwrap())
        })
        .collect()
}

#[test]
#[cfg(target_os = "linux")]
fn the_kernel_asks_for_peers_that_vanished() {
    let server = TollgateProcess::start(&[]);
    for listener in [server.http(), server.grpc(), server.resp(), server.admin()] {
        let _silent = TcpStream::connect(listener).unwrap();
        // 02 is a timer that keeps a connection alive: due within 300 s, not the 2 hours of a system.
        testkit::wait::until_true("a timer", || {
            let timers = timers(listener);
            timers.iter().any(|(kind, when)| kind == "02" && (20_000..=30_000).contains(when))
        });
    }
}

/// Most connections that the admin listener takes from one address.
const ADMIN_CONNECTIONS_MAX: usize = 64;

/// Somebody on this machine holds more connections to the admin listener than it takes from one address:
/// silent ones, ones with half a head or half a body, ones that have asked before. A probe comes in all
/// the same.
#[test]
fn idle_connections_at_the_admin_listener_make_room() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    for kind in ["silent", "half a head", "half a body", "used"] {
        let mut held: Vec<_> = (0..ADMIN_CONNECTIONS_MAX + 8)
            .map(|_| TestHttpClient::connect(server.admin()))
            .collect();
        for client in &mut held {
            // Those that came first may have been closed for those that came last.
            let _ = match kind {
                "silent" => Ok(()),
                "half a head" => client.send(b"GET /livez HTTP/1.1\r\n"),
                "half a body" => client.send(HALF_A_BODY).map(|()| drop(client.receive(false))),
                _ => client.try_request("GET", "/livez", &[], "").map(drop),
            };
        }
        for _ in 0..40 {
            assert_eq!(server.admin_get("/readyz", &[]).status, 200, "{kind}");
        }
    }
    let page = server.admin_get("/metrics", &[]).body;
    let evicted = page.lines().find_map(|line| {
        line.strip_prefix("tollgate_connections_evicted_total{listener=\"admin\"} ")?.parse().ok()
    });
    assert!(evicted.is_some_and(|evicted: u64| evicted >= 24), "{evicted:?}");
    let refused = page
        .lines()
        .filter(|line| line.starts_with("tollgate_connections_refused_total{listener=\"admin\""));
    assert!(refused.clone().count() == 2 && refused.clone().all(|line| line.ends_with(" 0")));
}

/// The head of a change. Who sends it is told to go on, and then its body is waited for.
const HALF_A_BODY: &[u8] = b"PUT /api/rules HTTP/1.1\r\nhost: localhost\r\nx-tollgate-admin: 1\r\n\
    expect: 100-continue\r\ncontent-length: 12\r\n\r\n";

/// Requests that have begun do not make room while anybody else can: theirs would be lost.
#[test]
fn begun_requests_at_the_admin_listener_make_room_last() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let mut begun: Vec<_> =
        (1..ADMIN_CONNECTIONS_MAX).map(|_| TestHttpClient::connect(server.admin())).collect();
    for client in &mut begun {
        client.send(HALF_A_BODY).unwrap();
        assert_eq!(client.receive(false).unwrap().status, 100);
    }
    for _ in 0..40 {
        assert_eq!(server.admin_get("/livez", &[]).status, 200);
    }
    for client in &mut begun {
        client.send(b"no rules: [}").unwrap();
        assert_eq!(client.receive(true).unwrap().status, 400);
    }
}
