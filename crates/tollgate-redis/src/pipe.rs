//! One connection at work: takes what waits, writes it, reads the replies and hands them out. All
//! in one task, so that an idle connection answers with no more than two wake-ups.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use redis::Value;
use tokio::io::ReadBuf;
use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep, interval, sleep};

use crate::batch::{Ask, Cargo, FLIGHTS, FLIGHTS_MAX, Failure, Seat, hold, pack};
use crate::connect::{Connection, closed};
use crate::error::{ErrorClass, StoreError};
use crate::node::Node;
use crate::wire::Reply;

/// A server that owes replies and sends nothing for so long is given up; no sooner than callers do.
const STALLED_MIN: Duration = Duration::from_millis(500);
/// A connection that nothing was sent on for so long is tried, lest the next call finds it dead.
const IDLE: Duration = Duration::from_secs(1);
/// How often the two above are looked at.
const TICK: Duration = Duration::from_millis(100);
/// Room for bytes to write that is kept: more than most flights need.
const OUT_KEPT: usize = 64 * 1024;
/// Bytes of one read.
const PIECE: usize = 32 * 1024;

/// One connection at work.
pub(crate) struct Pipe {
    connection: Connection,
    /// Bytes to write, and how many of them are. Bound: one flight.
    out: Vec<u8>,
    written: usize,
    /// Commands that have no reply yet. Bound: [`FLIGHTS_MAX`] flights, and a PING.
    sent: VecDeque<Cargo>,
    /// How many commands of each flight have no reply yet. Bound: [`FLIGHTS_MAX`], and the PING's.
    flights: VecDeque<usize>,
    /// When one more may leave than usual: so long after the last.
    hold: Duration,
    departure: Pin<Box<Sleep>>,
    piece: Box<[u8]>,
    /// When the server last took a byte or gave a whole reply, or began to owe one. Bytes that make no
    /// reply do not count, or a server that trickles would never be given up.
    heard: Instant,
    stalled: Duration,
    tick: Interval,
    /// Why it takes no more.
    leaving: Option<StoreError>,
}

impl Pipe {
    /// `patience`: how long callers wait for an answer.
    pub(crate) fn new(connection: Connection, patience: Duration) -> Pipe {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Pipe {
            connection,
            out: Vec::new(),
            written: 0,
            sent: VecDeque::new(),
            flights: VecDeque::new(),
            hold: hold(patience),
            departure: Box::pin(sleep(Duration::ZERO)),
            piece: vec![0; PIECE].into(),
            heard: Instant::now(),
            stalled: patience.max(STALLED_MIN),
            tick,
            leaving: None,
        }
    }

    /// Works until the connection ends; why it did.
    pub(crate) async fn serve(mut self, node: &Node) -> StoreError {
        let why = poll_fn(|cx| self.poll(node, cx)).await;
        self.give_up(node, &why);
        why
    }

    fn poll(&mut self, node: &Node, cx: &mut Context<'_>) -> Poll<StoreError> {
        loop {
            // Each of the four leaves its waker behind if it did nothing: only when none did
            // anything is there nothing to do.
            match self.step(node, cx) {
                Err(why) => return Poll::Ready(why),
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
            }
            if let Some(why) = &self.leaving
                && self.sent.is_empty()
            {
                return Poll::Ready(why.clone());
            }
        }
    }

    /// Whether anything was done.
    fn step(&mut self, node: &Node, cx: &mut Context<'_>) -> Result<bool, StoreError> {
        // Read first: a connection that has ended takes no more calls.
        let heard = self.read(node, cx)?;
        let loaded = self.load(node, cx);
        let wrote = self.write(cx)?;
        Ok(self.look_at_the_time(cx)? | loaded | wrote | heard)
    }

    /// Makes a flight of what waits, if there is a place for it.
    fn load(&mut self, node: &Node, cx: &mut Context<'_>) -> bool {
        if self.leaving.is_some() || !self.out.is_empty() || !self.may_leave(cx) {
            return false;
        }
        let jobs = match node.take(cx.waker(), self.flights.len()) {
            Ok(jobs) => jobs,
            Err(why) => {
                self.leaving = Some(why);
                return true;
            }
        };
        let calls = jobs.len();
        if calls > 0 {
            let commands = pack(jobs, &node.usage, &mut self.out, &mut self.sent);
            node.counters.flew(calls, commands);
            self.flights.push_back(commands);
            if self.flights.len() >= FLIGHTS {
                self.departure.as_mut().reset(Instant::now() + self.hold);
            }
        }
        calls > 0
    }

