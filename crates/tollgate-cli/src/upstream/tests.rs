//! The forwarding core against servers on loopback that answer by a script.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tollgate_rules::gateway_settings::{CaFile, HealthProbe, UpstreamVersion};
use tollgate_rules::{UpstreamSettings, UpstreamUrl};

use super::body::BodyStreamError;
use super::registry::UpstreamState;
use super::server_state::ServerState;
use super::upstream_log::UpstreamLog;
use super::{ForwardError, ForwardedResponse, Forwarder, OutgoingBody, UpstreamBody, health_check};

/// What a scripted server does with each request.
#[derive(Clone, Copy)]
enum ServerScript {
    /// Sends these bytes and keeps the connection.
    Send(&'static str),
    /// Sends these bytes and closes the connection.
    SendAndClose(&'static str),
    /// Closes the connection when it has read the request.
    Close,
    /// Reads the request and does nothing.
    Silence,
    /// Answers one request on each connection, and closes it when the next one has come.
    OnceThenClose,
    /// Answers requests of HTTP/1.1. After anything else it sends these bytes and closes.
    Http1Only(&'static str),
}

impl ServerScript {
    /// The bytes that are sent before the connection is closed.
    fn text(self) -> &'static str {
        match self {
            ServerScript::SendAndClose(text) => text,
            _ => "",
        }
    }
}

const OK_TEXT: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const OK: ServerScript = ServerScript::Send(OK_TEXT);

/// A server on loopback, and what it has seen.
struct ScriptedServer {
    url: UpstreamUrl,
    requests: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    /// Connections that began with HTTP/2.
    prefaces: Arc<AtomicUsize>,
    seen: Arc<std::sync::Mutex<String>>,
}

impl ScriptedServer {
    async fn start(script: ServerScript) -> ScriptedServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = url_of(&listener, "http");
        let server = ScriptedServer {
            url,
            requests: Arc::default(),
            connections: Arc::default(),
            prefaces: Arc::default(),
            seen: Arc::default(),
        };
        let (requests, connections) = (server.requests.clone(), server.connections.clone());
        let prefaces = server.prefaces.clone();
        let seen = server.seen.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                let (requests, seen) = (requests.clone(), seen.clone());
                let prefaces = prefaces.clone();
                tokio::spawn(async move {
                    let (mut read, mut answered) = (Vec::new(), 0);
                    loop {
                        let mut part = [0; 4_096];
                        let Ok(count @ 1..) = stream.read(&mut part).await else { return };
                        read.extend_from_slice(&part[..count]);
                        if !read.windows(4).any(|end| end == b"\r\n\r\n") {
                            continue;
                        }
                        requests.fetch_add(1, Ordering::Relaxed);
                        *seen.lock().unwrap() = String::from_utf8_lossy(&read).into_owned();
                        let is_http2 = read.starts_with(b"PRI ");
                        prefaces.fetch_add(usize::from(is_http2), Ordering::Relaxed);
                        read.clear();
                        answered += 1;
                        match script {
                            ServerScript::OnceThenClose if answered > 1 => return,
                            ServerScript::Http1Only(text) if is_http2 => {
                                stream.write_all(text.as_bytes()).await.unwrap();
                                stream.shutdown().await.unwrap();
                                // Closed with bytes unread, the answer could be lost.
                                while let Ok(1..) = stream.read(&mut part).await {}
                                return;
                            }
                            ServerScript::OnceThenClose | ServerScript::Http1Only(_) => {
                                stream.write_all(OK_TEXT.as_bytes()).await.unwrap();
                            }
                            ServerScript::Send(text) => {
                                stream.write_all(text.as_bytes()).await.unwrap();
                            }
                            ServerScript::SendAndClose(text) => {
                                return stream.write_all(text.as_bytes()).await.unwrap();
                            }
                            ServerScript::Close => return,
                            ServerScript::Silence => {}
                        }
                    }
                });
            }
        });
        server
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

