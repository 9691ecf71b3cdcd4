//! Who may ask: tokens, before anything else is told.

use testkit::wait::until_true;

use crate::harness::{TollgateProcess, file, text};
use crate::resp::resp_client::{RespReply, RespTestClient, command};

const TOKENS: &str = "0123456789abcdef\nfedcba9876543210\n";
const NOAUTH: &str = "NOAUTH Authentication required.";
const WRONGPASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";

fn start(flags: &[&str]) -> (tempfile::TempDir, TollgateProcess) {
    let directory = tempfile::tempdir().unwrap();
    let tokens = file(directory.path(), "tokens", TOKENS);
    let mut all = vec!["--auth-token-file", text(&tokens)];
    all.extend(flags);
    let server = TollgateProcess::start(&all);
    (directory, server)
}

#[test]
fn nothing_is_obeyed_before_a_token_is_shown() {
    let (_directory, server) = start(&["--limit", "5/hour"]);
    let mut redis = RespTestClient::connect(&server);
    for line in ["PING", "CL.THROTTLE k 4 5 60", "TG.CHECK user 1", "TG.RESET limit user=1", "INFO"]
    {
        assert_eq!(redis.say(line).error(), NOAUTH, "{line}");
    }
    assert!(redis.say("HELLO 3").error().starts_with("NOAUTH HELLO must be called"));
    for line in ["AUTH wrong", "AUTH 0123456789abcdeF", "AUTH default x", "HELLO 3 AUTH a b"] {
        assert_eq!(redis.say(line).error(), WRONGPASS, "{line}");
    }
    assert_eq!(redis.say("AUTH a b c").error(), "ERR syntax error");
    assert_eq!(redis.say("PING").error(), NOAUTH);
    assert_eq!(redis.say("AUTH fedcba9876543210"), RespReply::ok());
    assert_eq!(redis.say("CL.THROTTLE k 4 5 60"), RespReply::integers(&[0, 5, 4, -1, 12]));
    assert_eq!(redis.say("AUTH wrong").error(), WRONGPASS);
    assert_eq!(redis.say("PING"), RespReply::Simple("PONG".into()), "a mistake takes nothing away");
    assert_eq!(redis.say("RESET"), RespReply::Simple("RESET".into()));
    assert_eq!(redis.say("PING").error(), NOAUTH);
    assert_eq!(redis.say("AUTH anybody 0123456789abcdef"), RespReply::ok());

    let mut redis = RespTestClient::connect(&server);
    let greeted = redis.say("HELLO 3 AUTH default 0123456789abcdef SETNAME me");
    assert!(matches!(greeted, RespReply::Map(_)), "{greeted:?}");
    assert_eq!(redis.say("CLIENT GETNAME"), RespReply::text("me"));
    assert_eq!(redis.say("QUIT"), RespReply::ok());
    // Five wrong ones, and seven commands that needed one.
    let metrics = server.admin_get("/metrics", &[]).body;
    let counted = r#"tollgate_resp_errors_total{reason="auth"}"#;
    let line = metrics.lines().find(|line| line.starts_with(counted)).expect("a count");
    assert_eq!(line, format!("{counted} 12"));
    // Whatever was said with them, tokens are nowhere.
    let ended = server.stop();
    let warned = ended.stderr.matches("a client of the resp listener sent a wrong token").count();
    assert_eq!(warned, 1, "once a minute: {}", ended.stderr);
    let told = ended.stdout + &ended.stderr;
    assert!(!told.contains("0123456789abcdef") && !told.contains("fedcba"), "{told}");
}

#[test]
fn a_greeting_that_is_wrong_admits_nobody() {
    let (_directory, server) = start(&[]);
    let greeting = ["HELLO", "3", "AUTH", "u", "0123456789abcdef"];
    // What follows it, and the error
    let rows: [(&[&str], &str); 3] = [
        (&["NOPE"], "ERR Syntax error in HELLO option 'NOPE'"),
        (&["SETNAME"], "ERR Syntax error in HELLO option 'SETNAME'"),
        (&["SETNAME", "a b"], "ERR Client names cannot contain spaces"),
    ];
    for (more, why) in rows {
        let mut redis = RespTestClient::connect(&server);
        let told = redis.ask(&[&greeting, more].concat());
        assert!(told.error().starts_with(why), "{told:?}");
        assert_eq!(redis.say("PING").error(), NOAUTH, "{more:?}");
        assert!(matches!(redis.ask(&greeting), RespReply::Map(_)), "{more:?}");
    }
}

#[test]
fn a_pipeline_may_begin_with_its_token() {
    let (_directory, server) = start(&[]);
    let mut redis = RespTestClient::connect(&server);
    let call = command(&["CL.THROTTLE", "k", "4", "5", "60"]);
    let auth = command(&["AUTH", "0123456789abcdef"]);
    redis.send(&[&call[..], &auth, &call, &call].concat());
    assert_eq!(redis.receive().error(), NOAUTH);
    assert_eq!(redis.receive(), RespReply::ok());
    assert_eq!(redis.receive(), RespReply::integers(&[0, 5, 4, -1, 12]));
}

#[test]
fn strangers_have_less_room_and_less_time() {
    let (_directory, server) = start(&["--header-timeout", "1s"]);
    let rows: [(Vec<u8>, &str); 2] = [
        (b"*11\r\n".to_vec(), "-ERR Protocol error: unauthenticated multibulk length\r\n"),
        (b"*1\r\n$16385\r\n".to_vec(), "-ERR Protocol error: unauthenticated bulk length\r\n"),
    ];
    for (bytes, want) in rows {
        let mut redis = RespTestClient::connect(&server);
        redis.send(&bytes);
        assert_eq!(redis.until_closed(), want);
    }
    let mut silent = RespTestClient::connect(&server);
    assert_eq!(silent.until_closed(), "");
    // Empty lines say nothing either.
    let mut stranger = RespTestClient::connect(&server);
    until_true("a stranger to be closed", || stranger.try_send(b"\r\n").is_err());
    let mut known = RespTestClient::connect(&server);
    assert_eq!(known.say("AUTH 0123456789abcdef"), RespReply::ok());
    // The silent one came later and is gone: the known one is not.
    assert_eq!(RespTestClient::connect(&server).until_closed(), "");
    assert_eq!(known.say("PING"), RespReply::Simple("PONG".into()));
}

#[test]
fn without_tokens_one_user_needs_no_password() {
    let server = TollgateProcess::start(&[]);
    let mut redis = RespTestClient::connect(&server);
    let told = redis.say("AUTH x");
    assert!(
        told.error().starts_with("ERR AUTH <password> called without any password"),
        "{told:?}"
    );
    assert_eq!(redis.say("AUTH default x"), RespReply::ok());
    assert_eq!(redis.say("AUTH other x").error(), WRONGPASS);
    assert_eq!(redis.say("PING"), RespReply::Simple("PONG".into()));
}
