//! `tollgate simulate --rules`: facts in, answers out, and what a candidate would change.

use serde_json::{Value, json};

#[cfg(unix)]
use crate::command::paste;
use crate::command::{CommandOutput, file, run, run_with};

/// One rule of each standing.
const RULES: &str = r#"
rules:
  - name: api
    match: { path: "/api/{*rest}" }
    key: "{user}"
    limits: [{ rate: 2/second, algorithm: fixed_window }]
  - name: watching
    match: { path: "/api/{*rest}" }
    key: global
    limits: [{ rate: 1/second, algorithm: fixed_window }]
    mode: shadow
  - name: gentle
    match: { path: /api/soft }
    key: "{user}"
    limits: [{ rate: 1/second, algorithm: fixed_window }]
    soft: true
  - name: queue
    match: { path: /queue, method: POST }
    key: "{header.x-tenant|ip}"
    limits: [{ rate: 1/second, burst: 2, algorithm: leaky_bucket, queue: true }]
"#;

/// Runs a trace through the rules of a file of this name.
fn simulate(name: &str, rules: &str, trace: &str) -> CommandOutput {
    let path = file(name, rules);
    let path = path.to_str().expect("text");
    run_with(["simulate", "--rules", path, "--max-keys=1000", "--trace=-"], trace)
}

/// The warning of rules that no request reached.
fn unreached(names: &str) -> String {
    format!(
        "warning: no request reached these rules: {names}\n\
         hint: compare `match` and `key` of each with the facts of the trace: path, method, user\n"
    )
}

/// The virtual traffic goes on; people are told what a server would say.
#[test]
fn requests_that_lack_facts_pass_and_are_counted() {
    let trace = r#"{"at":0,"facts":{"path":"/api/a"}}
{"at":0,"facts":{"path":"/api/a","user":"1"}}
{"at":0,"facts":{"path":"/queue","method":"POST"}}
"#;
    let ran = simulate("lacking.yaml", RULES, trace);
    assert_eq!((ran.code, ran.lines().len()), (Some(0), 3));
    assert!(ran.lines().iter().all(|answer| answer["allowed"] == true));
    let want = "warning: requests allowed because they lack facts: 2; the first: the rule api counts by \
        {user}, and this request has no user\nhint: /v1/check answers such requests with 400, unless the \
        server is started with --missing-facts allow\n";
    assert_eq!(ran.stderr, unreached("gentle") + want);
}

const TURNS: &str = r#"
rules:
  - { name: everyone, match: { path: /rate }, key: global, limits: [{ rate: 10/second, burst: 1 }] }
  - { name: places, match: { path: /work }, key: global, concurrency: 1 }
  - { name: turns, key: "{user}", fair: { wait: 1s, per_key: 2 } }
"#;

/// A greedy caller with many requests delays itself: the others are served in turn, and the answers keep the order of
/// the trace.
#[test]
fn requests_wait_their_turn_on_the_clock_of_the_trace() {
    let line = |at: u64, user: &str| {
        format!("{{\"at\":{at},\"facts\":{{\"path\":\"/rate\",\"user\":\"{user}\"}}}}\n")
    };
    let users = ["a", "a", "a", "a", "b"];
    let trace: String = users.iter().map(|user| line(0, user)).collect();
    let ran = simulate("turns.yaml", TURNS, &trace);
    assert_eq!((ran.code, ran.stderr.clone()), (Some(0), unreached("places")));
    let answers = ran.lines();
    let told: Vec<_> =
        answers.iter().map(|one| (one["allowed"].as_bool(), one["delay_us"].as_u64())).collect();
    let waits = |delay_us| (Some(true), Some(delay_us));
    // The fourth of `a` would be the third that waits; `b` comes before the second that waits.
    let want = [waits(0), waits(100_000), waits(300_000), (Some(false), Some(0)), waits(200_000)];
    assert_eq!(told, want);
}

/// Work takes the time that the trace states, and holds its place so long.
#[test]
fn work_holds_its_place_until_it_ends() {
    let line = |at: u64, takes_us: u64| {
        let facts = r#""facts":{"path":"/work","user":"a"}"#;
        format!("{{\"at\":{at},{facts},\"takes_us\":{takes_us}}}\n")
    };
    let trace =
        [line(0, 300_000), line(100_000, 50_000), line(200_000, 50_000), line(10_000_000, 0)];
    let ran = simulate("places.yaml", TURNS, &trace.concat());
    assert_eq!(ran.stderr, unreached("everyone"));
    let delays: Vec<_> = ran.lines().iter().map(|one| one["delay_us"].as_u64()).collect();
    assert_eq!(delays, [Some(0), Some(200_000), Some(150_000), Some(0)]);
    let ran = simulate("places.yaml", TURNS, "{\"at\":0,\"takes_us\":-1}\n");
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("hint: write whole microseconds from 0"), "{}", ran.stderr);
}

