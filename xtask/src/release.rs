//! `cargo xtask release`: the program as users get it, and with `--pgo` optimised for measured traffic.
//!
//! Profile-guided optimisation has four steps: build programs that count how often each branch is taken, send them
//! mixed traffic, merge the counts, and build the programs with them. Both builds have folders of their own below the
//! target folder, because other compiler flags would rebuild everything. The floors have profiles of their own, so that
//! Tollgate is the same with and without them.

use std::path::{Path, PathBuf};

use crate::invocation::Invocation;
use crate::{CommandLineError, target_directory};

/// The options of `release`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReleaseOptions {
    pgo: bool,
    floors: bool,
}

/// Programs that are built by one command and trained together.
struct ProgramSet {
    /// The word for `pgo-training`, and the folder of the profiles.
    name: &'static str,
    build: &'static str,
}

const TOLLGATE: ProgramSet =
    ProgramSet { name: "tollgate", build: "cargo build --release --package tollgate-cli" };

const FLOORS: ProgramSet = ProgramSet {
    name: "floors",
    build: "cargo build --release --package tollgate-bench --bin bare-hyper --bin bare-forwarder \
            --bin bare-resp --bin tonic-echo",
};

impl ReleaseOptions {
    pub(crate) fn parse(words: &[String]) -> Result<ReleaseOptions, CommandLineError> {
        let mut options = ReleaseOptions::default();
        for word in words {
            match word.as_str() {
                "--pgo" => options.pgo = true,
                "--floors" => options.floors = true,
                other => return Err(format!("There is no option `{other}` of `release`.")),
            }
        }
        Ok(options)
    }

    fn sets(&self) -> &'static [ProgramSet] {
        if self.floors { &[TOLLGATE, FLOORS] } else { &[TOLLGATE] }
    }
}

/// Builds the programs and prints the path of `tollgate`. Returns true if that succeeded.
pub(crate) fn run(options: &ReleaseOptions) -> bool {
    let folder = if options.pgo {
        ProfiledBuild::prepare().and_then(|build| build.run(options.sets()))
    } else {
        let built = options.sets().iter().all(|set| Invocation::new(set.build).run());
        built.then(|| absolute("release"))
    };
    if let Some(folder) = &folder {
        println!("{}", folder.join("tollgate").display());
    }
    folder.is_some()
}

/// The tools and folders of a profile-guided build.
struct ProfiledBuild {
    /// The platform that the compiler runs on, such as `x86_64-unknown-linux-gnu`.
    host: String,
    /// The program `llvm-profdata`.
    merger: PathBuf,
    /// The folder of the counts, with a folder for each set of programs.
    profiles: PathBuf,
}

/// The command line of one step for one set of programs.
type StepInvocation = fn(&ProfiledBuild, &ProgramSet) -> Invocation;

impl ProfiledBuild {
    /// Finds the tools; prints how to install them if they are missing.
    fn prepare() -> Option<ProfiledBuild> {
        let version = Invocation::new("rustc --version --verbose").output()?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: "))?.to_owned();
        let sysroot = Invocation::new("rustc --print sysroot").output()?;
        let tools = Path::new(sysroot.trim()).join("lib/rustlib").join(&host).join("bin");
        let merger = tools.join("llvm-profdata");
        if !merger.exists() {
            eprintln!("llvm-profdata is not installed; run: rustup component add llvm-tools");
            return None;
        }
        Some(ProfiledBuild { host, merger, profiles: absolute("pgo/profiles") })
    }

