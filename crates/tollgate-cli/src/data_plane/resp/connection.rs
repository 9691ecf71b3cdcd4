//! One connection: bytes in, bytes out, until one side has enough.
//!
//! What has arrived is obeyed as far as it goes, and its replies leave in one write. Reading and writing
//! go on beside each other: a client may send a whole pipeline before it reads. If it goes on without
//! reading, the replies that wait come to their bound, and no further command is read.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::RespListener;
use super::allowance::OWN_BYTES;
use super::talk::{Round, Talk};
use crate::listeners::farewell::farewell;
use crate::listeners::patrol::{Order, Pulse};

/// How long a connection that used much memory and falls silent keeps it.
const KEEP_MEMORY: Duration = Duration::from_secs(1);

/// The most bytes that are read after the order to finish: what the client had sent by then, but not all
/// that it goes on to send.
const LAST_BYTES_MAX: usize = 4 << 20;

/// How long is waited for bytes that were on their way when the order to finish came, and how often. A read
/// finds none while the kernel passes them on, or before the runtime has heard of them.
const LAST_WAIT: Duration = Duration::from_millis(10);
const LAST_WAITS_MAX: u32 = 25;

/// How long a client may take to hear that the connection ends, and the most bytes of what it says
/// meanwhile. To close with bytes unread would take the last replies back.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_BYTES_MAX: usize = 1 << 20;

pub(super) struct Connection<'d, S> {
    stream: S,
    talk: Talk<'d>,
    /// Replies wait that the peer does not take.
    blocked: bool,
    /// The peer sends nothing more.
    ended: bool,
    /// Bytes read since the order to finish. Bound: [`LAST_BYTES_MAX`].
    last_bytes: usize,
    /// What was written is not flushed.
    flushing: bool,
}

/// What an exchange came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// There is something to obey.
    GoOn,
    /// Everything is said, and the order is to finish: more may be on its way.
    Quiet,
    /// Everything is said, and nothing more is heard.
    End,
    /// There is nobody to say anything to, or no time.
    Gone,
}

impl<'d, S: AsyncRead + AsyncWrite + Unpin> Connection<'d, S> {
    pub(super) fn new(
        listener: &'d RespListener,
        stream: S,
        peer: SocketAddr,
        pulse: Arc<Pulse>,
    ) -> Self {
        let talk = Talk::new(listener, peer, pulse);
        Connection { stream, talk, blocked: false, ended: false, last_bytes: 0, flushing: false }
    }

    pub(super) async fn serve(mut self) {
        // Clients keep connections that they do not use for long; strangers have to say something soon.
        if self.talk.session.admitted {
            self.talk.breathe();
        }
        let mut round = Round::Done;
        let (mut silent, mut waits) = (false, 0);
        loop {
            match self.exchange(round).await {
                Event::GoOn => silent = false,
                Event::Quiet if !silent && waits < LAST_WAITS_MAX => {
                    (silent, waits) = (true, waits + 1);
                    tokio::time::sleep(LAST_WAIT).await;
                    continue;
                }
                Event::Quiet | Event::End => return Box::pin(self.part(round)).await,
                Event::Gone => return,
            }
            round = self.talk.obey().await;
            if round == Round::More {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Writes what waits and reads what comes, until there is something to obey.
    async fn exchange(&mut self, round: Round) -> Event {
        if round == Round::Done && self.talk.is_large() {
            let waiting = poll_fn(|context| self.poll_exchange(context, round));
            if let Ok(event) = tokio::time::timeout(KEEP_MEMORY, waiting).await {
                return event;
            }
            self.talk.shrink();
        }
        poll_fn(|context| self.poll_exchange(context, round)).await
    }

    fn poll_exchange(&mut self, context: &mut Context<'_>, round: Round) -> Poll<Event> {
        // Before the order is looked at: an order given later finds the waker.
        self.talk.pulse.wake_with(context.waker());
        let order = self.talk.pulse.order();
        if order == Order::Abort || self.poll_write(context).is_err() {
            return Poll::Ready(Event::Gone);
        }
        let waits = !self.talk.replies.waiting().is_empty() || self.flushing;
        match round {
            Round::Over => return if waits { Poll::Pending } else { Poll::Ready(Event::End) },
            Round::More => return Poll::Ready(Event::GoOn),
            Round::Full if self.talk.replies.waiting().len() < OWN_BYTES / 2 => {
                return Poll::Ready(Event::GoOn);
            }
            Round::Full => return Poll::Pending,
            Round::Done => {}
        }
        let deaf = self.last_bytes >= LAST_BYTES_MAX;
        if !self.ended && !deaf {
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
        // Half a command is not waited for when the order is to finish.
        if waits {
            Poll::Pending
        } else if self.ended || deaf {
            Poll::Ready(Event::End)
        } else if order == Order::Finish {
            Poll::Ready(Event::Quiet)
        } else {
            Poll::Pending
        }
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut room = ReadBuf::new(self.talk.input.room());
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut room))?;
        let bytes = room.filled().len();
        self.talk.input.fill(bytes);
        if bytes > 0 {
            self.talk.pulse.hear();
        }
        Poll::Ready(Ok(bytes))
    }

    /// Writes as much as the peer takes. `Err`: it takes nothing more, ever.
    fn poll_write(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let mut moved = false;
        while !self.talk.replies.waiting().is_empty() {
            match Pin::new(&mut self.stream).poll_write(context, self.talk.replies.waiting()) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(bytes)) => {
                    self.talk.replies.advance(bytes);
                    self.flushing = true;
                    moved = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        let blocked = !self.talk.replies.waiting().is_empty();
        if !blocked {
            self.talk.allowance.give_back();
            if self.flushing {
                self.flushing = Pin::new(&mut self.stream).poll_flush(context)?.is_pending();
            }
        }
        // A peer that takes its replies is patiently waited for; one that does not is not.
        if self.blocked && moved {
            self.talk.breathe();
        }
        if blocked {
            self.talk.pulse.hear();
        }
        self.blocked = blocked;
        Ok(())
    }

    /// Says that nothing follows, and lets the peer hear it: what it still sends is read and not obeyed.
    async fn part(mut self, round: Round) {
        let reads = round == Round::Over || self.last_bytes >= LAST_BYTES_MAX;
        let last = farewell(&mut self.stream, if reads { FAREWELL_BYTES_MAX } else { 0 });
        let _ = tokio::time::timeout(FAREWELL, last).await;
    }
}
