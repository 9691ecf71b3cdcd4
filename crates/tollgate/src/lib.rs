//! Exact, keyed, bounded rate limiting.

pub mod algorithm;
pub mod check;
pub mod clock;
pub mod decision;
mod hash;
pub mod limit;
pub mod limiter;
pub mod observer;
pub mod store;
mod sync;
pub mod time;
pub mod wait;

pub use algorithm::Algorithm;
pub use check::{Act, Check, Key, KeyBuf};
pub use clock::{Clock, ManualClock, SystemClock};
pub use decision::{DecidedBy, Decision, Outcome, Receipt, Refusal};
pub use limit::{Align, Limit, LimitBuilder, LimitError, OnChange, Precision};
pub use limiter::{Limiter, Moment, Permit};
pub use observer::Observer;
pub use store::MemoryStore;
pub use time::{Micros, Wait};
pub use wait::NotReady;