    /// Builds, trains and builds again. Returns the folder of the programs.
    fn run(&self, sets: &[ProgramSet]) -> Option<PathBuf> {
        // Profiles of an earlier version of the code would mislead the compiler; there may be none.
        let _ = std::fs::remove_dir_all(&self.profiles);
        let steps: [(&str, StepInvocation); 4] = [
            ("build programs that count their branches", ProfiledBuild::counting),
            ("send them traffic", ProfiledBuild::training),
            ("merge the counts", ProfiledBuild::merging),
            ("build programs for this traffic", ProfiledBuild::optimised),
        ];
        for (index, (what, step)) in steps.into_iter().enumerate() {
            for set in sets {
                eprintln!("step {} of {}, {}: {what}", index + 1, steps.len(), set.name);
                step(self, set).run().then_some(())?;
            }
        }
        Some(self.programs("pgo/optimised"))
    }

    fn counting(&self, set: &ProgramSet) -> Invocation {
        let flags = format!("-Cprofile-generate={}", self.profiles.display());
        self.build(set, "pgo/counting", flags)
    }

    /// The client is not measured, so it is built with the profile of the tests.
    fn training(&self, set: &ProgramSet) -> Invocation {
        let line = "cargo run --profile ci --package tollgate-bench --bin pgo-training --";
        let programs = self.programs("pgo/counting").display().to_string();
        let counts = self.profiles.join(set.name).join("%p.profraw").display().to_string();
        Invocation::new(line).with([programs.as_str(), set.name]).env("LLVM_PROFILE_FILE", counts)
    }

    fn merging(&self, set: &ProgramSet) -> Invocation {
        let paths = [self.merged(set), self.profiles.join(set.name)];
        let paths = paths.map(|path| path.display().to_string());
        let merger = Invocation::new(&self.merger.display().to_string());
        merger.with(["merge", "--output"]).with(paths)
    }

    fn optimised(&self, set: &ProgramSet) -> Invocation {
        let flags = format!("-Cprofile-use={}", self.merged(set).display());
        self.build(set, "pgo/optimised", flags)
    }

    /// A target is named because compiler flags apply to build scripts otherwise, and then those would be counted too.
    fn build(&self, set: &ProgramSet, folder: &str, flags: String) -> Invocation {
        let place = ["--target", &self.host, "--target-dir", &target_directory(folder)];
        Invocation::new(set.build).with(place).env("RUSTFLAGS", flags)
    }

    fn merged(&self, set: &ProgramSet) -> PathBuf {
        self.profiles.join(set.name).with_extension("profdata")
    }

    fn programs(&self, folder: &str) -> PathBuf {
        absolute(folder).join(&self.host).join("release")
    }
}

/// A folder for build products, seen from anywhere: compilers run in folders of their own.
fn absolute(name: &str) -> PathBuf {
    crate::root().join(target_directory(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_of_programs_is_built_with_its_own_profile() {
        let build = ProfiledBuild {
            host: "host".into(),
            merger: "/tools/llvm-profdata".into(),
            profiles: "/profiles".into(),
        };
        let floors = ReleaseOptions { pgo: true, floors: true };
        for set in floors.sets() {
            let name = set.name;
            let rows = [
                (
                    build.counting(set),
                    format!("RUSTFLAGS=-Cprofile-generate=/profiles {}", set.build),
                ),
                (
                    build.training(set),
                    format!("LLVM_PROFILE_FILE='/profiles/{name}/%p.profraw' cargo"),
                ),
                (
                    build.merging(set),
                    format!(
                        "/tools/llvm-profdata merge --output /profiles/{name}.profdata /profiles/{name}"
                    ),
                ),
                (
                    build.optimised(set),
                    format!("RUSTFLAGS=-Cprofile-use=/profiles/{name}.profdata {}", set.build),
                ),
            ];
            for (invocation, expected) in rows {
                let line = invocation.to_string();
                let expected = expected.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(line.starts_with(&expected), "{line}\n{expected}");
            }
        }
    }

    #[test]
    fn only_tollgate_is_built_unless_floors_are_wanted() {
        assert_eq!(ReleaseOptions::default().sets().len(), 1);
        let options = ReleaseOptions::parse(&["--floors".to_owned()]);
        assert_eq!(options.map(|options| options.sets().len()), Ok(2));
    }
}
