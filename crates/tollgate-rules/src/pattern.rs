//! Path patterns, and the index that finds all patterns of a path without trying each.
//!
//! A pattern is a path in which a whole segment may be `{name}` (any one segment) or, at the end,
//! `{*name}` (all that follows, also nothing): `/users/{id}`, `/api/{*rest}`. The names are for the
//! reader.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use crate::matcher::{includes, parse_method};
use crate::path::{DroppedSlashes, Spelling, push_escaped};
use crate::problem::Problem;

/// A path with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: Box<str>,
    segments: Box<[PatternSegment]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternSegment {
    /// A literal segment in its normal spelling.
    Literal(Box<str>),
    /// `{name}`
    Any,
    /// `{*name}`, always last.
    Rest,
}

impl Pattern {
    /// The most segments; a path may have more.
    pub const SEGMENTS_MAX: usize = 64;

    /// Reads a pattern.
    pub fn parse(text: &str) -> Result<Pattern, Problem> {
        let bad = |problem: &str| Problem::new(format!("the path pattern {text:?} {problem}"));
        let Some(path) = text.strip_prefix('/') else {
            return Err(bad("does not begin with a slash").hint(advice_without_slash(text)));
        };
        if text.contains(['?', '#']) {
            return Err(bad("has a query, which rules do not look at").hint("end it before `?`"));
        }
        let mut segments = Vec::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            if segments.last() == Some(&PatternSegment::Rest) {
                return Err(bad("continues after `{*…}`, which must be the last segment")
                    .hint("put `{*…}` at the end"));
            }
            segments.push(PatternSegment::parse(part).map_err(|problem| Problem {
                message: format!("the path pattern {text:?} {}", problem.message),
                hint: problem.hint,
            })?);
        }
        if segments.len() > Pattern::SEGMENTS_MAX {
            return Err(bad(&format!("has more than {} segments", Pattern::SEGMENTS_MAX)));
        }
        Ok(Pattern { text: text.into(), segments: segments.into() })
    }

    /// Returns true if it matches every path.
    pub fn is_everything(&self) -> bool {
        *self.segments == [PatternSegment::Rest]
    }

    /// Returns true if it matches a path in normal spelling.
    pub fn matches(&self, path: &str) -> bool {
        let mut parts = segments_of(path);
        for segment in &self.segments {
            let fits = match segment {
                PatternSegment::Rest => return true,
                PatternSegment::Any => parts.next().is_some(),
                PatternSegment::Literal(literal) => parts.next() == Some(literal),
            };
            if !fits {
                return false;
            }
        }
        parts.next().is_none()
    }

    /// Returns true if it matches every path that another pattern matches.
    pub(crate) fn covers(&self, other: &Pattern) -> bool {
        let mut others = other.segments.iter();
        for segment in &self.segments {
            let fits = match (segment, others.next()) {
                (PatternSegment::Rest, _) => return true,
                (_, None | Some(PatternSegment::Rest)) => false,
                (PatternSegment::Any, Some(_)) => true,
                (literal, Some(other)) => literal == other,
            };
            if !fits {
                return false;
            }
        }
        others.next().is_none()
    }

    /// Returns true if it matches a path as sent: `/api/health/` is not `/api/health` to every
    /// application.
    pub(crate) fn matches_as_sent(&self, path: &Spelling<'_>) -> bool {
        let fits = match path.slashes() {
            DroppedSlashes::None => true,
            DroppedSlashes::Last => {
                self.segments.last() == Some(&PatternSegment::Rest) || self.text.ends_with('/')
            }
            DroppedSlashes::Doubled => self.is_everything(),
        };
        fits && self.matches(path.text())
    }

    /// A path that fits, for trying rules out.
    pub fn sample(&self) -> String {
        let names = self.segments.iter().map(|segment| match segment {
            PatternSegment::Literal(literal) => literal,
            PatternSegment::Any | PatternSegment::Rest => "x",
        });
        names.fold(String::new(), |path, name| path + "/" + name)
    }

    /// More specific patterns have greater ranks: more literal segments first, then fewer
    /// placeholders that take everything.
    fn rank(&self) -> (usize, usize, bool) {
        let count = |wanted: fn(&PatternSegment) -> bool| {
            self.segments.iter().filter(|segment| wanted(segment)).count()
        };
        let literals = count(|segment| matches!(segment, PatternSegment::Literal(_)));
        let ones = count(|segment| *segment == PatternSegment::Any);
        (literals, ones, self.segments.last() != Some(&PatternSegment::Rest))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PatternSegment {
    fn parse(part: &str) -> Result<PatternSegment, Problem> {
        let inner = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
        let Some(name) = inner else {
            if part.contains(['{', '}']) {
                return Err(Problem::new(format!("has the segment `{part}`, which is half a placeholder"))
                    .hint("a placeholder is a whole segment, `{id}`; for parts of one write `glob: /files/*.json`"));
            }
            if part.contains('*') {
                return Err(Problem::new(format!("has a star in `{part}`"))
                    .hint("write `{*rest}` for all that follows, or `glob:` instead of `path:`"));
            }
            let mut literal = String::new();
            push_escaped(&mut literal, part.as_bytes());
            // However they are spelled: `%2e%2E` is `..`.
            if matches!(&*literal, "." | "..") {
                return Err(Problem::new("has `.` or `..`, which no path keeps")
                    .hint("write the path without them"));
            }
            return Ok(PatternSegment::Literal(literal.into()));
        };
        let (name, segment) = match name.strip_prefix('*') {
            Some(name) => (name, PatternSegment::Rest),
            None => (name, PatternSegment::Any),
        };
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || !name.bytes().all(is_word) {
            return Err(Problem::new(format!(
                "has the placeholder `{part}` without a proper name"
            ))
            .hint("write `{id}` or `{*rest}`, of letters, digits, `_` and `-`"));
        }
        Ok(segment)
    }
}

/// A pattern and, if only one counts, its method: `POST /api/upload`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `None`: any.
    pub method: Option<Box<str>>,
    /// The paths.
    pub pattern: Pattern,
}