    /// Whether there is a place for one more flight. If not yet, the task is woken when there is.
    fn may_leave(&mut self, cx: &mut Context<'_>) -> bool {
        match self.flights.len() {
            ..FLIGHTS => true,
            FLIGHTS_MAX.. => false,
            _ => self.departure.as_mut().poll(cx).is_ready(),
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<bool, StoreError> {
        if self.out.is_empty() {
            return Ok(false);
        }
        let before = self.written;
        while self.written < self.out.len() {
            let stream = Pin::new(&mut *self.connection.stream);
            match stream.poll_write(cx, &self.out[self.written..]) {
                Poll::Ready(Ok(0)) => return Err(closed(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(length)) => {
                    self.written += length;
                    // A long text on its way is no silence.
                    self.heard = Instant::now();
                }
                Poll::Ready(Err(error)) => return Err(closed(error)),
                Poll::Pending => return Ok(self.written > before),
            }
        }
        // TLS may hold back what was written.
        match Pin::new(&mut *self.connection.stream).poll_flush(cx) {
            Poll::Ready(Ok(())) => {
                self.out.clear();
                // Room that one long text needed.
                self.out.shrink_to(OUT_KEPT);
                self.written = 0;
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(closed(error)),
            Poll::Pending => Ok(self.written > before),
        }
    }

    /// One piece: places that it frees are filled before the next.
    fn read(&mut self, node: &Node, cx: &mut Context<'_>) -> Result<bool, StoreError> {
        let Poll::Ready(length) = self.poll_piece(cx) else { return Ok(false) };
        let length = length.map_err(closed)?;
        if length == 0 {
            return Err(closed(io::ErrorKind::UnexpectedEof.into()));
        }
        self.connection.reader.push(&self.piece[..length]);
        loop {
            match self.connection.reader.next() {
                Ok(Some(reply)) => {
                    self.heard = Instant::now();
                    self.deliver(node, reply)?;
                }
                Ok(None) => return Ok(true),
                Err(broken) => return Err(StoreError::new(ErrorClass::Protocol, broken.0)),
            }
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(&mut self.piece);
        let stream = Pin::new(&mut *self.connection.stream);
        ready!(stream.poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Hands a reply to whoever asked.
    fn deliver(&mut self, node: &Node, reply: Reply) -> Result<(), StoreError> {
        let Some(cargo) = self.sent.pop_front() else {
            return Err(StoreError::new(ErrorClass::Protocol, "a reply that nobody asked for"));
        };
        if let Some(left) = self.flights.front_mut() {
            *left -= 1;
            if *left == 0 {
                self.flights.pop_front();
            }
        }
        match reply {
            Reply::Value(value) => answer(node, cargo, value),
            Reply::Error(text) => {
                let error = StoreError::of_reply(&text);
                if error.class.drops_connection() {
                    self.leaving = Some(error.clone());
                }
                // Other errors may come from a script that has done a part.
                let undone = error.class.redirects();
                refuse(node, cargo, &error, Told { undone, alive: !error.class.opens_breaker() });
            }
        }
        Ok(())
    }

    fn look_at_the_time(&mut self, cx: &mut Context<'_>) -> Result<bool, StoreError> {
        let mut pinged = false;
        while let Poll::Ready(now) = self.tick.poll_tick(cx) {
            let silent = now.saturating_duration_since(self.heard);
            if !self.sent.is_empty() && silent >= self.stalled {
                let detail = format!("no reply for {} ms", self.stalled.as_millis());
                return Err(StoreError::new(ErrorClass::Timeout, detail));
            }
            if self.sent.is_empty() && self.out.is_empty() && silent >= IDLE {
                self.heard = now;
                redis::cmd("PING").write_packed_command(&mut self.out);
                self.sent.push_back(Cargo::Nobody);
                self.flights.push_back(1);
                pinged = true;
            }
        }
        Ok(pinged)
    }

    /// Nothing more comes: tells whoever still waits.
    fn give_up(&mut self, node: &Node, why: &StoreError) {
        // What a byte was written of may have been carried out, though no byte came back.
        let unwritten = match self.written {
            0 if !self.out.is_empty() => self.flights.back().copied().unwrap_or(0),
            _ => 0,
        };
        let written = self.sent.len() - unwritten;
        for (index, cargo) in std::mem::take(&mut self.sent).into_iter().enumerate() {
            refuse(node, cargo, why, Told { undone: index >= written, alive: false });
        }
    }
}

fn answer(node: &Node, cargo: Cargo, value: Value) {
    match cargo {
        Cargo::Nobody => {}
        Cargo::Command(_, seat) => deliver_to(node, vec![seat], vec![Ok(value)]),
        Cargo::Calls(calls, seats) => {
            let parts = (node.usage.script.split)(value, calls.len());
            deliver_to(node, seats, parts);
        }
    }
}

fn deliver_to(node: &Node, seats: Vec<Seat>, parts: Vec<Result<Value, StoreError>>) {
    let now = Instant::now();
    // An answer that comes too late is none: its caller has counted it as a failure.
    let in_time =
        seats.iter().zip(&parts).filter(|(seat, part)| part.is_ok() && seat.deadline > now);
    node.came_back(seats.len(), in_time.filter_map(|(seat, _)| seat.pass));
    for (seat, part) in seats.into_iter().zip(parts) {
        let _ = seat.reply.send(part.map_err(Failure::from));
    }
}

/// What an error tells beyond itself.
#[derive(Clone, Copy)]
struct Told {
    /// The question was not carried out, and can be asked again.
    undone: bool,
    /// The server is well.
    alive: bool,
}

fn refuse(node: &Node, cargo: Cargo, error: &StoreError, told: Told) {
    let (asks, seats): (Vec<Ask>, Vec<Seat>) = match cargo {
        Cargo::Nobody => return,
        Cargo::Command(command, seat) => (vec![Ask::Command(command)], vec![seat]),
        Cargo::Calls(calls, seats) => (calls.into_iter().map(Ask::Call).collect(), seats),
    };
    // A call that goes on with the script's text keeps its leave: what counts is how that ends.
    let goes_on = error.class == ErrorClass::NoScript;
    let now = Instant::now();
    let well = |seat: &&Seat| told.alive && !goes_on && seat.deadline > now;
    node.came_back(seats.len(), seats.iter().filter(well).filter_map(|seat| seat.pass));
    for (ask, seat) in asks.into_iter().zip(seats) {
        let again = told.undone.then(|| Box::new(ask));
        let pass = seat.pass.filter(|_| goes_on);
        let _ = seat.reply.send(Err(Failure { error: error.clone(), again, pass }));
    }
}
