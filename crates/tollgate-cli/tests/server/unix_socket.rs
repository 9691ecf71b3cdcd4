//! Listeners at Unix sockets.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use tempfile::tempdir;

use crate::harness::{DEADLINE, TestHttpClient, TollgateProcess, run, text};

fn connect(path: &Path) -> TestHttpClient<UnixStream> {
    let stream = UnixStream::connect(path).expect("the server listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    TestHttpClient::over(stream)
}

#[test]
fn every_listener_can_be_a_unix_socket() {
    let directory = tempdir().unwrap();
    let [http, resp, admin] = ["http", "resp", "admin"].map(|name| directory.path().join(name));
    let [at_http, at_resp, at_admin] =
        [&http, &resp, &admin].map(|path| format!("unix:{}", text(path)));
    let flags =
        ["--limit", "2/hour burst 2", "--http", &at_http, "--resp", &at_resp, "--admin", &at_admin];
    let server = TollgateProcess::start(&flags);
    let mode = http.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660, "others on this machine cannot connect");

    // The check API, forward-auth with the peer's address, and the commands.
    let mut client = connect(&http);
    let ask = |cost: &str| run(&["ask", "--server", &at_http, "--user", "42", "--cost", cost]);
    let body = r#"{"user":"42"}"#;
    assert_eq!(client.request("POST", "/v1/check", &[], body).status, 200);
    assert_eq!((ask("1").code, ask("1").code), (Some(0), Some(3)), "the same count");
    for status in [200, 200, 429] {
        assert_eq!(client.request("GET", "/v1/forward-auth", &[], "").status, status);
    }
    let key = run(&["keys", "show", "default", "ip=127.0.0.1", "--admin", &at_admin]);
    assert_eq!(key.code, Some(0), "peers count as 127.0.0.1: {key:?}");
    assert!(key.stdout.contains("ip=127.0.0.1 is refused"), "{key:?}");
    let mut redis = UnixStream::connect(&resp).expect("the resp listener");
    redis.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    std::io::Write::write_all(&mut redis, b"PING\r\n").expect("sent");
    let mut pong = [0; 7];
    std::io::Read::read_exact(&mut redis, &mut pong).expect("a reply");
    assert_eq!(&pong, b"+PONG\r\n");

    let ended = server.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(![http, resp, admin].iter().any(|path| path.exists()), "the files are removed");
    let nobody = ask("1");
    assert_eq!(nobody.code, Some(1));
    assert!(nobody.stderr.contains("tollgate serve"), "{nobody:?}");
}

#[test]
fn a_socket_in_use_is_not_taken_and_one_left_behind_is() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("tollgate.sock");
    let at = format!("unix:{}", text(&path));
    let refused = |want: &str| {
        let Err(ended) = TollgateProcess::try_start(&["--http", &at], |_| {}) else {
            panic!("a server at {at}")
        };
        assert_eq!(ended.code, Some(1));
        assert!(ended.stderr.contains(want), "{ended:?}");
    };
    std::fs::write(&path, "text").unwrap();
    refused("not a socket");
    std::fs::remove_file(&path).unwrap();
    let server = TollgateProcess::start(&["--limit", "9/hour", "--http", &at]);
    refused("another program answers");
    assert_eq!(connect(&path).request("POST", "/v1/check", &[], r#"{"user":"1"}"#).status, 200);
    server.signal("KILL");
    server.wait();
    assert!(path.exists(), "a killed server leaves its socket behind");
    let _server = TollgateProcess::start(&["--limit", "9/hour", "--http", &at]);
    assert_eq!(connect(&path).request("POST", "/v1/check", &[], r#"{"user":"1"}"#).status, 200);
}
