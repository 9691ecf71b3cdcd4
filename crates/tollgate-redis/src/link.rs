//! Stand-in for the transport: one connection, one call at a time.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::sync::OnceCell;

use crate::call::Call;
use crate::error::{ErrorClass, StoreError};
use crate::script;

#[derive(Debug)]
pub struct Link {
    client: redis::Client,
    connection: OnceCell<MultiplexedConnection>,
}

fn failed(error: redis::RedisError) -> StoreError {
    StoreError::new(ErrorClass::Other, error.to_string())
}

impl Link {
    pub fn start(url: &str) -> Link {
        let client = redis::Client::open(url).expect("a URL");
        Link { client, connection: OnceCell::new() }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        false
    }

    async fn connection(&self) -> Result<MultiplexedConnection, StoreError> {
        let connect = || self.client.get_multiplexed_async_connection();
        self.connection.get_or_try_init(connect).await.cloned().map_err(failed)
    }

    pub(crate) async fn run(&self, cmd: Cmd, _slot: Option<u16>) -> Result<Value, StoreError> {
        cmd.query_async(&mut self.connection().await?).await.map_err(failed)
    }

    pub(crate) async fn call(&self, call: Call) -> Result<Value, StoreError> {
        let calls = [call];
        let mut connection = self.connection().await?;
        let reply = script::assemble(&calls).query_async(&mut connection).await;
        let reply = match reply {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                script::eval(&calls).query_async(&mut connection).await
            }
            reply => reply,
        };
        script::split(reply.map_err(failed)?, 1).remove(0)
    }
}
