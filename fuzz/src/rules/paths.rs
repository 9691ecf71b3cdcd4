//! Paths and what they are compared with: every spelling of a path is one path, the index finds what
//! trying one by one finds, and no pattern, glob or regular expression brings anything down.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use tollgate::OnChange;
use tollgate_rules::key_template::KeyTemplate;
use tollgate_rules::limit_spec::LimitSpec;
use tollgate_rules::matcher::{Condition, Expression, TextTest, parse_cidr};
use tollgate_rules::path::normalise;
use tollgate_rules::pattern::{Endpoint, EndpointMap, PathIndex, Pattern};
use tollgate_rules::rule::{Rule, TierLimits};
use tollgate_rules::tier::Multiplier;
use tollgate_rules::{Facts, Problem, RuleSet, RuleSettings};

use super::servers;
use super::source::FuzzSource;

/// Uses the bytes as a path or pattern, and as choices.
pub fn paths(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    match source.below(7) {
        0 => {
            let text = String::from_utf8_lossy(source.rest());
            check_normal(&text);
            servers::check(&text);
            any_text(&text);
        }
        1 => spellings(&mut source),
        2 => index(&mut source),
        3 => any_text(&pieces(&mut source)),
        4 => globs(&mut source),
        5 => servers::targets(&mut source),
        _ => regexes(&mut source),
    }
}

/// Checks the properties of every normal form.
fn check_normal(raw: &str) {
    let normal = normalise(raw);
    assert_eq!(normalise(&normal), normal, "{raw:?} has no stable form");
    let Some(path) = normal.strip_prefix('/') else { panic!("{raw:?} became {normal:?}") };
    if path.is_empty() {
        return;
    }
    for segment in path.split('/') {
        assert!(!matches!(segment, "" | "." | ".."), "{raw:?} became {normal:?}");
        let mut rest = segment.as_bytes();
        while let [byte, after @ ..] = rest {
            rest = after;
            if *byte != b'%' {
                assert!(is_plain(*byte), "{raw:?} became {normal:?}");
                continue;
            }
            let [high, low, after @ ..] = rest else { panic!("{raw:?} became {normal:?}") };
            let escaped = format!("{}{}", char::from(*high), char::from(*low));
            let value = u8::from_str_radix(&escaped, 16).expect("two digits follow a `%`");
            assert_eq!(escaped, format!("{value:02X}"), "{raw:?} became {normal:?}");
            assert!(!is_plain(value), "{raw:?} became {normal:?}");
            rest = after;
        }
    }
}

/// RFC 3986, pchar without its escapes.
pub(super) fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || "-._~:@!$&'()*+,;=".contains(char::from(byte))
}

/// A text that may be a pattern, an endpoint, an expression or a network: it is read or refused with
/// a reason, and what is read makes sense.
fn any_text(text: &str) {
    match Pattern::parse(text) {
        Ok(pattern) => check_pattern(&pattern),
        Err(problem) => check_problem(&problem),
    }
    match Endpoint::parse(text) {
        Ok(endpoint) => {
            let again = Endpoint::parse(&endpoint.to_string());
            assert_eq!(again.as_ref(), Ok(&endpoint), "{text:?} does not read back");
        }
        Err(problem) => check_problem(&problem),
    }
    if let Ok(net) = parse_cidr(text) {
        assert_eq!(parse_cidr(&net.to_string()), Ok(net), "{text:?} does not read back");
    }
    glob(text);
    regex(text);
}

/// Something like a pattern.
fn pieces(source: &mut FuzzSource<'_>) -> String {
    const PIECES: [&str; 20] = [
        "/", "/", "/", "a", "%2e", "%2E", ".", "..", "{x}", "{*rest}", "{", "}", "*", "%", "%2F",
        "?", "é", " ", "GET ", "-",
    ];
    "/".chars().chain((0..source.below(12)).flat_map(|_| source.pick(&PIECES).chars())).collect()
}

/// A pattern fits the path it gives as an example, however that is spelled.
fn check_pattern(pattern: &Pattern) {
    let sample = pattern.sample();
    let path = normalise(&sample);
    assert!(pattern.matches(&path), "{pattern} does not fit {sample:?}");
    let mut index = PathIndex::default();
    index.insert(pattern, 3);
    assert_eq!(found(&index, &path), [3], "{pattern} is not found for {sample:?}");
}

fn check_problem(problem: &Problem) {
    assert!(!problem.message.is_empty());
}

