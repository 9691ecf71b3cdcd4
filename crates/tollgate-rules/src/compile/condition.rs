//! `match:` becomes a [`Condition`].

use crate::Problem;
use crate::matcher::{
    Condition, Expression, TextTest, parse_cidr, parse_header_name, parse_method,
};
use crate::pattern::Pattern;
use crate::yaml::{Entry, Node, Value};

use super::context::Context;

/// Reads the conditions of a map; all must hold. `None`: one of them could not be read.
pub(super) fn read(context: Context<'_>, node: &Node) -> Option<Condition> {
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
        "glob" => path_text(context.read_each(node, Expression::glob)?),
        "regex" => path_text(context.read_each(node, Expression::regex)?),
        "method" => Condition::Method(context.read_each(node, parse_method)?),
        "header" => headers(context, node)?,
        "user" => Condition::User(text_test(context, node)?),
        "tier" => Condition::Tier(text_test(context, node)?),
        "api_key" => Condition::ApiKey(text_test(context, node)?),
        "ip" => Condition::Ip(context.read_each(node, parse_cidr)?),
        "upgrade" => Condition::Header {
            name: "upgrade".into(),
            value: TextTest::Like(Expression::regex("(?i)websocket").expect("a plain word")),
        },
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
        "glob" => context.read(&entry.node, Expression::glob).map(TextTest::Like),
        "regex" => context.read(&entry.node, Expression::regex).map(TextTest::Like),
        _ => None,
    }
}
