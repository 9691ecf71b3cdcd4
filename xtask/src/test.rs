//! The one test command: a list of steps, each of them a command line that a person could type.
//!
//! Every step runs even when an earlier one failed, so that one run reports everything. All steps that compile
//! share the profile `ci` (see the root manifest), so that nothing is built twice.

use std::time::{Duration, Instant};

use crate::invocation::Invocation;
use crate::tally::{TestRunner, TestTally};
use crate::{CommandLineError, house, packages, peers, programs, publish, target_directory};

/// The names of all steps in the order they run; `soak`, `fuzz` and `deny` only with their options.
pub(crate) const STEPS: [&str; 13] = [
    "packages", "peers", "house", "format", "publish", "lint", "tests", "doctests", "docs", "loom",
    "soak", "fuzz", "deny",
];

/// Tests of the lock-free parts under every interleaving; the step exists when the file does.
const LOOM_TESTS: &str = "crates/tollgate/tests/loom.rs";

/// The options of `test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestOptions {
    /// Steps to run alone; empty means the usual ones.
    only: Vec<String>,
    soak: bool,
    fuzz_seconds: Option<u32>,
    deny: bool,
}

/// One line of the plan.
struct TestStep {
    name: &'static str,
    action: StepAction,
}

enum StepAction {
    InstallPackages,
    InstallPeers,
    CheckHouse,
    CheckPackages,
    CheckDependencies,
    /// Passes or fails as a whole.
    Run(Invocation),
    /// Reports tests one by one.
    Count(TestRunner, Invocation),
    /// Runs every fuzz target for this many seconds.
    Fuzz(u32),
}

/// Runs the steps and reports them. Returns true if all of them passed.
pub(crate) fn run(options: &TestOptions) -> bool {
    let steps = plan(options, Invocation::new("cargo nextest --version").probe());
    let started = now();
    let mut total = TestTally::default();
    let mut failures = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let number = format!("{}/{}", index + 1, steps.len());
        println!("[{number}, {}] {}: {}", seconds(started), step.name, step.action);
        let step_started = now();
        let (passed, tally) = step.action.run();
        // A step that broke without naming a test must not hide behind "0 failed".
        let unnamed = u64::from(!passed && tally.failed == 0);
        total = total + tally;
        total.failed += unnamed;
        if passed {
            println!("[{number}] {} passed in {}\n", step.name, seconds(step_started));
        } else {
            println!(
                "[{number}] {} FAILED; to repeat it alone: {}\n",
                step.name,
                step.repeat_command()
            );
            failures.push(step);
        }
    }
    for step in &failures {
        println!("failed: {}; to repeat it alone: {}", step.name, step.repeat_command());
    }
    println!("flaky tests, which passed when repeated: {}", total.flaky.len());
    for line in &total.flaky {
        println!("flaky: {line}");
    }
    println!("steps: {}, elapsed: {}", steps.len(), seconds(started));
    println!("{total}");
    failures.is_empty()
}

/// The steps that the options select, in order.
fn plan(options: &TestOptions, nextest: bool) -> Vec<TestStep> {
    let step = |name: &'static str| TestStep { name, action: action(name, options, nextest) };
    STEPS.into_iter().filter(|name| options.wants(name)).map(step).collect()
}

/// The action of a step.
fn action(name: &str, options: &TestOptions, nextest: bool) -> StepAction {
    use StepAction::{
        CheckDependencies, CheckHouse, CheckPackages, Count, Fuzz, InstallPackages, InstallPeers,
        Run,
    };
    use TestRunner::Libtest;
    let cargo = Invocation::new;
    match name {
        "packages" => InstallPackages,
        "peers" => InstallPeers,
        "house" => CheckHouse,
        "publish" => CheckPackages,
        "deny" => CheckDependencies,
        "format" => Run(cargo("cargo fmt --all --check")),
        "lint" => Run(cargo(
            "cargo clippy --workspace --all-targets --all-features --profile ci -- -D warnings",
        )),
        "tests" => tests(nextest, false),
        "doctests" => Count(
            Libtest,
            cargo("cargo test --workspace --all-features --profile ci --doc --no-fail-fast"),
        ),
        // Libraries only: the binary `tollgate` would write over the pages of the library.
        "docs" => Run(cargo("cargo doc --workspace --lib --no-deps --all-features --profile ci")
            .env("RUSTDOCFLAGS", "-D warnings")),
        // Its own directory: another RUSTFLAGS would rebuild everything, twice in each run.
        "loom" => Count(
            Libtest,
            cargo("cargo test --package tollgate --test loom --profile ci --target-dir")
                .with([target_directory("loom")])
                .env("RUSTFLAGS", "--cfg loom"),
        ),
        "soak" => tests(nextest, true),
        "fuzz" => Fuzz(options.fuzz_seconds.unwrap_or(programs::FUZZ_SECONDS_DEFAULT)),
        other => unreachable!("`{other}` is in STEPS and has no action"),
    }
}

