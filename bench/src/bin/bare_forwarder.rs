//! The floor of the gateway: forwards requests with hyper on one thread, as small as it gets, deciding nothing.
//!
//! hyper serves clients and speaks to the upstream, over connections that are kept in a pool. It writes the fields that it is told
//! to write, so that it sends the same bytes as Tollgate. `cargo xtask bench gateway` starts it as a process of its own. It
//! announces itself on standard output as `tollgate serve` does, and runs until it is killed.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tollgate_bench::machine;

// The server's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "\
Forwards HTTP requests from a free port of 127.0.0.1, for `cargo xtask bench gateway` to measure.

Usage: bare-forwarder UPSTREAM [FIELD: VALUE]... [-- [FIELD: VALUE]...]

UPSTREAM is an address such as 127.0.0.1:3000. Fields before `--` are added to requests, those after it to responses.
";

/// Most idle connections in the pool.
const IDLE_CONNECTIONS_MAX: usize = 256;

thread_local! {
    /// Idle connections to the upstream. Bound: `IDLE_CONNECTIONS_MAX`.
    static POOL: RefCell<Vec<SendRequest<Incoming>>> = const { RefCell::new(Vec::new()) };
}

/// The upstream and the fields to add.
struct ForwarderSettings {
    upstream: SocketAddr,
    request_fields: Vec<(HeaderName, HeaderValue)>,
    response_fields: Vec<(HeaderName, HeaderValue)>,
}

impl ForwarderSettings {
    fn parse(words: &[String]) -> Option<ForwarderSettings> {
        let (upstream, fields) = words.split_first()?;
        let end = fields.iter().position(|word| word == "--").unwrap_or(fields.len());
        let parse =
            |words: &[String]| -> Option<Vec<_>> { words.iter().map(|word| field(word)).collect() };
        Some(ForwarderSettings {
            upstream: upstream.parse().ok()?,
            request_fields: parse(&fields[..end])?,
            response_fields: parse(fields.get(end + 1..).unwrap_or_default())?,
        })
    }
}

/// Parses `name: value`.
fn field(text: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = text.split_once(": ")?;
    Some((name.parse().ok()?, value.parse().ok()?))
}

fn main() -> ExitCode {
    machine::exit_on_sigterm();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(settings) = ForwarderSettings::parse(&words) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    match announce().and_then(|listener| serve(listener, settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bare-forwarder: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Binds a free port and announces it on standard output.
fn announce() -> io::Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening gateway {}\nready", listener.local_addr()?);
    Ok(listener)
}

/// Accepts connections until the process is killed, all on the calling thread.
fn serve(listener: TcpListener, settings: ForwarderSettings) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let settings = Arc::new(settings);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let settings = settings.clone();
            let service = service_fn(move |request| forward(request, settings.clone()));
            // An error here means that the peer disconnected, as the generator does at the end of each sample.
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    })
}

/// Forwards one request. An error ends the connection to the client.
async fn forward(
    mut request: Request<Incoming>,
    settings: Arc<ForwarderSettings>,
) -> io::Result<Response<ForwardedBody>> {
    let mut sender = connection_to(settings.upstream).await?;
    add(request.headers_mut(), &settings.request_fields);
    let response = sender.send_request(request).await.map_err(io::Error::other)?;
    let (mut head, incoming) = response.into_parts();
    add(&mut head.headers, &settings.response_fields);
    let mut body = ForwardedBody { incoming, sender: Some(sender) };
    body.release_if_ended();
    Ok(Response::from_parts(head, body))
}

fn add(fields: &mut HeaderMap, added: &[(HeaderName, HeaderValue)]) {
    fields.reserve(added.len());
    for (name, value) in added {
        fields.insert(name.clone(), value.clone());
    }
}

/// Takes a connection out of the pool, or opens one.
async fn connection_to(upstream: SocketAddr) -> io::Result<SendRequest<Incoming>> {
    while let Some(mut idle) = POOL.with_borrow_mut(Vec::pop) {
        if idle.ready().await.is_ok() {
            return Ok(idle);
        }
    }
    let stream = TcpStream::connect(upstream).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}

/// The body of a response. Its connection goes back to the pool at its end.
struct ForwardedBody {
    incoming: Incoming,
    /// The connection; `None` once the body has ended.
    sender: Option<SendRequest<Incoming>>,
}

impl ForwardedBody {
    fn release_if_ended(&mut self) {
        if self.incoming.is_end_stream()
            && let Some(sender) = self.sender.take()
        {
            POOL.with_borrow_mut(|pool| {
                if pool.len() < IDLE_CONNECTIONS_MAX {
                    pool.push(sender);
                }
            });
        }
    }
}

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(context));
        self.release_if_ended();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_bench::generator::http::ask;
    use tollgate_bench::generator::upstream::BenchUpstream;

    #[test]
    fn it_forwards_and_adds_the_fields_it_is_told() {
        let mut upstream = BenchUpstream::listen().unwrap();
        let words = [&upstream.address().to_string(), "via: 1.1 a", "--", "x-b: 2"];
        let settings = ForwarderSettings::parse(&words.map(str::to_owned)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(listener, settings));
        let request = b"GET /c HTTP/1.1\r\nHost: d\r\n\r\n";
        // Twice: over a new connection and over one of the pool.
        for _ in 0..2 {
            let response = upstream.serve_during(|| ask(address, request)).unwrap();
            assert!(response.text.contains("x-b: 2\r\n"), "{}", response.text);
            assert!(
                response.text.ends_with("{\"status\":\"ok\",\"items\":[]}"),
                "{}",
                response.text
            );
            assert_eq!(upstream.last_head(), "GET /c HTTP/1.1\r\nhost: d\r\nvia: 1.1 a\r\n\r\n");
        }
    }
}
