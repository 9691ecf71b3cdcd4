//! Where the server is: written in the URL, or told by sentinels each time it is looked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::error::{ErrorClass, StoreError};
use crate::transport::command::RedisCommand;
use crate::transport::connect::{Connector, ask_once};
use crate::transport::node::RedisNode;
use crate::transport::url::{Address, Login, StoreUrl, Topology, is_host};
use crate::transport::value::RedisValue;

/// Interval at which the sentinels are asked in normal operation. An old primary that is cut off
/// from them, but not from us, is left after this time.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Finds the server to connect to.
#[derive(Clone, Debug)]
pub(crate) enum ServerFinder {
    Fixed(Address),
    Sentinels(Arc<Sentinels>),
}

/// Sentinels, and whom they are asked about.
#[derive(Debug)]
pub(crate) struct Sentinels {
    /// Bound: the hosts of a URL.
    addresses: Vec<Address>,
    primary: String,
    login: Login,
    connector: Connector,
    /// The index of the sentinel to ask first.
    first: AtomicUsize,
}

impl ServerFinder {
    /// Makes a finder for a URL of one server at a time.
    pub(crate) fn of(url: &StoreUrl, reach: &Connector) -> ServerFinder {
        match &url.topology {
            Topology::Sentinel { primary } => ServerFinder::Sentinels(Arc::new(Sentinels {
                addresses: url.hosts.clone(),
                primary: primary.clone(),
                login: url.sentinel_login.clone(),
                connector: reach.clone(),
                first: AtomicUsize::new(0),
            })),
            _ => ServerFinder::Fixed(url.hosts[0].clone()),
        }
    }

    /// Asked before each attempt to connect.
    pub(crate) async fn find(&self) -> Result<Address, StoreError> {
        match self {
            ServerFinder::Fixed(address) => Ok(address.clone()),
            ServerFinder::Sentinels(sentinels) => sentinels.ask().await,
        }
    }

    /// Asks another sentinel next time, because the address found was of no use.
    pub(crate) fn try_next_sentinel(&self) {
        if let ServerFinder::Sentinels(sentinels) = self {
            sentinels.first.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Sentinels {
    /// Asks one after the other until one knows.
    async fn ask(&self) -> Result<Address, StoreError> {
        let first = self.first.load(Ordering::Relaxed);
        let mut last = None;
        for turn in 0..self.addresses.len() {
            let index = first.wrapping_add(turn) % self.addresses.len();
            match self.ask_one(&self.addresses[index]).await {
                Ok(address) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(address);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("a URL has a host"))
    }

    async fn ask_one(&self, sentinel: &Address) -> Result<Address, StoreError> {
        let question =
            RedisCommand::new("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.primary);
        let turn = self.first.load(Ordering::Relaxed);
        let value = ask_once(sentinel, &self.login, &self.connector, turn, question).await?;
        let unknown = || {
            let detail =
                format!("the sentinel {sentinel} does not know a primary {:?}", self.primary);
            StoreError::new(ErrorClass::Connect, detail)
        };
        match value {
            RedisValue::Array(parts) => parse_address(&parts).ok_or_else(unknown),
            _ => Err(unknown()),
        }
    }
}

/// Host and port as two strings.
fn parse_address(parts: &[RedisValue]) -> Option<Address> {
    let [RedisValue::BulkString(host), RedisValue::BulkString(port)] = parts else { return None };
    let host = std::str::from_utf8(host).ok().filter(|host| is_host(host))?;
    let port = std::str::from_utf8(port).ok()?.parse().ok().filter(|&port| port > 0)?;
    Some(Address::Tcp { host: host.to_owned(), port })
}

/// Ends the connection when the sentinels name another server, for ever.
pub(crate) async fn watch_primary(node: Arc<RedisNode>, sentinels: Arc<Sentinels>) {
    loop {
        tokio::time::sleep(WATCH_INTERVAL).await;
        if let Ok(primary) = sentinels.ask().await
            && node.is_up()
            && node.address().is_some_and(|address| address != primary)
        {
            let detail = format!("the sentinels name another primary, {primary}");
            node.disconnect(StoreError::new(ErrorClass::ReadOnly, detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_primary_is_a_host_and_a_port() {
        for (host, port, is_one) in [
            ("10.0.0.1", "6379", true),
            ("::1", "6379", true),
            ("redis-1.example", "1", true),
            ("", "6379", false),
            ("a b", "6379", false),
            ("\u{1b}[31m", "6379", false),
            ("a", "0", false),
            ("a", "70000", false),
            ("a", "", false),
        ] {
            let parts = [host, port].map(|text| RedisValue::BulkString(text.into()));
            assert_eq!(parse_address(&parts).is_some(), is_one, "{host:?} {port:?}");
        }
        assert_eq!(
            parse_address(&[
                RedisValue::BulkString("a".repeat(254).into()),
                RedisValue::BulkString("1".into())
            ]),
            None
        );
    }
}
