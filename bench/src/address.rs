//! Addresses of servers under load, TCP on loopback or a Unix socket, and connections to them.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{AddrParseError, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use mio::event::Source;
use mio::{Interest, Registry, Token};

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl From<SocketAddr> for ServerAddress {
    fn from(address: SocketAddr) -> ServerAddress {
        ServerAddress::Tcp(address)
    }
}

impl FromStr for ServerAddress {
    type Err = AddrParseError;

    /// Parses `127.0.0.1:8080` or `unix:/path`.
    fn from_str(text: &str) -> Result<ServerAddress, AddrParseError> {
        match text.strip_prefix("unix:") {
            Some(path) => Ok(ServerAddress::Unix(path.into())),
            None => text.parse().map(ServerAddress::Tcp),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Tcp(address) => address.fmt(f),
            ServerAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A connection of one of the two kinds.
#[derive(Debug)]
pub enum EitherStream<T, U> {
    /// Over TCP.
    Tcp(T),
    /// Over a Unix socket.
    Unix(U),
}

/// A connection that blocks.
pub type BlockingStream = EitherStream<std::net::TcpStream, UnixStream>;

/// A connection that does not block and that a poll can watch.
pub type PolledStream = EitherStream<mio::net::TcpStream, mio::net::UnixStream>;

impl BlockingStream {
    /// Connects; reads fail after `timeout`.
    pub fn connect(address: &ServerAddress, timeout: Duration) -> io::Result<BlockingStream> {
        match address {
            ServerAddress::Tcp(address) => {
                let stream = std::net::TcpStream::connect(address)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_nodelay(true)?;
                Ok(EitherStream::Tcp(stream))
            }
            ServerAddress::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(timeout))?;
                Ok(EitherStream::Unix(stream))
            }
        }
    }

    /// Makes a connection that does not block.
    pub fn into_polled(self) -> io::Result<PolledStream> {
        match self {
            EitherStream::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                Ok(EitherStream::Tcp(mio::net::TcpStream::from_std(stream)))
            }
            EitherStream::Unix(stream) => {
                stream.set_nonblocking(true)?;
                Ok(EitherStream::Unix(mio::net::UnixStream::from_std(stream)))
            }
        }
    }
}

impl<T: Read, U: Read> Read for EitherStream<T, U> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            EitherStream::Tcp(stream) => stream.read(buffer),
            EitherStream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl<T: Write, U: Write> Write for EitherStream<T, U> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            EitherStream::Tcp(stream) => stream.write(bytes),
            EitherStream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            EitherStream::Tcp(stream) => stream.flush(),
            EitherStream::Unix(stream) => stream.flush(),
        }
    }
}

impl Source for PolledStream {
    fn register(&mut self, poll: &Registry, token: Token, what: Interest) -> io::Result<()> {
        match self {
            EitherStream::Tcp(stream) => stream.register(poll, token, what),
            EitherStream::Unix(stream) => stream.register(poll, token, what),
        }
    }

    fn reregister(&mut self, poll: &Registry, token: Token, what: Interest) -> io::Result<()> {
        match self {
            EitherStream::Tcp(stream) => stream.reregister(poll, token, what),
            EitherStream::Unix(stream) => stream.reregister(poll, token, what),
        }
    }

    fn deregister(&mut self, poll: &Registry) -> io::Result<()> {
        match self {
            EitherStream::Tcp(stream) => stream.deregister(poll),
            EitherStream::Unix(stream) => stream.deregister(poll),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_printed_as_they_are_parsed() {
        for text in ["127.0.0.1:8080", "unix:/run/tollgate/http.sock"] {
            assert_eq!(text.parse::<ServerAddress>().unwrap().to_string(), text);
        }
        assert!("localhost".parse::<ServerAddress>().is_err());
    }
}
