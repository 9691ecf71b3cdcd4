//! `TG.CHECK`, `TG.PEEK` and `TG.RESET`: commands that the rules answer.
//!
//! Facts are pairs of a field and its value. Unknown fields are errors: if a misspelt one were ignored, its limit would
//! not apply.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use tollgate::time::MAX_EXACT;
use tollgate::{Micros, Wait};
use tollgate_rules::descriptors::{
    Descriptor, DescriptorAsk, DescriptorEntry, DescriptorError, Hits,
};
use tollgate_rules::keys::CallerError;
use tollgate_rules::matcher::to_uppercase;
use tollgate_rules::{Answer, Ask, Facts, Headers};

use super::RespListener;
use super::audit::RespPeer;
use super::counters::RespErrorKind;
use super::replies::{Replies, TruncatedText};
use super::request::RespArgs;
use crate::data_plane::facts::{self, escape_non_utf8};
use crate::settings::OnMissingFacts;

/// Maximum number of header fields, and of entries, of one command.
const NAMED_VALUES_MAX: usize = 100;

const FIELDS: &str =
    "method, path, host, ip, user, tier, api_key, cost, domain, header.NAME, entry.NAME";

/// Error in the facts of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FactsError<'a> {
    Missing,
    FieldWithoutValue,
    UnknownField(&'a [u8]),
    DuplicateField(&'a [u8]),
    InvalidAddress(&'a [u8]),
    InvalidCost(&'a [u8]),
    TooMany(&'static str),
}

impl fmt::Display for FactsError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FactsError::Missing => write!(
                f,
                "ERR there are no facts: write pairs, such as TG.CHECK path /api/search user 42, of any \
                 of {FIELDS}"
            ),
            FactsError::FieldWithoutValue => f.write_str(
                "ERR a field has no value: write pairs, such as TG.CHECK path /api/search user 42",
            ),
            FactsError::UnknownField(name) => {
                write!(f, "ERR there is no field '{}': write any of {FIELDS}", TruncatedText(name))
            }
            FactsError::DuplicateField(name) => {
                write!(f, "ERR the field '{}' appears twice", TruncatedText(name))
            }
            FactsError::InvalidAddress(value) => {
                let value = TruncatedText(value);
                write!(
                    f,
                    "ERR '{value}' is not an IP address: write one such as 192.0.2.1 or 2001:db8::1"
                )
            }
            FactsError::InvalidCost(value) => {
                let value = TruncatedText(value);
                write!(f, "ERR '{value}' is not a cost: write a whole number from 0 to {MAX_EXACT}")
            }
            FactsError::TooMany(what) => {
                write!(f, "ERR there are more than {NAMED_VALUES_MAX} {what}.NAME fields")
            }
        }
    }
}

/// A `TG.CHECK` or `TG.PEEK` command. Bytes that are not UTF-8 are escaped: many clients let requests pass on an error,
/// so an error would be a way around the limits.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TgCheckCommand<'a> {
    method: Option<Cow<'a, str>>,
    path: Option<Cow<'a, str>>,
    host: Option<Cow<'a, str>>,
    ip: Option<IpAddr>,
    user: Option<Cow<'a, str>>,
    tier: Option<Cow<'a, str>>,
    api_key: Option<Cow<'a, str>>,
    domain: Option<Cow<'a, str>>,
    cost: Option<u64>,
    headers: Vec<TgNamedField<'a>>,
    entries: Vec<TgNamedField<'a>>,
}

/// Name and value. Bound of a list: [`NAMED_VALUES_MAX`].
type TgNamedField<'a> = (Cow<'a, str>, Cow<'a, str>);

impl<'a> TgCheckCommand<'a> {
    /// Reads all arguments after the name of the command.
    pub(super) fn read(args: RespArgs<'a>) -> Result<TgCheckCommand<'a>, FactsError<'a>> {
        let mut asked = TgCheckCommand::default();
        let mut rest = args.from(1).peekable();
        if rest.peek().is_none() {
            return Err(FactsError::Missing);
        }
        while let Some(field) = rest.next() {
            let value = rest.next().ok_or(FactsError::FieldWithoutValue)?;
            asked.set_field(field, value)?;
        }
        Ok(asked)
    }

