//! Replies of a server (RESP 2), read piece by piece. The server is not trusted: every length is
//! checked before memory is used for it.

use crate::transport::value::RedisValue;

/// Bytes of one string. The largest we ask for are texts of rules.
const STRING_MAX: usize = 16 << 20;
/// Bytes of a line: a length, a number, a short text or an error.
const LINE_MAX: usize = 4096;
/// Values in one reply, nested ones included.
const VALUES_MAX: usize = 1 << 18;
/// Lists in lists.
const DEPTH_MAX: usize = 8;
/// Bytes of one reply, those of lengths and ends of lines included.
const REPLY_MAX: usize = 32 << 20;
/// Places that a list gets before its values have come: a length is only a claim.
const PREALLOCATED_MAX: usize = 1024;

/// A reply that is not RESP, or too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RedisReplyError(pub(crate) &'static str);

/// One reply.
#[derive(Debug, PartialEq)]
pub(crate) enum RedisReply {
    Value(RedisValue),
    /// An error, as the server words it.
    Error(Box<str>),
}

/// Makes replies of bytes.
#[derive(Default)]
pub(crate) struct RedisReplyReader {
    /// Bytes received and not yet used. Bound: [`STRING_MAX`] and one read beyond it.
    buffer: Vec<u8>,
    used: usize,
    /// Lists that are not complete, and how many values each still misses. Bound: [`DEPTH_MAX`].
    open: Vec<(Vec<RedisValue>, usize)>,
    /// Values and bytes of the present reply.
    values: usize,
    bytes: usize,
}

/// A value that needs no other, or the beginning of a list.
enum RedisReplyToken {
    Value(RedisValue),
    Error(Box<str>),
    List(usize),
}

impl RedisReplyReader {
    /// Adds what was read.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.used == self.buffer.len() {
            self.buffer.clear();
            self.used = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next reply, once it is complete.
    pub(crate) fn next(&mut self) -> Result<Option<RedisReply>, RedisReplyError> {
        loop {
            let Some(token) = self.token()? else {
                self.compact();
                return Ok(None);
            };
            self.values += 1;
            if self.values > VALUES_MAX {
                return Err(RedisReplyError("a reply has too many values"));
            }
            let value = match token {
                RedisReplyToken::List(0) => RedisValue::Array(Vec::new()),
                RedisReplyToken::List(length) => {
                    self.open(length)?;
                    continue;
                }
                RedisReplyToken::Value(value) => value,
                RedisReplyToken::Error(text) if self.open.is_empty() => {
                    self.finish();
                    return Ok(Some(RedisReply::Error(text)));
                }
                RedisReplyToken::Error(text) => RedisValue::Error(text),
            };
            if let Some(value) = self.place(value) {
                self.finish();
                return Ok(Some(RedisReply::Value(value)));
            }
        }
    }

    fn finish(&mut self) {
        (self.values, self.bytes) = (0, 0);
    }

    fn open(&mut self, length: usize) -> Result<(), RedisReplyError> {
        if self.open.len() == DEPTH_MAX {
            return Err(RedisReplyError("a reply is nested too deeply"));
        }
        self.open.push((Vec::with_capacity(length.min(PREALLOCATED_MAX)), length));
        Ok(())
    }

    /// Puts a value into the innermost list; what is complete by that, all of it, comes back.
    fn place(&mut self, mut value: RedisValue) -> Option<RedisValue> {
        loop {
            let Some((list, missing)) = self.open.last_mut() else { return Some(value) };
            list.push(value);
            *missing -= 1;
            if *missing > 0 {
                return None;
            }
            let (list, _) = self.open.pop().expect("there is a last one");
            value = RedisValue::Array(list);
        }
    }

