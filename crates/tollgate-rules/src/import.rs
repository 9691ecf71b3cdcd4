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

/// What a rule of an imported file says that others do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportDetails {
    /// The domain of its file.
    pub domain: Box<str>,
    /// The `name` that stands beside the limit.
    pub name: Option<Box<str>>,
    /// How much is allowed.
    pub allows: ImportedAllowance,
    /// Names of limits that do not count where this one does.
    pub replaces: Vec<Box<str>>,
    /// Refuses only where all such limits of a request do.
    pub quota: bool,
}

/// How much an imported rule allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportedAllowance {
    /// What its limit says.
    Limited,
    /// Nothing, in this time.
    Nothing(Unit),
    /// Everything.
    Everything,
}

/// A domain that a file defines.
#[derive(Debug)]
pub(crate) struct ImportedDomain {
    pub(crate) name: Box<str>,
    pub(crate) tree: DescriptorTree,
    /// What limits that whoever asks states are counted as, and how.
    pub(crate) stated: Rule,
    pub(crate) algorithm: Algorithm,
}
