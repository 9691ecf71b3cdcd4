//! Reader of traces: JSON lines, read one at a time, with the position of every mistake.
//!
//! A line has a time (`at`), a `cost`, and a subject: a `key`, or `facts` for rules. The first two are parsed
//! here, the subject by the caller.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use serde_json::error::Category;
use serde_json::value::RawValue;
use tollgate::Micros;
use tollgate::time::MAX_EXACT;

use super::{CommandFailure, Report};
use crate::recording::RECORDED_LINE;
use fields::{LineFields, shortened_value, whole_number};

pub(super) mod fields;

/// Longest line, without its line break. A trace without line breaks must not fill the memory.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Bytes read at once.
const INPUT_BYTES: usize = 64 << 10;

const AT_HINT: &str =
    "write whole microseconds since the Unix epoch, from 0 to 9007199254740991 (2^53 - 1)";
const TAKES_HINT: &str = "write whole microseconds from 0, such as 50000";
const COST_HINT: &str = "write a whole number of units, from 0 to 18446744073709551615 (2^64 - 1)";

/// Format of the lines of a trace.
#[derive(Debug)]
pub(super) struct TraceFormat {
    /// Name of the field beside `at` and `cost`.
    pub(super) subject_field: &'static str,
    pub(super) line_hint: &'static str,
    pub(super) fields_hint: &'static str,
    /// True if a line may say how long the work of its request takes.
    pub(super) has_work: bool,
}

/// One line of a trace.
pub(super) struct TraceRequest<'a> {
    pub(super) at: Micros,
    pub(super) cost: Option<u64>,
    /// The time that the work of the request takes.
    pub(super) takes: Duration,
    /// The key or the facts, not yet parsed.
    pub(super) subject: Option<&'a RawValue>,
    pub(super) line: TraceLineText<'a>,
}

/// A trace and its current line.
pub(super) struct TraceReader {
    name: String,
    form: &'static TraceFormat,
    reader: BufReader<Box<dyn Read>>,
    /// The current line. Bound: `LINE_BYTES_MAX` and its line break.
    line: Vec<u8>,
    /// Number of the line, from 1, counting blank lines.
    number: u64,
    /// True if a server recorded it, with callers hashed.
    is_recorded: bool,
}

