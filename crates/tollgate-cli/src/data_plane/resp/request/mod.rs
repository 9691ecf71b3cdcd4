//! Commands as clients send them: arrays of bulk strings, or lines as people type them.
//!
//! Arguments stay where they arrived: a parser only remembers where they are, and goes on where it
//! stopped when more bytes come, so that a command sent byte by byte costs no more than one sent whole.
//! Every size has a cap, and the first byte that breaks one is the end: what follows is not looked at.

mod inline;

use std::fmt;

/// The most arguments of a command, its name among them.
pub(crate) const ARGS_MAX: usize = 1_024;
/// The most bytes of an argument.
pub(crate) const ARG_BYTES_MAX: usize = 64 << 10;
/// The most bytes of a command, from its first to its last.
pub(crate) const COMMAND_BYTES_MAX: usize = 128 << 10;
/// The most bytes of a line that somebody types.
pub(crate) const INLINE_BYTES_MAX: usize = 16 << 10;

/// The same for whoever has not said yet who they are: room to say it.
const UNAUTHENTICATED_ARGS_MAX: usize = 10;
const UNAUTHENTICATED_ARG_BYTES_MAX: usize = 16 << 10;

/// Reads commands from the bytes of one connection.
#[derive(Debug, Default)]
pub(crate) struct CommandParser {
    state: ParserState,
    /// Where the arguments begin and end, from the first byte of the command, or in `unquoted`.
    /// Bound: [`ARGS_MAX`].
    args: Vec<(u32, u32)>,
    /// The arguments of a line without their quotes. Bound: [`INLINE_BYTES_MAX`].
    unquoted: Vec<u8>,
    /// Bytes of the command that have been understood.
    parsed_bytes: usize,
}

/// How far a command has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ParserState {
    #[default]
    Start,
    /// So many arguments are to come.
    Array { left: usize },
    /// The same, and the next has so many bytes.
    Bulk { left: usize, length: usize },
    /// A line, in which `at` bytes hold no end.
    Line,
    /// A whole command was given out.
    Done { line: bool },
}

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParserStep {
    /// Read more.
    NeedMore,
    /// Obey: [`CommandParser::args`] has the arguments. They take up so many bytes.
    Command(usize),
    /// Skip so many bytes: an empty line, an array of nothing.
    Skip(usize),
}

/// Why a connection has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolError {
    ArrayLength,
    BulkLength,
    ExpectedBulk(u8),
    MissingLineEnd,
    TooBig,
    LineTooBig,
    Quotes,
    UnauthenticatedArgs,
    UnauthenticatedArgBytes,
}

impl fmt::Display for ProtocolError {
    /// In Redis' own words, as far as it has some.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            ProtocolError::ArrayLength => "invalid multibulk length",
            ProtocolError::BulkLength => "invalid bulk length",
            ProtocolError::ExpectedBulk(found) => {
                let found = char::from(*found);
                let shown = if found.is_ascii_graphic() { found } else { '?' };
                return write!(f, "Protocol error: expected '$', got '{shown}'");
            }
            ProtocolError::MissingLineEnd => "expected CRLF after a bulk string",
            ProtocolError::TooBig => "too big command",
            ProtocolError::LineTooBig => "too big inline request",
            ProtocolError::Quotes => "unbalanced quotes in request",
            ProtocolError::UnauthenticatedArgs => "unauthenticated multibulk length",
            ProtocolError::UnauthenticatedArgBytes => "unauthenticated bulk length",
        };
        write!(f, "Protocol error: {text}")
    }
}

impl CommandParser {
    /// Goes on with the command that `bytes` begin with. As long as it is not whole the same bytes, and
    /// more, have to be given again.
    #[inline]
    pub(crate) fn next(
        &mut self,
        bytes: &[u8],
        stranger: bool,
    ) -> Result<ParserStep, ProtocolError> {
        if let ParserState::Start | ParserState::Done { .. } = self.state {
            if let Some(length) = self.parse_short_command(bytes) {
                return Ok(ParserStep::Command(length));
            }
            self.state = ParserState::Start;
        }
        loop {
            let go_on = match self.state {
                ParserState::Start | ParserState::Done { .. } => {
                    self.parse_array_length(bytes, stranger)?
                }
                ParserState::Array { left: 0 } => {
                    self.state = ParserState::Done { line: false };
                    return Ok(ParserStep::Command(self.parsed_bytes));
                }
                ParserState::Array { left } => self.parse_bulk_length(bytes, left, stranger)?,
                ParserState::Bulk { left, length } => self.parse_bulk(bytes, left, length)?,
                ParserState::Line => self.parse_inline(bytes)?,
            };
            if let Some(step) = go_on {
                return Ok(step);
            }
        }
    }

