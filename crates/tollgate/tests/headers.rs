//! Header fields as a client sees them: the worked cases of `data/algorithms.jsonl`, and random
//! replies read back by parsers that are not ours.

use std::time::Duration;

use serde_json::Value;
use sfv::{List, ListEntry, Parser};
use tollgate::headers::{Dialect, Policy, PolicyName, RateLimitReply};
use tollgate::limit::MAX_PERIOD;
use tollgate::time::MAX_EXACT;
use tollgate::{Algorithm, Limit, Limiter, Micros, Outcome, Refusal, Wait};

const VECTORS: &str = include_str!("data/algorithms.jsonl");

/// The largest number of a structured field.
const INTEGER_MAX: u64 = 999_999_999_999_999;

fn vector_rows(id: &str) -> Vec<Value> {
    let lines = VECTORS.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let line = lines.into_iter().find(|line| line["id"] == id).expect("the line is in the file");
    line["rows"].as_array().unwrap().clone()
}

/// The reply of limits that said this; the first to refuse for longest, or with least left, binds.
fn reply<'a>(policies: &'a [Policy<'a>], at: Micros) -> RateLimitReply<'a> {
    let refused = || policies.iter().filter(|policy| !policy.outcome.allowed);
    let binding = refused()
        .rev()
        .max_by_key(|policy| policy.outcome.retry_after)
        .or_else(|| policies.iter().min_by_key(|policy| policy.outcome.remaining))
        .expect("a reply has a policy");
    let retry_after = binding.outcome.retry_after;
    RateLimitReply {
        policies,
        refusal: refused().next().map(|_| match retry_after.is_never() {
            true => Refusal::NeverFits,
            false => Refusal::OverLimit,
        }),
        at,
        capacity: binding.limit.capacity(),
        remaining: binding.outcome.remaining,
        retry_after,
        reset_after: binding.outcome.reset_after,
    }
}

fn header(reply: &RateLimitReply<'_>, dialect: Dialect, wanted: &str) -> Option<String> {
    let mut headers = reply.headers(&[dialect]);
    headers.find(|(name, _)| *name == wanted).map(|(_, value)| value.to_string())
}

fn number(reply: &RateLimitReply<'_>, dialect: Dialect, wanted: &str) -> Option<u64> {
    header(reply, dialect, wanted).map(|value| value.parse().expect("a whole number"))
}

#[test]
fn names_are_structured_field_strings() {
    let limit = Limit::per_minute(1).build().unwrap();
    let rows = vector_rows("hd-02");
    for row in &rows {
        let (text, want) = (row[0].as_str().unwrap(), row[1].as_str());
        let found = PolicyName::new(text).ok().map(|name| {
            let policies = [Policy { name: &name, limit: &limit, outcome: Outcome::default() }];
            header(&reply(&policies, Micros::ZERO), Dialect::Draft, "RateLimit-Policy").unwrap()
        });
        assert_eq!(found, want.map(|quoted| format!("{quoted};q=1;w=60")), "{text:?}");
    }
    assert_eq!(rows.len(), 6);
}

#[test]
fn numbers_have_at_most_fifteen_digits() {
    let limit = Limit::per_minute(1).build().unwrap();
    let name = PolicyName::of(&limit);
    let rows = vector_rows("hd-03");
    for row in &rows {
        let remaining = row[0].as_u64().expect("not through a float");
        let outcome = Outcome { allowed: true, remaining, ..Outcome::default() };
        let policies = [Policy { name: &name, limit: &limit, outcome }];
        let found = header(&reply(&policies, Micros::ZERO), Dialect::Draft, "RateLimit");
        let want = format!("\"default-1m\";r={}", row[1].as_str().unwrap());
        assert_eq!(found, Some(want));
    }
    assert_eq!(rows.len(), 4);
}

/// The waits of this line are in nanoseconds: only so is a window of 60,000,000,000 the `w=60` that
/// it expects.
#[test]
fn replies_have_the_fields_of_the_worked_cases() {
    let rows = vector_rows("hd-05");
    for row in &rows {
        let columns: Vec<_> = row[0].as_array().unwrap().iter().map(policy_columns).collect();
        let policies: Vec<_> = columns
            .iter()
            .map(|(name, limit, outcome)| Policy { name, limit, outcome: *outcome })
            .collect();
        let reply = reply(&policies, Micros::ZERO);
        assert_eq!(reply.refusal.is_some(), row[1] == 429, "{row}");
        let mut found: serde_json::Map<_, _> = reply
            .headers(&[Dialect::Draft])
            .map(|(name, value)| (name.to_string(), Value::from(value.to_string())))
            .collect();
        let no_store = found.remove("Cache-Control");
        assert_eq!(no_store.is_some(), reply.refusal.is_some());
        assert_eq!(Value::from(found), row[2]);
    }
    assert_eq!(rows.len(), 4);
}

/// Name, q, w, r, t, violated. Whoever is refused waits for one unit.
fn policy_columns(columns: &Value) -> (PolicyName, Limit, Outcome) {
    let nanos = |column: usize| Duration::from_nanos(columns[column].as_u64().unwrap());
    let limit = Limit::per(columns[1].as_u64().unwrap(), nanos(2)).build().unwrap();
    let allowed = columns[5] == false;
    let more_after = Wait::at_least(nanos(4));
    let outcome = Outcome {
        allowed,
        remaining: columns[3].as_u64().unwrap(),
        more_after,
        retry_after: if allowed { Wait::ZERO } else { more_after },
        reset_after: more_after,
        ..Outcome::default()
    };
    (PolicyName::new(columns[0].as_str().unwrap()).unwrap(), limit, outcome)
}

/// SplitMix64: the seed is the number of the case, so that a failure names its own.
struct HeaderRandom(u64);

impl HeaderRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// From 1 to `most`, every order of magnitude alike, and often an end of the range.
    fn size(&mut self, most: u64) -> u64 {
        match self.below(8) {
            0 => 1,
            1 => most,
            _ => (self.next() >> self.below(64)).clamp(1, most),
        }
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn policy(&mut self) -> (PolicyName, Limit, Outcome) {
        let period_us = match self.below(2) {
            0 => self.size(MAX_PERIOD.as_secs()) * 1_000_000,
            _ => self.size(MAX_PERIOD.as_micros() as u64),
        };
        let limit = Limit::per(self.size(MAX_EXACT), Duration::from_micros(period_us));
        let limit = match self.one_in(3) {
            true => limit.clone().burst(self.size(1_000)).name("n").build().ok(),
            false => None,
        }
        .unwrap_or_else(|| limit.name("n").build().unwrap());
        let name = match self.below(4) {
            0 => PolicyName::of(&limit),
            1 => PolicyName::new(["a", "b"][self.below(2) as usize]).unwrap(),
            _ => {
                let length = self.size(PolicyName::MAX_LEN as u64);
                let text = (0..length).map(|_| match self.below(4) {
                    0 => ['"', '\\', ',', ';'][self.below(4) as usize],
                    _ => char::from(b' ' + self.below(95) as u8),
                });
                PolicyName::new(&text.collect::<String>()).unwrap()
            }
        };
        let outcome = self.outcome(&limit);
        (name, limit, outcome)
    }

    /// What such a limit might say; more is not assumed than `Outcome` promises.
    fn outcome(&mut self, limit: &Limit) -> Outcome {
        if self.one_in(6) {
            return Outcome { allowed: true, remaining: limit.capacity(), ..Outcome::default() };
        }
        let remaining = self.below(limit.capacity());
        let more = self.size(MAX_EXACT);
        let reset = more + self.below(MAX_EXACT);
        let allowed = self.one_in(2);
        let retry_after = match self.below(8) {
            _ if allowed => Wait::ZERO,
            0 => Wait::NEVER,
            _ => Wait::from_micros(more + self.below(reset - more + 1)),
        };
        Outcome {
            allowed,
            remaining,
            retry_after,
            more_after: Wait::from_micros(more),
            reset_after: Wait::from_micros(reset),
            ..Outcome::default()
        }
    }
}

/// An item's value and its parameters in order, all of them whole numbers.
type ParsedItem = (sfv::BareItem, Vec<(String, u64)>);

fn parsed(field: &str) -> Vec<ParsedItem> {
    let list: List = Parser::new(field).parse().unwrap_or_else(|error| panic!("{field}: {error}"));
    let item = |entry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(_) => panic!("{field}: no lists in lists"),
    };
    let integer = |value: &sfv::BareItem| u64::try_from(value.as_integer().unwrap()).unwrap();
    list.into_iter()
        .map(item)
        .map(|item| {
            let numbers = item.params.iter().map(|(key, value)| (key.to_string(), integer(value)));
            (item.bare_item.clone(), numbers.collect())
        })
        .collect()
}