fn url_of(listener: &TcpListener, scheme: &str) -> UpstreamUrl {
    let port = listener.local_addr().unwrap().port();
    UpstreamUrl::parse(&format!("{scheme}://127.0.0.1:{port}")).unwrap()
}

/// A URL that refuses connections.
async fn refusing() -> UpstreamUrl {
    url_of(&TcpListener::bind("127.0.0.1:0").await.unwrap(), "http")
}

fn upstream(
    urls: &[&UpstreamUrl],
    change: impl FnOnce(&mut UpstreamSettings),
) -> Arc<UpstreamState> {
    let urls = urls.iter().map(|url| (*url).clone()).collect();
    let mut settings = UpstreamSettings::new("app", urls);
    change(&mut settings);
    Arc::new(UpstreamState::new(&Arc::new(settings), None, &UpstreamLog::default()))
}

/// A body of one piece.
struct TestBody(Option<&'static str>);

impl Body for TestBody {
    type Data = Bytes;
    type Error = BodyStreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, BodyStreamError>>> {
        std::task::Poll::Ready(self.0.take().map(|text| Ok(Frame::data(Bytes::from(text)))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.map_or(0, |text| text.len() as u64))
    }
}

fn request(method: Method, body: Option<&'static str>) -> Request<OutgoingBody> {
    let request = Request::builder().method(method).uri("/path?x=1").header("host", "app.example");
    request.body(OutgoingBody::new(TestBody(body))).unwrap()
}

fn get() -> Request<OutgoingBody> {
    request(Method::GET, None)
}

async fn forward(
    upstream: &Arc<UpstreamState>,
    request: Request<OutgoingBody>,
) -> Result<Response<UpstreamBody>, ForwardError> {
    let forwarded = Forwarder.forward(upstream, request, &|| {}).await;
    forwarded.map(|ForwardedResponse { response, .. }| response).map_err(|failure| failure.error)
}

/// Reads a body to its end.
async fn text_of(mut body: UpstreamBody) -> Result<String, BodyStreamError> {
    let mut text = Vec::new();
    loop {
        match poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            None => return Ok(String::from_utf8(text).unwrap()),
            Some(Err(error)) => return Err(error),
            Some(Ok(frame)) => text.extend(frame.into_data().unwrap_or_default()),
        }
    }
}

async fn read(upstream: &Arc<UpstreamState>, request: Request<OutgoingBody>) -> String {
    match forward(upstream, request).await {
        Ok(response) => text_of(response.into_body()).await.unwrap_or("broken body".into()),
        Err(error) => error.code().into(),
    }
}

#[tokio::test]
async fn a_request_that_was_not_sent_goes_to_another_server() {
    let good = ScriptedServer::start(OK).await;
    let upstream = upstream(&[&refusing().await, &good.url], |_| {});
    // Of two servers the less busy one is chosen: the one that refuses, until it is ejected.
    upstream.servers[1].load.outstanding.fetch_add(1, Ordering::Relaxed);
    for number in 0..20 {
        let request = request(Method::POST, Some("body"));
        assert_eq!(read(&upstream, request).await, "ok", "request {number}");
    }
    assert_eq!(good.requests(), 20);
    // After five failures nothing is sent to it, so there are no further retries.
    assert_eq!(upstream.counters.ejections.load(Ordering::Relaxed), 1);
    assert_eq!(upstream.counters.retries.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn a_retry_after_an_idle_connection_was_closed_opens_a_new_one() {
    const REQUESTS: usize = 8;
    // Each connection answers one request, and closes when the next one comes.
    let server = ScriptedServer::start(ServerScript::OnceThenClose).await;
    let upstream = upstream(&[&server.url], |settings| settings.retries = 1);
    for round in 0..3 {
        // They are all under way at once, and leave as many idle connections.
        let mut bodies = Vec::new();
        for _ in 0..REQUESTS {
            let answer = forward(&upstream, get()).await;
            bodies.push(answer.unwrap_or_else(|error| panic!("round {round}: {error:?}")));
        }
        for response in bodies {
            assert_eq!(text_of(response.into_body()).await.unwrap(), "ok");
        }
    }
    assert_eq!(upstream.counters.ejections.load(Ordering::Relaxed), 0);
    assert_eq!(upstream.counters.retries_refused.load(Ordering::Relaxed), 0);
}

fn grpc(mut request: Request<OutgoingBody>) -> Request<OutgoingBody> {
    request.headers_mut().insert("content-type", "application/grpc+proto".parse().unwrap());
    request
}

#[tokio::test]
async fn grpc_to_servers_of_http1_is_forwarded_and_ejects_nobody() {
    const BAD_REQUEST: &str =
        "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    // The answer to a request that is not HTTP/1.1
    for answer in [ServerScript::SendAndClose(BAD_REQUEST), ServerScript::Close] {
        let servers = [
            ScriptedServer::start(ServerScript::Http1Only(answer.text())).await,
            ScriptedServer::start(ServerScript::Http1Only(answer.text())).await,
        ];
        let upstream = upstream(&[&servers[0].url, &servers[1].url], |_| {});
        for number in 0..32 {
            let request = grpc(request(Method::POST, Some("body")));
            assert_eq!(read(&upstream, request).await, "ok", "request {number}");
        }
        assert_eq!(upstream.counters.ejections.load(Ordering::Relaxed), 0);
        assert_eq!(upstream.counters.retries.load(Ordering::Relaxed), 0);
        assert_eq!(upstream.servers_in(ServerState::Available), 2);
        // A server that showed by its answer that it lacks HTTP/2 is not asked again.
        let asked: usize =
            servers.iter().map(|server| server.prefaces.load(Ordering::Relaxed)).sum();
        assert_eq!(asked, if answer.text().is_empty() { 32 } else { 2 });
    }
}

#[tokio::test]
async fn an_upstream_told_to_speak_http2_fails_where_the_server_lacks_it() {
    let server = ScriptedServer::start(ServerScript::Http1Only("HTTP/1.1 400 Bad\r\n\r\n")).await;
    let upstream = upstream(&[&server.url], |settings| settings.version = UpstreamVersion::Http2);
    for _ in 0..5 {
        assert_eq!(read(&upstream, get()).await, "lacks_http2");
    }
    assert!(upstream.is_without_server());
    let report = &upstream.server_reports()[0];
    assert_eq!(report.state, ServerState::Failing);
    assert_eq!(report.reason.map(|reason| reason.to_string()).as_deref(), Some("lacks_http2"));
    assert!(report.since_unix_ms.is_some());
}

#[tokio::test]
async fn a_request_that_was_sent_is_sent_again_only_if_it_is_safe() {
    // Method, body; the result, requests at the server that closes
    let rows = [
        (Method::POST, Some("body"), "reset", 1),
        (Method::POST, None, "reset", 1),
        (Method::DELETE, None, "reset", 1),
        (Method::GET, Some("body"), "reset", 1),
        (Method::GET, None, "reset", 2),
        (Method::HEAD, None, "reset", 2),
        (Method::OPTIONS, None, "reset", 2),
    ];
    for (method, body, want, sent) in rows {
        let bad = ScriptedServer::start(ServerScript::Close).await;
        let upstream = upstream(&[&bad.url], |_| {});
        let said = read(&upstream, request(method.clone(), body)).await;
        assert_eq!((&*said, bad.requests()), (want, sent), "{method} {body:?}");
    }
}

#[tokio::test]
async fn retries_end_with_their_number_and_with_the_budget() {
    // Retries, percent; requests at the server for one request
    for (retries, percent, sent) in [(0, 10, 1), (1, 10, 2), (2, 10, 3), (2, 0, 1), (10, 10, 11)] {
        let bad = ScriptedServer::start(ServerScript::Close).await;
        let upstream = upstream(&[&bad.url], |settings| {
            settings.retries = retries;
            settings.retry_budget_percent = percent;
        });
        assert_eq!(read(&upstream, get()).await, "reset");
        assert_eq!(bad.requests(), sent, "{retries} retries, {percent} %");
    }
}

#[tokio::test]
async fn a_connection_is_used_again_and_the_request_arrives_as_it_was() {
    let server = ScriptedServer::start(OK).await;
    let upstream = upstream(&[&server.url], |_| {});
    for _ in 0..3 {
        assert_eq!(read(&upstream, get()).await, "ok");
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
    let seen = server.seen.lock().unwrap().clone();
    assert!(seen.starts_with("GET /path?x=1 HTTP/1.1\r\nhost: app.example\r\n"), "{seen}");
}

#[tokio::test]
async fn failures_are_told_apart() {
    let milli = Duration::from_millis(1);
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf";
    let both =
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    // The server; the result
    let rows = [
        (ServerScript::Silence, "response_timeout"),
        (ServerScript::Close, "reset"),
        (ServerScript::Send("nonsense\r\n\r\n"), "invalid_response"),
        (ServerScript::Send(both), "invalid_response"),
        (ServerScript::SendAndClose(head), "broken body"),
    ];
    for (script, want) in rows {
        let server = ScriptedServer::start(script).await;
        let upstream = upstream(&[&server.url], |settings| {
            if matches!(script, ServerScript::Silence) {
                settings.response_timeout = milli;
            }
        });
        assert_eq!(read(&upstream, request(Method::POST, None)).await, want);
        let outstanding = upstream.servers[0].load.outstanding.load(Ordering::Relaxed);
        assert_eq!(outstanding, 0, "{want}");
    }
    let gone = upstream(&[&refusing().await], |_| {});
    assert_eq!(read(&gone, get()).await, "connect_failed");
    let none = upstream(&[], |_| {});
    assert_eq!(read(&none, get()).await, "no_upstream");
}

#[tokio::test]
async fn requests_beyond_the_most_connections_wait_for_one() {
    let server = ScriptedServer::start(OK).await;
    let upstream = upstream(&[&server.url], |settings| {
        settings.connections_max = 1;
        settings.connect_timeout = Duration::from_secs(60);
    });
    // The body is not read yet, so the connection is in use.
    let first = forward(&upstream, get()).await.unwrap();
    let waiting = tokio::spawn({
        let upstream = upstream.clone();
        async move { read(&upstream, get()).await }
    });
    tokio::task::yield_now().await;
    assert_eq!(server.requests(), 1);
    assert_eq!(text_of(first.into_body()).await.unwrap(), "ok");
    assert_eq!(waiting.await.unwrap(), "ok");
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_request_that_waits_too_long_for_a_connection_is_refused() {
    let server = ScriptedServer::start(OK).await;
    let upstream = upstream(&[&server.url], |settings| {
        settings.connections_max = 1;
        settings.connect_timeout = Duration::from_millis(50);
    });
    let first = forward(&upstream, get()).await.unwrap();
    assert_eq!(read(&upstream, get()).await, "upstream_busy");
    drop(first);
    assert_eq!(read(&upstream, get()).await, "ok");
}

#[tokio::test]
async fn active_checks_take_a_server_out_and_bring_it_back() {
    let good = ScriptedServer::start(OK).await;
    let bad = ScriptedServer::start(ServerScript::Send(
        "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
    ))
    .await;
    let probe = HealthProbe {
        path: "/healthz?deep=1".into(),
        interval: Duration::from_secs(3_600),
        timeout: Duration::from_secs(60),
        healthy: 1,
        unhealthy: 2,
    };
    let urls = [&good.url, &bad.url, &refusing().await];
    let upstream = upstream(&urls, |settings| settings.health = Some(probe));
    let available = || -> Vec<bool> {
        upstream.servers.iter().map(|server| server.health.is_available(&|| 0)).collect()
    };
    for want in [[true, true, true], [true, false, false]] {
        for number in 0..3 {
            health_check::check_one(upstream.clone(), number).await;
        }
        assert_eq!(available(), want);
    }
    let seen = good.seen.lock().unwrap().clone();
    assert!(seen.starts_with("GET /healthz?deep=1 HTTP/1.1\r\n"), "{seen}");
    for _ in 0..20 {
        assert_eq!(read(&upstream, get()).await, "ok");
    }
}

/// A certificate authority, and a server with a certificate for `app.internal` that echoes what it sees.
struct EchoServer {
    url: UpstreamUrl,
    ca: CaFile,
    connections: Arc<AtomicUsize>,
}

/// Answers with the version, the target and the host of a request.
async fn echo(request: Request<Incoming>) -> Result<Response<TestEcho>, std::convert::Infallible> {
    let host = request.headers().get("host").map(|host| host.to_str().unwrap().to_string());
    let authority = request.uri().authority().map(ToString::to_string);
    let (version, path) = (request.version(), request.uri().path_and_query().unwrap().to_string());
    let text = format!("{version:?} {path} {}", authority.or(host).unwrap_or_default());
    Ok(Response::new(TestEcho(Some(text.into()))))
}

struct TestEcho(Option<Bytes>);

impl Body for TestEcho {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Ready(self.0.take().map(|text| Ok(Frame::data(text))))
    }
}

impl EchoServer {
    async fn start(tls: Option<&[&[u8]]>) -> EchoServer {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = CertificateParams::new(vec!["app.internal".to_string()]).unwrap();
        let certificate = names.signed_by(&key, &ca).unwrap();
        let acceptor = tls.map(|protocols| {
            let key = PrivatePkcs8KeyDer::from(key.serialize_der());
            let mut config =
                ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                    .with_safe_default_protocol_versions()
                    .unwrap()
                    .with_no_client_auth()
                    .with_single_cert(vec![certificate.der().clone()], key.into())
                    .unwrap();
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            TlsAcceptor::from(Arc::new(config))
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = url_of(&listener, if tls.is_some() { "https" } else { "http" });
        let connections = Arc::new(AtomicUsize::new(0));
        let accepted = connections.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::Relaxed);
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let server = auto::Builder::new(TokioExecutor::new());
                    match acceptor {
                        None => {
                            let stream = TokioIo::new(stream);
                            drop(server.serve_connection(stream, service_fn(echo)).await);
                        }
                        Some(acceptor) => {
                            let Ok(stream) = acceptor.accept(stream).await else { return };
                            let stream = TokioIo::new(stream);
                            drop(server.serve_connection(stream, service_fn(echo)).await);
                        }
                    }
                });
            }
        });
        let ca = CaFile { path: "ca.pem".into(), pem: ca.pem().into_bytes().into() };
        EchoServer { url, ca, connections }
    }
}

