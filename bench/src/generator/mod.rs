//! The load generator: one thread, a few connections, a fixed number of requests in flight on each.
//!
//! It is a closed loop: a connection sends its next request after an answer. That shows the highest rate of a
//! server and the cost of a request. It says little about latency under an open load; read the percentiles
//! as a comparison within one run. [`paced`] is an open load.
//!
//! It polls and never sleeps: it has a core to itself, which is always busy. A generator that sleeps has to be woken by
//! each answer, and a virtual machine charges the wake-up to the server that sends the answer: 3.0 µs of additional
//! work in a server showed as 4.7 µs with a generator that sleeps, and as 3.2 µs with this one.
//!
//! A [`LoadClient`] speaks the protocol of a connection: HTTP/1.1, RESP or gRPC. A request allocates nothing once
//! the buffers have grown.

pub mod grpc;
pub mod http;
pub mod paced;
pub mod requests;
pub mod resp;
pub mod upstream;

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};

use crate::address::{BlockingStream, PolledStream, ServerAddress};
use crate::rounds::{SampleTiming, ServerSample};
use crate::stopwatch::{Stopwatch, processor_ns_of};

/// Timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum of received bytes that are not yet parsed; a batch of 64 decisions over HTTP takes about 20 KiB.
const RECEIVED_BYTES_MAX: usize = 256 << 10;
/// Maximum number of requests in a phase, which ends then even if its time is not over.
const REQUESTS_MAX: u64 = 100_000_000;

/// A client on one connection.
pub trait LoadClient {
    /// Sends the first requests.
    fn on_connected(&mut self, turn: &mut ClientContext<'_>) -> Result<(), String>;

    /// Handles received bytes, sends the next requests, and returns the number of bytes that are done with.
    fn on_received(
        &mut self,
        received: &[u8],
        turn: &mut ClientContext<'_>,
    ) -> Result<usize, String>;
}

/// The context of a call to a [`LoadClient`].
pub struct ClientContext<'a> {
    /// The time on the generator's clock.
    pub now: Duration,
    /// The bytes to send. Bound: the requests in flight on one connection.
    pub out: &'a mut Vec<u8>,
    answers: &'a mut u64,
    latencies_ns: &'a mut Histogram<u64>,
}

impl ClientContext<'_> {
    /// Counts `requests` that were sent together and are answered now.
    pub fn count_answers(&mut self, requests: u64, asked_at: Duration) {
        *self.answers += requests;
        let latency_ns = self.now.saturating_sub(asked_at).as_nanos() as u64;
        self.latencies_ns.record(latency_ns).expect("it grows as needed");
    }
}

impl fmt::Debug for ClientContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("now", &self.now).finish_non_exhaustive()
    }
}

/// One measurement: the server, the connections and the times.
#[derive(Clone, Debug)]
pub struct LoadSpec {
    /// The address of the server.
    pub address: ServerAddress,
    /// The process whose processor time counts.
    pub server: u32,
    /// Number of connections.
    pub connections: usize,
    /// The times of the sample.
    pub span: SampleTiming,
}

/// Takes one sample over new connections. `client` makes the client of the connection at an index.
pub fn measure<T: LoadClient>(
    load: &LoadSpec,
    client: impl Fn(usize) -> T,
) -> Result<ServerSample, String> {
    measure_beside(load, client, || Ok(()))
}

/// Takes one sample like [`measure`], and calls `beside` in every turn of the generator.
pub fn measure_beside<T: LoadClient>(
    load: &LoadSpec,
    client: impl Fn(usize) -> T,
    mut beside: impl FnMut() -> Result<(), String>,
) -> Result<ServerSample, String> {
    let mut generator = LoadGenerator::connect(load, client)?;
    (0..load.connections).try_for_each(|index| generator.start_connection(index))?;
    generator.sample(load, &mut |_| beside())
}

