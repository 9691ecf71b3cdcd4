//! HTTP/1.1: an answer that is given before the whole request has come is not lost.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

use crate::harness::{DEADLINE, TollgateProcess};

/// A proxy whose question is refused while it is still writing must not see a connection that breaks: it
/// would take that for no answer.
#[test]
fn who_is_still_sending_gets_the_answer() {
    let server = TollgateProcess::start(&["--limit", "9/hour", "--header-timeout", "30s"]);
    let long_path = format!("GET /{}", "a".repeat(20_000));
    let long_body = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 9999999\r\n\r\n";
    for (begin, want) in [(long_path.as_str(), "HTTP/1.1 431 "), (long_body, "HTTP/1.1 413 ")] {
        let mut stream = TcpStream::connect(server.http()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(begin.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect(want);
        assert!(answer.starts_with(want), "{answer}");
        // The server has said all. It still listens.
        for sent in 0..1_024 {
            let written = stream.write_all(&[b'a'; 1_024]);
            assert!(written.is_ok(), "{want}, {sent} KiB later: {written:?}");
            thread::yield_now();
        }
        stream.shutdown(Shutdown::Write).unwrap();
    }
}
