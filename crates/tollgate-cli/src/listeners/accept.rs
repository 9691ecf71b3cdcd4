//! The acceptor of a listener: binds its address, accepts connections within the caps, and pauses when the process has
//! no file descriptors left.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpSocket;
use tokio::sync::watch;

use super::BindAddress;
use super::connection_caps::ConnectionCaps;
use super::inherited::InheritedSockets;
use super::socket::{AcceptedStream, ListenerSocket};
use super::workers::{NewConnection, Workers};
use crate::cli::Report;
use crate::telemetry::Logs;

/// Length of the kernel's queue of connections that are not accepted yet.
const BACKLOG: u32 = 4_096;

/// Pause after a failed accept: retrying at once would spin.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Silence of a peer after which the kernel sends keepalive probes.
#[cfg(target_os = "linux")]
const KEEPALIVE_IDLE: Duration = Duration::from_secs(300);
/// Interval of keepalive probes.
#[cfg(target_os = "linux")]
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);
/// Unanswered probes after which the connection is closed.
#[cfg(target_os = "linux")]
const KEEPALIVE_PROBES: u32 = 3;

/// A bound listener.
pub(crate) struct BoundListener {
    pub(crate) name: &'static str,
    listener: ListenerSocket,
    address: BindAddress,
}

/// Addresses of this server's listeners, and the way they are bound.
pub(crate) struct BindOptions<'a> {
    pub(crate) all: &'a [BindAddress],
    /// Other processes may listen on the same ports (`SO_REUSEPORT`).
    pub(crate) reuse_port: bool,
}

impl BoundListener {
    /// Uses a socket that a supervisor passed, if there is one for this listener.
    pub(crate) fn inherited(
        name: &'static str,
        sockets: &mut InheritedSockets,
    ) -> Option<Result<BoundListener, Report>> {
        let taken = sockets.take(name)?;
        Some(match taken {
            Ok((listener, address)) => Ok(BoundListener { name, listener, address }),
            Err(error) => {
                let problem =
                    format!("the passed socket of the {name} listener cannot be used: {error}");
                Err(Report::new(problem))
            }
        })
    }

    /// Binds an address. The flag that sets it has the listener's name.
    pub(crate) async fn bind(
        name: &'static str,
        address: &BindAddress,
        options: &BindOptions<'_>,
    ) -> Result<BoundListener, Report> {
        match address {
            BindAddress::Tcp(tcp) => match bind_tcp(*tcp, options.reuse_port) {
                Ok((listener, bound)) => {
                    Ok(BoundListener { name, listener, address: BindAddress::Tcp(bound) })
                }
                Err(error) => Err(cannot_bind(name, *tcp, options.all, &error)),
            },
            #[cfg(unix)]
            BindAddress::Unix(path) => match super::socket::unix::bind(path, BACKLOG).await {
                Ok(listener) => Ok(BoundListener { name, listener, address: address.clone() }),
                Err(error) => Err(cannot_bind_path(name, address, &error)),
            },
            #[cfg(not(unix))]
            BindAddress::Unix(_) => unreachable!("such an address is an error on this system"),
        }
    }

    /// The bound address, with the port that was chosen for port 0.
    pub(crate) fn address(&self) -> &BindAddress {
        &self.address
    }

    /// Accepts connections until `stop` is set, then those that were already queued. `too_many` is the reply to a
    /// connection beyond the caps.
    pub(crate) async fn accept(
        mut self,
        workers: Workers,
        caps: Arc<ConnectionCaps>,
        too_many: &'static [u8],
        mut stop: watch::Receiver<bool>,
        logs: Logs,
    ) {
        let mut resting = false;
        let hand_over = |stream, peer| hand_over(stream, peer, &caps, too_many, &workers);
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    resting = false;
                    hand_over(stream, peer).await;
                }
                Err(error) if is_connection_error(&error) => {}
                Err(error) => {
                    if !resting {
                        let fields: [_; 2] =
                            [("listener", &self.name as _), ("error", &error as _)];
                        logs.error("cannot accept connections, retrying", &fields);
                    }
                    resting = true;
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
        self.listener.remove_name();
        // The handshake of these connections is done: closing the listener would reset them.
        for _ in 0..BACKLOG {
            let accepted = tokio::time::timeout(Duration::ZERO, self.listener.accept()).await;
            let Ok(Ok((stream, peer))) = accepted else { break };
            hand_over(stream, peer).await;
        }
    }
}

