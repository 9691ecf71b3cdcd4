//! The grpc listener and callers that get it wrong, or mean no good: each call is answered by its code, the
//! connection goes on, and nothing grows.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use http::{Method, Request};
use prost::Message;
use tempfile::tempdir;
use testkit::random::SplitMix64;
use testkit::wait::until_true;
use tokio::time::timeout;

use crate::harness::{DEADLINE, TestHttpClient, TollgateProcess, file, text};
use crate::server::envoy_client::{
    RawGrpcClient, RlsAnswer, RlsTestClient, SHOULD_RATE_LIMIT, current_thread_runtime, framed,
    rls_request,
};
use crate::server::shared::metric;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn good() -> Vec<u8> {
    framed(&rls_request("d", &[&[("k", "v")]]).encode_to_vec())
}

#[test]
fn every_mistake_has_its_code() {
    let server = TollgateProcess::start(&["--limit", "99999/hour"]);
    let many = rls_request("d", &vec![&[("k", "v")] as &[_]; 65]);
    let entries = rls_request("d", &[&vec![("k", "v"); 65]]);
    let frame_of = |request: &dyn Fn() -> Vec<u8>| framed(&request());
    let mut no_unit = rls_request("d", &[&[("k", "v")]]);
    no_unit.descriptors[0].limit = Some(Default::default());
    // path, field, body | code, part of the message
    let rows = [
        (SHOULD_RATE_LIMIT, ("x", "y"), good(), "0", ""),
        ("/a.B/C", ("x", "y"), good(), "12", "There is no such method"),
        ("/", ("x", "y"), good(), "12", "There is no such method"),
        ("/grpc.health.v1.Health/Watch", ("x", "y"), good(), "12", "There is no such method"),
        (SHOULD_RATE_LIMIT, ("x", "y"), Vec::new(), "13", "is incomplete"),
        (SHOULD_RATE_LIMIT, ("x", "y"), vec![0, 0, 0, 0], "13", "is incomplete"),
        (SHOULD_RATE_LIMIT, ("x", "y"), good()[..7].to_vec(), "13", "is incomplete"),
        (SHOULD_RATE_LIMIT, ("x", "y"), [good(), good()].concat(), "13", "send one"),
        (SHOULD_RATE_LIMIT, ("x", "y"), b"{\"domain\":\"d\"}".to_vec(), "13", "not a gRPC frame"),
        (
            SHOULD_RATE_LIMIT,
            ("grpc-encoding", "gzip"),
            [&[1], &good()[1..]].concat(),
            "12",
            "identity",
        ),
        ("/grpc.health.v1.Health/Check", ("x", "y"), vec![0, 0, 16, 0, 1], "8", "1048576"),
        (
            "/grpc.health.v1.Health/Check",
            ("x", "y"),
            vec![0, 255, 255, 255, 255, 0],
            "8",
            "1048576",
        ),
        ("/grpc.health.v1.Health/Check", ("x", "y"), vec![0; 1_100_000], "8", "1048576"),
        (SHOULD_RATE_LIMIT, ("x", "y"), framed(&[0xff; 30]), "13", "cannot be read"),
        (SHOULD_RATE_LIMIT, ("x", "y"), framed(&[10, 200, 1]), "13", "cannot be read"),
        (SHOULD_RATE_LIMIT, ("x", "y"), framed(&[0x0b; 2_000]), "13", "cannot be read"),
        (SHOULD_RATE_LIMIT, ("grpc-timeout", "20"), good(), "3", "20m"),
        (SHOULD_RATE_LIMIT, ("grpc-timeout", "1H"), good(), "0", ""),
        (SHOULD_RATE_LIMIT, ("x", "y"), framed(b""), "3", "domain"),
        (
            SHOULD_RATE_LIMIT,
            ("x", "y"),
            frame_of(&|| rls_request("d", &[]).encode_to_vec()),
            "3",
            "no descriptors",
        ),
        (
            SHOULD_RATE_LIMIT,
            ("x", "y"),
            frame_of(&|| rls_request("d", &[&[]]).encode_to_vec()),
            "3",
            "no entries",
        ),
        (
            SHOULD_RATE_LIMIT,
            ("x", "y"),
            frame_of(&|| rls_request("d", &[&[("", "v")]]).encode_to_vec()),
            "3",
            "empty",
        ),
        (SHOULD_RATE_LIMIT, ("x", "y"), framed(&many.encode_to_vec()), "3", "64 descriptors"),
        (SHOULD_RATE_LIMIT, ("x", "y"), framed(&entries.encode_to_vec()), "3", "64 entries"),
        (SHOULD_RATE_LIMIT, ("x", "y"), framed(&no_unit.encode_to_vec()), "3", "MINUTE"),
        (
            SHOULD_RATE_LIMIT,
            ("x", "y"),
            frame_of(&|| rls_request("d", &[&[("k", "v"), ("tollgate.act", "x")]]).encode_to_vec()),
            "3",
            "tollgate.act",
        ),
    ];
    current_thread_runtime().block_on(async {
        let caller = RawGrpcClient::connect(server.grpc()).await;
        for (path, field, body, code, text) in rows {
            let shown = format!("{path} {field:?} {:?}", &body[..body.len().min(99)]);
            let answer = caller.call(path, &[field], body).await.expect(&shown);
            assert_eq!((answer.status, answer.code()), (200, code), "{shown}: {answer:?}");
            assert_eq!(answer.field("content-type"), "application/grpc");
            if code != "0" {
                assert!(answer.field("grpc-message").contains(text), "{shown}: {answer:?}");
                assert!(answer.body.is_empty(), "{answer:?}");
            }
            assert_eq!(answer.fields.contains_key("grpc-accept-encoding"), code == "12");
        }
    });
    assert_eq!(metric(&server, "tollgate_grpc_responses_total{code=\"RESOURCE_EXHAUSTED\"}"), 3.0);
    assert_eq!(metric(&server, "tollgate_grpc_responses_total{code=\"OK\"}"), 2.0);
}

