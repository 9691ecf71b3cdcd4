//! One connection at work: takes what waits, writes it, reads the replies and hands them out. All
//! in one task, so that an idle connection answers with no more than two wake-ups.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::ReadBuf;
use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep, interval, sleep};

use crate::error::{ErrorClass, StoreError};
use crate::transport::batch::{
    FLIGHTS_MAX, FLIGHTS_USUAL, NodeFailure, NodeRequest, PendingReply, SentCommand, hold_max,
    write_flight,
};
use crate::transport::command::RedisCommand;
use crate::transport::connect::{Connection, connection_closed};
use crate::transport::node::RedisNode;
use crate::transport::reply_reader::RedisReply;
use crate::transport::value::RedisValue;

/// A server that owes replies and sends nothing for so long is given up; no sooner than callers do.
const STALL_TIMEOUT_MIN: Duration = Duration::from_millis(500);
/// A connection that nothing was sent on for so long is tried, lest the next call finds it dead.
const PING_AFTER_IDLE: Duration = Duration::from_secs(1);
/// Interval at which the two timeouts above are checked.
const TIMEOUT_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Room for bytes to write that is kept: more than most flights need.
const OUT_CAPACITY_KEPT: usize = 64 * 1024;
/// Bytes of one read.
const READ_BYTES: usize = 32 * 1024;

/// One connection at work.
pub(crate) struct Pipe {
    connection: Connection,
    /// Bytes to write, and how many of them are. Bound: one flight.
    out: Vec<u8>,
    written: usize,
    /// Commands that have no reply yet. Bound: [`FLIGHTS_MAX`] flights, and a PING.
    sent: VecDeque<SentCommand>,
    /// Number of unanswered commands of each flight. Bound: [`FLIGHTS_MAX`], and the PING's.
    flights: VecDeque<usize>,
    /// Time after the last flight at which one more than usual may leave.
    hold: Duration,
    hold_timer: Pin<Box<Sleep>>,
    read_buffer: Box<[u8]>,
    /// The last time at which the server took a byte, completed a reply, or began to owe one. Bytes
    /// of an incomplete reply do not count, so a server that trickles is given up.
    last_progress: Instant,
    stall_timeout: Duration,
    tick: Interval,
    /// The reason why it takes no more calls.
    closing_reason: Option<StoreError>,
}

