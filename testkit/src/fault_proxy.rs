//! A TCP proxy that injects faults between a client and a server: delays, silence, broken and wrong replies.
//!
//! The fault is a mode that may change at any time. It applies to all bytes from then on, also in connections that
//! are already open. Each connection has three threads: one for requests, one that reads replies, and one that
//! sends them when they are due.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use crate::random::SplitMix64;
use crate::wait;

/// The fault that the proxy injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultMode {
    /// No fault: bytes pass unchanged.
    Pass,
    /// Every piece of a reply is delayed by `by` plus a random time up to `jitter`.
    Delay {
        /// The shortest delay.
        by: Duration,
        /// The longest random addition.
        jitter: Duration,
    },
    /// Connections are accepted and nothing is read, as in a network partition.
    BlackHole,
    /// New connections are reset at once, and so are those that exist.
    Refuse,
    /// The first half of a reply, then a reset.
    ResetMidReply,
    /// The first half of a reply, then the end of the stream; the other direction stays open.
    HalfClose,
    /// Replies come one byte at a time, each a packet of its own.
    OneByteWrites,
    /// Noise in place of each reply, as long as the reply.
    Garbage,
    /// All of a reply but its last byte, then an orderly end.
    Truncate,
}

/// The proxy; it and its connections end when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    shared: Arc<FaultProxyState>,
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

/// Maximum number of connections; one more is closed at once. Tests of floods stay below it.
const CONNECTIONS_MAX: usize = 4_096;

/// Interval at which a thread on a silent socket checks if the mode changed.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum number of delayed pieces of reply on one connection; reading from the server pauses then.
const PIECES_MAX: usize = 1_024;

/// A piece of reply, at most 16 KiB, with the instant at which it is due.
type DueReplyPiece = (Instant, Vec<u8>);

#[derive(Debug)]
struct FaultProxyState {
    mode: Mutex<FaultMode>,
    target: Mutex<SocketAddr>,
    stopped: AtomicBool,
    accepted: AtomicU64,
    /// The threads of open connections. Bound: [`CONNECTIONS_MAX`].
    open: Mutex<Vec<JoinHandle<()>>>,
    random: Mutex<SplitMix64>,
}

impl FaultProxy {
    /// Starts a proxy on a free loopback port in front of `target`, without a fault.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    #[must_use]
    pub fn start(target: SocketAddr) -> FaultProxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(FaultProxyState {
            mode: Mutex::new(FaultMode::Pass),
            target: Mutex::new(target),
            stopped: AtomicBool::new(false),
            accepted: AtomicU64::new(0),
            open: Mutex::default(),
            random: Mutex::new(SplitMix64::seeded(1)),
        });
        let accepting = Some(thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared)
        }));
        FaultProxy { shared, address, accepting }
    }

    /// The address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address as a `redis://` URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Sets the fault from now on.
    pub fn set_mode(&self, mode: FaultMode) {
        *lock(&self.shared.mode) = mode;
    }

    /// Sets the server for new connections.
    pub fn retarget(&self, target: SocketAddr) {
        *lock(&self.shared.target) = target;
    }

    /// Number of connections that clients made so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Number of open connections.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        let mut open = lock(&self.shared.open);
        open.retain(|carrier| !carrier.is_finished());
        open.len()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        let _ = self.accepting.take().map(JoinHandle::join);
        for carrier in std::mem::take(&mut *lock(&self.shared.open)) {
            let _ = carrier.join();
        }
    }
}

impl FaultProxyState {
    fn mode(&self) -> FaultMode {
        *lock(&self.mode)
    }