/// What clients of a proxy choose is no error, on which it would let them pass: long texts and bytes that
/// are no text are counted like others, and what cannot be counted is refused.
#[test]
fn whatever_clients_send_is_counted_or_refused() {
    let directory = tempdir().unwrap();
    let rules = "
rules:
  - { name: per-value, match: { domain: d }, key: '{entry.k}', limits: [2/day] }
  - { name: many, match: { domain: many }, key: '{ip}', limits: [1/1s, 1/2s, 1/3s, 1/4s, 1/5s, 1/6s] }
";
    let path = file(directory.path(), "rules.yaml", rules);
    let server = TollgateProcess::start(&["--rules", text(&path)]);
    let with_value = |value: &[u8]| {
        let length = |bytes: &[u8], outer: usize| {
            let mut out = Vec::new();
            prost::encoding::encode_varint((bytes.len() + outer) as u64, &mut out);
            out
        };
        let value = [&[0x12], &length(value, 0)[..], value].concat();
        let entry = [&[0x0a, 1, b'k'], &value[..]].concat();
        let entry = [&[0x0a], &length(&entry, 0)[..], &entry].concat();
        let descriptor = [&[0x12], &length(&entry, 0)[..], &entry].concat();
        framed(&[&[0x0a, 1, b'd'], &descriptor[..]].concat())
    };
    let three: &[&[(&str, &str)]] =
        &[&[("ip", "192.0.2.1")], &[("ip", "192.0.2.2")], &[("ip", "192.0.2.3")]];
    let many = framed(&rls_request("many", three).encode_to_vec());
    let announced = [&[0, 0, 16, 0, 1], &[0; 20][..]].concat();
    // body | the answers to three calls
    let rows: [(&str, Vec<u8>, [&str; 3]); 8] = [
        ("short", with_value(b"a"), ["OK: OK 1", "OK: OK 0", "OVER: OVER 0"]),
        ("long", with_value(&[b'x'; 5_000]), ["OK: OK 1", "OK: OK 0", "OVER: OVER 0"]),
        ("longer", with_value(&[b'x'; 1_000_000]), ["OK: OK 1", "OK: OK 0", "OVER: OVER 0"]),
        ("no text", with_value(b"\xff"), ["OK: OK 1", "OK: OK 0", "OVER: OVER 0"]),
        ("other", with_value(b"\xfe"), ["OK: OK 1", "OK: OK 0", "OVER: OVER 0"]),
        ("too long", with_value(&[b'x'; 1 << 20]), ["OVER: "; 3]),
        ("by its own word", announced, ["OVER: "; 3]),
        ("18 limits", many, ["OVER: OVER, OVER, OVER"; 3]),
    ];
    current_thread_runtime().block_on(async {
        let caller = RawGrpcClient::connect(server.grpc()).await;
        for (what, body, wants) in rows {
            for want in wants {
                let answer = caller.call(SHOULD_RATE_LIMIT, &[], body.clone()).await.expect(what);
                assert_eq!(answer.code(), "0", "{what}: {answer:?}");
                let response = RateLimitResponse::decode(&answer.body[5..]).expect(what);
                assert_eq!(RlsAnswer(response).short(), want, "{what}");
            }
        }
    });
    assert_eq!(server.post("/json", &json_of("many", "ip", "192.0.2.1", 3)).status, 429);
}

