//! `RequestBodyLayer`: reads the bodies of requests whose cost is estimated by them, before the gate decides.
//!
//! It goes around the [`RateLimitLayer`](crate::RateLimitLayer) that made it. Requests that no such rule applies to pass
//! through untouched. Others wait until their body has been read, which the server must bound in time, and go
//! on with the same frames. A body that is too long is not read to its end, so the estimate falls back, and the rest
//! of it streams. Bodies under a rule with `cost: bytes` are charged and paced as they stream.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{Request, request};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::body_pace::RequestPace;
use crate::gate::RequestBodyReader;
use crate::layer::LayerConfig;

/// The most bytes of a body that is read.
pub const REQUEST_BODY_BYTES_MAX: u64 = 256 << 10;

/// The most frames of a body that is read: each takes memory of its own, however short it is.
const FRAMES_MAX: usize = 1_024;

/// The most pieces of one frame; the body is not read if a frame has more.
const PIECES_MAX: usize = 16;

/// Reads request bodies for a rate limit layer; made by
/// [`RateLimitLayer::request_body`](crate::RateLimitLayer::request_body).
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate::{Limit, Limiter};
/// # use tollgate_tower::{KeyedGate, RateLimitLayer};
/// use tower::{Layer, service_fn};
///
/// # let limit = Limit::per_minute(60).name("api").build()?;
/// # let gate = KeyedGate::new(Arc::new(Limiter::with_capacity(1_000)), [limit])?;
/// let limits = RateLimitLayer::new(gate); // usually a gatekeeper with rules
/// let service = limits.request_body().layer(limits.layer(service_fn(handler)));
/// # async fn handler(_: http::Request<()>) -> Result<http::Response<String>, String> { Ok(http::Response::default()) }
/// # drop(service);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RequestBodyLayer {
    config: Arc<LayerConfig>,
}

impl RequestBodyLayer {
    pub(crate) fn new(config: Arc<LayerConfig>) -> RequestBodyLayer {
        RequestBodyLayer { config }
    }
}

impl<S> Layer<S> for RequestBodyLayer {
    type Service = RequestBodyService<S>;

    fn layer(&self, inner: S) -> RequestBodyService<S> {
        RequestBodyService { inner, config: Arc::clone(&self.config) }
    }
}

/// A service that reads request bodies; made by [`RequestBodyLayer`].
#[derive(Clone, Debug)]
pub struct RequestBodyService<S> {
    inner: S,
    config: Arc<LayerConfig>,
}

impl<S, B> Service<Request<B>> for RequestBodyService<S>
where
    S: Service<Request<ReplayedBody<B>>> + Clone,
    B: Body,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = RequestBodyFuture<S, B, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let (has_body, is_readable) = {
            let body = request.body();
            (!body.is_end_stream(), body.size_hint().lower() <= REQUEST_BODY_BYTES_MAX)
        };
        let pace = (has_body && self.config.paces_bodies()).then(|| {
            let pace = Box::new(RequestPace::new(&self.config));
            request.extensions_mut().insert(pace.slot());
            pace
        });
        if !has_body || !is_readable {
            let future = self.inner.call(request.map(|body| ReplayedBody::direct(body, pace)));
            return RequestBodyFuture { state: ReadingState::Calling { future } };
        }
        let (head, body) = request.into_parts();
        let (head, reader) = self.reader(head);
        let Some(reader) = reader else {
            let body = ReplayedBody::direct(body, pace);
            let future = self.inner.call(Request::from_parts(head, body));
            return RequestBodyFuture { state: ReadingState::Calling { future } };
        };
        let clone = self.inner.clone();
        let reading = Box::new(ReadingRequest {
            // The service that `poll_ready` found ready; a clone of it may not be.
            inner: std::mem::replace(&mut self.inner, clone),
            head,
            body: BufferedBody::new(body),
            reader,
            pace,
        });
        RequestBodyFuture { state: ReadingState::Reading { reading: Some(reading) } }
    }
}

impl<S> RequestBodyService<S> {
    /// A reader of the body, if it is needed.
    fn reader(&self, head: request::Parts) -> (request::Parts, Option<Box<dyn RequestBodyReader>>) {
        if self.config.exempts(&head) {
            return (head, None);
        }
        let question = self.config.gate_request(head);
        let reader = self.config.request_body_reader(&question);
        (question.head, reader)
    }
}

pin_project! {
    /// The response to a request whose body may have to be read first.
    pub struct RequestBodyFuture<S, B: Body, F> {
        #[pin]
        state: ReadingState<S, B, F>,
    }
}

