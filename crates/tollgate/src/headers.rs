//! A decision as HTTP tells it: header fields in every dialect, and the body of a refusal.
//!
//! All text that a client reads about its limits is made here, so that rounding is decided once:
//! waits round up to whole seconds, `Retry-After` is at least 1, and no reset lies before it.
//! Headers allocate nothing: their values are written wherever `fmt` can write.
//!
//! ```
//! use tollgate::headers::{Dialect, Policy, PolicyName, Reply};
//! use tollgate::{Limit, Limiter, Micros};
//!
//! let limiter = Limiter::with_capacity(1_000);
//! let limit = Limit::per_second(10).burst(10).name("api").build()?;
//! let name = PolicyName::of(&limit); // made once, kept beside the limit
//!
//! let now = limiter.at(Micros::from_secs(1_795_000_000));
//! assert!(now.take(&limit, "user:42", 10).allowed());
//! let decision = now.check(&limit, "user:42");
//!
//! let policies = [Policy::alone(&name, &limit, &decision)];
//! let reply = Reply::new(&decision, &policies);
//! let headers = reply.headers(&Dialect::DEFAULT).map(|(name, value)| format!("{name}: {value}"));
//! assert_eq!(
//!     headers.collect::<Vec<_>>(),
//!     [
//!         "X-RateLimit-Limit: 10",
//!         "X-RateLimit-Remaining: 0",
//!         "X-RateLimit-Reset: 1795000001",
//!         "RateLimit-Policy: \"api-1s\";q=10;w=1",
//!         "RateLimit: \"api-1s\";r=0;t=1",
//!         "Retry-After: 1",
//!         "Cache-Control: no-store",
//!     ]
//! );
//!
//! let body = reply.problem().expect("a refusal has one").to_string();
//! assert!(body.contains(r#""error":"Too Many Requests""#));
//! # Ok::<(), tollgate::LimitError>(())
//! ```

use std::fmt::{self, Write};
use std::str::FromStr;

use crate::decision::{Decision, MAX_LIMITS, Outcome, Refusal};
use crate::limit::{Calendar, CalendarUnit, Limit};
use crate::time::{Micros, Wait};

/// What a reply tells its client: a decision, and the policies that it was made under.
///
/// The fields are open because some doors know better than the decision: one that cannot hold a
/// request back makes a refusal of a delay.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// The enforced limits, in the order of the rule. Those in shadow stay out: a client that
    /// paces itself by a limit that nobody enforces is slowed down for nothing.
    /// Bound: [`MAX_LIMITS`], as in a decision.
    pub policies: &'a [Policy<'a>],
    /// Why the request is refused, if it is.
    pub refusal: Option<Refusal>,
    /// The instant of the question.
    pub at: Micros,
    /// The binding limit's capacity; 0 if no limit was asked.
    pub capacity: u64,
    /// Whole units of the binding limit still takeable.
    pub remaining: u64,
    /// Until the same request passes; read only of refusals.
    pub retry_after: Wait,
    /// Until the binding limit is full again.
    pub reset_after: Wait,
}

/// One limit of a decision, by the name that clients know it by.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// What clients call it.
    pub name: &'a PolicyName,
    /// Its numbers, after the caller's tier.
    pub limit: &'a Limit,
    /// What it said.
    pub outcome: Outcome,
}

impl<'a> Policy<'a> {
    /// The policy of a decision that was made under this limit only.
    pub fn alone(name: &'a PolicyName, limit: &'a Limit, decision: &Decision) -> Policy<'a> {
        Policy { name, limit, outcome: decision.outcome }
    }

    /// Whole seconds until one more unit is available; `None` when all are, or none ever will be.
    fn more_after_s(&self) -> Option<u64> {
        let full = self.outcome.remaining >= self.limit.capacity();
        self.outcome.more_after.seconds().filter(|seconds| !full && *seconds > 0)
    }

    /// The period, if it is a whole number of seconds and always the same: no dialect can tell
    /// others. A day counts as 24 hours, also of a calendar; a month has no length.
    fn window_s(&self) -> Option<u64> {
        let period = match self.limit.calendar() {
            Some(calendar) => calendar.unit().nominal()?,
            None => self.limit.period(),
        };
        (period.subsec_nanos() == 0).then_some(period.as_secs())
    }
}

/// The name of a field and its value.
type Header<'a> = (&'static str, Value<'a>);

