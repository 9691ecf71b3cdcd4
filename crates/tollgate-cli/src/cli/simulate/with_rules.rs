//! Runs a trace through rules: prints every answer, or a summary.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tollgate::decision::MAX_LIMITS;
use tollgate::{ManualClock, Micros};
use tollgate_rules::rule::Mode;
use tollgate_rules::{
    Compilation, DecidedRequest, Gatekeeper, MissingFacts, Rule, RuleSet, RulesObserver, key_text,
};

use super::store::SimStore;
use super::trace::TraceReader;
use super::trace_line::{self, TraceLine};
use super::{
    Args, CommandFailure, OutputForm, Report, against, answer, check, in_turn, replay,
    rules_course, warn_if_crowded,
};
use crate::replay::missing_facts::MissingFactsCount;
use crate::replay::tally::TraceTally;

/// Decides the requests of the trace one after the other.
pub(super) fn run(args: &Args, trace: &Path) -> Result<(), CommandFailure> {
    let now = SimRules::open(&args.rules, args)?;
    let then = match &args.against[..] {
        [] => None,
        paths => Some(SimRules::open(paths, args)?),
    };
    let mut trace = TraceReader::open(trace, &trace_line::TRACE_FORMAT)?;
    let people = args.output == Some(OutputForm::Table);
    match &then {
        None if args.is_drawn() && now.waits() => {
            let problem = "rules whose requests wait for each other are not drawn";
            let hint = "leave out --svg and write --output table: it shows waits and fairness";
            return Err(CommandFailure::Usage(Report::new(problem).hint(hint)));
        }
        None if args.is_drawn() => rules_course::run(&mut trace, &now, args)?,
        None if now.waits() => in_turn::decide(&mut trace, &now, people)?,
        None => decide(&mut trace, &now, people)?,
        Some(then) => against::compare(&mut trace, [&now, then], args)?,
    }
    let mut unreached = None;
    for rules in [Some(now), then].into_iter().flatten() {
        // The rules of two files are often the same.
        if trace.has_lines() && unreached != Some(rules.unreached()) {
            unreached = Some(rules.unreached());
            warn_if_unreached(&rules.unreached());
        }
        if trace.is_recorded() {
            warn_of_hashed_callers(&rules.gatekeeper.rules());
        }
        warn_if_crowded(&rules.store, args.max_keys);
        warn_if_left_out(&rules.gatekeeper);
        warn_if_facts_missing(&rules.observer.missing);
    }
    Ok(())
}

/// Warns of rules that look at what a recorded trace has only as a hash.
fn warn_of_hashed_callers(rules: &RuleSet) {
    for warning in crate::replay::of_hashed_callers(rules) {
        // The answers are printed: a closed standard error is no reason to fail.
        let _ = writeln!(io::stderr(), "warning: {warning}");
    }
}

/// Most names in the warning of rules that no request reached.
const UNREACHED_SHOWN_MAX: usize = 20;

/// Warns of rules that no request of the trace reached: the trace says nothing about them.
fn warn_if_unreached(names: &[String]) {
    if names.is_empty() {
        return;
    }
    let mut list = names[..names.len().min(UNREACHED_SHOWN_MAX)].join(", ");
    if names.len() > UNREACHED_SHOWN_MAX {
        list.push_str(&format!(" and {} more", names.len() - UNREACHED_SHOWN_MAX));
    }
    // The answers are printed: a closed standard error is no reason to fail.
    let _ = writeln!(
        io::stderr(),
        "warning: no request reached these rules: {list}\n\
         hint: compare `match` and `key` of each with the facts of the trace: path, method, user"
    );
}

/// Observer of the decisions of a trace.
#[derive(Debug, Default)]
struct TraceObserver {
    missing: MissingFactsCount,
    /// True if [`SimRules::take_decided`] is called after each request.
    records_keys: bool,
    /// The keys of the last request. Bound: one for each rule that applies, at most [`MAX_LIMITS`].
    decided: Mutex<Vec<DecidedKey>>,
    /// The names of rules that applied to a request. Bound: the number of rules.
    reached: Mutex<HashSet<Box<str>>>,
}

/// A key under a rule that decided about a request.
#[derive(Debug)]
pub(super) struct DecidedKey {
    pub(super) rule: String,
    /// The key as people read it.
    pub(super) key: String,
    /// Units that the rule asks for.
    pub(super) cost: u64,
}

impl RulesObserver for TraceObserver {
    fn decided(&self, decided: &DecidedRequest<'_>) {
        decided.rule_verdicts().for_each(|verdict| self.note_reached(verdict.rule));
        if self.records_keys {
            let keys = decided.rule_verdicts().map(|verdict| DecidedKey {
                rule: verdict.rule.name.to_string(),
                key: key_text(verdict.key),
                cost: verdict.cost,
            });
            *self.decided.lock().unwrap_or_else(PoisonError::into_inner) = keys.collect();
        }
    }