impl Pipe {
    /// `caller_timeout`: how long callers wait for an answer.
    pub(crate) fn new(connection: Connection, caller_timeout: Duration) -> Pipe {
        let mut tick = interval(TIMEOUT_CHECK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Pipe {
            connection,
            out: Vec::new(),
            written: 0,
            sent: VecDeque::new(),
            flights: VecDeque::new(),
            hold: hold_max(caller_timeout),
            hold_timer: Box::pin(sleep(Duration::ZERO)),
            read_buffer: vec![0; READ_BYTES].into(),
            last_progress: Instant::now(),
            stall_timeout: caller_timeout.max(STALL_TIMEOUT_MIN),
            tick,
            closing_reason: None,
        }
    }

    /// Works until the connection ends; why it did.
    pub(crate) async fn serve(mut self, node: &RedisNode) -> StoreError {
        let why = poll_fn(|cx| self.poll(node, cx)).await;
        self.fail_all(node, &why);
        why
    }

    fn poll(&mut self, node: &RedisNode, cx: &mut Context<'_>) -> Poll<StoreError> {
        loop {
            // Each of the four leaves its waker behind if it did nothing: only when none did
            // anything is there nothing to do.
            match self.step(node, cx) {
                Err(why) => return Poll::Ready(why),
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
            }
            if let Some(why) = &self.closing_reason
                && self.sent.is_empty()
            {
                return Poll::Ready(why.clone());
            }
        }
    }

    /// Makes progress where possible; true if there was any.
    fn step(&mut self, node: &RedisNode, cx: &mut Context<'_>) -> Result<bool, StoreError> {
        // Read first: a connection that has ended takes no more calls.
        let heard = self.read(node, cx)?;
        let loaded = self.fill_flight(node, cx);
        let wrote = self.write(cx)?;
        Ok(self.check_timeouts(cx)? | loaded | wrote | heard)
    }

    /// Makes a flight of what waits, if there is a place for it.
    fn fill_flight(&mut self, node: &RedisNode, cx: &mut Context<'_>) -> bool {
        if self.closing_reason.is_some() || !self.out.is_empty() || !self.has_flight_room(cx) {
            return false;
        }
        let jobs = match node.take_queued(cx.waker(), self.flights.len()) {
            Ok(jobs) => jobs,
            Err(why) => {
                self.closing_reason = Some(why);
                return true;
            }
        };
        let calls = jobs.len();
        if calls > 0 {
            let commands = write_flight(jobs, &node.options, &mut self.out, &mut self.sent);
            node.counters.sent_flight(calls, commands);
            self.flights.push_back(commands);
            if self.flights.len() >= FLIGHTS_USUAL {
                self.hold_timer.as_mut().reset(Instant::now() + self.hold);
            }
        }
        calls > 0
    }

    /// Returns true if one more flight may leave. If not yet, the task is woken when it may.
    fn has_flight_room(&mut self, cx: &mut Context<'_>) -> bool {
        match self.flights.len() {
            ..FLIGHTS_USUAL => true,
            FLIGHTS_MAX.. => false,
            _ => self.hold_timer.as_mut().poll(cx).is_ready(),
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
                Poll::Ready(Ok(0)) => {
                    return Err(connection_closed(io::ErrorKind::WriteZero.into()));
                }
                Poll::Ready(Ok(length)) => {
                    self.written += length;
                    // A long text on its way is no silence.
                    self.last_progress = Instant::now();
                }
                Poll::Ready(Err(error)) => return Err(connection_closed(error)),
                Poll::Pending => return Ok(self.written > before),
            }
        }
        // TLS may hold back what was written.
        match Pin::new(&mut *self.connection.stream).poll_flush(cx) {
            Poll::Ready(Ok(())) => {
                self.out.clear();
                // Room that one long text needed.
                self.out.shrink_to(OUT_CAPACITY_KEPT);
                self.written = 0;
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(connection_closed(error)),
            Poll::Pending => Ok(self.written > before),
        }
    }

    /// One piece: places that it frees are filled before the next.
    fn read(&mut self, node: &RedisNode, cx: &mut Context<'_>) -> Result<bool, StoreError> {
        let Poll::Ready(length) = self.poll_read(cx) else { return Ok(false) };
        let length = length.map_err(connection_closed)?;
        if length == 0 {
            return Err(connection_closed(io::ErrorKind::UnexpectedEof.into()));
        }
        self.connection.reader.push(&self.read_buffer[..length]);
        loop {
            match self.connection.reader.next() {
                Ok(Some(reply)) => {
                    self.last_progress = Instant::now();
                    self.deliver_reply(node, reply)?;
                }
                Ok(None) => return Ok(true),
                Err(broken) => return Err(StoreError::new(ErrorClass::Protocol, broken.0)),
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(&mut self.read_buffer);
        let stream = Pin::new(&mut *self.connection.stream);
        ready!(stream.poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Hands a reply to its caller.
    fn deliver_reply(&mut self, node: &RedisNode, reply: RedisReply) -> Result<(), StoreError> {
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
            RedisReply::Value(value) => answer_command(node, cargo, value),
            RedisReply::Error(text) => {
                let error = StoreError::of_reply(&text);
                if error.class.drops_connection() {
                    self.closing_reason = Some(error.clone());
                }
                // Other errors may come from a script that has done a part.
                let undone = error.class.redirects();
                fail_command(
                    node,
                    cargo,
                    &error,
                    ErrorVerdict {
                        not_executed: undone,
                        server_healthy: !error.class.opens_breaker(),
                    },
                );
            }
        }
        Ok(())
    }

    fn check_timeouts(&mut self, cx: &mut Context<'_>) -> Result<bool, StoreError> {
        let mut pinged = false;
        while let Poll::Ready(now) = self.tick.poll_tick(cx) {
            let silent = now.saturating_duration_since(self.last_progress);
            if !self.sent.is_empty() && silent >= self.stall_timeout {
                let detail = format!("no reply for {} ms", self.stall_timeout.as_millis());
                return Err(StoreError::new(ErrorClass::Timeout, detail));
            }
            if self.sent.is_empty() && self.out.is_empty() && silent >= PING_AFTER_IDLE {
                self.last_progress = now;
                RedisCommand::new("PING").write_to(&mut self.out);
                self.sent.push_back(SentCommand::Unawaited);
                self.flights.push_back(1);
                pinged = true;
            }
        }
        Ok(pinged)
    }

    /// Fails all calls in flight, because no more replies come.
    fn fail_all(&mut self, node: &RedisNode, why: &StoreError) {
        // What a byte was written of may have been carried out, though no byte came back.
        let unwritten = match self.written {
            0 if !self.out.is_empty() => self.flights.back().copied().unwrap_or(0),
            _ => 0,
        };
        let written = self.sent.len() - unwritten;
        for (index, cargo) in std::mem::take(&mut self.sent).into_iter().enumerate() {
            fail_command(
                node,
                cargo,
                why,
                ErrorVerdict { not_executed: index >= written, server_healthy: false },
            );
        }
    }
}

fn answer_command(node: &RedisNode, cargo: SentCommand, value: RedisValue) {
    match cargo {
        SentCommand::Unawaited => {}
        SentCommand::Command(_, seat) => deliver_parts(node, vec![seat], vec![Ok(value)]),
        SentCommand::Calls(calls, seats) => {
            let parts = (node.options.script.split)(value, calls.len());
            deliver_parts(node, seats, parts);
        }
    }
}

fn deliver_parts(
    node: &RedisNode,
    seats: Vec<PendingReply>,
    parts: Vec<Result<RedisValue, StoreError>>,
) {
    let now = Instant::now();
    // An answer that comes too late is none: its caller has counted it as a failure.
    let in_time =
        seats.iter().zip(&parts).filter(|(seat, part)| part.is_ok() && seat.deadline > now);
    node.complete(seats.len(), in_time.filter_map(|(seat, _)| seat.pass));
    for (seat, part) in seats.into_iter().zip(parts) {
        let _ = seat.reply.send(part.map_err(NodeFailure::from));
    }
}

/// The consequences of an error for its call and its node.
#[derive(Clone, Copy)]
struct ErrorVerdict {
    /// The question was not carried out, and can be asked again.
    not_executed: bool,
    /// The server is well.
    server_healthy: bool,
}

fn fail_command(node: &RedisNode, cargo: SentCommand, error: &StoreError, told: ErrorVerdict) {
    let (asks, seats): (Vec<NodeRequest>, Vec<PendingReply>) = match cargo {
        SentCommand::Unawaited => return,
        SentCommand::Command(command, seat) => (vec![NodeRequest::Command(command)], vec![seat]),
        SentCommand::Calls(calls, seats) => {
            (calls.into_iter().map(NodeRequest::Call).collect(), seats)
        }
    };
    // A call that goes on with the script's text keeps its leave: what counts is how that ends.
    let goes_on = error.class == ErrorClass::NoScript;
    let now = Instant::now();
    let well = |seat: &&PendingReply| told.server_healthy && !goes_on && seat.deadline > now;
    node.complete(seats.len(), seats.iter().filter(well).filter_map(|seat| seat.pass));
    for (ask, seat) in asks.into_iter().zip(seats) {
        let again = told.not_executed.then(|| Box::new(ask));
        let pass = seat.pass.filter(|_| goes_on);
        let _ =
            seat.reply.send(Err(NodeFailure { error: error.clone(), retry_request: again, pass }));
    }
}
