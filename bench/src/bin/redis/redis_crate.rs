//! Our script over the connection of the redis crate: the same calls as ours, by another transport.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tollgate::{Check, Clock, Limit, SystemClock};
use tollgate_redis::RedisStore;

use crate::contestants::BenchKeyNames;
use crate::naive;

/// One EVALSHA of our script for each request, over one `MultiplexedConnection`.
pub(crate) struct RedisCrateTransport {
    connection: MultiplexedConnection,
    /// One command for each key, made before the clock starts: only the transport is measured.
    commands: Vec<Cmd>,
}

impl RedisCrateTransport {
    /// Connects and loads the script; `store` encodes the calls.
    pub(crate) async fn connect(
        url: &str,
        store: &RedisStore,
        limit: &Limit,
        names: &BenchKeyNames,
    ) -> Result<RedisCrateTransport, String> {
        let connection = naive::connect(url).await?;
        let load = to_command(&RedisStore::encoded_load())?;
        load.exec_async(&mut connection.clone()).await.map_err(|error| error.to_string())?;
        let call = |name: &str| {
            to_command(&store.encoded_call(&Check::new(limit, name), SystemClock.now()))
        };
        let commands: Result<Vec<Cmd>, String> = names.iter().map(|name| call(name)).collect();
        Ok(RedisCrateTransport { connection, commands: commands? })
    }

    /// Returns true if one unit of this key was taken.
    pub(crate) async fn take(&self, key: u64) -> Result<bool, String> {
        let command = &self.commands[key as usize];
        let reply = command.query_async(&mut self.connection.clone()).await;
        // The time, and the value found if the unit was taken.
        match reply.map_err(|error| error.to_string())? {
            Value::Array(parts) => Ok(matches!(parts.get(1), Some(Value::BulkString(_)))),
            other => Err(format!("not a reply of the script: {other:?}")),
        }
    }
}

/// A command of the redis crate from an encoded one.
fn to_command(encoded: &[u8]) -> Result<Cmd, String> {
    let parts = redis::parse_redis_value(encoded).map_err(|error| error.to_string())?;
    let Value::Array(parts) = parts else { return Err("not a command".into()) };
    let mut command = Cmd::new();
    for part in parts {
        let Value::BulkString(part) = part else { return Err("not an argument".into()) };
        command.arg(part);
    }
    Ok(command)
}