#[tokio::test]
async fn the_version_is_chosen_by_settings_server_and_request() {
    const BOTH: &[&[u8]] = &[b"h2", b"http/1.1"];
    const H1: &[&[u8]] = &[b"http/1.1"];
    const H2: &[&[u8]] = &[b"h2"];
    let grpc_web = |mut request: Request<OutgoingBody>| {
        request.headers_mut().insert("content-type", "application/grpc-web+proto".parse().unwrap());
        request
    };
    let upgrade = |mut request: Request<OutgoingBody>| {
        request.headers_mut().insert("connection", "upgrade".parse().unwrap());
        request.headers_mut().insert("upgrade", "websocket".parse().unwrap());
        request
    };
    let echoed = |version: &str| format!("{version} /path?x=1 app.example");
    // Protocols of a TLS server, the setting, the request; the answer
    let rows = [
        (None, UpstreamVersion::Auto, get(), echoed("HTTP/1.1")),
        (None, UpstreamVersion::Auto, grpc(get()), echoed("HTTP/2.0")),
        (None, UpstreamVersion::Auto, grpc_web(get()), echoed("HTTP/1.1")),
        (None, UpstreamVersion::Http1, grpc(get()), echoed("HTTP/1.1")),
        (None, UpstreamVersion::Http2, get(), echoed("HTTP/2.0")),
        (None, UpstreamVersion::Http2, upgrade(get()), echoed("HTTP/2.0")),
        (Some(BOTH), UpstreamVersion::Auto, get(), echoed("HTTP/2.0")),
        (Some(BOTH), UpstreamVersion::Auto, upgrade(get()), echoed("HTTP/1.1")),
        (Some(BOTH), UpstreamVersion::Http1, get(), echoed("HTTP/1.1")),
        (Some(BOTH), UpstreamVersion::Http2, get(), echoed("HTTP/2.0")),
        (Some(H1), UpstreamVersion::Auto, get(), echoed("HTTP/1.1")),
        (Some(H1), UpstreamVersion::Http2, get(), "tls_failed".into()),
        (Some(H2), UpstreamVersion::Auto, upgrade(get()), "tls_failed".into()),
    ];
    for (number, (tls, version, request, want)) in rows.into_iter().enumerate() {
        let server = EchoServer::start(tls).await;
        let upstream = upstream(&[&server.url], |settings| {
            settings.version = version;
            settings.ca_file = Some(server.ca.clone());
            settings.server_name = Some("app.internal".into());
        });
        let has_upgrade = request.headers().contains_key("upgrade");
        assert_eq!(read(&upstream, request).await, want, "row {number}");
        // A server is not to blame for an upgrade that it cannot make.
        let failures = upstream.server_reports()[0].failures;
        assert_eq!(failures > 0, want == "tls_failed" && !has_upgrade, "row {number}");
    }
}

