//! The script: its text, its arguments and its replies. `lua/decide.lua` is the other half.

use std::sync::LazyLock;

use sha1::{Digest, Sha1};
use tollgate::algorithm::token_bucket::RefillTime;
use tollgate::store::stored_state::{StoredCheck, cumulative_cost};
use tollgate::time::MAX_EXACT;
use tollgate::{Act, Algorithm, Align, Limit, Micros, Precision};
use tollgate_shared::TimeSource;

use crate::error::{ErrorClass, StoreError};
use crate::script::call::{ScriptBody, ScriptCall};
use crate::script::state::{kind_number, push_number, suffix};
use crate::transport::command::RedisCommand;
use crate::transport::value::RedisValue;

pub(crate) mod call;
pub(crate) mod keys;
mod plan;
pub(crate) mod request;
mod state;

#[cfg(test)]
mod cost;
#[cfg(test)]
mod tests;

/// The parts in the order in which they refer to each other.
static TEXT: LazyLock<String> = LazyLock::new(|| {
    [
        include_str!("lua/begin.lua"),
        include_str!("lua/take.lua"),
        include_str!("lua/general.lua"),
        include_str!("lua/token_bucket.lua"),
        include_str!("lua/leaky_bucket.lua"),
        include_str!("lua/fixed_window.lua"),
        include_str!("lua/sliding_window_log.lua"),
        include_str!("lua/sliding_window_counter.lua"),
        include_str!("lua/decide.lua"),
    ]
    .join("\n")
});

static SHA1: LazyLock<String> = LazyLock::new(|| sha1_hex(&TEXT));

/// The name that a server gives to a script.
pub(crate) fn sha1_hex(text: &str) -> String {
    Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// TTL of values written by a caller's clock, in milliseconds.
const CALLER_TTL_MS: u64 = 3_600_000;
/// Time for which a state is kept longer than it can matter, in milliseconds.
const TTL_SLACK_MS: u64 = 1_000;

/// Loads the script into a server.
pub(crate) fn load() -> RedisCommand {
    RedisCommand::new("SCRIPT").arg("LOAD").arg(TEXT.as_str())
}

/// Runs the script for these calls, by its name. All are of one instant and, in a cluster, one slot.
pub(crate) fn assemble(calls: &[ScriptCall]) -> RedisCommand {
    plan::push_calls(RedisCommand::new("EVALSHA").arg(SHA1.as_str()), calls)
}

/// Runs the script like [`assemble`], with its text: for a server that does not have it.
pub(crate) fn eval(calls: &[ScriptCall]) -> RedisCommand {
    plan::push_calls(RedisCommand::new("EVAL").arg(TEXT.as_str()), calls)
}

/// Splits the reply: for each call the instant and its own part.
pub(crate) fn split(reply: RedisValue, calls: usize) -> Vec<Result<RedisValue, StoreError>> {
    let RedisValue::Array(replies) = reply else { return vec![Err(not_understood()); calls] };
    let mut replies = replies.into_iter();
    let Some(now @ RedisValue::Int(_)) = replies.next() else {
        return vec![Err(not_understood()); calls];
    };
    if replies.len() != calls {
        return vec![Err(not_understood()); calls];
    }
    replies.map(|one| Ok(RedisValue::Array(vec![now.clone(), one]))).collect()
}

pub(crate) fn not_understood() -> StoreError {
    StoreError::new(ErrorClass::Protocol, "the reply is not one of our script")
}

/// The reply to one call.
#[derive(Debug)]
pub(crate) struct ScriptReply {
    pub(crate) now: Micros,
    /// A bit for each check that refused; `None`: the case is left to Rust, nothing was changed.
    pub(crate) refused: Option<u16>,
    /// True if the values decided in Rust were written.
    pub(crate) swapped: bool,
    /// The values stored under the keys before.
    pub(crate) stored_values: Vec<StoredValue>,
}

/// The same number as in `lua/decide.lua`.
const SWAPPED: i64 = -2;

/// The value stored under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoredValue {
    Nothing,
    Value(Vec<u8>),
    /// No string, or a longer one than any state is.
    Foreign,
}

