//! A connection to one server, made ready: TCP, TLS or a Unix socket; then who we are, which
//! database, what the server is, and the script.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use crate::error::{ErrorClass, StoreError};
use crate::transport::batch::Script;
use crate::transport::command::RedisCommand;
use crate::transport::host_addresses::HostAddresses;
use crate::transport::reply_reader::{RedisReply, RedisReplyReader};
use crate::transport::tls;
use crate::transport::url::{Address, Login, TlsFiles};
use crate::transport::value::RedisValue;

/// From the first packet to a connection that is ready: at least so long, longer with TLS, whose ways
/// and sums add up, longer for callers with more patience, and never longer than the last.
const READY_MIN: Duration = Duration::from_millis(250);
const READY_TLS_MIN: Duration = Duration::from_secs(1);
const READY_CALLER_TIMEOUTS: u32 = 5;
const READY_MAX: Duration = Duration::from_secs(5);
/// Addresses of one host that are tried in one attempt.
const ADDRESSES_MAX: usize = 4;

/// A stream of bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection, and what was read of it beyond the last reply.
pub(crate) struct Connection {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) reader: RedisReplyReader,
}

/// The options of the handshake.
#[derive(Clone, Debug)]
pub(crate) struct HandshakeOptions {
    pub(crate) login: Login,
    pub(crate) database: u32,
    pub(crate) connector: Connector,
    /// A replica will not do. Nodes of a cluster redirect by themselves.
    pub(crate) must_be_primary: bool,
}

/// The way to reach servers. Clones share the known addresses of hosts.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    tls: Option<TlsFiles>,
    timeout: Duration,
    host_addresses: Arc<HostAddresses>,
}

impl Connector {
    /// `caller_timeout`: how long callers wait for an answer.
    pub(crate) fn new(tls: Option<TlsFiles>, caller_timeout: Duration) -> Connector {
        let least = if tls.is_some() { READY_TLS_MIN } else { READY_MIN };
        let within = least.max(caller_timeout.saturating_mul(READY_CALLER_TIMEOUTS)).min(READY_MAX);
        Connector { tls, timeout: within, host_addresses: Arc::default() }
    }
}

/// Connects and makes the handshake. A different `turn` tries another address of the host first.
pub(crate) async fn connect(
    address: &Address,
    introduction: &HandshakeOptions,
    script: &Script,
    turn: usize,
) -> Result<Connection, StoreError> {
    let reach = &introduction.connector;
    with_timeout(address, reach, async {
        let mut connection = open(address, reach, turn).await?;
        perform_handshake(&mut connection, introduction, script).await?;
        Ok(connection)
    })
    .await
}

/// Connects and asks one question: how sentinels and nodes of a cluster are asked about others.
pub(crate) async fn ask_once(
    address: &Address,
    login: &Login,
    reach: &Connector,
    turn: usize,
    question: RedisCommand,
) -> Result<RedisValue, StoreError> {
    with_timeout(address, reach, async {
        let mut connection = open(address, reach, turn).await?;
        let mut commands = Vec::from_iter(auth(login));
        commands.push(question);
        let replies = connection.ask(&commands).await?;
        let mut last = RedisValue::Nil;
        for reply in replies {
            match reply {
                RedisReply::Value(value) => last = value,
                RedisReply::Error(text) => return Err(StoreError::of_reply(&text)),
            }
        }
        Ok(last)
    })
    .await
}

async fn with_timeout<T>(
    address: &Address,
    reach: &Connector,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match timeout(reach.timeout, work).await {
        Ok(result) => result,
        Err(_) => {
            let ms = reach.timeout.as_millis();
            let detail = format!("{address} did not become ready within {ms} ms");
            Err(StoreError::new(ErrorClass::Connect, detail))
        }
    }
}

async fn open(address: &Address, reach: &Connector, turn: usize) -> Result<Connection, StoreError> {
    let failed = |error: io::Error| {
        StoreError::new(ErrorClass::Connect, format!("{address} cannot be reached: {error}"))
    };
    let stream: Box<dyn Stream> = match address {
        #[cfg(unix)]
        Address::Unix(path) => Box::new(UnixStream::connect(path).await.map_err(failed)?),
        #[cfg(not(unix))]
        Address::Unix(_) => return Err(failed(io::ErrorKind::Unsupported.into())),
        Address::Tcp { host, port } => {
            let lookup = async { Ok(lookup_host((host.as_str(), *port)).await?.collect()) };
            // The rest of the time is left for what was known before.
            let found =
                reach.host_addresses.addresses(host, *port, lookup, reach.timeout / 2).await;
            let stream = dial(&found.map_err(failed)?, turn, reach.timeout).await;
            let stream = stream.map_err(failed)?;
            // What we write is complete: waiting for more would only add to the answer's time.
            stream.set_nodelay(true).map_err(failed)?;
            let at = stream.peer_addr().map_err(failed)?;
            let stream: Box<dyn Stream> = match &reach.tls {
                None => Box::new(stream),
                Some(files) => tls::start(stream, host, files).await.map_err(failed)?,
            };
            reach.host_addresses.record_reached(host, *port, at);
            stream
        }
    };
    Ok(Connection { stream, reader: RedisReplyReader::default() })
}

