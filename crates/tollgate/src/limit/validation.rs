//! Validation of the numbers and options of a limit. Errors say what to write instead.

use std::time::Duration;

use super::calendar::{Calendar, check_zone};
use super::options::{Align, LimitOptions, Precision};
use super::{LimitError, MAX_BUCKETS, MAX_PERIOD};
use crate::algorithm::Algorithm;
use crate::time::MAX_EXACT;

pub(super) fn check_name(name: &str) -> Result<(), LimitError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.len() > 64 || !name.bytes().all(allowed) {
        return Err(LimitError::new(format!(
            "the name {name:?} is not usable: write at most 64 letters, digits, `_` or `-`"
        )));
    }
    Ok(())
}

pub(super) fn checked_period(period: Duration) -> Result<u64, LimitError> {
    let nanos = period.as_nanos();
    if nanos == 0 {
        return Err(LimitError::new("the period is zero: write at least 1us, such as 10/second"));
    }
    if !nanos.is_multiple_of(1_000) {
        return Err(LimitError::new(format!(
            "the period of {nanos} ns is not a whole number of microseconds: \
             multiply rate and period until it is"
        )));
    }
    if period > MAX_PERIOD {
        return Err(LimitError::new("the period is longer than 100 years: write a shorter one"));
    }
    Ok((nanos / 1_000) as u64)
}

pub(super) fn checked_count(what: &str, count: u64, hint: &str) -> Result<(), LimitError> {
    match count {
        0 => Err(LimitError::new(format!("{what} is zero: {hint}"))),
        1..=MAX_EXACT => Ok(()),
        _ => Err(LimitError::new(format!(
            "{what} of {count} is too large: the most is {MAX_EXACT} (2^53 - 1)"
        ))),
    }
}

/// Checks the options of a limit by the calendar: only the calendar decides when its windows begin.
pub(super) fn check_calendar(
    calendar: &dyn Calendar,
    algorithm: Algorithm,
    options: LimitOptions,
) -> Result<(), LimitError> {
    check_zone(calendar.zone())?;
    if algorithm != Algorithm::FixedWindow {
        return Err(LimitError::new(format!(
            "{algorithm} cannot count by the calendar: leave the algorithm out, or choose \
             fixed_window"
        )));
    }
    let option = match options.align {
        Align::FirstHit => "align: first_hit",
        Align::Anchor(_) => "align to an anchor",
        Align::Epoch if options.stagger => "stagger",
        Align::Epoch => return Ok(()),
    };
    Err(LimitError::new(format!(
        "`{option}` and a calendar contradict each other: the calendar says when a window begins, \
         for every key; leave one of the two out"
    )))
}

/// Refuses options that the algorithm would ignore, because they are a misunderstanding.
pub(super) fn check_options(
    algorithm: Algorithm,
    burst: Option<u64>,
    options: LimitOptions,
    period: u64,
) -> Result<(), LimitError> {
    let only = |option: &str, wants: &str| {
        Err(LimitError::new(format!(
            "`{option}` means nothing to {algorithm}: leave it out, or choose {wants}"
        )))
    };
    if burst.is_some() && !algorithm.is_bucket() {
        return only("burst", "token_bucket or leaky_bucket");
    }
    if options.queue && algorithm != Algorithm::LeakyBucket {
        return only("queue", "leaky_bucket");
    }
    if options.align != Align::Epoch && algorithm != Algorithm::FixedWindow {
        return only("align", "fixed_window");
    }
    if options.stagger && algorithm != Algorithm::FixedWindow {
        return only("stagger", "fixed_window");
    }
    if options.stagger && options.align == Align::FirstHit {
        return Err(LimitError::new(
            "`stagger` and `align: first_hit` contradict each other: a window that begins with \
             the first request is already each key's own; leave `stagger` out",
        ));
    }
    let Precision::Buckets(buckets) = options.precision else { return Ok(()) };
    if algorithm != Algorithm::SlidingWindowCounter {
        return only("precision: buckets", "sliding_window_counter");
    }
    if buckets == 0 || buckets > MAX_BUCKETS || u64::from(buckets) > period {
        return Err(LimitError::new(format!(
            "buckets({buckets}) is not possible: write between 1 and {}",
            u64::from(MAX_BUCKETS).min(period)
        )));
    }
    Ok(())
}