/// The same question in JSON: so many descriptors of one entry.
fn json_of(domain: &str, key: &str, value: &str, descriptors: usize) -> String {
    let entry = format!(r#"{{"entries":[{{"key":"{key}","value":"{value}"}}]}}"#);
    let all = vec![entry; descriptors].join(",");
    format!(r#"{{"domain":"{domain}","descriptors":[{all}]}}"#)
}

/// Whoever does not speak gRPC is told so in words of HTTP.
#[test]
fn what_is_no_call_is_answered_in_http() {
    let server = TollgateProcess::start(&["--limit", "99999/hour"]);
    let answer =
        TestHttpClient::connect(server.grpc()).request("POST", SHOULD_RATE_LIMIT, &[], "{}");
    assert_eq!(answer.status, 505, "{answer:?}");
    assert!(answer.message().contains("POST /json"), "{answer:?}");
    current_thread_runtime().block_on(async {
        let caller = RawGrpcClient::connect(server.grpc()).await;
        for kind in ["", "application/json", "application/grpc-web+proto", "application/grpc+json"]
        {
            let answer =
                caller.call(SHOULD_RATE_LIMIT, &[("content-type", kind)], good()).await.unwrap();
            assert_eq!(answer.status, 415, "{answer:?}");
        }
        let request = Request::builder().method(Method::GET).uri("http://localhost/").body(());
        let answer = caller.send(request.unwrap(), Vec::new()).await.unwrap();
        assert_eq!((answer.status, answer.field("allow")), (405, "POST"));
        // The connection is still good.
        assert_eq!(caller.call(SHOULD_RATE_LIMIT, &[], good()).await.unwrap().code(), "0");
    });
}

#[test]
fn the_listener_wants_the_token_of_the_data_listeners() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "token", TOKEN);
    let server =
        TollgateProcess::start(&["--limit", "99999/hour", "--auth-token-file", text(&tokens)]);
    let bearer = format!("Bearer {TOKEN}");
    // field | code
    let rows: [(&[(&str, &str)], &str); 5] = [
        (&[("authorization", &bearer)], "0"),
        (&[("x-tollgate-token", TOKEN)], "0"),
        (&[], "16"),
        (&[("authorization", "Bearer 0123456789abcdef0123456789abcdeF")], "16"),
        (&[("authorization", TOKEN)], "16"),
    ];
    current_thread_runtime().block_on(async {
        let caller = RawGrpcClient::connect(server.grpc()).await;
        for (fields, code) in rows {
            for path in [SHOULD_RATE_LIMIT, "/grpc.health.v1.Health/Check"] {
                let body = if path == SHOULD_RATE_LIMIT { good() } else { framed(b"") };
                let answer = caller.call(path, fields, body).await.unwrap();
                assert_eq!(answer.code(), code, "{fields:?}: {answer:?}");
            }
        }
        let answer = caller.call("/nobody.Knows/This", &[], good()).await.unwrap();
        assert_eq!(answer.code(), "16", "strangers are not told what there is");
    });
}

