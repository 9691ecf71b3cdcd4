//! The first frame of a server that is asked to speak HTTP/2 without TLS: SETTINGS, if it does. A server of HTTP/1.1 answers
//! with text, or closes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// Bytes of a frame's head up to its type.
const TYPE_BYTES: usize = 4;

/// The type of a frame with settings.
const SETTINGS: u8 = 4;

/// The first frame of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstFrame {
    /// The frame with which HTTP/2 begins.
    Settings,
    /// Anything else.
    Other,
}

/// A connection whose first received bytes are looked at.
pub(super) struct FirstFrameStream<S> {
    stream: S,
    /// The bytes so far. Bound: [`TYPE_BYTES`].
    head: [u8; TYPE_BYTES],
    received: usize,
    found: Option<oneshot::Sender<FirstFrame>>,
}

impl<S> FirstFrameStream<S> {
    /// Wraps a connection. The receiver gets its first frame, or an error if the connection ends before it.
    pub(super) fn new(stream: S) -> (FirstFrameStream<S>, oneshot::Receiver<FirstFrame>) {
        let (found, first_frame) = oneshot::channel();
        let (head, received) = ([0; TYPE_BYTES], 0);
        (FirstFrameStream { stream, head, received, found: Some(found) }, first_frame)
    }

    fn look_at(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(TYPE_BYTES - self.received);
        self.head[self.received..self.received + count].copy_from_slice(&bytes[..count]);
        self.received += count;
        if self.received == TYPE_BYTES
            && let Some(found) = self.found.take()
        {
            let is_settings = self.head[TYPE_BYTES - 1] == SETTINGS;
            let frame = if is_settings { FirstFrame::Settings } else { FirstFrame::Other };
            // A request that gave up needs no answer.
            let _ = found.send(frame);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstFrameStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if self.found.is_some() {
            let received = &buffer.filled()[before..];
            match received.is_empty() || read.is_err() {
                // The connection has ended.
                true => self.found = None,
                false => self.look_at(received),
            }
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstFrameStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn the_first_frame_is_told_by_its_type_in_pieces_of_any_size() {
        // Bytes of the server | first frame
        let rows: [(&[u8], Option<FirstFrame>); 5] = [
            (b"\0\0\x12\x04\0\0\0\0\0", Some(FirstFrame::Settings)),
            (b"\0\0\0\x04", Some(FirstFrame::Settings)),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", Some(FirstFrame::Other)),
            (b"\0\0\0", None),
            (b"", None),
        ];
        for (bytes, want) in rows {
            for piece in [1, 3, 64] {
                let (mut server, client) = tokio::io::duplex(piece);
                let (mut stream, first_frame) = FirstFrameStream::new(client);
                let server = tokio::spawn(async move { server.write_all(bytes).await });
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await.unwrap();
                server.await.unwrap().unwrap();
                assert_eq!((first_frame.await.ok(), &all[..]), (want, bytes), "{piece}");
            }
        }
    }
}
