//! Conditions of rules.

use std::borrow::Cow;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use regex::{Regex, RegexBuilder};
use strsim::osa_distance;

use crate::facts::{Facts, Headers};
use crate::gateway_settings::RouteHost;
use crate::normalized_facts::NormalizedFacts;
use crate::path::{DroppedSlashes, Spelling};
use crate::pattern::Pattern;
use crate::problem::Problem;

/// A condition on a request. A condition on a missing fact does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The path matches one of these.
    Path(Vec<Pattern>),
    /// The path fits this text test, in normal escapes.
    PathText(TextTest),
    /// The method is one of these.
    Method(Vec<Box<str>>),
    /// The host is one of these.
    Host(Vec<RouteHost>),
    /// The host fits this text test, in its one spelling.
    HostText(TextTest),
    /// A header field.
    Header {
        /// The name in lower case.
        name: Box<str>,
        /// The test of the value.
        value: TextTest,
    },
    /// The request asks to upgrade to this protocol, such as `websocket`.
    Upgrade(Box<str>),
    /// The user.
    User(TextTest),
    /// The tier.
    Tier(TextTest),
    /// The API key.
    ApiKey(TextTest),
    /// An entry of a descriptor; of several of one name one is enough.
    Entry {
        /// The name as sent.
        name: Box<str>,
        /// The test of the value.
        value: TextTest,
    },
    /// The domain of a descriptor.
    Domain(TextTest),
    /// The client's address is in one of these networks.
    Ip(Vec<IpNet>),
    /// All of them hold; true of none.
    All(Vec<Condition>),
    /// One of them holds; false of none.
    Any(Vec<Condition>),
    /// It does not hold.
    Not(Box<Condition>),
}

/// A test of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextTest {
    /// There is one.
    Present,
    /// It is one of these.
    OneOf(Vec<Box<str>>),
    /// It fits a glob or a regular expression, whole.
    Like(Expression),
}

impl Condition {
    /// Returns true if this condition, or one inside it, is `such`.
    pub fn has(&self, such: &dyn Fn(&Condition) -> bool) -> bool {
        such(self)
            || match self {
                Condition::All(parts) | Condition::Any(parts) => {
                    parts.iter().any(|part| part.has(such))
                }
                Condition::Not(inner) => inner.has(such),
                _ => false,
            }
    }

    /// Returns true if it tests the path.
    pub(crate) fn has_path(&self) -> bool {
        self.has(&|one| matches!(one, Condition::Path(_) | Condition::PathText(_)))
    }

    /// Returns true if it holds for a request whose path has this spelling. It also holds where
    /// comparing would cost too much: see [`EXPRESSION_BYTES_MAX`].
    pub(crate) fn holds(&self, seen: &NormalizedFacts<'_>, path: Option<&Spelling<'_>>) -> bool {
        self.evaluate(seen, path, false)
    }

    /// Evaluates the condition. Under a `not` it is `negated`: a test in doubt then does not hold,
    /// so that the rule applies.
    fn evaluate(
        &self,
        seen: &NormalizedFacts<'_>,
        path: Option<&Spelling<'_>>,
        negated: bool,
    ) -> bool {
        let facts = seen.facts;
        let holds =
            |test: &TextTest, text: Option<&str>| test.holds(text, &seen.match_budget, negated);
        match self {
            Condition::Path(patterns) => path.is_some_and(|path| match negated {
                false => patterns.iter().any(|one| one.matches(path.text())),
                true => patterns.iter().any(|one| one.matches_as_sent(path)),
            }),
            Condition::PathText(test) => path.is_some_and(|path| match path.slashes() {
                DroppedSlashes::Last if negated => holds(test, Some(&format!("{}/", path.text()))),
                DroppedSlashes::Doubled if negated => false,
                _ => holds(test, Some(path.text())),
            }),
            Condition::Method(methods) => {
                seen.method().is_some_and(|method| methods.iter().any(|one| includes(one, method)))
            }
            Condition::Upgrade(protocol) => wants_upgrade(facts, protocol),
            Condition::Host(hosts) => {
                seen.host().is_some_and(|host| hosts.iter().any(|one| one.matches(host)))
            }
            Condition::HostText(test) => holds(test, seen.host()),
            Condition::Header { name, value } => facts.headers.is_some_and(|headers| {
                value.holds_for_lines(headers, name, &seen.match_budget, negated)
            }),
            Condition::User(test) => holds(test, seen.user()),
            Condition::Tier(test) => holds(test, seen.tier),
            Condition::ApiKey(test) => holds(test, seen.api_key()),
            Condition::Entry { name, value } => {
                facts.entries_named(name).any(|text| holds(value, Some(text)))
            }
            Condition::Domain(test) => holds(test, facts.domain),
            Condition::Ip(nets) => seen.is_in(nets),
            Condition::All(all) => all.iter().all(|one| one.evaluate(seen, path, negated)),
            Condition::Any(any) => any.iter().any(|one| one.evaluate(seen, path, negated)),
            Condition::Not(inner) => !inner.evaluate(seen, path, !negated),
        }
    }
}