#[test]
fn a_summary_shows_delays_and_fairness_by_caller() {
    let line = |at: u64, user: &str| {
        format!("{{\"at\":{at},\"facts\":{{\"path\":\"/rate\",\"user\":\"{user}\"}}}}\n")
    };
    let trace: String =
        (0..20).flat_map(|step| ["a", "a", "b"].map(|user| line(step * 200_000, user))).collect();
    let path = file("summary.yaml", TURNS);
    let path = path.to_str().expect("text");
    let ran = run_with(["simulate", "--rules", path, "--trace=-", "--output=table"], &trace);
    let want = "\
requests                    60
allowed                     42
  after a delay             41
  no rule applies            0
refused                     18

rule      requests   refused
everyone        60        18

callers                      2
  fairness (Jain)        0.998

caller  requests    served  mean delay  longest delay
a             40        22    268.2 ms       300.0 ms
b             20        20    200.0 ms       200.0 ms
";
    assert_eq!(ran.stdout, want);
}

/// Every field of an answer, in order: scripts rely on them.
#[test]
fn answers_have_all_fields_in_order() {
    #[rustfmt::skip]
    let table = [
        // No rule applies: nothing matches, or a fact of the key is missing.
        (
            r#"{"at":0}"#,
            r#"{"at":0,"allowed":true,"rule":null,"limit":null,"remaining":null,"retry_after_us":0,"reset_after_us":0,"delay_us":0,"max":null,"decided_by":"memory","limits":[]}"#,
        ),
        (
            r#"{"at":0,"facts":{"path":"/queue","method":"POST"}}"#,
            r#"{"at":0,"allowed":true,"rule":null,"limit":null,"remaining":null,"retry_after_us":0,"reset_after_us":0,"delay_us":0,"max":null,"decided_by":"memory","limits":[]}"#,
        ),
        // Allowed, with one that watches.
        (
            r#"{"at":5,"facts":{"path":"/api/x","user":"a"}}"#,
            r#"{"at":5,"allowed":true,"rule":"api","limit":"2/second fixed_window","remaining":1,"retry_after_us":0,"reset_after_us":999995,"delay_us":0,"max":2,"decided_by":"memory","limits":[{"rule":"api","limit":"2/second fixed_window","allowed":true,"remaining":1,"retry_after_us":0,"reset_after_us":999995},{"rule":"watching","limit":"1/second fixed_window","allowed":true,"remaining":0,"retry_after_us":0,"reset_after_us":999995,"shadow":true}]}"#,
        ),
        // Only the watching one would refuse.
        (
            r#"{"at":5,"facts":{"path":"/api/x","user":"a"}}"#,
            r#"{"at":5,"allowed":true,"rule":"api","limit":"2/second fixed_window","remaining":0,"retry_after_us":0,"reset_after_us":999995,"delay_us":0,"max":2,"decided_by":"memory","limits":[{"rule":"api","limit":"2/second fixed_window","allowed":true,"remaining":0,"retry_after_us":0,"reset_after_us":999995},{"rule":"watching","limit":"1/second fixed_window","allowed":false,"remaining":0,"retry_after_us":999995,"reset_after_us":999995,"shadow":true}]}"#,
        ),
        // Refused; and a cost that never fits.
        (
            r#"{"at":6,"facts":{"path":"/api/x","user":"a"}}"#,
            r#"{"at":6,"allowed":false,"rule":"api","limit":"2/second fixed_window","remaining":0,"retry_after_us":999994,"reset_after_us":999994,"delay_us":0,"max":2,"decided_by":"memory","limits":[{"rule":"api","limit":"2/second fixed_window","allowed":false,"remaining":0,"retry_after_us":999994,"reset_after_us":999994},{"rule":"watching","limit":"1/second fixed_window","allowed":false,"remaining":0,"retry_after_us":999994,"reset_after_us":999994,"shadow":true}]}"#,
        ),
        (
            r#"{"at":2000000,"cost":3,"facts":{"path":"/api/x","user":"b"}}"#,
            r#"{"at":2000000,"allowed":false,"rule":"api","limit":"2/second fixed_window","remaining":2,"retry_after_us":null,"reset_after_us":0,"delay_us":0,"max":2,"decided_by":"memory","limits":[{"rule":"api","limit":"2/second fixed_window","allowed":false,"remaining":2,"retry_after_us":null,"reset_after_us":0},{"rule":"watching","limit":"1/second fixed_window","allowed":false,"remaining":1,"retry_after_us":null,"reset_after_us":0,"shadow":true}]}"#,
        ),
        // Soft.
        (
            r#"{"at":2000000,"facts":{"path":"/api/soft","user":"b"}}"#,
            r#"{"at":2000000,"allowed":true,"rule":"api","limit":"2/second fixed_window","remaining":1,"retry_after_us":0,"reset_after_us":1000000,"delay_us":0,"max":2,"decided_by":"memory","limits":[{"rule":"api","limit":"2/second fixed_window","allowed":true,"remaining":1,"retry_after_us":0,"reset_after_us":1000000},{"rule":"watching","limit":"1/second fixed_window","allowed":true,"remaining":0,"retry_after_us":0,"reset_after_us":1000000,"shadow":true},{"rule":"gentle","limit":"1/second fixed_window","allowed":true,"remaining":0,"retry_after_us":0,"reset_after_us":1000000,"soft":true}]}"#,
        ),
        // Held back; the method in small letters, the header in capitals, and nothing else.
        (
            r#"{"at":3000000,"facts":{"path":"/queue","method":"post","ip":null,"headers":{"X-Tenant":"acme"}}}"#,
            r#"{"at":3000000,"allowed":true,"rule":"queue","limit":"1/second burst 2 leaky_bucket queue","remaining":1,"retry_after_us":0,"reset_after_us":1000000,"delay_us":0,"max":2,"decided_by":"memory","limits":[{"rule":"queue","limit":"1/second burst 2 leaky_bucket queue","allowed":true,"remaining":1,"retry_after_us":0,"reset_after_us":1000000}]}"#,
        ),
        (
            r#"{"at":3000000,"facts":{"path":"/queue","method":"POST","headers":{"x-tenant":"acme"}}}"#,
            r#"{"at":3000000,"allowed":true,"rule":"queue","limit":"1/second burst 2 leaky_bucket queue","remaining":0,"retry_after_us":0,"reset_after_us":2000000,"delay_us":1000000,"max":2,"decided_by":"memory","limits":[{"rule":"queue","limit":"1/second burst 2 leaky_bucket queue","allowed":true,"remaining":0,"retry_after_us":0,"reset_after_us":2000000}]}"#,
        ),
    ];
    let trace: String = table.iter().map(|(line, _)| format!("{line}\n")).collect();
    let ran = simulate("fields.yaml", RULES, &trace);
    assert_eq!(ran.code, Some(0));
    assert!(ran.stderr.starts_with("warning: requests allowed because they lack facts: 1;"));
    assert_eq!(ran.stdout.lines().count(), table.len());
    for ((asked, wanted), got) in table.iter().zip(ran.stdout.lines()) {
        assert_eq!(got, *wanted, "{asked}");
    }
}

