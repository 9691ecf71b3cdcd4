//! The measuring programs and the fuzz targets: what `cargo xtask` starts besides the tests.

use crate::CommandLineError;
use crate::invocation::Invocation;
use crate::packages;

/// Default time of a fuzz target in seconds.
pub(crate) const FUZZ_SECONDS_DEFAULT: u32 = 60;

/// The benchmarks that `cargo xtask bench` knows, each a program of the bench crate.
const BENCHMARKS: &[&str] = &[
    "library",
    "rules",
    "queue",
    "adaptive",
    "http",
    "dashboard",
    "gateway",
    "fairness",
    "redis",
    "doors",
];

/// `bench NAME [OPTIONS…]`: the options go to the benchmark untouched.
pub(crate) fn bench(words: &[String]) -> Result<bool, CommandLineError> {
    let known = BENCHMARKS.join(", ");
    let Some((name, options)) = words.split_first() else {
        return Err(format!("bench needs to know what to measure: {known}."));
    };
    if !BENCHMARKS.contains(&name.as_str()) {
        return Err(format!("There is no benchmark `{name}`; there is: {known}."));
    }
    let is_help = options.iter().any(|word| word == "--help" || word == "-h");
    if matches!(name.as_str(), "gateway" | "fairness")
        && !is_help
        && !packages::install_for_benchmark()
    {
        eprintln!("the proxies that are missing are not measured");
    }
    Ok(build_servers(name, options) && measure(name, options))
}

/// `instructions [OPTIONS…]`: counts with the release profile, or writes the ceilings of the tests.
pub(crate) fn instructions(options: &[String]) -> bool {
    match options {
        [option] if option == "--write" => write_ceilings().run(),
        _ => build_servers("instructions", options) && measure("instructions", options),
    }
}

/// The tests measure for themselves: the whole workspace is selected so that the programs have the features they have in
/// the test command. One thread: they write
/// to one file.
fn write_ceilings() -> Invocation {
    let line = "cargo test --workspace --all-features --profile ci --test suite \
                --test library_instructions stay_below_their_ceilings -- --test-threads 1";
    Invocation::new(line).env("TOLLGATE_BLESS", "1")
}

/// Builds the servers that a benchmark starts: it looks for them beside itself.
fn build_servers(benchmark: &str, options: &[String]) -> bool {
    servers(benchmark, options).iter().all(Invocation::run)
}

/// Tollgate is built by a command of its own, so that its dependencies have the features that users
/// get, and not those that the bench crate asks for on top.
fn servers(benchmark: &str, options: &[String]) -> Vec<Invocation> {
    let given = |option: &str| options.iter().any(|word| word == option);
    let peers: &[&str] = match benchmark {
        _ if given("--help") || given("-h") => &[],
        "http" => &["bare-hyper"],
        "gateway" => &["bare-forwarder"],
        "instructions" => &["bare-hyper", "bare-resp", "tonic-echo"],
        "doors" => &["bare-resp", "tonic-echo", "axum-route"],
        _ => &[],
    };
    let is_alone = benchmark == "dashboard" && !given("--help") && !given("-h");
    if peers.is_empty() && !is_alone {
        return Vec::new();
    }
    let mut lines = Vec::new();
    if !peers.is_empty() && !given("--floors") {
        let bins = peers.iter().flat_map(|peer| ["--bin", peer]);
        let line = Invocation::new("cargo build --release --package tollgate-bench");
        lines.push(line.with(bins));
    }
    if benchmark == "instructions" {
        lines.push(Invocation::new("cargo build --release --package testkit --bin library-loop"));
    }
    if !given("--server") {
        lines.push(Invocation::new("cargo build --release --package tollgate-cli"));
    }
    lines
}

/// Runs one program of the bench crate, built as users build: with the release profile.
pub(crate) fn measure(program: &str, options: &[String]) -> bool {
    let line = format!("cargo run --release --package tollgate-bench --bin {program} --");
    Invocation::new(&line).with(options).run()
}

/// `fuzz TARGET [SECONDS]`.
pub(crate) fn fuzz(words: &[String]) -> Result<bool, CommandLineError> {
    let (target, seconds) = match words {
        [target] => (target, FUZZ_SECONDS_DEFAULT),
        [target, seconds] => (target, parse_seconds(seconds)?),
        _ => return Err(format!("fuzz needs a target{}.", known_targets())),
    };
    Ok(fuzzer_is_installed() && fuzz_run(target, seconds).run())
}

/// The command line that fuzzes one target. libFuzzer needs compiler flags that stable Rust hides;
/// RUSTC_BOOTSTRAP shows them, for this build only.
pub(crate) fn fuzz_run(target: &str, seconds: u32) -> Invocation {
    let line = format!("cargo fuzz run --fuzz-dir fuzz {target} -- -max_total_time={seconds}");
    Invocation::new(&line).env("RUSTC_BOOTSTRAP", "1")
}

/// The names of the fuzz targets, sorted; none while there is no fuzz directory.
pub(crate) fn fuzz_targets() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(crate::root().join("fuzz/fuzz_targets")) else {
        return Vec::new();
    };
    let name = |path: std::path::PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
    let mut names: Vec<String> = entries.flatten().filter_map(|it| name(it.path())).collect();
    names.sort();
    names
}

/// The targets to choose from, as the end of a sentence.
fn known_targets() -> String {
    match fuzz_targets() {
        none if none.is_empty() => "; there is none yet in fuzz/fuzz_targets".into(),
        some => format!("; there is: {}", some.join(", ")),
    }
}

/// Returns true if cargo-fuzz is installed; otherwise prints how to install it.
pub(crate) fn fuzzer_is_installed() -> bool {
    let there = Invocation::new("cargo fuzz --version").probe();
    if !there {
        eprintln!("cargo-fuzz is not installed; run: cargo install --locked cargo-fuzz");
    }
    there
}

/// Returns true if cargo-deny is installed; otherwise prints how to install it.
pub(crate) fn deny_is_installed() -> bool {
    let there = Invocation::new("cargo deny --version").probe();
    if !there {
        eprintln!("cargo-deny is not installed; run: cargo install --locked cargo-deny");
    }
    there
}

pub(crate) fn parse_seconds(word: &str) -> Result<u32, CommandLineError> {
    let seconds = word.parse().ok().filter(|seconds| *seconds > 0);
    seconds.ok_or_else(|| format!("`{word}` is not a number of seconds; write 60 for a minute."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_that_are_measured_are_built() {
        let rows = [
            ("library", "--quick", 0),
            ("http", "--help", 0),
            ("http", "--quick", 2),
            ("http", "--server target/release/tollgate", 1),
            ("gateway", "--quick", 2),
            ("doors", "--only resp", 2),
            ("doors", "--server tollgate --floors target/release", 0),
            ("instructions", "--only check", 3),
            ("doors", "-h", 0),
        ];
        for (benchmark, options, expected) in rows {
            let options: Vec<String> = options.split(' ').map(str::to_owned).collect();
            assert_eq!(servers(benchmark, &options).len(), expected, "{benchmark} {options:?}");
        }
    }
}