/// Returns true if a rule for one method also applies to another: servers answer HEAD as they
/// answer GET.
pub(crate) fn includes(rule: &str, method: &str) -> bool {
    rule == method || (rule == "GET" && method == "HEAD")
}

/// Returns true if a request wants to open a WebSocket.
pub(crate) fn asks_for_websocket(facts: &Facts<'_>) -> bool {
    wants_upgrade(facts, "websocket")
}

fn wants_upgrade(facts: &Facts<'_>, protocol: &str) -> bool {
    let list = facts.headers.and_then(|headers| headers.joined("upgrade"));
    list.is_some_and(|list| asks_for(&list, protocol))
}

/// Returns true if a list of protocols contains this one, in any version and spelling.
fn asks_for(list: &str, protocol: &str) -> bool {
    let names = list.split(',').map(|one| one.split('/').next().unwrap_or_default().trim());
    names.into_iter().any(|name| name.eq_ignore_ascii_case(protocol))
}

impl TextTest {
    /// Returns true if it holds for the lines of a header field. Of several lines servers read the first, the last or
    /// all joined, so it holds if it does for one of these readings; under a `not`, only if it does for each, so that
    /// the rule applies in doubt.
    fn holds_for_lines(
        &self,
        headers: &dyn Headers,
        name: &str,
        work: &MatchBudget,
        negated: bool,
    ) -> bool {
        let (mut lines, mut held) = (0, 0);
        headers.each_line(name, &mut |line| {
            lines += 1;
            held += usize::from(self.holds(Some(&line), work, negated));
        });
        if lines > 1 {
            lines += 1;
            held += usize::from(self.holds(headers.header(name).as_deref(), work, negated));
        }
        if negated { lines > 0 && held == lines } else { held > 0 }
    }

    fn holds(&self, text: Option<&str>, work: &MatchBudget, negated: bool) -> bool {
        match (self, text) {
            (_, None) => false,
            (TextTest::Present, Some(_)) => true,
            (TextTest::OneOf(texts), Some(text)) => texts.iter().any(|one| **one == *text),
            (TextTest::Like(expression), Some(text)) => {
                text.starts_with(&*expression.prefix)
                    && match work.spend(text.len()) {
                        true => expression.regex.is_match(text),
                        false => !negated,
                    }
            }
        }
    }
}

/// The most bytes of one request that are compared with globs and regular expressions, beside the
/// first [`EXPRESSION_BYTES_FREE`] of each text: some milliseconds. Beyond that rules apply as if
/// their expressions held, so that a client cannot evade a rule with long texts.
pub const EXPRESSION_BYTES_MAX: usize = 1 << 20;

/// The bytes of a text that every expression may look at, however many expressions there are: nearly all
/// paths are shorter. Only for the first spelling of a path, and the first descriptor of a request.
pub const EXPRESSION_BYTES_FREE: usize = 256;

/// The bytes that may still be compared with expressions.
#[derive(Clone, Debug)]
pub(crate) struct MatchBudget {
    left: Cell<usize>,
    /// The bytes of each text that are free now.
    free: Cell<usize>,
    /// The bytes that are free for the first spelling of a path.
    free_at_first: usize,
    exceeded: Cell<bool>,
}

