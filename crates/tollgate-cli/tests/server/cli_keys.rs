//! `tollgate keys`: what it asks of the admin listener, and what operators get done with it.

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::harness::{ProcessExit, TollgateProcess, file, run, text, tollgate};
use crate::server::fake_listener::answer_json_once;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

const REPORT: &str = r#"{"rule":"api","key":"user=42","hash":"1f2e","mode":"enforce",
    "blocked_for_ms":null,"override":null,"limits":[]}"#;

const RULES: &str = "
rules:
  - name: api
    match: { path: /api }
    key: '{user}'
    limits: [4/hour]
  - name: export
    match: { path: '/export/{*rest}' }
    key: '{user}:{path}'
    limits: [1/hour]
overrides:
  - { rule: api, key: user=vip, limits: [100/hour] }
";

/// A server with rules and the means to run `tollgate keys` on it.
struct KeysCommandFixture {
    server: TollgateProcess,
    directory: TempDir,
    options: Vec<String>,
}

impl KeysCommandFixture {
    fn start(flags: &[&str]) -> KeysCommandFixture {
        let directory = tempdir().unwrap();
        let rules = file(directory.path(), "rules.yaml", RULES);
        let server = TollgateProcess::start(&[&["--rules", text(&rules)], flags].concat());
        let options = vec!["--admin".into(), format!("http://{}", server.admin())];
        KeysCommandFixture { server, directory, options }
    }

    fn keys(&self, args: &[&str]) -> ProcessExit {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        run(&[&["keys"], args, &options].concat())
    }

    /// Runs a command that must succeed, and returns its JSON.
    fn json(&self, args: &[&str]) -> Value {
        let ended = self.keys(&[args, &["--json"]].concat());
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{args:?}");
        serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
    }

    /// Runs a command that must fail, and returns its error.
    fn failure(&self, args: &[&str]) -> String {
        let ended = self.keys(args);
        assert_eq!((ended.code, &*ended.stdout), (Some(1), ""), "{args:?} {ended:?}");
        ended.stderr
    }

    fn allowed(&self, user: &str) -> bool {
        let answer = self.server.check(&json!({ "path": "/api", "user": user }).to_string());
        answer["allowed"].as_bool().expect("an answer")
    }
}

#[test]
fn each_command_asks_its_question() {
    let caller = ["api", "user=42"];
    // command, request line, body; reads do not carry the mark of a write
    let rows: [(&[&str], &str, Value); 9] = [
        (&["show"], "GET /api/keys/api/user=42", Value::Null),
        (&["reset"], "DELETE /api/keys/api/user=42", Value::Null),
        (&["block", "--for", "15m"], "POST /api/keys/api/user=42", json!({"block": "15m"})),
        (&["unblock"], "POST /api/keys/api/user=42", json!({ "block": null })),
        (&["grant", "50"], "POST /api/keys/api/user=42", json!({ "grant": 50 })),
        (
            &["override", "--limit", "100/second", "--limit", "9/day"],
            "POST /api/keys/api/user=42",
            json!({ "override": { "limits": ["100/second", "9/day"] } }),
        ),
        (
            &["override", "--limit", "9/day", "--until", "2026-12-01T00:00:00Z"],
            "POST /api/keys/api/user=42",
            json!({ "override": { "limits": ["9/day"], "until": "2026-12-01T00:00:00Z" } }),
        ),
        (&["override", "--remove"], "POST /api/keys/api/user=42", json!({ "override": null })),
        (&["show", "--server", "http://x"], "GET /api/keys/api/user=42", Value::Null),
    ];
    for (command, line, body) in rows {
        let (address, listener) = answer_json_once(200, REPORT);
        let url = format!("http://{address}");
        // The units of `grant` come after the caller.
        let args = [&["keys", command[0]], &caller[..], &command[1..], &["--admin", &url]].concat();
        let ended = run(&args);
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{args:?}");
        let sent = listener.join().unwrap();
        assert_eq!(sent.line, format!("{line} HTTP/1.1"));
        let found = serde_json::from_str(&sent.body).unwrap_or(Value::Null);
        assert_eq!(found, body, "{args:?}");
        let marked = sent.field("x-tollgate-admin");
        assert_eq!(marked, (!line.starts_with("GET")).then_some("1"), "{args:?}");
        assert_eq!(
            (sent.field("host"), sent.field("authorization")),
            (Some(&*address.to_string()), None)
        );
    }
}