/// The first of the addresses that answers. One that swallows packets does not use up the time of the
/// others.
async fn dial(addresses: &[SocketAddr], turn: usize, within: Duration) -> io::Result<TcpStream> {
    let tried = addresses.len().min(ADDRESSES_MAX);
    // One part is left for what follows.
    let part = if tried == 1 { within } else { within / (tried as u32 + 1) };
    let mut last = io::Error::other("the host has no address");
    for index in 0..tried {
        let address = addresses[turn.wrapping_add(index) % addresses.len()];
        match timeout(part, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

/// Everything that has to be true before the first call.
async fn perform_handshake(
    connection: &mut Connection,
    introduction: &HandshakeOptions,
    script: &Script,
) -> Result<(), StoreError> {
    let mut commands = Vec::from_iter(auth(&introduction.login));
    if introduction.database > 0 {
        commands.push(RedisCommand::new("SELECT").number(introduction.database.into()));
    }
    let required = commands.len();
    commands.push(RedisCommand::new("CLIENT").arg("SETNAME").arg("tollgate"));
    commands.push(RedisCommand::new("ROLE"));
    let replies = connection.ask(&commands).await?;
    check_handshake_replies(&replies, required)?;
    // Not with the others: a server hangs up on strangers who send as much before they log in, and
    // then nobody would learn that a password is wrong.
    check_handshake_replies(&connection.ask(&[(script.load)()]).await?, 0)?;
    let is_replica = matches!(replies.last(), Some(RedisReply::Value(RedisValue::Array(role)))
        if matches!(role.first(), Some(RedisValue::BulkString(name)) if name == b"slave"));
    if is_replica && introduction.must_be_primary {
        return Err(StoreError::new(ErrorClass::ReadOnly, "the server is a replica"));
    }
    Ok(())
}

/// Checks the first replies; the first `required` of them must succeed. A user who may only run
/// scripts is enough; a server that cannot answer is not.
fn check_handshake_replies(replies: &[RedisReply], required: usize) -> Result<(), StoreError> {
    for (index, reply) in replies.iter().enumerate() {
        let RedisReply::Error(text) = reply else { continue };
        let error = StoreError::of_reply(text);
        if index < required || error.class.opens_breaker() && error.class != ErrorClass::NoPerm {
            return Err(error);
        }
    }
    Ok(())
}

fn auth(login: &Login) -> Option<RedisCommand> {
    let password = login.password.as_ref()?;
    let mut auth = RedisCommand::new("AUTH");
    if let Some(user) = &login.user {
        auth.push(user);
    }
    Some(auth.arg(password))
}

impl Connection {
    /// Sends commands and waits for all replies. The caller sets the deadline.
    async fn ask(&mut self, commands: &[RedisCommand]) -> Result<Vec<RedisReply>, StoreError> {
        let mut bytes = Vec::new();
        commands.iter().for_each(|command| command.write_to(&mut bytes));
        // A server that is full answers before it reads: its words count more than the write.
        let written = self.stream.write_all(&bytes).await;
        let flushed = self.stream.flush().await;
        let mut replies = Vec::with_capacity(commands.len());
        let mut piece = vec![0; 16 * 1024];
        while replies.len() < commands.len() {
            match self.reader.next() {
                Ok(Some(RedisReply::Error(text))) if is_closing_error(&text) => {
                    return Err(StoreError::of_reply(&text));
                }
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => {
                    let length = self.stream.read(&mut piece).await.map_err(connection_closed)?;
                    if length == 0 {
                        written.and(flushed).map_err(connection_closed)?;
                        return Err(connection_closed(io::ErrorKind::UnexpectedEof.into()));
                    }
                    self.reader.push(&piece[..length]);
                }
                Err(broken) => return Err(StoreError::new(ErrorClass::Protocol, broken.0)),
            }
        }
        Ok(replies)
    }
}

/// Said once, instead of all replies.
fn is_closing_error(text: &str) -> bool {
    ErrorClass::of_reply(text) == ErrorClass::MaxClients
}

/// The error of a connection that ended.
pub(crate) fn connection_closed(error: io::Error) -> StoreError {
    StoreError::new(ErrorClass::Closed, format!("the connection ended: {error}"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_address_that_swallows_packets_leaves_time_for_the_next() {
        let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
        let deaf = (deaf.local_addr().unwrap(), deaf);
        // Its line is full: further connections get no answer at all.
        let fill: Vec<_> = (0..2000)
            .map_while(|_| {
                std::net::TcpStream::connect_timeout(&deaf.0, Duration::from_millis(50)).ok()
            })
            .collect();
        let well = TcpListener::bind("127.0.0.1:0").unwrap();
        let well_at = well.local_addr().unwrap();
        let reach = Connector::new(None, Duration::from_millis(10));
        for turn in 0..3 {
            let within = reach.timeout;
            let dialled = timeout(within, dial(&[deaf.0, well_at], turn, within)).await;
            let stream = dialled.expect("within the time for all of it").unwrap();
            assert_eq!(stream.peer_addr().unwrap(), well_at);
        }
        drop(fill);
    }

    #[tokio::test]
    async fn where_a_host_was_reached_is_known_when_its_name_is_not() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = server.local_addr().unwrap();
        let address = Address::Tcp { host: "localhost".into(), port: at.port() };
        let reach = Connector::new(None, Duration::from_secs(1));
        open(&address, &reach, 0).await.unwrap();
        let shared = reach.clone();
        let lookup = std::future::ready(Err(io::Error::other("no such name")));
        let found =
            shared.host_addresses.addresses("localhost", at.port(), lookup, reach.timeout).await;
        assert_eq!(found.unwrap(), [at]);
    }

    #[test]
    fn far_away_and_secret_takes_longer() {
        for (tls, patience_ms, ms) in [
            (false, 10, 250),
            (false, 100, 500),
            (true, 10, 1000),
            (true, 400, 2000),
            (false, 60_000, 5000),
        ] {
            let tls = tls.then(TlsFiles::default);
            let reach = Connector::new(tls, Duration::from_millis(patience_ms));
            assert_eq!(reach.timeout, Duration::from_millis(ms));
        }
    }
}
