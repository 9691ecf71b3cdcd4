//! The cost of rules as their number grows: compiling a rules file, and deciding one request.
//!
//! In the first table each rule has a path of its own, so every request matches one rule at any number of rules. For
//! comparison it shows the cost of trying every pattern in turn. In the second table every request matches all rules.

use std::fmt::Write;
use std::hint::black_box;
use std::process::ExitCode;

use tollgate::{ManualClock, MemoryStore, Micros};
use tollgate_bench::machine;
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::random::BenchRandom;
use tollgate_bench::stopwatch::{Stopwatch, median};
use tollgate_bench::table::{BenchTable, TableStyle, figures, thousands};
use tollgate_rules::compile::compile;
use tollgate_rules::pattern::Pattern;
use tollgate_rules::source::Source;
use tollgate_rules::{Ask, Facts, Gatekeeper, RuleSet};

const HELP: &str = "\
Measures rules files of 10, 1,000 and 10,000 rules with a path each: the time to compile them, and the
time to decide a request that matches one rule, or none. Then files of 1, 2, 4 and 11 rules that all
match: the time to decide, and the time of each further rule.

Usage: cargo xtask bench rules [OPTIONS]

Options:
  --markdown  tables as Markdown
  --help      print this text

Columns:
  compile ms   from text to rules, ready to decide
  decide ns    one request that matches one rule, decided through the table
  no rule ns   one request that matches no rule
  in turn ns   finding the rule by trying every pattern, for comparison
  further ns   the additional time of each rule after the first
Times are medians of 9 rounds. Exits with 1 if a goal is missed.
";

/// The goal for 10,000 rules: they compile within a second.
const COMPILE_MS_MAX: f64 = 1_000.0;
/// The goal for a decision: with 10,000 rules it costs at most twice as much as with 10.
const GROWTH_MAX: f64 = 2.0;
const COUNTS: [usize; 3] = [10, 1_000, 10_000];
/// The goal for a decision by one rule.
const ONE_RULE_NS_MAX: f64 = 250.0;
/// The goal for each further matching rule, with eleven of them.
const FURTHER_RULE_NS_MAX: f64 = 150.0;
/// Numbers of rules that all match.
const MATCHING: [usize; 4] = [1, 2, 4, 11];
const REQUESTS: usize = 200_000;
const ROUNDS: usize = 9;

fn main() -> ExitCode {
    options::run(HELP, |mut options: BenchOptions| -> Result<bool, UsageError> {
        let style = TableStyle::from_flag(options.flag("--markdown"));
        options.finish()?;
        println!("{}; load {}\n", machine::describe(), machine::load());
        machine::pin(0);
        let columns = ["rules", "compile ms", "decide ns", "no rule ns", "in turn ns"];
        let mut table = BenchTable::new("rules with a path each", style, &columns);
        let measured = COUNTS.map(|count| {
            eprintln!("{count} rules");
            RulesMeasurement::new(count)
        });
        for one in &measured {
            table.row(one.row());
        }
        println!("{table}");
        let matching = MATCHING.map(|count| (count, decide_matching(count)));
        println!("{}", matching_table(&matching, style));
        Ok(report(&measured) & report_matching(&matching))
    })
}

fn verdict(met: bool) -> &'static str {
    if met { "PASS" } else { "MISS" }
}

fn report(measured: &[RulesMeasurement; 3]) -> bool {
    let [few, _, many] = measured;
    let growth = many.decide_ns / few.decide_ns;
    let (quick, flat) = (many.compile_ms <= COMPILE_MS_MAX, growth <= GROWTH_MAX);
    println!("{}  10,000 rules compile in at most {COMPILE_MS_MAX} ms", verdict(quick));
    println!(
        "{}  with a thousand times as many rules a decision costs {}x, at most {GROWTH_MAX}x",
        verdict(flat),
        figures(growth)
    );
    quick && flat
}

/// The table of rules that all match; each row is a number of rules and the nanoseconds of a decision.
fn matching_table(measured: &[(usize, f64)], style: TableStyle) -> BenchTable {
    let columns = ["matching rules", "decide ns", "further ns"];
    let mut table = BenchTable::new("rules that all match", style, &columns);
    for &(count, ns) in measured {
        let further = further_ns(measured, count).map_or("-".into(), figures);
        table.row([count.to_string(), figures(ns), further]);
    }
    table
}

/// The additional nanoseconds of each rule after the first, with this number of rules.
fn further_ns(measured: &[(usize, f64)], count: usize) -> Option<f64> {
    let ns = |count| measured.iter().find(|it| it.0 == count).map(|it| it.1);
    (count > 1).then_some((ns(count)? - ns(1)?) / (count - 1) as f64)
}

fn report_matching(measured: &[(usize, f64); 4]) -> bool {
    let [(_, one), .., (most, _)] = *measured;
    let further = further_ns(measured, most).expect("both ends of the table were measured");
    let (one_met, further_met) = (one <= ONE_RULE_NS_MAX, further <= FURTHER_RULE_NS_MAX);
    println!(
        "{}  one decision by one rule takes {} ns, at most {ONE_RULE_NS_MAX}",
        verdict(one_met),
        figures(one)
    );
    println!(
        "{}  each further matching rule takes {} ns, at most {FURTHER_RULE_NS_MAX}",
        verdict(further_met),
        figures(further)
    );
    one_met && further_met
}

