//! Messages about syntax errors, for people who do not know the grammar of YAML.

use granit_parser::{ErrorKind, Marker, ScanError};

use super::MAX_DEPTH;
use super::builder::too_deep;
use crate::Problem;
use crate::diagnostic::{Diagnostic, Span};
use crate::source::{Source, line_start};

/// Quotes of word processors, which YAML reads as letters.
pub(super) const TYPOGRAPHIC_QUOTES: [char; 7] = ['“', '”', '„', '‘', '’', '«', '»'];

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

/// The diagnostic for the position at which the parser gave up. The innermost bracket that is open
/// there may have been forgotten long before.
pub(super) fn explain(
    source: &Source,
    error: &ScanError,
    bracket: Option<Span>,
) -> Box<Diagnostic> {
    let place = span(source, error.marker(), error.marker());
    if let Some((start, problem)) = earlier(source.text(), place, error.kind()) {
        return Diagnostic::error(source, source.span_at(start, 1), problem).into();
    }
    let Some(open) = bracket.filter(|open| open.line < place.line) else {
        return Diagnostic::error(source, visible(source, place), problem(error.kind())).into();
    };
    let (opening, closing) = match source.text().as_bytes()[open.start] {
        b'[' => ('[', ']'),
        _ => ('{', '}'),
    };
    let problem =
        Problem::new(format!("the `{opening}` is not closed, or what is in it is not YAML"))
            .hint(format!("add the missing `{closing}`"));
    let diagnostic = Diagnostic::error(source, open, problem);
    diagnostic.also(source, visible(source, place), "it was noticed here").into()
}

/// Mistakes that the parser notices late: where they are, and what they are.
fn earlier(text: &str, place: Span, kind: &ErrorKind) -> Option<(usize, Problem)> {
    if let Some(tab) = tab_in_indent(text, place, kind) {
        let what = "there is a tab in the indentation, and YAML takes only spaces there";
        return Some((tab, Problem::new(what).hint("indent with spaces, two for each level")));
    }
    if let Some((quote, start)) = typographic_quote(text, place) {
        return Some((start, not_a_quote(quote)));
    }
    if let Some((start, value)) = bare_braces(text, place) {
        let problem = Problem::new("a text that begins with `{` is a map unless it is in quotes");
        return Some((start, problem.hint(format!("write `\"{value}\"`"))));
    }
    if is_in_quotes(kind) {
        let problem = Problem::new("the quote that opens here is not closed");
        return Some((open_quote(text, place)?, problem.hint("close it at the end of the text")));
    }
    let problem = Problem::new("a space is missing behind the `:`").hint("write `name: value`");
    Some((missing_space(text, place)?, problem))
}

/// Moves a place at the very end of the text back to its last line with something on it.
fn visible(source: &Source, place: Span) -> Span {
    let text = source.text();
    if place.start < text.len() {
        return place;
    }
    source.span_at(text.trim_end().len(), 0)
}

fn problem(kind: &ErrorKind) -> Problem {
    use ErrorKind::*;
    let (what, hint) = match kind {
        TabNotAllowed
        | TabInBlockIndentation
        | TabAtBlockScalarStart
        | TabInIndentation
        | TabInPlainScalar => {
            ("there is a tab where YAML takes only spaces", "write spaces instead")
        }
        UnexpectedEofFlowSequence | UnclosedFlowCollection { open: '[' } => {
            ("the `[` is not closed", "add the missing `]`")
        }
        UnexpectedEofFlowMapping
        | UnexpectedEofImplicitFlowMapping
        | UnclosedFlowCollection { .. } => ("the `{` is not closed", "add the missing `}`"),
        ExpectedFlowMappingSeparator => (
            "a `,` or `}` is missing here",
            "fields in braces are written `{ name: value, name: value }`",
        ),
        ExpectedFlowSequenceSeparator => (
            "a `,` or `]` is missing here",
            "put entries that contain `:`, `,` or brackets into quotes",
        ),
        MisplacedFlowCollectionEnd => {
            ("this bracket closes nothing", "remove it, or put the text into quotes")
        }
        MismatchedFlowCollectionEnd { .. } => (
            "this bracket is closed by one of another kind",
            "close brackets in the order in which they were opened",
        ),
        kind if is_indentation(kind) => (
            "the indentation does not fit the lines above",
            "fields that belong together begin in the same column",
        ),
        MappingValueNotAllowed
        | InvalidColonPlacement
        | MappingKeyNotAllowed
        | InvalidSimpleKey => (
            "`name: value` cannot stand here",
            "look at the indentation; put a text that contains `: ` into quotes",
        ),
        SimpleKeyExpected => ("a `:` is missing on this line", "write `name: value`"),
        UnknownQuotedScalarEscape | InvalidQuotedScalarHexEscape => (
            "there is an escape in this text that does not exist",
            "write `\\\\` for a backslash, or use single quotes, which have no escapes",
        ),
        InvalidTrailingSingleQuotedScalar | InvalidTrailingDoubleQuotedScalar => (
            "there is something behind the closing quote",
            "put the whole text into one pair of quotes",
        ),
        UnexpectedCharacter { character } => {
            return Problem::new(format!("{character:?} cannot begin a value"))
                .hint("put the text into quotes");
        }
        RecursionLimitExceeded => {
            return too_deep()
                .hint(format!("a rules file needs about ten; {MAX_DEPTH} is the most"));
        }
        other => return Problem::new(format!("this is not YAML: {other}")),
    };
    Problem::new(what).hint(hint)
}

