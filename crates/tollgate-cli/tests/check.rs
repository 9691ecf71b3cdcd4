//! `tollgate check`: what is said about rules files, to people and to programs, and the exit code.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

#[cfg(unix)]
use crate::command::paste;
use crate::command::{CommandOutput, feed, file, run, run_with, tollgate};

const GOOD: &str = "rules: [{ name: api, key: '{user}', limits: [100/second, 1000/minute] }]\n";

const TIERED: &str = "\
tiers: { free: 1, pro: 10 }
rules: [{ name: tiered, key: '{user}', limits: [100/second], tiered: true }]
overrides: [{ rule: tiered, key: vip, limits: [50/second] }]
";

/// An override that is over.
const ENDED: &str = "\
rules: [{ name: sms, key: '{user}', limits: [30/day] }]
overrides:
  - { rule: sms, key: vip, limits: [50/day], until: 2020-01-01T00:00:00Z }
";

const ENDED_WARNING: &str = "\
warning: this override has ended
  --> ended.yaml:3:53
   |
 3 |   - { rule: sms, key: vip, limits: [50/day], until: 2020-01-01T00:00:00Z }
   |                                                     ^^^^^^^^^^^^^^^^^^^^
   = hint: remove it
";

const WRONG: &str = "\
rules:
  - name: api
    key: '{usr}'
    limit: [10/second]
    limits: [0/second]
";

const WRONG_ERRORS: &str = "\
error: there is no fact `usr`
  --> wrong.yaml:3:10
   |
 3 |     key: '{usr}'
   |          ^^^^^^^
   = hint: did you mean `user`?

error: there is no field `limit` in a rule
  --> wrong.yaml:4:5
   |
 4 |     limit: [10/second]
   |     ^^^^^
   = hint: did you mean `limits`?

error: the rate is zero
  --> wrong.yaml:5:14
   |
 5 |     limits: [0/second]
   |              ^^^^^^^^
   = hint: write at least 1, such as 1/day

not valid: 3 errors
";

const MISSING_ERRORS: &str = "\
error: there is no such file or directory
  --> missing.yaml
   = hint: look at the spelling and at the directory the command runs in

error: there is no such file or directory
  --> gone.yaml
   = hint: look at the spelling and at the directory the command runs in

not valid: 2 errors
";

/// A limit that is an estimate of few units.
const FEW: &str = "rules: [{ name: login, key: '{ip}', limits: [5/minute] }]\n";

const FEW_NOTE: &str = "\
note: `5/minute` is an estimate: up to 10 units can pass within one period
  --> few.yaml:1:46
   |
 1 | rules: [{ name: login, key: '{ip}', limits: [5/minute] }]
   |                                              ^^^^^^^^
   = hint: for a hard bound write `{ rate: 5/minute, algorithm: sliding_window_log }`; if an estimate will do, write `algorithm: sliding_window_counter`
";

/// The command in a directory with all of these files. Each test has its own.
fn in_directory(name: &str) -> Command {
    for (path, text) in [
        ("good.yaml", GOOD),
        ("several/a.yaml", GOOD),
        ("several/b.yml", TIERED),
        ("several/.hidden.yaml", WRONG),
        ("several/notes.txt", WRONG),
        ("tiered.yaml", TIERED),
        ("ended.yaml", ENDED),
        ("few.yaml", FEW),
        ("wrong.yaml", WRONG),
    ] {
        file(&format!("{name}/{path}"), text);
    }
    let mut command = tollgate();
    command.current_dir(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)).arg("check");
    command
}