#[test]
fn names_and_keys_are_encoded() {
    let (address, listener) = answer_json_once(200, REPORT);
    let url = format!("http://{address}");
    // Options may stand before the command, too.
    let key = "user=a b,path=/x?y#z%\r\nx: y";
    let ended = run(&["keys", "--admin", &url, "show", "my/rule é", key]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let sent = listener.join().unwrap();
    let want =
        "GET /api/keys/my%2Frule%20%C3%A9/user=a%20b%2Cpath=%2Fx%3Fy%23z%25%0D%0Ax%3A%20y HTTP/1.1";
    assert_eq!(sent.line, want);
    assert_eq!(sent.field("x"), None);

    let (address, listener) = answer_json_once(200, r#"{"by":"refusals","window_s":60,"top":[]}"#);
    let url = format!("http://{address}");
    let ended = run(&["keys", "top", "--by", "refusals", "-n", "5", "--admin", &url]);
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "No refusals in the last 30 to 60 s.\n"));
    assert_eq!(listener.join().unwrap().line, "GET /api/top?by=refusals&n=5 HTTP/1.1");
}

#[test]
fn the_token_is_sent_and_never_shown() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "tokens", format!("{TOKEN}\n"));
    let (address, listener) = answer_json_once(200, REPORT);
    let mut command = tollgate();
    command.args(["keys", "show", "api", "user=42"]);
    command.env("TOLLGATE_ADMIN_URL", format!("http://{address}"));
    command.env("TOLLGATE_ADMIN_TOKEN_FILE", &tokens);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let bearer = format!("Bearer {TOKEN}");
    assert_eq!(listener.join().unwrap().field("authorization"), Some(&*bearer));

    for status in [400, 401, 403, 404, 409, 413, 500, 503] {
        let (address, listener) = answer_json_once(status, r#"{"error":"X","message":"Do this."}"#);
        let url = format!("http://{address}");
        let options = ["--admin", &url, "--admin-token-file", text(&tokens)];
        let ended = run(&[&["keys", "reset", "api", "user=42"], &options[..]].concat());
        assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
        let told = format!("error: the server answered {status}: Do this.\n");
        assert!(ended.stderr.starts_with(&told), "{ended:?}");
        assert_eq!(ended.stderr.contains("--admin-token-file"), status == 401, "{ended:?}");
        assert!(!ended.stderr.contains(TOKEN), "{ended:?}");
        assert_eq!(listener.join().unwrap().field("authorization"), Some(&*bearer));
    }
}

#[test]
fn wrong_command_lines_are_told_before_anything_is_asked() {
    // Nobody listens there: whoever asks leaves with 1.
    let rows: [&[&str]; 20] = [
        &[],
        &["show"],
        &["show", "api"],
        &["show", "", "user=42"],
        &["show", "api", ""],
        &["block", "api", "user=42"],
        &["block", "api", "user=42", "--for", "soon"],
        &["block", "api", "user=42", "--for", "0s"],
        &["grant", "api", "user=42"],
        &["grant", "api", "user=42", "-1"],
        &["override", "api", "user=42"],
        &["override", "api", "user=42", "--limit", "1/s", "--remove"],
        &["override", "api", "user=42", "--limit", "1/s", "--for", "1h", "--until", "x"],
        &["override", "api", "user=42", "--remove", "--for", "1h"],
        &["top", "--by", "luck"],
        &["top", "-n", "0"],
        &["top", "-n", "101"],
        &["show", "api", "user=42", "--admin", "::1"],
        &["show", "api", "user=42", "--admin", "http://9190"],
        &["show", "api", "user=42", "--admin", "http://a/b"],
    ];
    for row in rows {
        let ended = run(&[&["keys"], row].concat());
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{row:?} {ended:?}");
    }
    let nobody = run(&["keys", "show", "api", "user=42", "--admin", "http://127.0.0.1:1"]);
    assert_eq!(nobody.code, Some(1));
    assert!(
        nobody.stderr.contains("`tollgate serve`, or choose another with --admin"),
        "{nobody:?}"
    );
}

#[test]
fn help_teaches_with_examples() {
    let help = run(&["keys", "--help"]);
    assert_eq!(help.code, Some(0));
    for example in
        ["show api user=42", "--for 15m", "override api user=42 --remove", "TOLLGATE_ADMIN_URL"]
    {
        assert!(help.stdout.contains(example), "{example}: {}", help.stdout);
    }
}