/// Takes a short sample of a server in this process over three connections, for tests of servers.
pub fn measure_briefly<T: LoadClient>(
    address: SocketAddr,
    talk: impl Fn(usize) -> T,
) -> Result<ServerSample, String> {
    // Each phase lasts at least until its first answer, even on a busy machine.
    let moment = Duration::from_millis(20);
    let span = SampleTiming { warm_up: moment, duration: moment };
    let (address, server) = (address.into(), std::process::id());
    measure(&LoadSpec { address, server, connections: 3, span }, talk)
}

struct LoadGenerator<T> {
    poll: Poll,
    clock: Stopwatch,
    /// The connections. Bound: the number in `LoadSpec`.
    connections: Vec<LoadConnection<T>>,
    /// Number of answers in this phase.
    answers: u64,
    latencies_ns: Histogram<u64>,
}

impl<T: LoadClient> LoadGenerator<T> {
    fn connect(load: &LoadSpec, talk: impl Fn(usize) -> T) -> Result<LoadGenerator<T>, String> {
        let poll = Poll::new().map_err(|error| format!("no epoll: {error}"))?;
        let connect = |index| LoadConnection::new(&load.address, &poll, Token(index), talk(index));
        let connections: io::Result<Vec<_>> = (0..load.connections).map(connect).collect();
        let connections =
            connections.map_err(|error| format!("cannot connect to {}: {error}", load.address))?;
        let latencies_ns = Histogram::new(3).expect("3 digits are within its range");
        let clock = Stopwatch::start();
        Ok(LoadGenerator { poll, clock, connections, answers: 0, latencies_ns })
    }

