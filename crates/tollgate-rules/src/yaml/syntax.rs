//! What is not YAML, said for someone who does not know the grammar.

use granit_parser::{ErrorKind, Marker, ScanError};

use super::{MAX_DEPTH, too_deep};
use crate::Problem;
use crate::diagnostic::{Diagnostic, Span};
use crate::source::{Source, line_start};

/// The place between two marks of the parser.
pub(super) fn span(source: &Source, start: &Marker, end: &Marker) -> Span {
    let len = source.text().len();
    let byte = |mark: &Marker| mark.byte_offset().unwrap_or(len).min(len);
    Span {
        start: byte(start),
        end: byte(end).max(byte(start)),
        line: start.line(),
        column: start.col() + 1,
    }
}

/// A diagnostic for where the parser gave up.
pub(super) fn explain(source: &Source, error: &ScanError) -> Box<Diagnostic> {
    let place = span(source, error.marker(), error.marker());
    let problem = problem(source, place, error.kind());
    Diagnostic::error(source, visible(source, place), problem).into()
}

/// Moves a place at the very end of the text back to its last line with something on it.
fn visible(source: &Source, place: Span) -> Span {
    let text = source.text();
    if place.start < text.len() {
        return place;
    }
    source.span_at(text.trim_end().len(), 0)
}

fn problem(source: &Source, place: Span, kind: &ErrorKind) -> Problem {
    use ErrorKind::*;
    let spaces = "indent with spaces, two for each level";
    match kind {
        _ if tab_in_indent(source.text(), place) => {
            Problem::new("there is a tab in the indentation, and YAML takes only spaces there")
                .hint(spaces)
        }
        TabNotAllowed
        | TabInBlockIndentation
        | TabAtBlockScalarStart
        | TabInIndentation
        | TabInPlainScalar => {
            Problem::new("there is a tab where YAML takes only spaces").hint("write spaces instead")
        }
        UnclosedQuotedScalar | DocumentIndicatorInQuotedScalar => {
            Problem::new("the quote that opens here is never closed").hint("close it on this line")
        }
        UnexpectedEofFlowSequence | UnclosedFlowCollection { open: '[' } => {
            Problem::new("the `[` is never closed").hint("add the missing `]`")
        }
        UnexpectedEofFlowMapping
        | UnexpectedEofImplicitFlowMapping
        | UnclosedFlowCollection { .. } => {
            Problem::new("the `{` is never closed").hint("add the missing `}`")
        }
        ExpectedFlowMappingSeparator => Problem::new("a `,` or `}` is missing here")
            .hint("fields in braces are written `{ name: value, name: value }`"),
        ExpectedFlowSequenceSeparator => Problem::new("a `,` or `]` is missing here")
            .hint("put entries that contain `:`, `,` or brackets into quotes"),
        MisplacedFlowCollectionEnd => Problem::new("this bracket closes nothing")
            .hint("remove it, or put the text into quotes"),
        MismatchedFlowCollectionEnd { open, close } => {
            Problem::new(format!("`{open}` is closed by `{close}`"))
                .hint("close brackets in the order in which they were opened")
        }
        InvalidIndentation
        | ExpectedBlockMappingKey
        | ExpectedBlockSequenceEntry
        | InvalidBlockScalarIndent
        | InvalidFlowScalarIndent
        | InvalidQuotedScalarIndent
        | BlockSequenceEntryNotAllowed => {
            Problem::new("the indentation does not fit the lines above")
                .hint("fields that belong together begin in the same column")
        }
        MappingValueNotAllowed
        | InvalidColonPlacement
        | MappingKeyNotAllowed
        | SimpleKeyExpected
        | InvalidSimpleKey => Problem::new("`name: value` cannot stand here")
            .hint("look at the indentation; put a text that contains `: ` into quotes"),
        RecursionLimitExceeded => {
            too_deep().hint(format!("a rules file needs about ten; {MAX_DEPTH} is the bound"))
        }
        UnexpectedCharacter { character } => {
            Problem::new(format!("{character:?} cannot begin a value"))
                .hint("put the text into quotes")
        }
        UnknownQuotedScalarEscape | InvalidQuotedScalarHexEscape => {
            Problem::new("there is no such escape in a text in double quotes")
                .hint("write `\\\\` for a backslash, or use single quotes, which have no escapes")
        }
        InvalidTrailingSingleQuotedScalar | InvalidTrailingDoubleQuotedScalar => {
            Problem::new("there is something behind the closing quote")
                .hint("put the whole text into one pair of quotes")
        }
        other => Problem::new(format!("this is not YAML: {other}")),
    }
}

/// Whether the line, or the one before it, begins with a tab: the parser often notices it late.
fn tab_in_indent(text: &str, place: Span) -> bool {
    let start = line_start(text, place.start);
    let indent = text[start..].split(|c| c != ' ' && c != '\t').next();
    indent.is_some_and(|indent| indent.contains('\t'))
}