impl ScriptReply {
    pub(crate) fn read(value: RedisValue) -> Result<ScriptReply, StoreError> {
        let RedisValue::Array(parts) = value else { return Err(not_understood()) };
        let [RedisValue::Int(now), said] =
            <[RedisValue; 2]>::try_from(parts).map_err(|_| not_understood())?
        else {
            return Err(not_understood());
        };
        let now = Micros::new(u64::try_from(now).map_err(|_| not_understood())?);
        let (code, found) = match said {
            RedisValue::Array(list) => {
                let mut list = list.into_iter();
                let Some(RedisValue::Int(code)) = list.next() else { return Err(not_understood()) };
                (code, list.map(StoredValue::read).collect::<Result<_, _>>()?)
            }
            value => (0, vec![StoredValue::read(value)?]),
        };
        Ok(ScriptReply {
            now,
            refused: u16::try_from(code).ok(),
            swapped: code == SWAPPED,
            stored_values: found,
        })
    }
}

impl StoredValue {
    fn read(value: RedisValue) -> Result<StoredValue, StoreError> {
        match value {
            RedisValue::BulkString(value) if value.is_empty() => Ok(StoredValue::Nothing),
            RedisValue::BulkString(value) => Ok(StoredValue::Value(value)),
            RedisValue::Int(0) => Ok(StoredValue::Foreign),
            _ => Err(not_understood()),
        }
    }
}

/// A limit as the script reads it. `now` is the caller's clock: it selects the day of a calendar.
pub(crate) fn describe(limit: &Limit, time: TimeSource, now: Micros) -> Vec<u8> {
    let memory = if time == TimeSource::Caller { 0 } else { limit.memory_us() };
    let mut bytes = vec![kind_number(limit)];
    for text in [suffix(limit), ttl_ms(time, limit.memory_us()).to_string().into_bytes()] {
        bytes.push(text.len() as u8);
        bytes.extend(text);
    }
    let mut push = |number: u64| push_number(&mut bytes, number);
    push(memory);
    let period = limit.period_us();
    match limit.state_algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            let [unit, full] =
                [1, limit.capacity()].map(|units| RefillTime::of_units(limit, units));
            push(limit.full_refill_us());
            push(limit.drain());
            for RefillTime { whole, part } in [unit, full, RefillTime::largest(limit)] {
                push(whole);
                push(part);
            }
        }
        Algorithm::FixedWindow => {
            [limit.window_longest_us(), period, limit.capacity()].into_iter().for_each(&mut push);
            let (align, from, till) = window_layout(limit, now);
            bytes.push(align);
            push_number(&mut bytes, from);
            push_number(&mut bytes, till);
        }
        Algorithm::SlidingWindowLog => {
            [period, limit.capacity()].into_iter().for_each(push);
            let (buckets, span) = match limit.precision() {
                Precision::Estimate => (0, period),
                Precision::Buckets(buckets) => (buckets as u16, u64::from(buckets) + 1),
            };
            bytes.extend_from_slice(&buckets.to_le_bytes());
            push_number(&mut bytes, span);
        }
        _ => [period, limit.capacity()].into_iter().for_each(push),
    }
    bytes
}

/// The alignment of windows, in the numbers of `lua/fixed_window.lua`.
fn window_layout(limit: &Limit, now: Micros) -> (u8, u64, u64) {
    match (limit.calendar(), limit.align()) {
        (Some(calendar), _) => {
            let window = calendar.window(now);
            let (from, till) = (window.start.as_u64(), window.end.as_u64());
            // One that breaks its word is left to Rust.
            match till.checked_sub(from) {
                Some(length) if length <= limit.window_longest_us() => (2, from, till),
                _ => (2, 0, 0),
            }
        }
        (None, Align::FirstHit) => (1, 0, 0),
        (None, _) => (0, limit.window_offset_us(), 0),
    }
}

/// TTL of a state that matters for `memory_us`, in milliseconds.
pub(crate) fn ttl_ms(time: TimeSource, memory_us: u64) -> u64 {
    match time {
        TimeSource::Caller => CALLER_TTL_MS,
        TimeSource::Server => memory_us.div_ceil(1_000) + TTL_SLACK_MS,
    }
}

/// Bits of what a check is, as in `lua/decide.lua`.
mod flag {
    pub(super) const SHADOW: u8 = 1;
    pub(super) const JUDGED: u8 = 2;
    pub(super) const CHARGED: u8 = 4;
    pub(super) const COUNTED: u8 = 8;
    pub(super) const AT_ONCE: u8 = 16;
    pub(super) const NEVER: u8 = 32;
    pub(super) const NEVER_ALONE: u8 = 64;
    pub(super) const WHOLE: u8 = 128;
}

