//! Programs that the tests need and a bare Debian machine does not have.
//!
//! Each is looked for by running it; only what is missing is installed, and the package index is
//! fetched at most once, and not at all when everything is there.

use crate::invocation::Invocation;

/// A program the tests start.
struct Need {
    /// A command line that succeeds when the program is there.
    probe: &'static str,
    /// The Debian package that brings it.
    package: &'static str,
}

/// Everything beyond the Rust toolchain. Bound: a handful, written here by hand.
const NEEDS: &[Need] = &[
    Need { probe: "redis-server --version", package: "redis-server" },
    Need { probe: "redis-sentinel --version", package: "redis-sentinel" },
    Need { probe: "nginx -v", package: "nginx-light" },
    Need { probe: "python3 -m pip --version", package: "python3-pip" },
    Need { probe: "node --version", package: "nodejs" },
    Need { probe: "npm --version", package: "npm" },
];

/// Installs what is missing; true if nothing is missing afterwards.
pub(crate) fn install() -> bool {
    let missing = missing(NEEDS);
    if missing.is_empty() {
        println!("nothing to install");
        return true;
    }
    let packages = missing.join(" ");
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
}

/// The packages whose probe fails, in the order of the list.
fn missing(needs: &[Need]) -> Vec<&'static str> {
    let absent = |need: &&Need| !Invocation::new(need.probe).probe();
    needs.iter().filter(absent).map(|need| need.package).collect()
}

/// What to write before a command so that it runs as root, or `None` where that cannot be.
fn root_prefix() -> Option<&'static str> {
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

    #[test]
    fn only_what_does_not_answer_is_missing() {
        let needs = [
            Need { probe: "true", package: "coreutils" },
            Need { probe: "false", package: "answers-badly" },
            Need { probe: "tollgate-no-such-program --version", package: "is-not-there" },
        ];
        assert_eq!(missing(&needs), ["answers-badly", "is-not-there"]);
    }
}
