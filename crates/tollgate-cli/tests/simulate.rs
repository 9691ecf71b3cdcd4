//! The command `tollgate simulate` from outside: what goes in, what comes out, the exit code.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

#[cfg(unix)]
use crate::command::paste;
use crate::command::{CommandOutput, file, run, run_with, tollgate};

const DOCUMENTS: &str = include_str!("../../tollgate/tests/data/documents.jsonl");
const ALGORITHMS: &str = include_str!("../../tollgate/tests/data/algorithms.jsonl");

/// Instants from here on cannot be told.
const TOO_LARGE: u64 = 1 << 53;

/// Runs `tollgate simulate` with these arguments.
fn simulate<'a>(args: impl IntoIterator<Item = &'a str>) -> CommandOutput {
    run(["simulate"].into_iter().chain(args))
}

/// The same with a trace on standard input, and a small table, which is made faster.
fn simulate_trace<'a>(
    args: impl IntoIterator<Item = &'a str>,
    trace: impl AsRef<[u8]> + Send,
) -> CommandOutput {
    simulate_keys("1000", args, trace)
}

/// The same with a table for so many keys.
fn simulate_keys<'a>(
    max_keys: &'a str,
    args: impl IntoIterator<Item = &'a str>,
    trace: impl AsRef<[u8]> + Send,
) -> CommandOutput {
    let last = ["--trace", "-", "--output", "jsonl", "--max-keys", max_keys];
    run_with(["simulate"].into_iter().chain(args).chain(last), trace)
}

#[test]
fn every_example_of_the_documents_comes_out() {
    let (mut lines, mut requests) = (0, 0);
    for text in DOCUMENTS.lines() {
        let line: Value = serde_json::from_str(text).expect("one JSON object per line");
        let (id, ok) = (line["id"].as_str().expect("an id"), line["ok"].as_str().expect("answers"));
        let instants = instants_us(text);
        assert_eq!(instants.len(), ok.len(), "{id}");
        let trace: String = (0..ok.len())
            .map(|i| match line.get("cost") {
                None => format!("{{\"at\":{}}}\n", instants[i]),
                Some(costs) => format!("{{\"at\":{},\"cost\":{}}}\n", instants[i], costs[i]),
            })
            .collect();
        let args = line["args"].as_str().expect("arguments").split(' ');
        let answers = simulate_trace(args, trace).answers(id);
        assert_eq!(answers.len(), ok.len(), "{id}");
        for (i, answer) in answers.iter().enumerate() {
            let column = |name: &str| line.get(name).map_or(&Value::Null, |column| &column[i]);
            let wait = line["retry_us"].get(i.to_string()).cloned().unwrap_or(0.into());
            assert_eq!(answer["at"], instants[i], "{id}, request {i}");
            assert_eq!(answer["allowed"], ok.as_bytes()[i] == b'1', "{id}, request {i}");
            assert_eq!(answer["retry_after_us"], wait, "{id}, request {i}");
            for name in ["cost", "remaining", "delay_us"] {
                let wanted = column(name);
                assert!(wanted.is_null() || answer[name] == *wanted, "{id}, request {i}: {name}");
            }
        }
        lines += 1;
        requests += answers.len();
    }
    assert_eq!((lines, requests), (44, 321));
}

/// The column `at_s` in microseconds, read from its text because 16.999999 is not a float.
fn instants_us(text: &str) -> Vec<u64> {
    let list = text.split("\"at_s\":[").nth(1).expect("at_s").split(']').next().expect("a list");
    list.split(',')
        .map(|instant| {
            let (whole, decimals) = instant.split_once('.').unwrap_or((instant, ""));
            format!("{whole}{decimals:0<6}").parse().expect("seconds with at most six decimals")
        })
        .collect()
}

