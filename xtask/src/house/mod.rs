//! The step `house`: what the repository demands of its own language and map.
//!
//! Two counts may only go down: types that share their name with another type, and item docs that begin
//! with a clause ("What …", "Whether …") instead of a noun or a verb. `xtask/house.ratchet` has the highest
//! counts allowed. ARCHITECTURE.md has to be short, and the paths and invariants it names have to hold.

mod map;
mod sources;
mod words;

use std::fs;
use std::path::PathBuf;

use crate::root;
use sources::Sources;
use words::{ClauseOpenings, SharedNames};

/// Shared names and clause openings that may exist at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ratchet {
    shared_names: usize,
    clause_openings: usize,
}

impl Ratchet {
    fn path() -> PathBuf {
        root().join("xtask/house.ratchet")
    }

    /// Reads the file of the ratchet.
    fn read() -> Result<Ratchet, String> {
        let path = Ratchet::path();
        let text = fs::read_to_string(&path).map_err(|error| format!("{path:?}: {error}"))?;
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.trim().parse().ok());
            number.ok_or(format!("{path:?} has no line `{name} NUMBER`"))
        };
        Ok(Ratchet {
            shared_names: number("shared-type-names")?,
            clause_openings: number("clause-openings")?,
        })
    }

    fn write(self) -> Result<(), String> {
        let Ratchet { shared_names, clause_openings } = self;
        let text = format!(
            "# The most that `cargo xtask house` accepts. The numbers only go down.\n\
             shared-type-names {shared_names}\nclause-openings {clause_openings}\n"
        );
        fs::write(Ratchet::path(), text).map_err(|error| error.to_string())
    }
}

/// Prints the counts, lowers the ratchet to them if they are lower, and returns false if a count has
/// risen or the map is wrong. With `--list` prints every name and doc line that counts.
pub(crate) fn run(list: bool) -> bool {
    let sources = Sources::read(root());
    let names = SharedNames::count(&sources);
    let openings = ClauseOpenings::count(&sources);
    println!("lines of crates/*/src without tests: {}", sources.lines_below("crates"));
    println!("types that share a name: {names}");
    println!("item docs that begin with a clause: {openings}");
    if list {
        names.list();
        openings.list();
    }
    let found = Ratchet { shared_names: names.shared, clause_openings: openings.clauses };
    let mut problems = map::problems(root(), &sources);
    if let Err(problem) = compare(found) {
        problems.push(problem);
    }
    for problem in &problems {
        println!("house: {problem}");
    }
    problems.is_empty()
}

/// Compares the counts with the ratchet, and tightens it.
fn compare(found: Ratchet) -> Result<(), String> {
    let most = Ratchet::read()?;
    if found.shared_names > most.shared_names || found.clause_openings > most.clause_openings {
        return Err(format!(
            "shared type names {} of at most {}, clause openings {} of at most {}: see STYLE.md, \
             and `cargo xtask house --list` for the lines",
            found.shared_names, most.shared_names, found.clause_openings, most.clause_openings
        ));
    }
    if found != most {
        found.write()?;
        println!("xtask/house.ratchet is lower now: commit it");
    }
    Ok(())
}
