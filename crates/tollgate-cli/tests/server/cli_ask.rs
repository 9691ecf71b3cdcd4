//! `tollgate ask`: what it prints, how it leaves, tokens and TLS.

use tempfile::tempdir;

use crate::harness::{TollgateProcess, file, run, text, tollgate};
use crate::server::fake_listener::{answer_json_once, answer_once};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210";

#[test]
fn ask_prints_and_exits_by_the_answer() {
    let server = TollgateProcess::start(&["--limit", "2/hour burst 2"]);
    let url = format!("http://{}", server.http());
    let ask = |more: &[&str]| run(&[&["ask", "--server", &url, "--user", "42"], more].concat());

    let allowed = ask(&["--path", "/api", "--method", "get", "--ip", "192.0.2.1"]);
    assert_eq!((allowed.code, &*allowed.stderr), (Some(0), ""));
    let first = allowed.stdout.lines().next();
    assert_eq!(first, Some("Allowed: 1 of 2 left under default (2/hour burst 2)."));
    let refused = ask(&["--cost", "2"]);
    assert_eq!((refused.code, &*refused.stderr), (Some(3), ""));
    assert!(refused.stdout.starts_with("Refused by default (2/hour burst 2). Retry in "));
    let json = ask(&["--cost", "0", "--json", "--header", "x-a=b", "--tier", "pro"]);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(json["remaining"], 1);
    assert_eq!(ask(&["--cost", "9007199254740992"]).code, Some(1), "the server says no");
    assert_eq!(ask(&["--header", "x"]).code, Some(2));
    let twice = ask(&["--header", "x-a=b", "--header", "X-A=c"]);
    assert_eq!(twice.code, Some(2));
    assert!(
        twice.stderr.starts_with("error: --header \"X-A\" is given twice\nhint: "),
        "{twice:?}"
    );
    // A port alone is on this machine.
    let port = server.http().port();
    for alone in [port.to_string(), format!(":{port}")] {
        assert_eq!(run(&["ask", "--server", &alone, "--user", "43"]).code, Some(0), "{alone}");
    }
    let elsewhere = run(&["ask", "--server", &format!("http://{port}")]);
    assert_eq!(elsewhere.code, Some(2), "not 0.0.x.y: {elsewhere:?}");
    drop(server);
    let nobody = run(&["ask", "--server", &url]);
    assert_eq!(nobody.code, Some(1));
    assert!(nobody.stderr.contains("tollgate serve"), "{nobody:?}");
}

#[test]
fn ask_takes_the_token_of_a_file() {
    let directory = tempdir().unwrap();
    // The server's own file will do, also while tokens are changed.
    let tokens = file(directory.path(), "tokens", format!("\n{TOKEN}\n{OTHER}\n"));
    let old = file(directory.path(), "old", OTHER);
    let wrong = file(directory.path(), "wrong", "wrong-but-long-enough-to-be-one\n");
    let empty = file(directory.path(), "empty", "\n");
    let missing = directory.path().join("missing");
    let server = TollgateProcess::start(&["--limit", "9/hour", "--auth-token-file", text(&tokens)]);
    let url = format!("http://{}", server.http());
    // options, exit code, what standard error says
    let rows: [(&[&str], i32, &[&str]); 8] = [
        (&["--token-file", text(&tokens)], 0, &[]),
        (&["--auth-token-file", text(&tokens)], 0, &[]),
        (&["--token-file", text(&old)], 0, &[]),
        (&[], 1, &["the server answered 401: ", "hint: give a file with the token: --token-file"]),
        (
            &["--token-file", text(&wrong)],
            1,
            &["the server answered 401: ", "hint: the server does not accept the first token of"],
        ),
        (&["--token-file", text(&empty)], 1, &["has no token in its first line"]),
        (&["--token-file", text(&missing)], 1, &["cannot read the token file", "hint: "]),
        // Of the other listener: one set of options fits `ask` and `keys`.
        (
            &["--token-file", text(&tokens), "--admin", "x", "--admin-token-file", text(&missing)],
            0,
            &[],
        ),
    ];
    for (options, code, told) in rows {
        let asked = run(&[&["ask", "--server", &url, "--user", "42"], options].concat());
        assert_eq!(asked.code, Some(code), "{options:?} {asked:?}");
        assert_eq!(asked.stderr.is_empty(), told.is_empty(), "{asked:?}");
        for text in told {
            assert!(asked.stderr.contains(text), "{text}: {asked:?}");
        }
        for secret in [TOKEN, OTHER, "wrong-but-long"] {
            assert!(!format!("{asked:?}").contains(secret), "{asked:?}");
        }
    }
    let by_environment = tollgate()
        .args(["ask", "--user", "42"])
        .env("TOLLGATE_SERVER", &url)
        .env("TOLLGATE_TOKEN_FILE", &tokens)
        .output();
    assert!(by_environment.unwrap().status.success());
}

