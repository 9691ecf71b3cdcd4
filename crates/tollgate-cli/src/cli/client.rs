//! The HTTP client of commands that talk to a running server: one request, one response, on a connection
//! and a runtime of their own.

use std::error::Error as _;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use http::{Method, Request};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use server_url::ServerUrl;

use super::Report;

pub(crate) mod listener;
mod server_url;
mod tls;
mod token;

/// Largest head of a response, and largest body, in bytes.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Bytes that a segment of a path does not hold as they are.
const NOT_IN_SEGMENT: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'=');

/// A request to a server.
#[derive(Debug)]
pub(crate) struct ClientRequest {
    pub(crate) method: Method,
    /// The path with its query, percent-encoded.
    pub(crate) path: String,
    /// The body, JSON.
    pub(crate) body: Option<String>,
}

/// The response of a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientResponse {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Sends a request with these header fields and reads the response, all within `time`. Blocks the thread.
fn exchange(
    server: &ServerUrl,
    tls: Option<&Arc<ClientConfig>>,
    fields: HeaderMap,
    request: &ClientRequest,
    time: Duration,
) -> io::Result<ClientResponse> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exchange = async {
        #[cfg(unix)]
        if let Some(path) = server.socket() {
            let stream = tokio::net::UnixStream::connect(path).await?;
            return send(stream, server, fields, request).await;
        }
        let stream = TcpStream::connect(server.host()).await?;
        let Some(config) = tls else { return send(stream, server, fields, request).await };
        let name = ServerName::try_from(server.name().to_string()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(config.clone()).connect(name, stream).await?;
        send(stream, server, fields, request).await
    };
    let within = runtime.block_on(async { tokio::time::timeout(time, exchange).await });
    // A name that is still being looked up must not hold the command up.
    runtime.shutdown_background();
    within.unwrap_or_else(|_| {
        Err(io::Error::new(io::ErrorKind::TimedOut, "the answer takes too long"))
    })
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    server: &ServerUrl,
    fields: HeaderMap,
    request: &ClientRequest,
) -> io::Result<ClientResponse> {
    let mut client = http1::Builder::new();
    client.max_buf_size(RESPONSE_BYTES_MAX);
    let (mut sender, connection) =
        client.handshake(TokioIo::new(stream)).await.map_err(|error| io_error(&error))?;
    // Its errors reach the request and the body as well.
    tokio::spawn(connection);
    let request = http_request(server, fields, request).map_err(io::Error::other)?;
    let response = sender.send_request(request).await.map_err(|error| io_error(&error))?;
    let status = response.status().as_u16();
    Ok(ClientResponse { status, body: read_body(response.into_body()).await? })
}

fn http_request(
    server: &ServerUrl,
    fields: HeaderMap,
    request: &ClientRequest,
) -> http::Result<Request<String>> {
    let mut head = Request::builder()
        .method(&request.method)
        .uri(&request.path)
        .header(HOST, server.host())
        .header(CONNECTION, "close");
    if request.body.is_some() {
        head = head.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    let mut request = head.body(request.body.clone().unwrap_or_default())?;
    request.headers_mut().extend(fields);
    Ok(request)
}

async fn read_body(body: Incoming) -> io::Result<String> {
    let mut body = std::pin::pin!(body);
    let mut bytes = Vec::new();
    while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await
    {
        let frame = frame.map_err(|error| io_error(&error))?;
        bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
        if bytes.len() > RESPONSE_BYTES_MAX {
            let problem = format!("the answer has more than {RESPONSE_BYTES_MAX} bytes");
            return Err(io::Error::other(problem));
        }
    }
    String::from_utf8(bytes).map_err(|_| not_http())
}

fn not_http() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what answers is not HTTP")
}

/// The error of the connection behind an error of HTTP, in words for users.
fn io_error(error: &hyper::Error) -> io::Error {
    if error.is_parse_too_large() {
        return io::Error::other("the head of the answer is too large");
    }
    if error.is_parse() || error.is_incomplete_message() {
        return not_http();
    }
    let Some(cause) = error.source().and_then(|cause| cause.downcast_ref::<io::Error>()) else {
        return io::Error::other(error.to_string());
    };
    match cause.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(cause.kind(), "the answer broke off"),
        // A chunk without a length.
        io::ErrorKind::InvalidInput => not_http(),
        kind => io::Error::new(kind, cause.to_string()),
    }
}

/// The value of the `authorization` header field with the token of a file, which `option` named.
pub(crate) fn authorization(path: &Path, option: &str) -> Result<HeaderValue, Report> {
    token::BearerToken::read(path, option).map(|token| token.field())
}

