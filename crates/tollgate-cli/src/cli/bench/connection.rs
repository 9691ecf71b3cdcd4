//! One connection of a load, with one request in flight.

use std::net::SocketAddr;

use super::http_connection::HttpLoadConnection;
use super::record::LoadOutcome;
use super::request::LoadRequest;
use super::target::{LoadProtocol, LoadTarget};

/// A connection in one of the protocols.
pub(super) enum BenchConnection {
    Http(HttpLoadConnection),
}

/// Everything that a connection needs to know.
#[derive(Clone, Debug)]
pub(super) struct LoadPeer {
    pub(super) target: LoadTarget,
    pub(super) address: SocketAddr,
    pub(super) request: LoadRequest,
}

impl BenchConnection {
    /// Connects; the error says why it did not work.
    pub(super) async fn open(peer: &LoadPeer) -> Result<BenchConnection, String> {
        match peer.target.protocol {
            LoadProtocol::Check | LoadProtocol::Url => {
                HttpLoadConnection::open(peer).await.map(BenchConnection::Http)
            }
            LoadProtocol::Resp | LoadProtocol::Grpc => Err("this protocol is not supported".into()),
        }
    }

    /// Sends the request of this key and waits for the answer. After an error the connection is of no more use.
    pub(super) async fn send(&mut self, peer: &LoadPeer, key: &str) -> Result<LoadOutcome, String> {
        match self {
            BenchConnection::Http(connection) => connection.send(peer, key).await,
        }
    }
}
