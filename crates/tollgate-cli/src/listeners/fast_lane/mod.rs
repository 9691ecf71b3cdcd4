//! The fast lane: answers plain HTTP/1.1 requests in a loop of its own, without hyper's work for everything else that
//! HTTP can be.
//!
//! A connection begins here. The first request that is not plain, or that its handler leaves to hyper, ends the lane:
//! hyper gets the bytes that were read and keeps the connection. So does a server that stops, because hyper knows how to
//! end a connection. Nothing is answered twice, because a request is handed over before anything was done for it.

pub(crate) mod plain_request;

mod date_text;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::allowance::Allowance;
use super::connection::HttpProtocol;
use super::handler::Handler;
use super::watchdog::{ConnectionActivity, ConnectionOrder};
use crate::reply::{self, HttpReply};
use date_text::DateText;
use plain_request::{ParsedRequest, PlainRequest, REQUEST_BYTES_MAX, field_room, parse};

/// Bytes of unsent replies from which no more requests are answered; hyper has the same bound.
const OUTPUT_BYTES_MAX: usize = 16 << 10;

/// The end of the lane.
pub(super) enum LaneEnd {
    /// The connection is closed, or has to be.
    Closed,
    /// hyper continues.
    HandOver {
        /// Bytes that were read and not answered.
        unanswered: Vec<u8>,
        /// Requests were answered: the connection has chosen HTTP/1.1.
        is_http1: bool,
    },
}

/// Answers plain requests until there is another, or the connection ends.
pub(super) async fn serve<S, H>(
    stream: &mut S,
    peer: SocketAddr,
    protocol: &HttpProtocol<H>,
    activity: &Arc<ConnectionActivity>,
) -> LaneEnd
where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Handler,
{
    let mut lane = FastLane {
        protocol,
        activity,
        peer,
        input: vec![0; REQUEST_BYTES_MAX].into(),
        unread: 0..0,
        output: Vec::new(),
        sent: 0,
        allowance: Allowance::new(&protocol.body_allowance),
        waiting_since: None,
        date: DateText::default(),
        has_answered: false,
    };
    loop {
        let stop = lane.answer_requests();
        // A peer that does not read its replies gets no more of them.
        if poll_fn(|context| lane.poll_send(stream, context)).await.is_err() {
            return LaneEnd::Closed;
        }
        match stop {
            AnswerStop::Unusual => return lane.hand_over(),
            AnswerStop::OutputFull => continue,
            AnswerStop::Incomplete => {}
        }
        match poll_fn(|context| lane.poll_receive(stream, context)).await {
            Ok(ReceiveOutcome::Bytes) => {}
            Ok(ReceiveOutcome::Order) => return lane.hand_over(),
            Ok(ReceiveOutcome::End) if lane.unread.is_empty() => {
                // The peer has left: it does not matter if that fails.
                let _ = poll_fn(|context| lane.poll_close(stream, context)).await;
                return LaneEnd::Closed;
            }
            Ok(ReceiveOutcome::End) => return lane.hand_over(),
            Err(_) => return LaneEnd::Closed,
        }
    }
}

/// Reason why no more requests are answered for now.
enum AnswerStop {
    /// The next request has not arrived completely.
    Incomplete,
    /// The replies have to be sent first.
    OutputFull,
    /// hyper continues.
    Unusual,
}

/// Result of waiting for bytes.
enum ReceiveOutcome {
    Bytes,
    /// The peer sends no more.
    End,
    /// The connection has to finish.
    Order,
}

/// One connection in the lane.
struct FastLane<'p, H: Handler> {
    protocol: &'p HttpProtocol<H>,
    activity: &'p Arc<ConnectionActivity>,
    peer: SocketAddr,
    /// Bytes that were received. Bound: `REQUEST_BYTES_MAX`.
    input: Box<[u8]>,
    /// The part of `input` that is not answered.
    unread: std::ops::Range<usize>,
    /// Replies. Bound: `OUTPUT_BYTES_MAX` and one reply.
    output: Vec<u8>,
    /// Bytes of `output` that are sent.
    sent: usize,
    /// Covers the largest unsent reply.
    allowance: Allowance,
    /// Period of the watchdog in which the replies began to wait.
    waiting_since: Option<usize>,
    date: DateText,
    /// At least one request has been answered.
    has_answered: bool,
}