    /// Takes one sample: warms the server up, then measures. `each_turn` is called before every poll.
    fn sample(
        &mut self,
        load: &LoadSpec,
        each_turn: &mut impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<ServerSample, String> {
        self.run(load.span.warm_up, each_turn)?;
        self.latencies_ns.clear();
        let server_ns = || processor_ns_of(load.server).ok_or("the server is gone");
        let (watch, server_ns_before) = (Stopwatch::start(), server_ns()?);
        let requests = self.run(load.span.duration, each_turn)? as f64;
        let (elapsed, server_ns_after) = (watch.elapsed(), server_ns()?);
        if requests == 0.0 {
            return Err("not one answer in time".into());
        }
        let percentile_us = |it| self.latencies_ns.value_at_percentile(it) as f64 / 1_000.0;
        Ok(ServerSample {
            requests_per_s: requests / elapsed.as_secs_f64(),
            server_us: (server_ns_after - server_ns_before) as f64 / 1_000.0 / requests,
            p50_us: percentile_us(50.0),
            p99_us: percentile_us(99.0),
        })
    }

    fn start_connection(&mut self, index: usize) -> Result<(), String> {
        let (now, connection) = (self.clock.elapsed(), &mut self.connections[index]);
        let (answers, latencies_ns) = (&mut self.answers, &mut self.latencies_ns);
        let mut turn = ClientContext { now, out: &mut connection.out, answers, latencies_ns };
        connection.client.on_connected(&mut turn)?;
        connection.send()
    }

    /// Sends requests for `duration`, at least until the first answer. Returns the number of answers.
    fn run(
        &mut self,
        duration: Duration,
        each_turn: &mut impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<u64, String> {
        let mut events = Events::with_capacity(self.connections.len());
        let mut answered_at = self.clock.elapsed();
        let end = answered_at + duration;
        self.answers = 0;
        while self.answers < REQUESTS_MAX {
            let now = self.clock.elapsed();
            if now >= end && (self.answers > 0 || now >= end + ANSWER_TIMEOUT) {
                break;
            }
            each_turn(self)?;
            match self.poll.poll(&mut events, Some(Duration::ZERO)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result.map_err(|error| format!("cannot poll for answers: {error}"))?,
            }
            if !events.is_empty() {
                answered_at = now;
            } else if now >= answered_at + ANSWER_TIMEOUT {
                return Err(format!("no answer for {} s", ANSWER_TIMEOUT.as_secs()));
            }
            events.iter().try_for_each(|event| self.receive_answers(event.token().0))?;
        }
        Ok(self.answers)
    }

    /// Reads everything that has arrived on a connection and sends the next requests.
    fn receive_answers(&mut self, index: usize) -> Result<(), String> {
        let connection = &mut self.connections[index];
        connection.send()?;
        while let Some(emptied) = connection.receive()? {
            // One reading of the clock is both the end of this request and the start of the next.
            let now = self.clock.elapsed();
            let (answers, latencies_ns) = (&mut self.answers, &mut self.latencies_ns);
            let mut turn = ClientContext { now, out: &mut connection.out, answers, latencies_ns };
            let received = &connection.received[..connection.received_bytes];
            let heard = connection.client.on_received(received, &mut turn);
            let heard = heard.map_err(|problem| connection.with_answer(&problem))?;
            connection.discard(heard);
            connection.send()?;
            if emptied {
                break;
            }
        }
        Ok(())
    }
}

struct LoadConnection<T> {
    stream: PolledStream,
    client: T,
    /// The bytes to send; the first `sent_bytes` are sent. Bound: see [`ClientContext::out`].
    out: Vec<u8>,
    sent_bytes: usize,
    /// A buffer whose first `received_bytes` are received and not yet parsed. Bound: `RECEIVED_BYTES_MAX`.
    received: Box<[u8]>,
    received_bytes: usize,
}

impl<T> LoadConnection<T> {
    fn new(
        address: &ServerAddress,
        poll: &Poll,
        token: Token,
        talk: T,
    ) -> io::Result<LoadConnection<T>> {
        let mut stream = BlockingStream::connect(address, ANSWER_TIMEOUT)?.into_polled()?;
        // Both interests at once: epoll is edge-triggered then and needs no further calls.
        poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        let received = vec![0; RECEIVED_BYTES_MAX].into_boxed_slice();
        Ok(LoadConnection {
            stream,
            client: talk,
            out: Vec::new(),
            sent_bytes: 0,
            received,
            received_bytes: 0,
        })
    }

    /// Sends the remaining bytes, as many as the socket accepts.
    fn send(&mut self) -> Result<(), String> {
        while self.sent_bytes < self.out.len() {
            match self.stream.write(&self.out[self.sent_bytes..]) {
                Ok(bytes) => self.sent_bytes += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(format!("cannot send: {error}")),
            }
        }
        self.out.clear();
        self.sent_bytes = 0;
        Ok(())
    }

    /// Reads once. Returns `None` if there is nothing to read, and `Some(true)` if the socket is empty now, because the
    /// read returned less than there was room for. Another read would cost a system call, and epoll reports bytes
    /// that arrive later.
    fn receive(&mut self) -> Result<Option<bool>, String> {
        let room = &mut self.received[self.received_bytes..];
        if room.is_empty() {
            return Err(format!("the answer is longer than {RECEIVED_BYTES_MAX} bytes"));
        }
        match self.stream.read(room) {
            Ok(0) => Err(self.with_answer("the server closed the connection")),
            Ok(bytes) => {
                let emptied = bytes < room.len();
                self.received_bytes += bytes;
                Ok(Some(emptied))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(self.with_answer(&format!("cannot receive: {error}"))),
        }
    }

    /// Removes the first `bytes` from the buffer.
    fn discard(&mut self, bytes: usize) {
        self.received.copy_within(bytes..self.received_bytes, 0);
        self.received_bytes -= bytes;
    }

    /// The problem with the beginning of the server's answer.
    fn with_answer(&self, problem: &str) -> String {
        format!("{problem}; it said:\n{}", answer_excerpt(&self.received[..self.received_bytes]))
    }
}

/// The beginning of an answer, for error messages.
pub fn answer_excerpt(answer: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 2_000;
    let beginning = &answer[..answer.len().min(SHOWN_BYTES_MAX)];
    String::from_utf8_lossy(beginning).replace('\r', "")
}
