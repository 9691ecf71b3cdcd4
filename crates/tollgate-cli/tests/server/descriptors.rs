//! Open files: a start takes those that it needs, and says so if it may not have enough.

use std::fs;
use std::process::{Command, Stdio};

use crate::harness::TollgateProcess;

const TOO_FEW: &str = "more connections than this process may have open files";

/// A server that is started with a soft and a hard limit of open files.
fn start(soft: u64, hard: u64, flags: &[&str]) -> TollgateProcess {
    let mut command = Command::new("sh");
    let script = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$@\"");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_tollgate")]);
    command.args(["serve", "--limit", "9/hour", "--workers", "1", "--max-keys", "1000"]);
    command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--resp", "none"]);
    command.args(["--grpc", "none"]).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    TollgateProcess::spawn(command).expect("it starts")
}

/// The limit that holds for a process.
fn soft_limit(server: &TollgateProcess) -> u64 {
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    line.split_whitespace().nth(3).and_then(|soft| soft.parse().ok()).expect("a number")
}

#[test]
fn a_start_takes_what_it_may_and_says_what_is_missing() {
    // One data listener with 100 connections, the admin listener with 256, their threads, and 128 besides.
    let needed = 100 + 256 + 2 * 4 + 128;
    // limits, soft and hard | soft afterwards, too few
    let rows = [
        (200, needed, needed, false),
        (200, needed + 500, needed, false),
        (200, needed - 1, needed - 1, true),
        (needed, needed, needed, false),
        (needed + 5, needed + 9, needed + 5, false),
        (200, 200, 200, true),
    ];
    for (soft, hard, afterwards, too_few) in rows {
        let at = format!("{soft} {hard}");
        let server = start(soft, hard, &["--max-connections", "100"]);
        assert_eq!(soft_limit(&server), afterwards, "{at}");
        assert_eq!(server.post("/v1/check", r#"{"user":"1","cost":0}"#).status, 200, "{at}");
        let told = server.stop().stderr;
        let line = |text: &str| told.lines().find(|line| line.contains(text)).unwrap_or_default();
        let say = format!(" open_files_max={hard} needed={needed}");
        assert_eq!(line(TOO_FEW).contains(&say), too_few, "{told}");
    }
    // What is proposed is right.
    let told = start(200, needed - 1, &["--max-connections", "100"]).stop().stderr;
    assert!(told.contains(" max_connections_that_fit=99\n"), "{told}");
    let told = start(200, needed - 1, &["--max-connections", "99"]).stop().stderr;
    assert!(!told.contains(TOO_FEW), "{told}");
    // Nothing is proposed where the rest alone is too much.
    let told = start(200, 200, &["--max-connections", "1"]).stop().stderr;
    assert!(told.contains(TOO_FEW) && !told.contains("that_fit"), "{told}");
}

/// Nobody who starts a server for the first time reads of open files: by default it takes as many
/// connections as fit, and warns only where those of one address would not.
#[test]
fn by_default_connections_fit_into_the_files_there_are() {
    let beside = 256 + 2 * 4 + 128;
    // hard limit, flags | warned
    let rows: [(u64, &[&str], bool); 4] = [
        (beside + 10_000, &[], false),
        (beside + 1_000, &[], false),
        (beside + 999, &[], true),
        (beside + 999, &["--max-connections-per-ip", "999"], false),
    ];
    for (hard, flags, warned) in rows {
        let server = start(200, hard, flags);
        assert_eq!(soft_limit(&server), hard);
        assert_eq!(server.post("/v1/check", r#"{"user":"1","cost":0}"#).status, 200);
        let told = server.stop().stderr;
        assert_eq!(told.contains(TOO_FEW), warned, "{hard} {flags:?}: {told}");
    }
    let told = start(200, beside + 1_000, &[]).stop().stderr;
    let first = told.lines().next().unwrap_or_default();
    assert!(first.contains(" info  server started "), "the first line of all: {told}");
    // What fits is let in, and no more.
    let server = start(200, beside + 3, &["--max-connections-per-ip", "3"]);
    let mut clients: Vec<_> =
        (0..4).map(|_| crate::harness::TestHttpClient::connect(server.http())).collect();
    for client in &mut clients[..3] {
        assert_eq!(
            client.request("POST", "/v1/check", &[], r#"{"user":"1","cost":0}"#).status,
            200
        );
    }
    assert_eq!(clients[3].receive(true).unwrap().status, 503);
}
