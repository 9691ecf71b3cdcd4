//! The answer to one request: made at once where nothing waits, otherwise by a future that is as small as can be.
//!
//! A future is moved several times before it is first polled, so its size is time. Waiting for a body takes a few hundred
//! bytes; the rare answer that waits for a store has a box of its own.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT, HOST, HeaderValue};
use http::{Request, Response, StatusCode, Version, request};
use hyper::body::Incoming;

use super::allowance::Allowance;
use super::call_deadline::CallDeadline;
use super::connection::HttpProtocol;
use super::handler::{Handler, ReceivedRequest, RequestAdmission, RoutedRequest};
use super::request_body::{BodyError, RequestBody};
use super::response_body::{InFlightRequest, ResponseBody};
use crate::reply;

/// The future of an answer.
pub(super) enum Answering<H: Handler> {
    /// Made already; `None` once it was returned.
    Done(Option<Response<ResponseBody>>),
    /// Waits for the body; `None` once it has arrived.
    Receiving(Option<UnreceivedRequest<H>>),
    /// Waits for more than the body.
    Waiting(Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send>>),
}

impl<H: Handler> Answering<H> {
    /// Begins to answer a request.
    pub(super) fn begin(
        protocol: &Arc<HttpProtocol<H>>,
        answering: InFlightRequest,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Answering<H> {
        let (head, incoming) = request.into_parts();
        let allowance = Allowance::new(&protocol.body_allowance);
        let activity = answering.activity().clone();
        let body = RequestBody::new(incoming, protocol.timeouts.body, allowance, activity);
        let open = OpenRequest { answering, head, body, peer };
        if let Some(problem) = host_problem(&open.head) {
            return open.finish(protocol, reply::error(StatusCode::BAD_REQUEST, problem));
        }
        let handler = &protocol.handler;
        let admitted = catch_panic(|| handler.admit(&open.head, peer));
        match admitted.unwrap_or_else(|| RequestAdmission::Answered(Box::new(handler.panicked()))) {
            RequestAdmission::Answered(response) => open.finish(protocol, *response),
            RequestAdmission::Admitted(admitted) if admitted.body_bytes_max.is_some() => {
                Answering::Receiving(Some(UnreceivedRequest {
                    protocol: protocol.clone(),
                    open,
                    admitted,
                    deadline: CallDeadline::new(admitted.deadline),
                }))
            }
            RequestAdmission::Admitted(admitted) => {
                let deadline = CallDeadline::new(admitted.deadline);
                open.answer(protocol, admitted, Bytes::new(), deadline)
            }
        }
    }
}

impl<H: Handler> Future for Answering<H> {
    type Output = Result<Response<ResponseBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match this {
                Answering::Done(response) => {
                    return Poll::Ready(Ok(response
                        .take()
                        .expect("it is polled until it is ready")));
                }
                Answering::Waiting(answer) => return answer.as_mut().poll(context).map(Ok),
                Answering::Receiving(request) => {
                    let waiting = request.as_mut().expect("it is there until the body has arrived");
                    let received = ready!(waiting.poll_body(context));
                    let request = request.take().expect("it was there");
                    *this = request.answer(received);
                }
            }
        }
    }
}

/// A request whose body is arriving.
pub(super) struct UnreceivedRequest<H: Handler> {
    protocol: Arc<HttpProtocol<H>>,
    open: OpenRequest,
    admitted: RoutedRequest<H::Endpoint>,
    deadline: CallDeadline,
}

impl<H: Handler> UnreceivedRequest<H> {
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, BodyError>> {
        let bytes_max = self.admitted.body_bytes_max.unwrap_or_default();
        if let Poll::Ready(received) = self.open.body.poll_receive(context, bytes_max) {
            return Poll::Ready(received);
        }
        self.deadline.poll_passed(context).map(|()| Err(BodyError::DeadlinePassed))
    }

    fn answer(self, received: Result<Bytes, BodyError>) -> Answering<H> {
        let UnreceivedRequest { protocol, open, admitted, deadline } = self;
        match received {
            Ok(body) => open.answer(&protocol, admitted, body, deadline),
            Err(problem) => {
                let handler = &protocol.handler;
                let response = catch_panic(|| handler.unreceived(&admitted, &problem));
                open.finish(&protocol, response.unwrap_or_else(|| handler.panicked()))
            }
        }
    }
}

