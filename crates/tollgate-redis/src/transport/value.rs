//! Values that a server replies with (RESP 2).

/// One value of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RedisValue {
    Nil,
    Int(i64),
    BulkString(Vec<u8>),
    SimpleString(Box<str>),
    /// Bound: see [`reply_reader`](super::reply_reader).
    Array(Vec<RedisValue>),
    /// An error inside an array, as the server words it.
    Error(Box<str>),
}

#[cfg(test)]
impl RedisValue {
    /// A value of the redis crate as one of ours.
    pub(crate) fn from_redis_crate(value: redis::Value) -> RedisValue {
        match value {
            redis::Value::Nil => RedisValue::Nil,
            redis::Value::Int(number) => RedisValue::Int(number),
            redis::Value::BulkString(bytes) => RedisValue::BulkString(bytes),
            redis::Value::Array(values) => {
                RedisValue::Array(values.into_iter().map(RedisValue::from_redis_crate).collect())
            }
            other => panic!("{other:?} is not expected here"),
        }
    }
}
