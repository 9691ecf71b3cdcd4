//! The deadline of a call: `grpc-timeout`.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::{Sleep, sleep};

/// Maximum digits of a timeout.
const DIGITS_MAX: usize = 8;

/// Reads `grpc-timeout`, such as `20m` for 20 ms. `Err` if it is invalid.
pub(super) fn grpc_timeout(headers: &HeaderMap) -> Result<Option<Duration>, ()> {
    headers.get("grpc-timeout").map(|value| parse(value.as_bytes()).ok_or(())).transpose()
}

fn parse(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    let all = (1..=DIGITS_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let number: u64 = std::str::from_utf8(digits).ok().filter(|_| all)?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3_600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Runs `work` with a timeout. `None` if it is not done in time; then it is dropped. Work that is done on its first poll
/// sets no timer.
pub(super) async fn within<T>(
    timeout: Option<Duration>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let Some(timeout) = timeout else { return Some(work.await) };
    let mut work = pin!(work);
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        let timer = timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        timer.as_mut().poll(context).map(|()| None)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    #[test]
    fn a_timeout_is_a_number_and_a_unit() {
        let rows = [
            ("20m", Some(Duration::from_millis(20))),
            ("0m", Some(Duration::ZERO)),
            ("1S", Some(Duration::from_secs(1))),
            ("99999999H", Some(Duration::from_secs(359_999_996_400))),
            ("3M", Some(Duration::from_secs(180))),
            ("100u", Some(Duration::from_micros(100))),
            ("00000001n", Some(Duration::from_nanos(1))),
            ("000000001n", None),
            ("20", None),
            ("m", None),
            ("", None),
            ("20s", None),
            ("-1m", None),
            ("+1m", None),
            ("1.5S", None),
            (" 1S", None),
            ("1\u{e9}", None),
        ];
        for (text, want) in rows {
            assert_eq!(parse(text.as_bytes()), want, "{text}");
        }
    }

    #[test]
    fn work_that_is_never_done_is_dropped() {
        let clock = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let short = Some(Duration::from_nanos(1));
        assert_eq!(clock.block_on(within(short, pending::<()>())), None);
        assert_eq!(clock.block_on(within(Some(Duration::ZERO), ready(1))), Some(1), "done at once");
        assert_eq!(clock.block_on(within(None, ready(1))), Some(1));
    }
}
