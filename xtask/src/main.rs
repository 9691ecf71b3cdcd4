//! The commands of this repository, as a program: `cargo xtask test` is the one that matters.
//!
//! It has no dependencies on purpose, so that the first thing a new machine builds takes a second
//! and the test command cannot be broken by the code it tests.
//!
//! Read in this order: this file (the commands), `test.rs` (the steps of the test command), `programs.rs`
//! (everything else), then the shared parts.

mod house;
mod invocation;
mod packages;
mod peers;
mod pictures;
mod programs;
mod publish;
mod release;
mod single_programs;
mod tally;
mod test;

use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
The commands of the Tollgate repository.

Usage: cargo xtask COMMAND [OPTIONS]

Commands:
  test                     check formatting, lints, tests, examples in the docs, and the docs
  bench library [OPTIONS]  measure the library next to its peers; --quick for a first look
  bench rules [OPTIONS]    measure the cost of rules files as they grow
  bench queue [OPTIONS]    measure a scheduling step of the fair queue, by the keys that wait
  bench http [OPTIONS]     measure the server over HTTP next to bare hyper and to nginx
  bench dashboard [OPTIONS]
                           measure what an open dashboard costs the server
  bench gateway [OPTIONS]  measure the gateway next to nginx, HAProxy, Envoy and a bare forwarder
  bench fairness [OPTIONS]
                           measure the shares that callers get, next to nginx and Envoy
  bench redis [OPTIONS]    measure decisions through Redis next to one EVALSHA for each request
  bench doors [OPTIONS]    measure RESP, gRPC and tower next to Redis, tonic and a bare route
  bench adaptive [OPTIONS] compare adaptive concurrency with fixed bounds and other controllers
  instructions [OPTIONS]   count the instructions of a decision on every way in; --write measures the
                           ceilings of the tests again
  errors                   print the error of the sliding window counter, per traffic shape
  probabilistic            print the error of limits that servers enforce without a shared store
  log-cost                 measure the sliding window log from N = 10 to 1 million
  flood                    measure memory and fairness under a flood of new keys
  release [OPTIONS]        build the program as users get it, and print its path
  fuzz TARGET [SECONDS]    feed one fuzz target random input (default: 60 seconds):
                           algorithms, table, notation, paths, rules_file, identity,
                           json_body, forwarded_headers, plain_requests, grpc or
                           resp_commands
  house [--list]           count shared type names and clause openings, check ARCHITECTURE.md;
                           --list prints every line that counts
  pictures [--dashboard]   draw the pictures of README and guides, as docs/pictures/pictures.txt lists them;
                           --dashboard draws those of the dashboard, after five minutes of traffic
  peers                    install the programs, proxies and clients that the tests start
  help                     print this text

Options of `release`:
  --pgo             optimise for measured traffic: two builds, with training between them; needs
                    `rustup component add llvm-tools`
  --floors          also build the floors of the benchmarks, in the same way

Options of `test`:
  --only STEP       run this step alone; may be given several times
                    (packages, peers, house, format, publish, lint, tests, doctests, docs, loom,
                    soak, fuzz, deny)
  --soak            also run the tests marked #[ignore], which take minutes
  --fuzz [SECONDS]  also run every fuzz target, 60 seconds each by default
  --deny            also check licences, advisories and sources of all dependencies, which
                    needs cargo-deny and a network

`test` ends with a line `N passed, N failed` and exits with 0 only if nothing failed.
A step that fails prints the command that repeats it alone.

Examples:
  cargo xtask test
  cargo xtask test --only lint --only docs
  cargo xtask bench library --quick
  cargo xtask bench http --quick
  cargo xtask fuzz notation 300
";

/// The message about a command line that was not understood; it says what to write instead.
type CommandLineError = String;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("{problem}\n`cargo xtask help` lists the commands.");
            ExitCode::from(2)
        }
    }
}

/// Runs the command of the command line. `Ok(false)` means that it ran and something failed.
fn run(words: &[String]) -> Result<bool, CommandLineError> {
    let Some((command, rest)) = words.split_first() else {
        print!("{HELP}");
        return Ok(true);
    };
    // Programs that measure have a help of their own.
    let own_help = ["errors", "probabilistic", "log-cost", "flood", "instructions"]
        .contains(&command.as_str());
    if !own_help && rest.first().is_some_and(|word| word == "--help") {
        print!("{HELP}");
        return Ok(true);
    }
    match command.as_str() {
        "test" => Ok(test::run(&test::TestOptions::parse(rest)?)),
        "bench" => programs::bench(rest),
        "instructions" => Ok(programs::instructions(rest)),
        "errors" => Ok(programs::measure("errors", rest)),
        "probabilistic" => Ok(programs::measure("probabilistic", rest)),
        "log-cost" => Ok(programs::measure("log-cost", rest)),
        "flood" => Ok(programs::measure("flood", rest)),
        "release" => Ok(release::run(&release::ReleaseOptions::parse(rest)?)),
        "fuzz" => programs::fuzz(rest),
        "house" => match rest {
            [] => Ok(house::run(false)),
            [option] if option == "--list" => Ok(house::run(true)),
            _ => Err("house takes nothing but --list.".into()),
        },
        "pictures" => match rest {
            [] => Ok(pictures::run()),
            [option] if option == "--dashboard" => Ok(pictures::run_dashboard()),
            _ => Err("pictures takes nothing but --dashboard.".into()),
        },
        "peers" => Ok(packages::install() && peers::install()),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(true)
        }
        other => Err(format!("There is no command `{other}`.")),
    }
}

/// A folder for build products, beside cargo's own; a relative path is below the root.
fn target_directory(name: &str) -> String {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    format!("{target}/{name}")
}

/// The root of the repository; every command runs there.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask/ lies in the repository root")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_wrong_command_line_says_what_is_wrong() {
        let rows = [
            ("tset", "no command `tset`"),
            ("test --sok", "no option `--sok`"),
            ("test --only", "--only needs a step"),
            ("test --only lnit", "no step `lnit`"),
            ("bench", "bench needs to know what"),
            ("bench server", "no benchmark `server`"),
            ("fuzz", "fuzz needs a target"),
            ("release --pog", "no option `--pog`"),
            ("house --lits", "nothing but --list"),
            ("fuzz notation soon", "`soon` is not a number of seconds"),
        ];
        for (line, expected) in rows {
            let problem = run(&words(line)).expect_err(line);
            assert!(problem.contains(expected), "{line:?} answered {problem:?}");
        }
    }

    #[test]
    fn the_help_names_every_step() {
        for name in test::STEPS {
            assert!(HELP.contains(name), "the help text does not name the step `{name}`");
        }
    }
}
