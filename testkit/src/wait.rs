//! Waiting for a state of the world outside, with a deadline: the one place where tests pause.

use std::time::{Duration, Instant};

/// How long a test waits for something that should be there in milliseconds: long enough for a
/// machine that does ten things at once, short enough to be told by it.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Looks until there is an answer, and returns it.
///
/// # Panics
///
/// When [`WAIT_TIMEOUT`] is over. `what` completes the sentence "waited 20s for …".
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(WAIT_TIMEOUT, look).unwrap_or_else(|| panic!("waited {WAIT_TIMEOUT:?} for {what}"))
}

/// Looks until it is so; [`until`] for what has no value.
///
/// # Panics
///
/// When [`WAIT_TIMEOUT`] is over.
pub fn until_true(what: &str, mut look: impl FnMut() -> bool) {
    until(what, || look().then_some(()));
}

/// Looks until there is an answer, or `None` when the time is over. It looks at least once.
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

/// The clock of the tests: a process outside goes by real time, and so does whoever waits for it.
#[expect(clippy::disallowed_methods, reason = "processes outside go by real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Lets the given time pass; for faults that are made of time, never to wait for something.
#[expect(clippy::disallowed_methods, reason = "the pause between two looks; a fault made of time")]
pub(crate) fn pause(time: Duration) {
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