#[tokio::test]
async fn certificates_are_verified_by_authority_and_name() {
    let server = EchoServer::start(Some(&[b"http/1.1"])).await;
    let other = EchoServer::start(None).await;
    // The authority, the name; the beginning of the answer
    let rows = [
        (Some(&server.ca), Some("app.internal"), "HTTP/1.1"),
        (Some(&server.ca), Some("other.internal"), "tls_failed"),
        (Some(&server.ca), None, "tls_failed"),
        (Some(&other.ca), Some("app.internal"), "tls_failed"),
        (None, Some("app.internal"), "tls_failed"),
    ];
    for (number, (ca, name, want)) in rows.into_iter().enumerate() {
        let upstream = upstream(&[&server.url], |settings| {
            settings.ca_file = ca.cloned();
            settings.server_name = name.map(Into::into);
        });
        let said = read(&upstream, get()).await;
        assert!(said.starts_with(want), "row {number}: {said}");
    }
}

#[tokio::test]
async fn requests_at_once_share_an_http2_connection_up_to_its_streams() {
    let server = EchoServer::start(None).await;
    let upstream = upstream(&[&server.url], |settings| settings.version = UpstreamVersion::Http2);
    // The bodies are not read yet, so their streams are open.
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..150 {
        let upstream = upstream.clone();
        requests.spawn(async move { forward(&upstream, get()).await });
    }
    let responses: Vec<_> = requests.join_all().await.into_iter().map(Result::unwrap).collect();
    assert!(
        responses
            .iter()
            .all(|one| (one.status(), one.version()) == (StatusCode::OK, Version::HTTP_2))
    );
    assert_eq!(server.connections.load(Ordering::Relaxed), 2);
    for response in responses {
        assert_eq!(text_of(response.into_body()).await.unwrap(), "HTTP/2.0 /path?x=1 app.example");
    }
    assert_eq!(upstream.servers[0].load.outstanding.load(Ordering::Relaxed), 0);
}
