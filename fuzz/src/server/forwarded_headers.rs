//! The headers of a forward-auth request, read by the server and by an independent oracle: only trusted peers may
//! name other clients, method and path come from one pair of headers, nothing after a `?` counts, and odd bytes
//! are neither lost nor fatal.

use std::net::IpAddr;
use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate::Micros;
use tollgate_rules::{RuleSet, Source as Text, compile};

use super::facts::RequestHeaders;
use super::forwarded::{ForwardAuthProxy, ForwardedRequest};
use super::source::FuzzSource;

/// Reads the headers of a peer.
pub fn forwarded_headers(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let rules = &RULES[source.below(RULES.len())];
    let peer: IpAddr = source.pick(&PEERS).parse().expect("an address");
    let style = source.pick(&[ForwardAuthProxy::Standard, ForwardAuthProxy::Nginx]);
    let fields = fields(&mut source);
    let got = read(rules, peer, style, &fields);
    let trusts = peer.to_canonical().to_string() != "203.0.113.9";
    match &got {
        Err(name) => assert!(stands_twice(&fields, name), "{name} in {fields:?}"),
        Ok(said) => {
            assert_eq!(said.trusted, trusts, "{peer}");
            let (method, path) = if trusts { original(style, &fields) } else { (None, None) };
            assert_eq!((&said.method, &said.path), (&method, &path), "{style:?} {fields:?}");
        }
    }
    if !trusts {
        nothing_counts_but_a_key(rules, peer, style, &fields, &got);
    }
    // What follows a `?` is the client's, and some proxies append it.
    let longer: FuzzHeaders = fields.iter().map(with_a_query).collect();
    let again = read(rules, peer, style, &longer);
    if let (Ok(got), Ok(again)) = (got, again) {
        assert_eq!((got.method, got.path), (again.method, again.path), "{fields:?}");
    }
}