/// Main vectors are all takes, so a trace can ask them. Each number `_ns` means microseconds.
#[test]
fn every_main_vector_comes_out() {
    let (mut refused, mut steps_asked, mut steps_beyond) = (0, 0, 0);
    for text in ALGORITHMS.lines() {
        let line: Value = serde_json::from_str(text).expect("one JSON object per line");
        let (id, cfg) = (line["id"].as_str().expect("an id"), &line["cfg"]);
        if line.get("kind").is_some() {
            continue;
        }
        let args = args_of(&line);
        let args = || args.iter().map(String::as_str);
        let steps = line["steps"].as_array().expect("steps");
        let (asked, beyond): (Vec<&Value>, Vec<&Value>) =
            steps.iter().partition(|step| step[0].as_u64().expect("an instant") < TOO_LARGE);
        // `initial: k` units are left at the first instant.
        let used = cfg.get("initial").map_or(0, |initial| {
            cfg["capacity"].as_u64().expect("a number") - initial.as_u64().expect("a number")
        });
        let mut trace = format!(
            "{{\"at\":{},\"cost\":{used}}}\n",
            asked.first().map_or(&Value::from(0), |step| &step[0])
        );
        for step in &asked {
            trace += &format!("{{\"at\":{},\"cost\":{},\"key\":\"default\"}}\n", step[0], step[1]);
        }
        let ran = simulate_trace(args(), trace);
        if ran.code == Some(1) {
            let named = ran.stderr.contains("2^53") || ran.stderr.contains("100 years");
            assert!(named, "{id}: {}", ran.stderr);
            refused += 1;
            continue;
        }
        let answers = ran.answers(id);
        for (i, (step, answer)) in asked.iter().zip(&answers[1..]).enumerate() {
            let state = if line["alg"] == "leaky_queue" { "delay_us" } else { "remaining" };
            let retry = if step[4] == -1 { &Value::Null } else { &step[4] };
            assert_eq!(answer["allowed"], step[2] == 1, "{id}, step {i}");
            assert_eq!(answer[state], step[3], "{id}, step {i}");
            assert_eq!(answer["retry_after_us"], *retry, "{id}, step {i}");
        }
        assert_eq!(answers.len(), asked.len() + 1, "{id}");
        steps_asked += asked.len();
        steps_beyond += beyond.len();
    }
    assert_eq!((refused, steps_asked, steps_beyond), (4, 215, 14));
}

/// The limit of a vector as arguments; an option that nobody knows fails.
fn args_of(line: &Value) -> Vec<String> {
    let algorithm = match line["alg"].as_str().expect("an algorithm") {
        "token_bucket" | "gcra" => "token_bucket",
        "leaky_meter" | "leaky_queue" => "leaky_bucket",
        "fixed_window" => "fixed_window",
        "sliding_log" => "sliding_window_log",
        "sliding_counter" => "sliding_window_counter",
        name => panic!("nobody knows the algorithm {name:?}"),
    };
    let mut args = vec![format!("--algorithm={algorithm}")];
    if line["alg"] == "leaky_queue" {
        args.push("--queue".into());
    }
    for (name, value) in line["cfg"].as_object().expect("numbers") {
        match name.as_str() {
            "limit" | "refill" | "leak" => {
                args.push(format!("--rate={value}/{}us", line["cfg"]["period_ns"]));
            }
            "capacity" => args.push(format!("--burst={value}")),
            "anchor_ns" => args.push(format!("--anchor={value}")),
            "align" => args.push(format!("--align={}", value.as_str().expect("a word"))),
            "period_ns" | "initial" => {}
            "mode" if value == "floor" => {}
            _ => panic!("nobody knows the option {name}: {value}"),
        }
    }
    args
}

/// Every field of an answer, in order: scripts rely on them.
#[test]
fn answers_have_all_fields_in_order() {
    let trace = concat!(
        r#"{"at":1500000,"cost":2,"key":"a"}"#,
        "\n",
        r#"{"key":"a","at":1500000}"#,
        "\n",
        r#"{"at":1500000,"cost":4,"key":"a"}"#,
        "\n",
        r#" { "at" : 1500000 } "#,
        "\n",
        r#"{"at":1500000,"cost":0,"key":"default"}"#,
        "\n",
        r#"{"at":9007199254740991,"key":"\u00fc\n\"\ud83d\ude00"}"#,
        "\n",
        r#"{"at":0,"cost":18446744073709551615,"key":"b"}"#,
        "\n",
        r#"{"at":0,"key":""}"#,
        "\n",
    );
    let wanted = concat!(
        r#"{"at":1500000,"key":"a","cost":2,"allowed":true,"remaining":1,"retry_after_us":0,"reset_after_us":200000,"delay_us":0}"#,
        "\n",
        r#"{"at":1500000,"key":"a","cost":1,"allowed":true,"remaining":0,"retry_after_us":0,"reset_after_us":300000,"delay_us":0}"#,
        "\n",
        r#"{"at":1500000,"key":"a","cost":4,"allowed":false,"remaining":0,"retry_after_us":null,"reset_after_us":300000,"delay_us":0}"#,
        "\n",
        r#"{"at":1500000,"key":"default","cost":1,"allowed":true,"remaining":2,"retry_after_us":0,"reset_after_us":100000,"delay_us":0}"#,
        "\n",
        r#"{"at":1500000,"key":"default","cost":0,"allowed":true,"remaining":2,"retry_after_us":0,"reset_after_us":100000,"delay_us":0}"#,
        "\n",
        r#"{"at":9007199254740991,"key":"ü\n\"😀","cost":1,"allowed":true,"remaining":2,"retry_after_us":0,"reset_after_us":100000,"delay_us":0}"#,
        "\n",
        r#"{"at":0,"key":"b","cost":18446744073709551615,"allowed":false,"remaining":3,"retry_after_us":null,"reset_after_us":0,"delay_us":0}"#,
        "\n",
        r#"{"at":0,"key":"","cost":1,"allowed":false,"remaining":0,"retry_after_us":null,"reset_after_us":null,"delay_us":0}"#,
        "\n",
    );
    let ran = simulate_trace(["--rate", "10/1s", "--burst", "3"], trace);
    assert_eq!(ran, CommandOutput { code: Some(0), stdout: wanted.into(), stderr: String::new() });
}

