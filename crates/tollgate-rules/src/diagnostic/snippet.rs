//! The source line of a diagnostic, with carets under the span. Not `annotate-snippets` (0.12): it
//! writes characters without width uncut (200 KB for a line of 100 KB), takes 79 ms for one span in
//! a file that is one line of 820 KB, numbers no line after a lone carriage return, and passes
//! control characters of messages on to the terminal.

use std::borrow::Cow;
use std::fmt;

use unicode_width::UnicodeWidthChar;

use super::Span;
use crate::source::{Source, line_start};

/// The widest line that is shown whole. Longer ones are cut around the span, so that a file on one
/// line does not fill the terminal.
const MAX_WIDTH: usize = 120;

/// Columns of a cut line before the span.
const LEAD_WIDTH: usize = 30;

/// The most characters on either side of the span. Characters without width take no columns, so
/// they need a bound of their own.
const MAX_CHARS: usize = 2 * MAX_WIDTH;

/// The mark in place of a part that was cut.
const ELLIPSIS: &str = "...";

/// The space left of the bars: as wide as the widest line number.
pub(super) fn margin(spans: impl Iterator<Item = Span>) -> String {
    let widest = spans.map(|span| span.line.to_string().len()).max();
    " ".repeat(widest.unwrap_or(0).max(2))
}

/// Writes `--> file:line:column`, the line and the carets.
pub(super) fn show(
    f: &mut fmt::Formatter<'_>,
    (margin, arrow): (&str, &str),
    source: &Source,
    span: Span,
) -> fmt::Result {
    let number = span.line;
    let SnippetLine { text, caret_offset: before, caret_width: under } =
        SnippetLine::cut(source.text(), span);
    let name = super::to_printable(source.name());
    write!(f, "\n{margin}{arrow} {name}:{}:{}", span.line, span.column)?;
    write!(f, "\n{margin} |\n{number:>width$} | {text}", width = margin.len())?;
    write!(f, "\n{margin} | {}{}", " ".repeat(before), "^".repeat(under.max(1)))
}

/// A line in printable form, and the position of the carets.
struct SnippetLine {
    text: String,
    caret_offset: usize,
    caret_width: usize,
}

impl SnippetLine {
    fn cut(source: &str, span: Span) -> SnippetLine {
        let start = line_start(source, span.start);
        let end =
            source[span.start..].find(['\n', '\r']).map_or(source.len(), |at| span.start + at);
        let line = mask_credentials(&source[start..end]);
        let (before, after) = line.split_at(span.start - start);
        // The length is compared first, so that the width of a very long line is not computed.
        let whole = line.trim_end();
        let fits = whole.len() <= 4 * MAX_WIDTH && width(whole) <= MAX_WIDTH;
        let before = if fits { LinePart::all(before) } else { tail(before) };
        let room = MAX_WIDTH - width(before.text).min(MAX_WIDTH - LEAD_WIDTH);
        let after = head(after.trim_end(), room);
        let under = width(&after.text[..span.end.saturating_sub(span.start).min(after.text.len())]);
        let (before_text, after_text) = (before.show(), after.show());
        SnippetLine {
            caret_offset: before_text.1,
            caret_width: under,
            text: format!("{}{}", before_text.0, after_text.0).trim_end().to_owned(),
        }
    }
}

/// Replaces the user and the password of a URL by stars, one for each byte, so that places stay right: diagnostics are
/// logged and sent to people who may not know them.
fn mask_credentials(line: &str) -> Cow<'_, str> {
    if !line.contains('@') {
        return line.into();
    }
    let mut masked = String::with_capacity(line.len());
    for word in line.split_inclusive([' ', '\t', '"', '\'']) {
        let secret = word.rfind('@').and_then(|at| {
            let start = word[..at].find("://").map(|scheme| scheme + 3);
            Some((start.or_else(|| word[..at].contains(':').then_some(0))?, at))
        });
        let (start, end) = secret.unwrap_or_default();
        masked.push_str(&word[..start]);
        masked.extend(std::iter::repeat_n('*', end - start));
        masked.push_str(&word[end..]);
    }
    masked.into()
}

/// A part of a line that is kept, and on which side something was cut.
struct LinePart<'a> {
    text: &'a str,
    cut_before: bool,
    cut_after: bool,
}

impl<'a> LinePart<'a> {
    fn all(kept: &'a str) -> LinePart<'a> {
        LinePart { text: kept, cut_before: false, cut_after: false }
    }

    /// The text to show and its width.
    fn show(&self) -> (String, usize) {
        let mut text = String::new();
        if self.cut_before {
            text.push_str(ELLIPSIS);
        }
        let cut_width = text.len();
        self.text.chars().for_each(|c| push(&mut text, c));
        if self.cut_after {
            text.push_str(ELLIPSIS);
        }
        (text, cut_width + width(self.text))
    }
}

/// Keeps the end of the text before the span.
fn tail(text: &str) -> LinePart<'_> {
    let mut room = MAX_WIDTH - LEAD_WIDTH;
    let fits = |c: &(usize, char)| {
        let fits = room >= width_of(c.1);
        room = room.saturating_sub(width_of(c.1));
        fits
    };
    let near = text.char_indices().rev().take(MAX_CHARS);
    let from = near.take_while(fits).last().map_or(text.len(), |(at, _)| at);
    if from == 0 || text.is_empty() {
        return LinePart::all(text);
    }
    // Keep less of a cut part, so that more of the span is visible.
    let from = text.char_indices().rev().nth(LEAD_WIDTH).map_or(from, |(at, _)| at.max(from));
    LinePart { text: &text[from..], cut_before: true, cut_after: false }
}