impl Default for MatchBudget {
    fn default() -> MatchBudget {
        MatchBudget {
            left: Cell::new(EXPRESSION_BYTES_MAX),
            free: Cell::new(EXPRESSION_BYTES_FREE),
            free_at_first: EXPRESSION_BYTES_FREE,
            exceeded: Cell::new(false),
        }
    }
}

impl MatchBudget {
    /// Takes so many bytes; `false` if there are too few left.
    fn spend(&self, bytes: usize) -> bool {
        let counted = bytes.saturating_sub(self.free.get());
        let left = self.left.get().checked_sub(counted);
        self.exceeded.set(self.exceeded.get() || left.is_none());
        self.left.set(left.unwrap_or(0));
        left.is_some()
    }

    /// Sets the spelling of the path that is compared next.
    pub(crate) fn at_spelling(&self, number: usize) {
        self.free.set(if number == 0 { self.free_at_first } else { 0 });
    }

    /// The budget for the next descriptor of a request that has this many bytes left.
    pub(crate) fn for_next_descriptor(left: usize) -> MatchBudget {
        let (left, free) = (Cell::new(left), Cell::new(0));
        MatchBudget { left, free, free_at_first: 0, exceeded: Cell::new(false) }
    }

    /// The bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.left.get()
    }

    /// Returns true if the budget left some expression uncompared.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.exceeded.get()
    }
}

/// A glob or a regular expression that a whole text fits or does not. Both run in linear time,
/// whatever the text, and their compiled size is bounded.
#[derive(Clone, Debug)]
pub struct Expression {
    regex: Regex,
    /// The expression as people read it: `glob /files/*.json` or `regex [a-z]+`.
    text: Box<str>,
    /// A prefix of every text that fits, as far as it is easily found.
    prefix: Box<str>,
}

/// Equal if written alike.
impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.regex.as_str() == other.regex.as_str()
    }
}

impl Eq for Expression {}

impl Expression {
    /// The longest expression, in bytes.
    pub const LEN_MAX: usize = 1_024;
    /// The most memory of one compiled expression, in bytes.
    const SIZE_MAX: usize = 256 << 10;
    /// The deepest nesting.
    const NEST_MAX: u32 = 32;

    /// The expression as people read it: `glob /files/*.json` or `regex [a-z]+`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Reads a regular expression; it has to fit the whole text.
    pub fn regex(text: &str) -> Result<Expression, Problem> {
        if text.len() > Expression::LEN_MAX {
            return Err(too_long("regular expression", text));
        }
        // Compiled bare first: a message about it must not show our own brackets.
        build(text).map_err(|error| {
            let (what, hint) = explain(&error);
            Problem::new(format!("the regular expression `{text}` {what}")).hint(hint)
        })?;
        let written = format!("regex {text}");
        let whole = |regex| Expression { regex, text: written.into(), prefix: "".into() };
        build(&format!("^(?:{text})$")).map(whole).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => {
                Problem::new(format!("the regular expression `{text}` is too large when compiled"))
                    .hint("lower its repetition counts")
            }
            _ => Problem::new(format!(
                "the regular expression `{text}` ends in a comment or nests too deep"
            ))
            .hint("leave the comment out; use fewer brackets inside brackets"),
        })
    }

    /// Reads a glob: `*` is anything within a segment, `**` anything, `?` one character, `[a-z]`
    /// one of these.
    pub fn glob(text: &str) -> Result<Expression, Problem> {
        if text.len() > Expression::LEN_MAX {
            return Err(too_long("glob", text));
        }
        let mut regex = String::from("^(?s:");
        let mut rest = text.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                '*' if rest.next_if_eq(&'*').is_some() => regex.push_str(".*"),
                '*' => regex.push_str("[^/]*"),
                '?' => regex.push_str("[^/]"),
                '[' => regex.push_str(&set(text, &mut rest)?),
                c => regex.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
            }
        }
        regex.push_str(")$");
        let prefix = &text[..text.find(['*', '?', '[']).unwrap_or(text.len())];
        let written = format!("glob {text}");
        let whole = |regex| Expression { regex, text: written.into(), prefix: prefix.into() };
        build(&regex).map(whole).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => {
                Problem::new(format!("the glob `{text}` is too large when compiled"))
                    .hint("use fewer stars")
            }
            _ => Problem::new(format!("the glob `{text}` has a set that cannot be read"))
                .hint("write `[abc]`, `[a-z]` with the smaller first, or `[!abc]`"),
        })
    }
}

