//! Tables of replies, dialects and problems.

use std::fmt;

use super::problem_details::write_json;
use super::*;
use crate::check::Check;
use crate::decision::DecidedBy;
use crate::display_fn::DisplayFn;
use crate::limit::CalendarUnit;

const EVERY: [Dialect; 3] = Dialect::ALL;

fn limit(rate: &str, name: &str) -> Limit {
    crate::limit::parse_rate(rate).unwrap().name(name).build().unwrap()
}

fn wait(us: i64) -> Wait {
    u64::try_from(us).map_or(Wait::NEVER, Wait::from_micros)
}

fn outcome(remaining: u64, retry_us: i64, more_us: i64, reset_us: i64) -> Outcome {
    Outcome {
        allowed: retry_us == 0,
        remaining,
        retry_after: wait(retry_us),
        more_after: wait(more_us),
        reset_after: wait(reset_us),
        ..Outcome::default()
    }
}

/// The reply to one limit's outcome, one header a line.
fn lines(rate: &str, outcome: Outcome, at_us: u64, dialects: &[Dialect]) -> Vec<String> {
    let limit = limit(rate, "api");
    let decision = Decision::of_one(&limit, outcome, 0, Micros::new(at_us));
    let name = PolicyName::of(&limit);
    let policies = [Policy::alone(&name, &limit, &decision)];
    header_lines(&RateLimitReply::new(&decision, &policies), dialects)
}

fn header_lines(reply: &RateLimitReply<'_>, dialects: &[Dialect]) -> Vec<String> {
    let line = |(name, value): (&str, RateLimitFieldValue<'_>)| {
        let mut bytes = Vec::new();
        value.write_to(&mut bytes);
        assert_eq!(String::from_utf8_lossy(&bytes), value.to_string(), "{name}");
        format!("{name}: {value}")
    };
    reply.headers(dialects).map(line).collect()
}

#[test]
fn seconds_round_up_and_no_reset_is_before_the_retry() {
    // at_us, retry_us, reset_us | Retry-After, X-RateLimit-Reset, RateLimit-Reset
    let rows: [(u64, i64, i64, &str, &str, &str); 13] = [
        (0, 0, 0, "", "0", "0"),
        (1, 0, 0, "", "1", "0"),
        (0, 0, 1, "", "1", "1"),
        (5_000_000, 0, 1_000_000, "", "6", "1"),
        (5_000_000, 0, 1_000_001, "", "7", "2"),
        (5_000_001, 0, 1_000_000, "", "7", "1"),
        (5_000_000, 1, 1, "1", "6", "1"),
        (5_000_001, 1, 1, "1", "7", "1"),
        (5_500_000, 100_000, 1_900_000, "1", "8", "1"),
        (5_000_000, 1_000_001, 60_000_000, "2", "65", "2"),
        (5_000_000, -1, 1_500_000, "", "7", "2"),
        (5_000_000, -1, -1, "", "", ""),
        (0, i64::MAX, i64::MAX, "9223372036855", "9223372036855", "9223372036855"),
    ];
    for (at, retry, reset, want_retry, want_x_reset, want_reset) in rows {
        let found = lines("10/minute", outcome(3, retry, 1, reset), at, &EVERY);
        let value = |name: &str| {
            let line = found.iter().find_map(|line| line.strip_prefix(name));
            line.map_or("", |line| &line[2..])
        };
        let values = ["Retry-After", "X-RateLimit-Reset", "RateLimit-Reset"].map(value);
        assert_eq!(values, [want_retry, want_x_reset, want_reset], "{at} {retry} {reset}");
    }
}