/// Encodes any text as one segment of a path.
pub(crate) fn path_segment(text: &str) -> String {
    utf8_percent_encode(text, NOT_IN_SEGMENT).to_string()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener};
    use std::thread;

    use super::*;

    /// Sends a request to a listener that answers with these bytes, then closes the connection or waits.
    fn answer(bytes: Vec<u8>, closes: bool, time: Duration) -> io::Result<ClientResponse> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap().to_string().parse().unwrap();
        let listener = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            // A client that has seen enough may have closed the connection.
            let _ = stream.write_all(&bytes);
            if closes {
                let _ = stream.shutdown(Shutdown::Write);
            }
            let _ = stream.read(&mut [0]);
        });
        let request = ClientRequest { method: Method::GET, path: "/".into(), body: None };
        let response = exchange(&server, None, HeaderMap::new(), &request, time);
        listener.join().unwrap();
        response
    }

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn segments_of_paths_hold_any_text() {
        let rows = [
            ("user=42", "user=42"),
            ("a/b?c#d%e", "a%2Fb%3Fc%23d%25e"),
            ("path=/x,ip=::1", "path=%2Fx%2Cip=%3A%3A1"),
            ("\r\n é", "%0D%0A%20%C3%A9"),
        ];
        for (text, want) in rows {
            assert_eq!(path_segment(text), want, "{text}");
        }
    }

    #[test]
    fn responses_end_where_they_say() {
        type ExpectedResponse = Result<(u16, &'static str), &'static str>;
        const MORE: ExpectedResponse = Err("takes too long");
        // bytes, whether the connection is closed after them, response or error
        let rows: [(&str, bool, ExpectedResponse); 16] = [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", false, Ok((200, "{}"))),
            ("HTTP/1.1 200 OK\r\nContent-Length:2\r\n\r\n{}more", false, Ok((200, "{}"))),
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}", false, MORE),
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}", true, Err("broke off")),
            ("HTTP/1.1 404 Not Found\r\n\r\n{}", false, MORE),
            ("HTTP/1.0 404 Not Found\r\n\r\n{}", true, Ok((404, "{}"))),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
                false,
                Ok((200, "{}")),
            ),
            // Chunks say where the answer ends, whatever else does.
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n\
                 2\r\n{}\r\n0\r\n\r\n",
                false,
                Ok((200, "{}")),
            ),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}", false, MORE),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
                true,
                Err("broke off"),
            ),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{}\r\n", true, Err("not HTTP")),
            // An unknown coding ends with the connection.
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n{}", true, Ok((200, "{}"))),
            ("HTTP/1.1 200", false, MORE),
            ("HTTP/1.1 200", true, Err("not HTTP")),
            ("SSH-2.0-x\r\n\r\n", false, Err("not HTTP")),
            ("", true, Err("not HTTP")),
        ];
        for (bytes, closes, want) in rows {
            let time = if want == MORE { Duration::from_millis(50) } else { LONG };
            match (answer(bytes.into(), closes, time), want) {
                (Ok(found), Ok((status, body))) => {
                    assert_eq!(found, ClientResponse { status, body: body.into() }, "{bytes:?}");
                }
                (Err(found), Err(want)) => {
                    assert!(found.to_string().contains(want), "{bytes:?}: {found}");
                }
                (found, want) => panic!("{bytes:?}: {found:?} instead of {want:?}"),
            }
        }
    }

    #[test]
    fn endless_answers_are_not_read_to_their_end() {
        let too_long = "the answer has more than 1048576 bytes";
        let rows = [
            ("HTTP/1.1 200 OK\r\n\r\n", too_long),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffff\r\n", too_long),
            ("HTTP/1.1 200 OK\r\nx: ", "the head of the answer is too large"),
            ("", "what answers is not HTTP"),
        ];
        for (head, want) in rows {
            let mut bytes = head.as_bytes().to_vec();
            bytes.resize(16 << 20, b'x');
            let problem = answer(bytes, false, LONG).unwrap_err();
            assert_eq!(problem.to_string(), want, "{head:?}");
        }
    }

    #[test]
    fn a_silent_server_is_left() {
        let problem = answer(Vec::new(), false, Duration::from_millis(50)).unwrap_err();
        assert_eq!(problem.kind(), io::ErrorKind::TimedOut);
        assert_eq!(problem.to_string(), "the answer takes too long");
        // Connections wait in its queue: nobody accepts them.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = silent.local_addr().unwrap().to_string().parse().unwrap();
        let body = Some("x".repeat(64 << 20));
        let request = ClientRequest { method: Method::POST, path: "/".into(), body };
        let time = Duration::from_millis(50);
        let problem = exchange(&server, None, HeaderMap::new(), &request, time).unwrap_err();
        assert_eq!(problem.kind(), io::ErrorKind::TimedOut);
    }
}
