//! One connection of a load, with one request in flight.

use std::net::SocketAddr;

use http::HeaderValue;
use tokio::net::TcpStream;

use super::grpc_connection::GrpcLoadConnection;
use super::http_connection::HttpLoadConnection;
use super::record::LoadOutcome;
use super::request::LoadRequest;
use super::resp_connection::RespLoadConnection;
use super::target::LoadTarget;

/// A connection in one of the protocols.
pub(super) enum BenchConnection {
    Http(HttpLoadConnection),
    Resp(RespLoadConnection),
    Grpc(GrpcLoadConnection),
}

/// Everything that a connection needs to know.
#[derive(Clone, Debug)]
pub(super) struct LoadPeer {
    pub(super) target: LoadTarget,
    pub(super) address: SocketAddr,
    pub(super) request: LoadRequest,
    /// The value of the `authorization` header field; its `Debug` does not show it.
    pub(super) authorization: Option<HeaderValue>,
}

impl LoadPeer {
    /// A connection to the address.
    pub(super) async fn connect(&self) -> Result<TcpStream, String> {
        let stream = TcpStream::connect(self.address).await;
        let stream = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
        stream.map_err(|error| error.to_string())
    }
}

impl BenchConnection {
    /// Connects; the error says why it did not work.
    pub(super) async fn open(peer: &LoadPeer) -> Result<BenchConnection, String> {
        match &peer.request {
            LoadRequest::Http(request) => {
                let opened = HttpLoadConnection::open(peer, request.clone()).await;
                opened.map(BenchConnection::Http)
            }
            LoadRequest::Resp(arguments) => {
                let opened = RespLoadConnection::open(peer, arguments.clone()).await;
                opened.map(BenchConnection::Resp)
            }
            LoadRequest::Grpc(request) => {
                let opened = GrpcLoadConnection::open(peer, request.clone()).await;
                opened.map(BenchConnection::Grpc)
            }
        }
    }

    /// Returns false if the server has closed the connection between two requests, which is not an error.
    pub(super) async fn is_ready(&mut self) -> bool {
        match self {
            BenchConnection::Http(connection) => connection.is_ready().await,
            BenchConnection::Resp(_) => true,
            BenchConnection::Grpc(connection) => connection.is_ready().await,
        }
    }

    /// Sends the request of this key and waits for the answer. After an error the connection is of no more use.
    pub(super) async fn send(&mut self, key: &str) -> Result<LoadOutcome, String> {
        match self {
            BenchConnection::Http(connection) => connection.send(key).await,
            BenchConnection::Resp(connection) => connection.send(key).await,
            BenchConnection::Grpc(connection) => connection.send(key).await,
        }
    }
}
