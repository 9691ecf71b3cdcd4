//! An upstream made of raw bytes: a script decides what each connection is answered, and every byte that arrives is
//! recorded. With the script of [`RawUpstream::recorder`] it is a correct server that reads strictly.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use crate::strict_http::{StrictReading, StrictRequest, read_request};

/// Connections at once, a thread each; one more is closed.
const CONNECTIONS_MAX: usize = 1_024;

/// Bytes recorded of one connection; more are dropped.
const RECORDED_BYTES_MAX: usize = 1 << 20;

/// Connections whose bytes are recorded; the bytes of later ones are dropped.
const RECORDED_CONNECTIONS_MAX: usize = 10_000;

/// Interval at which a thread on a silent connection checks if the upstream is stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The upstream; it ends when it is dropped.
#[derive(Debug)]
pub struct RawUpstream {
    shared: Arc<RawUpstreamState>,
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct RawUpstreamState {
    /// The bytes of each connection, in the order of connections. Bounds: [`RECORDED_CONNECTIONS_MAX`],
    /// [`RECORDED_BYTES_MAX`].
    received: Mutex<Vec<Vec<u8>>>,
    /// The threads of open connections. Bound: [`CONNECTIONS_MAX`].
    open: Mutex<Vec<JoinHandle<()>>>,
    /// Connections that are open now.
    connected: AtomicUsize,
    stopped: AtomicBool,
}

impl RawUpstream {
    /// Starts an upstream on a free loopback port; `script` answers each connection until it returns.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    #[must_use]
    pub fn start(
        script: impl Fn(&mut RawConversation) -> io::Result<()> + Send + Sync + 'static,
    ) -> RawUpstream {
        RawUpstream::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), script)
    }

    /// Starts an upstream on this address, for one that was gone and comes back.
    ///
    /// # Panics
    ///
    /// If the address is taken.
    #[must_use]
    pub fn start_at(
        address: SocketAddr,
        script: impl Fn(&mut RawConversation) -> io::Result<()> + Send + Sync + 'static,
    ) -> RawUpstream {
        let listener = TcpListener::bind(address).expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::<RawUpstreamState>::default();
        let accepting = Some(thread::spawn({
            let (shared, script) = (shared.clone(), Arc::new(script));
            move || accept(&listener, &shared, &script)
        }));
        RawUpstream { shared, address, accepting }
    }

    /// A server that answers each request with 200, its target as the body and `x-application: yes`, and closes the
    /// connection at the first byte that a strict reader does not accept.
    #[must_use]
    pub fn recorder() -> RawUpstream {
        RawUpstream::start(|conversation| {
            while let Some(request) = conversation.read_request()? {
                let body = if request.method == "HEAD" { "" } else { request.target.as_str() };
                let length = request.target.len();
                let head = format!("content-length: {length}\r\nx-application: yes\r\n\r\n");
                conversation.write(format!("HTTP/1.1 200 OK\r\n{head}{body}").as_bytes())?;
            }
            Ok(())
        })
    }

    /// The address of the upstream.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The bytes received so far, by connection, without the requests that were taken.
    #[must_use]
    pub fn received(&self) -> Vec<Vec<u8>> {
        lock(&self.shared.received).clone()
    }

    /// Number of connections accepted so far.
    #[must_use]
    pub fn accepted(&self) -> usize {
        lock(&self.shared.received).len()
    }

    /// Number of connections that are open now.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.shared.connected.load(Ordering::Relaxed)
    }

    /// Takes the complete requests of all connections since the last call, read strictly.
    ///
    /// # Errors
    ///
    /// The reason and the bytes, if a connection received something that is no request.
    pub fn take_requests(&self) -> Result<Vec<StrictRequest>, String> {
        let mut requests = Vec::new();
        for bytes in lock(&self.shared.received).iter_mut() {
            loop {
                match read_request(bytes) {
                    StrictReading::Complete(request, length) => {
                        requests.push(*request);
                        bytes.drain(..length);
                    }
                    StrictReading::Incomplete => break,
                    StrictReading::Invalid(reason) => {
                        let text = String::from_utf8_lossy(&std::mem::take(bytes)).into_owned();
                        return Err(format!("{reason}: {text:?}"));
                    }
                }
            }
        }
        Ok(requests)
    }
}