impl<'a> Reply<'a> {
    /// The reply to a decision made under these limits.
    pub fn new(decision: &Decision, policies: &'a [Policy<'a>]) -> Reply<'a> {
        Reply {
            policies,
            refusal: decision.refusal(),
            at: decision.at(),
            capacity: decision.capacity(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after(),
            reset_after: decision.reset_after(),
        }
    }

    /// The header fields in these dialects, names and values. A refusal also has `Retry-After` and
    /// `Cache-Control`, whatever the dialects, even if there are none.
    ///
    /// `draft` and `legacy` share the name `RateLimit-Policy` and disagree about its value: asked
    /// for both, `draft` has it.
    pub fn headers(
        &self,
        dialects: &[Dialect],
    ) -> impl Iterator<Item = (&'static str, Value<'a>)> + use<'a> {
        let wants = |dialect| dialects.contains(&dialect);
        let x_ratelimit = if wants(Dialect::XRateLimit) { self.x_ratelimit() } else { [None; 3] };
        let draft = if wants(Dialect::Draft) { self.draft() } else { [None; 2] };
        let mut legacy = if wants(Dialect::Legacy) { self.legacy() } else { [None; 4] };
        if wants(Dialect::Draft) {
            legacy[3] = None;
        }
        x_ratelimit.into_iter().chain(draft).chain(legacy).chain(self.of_refusals()).flatten()
    }

    /// The integer of `Retry-After`: whole seconds, at least 1. `None` when allowed, and when no
    /// wait helps.
    pub fn retry_after_s(&self) -> Option<u64> {
        self.refusal?;
        self.retry_after.seconds().map(|seconds| seconds.max(1))
    }

    /// The body of a refusal; `None` when allowed.
    pub fn problem(&self) -> Option<Problem<'a>> {
        self.refusal.map(|refusal| Problem { reply: *self, refusal })
    }

    fn x_ratelimit(&self) -> [Option<Header<'a>>; 3] {
        let Some((limit, remaining)) = self.binding() else { return [None; 3] };
        [
            Some(("X-RateLimit-Limit", Value::number(limit))),
            Some(("X-RateLimit-Remaining", Value::number(remaining))),
            self.reset_at_s().map(|reset| ("X-RateLimit-Reset", Value::number(reset))),
        ]
    }

    fn draft(&self) -> [Option<Header<'a>>; 2] {
        let policies = Value(Kind::DraftPolicies(self.policies));
        let limits = Value(Kind::DraftLimits(*self));
        [
            (!self.policies.is_empty()).then_some(("RateLimit-Policy", policies)),
            self.told().next().map(|_| ("RateLimit", limits)),
        ]
    }

    fn legacy(&self) -> [Option<Header<'a>>; 4] {
        let Some((limit, remaining)) = self.binding() else { return [None; 4] };
        // The draft wants it to name the same time as `Retry-After` where both are sent.
        let reset = self.retry_after_s().or(self.reset_after.seconds());
        // A window is required here, unlike later: a policy without one cannot be told.
        let any_window = self.policies.iter().any(|policy| policy.window_s().is_some());
        let policies = Value(Kind::LegacyPolicies(self.policies));
        [
            Some(("RateLimit-Limit", Value::integer(limit))),
            Some(("RateLimit-Remaining", Value::integer(remaining))),
            reset.map(|reset| ("RateLimit-Reset", Value::integer(reset))),
            any_window.then_some(("RateLimit-Policy", policies)),
        ]
    }

    fn of_refusals(&self) -> [Option<Header<'a>>; 2] {
        [
            self.retry_after_s().map(|seconds| ("Retry-After", Value::number(seconds))),
            self.refusal.map(|_| ("Cache-Control", Value(Kind::NoStore))),
        ]
    }

    /// Capacity and remaining of the binding limit. A block stands above all limits and has none
    /// of its own, so it speaks for the first.
    fn binding(&self) -> Option<(u64, u64)> {
        match self.capacity {
            0 if self.refusal.is_some() => Some((self.policies.first()?.limit.capacity(), 0)),
            0 => None,
            capacity => Some((capacity, self.remaining)),
        }
    }

    /// The Unix second when the binding limit is full again, never before `Retry-After` has passed.
    fn reset_at_s(&self) -> Option<u64> {
        let after = |wait_us: u64| self.at.as_u64().saturating_add(wait_us).div_ceil(1_000_000);
        let reset = self.reset_after.as_micros().map(after);
        let retry = self.retry_after_s().map(|seconds| after(seconds.saturating_mul(1_000_000)));
        reset.max(retry)
    }

    /// The policies whose state is told. A refusal tells of those only that refused: no other can
    /// then name a later time than `Retry-After`.
    fn told(&self) -> impl Iterator<Item = &'a Policy<'a>> + use<'a> {
        let reply = *self;
        self.policies.iter().filter(move |policy| reply.refusal.is_none() || reply.violates(policy))
    }

    /// The policies that refused. When something else did, such as a block, there are none.
    fn violated(&self) -> impl Iterator<Item = &'a Policy<'a>> + Clone + use<'a> {
        let reply = *self;
        self.policies.iter().filter(move |policy| reply.violates(policy))
    }

    fn violates(&self, policy: &Policy<'_>) -> bool {
        let by_limits = matches!(self.refusal, Some(Refusal::OverLimit | Refusal::NeverFits));
        by_limits && !policy.outcome.allowed
    }
}

