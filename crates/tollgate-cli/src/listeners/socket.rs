//! Sockets of listeners and of their connections: TCP, or a Unix socket, behind one type.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection that no runtime has yet.
pub(crate) enum AcceptedStream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixStream),
}

/// A connection on the runtime of a worker.
pub(crate) enum ConnectionStream {
    /// Over TCP.
    Tcp(tokio::net::TcpStream),
    /// Over a Unix socket.
    #[cfg(unix)]
    Unix(tokio::net::UnixStream),
}

impl AcceptedStream {
    /// Hands the connection to the runtime of this thread.
    pub(crate) fn into_connection(self) -> io::Result<ConnectionStream> {
        match self {
            AcceptedStream::Tcp(stream) => {
                tokio::net::TcpStream::from_std(stream).map(ConnectionStream::Tcp)
            }
            #[cfg(unix)]
            AcceptedStream::Unix(stream) => {
                tokio::net::UnixStream::from_std(stream).map(ConnectionStream::Unix)
            }
        }
    }
}

/// Calls a method of whichever stream it is.
macro_rules! with_stream {
    ($connection:expr, $stream:ident => $call:expr) => {
        match $connection.get_mut() {
            ConnectionStream::Tcp(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            #[cfg(unix)]
            ConnectionStream::Unix(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
        }
    };
}

impl AsyncRead for ConnectionStream {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for ConnectionStream {
    #[inline]
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        with_stream!(self, stream => stream.poll_write(context, bytes))
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        with_stream!(self, stream => stream.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_shutdown(context))
    }
}

/// The socket of a listener.
pub(super) enum ListenerSocket {
    /// TCP.
    Tcp(tokio::net::TcpListener),
    /// A Unix socket, and its file.
    #[cfg(unix)]
    Unix { listener: tokio::net::UnixListener, file: Option<unix::SocketFile> },
}

impl ListenerSocket {
    /// Removes the name of the socket, so that no new client finds it. Connections that are queued can still be accepted.
    pub(super) fn remove_name(&mut self) {
        #[cfg(unix)]
        if let ListenerSocket::Unix { file, .. } = self {
            *file = None;
        }
    }

    /// Accepts the next connection.
    pub(super) async fn accept(&self) -> io::Result<(AcceptedStream, SocketAddr)> {
        match self {
            ListenerSocket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // The worker has a runtime of its own.
                Ok((AcceptedStream::Tcp(stream.into_std()?), peer))
            }
            #[cfg(unix)]
            ListenerSocket::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                Ok((AcceptedStream::Unix(stream.into_std()?), super::address::UNIX_PEER))
            }
        }
    }
}

#[cfg(unix)]
pub(super) mod unix {
    //! The file of a Unix socket: created with the listener, removed with it.

    use std::fs::{self, Permissions};
    use std::io;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
    use std::path::{Path, PathBuf};

    use tokio::net::{UnixSocket, UnixStream};

    use super::ListenerSocket;

    /// Owner and group may connect. Another group is the business of the directory, or of `chgrp`.
    const SOCKET_MODE: u32 = 0o660;

    /// The file of a bound socket. Dropping it removes the file, unless another program has replaced it.
    pub(in crate::listeners) struct SocketFile {
        path: PathBuf,
        /// Device and inode.
        identity: (u64, u64),
    }

    impl Drop for SocketFile {
        fn drop(&mut self) {
            if identity(&self.path).is_ok_and(|found| found == self.identity) {
                let _ = fs::remove_file(&self.path);
            }
        }
    }

    fn identity(path: &Path) -> io::Result<(u64, u64)> {
        fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
    }

    /// Binds a path. A socket that a program left behind is replaced; one that answers, and any other file, is not.
    pub(in crate::listeners) async fn bind(
        path: &Path,
        backlog: u32,
    ) -> io::Result<ListenerSocket> {
        match fs::symlink_metadata(path) {
            Ok(file) if !file.file_type().is_socket() => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "the file is not a socket",
                ));
            }
            // Does not wait: a program whose queue is full is an error, too.
            Ok(_) => match UnixStream::connect(path).await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(path)?;
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => return Err(io::ErrorKind::AddrInUse.into()),
            },
            Err(_) => {}
        }
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        let file = SocketFile { path: path.into(), identity: identity(path)? };
        // Before it listens: until then nobody can connect.
        fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
        Ok(ListenerSocket::Unix { listener: socket.listen(backlog)?, file: Some(file) })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[tokio::test]
        async fn a_socket_left_behind_is_replaced_and_nothing_else_is() {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().join("tollgate.sock");
            let kind = |result: io::Result<ListenerSocket>| result.err().map(|error| error.kind());
            // A listener that is closed without removing its file, as after a crash.
            drop(std::os::unix::net::UnixListener::bind(&path).expect("free"));
            let first = bind(&path, 8).await.expect("nobody answers there");
            assert_eq!(kind(bind(&path, 8).await), Some(io::ErrorKind::AddrInUse));
            let mode = fs::metadata(&path).expect("the file").permissions().mode();
            assert_eq!(mode & 0o777, SOCKET_MODE);
            drop(first);
            assert!(!path.exists(), "the file is removed with the listener");
            fs::write(&path, "text").expect("a file");
            assert_eq!(kind(bind(&path, 8).await), Some(io::ErrorKind::AlreadyExists));
            assert_eq!(fs::read(&path).expect("untouched"), b"text");
            fs::remove_file(&path).expect("ours");
            let second = bind(&path, 8).await.expect("free");
            fs::remove_file(&path).expect("ours");
            fs::write(&path, "of another program").expect("a file");
            drop(second);
            assert!(path.exists(), "a file of another program stays");
        }
    }
}
