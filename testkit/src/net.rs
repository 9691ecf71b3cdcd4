//! Loopback: a port that is free, a connection that comes from another address than 127.0.0.1, as one of
//! many callers, and the end of a connection.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

/// An address that nobody listens on now, for programs that cannot be asked which port they took:
/// below the ports that the kernel hands to outgoing connections, so that no client takes it before
/// the program does.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn free_address() -> SocketAddr {
    /// Counted, so that those of one process differ.
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    crate::wait::until("a free port", || {
        let chance = RandomState::new().hash_one(TAKEN.fetch_add(1, Ordering::Relaxed));
        let port = 22_000 + (chance % 10_000) as u16;
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?.local_addr().ok()
    })
}

/// Connects from this loopback address, such as 127.0.0.2.
///
/// # Errors
///
/// What the kernel says, for instance that nobody listens there.
pub fn connect_from(from: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    assert!(from.is_loopback() && to.ip().is_loopback(), "tests stay on this machine");
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::from((from, 0)))?;
    connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

/// Reads until the peer closes, or resets the connection; what it still said.
///
/// # Panics
///
/// If it does not close, which takes a timeout on the stream to notice.
pub fn read_until_closed(stream: &mut impl Read) -> String {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server does not close: {error}"),
    }
    String::from_utf8_lossy(&rest).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_sees_the_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let from = Ipv4Addr::new(127, 0, 0, 9);
        let _client = connect_from(from, listener.local_addr().unwrap()).unwrap();
        assert_eq!(listener.accept().unwrap().1.ip(), from);
    }
}