    fn set_field(&mut self, field: &'a [u8], value: &'a [u8]) -> Result<(), FactsError<'a>> {
        let twice = match field {
            b"method" => self.method.replace(to_uppercase(escape_non_utf8(value))).is_some(),
            b"path" => self.path.replace(escape_non_utf8(value)).is_some(),
            b"host" => self.host.replace(escape_non_utf8(value)).is_some(),
            b"user" => self.user.replace(escape_non_utf8(value)).is_some(),
            b"tier" => self.tier.replace(escape_non_utf8(value)).is_some(),
            b"api_key" => self.api_key.replace(escape_non_utf8(value)).is_some(),
            b"domain" => self.domain.replace(escape_non_utf8(value)).is_some(),
            b"ip" => {
                let ip: Option<IpAddr> = escape_non_utf8(value).parse().ok();
                let ip = ip.ok_or(FactsError::InvalidAddress(value))?;
                self.ip.replace(ip.to_canonical()).is_some()
            }
            b"cost" => {
                let digits = value.iter().all(u8::is_ascii_digit);
                let cost: Option<u64> = escape_non_utf8(value).parse().ok().filter(|_| digits);
                let cost = cost.filter(|cost| *cost <= MAX_EXACT);
                self.cost.replace(cost.ok_or(FactsError::InvalidCost(value))?).is_some()
            }
            _ => self.set_named_field(field, escape_non_utf8(value))?,
        };
        if twice { Err(FactsError::DuplicateField(field)) } else { Ok(()) }
    }

    /// Sets a `header.NAME` or `entry.NAME` field. Returns true if it was set before.
    fn set_named_field(
        &mut self,
        field: &'a [u8],
        value: Cow<'a, str>,
    ) -> Result<bool, FactsError<'a>> {
        let (family, all) = match field {
            [b'h', b'e', b'a', b'd', b'e', b'r', b'.', _, ..] => ("header", &mut self.headers),
            [b'e', b'n', b't', b'r', b'y', b'.', _, ..] => ("entry", &mut self.entries),
            _ => return Err(FactsError::UnknownField(field)),
        };
        if all.len() == NAMED_VALUES_MAX {
            return Err(FactsError::TooMany(family));
        }
        let name = escape_non_utf8(&field[family.len() + 1..]);
        let same = |other: &str| match family {
            "header" => other.eq_ignore_ascii_case(&name),
            _ => other == name,
        };
        let twice = all.iter().any(|(other, _)| same(other));
        all.push((name, value));
        Ok(twice)
    }

    fn entries(&self) -> Vec<DescriptorEntry<'_>> {
        self.entries.iter().map(|(name, value)| DescriptorEntry { name, value }).collect()
    }

    fn stated_facts<'s>(&'s self, entries: &'s [DescriptorEntry<'s>]) -> Facts<'s> {
        Facts {
            method: self.method.as_deref(),
            path: self.path.as_deref(),
            host: self.host.as_deref(),
            ip: self.ip,
            user: self.user.as_deref(),
            tier: self.tier.as_deref(),
            api_key: self.api_key.as_deref(),
            headers: (!self.headers.is_empty()).then_some(&self.headers as &dyn Headers),
            domain: self.domain.as_deref(),
            entries,
            ..Facts::default()
        }
    }

    /// Decides by the rules; a peek charges nothing.
    pub(super) async fn decide(
        &self,
        listener: &RespListener,
        (peek, now): (bool, Micros),
    ) -> Result<Answer, DescriptorError> {
        let RespListener { gatekeeper, timing, .. } = listener;
        let rules = gatekeeper.rules();
        let entries = self.entries();
        // A rules file for Envoy matches entries only.
        if let Some(domain) = self.domain.as_deref().filter(|name| rules.defines_domain(name)) {
            let hits = if peek { Some(0) } else { self.cost };
            let hits = hits.map(Hits::Take);
            let descriptors = &[Descriptor { entries: &entries, hits, limit: None }];
            let ask = DescriptorAsk { domain, descriptors };
            let asked =
                gatekeeper.decide_descriptors_by(rules, &ask, gatekeeper.clock_instant(now));
            return Ok(timing.measure(Box::pin(asked)).await?.into_answer());
        }
        let stated = self.stated_facts(&entries);
        // Only header fields can add to the identity that the command states.
        let known = stated.headers.map(|_| Arc::clone(&rules));
        let identity = facts::identify_caller(known.as_deref(), &stated, now);
        let facts = identity.complete(stated);
        let needs_facts = listener.missing_facts == OnMissingFacts::Refuse;
        let ask = Ask { facts, cost: self.cost, cannot_wait: true, needs_facts };
        let at = gatekeeper.clock_instant(now);
        let at_once = match peek {
            true => gatekeeper.peek_at_once(rules, &ask, at),
            false => timing.measure_at_once(|| gatekeeper.decide_at_once(rules, &ask, at)),
        };
        Ok(match at_once {
            Ok(answer) => answer,
            // Boxed: the future of a decision is large, and a store that answers at once does not need it.
            Err(rules) if peek => Box::pin(gatekeeper.peek_by(rules, &ask, at)).await,
            Err(rules) => timing.measure(Box::pin(gatekeeper.decide_by(rules, &ask, at))).await,
        })
    }
}

