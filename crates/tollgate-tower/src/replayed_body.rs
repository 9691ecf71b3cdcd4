//! `ReplayedBody`: the body of a request that may have been read before the decision, on its way to the inner service.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::body_host::{BodyReadEnd, BodyReadFailure, RequestBodyMemory};
use crate::body_pace::RequestPace;
use crate::gate::RequestBodyReader;

/// The most bytes of a body that are read before the decision.
pub const REQUEST_BODY_BYTES_MAX: u64 = 256 << 10;

/// The least memory that is taken for bytes of a body, so that many short frames take few pieces.
const PIECE_BYTES_MIN: usize = 1 << 10;

/// The most memory that is taken for bytes that have yet to arrive.
const PIECE_BYTES_AHEAD_MAX: usize = 16 << 10;

/// A body of which some bytes have been read into memory of its own: frames of the server may keep buffers that are much
/// larger.
pub(crate) struct BufferedBody<B: Body> {
    /// The bytes read. Bound: as many as the memory admits, and one frame.
    pieces: VecDeque<BytesMut>,
    /// Number of these bytes.
    bytes: u64,
    /// The trailers, if they were read.
    trailers: Option<Frame<B::Data>>,
    /// The rest of the body; `None` after its end.
    rest: Option<Pin<Box<B>>>,
    memory: Option<Box<dyn RequestBodyMemory>>,
}

/// The next frame of a body.
pub(crate) type PolledFrame<B> = Poll<Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>>;

impl<B: Body> BufferedBody<B> {
    pub(crate) fn new(body: B, memory: Option<Box<dyn RequestBodyMemory>>) -> BufferedBody<B> {
        let (pieces, rest) = (VecDeque::new(), Some(Box::pin(body)));
        BufferedBody { pieces, bytes: 0, trailers: None, rest, memory }
    }

    /// The most bytes that are read.
    fn bytes_max(&self) -> u64 {
        let granted = self.memory.as_ref().map(|memory| memory.bytes_max());
        granted.unwrap_or(REQUEST_BODY_BYTES_MAX).min(REQUEST_BODY_BYTES_MAX)
    }

    /// Returns true if the body states that it is too long to be read.
    pub(crate) fn states_too_long(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.size_hint().lower() > self.bytes_max())
    }

    /// Reads the body to its end, or as far as it is needed.
    pub(crate) fn poll_read(
        &mut self,
        reader: &mut dyn RequestBodyReader,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BodyReadEnd, BodyReadFailure>> {
        let end = ready!(self.poll_read_frames(reader, cx));
        if let Some(memory) = &mut self.memory {
            memory.end_reading();
        }
        Poll::Ready(end)
    }

    fn poll_read_frames(
        &mut self,
        reader: &mut dyn RequestBodyReader,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BodyReadEnd, BodyReadFailure>> {
        while let Some(rest) = &mut self.rest {
            if let Some(memory) = &mut self.memory {
                ready!(memory.poll_room(cx))?;
            }
            match ready!(rest.as_mut().poll_frame(cx)) {
                None => self.rest = None,
                Some(Err(_)) => return Poll::Ready(Err(BodyReadFailure::Missing)),
                Some(Ok(frame)) => {
                    if rest.is_end_stream() {
                        self.rest = None;
                    }
                    match frame.into_data() {
                        Ok(data) => self.keep(data, reader),
                        Err(trailers) => self.trailers = Some(trailers),
                    }
                    if self.bytes > self.bytes_max() {
                        return Poll::Ready(Ok(BodyReadEnd::TooLong));
                    }
                    if reader.needs_no_more() {
                        return Poll::Ready(Ok(BodyReadEnd::Skipped));
                    }
                }
            }
        }
        Poll::Ready(Ok(BodyReadEnd::Complete))
    }

    /// Reads the data of a frame, and copies it.
    fn keep(&mut self, mut data: impl Buf, reader: &mut dyn RequestBodyReader) {
        self.bytes += data.remaining() as u64;
        while data.has_remaining() {
            let chunk = data.chunk();
            let room = self.pieces.back().map_or(0, |piece| piece.capacity() - piece.len());
            if room == 0 {
                self.add_piece(data.remaining());
                continue;
            }
            let length = chunk.len().min(room);
            reader.feed(&chunk[..length]);
            self.pieces.back_mut().expect("it has room").put_slice(&chunk[..length]);
            data.advance(length);
        }
    }

    /// Takes memory for so many bytes, and for some of those that the body says are still to come.
    fn add_piece(&mut self, bytes: usize) {
        let stated = self.rest.as_ref().and_then(|rest| rest.size_hint().exact());
        let ahead = stated.map_or(PIECE_BYTES_AHEAD_MAX, |stated| {
            usize::try_from(stated).unwrap_or(usize::MAX).min(PIECE_BYTES_AHEAD_MAX)
        });
        let least = if self.pieces.is_empty() { PIECE_BYTES_MIN } else { PIECE_BYTES_AHEAD_MAX };
        let piece = BytesMut::with_capacity(bytes.max(least.min(bytes.saturating_add(ahead))));
        if let Some(memory) = &mut self.memory {
            memory.hold(piece.capacity());
        }
        self.pieces.push_back(piece);
    }

    fn next_piece(&mut self) -> Option<Bytes> {
        let piece = self.pieces.pop_front()?;
        self.bytes -= piece.len() as u64;
        if let Some(memory) = &mut self.memory {
            memory.release(piece.capacity());
        }
        Some(piece.freeze())
    }
}

impl<B: Body> BufferedBody<B>
where
    B::Data: From<Bytes>,
{
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PolledFrame<B> {
        if let Some(piece) = self.next_piece() {
            return Poll::Ready(Some(Ok(Frame::data(piece.into()))));
        }
        // Nothing is held any more.
        self.memory = None;
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(trailers)));
        }
        self.rest.as_mut().map_or(Poll::Ready(None), |rest| rest.as_mut().poll_frame(cx))
    }
}

