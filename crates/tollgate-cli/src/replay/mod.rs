//! Replays: what other rules would have answered to the same requests.
//!
//! Both rule sets decide the same requests, each with its own table, at the instants of the requests. A request
//! has changed if its caller would notice: it is refused or allowed instead, delayed for another time, or refused
//! by another rule. Other numbers alone are not a change: every edited limit has other numbers.
//!
//! `tollgate simulate --against` replays a trace this way, and `/api/candidate` the traffic that the server has
//! recorded.

mod callers;
mod comparison;
pub(crate) mod missing_facts;
mod picture;
mod recorded;
mod report;
mod series;
pub(crate) mod tally;
mod warnings;

use std::fmt;
use std::net::IpAddr;

use tollgate::Micros;

pub(crate) use callers::AffectedCaller;
pub(crate) use comparison::{ChangedExample, ExampleAnswer, ReplayComparison};
pub(crate) use recorded::{RecordedReplay, ReplayFailure, replay_recorded};
pub(crate) use report::AffectedCallersTable;
pub(crate) use series::ReplayStep;
pub(crate) use warnings::of_hashed_callers;

/// A request that two rule sets have answered.
#[derive(Clone, Copy)]
pub(crate) struct ReplayedRequest<'a> {
    pub(crate) at: Micros,
    pub(crate) method: Option<&'a str>,
    pub(crate) path: Option<&'a str>,
    pub(crate) caller: ReplayedCaller<'a>,
    /// The place of the request in its source, such as a line of a trace.
    pub(crate) position: Option<&'a dyn fmt::Display>,
}

/// The caller of a request, for people: its user, else its API key, else its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReplayedCaller<'a> {
    User(&'a str),
    ApiKey(&'a str),
    Ip(IpAddr),
    Nobody,
}

impl<'a> ReplayedCaller<'a> {
    pub(crate) fn new(
        user: Option<&'a str>,
        api_key: Option<&'a str>,
        ip: Option<IpAddr>,
    ) -> ReplayedCaller<'a> {
        match (user, api_key, ip) {
            (Some(user), ..) => ReplayedCaller::User(user),
            (None, Some(api_key), _) => ReplayedCaller::ApiKey(api_key),
            (None, None, Some(ip)) => ReplayedCaller::Ip(ip),
            (None, None, None) => ReplayedCaller::Nobody,
        }
    }
}

impl fmt::Display for ReplayedCaller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayedCaller::User(user) => write!(f, "user={user}"),
            ReplayedCaller::ApiKey(api_key) => write!(f, "api_key={api_key}"),
            ReplayedCaller::Ip(ip) => write!(f, "ip={ip}"),
            ReplayedCaller::Nobody => f.write_str("(nobody)"),
        }
    }
}
