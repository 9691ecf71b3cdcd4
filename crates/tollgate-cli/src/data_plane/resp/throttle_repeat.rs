//! Recognises a `CL.THROTTLE` that differs from the one before it only in its key. Most clients send the same parameters
//! again and again: comparing their bytes is much cheaper than parsing them.

use arrayvec::ArrayVec;

use super::request::RespArgs;

/// Bytes in front of the length of the key: `*5\r\n$11\r\nCL.THROTTLE\r\n$`.
const HEAD_BYTES: usize = 23;

/// Range of the name of the command in such a head.
const NAME_RANGE: (u32, u32) = (9, 20);

/// Maximum bytes after the key that are compared; longer parameters are parsed each time.
const TAIL_BYTES_MAX: usize = 64;

/// The bytes of a call around its key.
#[derive(Debug)]
pub(super) struct ThrottleFrame {
    head: [u8; HEAD_BYTES],
    /// All bytes after the key, beginning with its end of line.
    tail: ArrayVec<u8, TAIL_BYTES_MAX>,
}

impl ThrottleFrame {
    /// The frame of a parsed call. `None` if it is unusual: then it is not worth comparing.
    pub(super) fn of(command: &[u8], args: RespArgs<'_>) -> Option<ThrottleFrame> {
        let (_, key_end) = args.range(1);
        let tail = command.get(key_end as usize..)?.try_into().ok()?;
        let head = *command.first_chunk()?;
        (args.range(0) == NAME_RANGE).then_some(ThrottleFrame { head, tail })
    }

    /// Range of the key and length of the command at the start of `bytes`, if it has this frame and a key of 1 to 99
    /// bytes. `None` means that the parser has to look.
    #[inline]
    pub(super) fn find_key(&self, bytes: &[u8]) -> Option<((usize, usize), usize)> {
        let rest = bytes.strip_prefix(&self.head)?;
        let (length, digits) = match rest.first_chunk::<4>()? {
            [one @ b'1'..=b'9', b'\r', b'\n', _] => (one - b'0', 1),
            [ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', b'\n'] => {
                ((ten - b'0') * 10 + (one - b'0'), 2)
            }
            _ => return None,
        };
        let begin = HEAD_BYTES + digits + 2;
        let end = begin + usize::from(length);
        bytes.get(end..)?.starts_with(&self.tail).then_some(((begin, end), end + self.tail.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_plane::resp::request::{CommandParser, ParserStep};

    /// Parses one command, which must be complete.
    fn parse(bytes: &[u8]) -> (CommandParser, usize) {
        let mut parser = CommandParser::default();
        match parser.next(bytes, false) {
            Ok(ParserStep::Command(length)) => (parser, length),
            other => panic!("{other:?}"),
        }
    }

    fn command(words: &[&str]) -> String {
        let bulk = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
        format!("*{}\r\n{}", words.len(), words.iter().map(bulk).collect::<String>())
    }

    #[test]
    fn a_call_with_another_key_is_found_as_the_parser_finds_it() {
        let first = command(&["CL.THROTTLE", "user:1", "15", "30", "60"]);
        let (parser, length) = parse(first.as_bytes());
        assert_eq!(length, first.len());
        let frame = ThrottleFrame::of(first.as_bytes(), parser.args(first.as_bytes())).unwrap();
        let (long, longest, too_long) = ("k".repeat(10), "k".repeat(99), "k".repeat(100));
        // Words, and true if the frame is the same.
        let rows: [(&[&str], bool); 13] = [
            (&["CL.THROTTLE", "user:1", "15", "30", "60"], true),
            (&["CL.THROTTLE", "u", "15", "30", "60"], true),
            (&["CL.THROTTLE", "\r\n$2\r\n15", "15", "30", "60"], true),
            (&["CL.THROTTLE", &long, "15", "30", "60"], true),
            (&["CL.THROTTLE", &longest, "15", "30", "60"], true),
            (&["CL.THROTTLE", &too_long, "15", "30", "60"], false),
            (&["CL.THROTTLE", "", "15", "30", "60"], false),
            (&["cl.throttle", "user:1", "15", "30", "60"], false),
            (&["CL.THROTTLE", "user:1", "15", "30", "61"], false),
            (&["CL.THROTTLE", "user:1", "15", "30", "600"], false),
            (&["CL.THROTTLE", "user:1", "15", "30", "60", "1"], false),
            (&["CL.THROTTLE", "user:1", "15", "30"], false),
            (&["TG.CHECK", "user", "1"], false),
        ];
        for (words, same) in rows {
            let sent = command(words) + "*1\r\n";
            let (parser, length) = parse(sent.as_bytes());
            let (begin, end) = parser.args(sent.as_bytes()).range(1);
            let parsed = ((begin as usize, end as usize), length);
            assert_eq!(frame.find_key(sent.as_bytes()), same.then_some(parsed), "{words:?}");
            for cut in 0..length {
                assert_eq!(frame.find_key(&sent.as_bytes()[..cut]), None, "{words:?} {cut}");
            }
        }
    }

    #[test]
    fn an_unusual_call_has_no_frame() {
        let long = "0".repeat(TAIL_BYTES_MAX) + "15";
        let rows = [
            command(&["CL.THROTTLE", "user:1", &long, "30", "60"]),
            command(&["TG.CHECK", "user", "1"]),
            "CL.THROTTLE user:1 15 30 60\r\n".into(),
        ];
        for sent in rows {
            let (parser, length) = parse(sent.as_bytes());
            let frame = ThrottleFrame::of(&sent.as_bytes()[..length], parser.args(sent.as_bytes()));
            assert!(frame.is_none(), "{sent:?}");
        }
    }
}
