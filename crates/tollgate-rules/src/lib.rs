//! Rules: which limits apply to a request, and whose key they count.

pub mod facts;

pub mod path;

pub mod pattern;

pub mod matcher;

pub mod key_template;

pub mod tier;

pub mod calendar;

pub mod limit_spec;

pub mod rule;

pub mod identify;

pub mod rule_set;

pub mod gatekeeper;

pub mod answer;

pub mod reservation;

pub mod problem;

mod plan;
mod seen;

pub use answer::{Answer, Judged, Policies};
pub use facts::{Facts, Headers};
pub use gatekeeper::{Ask, Gatekeeper, GatekeeperStats};
pub use identify::{Identify, Identity};
pub use plan::Standing;
pub use problem::Problem;
pub use reservation::{ReservationId, Reserved, SettleError, TableFull};
pub use rule::Rule;
pub use rule_set::{RuleSet, Settings};