fn string(name: &PolicyName) -> sfv::BareItem {
    sfv::BareItem::String(sfv::String::from_string(name.to_string()).unwrap())
}

fn parameters(numbers: &[(&str, Option<u64>)]) -> Vec<(String, u64)> {
    let present = numbers.iter().filter_map(|(key, value)| Some((key.to_string(), (*value)?)));
    present.map(|(key, value)| (key, value.min(INTEGER_MAX))).collect()
}

fn seconds(us: u64) -> u64 {
    us / 1_000_000 + u64::from(!us.is_multiple_of(1_000_000))
}

#[test]
fn random_replies_are_read_back_as_they_were_meant() {
    let (mut refusals, mut nevers) = (0, 0);
    for case in 0..20_000 {
        let mut random = HeaderRandom(case);
        let columns: Vec<_> = (0..1 + random.below(4)).map(|_| random.policy()).collect();
        let policies: Vec<_> = columns
            .iter()
            .map(|(name, limit, outcome)| Policy { name, limit, outcome: *outcome })
            .collect();
        let reply = reply(&policies, Micros::new(random.size(MAX_EXACT)));
        refusals += u32::from(reply.refusal.is_some());
        nevers += u32::from(reply.refusal == Some(Refusal::NeverFits));
        let read = std::panic::catch_unwind(|| {
            read_back_draft(&reply);
            read_back_legacy(&reply);
            read_back_x_ratelimit(&reply);
            read_back_problem(&reply);
        });
        assert!(read.is_ok(), "case {case}: {reply:?}");
    }
    assert!(refusals > 5_000 && nevers > 500, "{refusals} refusals, {nevers} for ever");
}

