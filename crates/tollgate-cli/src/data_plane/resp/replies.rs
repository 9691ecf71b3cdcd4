//! Encodes replies in RESP2 and RESP3, one after the other into one buffer.

use std::fmt;

use crate::reply::write_display;

/// Protocol version that the client asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RespVersion {
    #[default]
    Resp2,
    Resp3,
}

/// The queue of unsent replies. Bound: [`Allowance`](super::reply_allowance::Allowance) is checked before each command
/// or batch of 64. The longest replies are one argument with its frame, and `COMMAND INFO` for as many names as
/// a command can have.
#[derive(Debug, Default)]
pub(super) struct Replies {
    bytes: Vec<u8>,
    sent: usize,
    /// Offset from which replies are muted, so not sent.
    muted_from: Option<usize>,
    pub(super) version: RespVersion,
}

/// Maximum bytes of client text that an error repeats.
const TRUNCATED_BYTES_MAX: usize = 128;

impl Replies {
    /// Bytes to be sent.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Marks bytes as sent. Sent bytes are removed early, so that a client which always leaves a few unread costs no
    /// more than one which reads nothing.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent >= self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Number of bytes it holds: less than twice the unsent ones.
    #[inline]
    pub(super) fn buffered_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of memory it holds.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Frees the memory. The queue must be empty.
    pub(super) fn shrink(&mut self) {
        self.bytes = Vec::new();
    }

    /// Mutes the replies that are written from now on.
    pub(super) fn mute(&mut self) {
        self.muted_from = Some(self.bytes.len());
    }

    /// Cancels [`Replies::mute`].
    pub(super) fn unmute(&mut self) {
        self.muted_from = None;
    }

    /// Discards the muted replies and ends the muting.
    pub(super) fn discard_muted(&mut self) {
        if let Some(begin) = self.muted_from.take() {
            self.bytes.truncate(begin);
        }
    }

    pub(super) fn simple(&mut self, text: &'static str) {
        self.prefixed_line(b'+', text.as_bytes());
    }

    pub(super) fn ok(&mut self) {
        self.simple("OK");
    }

    /// An error. Control characters become spaces, so that client text in it cannot end the line.
    pub(super) fn error(&mut self, text: impl fmt::Display) {
        self.bytes.push(b'-');
        let begin = self.bytes.len();
        write_display(&mut self.bytes, text);
        for byte in &mut self.bytes[begin..] {
            if byte.is_ascii_control() {
                *byte = b' ';
            }
        }
        self.bytes.extend_from_slice(b"\r\n");
    }

    #[inline]
    pub(super) fn integer(&mut self, value: i64) {
        self.number_line(b':', value);
    }

    /// The head of an array; `length` replies follow.
    #[inline]
    pub(super) fn array(&mut self, length: usize) {
        self.number_line(b'*', length as i64);
    }

    /// The head of a map; `pairs` pairs of replies follow. In RESP2 it is a flat array.
    pub(super) fn map(&mut self, pairs: usize) {
        match self.version {
            RespVersion::Resp2 => self.array(2 * pairs),
            RespVersion::Resp3 => self.number_line(b'%', pairs as i64),
        }
    }

