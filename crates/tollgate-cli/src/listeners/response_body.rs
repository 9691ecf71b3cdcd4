//! The body of a response, with the guards that it holds until it is sent.
//!
//! A peer can send requests on all its streams and read none of the responses. So a response keeps the allowance of its
//! request until its last byte has left, and the activity of the connection counts it as unsent. A body that is made while
//! it is sent keeps its request open, and each of its chunks counts as unsent on its own.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::{HeaderMap, Version};
use http_body::{Frame, SizeHint};

use super::allowance::Allowance;
use super::watchdog::ConnectionActivity;

/// Makes the chunks of a body while it is sent. It is asked for one only when the connection has room to send it.
pub(crate) trait ChunkSource: Send {
    /// The next chunk; `None` at the end of the body.
    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>>;
}

/// The body of a response: whole, or made while it is sent.
#[derive(Default)]
pub(crate) struct ResponseBody {
    data: ResponseData,
    /// Trailers, for gRPC.
    trailers: Option<HeaderMap>,
    chunks: Option<Box<StreamedChunks>>,
}

/// A body that is made while it is sent.
struct StreamedChunks {
    source: Box<dyn ChunkSource>,
    /// The request, which is open as long as its body.
    request: Option<(InFlightRequest, Allowance)>,
}

impl ResponseBody {
    /// A body with trailers.
    pub(crate) fn with_trailers(data: Bytes, trailers: HeaderMap) -> ResponseBody {
        ResponseBody { trailers: Some(trailers), ..ResponseBody::from(data) }
    }

    /// A body that is made while it is sent.
    pub(crate) fn streamed(source: Box<dyn ChunkSource>) -> ResponseBody {
        let chunks = Box::new(StreamedChunks { source, request: None });
        ResponseBody { chunks: Some(chunks), ..ResponseBody::default() }
    }

    /// The unsent bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data.bytes
    }

    /// Number of unsent bytes.
    pub(super) fn len(&self) -> usize {
        self.data.bytes.len()
    }

    /// Holds these guards until the last byte has left, or the response is dropped.
    pub(super) fn hold_until_sent(&mut self, mut answering: InFlightRequest, allowance: Allowance) {
        if let Some(chunks) = &mut self.chunks {
            chunks.request = Some((answering, allowance));
        } else if self.len() > 0 {
            answering.reply_queued();
            self.data._guard = SendGuard::Reply(answering, allowance);
        }
    }
}

impl<T: Into<Bytes>> From<T> for ResponseBody {
    fn from(bytes: T) -> ResponseBody {
        let data = ResponseData { bytes: bytes.into(), _guard: SendGuard::None };
        ResponseBody { data, ..ResponseBody::default() }
    }
}

impl http_body::Body for ResponseBody {
    type Data = ResponseData;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<ResponseData>, Infallible>>> {
        if self.len() > 0 {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.data)))));
        }
        if let Some(chunks) = &mut self.chunks {
            return chunks.poll_data(context).map(|data| data.map(|data| Ok(Frame::data(data))));
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.len() == 0 && self.trailers.is_none() && self.chunks.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::with_exact(self.len() as u64);
        if self.trailers.is_some() || self.chunks.is_some() {
            // No `Content-Length`: some peers would take it for the end and miss the trailers.
            hint = SizeHint::default();
        }
        hint
    }
}

impl StreamedChunks {
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<ResponseData>> {
        self.source.poll_chunk(context).map(|chunk| {
            let request = self.request.as_ref();
            let guard = request.map_or(SendGuard::None, |(request, _)| request.chunk_queued());
            chunk.map(|bytes| ResponseData { bytes, _guard: guard })
        })
    }
}

/// The bytes of a body, here or in hyper's send queue.
#[derive(Default)]
pub(crate) struct ResponseData {
    bytes: Bytes,
    _guard: SendGuard,
}

/// Held until bytes have left.
#[derive(Default)]
enum SendGuard {
    #[default]
    None,
    /// Request of a whole reply, and the memory that the reply may take.
    Reply(
        #[expect(dead_code, reason = "held")] InFlightRequest,
        #[expect(dead_code, reason = "held")] Allowance,
    ),
    /// Chunk of a body that is made while it is sent.
    Chunk(#[expect(dead_code, reason = "held")] UnsentChunk),
}

/// A chunk that is not sent yet. The watchdog closes a connection on which one waits for too long.
struct UnsentChunk {
    activity: Arc<ConnectionActivity>,
    /// Period in which it began to wait.
    waiting_since: usize,
}

impl Drop for UnsentChunk {
    fn drop(&mut self) {
        self.activity.reply_sent(self.waiting_since);
    }
}

impl Buf for ResponseData {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

/// A request that is being answered, or whose response is not sent yet. Dropped also when the peer gives up.
pub(crate) struct InFlightRequest {
    activity: Arc<ConnectionActivity>,
    /// Period in which its response began to wait.
    waiting_since: Option<usize>,
}

impl InFlightRequest {
    pub(crate) fn begin(activity: &Arc<ConnectionActivity>, version: Version) -> InFlightRequest {
        activity.request_started(version == Version::HTTP_2);
        InFlightRequest { activity: activity.clone(), waiting_since: None }
    }

    /// Activity of the connection.
    pub(crate) fn activity(&self) -> &Arc<ConnectionActivity> {
        &self.activity
    }

    /// Counts a chunk of its response as unsent.
    fn chunk_queued(&self) -> SendGuard {
        let activity = self.activity.clone();
        let waiting_since = activity.reply_queued();
        SendGuard::Chunk(UnsentChunk { activity, waiting_since })
    }

    fn reply_queued(&mut self) {
        self.waiting_since = Some(self.activity.reply_queued());
        self.activity.request_ended();
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        match self.waiting_since {
            Some(period) => self.activity.reply_sent(period),
            None => self.activity.request_ended(),
        }
    }
}
