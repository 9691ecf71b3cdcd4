//! The facts of a request in a trace: the same names and meanings as in `/v1/check`.

use std::borrow::Cow;
use std::net::IpAddr;

use serde_json::value::RawValue;
use tollgate::Micros;
use tollgate_rules::matcher::to_uppercase;
use tollgate_rules::{
    Answer, Ask, Descriptor, DescriptorAsk, DescriptorEntry, Facts, Headers, Hits,
};

use super::CommandFailure;
use super::trace::fields::{LineFields, text};
use super::trace::{TraceFormat, TraceLineText, TraceRequest};
use super::with_rules::SimRules;
use crate::replay::ReplayedCaller;

/// Format of lines with facts.
pub(super) const TRACE_FORMAT: TraceFormat = TraceFormat {
    subject_field: "facts",
    line_hint: r#"write one object per line, such as {"at":1500000,"facts":{"path":"/api","user":"42"}}"#,
    fields_hint: r#"with --rules, a line has "at" and, once each if at all, "cost", "facts" and "takes_us""#,
    has_work: true,
};

const FACTS_HINT: &str = r#"write an object, such as "facts":{"path":"/api","user":"42"}"#;
const NAMES_HINT: &str = "facts are method, path, host, ip, user, tier, api_key and headers, each once if at all; or domain and \
     entries";
const TEXT_HINT: &str = "write text in quotes, or leave it out";
const IP_HINT: &str = r#"write an address, such as "192.0.2.1" or "2001:db8::1""#;
const ENTRIES_HINT: &str = r#"write a descriptor of Envoy, such as "domain":"edge","entries":[["remote_address","192.0.2.1"]]"#;
const HEADERS_HINT: &str = r#"write an object of text, such as "headers":{"x-tenant":"acme"}"#;

/// The facts of a line. All are optional, and `null` is the same as missing.
#[derive(Clone, Default)]
pub(super) struct TraceLine<'a> {
    pub(super) method: Option<Cow<'a, str>>,
    pub(super) path: Option<Cow<'a, str>>,
    host: Option<Cow<'a, str>>,
    pub(super) ip: Option<IpAddr>,
    pub(super) user: Option<Cow<'a, str>>,
    tier: Option<Cow<'a, str>>,
    pub(super) api_key: Option<Cow<'a, str>>,
    headers: Vec<TraceHeader<'a>>,
    /// Descriptor of Envoy, instead of the other facts.
    descriptor: Option<(TraceDescriptor<'a>, DescriptorPosition<'a>)>,
    cost: Option<u64>,
}

/// A descriptor: its domain and its entries.
type TraceDescriptor<'a> = (Cow<'a, str>, Vec<(Cow<'a, str>, Cow<'a, str>)>);

/// Position of a descriptor.
type DescriptorPosition<'a> = (TraceLineText<'a>, &'a RawValue);

/// Name and value of a header.
type TraceHeader<'a> = (Cow<'a, str>, Cow<'a, str>);