/// One path, spelled in two ways, and in the one that it should have.
fn spellings(source: &mut FuzzSource<'_>) {
    let segments: Vec<Vec<SegmentPiece>> = (0..source.below(5)).map(|_| segment(source)).collect();
    let mut want = String::new();
    for units in &segments {
        want.push('/');
        units.iter().for_each(|unit| unit.spell_normally(&mut want));
    }
    let want = if want.is_empty() { "/".into() } else { want };
    for _ in 0..2 {
        let raw = spell(&segments, source);
        check_normal(&raw);
        assert_eq!(normalise(&raw), want, "{raw:?}");
    }
}

/// A piece of a segment: a character, or a byte that is none.
#[derive(Clone, Copy)]
enum SegmentPiece {
    Char(char),
    Byte(u8),
}

/// A segment that is not empty and does not mean another.
fn segment(source: &mut FuzzSource<'_>) -> Vec<SegmentPiece> {
    let mut units = Vec::new();
    for _ in 0..=source.below(4) {
        units.push(match source.below(4) {
            0 | 1 => {
                SegmentPiece::Char(source.pick(&['a', 'b', '.', 'Z', '0', '~', '*', ':', '@', '=']))
            }
            2 => SegmentPiece::Char(
                source.pick(&['%', '/', '?', '#', ' ', '\\', '{', 'é', '你', '\u{7f}']),
            ),
            _ => SegmentPiece::Byte(source.byte()),
        });
    }
    let dots =
        units.iter().all(|unit| matches!(unit, SegmentPiece::Char('.') | SegmentPiece::Byte(b'.')));
    if dots && units.len() < 3 {
        units.push(SegmentPiece::Char('x'));
    }
    units
}

impl SegmentPiece {
    fn bytes(self) -> Vec<u8> {
        match self {
            SegmentPiece::Char(c) => c.to_string().into_bytes(),
            SegmentPiece::Byte(byte) => vec![byte],
        }
    }

    fn spell_normally(self, path: &mut String) {
        for byte in self.bytes() {
            match is_plain(byte) {
                true => path.push(char::from(byte)),
                false => path.push_str(&format!("%{byte:02X}")),
            }
        }
    }

    fn spell(self, path: &mut String, source: &mut FuzzSource<'_>) {
        match self {
            SegmentPiece::Char(c) if !"%/?#".contains(c) && !source.one_in(3) => path.push(c),
            unit => unit.bytes().into_iter().for_each(|byte| {
                path.push_str(&match source.one_in(2) {
                    true => format!("%{byte:02x}"),
                    false => format!("%{byte:02X}"),
                });
            }),
        }
    }
}

/// Writes a path with detours.
fn spell(segments: &[Vec<SegmentPiece>], source: &mut FuzzSource<'_>) -> String {
    const FRONTS: [&str; 5] = ["", "", "http://host", "HTTPS://user@host:8080", "ws://[::1]:80"];
    const DETOURS: [&str; 9] =
        ["", "", "", "./", "/", "x/../", "%2e/", "%78/%2E./", "a/b/../%2e%2E/"];
    const ENDS: [&str; 9] = ["", "/", "/.", "//", "?q=/../x", "#top", "/?a#b", "/x/..", "/%2e"];
    let mut raw = source.pick(&FRONTS).to_owned();
    if source.one_in(4) {
        raw.push_str("/..");
    }
    for units in segments {
        raw.push('/');
        raw.push_str(source.pick(&DETOURS));
        units.iter().for_each(|unit| unit.spell(&mut raw, source));
    }
    // Without a slash a host would go on in the query.
    if segments.is_empty() {
        raw.push('/');
    }
    raw + source.pick(&ENDS)
}

