//! The training of profile-guided builds: mixed traffic on programs that count their branches.
//!
//! `cargo xtask release --pgo` starts it. Each kind of request gets a similar share of the server's time.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use testkit::instructions::paths::{SERVER_PATHS, ServerPath};
use testkit::instructions::train;
use tollgate_bench::floors::FloorServer;

const USAGE: &str = "\
Sends mixed traffic to the programs in a folder, for `cargo xtask release --pgo`.

Usage: pgo-training FOLDER tollgate  to `tollgate serve`
       pgo-training FOLDER floors    to the floors of the benchmarks
";

/// Decisions of one request each.
const REQUESTS: usize = 100_000;
/// Decisions in batches and pipelines, which cost a fraction of a request.
const BATCHED: usize = 640_000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (folder, train_path): (_, fn(&ServerPath, &Path)) = match words[..] {
        [folder, "tollgate"] => (PathBuf::from(folder), train_tollgate),
        [folder, "floors"] => (PathBuf::from(folder), train_floor),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    for path in &SERVER_PATHS {
        eprintln!("{}", path.name);
        train_path(path, &folder);
    }
    ExitCode::SUCCESS
}

fn train_tollgate(path: &ServerPath, folder: &Path) {
    let tollgate = folder.join("tollgate");
    train(path, decisions(path), |scratch| path.serve_call(&tollgate, scratch));
}

/// Trains the floor of this path, if there is one.
fn train_floor(path: &ServerPath, folder: &Path) {
    if let Some(floor) = FloorServer::of_path(path.name) {
        train(path, decisions(path), |_| floor.call(folder));
    }
}

fn decisions(path: &ServerPath) -> usize {
    if path.decisions == 1 { REQUESTS } else { BATCHED }
}