#[test]
fn health_knows_its_services() {
    let server = TollgateProcess::start(&["--limit", "99999/hour"]);
    let name = |name: &str| framed(&[&[10, name.len() as u8], name.as_bytes()].concat());
    // body | code
    let rows = [
        (framed(b""), "0"),
        (name("ratelimit"), "0"),
        (name("envoy.service.ratelimit.v3.RateLimitService"), "0"),
        (name("other"), "5"),
    ];
    current_thread_runtime().block_on(async {
        let caller = RawGrpcClient::connect(server.grpc()).await;
        for (body, code) in rows {
            let answer = caller.call("/grpc.health.v1.Health/Check", &[], body).await.unwrap();
            assert_eq!(answer.code(), code, "{answer:?}");
            if code == "0" {
                assert_eq!(answer.body, framed(&[8, 1]), "SERVING");
            }
        }
    });
}

/// Random bytes as messages, and messages with some bytes changed: every one gets a code, and the listener
/// answers the next caller.
#[test]
fn noise_is_answered() {
    let server = TollgateProcess::start(&["--limit", "99999/hour"]);
    let mut random = SplitMix64::seeded(7);
    current_thread_runtime().block_on(async {
        let caller = RawGrpcClient::connect(server.grpc()).await;
        for round in 0..3_000 {
            let mut body = good();
            if round % 3 == 0 {
                body = (0..random.below(64)).map(|_| random.number() as u8).collect();
                body = framed(&body);
            }
            for _ in 0..random.below(4) {
                let at = random.below(body.len() as u64) as usize;
                body[at] = random.number() as u8;
            }
            if random.below(8) == 0 {
                body.truncate(random.below(body.len() as u64) as usize);
            }
            let answer = caller.call(SHOULD_RATE_LIMIT, &[], body).await.unwrap();
            assert!(["0", "3", "8", "12", "13"].contains(&answer.code()), "{answer:?}");
            assert_eq!(answer.code() == "0", !answer.body.is_empty(), "{answer:?}");
        }
    });
    RlsTestClient::connect(server.grpc()).ask(rls_request("d", &[&[("k", "v")]]));
}

/// One connection may carry many calls at once; all are answered.
#[test]
fn many_calls_share_a_connection() {
    let server = TollgateProcess::start(&["--limit", "99999/hour"]);
    current_thread_runtime().block_on(async {
        let caller = Arc::new(RawGrpcClient::connect(server.grpc()).await);
        let calls: Vec<_> = (0..1_000)
            .map(|_| {
                let caller = caller.clone();
                tokio::spawn(async move { caller.call(SHOULD_RATE_LIMIT, &[], good()).await })
            })
            .collect();
        for call in calls {
            let answer = call.await.unwrap().expect("an answer");
            assert_eq!(answer.code(), "0");
            let response = RateLimitResponse::decode(&answer.body[5..]).unwrap();
            assert_eq!(response.statuses.len(), 1);
        }
        assert_eq!(caller.calls_max(), 1_000, "a client that keeps to the rules sends no more");
    });
}

/// Frames that break the rules of HTTP/2 end their connection, and nobody else's.
#[test]
fn broken_frames_end_the_connection() {
    let server = TollgateProcess::start(&["--limit", "99999/hour"]);
    let frame = |length: u32, kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let head = [&length.to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        [&head, payload].concat()
    };
    let rows = [
        ("data of no stream", frame(1, 0, 0, 0, b"x")),
        ("data of a stream that is not open", frame(1, 0, 0, 1, b"x")),
        ("a frame of 16 MiB", frame(0xff_ffff, 0, 0, 1, b"")),
        ("a head that cannot be read", frame(8, 1, 5, 1, &[0xff; 8])),
        ("a head that goes on without a beginning", frame(1, 9, 4, 1, b"x")),
        ("a stream of the server's", frame(1, 1, 5, 2, &[0x82])),
        ("settings of a wrong length", frame(5, 4, 0, 0, b"12345")),
        ("a window of nothing", frame(4, 8, 0, 0, &[0; 4])),
    ];
    for (what, bytes) in rows {
        let mut client = TestHttpClient::connect(server.grpc());
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        client.send(&[preface, frame(0, 4, 0, 0, b""), bytes].concat()).expect(what);
        client.until_closed();
    }
    RlsTestClient::connect(server.grpc()).ask(rls_request("d", &[&[("k", "v")]]));
}