    /// The arguments of the command that was found last, in the bytes it was found in.
    #[inline]
    pub(crate) fn args<'a>(&'a self, bytes: &'a [u8]) -> RespArgs<'a> {
        let bytes = match self.state {
            ParserState::Done { line: true } => &self.unquoted[..],
            _ => bytes,
        };
        RespArgs { bytes, ranges: &self.args }
    }

    /// Whether the command that was found last was a line, whose arguments lie with the parser until it
    /// goes on.
    #[inline]
    pub(crate) fn was_inline(&self) -> bool {
        self.state == ParserState::Done { line: true }
    }

    /// Whether part of a command is understood; what is less than its first length is not.
    fn has_begun(&self) -> bool {
        !matches!(self.state, ParserState::Start | ParserState::Done { .. })
    }

    /// Gives back what large commands made grow.
    pub(crate) fn shrink(&mut self) {
        if !self.has_begun() {
            *self = CommandParser::default();
        }
    }

    /// Nearly all commands: whole, with fewer than ten arguments of fewer than a hundred bytes, which no
    /// cap forbids to anybody. They are read in one pass; `None` says nothing about any other.
    #[inline]
    fn parse_short_command(&mut self, bytes: &[u8]) -> Option<usize> {
        let [b'*', count @ b'1'..=b'9', b'\r', b'\n', ..] = bytes else { return None };
        // No work if the last command had as many.
        self.args.resize(usize::from(count - b'0'), (0, 0));
        let mut at = 4;
        for place in &mut self.args {
            // The shortest argument has six bytes.
            let (length, head) = match bytes.get(at..)?.first_chunk::<5>()? {
                [b'$', one @ b'0'..=b'9', b'\r', b'\n', _] => (one - b'0', 4),
                [b'$', ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', b'\n'] => {
                    ((ten - b'0') * 10 + (one - b'0'), 5)
                }
                _ => return None,
            };
            let begin = at + head;
            let end = begin + usize::from(length);
            let b"\r\n" = bytes.get(end..)?.first_chunk::<2>()? else { return None };
            *place = (begin as u32, end as u32);
            at = end + 2;
        }
        self.state = ParserState::Done { line: false };
        Some(at)
    }

    #[inline]
    fn parse_array_length(
        &mut self,
        bytes: &[u8],
        stranger: bool,
    ) -> Result<Option<ParserStep>, ProtocolError> {
        (self.parsed_bytes, self.state) = (0, ParserState::Start);
        self.args.clear();
        let Some(&first) = bytes.first() else { return Ok(Some(ParserStep::NeedMore)) };
        if first != b'*' {
            self.state = ParserState::Line;
            return Ok(None);
        }
        match parse_number(&bytes[1..]) {
            ParsedNumber::Incomplete => Ok(Some(ParserStep::NeedMore)),
            ParsedNumber::Invalid => Err(ProtocolError::ArrayLength),
            ParsedNumber::Value { value, bytes } if value <= 0 => {
                Ok(Some(ParserStep::Skip(1 + bytes)))
            }
            ParsedNumber::Value { value, bytes } => {
                let left = value as usize;
                if left > ARGS_MAX {
                    return Err(ProtocolError::ArrayLength);
                }
                if stranger && left > UNAUTHENTICATED_ARGS_MAX {
                    return Err(ProtocolError::UnauthenticatedArgs);
                }
                (self.parsed_bytes, self.state) = (1 + bytes, ParserState::Array { left });
                Ok(None)
            }
        }
    }

    #[inline]
    fn parse_bulk_length(
        &mut self,
        bytes: &[u8],
        left: usize,
        stranger: bool,
    ) -> Result<Option<ParserStep>, ProtocolError> {
        match bytes.get(self.parsed_bytes) {
            None => return Ok(Some(ParserStep::NeedMore)),
            Some(b'$') => {}
            Some(&other) => return Err(ProtocolError::ExpectedBulk(other)),
        }
        let (length, head) = match parse_number(&bytes[self.parsed_bytes + 1..]) {
            ParsedNumber::Incomplete => return Ok(Some(ParserStep::NeedMore)),
            ParsedNumber::Value { value, bytes } if (0..=ARG_BYTES_MAX as i64).contains(&value) => {
                (value as usize, bytes)
            }
            ParsedNumber::Value { .. } | ParsedNumber::Invalid => {
                return Err(ProtocolError::BulkLength);
            }
        };
        if stranger && length > UNAUTHENTICATED_ARG_BYTES_MAX {
            return Err(ProtocolError::UnauthenticatedArgBytes);
        }
        self.parsed_bytes += 1 + head;
        if self.parsed_bytes + length + 2 > COMMAND_BYTES_MAX {
            return Err(ProtocolError::TooBig);
        }
        self.state = ParserState::Bulk { left, length };
        Ok(None)
    }

