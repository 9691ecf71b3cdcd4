//! Every worked case of `data/*.jsonl` that concerns the library, run on an [`Executor`].
//!
//! Each run counts what it did, so that nothing passes by being skipped.

// Each test binary uses its own part of this module.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tollgate::limit::parse_rate;
use tollgate::{Algorithm, Align, Limit, LimitBuilder, Micros, OnChange, Outcome, Wait};

use crate::executor::{BookingRefusal, Executor, book};

const ALGORITHMS: &str = include_str!("../data/algorithms.jsonl");
const DOCUMENTS: &str = include_str!("../data/documents.jsonl");

/// Lines about headers and addresses: not for an algorithm.
const NOT_ALGORITHM_CASES: [&str; 5] = ["hd-02", "hd-03", "hd-05", "ip-01", "ip-03"];

/// Instants and counts from here on are outside every store's range.
const TOO_LARGE: i128 = 1 << 53;
const CENTURY_US: i128 = 100 * 36_525 * 864 * 1_000_000;

/// How patiently a soak polls.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollDensity {
    /// Every poll of every line.
    All,
    /// Every poll, but of `slow` lines only those that a refusal's wait does not rule out.
    AllButSlow,
    /// Only polls that a refusal's wait does not rule out, and only lines with few admissions: the
    /// model walks through all of them at each question.
    Few,
}

/// What a run has done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CaseTally {
    pub(crate) lines: usize,
    pub(crate) skipped: usize,
    /// Limits that cannot be built, as it should be.
    pub(crate) refused: usize,
    pub(crate) steps: usize,
    /// Steps at instants that cannot be told.
    pub(crate) out_of_range: usize,
    pub(crate) ops: usize,
    pub(crate) changes: usize,
    pub(crate) together: usize,
    pub(crate) soaks: usize,
    pub(crate) admitted: u64,
}

pub(crate) const ALL_LINES: CaseTally = CaseTally {
    lines: 57,
    skipped: 5,
    refused: 4,
    steps: 215,
    out_of_range: 14,
    ops: 23,
    changes: 8,
    together: 9,
    soaks: 4,
    admitted: 3 + 100 + 299 + 9_999,
};

/// Runs `algorithms.jsonl`; each line has its own key.
pub(crate) fn run(executor: &mut impl Executor, polls: PollDensity) -> CaseTally {
    let mut tally = CaseTally::default();
    for text in ALGORITHMS.lines() {
        let line: Value = serde_json::from_str(text).expect("one JSON object per line");
        let id = line["id"].as_str().expect("an id");
        tally.lines += 1;
        match line["kind"].as_str() {
            _ if NOT_ALGORITHM_CASES.contains(&id) => tally.skipped += 1,
            None => run_steps(executor, id, &line, &mut tally),
            Some("ops") => run_ops(executor, id, &line, &mut tally),
            Some("reconfigure") => run_changes(executor, id, &line, &mut tally),
            Some("composite") => run_together(executor, id, &line, &mut tally),
            Some("soak") => run_soak(executor, (id, &line), polls, &mut tally),
            Some(kind) => panic!("{id}: nobody runs a line of kind {kind:?}"),
        }
    }
    tally
}

fn run_steps(executor: &mut impl Executor, id: &str, line: &Value, tally: &mut CaseTally) {
    let cfg = &line["cfg"];
    let limit = match builder_of(line["alg"].as_str().expect("an algorithm"), cfg).build() {
        Ok(limit) if is_possible(cfg) => limit,
        Err(error) if !is_possible(cfg) => {
            let text = error.to_string();
            assert!(text.contains("2^53") || text.contains("100 years"), "{id}: {text}");
            tally.refused += 1;
            return;
        }
        built => panic!("{id}: {built:?}"),
    };
    let steps = rows(&line["steps"]);
    prepare(executor, (id, &limit), cfg, whole(&steps[0][0]));
    for (index, step) in steps.iter().enumerate() {
        let [at, cost, allowed, state, retry] = step.as_slice() else { panic!("{id}: {step:?}") };
        if whole(at) >= TOO_LARGE {
            tally.out_of_range += 1;
            continue;
        }
        let got = executor.take(id, &limit, natural(cost), instant(at));
        let got_state = if limit.is_queue() { in_us(got.delay) } else { got.remaining.into() };
        assert_eq!(
            (flag(got.allowed), got_state, in_us(got.retry_after)),
            (whole(allowed), whole(state), whole(retry)),
            "{id}, step {index}"
        );
        tally.steps += 1;
    }
}

