//! Warnings of raw API keys where a file names users: where users are identified by their API keys, a user is the hash of its
//! key, so a raw key is nobody's name.

use crate::Problem;
use crate::identify::Identify;
use crate::identify::api_key::is_hashed;
use crate::yaml::{YamlEntry, YamlNode};

use super::context::CompileContext;

/// Warns of raw API keys in all places of a file that name users.
pub(super) fn check(context: CompileContext<'_>, root: &YamlNode, identify: &Identify) {
    if !identify.users_are_api_keys() {
        return;
    }
    let tier = root.get("identify").and_then(|node| node.get("tier"));
    if let Some(table) = tier.and_then(|tier| tier.entry("users")) {
        warn(context, table, table.node.entries().iter().map(|entry| &*entry.key));
    }
    if let Some(exempt) = root.get("exempt").and_then(|node| node.entry("user")) {
        warn_of_list(context, exempt);
    }
    for rule in root.get("rules").map(YamlNode::items).unwrap_or_default() {
        if let Some(condition) = rule.get("match") {
            check_condition(context, condition);
        }
    }
}

/// Looks at a condition, and at those inside it.
fn check_condition(context: CompileContext<'_>, node: &YamlNode) {
    for entry in node.entries() {
        match &*entry.key {
            "user" => warn_of_list(context, entry),
            "not" => check_condition(context, &entry.node),
            "all" | "any" => {
                entry.node.items().iter().for_each(|one| check_condition(context, one));
            }
            _ => {}
        }
    }
}

/// Warns of a name or a list of names; tests of other kinds, such as expressions, may fit hashes.
fn warn_of_list(context: CompileContext<'_>, entry: &YamlEntry) {
    warn(context, entry, entry.node.each().iter().filter_map(YamlNode::text));
}

/// The message repeats no name, because warnings are logged.
fn warn<'n>(context: CompileContext<'_>, entry: &YamlEntry, names: impl Iterator<Item = &'n str>) {
    let raw = names.filter(|name| !is_hashed(name)).count();
    if raw == 0 {
        return;
    }
    let problem = Problem::new(format!(
        "users are the hashes of their API keys, and {raw} of these names {} no hash",
        if raw == 1 { "is" } else { "are" }
    ))
    .hint("write `sha256:` and the first 32 digits of `printf %s KEY | sha256sum`; `keys show` prints it too");
    context.warn(entry.key_span, problem);
}