    fn missing_facts(&self, missing: &MissingFacts<'_>, now: Micros) {
        // There is a warning about these of its own.
        self.note_reached(missing.rule());
        self.missing.missing_facts(missing, now);
    }
}

impl TraceObserver {
    fn note_reached(&self, rule: &Rule) {
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        if !reached.contains(&*rule.name) {
            reached.insert(rule.name.as_ref().into());
        }
    }
}

/// Warns of requests that are allowed because they lack facts: a server would refuse some of them.
fn warn_if_facts_missing(missing: &MissingFactsCount) {
    if let Some((requests, first)) = missing.counted() {
        // The answers are printed: a closed standard error is no reason to fail.
        let _ = writeln!(
            io::stderr(),
            "warning: requests allowed because they lack facts: {requests}; the first: {first}\n\
             hint: /v1/check answers such requests with 400, unless the server is started with \
             --missing-facts allow"
        );
    }
}

/// A gatekeeper of a simulation. Its clock is read only where requests wait: every other request brings its instant.
pub(super) type SimGatekeeper = Gatekeeper<Arc<SimStore>, Arc<ManualClock>>;

/// The rules of some files, with a store of their own.
pub(super) struct SimRules {
    pub(super) gatekeeper: SimGatekeeper,
    pub(super) store: Arc<SimStore>,
    pub(super) clock: Arc<ManualClock>,
    observer: Arc<TraceObserver>,
}

impl SimRules {
    fn open(paths: &[PathBuf], args: &Args) -> Result<SimRules, CommandFailure> {
        let Compilation { rules, diagnostics, .. } = check::compile_paths(paths, None);
        let Some(rules) = rules else {
            // If standard error is closed, the exit code is enough.
            let _ = write!(io::stderr(), "{diagnostics}");
            return Err(CommandFailure::Reported);
        };
        let store = Arc::new(SimStore::open(args)?);
        let observer =
            Arc::new(TraceObserver { records_keys: args.is_drawn(), ..TraceObserver::default() });
        let clock = Arc::new(ManualClock::new(Micros::ZERO));
        let gatekeeper = Gatekeeper::new(rules, Arc::clone(&store), Arc::clone(&clock));
        let gatekeeper = gatekeeper.observed_by(Arc::clone(&observer) as Arc<dyn RulesObserver>);
        Ok(SimRules { gatekeeper, store, clock, observer })
    }

    /// The keys that decided about the last request.
    pub(super) fn take_decided(&self) -> Vec<DecidedKey> {
        let mut decided = self.observer.decided.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut decided)
    }

    /// The names of the rules that applied to no request, in the order of the files. Those that are off are left out.
    fn unreached(&self) -> Vec<String> {
        let reached = self.observer.reached.lock().unwrap_or_else(PoisonError::into_inner);
        let rules = self.gatekeeper.rules();
        let is_unreached = |rule: &&Rule| rule.mode != Mode::Off && !reached.contains(&*rule.name);
        rules.rules().filter(is_unreached).map(|rule| rule.name.to_string()).collect()
    }

    /// Returns true if requests may wait for each other. Over a shared store they do not: it would have to wait for
    /// an answer while the clock of the trace stands still.
    fn waits(&self) -> bool {
        let rules = self.gatekeeper.rules();
        let waits = |rule: &Rule| rule.fair.is_some() || rule.concurrency.is_some();
        self.store.memory().is_some() && rules.rules().any(waits)
    }
}

fn decide(trace: &mut TraceReader, rules: &SimRules, people: bool) -> Result<(), CommandFailure> {
    let mut tally = TraceTally::default();
    replay(trace, |request, answers| {
        let answer = TraceLine::read(request)?.decide(rules, request.at)?;
        match people {
            true => tally.add(&answer),
            false => answer::print(&answer, answers).map_err(CommandFailure::from_output)?,
        }
        Ok(())
    })?;
    if people {
        write!(io::stdout(), "{tally}").map_err(CommandFailure::from_output)?;
    }
    Ok(())
}

/// Warns of limits that were left out because too many apply to one request.
fn warn_if_left_out(gatekeeper: &SimGatekeeper) {
    let left_out = gatekeeper.stats().left_out;
    if left_out > 0 {
        // The answers are printed: a closed standard error is no reason to fail.
        let _ = writeln!(
            io::stderr(),
            "warning: {left_out} times a limit was left out, because more than {MAX_LIMITS} apply \
             to one request\nhint: make the rules more specific, so that fewer match the same request"
        );
    }
}
