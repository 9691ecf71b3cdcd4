//! Sockets that a supervisor opened and passed on, by the convention of systemd: `LISTEN_PID`, `LISTEN_FDS` and
//! `LISTEN_FDNAMES`. The supervisor keeps them open across a restart, so connections wait in their queue meanwhile and
//! none is refused. Only Linux has such supervisors.

use std::io;
use std::net::TcpListener;
#[cfg(unix)]
use std::os::unix::net::UnixListener;

use super::BindAddress;
use super::address::UNIX_PREFIX;
use super::socket::ListenerSocket;
use crate::cli::Report;

/// Number of the first passed descriptor.
const FIRST: i32 = 3;
/// Most descriptors that are accepted.
const SOCKETS_MAX: usize = 64;

/// Sockets of this process that nobody has taken yet. Bound: [`SOCKETS_MAX`].
#[derive(Default)]
pub(crate) struct InheritedSockets(Vec<InheritedSocket>);

/// One socket.
pub(crate) struct InheritedSocket {
    /// Its name in `LISTEN_FDNAMES`.
    name: String,
    socket: StdListener,
    address: BindAddress,
}

/// A listening socket that no runtime has yet.
enum StdListener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
}

impl InheritedSockets {
    /// Takes the sockets that the environment names. Called once, before this process opens files.
    pub(crate) fn from_environment() -> Result<InheritedSockets, Report> {
        // Another pid: the variables were meant for a parent of this process.
        let is_ours = |pid: String| pid.parse() == Ok(std::process::id());
        let is_ours = cfg!(target_os = "linux") && variable("LISTEN_PID").is_none_or(is_ours);
        let Some(count) = variable("LISTEN_FDS").filter(|_| is_ours) else {
            return Ok(InheritedSockets::default());
        };
        let count = count.parse().ok().filter(|count| *count <= SOCKETS_MAX).ok_or_else(|| {
            Report::new(format!("LISTEN_FDS={count:?} is not a number of sockets")).hint(format!(
                "it is a number up to {SOCKETS_MAX}, set by a supervisor such as systemd"
            ))
        })?;
        let names = variable("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let sockets = (FIRST..).take(count).map(|number| {
            let name = names.next().unwrap_or_default().to_string();
            InheritedSocket::take(number, name).map_err(|error| {
                Report::new(format!("the passed descriptor {number} cannot be used: {error}"))
                    .hint("LISTEN_FDS counts listening TCP and Unix sockets, the first of which is descriptor 3")
            })
        });
        Ok(InheritedSockets(sockets.collect::<Result<_, _>>()?))
    }

    /// Each listener that has a socket here, with the socket's address. `listeners` are the names of all listeners with
    /// their configured addresses. A socket belongs to the listener that its name says, or else to the one that is
    /// configured for its address.
    pub(crate) fn assign<'n>(
        &mut self,
        listeners: &[(&'n str, Option<BindAddress>)],
    ) -> Result<Vec<(&'n str, BindAddress)>, Report> {
        let mut assigned = Vec::new();
        for socket in &mut self.0 {
            let by_name = listeners.iter().find(|(name, _)| **name == *socket.name);
            let has_address =
                |other: &&(&str, Option<BindAddress>)| other.1.as_ref() == Some(&socket.address);
            let Some((name, _)) = by_name.or_else(|| listeners.iter().find(has_address)) else {
                return Err(unknown_socket(socket, listeners));
            };
            if assigned.iter().any(|(taken, _)| taken == name) {
                return Err(Report::new(format!("two passed sockets are for the listener {name}"))
                    .hint("pass one socket for each listener"));
            }
            socket.name = name.to_string();
            assigned.push((*name, socket.address.clone()));
        }
        Ok(assigned)
    }

    /// Takes the socket of a listener, after [`assign`](InheritedSockets::assign).
    pub(super) fn take(&mut self, name: &str) -> Option<io::Result<(ListenerSocket, BindAddress)>> {
        let place = self.0.iter().position(|socket| socket.name == name)?;
        let InheritedSocket { socket, address, .. } = self.0.swap_remove(place);
        let listener = match socket {
            StdListener::Tcp(listener) => {
                tokio::net::TcpListener::from_std(listener).map(ListenerSocket::Tcp)
            }
            // Whoever made the file removes it.
            #[cfg(unix)]
            StdListener::Unix(listener) => tokio::net::UnixListener::from_std(listener)
                .map(|listener| ListenerSocket::Unix { listener, file: None }),
        };
        Some(listener.map(|listener| (listener, address)))
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn unknown_socket(socket: &InheritedSocket, listeners: &[(&str, Option<BindAddress>)]) -> Report {
    let InheritedSocket { name, address, .. } = socket;
    let names: Vec<_> = listeners.iter().map(|(name, _)| *name).collect();
    let flag = match address {
        BindAddress::Tcp(address) => address.to_string(),
        BindAddress::Unix(path) => format!("{UNIX_PREFIX}{}", path.display()),
    };
    Report::new(format!("no listener uses the passed socket {name:?} at {address}")).hint(format!(
        "name it after a listener ({}) with FileDescriptorName= in the .socket unit, or give a listener its \
         address, such as --gateway {flag}",
        names.join(", ")
    ))
}

#[cfg(not(target_os = "linux"))]
impl InheritedSocket {
    fn take(_: i32, _: String) -> io::Result<InheritedSocket> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(target_os = "linux")]
mod descriptor {
    //! Turns passed descriptors into sockets.

    use std::io;
    use std::net::TcpListener;
    use std::os::fd::{FromRawFd, OwnedFd, RawFd};
    use std::os::unix::net::UnixListener;

    use rustix::io::FdFlags;
    use rustix::net::{AddressFamily, SocketType, sockopt};

    use super::{BindAddress, InheritedSocket, StdListener};

    impl InheritedSocket {
        pub(super) fn take(number: RawFd, name: String) -> io::Result<InheritedSocket> {
            let socket = owned(number)?;
            rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&socket, true)?;
            let listens = sockopt::socket_acceptconn(&socket)?;
            if !listens || sockopt::socket_type(&socket)? != SocketType::STREAM {
                return Err(io::Error::other("it is not a listening stream socket"));
            }
            if sockopt::socket_domain(&socket)? == AddressFamily::UNIX {
                let listener = UnixListener::from(socket);
                let address = listener.local_addr()?;
                let path = address.as_pathname().map(Into::into);
                let address = path.ok_or_else(|| io::Error::other("the socket has no path"))?;
                let socket = StdListener::Unix(listener);
                return Ok(InheritedSocket { name, socket, address: BindAddress::Unix(address) });
            }
            let listener = TcpListener::from(socket);
            let address = BindAddress::Tcp(listener.local_addr()?);
            Ok(InheritedSocket { name, socket: StdListener::Tcp(listener), address })
        }
    }

    /// Takes over a descriptor that the supervisor passed.
    #[allow(unsafe_code)]
    fn owned(number: RawFd) -> io::Result<OwnedFd> {
        // Fails if there is no such descriptor.
        std::fs::metadata(format!("/dev/fd/{number}"))?;
        // SAFETY: the descriptor is open, and `LISTEN_FDS` with our `LISTEN_PID` gives it to this process, which has opened
        // no files of its own yet. Each number is taken once, because `from_environment` is called once.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}
