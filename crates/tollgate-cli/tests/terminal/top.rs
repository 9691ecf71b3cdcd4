//! `tollgate top` in a terminal, and `--once` without one.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::tempdir;
use testkit::wait;

use super::tmux::TmuxPane;
use crate::harness::{TollgateProcess, file, run, text};

/// A user whose name clears the screen, sets its title and rings the bell.
const HOSTILE: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}";

/// A server with traffic: 20 requests of alice, 15 of them refused, 9 of bob, 4 of them refused, 1 of a hostile user.
fn busy_server() -> TollgateProcess {
    let server = TollgateProcess::start(&["--limit", "5/hour burst 5"]);
    for (user, requests) in [("alice", 20), ("bob", 9), (HOSTILE, 1)] {
        let body = json!({ "user": user }).to_string();
        (0..requests).for_each(|_| drop(server.check(&body)));
    }
    server
}

fn admin_url(server: &TollgateProcess) -> String {
    format!("http://{}", server.admin())
}

/// The report of `/api/keys` about a user.
fn report(server: &TollgateProcess, user: &str) -> Value {
    let report = server.admin_get(&format!("/api/keys/default/user={user}"), &[]);
    assert_eq!(report.status, 200, "{report:?}");
    report.json()
}

#[test]
fn keys_sort_filter_act_and_quit() {
    let server = busy_server();
    let pane = TmuxPane::run(80, 24, &format!("$TOLLGATE top --admin {}", admin_url(&server)));
    // The server spells keys without control characters; what another server sends is escaped.
    let first = pane.wait_for("user=%1B[2J%1B]0;owned%07");
    let lines: Vec<&str> = first.lines().collect();
    assert!(lines[0].starts_with("tollgate top  http://127.0.0.1:"), "{first}");
    assert!(lines[1].starts_with("ready, up ") && lines[1].contains("store memory up"), "{first}");
    assert!(lines[2].starts_with("allowed "), "{first}");
    let row = |name: &str| lines.iter().position(|line| line.contains(name)).expect(name);
    assert!(row("user=alice") < row("user=bob"), "by requests: {first}");
    let counts: Vec<&str> = lines[row("user=alice")].split_whitespace().collect();
    assert_eq!(counts, ["user=alice", "default", "20", "15"]);

    pane.press(&["s"]);
    pane.wait_for("sort: refused");
    pane.press(&["s"]);
    pane.wait_for("sort: name");
    pane.press(&["/", "B", "O", "B", "Enter"]);
    pane.wait_until("only bob", |text| text.contains("user=bob") && !text.contains("user=alice"));

    // Asked back once; no means no.
    pane.press(&["r"]);
    pane.wait_for("Reset user=bob under default?");
    pane.press(&["n"]);
    pane.wait_for("Nothing was done.");
    assert_eq!(report(&server, "bob")["limits"][0]["remaining"], 0);
    pane.press(&["r", "y"]);
    pane.wait_for("Reset user=bob under default.");
    assert_eq!(report(&server, "bob")["limits"][0]["remaining"], 5);
    pane.press(&["b"]);
    pane.wait_for("For: 15m_");
    pane.press(&["BSpace", "h", "Enter"]);
    pane.wait_for("Blocked user=bob under default for 15h.");
    assert!(report(&server, "bob")["blocked_for_ms"].as_u64() > Some(14 * 3_600_000));
    pane.press(&["u", "y"]);
    pane.wait_for("Unblocked user=bob under default.");
    assert_eq!(report(&server, "bob")["blocked_for_ms"], Value::Null);
    server.check(r#"{"user":"bob","cost":5}"#);
    pane.press(&["g", "BSpace", "BSpace", "2", "Enter"]);
    pane.wait_for("Granted 2 units to user=bob under default.");
    assert_eq!(report(&server, "bob")["limits"][0]["remaining"], 2);

    // Esc and a key at once look like Alt and that key.
    pane.press(&["Escape", "2"]);
    let rules = pane.wait_for("5/hour");
    assert!(rules.contains("enforce") && rules.contains("req/s"), "{rules}");
    pane.press(&["3"]);
    pane.wait_for("kind         memory, up");
    pane.press(&["?"]);
    pane.wait_for("Acts are asked back once");
    pane.press(&["1", "1"]);
    // Narrow and low: the columns that do not fit are left out.
    pane.resize(40, 12);
    let narrow = pane.wait_until("a narrow table", |text| {
        text.contains("user=alice") && !text.contains("default ")
    });
    assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
    pane.press(&["q"]);
    let left = pane.wait_for("restored");
    assert!(left.contains("left 0") && !left.contains("user=alice"), "{left}");
}

#[test]
fn a_server_that_is_away_is_told_and_found_again() {
    let server = busy_server();
    let address = server.admin().to_string();
    let pane = TmuxPane::run(100, 24, &format!("$TOLLGATE top --admin http://{address}"));
    pane.wait_for("user=alice");
    assert_eq!(server.stop().code, Some(0));
    let away = pane.wait_for("SERVER AWAY");
    assert!(away.contains("user=alice"), "the last figures stay: {away}");
    let again = TollgateProcess::start(&["--limit", "5/hour", "--admin", &address]);
    again.check(r#"{"user":"carol"}"#);
    let back = pane.wait_for("user=carol");
    assert!(!back.contains("SERVER AWAY"), "{back}");
    // A signal restores the terminal too.
    let sent = Command::new("kill").args(["-TERM", &pane.process_id()]).status();
    assert!(sent.expect("kill runs").success());
    pane.wait_for("restored");
    let other = TmuxPane::run(60, 10, &format!("$TOLLGATE top --admin http://{address}"));
    other.wait_for("user=carol");
    other.press(&["C-c"]);
    other.wait_for("restored");
}

#[test]
fn it_ends_with_its_terminal() {
    let server = TollgateProcess::start(&["--limit", "5/hour"]);
    let pane = TmuxPane::run(80, 24, &format!("$TOLLGATE top --admin {}", admin_url(&server)));
    pane.wait_for("quit");
    let process = Path::new("/proc").join(pane.process_id());
    drop(pane);
    let ended = wait::within(crate::harness::DEADLINE, || (!process.exists()).then_some(()));
    assert!(ended.is_some(), "{} still runs", process.display());
}

#[test]
fn one_look_needs_no_terminal() {
    let directory = tempdir().unwrap();
    let server = busy_server();
    let url = admin_url(&server);
    let once = run(&["top", "--once", "--admin", &url]);
    assert_eq!((once.code, &*once.stderr), (Some(0), ""), "{once:?}");
    assert!(once.stdout.chars().all(|c| c == '\n' || !c.is_control()), "{once:?}");
    let squeezed: Vec<String> = once
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for line in [
        "Callers with the most requests",
        "user=alice default 20 15",
        "user=bob default 9 4",
        "user=%1B[2J%1B]0;owned%07 default 1 0",
        "default enforce 11 19 0 5/hour burst 5",
        "blocked 0 callers",
    ] {
        assert!(squeezed.iter().any(|found| found == line), "{line}: {}", once.stdout);
    }
    let no_terminal = run(&["top", "--admin", &url]);
    assert_eq!(no_terminal.code, Some(2));
    assert!(no_terminal.stderr.contains("top --once"), "{no_terminal:?}");
    drop(server);
    let away = run(&["top", "--once", "--admin", &url]);
    assert_eq!(away.code, Some(1));
    assert!(away.stderr.contains("tollgate serve"), "{away:?}");
    // With a token.
    let tokens = file(directory.path(), "tokens", "0123456789abcdef0123456789abcdef\n");
    let locked = TollgateProcess::start(&["--limit", "1/s", "--admin-token-file", text(&tokens)]);
    let url = admin_url(&locked);
    let without = run(&["top", "--once", "--admin", &url]);
    assert!(
        without.code == Some(1) && without.stderr.contains("--admin-token-file"),
        "{without:?}"
    );
    let with = run(&["top", "--once", "--admin", &url, "--admin-token-file", text(&tokens)]);
    assert_eq!(with.code, Some(0), "{with:?}");
}