/// Sets of patterns, asked together and one by one.
fn index(source: &mut FuzzSource<'_>) {
    const SEGMENTS: [&str; 8] = ["a", "b", "{x}", "{y}", "%61", "é", "a.b", "%C3%a9"];
    let mut endpoints = Vec::new();
    let mut index = PathIndex::default();
    for id in 0..1 + source.below(12) {
        let mut text = source.pick(&["", "", "", "GET ", "post "]).to_owned();
        text.extend((0..source.below(5)).map(|_| format!("/{}", source.pick(&SEGMENTS))));
        text.push_str(source.pick(&["/", "/{*rest}", "/c", ""]));
        if text.is_empty() || text.ends_with(' ') {
            text.push('/');
        }
        let endpoint = Endpoint::parse(&text).expect("a pattern as people write it");
        check_pattern(&endpoint.pattern);
        index.insert(&endpoint.pattern, id as u32);
        endpoints.push((endpoint, text));
    }
    let by_endpoint = EndpointMap::new(
        endpoints.iter().enumerate().map(|(id, (endpoint, _))| (endpoint.clone(), id)).collect(),
    );
    for _ in 0..8 {
        let parts = (0..source.below(6)).map(|_| source.pick(&["a", "b", "é", "a.b", "c", "z"]));
        let raw = parts.fold(String::new(), |path, part| path + "/" + part);
        let path = normalise(&raw);
        let fits = |id: &usize| rank(&endpoints[*id].1, &path).is_some();
        let want: Vec<u32> = (0..endpoints.len()).filter(fits).map(|id| id as u32).collect();
        let one_by_one = (0..endpoints.len()).filter(|id| endpoints[*id].0.pattern.matches(&path));
        assert_eq!(
            one_by_one.map(|id| id as u32).collect::<Vec<_>>(),
            want,
            "{endpoints:?} {path}"
        );
        assert_eq!(found(&index, &path), want, "{endpoints:?} {path}");

        let method = source.pick(&[None, Some("GET"), Some("POST")]);
        let best = want.iter().rev().filter_map(|id| {
            let own = endpoints[*id as usize].0.method.as_deref();
            let fits = own.is_none() || own == method;
            fits.then(|| ((rank(&endpoints[*id as usize].1, &path), own.is_some()), *id as usize))
        });
        // Of equal ones the last of the reversed list, which is the first that was written.
        let best = best.max_by_key(|(rank, _)| *rank).map(|(_, id)| id);
        assert_eq!(
            by_endpoint.find(method, &path).copied(),
            best,
            "{endpoints:?} {method:?} {path}"
        );
    }
}

/// The numbers that the index reports, each as often as it does.
fn found(index: &PathIndex, path: &str) -> Vec<u32> {
    let mut found = Vec::new();
    index.each_match(path, &mut |id| found.push(id));
    found.sort_unstable();
    found
}

/// Matches an endpoint's pattern segment by segment and returns its specificity; `None` if it does not match.
fn rank(endpoint: &str, path: &str) -> Option<(usize, usize, bool)> {
    let pattern = &endpoint[endpoint.find('/')?..];
    let (mut literals, mut ones) = (0, 0);
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    for segment in pattern.split('/').filter(|part| !part.is_empty()) {
        if segment.starts_with("{*") {
            return Some((literals, ones, false));
        }
        let part = parts.next()?;
        if segment.starts_with('{') {
            ones += 1;
        } else if normalise(segment).strip_prefix('/') == Some(part) {
            literals += 1;
        } else {
            return None;
        }
    }
    parts.next().is_none().then_some((literals, ones, true))
}

/// Globs against a matcher that tries everything.
fn globs(source: &mut FuzzSource<'_>) {
    const PIECES: [&str; 18] = [
        "a", "b", "/", ".", "é", "*", "**", "?", "[ab]", "[!a]", "[a-c]", "[^&~]", "[!/.-]",
        "[]a]", "[[]", "{", "$", "\n",
    ];
    let text: String = (0..source.below(8)).map(|_| source.pick(&PIECES)).collect();
    let expression = Expression::glob(&text).expect("a glob as people write it");
    let fits = LikeExpressionRule::new(expression);
    let pieces: Vec<char> = text.chars().collect();
    for _ in 0..4 {
        let like: Vec<char> = (0..source.below(8))
            .map(|_| {
                source.pick(&['a', 'b', 'c', '/', '.', 'é', '^', '&', '[', ']', '$', '\n', '{'])
            })
            .collect();
        let text_like: String = like.iter().collect();
        assert_eq!(fits.holds(&text_like), glob_fits(&pieces, &like), "{text:?} {text_like:?}");
    }
    glob(&String::from_utf8_lossy(source.rest()));
}

/// Any glob at all: read, or refused for what is wrong with it.
fn glob(text: &str) {
    if let Err(problem) = Expression::glob(text) {
        check_problem(&problem);
        let large = text.matches(['*', '?', '[']).count() > 16;
        assert!(large || !problem.message.contains("too large"), "{text:?}: {problem}");
    }
}