/// The unit and integration tests: the usual ones, or only those marked `#[ignore]`.
fn tests(nextest: bool, ignored: bool) -> StepAction {
    let select = "--workspace --all-features --tests --no-fail-fast";
    let (runner, mut line) = if nextest {
        (
            TestRunner::Nextest,
            format!("cargo nextest run {select} --cargo-profile ci --no-tests pass"),
        )
    } else {
        (TestRunner::Libtest, format!("cargo test {select} --profile ci"))
    };
    if ignored {
        line += if nextest { " --run-ignored only" } else { " -- --ignored" };
    }
    StepAction::Count(runner, Invocation::new(&line))
}

impl TestStep {
    /// The command that runs this step alone.
    fn repeat_command(&self) -> String {
        match &self.action {
            StepAction::Run(invocation) | StepAction::Count(_, invocation) => {
                invocation.to_string()
            }
            StepAction::InstallPackages
            | StepAction::InstallPeers
            | StepAction::CheckHouse
            | StepAction::CheckPackages
            | StepAction::CheckDependencies
            | StepAction::Fuzz(_) => {
                format!("cargo xtask test --only {}", self.name)
            }
        }
    }
}

impl StepAction {
    /// Runs the action. Returns true if it passed, and the tests it counted.
    fn run(&self) -> (bool, TestTally) {
        match self {
            Self::InstallPackages => (packages::install(), TestTally::default()),
            Self::InstallPeers => (peers::install(), TestTally::default()),
            Self::CheckHouse => (house::run(false), TestTally::default()),
            Self::CheckPackages => (publish::run(), TestTally::default()),
            Self::CheckDependencies => {
                let check = Invocation::new("cargo deny check");
                (programs::deny_is_installed() && check.run(), TestTally::default())
            }
            Self::Run(invocation) => (invocation.run(), TestTally::default()),
            Self::Count(runner, invocation) => invocation.run_and_count(*runner),
            Self::Fuzz(seconds) => (fuzz_all(*seconds), TestTally::default()),
        }
    }
}

/// Runs every target, also after one has failed. Returns true if none found anything.
fn fuzz_all(seconds: u32) -> bool {
    let run = |target: &String| {
        let invocation = programs::fuzz_run(target, seconds);
        println!("{invocation}");
        invocation.run()
    };
    let failed = |target: &&String| !run(target);
    programs::fuzzer_is_installed() && programs::fuzz_targets().iter().filter(failed).count() == 0
}

impl std::fmt::Display for StepAction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InstallPackages => write!(f, "look for the programs that the tests start"),
            Self::InstallPeers => {
                write!(f, "look for the proxies and clients that the tests start")
            }
            Self::CheckHouse => write!(f, "count shared names and clause openings, check the map"),
            Self::CheckPackages => write!(f, "look for all files and fields that packages need"),
            Self::CheckDependencies => write!(f, "cargo deny check"),
            Self::Run(invocation) | Self::Count(_, invocation) => invocation.fmt(f),
            Self::Fuzz(seconds) => write!(f, "every fuzz target for {seconds} s"),
        }
    }
}

