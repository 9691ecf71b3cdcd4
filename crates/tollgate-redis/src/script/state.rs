//! States as the values that are stored.
//!
//! A value is three numbers of 7 bytes each, least byte first, and the numbers of the limit that
//! wrote it: a byte for algorithm and options, N and the capacity. Of a log the third number is
//! missing, and its entries follow. If a bucket has excess, it follows, too: two numbers are time of refill,
//! microseconds and ticks, and one number is units. The script compares what tells the numbers; only Rust reads it.

use tollgate::algorithm::State;
use tollgate::algorithm::sliding_window_log::{self, MAX_ENTRIES, SlidingLogEntry};
use tollgate::algorithm::token_bucket::{RefillTime, StoredExcess};
use tollgate::time::MAX_EXACT;
use tollgate::{Algorithm, Limit};

/// A decoded value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DecodedState {
    /// A state by the numbers of the limit asked.
    SameNumbers(State),
    /// A state by other numbers.
    OtherNumbers(State, Box<Limit>),
    /// Nothing that was written here.
    Unreadable,
}

// 0 is no algorithm, and the number has 3 bits.
const _: () = assert!(Algorithm::ALL.len() <= 7);

/// The number by which values and the script know the states of a limit. It has 3 bits in a value.
pub(crate) fn kind_number(limit: &Limit) -> u8 {
    algorithm_number(limit.state_algorithm())
}

/// The number of an algorithm: 1 for the first of [`Algorithm::ALL`].
pub(crate) fn algorithm_number(algorithm: Algorithm) -> u8 {
    let kind = Algorithm::ALL.iter().position(|each| *each == algorithm);
    1 + kind.expect("every algorithm is in Algorithm::ALL") as u8
}

fn is_log(limit: &Limit) -> bool {
    limit.state_algorithm() == Algorithm::SlidingWindowLog
}

/// The part of a value that identifies the numbers of its writer.
pub(crate) fn suffix(limit: &Limit) -> Vec<u8> {
    let options = (limit.on_change() as u8) << 3 | u8::from(limit.is_queue()) << 5;
    let mut suffix = vec![kind_number(limit) | options];
    for number in [limit.units(), limit.capacity()] {
        let mut rest = number;
        while rest >= 0x80 {
            suffix.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        suffix.push(rest as u8);
    }
    suffix
}

/// Appends a number as the script reads it.
pub(crate) fn push_number(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_le_bytes()[..7]);
}

/// The value of a state.
pub(crate) fn encode(limit: &Limit, state: &State) -> Vec<u8> {
    let numbers = match (state, state.to_script_numbers(limit)) {
        (_, Some(numbers)) => numbers,
        (State::Log(log), None) => return encode_log(limit, log),
        (_, None) => unreachable!("every state but a log has three numbers"),
    };
    let mut value = Vec::with_capacity(32);
    numbers.into_iter().for_each(|number| push_number(&mut value, number));
    value.extend(suffix(limit));
    match state.bucket().and_then(|bucket| StoredExcess::of(limit, bucket)) {
        Some(StoredExcess::Time(RefillTime { whole, part })) => {
            [whole, part].into_iter().for_each(|number| push_number(&mut value, number));
        }
        Some(StoredExcess::Units(units)) => push_number(&mut value, units),
        None => {}
    }
    value
}

fn encode_log(limit: &Limit, log: &sliding_window_log::SlidingLogState) -> Vec<u8> {
    let mut value = Vec::with_capacity(24 + 14 * log.entries.len());
    push_number(&mut value, log.mark);
    push_number(&mut value, 0);
    value.extend(suffix(limit));
    for entry in &log.entries {
        push_number(&mut value, entry.at);
        push_number(&mut value, entry.sum.wrapping_sub(log.base));
    }
    value
}

/// The state that a value is, asked about by `limit`.
pub(crate) fn decode(limit: &Limit, value: &[u8]) -> DecodedState {
    read(limit, value).unwrap_or(DecodedState::Unreadable)
}

fn read(limit: &Limit, value: &[u8]) -> Option<DecodedState> {
    let numbers = if is_log(limit) { 2 } else { 3 };
    let (numbers, rest) = value.split_at_checked(7 * numbers)?;
    let own = suffix(limit);
    if let Some(rest) = rest.strip_prefix(&own[..]) {
        return Some(DecodedState::SameNumbers(state_of(limit, numbers, rest)?));
    }
    let (&kind, rest) = rest.split_first()?;
    if kind & 7 != kind_number(limit) || kind >> 6 != 0 {
        return None;
    }
    let (units, rest) = varint(rest)?;
    let (capacity, rest) = varint(rest)?;
    let other = limit.with_numbers(units, capacity).ok()?;
    Some(DecodedState::OtherNumbers(state_of(&other, numbers, rest)?, Box::new(other)))
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (index, byte) in bytes.iter().take(8).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((number, &bytes[index + 1..]));
        }
    }
    None
}

fn number(bytes: &[u8]) -> u64 {
    let mut eight = [0; 8];
    eight[..7].copy_from_slice(&bytes[..7]);
    u64::from_le_bytes(eight)
}

/// The state that these bytes are under the numbers of `limit`, if it is a possible one.
fn state_of(limit: &Limit, numbers: &[u8], rest: &[u8]) -> Option<State> {
    let mark = number(numbers);
    let second = number(&numbers[7..]);
    if mark > MAX_EXACT || second > MAX_EXACT {
        return None;
    }
    if is_log(limit) {
        return log_of(limit, mark, second, rest);
    }
    let mut state = State::from_script_numbers(limit, [mark, second, number(&numbers[14..])])?;
    if !rest.is_empty() {
        state.bucket_mut()?.excess = excess_of(limit, rest)?;
    }
    Some(state)
}

/// The excess of a bucket, which follows its suffix.
fn excess_of(limit: &Limit, rest: &[u8]) -> Option<u128> {
    let stored = match rest.len() {
        7 => StoredExcess::Units(number(rest)),
        14 => StoredExcess::Time(RefillTime { whole: number(rest), part: number(&rest[7..]) }),
        _ => return None,
    };
    stored.to_ticks(limit)
}

fn log_of(limit: &Limit, mark: u64, base: u64, rest: &[u8]) -> Option<State> {
    let (entries, odd) = rest.as_chunks::<14>();
    if !odd.is_empty() || entries.len() > MAX_ENTRIES {
        return None;
    }
    // Sums wrap around at 2^53.
    let sum = |bytes: &[u8]| number(bytes).wrapping_sub(base) & MAX_EXACT;
    let entry = |bytes: &[u8; 14]| SlidingLogEntry { at: number(bytes), sum: sum(&bytes[7..]) };
    let entries = entries.iter().map(entry).collect();
    let state = State::Log(sliding_window_log::SlidingLogState { mark, base: 0, entries });
    state.is_possible(limit).then_some(state)
}
