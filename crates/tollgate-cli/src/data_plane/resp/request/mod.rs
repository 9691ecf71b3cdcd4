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
const STRANGER_ARGS_MAX: usize = 10;
const STRANGER_ARG_BYTES_MAX: usize = 16 << 10;

/// Reads commands from the bytes of one connection.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    state: State,
    /// Where the arguments begin and end, from the first byte of the command, or in `unquoted`.
    /// Bound: [`ARGS_MAX`].
    args: Vec<(u32, u32)>,
    /// The arguments of a line without their quotes. Bound: [`INLINE_BYTES_MAX`].
    unquoted: Vec<u8>,
    /// Bytes of the command that have been understood.
    at: usize,
}

/// How far a command has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Fresh,
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
pub(crate) enum Step {
    /// Read more.
    More,
    /// Obey: [`Parser::args`] has the arguments. They take up so many bytes.
    Command(usize),
    /// Skip so many bytes: an empty line, an array of nothing.
    Nothing(usize),
}

/// Why a connection has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolError {
    ArrayLength,
    BulkLength,
    NoBulk(u8),
    NoEnd,
    TooBig,
    LineTooBig,
    Quotes,
    StrangerArgs,
    StrangerArg,
}

impl fmt::Display for ProtocolError {
    /// In Redis' own words, as far as it has some.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            ProtocolError::ArrayLength => "invalid multibulk length",
            ProtocolError::BulkLength => "invalid bulk length",
            ProtocolError::NoBulk(found) => {
                let found = char::from(*found);
                let shown = if found.is_ascii_graphic() { found } else { '?' };
                return write!(f, "Protocol error: expected '$', got '{shown}'");
            }
            ProtocolError::NoEnd => "expected CRLF after a bulk string",
            ProtocolError::TooBig => "too big command",
            ProtocolError::LineTooBig => "too big inline request",
            ProtocolError::Quotes => "unbalanced quotes in request",
            ProtocolError::StrangerArgs => "unauthenticated multibulk length",
            ProtocolError::StrangerArg => "unauthenticated bulk length",
        };
        write!(f, "Protocol error: {text}")
    }
}

impl Parser {
    /// Goes on with the command that `bytes` begin with. As long as it is not whole the same bytes, and
    /// more, have to be given again.
    #[inline]
    pub(crate) fn next(&mut self, bytes: &[u8], stranger: bool) -> Result<Step, ProtocolError> {
        if let State::Fresh | State::Done { .. } = self.state {
            if let Some(length) = self.whole(bytes) {
                return Ok(Step::Command(length));
            }
            self.state = State::Fresh;
        }
        loop {
            let go_on = match self.state {
                State::Fresh | State::Done { .. } => self.begin(bytes, stranger)?,
                State::Array { left: 0 } => {
                    self.state = State::Done { line: false };
                    return Ok(Step::Command(self.at));
                }
                State::Array { left } => self.length(bytes, left, stranger)?,
                State::Bulk { left, length } => self.bulk(bytes, left, length)?,
                State::Line => self.line(bytes)?,
            };
            if let Some(step) = go_on {
                return Ok(step);
            }
        }
    }

    /// The arguments of the command that was found last, in the bytes it was found in.
    #[inline]
    pub(crate) fn args<'a>(&'a self, bytes: &'a [u8]) -> Args<'a> {
        let bytes = match self.state {
            State::Done { line: true } => &self.unquoted[..],
            _ => bytes,
        };
        Args { bytes, places: &self.args }
    }

    /// Whether the command that was found last was a line, whose arguments lie with the parser until it
    /// goes on.
    #[inline]
    pub(crate) fn was_line(&self) -> bool {
        self.state == State::Done { line: true }
    }

    /// Whether part of a command is understood; what is less than its first length is not.
    fn has_begun(&self) -> bool {
        !matches!(self.state, State::Fresh | State::Done { .. })
    }

    /// Gives back what large commands made grow.
    pub(crate) fn shrink(&mut self) {
        if !self.has_begun() {
            *self = Parser::default();
        }
    }

    /// Nearly all commands: whole, with fewer than ten arguments of fewer than a hundred bytes, which no
    /// cap forbids to anybody. They are read in one pass; `None` says nothing about any other.
    #[inline]
    fn whole(&mut self, bytes: &[u8]) -> Option<usize> {
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
        self.state = State::Done { line: false };
        Some(at)
    }

    #[inline]
    fn begin(&mut self, bytes: &[u8], stranger: bool) -> Result<Option<Step>, ProtocolError> {
        (self.at, self.state) = (0, State::Fresh);
        self.args.clear();
        let Some(&first) = bytes.first() else { return Ok(Some(Step::More)) };
        if first != b'*' {
            self.state = State::Line;
            return Ok(None);
        }
        match number(&bytes[1..]) {
            Number::More => Ok(Some(Step::More)),
            Number::Wrong => Err(ProtocolError::ArrayLength),
            Number::Is { value, bytes } if value <= 0 => Ok(Some(Step::Nothing(1 + bytes))),
            Number::Is { value, bytes } => {
                let left = value as usize;
                if left > ARGS_MAX {
                    return Err(ProtocolError::ArrayLength);
                }
                if stranger && left > STRANGER_ARGS_MAX {
                    return Err(ProtocolError::StrangerArgs);
                }
                (self.at, self.state) = (1 + bytes, State::Array { left });
                Ok(None)
            }
        }
    }