    /// The delay of a piece of reply that arrives now.
    fn delay(&self) -> Duration {
        let FaultMode::Delay { by, jitter } = self.mode() else { return Duration::ZERO };
        let more_us = lock(&self.random).between(0, jitter.as_micros() as u64);
        by + Duration::from_micros(more_us)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, shared: &Arc<FaultProxyState>) {
    for client in listener.incoming().flatten() {
        if shared.is_stopped() {
            return;
        }
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        let mut open = lock(&shared.open);
        open.retain(|carrier| !carrier.is_finished());
        if shared.mode() == FaultMode::Refuse || open.len() >= CONNECTIONS_MAX {
            reset(&client);
            continue;
        }
        let shared = shared.clone();
        open.push(thread::spawn(move || carry_connection(client, &shared)));
    }
}

/// Forwards one connection until either side or a fault ends it.
fn carry_connection(client: TcpStream, shared: &FaultProxyState) {
    // In a black hole the server must not see a connection either.
    if !wait_while(shared, FaultMode::BlackHole) {
        return;
    }
    let target = *lock(&shared.target);
    let Ok(server) = TcpStream::connect_timeout(&target, Duration::from_secs(1)) else {
        return reset(&client);
    };
    for socket in [&client, &server] {
        let _ = socket.set_nodelay(true);
        let _ = socket.set_read_timeout(Some(POLL_INTERVAL));
    }
    let over = AtomicBool::new(false);
    let (sender, replies) = sync_channel(PIECES_MAX);
    thread::scope(|scope| {
        scope.spawn(|| {
            repeat_until_over(&over, || forward_request_piece(&client, &server, shared));
            let _ = server.shutdown(Shutdown::Both);
        });
        scope.spawn(|| {
            repeat_until_over(&over, || queue_reply_piece(&server, &sender, shared));
            drop(sender);
        });
        while let Ok((due, mut piece)) = replies.recv() {
            wait::pause(due.saturating_duration_since(wait::now()));
            if !send_reply_piece(&client, &mut piece, shared) {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        // A thread that waits for room in the channel would wait for ever.
        drop(replies);
    });
    // Whichever of the three threads saw it first: a refused client is reset.
    if shared.mode() == FaultMode::Refuse {
        reset(&client);
    }
}

/// Repeats the step until it returns false or the other direction has ended.
fn repeat_until_over(over: &AtomicBool, mut step: impl FnMut() -> bool) {
    let mut goes_on = true;
    while goes_on {
        goes_on = step() && !over.load(Ordering::Relaxed);
    }
}

/// Forwards one piece from the client to the server. Returns false when the connection has ended.
fn forward_request_piece(
    client: &TcpStream,
    mut server: &TcpStream,
    shared: &FaultProxyState,
) -> bool {
    let mut piece = [0; 16 << 10];
    match receive(client, &mut piece, shared) {
        ReceivedPiece::Piece(length) => {
            // Bytes read before the black hole pass after it, as TCP would send them again.
            wait_while(shared, FaultMode::BlackHole) && server.write_all(&piece[..length]).is_ok()
        }
        ReceivedPiece::Nothing => true,
        ReceivedPiece::End => false,
    }
}

/// Reads one piece from the server and queues it until it is due. Returns false at the end.
fn queue_reply_piece(
    server: &TcpStream,
    replies: &SyncSender<DueReplyPiece>,
    shared: &FaultProxyState,
) -> bool {
    let mut piece = [0; 16 << 10];
    match receive(server, &mut piece, shared) {
        ReceivedPiece::Piece(length) => {
            replies.send((wait::now() + shared.delay(), piece[..length].to_vec())).is_ok()
        }
        ReceivedPiece::Nothing => true,
        ReceivedPiece::End => false,
    }
}

/// Sends the client a piece of reply with the current fault. Returns false when the connection has ended.
fn send_reply_piece(mut client: &TcpStream, piece: &mut [u8], shared: &FaultProxyState) -> bool {
    match shared.mode() {
        FaultMode::Pass | FaultMode::Delay { .. } => client.write_all(piece).is_ok(),
        // The black hole began while the piece was queued; TCP sends it again after a partition.
        FaultMode::BlackHole => {
            wait_while(shared, FaultMode::BlackHole) && client.write_all(piece).is_ok()
        }
        FaultMode::Refuse => {
            reset(client);
            false
        }
        FaultMode::ResetMidReply => {
            let _ = client.write_all(&piece[..piece.len() / 2]);
            reset(client);
            false
        }
        FaultMode::HalfClose => {
            let _ = client.write_all(&piece[..piece.len() / 2]);
            let _ = client.shutdown(Shutdown::Write);
            wait_while(shared, FaultMode::HalfClose);
            false
        }
        FaultMode::OneByteWrites => {
            piece.chunks(1).all(|byte| client.write_all(byte).is_ok() && client.flush().is_ok())
        }
        FaultMode::Garbage => {
            let mut chance = lock(&shared.random);
            piece.iter_mut().for_each(|byte| *byte = chance.number() as u8);
            drop(chance);
            client.write_all(piece).is_ok()
        }
        FaultMode::Truncate => {
            let _ = client.write_all(&piece[..piece.len() - 1]);
            false
        }
    }
}

enum ReceivedPiece {
    Piece(usize),
    Nothing,
    End,
}

fn receive(mut from: &TcpStream, piece: &mut [u8], shared: &FaultProxyState) -> ReceivedPiece {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    if !wait_while(shared, FaultMode::BlackHole) {
        return ReceivedPiece::End;
    }
    if shared.mode() == FaultMode::Refuse {
        reset(from);
        return ReceivedPiece::End;
    }
    match from.read(piece) {
        Ok(0) => ReceivedPiece::End,
        Ok(length) => ReceivedPiece::Piece(length),
        Err(error) if matches!(error.kind(), WouldBlock | TimedOut | Interrupted) => {
            if shared.is_stopped() { ReceivedPiece::End } else { ReceivedPiece::Nothing }
        }
        Err(_) => ReceivedPiece::End,
    }
}

/// Waits while the proxy is in this mode. Returns false when the proxy is stopped.
fn wait_while(shared: &FaultProxyState, mode: FaultMode) -> bool {
    while shared.mode() == mode && !shared.is_stopped() {
        wait::pause(POLL_INTERVAL);
    }
    !shared.is_stopped()
}

/// Makes the connection end with a reset instead of an orderly close when it is dropped.
fn reset(stream: &TcpStream) {
    let _ = set_socket_linger(stream, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests;
