//! `Context`: which source is read, and where what is found goes.

use std::cell::RefCell;

use crate::Problem;
use crate::diagnostic::{Diagnostic, Diagnostics, Span};
use crate::source::Source;
use crate::yaml::Node;

/// The source that is read, and what was found so far.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) source: &'a Source,
    pub(crate) found: &'a RefCell<Diagnostics>,
    /// Where `shape` has reported something in this source, sorted.
    pub(crate) reported: &'a [Span],
}

impl Context<'_> {
    /// Reports an error, unless it is the consequence of one that was reported: what stands around
    /// a number that is out of range cannot make sense either.
    pub(crate) fn error(&self, span: Span, problem: Problem) {
        let next = self.reported.partition_point(|reported| reported.start < span.start);
        if self.reported.get(next).is_none_or(|reported| reported.end > span.end) {
            self.push(Diagnostic::error(self.source, span, with_hint(problem)));
        }
    }

    pub(crate) fn warn(&self, span: Span, problem: Problem) {
        self.push(Diagnostic::warning(self.source, span, problem));
    }

    pub(crate) fn push(&self, diagnostic: Diagnostic) {
        self.found.borrow_mut().push(diagnostic);
    }

    /// What `read` makes of a text; what it refuses is reported. Silent where there is no text:
    /// `shape` has reported that.
    pub(crate) fn read<T>(
        &self,
        node: &Node,
        read: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Option<T> {
        let result = read(node.text()?);
        result.map_err(|problem| self.error(node.span, problem)).ok()
    }

    /// The same for each of one or several texts; `None` if one is refused.
    pub(crate) fn read_each<T>(
        &self,
        node: &Node,
        read: impl Fn(&str) -> Result<T, Problem>,
    ) -> Option<Vec<T>> {
        let all: Vec<Option<T>> = node.each().iter().map(|item| self.read(item, &read)).collect();
        all.into_iter().collect()
    }

    /// Says that something is understood but does nothing yet.
    pub(crate) fn no_effect(&self, span: Span, what: &str, acts: &str) {
        let problem = Problem::new(format!("`{what}` has no effect yet: it acts {acts}"));
        self.warn(span, problem);
    }
}

/// Texts of the core say what to write at their end; here that is the hint.
fn with_hint(problem: Problem) -> Problem {
    let message = &problem.message;
    let cut = [": write ", ": leave ", "; leave "].iter().find_map(|words| message.rfind(words));
    match (cut, &problem.hint) {
        (Some(cut), None) => Problem::new(&message[..cut]).hint(&message[cut + 2..]),
        _ => problem,
    }
}