impl Endpoint {
    /// Reads `/api/upload` or `POST /api/upload`.
    pub fn parse(text: &str) -> Result<Endpoint, Problem> {
        match text.split_once(char::is_whitespace) {
            Some((method, pattern)) if !text.starts_with('/') => Ok(Endpoint {
                method: Some(parse_method(method)?),
                pattern: Pattern::parse(pattern.trim_start())?,
            }),
            _ => Ok(Endpoint { method: None, pattern: Pattern::parse(text)? }),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(method) = &self.method {
            write!(f, "{method} ")?;
        }
        write!(f, "{}", self.pattern)
    }
}

/// Values by endpoint, where the most specific endpoint that matches wins.
#[derive(Clone, Debug, Default)]
pub struct EndpointMap<T> {
    /// The most specific first.
    entries: Vec<(Endpoint, T)>,
    index: PathIndex,
}

/// The index follows from the entries.
impl<T: PartialEq> PartialEq for EndpointMap<T> {
    fn eq(&self, other: &EndpointMap<T>) -> bool {
        self.entries == other.entries
    }
}

impl<T: Eq> Eq for EndpointMap<T> {}

impl<T> EndpointMap<T> {
    /// Creates a map of these entries; of equally specific ones the first wins.
    pub fn new(mut entries: Vec<(Endpoint, T)>) -> EndpointMap<T> {
        entries.sort_by_key(|(endpoint, _)| {
            std::cmp::Reverse((endpoint.pattern.rank(), endpoint.method.is_some()))
        });
        let mut index = PathIndex::default();
        for (id, (endpoint, _)) in entries.iter().enumerate() {
            index.insert(&endpoint.pattern, id as u32);
        }
        EndpointMap { entries, index }
    }

    /// The value of the most specific endpoint.
    pub fn find(&self, method: Option<&str>, path: &str) -> Option<&T> {
        let mut best = None;
        self.index.each_match(path, &mut |id| {
            let (endpoint, _) = &self.entries[id as usize];
            let fits = match (&endpoint.method, method) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(own), Some(method)) => includes(own, method),
            };
            if fits && best.is_none_or(|best| id < best) {
                best = Some(id);
            }
        });
        best.map(|id| &self.entries[id as usize].1)
    }

    /// All entries.
    pub fn entries(&self) -> &[(Endpoint, T)] {
        &self.entries
    }
}

/// Finds the numbers of all patterns that a path fits: a tree of segments.
///
/// A lookup walks down once for each way that literals and placeholders fit, so it costs what
/// matches and not what there is. It visits each node of the tree at most once.
#[derive(Clone, Debug, Default)]
pub struct PathIndex {
    root: PathTreeNode,
}

#[derive(Clone, Debug, Default)]
struct PathTreeNode {
    literals: HashMap<Box<str>, PathTreeNode, BuildHasherDefault<FnvHasher>>,
    any: Option<Box<PathTreeNode>>,
    /// Patterns that end here.
    ends: Vec<u32>,
    /// Patterns that take all that follows from here.
    rests: Vec<u32>,
}

/// FNV-1a: the fastest for a few bytes. Clients choose the lookups but not the contents of the map,
/// so they cannot make it slow.
#[derive(Clone, Copy, Debug)]
struct FnvHasher(u64);