#[test]
fn the_draft_tells_whole_windows_and_what_is_coming() {
    // rate, remaining, more_us | RateLimit-Policy, RateLimit
    let rows = [
        ("10/second", 9, 1, r#""api-1s";q=10;w=1"#, r#""api-1s";r=9;t=1"#),
        ("10/second", 10, 0, r#""api-1s";q=10;w=1"#, r#""api-1s";r=10"#),
        ("10/second", 10, 1, r#""api-1s";q=10;w=1"#, r#""api-1s";r=10"#),
        ("10/second", 0, 1_000_000, r#""api-1s";q=10;w=1"#, r#""api-1s";r=0;t=1"#),
        ("10/second", 0, 1_000_001, r#""api-1s";q=10;w=1"#, r#""api-1s";r=0;t=2"#),
        ("10/second", 0, -1, r#""api-1s";q=10;w=1"#, r#""api-1s";r=0"#),
        ("25/250ms", 24, 10_000, r#""api-250ms";q=25"#, r#""api-250ms";r=24;t=1"#),
        ("3/1500ms", 2, 10_000, r#""api-1500ms";q=3"#, r#""api-1500ms";r=2;t=1"#),
        // The window of a bucket is the time to refill the capacity, rounded up.
        ("100/minute burst 20", 1, 1, r#""api-1m";q=20;w=12"#, r#""api-1m";r=1;t=1"#),
        ("9/minute burst 2", 1, 1, r#""api-1m";q=2;w=14"#, r#""api-1m";r=1;t=1"#),
        ("10/second burst 1", 0, 1, r#""api-1s";q=1;w=1"#, r#""api-1s";r=0;t=1"#),
        ("25/250ms burst 40", 1, 1, r#""api-250ms";q=40;w=1"#, r#""api-250ms";r=1;t=1"#),
        ("1/hour burst 48", 1, 1, r#""api-1h";q=48;w=172800"#, r#""api-1h";r=1;t=1"#),
        ("8/day", 7, -1, r#""api-1d";q=8;w=86400"#, r#""api-1d";r=7"#),
        (
            "9007199254740991/second",
            9_007_199_254_740_990,
            1,
            r#""api-1s";q=999999999999999;w=1"#,
            r#""api-1s";r=999999999999999;t=1"#,
        ),
    ];
    for (rate, remaining, more, policy, limit) in rows {
        let found = lines(rate, outcome(remaining, 0, more, more), 0, &[Dialect::Draft]);
        assert_eq!(found, [format!("RateLimit-Policy: {policy}"), format!("RateLimit: {limit}")]);
    }
}

#[test]
fn each_dialect_has_its_fields() {
    let refused = outcome(0, 100_000, 100_000, 1_900_000);
    let rows: [(&[Dialect], &[&str]); 5] = [
        (
            &[Dialect::XRateLimit],
            &["X-RateLimit-Limit: 10", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 8"],
        ),
        (
            &[Dialect::Draft],
            &[r#"RateLimit-Policy: "api-1s";q=10;w=1"#, r#"RateLimit: "api-1s";r=0;t=1"#],
        ),
        (
            &[Dialect::Legacy],
            &[
                "RateLimit-Limit: 10",
                "RateLimit-Remaining: 0",
                "RateLimit-Reset: 1",
                "RateLimit-Policy: 10;w=1",
            ],
        ),
        (
            &[Dialect::Legacy, Dialect::Draft, Dialect::Legacy],
            &[
                r#"RateLimit-Policy: "api-1s";q=10;w=1"#,
                r#"RateLimit: "api-1s";r=0;t=1"#,
                "RateLimit-Limit: 10",
                "RateLimit-Remaining: 0",
                "RateLimit-Reset: 1",
            ],
        ),
        (&[], &[]),
    ];
    for (dialects, want) in rows {
        let found = lines("10/second", refused, 5_500_000, dialects);
        let want = [want, &["Retry-After: 1", "Cache-Control: no-store"]].concat();
        assert_eq!(found, want, "{dialects:?}");
    }
    let found = lines("25/250ms", outcome(9, 0, 1, 1), 0, &[Dialect::Legacy]);
    assert_eq!(found.len(), 3, "a part of a second is no window: {found:?}");
}

/// Several keys under one limit, or limits of one name: the one that binds speaks for all.
#[test]
fn no_policy_is_told_twice() {
    let (second, minute, more) =
        (limit("10/second", "api"), limit("100/minute", "api"), limit("30/second", "api"));
    let names = [&second, &minute, &more].map(PolicyName::of);
    let policy = |which: usize, outcome| {
        let limit = [&second, &minute, &more][which];
        Policy { name: &names[which], limit, outcome }
    };
    let at = Micros::ZERO;
    let policies = [
        policy(0, outcome(7, 0, 100_000, 1)),
        policy(1, outcome(60, 0, 700_000, 1)),
        policy(0, outcome(5, 0, 1_500_000, 1)),
        policy(2, outcome(6, 0, 1, 1)),
        policy(1, outcome(60, 0, 2_000_000, 1)),
    ];
    let allowed = Decision::of_one(&second, policies[2].outcome, 1, at);
    let reply = RateLimitReply::new(&allowed, &policies);
    let want = [
        r#"RateLimit-Policy: "api-1s";q=10;w=1, "api-1m";q=100;w=60"#,
        r#"RateLimit: "api-1s";r=5;t=2, "api-1m";r=60;t=1"#,
    ];
    assert_eq!(header_lines(&reply, &[Dialect::Draft]), want);
    let legacy = header_lines(&reply, &[Dialect::Legacy]);
    assert_eq!(legacy.last().unwrap(), "RateLimit-Policy: 10;w=1, 100;w=60");

    let policies = [
        policy(1, outcome(0, 0, 1_000_000, 1)),
        policy(0, outcome(0, 100_000, 100_000, 1)),
        policy(0, outcome(0, 0, 100_000, 1)),
        policy(2, outcome(3, 4_000_000, 2_900_000, 1)),
        policy(0, outcome(0, 900_000, 900_000, 1)),
    ];
    let refused = Decision::of_one(&more, policies[3].outcome, 0, at);
    let reply = RateLimitReply::new(&refused, &policies);
    let want = [
        r#"RateLimit-Policy: "api-1m";q=100;w=60, "api-1s";q=30;w=1"#,
        r#"RateLimit: "api-1s";r=3;t=3"#,
        "Retry-After: 4",
        "Cache-Control: no-store",
    ];
    assert_eq!(header_lines(&reply, &[Dialect::Draft]), want);
    let problem = reply.problem().unwrap().to_string();
    assert!(problem.contains(r#""violated-policies":["api-1s"]"#), "{problem}");
    assert!(problem.contains("The limit api-1s (30/second) has no room"), "{problem}");
}

#[test]
fn a_refusal_without_a_limit_tells_of_no_violation() {
    let limit = limit("10/second", "api");
    let name = PolicyName::of(&limit);
    let policies = [Policy { name: &name, limit: &limit, outcome: Outcome::default() }];
    let at = Micros::from_secs(100);
    let blocked = Decision::refused(Refusal::Blocked, Wait::from_micros(2_500_000), at);
    let both = ["Retry-After: 3", "Cache-Control: no-store"];
    assert_eq!(header_lines(&RateLimitReply::new(&blocked, &[]), &EVERY), both);
    let want = [
        "X-RateLimit-Limit: 10",
        "X-RateLimit-Remaining: 0",
        "X-RateLimit-Reset: 103",
        r#"RateLimit-Policy: "api-1s";q=10;w=1"#,
        "RateLimit-Limit: 10",
        "RateLimit-Remaining: 0",
        "RateLimit-Reset: 3",
    ];
    assert_eq!(
        header_lines(&RateLimitReply::new(&blocked, &policies), &EVERY),
        [&want[..], &both].concat()
    );
    let lifted = Decision::refused(Refusal::Blocked, Wait::ZERO, at);
    assert_eq!(RateLimitReply::new(&lifted, &[]).retry_after_s(), Some(1));
    assert!(header_lines(&RateLimitReply::new(&Decision::unlimited(at), &[]), &EVERY).is_empty());
}

#[test]
fn problems_name_the_limits_and_the_way_out() {
    let (second, minute) = (limit("10/second", "api"), limit("100/minute burst 20", "api"));
    let names = [&second, &minute].map(PolicyName::of);
    let at = Micros::ZERO;
    // decision, retry_us of each | detail, violated, advice, retryAfter
    let rows = [
        (
            Decision::of_one(&second, outcome(0, 100_000, 1, 1), 0, at),
            [100_000, 0],
            "The limit api-1s (10/second) has no room for this request. Retry in 1 s.",
            r#"["api-1s"]"#,
            "Retry in 1 s.",
            "1",
        ),
        (
            Decision::of_one(&minute, outcome(0, 3_600_000, 1, 1), 0, at),
            [100_000, 3_600_000],
            "The limits api-1s (10/second), api-1m (100/minute burst 20) have no room for this \
             request. Retry in 4 s.",
            r#"["api-1s","api-1m"]"#,
            "Retry in 4 s.",
            "4",
        ),
        (
            Decision::of_one(&second, outcome(10, -1, 0, 0), 0, at),
            [-1, 100_000],
            "The limit api-1s (10/second) has less room than this request costs, even when \
             unused. Waiting does not help.",
            r#"["api-1s","api-1m"]"#,
            "Waiting does not help.",
            "null",
        ),
        (
            Decision::refused(Refusal::Blocked, Wait::from_micros(900_000_000), at),
            [100_000, 0],
            "This caller is blocked. Retry in 900 s.",
            "[]",
            "Retry in 900 s.",
            "900",
        ),
        (
            Decision::refused(Refusal::EmptyKey, Wait::NEVER, at),
            [0, 0],
            "This request does not say who is calling. Waiting does not help.",
            "[]",
            "Waiting does not help.",
            "null",
        ),
        (
            Decision::refused(Refusal::TooManyLimits, Wait::NEVER, at),
            [0, 0],
            "This request falls under more than 16 limits. Waiting does not help.",
            "[]",
            "Waiting does not help.",
            "null",
        ),
    ];
    for (decision, retries, detail, violated, advice, retry_after) in rows {
        let [one, two] = retries.map(|retry| outcome(0, retry, 1, 1));
        let policies = [
            Policy { name: &names[0], limit: &second, outcome: one },
            Policy { name: &names[1], limit: &minute, outcome: two },
        ];
        let problem = RateLimitReply::new(&decision, &policies).problem().unwrap();
        let want = [
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
            r#""title":"Quota exceeded","status":429,"detail":""#,
            detail,
            r#"","violated-policies":"#,
            violated,
            r#","reason":""#,
            decision.refusal().unwrap().name(),
            r#"","error":"Too Many Requests","message":"Rate limit exceeded. "#,
            advice,
            r#"","retryAfter":"#,
            retry_after,
            "}",
        ];
        assert_eq!(problem.to_string(), want.concat());
    }
    assert!(RateLimitReply::new(&Decision::unlimited(at), &[]).problem().is_none());
}

#[test]
fn a_store_that_does_not_answer_is_not_blamed_on_the_caller() {
    let limits = [limit("5/minute", "login"), limit("10/minute", "api")];
    let names = [&limits[0], &limits[1]].map(PolicyName::of);
    let unknown = Outcome { decided_by: DecidedBy::Closed, ..outcome(0, 1_000_000, 1, 1) };
    let reply_to = |outcomes: [Outcome; 2]| {
        let checks = [0, 1].map(|index| Check::new(&limits[index], "k"));
        let decision = Decision::of_outcomes(&checks, &outcomes, Micros::from_secs(100));
        let policy =
            |one: usize| Policy { name: &names[one], limit: &limits[one], outcome: outcomes[one] };
        let policies = [policy(0), policy(1)];
        let reply = RateLimitReply::new(&decision, &policies);
        (decision, header_lines(&reply, &EVERY), reply.problem().unwrap().to_string())
    };
    let room = outcome(3, 0, 1, 1);
    let (decision, lines, problem) = reply_to([unknown, room]);
    assert_eq!(decision.refusal(), Some(Refusal::StoreUnavailable));
    let policies = r#"RateLimit-Policy: "login-1m";q=5;w=60, "api-1m";q=10;w=60"#;
    assert_eq!(lines, [policies, "Retry-After: 1", "Cache-Control: no-store"]);
    let want = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#,
        r#""title":"Temporary reduced capacity","status":503,"#,
        r#""detail":"The store of the rate limits does not answer. Retry in 1 s.","#,
        r#""violated-policies":[],"reason":"store_unavailable","error":"Service Unavailable","#,
        r#""message":"The store of the rate limits does not answer. Retry in 1 s.","retryAfter":1}"#,
    );
    assert_eq!(problem, want);
    // Another limit has judged, and refuses: that is the reason, however short its own wait is.
    let (decision, lines, problem) = reply_to([unknown, outcome(0, 200_000, 1, 1)]);
    assert_eq!((decision.refusal(), decision.binding()), (Some(Refusal::OverLimit), 1));
    assert_eq!(decision.retry_after(), Wait::from_micros(1_000_000), "both have to pass");
    assert!(lines.contains(&r#"RateLimit: "api-1m";r=0;t=1"#.into()), "{lines:?}");
    assert!(problem.contains(r#""violated-policies":["api-1m"],"reason":"over_limit""#));
}

#[test]
fn json_text_is_escaped() {
    let rows = [
        ("plain \u{e9} \u{1f980}", "plain \u{e9} \u{1f980}"),
        ("say \"hi\"", r#"say \"hi\""#),
        ("a\\b/c", r"a\\b/c"),
        ("a\nb\rc\td", r"a\nb\rc\td"),
        ("\0\u{1}\u{1f}\u{7f}", r"\u0000\u0001\u001f\u007f"),
        ("\u{2028}\u{2029}", r"\u2028\u2029"),
        ("", ""),
    ];
    for (text, want) in rows {
        let json = DisplayFn(|f: &mut fmt::Formatter<'_>| write_json(f, text)).to_string();
        assert_eq!(json, format!("\"{want}\""));
    }
}

#[test]
fn policies_are_named_after_limit_and_period() {
    let rows = [
        ("10/second", "api", "api-1s"),
        ("100/minute burst 20", "api", "api-1m"),
        ("5/90s", "api", "api-90s"),
        ("7/1h30m", "log_in", "log_in-90m"),
        ("1/36h", "a-b", "a-b-36h"),
        ("10000/day", "api", "api-1d"),
        ("1/14d", "api", "api-2w"),
        ("25/250ms", "api", "api-250ms"),
        ("1/7us", "api", "api-7us"),
        ("10/second", "", "default-1s"),
    ];
    for (rate, name, want) in rows {
        assert_eq!(PolicyName::of(&limit(rate, name)).as_str(), want);
    }
    let longest = limit("1/3155759999999999us", &"x".repeat(64));
    let longest = PolicyName::of(&longest);
    assert_eq!(longest.as_str().len(), 83);
    assert_eq!(PolicyName::new(longest.as_str()), Ok(longest));
}

#[test]
fn windows_of_the_calendar_are_told_by_their_nominal_length() {
    use crate::limit::calendar::tests::{DAYS, HoursCalendar, MONTHS, by};
    let week = HoursCalendar { unit: CalendarUnit::Week, ..DAYS };
    // calendar | RateLimit-Policy: draft, legacy
    let rows = [
        (DAYS, r#""reports-1d";q=8;w=86400"#, "8;w=86400"),
        (week, r#""reports-1w";q=8;w=604800"#, "8;w=604800"),
        (MONTHS, r#""reports-1mo";q=8"#, ""),
    ];
    for (calendar, draft, legacy) in rows {
        let limit = by(calendar, 8).name("reports").build().unwrap();
        let decision = Decision::of_one(&limit, outcome(7, 0, 1, 1), 0, Micros::ZERO);
        let name = PolicyName::of(&limit);
        let policies = [Policy::alone(&name, &limit, &decision)];
        let reply = RateLimitReply::new(&decision, &policies);
        let policy = |dialect| {
            let lines = header_lines(&reply, &[dialect]);
            let policy = lines.iter().find_map(|line| line.strip_prefix("RateLimit-Policy: "));
            policy.unwrap_or_default().to_string()
        };
        assert_eq!([policy(Dialect::Draft), policy(Dialect::Legacy)], [draft, legacy]);
    }
}

#[test]
fn impossible_names_say_what_to_write() {
    let long = "x".repeat(129);
    let rows = [
        ("", r#"the policy name "" is empty: write 1 to 128 characters of printable ASCII"#),
        ("na\u{ef}ve", "has the character '\u{ef}', which a header cannot carry"),
        ("tab\there", r"has the character '\t', which"),
        ("a\r\nSet-Cookie: b", r"has the character '\r', which"),
        ("\u{7f}", r"has the character '\u{7f}', which"),
        (&long, "has 129 characters: write 1 to 128"),
    ];
    for (text, want) in rows {
        let error = PolicyName::new(text).expect_err(want).to_string();
        assert!(error.contains(want), "{error}");
    }
    PolicyName::new(&long[1..]).unwrap();
    PolicyName::new(" !\"#~").unwrap();
}

#[test]
fn dialects_are_read_by_name() {
    for dialect in Dialect::ALL {
        assert_eq!(dialect.to_string().parse(), Ok(dialect));
    }
    type DialectRow<'a> = (&'a [&'a str], Result<&'a [Dialect], &'a str>);
    let rows: [DialectRow<'_>; 8] = [
        (&["x-ratelimit", "draft"], Ok(&Dialect::DEFAULT)),
        (&["draft", "x-ratelimit"], Ok(&[Dialect::Draft, Dialect::XRateLimit])),
        (&["legacy", "legacy"], Ok(&[Dialect::Legacy])),
        (&["none"], Ok(&[])),
        (&[], Ok(&[])),
        (&["none", "draft"], Err("write `none` alone")),
        (
            &["github"],
            Err("there is no header dialect \"github\": write any of x-ratelimit, draft, \
                 legacy, or `none` alone"),
        ),
        (&["Draft"], Err("no header dialect \"Draft\"")),
    ];
    for (names, want) in rows {
        match (Dialect::parse_list(names.iter().copied()), want) {
            (Ok(found), Ok(want)) => assert_eq!(found, want),
            (Err(error), Err(want)) => assert!(error.to_string().contains(want), "{error}"),
            (found, want) => panic!("{names:?}: {found:?} instead of {want:?}"),
        }
    }
}
