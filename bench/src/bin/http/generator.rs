//! The load generator: one thread, a few connections, one request on the way on each of them.
//!
//! It is a closed loop: a connection sends its next request when it has its answer. That shows what
//! a server can do at most and what a request costs it. It says little about latency under a load
//! that does not wait, and the percentiles are to be read as a comparison within one run.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use tollgate_bench::stopwatch::{Stopwatch, processor_ns_of};

use crate::requests::Requests;
use crate::response::{self, Progress};

/// A server that is silent for so long is broken.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Longest answer that is understood; a batch of 64 decisions with one rule takes about 20 KiB.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// A phase ends here even if its time is not over.
const REQUESTS_MAX: u64 = 100_000_000;

/// One measurement: what is asked of whom, and for how long.
pub(crate) struct Load<'a> {
    pub(crate) address: SocketAddr,
    /// The process whose processor time counts.
    pub(crate) server: u32,
    pub(crate) requests: &'a Requests,
    pub(crate) connections: usize,
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
}

/// What one measurement found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) requests_per_s: f64,
    /// Microseconds of processor time, user and system, that a request cost the server.
    pub(crate) server_us: f64,
    /// The same of the generator.
    pub(crate) generator_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Measures once. The connections are new, and ask for as long as `warm_up` before it counts.
pub(crate) fn measure(load: &Load<'_>) -> Result<Sample, String> {
    let mut generator = Generator::connect(load)?;
    generator.run(load.warm_up)?;
    generator.latencies_ns.clear();
    let server_ns = || processor_ns_of(load.server).ok_or("the server is gone");
    let (watch, server_ns_before) = (Stopwatch::start(), server_ns()?);
    let requests = generator.run(load.duration)? as f64;
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

struct Generator<'a> {
    poll: Poll,
    clock: Stopwatch,
    requests: &'a Requests,
    /// The request that is sent next.
    next: usize,
    /// Bound: as many as `Load` says.
    connections: Vec<Connection>,
    latencies_ns: Histogram<u64>,
}

impl<'a> Generator<'a> {
    fn connect(load: &Load<'a>) -> Result<Generator<'a>, String> {
        let poll = Poll::new().map_err(|error| format!("no epoll: {error}"))?;
        let connect = |index| Connection::new(load.address, &poll, Token(index));
        let connections: io::Result<Vec<_>> = (0..load.connections).map(connect).collect();
        let connections =
            connections.map_err(|error| format!("cannot connect to {}: {error}", load.address))?;
        let latencies_ns = Histogram::new(3).expect("3 digits are within its range");
        let clock = Stopwatch::start();
        let mut generator =
            Generator { poll, clock, requests: load.requests, next: 0, connections, latencies_ns };
        (0..load.connections).try_for_each(|index| generator.ask(index, Duration::ZERO))?;
        Ok(generator)
    }

    /// Asks for as long as `duration`; returns how many answers came.
    fn run(&mut self, duration: Duration) -> Result<u64, String> {
        let mut events = Events::with_capacity(self.connections.len());
        let end = self.clock.elapsed() + duration;
        let mut answers = 0;
        while self.clock.elapsed() < end && answers < REQUESTS_MAX {
            match self.poll.poll(&mut events, Some(SILENCE_MAX)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result.map_err(|error| format!("cannot wait for answers: {error}"))?,
            }
            if events.is_empty() {
                return Err(format!("no answer for {} s", SILENCE_MAX.as_secs()));
            }
            for event in &events {
                answers += u64::from(self.answer(event.token().0)?);
            }
        }
        Ok(answers)
    }

    /// Takes what has come on a connection; if that is a whole answer, asks the next question.
    fn answer(&mut self, index: usize) -> Result<bool, String> {
        let connection = &mut self.connections[index];
        connection.send(self.requests)?;
        if !connection.receive()? {
            return Ok(false);
        }
        // One reading is the end of this request and the beginning of the next.
        let now = self.clock.elapsed();
        let latency_ns = (now - connection.asked_at).as_nanos() as u64;
        self.latencies_ns.record(latency_ns).expect("it grows as needed");
        self.ask(index, now)?;
        Ok(true)
    }

    fn ask(&mut self, index: usize, now: Duration) -> Result<(), String> {
        let connection = &mut self.connections[index];
        connection.begin(self.next, now);
        self.next = (self.next + 1) % self.requests.len();
        connection.send(self.requests)
    }
}

struct Connection {
    stream: TcpStream,
    request: usize,
    sent_bytes: usize,
    asked_at: Duration,
    /// The answer so far is at its beginning. Bound: `ANSWER_BYTES_MAX`.
    answer: Box<[u8]>,
    answer_bytes: usize,
}

impl Connection {
    fn new(address: SocketAddr, poll: &Poll, token: Token) -> io::Result<Connection> {
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        // Both, once: epoll then tells each change one time and needs no further calls.
        poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        let answer = vec![0; ANSWER_BYTES_MAX].into_boxed_slice();
        let (asked_at, request, sent_bytes, answer_bytes) = (Duration::ZERO, 0, 0, 0);
        Ok(Connection { stream, request, sent_bytes, asked_at, answer, answer_bytes })
    }

    fn begin(&mut self, request: usize, now: Duration) {
        (self.request, self.sent_bytes) = (request, 0);
        (self.asked_at, self.answer_bytes) = (now, 0);
    }

    /// Sends what is left of the request, as far as the socket takes it.
    fn send(&mut self, requests: &Requests) -> Result<(), String> {
        let request = requests.get(self.request);
        while self.sent_bytes < request.len() {
            match self.stream.write(&request[self.sent_bytes..]) {
                Ok(bytes) => self.sent_bytes += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(format!("cannot send: {error}")),
            }
        }
        Ok(())
    }

    /// Reads what there is; true once the answer is whole. It then leaves the socket alone, because
    /// nothing more can come before the next request, and to find that out costs a system call.
    fn receive(&mut self) -> Result<bool, String> {
        loop {
            match self.stream.read(&mut self.answer[self.answer_bytes..]) {
                Ok(0) if self.answer_bytes == self.answer.len() => {
                    return Err(format!("the answer is longer than {ANSWER_BYTES_MAX} bytes"));
                }
                Ok(0) => return Err(self.problem("the server closed the connection")),
                Ok(bytes) => self.answer_bytes += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(self.problem(&format!("cannot receive: {error}"))),
            }
            match response::progress(&self.answer[..self.answer_bytes]) {
                Ok(Progress::Incomplete) => {}
                Ok(Progress::Complete { status: 200, .. }) => return Ok(true),
                Ok(Progress::Complete { .. }) => return Err(self.problem("the status is not 200")),
                Err(problem) => return Err(self.problem(problem)),
            }
        }
    }

    /// The problem, and what the server said.
    fn problem(&self, problem: &str) -> String {
        format!("{problem}; it said:\n{}", shown(&self.answer[..self.answer_bytes]))
    }
}

/// The beginning of an answer, for a person.
pub(crate) fn shown(answer: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 2_000;
    let beginning = &answer[..answer.len().min(SHOWN_BYTES_MAX)];
    String::from_utf8_lossy(beginning).replace('\r', "")
}