/// The acts of `lua/decide.lua`.
mod operation {
    pub(super) const DECIDE: u8 = 1;
    pub(super) const REFUND: u8 = 2;
    pub(super) const SWAP: u8 = 3;
    pub(super) const LOOK: u8 = 4;
    pub(super) const TAKE: u8 = 5;
}

/// Returns true for the shortest request: one unit of one limit.
pub(crate) fn is_plain(asked: &[StoredCheck<'_>]) -> bool {
    matches!(asked, [one] if one.check.requested_act() == Act::Take
        && one.check.units() == 1
        && !one.check.is_shadow()
        && !one.check.counts_denied()
        && !one.check.is_at_once())
}

/// A decision about several checks; `places` says which key each is about.
pub(crate) fn decide(asked: &[StoredCheck<'_>], places: &[usize], keys: usize) -> ScriptBody {
    let mut tail = Vec::with_capacity(30 * asked.len());
    for (index, (one, &place)) in asked.iter().zip(places).enumerate() {
        let (check, limit, judged) = (&one.check, one.limit, cumulative_cost(asked, places, index));
        let (cost, act) = (check.units(), check.requested_act());
        let twins = places.iter().filter(|other| **other == place).count() > 1;
        let charges = cost > 0 && act != Act::Peek;
        let flags = [
            (check.is_shadow(), flag::SHADOW),
            (cost > 0 && act != Act::Force, flag::JUDGED),
            (charges, flag::CHARGED),
            (charges && check.counts_denied(), flag::COUNTED),
            (cost > 0 && act != Act::Force && check.is_at_once(), flag::AT_ONCE),
            (judged > limit.capacity(), flag::NEVER),
            (cost > limit.capacity(), flag::NEVER_ALONE),
            (twins, flag::WHOLE),
        ];
        let flags = flags.iter().filter(|(is, _)| *is).fold(0, |bits, (_, bit)| bits | bit);
        tail.extend([place as u8 + 1, flags]);
        push_cost(&mut tail, limit, judged);
        push_cost(&mut tail, limit, cost);
    }
    ScriptBody { head: vec![operation::DECIDE, keys as u8, asked.len() as u8], tail }
}

fn push_cost(bytes: &mut Vec<u8>, limit: &Limit, units: u64) {
    let RefillTime { whole, part } = match limit.algorithm().is_bucket() {
        true => RefillTime::of_units(limit, units),
        false => RefillTime { whole: units.min(MAX_EXACT), part: 0 },
    };
    push_number(bytes, whole);
    push_number(bytes, part);
}

/// Gives back `units`.
pub(crate) fn refund(limit: &Limit, units: u64, charged_at: Option<Micros>) -> ScriptBody {
    let mut tail = vec![u8::from(charged_at.is_some())];
    push_number(&mut tail, charged_at.map_or(0, Micros::as_u64));
    push_cost(&mut tail, limit, units);
    ScriptBody { head: vec![operation::REFUND], tail }
}

/// Reads what is stored under so many keys.
pub(crate) fn read_values(keys: usize) -> ScriptBody {
    ScriptBody { head: vec![operation::LOOK, keys as u8], tail: Vec::new() }
}

/// The new value of a key and its TTL in milliseconds; `None` if the value found stays.
pub(crate) type StateWrite = Option<(Vec<u8>, u64)>;

/// Writes all, if what was found is still there everywhere; else decides `instead`, if there is that.
pub(crate) fn swap<'a>(
    changes: impl ExactSizeIterator<Item = (&'a StoredValue, &'a StateWrite)>,
    instead: Option<ScriptBody>,
) -> ScriptBody {
    let mut head = vec![operation::SWAP, changes.len() as u8];
    for (found, write) in changes {
        let (kind, old) = match found {
            StoredValue::Nothing => (0, &[][..]),
            StoredValue::Value(value) => (1, &value[..]),
            StoredValue::Foreign => (2, &[][..]),
        };
        let (new, ttl) = write.as_ref().map_or((&[][..], 0), |(value, ttl)| (&value[..], *ttl));
        head.push(kind);
        push_text(&mut head, old);
        head.push(u8::from(write.is_some()));
        push_text(&mut head, new);
        let ttl = ttl.to_string();
        head.push(ttl.len() as u8);
        head.extend_from_slice(ttl.as_bytes());
    }
    head.push(u8::from(instead.is_some()));
    let Some(instead) = instead else { return ScriptBody { head, tail: Vec::new() } };
    head.extend(instead.head);
    ScriptBody { head, tail: instead.tail }
}

fn push_text(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
    bytes.extend_from_slice(text);
}
