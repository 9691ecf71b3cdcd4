//! The `Date` of replies, formatted once a second.

use std::time::{Duration, UNIX_EPOCH};

use tollgate::{Clock, Micros, SystemClock};

/// The text of the last second.
#[derive(Default)]
pub(super) struct DateText {
    second: Option<u64>,
    text: String,
}

impl DateText {
    /// The date at this instant; `None` reads the clock.
    pub(super) fn at(&mut self, now: Option<Micros>) -> &[u8] {
        let second = now.unwrap_or_else(|| SystemClock.now()).as_u64() / 1_000_000;
        if self.second != Some(second) {
            self.second = Some(second);
            self.text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
        }
        self.text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_changes_with_its_second() {
        let mut date = DateText::default();
        let rows = [
            (784_111_777_000_000, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (784_111_777_999_999, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (784_111_778_000_000, "Sun, 06 Nov 1994 08:49:38 GMT"),
            (784_111_777_000_000, "Sun, 06 Nov 1994 08:49:37 GMT"),
        ];
        for (at, want) in rows {
            assert_eq!(date.at(Some(Micros::new(at))), want.as_bytes());
        }
        assert_eq!(date.at(None).len(), 29);
    }
}
