//! Tokens, TLS, and listeners that would be open to everybody.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::tempdir;

use crate::harness::{DEADLINE, TestHttpClient, TollgateProcess, file, text};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210";

#[test]
fn the_data_listener_takes_tokens() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "token", format!("{TOKEN}\n{OTHER}\n"));
    let server = TollgateProcess::start(&["--limit", "9/hour", "--auth-token-file", text(&tokens)]);
    let rows = [
        (None, 401),
        (Some(format!("Bearer {TOKEN}")), 200),
        (Some(format!("bearer {OTHER}")), 200),
        (Some(format!("Bearer {TOKEN}x")), 401),
        (Some(format!("Basic {TOKEN}")), 401),
        (Some(TOKEN.to_string()), 401),
    ];
    for path in ["/v1/check", "/v1/forward-auth"] {
        for (authorization, status) in &rows {
            let headers: Vec<_> =
                authorization.iter().map(|value| ("authorization", value.as_str())).collect();
            let answer = server.request("POST", path, &headers, r#"{"user":"1","cost":0}"#);
            assert_eq!(answer.status, *status, "{path} {authorization:?}");
            if *status == 401 {
                assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
                assert!(answer.message().contains("Authorization: Bearer"), "{answer:?}");
            }
        }
    }
    // Behind a proxy, `Authorization` is its client's.
    let client = ("authorization", "Bearer of-the-client-of-a-proxy");
    let (good, wrong) = (("x-tollgate-token", TOKEN), ("x-tollgate-token", "wrong"));
    for (headers, status) in [(&[client, good][..], 200), (&[client, wrong], 401), (&[good], 200)] {
        let answer = server.request("GET", "/v1/forward-auth", headers, "");
        assert_eq!(answer.status, status, "{headers:?}");
    }
    assert_eq!(server.post("/no/such/path", "").status, 401, "strangers learn nothing");
    assert_eq!(server.admin_get("/readyz", &[]).status, 200, "the other listener is not concerned");
    let ended = server.stop();
    assert!(!ended.stderr.contains(&TOKEN[..16]), "{ended:?}");
}

#[test]
fn the_admin_listener_takes_its_own_tokens() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "token", TOKEN);
    let server =
        TollgateProcess::start(&["--limit", "9/hour", "--admin-token-file", text(&tokens)]);
    let bearer = format!("Bearer {TOKEN}");
    let rows = [
        ("/livez", None, 200),
        ("/readyz", None, 200),
        ("/api/status", None, 401),
        ("/api/status", Some(bearer.as_str()), 200),
    ];
    for (path, authorization, status) in rows {
        let headers: Vec<_> =
            authorization.map(|value| ("authorization", value)).into_iter().collect();
        assert_eq!(server.admin_get(path, &headers).status, status, "{path}");
    }
    let named = [("host", "rebound.example.com")];
    assert_eq!(server.admin_get("/livez", &named).status, 200, "a token needs no host check");
}

#[test]
fn without_a_token_the_admin_listener_answers_to_loopback_names_only() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let rows = [
        ("localhost", 200),
        ("127.0.0.1:9190", 200),
        ("[::1]", 200),
        ("rebound.example.com", 403),
        ("localhost.example.com", 403),
        ("[::1].evil.com", 403),
        ("[::1]evil.com", 403),
        ("localhost:80@evil.com", 403),
        ("localhost:80.evil.com", 403),
    ];
    for (host, status) in rows {
        assert_eq!(server.admin_get("/livez", &[("host", host)]).status, status, "{host}");
    }
    // The first line says one name and the field another.
    let mut client = TestHttpClient::connect(server.admin());
    client.send(b"GET http://localhost/livez HTTP/1.1\r\nhost: evil.com\r\n\r\n").unwrap();
    assert_eq!(client.receive(true).unwrap().status, 403);
}

