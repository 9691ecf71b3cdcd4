//! Tokens and certificates that change while the server serves: a SIGHUP or a reload takes the new ones,
//! each file for itself, and what is wrong replaces nothing.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConnection, StreamOwned};
use serde_json::Value;
use tempfile::tempdir;

use crate::harness::{DEADLINE, TestHttpClient, TestHttpResponse, TollgateProcess, file, text};
use crate::server::access::{certificate, client_config};

const OLD: &str = "0123456789abcdef-the-old-one";
const NEW: &str = "fedcba9876543210-the-new-one";

const NEW_TOKENS: &str = "new tokens are in force";
const WRONG_TOKENS: &str = "the token file is wrong, the old tokens stay in force";
const NEW_CERTIFICATE: &str = "a new certificate is in force";
const WRONG_CERTIFICATE: &str = "the certificate file is wrong, the old certificate stays in force";
const SAME_RULES: &str = "the rules are unchanged";

type TlsClientStream = StreamOwned<ClientConnection, TcpStream>;

/// A connection to whoever shows this certificate; `None` if another is shown.
fn connect(listener: SocketAddr, trusted: &CertificateDer<'static>) -> Option<TlsClientStream> {
    let name = ServerName::try_from("localhost").unwrap();
    let config = client_config(trusted.clone(), &["h2", "http/1.1"]);
    let stream = TcpStream::connect(listener).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(config, name).unwrap(), stream);
    while stream.conn.is_handshaking() {
        if let Err(error) = stream.conn.complete_io(&mut stream.sock) {
            assert!(error.to_string().contains("certificate"), "{error}");
            return None;
        }
    }
    Some(stream)
}

/// The same, for HTTP/1.1.
fn client(
    server: &TollgateProcess,
    trusted: &CertificateDer<'static>,
) -> TestHttpClient<TlsClientStream> {
    let name = ServerName::try_from("localhost").unwrap();
    let config = client_config(trusted.clone(), &["http/1.1"]);
    let stream = TcpStream::connect(server.http()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    TestHttpClient::over(StreamOwned::new(ClientConnection::new(config, name).unwrap(), stream))
}

fn reload(server: &TollgateProcess) -> TestHttpResponse {
    let mut admin = TestHttpClient::connect(server.admin());
    admin.request("POST", "/api/reload", &[("x-tollgate-admin", "1")], "")
}

/// What `/api/status` says is wrong with tokens or certificate.
fn failed(server: &TollgateProcess) -> Value {
    server.admin_get("/api/status", &[]).json()["credentials"]["failed"].clone()
}

/// What the gauge says.
fn is_right(server: &TollgateProcess) -> bool {
    let page = server.admin_get("/metrics", &[]).body;
    page.contains("\ntollgate_credentials_last_reload_successful 1\n")
}

#[cfg(unix)]
fn pipe(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.expect("mkfifo runs").success());
}

