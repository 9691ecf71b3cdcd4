//! Commands to a server, as they are written to the connection (RESP 2).

use std::fmt;

/// A command and its arguments, encoded as they are added.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RedisCommand {
    name: &'static str,
    /// The number of parts, the name included.
    parts: usize,
    /// The parts, each with its length before it.
    encoded: Vec<u8>,
}

impl RedisCommand {
    pub(crate) fn new(name: &'static str) -> RedisCommand {
        RedisCommand { name, parts: 0, encoded: Vec::new() }.arg(name)
    }

    /// Adds an argument.
    #[must_use]
    pub(crate) fn arg(mut self, argument: impl AsRef<[u8]>) -> RedisCommand {
        self.push(argument);
        self
    }

    /// Adds a number as an argument.
    #[must_use]
    pub(crate) fn number(mut self, number: u64) -> RedisCommand {
        self.push_number(number);
        self
    }

    /// Adds an argument.
    pub(crate) fn push(&mut self, argument: impl AsRef<[u8]>) {
        let argument = argument.as_ref();
        self.parts += 1;
        write_header(&mut self.encoded, b'$', argument.len() as u64);
        self.encoded.extend_from_slice(argument);
        self.encoded.extend_from_slice(b"\r\n");
    }

    /// Adds a number as an argument.
    pub(crate) fn push_number(&mut self, number: u64) {
        let mut digits = [0; DIGITS_MAX];
        self.push(decimal(number, &mut digits));
    }

    /// Writes the command behind `out`.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.encoded.len() + DIGITS_MAX + 3);
        write_header(out, b'*', self.parts as u64);
        out.extend_from_slice(&self.encoded);
    }

    /// The same as a command of the redis crate.
    #[cfg(test)]
    pub(crate) fn to_redis_crate(&self) -> redis::Cmd {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes);
        let redis::Value::Array(parts) = redis::parse_redis_value(&bytes).unwrap() else {
            panic!("{self:?} is no array");
        };
        let mut command = redis::Cmd::new();
        for part in parts {
            let redis::Value::BulkString(part) = part else { panic!("{part:?} is no string") };
            command.arg(part);
        }
        command
    }
}

/// Shows the name only: arguments may be passwords or keys.
impl fmt::Debug for RedisCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} arguments", self.name, self.parts - 1)
    }
}

/// Digits of the largest number.
const DIGITS_MAX: usize = 20;

/// Writes a line that says what follows, and how much of it.
fn write_header(out: &mut Vec<u8>, kind: u8, count: u64) {
    out.push(kind);
    out.extend_from_slice(decimal(count, &mut [0; DIGITS_MAX]));
    out.extend_from_slice(b"\r\n");
}

/// The digits of a number.
fn decimal(mut number: u64, digits: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let mut first = DIGITS_MAX;
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[first..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_what_the_redis_crate_would_send() {
        let numbers = [0, 9, 10, 65_536, u64::MAX];
        let mut ours =
            RedisCommand::new("EVAL").arg("return 1").arg(b"\x00\r\n").arg(vec![7_u8; 300]);
        let mut theirs = redis::cmd("EVAL");
        theirs.arg("return 1").arg(b"\x00\r\n").arg(vec![7_u8; 300]);
        for number in numbers {
            ours.push_number(number);
            theirs.arg(number);
        }
        let mut written = b"before".to_vec();
        ours.arg("").write_to(&mut written);
        let expected = [b"before".as_slice(), &theirs.arg("").get_packed_command()].concat();
        assert_eq!(written, expected);
    }

    #[test]
    fn a_password_is_not_shown() {
        let shown = format!("{:?}", RedisCommand::new("AUTH").arg("ada").arg("secret"));
        assert_eq!(shown, "AUTH with 2 arguments");
    }
}
