//! Waiting for events outside the process, with a deadline: the only place where tests pause.

use std::time::{Duration, Instant};

/// Timeout for something that should happen within milliseconds: long enough for a busy machine, short enough
/// for a useful failure.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Polls until there is a value, and returns it.
///
/// # Panics
///
/// When [`WAIT_TIMEOUT`] is over. `what` completes the sentence "waited 20s for …".
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(WAIT_TIMEOUT, look).unwrap_or_else(|| panic!("waited {WAIT_TIMEOUT:?} for {what}"))
}

/// Polls until the condition is true; [`until`] without a value.
///
/// # Panics
///
/// When [`WAIT_TIMEOUT`] is over.
pub fn until_true(what: &str, mut look: impl FnMut() -> bool) {
    until(what, || look().then_some(()));
}

/// Polls until there is a value; `None` when the time is over. It polls at least once.
pub fn within<T>(time: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = now() + time;
    loop {
        match look() {
            Some(answer) => return Some(answer),
            None if now() >= deadline => return None,
            None => pause(POLL_INTERVAL),
        }
    }
}

/// The clock of the tests: other processes run in real time, and so must code that waits for them.
#[expect(clippy::disallowed_methods, reason = "processes outside go by real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Lets the given time pass; for faults that consist of time, never to wait for an event.
#[expect(clippy::disallowed_methods, reason = "the pause between two looks; a fault made of time")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_until_there_is_an_answer_or_the_time_is_over() {
        let mut looks = 0;
        let third = until("the third look", || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(third, 3);
        assert_eq!(within(Duration::ZERO, || None::<()>), None);
        assert_eq!(within(Duration::ZERO, || Some(1)), Some(1));
    }
}