impl Drop for RawUpstream {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        let _ = self.accepting.take().map(JoinHandle::join);
        for connection in std::mem::take(&mut *lock(&self.shared.open)) {
            let _ = connection.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(
    listener: &TcpListener,
    shared: &Arc<RawUpstreamState>,
    script: &Arc<impl Fn(&mut RawConversation) -> io::Result<()> + Send + Sync + 'static>,
) {
    for stream in listener.incoming().flatten() {
        if shared.stopped.load(Ordering::Relaxed) {
            return;
        }
        let mut open = lock(&shared.open);
        open.retain(|connection| !connection.is_finished());
        if open.len() >= CONNECTIONS_MAX {
            continue;
        }
        let number = {
            let mut received = lock(&shared.received);
            received.push(Vec::new());
            received.len() - 1
        };
        let (shared, script) = (shared.clone(), script.clone());
        shared.connected.fetch_add(1, Ordering::Relaxed);
        open.push(thread::spawn(move || {
            let _ = stream.set_nodelay(true);
            let _ = stream.set_read_timeout(Some(POLL_INTERVAL));
            let mut conversation =
                RawConversation { stream, shared: shared.clone(), number, unread: Vec::new() };
            // A broken connection is what some scripts are for.
            let _ = script(&mut conversation);
            drop(conversation);
            shared.connected.fetch_sub(1, Ordering::Relaxed);
        }));
    }
}

/// One connection of a [`RawUpstream`], as its script sees it.
#[derive(Debug)]
pub struct RawConversation {
    stream: TcpStream,
    shared: Arc<RawUpstreamState>,
    number: usize,
    /// Bytes received and not yet read as a request. Bound: [`RECORDED_BYTES_MAX`].
    unread: Vec<u8>,
}

impl RawConversation {
    /// The number of this connection, from 0.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Reads one request; `None` at the end of the connection.
    ///
    /// # Errors
    ///
    /// If the connection breaks or receives bytes that are no request.
    pub fn read_request(&mut self) -> io::Result<Option<StrictRequest>> {
        loop {
            match read_request(&self.unread) {
                StrictReading::Complete(request, length) => {
                    self.unread.drain(..length);
                    return Ok(Some(*request));
                }
                StrictReading::Invalid(reason) => return Err(io::Error::other(reason)),
                StrictReading::Incomplete => {}
            }
            if self.receive()? == 0 {
                return Ok(None);
            }
        }
    }

    /// Reads the head of a request and returns it as text; what follows stays unread.
    ///
    /// # Errors
    ///
    /// If the connection ends before it.
    pub fn read_head(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.unread.windows(4).position(|part| part == b"\r\n\r\n") {
                let head: Vec<u8> = self.unread.drain(..end + 4).collect();
                return Ok(String::from_utf8_lossy(&head).into_owned());
            }
            if self.receive()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads at least this many bytes and returns everything that has arrived.
    ///
    /// # Errors
    ///
    /// If the connection ends before that.
    pub fn read_bytes(&mut self, at_least: usize) -> io::Result<Vec<u8>> {
        while self.unread.len() < at_least {
            if self.receive()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(std::mem::take(&mut self.unread))
    }

    /// Reads and drops this many bytes of a body; those of a long one are not recorded.
    ///
    /// # Errors
    ///
    /// If the connection ends before that.
    pub fn skip_bytes(&mut self, length: u64) -> io::Result<()> {
        let mut left = length;
        loop {
            let taken = usize::try_from(left).unwrap_or(usize::MAX).min(self.unread.len());
            self.unread.drain(..taken);
            left -= taken as u64;
            if left == 0 {
                return Ok(());
            }
            if self.receive()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Sends bytes at once.
    ///
    /// # Errors
    ///
    /// If the connection is closed.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Ends this side of the connection; the other may still send.
    ///
    /// # Errors
    ///
    /// If the connection is closed.
    pub fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Closes the connection with a reset.
    ///
    /// # Errors
    ///
    /// If the connection is closed.
    pub fn reset(&mut self) -> io::Result<()> {
        set_socket_linger(&self.stream, Some(Duration::ZERO))?;
        Ok(())
    }

    /// Lets time pass, for an upstream that takes it.
    pub fn pause(&self, time: Duration) {
        crate::wait::pause(time);
    }

    /// Waits until the peer closes the connection, or the upstream is stopped.
    ///
    /// # Errors
    ///
    /// If the peer resets the connection.
    pub fn wait_for_close(&mut self) -> io::Result<()> {
        while self.receive()? > 0 {
            self.unread.clear();
        }
        Ok(())
    }

    /// Returns true if the upstream is being dropped; a script that never ends checks it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Relaxed)
    }

    /// Receives some bytes and records them; 0 at the end.
    fn receive(&mut self) -> io::Result<usize> {
        use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
        let mut piece = [0; 65_536];
        let length = loop {
            match self.stream.read(&mut piece) {
                Err(error) if matches!(error.kind(), WouldBlock | TimedOut | Interrupted) => {
                    if self.is_stopped() {
                        break 0;
                    }
                }
                done => break done?,
            }
        };
        if self.number < RECORDED_CONNECTIONS_MAX
            && let Some(recorded) = lock(&self.shared.received).get_mut(self.number)
        {
            let room = RECORDED_BYTES_MAX.saturating_sub(recorded.len());
            recorded.extend_from_slice(&piece[..length.min(room)]);
        }
        if self.unread.len() < RECORDED_BYTES_MAX {
            self.unread.extend_from_slice(&piece[..length]);
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorder_answers_and_keeps_the_bytes() {
        let upstream = RawUpstream::recorder();
        let mut stream = TcpStream::connect(upstream.address()).unwrap();
        let request = b"GET /a HTTP/1.1\r\nhost: h\r\n\r\n";
        stream.write_all(&[&request[..], b"GET /b HTTP/1.1\r\n\r\n"].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "the second has no Host");
        assert!(answer.ends_with("/a"), "{answer}");
        assert!(upstream.received()[0].starts_with(request));
        assert!(upstream.take_requests().unwrap_err().contains("there is not exactly one Host"));
        assert_eq!(upstream.take_requests().unwrap(), []);
    }

    #[test]
    fn a_script_decides() {
        let upstream = RawUpstream::start(|conversation| {
            conversation.read_head()?;
            conversation.write(b"nonsense")?;
            conversation.reset()
        });
        let mut stream = TcpStream::connect(upstream.address()).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(b"nonsense".starts_with(&answer), "{answer:?}");
        crate::wait::until_true("the end of the connection", || upstream.connected() == 0);
    }
}
