//! The load generator: one thread, a few connections, a fixed number of requests on the way on each.
//!
//! It is a closed loop: a connection sends its next request when it has its answer. That shows what
//! a server can do at most and what a request costs it. It says little about latency under a load
//! that does not wait, and the percentiles are to be read as a comparison within one run.
//!
//! What is said on a connection is a [`Talk`]: HTTP/1.1, RESP or gRPC. Nothing is allocated for a
//! request once the buffers have grown.

pub mod grpc;
pub mod http;
pub mod requests;
pub mod resp;

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::rounds::{Sample, Span};
use crate::stopwatch::{Stopwatch, processor_ns_of};

/// A server that is silent for so long is broken.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Most that is received and not yet understood; a batch of 64 decisions over HTTP takes about
/// 20 KiB.
const RECEIVED_BYTES_MAX: usize = 256 << 10;
/// A phase ends here even if its time is not over.
const REQUESTS_MAX: u64 = 100_000_000;

/// What is said on one connection.
pub trait Talk {
    /// Asks the first questions.
    fn begin(&mut self, turn: &mut Turn<'_>) -> Result<(), String>;

    /// Takes what has come, asks what follows from it, and says how many bytes it needs no more.
    fn hear(&mut self, received: &[u8], turn: &mut Turn<'_>) -> Result<usize, String>;
}

/// What a [`Talk`] may do when it has its turn.
pub struct Turn<'a> {
    /// When it is, on the generator's clock.
    pub now: Duration,
    /// What to send. Bound: the questions on the way on one connection, as long as they are.
    pub out: &'a mut Vec<u8>,
    answers: &'a mut u64,
    latencies_ns: &'a mut Histogram<u64>,
}

impl Turn<'_> {
    /// Counts `requests` that were asked together and are answered now.
    pub fn answered(&mut self, requests: u64, asked_at: Duration) {
        *self.answers += requests;
        let latency_ns = self.now.saturating_sub(asked_at).as_nanos() as u64;
        self.latencies_ns.record(latency_ns).expect("it grows as needed");
    }
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("now", &self.now).finish_non_exhaustive()
    }
}

/// One measurement: who is asked, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Where the server listens.
    pub address: SocketAddr,
    /// The process whose processor time counts.
    pub server: u32,
    /// How many connections.
    pub connections: usize,
    /// How long.
    pub span: Span,
}

/// Measures once, over new connections. `talk` makes what is said on the connection at an index.
pub fn measure<T: Talk>(load: &Load, talk: impl Fn(usize) -> T) -> Result<Sample, String> {
    let mut generator = Generator::connect(load, talk)?;
    generator.run(load.span.warm_up)?;
    generator.latencies_ns.clear();
    let server_ns = || processor_ns_of(load.server).ok_or("the server is gone");
    let (watch, server_ns_before) = (Stopwatch::start(), server_ns()?);
    let requests = generator.run(load.span.duration)? as f64;
    let (elapsed, generator_ns, server_ns_after) =
        (watch.elapsed(), watch.processor_ns(), server_ns()?);
    if requests == 0.0 {
        return Err("not one answer in time".into());
    }
    let percentile_us = |it| generator.latencies_ns.value_at_percentile(it) as f64 / 1_000.0;
    Ok(Sample {
        requests_per_s: requests / elapsed.as_secs_f64(),
        server_us: (server_ns_after - server_ns_before) as f64 / 1_000.0 / requests,
        generator_us: generator_ns as f64 / 1_000.0 / requests,
        p50_us: percentile_us(50.0),
        p99_us: percentile_us(99.0),
    })
}

/// Asks a server in this process for a few moments, over three connections: for tests of servers.
pub fn trial<T: Talk>(address: SocketAddr, talk: impl Fn(usize) -> T) -> Result<Sample, String> {
    // Each phase goes on to its first answer, however busy the machine is.
    let moment = Duration::from_millis(20);
    let span = Span { warm_up: moment, duration: moment };
    measure(&Load { address, server: std::process::id(), connections: 3, span }, talk)
}

struct Generator<T> {
    poll: Poll,
    clock: Stopwatch,
    /// Bound: as many as `Load` says.
    connections: Vec<Connection<T>>,
    /// Since the phase began.
    answers: u64,
    latencies_ns: Histogram<u64>,
}

impl<T: Talk> Generator<T> {
    fn connect(load: &Load, talk: impl Fn(usize) -> T) -> Result<Generator<T>, String> {
        let poll = Poll::new().map_err(|error| format!("no epoll: {error}"))?;
        let connect = |index| Connection::new(load.address, &poll, Token(index), talk(index));
        let connections: io::Result<Vec<_>> = (0..load.connections).map(connect).collect();
        let connections =
            connections.map_err(|error| format!("cannot connect to {}: {error}", load.address))?;
        let latencies_ns = Histogram::new(3).expect("3 digits are within its range");
        let clock = Stopwatch::start();
        let mut generator = Generator { poll, clock, connections, answers: 0, latencies_ns };
        (0..load.connections).try_for_each(|index| generator.begin(index))?;
        Ok(generator)
    }