/// The rest of `[…]`, as a regular expression writes it.
fn set(text: &str, rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<String, Problem> {
    let mut inner = String::new();
    loop {
        match rest.next() {
            None => {
                return Err(Problem::new(format!("the glob `{text}` has a `[` without its `]`"))
                    .hint("close it, or write `[[]` for the bracket itself"));
            }
            Some(']') if !inner.is_empty() => return Ok(format!("[{inner}]")),
            Some('!') if inner.is_empty() => inner.push('^'),
            Some(c @ ('\\' | '[' | ']' | '^' | '&' | '~')) => inner.extend(['\\', c]),
            Some(c) => inner.push(c),
        }
    }
}

fn build(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text)
        .size_limit(Expression::SIZE_MAX)
        .dfa_size_limit(Expression::SIZE_MAX)
        .nest_limit(Expression::NEST_MAX)
        .build()
}

fn too_long(what: &str, text: &str) -> Problem {
    let max = Expression::LEN_MAX;
    Problem::new(format!("a {what} of {} bytes is too long: the most is {max}", text.len()))
        .hint("split it into several conditions under `any:`")
}

/// The essential line of an error of the regex crate, whose text has several, and a hint.
fn explain(error: &regex::Error) -> (String, &'static str) {
    match error {
        regex::Error::CompiledTooBig(_) => {
            ("is too large when compiled".into(), "lower its repetition counts")
        }
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or_default();
            let reason = last.strip_prefix("error: ").unwrap_or(last);
            let hint = match reason.contains("look-around") || reason.contains("backreference") {
                true => {
                    "look-around is not supported, because every expression runs in linear time"
                }
                false => "write a letter that has a meaning with a backslash before it: `\\(`",
            };
            (format!("cannot be read: {reason}"), hint)
        }
    }
}

/// Returns true if an address, in any notation, is in one of the networks.
pub(crate) fn contains(nets: &[IpNet], ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    nets.iter().any(|net| net.contains(&ip))
}

/// Advice for a text that is not an address.
fn address_advice(text: &str) -> String {
    let octets: Vec<&str> = text.trim_end_matches(".*").split('.').collect();
    let is_masked = text.ends_with(".*") && octets.len() < 4;
    match SocketAddr::from_str(text) {
        _ if text == "localhost" => "write `127.0.0.1`, and `::1` for IPv6".into(),
        Ok(address) => format!("write it without the port, `{}`", address.ip()),
        Err(_) if is_masked => network_advice(&octets.join("."), &(8 * octets.len()).to_string()),
        Err(_) => "write `192.0.2.1`, `10.0.0.0/8` or `2001:db8::/32`".into(),
    }
}

/// Advice for a network whose address is not complete: zeros fill it up.
fn network_advice(address: &str, length: &str) -> String {
    let missing = 4_usize.saturating_sub(address.split('.').count());
    let full = format!("{address}{}/{length}", ".0".repeat(missing));
    let is_network = full.parse::<IpNet>().is_ok_and(|net| net.trunc() == net);
    format!("write `{}`", if is_network { &full } else { "10.0.0.0/8" })
}

