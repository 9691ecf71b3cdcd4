//! The tree of a YAML file, each node with its place, read within bounds.
//!
//! Rules files and the server's settings file are read with it. Not a deserialiser: that would stop
//! at the first error, and an operator wants to see all of them. `shape` checks the form of nodes;
//! here they are text, a list or a map.
//!
//! A rules file may come from a stranger's pull request. Each bound below stops a way to make a
//! small file expensive, before the expense.

mod builder;
mod syntax;

use granit_parser::Parser;

use crate::Problem;
use crate::diagnostic::{Diagnostic, Diagnostics, Span};
use crate::source::Source;

/// The deepest nesting of lists and maps. The deepest rule, with conditions inside conditions,
/// needs about ten; everything that walks the tree may then recurse without risk to the stack.
pub(crate) const MAX_DEPTH: usize = 32;

/// The most scalars, lists and maps of a file, counted with everything that aliases repeat: about
/// 10,000 rules. An event costs about 100 bytes in the tree.
pub(crate) const MAX_EVENTS: usize = 200_000;

/// The most entries of one list or map. The longest in practice are lists of rules and tables of
/// users; a file that is one long list is detected by this before it is read whole.
pub(crate) const MAX_ENTRIES: usize = 25_000;

/// The most uses of anchors. People share a few lists; bombs share thousands.
pub(crate) const MAX_ALIASES: usize = 100;

/// The longest scalar. A long regular expression has a few thousand bytes.
pub(crate) const MAX_SCALAR_BYTES: usize = 64 << 10;

/// A value and its place.
#[derive(Clone, Debug)]
pub struct YamlNode {
    /// The span. For a list or map in block form it starts at the first entry.
    pub span: Span,
    /// The value.
    pub value: YamlValue,
}

/// The value of a node.
#[derive(Clone, Debug)]
pub enum YamlValue {
    /// Nothing: an empty place, `~` or `null`.
    Null,
    /// Text without quotes, which may be read as a number or a boolean.
    Plain(Box<str>),
    /// Text in quotes or in block form, which is only ever text.
    Quoted(Box<str>),
    /// A list.
    List(Vec<YamlNode>),
    /// A map, in the order of the file. No two keys are equal.
    Map(Vec<YamlEntry>),
}

/// A key of a map and its value.
#[derive(Clone, Debug)]
pub struct YamlEntry {
    /// The key.
    pub key: Box<str>,
    /// The place of the key.
    pub key_span: Span,
    /// The value.
    pub node: YamlNode,
}

impl YamlNode {
    /// The text of a scalar.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Plain(text) | YamlValue::Quoted(text) => Some(text),
            _ => None,
        }
    }

    /// The entries of a list; of anything else, none.
    pub fn items(&self) -> &[YamlNode] {
        match &self.value {
            YamlValue::List(items) => items,
            _ => &[],
        }
    }

    /// The entries of a map; of anything else, none.
    pub fn entries(&self) -> &[YamlEntry] {
        match &self.value {
            YamlValue::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The entry of a map with this key.
    pub(crate) fn entry(&self, key: &str) -> Option<&YamlEntry> {
        self.entries().iter().find(|entry| &*entry.key == key)
    }

    /// The value of a map under this key, unless it is missing or null.
    pub(crate) fn get(&self, key: &str) -> Option<&YamlNode> {
        self.entry(key)
            .map(|entry| &entry.node)
            .filter(|node| !matches!(node.value, YamlValue::Null))
    }
}

/// Reads the one document of a source. Returns `None` if the document is empty, or if it could not
/// be read: then `diagnostics` says why.
pub fn read(source: &Source, diagnostics: &mut Diagnostics) -> Option<YamlNode> {
    let text = source.text();
    if let Some(zero) = text.find('\0') {
        let problem = Problem::new("there is a zero byte in the text").hint("remove it");
        diagnostics.push(Diagnostic::error(source, source.span_at(zero, 1), problem));
        return None;
    }
    let mut options = granit_parser::Options::default();
    options.emit_unresolved_aliases = true;
    // The parser's own bounds stop it earlier than ours, before it has stored the nesting.
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    let parser = Parser::new_from_str_with_options(text, options);
    builder::YamlBuilder::new(source, diagnostics).build(parser)
}

#[cfg(test)]
mod tests;