#[test]
fn the_admin_listener_takes_no_field_twice() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "token", TOKEN);
    let bearer = format!("Bearer {TOKEN}");
    let tokened = ["--limit", "9/hour", "--admin-token-file", text(&tokens)];
    for (flags, authorization) in [(&tokened[..2], None), (&tokened, Some(bearer.as_str()))] {
        let server = TollgateProcess::start(flags);
        let send = |fields: &[(&str, &str)], body: &str| {
            let mut headers = vec![("x-tollgate-admin", "1")];
            headers.extend(authorization.map(|value| ("authorization", value)));
            headers.extend_from_slice(fields);
            let path = "/api/keys/default/user=42";
            TestHttpClient::connect(server.admin()).request("POST", path, &headers, body)
        };
        assert_eq!(send(&[], r#"{"block":"1m"}"#).status, 200);
        // Of two, the second would be overlooked.
        let doubled: [[(&str, &str); 2]; 3] = [
            [("origin", "http://localhost"), ("origin", "https://evil.example")],
            [("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
            [("sec-fetch-site", "none"), ("sec-fetch-site", "none")],
        ];
        for fields in doubled {
            let answer = send(&fields, r#"{"block":null}"#);
            assert_eq!(answer.status, 400, "{fields:?}");
            assert!(answer.message().contains(&format!("`{}` appears twice", fields[0].0)));
        }
        assert_eq!(send(&[("x-tollgate-admin", "1")], r#"{"block":null}"#).status, 400);
        for body in [
            r#"{"block":"1m","block":null}"#,
            r#"{"override":{"limits":["1/s"],"limits":["9/s"]}}"#,
        ] {
            let answer = send(&[], body);
            assert_eq!(answer.status, 400, "{body}");
            assert!(answer.message().contains("appears twice"), "{answer:?}");
        }
        let blocked = send(&[], r#"{"grant":1}"#).json()["blocked_for_ms"].as_u64();
        assert!(blocked.is_some_and(|ms| ms <= 60_000), "nothing else was done: {blocked:?}");
    }
}

#[test]
fn listeners_off_loopback_need_a_token() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "token", TOKEN);
    let rows = [
        (["--http", "0.0.0.0:0"], "--auth-token-file token", ["--auth-token-file", text(&tokens)]),
        (["--admin", "[::]:0"], "--admin-token-file token", ["--admin-token-file", text(&tokens)]),
    ];
    for (listener, hint, remedy) in rows {
        let Err(ended) = TollgateProcess::try_start(&listener, |_| {}) else {
            panic!("{listener:?} is open")
        };
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains("would be open to every machine"), "{ended:?}");
        assert!(ended.stderr.contains(hint), "{ended:?}");
        TollgateProcess::start(&[&listener[..], &remedy[..]].concat());
    }
}

#[test]
fn weak_token_files_are_refused() {
    let directory = tempdir().unwrap();
    let rows = [
        ("short", "hunter2\n", "has 7 bytes in line 1: a token has 16 to 4096"),
        ("empty", "\n\n", "is empty"),
    ];
    for (name, content, want) in rows {
        let tokens = file(directory.path(), name, content);
        let flags = ["--auth-token-file", text(&tokens)];
        let Err(ended) = TollgateProcess::try_start(&flags, |_| {}) else {
            panic!("{name} is taken")
        };
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains(want) && !ended.stderr.contains("hunter2"), "{ended:?}");
    }
    let missing = directory.path().join("missing");
    let flags = ["--auth-token-file", text(&missing)];
    let Err(ended) = TollgateProcess::try_start(&flags, |_| {}) else {
        panic!("a file that is not there")
    };
    assert!(ended.stderr.contains("cannot read the token file"), "{ended:?}");
    assert!(ended.stderr.contains("openssl rand"), "{ended:?}");
}

/// A certificate for localhost and its key, as files.
pub(crate) fn certificate(
    directory: &std::path::Path,
) -> (CertificateDer<'static>, [std::path::PathBuf; 2]) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    let cert = file(directory, "cert.pem", made.cert.pem());
    let key = file(directory, "key.pem", made.signing_key.serialize_pem());
    (made.cert.der().clone(), [cert, key])
}

pub(crate) fn client_config(
    root: CertificateDer<'static>,
    protocols: &[&str],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(root).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

#[test]
fn checks_work_over_tls() {
    let directory = tempdir().unwrap();
    let (root, [cert, key]) = certificate(directory.path());
    let flags = ["--limit", "9/hour", "--tls-cert", text(&cert), "--tls-key", text(&key)];
    let server = TollgateProcess::start(&flags);
    let connect_to = |address: SocketAddr, protocols: &[&str]| {
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(client_config(root.clone(), protocols), name).unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        StreamOwned::new(session, stream)
    };
    let connect = |protocols: &[&str]| connect_to(server.http(), protocols);
    let mut client = TestHttpClient::over(connect(&["http/1.1"]));
    for left in [8, 7] {
        let answer = client.request("POST", "/v1/check", &[], r#"{"user":"42"}"#);
        assert_eq!(answer.json()["remaining"], left);
    }
    let mut stream = connect(&["h2", "http/1.1"]);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).unwrap();
    }
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
    // Listener, what is offered, and whether there is a connection, which agrees on that
    type AlpnRow<'a> = (SocketAddr, &'a [&'a str], Option<Option<&'a str>>);
    let rows: [AlpnRow<'_>; 6] = [
        (server.grpc(), &["http/1.1", "h2"], Some(Some("h2"))),
        (server.grpc(), &["http/1.1"], None),
        (server.http(), &["http/1.1"], Some(Some("http/1.1"))),
        (server.http(), &[], Some(None)),
        (server.resp(), &["h2", "http/1.1"], Some(None)),
        (server.resp(), &[], Some(None)),
    ];
    for (listener, offered, want) in rows {
        let mut stream = connect_to(listener, offered);
        let shaken = loop {
            match stream.conn.complete_io(&mut stream.sock) {
                Ok(_) if stream.conn.is_handshaking() => {}
                done => break done.is_ok(),
            }
        };
        let agreed = stream.conn.alpn_protocol();
        let agreed = agreed.map(|name| std::str::from_utf8(name).unwrap());
        assert_eq!(shaken.then_some(agreed), want, "{listener} {offered:?}");
    }
    // The end is said, so that nobody can make it up.
    let mut redis = connect_to(server.resp(), &[]);
    redis.write_all(b"PING\r\nQUIT\r\n").unwrap();
    let mut told = String::new();
    redis.read_to_string(&mut told).expect("an end that is said");
    assert_eq!(told, "+PONG\r\n+OK\r\n");
    // Plain text on this listener is no request.
    let mut plain = TestHttpClient::connect(server.http());
    plain.send(b"GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    assert!(!plain.until_closed().contains("HTTP/1.1 200"));
}

#[test]
fn the_demo_suggests_what_works_at_this_listener() {
    let directory = tempdir().unwrap();
    let (_, [cert, key]) = certificate(directory.path());
    let tokens = file(directory.path(), "token", TOKEN);
    let tls = ["--tls-cert", text(&cert), "--tls-key", text(&key)];
    let token = ["--auth-token-file", text(&tokens)];
    let ask = |http: &str| format!("tollgate ask --server http://{http}");
    for (flags, with_tls, with_token) in
        [(&tls[..], true, false), (&token, false, true), (&[&tls[..], &token].concat(), true, true)]
    {
        let server = TollgateProcess::start(flags);
        let http = server.http().to_string();
        let told = server.stop().stderr;
        assert_eq!(told.contains(&format!("--insecure https://{http}/")), with_tls, "{told}");
        assert_eq!(told.contains(&ask(&http)), !with_tls, "{told}");
        assert_eq!(told.contains("-H \"Authorization: Bearer $(head -n 1 "), with_token, "{told}");
        assert!(!told.contains(TOKEN), "{told}");
    }
}

#[test]
fn broken_certificates_are_told() {
    let directory = tempdir().unwrap();
    let (_, [cert, key]) = certificate(directory.path());
    let junk = file(directory.path(), "junk.pem", "junk");
    let other = tempdir().unwrap();
    let (_, [_, other_key]) = certificate(other.path());
    let rows = [
        (&junk, &key, "cannot find certificates in"),
        (&cert, &junk, "cannot find a private key in"),
        (&cert, &other_key, "do not work"),
    ];
    for (cert, key, want) in rows {
        let flags = ["--tls-cert", text(cert), "--tls-key", text(key)];
        let Err(ended) = TollgateProcess::try_start(&flags, |_| {}) else { panic!("{want}") };
        assert_eq!(ended.code, Some(1));
        assert!(ended.stderr.contains(want), "{ended:?}");
    }
    let Err(ended) = TollgateProcess::try_start(&["--tls-cert", text(&cert)], |_| {}) else {
        panic!("a certificate without a key")
    };
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("both a certificate and its key"), "{ended:?}");
    // Each may come from another place.
    let config = file(directory.path(), "tollgate.yaml", format!("tls_key: {}\n", text(&key)));
    TollgateProcess::start(&["--tls-cert", text(&cert), "--config", text(&config)]);
}

#[test]
fn pages_in_browsers_cannot_spend_or_give_back() {
    let server = TollgateProcess::start(&["--limit", "9/hour"]);
    let page = [("origin", "https://evil.example"), ("content-type", "text/plain")];
    for path in ["/v1/check", "/v1/check/batch", "/v1/reserve", "/v1/refund"] {
        assert_eq!(server.request("POST", path, &page, r#"{"user":"42"}"#).status, 403, "{path}");
    }
    // A proxy passes on what its client sent.
    assert_eq!(server.request("GET", "/v1/forward-auth", &page, "").status, 200);
}