#[test]
fn ask_speaks_tls() {
    let directory = tempdir().unwrap();
    let made = |name: &str| {
        let made = rcgen::generate_simple_self_signed([name.to_string()]).unwrap();
        let cert = file(directory.path(), &format!("{name}.cert"), made.cert.pem());
        let key = file(directory.path(), &format!("{name}.key"), made.signing_key.serialize_pem());
        (cert, key)
    };
    let ((cert, key), (other, _)) = (made("localhost"), made("example.com"));
    let tokens = file(directory.path(), "tokens", TOKEN);
    let tls = ["--tls-cert", text(&cert), "--tls-key", text(&key)];
    let server = TollgateProcess::start(
        &[&["--limit", "9/hour", "--auth-token-file", text(&tokens)], &tls[..]].concat(),
    );
    let port = server.http().port();
    let (https, http) = (format!("https://localhost:{port}"), format!("http://localhost:{port}"));
    let by_address = format!("https://127.0.0.1:{port}");
    let rows: [(&str, &[&str], i32, &str); 6] = [
        (&https, &["--ca-file", text(&cert)], 0, ""),
        (&https, &[], 1, "--ca-file names the certificates to trust"),
        (&https, &["--ca-file", text(&other)], 1, "--ca-file names the certificates"),
        (&https, &["--ca-file", text(&key)], 1, "there is no certificate in"),
        (&by_address, &["--ca-file", text(&cert)], 1, "certificate not valid for name"),
        (&http, &[], 1, "if that port uses TLS, write --server https://"),
    ];
    for (url, options, code, told) in rows {
        let ask = ["ask", "--server", url, "--token-file", text(&tokens), "--user", "42"];
        let asked = run(&[&ask[..], options].concat());
        assert_eq!(asked.code, Some(code), "{url} {options:?} {asked:?}");
        assert!(asked.stderr.contains(told), "{asked:?}");
        assert!(!asked.stderr.contains(TOKEN), "{asked:?}");
    }
}

#[test]
fn the_wrong_listener_is_told() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "tokens", TOKEN);
    let other = file(directory.path(), "other", OTHER);
    // A server without tokens, and one with them.
    let tokened = ["--auth-token-file", text(&tokens), "--admin-token-file", text(&other)];
    for flags in [&[][..], &tokened] {
        let server = TollgateProcess::start(&[&["--limit", "9/hour"], flags].concat());
        let (data, admin) =
            (format!("http://{}", server.http()), format!("http://{}", server.admin()));
        let at_admin =
            format!("{admin} looks like the admin listener: name the data listener with --server");
        let at_data =
            format!("{data} looks like the data listener: name the admin listener with --admin");
        let (auth_file, admin_file) =
            (["--token-file", text(&tokens)], ["--admin-token-file", text(&other)]);
        let (ask, top) = (["ask", "--server", &admin], ["keys", "top", "--admin", &data]);
        let reset = ["keys", "reset", "default", "42", "--admin", &data];
        let asks: [(&[&str], &str); 5] = [
            (&ask, &at_admin),
            (&[&ask[..], &auth_file].concat(), &at_admin),
            (&top, &at_data),
            (&[&top[..], &admin_file].concat(), &at_data),
            (&[&reset[..], &admin_file].concat(), &at_data),
        ];
        for (args, want) in asks {
            let ended = run(args);
            assert_eq!(ended.code, Some(1), "{args:?} {ended:?}");
            assert!(ended.stderr.contains(&format!("\nhint: {want}")), "{args:?} {ended:?}");
        }
        // The right listener with a wrong name is not the wrong listener.
        let show = ["keys", "show", "nobody", "42", "--admin", &admin];
        let ended = run(&[&show[..], &admin_file].concat());
        assert!(ended.stderr.contains("the server answered 404"), "{ended:?}");
        assert!(!ended.stderr.contains("looks like"), "{ended:?}");
    }
}