/// Reads `10.0.0.0/8`, `2001:db8::/32` or a single address.
pub fn parse_cidr(text: &str) -> Result<IpNet, Problem> {
    let bad = |what: &str| Problem::new(format!("{text:?} {what}"));
    let net = match text.split_once('/') {
        None => IpAddr::from_str(text)
            .map(|ip| IpNet::from(ip.to_canonical()))
            .map_err(|_| bad("is not an address").hint(address_advice(text)))?,
        Some((address, length)) => {
            let ip = IpAddr::from_str(address)
                .map_err(|_| bad("is not a network").hint(network_advice(address, length)))?;
            let most = if ip.is_ipv4() { 32 } else { 128 };
            let length = length.parse().ok().filter(|length| *length <= most).ok_or_else(|| {
                bad(&format!("has a prefix length that is not between 0 and {most}"))
                    .hint(if ip.is_ipv4() { "write `10.0.0.0/8`" } else { "write `2001:db8::/32`" })
            })?;
            // Addresses are compared in their plain form, so networks must have it too.
            let (ip, length) = match (ip.to_canonical(), length) {
                (plain @ IpAddr::V4(_), 96..) if ip.is_ipv6() => (plain, length - 96),
                _ => (ip, length),
            };
            IpNet::new(ip, length).expect("the length was checked")
        }
    };
    if net.trunc() != net {
        return Err(bad("has host bits set").hint(format!("write `{}`", net.trunc())));
    }
    Ok(net)
}

/// Reads a method; small letters mean capitals.
pub fn parse_method(text: &str) -> Result<Box<str>, Problem> {
    let is_token = |byte: u8| byte.is_ascii_alphabetic() || byte == b'-';
    if text.is_empty() || text.len() > 32 || !text.bytes().all(is_token) {
        return Err(Problem::new(format!("{text:?} is not a method")).hint("write `GET` or `POST`"));
    }
    let method = text.to_ascii_uppercase();
    let is_long = method.len() >= NEAR_LETTERS_MIN;
    if is_long
        && !METHODS.contains(&&*method)
        && let Some(near) = METHODS.into_iter().find(|one| osa_distance(&method, one) == 1)
    {
        let problem = Problem::new(format!("{text:?} is not a method that clients send"));
        return Err(problem.hint(format!("did you mean `{near}`?")));
    }
    Ok(method.into())
}

/// The fewest letters of a method that counts as misspelt: of shorter ones too many are near another.
const NEAR_LETTERS_MIN: usize = 4;

/// Methods that clients send: those of HTTP and WebDAV, and those of caches. Others are accepted,
/// unless they differ from one of these in one letter and have [`NEAR_LETTERS_MIN`].
const METHODS: [&str; 26] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "OPTIONS",
    "CONNECT",
    "TRACE",
    "QUERY",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "MKCOL",
    "PROPFIND",
    "PROPPATCH",
    "SEARCH",
    "REPORT",
    "TRACK",
    "MERGE",
    "BIND",
    "LINK",
    "UNLINK",
    "PURGE",
    "BAN",
];

/// A method as rules know it.
pub fn to_uppercase(method: Cow<'_, str>) -> Cow<'_, str> {
    match method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        true => Cow::Owned(method.to_ascii_uppercase()),
        false => method,
    }
}

/// The longest name of an entry, in bytes.
pub const ENTRY_NAME_MAX: usize = 256;

/// Reads the name of an entry of a descriptor: anything that Envoy can be configured to send.
pub fn parse_entry_name(text: &str) -> Result<Box<str>, Problem> {
    let is_odd = |c: char| c.is_control() || matches!(c, '{' | '}' | '|');
    if text.is_empty() || text.len() > ENTRY_NAME_MAX || text.contains(is_odd) {
        return Err(Problem::new(format!("{text:?} is not the name of an entry"))
            .hint("write `generic_key`, or whichever key Envoy sends"));
    }
    Ok(text.into())
}