/// Writes the reply: limited, limit, remaining, milliseconds until a retry passes (-1: allowed, -2: never),
/// milliseconds until the limit is fully reset, and the rule. If no rule applies, the request is allowed, its limit,
/// remaining and reset are 0, and the rule is null. If the rule refuses because the store is unavailable, the unknown
/// numbers (remaining and reset) are -1.
pub(super) fn write_reply(
    listener: &RespListener,
    answer: &Result<Answer, DescriptorError>,
    replies: &mut Replies,
) {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            listener.counters.count_error(RespErrorKind::Command);
            return replies.error(format_args!("ERR {error}"));
        }
    };
    if let Some(missing) = answer.unanswered() {
        listener.counters.count_error(RespErrorKind::Command);
        return replies.error(format_args!(
            "ERR no rule could be applied: {missing}. Send it (an empty string counts as missing), or let \
             such requests pass with --missing-facts allow"
        ));
    }
    let count = |units: u64| i64::try_from(units).unwrap_or(i64::MAX);
    let known = |number: i64| if answer.is_known() { number } else { -1 };
    let never = |wait: Wait| wait.millis().map_or(-2, count);
    let retry = if answer.allowed() { -1 } else { never(answer.retry_after()) };
    replies.array(6);
    replies.integer(i64::from(!answer.allowed()));
    replies.integer(count(answer.capacity()));
    replies.integer(known(count(answer.remaining())));
    replies.integer(retry);
    replies.integer(known(never(answer.reset_after())));
    match answer.binding() {
        Some(judged) => replies.text(judged.rule),
        None => replies.null(),
    }
}

