//! The upstream of proxies under load: answers every request with the same small response.
//!
//! The thread of the generator serves it, in turn with its own connections ([`BenchUpstream::serve`]). A machine with two
//! cores has no third one for an upstream. As a process of its own on the generator's core, it would have to wait for the
//! scheduler each time, because the generator never sleeps; and the proxy would pay for waking it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memchr::memmem;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

/// The response to every request.
const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 26\r\n\r\n\
                          {\"status\":\"ok\",\"items\":[]}";
const LISTENER: Token = Token(usize::MAX >> 1);
/// Maximum number of connections at the same time.
const CONNECTIONS_MAX: usize = 8_192;
/// Maximum length of the head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Pause between two looks at the end of [`BenchUpstream::serve_during`].
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The upstream. It expects requests without bodies, and one request at a time on each connection.
#[derive(Debug)]
pub struct BenchUpstream {
    poll: Poll,
    events: Events,
    listener: TcpListener,
    address: SocketAddr,
    /// Connections by their token; closed ones are `None`. Bound: `CONNECTIONS_MAX`.
    connections: Vec<Option<UpstreamConnection>>,
    /// Indexes of closed connections. Bound: `CONNECTIONS_MAX`.
    free: Vec<usize>,
    /// The head of the last request.
    last_head: Vec<u8>,
}

#[derive(Debug)]
struct UpstreamConnection {
    stream: TcpStream,
    /// The bytes of a request that is not complete. Bound: `HEAD_BYTES_MAX`.
    received: Vec<u8>,
}

impl BenchUpstream {
    /// Listens on a free port of 127.0.0.1.
    pub fn listen() -> io::Result<BenchUpstream> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = listener.local_addr()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(BenchUpstream {
            poll,
            events: Events::with_capacity(256),
            listener,
            address,
            connections: Vec::new(),
            free: Vec::new(),
            last_head: Vec::new(),
        })
    }

    /// The address for proxies.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The head of the last request, as the upstream received it.
    pub fn last_head(&self) -> String {
        String::from_utf8_lossy(&self.last_head).into_owned()
    }

    /// Answers the requests that have arrived, without waiting.
    pub fn serve(&mut self) -> Result<(), String> {
        self.serve_within(Duration::ZERO)
    }

    /// Serves on a thread of its own until `work` is done, for work that waits for responses.
    pub fn serve_during<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    if let Err(problem) = self.serve_within(STOP_CHECK_INTERVAL) {
                        eprintln!("{problem}");
                    }
                }
            });
            let result = work();
            is_done.store(true, Ordering::Relaxed);
            server.join().expect("problems are printed");
            result
        })
    }

    fn serve_within(&mut self, timeout: Duration) -> Result<(), String> {
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            result => result.map_err(|error| format!("the upstream cannot poll: {error}"))?,
        }
        // Taken out, because answering changes the rest of the value.
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in &events {
            match event.token() {
                LISTENER => self.accept()?,
                Token(index) => self.answer(index, event.is_read_closed())?,
            }
        }
        self.events = events;
        Ok(())
    }

    fn accept(&mut self) -> Result<(), String> {
        loop {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(format!("the upstream cannot accept: {error}")),
            };
            let index = self.free.pop().unwrap_or(self.connections.len());
            if index >= CONNECTIONS_MAX {
                return Err(format!("the upstream has {CONNECTIONS_MAX} connections already"));
            }
            let added = stream.set_nodelay(true).and_then(|()| {
                self.poll.registry().register(&mut stream, Token(index), Interest::READABLE)
            });
            added.map_err(|error| format!("the upstream cannot accept: {error}"))?;
            let connection = UpstreamConnection { stream, received: Vec::new() };
            if index == self.connections.len() {
                self.connections.push(Some(connection));
            } else {
                self.connections[index] = Some(connection);
            }
        }
    }

    /// Reads what has arrived on a connection and answers complete requests.
    fn answer(&mut self, index: usize, is_closed: bool) -> Result<(), String> {
        let Some(connection) = &mut self.connections[index] else { return Ok(()) };
        match connection.answer(&mut self.last_head, is_closed) {
            Ok(true) => {}
            // A proxy closed it, in whatever way.
            Ok(false) => {
                self.connections[index] = None;
                self.free.push(index);
            }
            Err(problem) => return Err(format!("the upstream {problem}")),
        }
        Ok(())
    }
}

impl UpstreamConnection {
    /// Reads and answers. Returns false if the connection is closed. `is_closed` tells that the peer has sent everything,
    /// so the end is read as well; otherwise a read of less than the buffer has emptied the socket.
    fn answer(&mut self, last_head: &mut Vec<u8>, is_closed: bool) -> Result<bool, String> {
        let mut buffer = [0; 4_096];
        loop {
            let bytes = match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(_) => return Ok(false),
            };
            self.received.extend_from_slice(&buffer[..bytes]);
            while let Some(length) = memmem::find(&self.received, b"\r\n\r\n") {
                last_head.clear();
                last_head.extend(self.received.drain(..length + 4));
                // The response fits into the empty buffer of the socket.
                if self.stream.write_all(RESPONSE).is_err() {
                    return Ok(false);
                }
            }
            if self.received.len() > HEAD_BYTES_MAX {
                return Err(format!("received a head of more than {HEAD_BYTES_MAX} bytes"));
            }
            if bytes < buffer.len() && !is_closed {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::http::{HttpLoadClient, ask};
    use crate::generator::requests::EncodedRequests;
    use crate::generator::{self, LoadSpec};
    use crate::rounds::SampleTiming;

    const REQUEST: &str = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";

    #[test]
    fn it_answers_beside_the_generator_and_on_a_thread() {
        let mut upstream = BenchUpstream::listen().unwrap();
        let address = upstream.address();
        let response = upstream.serve_during(|| ask(address, REQUEST.as_bytes())).unwrap();
        assert_eq!((response.status, response.body_bytes), (200, 26));
        assert_eq!(upstream.last_head(), REQUEST);
        let moment = Duration::from_millis(20);
        let load = LoadSpec {
            address: address.into(),
            server: std::process::id(),
            connections: 3,
            span: SampleTiming { warm_up: moment, duration: moment },
        };
        let requests = EncodedRequests::generate(1, |_| REQUEST);
        let client = |index| HttpLoadClient::new(&requests, index);
        let sample = generator::measure_beside(&load, client, || upstream.serve()).unwrap();
        assert!(sample.requests_per_s > 0.0);
        // Connections of the past are not kept.
        upstream.serve().unwrap();
        assert_eq!(upstream.free.len(), upstream.connections.len());
    }
}