/// A tab in the indentation of the line. The parser notices one behind a text that may go on already
/// at the end of that text, and one behind spaces only when the line below is indented otherwise.
fn tab_in_indent(text: &str, place: Span, kind: &ErrorKind) -> Option<usize> {
    let start = line_start(text, place.start);
    let next = || text[start..].find('\n').map(|newline| start + newline + 1);
    let previous = || start.checked_sub(1).map(|end| line_start(text, end));
    let beside = || match kind {
        ErrorKind::TabInPlainScalar | ErrorKind::TabInIndentation => {
            next().and_then(|next| tab(text, next))
        }
        _ if is_indentation(kind) => previous().and_then(|previous| tab(text, previous)),
        _ => None,
    };
    tab(text, start).or_else(beside)
}

/// The first tab in the indentation of the line that starts here.
fn tab(text: &str, start: usize) -> Option<usize> {
    let indent = text[start..].split(|c| c != ' ' && c != '\t').next()?;
    indent.find('\t').map(|tab| start + tab)
}

fn is_indentation(kind: &ErrorKind) -> bool {
    use ErrorKind::*;
    matches!(
        kind,
        InvalidIndentation
            | ExpectedBlockMappingKey
            | ExpectedBlockSequenceEntry
            | InvalidBlockScalarIndent
            | InvalidFlowScalarIndent
            | BlockSequenceEntryNotAllowed
    )
}

fn is_in_quotes(kind: &ErrorKind) -> bool {
    use ErrorKind::*;
    matches!(
        kind,
        UnclosedQuotedScalar | DocumentIndicatorInQuotedScalar | InvalidQuotedScalarIndent
    )
}

pub(super) fn not_a_quote(quote: char) -> Problem {
    Problem::new(format!("`{quote}` is not a quote that YAML knows"))
        .hint("write the quotes of a keyboard, `\"` or `'`")
}

/// The first value on the line that is in the quotes of a word processor and has characters of YAML inside: its first quote,
/// and where it stands. Texts in real quotes and comments are passed over.
fn typographic_quote(text: &str, place: Span) -> Option<(char, usize)> {
    let start = line_start(text, place.start);
    let line = text[start..].lines().next()?;
    let mut open = None;
    let (mut before, mut begins_value) = (' ', true);
    for (at, c) in line.char_indices() {
        match open {
            Some(quote) if c == quote => open = None,
            Some(_) => {}
            None if c == '#' && before.is_whitespace() => return None,
            None if begins_value && matches!(c, '"' | '\'') => open = Some(c),
            None if begins_value && TYPOGRAPHIC_QUOTES.contains(&c) => {
                let inside = &line[at + c.len_utf8()..];
                let end = inside.find(|end| closes(c, end));
                if end.is_some_and(|end| has_syntax(&inside[..end])) {
                    return Some((c, start + at));
                }
            }
            None => {}
        }
        begins_value =
            c.is_whitespace() && begins_value || matches!(c, ':' | ',' | '[' | '{' | '-');
        before = c;
    }
    None
}

/// Returns true if a quote of a word processor may end what another one began; an apostrophe ends no double quotes.
fn closes(open: char, end: char) -> bool {
    let is_single = |quote: char| matches!(quote, '‘' | '’');
    TYPOGRAPHIC_QUOTES.contains(&end) && is_single(open) == is_single(end)
}

/// Returns true if a text has characters that are more than letters to YAML.
fn has_syntax(text: &str) -> bool {
    text.contains(['{', '}', '[', ']', ',']) || text.contains(": ")
}

/// A value such as `{user}:{path}` that should be in quotes, and where it begins: the parser fails behind the first brace
/// that closes.
fn bare_braces(text: &str, place: Span) -> Option<(usize, &str)> {
    let line = line_start(text, place.start);
    let before = text[line..place.start].strip_suffix('}')?;
    let start = line + before.rfind('{')?;
    let is_end = |c: char| c.is_whitespace() || matches!(c, ',' | ']' | '"' | '\'');
    let end = text[place.start..].find(is_end).map_or(text.len(), |end| place.start + end);
    let value = &text[start..end];
    // `{ a: 1 }` is a map, and something else is wrong with it.
    (end > place.start && !value.contains(' ')).then_some((start, value))
}

/// The last quote at or before a place that has no partner on its line.
fn open_quote(text: &str, place: Span) -> Option<usize> {
    let end = text[place.start..].find('\n').map_or(text.len(), |newline| place.start + newline);
    let mut line_end = end;
    text[..end].rsplit('\n').find_map(|line| {
        let start = line_end - line.len();
        line_end = start.saturating_sub(1);
        let odd = |quote: &char| line.matches(*quote).count() % 2 == 1;
        let quote = ['"', '\''].into_iter().find(odd)?;
        line.rfind(quote).map(|quote| start + quote)
    })
}

/// The colon of a `name:value` on the line above: YAML reads that as one long text, and the parser
/// fails at the next line.
fn missing_space(text: &str, place: Span) -> Option<usize> {
    let end = line_start(text, place.start).checked_sub(1)?;
    let start = text[..end].rfind('\n').map_or(0, |newline| newline + 1);
    let line = text[start..end].trim_start_matches([' ', '-']);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let word = line.len() - line.trim_start_matches(is_word).len();
    let next = line[word..].strip_prefix(':').and_then(|rest| rest.chars().next())?;
    (word > 0 && !next.is_whitespace()).then_some(end - line.len() + word)
}
