//! The floor of the HTTP server: hyper on tokio, as small as it gets, deciding nothing.
//!
//! `cargo xtask bench http` starts it as a process of its own, so that it is pinned and its
//! processor time is counted like that of the other servers. It announces itself on standard output
//! as `tollgate serve` does, and runs until it is killed.

use std::convert::Infallible;
use std::io;
use std::process::ExitCode;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

const USAGE: &str = "\
Answers HTTP requests on a free port of 127.0.0.1, for `cargo xtask bench http` to measure.

Usage: bare-hyper empty         answers 200 without a body, and reads none
       bare-hyper bodies BYTES  reads the body to its end, answers 200 with BYTES of JSON
";

/// The kind of answers.
#[derive(Clone)]
enum BareHyperMode {
    Empty,
    Bodies(Bytes),
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mode = match words[..] {
        ["empty"] => Some(BareHyperMode::Empty),
        ["bodies", bytes] => bytes.parse().ok().map(|bytes| BareHyperMode::Bodies(json(bytes))),
        _ => None,
    };
    let Some(mode) = mode else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    match serve(&mode) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bare-hyper: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A string in quotes, `bytes` long in all; at least the quotes.
fn json(bytes: usize) -> Bytes {
    format!("\"{}\"", "x".repeat(bytes.saturating_sub(2))).into()
}

/// Accepts connections until the process is killed, all on the calling thread.
fn serve(mode: &BareHyperMode) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("listening http {}\nready", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(connection(stream, mode.clone()));
        }
    })
}

/// Serves one connection. The two modes are two services, so that the mode without bodies pays nothing
/// for them.
async fn connection(stream: TcpStream, mode: BareHyperMode) {
    let (io, http) = (TokioIo::new(stream), http1::Builder::new());
    // An error here means that the peer disconnected, as the generator does at the end of each sample.
    let _ = match mode {
        BareHyperMode::Empty => http.serve_connection(io, service_fn(without_bodies)).await,
        BareHyperMode::Bodies(answer) => {
            let service = service_fn(move |request| with_bodies(request, answer.clone()));
            http.serve_connection(io, service).await
        }
    };
}

async fn without_bodies(_: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    Ok(Response::new(Empty::new()))
}

async fn with_bodies(
    request: Request<Incoming>,
    answer: Bytes,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    std::hint::black_box(body);
    Ok(Response::new(Full::new(answer)))
}
