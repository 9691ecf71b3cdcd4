//! The acceptor of a listener: binds it, takes connections, keeps the caps, and rests when the
//! process has no descriptors left.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

use super::connection_caps::ConnectionCaps;
use super::workers::{NewConnection, Workers};
use crate::cli::Report;
use crate::telemetry::Logs;

/// Connections that the kernel keeps for us.
const BACKLOG: u32 = 4_096;

/// How long to rest when no connection can be accepted: trying again at once would spin.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A peer that is silent for so long is asked for, this often, so many times, and is then gone.
#[cfg(target_os = "linux")]
const KEEPALIVE_IDLE: Duration = Duration::from_secs(300);
#[cfg(target_os = "linux")]
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);
#[cfg(target_os = "linux")]
const KEEPALIVE_PROBES: u32 = 3;

/// A listener that is bound.
pub(crate) struct BoundListener {
    pub(crate) name: &'static str,
    listener: TcpListener,
}

impl BoundListener {
    /// Binds an address. The flag that chose it has the listener's name; `others` are those that this server
    /// takes as well.
    pub(crate) fn bind(
        name: &'static str,
        address: SocketAddr,
        others: &[SocketAddr],
    ) -> Result<BoundListener, Report> {
        let bound = (|| {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // A restart must not wait for connections of the last run to fade.
            #[cfg(unix)]
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)
        })();
        match bound {
            Ok(listener) => Ok(BoundListener { name, listener }),
            Err(error) => Err(cannot_bind(name, address, others, &error)),
        }
    }

    /// Where it is: the port that was found, if any would do.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Takes connections until told to stop, then those that had already come. `too_many_limits` is what one
    /// beyond the caps is told.
    pub(crate) async fn accept(
        self,
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
                        logs.error("cannot accept connections, trying on", &fields);
                    }
                    resting = true;
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
        // The kernel has shaken hands with these: closing would reset them.
        while let Ok(Ok((stream, peer))) =
            tokio::time::timeout(Duration::ZERO, self.listener.accept()).await
        {
            hand_over(stream, peer).await;
        }
    }
}

async fn hand_over(
    stream: tokio::net::TcpStream,
    peer: SocketAddr,
    caps: &Arc<ConnectionCaps>,
    too_many: &[u8],
    workers: &Workers,
) {
    // The worker's runtime is another one.
    let Ok(stream) = stream.into_std() else { return };
    let Some(place) = caps.admit(peer.ip()).await else {
        return reject_connection(stream, too_many);
    };
    // Without it a response of two packets may wait for an acknowledgement.
    let _ = stream.set_nodelay(true);
    keep_alive(&stream);
    workers.assign(NewConnection { stream, peer, permit: place }).await;
}

/// Has the kernel ask for a peer that is silent for long: one that vanished without a word would keep its
/// place among the connections for ever.
#[cfg(target_os = "linux")]
fn keep_alive(stream: &TcpStream) {
    use rustix::net::sockopt;

    let set = || {
        sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
        sockopt::set_socket_keepalive(stream, true)
    };
    // Without it a connection works as well.
    let _ = set();
}

/// Elsewhere patience alone has to do.
#[cfg(not(target_os = "linux"))]
fn keep_alive(_: &TcpStream) {}

/// Says why, as far as that works without waiting.
fn reject_connection(mut stream: TcpStream, too_many: &[u8]) {
    let _ = stream.write(too_many);
    let _ = stream.shutdown(Shutdown::Write);
}

/// The peer left while it waited: the next one may be fine.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// The most ports that are tried for one that is free.
const PORTS_TRIED_MAX: usize = 100;

/// The next address that nobody uses, and that this server will not take itself.
fn next_free_address(address: SocketAddr, others: &[SocketAddr]) -> Option<SocketAddr> {
    let is_ours = |port: &u16| others.iter().any(|other| other.port() == *port);
    let ports = address.port().saturating_add(1).max(1024)..=u16::MAX;
    let ports = ports.filter(|port| !is_ours(port)).take(PORTS_TRIED_MAX);
    let mut addresses = ports.map(|port| SocketAddr::new(address.ip(), port));
    addresses.find(|address| std::net::TcpListener::bind(address).is_ok())
}

fn cannot_bind(
    name: &str,
    address: SocketAddr,
    others: &[SocketAddr],
    error: &io::Error,
) -> Report {
    let report = Report::new(format!("cannot open the listener {name} at {address}: {error}"));
    let port = address.port();
    report.hint(match error.kind() {
        io::ErrorKind::AddrInUse => {
            let free =
                next_free_address(address, others).unwrap_or(SocketAddr::new(address.ip(), 0));
            format!(
                "another program uses port {port}: stop it, or choose another port, such as \
                 --{name} {free} (0 is any free one), or switch the listener off with --{name} none"
            )
        }
        io::ErrorKind::PermissionDenied => format!(
            "ports below 1024 need a privilege: choose a higher one with --{name}, or grant \
             CAP_NET_BIND_SERVICE"
        ),
        io::ErrorKind::AddrNotAvailable => {
            format!("no network interface has this address: write one that has with --{name}")
        }
        _ => format!("choose another address with --{name}"),
    })
}
