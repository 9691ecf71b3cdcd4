//! The forwarder: sends a request to one server of an upstream and returns the head of its response.

use std::sync::Arc;

use http::{Request, Response};
use hyper::upgrade::OnUpgrade;

use super::body::{OutgoingBody, UpstreamBody};
use super::connector;
use super::error::ForwardError;
use super::http1::Http1Connection;
use super::pool;
use super::registry::{UpstreamServer, UpstreamState};

/// Sends requests to upstreams. This is the seam: nobody else knows how upstreams are reached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Forwarder;

/// The response of an upstream, and the connection if it switched protocols.
pub(crate) struct ForwardedResponse {
    pub(crate) response: Response<UpstreamBody>,
    /// The other end of the tunnel, and its connection, which must be kept until the tunnel ends.
    pub(crate) tunnel: Option<(OnUpgrade, Http1Connection)>,
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
        let answer = connection.send(request);
        let answer = tokio::time::timeout(upstream.settings.response_timeout, answer).await;
        answer.map_err(|_| ForwardError::ResponseTimeout)?.map_err(|failure| failure.error)
    }
}

async fn connection_to(
    upstream: &UpstreamState,
    server: &Arc<UpstreamServer>,
) -> Result<Http1Connection, ForwardError> {
    while let Some(mut idle) = pool::take(server) {
        if idle.is_usable().await {
            return Ok(idle);
        }
    }
    let opened =
        tokio::time::timeout(upstream.settings.connect_timeout, connector::connect(server));
    let stream = opened.await.map_err(|_| ForwardError::ConnectTimeout)?;
    Http1Connection::open(stream.map_err(|_| ForwardError::ConnectFailed)?, server).await
}