    #[inline]
    fn parse_bulk(
        &mut self,
        bytes: &[u8],
        left: usize,
        length: usize,
    ) -> Result<Option<ParserStep>, ProtocolError> {
        let end = self.parsed_bytes + length;
        let Some(after) = bytes.get(end..) else { return Ok(Some(ParserStep::NeedMore)) };
        match after {
            [b'\r', b'\n', ..] => {}
            [] | [b'\r'] => return Ok(Some(ParserStep::NeedMore)),
            _ => return Err(ProtocolError::MissingLineEnd),
        }
        self.args.push((self.parsed_bytes as u32, end as u32));
        self.parsed_bytes = end + 2;
        self.state = ParserState::Array { left: left - 1 };
        Ok(None)
    }

    fn parse_inline(&mut self, bytes: &[u8]) -> Result<Option<ParserStep>, ProtocolError> {
        // The end of a line does not count.
        let most = bytes.len().min(INLINE_BYTES_MAX + 2);
        let Some(length) = bytes[self.parsed_bytes..most].iter().position(|byte| *byte == b'\n')
        else {
            self.parsed_bytes = most;
            return match most < INLINE_BYTES_MAX + 2 {
                true => Ok(Some(ParserStep::NeedMore)),
                false => Err(ProtocolError::LineTooBig),
            };
        };
        let length = self.parsed_bytes + length;
        let line = bytes[..length].strip_suffix(b"\r").unwrap_or(&bytes[..length]);
        if line.len() > INLINE_BYTES_MAX {
            return Err(ProtocolError::LineTooBig);
        }
        self.unquoted.clear();
        inline::split(line, &mut self.unquoted, &mut self.args)?;
        self.state = ParserState::Done { line: true };
        Ok(Some(match self.args.is_empty() {
            true => ParserStep::Skip(length + 1),
            false => ParserStep::Command(length + 1),
        }))
    }
}

/// The arguments of a command, its name first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RespArgs<'a> {
    bytes: &'a [u8],
    ranges: &'a [(u32, u32)],
}

impl<'a> RespArgs<'a> {
    /// Arguments that begin and end there.
    pub(crate) fn new(bytes: &'a [u8], places: &'a [(u32, u32)]) -> RespArgs<'a> {
        RespArgs { bytes, ranges: places }
    }

    /// Where they begin and end.
    pub(crate) fn ranges(self) -> impl Iterator<Item = (u32, u32)> {
        self.ranges.iter().copied()
    }

    pub(crate) fn len(self) -> usize {
        self.ranges.len()
    }

    #[inline]
    pub(crate) fn get(self, index: usize) -> Option<&'a [u8]> {
        let &(begin, end) = self.ranges.get(index)?;
        Some(&self.bytes[begin as usize..end as usize])
    }

    /// Where an argument begins and ends, from the first byte of the command, or of [`RespArgs::bytes`].
    #[inline]
    pub(crate) fn range(self, index: usize) -> (u32, u32) {
        self.ranges.get(index).copied().unwrap_or_default()
    }

    /// The bytes that the arguments are in.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// From the one of this number on.
    pub(crate) fn from(self, index: usize) -> impl ExactSizeIterator<Item = &'a [u8]> {
        let places = self.ranges.get(index..).unwrap_or_default();
        places.iter().map(move |&(begin, end)| &self.bytes[begin as usize..end as usize])
    }
}

/// A number and the end of its line.
enum ParsedNumber {
    Incomplete,
    Invalid,
    /// It takes up so many bytes.
    Value {
        value: i64,
        bytes: usize,
    },
}

/// More digits than any length has.
const DIGITS_MAX: usize = 10;

/// Reads a number as Redis does: no sign but a minus, no zero in front.
#[inline]
fn parse_number(bytes: &[u8]) -> ParsedNumber {
    let negative = bytes.first() == Some(&b'-');
    let digits = &bytes[usize::from(negative)..];
    let mut value: i64 = 0;
    for (index, byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'9' if index < DIGITS_MAX && (index == 0 || value > 0) => {
                value = value * 10 + i64::from(byte - b'0');
            }
            b'\r' if index > 0 && !(negative && value == 0) => {
                let value = if negative { -value } else { value };
                return match digits.get(index + 1) {
                    None => ParsedNumber::Incomplete,
                    Some(b'\n') => {
                        ParsedNumber::Value { value, bytes: usize::from(negative) + index + 2 }
                    }
                    Some(_) => ParsedNumber::Invalid,
                };
            }
            _ => return ParsedNumber::Invalid,
        }
    }
    ParsedNumber::Incomplete
}

#[cfg(test)]
mod tests;
