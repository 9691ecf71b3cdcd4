//! HTTP/1.1 connections to upstreams.
//!
//! The task that serves the client also drives the connection to the upstream: hyper's `Connection` is polled by the
//! future that waits for the response, and then by the response's body. So a request wakes no other task, and a
//! connection that nobody polls is idle.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderValue, TE, TRANSFER_ENCODING};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection, Parts, SendRequest};
use hyper_util::rt::TokioIo;

use super::body::{BodyStreamError, OutgoingBody, UpstreamBody};
use super::connector::UpstreamStream;
use super::error::ForwardError;
use super::pool;
use super::registry::UpstreamServer;

/// Maximum bytes of the head of a response.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// A connection that no request uses.
pub(super) struct Http1Connection {
    sender: SendRequest<OutgoingBody>,
    driver: Connection<TokioIo<UpstreamStream>, OutgoingBody>,
}

/// The failure of a request, with the request if nothing of it was sent.
pub(super) struct SendFailure {
    pub(super) error: ForwardError,
    pub(super) unsent: Option<Request<OutgoingBody>>,
}

/// The response of an upstream.
pub(super) struct Http1Response {
    pub(super) response: Response<UpstreamBody>,
    /// The connection after a response 101, with the bytes that were read already.
    pub(super) tunnel: Option<Parts<TokioIo<UpstreamStream>>>,
}

impl Http1Connection {
    /// Speaks HTTP/1.1 on a new connection.
    pub(super) async fn open(stream: UpstreamStream) -> Result<Http1Connection, ForwardError> {
        let mut builder = Builder::new();
        builder.max_buf_size(HEAD_BYTES_MAX);
        let (sender, driver) = builder.handshake(TokioIo::new(stream)).await?;
        Ok(Http1Connection { sender, driver })
    }

    /// Returns true if the connection is open and ready for a request.
    pub(super) fn is_usable(&mut self, context: &mut Context<'_>) -> bool {
        self.driver.poll_without_shutdown(context).is_pending() && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of its response. Afterwards the connection goes back to the pool when the
    /// response's body has ended.
    pub(super) async fn send(
        mut self,
        server: &Arc<UpstreamServer>,
        mut request: Request<OutgoingBody>,
    ) -> Result<Http1Response, SendFailure> {
        complete_fields(&mut request, server);
        let mut answer = pin!(self.sender.try_send_request(request));
        let driver = &mut self.driver;
        let answered = poll_fn(|context| {
            let driven = driver.poll_without_shutdown(context);
            match answer.as_mut().poll(context) {
                Poll::Pending if driven.is_ready() => Poll::Ready(None),
                other => other.map(Some),
            }
        });
        let failure = |error| SendFailure { error, unsent: None };
        match answered.await {
            None => Err(failure(ForwardError::Reset)),
            Some(Err(mut failed)) => {
                let unsent = failed.take_message();
                Err(SendFailure { error: failed.into_error().into(), unsent })
            }
            Some(Ok(response)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                let mut driver = self.driver;
                let ended = poll_fn(|context| driver.poll_without_shutdown(context)).await;
                ended.map_err(|error| failure(error.into()))?;
                let response = response.map(|_| UpstreamBody::Whole(Bytes::new()));
                Ok(Http1Response { response, tunnel: Some(driver.into_parts()) })
            }
            Some(Ok(response)) => {
                let (head, incoming) = response.into_parts();
                let exchange = Some((self, server.clone()));
                let mut body = Http1Body { incoming, exchange };
                body.finish_if_ended(None);
                let body = match body.exchange {
                    Some(_) => UpstreamBody::Http1(body),
                    None => UpstreamBody::Whole(Bytes::new()),
                };
                Ok(Http1Response { response: Response::from_parts(head, body), tunnel: None })
            }
        }
    }
}

/// Adds the fields that an HTTP/1.1 connection needs.
fn complete_fields(request: &mut Request<OutgoingBody>, server: &UpstreamServer) {
    // hyper sends no body with GET unless it is told that there is one.
    let is_chunked = request.body().size_hint().exact().is_none();
    let fields = request.headers_mut();
    if is_chunked && !fields.contains_key(CONTENT_LENGTH) {
        fields.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if !fields.contains_key(HOST) {
        fields.insert(HOST, server.host.clone());
    }
    if fields.contains_key(TE) && !fields.contains_key(CONNECTION) {
        fields.insert(CONNECTION, HeaderValue::from_static("te"));
    }
}

/// The body of a response, which drives the connection that it arrives on.
pub(crate) struct Http1Body {
    incoming: Incoming,
    /// The connection and its server; `None` once the body has ended.
    exchange: Option<(Http1Connection, Arc<UpstreamServer>)>,
}

impl Http1Body {
    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyStreamError>>> {
        let mut frame = Pin::new(&mut self.incoming).poll_frame(context);
        if frame.is_pending()
            && let Some((connection, _)) = &mut self.exchange
        {
            // This poll has asked for more; the driver reads it.
            let ended = connection.driver.poll_without_shutdown(context).is_ready();
            frame = Pin::new(&mut self.incoming).poll_frame(context);
            if ended {
                self.exchange = None;
            }
        }
        match &frame {
            Poll::Ready(Some(Ok(_))) => self.finish_if_ended(Some(context)),
            Poll::Ready(None) => self.finish(Some(context)),
            Poll::Ready(Some(Err(_))) => self.exchange = None,
            Poll::Pending => {}
        }
        frame.map_err(Into::into)
    }

    fn finish_if_ended(&mut self, context: Option<&mut Context<'_>>) {
        if self.incoming.is_end_stream() {
            self.finish(context);
        }
    }

    /// Gives the connection back to the pool, unless the request is still being sent or the connection closes.
    fn finish(&mut self, context: Option<&mut Context<'_>>) {
        let Some((mut connection, server)) = self.exchange.take() else { return };
        let mut nobody = Context::from_waker(std::task::Waker::noop());
        // The last step of the exchange. Nobody needs to be woken for it: an idle connection is polled when it is taken.
        if connection.is_usable(context.unwrap_or(&mut nobody)) {
            pool::put(&server, connection);
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
