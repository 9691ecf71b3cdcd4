//! A stream that tells the watchdog of received bytes, and is given back when its connection is over.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::watchdog::ConnectionActivity;

/// A stream that reports received bytes to the activity of its connection.
pub(crate) struct ActivityStream<S> {
    /// Bytes that were received already, and are read first. Bound: those of a plain request.
    received: Bytes,
    /// The stream; `None` only during drop.
    stream: Option<S>,
    activity: Arc<ConnectionActivity>,
    /// Receiver of the stream on drop, unless the peer has closed it.
    return_to: Option<oneshot::Sender<S>>,
}

impl<S: Unpin> ActivityStream<S> {
    /// Wraps a stream of which `received` was read already. The receiver gets the stream when the connection is over,
    /// unless the peer has closed it.
    pub(crate) fn new(
        stream: S,
        received: Bytes,
        activity: &Arc<ConnectionActivity>,
    ) -> (ActivityStream<S>, oneshot::Receiver<S>) {
        let (back, left) = oneshot::channel();
        let (stream, activity, return_to) = (Some(stream), activity.clone(), Some(back));
        (ActivityStream { received, stream, activity, return_to }, left)
    }

    fn stream(&mut self) -> Pin<&mut S> {
        Pin::new(self.stream.as_mut().expect("it is there until this is dropped"))
    }
}

impl<S> Drop for ActivityStream<S> {
    fn drop(&mut self) {
        if let (Some(stream), Some(back)) = (self.stream.take(), self.return_to.take()) {
            // The receiver is gone if the whole connection is dropped.
            let _ = back.send(stream);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ActivityStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.received.is_empty() {
            let bytes = self.received.len().min(buffer.remaining());
            buffer.put_slice(&self.received.split_to(bytes));
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let polled = self.stream().poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.bytes_received();
        } else if polled.is_ready() {
            self.return_to = None;
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ActivityStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(context)
    }
}
