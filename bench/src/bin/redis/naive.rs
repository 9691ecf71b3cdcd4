//! The limiter that most people write: a token bucket in a hash, with one script call for each request.

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};
use tollgate_bench::scripts::TOKEN_BUCKET;

/// The naive limiter: a connection that all callers share, as the redis crate offers it.
#[derive(Clone)]
pub(crate) struct NaiveRedisLimiter {
    connection: MultiplexedConnection,
    sha: String,
}

impl NaiveRedisLimiter {
    pub(crate) async fn connect(url: &str) -> Result<NaiveRedisLimiter, String> {
        let mut connection = connect(url).await?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(TOKEN_BUCKET);
        let sha = load.query_async(&mut connection).await.map_err(|error| error.to_string())?;
        Ok(NaiveRedisLimiter { connection, sha })
    }

    /// Takes one unit of a bucket of `capacity` that refills with `rate` units per second. Returns true if it
    /// was allowed.
    pub(crate) async fn take(&self, key: &str, capacity: u64, rate: f64) -> Result<bool, String> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(1).arg(key).arg(capacity).arg(rate).arg(1);
        let mut connection = self.connection.clone();
        let answer: Result<(u8, i64), _> = command.query_async(&mut connection).await;
        answer.map(|(allowed, _)| allowed == 1).map_err(|error| error.to_string())
    }

    /// Makes a round trip to the server.
    pub(crate) async fn ping(&self) -> Result<(), String> {
        let mut connection = self.connection.clone();
        redis::cmd("PING").exec_async(&mut connection).await.map_err(|error| error.to_string())
    }
}

/// A connection of the redis crate that all callers share.
pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection, String> {
    let failed = |error| format!("the connection of the redis crate: {error}");
    // It is off by default; every benchmark turns it on.
    let settings = TcpSettings::default().set_nodelay(true);
    let info = url.into_connection_info().map_err(failed)?.set_tcp_settings(settings);
    let client = Client::open(info).map_err(failed)?;
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)
}