impl TraceReader {
    /// Opens a file, or standard input if the path is `-`.
    pub(super) fn open(
        path: &Path,
        form: &'static TraceFormat,
    ) -> Result<TraceReader, CommandFailure> {
        if path == Path::new("-") {
            return Ok(TraceReader::new("<stdin>".into(), form, Box::new(io::stdin())));
        }
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Ok(TraceReader::new(name, form, Box::new(file))),
            Err(error) => Err(cannot_read(&name, &error)),
        }
    }

    fn new(name: String, form: &'static TraceFormat, source: Box<dyn Read>) -> TraceReader {
        let reader = BufReader::with_capacity(INPUT_BYTES, source);
        TraceReader { name, form, reader, line: Vec::new(), number: 0, is_recorded: false }
    }

    /// Returns true if reading the next line may block.
    pub(super) fn may_wait(&self) -> bool {
        !self.reader.buffer().contains(&b'\n')
    }

    /// Returns true if a server recorded the lines so far, with callers hashed.
    pub(super) fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// Returns true if there was a line.
    pub(super) fn has_lines(&self) -> bool {
        self.number > 0
    }

    /// Moves to the next line that is not blank. Returns false at the end.
    pub(super) fn advance(&mut self) -> Result<bool, CommandFailure> {
        loop {
            self.line.clear();
            let most = LINE_BYTES_MAX as u64 + 2; // with \r\n
            let read = self.reader.by_ref().take(most).read_until(b'\n', &mut self.line);
            if read.map_err(|error| cannot_read(&self.name, &error))? == 0 {
                return Ok(false);
            }
            self.number += 1;
            for end in [b'\n', b'\r'] {
                self.line.pop_if(|last| *last == end);
            }
            if self.line.len() > LINE_BYTES_MAX {
                let problem = format!("the line is longer than {LINE_BYTES_MAX} bytes");
                return Err(self.mistake_at(LINE_BYTES_MAX, problem, self.form.line_hint));
            }
            if self.number == 1
                && self.form.has_work
                && self.line == RECORDED_LINE.trim_end().as_bytes()
            {
                self.is_recorded = true;
                continue;
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    /// The request on this line.
    pub(super) fn request(&self) -> Result<TraceRequest<'_>, CommandFailure> {
        let text = str::from_utf8(&self.line).map_err(|error| {
            self.mistake_at(error.valid_up_to(), "the line is not UTF-8", "save the trace as UTF-8")
        })?;
        let line = TraceLineText { trace: self, text };
        let fields: LineFields<'_> =
            serde_json::from_str(text).map_err(|error| self.not_an_object(text, &error))?;
        let names = ["at", "cost", self.form.subject_field];
        let hint = self.form.fields_hint;
        let ([at, cost, who], takes) = match self.form.has_work {
            true => {
                let [at, cost, who] = names;
                let [at, cost, who, takes] =
                    line.pick(&fields, [at, cost, who, "takes_us"], hint)?;
                ([at, cost, who], takes)
            }
            false => (line.pick(&fields, names, hint)?, None),
        };
        let Some(at) = at else {
            return Err(self.mistake_at(start(text), "the line has no field \"at\"", AT_HINT));
        };
        let number = |value, name, most, hint| {
            whole_number(value, most).map_err(|is| line.wrong_value(value, name, is, hint))
        };
        let takes =
            takes.map(|takes| number(takes, "takes_us", MAX_EXACT, TAKES_HINT)).transpose()?;
        Ok(TraceRequest {
            takes: Duration::from_micros(takes.unwrap_or(0)),
            at: Micros::new(number(at, "at", MAX_EXACT, AT_HINT)?),
            cost: cost.map(|cost| number(cost, "cost", u64::MAX, COST_HINT)).transpose()?,
            subject: who,
            line,
        })
    }

    fn not_an_object(&self, text: &str, error: &serde_json::Error) -> CommandFailure {
        let line_hint = self.form.line_hint;
        if error.classify() == Category::Data {
            return self.mistake_at(start(text), "the line is not a JSON object", line_hint);
        }
        if error.classify() == Category::Eof {
            return self.mistake_at(text.len(), "the line ends before its object does", line_hint);
        }
        let message = error.to_string();
        let what = message.split(" at line ").next().unwrap_or(&message);
        let offset = error.column().saturating_sub(1);
        if what.starts_with("control character") {
            // The column is that of the last character before it.
            let problem = "the line has a bare control character";
            return self.mistake_at(
                offset + 1,
                problem,
                r"write it as \u0000, with its own number",
            );
        }
        self.mistake_at(offset, format!("the line is not JSON: {what}"), line_hint)
    }

    /// The failure for a mistake at this byte of the line. Columns count characters, from 1.
    fn mistake_at(&self, offset: usize, problem: impl fmt::Display, hint: &str) -> CommandFailure {
        let before = &self.line[..offset.min(self.line.len())];
        let column = String::from_utf8_lossy(before).chars().count() + 1;
        CommandFailure::Input(
            Report::new(format!("{}:{column}: {problem}", self.place())).hint(hint),
        )
    }

    fn place(&self) -> String {
        format!("{}:{}", self.name, self.number)
    }
}

/// The line of a request, for errors with a position.
#[derive(Clone, Copy)]
pub(super) struct TraceLineText<'a> {
    trace: &'a TraceReader,
    text: &'a str,
}

impl<'a> TraceLineText<'a> {
    /// The values of these fields. Others, and duplicates, are errors.
    pub(super) fn pick<const N: usize>(
        &self,
        fields: &LineFields<'a>,
        names: [&str; N],
        hint: &str,
    ) -> Result<[Option<&'a RawValue>; N], CommandFailure> {
        fields.pick(names).map_err(|(name, is)| self.unknown_field(name, is, hint))
    }

    /// The failure for an unknown or duplicate field.
    pub(super) fn unknown_field(&self, name: &RawValue, is: &str, hint: &str) -> CommandFailure {
        let problem = format!("the field {} {is}", shortened_value(name));
        self.trace.mistake_at(self.offset(name), problem, hint)
    }

    /// The failure for a wrong value.
    pub(super) fn wrong_value(
        &self,
        value: &RawValue,
        name: &str,
        is: &str,
        hint: &str,
    ) -> CommandFailure {
        let problem = format!("{name:?} is {}, {is}", shortened_value(value));
        self.trace.mistake_at(self.offset(value), problem, hint)
    }

    /// Offset of a part of the line.
    fn offset(&self, part: &RawValue) -> usize {
        part.get().as_ptr().addr().saturating_sub(self.text.as_ptr().addr())
    }
}

impl fmt::Display for TraceLineText<'_> {
    /// Writes the position as `FILE:LINE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.trace.place())
    }
}

/// Offset of the first character that is not a space.
fn start(text: &str) -> usize {
    text.len() - text.trim_ascii_start().len()
}

fn cannot_read(name: &str, error: &io::Error) -> CommandFailure {
    CommandFailure::Input(match error.kind() {
        io::ErrorKind::NotFound => Report::new(format!("there is no file {name}"))
            .hint("write the path of a trace, or - for standard input"),
        io::ErrorKind::IsADirectory => Report::new(format!("{name} is a directory"))
            .hint("write the path of a trace, or - for standard input"),
        _ => Report::new(format!("cannot read {name}: {error}")),
    })
}
