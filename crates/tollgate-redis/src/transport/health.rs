//! Looks from time to time whether the server is one that limits can rely on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::{ErrorClass, StoreError};
use crate::transport::command::RedisCommand;
use crate::transport::node::RedisNode;
use crate::transport::stats::Health;
use crate::transport::value::RedisValue;

/// Interval of the check in normal operation, and until the first answer.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
const CHECK_INTERVAL_DOWN: Duration = Duration::from_millis(200);
/// Timeout of a server's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

/// Keeps `health` up to date, for ever. `nodes` tells which servers there are.
pub(crate) async fn watch_health(
    nodes: impl Fn() -> Vec<Arc<RedisNode>> + Send + 'static,
    health: Arc<Mutex<Health>>,
) {
    loop {
        let mut pause = CHECK_INTERVAL_DOWN;
        for node in nodes() {
            if !node.is_up() {
                continue;
            }
            // Without an answer what was found before still holds.
            let Some(found) = check_node(&node).await else { continue };
            let worrying = found.warning.is_some();
            if pause == CHECK_INTERVAL_DOWN || worrying {
                *health.lock().unwrap_or_else(PoisonError::into_inner) = found;
            }
            pause = CHECK_INTERVAL;
            // One that worries is enough to be told about.
            if worrying {
                break;
            }
        }
        sleep(pause).await;
    }
}

async fn check_node(node: &RedisNode) -> Option<Health> {
    let question = RedisCommand::new("CONFIG").arg("GET").arg("maxmemory-policy");
    let policy = match ask(node, question).await {
        Ok(RedisValue::Array(pair)) => pair.into_iter().nth(1).and_then(text),
        Ok(_) => None,
        // Not permitted, or a command that this server does not have.
        Err(error) if matches!(error.class, ErrorClass::NoPerm | ErrorClass::Other) => None,
        Err(_) => return None,
    };
    let info = ask(node, RedisCommand::new("INFO").arg("server")).await.ok().and_then(text);
    let version = info.and_then(|info| {
        let line = |line: &str| line.strip_prefix("redis_version:").map(str::to_owned);
        info.lines().find_map(line)
    });
    Some(judge(policy.as_deref(), version))
}

fn judge(policy: Option<&str>, version: Option<String>) -> Health {
    let warning = match policy {
        Some("noeviction") => None,
        Some(policy) => Some(format!(
            "the store's maxmemory-policy is {policy}: when its memory is full it throws away \
             states, and limits forget what was used; set `maxmemory-policy noeviction`"
        )),
        None => Some(
            "the store does not tell its maxmemory-policy (CONFIG GET is not permitted): see to it \
             that it is `noeviction`, or limits may forget what was used"
                .to_owned(),
        ),
    };
    Health { version, evicts: policy.map(|policy| policy != "noeviction"), warning }
}

async fn ask(node: &RedisNode, command: RedisCommand) -> Result<RedisValue, StoreError> {
    node.run(command, Instant::now() + ANSWER_TIMEOUT).await
}

fn text(value: RedisValue) -> Option<String> {
    let RedisValue::BulkString(bytes) = value else { return None };
    String::from_utf8(bytes).ok()
}