#[test]
fn a_refused_caller_is_shown_and_reset() {
    let operated = KeysCommandFixture::start(&[]);
    for allowed in [true, true, true, true, false] {
        assert_eq!(operated.allowed("42"), allowed);
    }
    let shown = operated.keys(&["show", "api", "42"]);
    assert_eq!((shown.code, &*shown.stderr), (Some(0), ""));
    let refused = "user=42 is refused by api (4/hour). Retry in ";
    assert!(shown.stdout.starts_with(refused), "{shown:?}");
    let report = operated.json(&["show", "api", "user=42"]);
    let limit = &report["limits"][0];
    assert_eq!((&report["key"], &report["mode"]), (&json!("user=42"), &json!("enforce")));
    assert_eq!((&limit["max"], &limit["remaining"]), (&json!(4), &json!(0)));
    assert_eq!((&limit["allowed"], &limit["tier"]), (&json!(false), &Value::Null));
    let hash = report["hash"].as_str().expect("a hash");
    assert!(shown.stdout.ends_with(&format!("In log lines the key is {hash}.\n")), "{shown:?}");

    let reset = operated.keys(&["reset", "api", "user=42"]);
    let first = reset.stdout.lines().take(2).collect::<Vec<_>>().join(" ");
    let want =
        "api has forgotten what user=42 did. user=42 is allowed: 4 of 4 left under api (4/hour).";
    assert_eq!(first, want, "{reset:?}");
    assert!(operated.allowed("42"));
    assert_eq!(operated.json(&["reset", "api", "user=nobody"])["reset"], false);
}

#[test]
fn units_are_granted() {
    let operated = KeysCommandFixture::start(&[]);
    for _ in 0..4 {
        assert!(operated.allowed("42"));
    }
    assert!(!operated.allowed("42"));
    let granted = operated.json(&["grant", "api", "user=42", "2"]);
    assert_eq!(granted["limits"][0]["remaining"], 2);
    for allowed in [true, true, false] {
        assert_eq!(operated.allowed("42"), allowed);
    }
    let granted = operated.json(&["grant", "api", "user=42", "1000000"]);
    assert_eq!(granted["limits"][0]["remaining"], 4, "no more than was used");
}

#[test]
fn callers_are_blocked_and_let_in_again() {
    let operated = KeysCommandFixture::start(&[]);
    let blocked = operated.json(&["block", "api", "user=42", "--for", "1h"]);
    let left_ms = blocked["blocked_for_ms"].as_u64().expect("blocked");
    assert!((1..=3_600_000).contains(&left_ms), "{left_ms}");
    assert_eq!((operated.allowed("42"), operated.allowed("43")), (false, true));
    let shorter = operated.json(&["block", "api", "user=42", "--for", "1s"]);
    assert!(shorter["blocked_for_ms"].as_u64() > Some(60_000), "a longer block stays: {shorter}");
    let shown = operated.keys(&["show", "api", "42"]);
    assert!(shown.stdout.starts_with("user=42 is blocked under api for another "), "{shown:?}");
    let lifted = operated.json(&["unblock", "api", "user=42"]);
    assert_eq!(lifted["blocked_for_ms"], Value::Null);
    assert!(operated.allowed("42"));
}

#[test]
fn callers_get_limits_of_their_own() {
    let operated = KeysCommandFixture::start(&[]);
    let set = operated.json(&["override", "api", "user=42", "--limit", "50/hour", "--for", "2h"]);
    assert_eq!(
        (&set["override"]["run_time"], &set["limits"][0]["max"]),
        (&json!(true), &json!(50))
    );
    assert!(set["override"]["until"].as_str().expect("an end").ends_with('Z'), "{set}");
    assert!((0..5).all(|_| operated.allowed("42")), "more than the rule allows");
    let removed = operated.json(&["override", "api", "user=42", "--remove"]);
    assert_eq!((&removed["override"], &removed["limits"][0]["max"]), (&Value::Null, &json!(4)));

    let of_file = operated.json(&["show", "api", "user=vip"]);
    assert_eq!(
        (&of_file["override"]["run_time"], &of_file["override"]["until"]),
        (&json!(false), &Value::Null)
    );
    let still = operated.keys(&["override", "api", "user=vip", "--remove"]);
    assert!(still.stdout.contains("still has limits of its own, from the rules file"), "{still:?}");

    let wrong = operated.failure(&["override", "api", "user=42", "--limit", "50/fortnite"]);
    assert!(wrong.contains("the server answered 400") && wrong.contains("fortnite"), "{wrong}");
    let past =
        operated.failure(&["override", "api", "user=42", "--limit", "5/hour", "--until", "soon"]);
    assert!(past.contains("the server answered 400") && past.contains("soon"), "{past}");
}

