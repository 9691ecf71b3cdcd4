//! `CL.THROTTLE key max_burst count period [quantity]`: the arguments and the reply of redis-cell,
//! decided by this server's own token bucket.
//!
//! Both count the same: a bucket of max_burst + 1 units refills at count per period. redis-cell stores the instant at
//! which it is full again and truncates the time of one unit to whole nanoseconds; here rates are exact. Seconds are
//! rounded as in redis-cell, so that replies are the same bytes.

use std::fmt;

use tollgate::{Decision, Wait};

use super::replies::TruncatedText;
use super::request::RespArgs;
use super::throttle_limits::{ThrottleParams, ThrottleParamsError};

/// Error in the arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThrottleError<'a> {
    Usage,
    InvalidInteger(&'a [u8]),
    NegativeQuantity,
    EmptyKey,
    Params(ThrottleParamsError),
}

impl From<ThrottleParamsError> for ThrottleError<'_> {
    fn from(error: ThrottleParamsError) -> Self {
        ThrottleError::Params(error)
    }
}

impl fmt::Display for ThrottleError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Texts of redis-cell: clients may search for them.
            ThrottleError::Usage => f.write_str(
                "Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> \
                 <period> [<quantity>]",
            ),
            ThrottleError::InvalidInteger(text) => {
                write!(
                    f,
                    "Cell error: Store error: Couldn't parse as integer: {}",
                    TruncatedText(text)
                )
            }
            ThrottleError::NegativeQuantity => {
                f.write_str("ERR the quantity is negative: write 0 to look, or more to take")
            }
            ThrottleError::EmptyKey => {
                f.write_str("ERR the key is empty: write the name of the caller to count")
            }
            ThrottleError::Params(error) => error.fmt(f),
        }
    }
}

/// A parsed `CL.THROTTLE` command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThrottleCommand<'a> {
    pub(super) key: &'a [u8],
    pub(super) params: ThrottleParams,
    pub(super) quantity: u64,
}

impl<'a> ThrottleCommand<'a> {
    #[inline]
    pub(super) fn read(args: RespArgs<'a>) -> Result<ThrottleCommand<'a>, ThrottleError<'a>> {
        let (Some(key), Some(max_burst), Some(count), Some(period), 5 | 6) =
            (args.get(1), args.get(2), args.get(3), args.get(4), args.len())
        else {
            return Err(ThrottleError::Usage);
        };
        let params = ThrottleParams {
            max_burst: integer(max_burst)?,
            count: integer(count)?,
            period: integer(period)?,
        };
        let quantity = args.get(5).map_or(Ok(1), integer)?;
        let Ok(quantity) = u64::try_from(quantity) else {
            // An invalid limit is reported first, as in redis-cell.
            params.to_limit()?;
            return Err(ThrottleError::NegativeQuantity);
        };
        if key.is_empty() {
            return Err(ThrottleError::EmptyKey);
        }
        Ok(ThrottleCommand { key, params, quantity })
    }
}

/// The reply to a decision: limited, limit, remaining, seconds until a retry passes, seconds until the bucket is full.
#[inline]
pub(super) fn reply(capacity: u64, decision: &Decision) -> [i64; 5] {
    let (limited, retry) = match decision.allowed() {
        true => (0, -1),
        false => (1, seconds(decision.retry_after())),
    };
    let remaining = decision.remaining().min(capacity);
    [limited, capacity as i64, remaining as i64, retry, seconds(decision.reset_after())]
}

/// The reply to parameters that allow nothing; only a quantity of 0 can pass.
pub(super) fn reply_nothing_passes(params: ThrottleParams, quantity: u64) -> [i64; 5] {
    let limit = params.reported_limit();
    let limited = quantity > 0 || limit != 0;
    [i64::from(limited), limit, 0, -1, 0]
}

/// Seconds of a wait, rounded as in redis-cell: truncated to milliseconds, then up to seconds. Never is -1.
#[inline]
fn seconds(wait: Wait) -> i64 {
    wait.as_micros().map_or(-1, |micros| (micros / 1_000).div_ceil(1_000) as i64)
}

/// Parses an integer as Rust does, which is the format of redis-cell.
#[inline]
fn integer(text: &[u8]) -> Result<i64, ThrottleError<'_>> {
    // Fast path for unsigned integers that cannot overflow.
    if let 1..=18 = text.len()
        && let Some(value) = digits(text)
    {
        return Ok(value);
    }
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or(ThrottleError::InvalidInteger(text))
}

#[inline]
fn digits(text: &[u8]) -> Option<i64> {
    let mut value = 0;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + i64::from(digit);
    }
    Some(value)
}

#[cfg(test)]
mod tests;