/// A request that is not answered yet.
struct OpenRequest {
    answering: InFlightRequest,
    head: request::Parts,
    body: RequestBody,
    peer: SocketAddr,
}

impl OpenRequest {
    fn received<'a>(&'a mut self, body: &'a Bytes) -> ReceivedRequest<'a> {
        let allowance = self.body.allowance();
        ReceivedRequest { head: &self.head, body, peer: self.peer, allowance }
    }

    /// Answers at once, or begins to wait.
    fn answer<H: Handler>(
        mut self,
        protocol: &Arc<HttpProtocol<H>>,
        admitted: RoutedRequest<H::Endpoint>,
        body: Bytes,
        deadline: CallDeadline,
    ) -> Answering<H> {
        let handler = &protocol.handler;
        let mut received = self.received(&body);
        let answered = catch_panic(|| handler.answer_at_once(admitted.endpoint, &mut received));
        match answered.unwrap_or_else(|| Some(handler.panicked())) {
            Some(response) => self.finish(protocol, response),
            None => {
                let protocol = protocol.clone();
                Answering::Waiting(Box::pin(self.wait(protocol, admitted, body, deadline)))
            }
        }
    }

    /// Answers a request that has to wait.
    async fn wait<H: Handler>(
        mut self,
        protocol: Arc<HttpProtocol<H>>,
        admitted: RoutedRequest<H::Endpoint>,
        body: Bytes,
        deadline: CallDeadline,
    ) -> Response<ResponseBody> {
        let handler = &protocol.handler;
        let response = {
            let mut answer = pin!(handler.answer_by(admitted.endpoint, self.received(&body)));
            let answer = poll_fn(|context| {
                let polled = catch_panic(|| answer.as_mut().poll(context));
                polled.unwrap_or_else(|| Poll::Ready(handler.panicked()))
            });
            let answered = deadline.within(answer).await;
            answered.unwrap_or_else(|| {
                let late = || handler.unreceived(&admitted, &BodyError::DeadlinePassed);
                catch_panic(late).unwrap_or_else(|| handler.panicked())
            })
        };
        drop(body);
        self.into_response(&protocol, response)
    }

    fn finish<H: Handler>(
        self,
        protocol: &HttpProtocol<H>,
        response: Response<ResponseBody>,
    ) -> Answering<H> {
        Answering::Done(Some(self.into_response(protocol, response)))
    }

    /// Completes the response, and ends the request.
    fn into_response<H: Handler>(
        self,
        protocol: &HttpProtocol<H>,
        mut response: Response<ResponseBody>,
    ) -> Response<ResponseBody> {
        let OpenRequest { answering, head, body, .. } = self;
        let (mut allowance, rest) = body.into_parts();
        if !allowance.try_resize(response.body().len()) {
            response = reply::no_room();
            allowance.release();
        }
        protocol.responses.count(response.status());
        if head.version == Version::HTTP_2 {
            // Dropping an incomplete body resets its stream, and many clients then discard the response. So the rest is
            // read in a task of its own, while the response is sent; there are at most as many tasks as streams. A client
            // that expects `100 Continue` has not sent anything.
            if rest.is_open() && !head.headers.contains_key(EXPECT) {
                tokio::spawn(rest.discard());
            }
        } else if protocol.stopping.load(Ordering::Relaxed) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.body_mut().hold_until_sent(answering, allowance);
        response
    }
}

/// Runs a step of an answer. `None` after a panic, which must end neither the connection nor the worker.
pub(crate) fn catch_panic<T>(step: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(step)).ok()
}

/// Error in the `Host` field (RFC 9112, section 3.2): if there are two, a proxy and this server may choose different
/// ones. HTTP/1.0 does not need it, and HTTP/2 has `:authority` instead.
fn host_problem(head: &request::Parts) -> Option<&'static str> {
    if head.version > Version::HTTP_11 {
        return None;
    }
    let mut hosts = head.headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if head.version == Version::HTTP_11 => {
            Some("An HTTP/1.1 request needs the header field `Host`.")
        }
        (_, Some(_)) => Some("A request has at most one header field `Host`."),
        _ => None,
    }
}
