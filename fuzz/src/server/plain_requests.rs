//! Requests of the fast lane, read by its parser and by an independent oracle, line by line: whatever the parser takes for
//! plain has one length, one host and no field that changes its framing, and the bytes behind it change nothing.

use super::plain_request::{ParsedRequest, PlainMethod, PlainRequest, field_room, parse};
use super::source::FuzzSource;

/// Parses the bytes of a connection.
pub fn plain_requests(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let bytes = if source.one_in(4) { source.rest().to_vec() } else { requests(&mut source) };
    let mut room = field_room();
    let ParsedRequest::Plain(request) = parse(&bytes, &mut room) else { return };
    check_by_lines(&request, &bytes);
    // What follows is another request.
    let (mut room, whole) = (field_room(), &bytes[..request.bytes]);
    match parse(whole, &mut room) {
        ParsedRequest::Plain(alone) => {
            assert_eq!((alone.bytes, alone.body), (request.bytes, request.body), "{bytes:?}");
        }
        other => panic!("{other:?} without what follows: {whole:?}"),
    }
    // A part of it is none.
    for end in 0..request.bytes {
        let mut room = field_room();
        let part = parse(&bytes[..end], &mut room);
        assert!(!matches!(part, ParsedRequest::Plain(_)), "{end} bytes of {bytes:?}");
    }
}

/// Compares with the lines of the head.
fn check_by_lines(request: &PlainRequest<'_, '_>, bytes: &[u8]) {
    let head = &bytes[..request.bytes - request.body.len()];
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let first = lines.find(|line| !line.is_empty()).expect("a first line");
    let words: Vec<&str> = first.split(' ').collect();
    let method = if request.method == PlainMethod::Get { "GET" } else { "POST" };
    assert_eq!((words[0], words.last()), (method, Some(&"HTTP/1.1")), "{first:?}");
    assert!(words[1].starts_with(request.path) && request.path.starts_with('/'), "{first:?}");
    let fields: Vec<(String, &str)> = lines
        .take_while(|line| !line.is_empty())
        .map(|line| {
            let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("{line:?}"));
            (name.to_ascii_lowercase(), value.trim_matches([' ', '\t']))
        })
        .collect();
    assert_eq!(fields.len(), request.fields.len(), "{text:?}");
    let values = |name: &str| {
        let named = fields.iter().filter(|(field, _)| field == name);
        named.map(|(_, value)| *value).collect::<Vec<_>>()
    };
    assert!(fields.iter().all(|(name, _)| values(name).len() == 1), "twice in {text:?}");
    assert_eq!(values("host").len(), 1, "{text:?}");
    for name in ["transfer-encoding", "expect", "upgrade"] {
        assert!(values(name).is_empty(), "{name} in {text:?}");
    }
    let stays = values("connection").iter().all(|value| value.eq_ignore_ascii_case("keep-alive"));
    assert!(stays, "{text:?}");
    let lengths: Vec<usize> = values("content-length")
        .iter()
        .map(|value| value.parse().unwrap_or_else(|_| panic!("{text:?}")))
        .collect();
    let length = if request.method == PlainMethod::Get { vec![] } else { vec![request.body.len()] };
    assert_eq!(lengths, length, "{text:?}");
}

const PIECES: [&[u8]; 26] = [
    b"GET /v1/forward-auth HTTP/1.1\r\n",
    b"POST /v1/check HTTP/1.1\r\n",
    b"GET /a?b=%20&c HTTP/1.1\n",
    b"GET http://a/ HTTP/1.1\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"host: a\r\n",
    b"Host: b\n",
    b"content-length: 2\r\n",
    b"Content-Length: 2\r\n",
    b"content-length: 02\r\n",
    b"content-length: +2\r\n",
    b"content-length: 2, 2\r\n",
    b"content-length : 2\r\n",
    b"transfer-encoding: chunked\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n",
    b"connection: keep-alive\r\n",
    b"connection: close\r\n",
    b"expect: 100-continue\r\n",
    b"upgrade: h2c\r\n",
    b"x-a: 1\r\n",
    b" folded\r\n",
    b"X-A:\t2 \r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b"{}",
];

/// Bytes that are nearly requests.
fn requests(source: &mut FuzzSource<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    match source.below(3) {
        0 => bytes.extend_from_slice(b"GET /v1/forward-auth HTTP/1.1\r\nhost: a\r\n"),
        1 => {
            bytes.extend_from_slice(b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n")
        }
        _ => {}
    }
    while !source.is_empty() && bytes.len() < 400 {
        bytes.extend_from_slice(source.pick(&PIECES));
        if source.one_in(12) {
            bytes.push(source.byte());
        }
    }
    bytes
}
