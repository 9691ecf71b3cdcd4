//! One connection: reads commands and writes replies until either side closes.
//!
//! All commands that have arrived run, and their replies leave in one write. Reading and writing run concurrently,
//! because a client may send a whole pipeline before it reads. If it never reads, the unsent replies reach their
//! bound, and no further command is read.

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

/// Time for which an idle connection keeps large buffers.
const KEEP_MEMORY_TIME: Duration = Duration::from_secs(1);

/// Maximum bytes that are read after the order to finish: enough for what the client had already sent.
const DRAIN_BYTES_MAX: usize = 4 << 20;

/// Wait for bytes that were on their way when the order to finish came: a read finds none before the kernel and the
/// runtime have passed them on.
const DRAIN_WAIT: Duration = Duration::from_millis(10);
/// Maximum number of such waits.
const DRAIN_WAITS_MAX: u32 = 25;

/// Time for the client to close its side. Closing with unread bytes would reset the connection, and the client could
/// lose the last replies.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum bytes that are read and discarded meanwhile.
const CLOSE_DISCARD_BYTES_MAX: usize = 1 << 20;

pub(super) struct RespConnection<'d, S> {
    stream: S,
    command_loop: CommandLoop<'d>,
    /// The peer does not read its replies.
    is_write_blocked: bool,
    /// The peer has closed its sending side.
    peer_closed: bool,
    /// Bytes read since the order to finish. Bound: [`DRAIN_BYTES_MAX`].
    drained_bytes: usize,
    /// Bytes were written and not flushed.
    needs_flush: bool,
}

/// Result of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExchangeEvent {
    /// There may be a command to run.
    InputReady,
    /// All replies are sent, and the order is to finish: more commands may be on their way.
    Drained,
    /// All replies are sent, and no more commands will be read.
    Finished,
    /// The peer is gone, or the order is to abort.
    Closed,
}

impl<'d, S: AsyncRead + AsyncWrite + Unpin> RespConnection<'d, S> {
    pub(super) fn new(
        listener: &'d RespListener,
        stream: S,
        peer: SocketAddr,
        activity: Arc<ConnectionActivity>,
    ) -> Self {
        let command_loop = CommandLoop::new(listener, peer, activity);
        RespConnection {
            stream,
            command_loop,
            is_write_blocked: false,
            peer_closed: false,
            drained_bytes: 0,
            needs_flush: false,
        }
    }

    pub(super) async fn serve(mut self) {
        // Authenticated clients may keep idle connections; others have to authenticate soon.
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

    /// Writes queued replies and reads input, until there is a command to run.
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
        // Before the order is read: a later order then finds the waker.
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
        // When the order is to finish, the rest of half a command is not waited for.
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

    /// Writes as much as the peer reads. `Err` means that the connection is broken.
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
        // A peer that reads its replies gets the long idle timeout, a blocked one the short one.
        if self.is_write_blocked && moved {
            self.command_loop.reset_idle_timer();
        }
        if blocked {
            self.command_loop.activity.bytes_received();
        }
        self.is_write_blocked = blocked;
        Ok(())
    }

    /// Closes the sending side and discards what the peer still sends, so that the last replies arrive.
    async fn close_gracefully(mut self, round: RoundResult) {
        let reads = round == RoundResult::Close || self.drained_bytes >= DRAIN_BYTES_MAX;
        let last =
            shutdown_and_drain(&mut self.stream, if reads { CLOSE_DISCARD_BYTES_MAX } else { 0 });
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, last).await;
    }
}
