//! `TG.CHECK`, `TG.PEEK` and `TG.RESET`: questions that the rules answer.
//!
//! Facts come as pairs of a field and its value, strictly: a misspelt field that is ignored would be a
//! limit that is not applied.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use tollgate::time::MAX_EXACT;
use tollgate::{Micros, Wait};
use tollgate_rules::descriptors::Entry;
use tollgate_rules::keys::CallerError;
use tollgate_rules::matcher::in_capitals;
use tollgate_rules::{Answer, Ask, Facts, Headers};

use super::reply::{Replies, Shown};
use super::request::Args;
use crate::data_plane::facts;
use crate::metrics::Timing;
use crate::store::Gatekeeper;

/// The most header fields of one question, and the most entries.
const NAMED_MAX: usize = 100;

const FIELDS: &str = "method, path, ip, user, tier, api_key, cost, domain, header.NAME, entry.NAME";

/// Why facts are none.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FactsError<'a> {
    Odd,
    NoField(&'a [u8]),
    Twice(&'a [u8]),
    NoText(&'a [u8]),
    NoAddress(&'a [u8]),
    NoCost(&'a [u8]),
    TooMany(&'static str),
}

impl fmt::Display for FactsError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FactsError::Odd => f.write_str(
                "ERR a field has no value: write pairs, such as TG.CHECK path /api/search user 42",
            ),
            FactsError::NoField(name) => {
                write!(f, "ERR there is no field '{}': write any of {FIELDS}", Shown(name))
            }
            FactsError::Twice(name) => write!(f, "ERR the field '{}' stands twice", Shown(name)),
            FactsError::NoText(name) => {
                write!(f, "ERR the value of '{}' is not UTF-8", Shown(name))
            }
            FactsError::NoAddress(value) => {
                let value = Shown(value);
                write!(f, "ERR '{value}' is no address: write such as 192.0.2.1 or 2001:db8::1")
            }
            FactsError::NoCost(value) => {
                let value = Shown(value);
                write!(f, "ERR '{value}' is no cost: write a whole number from 0 to {MAX_EXACT}")
            }
            FactsError::TooMany(what) => {
                write!(f, "ERR there are more than {NAMED_MAX} fields {what}.NAME")
            }
        }
    }
}

/// A question as it was sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Asked<'a> {
    method: Option<Cow<'a, str>>,
    path: Option<&'a str>,
    ip: Option<IpAddr>,
    user: Option<&'a str>,
    tier: Option<&'a str>,
    api_key: Option<&'a str>,
    domain: Option<&'a str>,
    cost: Option<u64>,
    /// Bound: [`NAMED_MAX`]; so are entries.
    headers: Vec<(&'a str, &'a str)>,
    entries: Vec<Entry<'a>>,
}

impl<'a> Asked<'a> {
    /// Reads all arguments behind the name of the command.
    pub(super) fn read(args: Args<'a>) -> Result<Asked<'a>, FactsError<'a>> {
        let mut asked = Asked::default();
        let mut rest = args.from(1);
        while let Some(field) = rest.next() {
            let value = rest.next().ok_or(FactsError::Odd)?;
            asked.take(field, value)?;
        }
        Ok(asked)
    }

    fn take(&mut self, field: &'a [u8], value: &'a [u8]) -> Result<(), FactsError<'a>> {
        let text = || std::str::from_utf8(value).map_err(|_| FactsError::NoText(field));
        let twice = match field {
            b"method" => self.method.replace(in_capitals(Cow::Borrowed(text()?))).is_some(),
            b"path" => self.path.replace(text()?).is_some(),
            b"user" => self.user.replace(text()?).is_some(),
            b"tier" => self.tier.replace(text()?).is_some(),
            b"api_key" => self.api_key.replace(text()?).is_some(),
            b"domain" => self.domain.replace(text()?).is_some(),
            b"ip" => {
                let ip: Option<IpAddr> = text()?.parse().ok();
                let ip = ip.ok_or(FactsError::NoAddress(value))?;
                self.ip.replace(ip.to_canonical()).is_some()
            }
            b"cost" => {
                let digits = value.iter().all(u8::is_ascii_digit);
                let cost: Option<u64> = text()?.parse().ok().filter(|_| digits);
                let cost = cost.filter(|cost| *cost <= MAX_EXACT);
                self.cost.replace(cost.ok_or(FactsError::NoCost(value))?).is_some()
            }
            _ => self.take_named(field, text()?)?,
        };
        if twice { Err(FactsError::Twice(field)) } else { Ok(()) }
    }

    /// Of a family of fields. Whether it stood there before.
    fn take_named(&mut self, field: &'a [u8], value: &'a str) -> Result<bool, FactsError<'a>> {
        let named = std::str::from_utf8(field).ok().and_then(|field| field.split_once('.'));
        match named.filter(|(_, name)| !name.is_empty()) {
            Some(("header", name)) => {
                if self.headers.len() == NAMED_MAX {
                    return Err(FactsError::TooMany("header"));
                }
                let mut others = self.headers.iter();
                let twice = others.any(|(other, _)| other.eq_ignore_ascii_case(name));
                self.headers.push((name, value));
                Ok(twice)
            }
            Some(("entry", name)) => {
                if self.entries.len() == NAMED_MAX {
                    return Err(FactsError::TooMany("entry"));
                }
                let twice = self.entries.iter().any(|other| other.name == name);
                self.entries.push(Entry { name, value });
                Ok(twice)
            }
            _ => Err(FactsError::NoField(field)),
        }
    }

    fn stated(&self) -> Facts<'_> {
        Facts {
            method: self.method.as_deref(),
            path: self.path,
            ip: self.ip,
            user: self.user,
            tier: self.tier,
            api_key: self.api_key,
            headers: (!self.headers.is_empty()).then_some(&self.headers as &dyn Headers),
            domain: self.domain,
            entries: &self.entries,
            ..Facts::default()
        }
    }

    /// Asks the rules; a peek charges nothing.
    pub(super) async fn decide(
        &self,
        gatekeeper: &Gatekeeper,
        timing: &Timing,
        (peek, now): (bool, Micros),
    ) -> Answer {
        let rules = gatekeeper.rules();
        let stated = self.stated();
        // Only header fields can tell more about who is calling.
        let known = stated.headers.map(|_| Arc::clone(&rules));
        let identity = facts::identity(known.as_deref(), &stated, now);
        let facts = identity.complete(stated);
        let ask = Ask { facts, cost: self.cost, cannot_wait: true };
        match peek {
            true => gatekeeper.peek_by(rules, &ask, now).await,
            false => timing.of(gatekeeper.decide_by(rules, &ask, now)).await,
        }
    }
}

