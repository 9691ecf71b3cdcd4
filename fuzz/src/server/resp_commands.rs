//! Bytes of a Redis client, read whole and in pieces: both find the same commands and the same end, and
//! what was put together as a command comes out as it went in.

use super::request::{
    ARG_BYTES_MAX, ARGS_MAX, COMMAND_BYTES_MAX, CommandParser, INLINE_BYTES_MAX, ParserStep,
    ProtocolError,
};
use super::source::FuzzSource;

type CommandWords = Vec<Vec<u8>>;

/// The bytes as they are, or as choices of what commands are made of.
pub fn resp_commands(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let stranger = source.one_in(4);
    let step = 1 + source.below(40);
    match source.below(3) {
        0 => {
            compare(source.rest(), step, stranger);
        }
        1 => {
            let mut sent = Vec::new();
            while !source.is_empty() && sent.len() < 2_000 {
                piece(&mut source, &mut sent);
            }
            compare(&sent, step, stranger);
        }
        _ => {
            let commands = commands(&mut source);
            let sent: Vec<u8> = commands.iter().flat_map(|command| array(command)).collect();
            let read = compare(&sent, step, false);
            assert_eq!(read, (commands, None), "{:?}", String::from_utf8_lossy(&sent));
        }
    }
}

/// Reads in three ways.
fn compare(
    bytes: &[u8],
    step: usize,
    stranger: bool,
) -> (Vec<CommandWords>, Option<ProtocolError>) {
    let whole = read(bytes, bytes.len().max(1), stranger);
    for step in [1, step] {
        let pieces = read(bytes, step, stranger);
        assert_eq!(whole, pieces, "{:?} by {step}", String::from_utf8_lossy(bytes));
    }
    whole
}

fn read(bytes: &[u8], step: usize, stranger: bool) -> (Vec<CommandWords>, Option<ProtocolError>) {
    let mut parser = CommandParser::default();
    let (mut commands, mut begin, mut end) = (Vec::new(), 0, 0);
    loop {
        let unread = &bytes[begin..end];
        match parser.next(unread, stranger) {
            Ok(ParserStep::NeedMore) => {
                assert!(unread.len() < COMMAND_BYTES_MAX, "nothing larger is waited for");
                if end == bytes.len() {
                    return (commands, None);
                }
                end = (end + step).min(bytes.len());
            }
            Ok(ParserStep::Skip(length)) => {
                assert!((1..=unread.len()).contains(&length));
                begin += length;
            }
            Ok(ParserStep::Command(length)) => {
                assert!((1..=unread.len().min(COMMAND_BYTES_MAX)).contains(&length));
                let args = parser.args(unread);
                assert!((1..=ARGS_MAX).contains(&args.len()));
                let command: CommandWords = args.from(0).map(<[u8]>::to_vec).collect();
                assert!(command.iter().all(|arg| arg.len() <= ARG_BYTES_MAX));
                assert_eq!(args.get(0), Some(&command[0][..]));
                assert_eq!(args.get(args.len()), None);
                if parser.was_inline() {
                    assert!(length <= INLINE_BYTES_MAX + 2);
                } else {
                    let (from, to) = args.range(0);
                    assert_eq!(&unread[from as usize..to as usize], &command[0][..]);
                }
                commands.push(command);
                begin += length;
            }
            Err(error) => return (commands, Some(error)),
        }
    }
}

/// Something that commands are made of, right or nearly.
fn piece(source: &mut FuzzSource<'_>, sent: &mut Vec<u8>) {
    match source.below(12) {
        0 => sent.extend(format!("*{}\r\n", source.below(5)).into_bytes()),
        1 => {
            let length = source.below(6);
            sent.extend(format!("${length}\r\n").into_bytes());
            sent.extend(std::iter::repeat_n(b'x', length));
            sent.extend(b"\r\n");
        }
        2 => sent.extend(b"\r\n"),
        3 => sent.extend(b"$"),
        4 => sent.extend(b"*-1\r\n"),
        5 => sent.extend((source.number() as i64).to_string().into_bytes()),
        6 => sent.push(source.pick(b"\"'\\ \t\0\n\r\x0bx")),
        7 => sent.extend(b"PING\r\n"),
        8 => sent.extend(b"set 'a b' \"\\x4f\\n\"\n"),
        9 => sent.extend(array(&[b"CL.THROTTLE".to_vec(), b"k".to_vec()])),
        10 => sent.extend(format!("*{}\r\n", 1_020 + source.below(10)).into_bytes()),
        _ => sent.push(source.byte()),
    }
}

/// Commands of any bytes.
fn commands(source: &mut FuzzSource<'_>) -> Vec<CommandWords> {
    let mut commands = Vec::new();
    for _ in 0..source.below(6) {
        let count = 1 + source.below(7);
        let arg =
            |source: &mut FuzzSource<'_>| (0..source.below(9)).map(|_| source.byte()).collect();
        commands.push((0..count).map(|_| arg(source)).collect());
    }
    commands
}

fn array(command: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for arg in command {
        bytes.extend(format!("${}\r\n", arg.len()).into_bytes());
        bytes.extend(arg);
        bytes.extend(b"\r\n");
    }
    bytes
}