impl<'a> TraceLine<'a> {
    pub(super) fn read(request: &TraceRequest<'a>) -> Result<TraceLine<'a>, CommandFailure> {
        let cost = request.cost;
        let Some(facts) = unless_null(request.subject) else {
            return Ok(TraceLine { cost, ..TraceLine::default() });
        };
        let line = &request.line;
        let fields: LineFields<'a> = serde_json::from_str(facts.get())
            .map_err(|_| line.wrong_value(facts, "facts", "which is not an object", FACTS_HINT))?;
        let names = [
            "method", "path", "host", "ip", "user", "tier", "api_key", "headers", "domain",
            "entries",
        ];
        let values = line.pick(&fields, names, NAMES_HINT)?;
        let [others @ .., domain, entries] = values.map(unless_null);
        if domain.is_some() || entries.is_some() {
            let other = others.iter().flatten().next().copied();
            let descriptor = read_descriptor(line, (facts, other), (domain, entries))?;
            let descriptor = Some((descriptor, (*line, facts)));
            return Ok(TraceLine { descriptor, cost, ..TraceLine::default() });
        }
        let [method, path, host, ip, user, tier, api_key, headers] = others;
        let text = |value, name| read_text(line, value, name);
        Ok(TraceLine {
            method: text(method, "method")?.map(to_uppercase),
            path: text(path, "path")?,
            host: text(host, "host")?,
            ip: ip.map(|ip| read_ip(line, ip)).transpose()?,
            user: text(user, "user")?,
            tier: text(tier, "tier")?,
            api_key: text(api_key, "api_key")?,
            headers: headers.map_or(Ok(Vec::new()), |headers| read_headers(line, headers))?,
            descriptor: None,
            cost,
        })
    }

    /// Returns the answer that a request for nothing would get; charges nothing.
    pub(super) fn peek(&self, sim: &SimRules, at: Micros) -> Result<Answer, CommandFailure> {
        let SimRules { gatekeeper, store, .. } = sim;
        let stated = self.stated_facts();
        let rules = gatekeeper.rules();
        let identity = rules.settings().identify.identify_stated(&stated, at);
        let ask = Ask { facts: identity.complete(stated), cost: Some(0), ..Ask::default() };
        store.wait(gatekeeper.peek_by(gatekeeper.rules(), &ask, at))
    }

    /// Decides by these rules.
    pub(super) fn decide(&self, sim: &SimRules, at: Micros) -> Result<Answer, CommandFailure> {
        let SimRules { gatekeeper, store, .. } = sim;
        if let Some(descriptor) = &self.descriptor {
            return self.decide_descriptor(descriptor, sim, at);
        }
        let stated = self.stated_facts();
        let rules = gatekeeper.rules();
        let identity = rules.settings().identify.identify_stated(&stated, at);
        let facts = identity.complete(stated);
        let ask = Ask { facts, cost: self.cost, ..Ask::default() };
        store.wait(gatekeeper.decide_by(gatekeeper.rules(), &ask, at))
    }

    /// The facts, as they are stated.
    pub(super) fn stated_facts(&self) -> Facts<'_> {
        Facts {
            method: self.method.as_deref(),
            path: self.path.as_deref(),
            host: self.host.as_deref(),
            ip: self.ip,
            user: self.user.as_deref(),
            tier: self.tier.as_deref(),
            api_key: self.api_key.as_deref(),
            headers: (!self.headers.is_empty()).then_some(&self.headers as &dyn Headers),
            ..Facts::default()
        }
    }

    /// The cost, if the line has one.
    pub(super) fn cost(&self) -> Option<u64> {
        self.cost
    }

    /// Returns true if the line has a descriptor of Envoy instead of other facts.
    pub(super) fn has_descriptor(&self) -> bool {
        self.descriptor.is_some()
    }

    /// The caller, as a comparison of rule sets counts it.
    pub(super) fn replayed_caller(&self) -> ReplayedCaller<'_> {
        ReplayedCaller::new(self.user.as_deref(), self.api_key.as_deref(), self.ip)
    }

    /// The caller's name in a summary.
    pub(super) fn caller(&self) -> String {
        let named = self.user.as_deref().or(self.api_key.as_deref()).map(str::to_owned);
        named.or_else(|| self.ip.map(|ip| ip.to_string())).unwrap_or_else(|| "(nobody)".into())
    }

    /// The same facts without the line; a descriptor is left out.
    pub(super) fn into_owned(self) -> TraceLine<'static> {
        let owned = |text: Cow<'_, str>| Cow::<'static, str>::Owned(text.into_owned());
        TraceLine {
            method: self.method.map(owned),
            path: self.path.map(owned),
            ip: self.ip,
            user: self.user.map(owned),
            tier: self.tier.map(owned),
            host: self.host.map(owned),
            api_key: self.api_key.map(owned),
            headers: self
                .headers
                .into_iter()
                .map(|(name, value)| (owned(name), owned(value)))
                .collect(),
            descriptor: None,
            cost: self.cost,
        }
    }

    /// Decides a descriptor, as for Envoy.
    fn decide_descriptor(
        &self,
        ((domain, entries), (line, facts)): &(TraceDescriptor<'_>, DescriptorPosition<'_>),
        SimRules { gatekeeper, store, .. }: &SimRules,
        at: Micros,
    ) -> Result<Answer, CommandFailure> {
        let entries: Vec<DescriptorEntry<'_>> =
            entries.iter().map(|(name, value)| DescriptorEntry { name, value }).collect();
        let hits = self.cost.map(Hits::Take);
        let descriptors = [Descriptor { entries: &entries, hits, limit: None }];
        let ask = DescriptorAsk { domain, descriptors: &descriptors };
        let answer = gatekeeper.decide_descriptors_by(gatekeeper.rules(), &ask, at);
        let described = store.wait(answer)?;
        let described = described.map_err(|error| {
            line.wrong_value(
                facts,
                "facts",
                &format!("which is not decided: {error}"),
                ENTRIES_HINT,
            )
        })?;
        Ok(described.into_answer())
    }
}

