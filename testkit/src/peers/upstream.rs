//! An application behind a proxy: it answers every request with 200 and records the requests.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The body of every answer.
pub const UPSTREAM_BODY: &str = "the application\n";

/// Maximum number of recorded requests; the oldest are dropped.
const REQUESTS_MAX: usize = 10_000;

/// Connections at once, a thread each; one more is closed.
const CONNECTIONS_MAX: usize = 256;

/// The longest body and the longest line of a head that it reads; more ends the connection.
const BYTES_MAX: u64 = 1 << 20;

/// Interval at which a thread on a silent connection checks if the application is stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A received request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamRequest {
    /// The method, such as `GET`.
    pub method: String,
    /// The target, such as `/path?query`.
    pub target: String,
    /// The headers in order, with lower-case names.
    pub headers: Vec<(String, String)>,
    /// The body, as long as `Content-Length` says.
    pub body: Vec<u8>,
}

impl UpstreamRequest {
    /// The values of a header, in order.
    #[must_use]
    pub fn header_values(&self, name: &str) -> Vec<&str> {
        let fields = self.headers.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        fields.map(|(_, value)| value.as_str()).collect()
    }
}

/// The application; it ends when it is dropped.
#[derive(Debug)]
pub struct Upstream {
    shared: Arc<TestUpstreamState>,
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct TestUpstreamState {
    /// The recorded requests. Bound: [`REQUESTS_MAX`].
    requests: Mutex<Vec<UpstreamRequest>>,
    /// The threads of open connections. Bound: [`CONNECTIONS_MAX`].
    open: Mutex<Vec<JoinHandle<()>>>,
    stopped: AtomicBool,
}

impl Upstream {
    /// Starts it on a free loopback port.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[must_use]
    pub fn start() -> Upstream {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::<TestUpstreamState>::default();
        let accepting = Some(thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared)
        }));
        Upstream { shared, address, accepting }
    }

    /// The address of the application.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes the requests recorded since the last call, in the order in which they were complete.
    #[must_use]
    pub fn take_requests(&self) -> Vec<UpstreamRequest> {
        std::mem::take(&mut *lock(&self.shared.requests))
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        let _ = self.accepting.take().map(JoinHandle::join);
        for connection in std::mem::take(&mut *lock(&self.shared.open)) {
            let _ = connection.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, shared: &Arc<TestUpstreamState>) {
    for stream in listener.incoming().flatten() {
        if shared.stopped.load(Ordering::Relaxed) {
            return;
        }
        let mut open = lock(&shared.open);
        open.retain(|connection| !connection.is_finished());
        if open.len() < CONNECTIONS_MAX {
            let shared = shared.clone();
            open.push(thread::spawn(move || {
                // If a connection breaks, the test notices the missing request.
                let _ = serve(&stream, &shared);
            }));
        }
    }
}

/// Answers on one connection until it ends.
fn serve(stream: &TcpStream, shared: &TestUpstreamState) -> io::Result<()> {
    stream.set_read_timeout(Some(POLL_INTERVAL))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(UpstreamReader { stream, shared });
    while let Some(request) = read(&mut reader)? {
        let mut seen = lock(&shared.requests);
        if seen.len() == REQUESTS_MAX {
            seen.remove(0);
        }
        seen.push(request);
        drop(seen);
        let length = UPSTREAM_BODY.len();
        let head = format!("HTTP/1.1 200 OK\r\nx-application: yes\r\ncontent-length: {length}");
        (&*stream).write_all(format!("{head}\r\n\r\n{UPSTREAM_BODY}").as_bytes())?;
    }
    Ok(())
}

/// One request; none at the end of the connection.
fn read(from: &mut impl BufRead) -> io::Result<Option<UpstreamRequest>> {
    let mut request = UpstreamRequest::default();
    let mut line = line_of(from)?;
    let mut words = line.split(' ').map(str::to_owned);
    let (Some(method), Some(target)) = (words.next(), words.next()) else { return Ok(None) };
    (request.method, request.target) = (method, target);
    loop {
        line = line_of(from)?;
        let Some((name, value)) = line.split_once(':') else { break };
        request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length =
        request.header_values("content-length").first().and_then(|length| length.parse().ok());
    let length: u64 = length.unwrap_or(0).min(BYTES_MAX);
    from.take(length).read_to_end(&mut request.body)?;
    Ok(Some(request))
}

/// A line without its end; empty at the end of the head and of the connection.
fn line_of(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    from.take(BYTES_MAX).read_until(b'\n', &mut line)?;
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

/// A reader of a connection that may be silent for long, until the application is stopped.
struct UpstreamReader<'a> {
    stream: &'a TcpStream,
    shared: &'a TestUpstreamState,
}

impl Read for UpstreamReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
        loop {
            match (&mut &*self.stream).read(into) {
                Err(error) if matches!(error.kind(), WouldBlock | TimedOut | Interrupted) => {
                    if self.shared.stopped.load(Ordering::Relaxed) {
                        return Ok(0);
                    }
                }
                done => return done,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_answers_and_remembers_and_ends() {
        let upstream = Upstream::start();
        let mut stream = TcpStream::connect(upstream.address()).unwrap();
        for request in ["GET /a?b HTTP/1.1\r\nX-One: 1\r\nx-one: 2\r\n\r\n", POST] {
            stream.write_all(request.as_bytes()).unwrap();
        }
        let mut answers = vec![0; 2 * (UPSTREAM_BODY.len() + 59)];
        stream.read_exact(&mut answers).unwrap();
        let answers = String::from_utf8(answers).unwrap();
        assert!(answers.ends_with(UPSTREAM_BODY), "{answers}");
        assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2);
        let seen = upstream.take_requests();
        assert_eq!(
            (seen[0].target.as_str(), seen[0].header_values("x-one")),
            ("/a?b", vec!["1", "2"])
        );
        assert_eq!((seen[1].method.as_str(), seen[1].body.as_slice()), ("POST", &b"hello"[..]));
        assert!(upstream.take_requests().is_empty());
        drop(upstream);
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the connection is over");
    }

    const POST: &str = "POST /c HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello";
}
