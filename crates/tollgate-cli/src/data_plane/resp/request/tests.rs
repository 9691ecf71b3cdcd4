//! What is read from whole and from chopped input, and what is not.

use super::*;

/// The commands in `bytes`, given `chunk` more bytes at a time, and what ended it.
fn read(bytes: &[u8], chunk: usize, stranger: bool) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    let mut parser = CommandParser::default();
    let (mut commands, mut begin, mut end) = (Vec::new(), 0, 0);
    loop {
        match parser.next(&bytes[begin..end], stranger) {
            Ok(ParserStep::NeedMore) if end == bytes.len() => return (commands, None),
            Ok(ParserStep::NeedMore) => end = (end + chunk).min(bytes.len()),
            Ok(ParserStep::Skip(length)) => begin += length,
            Ok(ParserStep::Command(length)) => {
                let args = parser.args(&bytes[begin..end]);
                commands.push(args.from(0).map(<[u8]>::to_vec).collect());
                assert_eq!(args.len(), args.from(0).len());
                begin += length;
            }
            Err(error) => return (commands, Some(error)),
        }
    }
}

fn check(bytes: &[u8], want: &[&[&[u8]]], error: Option<ProtocolError>) {
    for chunk in [1, 2, 3, 7, bytes.len().max(1)] {
        let (commands, ended) = read(bytes, chunk, false);
        assert_eq!(commands, want, "{:?} by {chunk}", String::from_utf8_lossy(bytes));
        assert_eq!(ended, error, "{:?} by {chunk}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn arrays_lines_and_nothing_at_all() {
    check(b"*1\r\n$4\r\nPING\r\n", &[&[b"PING"]], None);
    check(b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", &[&[b"ECHO", b""]], None);
    check(b"*2\r\n$1\r\na\r\n$4\r\n\r\n\0\xff\r\n", &[&[b"a", b"\r\n\0\xff"]], None);
    check(b"PING\r\nping\n  \r\n\r\n\n", &[&[b"PING"], &[b"ping"]], None);
    check(b"*0\r\n*-1\r\n*-17\r\n*1\r\n$1\r\nx\r\nget a b", &[&[b"x"]], None);
}

#[test]
fn quotes_are_cut_as_redis_cuts_them() {
    let rows: [(&[u8], &[&[u8]]); 12] = [
        (b"a  b\tc\x0bd", &[b"a", b"b", b"c\x0bd"]),
        (b"\x0b\x0c a", &[b"a"]),
        (br#"set "a b" 'c d'"#, &[b"set", b"a b", b"c d"]),
        (br#"a"b c""#, &[b"ab c"]),
        (br#"a'b c' d"#, &[b"ab c", b"d"]),
        (br#""\x41\xfF\x4""#, &[b"A\xffx4"]),
        (br#""\n\r\t\b\a\"\\\q""#, &[b"\n\r\t\x08\x07\"\\q"]),
        (br"'\' \n'", &[b"' \\n"]),
        (br#""" ''"#, &[b"", b""]),
        (b"\"a\"\x0bb", &[b"a", b"b"]),
        (b"a b\0c \"", &[b"a", b"b"]),
        (b"a\rb", &[b"a", b"b"]),
    ];
    for (line, want) in rows {
        check(&[line, b"\n"].concat(), &[want], None);
    }
    let wrong: [&[u8]; 7] = [b"\"", b"'", b"a\"b", b"\"a\"b", b"'a''b'", b"\"a\\", b"\"a\0\""];
    for line in wrong {
        check(&[line, b"\r\n"].concat(), &[], Some(ProtocolError::Quotes));
    }
}

#[test]
fn what_breaks_the_protocol_ends_it() {
    use ProtocolError::*;
    let rows: [(&[u8], ProtocolError); 22] = [
        (b"*\r\n", ArrayLength),
        (b"*x\r\n", ArrayLength),
        (b"*+1\r\n", ArrayLength),
        (b"*01\r\n", ArrayLength),
        (b"* 1\r\n", ArrayLength),
        (b"*-\r\n", ArrayLength),
        (b"*-0\r\n", ArrayLength),
        (b"*1\rx", ArrayLength),
        (b"*1\n", ArrayLength),
        (b"*12345678901\r\n", ArrayLength),
        (b"*1025\r\n", ArrayLength),
        (b"*1\r\n:1\r\n", ExpectedBulk(b':')),
        (b"*1\r\n\r\n", ExpectedBulk(b'\r')),
        (b"*1\r\n$-1\r\n", BulkLength),
        (b"*1\r\n$x\r\n", BulkLength),
        (b"*1\r\n$\r\n", BulkLength),
        (b"*1\r\n$65537\r\n", BulkLength),
        (b"*1\r\n$99999999999\r\n", BulkLength),
        (b"*1\r\n$1\r\nab\r\n", MissingLineEnd),
        (b"*1\r\n$1\r\na\rb", MissingLineEnd),
        (b"*1\r\n$1\r\na\n\n", MissingLineEnd),
        (b"PING\r\n*1\r\n$1\r\na\r\n*y", ArrayLength),
    ];
    for (bytes, want) in rows {
        for chunk in [1, 3, bytes.len()] {
            assert_eq!(read(bytes, chunk, false).1, Some(want), "{bytes:?} by {chunk}");
        }
    }
    let texts = [
        (ExpectedBulk(b':'), "Protocol error: expected '$', got ':'"),
        (ExpectedBulk(0xff), "Protocol error: expected '$', got '?'"),
        (ArrayLength, "Protocol error: invalid multibulk length"),
        (LineTooBig, "Protocol error: too big inline request"),
    ];
    for (error, text) in texts {
        assert_eq!(error.to_string(), text);
    }
}

/// A command of these lengths.
fn command(lengths: &[usize]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", lengths.len()).into_bytes();
    for length in lengths {
        bytes.extend(format!("${length}\r\n").into_bytes());
        bytes.extend(std::iter::repeat_n(b'x', *length));
        bytes.extend(b"\r\n");
    }
    bytes
}

#[test]
fn every_cap_holds_and_one_less_passes() {
    let (args, bytes) = (ARGS_MAX, ARG_BYTES_MAX);
    // Both lengths have five digits.
    let around = command(&[bytes, 60_000]).len() - bytes - 60_000;
    let rest = COMMAND_BYTES_MAX - bytes - around;
    let line = |length: usize| [&vec![b'x'; length][..], b"\r\n"].concat();
    let words = |count: usize| [&b"x ".repeat(count)[..], b"\n"].concat();
    // Bytes, whether of a stranger, and what ends it
    let rows: [(Vec<u8>, bool, Option<ProtocolError>); 14] = [
        (command(&vec![1; args]), false, None),
        (command(&vec![1; args + 1]), false, Some(ProtocolError::ArrayLength)),
        (command(&[bytes]), false, None),
        (command(&[bytes + 1]), false, Some(ProtocolError::BulkLength)),
        (command(&[bytes, rest]), false, None),
        (command(&[bytes, rest + 1]), false, Some(ProtocolError::TooBig)),
        (line(INLINE_BYTES_MAX), false, None),
        (line(INLINE_BYTES_MAX + 1), false, Some(ProtocolError::LineTooBig)),
        (words(args), false, None),
        (words(args + 1), false, Some(ProtocolError::ArrayLength)),
        (command(&[1; 10]), true, None),
        (command(&[1; 11]), true, Some(ProtocolError::UnauthenticatedArgs)),
        (command(&[16 << 10]), true, None),
        (command(&[(16 << 10) + 1]), true, Some(ProtocolError::UnauthenticatedArgBytes)),
    ];
    for (index, (bytes, stranger, want)) in rows.into_iter().enumerate() {
        assert!(want.is_some() || bytes.len() <= COMMAND_BYTES_MAX);
        for chunk in [61, 4_096, bytes.len()] {
            let (commands, ended) = read(&bytes, chunk, stranger);
            assert_eq!(ended, want, "row {index} by {chunk}");
            assert_eq!(commands.len(), usize::from(want.is_none()), "row {index} by {chunk}");
        }
    }
    // A line without an end is not waited for.
    let endless = vec![b'x'; INLINE_BYTES_MAX + 2];
    assert_eq!(read(&endless, 512, false).1, Some(ProtocolError::LineTooBig));
}

#[test]
fn short_commands_are_read_as_long_ones_are() {
    // Around the most arguments and the most bytes that are read in one pass.
    for lengths in [&[0; 9][..], &[0; 10], &[9, 10, 99], &[9, 10, 100], &[99; 9], &[100; 10]] {
        // One behind the other: what one leaves behind must not be seen in the next.
        let bytes =
            [command(lengths), command(&[1]), command(lengths), b"*2\r\n".to_vec()].concat();
        let args = |lengths: &[usize]| lengths.iter().map(|length| vec![b'x'; *length]).collect();
        let want: Vec<Vec<Vec<u8>>> = vec![args(lengths), args(&[1]), args(lengths)];
        for chunk in (1..20).chain([bytes.len()]) {
            assert_eq!(read(&bytes, chunk, false), (want.clone(), None), "{lengths:?} by {chunk}");
        }
    }
}

#[test]
fn a_parser_that_shrinks_has_not_begun() {
    let mut parser = CommandParser::default();
    let bytes = command(&[100; 100]);
    assert_eq!(parser.next(&bytes[..50], false), Ok(ParserStep::NeedMore));
    assert!(parser.has_begun());
    parser.shrink();
    assert_eq!(parser.next(&bytes, false), Ok(ParserStep::Command(bytes.len())));
    assert_eq!(parser.args(&bytes).len(), 100);
    assert!(!parser.has_begun());
    parser.shrink();
    assert_eq!((parser.args.capacity(), parser.unquoted.capacity()), (0, 0));
}
