//! Splits an inline command, as typed into a terminal, into arguments as Redis does.
//!
//! Blanks separate arguments. Double quotes keep blanks and support `\n`, `\r`, `\t`, `\b`, `\a`, `\xHH` and `\` before
//! any other character; single quotes keep everything but `\'`. A closing quote ends its argument. The rest of the line
//! after a zero byte is ignored.

use super::{ARGS_MAX, ProtocolError};

/// Splits a line. Appends the arguments to `unquoted` and their ranges to `args`.
pub(super) fn split(
    line: &[u8],
    unquoted: &mut Vec<u8>,
    args: &mut Vec<(u32, u32)>,
) -> Result<(), ProtocolError> {
    let end = line.iter().position(|byte| *byte == 0).unwrap_or(line.len());
    let mut rest = InlineScanner { bytes: &line[..end], unquoted };
    loop {
        rest.skip_blanks();
        if rest.bytes.is_empty() {
            return Ok(());
        }
        if args.len() == ARGS_MAX {
            return Err(ProtocolError::ArrayLength);
        }
        let begin = rest.unquoted.len() as u32;
        rest.argument()?;
        args.push((begin, rest.unquoted.len() as u32));
    }
}

struct InlineScanner<'a, 'u> {
    bytes: &'a [u8],
    unquoted: &'u mut Vec<u8>,
}

impl InlineScanner<'_, '_> {
    fn take(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn skip_blanks(&mut self) {
        while self.bytes.first().is_some_and(|byte| is_blank(*byte)) {
            self.take();
        }
    }

    /// One argument, which may have quotes in its middle.
    fn argument(&mut self) -> Result<(), ProtocolError> {
        while let Some(byte) = self.take() {
            match byte {
                b' ' | b'\n' | b'\r' | b'\t' => return Ok(()),
                b'"' => return self.double_quoted(),
                b'\'' => return self.single_quoted(),
                _ => self.unquoted.push(byte),
            }
        }
        Ok(())
    }

    fn double_quoted(&mut self) -> Result<(), ProtocolError> {
        loop {
            let byte = match self.take().ok_or(ProtocolError::Quotes)? {
                b'"' => return self.check_quote_end(),
                b'\\' => self.escaped()?,
                byte => byte,
            };
            self.unquoted.push(byte);
        }
    }

    fn escaped(&mut self) -> Result<u8, ProtocolError> {
        if let [b'x', high, low, ..] = *self.bytes
            && let (Some(high), Some(low)) = (hex(high), hex(low))
        {
            self.bytes = &self.bytes[3..];
            return Ok(high << 4 | low);
        }
        Ok(match self.take().ok_or(ProtocolError::Quotes)? {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 0x08,
            b'a' => 0x07,
            other => other,
        })
    }

    fn single_quoted(&mut self) -> Result<(), ProtocolError> {
        loop {
            let byte = match self.take().ok_or(ProtocolError::Quotes)? {
                b'\'' => return self.check_quote_end(),
                b'\\' if self.bytes.first() == Some(&b'\'') => {
                    self.take();
                    b'\''
                }
                byte => byte,
            };
            self.unquoted.push(byte);
        }
    }

    /// Checks that a blank or the end of the line follows a closing quote.
    fn check_quote_end(&mut self) -> Result<(), ProtocolError> {
        match self.bytes.first() {
            Some(byte) if !is_blank(*byte) => Err(ProtocolError::Quotes),
            _ => Ok(()),
        }
    }
}

/// Returns true for the white space of C's `isspace`.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}
