//! Blocks as single commands, and the commands among them that start a server.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::markdown::PageBlock;

/// Listeners of `tollgate serve` that are open without a flag, with their ports.
const DEFAULT_LISTENERS: [(&str, u16); 4] =
    [("http", 8080), ("grpc", 8081), ("resp", 6380), ("admin", 9190)];

/// A command of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageCommand {
    pub(super) text: String,
    /// Line number in the page.
    pub(super) line: usize,
    /// The output shown in the block itself, in a block with `$`.
    pub(super) shown: Option<String>,
}

/// Splits a block into commands: lines with `$ ` and their output, or lines until they are complete for bash.
pub(super) fn commands(block: &PageBlock) -> Vec<PageCommand> {
    let mut commands: Vec<PageCommand> = Vec::new();
    let lines = block.text.lines().zip(block.line..);
    if block.text.starts_with("$ ") {
        for (text, line) in lines {
            if let Some(command) = text.strip_prefix("$ ") {
                let shown = Some(String::new());
                commands.push(PageCommand { text: command.into(), line, shown });
            } else if let Some(PageCommand { shown: Some(shown), .. }) = commands.last_mut() {
                *shown += &format!("{text}\n");
            }
        }
        return commands;
    }
    let mut incomplete = false;
    for (text, line) in lines {
        if incomplete {
            let command = commands.last_mut().expect("an incomplete command");
            command.text += &format!("\n{text}");
        } else if text.trim().is_empty() || text.trim_start().starts_with('#') {
            continue;
        } else {
            commands.push(PageCommand { text: text.into(), line, shown: None });
        }
        incomplete = commands.last().is_some_and(|command| !is_complete(&command.text));
    }
    commands
}

/// Asks bash; it warns of here-documents without an end, and accepts a trailing backslash.
fn is_complete(command: &str) -> bool {
    let parsed = Command::new("bash").args(["-n", "-c", command]).output().expect("bash runs");
    !command.ends_with('\\') && parsed.stderr.is_empty()
}

/// A command that starts a server, with the ports that the page calls its listeners by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServeCommand {
    /// The command with free ports, without `&`.
    pub(super) text: String,
    pub(super) listeners: BTreeMap<String, u16>,
}

/// Recognizes `tollgate serve`, also with variables before it and `&` after it.
pub(super) fn serve_command(command: &str) -> Option<ServeCommand> {
    static SERVE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^\s*(\w+=\S+ +)*tollgate serve\b").expect("valid"));
    static FLAG: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"--(http|grpc|resp|admin|gateway)[ =](none|\S+:(\d+))").expect("valid")
    });
    static COMMENT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\s+# .*$").expect("valid"));
    let helps = command.contains(" --help") || command.contains(" -h");
    if !SERVE.is_match(command) || helps {
        return None;
    }
    let command = COMMENT.replace(command, "");
    let command = command.trim_end().trim_end_matches('&').trim_end();
    let mut listeners: BTreeMap<String, u16> =
        DEFAULT_LISTENERS.iter().map(|&(name, port)| (name.to_string(), port)).collect();
    for flag in FLAG.captures_iter(command) {
        match flag.get(3).and_then(|port| port.as_str().parse().ok()) {
            Some(port) => listeners.insert(flag[1].to_string(), port),
            None => listeners.remove(&flag[1]),
        };
    }
    let free = |flag: &Captures<'_>| match flag.get(3) {
        Some(_) => format!("--{} 127.0.0.1:0", &flag[1]),
        None => flag[0].to_string(),
    };
    Some(ServeCommand { text: FLAG.replace_all(command, free).into_owned(), listeners })
}

#[test]
fn commands_end_where_bash_says() {
    let block = |text: &str| PageBlock::hidden(text, 7);
    let text = "# note\nls a \\\n  b\n\nfor i in 1 2; do\n  echo $i\ndone\nprintf '%s\n' x |\n  cat\ncat <<E\nx\nE\n";
    let found: Vec<_> =
        commands(&block(text)).into_iter().map(|one| (one.line, one.text)).collect();
    let want = [
        (8, "ls a \\\n  b"),
        (11, "for i in 1 2; do\n  echo $i\ndone"),
        (14, "printf '%s\n' x |\n  cat"),
        (17, "cat <<E\nx\nE"),
    ];
    assert_eq!(found, want.map(|(line, text)| (line, text.to_string())));
    let found = commands(&block("$ echo a\na\n$ true\n"));
    let found: Vec<_> = found.iter().map(|one| (one.text.as_str(), one.shown.as_deref())).collect();
    assert_eq!(found, [("echo a", Some("a\n")), ("true", Some(""))]);
}

#[test]
fn servers_get_free_ports() {
    let found =
        serve_command("A=b tollgate serve --gateway 127.0.0.1:8000 --grpc none --limit 1/s & # x");
    let found = found.expect("a server");
    assert_eq!(found.text, "A=b tollgate serve --gateway 127.0.0.1:0 --grpc none --limit 1/s");
    let ports: Vec<_> = found.listeners.iter().map(|(name, port)| (name.as_str(), *port)).collect();
    assert_eq!(ports, [("admin", 9190), ("gateway", 8000), ("http", 8080), ("resp", 6380)]);
    for other in ["tollgate serve --help", "tollgate check x", "echo tollgate serve"] {
        assert_eq!(serve_command(other), None, "{other}");
    }
}
