//! Runs a trace through rules whose requests wait their turn (`fair`) or take time (`concurrency`).
//!
//! Requests overlap here: one that waits is decided at the instant of a later line. Answers are still printed
//! in the order of the trace. Time does not go back: a line with an earlier time is a request of the present.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::Duration;

use tollgate::{Clock, Micros, Wait};
use tollgate_rules::{Answer, Ask, ReservationAnswer, TurnSleepFn, WorkOutcome};

use super::caller_tally::CallerTallies;
use super::trace::TraceReader;
use super::trace_line::TraceLine;
use super::virtual_time::{SleepOnClock, VirtualTime};
use super::with_rules::SimRules;
use super::{CommandFailure, answer, replay};
use crate::replay::tally::TraceTally;

/// A request of the trace and its answer, once there is one.
struct TracedAnswer {
    at: Micros,
    caller: Box<str>,
    /// The answer, and the time from the request to it.
    answered: Option<(Answer, Wait)>,
}

/// The requests whose answers are not printed yet, in the order of the trace.
#[derive(Default)]
struct AnswersInOrder {
    /// Bound: the requests within the longest wait of the rules.
    waiting: VecDeque<TracedAnswer>,
    /// The number of the first of them.
    first: usize,
}

impl AnswersInOrder {
    fn add(&mut self, at: Micros, caller: Box<str>) -> usize {
        self.waiting.push_back(TracedAnswer { at, caller, answered: None });
        self.first + self.waiting.len() - 1
    }

    fn answer(&mut self, number: usize, answer: Answer, waited: Wait) {
        self.waiting[number - self.first].answered = Some((answer, waited));
    }

    fn next(&mut self) -> Option<(TracedAnswer, Answer, Wait)> {
        let (answer, waited) = self.waiting.front_mut()?.answered.take()?;
        self.first += 1;
        Some((self.waiting.pop_front()?, answer, waited))
    }
}

/// Decides the requests of the trace, each when it is its turn.
pub(super) fn decide(
    trace: &mut TraceReader,
    rules: &SimRules,
    people: bool,
) -> Result<(), CommandFailure> {
    let answers = RefCell::new(AnswersInOrder::default());
    let mut time = VirtualTime::new(rules.clock.clone());
    let (mut tally, mut callers) = (TraceTally::default(), CallerTallies::default());
    let mut finish = |output: &mut dyn Write| {
        while let Some((request, answer, waited)) = answers.borrow_mut().next() {
            if people {
                tally.add_after(&answer, waited);
                callers.add(request.caller, &answer, waited);
            } else {
                answer::print_after(&answer, (request.at, waited), output)?;
            }
        }
        io::Result::Ok(())
    };
    replay(trace, |request, output| {
        let line = TraceLine::read(request)?;
        time.run_until(request.at);
        let number = answers.borrow_mut().add(request.at, line.caller().into());
        if line.has_descriptor() {
            let answer = line.decide(rules, rules.clock.now())?;
            answers.borrow_mut().answer(number, answer, Wait::ZERO);
        } else {
            let traced = TracedRun { rules, line: line.into_owned(), takes: request.takes };
            time.start(traced.run(number, &answers, time.sleep_fn()));
        }
        finish(output).map_err(CommandFailure::from_output)
    })?;
    time.run_to_end();
    finish(&mut io::stdout().lock()).map_err(CommandFailure::from_output)?;
    if people {
        write!(io::stdout(), "{tally}{callers}").map_err(CommandFailure::from_output)?;
    }
    Ok(())
}

/// A request on its way.
struct TracedRun<'a> {
    rules: &'a SimRules,
    line: TraceLine<'static>,
    /// The time that its work takes once it has begun.
    takes: Duration,
}

impl TracedRun<'_> {
    /// Decides the request and holds its place until its work has ended.
    async fn run(self, number: usize, answers: &RefCell<AnswersInOrder>, sleep: SleepOnClock) {
        let SimRules { gatekeeper, clock, .. } = self.rules;
        let arrived = clock.now();
        let ReservationAnswer { answer, id, departure, ends_at_begin, .. } =
            self.admit(&sleep).await;
        let decided = clock.now();
        let due = decided.after(answer.delay());
        if let Some(departure) = departure {
            departure.wait(&**clock, &*sleep_in_turn(&sleep)).await;
        }
        let begins = clock.now().max(due);
        // The delay of the answer is told by itself. A departure of another request may have made this one later.
        let waited = arrived.until(decided.after(due.until(begins)));
        answers.borrow_mut().answer(number, answer, waited);
        if let Some(id) = id {
            let takes = if ends_at_begin { Wait::ZERO } else { Wait::at_least(self.takes) };
            sleep.sleep_until(begins.after(takes)).await;
            gatekeeper.measure(id, WorkOutcome::Answered(takes), clock.now());
            gatekeeper.end(id);
        }
    }

    async fn admit(&self, sleep: &SleepOnClock) -> ReservationAnswer {
        let gatekeeper = &self.rules.gatekeeper;
        let (rules, now) = (gatekeeper.rules(), gatekeeper.now());
        let stated = self.line.stated_facts();
        let identity = rules.settings().identify.identify_stated(&stated, now);
        let ask =
            Ask { facts: identity.complete(stated), cost: self.line.cost(), ..Ask::default() };
        let patience = || Duration::MAX;
        match gatekeeper.admit_or_queue(gatekeeper.rules(), &ask, false, &patience, now).await {
            Ok(answered) => answered,
            Err(queued) => {
                let sleep = sleep_in_turn(sleep);
                let decided = gatekeeper.admit_in_turn(queued, &ask, false, &*sleep).await;
                decided.unwrap_or_else(|_| unreachable!("a simulation replaces no rules"))
            }
        }
    }
}

/// The function that requests in a queue or a line sleep with.
fn sleep_in_turn(maker: &SleepOnClock) -> Box<TurnSleepFn> {
    let maker = maker.clone();
    Box::new(move |duration| Box::pin(maker.sleep(duration)))
}
