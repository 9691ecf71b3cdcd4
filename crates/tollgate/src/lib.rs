//! Exact, keyed, bounded rate limiting: five algorithms, one fast table.
//!
//! ```
//! use tollgate::{Limit, Limiter};
//!
//! let limiter = Limiter::with_capacity(100_000); // keys; memory never grows beyond that
//! let limit = Limit::per_minute(100).burst(20).build()?;
//!
//! let decision = limiter.check(&limit, "user:42");
//! if decision.allowed() {
//!     println!("go on, {} left", decision.remaining());
//! } else {
//!     println!("try again in {}", decision.retry_after());
//! }
//! # Ok::<(), tollgate::LimitError>(())
//! ```
//!
//! # What it promises
//!
//! * **Exact.** Whole numbers only. Buckets refill 1/day, 100/hour, 3/second or 10 million/second to
//!   the unit over any time, windows admit N and logs never more than N in any period. A plain
//!   `"100/minute"` is the sliding window counter, an estimate by design. Waiting
//!   [`Decision::retry_after`] is enough, and one microsecond less is not.
//! * **All or nothing.** A refused request charges nothing, also when it has several limits.
//! * **Bounded.** The table is allocated once. No stream of keys makes it grow, and no flood of
//!   new keys resets a limited one.
//! * **Fast.** No allocation and no shared lock per check; a refusal writes nothing at all.
//!
//! # Choosing an algorithm
//!
//! | you want | write |
//! |---|---|
//! | a rate, with bursts up to a size | `"100/minute burst 20"`: [`token_bucket`](algorithm::token_bucket) |
//! | a smooth flow: delay, do not refuse | [`leaky_bucket`](algorithm::leaky_bucket) as a [`queue`](LimitBuilder::queue) |
//! | a quota that returns at a known time | [`fixed_window`](algorithm::fixed_window) |
//! | a quota of a day, week or month somewhere | the same by a [`calendar`](Limit::per_calendar) |
//! | never more than N in any period, small N | [`sliding_window_log`](algorithm::sliding_window_log) |
//! | about N in any period, two numbers a key | `"100/minute"`: [`sliding_window_counter`](algorithm::sliding_window_counter) |
//! | never more than N in any period, large N | the same with [`buckets`](LimitBuilder::buckets) |
//!
//! # More than one limit
//!
//! Several limits are one decision: all must allow, and a refusal charges none of them.
//!
//! ```
//! # use tollgate::{Check, Limit, Limiter};
//! # let limiter = Limiter::with_capacity(1_000);
//! let burst = Limit::per_second(10).build()?;
//! let daily = Limit::per_day(10_000).build()?;
//! let per_address = Limit::per_minute(600).name("address").build()?;
//!
//! let decision = limiter.decide(&[
//!     Check::new(&burst, "user:42"),
//!     Check::new(&daily, "user:42").cost(5),
//!     Check::new(&per_address, "192.0.2.1"),
//! ]);
//! assert!(decision.allowed());
//! # Ok::<(), tollgate::LimitError>(())
//! ```
//!
//! Beside [`check`](Limiter::check) there are [`take`](Limiter::take) for costs above one,
//! [`peek`](Limiter::peek), [`take_up_to`](Limiter::take_up_to), [`force`](Limiter::force) for
//! post-paid work, [`refund`](Limiter::refund), [`reserve`](Limiter::reserve) for work whose cost
//! is known only afterwards, [`until_ready`](Limiter::until_ready) to wait in line,
//! [`reset`](Limiter::reset), [`block`](Limiter::block), [`blocked_for`](Limiter::blocked_for) and
//! [`decide_batch`](Limiter::decide_batch) for many keys at once. [`Limiter::at`] has the same at
//! an instant of your choosing.
//!
//! # Reading order
//!
//! [`time`], [`limit`], [`check`] and [`decision`] are the nouns; [`algorithm`] has the pure
//! functions; [`store`] keeps states; [`limiter`] puts them together; [`wait`], [`queue`],
//! [`observer`] and [`headers`] stand beside it. [`clock`] is the only module that reads the time.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod time;

pub mod limit;

pub mod check;

pub mod decision;

pub mod algorithm;

pub mod store;

pub mod clock;

pub mod limiter;

pub mod wait;

pub mod queue;

pub mod observer;

pub mod headers;

mod display_fn;
mod hash;
mod sync;

pub use algorithm::Algorithm;
pub use check::{Act, Check, Consistency, Key, KeyBuf, OnFailure, Terms};
pub use clock::{Clock, ManualClock, Now, SystemClock};
pub use decision::{DecidedBy, Decision, Outcome, Receipt, Refusal};
pub use limit::{
    Align, Calendar, CalendarUnit, Limit, LimitBuilder, LimitError, OnChange, Precision,
};
pub use limiter::{Limiter, Moment, Permit};
pub use observer::Observer;
pub use store::{Either, MemoryStore, RequestList, Store};
pub use time::{Micros, Wait};
pub use wait::NotReady;

/// The examples of the README, run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct TollgateReadme;