/// Keeps the beginning of the span and of the text after it.
fn head(text: &str, mut room: usize) -> LinePart<'_> {
    let mut end = 0;
    for (count, (at, c)) in text.char_indices().enumerate() {
        if width_of(c) > room || count == MAX_CHARS {
            return LinePart { text: &text[..at], cut_before: false, cut_after: true };
        }
        room -= width_of(c);
        end = at + c.len_utf8();
    }
    LinePart::all(&text[..end])
}

fn width(text: &str) -> usize {
    text.chars().map(width_of).sum()
}

/// The columns a character takes as [`push`] shows it.
fn width_of(c: char) -> usize {
    match c {
        '\t' => 4,
        c if is_dangerous(c) => c.escape_unicode().count(),
        c => c.width().unwrap_or(1),
    }
}

/// Adds a character in printable form. A tab always takes four columns, so that the carets line up.
/// Control characters would move the cursor or colour the terminal, so they are escaped.
pub(super) fn push(text: &mut String, c: char) {
    match c {
        '\t' => text.push_str("    "),
        c if is_dangerous(c) => text.extend(c.escape_unicode()),
        c => text.push(c),
    }
}

/// Returns true for control characters, invisible ones such as zero-width spaces, and those that
/// change the direction of writing: a line must look like what it contains.
fn is_dangerous(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use crate::Problem;
    use crate::diagnostic::Diagnostic;
    use crate::source::Source;

    /// The two lines of the snippet: the text and the carets.
    fn shown(text: &str, mark: &str) -> String {
        let source = Source::from_text("rules.yaml", text);
        let start = text.find(mark).expect("the mark is in the text");
        let span = source.span_at(start, mark.len());
        let shown = Diagnostic::error(&source, span, Problem::new("no")).to_string();
        shown.lines().skip(3).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn carets_stand_under_the_place() {
        let cases = [
            ("a: b", "b", " 1 | a: b\n   |    ^"),
            ("a:\n  limit: 1\n", "limit", " 2 |   limit: 1\n   |   ^^^^^"),
            ("\tx", "x", " 1 |     x\n   |     ^"),
            ("a\u{1b}[31m: x", "x", " 1 | a\\u{1b}[31m: x\n   |              ^"),
            ("\u{4f60}\u{597d}: x", "x", " 1 | \u{4f60}\u{597d}: x\n   |       ^"),
            ("a: e\u{301}x", "x", " 1 | a: e\u{301}x\n   |     ^"),
            ("a\r\nb: x\r\n", "x", " 2 | b: x\n   |    ^"),
            ("a\u{202e}: x", "x", " 1 | a\\u{202e}: x\n   |            ^"),
            ("a\rb: x\r", "x", " 2 | b: x\n   |    ^"),
        ];
        for (text, mark, want) in cases {
            assert_eq!(shown(text, mark), want);
        }
    }

    #[test]
    fn credentials_in_a_line_are_not_shown() {
        let cases = [
            ("a: http://u:p@h", " 1 | a: http://***@h\n   |    ^^^^^^^^^^^^"),
            ("[http://u:p@x@h, 'b@c']", " 1 | [http://*****@h, 'b@c']\n   |  ^^^^^^^^^^^^^^^"),
            ("'u:\u{e9}@h', http", " 1 | '****@h', http\n   |           ^^^^"),
            ("user: a@b http", " 1 | user: a@b http\n   |           ^^^^"),
        ];
        for (text, want) in cases {
            let from = text.find("http").expect("the mark is in the text");
            let mark = text[from..].split(' ').next().expect("a word");
            assert_eq!(shown(text, mark), want);
        }
    }

    #[test]
    fn what_is_quoted_cannot_move_the_cursor() {
        let source = Source::from_text("a\u{1b}.yaml", "x");
        let problem = Problem::new("no \u{1b}[31m\nerror: none").hint("\u{202e}");
        let shown = Diagnostic::error(&source, source.span_at(0, 1), problem).to_string();
        assert!(shown.starts_with("error: no \\u{1b}[31m\\u{a}error: none\n"), "{shown}");
        assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown}");
    }

    #[test]
    fn characters_without_width_are_cut_too() {
        let marks = "\u{301}".repeat(50_000);
        let shown = shown(&format!("a{marks} here {marks}"), "here");
        assert!(shown.len() < 2_000, "{}", shown.len());
    }

    #[test]
    fn long_lines_are_cut_around_the_place() {
        let text = format!("{} here {}", "a".repeat(5_000), "b".repeat(5_000));
        let shown = shown(&text, "here");
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[0].len() < 160, "{shown}");
        assert!(lines[0].contains("...aaa") && lines[0].ends_with("bbb..."), "{shown}");
        assert_eq!(lines[0].find("here"), lines[1].find('^'), "{shown}");
        assert!(lines[1].ends_with("^^^^"), "{shown}");
    }
}