    #[inline]
    fn length(
        &mut self,
        bytes: &[u8],
        left: usize,
        stranger: bool,
    ) -> Result<Option<Step>, ProtocolError> {
        match bytes.get(self.at) {
            None => return Ok(Some(Step::More)),
            Some(b'$') => {}
            Some(&other) => return Err(ProtocolError::NoBulk(other)),
        }
        let (length, head) = match number(&bytes[self.at + 1..]) {
            Number::More => return Ok(Some(Step::More)),
            Number::Is { value, bytes } if (0..=ARG_BYTES_MAX as i64).contains(&value) => {
                (value as usize, bytes)
            }
            Number::Is { .. } | Number::Wrong => return Err(ProtocolError::BulkLength),
        };
        if stranger && length > STRANGER_ARG_BYTES_MAX {
            return Err(ProtocolError::StrangerArg);
        }
        self.at += 1 + head;
        if self.at + length + 2 > COMMAND_BYTES_MAX {
            return Err(ProtocolError::TooBig);
        }
        self.state = State::Bulk { left, length };
        Ok(None)
    }

    #[inline]
    fn bulk(
        &mut self,
        bytes: &[u8],
        left: usize,
        length: usize,
    ) -> Result<Option<Step>, ProtocolError> {
        let end = self.at + length;
        let Some(after) = bytes.get(end..) else { return Ok(Some(Step::More)) };
        match after {
            [b'\r', b'\n', ..] => {}
            [] | [b'\r'] => return Ok(Some(Step::More)),
            _ => return Err(ProtocolError::NoEnd),
        }
        self.args.push((self.at as u32, end as u32));
        self.at = end + 2;
        self.state = State::Array { left: left - 1 };
        Ok(None)
    }

    fn line(&mut self, bytes: &[u8]) -> Result<Option<Step>, ProtocolError> {
        // The end of a line does not count.
        let most = bytes.len().min(INLINE_BYTES_MAX + 2);
        let Some(length) = bytes[self.at..most].iter().position(|byte| *byte == b'\n') else {
            self.at = most;
            return match most < INLINE_BYTES_MAX + 2 {
                true => Ok(Some(Step::More)),
                false => Err(ProtocolError::LineTooBig),
            };
        };
        let length = self.at + length;
        let line = bytes[..length].strip_suffix(b"\r").unwrap_or(&bytes[..length]);
        if line.len() > INLINE_BYTES_MAX {
            return Err(ProtocolError::LineTooBig);
        }
        self.unquoted.clear();
        inline::split(line, &mut self.unquoted, &mut self.args)?;
        self.state = State::Done { line: true };
        Ok(Some(match self.args.is_empty() {
            true => Step::Nothing(length + 1),
            false => Step::Command(length + 1),
        }))
    }
}

/// The arguments of a command, its name first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Args<'a> {
    bytes: &'a [u8],
    places: &'a [(u32, u32)],
}

impl<'a> Args<'a> {
    /// Arguments that begin and end there.
    pub(crate) fn new(bytes: &'a [u8], places: &'a [(u32, u32)]) -> Args<'a> {
        Args { bytes, places }
    }

    /// Where they begin and end.
    pub(crate) fn places(self) -> impl Iterator<Item = (u32, u32)> {
        self.places.iter().copied()
    }

    pub(crate) fn len(self) -> usize {
        self.places.len()
    }

    #[inline]
    pub(crate) fn get(self, index: usize) -> Option<&'a [u8]> {
        let &(begin, end) = self.places.get(index)?;
        Some(&self.bytes[begin as usize..end as usize])
    }

    /// Where an argument begins and ends, from the first byte of the command, or of [`Args::bytes`].
    #[inline]
    pub(crate) fn place(self, index: usize) -> (u32, u32) {
        self.places.get(index).copied().unwrap_or_default()
    }

    /// The bytes that the arguments are in.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// From the one of this number on.
    pub(crate) fn from(self, index: usize) -> impl ExactSizeIterator<Item = &'a [u8]> {
        let places = self.places.get(index..).unwrap_or_default();
        places.iter().map(move |&(begin, end)| &self.bytes[begin as usize..end as usize])
    }
}

/// A number and the end of its line.
enum Number {
    More,
    Wrong,
    /// It takes up so many bytes.
    Is {
        value: i64,
        bytes: usize,
    },
}

/// More digits than any length has.
const DIGITS_MAX: usize = 10;

/// Reads a number as Redis does: no sign but a minus, no zero in front.
#[inline]
fn number(bytes: &[u8]) -> Number {
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
                    None => Number::More,
                    Some(b'\n') => Number::Is { value, bytes: usize::from(negative) + index + 2 },
                    Some(_) => Number::Wrong,
                };
            }
            _ => return Number::Wrong,
        }
    }
    Number::More
}

#[cfg(test)]
mod tests;