/// All positions of the text that the glob so far can reach.
fn glob_fits(glob: &[char], text: &[char]) -> bool {
    let mut at: BTreeSet<usize> = [0].into();
    let mut rest = glob;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let one = |fits: &dyn Fn(char) -> bool| {
            at.iter()
                .filter(|at| text.get(**at).is_some_and(|c| fits(*c)))
                .map(|at| at + 1)
                .collect()
        };
        match first {
            '*' => {
                let all = rest.first() == Some(&'*');
                rest = if all { &rest[1..] } else { rest };
                let mut from: Vec<usize> = at.iter().copied().collect();
                while let Some(here) = from.pop() {
                    let goes_on = text.get(here).is_some_and(|c| all || *c != '/');
                    if goes_on && at.insert(here + 1) {
                        from.push(here + 1);
                    }
                }
            }
            '?' => at = one(&|c| c != '/'),
            '[' => {
                let not = rest.first() == Some(&'!');
                let set = if not { &rest[1..] } else { rest };
                let skip = usize::from(!not);
                let end = skip + set.iter().skip(skip).position(|c| *c == ']').expect("closed");
                at = one(&|c| in_set(&set[..end], c) != not);
                rest = &set[end + 1..];
            }
            literal => at = one(&|c| c == *literal),
        }
    }
    at.contains(&text.len())
}

fn in_set(set: &[char], c: char) -> bool {
    match set {
        [] => false,
        [low, '-', high, rest @ ..] => (*low..=*high).contains(&c) || in_set(rest, c),
        [one, rest @ ..] => *one == c || in_set(rest, c),
    }
}

/// Regular expressions: a text with everything escaped fits itself; others are read or refused.
fn regexes(source: &mut FuzzSource<'_>) {
    const PIECES: [&str; 26] = [
        "a", "b", "(", ")", "|", "*", "+", "?", "[ab]", "[^", "]", "{2,3}", "{99}", "{9999}",
        "(?i)", "(?x)", "#", ".", "^", "$", "\\b", "(?m)", "\\pL", "\\w", "(?=", "(?P<n>",
    ];
    let text: String = (0..source.below(24)).map(|_| source.pick(&PIECES)).collect();
    regex(&text);
    let literal = String::from_utf8_lossy(source.rest());
    regex(&literal);
    let mut escaped = String::new();
    for c in literal.chars() {
        if c.is_ascii_punctuation() && !"<>".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    if let Ok(expression) = Expression::regex(&escaped) {
        let fits = LikeExpressionRule::new(expression);
        assert!(fits.holds(&literal), "{escaped:?} does not fit {literal:?}");
        for other in [format!("{literal}\n"), format!("x{literal}"), format!("\n{literal}x")] {
            assert!(!fits.holds(&other), "{escaped:?} fits {other:?}");
        }
    } else {
        assert!(escaped.len() > Expression::LEN_MAX, "{escaped:?} is refused");
    }
}

/// Any regular expression at all; what is read can be tried on any text.
fn regex(text: &str) {
    match Expression::regex(text) {
        Ok(expression) => drop(LikeExpressionRule::new(expression).holds(text)),
        Err(problem) => {
            check_problem(&problem);
            assert!(
                !problem.message.contains("too large") || may_grow(text),
                "{text:?}: {problem}"
            );
        }
    }
}

/// Returns true if an expression has a part that may compile to much more than its length.
fn may_grow(text: &str) -> bool {
    text.contains(['{', '\\', '.', '[']) || text.contains("(?")
}

/// An expression that can be tried.
struct LikeExpressionRule(RuleSet);

/// A limit that is never used; a rule must have one.
static LIMITS: LazyLock<TierLimits> = LazyLock::new(|| {
    let spec = LimitSpec { rate: "1/second".into(), ..LimitSpec::default() };
    let one = Multiplier::parse("1").expect("a number");
    TierLimits::untiered(vec![spec.build("like", OnChange::Keep, one).expect("a rate")])
});

impl LikeExpressionRule {
    fn new(expression: Expression) -> LikeExpressionRule {
        let when = Condition::Header { name: "x-like".into(), value: TextTest::Like(expression) };
        let key = KeyTemplate::parse("global").expect("a key");
        let rule = Rule { condition: Some(when), ..Rule::new("like", key, LIMITS.clone()) };
        LikeExpressionRule(RuleSet::new(vec![rule], &[], Vec::new(), RuleSettings::default()))
    }

    /// Asked of a header, which may be empty.
    fn holds(&self, text: &str) -> bool {
        let headers = vec![("x-like", text)];
        let facts = Facts { headers: Some(&headers), ..Facts::default() };
        !self.0.matching(&facts).is_empty()
    }
}