#[test]
fn keys_with_odd_characters_arrive() {
    let operated = KeysCommandFixture::start(&[]);
    let user = "a/b ü%?#&=,;";
    assert!(operated.allowed(user));
    let report = operated.json(&["show", "api", &format!("user={user}")]);
    assert_eq!(report["key"], format!("user={user}"));
    assert_eq!(report["limits"][0]["remaining"], 3);
    let export = json!({ "path": "/export/x", "user": "42" }).to_string();
    assert_eq!(operated.server.check(&export)["allowed"], true);
    let report = operated.json(&["show", "export", "user=42,path=/export/x"]);
    assert_eq!(report["limits"][0]["remaining"], 0, "{report}");
}

#[test]
fn who_is_not_there_is_told() {
    let operated = KeysCommandFixture::start(&[]);
    let told = operated.failure(&["show", "apo", "user=42"]);
    assert!(told.contains("the server answered 404") && told.contains("`api`"), "{told}");
    let told = operated.failure(&["show", "api", "ip=192.0.2.1"]);
    assert!(told.contains("the server answered 400"), "{told}");
    let at_data_listener = format!("http://{}", operated.server.http());
    let told = run(&["keys", "show", "api", "42", "--admin", &at_data_listener]).stderr;
    assert!(told.contains("the server answered 404") && told.contains("data listener"), "{told}");
}

#[test]
fn the_heaviest_callers_are_listed() {
    let operated = KeysCommandFixture::start(&[]);
    for user in ["1", "2", "2", "3", "3", "3", "3", "3", "3"] {
        operated.allowed(user);
    }
    let top = operated.json(&["top"]);
    let names: Vec<_> =
        top["top"].as_array().expect("a list").iter().map(|one| &one["key"]).collect();
    assert_eq!(names, ["user=3", "user=2", "user=1"], "{top}");
    assert_eq!((&top["top"][0]["count"], &top["top"][0]["refused"]), (&json!(6), &json!(2)));
    let refused = operated.keys(&["top", "--by", "refusals", "-n", "1"]);
    assert!(refused.stdout.starts_with("The most refusals in the last "), "{refused:?}");
    assert!(refused.stdout.contains("user=3") && !refused.stdout.contains("user=2"), "{refused:?}");
    let one = operated.json(&["top", "-n", "1"]);
    assert_eq!(one["top"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_protected_admin_listener_wants_its_token() {
    let directory = tempdir().unwrap();
    let tokens = file(directory.path(), "tokens", TOKEN);
    let wrong = file(directory.path(), "wrong", "not-the-token-that-it-knows");
    let mut operated = KeysCommandFixture::start(&["--admin-token-file", text(&tokens)]);
    let told = operated.failure(&["reset", "api", "user=42"]);
    assert!(told.contains("hint: give a file with the token: --admin-token-file FILE"), "{told}");
    let told = operated.failure(&["reset", "api", "user=42", "--admin-token-file", text(&wrong)]);
    assert!(told.contains("does not accept the first token of --admin-token-file"), "{told}");
    let token = ["--admin-token-file", text(&tokens)];
    let reset = operated.json(&[&["reset", "api", "user=42"], &token[..]].concat());
    assert_eq!(reset["reset"], false);
    let blocked =
        operated.json(&[&["block", "api", "user=42", "--for", "1m"], &token[..]].concat());
    assert!(blocked["blocked_for_ms"].is_u64(), "{blocked}");
    // The log names the caller as `show` does, and nobody's token.
    let hash = blocked["hash"].as_str().expect("a hash").to_string();
    operated.server.wait_for_log("a key was blocked");
    let ended = operated.server.stop();
    let line =
        ended.stderr.lines().find(|line| line.contains("a key was blocked")).expect("a line");
    for part in ["rule=api", &hash, "for=", "by=127.0.0.1", "token=1"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!ended.stderr.contains(TOKEN) && !ended.stderr.contains("user=42"), "{ended:?}");
    drop(operated.directory);
}