/// The value of one field; `Display` writes it.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a>(Kind<'a>);

#[derive(Clone, Copy, Debug)]
enum Kind<'a> {
    Number(u64),
    NoStore,
    DraftPolicies(&'a [Policy<'a>]),
    DraftLimits(Reply<'a>),
    LegacyPolicies(&'a [Policy<'a>]),
}

impl Value<'_> {
    fn number(number: u64) -> Value<'static> {
        Value(Kind::Number(number))
    }

    /// A number of a structured field.
    fn integer(number: u64) -> Value<'static> {
        Value::number(integer(number))
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Number(number) => write!(f, "{number}"),
            Kind::NoStore => f.write_str("no-store"),
            Kind::DraftPolicies(policies) => write_list(f, policies.iter(), write_draft_policy),
            Kind::DraftLimits(reply) => write_list(f, reply.told(), write_draft_limit),
            Kind::LegacyPolicies(policies) => write_list(
                f,
                policies.iter().filter_map(|policy| Some((policy.limit, policy.window_s()?))),
                |f, (limit, window)| write!(f, "{};w={window}", integer(limit.capacity())),
            ),
        }
    }
}

fn write_draft_policy(f: &mut fmt::Formatter<'_>, policy: &Policy<'_>) -> fmt::Result {
    policy.name.write_quoted(f)?;
    write!(f, ";q={}", integer(policy.limit.capacity()))?;
    policy.window_s().map_or(Ok(()), |window| write!(f, ";w={window}"))
}

fn write_draft_limit(f: &mut fmt::Formatter<'_>, policy: &Policy<'_>) -> fmt::Result {
    policy.name.write_quoted(f)?;
    write!(f, ";r={}", integer(policy.outcome.remaining))?;
    policy.more_after_s().map_or(Ok(()), |seconds| write!(f, ";t={}", integer(seconds)))
}

fn write_list<T>(
    f: &mut fmt::Formatter<'_>,
    items: impl Iterator<Item = T>,
    write_item: impl Fn(&mut fmt::Formatter<'_>, T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.enumerate() {
        if index > 0 {
            f.write_str(", ")?;
        }
        write_item(f, item)?;
    }
    Ok(())
}

/// A structured field carries no more than 15 digits (RFC 9651, 3.3.1).
fn integer(number: u64) -> u64 {
    number.min(999_999_999_999_999)
}

/// What clients call a policy. Checked when it is made, because a structured field carries
/// printable ASCII only (RFC 9651, 3.3.3), and a reply must not fail on a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PolicyName(Box<str>);

impl PolicyName {
    /// The most bytes. A limit's own name with its period is at most 83.
    pub const MAX_LEN: usize = 128;

    /// The name of a limit and its period, such as `api-1s`, `login-15m` or, by the calendar,
    /// `reports-1mo`; `default` for a limit without a name.
    pub fn of(limit: &Limit) -> PolicyName {
        if limit.name().is_empty() {
            return PolicyName("default".into());
        }
        let (count, unit) = match limit.calendar().map(Calendar::unit) {
            Some(CalendarUnit::Month) => (1, "mo"),
            _ => period_in_words(limit.period_us()),
        };
        PolicyName(format!("{}-{count}{unit}", limit.name()).into())
    }