#[test]
fn people_are_told_what_was_found() {
    let denied = format!("{ENDED_WARNING}\nnot valid: 1 warning, which --deny-warnings denies\n");
    let on_input = WRONG_ERRORS.replace("wrong.yaml", "<stdin>");
    let mixed =
        format!("{ENDED_WARNING}\n{}", WRONG_ERRORS.replace("3 errors\n", "3 errors, 1 warning\n"));
    #[rustfmt::skip]
    let table: [(&[&str], &str, i32, &str, &str); 15] = [
        // Arguments, input, exit code, standard output, standard error.
        (&["good.yaml"], "", 0, "ok: 1 rule, 2 limits\n", ""),
        (&["--deny-warnings", "good.yaml"], "", 0, "ok: 1 rule, 2 limits\n", ""),
        (&["tiered.yaml"], "", 0, "ok: 1 rule, 1 limit, 2 tiers, 1 override\n", ""),
        (&["good.yaml", "tiered.yaml"], "", 0, "ok: 2 rules, 3 limits, 2 tiers, 1 override\n", ""),
        (&["several"], "", 0, "ok: 2 rules, 3 limits, 2 tiers, 1 override\n", ""),
        (&["-"], GOOD, 0, "ok: 1 rule, 2 limits\n", ""),
        (&["tiered.yaml", "-"], GOOD, 0, "ok: 2 rules, 3 limits, 2 tiers, 1 override\n", ""),
        (&["ended.yaml"], "", 0, "ok: 1 rule, 1 limit, 1 override; 1 warning\n", ENDED_WARNING),
        (&["ended.yaml", "--deny-warnings"], "", 1, "", &denied),
        (&["few.yaml"], "", 0, "ok: 1 rule, 1 limit; 1 note\n", FEW_NOTE),
        (&["few.yaml", "--deny-warnings"], "", 0, "ok: 1 rule, 1 limit; 1 note\n", FEW_NOTE),
        (&["wrong.yaml"], "", 1, "", WRONG_ERRORS),
        (&["-"], WRONG, 1, "", &on_input),
        (&["ended.yaml", "wrong.yaml"], "", 1, "", &mixed),
        // The wrong file is not looked at: what is missing might be what it lacks.
        (&["missing.yaml", "wrong.yaml", "gone.yaml"], "", 1, "", MISSING_ERRORS),
    ];
    for (args, input, code, stdout, stderr) in table {
        let wanted =
            CommandOutput { code: Some(code), stdout: stdout.into(), stderr: stderr.into() };
        let mut command = in_directory("check-people");
        command.args(args);
        assert_eq!(feed(command, input), wanted, "{args:?}");
    }
}