#[test]
fn rates_are_read_in_every_notation() {
    // As people write it, and the same in full.
    let table: [(&[&str], &[&str]); 8] = [
        (&["--rate", "3/1s"], &["--rate", "3/1000ms", "--algorithm", "sliding_window_counter"]),
        (&["--rate", "3/second"], &["--rate", "3/1s", "--align", "epoch"]),
        (&["--rate", "3 per 5m"], &["--rate", "3/300000000us"]),
        (&["--rate", "0.4/second"], &["--rate", "2/5s"]),
        (&["--rate=3/minute", "--burst=2"], &["--rate", "3/60s burst 2"]),
        (
            &["--rate", "3 per day burst 2"],
            &["--algorithm=token_bucket", "--rate=3/1d", "--burst=2"],
        ),
        (&["--rate=3/s", "--algorithm=token_bucket"], &["--rate", "3/s burst 3"]),
        (
            &["--rate=3/s", "--algorithm=fixed_window"],
            &["--rate=3/s", "--algorithm=fixed_window", "--anchor=7000000"],
        ),
    ];
    let trace: String =
        (0..40).map(|i: u64| format!("{{\"at\":{},\"cost\":{}}}\n", i * 310_007, i % 3)).collect();
    for (short, full) in table {
        let short_ran = simulate_trace(short.iter().copied(), &trace);
        assert_eq!(short_ran.answers(&short.join(" ")).len(), 40);
        assert_eq!(short_ran, simulate_trace(full.iter().copied(), &trace), "{short:?}");
    }
}

#[test]
fn options_of_windows_reach_the_limit() {
    let trace: String = (0..8).map(|key| format!("{{\"at\":5,\"key\":\"{key}\"}}\n")).collect();
    let resets = |args: &[&str]| -> Vec<u64> {
        let args = ["--rate=2/1h", "--algorithm"].iter().chain(args).copied();
        let answers = simulate_trace(args, &trace).answers("windows");
        answers.iter().map(|answer| answer["reset_after_us"].as_u64().expect("a wait")).collect()
    };
    assert_eq!(resets(&["fixed_window"]), [3_599_999_995; 8]);
    assert_eq!(resets(&["fixed_window", "--align=first_hit"]), [3_600_000_000; 8]);
    assert_eq!(resets(&["fixed_window", "--anchor=6"]), [1; 8]);
    let mut staggered = resets(&["fixed_window", "--stagger"]);
    staggered.sort_unstable();
    staggered.dedup();
    assert_eq!(staggered.len(), 8, "each key has windows of its own");
    assert_ne!(
        resets(&["sliding_window_counter", "--buckets=6"]),
        resets(&["sliding_window_counter"])
    );
}

#[test]
fn lines_may_be_blank_or_end_in_any_way() {
    let one = simulate_trace(["--rate=5/s"], "{\"at\":1}\n{\"at\":2}\n");
    assert_eq!(one.answers("two").len(), 2);
    for trace in [
        "{\"at\":1}\n{\"at\":2}",
        "{\"at\":1}\r\n{\"at\":2}\r\n",
        "\n\r\n{\"at\":1}\n   \t\n{\"at\":2}\r",
    ] {
        assert_eq!(simulate_trace(["--rate=5/s"], trace), one, "{trace:?}");
    }
    for trace in ["", "\n", "\r\n \n"] {
        assert!(simulate_trace(["--rate=5/s"], trace).answers(trace).is_empty());
    }
}

