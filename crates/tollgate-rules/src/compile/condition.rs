//! `match:` becomes a [`Condition`].

use crate::Problem;
use crate::gateway_settings::RouteHost;
use crate::matcher::{
    Condition, Expression, TextTest, parse_cidr, parse_entry_name, parse_header_name, parse_method,
};
use crate::pattern::Pattern;
use crate::yaml::{YamlEntry, YamlNode, YamlValue};

use super::context::CompileContext;

/// The most conditions of one rule: each may have to be tried for each request. The values that one
/// condition lists do not count.
const MAX_CONDITIONS: usize = 1_000;

/// Reads `match`. `None`: something in it was reported.
pub(super) fn read_match(context: CompileContext<'_>, node: &YamlNode) -> Option<Condition> {
    let condition = read(context, node)?;
    if count(&condition) > MAX_CONDITIONS {
        let problem = format!("a rule has at most {MAX_CONDITIONS} conditions");
        let hint = "write one condition with a list of values, or several rules";
        context.error(node.span, Problem::new(problem).hint(hint));
        return None;
    }
    Some(condition)
}

fn count(condition: &Condition) -> usize {
    match condition {
        Condition::All(several) | Condition::Any(several) => several.iter().map(count).sum(),
        Condition::Not(inner) => count(inner),
        _ => 1,
    }
}

/// Reads the conditions of a map; all must hold. `None`: one of them could not be read.
fn read(context: CompileContext<'_>, node: &YamlNode) -> Option<Condition> {
    let each: Vec<Option<Condition>> = node
        .entries()
        .iter()
        .filter(|entry| !is_null(entry))
        .map(|entry| read_entry(context, entry))
        .collect();
    let mut all = each.into_iter().collect::<Option<Vec<_>>>()?;
    Some(match all.len() {
        1 => all.remove(0),
        _ => Condition::All(all),
    })
}

fn is_null(entry: &YamlEntry) -> bool {
    matches!(entry.node.value, YamlValue::Null)
}

fn read_entry(context: CompileContext<'_>, entry: &YamlEntry) -> Option<Condition> {
    let node = &entry.node;
    Some(match &*entry.key {
        "path" => Condition::Path(context.read_each(node, Pattern::parse)?),
        "glob" => path_text(path_expressions(context, node, Expression::glob, glob_mistake)?),
        "regex" => path_text(path_expressions(context, node, Expression::regex, regex_mistake)?),
        "method" => Condition::Method(context.read_each(node, parse_method)?),
        "host" => host(context, node)?,
        "header" => headers(context, node)?,
        "user" => Condition::User(text_test(context, node)?),
        "tier" => Condition::Tier(text_test(context, node)?),
        "api_key" => Condition::ApiKey(text_test(context, node)?),
        "entry" => entries(context, node)?,
        "domain" => Condition::Domain(text_test(context, node)?),
        "ip" => Condition::Ip(context.read_each(node, parse_cidr)?),
        "upgrade" => Condition::Upgrade("websocket".into()),
        "all" => Condition::All(read_list(context, node)?),
        "any" => Condition::Any(read_list(context, node)?),
        "not" => Condition::Not(Box::new(read(context, node)?)),
        _ => return None,
    })
}

fn read_list(context: CompileContext<'_>, node: &YamlNode) -> Option<Vec<Condition>> {
    let each: Vec<_> = node.items().iter().map(|item| read(context, item)).collect();
    each.into_iter().collect()
}

/// Reads globs or regular expressions on the path; `why_not` says why one fits no path.
fn path_expressions(
    context: CompileContext<'_>,
    node: &YamlNode,
    read: fn(&str) -> Result<Expression, Problem>,
    why_not: fn(&str) -> Option<PathMistake>,
) -> Option<Vec<Expression>> {
    let each: Vec<_> = node
        .each()
        .iter()
        .map(|node| {
            let expression = expression(context, node, read)?;
            if let Some((reason, hint)) = node.text().and_then(why_not) {
                let problem = Problem::new(format!("this matches no path: {reason}")).hint(hint);
                context.warn(node.span, problem);
            }
            Some(expression)
        })
        .collect();
    each.into_iter().collect()
}