/// Limited, limit, remaining, milliseconds until it passes (-1: it does, -2: it never will), milliseconds
/// until the limit is as good as fresh, and the rule. Without a rule that applies: allowed, nothing to
/// count, no name.
pub(super) fn reply(answer: &Answer, replies: &mut Replies) {
    let count = |units: u64| i64::try_from(units).unwrap_or(i64::MAX);
    let never = |wait: Wait| wait.millis().map_or(-2, count);
    let retry = if answer.allowed() { -1 } else { never(answer.retry_after()) };
    replies.array(6);
    replies.integer(i64::from(!answer.allowed()));
    replies.integer(count(answer.capacity()));
    replies.integer(count(answer.remaining()));
    replies.integer(retry);
    replies.integer(never(answer.reset_after()));
    match answer.binding() {
        Some(judged) => replies.text(judged.rule),
        None => replies.null(),
    }
}

/// `TG.RESET rule key`: forgets what a caller has used under a rule. 1 if there was anything, else 0.
pub(super) async fn reset(gatekeeper: &Gatekeeper, args: Args<'_>, replies: &mut Replies) {
    let text = |index: usize| std::str::from_utf8(args.get(index).unwrap_or_default());
    let (Ok(rule), Ok(key)) = (text(1), text(2)) else {
        return replies.error("ERR the rule or the key is not UTF-8");
    };
    match gatekeeper.caller(rule, key) {
        Ok(caller) => {
            let found = caller.reset().await;
            replies.integer(i64::from(found));
        }
        Err(CallerError::NoRule(problem) | CallerError::BadKey(problem)) => {
            replies.error(format_args!("ERR {problem}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::{Parser, Step};
    use super::*;

    fn with_args<T>(line: &[u8], read: impl FnOnce(Args<'_>) -> T) -> T {
        let line = [line, b"\n"].concat();
        let mut parser = Parser::default();
        assert_eq!(parser.next(&line, false), Ok(Step::Command(line.len())));
        read(parser.args(&line))
    }

    #[test]
    fn every_field_is_read_and_none_is_needed() {
        with_args(b"TG.CHECK", |args| assert_eq!(Asked::read(args), Ok(Asked::default())));
        let line =
            b"TG.CHECK method get path /a ip ::ffff:192.0.2.1 user 42 tier pro api_key k cost 7 \
            domain d header.X-A 1 header.x-b 2 entry.a.b c entry.e ''";
        with_args(line, |args| {
            let asked = Asked::read(args).unwrap();
            let want = Asked {
                method: Some("GET".into()),
                path: Some("/a"),
                ip: Some("192.0.2.1".parse().unwrap()),
                user: Some("42"),
                tier: Some("pro"),
                api_key: Some("k"),
                domain: Some("d"),
                cost: Some(7),
                headers: vec![("X-A", "1"), ("x-b", "2")],
                entries: vec![Entry { name: "a.b", value: "c" }, Entry { name: "e", value: "" }],
            };
            assert_eq!(asked, want);
        });
    }

    #[test]
    fn what_is_wrong_is_told() {
        let many = |what: &str| {
            let pairs = (0..=NAMED_MAX).map(|index| format!(" {what}.n{index} v"));
            format!("TG.CHECK{}", pairs.collect::<String>()).into_bytes()
        };
        let rows: [(&[u8], &str); 13] = [
            (b"TG.CHECK user", "ERR a field has no value: write pairs, such as TG.CHECK path"),
            (b"TG.CHECK usr 1", "ERR there is no field 'usr': write any of method, path, ip, user"),
            (b"TG.CHECK header. 1", "ERR there is no field 'header.'"),
            (b"TG.CHECK User 1", "ERR there is no field 'User'"),
            (b"TG.CHECK user 1 user 1", "ERR the field 'user' stands twice"),
            (b"TG.CHECK header.a 1 header.A 1", "ERR the field 'header.A' stands twice"),
            (b"TG.CHECK entry.a 1 entry.a 1", "ERR the field 'entry.a' stands twice"),
            (b"TG.CHECK user \xff", "ERR the value of 'user' is not UTF-8"),
            (b"TG.CHECK ip localhost", "ERR 'localhost' is no address: write such as 192.0.2.1"),
            (
                b"TG.CHECK cost -1",
                "ERR '-1' is no cost: write a whole number from 0 to 9007199254740991",
            ),
            (b"TG.CHECK cost +1", "ERR '+1' is no cost"),
            (b"TG.CHECK cost 9007199254740992", "ERR '9007199254740992' is no cost"),
            (b"TG.CHECK cost 1.0", "ERR '1.0' is no cost"),
        ];
        for (line, want) in rows {
            with_args(line, |args| {
                let error = Asked::read(args).expect_err(want).to_string();
                assert!(error.starts_with(want), "{error}");
            });
        }
        for what in ["header", "entry"] {
            with_args(&many(what), |args| {
                let error = Asked::read(args).unwrap_err().to_string();
                assert_eq!(error, format!("ERR there are more than 100 fields {what}.NAME"));
            });
        }
    }
}