fn bind_tcp(address: SocketAddr, reuse_port: bool) -> io::Result<(ListenerSocket, SocketAddr)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restart must not wait for connections of the last run to time out.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    #[cfg(unix)]
    socket.set_reuseport(reuse_port)?;
    #[cfg(not(unix))]
    let _ = reuse_port;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let bound = listener.local_addr()?;
    Ok((ListenerSocket::Tcp(listener), bound))
}

async fn hand_over(
    stream: AcceptedStream,
    peer: SocketAddr,
    caps: &Arc<ConnectionCaps>,
    too_many: &[u8],
    workers: &Workers,
) {
    let Some(permit) = caps.admit(peer.ip()).await else {
        return reject_connection(stream, too_many);
    };
    if let AcceptedStream::Tcp(stream) = &stream {
        // Otherwise a response of two packets may wait for an acknowledgement.
        let _ = stream.set_nodelay(true);
        keep_alive(stream);
    }
    workers.assign(NewConnection { stream, peer, permit }).await;
}

/// Enables keepalive probes: a peer that vanished without closing would count against the caps for ever.
#[cfg(target_os = "linux")]
fn keep_alive(stream: &TcpStream) {
    use rustix::net::sockopt;

    let set = || {
        sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
        sockopt::set_socket_keepalive(stream, true)
    };
    // The connection works without it.
    let _ = set();
}

/// Does nothing: other systems rely on timeouts alone.
#[cfg(not(target_os = "linux"))]
fn keep_alive(_: &TcpStream) {}

/// Sends the reply, if that is possible without waiting, and closes the connection.
fn reject_connection(stream: AcceptedStream, too_many: &[u8]) {
    match stream {
        AcceptedStream::Tcp(mut stream) => {
            let _ = stream.write(too_many);
            let _ = stream.shutdown(Shutdown::Write);
        }
        #[cfg(unix)]
        AcceptedStream::Unix(mut stream) => {
            let _ = stream.write(too_many);
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}

/// Returns true if only this connection failed, for example because the peer left: the next may succeed.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Maximum ports that are tried to find a free one.
const PORTS_TRIED_MAX: usize = 100;

/// The next free address that this server does not use itself.
fn next_free_address(address: SocketAddr, others: &[BindAddress]) -> Option<SocketAddr> {
    let is_ours = |port: &u16| others.iter().any(|other| other.port() == Some(*port));
    let ports = address.port().saturating_add(1).max(1024)..=u16::MAX;
    let ports = ports.filter(|port| !is_ours(port)).take(PORTS_TRIED_MAX);
    let mut addresses = ports.map(|port| SocketAddr::new(address.ip(), port));
    addresses.find(|address| std::net::TcpListener::bind(address).is_ok())
}

fn cannot_bind(
    name: &str,
    address: SocketAddr,
    others: &[BindAddress],
    error: &io::Error,
) -> Report {
    let report = Report::new(format!("cannot open the {name} listener at {address}: {error}"));
    let port = address.port();
    report.hint(match error.kind() {
        io::ErrorKind::AddrInUse => {
            let free =
                next_free_address(address, others).unwrap_or(SocketAddr::new(address.ip(), 0));
            format!(
                "another program uses port {port}: stop it, choose another port, such as \
                 --{name} {free} (0 is any free port), or switch the listener off with --{name} none"
            )
        }
        io::ErrorKind::PermissionDenied => format!(
            "ports below 1024 need a privilege: choose a higher port with --{name}, or grant \
             CAP_NET_BIND_SERVICE"
        ),
        io::ErrorKind::AddrNotAvailable => {
            format!("no network interface has this address: choose an address of this machine with --{name}")
        }
        _ => format!("choose another address with --{name}"),
    })
}

#[cfg(unix)]
fn cannot_bind_path(name: &str, address: &BindAddress, error: &io::Error) -> Report {
    let report = Report::new(format!("cannot open the {name} listener at {address}: {error}"));
    report.hint(match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another program answers at this socket: stop it, or choose another path".to_string()
        }
        io::ErrorKind::AlreadyExists => {
            "move the file away, or choose another path; only a socket that nobody answers at is replaced"
                .to_string()
        }
        io::ErrorKind::NotFound => "create the directory of the socket first".to_string(),
        io::ErrorKind::PermissionDenied => {
            "this user may not create files in that directory, or not connect to the socket that is \
             there: choose another directory, or change its owner"
                .to_string()
        }
        _ => format!("choose another path with --{name} unix:/PATH"),
    })
}
