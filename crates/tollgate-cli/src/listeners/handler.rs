//! The seam between HTTP connections and what a listener answers.
//!
//! A request takes up to three steps: it is admitted by its head, its body arrives if its endpoint reads one, and it is
//! answered. Only the body and a store that has to be awaited can make it wait, so the other steps are plain functions.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, request};

use super::allowance::Allowance;
use super::fast_lane::plain_request::PlainRequest;
use super::request_body::BodyError;
use super::response_body::ResponseBody;
use crate::reply::HttpReply;

/// Answers the requests of a listener.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Maximum concurrent requests on an HTTP/2 connection.
    const STREAMS_MAX: u32 = 100;

    /// HTTP versions offered in the TLS handshake, the preferred one first.
    const VERSIONS: &'static [&'static str] = &["h2", "http/1.1"];

    /// Endpoint of an admitted request.
    type Endpoint: Copy + Send + Sync + Unpin;

    /// Checks the head of a request and finds its endpoint.
    fn admit(&self, head: &request::Parts, peer: SocketAddr) -> RequestAdmission<Self::Endpoint>;

    /// Answers a request without waiting; `None` if it has to wait. Errors are responses too.
    fn answer_at_once(
        &self,
        endpoint: Self::Endpoint,
        request: &mut ReceivedRequest<'_>,
    ) -> Option<Response<ResponseBody>>;

    /// Returns true if plain requests are to be offered to [`answer_plain`](Handler::answer_plain).
    fn has_fast_lane(&self) -> bool {
        false
    }

    /// Answers a plain request in the fast lane. `None` leaves it to the other methods: then nothing has been done.
    fn answer_plain(&self, _: &PlainRequest<'_, '_>, _: SocketAddr) -> Option<HttpReply> {
        None
    }

    /// Answers a request that [`answer_at_once`](Handler::answer_at_once) did not answer.
    fn answer_by(
        &self,
        endpoint: Self::Endpoint,
        request: ReceivedRequest<'_>,
    ) -> impl Future<Output = Response<ResponseBody>> + Send;

    /// The response if the body does not arrive, or the deadline passes.
    fn unreceived(
        &self,
        admitted: &RoutedRequest<Self::Endpoint>,
        problem: &BodyError,
    ) -> Response<ResponseBody>;

    /// The response after a panic, which is a bug.
    fn panicked(&self) -> Response<ResponseBody>;
}

/// Result of checking the head of a request.
pub(crate) enum RequestAdmission<E> {
    /// Answered already.
    Answered(Box<Response<ResponseBody>>),
    /// To be answered by its endpoint.
    Admitted(RoutedRequest<E>),
}

/// An admitted request.
#[derive(Clone, Copy)]
pub(crate) struct RoutedRequest<E> {
    pub(crate) endpoint: E,
    /// Maximum bytes of the body; `None` if it is not read.
    pub(crate) body_bytes_max: Option<usize>,
    /// Time in which the client wants the answer.
    pub(crate) deadline: Option<Duration>,
}

/// A request with its body.
pub(crate) struct ReceivedRequest<'a> {
    pub(crate) head: &'a request::Parts,
    /// The body; empty if the endpoint does not read it.
    pub(crate) body: &'a Bytes,
    pub(crate) peer: SocketAddr,
    /// Memory budget of the body, then of the reply.
    pub(super) allowance: &'a mut Allowance,
}

impl ReceivedRequest<'_> {
    /// Returns true if there is room for a reply of about this many bytes. Called before anything is charged, because a
    /// reply without room is replaced by an error.
    pub(crate) fn has_room_for(&mut self, reply_bytes: usize) -> bool {
        self.allowance.try_cover(reply_bytes)
    }
}