    fn token(&mut self) -> Result<Option<RedisReplyToken>, RedisReplyError> {
        let rest = &self.buffer[self.used..];
        let Some((line, after)) = line(rest)? else { return Ok(None) };
        let (&kind, text) = line.split_first().expect("a line has its first byte");
        let token = match kind {
            b'+' => RedisReplyToken::Value(RedisValue::SimpleString(utf8_text(text).into())),
            b'-' => RedisReplyToken::Error(String::from_utf8_lossy(text).into()),
            b':' => RedisReplyToken::Value(RedisValue::Int(number(text)?)),
            b'$' => match length(text, STRING_MAX)? {
                None => RedisReplyToken::Value(RedisValue::Nil),
                Some(length) => {
                    let Some(string) = rest.get(after..after + length + 2) else { return Ok(None) };
                    let (string, end) = string.split_at(length);
                    if end != b"\r\n" {
                        return Err(RedisReplyError("a string does not end where it should"));
                    }
                    let value = RedisValue::BulkString(string.to_vec());
                    self.count_bytes(after + length + 2)?;
                    return Ok(Some(RedisReplyToken::Value(value)));
                }
            },
            b'*' => match length(text, VALUES_MAX)? {
                None => RedisReplyToken::Value(RedisValue::Nil),
                Some(length) => RedisReplyToken::List(length),
            },
            _ => return Err(RedisReplyError("a reply begins with an unknown byte")),
        };
        self.count_bytes(after)?;
        Ok(Some(token))
    }

    /// Counts bytes as read.
    fn count_bytes(&mut self, bytes: usize) -> Result<(), RedisReplyError> {
        self.used += bytes;
        self.bytes += bytes;
        if self.bytes > REPLY_MAX {
            return Err(RedisReplyError("a reply is too long"));
        }
        Ok(())
    }

    /// Lets go of what is used up, and of room that one large reply needed.
    fn compact(&mut self) {
        self.buffer.drain(..self.used);
        self.used = 0;
        if self.buffer.is_empty() && self.buffer.capacity() > 1 << 18 {
            self.buffer = Vec::new();
        }
    }
}

/// The first line without its end, and where the next begins.
fn line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, RedisReplyError> {
    // Told at once, instead of waiting for a line that garbage may never end.
    if !matches!(bytes.first(), Some(b'+' | b'-' | b':' | b'$' | b'*') | None) {
        return Err(RedisReplyError("a reply begins with an unknown byte"));
    }
    let window = &bytes[..bytes.len().min(LINE_MAX)];
    match window.iter().position(|&b| b == b'\r') {
        Some(end) => match bytes.get(end + 1) {
            Some(b'\n') => Ok(Some((&bytes[..end], end + 2))),
            Some(_) => Err(RedisReplyError("a line ends in half")),
            None => Ok(None),
        },
        None if window.len() == LINE_MAX => Err(RedisReplyError("a line is too long")),
        None => Ok(None),
    }
}

fn utf8_text(text: &[u8]) -> &str {
    std::str::from_utf8(text).unwrap_or("?")
}

fn number(text: &[u8]) -> Result<i64, RedisReplyError> {
    utf8_text(text).parse().map_err(|_| RedisReplyError("a number is none"))
}

