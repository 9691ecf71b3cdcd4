//! The floors: servers that get the same requests as Tollgate, send the same bytes and decide nothing.

use std::path::Path;

use testkit::process::ProgramCall;

/// A server of this crate in one of its modes.
#[derive(Debug)]
pub struct FloorServer {
    /// The name in tables.
    pub name: &'static str,
    /// The file name of the program.
    program: &'static str,
    /// The words of its command line.
    words: &'static [&'static str],
    /// Names of the paths in `testkit::instructions::paths` that it answers as Tollgate does.
    paths: &'static [&'static str],
}

/// Every floor with a path that is counted.
const FLOORS: [FloorServer; 4] = [
    FloorServer {
        name: "hyper, same fields",
        program: "bare-hyper",
        words: &["fields"],
        paths: &["forward-auth, 1 rule"],
    },
    FloorServer {
        name: "hyper, same body and fields",
        program: "bare-hyper",
        words: &["bodies"],
        paths: &["check"],
    },
    FloorServer {
        name: "bare echo",
        program: "bare-resp",
        words: &[],
        paths: &["CL.THROTTLE", "CL.THROTTLE, pipeline of 64"],
    },
    FloorServer {
        name: "tonic echo",
        program: "tonic-echo",
        words: &[],
        paths: &["ShouldRateLimit"],
    },
];

impl FloorServer {
    /// The command line that starts it from the folder of the programs.
    pub fn call(&self, folder: &Path) -> ProgramCall {
        ProgramCall::new(folder.join(self.program), self.words)
    }

    /// The floor of a path, if there is one.
    pub fn of_path(path: &str) -> Option<&'static FloorServer> {
        FLOORS.iter().find(|floor| floor.paths.contains(&path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::instructions::paths::SERVER_PATHS;

    #[test]
    fn floors_answer_paths_that_exist() {
        for path in FLOORS.iter().flat_map(|floor| floor.paths) {
            assert!(SERVER_PATHS.iter().any(|it| it.name == *path), "{path}");
        }
    }
}
