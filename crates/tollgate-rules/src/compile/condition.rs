//! `match:` becomes a [`Condition`].

use crate::Problem;
use crate::matcher::{
    Condition, Expression, TextTest, parse_cidr, parse_header_name, parse_method,
};
use crate::pattern::Pattern;
use crate::yaml::{Entry, Node, Value};

use super::context::Context;

/// The most conditions of one rule: each may have to be tried for each request. The values that one
/// condition lists do not count.
const MAX_CONDITIONS: usize = 1_000;

/// Reads `match`. `None`: something in it was reported.
pub(super) fn read_match(context: Context<'_>, node: &Node) -> Option<Condition> {
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
fn read(context: Context<'_>, node: &Node) -> Option<Condition> {
    let each: Vec<Option<Condition>> = node
        .entries()
        .iter()
        .filter(|entry| !is_null(entry))
        .map(|entry| one(context, entry))
        .collect();
    let mut all = each.into_iter().collect::<Option<Vec<_>>>()?;
    Some(match all.len() {
        1 => all.remove(0),
        _ => Condition::All(all),
    })
}

fn is_null(entry: &Entry) -> bool {
    matches!(entry.node.value, Value::Null)
}

fn one(context: Context<'_>, entry: &Entry) -> Option<Condition> {
    let node = &entry.node;
    Some(match &*entry.key {
        "path" => Condition::Path(context.read_each(node, Pattern::parse)?),
        "glob" => path_text(expressions(context, node, Expression::glob)?),
        "regex" => path_text(expressions(context, node, Expression::regex)?),
        "method" => Condition::Method(context.read_each(node, parse_method)?),
        "header" => headers(context, node)?,
        "user" => Condition::User(text_test(context, node)?),
        "tier" => Condition::Tier(text_test(context, node)?),
        "api_key" => Condition::ApiKey(text_test(context, node)?),
        "ip" => Condition::Ip(context.read_each(node, parse_cidr)?),
        "upgrade" => Condition::Upgrade("websocket".into()),
        "all" => Condition::All(several(context, node)?),
        "any" => Condition::Any(several(context, node)?),
        "not" => Condition::Not(Box::new(read(context, node)?)),
        _ => return None,
    })
}

fn several(context: Context<'_>, node: &Node) -> Option<Vec<Condition>> {
    let each: Vec<_> = node.items().iter().map(|item| read(context, item)).collect();
    each.into_iter().collect()
}

fn expressions(
    context: Context<'_>,
    node: &Node,
    read: fn(&str) -> Result<Expression, Problem>,
) -> Option<Vec<Expression>> {
    let each: Vec<_> = node.each().iter().map(|node| expression(context, node, read)).collect();
    each.into_iter().collect()
}

fn expression(
    context: Context<'_>,
    node: &Node,
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

fn headers(context: Context<'_>, node: &Node) -> Option<Condition> {
    let each = node.entries().iter().map(|entry| {
        let name = parse_header_name(&entry.key);
        let name = name.map_err(|problem| context.error(entry.key_span, problem)).ok();
        let value = text_test(context, &entry.node);
        Some(Condition::Header { name: name?, value: value? })
    });
    // Read all before giving up, so that all are reported.
    let each: Vec<Option<Condition>> = each.collect();
    let mut all = each.into_iter().collect::<Option<Vec<_>>>()?;
    Some(if all.len() == 1 { all.remove(0) } else { Condition::All(all) })
}

fn text_test(context: Context<'_>, node: &Node) -> Option<TextTest> {
    let Value::Map(entries) = &node.value else {
        return context.read_each(node, |text| Ok(text.into())).map(TextTest::OneOf);
    };
    let [entry] = &entries[..] else {
        let problem = Problem::new("a condition on a text has exactly one field").hint(
            "write `{ present: true }`, `{ glob: \"bot-*\" }` or `{ regex: \"bot-[0-9]+\" }`",
        );
        context.error(node.span, problem);
        return None;
    };
    match &*entry.key {
        "present" => Some(TextTest::Present),
        "glob" => Some(TextTest::Like(expression(context, &entry.node, Expression::glob)?)),
        "regex" => Some(TextTest::Like(expression(context, &entry.node, Expression::regex)?)),
        _ => None,
    }
}
