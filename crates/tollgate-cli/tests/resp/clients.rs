//! Clients that people have: redis-cli, redis-py and ioredis.

use std::process::{Command, Output};
use std::time::Duration;

use testkit::peers;

use crate::harness::{TollgateProcess, file, text};

/// Runs a program to its end; its standard output.
fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it is installed");
    let (told, wrong) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{told}\n{wrong}");
    told.into_owned()
}

/// `timeout` ends what hangs.
fn bounded(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args([&Duration::from_secs(60).as_secs().to_string(), program]);
    command
}

fn redis_cli(server: &TollgateProcess, args: &[&str]) -> String {
    let port = server.resp().port().to_string();
    run(bounded("redis-cli").args(["-h", "127.0.0.1", "-p", &port]).args(args))
}

#[test]
fn redis_cli_asks() {
    let server = TollgateProcess::start(&["--limit", "5/hour"]);
    let calls = |times: &str, args: &[&str]| {
        let all = [&["-r", times, "CL.THROTTLE"], args].concat();
        redis_cli(&server, &all)
    };
    let told = calls("1", &["k", "15", "30", "60"]);
    assert_eq!(told, "0\n16\n15\n-1\n2\n");
    assert_eq!(calls("1", &["never", "4", "1", "1", "6"]), "1\n5\n5\n-1\n0\n");
    let wrong = calls("1", &["k", "x", "2", "3"]);
    assert_eq!(wrong.trim(), "Cell error: Store error: Couldn't parse as integer: x");
    assert_eq!(redis_cli(&server, &["PING"]), "PONG\n");
    let told = redis_cli(&server, &["-3", "TG.CHECK", "user", "42"]);
    assert!(told.starts_with("0\n5\n4\n-1\n") && told.ends_with("\ndefault\n"), "{told}");
    assert!(redis_cli(&server, &["INFO"]).contains("tollgate_version:"));
    let unknown = redis_cli(&server, &["GET", "a"]);
    assert_eq!(unknown.trim_end(), "ERR unknown command 'GET', with args beginning with: 'a'");
    // Many at once, as its `--pipe` sends them.
    let directory = tempfile::tempdir().unwrap();
    let one = crate::resp::resp_client::command(&["CL.THROTTLE", "piped", "99", "100", "60"]);
    let commands = file(directory.path(), "commands", one.repeat(10_000));
    let piped = std::fs::File::open(commands).unwrap();
    let port = server.resp().port().to_string();
    let told = run(bounded("redis-cli").args(["-p", &port, "--pipe"]).stdin(piped));
    assert!(told.contains("errors: 0, replies: 10000"), "{told}");
}

#[test]
fn redis_cli_shows_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = file(directory.path(), "tokens", "0123456789abcdef\n");
    let server = TollgateProcess::start(&["--auth-token-file", text(&tokens)]);
    let ask = |args: &[&str]| redis_cli(&server, &[args, &["PING"]].concat());
    assert_eq!(ask(&["--no-auth-warning", "-a", "0123456789abcdef"]), "PONG\n");
    let both = ["--no-auth-warning", "--user", "app", "--pass", "0123456789abcdef", "-3"];
    assert_eq!(ask(&both), "PONG\n");
    assert!(ask(&[]).starts_with("NOAUTH"));
    assert!(ask(&["--no-auth-warning", "-a", "wrong"]).contains("NOAUTH"));
}

/// Starts a server with a token and runs a script against it.
fn script(program: &str, name: &str, variable: (&str, std::path::PathBuf)) {
    let directory = tempfile::tempdir().unwrap();
    let tokens = file(directory.path(), "tokens", "0123456789abcdef\n");
    let server = TollgateProcess::start(&["--limit", "5/hour"]);
    let guarded = TollgateProcess::start(&["--auth-token-file", text(&tokens)]);
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/resp").join(name);
    let told = run(bounded(program)
        .arg(path)
        .args([&server, &guarded].map(|server| server.resp().port().to_string()))
        .env(variable.0, variable.1));
    assert_eq!(told.trim(), "all is well");
}

#[test]
fn redis_py_asks_in_every_way_it_has() {
    script("python3", "redis_py.py", ("PYTHONPATH", peers::python_path()));
}

#[test]
fn ioredis_asks_in_every_way_it_has() {
    script("node", "ioredis.js", ("NODE_PATH", peers::node_path()));
}
