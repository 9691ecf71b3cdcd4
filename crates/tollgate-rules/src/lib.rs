//! Rules: which limits apply to a request, and whose key they count.

pub mod answer;
pub mod calendar;
pub mod compile;
pub mod diagnostic;
pub mod facts;
pub mod gatekeeper;
pub mod identify;
pub mod key_template;
pub mod limit_spec;
pub mod matcher;
pub mod path;
pub mod pattern;
pub mod problem;
pub mod reservation;
pub mod rule;
pub mod rule_set;
pub mod schema;
pub mod source;
pub mod tier;

mod lints;
mod plan;
mod seen;
mod shape;
mod suggest;
mod yaml;

pub use answer::{Answer, Judged, Policies};
pub use compile::{Compiled, compile};
pub use diagnostic::{Diagnostic, Diagnostics, Severity, Span};
pub use facts::{Facts, Headers};
pub use gatekeeper::{Ask, Gatekeeper, GatekeeperStats};
pub use identify::{Identify, Identity};
pub use plan::Standing;
pub use problem::Problem;
pub use reservation::{ReservationId, Reserved, SettleError, TableFull};
pub use rule::Rule;
pub use rule_set::{RuleSet, Settings};
pub use schema::schema;
pub use source::Source;