    /// A name of your choosing.
    pub fn new(text: &str) -> Result<PolicyName, HeaderError> {
        let bad = |problem: String| {
            let most = PolicyName::MAX_LEN;
            HeaderError(format!(
                "the policy name {text:?} {problem}: write 1 to {most} characters of printable ASCII"
            ))
        };
        if text.is_empty() {
            return Err(bad("is empty".into()));
        }
        if let Some(odd) = text.chars().find(|c| !matches!(c, ' '..='~')) {
            return Err(bad(format!("has the character {odd:?}, which a header cannot carry")));
        }
        if text.len() > PolicyName::MAX_LEN {
            return Err(bad(format!("has {} characters", text.len())));
        }
        Ok(PolicyName(text.into()))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As a structured field's String.
    fn write_quoted(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            if matches!(c, '"' | '\\') {
                f.write_char('\\')?;
            }
            f.write_char(c)?;
        }
        f.write_char('"')
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The period in the largest unit that divides it.
fn period_in_words(period_us: u64) -> (u64, &'static str) {
    const UNITS: [(u64, &str); 6] = [
        (604_800_000_000, "w"),
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
    ];
    let unit = UNITS.into_iter().find(|(length, _)| period_us.is_multiple_of(*length));
    let (length, unit) = unit.unwrap_or((1, "us"));
    (period_us / length, unit)
}

/// How limits are told in header fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` of the binding limit; the reset is the Unix
    /// second when it is full again.
    XRateLimit,
    /// `RateLimit-Policy` and `RateLimit`, draft-ietf-httpapi-ratelimit-headers-11: every policy
    /// by name, a refusal only those that refused.
    Draft,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset` and `-Policy`, the same draft up to -06; the reset
    /// counts seconds from now.
    Legacy,
}

impl Dialect {
    /// The one table of dialects.
    pub const ALL: [Dialect; 3] = [Dialect::XRateLimit, Dialect::Draft, Dialect::Legacy];

    /// What is sent unless somebody says otherwise.
    pub const DEFAULT: [Dialect; 2] = [Dialect::XRateLimit, Dialect::Draft];

    /// The name used in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Dialect::XRateLimit => "x-ratelimit",
            Dialect::Draft => "draft",
            Dialect::Legacy => "legacy",
        }
    }

    /// Reads a list of names; `none` alone is the empty list.
    ///
    /// ```
    /// use tollgate::headers::Dialect;
    ///
    /// assert_eq!(Dialect::parse_list(["draft", "legacy"])?, [Dialect::Draft, Dialect::Legacy]);
    /// assert_eq!(Dialect::parse_list(["none"])?, []);
    /// # Ok::<(), tollgate::headers::HeaderError>(())
    /// ```
    pub fn parse_list<'t>(
        names: impl IntoIterator<Item = &'t str>,
    ) -> Result<Vec<Dialect>, HeaderError> {
        let mut dialects = Vec::with_capacity(Dialect::ALL.len());
        let (mut none, mut count) = (false, 0);
        for name in names {
            count += 1;
            if name == "none" {
                none = true;
                continue;
            }
            let dialect = name.parse()?;
            if !dialects.contains(&dialect) {
                dialects.push(dialect);
            }
        }
        if none && count > 1 {
            return Err(HeaderError(
                "the header dialect `none` stands beside others: write `none` alone, or leave it out"
                    .into(),
            ));
        }
        Ok(dialects)
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dialect {
    type Err = HeaderError;

    fn from_str(text: &str) -> Result<Dialect, HeaderError> {
        Dialect::ALL.into_iter().find(|dialect| dialect.name() == text).ok_or_else(|| {
            let names = Dialect::ALL.map(Dialect::name).join(", ");
            HeaderError(format!(
                "there is no header dialect {text:?}: write any of {names}, or `none` alone"
            ))
        })
    }
}

/// Why a policy name or a dialect cannot be used, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderError(String);

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HeaderError {}

/// The body of a refusal: JSON of RFC 9457, with the members `error`, `message` and `retryAfter`
/// for clients that know no problem types. `Display` writes it.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    reply: Reply<'a>,
    refusal: Refusal,
}

impl Problem<'_> {
    /// The status of a refusal.
    pub const STATUS: u16 = 429;
    /// What to send as `Content-Type`.
    pub const CONTENT_TYPE: &'static str = "application/problem+json";
    /// The member `type`.
    pub const TYPE: &'static str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    /// The member `error`.
    pub const ERROR: &'static str = "Too Many Requests";

    /// The member `message`, one sentence or two for people.
    pub fn message(&self) -> impl fmt::Display {
        let advice = self.advice();
        fmt::from_fn(move |f| write!(f, "Rate limit exceeded. {advice}"))
    }

    /// The member `detail`: which limits refused, and what to do.
    pub fn detail(&self) -> impl fmt::Display {
        fmt::from_fn(|f| {
            match self.refusal {
                Refusal::OverLimit => {
                    self.write_limits(f, |_| true)?;
                    f.write_str(" no room for this request.")?;
                }
                Refusal::NeverFits => {
                    self.write_limits(f, |policy| policy.outcome.retry_after.is_never())?;
                    f.write_str(" less room than this request costs, even when unused.")?;
                }
                Refusal::Blocked => f.write_str("This caller is blocked.")?,
                Refusal::Busy => f.write_str("Too much of this caller's work is going on.")?,
                Refusal::EmptyKey => f.write_str("This request does not say who is calling.")?,
                Refusal::TooManyLimits => {
                    write!(f, "This request falls under more than {MAX_LIMITS} limits.")?;
                }
            }
            write!(f, " {}", self.advice())
        })
    }

