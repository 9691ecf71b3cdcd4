//! The floor of the HTTP server: hyper on tokio, as small as it gets, deciding nothing.
//!
//! `cargo xtask bench http` starts it as a process of its own, so that it is pinned and its
//! processor time is counted like that of the other servers. It announces itself on standard output
//! as `tollgate serve` does, and runs until it is killed.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::process::ExitCode;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tollgate_bench::machine;
use tollgate_bench::reply::{DECISION_FIELDS, DECISION_JSON};

const USAGE: &str = "\
Answers HTTP requests on a free port of 127.0.0.1, for `cargo xtask bench http` to measure.

Usage: bare-hyper empty   answers 200 without a body, and reads none
       bare-hyper fields  the same, with the five header fields of a decision
       bare-hyper bodies  reads the body to its end, answers 200 with a decision as JSON and its fields
";

/// The kind of answers.
#[derive(Clone, Copy)]
enum BareHyperMode {
    Empty,
    Fields,
    Bodies,
}

fn main() -> ExitCode {
    machine::exit_on_sigterm();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mode = match words[..] {
        ["empty"] => BareHyperMode::Empty,
        ["fields"] => BareHyperMode::Fields,
        ["bodies"] => BareHyperMode::Bodies,
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match announce().and_then(|listener| serve(listener, mode)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bare-hyper: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Binds a free port and announces it on standard output.
fn announce() -> io::Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening http {}\nready", listener.local_addr()?);
    Ok(listener)
}

/// Accepts connections until the process is killed, all on the calling thread.
fn serve(listener: TcpListener, mode: BareHyperMode) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(connection(stream, mode));
        }
    })
}

/// Serves one connection. The modes are separate services, so that one does not pay for another.
async fn connection(stream: TcpStream, mode: BareHyperMode) {
    let (io, http) = (TokioIo::new(stream), http1::Builder::new());
    // An error here means that the peer disconnected, as the generator does at the end of each sample.
    let _ = match mode {
        BareHyperMode::Empty => http.serve_connection(io, service_fn(without_bodies)).await,
        BareHyperMode::Fields => http.serve_connection(io, service_fn(with_fields)).await,
        BareHyperMode::Bodies => http.serve_connection(io, service_fn(with_bodies)).await,
    };
}

async fn without_bodies(_: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    Ok(Response::new(Empty::new()))
}

async fn with_fields(_: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    let mut response = Response::new(Empty::new());
    add_decision_fields(&mut response);
    Ok(response)
}

async fn with_bodies(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    std::hint::black_box(body);
    let mut response = Response::new(Full::new(Bytes::from_static(DECISION_JSON.as_bytes())));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    add_decision_fields(&mut response);
    Ok(response)
}

/// Adds the fields without any work on their texts: those cost what the limiter makes of them.
fn add_decision_fields<B>(response: &mut Response<B>) {
    response.headers_mut().reserve(DECISION_FIELDS.len());
    for (name, value) in DECISION_FIELDS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::traffic;
    use tollgate_bench::generator::http::ask;
    use tollgate_bench::reply::check_same_shape;

    #[test]
    fn each_mode_sends_what_it_says() {
        let fields: String =
            DECISION_FIELDS.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = DECISION_JSON.len();
        let rows = [
            (BareHyperMode::Empty, "content-length: 0\r\n\r\n".to_owned()),
            (BareHyperMode::Fields, format!("{fields}content-length: 0\r\n\r\n")),
            (
                BareHyperMode::Bodies,
                format!(
                    "content-type: application/json\r\n{fields}content-length: {length}\r\n\r\n\
                     {DECISION_JSON}"
                ),
            ),
        ];
        for (mode, expected) in rows {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            std::thread::spawn(move || serve(listener, mode));
            let answer = ask(address, traffic::check(42).as_bytes()).unwrap();
            let expected = format!("HTTP/1.1 200 OK\r\n{expected}");
            assert_eq!(check_same_shape(&expected, &answer.text), Ok(()));
        }
    }
}
