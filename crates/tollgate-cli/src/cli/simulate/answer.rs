//! The output of an answer with `--rules`: the fields of `/v1/check`, with times in microseconds.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::value::RawValue;
use tollgate::{Micros, Wait};
use tollgate_rules::{Answer, Enforcement, JudgedLimit};

use super::Answers;

/// An answer of the rules. Scripts rely on names and order.
#[derive(Serialize)]
pub(super) struct RulesAnswerBody<'a> {
    allowed: bool,
    rule: Option<&'a str>,
    limit: Option<&'a str>,
    remaining: Option<u64>,
    retry_after_us: Option<u64>,
    reset_after_us: Option<u64>,
    delay_us: Option<u64>,
    max: Option<u64>,
    decided_by: &'a str,
    limits: Vec<RulesAnswerLimit<'a>>,
}

/// The state of one limit.
#[derive(Serialize)]
struct RulesAnswerLimit<'a> {
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

impl<'a> RulesAnswerBody<'a> {
    pub(super) fn new(answer: &'a Answer) -> RulesAnswerBody<'a> {
        let binding = answer.binding();
        RulesAnswerBody {
            allowed: answer.allowed(),
            rule: binding.map(|binding| binding.rule),
            limit: binding.map(|binding| binding.limit),
            remaining: binding.map(|_| answer.remaining()),
            retry_after_us: answer.retry_after().as_micros(),
            reset_after_us: answer.reset_after().as_micros(),
            delay_us: answer.delay().as_micros(),
            max: binding.map(|_| answer.capacity()),
            decided_by: answer.decided_by().name(),
            limits: answer.limits().map(RulesAnswerLimit::new).collect(),
        }
    }
}

impl<'a> RulesAnswerLimit<'a> {
    fn new(judged: JudgedLimit<'a>) -> RulesAnswerLimit<'a> {
        let JudgedLimit { rule, limit, outcome, enforcement: standing, .. } = judged;
        RulesAnswerLimit {
            rule,
            limit,
            allowed: outcome.allowed,
            remaining: outcome.remaining,
            retry_after_us: outcome.retry_after.as_micros(),
            reset_after_us: outcome.reset_after.as_micros(),
            shadow: standing == Enforcement::Shadow,
            soft: standing == Enforcement::Soft,
        }
    }
}

/// Prints the answer to one request.
pub(super) fn print(answer: &Answer, answers: &mut Answers) -> io::Result<()> {
    print_after(answer, (answer.at(), Wait::ZERO), answers)
}

/// Prints the answer to a request of this instant that was decided after a wait in a queue.
pub(super) fn print_after(
    answer: &Answer,
    (at, waited): (Micros, Wait),
    answers: &mut dyn Write,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct AnswerLine<'a> {
        at: u64,
        #[serde(flatten)]
        told: RulesAnswerBody<'a>,
    }

    let mut told = RulesAnswerBody::new(answer);
    let waited_us = waited.as_micros().filter(|_| answer.allowed()).unwrap_or_default();
    told.delay_us = told.delay_us.map(|delay_us| delay_us + waited_us);
    print_line(&AnswerLine { at: at.as_u64(), told }, answers)
}

/// Prints the answers of two rule sets to one request.
pub(super) fn print_both(
    facts: Option<&RawValue>,
    [now, then]: [&Answer; 2],
    answers: &mut Answers,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct ComparedAnswerLine<'a> {
        at: u64,
        /// Facts as in the trace.
        facts: Option<&'a RawValue>,
        now: RulesAnswerBody<'a>,
        then: RulesAnswerBody<'a>,
    }

    let (at, now, then) =
        (now.at().as_u64(), RulesAnswerBody::new(now), RulesAnswerBody::new(then));
    print_line(&ComparedAnswerLine { at, facts, now, then }, answers)
}

fn print_line(line: &impl Serialize, answers: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *answers, line)?;
    answers.write_all(b"\n")
}
