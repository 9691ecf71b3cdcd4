//! `Diagnostic`: something wrong with a rules file, and where; `Diagnostics`: all of them, as text
//! for people or as values for programs.

mod snippet;

use std::fmt;

use serde_json::{Value, json};

use crate::Problem;
use crate::source::Source;

/// The most diagnostics that are shown. A file with more usually has one mistake that causes many.
pub const MAX_SHOWN: usize = 100;

/// The most diagnostics of each severity that are kept; further ones are only counted.
const MAX_KEPT: usize = 1_000;

/// The longest message or hint, in characters: a value pasted into the wrong place need not be
/// repeated whole.
const MAX_TEXT: usize = 500;

/// The severity: errors make the rules unusable, warnings and notes do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The rules cannot be used.
    Error,
    /// The rules can be used, but something in them does not do what it seems to.
    Warning,
    /// The rules can be used, and a choice in them is worth knowing. Shown by `tollgate check` only.
    Note,
}

impl Severity {
    /// `error`, `warning` or `note`.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// A place in a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The first byte, from 0.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

/// Something wrong, where, and what to do about it.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// The name of the file.
    pub file: String,
    /// The problem.
    pub message: String,
    /// Advice on what to write instead.
    pub hint: Option<String>,
    location: Option<SourceSpan>,
    /// A second place, such as the first of two equal names, and what it is.
    second_location: Option<(SourceSpan, String)>,
}

/// A span and the source it is in.
#[derive(Clone, Debug)]
struct SourceSpan {
    source: Source,
    span: Span,
}

impl Diagnostic {
    /// An error at a place.
    pub fn error(source: &Source, span: Span, problem: Problem) -> Diagnostic {
        let place = Some(SourceSpan { source: source.clone(), span });
        Diagnostic { location: place, ..Diagnostic::of_file(source.name(), problem) }
    }

    /// A warning at a place.
    pub fn warning(source: &Source, span: Span, problem: Problem) -> Diagnostic {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(source, span, problem) }
    }

    /// A note at a place.
    pub fn note(source: &Source, span: Span, problem: Problem) -> Diagnostic {
        Diagnostic { severity: Severity::Note, ..Diagnostic::error(source, span, problem) }
    }

    /// An error of a file as a whole.
    pub fn of_file(name: &str, problem: Problem) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            file: to_printable(name),
            message: to_printable(&problem.message),
            hint: problem.hint.as_deref().map(to_printable),
            location: None,
            second_location: None,
        }
    }

    /// Points to a second place.
    #[must_use]
    pub fn also(mut self, source: &Source, span: Span, label: impl Into<String>) -> Diagnostic {
        self.second_location =
            Some((SourceSpan { source: source.clone(), span }, to_printable(&label.into())));
        self
    }

    /// The place, unless the file as a whole is meant.
    pub fn span(&self) -> Option<Span> {
        self.location.as_ref().map(|place| place.span)
    }

    /// The machine-readable form: severity, file, message and hint, then the start and end of the
    /// span and the second location, if any.
    pub fn to_json(&self) -> Value {
        let mut value = json!({
            "severity": self.severity.as_str(),
            "file": self.file,
            "message": self.message,
            "hint": self.hint,
        });
        if let Some(place) = &self.location {
            place.add_to(&mut value);
        }
        if let Some((place, label)) = &self.second_location {
            let mut also = json!({ "file": place.source.name(), "message": label });
            place.add_to(&mut also);
            value["also"] = also;
        }
        value
    }
}

impl SourceSpan {
    fn add_to(&self, value: &mut Value) {
        let end = self.source.span_at(self.span.end, 0);
        value["line"] = self.span.line.into();
        value["column"] = self.span.column.into();
        value["end"] = json!({ "line": end.line, "column": end.column });
    }
}