/// Names in small letters, and values that a header may have.
type FuzzHeaders = Vec<(&'static str, Vec<u8>)>;

/// The result of reading, as owned values.
#[derive(Debug, PartialEq, Eq)]
struct OwnedForwarded {
    trusted: bool,
    method: Option<String>,
    path: Option<String>,
    ip: Option<IpAddr>,
    names: [Option<String>; 3],
}

fn read(
    rules: &RuleSet,
    peer: IpAddr,
    style: ForwardAuthProxy,
    fields: &FuzzHeaders,
) -> Result<OwnedForwarded, String> {
    let map: HeaderMap = fields
        .iter()
        .map(|(name, value)| {
            let value = HeaderValue::from_bytes(value).expect("only what a header may have");
            (HeaderName::from_static(name), value)
        })
        .collect();
    let headers = RequestHeaders(&map);
    let said = ForwardedRequest::read(&headers, rules, peer, style, Micros::new(0));
    let said = said.map_err(|twice| twice.0.to_string())?;
    let owned = |text: Option<std::borrow::Cow<'_, str>>| text.map(String::from);
    Ok(OwnedForwarded {
        trusted: said.trusted,
        method: owned(said.original.method),
        path: owned(said.original.path),
        ip: said.identity.ip,
        names: [said.identity.user, said.identity.tier, said.identity.api_key].map(owned),
    })
}

/// Returns true if the field appears with two different values.
fn stands_twice(fields: &FuzzHeaders, name: &str) -> bool {
    let values: Vec<_> = fields.iter().filter(|(field, _)| *field == name).collect();
    values.iter().any(|one| values.iter().any(|other| one.1 != other.1))
}

/// Checks that an untrusted peer is identified by its address and its API key only.
fn nothing_counts_but_a_key(
    rules: &RuleSet,
    peer: IpAddr,
    style: ForwardAuthProxy,
    fields: &FuzzHeaders,
    got: &Result<OwnedForwarded, String>,
) {
    let key = |field: &&(&str, Vec<u8>)| field.0 == "x-api-key";
    let only_key: FuzzHeaders = fields.iter().filter(key).cloned().collect();
    assert_eq!(&read(rules, peer, style, &only_key), got, "a stranger's header counts: {fields:?}");
    if let Ok(said) = got {
        assert_eq!(said.ip, Some(peer.to_canonical()));
        let stands = |name: &Option<String>| name.is_none() || !only_key.is_empty();
        assert!(said.names.iter().all(stands), "{said:?}");
    }
}

/// Method and path by the oracle: the pair of this kind of proxy, unless it has neither.
fn original(style: ForwardAuthProxy, fields: &FuzzHeaders) -> (Option<String>, Option<String>) {
    let first = |name: &str| fields.iter().find(|(field, _)| *field == name).map(|it| &it.1);
    let pair = |prefix: &str| {
        let method = first(&format!("{prefix}-method")).map(|value| escaped(value));
        let uri = first(&format!("{prefix}-uri")).map(|value| {
            let end = value.iter().position(|byte| *byte == b'?').unwrap_or(value.len());
            escaped(&value[..end])
        });
        (method, uri)
    };
    let (forwarded, original) = (pair("x-forwarded"), pair("x-original"));
    let (own, other) = match style {
        ForwardAuthProxy::Standard => (forwarded, original),
        ForwardAuthProxy::Nginx => (original, forwarded),
    };
    if own == (None, None) { other } else { own }
}

/// Text, or text with its odd bytes as `%XX`.
fn escaped(bytes: &[u8]) -> String {
    if let Ok(text) = String::from_utf8(bytes.to_vec()) {
        return text;
    }
    let mut text = String::new();
    for byte in bytes {
        match byte {
            0x80.. => text.push_str(&format!("%{byte:02X}")),
            ascii => text.push(char::from(*ascii)),
        }
    }
    text
}

fn with_a_query((name, value): &(&'static str, Vec<u8>)) -> (&'static str, Vec<u8>) {
    let query: &[u8] = if name.ends_with("-uri") { b"?x-forwarded-uri=/free&user=1" } else { b"" };
    (name, [value, query].concat())
}

/// Each trusts 10.0.0.0/8 and 2001:db8::/32, and nobody else.
static RULES: LazyLock<Vec<RuleSet>> = LazyLock::new(|| {
    let identify = [
        "ip: x-forwarded-for, user: { header: x-user-id }, tier: { header: x-tier }",
        "ip: forwarded, user: { api_key: { header: x-api-key } }",
        "ip: x-real-ip, api_key: { header: x-api-key }, user: { header: x-user-id }",
        "ip: { header: x-forwarded-for, trusted_hops: 2 }, user: { header: x-user-id }",
        "ip: none, user: { api_key: { header: x-api-key } }",
    ];
    let rules = identify.map(|identify| {
        let text = format!(
            "identify: {{ trusted_peers: [10.0.0.0/8, 2001:db8::/32], {identify} }}\n\
             rules: [{{ name: api, key: '{{user|ip}}', limits: [1/s] }}]"
        );
        compile(&[Text::from_text("rules.yaml", &text)]).rules.expect("rules")
    });
    rules.into()
});

const PEERS: [&str; 5] =
    ["10.0.0.1", "203.0.113.9", "::ffff:10.0.0.1", "2001:db8::1", "::ffff:203.0.113.9"];

const NAMES: [&str; 15] = [
    "x-forwarded-uri",
    "x-forwarded-method",
    "x-original-uri",
    "x-original-method",
    "x-forwarded-for",
    "forwarded",
    "x-real-ip",
    "x-user-id",
    "x-tier",
    "x-api-key",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-original-url",
    "host",
    "x-tollgate-status",
];

fn fields(source: &mut FuzzSource<'_>) -> FuzzHeaders {
    let mut fields = FuzzHeaders::new();
    for _ in 0..source.below(8) {
        let name = source.pick(&NAMES);
        let mut value = Vec::new();
        for _ in 0..source.below(4) {
            value.extend_from_slice(source.pick(&PIECES));
            if source.one_in(8) {
                value.push(source.byte());
            }
        }
        value.retain(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f));
        if source.one_in(6) {
            fields.push((name, value.clone()));
        }
        fields.push((name, value));
    }
    fields
}

const PIECES: [&[u8]; 18] = [
    b"/",
    b"/login",
    b"GET",
    b"POST",
    b"?",
    b"?ip=10.0.0.1",
    b"192.0.2.1",
    b", ",
    b"10.0.0.1",
    b"for=192.0.2.1",
    b"\xff",
    b"\xc3\xa9",
    b"\xc3",
    b"%2f",
    b"%zz",
    b"#",
    b" ",
    b"http://evil/",
];