const LINE: &str = r#"write one object per line, such as {"at":1500000,"cost":1,"key":"a"}"#;
const FIELDS: &str = r#"a line has "at" and, once each if at all, "cost" and "key""#;
const AT: &str =
    "write whole microseconds since the Unix epoch, from 0 to 9007199254740991 (2^53 - 1)";
const COST: &str = "write a whole number of units, from 0 to 18446744073709551615 (2^64 - 1)";
const KEY: &str = r#"write text in quotes, such as "key":"a""#;

#[test]
fn a_wrong_line_is_shown_with_its_place_and_a_hint() {
    #[rustfmt::skip]
    let table: [(&[u8], &str, &str); 40] = [
        // Numbers.
        (br#"{"at":-5}"#, r#"1:7: "at" is -5, which is negative"#, AT),
        (br#"{"at":-0}"#, r#"1:7: "at" is -0, which is negative"#, AT),
        (br#"{"at":1.5}"#, r#"1:7: "at" is 1.5, which is not a whole number"#, AT),
        (br#"{"at":1.0}"#, r#"1:7: "at" is 1.0, which is not a whole number"#, AT),
        (br#"{"at":1e6}"#, r#"1:7: "at" is 1e6, which is not a whole number"#, AT),
        (br#"{"at":9007199254740992}"#, r#"1:7: "at" is 9007199254740992, which is too large"#, AT),
        (br#"{"at":18446744073709551616}"#, r#"1:7: "at" is 18446744073709551616, which is too large"#, AT),
        (br#"{"at":100000000000000000000000000000000000000000}"#, r#"1:7: "at" is 1000000000000000000000000000000000000000…, which is too large"#, AT),
        (br#"{"at":0,"cost":-1}"#, r#"1:16: "cost" is -1, which is negative"#, COST),
        (br#"{"at":0,"cost":0.5}"#, r#"1:16: "cost" is 0.5, which is not a whole number"#, COST),
        (br#"{"at":0,"cost":18446744073709551616}"#, r#"1:16: "cost" is 18446744073709551616, which is too large"#, COST),
        // Types.
        (br#"{"at":"5"}"#, r#"1:7: "at" is "5", which is not a number"#, AT),
        (br#"{"at":null}"#, r#"1:7: "at" is null, which is not a number"#, AT),
        (br#"{"at":[0]}"#, r#"1:7: "at" is [0], which is not a number"#, AT),
        (br#"{"at":0,"cost":true}"#, r#"1:16: "cost" is true, which is not a number"#, COST),
        (br#"{"at":0,"cost":null}"#, r#"1:16: "cost" is null, which is not a number"#, COST),
        (br#"{"at":0,"key":5}"#, r#"1:15: "key" is 5, which is not text"#, KEY),
        (br#"{"at":0,"key":null}"#, r#"1:15: "key" is null, which is not text"#, KEY),
        (br#"{"at":0,"key":"\ud800"}"#, r#"1:15: "key" is "\ud800", which is not text"#, KEY),
        (br#"[0,1]"#, "1:1: the line is not a JSON object", LINE),
        (br#"  7"#, "1:3: the line is not a JSON object", LINE),
        // Fields.
        (br#"{}"#, r#"1:1: the line has no field "at""#, AT),
        (br#" {"cost":1}"#, r#"1:2: the line has no field "at""#, AT),
        (br#"{"at":0,"cots":1}"#, r#"1:9: the field "cots" is unknown"#, FIELDS),
        (br#"{"user":{"id":[1]},"at":0}"#, r#"1:2: the field "user" is unknown"#, FIELDS),
        (br#"{"at":0,"at":1}"#, r#"1:9: the field "at" is given twice"#, FIELDS),
        // Not JSON.
        (b"hello", "1:1: the line is not JSON: expected value", LINE),
        (b"{at:0}", "1:2: the line is not JSON: key must be a string", LINE),
        (b"{'at':0}", "1:2: the line is not JSON: key must be a string", LINE),
        (br#"{"at":0,}"#, "1:9: the line is not JSON: trailing comma", LINE),
        (br#"{"at":0}{"at":1}"#, "1:9: the line is not JSON: trailing characters", LINE),
        (br#"{"at" 0}"#, "1:7: the line is not JSON: expected `:`", LINE),
        (br#"{"at":007}"#, "1:8: the line is not JSON: invalid number", LINE),
        (br#"{"at":0"#, "1:8: the line ends before its object does", LINE),
        (br#"{"at":0,"key":"a"#, "1:17: the line ends before its object does", LINE),
        // Bytes; a column counts characters.
        (b"\0\0\0", "1:1: the line is not JSON: expected value", LINE),
        (b"{\"at\":0,\"key\":\"a\0\"}", "1:17: the line has a bare control character", r"write it as \u0000, with its own number"),
        (b"{\"at\":0,\"key\":\"\xc3\xbc\xff\"}", "1:17: the line is not UTF-8", "save the trace as UTF-8"),
        ("{\"key\":\"üü\",\"at\":x}".as_bytes(), "1:18: the line is not JSON: expected value", LINE),
        // The third line, the first being blank.
        (b"\n{\"at\":0}\r\n  {\"at\":-1}\n{\"at\":0}\n", r#"3:9: "at" is -1, which is negative"#, AT),
    ];
    let path = file("wrong.jsonl", "");
    for (trace, problem, hint) in table {
        fs::write(&path, trace).expect("a file");
        let ran = simulate(["--rate=5/s", "--max-keys=1000", "--trace=wrong.jsonl"]);
        let what = String::from_utf8_lossy(trace);
        assert_eq!(ran.stderr, format!("error: wrong.jsonl:{problem}\nhint: {hint}\n"), "{what}");
        assert_eq!(ran.code, Some(1), "{what}");
        // What came before is answered all the same.
        assert_eq!(ran.stdout.lines().count(), usize::from(problem.starts_with('3')), "{what}");
    }
}

#[test]
fn a_line_has_a_longest_length() {
    let line = |length: usize| {
        let start = "{\"at\":0,\"key\":\"";
        format!("{start}{}\"}}", "k".repeat(length - start.len() - 2))
    };
    let error = "error: <stdin>:2:65537: the line is longer than 65536 bytes\nhint: ".to_owned()
        + LINE
        + "\n";
    for (trace, fits) in [
        (line(65_536) + "\n", true),
        (line(65_536) + "\r\n", true),
        (line(65_536), true),
        (line(65_537) + "\n", false),
        (line(65_537), false),
        (" ".repeat(100_000) + &line(100), false),
        ("x".repeat(10_000_000), false),
    ] {
        let ran = simulate_trace(["--rate=5/s"], format!("{{\"at\":0}}\n{trace}"));
        let lines = ran.stdout.lines().count();
        match fits {
            true => assert_eq!((ran.code, lines, ran.stderr), (Some(0), 2, String::new())),
            false => assert_eq!((ran.code, lines, &ran.stderr), (Some(1), 1, &error)),
        }
    }
}

#[test]
fn a_trace_that_cannot_be_read_is_named() {
    let hint = "hint: write the path of a trace, or - for standard input\n";
    for (path, problem) in [
        ("no-such.jsonl", "error: there is no file no-such.jsonl\n"),
        (
            env!("CARGO_MANIFEST_DIR"),
            concat!("error: ", env!("CARGO_MANIFEST_DIR"), " is a directory\n"),
        ),
    ] {
        let ran = simulate(["--rate", "5/s", "--trace", path]);
        let stderr = format!("{problem}{hint}");
        assert_eq!(ran, CommandOutput { code: Some(1), stdout: String::new(), stderr });
    }
}

#[test]
fn an_impossible_limit_says_what_to_write() {
    let table: [(&[&str], &str); 12] = [
        (
            &["--rate=100"],
            "the rate \"100\" has no period: write `100/minute`, `5 per 90s` or `100/minute burst 20`",
        ),
        (
            &["--rate", "-5/minute"],
            "the rate \"-5/minute\" is negative, and a limit is at least 1: write `100/minute`, `5 per 90s` or `100/minute burst 20`",
        ),
        (&["--rate=0/minute"], "the rate is zero: write at least 1, such as 1/day"),
        (&["--rate=5/0s"], "the period is zero: write at least 1us, such as 10/second"),
        (
            &["--rate=5/month"],
            "the period \"month\" has the unit \"month\", whose length varies; it needs a calendar window of a rules file: write second, minute, hour, day or week, or a number and us, ms, s, m, h, d or w, such as 90s",
        ),
        (
            &["--rate=5/s", "--burst=0"],
            "the burst is zero: it is the largest cost that can pass at once; write at least 1, or leave it out",
        ),
        (
            &["--rate=5/s", "--burst=9007199254740992"],
            "the burst of 9007199254740992 is too large: the most is 9007199254740991 (2^53 - 1)",
        ),
        (
            &["--rate=5/s burst 3", "--burst=4"],
            "the burst is given twice, in --rate \"5/s burst 3\" and as --burst 4\nhint: leave one of them out",
        ),
        (
            &["--rate=5/s", "--queue"],
            "`queue` means nothing to sliding_window_counter: leave it out, or choose leaky_bucket",
        ),
        (
            &["--rate=5/s", "--burst=3", "--align=first_hit"],
            "`align` means nothing to token_bucket: leave it out, or choose fixed_window",
        ),
        (
            &["--rate=5/s", "--algorithm=fixed_window", "--burst=3"],
            "`burst` means nothing to fixed_window: leave it out, or choose token_bucket or leaky_bucket",
        ),
        (&["--rate=5/3us", "--buckets=4"], "buckets(4) is not possible: write between 1 and 3"),
    ];
    for (args, problem) in table {
        let ran = simulate_trace(args.iter().copied(), "{\"at\":0}\n");
        let stderr = format!("error: {problem}\n");
        assert_eq!(ran, CommandOutput { code: Some(1), stdout: String::new(), stderr }, "{args:?}");
    }
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    let names =
        "token_bucket, leaky_bucket, fixed_window, sliding_window_log, sliding_window_counter";
    let table: [(&[&str], &str); 12] = [
        (&["--rate=5/s", "--trace=-", "--algorithm=tokenbucket"], names),
        (&["--trace=-"], "--rate <RATE>"),
        (
            &["--rate=5/s", "--trace=-", "--burst", "-1"],
            "'-1' for '--burst <UNITS>': write a whole number from 1 to",
        ),
        (
            &["--rate=5/s", "--trace=-", "--burst=x"],
            "'x' for '--burst <UNITS>': write a whole number from 1 to",
        ),
        (&["--rate=5/s", "--trace=-", "--buckets=0"], "write a whole number from 1 to 1023"),
        (&["--rate=5/s", "--trace=-", "--max-keys=0"], "write a whole number from 1 to 1000000000"),
        (
            &["--rate=5/s", "--trace=-", "--anchor=9007199254740992"],
            "write a whole number from 0 to 9007199254740991",
        ),
        (&["--rate=5/s", "--trace=-", "--anchor=1", "--align=epoch"], "cannot be used with"),
        (&["--rate=5/s", "--trace=-", "--align=noon"], "epoch, first_hit"),
        (&["--rate=5/s", "--trace=-", "--output=csv"], "jsonl"),
        (&["--rate=5/s", "--trace=-", "--trce"], "'--trace'"),
        (&["--rate=5/s", "extra"], "unexpected argument 'extra'"),
    ];
    for (args, part) in table {
        let ran = simulate(args.iter().copied());
        assert!(ran.stderr.starts_with("error: ") && ran.stderr.contains(part), "{ran:?}");
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{args:?}");
    }
}

#[test]
fn without_a_trace_it_says_how_to_give_one() {
    let stderr = "error: `simulate` needs a trace of requests: --trace FILE, or - for standard input\n\
                  hint: it prints a decision for each request: \
                  echo '{\"at\":0}' | tollgate simulate --rate 10/1s --trace -\n";
    let wanted = CommandOutput { code: Some(2), stdout: String::new(), stderr: stderr.into() };
    assert_eq!(simulate([]), wanted);
    assert_eq!(simulate(["--rate", "10/1s"]), wanted);
}

/// Keys that still had units are forgotten for others, so the answers are not exact.
#[test]
fn a_table_that_is_too_small_is_said_so() {
    let trace: String = (0..2_000).map(|key| format!("{{\"at\":0,\"key\":\"{key}\"}}\n")).collect();
    for (rate, what) in
        [("5/minute", "states were evicted early"), ("1/minute", "answers come from")]
    {
        let ran = simulate_keys("100", ["--rate", rate], &trace);
        assert!(
            ran.stderr.starts_with("warning: the table for 100 keys was too small: "),
            "{ran:?}"
        );
        assert!(
            ran.stderr.contains(what)
                && ran.stderr.ends_with(
                    "\nhint: raise --max-keys above the number of keys that are in use at once\n"
                ),
            "{}",
            ran.stderr
        );
        assert_eq!((ran.code, ran.stdout.lines().count()), (Some(0), 2_000));
        simulate_keys("4000", ["--rate", rate], &trace).answers("room for all");
    }
}

/// A trace that has no end yet: answers come as requests do, and none of either is kept.
#[test]
fn a_long_trace_takes_constant_memory() {
    const LINES: u64 = 200_000;
    let mut child = tollgate()
        .args(["simulate", "--rate=100/s", "--algorithm=sliding_window_log", "--trace=-"])
        .spawn()
        .expect("tollgate runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    let answers = answers_of(&mut child);
    let mut ask = |from: u64, to: u64| {
        for i in from..to {
            writeln!(stdin, "{{\"at\":{},\"key\":\"user:{}\"}}", i * 50, i % 1_000)
                .expect("a reader");
        }
    };
    let mut last = String::new();
    let mut receive = |count: u64| {
        for _ in 0..count {
            // A deadline, not a wait: two minutes are far more than a slow machine needs.
            last = answers.recv_timeout(Duration::from_secs(120)).expect("an answer in time");
        }
    };
    ask(0, LINES / 10);
    receive(LINES / 10);
    let early = peak_kib(&child);
    // Asked in pieces, so that what waits in pipes and in this test stays small.
    for piece in 1..10 {
        ask(piece * LINES / 10, (piece + 1) * LINES / 10);
        receive(LINES / 10);
    }
    assert!(last.starts_with(&format!("{{\"at\":{},", (LINES - 1) * 50)), "{last}");
    let late = peak_kib(&child);
    assert!(late <= early + 1_024, "{early} KiB grew to {late} KiB");
    drop(stdin);
    assert!(child.wait().expect("tollgate ends").success());
}

/// The lines that come out, as they come.
fn answers_of(child: &mut Child) -> mpsc::Receiver<String> {
    let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    receiver
}

/// The most memory a process has had; 0 where the system does not tell.
fn peak_kib(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.map_or(0, |peak| peak.trim().trim_end_matches(" kB").parse().expect("a number"))
}

#[test]
fn a_reader_who_leaves_is_no_error() {
    let trace = file("long.jsonl", "{\"at\":0}\n".repeat(200_000));
    let mut child = tollgate()
        .args(["simulate", "--rate=5/s", "--trace"])
        .arg(trace)
        .spawn()
        .expect("tollgate runs");
    let mut first = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    stdout.read_line(&mut first).expect("an answer");
    drop(stdout);
    let mut stderr = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
    assert!(first.starts_with("{\"at\":0,"), "{first}");
    assert_eq!((child.wait().expect("tollgate ends").code(), stderr.as_str()), (Some(0), ""));
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error() {
    let trace = file("short.jsonl", "{\"at\":0}\n");
    let full = File::options().write(true).open("/dev/full").expect("a device that is full");
    let mut command = tollgate();
    command.args(["simulate", "--rate=5/s", "--trace"]).arg(trace).stdout(full);
    let ran = CommandOutput::from(command.output().expect("tollgate runs"));
    let stderr = "error: cannot write the output: No space left on device (os error 28)\n".into();
    assert_eq!(ran, CommandOutput { code: Some(1), stdout: String::new(), stderr });
}

#[test]
fn help_and_version_are_there() {
    let version = concat!("tollgate ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(run(["--version"]).stdout, version);
    for command in ["check", "simulate", "schema"] {
        let line = format!("\n  {command} ");
        assert!(run(["--help"]).stdout.contains(&line), "{command}");
    }
    assert_eq!(run([]).code, Some(2));
    assert_eq!(simulate(["-h"]).code, Some(0));
}

#[test]
#[cfg(unix)]
fn the_example_of_help_works_when_pasted() {
    let help = simulate(["--help"]).stdout;
    let (_, example) = help.split_once("\n\n  printf").expect("an example");
    let (command, output) = example.split_once("\n\n").expect("its output");
    let (output, _) = output.split_once("\n\n").expect("an end");
    assert_eq!(paste(&format!("printf{command}")).stdout, output.replace("  {", "{") + "\n");
}