fn run_ops(executor: &mut impl Executor, id: &str, line: &Value, tally: &mut CaseTally) {
    let limit = limit_of("token_bucket", &line["cfg"]);
    let ops = line["ops"].as_array().expect("operations");
    prepare(executor, (id, &limit), &line["cfg"], whole(&ops[0]["t"]));
    let answer =
        |got: Outcome| vec![flag(got.allowed), got.remaining.into(), in_us(got.retry_after)];
    for (index, op) in ops.iter().enumerate() {
        let (units, now) = (natural(&op["n"]), instant(&op["t"]));
        let got: Vec<i128> = match op["op"].as_str().expect("the name of an operation") {
            "take" => answer(executor.take(id, &limit, units, now)),
            "peek" => answer(executor.peek(id, &limit, units, now)),
            "force" => vec![executor.force(id, &limit, units, now).into()],
            "refund" => vec![executor.refund(id, &limit, units, now).into()],
            "reserve" => {
                let wait_max =
                    op.get("max_wait").map_or(Wait::NEVER, |wait| Wait::from_micros(natural(wait)));
                vec![match book(executor, (id, &limit), units, wait_max, now) {
                    Ok(wait) => in_us(wait),
                    Err(BookingRefusal::Never) => -1,
                    Err(BookingRefusal::TooLate) => -2,
                }]
            }
            name => panic!("{id}: nobody knows the operation {name:?}"),
        };
        let want: Vec<i128> = op["r"].as_array().expect("a result").iter().map(whole).collect();
        assert_eq!(got, want, "{id}, operation {index}");
        tally.ops += 1;
    }
}

/// Each row is a key that has used something when the capacity changes under it.
fn run_changes(executor: &mut impl Executor, id: &str, line: &Value, tally: &mut CaseTally) {
    for (index, row) in rows(&line["rows"]).iter().enumerate() {
        let [strategy, old, new, before, after] = row.as_slice() else { panic!("{id}: {row:?}") };
        let on_change = match strategy.as_str().expect("a strategy") {
            "keep" => OnChange::Keep,
            "reset" => OnChange::Reset,
            "scale" => OnChange::Scale,
            name => panic!("{id}: nobody knows the strategy {name:?}"),
        };
        let limit = |capacity: &Value| {
            let units = natural(capacity);
            Limit::per_hour(units).burst(units).on_change(on_change).build().expect("a limit")
        };
        let (key, now) = (format!("{id} {index}"), Micros::from_secs(1_000));
        executor.force(&key, &limit(old), natural(old) - natural(before), now);
        assert_eq!(executor.peek(&key, &limit(old), 0, now).remaining, natural(before));
        let got = executor.peek(&key, &limit(new), 0, now).remaining;
        assert_eq!(got, natural(after), "{id}, row {index}");
        tally.changes += 1;
    }
}

fn run_together(executor: &mut impl Executor, id: &str, line: &Value, tally: &mut CaseTally) {
    let cfgs = line["limits"].as_array().expect("limits");
    let limits: Vec<Limit> = cfgs.iter().map(|cfg| limit_of("token_bucket", cfg)).collect();
    for (index, row) in rows(&line["steps"]).iter().enumerate() {
        let [at, cost, allowed, remaining, retry, violated] = row.as_slice() else {
            panic!("{id}: {row:?}")
        };
        let list = |value: &Value| -> Vec<i128> {
            value.as_array().expect("a list").iter().map(whole).collect()
        };
        let got = executor.take_all(id, &limits, natural(cost), instant(at));
        let got_remaining: Vec<i128> = got.remaining.iter().map(|&left| left.into()).collect();
        let got_violated: Vec<i128> = got.violated.iter().map(|&index| index as i128).collect();
        assert_eq!(
            (flag(got.allowed), got_remaining, in_us(got.retry_after), got_violated),
            (whole(allowed), list(remaining), whole(retry), list(violated)),
            "{id}, step {index}"
        );
        tally.together += 1;
    }
}