/// The reason why a text is not part of any normalized path, and what to write.
type PathMistake = (&'static str, &'static str);

const TRAILING_SLASH: PathMistake =
    ("paths are compared without a `/` at their end", "leave the last `/` out");
const DOUBLE_SLASH: PathMistake =
    ("paths are compared with single slashes", "write `/` in place of `//`");
const UNESCAPED_SPACE: PathMistake =
    ("in a path a space is `%20`", "write `%20` in place of the space");
const MISSING_SLASH: PathMistake =
    ("a path begins with `/`", "write a `/` before it, or `**` for anything");
const MISSING_SLASH_REGEX: PathMistake =
    ("a path begins with `/`, and the whole path must match", "write `/` or `.*` before it");

/// Finds the reason why a glob fits no path. Globs with sets such as `[ab]` are not examined.
fn glob_mistake(text: &str) -> Option<PathMistake> {
    let ends = text.strip_suffix('/').is_some_and(|rest| rest.ends_with(is_word));
    match text {
        _ if text.contains('[') => None,
        _ if text.starts_with(is_word) => Some(MISSING_SLASH),
        _ if ends => Some(TRAILING_SLASH),
        _ if text.contains("//") => Some(DOUBLE_SLASH),
        _ if text.contains(' ') => Some(UNESCAPED_SPACE),
        _ => None,
    }
}

