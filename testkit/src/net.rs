//! Loopback connections: free ports, connections from addresses other than 127.0.0.1 to act as several clients, and
//! the end of a connection.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

/// A free address, for programs that cannot report the port they chose. The port is below those that the kernel
/// gives to outgoing connections, so that no client takes it before the program does.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn free_address() -> SocketAddr {
    /// A counter, so that the addresses of one process differ.
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    crate::wait::until("a free port", || {
        let chance = RandomState::new().hash_one(TAKEN.fetch_add(1, Ordering::Relaxed));
        let port = 22_000 + (chance % 10_000) as u16;
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?.local_addr().ok()
    })
}

/// An address for a server that is started again: nothing else takes it while no socket is bound to it. Its loopback
/// address belongs to this process, because it has the process's id, and its port is below those of outgoing connections.
#[must_use]
pub fn kept_address() -> SocketAddr {
    /// A counter, so that the addresses of one process differ.
    static KEPT: AtomicU16 = AtomicU16::new(0);
    let port = 20_000 + KEPT.fetch_add(1, Ordering::Relaxed) % 2_000;
    SocketAddr::from((loopback_of(std::process::id()), port))
}

/// The loopback address of a process, from 127.64.0.0 to 127.127.255.255: Linux has at most 2^22 process ids.
fn loopback_of(process: u32) -> Ipv4Addr {
    let [_, high, middle, low] = process.to_be_bytes();
    Ipv4Addr::new(127, 64 | (high & 63), middle, low)
}

/// Connects from this loopback address, such as 127.0.0.2.
///
/// # Errors
///
/// The error of the kernel, for instance if nothing listens there.
pub fn connect_from(from: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    assert!(from.is_loopback() && to.ip().is_loopback(), "tests stay on this machine");
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::from((from, 0)))?;
    connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

/// Reads until the peer closes or resets the connection, and returns the text.
///
/// # Panics
///
/// If the peer does not close the connection; the stream needs a timeout to notice.
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
    fn a_kept_address_is_that_of_one_process() {
        // process | address
        let rows = [
            (1, Ipv4Addr::new(127, 64, 0, 1)),
            (65_535, Ipv4Addr::new(127, 64, 255, 255)),
            (65_536, Ipv4Addr::new(127, 65, 0, 0)),
            ((1 << 22) - 1, Ipv4Addr::new(127, 127, 255, 255)),
        ];
        for (process, want) in rows {
            assert_eq!(loopback_of(process), want, "{process}");
        }
        let (one, other) = (kept_address(), kept_address());
        assert_ne!(one, other);
        for address in [one, other] {
            // Its port on the usual address does not matter, and it can be bound again.
            let _thief = TcpListener::bind((Ipv4Addr::LOCALHOST, address.port()));
            drop(TcpListener::bind(address).expect("it is free"));
            TcpListener::bind(address).expect("it stays free");
        }
    }

    #[test]
    fn the_peer_sees_the_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let from = Ipv4Addr::new(127, 0, 0, 9);
        let _client = connect_from(from, listener.local_addr().unwrap()).unwrap();
        assert_eq!(listener.accept().unwrap().1.ip(), from);
    }
}