    /// `The limits api-1s (10/second), api-1m (100/minute) have`.
    fn write_limits(
        &self,
        f: &mut fmt::Formatter<'_>,
        which: impl Fn(&Policy<'_>) -> bool,
    ) -> fmt::Result {
        let limits = self.reply.violated().filter(|policy| which(policy));
        let (article, verb) = match limits.clone().count() {
            0 => return f.write_str("A limit has"),
            1 => ("The limit ", " has"),
            _ => ("The limits ", " have"),
        };
        f.write_str(article)?;
        write_list(f, limits, |f, policy| write!(f, "{} ({})", policy.name, policy.limit))?;
        f.write_str(verb)
    }

    fn advice(&self) -> impl fmt::Display + use<> {
        let retry_after_s = self.reply.retry_after_s();
        fmt::from_fn(move |f| match retry_after_s {
            Some(seconds) => write!(f, "Retry in {seconds} s."),
            None => f.write_str("Waiting does not help."),
        })
    }
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, status, error) = (Problem::TYPE, Problem::STATUS, Problem::ERROR);
        write!(f, r#"{{"type":"{kind}","title":"Quota exceeded","status":{status},"detail":"#)?;
        write_json(f, self.detail())?;
        f.write_str(r#","violated-policies":["#)?;
        for (index, policy) in self.reply.violated().enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            write_json(f, policy.name)?;
        }
        write!(f, r#"],"error":"{error}","message":"#)?;
        write_json(f, self.message())?;
        match self.reply.retry_after_s() {
            Some(seconds) => write!(f, r#","retryAfter":{seconds}}}"#),
            None => f.write_str(r#","retryAfter":null}"#),
        }
    }
}

/// Any text as a JSON string.
fn write_json(f: &mut fmt::Formatter<'_>, text: impl fmt::Display) -> fmt::Result {
    f.write_char('"')?;
    write!(JsonText(f), "{text}")?;
    f.write_char('"')
}

/// Escapes what passes through. U+2028 and U+2029 are lawful in JSON, but end a line in the
/// JavaScript of old clients.
struct JsonText<'f, 'b>(&'f mut fmt::Formatter<'b>);

impl Write for JsonText<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '"' | '\\' => write!(self.0, "\\{c}")?,
                '\n' => self.0.write_str("\\n")?,
                '\r' => self.0.write_str("\\r")?,
                '\t' => self.0.write_str("\\t")?,
                '\0'..' ' | '\x7f' | '\u{2028}' | '\u{2029}' => {
                    write!(self.0, "\\u{:04x}", u32::from(c))?;
                }
                _ => self.0.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: [Dialect; 3] = Dialect::ALL;

    fn limit(rate: &str, name: &str) -> Limit {
        crate::limit::parse_rate(rate).unwrap().name(name).build().unwrap()
    }

    fn wait(us: i64) -> Wait {
        u64::try_from(us).map_or(Wait::NEVER, Wait::from_micros)
    }

    fn outcome(remaining: u64, retry_us: i64, more_us: i64, reset_us: i64) -> Outcome {
        Outcome {
            allowed: retry_us == 0,
            remaining,
            retry_after: wait(retry_us),
            more_after: wait(more_us),
            reset_after: wait(reset_us),
            ..Outcome::default()
        }
    }

    /// The reply to one limit's outcome, one header a line.
    fn lines(rate: &str, outcome: Outcome, at_us: u64, dialects: &[Dialect]) -> Vec<String> {
        let limit = limit(rate, "api");
        let decision = Decision::of_one(&limit, outcome, 0, Micros::new(at_us));
        let name = PolicyName::of(&limit);
        let policies = [Policy::alone(&name, &limit, &decision)];
        shown(&Reply::new(&decision, &policies), dialects)
    }

    fn shown(reply: &Reply<'_>, dialects: &[Dialect]) -> Vec<String> {
        reply.headers(dialects).map(|(name, value)| format!("{name}: {value}")).collect()
    }

    #[test]
    fn seconds_round_up_and_no_reset_is_before_the_retry() {
        // at_us, retry_us, reset_us | Retry-After, X-RateLimit-Reset, RateLimit-Reset
        let rows: [(u64, i64, i64, &str, &str, &str); 13] = [
            (0, 0, 0, "", "0", "0"),
            (1, 0, 0, "", "1", "0"),
            (0, 0, 1, "", "1", "1"),
            (5_000_000, 0, 1_000_000, "", "6", "1"),
            (5_000_000, 0, 1_000_001, "", "7", "2"),
            (5_000_001, 0, 1_000_000, "", "7", "1"),
            (5_000_000, 1, 1, "1", "6", "1"),
            (5_000_001, 1, 1, "1", "7", "1"),
            (5_500_000, 100_000, 1_900_000, "1", "8", "1"),
            (5_000_000, 1_000_001, 60_000_000, "2", "65", "2"),
            (5_000_000, -1, 1_500_000, "", "7", "2"),
            (5_000_000, -1, -1, "", "", ""),
            (0, i64::MAX, i64::MAX, "9223372036855", "9223372036855", "9223372036855"),
        ];
        for (at, retry, reset, want_retry, want_x_reset, want_reset) in rows {
            let found = lines("10/minute", outcome(3, retry, 1, reset), at, &EVERY);
            let value = |name: &str| {
                let line = found.iter().find_map(|line| line.strip_prefix(name));
                line.map_or("", |line| &line[2..])
            };
            let values = ["Retry-After", "X-RateLimit-Reset", "RateLimit-Reset"].map(value);
            assert_eq!(values, [want_retry, want_x_reset, want_reset], "{at} {retry} {reset}");
        }
    }

    #[test]
    fn the_draft_tells_whole_windows_and_what_is_coming() {
        // rate, remaining, more_us | RateLimit-Policy, RateLimit
        let rows = [
            ("10/second", 9, 1, r#""api-1s";q=10;w=1"#, r#""api-1s";r=9;t=1"#),
            ("10/second", 10, 0, r#""api-1s";q=10;w=1"#, r#""api-1s";r=10"#),
            ("10/second", 10, 1, r#""api-1s";q=10;w=1"#, r#""api-1s";r=10"#),
            ("10/second", 0, 1_000_000, r#""api-1s";q=10;w=1"#, r#""api-1s";r=0;t=1"#),
            ("10/second", 0, 1_000_001, r#""api-1s";q=10;w=1"#, r#""api-1s";r=0;t=2"#),
            ("10/second", 0, -1, r#""api-1s";q=10;w=1"#, r#""api-1s";r=0"#),
            ("25/250ms", 24, 10_000, r#""api-250ms";q=25"#, r#""api-250ms";r=24;t=1"#),
            ("3/1500ms", 2, 10_000, r#""api-1500ms";q=3"#, r#""api-1500ms";r=2;t=1"#),
            ("9/minute burst 2", 1, 1, r#""api-1m";q=2;w=60"#, r#""api-1m";r=1;t=1"#),
            ("8/day", 7, -1, r#""api-1d";q=8;w=86400"#, r#""api-1d";r=7"#),
            (
                "9007199254740991/second",
                9_007_199_254_740_990,
                1,
                r#""api-1s";q=999999999999999;w=1"#,
                r#""api-1s";r=999999999999999;t=1"#,
            ),
        ];
        for (rate, remaining, more, policy, limit) in rows {
            let found = lines(rate, outcome(remaining, 0, more, more), 0, &[Dialect::Draft]);
            assert_eq!(
                found,
                [format!("RateLimit-Policy: {policy}"), format!("RateLimit: {limit}")]
            );
        }
    }

    #[test]
    fn each_dialect_has_its_fields() {
        let refused = outcome(0, 100_000, 100_000, 1_900_000);
        let rows: [(&[Dialect], &[&str]); 5] = [
            (
                &[Dialect::XRateLimit],
                &["X-RateLimit-Limit: 10", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 8"],
            ),
            (
                &[Dialect::Draft],
                &[r#"RateLimit-Policy: "api-1s";q=10;w=1"#, r#"RateLimit: "api-1s";r=0;t=1"#],
            ),
            (
                &[Dialect::Legacy],
                &[
                    "RateLimit-Limit: 10",
                    "RateLimit-Remaining: 0",
                    "RateLimit-Reset: 1",
                    "RateLimit-Policy: 10;w=1",
                ],
            ),
            (
                &[Dialect::Legacy, Dialect::Draft, Dialect::Legacy],
                &[
                    r#"RateLimit-Policy: "api-1s";q=10;w=1"#,
                    r#"RateLimit: "api-1s";r=0;t=1"#,
                    "RateLimit-Limit: 10",
                    "RateLimit-Remaining: 0",
                    "RateLimit-Reset: 1",
                ],
            ),
            (&[], &[]),
        ];
        for (dialects, want) in rows {
            let found = lines("10/second", refused, 5_500_000, dialects);
            let want = [want, &["Retry-After: 1", "Cache-Control: no-store"]].concat();
            assert_eq!(found, want, "{dialects:?}");
        }
        let found = lines("25/250ms", outcome(9, 0, 1, 1), 0, &[Dialect::Legacy]);
        assert_eq!(found.len(), 3, "a part of a second is no window: {found:?}");
    }

    #[test]
    fn a_refusal_without_a_limit_tells_of_no_violation() {
        let limit = limit("10/second", "api");
        let name = PolicyName::of(&limit);
        let policies = [Policy { name: &name, limit: &limit, outcome: Outcome::default() }];
        let at = Micros::from_secs(100);
        let blocked = Decision::refused(Refusal::Blocked, Wait::from_micros(2_500_000), at);
        let both = ["Retry-After: 3", "Cache-Control: no-store"];
        assert_eq!(shown(&Reply::new(&blocked, &[]), &EVERY), both);
        let want = [
            "X-RateLimit-Limit: 10",
            "X-RateLimit-Remaining: 0",
            "X-RateLimit-Reset: 103",
            r#"RateLimit-Policy: "api-1s";q=10;w=1"#,
            "RateLimit-Limit: 10",
            "RateLimit-Remaining: 0",
            "RateLimit-Reset: 3",
        ];
        assert_eq!(shown(&Reply::new(&blocked, &policies), &EVERY), [&want[..], &both].concat());
        let lifted = Decision::refused(Refusal::Blocked, Wait::ZERO, at);
        assert_eq!(Reply::new(&lifted, &[]).retry_after_s(), Some(1));
        assert!(shown(&Reply::new(&Decision::unlimited(at), &[]), &EVERY).is_empty());
    }

    #[test]
    fn problems_name_the_limits_and_the_way_out() {
        let (second, minute) = (limit("10/second", "api"), limit("100/minute burst 20", "api"));
        let names = [&second, &minute].map(PolicyName::of);
        let at = Micros::ZERO;
        // decision, retry_us of each | detail, violated, advice, retryAfter
        let rows = [
            (
                Decision::of_one(&second, outcome(0, 100_000, 1, 1), 0, at),
                [100_000, 0],
                "The limit api-1s (10/second) has no room for this request. Retry in 1 s.",
                r#"["api-1s"]"#,
                "Retry in 1 s.",
                "1",
            ),
            (
                Decision::of_one(&minute, outcome(0, 3_600_000, 1, 1), 0, at),
                [100_000, 3_600_000],
                "The limits api-1s (10/second), api-1m (100/minute burst 20) have no room for this \
                 request. Retry in 4 s.",
                r#"["api-1s","api-1m"]"#,
                "Retry in 4 s.",
                "4",
            ),
            (
                Decision::of_one(&second, outcome(10, -1, 0, 0), 0, at),
                [-1, 100_000],
                "The limit api-1s (10/second) has less room than this request costs, even when \
                 unused. Waiting does not help.",
                r#"["api-1s","api-1m"]"#,
                "Waiting does not help.",
                "null",
            ),
            (
                Decision::refused(Refusal::Blocked, Wait::from_micros(900_000_000), at),
                [100_000, 0],
                "This caller is blocked. Retry in 900 s.",
                "[]",
                "Retry in 900 s.",
                "900",
            ),
            (
                Decision::refused(Refusal::EmptyKey, Wait::NEVER, at),
                [0, 0],
                "This request does not say who is calling. Waiting does not help.",
                "[]",
                "Waiting does not help.",
                "null",
            ),
            (
                Decision::refused(Refusal::TooManyLimits, Wait::NEVER, at),
                [0, 0],
                "This request falls under more than 16 limits. Waiting does not help.",
                "[]",
                "Waiting does not help.",
                "null",
            ),
        ];
        for (decision, retries, detail, violated, advice, retry_after) in rows {
            let [one, two] = retries.map(|retry| outcome(0, retry, 1, 1));
            let policies = [
                Policy { name: &names[0], limit: &second, outcome: one },
                Policy { name: &names[1], limit: &minute, outcome: two },
            ];
            let problem = Reply::new(&decision, &policies).problem().unwrap();
            let want = [
                r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
                r#""title":"Quota exceeded","status":429,"detail":""#,
                detail,
                r#"","violated-policies":"#,
                violated,
                r#","error":"Too Many Requests","message":"Rate limit exceeded. "#,
                advice,
                r#"","retryAfter":"#,
                retry_after,
                "}",
            ];
            assert_eq!(problem.to_string(), want.concat());
        }
        assert!(Reply::new(&Decision::unlimited(at), &[]).problem().is_none());
    }

    #[test]
    fn json_text_is_escaped() {
        let rows = [
            ("plain \u{e9} \u{1f980}", "plain \u{e9} \u{1f980}"),
            ("say \"hi\"", r#"say \"hi\""#),
            ("a\\b/c", r"a\\b/c"),
            ("a\nb\rc\td", r"a\nb\rc\td"),
            ("\0\u{1}\u{1f}\u{7f}", r"\u0000\u0001\u001f\u007f"),
            ("\u{2028}\u{2029}", r"\u2028\u2029"),
            ("", ""),
        ];
        for (text, want) in rows {
            let json = fmt::from_fn(|f| write_json(f, text)).to_string();
            assert_eq!(json, format!("\"{want}\""));
        }
    }

    #[test]
    fn policies_are_named_after_limit_and_period() {
        let rows = [
            ("10/second", "api", "api-1s"),
            ("100/minute burst 20", "api", "api-1m"),
            ("5/90s", "api", "api-90s"),
            ("7/1h30m", "log_in", "log_in-90m"),
            ("1/36h", "a-b", "a-b-36h"),
            ("10000/day", "api", "api-1d"),
            ("1/14d", "api", "api-2w"),
            ("25/250ms", "api", "api-250ms"),
            ("1/7us", "api", "api-7us"),
            ("10/second", "", "default"),
        ];
        for (rate, name, want) in rows {
            assert_eq!(PolicyName::of(&limit(rate, name)).as_str(), want);
        }
        let longest = limit("1/3155759999999999us", &"x".repeat(64));
        let longest = PolicyName::of(&longest);
        assert_eq!(longest.as_str().len(), 83);
        assert_eq!(PolicyName::new(longest.as_str()), Ok(longest));
    }

    #[test]
    fn windows_of_the_calendar_are_told_by_their_nominal_length() {
        use crate::limit::calendar::tests::{DAYS, MONTHS, Table, by};
        let week = Table { unit: CalendarUnit::Week, ..DAYS };
        // calendar | RateLimit-Policy: draft, legacy
        let rows = [
            (DAYS, r#""reports-1d";q=8;w=86400"#, "8;w=86400"),
            (week, r#""reports-1w";q=8;w=604800"#, "8;w=604800"),
            (MONTHS, r#""reports-1mo";q=8"#, ""),
        ];
        for (calendar, draft, legacy) in rows {
            let limit = by(calendar, 8).name("reports").build().unwrap();
            let decision = Decision::of_one(&limit, outcome(7, 0, 1, 1), 0, Micros::ZERO);
            let name = PolicyName::of(&limit);
            let policies = [Policy::alone(&name, &limit, &decision)];
            let reply = Reply::new(&decision, &policies);
            let policy = |dialect| {
                let lines = shown(&reply, &[dialect]);
                let policy = lines.iter().find_map(|line| line.strip_prefix("RateLimit-Policy: "));
                policy.unwrap_or_default().to_string()
            };
            assert_eq!([policy(Dialect::Draft), policy(Dialect::Legacy)], [draft, legacy]);
        }
    }

    #[test]
    fn impossible_names_say_what_to_write() {
        let long = "x".repeat(129);
        let rows = [
            ("", r#"the policy name "" is empty: write 1 to 128 characters of printable ASCII"#),
            ("na\u{ef}ve", "has the character '\u{ef}', which a header cannot carry"),
            ("tab\there", r"has the character '\t', which"),
            ("a\r\nSet-Cookie: b", r"has the character '\r', which"),
            ("\u{7f}", r"has the character '\u{7f}', which"),
            (&long, "has 129 characters: write 1 to 128"),
        ];
        for (text, want) in rows {
            let error = PolicyName::new(text).expect_err(want).to_string();
            assert!(error.contains(want), "{error}");
        }
        PolicyName::new(&long[1..]).unwrap();
        PolicyName::new(" !\"#~").unwrap();
    }

    #[test]
    fn dialects_are_read_by_name() {
        for dialect in Dialect::ALL {
            assert_eq!(dialect.to_string().parse(), Ok(dialect));
        }
        type Row<'a> = (&'a [&'a str], Result<&'a [Dialect], &'a str>);
        let rows: [Row<'_>; 8] = [
            (&["x-ratelimit", "draft"], Ok(&Dialect::DEFAULT)),
            (&["draft", "x-ratelimit"], Ok(&[Dialect::Draft, Dialect::XRateLimit])),
            (&["legacy", "legacy"], Ok(&[Dialect::Legacy])),
            (&["none"], Ok(&[])),
            (&[], Ok(&[])),
            (&["none", "draft"], Err("write `none` alone")),
            (
                &["github"],
                Err("there is no header dialect \"github\": write any of x-ratelimit, draft, \
                     legacy, or `none` alone"),
            ),
            (&["Draft"], Err("no header dialect \"Draft\"")),
        ];
        for (names, want) in rows {
            match (Dialect::parse_list(names.iter().copied()), want) {
                (Ok(found), Ok(want)) => assert_eq!(found, want),
                (Err(error), Err(want)) => assert!(error.to_string().contains(want), "{error}"),
                (found, want) => panic!("{names:?}: {found:?} instead of {want:?}"),
            }
        }
    }
}
