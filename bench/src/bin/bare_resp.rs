//! The floor of the RESP server: tokio and a parser of commands, deciding nothing.
//!
//! `cargo xtask bench doors` starts it as a process of its own, so that it is pinned and its
//! processor time is counted like that of the other servers. It announces itself on standard output
//! as `tollgate serve` does, and runs until it is killed.

use std::io;
use std::net::TcpListener;
use std::process::ExitCode;

use memchr::memchr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_bench::machine;

/// The reply to every command, as long as a usual reply to CL.THROTTLE.
const REPLY: &[u8] = b"*5\r\n:0\r\n:10001\r\n:10000\r\n:-1\r\n:1\r\n";
/// Size of the receive buffer, and so the longest pipeline of commands.
const BUFFER_BYTES: usize = 64 << 10;

fn main() -> ExitCode {
    machine::exit_on_sigterm();
    match announce().and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bare-resp: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Binds a free port and announces it on standard output.
fn announce() -> io::Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening resp {}\nready", listener.local_addr()?);
    Ok(listener)
}

/// Accepts connections until the process is killed, all on the calling thread.
fn serve(listener: TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(connection(stream));
        }
    })
}

/// Serves one connection. An error means that the peer disconnected, as the generator does at the end of
/// each sample.
async fn connection(mut stream: TcpStream) -> io::Result<()> {
    let (mut buffer, mut filled) = (vec![0; BUFFER_BYTES], 0);
    let mut replies = Vec::new();
    loop {
        match stream.read(&mut buffer[filled..]).await? {
            0 => return Ok(()),
            bytes => filled += bytes,
        }
        let mut done = 0;
        while let Some(length) = command(&buffer[done..filled])? {
            done += length;
            replies.extend_from_slice(REPLY);
        }
        buffer.copy_within(done..filled, 0);
        filled -= done;
        stream.write_all(&replies).await?;
        replies.clear();
    }
}

/// Length of the command at the beginning, an array of bulk strings; `None` if it is incomplete.
fn command(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some((words, mut at)) = number(bytes, b'*')? else { return Ok(None) };
    for _ in 0..words {
        let Some((length, head)) = number(&bytes[at..], b'$')? else { return Ok(None) };
        at += head + length + 2;
        if at > bytes.len() {
            return Ok(None);
        }
    }
    Ok(Some(at))
}

/// The number in the first line, after its type byte, and the length of the line.
fn number(bytes: &[u8], sign: u8) -> io::Result<Option<(usize, usize)>> {
    let Some(end) = memchr(b'\n', bytes) else { return Ok(None) };
    let digits = bytes[..end].strip_prefix(&[sign]).and_then(|line| line.strip_suffix(b"\r"));
    let digit = |value: usize, digit: &u8| match digit {
        b'0'..=b'9' => Some(value * 10 + usize::from(digit - b'0')),
        _ => None,
    };
    let value = digits.filter(|it| it.len() < 6).and_then(|it| it.iter().try_fold(0, digit));
    value.map(|value| Some((value, end + 1))).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::traffic::resp_command;
    use tollgate_bench::generator;
    use tollgate_bench::generator::requests::EncodedRequests;
    use tollgate_bench::generator::resp::{ExpectedReply, RespLoadClient};

    #[test]
    fn pipelined_commands_are_answered_and_every_reply_is_looked_at() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(|| serve(listener));
        let requests = EncodedRequests::generate(64, |callers| {
            let words = |caller: &u64| resp_command(&["CL.THROTTLE", &caller.to_string(), "9"]);
            callers.iter().map(words).collect::<String>()
        });
        let ask = |begins| {
            let reply = ExpectedReply { begins, lines: 4 };
            generator::measure_briefly(address, |index| {
                RespLoadClient::new(&requests, reply, index)
            })
        };
        assert!(ask(b"*5\r\n:0\r\n").unwrap().requests_per_s > 0.0);
        let problem = ask(b"*5\r\n:1\r\n").unwrap_err();
        assert!(problem.contains("does not begin with"), "{problem}");
    }

    #[test]
    fn commands_are_measured() {
        let rows = [
            ("", Some(None)),
            ("*2\r\n$4\r\nINCR\r\n$1\r\na\r", Some(None)),
            ("*2\r\n$4\r\nINCR\r\n$1\r\na\r\n*1", Some(Some(21))),
            ("PING\r\n", None),
            ("*x\r\n", None),
        ];
        for (text, expected) in rows {
            assert_eq!(command(text.as_bytes()).ok(), expected, "{text:?}");
        }
    }
}
