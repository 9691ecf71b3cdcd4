//! The page about the rules file names every field that the reader knows, and no other.

use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../docs/reference/rules-file.md");

/// The fields in the table below a comment such as `<!-- table: rule -->`.
fn fields_of(table: &str) -> Option<BTreeSet<&'static str>> {
    let (_, after) = PAGE.split_once(&format!("<!-- table: {table} -->\n"))?;
    let rows = after.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|'));
    // Names of fields are in backquotes; what a writer chooses is described without them.
    let field = |row: &'static str| row.split('|').nth(1)?.split('`').nth(1);
    Some(rows.skip(2).filter_map(field).collect())
}

#[test]
fn the_reference_has_every_field() {
    let schema = tollgate_rules::schema();
    for (table, definition) in schema["$defs"].as_object().expect("definitions") {
        let properties = definition["properties"].as_object();
        let wanted: BTreeSet<&str> =
            properties.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        if wanted.is_empty() {
            continue;
        }
        let found = fields_of(table);
        assert_eq!(found, Some(wanted), "in docs/reference/rules-file.md, the table `{table}`");
    }
}
