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
use super::command_loop::{CommandLoop, RoundResult};
use super::reply_allowance::OWN_BYTES;
use crate::listeners::graceful_close::shutdown_and_drain;
use crate::listeners::watchdog::{ConnectionActivity, ConnectionOrder};

/// How long a connection that used much memory and falls silent keeps it.
const KEEP_MEMORY_TIME: Duration = Duration::from_secs(1);

/// The most bytes that are read after the order to finish: what the client had sent by then, but not all
/// that it goes on to send.
const DRAIN_BYTES_MAX: usize = 4 << 20;

/// How long is waited for bytes that were on their way when the order to finish came, and how often. A read
/// finds none while the kernel passes them on, or before the runtime has heard of them.
const DRAIN_WAIT: Duration = Duration::from_millis(10);
const DRAIN_WAITS_MAX: u32 = 25;

/// How long a client may take to hear that the connection ends, and the most bytes of what it says
/// meanwhile. To close with bytes unread would take the last replies back.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const CLOSE_DISCARD_BYTES_MAX: usize = 1 << 20;

pub(super) struct RespConnection<'d, S> {
    stream: S,
    command_loop: CommandLoop<'d>,
    /// Replies wait that the peer does not take.
    is_write_blocked: bool,
    /// The peer sends nothing more.
    peer_closed: bool,
    /// Bytes read since the order to finish. Bound: [`DRAIN_BYTES_MAX`].
    drained_bytes: usize,
    /// What was written is not flushed.
    needs_flush: bool,
}

/// What an exchange came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExchangeEvent {
    /// There is something to obey.
    InputReady,
    /// Everything is said, and the order is to finish: more may be on its way.
    Drained,
    /// Everything is said, and nothing more is heard.
    Finished,
    /// There is nobody to say anything to, or no time.
    Closed,
}

impl<'d, S: AsyncRead + AsyncWrite + Unpin> RespConnection<'d, S> {
    pub(super) fn new(
        listener: &'d RespListener,
        stream: S,
        peer: SocketAddr,
        pulse: Arc<ConnectionActivity>,
    ) -> Self {
        let talk = CommandLoop::new(listener, peer, pulse);
        RespConnection {
            stream,
            command_loop: talk,
            is_write_blocked: false,
            peer_closed: false,
            drained_bytes: 0,
            needs_flush: false,
        }
    }

    pub(super) async fn serve(mut self) {
        // Clients keep connections that they do not use for long; strangers have to say something soon.
        if self.command_loop.session.admitted {
            self.command_loop.reset_idle_timer();
        }
        let mut round = RoundResult::Done;
        let (mut silent, mut waits) = (false, 0);
        loop {
            match self.exchange(round).await {
                ExchangeEvent::InputReady => silent = false,
                ExchangeEvent::Drained if !silent && waits < DRAIN_WAITS_MAX => {
                    (silent, waits) = (true, waits + 1);
                    tokio::time::sleep(DRAIN_WAIT).await;
                    continue;
                }
                ExchangeEvent::Drained | ExchangeEvent::Finished => {
                    return Box::pin(self.close_gracefully(round)).await;
                }
                ExchangeEvent::Closed => return,
            }
            round = self.command_loop.run_commands().await;
            if round == RoundResult::MoreInput {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Writes what waits and reads what comes, until there is something to obey.
    async fn exchange(&mut self, round: RoundResult) -> ExchangeEvent {
        if round == RoundResult::Done && self.command_loop.is_large() {
            let waiting = poll_fn(|context| self.poll_exchange(context, round));
            if let Ok(event) = tokio::time::timeout(KEEP_MEMORY_TIME, waiting).await {
                return event;
            }
            self.command_loop.shrink();
        }
        poll_fn(|context| self.poll_exchange(context, round)).await
    }

    fn poll_exchange(
        &mut self,
        context: &mut Context<'_>,
        round: RoundResult,
    ) -> Poll<ExchangeEvent> {
        // Before the order is looked at: an order given later finds the waker.
        self.command_loop.activity.set_waker(context.waker());
        let order = self.command_loop.activity.order();
        if order == ConnectionOrder::Abort || self.poll_write(context).is_err() {
            return Poll::Ready(ExchangeEvent::Closed);
        }
        let waits = !self.command_loop.replies.unsent().is_empty() || self.needs_flush;
        match round {
            RoundResult::Close => {
                return if waits { Poll::Pending } else { Poll::Ready(ExchangeEvent::Finished) };
            }
            RoundResult::MoreInput => return Poll::Ready(ExchangeEvent::InputReady),
            RoundResult::RepliesFull
                if self.command_loop.replies.unsent().len() < OWN_BYTES / 2 =>
            {
                return Poll::Ready(ExchangeEvent::InputReady);
            }
            RoundResult::RepliesFull => return Poll::Pending,
            RoundResult::Done => {}
        }
        let deaf = self.drained_bytes >= DRAIN_BYTES_MAX;
        if !self.peer_closed && !deaf {
            match self.poll_read(context) {
                Poll::Ready(Ok(0)) => self.peer_closed = true,
                Poll::Ready(Ok(bytes)) => {
                    self.drained_bytes += if order == ConnectionOrder::Finish { bytes } else { 0 };
                    return Poll::Ready(ExchangeEvent::InputReady);
                }
                Poll::Ready(Err(_)) => return Poll::Ready(ExchangeEvent::Closed),
                Poll::Pending => {}
            }
        }
        // Half a command is not waited for when the order is to finish.
        if waits {
            Poll::Pending
        } else if self.peer_closed || deaf {
            Poll::Ready(ExchangeEvent::Finished)
        } else if order == ConnectionOrder::Finish {
            Poll::Ready(ExchangeEvent::Drained)
        } else {
            Poll::Pending
        }
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut room = ReadBuf::new(self.command_loop.input.free_space());
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut room))?;
        let bytes = room.filled().len();
        self.command_loop.input.fill(bytes);
        if bytes > 0 {
            self.command_loop.activity.bytes_received();
        }
        Poll::Ready(Ok(bytes))
    }

    /// Writes as much as the peer takes. `Err`: it takes nothing more, ever.
    fn poll_write(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let mut moved = false;
        while !self.command_loop.replies.unsent().is_empty() {
            match Pin::new(&mut self.stream).poll_write(context, self.command_loop.replies.unsent())
            {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(bytes)) => {
                    self.command_loop.replies.advance(bytes);
                    self.needs_flush = true;
                    moved = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        let blocked = !self.command_loop.replies.unsent().is_empty();
        if !blocked {
            self.command_loop.allowance.release();
            if self.needs_flush {
                self.needs_flush = Pin::new(&mut self.stream).poll_flush(context)?.is_pending();
            }
        }
        // A peer that takes its replies is patiently waited for; one that does not is not.
        if self.is_write_blocked && moved {
            self.command_loop.reset_idle_timer();
        }
        if blocked {
            self.command_loop.activity.bytes_received();
        }
        self.is_write_blocked = blocked;
        Ok(())
    }

    /// Says that nothing follows, and lets the peer hear it: what it still sends is read and not obeyed.
    async fn close_gracefully(mut self, round: RoundResult) {
        let reads = round == RoundResult::Close || self.drained_bytes >= DRAIN_BYTES_MAX;
        let last =
            shutdown_and_drain(&mut self.stream, if reads { CLOSE_DISCARD_BYTES_MAX } else { 0 });
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, last).await;
    }
}