pin_project! {
    /// The body of a request behind a [`RequestBodyLayer`]: the frames that were read, and then the rest.
    pub struct ReplayedBody<B: Body> {
        #[pin]
        kind: ReplayKind<B>,
        // The pace of a body whose bytes may be charged.
        pace: Option<Box<RequestPace>>,
    }
}

pin_project! {
    #[project = ReplayProjected]
    enum ReplayKind<B: Body> {
        Direct { #[pin] body: B },
        Buffered { body: BufferedBody<B> },
    }
}

impl<B: Body> ReplayedBody<B> {
    pub(crate) fn buffered(
        body: BufferedBody<B>,
        pace: Option<Box<RequestPace>>,
    ) -> ReplayedBody<B> {
        ReplayedBody { kind: ReplayKind::Buffered { body }, pace }
    }

    pub(crate) fn direct(body: B, pace: Option<Box<RequestPace>>) -> ReplayedBody<B> {
        ReplayedBody { kind: ReplayKind::Direct { body }, pace }
    }

    fn held_bytes(&self) -> u64 {
        self.pace.as_ref().map_or(0, |pace| pace.held_bytes())
    }
}

impl<B: Body> ReplayedBody<B>
where
    B::Data: From<Bytes>,
{
    /// The next frame at the pace of the rules that count its bytes.
    fn poll_paced(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<B> {
        loop {
            let pace = self.as_mut().project().pace.as_mut().and_then(|pace| pace.pace());
            if let Some(pace) = pace
                && let Some(piece) = ready!(pace.poll_piece(cx))
            {
                return Poll::Ready(Some(Ok(Frame::data(piece.into()))));
            }
            let frame = ready!(self.as_mut().poll_unpaced(cx));
            let pace = self.as_mut().project().pace.as_mut().and_then(|pace| pace.pace());
            let Some(pace) = pace else { return Poll::Ready(frame) };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(mut data))) => pace.hold(&mut data),
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }

    fn poll_unpaced(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<B> {
        match self.project().kind.project() {
            ReplayProjected::Direct { body } => body.poll_frame(cx),
            ReplayProjected::Buffered { body } => body.poll_frame(cx),
        }
    }
}

impl<B: Body> Body for ReplayedBody<B>
where
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        if self.pace.is_none() {
            return self.poll_unpaced(cx);
        }
        let polled = self.as_mut().poll_paced(cx);
        let is_complete = match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => self.is_end_stream(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        if is_complete && let Some(pace) = self.project().pace {
            pace.end(true);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        if self.held_bytes() > 0 {
            return false;
        }
        match &self.kind {
            ReplayKind::Direct { body } => body.is_end_stream(),
            ReplayKind::Buffered { body: BufferedBody { pieces, trailers, rest, .. } } => {
                let is_at_end = rest.as_ref().is_none_or(|rest| rest.is_end_stream());
                pieces.is_empty() && trailers.is_none() && is_at_end
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        let (bytes, rest) = match &self.kind {
            ReplayKind::Direct { body } => (0, body.size_hint()),
            ReplayKind::Buffered { body } => {
                let rest = body.rest.as_ref();
                (body.bytes, rest.map_or(SizeHint::with_exact(0), |rest| rest.size_hint()))
            }
        };
        hint_with(rest, bytes + self.held_bytes())
    }
}

/// The size of a body, of which so many bytes more are still to come.
pub(crate) fn hint_with(rest: SizeHint, bytes: u64) -> SizeHint {
    let mut hint = SizeHint::new();
    hint.set_lower(rest.lower().saturating_add(bytes));
    if let Some(upper) = rest.upper() {
        hint.set_upper(upper.saturating_add(bytes));
    }
    hint
}

impl<B: Body> fmt::Debug for ReplayedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayedBody").finish_non_exhaustive()
    }
}
