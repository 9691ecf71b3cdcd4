//! A route of axum, with or without the layer of tollgate-tower: what the layer costs.
//!
//! `cargo xtask bench doors` starts both as processes of their own, as `bare-hyper` is for HTTP.

use std::io;
use std::process::ExitCode;

use axum::Router;
use axum::routing::get;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;

const USAGE: &str = "\
Answers HTTP requests on a free port of 127.0.0.1, for `cargo xtask bench doors` to measure.

Usage: axum-route bare  answers 200 with a word
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let route = Router::new().route("/", get(async || "welcome"));
    let router = match words[..] {
        ["bare"] => route,
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