/// A length, or none for what is null.
fn length(text: &[u8], max: usize) -> Result<Option<usize>, RedisReplyError> {
    match number(text)? {
        -1 => Ok(None),
        length => match usize::try_from(length) {
            Ok(length) if length <= max => Ok(Some(length)),
            _ => Err(RedisReplyError("a length is negative or too large")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8], piece: usize) -> (Vec<RedisReply>, Option<RedisReplyError>) {
        let (mut reader, mut replies) = (RedisReplyReader::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            reader.push(piece);
            loop {
                match reader.next() {
                    Ok(Some(reply)) => replies.push(reply),
                    Ok(None) => break,
                    Err(broken) => return (replies, Some(broken)),
                }
            }
        }
        (replies, None)
    }

    #[test]
    fn pieces_of_any_size_make_the_same_replies() {
        let bytes = b"+OK\r\n:-42\r\n$5\r\na\r\nb\x00\r\n$-1\r\n*-1\r\n*0\r\n-ERR no\r\n\
            *3\r\n:1\r\n*2\r\n$0\r\n\r\n-NOPERM x y\r\n*1\r\n*1\r\n+hi\r\n+PONG\r\n";
        let (whole, broken) = all(bytes, bytes.len());
        assert_eq!((whole.len(), broken), (9, None));
        assert_eq!(whole[0], RedisReply::Value(RedisValue::SimpleString("OK".into())));
        assert_eq!(whole[1], RedisReply::Value(RedisValue::Int(-42)));
        assert_eq!(whole[2], RedisReply::Value(RedisValue::BulkString(b"a\r\nb\x00".into())));
        assert_eq!(whole[3], RedisReply::Value(RedisValue::Nil));
        assert_eq!(whole[6], RedisReply::Error("ERR no".into()));
        let RedisReply::Value(RedisValue::Array(list)) = &whole[7] else {
            panic!("{:?}", whole[7])
        };
        let RedisValue::Array(inner) = &list[1] else { panic!("{list:?}") };
        assert!(inner[1] == RedisValue::Error("NOPERM x y".into()));
        for piece in 1..bytes.len() {
            assert_eq!(all(bytes, piece).0, whole, "in pieces of {piece}");
        }
    }

    #[test]
    fn claims_cost_nothing_and_nonsense_is_told() {
        let deep = b"*1\r\n".repeat(DEPTH_MAX + 1);
        let long = [b"+".as_slice(), &[b'a'; LINE_MAX]].concat();
        for bytes in [
            b"*999999999999\r\n".as_slice(),
            b"$999999999999\r\n",
            b"*9223372036854775807\r\n",
            b"*99999999999999999999\r\n",
            b"$-2\r\n",
            b"*-7\r\n",
            b":12a\r\n",
            b":\r\n",
            b"\r\n",
            b"HTTP/1.1 400 Bad Request\r\n",
            b"\x00\x01\x02",
            b"$3\r\nabcde\r\n",
            b"+a\rb\r\n",
            b"%1\r\n+a\r\n+b\r\n",
            &deep,
            &long,
        ] {
            assert!(all(bytes, 1).1.is_some(), "{}", String::from_utf8_lossy(bytes));
            assert!(all(bytes, bytes.len()).1.is_some(), "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn a_reply_of_many_values_ends_at_the_bound() {
        let mut bytes = b"*512\r\n".to_vec();
        for _ in 0..512 {
            bytes.extend_from_slice(b"*1024\r\n");
            bytes.extend(b":1\r\n".repeat(1024));
        }
        assert_eq!(all(&bytes, 1 << 16).1, Some(RedisReplyError("a reply has too many values")));
    }

    #[test]
    fn every_byte_of_a_reply_counts() {
        let line = "a".repeat(LINE_MAX - 10);
        for one in [
            format!("+{line}\r\n"),
            format!("-{line}\r\n"),
            format!("$3000\r\n{}\r\n", "a".repeat(3000)),
        ] {
            let count = REPLY_MAX / one.len() + 1;
            let bytes = [format!("*{count}\r\n"), one.repeat(count)].concat();
            assert_eq!(
                all(bytes.as_bytes(), 1 << 16).1,
                Some(RedisReplyError("a reply is too long"))
            );
            // As many in replies of their own are no trouble.
            assert_eq!(all(one.repeat(count).as_bytes(), 1 << 16).1, None);
        }
    }

    #[test]
    fn random_bytes_never_panic_and_never_hold_much() {
        let mut random = 0x9E37_79B9_7F4A_7C15u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let letters = b"+-:$*0123456789\r\n\r\n\r\nabOK%~";
        for _ in 0..20_000 {
            let length = next() % 60;
            let bytes: Vec<u8> =
                (0..length).map(|_| letters[(next() % letters.len() as u64) as usize]).collect();
            let piece = 1 + (next() % 7) as usize;
            let (once, broken) = all(&bytes, bytes.len().max(1));
            let (again, broken_again) = all(&bytes, piece);
            assert_eq!((once, broken.is_some()), (again, broken_again.is_some()));
        }
    }
}
