//! The forwarder: sends a request to one server of an upstream and returns the head of its response.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use http::{Request, Response};
use hyper::client::conn::http1::Parts;
use hyper_util::rt::TokioIo;

use super::body::{OutgoingBody, UpstreamBody};
use super::connector::{self, UpstreamStream};
use super::error::ForwardError;
use super::http1::{Http1Connection, Http1Response};
use super::pool;
use super::registry::{UpstreamServer, UpstreamState};

/// Sends requests to upstreams. This is the seam: nobody else knows how upstreams are reached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Forwarder;

/// The response of an upstream, and the connection if it switched protocols.
pub(crate) struct ForwardedResponse {
    pub(crate) response: Response<UpstreamBody>,
    pub(crate) tunnel: Option<Parts<TokioIo<UpstreamStream>>>,
}

impl Forwarder {
    /// Sends a request and waits for the head of its response.
    pub(crate) async fn forward(
        self,
        upstream: &UpstreamState,
        request: Request<OutgoingBody>,
    ) -> Result<ForwardedResponse, ForwardError> {
        let server = upstream.servers.first().ok_or(ForwardError::ConnectFailed)?;
        let connection = connection_to(upstream, server).await?;
        let answer = connection.send(server, request);
        let answer = tokio::time::timeout(upstream.settings.response_timeout, answer).await;
        let answer = answer.map_err(|_| ForwardError::ResponseTimeout)?;
        let Http1Response { response, tunnel } = answer.map_err(|failure| failure.error)?;
        Ok(ForwardedResponse { response, tunnel })
    }
}

async fn connection_to(
    upstream: &UpstreamState,
    server: &Arc<UpstreamServer>,
) -> Result<Http1Connection, ForwardError> {
    if let Some(idle) = poll_fn(|context| Poll::Ready(pool::take(server, context))).await {
        return Ok(idle);
    }
    let opened =
        tokio::time::timeout(upstream.settings.connect_timeout, connector::connect(server));
    let stream = opened.await.map_err(|_| ForwardError::ConnectTimeout)?;
    Http1Connection::open(stream.map_err(|_| ForwardError::ConnectFailed)?).await
}