/// Reads the name of a header field.
pub fn parse_header_name(text: &str) -> Result<Box<str>, Problem> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || text.len() > 128 || !text.bytes().all(is_token) {
        return Err(
            Problem::new(format!("{text:?} is not the name of a header")).hint("write `x-user-id`")
        );
    }
    Ok(text.to_ascii_lowercase().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_stay_within_their_segment() {
        let cases = [
            ("/a/*.json", "/a/x.json", true),
            ("/a/*.json", "/a/x/y.json", false),
            ("/a/**.json", "/a/x/y.json", true),
            ("/a/?", "/a/x", true),
            ("/a/?", "/a/", false),
            ("/v[12]/x", "/v2/x", true),
            ("/v[!12]/x", "/v2/x", false),
            ("/v[!12]/x", "/v3/x", true),
            ("/a+b", "/a+b", true),
            ("/a.b", "/axb", false),
        ];
        for (glob, text, want) in cases {
            assert_eq!(Expression::glob(glob).unwrap().regex.is_match(text), want, "{glob} {text}");
        }
        for (glob, want) in [
            ("/a/[", "without its `]`"),
            ("/a/[z-a]", "a set that cannot be read"),
            ("/a/[!]", "a set that cannot be read"),
            (&"?".repeat(1_000), "too large"),
        ] {
            let problem = Expression::glob(glob).unwrap_err();
            assert!(problem.message.contains(want), "{problem}");
        }
    }

    #[test]
    fn expressions_fit_whole_texts_and_are_bounded() {
        let expression = Expression::regex("/a|/b").unwrap();
        assert!(expression.regex.is_match("/b") && !expression.regex.is_match("/bc"));
        for (text, want) in [
            ("(", "cannot be read: unclosed group"),
            ("(?=x)", "cannot be read: look-around"),
            ("(a{1000}){1000}", "too large"),
            (&"a".repeat(2_000), "too long"),
            ("(?x)a # or b", "ends in a comment"),
        ] {
            let problem = Expression::regex(text).unwrap_err();
            assert!(problem.message.contains(want), "{problem}");
        }
    }

    #[test]
    fn the_bytes_that_are_compared_are_bounded() {
        for (len, free) in [(300, EXPRESSION_BYTES_FREE), (60_000, EXPRESSION_BYTES_FREE), (300, 0)]
        {
            let work = MatchBudget::default();
            work.at_spelling(usize::from(free == 0));
            let compared = (0..100_000).take_while(|_| work.spend(len)).count();
            assert!(compared * (len - free) <= EXPRESSION_BYTES_MAX && work.is_exceeded());
            assert!(!work.spend(len), "what is spent does not come back");
            assert!(work.spend(free), "what is free stays so");
            assert!(!MatchBudget::for_next_descriptor(work.left()).spend(EXPRESSION_BYTES_FREE));
        }
    }

    #[test]
    fn protocols_are_found_in_lists_of_any_spelling() {
        for list in ["websocket", "WebSocket", "WEBSOCKET", "h2c, websocket", "websocket/13,h2c"] {
            assert!(asks_for(list, "websocket"), "{list}");
        }
        for list in ["", "h2c", "websockets", "x-websocket"] {
            assert!(!asks_for(list, "websocket"), "{list}");
        }
        assert!(includes("GET", "HEAD") && !includes("HEAD", "GET") && !includes("POST", "HEAD"));
    }

    #[test]
    fn a_misspelt_method_is_no_method_of_its_own() {
        for (text, want) in [
            ("POSTT", "POST"),
            ("PSOT", "POST"),
            ("get ", ""),
            ("gett", "GET"),
            ("DELTE", "DELETE"),
            ("OPTION", "OPTIONS"),
        ] {
            let problem = parse_method(text).unwrap_err();
            assert!(problem.hint.as_ref().is_some_and(|hint| hint.contains(want)), "{problem}");
        }
        for text in METHODS.into_iter().chain(["patch", "MKCALENDAR", "SUBSCRIBE", "M-SEARCH", "X"])
        {
            assert_eq!(parse_method(text).as_deref(), Ok(&*text.to_ascii_uppercase()));
        }
    }

    #[test]
    fn networks_are_checked() {
        assert!(contains(&[parse_cidr("10.0.0.0/8").unwrap()], "::ffff:10.1.2.3".parse().unwrap()));
        assert!(!contains(&[parse_cidr("10.0.0.0/8").unwrap()], "11.1.2.3".parse().unwrap()));
        for (text, want) in [
            ("10.0.0.0/33", "between 0 and 32"),
            ("10.0.0.1/8", "host bits set"),
            ("ten", "is not an address"),
            ("ten/8", "is not a network"),
        ] {
            let problem = parse_cidr(text).unwrap_err();
            assert!(problem.message.contains(want), "{problem}");
        }
    }
}