impl fmt::Display for Diagnostic {
    /// Writes the diagnostic as compilers do, without a line break at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let also = self.second_location.as_ref().map(|(place, _)| place.span);
        let margin = snippet::margin(self.span().into_iter().chain(also));
        write!(f, "{}: {}", self.severity.as_str(), self.message)?;
        match &self.location {
            Some(place) => snippet::show(f, (&margin, "-->"), &place.source, place.span)?,
            None => write!(f, "\n{margin}--> {}", self.file)?,
        }
        if let Some((place, label)) = &self.second_location {
            write!(f, "\n{margin} = note: {}", label)?;
            snippet::show(f, (&margin, ":::"), &place.source, place.span)?;
        }
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "\n{margin} = hint: {hint}"))
    }
}

/// Everything found in the sources of one compilation. Notes are kept beside errors and warnings:
/// [`notes`](Diagnostics::notes) has them, and everything else is about errors and warnings only.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    /// Errors and warnings. Bound: `MAX_KEPT` of each severity.
    found: Vec<Diagnostic>,
    /// Bound: `MAX_KEPT`.
    notes: Vec<Diagnostic>,
    /// Number found of each severity.
    counts: [usize; 3],
}

impl Diagnostics {
    /// Adds one.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        let count = &mut self.counts[diagnostic.severity as usize];
        *count += 1;
        if *count > MAX_KEPT {
            return;
        }
        match diagnostic.severity {
            Severity::Error | Severity::Warning => self.found.push(diagnostic),
            Severity::Note => self.notes.push(diagnostic),
        }
    }

    /// Orders by source as given, then by place. In each source, diagnostics without a span come
    /// first.
    pub(crate) fn sort(&mut self, sources: &[Source]) {
        let rank = |file: &str| sources.iter().position(|one| to_printable(one.name()) == file);
        for list in [&mut self.found, &mut self.notes] {
            list.sort_by_cached_key(|diagnostic| (rank(&diagnostic.file), diagnostic.span()));
        }
    }

    /// Returns true if there are errors.
    pub fn has_errors(&self) -> bool {
        self.count(Severity::Error) > 0
    }

    /// Number of diagnostics of one severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.counts[severity as usize]
    }

    /// Returns true if there are no errors and no warnings.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Number of errors and warnings.
    pub fn len(&self) -> usize {
        self.count(Severity::Error) + self.count(Severity::Warning)
    }

    /// The notes in order of their spans; at most [`MAX_SHOWN`].
    pub fn notes(&self) -> impl Iterator<Item = &Diagnostic> {
        self.notes.iter().take(MAX_SHOWN)
    }

    /// The errors and warnings in order of their spans; at most 1,000 of each severity.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.found.iter()
    }

    /// The machine-readable form: an array of at most [`MAX_SHOWN`].
    pub fn to_json(&self) -> Value {
        self.shown().map(Diagnostic::to_json).collect()
    }

    /// The errors and warnings that are shown, at most [`MAX_SHOWN`]: when there are too many, errors
    /// before warnings.
    pub fn shown(&self) -> impl Iterator<Item = &Diagnostic> {
        let errors = self.count(Severity::Error).min(MAX_SHOWN);
        let mut room = [errors, MAX_SHOWN - errors];
        self.found.iter().filter(move |diagnostic| {
            let room = &mut room[diagnostic.severity as usize];
            *room > 0 && {
                *room -= 1;
                true
            }
        })
    }
}

/// Makes a message printable: it may quote values of the file, so control characters are escaped
/// and long texts cut.
fn to_printable(text: &str) -> String {
    let mut shown = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == MAX_TEXT {
            return shown + "...";
        }
        snippet::push(&mut shown, c);
    }
    shown
}

impl From<Diagnostic> for Diagnostics {
    fn from(diagnostic: Diagnostic) -> Diagnostics {
        let mut diagnostics = Diagnostics::default();
        diagnostics.push(diagnostic);
        diagnostics
    }
}

impl fmt::Display for Diagnostics {
    /// All that are shown, with an empty line between, and a line break at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = 0;
        for diagnostic in self.shown() {
            let gap = if shown > 0 { "\n" } else { "" };
            writeln!(f, "{gap}{diagnostic}")?;
            shown += 1;
        }
        match self.len() - shown {
            0 => Ok(()),
            more => writeln!(f, "\n... and {more} more"),
        }
    }
}