/// Reads a descriptor, which excludes other facts.
fn read_descriptor<'a>(
    line: &TraceLineText<'a>,
    (facts, other): (&'a RawValue, Option<&'a RawValue>),
    (domain, entries): (Option<&'a RawValue>, Option<&'a RawValue>),
) -> Result<TraceDescriptor<'a>, CommandFailure> {
    let wrong = |value, is| line.wrong_value(value, "facts", is, ENTRIES_HINT);
    if let Some(other) = other {
        return Err(wrong(other, "which cannot stand beside domain and entries"));
    }
    let (Some(domain), Some(entries)) = (domain, entries) else {
        return Err(wrong(facts, "which needs both domain and entries"));
    };
    let name = text(domain).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| wrong(domain, "which is not the name of a domain"))?;
    let pairs: Vec<(&RawValue, &RawValue)> = serde_json::from_str(entries.get())
        .map_err(|_| wrong(entries, "which is not a list of pairs"))?;
    let mut read = Vec::with_capacity(pairs.len());
    for (name, value) in pairs {
        let part = |value| text(value).ok_or_else(|| wrong(value, "which is not text"));
        read.push((part(name)?, part(value)?));
    }
    Ok((name, read))
}

fn unless_null(value: Option<&RawValue>) -> Option<&RawValue> {
    value.filter(|value| value.get() != "null")
}

fn read_text<'a>(
    line: &TraceLineText<'a>,
    value: Option<&'a RawValue>,
    name: &str,
) -> Result<Option<Cow<'a, str>>, CommandFailure> {
    let read = |value| {
        text(value).ok_or_else(|| line.wrong_value(value, name, "which is not text", TEXT_HINT))
    };
    value.map(read).transpose()
}

fn read_ip(line: &TraceLineText<'_>, value: &RawValue) -> Result<IpAddr, CommandFailure> {
    let address = text(value).and_then(|text| text.parse().ok());
    address.ok_or_else(|| line.wrong_value(value, "ip", "which is not an address", IP_HINT))
}

fn read_headers<'a>(
    line: &TraceLineText<'a>,
    value: &'a RawValue,
) -> Result<Vec<TraceHeader<'a>>, CommandFailure> {
    let fields: LineFields<'a> = serde_json::from_str(value.get())
        .map_err(|_| line.wrong_value(value, "headers", "which is not an object", HEADERS_HINT))?;
    let mut headers: Vec<TraceHeader<'a>> = Vec::new();
    for (written, value) in fields.iter() {
        let wrong_name = |is| line.unknown_field(written, is, HEADERS_HINT);
        let name = text(written).ok_or_else(|| wrong_name("is not text"))?;
        if headers.iter().any(|(there, _)| there.eq_ignore_ascii_case(&name)) {
            return Err(wrong_name("is given twice"));
        }
        let value = text(value)
            .ok_or_else(|| line.wrong_value(value, &name, "which is not text", HEADERS_HINT))?;
        headers.push((name, value));
    }
    Ok(headers)
}
