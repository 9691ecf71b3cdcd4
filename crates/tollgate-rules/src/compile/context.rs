//! `CompileContext`: the source being read, the diagnostics found, and the budgets that are left.

use std::cell::{Cell, RefCell};

use crate::Problem;
use crate::diagnostic::{Diagnostic, Diagnostics, MAX_SHOWN, Span};
use crate::source::{NamedFile, Source};
use crate::suggest::SuggestionBudget;
use crate::yaml::YamlNode;

/// The most globs and regular expressions of all files together. One takes up to 256 KiB and a
/// millisecond to compile, and no index finds it: each is tried for each request.
const MAX_EXPRESSIONS: usize = 1_000;

/// The most values with a `*` in all imported files together: those of one key are tried one by
/// one.
const MAX_WILDCARDS: usize = 1_000;

/// The most limits of all rules together, counted for each tier: 16 for each of 20,000 rules. One
/// takes about 300 bytes and some microseconds.
const MAX_LIMITS_BUILT: usize = 320_000;

/// The stores that rules may name beside `default`.
#[derive(Clone, Copy, Debug, Default)]
pub enum StoreNames<'a> {
    /// Unknown: any name is accepted, and counts as `default`.
    #[default]
    Unknown,
    /// No shared store: names get a warning.
    None,
    /// These, in the order of their numbers, from 1. Bound: 255, what a check's terms can name.
    Named(&'a [Box<str>]),
}

/// State shared by all files of one compilation.
#[derive(Default)]
pub(crate) struct CompileState<'s> {
    pub(crate) stores: StoreNames<'s>,
    pub(crate) diagnostics: RefCell<Diagnostics>,
    /// Files that the sources name. Bound: one, since `identify` is read once, and one for each upstream.
    pub(crate) named_files: RefCell<Vec<NamedFile>>,
    expressions: Cell<usize>,
    wildcards: Cell<usize>,
    limits: Cell<usize>,
    pub(crate) suggestions: SuggestionBudget,
}

impl<'s> CompileState<'s> {
    pub(crate) fn of(stores: StoreNames<'s>) -> CompileState<'s> {
        CompileState { stores, ..CompileState::default() }
    }
}

/// The source that is read, and what all sources share.
#[derive(Clone, Copy)]
pub(crate) struct CompileContext<'a> {
    pub(crate) source: &'a Source,
    pub(crate) shared: &'a CompileState<'a>,
    /// The spans that `shape` has reported in this source, sorted.
    pub(crate) reported: &'a [Span],
}

impl CompileContext<'_> {
    /// Reports an error, unless `shape` has already reported one inside the span, from which it may
    /// follow.
    pub(crate) fn error(&self, span: Span, problem: Problem) {
        let next = self.reported.partition_point(|reported| reported.start < span.start);
        if self.reported.get(next).is_none_or(|reported| reported.end > span.end) {
            self.push(Diagnostic::error(self.source, span, with_hint(problem)));
        }
    }

    pub(crate) fn warn(&self, span: Span, problem: Problem) {
        self.push(Diagnostic::warning(self.source, span, problem));
    }

    pub(crate) fn note(&self, span: Span, problem: Problem) {
        self.push(Diagnostic::note(self.source, span, problem));
    }

    pub(crate) fn push(&self, diagnostic: Diagnostic) {
        self.shared.diagnostics.borrow_mut().push(diagnostic);
    }

    /// Counts a glob or regular expression before it is compiled; `None`: there are too many.
    pub(crate) fn count_expression(&self, span: Span) -> Option<()> {
        let what = "globs and regular expressions, and each is tried for each request";
        let hint = "write path patterns such as `/api/{*rest}`, which are found by an index";
        self.count((&self.shared.expressions, MAX_EXPRESSIONS), span, what, hint)
    }

    /// Counts a value with a `*`; `None`: there are too many.
    pub(crate) fn count_wildcard(&self, span: Span) -> Option<()> {
        let what = "values with a `*`, and each may be tried for each request";
        let hint = "write whole values, or leave `value` out";
        self.count((&self.shared.wildcards, MAX_WILDCARDS), span, what, hint)
    }

    /// Counts a limit before it is built; `None`: there are too many.
    pub(crate) fn count_limit(&self, span: Span) -> Option<()> {
        let what = "limits, counted for each tier";
        self.count(
            (&self.shared.limits, MAX_LIMITS_BUILT),
            span,
            what,
            "write fewer rules or tiers",
        )
    }

    fn count(
        &self,
        (counter, most): (&Cell<usize>, usize),
        span: Span,
        what: &str,
        hint: &str,
    ) -> Option<()> {
        counter.set(counter.get() + 1);
        if counter.get() == most + 1 {
            self.error(span, Problem::new(format!("there are more than {most} {what}")).hint(hint));
        }
        (counter.get() <= most).then_some(())
    }

    /// "Did you mean …?", or `otherwise`. Not beyond the errors that are shown: nobody sees them,
    /// and comparing thousands of names takes time.
    pub(crate) fn did_you_mean<'n>(
        &self,
        given: &str,
        known: impl Iterator<Item = &'n str>,
        otherwise: impl FnOnce() -> String,
    ) -> String {
        let seen = self.shared.diagnostics.borrow().len() < MAX_SHOWN;
        let name = seen.then(|| self.shared.suggestions.suggest(given, known)).flatten();
        name.map_or_else(otherwise, |name| format!("did you mean `{name}`?"))
    }

    /// Reads a text with `read`, and reports a refusal. Silent if there is no text, because `shape`
    /// has reported that.
    pub(crate) fn read<T>(
        &self,
        node: &YamlNode,
        read: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Option<T> {
        let result = read(node.text()?);
        result.map_err(|problem| self.error(node.span, problem)).ok()
    }

    /// The same for each of one or several texts; `None` if one is refused.
    pub(crate) fn read_each<T>(
        &self,
        node: &YamlNode,
        read: impl Fn(&str) -> Result<T, Problem>,
    ) -> Option<Vec<T>> {
        let all: Vec<Option<T>> = node.each().iter().map(|item| self.read(item, &read)).collect();
        all.into_iter().collect()
    }
}

/// Reads an optional field with `read`: `Some(None)` if it is left out, `None` if it could not be
/// read.
pub(crate) fn optional<T>(
    node: Option<&YamlNode>,
    read: impl FnOnce(&YamlNode) -> Option<T>,
) -> Option<Option<T>> {
    match node {
        Some(node) => read(node).map(Some),
        None => Some(None),
    }
}

/// Error texts of the core end with the advice; here that becomes the hint.
fn with_hint(problem: Problem) -> Problem {
    let message = &problem.message;
    let cut = [": write ", ": did you mean ", ": leave ", "; leave "]
        .iter()
        .find_map(|words| message.rfind(words));
    match (cut, &problem.hint) {
        (Some(cut), None) => Problem::new(&message[..cut]).hint(&message[cut + 2..]),
        _ => problem,
    }
}
