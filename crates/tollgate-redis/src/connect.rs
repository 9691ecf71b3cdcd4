//! A connection to one server, made ready: TCP, TLS or a Unix socket; then who we are, which
//! database, what the server is, and the script.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::{Cmd, Value};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::batch::Script;
use crate::error::{ErrorClass, StoreError};
use crate::known::Known;
use crate::url::{Address, Login, TlsFiles};
use crate::wire::{Reader, Reply};

/// From the first packet to a connection that is ready: at least so long, longer with TLS, whose ways
/// and sums add up, longer for callers with more patience, and never longer than the last.
const READY_MIN: Duration = Duration::from_millis(250);
const READY_TLS_MIN: Duration = Duration::from_secs(1);
const READY_PATIENCES: u32 = 5;
const READY_MAX: Duration = Duration::from_secs(5);
/// Addresses of one host that are tried in one attempt.
const ADDRESSES_MAX: usize = 4;

/// What carries bytes both ways.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection, and what was read of it beyond the last reply.
pub(crate) struct Connection {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) reader: Reader,
}

/// How to introduce ourselves.
#[derive(Clone, Debug)]
pub(crate) struct Introduction {
    pub(crate) login: Login,
    pub(crate) database: u32,
    pub(crate) reach: Reach,
    /// A replica will not do. Nodes of a cluster redirect by themselves.
    pub(crate) must_be_primary: bool,
}

/// How servers are reached. Clones share what is known of hosts.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    tls: Option<TlsFiles>,
    within: Duration,
    known: Arc<Known>,
}

impl Reach {
    /// `patience`: how long callers wait for an answer.
    pub(crate) fn new(tls: Option<TlsFiles>, patience: Duration) -> Reach {
        let least = if tls.is_some() { READY_TLS_MIN } else { READY_MIN };
        let within = least.max(patience.saturating_mul(READY_PATIENCES)).min(READY_MAX);
        Reach { tls, within, known: Arc::default() }
    }
}

/// Connects and makes ready. `turn`: another each time, so that another address of the host is tried
/// first.
pub(crate) async fn connect(
    address: &Address,
    introduction: &Introduction,
    script: &Script,
    turn: usize,
) -> Result<Connection, StoreError> {
    let reach = &introduction.reach;
    within(address, reach, async {
        let mut connection = open(address, reach, turn).await?;
        introduce(&mut connection, introduction, script).await?;
        Ok(connection)
    })
    .await
}

/// Connects and asks one question: how sentinels and nodes of a cluster are asked about others.
pub(crate) async fn ask_once(
    address: &Address,
    login: &Login,
    reach: &Reach,
    turn: usize,
    question: Cmd,
) -> Result<Value, StoreError> {
    within(address, reach, async {
        let mut connection = open(address, reach, turn).await?;
        let mut commands = Vec::from_iter(auth(login));
        commands.push(question);
        let replies = connection.ask(&commands).await?;
        let mut last = Value::Nil;
        for reply in replies {
            match reply {
                Reply::Value(value) => last = value,
                Reply::Error(text) => return Err(StoreError::of_reply(&text)),
            }
        }
        Ok(last)
    })
    .await
}

async fn within<T>(
    address: &Address,
    reach: &Reach,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match timeout(reach.within, work).await {
        Ok(result) => result,
        Err(_) => {
            let ms = reach.within.as_millis();
            let detail = format!("{address} did not become ready within {ms} ms");
            Err(StoreError::new(ErrorClass::Connect, detail))
        }
    }
}

async fn open(address: &Address, reach: &Reach, turn: usize) -> Result<Connection, StoreError> {
    let failed = |error: io::Error| {
        StoreError::new(ErrorClass::Connect, format!("{address} cannot be reached: {error}"))
    };
    let stream: Box<dyn Stream> = match address {
        Address::Unix(path) => Box::new(UnixStream::connect(path).await.map_err(failed)?),
        Address::Tcp { host, port } => {
            let lookup = async { Ok(lookup_host((host.as_str(), *port)).await?.collect()) };
            // The rest of the time is left for what was known before.
            let found = reach.known.addresses(host, *port, lookup, reach.within / 2).await;
            let stream = dial(&found.map_err(failed)?, turn, reach.within).await;
            let stream = stream.map_err(failed)?;
            // What we write is complete: waiting for more would only add to the answer's time.
            stream.set_nodelay(true).map_err(failed)?;
            let at = stream.peer_addr().map_err(failed)?;
            let stream: Box<dyn Stream> = match &reach.tls {
                None => Box::new(stream),
                Some(files) => secure(stream, host, files).await.map_err(failed)?,
            };
            reach.known.reached(host, *port, at);
            stream
        }
    };
    Ok(Connection { stream, reader: Reader::default() })
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

async fn secure(stream: TcpStream, host: &str, files: &TlsFiles) -> io::Result<Box<dyn Stream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let files = files.clone();
    // Read anew each time, so that renewed files are found; and elsewhere, because disks are slow.
    let config = tokio::task::spawn_blocking(move || tls_config(&files));
    let config = config.await.map_err(io::Error::other)??;
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
}

