//! Messages whose length is stated unclearly: requests end the connection, and responses are made clear or refused.

use testkit::peers::RawUpstream;

use super::gateway_process::{COUNTING_RULES, GatewayProcess};
use super::wire_client::WireClient;

#[test]
fn a_request_of_unclear_length_ends_its_connection() {
    let upstream = RawUpstream::recorder();
    // Fields of the length, and others that are wrong as well
    let rows = [
        "transfer-encoding: identity, chunked",
        "transfer-encoding: gzip, chunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        "transfer-encoding: x\r\ntransfer-encoding: chunked",
        "host: other\r\ntransfer-encoding: identity, chunked",
    ];
    for workers in ["1", "4"] {
        let flags = ["--workers", workers];
        let gateway = GatewayProcess::start_with(upstream.address(), COUNTING_RULES, &flags);
        for fields in rows {
            let mut client = WireClient::connect(gateway.address());
            let second = "GET /second HTTP/1.1\r\nhost: app\r\n\r\n";
            let first = format!("POST / HTTP/1.1\r\nhost: app\r\n{fields}\r\n\r\n0\r\n\r\n");
            client.send(format!("{first}{second}").as_bytes());
            let reply = client.read_reply("POST").expect("an answer");
            assert_eq!((reply.status, reply.field("connection")), (400, Some("close")), "{fields}");
            assert_eq!(client.read_to_close(), Some(Vec::new()), "{fields}");
        }
        assert_eq!(upstream.take_requests().expect("strict requests").len(), 0);
    }
}

#[test]
fn equal_lengths_of_a_response_become_one() {
    // The method, the lengths of the upstream | status, length
    let rows = [
        ("HEAD", "content-length: 2\r\ncontent-length: 2", 200, Some("2")),
        ("HEAD", "content-length: 2, 2", 200, Some("2")),
        ("HEAD", "content-length: 2\r\ncontent-length: 3", 502, None),
        ("HEAD", "content-length: 2", 200, Some("2")),
        ("GET", "content-length: 2\r\ncontent-length: 2", 200, Some("2")),
    ];
    for (method, lengths, status, length) in rows {
        let upstream = RawUpstream::start(move |conversation| {
            while let Some(request) = conversation.read_request()? {
                let body = if request.method == "HEAD" { "" } else { "ok" };
                conversation
                    .write(format!("HTTP/1.1 200 OK\r\n{lengths}\r\n\r\n{body}").as_bytes())?;
            }
            Ok(())
        });
        let gateway = GatewayProcess::start(upstream.address(), COUNTING_RULES);
        let mut client = WireClient::connect(gateway.address());
        client.send(format!("{method} / HTTP/1.1\r\nhost: app\r\n\r\n").as_bytes());
        let reply = client.read_head().expect("an answer");
        assert_eq!(reply.status, status, "{method} {lengths}");
        if let Some(length) = length {
            let lines = reply.fields.iter().filter(|(name, _)| name == "content-length");
            assert_eq!(lines.map(|(_, value)| &**value).collect::<Vec<_>>(), [length], "{lengths}");
        }
    }
}