/// The policies of a reply, each name once where it comes first: of one name that which refuses for
/// longest, else that with the least left, else the first.
fn each_name_once<'a>(reply: &RateLimitReply<'a>) -> Vec<&'a Policy<'a>> {
    let mut names: Vec<&PolicyName> = Vec::new();
    for policy in reply.policies {
        if !names.contains(&policy.name) {
            names.push(policy.name);
        }
    }
    let mut policies: Vec<&Policy<'_>> = reply.policies.iter().collect();
    policies.sort_by_key(|policy| policy.outcome.remaining);
    policies.sort_by_key(|policy| {
        std::cmp::Reverse((!policy.outcome.allowed).then_some(policy.outcome.retry_after))
    });
    let binding = |name| *policies.iter().find(|policy| policy.name == name).expect("one has it");
    names.into_iter().map(binding).collect()
}

/// The whole seconds in which the capacity comes back.
fn window_s(limit: &Limit) -> Option<u64> {
    let us = limit.period().as_micros() as u64;
    if limit.algorithm().is_bucket() {
        let refill = u128::from(us) * u128::from(limit.capacity());
        return Some(refill.div_ceil(u128::from(limit.units()) * 1_000_000) as u64);
    }
    us.is_multiple_of(1_000_000).then_some(us / 1_000_000)
}

fn read_back_draft(reply: &RateLimitReply<'_>) {
    let policies = each_name_once(reply);
    let want: Vec<ParsedItem> = policies
        .iter()
        .map(|policy| {
            let q = Some(policy.limit.capacity());
            (string(policy.name), parameters(&[("q", q), ("w", window_s(policy.limit))]))
        })
        .collect();
    let found = header(reply, Dialect::Draft, "RateLimit-Policy").expect("there are policies");
    assert_eq!(parsed(&found), want);

    let told = |policy: &&&Policy<'_>| reply.refusal.is_none() || !policy.outcome.allowed;
    let want: Vec<ParsedItem> = policies
        .iter()
        .filter(told)
        .map(|policy| {
            let full = policy.outcome.remaining == policy.limit.capacity();
            let t = policy.outcome.more_after.as_micros().filter(|_| !full).map(seconds);
            let r = Some(policy.outcome.remaining);
            (string(policy.name), parameters(&[("r", r), ("t", t)]))
        })
        .collect();
    let found = header(reply, Dialect::Draft, "RateLimit").expect("one binds");
    assert_eq!(parsed(&found), want);

    let Some(retry_after) = number(reply, Dialect::Draft, "Retry-After") else { return };
    let latest = want.iter().flat_map(|(_, numbers)| numbers).filter(|(key, _)| key == "t");
    assert!(latest.map(|(_, t)| *t).max().unwrap_or(0) <= retry_after);
}

