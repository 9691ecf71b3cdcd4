//! `cargo xtask instructions`: instructions per decision of every way in, counted by callgrind, next to servers that
//! decide nothing.
//!
//! The counting is in `testkit::instructions`, which the tests share; this program adds the floors and the table.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use testkit::instructions::paths::{LIBRARY_PATHS, SERVER_PATHS, ServerPath};
use testkit::instructions::{count_library, count_server};
use tollgate_bench::floors::FloorServer;
use tollgate_bench::options::{self, BenchOptions, UsageError};
use tollgate_bench::process::{programs_folder, sibling_program};
use tollgate_bench::table::{BenchTable, TableStyle, figures, thousands};

const HELP: &str = "\
Counts the instructions of one decision on every way in, with callgrind (the Debian package valgrind).

Usage: cargo xtask instructions [OPTIONS]

Options:
  --server PATH    count this program instead of the `tollgate` built from this repository
  --floors FOLDER  take the floors from this folder
  --only NAME      only paths whose name contains NAME, such as forward-auth, check, THROTTLE, Gatekeeper
  --markdown       the table as Markdown
  --write          measure the ceilings of the tests again, with the `ci` profile, and write
                   testkit/instructions.txt; takes no other option
  --help           print this text

Each program runs twice, with some requests and with three times as many, over one connection. The
difference leaves out start and end. Batches and pipelines have 64 decisions; the count is that of one.
Floors get the same requests, send the same bytes and decide nothing. Only user space is counted, an
instruction that copies a block counts once for each byte, and misses of caches are not seen: decide
with the times of `cargo xtask bench` what is fast, and with this what has changed.

To see where the instructions go, run the server by hand and send it requests:
  valgrind --tool=callgrind target/release/tollgate serve --workers 1
  callgrind_annotate callgrind.out.PID

Examples:
  cargo xtask instructions
  cargo xtask instructions --only forward-auth --server target/release/tollgate
";

fn main() -> ExitCode {
    options::run(HELP, run)
}

fn run(mut options: BenchOptions) -> Result<bool, UsageError> {
    let tollgate: PathBuf =
        options.value("--server")?.map_or_else(|| sibling_program("tollgate"), Ok)?;
    let floors: PathBuf = options.value("--floors")?.map_or_else(programs_folder, Ok)?;
    let only: String = options.value("--only")?.unwrap_or_default();
    let style = TableStyle::from_flag(options.flag("--markdown"));
    options.finish()?;
    let columns = ["path", "tollgate", "floor", "floor / tollgate", "floor's name"];
    let mut table = BenchTable::new("Instructions per decision", style, &columns);
    for path in SERVER_PATHS.iter().filter(|path| path.name.contains(&only)) {
        eprintln!("{}", path.name);
        let count = count_server(path, |scratch| path.serve_call(&tollgate, scratch));
        table.row(row(path.name, count, count_floor(path, &floors)));
    }
    for path in LIBRARY_PATHS.iter().filter(|path| path.name.contains(&only)) {
        eprintln!("{}", path.name);
        let count = count_library(path, &sibling_program("library-loop")?);
        table.row(row(path.name, count, None));
    }
    println!("{table}");
    Ok(!table.is_empty())
}

/// The count and the name of the floor of this path, if there is one.
fn count_floor(path: &ServerPath, folder: &Path) -> Option<(f64, &'static str)> {
    let floor = FloorServer::of_path(path.name)?;
    Some((count_server(path, |_| floor.call(folder)), floor.name))
}

fn row(name: &str, count: f64, floor: Option<(f64, &str)>) -> [String; 5] {
    let [floor_count, ratio, floor_name] = match floor {
        Some((floor, name)) => {
            [thousands(floor.round() as u64), figures(floor / count), name.to_owned()]
        }
        None => ["-".into(), "-".into(), "-".into()],
    };
    [name.to_owned(), thousands(count.round() as u64), floor_count, ratio, floor_name]
}
