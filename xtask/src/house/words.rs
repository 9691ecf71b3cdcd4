//! The two counts of the ratchet.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::sources::Sources;

/// Names that every module may have for itself.
const MODULE_NAMES: [&str; 2] = ["Error", "Args"];

/// First words that make a clause of an item's documentation.
const CLAUSE_WORDS: [&str; 31] = [
    "What",
    "Whatever",
    "Whether",
    "How",
    "However",
    "Who",
    "Whoever",
    "Whom",
    "Whose",
    "Where",
    "Wherever",
    "When",
    "Whenever",
    "Which",
    "Whichever",
    "Why",
    "Of",
    "As",
    "If",
    "In",
    "By",
    "For",
    "So",
    "Until",
    "That",
    "Because",
    "While",
    "Since",
    "Though",
    "Although",
    "Unless",
];

/// Declaration of a type: its file and line.
type Declaration<'a> = (&'a Path, usize);

/// Types by name.
pub(super) struct SharedNames<'a> {
    declared: BTreeMap<&'a str, Vec<Declaration<'a>>>,
    types: usize,
    pub(super) shared: usize,
}

impl SharedNames<'_> {
    /// Counts the types whose name another type has as well.
    pub(super) fn count(sources: &Sources) -> SharedNames<'_> {
        let mut declared: BTreeMap<&str, Vec<Declaration<'_>>> = BTreeMap::new();
        for file in &sources.files {
            for (index, line) in file.lines.iter().enumerate() {
                if let Some(name) = declared_type(line) {
                    declared.entry(name).or_default().push((&file.path, index + 1));
                }
            }
        }
        let types = declared.values().map(Vec::len).sum();
        declared.retain(|name, places| places.len() > 1 && !MODULE_NAMES.contains(name));
        let shared = declared.values().map(Vec::len).sum();
        SharedNames { declared, types, shared }
    }

    /// Prints each shared name with its declarations.
    pub(super) fn list(&self) {
        for (name, declarations) in &self.declared {
            println!("{name}");
            for (path, line) in declarations {
                println!("    {}:{line}", path.display());
            }
        }
    }
}

impl fmt::Display for SharedNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} ({})", self.shared, self.types, percent(self.shared, self.types))
    }
}

/// The name of the type that a line declares. Associated types, which are indented, do not count.
fn declared_type(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let indented = code.len() < line.len();
    let code = match code.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => code.strip_prefix("pub ").unwrap_or(code),
    };
    let code = code.strip_prefix("unsafe ").unwrap_or(code);
    let (keyword, rest) = code.split_once(' ')?;
    let is_type = matches!(keyword, "struct" | "enum" | "trait" | "union")
        || (keyword == "type" && !indented);
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let name = &rest[..end];
    (is_type && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
}

/// Item docs that begin with a clause.
pub(super) struct ClauseOpenings<'a> {
    found: Vec<(&'a Path, usize, &'a str)>,
    docs: usize,
    pub(super) clauses: usize,
}

impl ClauseOpenings<'_> {
    /// Counts the item docs, and those whose first word makes a clause of them.
    pub(super) fn count(sources: &Sources) -> ClauseOpenings<'_> {
        let (mut found, mut docs) = (Vec::new(), 0);
        for file in &sources.files {
            let mut inside = false;
            for (index, line) in file.lines.iter().enumerate() {
                let doc = line.trim_start().strip_prefix("///");
                if let Some(text) = doc.filter(|_| !inside) {
                    docs += 1;
                    if opens_with_clause(text) {
                        found.push((&*file.path, index + 1, text.trim()));
                    }
                }
                inside = doc.is_some();
            }
        }
        let clauses = found.len();
        ClauseOpenings { found, docs, clauses }
    }

    /// Prints each line that counts.
    pub(super) fn list(&self) {
        for (path, line, text) in &self.found {
            println!("{}:{line}: {text}", path.display());
        }
    }
}

impl fmt::Display for ClauseOpenings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} ({})", self.clauses, self.docs, percent(self.clauses, self.docs))
    }
}

fn opens_with_clause(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    CLAUSE_WORDS.contains(&first.trim_end_matches([',', ':', '.', ';']))
}

/// Part of a whole in percent, with one decimal.
fn percent(part: usize, whole: usize) -> String {
    let tenths = part * 1_000 / whole.max(1);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_and_nothing_else() {
        for (line, name) in [
            ("pub struct Limit {", Some("Limit")),
            ("pub(in crate::data_plane) enum Verdict {", Some("Verdict")),
            ("    struct Inner<T>(T);", Some("Inner")),
            ("type Names = Vec<Name>;", Some("Names")),
            ("    type Error = Infallible;", None),
            ("/// struct Limit", None),
            ("impl Limit {", None),
            ("let enum_like = 1;", None),
        ] {
            assert_eq!(declared_type(line), name, "{line}");
        }
    }

    #[test]
    fn a_doc_that_begins_with_a_clause_counts_once() {
        assert!(opens_with_clause(" What who is calling is found out by."));
        assert!(opens_with_clause(" So, then"));
        assert!(!opens_with_clause(" Rules version used to identify the caller."));
        assert!(!opens_with_clause(" Asks the store."));
        assert!(!opens_with_clause(""));
    }
}
