//! Rules: which limits apply to a request, and whose key they count.
//!
//! ```
//! use tollgate_rules::{Ask, Facts, Gatekeeper, Source, compile};
//!
//! let file = Source::from_text("rules.yaml", "
//! rules:
//!   - name: login
//!     match: { path: /login, method: POST }
//!     key: '{ip}'
//!     limits: [5/minute]
//! ");
//! let compiled = compile(&[file]);
//! let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
//! let gatekeeper = Gatekeeper::in_memory(rules, 100_000);
//!
//! let facts = Facts {
//!     method: Some("POST"),
//!     path: Some("/login"),
//!     ip: "192.0.2.1".parse().ok(),
//!     ..Facts::default()
//! };
//! let answer = gatekeeper.decide(&Ask { facts, ..Ask::default() });
//! assert!(answer.allowed());
//! assert_eq!(answer.binding().map(|limit| (limit.rule, limit.limit)), Some(("login", "5/minute")));
//! ```
//!
//! # Reading order
//!
//! [`facts`] are what is known of a request; [`path`], [`pattern`] and [`matcher`] say when a rule
//! applies, [`key_template`] whose use it counts, [`limit_spec`], [`tier`] and [`calendar`] which
//! limits; [`rule`] and [`rule_set`] put them together. [`gatekeeper`] asks the store and returns
//! an [`answer`], [`reservation`] settles costs later, [`descriptors`] are the requests of Envoy,
//! [`identify`] finds out who is calling; [`changes`], [`keys`], [`overrides`], [`tally`],
//! [`stripes`], [`observer`] and [`explain`](mod@explain) are for operators. A file becomes rules through [`source`] and
//! [`compile`](mod@compile), which report with [`diagnostic`]; [`schema`](mod@schema) describes it
//! to editors. Nothing here knows a protocol.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod facts;

pub mod path;

pub mod pattern;

pub mod matcher;

pub mod key_template;

pub mod credentials;

pub mod tier;

pub mod calendar;

pub mod limit_spec;

pub mod cost_source;

pub mod json_path;

pub mod json_reader;

pub mod request_json;

pub mod response_meter;

pub mod fair;

pub mod websocket_limits;

pub mod rule;

pub mod rule_set;

pub mod gateway_settings;

pub mod identify;

pub mod host;

pub mod gatekeeper;

pub mod stripes;

pub mod tally;

pub mod observer;

pub mod explain;

pub mod changes;

pub mod keys;

pub mod overrides;

pub mod answer;

pub mod reservation;

pub mod waiting;

pub mod descriptors;

pub mod source;

pub mod compile;

pub mod diagnostic;

pub mod schema;

pub mod own_refusal;

pub mod problem;

pub mod import;

mod cors;
mod event_stream;
mod lints;
mod missing_facts;
mod normalized_facts;
mod overflow;
mod plan;
mod shape;
mod spares;
pub mod suggest;
pub mod yaml;

pub use answer::{Answer, JudgedLimit, Policies};
pub use changes::Changes;
pub use compile::{Compilation, compile, parse_bytes};
pub use cors::CorsSettings;
pub use descriptors::{
    CurrentLimit, Descriptor, DescriptorAnswer, DescriptorAsk, DescriptorEntry, DescriptorError,
    Hits, StatedLimit, Status, Unit,
};
pub use diagnostic::{Diagnostic, Diagnostics, Severity, Span};
pub use facts::{Facts, Headers};
pub use gatekeeper::{
    Ask, Gatekeeper, GatekeeperStats, InfallibleStore, LocalStore, RulesVersion, expect_ready,
};
pub use gateway_settings::{GatewaySettings, RouteMatch, UpstreamSettings, UpstreamUrl};
pub use host::normalize_host;
pub use identify::{Identify, Identity, JwtStats};
pub use key_template::{key_part_texts, key_text};
pub use keys::{Caller, KeyReport};
pub use missing_facts::MissingFacts;
pub use observer::{BanNotice, BanOutcome, DecidedRequest, RuleVerdict, RulesObserver};
pub use overrides::OverrideChange;
pub use own_refusal::OwnRefusal;
pub use plan::Enforcement;
pub use problem::Problem;
pub use request_json::{RequestBodyEnd, RequestJson, RequestJsonReader, UnreadableBody};
pub use reservation::{
    AdaptiveBoundReport, BodyCharges, MeteredCharges, RequestByteCharges, ReservationAnswer,
    ReservationId, ReserveError, ResponseCharges, ResponseFacts, SettleError, SettlementCharges,
    SettlementOutcome, SettlementTally, WorkOutcome,
};
pub use response_meter::{BodyEnd, UnreadableReason};
pub use rule::Rule;
pub use rule_set::{Override, RuleSet, RuleSettings, confusable_header_name};
pub use schema::schema;
pub use source::{NamedFile, Source};
pub use tally::{Tally, Verdict};
pub use waiting::{
    BodyNeed, Departure, TurnSleepFn, WaitFigures, WaitOutcome, WaitTally, WaitingRequest,
};
pub use websocket_limits::WebSocketLimits;

/// The examples of the README, run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct TollgateRulesReadme;