#[test]
fn programs_are_told_the_same() {
    let ended = json!({
        "severity": "warning",
        "file": "ended.yaml",
        "message": "this override has ended",
        "hint": "remove it",
        "line": 3,
        "column": 53,
        "end": { "line": 3, "column": 73 },
    });
    let empty = json!({
        "severity": "error",
        "file": "<stdin>",
        "message": "the file is empty",
        "hint": "write at least `rules:` with one rule, or `rate_limits:`",
    });
    let (ended, empty) = (ended.to_string(), empty.to_string());
    #[rustfmt::skip]
    let table: [(&[&str], i32, &str, &str); 4] = [
        (&["tiered.yaml"], 0, r#"{"ok":true,"rules":1,"limits":1,"tiers":2,"overrides":1,"errors":0,"warnings":0,"notes":0,"diagnostics":["#, ""),
        (&["ended.yaml"], 0, r#"{"ok":true,"rules":1,"limits":1,"tiers":0,"overrides":1,"errors":0,"warnings":1,"notes":0,"diagnostics":["#, &ended),
        (&["ended.yaml", "--deny-warnings"], 1, r#"{"ok":false,"errors":0,"warnings":1,"notes":0,"diagnostics":["#, &ended),
        (&["-"], 1, r#"{"ok":false,"errors":1,"warnings":0,"notes":0,"diagnostics":["#, &empty),
    ];
    for (args, code, start, diagnostics) in table {
        let mut command = in_directory("check-programs");
        command.args(args).arg("--json");
        let ran = feed(command, "");
        let stdout = format!("{start}{diagnostics}]}}\n");
        assert_eq!(
            ran,
            CommandOutput { code: Some(code), stdout, stderr: String::new() },
            "{args:?}"
        );
    }
    let mut command = in_directory("check-programs");
    command.args(["--json", "wrong.yaml"]);
    let wrong = feed(command, "");
    let told: Value = serde_json::from_str(&wrong.stdout).expect("one object");
    let lines =
        told["diagnostics"].as_array().expect("a list").iter().map(|one| one["line"].as_u64());
    assert_eq!((wrong.code, lines.collect::<Vec<_>>()), (Some(1), vec![Some(3), Some(4), Some(5)]));
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    let twice = "error: standard input is named 2 times, but can be read only once\n\
                 hint: write - once, and paths of files otherwise\n";
    let ran = run_with(["check", "-", "-"], GOOD);
    assert_eq!(ran, CommandOutput { code: Some(2), stdout: String::new(), stderr: twice.into() });
    for (args, part) in [
        (&["check"][..], "<RULES>..."),
        (&["check", "--jsn", "good.yaml"], "'--json'"),
        (&["check", "--deny", "good.yaml"], "'--deny-warnings'"),
    ] {
        let ran = run(args.iter().copied());
        assert!(ran.stderr.starts_with("error: ") && ran.stderr.contains(part), "{ran:?}");
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{args:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error() {
    for args in [&["good.yaml"][..], &["--json", "good.yaml"]] {
        let full = File::options().write(true).open("/dev/full").expect("a device that is full");
        let mut command = in_directory("check-full-disk");
        command.args(args).stdout(full);
        let ran = CommandOutput::from(command.output().expect("tollgate runs"));
        assert_eq!(ran.code, Some(1), "{args:?}");
        assert!(ran.stderr.ends_with("No space left on device (os error 28)\n"), "{ran:?}");
    }
}

#[test]
#[cfg(unix)]
fn the_examples_of_help_work_when_pasted() {
    for (name, text) in [("rules.yaml", GOOD), ("rules/a.yaml", TIERED)] {
        file(&format!("check-help/{name}"), text);
    }
    file("check-help/extra.yaml", GOOD);
    let help = run(["check", "--help"]).stdout;
    let examples: Vec<&str> =
        help.lines().filter(|line| line.starts_with("  tollgate check ")).collect();
    assert_eq!(examples.len(), 3, "{help}");
    for example in examples {
        let ran = paste(&format!("cd check-help && {example}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{example}");
    }
}

#[test]
fn files_of_envoyproxy_are_checked_too() {
    let good = "domain: edge\ndescriptors:\n- key: remote_address\n  \
                rate_limit: { unit: second, requests_per_unit: 10 }\n";
    file("envoy.yaml", good);
    file("ours.yaml", GOOD);
    let ran = run(["check", "envoy.yaml", "ours.yaml"]);
    let stdout = "ok: 2 rules, 3 limits, 1 domain\n";
    assert_eq!(ran, CommandOutput { code: Some(0), stdout: stdout.into(), stderr: String::new() });
    let ran = run(["check", "--json", "envoy.yaml"]);
    let told: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(
        (&told["ok"], &told["rules"], &told["domains"]),
        (&json!(true), &json!(1), &json!(1))
    );

    file("envoy-bad.yaml", good.replace("second", "secnod"));
    let ran = run(["check", "envoy-bad.yaml"]);
    let stderr = "\
error: `unit` cannot be \"secnod\"
  --> envoy-bad.yaml:4:23
   |
 4 |   rate_limit: { unit: secnod, requests_per_unit: 10 }
   |                       ^^^^^^
   = hint: did you mean `second`? It can be: second, minute, hour, day, week, month, year

not valid: 1 error
";
    assert_eq!(ran, CommandOutput { code: Some(1), stdout: String::new(), stderr: stderr.into() });
    file("envoy-odd.yaml", "domain: edge\n");
    assert_eq!(run(["check", "envoy-odd.yaml"]).code, Some(0));
    assert_eq!(run(["check", "--deny-warnings", "envoy-odd.yaml"]).code, Some(1));
}
