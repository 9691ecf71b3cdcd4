//! The training of profile-guided builds: mixed traffic on programs that count their branches.
//!
//! `cargo xtask release --pgo` starts it. Each kind of request gets a similar share of the server's time.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use testkit::instructions::paths::{SERVER_PATHS, ServerPath};
use testkit::instructions::train;
use tollgate_bench::floors::{FLOORS, FloorServer};

const USAGE: &str = "\
Sends mixed traffic to the programs in a folder, for `cargo xtask release --pgo`.

Usage: pgo-training FOLDER [--floors]
";

/// Decisions of one request each.
const REQUESTS: usize = 100_000;
/// Decisions in batches and pipelines, which cost a fraction of a request.
const BATCHED: usize = 640_000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (folder, floors) = match words[..] {
        [folder] => (PathBuf::from(folder), &[][..]),
        [folder, "--floors"] => (PathBuf::from(folder), &FLOORS[..]),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let tollgate = folder.join("tollgate");
    for path in &SERVER_PATHS {
        eprintln!("tollgate: {}", path.name);
        train(path, decisions(path), |scratch| path.serve_call(&tollgate, scratch));
        for floor in floors.iter().filter(|floor| floor.paths.contains(&path.name)) {
            train_floor(path, floor, &folder);
        }
    }
    ExitCode::SUCCESS
}

fn train_floor(path: &ServerPath, floor: &FloorServer, folder: &Path) {
    eprintln!("{}: {}", floor.name, path.name);
    train(path, decisions(path), |_| floor.call(folder));
}

fn decisions(path: &ServerPath) -> usize {
    if path.decisions == 1 { REQUESTS } else { BATCHED }
}