#[test]
fn answers_of_others_are_told_and_harmless() {
    let rows: [(&[u8], &str); 6] = [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "does not answer like Tollgate"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{}", "the answer broke off"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>", "answered 502 but is not a Tollgate server"),
        (b"SSH-2.0-x\r\n", "what answers is not HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "write --server https://"),
        (b"", "what answers is not HTTP"),
    ];
    for (bytes, told) in rows {
        let (address, listener) = answer_once(bytes);
        let asked = run(&["ask", "--server", &format!("http://{address}")]);
        assert_eq!(asked.code, Some(1), "{asked:?}");
        assert!(asked.stderr.contains(told), "{asked:?}");
        assert_eq!(listener.join().unwrap().line, "POST /v1/check HTTP/1.1");
    }
    // A proxy before a server may send its answer in chunks.
    let (address, _) = answer_once(
        "HTTP/1.1 400 X\r\ntransfer-encoding: chunked\r\n\r\n\
         8\r\n{\"messag\r\n7\r\ne\":\"x\"}\r\n0\r\n\r\n",
    );
    let asked = run(&["ask", "--server", &format!("http://{address}")]);
    assert_eq!(asked.stderr, "error: the server answered 400: x\n");
    let (address, _) = answer_json_once(400, r#"{"message":"no\u001b[2J\nnot this"}"#);
    let asked = run(&["ask", "--server", &format!("http://{address}")]);
    assert_eq!(asked.stderr, "error: the server answered 400: no\\u{1b}[2J\\nnot this\n");
}

/// Certificates as people have them: `openssl req -x509` marks a self-signed one as an authority's; and what
/// the system trusts needs no option.
#[test]
fn ask_believes_the_usual_certificates() {
    let directory = tempdir().unwrap();
    let made = |name: &str, (from, to): (i32, i32)| {
        let names = vec![name.to_string()];
        let mut wanted = rcgen::CertificateParams::new(names).unwrap();
        wanted.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        wanted.not_before = rcgen::date_time_ymd(from, 1, 1);
        wanted.not_after = rcgen::date_time_ymd(to, 1, 1);
        let pair = rcgen::KeyPair::generate().unwrap();
        let cert = wanted.self_signed(&pair).unwrap();
        let file = |ending: &str, text: String| {
            file(directory.path(), &format!("{name}-{to}.{ending}"), text)
        };
        (file("cert", cert.pem()), file("key", pair.serialize_pem()))
    };
    let now = (2020, 4000);
    let (good, other) = (made("localhost", now), made("localhost", (2020, 3999)));
    let (misnamed, expired) = (made("example.com", now), made("localhost", (2000, 2001)));
    // The server's certificate, the one that is trusted | exit code, what is told
    let rows = [
        (&good, &good, 0, ""),
        (&good, &other, 1, "--ca-file names the certificates"),
        (&misnamed, &misnamed, 1, "subjectAltName"),
        (&expired, &expired, 1, "expired"),
    ];
    for ((cert, key), (trusted, _), code, told) in rows {
        let tls = ["--tls-cert", text(cert), "--tls-key", text(key)];
        let server = TollgateProcess::start(&[&["--limit", "9/hour"], &tls[..]].concat());
        let url = format!("https://localhost:{}", server.http().port());
        let asked = run(&["ask", "--server", &url, "--user", "42", "--ca-file", text(trusted)]);
        assert_eq!(asked.code, Some(code), "{asked:?}");
        assert!(asked.stderr.contains(told), "{asked:?}");
    }
    // An authority of its own, which this system is told to trust.
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    let cert = file(directory.path(), "cert", made.cert.pem());
    let key = file(directory.path(), "key", made.signing_key.serialize_pem());
    let tls = ["--tls-cert", text(&cert), "--tls-key", text(&key)];
    let server = TollgateProcess::start(&[&["--limit", "9/hour"], &tls[..]].concat());
    let url = format!("https://localhost:{}", server.http().port());
    let mut ask = tollgate();
    let asked = ask.args(["ask", "--server", &url, "--user", "42"]).env("SSL_CERT_FILE", &cert);
    let asked = asked.output().unwrap();
    assert!(asked.status.success(), "{asked:?}");
}

#[test]
fn a_question_without_a_method_names_the_rules_that_need_one() {
    let folder = tempdir().unwrap();
    let rules = "rules:
  - { name: login, match: { path: /login, method: POST }, key: '{ip}', limits: [100/minute] }
  - { name: other, match: { path: /other, method: POST }, key: '{ip}', limits: [100/minute] }
";
    let rules = file(folder.path(), "rules.yaml", rules);
    let server = TollgateProcess::start(&["--rules", text(&rules)]);
    let (url, admin) = (format!("http://{}", server.http()), format!("http://{}", server.admin()));
    let ask = |more: &[&str]| {
        let start = ["ask", "--server", &url, "--path", "/login", "--ip", "192.0.2.1"];
        run(&[&start[..], more].concat())
    };
    let hint = "hint: add --method, such as --method POST\n";
    let named = ask(&["--admin", &admin]);
    assert_eq!((named.code, &*named.stdout), (Some(0), "Allowed: no rule applies.\n"));
    let note =
        "note: the question has no method, and these rules need one: login (method is POST)\n";
    assert_eq!(named.stderr, format!("{note}{hint}"));
    // The default admin listener may be that of another server.
    let unnamed = ask(&[]);
    let note = "note: the question has no method, so rules that match a method did not apply\n";
    assert_eq!(unnamed.stderr, format!("{note}{hint}"));
    for quiet in [&["--admin", &admin, "--method", "POST"][..], &["--json"]] {
        assert_eq!(ask(quiet).stderr, "", "{quiet:?}");
    }
}
