//! Descriptors: a start takes what it may have, and says so if that cannot be enough.

use std::fs;
use std::process::{Command, Stdio};

use crate::harness::Server;

const RAISED: &str = "the limit is raised";
const TOO_FEW: &str = "more connections than this process may have open files";

/// A server that is started with a soft and a hard limit of open files.
fn start(soft: u64, hard: u64, flags: &[&str]) -> Server {
    let mut command = Command::new("sh");
    let script = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$@\"");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_tollgate")]);
    command.args(["serve", "--limit", "9/hour", "--workers", "1", "--max-keys", "1000"]);
    command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--resp", "none"]);
    command.args(["--grpc", "none"]).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Server::spawn(command).expect("it starts")
}

/// The limit that holds for a process.
fn soft_limit(server: &Server) -> u64 {
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    line.split_whitespace().nth(3).and_then(|soft| soft.parse().ok()).expect("a number")
}

#[test]
fn a_start_takes_what_it_may_and_says_what_is_missing() {
    // One data door with 100 connections, the admin door with 256, their threads, and 128 besides.
    let needed = 100 + 256 + 2 * 4 + 128;
    // limits, soft and hard | raised, too few
    let rows = [
        (200, needed, true, false),
        (200, needed - 1, true, true),
        (needed, needed, false, false),
        (200, 200, false, true),
    ];
    for (soft, hard, raised, too_few) in rows {
        let at = format!("{soft} {hard}");
        let server = start(soft, hard, &["--max-connections", "100"]);
        assert_eq!(soft_limit(&server), hard, "{at}");
        assert_eq!(server.post("/v1/check", r#"{"user":"1","cost":0}"#).status, 200, "{at}");
        let told = server.stop().stderr;
        let line = |text: &str| told.lines().find(|line| line.contains(text)).unwrap_or_default();
        assert_eq!(line(RAISED).ends_with(&format!(" from={soft} to={hard}")), raised, "{told}");
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