/// Finds an obvious reason why a regular expression fits no path. Expressions with alternatives,
/// sets or flags are not examined, because another part may fit.
fn regex_mistake(text: &str) -> Option<PathMistake> {
    if text.contains(['|', '[']) || text.contains("(?") {
        return None;
    }
    let text = text.strip_prefix('^').unwrap_or(text);
    let text = text.strip_suffix('$').unwrap_or(text);
    // What a `?`, `*` or `{0}` follows may be absent.
    let is_needed = |at: usize| !text[at..].starts_with(['?', '*', '{']);
    let needs = |part: &str| text.match_indices(part).any(|(at, _)| is_needed(at + part.len()));
    let ends = text.strip_suffix('/').is_some_and(|rest| rest.ends_with(is_word));
    match text {
        _ if text.starts_with(is_word) && is_needed(1) => Some(MISSING_SLASH_REGEX),
        _ if ends => Some(TRAILING_SLASH),
        _ if needs("//") => Some(DOUBLE_SLASH),
        _ if needs(" ") => Some(UNESCAPED_SPACE),
        _ => None,
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric()
}

fn expression(
    context: CompileContext<'_>,
    node: &YamlNode,
    read: fn(&str) -> Result<Expression, Problem>,
) -> Option<Expression> {
    context.count_expression(node.span)?;
    context.read(node, read)
}

fn path_text(mut expressions: Vec<Expression>) -> Condition {
    let one = |expression| Condition::PathText(TextTest::Like(expression));
    match expressions.len() {
        1 => one(expressions.remove(0)),
        _ => Condition::Any(expressions.into_iter().map(one).collect()),
    }
}

/// Reads hosts: a list of names, or a test of the text.
fn host(context: CompileContext<'_>, node: &YamlNode) -> Option<Condition> {
    match &node.value {
        YamlValue::Map(_) => text_test(context, node).map(Condition::HostText),
        _ => context.read_each(node, RouteHost::parse).map(Condition::Host),
    }
}

fn headers(context: CompileContext<'_>, node: &YamlNode) -> Option<Condition> {
    let read = |entry: &YamlEntry| {
        let name = parse_header_name(&entry.key);
        let name = name.map_err(|problem| context.error(entry.key_span, problem)).ok();
        if name.as_deref() == Some("host") {
            let problem = Problem::new("a host has many spellings, and HTTP/2 has no such field")
                .hint("write `host: …` beside `header`; it is read as that");
            context.warn(entry.key_span, problem);
            return host(context, &entry.node);
        }
        let value = text_test(context, &entry.node);
        Some(Condition::Header { name: name?, value: value? })
    };
    all_of(node.entries().iter().map(read))
}

fn entries(context: CompileContext<'_>, node: &YamlNode) -> Option<Condition> {
    read_named_tests(context, node, parse_entry_name, |name, value| Condition::Entry {
        name,
        value,
    })
}

/// Conditions by name; all must hold.
fn read_named_tests(
    context: CompileContext<'_>,
    node: &YamlNode,
    read: fn(&str) -> Result<Box<str>, Problem>,
    make: fn(Box<str>, TextTest) -> Condition,
) -> Option<Condition> {
    let each = node.entries().iter().map(|entry| {
        let name = read(&entry.key);
        let name = name.map_err(|problem| context.error(entry.key_span, problem)).ok();
        let value = text_test(context, &entry.node);
        Some(make(name?, value?))
    });
    all_of(each)
}

/// The condition that all of these hold; `None` if one of them could not be read.
fn all_of(each: impl Iterator<Item = Option<Condition>>) -> Option<Condition> {
    // Read all before giving up, so that all are reported.
    let each: Vec<Option<Condition>> = each.collect();
    let mut all = each.into_iter().collect::<Option<Vec<_>>>()?;
    Some(if all.len() == 1 { all.remove(0) } else { Condition::All(all) })
}

fn text_test(context: CompileContext<'_>, node: &YamlNode) -> Option<TextTest> {
    let YamlValue::Map(entries) = &node.value else {
        if matches!(&node.value, YamlValue::Plain(text) if &**text == "present") {
            let problem = Problem::new("this matches only the text `present`, not every text")
                .hint("write `{ present: true }`; or `\"present\"` in quotes if you mean the word");
            context.warn(node.span, problem);
        }
        warn_of_plain_stars(context, node);
        return context.read_each(node, |text| Ok(text.into())).map(TextTest::OneOf);
    };
    // `shape` has reported any other number of fields.
    let [entry] = &entries[..] else { return None };
    match &*entry.key {
        "present" => Some(TextTest::Present),
        "glob" => Some(TextTest::Like(expression(context, &entry.node, Expression::glob)?)),
        "regex" => Some(TextTest::Like(expression(context, &entry.node, Expression::regex)?)),
        _ => None,
    }
}

/// Warns of texts with a `*` that was meant as a pattern. Media types have one of their own: `*/*`, `text/*`.
fn warn_of_plain_stars(context: CompileContext<'_>, node: &YamlNode) {
    let nodes = match &node.value {
        YamlValue::List(nodes) => &nodes[..],
        _ => std::slice::from_ref(node),
    };
    for one in nodes {
        let Some(text) = one.text().filter(|text| text.contains('*') && !text.ends_with("/*"))
        else {
            continue;
        };
        let problem = Problem::new(format!("this matches only the text `{text}`, with its `*`"))
            .hint(format!("a pattern is written `{{ glob: \"{text}\" }}`"));
        context.warn(one.span, problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_that_fit_no_path_are_told_from_those_that_may() {
        let globs = [
            ("/api/", Some(TRAILING_SLASH)),
            ("/a b/*", Some(UNESCAPED_SPACE)),
            ("/a//b", Some(DOUBLE_SLASH)),
            ("api/*", Some(MISSING_SLASH)),
            ("/", None),
            ("**/", None),
            ("/files/*.json", None),
            ("/a[ /]b", None),
        ];
        for (text, want) in globs {
            assert_eq!(glob_mistake(text), want, "{text}");
        }
        let regexes = [
            ("/api/", Some(TRAILING_SLASH)),
            ("^/v[0-9]+/$", None),
            ("^/api/$", Some(TRAILING_SLASH)),
            ("/api/?", None),
            ("/a b", Some(UNESCAPED_SPACE)),
            ("/a ?b", None),
            ("/a//b", Some(DOUBLE_SLASH)),
            ("/a//?b", None),
            ("api/.*", Some(MISSING_SLASH_REGEX)),
            ("a?/api", None),
            ("/api/|/b", None),
            ("(?i)/api/", None),
            (".*", None),
            ("/", None),
        ];
        for (text, want) in regexes {
            assert_eq!(regex_mistake(text), want, "{text}");
        }
    }
}
