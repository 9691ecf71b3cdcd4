//! A RESP client that sends exactly the bytes of a test.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::harness::{DEADLINE, TollgateProcess};

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RespReply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<RespReply>),
    Map(Vec<(RespReply, RespReply)>),
    Set(Vec<RespReply>),
    Verbatim(String),
}

impl RespReply {
    pub(crate) fn text(text: &str) -> RespReply {
        RespReply::Bulk(text.into())
    }

    pub(crate) fn integers(numbers: &[i64]) -> RespReply {
        RespReply::Array(numbers.iter().map(|number| RespReply::Integer(*number)).collect())
    }

    pub(crate) fn ok() -> RespReply {
        RespReply::Simple("OK".into())
    }

    /// Text of the reply, which must be an error.
    pub(crate) fn error(&self) -> &str {
        match self {
            RespReply::Error(text) => text,
            other => panic!("no error: {other:?}"),
        }
    }
}

/// A client on one connection.
pub(crate) struct RespTestClient {
    stream: BufReader<TcpStream>,
}

impl RespTestClient {
    pub(crate) fn connect(server: &TollgateProcess) -> RespTestClient {
        RespTestClient::connect_to(server.resp())
    }

    pub(crate) fn connect_to(address: SocketAddr) -> RespTestClient {
        let stream = TcpStream::connect(address).expect("the listener is open");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        stream.set_write_timeout(Some(DEADLINE)).expect("a timeout");
        stream.set_nodelay(true).expect("a socket");
        RespTestClient { stream: BufReader::new(stream) }
    }

    /// Sends a command and reads the reply.
    pub(crate) fn ask(&mut self, words: &[&str]) -> RespReply {
        self.send(&command(words));
        self.receive()
    }

    /// Sends a command of words separated by blanks, and reads the reply.
    pub(crate) fn say(&mut self, line: &str) -> RespReply {
        self.ask(&line.split(' ').collect::<Vec<_>>())
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("the server takes it");
    }

    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    pub(crate) fn socket(&mut self) -> &mut TcpStream {
        self.stream.get_mut()
    }

    pub(crate) fn receive(&mut self) -> RespReply {
        self.try_receive().expect("a reply")
    }

    pub(crate) fn try_receive(&mut self) -> io::Result<RespReply> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let line = std::str::from_utf8(line).expect("a line of text");
        let (mark, rest) = line.split_at(1);
        let number = || rest.parse::<i64>().expect("a number");
        Ok(match mark {
            "+" => RespReply::Simple(rest.into()),
            "-" => RespReply::Error(rest.into()),
            ":" => RespReply::Integer(number()),
            "$" if rest == "-1" => RespReply::Null,
            "_" => RespReply::Null,
            "$" => RespReply::Bulk(self.bytes(number() as usize)?),
            "=" => {
                let text = String::from_utf8(self.bytes(number() as usize)?).expect("text");
                RespReply::Verbatim(text.strip_prefix("txt:").expect("a kind of text").into())
            }
            "*" => RespReply::Array(self.several(number())?),
            "~" => RespReply::Set(self.several(number())?),
            "%" => {
                let flat = self.several(2 * number())?;
                let pairs = flat.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone()));
                RespReply::Map(pairs.collect())
            }
            other => panic!("an unknown kind of reply: {other}{rest}"),
        })
    }

    fn several(&mut self, count: i64) -> io::Result<Vec<RespReply>> {
        (0..count).map(|_| self.try_receive()).collect()
    }

    fn bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        assert_eq!(bytes.split_off(length), b"\r\n");
        Ok(bytes)
    }

    /// Reads until the server closes the connection, and returns the text. Fails the test if it does not close.
    pub(crate) fn until_closed(&mut self) -> String {
        testkit::net::read_until_closed(&mut self.stream)
    }
}

/// The bytes of a command: an array of bulk strings.
pub(crate) fn command(words: &[&str]) -> Vec<u8> {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    command_of(&words)
}

pub(crate) fn command_of(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(*word);
        bytes.extend(b"\r\n");
    }
    bytes
}
