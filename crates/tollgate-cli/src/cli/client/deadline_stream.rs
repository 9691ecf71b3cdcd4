//! A connection with an end: a server that sends a byte now and then cannot hold a command up.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use tollgate::{Clock, Micros, SystemClock, Wait};

/// Reads and writes until an instant, and then no more.
pub(super) struct DeadlineStream {
    stream: TcpStream,
    deadline: Micros,
}

impl DeadlineStream {
    /// Connects to the first address of a name and port that answers. All has to be done in `time`.
    pub(super) fn connect(host: &str, time: Duration) -> io::Result<DeadlineStream> {
        let until = SystemClock.now().after(Wait::at_least(time));
        let mut last = io::Error::other("the name has no address");
        for address in host.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, time_left(until)?) {
                Ok(stream) => return Ok(DeadlineStream { stream, deadline: until }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn time_left(until: Micros) -> io::Result<Duration> {
    match until.as_u64().saturating_sub(SystemClock.now().as_u64()) {
        0 => Err(too_slow()),
        micros => Ok(Duration::from_micros(micros)),
    }
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the answer takes too long")
}

/// What a socket says when its time is over differs from system to system.
fn as_timeout(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => too_slow(),
        _ => error,
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(time_left(self.deadline)?))?;
        self.stream.read(buffer).map_err(as_timeout)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(time_left(self.deadline)?))?;
        self.stream.write(bytes).map_err(as_timeout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_silent_server_is_left() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let mut stream = DeadlineStream::connect(&address, Duration::from_millis(50)).unwrap();
        for _ in 0..2 {
            let problem = stream.read(&mut [0]).unwrap_err();
            assert_eq!(problem.kind(), io::ErrorKind::TimedOut);
            assert_eq!(problem.to_string(), "the answer takes too long");
        }
        assert_eq!(stream.write(b"x").unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
