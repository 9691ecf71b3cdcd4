//! The arithmetic of one limit in words and numbers, for each algorithm.

use tollgate::algorithm::State;
use tollgate::limit::Precision;
use tollgate::{Algorithm, DecidedBy, Limit, Micros, Outcome, Wait};

use super::instant_text::instant_text;
use super::level::LimitLevel;
use super::wait_text::wait_text;

/// One limit and what it says to a request.
pub(super) struct LimitJudgement<'a> {
    pub(super) limit: &'a Limit,
    /// The state before the request.
    pub(super) present: &'a Outcome,
    /// The same state with its parts; `None` if the store does not show it.
    pub(super) state: Option<&'a State>,
    /// The outcome of the request.
    pub(super) asked: &'a Outcome,
    /// The units for which the limit was judged.
    pub(super) needs: u64,
    pub(super) now: Micros,
}

impl LimitJudgement<'_> {
    /// The level of the state before the request: tokens of a token bucket, units in a leaky
    /// bucket, units used of all others. `None` if it is not known, or is that of another limit.
    pub(super) fn level(&self) -> Option<LimitLevel> {
        use DecidedBy::{Block, Closed, Local, Open};
        if matches!(self.asked.decided_by, Block | Closed | Local | Open) {
            return None;
        }
        let (limit, present) = (self.limit, self.present);
        Some(match limit.algorithm() {
            Algorithm::TokenBucket => LimitLevel::tokens(limit, present, self.now),
            Algorithm::LeakyBucket => {
                LimitLevel::tokens(limit, present, self.now).rest_of(limit.capacity())
            }
            _ => LimitLevel::whole(limit.capacity().saturating_sub(present.remaining)),
        })
    }

    /// The arithmetic as a sentence without its full stop.
    pub(super) fn arithmetic(&self) -> String {
        let by = self.asked.decided_by;
        let Some(level) = self.level() else { return self.without_state() };
        let text = match self.limit.algorithm() {
            Algorithm::TokenBucket => self.token_bucket(level),
            Algorithm::LeakyBucket if self.limit.is_queue() => self.queue(level),
            Algorithm::LeakyBucket => self.leaky_bucket(level),
            Algorithm::FixedWindow => self.fixed_window(level),
            Algorithm::SlidingWindowLog => self.sliding_log(level),
            Algorithm::SlidingWindowCounter => self.sliding_counter(level),
        };
        match by {
            DecidedBy::Overflow => {
                format!("{text} (counted together with other keys, because the table is full)")
            }
            DecidedBy::RefusalCache => {
                format!("{text} (remembered: the store refused this key a moment ago)")
            }
            DecidedBy::Lease => format!("{text} (spent from units borrowed from the store)"),
            _ => text,
        }
    }

    /// The text for a limit that no state of its own decided.
    fn without_state(&self) -> String {
        let wait = || wait_text(self.asked.retry_after);
        match self.asked.decided_by {
            DecidedBy::Block => format!("not asked: the key is blocked for {}", wait()),
            DecidedBy::Open => "the store is unavailable, and the rule admits then".into(),
            DecidedBy::Closed => "the store is unavailable, and the rule refuses then".into(),
            _ => {
                let outcome = match self.asked.allowed {
                    true => "fits".into(),
                    false => format!("refused, {} until it fits", wait()),
                };
                format!(
                    "the store is unavailable: this instance decides by its share of the limit, \
                     {} left, needs {}: {outcome}",
                    self.present.remaining, self.needs
                )
            }
        }
    }

    fn token_bucket(&self, level: LimitLevel) -> String {
        let have = match level.is_negative() {
            true => format!("{} tokens in debt", level.abs()),
            false => format!(
                "{level} {}",
                if level == LimitLevel::whole(1) { "token" } else { "tokens" }
            ),
        };
        let left = level.plus(-i128::from(self.needs));
        let refused = |wait: &str| format!("{wait} until {}", self.needs);
        self.sentence(
            &format!("bucket of {}, {have}", self.limit.capacity()),
            &format!("{left} left"),
            refused,
        )
    }

    fn leaky_bucket(&self, level: LimitLevel) -> String {
        let filled = level.plus(self.needs.into());
        let refused = |wait: &str| format!("{wait} until {}", self.until_fits());
        let have = match level.is_zero() {
            true => "empty".into(),
            false => format!("filled to {level}"),
        };
        let bucket = format!("leaky bucket of {}, {have}", self.limit.capacity());
        self.sentence(&bucket, &format!("filled to {filled}"), refused)
    }

    fn queue(&self, level: LimitLevel) -> String {
        let leaves = match self.asked.delay {
            Wait::ZERO => "leaves at once".into(),
            delay => format!("leaves after {}", wait_text(delay)),
        };
        let refused = |wait: &str| format!("{wait} until {}", self.until_fits());
        self.sentence(
            &format!("queue of {}, {level} ahead", self.limit.capacity()),
            &leaves,
            refused,
        )
    }

    fn fixed_window(&self, level: LimitLevel) -> String {
        let used = level.plus(self.needs.into());
        let fits = format!("{used} used{}", self.until_end(self.asked));
        let refused = |wait: &str| format!("{wait} until the window ends{}", self.at_end());
        self.sentence(&format!("window of {}, {level} used", self.limit.capacity()), &fits, refused)
    }

    fn sliding_log(&self, level: LimitLevel) -> String {
        let used = level.plus(self.needs.into());
        let refused = |wait: &str| format!("{wait} until {}", self.until_expired());
        let log = format!("{}, {level} used", self.trailing("any"));
        self.sentence(&log, &format!("{used} used"), refused)
    }

    fn sliding_counter(&self, level: LimitLevel) -> String {
        let used = level.plus(self.needs.into());
        let (log, about) = match self.limit.precision() {
            Precision::Estimate => (self.trailing("the last"), "about "),
            Precision::Buckets(_) => (self.trailing("any"), ""),
        };
        let sum = self.counter_sum();
        let refused = |wait: &str| format!("{wait} until {}", self.until_expired());
        self.sentence(
            &format!("{log}, {sum}{about}{level} used"),
            &format!("{about}{used} used"),
            refused,
        )
    }

    /// The two windows of a sliding counter: `75.5 % of 80 + 20 = `.
    fn counter_sum(&self) -> String {
        let Some(State::Counter(state)) = self.state else { return String::new() };
        let terms = state.terms(self.limit, self.now);
        if terms.previous == 0 {
            return String::new();
        }
        let (whole, part) = (terms.overlap_thousandths / 10, terms.overlap_thousandths % 10);
        format!("{whole}.{part} % of {} before + {} now = ", terms.previous, terms.current)
    }

    /// The sentence that all algorithms have in common.
    fn sentence(&self, state: &str, fits: &str, refused: impl Fn(&str) -> String) -> String {
        let (asked, needs) = (self.asked, self.needs);
        let at = instant_text(self.now, self.now);
        let outcome = if asked.allowed {
            match needs {
                0 => "only looked at".into(),
                _ => format!("fits, {fits}"),
            }
        } else if asked.retry_after.is_never() {
            format!("never fits, the most at once is {}", self.limit.capacity())
        } else {
            format!("refused, {}", refused(&wait_text(asked.retry_after)))
        };
        format!("{state} at {at}, needs {needs}: {outcome}")
    }

    fn until_fits(&self) -> String {
        match self.needs {
            1 => "1 fits".into(),
            needs => format!("{needs} fit"),
        }
    }

    fn until_expired(&self) -> String {
        let free = self.present.remaining;
        match self.needs.saturating_sub(free) {
            1 => "1 of them has expired".into(),
            more => format!("{more} of them have expired"),
        }
    }

    /// The end of the window, if something is used in it.
    fn until_end(&self, outcome: &Outcome) -> String {
        match outcome.reset_after {
            Wait::ZERO => String::new(),
            wait => format!(" until {}", instant_text(self.now.after(wait), self.now)),
        }
    }

    fn at_end(&self) -> String {
        match self.asked.retry_after {
            Wait::NEVER => String::new(),
            wait => format!(" at {}", instant_text(self.now.after(wait), self.now)),
        }
    }

    /// `100 in any minute`.
    fn trailing(&self, which: &str) -> String {
        let period = self.limit.period_us();
        let unit = [(1, "second"), (60, "minute"), (3_600, "hour"), (86_400, "day")];
        let named = unit.iter().find(|(seconds, _)| seconds * 1_000_000 == period);
        let period = match named {
            Some((_, name)) => (*name).into(),
            None => wait_text(Wait::from_micros(period)),
        };
        format!("{} in {which} {period}", self.limit.capacity())
    }
}

#[cfg(test)]
mod tests;
