//! Files of envoyproxy/ratelimit: a domain and a tree of descriptors, decided as that server does.
//!
//! Each node of the tree with a limit becomes a rule like any other, so that counts, overrides and
//! what is shown of callers work alike. `tree` finds the rule of a descriptor, `wildcard` compares
//! values with a `*` in them, `name` gives rules names that no reload changes.

pub(crate) mod name;
pub(crate) mod tree;
pub(crate) mod wildcard;

use tollgate::Algorithm;

use crate::descriptors::Unit;
use crate::rule::Rule;
use tree::DescriptorTree;

/// Details of a rule from an imported file that other rules do not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportDetails {
    /// The domain of its file.
    pub domain: Box<str>,
    /// The `name` that stands beside the limit.
    pub name: Option<Box<str>>,
    /// The allowance.
    pub allows: ImportedAllowance,
    /// Names of limits that do not count where this one applies.
    pub replaces: Vec<Box<str>>,
    /// True for a limit that refuses only if all such limits of a request do.
    pub quota: bool,
}

/// The allowance of an imported rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportedAllowance {
    /// The rule's limit.
    Limited,
    /// Nothing, in windows of this unit.
    Nothing(Unit),
    /// Everything.
    Everything,
}

/// A domain that a file defines.
#[derive(Debug)]
pub(crate) struct ImportedDomain {
    pub(crate) name: Box<str>,
    pub(crate) tree: DescriptorTree,
    /// The rule that limits stated in requests are counted under.
    pub(crate) stated: Rule,
    /// The algorithm of limits stated in requests.
    pub(crate) algorithm: Algorithm,
}
