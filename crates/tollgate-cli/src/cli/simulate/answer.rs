//! An answer as `--rules` prints it: the names and the order of `/v1/check`, times in microseconds.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::value::RawValue;
use tollgate_rules::{Answer, Judged, Standing};

use super::Answers;

/// What the rules said. Scripts rely on names and order.
#[derive(Serialize)]
pub(super) struct Told<'a> {
    allowed: bool,
    rule: Option<&'a str>,
    limit: Option<&'a str>,
    remaining: Option<u64>,
    retry_after_us: Option<u64>,
    reset_after_us: Option<u64>,
    delay_us: Option<u64>,
    max: Option<u64>,
    decided_by: &'a str,
    limits: Vec<ToldLimit<'a>>,
}

/// What one limit said.
#[derive(Serialize)]
struct ToldLimit<'a> {
    rule: &'a str,
    limit: &'a str,
    allowed: bool,
    remaining: u64,
    retry_after_us: Option<u64>,
    reset_after_us: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    shadow: bool,
    #[serde(skip_serializing_if = "is_false")]
    soft: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl<'a> Told<'a> {
    pub(super) fn new(answer: &'a Answer) -> Told<'a> {
        let binding = answer.binding();
        Told {
            allowed: answer.allowed(),
            rule: binding.map(|binding| binding.rule),
            limit: binding.map(|binding| binding.limit),
            remaining: binding.map(|_| answer.remaining()),
            retry_after_us: answer.retry_after().as_micros(),
            reset_after_us: answer.reset_after().as_micros(),
            delay_us: answer.delay().as_micros(),
            max: binding.map(|_| answer.capacity()),
            decided_by: answer.decided_by().name(),
            limits: answer.limits().map(ToldLimit::new).collect(),
        }
    }
}

impl<'a> ToldLimit<'a> {
    fn new(judged: Judged<'a>) -> ToldLimit<'a> {
        let Judged { rule, limit, outcome, standing, .. } = judged;
        ToldLimit {
            rule,
            limit,
            allowed: outcome.allowed,
            remaining: outcome.remaining,
            retry_after_us: outcome.retry_after.as_micros(),
            reset_after_us: outcome.reset_after.as_micros(),
            shadow: standing == Standing::Shadow,
            soft: standing == Standing::Soft,
        }
    }
}

/// Prints the answer to one request.
pub(super) fn print(answer: &Answer, answers: &mut Answers) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line<'a> {
        at: u64,
        #[serde(flatten)]
        told: Told<'a>,
    }

    print_line(&Line { at: answer.at().as_u64(), told: Told::new(answer) }, answers)
}

/// Prints what two rule sets make of one request.
pub(super) fn print_both(
    facts: Option<&RawValue>,
    [now, then]: [&Answer; 2],
    answers: &mut Answers,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line<'a> {
        at: u64,
        /// As the trace has them.
        facts: Option<&'a RawValue>,
        now: Told<'a>,
        then: Told<'a>,
    }

    let (at, now, then) = (now.at().as_u64(), Told::new(now), Told::new(then));
    print_line(&Line { at, facts, now, then }, answers)
}

fn print_line(line: &impl Serialize, answers: &mut Answers) -> io::Result<()> {
    serde_json::to_writer(&mut *answers, line)?;
    answers.write_all(b"\n")
}
