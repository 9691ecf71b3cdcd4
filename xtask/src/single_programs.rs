//! Single programs out of a Debian package, whose other content the tests do not need: the package is fetched and unpacked
//! into `target/peers`, and not installed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::invocation::Invocation;
use crate::packages::root_prefix;

/// A program of a package that is not installed.
struct SingleProgram {
    name: &'static str,
    package: &'static str,
    /// The program's path in the package.
    path: &'static str,
}

/// All of them. Bound: a handful, written here by hand.
const SINGLE_PROGRAMS: &[SingleProgram] = &[
    // Alone it has 48 MB. Its package has a server, which would be started, and 330 MB with what it depends on.
    SingleProgram { name: "promtool", package: "prometheus", path: "usr/bin/promtool" },
];

/// Fetches programs that are missing. Returns true if none is missing afterwards.
pub(crate) fn install() -> bool {
    let peers = crate::root().join(crate::target_directory("peers"));
    let run = |line: &Invocation| {
        println!("{line}");
        line.run()
    };
    let missing = SINGLE_PROGRAMS.iter().filter(|program| !program.is_there(&peers));
    let failed = missing.filter(|program| {
        let done = program.install(&peers, run).unwrap_or_else(|error| {
            eprintln!("{}: {error}", peers.join(program.name).display());
            false
        });
        if !done {
            eprintln!("missing: {}; install a package that has it", program.name);
        }
        !done
    });
    failed.count() == 0
}

impl SingleProgram {
    /// Returns true if the program is in `target/peers` or on the `PATH`.
    fn is_there(&self, peers: &Path) -> bool {
        peers.join(self.name).join(self.name).is_file()
            || Invocation::new(self.name).with(["--version"]).probe()
    }

    /// Unpacks the package in a temporary folder and moves the program into place when it is there, so that an
    /// interrupted run leaves nothing that looks installed.
    fn install(&self, peers: &Path, run: impl Fn(&Invocation) -> bool) -> io::Result<bool> {
        let unfinished = peers.join(format!("{}.{}", self.name, std::process::id()));
        fs::create_dir_all(&unfinished)?;
        let done = self.fetch(&unfinished, &run) && self.unpack(&unfinished, &run)?;
        if done {
            let place = peers.join(self.name);
            fs::create_dir_all(&place)?;
            fs::rename(unfinished.join(self.path), place.join(self.name))?;
        }
        fs::remove_dir_all(&unfinished)?;
        Ok(done)
    }

    /// Fetches the package into a folder; if that fails, once more with a new index.
    fn fetch(&self, folder: &Path, run: &impl Fn(&Invocation) -> bool) -> bool {
        let download = Invocation::new("env")
            .with([format!("--chdir={}", folder.display())])
            .with(["apt-get", "download", "--quiet", self.package]);
        let update = || {
            let Some(root) = root_prefix() else { return false };
            run(&Invocation::new(&format!("{root}apt-get update --quiet")))
        };
        run(&download) || update() && run(&download)
    }

    fn unpack(&self, folder: &Path, run: &impl Fn(&Invocation) -> bool) -> io::Result<bool> {
        let Some(package) = package_in(folder)? else { return Ok(false) };
        let [package, folder] = [&package, folder].map(|path| path.display().to_string());
        Ok(run(&Invocation::new("dpkg-deb --extract").with([package, folder])))
    }
}

/// The package in a folder.
fn package_in(folder: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "deb") {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const PROGRAM: SingleProgram = SingleProgram {
        name: "tollgate-no-such-program",
        package: "a-package",
        path: "usr/bin/tollgate-no-such-program",
    };

    /// Runs the installation with commands that do what `fake` does, and returns its result and the commands.
    fn installed(peers: &Path, fake: impl Fn(&str) -> bool) -> (bool, Vec<String>) {
        let lines = RefCell::new(Vec::new());
        let done = PROGRAM.install(peers, |line| {
            lines.borrow_mut().push(line.to_string());
            fake(&line.to_string())
        });
        (done.expect("files can be written"), lines.into_inner())
    }

    #[test]
    fn a_program_is_unpacked_and_counts_only_when_it_is_complete() {
        let peers = std::env::temp_dir().join(format!("xtask-{}-single", std::process::id()));
        let folder = peers.join(format!("{}.{}", PROGRAM.name, std::process::id()));
        // Without the package, with a new index, nothing is left.
        let (done, lines) = installed(&peers, |line| line.contains("update"));
        assert!(!done && !PROGRAM.is_there(&peers), "{lines:?}");
        assert!(lines[0].contains("apt-get download --quiet a-package"), "{lines:?}");
        assert_eq!(fs::read_dir(&peers).expect("a folder").count(), 0);

        let (done, lines) = installed(&peers, |line| {
            let (name, content) = match line.contains("download") {
                true => ("a-package_1_all.deb", "package"),
                false => (PROGRAM.path, "program"),
            };
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
            fs::write(path, content).is_ok()
        });
        assert!(done && PROGRAM.is_there(&peers), "{lines:?}");
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[1].starts_with("dpkg-deb --extract") && lines[1].contains("a-package_1_all.deb")
        );
        let content = fs::read(peers.join(PROGRAM.name).join(PROGRAM.name)).expect("the program");
        assert_eq!(content, b"program");
        assert!(!folder.exists(), "nothing else is kept");
        fs::remove_dir_all(&peers).expect("it is there");
    }
}
