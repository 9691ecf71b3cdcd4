//! `DescriptorTree`: finds the rule of a file for a descriptor.
//!
//! One step for each entry, in order: a node with just this value; else the first in the order of the
//! file whose value has a `*` and fits; else the node of this key for any value. No step is taken back,
//! and only the node of the last entry counts: this is how the reference server finds it, and files
//! are written for that. Keys and values are compared apart, never joined.

use std::collections::HashMap;

use tollgate::KeyBuf;

use super::wildcard::Wildcard;
use crate::descriptors::DescriptorEntry;
use crate::key_template::add_entry;

/// The most bytes of values that one request has searched for parts between two `*`: each value counts
/// once for every pattern that searches it. About 2 ms of work.
pub const WILDCARD_BYTES_MAX: usize = 1 << 20;

/// More has to be searched than [`WILDCARD_BYTES_MAX`].
#[derive(Clone, Debug)]
pub(crate) struct WildcardBytesExceeded;

/// The most steps from the root to a node.
pub(crate) const DEPTH_MAX: usize = 12;

/// The descriptors of a file, each node with an index of those below it.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorTree {
    /// The root first. Bound: the nodes of a YAML file.
    nodes: Vec<DescriptorNode>,
}

/// One descriptor of a file.
#[derive(Clone, Debug, Default)]
struct DescriptorNode {
    /// The number of the rule that its limit became.
    rule: Option<u32>,
    /// True if the value of its entry is part of the key.
    counts_value: bool,
    /// The children by key.
    children: HashMap<Box<str>, DescriptorChildren>,
}

/// The nodes of one key below a node.
#[derive(Clone, Debug, Default)]
struct DescriptorChildren {
    /// The children by value, those with a `*` among them.
    exact: HashMap<Box<str>, u32>,
    /// The wildcards in the order of the file.
    wildcards: Vec<(Wildcard, u32)>,
    /// Number of wildcards that search a value.
    searching: usize,
    any_value: Option<u32>,
}

impl DescriptorChildren {
    /// The node of a value; `left` are the bytes that may still be searched.
    fn of(&self, value: &str, left: &mut usize) -> Result<Option<u32>, WildcardBytesExceeded> {
        if let Some(node) = self.exact.get(value) {
            return Ok(Some(*node));
        }
        let searched = self.searching.saturating_mul(value.len());
        *left = left.checked_sub(searched).ok_or(WildcardBytesExceeded)?;
        let fitting = self.wildcards.iter().find(|(wildcard, _)| wildcard.fits(value));
        Ok(fitting.map(|(_, node)| *node).or(self.any_value))
    }
}

/// A node as a file has it.
pub(crate) struct WrittenNode<'a> {
    pub(crate) key: &'a str,
    /// `None`: any.
    pub(crate) value: Option<&'a str>,
    /// All values that fit share one count.
    pub(crate) shared: bool,
    pub(crate) rule: Option<u32>,
}

/// Returns true if the value of an entry is part of the key of the rules at and below its node.
pub(crate) fn counts_value(value: Option<&str>, is_wildcard: bool, shared: bool) -> bool {
    value.is_none() || (is_wildcard && !shared)
}

impl DescriptorTree {
    /// A tree without descriptors.
    pub(crate) fn new() -> DescriptorTree {
        DescriptorTree { nodes: vec![DescriptorNode::default()] }
    }

    /// The node that all others are below.
    pub(crate) const ROOT: u32 = 0;

    /// Adds a node; its number.
    pub(crate) fn add(&mut self, above: u32, written: WrittenNode<'_>) -> u32 {
        let WrittenNode { key, value, shared, rule } = written;
        let number = self.nodes.len() as u32;
        let wildcard = value.and_then(Wildcard::parse);
        let counts_value = counts_value(value, wildcard.is_some(), shared);
        self.nodes.push(DescriptorNode { rule, counts_value, children: HashMap::new() });
        let choices = self.nodes[above as usize].children.entry(key.into()).or_default();
        if let Some(wildcard) = wildcard {
            choices.searching += usize::from(wildcard.searches());
            choices.wildcards.push((wildcard, number));
        }
        match value {
            Some(value) => drop(choices.exact.insert(value.into(), number)),
            None => choices.any_value = Some(number),
        }
        number
    }

    /// The number of the rule that a descriptor with these entries meets, and the key that it counts.
    /// `left` are the bytes that may still be searched.
    pub(crate) fn find<'e>(
        &self,
        entries: impl Iterator<Item = DescriptorEntry<'e>>,
        left: &mut usize,
    ) -> Result<Option<(u32, KeyBuf)>, WildcardBytesExceeded> {
        let mut key = KeyBuf::with_capacity(64);
        let mut node = &self.nodes[DescriptorTree::ROOT as usize];
        for entry in entries {
            let Some(choices) = node.children.get(entry.name) else { return Ok(None) };
            let Some(next) = choices.of(entry.value, left)? else { return Ok(None) };
            node = &self.nodes[next as usize];
            if node.counts_value {
                add_entry(&mut key, entry.name, entry.value);
            }
        }
        let Some(rule) = node.rule else { return Ok(None) };
        if key.as_bytes().is_empty() {
            key.add("global", "");
        }
        Ok(Some((rule, key)))
    }
}