struct RulesMeasurement {
    count: usize,
    compile_ms: f64,
    decide_ns: f64,
    unmatched_ns: f64,
    linear_scan_ns: f64,
}

impl RulesMeasurement {
    fn new(count: usize) -> RulesMeasurement {
        let source = [Source::from_text("rules.yaml", &rules_file(count))];
        let compile_ms = repeated(|| {
            let watch = Stopwatch::start();
            black_box(compiled(&source));
            watch.processor_ns() as f64 / 1e6
        });
        let gatekeeper = gatekeeper(&source);
        let mut random = BenchRandom::new(42);
        let paths: Vec<String> =
            (0..1_024).map(|_| path(random.below(count as u64) as usize) + "/42").collect();
        let strangers: Vec<String> =
            (0..1_024).map(|number| format!("/other/{number}/x")).collect();
        RulesMeasurement {
            count,
            compile_ms,
            decide_ns: decide(&gatekeeper, |request| facts_of_anna(&paths, request)),
            unmatched_ns: decide(&gatekeeper, |request| facts_of_anna(&strangers, request)),
            linear_scan_ns: linear_scan(count, &paths),
        }
    }

    fn row(&self) -> [String; 5] {
        [
            thousands(self.count as u64),
            figures(self.compile_ms),
            figures(self.decide_ns),
            figures(self.unmatched_ns),
            figures(self.linear_scan_ns),
        ]
    }
}

/// Nanoseconds of a decision by `count` rules that all match. Callers are many and known.
fn decide_matching(count: usize) -> f64 {
    eprintln!("{count} matching rules");
    let gatekeeper = gatekeeper(&[Source::from_text("rules.yaml", &matching_rules_file(count))]);
    let mut random = BenchRandom::new(42);
    let users: Vec<String> = (0..1_024).map(|_| format!("{:05}", random.below(1_000))).collect();
    decide(&gatekeeper, |request| Facts {
        path: Some("/api/search"),
        user: Some(&users[request % users.len()]),
        ..Facts::default()
    })
}

fn matching_rules_file(count: usize) -> String {
    let mut text = String::from("version: 1\nrules:\n");
    for number in 0..count {
        writeln!(
            text,
            "  - name: rule-{number}\n    match: {{ path: \"/api/{{*rest}}\", method: GET }}\n    \
             key: \"{{user}}\"\n    limits: [1000000/second burst 1000000]"
        )
        .expect("strings take all");
    }
    text
}

fn gatekeeper(sources: &[Source]) -> Gatekeeper<MemoryStore, ManualClock> {
    let (store, clock) = (MemoryStore::new(100_000), ManualClock::new(Micros::ZERO));
    Gatekeeper::new(compiled(sources), store, clock)
}

fn path(number: usize) -> String {
    format!("/service-{}/resource-{number}", number % 100)
}

fn rules_file(count: usize) -> String {
    let mut text = String::from("version: 1\nrules:\n");
    for number in 0..count {
        let path = path(number);
        writeln!(
            text,
            "  - name: rule-{number}\n    match: {{ path: \"{path}/{{id}}\", method: [GET, POST] }}\n    \
             key: \"{{user|ip}}\"\n    limits: [1000000/second]"
        )
        .expect("strings take all");
    }
    text
}

fn compiled(sources: &[Source]) -> RuleSet {
    let compiled = compile(sources);
    compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics))
}

/// The facts of a request by one user for one of these paths.
fn facts_of_anna(paths: &[String], request: usize) -> Facts<'_> {
    let path = &paths[request % paths.len()];
    Facts { path: Some(path), user: Some("anna"), ..Facts::default() }
}

/// Nanoseconds of a decision; `facts` gives those of the request with this number.
fn decide<'a>(
    gatekeeper: &Gatekeeper<MemoryStore, ManualClock>,
    facts: impl Fn(usize) -> Facts<'a>,
) -> f64 {
    per_request(|request| {
        let facts = Facts { method: Some("GET"), ..facts(request) };
        let now = Micros::new(1_700_000_000_000_000 + request as u64 * 10);
        black_box(gatekeeper.decide_at(&Ask { facts, ..Ask::default() }, now).allowed());
    })
}

fn linear_scan(count: usize, paths: &[String]) -> f64 {
    let pattern = |number| Pattern::parse(&(path(number) + "/{id}")).expect("a pattern");
    let patterns: Vec<Pattern> = (0..count).map(pattern).collect();
    let requests = (2_000_000 / count).min(REQUESTS);
    repeated(|| {
        let watch = Stopwatch::start();
        for request in 0..requests {
            let path = &paths[request % paths.len()];
            black_box(patterns.iter().position(|pattern| pattern.matches(path)));
        }
        watch.processor_ns() as f64 / requests as f64
    })
}

fn per_request(mut ask: impl FnMut(usize)) -> f64 {
    repeated(|| {
        let watch = Stopwatch::start();
        (0..REQUESTS).for_each(&mut ask);
        watch.processor_ns() as f64 / REQUESTS as f64
    })
}

fn repeated(mut measure: impl FnMut() -> f64) -> f64 {
    let rounds: Vec<f64> = (0..ROUNDS).map(|_| measure()).collect();
    median(&rounds)
}
