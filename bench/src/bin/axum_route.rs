//! A route of axum, with or without the layer of tollgate-tower: what the layer costs.
//!
//! `cargo xtask bench doors` starts both as processes of their own, as `bare-hyper` is for HTTP.

use std::io;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderName, HeaderValue};
use axum::response::AppendHeaders;
use axum::routing::get;
use axum::serve::ListenerExt;
use tollgate::{Limit, Limiter};
use tollgate_bench::machine;
use tollgate_bench::reply::DECISION_FIELDS;
use tollgate_tower::{KeyFrom, KeyedGate, RateLimitLayer};

const USAGE: &str = "\
Answers HTTP requests on a free port of 127.0.0.1, for `cargo xtask bench doors` to measure.

Usage: axum-route bare     answers 200 with a word
       axum-route fields   the same with the five header fields of a decision
       axum-route limited  the same behind a limit for each X-User-Id, which is never reached
       axum-route silent   the same limit without header fields that report it
";

fn main() -> ExitCode {
    machine::exit_on_sigterm();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let router = match words[..] {
        ["bare"] => route(),
        ["fields"] => route_with_fields(),
        ["limited"] => route().layer(layer()),
        ["silent"] => route().layer(layer().headers(&[])),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match announce().and_then(|listener| serve(listener, router)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("axum-route: {error}");
            ExitCode::FAILURE
        }
    }
}

fn route() -> Router {
    Router::new().route("/", get(async || "welcome"))
}

/// The same route; its handler sets the fields that the layer sets.
fn route_with_fields() -> Router {
    let fields = DECISION_FIELDS
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    let handler = async move || (AppendHeaders(fields.clone()), "welcome");
    Router::new().route("/", get(handler))
}

/// The layer as a program would use it, with the default headers on every response.
fn layer() -> RateLimitLayer {
    let limit = Limit::per_second(1_000_000).burst(1_000_000).name("api").build();
    let limit = limit.expect("valid numbers");
    let limiter = Arc::new(Limiter::with_capacity(1_000_000));
    let gate = KeyedGate::new(limiter, [limit]).expect("one limit");
    RateLimitLayer::new(gate.key(KeyFrom::header(HeaderName::from_static("x-user-id"))))
}

/// Binds a free port and announces it on standard output.
fn announce() -> io::Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening http {}\nready", listener.local_addr()?);
    Ok(listener)
}

/// Accepts connections until the process is killed, all on the calling thread.
fn serve(listener: TcpListener, router: Router) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        // If the option cannot be set, the connection is slower and still works.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        axum::serve(listener, router).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_bench::generator;
    use tollgate_bench::generator::http::{HttpLoadClient, ask};
    use tollgate_bench::generator::requests::EncodedRequests;

    #[test]
    fn the_same_route_answers_with_and_without_the_layer() {
        let requests = EncodedRequests::generate(1, |callers| {
            format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-User-Id: {}\r\n\r\n", callers[0])
        });
        let nowhere =
            EncodedRequests::generate(1, |_| "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let silent = layer().headers(&[]);
        let routers =
            [(route(), false), (route().layer(silent), false), (route().layer(layer()), true)];
        for (router, limited) in routers {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            std::thread::spawn(|| serve(listener, router));
            let text = ask(address, requests.get(0)).unwrap().text;
            assert_eq!(text.contains("ratelimit"), limited, "{text}");
            let sample =
                generator::measure_briefly(address, |index| HttpLoadClient::new(&requests, index))
                    .unwrap();
            assert!(sample.requests_per_s > 0.0);
            let problem =
                generator::measure_briefly(address, |index| HttpLoadClient::new(&nowhere, index));
            let problem = problem.unwrap_err();
            assert!(problem.contains("the status is not 200"), "{problem}");
        }
    }
}