    /// The head of a set; `length` replies follow. In RESP2 it is an array.
    pub(super) fn set(&mut self, length: usize) {
        match self.version {
            RespVersion::Resp2 => self.array(length),
            RespVersion::Resp3 => self.number_line(b'~', length as i64),
        }
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.number_line(b'$', bytes.len() as i64);
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(super) fn text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    /// A verbatim string. In RESP2 it is a bulk string.
    pub(super) fn verbatim(&mut self, text: &str) {
        match self.version {
            RespVersion::Resp2 => self.text(text),
            RespVersion::Resp3 => {
                self.number_line(b'=', text.len() as i64 + 4);
                self.bytes.extend_from_slice(b"txt:");
                self.bytes.extend_from_slice(text.as_bytes());
                self.bytes.extend_from_slice(b"\r\n");
            }
        }
    }

    pub(super) fn null(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            RespVersion::Resp2 => b"$-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    /// The five integers of a `CL.THROTTLE` reply, written in one piece if they are short.
    #[inline]
    pub(super) fn reply_fields(&mut self, numbers: [i64; 5]) {
        let mut text = [0; 4 + 5 * 8];
        text[..4].copy_from_slice(b"*5\r\n");
        let mut end = 4;
        for number in numbers {
            let Some((word, length)) = short_integer(number) else {
                return self.reply_fields_long(numbers);
            };
            text[end..end + 8].copy_from_slice(&word.to_le_bytes());
            end += length;
        }
        // Copying the whole array and truncating is cheaper than copying a part of unknown length.
        let end = self.bytes.len() + end;
        self.bytes.extend_from_slice(&text);
        self.bytes.truncate(end);
    }

    #[cold]
    fn reply_fields_long(&mut self, numbers: [i64; 5]) {
        self.array(5);
        for number in numbers {
            self.integer(number);
        }
    }

    #[inline]
    fn number_line(&mut self, mark: u8, number: i64) {
        // Most numbers have one digit.
        if let 0..=9 = number {
            self.bytes.extend_from_slice(&[mark, b'0' + number as u8, b'\r', b'\n']);
            return;
        }
        let mut text = itoa::Buffer::new();
        self.prefixed_line(mark, text.format(number).as_bytes());
    }

    #[inline]
    fn prefixed_line(&mut self, mark: u8, text: &[u8]) {
        self.bytes.push(mark);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// The line of an integer of at most five digits, or of -1, as a little-endian word, and its length.
#[inline]
fn short_integer(number: i64) -> Option<(u64, usize)> {
    const END: u64 = u64::from_le_bytes(*b"\r\n\0\0\0\0\0\0");
    let digit = |value: u32| u64::from(b'0' + (value % 10) as u8);
    let (mut word, mut length, mut rest) = match number {
        0..=99_999 => (END << 8 | digit(number as u32), 4, number as u32 / 10),
        -1 => (END << 16 | u64::from(b'1') << 8 | u64::from(b'-'), 5, 0),
        _ => return None,
    };
    while rest > 0 {
        word = word << 8 | digit(rest);
        length += 1;
        rest /= 10;
    }
    Some((word << 8 | u64::from(b':'), length))
}

/// Client text as an error repeats it: cut if it is long.
pub(super) struct TruncatedText<'a>(pub(super) &'a [u8]);

impl fmt::Display for TruncatedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = &self.0[..self.0.len().min(TRUNCATED_BYTES_MAX)];
        f.write_str(&String::from_utf8_lossy(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(dialect: RespVersion, write: impl FnOnce(&mut Replies)) -> String {
        let mut replies = Replies { version: dialect, ..Replies::default() };
        write(&mut replies);
        String::from_utf8_lossy(replies.unsent()).into_owned()
    }

    #[test]
    fn each_kind_in_both_dialects() {
        type WriteReply = fn(&mut Replies);
        let rows: [(WriteReply, &str, &str); 15] = [
            (|to| to.ok(), "+OK\r\n", "+OK\r\n"),
            (|to| to.integer(-1), ":-1\r\n", ":-1\r\n"),
            (|to| to.integer(i64::MIN), ":-9223372036854775808\r\n", ":-9223372036854775808\r\n"),
            (|to| to.integer(0), ":0\r\n", ":0\r\n"),
            (|to| to.integer(10), ":10\r\n", ":10\r\n"),
            (|to| to.array(0), "*0\r\n", "*0\r\n"),
            (|to| to.map(2), "*4\r\n", "%2\r\n"),
            (|to| to.set(2), "*2\r\n", "~2\r\n"),
            (|to| to.bulk(b"a\r\nb"), "$4\r\na\r\nb\r\n", "$4\r\na\r\nb\r\n"),
            (|to| to.verbatim("ab"), "$2\r\nab\r\n", "=6\r\ntxt:ab\r\n"),
            (|to| to.null(), "$-1\r\n", "_\r\n"),
            (|to| to.error("ERR a\r\nb\0c"), "-ERR a  b c\r\n", "-ERR a  b c\r\n"),
            (
                |to| to.reply_fields([0, 16, 15, -1, 2]),
                "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n",
                "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n",
            ),
            (
                |to| to.reply_fields([99_999; 5]),
                "*5\r\n:99999\r\n:99999\r\n:99999\r\n:99999\r\n:99999\r\n",
                "*5\r\n:99999\r\n:99999\r\n:99999\r\n:99999\r\n:99999\r\n",
            ),
            (
                |to| to.reply_fields([1, 100_000, 10, -2, i64::MAX]),
                "*5\r\n:1\r\n:100000\r\n:10\r\n:-2\r\n:9223372036854775807\r\n",
                "*5\r\n:1\r\n:100000\r\n:10\r\n:-2\r\n:9223372036854775807\r\n",
            ),
        ];
        for (write, resp2, resp3) in rows {
            assert_eq!(written(RespVersion::Resp2, write), resp2);
            assert_eq!(written(RespVersion::Resp3, write), resp3);
        }
        let long = [0xff; 1_000];
        let shown = written(RespVersion::Resp2, |to| {
            to.error(format_args!("ERR {}", TruncatedText(&long)))
        });
        assert_eq!(shown.chars().count(), TRUNCATED_BYTES_MAX + "-ERR \r\n".len());
    }

    #[test]
    fn sent_bytes_are_removed() {
        let mut replies = Replies::default();
        replies.bulk(b"0123456789");
        replies.advance(6);
        assert_eq!((replies.unsent(), replies.buffered_bytes()), (&b"123456789\r\n"[..], 17));
        replies.advance(4);
        assert_eq!((replies.unsent(), replies.buffered_bytes()), (&b"56789\r\n"[..], 7));
        replies.ok();
        replies.advance(7);
        assert_eq!(replies.unsent(), b"+OK\r\n");
        replies.advance(5);
        assert!(replies.unsent().is_empty());
        // A client that leaves a few bytes each time.
        for _ in 0..10_000 {
            replies.bulk(&[b'x'; 100]);
            replies.advance(replies.unsent().len() - 50);
            assert!(replies.buffered_bytes() <= 200 && replies.capacity() < 1_000);
        }
        replies.advance(50);
        replies.shrink();
        assert_eq!(replies.capacity(), 0);
    }
}