impl TestOptions {
    pub(crate) fn parse(words: &[String]) -> Result<Self, CommandLineError> {
        let mut options = Self::default();
        let mut words = words.iter().map(String::as_str).peekable();
        while let Some(word) = words.next() {
            match word {
                "--soak" => options.soak = true,
                "--deny" => options.deny = true,
                "--fuzz" => {
                    let given = words.next_if(|next| !next.starts_with("--"));
                    let seconds = given.map(programs::parse_seconds).transpose()?;
                    options.fuzz_seconds = Some(seconds.unwrap_or(programs::FUZZ_SECONDS_DEFAULT));
                }
                "--only" => {
                    let known = STEPS.join(", ");
                    let name = words.next().ok_or(format!("--only needs a step: {known}."))?;
                    if !STEPS.contains(&name) {
                        return Err(format!("There is no step `{name}`; there is: {known}."));
                    }
                    options.only.push(name.to_owned());
                }
                other => return Err(format!("There is no option `{other}` of `test`.")),
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        if !self.only.is_empty() {
            return self.only.iter().any(|only| only == name);
        }
        match name {
            "soak" => self.soak,
            "fuzz" => self.fuzz_seconds.is_some(),
            "deny" => self.deny,
            "loom" => crate::root().join(LOOM_TESTS).exists(),
            _ => true,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "times the steps; decides nothing about a limit")]
fn now() -> Instant {
    Instant::now()
}

/// The time since then, for people.
fn seconds(since: Instant) -> String {
    let elapsed: Duration = now() - since;
    format!("{:.1} s", elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn parse(line: &str) -> TestOptions {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        TestOptions::parse(&words).expect(line)
    }

    fn names(line: &str) -> Vec<&'static str> {
        let names = plan(&parse(line), true).iter().map(|step| step.name).collect::<Vec<_>>();
        names.into_iter().filter(|name| *name != "loom").collect()
    }

    #[test]
    fn options_choose_the_steps() {
        let usual = [
            "packages", "peers", "house", "format", "publish", "lint", "tests", "doctests", "docs",
        ];
        assert_eq!(names(""), usual);
        assert_eq!(names("--soak"), [&usual[..], &["soak"]].concat());
        assert_eq!(names("--fuzz 5 --soak"), [&usual[..], &["soak", "fuzz"]].concat());
        assert_eq!(names("--only docs --only format"), ["format", "docs"]);
        assert_eq!(names("--only soak"), ["soak"]);
        assert_eq!(names("--deny"), [&usual[..], &["deny"]].concat());
    }

    #[test]
    fn fuzz_takes_seconds_or_leaves_them() {
        let rows = [("--fuzz", 60), ("--fuzz 5", 5), ("--fuzz --soak", 60)];
        for (line, expected) in rows {
            assert_eq!(parse(line).fuzz_seconds, Some(expected), "{line:?}");
        }
    }

    /// `tests/main.rs` takes files in by name: one that is forgotten would never run.
    #[test]
    fn every_file_of_tests_is_part_of_a_program() {
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let mut files = 0;
        for package in fs::read_dir(crate::root().join("crates")).expect("the crates").flatten() {
            let tests = package.path().join("tests");
            let (main, manifest) = (tests.join("main.rs"), package.path().join("Cargo.toml"));
            for entry in fs::read_dir(&tests).into_iter().flatten().flatten() {
                let (path, module) = (entry.path(), entry.path().join("mod.rs"));
                let name = path.file_stem().expect("a name").display().to_string();
                if path == main
                    || !(path.extension().is_some_and(|it| it == "rs") || module.exists())
                {
                    continue;
                }
                files += 1;
                let text = read(&path) + &read(&module);
                let has_tests = text.contains("#[test]") || text.contains("\nmod ");
                let listed = read(&main).contains(&format!("mod {name};\n"))
                    || read(&manifest).contains(&format!("\"tests/{name}.rs\""));
                assert!(listed || !has_tests, "no program has the tests of {}", path.display());
            }
        }
        assert!(files > 30, "{files} files");
    }

    #[test]
    fn every_step_that_compiles_uses_the_profile_of_the_tests() {
        for nextest in [true, false] {
            for step in plan(&parse("--soak"), nextest) {
                let line = step.repeat_command();
                let compiles =
                    !matches!(step.name, "packages" | "peers" | "house" | "format" | "publish");
                assert_eq!(line.contains("profile ci"), compiles, "{line}");
            }
        }
    }
}