    fn begin(&mut self, index: usize) -> Result<(), String> {
        let (now, connection) = (self.clock.elapsed(), &mut self.connections[index]);
        let (answers, latencies_ns) = (&mut self.answers, &mut self.latencies_ns);
        let mut turn = Turn { now, out: &mut connection.out, answers, latencies_ns };
        connection.talk.begin(&mut turn)?;
        connection.send()
    }

    /// Asks for as long as `duration`, and on to the first answer; returns how many answers came.
    fn run(&mut self, duration: Duration) -> Result<u64, String> {
        let mut events = Events::with_capacity(self.connections.len());
        let end = self.clock.elapsed() + duration;
        self.answers = 0;
        while self.answers < REQUESTS_MAX {
            let now = self.clock.elapsed();
            if now >= end && (self.answers > 0 || now >= end + SILENCE_MAX) {
                break;
            }
            match self.poll.poll(&mut events, Some(SILENCE_MAX)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result.map_err(|error| format!("cannot wait for answers: {error}"))?,
            }
            if events.is_empty() {
                return Err(format!("no answer for {} s", SILENCE_MAX.as_secs()));
            }
            events.iter().try_for_each(|event| self.hear(event.token().0))?;
        }
        Ok(self.answers)
    }

    /// Takes all that has come on a connection, and says what follows from it.
    fn hear(&mut self, index: usize) -> Result<(), String> {
        let connection = &mut self.connections[index];
        connection.send()?;
        while let Some(emptied) = connection.receive()? {
            // One reading is the end of this request and the beginning of the next.
            let now = self.clock.elapsed();
            let (answers, latencies_ns) = (&mut self.answers, &mut self.latencies_ns);
            let mut turn = Turn { now, out: &mut connection.out, answers, latencies_ns };
            let received = &connection.received[..connection.received_bytes];
            let heard = connection.talk.hear(received, &mut turn);
            let heard = heard.map_err(|problem| connection.problem(&problem))?;
            connection.forget(heard);
            connection.send()?;
            if emptied {
                break;
            }
        }
        Ok(())
    }
}

struct Connection<T> {
    stream: TcpStream,
    talk: T,
    /// To be sent, and how much of it was. Bound: see [`Turn::out`].
    out: Vec<u8>,
    sent_bytes: usize,
    /// What was received and not yet understood is at its beginning. Bound: `RECEIVED_BYTES_MAX`.
    received: Box<[u8]>,
    received_bytes: usize,
}

impl<T> Connection<T> {
    fn new(address: SocketAddr, poll: &Poll, token: Token, talk: T) -> io::Result<Connection<T>> {
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        // Both, once: epoll then tells each change one time and needs no further calls.
        poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        let received = vec![0; RECEIVED_BYTES_MAX].into_boxed_slice();
        Ok(Connection { stream, talk, out: Vec::new(), sent_bytes: 0, received, received_bytes: 0 })
    }

    /// Sends what is left to send, as far as the socket takes it.
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

    /// Reads once; `None` if there is nothing, otherwise whether the socket is empty now: it gave
    /// less than there was room for. To ask it again would cost a system call, and what comes later
    /// is told by epoll.
    fn receive(&mut self) -> Result<Option<bool>, String> {
        let room = &mut self.received[self.received_bytes..];
        if room.is_empty() {
            return Err(format!("the answer is longer than {RECEIVED_BYTES_MAX} bytes"));
        }
        match self.stream.read(room) {
            Ok(0) => Err(self.problem("the server closed the connection")),
            Ok(bytes) => {
                let emptied = bytes < room.len();
                self.received_bytes += bytes;
                Ok(Some(emptied))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(self.problem(&format!("cannot receive: {error}"))),
        }
    }

    /// Makes room: so many bytes are needed no more.
    fn forget(&mut self, bytes: usize) {
        self.received.copy_within(bytes..self.received_bytes, 0);
        self.received_bytes -= bytes;
    }

    /// The problem, and what the server said.
    fn problem(&self, problem: &str) -> String {
        format!("{problem}; it said:\n{}", shown(&self.received[..self.received_bytes]))
    }
}

/// The beginning of an answer, for a person.
pub fn shown(answer: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 2_000;
    let beginning = &answer[..answer.len().min(SHOWN_BYTES_MAX)];
    String::from_utf8_lossy(beginning).replace('\r', "")
}