fn tls_config(files: &TlsFiles) -> io::Result<ClientConfig> {
    let read = |path: &std::path::Path| {
        std::fs::read(path)
            .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
    };
    let roots = match &files.ca_file {
        None => system_roots().clone(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for cert in CertificateDer::pem_slice_iter(&read(path)?) {
                let cert = cert.map_err(io::Error::other)?;
                roots.add(cert).map_err(io::Error::other)?;
            }
            roots
        }
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    match (&files.cert_file, &files.key_file) {
        (Some(cert), Some(key)) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(cert)?).collect();
            let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(io::Error::other)?;
            let chain = chain.map_err(io::Error::other)?;
            builder.with_client_auth_cert(chain, key).map_err(io::Error::other)
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

/// What the system trusts, read once.
fn system_roots() -> &'static RootCertStore {
    static ROOTS: OnceLock<RootCertStore> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    })
}

/// Everything that has to be true before the first call.
async fn introduce(
    connection: &mut Connection,
    introduction: &Introduction,
    script: &Script,
) -> Result<(), StoreError> {
    let mut commands = Vec::from_iter(auth(&introduction.login));
    if introduction.database > 0 {
        commands.push(redis::cmd("SELECT").arg(introduction.database).take());
    }
    let required = commands.len();
    commands.push(redis::cmd("CLIENT").arg("SETNAME").arg("tollgate").take());
    commands.push(redis::cmd("ROLE"));
    let replies = connection.ask(&commands).await?;
    well_received(&replies, required)?;
    // Not with the others: a server hangs up on strangers who send as much before they log in, and
    // then nobody would learn that a password is wrong.
    well_received(&connection.ask(&[(script.load)()]).await?, 0)?;
    let is_replica = matches!(replies.last(), Some(Reply::Value(Value::Array(role)))
        if matches!(role.first(), Some(Value::BulkString(name)) if name == b"slave"));
    if is_replica && introduction.must_be_primary {
        return Err(StoreError::new(ErrorClass::ReadOnly, "the server is a replica"));
    }
    Ok(())
}

/// Whether what was asked first was done, so many of it without exception. A user who may run scripts
/// and nothing else is enough; a server that cannot answer is not.
fn well_received(replies: &[Reply], required: usize) -> Result<(), StoreError> {
    for (index, reply) in replies.iter().enumerate() {
        let Reply::Error(text) = reply else { continue };
        let error = StoreError::of_reply(text);
        if index < required || error.class.opens_breaker() && error.class != ErrorClass::NoPerm {
            return Err(error);
        }
    }
    Ok(())
}

fn auth(login: &Login) -> Option<Cmd> {
    let password = login.password.as_ref()?;
    let mut auth = redis::cmd("AUTH");
    if let Some(user) = &login.user {
        auth.arg(user);
    }
    Some(auth.arg(password).take())
}

impl Connection {
    /// Sends commands and waits for all replies. Whoever calls it has a deadline.
    async fn ask(&mut self, commands: &[Cmd]) -> Result<Vec<Reply>, StoreError> {
        let mut bytes = Vec::new();
        commands.iter().for_each(|command| command.write_packed_command(&mut bytes));
        // A server that is full answers before it reads: its words count more than the write.
        let written = self.stream.write_all(&bytes).await;
        let flushed = self.stream.flush().await;
        let mut replies = Vec::with_capacity(commands.len());
        let mut piece = vec![0; 16 * 1024];
        while replies.len() < commands.len() {
            match self.reader.next() {
                Ok(Some(Reply::Error(text))) if is_farewell(&text) => {
                    return Err(StoreError::of_reply(&text));
                }
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => {
                    let length = self.stream.read(&mut piece).await.map_err(closed)?;
                    if length == 0 {
                        written.and(flushed).map_err(closed)?;
                        return Err(closed(io::ErrorKind::UnexpectedEof.into()));
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
fn is_farewell(text: &str) -> bool {
    ErrorClass::of_reply(text) == ErrorClass::MaxClients
}

/// Of a connection that ended.
pub(crate) fn closed(error: io::Error) -> StoreError {
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
        let reach = Reach::new(None, Duration::from_millis(10));
        for turn in 0..3 {
            let within = reach.within;
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
        let reach = Reach::new(None, Duration::from_secs(1));
        open(&address, &reach, 0).await.unwrap();
        let shared = reach.clone();
        let lookup = std::future::ready(Err(io::Error::other("no such name")));
        let found = shared.known.addresses("localhost", at.port(), lookup, reach.within).await;
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
            let reach = Reach::new(tls, Duration::from_millis(patience_ms));
            assert_eq!(reach.within, Duration::from_millis(ms));
        }
    }
}