fn read_back_legacy(reply: &RateLimitReply<'_>) {
    let integer = |name| header(reply, Dialect::Legacy, name).map(|value| parsed(&value));
    let bare = |number: u64| {
        let number = sfv::Integer::try_from(number.min(INTEGER_MAX)).unwrap();
        sfv::BareItem::Integer(number)
    };
    let alone = |number| Some(vec![(bare(number), Vec::new())]);
    assert_eq!(integer("RateLimit-Limit"), alone(reply.capacity));
    assert_eq!(integer("RateLimit-Remaining"), alone(reply.remaining));
    let retry = number(reply, Dialect::Legacy, "Retry-After");
    let reset = reply.reset_after.as_micros().map(seconds).expect("a reset is finite here");
    assert_eq!(integer("RateLimit-Reset"), alone(retry.unwrap_or(reset)));
    let windows = each_name_once(reply).into_iter().map(|policy| policy.limit);
    let whole: Vec<ParsedItem> = windows
        .filter(|limit| window_s(limit).is_some())
        .map(|limit| (bare(limit.capacity()), parameters(&[("w", window_s(limit))])))
        .collect();
    assert_eq!(integer("RateLimit-Policy").unwrap_or_default(), whole);
}

fn read_back_x_ratelimit(reply: &RateLimitReply<'_>) {
    let number = |name| number(reply, Dialect::XRateLimit, name);
    assert_eq!(number("X-RateLimit-Limit"), Some(reply.capacity));
    assert_eq!(number("X-RateLimit-Remaining"), Some(reply.remaining));
    let reset_us = u128::from(number("X-RateLimit-Reset").expect("finite here")) * 1_000_000;
    let at = u128::from(reply.at.as_u64());
    let full = at + u128::from(reply.reset_after.as_micros().unwrap());
    let retry = at + u128::from(number("Retry-After").unwrap_or(0)) * 1_000_000;
    assert!((0..1_000_000).contains(&(reset_us - full.max(retry))), "up, to the next second");
}

fn read_back_problem(reply: &RateLimitReply<'_>) {
    let Some(problem) = reply.problem() else { return assert!(reply.refusal.is_none()) };
    let body: Value = serde_json::from_str(&problem.to_string()).expect("JSON");
    let members: Vec<_> = body.as_object().unwrap().keys().map(String::as_str).collect();
    let sorted = [
        "detail",
        "error",
        "message",
        "reason",
        "retryAfter",
        "status",
        "title",
        "type",
        "violated-policies",
    ];
    assert_eq!(members, sorted);
    let kind = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    assert_eq!((&body["type"], &body["reason"]), (&kind.into(), &problem.reason().into()));
    assert_eq!((&body["status"], &body["error"]), (&429.into(), &"Too Many Requests".into()));
    assert!(body["message"].as_str().unwrap().starts_with("Rate limit exceeded."));
    assert_eq!(body["detail"], problem.detail().to_string());
    assert_eq!(body["retryAfter"], Value::from(number(reply, Dialect::Draft, "Retry-After")));
    let policies = each_name_once(reply).into_iter();
    let violated = policies.filter(|policy| !policy.outcome.allowed);
    let violated: Vec<_> = violated.map(|policy| policy.name.as_str()).collect();
    assert_eq!(body["violated-policies"], Value::from(violated));
}

/// The promise behind all rounding: who waits as told is let in, and the quota is full when told.
#[test]
fn a_client_that_obeys_the_headers_is_let_in() {
    let limiter = Limiter::with_capacity(50_000);
    for case in 0..10_000 {
        let mut random = HeaderRandom(case);
        let algorithm = Algorithm::ALL[random.below(5) as usize];
        let units = 1 + random.below(20);
        let period = Duration::from_micros(random.size(10_000_000_000));
        let limit = Limit::per(units, period).algorithm(algorithm).build().unwrap();
        let name = PolicyName::of(&limit);
        let key = format!("{case}");
        let mut at = Micros::new(1_795_000_000_000_000 + random.below(100_000_000_000));
        let (cost, decision) = loop {
            let cost = 1 + random.below(units);
            let decision = limiter.at(at).take(&limit, &key, cost);
            if !decision.allowed() {
                break (cost, decision);
            }
            let pause = random.below(period.as_micros() as u64 / units + 1) / 4;
            at = at.after(Wait::from_micros(pause));
        };
        let policies = [Policy::alone(&name, &limit, &decision)];
        let reply = RateLimitReply::new(&decision, &policies);
        let retry_after = number(&reply, Dialect::XRateLimit, "Retry-After").unwrap();
        let reset = number(&reply, Dialect::XRateLimit, "X-RateLimit-Reset").unwrap();
        let obeyed = at.after(Wait::from_micros(retry_after * 1_000_000));
        let shown = format!("case {case}: {limit} at {at:?}, cost {cost}, {decision:?}");
        assert!(limiter.at(obeyed).peek(&limit, &key, cost).allowed(), "{shown}");
        assert!(Micros::from_secs(reset) >= obeyed, "{shown}");
        let full = limiter.at(Micros::from_secs(reset)).peek(&limit, &key, 0);
        assert_eq!(full.remaining(), limit.capacity(), "{shown}");
    }
}