pin_project! {
    #[project = ReadingProjected]
    enum ReadingState<S, B: Body, F> {
        Reading { reading: Option<Box<ReadingRequest<S, B>>> },
        Calling { #[pin] future: F },
    }
}

/// A request whose body is being read.
struct ReadingRequest<S, B: Body> {
    inner: S,
    head: request::Parts,
    body: BufferedBody<B>,
    reader: Box<dyn RequestBodyReader>,
    pace: Option<Box<RequestPace>>,
}

impl<S, B> Future for RequestBodyFuture<S, B, S::Future>
where
    S: Service<Request<ReplayedBody<B>>>,
    B: Body,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                ReadingProjected::Calling { future } => return future.poll(cx),
                ReadingProjected::Reading { reading } => {
                    let request = reading.as_mut().expect("it is taken once, when it is read");
                    let is_whole = ready!(request.body.poll_read(&mut *request.reader, cx));
                    let request = reading.take().expect("it was there just now");
                    let ReadingRequest { mut inner, mut head, body, reader, pace } = *request;
                    if is_whole {
                        reader.finish(&mut head.extensions);
                    }
                    let body = ReplayedBody { kind: ReplayKind::Buffered { body }, pace };
                    let future = inner.call(Request::from_parts(head, body));
                    state.set(ReadingState::Calling { future });
                }
            }
        }
    }
}

impl<S, B: Body, F> fmt::Debug for RequestBodyFuture<S, B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBodyFuture").finish_non_exhaustive()
    }
}

/// A body of which some frames have been read.
struct BufferedBody<B: Body> {
    /// The frames read. Bound: [`FRAMES_MAX`], and in bytes [`REQUEST_BODY_BYTES_MAX`] and one frame.
    frames: VecDeque<Frame<B::Data>>,
    /// Bytes of these frames.
    bytes: u64,
    /// The error after these frames.
    error: Option<B::Error>,
    /// The rest of the body; `None` after its end.
    rest: Option<Pin<Box<B>>>,
}

/// The next frame of a body.
pub(crate) type PolledFrame<B> = Poll<Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>>;

impl<B: Body> BufferedBody<B> {
    fn new(body: B) -> BufferedBody<B> {
        BufferedBody { frames: VecDeque::new(), bytes: 0, error: None, rest: Some(Box::pin(body)) }
    }

    /// Reads the body to its end. Returns false if it is too long, or failed.
    fn poll_read(
        &mut self,
        reader: &mut dyn RequestBodyReader,
        cx: &mut Context<'_>,
    ) -> Poll<bool> {
        while let Some(rest) = &mut self.rest {
            match ready!(rest.as_mut().poll_frame(cx)) {
                None => self.rest = None,
                Some(Err(error)) => {
                    (self.error, self.rest) = (Some(error), None);
                    return Poll::Ready(false);
                }
                Some(Ok(frame)) => {
                    let is_read = frame.data_ref().is_none_or(|data| feed(reader, data));
                    self.bytes += frame_bytes(&frame);
                    self.frames.push_back(frame);
                    let is_too_long =
                        self.bytes > REQUEST_BODY_BYTES_MAX || self.frames.len() >= FRAMES_MAX;
                    if !is_read || is_too_long {
                        return Poll::Ready(false);
                    }
                    if rest.is_end_stream() {
                        self.rest = None;
                    }
                }
            }
        }
        Poll::Ready(true)
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PolledFrame<B> {
        if let Some(frame) = self.frames.pop_front() {
            self.bytes -= frame_bytes(&frame);
            return Poll::Ready(Some(Ok(frame)));
        }
        if let Some(error) = self.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        self.rest.as_mut().map_or(Poll::Ready(None), |rest| rest.as_mut().poll_frame(cx))
    }
}

/// Reads all of the data; false if it has too many pieces.
fn feed(reader: &mut dyn RequestBodyReader, data: &impl Buf) -> bool {
    let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
    let pieces_len = data.chunks_vectored(&mut pieces);
    pieces[..pieces_len].iter().for_each(|piece| reader.feed(piece));
    pieces[..pieces_len].iter().map(|piece| piece.len()).sum::<usize>() == data.remaining()
}

fn frame_bytes<D: Buf>(frame: &Frame<D>) -> u64 {
    frame.data_ref().map_or(0, |data| data.remaining() as u64)
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
    fn direct(body: B, pace: Option<Box<RequestPace>>) -> ReplayedBody<B> {
        ReplayedBody { kind: ReplayKind::Direct { body }, pace }
    }

    fn held_bytes(&self) -> u64 {
        self.pace.as_ref().map_or(0, |pace| pace.held_bytes())
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

    fn is_end_stream(&self) -> bool {
        if self.held_bytes() > 0 {
            return false;
        }
        match &self.kind {
            ReplayKind::Direct { body } => body.is_end_stream(),
            ReplayKind::Buffered { body: BufferedBody { frames, error, rest, .. } } => {
                let is_at_end = rest.as_ref().is_none_or(|rest| rest.is_end_stream());
                frames.is_empty() && error.is_none() && is_at_end
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