fn run_soak(
    executor: &mut impl Executor,
    (id, line): (&str, &Value),
    polls: PollDensity,
    tally: &mut CaseTally,
) {
    let limit = limit_of("token_bucket", &line["cfg"]);
    let (every, until) = (natural(&line["poll_ns"]), natural(&line["until_ns"]));
    let patient = match polls {
        PollDensity::All => true,
        PollDensity::AllButSlow => line.get("slow").is_none(),
        PollDensity::Few if whole(&line["expect_admitted"]) > 1_000 => return,
        PollDensity::Few => false,
    };
    prepare(executor, (id, &limit), &line["cfg"], 0);
    let (mut at, mut admitted) = (0, 0);
    while at <= until {
        let refused = loop {
            let got = executor.take(id, &limit, 1, Micros::new(at));
            if !got.allowed {
                break got;
            }
            admitted += 1;
        };
        // A wait is minimal, so no poll before its end can be admitted.
        let wait = refused.retry_after.as_micros().expect("1 always fits some day");
        at += if patient { every } else { every * wait.div_ceil(every).max(1) };
    }
    assert_eq!(i128::from(admitted), whole(&line["expect_admitted"]), "{id}");
    tally.soaks += 1;
    tally.admitted += admitted;
}

/// `initial: k` leaves k units at the first instant.
fn prepare(executor: &mut impl Executor, (id, limit): (&str, &Limit), cfg: &Value, first_at: i128) {
    if let Some(initial) = cfg.get("initial") {
        let first_at = Micros::new(u64::try_from(first_at).expect("an instant"));
        executor.force(id, limit, limit.capacity() - natural(initial), first_at);
    }
}

fn limit_of(algorithm: &str, cfg: &Value) -> Limit {
    builder_of(algorithm, cfg).build().expect("numbers within the range")
}

/// What `alg` and `cfg` describe; an option that nobody knows fails.
fn builder_of(algorithm: &str, cfg: &Value) -> LimitBuilder {
    let per = |units: &str| {
        Limit::per(natural(&cfg[units]), Duration::from_micros(natural(&cfg["period_ns"])))
    };
    let bucket = |units: &str| per(units).burst(natural(&cfg["capacity"]));
    let mut builder = match algorithm {
        "token_bucket" | "gcra" => bucket("refill").algorithm(Algorithm::TokenBucket),
        "leaky_meter" => bucket("leak").algorithm(Algorithm::LeakyBucket),
        "leaky_queue" => bucket("leak").algorithm(Algorithm::LeakyBucket).queue(),
        "fixed_window" => per("limit").algorithm(Algorithm::FixedWindow),
        "sliding_log" => per("limit").algorithm(Algorithm::SlidingWindowLog),
        "sliding_counter" => per("limit").algorithm(Algorithm::SlidingWindowCounter),
        name => panic!("nobody knows the algorithm {name:?}"),
    };
    for (name, value) in cfg.as_object().expect("an object") {
        match name.as_str() {
            "capacity" | "refill" | "leak" | "limit" | "period_ns" | "initial" => {}
            "anchor_ns" => builder = builder.align(Align::Anchor(instant(value))),
            "align" if value == "first_hit" => builder = builder.align(Align::FirstHit),
            "mode" if value == "floor" => {}
            _ => panic!("nobody knows the option {name}: {value}"),
        }
    }
    builder
}

/// Whether the numbers are in the range every store holds.
fn is_possible(cfg: &Value) -> bool {
    let of = |names: [&str; 2]| names.iter().find_map(|name| cfg.get(name)).map(whole);
    let period = whole(&cfg["period_ns"]);
    let capacity = of(["capacity", "limit"]).expect("a capacity");
    let rate = of(["refill", "leak"]);
    let refills = rate.is_none_or(|rate| capacity * period <= CENTURY_US * rate);
    capacity < TOO_LARGE && rate.unwrap_or(1) < TOO_LARGE && period <= CENTURY_US && refills
}

fn rows(value: &Value) -> Vec<Vec<Value>> {
    let rows = value.as_array().expect("rows");
    rows.iter().map(|row| row.as_array().expect("a row").clone()).collect()
}

fn whole(value: &Value) -> i128 {
    let whole = value.as_u64().map(i128::from).or_else(|| value.as_i64().map(i128::from));
    whole.unwrap_or_else(|| panic!("{value} is not a whole number of 64 bits"))
}

fn natural(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a natural number of 64 bits"))
}

fn instant(value: &Value) -> Micros {
    assert!(whole(value) < TOO_LARGE, "{value} would be clamped");
    Micros::new(natural(value))
}

