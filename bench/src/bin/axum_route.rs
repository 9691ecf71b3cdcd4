//! A route of axum, with or without the layer of tollgate-tower: what the layer costs.
//!
//! `cargo xtask bench doors` starts both as processes of their own, as `bare-hyper` is for HTTP.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use axum::http::HeaderName;
use axum::routing::get;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tollgate::{Limit, Limiter};
use tollgate_tower::{KeyFrom, Keyed, RateLimitLayer};

const USAGE: &str = "\
Answers HTTP requests on a free port of 127.0.0.1, for `cargo xtask bench doors` to measure.

Usage: axum-route bare     answers 200 with a word
       axum-route limited  the same behind a limit for each X-User-Id, which is never reached
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let route = Router::new().route("/", get(async || "welcome"));
    let router = match words[..] {
        ["bare"] => route,
        ["limited"] => route.layer(layer()),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match serve(router) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("axum-route: {error}");
            ExitCode::FAILURE
        }
    }
}

/// As a program would have it: the usual headers on every response.
fn layer() -> RateLimitLayer {
    let limit = Limit::per_second(1_000_000).burst(1_000_000).name("api").build();
    let limit = limit.expect("valid numbers");
    let limiter = Arc::new(Limiter::with_capacity(1_000_000));
    let gate = Keyed::new(limiter, [limit]).expect("one limit");
    RateLimitLayer::new(gate.key(KeyFrom::header(HeaderName::from_static("x-user-id"))))
}

/// Takes connections for ever, all on the thread that calls.
fn serve(router: Router) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("listening http {}\nready", listener.local_addr()?);
        // A connection that cannot be set so is slower, and that is all.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        axum::serve(listener, router).await
    })
}
