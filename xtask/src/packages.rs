//! Programs that the tests need and a bare Debian machine does not have.
//!
//! Each is looked for by running it; only what is missing is installed, and the package index is
//! fetched at most once, and not at all when everything is there.

use crate::invocation::Invocation;
use crate::single_programs;

/// A program the tests start.
struct RequiredProgram {
    /// A command line that succeeds when the program is there.
    probe: &'static str,
    /// The Debian package that brings it.
    package: &'static str,
}

/// Everything beyond the Rust toolchain. Bound: a handful, written here by hand.
const REQUIRED_PROGRAMS: &[RequiredProgram] = &[
    RequiredProgram { probe: "redis-server --version", package: "redis-server" },
    RequiredProgram { probe: "redis-sentinel --version", package: "redis-sentinel" },
    RequiredProgram { probe: "nginx -v", package: "nginx-light" },
    // Counts of instructions.
    RequiredProgram { probe: "valgrind --version", package: "valgrind" },
    RequiredProgram { probe: "python3 -m pip --version", package: "python3-pip" },
    RequiredProgram { probe: "node --version", package: "nodejs" },
    RequiredProgram { probe: "npm --version", package: "npm" },
    // A browser as a client of WebSockets.
    RequiredProgram { probe: "chromium --version", package: "chromium" },
    // Loads beside those of `bench`, and a terminal for `top`.
    RequiredProgram { probe: "which wrk", package: "wrk" },
    RequiredProgram { probe: "tmux -V", package: "tmux" },
    // Programs of the commands in README and guides.
    RequiredProgram { probe: "curl --version", package: "curl" },
    RequiredProgram { probe: "jq --version", package: "jq" },
    RequiredProgram { probe: "openssl version", package: "openssl" },
    // Without Java, which is left to the machine: 12 MB against 300.
    RequiredProgram {
        probe: "test -e /usr/share/java/tomcat10-embed-core.jar",
        package: "libtomcat10-embed-java",
    },
];

/// The folder of Debian's programs for administrators, which not every `PATH` has. Tests look there too.
const SBIN_FOLDER: &str = "/usr/sbin";

/// Proxies that only benchmarks start.
const BENCHMARK_PROGRAMS: &[RequiredProgram] = &[
    RequiredProgram { probe: "nginx -v", package: "nginx-light" },
    RequiredProgram { probe: "haproxy -v", package: "haproxy" },
];

/// Installs missing programs of the tests. Returns true if nothing is missing afterwards.
pub(crate) fn install() -> bool {
    let installed = install_missing(REQUIRED_PROGRAMS);
    single_programs::install() && installed
}

/// Installs missing proxies of benchmarks. Returns true if nothing is missing afterwards.
pub(crate) fn install_for_benchmark() -> bool {
    install_missing(BENCHMARK_PROGRAMS)
}

fn install_missing(needs: &[RequiredProgram]) -> bool {
    install_with(needs, |packages| {
        let Some(root) = root_prefix() else {
            eprintln!("missing: {packages}\nrun as root: apt-get install {packages}");
            return false;
        };
        let apt = |rest: String| {
            let line = format!("{root}env DEBIAN_FRONTEND=noninteractive apt-get {rest}");
            println!("{line}");
            Invocation::new(&line).run()
        };
        apt("update --quiet".into())
            && apt(format!("install --yes --quiet --no-install-recommends {packages}"))
    })
}

/// Checks again after installing: a package may be installed and its program still not run, for example if the
/// `PATH` has another `python3` first.
fn install_with(needs: &[RequiredProgram], install: impl FnOnce(&str) -> bool) -> bool {
    let absent = missing(needs);
    if absent.is_empty() {
        println!("nothing to install");
        return true;
    }
    let packages: Vec<&str> = absent.iter().map(|need| need.package).collect();
    if !install(&packages.join(" ")) {
        return false;
    }
    let absent = missing(needs);
    for RequiredProgram { probe, package } in &absent {
        eprintln!("{package} is installed, and yet this fails: {probe}\nsee what your PATH has");
    }
    absent.is_empty()
}

/// The programs that do not run, in the order of the list.
fn missing(needs: &[RequiredProgram]) -> Vec<&RequiredProgram> {
    needs.iter().filter(|need| !answers(need.probe, SBIN_FOLDER)).collect()
}

/// Returns true if the command line succeeds, with a program of the `PATH` or of this folder.
fn answers(probe: &str, folder: &str) -> bool {
    Invocation::new(probe).probe() || Invocation::new(&format!("{folder}/{probe}")).probe()
}

/// The prefix that runs a command as root; `None` if that is not possible.
pub(crate) fn root_prefix() -> Option<&'static str> {
    let may_install = Invocation::new("test -w /var/lib/dpkg/status").probe();
    match (may_install, Invocation::new("sudo --version").probe()) {
        (true, _) => Some(""),
        (false, true) => Some("sudo "),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: RequiredProgram = RequiredProgram { probe: "true", package: "coreutils" };
    const BAD: RequiredProgram = RequiredProgram { probe: "false", package: "answers-badly" };
    const GONE: RequiredProgram =
        RequiredProgram { probe: "tollgate-no-such-program --version", package: "is-not-there" };

    #[test]
    fn only_what_does_not_answer_is_installed() {
        let mut asked = String::new();
        install_with(&[THERE, BAD, GONE], |packages| {
            asked = packages.to_owned();
            true
        });
        assert_eq!(asked, "answers-badly is-not-there");
        assert!(install_with(&[THERE], |_| panic!("nothing is missing")));
    }

    #[test]
    fn what_does_not_answer_afterwards_is_a_failure() {
        assert!(!install_with(&[THERE, GONE], |_| true));
        let folder = std::env::temp_dir().join(format!("xtask-{}-late", std::process::id()));
        let probe = format!("test -d {}", folder.display());
        let late = RequiredProgram { probe: probe.leak(), package: "comes-late" };
        let install = |_: &str| std::fs::create_dir(&folder).is_ok();
        assert!(install_with(&[late], install));
        std::fs::remove_dir(&folder).expect("it is there");
    }

    #[test]
    fn programs_of_the_administrator_count() {
        let folder = std::env::temp_dir().join(format!("xtask-{}-sbin", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder for temporary files");
        let name = "tollgate-only-in-sbin";
        std::os::unix::fs::symlink("/bin/sh", folder.join(name)).expect("a link");
        let probe = format!("{name} -c true");
        let found = answers(&probe, folder.to_str().expect("a plain name"));
        let elsewhere = answers(&probe, "/usr/sbin");
        std::fs::remove_dir_all(&folder).expect("it is there");
        assert_eq!((found, elsewhere), (true, false));
    }
}
