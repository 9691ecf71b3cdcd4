//! The rules of the Tollgate contestants: limits by address that never refuse.

use std::fmt::Write;

/// A rules file with `count` rules that match every request to `/api/`, and one rule for `/tight`, because a file needs
/// a rule.
pub(crate) fn matching(count: usize) -> String {
    let mut rules = String::from("version: 1\nrules:\n");
    rules.push_str(&rule("tight", "/tight", "1/minute"));
    for number in 1..=count {
        rules.push_str(&rule(&format!("api-{number:02}"), "/api/{*rest}", NEVER_REFUSES));
    }
    rules
}

/// A limit of one million requests a second.
const NEVER_REFUSES: &str = "1000000/second burst 1000000";

fn rule(name: &str, path: &str, limit: &str) -> String {
    let mut text = String::new();
    writeln!(text, "  - name: {name}\n    match: {{ path: \"{path}\" }}")
        .expect("a string takes all");
    writeln!(text, "    key: \"{{ip}}\"\n    limits: [{limit}]").expect("a string takes all");
    text
}
