//! One connection: commands in, replies out, in order, until one side has enough.
//!
//! What has arrived is obeyed as far as it goes, and its replies leave in one write. Reading and writing
//! go on beside each other: a client may send a whole pipeline before it reads. If it goes on without
//! reading, the replies that wait come to their bound, and no further command is read.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tollgate::Check;

use super::RespDoor;
use super::allowance::{Allowance, OWN_BYTES};
use super::batch::{self, Added, Batch};
use super::commands::{self, Command, unknown_command, wrong_number};
use super::figures::Trouble;
use super::input::Input;
use super::questions::Questions;
use super::reply::Replies;
use super::request::{Args, Parser, ProtocolError, Step};
use super::rules::{self, Asked};
use super::session::{self, Session};
use super::throttle::{self, Throttle};
use crate::doors::patrol::{Order, Pulse};

/// The most commands that are obeyed before others on the same worker get their turn.
const ROUND_COMMANDS_MAX: usize = 1_024;

/// How long a connection that used much memory and falls silent keeps it.
const KEEP_MEMORY: Duration = Duration::from_secs(1);

/// The most bytes that are read after the order to finish: what the client had sent by then, but not all
/// that it goes on to send.
const LAST_BYTES_MAX: usize = 4 << 20;

/// How long a client may take to hear that the connection ends, and the most bytes of what it says
/// meanwhile. To close with bytes unread would take the last replies back.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_BYTES_MAX: usize = 1 << 20;

pub(super) struct Connection<'d, S> {
    door: &'d RespDoor,
    stream: S,
    pulse: Arc<Pulse>,
    input: Input,
    parser: Parser,
    replies: Replies,
    session: Session,
    /// What waits to be decided together: calls of `CL.THROTTLE`, or questions to the rules, and never
    /// both, so that replies stay in order.
    batch: Batch,
    questions: Questions,
    allowance: Allowance,
    /// Replies wait that the peer does not take.
    blocked: bool,
    /// The peer sends nothing more.
    ended: bool,
    /// Bytes read since the order to finish. Bound: [`LAST_BYTES_MAX`].
    last_bytes: usize,
    /// What was written is not flushed.
    flushing: bool,
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// Everything that has arrived is obeyed.
    Done,
    /// There is more to obey.
    More,
    /// There is more, but as many replies wait as may.
    Full,
    /// The client is told no more.
    Over,
}

/// What an exchange came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// There is something to obey.
    GoOn,
    /// Everything is said.
    End,
    /// There is nobody to say anything to, or no time.
    Gone,
}

impl<'d, S: AsyncRead + AsyncWrite + Unpin> Connection<'d, S> {
    pub(super) fn new(door: &'d RespDoor, stream: S, peer: SocketAddr, pulse: Arc<Pulse>) -> Self {
        Connection {
            door,
            stream,
            pulse,
            input: Input::default(),
            parser: Parser::default(),
            replies: Replies::default(),
            session: Session::new(peer, door.tokens.as_deref()),
            batch: Batch::default(),
            questions: Questions::default(),
            allowance: Allowance::new(&door.waiting),
            blocked: false,
            ended: false,
            last_bytes: 0,
            flushing: false,
        }
    }