impl Default for FnvHasher {
    fn default() -> FnvHasher {
        FnvHasher(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for FnvHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl PathIndex {
    /// Adds a pattern.
    pub fn insert(&mut self, pattern: &Pattern, id: u32) {
        let mut node = &mut self.root;
        for segment in &pattern.segments {
            node = match segment {
                PatternSegment::Rest => return node.rests.push(id),
                PatternSegment::Any => node.any.get_or_insert_default(),
                PatternSegment::Literal(literal) => {
                    node.literals.entry(literal.clone()).or_default()
                }
            };
        }
        node.ends.push(id);
    }

    /// Calls `found` with the number of every pattern that matches a path in normal spelling, in no
    /// order.
    pub fn each_match(&self, path: &str, found: &mut impl FnMut(u32)) {
        self.root.each_match(path.strip_prefix('/').unwrap_or(path), found);
    }
}

impl PathTreeNode {
    /// Recursion is bounded by [`Pattern::SEGMENTS_MAX`]: no node is deeper than its pattern.
    fn each_match(&self, rest: &str, found: &mut impl FnMut(u32)) {
        self.rests.iter().for_each(|id| found(*id));
        if rest.is_empty() {
            self.ends.iter().for_each(|id| found(*id));
            return;
        }
        // Segments are short: looking at each byte is faster than a search that is made for long texts.
        let end = rest.bytes().position(|byte| byte == b'/').unwrap_or(rest.len());
        let (segment, rest) = (&rest[..end], rest.get(end + 1..).unwrap_or_default());
        if !self.literals.is_empty()
            && let Some(node) = self.literals.get(segment)
        {
            node.each_match(rest, found);
        }
        if let Some(node) = &self.any {
            node.each_match(rest, found);
        }
    }
}

fn segments_of(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// Advice for a pattern that does not begin with a slash: a regular expression, a URL, or a path that lacks it.
fn advice_without_slash(text: &str) -> String {
    if text.starts_with('^') || text.ends_with('$') {
        return "for a regular expression write `regex:` instead of `path:`".into();
    }
    if let Some((_, url)) = text.split_once("://") {
        let (host, path) = url.split_once('/').unwrap_or((url, ""));
        return format!("write the path alone, `/{path}`, and the host beside it: `host: {host}`");
    }
    let is_path = !text.is_empty() && !text.contains(char::is_whitespace);
    format!("write `/{}`", if is_path { text } else { "api/search" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_paths() {
        let cases = [
            ("/", "/", true),
            ("/", "/a", false),
            ("/a", "/a", true),
            ("/a", "/a/b", false),
            ("/a/", "/a", true),
            ("/users/{id}", "/users/42", true),
            ("/users/{id}", "/users", false),
            ("/users/{id}", "/users/42/x", false),
            ("/users/{id}/posts", "/users/42/posts", true),
            ("/api/{*rest}", "/api", true),
            ("/api/{*rest}", "/api/a/b/c", true),
            ("/api/{*rest}", "/apis", false),
            ("/{*rest}", "/", true),
            ("/{*rest}", "/a/b", true),
            ("/caf\u{e9}", "/caf%C3%A9", true),
            ("/%61", "/a", true),
        ];
        for (pattern, path, want) in cases {
            let pattern = Pattern::parse(pattern).unwrap();
            assert_eq!(pattern.matches(path), want, "{pattern} {path}");
            let mut index = PathIndex::default();
            index.insert(&pattern, 7);
            let mut found = Vec::new();
            index.each_match(path, &mut |id| found.push(id));
            assert_eq!(!found.is_empty(), want, "index: {pattern} {path}");
            assert!(pattern.matches(&crate::path::normalise(&pattern.sample())));
        }
    }

    #[test]
    fn bad_patterns_say_what_to_write() {
        let cases = [
            ("api", "does not begin with a slash"),
            ("", "does not begin with a slash"),
            ("/api/{*rest}/x", "continues after"),
            ("/api/{id", "half a placeholder"),
            ("/api/{id}.json", "half a placeholder"),
            ("/api/*", "a star"),
            ("/api/{}", "without a proper name"),
            ("/api/{*}", "without a proper name"),
            ("/api/{a b}", "without a proper name"),
            ("/api?x=1", "has a query"),
            ("/api/../x", "which no path keeps"),
            ("/api/%2e%2E/x", "which no path keeps"),
        ];
        for (text, want) in cases {
            let problem = Pattern::parse(text).unwrap_err();
            assert!(problem.message.contains(want), "{text}: {problem}");
        }
    }

    #[test]
    fn the_index_finds_all_and_only_those() {
        let texts = ["/{*rest}", "/a/{*rest}", "/a/b", "/a/{x}", "/{x}/b", "/a/b/{*rest}", "/b"];
        let mut index = PathIndex::default();
        for (id, text) in texts.iter().enumerate() {
            index.insert(&Pattern::parse(text).unwrap(), id as u32);
        }
        let mut found = Vec::new();
        index.each_match("/a/b", &mut |id| found.push(id));
        found.sort_unstable();
        assert_eq!(found, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn the_most_specific_endpoint_wins() {
        let entry = |text: &str, cost: u64| (Endpoint::parse(text).unwrap(), cost);
        let costs = EndpointMap::new(vec![
            entry("/{*rest}", 1),
            entry("/api/{*rest}", 2),
            entry("/api/{id}", 3),
            entry("/api/upload", 4),
            entry("POST /api/upload", 5),
        ]);
        let find = |method, path| costs.find(Some(method), path).copied();
        assert_eq!(find("GET", "/"), Some(1));
        assert_eq!(find("GET", "/api"), Some(2));
        assert_eq!(find("GET", "/api/x/y"), Some(2));
        assert_eq!(find("GET", "/api/x"), Some(3));
        assert_eq!(find("GET", "/api/upload"), Some(4));
        assert_eq!(find("POST", "/api/upload"), Some(5));
    }
}
