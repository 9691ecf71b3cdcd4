//! The protocol that a TLS handshake agreed on (ALPN) is the one that is spoken, on every TLS listener for HTTP.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConnection, StreamOwned};
use tempfile::tempdir;
use testkit::http2::{END_HEADERS, END_STREAM, FrameHeader, frame_kind, write_frame, write_start};

use crate::harness::{DEADLINE, TollgateProcess, text};
use crate::server::access::{certificate, client_config};

/// The version that a client speaks, whatever it agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpokenVersion {
    Http1,
    Http2,
}

use SpokenVersion::{Http1, Http2};

impl SpokenVersion {
    /// The bytes of a client's first request.
    fn request(self) -> Vec<u8> {
        match self {
            Http1 => b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec(),
            Http2 => {
                let mut out = Vec::new();
                write_start(&mut out);
                // GET https://localhost/
                let fields = *b"\x82\x87\x84\x01\x09localhost";
                let flags = END_STREAM | END_HEADERS;
                write_frame(&mut out, frame_kind::HEADERS, flags, 1, &fields);
                out
            }
        }
    }

    /// Returns true if these bytes have the head of a response.
    fn is_answered(self, bytes: &[u8]) -> bool {
        match self {
            // A malformed request is answered 400: that is no service.
            Http1 => bytes.starts_with(b"HTTP/1.1 ") && !bytes.starts_with(b"HTTP/1.1 400"),
            Http2 => {
                let mut rest = bytes;
                while let Some((head, payload)) = FrameHeader::read(rest) {
                    if head.kind == frame_kind::HEADERS {
                        return true;
                    }
                    let Some(next) = payload.get(head.payload_bytes..) else { return false };
                    rest = next;
                }
                false
            }
        }
    }
}

/// A server whose data listeners all have TLS, and its certificate.
fn start_with_tls(upstream: &str) -> (TollgateProcess, CertificateDer<'static>) {
    let directory = tempdir().unwrap();
    let (root, [cert, key]) = certificate(directory.path());
    let server = TollgateProcess::start(&[
        "--limit",
        "9/hour",
        "--gateway",
        "127.0.0.1:0",
        "--upstream",
        upstream,
        "--tls-cert",
        text(&cert),
        "--tls-key",
        text(&key),
    ]);
    (server, root)
}

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// A client that offers these protocols.
fn connect(root: &CertificateDer<'static>, address: SocketAddr, offered: &[&str]) -> TlsStream {
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(client_config(root.clone(), offered), name).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    StreamOwned::new(session, stream)
}

/// Sends bytes, in two pieces. Returns true if the response begins before the connection ends.
fn is_served(stream: &mut TlsStream, request: &[u8], spoken: SpokenVersion) -> bool {
    let mut received = Vec::new();
    let (first, second) = request.split_at(request.len() / 2);
    for piece in [first, second] {
        // The server may have closed after the first.
        let sent = stream.write_all(piece).and_then(|()| stream.flush());
        if sent.is_err() {
            break;
        }
    }
    let mut buffer = [0; 4_096];
    while !spoken.is_answered(&received) {
        match stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(bytes) => received.extend_from_slice(&buffer[..bytes]),
            Err(error) => {
                let timed_out = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(!timed_out, "neither answered nor closed: {received:?}");
                return false;
            }
        }
    }
    true
}

#[test]
fn the_negotiated_protocol_is_the_one_that_is_spoken() {
    let (server, root) = start_with_tls("http://127.0.0.1:1");
    // Offered protocols, the spoken version, and whether it is served
    type VersionRow<'a> = (&'a [&'a str], SpokenVersion, bool);
    let rows: [VersionRow<'_>; 8] = [
        (&["h2"], Http2, true),
        (&["h2", "http/1.1"], Http2, true),
        (&["http/1.1"], Http1, true),
        (&[], Http1, true),
        (&[], Http2, true),
        (&["h2"], Http1, false),
        (&["h2", "http/1.1"], Http1, false),
        (&["http/1.1"], Http2, false),
    ];
    for (offered, spoken, want) in rows {
        for (name, address) in [("http", server.http()), ("gateway", server.gateway())] {
            let mut stream = connect(&root, address, offered);
            let served = is_served(&mut stream, &spoken.request(), spoken);
            assert_eq!(served, want, "{name}: {offered:?}, {spoken:?}");
        }
    }
    // gRPC is spoken over HTTP/2 alone.
    for (offered, spoken, want) in
        [(&["h2"][..], Http2, true), (&[], Http2, true), (&["h2"], Http1, false)]
    {
        let mut stream = connect(&root, server.grpc(), offered);
        let served = is_served(&mut stream, &spoken.request(), spoken);
        assert_eq!(served, want, "gRPC: {offered:?}, {spoken:?}");
    }
}

#[test]
fn a_connection_that_agreed_on_http1_stays_with_it() {
    let (server, root) = start_with_tls("http://127.0.0.1:1");
    for address in [server.http(), server.gateway()] {
        let mut stream = connect(&root, address, &["http/1.1"]);
        assert!(is_served(&mut stream, &Http1.request(), Http1), "{address}");
        assert!(!is_served(&mut stream, &Http2.request(), Http2), "{address}");
    }
}

#[test]
fn a_connection_that_agreed_on_http1_becomes_a_tunnel() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    let (server, root) = start_with_tls(&upstream);
    // Switches protocols and says back what comes.
    let echo = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        read_until(&mut stream, b"\r\n\r\n");
        let head =
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        stream.write_all(head).unwrap();
        let said = read_until(&mut stream, b"ping");
        stream.write_all(&said).unwrap();
    });
    let mut stream = connect(&root, server.gateway(), &["http/1.1"]);
    let head = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    stream.write_all(head).unwrap();
    let answer = read_until(&mut stream, b"\r\n\r\n");
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
    stream.write_all(b"ping").unwrap();
    assert_eq!(read_until(&mut stream, b"ping"), b"ping");
    echo.join().unwrap();
}

/// Reads up to the end of a text.
fn read_until(stream: &mut impl Read, end: &[u8]) -> Vec<u8> {
    let (mut received, mut byte) = (Vec::new(), [0]);
    while !received.ends_with(end) {
        stream.read_exact(&mut byte).unwrap();
        received.push(byte[0]);
    }
    received
}