/// `TG.RESET rule key`: resets the use of a caller under a rule. Replies 1 if there was any, else 0. Blocks and bans
/// stay. A reset that did not reach the store is an error, not 0.
pub(super) async fn reset(
    listener: &RespListener,
    args: RespArgs<'_>,
    by: RespPeer,
    replies: &mut Replies,
) {
    let text = |index: usize| escape_non_utf8(args.get(index).unwrap_or_default());
    match listener.gatekeeper.caller(&text(1), &text(2)) {
        Ok(caller) => {
            let (found, reached) = listener.changes.change(&caller, caller.reset_use()).await;
            listener.audit.log_reset(&listener.gatekeeper, &caller, found, by);
            match reached {
                true => replies.integer(i64::from(found)),
                false => replies.error(format_args!(
                    "ERR the store is unavailable, and the key was reset on this server only: try \
                     again when the store is available"
                )),
            }
        }
        Err(CallerError::NoRule(problem) | CallerError::BadKey(problem)) => {
            listener.counters.count_error(RespErrorKind::Command);
            replies.error(format_args!("ERR {problem}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::{CommandParser, ParserStep};
    use super::*;

    fn with_args<T>(line: &[u8], read: impl FnOnce(RespArgs<'_>) -> T) -> T {
        let line = [line, b"\n"].concat();
        let mut parser = CommandParser::default();
        assert_eq!(parser.next(&line, false), Ok(ParserStep::Command(line.len())));
        read(parser.args(&line))
    }

    #[test]
    fn every_field_is_read_and_none_is_needed() {
        with_args(b"TG.CHECK user 1", |args| {
            let want = TgCheckCommand { user: Some("1".into()), ..TgCheckCommand::default() };
            assert_eq!(TgCheckCommand::read(args), Ok(want));
        });
        let line =
            b"TG.CHECK method get path /a host A.example:1 ip ::ffff:192.0.2.1 user 42 tier pro api_key k cost 7 \
            domain d header.X-A 1 header.x-b 2 entry.a.b c entry.e ''";
        with_args(line, |args| {
            let asked = TgCheckCommand::read(args).unwrap();
            let want = TgCheckCommand {
                method: Some("GET".into()),
                path: Some("/a".into()),
                host: Some("A.example:1".into()),
                ip: Some("192.0.2.1".parse().unwrap()),
                user: Some("42".into()),
                tier: Some("pro".into()),
                api_key: Some("k".into()),
                domain: Some("d".into()),
                cost: Some(7),
                headers: vec![("X-A".into(), "1".into()), ("x-b".into(), "2".into())],
                entries: vec![("a.b".into(), "c".into()), ("e".into(), "".into())],
            };
            assert_eq!(asked, want);
        });
        let odd = b"TG.CHECK user \xff\xc3\xa9 method g\xffet header.\xfe a\xff entry.\xfe \xff";
        with_args(odd, |args| {
            let want = TgCheckCommand {
                method: Some("G%FFET".into()),
                user: Some("%FF%C3%A9".into()),
                headers: vec![("%FE".into(), "a%FF".into())],
                entries: vec![("%FE".into(), "%FF".into())],
                ..TgCheckCommand::default()
            };
            assert_eq!(TgCheckCommand::read(args), Ok(want), "odd is not absent, and no error");
        });
    }

    #[test]
    fn errors_name_the_wrong_field() {
        let many = |what: &str| {
            let pairs = (0..=NAMED_VALUES_MAX).map(|index| format!(" {what}.n{index} v"));
            format!("TG.CHECK{}", pairs.collect::<String>()).into_bytes()
        };
        let rows: [(&[u8], &str); 16] = [
            (b"TG.CHECK", "ERR there are no facts: write pairs, such as TG.CHECK path /api/search"),
            (b"TG.CHECK user", "ERR a field has no value: write pairs, such as TG.CHECK path"),
            (
                b"TG.CHECK usr 1",
                "ERR there is no field 'usr': write any of method, path, host, ip, user",
            ),
            (b"TG.CHECK header. 1", "ERR there is no field 'header.'"),
            (b"TG.CHECK User 1", "ERR there is no field 'User'"),
            (b"TG.CHECK user 1 user 1", "ERR the field 'user' appears twice"),
            (b"TG.CHECK header.a 1 header.A 1", "ERR the field 'header.A' appears twice"),
            (b"TG.CHECK entry.a 1 entry.a 1", "ERR the field 'entry.a' appears twice"),
            (b"TG.CHECK entry. 1", "ERR there is no field 'entry.'"),
            (b"TG.CHECK headers.a 1", "ERR there is no field 'headers.a'"),
            (b"TG.CHECK ip \xff", "ERR '\u{fffd}' is not an IP address"),
            (
                b"TG.CHECK ip localhost",
                "ERR 'localhost' is not an IP address: write one such as 192.0.2.1",
            ),
            (
                b"TG.CHECK cost -1",
                "ERR '-1' is not a cost: write a whole number from 0 to 9007199254740991",
            ),
            (b"TG.CHECK cost +1", "ERR '+1' is not a cost"),
            (b"TG.CHECK cost 9007199254740992", "ERR '9007199254740992' is not a cost"),
            (b"TG.CHECK cost 1.0", "ERR '1.0' is not a cost"),
        ];
        for (line, want) in rows {
            with_args(line, |args| {
                let error = TgCheckCommand::read(args).expect_err(want).to_string();
                assert!(error.starts_with(want), "{error}");
            });
        }
        for what in ["header", "entry"] {
            with_args(&many(what), |args| {
                let error = TgCheckCommand::read(args).unwrap_err().to_string();
                assert_eq!(error, format!("ERR there are more than 100 {what}.NAME fields"));
            });
        }
    }
}