fn flag(allowed: bool) -> i128 {
    allowed.into()
}

/// As the columns write it: −1 is never.
fn in_us(wait: Wait) -> i128 {
    wait.as_micros().map_or(-1, i128::from)
}

/// Runs `documents.jsonl`; returns how many lines and how many requests.
pub(crate) fn run_documents(executor: &mut impl Executor) -> (usize, usize) {
    let (mut lines, mut requests) = (0, 0);
    for text in DOCUMENTS.lines() {
        lines += 1;
        requests += run_document(executor, text);
    }
    (lines, requests)
}

fn run_document(executor: &mut impl Executor, text: &str) -> usize {
    let line: Value = serde_json::from_str(text).expect("one JSON object per line");
    let (id, ok) = (line["id"].as_str().expect("an id"), line["ok"].as_str().expect("answers"));
    let known = "args at_s cost delay_us doc doc_right id note ok remaining retry_us";
    for name in line.as_object().expect("an object").keys() {
        assert!(known.split(' ').any(|word| word == name), "{id}: nobody knows the field {name}");
    }
    let limit = limit_of_args(line["args"].as_str().expect("arguments"));
    let instants = instants_us(text);
    assert_eq!(ok.len(), instants.len(), "{id}");
    for (index, (want, &at)) in ok.bytes().zip(&instants).enumerate() {
        let column = |name: &str| line.get(name).map(|column| natural(&column[index]));
        let cost = column("cost").unwrap_or(1);
        let got = executor.take(id, &limit, cost, Micros::new(at));
        assert_eq!(got.allowed, want == b'1', "{id}, request {index}");
        if let Some(remaining) = column("remaining") {
            assert_eq!(got.remaining, remaining, "{id}, request {index}");
        }
        if let Some(delay) = column("delay_us") {
            assert_eq!(got.delay, Wait::from_micros(delay), "{id}, request {index}");
        }
        let retry = line.get("retry_us").and_then(|waits| waits.get(index.to_string()));
        assert_eq!(
            retry.is_some(),
            want == b'0',
            "{id}: a wait for each refused one, only for them"
        );
        let retry = Wait::from_micros(retry.map_or(0, natural));
        assert_eq!(got.retry_after, retry, "{id}, request {index}");
    }
    if let Some(claimed) = line["doc"].as_str() {
        assert_eq!(line["doc_right"].as_bool(), Some(claimed == ok), "{id}");
    }
    ok.len()
}

/// The column `at_s`, read from its text because 16.999999 is not a float.
fn instants_us(text: &str) -> Vec<u64> {
    let fields: BTreeMap<&str, &RawValue> = serde_json::from_str(text).expect("an object");
    let instants: Vec<&RawValue> = serde_json::from_str(fields["at_s"].get()).expect("a list");
    instants.iter().map(|instant| decimal_us(instant.get())).collect()
}

/// The arguments of `tollgate simulate`.
fn limit_of_args(args: &str) -> Limit {
    let mut words = args.split(' ');
    let (mut algorithm, mut rate, mut burst, mut queue) = (None, None, None, false);
    while let Some(option) = words.next() {
        let mut value = || words.next().expect("a value after an option");
        match option {
            "--algorithm" => algorithm = Some(value().parse::<Algorithm>().expect("one of five")),
            "--rate" => rate = Some(parse_rate(value()).expect("a rate")),
            "--burst" => burst = Some(value().parse().expect("a whole number")),
            "--queue" => queue = true,
            _ => panic!("nobody knows the argument {option:?}"),
        }
    }
    let mut builder = rate.expect("--rate").algorithm(algorithm.expect("--algorithm"));
    if let Some(burst) = burst {
        builder = builder.burst(burst);
    }
    if queue {
        builder = builder.queue();
    }
    builder.build().expect("a limit")
}

/// Seconds with up to six decimals as microseconds, exactly.
fn decimal_us(text: &str) -> u64 {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    assert!(decimals.len() <= 6, "{text} s is not a whole number of microseconds");
    format!("{whole}{decimals:0<6}").parse().unwrap_or_else(|_| panic!("{text} is not a decimal"))
}

#[test]
fn decimals_are_exact() {
    let read = ["0", "0.2", "16.999999", "10.000001", "4503599627.370497"].map(decimal_us);
    assert_eq!(read, [0, 200_000, 16_999_999, 10_000_001, 4_503_599_627_370_497]);
}