#[test]
fn new_connections_are_shown_the_new_certificate() {
    let directory = tempdir().unwrap();
    let (first, [cert, key]) = certificate(directory.path());
    let flags = ["--limit", "9/hour", "--tls-cert", text(&cert), "--tls-key", text(&key)];
    let mut server = TollgateProcess::start(&flags);
    let mut old = client(&server, &first);
    let mut left = 9;
    let mut check = |client: &mut TestHttpClient<TlsClientStream>| {
        left -= 1;
        let answer = client.request("POST", "/v1/check", &[], r#"{"user":"42"}"#);
        assert_eq!(answer.json()["remaining"], left);
    };
    check(&mut old);

    let (second, _) = certificate(directory.path());
    assert!(connect(server.http(), &second).is_none(), "nobody has asked for it");
    let answer = reload(&server);
    assert_eq!((answer.status, &answer.json()["result"]), (200, &"unchanged".into()));
    assert!(server.wait_for_log(NEW_CERTIFICATE).contains(" info "));
    for listener in [server.http(), server.grpc(), server.resp()] {
        assert!(
            connect(listener, &second).is_some() && connect(listener, &first).is_none(),
            "{listener}"
        );
    }
    check(&mut client(&server, &second));
    check(&mut old);

    let (third, _) = certificate(directory.path());
    server.signal("HUP");
    server.wait_for_log(NEW_CERTIFICATE);
    assert!(connect(server.http(), &third).is_some());
    assert!(connect(server.http(), &second).is_none());
    check(&mut old);
    // The same again is no news.
    assert_eq!(reload(&server).status, 200);
    assert_eq!(server.stop().stderr.matches(NEW_CERTIFICATE).count(), 2);
}

#[test]
fn a_wrong_certificate_replaces_nothing() {
    let directory = tempdir().unwrap();
    let root = directory.path();
    let (shown, [cert, key]) = certificate(root);
    let other = tempdir().unwrap();
    let (_, [_, other_key]) = certificate(other.path());
    let other_key = fs::read(other_key).unwrap();
    let rules = file(root, "rules.yaml", rules(10));
    let flags = ["--rules", text(&rules), "--tls-cert", text(&cert), "--tls-key", text(&key)];
    let mut server = TollgateProcess::start(&[&flags[..], &["--rules-watch", "off"]].concat());
    let (good_cert, good_key) = (fs::read(&cert).unwrap(), fs::read(&key).unwrap());
    let long = vec![b'x'; (1 << 20) + 1];
    // Which file has what now | what is said
    let rows: [(&Path, Option<&[u8]>, &str); 7] = [
        (&cert, Some(b"junk"), "cannot find certificates in"),
        (&cert, Some(b""), "cannot find certificates in"),
        (&cert, Some(&good_cert[..good_cert.len() / 2]), "cannot find certificates in"),
        (&cert, Some(&long), "it has more than 1048576 bytes"),
        (&cert, None, "cannot read"),
        (&key, Some(&good_cert), "cannot find a private key in"),
        (&key, Some(&other_key), "do not work"),
    ];
    for (path, content, want) in rows {
        match content {
            Some(content) => fs::write(path, content).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
        server.signal("HUP");
        let line = server.wait_for_log(WRONG_CERTIFICATE);
        // Then the rules are looked at: from here on the signal has done all it does.
        server.wait_for_log(SAME_RULES);
        let is_told = line.contains(want) && line.contains("hint=") && line.contains(" error ");
        assert!(is_told, "{want}: {line}");
        assert!(connect(server.http(), &shown).is_some(), "{want}");
        fs::write(&cert, &good_cert).unwrap();
        fs::write(&key, &good_key).unwrap();
    }
    #[cfg(unix)]
    {
        fs::remove_file(&cert).unwrap();
        pipe(&cert);
        server.signal("HUP");
        let line = server.wait_for_log(WRONG_CERTIFICATE);
        // Then the rules are looked at: from here on the signal has done all it does.
        server.wait_for_log(SAME_RULES);
        assert!(line.contains("this is not a regular file"), "{line}");
        fs::remove_file(&cert).unwrap();
    }
    // Rules do not wait for it, and whoever asks hears of both.
    fs::write(&cert, "junk").unwrap();
    file(root, "rules.yaml", self::rules(20));
    let answer = reload(&server);
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.message().ends_with("The new rules are in force (2)."), "{answer:?}");
    let told = answer.json()["diagnostics"].as_str().unwrap().to_string();
    assert!(told.starts_with("error: cannot find certificates in"), "{told}");
    let status = failed(&server);
    assert_eq!((&status["errors"], &status["diagnostics"]), (&1.into(), &told.into()));
    assert_eq!(status["cause"], "POST /api/reload");
    assert!(!is_right(&server));
    file(root, "rules.yaml", "rules: 5");
    let answer = reload(&server);
    assert!(answer.message().contains("The rules are wrong too"), "{answer:?}");
    assert!(answer.json()["diagnostics"].as_str().unwrap().contains("rules.yaml:1:8"));

    fs::write(&cert, &good_cert).unwrap();
    file(root, "rules.yaml", self::rules(20));
    assert_eq!(reload(&server).status, 200);
    assert!(failed(&server).is_null() && is_right(&server));
    assert!(connect(server.http(), &shown).is_some());
}

fn rules(per_day: u64) -> String {
    format!("rules: [{{ name: api, key: '{{user}}', limits: [{per_day}/day] }}]\n")
}

/// A server with tokens at the data listeners.
fn with_tokens(directory: &Path) -> (TollgateProcess, PathBuf) {
    let tokens = file(directory, "token", OLD);
    let flags = ["--limit", "99/hour", "--auth-token-file", text(&tokens)];
    (TollgateProcess::start(&flags), tokens)
}

/// The status of a check with this token.
fn check(client: &mut TestHttpClient, token: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    client
        .request("POST", "/v1/check", &[("authorization", &bearer)], r#"{"user":"1","cost":0}"#)
        .status
}

#[test]
fn new_tokens_work_and_old_ones_no_longer() {
    let directory = tempdir().unwrap();
    let (mut server, tokens) = with_tokens(directory.path());
    let mut http = TestHttpClient::connect(server.http());
    let mut redis = TestHttpClient::connect(server.resp());
    redis.send(format!("AUTH {OLD}\r\nPING\r\n").as_bytes()).unwrap();
    // What is in the file | who is let in
    let rows = [
        (format!("{OLD}\n{NEW}\n"), [200, 200]),
        (NEW.to_string(), [401, 200]),
        (OLD.to_string(), [200, 401]),
    ];
    for (content, statuses) in rows {
        let before = [OLD, NEW].map(|token| check(&mut http, token));
        fs::write(&tokens, &content).unwrap();
        assert_eq!([OLD, NEW].map(|token| check(&mut http, token)), before, "nobody has asked");
        server.signal("HUP");
        let line = server.wait_for_log(NEW_TOKENS);
        assert!(line.ends_with(&format!("file={}", text(&tokens))), "{line}");
        assert_eq!([OLD, NEW].map(|token| check(&mut http, token)), statuses, "{content:?}");
    }
    fs::write(&tokens, NEW).unwrap();
    assert_eq!(reload(&server).status, 200);
    // Whoever has shown a token is not asked again.
    redis.send(b"PING\r\nQUIT\r\n").unwrap();
    assert_eq!(redis.until_closed(), "+OK\r\n+PONG\r\n+PONG\r\n+OK\r\n");
    for (token, want) in [(OLD, "-WRONGPASS"), (NEW, "+OK\r\n+OK\r\n")] {
        let mut redis = TestHttpClient::connect(server.resp());
        redis.send(format!("AUTH {token}\r\nQUIT\r\n").as_bytes()).unwrap();
        let told = redis.until_closed();
        assert!(told.starts_with(want), "{told}");
    }
    let told = server.stop().stderr;
    assert!(!told.contains(OLD) && !told.contains(NEW), "{told}");
}

#[test]
fn wrong_tokens_replace_nothing() {
    let directory = tempdir().unwrap();
    let (mut server, tokens) = with_tokens(directory.path());
    let mut http = TestHttpClient::connect(server.http());
    let long = "\n".repeat(1 << 20);
    // What is in the file | what is said
    let rows: [(Option<&[u8]>, &str); 6] = [
        (Some(b""), "is empty"),
        (Some(b"hunter2"), "has 7 bytes in line 1"),
        (Some(b"fedcba9876543210\nhunter2"), "has 7 bytes in line 2"),
        (Some(b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe\xff\xfe"), "is not text"),
        (Some(long.as_bytes()), "it has more than"),
        (None, "cannot read the token file"),
    ];
    for (content, want) in rows {
        match content {
            Some(content) => fs::write(&tokens, content).unwrap(),
            None => fs::remove_file(&tokens).unwrap(),
        }
        server.signal("HUP");
        let line = server.wait_for_log(WRONG_TOKENS);
        assert!(line.contains(want) && line.contains("hint="), "{want}: {line}");
        assert!(!line.contains("hunter2"), "{line}");
        assert_eq!(check(&mut http, OLD), 200, "{want}");
        assert_eq!(check(&mut http, "fedcba9876543210"), 401, "{want}");
    }
    #[cfg(unix)]
    {
        pipe(&tokens);
        server.signal("HUP");
        let line = server.wait_for_log(WRONG_TOKENS);
        assert!(line.contains("this is not a regular file"), "{line}");
        assert_eq!(check(&mut http, OLD), 200);
        fs::remove_file(&tokens).unwrap();
    }
    let answer = reload(&server);
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.message().ends_with("The rules are unchanged (1)."), "{answer:?}");
    assert!(!failed(&server).is_null());
    fs::write(&tokens, OLD).unwrap();
    assert_eq!(reload(&server).status, 200);
    assert!(failed(&server).is_null());
    assert_eq!(check(&mut http, OLD), 200);
}

#[test]
fn each_file_is_taken_for_itself() {
    let directory = tempdir().unwrap();
    let root = directory.path();
    let (first, [cert, key]) = certificate(root);
    let tokens = file(root, "token", OLD);
    let admin_tokens = file(root, "admin", OLD);
    let flags = [
        ["--limit", "99/hour"],
        ["--tls-cert", text(&cert)],
        ["--tls-key", text(&key)],
        ["--auth-token-file", text(&tokens)],
        ["--admin-token-file", text(&admin_tokens)],
    ];
    let server = TollgateProcess::start(&flags.concat());
    let reload = |token: &str| {
        let bearer = format!("Bearer {token}");
        let mut admin = TestHttpClient::connect(server.admin());
        admin.request("POST", "/api/reload", &[("authorization", &bearer)], "")
    };
    let (second, _) = certificate(root);
    file(root, "token", "short");
    file(root, "admin", NEW);
    let answer = reload(OLD);
    assert_eq!(answer.status, 400, "the one of the data listeners is wrong: {answer:?}");
    assert!(connect(server.http(), &second).is_some() && connect(server.http(), &first).is_none());
    assert_eq!(reload(OLD).status, 401, "the admin listener has its new one");
    file(root, "token", NEW);
    assert_eq!(reload(NEW).status, 200);
    let bearer = [("authorization", format!("Bearer {NEW}"))];
    let bearer = bearer.each_ref().map(|(name, value)| (*name, value.as_str()));
    let answer =
        client(&server, &second).request("POST", "/v1/check", &bearer, r#"{"user":"1","cost":0}"#);
    assert_eq!(answer.status, 200);
}