const LINE: &str =
    r#"write one object per line, such as {"at":1500000,"facts":{"path":"/api","user":"42"}}"#;
const FIELDS: &str =
    r#"with --rules, a line has "at" and, once each if at all, "cost", "facts" and "takes_us""#;
const FACTS: &str = r#"write an object, such as "facts":{"path":"/api","user":"42"}"#;
const NAMES: &str = "facts are method, path, host, ip, user, tier, api_key and headers, each once if at all; or domain and entries";
const ENTRIES: &str = r#"write a descriptor of Envoy, such as "domain":"edge","entries":[["remote_address","192.0.2.1"]]"#;
const TEXT: &str = "write text in quotes, or leave it out";
const IP: &str = r#"write an address, such as "192.0.2.1" or "2001:db8::1""#;
const HEADERS: &str = r#"write an object of text, such as "headers":{"x-tenant":"acme"}"#;

#[test]
fn a_wrong_line_is_shown_with_its_place_and_a_hint() {
    #[rustfmt::skip]
    let table: [(&str, &str, &str); 31] = [
        // The same reader as without rules.
        ("hello", "1:1: the line is not JSON: expected value", LINE),
        ("[]", "1:1: the line is not a JSON object", LINE),
        (r#"{"at":0,"facts":{}"#, "1:19: the line ends before its object does", LINE),
        (r#"{"at":-5}"#, r#"1:7: "at" is -5, which is negative"#, "write whole microseconds since the Unix epoch, from 0 to 9007199254740991 (2^53 - 1)"),
        (r#"{"at":0,"cost":1.5}"#, r#"1:16: "cost" is 1.5, which is not a whole number"#, "write a whole number of units, from 0 to 18446744073709551615 (2^64 - 1)"),
        // Fields.
        (r#"{"at":0,"key":"a"}"#, r#"1:9: the field "key" is unknown"#, FIELDS),
        (r#"{"at":0,"path":"/x"}"#, r#"1:9: the field "path" is unknown"#, FIELDS),
        (r#"{"at":0,"facts":{},"facts":{}}"#, r#"1:20: the field "facts" is given twice"#, FIELDS),
        // Facts.
        (r#"{"at":0,"facts":[]}"#, r#"1:17: "facts" is [], which is not an object"#, FACTS),
        (r#"{"at":0,"facts":"/x"}"#, r#"1:17: "facts" is "/x", which is not an object"#, FACTS),
        (r#"{"at":0,"facts":{"usr":"a"}}"#, r#"1:18: the field "usr" is unknown"#, NAMES),
        (r#"{"at":0,"facts":{"user":"a","user":"b"}}"#, r#"1:29: the field "user" is given twice"#, NAMES),
        (r#"{"at":0,"facts":{"user":42}}"#, r#"1:25: "user" is 42, which is not text"#, TEXT),
        (r#"{"at":0,"facts":{"path":["/x"]}}"#, r#"1:25: "path" is ["/x"], which is not text"#, TEXT),
        (r#"{"at":0,"facts":{"tier":true}}"#, r#"1:25: "tier" is true, which is not text"#, TEXT),
        (r#"{"at":0,"facts":{"method":1}}"#, r#"1:27: "method" is 1, which is not text"#, TEXT),
        (r#"{"at":0,"facts":{"api_key":{}}}"#, r#"1:28: "api_key" is {}, which is not text"#, TEXT),
        (r#"{"at":0,"facts":{"ip":"192.0.2"}}"#, r#"1:23: "ip" is "192.0.2", which is not an address"#, IP),
        (r#"{"at":0,"facts":{"ip":"10.0.0.0/8"}}"#, r#"1:23: "ip" is "10.0.0.0/8", which is not an address"#, IP),
        (r#"{"at":0,"facts":{"ip":1}}"#, r#"1:23: "ip" is 1, which is not an address"#, IP),
        (r#"{"at":0,"facts":{"headers":["x"]}}"#, r#"1:28: "headers" is ["x"], which is not an object"#, HEADERS),
        (r#"{"at":0,"facts":{"headers":{"x":1}}}"#, r#"1:33: "x" is 1, which is not text"#, HEADERS),
        (r#"{"at":0,"facts":{"headers":{"x":"1","X":"2"}}}"#, r#"1:37: the field "X" is given twice"#, HEADERS),
        (r#"{"at":0,"facts":{"headers":{"\ud800":"1"}}}"#, r#"1:29: the field "\ud800" is not text"#, HEADERS),
        // Descriptors.
        (r#"{"at":0,"facts":{"domain":"d"}}"#, r#"1:17: "facts" is {"domain":"d"}, which needs both domain and entries"#, ENTRIES),
        (r#"{"at":0,"facts":{"domain":"d","entries":[],"user":"u"}}"#, r#"1:51: "facts" is "u", which cannot stand beside domain and entries"#, ENTRIES),
        (r#"{"at":0,"facts":{"domain":"","entries":[["a","b"]]}}"#, r#"1:27: "facts" is "", which is not the name of a domain"#, ENTRIES),
        (r#"{"at":0,"facts":{"domain":"d","entries":[]}}"#, r#"1:17: "facts" is {"domain":"d","entries":[]}, which is not decided: a descriptor has no entries: send at least one"#, ENTRIES),
        (r#"{"at":0,"facts":{"domain":"d","entries":[["a"]]}}"#, r#"1:41: "facts" is [["a"]], which is not a list of pairs"#, ENTRIES),
        (r#"{"at":0,"facts":{"domain":"d","entries":[["a",1]]}}"#, r#"1:47: "facts" is 1, which is not text"#, ENTRIES),
        // The third line, the first being blank; columns count characters.
        ("\n{\"at\":0}\r\n {\"at\":1,\"facts\":{\"user\":\"üü\",\"ip\":0}}\n", r#"3:36: "ip" is 0, which is not an address"#, IP),
    ];
    for (trace, problem, hint) in table {
        let ran = simulate("wrong-lines.yaml", RULES, trace);
        assert_eq!(ran.stderr, format!("error: <stdin>:{problem}\nhint: {hint}\n"), "{trace}");
        assert_eq!(ran.code, Some(1), "{trace}");
        // What came before is answered all the same.
        assert_eq!(ran.stdout.lines().count(), usize::from(problem.starts_with('3')), "{trace}");
    }
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    let twice = "named 2 times, but can be read only once";
    let nothing = "--rules needs a trace of requests to decide\nhint: add --trace FILE";
    let table: [(&[&str], &str); 10] = [
        (&["--rules=r.yaml", "--rate=5/s", "--trace=-"], "cannot be used with"),
        (&["--rules=r.yaml", "--burst=5", "--trace=-"], "cannot be used with"),
        (&["--rules=r.yaml", "--algorithm=token_bucket", "--trace=-"], "cannot be used with"),
        (&["--rules=r.yaml", "--queue", "--trace=-"], "cannot be used with"),
        (&["--against=r.yaml", "--rate=5/s", "--trace=-"], "--rules <PATH>"),
        (&["--against=r.yaml"], "--rules <PATH>"),
        (&["--rules=r.yaml"], nothing),
        (&["--rules=-", "--trace=-"], twice),
        (&["--rules=r.yaml", "--against=-", "--trace=-"], twice),
        (&["--rules=-", "--against=-", "--trace=t.jsonl"], twice),
    ];
    for (args, part) in table {
        let ran = run(["simulate"].into_iter().chain(args.iter().copied()));
        assert!(ran.stderr.starts_with("error: ") && ran.stderr.contains(part), "{args:?} {ran:?}");
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{args:?}");
    }
}

#[test]
fn wrong_rules_are_told_as_check_tells_them() {
    file("now-good.yaml", RULES);
    file("then-wrong.yaml", "rules: [{ name: api, key: '{user}', limits: [10] }]\n");
    for args in [
        &["--rules=then-wrong.yaml"][..],
        &["--rules=now-good.yaml", "--against=then-wrong.yaml"],
        &["--rules=missing.yaml"],
    ] {
        let last = *args.last().expect("an argument");
        let checked = run(["check", last.split_once('=').expect("a path").1]);
        let ran = run_with(
            ["simulate", "--trace=-"].into_iter().chain(args.iter().copied()),
            "{\"at\":0}\n",
        );
        let (told, _) = checked.stderr.split_once("\nnot valid: ").expect("a last line");
        assert_eq!(
            ran,
            CommandOutput { code: Some(1), stdout: String::new(), stderr: told.into() }
        );
    }
}

/// Several files make one set of rules, and one may come from standard input.
#[test]
fn rules_may_be_in_several_places() {
    let tiers = "tiers: { pro: 10 }\n";
    let rules = "rules: [{ name: api, key: '{user}', limits: [2/second], tiered: true }]\n";
    file("parts/a.yaml", tiers);
    file("parts/b.yaml", rules);
    let line = "{\"at\":0,\"facts\":{\"user\":\"a\",\"tier\":\"pro\"}}\n";
    file("parts/trace.jsonl", line);
    let wanted = json!([20, 19]);
    for (args, input) in [
        (&["--rules=parts", "--trace=-"][..], line),
        (&["--rules=parts/b.yaml", "--rules=parts/a.yaml", "--trace=-"], line),
        (&["--rules=parts/b.yaml", "--rules=-", "--trace=parts/trace.jsonl"], tiers),
    ] {
        let ran = run_with(["simulate"].into_iter().chain(args.iter().copied()), input);
        let answers = ran.answers(&args.join(" "));
        assert_eq!(json!([answers[0]["max"], answers[0]["remaining"]]), wanted, "{args:?}");
    }
}

/// Traffic of three callers under rules that a candidate makes stricter, laxer and other.
fn callers() -> String {
    let line = |at: u64, path: &str, user: &str| {
        format!(
            "{{\"at\":{at},\"facts\":{{\"method\":\"GET\",\"path\":\"{path}\",\"user\":\"{user}\"}}}}\n"
        )
    };
    let mut trace = String::new();
    for at in 0..4 {
        trace += &line(at, "/stricter?secret=1", "a");
        trace += &line(at, "/stricter", "b");
        trace += &line(at, "/laxer", "c");
        trace += &line(at, "/renamed", "c");
        trace += &line(at, "/same", "c");
    }
    trace
}

fn fixed(name: &str, path: &str, rate: &str, more: &str) -> String {
    format!(
        "  - {{ name: {name}, match: {{ path: {path} }}, key: '{{user}}', \
         limits: [{{ rate: {rate}, algorithm: fixed_window }}]{more} }}\n"
    )
}

/// Rules and a candidate, in a directory of one test, as options.
fn write_candidate(directory: &str) -> [String; 2] {
    let now = [
        fixed("stricter", "/stricter", "3/hour", ""),
        fixed("laxer", "/laxer", "2/hour", ""),
        fixed("old", "/renamed", "2/hour", ""),
        fixed("same", "/same", "2/hour", ""),
        fixed("off", "/same", "1/hour", ", mode: off"),
    ];
    let then = [
        fixed("stricter", "/stricter", "2/hour", ""),
        fixed("laxer", "/laxer", "3/hour", ""),
        fixed("new", "/renamed", "2/hour", ""),
        fixed("same", "/same", "2/hour", ""),
        fixed("off", "/same", "1/hour", ", mode: shadow"),
    ];
    [("rules", "now", now), ("against", "then", then)].map(|(option, name, rules)| {
        let path = format!("{directory}/{name}.yaml");
        file(&path, format!("rules:\n{}", rules.concat()));
        format!("--{option}={path}")
    })
}

const SUMMARY: &str = "\
requests                    20
refused now                  8
refused then                 9
newly refused                2  of 2 callers
newly allowed                1  of 1 caller
changed otherwise            2  of 1 caller

rule      refused now  refused then  newly refused  newly allowed  in shadow then
laxer               2             1              0              1               0
new                 0             2              0              0               0
off                 0             0              0              0               3
old                 2             0              0              0               0
same                2             2              0              0               0
stricter            2             4              2              0               0

newly refused
         2 by stricter 2/hour fixed_window, the first <stdin>:11: GET /stricter

newly allowed
         1 by laxer 2/hour fixed_window, the first <stdin>:13: GET /laxer

changed otherwise
         2 by new 2/hour fixed_window, the first <stdin>:14: GET /renamed
";

#[test]
fn a_candidate_is_told_by_what_it_changes() {
    let [now, then] = write_candidate("against-changes");
    let args = ["simulate", &now, &then, "--max-keys=1000", "--trace=-"];
    let ran = run_with(args, callers());
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), SUMMARY));
    let lines = ran.lines();
    let told: Vec<Value> = lines
        .iter()
        .map(|line| {
            let [now, then] = ["now", "then"].map(|side| &line[side]);
            json!([
                line["at"],
                line["facts"]["path"],
                now["allowed"],
                now["rule"],
                then["allowed"],
                then["rule"]
            ])
        })
        .collect();
    #[rustfmt::skip]
    let wanted = [
        json!([2, "/stricter?secret=1", true, "stricter", false, "stricter"]),
        json!([2, "/stricter", true, "stricter", false, "stricter"]),
        json!([2, "/laxer", false, "laxer", true, "laxer"]),
        json!([2, "/renamed", false, "old", false, "new"]),
        json!([3, "/renamed", false, "old", false, "new"]),
    ];
    assert_eq!(told, wanted);
    // In full, once.
    let wanted = r#"{"at":2,"facts":{"method":"GET","path":"/laxer","user":"c"},"now":{"allowed":false,"rule":"laxer","limit":"2/hour fixed_window","remaining":0,"retry_after_us":3599999998,"reset_after_us":3599999998,"delay_us":0,"max":2,"decided_by":"memory","limits":[{"rule":"laxer","limit":"2/hour fixed_window","allowed":false,"remaining":0,"retry_after_us":3599999998,"reset_after_us":3599999998}]},"then":{"allowed":true,"rule":"laxer","limit":"3/hour fixed_window","remaining":0,"retry_after_us":0,"reset_after_us":3599999998,"delay_us":0,"max":3,"decided_by":"memory","limits":[{"rule":"laxer","limit":"3/hour fixed_window","allowed":true,"remaining":0,"retry_after_us":0,"reset_after_us":3599999998}]}}"#;
    assert_eq!(ran.stdout.lines().nth(2), Some(wanted));

    let table = run_with(args.into_iter().chain(["--output=table"]), callers());
    assert_eq!(
        table,
        CommandOutput { code: Some(0), stdout: SUMMARY.into(), stderr: String::new() }
    );
}

const CHART: &str = "\
The same requests under two rule sets
3 of 6 answers would change: 0 requests are refused now, 3 would be.
█ admitted   ░ refused

now
0 of 6 refused
3┤████████████████████                                       ███████████████████
 │████████████████████                                       ███████████████████
 │████████████████████                                       ███████████████████
 │████████████████████                                       ███████████████████
0┤████████████████████                                       ███████████████████

then
3 of 6 refused
3┤░░░░░░░░░░░░░░░░░░░░                                       ░░░░░░░░░░░░░░░░░░░
 │░░░░░░░░░░░░░░░░░░░░                                       ░░░░░░░░░░░░░░░░░░░
 │████████████████████                                       ░░░░░░░░░░░░░░░░░░░
 │████████████████████                                       ███████████████████
0┤████████████████████                                       ███████████████████
";

/// The picture counts the requests of each second under both rule sets, as text and as SVG.
#[test]
fn a_candidate_is_shown_as_a_chart() {
    file("drawn/now.yaml", "rules: [{ name: api, key: '{user}', limits: [10/minute] }]");
    file("drawn/then.yaml", "rules: [{ name: api, key: '{user}', limits: [1/hour] }]");
    let line = |at: u64, user: &str| {
        format!("{{\"at\":{at},\"facts\":{{\"path\":\"/\",\"user\":\"{user}\"}}}}\n")
    };
    let trace: String =
        [(0, "a"), (1, "a"), (2, "b"), (3_000_000, "a"), (3_000_001, "a"), (3_000_002, "b\\u001b")]
            .map(|(at, user)| line(at, user))
            .concat();
    let [now, then] = ["--rules=drawn/now.yaml", "--against=drawn/then.yaml"];
    let drawn = ["simulate", now, then, "--trace=-", "--output=chart", "--svg=drawn/then.svg"];
    let ran = run_with(drawn, &trace);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    assert!(ran.stdout.starts_with(CHART), "{}", ran.stdout);
    let callers = "\ncaller  requests  refused now  refused then\nuser=a         4            0             3\n";
    assert!(ran.stdout.ends_with(callers), "{}", ran.stdout);
    let svg =
        std::fs::read_to_string(file("drawn/none", "").with_file_name("then.svg")).expect("an SVG");
    assert!(svg.starts_with("<svg") && svg.contains("3 of 6 answers would change"), "{svg}");
    let alone = run_with(["simulate", now, "--trace=-", "--output=chart"], &trace);
    assert_eq!((alone.code, &*alone.stderr), (Some(0), ""));
    assert!(alone.stdout.contains("user=a"), "{}", alone.stdout);
}

#[test]
fn a_candidate_that_changes_nothing_says_so() {
    let [now, _] = write_candidate("against-itself");
    let then = now.replace("--rules", "--against");
    let ran = run_with(["simulate", &now, &then, "--trace=-"], callers());
    let start = "\
requests                    20
refused now                  8
refused then                 8
newly refused                0
newly allowed                0
changed otherwise            0
";
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""));
    assert!(ran.stderr.starts_with(start), "{}", ran.stderr);
}

/// A request that is held back for another time has changed.
#[test]
fn another_delay_is_a_change() {
    let rules = |rate: &str| {
        format!(
            "rules: [{{ name: q, key: global, limits: [{{ rate: {rate}, burst: 3, \
             algorithm: leaky_bucket, queue: true }}] }}]\n"
        )
    };
    file("delay/now.yaml", rules("1/second"));
    file("delay/then.yaml", rules("2/second"));
    let [now, then] = ["--rules=delay/now.yaml", "--against=delay/then.yaml"];
    let ran = run_with(["simulate", now, then, "--trace=-"], "{\"at\":0}\n{\"at\":0}\n");
    let delays: Vec<Value> = ran
        .lines()
        .iter()
        .map(|line| json!([line["facts"], line["now"]["delay_us"], line["then"]["delay_us"]]))
        .collect();
    assert_eq!(delays, [json!([null, 1_000_000, 500_000])]);
    assert!(ran.stderr.contains("\nchanged otherwise            1  of 1 caller\n"), "{ran:?}");
}

#[test]
fn a_table_counts_what_rules_did() {
    let line =
        |path: &str| format!("{{\"at\":0,\"facts\":{{\"path\":\"{path}\",\"user\":\"a\"}}}}\n");
    let trace = line("/other") + &line("/api/soft").repeat(4);
    let path = file("counted.yaml", RULES);
    let rules = format!("--rules={}", path.to_str().expect("text"));
    let ran = run_with(["simulate", &rules, "--trace=-", "--output=table"], trace);
    let stdout = "\
requests                     5
allowed                      3
  after a delay              0
  no rule applies            1
refused                      2

rule      requests   refused  in shadow    warned
api              4         2          0         0
gentle           4         0          0         3
watching         4         0          3         0
";
    let stderr = unreached("queue");
    assert_eq!(ran, CommandOutput { code: Some(0), stdout: stdout.into(), stderr });
}

#[test]
fn descriptors_are_asked_of_files_of_envoyproxy() {
    let file = "domain: d\ndescriptors:\n- key: k\n  rate_limit: { unit: hour, requests_per_unit: 1 }\n\
                - { key: none, rate_limit: { unit: day, requests_per_unit: 0 } }\n";
    let line = |name: &str| {
        format!("{{\"at\":0,\"facts\":{{\"domain\":\"d\",\"entries\":[[\"{name}\",\"v\"]]}}}}\n")
    };
    let trace = [line("k"), line("k"), line("none"), line("other")].concat();
    let ran = simulate("descriptors.yaml", file, &trace);
    let told =
        |answer: &Value| json!([answer["allowed"], answer["rule"], answer["retry_after_us"]]);
    let answers: Vec<Value> = ran.lines().iter().map(told).collect();
    let want = [
        json!([true, "d--k", 0]),
        json!([false, "d--k", 3_600_000_000_u64]),
        json!([false, null, null]),
        json!([true, null, 0]),
    ];
    assert_eq!(answers, want, "{ran:?}");
    let ran = simulate("descriptors.yaml", file, &line(""));
    let told = "error: <stdin>:1:17: \"facts\" is";
    assert!(ran.stderr.starts_with(told), "{ran:?}");
    assert!(ran.stderr.contains("an entry has an empty key: send its name\n"), "{ran:?}");
}

/// A path may hold anything, and a summary goes to a terminal.
#[test]
fn examples_of_changes_are_fit_for_a_terminal() {
    let [now, _] = write_candidate("against-terminal");
    let path = format!("/stricter/../stricter/./\\u001b[31m{}", "x".repeat(100));
    let any = fixed("all", "'/{*rest}'", "1/hour", "");
    file("against-terminal/all.yaml", format!("rules:\n{any}"));
    let line = format!("{{\"at\":0,\"facts\":{{\"path\":\"{path}\",\"user\":\"a\"}}}}\n");
    let ran = run_with(
        ["simulate", &now, "--against=against-terminal/all.yaml", "--trace=-", "--output=table"],
        line.repeat(2),
    );
    assert!(!ran.stdout.contains('\u{1b}'), "{}", ran.stdout);
    assert!(ran.stdout.contains("- /stricter/../stricter/./\\u{1b}[31mxxxxx"), "{}", ran.stdout);
    assert!(ran.stdout.ends_with("x…\n"), "{}", ran.stdout);
}

#[test]
fn a_table_that_is_too_small_is_said_so() {
    let trace: String = (0..2_000)
        .map(|user| format!("{{\"at\":0,\"facts\":{{\"path\":\"/api/x\",\"user\":\"{user}\"}}}}\n"))
        .collect();
    file("crowded.yaml", RULES);
    let args = ["simulate", "--rules=crowded.yaml", "--max-keys=100", "--trace=-"];
    let ran = run_with(args, trace);
    let start = unreached("gentle, queue") + "warning: the table for 100 keys was too small: ";
    assert!(ran.stderr.starts_with(&start), "{}", ran.stderr);
    assert_eq!((ran.code, ran.stdout.lines().count()), (Some(0), 2_000));
}

#[test]
#[cfg(unix)]
fn the_example_of_help_works_when_pasted() {
    let help = run(["simulate", "--help"]).stdout;
    let (_, example) = help.split_once("\n\n  echo 'rules:").expect("an example");
    let (example, _) = example.split_once("\n\nThe exit code").expect("an end");
    let (command, output) = example.split_once("\n\n").expect("its output");
    let directory = "mkdir -p help-example && cd help-example";
    let ran = paste(&format!("{directory}\necho 'rules:{command}"));
    let wanted: String = output
        .lines()
        .map(|line| format!("{}\n", line.strip_prefix("  ").unwrap_or(line)))
        .collect();
    assert_eq!(ran, CommandOutput { code: Some(0), stdout: wanted, stderr: String::new() });
}

/// A delayed request departs on the clock of the trace, and keeps its distance from one that passed meanwhile.
#[test]
fn departures_of_two_queues_keep_their_distance() {
    let rules = "
rules:
  - { name: all, key: global, limits: [{ rate: 10/second, burst: 5, algorithm: leaky_bucket, queue: true }] }
  - { name: slow, match: { path: /slow }, key: global, limits: [{ rate: 1/second, burst: 5, algorithm: leaky_bucket, queue: true }] }
  - { name: places, key: global, concurrency: 5 }
";
    let line = |at: u64, path: &str| format!("{{\"at\":{at},\"facts\":{{\"path\":\"{path}\"}}}}\n");
    let trace = [line(0, "/slow"), line(0, "/slow"), line(950_000, "/fast")].concat();
    let ran = simulate("two-queues.yaml", rules, &trace);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    let delays: Vec<_> = ran.lines().iter().map(|one| one["delay_us"].as_u64()).collect();
    assert_eq!(delays, [Some(0), Some(1_050_000), Some(0)]);
}

#[test]
fn rules_that_no_request_reached_are_named() {
    let rules = "rules:
  - { name: api, match: { path: '/api/{*rest}' }, key: '{user}', limits: [100/minute] }
  - { name: login, match: { path: /login, method: POST }, key: '{ip}', limits: [100/minute] }
  - { name: off, match: { path: /off }, key: '{ip}', limits: [100/minute], mode: off }
  - { name: watched, match: { path: '/api/{*rest}' }, key: '{ip}', limits: [100/minute], mode: shadow }
";
    let path = file("unreached.yaml", rules);
    let path = path.to_str().expect("text");
    let simulate = |trace: &str, more: &[&str]| {
        let args = [&["simulate", "--rules", path, "--trace", "-", "--output", "table"][..], more];
        run_with(args.concat(), trace)
    };
    let (api, login) = (
        r#"{"at":0,"facts":{"path":"/api/x","user":"42","ip":"192.0.2.1"}}"#,
        r#"{"at":0,"facts":{"path":"/login","method":"POST","ip":"192.0.2.1"}}"#,
    );
    let both = format!("{api}\n{login}\n");
    let rows = [
        (api, unreached("login")),
        (login, unreached("api, watched")),
        (r#"{"at":0,"facts":{"path":"/login"}}"#, unreached("api, login, watched")),
        (&both, String::new()),
        ("", String::new()),
    ];
    for (trace, stderr) in rows {
        let ran = simulate(trace, &[]);
        assert_eq!((ran.code, ran.stderr), (Some(0), stderr), "{trace}");
    }
    // The same of two files is told once.
    let against = simulate(api, &["--against", path]);
    assert_eq!(against.stderr.matches("no request reached").count(), 1, "{}", against.stderr);
}
