//! The generator talks to real servers, and finds out those that answer something else.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use tollgate_bench::envoy::{framed, request};
use tollgate_bench::generator::grpc::{Grpc, check};
use tollgate_bench::generator::http::Http;
use tollgate_bench::generator::requests::Requests;
use tollgate_bench::generator::resp::{Reply, Resp, command};
use tollgate_bench::generator::{self, Load, Talk};
use tollgate_bench::process::{Process, Scratch};
use tollgate_bench::rounds::{Sample, Span};

/// A server of this crate, and a few moments of questions.
struct Asked {
    process: Process,
    address: SocketAddr,
    _scratch: Scratch,
}

impl Asked {
    fn start(program: &str, words: &[&str], door: &str) -> Asked {
        let scratch = Scratch::new().unwrap();
        let log = scratch.path().join(format!("{}.log", words.concat()));
        let started = Process::announced(Command::new(program).args(words), log, door);
        let (process, address) = started.unwrap();
        Asked { process, address, _scratch: scratch }
    }

    fn ask<T: Talk>(&self, talk: impl Fn(usize) -> T) -> Result<Sample, String> {
        // Each phase ends with the first answers that come after its time.
        let moment = Duration::from_millis(20);
        let span = Span { warm_up: moment, duration: moment };
        let (address, server) = (self.address, self.process.id());
        generator::measure(&Load { address, server, connections: 3, span }, talk)
    }
}

#[test]
fn resp_is_pipelined_and_every_reply_is_looked_at() {
    let echo = Asked::start(env!("CARGO_BIN_EXE_bare-resp"), &[], "resp");
    let requests = Requests::of(64, |callers| {
        let one = |caller: &u64| command(&["CL.THROTTLE", &caller.to_string(), "15", "30", "60"]);
        callers.iter().map(one).collect::<String>()
    });
    let ask = |begins| {
        let reply = Reply { begins, lines: 4 };
        echo.ask(|index| Resp::new(&requests, reply, index))
    };
    let sample = ask(b"*5\r\n:0\r\n").unwrap();
    assert!(sample.requests_per_s > 0.0 && sample.server_us > 0.0);
    let problem = ask(b"*5\r\n:1\r\n").unwrap_err();
    assert!(problem.contains("does not begin with"), "{problem}");
}

#[test]
fn grpc_is_multiplexed_and_checked_with_a_whole_client() {
    let tonic = Asked::start(env!("CARGO_BIN_EXE_tonic-echo"), &[], "grpc");
    let messages = Requests::of(1, |callers| {
        framed(&request("bench", &format!("10.0.{}.{}", callers[0] / 256, callers[0] % 256)))
    });
    let answer = check(tonic.address, messages.get(0)).unwrap();
    assert_eq!((answer.overall_code, answer.statuses.len()), (1, 1));
    let sample = tonic.ask(|index| Grpc::new(&messages, 16, index)).unwrap();
    assert!(sample.requests_per_s > 0.0 && sample.server_us > 0.0);
    // Not a message: tonic says so with a status and without an answer.
    let broken = Requests::of(1, |_| b"\0\0\0\0\x01\xff");
    assert!(check(tonic.address, broken.get(0)).unwrap_err().contains("grpc-status"));
    let problem = tonic.ask(|index| Grpc::new(&broken, 1, index)).unwrap_err();
    assert!(problem.contains("without a message"), "{problem}");
}

#[test]
fn http_is_asked_of_a_bare_route_and_of_a_limited_one() {
    let requests = Requests::of(1, |callers| {
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-User-Id: {}\r\n\r\n", callers[0])
    });
    for word in ["bare", "limited"] {
        let route = Asked::start(env!("CARGO_BIN_EXE_axum-route"), &[word], "http");
        let sample = route.ask(|index| Http::new(&requests, index)).unwrap();
        assert!(sample.requests_per_s > 0.0 && sample.server_us > 0.0, "{word}");
    }
    let route = Asked::start(env!("CARGO_BIN_EXE_axum-route"), &["bare"], "http");
    let nowhere = Requests::of(1, |_| "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let problem = route.ask(|index| Http::new(&nowhere, index)).unwrap_err();
    assert!(problem.contains("the status is not 200"), "{problem}");
}