impl<H: Handler> FastLane<'_, H> {
    /// Answers the requests that have arrived.
    fn answer_requests(&mut self) -> AnswerStop {
        while self.output.len() < OUTPUT_BYTES_MAX {
            if self.protocol.stopping.load(Ordering::Relaxed) {
                return AnswerStop::Unusual;
            }
            let mut room = field_room();
            let request = match parse(&self.input[self.unread.clone()], &mut room) {
                ParsedRequest::Plain(request) => request,
                ParsedRequest::Incomplete => return AnswerStop::Incomplete,
                ParsedRequest::Unusual => return AnswerStop::Unusual,
            };
            let Some(reply) = answer(&self.protocol.handler, &request, self.peer) else {
                return AnswerStop::Unusual;
            };
            self.unread.start += request.bytes;
            self.activity.request_answered();
            self.has_answered = true;
            self.write(reply);
            if self.unread.is_empty() {
                self.unread = 0..0;
                return AnswerStop::Incomplete;
            }
        }
        AnswerStop::OutputFull
    }

    fn write(&mut self, mut reply: HttpReply) {
        if !self.allowance.try_cover(reply.body().len()) {
            reply = reply::no_room().into();
        }
        self.protocol.responses.count(reply.status());
        let date = self.date.at(reply.decided_at());
        reply.write_http1(&mut self.output, date);
    }

    /// Sends all replies.
    fn poll_send<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.output.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let Poll::Ready(sent) = self.poll_write_all(stream, context) else {
            if self.waiting_since.is_none() {
                self.waiting_since = Some(self.activity.reply_queued());
            }
            return self.poll_aborted(context);
        };
        sent?;
        self.output.clear();
        self.output.shrink_to(2 * OUTPUT_BYTES_MAX);
        self.sent = 0;
        self.allowance.release();
        self.end_wait();
        Poll::Ready(Ok(()))
    }

    fn poll_write_all<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.sent < self.output.len() {
            let unsent = &self.output[self.sent..];
            match ready!(Pin::new(&mut *stream).poll_write(context, unsent))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                bytes => self.sent += bytes,
            }
        }
        Pin::new(stream).poll_flush(context)
    }

    /// Ready with an error if the connection has to be closed at once.
    fn poll_aborted(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Before the order is read: a later order then finds the waker.
        self.activity.set_waker(context.waker());
        match self.activity.order() {
            ConnectionOrder::Abort => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            ConnectionOrder::Continue | ConnectionOrder::Finish => Poll::Pending,
        }
    }

    /// Closes the sending side. In TLS this tells the peer that nothing was cut off.
    fn poll_close<S: AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(stream).poll_shutdown(context) {
            Poll::Ready(closed) => Poll::Ready(closed),
            Poll::Pending => self.poll_aborted(context),
        }
    }

    /// Waits for more bytes.
    fn poll_receive<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<ReceiveOutcome>> {
        if let Poll::Ready(Err(aborted)) = self.poll_aborted(context) {
            return Poll::Ready(Err(aborted));
        }
        if self.activity.order() == ConnectionOrder::Finish {
            return Poll::Ready(Ok(ReceiveOutcome::Order));
        }
        if self.unread.start > 0 {
            self.input.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let mut buffer = ReadBuf::new(&mut self.input[self.unread.end..]);
        ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
        let bytes = buffer.filled().len();
        if bytes == 0 {
            return Poll::Ready(Ok(ReceiveOutcome::End));
        }
        self.activity.bytes_received();
        self.unread.end += bytes;
        Poll::Ready(Ok(ReceiveOutcome::Bytes))
    }

    fn hand_over(&mut self) -> LaneEnd {
        let unanswered = self.input[self.unread.clone()].to_vec();
        LaneEnd::HandOver { unanswered, is_http1: self.has_answered }
    }

    fn end_wait(&mut self) {
        if let Some(period) = self.waiting_since.take() {
            self.activity.reply_sent(period);
        }
    }
}

impl<H: Handler> Drop for FastLane<'_, H> {
    fn drop(&mut self) {
        self.end_wait();
    }
}

/// The reply to a request; `None` leaves it to hyper. A panic must end neither the connection nor the worker.
fn answer<H: Handler>(
    handler: &H,
    request: &PlainRequest<'_, '_>,
    peer: SocketAddr,
) -> Option<HttpReply> {
    let answered = catch_unwind(AssertUnwindSafe(|| handler.answer_plain(request, peer)));
    answered.unwrap_or_else(|_| Some(handler.panicked().into()))
}
