//! Parses commands: arrays of bulk strings, or inline commands as people type them.
//!
//! Arguments stay in the read buffer: the parser only records their ranges, and continues where it stopped when more
//! bytes arrive, so that a command sent byte by byte costs no more than one sent whole. Every size has a cap, and the
//! first byte beyond one ends the connection.

mod inline;

use std::fmt;

/// Maximum arguments of a command, including its name.
pub(crate) const ARGS_MAX: usize = 1_024;
/// Maximum bytes of an argument.
pub(crate) const ARG_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of a whole command.
pub(crate) const COMMAND_BYTES_MAX: usize = 128 << 10;
/// Maximum bytes of an inline command.
pub(crate) const INLINE_BYTES_MAX: usize = 16 << 10;

/// Maximum arguments before authentication: enough for `AUTH` and `HELLO`.
const UNAUTHENTICATED_ARGS_MAX: usize = 10;
/// Maximum bytes of an argument before authentication.
const UNAUTHENTICATED_ARG_BYTES_MAX: usize = 16 << 10;

/// Reads commands from the bytes of one connection.
#[derive(Debug, Default)]
pub(crate) struct CommandParser {
    state: ParserState,
    /// Ranges of the arguments, relative to the first byte of the command, or in `unquoted`.
    /// Bound: [`ARGS_MAX`].
    args: Vec<(u32, u32)>,
    /// Unquoted arguments of an inline command. Bound: [`INLINE_BYTES_MAX`].
    unquoted: Vec<u8>,
    /// Number of parsed bytes of the command.
    parsed_bytes: usize,
}

/// State of the parser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ParserState {
    #[default]
    Start,
    /// Inside an array, before the next argument; `left` arguments are missing.
    Array { left: usize },
    /// Inside an argument of `length` bytes; `left` counts it and all after it.
    Bulk { left: usize, length: usize },
    /// Inside an inline command, whose parsed bytes hold no end of line.
    Line,
    /// After a complete command.
    Done { line: bool },
}

/// Next step of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParserStep {
    /// Read more bytes.
    NeedMore,
    /// Run a command of this many bytes; [`CommandParser::args`] has its arguments.
    Command(usize),
    /// Skip this many bytes: an empty line or an empty array.
    Skip(usize),
}

/// Protocol error that ends the connection.
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
    /// Writes the text of Redis, where Redis has one.
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
    /// Continues with the command at the start of `bytes`. While it is incomplete, the caller has to pass the same
    /// bytes and more. `stranger` is true before authentication, when lower caps apply.
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

    /// Arguments of the last command, in the bytes that were parsed.
    #[inline]
    pub(crate) fn args<'a>(&'a self, bytes: &'a [u8]) -> RespArgs<'a> {
        let bytes = match self.state {
            ParserState::Done { line: true } => &self.unquoted[..],
            _ => bytes,
        };
        RespArgs { bytes, ranges: &self.args }
    }

    /// Returns true if the last command was inline. Then the parser holds its arguments, until the next command.
    #[inline]
    pub(crate) fn was_inline(&self) -> bool {
        self.state == ParserState::Done { line: true }
    }

    /// Returns true if a command is partly parsed.
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.state, ParserState::Start | ParserState::Done { .. })
    }

    /// Frees the memory of large commands.
    pub(crate) fn shrink(&mut self) {
        if !self.has_begun() {
            *self = CommandParser::default();
        }
    }

    /// Fast path for most commands: complete, fewer than ten arguments of fewer than 100 bytes each, below every cap.
    /// `None` means that the general parser has to look.
    #[inline]
    fn parse_short_command(&mut self, bytes: &[u8]) -> Option<usize> {
        let [b'*', count @ b'1'..=b'9', b'\r', b'\n', ..] = bytes else { return None };
        // Free if the last command had as many arguments.
        self.args.resize(usize::from(count - b'0'), (0, 0));
        let mut at = 4;
        for place in &mut self.args {
            // The shortest argument takes six bytes.
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
        // The end of the line does not count.
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
    /// Arguments at these ranges.
    pub(crate) fn new(bytes: &'a [u8], places: &'a [(u32, u32)]) -> RespArgs<'a> {
        RespArgs { bytes, ranges: places }
    }

    /// Ranges of the arguments.
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

    /// Range of an argument in [`RespArgs::bytes`].
    #[inline]
    pub(crate) fn range(self, index: usize) -> (u32, u32) {
        self.ranges.get(index).copied().unwrap_or_default()
    }

    /// The bytes that hold the arguments.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Arguments from this index on.
    pub(crate) fn from(self, index: usize) -> impl ExactSizeIterator<Item = &'a [u8]> {
        let places = self.ranges.get(index..).unwrap_or_default();
        places.iter().map(move |&(begin, end)| &self.bytes[begin as usize..end as usize])
    }
}

/// Result of parsing a number and the end of its line.
enum ParsedNumber {
    Incomplete,
    Invalid,
    /// A number, and the bytes it takes with the end of its line.
    Value {
        value: i64,
        bytes: usize,
    },
}

/// Maximum digits: more than any valid length has.
const DIGITS_MAX: usize = 10;

/// Parses a number as Redis does: no plus sign, no leading zeros.
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