/// A call whose body does not end is answered when its time is over, and one that is no call at once:
/// whatever the server would have waited for the body.
#[test]
fn answers_do_not_wait_for_bodies_that_do_not_end() {
    let server = TollgateProcess::start(&["--limit", "99999/hour", "--body-timeout", "1h"]);
    // path, field | status, code
    let rows = [
        (SHOULD_RATE_LIMIT, ("grpc-timeout", "20m"), 200, "4"),
        ("/a.B/C", ("x", "y"), 200, "12"),
        (SHOULD_RATE_LIMIT, ("content-type", "application/json"), 415, ""),
    ];
    current_thread_runtime().block_on(async {
        let caller = RawGrpcClient::connect(server.grpc()).await;
        for (path, field, status, code) in rows {
            for begun in [&b""[..], &good()[..7]] {
                let fields = [field];
                let answer = caller.call_without_end(path, &fields, begun.to_vec());
                let answer = timeout(DEADLINE, answer).await.expect("no wait").unwrap();
                let got =
                    answer.fields.get("grpc-status").map_or("", |code| code.to_str().unwrap());
                assert_eq!((answer.status, got), (status, code), "{path}: {answer:?}");
            }
        }
        assert_eq!(caller.call(SHOULD_RATE_LIMIT, &[], good()).await.unwrap().code(), "0");
    });
}

/// What callers have begun to send and do not finish is kept, as far as there is room for the bodies of
/// all of them; beyond that they are told so, and others are answered as ever.
#[test]
fn bodies_that_do_not_end_are_bounded_together() {
    let server = TollgateProcess::start(&["--limit", "99999/hour", "--body-timeout", "1h"]);
    // A message of 1 MiB, and nearly all of it.
    let begun = [&[0, 0, 16, 0, 0], &vec![0; (1 << 20) - 5][..]].concat();
    current_thread_runtime().block_on(async {
        let caller = Arc::new(RawGrpcClient::connect(server.grpc()).await);
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..100 {
            let (caller, begun, tell) = (caller.clone(), begun.clone(), tell.clone());
            tokio::spawn(async move {
                let answer = caller.call_without_end(SHOULD_RATE_LIMIT, &[], begun).await;
                let _ = tell.send(answer);
            });
        }
        // There is room for 64 MiB, so that at most 64 can wait for their end.
        for _ in 64..100 {
            let answer = timeout(DEADLINE, told.recv()).await.expect("no room").unwrap().unwrap();
            assert_eq!(answer.code(), "8", "{answer:?}");
            assert!(answer.field("grpc-message").contains("call again"), "{answer:?}");
        }
        let answer = caller.call(SHOULD_RATE_LIMIT, &[], good()).await.unwrap();
        assert_eq!(answer.code(), "0", "short ones need no room");
    });
    // All have left, and there is room again.
    let mut caller = RlsTestClient::connect(server.grpc());
    let value = "x".repeat(1_000_000);
    until_true("room", || caller.call(rls_request("d", &[&[("k", &value)]])).is_ok());
}

/// Callers that give up at once, again and again, harm nobody else.
#[test]
fn calls_that_are_given_up_leave_nothing_behind() {
    let server = TollgateProcess::start(&["--limit", "99999/hour"]);
    current_thread_runtime().block_on(async {
        for _ in 0..20 {
            let impatient = RawGrpcClient::connect(server.grpc()).await;
            for _ in 0..50 {
                let call = impatient.call(SHOULD_RATE_LIMIT, &[], good());
                let _ = timeout(std::time::Duration::ZERO, call).await;
            }
        }
        let caller = RawGrpcClient::connect(server.grpc()).await;
        assert_eq!(caller.call(SHOULD_RATE_LIMIT, &[], good()).await.unwrap().code(), "0");
    });
}