    pub(super) async fn serve(mut self) {
        // Clients keep connections that they do not use for long; strangers have to say something soon.
        if self.session.admitted {
            self.breathe();
        }
        let mut round = Round::Done;
        loop {
            match self.exchange(round).await {
                Event::GoOn => {}
                Event::End => return Box::pin(self.part(round)).await,
                Event::Gone => return,
            }
            round = match self.obey().await {
                Ok(round) => round,
                Err(error) => {
                    self.door.figures.trouble(Trouble::Protocol);
                    self.replies.error(format_args!("ERR {error}"));
                    Round::Over
                }
            };
            if round == Round::More {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Obeys what has arrived, as far as it goes.
    async fn obey(&mut self) -> Result<Round, ProtocolError> {
        let mut commands = 0;
        let round = loop {
            if commands == ROUND_COMMANDS_MAX {
                break Ok(Round::More);
            }
            if !self.allowance.covers(self.replies.held()) {
                break Ok(Round::Full);
            }
            match self.parser.next(self.input.unread(), !self.session.admitted) {
                Ok(Step::More) => break Ok(Round::Done),
                Ok(Step::Nothing(length)) => self.input.consume(length),
                Ok(Step::Command(length)) => {
                    if commands == 0 {
                        self.pulse.begin(false);
                    }
                    commands += 1;
                    if !self.collect() {
                        self.decide().await;
                        self.command().await;
                    }
                    self.input.consume(length);
                    if self.session.leaves {
                        break Ok(Round::Over);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.decide().await;
        if commands > 0 {
            self.pulse.end();
            self.listen();
        }
        round
    }

    /// Puts a command to those that are decided together, if it is of their kind.
    #[inline]
    fn collect(&mut self) -> bool {
        let args = self.parser.args(self.input.unread());
        let name = args.get(0).unwrap_or_default();
        if !self.session.admitted || self.parser.was_line() {
            return false;
        }
        if !name.eq_ignore_ascii_case(b"cl.throttle") {
            return self.collect_question();
        }
        if !self.questions.is_empty() {
            return false;
        }
        let Ok(call) = Throttle::read(args) else { return false };
        let ((begin, end), (_, offset)) = (args.place(1), self.input.all());
        let key = (begin + offset as u32, end + offset as u32);
        matches!(self.batch.add(self.door, &call, key), Ok(Added::Waits))
    }

    /// Where the store answers later, the rules are asked several questions at once.
    #[inline(never)]
    fn collect_question(&mut self) -> bool {
        let (args, (_, offset)) = (self.parser.args(self.input.unread()), self.input.all());
        let peek = match Command::of(args.get(0).unwrap_or_default()) {
            Some(Command::Check) => false,
            Some(Command::Peek) => true,
            _ => return false,
        };
        let at_once = self.door.gatekeeper.limiter().store().shared().is_none();
        if at_once || !self.batch.is_empty() || self.questions.is_full() {
            return false;
        }
        self.questions.add(args, offset, peek);
        let command = if peek { Command::Peek } else { Command::Check };
        self.door.figures.commands(Some(command), 1);
        true
    }

    /// Decides those that were put together.
    #[inline]
    async fn decide(&mut self) {
        let (bytes, _) = self.input.all();
        if !self.batch.is_empty() {
            self.batch.decide(self.door, bytes, &mut self.replies).await;
        }
        if !self.questions.is_empty() {
            let asking = self.questions.decide(self.door, bytes, &mut self.replies);
            Box::pin(asking).await;
        }
    }

    /// Obeys one command.
    async fn command(&mut self) {
        let args = self.parser.args(self.input.unread());
        let (door, replies) = (self.door, &mut self.replies);
        let name = args.get(0).unwrap_or_default();
        let Some(command) = Command::of(name) else {
            door.figures.commands(None, 1);
            // A browser was made to talk to this port: what else it says must not be obeyed.
            self.session.leaves =
                [&b"host:"[..], b"post"].iter().any(|word| name.eq_ignore_ascii_case(word));
            if !self.session.leaves {
                door.figures.trouble(Trouble::Command);
                unknown_command(args, replies);
            }
            return;
        };
        if command != Command::Throttle {
            door.figures.commands(Some(command), 1);
        }
        if !command.takes(args.len()) {
            door.figures.trouble(Trouble::Command);
            return wrong_number(command.described().name, replies);
        }
        if !self.session.admitted && !command.is_for_strangers() {
            door.figures.trouble(Trouble::Auth);
            return Session::refuse_stranger(replies);
        }
        let (session, tokens) = (&mut self.session, door.tokens.as_deref());
        session.was_wrong = false;
        match command {
            Command::Throttle => throttle_one(door, &mut self.batch, args, replies).await,
            Command::Check => check(door, args, false, replies).await,
            Command::Peek => check(door, args, true, replies).await,
            Command::ResetKey => rules::reset(door, args, session.by(), replies).await,
            Command::Ping => match (args.get(1), args.len()) {
                (None, _) => replies.simple("PONG"),
                (Some(text), 2) => replies.bulk(text),
                _ => wrong_number("ping", replies),
            },
            Command::Echo => replies.bulk(args.get(1).unwrap_or_default()),
            Command::Hello => session.hello(args, tokens, replies),
            Command::Auth => session.auth(args, tokens, replies),
            Command::Client => session.client(args, replies),
            Command::Select => session::select(args.get(1).unwrap_or_default(), replies),
            Command::Commands => commands::command(args, replies),
            Command::Info => session::info(args, replies),
            Command::Config => session::config(args, replies),
            Command::Quit => {
                session.leaves = true;
                replies.ok();
            }
            Command::Reset => session.reset(tokens, replies),
            Command::Cluster | Command::ReadOnly | Command::ReadWrite | Command::Asking => {
                replies.error("ERR This instance has cluster support disabled");
            }
        }
        if self.session.was_wrong {
            door.figures.trouble(Trouble::Auth);
            door.audit.wrong_token(self.session.by().peer, door.gatekeeper.now());
        }
    }

    /// Writes what waits and reads what comes, until there is something to obey.
    async fn exchange(&mut self, round: Round) -> Event {
        let large = self.input.is_large() || self.replies.capacity() > OWN_BYTES / 16;
        if round == Round::Done && large {
            let waiting = poll_fn(|context| self.poll_exchange(context, round));
            if let Ok(event) = tokio::time::timeout(KEEP_MEMORY, waiting).await {
                return event;
            }
            self.shrink();
        }
        poll_fn(|context| self.poll_exchange(context, round)).await
    }

    fn poll_exchange(&mut self, context: &mut Context<'_>, round: Round) -> Poll<Event> {
        // Before the order is looked at: an order given later finds the waker.
        self.pulse.wake_with(context.waker());
        let order = self.pulse.order();
        if order == Order::Abort || self.poll_write(context).is_err() {
            return Poll::Ready(Event::Gone);
        }
        let waits = !self.replies.waiting().is_empty() || self.flushing;
        match round {
            Round::Over => return if waits { Poll::Pending } else { Poll::Ready(Event::End) },
            Round::More => return Poll::Ready(Event::GoOn),
            Round::Full if self.replies.waiting().len() < OWN_BYTES / 2 => {
                return Poll::Ready(Event::GoOn);
            }
            Round::Full => return Poll::Pending,
            Round::Done => {}
        }
        if !self.ended && self.last_bytes < LAST_BYTES_MAX {
            match self.poll_read(context) {
                Poll::Ready(Ok(0)) => self.ended = true,
                Poll::Ready(Ok(bytes)) => {
                    self.last_bytes += if order == Order::Finish { bytes } else { 0 };
                    return Poll::Ready(Event::GoOn);
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Event::Gone),
                Poll::Pending => {}
            }
        }
        // What has arrived by now is answered. While the server stops, half a command is waited for
        // until the patrol says that it is time.
        let stopping = self.door.stopping.load(Ordering::Relaxed) && self.input.unread().is_empty();
        let over = self.ended || stopping || order == Order::Finish;
        if over && !waits { Poll::Ready(Event::End) } else { Poll::Pending }
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut room = ReadBuf::new(self.input.room());
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut room))?;
        let bytes = room.filled().len();
        self.input.fill(bytes);
        if bytes > 0 {
            self.pulse.hear();
        }
        Poll::Ready(Ok(bytes))
    }

    /// Writes as much as the peer takes. `Err`: it takes nothing more, ever.
    fn poll_write(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let mut moved = false;
        while !self.replies.waiting().is_empty() {
            match Pin::new(&mut self.stream).poll_write(context, self.replies.waiting()) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(bytes)) => {
                    self.replies.advance(bytes);
                    self.flushing = true;
                    moved = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        let blocked = !self.replies.waiting().is_empty();
        if !blocked {
            self.allowance.give_back();
            if self.flushing {
                self.flushing = Pin::new(&mut self.stream).poll_flush(context)?.is_pending();
            }
        }
        // A peer that takes its replies is patiently waited for; one that does not is not.
        if self.blocked && moved {
            self.breathe();
        }
        if blocked {
            self.pulse.hear();
        }
        self.blocked = blocked;
        Ok(())
    }

    /// Something was done: patience begins anew.
    fn breathe(&self) {
        self.pulse.begin(false);
        self.pulse.end();
        self.listen();
    }

    /// Says that nothing follows, and lets the peer hear it: what it still sends is read and not obeyed.
    async fn part(mut self, round: Round) {
        let last = async {
            // Of TLS this is a word of its own: without it the peer could not tell the end from a cut.
            self.stream.shutdown().await?;
            let (mut left, mut room) = (FAREWELL_BYTES_MAX, [0; 4 << 10]);
            while round == Round::Over || self.last_bytes >= LAST_BYTES_MAX {
                match self.stream.read(&mut room).await? {
                    0 => break,
                    bytes if bytes >= left => break,
                    bytes => left -= bytes,
                }
            }
            io::Result::Ok(())
        };
        let _ = tokio::time::timeout(FAREWELL, last).await;
    }

    /// Half a command, and a stranger's silence, are waited for less patiently.
    fn listen(&self) {
        if !self.session.admitted || !self.input.unread().is_empty() {
            self.pulse.hear();
        }
    }

    fn shrink(&mut self) {
        if self.replies.waiting().is_empty() {
            self.replies.shrink();
        }
        if self.input.unread().is_empty() {
            self.input.shrink();
            self.parser.shrink();
        }
    }
}

/// A call of `CL.THROTTLE` that was not put together with others: it was wrong, or came as a line, or
/// there was no room for it before.
async fn throttle_one(door: &RespDoor, batch: &mut Batch, args: Args<'_>, replies: &mut Replies) {
    let call = Throttle::read(args);
    let added = call.as_ref().map_err(|error| *error);
    let added = added.and_then(|call| Ok((call, batch.add(door, call, args.place(1))?)));
    let reply = match added {
        Ok((_, Added::Waits)) => return batch.decide(door, args.bytes(), replies).await,
        Ok((_, Added::Full)) => unreachable!("nothing waits"),
        Ok((_, Added::Nothing(reply))) => Ok(reply),
        Ok((call, Added::Alone(limit))) => {
            let check = Check::new(&limit, call.key).cost(call.quantity);
            let decision = batch::decide_alone(door, &check).await;
            Ok(throttle::reply(limit.capacity(), &decision))
        }
        Ok((call, Added::Beyond(limit))) => {
            let check = Check::new(&limit, call.key).cost(call.quantity);
            let decision = door.book.decide_beyond(&check, door.gatekeeper.now());
            Ok(throttle::reply(limit.capacity(), &decision))
        }
        Err(error) => Err(error),
    };
    match reply {
        Ok(reply) => {
            door.figures.throttled(u64::from(reply[0] == 0), u64::from(reply[0] == 1));
            replies.five(reply);
        }
        Err(error) => {
            door.figures.trouble(Trouble::Command);
            replies.error(error);
        }
    }
    door.figures.commands(Some(Command::Throttle), 1);
}

async fn check(door: &RespDoor, args: Args<'_>, peek: bool, replies: &mut Replies) {
    match Asked::read(args) {
        Ok(asked) => {
            let how = (peek, door.gatekeeper.now());
            // In a box: it is large, and a connection that does not ask need not carry it.
            let answer = Box::pin(asked.decide(&door.gatekeeper, &door.timing, how)).await;
            rules::reply(door, &answer, replies);
        }
        Err(error) => {
            door.figures.trouble(Trouble::Command);
            replies.error(error);
        }
    }
}
