//! Real proxies and clients: the places where they are installed, and functions to start them.
//!
//! `cargo xtask peers` puts them below `target/peers`, at the versions pinned in `testkit/peers`;
//! `cargo xtask test` does so by itself.

mod example;
mod proxies;
mod raw_upstream;
mod upstream;

use std::path::{Path, PathBuf};

pub use example::ExampleFiles;
pub use proxies::ProxyProcess;
pub use raw_upstream::{RawConversation, RawUpstream};
pub use upstream::{UPSTREAM_BODY, Upstream, UpstreamRequest};

/// The program `envoy`.
///
/// # Panics
///
/// If it is not installed; the message says how to install it. So do the others.
#[must_use]
pub fn envoy() -> PathBuf {
    installed("python/envoy/_bin/envoy")
}

/// The program `envoy`, or `None` if it is not installed, for callers that can do without it.
#[must_use]
pub fn installed_envoy() -> Option<PathBuf> {
    Some(path_of("python/envoy/_bin/envoy")).filter(|place| place.exists())
}

/// The program `caddy`.
#[must_use]
pub fn caddy() -> PathBuf {
    installed("python/bin/caddy")
}

/// The program `traefik`.
#[must_use]
pub fn traefik() -> PathBuf {
    installed("python/bin/traefik")
}

/// The program `nginx` from Debian, which installs it in a folder that not every `PATH` has.
#[must_use]
pub fn nginx() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    program("nginx", std::env::split_paths(&path).chain(["/usr/sbin".into()]))
}

/// The program `promtool` of Prometheus, from the `PATH` or from `target/peers`.
#[must_use]
pub fn promtool() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    program("promtool", std::env::split_paths(&path).chain([path_of("promtool")]))
}

/// The first of these folders that has it.
fn program(name: &str, folders: impl Iterator<Item = PathBuf>) -> PathBuf {
    let found = folders.map(|folder| folder.join(name)).find(|place| place.is_file());
    found.unwrap_or_else(|| {
        panic!("{name} is not there: run cargo xtask peers, or cargo xtask test, which installs it")
    })
}

/// The class path with which `java` starts Tomcat from Debian; `None` if Tomcat or a Java compiler is missing, which
/// would be hundreds of megabytes for one test.
#[must_use]
pub fn tomcat() -> Option<PathBuf> {
    let classes = PathBuf::from("/usr/share/java/tomcat10-embed-core.jar");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let compiles = std::env::split_paths(&path).any(|folder| folder.join("javac").is_file());
    (compiles && classes.is_file()).then_some(classes)
}

/// The folder that `python3` needs in `PYTHONPATH` to import `redis` (redis-py).
#[must_use]
pub fn python_path() -> PathBuf {
    installed("python/redis").parent().expect("it lies in a folder").to_owned()
}

/// The folder that `python3` needs in `PYTHONPATH` to import `uvicorn`, `starlette` and `websockets`.
#[must_use]
pub fn applications_path() -> PathBuf {
    installed("applications/starlette").parent().expect("it lies in a folder").to_owned()
}

/// The folder that `node` needs in `NODE_PATH` to require `ioredis`, `ws`, `playwright-core` and `axe-core`.
#[must_use]
pub fn node_path() -> PathBuf {
    installed("node/node_modules/ioredis").parent().expect("it lies in a folder").to_owned()
}

fn path_of(path: &str) -> PathBuf {
    target_directory().join("peers").join(path)
}

fn installed(path: &str) -> PathBuf {
    let place = path_of(path);
    assert!(
        place.exists(),
        "{} is not there: run cargo xtask peers, or cargo xtask test, which installs it",
        place.display()
    );
    place
}

/// The target folder, as in `xtask`: from the environment, relative to the root.
fn target_directory() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("testkit/ lies in the root");
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_is_installed() {
        let folders = [python_path(), applications_path(), node_path()];
        for place in [envoy(), caddy(), traefik(), nginx(), promtool()].into_iter().chain(folders) {
            assert!(place.is_absolute(), "{}", place.display());
        }
    }

    #[test]
    fn a_program_is_found_where_the_path_does_not_lead() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let place = folder.path().join("nginx");
        std::fs::write(&place, "").expect("a file");
        let folders = ["/nowhere".into(), folder.path().to_owned()];
        assert_eq!(program("nginx", folders.into_iter()), place);
    }

    #[test]
    #[should_panic(expected = "cargo xtask peers")]
    fn a_missing_program_says_how_to_get_it() {
        let _ = program("nginx", ["/nowhere".into()].into_iter());
    }

    #[test]
    #[should_panic(expected = "cargo xtask peers")]
    fn a_missing_peer_says_how_to_get_it() {
        let _ = installed("no-such-peer");
    }
}
